//! From what has to happen to what is written: the rules of one service.
//!
//! [`compile`] is pure. It decides nothing about services, which [`plan`](fn@plan) has
//! done; it only puts the plan into chains:
//!
//! ```text
//!  TELAIO-SERVICES ──► cluster address ──────────────────► SVC or SVL ─┐
//!        │        ├──► external address ─────────► EXT ──► SVC or SVL ─┼─► SEP: one per endpoint
//!        │        └──► load balancer address ► FW ─┘                   │
//!        └──► TELAIO-NODEPORTS ──► node port ────► EXT ──► SVC or SVL ─┘
//! ```
//!
//! What nobody serves has no such rule, is not rewritten, and meets its REJECT or DROP in the filter
//! table. So a rule that refuses never concerns a packet that the nat table has sent on: the order in
//! which both tables change cannot refuse what is served.
//!
//! A service's rules are of two kinds. Its own chains are its alone and are written as a whole. Its
//! rules in shared chains are tied to a [`Slot`], the address and port that they stand for; they are
//! added and removed one by one, and where two services claim one slot only one of them gets it, so
//! no two rules of a shared chain ever meet the same packet and their order does not matter.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use ipnet::IpNet;
use telaio_model::{IpFamily, ObjectKey, Protocol, ServiceEndpoints};

use crate::config::{LocalSources, NodeFacts, NodePortMatch, ProxyConfig};
use crate::plan::{Answer, Destination, EndpointSet, Frontend, Place, PortPlan, plan};

use super::balance;
use super::names::{self, ChainName, MARK_MASQ, MARK_REMOTE, PortChains, Table, endpoint_chain};
use super::rule::{Match, Rule, Target};

/// Everything but the services that rules of one family depend on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Context {
    /// The family.
    pub family: IpFamily,
    /// The mark that says "masquerade".
    pub mark: u32,
    /// All traffic to cluster addresses is masqueraded.
    pub masquerade_all: bool,
    /// Node ports are served on loopback; never with IPv6, whose kernel cannot.
    pub localhost_node_ports: bool,
    /// What comes from a pod of this node.
    pub local: LocalSources,
    /// Which addresses serve node ports.
    pub node_ports: NodePortMatch,
    /// The node's own addresses of this family.
    pub addresses: Vec<IpAddr>,
    /// Connection tracking takes packets out of the window for valid, so that "invalid" means
    /// nothing that would have to be dropped.
    pub tcp_be_liberal: bool,
}

impl Context {
    /// What the operator and the cluster say, for one family.
    pub fn new(config: &ProxyConfig, node: &NodeFacts, family: IpFamily) -> Self {
        let addresses = node.addresses.iter().copied();
        Self {
            family,
            mark: config.masquerade_mark(),
            masquerade_all: config.masquerade_all,
            localhost_node_ports: config.localhost_node_ports && family == IpFamily::V4,
            local: LocalSources::new(config, node, family),
            node_ports: NodePortMatch::new(config, node, family),
            addresses: addresses.filter(|ip| IpFamily::of(*ip) == family).collect(),
            tcp_be_liberal: false,
        }
    }
}

/// What a rule of a shared chain stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Slot {
    /// A port of an address.
    Address(IpAddr, Protocol, u16),
    /// A port of the node.
    NodePort(Protocol, u16),
    /// A port on which load balancers ask for a service's health.
    HealthCheck(u16),
}

/// Who claims a slot. The least gets it: a cluster address is safe from another's external one.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Claimant {
    rank: u8,
    /// The service.
    pub service: ObjectKey,
    port: Arc<str>,
}

/// A chain that all services have rules in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SharedChain {
    /// nat: addresses.
    Services,
    /// nat: node ports.
    NodePorts,
    /// filter: cluster addresses that nobody serves.
    Unserved,
    /// filter: external addresses that nobody serves.
    UnservedExternal,
    /// filter: node ports that nobody serves.
    UnservedNodePorts,
    /// filter: load balancer addresses with source ranges.
    Firewall,
    /// filter: ports for health checks.
    HealthChecks,
}

