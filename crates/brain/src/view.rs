//! The node view: a pure function from a service's state and a node to what that node serves.
//!
//! The rules are kube-proxy's, to the letter, per service port and address family:
//! - the *cluster* set is what is ready and near enough; if nothing is ready anywhere, what still
//!   serves while it terminates;
//! - the *local* set is what is ready on this node; else what still serves there while it terminates;
//! - nearness: `PreferSameNode` if all ready endpoints have node hints and one names this node, else
//!   `PreferSameZone` likewise, else everything.
//!
//! Which set serves which traffic follows from the traffic policies and is written into each
//! endpoint's [`Scopes`]. An endpoint that a person drained is in no set, and nothing falls back to
//! it. The result does not depend on the order in which anything arrived.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use telaio_api::global::anonymous_id;
use telaio_model::hash::StableHash;
use telaio_model::{
    Endpoint, EndpointPort, EndpointRef, EndpointSlice, Families, IpFamily, Kind, LocalEndpoint,
    LocalEndpointPort, LocalService, LocalServicePort, Node, Override, OverrideAction,
    OverrideTarget, Scopes, Service, ServicePort, TargetPort, TrafficPolicy,
};

use crate::state::ServiceState;

/// The node for which a view is made: all that the view depends on.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct NodeContext {
    /// Its name.
    pub name: Arc<str>,
    /// Its zone, if it has one.
    pub zone: Option<Arc<str>>,
}

impl NodeContext {
    /// The context of a node, known or not.
    pub fn new(name: Arc<str>, node: Option<&Node>) -> Self {
        Self { zone: node.and_then(Node::zone).cloned(), name }
    }
}

/// What the receiver of a view asked for beyond what KPNG sends.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Wants {
    /// All serving endpoints, also those in no scope: flows to them are to be left alone.
    pub serving_endpoints: bool,
    /// Services that no service proxy serves too: headless ones and mere names.
    pub all_services: bool,
    /// Objects of these kinds, for the pods and ingress planes.
    pub kinds: BTreeSet<Kind>,
}

impl Wants {
    /// What our own service proxy asks for.
    pub fn services() -> Self {
        Self { serving_endpoints: true, ..Self::default() }
    }
}

/// A service as one node sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceView {
    /// The service.
    pub service: Arc<LocalService>,
    /// Its endpoints by id.
    pub endpoints: BTreeMap<Arc<str>, Arc<LocalEndpoint>>,
}

/// How a node sees a service; `None` if it has nothing to do with it.
pub fn service_view(
    state: &ServiceState,
    node: &NodeContext,
    wants: &Wants,
) -> Option<ServiceView> {
    let (service, candidates, has_endpoints) = decide(state, node, wants)?;
    Some(ServiceView {
        service: Arc::new(local_service(service, &has_endpoints)),
        endpoints: local_endpoints(state, service, candidates, wants),
    })
}

/// The service of its view without the endpoints: all that the first round over a whole view needs.
pub(crate) fn service_alone(
    state: &ServiceState,
    node: &NodeContext,
    wants: &Wants,
) -> Option<Arc<LocalService>> {
    let (service, _, has_endpoints) = decide(state, node, wants)?;
    Some(Arc::new(local_service(service, &has_endpoints)))
}

/// Decides the scopes of every endpoint, and for each service port in which families any exists.
fn decide<'a>(
    state: &'a ServiceState,
    node: &NodeContext,
    wants: &Wants,
) -> Option<(&'a Service, Vec<Candidate<'a>>, Vec<Families>)> {
    let service = state.service.as_deref()?;
    if !service.is_proxied() && !wants.all_services {
        return None;
    }
    let mut candidates = candidates(state, service, node);
    let mut has_endpoints = vec![Families::default(); service.ports.len()];
    for (index, flags) in has_endpoints.iter_mut().enumerate() {
        for family in IpFamily::ALL {
            if choose(&mut candidates, service, index, family, node) {
                flags.insert(family);
            }
        }
    }
    Some((service, candidates, has_endpoints))
}

