//! Real packets between instances, on one node and on several.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod support;

use std::net::IpAddr;

use support::{Node, SILENCE, Wire, ask, ask_from, lan, serve};
use telaio_pod_network::node::{
    SetupNodeRequest, add_other_nodes, delete_node_in_cluster, setup_node,
};
use telaio_pod_network::overlay::Backend;
use telaio_pod_network::{Port, Protocol};

const WIRES: [Wire; 2] = [Wire::Tcp, Wire::Udp];

#[test]
fn instances_of_one_bridge_reach_each_other_with_their_own_addresses() {
    let node = Node::start("one", 1);
    node.instance("a", 2, vec![]);
    node.instance("b", 3, vec![]);
    for (address, seen) in [("10.77.1.3", "10.77.1.2"), ("fd77:1::3", "fd77:1::2")] {
        for wire in WIRES {
            let _server = serve(&node, Some("b"), address, 80, wire);
            assert_eq!(ask(&node, Some("a"), address, 80, wire).as_deref(), Ok(seen), "{wire:?}");
        }
    }
    node.machine.sh("ip netns exec telaio-i-a ping -c 1 -W 20 10.77.1.3");
    node.machine.sh("ip netns exec telaio-i-a ping -c 1 -W 20 fd77:1::3");
    // The node's own probes, and an instance's way to its node.
    node.machine.sh("ping -c 1 -W 20 10.77.1.3 && ping -c 1 -W 20 fd77:1::3");
    node.machine.sh("ip netns exec telaio-i-a ping -c 1 -W 20 10.77.1.1");
}

/// As a service proxy would: an address that nobody has leads to an instance.
const SERVICE: &str = "
table ip service {
  chain pre {
    type nat hook prerouting priority -100
    ip daddr 10.96.0.1 tcp dport 80 dnat to 10.77.1.3:8080
  }
}
table ip6 service {
  chain pre {
    type nat hook prerouting priority -100
    ip6 daddr fd96::1 tcp dport 80 dnat to [fd77:1::3]:8080
  }
}";
/// As a policy would: nobody reaches the instance.
const DENIED: &str = "
table ip denied {
  chain forward {
    type filter hook forward priority 0
    ip daddr 10.77.1.3 ct state new drop
  }
}
table ip6 denied {
  chain forward {
    type filter hook forward priority 0
    ip6 daddr fd77:1::3 ct state new drop
  }
}";

#[test]
fn a_service_works_and_a_policy_holds_between_instances_of_one_bridge() {
    // With and without the kernel's own way to show bridged packets to rules.
    for bridge_netfilter in ["0", "1"] {
        let node = Node::start("svc", 1);
        for setting in ["iptables", "ip6tables"] {
            let path = format!("/proc/sys/net/bridge/bridge-nf-call-{setting}");
            let set = format!("test -e {path} && echo {bridge_netfilter} > {path}");
            let hint = "this kernel does not show bridged packets to rules: modprobe br_netfilter";
            assert!(node.machine.try_sh(&set), "{hint}");
        }
        node.instance("a", 2, vec![]);
        node.instance("b", 3, vec![]);
        node.machine.sh(&format!("nft -f - <<'END'\n{SERVICE}\nEND"));
        let _servers =
            ["10.77.1.3", "fd77:1::3"].map(|ip| serve(&node, Some("b"), ip, 8080, Wire::Tcp));
        let to_service = |patience| {
            [("10.96.0.1", "10.77.1.2"), ("fd96::1", "fd77:1::2")].map(|(service, seen)| {
                (ask_from(&node.machine, Some("a"), service, 80, Wire::Tcp, patience), seen)
            })
        };
        for (answer, seen) in to_service(support::PATIENCE) {
            assert_eq!(answer.as_deref(), Ok(seen), "bridge-nf-call {bridge_netfilter}");
        }
        node.machine.sh(&format!("nft -f - <<'END'\n{DENIED}\nEND"));
        for (answer, _) in to_service(SILENCE) {
            assert!(answer.is_err(), "through the service, bridge-nf-call {bridge_netfilter}");
        }
        for ip in ["10.77.1.3", "fd77:1::3"] {
            let direct = ask_from(&node.machine, Some("a"), ip, 8080, Wire::Tcp, SILENCE);
            assert!(direct.is_err(), "directly, bridge-nf-call {bridge_netfilter}");
            // The node's own probes pass.
            assert!(ask(&node, None, ip, 8080, Wire::Tcp).is_ok());
        }
    }
}

