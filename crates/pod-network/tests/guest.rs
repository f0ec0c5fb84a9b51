//! A kernel that lacks nftables for IP: User-mode Linux. The library and the plugin make do with iptables.
//!
//! Each test starts itself again on the guest kernel; what is in `inside` runs there.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod support;

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr};

use serde_json::json;
use socket2::{Domain, Socket, Type};
use support::cni::{Call, config_with};
use support::{
    Node, PATIENCE, SILENCE, Wire, ask, ask_at, ask_from, lan, senders, serve, serve_at, spoof,
};
use telaio_pod_network::node::{
    CleanNodeRequest, SetupIptablesRequest, SetupNodeRequest, add_other_nodes, clean_node,
    setup_iptables, setup_node,
};
use telaio_pod_network::overlay::Backend;
use telaio_pod_network::{Host, Port, Protocol};
use telaio_testkit::guest::{self, GuestError};
use telaio_testkit::machine::Machine;

const WIRES: [Wire; 2] = [Wire::Tcp, Wire::Udp];

/// Everything of ours among the rules.
fn rules(machine: &Machine) -> String {
    machine.sh("iptables-legacy-save | grep -v '^#' | sed 's/\\[.*//'; ip6tables-legacy-save | grep -v '^#' | sed 's/\\[.*//'")
}

#[test]
fn without_nftables_iptables_does_nat_forwarding_ports_and_isolation() -> Result<(), GuestError> {
    guest::inside("without_nftables_iptables_does_nat_forwarding_ports_and_isolation", || {
        let node = Node::bare("ipt", 1);
        let outside = lan(&[&node]);
        // As on a machine with another's firewall.
        node.machine.sh("iptables-legacy -P FORWARD DROP; ip6tables-legacy -P FORWARD DROP");
        node.set_up(Backend::default(), None);
        assert!(rules(&node.machine).contains("TELAIO-POD-SOURCE"), "{}", rules(&node.machine));
        let bare = rules(&node.machine);
        let udp = Port::new(8080, 80).with_protocol(Protocol::Udp);
        let ports = vec![Port::new(8080, 80), udp, Port::new(9090, 80).at([192, 168, 5, 1])];
        node.instance("a", 2, ports);
        node.instance("b", 3, vec![]);
        for wire in WIRES {
            let _servers =
                ["10.77.1.2", "fd77:1::2"].map(|ip| serve(&node, Some("a"), ip, 80, wire));
            let from = |who, ip: &str, port| ask(&node, who, ip, port, wire);
            assert_eq!(from(Some("b"), "10.77.1.2", 80).as_deref(), Ok("10.77.1.3"));
            assert_eq!(from(Some("b"), "fd77:1::2", 80).as_deref(), Ok("fd77:1::3"));
            let outer = |ip| ask_from(&outside, None, ip, 8080, wire, support::PATIENCE);
            assert_eq!(outer("192.168.5.1").as_deref(), Ok("192.168.5.99"), "{wire:?}");
            assert_eq!(outer("fd05::1").as_deref(), Ok("fd05::99"), "{wire:?}");
            assert_eq!(from(Some("b"), "192.168.5.1", 8080).as_deref(), Ok("10.77.1.3"));
            assert_eq!(from(Some("a"), "192.168.5.1", 8080).as_deref(), Ok("10.77.1.1"), "itself");
            assert_eq!(from(Some("a"), "fd05::1", 8080).as_deref(), Ok("fd77:1::1"), "itself");
            assert_eq!(from(None, "127.0.0.1", 8080).as_deref(), Ok("10.77.1.1"), "localhost");
            let _outer = ["192.168.5.99", "fd05::99"]
                .map(|ip| support::serve_on(&outside, None, ip, 81, wire));
            assert_eq!(from(Some("a"), "192.168.5.99", 81).as_deref(), Ok("192.168.5.1"));
            assert_eq!(from(Some("a"), "fd05::99", 81).as_deref(), Ok("fd05::1"));
        }
        {
            let _server = serve(&node, Some("a"), "10.77.1.2", 80, Wire::Tcp);
            assert!(ask_from(&outside, None, "192.168.5.1", 9090, Wire::Tcp, PATIENCE).is_ok());
            assert!(
                ask_from(&node.machine, Some("b"), "10.77.1.1", 9090, Wire::Tcp, SILENCE).is_err()
            );
        }
        let receiver = senders(&node, Some("b"), "10.77.1.3", 99);
        for source in ["192.0.2.7", "10.77.1.77", "10.77.1.2"] {
            spoof(&node, "a", source, "10.77.1.3", 99);
        }
        assert_eq!(receiver.until("10.77.1.2").len(), 1, "no false senders");
        apart(&node);
        let before = rules(&node.machine);
        node.machine
            .sh("iptables-legacy -t nat -F; iptables-legacy -F; ip6tables-legacy -t nat -F");
        node.machine.run(|| setup_iptables(SetupIptablesRequest::new("ipt")).unwrap());
        support::assert_same(&sorted(&rules(&node.machine)), &sorted(&before), "after a flush");
        // What the agent does on its timer: here nobody tells it what others remove.
        node.machine.sh("iptables-legacy -t nat -F TELAIO-POD-SOURCE; ip6tables-legacy -F FORWARD");
        assert_ne!(sorted(&rules(&node.machine)), sorted(&before), "something is gone");
        node.machine.run(|| Host::default().repair().unwrap());
        support::assert_same(&sorted(&rules(&node.machine)), &sorted(&before), "after a repair");
        let refused = node.try_instance("c", 4, vec![Port::new(8080, 1)]).unwrap_err();
        assert!(refused.contains("instance a"), "{refused}");
        node.machine.run(|| clean_node(CleanNodeRequest::new("other")).unwrap());
        node.clean("a", 2);
        node.clean("a", 2);
        support::assert_same(&rules(&node.machine), &bare, "after the instances");
        node.machine.run(|| Host::default().repair().unwrap());
        support::assert_same(&rules(&node.machine), &bare, "mending changes nothing");
        node.machine.run(|| Host::default().remove_all().unwrap());
        assert!(!rules(&node.machine).contains("TELAIO"), "{}", rules(&node.machine));
    })
}

