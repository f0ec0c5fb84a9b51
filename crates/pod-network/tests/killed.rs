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

/// What the child is told by: the number that its chance begins with.
const SEED: &str = "TELAIO_TEST_SEED";
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

/// Calls, by number. What they say is not the point: the last child may have been killed in any state.
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

const CALLS: u64 = 10;

#[test]
#[ignore = "the child that the test beside it starts and kills"]
fn the_one_who_calls_until_it_is_killed() {
    let mut chance = Chance(std::env::var(SEED).unwrap().parse().unwrap());
    eprint!("!");
    loop {
        call(chance.below(CALLS));
    }
}

/// Starts a child on the machine of the calling thread and kills it in the middle of whatever it does.
fn kill(seed: u64, after: Duration) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "--nocapture", "the_one_who_calls_until_it_is_killed"])
        .env(SEED, seed.to_string())
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
            kill(seed, after);
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
