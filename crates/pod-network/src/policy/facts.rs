//! What policies come down to: facts about peers, classes of peers, and profiles of instances.
//!
//! A *fact* is something that a rule asks about a peer: that it is one of certain pods, that it is in a certain network.
//! Peers about which the same facts are true are of one *class*. A *profile* is all that an instance's policies allow in one
//! direction; instances with the same rules share it. So what is allowed between an instance and a peer depends on profile and
//! class alone: one look-up, however many policies there are.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use telaio_model::{
    NetworkPolicy, Pod, PolicyPeer, PolicyPort, PolicyPortMatch, PolicyRule, Protocol,
};

use super::numbers::{Number, Numbers};
use super::ports::PortSet;
use super::selector::{PodSelector, Scope, Selector};

/// In which direction, seen from the instance that the policy is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Direction {
    /// What comes in.
    Ingress,
    /// What goes out.
    Egress,
}

impl Direction {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Ingress, Self::Egress];
}

/// A network without some parts of it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Block {
    pub(super) cidr: IpNet,
    /// In order.
    pub(super) except: Box<[IpNet]>,
}

impl Block {
    fn of(cidr: &IpNet, except: &[IpNet]) -> Self {
        let mut except: Vec<IpNet> = except.iter().map(IpNet::trunc).collect();
        except.sort();
        except.dedup();
        Self { cidr: cidr.trunc(), except: except.into() }
    }

    /// Whether all of a network is in it. Only for networks that no edge of the block cuts.
    pub(super) fn contains(&self, net: &IpNet) -> bool {
        self.cidr.contains(net) && !self.except.iter().any(|except| except.contains(net))
    }

    /// Whether an address is in it.
    pub(super) fn has(&self, ip: IpAddr) -> bool {
        self.contains(&IpNet::from(ip))
    }

    /// The networks whose edges are its own.
    pub(super) fn edges(&self) -> impl Iterator<Item = IpNet> + '_ {
        [self.cidr].into_iter().chain(self.except.iter().copied())
    }
}

/// A port's name, and the protocol that it must have.
pub(super) type PortName = (Arc<str>, Protocol);

/// What a rule asks about a peer.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Fact {
    /// It is one of these pods.
    Pods(PodSelector),
    /// It is in this network.
    In(Block),
    /// It has a port of this name.
    HasPort(PortName),
}

/// The facts that are true about some peers.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Class {
    /// The facts, in order.
    pub(super) facts: Box<[Number]>,
    /// For those facts that are about a port's name: the port.
    pub(super) ports: Box<[(Number, u16)]>,
}

impl Class {
    pub(super) fn has(&self, fact: Number) -> bool {
        self.facts.binary_search(&fact).is_ok()
    }
}

/// One rule: some ports from, or to, some peers.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Rule {
    /// One of these facts must be true about the peer; `None`: anybody will do.
    pub(super) peers: Option<Box<[Number]>>,
    /// The ports.
    pub(super) ports: PortSet,
    /// And those of these names that the peer has, by the facts about them.
    pub(super) named: Box<[Number]>,
}

/// All that is allowed in one direction.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Profile {
    pub(super) direction: Direction,
    /// In order, each once.
    pub(super) rules: Box<[Rule]>,
}

impl Profile {
    /// What `policies` allow `pod` in one direction; `None` if none of them is about that. Holds the facts that it speaks of;
    /// [`facts`](Self::facts) tells them.
    pub(super) fn of<'a>(
        direction: Direction,
        pod: &Pod,
        policies: impl IntoIterator<Item = &'a NetworkPolicy>,
        facts: &mut Numbers<Fact>,
        new: &mut Vec<Number>,
    ) -> Option<Self> {
        let mut rules: Option<BTreeSet<Rule>> = None;
        for policy in policies {
            let listed = match direction {
                Direction::Ingress => &policy.ingress,
                Direction::Egress => &policy.egress,
            };
            let Some(listed) = listed else { continue };
            let rules = rules.get_or_insert_default();
            for rule in listed {
                let mut resolver = Resolver { direction, pod, policy, facts, new };
                let resolved = resolver.rule(rule);
                if resolved.ports.is_empty() && resolved.named.is_empty() {
                    // It allows nothing, as with a port's name that the pod does not have.
                    release_all(&resolved, facts, new);
                } else if rules.contains(&resolved) {
                    release_all(&resolved, facts, new);
                } else {
                    rules.insert(resolved);
                }
            }
        }
        rules.map(|rules| Self { direction, rules: rules.into_iter().collect() })
    }

    /// The facts that it speaks of, as often as it holds them.
    pub(super) fn facts(&self) -> impl Iterator<Item = Number> + '_ {
        self.rules.iter().flat_map(Rule::facts)
    }

    /// What is allowed to or from peers of a class; of nobody in particular without one.
    pub(super) fn grant(&self, class: Option<&Class>, facts: &Numbers<Fact>) -> PortSet {
        let nobody = Class::default();
        let class = class.unwrap_or(&nobody);
        let mut granted = PortSet::none();
        for rule in &self.rules {
            let is_meant = match &rule.peers {
                None => true,
                Some(peers) => peers.iter().any(|fact| class.has(*fact)),
            };
            if !is_meant {
                continue;
            }
            granted = granted.union(&rule.ports);
            let named = class.ports.iter().filter(|(fact, _)| rule.named.contains(fact));
            let ranges = named.filter_map(|(fact, port)| match facts.get(*fact) {
                Some(Fact::HasPort((_, protocol))) => Some((*protocol, *port, *port)),
                _ => None,
            });
            granted = granted.union(&PortSet::of(ranges));
        }
        granted
    }
}