impl SharedChain {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Services,
        Self::NodePorts,
        Self::Unserved,
        Self::UnservedExternal,
        Self::UnservedNodePorts,
        Self::Firewall,
        Self::HealthChecks,
    ];

    /// Where it is.
    pub fn place(self) -> (Table, ChainName) {
        match self {
            Self::Services => (Table::Nat, names::SERVICES),
            Self::NodePorts => (Table::Nat, names::NODEPORTS),
            Self::Unserved => (Table::Filter, names::SERVICES),
            Self::UnservedExternal => (Table::Filter, names::EXTERNAL_SERVICES),
            Self::UnservedNodePorts => (Table::Filter, names::EXTERNAL_NODEPORTS),
            Self::Firewall => (Table::Filter, names::PROXY_FIREWALL),
            Self::HealthChecks => (Table::Filter, names::NODEPORTS),
        }
    }
}

/// A rule of a shared chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SharedRule {
    /// The chain.
    pub chain: SharedChain,
    /// The rule.
    pub rule: Rule,
}

/// What a service wants in a slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wish {
    /// Who wants it.
    pub claimant: Claimant,
    /// These rules.
    pub rules: Vec<SharedRule>,
}

/// All rules of one service in one family.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ServiceRules {
    /// Its own chains; all are in the nat table.
    pub chains: BTreeMap<ChainName, Vec<Rule>>,
    /// What it wants of shared chains.
    pub slots: BTreeMap<Slot, Wish>,
}

/// The rules of a service.
pub fn compile(entry: &ServiceEndpoints, context: &Context) -> ServiceRules {
    let mut rules = ServiceRules::default();
    for plan in plan(entry, context.family) {
        let chains = PortChains::new(&plan.name);
        // Names of ports are unique in a service; should they not be, the first is meant.
        let taken = [chains.cluster, chains.local, chains.external];
        if taken.iter().any(|chain| rules.chains.contains_key(chain)) {
            continue;
        }
        PortCompiler { plan: &plan, context, chains, rules: &mut rules }.compile();
    }
    if let Some(port) = entry.service.health_check_node_port
        && entry.service.external_traffic_to_local
        && !rules.slots.is_empty()
    {
        let key = &entry.service.key;
        let rule = Rule::new(Target::Accept)
            .comment(&format!("{key} health check node port"))
            .port(Protocol::Tcp, port);
        let claimant = Claimant { rank: 0, service: key.clone(), port: "".into() };
        let rules_here = vec![SharedRule { chain: SharedChain::HealthChecks, rule }];
        rules.slots.insert(Slot::HealthCheck(port), Wish { claimant, rules: rules_here });
    }
    rules
}

struct PortCompiler<'a> {
    plan: &'a PortPlan,
    context: &'a Context,
    chains: PortChains,
    rules: &'a mut ServiceRules,
}

