//! Structs out of trees, with errors that name the field and its line.
//!
//! Typed as strictly as Kubernetes: a number is no text and a text no number. Two things are
//! kinder: `yes`, `no`, `on` and `off` are truth values where one is wanted and texts elsewhere.

use std::fmt;

use serde::de::{
    self, DeserializeSeed, Deserializer, IntoDeserializer, MapAccess, SeqAccess, Visitor,
};

use super::super::check::Quoted;
use super::{Entry, Node, Value};

/// A field that has the wrong type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FieldProblem {
    /// The field, from the root of the document.
    pub(crate) path: String,
    /// Its line.
    pub(crate) line: Option<u32>,
    /// What is wrong and what would be right.
    pub(crate) message: String,
}

impl FieldProblem {
    fn at(node: &Node<'_>, message: impl fmt::Display) -> Self {
        Self { path: String::new(), line: Some(node.line), message: message.to_string() }
    }

    /// The same problem seen from one level further out.
    fn within(mut self, segment: fmt::Arguments<'_>, line: u32) -> Self {
        let separator = if self.path.is_empty() || self.path.starts_with('[') { "" } else { "." };
        self.path = format!("{segment}{separator}{}", self.path);
        self.line.get_or_insert(line);
        self
    }
}

impl fmt::Display for FieldProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path, self.message)
    }
}

impl std::error::Error for FieldProblem {}

impl de::Error for FieldProblem {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self { path: String::new(), line: None, message: message.to_string() }
    }
}

/// How a value is called in a message.
struct Found<'a>(&'a Node<'a>);

impl fmt::Display for Found<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.0.value, self.0.as_scalar()) {
            (Value::Sequence(_), _) => f.write_str("a list"),
            (Value::Mapping(_), _) => f.write_str("a mapping"),
            (_, Scalar::Null) => f.write_str("nothing"),
            (_, Scalar::Text(text)) => write!(f, "the text {}", Quoted(text)),
            (Value::Plain(text), Scalar::Bool(_)) => write!(f, "the truth value {text}"),
            (Value::Plain(text) | Value::Text(text), _) => write!(f, "the number {text}"),
        }
    }
}

/// What a scalar without quotes means.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Scalar<'a> {
    Null,
    Bool(bool),
    Int(i64),
    /// A number that is no `i64`: with a point, an exponent, or too large.
    OtherNumber,
    Text(&'a str),
}

impl Node<'_> {
    fn as_scalar(&self) -> Scalar<'_> {
        match &self.value {
            Value::Text(text) => Scalar::Text(text),
            Value::Plain(text) => {
                if self.is_null() {
                    return Scalar::Null;
                }
                match &**text {
                    "true" | "True" | "TRUE" => Scalar::Bool(true),
                    "false" | "False" | "FALSE" => Scalar::Bool(false),
                    text => number(text),
                }
            }
            Value::Sequence(_) | Value::Mapping(_) => Scalar::Null,
        }
    }

    fn int(&self) -> Result<i64, FieldProblem> {
        match self.as_scalar() {
            Scalar::Int(value) => Ok(value),
            Scalar::Text(text) if matches!(number(text), Scalar::Int(_)) => Err(FieldProblem::at(
                self,
                format_args!("{} is a text; write the number without quotes", Quoted(text)),
            )),
            _ => Err(self.mismatch("a whole number")),
        }
    }

    fn mismatch(&self, wanted: &str) -> FieldProblem {
        FieldProblem::at(self, format_args!("{} does not fit here; write {wanted}", Found(self)))
    }
}

/// A number, or else a text. A leading zero makes a text: YAML 1.1 and 1.2 read it differently.
fn number(text: &str) -> Scalar<'_> {
    let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
    let bytes = digits.as_bytes();
    let Some(first) = bytes.first() else { return Scalar::Text(text) };
    // Most scalars are names; they are sorted out by their first letter.
    if !first.is_ascii_digit() && *first != b'.' {
        return Scalar::Text(text);
    }
    if bytes.iter().all(u8::is_ascii_digit) {
        if bytes.len() > 1 && *first == b'0' {
            return Scalar::Text(text);
        }
        return text.parse().map_or(Scalar::OtherNumber, Scalar::Int);
    }
    if let Some(hex) = digits.strip_prefix("0x") {
        return i64::from_str_radix(hex, 16).map_or(Scalar::Text(text), Scalar::Int);
    }
    if let Some(octal) = digits.strip_prefix("0o") {
        return i64::from_str_radix(octal, 8).map_or(Scalar::Text(text), Scalar::Int);
    }
    let special = matches!(digits, ".inf" | ".Inf" | ".INF" | ".nan" | ".NaN" | ".NAN");
    let float = bytes.iter().all(|b| b.is_ascii_digit() || b".eE+-".contains(b));
    if special || (float && text.parse::<f64>().is_ok()) {
        return Scalar::OtherNumber;
    }
    Scalar::Text(text)
}

