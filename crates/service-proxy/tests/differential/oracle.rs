//! What should become of a packet, said again from the contract: kube-proxy's rules for services.
//!
//! Written from the text of the rules and from nothing of the implementation: not even the helpers of
//! the model are used, so that a fault in them shows too. Slow and plain on purpose: every question
//! goes over all services, and nothing is remembered between two.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;
use telaio_model::{
    Conditions, Endpoint, EndpointPort, IpFamily, IpMode, LoadBalancerIngress, Protocol, Service,
    ServicePort, ServiceType, TrafficPolicy,
};
use telaio_service_proxy::config::{DetectLocal, NodePortAddresses};
use telaio_service_proxy::trace::{Packet, Trace, Verdict};

use crate::world::{NODE, World};

/// Whose column of the contract is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Backend {
    Nftables,
    Iptables,
    Ipvs,
}

/// What should become of a packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Expected {
    /// It goes to one of these; with each, whether it is masqueraded.
    Dnat {
        endpoints: BTreeMap<SocketAddr, bool>,
        /// Who it is decides which one.
        by_source: bool,
    },
    /// It is refused.
    Reject,
    /// It is dropped.
    Drop,
    /// The rules leave it alone.
    None,
    /// Two answers are as good: the contract does not say which.
    Either(Box<Self>, Box<Self>),
}

impl Expected {
    fn or(self, other: Self) -> Self {
        if self == other { self } else { Self::Either(Box::new(self), Box::new(other)) }
    }

    /// Whether an answer is as it should be.
    pub(crate) fn allows(&self, answer: &Trace) -> bool {
        let nowhere = answer.endpoints.is_empty() && !answer.masquerade;
        match self {
            Self::Either(one, other) => one.allows(answer) || other.allows(answer),
            Self::Reject => answer.verdict == Verdict::Reject && nowhere,
            Self::Drop => answer.verdict == Verdict::Drop && nowhere,
            Self::None => answer.verdict == Verdict::None && nowhere,
            Self::Dnat { endpoints, by_source } => {
                let all: BTreeSet<SocketAddr> = endpoints.keys().copied().collect();
                let right_ones = if *by_source {
                    !answer.endpoints.is_empty() && answer.endpoints.is_subset(&all)
                } else {
                    answer.endpoints == all
                };
                let masquerade = answer.endpoints.iter().any(|it| endpoints.get(it) == Some(&true));
                answer.verdict == Verdict::Dnat && right_ones && answer.masquerade == masquerade
            }
        }
    }
}

/// By which of a service's places a packet came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Door {
    ClusterIp,
    ExternalIp,
    LoadBalancer,
    NodePort,
}

/// What should become of a packet on the world's node, with this backend.
pub(crate) fn expect(world: &World, backend: Backend, packet: &Packet) -> Expected {
    let family = IpFamily::of(packet.to.ip());
    if !world.config.families.contains(&family) {
        return Expected::None;
    }
    let doors = doors_of(world, backend, packet);
    let expected: Vec<Expected> =
        doors.iter().map(|place| expect_at(world, backend, packet, *place)).collect();
    let Some(first) = expected.first() else {
        return without_service(world, backend, packet);
    };
    // Whose a contested place is, the contract does not say; nor whether somebody's address where
    // nobody answers hides a node port of the same number.
    let contested = doors.iter().zip(&expected).filter(|((service, _, door), _)| {
        let other = service.meta.key != doors[0].0.meta.key;
        let hidden = matches!(first, Expected::Reject | Expected::Drop);
        if *door == Door::NodePort { hidden } else { other }
    });
    contested.fold(first.clone(), |all, (_, one)| all.or(one.clone()))
}

/// A service's place: the service, the port, and which of its doors.
type Place<'a> = (&'a Service, &'a ServicePort, Door);

