//! What packets meet, asked of the compiled rules.

use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use telaio_model::{Protocol, ServiceEndpoints};

use super::desired::Desired;
use super::render::render;
use super::trace::{Items, trace};
use crate::config::{DetectLocal, NodeFacts, NodePortAddresses, ProxyConfig};
use crate::fixture::Fixture;
use crate::options::LocalhostPorts;
use crate::trace::{Packet, Surroundings, Verdict};

const POD: &str = "10.244.0.7";
const NODE: &str = "192.168.0.1";
const OUTSIDE: &str = "203.0.113.9";

fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

fn config() -> ProxyConfig {
    ProxyConfig {
        detect_local: DetectLocal::ClusterCidr(vec![net("10.244.0.0/16"), net("fd00:244::/56")]),
        service_cidrs: vec![net("10.96.0.0/16")],
        ..ProxyConfig::default()
    }
}

struct Table(Items);

impl Table {
    fn new(config: ProxyConfig, services: &[ServiceEndpoints]) -> Self {
        let node = NodeFacts {
            addresses: vec![NODE.parse().unwrap(), "fd00::1".parse().unwrap()],
            ..NodeFacts::default()
        };
        let ports = LocalhostPorts { v4: Some(4000), v6: Some(4001), routed: true };
        let mut desired = Desired::new(Arc::new(config), node, ports);
        for service in services {
            desired.set_service(&service.service.key, Some(service.clone()));
        }
        Self(desired.items())
    }

    fn of(services: &[ServiceEndpoints]) -> Self {
        Self::new(config(), services)
    }

    /// The verdict, the endpoints and whether it is masqueraded, in a line.
    fn ask(&self, from: &str, to: &str) -> String {
        self.ask_packet(from, to, Protocol::Tcp, None)
    }

    fn ask_packet(&self, from: &str, to: &str, protocol: Protocol, iface: Option<&str>) -> String {
        let packet = Packet {
            from: from.parse().unwrap(),
            to: to.parse().unwrap(),
            protocol,
            interface: iface.map(str::to_owned),
        };
        let own: [IpAddr; 3] =
            [NODE.parse().unwrap(), "192.168.0.2".parse().unwrap(), "fd00::1".parse().unwrap()];
        let around = Surroundings { addresses: own.into_iter().collect() };
        let answer = trace(&packet, &around, &self.0);
        let endpoints: Vec<String> = answer.endpoints.iter().map(ToString::to_string).collect();
        let masquerade = if answer.masquerade { " masqueraded" } else { "" };
        match answer.verdict {
            Verdict::Dnat => format!("{}{masquerade}", endpoints.join(" ")),
            other => format!("{other:?}").to_lowercase(),
        }
    }
}

fn two() -> Fixture {
    Fixture::new("web").cluster_ip([10, 96, 0, 1]).local([10, 244, 0, 1]).remote([10, 244, 1, 1])
}

const BOTH: &str = "10.244.0.1:8080 10.244.1.1:8080";
const BOTH_MASQUERADED: &str = "10.244.0.1:8080 10.244.1.1:8080 masqueraded";

#[test]
fn a_cluster_address_serves_pods_as_they_are_and_masquerades_others() {
    let table = Table::of(&[two().build()]);
    assert_eq!(table.ask(POD, "10.96.0.1:80"), BOTH);
    assert_eq!(table.ask(NODE, "10.96.0.1:80"), BOTH_MASQUERADED);
    assert_eq!(table.ask(OUTSIDE, "10.96.0.1:80"), BOTH_MASQUERADED);
}

#[test]
fn masquerade_all_covers_pods_too() {
    let table = Table::new(ProxyConfig { masquerade_all: true, ..config() }, &[two().build()]);
    assert_eq!(table.ask(POD, "10.96.0.1:80"), BOTH_MASQUERADED);
}

#[test]
fn without_a_way_to_tell_pods_nobody_is_masqueraded_at_a_cluster_address() {
    let nowhere = ProxyConfig { detect_local: DetectLocal::Nowhere, ..config() };
    let table = Table::new(nowhere, &[two().build()]);
    assert_eq!(table.ask(OUTSIDE, "10.96.0.1:80"), BOTH);
}

#[test]
fn pods_are_told_by_their_interface_where_that_is_asked_for() {
    let by = |detect_local| Table::new(ProxyConfig { detect_local, ..config() }, &[two().build()]);
    let ask =
        |table: &Table, iface| table.ask_packet(POD, "10.96.0.1:80", Protocol::Tcp, Some(iface));
    let bridge = by(DetectLocal::BridgeInterface("cni0".into()));
    assert_eq!(ask(&bridge, "cni0"), BOTH);
    assert_eq!(ask(&bridge, "cni01"), BOTH_MASQUERADED);
    let prefix = by(DetectLocal::InterfaceNamePrefix("veth".into()));
    assert_eq!(ask(&prefix, "veth12"), BOTH);
    assert_eq!(ask(&prefix, "eth0"), BOTH_MASQUERADED);
}

