//! Expressions as the kernel tells them.
//!
//! Only those that [`Expression`] can say. Anything else, also an option that we do not know, is
//! `None`: a rule with it is not one of ours.

use super::expression::{
    CompareOp, DynsetOp, Expression, FibAddress, MetaKey, NumgenKind, Payload, Reg, RejectKind,
    Verdict,
};
use super::numbers::{Family, data, rule};
use crate::wire::Attributes;

/// The first 4-byte register.
const REG_FIRST: u32 = 8;
/// The last 16-byte register; the kernel tells registers that it can as these.
const REG_WIDE_LAST: u32 = 4;
/// 4-byte registers in a 16-byte one.
const REGS_PER_WIDE: u32 = 4;

/// The expressions of a rule, from its attribute.
pub(crate) fn expressions(bytes: &[u8]) -> Option<Vec<Expression>> {
    Attributes(bytes).into_iter().map(|(_, value)| expression(Attributes(value))).collect()
}

/// The chain that the last step of a rule leads to, also where others of its steps are none that we know.
pub(crate) fn leads_to(bytes: &[u8]) -> Option<String> {
    let (_, last) = Attributes(bytes).into_iter().last()?;
    match expression(Attributes(last))? {
        Expression::Verdict(Verdict::Jump(chain) | Verdict::Goto(chain)) => Some(chain),
        _ => None,
    }
}

/// Whether a rule refuses whatever comes to it: also with a kind of answer that we never give.
pub(crate) fn refuses(bytes: &[u8]) -> bool {
    let mut steps = Attributes(bytes).into_iter().map(|(_, value)| Attributes(value)).peekable();
    while let Some(step) = steps.next() {
        let name = step.str(rule::EXPRESSION_NAME);
        if steps.peek().is_some() {
            if !matches!(name, Some("counter" | "log")) {
                return false;
            }
            continue;
        }
        return match name {
            Some("reject") => true,
            // As iptables writes it.
            Some("target") => {
                let at = step.nested(rule::EXPRESSION_DATA);
                at.is_some_and(|at| at.str(1) == Some("REJECT"))
            }
            _ => matches!(expression(step), Some(Expression::Verdict(Verdict::Drop))),
        };
    }
    false
}

/// The names of links that a rule asks for, also where others of its steps are none that we know.
pub(crate) fn links(bytes: &[u8]) -> Vec<(MetaKey, String)> {
    let steps = Attributes(bytes).into_iter().map(|(_, value)| expression(Attributes(value)));
    let (mut found, mut loaded) = (Vec::new(), None);
    for step in steps {
        match step {
            Some(Expression::Meta {
                to,
                key: key @ (MetaKey::InputName | MetaKey::OutputName),
            }) => {
                loaded = Some((to, key));
            }
            Some(Expression::Compare { from, op: CompareOp::Equal, value }) => {
                let asked = loaded.take().filter(|(to, _)| *to == from);
                let text = value.split(|byte| *byte == 0).next().unwrap_or_default();
                let name = String::from_utf8_lossy(text).into_owned();
                found.extend(asked.map(|(_, key)| (key, name)));
            }
            _ => loaded = None,
        }
    }
    found
}

