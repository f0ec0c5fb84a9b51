//! The fixed rules around the virtual servers.
//!
//! A service's addresses are on a device of ours, so a packet to them is for this machine, and the kernel
//! looks for a virtual server just after the filter table's INPUT; for a packet that starts here, just
//! after nat's OUTPUT. What a virtual server cannot do, rules do before and after. They name no service,
//! they only ask which [`sets`](super::sets) a packet is in:
//!
//! ```text
//!  mangle  INPUT ─► …-INPUT ─► …-REMOTE      who may, who is masqueraded, whose source is kept
//!          OUTPUT ─► …-OUTPUT                the same for who is on this machine
//!  filter  INPUT, OUTPUT ─► …-FILTER ─► …-IPS   what nobody serves is refused
//!          FORWARD ─► …-FORWARD              what we have sent on passes
//!  nat     POSTROUTING ─► …-POSTROUTING      masquerades
//! ```
//!
//! What always holds:
//! - All that decides stands behind `--ctstate NEW`: later packets belong to the connection table.
//! - A bit of the mark says "masquerade". The mark as a whole, without that bit, is the number of a
//!   virtual server that has only this node's endpoints. No packet has both, because no address and port
//!   is in two of the sets that mark; and the numbers in [`SetKind::Local`] must not have the bit.
//! - The sets must be there before the rules, and stay as long as the rules do.

use ipnet::IpNet;
use telaio_model::{IpFamily, Protocol};

use crate::config::{LocalSources, NodeFacts, ProxyConfig};
use crate::iptables::fixed;
use crate::iptables::names::{
    ChainName, FORWARD, INPUT, IPVS_CANARY, IPVS_FILTER, IPVS_FORWARD, IPVS_INPUT, IPVS_IPS,
    IPVS_OUTPUT, IPVS_POSTROUTING, IPVS_REMOTE, OUTPUT, Owner, POSTROUTING, Table,
};
use crate::iptables::rule::{Directions, Rule, States, Target};
use crate::iptables::scaffold::{Scaffold, forwarding, masquerading};

use super::sets::SetKind;

#[cfg(test)]
mod tests;

/// Everything that the rules of one family depend on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RulesContext {
    /// The family.
    pub family: IpFamily,
    /// The bit of the mark that says "masquerade".
    pub mark: u32,
    /// All traffic to cluster addresses is masqueraded.
    pub masquerade_all: bool,
    /// What comes from a pod of this node.
    pub local: LocalSources,
    /// Connection tracking takes packets out of the window for valid, so that "invalid" means
    /// nothing that would have to be dropped.
    pub tcp_be_liberal: bool,
}

impl RulesContext {
    /// What the operator and the cluster say, for one family.
    pub fn new(config: &ProxyConfig, node: &NodeFacts, family: IpFamily) -> Self {
        Self {
            family,
            mark: config.masquerade_mark(),
            masquerade_all: config.masquerade_all,
            local: LocalSources::new(config, node, family),
            tcp_be_liberal: false,
        }
    }

    /// For packets to an address and port in the set.
    fn to(&self, set: SetKind, rule: Rule) -> Rule {
        rule.in_set(set.name(self.family), Directions::DestinationPort)
    }

    /// Marks packets to an address and port in the set for masquerading, and nothing else of the mark.
    fn masquerade(&self, set: SetKind) -> Rule {
        self.to(set, Rule::new(Target::SetMark { value: self.mark, mask: self.mark }))
    }

    /// What holds for packets from everywhere: some sources may not, and some services are not for us.
    fn refusals(&self) -> Vec<Rule> {
        let allowed = SetKind::Allowed.name(self.family);
        let drop = || Rule::new(Target::Drop);
        vec![
            self.to(SetKind::Restricted, drop())
                .not_in_set(allowed, Directions::DestinationPortSource),
            self.to(SetKind::Drop, drop()),
        ]
    }

    fn input(&self) -> Vec<Rule> {
        let mut rules = self.refusals();
        rules.push(self.masquerade(SetKind::External));
        if self.masquerade_all {
            rules.push(self.masquerade(SetKind::ClusterIp));
        }
        let remote = Rule::jump(IPVS_REMOTE);
        match &self.local {
            LocalSources::Nowhere => rules.push(remote),
            LocalSources::Networks(nets) => rules.extend(not_from(nets, remote)),
            LocalSources::Interface(name) => rules.push(remote.interface(name, true)),
            LocalSources::InterfacePrefix(prefix) => {
                rules.push(remote.interface(&format!("{prefix}+"), true));
            }
        }
        rules
    }

    fn remote(&self) -> Vec<Rule> {
        let mut rules = Vec::new();
        // Where pods cannot be told from others, a pod must not lose its address.
        if self.local != LocalSources::Nowhere {
            rules.push(self.masquerade(SetKind::ClusterIp));
        }
        rules.push(self.to(SetKind::NoLocal, Rule::new(Target::Drop)));
        let set = SetKind::Local.name(self.family).into();
        rules.push(self.to(SetKind::Local, Rule::new(Target::MapMark { set })));
        rules
    }

