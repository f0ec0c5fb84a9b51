//! The tables as transactions: sets, chains and rules of these networks.

use std::collections::BTreeSet;

use cidr::IpCidr;
use telaio_netlink::nftables::{
    Batch, Chain, ChainKind, DataType, Element, ElementData, Expression, Family, Hook, SetSpec,
    Verdict,
};
use telaio_netlink::rtnl::Mac;

use super::words::{self, Words};
use super::{
    ANY_PORTS, BRIDGES, CLUSTER_MAX, Cluster, HAIRPIN, ISOLATION, LOCALNET, NETWORKS, PORT_FRAMES,
    PORTS, PORTS_MAX, PUBLISHED, PUBLISHED_HERE, REACH, REACH_MAX, REDIRECTS, SOURCE, SOURCES_MAX,
    SOURCES4, SOURCES6, TABLE, cluster_set, joined, octets,
};
use crate::network::{Mode, Network};

/// The kernel's own hooks on bridges stand at 0.
const BEFORE_BRIDGE_NETFILTER: i32 = -10;

/// Table, maps, chains, and the rules of these networks.
pub(super) fn networks_batch(family: Family, cluster: &Cluster<'_>) -> Batch {
    let networks = cluster.networks;
    let words = Words { family };
    let mut batch = Batch::new(family, TABLE);
    batch.add_table();
    add_maps(&mut batch, words);
    add_cluster_sets(&mut batch, words, cluster);
    for chain in chains() {
        batch.add_chain(&chain);
        batch.flush_chain(&chain.name);
    }
    let mut rule = |chain: &str, expressions: Vec<Expression>| {
        batch.add_rule(chain, &expressions, None);
    };
    if family == Family::Ip {
        rule(LOCALNET, words.loopback_from_networks_dropped());
    } else {
        rule(LOCALNET, words.link_local_is_done());
    }
    rule(LOCALNET, Words::foreign_sources_dropped());
    for chain in [PUBLISHED, PUBLISHED_HERE] {
        rule(chain, Words::not_for_this_machine_is_done());
        if family == Family::Ip6 && chain == PUBLISHED_HERE {
            rule(chain, words.to_loopback_is_done());
        }
        rule(chain, words.published(true));
        rule(chain, words.published(false));
    }
    rule(SOURCE, words.hairpin_masqueraded());
    if family == Family::Ip {
        rule(SOURCE, words.loopback_to_networks_masqueraded());
    }
    for length in cluster.lengths(family) {
        rule(SOURCE, words.to_cluster_is_done(length, &cluster_set(length)));
    }
    for network in networks {
        masquerade_rules(networks, network, words, &mut |rule_| rule(SOURCE, rule_));
    }
    rule(ISOLATION, Words::other_networks_dropped());
    // By the link to other nodes that is said by its group; where routes lead there it is not.
    for length in cluster.lengths(family) {
        let Some(carrier) = cluster.carrier else { continue };
        for is_back in [false, true] {
            rule(ISOLATION, words.strangers_to_cluster_dropped(length, carrier, is_back));
        }
    }
    rule(REDIRECTS, words.redirects_dropped());
    put_networks(&mut batch, networks);
    batch
}

/// The table for frames on bridges.
pub(super) fn frames_batch(networks: &[Network]) -> Batch {
    let mut batch = Batch::new(Family::Bridge, TABLE);
    batch.add_table();
    let mut set = |name, key: &[DataType], size| {
        let (values, verdicts, dynamic_timeout_ms) = (None, false, None);
        batch.add_set(&SetSpec { name, key, values, verdicts, size, dynamic_timeout_ms });
    };
    set(BRIDGES, &[DataType::Ethernet], crate::network::NETWORKS_MAX);
    set(SOURCES4, &[DataType::InterfaceName, DataType::Ipv4], SOURCES_MAX);
    set(SOURCES6, &[DataType::InterfaceName, DataType::Ipv6], SOURCES_MAX);
    batch.flush_set(BRIDGES);
    for network in networks.iter().filter(|network| network.mode == Mode::Routed) {
        if let Ok(mac) = network.bridge_mac.parse::<Mac>() {
            batch.add_element(BRIDGES, &Element::new(&mac.0, ElementData::None));
        }
    }
    let chain =
        Chain::base(PORT_FRAMES, ChainKind::Filter, Hook::Prerouting, BEFORE_BRIDGE_NETFILTER);
    batch.add_chain(&chain);
    batch.flush_chain(PORT_FRAMES);
    for rule in words::frames() {
        batch.add_rule(PORT_FRAMES, &rule, None);
    }
    batch
}

