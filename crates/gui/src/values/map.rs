//! The traffic map: a graph of columns.

use serde::{Deserialize, Serialize};

use super::{Stale, State};

/// `GET /api/v1/map`: entry → host → route → service → endpoint → node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct TrafficMap {
    /// When it was made.
    pub at_ms: i64,
    /// What is drawn.
    pub vertices: Vec<Vertex>,
    /// What connects it.
    pub edges: Vec<Edge>,
    /// Services that the filters leave.
    pub services_total: usize,
    /// Of them drawn; the others were left out for the limit, those without traffic first.
    pub services_shown: usize,
    /// Hosts, routes, endpoints and nodes of what is shown for which there was no room: of 5,000 vertices
    /// at most the map has no more. Filters, a smaller limit or `endpoints=false` make room.
    #[serde(default)]
    pub vertices_left_out: usize,
    /// Hosts and routes are older than they should be; null where they are of now.
    #[serde(default)]
    pub stale: Option<Stale>,
}

/// What a vertex is: its column.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum VertexKind {
    /// A host of the ingress.
    Host,
    /// A route.
    Route,
    /// A namespace, in place of its services.
    Namespace,
    /// A service.
    Service,
    /// An endpoint.
    Endpoint,
    /// A node of the cluster.
    Node,
}

/// A vertex.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Vertex {
    /// `host:…`, `route:…`, `namespace:…`, `service:ns/name`, `endpoint:ns/name/address`, `node:…`; where
    /// namespaces stand for their services also `hosts:ns`, `routes:ns`, `endpoints:ns`.
    pub id: String,
    /// Its column.
    pub kind: VertexKind,
    /// What to write on it.
    pub label: String,
    /// Its namespace, if it has one.
    pub namespace: Option<String>,
    /// How it is.
    pub state: State,
    /// A word more: `3/4 ready`, `drained`, `paused`.
    pub note: String,
    /// An override touches it.
    pub overridden: bool,
    /// Requests a second through it; null where nobody counts.
    pub rate: Option<f64>,
    /// Errors a second.
    pub error_rate: Option<f64>,
}

/// An edge.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Edge {
    /// The vertex that it begins at.
    pub from: String,
    /// The vertex that it ends at.
    pub to: String,
    /// Requests a second along it; null where nobody counts.
    pub rate: Option<f64>,
    /// Errors a second.
    pub error_rate: Option<f64>,
    /// No new traffic takes it.
    pub closed: bool,
}
