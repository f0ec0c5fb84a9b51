//! The overview and its history.

use serde::{Deserialize, Serialize};

use super::{Key, State};

/// `GET /api/v1/overview`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Overview {
    /// When it was made.
    pub at_ms: i64,
    /// The release.
    pub version: String,
    /// `run`, `brain` or `demo`.
    pub command: String,
    /// The process.
    pub pid: u32,
    /// The node whose network this is; null for a brain.
    pub node: Option<String>,
    /// Since when it runs.
    pub started_ms: i64,
    /// For how long it runs.
    pub uptime_s: f64,
    /// Whether `/healthz` says so.
    pub healthy: bool,
    /// The parts: `source`, then the planes `services`, `pods`, `ingress` as far as they were asked for.
    pub planes: Vec<PlaneHealth>,
    /// Where the state comes from.
    pub source: SourceHealth,
    /// How much there is.
    pub counts: Counts,
    /// The sync loops: of services, of pods.
    pub syncs: Vec<SyncHealth>,
    /// HTTP traffic; null without the ingress plane.
    pub traffic: Option<Traffic>,
    /// What somebody should look at, worst first. At most 100.
    pub attention: Vec<Attention>,
}

/// How one part is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct PlaneHealth {
    /// `source`, `services`, `pods` or `ingress`.
    pub name: String,
    /// How it is.
    pub state: State,
    /// One line: what it does and how it is.
    pub summary: String,
}

/// How the source is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct SourceHealth {
    /// As `--source` names it.
    pub spec: String,
    /// `kube`, `dir` or `brain`.
    pub kind: String,
    /// In touch with what it reads.
    pub connected: bool,
    /// The first full state is complete.
    pub synced: bool,
    /// How old the state may be; null before the first contact.
    pub age_s: Option<f64>,
    /// The store's revision: it grows with each change.
    pub revision: u64,
    /// How many objects could not be read.
    pub problem_count: usize,
    /// The first of them.
    pub problems: Vec<String>,
    /// What to know about it: where it is decided and what is not known here, if another brain makes the view.
    #[serde(default)]
    pub note: Option<String>,
}

/// How much there is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Counts {
    /// Services.
    pub services: usize,
    /// Services with ports and addresses that nobody serves.
    pub services_without_endpoints: usize,
    /// Endpoints.
    pub endpoints: usize,
    /// Of them ready.
    pub endpoints_ready: usize,
    /// Routes of the ingress.
    pub routes: usize,
    /// Certificates.
    pub certificates: usize,
    /// Of them those that end within 30 days, or have.
    pub certificates_expiring: usize,
    /// Instances on this node's networks.
    pub instances: usize,
    /// Nodes of the cluster.
    pub nodes: usize,
    /// Overrides in force.
    pub overrides: usize,
    /// Warnings about routes.
    pub warnings: usize,
}

/// What a sync loop has done.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct SyncHealth {
    /// `services` or `pods`.
    pub plane: String,
    /// How it is programmed: `nftables`, `iptables`, `ipvs`, `hcn`, `view`.
    pub backend: Option<String>,
    /// Syncs so far.
    pub syncs: u64,
    /// Of them failed.
    pub failures: u64,
    /// Changes that they carried.
    pub changes: u64,
    /// Times that something in the kernel was not as it should be, and was put right.
    pub drift_repairs: u64,
    /// Since when nothing was synced.
    pub last_age_s: Option<f64>,
    /// For how long a change waits; null when none does.
    pub pending_age_s: Option<f64>,
    /// The median duration of syncs.
    pub duration_p50_ms: Option<f64>,
    /// 99 of 100 were faster.
    pub duration_p99_ms: Option<f64>,
    /// From a change in the cluster to the kernel: the median, where controllers say when it happened.
    pub programming_p50_ms: Option<f64>,
    /// 99 of 100 were faster.
    pub programming_p99_ms: Option<f64>,
    /// What went wrong last, while it still is.
    pub last_error: Option<String>,
}

