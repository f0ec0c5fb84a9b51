//! Reading back what is there: all of a kind, or single objects by name.

use super::decode;
use super::expression::{Expression, MetaKey, Verdict};
use super::numbers::{self, Family, HEADER_LEN, chain, data, element, header, rule, set, table};
use super::transport::Nftables;
use crate::error::NetlinkError;
use crate::socket::{NLM_F_DUMP, NLM_F_REQUEST};
use crate::wire::{Attributes, Message, Writer};

/// How many elements are asked for at a time. The kernel keeps a page for each answer until it is read,
/// and there must be room for all of them.
const ASKED_MAX: usize = 64;

/// The policy of chains that let packets pass.
const ACCEPT: u32 = 1;

/// How often a listing is begun anew because the ruleset changed meanwhile.
const ATTEMPTS_MAX: u32 = 20;

/// A chain as it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadChain {
    /// Its name.
    pub name: String,
    /// For base chains: kind, number of the hook, priority.
    pub base: Option<(String, u32, i32)>,
    /// What becomes of packets at a base chain's end is not that they are accepted.
    pub refuses: bool,
}

/// A rule as it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadRule {
    /// Its chain.
    pub chain: String,
    /// The kernel's number for it, by which it is removed.
    pub handle: u64,
    /// The chain that its last step leads to, whatever comes before that.
    pub leads_to: Option<String>,
    /// Whatever comes to it is dropped or rejected: it has no condition.
    pub refuses: bool,
    /// The names of links that it asks for, whatever else it asks; of names of which only the beginning counts that.
    pub links: Vec<(MetaKey, String)>,
    /// Its comment, if it has one.
    pub comment: Option<String>,
    /// Its expressions; `None` if it has some that we never use.
    pub expressions: Option<Vec<Expression>>,
}

/// A set or map as it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadSet {
    /// Its name.
    pub name: String,
    /// How many elements it may have; 0: any number.
    pub size: u32,
    /// The length of a key.
    pub key_len: u32,
    /// The length of a value, 0 for sets.
    pub data_len: u32,
}

/// An element as it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadElement<'a> {
    /// The key; empty for the element that stands for whatever is in no other.
    pub key: &'a [u8],
    /// The value, in maps of values.
    pub value: Option<&'a [u8]>,
    /// The verdict, in maps of verdicts.
    pub verdict: Option<(i32, Option<&'a str>)>,
    /// Its time-out, where it is not the set's.
    pub timeout_ms: Option<u64>,
    /// What is left of its time.
    pub left_ms: Option<u64>,
}

impl ReadElement<'_> {
    /// The verdict, in maps of verdicts.
    pub fn verdict(&self) -> Option<Verdict> {
        let (code, chain) = self.verdict?;
        Verdict::from_code(code, chain)
    }
}

impl Nftables {
    /// Whether there is such a table, and it is in use: not put to sleep by a flag.
    pub fn has_live_table(&mut self, of: Family, name: &str) -> Result<bool, NetlinkError> {
        let mut found = false;
        let family = of.number();
        self.list_all(
            numbers::GET_TABLE,
            family,
            "listing tables",
            |_| {},
            |message, first| {
                let attributes = message.attributes(HEADER_LEN);
                let flags = attributes.be32(table::FLAGS).unwrap_or(0);
                let is_it = attributes.str(table::NAME) == Some(name) && flags == 0;
                found = is_it || (found && !first);
            },
        )?;
        Ok(found)
    }

    /// Every table of the families that we know.
    pub fn tables(&mut self) -> Result<Vec<(Family, String)>, NetlinkError> {
        let mut found = Vec::new();
        self.list_all(
            numbers::GET_TABLE,
            0,
            "listing tables",
            |_| {},
            |message, first| {
                if first {
                    found.clear();
                }
                let family = message.body.first().copied().and_then(Family::from_number);
                let name = message.attributes(HEADER_LEN).str(table::NAME);
                found.extend(family.zip(name.map(str::to_owned)));
            },
        )?;
        Ok(found)
    }

    /// The chains of a table.
    pub fn chains(&mut self, family: Family, of: &str) -> Result<Vec<ReadChain>, NetlinkError> {
        let mut found = Vec::new();
        let family = family.number();
        self.list_all(
            numbers::GET_CHAIN,
            family,
            "listing chains",
            |_| {},
            |message, first| {
                if first {
                    found.clear();
                }
                let attributes = message.attributes(HEADER_LEN);
                if attributes.str(chain::TABLE) == Some(of) {
                    found.extend(read_chain(attributes));
                }
            },
        )?;
        Ok(found)
    }

    /// The rules of a table, by chain in the order of their evaluation.
    pub fn rules(&mut self, family: Family, of: &str) -> Result<Vec<ReadRule>, NetlinkError> {
        let mut found = Vec::new();
        let filter = |writer: &mut Writer| writer.put_str(rule::TABLE, of);
        let family = family.number();
        self.list_all(numbers::GET_RULE, family, "listing rules", filter, |message, first| {
            if first {
                found.clear();
            }
            let attributes = message.attributes(HEADER_LEN);
            // A kernel that does not filter lists every table's.
            if attributes.str(rule::TABLE) == Some(of) {
                found.extend(read_rule(attributes));
            }
        })?;
        Ok(found)
    }

