//! The expressions of rules: what a rule looks at and does.

use super::numbers::{Family, data};
use crate::wire::Writer;

/// One of the sixteen 4-byte registers. Wider values take several in a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Reg(pub u8);

impl Reg {
    fn number(self) -> u32 {
        8 + u32::from(self.0)
    }
}

/// The register of the verdict.
const REG_VERDICT: u32 = 0;

/// What becomes of a packet, or where it goes on.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Verdict {
    /// Gone.
    Drop,
    /// Done with this hook's chain.
    Accept,
    /// To a chain, and back afterwards.
    Jump(String),
    /// To a chain, and not back.
    Goto(String),
    /// Back.
    Return,
}

impl Verdict {
    /// The kernel's code, and the chain.
    pub(crate) fn code(&self) -> (i32, Option<&str>) {
        match self {
            Self::Drop => (0, None),
            Self::Accept => (1, None),
            Self::Jump(chain) => (-3, Some(chain)),
            Self::Goto(chain) => (-4, Some(chain)),
            Self::Return => (-5, None),
        }
    }

    pub(crate) fn from_code(code: i32, chain: Option<&str>) -> Option<Self> {
        match (code, chain) {
            (0, _) => Some(Self::Drop),
            (1, _) => Some(Self::Accept),
            (-3, Some(chain)) => Some(Self::Jump(chain.to_owned())),
            (-4, Some(chain)) => Some(Self::Goto(chain.to_owned())),
            (-5, _) => Some(Self::Return),
            _ => None,
        }
    }

    pub(crate) fn write(&self, writer: &mut Writer, attribute: u16) {
        let (code, chain) = self.code();
        let outer = writer.begin_nest(attribute);
        let inner = writer.begin_nest(data::VERDICT);
        writer.put_be32(data::VERDICT_CODE, code.cast_unsigned());
        if let Some(chain) = chain {
            writer.put_str(data::VERDICT_CHAIN, chain);
        }
        writer.end_nest(inner);
        writer.end_nest(outer);
    }
}

/// Which header a payload is loaded from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Payload {
    /// Ethernet.
    Link,
    /// IPv4 or IPv6.
    Network,
    /// TCP, UDP, SCTP.
    Transport,
}

/// Facts about a packet beside its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum MetaKey {
    /// The type of its frame.
    EtherType,
    /// Its mark.
    Mark,
    /// The name of the interface that it came in by.
    InputName,
    /// The name of the interface that it goes out by.
    OutputName,
    /// Its transport protocol.
    Protocol,
    /// The group of the interface that it came in by.
    InputGroup,
    /// The group of the interface that it goes out by.
    OutputGroup,
}

impl MetaKey {
    fn number(self) -> u32 {
        match self {
            Self::EtherType => 1,
            Self::Mark => 3,
            Self::InputName => 6,
            Self::OutputName => 7,
            Self::Protocol => 16,
            Self::InputGroup => 21,
            Self::OutputGroup => 22,
        }
    }
}

/// How values are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CompareOp {
    /// Equal.
    Equal,
    /// Not equal.
    NotEqual,
}

/// How numbers are generated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum NumgenKind {
    /// Counting up; each rule has its own counter.
    Incremental,
    /// By chance.
    Random,
}

/// What happens to an element of a set from within a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DynsetOp {
    /// Added if it is not there.
    Add,
    /// Added, or its time-out begun anew.
    Update,
    /// Removed.
    Delete,
}

/// How a packet is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RejectKind {
    /// By an ICMP "port unreachable".
    PortUnreachableV4,
    /// By an ICMPv6 "port unreachable".
    PortUnreachableV6,
    /// By a TCP reset.
    TcpReset,
}

/// Which of a packet's addresses is asked about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FibAddress {
    /// Its source.
    Source,
    /// Its destination.
    Destination,
}

impl FibAddress {
    fn number(self) -> u32 {
        match self {
            Self::Source => 1,
            Self::Destination => 2,
        }
    }
}

