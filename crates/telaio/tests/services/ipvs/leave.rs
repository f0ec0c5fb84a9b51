//! To another backend and back: nobody notices, and what IPVS has goes when its last connection has ended.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use telaio_testkit::netns::{Cluster, Family, Host, Place};

use super::reuse::{PORTS, connect};
use super::{at, servers};
use crate::kill::wait_for_quiet;
use crate::manifest::{SERVICE_PORT, load_balancer_ip, node_port};
use crate::node::{Backend, Node};
use crate::restart::{Witnesses, services};
use crate::switch::traces;

/// How long IPVS may be there after its last connection.
const END_TIME_MAX: Duration = Duration::from_secs(70);
/// Between two turns of a client that uses its ports again.
const PAUSE: Duration = Duration::from_millis(50);
/// How often the test looks.
const LOOK_PERIOD: Duration = Duration::from_millis(500);

in_guest!(
    nobody_notices_a_switch_to_ipvs,
    nobody_notices_a_switch_from_ipvs,
    connections_of_ipvs_go_on_until_they_end_and_nothing_is_left,
    clients_that_use_their_ports_again_do_not_keep_ipvs,
);

fn nobody_notices_a_switch_to_ipvs() {
    let cluster = Cluster::start().unwrap();
    let mut node = Node::started(&cluster, Backend::IptablesLegacy, &services());
    let witnesses = Witnesses::of(&cluster);
    node.end();
    node.backend = Backend::Ipvs;
    node.start();
    node.settle();
    node.wait_until("end of the old rules", || traces(&node, Backend::IptablesLegacy).is_empty());
    assert!(!traces(&node, Backend::Ipvs).is_empty());
    witnesses.have_noticed_nothing();
}

/// Another backend serves: IPVS gets no more connections, and keeps those that it has.
fn is_left(node: &Node<'_>) -> bool {
    let all = servers(node);
    let mut endpoints = all.lines().filter(|line| line.starts_with("-a "));
    all.contains("-a ") && endpoints.all(|line| line.ends_with(" -w 0"))
}

fn nobody_notices_a_switch_from_ipvs() {
    let cluster = Cluster::start().unwrap();
    let mut node = Node::started(&cluster, Backend::Ipvs, &services());
    let witnesses = Witnesses::of(&cluster);
    node.end();
    node.backend = Backend::IptablesLegacy;
    node.start();
    node.settle();
    node.wait_until("end of new connections by IPVS", || is_left(&node));
    assert!(!traces(&node, Backend::IptablesLegacy).is_empty());
    witnesses.have_noticed_nothing();
}

fn connections_of_ipvs_go_on_until_they_end_and_nothing_is_left() {
    let cluster = Cluster::start().unwrap();
    let mut node = Node::started(&cluster, Backend::Ipvs, &services());
    let connect = |family| {
        let balancer = SocketAddr::new(load_balancer_ip(family, 3), SERVICE_PORT);
        let node_ip = SocketAddr::new(Host::NodeA.address(family), node_port(1));
        let places = [
            (Host::A2, at(family, 1)),
            (Host::NodeA, at(family, 2)),
            (Host::Outside, balancer),
            (Host::Outside, node_ip),
        ];
        places.map(|(host, to)| {
            let conversation = cluster.connect(Place::of(host), to).unwrap();
            assert!(conversation.greeting().unwrap().by().is_some(), "{to}");
            (to, conversation)
        })
    };
    let conversations: Vec<_> = Family::ALL.into_iter().flat_map(connect).collect();
    node.end();
    node.backend = Backend::IptablesLegacy;
    for round in 0..2 {
        node.start();
        node.settle();
        node.wait_until("end of new connections by IPVS", || is_left(&node));
        for (to, conversation) in &conversations {
            let said = conversation.echo(b"still here");
            said.unwrap_or_else(|error| panic!("round {round}, {to}: {error}"));
        }
        if round == 0 {
            node.kill();
            wait_for_quiet(&cluster);
        }
    }
    drop(conversations);
    wait_for_end(&node);
    assert!(!traces(&node, Backend::IptablesLegacy).is_empty());
}

/// To look takes the one core that the agent needs.
fn wait_for_end(node: &Node<'_>) {
    let deadline = Instant::now() + END_TIME_MAX;
    while !traces(node, Backend::Ipvs).is_empty() {
        let connections = || node.output("ipvsadm", &["-lcn"]);
        assert!(Instant::now() < deadline, "left of IPVS:\n{}\n{}", servers(node), connections());
        std::thread::sleep(LOOK_PERIOD);
    }
}

/// IPVS remembers a connection that has ended for a while, and who uses its port again reminds it of that,
/// though another backend leads it. It must not be waited for.
fn clients_that_use_their_ports_again_do_not_keep_ipvs() {
    let cluster = Cluster::start().unwrap();
    let mut node = Node::started(&cluster, Backend::Ipvs, &services());
    let ending = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let client = scope.spawn(|| {
            cluster.on(Host::A2, || {
                while !ending.load(Ordering::Relaxed) {
                    for (family, port) in Family::ALL.into_iter().zip(PORTS) {
                        connect(Host::A2.address(family), port, at(family, 1));
                    }
                    std::thread::sleep(PAUSE);
                }
            });
        });
        node.end();
        node.backend = Backend::IptablesLegacy;
        node.start();
        node.settle();
        wait_for_end(&node);
        ending.store(true, Ordering::Relaxed);
        client.join().unwrap();
    });
}
