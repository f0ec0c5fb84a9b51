//! The removal of everything, and what is made meanwhile, killed at any moment.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod support;

use std::io::Read;
use std::process::{Command, Stdio};
use std::time::Duration;

use cidr::{Ipv4Inet, Ipv6Inet};
use support::{Chance, Node, Wire, ask, lan, serve};
use telaio_pod_network::instance::{SetupInstanceRequest, setup_instance};
use telaio_pod_network::node::{NodeIp, NodeRequest, SetupNodeRequest, setup_node};
use telaio_pod_network::overlay::Backend;
use telaio_pod_network::{Bandwidth, Error, Host, Port};

/// What the child is told by: the number that its chance begins with, and the way to other nodes.
const SEED: &str = "TELAIO_TEST_SEED";
const BACKEND: &str = "TELAIO_TEST_BACKEND";
const KILLS: u64 = 30;

fn far() -> NodeRequest {
    let ip: Ipv4Inet = "10.77.9.1/24".parse().unwrap();
    let ip6: Ipv6Inet = "fd77:9::1/64".parse().unwrap();
    let ip = NodeIp::new(ip, [192, 168, 5, 9]).with_cluster_ip(ip6);
    NodeRequest::new("far", ip.with_external_ip("fd05::9".parse::<std::net::Ipv6Addr>().unwrap()))
}

fn own(backend: Backend) -> SetupNodeRequest {
    let ip: Ipv4Inet = "10.77.1.1/24".parse().unwrap();
    SetupNodeRequest::new("own", ip, vec![far()])
        .with_node_ip("fd77:1::1/64".parse::<Ipv6Inet>().unwrap())
        .with_backend(backend)
}

fn instance(host: u8) -> SetupInstanceRequest {
    let ip: Ipv4Inet = format!("10.77.1.{host}/24").parse().unwrap();
    let limits =
        Bandwidth { ingress_rate: 80_000_000, egress_rate: 80_000_000, ..Bandwidth::default() };
    let ports = vec![Port::new(8000 + u16::from(host), 80)];
    SetupInstanceRequest::new("own", [10, 77, 1, 1], format!("i{host}"), ip, ports)
        .with_instance_ip(format!("fd77:1::{host}/64").parse::<Ipv6Inet>().unwrap())
        .with_bandwidth(limits)
}

/// A node of a cluster with two instances.
fn make(backend: Backend) -> Result<(), Error> {
    setup_node(own(backend))?;
    for host in [2, 3] {
        setup_instance(instance(host))?;
    }
    Ok(())
}

fn backend(name: &str) -> Backend {
    if name == "vxlan" { Backend::default() } else { Backend::HostGw }
}

#[test]
#[ignore = "the child that the test beside it starts and kills"]
fn the_one_who_makes_and_removes_until_it_is_killed() {
    let mut chance = Chance(std::env::var(SEED).unwrap().parse().unwrap());
    let backend = backend(&std::env::var(BACKEND).unwrap());
    eprint!("!");
    loop {
        // What they say is not the point: the last child may have been killed in any state.
        match chance.below(5) {
            0 | 1 => drop(make(backend)),
            2 => drop(Host::default().repair()),
            _ => drop(Host::default().remove_all()),
        }
    }
}

/// Starts a child on the machine of the calling thread and kills it in the middle of whatever it does.
fn kill(backend: &str, seed: u64, after: Duration) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "--nocapture"])
        .arg("the_one_who_makes_and_removes_until_it_is_killed")
        .env(SEED, seed.to_string())
        .env(BACKEND, backend)
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

/// All that there is, with the machine's settings. In which order the tables were made says nothing, and neither does by which name
/// they are known to be of a directory that is made anew.
fn everything(node: &Node) -> String {
    let more = node.machine.sh(
        "ip -o address | awk '{print $2, $3, $4}' | grep -v fe80; ip rule; tc qdisc show | grep 'tbf\\|ingress'; \
         cd /proc/sys/net; for it in ipv4/ip_forward ipv6/conf/all/forwarding ipv4/conf/lan0/forwarding ipv6/conf/lan0/accept_ra \
         ipv4/conf/lan0/send_redirects ipv4/conf/all/route_localnet; do echo $it $(cat $it); done",
    );
    let all = node.inventory() + &more;
    let nameless = |line| if str::contains(line, "set state-") { "set state" } else { line };
    let mut lines: Vec<&str> = all.lines().map(nameless).collect();
    lines.sort_unstable();
    lines.join("\n")
}

fn killed_while_everything_is_removed(name: &'static str) {
    let node = Node::bare("own", 1);
    let _outside = lan(&[&node]);
    let remove = || Host::default().remove_all().unwrap();
    let bare = everything(&node);
    node.machine.run(move || make(backend(name)).unwrap());
    let whole = everything(&node);
    assert!(whole.contains("10.77.9.0/24") && whole.contains("telaio-i-i3"), "{whole}");
    node.machine.run(remove);
    support::assert_same(&everything(&node), &bare, "without any kill");
    let mut chance = Chance(29);
    for round in 0..KILLS {
        let (seed, after) = (chance.below(1 << 20), Duration::from_micros(chance.below(60_000)));
        let turn = chance.below(3);
        let when = format!("{name}, round {round}, seed {seed}, {after:?}, turn {turn}");
        node.machine.run(move || {
            kill(name, seed, after);
            match turn {
                0 => make(backend(name)).unwrap(),
                1 => drop(Host::default().repair().unwrap()),
                _ => {}
            }
        });
        if turn == 0 {
            support::assert_same(&everything(&node), &whole, &when);
            let _server = serve(&node, Some("i2"), "10.77.1.2", 80, Wire::Tcp);
            assert!(ask(&node, Some("i3"), "10.77.1.1", 8002, Wire::Tcp).is_ok(), "{when}");
        }
        node.machine.run(remove);
        support::assert_same(&everything(&node), &bare, &when);
    }
}

#[test]
fn killed_while_everything_is_removed_by_vxlan_nothing_is_left_after_the_next() {
    killed_while_everything_is_removed("vxlan");
}

#[test]
fn killed_while_everything_is_removed_by_host_gw_nothing_is_left_after_the_next() {
    killed_while_everything_is_removed("host-gw");
}