/// One step of a rule. A step that does not match ends the rule.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Expression {
    /// Loads a constant.
    Immediate {
        /// Into.
        to: Reg,
        /// The value.
        value: Vec<u8>,
    },
    /// Decides.
    Verdict(Verdict),
    /// Loads bytes of the packet.
    Payload {
        /// Into.
        to: Reg,
        /// From which header.
        base: Payload,
        /// From which byte on.
        offset: u32,
        /// How many bytes.
        len: u32,
    },
    /// Loads a fact about the packet.
    Meta {
        /// Into.
        to: Reg,
        /// Which.
        key: MetaKey,
    },
    /// Sets the packet's mark.
    SetMark {
        /// From.
        from: Reg,
    },
    /// Loads the connection's status bits.
    ConntrackStatus {
        /// Into.
        to: Reg,
    },
    /// Loads the bits of what the connection's state is.
    ConntrackState {
        /// Into.
        to: Reg,
    },
    /// Goes on only if the comparison holds.
    Compare {
        /// What.
        from: Reg,
        /// How.
        op: CompareOp,
        /// With what.
        value: Vec<u8>,
    },
    /// `to = (from & mask) ^ xor`.
    Bitwise {
        /// What.
        from: Reg,
        /// Into.
        to: Reg,
        /// The mask.
        mask: Vec<u8>,
        /// Then exclusive or; of the same length.
        xor: Vec<u8>,
    },
    /// Goes on only if the key is (not) in the set.
    InSet {
        /// The set.
        set: String,
        /// The key.
        key: Reg,
        /// Rather if it is not.
        inverted: bool,
    },
    /// Loads what a map has for the key; goes on only if it has something.
    Lookup {
        /// The map.
        map: String,
        /// The key.
        key: Reg,
        /// Into.
        to: Reg,
    },
    /// Decides as a map of verdicts says, if it has the key.
    LookupVerdict {
        /// The map.
        map: String,
        /// The key.
        key: Reg,
    },
    /// Changes a set or map.
    Dynset {
        /// The set.
        set: String,
        /// What to do.
        op: DynsetOp,
        /// The key.
        key: Reg,
        /// The value, for maps.
        data: Option<Reg>,
        /// For how long, instead of the set's own time-out.
        timeout_ms: Option<u64>,
    },
    /// Generates a number: `offset` to `offset + modulus - 1`.
    Numgen {
        /// Into.
        to: Reg,
        /// How.
        kind: NumgenKind,
        /// How many different ones.
        modulus: u32,
        /// The least.
        offset: u32,
    },
    /// Hashes to a number: `offset` to `offset + modulus - 1`.
    Hash {
        /// What.
        from: Reg,
        /// How many bytes of it.
        len: u32,
        /// Into.
        to: Reg,
        /// How many different ones.
        modulus: u32,
        /// What tells this hash from others.
        seed: u32,
        /// The least.
        offset: u32,
    },
    /// Loads the type of an address as the routing table has it (2 is "local").
    FibType {
        /// Into.
        to: Reg,
        /// Of which address.
        address: FibAddress,
    },
    /// Loads the number of the link that leads to an address, of routes by the link that the packet came in by; 0
    /// where there is none.
    FibInputLink {
        /// Into.
        to: Reg,
        /// To which address.
        address: FibAddress,
    },
    /// Sends the connection elsewhere.
    DestinationNat {
        /// The family.
        family: Family,
        /// The address.
        address: Reg,
        /// The port.
        port: Reg,
    },
    /// Sends the connection to this machine.
    Redirect {
        /// To which port.
        port: Reg,
    },
    /// Gives the connection this machine's address as its source, at a port by chance.
    Masquerade,
    /// Refuses the packet.
    Reject(RejectKind),
}

const NAT_FLAG_RANDOM_FULLY: u32 = 16;
const NAT_TYPE_DESTINATION: u32 = 1;
const FIB_RESULT_LINK: u32 = 1;
const FIB_RESULT_TYPE: u32 = 3;
const FIB_BY_INPUT: u32 = 8;

impl Expression {
    /// Writes it as an element of a rule's list.
    pub(crate) fn write(&self, writer: &mut Writer) {
        use super::numbers::rule::{EXPRESSION_DATA, EXPRESSION_NAME, LIST_ELEMENT};
        let outer = writer.begin_nest(LIST_ELEMENT);
        writer.put_str(EXPRESSION_NAME, self.name());
        let inner = writer.begin_nest(EXPRESSION_DATA);
        self.write_data(writer);
        writer.end_nest(inner);
        writer.end_nest(outer);
    }