fn expect_at(
    world: &World,
    backend: Backend,
    packet: &Packet,
    (service, port, door): Place<'_>,
) -> Expected {
    let family = IpFamily::of(packet.to.ip());
    let sets = Sets::of(world, service, port, family);
    let refused = has_source_ranges(service, door, backend, packet.to.ip())
        && !may_come_to(world, backend, service, packet);
    if !sets.anywhere {
        if backend == Backend::Nftables && packet.to.ip().is_loopback() {
            // Our program takes nothing on for nobody: the packet meets the node, which refuses it.
            return Expected::None.or(Expected::Reject);
        }
        // The drop is before DNAT with nftables and ipvs, and so before anybody asks for endpoints.
        return if refused && backend != Backend::Iptables {
            Expected::Drop
        } else {
            Expected::Reject
        };
    }
    if refused {
        return Expected::Drop;
    }
    let source = source_at(world, backend, packet);
    let (chosen, masquerade) = match door {
        Door::ClusterIp => {
            let local_only = service.internal_traffic_policy == TrafficPolicy::Local;
            let chosen = if local_only { &sets.local } else { &sets.cluster };
            // What has the service's own address as its source would be answered to another machine.
            (chosen, masquerades_cluster_ip(world, source) || source.ip == packet.to.ip())
        }
        _ if service.external_traffic_policy == TrafficPolicy::Cluster => (&sets.cluster, true),
        // As if it had gone out to a load balancer and come back in.
        _ if source.pod == Some(true) => (&sets.cluster, false),
        _ if source.node => (&sets.cluster, true),
        _ => (&sets.local, false),
    };
    if chosen.is_empty() {
        return Expected::Drop;
    }
    let endpoints = chosen.iter().map(|to| (*to, masquerade || to.ip() == source.ip)).collect();
    let balance = service.meta.annotations.get("telaio.dev/balance");
    Expected::Dnat { endpoints, by_source: balance.is_some_and(|it| &**it == "source-hash") }
}

/// Ranges are for load balancers' addresses. With nftables their drop asks for the address before
/// anybody asks which door it is.
fn has_source_ranges(service: &Service, door: Door, backend: Backend, to: IpAddr) -> bool {
    let is_balancer = || service.load_balancer.iter().any(|it| is_vip(it, to));
    match door {
        Door::LoadBalancer => true,
        Door::ClusterIp | Door::ExternalIp => backend == Backend::Nftables && is_balancer(),
        Door::NodePort => false,
    }
}

fn is_vip(ingress: &LoadBalancerIngress, to: IpAddr) -> bool {
    ingress.ip == to && ingress.ip_mode == IpMode::Vip
}

/// Who sends.
#[derive(Debug, Clone, Copy)]
struct Source {
    ip: IpAddr,
    /// A pod of this node; `None` where nobody can tell.
    pod: Option<bool>,
    /// The node itself.
    node: bool,
}

/// With nftables a program of ours stands between loopback and the node port: it is the node that
/// sends, from an address of its own.
///
/// With ipvs a service's address is the machine's too. Who connects to it from the node has it as the
/// source, since that is what Linux chooses; and whether a packet comes from the node is not told by its
/// source, but by the hook that it meets.
fn source_at(world: &World, backend: Backend, packet: &Packet) -> Source {
    let mut packet = packet.clone();
    if backend == Backend::Ipvs {
        let node = starts_here(world, &packet);
        if node && is_on_device(world, packet.to.ip()) {
            packet.from = packet.to.ip();
        }
        return Source { ip: packet.from, pod: is_pod(world, &packet), node };
    }
    if backend == Backend::Nftables && packet.to.ip().is_loopback() {
        let of_family = |ip: &&IpAddr| ip.is_ipv4() == packet.to.is_ipv4();
        if let Some(own) = world.node_addresses().iter().find(of_family) {
            packet.from = *own;
        }
    }
    let is_node = |ip: IpAddr| ip.is_loopback() || world.node_addresses().contains(&ip);
    Source { ip: packet.from, pod: is_pod(world, &packet), node: is_node(packet.from) }
}

/// With ipvs, whether the packet meets the hooks of what the machine itself sends.
fn starts_here(world: &World, packet: &Packet) -> bool {
    let from = packet.from;
    let own = from.is_loopback() || world.node_addresses().contains(&from);
    packet.interface.is_none() && (own || is_on_device(world, from))
}

/// With ipvs, whether an address is on the machine's device for services: those of every service that has
/// the family, but for what the machine has anyhow.
fn is_on_device(world: &World, ip: IpAddr) -> bool {
    let family = IpFamily::of(ip);
    let of_family = |it: &&Service| it.cluster_ips.iter().any(|ip| IpFamily::of(*ip) == family);
    let ours = world.services.iter().filter(|it| is_ours(it) && !it.ports.is_empty());
    let has = |it: &Service| {
        it.cluster_ips.contains(&ip)
            || it.external_ips.contains(&ip)
            || it.load_balancer.iter().any(|it| is_vip(it, ip))
    };
    world.config.families.contains(&family)
        && !world.node_addresses().contains(&ip)
        && ours.filter(of_family).any(has)
}

/// Whether the packet comes from a pod of this node, where the detect-local mode can tell.
fn is_pod(world: &World, packet: &Packet) -> Option<bool> {
    let within = |nets: &[IpNet]| {
        let family: Vec<&IpNet> = nets.iter().filter(|net| same_family(net, packet.from)).collect();
        let there_are = !family.is_empty();
        there_are.then(|| family.iter().any(|net| net.contains(&packet.from)))
    };
    let by = packet.interface.as_deref();
    match &world.config.detect_local {
        DetectLocal::Nowhere => None,
        DetectLocal::ClusterCidr(nets) => within(nets),
        DetectLocal::NodeCidr => within(&world.node().pod_cidrs),
        DetectLocal::BridgeInterface(name) => Some(by == Some(name.as_str())),
        DetectLocal::InterfaceNamePrefix(prefix) => {
            Some(by.is_some_and(|by| by.starts_with(prefix.as_str())))
        }
    }
}