/// An endpoint with the service ports that it serves, and what has been decided about it.
struct Candidate<'a> {
    endpoint: &'a Endpoint,
    slice_ports: &'a [EndpointPort],
    /// Index of the service port, port in the endpoint, scopes.
    ports: Vec<(usize, u16, Scopes)>,
    is_local: bool,
    /// Taken out by a person, or of weight zero: in no set.
    drained: bool,
    weight: u16,
}

impl Candidate<'_> {
    fn is_ready(&self) -> bool {
        self.endpoint.conditions.ready && !self.drained
    }

    fn is_serving_terminating(&self) -> bool {
        self.endpoint.conditions.is_serving_terminating() && !self.drained
    }
}

fn candidates<'a>(
    state: &'a ServiceState,
    service: &Service,
    node: &NodeContext,
) -> Vec<Candidate<'a>> {
    let mut taken: BTreeSet<(IpAddr, usize, u16)> = BTreeSet::new();
    let mut found = Vec::new();
    for slice in state.all_slices() {
        let served = served_ports(service, slice);
        if served.is_empty() {
            continue;
        }
        for endpoint in &slice.endpoints {
            let mut ports = served.clone();
            if state.overlapping {
                // While a controller moves endpoints between slices, one can be in two for a
                // moment. The first slice by name says what it is.
                ports.retain(|(index, port, _)| taken.insert((endpoint.address, *index, *port)));
                if ports.is_empty() {
                    continue;
                }
            }
            let Some((drained, weight)) = overridden(endpoint, &state.overrides) else { continue };
            found.push(Candidate {
                endpoint,
                slice_ports: &slice.ports,
                ports,
                is_local: endpoint.node.as_ref() == Some(&node.name),
                drained,
                weight,
            });
        }
    }
    found
}

/// The service ports that a slice's endpoints serve, by name and protocol.
fn served_ports(service: &Service, slice: &EndpointSlice) -> Vec<(usize, u16, Scopes)> {
    let serves = |port: &ServicePort, offered: &EndpointPort| {
        offered.name == port.name && offered.protocol.is_none_or(|it| it == port.protocol)
    };
    let find = |(index, port): (usize, &ServicePort)| {
        let offered = slice.ports.iter().find(|offered| serves(port, offered))?;
        Some((index, offered.port?, Scopes::NONE))
    };
    service.ports.iter().enumerate().filter_map(find).collect()
}

/// Whether an endpoint is drained, and its weight; `None` for one that was removed.
fn overridden(endpoint: &Endpoint, overrides: &[Arc<Override>]) -> Option<(bool, u16)> {
    let mut weight = endpoint.weight.unwrap_or(1);
    let mut drained = false;
    for entry in overrides.iter().filter(|entry| applies(entry, endpoint)) {
        match entry.action {
            OverrideAction::Drain => drained = true,
            OverrideAction::Weight(share) => weight = share,
            OverrideAction::Remove => return None,
            OverrideAction::Add(_) | OverrideAction::Pause { .. } => {}
        }
    }
    Some((drained || weight == 0, weight))
}

