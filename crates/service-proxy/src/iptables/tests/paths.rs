//! What packets meet: each rule of what a service proxy must do, told by the tracer on our own rules.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use telaio_model::{Conditions, IpFamily, LocalEndpoint, Protocol, Scopes, ServiceEndpoints};

use super::super::{Ruleset, render, trace};
use crate::config::{DetectLocal, NodeFacts, NodePortAddresses, ProxyConfig};
use crate::fixture::Fixture;
use crate::trace::{Packet, Surroundings, Trace, Verdict};

const POD: &str = "10.244.1.9";
const OUTSIDE: &str = "203.0.113.5";
const NODE: &str = "198.18.0.1";
const NODE_OTHER_ADDRESS: &str = "198.19.0.1";
const LOCAL_ENDPOINT: &str = "10.244.1.2";
const REMOTE_ENDPOINT: &str = "10.244.2.2";

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// A node with rules for some services.
struct Node {
    rules: Ruleset,
    interface: Option<&'static str>,
}

fn config() -> ProxyConfig {
    let nets = ["10.244.0.0/16", "fd00:244::/32"].map(|net| net.parse().unwrap());
    ProxyConfig { detect_local: DetectLocal::ClusterCidr(nets.to_vec()), ..ProxyConfig::default() }
}

fn facts() -> NodeFacts {
    NodeFacts {
        addresses: [NODE, NODE_OTHER_ADDRESS, "fd00::1"].map(ip).to_vec(),
        ..NodeFacts::default()
    }
}

impl Node {
    fn with(services: &[ServiceEndpoints], config: &ProxyConfig) -> Self {
        let services = services.iter().map(|it| (it.service.key.clone(), it.clone())).collect();
        let text: String = IpFamily::ALL
            .iter()
            .map(|family| render(&services, &facts(), config, *family))
            .take(1)
            .collect();
        Self { rules: Ruleset::parse(&text), interface: None }
    }

    fn of(service: &Fixture) -> Self {
        Self::with(&[service.build()], &config())
    }

    fn trace(&self, from: &str, to: &str, protocol: Protocol) -> Trace {
        let packet = Packet {
            from: ip(from),
            to: to.parse().unwrap(),
            protocol,
            interface: self.interface.map(str::to_owned),
        };
        let addresses = facts().addresses.into_iter().collect();
        trace(&packet, &Surroundings { addresses }, &self.rules)
    }

    /// Asserts what becomes of a TCP packet: `"dnat A B masq"`, `"reject"`, `"drop"` or `"none"`, where
    /// endpoints are addresses with the port that fixtures have.
    #[track_caller]
    fn meets(&self, from: &str, to: &str, expected: &str) {
        self.meets_by(from, to, Protocol::Tcp, expected);
    }

    #[track_caller]
    fn meets_by(&self, from: &str, to: &str, protocol: Protocol, expected: &str) {
        let found = self.trace(from, to, protocol);
        let mut words = expected.split(' ');
        let verdict = match words.next() {
            Some("dnat") => Verdict::Dnat,
            Some("reject") => Verdict::Reject,
            Some("drop") => Verdict::Drop,
            _ => Verdict::None,
        };
        let (mut endpoints, mut masquerade) = (BTreeSet::new(), false);
        for word in words {
            if word == "masq" {
                masquerade = true;
            } else {
                endpoints.insert(SocketAddr::new(ip(word), 8080));
            }
        }
        let told = (found.verdict, &found.endpoints, found.masquerade);
        assert_eq!(told, (verdict, &endpoints, masquerade), "{from} → {to}: {:#?}", found.via);
    }
}

fn both() -> Fixture {
    Fixture::new("web")
        .cluster_ip(ip("10.96.0.1"))
        .local(ip(LOCAL_ENDPOINT))
        .remote(ip(REMOTE_ENDPOINT))
}

fn everywhere() -> Fixture {
    both()
        .node_port(30080)
        .load_balancer_ip(ip("192.0.2.7"))
        .with(|service| service.external_ips = vec![ip("192.0.2.8")])
}

const EXTERNAL: [&str; 3] = ["192.0.2.7:80", "192.0.2.8:80", "198.18.0.1:30080"];

#[test]
fn a_cluster_address_leads_to_every_endpoint() {
    let node = Node::of(&both());
    node.meets(POD, "10.96.0.1:80", "dnat 10.244.1.2 10.244.2.2");
    node.meets(POD, "10.96.0.1:81", "none");
    node.meets(POD, "10.96.0.2:80", "none");
    node.meets_by(POD, "10.96.0.1:80", Protocol::Udp, "none");
}

#[test]
fn who_does_not_come_from_a_pod_is_masqueraded_to_a_cluster_address() {
    let node = Node::of(&both());
    node.meets(OUTSIDE, "10.96.0.1:80", "dnat 10.244.1.2 10.244.2.2 masq");
    node.meets(NODE, "10.96.0.1:80", "dnat 10.244.1.2 10.244.2.2 masq");
}