fn expression(attributes: Attributes<'_>) -> Option<Expression> {
    let name = attributes.str(rule::EXPRESSION_NAME)?;
    let at = attributes.nested(rule::EXPRESSION_DATA)?;
    let reg = |attribute: u16| at.be32(attribute).and_then(register);
    match name {
        "immediate" if at.be32(1)? == 0 => verdict(at.nested(2)?).map(Expression::Verdict),
        "immediate" => Some(Expression::Immediate { to: reg(1)?, value: value(at, 2)? }),
        "payload" => Some(Expression::Payload {
            to: reg(1)?,
            base: match at.be32(2)? {
                0 => Payload::Link,
                1 => Payload::Network,
                2 => Payload::Transport,
                _ => return None,
            },
            offset: at.be32(3)?,
            len: at.be32(4)?,
        }),
        "meta" => meta(at),
        "ct" if at.be32(2)? == 2 => Some(Expression::ConntrackStatus { to: reg(1)? }),
        "ct" if at.be32(2)? == 0 => Some(Expression::ConntrackState { to: reg(1)? }),
        "cmp" => Some(Expression::Compare {
            from: reg(1)?,
            op: match at.be32(2)? {
                0 => CompareOp::Equal,
                1 => CompareOp::NotEqual,
                _ => return None,
            },
            value: value(at, 3)?,
        }),
        // Operations other than mask and exclusive or have numbers above 0.
        "bitwise" if at.be32(6).unwrap_or(0) == 0 => Some(Expression::Bitwise {
            from: reg(1)?,
            to: reg(2)?,
            mask: value(at, 4)?,
            xor: value(at, 5)?,
        }),
        "lookup" => lookup(at),
        "dynset" => Some(Expression::Dynset {
            set: at.str(1)?.to_owned(),
            op: match at.be32(3)? {
                0 => DynsetOp::Add,
                1 => DynsetOp::Update,
                2 => DynsetOp::Delete,
                _ => return None,
            },
            key: reg(4)?,
            data: reg(5),
            timeout_ms: at.be64(6).filter(|timeout| *timeout > 0),
        }),
        "numgen" => Some(Expression::Numgen {
            to: reg(1)?,
            modulus: at.be32(2)?,
            kind: match at.be32(3)? {
                0 => NumgenKind::Incremental,
                1 => NumgenKind::Random,
                _ => return None,
            },
            offset: at.be32(4).unwrap_or(0),
        }),
        "hash" if at.be32(7).unwrap_or(0) == 0 => Some(Expression::Hash {
            from: reg(1)?,
            to: reg(2)?,
            len: at.be32(3)?,
            modulus: at.be32(4)?,
            seed: at.be32(5).unwrap_or(0),
            offset: at.be32(6).unwrap_or(0),
        }),
        "fib" if at.be32(2)? == 3 => Some(Expression::FibType {
            to: reg(1)?,
            address: match at.be32(3)? {
                1 => FibAddress::Source,
                2 => FibAddress::Destination,
                _ => return None,
            },
        }),
        "fib" if at.be32(2)? == 1 => Some(Expression::FibInputLink {
            to: reg(1)?,
            address: match at.be32(3)? {
                9 => FibAddress::Source,
                10 => FibAddress::Destination,
                _ => return None,
            },
        }),
        "nat" if at.be32(1)? == 1 => Some(Expression::DestinationNat {
            family: Family::from_number(u8::try_from(at.be32(2)?).ok()?)?,
            address: reg(3)?,
            port: reg(5)?,
        }),
        "redir" => Some(Expression::Redirect { port: reg(1)? }),
        "masq" => Some(Expression::Masquerade),
        "reject" => match (at.be32(1)?, at.u8(2)) {
            (1, _) => Some(Expression::Reject(RejectKind::TcpReset)),
            (0, Some(3)) => Some(Expression::Reject(RejectKind::PortUnreachableV4)),
            (0, Some(4)) => Some(Expression::Reject(RejectKind::PortUnreachableV6)),
            _ => None,
        },
        _ => None,
    }
}

fn meta(at: Attributes<'_>) -> Option<Expression> {
    let key = match at.be32(2)? {
        1 => MetaKey::EtherType,
        3 => MetaKey::Mark,
        6 => MetaKey::InputName,
        7 => MetaKey::OutputName,
        16 => MetaKey::Protocol,
        21 => MetaKey::InputGroup,
        22 => MetaKey::OutputGroup,
        _ => return None,
    };
    match (at.be32(1).and_then(register), at.be32(3).and_then(register)) {
        (Some(to), None) => Some(Expression::Meta { to, key }),
        (None, Some(from)) if key == MetaKey::Mark => Some(Expression::SetMark { from }),
        _ => None,
    }
}

fn lookup(at: Attributes<'_>) -> Option<Expression> {
    let (name, key) = (at.str(1)?.to_owned(), at.be32(2).and_then(register)?);
    let inverted = at.be32(5).unwrap_or(0) != 0;
    Some(match at.be32(3) {
        None => Expression::InSet { set: name, key, inverted },
        Some(0) => Expression::LookupVerdict { map: name, key },
        Some(to) => Expression::Lookup { map: name, key, to: register(to)? },
    })
}

fn value(at: Attributes<'_>, attribute: u16) -> Option<Vec<u8>> {
    at.nested(attribute)?.get(data::VALUE).map(<[u8]>::to_vec)
}

fn verdict(at: Attributes<'_>) -> Option<Verdict> {
    let verdict = at.nested(data::VERDICT)?;
    let code = verdict.be32(data::VERDICT_CODE)?.cast_signed();
    Verdict::from_code(code, verdict.str(data::VERDICT_CHAIN))
}

fn register(number: u32) -> Option<Reg> {
    let index = match number {
        1..=REG_WIDE_LAST => (number - 1) * REGS_PER_WIDE,
        REG_FIRST.. => number - REG_FIRST,
        _ => return None,
    };
    u8::try_from(index).ok().filter(|index| *index < 16).map(Reg)
}
