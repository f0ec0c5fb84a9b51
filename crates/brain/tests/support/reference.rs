//! Another reading of kube-proxy's rules, as slow and plain as can be: for one port and family, make
//! the list of endpoints, then the two sets. The views must say the same.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use telaio_model::{
    Endpoint, EndpointSlice, IpFamily, LocalEndpoint, LocalService, Object, ObjectChange,
    ObjectKey, ObjectRef, Override, OverrideAction, OverrideTarget, Service, TrafficPolicy,
};

use super::family;

/// The cluster as its objects.
#[derive(Debug, Clone, Default)]
pub struct Cluster {
    /// Everything that is there.
    pub objects: BTreeMap<ObjectRef, Object>,
    /// The time.
    pub now_s: i64,
}

/// What is decided for one port and family of a service at one node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Decision {
    /// For policy Cluster.
    pub cluster: BTreeSet<(SocketAddr, u16)>,
    /// For policy Local.
    pub local: BTreeSet<(SocketAddr, u16)>,
    /// For traffic to the cluster addresses.
    pub internal: BTreeSet<(SocketAddr, u16)>,
    /// For traffic from outside, where there is a way in.
    pub external: BTreeSet<(SocketAddr, u16)>,
    /// Some usable endpoint is somewhere.
    pub exists: bool,
}

/// Decisions by service, port name and family.
pub type Decisions = BTreeMap<(ObjectKey, String, IpFamily), Decision>;

impl Cluster {
    /// Takes changes in order.
    pub fn apply(&mut self, changes: &[ObjectChange]) {
        for change in changes {
            match change {
                ObjectChange::Set(object) => {
                    self.objects.insert(object.object_ref(), object.clone());
                }
                ObjectChange::Delete(object_ref) => {
                    self.objects.remove(object_ref);
                }
            }
        }
    }

    fn slices(&self, service: &ObjectKey) -> Vec<Arc<EndpointSlice>> {
        let slices = self.objects.values().filter_map(|object| match object {
            Object::EndpointSlice(slice) if slice.service_key().as_ref() == Some(service) => {
                Some(slice.clone())
            }
            _ => None,
        });
        let mut slices: Vec<_> = slices.collect();
        slices.sort_by(|a, b| a.key.cmp(&b.key));
        slices
    }

    /// The share that an endpoint gets; 0 is none.
    fn weight(&self, service: &ObjectKey, endpoint: &Endpoint) -> u16 {
        let overrides = self.objects.values().filter_map(|object| match object {
            Object::Override(it) if it.object == *service && it.is_active(self.now_s) => Some(it),
            _ => None,
        });
        let hits = |it: &&Arc<Override>| match &it.target {
            OverrideTarget::Address(ip) => *ip == endpoint.address,
            OverrideTarget::Pod(pod) => endpoint.pod.as_ref() == Some(pod),
            OverrideTarget::Node(node) => endpoint.node.as_ref() == Some(node),
            OverrideTarget::Routes { .. } => false,
        };
        let hits: Vec<_> = overrides.filter(hits).collect();
        if hits.iter().any(|it| it.action == OverrideAction::Drain) {
            return 0;
        }
        let last = hits.iter().rev().find_map(|it| match it.action {
            OverrideAction::Weight(weight) => Some(weight),
            _ => None,
        });
        last.or(endpoint.weight).unwrap_or(1)
    }

    /// What a service proxy on this node must do.
    pub fn decisions(&self, node: &str) -> Decisions {
        let zone = self.objects.values().find_map(|object| match object {
            Object::Node(it) if &*it.meta.key.name == node => it.zone().cloned(),
            _ => None,
        });
        let mut decisions = Decisions::new();
        for object in self.objects.values() {
            let Object::Service(service) = object else { continue };
            if !service.is_proxied() {
                continue;
            }
            for port in 0..service.ports.len() {
                for cluster_ip in &service.cluster_ips {
                    let family = family(*cluster_ip);
                    let decision = self.decide(service, port, family, node, zone.as_deref());
                    let name = service.ports[port].name.to_string();
                    decisions.insert((service.meta.key.clone(), name, family), decision);
                }
            }
        }
        decisions
    }

    fn decide(
        &self,
        service: &Service,
        port: usize,
        family: IpFamily,
        node: &str,
        zone: Option<&str>,
    ) -> Decision {
        let port = &service.ports[port];
        let mut endpoints: BTreeMap<SocketAddr, (Endpoint, u16)> = BTreeMap::new();
        for slice in self.slices(&service.meta.key) {
            for offered in &slice.ports {
                let same = offered.name == port.name
                    && offered.protocol.is_none_or(|protocol| protocol == port.protocol);
                let (true, Some(number)) = (same, offered.port) else { continue };
                for endpoint in
                    slice.endpoints.iter().filter(|it| super::family(it.address) == family)
                {
                    let at = SocketAddr::new(endpoint.address, number);
                    let weight = self.weight(&service.meta.key, endpoint);
                    endpoints.entry(at).or_insert_with(|| (endpoint.clone(), weight));
                }
            }
        }
        endpoints.retain(|_, (_, weight)| *weight > 0);
        categorize(service, &endpoints, node, zone)
    }
}

