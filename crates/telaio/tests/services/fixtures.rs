//! The services that the expectations are about, all loaded at once.

use telaio_testkit::netns::Family;

use crate::manifest::Service;

/// The number of a cluster address that no service has.
pub(crate) const UNALLOCATED: u8 = 250;

/// Networks with the client `outside` in them and the client `stranger` not.
pub(crate) const RANGES: &str = "203.0.113.0/28, \"2001:db8:113::/124\"";

/// All of them. Numbers follow from the order.
pub(crate) fn all() -> Vec<Service> {
    let mut number = 0;
    let mut new = |name: &str| {
        number += 1;
        Service::new(name, number)
    };
    vec![
        new("cluster").endpoints("a1 b1"),
        new("node-port").node_port().endpoints("a1 b1"),
        new("balancer").load_balancer().endpoints("a1 b1"),
        new("external").external_ips().endpoints("a1 b1"),
        new("everything").load_balancer().external_ips().endpoints("a1 a2 b1 b2"),
        new("ranges").load_balancer().source_ranges(RANGES).endpoints("a1 b1"),
        new("ranges-all").load_balancer().source_ranges("0.0.0.0/0, \"::/0\"").endpoints("a1"),
        new("ranges-local")
            .load_balancer()
            .external_local()
            .source_ranges(RANGES)
            .endpoints("a1 b1"),
        new("balancer-proxy").proxying_load_balancer().endpoints("a1"),
        // External policy Local: with an endpoint here, only elsewhere, nowhere.
        new("etp-local").load_balancer().external_ips().external_local().endpoints("a1 b1"),
        new("etp-local-here").load_balancer().external_local().endpoints("a1"),
        new("etp-local-remote").load_balancer().external_ips().external_local().endpoints("b1"),
        new("etp-local-none").load_balancer().external_ips().external_local(),
        new("etp-local-node-port").node_port().external_local().endpoints("a2 b1"),
        // Internal policy Local, likewise.
        new("itp-local").internal_local().endpoints("a1 b1"),
        new("itp-local-remote").internal_local().endpoints("b1"),
        new("itp-local-none").internal_local(),
        new("itp-local-node-port").node_port().internal_local().endpoints("b1"),
        new("both-local").load_balancer().internal_local().external_local().endpoints("a1 b1"),
        new("none").load_balancer().external_ips(),
        // Who is on the way out, or not there yet.
        new("terminating").load_balancer().endpoints("a1:terminating b1:terminating"),
        new("one-terminating").load_balancer().endpoints("a1:terminating b1"),
        new("one-not-ready").node_port().endpoints("a1:not-ready b1"),
        new("not-ready").node_port().endpoints("a1:not-ready b1:not-ready"),
        new("gone").node_port().endpoints("a1:gone"),
        new("etp-local-terminating")
            .load_balancer()
            .external_local()
            .endpoints("a1:terminating b1"),
        new("etp-local-not-ready").load_balancer().external_local().endpoints("a1:not-ready b1"),
        new("itp-local-terminating").internal_local().endpoints("a1:terminating b1"),
        // Topology: node-a is in zone east.
        new("zone-hints").endpoints("a1:zone=east b1:zone=west"),
        new("zone-hints-not-all").endpoints("a1:zone=east b1"),
        new("zone-hints-elsewhere").endpoints("a1:zone=north b1:zone=west"),
        new("node-hints").endpoints("a1:node=node-a a2:node=node-b b1:node=node-b"),
        // What is not served at all.
        new("another-proxy")
            .label("service.kubernetes.io/service-proxy-name: another")
            .endpoints("a1"),
        // In the host's own network.
        new("host-network").node_port().endpoints("node-a"),
        new("host-network-remote").node_port().endpoints("node-b"),
        new("only-ipv4").only(Family::V4).node_port().endpoints("a1"),
        new("only-ipv6").only(Family::V6).node_port().endpoints("a1"),
        new("only-tcp").protocols(&["TCP"]).node_port().endpoints("a1"),
        new("other-port").endpoints("a1:port=9000 a2 b1:port=9000"),
        new("affine").affinity(100).node_port().endpoints("a1"),
    ]
}

#[test]
fn every_fixture_is_read_without_a_problem() {
    let manifests = crate::support::Manifests::empty();
    manifests.write("nodes.yaml", &crate::manifest::nodes_yaml());
    for service in all() {
        manifests.write(&format!("{}.yaml", service.name), &service.yaml());
    }
    let ended = crate::support::run_args(["render", &manifests.source(), "--node=node-a"]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.stdout.contains("name: etp-local-remote"), "{}", ended.stdout);
}
