//! Objects for single cases, made in a line.

use std::net::IpAddr;

use telaio_model::endpoints::TriggerTime;
use telaio_model::{
    AddressType, Endpoint, EndpointPort, EndpointSlice, Labels, Meta, ObjectKey, Protocol, Service,
    ServicePort, ServiceType, TargetPort, TrafficPolicy,
};
use telaio_service_proxy::trace::Packet;

/// The address that a text says.
pub(crate) fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// A service of the namespace `x` at TCP port 80, with these cluster addresses.
pub(crate) fn service(name: &str, cluster_ips: &[&str]) -> Service {
    Service {
        meta: Meta::named(ObjectKey::new("x", name)),
        service_type: ServiceType::ClusterIP,
        headless: false,
        cluster_ips: cluster_ips.iter().map(|text| ip(text)).collect(),
        external_ips: Vec::new(),
        load_balancer: Vec::new(),
        source_ranges: Vec::new(),
        ports: vec![port("", Protocol::Tcp, None)],
        selector: Labels::default(),
        external_traffic_policy: TrafficPolicy::Cluster,
        internal_traffic_policy: TrafficPolicy::Cluster,
        session_affinity: None,
        health_check_node_port: None,
        traffic_distribution: None,
        publish_not_ready_addresses: false,
        external_name: None,
    }
}

/// Port 80, to port 8080.
pub(crate) fn port(name: &str, protocol: Protocol, node_port: Option<u16>) -> ServicePort {
    let target_port = TargetPort::Number(8080);
    ServicePort {
        name: name.into(),
        protocol,
        app_protocol: None,
        port: 80,
        node_port,
        target_port,
    }
}

/// A ready endpoint on a node.
pub(crate) fn endpoint(address: IpAddr, node: Option<&str>) -> Endpoint {
    Endpoint { node: node.map(Into::into), ..Endpoint::at(address) }
}

/// The endpoints of a service's unnamed port, or of `ports`, at 8080.
pub(crate) fn slice(service: &str, ports: &[&str], endpoints: Vec<Endpoint>) -> EndpointSlice {
    let v4 = endpoints.first().is_none_or(|endpoint| endpoint.address.is_ipv4());
    let port =
        |name: &&str| EndpointPort { name: (*name).into(), protocol: None, port: Some(8080) };
    EndpointSlice {
        key: ObjectKey::new("x", format!("{service}-{}", if v4 { "v4" } else { "v6" })),
        service: Some(service.into()),
        address_type: if v4 { AddressType::IPv4 } else { AddressType::IPv6 },
        endpoints,
        ports: ports.iter().map(port).collect(),
        triggered: TriggerTime::default(),
    }
}

/// A TCP packet. From somewhere else it comes in by `eth0`.
pub(crate) fn packet(from: &str, to: &str) -> Packet {
    let (from, to) = (ip(from), to.parse().unwrap());
    Packet { from, to, protocol: Protocol::Tcp, interface: Some("eth0".to_owned()) }
}