    fn name(&self) -> &'static str {
        match self {
            Self::Immediate { .. } | Self::Verdict(_) => "immediate",
            Self::Payload { .. } => "payload",
            Self::Meta { .. } | Self::SetMark { .. } => "meta",
            Self::ConntrackStatus { .. } | Self::ConntrackState { .. } => "ct",
            Self::Compare { .. } => "cmp",
            Self::Bitwise { .. } => "bitwise",
            Self::InSet { .. } | Self::Lookup { .. } | Self::LookupVerdict { .. } => "lookup",
            Self::Dynset { .. } => "dynset",
            Self::Numgen { .. } => "numgen",
            Self::Hash { .. } => "hash",
            Self::FibType { .. } | Self::FibInputLink { .. } => "fib",
            Self::DestinationNat { .. } => "nat",
            Self::Redirect { .. } => "redir",
            Self::Masquerade => "masq",
            Self::Reject(_) => "reject",
        }
    }

    fn write_data(&self, writer: &mut Writer) {
        match self {
            Self::Immediate { to, value } => {
                writer.put_be32(1, to.number());
                put_value(writer, 2, value);
            }
            Self::Verdict(verdict) => {
                writer.put_be32(1, REG_VERDICT);
                verdict.write(writer, 2);
            }
            Self::Payload { to, base, offset, len } => {
                writer.put_be32(1, to.number());
                let base = match base {
                    Payload::Link => 0,
                    Payload::Network => 1,
                    Payload::Transport => 2,
                };
                writer.put_be32(2, base);
                writer.put_be32(3, *offset);
                writer.put_be32(4, *len);
            }
            Self::Meta { to, key } => {
                writer.put_be32(1, to.number());
                writer.put_be32(2, key.number());
            }
            Self::SetMark { from } => {
                writer.put_be32(2, MetaKey::Mark.number());
                writer.put_be32(3, from.number());
            }
            Self::ConntrackStatus { to } => {
                writer.put_be32(1, to.number());
                writer.put_be32(2, 2);
            }
            Self::ConntrackState { to } => {
                writer.put_be32(1, to.number());
                writer.put_be32(2, 0);
            }
            Self::Compare { from, op, value } => {
                writer.put_be32(1, from.number());
                writer.put_be32(2, u32::from(*op != CompareOp::Equal));
                put_value(writer, 3, value);
            }
            Self::Bitwise { from, to, mask, xor } => {
                writer.put_be32(1, from.number());
                writer.put_be32(2, to.number());
                writer.put_be32(3, mask.len() as u32);
                put_value(writer, 4, mask);
                put_value(writer, 5, xor);
            }
            Self::InSet { set, key, inverted } => {
                writer.put_str(1, set);
                writer.put_be32(2, key.number());
                if *inverted {
                    writer.put_be32(5, 1);
                }
            }
            Self::Lookup { map, key, to } => {
                writer.put_str(1, map);
                writer.put_be32(2, key.number());
                writer.put_be32(3, to.number());
            }
            Self::LookupVerdict { map, key } => {
                writer.put_str(1, map);
                writer.put_be32(2, key.number());
                writer.put_be32(3, REG_VERDICT);
            }
            Self::Dynset { set, op, key, data, timeout_ms } => {
                let op = match op {
                    DynsetOp::Add => 0,
                    DynsetOp::Update => 1,
                    DynsetOp::Delete => 2,
                };
                writer.put_str(1, set);
                writer.put_be32(3, op);
                writer.put_be32(4, key.number());
                if let Some(data) = data {
                    writer.put_be32(5, data.number());
                }
                if let Some(timeout) = timeout_ms {
                    writer.put_be64(6, *timeout);
                }
            }
            Self::Numgen { to, kind, modulus, offset } => {
                writer.put_be32(1, to.number());
                writer.put_be32(2, *modulus);
                writer.put_be32(3, u32::from(*kind == NumgenKind::Random));
                writer.put_be32(4, *offset);
            }
            Self::Hash { from, len, to, modulus, seed, offset } => {
                writer.put_be32(1, from.number());
                writer.put_be32(2, to.number());
                writer.put_be32(3, *len);
                writer.put_be32(4, *modulus);
                writer.put_be32(5, *seed);
                writer.put_be32(6, *offset);
                writer.put_be32(7, 0);
            }
            Self::FibType { to, address } => {
                writer.put_be32(1, to.number());
                writer.put_be32(2, FIB_RESULT_TYPE);
                writer.put_be32(3, address.number());
            }
            Self::FibInputLink { to, address } => {
                writer.put_be32(1, to.number());
                writer.put_be32(2, FIB_RESULT_LINK);
                writer.put_be32(3, address.number() | FIB_BY_INPUT);
            }
            Self::DestinationNat { family, address, port } => {
                writer.put_be32(1, NAT_TYPE_DESTINATION);
                writer.put_be32(2, u32::from(family.number()));
                writer.put_be32(3, address.number());
                writer.put_be32(5, port.number());
            }
            Self::Redirect { port } => writer.put_be32(1, port.number()),
            Self::Masquerade => writer.put_be32(1, NAT_FLAG_RANDOM_FULLY),
            Self::Reject(kind) => {
                let (number, code) = match kind {
                    // Only tables of both families have a kind for both.
                    RejectKind::PortUnreachableV4 => (0, 3),
                    RejectKind::PortUnreachableV6 => (0, 4),
                    RejectKind::TcpReset => (1, 0),
                };
                writer.put_be32(1, number);
                writer.put_u8(2, code);
            }
        }
    }
}

fn put_value(writer: &mut Writer, attribute: u16, value: &[u8]) {
    let nest = writer.begin_nest(attribute);
    writer.put(data::VALUE, value);
    writer.end_nest(nest);
}