/// Whether an override of a service is about this endpoint of it.
pub fn applies(entry: &Override, endpoint: &Endpoint) -> bool {
    match &entry.target {
        OverrideTarget::Address(ip) => *ip == endpoint.address,
        OverrideTarget::Pod(pod) => endpoint.pod.as_ref() == Some(pod),
        OverrideTarget::Node(node) => endpoint.node.as_ref() == Some(node),
        OverrideTarget::Routes { .. } => false,
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Topology {
    Everywhere,
    SameZone,
    SameNode,
}

/// How near endpoints must be, decided over the ready ones.
fn topology<'a>(ready: impl Iterator<Item = &'a Endpoint>, node: &NodeContext) -> Topology {
    let (mut all_have_nodes, mut names_this_node) = (true, false);
    let (mut all_have_zones, mut names_this_zone) = (true, false);
    for endpoint in ready {
        let (nodes, zones) = match endpoint.hints.as_deref() {
            Some(hints) => (hints.nodes.as_slice(), hints.zones.as_slice()),
            None => (&[] as &[_], &[] as &[_]),
        };
        all_have_nodes &= !nodes.is_empty();
        names_this_node |= nodes.contains(&node.name);
        all_have_zones &= !zones.is_empty();
        names_this_zone |= node.zone.as_ref().is_some_and(|zone| zones.contains(zone));
    }
    if all_have_nodes && names_this_node {
        Topology::SameNode
    } else if all_have_zones && names_this_zone {
        Topology::SameZone
    } else {
        Topology::Everywhere
    }
}

fn is_near(endpoint: &Endpoint, topology: Topology, node: &NodeContext) -> bool {
    let hints = endpoint.hints.as_deref();
    match topology {
        Topology::Everywhere => true,
        Topology::SameNode => hints.is_some_and(|hints| hints.nodes.contains(&node.name)),
        Topology::SameZone => {
            hints.zip(node.zone.as_ref()).is_some_and(|(hints, zone)| hints.zones.contains(zone))
        }
    }
}

/// Decides the scopes of one service port in one family. Returns whether any endpoint exists for it,
/// here or elsewhere.
fn choose(
    candidates: &mut [Candidate<'_>],
    service: &Service,
    port: usize,
    family: IpFamily,
    node: &NodeContext,
) -> bool {
    let mut group: Vec<&mut Candidate<'_>> = candidates
        .iter_mut()
        .filter(|candidate| {
            IpFamily::of(candidate.endpoint.address) == family
                && candidate.ports.iter().any(|(index, ..)| *index == port)
        })
        .collect();
    if group.is_empty() {
        return false;
    }
    let uses_cluster = service.uses_cluster_endpoints();
    let uses_local = service.uses_local_endpoints();
    let any_ready = group.iter().any(|candidate| candidate.is_ready());
    let any_ready_here = group.iter().any(|candidate| candidate.is_ready() && candidate.is_local);
    let near = topology(
        group.iter().filter(|candidate| candidate.is_ready()).map(|candidate| candidate.endpoint),
        node,
    );
    let internal_local = service.internal_traffic_policy == TrafficPolicy::Local;
    let external_local = service.external_traffic_policy == TrafficPolicy::Local;
    let mut exists = false;
    for candidate in &mut group {
        exists |= candidate.is_ready() || candidate.is_serving_terminating();
        let in_cluster = uses_cluster
            && if any_ready {
                candidate.is_ready() && is_near(candidate.endpoint, near, node)
            } else {
                candidate.is_serving_terminating()
            };
        let in_local = uses_local
            && candidate.is_local
            && if any_ready_here {
                candidate.is_ready()
            } else {
                candidate.is_serving_terminating()
            };
        let scopes = Scopes {
            internal: if internal_local { in_local } else { in_cluster },
            external: service.is_externally_accessible()
                && if external_local { in_local } else { in_cluster },
            cluster: in_cluster,
            local: in_local,
        };
        for (index, _, decided) in &mut candidate.ports {
            if *index == port {
                *decided = scopes;
            }
        }
    }
    exists
}

fn local_service(service: &Service, has_endpoints: &[Families]) -> LocalService {
    let ports = service.ports.iter().zip(has_endpoints).map(|(port, has_endpoints)| {
        let (target_port, target_port_name) = match &port.target_port {
            TargetPort::Number(number) => (Some(*number), None),
            TargetPort::Name(name) => (None, Some(name.clone())),
        };
        LocalServicePort {
            name: port.name.clone(),
            protocol: port.protocol,
            port: port.port,
            node_port: port.node_port,
            target_port,
            target_port_name,
            app_protocol: port.app_protocol.clone(),
            has_endpoints: *has_endpoints,
        }
    });
    LocalService {
        key: service.meta.key.clone(),
        service_type: service.service_type,
        headless: service.headless,
        cluster_ips: service.cluster_ips.clone(),
        external_ips: service.external_ips.clone(),
        load_balancer_ips: service.load_balancer_vips().collect(),
        source_ranges: service.source_ranges.clone(),
        ports: ports.collect(),
        external_traffic_to_local: service.external_traffic_policy == TrafficPolicy::Local,
        internal_traffic_to_local: service.internal_traffic_policy == TrafficPolicy::Local,
        session_affinity: service.session_affinity,
        health_check_node_port: service.health_check_node_port,
        external_name: service.external_name.clone(),
        labels: service.meta.labels.clone(),
        annotations: service.meta.annotations.clone(),
    }
}

fn local_endpoints(
    state: &ServiceState,
    service: &Service,
    candidates: Vec<Candidate<'_>>,
    wants: &Wants,
) -> BTreeMap<Arc<str>, Arc<LocalEndpoint>> {
    let mut endpoints: BTreeMap<Arc<str>, LocalEndpoint> = BTreeMap::new();
    for candidate in candidates {
        // KPNG's backends read no scopes: they get only what serves some traffic as they know it.
        let shown = if wants.serving_endpoints {
            candidate.endpoint.conditions.serving
                || candidate.ports.iter().any(|(.., scopes)| scopes.any())
        } else {
            candidate.ports.iter().any(|(.., scopes)| scopes.internal || scopes.external)
        };
        if !shown {
            continue;
        }
        let anonymous = || anonymous_id(candidate.endpoint, candidate.slice_ports);
        let id = candidate.endpoint.pod.clone().unwrap_or_else(anonymous);
        let fresh = local_endpoint(state, service, &candidate, id.clone());
        match endpoints.get_mut(&id).map(|known| join(known, &fresh)) {
            None => _ = endpoints.insert(id, fresh),
            Some(true) => {}
            Some(false) => {
                let mut id = anonymous();
                // Two that differ only in what their names do not tell.
                while endpoints.contains_key(&id) {
                    id = StableHash::new().text(&id).hex().into();
                }
                let key = EndpointRef { service: state.key.clone(), id: id.clone() };
                endpoints.insert(id, LocalEndpoint { key, ..fresh });
            }
        }
    }
    endpoints.into_iter().map(|(id, endpoint)| (id, Arc::new(endpoint))).collect()
}

fn local_endpoint(
    state: &ServiceState,
    service: &Service,
    candidate: &Candidate<'_>,
    id: Arc<str>,
) -> LocalEndpoint {
    let endpoint = candidate.endpoint;
    let port = |(index, port, scopes): &(usize, u16, Scopes)| LocalEndpointPort {
        name: service.ports[*index].name.clone(),
        port: *port,
        scopes: *scopes,
    };
    let mut ports: Vec<_> = candidate.ports.iter().map(port).collect();
    // In the order that ports from two slices are joined in, so that they compare.
    ports.sort_unstable();
    LocalEndpoint {
        key: EndpointRef { service: state.key.clone(), id },
        pod: endpoint.pod.clone(),
        hostname: endpoint.hostname.clone(),
        ips: vec![endpoint.address],
        local: candidate.is_local,
        ports,
        unlisted_ports: None,
        conditions: endpoint.conditions,
        weight: if candidate.drained { 0 } else { candidate.weight },
        node: endpoint.node.clone(),
        zone: endpoint.zone.clone(),
    }
}

/// Makes one of two that are the same pod: its two addresses, or ports that came in two slices.
fn join(known: &mut LocalEndpoint, fresh: &LocalEndpoint) -> bool {
    let same_but = known.hostname == fresh.hostname
        && known.conditions == fresh.conditions
        && known.weight == fresh.weight
        && known.node == fresh.node
        && known.zone == fresh.zone;
    if !same_but {
        return false;
    }
    let other_family = |ip: &IpAddr| known.ips.iter().all(|it| it.is_ipv4() != ip.is_ipv4());
    if known.ports == fresh.ports && fresh.ips.iter().all(other_family) {
        known.ips.extend(&fresh.ips);
        known.ips.sort_unstable();
        return true;
    }
    if known.ips == fresh.ips {
        let new = |port: &&LocalEndpointPort| known.ports.iter().all(|it| it.name != port.name);
        let ports: Vec<_> = fresh.ports.iter().filter(new).cloned().collect();
        if ports.len() == fresh.ports.len() {
            known.ports.extend(ports);
            known.ports.sort();
            return true;
        }
    }
    false
}
