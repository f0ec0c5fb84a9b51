//! What the crate needs of the agent.

use std::sync::Arc;

use futures::future::BoxFuture;
use telaio_model::{ObjectKey, Override};

use crate::audit::Step;
use crate::values::action::Purge;
use crate::values::ingress::{CertificateItem, RouteItem};
use crate::values::overview::{Overview, PlaneHealth};
use crate::values::pods::{InstanceItem, NetworkItem, PeerItem, PodsSummary};
use crate::values::service::{EndpointItem, NodeItem, Rules, ServiceDetail, ServiceItem};
use crate::values::trace::{TraceAnswer, TraceQuestion};
use crate::values::{Key, Role, Stale};

/// Why something was not answered or done.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// What was asked for makes no sense.
    #[error("{0}")]
    Bad(String),
    /// There is no such thing.
    #[error("{0}")]
    NotFound(String),
    /// It cannot be done as things are.
    #[error("{0}")]
    Conflict(String),
    /// It cannot be done now, or not here.
    #[error("{0}")]
    Unavailable(String),
}

/// The figures of HTTP: those that count only grow.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HttpFigures {
    /// Who counts: figures of another begin anew.
    pub counter: u64,
    /// Answers by class: 1xx to 5xx.
    pub classes: [u64; 5],
    /// Durations: how many fell below each bound and above the one before; the last has no bound.
    pub durations: Vec<u64>,
    /// The bounds, in microseconds.
    pub bounds_us: Vec<u64>,
    /// Open connections of clients.
    pub connections: u64,
    /// Requests that run.
    pub active: u64,
    /// Answers of the cache.
    pub cache_hits: u64,
    /// Questions that it had no answer for.
    pub cache_misses: u64,
    /// What it keeps.
    pub cache_entries: u64,
    /// In bytes.
    pub cache_bytes: u64,
    /// Workers that ended.
    pub worker_restarts: u64,
}

impl HttpFigures {
    /// All requests.
    pub fn requests(&self) -> u64 {
        self.classes.iter().sum()
    }

    /// Those that ended with 5xx.
    pub fn errors(&self) -> u64 {
        self.classes[4]
    }
}

/// The figures of a moment, for the charts: cheap, for they are asked for every tick.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Figures {
    /// Whether `/healthz` says so.
    pub healthy: bool,
    /// How each part is.
    pub planes: Vec<PlaneHealth>,
    /// How old the source's state may be.
    pub source_age_s: Option<f64>,
    /// Syncs so far, of all planes.
    pub syncs: u64,
    /// Of them failed.
    pub sync_failures: u64,
    /// Changes so far.
    pub changes: u64,
    /// Repairs so far.
    pub drift_repairs: u64,
    /// HTTP, with the ingress plane.
    pub http: Option<HttpFigures>,
}

/// What there is: made at most once a tick, while somebody looks.
#[derive(Debug, Clone, Default)]
pub struct Network {
    /// When it was made.
    pub at_ms: i64,
    /// The services, ordered.
    pub services: Vec<ServiceItem>,
    /// The routes.
    pub routes: Vec<RouteItem>,
    /// The certificates.
    pub certificates: Vec<CertificateItem>,
    /// Routes and certificates are not of now, or not known at all.
    pub routes_stale: Option<Stale>,
    /// The nodes.
    pub nodes: Vec<NodeItem>,
    /// The pods plane.
    pub pods: PodsSummary,
    /// Its networks.
    pub networks: Vec<NetworkItem>,
    /// Its instances.
    pub instances: Vec<InstanceItem>,
    /// Other nodes.
    pub peers: Vec<PeerItem>,
}

/// The agent, as this crate sees it. Nothing here may block.
pub trait Agent: Send + Sync + 'static {
    /// What `telaio status` shows: JSON.
    fn status(&self) -> String;

    /// The figures of now.
    fn figures(&self) -> BoxFuture<'_, Figures>;

    /// The overview but for `counts`, `traffic` and what to look at in lists.
    fn overview(&self) -> Overview;

    /// What there is.
    fn network(&self) -> BoxFuture<'_, Network>;

    /// A service with its endpoints.
    fn service(&self, key: &Key) -> Option<ServiceDetail>;

    /// The endpoints of each of these services; none for one that is not there.
    fn endpoints(&self, keys: &[&Key]) -> Vec<Vec<EndpointItem>> {
        let of = |key: &&Key| self.service(key).map(|it| it.endpoint_items).unwrap_or_default();
        keys.iter().map(of).collect()
    }

    /// The rules of a service.
    fn rules<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Result<Rules, Refusal>>;

    /// What a packet or a request will meet.
    fn trace<'a>(
        &'a self,
        question: &'a TraceQuestion,
    ) -> BoxFuture<'a, Result<TraceAnswer, Refusal>>;

    /// Has the cache forget; how many URLs it did, or with `dry_run` would.
    fn purge<'a>(&'a self, what: &'a Purge, dry_run: bool) -> BoxFuture<'a, Result<u64, Refusal>>;

    /// Programs everything anew, now; what, for people.
    fn resync(&self) -> Result<Vec<String>, Refusal>;

    /// The overrides that there are, ordered by name: cheap. Pauses that have ended are not among
    /// them, others may be.
    fn overrides(&self) -> Vec<Arc<Override>>;

    /// Writes overrides, or removes them: all or none, and none where one is not written as `before` says.
    fn decide(&self, steps: Vec<Step>) -> BoxFuture<'_, Result<(), Refusal>>;

    /// Overrides that have ended and are still written down, ordered by name: cheap.
    fn ended(&self) -> Vec<Arc<Override>>;

    /// Removes those of `ended` that are still written as they are given; says which.
    fn remove_ended(
        &self,
        ended: Vec<Arc<Override>>,
    ) -> BoxFuture<'_, Result<Vec<ObjectKey>, Refusal>>;

    /// Why nothing can be decided here, if so.
    fn read_only_because(&self) -> Option<String>;

    /// Asks the cluster whose token this is, where that is wanted: a name and what they may do, or
    /// why it does not say.
    fn review<'a>(
        &'a self,
        token: &'a str,
    ) -> BoxFuture<'a, Result<Option<(String, Role)>, Refusal>> {
        let _ = token;
        Box::pin(async { Ok(None) })
    }
}

/// Now, in milliseconds since 1970.
pub fn now_ms() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    i64::try_from(since.unwrap_or_default().as_millis()).unwrap_or(i64::MAX)
}