fn masquerades_cluster_ip(world: &World, source: Source) -> bool {
    world.config.masquerade_all || source.pod == Some(false)
}

/// The services' places that the packet came to, the one that has it first: what names an address
/// comes before what does not; of two services that claim one place, the first by name has it.
pub(crate) fn doors_of<'a>(world: &'a World, backend: Backend, packet: &Packet) -> Vec<Place<'a>> {
    let to = packet.to.ip();
    let family = IpFamily::of(to);
    let mut services: Vec<&Service> = world.services.iter().filter(|it| is_ours(it)).collect();
    services.retain(|it| it.cluster_ips.iter().any(|ip| IpFamily::of(*ip) == family));
    services.sort_by_key(|it| (it.meta.key.namespace.clone(), it.meta.key.name.clone()));
    let node_ports = serves_node_ports(world, backend, packet);
    let (mut named, mut unnamed) = (Vec::new(), Vec::new());
    for service in services {
        for port in service.ports.iter().filter(|port| port.protocol == packet.protocol) {
            if port.port == packet.to.port() {
                let door = if service.cluster_ips.contains(&to) {
                    Some(Door::ClusterIp)
                } else if service.external_ips.contains(&to) {
                    Some(Door::ExternalIp)
                } else {
                    let is_balancer = service.load_balancer.iter().any(|it| is_vip(it, to));
                    is_balancer.then_some(Door::LoadBalancer)
                };
                named.extend(door.map(|door| (service, port, door)));
            }
            if node_ports && port.node_port == Some(packet.to.port()) {
                unnamed.push((service, port, Door::NodePort));
            }
        }
    }
    named.extend(unnamed);
    named
}

fn serves_node_ports(world: &World, backend: Backend, packet: &Packet) -> bool {
    let to = packet.to.ip();
    if to.is_loopback() {
        let by_backend = match backend {
            Backend::Nftables => packet.protocol == Protocol::Tcp,
            Backend::Iptables => to.is_ipv4(),
            // As with kube-proxy's mode of that name.
            Backend::Ipvs => false,
        };
        return world.config.localhost_node_ports && by_backend;
    }
    let own = world.node_addresses();
    let primary = || own.iter().find(|ip| ip.is_ipv4() == to.is_ipv4());
    own.contains(&to)
        && match &world.config.node_port_addresses {
            NodePortAddresses::All => true,
            NodePortAddresses::Primary => primary() == Some(&to),
            NodePortAddresses::Within(nets) => nets.iter().any(|net| net.contains(&to)),
        }
}

/// No service has this place.
fn without_service(world: &World, backend: Backend, packet: &Packet) -> Expected {
    let to = packet.to.ip();
    match backend {
        // It is the machine's own address: what no service has there is refused.
        Backend::Ipvs if is_on_device(world, to) => return Expected::Reject,
        Backend::Iptables | Backend::Ipvs => return Expected::None,
        Backend::Nftables => {}
    }
    let is_cluster_ip = world.services.iter().any(|it| is_ours(it) && it.cluster_ips.contains(&to));
    if is_cluster_ip {
        return Expected::Reject;
    }
    let named = world.service_cidrs.iter().flat_map(|it| &it.cidrs);
    let mut networks = named.chain(&world.config.service_cidrs);
    if networks.any(|net| net.contains(&to)) { Expected::Drop } else { Expected::None }
}

/// Not given to another proxy, not headless, not a mere name.
fn is_ours(service: &Service) -> bool {
    let labels = &service.meta.labels;
    service.service_type != ServiceType::ExternalName
        && !service.headless
        && !labels.contains_key("service.kubernetes.io/headless")
        && !labels.contains_key("service.kubernetes.io/service-proxy-name")
}

fn same_family(net: &IpNet, ip: IpAddr) -> bool {
    matches!((net, ip), (IpNet::V4(_), IpAddr::V4(_)) | (IpNet::V6(_), IpAddr::V6(_)))
}

/// Whether the source ranges let this client in.
fn may_come(service: &Service, from: IpAddr) -> bool {
    let mut ranges = service.source_ranges.iter().filter(|net| same_family(net, from)).peekable();
    ranges.peek().is_none() || ranges.any(|net| net.contains(&from))
}

