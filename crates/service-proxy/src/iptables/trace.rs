//! What a packet will meet in rules.
//!
//! [`trace`] answers for the backend `iptables`. It walks the rules as the kernel does: nat, then filter
//! with the address that nat has given, then nat again on the way out. Where chance, a counter or a list
//! of recent clients decides, both ways are walked, so that the answer names every endpoint that the
//! packet can reach. It takes the rules as a [`Ruleset`], which is read from our own text or from
//! `iptables-save`.
//!
//! # For another tracer
//!
//! [`Walker`] is the part that knows rules and nothing of the order of hooks, for a tracer that has
//! something else between them. It is made for one packet and asked once for each hook that the packet
//! meets, in order: [`Walker::step`] takes the packet as it comes to the hook, a [`Way`], and gives it as
//! it leaves: with its new mark, and with an [`End`] if it goes no further. What happens between two
//! hooks the caller does to the way itself, such as giving it an endpoint's address. What rules ask about
//! ipsets goes to a [`Sets`].
//!
//! ```
//! use std::collections::BTreeSet;
//! use telaio_model::{IpFamily, Protocol};
//! use telaio_service_proxy::config::{NodeFacts, ProxyConfig};
//! use telaio_service_proxy::iptables::names::{self, Owner, Table};
//! use telaio_service_proxy::iptables::trace::{Element, Sets, Walker, Way};
//! use telaio_service_proxy::iptables::Ruleset;
//! use telaio_service_proxy::ipvs::rules::{self, RulesContext};
//! use telaio_service_proxy::trace::{Packet, Surroundings};
//!
//! /// Everything is in the set of external addresses, and in no other.
//! struct External;
//!
//! impl Sets for External {
//!     fn contains(&self, set: &str, _: &Element) -> bool {
//!         set == "TELAIO-EXTERNAL"
//!     }
//!     fn mark(&self, _: &str, _: &Element) -> Option<u32> {
//!         None
//!     }
//! }
//!
//! let config = ProxyConfig::default();
//! let context = RulesContext::new(&config, &NodeFacts::default(), IpFamily::V4);
//! let rules = Ruleset::of(Owner::Ipvs, &rules::render(&context));
//! let packet = Packet {
//!     from: "203.0.113.5".parse().unwrap(),
//!     to: "192.0.2.7:80".parse().unwrap(),
//!     protocol: Protocol::Tcp,
//!     interface: Some("eth0".into()),
//! };
//! let around = Surroundings { addresses: BTreeSet::from([packet.to.ip()]) };
//! let mut walker = Walker::new(&packet, &around, &rules, &External);
//!
//! let way = walker.step(Table::Mangle, names::INPUT, Way::new(packet.to));
//! let way = walker.step(Table::Filter, names::INPUT, way);
//! assert_eq!((way.mark, way.end), (config.masquerade_mark(), None));
//! // Here the virtual server chooses an endpoint.
//! let way = way.sent_to("10.244.1.2:8080".parse().unwrap());
//! let way = walker.step(Table::Nat, names::POSTROUTING, way);
//! assert!(way.is_masqueraded());
//! assert!(walker.via()[0].starts_with("mangle TELAIO-IPVS-INPUT: "));
//! ```

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use telaio_model::Protocol;

use crate::trace::{Packet, Surroundings, Trace, Verdict};

use super::names::{self, ChainName, Table};
use super::parse::{Entry, Ruleset};
use super::rule::{Directions, Is, Match, Rule, States, Target};

/// How deep chains may lead to each other; ours do five times.
const DEPTH_MAX: usize = 16;

/// The packet at one point of one way that it can take.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Way {
    /// Where it goes now.
    pub to: SocketAddr,
    /// Its whole mark.
    pub mark: u32,
    /// It goes to an endpoint now, not to where it wanted to.
    pub sent_on: bool,
    /// How the last hook that it met ended; `None` if it goes on as if nothing had been there.
    pub end: Option<End>,
}

impl Way {
    /// A packet to this destination, which has met nothing yet.
    pub fn new(to: SocketAddr) -> Self {
        Self { to, mark: 0, sent_on: false, end: None }
    }

