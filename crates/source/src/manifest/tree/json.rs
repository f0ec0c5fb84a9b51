//! JSON into trees.
//!
//! The JSON parser keeps no lines. The tree has the line on which its document begins; a tree with
//! lines is made only when there is an error to place, by the YAML parser, which reads JSON too.

use std::borrow::Cow;
use std::cell::Cell;
use std::fmt;

use serde::de::{
    self, Deserialize, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor,
};

use super::super::check::Quoted;
use super::{Entry, Node, SyntaxError, VALUES_MAX, Value, duplicate_key, line_breaks};

/// A document of a JSON text.
pub(crate) struct JsonDocument<'a> {
    /// The tree; every line in it is 0.
    pub(crate) node: Node<'a>,
    /// The text of this document.
    pub(crate) text: &'a str,
    /// The line of the file on which it begins.
    pub(crate) first_line: u32,
}

/// Reads the documents of `text`, one after another.
pub(crate) fn read_json(text: &str) -> (Vec<JsonDocument<'_>>, Option<SyntaxError>) {
    let mut documents = Vec::new();
    // A first pass over the text finds where each document ends and builds nothing.
    let mut ends = serde_json::Deserializer::from_str(text).into_iter::<IgnoredAny>();
    let mut start = 0;
    let mut first_line = 1;
    loop {
        let rest = &text[start..];
        let skipped = rest.len() - rest.trim_start().len();
        first_line += line_breaks(&rest.as_bytes()[..skipped]);
        start += skipped;
        match ends.next() {
            None => return (documents, None),
            Some(Err(error)) => return (documents, Some(syntax_error(&error, 1))),
            Some(Ok(IgnoredAny)) => {
                let text = &text[start..ends.byte_offset()];
                match read_document(text) {
                    Ok(node) => documents.push(JsonDocument { node, text, first_line }),
                    Err(error) => return (documents, Some(syntax_error(&error, first_line))),
                }
                first_line += line_breaks(text.as_bytes());
                start += text.len();
            }
        }
    }
}

fn read_document(text: &str) -> Result<Node<'_>, serde_json::Error> {
    let values = Cell::new(0);
    let mut deserializer = serde_json::Deserializer::from_str(text);
    NodeSeed { values: &values }.deserialize(&mut deserializer)
}

fn syntax_error(error: &serde_json::Error, first_line: u32) -> SyntaxError {
    let line = u32::try_from(error.line()).unwrap_or(u32::MAX).max(1);
    let message = format!("is not valid JSON: {}", without_place(error));
    SyntaxError::new(line.saturating_add(first_line - 1), message)
}

/// The message alone; the line is reported beside it.
fn without_place(error: &serde_json::Error) -> String {
    let message = error.to_string();
    match message.rfind(" at line ") {
        Some(end) => message[..end].to_owned(),
        None => message,
    }
}

/// Makes a [`Node`], and counts the values that the document has so far.
#[derive(Clone, Copy)]
struct NodeSeed<'c> {
    values: &'c Cell<usize>,
}

impl<'de> DeserializeSeed<'de> for NodeSeed<'_> {
    type Value = Node<'de>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Node<'de>, D::Error> {
        self.values.set(self.values.get() + 1);
        if self.values.get() > VALUES_MAX {
            return Err(de::Error::custom(format_args!("more than {VALUES_MAX} values; split it")));
        }
        deserializer.deserialize_any(self).map(|value| Node { line: 0, value })
    }
}

impl<'de> Visitor<'de> for NodeSeed<'_> {
    type Value = Value<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<Value<'de>, E> {
        Ok(Value::Plain(Cow::Borrowed("null")))
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value<'de>, E> {
        Ok(Value::Plain(Cow::Borrowed(if value { "true" } else { "false" })))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value<'de>, E> {
        Ok(Value::Plain(Cow::Owned(value.to_string())))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value<'de>, E> {
        Ok(Value::Plain(Cow::Owned(value.to_string())))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value<'de>, E> {
        // `Debug` keeps the point, so that 8.0 stays what it was: no port.
        Ok(Value::Plain(Cow::Owned(format!("{value:?}"))))
    }

    fn visit_borrowed_str<E>(self, value: &'de str) -> Result<Value<'de>, E> {
        Ok(Value::Text(Cow::Borrowed(value)))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value<'de>, E> {
        Ok(Value::Text(Cow::Owned(value.to_owned())))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value<'de>, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = seq.next_element_seed(self)? {
            items.push(item);
        }
        Ok(Value::Sequence(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value<'de>, A::Error> {
        let mut entries = Vec::new();
        while let Some(key) = map.next_key::<Key<'de>>()? {
            entries.push(Entry { key: key.0, line: 0, value: map.next_value_seed(self)? });
        }
        if let Some(entry) = duplicate_key(&entries) {
            let key = Quoted(&entry.key);
            return Err(de::Error::custom(format_args!("the key {key} is there twice")));
        }
        Ok(Value::Mapping(entries))
    }
}

/// A key, borrowed where it has no escapes.
struct Key<'a>(Cow<'a, str>);

impl<'de> Deserialize<'de> for Key<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct KeyVisitor;

        impl<'de> Visitor<'de> for KeyVisitor {
            type Value = Key<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a key")
            }

            fn visit_borrowed_str<E>(self, value: &'de str) -> Result<Key<'de>, E> {
                Ok(Key(Cow::Borrowed(value)))
            }

            fn visit_str<E>(self, value: &str) -> Result<Key<'de>, E> {
                Ok(Key(Cow::Owned(value.to_owned())))
            }
        }

        deserializer.deserialize_str(KeyVisitor)
    }
}
