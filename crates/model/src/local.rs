//! The node view: what one node needs of the cluster, and how it changes.
//!
//! The brain makes it from the cluster's objects for one node, with traffic policies, topology and
//! overrides already decided. It travels as a stream of [`Op`]s, over KPNG's Local API or within the
//! process, and every backend takes it in that form.
//!
//! Each endpoint says for each of its ports in which [`Scopes`] it stands, so a backend never
//! repeats the decisions: it filters.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::endpoints::Conditions;
use crate::ip::IpFamily;
use crate::labels::Labels;
use crate::meta::ObjectKey;
use crate::object::{Object, ObjectRef};
use crate::service::{ClientIpAffinity, Protocol, ServiceType};

/// For which traffic an endpoint's port is used on this node.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Scopes {
    /// Traffic to the cluster addresses.
    pub internal: bool,
    /// Traffic from outside to node ports, load balancer and external addresses.
    pub external: bool,
    /// In the set for policy Cluster; with an external policy Local this also serves traffic from
    /// pods and from the node itself to the external addresses.
    pub cluster: bool,
    /// In the set for policy Local.
    pub local: bool,
}

impl Scopes {
    /// Used for nothing new; shown only so that what runs may finish.
    pub const NONE: Self = Self { internal: false, external: false, cluster: false, local: false };

    /// Used for some traffic.
    pub fn any(self) -> bool {
        self.internal || self.external || self.cluster || self.local
    }

    /// Used wherever either is.
    #[must_use]
    pub fn union(self, other: Self) -> Self {
        Self {
            internal: self.internal || other.internal,
            external: self.external || other.external,
            cluster: self.cluster || other.cluster,
            local: self.local || other.local,
        }
    }
}

/// A set of address families.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Families {
    /// IPv4 is in it.
    pub v4: bool,
    /// IPv6 is in it.
    pub v6: bool,
}

impl Families {
    /// Whether the family is in it.
    pub fn contains(self, family: IpFamily) -> bool {
        match family {
            IpFamily::V4 => self.v4,
            IpFamily::V6 => self.v6,
        }
    }

    /// Puts the family in.
    pub fn insert(&mut self, family: IpFamily) {
        match family {
            IpFamily::V4 => self.v4 = true,
            IpFamily::V6 => self.v6 = true,
        }
    }
}

/// One port of a service in the node view.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LocalServicePort {
    /// Its name; empty for a single unnamed port.
    #[serde(default, skip_serializing_if = "str::is_empty")]
    pub name: Arc<str>,
    /// The protocol.
    pub protocol: Protocol,
    /// The port on the service's addresses.
    pub port: u16,
    /// The port on every node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_port: Option<u16>,
    /// The port in the endpoint, where the service gives a number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_port: Option<u16>,
    /// The port in the endpoint, where the service gives a name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_port_name: Option<Arc<str>>,
    /// What is spoken inside.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub app_protocol: Option<Arc<str>>,
    /// The families in which some endpoint exists in the cluster, though perhaps none that this
    /// node may use. Without any the answer is REJECT, with some elsewhere it is DROP.
    #[serde(default)]
    pub has_endpoints: Families,
}

/// A service in the node view.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LocalService {
    /// Namespace and name.
    #[serde(flatten)]
    pub key: ObjectKey,
    /// How it can be reached.
    #[serde(rename = "type")]
    pub service_type: ServiceType,
    /// `clusterIP: None`; only in views for the ingress plane.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub headless: bool,
    /// Its cluster addresses.
    #[serde(rename = "clusterIPs", default, skip_serializing_if = "Vec::is_empty")]
    pub cluster_ips: Vec<IpAddr>,
    /// Further addresses that this node answers for.
    #[serde(rename = "externalIPs", default, skip_serializing_if = "Vec::is_empty")]
    pub external_ips: Vec<IpAddr>,
    /// The load balancer's addresses that this node answers for.
    #[serde(rename = "loadBalancerIPs", default, skip_serializing_if = "Vec::is_empty")]
    pub load_balancer_ips: Vec<IpAddr>,
    /// Who may use those; empty: everybody.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub source_ranges: Vec<IpNet>,
    /// Its ports.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<LocalServicePort>,
    /// Traffic from outside goes to endpoints of this node only.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub external_traffic_to_local: bool,
    /// Traffic to the cluster addresses goes to endpoints of this node only.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub internal_traffic_to_local: bool,
    /// Session affinity, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_affinity: Option<ClientIpAffinity>,
    /// The port on which load balancers ask whether this node has local endpoints.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health_check_node_port: Option<u16>,
    /// The target of an `ExternalName` service; only in views for the ingress plane.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub external_name: Option<Arc<str>>,
    /// Labels.
    #[serde(default, skip_serializing_if = "Labels::is_empty")]
    pub labels: Labels,
    /// Annotations.
    #[serde(default, skip_serializing_if = "Labels::is_empty")]
    pub annotations: Labels,
}

