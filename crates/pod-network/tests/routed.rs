//! Instances for which a bridge has no port left: they hang on none, are routed to, and are like all others.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

#[path = "support/policies.rs"]
mod policies;
mod support;

use std::time::Duration;

use policies::{keep, policy, select};
use serde_json::{Value, json};
use support::cni::{Call, config, config_with, machine, whole_inventory};
use support::{
    Chance, Node, PATIENCE, SILENCE, Wire, ask, ask_at, ask_from, echo, fill, lan, serve, serve_at,
    without_fillers,
};
use telaio_model::{NetworkPolicy, PolicyPeer, PolicyRule};
use telaio_pod_network::bandwidth::limit_link;
use telaio_pod_network::instance::setup_instance;
use telaio_pod_network::overlay::Backend;
use telaio_pod_network::{Bandwidth, Host, Port, Protocol};
use telaio_testkit::machine::Machine;

const WIRES: [Wire; 2] = [Wire::Tcp, Wire::Udp];

/// A node whose bridge is full: `near` hangs on it; what comes after is routed to.
fn full(name: &str) -> (Node, Machine) {
    let node = Node::bare(name, 1);
    let outside = lan(&[&node]);
    node.set_up(Backend::default(), None);
    node.instance("near", 2, vec![]);
    fill(&node.machine, &format!("tlb-{name}"));
    (node, outside)
}

/// The node's end of each instance that hangs on no bridge.
fn routed(machine: &Machine) -> Vec<(String, String)> {
    let all = machine.run(|| Host::default().attachments().unwrap());
    let routed = all.into_iter().filter(|it| it.is_routed);
    routed.map(|it| (it.container, it.host_link)).collect()
}

fn names(machine: &Machine) -> Vec<String> {
    routed(machine).into_iter().map(|(name, _)| name).collect()
}

#[test]
fn an_instance_beyond_a_bridges_ports_is_published_as_any_other() {
    let (node, outside) = full("full");
    let udp = Port::new(8080, 80).with_protocol(Protocol::Udp);
    node.instance("a", 3, vec![Port::new(8080, 80), udp, Port::new(9090, 80).at([192, 168, 5, 1])]);
    node.instance("b", 4, vec![]);
    assert_eq!(names(&node.machine), ["a", "b"]);
    // Nobody has to ask where it is: by IPv6 the node could not for a second or two.
    for (_, link) in routed(&node.machine) {
        let known = node
            .machine
            .sh(&format!("for of in -4 -6; do ip $of neigh show dev {link} nud permanent; done"));
        assert_eq!(
            known
                .lines()
                .filter(|line| line.contains("77:1::") || line.starts_with("10.77.1."))
                .count(),
            2,
            "{known}"
        );
    }
    for wire in WIRES {
        let _servers = ["10.77.1.3", "fd77:1::3"].map(|ip| serve(&node, Some("a"), ip, 80, wire));
        let outer = |ip: &str| ask_from(&outside, None, ip, 8080, wire, PATIENCE);
        assert_eq!(outer("192.168.5.1").as_deref(), Ok("192.168.5.99"), "{wire:?}");
        assert_eq!(outer("fd05::1").as_deref(), Ok("fd05::99"), "{wire:?}");
        let from = |who, ip: &str, port| ask(&node, who, ip, port, wire);
        for (who, v4, v6) in [("near", "10.77.1.2", "fd77:1::2"), ("b", "10.77.1.4", "fd77:1::4")] {
            assert_eq!(from(Some(who), "10.77.1.3", 80).as_deref(), Ok(v4), "{wire:?}");
            assert_eq!(from(Some(who), "fd77:1::3", 80).as_deref(), Ok(v6), "{wire:?}");
            assert_eq!(from(Some(who), "10.77.1.1", 8080).as_deref(), Ok(v4), "{wire:?}");
            assert_eq!(from(Some(who), "fd05::1", 8080).as_deref(), Ok(v6), "{wire:?}");
        }
        for ip in ["192.168.5.1", "fd05::1"] {
            assert!(from(Some("a"), ip, 8080).is_ok(), "the instance itself, {ip} {wire:?}");
            assert!(from(None, ip, 8080).is_ok(), "the node, {ip} {wire:?}");
        }
        assert!(from(None, "127.0.0.1", 8080).is_ok(), "localhost {wire:?}");
    }
    let _server = serve(&node, Some("a"), "10.77.1.3", 80, Wire::Tcp);
    let at = |ip, patience| ask_from(&node.machine, Some("b"), ip, 9090, Wire::Tcp, patience);
    assert!(at("192.168.5.1", PATIENCE).is_ok(), "at one address");
    assert!(at("10.77.1.1", SILENCE).is_err(), "at one address");
    // To the outside, and with more than a packet holds.
    let _servers =
        ["192.168.5.99", "fd05::99"].map(|ip| support::serve_on(&outside, None, ip, 81, Wire::Tcp));
    assert_eq!(ask(&node, Some("b"), "192.168.5.99", 81, Wire::Tcp).as_deref(), Ok("192.168.5.1"));
    assert_eq!(ask(&node, Some("b"), "fd05::99", 81, Wire::Tcp).as_deref(), Ok("fd05::1"));
    echo(&node.machine, Some("b"), "10.77.1.3", 80, (Wire::Tcp, 1 << 20)).unwrap();
    node.machine.sh("ip netns exec telaio-i-b ping -c 1 -W 20 -s 4000 fd77:1::3");
    node.clean("a", 3);
    assert!(ask_from(&outside, None, "192.168.5.1", 8080, Wire::Tcp, SILENCE).is_err());
}

