//! The rules, in the kernel's words.
//!
//! Where one look-up's result is part of another's key it takes a detour through the packet's mark, which is put back within
//! the same rule: old releases of nft crash when they list the direct form, and operators list rulesets.

use telaio_model::IpFamily;
use telaio_netlink::nftables::{
    Chain, ChainKind, CompareOp, Expression, FibAddress, Hook, MetaKey, Payload, Reg, Verdict,
};

use super::facts::Direction;
use super::layout::{BASE_CHAIN, BASE_PRIORITY, Map, judge_chain, open_chain};
use super::ports::{PORT_BITS, port_mask};

/// A rule: its steps.
pub(super) type Rule = Vec<Expression>;

/// The bits of a connection's state that say that it has been allowed: established, related.
const STATE_KNOWN: u32 = 0b110;
/// The type of an address that is this machine's own.
const ROUTE_LOCAL: u32 = 2;
/// The protocol number of ICMPv6.
const ICMPV6: u8 = 58;
/// How neighbours find each other: solicitation and advertisement.
const NEIGHBOUR_TYPES: [u8; 2] = [135, 136];

/// Registers 0 to 3 have addresses.
const ADDRESS: Reg = Reg(0);
/// The profile and, after it, the class: together a key.
const PROFILE: Reg = Reg(8);
const CLASS: Reg = Reg(9);
const PROTOCOL: Reg = Reg(9);
const PORT: Reg = Reg(10);
const GATE: Reg = Reg(11);
/// The packet's mark, meanwhile.
const SAVED: Reg = Reg(12);

/// The rules of one family.
#[derive(Debug, Clone, Copy)]
pub(super) struct Words {
    pub(super) family: IpFamily,
}

impl Words {
    /// The chains that all share, with their rules. `block_lengths` are those of the networks that rules ask about.
    pub(super) fn base(self, block_lengths: &[u8]) -> Vec<(Chain, Vec<Rule>)> {
        let base = (ChainKind::Filter, Hook::Postrouting, BASE_PRIORITY);
        let base = Chain { name: BASE_CHAIN.to_owned(), base: Some(base) };
        let mut chains = vec![(base, self.entry())];
        for direction in Direction::ALL {
            let judge = Chain::regular(judge_chain(direction));
            chains.push((judge, self.judge(direction, block_lengths)));
            let open = Chain::regular(open_chain(direction));
            chains.push((open, vec![self.open(direction), drop()]));
        }
        chains
    }

    /// Where all packets come by that leave this machine's routing, its own and those that pass through.
    fn entry(self) -> Vec<Rule> {
        let mut rules = vec![accept_known(), accept_own()];
        if self.family == IpFamily::V6 {
            rules.extend(NEIGHBOUR_TYPES.map(accept_icmpv6));
        }
        for field in [Field::Source, Field::Destination] {
            rules.push(self.drop_unjudged(field));
        }
        for direction in [Direction::Egress, Direction::Ingress] {
            let mut rule = self.profile(direction);
            rule.push(verdict(Verdict::Jump(judge_chain(direction).to_owned())));
            rules.push(rule);
        }
        rules
    }

    /// Nothing comes from an instance, or goes to it, as long as nobody has judged what it may.
    fn drop_unjudged(self, field: Field) -> Rule {
        let set = Map::Unjudged.name();
        let known = Expression::InSet { set, key: ADDRESS, inverted: false };
        vec![self.load(field), known, verdict(Verdict::Drop)]
    }

    fn judge(self, direction: Direction, block_lengths: &[u8]) -> Vec<Rule> {
        let mut rules = vec![self.return_own()];
        let by_length = block_lengths.iter().rev().map(|len| Map::Blocks(*len));
        for map in [Map::Peers].into_iter().chain(by_length) {
            rules.push(self.grant(direction, map));
            // Whoever is known by this map is allowed no more than that.
            let mut known = self.class(direction, map);
            known.push(verdict(Verdict::Goto(open_chain(direction).to_owned())));
            rules.push(known);
        }
        rules.push(vec![verdict(Verdict::Goto(open_chain(direction).to_owned()))]);
        rules
    }

    /// Loads the instance's profile; ends the rule if it has none.
    fn profile(self, direction: Direction) -> Rule {
        let field = match direction {
            Direction::Ingress => Field::Destination,
            Direction::Egress => Field::Source,
        };
        let mut rule = vec![self.load(field)];
        rule.extend(look_up(Map::Profiles(direction), ADDRESS, PROFILE));
        rule
    }

    /// Loads the peer's class; ends the rule if this map does not know it.
    fn class(self, direction: Direction, map: Map) -> Rule {
        let field = match direction {
            Direction::Ingress => Field::Source,
            Direction::Egress => Field::Destination,
        };
        let mut rule = vec![self.load(field)];
        if let Map::Blocks(len) = map
            && len < self.address_bits()
        {
            let mask = self.mask(len);
            rule.push(Expression::Bitwise {
                from: ADDRESS,
                to: ADDRESS,
                xor: vec![0; mask.len()],
                mask,
            });
        }
        rule.extend(look_up(map, ADDRESS, CLASS));
        rule
    }

    /// Goes where the profile's grant to the class leads, if there is one.
    fn grant(self, direction: Direction, map: Map) -> Rule {
        let mut rule = self.profile(direction);
        rule.extend(self.class(direction, map));
        rule.extend(look_up(Map::Grants, PROFILE, GATE));
        rule.push(to_gate());
        rule
    }

    /// Goes where the profile's grant to anybody leads, if there is one.
    fn open(self, direction: Direction) -> Rule {
        let mut rule = self.profile(direction);
        rule.extend(look_up(Map::Open, PROFILE, GATE));
        rule.push(to_gate());
        rule
    }