fn sorted(text: &str) -> String {
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort_unstable();
    lines.join("\n")
}

/// Another network, which does not reach the first.
fn apart(node: &Node) {
    node.machine.run(|| {
        let ip: cidr::Ipv4Inet = "10.78.0.1/24".parse().unwrap();
        let request = SetupNodeRequest::new("other", ip, vec![])
            .with_node_ip("fd78::1/64".parse::<cidr::Ipv6Inet>().unwrap());
        setup_node(request).unwrap();
        let ip: cidr::Ipv4Inet = "10.78.0.2/24".parse().unwrap();
        let ports = vec![Port::new(7070, 80)];
        let request = telaio_pod_network::instance::SetupInstanceRequest::new(
            "other",
            [10, 78, 0, 1],
            "x",
            ip,
            ports,
        );
        let ip6: cidr::Ipv6Inet = "fd78::2/64".parse().unwrap();
        telaio_pod_network::instance::setup_instance(request.with_instance_ip(ip6)).unwrap();
    });
    for ip in ["10.78.0.2", "fd78::2"] {
        let _server = serve(node, Some("x"), ip, 80, Wire::Tcp);
        assert!(ask_from(&node.machine, Some("b"), ip, 80, Wire::Tcp, SILENCE).is_err(), "{ip}");
        assert!(ask(node, None, ip, 80, Wire::Tcp).is_ok(), "the node reaches both");
    }
    let _server = serve(node, Some("x"), "10.78.0.2", 80, Wire::Tcp);
    assert!(ask(node, Some("b"), "192.168.5.1", 7070, Wire::Tcp).is_ok(), "what is published");
}