/// Each damage is found by CHECK, and by mending all is well again.
fn damages(machine: &Machine, check: &Value, damages: &[String]) {
    let call = Call::new("CHECK", "a", check);
    call.make(machine).unwrap();
    for damage in damages {
        machine.sh(damage);
        let error = call.make(machine).expect_err(damage);
        assert_eq!(error["code"], 105, "{damage}: {error}");
        machine.run(|| Host::default().repair().unwrap());
        call.make(machine).unwrap_or_else(|error| panic!("{damage} is mended: {error}"));
        for ip in ["10.88.0.3", "fd88::3"] {
            let _server = serve_at(machine, Some("a"), ip, 80, Wire::Tcp);
            let answer = ask_at(machine, Some("near"), ip, 80, Wire::Tcp);
            assert!(answer.is_ok(), "{damage} is mended, {ip}: {answer:?}");
        }
    }
}

#[test]
fn every_difference_of_an_instance_without_a_bridge_is_found_and_mended() {
    let machine = machine(&["near", "a"]);
    Call::new("ADD", "near", &config()).make(&machine).unwrap();
    fill(&machine, "cni0");
    let with = config_with(json!({"runtimeConfig": {
        "portMappings": [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}],
        "bandwidth": {"ingressRate": 80_000_000, "egressRate": 80_000_000}}}));
    let mut check = with.clone();
    check["prevResult"] = Call::new("ADD", "a", &with).make(&machine).unwrap();
    let [(_, link)] = routed(&machine).try_into().unwrap();
    let limits = limit_link(&link);
    let cases = [
        "ip route del 10.88.0.3".to_owned(),
        "ip -6 route del fd88::3".to_owned(),
        "ip route replace 10.88.0.3 dev cni0".to_owned(),
        format!("ip link set {link} down"),
        format!("tc qdisc del dev {link} root"),
        format!("ip link set {limits} down"),
        "nft delete element ip telaio-pods any-ports '{ tcp . 8080 }'".to_owned(),
        "nft delete element ip6 telaio-pods any-ports '{ tcp . 8080 }'".to_owned(),
    ];
    damages(&machine, &check, &cases);
    // What no CHECK asks about, but packets do.
    machine.sh(&format!(
        "ip link set {link} group 0; echo 0 > /proc/sys/net/ipv4/conf/{link}/route_localnet"
    ));
    machine.run(|| Host::default().repair().unwrap());
    let _server = serve_at(&machine, Some("a"), "10.88.0.3", 80, Wire::Tcp);
    for (who, ip, port) in [
        (Some("near"), "10.88.0.3", 80),
        (Some("near"), "10.88.0.1", 8080),
        (None, "127.0.0.1", 8080),
    ] {
        let answer = ask_at(&machine, who, ip, port, Wire::Tcp);
        assert!(answer.is_ok(), "{who:?} {ip}:{port}: {answer:?}");
    }
    // A restart of everything but the records.
    machine.sh("nft flush ruleset; ip route del 10.88.0.3; ip -6 route del fd88::3");
    machine.run(|| Host::default().repair().unwrap());
    Call::new("CHECK", "a", &check).make(&machine).unwrap();
}