    /// The sets and maps of a table.
    pub fn sets(&mut self, family: Family, of: &str) -> Result<Vec<ReadSet>, NetlinkError> {
        let mut found = Vec::new();
        let filter = |writer: &mut Writer| writer.put_str(set::TABLE, of);
        let family = family.number();
        self.list_all(numbers::GET_SET, family, "listing sets", filter, |message, first| {
            if first {
                found.clear();
            }
            let attributes = message.attributes(HEADER_LEN);
            if attributes.str(set::TABLE) == Some(of) {
                found.extend(read_set(attributes));
            }
        })?;
        Ok(found)
    }

    /// The elements of a set, one after the other; `begin` is called when listing begins (anew).
    pub fn elements(
        &mut self,
        family: Family,
        table: &str,
        name: &str,
        mut each: impl FnMut(Option<&ReadElement<'_>>),
    ) -> Result<(), NetlinkError> {
        let filter = |writer: &mut Writer| {
            writer.put_str(element::TABLE, table);
            writer.put_str(element::SET, name);
        };
        let family = family.number();
        each(None);
        self.list_all(numbers::GET_ELEMENT, family, "listing elements", filter, |message, first| {
            if first {
                each(None);
            }
            let Some(list) = message.attributes(HEADER_LEN).nested(element::ELEMENTS) else {
                return;
            };
            for (_, value) in list {
                if let Some(item) = read_element(Attributes(value)) {
                    each(Some(&item));
                }
            }
        })
    }

    /// One chain; `None` if there is none of this name.
    pub fn chain(
        &mut self,
        family: Family,
        table: &str,
        name: &str,
    ) -> Result<Option<ReadChain>, NetlinkError> {
        let doing = "reading a chain";
        let sequence = self.socket.next_sequence();
        let mut writer = Writer::new();
        let head = header(family.number(), 0);
        writer.begin(numbers::GET_CHAIN, NLM_F_REQUEST, sequence, &head);
        writer.put_str(chain::TABLE, table);
        writer.put_str(chain::NAME, name);
        writer.end();
        self.socket.send(writer.finish()?, doing)?;
        let mut found = None;
        self.socket.answers(sequence, sequence, doing, |_, message| {
            found = message.and_then(|it| read_chain(it.attributes(HEADER_LEN)));
        })?;
        Ok(found)
    }

    /// The rules of one chain in the order of their evaluation; none if there is no such chain.
    pub fn rules_of(
        &mut self,
        family: Family,
        table: &str,
        of: &str,
    ) -> Result<Vec<ReadRule>, NetlinkError> {
        let mut found = Vec::new();
        let filter = |writer: &mut Writer| {
            writer.put_str(rule::TABLE, table);
            writer.put_str(rule::CHAIN, of);
        };
        let family = family.number();
        self.list_all(numbers::GET_RULE, family, "listing a chain", filter, |message, first| {
            if first {
                found.clear();
            }
            let attributes = message.attributes(HEADER_LEN);
            // A kernel that does not filter lists them all.
            if attributes.str(rule::TABLE) == Some(table) && attributes.str(rule::CHAIN) == Some(of)
            {
                found.extend(read_rule(attributes));
            }
        })?;
        Ok(found)
    }

    /// Single elements of a set, each told with its key and what is there, or that there is none. Costs
    /// as much as there are keys, however large the set is.
    pub fn elements_at<'k>(
        &mut self,
        family: Family,
        table: &str,
        name: &str,
        keys: impl IntoIterator<Item = &'k [u8]>,
        mut each: impl FnMut(&'k [u8], Option<&ReadElement<'_>>),
    ) -> Result<(), NetlinkError> {
        let doing = "reading elements";
        let head = header(family.number(), 0);
        let mut keys = keys.into_iter().peekable();
        while keys.peek().is_some() {
            let mut writer = Writer::new();
            let mut asked: Vec<(u32, &[u8])> = Vec::with_capacity(ASKED_MAX);
            // One message for each: the kernel ends a list of keys at the first that is missing.
            for key in keys.by_ref().take(ASKED_MAX) {
                let sequence = self.socket.next_sequence();
                writer.begin(numbers::GET_ELEMENT, NLM_F_REQUEST, sequence, &head);
                writer.put_str(element::TABLE, table);
                writer.put_str(element::SET, name);
                let list = writer.begin_nest(element::ELEMENTS);
                let item = writer.begin_nest(element::LIST_ELEMENT);
                let at = writer.begin_nest(element::KEY);
                writer.put(data::VALUE, key);
                writer.end_nest(at);
                writer.end_nest(item);
                writer.end_nest(list);
                writer.end();
                asked.push((sequence, key));
            }
            let (Some((first, _)), Some((last, _))) = (asked.first(), asked.last()) else { break };
            self.socket.send(writer.finish()?, doing)?;
            let mut unanswered = asked.iter();
            self.socket.answers(*first, *last, doing, |sequence, message| {
                let Some((_, key)) = unanswered.find(|(of, _)| *of == sequence) else { return };
                let list = message.map(|it| it.attributes(HEADER_LEN));
                let list = list.and_then(|it| it.nested(element::ELEMENTS));
                let item = list.and_then(|it| it.into_iter().next());
                each(key, item.and_then(|(_, it)| read_element(Attributes(it))).as_ref());
            })?;
        }
        Ok(())
    }

