//! Calls of the library that are killed at any moment.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod support;

use std::io::Read;
use std::process::{Command, Stdio};
use std::time::Duration;

use cidr::{IpInet, Ipv4Inet};
use support::{Chance, Node, Wire, ask, lan, serve};
use telaio_pod_network::instance::{
    CleanInstanceRequest, SetupInstanceRequest, clean_instance, setup_instance,
};
use telaio_pod_network::node::{
    CleanNodeRequest, NodeIp, NodeRequest, SetupIptablesRequest, SetupNodeRequest, clean_node,
    delete_node_in_cluster, new_node_in_cluster, setup_iptables, setup_node,
};
use telaio_pod_network::overlay::Backend;
use telaio_pod_network::{Host, Port, Protocol};

/// What the child is told by: the number that its chance begins with, and what it calls.
const SEED: &str = "TELAIO_TEST_SEED";
const CALLS: &str = "TELAIO_TEST_CALLS";
const KILLS: u64 = 240;

fn far() -> NodeRequest {
    let ip: Ipv4Inet = "10.77.9.1/24".parse().unwrap();
    let ip6: cidr::Ipv6Inet = "fd77:9::1/64".parse().unwrap();
    NodeRequest::new("far", NodeIp::new(ip, [192, 168, 5, 9]).with_cluster_ip(ip6))
}

fn instance() -> SetupInstanceRequest {
    let ip: Ipv4Inet = "10.77.1.2/24".parse().unwrap();
    let ports = vec![Port::new(8080, 80), Port::new(8080, 80).with_protocol(Protocol::Udp)];
    SetupInstanceRequest::new("kill", [10, 77, 1, 1], "a", ip, ports)
        .with_instance_ip("fd77:1::2/64".parse::<cidr::Ipv6Inet>().unwrap())
}

fn gone() -> CleanInstanceRequest {
    CleanInstanceRequest::new("a", Vec::new(), "10.77.1.2/24".parse::<IpInet>().unwrap())
}

fn second() -> SetupNodeRequest {
    let ip: Ipv4Inet = "10.78.0.1/24".parse().unwrap();
    SetupNodeRequest::new("second", ip, Vec::new())
}

/// What a child calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Calls {
    /// Instances, networks and others' nodes, while the node that reaches these is there.
    Beside,
    /// That node itself comes and goes, with all that it is told of the cluster.
    Carrier(Backend),
}

impl Calls {
    const ALL: [(&str, Self); 3] = [
        ("beside", Self::Beside),
        ("vxlan", Self::Carrier(Backend::Vxlan { vni: 1, port: 8472 })),
        ("host-gw", Self::Carrier(Backend::HostGw)),
    ];

    fn name(self) -> &'static str {
        Self::ALL.into_iter().find(|(_, it)| *it == self).unwrap().0
    }

    /// One of them. What it says is not the point: the last child may have been killed in any state.
    fn make(self, chance: &mut Chance) {
        match self {
            Self::Beside => call(chance.below(10)),
            Self::Carrier(backend) => carry(backend, chance),
        }
    }
}

/// Other nodes: the first so many of three.
fn others(count: u64) -> Vec<NodeRequest> {
    let other = |number: u64| {
        let ip: Ipv4Inet = format!("10.77.{number}.1/24").parse().unwrap();
        let ip6: cidr::Ipv6Inet = format!("fd77:{number}::1/64").parse().unwrap();
        let [external, external6] = [format!("192.168.5.{number}"), format!("fd05::{number}")]
            .map(|ip| ip.parse::<std::net::IpAddr>().unwrap());
        let ip = NodeIp::new(ip, external).with_cluster_ip(ip6).with_external_ip(external6);
        NodeRequest::new(format!("other{number}"), ip)
    };
    (2..2 + count).map(other).collect()
}

fn carrier(backend: Backend, count: u64) -> SetupNodeRequest {
    let ip: Ipv4Inet = "10.77.1.1/24".parse().unwrap();
    SetupNodeRequest::new("carrier", ip, others(count))
        .with_node_ip("fd77:1::1/64".parse::<cidr::Ipv6Inet>().unwrap())
        .with_backend(backend)
}

fn carry(backend: Backend, chance: &mut Chance) {
    match chance.below(6) {
        0 | 1 => drop(Host::default().follow_cluster(carrier(backend, chance.below(4)))),
        2 => drop(setup_node(carrier(backend, chance.below(4)))),
        3 => drop(Host::default().repair()),
        _ => drop(clean_node(CleanNodeRequest::new("carrier"))),
    }
}

/// Calls beside a node that is there, by number.
fn call(number: u64) {
    match number {
        0 | 1 => drop(setup_instance(instance())),
        2 => drop(clean_instance(gone())),
        3 => drop(new_node_in_cluster(far())),
        4 => drop(delete_node_in_cluster(far())),
        5 => drop(setup_node(second())),
        6 => drop(clean_node(CleanNodeRequest::new("second"))),
        7 => drop(Host::default().join_networks("kill", "second", true)),
        8 => drop(setup_iptables(SetupIptablesRequest::new("kill"))),
        _ => drop(Host::default().repair()),
    }
}

