//! What the tests of the brain share: short ways to say a cluster, and a receiver that replays
//! operations as a node agent would, checking each against what it has.
#![allow(
    dead_code,
    unreachable_pub,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking, also in its helpers; not every test uses every helper"
)]

pub mod arbitrary;
pub mod follower;
pub mod net;
pub mod reference;
pub mod watchers;

use std::net::IpAddr;
use std::sync::Arc;

use telaio_model::{
    AddressType, Batch, Conditions, Endpoint, EndpointPort, EndpointSlice, Hints, IpFamily,
    LoadBalancerIngress, Meta, Node, Object, ObjectChange, ObjectKey, ObjectRef, Override,
    OverrideAction, OverrideTarget, Protocol, Service, ServicePort, ServiceType, TargetPort,
    TrafficPolicy, node::LABEL_ZONE,
};

/// An address from its text.
pub fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// A key in the namespace that most tests use.
pub fn key(name: &str) -> ObjectKey {
    ObjectKey::new("default", name)
}

/// A TCP port that leads to the same number in the endpoint.
pub fn port(name: &str, number: u16) -> ServicePort {
    ServicePort {
        name: name.into(),
        protocol: Protocol::Tcp,
        app_protocol: None,
        port: number,
        node_port: None,
        target_port: TargetPort::Number(number),
    }
}

/// `default/web` at 10.96.0.1, port 80 named `http`, with no other property.
pub fn web() -> Service {
    service("web", "10.96.0.1")
}

/// A service of one port, 80 named `http`.
pub fn service(name: &str, cluster_ip: &str) -> Service {
    Service {
        meta: Meta::named(key(name)),
        service_type: ServiceType::ClusterIP,
        headless: false,
        cluster_ips: vec![ip(cluster_ip)],
        external_ips: vec![],
        load_balancer: vec![],
        source_ranges: vec![],
        ports: vec![port("http", 80)],
        selector: telaio_model::Labels::new(),
        external_traffic_policy: TrafficPolicy::Cluster,
        internal_traffic_policy: TrafficPolicy::Cluster,
        session_affinity: None,
        health_check_node_port: None,
        traffic_distribution: None,
        publish_not_ready_addresses: false,
        external_name: None,
    }
}

/// Changes to a service, in the order of a sentence.
pub trait ServiceExt: Sized {
    /// With `internalTrafficPolicy: Local`.
    fn itp_local(self) -> Self;
    /// With `externalTrafficPolicy: Local`.
    fn etp_local(self) -> Self;
    /// With a node port on every port.
    fn node_ports(self) -> Self;
    /// With a load balancer's address in the given mode.
    fn load_balancer(self, address: &str, mode: telaio_model::IpMode) -> Self;
    /// With these cluster addresses.
    fn cluster_ips(self, addresses: &[&str]) -> Self;
    /// With these ports.
    fn ports(self, ports: &[ServicePort]) -> Self;
    /// With a label.
    fn label(self, name: &str, value: &str) -> Self;
}

impl ServiceExt for Service {
    fn itp_local(mut self) -> Self {
        self.internal_traffic_policy = TrafficPolicy::Local;
        self
    }

    fn etp_local(mut self) -> Self {
        self.external_traffic_policy = TrafficPolicy::Local;
        self
    }

    fn node_ports(mut self) -> Self {
        self.service_type = ServiceType::NodePort;
        for (port, number) in self.ports.iter_mut().zip(30_000..) {
            port.node_port = Some(number);
        }
        self
    }

    fn load_balancer(mut self, address: &str, ip_mode: telaio_model::IpMode) -> Self {
        self.service_type = ServiceType::LoadBalancer;
        self.load_balancer.push(LoadBalancerIngress { ip: ip(address), ip_mode });
        self
    }

    fn cluster_ips(mut self, addresses: &[&str]) -> Self {
        self.cluster_ips = addresses.iter().map(|address| ip(address)).collect();
        self
    }

    fn ports(mut self, ports: &[ServicePort]) -> Self {
        self.ports = ports.to_vec();
        self
    }

    fn label(mut self, name: &str, value: &str) -> Self {
        self.meta.labels.insert(name.into(), value.into());
        self
    }
}

