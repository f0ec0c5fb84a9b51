//! Traces: whose request this is a part of (W3C Trace Context), and our own part of it.

use crate::clock;
use crate::head::{Known, RequestHead};

/// A request's place in a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Trace {
    /// The whole.
    pub trace_id: u128,
    /// Who asked us, if anybody said.
    pub parent_id: Option<u64>,
    /// Our part.
    pub span_id: u64,
    /// Whether it is recorded.
    pub sampled: bool,
    /// When it began, in nanoseconds since 1970.
    pub begun_unix_ns: u64,
}

impl Trace {
    /// The trace's identity as it is written.
    pub fn trace_hex(&self) -> String {
        format!("{:032x}", self.trace_id)
    }

    fn header(&self) -> String {
        format!("00-{:032x}-{:016x}-{:02x}", self.trace_id, self.span_id, u8::from(self.sampled))
    }
}

/// Reads a `traceparent`: trace, parent and whether it is sampled.
pub fn parse(text: &str) -> Option<(u128, u64, bool)> {
    let mut parts = text.split('-');
    let (version, trace, parent, flags) =
        (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    let lower = |part: &str, length| {
        part.len() == length
            && part.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
    };
    let well = lower(version, 2) && lower(trace, 32) && lower(parent, 16) && lower(flags, 2);
    // A later version may have more parts; this one has not.
    if !well || version == "ff" || (version == "00" && parts.next().is_some()) {
        return None;
    }
    let trace = u128::from_str_radix(trace, 16).ok().filter(|id| *id != 0)?;
    let parent = u64::from_str_radix(parent, 16).ok().filter(|id| *id != 0)?;
    let flags = u8::from_str_radix(flags, 16).ok()?;
    Some((trace, parent, flags & 1 == 1))
}

/// Begins our part of a request's trace, or a trace of its own for one in `every`, and says so to
/// whoever is asked next.
pub fn begin(request: &mut RequestHead, every: u64, now_unix_ns: u64) {
    let given = request.headers.get_known_str(Known::Traceparent).and_then(parse);
    let new = || u128::from(clock::chance()) << 64 | u128::from(clock::chance() | 1);
    let (trace_id, parent_id, sampled) = match given {
        Some((trace, parent, sampled)) => (trace, Some(parent), sampled),
        None => (new(), None, clock::chance().is_multiple_of(every.max(1))),
    };
    let trace = Trace {
        trace_id,
        parent_id,
        span_id: clock::chance() | 1,
        sampled,
        begun_unix_ns: now_unix_ns,
    };
    if parent_id.is_none() {
        // What belonged to a trace that cannot be read belongs to none.
        request.headers.remove_known(Known::Tracestate);
    }
    request.headers.remove_known(Known::Traceparent);
    request.headers.push_known(Known::Traceparent, trace.header());
    request.trace = Some(trace);
}

#[cfg(test)]
mod tests;
