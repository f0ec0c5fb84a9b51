//! A transaction that is being written.

use super::expression::{Expression, Verdict};
use super::numbers::{self, DataType, Family, chain, data, element, header, rule, set, table};
use crate::socket::NLM_F_REQUEST;
use crate::wire::{Nest, Writer};

/// Elements of one message: an attribute's length has 16 bits.
const ELEMENTS_BYTES_MAX: usize = 32 << 10;

/// What a base chain sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ChainKind {
    /// Every packet.
    Filter,
    /// The first packet of each connection.
    Nat,
}

impl ChainKind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Filter => "filter",
            Self::Nat => "nat",
        }
    }
}

/// Where a base chain stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Hook {
    /// Before routing, for what comes in.
    Prerouting,
    /// For what is for this machine.
    Input,
    /// For what passes through.
    Forward,
    /// For what starts here.
    Output,
    /// After routing, for what goes out.
    Postrouting,
}

impl Hook {
    pub(crate) fn number(self) -> u32 {
        match self {
            Self::Prerouting => 0,
            Self::Input => 1,
            Self::Forward => 2,
            Self::Output => 3,
            Self::Postrouting => 4,
        }
    }
}

impl Hook {
    /// The hook of this number.
    pub fn from_number(number: u32) -> Option<Self> {
        [Self::Prerouting, Self::Input, Self::Forward, Self::Output, Self::Postrouting]
            .into_iter()
            .find(|hook| hook.number() == number)
    }
}

/// A chain.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Chain {
    /// Its name.
    pub name: String,
    /// For base chains: what it sees, where it stands, and in which order among others there.
    pub base: Option<(ChainKind, Hook, i32)>,
}

impl Chain {
    /// A chain that others go to.
    pub fn regular(name: impl Into<String>) -> Self {
        Self { name: name.into(), base: None }
    }

    /// A chain that the kernel begins with.
    pub fn base(name: impl Into<String>, kind: ChainKind, hook: Hook, priority: i32) -> Self {
        Self { name: name.into(), base: Some((kind, hook, priority)) }
    }
}

/// What a set or map holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SetSpec<'a> {
    /// Its name.
    pub name: &'a str,
    /// The types of its key.
    pub key: &'a [DataType],
    /// The types of its values, for maps of values.
    pub values: Option<&'a [DataType]>,
    /// It is a map of verdicts.
    pub verdicts: bool,
    /// How many elements it may have. A set that knows is much faster to fill.
    pub size: u32,
    /// Rules may change it, and elements end after this time unless they say otherwise.
    pub dynamic_timeout_ms: Option<u64>,
}

impl SetSpec<'_> {
    /// The lengths of a key and of a value, as the kernel tells them.
    pub fn lengths(&self) -> (u32, u32) {
        let values = self.values.map_or(0, |values| DataType::concatenated(values).1);
        (DataType::concatenated(self.key).1, values)
    }
}

/// What a map has for a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ElementData<'a> {
    /// Nothing: it is a set.
    None,
    /// A value.
    Value(&'a [u8]),
    /// A verdict.
    Verdict(&'a Verdict),
}

/// An element of a set or map.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Element<'a> {
    /// The key: each part padded to four bytes.
    pub key: &'a [u8],
    /// What a map has for it.
    pub data: ElementData<'a>,
    /// Its time-out, in sets with time-outs; without one it has the set's.
    pub timeout_ms: Option<u64>,
    /// What is left of its time.
    pub left_ms: Option<u64>,
}

impl<'a> Element<'a> {
    /// An element without a time-out.
    pub fn new(key: &'a [u8], data: ElementData<'a>) -> Self {
        Self { key, data, timeout_ms: None, left_ms: None }
    }
}

/// Elements that are being written to one message after the other.
#[derive(Debug)]
struct OpenElements {
    message_type: u16,
    set: String,
    list: Nest,
}

/// Messages about one table, to be committed as one transaction.
#[derive(Debug)]
pub struct Batch {
    family: Family,
    table: String,
    writer: Writer,
    /// How many messages there are.
    messages: u32,
    /// Sets need a number within their transaction.
    next_set_id: u32,
    open: Option<OpenElements>,
}

impl Batch {
    /// An empty one for a table.
    pub fn new(family: Family, table: impl Into<String>) -> Self {
        Self {
            family,
            table: table.into(),
            writer: Writer::new(),
            messages: 0,
            next_set_id: 1,
            open: None,
        }
    }

    /// The family of its table.
    pub fn family(&self) -> Family {
        self.family
    }

    /// Nothing was written.
    pub fn is_empty(&self) -> bool {
        self.messages == 0
    }

