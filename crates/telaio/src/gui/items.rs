//! Services, nodes and the pods plane, as lists show them.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use telaio_brain::view::applies;
use telaio_brain::{NodeContext, ServiceState, Wants, service_view};
use telaio_gui::Network;
use telaio_gui::values::service::{
    EndpointCounts, EndpointItem, EndpointPort, NodeItem, Port, ServiceDetail, ServiceItem,
};
use telaio_gui::values::{Counters, Key, State as Health};
use telaio_model::{
    Kind, Object, ObjectKey, Override, OverrideAction, Service, TargetPort, TrafficPolicy,
};
use telaio_reconcile::kpng::State;

use super::flows::{Counted, sum};
use super::{AdminAgent, view_items};
use crate::monitor::Followed;

fn texts(all: impl IntoIterator<Item = impl ToString>) -> Vec<String> {
    all.into_iter().map(|it| it.to_string()).collect()
}

fn policy(policy: TrafficPolicy) -> String {
    match policy {
        TrafficPolicy::Cluster => "Cluster".to_owned(),
        TrafficPolicy::Local => "Local".to_owned(),
    }
}

/// What a service's item needs beside it.
#[derive(Debug, Clone, Copy)]
struct Facts {
    /// An override is in force.
    overridden: bool,
    /// Somebody is meant to serve it.
    is_meant: bool,
}

fn add_nodes<'a>(
    objects: impl IntoIterator<Item = &'a Object>,
    own: &Arc<str>,
    on_nodes: &BTreeMap<Arc<str>, usize>,
    network: &mut Network,
) {
    for object in objects {
        let Object::Node(node) = object else { continue };
        let name = &node.meta.key.name;
        network.nodes.push(NodeItem {
            name: name.to_string(),
            own: name == own,
            addresses: texts(node.addresses.iter().map(|it| it.ip)),
            pod_cidrs: texts(&node.pod_cidrs),
            zone: node.zone().map(ToString::to_string),
            leaving: node.is_leaving(),
            endpoints: on_nodes.get(name).copied().unwrap_or(0),
        });
    }
}

impl AdminAgent {
    /// The view that a brain makes for this node, if that is where it comes from.
    fn followed(&self) -> Option<&Followed> {
        let follows = self.store.is_none() && self.context.is_some();
        follows.then(|| &self.monitor.feeding().followed)
    }

    /// All overrides that are known here.
    pub(super) fn known_overrides(&self) -> Vec<Arc<Override>> {
        if let Some(followed) = self.followed() {
            return followed.with(view_items::overrides);
        }
        let Some(snapshot) = self.store.as_ref().and_then(|store| store.snapshot()) else {
            return Vec::new();
        };
        let first = snapshot.objects.partition_point(|it| it.kind() < Kind::Override);
        let overrides = snapshot.objects[first..].iter().map_while(|object| match object {
            Object::Override(decided) => Some(Arc::clone(decided)),
            _ => None,
        });
        overrides.collect()
    }

    /// All services that are known here, for who wants to know where they answer.
    pub(super) fn known_services(&self) -> Option<Vec<Arc<Service>>> {
        if let Some(followed) = self.followed() {
            let state = followed.state()?;
            let each = state.services().map(|it| Arc::new(view_items::service(&it.service)));
            return Some(each.collect());
        }
        let snapshot = self.store.as_ref()?.snapshot()?;
        Some(snapshot.services.iter().filter_map(|state| state.service.clone()).collect())
    }

    pub(super) fn add_services(&self, network: &mut Network) {
        if let Some(followed) = self.followed() {
            if let Some(state) = followed.state() {
                self.add_followed(&state, network);
            }
            return;
        }
        let Some(snapshot) = self.store.as_ref().and_then(|store| store.snapshot()) else { return };
        let context = self.node_context();
        let counted = self.flows.counted();
        let mut on_nodes: BTreeMap<Arc<str>, usize> = BTreeMap::new();
        for state in &snapshot.services {
            for endpoint in state.all_slices().flat_map(|slice| &slice.endpoints) {
                if let Some(node) = &endpoint.node {
                    *on_nodes.entry(Arc::clone(node)).or_default() += 1;
                }
            }
            let Some(service) = &state.service else { continue };
            let items = endpoints(state, &context);
            let facts = Facts {
                overridden: !state.overrides.is_empty(),
                is_meant: !service.selector.is_empty(),
            };
            network.services.push(self.service_item(service, facts, &items, &counted));
        }
        add_nodes(&snapshot.objects, &context.name, &on_nodes, network);
    }

