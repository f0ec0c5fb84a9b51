//! The decision on plain values; the rest with real flows in a namespace.

use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};

use telaio_netlink::conntrack::{STATUS_DESTINATION_NAT, TCP, Tuple};

use super::*;
use crate::companions::place::Place;
use crate::plan::{Frontend, Place as Where};

const TIME_MAX: Duration = Duration::from_secs(20);

fn key(name: &str) -> ObjectKey {
    ObjectKey::new("shop", name)
}

fn address(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

/// A port that answers on these addresses, and on a node port where the address is `*`.
fn port(frontends: &[&str], serving: &[&str]) -> UdpPort {
    let frontend = |text: &&str| {
        if let Some(port) = text.strip_prefix("*:") {
            return Frontend { place: Where::NodePort, port: port.parse().unwrap() };
        }
        let at = address(text);
        Frontend { place: Where::ClusterIp(at.ip()), port: at.port() }
    };
    let v6 = frontends.iter().chain(serving).any(|text| text.starts_with('['));
    let serving = serving.iter().map(|text| address(text)).map(|at| (at.ip(), at.port()));
    UdpPort {
        family: if v6 { IpFamily::V6 } else { IpFamily::V4 },
        frontends: frontends.iter().map(frontend).collect(),
        serving: serving.collect(),
    }
}

/// A flow to `to` that `by` answers. Destinations that differ are changed ones.
fn flow(to: &str, by: &str) -> Flow {
    let (client, to, by) = (address("10.9.9.9:40000"), address(to), address(by));
    let tuple = |source, destination| Tuple { source, destination, protocol: UDP };
    let status = if to == by { 0 } else { STATUS_DESTINATION_NAT };
    let (original, reply) = (tuple(client, to), tuple(by, client));
    Flow { original, reply, status, zone: 0, id: None, tcp_state: None }
}

fn judge(frontends: &Frontends, flow: &Flow) -> Verdict {
    frontends.judge(flow, |ip| ip == address("192.0.2.1:0").ip())
}

fn frontends(services: &[(&str, UdpPort)]) -> Frontends {
    let mut frontends = Frontends::default();
    for (name, port) in services {
        frontends.set(key(name), vec![port.clone()]);
    }
    frontends
}

#[test]
fn a_flow_is_alive_while_its_endpoint_serves() {
    let dns = frontends(&[("dns", port(&["10.0.0.10:53"], &["10.1.0.1:5353"]))]);
    for (to, by, verdict) in [
        ("10.0.0.10:53", "10.1.0.1:5353", Verdict::Alive),
        ("10.0.0.10:53", "10.1.0.2:5353", Verdict::Stale),
        // The pod is the same, but serves on another port now.
        ("10.0.0.10:53", "10.1.0.1:53", Verdict::Stale),
        // Began when nobody served.
        ("10.0.0.10:53", "10.0.0.10:53", Verdict::Stale),
        ("10.0.0.10:54", "10.1.0.2:5353", Verdict::NotOurs),
        ("10.0.0.11:53", "10.1.0.2:5353", Verdict::NotOurs),
        ("10.1.0.1:5353", "10.1.0.1:5353", Verdict::NotOurs),
    ] {
        assert_eq!(judge(&dns, &flow(to, by)), verdict, "{to} by {by}");
    }
    let mut tcp = flow("10.0.0.10:53", "10.1.0.2:5353");
    tcp.original.protocol = TCP;
    assert_eq!(judge(&dns, &tcp), Verdict::NotOurs);
}

#[test]
fn without_endpoints_every_flow_is_stale() {
    let dns = frontends(&[("dns", port(&["10.0.0.10:53"], &[]))]);
    assert_eq!(judge(&dns, &flow("10.0.0.10:53", "10.1.0.1:5353")), Verdict::Stale);
}

#[test]
fn a_node_port_is_ours_only_on_the_machine_s_addresses() {
    let dns = frontends(&[("dns", port(&["10.0.0.10:53", "*:30053"], &["10.1.0.1:5353"]))]);
    for (to, by, verdict) in [
        ("192.0.2.1:30053", "10.1.0.1:5353", Verdict::Alive),
        ("192.0.2.1:30053", "10.1.0.2:5353", Verdict::Stale),
        ("192.0.2.1:30053", "192.0.2.1:30053", Verdict::Stale),
        ("198.51.100.1:30053", "198.51.100.1:30053", Verdict::NotOurs),
        ("198.51.100.1:30053", "10.1.0.2:5353", Verdict::NotOurs),
    ] {
        assert_eq!(judge(&dns, &flow(to, by)), verdict, "{to} by {by}");
    }
}

#[test]
fn two_services_on_one_address_do_not_end_each_other_s_flows() {
    let mut both = frontends(&[
        ("one", port(&["10.0.0.10:53"], &["10.1.0.1:53"])),
        ("two", port(&["10.0.0.10:53"], &["10.1.0.2:53"])),
    ]);
    assert_eq!(judge(&both, &flow("10.0.0.10:53", "10.1.0.1:53")), Verdict::Alive);
    both.set(key("one"), Vec::new());
    assert_eq!(judge(&both, &flow("10.0.0.10:53", "10.1.0.1:53")), Verdict::Stale);
    assert_eq!(judge(&both, &flow("10.0.0.10:53", "10.1.0.2:53")), Verdict::Alive);
}

#[test]
fn an_address_that_a_service_left_is_looked_at_once_more() {
    let mut dns = frontends(&[("dns", port(&["10.0.0.10:53"], &["10.1.0.1:53"]))]);
    dns.passed();
    dns.set(key("dns"), Vec::new());
    assert!(dns.needs_pass());
    assert_eq!(dns.families(), BTreeSet::from([IpFamily::V4]));
    assert_eq!(judge(&dns, &flow("10.0.0.10:53", "10.1.0.1:53")), Verdict::Stale);
    // Nobody changed its destination: it is no service's flow.
    assert_eq!(judge(&dns, &flow("10.0.0.10:53", "10.0.0.10:53")), Verdict::NotOurs);
    dns.passed();
    assert_eq!(judge(&dns, &flow("10.0.0.10:53", "10.1.0.1:53")), Verdict::NotOurs);
}

#[test]
fn only_what_can_make_a_flow_stale_needs_a_pass() {
    let with = |serving: &[&str]| port(&["10.0.0.10:53"], serving);
    let after = |before: UdpPort, now: Vec<UdpPort>| {
        let mut dns = frontends(&[("dns", before)]);
        assert!(dns.needs_pass());
        dns.passed();
        dns.set(key("dns"), now);
        dns.needs_pass()
    };
    let (none, one, two) =
        (with(&[]), with(&["10.1.0.1:53"]), with(&["10.1.0.1:53", "10.1.0.2:53"]));
    assert!(!after(one.clone(), vec![one.clone()]), "nothing");
    assert!(!after(one.clone(), vec![two.clone()]), "one more endpoint");
    assert!(after(two, vec![one.clone()]), "one less");
    assert!(after(none.clone(), vec![one.clone()]), "the first");
    assert!(after(one.clone(), vec![none]), "the last");
    assert!(after(one.clone(), Vec::new()), "the service is gone");
    let moved = port(&["10.0.0.10:53", "10.0.0.11:53"], &["10.1.0.1:53"]);
    assert!(after(one, vec![moved]), "another address");
}

/// A node with one service address that rules lead to one of two endpoints on the node itself.
struct Node {
    place: Place,
    v6: bool,
    client: UdpSocket,
    old: UdpSocket,
    new: UdpSocket,
}

impl Node {
    fn new(name: &str, v6: bool) -> Self {
        let place = Place::new(name);
        place.shell(
            "ip link add node type veth peer name net
             ip address add 192.0.2.1/24 dev node; ip address add 2001:db8::1/64 dev node nodad
             ip link set node up; ip link set net up
             ip route add default dev node; ip -6 route add default dev node
             nft 'table inet t {
               chain output { type nat hook output priority -100; }
               # Flows are tracked from the first rule that asks about them.
               chain track { type filter hook output priority 0; ct state new accept; }
             }'",
        );
        let bind = |port: u16| {
            let ip = if v6 { "2001:db8::1" } else { "192.0.2.1" };
            let socket = place.run(|| UdpSocket::bind((ip, port)).unwrap());
            socket.set_read_timeout(Some(TIME_MAX)).unwrap();
            socket
        };
        let (client, old, new) = (bind(0), bind(6001), bind(6002));
        Self { place, v6, client, old, new }
    }

    fn service(&self) -> &'static str {
        if self.v6 { "[fd00::10]:53" } else { "10.0.0.10:53" }
    }

    /// The rules now lead to this endpoint.
    fn lead_to(&self, socket: &UdpSocket) {
        let (family, at) = if self.v6 { ("ip6", "fd00::10") } else { ("ip", "10.0.0.10") };
        let own = if self.v6 { "2001:db8::1" } else { "192.0.2.1" };
        let to = socket.local_addr().unwrap();
        self.place.shell(&format!(
            "nft flush chain inet t output
             nft add rule inet t output {family} daddr {at} meta l4proto {{ tcp, udp }} \
             th dport 53 dnat {family} to {to}
             nft add rule inet t output {family} daddr {own} udp dport 30053 dnat {family} to {to}"
        ));
    }

    fn send(&self) {
        self.client.send_to(b"hello", self.service()).unwrap();
    }

    fn start(&self) -> StaleFlows {
        self.place.run(|| StaleFlows::start(&IpFamily::ALL).unwrap())
    }

    fn flows(&self) -> String {
        let family = if self.v6 { "ipv6" } else { "ipv4" };
        self.place.shell(&format!("conntrack -L -f {family} -o id 2>/dev/null"))
    }
}

