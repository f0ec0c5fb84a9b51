//! Text of objects on its way to a terminal: whoever may write an object may put any character into it,
//! and some of them have a terminal do things. They are shown by their number, `\u001b`, which in JSON
//! stands for the same character, so what reads our JSON reads the same as before.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::io::{self, Write};

/// Whether a terminal does something with it in place of showing it, or shows what comes next elsewhere.
fn acts(it: char) -> bool {
    it.is_control()
        || matches!(it, '\u{61c}' | '\u{200e}' | '\u{200f}')
        || matches!(it, '\u{202a}'..='\u{202e}' | '\u{2028}' | '\u{2029}' | '\u{2066}'..='\u{2069}')
}

fn shown(text: &str, acts: impl Fn(char) -> bool) -> Cow<'_, str> {
    if !text.chars().any(&acts) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for it in text.chars() {
        if acts(it) {
            // Writing to a String cannot fail; all of these have a number of four digits.
            let _ = write!(out, "\\u{:04x}", u32::from(it));
        } else {
            out.push(it);
        }
    }
    Cow::Owned(out)
}

/// A text of one line: it cannot begin another, either.
pub(crate) fn line(text: &str) -> Cow<'_, str> {
    shown(text, acts)
}

/// A text of lines.
pub(crate) fn lines(text: &str) -> Cow<'_, str> {
    shown(text, |it| acts(it) && !matches!(it, '\n' | '\t'))
}

/// Writes [`lines`]. Who writes does so in whole characters.
pub(crate) struct Plain<W>(pub(crate) W);

impl<W: Write> Write for Plain<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write_all(lines(&String::from_utf8_lossy(bytes)).as_bytes())?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_acts_on_is_shown_by_its_number() {
        assert_eq!(line("disk fails, Zürich → 1"), "disk fails, Zürich → 1");
        assert_eq!(
            line("a\u{1b}]0;b\u{7}\nc\u{9b}2J\u{202e}"),
            r"a\u001b]0;b\u0007\u000ac\u009b2J\u202e"
        );
        assert_eq!(lines("a\n\tb\r\u{1b}[A"), "a\n\tb\\u000d\\u001b[A");
    }

    #[test]
    fn json_says_the_same_as_before() {
        let said = serde_json::json!({"reason": "a\u{1b}[2J\u{7f}\u{9b}\u{202e} Zürich\n"});
        let mut out = Plain(Vec::new());
        out.write_all(serde_json::to_string_pretty(&said).unwrap().as_bytes()).unwrap();
        let text = String::from_utf8(out.0).unwrap();
        assert!(!text.contains(['\u{1b}', '\u{7f}', '\u{9b}', '\u{202e}']), "{text}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&text).unwrap(), said);
    }
}
