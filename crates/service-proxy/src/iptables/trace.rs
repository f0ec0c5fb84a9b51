//! What a packet will meet in the rules of this backend.
//!
//! [`trace`] walks the rules as the kernel does: nat, then filter with the address that nat has given,
//! then nat again on the way out. Where chance, a counter or a list of recent clients decides, both ways
//! are walked, so that the answer names every endpoint that the packet can reach. It takes the rules as
//! a [`Ruleset`], which is read from our own text or from `iptables-save`.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use crate::trace::{Packet, Surroundings, Trace, Verdict};

use super::names::{self, ChainName, Table};
use super::parse::{Entry, Ruleset};
use super::rule::{Is, Match, Rule, States, Target};

/// How deep chains may lead to each other; ours do five times.
const DEPTH_MAX: usize = 16;

/// One way that the packet can take.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Way {
    to: SocketAddr,
    mark: u32,
    sent_on: bool,
    /// What ended it, if something has.
    end: Option<End>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum End {
    /// This hook has done its work.
    Done,
    Masqueraded,
    Rejected,
    Dropped,
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

/// What becomes of a packet.
pub fn trace(packet: &Packet, around: &Surroundings, rules: &Ruleset) -> Trace {
    let starts_here = around.starts_here(packet);
    let mut walker = Walker { packet, around, starts_here, rules, via: Vec::new() };
    let way = Way { to: packet.to, mark: 0, sent_on: false, end: None };
    let hook = if starts_here { names::OUTPUT } else { names::PREROUTING };
    let ways = walker.hook(Table::Nat, hook, BTreeSet::from([way]));

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

struct Walker<'a> {
    packet: &'a Packet,
    around: &'a Surroundings,
    starts_here: bool,
    rules: &'a Ruleset,
    via: Vec<String>,
}

impl Walker<'_> {
    /// Walks one of the kernel's own chains.
    fn hook(&mut self, table: Table, chain: ChainName, ways: BTreeSet<Way>) -> BTreeSet<Way> {
        let (on, mut ended) = self.chain(table, chain, ways, 0);
        ended.extend(on);
        // Another table, or another hook, begins afresh.
        let refused = |end: &End| matches!(end, End::Rejected | End::Dropped | End::Masqueraded);
        ended.into_iter().map(|way| Way { end: way.end.filter(refused), ..way }).collect()
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
                        let after = taken.into_iter().map(|way| apply(target, way));
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
            let before = way.clone();
            // Nothing in the filter table is left to chance, so there is one way out.
            way = self
                .hook(Table::Filter, *hook, BTreeSet::from([way]))
                .pop_first()
                .unwrap_or(before);
            if matches!(way.end, Some(End::Rejected | End::Dropped)) {
                break;
            }
        }
        way
    }

    fn leaves_masqueraded(&mut self, way: Way) -> bool {
        let ways = self.hook(Table::Nat, names::POSTROUTING, BTreeSet::from([way]));
        ways.iter().any(|way| way.end == Some(End::Masqueraded))
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
        rule.matches.iter().map(|also| self.matches(also, way)).min().unwrap_or(Holds::Yes)
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
            Match::Random(_) | Match::Nth { .. } | Match::RecentCheck { .. } => Holds::Perhaps,
        }
    }
}

fn apply(target: &Target, way: Way) -> Way {
    match target {
        Target::Accept => Way { end: Some(End::Done), ..way },
        Target::Drop => Way { end: Some(End::Dropped), ..way },
        Target::Reject(_) => Way { end: Some(End::Rejected), ..way },
        Target::Dnat(to) => Way { to: *to, sent_on: true, end: Some(End::Done), ..way },
        Target::Masquerade => Way { end: Some(End::Masqueraded), ..way },
        Target::SetMark { value, mask } => Way { mark: (way.mark & !mask) ^ value, ..way },
        // The walker follows these itself.
        Target::Jump(_) | Target::Return => way,
    }
}