#[test]
fn an_endpoint_that_calls_itself_is_masqueraded() {
    let node = Node::of(&both());
    node.meets(LOCAL_ENDPOINT, "10.96.0.1:80", "dnat 10.244.1.2 10.244.2.2 masq");
}

#[test]
fn masquerade_all_and_none_are_what_they_say() {
    let all = ProxyConfig { masquerade_all: true, ..config() };
    Node::with(&[both().build()], &all).meets(
        POD,
        "10.96.0.1:80",
        "dnat 10.244.1.2 10.244.2.2 masq",
    );
    let nowhere = ProxyConfig { detect_local: DetectLocal::Nowhere, ..config() };
    let node = Node::with(&[both().build()], &nowhere);
    node.meets(OUTSIDE, "10.96.0.1:80", "dnat 10.244.1.2 10.244.2.2");
}

#[test]
fn pods_are_told_by_networks_or_by_their_interface() {
    let cidrs = |nets: &[&str]| {
        DetectLocal::ClusterCidr(nets.iter().map(|net| net.parse().unwrap()).collect())
    };
    let two = ProxyConfig { detect_local: cidrs(&["10.244.0.0/17", "10.200.0.0/16"]), ..config() };
    let node = Node::with(&[both().build()], &two);
    node.meets(POD, "10.96.0.1:80", "dnat 10.244.1.2 10.244.2.2");
    node.meets("10.200.7.7", "10.96.0.1:80", "dnat 10.244.1.2 10.244.2.2");
    node.meets(OUTSIDE, "10.96.0.1:80", "dnat 10.244.1.2 10.244.2.2 masq");

    for detect_local in [
        DetectLocal::BridgeInterface("cni0".into()),
        DetectLocal::InterfaceNamePrefix("cni".into()),
    ] {
        let by_interface = ProxyConfig { detect_local, ..config() };
        let mut node = Node::with(&[both().build()], &by_interface);
        node.meets(POD, "10.96.0.1:80", "dnat 10.244.1.2 10.244.2.2 masq");
        node.interface = Some("eth0");
        node.meets(POD, "10.96.0.1:80", "dnat 10.244.1.2 10.244.2.2 masq");
        node.interface = Some("cni0");
        node.meets(POD, "10.96.0.1:80", "dnat 10.244.1.2 10.244.2.2");
        // Its local traffic goes to external addresses by the cluster's path, as a pod.
    }
}

#[test]
fn the_networks_of_the_node_decide_with_node_cidr() {
    let config = ProxyConfig { detect_local: DetectLocal::NodeCidr, ..config() };
    let facts = NodeFacts { pod_cidrs: vec!["10.244.1.0/24".parse().unwrap()], ..facts() };
    let services = [both().build()].map(|it| (it.service.key.clone(), it)).into();
    let rules = Ruleset::parse(&render(&services, &facts, &config, IpFamily::V4));
    let node = Node { rules, interface: None };
    node.meets(POD, "10.96.0.1:80", "dnat 10.244.1.2 10.244.2.2");
    node.meets("10.244.9.9", "10.96.0.1:80", "dnat 10.244.1.2 10.244.2.2 masq");
}

#[test]
fn external_addresses_with_policy_cluster_lead_everywhere_masqueraded() {
    let node = Node::of(&everywhere());
    for to in EXTERNAL {
        for from in [OUTSIDE, POD, NODE] {
            node.meets(from, to, "dnat 10.244.1.2 10.244.2.2 masq");
        }
    }
}

#[test]
fn policy_local_keeps_the_client_and_sends_pods_and_the_node_the_cluster_way() {
    let service = everywhere().with(|service| service.external_traffic_to_local = true);
    let node = Node::of(&service);
    for to in EXTERNAL {
        node.meets(OUTSIDE, to, "dnat 10.244.1.2");
        node.meets(POD, to, "dnat 10.244.1.2 10.244.2.2");
        node.meets(NODE, to, "dnat 10.244.1.2 10.244.2.2 masq");
    }
    node.meets(POD, "10.96.0.1:80", "dnat 10.244.1.2 10.244.2.2");
}

#[test]
fn policy_local_without_a_local_endpoint_drops_outsiders_only() {
    let service = Fixture::new("web")
        .cluster_ip(ip("10.96.0.1"))
        .node_port(30080)
        .load_balancer_ip(ip("192.0.2.7"))
        .with(|service| {
            service.external_ips = vec![ip("192.0.2.8")];
            service.external_traffic_to_local = true;
        })
        .remote(ip(REMOTE_ENDPOINT));
    let node = Node::of(&service);
    for to in EXTERNAL {
        node.meets(OUTSIDE, to, "drop");
        node.meets(POD, to, "dnat 10.244.2.2");
        node.meets(NODE, to, "dnat 10.244.2.2 masq");
    }
}

