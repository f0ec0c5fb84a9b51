//! What stands whatever the services are: the fixed chains, and the jumps that lead to ours.
//!
//! For the backend `iptables` it is the frame around the services' rules; for `ipvs`, whose rules name no
//! service, it is all there is: see [`fixed`](super::fixed).

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use telaio_model::IpFamily;

use crate::config::{LocalSources, NodePortMatch};

use super::compile::{Context, SharedChain};
use super::names::{self, ChainName, Table};
use super::rule::{Match, Rule, States, Target};

/// The fixed part of a family's rules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scaffold {
    /// Chains that no service has rules in.
    pub chains: Vec<(Table, ChainName, Vec<Rule>)>,
    /// Rules in the kernel's own chains, in the order in which they should stand.
    pub jumps: Vec<(Table, ChainName, Rule)>,
    /// The last rules of nat's services: who has found no address may have meant a node port.
    services_end: Vec<Rule>,
    /// The same in the filter table.
    external_end: Vec<Rule>,
}

impl Scaffold {
    /// A scaffold that no service adds to.
    pub fn alone(
        chains: Vec<(Table, ChainName, Vec<Rule>)>,
        jumps: Vec<(Table, ChainName, Rule)>,
    ) -> Self {
        Self { chains, jumps, services_end: Vec::new(), external_end: Vec::new() }
    }

    /// The scaffold of the backend `iptables` for one family.
    pub fn new(context: &Context) -> Self {
        Self {
            chains: chains(context),
            jumps: jumps(context),
            services_end: to_node_ports(context, names::NODEPORTS),
            external_end: to_node_ports(context, names::EXTERNAL_NODEPORTS),
        }
    }

    /// The rules that stand last in a shared chain.
    pub fn end_of(&self, chain: SharedChain) -> &[Rule] {
        match chain {
            SharedChain::Services => &self.services_end,
            SharedChain::UnservedExternal => &self.external_end,
            _ => &[],
        }
    }
}

fn loopback(family: IpFamily) -> IpNet {
    match family {
        IpFamily::V4 => IpNet::V4(Ipv4Net::new_assert([127, 0, 0, 0].into(), 8)),
        IpFamily::V6 => IpNet::V6(Ipv6Net::new_assert(1_u128.into(), 128)),
    }
}

fn chains(context: &Context) -> Vec<(Table, ChainName, Vec<Rule>)> {
    let mark = context.mark;
    let mut chains = vec![
        (
            Table::Nat,
            names::MARK_MASQ,
            vec![Rule::new(Target::SetMark { value: mark, mask: mark })],
        ),
        (Table::Nat, names::MASQUERADE, masquerading(mark)),
        (Table::Filter, names::FORWARDING, forwarding(mark, context.tcp_be_liberal)),
    ];
    chains.extend(Table::ALL.map(|table| (table, names::CANARY, Vec::new())));
    if let LocalSources::Networks(nets) = &context.local
        && nets.len() > 1
    {
        let mut rules: Vec<Rule> =
            nets.iter().map(|net| Rule::new(Target::Return).from(*net)).collect();
        rules.push(Rule::jump(names::MARK_MASQ));
        chains.push((Table::Nat, names::MARK_REMOTE, rules));
    }
    if context.localhost_node_ports {
        // With route_localnet the kernel would take such packets from anywhere.
        let rule = Rule::new(Target::Drop)
            .not_from(loopback(context.family))
            .to(loopback(context.family))
            .comment("block incoming localnet connections")
            .not_state(States::KNOWN.or(States::DNAT));
        chains.push((Table::Filter, names::FIREWALL, vec![rule]));
    }
    chains
}

fn marked(mark: u32, invert: bool) -> Match {
    Match::Mark { value: mark, mask: mark, invert }
}

/// The rules that give packets with this mark the node's address.
pub(crate) fn masquerading(mark: u32) -> Vec<Rule> {
    vec![
        Rule::new(Target::Return).with(marked(mark, true)),
        // Taken off again, so that what happens to the packet later is not ours.
        Rule::new(Target::SetMark { value: mark, mask: 0 }),
        Rule::new(Target::Masquerade).comment("telaio service traffic that needs SNAT"),
    ]
}

/// The rules that let packets pass which we have sent on, whatever the operator's policy is.
pub(crate) fn forwarding(mark: u32, tcp_be_liberal: bool) -> Vec<Rule> {
    let mut rules = Vec::new();
    if !tcp_be_liberal {
        // A packet that connection tracking cannot place would go out without its address rewritten,
        // and the client would end the connection.
        rules.push(Rule::new(Target::Drop).state(States::INVALID));
    }
    let first = Rule::new(Target::Accept).comment("telaio forwarding rules");
    rules.push(first.with(marked(mark, false)));
    let established = Rule::new(Target::Accept).comment("telaio forwarding of known connections");
    rules.push(established.state(States::KNOWN));
    rules
}

fn jumps(context: &Context) -> Vec<(Table, ChainName, Rule)> {
    let portals = |chain| Rule::jump(chain).state(States::NEW).comment("telaio service portals");
    let external = || {
        Rule::jump(names::EXTERNAL_SERVICES)
            .state(States::NEW)
            .comment("telaio externally visible service portals")
    };
    let firewall = || {
        Rule::jump(names::PROXY_FIREWALL)
            .state(States::NEW)
            .comment("telaio load balancer firewall")
    };
    let mut jumps = Vec::new();
    for chain in [names::INPUT, names::FORWARD, names::OUTPUT] {
        if context.localhost_node_ports && chain != names::FORWARD {
            jumps.push((Table::Filter, chain, Rule::jump(names::FIREWALL)));
        }
        jumps.push((Table::Filter, chain, firewall()));
        if chain == names::FORWARD {
            let rule = Rule::jump(names::FORWARDING).comment("telaio forwarding rules");
            jumps.push((Table::Filter, chain, rule));
        }
        jumps.push((Table::Filter, chain, portals(names::SERVICES)));
        jumps.push((Table::Filter, chain, external()));
        if chain == names::INPUT {
            let rule = Rule::jump(names::NODEPORTS).comment("telaio health check service ports");
            jumps.push((Table::Filter, chain, rule));
        }
    }
    for chain in [names::PREROUTING, names::OUTPUT] {
        let rule = Rule::jump(names::SERVICES).comment("telaio service portals");
        jumps.push((Table::Nat, chain, rule));
    }
    let rule = Rule::jump(names::MASQUERADE).comment("telaio postrouting rules");
    jumps.push((Table::Nat, names::POSTROUTING, rule));
    jumps
}

/// The rules that send packets for addresses that serve node ports to `chain`.
fn to_node_ports(context: &Context, chain: ChainName) -> Vec<Rule> {
    let loopback = loopback(context.family);
    let rule = || {
        Rule::jump(chain)
            .comment("telaio service nodeports; must be last")
            .with(Match::LocalDestination)
    };
    match &context.node_ports {
        NodePortMatch::AnyLocal if context.localhost_node_ports => vec![rule()],
        NodePortMatch::AnyLocal => vec![rule().not_to(loopback)],
        NodePortMatch::Within(nets) => {
            let mut rules = Vec::with_capacity(nets.len() + 1);
            if context.localhost_node_ports {
                rules.push(rule().to(loopback));
            } else if nets.iter().any(|net| net.contains(&loopback) || loopback.contains(net)) {
                rules.push(Rule::new(Target::Return).to(loopback));
            }
            rules.extend(nets.iter().map(|net| rule().to(*net)));
            rules
        }
    }
}