    /// The same, sent on to an endpoint.
    #[must_use]
    pub fn sent_to(self, endpoint: SocketAddr) -> Self {
        Self { to: endpoint, sent_on: true, ..self }
    }

    /// Whether it goes nowhere any more.
    pub fn is_refused(&self) -> bool {
        matches!(self.end, Some(End::Rejected | End::Dropped))
    }

    /// Whether the last hook gave it the node's address.
    pub fn is_masqueraded(&self) -> bool {
        self.end == Some(End::Masqueraded)
    }
}

/// What a rule that ends a hook has done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum End {
    /// Only that. The packet goes on, so no way comes out of a hook with this.
    Done,
    /// The packet goes on, with the node's address as its source.
    Masqueraded,
    /// It is refused.
    Rejected,
    /// It is dropped.
    Dropped,
}

/// What a rule looks for in an ipset: the parts of a packet that its [`Directions`] name, as they are at
/// that moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Element {
    /// An address, for sets of addresses.
    Ip(IpAddr),
    /// An address and port.
    IpPort(SocketAddr, Protocol),
    /// An address and port, and another address: for sets of such, and for those that have a network
    /// instead of the other address, where it has to be within the network.
    IpPortIp(SocketAddr, Protocol, IpAddr),
}

/// Knows the ipsets that rules ask about, by the names that the rules have for them. A set that it does
/// not know has no members.
pub trait Sets {
    /// Whether the element is a member.
    fn contains(&self, set: &str, element: &Element) -> bool;

    /// The mark that the set has for this member; `None` if it is no member.
    fn mark(&self, set: &str, element: &Element) -> Option<u32>;
}

/// For rules that ask about none.
#[derive(Debug, Clone, Copy)]
pub struct NoSets;

impl Sets for NoSets {
    fn contains(&self, _: &str, _: &Element) -> bool {
        false
    }

    fn mark(&self, _: &str, _: &Element) -> Option<u32> {
        None
    }
}

/// Whether a rule holds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Holds {
    No,
    Perhaps,
    Yes,
}

impl Holds {
    fn is(yes: bool) -> Self {
        if yes { Self::Yes } else { Self::No }
    }

    fn inverted(self, invert: bool) -> Self {
        match self {
            Self::Yes if invert => Self::No,
            Self::No if invert => Self::Yes,
            other => other,
        }
    }
}

/// What becomes of a packet, with the rules of the backend `iptables`.
pub fn trace(packet: &Packet, around: &Surroundings, rules: &Ruleset) -> Trace {
    let mut walker = Walker::new(packet, around, rules, &NoSets);
    let hook = if walker.starts_here { names::OUTPUT } else { names::PREROUTING };
    let ways = walker.hook(Table::Nat, hook, BTreeSet::from([Way::new(packet.to)]));

    let mut answer = Trace {
        verdict: Verdict::None,
        endpoints: BTreeSet::new(),
        masquerade: false,
        via: Vec::new(),
    };
    let mut ends = BTreeSet::new();
    for way in ways {
        let way = walker.filter(way);
        if let Some(end @ (End::Rejected | End::Dropped)) = way.end {
            ends.insert(end);
            continue;
        }
        if way.sent_on {
            answer.endpoints.insert(way.to);
        }
        answer.masquerade |= walker.leaves_masqueraded(way);
    }
    answer.verdict = if !answer.endpoints.is_empty() {
        Verdict::Dnat
    } else if ends.contains(&End::Rejected) {
        Verdict::Reject
    } else if ends.contains(&End::Dropped) {
        Verdict::Drop
    } else {
        Verdict::None
    };
    answer.via = walker.via;
    answer
}

/// Walks a packet through the rules of a hook.
pub struct Walker<'a> {
    packet: &'a Packet,
    around: &'a Surroundings,
    starts_here: bool,
    rules: &'a Ruleset,
    sets: &'a dyn Sets,
    via: Vec<String>,
}

impl<'a> Walker<'a> {
    /// For one packet, on a node with these rules and sets.
    pub fn new(
        packet: &'a Packet,
        around: &'a Surroundings,
        rules: &'a Ruleset,
        sets: &'a dyn Sets,
    ) -> Self {
        let starts_here = around.starts_here(packet);
        Self { packet, around, starts_here, rules, sets, via: Vec::new() }
    }