fn categorize(
    service: &Service,
    endpoints: &BTreeMap<SocketAddr, (Endpoint, u16)>,
    node: &str,
    zone: Option<&str>,
) -> Decision {
    let pick = |wanted: &dyn Fn(&Endpoint) -> bool| -> BTreeSet<(SocketAddr, u16)> {
        let hits = endpoints.iter().filter(|(_, (endpoint, _))| wanted(endpoint));
        hits.map(|(at, (_, weight))| (*at, *weight)).collect()
    };
    let names = |list: &[Arc<str>], name: &str| list.iter().any(|it| &**it == name);
    let nodes = |it: &Endpoint| it.hints.clone().unwrap_or_default().nodes;
    let zones = |it: &Endpoint| it.hints.clone().unwrap_or_default().zones;
    let is_ready = |it: &Endpoint| it.conditions.ready;
    let leaves = |it: &Endpoint| it.conditions.serving && it.conditions.terminating;
    let is_here = |it: &Endpoint| it.node.as_deref() == Some(node);
    let or =
        |first: BTreeSet<_>, second: BTreeSet<_>| if first.is_empty() { second } else { first };

    let ready = pick(&is_ready);
    let on_node = pick(&|it| is_ready(it) && names(&nodes(it), node));
    let in_zone = pick(&|it| is_ready(it) && zone.is_some_and(|zone| names(&zones(it), zone)));
    let no_node_hint = pick(&|it| is_ready(it) && nodes(it).is_empty());
    let no_zone_hint = pick(&|it| is_ready(it) && zones(it).is_empty());
    let near = if no_node_hint.is_empty() && !on_node.is_empty() {
        on_node
    } else if no_zone_hint.is_empty() && !in_zone.is_empty() {
        in_zone
    } else {
        ready
    };
    let from_outside = service.ports.iter().any(|port| port.node_port.is_some())
        || !service.external_ips.is_empty()
        || service.load_balancer.iter().any(|it| it.ip_mode == telaio_model::IpMode::Vip);
    let itp_local = service.internal_traffic_policy == TrafficPolicy::Local;
    let etp_local = service.external_traffic_policy == TrafficPolicy::Local;

    let mut decision = Decision {
        exists: !pick(&|it| is_ready(it) || leaves(it)).is_empty(),
        ..Decision::default()
    };
    if !itp_local || from_outside {
        decision.cluster = or(near, pick(&leaves));
    }
    if itp_local || (etp_local && from_outside) {
        let ready_here = pick(&|it| is_ready(it) && is_here(it));
        decision.local = or(ready_here, pick(&|it| leaves(it) && is_here(it)));
    }
    decision.internal = if itp_local { decision.local.clone() } else { decision.cluster.clone() };
    if from_outside {
        decision.external =
            if etp_local { decision.local.clone() } else { decision.cluster.clone() };
    }
    decision
}

/// What a view says, in the same terms.
pub fn read_view<'a>(
    services: impl Iterator<Item = &'a Arc<LocalService>>,
    endpoints: &[Arc<LocalEndpoint>],
) -> Decisions {
    let mut decisions = Decisions::new();
    for service in services {
        for port in &service.ports {
            for family in service.cluster_ips.iter().map(|ip| family(*ip)) {
                let mut decision =
                    Decision { exists: port.has_endpoints.contains(family), ..Decision::default() };
                for endpoint in endpoints.iter().filter(|it| it.key.service == service.key) {
                    let Some((number, scopes)) = endpoint.port_for(port) else { continue };
                    let of_family = |ip: &&IpAddr| super::family(**ip) == family;
                    for ip in endpoint.ips.iter().filter(of_family) {
                        let at = (SocketAddr::new(*ip, number), endpoint.weight);
                        let sets = [
                            (scopes.cluster, &mut decision.cluster),
                            (scopes.local, &mut decision.local),
                            (scopes.internal, &mut decision.internal),
                            (scopes.external, &mut decision.external),
                        ];
                        for (is_in, set) in sets {
                            assert!(!is_in || set.insert(at), "{at:?} is there twice");
                        }
                    }
                }
                decisions.insert((service.key.clone(), port.name.to_string(), family), decision);
            }
        }
    }
    decisions
}
