//! How a source is doing: whether it is in touch, since when not, and what it could not read.

use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde::Serialize;

/// Something that was read and could not be used.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Problem {
    /// Where it was read: a file with its line, or the server.
    pub origin: String,
    /// The object, as `Service default/web`, where it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub object: Option<String>,
    /// The field, as `spec.ports[0].port`, where it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
    /// What is wrong and what to do.
    pub message: String,
}

/// One line, whatever was read: names and contents are others' words.
impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", Escaped(&self.origin))?;
        if let Some(object) = &self.object {
            write!(f, "{}: ", Escaped(object))?;
        }
        if let Some(field) = &self.field {
            write!(f, "{}: ", Escaped(field))?;
        }
        write!(f, "{}", Escaped(&self.message))
    }
}

/// A text whose control characters are written out, so that it can neither begin a line of its own
/// nor command a terminal.
struct Escaped<'a>(&'a str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for part in self.0.split_inclusive(char::is_control) {
            let mut chars = part.chars();
            match chars.next_back().filter(|last| last.is_control()) {
                Some(control) => write!(f, "{}{}", chars.as_str(), control.escape_default())?,
                None => f.write_str(part)?,
            }
        }
        Ok(())
    }
}

/// How many problems are kept; the count goes on.
const PROBLEMS_MAX: usize = 1_000;

#[derive(Debug, Default)]
struct Inner {
    last_contact: Option<Instant>,
    connected: bool,
    synced: bool,
    problems: BTreeMap<String, Vec<Problem>>,
    problems_total: u64,
}

/// The state of a source, shared with whoever shows it.
#[derive(Debug, Default)]
pub struct Status {
    inner: Mutex<Inner>,
}

impl Status {
    /// The source has just heard from what it reads: the state is as fresh as can be.
    pub fn touch(&self) {
        let mut inner = self.inner.lock();
        inner.last_contact = Some(Instant::now());
        inner.connected = true;
    }

    /// The source has lost what it reads; its last state stands, and ages.
    pub fn lost(&self) {
        self.inner.lock().connected = false;
    }

    /// The first full state has been sent.
    pub fn set_synced(&self) {
        self.inner.lock().synced = true;
    }

    /// Replaces the problems found at `place` (a file, a watched kind); none clears it.
    pub fn set_problems(&self, place: &str, problems: Vec<Problem>) {
        let mut inner = self.inner.lock();
        inner.problems_total += problems.len() as u64;
        inner.problems.remove(place);
        let room = PROBLEMS_MAX.saturating_sub(inner.problems.values().map(Vec::len).sum());
        if !problems.is_empty() && room > 0 {
            let kept = problems.into_iter().take(room).collect();
            inner.problems.insert(place.to_owned(), kept);
        }
    }

    /// What stands wrong now.
    pub fn problems(&self) -> Vec<Problem> {
        self.inner.lock().problems.values().flatten().cloned().collect()
    }

    /// How many problems were ever found.
    pub fn problems_total(&self) -> u64 {
        self.inner.lock().problems_total
    }

    /// Whether the source is in touch with what it reads.
    pub fn is_connected(&self) -> bool {
        self.inner.lock().connected
    }

    /// Whether a first full state has been sent.
    pub fn is_synced(&self) -> bool {
        self.inner.lock().synced
    }

    /// How old the state may be: zero while in touch, else the time since the last contact.
    /// `None` before the first contact.
    pub fn age(&self) -> Option<Duration> {
        let inner = self.inner.lock();
        if inner.connected {
            return Some(Duration::ZERO);
        }
        inner.last_contact.map(|at| at.elapsed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_read_can_neither_fake_a_line_nor_command_a_terminal() {
        let problem = Problem {
            origin: "a\nb.yaml:1".into(),
            object: Some("Service default/\u{1b}[2Jweb".into()),
            field: Some("spec.\u{9b}ports".into()),
            message: "\u{7}é is wrong\r\ntelaio: all is well\t".into(),
        };
        assert_eq!(
            problem.to_string(),
            "a\\nb.yaml:1: Service default/\\u{1b}[2Jweb: spec.\\u{9b}ports: \
             \\u{7}é is wrong\\r\\ntelaio: all is well\\t"
        );
    }
}
