//! The thread on which a backend syncs.
//!
//! [`spawn`] starts it for a [`Syncer`]; the [`SyncHandle`] notifies it, reads its figures and stops
//! it. When to sync is the [`Pacer`]'s decision; this module gives it a clock and a
//! thread. A thread and not a task, because talking to the kernel blocks.
//!
//! What always holds:
//! - Notifying never blocks on a sync and queues nothing: it sets a flag.
//! - A sync that runs is never cut off. [`SyncHandle::stop`] waits for its end.
//! - A panic in the syncer is a failed sync: counted, logged, and answered by a full sync.
//! - A sync that came before there was anything to go by is none: it is not counted, and does not make
//!   anybody call the backend synced.
//!
//! ```
//! use std::time::Duration;
//! use telaio_reconcile::pacer::{PacerConfig, SyncKind};
//! use telaio_reconcile::sync_loop::{self, Syncer};
//! use telaio_reconcile::target::{ApplyError, SyncReport};
//!
//! struct Noop;
//! impl Syncer for Noop {
//!     fn sync(&mut self, _kind: SyncKind) -> Result<SyncReport, ApplyError> {
//!         Ok(SyncReport::default())
//!     }
//! }
//!
//! let handle = sync_loop::spawn("noop", PacerConfig::default(), Noop)?;
//! handle.notify();
//! assert!(handle.wait_synced(Duration::from_secs(10)));
//! handle.stop();
//! assert_eq!(handle.stats().syncs_total, 1);
//! # Ok::<(), std::io::Error>(())
//! ```

use std::hash::{BuildHasher, RandomState};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::{self, JoinHandle, ThreadId};
use std::time::{Duration, Instant, SystemTime};

use parking_lot::{Condvar, Mutex};

use crate::pacer::{Next, Pacer, PacerConfig, SyncKind};
use crate::target::{ApplyError, SyncReport};

mod stats;
#[cfg(test)]
mod tests;

pub use stats::{Histogram, SyncStats};

/// What the loop drives: mostly a reconciler together with the state that it compiles from.
pub trait Syncer: Send {
    /// Brings the machine up to date, as thoroughly as `kind` says.
    fn sync(&mut self, kind: SyncKind) -> Result<SyncReport, ApplyError>;
}

impl<S: Syncer + ?Sized> Syncer for Box<S> {
    fn sync(&mut self, kind: SyncKind) -> Result<SyncReport, ApplyError> {
        (**self).sync(kind)
    }
}

/// Starts a thread of this name that syncs whenever it is told to, and periodically.
pub fn spawn<S>(name: impl Into<String>, config: PacerConfig, syncer: S) -> io::Result<SyncHandle>
where
    S: Syncer + 'static,
{
    let shared = Arc::new(Shared {
        state: Mutex::new(LoopState {
            pacer: Pacer::new(config),
            stats: SyncStats::default(),
            pending_since: None,
            running_since: None,
            queued: 0,
            synced: 0,
            stopping: false,
            ended: false,
        }),
        wake: Condvar::new(),
        progress: Condvar::new(),
    });
    let for_thread = Arc::clone(&shared);
    let thread =
        thread::Builder::new().name(name.into()).spawn(move || run(&for_thread, syncer))?;
    let thread_id = thread.thread().id();
    let owner = Owner { shared, thread_id, thread: Mutex::new(Some(thread)) };
    Ok(SyncHandle { owner: Arc::new(owner) })
}

/// Controls a sync loop; clones control the same. When the last one is dropped the loop ends.
#[derive(Debug, Clone)]
pub struct SyncHandle {
    owner: Arc<Owner>,
}

#[derive(Debug)]
struct Owner {
    shared: Arc<Shared>,
    thread_id: ThreadId,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<LoopState>,
    /// The loop waits on it for work.
    wake: Condvar,
    /// Others wait on it for the end of a sync.
    progress: Condvar,
}

#[derive(Debug)]
struct LoopState {
    pacer: Pacer,
    stats: SyncStats,
    /// When the oldest request that no sync has taken up came.
    pending_since: Option<Instant>,
    /// The same for the requests that the running sync, or the last failed one, has taken up.
    running_since: Option<Instant>,
    /// How many requests came, and how many of those a successful sync has served.
    queued: u64,
    synced: u64,
    stopping: bool,
    ended: bool,
}

impl SyncHandle {
    /// Something changed.
    pub fn notify(&self) {
        self.request(SyncKind::Changes);
    }

    /// Everything should be compiled and compared anew.
    pub fn resync(&self) {
        self.request(SyncKind::Full);
    }

    /// Somebody else may have changed what is ours.
    pub fn drift_suspected(&self) {
        self.request(SyncKind::Drift);
    }

    fn request(&self, kind: SyncKind) {
        let mut state = self.owner.shared.state.lock();
        state.pacer.request(kind);
        state.pending_since.get_or_insert_with(Instant::now);
        state.stats.last_queued = Some(SystemTime::now());
        state.queued += 1;
        drop(state);
        self.owner.shared.wake.notify_one();
    }

    /// Changes the least time between syncs.
    pub fn set_min_sync_period(&self, period: Duration) {
        self.owner.shared.state.lock().pacer.set_min_sync_period(period);
        self.owner.shared.wake.notify_one();
    }