    fn output(&self) -> Vec<Rule> {
        let mut rules = self.refusals();
        for set in [SetKind::External, SetKind::Local, SetKind::NoLocal] {
            rules.push(self.masquerade(set));
        }
        let cluster = self.masquerade(SetKind::ClusterIp);
        // Who connects from here to an address on our device gets that address as its source, and what
        // is answered to that address does not come back to this machine.
        let device = SetKind::Addresses.name(self.family);
        let from_device = cluster.clone().in_set(device, Directions::Source);
        match &self.local {
            _ if self.masquerade_all => rules.push(cluster),
            LocalSources::Nowhere => rules.push(from_device),
            LocalSources::Networks(nets) => {
                rules.push(from_device);
                rules.extend(not_from(nets, cluster));
            }
            // What starts here has come in by no interface, so by none of a pod's.
            LocalSources::Interface(_) | LocalSources::InterfacePrefix(_) => rules.push(cluster),
        }
        rules
    }

    fn filter(&self) -> Vec<Rule> {
        let ours = SetKind::Addresses.name(self.family);
        vec![
            self.to(SetKind::Reject, Rule::new(Target::Reject(self.family))),
            Rule::jump(IPVS_IPS).in_set(ours, Directions::Destination),
        ]
    }

    /// What is at one of our addresses and at no port of a service. Ping is answered.
    fn undefined_ports(&self) -> Vec<Rule> {
        let served = [
            SetKind::ClusterIp,
            SetKind::External,
            SetKind::Direct,
            SetKind::Local,
            SetKind::NoLocal,
        ];
        let served = served.map(|set| self.to(set, Rule::new(Target::Return)));
        let refused = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp]
            .map(|protocol| Rule::new(Target::Reject(self.family)).protocol(protocol));
        served.into_iter().chain(refused).collect()
    }

    fn postrouting(&self) -> Vec<Rule> {
        let loop_back = SetKind::LoopBack.name(self.family);
        let hairpin = Rule::new(Target::Masquerade)
            .comment("telaio endpoints that reach themselves")
            .in_set(loop_back, Directions::DestinationPortSource);
        [hairpin].into_iter().chain(masquerading(self.mark)).collect()
    }
}

/// The last rules of a chain: `rule` for what comes from none of these networks.
fn not_from(nets: &[IpNet], rule: Rule) -> Vec<Rule> {
    if let [net] = nets {
        return vec![rule.not_from(*net)];
    }
    let mut rules: Vec<Rule> =
        nets.iter().map(|net| Rule::new(Target::Return).from(*net)).collect();
    rules.push(rule);
    rules
}

/// The rules of one family while IPVS serves.
pub fn scaffold(context: &RulesContext) -> Scaffold {
    let mut chains = vec![
        (Table::Mangle, IPVS_INPUT, context.input()),
        (Table::Mangle, IPVS_REMOTE, context.remote()),
        (Table::Mangle, IPVS_OUTPUT, context.output()),
        (Table::Filter, IPVS_FILTER, context.filter()),
        (Table::Filter, IPVS_IPS, context.undefined_ports()),
        (Table::Filter, IPVS_FORWARD, forwarding(context.mark, context.tcp_be_liberal)),
        (Table::Nat, IPVS_POSTROUTING, context.postrouting()),
    ];
    chains.extend(Table::ALL.map(|table| (table, IPVS_CANARY, Vec::new())));
    let first =
        |chain: ChainName| Rule::jump(chain).state(States::NEW).comment("telaio service portals");
    let forward = Rule::jump(IPVS_FORWARD).comment("telaio forwarding rules");
    let jumps = vec![
        (Table::Mangle, INPUT, first(IPVS_INPUT)),
        (Table::Mangle, OUTPUT, first(IPVS_OUTPUT)),
        (Table::Filter, INPUT, first(IPVS_FILTER)),
        (Table::Filter, OUTPUT, first(IPVS_FILTER)),
        (Table::Filter, FORWARD, forward),
        (Table::Nat, POSTROUTING, to_postrouting()),
    ];
    Scaffold::alone(chains, jumps)
}

/// The rules of one family while another backend serves and connections of IPVS live on, for which our
/// addresses stay on their device. Who connects to one from this machine still gets it as the source, and
/// the other backend sends it on to where nobody would answer it.
pub fn leaving_scaffold(context: &RulesContext) -> Scaffold {
    let device = SetKind::Addresses.name(context.family);
    let rule = Rule::new(Target::Masquerade)
        .out_interface("lo", true)
        .comment("telaio connections from service addresses")
        .in_set(device, Directions::Source);
    let chains = vec![(Table::Nat, IPVS_POSTROUTING, vec![rule])];
    Scaffold::alone(chains, vec![(Table::Nat, POSTROUTING, to_postrouting())])
}

/// Nothing: what is there of ours goes.
pub fn no_scaffold() -> Scaffold {
    Scaffold::alone(Vec::new(), Vec::new())
}

fn to_postrouting() -> Rule {
    Rule::jump(IPVS_POSTROUTING).comment("telaio postrouting rules")
}

/// The text that programs these rules where nothing of ours is there yet, to be given to
/// `iptables-restore --noflush`. It needs the sets.
pub fn render(context: &RulesContext) -> String {
    fixed::render(Owner::Ipvs, &scaffold(context))
}