/// Likewise for a packet. What the node sends to an address that is also its own has that one as the source;
/// with ipvs it may come if one of the node's other addresses may.
fn may_come_to(world: &World, backend: Backend, service: &Service, packet: &Packet) -> bool {
    let to = packet.to.ip();
    if backend != Backend::Ipvs || !starts_here(world, packet) || !is_on_device(world, to) {
        return may_come(service, packet.from);
    }
    let of_family = |ip: &IpAddr| ip.is_ipv4() == to.is_ipv4();
    let mut own = world.node_addresses().into_iter().filter(of_family).chain([to]);
    own.any(|ip| may_come(service, ip))
}

/// Where a service's port may lead on this node, in one family.
struct Sets {
    /// Someone, somewhere, would answer.
    anywhere: bool,
    cluster: BTreeSet<SocketAddr>,
    local: BTreeSet<SocketAddr>,
}

impl Sets {
    fn of(world: &World, service: &Service, port: &ServicePort, family: IpFamily) -> Self {
        let all = endpoints_of(world, service, port, family);
        let is_local = |it: &Endpoint| it.node.as_deref() == Some(NODE);
        let ready = |it: &Endpoint| it.conditions.ready;
        let dying = |it: &Endpoint| it.conditions.serving && it.conditions.terminating;

        let near = nearness(world, &all);
        let mut cluster = pick(&all, |it| ready(it) && near.takes(world, it));
        if !all.iter().any(|(_, it)| ready(it)) {
            cluster = pick(&all, dying);
        }
        let mut local = pick(&all, |it| is_local(it) && ready(it));
        if !all.iter().any(|(_, it)| is_local(it) && ready(it)) {
            local = pick(&all, |it| is_local(it) && dying(it));
        }
        Self { anywhere: all.iter().any(|(_, it)| ready(it) || dying(it)), cluster, local }
    }
}

fn pick(
    all: &[(SocketAddr, Endpoint)],
    wanted: impl Fn(&Endpoint) -> bool,
) -> BTreeSet<SocketAddr> {
    all.iter().filter(|(_, it)| wanted(it)).map(|(at, _)| *at).collect()
}

/// Every endpoint of a port, ready or not, with the place where it would serve.
fn endpoints_of(
    world: &World,
    service: &Service,
    port: &ServicePort,
    family: IpFamily,
) -> Vec<(SocketAddr, Endpoint)> {
    let mut found = Vec::new();
    let serves = |it: &EndpointPort| {
        it.name == port.name && it.protocol.is_none_or(|protocol| protocol == port.protocol)
    };
    for slice in &world.slices {
        let key = &service.meta.key;
        let its = slice.key.namespace == key.namespace && slice.service.as_ref() == Some(&key.name);
        if !its {
            continue;
        }
        for number in slice.ports.iter().filter(|it| serves(it)).filter_map(|it| it.port) {
            for endpoint in &slice.endpoints {
                if IpFamily::of(endpoint.address) == family {
                    found.push((SocketAddr::new(endpoint.address, number), endpoint.clone()));
                }
            }
        }
    }
    found
}

/// How near an endpoint must be.
enum Nearness {
    SameNode,
    SameZone,
    Any,
}

impl Nearness {
    fn takes(&self, world: &World, endpoint: &Endpoint) -> bool {
        let hints = endpoint.hints.as_deref();
        match self {
            Self::Any => true,
            Self::SameNode => hints.is_some_and(|it| it.nodes.iter().any(|at| &**at == NODE)),
            Self::SameZone => {
                let zone = zone(world);
                hints.is_some_and(|it| it.zones.iter().any(|at| Some(&**at) == zone))
            }
        }
    }
}

fn zone(world: &World) -> Option<&str> {
    world.node().meta.labels.get("topology.kubernetes.io/zone").map(|zone| &**zone)
}

/// Near ones are preferred where *all* that are ready carry hints, and one names us.
fn nearness(world: &World, all: &[(SocketAddr, Endpoint)]) -> Nearness {
    let is_ready = |it: &Endpoint| matches!(it.conditions, Conditions { ready: true, .. });
    let ready: Vec<&Endpoint> = all.iter().map(|(_, it)| it).filter(|it| is_ready(it)).collect();
    let hints = |it: &Endpoint| it.hints.as_deref().cloned().unwrap_or_default();
    let prefer = |mode: Nearness, hinted: fn(&telaio_model::Hints) -> bool| {
        let takes_one = ready.iter().any(|it| mode.takes(world, it));
        (takes_one && ready.iter().all(|it| hinted(&hints(it)))).then_some(mode)
    };
    prefer(Nearness::SameNode, |it| !it.nodes.is_empty())
        .or_else(|| prefer(Nearness::SameZone, |it| !it.zones.is_empty()))
        .unwrap_or(Nearness::Any)
}
