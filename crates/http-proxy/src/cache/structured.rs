//! Dictionaries of structured fields (RFC 9651 §3.2), as far as cache directives need them.
//!
//! `CDN-Cache-Control` is one, and what is no valid dictionary has to be ignored as a whole (RFC 9213
//! §2.1): so the syntax is checked to its end, while values of types that no directive has are only
//! recognised.

/// How many members a dictionary may have; more is taken for no dictionary.
const MEMBERS_MAX: usize = 64;

/// A member's value, without its parameters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Value {
    Integer(i64),
    Boolean(bool),
    String(String),
    /// Of a type that no directive has.
    Other,
}

/// Reads a dictionary; of members with the same key the last counts.
pub(crate) fn dictionary(text: &[u8]) -> Option<Vec<(String, Value)>> {
    let mut input = Input { rest: text };
    let mut members: Vec<(String, Value)> = Vec::new();
    input.skip(b" ");
    while !input.rest.is_empty() {
        let key = input.key()?;
        let value = if input.take(b'=') { input.item_or_list()? } else { Value::Boolean(true) };
        input.parameters()?;
        members.retain(|(known, _)| *known != key);
        members.push((key, value));
        if members.len() > MEMBERS_MAX {
            return None;
        }
        input.skip(b" \t");
        if input.rest.is_empty() {
            break;
        }
        if !input.take(b',') {
            return None;
        }
        input.skip(b" \t");
        // A comma has to be followed by a member.
        if input.rest.is_empty() {
            return None;
        }
    }
    Some(members)
}

struct Input<'a> {
    rest: &'a [u8],
}

impl Input<'_> {
    fn skip(&mut self, blanks: &[u8]) {
        while self.rest.first().is_some_and(|byte| blanks.contains(byte)) {
            self.rest = &self.rest[1..];
        }
    }

    fn take(&mut self, wanted: u8) -> bool {
        let there = self.rest.first() == Some(&wanted);
        if there {
            self.rest = &self.rest[1..];
        }
        there
    }

    fn next(&mut self) -> Option<u8> {
        let (first, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(*first)
    }

    /// The longest beginning of which every byte is allowed.
    fn run(&mut self, allowed: impl Fn(u8) -> bool) -> String {
        let end = self.rest.iter().position(|byte| !allowed(*byte)).unwrap_or(self.rest.len());
        let (run, rest) = self.rest.split_at(end);
        self.rest = rest;
        String::from_utf8_lossy(run).into_owned()
    }

    fn key(&mut self) -> Option<String> {
        let first = *self.rest.first()?;
        if !(first.is_ascii_lowercase() || first == b'*') {
            return None;
        }
        Some(self.run(|byte| {
            byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_-.*".contains(&byte)
        }))
    }

    fn item_or_list(&mut self) -> Option<Value> {
        if !self.take(b'(') {
            return self.bare_item();
        }
        loop {
            self.skip(b" ");
            if self.take(b')') {
                return Some(Value::Other);
            }
            self.bare_item()?;
            self.parameters()?;
            if !matches!(self.rest.first(), Some(b' ' | b')')) {
                return None;
            }
        }
    }

    fn parameters(&mut self) -> Option<()> {
        while self.take(b';') {
            self.skip(b" ");
            self.key()?;
            if self.take(b'=') {
                self.bare_item()?;
            }
        }
        Some(())
    }

    fn bare_item(&mut self) -> Option<Value> {
        match *self.rest.first()? {
            b'-' | b'0'..=b'9' => self.number(),
            b'"' => self.string(),
            b'?' => {
                self.next();
                match self.next()? {
                    b'0' => Some(Value::Boolean(false)),
                    b'1' => Some(Value::Boolean(true)),
                    _ => None,
                }
            }
            b':' => {
                self.next();
                self.run(|byte| byte.is_ascii_alphanumeric() || b"+/=".contains(&byte));
                self.take(b':').then_some(Value::Other)
            }
            b'@' => {
                self.next();
                matches!(self.number()?, Value::Integer(_)).then_some(Value::Other)
            }
            b'*' | b'a'..=b'z' | b'A'..=b'Z' => {
                self.run(|byte| {
                    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~:/".contains(&byte)
                });
                Some(Value::Other)
            }
            _ => None,
        }
    }

    fn number(&mut self) -> Option<Value> {
        let negative = self.take(b'-');
        let digits = self.run(|byte| byte.is_ascii_digit());
        if digits.is_empty() || digits.len() > 15 {
            return None;
        }
        if self.take(b'.') {
            let fraction = self.run(|byte| byte.is_ascii_digit());
            let valid = (1..=3).contains(&fraction.len()) && digits.len() <= 12;
            return valid.then_some(Value::Other);
        }
        let number: i64 = digits.parse().ok()?;
        Some(Value::Integer(if negative { -number } else { number }))
    }

    fn string(&mut self) -> Option<Value> {
        self.next();
        let mut text = String::new();
        loop {
            match self.next()? {
                b'"' => return Some(Value::String(text)),
                b'\\' => match self.next()? {
                    escaped @ (b'"' | b'\\') => text.push(char::from(escaped)),
                    _ => return None,
                },
                plain @ 0x20..=0x7e => text.push(char::from(plain)),
                _ => return None,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Option<Vec<(String, Value)>> {
        dictionary(text.as_bytes())
    }

    #[test]
    fn members_have_keys_values_and_parameters() {
        let members = read("max-age=600, no-store, x=\"a\\\"b\";p=1;q, max-age=60").unwrap();
        assert_eq!(
            members,
            [
                ("no-store".to_owned(), Value::Boolean(true)),
                ("x".to_owned(), Value::String("a\"b".to_owned())),
                ("max-age".to_owned(), Value::Integer(60)),
            ]
        );
        assert_eq!(read(""), Some(vec![]));
    }

    #[test]
    fn every_type_of_value_is_recognised() {
        for value in ["1.5", "tok/en", ":YWJj:", "?0", "@1659578233", "(a \"b\";c 1)", "()", "-7"] {
            assert!(read(&format!("a={value}, b")).is_some(), "{value}");
        }
    }

    #[test]
    fn what_is_no_dictionary_is_none() {
        for text in [
            "a,",
            ",a",
            "a,,b",
            "A=1",
            "a =1",
            "a= 1",
            "a=1 b",
            "&&&",
            "a=\"",
            "a=1.",
            "a=1.2345",
            "a=--1",
            "a=1234567890123456",
            "a=(1",
            "a=(1,2)",
            "a=?2",
            "a=:",
            "a;B",
            "a=\u{e9}",
            "max-age=10, &&&&&",
        ] {
            assert_eq!(read(text), None, "{text:?}");
        }
    }

    #[test]
    fn endless_dictionaries_are_none() {
        let many: Vec<String> = (0..100).map(|n| format!("k{n}")).collect();
        assert_eq!(read(&many.join(", ")), None);
    }
}
