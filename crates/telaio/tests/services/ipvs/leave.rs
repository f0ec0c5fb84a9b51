//! To another backend and back: nobody notices, and what IPVS has goes when its last connection has ended.

use telaio_testkit::netns::Cluster;

use super::servers;
use crate::kill::wait_for_quiet;
use crate::node::{Backend, Node};
use crate::restart::{Witnesses, services};
use crate::switch::traces;

in_guest!(
    nobody_notices_a_switch_to_ipvs,
    nobody_notices_a_switch_from_ipvs_whose_connections_go_on_until_they_end,
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

fn nobody_notices_a_switch_from_ipvs_whose_connections_go_on_until_they_end() {
    let cluster = Cluster::start().unwrap();
    let mut node = Node::started(&cluster, Backend::Ipvs, &services());
    let witnesses = Witnesses::of(&cluster);
    node.end();
    node.backend = Backend::IptablesLegacy;
    for round in 0..2 {
        node.start();
        node.settle();
        // Connections of IPVS are its own.
        node.wait_until("end of new connections by IPVS", || {
            let all = servers(&node);
            let mut endpoints = all.lines().filter(|line| line.starts_with("-a "));
            all.contains("-a ") && endpoints.all(|line| line.ends_with(" -w 0"))
        });
        witnesses.wait();
        if round == 0 {
            node.kill();
            wait_for_quiet(&cluster);
        }
    }
    witnesses.have_noticed_nothing();
    node.wait_until("end of IPVS", || traces(&node, Backend::Ipvs).is_empty());
    assert!(!traces(&node, Backend::IptablesLegacy).is_empty());
}