    fn add_followed(&self, state: &State, network: &mut Network) {
        let overrides = view_items::overrides(state);
        let counted = self.flows.counted();
        let mut on_nodes: BTreeMap<Arc<str>, usize> = BTreeMap::new();
        for service in state.services() {
            for endpoint in service.endpoints.iter() {
                if let Some(node) = &endpoint.node {
                    *on_nodes.entry(Arc::clone(node)).or_default() += endpoint.ips.len();
                }
            }
            let overrides = view_items::of_service(&overrides, service);
            let items = view_items::endpoints(service, &overrides);
            let facts = Facts { overridden: !overrides.is_empty(), is_meant: true };
            let service = view_items::service(&service.service);
            network.services.push(self.service_item(&service, facts, &items, &counted));
        }
        let name = self.context.as_ref().map_or_else(|| "".into(), |it| Arc::clone(&it.name));
        add_nodes(state.objects_of(Kind::Node), &name, &on_nodes, network);
    }

    fn service_item(
        &self,
        service: &Service,
        facts: Facts,
        items: &[EndpointItem],
        counted: &Counted,
    ) -> ServiceItem {
        let count = |of: fn(&&EndpointItem) -> bool| items.iter().filter(of).count();
        let counts = EndpointCounts {
            total: items.len(),
            ready: count(|it| it.ready && !it.removed),
            terminating: count(|it| it.terminating),
            drained: count(|it| it.drained || it.removed),
            local: count(|it| it.local),
            used: count(|it| it.used),
        };
        let (health, text) = judge(service, facts.is_meant, &counts);
        let key = Key::new(&*service.meta.key.namespace, &*service.meta.key.name);
        let of_ports = counted.of_ports(service);
        let ports = service.ports.iter().enumerate().map(|(i, it)| Port {
            connections: of_ports.as_ref().and_then(|all| all.get(i).copied()),
            ..port(it)
        });
        ServiceItem {
            namespace: key.namespace.clone(),
            name: key.name.clone(),
            service_type: service.service_type.to_string(),
            headless: service.headless,
            cluster_ips: texts(&service.cluster_ips),
            external_ips: texts(&service.external_ips),
            load_balancer_ips: texts(service.load_balancer_vips()),
            ports: ports.collect(),
            endpoints: counts,
            state: health,
            state_text: text,
            overridden: facts.overridden,
            counters: self.service_counters(&key),
            connections: of_ports.map(|all| sum(&all)),
            connections_reason: counted.reason.clone(),
            traffic: counted.of_traffic(&service.meta.key),
            traffic_reason: counted.traffic_reason.clone(),
        }
    }

    /// What the ingress sends to a service.
    #[cfg(unix)]
    fn service_counters(&self, key: &Key) -> Option<Counters> {
        self.stats.of_service(key)
    }

    #[cfg(not(unix))]
    #[expect(clippy::unused_self, reason = "there is no ingress plane")]
    fn service_counters(&self, _: &Key) -> Option<Counters> {
        None
    }

