//! What has to happen to traffic for a service, before any backend's form.
//!
//! [`plan`] is the one place on the node where service semantics are decided: which addresses a
//! service answers on, which endpoints serve each, who is masqueraded, who is refused and how. It is
//! pure. Backends only put a [`PortPlan`] into their kernel's terms, so that they cannot disagree.
//!
//! The rules are kube-proxy's:
//! - a cluster address is served by the *internal* set: the local endpoints with an internal policy
//!   Local, else the cluster's;
//! - every other address is served by the cluster set and always masqueraded; or, with an external
//!   policy Local, by the local set without masquerade, and then traffic from this node's pods (not
//!   masqueraded) and from the node itself (masqueraded) still takes the cluster set;
//! - nobody anywhere is REJECT; somebody, but not for us, is DROP.

use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use telaio_model::{
    IpFamily, LocalEndpoint, LocalServicePort, ObjectKey, Protocol, ServiceEndpoints,
};

/// The annotation that chooses how endpoints take turns.
pub const ANNOTATION_BALANCE: &str = "telaio.dev/balance";

/// How endpoints take turns.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Balance {
    /// By chance, in proportion to the weights.
    #[default]
    Random,
    /// In turn, in proportion to the weights.
    RoundRobin,
    /// By the client's address; an endpoint that leaves moves only its own clients.
    SourceHash,
}

impl Balance {
    /// Reads the annotation's value.
    pub fn parse(text: &str) -> Option<Self> {
        match text.trim() {
            "random" => Some(Self::Random),
            "round-robin" => Some(Self::RoundRobin),
            "source-hash" => Some(Self::SourceHash),
            _ => None,
        }
    }
}

/// An endpoint that traffic can go to.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Destination {
    /// Its address.
    pub address: IpAddr,
    /// Its port.
    pub port: u16,
    /// Its share, at least 1.
    pub weight: u16,
    /// It runs on this node, or may.
    pub local: bool,
}

/// Where a service answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Place {
    /// On its cluster address.
    ClusterIp(IpAddr),
    /// On an external address.
    ExternalIp(IpAddr),
    /// On a load balancer's address; source ranges apply.
    LoadBalancerIp(IpAddr),
    /// On the node's own addresses.
    NodePort,
}

impl Place {
    /// Its address, unless it is every address of the node.
    pub fn address(self) -> Option<IpAddr> {
        match self {
            Self::ClusterIp(ip) | Self::ExternalIp(ip) | Self::LoadBalancerIp(ip) => Some(ip),
            Self::NodePort => None,
        }
    }

    /// Everywhere but on the cluster address.
    pub fn is_external(self) -> bool {
        !matches!(self, Self::ClusterIp(_))
    }
}

/// One place where a port of a service answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Frontend {
    /// The address.
    pub place: Place,
    /// The port there.
    pub port: u16,
}

/// Which endpoints serve.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum EndpointSet {
    /// Those of the cluster.
    Cluster,
    /// Those of this node.
    Local,
}

/// What happens to traffic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Answer {
    /// It goes to one of this set, which is not empty.
    Serve(EndpointSet),
    /// It is refused: nobody serves anywhere.
    Reject,
    /// It is dropped: somebody serves, but not from here.
    Drop,
}

/// The name of a port of a service.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortName {
    /// The service.
    pub service: ObjectKey,
    /// The port's name; empty for a single unnamed port.
    pub port: Arc<str>,
    /// Its protocol.
    pub protocol: Protocol,
}

impl std::fmt::Display for PortName {
    /// As kube-proxy writes it: `namespace/name`, with `:port` where the port has a name.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.service)?;
        if self.port.is_empty() { Ok(()) } else { write!(f, ":{}", self.port) }
    }
}

