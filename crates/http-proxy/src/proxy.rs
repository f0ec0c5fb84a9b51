//! The proxy itself: the table in force, the backends as they run, and what happens to a request.
//!
//! Decisions are made here and do not know the wire: [`HttpProxy::decide`] takes a [`RequestHead`](crate::RequestHead) and
//! says what shall happen. Whatever goes to a backend goes by `HttpProxy::forward_request`: where both
//! sides speak HTTP/1.1 as bytes that are passed on, else (h2 on either side, the cache, compression) as
//! heads and bodies.

pub(crate) mod attempts;
pub(crate) mod believe;
mod cached;
pub mod decide;
mod error_page;
pub mod forward;
pub(crate) mod hints;
mod mirrored;
pub mod observe;
mod repeat;
pub mod settings;
mod told;

use std::sync::{Arc, OnceLock};

use arc_swap::ArcSwap;
use parking_lot::Mutex;

pub use decide::{Decision, Forwarding};
pub use observe::{Observer, Outcome};
pub use settings::ProxySettings;

use crate::cache::Cache;
use crate::filter::Filters;
use crate::idle::IdleConnections;
use crate::router::{RouteProblem, Router};
use crate::table::TableChange;
use crate::tls::TlsAcceptor;
use crate::upstream::Upstreams;
use crate::watch::otlp::Exporter;
use crate::watch::stats::ProxyStats;

/// Serves what its table says.
#[derive(Debug)]
pub struct HttpProxy {
    settings: ProxySettings,
    router: ArcSwap<Router>,
    upstreams: Arc<Upstreams>,
    /// Held while the table is replaced, so that two changes do not lose one.
    change: Mutex<()>,
    observer: Option<Arc<dyn Observer>>,
    filters: Filters,
    traces: Option<Arc<Exporter>>,
    tls: Option<Arc<TlsAcceptor>>,
    cache: OnceLock<Cache>,
    idle: Arc<IdleConnections>,
    stats: ProxyStats,
}

impl HttpProxy {
    /// A proxy without routes.
    pub fn new(settings: ProxySettings) -> Self {
        Self {
            upstreams: Arc::new(Upstreams::new(settings.cookie_secret, settings.local_targets)),
            filters: Filters::new(None, settings.https_port, settings.local_targets),
            tls: None,
            traces: None,
            settings,
            router: ArcSwap::from_pointee(Router::new()),
            change: Mutex::new(()),
            observer: None,
            cache: OnceLock::new(),
            idle: Arc::default(),
            stats: ProxyStats::default(),
        }
    }

    /// With somebody who is told of each request.
    #[must_use]
    pub fn with_observer(mut self, observer: Arc<dyn Observer>) -> Self {
        self.observer = Some(observer);
        self
    }

    /// With traces: each request becomes a part of one, and endpoints are told which.
    #[must_use]
    pub fn with_traces(mut self, traces: Arc<Exporter>) -> Self {
        self.traces = Some(traces);
        self
    }

    /// With TLS: certificates and what hosts ask of clients follow the table too.
    #[must_use]
    pub fn with_tls(mut self, tls: Arc<TlsAcceptor>) -> Self {
        let ProxySettings { https_port, local_targets, .. } = self.settings;
        self.filters = Filters::new(Some(tls.store().clone()), https_port, local_targets);
        self.tls = Some(tls);
        self
    }

    /// How TLS is accepted, if it is.
    pub fn tls(&self) -> Option<&Arc<TlsAcceptor>> {
        self.tls.as_ref()
    }

    /// What filters remember.
    pub fn filters(&self) -> &Filters {
        &self.filters
    }

    /// Connections of clients that are kept alive and idle.
    pub(crate) fn idle(&self) -> &Arc<IdleConnections> {
        &self.idle
    }

    /// Its settings.
    pub fn settings(&self) -> &ProxySettings {
        &self.settings
    }

    /// The routes in force.
    pub fn router(&self) -> Arc<Router> {
        self.router.load_full()
    }

    /// The backends as they run.
    pub fn upstreams(&self) -> &Arc<Upstreams> {
        &self.upstreams
    }

    /// What is kept of responses. It takes memory only from the first request on that may use it.
    pub fn cache(&self) -> &Cache {
        self.cache.get_or_init(|| Cache::new(self.settings.cache.clone()))
    }

    /// The cache, if a request has used it.
    pub fn cache_in_use(&self) -> Option<&Cache> {
        self.cache.get()
    }

    /// What is counted for the whole proxy.
    pub fn stats(&self) -> &ProxyStats {
        &self.stats
    }

    /// How many lines of the access log and spans were dropped.
    pub fn dropped(&self) -> (u64, u64) {
        self.observer.as_ref().map_or((0, 0), |observer| observer.dropped())
    }

    /// Takes a change over. Requests that run keep the table that they began with; the next ones see
    /// this one. Routes that cannot be served are named, and their last good form stays.
    pub fn apply(&self, change: &TableChange) -> Vec<RouteProblem> {
        let _held = self.change.lock();
        // First the backends: a new route must not meet an empty one.
        let (added, removed): (Vec<_>, Vec<_>) =
            change.backends.iter().partition(|(_, backend)| backend.is_some());
        let only = |backends: Vec<(&_, &Option<_>)>| TableChange {
            backends: backends
                .into_iter()
                .map(|(id, own)| (Clone::clone(id), own.clone()))
                .collect(),
            ..TableChange::default()
        };
        self.upstreams.apply(&only(added));
        if let Some(tls) = &self.tls {
            for problem in tls.apply(change) {
                tracing::warn!(%problem, "TLS: the last good settings stay");
            }
        }
        let mut problems = Vec::new();
        if !change.routes.is_empty() {
            let before = self.router.load_full();
            let (next, found) = before.apply(change, &self.upstreams);
            self.router.store(Arc::new(next));
            for id in change.routes.iter().filter(|(_, own)| own.is_none()).map(|(id, _)| id) {
                if let Some(gone) = before.get_route(id) {
                    self.stats.retire(Arc::clone(&gone.stats));
                }
            }
            problems = found;
        }
        self.upstreams.apply(&only(removed));
        problems
    }

    /// Counts a request that is over, and tells the observer, if there is one.
    pub fn observe(&self, request: &crate::RequestHead, outcome: &Outcome<'_>) {
        outcome.route.map_or(&self.stats.unrouted, |route| &route.stats).count(outcome);
        if let Some(observer) = &self.observer {
            observer.finished(request, outcome);
        }
    }
}
