//! A parsed document, of which every value knows its line.
//!
//! Both formats become this tree. It lives only while its document is read: the kind is looked up
//! in it, the kind's struct is deserialised from it, and when a rule is broken it says on which line
//! the field stands.
//!
//! What always holds: a tree is bounded in depth and in values, aliases included, whatever the
//! input; no mapping has a key twice.

use std::borrow::Cow;
use std::collections::HashSet;

mod block;
mod de;
mod json;
mod yaml;

pub(super) use de::FieldProblem;
pub(super) use json::read_json;
pub(super) use yaml::{check_fast_reader, read_yaml};

/// How deep values may be nested.
const DEPTH_MAX: usize = 64;
/// How many values one document may have.
const VALUES_MAX: usize = 4_000_000;
/// How many of them may come from aliases, which make much of little.
const ALIASED_VALUES_MAX: usize = 10_000;
/// A long text counts as several values, for an alias copies all of it.
const BYTES_PER_VALUE: usize = 64;
/// Up to this many entries, comparing every key with every other is the fastest way.
const ENTRIES_FEW: usize = 12;

/// A text that cannot be read as a document.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub(super) struct SyntaxError {
    /// Where, from 1.
    pub(super) line: u32,
    /// What is wrong.
    pub(super) message: String,
}

impl SyntaxError {
    fn new(line: u32, message: impl Into<String>) -> Self {
        Self { line, message: message.into() }
    }
}

/// A value with its place.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Node<'a> {
    /// The line it begins on, from 1.
    pub(super) line: u32,
    /// The value.
    pub(super) value: Value<'a>,
}

/// What a [`Node`] holds.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Value<'a> {
    /// A scalar without quotes, which may be a number, a truth value or null.
    Plain(Cow<'a, str>),
    /// A scalar that is a text whatever it looks like.
    Text(Cow<'a, str>),
    /// A list.
    Sequence(Vec<Node<'a>>),
    /// A mapping, in the order of the document.
    Mapping(Vec<Entry<'a>>),
}

/// One entry of a mapping.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Entry<'a> {
    /// The key. Kubernetes knows no other than texts.
    pub(super) key: Cow<'a, str>,
    /// The line of the key.
    pub(super) line: u32,
    /// The value.
    pub(super) value: Node<'a>,
}

impl<'a> Node<'a> {
    /// Whether it stands for nothing.
    pub(super) fn is_null(&self) -> bool {
        matches!(&self.value, Value::Plain(text) if matches!(&**text, "" | "~" | "null" | "Null" | "NULL"))
    }

    /// The value of an entry of a mapping.
    pub(super) fn get(&self, key: &str) -> Option<&Node<'a>> {
        match &self.value {
            Value::Mapping(entries) => {
                entries.iter().find(|entry| entry.key == key).map(|entry| &entry.value)
            }
            _ => None,
        }
    }

    /// The value of an entry that is a text.
    pub(super) fn get_str(&self, key: &str) -> Option<&str> {
        match &self.get(key)?.value {
            Value::Plain(text) | Value::Text(text) => Some(text),
            _ => None,
        }
    }

    /// The line of the field at `path`, such as `spec.ports[0].port`; of what holds it when the
    /// field is not there.
    pub(super) fn line_of(&self, path: &str) -> u32 {
        let mut node = self;
        let mut line = self.line;
        for segment in segments(path) {
            let found = match &node.value {
                Value::Mapping(entries) => entries
                    .iter()
                    .find(|entry| entry.key == segment)
                    .map(|entry| (&entry.value, entry.line)),
                Value::Sequence(items) => segment
                    .parse::<usize>()
                    .ok()
                    .and_then(|index| items.get(index))
                    .map(|item| (item, item.line)),
                Value::Plain(_) | Value::Text(_) => None,
            };
            let Some((child, child_line)) = found else { break };
            node = child;
            line = child_line;
        }
        line
    }

    /// How many values it holds, itself included.
    fn size(&self) -> usize {
        match &self.value {
            Value::Plain(text) | Value::Text(text) => 1 + text.len() / BYTES_PER_VALUE,
            Value::Sequence(items) => 1 + items.iter().map(Node::size).sum::<usize>(),
            Value::Mapping(entries) => {
                let key = |entry: &Entry<'_>| 1 + entry.key.len() / BYTES_PER_VALUE;
                1 + entries.iter().map(|entry| key(entry) + entry.value.size()).sum::<usize>()
            }
        }
    }

    /// How deep it is.
    fn depth(&self) -> usize {
        match &self.value {
            Value::Plain(_) | Value::Text(_) => 1,
            Value::Sequence(items) => 1 + items.iter().map(Node::depth).max().unwrap_or(0),
            Value::Mapping(entries) => {
                1 + entries.iter().map(|entry| entry.value.depth()).max().unwrap_or(0)
            }
        }
    }
}

/// The parts of `a.b[0][c.d]`: `a`, `b`, `0`, `c.d`.
fn segments(path: &str) -> impl Iterator<Item = &str> {
    let mut rest = path;
    std::iter::from_fn(move || {
        rest = rest.strip_prefix('.').unwrap_or(rest);
        if rest.is_empty() {
            return None;
        }
        if let Some(inner) = rest.strip_prefix('[') {
            let (segment, after) = inner.split_once(']').unwrap_or((inner, ""));
            rest = after;
            return Some(segment);
        }
        let end = rest.find(['.', '[']).unwrap_or(rest.len());
        let (segment, after) = rest.split_at(end);
        rest = after;
        Some(segment)
    })
}

/// How many lines end in these bytes.
pub(super) fn line_breaks(bytes: &[u8]) -> u32 {
    bytes.iter().map(|byte| u32::from(*byte == b'\n')).sum()
}

/// The first key that is there twice.
fn duplicate_key<'e, 'a>(entries: &'e [Entry<'a>]) -> Option<&'e Entry<'a>> {
    if entries.len() <= ENTRIES_FEW {
        let mut rest = entries.iter().enumerate();
        return rest
            .find(|(i, entry)| entries[..*i].iter().any(|earlier| earlier.key == entry.key))
            .map(|(_, entry)| entry);
    }
    let mut seen = HashSet::with_capacity(entries.len());
    entries.iter().find(|entry| !seen.insert(&*entry.key))
}

#[cfg(test)]
mod tests;