/// All that has to happen for one port of a service in one family.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortPlan {
    /// Which port.
    pub name: PortName,
    /// Where it answers; never empty.
    pub frontends: Vec<Frontend>,
    /// The cluster set, by address and port, without repetition.
    pub cluster: Vec<Destination>,
    /// The local set, likewise.
    pub local: Vec<Destination>,
    /// For UDP, every endpoint that still serves, also those in no set: flows to others are stale. Other
    /// protocols notice by themselves, and have none here.
    pub serving: Vec<(IpAddr, u16)>,
    /// To the cluster address.
    pub internal: Answer,
    /// From outside to any other address.
    pub external: Answer,
    /// With an external policy Local: from this node's pods, and from the node itself, to any other
    /// address. `None` with policy Cluster, where they are treated like everybody.
    pub external_from_node: Option<Answer>,
    /// How long a client stays with its endpoint, if it does.
    pub affinity_s: Option<u32>,
    /// How endpoints take turns.
    pub balance: Balance,
    /// Who may use load balancer addresses; `None`: everybody. Never empty.
    pub source_ranges: Option<Vec<IpNet>>,
}

impl PortPlan {
    /// The endpoints of a set.
    pub fn set(&self, set: EndpointSet) -> &[Destination] {
        match set {
            EndpointSet::Cluster => &self.cluster,
            EndpointSet::Local => &self.local,
        }
    }

    /// Whether any of its addresses is served by this set.
    pub fn uses(&self, set: EndpointSet) -> bool {
        let serves = Answer::Serve(set);
        let has =
            |external: bool| self.frontends.iter().any(|it| it.place.is_external() == external);
        (has(false) && self.internal == serves)
            || (has(true) && (self.external == serves || self.external_from_node == Some(serves)))
    }

    /// External addresses are served by local endpoints only, which keeps the client's address.
    pub fn is_external_local(&self) -> bool {
        self.external_from_node.is_some()
    }
}

/// The plans of a service's ports in one family; none for a port that answers nowhere in it.
pub fn plan(entry: &ServiceEndpoints, family: IpFamily) -> Vec<PortPlan> {
    entry.service.ports.iter().filter_map(|port| plan_port(entry, port, family)).collect()
}

fn plan_port(
    entry: &ServiceEndpoints,
    port: &LocalServicePort,
    family: IpFamily,
) -> Option<PortPlan> {
    let service = &entry.service;
    let frontends = frontends(entry, port, family);
    if frontends.is_empty() {
        return None;
    }
    let cluster = destinations(&entry.endpoints, port, family, EndpointSet::Cluster);
    let local = destinations(&entry.endpoints, port, family, EndpointSet::Local);
    let has_any = port.has_endpoints.contains(family);
    let answer = |set: EndpointSet| match set {
        EndpointSet::Cluster if !cluster.is_empty() => Answer::Serve(set),
        EndpointSet::Local if !local.is_empty() => Answer::Serve(set),
        _ if has_any => Answer::Drop,
        _ => Answer::Reject,
    };
    let set = |local: bool| if local { EndpointSet::Local } else { EndpointSet::Cluster };
    Some(PortPlan {
        name: PortName {
            service: service.key.clone(),
            port: port.name.clone(),
            protocol: port.protocol,
        },
        internal: answer(set(service.internal_traffic_to_local)),
        external: answer(set(service.external_traffic_to_local)),
        external_from_node: service.external_traffic_to_local.then(|| answer(EndpointSet::Cluster)),
        affinity_s: service.session_affinity.map(|affinity| affinity.timeout_s),
        balance: balance(entry),
        source_ranges: source_ranges(&service.source_ranges, family),
        serving: match port.protocol {
            Protocol::Udp => serving(&entry.endpoints, port, family),
            Protocol::Tcp | Protocol::Sctp => Vec::new(),
        },
        frontends,
        cluster,
        local,
    })
}

/// An annotation that says nothing we know counts as none; [`balance_problem`] tells of it.
fn balance(entry: &ServiceEndpoints) -> Balance {
    let text = entry.service.annotations.get(ANNOTATION_BALANCE);
    text.and_then(|text| Balance::parse(text)).unwrap_or_default()
}

