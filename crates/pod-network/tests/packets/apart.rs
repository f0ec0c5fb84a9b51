//! Networks of one machine, which do not reach each other unless they may: both ways, both families.

use serde_json::json;
use telaio_pod_network::instance::{SetupInstanceRequest, setup_instance};
use telaio_pod_network::node::{SetupNodeRequest, setup_node};
use telaio_pod_network::overlay::Backend;
use telaio_pod_network::{Host, Port};
use telaio_testkit::machine::Machine;

use crate::WIRES;
use crate::support::cni::{Call, config_with, machine};
use crate::support::{Node, PATIENCE, SILENCE, Wire, ask, ask_at, ask_from, lan, serve, serve_at};

/// Instance `a` of one network and `x` of another: who asks, where the other is, and what the other sees.
const WAYS: [(&str, &str, &str, &str); 4] = [
    ("a", "x", "10.78.0.2", "10.77.1.2"),
    ("a", "x", "fd78::2", "fd77:1::2"),
    ("x", "a", "10.77.1.2", "10.78.0.2"),
    ("x", "a", "fd77:1::2", "fd78::2"),
];

/// Whether each reaches the other on all ways, or on none.
fn reach(machine: &Machine, ways: &[(&str, &str, &str, &str)], is_allowed: bool, when: &str) {
    let patience = if is_allowed { PATIENCE } else { SILENCE };
    for (from, to, ip, seen) in ways {
        for wire in WIRES {
            let _server = serve_at(machine, Some(to), ip, 80, wire);
            let answer = ask_from(machine, Some(from), ip, 80, wire, patience);
            let expected = if is_allowed { Some(*seen) } else { None };
            assert_eq!(answer.as_deref().ok(), expected, "{when}: {from} to {ip} by {wire:?}");
            assert!(ask_at(machine, None, ip, 80, wire).is_ok(), "the node reaches both, {ip}");
        }
    }
}

#[test]
fn networks_of_one_node_do_not_reach_each_other_unless_they_are_joined() {
    let node = Node::bare("iso", 1);
    let _outside = lan(&[&node]);
    node.set_up(Backend::default(), None);
    node.machine.run(|| {
        let six = |text: &str| text.parse::<cidr::Ipv6Inet>().unwrap();
        let ip: cidr::Ipv4Inet = "10.78.0.1/24".parse().unwrap();
        setup_node(SetupNodeRequest::new("other", ip, vec![]).with_node_ip(six("fd78::1/64")))
            .unwrap();
        let ip: cidr::Ipv4Inet = "10.78.0.2/24".parse().unwrap();
        let ports = vec![Port::new(7070, 80)];
        let request = SetupInstanceRequest::new("other", [10, 78, 0, 1], "x", ip, ports);
        setup_instance(request.with_instance_ip(six("fd78::2/64"))).unwrap();
    });
    node.instance("a", 2, vec![]);
    reach(&node.machine, &WAYS, false, "at first");
    let pings = |from: &str, ip: &str| {
        node.machine.try_sh(&format!("ip netns exec telaio-i-{from} ping -c 1 -W 1 {ip}"))
    };
    for (from, _, ip, _) in WAYS {
        assert!(!pings(from, ip), "{from} to {ip}");
    }
    // What is published is published for everybody.
    for (ip, published) in [("10.78.0.2", "192.168.5.1"), ("fd78::2", "fd05::1")] {
        let _server = serve(&node, Some("x"), ip, 80, Wire::Tcp);
        assert!(ask(&node, Some("a"), published, 7070, Wire::Tcp).is_ok(), "{published}");
    }
    // Unless they are allowed to: both ways, and no longer.
    let join = |are_joined| {
        node.machine.run(move || {
            Host::default().join_networks("iso", "other", are_joined).unwrap();
        });
    };
    join(true);
    reach(&node.machine, &WAYS, true, "joined");
    for (from, _, ip, _) in WAYS {
        assert!((0..30).any(|_| pings(from, ip)), "{from} to {ip}");
    }
    // Whatever else happens to one of them.
    node.machine.run(|| Host::default().repair().unwrap());
    reach(&node.machine, &WAYS, true, "mended");
    join(false);
    reach(&node.machine, &WAYS, false, "no longer");
}

#[test]
fn networks_of_configurations_reach_each_other_where_one_says_so_by_both_families() {
    let machine = machine(&["a", "b", "c"]);
    let network = |number: u8, reaches: serde_json::Value| {
        config_with(
            json!({"name": format!("net{number}"), "bridge": format!("br{number}"), "reaches": reaches,
            "ipam": {"type": "host-local", "ranges": [[{"subnet": format!("10.9{number}.0.0/16")}],
                [{"subnet": format!("fd9{number}::/64")}]], "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]}}),
        )
    };
    for (name, config) in [
        ("a", network(1, json!([]))),
        ("b", network(2, json!(["net1"]))),
        ("c", network(3, json!(null))),
    ] {
        Call::new("ADD", name, &config).make(&machine).unwrap();
    }
    let joined = [
        ("a", "b", "10.92.0.2", "10.91.0.2"),
        ("a", "b", "fd92::2", "fd91::2"),
        ("b", "a", "10.91.0.2", "10.92.0.2"),
        ("b", "a", "fd91::2", "fd92::2"),
    ];
    reach(&machine, &joined, true, "said by one");
    let apart = [
        ("a", "c", "10.93.0.2", ""),
        ("a", "c", "fd93::2", ""),
        ("c", "b", "10.92.0.2", ""),
        ("c", "b", "fd92::2", ""),
    ];
    reach(&machine, &apart, false, "said by nobody");
}