#[test]
fn an_instance_hears_nothing_of_its_neighbours_frames() {
    let node = Node::start("quiet", 1);
    node.instance("a", 2, vec![]);
    node.instance("b", 3, vec![]);
    // Past the node, as an instance would that wants to: the neighbour is on the link, it thinks.
    node.machine.sh("ip -n telaio-i-a route replace 10.77.1.3 dev eth0 scope link; \
         ip -n telaio-i-b route replace 10.77.1.2 dev eth0 scope link");
    let _server = serve(&node, Some("b"), "10.77.1.3", 80, Wire::Tcp);
    let asked = |patience| ask_from(&node.machine, Some("a"), "10.77.1.3", 80, Wire::Tcp, patience);
    assert!(asked(SILENCE).is_err());
    // Its own way would lead there, were it not for the ports' flags and the rules for frames.
    node.machine.sh(
        "nft delete table bridge telaio-pods; for port in $(bridge link | cut -d' ' -f2 | cut -d@ -f1); do \
         bridge link set dev $port isolated off flood on mcast_flood on bcast_flood on learning on; done",
    );
    assert!(asked(support::PATIENCE).is_ok(), "{}", node.machine.sh("bridge -d link"));
}

fn published() -> Vec<Port> {
    let udp = Port::new(8080, 80).with_protocol(Protocol::Udp);
    vec![Port::new(8080, 80), udp, Port::new(9090, 80).at([192, 168, 5, 1])]
}

#[test]
fn a_published_port_answers_from_everywhere_it_should() {
    let node = Node::bare("pub", 1);
    let outside = lan(&[&node]);
    node.set_up(Backend::default(), None);
    node.instance("a", 2, published());
    node.instance("b", 3, vec![]);
    for wire in WIRES {
        let _servers = ["10.77.1.2", "fd77:1::2"].map(|ip| serve(&node, Some("a"), ip, 80, wire));
        let from_outside = |ip: &str| ask_from(&outside, None, ip, 8080, wire, support::PATIENCE);
        // Who asks is seen.
        assert_eq!(from_outside("192.168.5.1").as_deref(), Ok("192.168.5.99"), "{wire:?}");
        assert_eq!(from_outside("fd05::1").as_deref(), Ok("fd05::99"), "{wire:?}");
        let from = |who, ip: &str| ask(&node, who, ip, 8080, wire);
        assert_eq!(from(Some("b"), "192.168.5.1").as_deref(), Ok("10.77.1.3"), "a neighbour");
        assert_eq!(from(Some("b"), "10.77.1.1").as_deref(), Ok("10.77.1.3"), "a neighbour");
        assert_eq!(from(Some("b"), "fd05::1").as_deref(), Ok("fd77:1::3"), "a neighbour");
        assert_eq!(
            from(Some("a"), "192.168.5.1").as_deref(),
            Ok("10.77.1.1"),
            "the instance itself"
        );
        assert_eq!(from(Some("a"), "fd05::1").as_deref(), Ok("fd77:1::1"), "the instance itself");
        assert!(from(None, "192.168.5.1").is_ok(), "the node");
        assert!(from(None, "fd05::1").is_ok(), "the node");
        assert_eq!(from(None, "127.0.0.1").as_deref(), Ok("10.77.1.1"), "localhost {wire:?}");
    }
    let _server = serve(&node, Some("a"), "10.77.1.2", 80, Wire::Tcp);
    let at = ask_from(&outside, None, "192.168.5.1", 9090, Wire::Tcp, support::PATIENCE);
    assert!(at.is_ok(), "{at:?}");
    assert!(ask_from(&node.machine, Some("b"), "10.77.1.1", 9090, Wire::Tcp, SILENCE).is_err());
    node.clean("a", 2);
    assert!(ask_from(&outside, None, "192.168.5.1", 8080, Wire::Tcp, SILENCE).is_err());
}