fn endpoint(socket: &UdpSocket) -> String {
    socket.local_addr().unwrap().to_string()
}

/// The service is now this; returns when the cleaner has dealt with it.
fn set(cleaner: &StaleFlows, ports: Vec<UdpPort>) {
    cleaner.shared.state.lock().changed.insert(key("dns"), ports);
    cleaner.shared.wake.notify_one();
    assert!(cleaner.wait_idle(TIME_MAX), "{:?}", cleaner.figures());
}

fn hears(socket: &UdpSocket) -> bool {
    socket.recv(&mut [0; 16]).is_ok()
}

/// Whether something came already; packets on one machine arrive before `send` returns.
fn heard(socket: &UdpSocket) -> bool {
    socket.set_nonblocking(true).unwrap();
    let heard = hears(socket);
    socket.set_nonblocking(false).unwrap();
    heard
}

#[test]
fn a_client_of_an_endpoint_that_is_replaced_gets_to_the_new_one() {
    for (name, v6) in [("udp-4", false), ("udp-6", true)] {
        let node = Node::new(name, v6);
        let cleaner = node.start();
        let with = |socket| vec![port(&[node.service()], &[&endpoint(socket)])];
        node.lead_to(&node.old);
        set(&cleaner, with(&node.old));
        node.send();
        assert!(hears(&node.old));
        node.lead_to(&node.new);
        node.send();
        assert!(hears(&node.old), "the kernel's memory outlives the rule");
        set(&cleaner, with(&node.new));
        node.send();
        assert!(hears(&node.new));
        assert!(!heard(&node.old));
        let figures = cleaner.figures();
        let family = if v6 { IpFamily::V6 } else { IpFamily::V4 };
        assert_eq!(figures.deleted_total, BTreeMap::from([(family, 1)]));
        assert_eq!((figures.durations.count(), figures.failures_total), (2, 0));
    }
}

