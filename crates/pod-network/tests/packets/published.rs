//! Ports of a node at one address of IPv6, and those that somebody listens on already.

use serde_json::{Value, json};
use telaio_pod_network::overlay::Backend;
use telaio_pod_network::{Port, Protocol};

use crate::WIRES;
use crate::support::cni::{Call, config, config_with, inventory, machine};
use crate::support::{Node, PATIENCE, SILENCE, Wire, ask_from, lan, serve, serve_at};

#[test]
fn a_port_at_one_address_of_the_node_answers_there_and_nowhere_else() {
    let node = Node::bare("at", 1);
    let outside = lan(&[&node]);
    node.machine
        .sh("ip address add fd05::11/64 dev lan0 nodad; ip address add 192.168.5.11/24 dev lan0");
    node.set_up(Backend::default(), None);
    let at = |port, ip: &str| {
        let ip: std::net::IpAddr = ip.parse().unwrap();
        [Protocol::Tcp, Protocol::Udp].map(|it| Port::new(port, 80).at(ip).with_protocol(it))
    };
    node.instance("a", 2, [at(9090, "192.168.5.11"), at(9091, "fd05::11")].concat());
    node.instance("b", 3, vec![]);
    for wire in WIRES {
        let _servers = ["10.77.1.2", "fd77:1::2"].map(|ip| serve(&node, Some("a"), ip, 80, wire));
        for (ip, port, seen) in [
            ("fd05::11", 9091, ["fd05::99", "fd77:1::3"]),
            ("192.168.5.11", 9090, ["192.168.5.99", "10.77.1.3"]),
        ] {
            let outer = ask_from(&outside, None, ip, port, wire, PATIENCE);
            assert_eq!(outer.as_deref(), Ok(seen[0]), "{ip} {wire:?}");
            let neighbour = ask_from(&node.machine, Some("b"), ip, port, wire, PATIENCE);
            assert_eq!(neighbour.as_deref(), Ok(seen[1]), "{ip} {wire:?}");
            let own = ask_from(&node.machine, None, ip, port, wire, PATIENCE);
            assert!(own.is_ok(), "the node, {ip} {wire:?}: {own:?}");
        }
        for (ip, port) in
            [("fd05::1", 9091), ("192.168.5.11", 9091), ("192.168.5.1", 9090), ("fd05::11", 9090)]
        {
            let outer = ask_from(&outside, None, ip, port, wire, SILENCE);
            assert!(outer.is_err(), "{ip}:{port} {wire:?}");
        }
        let neighbour = ask_from(&node.machine, Some("b"), "fd77:1::1", 9091, wire, SILENCE);
        assert!(neighbour.is_err(), "{wire:?}");
    }
}

fn mapping(port: u16, protocol: &str, host_ip: &str) -> Value {
    let mut mapping = json!({"hostPort": port, "containerPort": 80, "protocol": protocol});
    if !host_ip.is_empty() {
        mapping["hostIP"] = host_ip.into();
    }
    config_with(json!({"runtimeConfig": {"portMappings": [mapping]}}))
}

#[test]
fn a_port_that_a_process_listens_on_is_refused_with_its_name_by_each_protocol_and_family() {
    let machine = machine(&["first", "a"]);
    Call::new("ADD", "first", &config()).make(&machine).unwrap();
    let before = inventory(&machine);
    for (wire, protocol, other) in [(Wire::Tcp, "tcp", "udp"), (Wire::Udp, "udp", "tcp")] {
        for (listens, host_ip, is_taken) in [
            ("0.0.0.0", "", true),
            ("::", "", true),
            ("10.88.0.1", "", true),
            ("fd88::1", "", true),
            ("::1", "", true),
            ("127.0.0.1", "127.0.0.1", true),
            ("10.88.0.1", "10.88.0.1", true),
            ("fd88::1", "fd88::1", true),
            ("10.88.0.1", "fd88::1", false),
            ("fd88::1", "10.88.0.1", false),
        ] {
            let what = format!("{protocol}: {listens} listens, {host_ip:?} is asked for");
            let _listener = serve_at(&machine, None, listens, 7070, wire);
            let add = |protocol| Call::new("ADD", "a", &mapping(7070, protocol, host_ip));
            if let Err(error) = add(protocol).make(&machine) {
                let message = error["msg"].as_str().unwrap();
                assert!(is_taken && error["code"] == 103, "{what}: {error}");
                assert!(message.contains("process packets"), "{what}: {error}");
            } else {
                assert!(!is_taken, "{what}");
                Call::new("DEL", "a", &mapping(7070, protocol, host_ip)).make(&machine).unwrap();
            }
            assert_eq!(inventory(&machine), before, "{what}");
            // The other protocol has other ports.
            add(other).make(&machine).unwrap();
            Call::new("DEL", "a", &mapping(7070, other, host_ip)).make(&machine).unwrap();
        }
    }
}