#[test]
fn instances_do_not_reach_what_listens_on_the_nodes_loopback() {
    let node = Node::start("lo", 1);
    node.instance("a", 2, vec![Port::new(8080, 80)]);
    node.machine
        .sh("ip netns exec telaio-i-a ip route add 127.0.0.5 via 10.77.1.1 dev eth0 table 7");
    node.machine.sh("ip netns exec telaio-i-a ip rule add pref 0 to 127.0.0.5 table 7; ip netns exec telaio-i-a ip rule del pref 0 from all lookup local; ip netns exec telaio-i-a ip rule add pref 9 lookup local");
    node.machine.sh(
        "ip netns exec telaio-i-a sh -c 'echo 1 > /proc/sys/net/ipv4/conf/eth0/route_localnet'",
    );
    let _server = serve(&node, None, "127.0.0.5", 99, Wire::Tcp);
    assert!(ask(&node, None, "127.0.0.5", 99, Wire::Tcp).is_ok());
    assert!(ask_from(&node.machine, Some("a"), "127.0.0.5", 99, Wire::Tcp, SILENCE).is_err());
    // Only our rule keeps it away: who lets it pass is answered.
    node.machine.sh("nft flush chain ip telaio-pods localnet");
    assert!(
        ask_from(&node.machine, Some("a"), "127.0.0.5", 99, Wire::Tcp, support::PATIENCE).is_ok()
    );
}

fn external(node: &Node) -> Vec<IpAddr> {
    let number = node.number;
    vec![format!("192.168.5.{number}").parse().unwrap(), format!("fd05::{number}").parse().unwrap()]
}

fn across(backend: Backend, tunnel: Option<fn(u8) -> IpAddr>, name: &str) {
    let nodes = [1, 2, 3].map(|number| Node::bare(&format!("{name}{number}"), number));
    let [a, b, c] = &nodes;
    let _switch = lan(&[a, b, c]);
    let requests: Vec<_> = nodes.iter().map(|node| node.request(&external(node))).collect();
    for node in &nodes {
        node.set_up(backend, tunnel.map(|tunnel| tunnel(node.number)));
        let others = requests.clone();
        node.machine.run(move || add_other_nodes(others).unwrap());
        node.instance(&format!("i{}", node.number), 2, vec![]);
    }
    for (from, to) in [(a, b), (b, c), (c, a), (b, a)] {
        let (client, server) = (format!("i{}", from.number), format!("i{}", to.number));
        for (ip, seen) in [
            (format!("10.77.{}.2", to.number), format!("10.77.{}.2", from.number)),
            (format!("fd77:{}::2", to.number), format!("fd77:{}::2", from.number)),
        ] {
            for wire in WIRES {
                let _server = serve(to, Some(&server), &ip, 80, wire);
                let answer = ask(from, Some(&client), &ip, 80, wire);
                assert_eq!(answer.as_deref(), Ok(seen.as_str()), "{name} {ip} {wire:?}");
                assert!(ask(from, None, &ip, 80, wire).is_ok(), "the node itself, {ip}");
            }
            // Larger than any link, and as large as fits without being cut.
            let inside = format!("ip netns exec telaio-i-{client}");
            from.machine.sh(&format!("{inside} ping -c 1 -W 20 -s 4000 {ip}"));
            let headers = if ip.contains(':') { 48 } else { 28 };
            let mtu = from.machine.sh(&format!(
                "ip -n telaio-i-{client} -o link show eth0 | grep -o 'mtu [0-9]*' | cut -d' ' -f2"
            ));
            let mtu: u32 = mtu.trim().parse().unwrap();
            from.machine.sh(&format!("{inside} ping -M do -c 1 -W 20 -s {} {ip}", mtu - headers));
        }
    }
    // One leaves: its way is gone, the others' stay.
    let leaving = requests[1].clone();
    a.machine.run(move || delete_node_in_cluster(leaving).unwrap());
    let left = a.machine.sh("ip route; ip -6 route; bridge fdb show; ip neigh show nud permanent");
    assert!(!left.contains("10.77.2.") && !left.contains("fd77:2:"), "{left}");
    assert!(left.contains("10.77.3.0/24") && left.contains("fd77:3::/64"), "{left}");
    let _server = serve(c, Some("i3"), "10.77.3.2", 80, Wire::Tcp);
    assert!(ask(a, Some("i1"), "10.77.3.2", 80, Wire::Tcp).is_ok());
}

