//! What a long-running command knows about itself, for its servers to tell.
//!
//! The [`Monitor`] is asked, never told to wait: whoever serves `/healthz` reads the figures of the
//! source, the store and the sync loop where they are, and none of those notices.

mod feeding;
mod kube_proxy;
mod metrics;
#[cfg(target_os = "linux")]
mod pods;
mod proxy;
mod report;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, SystemTime};

use serde::Serialize;
use telaio_brain::Store;
use telaio_reconcile::{SyncHandle, SyncStats};
use telaio_source::Status;

pub(crate) use feeding::{Feeding, Followed, ViewChange, What};
pub(crate) use proxy::{ChangesSeen, Probe, ProxyMetrics};
pub(crate) use report::{Report, SyncSummary};
#[cfg(test)]
pub(crate) use report::{SourceReport, StoreReport};

/// How many periods of full syncs a change may wait for its sync before we call ourselves unwell;
/// kube-proxy's value.
const PENDING_PERIODS_MAX: u32 = 2;
/// The period of full syncs where nobody says otherwise.
const SYNC_PERIOD: Duration = Duration::from_secs(30);

/// What does not change while we run.
#[derive(Debug, Clone, Default)]
pub(crate) struct Facts {
    /// `run`, `brain` or `demo`.
    pub(crate) command: &'static str,
    /// The node whose view is taken, if it is one node's.
    pub(crate) node: Option<String>,
    /// What is managed.
    pub(crate) planes: Vec<String>,
    /// How it is programmed.
    pub(crate) backend: Option<String>,
    /// Where the state comes from.
    pub(crate) source: String,
}

/// What a long-running command knows about itself.
#[derive(Debug)]
pub(crate) struct Monitor {
    facts: Facts,
    started: Instant,
    source: Arc<Status>,
    store: Option<Arc<Store>>,
    syncs: OnceLock<SyncHandle>,
    #[cfg(target_os = "linux")]
    pods: OnceLock<pods::PodsProbe>,
    sync_period: OnceLock<Duration>,
    node_leaving: AtomicBool,
    ending: AtomicBool,
    proxy: ProxyMetrics,
    feeding: Feeding,
    #[cfg(unix)]
    ingress: OnceLock<Arc<crate::ingress::IngressState>>,
    reloads: AtomicU64,
    reload_failures: AtomicU64,
}

/// How we are, for `/healthz` and `/livez`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Health {
    /// The first full state has been acted upon.
    pub(crate) synced: bool,
    /// The node is about to go.
    pub(crate) node_leaving: bool,
    /// The source is in touch with what it reads.
    pub(crate) source_connected: bool,
    /// How old the source's state may be; null before the first contact.
    pub(crate) state_age_s: Option<f64>,
    /// Since when nothing was synced; null before the first sync, and where nothing is programmed.
    pub(crate) last_sync_age_s: Option<f64>,
    /// How long the oldest change has waited for its sync; null when none waits.
    pub(crate) pending_age_s: Option<f64>,
    /// How long one may wait.
    pub(crate) pending_age_s_max: f64,
}

impl Health {
    /// Not stuck: a restart would not help.
    pub(crate) fn is_live(&self) -> bool {
        self.pending_age_s.is_none_or(|age| age <= self.pending_age_s_max)
    }

    /// Able to take traffic.
    pub(crate) fn is_healthy(&self) -> bool {
        self.is_live() && self.synced && !self.node_leaving
    }
}

impl Monitor {
    /// A monitor of a command with this source, and with this store if the command has one.
    pub(crate) fn new(facts: Facts, source: Arc<Status>, store: Option<Arc<Store>>) -> Arc<Self> {
        Arc::new(Self {
            facts,
            started: Instant::now(),
            source,
            store,
            syncs: OnceLock::new(),
            #[cfg(target_os = "linux")]
            pods: OnceLock::new(),
            sync_period: OnceLock::new(),
            node_leaving: AtomicBool::new(false),
            ending: AtomicBool::new(false),
            proxy: ProxyMetrics::default(),
            feeding: Feeding::default(),
            #[cfg(unix)]
            ingress: OnceLock::new(),
            reloads: AtomicU64::new(0),
            reload_failures: AtomicU64::new(0),
        })
    }

    /// The sync loop to look at. There is one; a second is not taken.
    pub(crate) fn set_sync_loop(&self, handle: SyncHandle) {
        // A backend is set up once.
        let _ = self.syncs.set(handle);
    }

    /// The ingress to look at.
    #[cfg(unix)]
    pub(crate) fn set_ingress(&self, state: Arc<crate::ingress::IngressState>) {
        // There is one.
        let _ = self.ingress.set(state);
    }

    /// The ingress, if there is one.
    #[cfg(unix)]
    pub(crate) fn ingress(&self) -> Option<&Arc<crate::ingress::IngressState>> {
        self.ingress.get()
    }

