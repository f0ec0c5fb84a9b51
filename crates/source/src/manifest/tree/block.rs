//! The plain part of YAML, fast.
//!
//! Nearly all manifests are written by machines in the same few forms: block mappings and lists,
//! scalars on one line. This reads those, some ten times as fast as a parser of all of YAML can,
//! and gives up on anything else: anchors, flow collections, block scalars, tabs, quotes with
//! escapes, and whatever is wrong. The parser of all of YAML then reads the document.
//!
//! What always holds: what this accepts, that parser accepts with the same tree; `tests` compare.

use std::borrow::Cow;

use super::{Entry, Node, Value, duplicate_key};

/// How deep blocks may be nested here.
const DEPTH_MAX: usize = 32;

/// Reads a document, if it has only the plain forms; `first_line` is the line it begins on.
pub(super) fn read_block(text: &str, first_line: u32) -> Option<Node<'_>> {
    // Other bytes are line breaks, white space or letters of their own kind. Let them be judged by
    // the full parser.
    let is_plain = |byte: u8| matches!(byte, b'\n' | b' '..=b'~');
    if !text.bytes().all(is_plain) {
        return None;
    }
    let mut lines = Lines { rest: text, number: first_line, current: None };
    lines.advance();
    if lines.peek().is_some_and(|line| line.indent == 0 && line.content == "---") {
        lines.advance();
    }
    let start = lines.peek().filter(|line| line.indent == 0)?;
    let root = lines.block(start.indent, 0)?;
    lines.peek().is_none().then_some(root)
}

/// A line with something on it.
#[derive(Debug, Clone, Copy)]
struct Line<'a> {
    number: u32,
    indent: usize,
    /// Without the indentation, white space at the end and comments.
    content: &'a str,
}

impl<'a> Line<'a> {
    /// What follows the dash, if the line is an item of a list.
    fn item(&self) -> Option<&'a str> {
        let rest = self.content.strip_prefix('-')?;
        (rest.is_empty() || rest.starts_with(' ')).then_some(rest)
    }
}

struct Lines<'a> {
    rest: &'a str,
    /// The number of the line at which `rest` begins.
    number: u32,
    current: Option<Line<'a>>,
}

