//! Validators: asking the origin whether a stored response still holds, and answering the client that
//! its own does (RFC 9110 §13, RFC 9111 §4.3).

use http::header::{
    CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE, DATE, ETAG, IF_MATCH, IF_MODIFIED_SINCE,
    IF_NONE_MATCH, IF_RANGE, IF_UNMODIFIED_SINCE, LAST_MODIFIED, RANGE,
};
use http::{HeaderMap, HeaderName, HeaderValue};

use super::date::{self, Date};
use super::entry::without_hop_by_hop;
use super::fields::Fields;
use super::moment::Moment;
use crate::head::Headers;

#[cfg(test)]
mod tests;

const CONTENT_MD5: HeaderName = HeaderName::from_static("content-md5");

/// Fields that belong to the stored bytes: a 304 does not change them.
const OF_THE_BYTES: [HeaderName; 5] =
    [CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_MD5, ETAG];

/// Whether a request's conditions are about changing something, so that only the origin can judge.
pub(crate) fn asks_the_origin(request: &impl Fields) -> bool {
    request.has(&IF_MATCH) || request.has(&IF_UNMODIFIED_SINCE)
}

/// Whether a request has a condition that a cache can judge.
pub(crate) fn is_conditional(request: &impl Fields) -> bool {
    request.has(&IF_NONE_MATCH) || request.has(&IF_MODIFIED_SINCE)
}

/// Whether the client has what we would send it (RFC 9111 §4.3.2).
pub(crate) fn client_has_it(request: &impl Fields, stored: &HeaderMap, received: Moment) -> bool {
    if request.has(&IF_NONE_MATCH) {
        let tag = stored.get(ETAG).map(HeaderValue::as_bytes);
        return request
            .values(&IF_NONE_MATCH)
            .flat_map(tags)
            .any(|wanted| wanted == b"*" || tag.is_some_and(|tag| opaque(tag) == opaque(wanted)));
    }
    let mut since = request.values(&IF_MODIFIED_SINCE);
    let (Some(since), None) = (since.next(), since.next()) else { return false };
    let Some(since_s) = date::parse(since) else { return false };
    let changed_s = Date::of(stored, LAST_MODIFIED).known();
    let changed_s = changed_s.or(Date::of(stored, DATE).known()).unwrap_or(received.unix_s());
    changed_s <= since_s
}

/// The tags of a list; a comma within quotes belongs to a tag.
fn tags(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut quoted = false;
    line.split(move |byte| {
        if *byte == b'"' {
            quoted = !quoted;
        }
        *byte == b',' && !quoted
    })
    .map(<[u8]>::trim_ascii)
    .filter(|tag| !tag.is_empty())
}

/// A tag without the mark that it is weak: how tags are compared for reading.
fn opaque(tag: &[u8]) -> &[u8] {
    let tag = tag.trim_ascii();
    tag.strip_prefix(b"W/").unwrap_or(tag)
}

/// Whether a tag stands for these very bytes.
pub(crate) fn is_strong(tag: &[u8]) -> bool {
    tag.len() >= 2 && tag.starts_with(b"\"") && tag.ends_with(b"\"")
}

/// Whether a stored response can be validated.
pub(crate) fn has_validator(stored: &HeaderMap) -> bool {
    stored.contains_key(ETAG) || Date::of(stored, LAST_MODIFIED).known().is_some()
}

/// Makes a request ask whether a stored response still holds (RFC 9111 §4.3.1). The client's own
/// conditions give way: they are judged when the answer is there.
pub(crate) fn ask_whether_it_holds(request: &mut Headers, stored: &HeaderMap) {
    // A part of something that may have changed is of no use.
    if request.has(&IF_RANGE) {
        request.remove(IF_RANGE.as_str());
        request.remove(RANGE.as_str());
    }
    forget_conditions(request);
    if let Some(tag) = stored.get(ETAG) {
        request.push(IF_NONE_MATCH.as_str(), tag.as_bytes());
    }
    if let Some(changed) = stored.get(LAST_MODIFIED)
        && Date::of(stored, LAST_MODIFIED).known().is_some()
    {
        request.push(IF_MODIFIED_SINCE.as_str(), changed.as_bytes());
    }
}

/// Makes a request ask for it in any case.
pub(crate) fn forget_conditions(request: &mut Headers) {
    request.remove(IF_NONE_MATCH.as_str());
    request.remove(IF_MODIFIED_SINCE.as_str());
}

/// The stored fields, brought up to date by those of a newer answer (RFC 9111 §3.2).
pub(crate) fn updated(stored: &HeaderMap, newer: &HeaderMap) -> HeaderMap {
    let newer = without_hop_by_hop(newer);
    let mut updated = stored.clone();
    for name in newer.keys() {
        if !OF_THE_BYTES.contains(name) {
            updated.remove(name);
        }
    }
    for (name, value) in &newer {
        if !OF_THE_BYTES.contains(name) {
            updated.append(name.clone(), value.clone());
        }
    }
    // The age was that of the older answer.
    if !newer.contains_key(http::header::AGE) {
        updated.remove(http::header::AGE);
    }
    updated
}

/// Whether the answer to a `HEAD` is about what is stored (RFC 9111 §4.3.5).
pub(crate) fn head_is_about(stored: &HeaderMap, head: &HeaderMap, stored_bytes: usize) -> bool {
    let same =
        |name: HeaderName| head.get(&name).is_none_or(|value| stored.get(&name) == Some(value));
    let length = head.get(CONTENT_LENGTH);
    let same_length =
        length.is_none_or(|length| length.as_bytes() == stored_bytes.to_string().as_bytes());
    same(ETAG) && same(LAST_MODIFIED) && same_length
}
