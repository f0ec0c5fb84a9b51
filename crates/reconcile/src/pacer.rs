//! When to sync: a state machine without a clock. The time is always given from outside.
//!
//! - **Leading edge**: a change that comes after a quiet time is acted upon at once.
//! - **Coalescing**: changes within `min_sync_period` of the end of the last sync wait for its end
//!   and are then done together. The wait never grows with further changes, so nobody starves.
//! - **Back-off**: after a failure the same work is tried again, each time later, up to a bound. A
//!   change that comes meanwhile may be the cure, so it waits no longer than `backoff_change_max`.
//!   Where trying again cannot help, only a change or the periodic sync tries.
//! - **Periodic full sync**: one at least every `sync_period`, from the first sync on.
//!
//! What always holds: nothing is synced before the first notification (a loop that starts before its
//! source has spoken must not remove what the last run left); the first sync is a full one; what a
//! failed sync was to do is done by a later one.
//!
//! ```
//! use std::time::{Duration, Instant};
//! use telaio_reconcile::pacer::{Next, Pacer, PacerConfig, SyncKind};
//!
//! let t0 = Instant::now();
//! let ms = |n| t0 + Duration::from_millis(n);
//! let mut pacer = Pacer::new(PacerConfig::default());
//! assert_eq!(pacer.next(t0), Next::Idle);
//!
//! // The first change acts at once.
//! pacer.notify();
//! assert_eq!(pacer.next(t0), Next::Sync(SyncKind::Full));
//! pacer.begin(SyncKind::Full);
//! pacer.succeeded(ms(1));
//!
//! // Changes right after a sync wait for the end of the period, then act together.
//! pacer.notify();
//! pacer.notify();
//! assert_eq!(pacer.next(ms(4)), Next::At(ms(11)));
//! assert_eq!(pacer.next(ms(11)), Next::Sync(SyncKind::Changes));
//! ```

use std::time::{Duration, Instant};

#[cfg(test)]
mod tests;

/// How thorough a sync is. Each kind includes those before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SyncKind {
    /// Only what changed.
    Changes,
    /// Also observe what is there, and mend it.
    Drift,
    /// Compile everything anew, observe, and mend.
    Full,
}

/// The periods of a [`Pacer`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PacerConfig {
    /// The least time from the end of a sync to the start of the next.
    pub min_sync_period: Duration,
    /// A full sync comes at least this often.
    pub sync_period: Duration,
    /// How long to wait after the first failure; doubles with each further one.
    pub backoff_min: Duration,
    /// The longest wait after a failure.
    pub backoff_max: Duration,
    /// The longest wait after a failure for a change that came since.
    pub backoff_change_max: Duration,
}

impl Default for PacerConfig {
    fn default() -> Self {
        Self {
            min_sync_period: Duration::from_millis(10),
            sync_period: Duration::from_secs(30),
            backoff_min: Duration::from_millis(100),
            backoff_max: Duration::from_secs(15),
            backoff_change_max: Duration::from_secs(1),
        }
    }
}

/// What to do now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Sync now: call [`Pacer::begin`].
    Sync(SyncKind),
    /// Nothing before this time, unless a notification comes.
    At(Instant),
    /// Nothing until a notification comes.
    Idle,
    /// Nothing until the running sync has ended.
    Running,
}

/// Decides when to sync. See the [module](self).
#[derive(Debug, Clone)]
pub struct Pacer {
    config: PacerConfig,
    /// What waits to be done, apart from the periodic sync.
    wanted: Option<SyncKind>,
    /// A notification came since the last sync began.
    fresh: bool,
    running: Option<SyncKind>,
    last_end: Option<Instant>,
    full_due: Option<Instant>,
    /// Failures since the last success.
    failures: u32,
    /// How long to wait after the last failure.
    backoff: Option<Duration>,
    /// The last failure was such that trying again cannot help.
    hopeless: bool,
    succeeded_once: bool,
}

/// `wait` after `at`; a wait too long for the clock is one that nobody lives to see the end of.
fn after(at: Instant, wait: Duration) -> Instant {
    const DECADE: Duration = Duration::from_hours(10 * 365 * 24);
    at + wait.min(DECADE)
}