#[test]
#[ignore = "the child that the test beside it starts and kills"]
fn the_one_who_calls_until_it_is_killed() {
    let mut chance = Chance(std::env::var(SEED).unwrap().parse().unwrap());
    let name = std::env::var(CALLS).unwrap();
    let (_, calls) = Calls::ALL.into_iter().find(|(it, _)| *it == name).unwrap();
    eprint!("!");
    loop {
        calls.make(&mut chance);
    }
}

/// Starts a child on the machine of the calling thread and kills it in the middle of whatever it does.
fn kill(calls: Calls, seed: u64, after: Duration) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "--nocapture", "the_one_who_calls_until_it_is_killed"])
        .env(SEED, seed.to_string())
        .env(CALLS, calls.name())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut begun = [0];
    child.stderr.as_mut().unwrap().read_exact(&mut begun).unwrap();
    assert_eq!(&begun, b"!", "the child has begun");
    std::thread::sleep(after);
    assert!(child.try_wait().unwrap().is_none(), "it goes on until it is killed");
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn killed_more_than_two_hundred_times_in_any_call_everything_comes_right_and_nothing_is_left() {
    let node = Node::bare("kill", 1);
    let _outside = lan(&[&node]);
    node.set_up(Backend::default(), None);
    node.instance("stays", 7, vec![Port::new(7070, 80)]);
    // Whatever is made only once is there.
    node.machine.run(|| {
        setup_instance(instance()).unwrap();
        new_node_in_cluster(far()).unwrap();
        delete_node_in_cluster(far()).unwrap();
        clean_instance(gone()).unwrap();
    });
    let told = |node: &Node| node.machine.sh("cat /var/lib/telaio/pods/node.json");
    let (before, told_before) = (node.inventory(), told(&node));
    let mut chance = Chance(5);
    for round in 0..KILLS {
        let (seed, after) = (chance.below(1 << 20), Duration::from_micros(chance.below(30_000)));
        let turn = chance.below(3);
        node.machine.run(move || {
            kill(Calls::Beside, seed, after);
            if turn == 0 {
                Host::default().repair().unwrap();
            }
            if turn == 1 {
                // The same again, whatever had been done of it.
                setup_node(second()).unwrap();
                setup_instance(instance()).unwrap();
                new_node_in_cluster(far()).unwrap();
                Host::default().join_networks("kill", "second", true).unwrap();
            }
        });
        if turn == 1 && round % 5 == 0 {
            let _server = serve(&node, Some("a"), "10.77.1.2", 80, Wire::Tcp);
            assert!(ask(&node, Some("stays"), "10.77.1.1", 8080, Wire::Tcp).is_ok(), "{round}");
        }
        node.machine.run(move || {
            clean_instance(gone()).unwrap();
            delete_node_in_cluster(far()).unwrap();
            clean_node(CleanNodeRequest::new("second")).unwrap();
            if turn == 2 {
                Host::default().repair().unwrap();
            }
        });
        let when = format!("round {round}, seed {seed}, {after:?}, turn {turn}");
        support::assert_same(&node.inventory(), &before, &when);
        assert_eq!(told(&node), told_before, "{when}");
    }
    let _server = serve(&node, Some("stays"), "10.77.1.7", 80, Wire::Tcp);
    assert!(ask(&node, None, "192.168.5.1", 7070, Wire::Tcp).is_ok());
}

/// The inventory and whatever a node tells others by. In which order the tables were made says nothing.
fn everything(node: &Node) -> String {
    let addresses =
        node.machine.sh("ip -o address | awk '{print $2, $3, $4}' | grep -v fe80; ip rule");
    let all = node.inventory() + &addresses;
    let mut lines: Vec<&str> = all.lines().collect();
    lines.sort_unstable();
    lines.join("\n")
}

#[test]
fn killed_while_the_node_itself_comes_and_goes_everything_comes_right_and_nothing_is_left() {
    const KILLS: u64 = 30;
    for (name, calls) in Calls::ALL {
        let Calls::Carrier(backend) = calls else { continue };
        let node = Node::bare("carrier", 1);
        let _outside = lan(&[&node]);
        let follow = move || Host::default().follow_cluster(carrier(backend, 2)).unwrap();
        let clean = || clean_node(CleanNodeRequest::new("carrier")).unwrap();
        // Whatever is made only once is there.
        node.machine.run(move || {
            follow();
            clean();
        });
        let bare = everything(&node);
        node.machine.run(follow);
        let whole = everything(&node);
        assert!(whole.contains("10.77.3.0/24") && !whole.contains("10.77.4.0/24"), "{whole}");
        let mut chance = Chance(17);
        for round in 0..KILLS {
            let (seed, after) =
                (chance.below(1 << 20), Duration::from_micros(chance.below(40_000)));
            let turn = chance.below(3);
            let problems = node.machine.run(move || {
                kill(calls, seed, after);
                if turn == 1 {
                    Host::default().repair().unwrap();
                }
                if turn == 0 { Vec::new() } else { follow() }
            });
            assert!(problems.is_empty(), "{problems:?}");
            let when = format!("{name}, round {round}, seed {seed}, {after:?}, turn {turn}");
            if turn != 0 {
                support::assert_same(&everything(&node), &whole, &when);
            }
            node.machine.run(clean);
            support::assert_same(&everything(&node), &bare, &when);
        }
    }
}