    /// A service with its endpoints, from wherever it is known.
    fn look_up(&self, key: &ObjectKey) -> Option<(Arc<Service>, Facts, Vec<EndpointItem>)> {
        if let Some(followed) = self.followed() {
            return followed.with(|state| {
                let service = state.get(key)?;
                let overrides = view_items::overrides(state);
                let overrides = view_items::of_service(&overrides, service);
                let items = view_items::endpoints(service, &overrides);
                let facts = Facts { overridden: !overrides.is_empty(), is_meant: true };
                Some((Arc::new(view_items::service(&service.service)), facts, items))
            });
        }
        let snapshot = self.store.as_ref()?.snapshot()?;
        let found = snapshot.services.binary_search_by(|it| it.key.cmp(key)).ok()?;
        let state = &snapshot.services[found];
        let service = state.service.as_ref()?;
        let facts = Facts {
            overridden: !state.overrides.is_empty(),
            is_meant: !service.selector.is_empty(),
        };
        Some((Arc::clone(service), facts, endpoints(state, &self.node_context())))
    }

    /// What is counted of endpoints.
    fn count_endpoints(&self, key: &Key, wanted: &ObjectKey, items: &mut [EndpointItem]) {
        let counted = self.flows.counted();
        for item in items {
            #[cfg(unix)]
            {
                item.counters = self.stats.of_endpoint(key, &item.address);
            }
            item.connections = counted.of_endpoint(wanted, item);
        }
        #[cfg(not(unix))]
        let _ = key;
    }

    /// The endpoints of these services.
    pub(super) fn endpoints_of(&self, keys: &[&Key]) -> Vec<Vec<EndpointItem>> {
        let of = |key: &&Key| {
            let wanted = ObjectKey::new(key.namespace.as_str(), key.name.as_str());
            let (.., mut items) = self.look_up(&wanted)?;
            self.count_endpoints(key, &wanted, &mut items);
            Some(items)
        };
        keys.iter().map(|key| of(key).unwrap_or_default()).collect()
    }

    pub(super) fn service_detail(&self, key: &Key) -> Option<ServiceDetail> {
        let wanted = ObjectKey::new(key.namespace.as_str(), key.name.as_str());
        let (service, facts, mut items) = self.look_up(&wanted)?;
        self.count_endpoints(key, &wanted, &mut items);
        let map = |labels: &telaio_model::Labels| {
            labels.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect()
        };
        Some(ServiceDetail {
            item: self.service_item(&service, facts, &items, &self.flows.counted()),
            internal_traffic_policy: policy(service.internal_traffic_policy),
            external_traffic_policy: policy(service.external_traffic_policy),
            session_affinity_s: service.session_affinity.map(|it| it.timeout_s),
            source_ranges: texts(&service.source_ranges),
            health_check_node_port: service.health_check_node_port,
            external_name: service.external_name.as_deref().map(str::to_owned),
            labels: map(&service.meta.labels),
            annotations: map(&service.meta.annotations),
            backend: self.programming.as_ref().map(|it| it.backend.to_owned()),
            endpoint_items: items,
            overrides: Vec::new(),
            routes: Vec::new(),
        })
    }

    /// The pods plane now. Its records are files, and the kernel is asked: not on a thread that answers.
    #[cfg(target_os = "linux")]
    pub(super) async fn pods_now(&self) -> Option<crate::pods::PodsReport> {
        let monitor = Arc::clone(&self.monitor);
        let reading = tokio::task::spawn_blocking(move || monitor.pods_report());
        reading.await.ok().flatten()
    }

