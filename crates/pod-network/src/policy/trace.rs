//! What a packet meets in our tables: the rules run step by step, as the kernel runs them.
//!
//! The rules are those that were compiled, or those that were read back from the kernel. The tracer knows nothing of policies,
//! so a fault in the rules shows.

use std::collections::BTreeMap;
use std::net::IpAddr;

use telaio_model::IpFamily;
use telaio_netlink::nftables::{CompareOp, Expression, FibAddress, MetaKey, Payload, Reg, Verdict};

use super::compile::{ElementKey, Item, Key};
use super::layout::{BASE_CHAIN, Map};

/// How many chains a packet passes at most; the kernel allows 16 jumps.
const CHAINS_MAX: usize = 16;
/// How many bytes the registers have.
const REGISTERS_LEN: usize = 64;
/// The type of an address that is this machine's own.
const ROUTE_LOCAL: u32 = 2;
/// Any other type.
const ROUTE_UNICAST: u32 = 1;
const STATE_ESTABLISHED: u32 = 1 << 1;
const STATE_NEW: u32 = 1 << 3;

/// A packet that leaves the node's routing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Packet {
    /// Its source.
    pub from: IpAddr,
    /// Its destination, after address translation; of the same family.
    pub to: IpAddr,
    /// The number of its protocol.
    pub protocol: u8,
    /// The destination's port, of protocols that have ports.
    pub port: Option<u16>,
    /// It belongs to a connection that is known.
    pub is_known: bool,
    /// Its source is the node itself.
    pub is_own: bool,
}

/// Whether a packet passes; what else the rules did to it would show as a changed mark.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trace {
    /// It goes on.
    pub passes: bool,
    /// Its mark afterwards, which was 0.
    pub mark: u32,
    /// The chains that it passed.
    pub via: Vec<String>,
}

/// What becomes of a packet where these things stand in the tables.
pub fn trace(packet: &Packet, items: &BTreeMap<Key, Item>) -> Trace {
    let family = IpFamily::of(packet.from);
    let mut run =
        Run { packet, items, family, registers: [0; REGISTERS_LEN], mark: 0, via: Vec::new() };
    let passes = !matches!(run.chain(BASE_CHAIN), Flow::Drop);
    Trace { passes, mark: run.mark, via: run.via }
}

/// How a chain ends.
enum Flow {
    /// With the end of its rules, or back.
    Continue,
    Accept,
    Drop,
}

enum Step {
    Next,
    Break,
    Verdict(Verdict),
}

struct Run<'a> {
    packet: &'a Packet,
    items: &'a BTreeMap<Key, Item>,
    family: IpFamily,
    registers: [u8; REGISTERS_LEN],
    mark: u32,
    via: Vec<String>,
}