#[test]
fn internal_policy_local_stays_on_the_node_or_drops() {
    let local = both().with(|service| service.internal_traffic_to_local = true);
    Node::of(&local).meets(POD, "10.96.0.1:80", "dnat 10.244.1.2");
    let none = Fixture::new("web")
        .cluster_ip(ip("10.96.0.1"))
        .with(|service| service.internal_traffic_to_local = true)
        .remote(ip(REMOTE_ENDPOINT));
    let node = Node::of(&none);
    for from in [POD, NODE, OUTSIDE] {
        node.meets(from, "10.96.0.1:80", "drop");
    }
}

#[test]
fn without_any_endpoint_every_address_refuses() {
    let service = Fixture::new("web")
        .cluster_ip(ip("10.96.0.1"))
        .node_port(30080)
        .load_balancer_ip(ip("192.0.2.7"))
        .with(|service| service.external_ips = vec![ip("192.0.2.8")]);
    for etp in [false, true] {
        let node = Node::of(&service.clone().with(|it| it.external_traffic_to_local = etp));
        for to in EXTERNAL.into_iter().chain(["10.96.0.1:80"]) {
            for from in [OUTSIDE, POD, NODE] {
                node.meets(from, to, "reject");
            }
        }
    }
}

/// The brain puts serving endpoints that terminate into the sets when nobody is ready; a backend only
/// has to believe the sets.
#[test]
fn the_sets_of_the_view_decide_and_not_the_state_of_an_endpoint() {
    let mut entry = both().build();
    let change = |entry: &mut ServiceEndpoints, at: usize, change: fn(&mut LocalEndpoint)| {
        let mut endpoint = (*entry.endpoints[at]).clone();
        change(&mut endpoint);
        Arc::make_mut(&mut entry.endpoints)[at] = endpoint.into();
    };
    let terminating = |endpoint: &mut LocalEndpoint| {
        endpoint.conditions = Conditions { ready: false, serving: true, terminating: true };
    };
    change(&mut entry, 0, terminating);
    change(&mut entry, 1, terminating);
    let node = Node::with(&[entry.clone()], &config());
    node.meets(POD, "10.96.0.1:80", "dnat 10.244.1.2 10.244.2.2");
    // One that stands in no set gets nothing.
    change(&mut entry, 0, |endpoint| endpoint.ports[0].scopes = Scopes::NONE);
    Node::with(&[entry], &config()).meets(POD, "10.96.0.1:80", "dnat 10.244.2.2");
}

#[test]
fn source_ranges_guard_load_balancer_addresses_and_nothing_else() {
    let service = everywhere().with(|service| {
        service.source_ranges = vec!["203.0.113.0/24".parse().unwrap()];
    });
    let node = Node::of(&service);
    node.meets(OUTSIDE, "192.0.2.7:80", "dnat 10.244.1.2 10.244.2.2 masq");
    for from in ["8.8.8.8", POD, NODE] {
        node.meets(from, "192.0.2.7:80", "drop");
        node.meets(from, "192.0.2.8:80", "dnat 10.244.1.2 10.244.2.2 masq");
        node.meets(from, "198.18.0.1:30080", "dnat 10.244.1.2 10.244.2.2 masq");
    }
    let open = service.with(|service| service.source_ranges = vec!["0.0.0.0/0".parse().unwrap()]);
    Node::of(&open).meets("8.8.8.8", "192.0.2.7:80", "dnat 10.244.1.2 10.244.2.2 masq");
}

#[test]
fn a_node_within_the_source_ranges_may_come_from_the_load_balancers_address() {
    let service = everywhere().with(|service| {
        service.source_ranges = vec!["198.18.0.0/24".parse().unwrap()];
    });
    let node = Node::of(&service);
    node.meets("192.0.2.7", "192.0.2.7:80", "dnat 10.244.1.2 10.244.2.2 masq");
    node.meets(NODE, "192.0.2.7:80", "dnat 10.244.1.2 10.244.2.2 masq");
    node.meets("8.8.8.8", "192.0.2.7:80", "drop");
}