impl Pacer {
    /// A pacer that waits for its first notification.
    pub fn new(config: PacerConfig) -> Self {
        Self {
            config,
            wanted: None,
            fresh: false,
            running: None,
            last_end: None,
            full_due: None,
            failures: 0,
            backoff: None,
            hopeless: false,
            succeeded_once: false,
        }
    }

    /// Something changed.
    pub fn notify(&mut self) {
        self.request(SyncKind::Changes);
    }

    /// A sync of this kind, or a more thorough one, is wanted.
    pub fn request(&mut self, kind: SyncKind) {
        self.wanted = self.wanted.max(Some(kind));
        self.fresh = true;
    }

    /// What to do at `now`.
    pub fn next(&self, now: Instant) -> Next {
        if self.running.is_some() {
            return Next::Running;
        }
        let waits = self.wanted.is_some() && (self.fresh || !self.hopeless);
        let waiting_due = if waits { self.earliest(self.fresh).or(Some(now)) } else { None };
        // The periodic sync is no change: it keeps the whole back-off.
        let periodic_due =
            self.full_due.map(|due| self.earliest(false).map_or(due, |e| e.max(due)));
        let Some(due) = [waiting_due, periodic_due].into_iter().flatten().min() else {
            return Next::Idle;
        };
        if now < due { Next::At(due) } else { Next::Sync(self.kind_at(now)) }
    }

    /// The first moment at which a sync may begin; `None` before the first one ended.
    fn earliest(&self, for_a_change: bool) -> Option<Instant> {
        let mut wait = self.config.min_sync_period;
        if let Some(backoff) = self.backoff {
            let backoff =
                if for_a_change { backoff.min(self.config.backoff_change_max) } else { backoff };
            wait = wait.max(backoff);
        }
        self.last_end.map(|end| after(end, wait))
    }

    fn kind_at(&self, now: Instant) -> SyncKind {
        if !self.succeeded_once || self.full_due.is_some_and(|due| due <= now) {
            SyncKind::Full
        } else {
            self.wanted.unwrap_or(SyncKind::Changes)
        }
    }

    /// A sync of `kind` begins. What is notified from now on is for the next one.
    pub fn begin(&mut self, kind: SyncKind) {
        self.running = Some(kind);
        self.wanted = None;
        self.fresh = false;
    }

    /// The running sync turned out to need more than it was begun with: if it fails, `kind` is what
    /// will be tried.
    pub fn escalate(&mut self, kind: SyncKind) {
        self.running = self.running.max(Some(kind));
    }

    /// The running sync ended well.
    pub fn succeeded(&mut self, now: Instant) {
        let kind = self.running.take();
        self.last_end = Some(now);
        self.failures = 0;
        self.backoff = None;
        self.hopeless = false;
        self.succeeded_once = true;
        if kind == Some(SyncKind::Full) {
            self.full_due = Some(after(now, self.config.sync_period));
        }
    }

    /// The running sync came before there was anything to go by: it might as well not have begun. The next
    /// one is asked for by whatever brings the first state.
    pub fn came_too_early(&mut self) {
        self.running = None;
    }

    /// The running sync failed. `can_retry`: trying the same again can help. `jitter`, between 0 and
    /// 1, spreads the retries of many nodes: at 0 the wait is half of what it is at 1.
    pub fn failed(&mut self, now: Instant, can_retry: bool, jitter: f64) {
        let kind = self.running.take();
        self.wanted = self.wanted.max(kind);
        self.last_end = Some(now);
        self.hopeless = !can_retry;
        let doublings = self.failures.min(31);
        self.failures = self.failures.saturating_add(1);
        let longest =
            self.config.backoff_min.saturating_mul(1_u32 << doublings).min(self.config.backoff_max);
        let jitter = if jitter.is_finite() { jitter.clamp(0.0, 1.0) } else { 1.0 };
        self.backoff = Some(longest.mul_f64(f64::midpoint(1.0, jitter)));
        // One that is due but was not tried stays due.
        if kind == Some(SyncKind::Full) {
            self.full_due = Some(after(now, self.config.sync_period));
        }
    }

    /// Changes the least time between syncs; holds for the next one already.
    pub fn set_min_sync_period(&mut self, period: Duration) {
        self.config.min_sync_period = period;
    }

    /// The periods.
    pub fn config(&self) -> &PacerConfig {
        &self.config
    }

    /// Failures since the last success.
    pub fn failures(&self) -> u32 {
        self.failures
    }
}
