//! Services as a cluster defines them.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::labels::Labels;
use crate::meta::Meta;

/// The label that gives a service to another proxy.
pub const LABEL_PROXY_NAME: &str = "service.kubernetes.io/service-proxy-name";
/// The label of a headless service and of its slices.
pub const LABEL_HEADLESS: &str = "service.kubernetes.io/headless";

/// Transport protocols that a service port can have.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "UPPERCASE")]
pub enum Protocol {
    /// TCP, also when a manifest names none.
    #[default]
    Tcp,
    /// UDP.
    Udp,
    /// SCTP.
    Sctp,
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tcp => "TCP",
            Self::Udp => "UDP",
            Self::Sctp => "SCTP",
        })
    }
}

/// How a service can be reached.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum ServiceType {
    /// By its cluster address only.
    #[default]
    ClusterIP,
    /// Also by a port of every node.
    NodePort,
    /// Also by an address from outside.
    LoadBalancer,
    /// Not at all: a name for a name.
    ExternalName,
}

impl fmt::Display for ServiceType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ClusterIP => "ClusterIP",
            Self::NodePort => "NodePort",
            Self::LoadBalancer => "LoadBalancer",
            Self::ExternalName => "ExternalName",
        })
    }
}

/// Which endpoints may serve a kind of traffic.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum TrafficPolicy {
    /// Those of the whole cluster.
    #[default]
    Cluster,
    /// Only those on the node that got the packet.
    Local,
}

/// Whether traffic to a load balancer's address arrives with that address as destination.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum IpMode {
    /// Yes: the node must answer for the address.
    #[default]
    #[serde(rename = "VIP")]
    Vip,
    /// No: the load balancer proxies; the node must leave the address alone.
    Proxy,
}

/// An address that a load balancer gave to the service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LoadBalancerIngress {
    /// The address.
    pub ip: IpAddr,
    /// How traffic to it arrives.
    #[serde(default)]
    pub ip_mode: IpMode,
}

/// Where a port leads in the endpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum TargetPort {
    /// A port number.
    Number(u16),
    /// The name of a container port.
    Name(Arc<str>),
}

/// One port of a service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ServicePort {
    /// The name; empty when the service has a single unnamed port.
    #[serde(default)]
    pub name: Arc<str>,
    /// The protocol.
    #[serde(default)]
    pub protocol: Protocol,
    /// What is spoken inside, such as `http` or `kubernetes.io/h2c`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub app_protocol: Option<Arc<str>>,
    /// The port on the service's addresses.
    pub port: u16,
    /// The port on every node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_port: Option<u16>,
    /// The port in the endpoint.
    pub target_port: TargetPort,
}

/// Session affinity by client address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClientIpAffinity {
    /// How long a client stays with its endpoint after its last connection.
    pub timeout_s: u32,
}

/// Where traffic should preferably stay.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum TrafficDistribution {
    /// In the client's zone (`PreferClose` is its old name).
    PreferSameZone,
    /// On the client's node, else in its zone.
    PreferSameNode,
}

/// A service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Service {
    /// Name, labels, annotations.
    pub meta: Meta,
    /// How it can be reached.
    #[serde(rename = "type", default)]
    pub service_type: ServiceType,
    /// `clusterIP: None`.
    #[serde(default)]
    pub headless: bool,
    /// Its cluster addresses, at most one per family.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cluster_ips: Vec<IpAddr>,
    /// Further addresses that the nodes answer for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub external_ips: Vec<IpAddr>,
    /// Addresses from a load balancer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub load_balancer: Vec<LoadBalancerIngress>,
    /// Who may use the load balancer's addresses; empty: everybody.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub source_ranges: Vec<IpNet>,
    /// Its ports.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<ServicePort>,
    /// Labels of the pods that serve it.
    #[serde(default, skip_serializing_if = "Labels::is_empty")]
    pub selector: Labels,
    /// Policy for traffic from outside.
    #[serde(default)]
    pub external_traffic_policy: TrafficPolicy,
    /// Policy for traffic to the cluster addresses.
    #[serde(default)]
    pub internal_traffic_policy: TrafficPolicy,
    /// Session affinity, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_affinity: Option<ClientIpAffinity>,
    /// The port on which load balancers ask whether this node has local endpoints.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health_check_node_port: Option<u16>,
    /// Preference for near endpoints.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traffic_distribution: Option<TrafficDistribution>,
    /// Endpoints count as ready before their pods are.
    #[serde(default)]
    pub publish_not_ready_addresses: bool,
    /// The target of an `ExternalName` service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub external_name: Option<Arc<str>>,
}

impl Service {
    /// Whether a service proxy has to do with it: not headless, by address or by label, not a mere
    /// name, and not given to another proxy by label.
    pub fn is_proxied(&self) -> bool {
        !self.headless
            && self.service_type != ServiceType::ExternalName
            && !self.meta.labels.contains_key(LABEL_PROXY_NAME)
            && !self.meta.labels.contains_key(LABEL_HEADLESS)
            && !self.cluster_ips.is_empty()
    }

    /// The load balancer's addresses that this node answers for.
    pub fn load_balancer_vips(&self) -> impl Iterator<Item = IpAddr> + '_ {
        self.load_balancer.iter().filter(|ingress| ingress.ip_mode == IpMode::Vip).map(|i| i.ip)
    }

    /// Whether traffic from outside can reach it: by a node port, a load balancer or an external address.
    pub fn is_externally_accessible(&self) -> bool {
        self.ports.iter().any(|port| port.node_port.is_some())
            || !self.external_ips.is_empty()
            || self.load_balancer_vips().next().is_some()
    }

    /// Whether some traffic may go to every endpoint of the cluster.
    pub fn uses_cluster_endpoints(&self) -> bool {
        self.internal_traffic_policy == TrafficPolicy::Cluster || self.is_externally_accessible()
    }

    /// Whether some traffic may go to endpoints of this node only.
    pub fn uses_local_endpoints(&self) -> bool {
        self.internal_traffic_policy == TrafficPolicy::Local
            || (self.external_traffic_policy == TrafficPolicy::Local
                && self.is_externally_accessible())
    }
}