#[test]
fn node_ports_answer_on_the_addresses_that_the_operator_names() {
    let addresses = |node_port_addresses, localhost_node_ports| {
        let config = ProxyConfig { node_port_addresses, localhost_node_ports, ..config() };
        let nobody = Fixture::new("nobody").cluster_ip(ip("10.96.0.9")).node_port(30081);
        Node::with(&[everywhere().build(), nobody.build()], &config)
    };
    let served = "dnat 10.244.1.2 10.244.2.2 masq";
    let within = NodePortAddresses::Within(vec!["198.18.0.0/16".parse().unwrap()]);
    let check = |node: &Node, first: bool, second: bool, localhost: bool| {
        for (from, to, serves) in [
            (OUTSIDE, NODE, first),
            (OUTSIDE, NODE_OTHER_ADDRESS, second),
            ("127.0.0.1", "127.0.0.1", localhost),
        ] {
            node.meets(from, &format!("{to}:30080"), if serves { served } else { "none" });
            node.meets(from, &format!("{to}:30081"), if serves { "reject" } else { "none" });
        }
    };
    check(&addresses(NodePortAddresses::All, true), true, true, true);
    check(&addresses(NodePortAddresses::All, false), true, true, false);
    check(&addresses(within.clone(), false), true, false, false);
    check(&addresses(within, true), true, false, true);
    check(&addresses(NodePortAddresses::Primary, false), true, false, false);
    let none = NodePortAddresses::Within(vec!["fd00::/8".parse().unwrap()]);
    check(&addresses(none, false), false, false, false);
    let loopback = NodePortAddresses::Within(vec!["127.0.0.0/8".parse().unwrap()]);
    check(&addresses(loopback, false), false, false, false);
    // A service's own address is not the node's.
    addresses(NodePortAddresses::All, true).meets(POD, "10.96.0.1:30080", "none");
}

#[test]
fn others_cannot_reach_the_loopback_network() {
    let node = Node::of(&everywhere());
    node.meets(OUTSIDE, "127.0.0.1:22", "drop");
    node.meets("127.0.0.1", "127.0.0.1:22", "none");
}

#[test]
fn affinity_keeps_every_endpoint_in_reach() {
    let node = Node::of(&both().sticky(600));
    node.meets(POD, "10.96.0.1:80", "dnat 10.244.1.2 10.244.2.2");
    let via = node.trace(POD, "10.96.0.1:80", Protocol::Tcp).via.join("\n");
    assert!(via.contains("--rcheck --seconds 600 --reap"), "{via}");
}

#[test]
fn every_way_of_taking_turns_reaches_every_endpoint() {
    for balance in ["random", "round-robin", "source-hash", "nonsense"] {
        let service = both().weight(3).balance(balance);
        Node::of(&service).meets(POD, "10.96.0.1:80", "dnat 10.244.1.2 10.244.2.2");
    }
}

#[test]
fn udp_and_sctp_are_served_like_tcp() {
    for protocol in [Protocol::Udp, Protocol::Sctp] {
        let node = Node::of(&everywhere().protocol(protocol));
        node.meets_by(POD, "10.96.0.1:80", protocol, "dnat 10.244.1.2 10.244.2.2");
        node.meets_by(OUTSIDE, "198.18.0.1:30080", protocol, "dnat 10.244.1.2 10.244.2.2 masq");
        node.meets(POD, "10.96.0.1:80", "none");
    }
}

#[test]
fn each_family_has_its_own_endpoints() {
    let service = both().cluster_ip(ip("fd00:96::1")).local(ip("fd00:244::2")).node_port(30080);
    let services = [service.build()].map(|it| (it.service.key.clone(), it)).into();
    let text = render(&services, &facts(), &config(), IpFamily::V6);
    let node = Node { rules: Ruleset::parse(&text), interface: None };
    node.meets("fd00:244::9", "[fd00:96::1]:80", "dnat fd00:244::2");
    node.meets("2001:db8::1", "[fd00:96::1]:80", "dnat fd00:244::2 masq");
    node.meets("2001:db8::1", "[fd00::1]:30080", "dnat fd00:244::2 masq");
    // Its kernel cannot route from loopback.
    node.meets("::1", "[::1]:30080", "none");
    assert!(!text.contains("10.96.0.1"), "{text}");
}

#[test]
fn a_load_balancer_may_ask_for_the_health_of_a_local_service() {
    let service = everywhere().with(|service| {
        service.external_traffic_to_local = true;
        service.health_check_node_port = Some(32000);
    });
    let found = Node::of(&service).trace(OUTSIDE, "198.18.0.1:32000", Protocol::Tcp);
    assert_eq!(found.verdict, Verdict::None);
    assert!(found.via.iter().any(|it| it.ends_with("--dport 32000 -j ACCEPT")), "{:?}", found.via);
}

#[test]
fn the_bit_of_the_mark_is_the_operators() {
    let config = ProxyConfig { masquerade_bit: 5, ..config() };
    let node = Node::with(&[both().build()], &config);
    node.meets(OUTSIDE, "10.96.0.1:80", "dnat 10.244.1.2 10.244.2.2 masq");
    let via = node.trace(OUTSIDE, "10.96.0.1:80", Protocol::Tcp).via.join("\n");
    assert!(via.contains("--set-xmark 0x20/0x20") && !via.contains("0x4000"), "{via}");
}