    /// The rules of our chains that held for the packet, in the order in which it met them first.
    pub fn via(&self) -> &[String] {
        &self.via
    }

    /// Walks one of the kernel's own chains where nothing is left to chance, so that there is one way
    /// out. A way that was refused before stays as it is.
    pub fn step(&mut self, table: Table, hook: ChainName, way: Way) -> Way {
        let before = way.clone();
        self.hook(table, hook, BTreeSet::from([way])).pop_first().unwrap_or(before)
    }

    /// Walks one of the kernel's own chains; gives every way that the packet can come out of it. Ways
    /// that were refused before stay as they are.
    pub fn hook(&mut self, table: Table, hook: ChainName, ways: BTreeSet<Way>) -> BTreeSet<Way> {
        let (mut out, under_way): (BTreeSet<Way>, BTreeSet<Way>) =
            ways.into_iter().partition(Way::is_refused);
        // Another table, or another hook, begins afresh.
        let afresh = under_way.into_iter().map(|way| Way { end: None, ..way }).collect();
        let (on, ended) = self.chain(table, hook, afresh, 0);
        let passes = |way: Way| Way { end: way.end.filter(|end| *end != End::Done), ..way };
        out.extend(on.into_iter().chain(ended).map(passes));
        out
    }

    /// Walks a chain; gives the ways that come out at its end, and those that have ended in it.
    fn chain(
        &mut self,
        table: Table,
        chain: ChainName,
        ways: BTreeSet<Way>,
        depth: usize,
    ) -> (BTreeSet<Way>, BTreeSet<Way>) {
        let (mut on, mut ended, mut returned) = (ways, BTreeSet::new(), BTreeSet::new());
        if depth > DEPTH_MAX {
            return (on, ended);
        }
        for entry in self.rules.chain(table, chain) {
            if on.is_empty() {
                break;
            }
            let Entry::Rule(rule) = entry else { continue };
            let mut passed = BTreeSet::new();
            let mut taken = BTreeSet::new();
            for way in on {
                let holds = self.holds(rule, &way);
                if holds != Holds::Yes {
                    passed.insert(way.clone());
                }
                if holds != Holds::No {
                    taken.insert(way);
                }
            }
            if !taken.is_empty() {
                self.say(table, chain, rule);
                match &rule.target {
                    Target::Jump(next) => {
                        let (back, stopped) = self.chain(table, *next, taken, depth + 1);
                        passed.extend(back);
                        ended.extend(stopped);
                    }
                    Target::Return => returned.extend(taken),
                    target => {
                        let after = taken.into_iter().map(|way| self.apply(target, way));
                        let (stopped, back) = after.partition::<Vec<Way>, _>(|it| it.end.is_some());
                        passed.extend(back);
                        ended.extend(stopped);
                    }
                }
            }
            on = passed;
        }
        on.extend(returned);
        (on, ended)
    }

    fn say(&mut self, table: Table, chain: ChainName, rule: &Rule) {
        // That the kernel's own chains lead to ours is true of every packet and tells nothing.
        if !chain.is_ours() {
            return;
        }
        let line = format!("{} {chain}: {rule}", table.as_str());
        if !self.via.contains(&line) {
            self.via.push(line);
        }
    }

    /// Walks the filter table's hooks that a packet to this address meets.
    fn filter(&mut self, way: Way) -> Way {
        let is_local = self.around.is_local(way.to.ip());
        let hooks = match (self.starts_here, is_local) {
            (true, true) => &[names::OUTPUT, names::INPUT][..],
            (true, false) => &[names::OUTPUT],
            (false, true) => &[names::INPUT],
            (false, false) => &[names::FORWARD],
        };
        let mut way = way;
        for hook in hooks {
            way = self.step(Table::Filter, *hook, way);
        }
        way
    }

    fn leaves_masqueraded(&mut self, way: Way) -> bool {
        let ways = self.hook(Table::Nat, names::POSTROUTING, BTreeSet::from([way]));
        ways.iter().any(Way::is_masqueraded)
    }

