use std::collections::BTreeMap;

use telaio_netlink::ipvs::{RealServer, VirtualServer};

use super::*;
use crate::config::{NodeFacts, ProxyConfig};
use crate::fixture::Fixture;
use crate::ipvs::state::Circumstances;
use crate::ipvs::types::{Scheduler, server_at};

const NODE: &str = "192.168.50.11";
const OUTSIDE: &str = "203.0.113.5";

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn around() -> Surroundings {
    Surroundings { addresses: [ip(NODE)].into() }
}

fn state(services: &[Fixture]) -> State {
    let services: Vec<_> = services.iter().map(Fixture::build).collect();
    let (config, node) = (ProxyConfig::default(), NodeFacts::default());
    let machine = &around().addresses;
    let scheduler = Scheduler::default();
    let circumstances = Circumstances { config: &config, node: &node, scheduler, machine };
    State::compile(&services.iter().collect::<Vec<_>>(), &circumstances)
}

/// With an endpoint here and one elsewhere, and the external policy Local.
fn local() -> State {
    let service = Fixture::new("web")
        .cluster_ip([10, 96, 0, 1])
        .load_balancer_ip([192, 0, 2, 1])
        .with(|it| it.external_traffic_to_local = true)
        .local([10, 244, 1, 1])
        .remote([10, 244, 2, 1]);
    state(&[service])
}

fn ask(state: &State, from: &str, to: &str) -> Trace {
    let interface = (from != NODE).then(|| "eth0".to_owned());
    let packet =
        Packet { from: ip(from), to: to.parse().unwrap(), protocol: Protocol::Tcp, interface };
    trace(&packet, &around(), state)
}

fn endpoints(answer: &Trace) -> Vec<String> {
    answer.endpoints.iter().map(ToString::to_string).collect()
}

fn endpoint(text: &str, weight: u32, method: Forwarding) -> RealServer {
    RealServer { address: text.parse().unwrap(), weight, method }
}

/// A server that the state gets besides.
fn add(state: &mut State, key: ServerKey, all: &[RealServer]) {
    let endpoints: BTreeMap<_, _> = all.iter().map(|it| (it.address, *it)).collect();
    let server = VirtualServer::new(key, "rr");
    state.servers.insert(key, ServerState { server, endpoints });
}

#[test]
fn what_has_a_mark_goes_to_the_server_of_that_mark() {
    let state = local();
    let outside = ask(&state, OUTSIDE, "192.0.2.1:80");
    assert_eq!(endpoints(&outside), ["10.244.1.1:8080"]);
    assert!(!outside.masquerade);
    assert!(outside.via.iter().any(|it| it.starts_with("virtual server FWM 65536")), "{outside:?}");
    let node = ask(&state, NODE, "192.0.2.1:80");
    assert_eq!(endpoints(&node), ["10.244.1.1:8080", "10.244.2.1:8080"]);
    assert!(node.masquerade);
    assert!(node.via.contains(&"virtual server TCP 192.0.2.1:80: rr".to_owned()), "{node:?}");
}

#[test]
fn the_way_is_told_in_the_order_in_which_it_was_taken() {
    let answer = ask(&local(), OUTSIDE, "192.0.2.1:80");
    let tables: Vec<&str> =
        answer.via.iter().map(|it| it.split(' ').next().unwrap_or_default()).collect();
    let mut once = tables.clone();
    once.dedup();
    assert_eq!(once, ["mangle", "filter", "virtual", "nat"]);
}

#[test]
fn an_undefined_port_is_refused_to_everybody() {
    let state = local();
    for from in [OUTSIDE, NODE] {
        assert_eq!(ask(&state, from, "10.96.0.1:81").verdict, Verdict::Reject, "{from}");
    }
    // That is nobody's address, and this is the node's.
    assert_eq!(ask(&state, OUTSIDE, "10.96.0.9:80").verdict, Verdict::None);
    assert_eq!(ask(&state, OUTSIDE, "192.168.50.11:80").verdict, Verdict::None);
}

#[test]
fn who_connects_from_the_node_has_the_address_that_it_connects_to() {
    let service = Fixture::new("web")
        .cluster_ip([10, 96, 0, 1])
        .load_balancer_ip([192, 0, 2, 1])
        .with(|it| it.source_ranges.push("192.0.2.0/24".parse().unwrap()))
        .remote([10, 244, 2, 1]);
    let state = state(&[service]);
    assert_eq!(ask(&state, NODE, "192.0.2.1:80").verdict, Verdict::Dnat);
    assert_eq!(ask(&state, OUTSIDE, "192.0.2.1:80").verdict, Verdict::Drop);
    // Without a source of their own, answers would go to the wrong machine.
    assert!(ask(&state, NODE, "10.96.0.1:80").masquerade);
}

#[test]
fn endpoints_without_weight_get_nothing_and_with_no_other_all_is_refused() {
    let mut state = local();
    let key = server_at(Protocol::Tcp, "192.168.50.11:7000".parse().unwrap());
    let resting = endpoint("10.0.0.1:1", 0, Forwarding::Nat);
    add(&mut state, key, &[resting, endpoint("10.0.0.2:2", 1, Forwarding::Nat)]);
    assert_eq!(endpoints(&ask(&state, OUTSIDE, "192.168.50.11:7000")), ["10.0.0.2:2"]);
    add(&mut state, key, &[resting]);
    let answer = ask(&state, OUTSIDE, "192.168.50.11:7000");
    assert_eq!((answer.verdict, endpoints(&answer).len()), (Verdict::Reject, 0));
}

#[test]
fn a_server_for_all_ports_takes_what_no_other_does() {
    let mut state = local();
    let any = server_at(Protocol::Tcp, "192.168.50.11:0".parse().unwrap());
    let one = server_at(Protocol::Tcp, "192.168.50.11:7000".parse().unwrap());
    add(&mut state, any, &[endpoint("10.0.0.1:0", 1, Forwarding::Nat)]);
    add(&mut state, one, &[endpoint("10.0.0.2:2", 1, Forwarding::Nat)]);
    assert_eq!(endpoints(&ask(&state, OUTSIDE, "192.168.50.11:7000")), ["10.0.0.2:2"]);
    assert_eq!(endpoints(&ask(&state, OUTSIDE, "192.168.50.11:7001")), ["10.0.0.1:7001"]);
}

#[test]
fn a_network_that_is_allowed_is_found_among_many() {
    let nets = ["10.0.0.0/8", "198.51.100.0/24", "203.0.113.4/31"];
    let service = |name: &str, last: u8| {
        let own = Fixture::new(name).cluster_ip([10, 96, 0, last]).remote([10, 244, 2, last]);
        let own = own.load_balancer_ip([192, 0, 2, last]);
        own.with(|it| it.source_ranges = nets.map(|net| net.parse().unwrap()).to_vec())
    };
    let mut last = service("last", 3);
    last = last.with(|it| it.source_ranges = vec!["198.51.100.0/24".parse().unwrap()]);
    let state = state(&[service("first", 1), service("second", 2), last]);
    for (to, verdict) in [
        ("192.0.2.1:80", Verdict::Dnat),
        ("192.0.2.2:80", Verdict::Dnat),
        ("192.0.2.3:80", Verdict::Drop),
    ] {
        assert_eq!(ask(&state, OUTSIDE, to).verdict, verdict, "{to}");
    }
}