#[test]
fn a_flow_that_began_before_the_service_had_an_endpoint_gets_through() {
    let node = Node::new("udp-early", false);
    let cleaner = node.start();
    set(&cleaner, vec![port(&[node.service()], &[])]);
    node.send();
    node.lead_to(&node.new);
    node.send();
    assert!(!heard(&node.new), "the kernel knows the flow and asks no rule");
    set(&cleaner, vec![port(&[node.service()], &[&endpoint(&node.new)])]);
    node.send();
    assert!(hears(&node.new));
}

#[test]
fn the_last_endpoint_s_and_a_removed_service_s_flows_go() {
    let node = Node::new("udp-last", false);
    let cleaner = node.start();
    let with = |serving: &[&str]| vec![port(&[node.service()], serving)];
    node.lead_to(&node.old);
    let old = endpoint(&node.old);
    for gone in [with(&[]), Vec::new()] {
        set(&cleaner, with(&[&old]));
        node.send();
        assert!(node.flows().contains("dst=10.0.0.10"));
        set(&cleaner, gone);
        assert_eq!(node.flows(), "");
    }
}

#[test]
fn a_restart_resets_no_healthy_flow_and_neither_tcp_nor_strangers_are_touched() {
    let node = Node::new("udp-restart", false);
    node.lead_to(&node.old);
    node.send();
    // A pod's flow to the same port as our node port, elsewhere.
    node.client.send_to(b"hello", "198.51.100.1:30053").unwrap();
    let listener = node.place.run(|| TcpListener::bind("192.0.2.1:6001").unwrap());
    let stream = node.place.run(|| TcpStream::connect(node.service()).unwrap());
    let before = node.flows();
    assert_eq!(before.lines().count(), 3, "{before}");
    // TCP goes to an endpoint that does not serve UDP, so only its protocol saves it.
    let ports = || vec![port(&[node.service(), "*:30053"], &[&endpoint(&node.old)])];
    for _ in 0..2 {
        let cleaner = node.start();
        set(&cleaner, ports());
        assert_eq!(cleaner.figures().deleted_total.values().sum::<u64>(), 0);
        assert_eq!(cleaner.figures().durations.count(), 1);
    }
    let ids = |text: &str| {
        let ids = text.lines().filter_map(|line| line.rsplit_once("id="));
        ids.map(|(_, id)| id.to_owned()).collect::<BTreeSet<String>>()
    };
    assert_eq!(ids(&node.flows()), ids(&before));
    drop((stream, listener));
}

#[test]
fn stale_flows_to_a_node_port_go() {
    let node = Node::new("udp-nodeport", false);
    let cleaner = node.start();
    node.lead_to(&node.old);
    node.client.send_to(b"hello", "192.0.2.1:30053").unwrap();
    assert!(hears(&node.old));
    node.lead_to(&node.new);
    let serving = endpoint(&node.new);
    set(&cleaner, vec![port(&[node.service(), "*:30053"], &[&serving])]);
    assert_eq!(cleaner.figures().deleted_total[&IpFamily::V4], 1);
    node.client.send_to(b"hello", "192.0.2.1:30053").unwrap();
    assert!(hears(&node.new));
}