impl<'a> Lines<'a> {
    fn peek(&self) -> Option<Line<'a>> {
        self.current
    }

    /// Goes to the next line with something on it.
    fn advance(&mut self) {
        self.current = None;
        while !self.rest.is_empty() {
            let (line, rest) = self.rest.split_once('\n').unwrap_or((self.rest, ""));
            let number = self.number;
            self.rest = rest;
            self.number += 1;
            let content = line.trim_start_matches(' ');
            let indent = line.len() - content.len();
            let content = without_comment(content);
            if !content.is_empty() {
                self.current = Some(Line { number, indent, content });
                return;
            }
        }
    }

    /// The list or mapping at this indentation.
    fn block(&mut self, indent: usize, depth: usize) -> Option<Node<'a>> {
        if depth > DEPTH_MAX {
            return None;
        }
        if self.peek()?.item().is_some() {
            self.sequence(indent, depth)
        } else {
            let first = self.peek()?;
            self.mapping(first, depth)
        }
    }

    fn sequence(&mut self, indent: usize, depth: usize) -> Option<Node<'a>> {
        let mut items = Vec::new();
        let line = self.peek()?.number;
        while let Some(line) = self.peek().filter(|line| line.indent >= indent) {
            if line.indent > indent {
                return None;
            }
            let Some(after) = line.item() else { break };
            let content = after.trim_start_matches(' ');
            if content.is_empty() || split_key(content).is_none() {
                self.advance();
                items.push(self.value(content, line, indent, false, depth)?);
            } else {
                // The first entry of a mapping stands behind the dash.
                let indent = indent + 1 + (after.len() - content.len());
                items.push(self.mapping(Line { number: line.number, indent, content }, depth + 1)?);
            }
        }
        Some(Node { line, value: Value::Sequence(items) })
    }

    /// The mapping that begins with `first`, which is the current line or its part behind a dash.
    fn mapping(&mut self, first: Line<'a>, depth: usize) -> Option<Node<'a>> {
        if depth > DEPTH_MAX {
            return None;
        }
        let mut entries = Vec::new();
        let mut line = first;
        loop {
            let (key, rest) = split_key(line.content)?;
            self.advance();
            let value =
                self.value(rest.trim_start_matches(' '), line, first.indent, true, depth)?;
            entries.push(Entry { key: Cow::Borrowed(key), line: line.number, value });
            match self.peek() {
                Some(next) if next.indent > first.indent => return None,
                Some(next) if next.indent == first.indent && next.item().is_none() => line = next,
                _ => break,
            }
        }
        if duplicate_key(&entries).is_some() {
            return None;
        }
        Some(Node { line: first.number, value: Value::Mapping(entries) })
    }

    /// The value that begins with `content` on `line`, the line before the current one.
    fn value(
        &mut self,
        content: &'a str,
        line: Line<'a>,
        indent: usize,
        in_mapping: bool,
        depth: usize,
    ) -> Option<Node<'a>> {
        let next = self.peek();
        if content.is_empty() {
            return match next {
                Some(next) if next.indent > indent => self.block(next.indent, depth + 1),
                // The items of an entry's list may stand below its key.
                Some(next) if in_mapping && next.indent == indent && next.item().is_some() => {
                    self.sequence(indent, depth + 1)
                }
                _ => Some(Node { line: line.number, value: Value::Plain(Cow::Borrowed("~")) }),
            };
        }
        // A deeper line would go on with the scalar.
        if next.is_some_and(|next| next.indent > indent) {
            return None;
        }
        Some(Node { line: line.number, value: scalar(content)? })
    }
}

/// Cuts a comment and white space from the end. A `#` within quotes makes the quotes look open, so
/// the line is given up later.
fn without_comment(content: &str) -> &str {
    let end = if content.starts_with('#') { Some(0) } else { content.find(" #") };
    content[..end.unwrap_or(content.len())].trim_end_matches(' ')
}

/// Splits `key: value` or `key:`.
fn split_key(content: &str) -> Option<(&str, &str)> {
    let colon = content.find(':')?;
    let (key, rest) = (&content[..colon], &content[colon + 1..]);
    let first = key.as_bytes().first()?;
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-./".contains(&byte);
    let valid = (first.is_ascii_alphanumeric() || *first == b'_')
        && key.bytes().all(plain)
        && (rest.is_empty() || rest.starts_with(' '));
    valid.then_some((key, rest))
}

/// A scalar on one line.
fn scalar(content: &str) -> Option<Value<'_>> {
    let bytes = content.as_bytes();
    let quoted = |quote: u8| {
        let inner = &content[1..content.len() - 1];
        let closed = bytes.len() >= 2 && bytes.last() == Some(&quote);
        let simple = closed && !inner.bytes().any(|byte| byte == quote || byte == b'\\');
        simple.then_some(Value::Text(Cow::Borrowed(inner)))
    };
    match bytes.first()? {
        b'"' | b'\'' if bytes.len() < 2 => None,
        quote @ (b'"' | b'\'') => quoted(*quote),
        b'{' if content == "{}" => Some(Value::Mapping(Vec::new())),
        b'[' if content == "[]" => Some(Value::Sequence(Vec::new())),
        first => {
            let starts = first.is_ascii_alphanumeric()
                || matches!(first, b'/' | b'.' | b'_' | b'~' | b'+' | b'(' | b'=' | b'$' | b'^')
                || (*first == b'-' && bytes.get(1).is_some_and(u8::is_ascii_alphanumeric));
            let ends = !content.contains(": ") && !content.ends_with(':');
            (starts && ends).then_some(Value::Plain(Cow::Borrowed(content)))
        }
    }
}
