//! Services and their endpoints.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::action::OverrideItem;
use super::{Counters, Key, State};

/// A service in a list: `GET /api/v1/services`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ServiceItem {
    /// The namespace.
    pub namespace: String,
    /// The name.
    pub name: String,
    /// `ClusterIP`, `NodePort`, `LoadBalancer` or `ExternalName`.
    #[serde(rename = "type")]
    pub service_type: String,
    /// `clusterIP: None`.
    pub headless: bool,
    /// Cluster addresses.
    pub cluster_ips: Vec<String>,
    /// Further addresses that nodes answer for.
    pub external_ips: Vec<String>,
    /// The load balancer's.
    pub load_balancer_ips: Vec<String>,
    /// Its ports.
    pub ports: Vec<Port>,
    /// How many endpoints of what kind.
    pub endpoints: EndpointCounts,
    /// How it is: `error` where nobody serves it, `warning` where some endpoints do not.
    pub state: State,
    /// One line on the state, empty when well.
    pub state_text: String,
    /// An override is in force.
    pub overridden: bool,
    /// What the ingress sent there; null where it sends nothing.
    pub counters: Option<Counters>,
    /// What the kernel's rules lead there now; null where that cannot be read.
    #[serde(default)]
    pub connections: Option<Connections>,
    /// Why `connections` is null, or not complete; null where it is.
    #[serde(default)]
    pub connections_reason: Option<String>,
    /// What the kernel has counted for it; null where it counts nothing per service.
    #[serde(default)]
    pub traffic: Option<ServiceTraffic>,
    /// Why `traffic` is null; null where it is not.
    #[serde(default)]
    pub traffic_reason: Option<String>,
}

/// What the kernel has counted for a service, at all its addresses and ports, since it serves it (IPVS).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ServiceTraffic {
    /// Connections that were begun.
    pub connections: u64,
    /// Packets to endpoints.
    pub packets_in: u64,
    /// Packets back, where the kernel sees them.
    pub packets_out: u64,
    /// Bytes to endpoints.
    pub bytes_in: u64,
    /// Bytes back.
    pub bytes_out: u64,
}

/// Connections that this node's rules send somewhere, as the kernel has them: seconds old at most on
/// most nodes, and older only where there are very many.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Connections {
    /// Open: TCP that is established, and answered flows of UDP and SCTP.
    pub open: u64,
    /// Being opened or closed, or not answered yet.
    pub other: u64,
}

/// A port of a service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Port {
    /// Its name, perhaps empty.
    pub name: String,
    /// `TCP`, `UDP` or `SCTP`.
    pub protocol: String,
    /// On the service's addresses.
    pub port: u16,
    /// On every node.
    pub node_port: Option<u16>,
    /// In the endpoint: a number or a name.
    pub target: String,
    /// What is spoken.
    pub app_protocol: Option<String>,
    /// What the kernel's rules lead there now; null where that cannot be read.
    #[serde(default)]
    pub connections: Option<Connections>,
}

/// How many endpoints a service has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct EndpointCounts {
    /// All.
    pub total: usize,
    /// Ready, as the cluster sees it.
    pub ready: usize,
    /// Leaving.
    pub terminating: usize,
    /// Drained, removed or of weight 0 by an override.
    pub drained: usize,
    /// On this node.
    pub local: usize,
    /// Used for some traffic by this node.
    pub used: usize,
}

/// `GET /api/v1/services/{namespace}/{name}`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ServiceDetail {
    /// As in the list.
    #[serde(flatten)]
    pub item: ServiceItem,
    /// `Cluster` or `Local`.
    pub internal_traffic_policy: String,
    /// `Cluster` or `Local`.
    pub external_traffic_policy: String,
    /// How long a client keeps its endpoint; null without affinity.
    pub session_affinity_s: Option<u32>,
    /// Who may use the load balancer's addresses; empty: everybody.
    pub source_ranges: Vec<String>,
    /// Where load balancers ask for local endpoints.
    pub health_check_node_port: Option<u16>,
    /// Where an ExternalName leads.
    pub external_name: Option<String>,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// Annotations, as far as they are kept.
    pub annotations: BTreeMap<String, String>,
    /// How it is programmed: `nftables`, …; its rules are at `…/rules`. Null where nothing is.
    pub backend: Option<String>,
    /// Its endpoints.
    pub endpoint_items: Vec<EndpointItem>,
    /// What people decided about it.
    pub overrides: Vec<OverrideItem>,
    /// The routes that lead to it, by id.
    pub routes: Vec<String>,
}

/// An endpoint of a service.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct EndpointItem {
    /// Its address.
    pub address: String,
    /// Its ports.
    pub ports: Vec<EndpointPort>,
    /// The pod behind it.
    pub pod: Option<String>,
    /// Where it runs.
    pub node: Option<String>,
    /// The zone.
    pub zone: Option<String>,
    /// On this node.
    pub local: bool,
    /// Ready, as the cluster sees it.
    pub ready: bool,
    /// Serving.
    pub serving: bool,
    /// Leaving.
    pub terminating: bool,
    /// Its share of the traffic, 1 unless somebody says otherwise; 0 where drained.
    pub weight: u16,
    /// Taken out by an override, or of weight 0.
    pub drained: bool,
    /// Put there by an override.
    pub added: bool,
    /// Taken away by an override altogether.
    pub removed: bool,
    /// This node sends new traffic there.
    pub used: bool,
    /// The overrides that touch it, as `namespace/name`.
    pub overrides: Vec<String>,
    /// What the ingress sent there; null where it sends nothing.
    pub counters: Option<Counters>,
    /// What the kernel's rules lead there now, for this service; null where that cannot be read.
    #[serde(default)]
    pub connections: Option<Connections>,
}

/// A port of an endpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct EndpointPort {
    /// The service port that it serves.
    pub name: String,
    /// The number.
    pub port: u16,
    /// Used for traffic to cluster addresses.
    pub internal: bool,
    /// Used for traffic from outside.
    pub external: bool,
}

/// `GET /api/v1/services/{namespace}/{name}/rules`: what stands for a service in the kernel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Rules {
    /// The service.
    pub service: Key,
    /// The backend.
    pub backend: String,
    /// `compiled` (what we program), or `kernel` (read back just now).
    pub origin: String,
    /// The rules as the backend prints them, only those of this service.
    pub text: String,
    /// What the reader should know, such as rules that all services share.
    pub notes: Vec<String>,
}

/// A node of the cluster: `GET /api/v1/nodes`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct NodeItem {
    /// The name.
    pub name: String,
    /// This one.
    pub own: bool,
    /// Its addresses.
    pub addresses: Vec<String>,
    /// The networks of its pods.
    pub pod_cidrs: Vec<String>,
    /// The zone.
    pub zone: Option<String>,
    /// About to go.
    pub leaving: bool,
    /// Endpoints that run there.
    pub endpoints: usize,
}
