//! Where endpoints of an overlay are, and what they are told apart by.

use std::net::IpAddr;
use std::sync::Arc;

use telaio_hcn::{Guid, RemoteSubnetRoute};

use super::{Nodes, Overlay, RemoteEndpoint, remote_mac};

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn route(prefix: &str, provider: &str) -> RemoteSubnetRoute {
    RemoteSubnetRoute {
        destination_prefix: prefix.parse().unwrap(),
        isolation_id: 4096,
        provider_address: ip(provider),
        distributed_router_mac_address: None,
    }
}

#[test]
fn an_address_is_behind_the_node_of_the_nearest_route_then_of_its_node_object_then_outside() {
    let overlay = Overlay {
        source_vips: Vec::new(),
        management: ip("192.0.2.1"),
        own: vec![ip("192.0.2.1")],
        host_mac: None,
        routes: vec![route("10.244.0.0/16", "192.0.2.2"), route("10.244.3.0/24", "192.0.2.3")],
    };
    let node: Arc<str> = "b".into();
    let nodes = Nodes::from([(Arc::clone(&node), vec![ip("fd00::4"), ip("192.0.2.4")])]);
    let cases = [
        ("10.244.3.9", None, "192.0.2.3", false),
        ("10.244.9.9", Some(&node), "192.0.2.2", false),
        // No route, but a node that the cluster knows.
        ("10.245.1.1", Some(&node), "192.0.2.4", false),
        // A node's own address: of a pod on the host's network.
        ("192.0.2.4", Some(&node), "192.0.2.4", true),
        ("192.0.2.3", None, "192.0.2.3", true),
        // Nobody knows.
        ("203.0.113.5", None, "192.0.2.1", true),
    ];
    for (address, node, provider, outside) in cases {
        let found = overlay.provider_of(ip(address), node, &nodes);
        assert_eq!((found.address, found.outside), (ip(provider), outside), "{address}");
    }
}

#[test]
fn an_endpoint_that_is_otherwise_than_ours_are_is_not_taken_for_one() {
    let network = Guid::from_bytes([7; 16]);
    let address = ip("10.244.3.9");
    let ours = RemoteEndpoint { provider: Some(ip("192.0.2.3")), mac: Some(remote_mac(address)) };
    let document = ours.document(network, address);
    assert_eq!(RemoteEndpoint::of(&document), Some(ours));
    let mut local = document.clone();
    local.flags = telaio_hcn::EndpointFlags::NONE;
    assert_eq!(RemoteEndpoint::of(&local), None);
    let mut two = document.clone();
    two.ip_configurations.extend(document.ip_configurations.clone());
    assert_eq!(RemoteEndpoint::of(&two), None);
}

#[test]
fn ethernet_addresses_differ_where_addresses_do() {
    assert_eq!(remote_mac(ip("10.244.3.9")).to_string(), "02-11-0A-F4-03-09");
    assert_ne!(remote_mac(ip("fd00:1::9")), remote_mac(ip("fd00:2::9")));
}