impl Rule {
    fn facts(&self) -> impl Iterator<Item = Number> + '_ {
        self.peers.iter().flatten().chain(&self.named).copied()
    }
}

fn release_all(rule: &Rule, facts: &mut Numbers<Fact>, new: &mut Vec<Number>) {
    for fact in rule.facts() {
        if facts.release(fact).is_some() {
            new.retain(|other| *other != fact);
        }
    }
}

/// Puts a rule of a policy into our terms.
struct Resolver<'a> {
    direction: Direction,
    pod: &'a Pod,
    policy: &'a NetworkPolicy,
    facts: &'a mut Numbers<Fact>,
    new: &'a mut Vec<Number>,
}

impl Resolver<'_> {
    fn hold(&mut self, fact: &Fact) -> Number {
        let (number, is_new) = self.facts.hold(fact);
        if is_new {
            self.new.push(number);
        }
        number
    }

    /// Each fact once.
    fn hold_all(&mut self, facts: impl IntoIterator<Item = Fact>) -> Box<[Number]> {
        let facts: BTreeSet<Fact> = facts.into_iter().collect();
        let mut numbers: Vec<Number> = facts.iter().map(|fact| self.hold(fact)).collect();
        numbers.sort_unstable();
        numbers.into()
    }

    fn rule(&mut self, rule: &PolicyRule) -> Rule {
        let namespace = Arc::clone(&self.policy.meta.key.namespace);
        let peers = (!rule.peers.is_empty()).then(|| {
            let facts: Vec<Fact> = rule.peers.iter().map(|it| peer(it, &namespace)).collect();
            self.hold_all(facts)
        });
        let (ports, names) = self.ports(&rule.ports);
        Rule { peers, ports, named: self.hold_all(names.into_iter().map(Fact::HasPort)) }
    }

    /// The ports by number, and those whose number only the peer knows.
    fn ports(&self, ports: &[PolicyPort]) -> (PortSet, Vec<PortName>) {
        if ports.is_empty() {
            return (PortSet::All, Vec::new());
        }
        let mut ranges = Vec::with_capacity(ports.len());
        let mut names = Vec::new();
        for PolicyPort { protocol, port } in ports {
            match (port, self.direction) {
                (PolicyPortMatch::All, _) => ranges.push((*protocol, 0, u16::MAX)),
                // A range that ends before it begins has no ports.
                (PolicyPortMatch::Range(first, last), _) if first > last => {}
                (PolicyPortMatch::Range(first, last), _) => ranges.push((*protocol, *first, *last)),
                (PolicyPortMatch::Named(name), Direction::Ingress) => {
                    let ports = named_ports(self.pod, name, *protocol);
                    ranges.extend(ports.map(|port| (*protocol, port, port)));
                }
                (PolicyPortMatch::Named(name), Direction::Egress) => {
                    names.push((Arc::clone(name), *protocol));
                }
            }
        }
        (PortSet::of(ranges), names)
    }
}

fn peer(peer: &PolicyPeer, namespace: &Arc<str>) -> Fact {
    match peer {
        PolicyPeer::Block { cidr, except } => Fact::In(Block::of(cidr, except)),
        PolicyPeer::Pods { namespaces, pods } => Fact::Pods(PodSelector {
            scope: match namespaces {
                None => Scope::Namespace(Arc::clone(namespace)),
                Some(selector) => Scope::Selected(Selector::of(selector)),
            },
            pods: pods.as_ref().map(Selector::of).unwrap_or_default(),
        }),
    }
}

/// The ports of a pod that have this name.
pub(super) fn named_ports<'a>(
    pod: &'a Pod,
    name: &'a str,
    protocol: Protocol,
) -> impl Iterator<Item = u16> + 'a {
    let is_meant = move |port: &&telaio_model::ContainerPort| {
        port.protocol == protocol && port.name.as_deref() == Some(name)
    };
    pod.ports.iter().filter(is_meant).map(|port| port.container_port)
}