#[test]
fn an_endpoint_that_reaches_itself_is_masqueraded() {
    let table =
        Table::of(&[Fixture::new("one").cluster_ip([10, 96, 0, 1]).local([10, 244, 0, 1]).build()]);
    assert_eq!(table.ask("10.244.0.1", "10.96.0.1:80"), "10.244.0.1:8080 masqueraded");
}

#[test]
fn nobody_anywhere_is_a_reject_and_nobody_here_a_drop() {
    let nobody = Fixture::new("nobody").cluster_ip([10, 96, 0, 2]).node_port(30002).build();
    let elsewhere = Fixture::new("elsewhere")
        .cluster_ip([10, 96, 0, 3])
        .with(|service| service.internal_traffic_to_local = true)
        .remote([10, 244, 1, 1])
        .build();
    let table = Table::of(&[nobody, elsewhere]);
    assert_eq!(table.ask(POD, "10.96.0.2:80"), "reject");
    assert_eq!(table.ask(OUTSIDE, &format!("{NODE}:30002")), "reject");
    assert_eq!(table.ask(POD, "10.96.0.3:80"), "drop");
}

#[test]
fn an_unknown_port_is_rejected_and_an_unknown_cluster_address_dropped() {
    let table = Table::of(&[two().build()]);
    assert_eq!(table.ask(POD, "10.96.0.1:81"), "reject");
    assert_eq!(table.ask_packet(POD, "10.96.0.1:80", Protocol::Udp, None), "reject");
    assert_eq!(table.ask(POD, "10.96.7.7:80"), "drop");
    assert_eq!(table.ask(POD, "198.51.100.1:80"), "none");
}

#[test]
fn a_node_port_is_served_on_the_nodes_addresses_only_and_masqueraded() {
    let table = Table::of(&[two().node_port(30001).build()]);
    assert_eq!(table.ask(OUTSIDE, &format!("{NODE}:30001")), BOTH_MASQUERADED);
    assert_eq!(table.ask(OUTSIDE, "192.168.0.2:30001"), BOTH_MASQUERADED);
    assert_eq!(table.ask(OUTSIDE, "192.168.0.9:30001"), "none");
    assert_eq!(table.ask(NODE, "127.0.0.1:30001"), BOTH_MASQUERADED);
    assert_eq!(table.ask("127.0.0.1", "127.0.0.1:30001"), BOTH_MASQUERADED);
}

#[test]
fn node_port_addresses_can_be_limited() {
    let within = |addresses| {
        let config = ProxyConfig { node_port_addresses: addresses, ..config() };
        Table::new(config, &[two().node_port(30001).build()])
    };
    let one = within(NodePortAddresses::Within(vec![net("192.168.0.2/32")]));
    assert_eq!(one.ask(OUTSIDE, "192.168.0.2:30001"), BOTH_MASQUERADED);
    assert_eq!(one.ask(OUTSIDE, &format!("{NODE}:30001")), "none");
    let primary = within(NodePortAddresses::Primary);
    assert_eq!(primary.ask(OUTSIDE, &format!("{NODE}:30001")), BOTH_MASQUERADED);
    assert_eq!(primary.ask(OUTSIDE, "192.168.0.2:30001"), "none");
}

#[test]
fn node_ports_can_be_served_on_loopback_alone() {
    let config = ProxyConfig { node_port_addresses: NodePortAddresses::Within(vec![]), ..config() };
    let table = Table::new(config, &[two().node_port(30001).build()]);
    assert_eq!(table.ask("127.0.0.1", "127.0.0.1:30001"), BOTH_MASQUERADED);
    assert_eq!(table.ask(OUTSIDE, &format!("{NODE}:30001")), "none");
    assert_eq!(table.ask(NODE, &format!("{NODE}:30001")), "none");
}

#[test]
fn an_external_policy_local_keeps_the_clients_address_and_serves_the_node_from_everywhere() {
    let local = two()
        .load_balancer_ip([198, 51, 100, 1])
        .node_port(30001)
        .with(|service| service.external_traffic_to_local = true);
    let table = Table::of(&[local.build()]);
    for to in ["198.51.100.1:80", "192.168.0.1:30001"] {
        assert_eq!(table.ask(OUTSIDE, to), "10.244.0.1:8080", "{to}");
        assert_eq!(table.ask(POD, to), BOTH, "{to}");
        assert_eq!(table.ask(NODE, to), BOTH_MASQUERADED, "{to}");
    }
    let remote_only = Fixture::new("remote")
        .cluster_ip([10, 96, 0, 4])
        .load_balancer_ip([198, 51, 100, 4])
        .with(|service| service.external_traffic_to_local = true)
        .remote([10, 244, 1, 1]);
    let table = Table::of(&[remote_only.build()]);
    assert_eq!(table.ask(OUTSIDE, "198.51.100.4:80"), "drop");
    assert_eq!(table.ask(POD, "198.51.100.4:80"), "10.244.1.1:8080");
    assert_eq!(table.ask(POD, "10.96.0.4:80"), "10.244.1.1:8080");
}