/// HTTP traffic now.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Traffic {
    /// Requests since the start.
    pub requests: u64,
    /// Of them answered with 5xx.
    pub errors: u64,
    /// Requests a second.
    pub rate: f64,
    /// Errors a second.
    pub error_rate: f64,
    /// Client connections that are open.
    pub connections: u64,
    /// Requests that run.
    pub active: u64,
    /// Times to answer over the last intervals.
    pub p50_ms: Option<f64>,
    /// 90 of 100 were faster.
    pub p90_ms: Option<f64>,
    /// 99 of 100 were faster.
    pub p99_ms: Option<f64>,
    /// Answers since the start by class: 1xx, 2xx, 3xx, 4xx, 5xx.
    pub classes: [u64; 5],
    /// The cache.
    pub cache: Cache,
    /// Times that the ingress' worker ended and was followed by another.
    pub worker_restarts: u64,
}

/// The HTTP cache.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Cache {
    /// Requests that it answered.
    pub hits: u64,
    /// Requests that it could have answered and had nothing for.
    pub misses: u64,
    /// Hits of both.
    pub hit_share: Option<f64>,
    /// What it keeps.
    pub entries: Option<u64>,
    /// In bytes.
    pub bytes: Option<u64>,
}

/// Something to look at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Attention {
    /// `Warning` or `Error`.
    pub state: State,
    /// What it is about: `source`, `sync`, `service`, `endpoint`, `route`, `certificate`, `override`, `pods`, `ingress`.
    pub kind: String,
    /// Which object, if it is one: of an endpoint its service, of a route its Ingress.
    pub object: Option<Key>,
    /// The identity of the route, as in the list of routes, if it is about one.
    #[serde(default)]
    pub route: Option<String>,
    /// The address of the endpoint, if it is about one.
    #[serde(default)]
    pub endpoint: Option<String>,
    /// What is wrong and what to do.
    pub message: String,
}

/// The figures of one interval: a point of every chart.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Sample {
    /// The end of the interval.
    pub at_ms: i64,
    /// HTTP requests a second.
    pub rate: f64,
    /// HTTP errors (5xx) a second.
    pub error_rate: f64,
    /// The median time to answer within the interval; null without requests.
    pub p50_ms: Option<f64>,
    /// 90 of 100 were faster.
    pub p90_ms: Option<f64>,
    /// 99 of 100 were faster.
    pub p99_ms: Option<f64>,
    /// Client connections that are open.
    pub connections: u64,
    /// Requests that run.
    pub active: u64,
    /// The share of hits of the cache within the interval; null where it was not asked.
    pub cache_hit_share: Option<f64>,
    /// Syncs a second.
    pub sync_rate: f64,
    /// Failed syncs within the interval.
    pub sync_failures: u64,
    /// Changes a second.
    pub change_rate: f64,
    /// Repairs of drift within the interval.
    pub drift_repairs: u64,
    /// How old the source's state may be.
    pub source_age_s: Option<f64>,
    /// Whether `/healthz` says so.
    pub healthy: bool,
}

/// `GET /api/v1/history`: charts since the start. Older samples stand for longer intervals. With `since_ms` only
/// samples that ended later: what a reader needs who has the others.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct History {
    /// Since when it runs.
    pub started_ms: i64,
    /// The interval of the newest samples, and of those of the stream.
    pub tick_s: f64,
    /// The last minutes, one sample a tick, oldest first.
    pub recent: Vec<Sample>,
    /// Everything since the start, evenly spaced by `long_tick_s`, oldest first.
    pub long: Vec<Sample>,
    /// The interval of `long`; it doubles whenever the room is full, and neighbours are joined: then read everything again.
    pub long_tick_s: f64,
    /// What came after the last of `long` and is not enough for another yet, as one; null where nothing did.
    #[serde(default)]
    pub part: Option<Sample>,
}