#[test]
fn instances_of_three_nodes_talk_by_vxlan() {
    across(Backend::default(), None, "vx");
}

#[test]
fn instances_of_three_nodes_talk_by_vxlan_over_ipv6() {
    across(Backend::default(), Some(|number| format!("fd05::{number}").parse().unwrap()), "vs");
}

#[test]
fn instances_of_three_nodes_talk_by_host_gw() {
    across(Backend::HostGw, None, "gw");
}

#[test]
fn ways_that_lead_nowhere_are_found_and_removed_and_those_that_are_missing_come_back() {
    for backend in [Backend::default(), Backend::HostGw] {
        let (node, other) = (Node::bare("ways", 1), Node::bare("far", 2));
        let _switch = lan(&[&node, &other]);
        node.set_up(backend, None);
        let request = other.request(&external(&other));
        node.machine.run(move || add_other_nodes(vec![request]).unwrap());
        let ways = "ip route; ip -6 route | grep -v fe80; bridge fdb | grep 192.168 || true; ip neigh show nud permanent";
        let before = node.machine.sh(ways);
        let stale = if backend == Backend::HostGw {
            node.machine.sh("ip route add 10.250.0.0/24 via 192.168.5.2 proto 116");
            1
        } else {
            node.machine.sh(
                "ip route add 10.250.0.0/24 via 10.250.0.0 dev telaio.1 onlink proto 116 && \
                 ip neigh add 10.250.0.0 lladdr 02:00:00:00:00:99 dev telaio.1 nud permanent && \
                 bridge fdb append 02:00:00:00:00:99 dev telaio.1 dst 192.168.5.9",
            );
            3
        };
        // Another's routes are none of ours.
        node.machine.sh("ip route add 10.251.0.0/24 via 192.168.5.2");
        node.machine.sh("ip route del 10.77.2.0/24");
        let mended = node.machine.run(|| telaio_pod_network::Host::default().repair().unwrap());
        assert_eq!(mended.ways, stale, "{backend:?}");
        let now = node.machine.sh(ways);
        assert!(now.contains("10.251.0.0/24"), "{now}");
        node.machine.sh("ip route del 10.251.0.0/24");
        let sorted = |text: &str| {
            let mut lines: Vec<String> = text.lines().map(|line| line.trim().to_owned()).collect();
            lines.sort();
            lines
        };
        assert_eq!(sorted(&node.machine.sh(ways)), sorted(&before), "{backend:?}");
    }
}

#[test]
fn a_range_of_ports_is_published_as_such() {
    let node = Node::bare("range", 1);
    let outside = lan(&[&node]);
    node.set_up(Backend::default(), None);
    node.instance("a", 2, Port::range(9000, 80, 20).unwrap());
    for (port, own) in [(9000, 80), (9007, 87), (9019, 99)] {
        let _servers =
            ["10.77.1.2", "fd77:1::2"].map(|ip| serve(&node, Some("a"), ip, own, Wire::Tcp));
        for ip in ["192.168.5.1", "fd05::1"] {
            assert!(ask_from(&outside, None, ip, port, Wire::Tcp, support::PATIENCE).is_ok());
        }
        assert!(ask(&node, None, "127.0.0.1", port, Wire::Tcp).is_ok());
    }
    let error = node.try_instance("b", 3, Port::range(9019, 80, 2).unwrap()).unwrap_err();
    assert!(error.contains("9019/tcp is taken by instance a"), "{error}");
}

