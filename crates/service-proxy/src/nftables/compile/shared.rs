//! What does not belong to one service: the chains that the kernel begins with, and the ways.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use ipnet::IpNet;
use telaio_model::IpFamily;
use telaio_netlink::nftables::{Chain, ChainKind, FibAddress, Hook, Verdict};

use super::item::{ChainItem, Item, Key};
use super::way::{Choice, Pick, Target, Way, from_pod};
use crate::config::{LocalSources, NodeFacts, NodePortMatch, ProxyConfig};
use crate::nftables::rule::{Place, Rule, Slots, Words};
use crate::options::LocalhostPorts;

/// The chain that refuses; nft has the word "reject" for itself.
pub(super) const REFUSE: &str = "refuse";
/// The chain that marks for masquerade.
pub(super) const MARK: &str = "mark-for-masquerade";
/// The chain that marks what does not come from a pod of this node.
const MARK_UNLESS_POD: &str = "mark-unless-from-pod";
/// The chain that finds the service.
const SERVICES: &str = "services";
/// The chain for what no service took.
const LEFTOVERS: &str = "leftovers";

/// Where destinations are changed; kube-proxy's and everybody's place for it.
const PRIORITY_DSTNAT: i32 = -100;
/// Where sources are changed.
const PRIORITY_SRCNAT: i32 = 100;

/// What does not belong to one service: the chains that the kernel begins with, and the ways that
/// services share, each with its number.
pub fn compile_shared<'a>(
    config: &ProxyConfig,
    node: &NodeFacts,
    localhost: LocalhostPorts,
    ways: impl IntoIterator<Item = (&'a (IpFamily, Way), u32)>,
) -> BTreeMap<Key, Item> {
    let mut items = BTreeMap::new();
    let mut add = |family: IpFamily, chain: ChainItem| {
        let name = chain.chain.name.as_str().into();
        items.insert(Key::Chain(family, name), Item::Chain(Arc::new(chain)));
    };
    let mut numbered = Vec::new();
    for family in &config.families {
        for chain in base_chains(*family, config, node, localhost) {
            add(*family, chain);
        }
    }
    for ((family, way), number) in ways {
        let words = Words { family: *family };
        if let Some(chain) = way.chain(words, &LocalSources::new(config, node, *family)) {
            add(*family, chain);
        }
        numbered.push((Key::Way(*family, number), Item::Way(way.verdict())));
    }
    items.extend(numbered);
    items
}

fn base_chains(
    family: IpFamily,
    config: &ProxyConfig,
    node: &NodeFacts,
    localhost: LocalhostPorts,
) -> Vec<ChainItem> {
    let words = Words { family };
    let item = |chain: Chain, rules: Vec<Rule>| ChainItem { chain, rules: Some(rules) };
    let nat = |name: &str, hook, priority| Chain::base(name, ChainKind::Nat, hook, priority);
    let loopback = match family {
        IpFamily::V4 => IpNet::new_assert(Ipv4Addr::new(127, 0, 0, 0).into(), 8),
        IpFamily::V6 => IpNet::from(IpAddr::from(Ipv6Addr::LOCALHOST)),
    };
    let redirect = localhost
        .of(family)
        .filter(|_| config.localhost_node_ports)
        .map(|port| words.redirect_localhost(&loopback, port));
    let to_services = words.jump(SERVICES);
    let masquerade = config.masquerade_mark();
    // The listener's own connections, which carry the mark, reach node ports by any address.
    let from_listener = redirect.as_ref().map(|_| {
        words
            .is_marked(masquerade)
            .then(words.not_to_net(&loopback))
            .then(words.is_local(FibAddress::Destination))
            .then(words.dispatch(Place::NodePort))
    });
    let guard = (localhost.routed && family == IpFamily::V4).then(|| {
        let input = Chain::base("filter-input", ChainKind::Filter, Hook::Input, 0);
        item(input, vec![words.drop_martians(&loopback)])
    });
    let to_leftovers = words.jump(LEFTOVERS);
    let again = PRIORITY_DSTNAT + 1;
    let output: Vec<Rule> =
        redirect.into_iter().chain(from_listener).chain([to_services.clone()]).collect();
    vec![
        item(nat("nat-prerouting", Hook::Prerouting, PRIORITY_DSTNAT), vec![to_services.clone()]),
        item(nat("nat-output", Hook::Output, PRIORITY_DSTNAT), output.clone()),
        // A packet that is under way while a transaction commits sees the rules from before and the
        // elements from after it, and may find nothing. It tries again, with the rules of now; only
        // then is what nobody serves refused.
        item(
            nat("nat-prerouting-again", Hook::Prerouting, again),
            vec![to_services, to_leftovers.clone()],
        ),
        item(
            nat("nat-output-again", Hook::Output, again),
            output.into_iter().chain([to_leftovers]).collect(),
        ),
        item(
            nat("nat-postrouting", Hook::Postrouting, PRIORITY_SRCNAT),
            vec![words.masquerade_marked(masquerade), words.masquerade_hairpin()],
        ),
        item(Chain::regular(SERVICES), services_rules(words, config, node, &loopback)),
        item(Chain::regular(LEFTOVERS), leftovers_rules(words, config, node)),
        item(Chain::regular(MARK), vec![words.mark(masquerade)]),
        item(Chain::regular(MARK_UNLESS_POD), mark_unless_pod(words, config, node)),
        item(Chain::regular(REFUSE), vec![words.reset_tcp(), words.reject()]),
    ]
    .into_iter()
    .chain(guard)
    .collect()
}