impl PortCompiler<'_> {
    fn compile(mut self) {
        for set in [EndpointSet::Cluster, EndpointSet::Local] {
            if self.plan.uses(set) {
                self.endpoint_set(set);
            }
        }
        if self.sends_external_on() {
            self.external_chain();
            if self.has_firewall() {
                self.firewall_chain();
            }
        }
        for frontend in &self.plan.frontends {
            self.frontend(*frontend);
        }
    }

    fn chain_of(&self, set: EndpointSet) -> ChainName {
        match set {
            EndpointSet::Cluster => self.chains.cluster,
            EndpointSet::Local => self.chains.local,
        }
    }

    /// Somebody who comes by an external address is served.
    fn sends_external_on(&self) -> bool {
        let serves = |answer| matches!(answer, Answer::Serve(_));
        self.plan.frontends.iter().any(|frontend| frontend.place.is_external())
            && (serves(self.plan.external) || self.plan.external_from_node.is_some_and(serves))
    }

    fn load_balancer_ips(&self) -> impl Iterator<Item = IpAddr> {
        self.plan.frontends.iter().filter_map(|frontend| match frontend.place {
            Place::LoadBalancerIp(ip) => Some(ip),
            _ => None,
        })
    }

    fn has_firewall(&self) -> bool {
        self.plan.source_ranges.is_some() && self.load_balancer_ips().next().is_some()
    }

    /// The chain that chooses an endpoint, and the endpoints' own.
    fn endpoint_set(&mut self, set: EndpointSet) {
        let destinations = self.plan.set(set);
        let mut rules = Vec::with_capacity(destinations.len() + 1);
        if self.plan.internal == Answer::Serve(set) {
            for frontend in &self.plan.frontends {
                if let Place::ClusterIp(ip) = frontend.place {
                    rules.extend(self.masquerade_remote(ip, frontend.port));
                }
            }
        }
        let chains: Vec<ChainName> = destinations
            .iter()
            .map(|to| endpoint_chain(&self.plan.name, SocketAddr::new(to.address, to.port)))
            .collect();
        if let Some(seconds) = self.plan.affinity_s {
            let family = self.context.family;
            rules.extend(chains.iter().map(|chain| {
                Rule::jump(*chain).with(Match::RecentCheck { list: *chain, seconds, family })
            }));
        }
        balance::choose(self.plan.balance, destinations, &chains, &mut rules);
        self.rules.chains.insert(self.chain_of(set), rules);
        for (chain, destination) in chains.into_iter().zip(destinations) {
            let rules = self.endpoint(chain, destination);
            self.rules.chains.insert(chain, rules);
        }
    }

    /// Who does not come from a pod of this node gets its address on the way to a cluster address.
    fn masquerade_remote(&self, ip: IpAddr, port: u16) -> Option<Rule> {
        let protocol = self.plan.name.protocol;
        let rule = |chain| Rule::jump(chain).to(ip.into()).port(protocol, port);
        if self.context.masquerade_all {
            return Some(rule(MARK_MASQ));
        }
        match &self.context.local {
            LocalSources::Nowhere => None,
            LocalSources::Networks(nets) => Some(match nets.as_slice() {
                [net] => rule(MARK_MASQ).not_from(*net),
                _ => rule(MARK_REMOTE),
            }),
            LocalSources::Interface(name) => Some(rule(MARK_MASQ).interface(name, true)),
            LocalSources::InterfacePrefix(prefix) => {
                Some(rule(MARK_MASQ).interface(&format!("{prefix}+"), true))
            }
        }
    }

    fn endpoint(&self, chain: ChainName, to: &Destination) -> Vec<Rule> {
        // An endpoint that comes back to itself must not see its own address as the source.
        let hairpin = Rule::jump(MARK_MASQ).from(to.address.into());
        let mut dnat = Rule::new(Target::Dnat(SocketAddr::new(to.address, to.port)))
            .protocol(self.plan.name.protocol);
        if self.plan.affinity_s.is_some() {
            dnat = dnat.with(Match::RecentSet { list: chain, family: self.context.family });
        }
        vec![hairpin, dnat]
    }

    fn external_chain(&mut self) {
        let mut rules = Vec::new();
        match self.plan.external_from_node {
            None => rules.push(Rule::jump(MARK_MASQ)),
            Some(from_node) => {
                let served = match from_node {
                    Answer::Serve(set) => Some(self.chain_of(set)),
                    Answer::Reject | Answer::Drop => None,
                };
                let target = served.map_or(Target::Return, Target::Jump);
                rules.extend(self.pod_rules(&target));
                if served.is_some() {
                    rules.push(Rule::jump(MARK_MASQ).with(Match::LocalSource));
                }
                rules.push(Rule::new(target).with(Match::LocalSource));
            }
        }
        if let Answer::Serve(set) = self.plan.external {
            rules.push(Rule::jump(self.chain_of(set)));
        }
        self.rules.chains.insert(self.chains.external, rules);
    }

    /// What happens to packets from this node's pods.
    fn pod_rules(&self, target: &Target) -> Vec<Rule> {
        let rule = || Rule::new(target.clone());
        match &self.context.local {
            LocalSources::Nowhere => Vec::new(),
            LocalSources::Networks(nets) => nets.iter().map(|net| rule().from(*net)).collect(),
            LocalSources::Interface(name) => vec![rule().interface(name, false)],
            LocalSources::InterfacePrefix(prefix) => {
                vec![rule().interface(&format!("{prefix}+"), false)]
            }
        }
    }

    fn firewall_chain(&mut self) {
        let ranges = self.plan.source_ranges.as_deref().unwrap_or_default();
        let rule = |net: IpNet| Rule::jump(self.chains.external).from(net);
        let mut rules: Vec<Rule> = ranges.iter().copied().map(rule).collect();
        // Where the address is this machine's own, what the node sends to it comes from it too.
        let node_may = |ip: &IpAddr| ranges.iter().any(|range| range.contains(ip));
        if self.context.addresses.iter().any(node_may) {
            rules.extend(self.load_balancer_ips().map(|ip| rule(ip.into())));
        }
        self.rules.chains.insert(self.chains.firewall, rules);
    }

    fn frontend(&mut self, frontend: Frontend) {
        let Frontend { place, port } = frontend;
        let protocol = self.plan.name.protocol;
        let (slot, rank) = match place {
            Place::ClusterIp(ip) => (Slot::Address(ip, protocol, port), 0),
            Place::ExternalIp(ip) => (Slot::Address(ip, protocol, port), 1),
            Place::LoadBalancerIp(ip) => (Slot::Address(ip, protocol, port), 2),
            Place::NodePort => (Slot::NodePort(protocol, port), 0),
        };
        let name = &self.plan.name;
        let claimant = Claimant { rank, service: name.service.clone(), port: name.port.clone() };
        if self.rules.slots.get(&slot).is_some_and(|wish| wish.claimant <= claimant) {
            return;
        }
        let rules = self.shared_rules(frontend);
        self.rules.slots.insert(slot, Wish { claimant, rules });
    }

    fn shared_rules(&self, frontend: Frontend) -> Vec<SharedRule> {
        let mut rules = Vec::with_capacity(1);
        if let Some(chain) = self.dispatch_chain(frontend.place) {
            let (what, shared) = match frontend.place {
                Place::ClusterIp(_) => (" cluster IP", SharedChain::Services),
                Place::ExternalIp(_) => (" external IP", SharedChain::Services),
                Place::LoadBalancerIp(_) => (" loadbalancer IP", SharedChain::Services),
                Place::NodePort => (" node port", SharedChain::NodePorts),
            };
            let rule = self.shared_rule(frontend, what, Target::Jump(chain));
            rules.push(SharedRule { chain: shared, rule });
            if self.is_guarded(frontend.place) {
                let what = " traffic from outside its source ranges";
                let rule = self.shared_rule(frontend, what, Target::Drop);
                rules.push(SharedRule { chain: SharedChain::Firewall, rule });
            }
        }
        if let Some((target, what)) = self.refusal(frontend.place) {
            let chain = match frontend.place {
                Place::ClusterIp(_) => SharedChain::Unserved,
                Place::NodePort => SharedChain::UnservedNodePorts,
                Place::ExternalIp(_) | Place::LoadBalancerIp(_) => SharedChain::UnservedExternal,
            };
            rules.push(SharedRule { chain, rule: self.shared_rule(frontend, what, target) });
        }
        rules
    }

    fn shared_rule(&self, frontend: Frontend, what: &str, target: Target) -> Rule {
        let mut rule = Rule::new(target);
        if let Some(ip) = frontend.place.address() {
            rule = rule.to(ip.into());
        }
        rule.comment(&format!("{}{what}", self.plan.name))
            .port(self.plan.name.protocol, frontend.port)
    }

    fn is_guarded(&self, place: Place) -> bool {
        matches!(place, Place::LoadBalancerIp(_)) && self.plan.source_ranges.is_some()
    }

    fn dispatch_chain(&self, place: Place) -> Option<ChainName> {
        match (place, self.plan.internal) {
            (Place::ClusterIp(_), Answer::Serve(set)) => Some(self.chain_of(set)),
            (Place::ClusterIp(_), _) => None,
            _ if !self.sends_external_on() => None,
            _ if self.is_guarded(place) => Some(self.chains.firewall),
            _ => Some(self.chains.external),
        }
    }

    /// What happens to packets that the nat table does not send on, if that can be.
    fn refusal(&self, place: Place) -> Option<(Target, &'static str)> {
        let refused = |answer: &Answer| !matches!(answer, Answer::Serve(_));
        let answer = match place {
            Place::ClusterIp(_) => Some(self.plan.internal).filter(refused),
            _ => Some(self.plan.external)
                .filter(refused)
                .or(self.plan.external_from_node.filter(refused)),
        };
        match answer? {
            Answer::Reject => Some((Target::Reject(self.context.family), " has no endpoints")),
            Answer::Drop => Some((Target::Drop, " has no local endpoints")),
            Answer::Serve(_) => None,
        }
    }
}