#[test]
fn instances_are_told_how_long_packets_may_be_by_uplink_and_overlay() {
    for (backend, tunnel, expected) in [
        (Backend::default(), "192.168.5.1", 1350),
        (Backend::default(), "fd05::1", 1330),
        (Backend::HostGw, "192.168.5.1", 1400),
    ] {
        let node = Node::bare("mtu", 1);
        let _switch = lan(&[&node]);
        node.machine.sh("ip link set lan0 mtu 1400");
        node.set_up(backend, Some(tunnel.parse().unwrap()));
        node.instance("a", 2, vec![]);
        let inside = node.machine.sh("ip -n telaio-i-a -o link show eth0");
        assert!(inside.contains(&format!("mtu {expected} ")), "{backend:?} {tunnel}: {inside}");
    }
    let node = Node::bare("none", 1);
    let error = node.machine.run(|| {
        let ip: cidr::Ipv4Inet = "10.77.1.1/24".parse().unwrap();
        let request = SetupNodeRequest::new("none", ip, vec![]).with_tunnel_address([192, 0, 2, 9]);
        setup_node(request).unwrap_err().to_string()
    });
    assert!(error.contains("192.0.2.9 is not an address of this machine"), "{error}");
}

#[test]
fn ids_may_be_long_and_in_any_script() {
    let node = Node::start("ids", 1);
    let long =
        "an-instance-whose-id-is-much-longer-than-any-name-of-a-link-could-ever-be-and-then-some";
    let (one, two) = (format!("{long}-1"), format!("{long}-2"));
    for (id, host) in [(one.as_str(), 2), (two.as_str(), 3), ("größe/名前 \u{1f9f6}", 4)] {
        node.instance(id, host, vec![]);
        let ip = format!("10.77.1.{host}");
        let _server = serve(&node, Some(id), &ip, 80, Wire::Tcp);
        assert!(ask(&node, None, &ip, 80, Wire::Tcp).is_ok(), "{id}");
    }
    assert_eq!(node.machine.sh("ip netns list | grep -c telaio-").trim(), "3");
    node.clean(&one, 2);
    assert_eq!(node.machine.sh("ip netns list | grep -c telaio-").trim(), "2");
}

#[test]
fn networks_that_overlap_are_refused_and_nothing_changes() {
    let node = Node::bare("lap", 1);
    let _switch = lan(&[&node]);
    node.set_up(Backend::default(), None);
    node.instance("a", 2, vec![]);
    let before = node.inventory();
    let error = node.machine.run(|| {
        let ip: cidr::Ipv4Inet = "10.77.0.1/16".parse().unwrap();
        setup_node(SetupNodeRequest::new("other", ip, vec![])).unwrap_err().to_string()
    });
    assert!(error.contains("10.77.0.0/16 overlaps 10.77.1.0/24"), "{error}");
    for (cidr, what) in
        [("10.77.1.128/25", "this machine's node lap"), ("10.77.0.0/16", "node lap")]
    {
        let error = node.machine.run(move || {
            let ip: cidr::Ipv4Inet = cidr.parse::<cidr::Ipv4Inet>().unwrap();
            let peer = telaio_pod_network::node::NodeIp::new(ip, [192, 168, 5, 7]);
            let request = telaio_pod_network::node::NodeRequest::new("far", peer);
            add_other_nodes(vec![request]).unwrap_err().to_string()
        });
        assert!(error.contains("overlaps") && error.contains(what), "{error}");
    }
    support::assert_same(&node.inventory(), &before, "");
}

