//! Parts of stored responses (RFC 9110 §14).
//!
//! One range is answered with 206. Several that touch or overlap are one; several that do not are
//! answered with the whole, which a server is always free to send.

use http::header::{ETAG, IF_RANGE, LAST_MODIFIED, RANGE};
use http::{HeaderMap, HeaderValue};

use super::conditional;
use super::date::{self, Date};
use super::fields::Fields;

#[cfg(test)]
mod tests;

/// A request with more ranges than this gets the whole.
const RANGES_MAX: usize = 16;

/// What a request wants of a stored body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// All of it.
    Whole,
    /// From the first byte to before the second.
    Part(usize, usize),
    /// Nothing that is there: 416.
    Nothing,
}

impl Wanted {
    /// What a request wants of a stored response with these fields and so many bytes.
    pub(crate) fn of(request: &impl Fields, stored: &HeaderMap, length: usize) -> Self {
        let mut lines = request.values(&RANGE);
        let (Some(line), None) = (lines.next(), lines.next()) else { return Self::Whole };
        if !if_range_holds(request, stored) {
            return Self::Whole;
        }
        parse(line, length)
    }
}

/// Whether what the client has a part of is what we have (RFC 9110 §13.1.5).
fn if_range_holds(request: &impl Fields, stored: &HeaderMap) -> bool {
    let mut lines = request.values(&IF_RANGE);
    let Some(line) = lines.next() else { return true };
    if lines.next().is_some() {
        return false;
    }
    let line = line.trim_ascii();
    if conditional::is_strong(line) {
        return stored.get(ETAG).map(HeaderValue::as_bytes) == Some(line);
    }
    let changed = Date::of(stored, LAST_MODIFIED).known();
    changed.is_some() && date::parse(line) == changed
}

fn parse(line: &[u8], length: usize) -> Wanted {
    let Some(equals) = line.iter().position(|byte| *byte == b'=') else { return Wanted::Whole };
    if !line[..equals].trim_ascii().eq_ignore_ascii_case(b"bytes") {
        return Wanted::Whole;
    }
    let mut parts = Vec::new();
    for member in line[equals + 1..].split(|byte| *byte == b',').map(<[u8]>::trim_ascii) {
        if member.is_empty() {
            continue;
        }
        match one(member, length) {
            // What cannot be read is as if it were not there, and then nothing is.
            None => return Wanted::Whole,
            Some(part) => parts.push(part),
        }
        if parts.len() > RANGES_MAX {
            return Wanted::Whole;
        }
    }
    if parts.is_empty() {
        return Wanted::Whole;
    }
    parts.retain(|(first, end)| first < end);
    parts.sort_unstable();
    let mut parts = parts.into_iter();
    let Some((first, mut end)) = parts.next() else { return Wanted::Nothing };
    for (next, next_end) in parts {
        if next > end {
            return Wanted::Whole;
        }
        end = end.max(next_end);
    }
    Wanted::Part(first, end)
}

/// One range; empty if it lies behind the end.
fn one(member: &[u8], length: usize) -> Option<(usize, usize)> {
    let dash = member.iter().position(|byte| *byte == b'-')?;
    let (first, last) = (member[..dash].trim_ascii(), member[dash + 1..].trim_ascii());
    if first.is_empty() {
        let count = number(last)?;
        return Some((length.saturating_sub(count), length));
    }
    let first = number(first)?;
    let last = if last.is_empty() { usize::MAX } else { number(last)? };
    if last < first {
        return None;
    }
    Some((first.min(length), last.saturating_add(1).min(length)))
}

/// A number, or as large a one as there is.
fn number(digits: &[u8]) -> Option<usize> {
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    Some(digits.iter().fold(0usize, |sum, digit| {
        sum.saturating_mul(10).saturating_add(usize::from(digit - b'0'))
    }))
}