/// Ready, not ready, and the stages of leaving.
pub const READY: Conditions = Conditions::READY;
/// Not ready, and not able to answer.
pub const UNREADY: Conditions = Conditions { ready: false, serving: false, terminating: false };
/// Would answer, but is not ready, and stays.
pub const SERVING: Conditions = Conditions { ready: false, serving: true, terminating: false };
/// Leaving, and able to answer meanwhile.
pub const LEAVING: Conditions = Conditions { ready: false, serving: true, terminating: true };
/// Leaving, and already silent.
pub const GONE: Conditions = Conditions { ready: false, serving: false, terminating: true };

/// A ready endpoint of a pod on a node.
pub fn pod(name: &str, address: &str, node: &str) -> Endpoint {
    Endpoint { pod: Some(name.into()), node: Some(node.into()), ..Endpoint::at(ip(address)) }
}

/// Changes to an endpoint.
pub trait EndpointExt: Sized {
    /// In this state.
    fn is(self, conditions: Conditions) -> Self;
    /// Meant for these zones.
    fn for_zones(self, zones: &[&str]) -> Self;
    /// Meant for these nodes.
    fn for_nodes(self, nodes: &[&str]) -> Self;
    /// With a weight of the cluster's.
    fn weighs(self, weight: u16) -> Self;
}

fn texts(texts: &[&str]) -> Vec<Arc<str>> {
    texts.iter().map(|text| Arc::from(*text)).collect()
}

impl EndpointExt for Endpoint {
    fn is(mut self, conditions: Conditions) -> Self {
        self.conditions = conditions;
        self
    }

    fn for_zones(mut self, zones: &[&str]) -> Self {
        self.hints.get_or_insert_with(Box::<Hints>::default).zones = texts(zones);
        self
    }

    fn for_nodes(mut self, nodes: &[&str]) -> Self {
        self.hints.get_or_insert_with(Box::<Hints>::default).nodes = texts(nodes);
        self
    }

    fn weighs(mut self, weight: u16) -> Self {
        self.weight = Some(weight);
        self
    }
}

/// A TCP port of a slice.
pub fn slice_port(name: &str, number: u16) -> EndpointPort {
    EndpointPort { name: name.into(), protocol: Some(Protocol::Tcp), port: Some(number) }
}

/// A slice of `default/web` with port 80 named `http`.
pub fn web_slice(name: &str, endpoints: Vec<Endpoint>) -> EndpointSlice {
    slice(name, "web", &[slice_port("http", 80)], endpoints)
}

/// A slice of a service; the address type follows from the first endpoint.
pub fn slice(
    name: &str,
    service: &str,
    ports: &[EndpointPort],
    endpoints: Vec<Endpoint>,
) -> EndpointSlice {
    let is_ipv6 = endpoints.first().is_some_and(|endpoint| endpoint.address.is_ipv6());
    EndpointSlice {
        triggered: telaio_model::endpoints::TriggerTime::default(),
        key: key(name),
        service: Some(service.into()),
        address_type: if is_ipv6 { AddressType::IPv6 } else { AddressType::IPv4 },
        endpoints,
        ports: ports.to_vec(),
    }
}

/// A node, with or without a zone.
pub fn node(name: &str, zone: Option<&str>) -> Node {
    let mut meta = Meta::named(ObjectKey::cluster(name));
    if let Some(zone) = zone {
        meta.labels.insert(LABEL_ZONE.into(), zone.into());
    }
    Node { meta, addresses: vec![], pod_cidrs: vec![], taints: vec![], deleting: false }
}

/// An override of endpoints of `default/web`.
pub fn web_override(name: &str, target: OverrideTarget, action: OverrideAction) -> Override {
    Override {
        meta: Meta::named(key(name)),
        object: key("web"),
        target,
        action,
        by: "alice".into(),
        reason: "test".into(),
        since_s: None,
        until_s: None,
    }
}

/// A complete batch that sets these objects.
pub fn set(objects: impl IntoIterator<Item = Object>) -> Batch {
    Batch { changes: objects.into_iter().map(ObjectChange::Set).collect(), synced: true }
}

/// A complete batch that deletes these objects.
pub fn delete(refs: impl IntoIterator<Item = ObjectRef>) -> Batch {
    Batch { changes: refs.into_iter().map(ObjectChange::Delete).collect(), synced: true }
}

/// The family of an address.
pub fn family(address: IpAddr) -> IpFamily {
    IpFamily::of(address)
}

/// A complete batch.
pub fn batch(changes: Vec<ObjectChange>) -> Batch {
    Batch { changes, synced: true }
}

/// `default/web` with one ready endpoint at this address.
pub fn web_at(address: &str) -> Object {
    web_slice("web-1", vec![pod("p", address, "n1")]).into()
}