fn add_maps(batch: &mut Batch, words: Words) {
    use DataType::{Group, Port as TransportPort, Protocol as Transport};
    let address = words.address_type();
    let endpoint = [address, TransportPort];
    let mut map = |name, key: &[DataType], values: Option<&[DataType]>, size| {
        let spec = SetSpec { name, key, values, verdicts: false, size, dynamic_timeout_ms: None };
        batch.add_set(&spec);
    };
    map(PORTS, &[address, Transport, TransportPort], Some(&endpoint), PORTS_MAX);
    map(ANY_PORTS, &[Transport, TransportPort], Some(&endpoint), PORTS_MAX);
    map(HAIRPIN, &[address, address], None, PORTS_MAX);
    map(NETWORKS, &[Group], None, crate::network::NETWORKS_MAX);
    map(REACH, &[Group, Group], None, REACH_MAX);
}

fn add_cluster_sets(batch: &mut Batch, words: Words, cluster: &Cluster<'_>) {
    for length in cluster.lengths(words.family) {
        let name = cluster_set(length);
        batch.add_set(&SetSpec {
            name: &name,
            key: &[words.address_type()],
            values: None,
            verdicts: false,
            size: CLUSTER_MAX,
            dynamic_timeout_ms: None,
        });
        batch.flush_set(&name);
        let is_it = |cidr: &&IpCidr| {
            cidr.network_length() == length && cidr.is_ipv4() == (words.family == Family::Ip)
        };
        for cidr in cluster.others.iter().filter(is_it) {
            let key = octets(cidr.first_address());
            batch.add_element(&name, &Element::new(&key, ElementData::None));
        }
    }
}

fn chains() -> [Chain; 6] {
    use ChainKind::{Filter, Nat};
    [
        Chain::base(LOCALNET, Filter, Hook::Prerouting, -300),
        Chain::base(PUBLISHED, Nat, Hook::Prerouting, -95),
        Chain::base(PUBLISHED_HERE, Nat, Hook::Output, -95),
        Chain::base(SOURCE, Nat, Hook::Postrouting, 95),
        Chain::base(ISOLATION, Filter, Hook::Forward, -10),
        Chain::base(REDIRECTS, Filter, Hook::Output, 0),
    ]
}

fn masquerade_rules(
    networks: &[Network],
    network: &Network,
    words: Words,
    rule: &mut impl FnMut(Vec<Expression>),
) {
    let Some(masquerade) = &network.masquerade else { return };
    let is_ours = |cidr: &&IpCidr| cidr.is_ipv4() == (words.family == Family::Ip);
    let own = || network.subnets.iter().map(|subnet| &subnet.cidr).filter(is_ours);
    let multicast = words.multicast();
    for subnet in own() {
        // What stays within the network, all its ranges and its multicast included, is its own.
        let within = own().chain([&multicast]);
        let except = masquerade.except.iter().chain(joined(networks, network)).filter(is_ours);
        for except in within.chain(except) {
            rule(words.between(subnet, except, Verdict::Accept));
        }
        rule(words.masqueraded(subnet));
    }
}

/// The networks whose links packets of ours come and go by, and which of them reach each other.
fn put_networks(batch: &mut Batch, networks: &[Network]) {
    batch.flush_set(NETWORKS);
    batch.flush_set(REACH);
    let routed = || networks.iter().filter(|network| network.mode == Mode::Routed);
    for network in routed() {
        let key = network.group.to_ne_bytes();
        batch.add_element(NETWORKS, &Element::new(&key, ElementData::None));
    }
    let mut pairs = BTreeSet::new();
    for network in routed() {
        pairs.insert((network.group, network.group));
        for other in routed().filter(|other| network.lets_in(&other.name)) {
            pairs.insert((network.group, other.group));
            pairs.insert((other.group, network.group));
        }
    }
    for (from, to) in pairs {
        let key = [from.to_ne_bytes(), to.to_ne_bytes()].concat();
        batch.add_element(REACH, &Element::new(&key, ElementData::None));
    }
}