macro_rules! integers {
    ($($method:ident)*) => {$(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, FieldProblem> {
            visitor.visit_i64(self.int()?)
        }
    )*};
}

impl<'de> Deserializer<'de> for &Node<'_> {
    type Error = FieldProblem;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, FieldProblem> {
        match &self.value {
            Value::Sequence(_) => self.deserialize_seq(visitor),
            Value::Mapping(_) => self.deserialize_map(visitor),
            Value::Plain(_) | Value::Text(_) => match self.as_scalar() {
                Scalar::Null => visitor.visit_unit(),
                Scalar::Bool(value) => visitor.visit_bool(value),
                Scalar::Int(value) => visitor.visit_i64(value),
                Scalar::Text(text) => visitor.visit_str(text),
                Scalar::OtherNumber => Err(self.mismatch("a whole number or a text")),
            },
        }
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, FieldProblem> {
        let value = match (&self.value, self.as_scalar()) {
            (_, Scalar::Bool(value)) => value,
            (Value::Plain(text), _) if matches!(&**text, "yes" | "Yes" | "on" | "On") => true,
            (Value::Plain(text), _) if matches!(&**text, "no" | "No" | "off" | "Off") => false,
            _ => return Err(self.mismatch("true or false")),
        };
        visitor.visit_bool(value)
    }

    integers! {
        deserialize_i8 deserialize_i16 deserialize_i32 deserialize_i64
        deserialize_u8 deserialize_u16 deserialize_u32 deserialize_u64
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, FieldProblem> {
        match (&self.value, self.as_scalar()) {
            (Value::Sequence(_) | Value::Mapping(_), _) | (_, Scalar::Null) => {
                Err(self.mismatch("a text"))
            }
            (_, Scalar::Text(text)) => visitor.visit_str(text),
            (Value::Plain(text) | Value::Text(text), _) => Err(FieldProblem::at(
                self,
                format_args!("{} is not a text; write it in quotes, \"{text}\"", Found(self)),
            )),
        }
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, FieldProblem> {
        self.deserialize_str(visitor)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, FieldProblem> {
        if self.is_null() { visitor.visit_none() } else { visitor.visit_some(self) }
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, FieldProblem> {
        match &self.value {
            Value::Sequence(items) => visitor.visit_seq(Items { items, next: 0 }),
            _ => Err(self.mismatch("a list")),
        }
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, FieldProblem> {
        match &self.value {
            Value::Mapping(entries) => visitor.visit_map(Entries { entries, next: 0 }),
            _ => Err(self.mismatch("a mapping")),
        }
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, FieldProblem> {
        self.deserialize_map(visitor)
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(
        self,
        visitor: V,
    ) -> Result<V::Value, FieldProblem> {
        visitor.visit_unit()
    }

    serde::forward_to_deserialize_any! {
        i128 u128 f32 f64 char bytes byte_buf unit unit_struct newtype_struct tuple tuple_struct
        enum identifier
    }
}

struct Items<'n, 'a> {
    items: &'n [Node<'a>],
    next: usize,
}

impl<'de> SeqAccess<'de> for Items<'_, '_> {
    type Error = FieldProblem;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, FieldProblem> {
        let Some(item) = self.items.get(self.next) else { return Ok(None) };
        let index = self.next;
        self.next += 1;
        seed.deserialize(item)
            .map(Some)
            .map_err(|problem| problem.within(format_args!("[{index}]"), item.line))
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.items.len() - self.next)
    }
}

struct Entries<'n, 'a> {
    entries: &'n [Entry<'a>],
    next: usize,
}

impl<'de> MapAccess<'de> for Entries<'_, '_> {
    type Error = FieldProblem;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, FieldProblem> {
        let Some(entry) = self.entries.get(self.next) else { return Ok(None) };
        seed.deserialize((&*entry.key).into_deserializer()).map(Some)
    }

    fn next_value_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<T::Value, FieldProblem> {
        let Some(entry) = self.entries.get(self.next) else {
            return Err(de::Error::custom("a value without a key"));
        };
        self.next += 1;
        seed.deserialize(&entry.value).map_err(|problem| {
            let key = &entry.key;
            if key.contains(['.', '/']) {
                problem.within(format_args!("[{key}]"), entry.line)
            } else {
                problem.within(format_args!("{key}"), entry.line)
            }
        })
    }
}