#[test]
fn one_instance_without_a_bridge_goes_alone_and_leaves_nothing() {
    let machine = machine(&["near", "a", "b"]);
    Call::new("ADD", "near", &config()).make(&machine).unwrap();
    fill(&machine, "cni0");
    Call::new("ADD", "b", &config()).make(&machine).unwrap();
    let all = || without_fillers(&whole_inventory(&machine));
    let before = all();
    for has_netns in [true, false] {
        Call::new("ADD", "a", &limited()).make(&machine).unwrap();
        assert_eq!(names(&machine), ["a", "b"]);
        assert_ne!(all(), before);
        let mut delete = Call::new("DEL", "a", &limited());
        if !has_netns {
            delete.netns = None;
        }
        for _ in 0..2 {
            delete.make(&machine).unwrap();
            support::assert_same(&all(), &before, "after DEL");
        }
        assert_eq!(machine.sh("ip -n a -o link | wc -l").trim(), "1", "only loopback is left");
    }
    let _server = serve_at(&machine, Some("b"), "10.88.0.3", 80, Wire::Tcp);
    assert_eq!(
        ask_at(&machine, Some("near"), "10.88.0.3", 80, Wire::Tcp).as_deref(),
        Ok("10.88.0.2")
    );
    // Nobody tries the bridge in vain when it is known to be full: the next link has the next number.
    let number = || -> u32 {
        let last = machine.sh("ip -o link | cut -d: -f1 | sort -n | tail -n 1");
        last.trim().parse().unwrap()
    };
    let numbers = [(); 2].map(|()| {
        Call::new("ADD", "a", &config()).make(&machine).unwrap();
        assert_eq!(names(&machine), ["a", "b"]);
        let own = number();
        Call::new("DEL", "a", &config()).make(&machine).unwrap();
        own
    });
    assert_eq!(numbers[1], numbers[0] + 1);
    // Where a port becomes free, the next one hangs on the bridge again; of others' it is known after mending.
    Call::new("DEL", "near", &config()).make(&machine).unwrap();
    Call::new("ADD", "near", &config()).make(&machine).unwrap();
    assert_eq!(names(&machine), ["b"]);
    Call::new("ADD", "a", &config()).make(&machine).unwrap();
    Call::new("DEL", "a", &config()).make(&machine).unwrap();
    machine.sh("ip link del filler7");
    machine.run(|| Host::default().repair().unwrap());
    Call::new("ADD", "a", &config()).make(&machine).unwrap();
    assert_eq!(names(&machine), ["b"]);
}

fn limited() -> Value {
    config_with(json!({"runtimeConfig": {
        "portMappings": [{"hostPort": 8080, "containerPort": 80}, {"hostPort": 8080, "containerPort": 80, "protocol": "udp"}],
        "bandwidth": {"ingressRate": 80_000_000, "egressRate": 80_000_000}}}))
}

#[test]
fn an_instance_without_a_bridge_is_no_faster_than_it_may_be() {
    let (node, _outside) = full("slow");
    let (rate, burst) = (8_000_000, 400_000);
    let limits = Bandwidth {
        ingress_rate: rate,
        ingress_burst: burst,
        egress_rate: rate,
        egress_burst: burst,
    };
    let wanted = node.wanted("a", 3, vec![]).with_bandwidth(limits);
    node.machine.run(move || setup_instance(wanted).unwrap());
    node.instance("b", 4, vec![]);
    let _servers = [("a", "10.77.1.3"), ("b", "10.77.1.4")]
        .map(|(name, ip)| serve(&node, Some(name), ip, 80, Wire::Tcp));
    for ip in ["10.77.1.3", "10.77.1.4"] {
        echo(&node.machine, Some("near"), ip, 80, (Wire::Tcp, 256 << 10)).unwrap();
    }
    let links = routed(&node.machine);
    // How often somebody had to wait for his turn: more was sent than the burst lets through at once.
    let waited = |link: &str| -> u64 {
        let text = node.machine.sh(&format!(
            "tc -s qdisc show dev {link} | grep -A1 tbf | grep -o 'overlimits [0-9]*' | cut -d' ' -f2"
        ));
        text.trim().parse().unwrap_or(0)
    };
    for (name, link) in links {
        let ways = [waited(&link), if name == "a" { waited(&limit_link(&link)) } else { 0 }];
        assert_eq!(ways.map(|count| count > 0), [name == "a"; 2], "{name} {ways:?}");
    }
}