    fn holds(&self, rule: &Rule, way: &Way) -> Holds {
        let within = |net: &Is<ipnet::IpNet>, ip: IpAddr| net.value.contains(&ip) != net.invert;
        let fixed = rule.source.as_ref().is_none_or(|net| within(net, self.packet.from))
            && rule.destination.as_ref().is_none_or(|net| within(net, way.to.ip()))
            && rule.protocol.is_none_or(|protocol| protocol == self.packet.protocol)
            && rule.interface.as_ref().is_none_or(|interface| self.came_by(interface));
        if !fixed {
            return Holds::No;
        }
        let also = rule.matches.iter().map(|also| self.matches(also, way));
        let out = rule.out_interface.iter().map(|interface| self.leaves_by(interface, way));
        also.chain(out).min().unwrap_or(Holds::Yes)
    }

    /// Only loopback is known by its name here: what stays on the node, and nothing else, leaves by it.
    fn leaves_by(&self, interface: &Is<Box<str>>, way: &Way) -> Holds {
        let stays = self.around.is_local(way.to.ip());
        let holds = match (&*interface.value == "lo", stays) {
            (true, stays) => Holds::is(stays),
            (false, true) => Holds::No,
            (false, false) => Holds::Perhaps,
        };
        holds.inverted(interface.invert)
    }

    fn element(&self, directions: Directions, way: &Way) -> Element {
        let (from, protocol) = (self.packet.from, self.packet.protocol);
        match directions {
            Directions::Source => Element::Ip(from),
            Directions::Destination => Element::Ip(way.to.ip()),
            Directions::DestinationPort => Element::IpPort(way.to, protocol),
            Directions::DestinationPortSource => Element::IpPortIp(way.to, protocol, from),
        }
    }

    fn came_by(&self, interface: &Is<Box<str>>) -> bool {
        // A packet from the node itself has come in by none.
        let name = self.packet.interface.as_deref().unwrap_or_default();
        let same = match interface.value.strip_suffix('+') {
            Some(prefix) => !name.is_empty() && name.starts_with(prefix),
            None => name == &*interface.value,
        };
        same != interface.invert
    }

    fn matches(&self, also: &Match, way: &Way) -> Holds {
        match also {
            Match::Comment(_) | Match::RecentSet { .. } => Holds::Yes,
            Match::Port(protocol, port) => {
                Holds::is(*protocol == self.packet.protocol && *port == way.to.port())
            }
            Match::LocalSource => Holds::is(self.around.is_local(self.packet.from)),
            Match::LocalDestination => Holds::is(self.around.is_local(way.to.ip())),
            Match::State(states) => {
                let dnat = if way.sent_on { States::NEW.or(States::DNAT) } else { States::NEW };
                Holds::is(states.value.meets(dnat)).inverted(states.invert)
            }
            Match::Mark { value, mask, invert } => {
                Holds::is(way.mark & mask == *value).inverted(*invert)
            }
            Match::Set { name, directions, invert } => {
                let element = self.element(*directions, way);
                Holds::is(self.sets.contains(name, &element)).inverted(*invert)
            }
            Match::Random(_) | Match::Nth { .. } | Match::RecentCheck { .. } => Holds::Perhaps,
        }
    }

    fn apply(&self, target: &Target, way: Way) -> Way {
        match target {
            Target::Accept => Way { end: Some(End::Done), ..way },
            Target::Drop => Way { end: Some(End::Dropped), ..way },
            Target::Reject(_) => Way { end: Some(End::Rejected), ..way },
            Target::Dnat(to) => Way { end: Some(End::Done), ..way.sent_to(*to) },
            Target::Masquerade => Way { end: Some(End::Masqueraded), ..way },
            Target::SetMark { value, mask } => Way { mark: (way.mark & !mask) ^ value, ..way },
            Target::MapMark { set } => {
                let element = self.element(Directions::DestinationPort, &way);
                let mark = self.sets.mark(set, &element).unwrap_or(way.mark);
                Way { mark, ..way }
            }
            // The walker follows these itself.
            Target::Jump(_) | Target::Return => way,
        }
    }
}