    /// Lists, and begins anew while the ruleset changes under it. `each` is told with its first
    /// message that what it had before does not count.
    fn list_all(
        &mut self,
        message_type: u16,
        family: u8,
        doing: &'static str,
        filter: impl Fn(&mut Writer),
        mut each: impl FnMut(&Message<'_>, bool),
    ) -> Result<(), NetlinkError> {
        for _ in 0..ATTEMPTS_MAX {
            let sequence = self.socket.next_sequence();
            let mut writer = Writer::new();
            writer.begin(message_type, NLM_F_REQUEST | NLM_F_DUMP, sequence, &header(family, 0));
            filter(&mut writer);
            writer.end();
            self.socket.send(writer.finish()?, doing)?;
            let mut first = true;
            let listed = self.socket.list(sequence, doing, |message| {
                each(message, first);
                first = false;
                Ok(())
            });
            match listed {
                Err(NetlinkError::Interrupted) => {}
                other => return other,
            }
        }
        Err(NetlinkError::Interrupted)
    }
}

fn read_chain(attributes: Attributes<'_>) -> Option<ReadChain> {
    let base = attributes.nested(chain::HOOK).and_then(|hook| {
        Some((
            attributes.str(chain::TYPE)?.to_owned(),
            hook.be32(chain::HOOK_NUMBER)?,
            hook.be32(chain::HOOK_PRIORITY)?.cast_signed(),
        ))
    });
    let refuses = attributes.be32(chain::POLICY).is_some_and(|policy| policy != ACCEPT);
    Some(ReadChain { name: attributes.str(chain::NAME)?.to_owned(), base, refuses })
}

fn read_rule(attributes: Attributes<'_>) -> Option<ReadRule> {
    let expressions = attributes.get(rule::EXPRESSIONS).unwrap_or_default();
    Some(ReadRule {
        chain: attributes.str(rule::CHAIN)?.to_owned(),
        handle: attributes.be64(rule::HANDLE).unwrap_or(0),
        leads_to: decode::leads_to(expressions),
        refuses: decode::refuses(expressions),
        links: decode::links(expressions),
        comment: attributes.get(rule::USERDATA).and_then(comment),
        expressions: decode::expressions(expressions),
    })
}

/// The comment within a rule's user data: entries of type, length, value.
fn comment(mut bytes: &[u8]) -> Option<String> {
    while let [kind, length, rest @ ..] = bytes {
        let value = rest.get(..usize::from(*length))?;
        if *kind == rule::USERDATA_COMMENT {
            let text = value.strip_suffix(&[0]).unwrap_or(value);
            return std::str::from_utf8(text).ok().map(str::to_owned);
        }
        bytes = &rest[value.len()..];
    }
    None
}

fn read_set(attributes: Attributes<'_>) -> Option<ReadSet> {
    let description = attributes.nested(set::DESCRIPTION);
    Some(ReadSet {
        name: attributes.str(set::NAME)?.to_owned(),
        size: description.and_then(|it| it.be32(set::DESCRIPTION_SIZE)).unwrap_or(0),
        key_len: attributes.be32(set::KEY_LEN)?,
        data_len: attributes.be32(set::DATA_LEN).unwrap_or(0),
    })
}

pub(super) fn read_element(attributes: Attributes<'_>) -> Option<ReadElement<'_>> {
    let mut item =
        ReadElement { key: &[], value: None, verdict: None, timeout_ms: None, left_ms: None };
    for (number, bytes) in attributes {
        match number {
            element::KEY => item.key = Attributes(bytes).get(data::VALUE)?,
            element::DATA => {
                for (number, bytes) in Attributes(bytes) {
                    if number == data::VALUE {
                        item.value = Some(bytes);
                    } else if number == data::VERDICT {
                        let verdict = Attributes(bytes);
                        let code = verdict.be32(data::VERDICT_CODE)?.cast_signed();
                        item.verdict = Some((code, verdict.str(data::VERDICT_CHAIN)));
                    }
                }
            }
            element::TIMEOUT => item.timeout_ms = bytes.try_into().ok().map(u64::from_be_bytes),
            element::EXPIRATION => item.left_ms = bytes.try_into().ok().map(u64::from_be_bytes),
            _ => {}
        }
    }
    Some(item)
}