    #[cfg(target_os = "linux")]
    pub(super) async fn add_pods(&self, network: &mut Network) {
        use telaio_gui::values::pods::{InstanceItem, NetworkItem, PeerItem, PodsSummary, Tunnel};
        let Some(report) = self.pods_now().await else { return };
        let by_address = self.by_address();
        let tunnel = report.tunnel.map(|it| Tunnel {
            kind: "vxlan".to_owned(),
            state: if it.problem.is_some() { Health::Error } else { Health::Ok },
            state_text: it.problem.unwrap_or_default(),
            name: it.name,
            vni: it.vni,
            port: it.port,
            address: it.address,
            mtu: it.mtu,
            mac: it.mac,
            up: it.up,
        });
        network.pods = PodsSummary {
            enabled: true,
            networks: report.networks.len(),
            instances: report.instance_count,
            peers: report.peers.len(),
            policies: report.policies,
            cni: report.cni,
            problems: report.problems,
            tunnel,
        };
        for it in report.networks {
            let on_it = report.instances.iter().filter(|one| one.network == it.name).count();
            let (name, bridge, subnets) = (it.name, it.bridge, it.subnets);
            network.networks.push(NetworkItem { name, bridge, subnets, instances: on_it });
        }
        for it in report.instances {
            let known = it.addresses.iter().filter_map(|text| by_address.get(&text.parse().ok()?));
            let known: Vec<&(Option<Key>, Key)> = known.flatten().collect();
            network.instances.push(InstanceItem {
                pod: match &it.pod {
                    Some(pod) => pod.split_once('/').map(|(ns, name)| Key::new(ns, name)),
                    None => known.iter().find_map(|(pod, _)| pod.clone()),
                },
                services: known.iter().map(|(_, service)| service.clone()).collect(),
                id: it.id,
                network: it.network,
                interface: it.interface,
                addresses: it.addresses,
                ports: it.ports,
            });
        }
        for way in report.ways {
            let node = network.nodes.iter().find(|node| node.name == way.node);
            network.peers.push(PeerItem {
                addresses: node.map(|it| it.addresses.clone()).unwrap_or_default(),
                subnets: way.subnets,
                mode: way.mode,
                public_addresses: way.addresses,
                tunnel_mac: way.mac,
                state: if way.missing.is_empty() { Health::Ok } else { Health::Error },
                state_text: match way.missing.as_slice() {
                    [] => String::new(),
                    missing => format!("{} cannot be reached: {}", way.node, missing.join("; ")),
                },
                node: way.node,
            });
        }
    }

    #[cfg(not(target_os = "linux"))]
    #[expect(clippy::unused_async, reason = "there is no pods plane")]
    pub(super) async fn add_pods(&self, _: &mut Network) {}

    /// The pods and services behind each address of this node.
    #[cfg(target_os = "linux")]
    fn by_address(&self) -> BTreeMap<IpAddr, Vec<(Option<Key>, Key)>> {
        let mut found: BTreeMap<IpAddr, Vec<(Option<Key>, Key)>> = BTreeMap::new();
        let own = self.context.as_ref().map(|it| Arc::clone(&it.name));
        if let Some(followed) = self.followed() {
            followed.with(|state| {
                for service in state.services() {
                    let key = &service.service.key;
                    let name = Key::new(&*key.namespace, &*key.name);
                    for endpoint in service.endpoints.iter().filter(|it| it.local) {
                        let pod = endpoint.pod.as_ref().map(|it| Key::new(&*key.namespace, &**it));
                        for ip in &endpoint.ips {
                            found.entry(*ip).or_default().push((pod.clone(), name.clone()));
                        }
                    }
                }
            });
            return found;
        }
        let Some(snapshot) = self.store.as_ref().and_then(|store| store.snapshot()) else {
            return found;
        };
        for state in &snapshot.services {
            let service = Key::new(&*state.key.namespace, &*state.key.name);
            for endpoint in state.all_slices().flat_map(|slice| &slice.endpoints) {
                if endpoint.node.is_some() && endpoint.node != own {
                    continue;
                }
                let pod = endpoint.pod.as_ref().map(|it| Key::new(&*state.key.namespace, &**it));
                found.entry(endpoint.address).or_default().push((pod, service.clone()));
            }
        }
        found
    }
}

fn port(port: &telaio_model::ServicePort) -> Port {
    Port {
        name: port.name.to_string(),
        protocol: port.protocol.to_string(),
        port: port.port,
        node_port: port.node_port,
        target: match &port.target_port {
            TargetPort::Number(number) => number.to_string(),
            TargetPort::Name(name) => name.to_string(),
        },
        app_protocol: port.app_protocol.as_deref().map(str::to_owned),
        connections: None,
    }
}

