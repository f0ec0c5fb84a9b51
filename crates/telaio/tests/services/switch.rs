//! Another backend on a live node: nobody is refused, nothing breaks, nothing of the old one stays.

use telaio_testkit::netns::Cluster;

use crate::kill::wait_for_quiet;
use crate::node::{Backend, IPVS_DEVICE, Node};
use crate::restart::{Witnesses, services};

/// Where somebody else has virtual servers: an address, and a mark.
const FOREIGN_SERVERS: [&str; 2] = ["198.51.100.77", "-f 4711"];

/// What a backend leaves of itself, if anything, as independent programs show it.
pub(crate) fn traces(node: &Node<'_>, backend: Backend) -> Vec<String> {
    let lines = |text: String, wanted: &str| -> Vec<String> {
        text.lines().filter(|line| line.contains(wanted)).map(str::to_owned).collect()
    };
    match backend {
        Backend::Nftables => lines(node.output("nft", &["list", "tables"]), "telaio"),
        Backend::IptablesNft => ["iptables-nft-save", "ip6tables-nft-save"]
            .into_iter()
            .flat_map(|program| lines(node.output(program, &[]), "TELAIO"))
            .collect(),
        Backend::IptablesLegacy => ["iptables-legacy-save", "ip6tables-legacy-save"]
            .into_iter()
            .flat_map(|program| lines(node.output(program, &[]), "TELAIO"))
            .filter(|line| !line.contains("TELAIO-IPVS"))
            .collect(),
        Backend::Ipvs => {
            let mut all = lines(node.output("ipset", &["list", "-name"]), "TELAIO");
            all.extend(lines(node.output("ip", &["-o", "link"]), IPVS_DEVICE));
            for program in ["iptables-legacy-save", "ip6tables-legacy-save"] {
                all.extend(lines(node.output(program, &[]), "TELAIO-IPVS"));
            }
            // Whose they are is not to be seen; in these tests all are ours, except at one address.
            let servers = node.output("ipvsadm", &["-S", "-n"]);
            let is_ours = |line: &&str| !FOREIGN_SERVERS.iter().any(|it| line.contains(it));
            let ours = servers.lines().filter(is_ours);
            all.extend(ours.map(str::to_owned));
            all
        }
    }
}

/// Goes through these backends one after the other on one node.
fn switch(backends: &[Backend]) {
    let cluster = Cluster::start().unwrap();
    let mut node = Node::started(&cluster, backends[0], &services());
    let witnesses = Witnesses::of(&cluster);
    for next in &backends[1..] {
        node.end();
        node.backend = *next;
        node.start();
        node.settle();
        witnesses.wait();
        assert!(!traces(&node, *next).is_empty(), "nothing of {}", next.name());
        for other in Backend::here().iter().filter(|other| *other != next) {
            node.wait_until("end of the old rules", || traces(&node, *other).is_empty());
        }
    }
    witnesses.have_noticed_nothing();
}

#[test]
fn nobody_notices_a_switch_between_nftables_and_iptables_nft() {
    switch(&[Backend::Nftables, Backend::IptablesNft, Backend::Nftables]);
}

#[test]
fn nobody_notices_a_switch_between_nftables_and_iptables_legacy() {
    switch(&[Backend::Nftables, Backend::IptablesLegacy, Backend::Nftables]);
}

#[test]
fn nobody_notices_a_switch_between_the_flavors_of_iptables() {
    switch(&[Backend::IptablesLegacy, Backend::IptablesNft, Backend::IptablesLegacy]);
}

/// How often a switch is begun until one is cut short before it has removed the old rules.
const CUTS_MAX: usize = 20;

/// Begins to switch, is killed with both backends' rules in place, and goes back.
fn cut_short_and_go_back(first: Backend, second: Backend) {
    let cluster = Cluster::start().unwrap();
    let mut node = Node::started(&cluster, first, &services());
    let witnesses = Witnesses::of(&cluster);
    let cut = (0..CUTS_MAX).any(|_| {
        node.end();
        node.backend = second;
        node.start();
        node.wait_until("rules of the new backend", || !traces(&node, second).is_empty());
        node.kill();
        wait_for_quiet(&cluster);
        let is_cut = !traces(&node, first).is_empty() && !traces(&node, second).is_empty();
        node.backend = first;
        node.start();
        node.settle();
        let back = format!("end of the rules of {}", second.name());
        node.wait_until(&back, || traces(&node, second).is_empty());
        assert!(!traces(&node, first).is_empty(), "nothing of {}", first.name());
        is_cut
    });
    assert!(cut, "{CUTS_MAX} switches were all too quick to be cut short");
    witnesses.have_noticed_nothing();
}

#[test]
fn a_switch_to_iptables_that_is_cut_short_and_reversed_leaves_nothing() {
    cut_short_and_go_back(Backend::Nftables, Backend::IptablesLegacy);
}

#[test]
fn a_switch_to_nftables_that_is_cut_short_and_reversed_leaves_nothing() {
    cut_short_and_go_back(Backend::IptablesLegacy, Backend::Nftables);
}