    /// An instance may talk with itself.
    fn return_own(self) -> Rule {
        let second = if self.family == IpFamily::V4 { Reg(1) } else { Reg(4) };
        let mut rule = vec![self.load(Field::Source), self.load_to(Field::Destination, second)];
        rule.push(Expression::InSet { set: Map::Own.name(), key: ADDRESS, inverted: false });
        rule.push(verdict(Verdict::Return));
        rule
    }

    fn load(self, field: Field) -> Expression {
        self.load_to(field, ADDRESS)
    }

    fn load_to(self, field: Field, to: Reg) -> Expression {
        let (offset, len) = match (self.family, field) {
            (IpFamily::V4, Field::Source) => (12, 4),
            (IpFamily::V4, Field::Destination) => (16, 4),
            (IpFamily::V6, Field::Source) => (8, 16),
            (IpFamily::V6, Field::Destination) => (24, 16),
        };
        Expression::Payload { to, base: Payload::Network, offset, len }
    }

    fn address_bits(self) -> u8 {
        match self.family {
            IpFamily::V4 => 32,
            IpFamily::V6 => 128,
        }
    }

    fn mask(self, len: u8) -> Vec<u8> {
        let bits = self.address_bits();
        let all = u128::MAX << (128 - u32::from(bits));
        let mask = all & u128::MAX.checked_shl(128 - u32::from(len)).unwrap_or(0);
        mask.to_be_bytes()[..usize::from(bits / 8)].to_vec()
    }
}

#[derive(Debug, Clone, Copy)]
enum Field {
    Source,
    Destination,
}

/// The rules of a set of ports, by the lengths of its prefixes: back if the packet's port is in it.
pub(super) fn gate(number: u32, lengths: impl IntoIterator<Item = u8>) -> Vec<Rule> {
    let by_length = lengths.into_iter().map(|len| {
        let mut rule =
            vec![Expression::Immediate { to: PROFILE, value: number.to_ne_bytes().to_vec() }];
        rule.extend(launder(PROFILE));
        rule.push(Expression::Meta { to: PROTOCOL, key: MetaKey::Protocol });
        rule.push(Expression::Payload { to: PORT, base: Payload::Transport, offset: 2, len: 2 });
        if len < PORT_BITS {
            let mask = port_mask(len).to_be_bytes().to_vec();
            rule.push(Expression::Bitwise { from: PORT, to: PORT, mask, xor: vec![0; 2] });
        }
        rule.push(Expression::InSet { set: Map::Ports(len).name(), key: PROFILE, inverted: false });
        rule.push(verdict(Verdict::Return));
        rule
    });
    by_length.chain([drop()]).collect()
}

fn verdict(verdict: Verdict) -> Expression {
    Expression::Verdict(verdict)
}

fn drop() -> Rule {
    vec![verdict(Verdict::Drop)]
}

fn to_gate() -> Expression {
    Expression::LookupVerdict { map: Map::Gates.name(), key: GATE }
}

/// Loads what a map has for a key.
fn look_up(map: Map, key: Reg, to: Reg) -> Rule {
    let mut rule = vec![Expression::Lookup { map: map.name(), key, to }];
    rule.extend(launder(to));
    rule
}

/// Takes a value out of a register and puts it back by way of the packet's mark, which then is what it was.
fn launder(value: Reg) -> Rule {
    let mark = |to| Expression::Meta { to, key: MetaKey::Mark };
    let set = |from| Expression::SetMark { from };
    vec![mark(SAVED), set(value), mark(value), set(SAVED)]
}

/// What belongs to a connection that was allowed is allowed: answers above all.
fn accept_known() -> Rule {
    vec![
        Expression::ConntrackState { to: ADDRESS },
        Expression::Bitwise {
            from: ADDRESS,
            to: ADDRESS,
            mask: STATE_KNOWN.to_ne_bytes().to_vec(),
            xor: vec![0; 4],
        },
        Expression::Compare { from: ADDRESS, op: CompareOp::NotEqual, value: vec![0; 4] },
        verdict(Verdict::Accept),
    ]
}

/// The node itself may talk to its instances: it probes them.
fn accept_own() -> Rule {
    vec![
        Expression::FibType { to: ADDRESS, address: FibAddress::Source },
        Expression::Compare {
            from: ADDRESS,
            op: CompareOp::Equal,
            value: ROUTE_LOCAL.to_ne_bytes().to_vec(),
        },
        verdict(Verdict::Accept),
    ]
}

/// Without it instances on a bridge that filters would not find each other. Nobody routes these, so they come from beside.
fn accept_icmpv6(kind: u8) -> Rule {
    let is =
        |value: u8| Expression::Compare { from: ADDRESS, op: CompareOp::Equal, value: vec![value] };
    vec![
        Expression::Meta { to: ADDRESS, key: MetaKey::Protocol },
        is(ICMPV6),
        Expression::Payload { to: ADDRESS, base: Payload::Transport, offset: 0, len: 1 },
        is(kind),
        verdict(Verdict::Accept),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_have_as_many_bits_as_they_say() {
        let v4 = Words { family: IpFamily::V4 };
        let v6 = Words { family: IpFamily::V6 };
        assert_eq!(v4.mask(0), [0, 0, 0, 0]);
        assert_eq!(v4.mask(9), [255, 128, 0, 0]);
        assert_eq!(v4.mask(32), [255; 4]);
        assert_eq!(v6.mask(0), [0; 16]);
        assert_eq!(v6.mask(12)[..3], [255, 240, 0]);
        assert_eq!(v6.mask(128), [255; 16]);
    }
}
