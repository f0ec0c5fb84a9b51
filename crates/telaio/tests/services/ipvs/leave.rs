//! To another backend and back: nobody notices, and what IPVS has goes when its last connection has ended.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use telaio_testkit::netns::{Cluster, Family, Host, Place};

use super::{at, servers};
use crate::kill::wait_for_quiet;
use crate::manifest::{SERVICE_PORT, load_balancer_ip, node_port};
use crate::node::{Backend, Node};
use crate::restart::{Witnesses, services};
use crate::switch::traces;

/// How long IPVS may be there after its last connection.
const END_TIME_MAX: Duration = Duration::from_secs(70);
/// How often the test looks.
const LOOK_PERIOD: Duration = Duration::from_millis(500);

in_guest!(
    nobody_notices_a_switch_to_ipvs,
    nobody_notices_a_switch_from_ipvs,
    connections_of_ipvs_go_on_until_they_end_and_nothing_is_left,
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

/// Nobody else connects meanwhile: who uses again the port of a connection that IPVS has not forgotten yet
/// reminds it of that, and it would wait for two minutes more.
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
    // To look takes the one core that the agent needs, and IPVS keeps what has ended for a while.
    let deadline = Instant::now() + END_TIME_MAX;
    while !traces(&node, Backend::Ipvs).is_empty() {
        let connections = || node.output("ipvsadm", &["-lcn"]);
        assert!(Instant::now() < deadline, "left of IPVS:\n{}\n{}", servers(&node), connections());
        std::thread::sleep(LOOK_PERIOD);
    }
    assert!(!traces(&node, Backend::IptablesLegacy).is_empty());
}