#[test]
fn policies_hold_for_instances_without_a_bridge() {
    let (node, outside) = full("judge");
    node.instance("a", 3, vec![Port::new(8080, 80)]);
    node.instance("b", 4, vec![]);
    let peer = PolicyPeer::Pods { namespaces: None, pods: Some(select("b")) };
    let only_b = PolicyRule { peers: vec![peer], ports: vec![] };
    let pods = [("near", 2), ("a", 3), ("b", 4)];
    keep(
        &node,
        &pods,
        vec![
            NetworkPolicy { ingress: Some(vec![only_b]), ..policy("a") },
            NetworkPolicy { egress: Some(vec![]), ..policy("near") },
        ],
    );
    let _servers: Vec<_> = pods
        .into_iter()
        .flat_map(|(name, host)| {
            [format!("10.77.1.{host}"), format!("fd77:1::{host}")]
                .map(|ip| serve(&node, Some(name), &ip, 80, Wire::Tcp))
        })
        .collect();
    let reaches = |from, host: u8, is_allowed: bool| {
        for ip in [format!("10.77.1.{host}"), format!("fd77:1::{host}")] {
            let patience = if is_allowed { PATIENCE } else { SILENCE };
            let answer = ask_from(&node.machine, from, &ip, 80, Wire::Tcp, patience);
            assert_eq!(answer.is_ok(), is_allowed, "{from:?} {ip}: {answer:?}");
        }
    };
    for (from, host, is_allowed) in [
        ("near", 3, false),
        ("b", 3, true),
        ("near", 4, false),
        ("a", 4, true),
        ("a", 2, true),
        ("b", 2, true),
    ] {
        reaches(Some(from), host, is_allowed);
    }
    reaches(None, 3, true);
    let published = |patience| ask_from(&outside, None, "192.168.5.1", 8080, Wire::Tcp, patience);
    assert!(published(SILENCE).is_err(), "who comes by a published port is no pod");
    keep(&node, &pods, vec![]);
    reaches(Some("near"), 3, true);
    reaches(Some("near"), 4, true);
    assert!(published(PATIENCE).is_ok());
}

#[test]
fn killed_at_any_moment_calls_for_an_instance_without_a_bridge_leave_nothing() {
    const KILLS: u64 = 25;
    let machine = machine(&["near", "a"]);
    Call::new("ADD", "near", &config()).make(&machine).unwrap();
    fill(&machine, "cni0");
    let (add, delete) = (Call::new("ADD", "a", &limited()), Call::new("DEL", "a", &limited()));
    let mut valid = config();
    valid["cni.dev/valid-attachments"] = json!([{"containerID": "near", "ifname": "eth0"}]);
    let collect = Call::new("GC", "", &valid);
    for call in [&add, &delete] {
        call.make(&machine).unwrap();
    }
    let all = || without_fillers(&whole_inventory(&machine));
    let before = all();
    let mut chance = Chance(13);
    let (mut landed, mut round, mut longest) = (0, 0, 6000);
    while landed < KILLS {
        round += 1;
        assert!(round < KILLS * 4, "of {round} calls only {landed} were killed at work");
        let killed = [&add, &add, &delete, &collect][chance.below(4) as usize].clone();
        if killed.command != "ADD" {
            add.make(&machine).unwrap();
            assert_eq!(names(&machine), ["a"]);
        }
        let after = Duration::from_micros(chance.below(longest));
        if machine.run(move || killed.kill(after)) {
            landed += 1;
        } else {
            longest = (longest * 9 / 10).max(500);
        }
        match chance.below(4) {
            0 => {
                if let Err(error) = add.make(&machine) {
                    assert_eq!(error["code"], 104, "round {round}: {error}");
                } else {
                    let _server = serve_at(&machine, Some("a"), "0.0.0.0", 80, Wire::Tcp);
                    let answer = ask_at(&machine, Some("near"), "10.88.0.1", 8080, Wire::Tcp);
                    assert_eq!(answer.as_deref(), Ok("10.88.0.2"), "round {round}");
                }
                delete.make(&machine).unwrap();
            }
            1 => _ = delete.make(&machine).unwrap(),
            2 => _ = collect.make(&machine).unwrap(),
            _ => {
                // What was begun is taken back; what was whole stays.
                machine.run(|| Host::default().repair().unwrap());
                delete.make(&machine).unwrap();
            }
        }
        support::assert_same(&all(), &before, &format!("round {round}"));
    }
}