/// One port of an endpoint in the node view.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LocalEndpointPort {
    /// The name of the service port that it serves.
    #[serde(default, skip_serializing_if = "str::is_empty")]
    pub name: Arc<str>,
    /// The port in the endpoint.
    pub port: u16,
    /// For which traffic.
    pub scopes: Scopes,
}

/// The name of an endpoint in the node view.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct EndpointRef {
    /// The service.
    pub service: ObjectKey,
    /// The pod's name, or a hash of the endpoint where there is no pod.
    pub id: Arc<str>,
}

impl fmt::Display for EndpointRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.service, self.id)
    }
}

/// An endpoint in the node view.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LocalEndpoint {
    /// Which service, and which of its endpoints.
    #[serde(flatten)]
    pub key: EndpointRef,
    /// The pod behind it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<Arc<str>>,
    /// Its host name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hostname: Option<Arc<str>>,
    /// Its addresses: one, or one per family.
    pub ips: Vec<IpAddr>,
    /// It runs on this node.
    #[serde(default)]
    pub local: bool,
    /// Its ports and for which traffic each is used.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<LocalEndpointPort>,
    /// For which traffic it is used on service ports that `ports` does not list, at the service's
    /// own target port. Our views list every port; KPNG's list only those that differ.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unlisted_ports: Option<Scopes>,
    /// Its state.
    pub conditions: Conditions,
    /// Its share of the traffic, 1 unless somebody says otherwise.
    pub weight: u16,
    /// The node it runs on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<Arc<str>>,
    /// The zone it runs in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zone: Option<Arc<str>>,
}

impl LocalEndpoint {
    /// For which traffic any of its ports is used.
    pub fn scopes(&self) -> Scopes {
        let unlisted = self.unlisted_ports.unwrap_or(Scopes::NONE);
        self.ports.iter().fold(unlisted, |all, port| all.union(port.scopes))
    }

    /// The port at which it serves this port of its service, and for which traffic.
    pub fn port_for(&self, service_port: &LocalServicePort) -> Option<(u16, Scopes)> {
        match self.ports.iter().find(|port| port.name == service_port.name) {
            Some(port) => Some((port.port, port.scopes)),
            None => Some((service_port.target_port?, self.unlisted_ports?)),
        }
    }

    /// Whether its name is that of its pod; else it is a hash.
    pub fn is_named(&self) -> bool {
        self.pod.as_ref() == Some(&self.key.id)
    }
}

/// A service with its endpoints: the unit that a full-state backend gets, and that changes together.
/// Clones share both.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceEndpoints {
    /// The service.
    #[serde(flatten)]
    pub service: Arc<LocalService>,
    /// Its endpoints, ordered by name.
    pub endpoints: Arc<Vec<Arc<LocalEndpoint>>>,
}

/// One step of a node view's change. Steps between two [`Op::Sync`]s belong together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Op {
    /// Forget everything: what follows, up to the next `Sync`, is the whole state.
    Reset,
    /// The service is now this.
    SetService(Arc<LocalService>),
    /// The service is no more.
    DeleteService(ObjectKey),
    /// The endpoint is now this.
    SetEndpoint(Arc<LocalEndpoint>),
    /// The endpoint is no more.
    DeleteEndpoint(EndpointRef),
    /// An object for the pods or ingress plane is now this.
    SetObject(Object),
    /// Such an object is no more.
    DeleteObject(ObjectRef),
    /// The state is consistent: act on it.
    Sync,
}