    /// How many bytes were written.
    pub fn len(&self) -> usize {
        self.writer.len()
    }

    /// The messages, and how many they are. Their sequence numbers are the transport's to fill in.
    pub(crate) fn messages(&mut self) -> (&Writer, u32) {
        self.close_elements();
        (&self.writer, self.messages)
    }

    fn begin(&mut self, message_type: u16, flags: u16) {
        self.close_elements();
        let body = header(self.family.number(), 0);
        self.writer.begin(message_type, NLM_F_REQUEST | flags, self.messages, &body);
        self.messages += 1;
    }

    /// Makes the table if it is not there.
    pub fn add_table(&mut self) {
        self.begin(numbers::NEW_TABLE, numbers::CREATE);
        self.writer.put_str(table::NAME, &self.table);
        self.writer.end();
    }

    /// Deletes the table and all that is in it. It must be there.
    pub fn delete_table(&mut self) {
        self.begin(numbers::DELETE_TABLE, 0);
        self.writer.put_str(table::NAME, &self.table);
        self.writer.end();
    }

    /// Makes a chain if it is not there.
    pub fn add_chain(&mut self, spec: &Chain) {
        self.begin(numbers::NEW_CHAIN, numbers::CREATE);
        self.writer.put_str(chain::TABLE, &self.table);
        self.writer.put_str(chain::NAME, &spec.name);
        if let Some((kind, hook, priority)) = spec.base {
            let nest = self.writer.begin_nest(chain::HOOK);
            self.writer.put_be32(chain::HOOK_NUMBER, hook.number());
            self.writer.put_be32(chain::HOOK_PRIORITY, priority.cast_unsigned());
            self.writer.end_nest(nest);
            self.writer.put_be32(chain::POLICY, 1);
            self.writer.put_str(chain::TYPE, kind.name());
        }
        self.writer.end();
    }

    /// Deletes a chain. It must be there, and nobody may go to it.
    pub fn delete_chain(&mut self, name: &str) {
        self.begin(numbers::DELETE_CHAIN, 0);
        self.writer.put_str(chain::TABLE, &self.table);
        self.writer.put_str(chain::NAME, name);
        self.writer.end();
    }

    /// Deletes all rules of a chain.
    pub fn flush_chain(&mut self, name: &str) {
        self.begin(numbers::DELETE_RULE, 0);
        self.writer.put_str(rule::TABLE, &self.table);
        self.writer.put_str(rule::CHAIN, name);
        self.writer.end();
    }

    /// Deletes one rule. It must be there.
    pub fn delete_rule(&mut self, chain: &str, handle: u64) {
        self.begin(numbers::DELETE_RULE, 0);
        self.writer.put_str(rule::TABLE, &self.table);
        self.writer.put_str(rule::CHAIN, chain);
        self.writer.put_be64(rule::HANDLE, handle);
        self.writer.end();
    }

    /// Adds a rule at a chain's end.
    pub fn add_rule(&mut self, chain: &str, expressions: &[Expression], comment: Option<&str>) {
        self.begin(numbers::NEW_RULE, numbers::APPEND);
        self.writer.put_str(rule::TABLE, &self.table);
        self.writer.put_str(rule::CHAIN, chain);
        let nest = self.writer.begin_nest(rule::EXPRESSIONS);
        for expression in expressions {
            expression.write(&mut self.writer);
        }
        self.writer.end_nest(nest);
        if let Some(comment) = comment {
            self.writer.put(rule::USERDATA, &comment_data(comment));
        }
        self.writer.end();
    }

    /// Makes a set or map if it is not there.
    pub fn add_set(&mut self, spec: &SetSpec<'_>) {
        self.begin(numbers::NEW_SET, numbers::CREATE);
        let id = self.next_set_id;
        self.next_set_id += 1;
        let (key_type, key_len) = DataType::concatenated(spec.key);
        let mut flags = 0;
        if spec.values.is_some() || spec.verdicts {
            flags |= set::FLAG_MAP;
        }
        if spec.dynamic_timeout_ms.is_some() {
            flags |= set::FLAG_DYNAMIC | set::FLAG_TIMEOUT;
        }
        let writer = &mut self.writer;
        writer.put_str(set::TABLE, &self.table);
        writer.put_str(set::NAME, spec.name);
        writer.put_be32(set::FLAGS, flags);
        writer.put_be32(set::KEY_TYPE, key_type);
        writer.put_be32(set::KEY_LEN, key_len);
        if spec.verdicts {
            writer.put_be32(set::DATA_TYPE, set::DATA_VERDICT);
        } else if let Some(values) = spec.values {
            let (data_type, data_len) = DataType::concatenated(values);
            writer.put_be32(set::DATA_TYPE, data_type);
            writer.put_be32(set::DATA_LEN, data_len);
        }
        let nest = writer.begin_nest(set::DESCRIPTION);
        writer.put_be32(set::DESCRIPTION_SIZE, spec.size);
        writer.end_nest(nest);
        writer.put_be32(set::ID, id);
        if let Some(timeout) = spec.dynamic_timeout_ms {
            writer.put_be64(set::TIMEOUT, timeout);
        }
        writer.put(set::USERDATA, &byte_order_data(spec));
        writer.end();
    }