/// How a service is, in a word and a line.
fn judge(service: &Service, is_meant: bool, counts: &EndpointCounts) -> (Health, String) {
    if service.external_name.is_some() {
        return (Health::Ok, String::new());
    }
    if service.ports.is_empty() || (counts.total == 0 && !is_meant) {
        return (Health::Idle, "nobody is meant to serve it yet".to_owned());
    }
    let text = format!("{} of {} endpoints are ready", counts.ready, counts.total);
    match counts {
        it if it.used == 0 && it.drained > 0 && it.drained >= it.ready => {
            (Health::Error, "everybody who could serve it is drained".to_owned())
        }
        it if it.ready == 0 => (Health::Error, "nobody serves it: no endpoint is ready".to_owned()),
        it if it.drained > 0 => (Health::Ok, format!("{} drained", it.drained)),
        it if it.ready < it.total => (Health::Warning, text),
        _ => (Health::Ok, String::new()),
    }
}

/// The endpoints of a service, ready or not, as the cluster and people have them.
fn endpoints(state: &ServiceState, context: &NodeContext) -> Vec<EndpointItem> {
    if state.service.is_none() {
        return Vec::new();
    }
    let wants = Wants { all_services: true, ..Wants::services() };
    let view = service_view(state, context, &wants);
    let mut used: BTreeMap<IpAddr, Vec<EndpointPort>> = BTreeMap::new();
    for endpoint in view.iter().flat_map(|view| view.endpoints.values()) {
        let ports = endpoint.ports.iter().map(|port| EndpointPort {
            name: port.name.to_string(),
            port: port.port,
            internal: port.scopes.internal || port.scopes.cluster,
            external: port.scopes.external || port.scopes.local,
        });
        let ports: Vec<EndpointPort> = ports.collect();
        for ip in &endpoint.ips {
            used.entry(*ip).or_default().extend(ports.iter().cloned());
        }
    }
    let mut items: BTreeMap<(IpAddr, Vec<Option<u16>>), EndpointItem> = BTreeMap::new();
    for slice in state.all_slices() {
        let added = state.is_added(slice);
        for endpoint in &slice.endpoints {
            let hits: Vec<_> = state.overrides.iter().filter(|it| applies(it, endpoint)).collect();
            let weight = hits.iter().rev().find_map(|it| match it.action {
                OverrideAction::Weight(weight) => Some(weight),
                _ => None,
            });
            let weight = weight.or(endpoint.weight).unwrap_or(1);
            let drained = weight == 0 || hits.iter().any(|it| it.action == OverrideAction::Drain);
            let offered = || {
                slice.ports.iter().filter_map(|port| {
                    Some(EndpointPort {
                        name: port.name.to_string(),
                        port: port.port?,
                        internal: false,
                        external: false,
                    })
                })
            };
            // An address can be in two slices with other ports.
            let is_of_slice =
                |it: &&EndpointPort| slice.ports.iter().any(|p| p.port == Some(it.port));
            let ports: Option<Vec<EndpointPort>> = used
                .get(&endpoint.address)
                .map(|all| all.iter().filter(is_of_slice).cloned().collect());
            let ports = ports.unwrap_or_else(|| offered().collect());
            let item = EndpointItem {
                address: endpoint.address.to_string(),
                used: ports.iter().any(|port| port.internal || port.external),
                ports,
                pod: endpoint.pod.as_deref().map(str::to_owned),
                node: endpoint.node.as_deref().map(str::to_owned),
                zone: endpoint.zone.as_deref().map(str::to_owned),
                local: endpoint.node.as_ref() == Some(&context.name),
                ready: endpoint.conditions.ready,
                serving: endpoint.conditions.serving,
                terminating: endpoint.conditions.terminating,
                weight: if drained { 0 } else { weight },
                drained,
                added,
                removed: hits.iter().any(|it| it.action == OverrideAction::Remove),
                overrides: hits.iter().map(|it| it.meta.key.to_string()).collect(),
                counters: None,
                connections: None,
            };
            // Of an address and port in two slices the first says what it is.
            let ports = slice.ports.iter().map(|port| port.port).collect();
            items.entry((endpoint.address, ports)).or_insert(item);
        }
    }
    items.into_values().collect()
}
