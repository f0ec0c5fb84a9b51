//! What every full-state backend with a sync loop does alike: a sink leaves what changed in an
//! [`Inbox`], and a thread takes it from there.
//!
//! [`Syncing`] holds both ends. A backend keeps one, starts it in `setup` with the
//! [`Syncer`] that is its own, and hands `reset`, `sync` and `sink` on to it.
//!
//! ```
//! use std::time::Duration;
//! use telaio_reconcile::kpng::{Inbox, Sink, SinkError, Syncing};
//! use telaio_reconcile::{ApplyError, PacerConfig, SyncKind, SyncReport, Syncer};
//! use telaio_model::Op;
//!
//! struct Count(Inbox);
//! impl Syncer for Count {
//!     fn sync(&mut self, _kind: SyncKind) -> Result<SyncReport, ApplyError> {
//!         let Some(news) = self.0.take_known() else { return Ok(SyncReport::too_early()) };
//!         Ok(SyncReport { created: news.services.len(), ..SyncReport::default() })
//!     }
//! }
//!
//! let mut syncing: Syncing = Syncing::default();
//! let syncer = Count(syncing.inbox());
//! let handle = syncing.start("count", PacerConfig::default(), syncer)?;
//! let mut sink = syncing.sink("node-1".into());
//! sink.send(Op::Sync)?;
//! assert!(handle.wait_synced(Duration::from_secs(10)));
//! # Ok::<(), SinkError>(())
//! ```

use std::sync::Arc;
use std::time::Duration;

use crate::kpng::full_state::FullState;
use crate::kpng::inbox::Inbox;
use crate::kpng::sink::{Sink, SinkError};
use crate::pacer::PacerConfig;
use crate::sync_loop::{self, SyncHandle, Syncer};

/// A backend's inbox and, once it is started, its sync loop, with what watches for it. Whatever runs ends
/// when this, or the sink that it became, is dropped.
#[derive(Debug)]
pub struct Syncing<W = ()> {
    inbox: Inbox,
    handle: Option<SyncHandle>,
    watch: Option<W>,
}

impl<W> Default for Syncing<W> {
    fn default() -> Self {
        Self { inbox: Inbox::default(), handle: None, watch: None }
    }
}

impl<W: Send + 'static> Syncing<W> {
    /// Where the syncer finds what changed.
    pub fn inbox(&self) -> Inbox {
        self.inbox.clone()
    }

    /// Starts the sync loop, on a thread of this name.
    pub fn start(
        &mut self,
        name: &str,
        pacing: PacerConfig,
        syncer: impl Syncer + 'static,
    ) -> Result<SyncHandle, SinkError> {
        let handle = sync_loop::spawn(name, pacing, syncer)
            .map_err(|error| SinkError::Setup(format!("cannot start a thread: {error}")))?;
        self.handle = Some(handle.clone());
        Ok(handle)
    }

    /// Keeps what watches for the loop, as long as that runs.
    pub fn keep(&mut self, watch: W) {
        self.watch = Some(watch);
    }

    /// See [`Backend::reset`](crate::kpng::Backend::reset).
    pub fn reset(&self) {
        if let Some(handle) = &self.handle {
            handle.resync();
        }
    }

    /// See [`Backend::sync`](crate::kpng::Backend::sync); it may take up to `time_max`.
    pub fn sync(&self, time_max: Duration) -> Result<(), SinkError> {
        let handle = self.handle.as_ref();
        let handle = handle.ok_or_else(|| SinkError::Setup("not set up yet".into()))?;
        handle.resync();
        if handle.wait_synced(time_max) { Ok(()) } else { Err(SinkError::Closed) }
    }

    /// See [`Backend::sink`](crate::kpng::Backend::sink). A source that reconnects costs only what
    /// differs.
    pub fn sink(self, node: Arc<str>) -> Box<dyn Sink> {
        let inbox = self.inbox.clone();
        let notify = move || {
            // The whole, so that what watches goes into the sink as well and lives as long.
            let all = &self;
            if let Some(handle) = &all.handle {
                handle.notify();
            }
        };
        Box::new(FullState::across_resets(node, inbox.callback(notify)))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use telaio_model::Op;

    use super::*;
    use crate::{ApplyError, SyncKind, SyncReport};

    const TIME_MAX: Duration = Duration::from_secs(10);

    struct Idle;

    impl Syncer for Idle {
        fn sync(&mut self, _: SyncKind) -> Result<SyncReport, ApplyError> {
            Ok(SyncReport::default())
        }
    }

    /// Says when it is gone.
    struct Witness(Arc<AtomicBool>);

    impl Drop for Witness {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Release);
        }
    }

    #[test]
    fn before_it_is_started_a_sync_fails_and_a_reset_does_nothing() {
        let syncing: Syncing = Syncing::default();
        syncing.reset();
        assert!(matches!(syncing.sync(TIME_MAX), Err(SinkError::Setup(_))));
    }

    #[test]
    fn a_sync_that_is_asked_for_is_a_whole_one_and_is_waited_for() {
        let mut syncing: Syncing = Syncing::default();
        let handle = syncing.start("idle", PacerConfig::default(), Idle).unwrap();
        syncing.sync(TIME_MAX).unwrap();
        assert_eq!(handle.stats().syncs_total, 1);
    }

    #[test]
    fn the_sink_wakes_the_loop_and_keeps_the_watch() {
        let gone = Arc::new(AtomicBool::new(false));
        let mut syncing = Syncing::default();
        let handle = syncing.start("idle", PacerConfig::default(), Idle).unwrap();
        syncing.keep(Witness(Arc::clone(&gone)));
        let mut sink = syncing.sink("node-1".into());
        sink.send(Op::Sync).unwrap();
        assert!(handle.wait_synced(TIME_MAX));
        assert!(!gone.load(Ordering::Acquire));
        drop(sink);
        assert!(gone.load(Ordering::Acquire));
    }
}