#[test]
fn after_a_reboot_networks_are_apart_until_they_are_joined_again() {
    let node = Node::bare("boot", 1);
    let _outside = lan(&[&node]);
    let start = || {
        node.set_up(Backend::default(), None);
        node.machine.run(|| {
            let ip: cidr::Ipv4Inet = "10.78.0.1/24".parse().unwrap();
            setup_node(SetupNodeRequest::new("other", ip, vec![])).unwrap();
            let ip: cidr::Ipv4Inet = "10.78.0.2/24".parse().unwrap();
            let gateway = [10, 78, 0, 1];
            let request = telaio_pod_network::instance::SetupInstanceRequest::new(
                "other",
                gateway,
                "x",
                ip,
                vec![],
            );
            telaio_pod_network::instance::setup_instance(request).unwrap();
        });
        node.instance("a", 2, vec![]);
    };
    let join = || {
        node.machine.run(|| {
            telaio_pod_network::Host::default().join_networks("boot", "other", true).unwrap();
        });
    };
    let reaches = |patience| {
        let _server = serve(&node, Some("x"), "10.78.0.2", 80, Wire::Tcp);
        ask_from(&node.machine, Some("a"), "10.78.0.2", 80, Wire::Tcp, patience).is_ok()
    };
    start();
    join();
    assert!(reaches(support::PATIENCE));
    // As it looks after a reboot: another boot's records, and nothing of the kernel's.
    node.machine.sh(
        "cd /var/lib/telaio/pods && mv boot-* boot-earlier; nft flush ruleset; ip netns del telaio-i-a; \
         ip netns del telaio-i-x; ip link del tlb-boot; ip link del tlb-other",
    );
    start();
    assert!(!reaches(SILENCE), "nothing is open that nobody has said since");
    node.machine.run(|| telaio_pod_network::Host::default().repair().unwrap());
    assert!(!reaches(SILENCE));
    join();
    assert!(reaches(support::PATIENCE));
}

#[test]
fn what_is_missing_of_the_ways_to_other_nodes_is_told() {
    let ways = |node: &Node| {
        node.machine.run(|| telaio_pod_network::Host::default().ways().unwrap().expect("a node"))
    };
    for backend in [Backend::default(), Backend::HostGw] {
        let (a, b) = (Node::bare("a", 1), Node::bare("b", 2));
        let _lan = lan(&[&a, &b]);
        a.set_up(backend, None);
        let request = b.request(&external(&b));
        a.machine.run(move || add_other_nodes(vec![request]).unwrap());
        // Another node of the same machine, which comes first by name, and reaches nobody.
        a.machine.run(move || {
            let other: cidr::Ipv4Inet = "10.79.0.1/24".parse().unwrap();
            let backend = match backend {
                Backend::HostGw => Backend::default(),
                _ => Backend::HostGw,
            };
            setup_node(SetupNodeRequest::new("0", other, vec![]).with_backend(backend)).unwrap();
        });
        let well = ways(&a);
        assert_eq!(well.backend, backend);
        let [peer] = well.peers.as_slice() else { panic!("{well:?}") };
        assert_eq!((peer.peer.id.as_str(), peer.missing.len()), ("b", 0), "{well:?}");
        assert_eq!(well.address, Some("192.168.5.1".parse().unwrap()));
        assert_eq!(peer.mac.is_some(), matches!(backend, Backend::Vxlan { .. }));

        a.machine.sh("ip route del 10.77.2.0/24");
        let missing = ways(&a).peers[0].missing.clone();
        assert_eq!(missing, ["the route to 10.77.2.0/24 is missing"]);
        let Some(tunnel) = well.tunnel else { continue };
        assert_eq!((tunnel.is_up, tunnel.problem), (true, None));
        assert!(tunnel.mtu.is_some() && tunnel.mac.is_some());
        a.machine.sh("ip link set telaio.1 down");
        let down = ways(&a).tunnel.expect("a tunnel");
        assert_eq!(
            (down.is_up, down.problem.as_deref()),
            (false, Some("the link telaio.1 is down"))
        );
        a.machine.sh("ip link del telaio.1");
        let gone = ways(&a);
        assert_eq!(gone.peers[0].missing, ["the link telaio.1 is missing"]);
        let tunnel = gone.tunnel.expect("what should be there");
        assert_eq!((tunnel.mtu, tunnel.is_up, tunnel.vni), (None, false, 1));
        assert!(tunnel.problem.unwrap().contains("is missing"));
    }
}