    /// Whether requests can be served: the first routes are loaded. True where there is no ingress.
    #[cfg_attr(not(unix), expect(clippy::unused_self, reason = "there is no ingress plane"))]
    pub(crate) fn ingress_ready(&self) -> bool {
        #[cfg(unix)]
        let ready = !self.facts.planes.iter().any(|plane| plane == "ingress")
            || self.facts.command != "run"
            || self.ingress().is_some_and(|state| state.is_serving());
        #[cfg(not(unix))]
        let ready = true;
        ready
    }

    /// We were told to end: clients should go elsewhere.
    pub(crate) fn set_ending(&self) {
        self.ending.store(true, Ordering::Relaxed);
    }

    /// Whether we were told to end.
    pub(crate) fn is_ending(&self) -> bool {
        self.ending.load(Ordering::Relaxed)
    }

    /// What does not change while we run.
    pub(crate) fn facts(&self) -> &Facts {
        &self.facts
    }

    /// How the source is doing.
    pub(crate) fn source(&self) -> &Status {
        &self.source
    }

    /// The sync loop of services, once there is one.
    pub(crate) fn services_loop(&self) -> Option<&SyncHandle> {
        self.syncs.get()
    }

    /// The figures of the pods plane's sync loop, if it runs.
    #[cfg_attr(
        not(target_os = "linux"),
        expect(clippy::unused_self, reason = "there is no pods plane")
    )]
    pub(crate) fn pods_stats(&self) -> Option<SyncStats> {
        #[cfg(target_os = "linux")]
        let stats = self.pods_loop().map(SyncHandle::stats);
        #[cfg(not(target_os = "linux"))]
        let stats = None;
        stats
    }

    /// The sync loop, once there is one.
    pub(crate) fn sync_loop(&self) -> Option<&SyncHandle> {
        self.sync_loops().next()
    }

    /// All sync loops that there are.
    pub(crate) fn sync_loops(&self) -> impl Iterator<Item = &SyncHandle> {
        #[cfg(target_os = "linux")]
        let pods = self.pods_loop();
        #[cfg(not(target_os = "linux"))]
        let pods = None;
        self.syncs.get().into_iter().chain(pods)
    }

    /// The period of full syncs: how long a change may wait depends on it. The first counts.
    pub(crate) fn set_sync_period(&self, period: Duration) {
        // It cannot change while we run.
        let _ = self.sync_period.set(period);
    }

    /// Changes are on their way to the backend.
    pub(crate) fn changes_seen(&self, changes: ChangesSeen) {
        let others_wait = self.sync_loop().is_some_and(|handle| handle.stats().pending());
        self.proxy.changes_seen(changes, others_wait);
    }

    /// Where the service proxy's parts count what they do.
    pub(crate) fn proxy(&self) -> &ProxyMetrics {
        &self.proxy
    }

    /// How far the backend has been told.
    pub(crate) fn feeding(&self) -> &Feeding {
        &self.feeding
    }

    /// Whether the node is about to go, so that load balancers should turn away.
    pub(crate) fn set_node_leaving(&self, leaving: bool) {
        if self.node_leaving.swap(leaving, Ordering::Relaxed) != leaving {
            tracing::info!(leaving, "this node's readiness for traffic from outside changed");
        }
    }

    /// The settings were read again.
    pub(crate) fn count_reload(&self, worked: bool) {
        let counter = if worked { &self.reloads } else { &self.reload_failures };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// How we are.
    pub(crate) fn health(&self) -> Health {
        let loops: Vec<SyncStats> = self.sync_loops().map(SyncHandle::stats).collect();
        // A brain programs nothing: it has done its part when its state is complete.
        let synced = if loops.is_empty() {
            self.facts.backend.is_none() && self.source.is_synced()
        } else {
            loops.iter().all(|stats| stats.last_success.is_some())
        };
        let sync_period = self.sync_period.get().copied().unwrap_or(SYNC_PERIOD);
        Health {
            synced,
            node_leaving: self.node_leaving.load(Ordering::Relaxed),
            source_connected: self.source.is_connected(),
            state_age_s: self.source.age().map(seconds),
            last_sync_age_s: loops.iter().filter_map(last_sync_age).max().map(seconds),
            pending_age_s: loops.iter().filter_map(|stats| stats.pending_age).max().map(seconds),
            pending_age_s_max: seconds(sync_period.saturating_mul(PENDING_PERIODS_MAX)),
        }
    }
}

fn last_sync_age(stats: &SyncStats) -> Option<Duration> {
    stats.last_success.map(|at| SystemTime::now().duration_since(at).unwrap_or_default())
}

/// Seconds, to the millisecond: for people's eyes.
fn seconds(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 1000.0).round() / 1000.0
}

#[cfg(test)]
mod tests;