/// What is wrong with a service's balance annotation, if anything.
pub fn balance_problem(entry: &ServiceEndpoints) -> Option<String> {
    let text = entry.service.annotations.get(ANNOTATION_BALANCE)?;
    if Balance::parse(text).is_some() {
        return None;
    }
    Some(format!(
        "service {}: annotation {ANNOTATION_BALANCE}: {text:?} is not random, round-robin or \
         source-hash; using random",
        entry.service.key
    ))
}

fn frontends(entry: &ServiceEndpoints, port: &LocalServicePort, family: IpFamily) -> Vec<Frontend> {
    let service = &entry.service;
    let of_family = |ips: &[IpAddr], place: fn(IpAddr) -> Place| {
        let ips = ips.iter().copied().filter(|ip| IpFamily::of(*ip) == family);
        ips.map(|ip| Frontend { place: place(ip), port: port.port }).collect::<Vec<_>>()
    };
    let mut all = of_family(&service.cluster_ips, Place::ClusterIp);
    // The cluster addresses say which families a service has.
    if all.is_empty() {
        return all;
    }
    let node_port = port.node_port.map(|port| Frontend { place: Place::NodePort, port });
    all.extend(of_family(&service.external_ips, Place::ExternalIp));
    all.extend(of_family(&service.load_balancer_ips, Place::LoadBalancerIp));
    all.extend(node_port);
    all.sort_unstable();
    all.dedup();
    all
}

fn destinations(
    endpoints: &[Arc<LocalEndpoint>],
    port: &LocalServicePort,
    family: IpFamily,
    set: EndpointSet,
) -> Vec<Destination> {
    let mut found: Vec<Destination> = Vec::new();
    for endpoint in endpoints {
        let Some((port, scopes)) = endpoint.port_for(port) else { continue };
        let is_in = match set {
            EndpointSet::Cluster => scopes.cluster,
            EndpointSet::Local => scopes.local,
        };
        if !is_in {
            continue;
        }
        let address = endpoint.ips.iter().copied().filter(|ip| IpFamily::of(*ip) == family);
        found.extend(address.map(|address| Destination {
            address,
            port,
            weight: endpoint.weight.max(1),
            // One that names no node may be here.
            local: endpoint.local || endpoint.node.is_none(),
        }));
    }
    found.sort_unstable();
    // Two names for one endpoint are one endpoint; it is as important as its most important name.
    found.dedup_by(|later, kept| {
        let same = (later.address, later.port) == (kept.address, kept.port);
        if same {
            kept.weight = kept.weight.max(later.weight);
            kept.local |= later.local;
        }
        same
    });
    found
}

fn serving(
    endpoints: &[Arc<LocalEndpoint>],
    port: &LocalServicePort,
    family: IpFamily,
) -> Vec<(IpAddr, u16)> {
    let mut found: Vec<(IpAddr, u16)> = Vec::new();
    for endpoint in endpoints {
        let Some((port, scopes)) = endpoint.port_for(port) else { continue };
        if endpoint.conditions.serving || scopes.any() {
            let ips = endpoint.ips.iter().copied().filter(|ip| IpFamily::of(*ip) == family);
            found.extend(ips.map(|ip| (ip, port)));
        }
    }
    found.sort_unstable();
    found.dedup();
    found
}

/// A network of all addresses allows everybody. So does a list without any network of this family:
/// kube-proxy's rule, which whoever limits a dual-stack service must know.
fn source_ranges(ranges: &[IpNet], family: IpFamily) -> Option<Vec<IpNet>> {
    let mut mine: Vec<IpNet> =
        ranges.iter().filter(|range| IpFamily::of_net(range) == family).map(IpNet::trunc).collect();
    if mine.is_empty() || mine.iter().any(|range| range.prefix_len() == 0) {
        return None;
    }
    mine.sort_unstable();
    mine.dedup();
    Some(mine)
}