/// What a packet meets first: the way of every new connection.
fn services_rules(
    words: Words,
    config: &ProxyConfig,
    node: &NodeFacts,
    loopback: &IpNet,
) -> Vec<Rule> {
    let mut rules = vec![words.check_source()];
    if config.masquerade_all {
        rules.push(words.to_cluster_ip().then(words.jump(MARK)));
    } else if LocalSources::new(config, node, words.family) != LocalSources::Nowhere {
        rules.push(words.to_cluster_ip().then(words.jump(MARK_UNLESS_POD)));
    }
    rules.push(words.dispatch(Place::Address));
    let to_node_port = |condition: Rule| {
        condition
            .then(words.not_to_net(loopback))
            .then(words.is_local(FibAddress::Destination))
            .then(words.dispatch(Place::NodePort))
    };
    match NodePortMatch::new(config, node, words.family) {
        NodePortMatch::AnyLocal => rules.push(to_node_port(Rule::default())),
        NodePortMatch::Within(nets) => {
            rules.extend(nets.iter().map(|net| to_node_port(words.to_net(net))));
        }
    }
    rules
}

/// What becomes of packets to cluster addresses that no service took.
fn leftovers_rules(words: Words, config: &ProxyConfig, node: &NodeFacts) -> Vec<Rule> {
    let mut rules = vec![words.to_cluster_ip().then(words.goto(REFUSE))];
    let mut service_cidrs: Vec<IpNet> = config
        .service_cidrs
        .iter()
        .chain(&node.service_cidrs)
        .filter(|net| IpFamily::of_net(net) == words.family)
        .map(IpNet::trunc)
        .collect();
    service_cidrs.sort_unstable();
    service_cidrs.dedup();
    rules.extend(
        service_cidrs.iter().map(|net| words.to_net(net).then(words.verdict(Verdict::Drop))),
    );
    rules
}

fn mark_unless_pod(words: Words, config: &ProxyConfig, node: &NodeFacts) -> Vec<Rule> {
    let pods = LocalSources::new(config, node, words.family);
    let mut rules: Vec<Rule> = from_pod(words, &pods)
        .into_iter()
        .map(|from_pod| from_pod.then(words.verdict(Verdict::Return)))
        .collect();
    rules.push(words.mark(config.masquerade_mark()));
    rules
}

/// One chain of each kind that there is, for asking a kernel whether it can do them.
pub(in crate::nftables) fn every_kind_of_chain(
    family: IpFamily,
    config: &ProxyConfig,
    node: &NodeFacts,
) -> Vec<ChainItem> {
    let choices = [Choice::Random, Choice::Hash, Choice::Sticky(1), Choice::Turn(1)];
    let mut specs = BTreeSet::new();
    for place in [Place::Address, Place::NodePort] {
        for choice in &choices {
            let choice = choice.clone();
            let pick = Pick { place, slots: Slots::Local, count: 2, choice };
            specs.insert((family, Way::Masquerade(pick.clone())));
            let external = Way::ExternalLocal(Target::Pick(pick.clone()), Target::Drop);
            specs.insert((family, external));
            specs.insert((family, Way::Pick(pick)));
        }
    }
    let ports = LocalhostPorts { v4: Some(1), v6: Some(1), routed: true };
    let ways = specs.iter().map(|way| (way, 0));
    let chains = compile_shared(config, node, ports, ways).into_values();
    let unwrap = |item: Item| match item {
        Item::Chain(chain) => Some(Arc::unwrap_or_clone(chain)),
        _ => None,
    };
    chains.filter_map(unwrap).collect()
}