impl Run<'_> {
    fn chain(&mut self, name: &str) -> Flow {
        let items = self.items;
        let Some(Item::Chain(chain)) = items.get(&Key::Chain(self.family, name.into())) else {
            return Flow::Continue;
        };
        self.via.push(name.to_owned());
        if self.via.len() > CHAINS_MAX {
            return Flow::Drop;
        }
        for rule in chain.rules.iter().flatten() {
            for expression in rule {
                match self.step(expression) {
                    Step::Next => {}
                    Step::Break => break,
                    Step::Verdict(verdict) => match self.verdict(&verdict) {
                        Some(flow) => return flow,
                        None => break,
                    },
                }
            }
        }
        Flow::Continue
    }

    /// Where a verdict leads; `None`: on with the next rule.
    fn verdict(&mut self, verdict: &Verdict) -> Option<Flow> {
        match verdict {
            Verdict::Drop => Some(Flow::Drop),
            Verdict::Accept => Some(Flow::Accept),
            Verdict::Return => Some(Flow::Continue),
            Verdict::Goto(chain) => Some(self.chain(chain)),
            Verdict::Jump(chain) => match self.chain(chain) {
                Flow::Continue => None,
                end => Some(end),
            },
        }
    }

    fn step(&mut self, expression: &Expression) -> Step {
        match expression {
            Expression::Immediate { to, value } => self.put(*to, value),
            Expression::Verdict(verdict) => return Step::Verdict(verdict.clone()),
            Expression::Payload { to, base, offset, len } => {
                match self.payload(*base, *offset, *len) {
                    Some(bytes) => self.put(*to, &bytes),
                    None => return Step::Break,
                }
            }
            Expression::Meta { to, key } => match key {
                MetaKey::Mark => self.put(*to, &self.mark.to_ne_bytes()),
                MetaKey::Protocol => self.put(*to, &[self.packet.protocol]),
                _ => return Step::Break,
            },
            Expression::SetMark { from } => self.mark = self.number(*from),
            Expression::ConntrackState { to } => {
                let state = if self.packet.is_known { STATE_ESTABLISHED } else { STATE_NEW };
                self.put(*to, &state.to_ne_bytes());
            }
            Expression::FibType { to, address: FibAddress::Source } => {
                let kind = if self.packet.is_own { ROUTE_LOCAL } else { ROUTE_UNICAST };
                self.put(*to, &kind.to_ne_bytes());
            }
            Expression::Compare { from, op, value } => {
                let same = self.get(*from, value.len()) == value.as_slice();
                if same != (*op == CompareOp::Equal) {
                    return Step::Break;
                }
            }
            Expression::Bitwise { from, to, mask, xor } => {
                let value = self.get(*from, mask.len()).to_vec();
                let bits = value.iter().zip(mask).zip(xor);
                let result: Vec<u8> = bits.map(|((value, mask), xor)| value & mask ^ xor).collect();
                self.put(*to, &result);
            }
            Expression::InSet { set, key, inverted } => {
                if self.look_up(set, *key).is_some() == *inverted {
                    return Step::Break;
                }
            }
            Expression::Lookup { map, key, to } => match self.look_up(map, *key) {
                Some(Item::Value(value)) => self.put(*to, &value.to_ne_bytes()),
                _ => return Step::Break,
            },
            Expression::LookupVerdict { map, key } => match self.look_up(map, *key) {
                Some(Item::Verdict(verdict)) => return Step::Verdict(verdict),
                _ => return Step::Break,
            },
            // None of ours.
            _ => return Step::Break,
        }
        Step::Next
    }

    fn look_up(&self, name: &str, key: Reg) -> Option<Item> {
        let map = Map::named(name)?;
        self.items.get(&Key::Set(self.family, name.into()))?;
        let len = map.lengths(self.family).0;
        let key = ElementKey::new(self.get(key, len as usize))?;
        self.items.get(&Key::Element(self.family, map, key)).cloned()
    }

    fn payload(&self, base: Payload, offset: u32, len: u32) -> Option<Vec<u8>> {
        let address = |ip: IpAddr| match ip {
            IpAddr::V4(ip) => ip.octets().to_vec(),
            IpAddr::V6(ip) => ip.octets().to_vec(),
        };
        match (base, self.family, offset, len) {
            (Payload::Network, IpFamily::V4, 12, 4) | (Payload::Network, IpFamily::V6, 8, 16) => {
                Some(address(self.packet.from))
            }
            (Payload::Network, IpFamily::V4, 16, 4) | (Payload::Network, IpFamily::V6, 24, 16) => {
                Some(address(self.packet.to))
            }
            (Payload::Transport, _, 2, 2) => {
                self.packet.port.map(|port| port.to_be_bytes().to_vec())
            }
            // The first byte: of an ICMP message its type, which is none that finds neighbours.
            _ => Some(vec![0; len as usize]),
        }
    }

    /// The kernel clears the rest of the last register.
    fn put(&mut self, to: Reg, bytes: &[u8]) {
        let at = usize::from(to.0) * 4;
        let end = (at + bytes.len().next_multiple_of(4)).min(REGISTERS_LEN);
        let Some(room) = self.registers.get_mut(at..end) else { return };
        room.fill(0);
        let len = bytes.len().min(room.len());
        room[..len].copy_from_slice(&bytes[..len]);
    }

    fn get(&self, from: Reg, len: usize) -> &[u8] {
        let at = usize::from(from.0) * 4;
        self.registers.get(at..at + len).unwrap_or_default()
    }

    fn number(&self, from: Reg) -> u32 {
        self.get(from, 4).try_into().map_or(0, u32::from_ne_bytes)
    }
}