#[test]
fn without_nftables_nodes_reach_each_other_and_the_plugin_works() -> Result<(), GuestError> {
    guest::inside("without_nftables_nodes_reach_each_other_and_the_plugin_works", || {
        for backend in [Backend::default(), Backend::HostGw] {
            let nodes = [1, 2].map(|number| Node::bare(&format!("n{number}"), number));
            let _switch = lan(&[&nodes[0], &nodes[1]]);
            let external = |node: &Node| -> Vec<IpAddr> {
                let number = node.number;
                [format!("192.168.5.{number}"), format!("fd05::{number}")]
                    .iter()
                    .map(|ip| ip.parse().unwrap())
                    .collect()
            };
            let requests: Vec<_> = nodes.iter().map(|node| node.request(&external(node))).collect();
            for node in &nodes {
                node.set_up(backend, None);
                let others = requests.clone();
                node.machine.run(move || add_other_nodes(others).unwrap());
                node.instance(&format!("i{}", node.number), 2, vec![]);
            }
            for (ip, seen) in [("10.77.2.2", "10.77.1.2"), ("fd77:2::2", "fd77:1::2")] {
                for wire in WIRES {
                    let _server = serve(&nodes[1], Some("i2"), ip, 80, wire);
                    let answer = ask(&nodes[0], Some("i1"), ip, 80, wire);
                    assert_eq!(answer.as_deref(), Ok(seen), "{backend:?} {wire:?}");
                }
            }
        }
        let machine = support::cni::machine(&["p", "q"]);
        let config = config_with(json!({"runtimeConfig": {"portMappings": [
            {"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]}}));
        Call::new("STATUS", "p", &config).make(&machine).unwrap();
        let result = Call::new("ADD", "p", &config).make(&machine).unwrap();
        let bare = rules(&machine);
        let mut check = config.clone();
        check["prevResult"] = result;
        Call::new("CHECK", "p", &check).make(&machine).unwrap();
        let _server = serve_at(&machine, Some("p"), "10.88.0.2", 80, Wire::Tcp);
        assert!(ask_at(&machine, None, "10.88.0.1", 8080, Wire::Tcp).is_ok());
        let plain = config_with(json!({}));
        Call::new("ADD", "q", &plain).make(&machine).unwrap();
        assert!(ask_at(&machine, Some("q"), "10.88.0.1", 8080, Wire::Tcp).is_ok());
        Call::new("DEL", "q", &plain).make(&machine).unwrap();
        assert_eq!(rules(&machine), bare);
        Call::new("DEL", "p", &config).make(&machine).unwrap();
        assert!(!rules(&machine).contains("8080"), "{}", rules(&machine));
        assert_eq!(Call::new("CHECK", "p", &check).make(&machine).unwrap_err()["code"], 105);
    })
}

#[test]
fn virtual_networks_of_one_bridge_are_apart() -> Result<(), GuestError> {
    guest::inside("virtual_networks_of_one_bridge_are_apart", || {
        let machine = support::cni::machine(&["a", "b", "c", "d", "e", "f"]);
        let network = |name: &str, bridge: &str, vlan: u16, is_gateway: bool| {
            config_with(
                json!({"name": name, "bridge": bridge, "vlan": vlan, "isGateway": is_gateway, "ipMasq": false,
                "ipam": {"type": "host-local", "subnet": "10.88.0.0/16", "rangeStart": format!("10.88.{vlan}.1")}}),
            )
        };
        // Two networks of frames on one bridge, and the same addresses in both.
        let (seven, eight) =
            (network("seven", "br-v", 7, false), network("eight", "br-v", 8, false));
        let ip = |container: &str, config: &serde_json::Value| {
            let result = Call::new("ADD", container, config).make(&machine).unwrap();
            result["ips"][0]["address"].as_str().unwrap().split('/').next().unwrap().to_owned()
        };
        let [_a, b] = ["a", "b"].map(|name| ip(name, &seven));
        let [_c, d] = ["c", "d"].map(|name| ip(name, &eight));
        let reaches = |from: &str, to: &str| {
            machine.try_sh(&format!("ip netns exec {from} ping -c 1 -W 1 {to}"))
        };
        let comes = |from: &str, to: &str| (0..30).any(|_| reaches(from, to));
        assert!(comes("a", &b) && comes("c", &d), "{}", machine.sh("bridge vlan"));
        assert!(!reaches("a", &d) && !reaches("c", &b), "{}", machine.sh("bridge vlan"));
        let vlans = machine.sh("bridge vlan show");
        assert!(vlans.contains("7 PVID Egress Untagged"), "{vlans}");
        // With the node in it.
        let routed = config_with(json!({"name": "nine", "bridge": "br-w", "vlan": 9,
            "ipam": {"type": "host-local", "subnet": "10.99.0.0/16"}}));
        let [_e, f] = ["e", "f"].map(|name| ip(name, &routed));
        assert!(comes("e", &f) && comes("e", "10.99.0.1"), "{}", machine.sh("bridge vlan"));
        assert!(machine.try_sh(&format!("ping -c 1 -W 20 {f}")));
        let other = config_with(json!({"name": "ten", "bridge": "br-w", "vlan": 10,
            "ipam": {"type": "host-local", "subnet": "10.100.0.0/16"}}));
        let error = Call::new("ADD", "a", &other).make(&machine).unwrap_err();
        assert!(error["code"] == 7 && error["msg"].as_str().unwrap().contains("nine"), "{error}");
        // Somebody tidies up.
        machine.sh("ip link del br-w");
        machine.run(|| Host::default().repair().unwrap());
        assert!(comes("e", &f) && comes("e", "10.99.0.1"), "{}", machine.sh("bridge vlan"));
        for (name, config) in [("a", &seven), ("c", &eight), ("e", &routed)] {
            Call::new("DEL", name, config).make(&machine).unwrap();
        }
    })
}

const SCTP: i32 = 132;

fn sctp(to: SocketAddr) -> Socket {
    Socket::new(Domain::for_address(to), Type::STREAM, Some(SCTP.into())).unwrap()
}

/// Listens in an instance of a machine, or on the machine itself.
fn listen_sctp(machine: &Machine, instance: Option<&'static str>, ip: &str, port: u16) -> Socket {
    let at = SocketAddr::new(ip.parse().unwrap(), port);
    let opened = machine.spawn(move || {
        support::enter(instance);
        let socket = sctp(at);
        socket.bind(&at.into()).unwrap();
        socket.listen(4).unwrap();
        // Who accepts does not wait for ever.
        socket.set_read_timeout(Some(PATIENCE * 2)).unwrap();
        socket
    });
    opened.join().unwrap()
}

#[test]
fn with_sockets_of_sctp_a_published_port_answers_and_one_that_is_listened_on_is_refused()
-> Result<(), GuestError> {
    guest::inside(
        "with_sockets_of_sctp_a_published_port_answers_and_one_that_is_listened_on_is_refused",
        || {
            let node = Node::start("sctp", 1);
            let port = |port| Port::new(port, 80).with_protocol(Protocol::Sctp);
            node.instance("a", 2, vec![port(9090)]);
            node.instance("b", 3, vec![]);
            for (own, host, seen) in
                [("10.77.1.2", "10.77.1.1", "10.77.1.3"), ("fd77:1::2", "fd77:1::1", "fd77:1::3")]
            {
                let server = listen_sctp(&node.machine, Some("a"), own, 80);
                let to = SocketAddr::new(host.parse().unwrap(), 9090);
                let client = node.machine.spawn(move || {
                    support::enter(Some("b"));
                    let mut socket = sctp(to);
                    socket.connect_timeout(&to.into(), PATIENCE * 2).unwrap();
                    socket.write_all(b"by sctp").unwrap();
                    let mut back = [0; 16];
                    let count = socket.read(&mut back).unwrap();
                    String::from_utf8_lossy(&back[..count]).into_owned()
                });
                let (mut accepted, from) = server.accept().unwrap();
                let mut said = [0; 16];
                let count = accepted.read(&mut said).unwrap();
                accepted.write_all(&said[..count]).unwrap();
                assert_eq!(client.join().unwrap(), "by sctp", "{own}");
                let from: IpAddr = from.as_socket().unwrap().ip();
                assert_eq!(from, seen.parse::<IpAddr>().unwrap(), "who asks is seen");
            }
            for listens in ["0.0.0.0", "::", "10.77.1.1", "fd77:1::1"] {
                let _listener = listen_sctp(&node.machine, None, listens, 7070);
                let refused = node.try_instance("c", 4, vec![port(7070)]).unwrap_err();
                assert!(refused.contains("process guest"), "{listens}: {refused}");
                // Other protocols have other ports.
                node.instance("c", 4, vec![Port::new(7070, 80)]);
                node.clean("c", 4);
            }
        },
    )
}