    /// The figures at this moment.
    pub fn stats(&self) -> SyncStats {
        let state = self.owner.shared.state.lock();
        let mut stats = state.stats.clone();
        stats.pending_age = state.oldest_request().map(|since| since.elapsed());
        stats
    }

    /// Waits until everything requested before this call has been synced. `false` if that took longer
    /// than `timeout`, or if the loop ended before.
    pub fn wait_synced(&self, timeout: Duration) -> bool {
        let deadline = Instant::now().checked_add(timeout);
        let mut state = self.owner.shared.state.lock();
        let goal = state.queued;
        while state.synced < goal {
            if state.ended {
                return false;
            }
            match deadline {
                Some(deadline) => {
                    let waited = self.owner.shared.progress.wait_until(&mut state, deadline);
                    if waited.timed_out() && state.synced < goal {
                        return false;
                    }
                }
                None => self.owner.shared.progress.wait(&mut state),
            }
        }
        true
    }

    /// Ends the loop. A sync that runs is finished; what was only requested is not begun. Returns
    /// when the thread has ended, except when the syncer itself calls it.
    pub fn stop(&self) {
        self.owner.shared.request_stop();
        if self.owner.thread_id == thread::current().id() {
            return;
        }
        // Joined without the lock: the syncer, or somebody else, may call this meanwhile.
        let thread = self.owner.thread.lock().take();
        match thread {
            Some(thread) => {
                // The syncer's panics are caught, so one that ends the thread is the loop's own.
                if thread.join().is_err() {
                    tracing::error!("the sync loop's thread panicked");
                }
            }
            None => self.owner.shared.wait_ended(),
        }
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.shared.request_stop();
    }
}

impl Shared {
    fn request_stop(&self) {
        self.state.lock().stopping = true;
        self.wake.notify_one();
    }

    fn wait_ended(&self) {
        let mut state = self.state.lock();
        while !state.ended {
            self.progress.wait(&mut state);
        }
    }
}

impl LoopState {
    /// When the oldest request came that is not served yet.
    fn oldest_request(&self) -> Option<Instant> {
        self.running_since.or(self.pending_since)
    }
}

/// Says that the loop has ended, however it ends.
struct SayEnded<'a>(&'a Shared);

impl Drop for SayEnded<'_> {
    fn drop(&mut self) {
        self.0.state.lock().ended = true;
        self.0.progress.notify_all();
    }
}

fn run(shared: &Shared, syncer: impl Syncer) {
    let _ended = SayEnded(shared);
    // Dropped before the above: when the loop has ended, what it held is released.
    let mut syncer = syncer;
    while let Some((kind, queued)) = begin(shared) {
        let started = Instant::now();
        let outcome = catch_unwind(AssertUnwindSafe(|| syncer.sync(kind)))
            .unwrap_or_else(|panic| Err(ApplyError::Panicked(crate::panic_text(panic.as_ref()))));
        finish(shared, kind, queued, started, outcome);
    }
}

/// Waits for the next sync; `None` when the loop has to end. Also says how many requests it serves.
fn begin(shared: &Shared) -> Option<(SyncKind, u64)> {
    let mut state = shared.state.lock();
    loop {
        if state.stopping {
            return None;
        }
        match state.pacer.next(Instant::now()) {
            Next::Sync(kind) => {
                state.pacer.begin(kind);
                state.running_since = state.oldest_request();
                state.pending_since = None;
                state.stats.running = true;
                return Some((kind, state.queued));
            }
            Next::At(due) => {
                shared.wake.wait_until(&mut state, due);
            }
            Next::Idle | Next::Running => shared.wake.wait(&mut state),
        }
    }
}

fn finish(
    shared: &Shared,
    kind: SyncKind,
    queued: u64,
    started: Instant,
    outcome: Result<SyncReport, ApplyError>,
) {
    let now = Instant::now();
    let duration = now.saturating_duration_since(started);
    let mut state = shared.state.lock();
    state.stats.running = false;
    match outcome {
        Ok(report) if report.too_early => {
            state.pacer.came_too_early();
            state.running_since = None;
            state.synced = queued;
        }
        Ok(report) => {
            state.pacer.succeeded(now);
            let since = state.running_since.take();
            state.synced = queued;
            state.stats.record_success(kind, report, duration);
            if let Some(since) = since {
                state.stats.queue_to_synced.observe(now.saturating_duration_since(since));
            }
        }
        Err(error) => {
            if matches!(error, ApplyError::Panicked(_)) {
                state.pacer.escalate(SyncKind::Full);
            }
            state.pacer.failed(now, error.can_retry(), random_fraction());
            state.stats.record_failure(kind, &error, duration);
            tracing::error!(%error, ?kind, failures = state.pacer.failures(), "sync failed");
        }
    }
    drop(state);
    shared.progress.notify_all();
}

/// A number from 0 to 1, from the seed that the standard library draws for its hash maps.
fn random_fraction() -> f64 {
    let bits = RandomState::new().hash_one(0_u8);
    f64::from((bits >> 32) as u32) / f64::from(u32::MAX)
}