    /// Deletes a set. It must be there, and no rule may use it.
    pub fn delete_set(&mut self, name: &str) {
        self.begin(numbers::DELETE_SET, 0);
        self.writer.put_str(set::TABLE, &self.table);
        self.writer.put_str(set::NAME, name);
        self.writer.end();
    }

    /// Removes all elements of a set.
    pub fn flush_set(&mut self, name: &str) {
        self.begin(numbers::DELETE_ELEMENT, 0);
        self.writer.put_str(element::TABLE, &self.table);
        self.writer.put_str(element::SET, name);
        self.writer.end();
    }

    /// Adds an element. It must not be there with another value.
    pub fn add_element(&mut self, set: &str, element: &Element<'_>) {
        self.put_element(numbers::NEW_ELEMENT, numbers::CREATE, set, element);
    }

    /// Deletes an element. It must be there.
    pub fn delete_element(&mut self, set: &str, key: &[u8]) {
        let element = Element::new(key, ElementData::None);
        self.put_element(numbers::DELETE_ELEMENT, 0, set, &element);
    }

    /// Elements of one set in a row share messages.
    fn put_element(&mut self, message_type: u16, flags: u16, set: &str, item: &Element<'_>) {
        let fits = self.open.as_ref().is_some_and(|open| {
            open.message_type == message_type
                && open.set == set
                && self.writer.message_len() < ELEMENTS_BYTES_MAX
        });
        if !fits {
            self.begin(message_type, flags);
            self.writer.put_str(element::TABLE, &self.table);
            self.writer.put_str(element::SET, set);
            let list = self.writer.begin_nest(element::ELEMENTS);
            self.open = Some(OpenElements { message_type, set: set.to_owned(), list });
        }
        let writer = &mut self.writer;
        let nest = writer.begin_nest(element::LIST_ELEMENT);
        let key = writer.begin_nest(element::KEY);
        writer.put(data::VALUE, item.key);
        writer.end_nest(key);
        match &item.data {
            ElementData::None => {}
            ElementData::Value(value) => {
                let nest = writer.begin_nest(element::DATA);
                writer.put(data::VALUE, value);
                writer.end_nest(nest);
            }
            ElementData::Verdict(verdict) => verdict.write(writer, element::DATA),
        }
        if let Some(timeout) = item.timeout_ms {
            writer.put_be64(element::TIMEOUT, timeout);
        }
        if let Some(left) = item.left_ms {
            writer.put_be64(element::EXPIRATION, left);
        }
        writer.end_nest(nest);
    }

    fn close_elements(&mut self) {
        if let Some(open) = self.open.take() {
            self.writer.end_nest(open.list);
            self.writer.end();
        }
    }
}

/// What nft remembers about a set for printing: in which order the bytes of keys and values stand.
/// Without it nft prints numbers of the machine's order the wrong way round.
fn byte_order_data(spec: &SetSpec<'_>) -> Vec<u8> {
    let entry = |kind: u8, types: &[DataType]| {
        let order: u32 = if matches!(types, [DataType::Mark | DataType::Group]) {
            ORDER_HOST
        } else {
            ORDER_BIG_ENDIAN
        };
        let mut bytes = vec![kind, 4];
        bytes.extend_from_slice(&order.to_ne_bytes());
        bytes
    };
    let mut bytes = entry(set::USERDATA_KEY_ORDER, spec.key);
    if let Some(values) = spec.values {
        bytes.extend(entry(set::USERDATA_DATA_ORDER, values));
    }
    bytes
}

/// nft's number for the machine's byte order.
const ORDER_HOST: u32 = 1;
/// nft's number for the network's.
const ORDER_BIG_ENDIAN: u32 = 2;

/// A comment as nft writes it into a rule's user data: type, length, text with a final zero.
fn comment_data(comment: &str) -> Vec<u8> {
    let text = comment.as_bytes();
    let text = &text[..text.len().min(usize::from(u8::MAX) - 1)];
    let mut bytes = vec![rule::USERDATA_COMMENT, text.len() as u8 + 1];
    bytes.extend_from_slice(text);
    bytes.push(0);
    bytes
}