#[test]
fn source_ranges_limit_load_balancer_addresses_and_nothing_else() {
    let limited = two()
        .load_balancer_ip([198, 51, 100, 1])
        .node_port(30001)
        .with(|service| service.source_ranges = vec![net("203.0.113.0/28"), net("fd00::/8")]);
    let table = Table::of(&[limited.build()]);
    assert_eq!(table.ask(OUTSIDE, "198.51.100.1:80"), BOTH_MASQUERADED);
    assert_eq!(table.ask("203.0.113.99", "198.51.100.1:80"), "drop");
    assert_eq!(table.ask(POD, "198.51.100.1:80"), "drop");
    assert_eq!(table.ask("203.0.113.99", &format!("{NODE}:30001")), BOTH_MASQUERADED);
    assert_eq!(table.ask(POD, "10.96.0.1:80"), BOTH);
}

#[test]
fn whoever_allows_the_node_allows_its_traffic_that_comes_back_from_the_address() {
    let limited = two()
        .load_balancer_ip([198, 51, 100, 1])
        .with(|service| service.source_ranges = vec![net("192.168.0.0/24")]);
    let table = Table::of(&[limited.build()]);
    let looped = Some("eth0");
    assert_eq!(
        table.ask_packet("198.51.100.1", "198.51.100.1:80", Protocol::Tcp, looped),
        BOTH_MASQUERADED
    );
}

#[test]
fn every_way_to_balance_reaches_every_endpoint_it_should() {
    for balance in ["random", "round-robin", "nonsense"] {
        let table = Table::of(&[two().balance(balance).build()]);
        assert_eq!(table.ask(POD, "10.96.0.1:80"), BOTH, "{balance}");
    }
    let table = Table::of(&[two().sticky(60).node_port(30001).build()]);
    assert_eq!(table.ask(POD, "10.96.0.1:80"), BOTH);
    assert_eq!(table.ask(OUTSIDE, &format!("{NODE}:30001")), BOTH_MASQUERADED);
}

#[test]
fn a_hashed_client_always_has_one_endpoint_and_clients_together_have_all() {
    let table = Table::of(&[two().balance("source-hash").build()]);
    let mut seen = std::collections::BTreeSet::new();
    for last in 1..=40 {
        let endpoint = table.ask(&format!("10.244.9.{last}"), "10.96.0.1:80");
        assert_eq!(endpoint.split(' ').count(), 1, "{endpoint}");
        seen.insert(endpoint);
    }
    assert_eq!(seen.into_iter().collect::<Vec<_>>().join(" "), BOTH);
}

#[test]
fn ipv6_and_sctp_are_served_alike() {
    let six = Fixture::new("six")
        .cluster_ip([0xfd00, 0x96, 0, 0, 0, 0, 0, 1])
        .protocol(Protocol::Sctp)
        .node_port(30006)
        .remote([0xfd00, 0x244, 1, 0, 0, 0, 0, 1])
        .build();
    let table = Table::of(&[six]);
    let ask = |from: &str, to: &str| table.ask_packet(from, to, Protocol::Sctp, None);
    assert_eq!(ask("fd00:244::7", "[fd00:96::1]:80"), "[fd00:244:1::1]:8080");
    assert_eq!(ask("2001:db8::9", "[fd00::1]:30006"), "[fd00:244:1::1]:8080 masqueraded");
    assert_eq!(table.ask("2001:db8::9", "[fd00::1]:30006"), "none");
}

#[test]
fn two_services_that_claim_one_address_do_not_mix() {
    let first = two().build();
    let second = Fixture::new("zweite").cluster_ip([10, 96, 0, 1]).remote([10, 244, 9, 9]).build();
    let table = Table::of(&[first, second]);
    assert_eq!(table.ask(POD, "10.96.0.1:80"), BOTH);
}

#[test]
fn the_same_services_print_the_same_text() {
    let services = [two().node_port(30001).sticky(60).build()];
    let text = || render(&Table::of(&services).0, &[telaio_model::IpFamily::V4]);
    assert_eq!(text(), text());
    for expected in ["table ip telaio {", "10.96.0.1 . tcp . 80 : 0x", "jump services"] {
        assert!(text().contains(expected), "{}", text());
    }
}
