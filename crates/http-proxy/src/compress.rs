//! Compression of responses on their way to the client: gzip, brotli and zstd.
//!
//! [`negotiate()`] reads what the client takes, [`Plan`] decides whether a response is worth it, [`Encoder`]
//! does it piece by piece. What the origin sends after a pause reaches the client at once: whenever nothing
//! more is there to be read, the encoder is flushed, so that events and long polls work as without it.
//!
//! What always holds:
//! - What is compressed already, forbids it (`no-transform`), is a part of something, or is small stays
//!   as it is. Nothing is ever decompressed, so nothing can blow up.
//! - A response whose form depends on the client says so (`Vary`), compressed or not, and its strong
//!   tag becomes a weak one: the bytes are others than those that the origin named.
//! - As many are compressed at a time as [`ENCODERS_MAX`]; others go as they are.

mod body;
mod encoder;
mod negotiate;

#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicUsize, Ordering};

use http::{Method, StatusCode};

pub(crate) use body::apply;
pub use encoder::Encoder;
pub use negotiate::{Coding, negotiate};

use crate::head::{Headers, Known, RequestHead, ResponseHead};
use crate::table::Compress;

/// The least length that is worth it: below, a response fits into a packet anyway.
pub const BYTES_MIN: u64 = 1024;

/// How many responses are compressed at the same time. An encoder takes one or two megabytes.
pub const ENCODERS_MAX: usize = 256;

static ENCODERS: AtomicUsize = AtomicUsize::new(0);

/// Media types that are worth it.
const TYPES: [&str; 20] = [
    "application/atom+xml",
    "application/graphql-response+json",
    "application/javascript",
    "application/json",
    "application/ld+json",
    "application/manifest+json",
    "application/problem+json",
    "application/rss+xml",
    "application/vnd.api+json",
    "application/wasm",
    "application/x-javascript",
    "application/x-ndjson",
    "application/x-yaml",
    "application/xhtml+xml",
    "application/xml",
    "application/yaml",
    "font/otf",
    "font/ttf",
    "image/svg+xml",
    "image/x-icon",
];

/// How a response is going to be compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plan {
    /// The coding.
    pub coding: Coding,
}

impl Plan {
    /// Whether and how to compress a response with a body of that length, if it is known. Its head is
    /// changed to what the client is to see.
    pub fn make(
        policy: &Compress,
        request: &RequestHead,
        response: &mut ResponseHead,
        length: Option<u64>,
    ) -> Option<Self> {
        if !policy.enabled || !is_worth_it(policy, response, length) {
            return None;
        }
        vary(&mut response.headers);
        // The answer to a HEAD has the head, but nothing to compress.
        let coding = negotiate(request.headers.get_all_known(Known::AcceptEncoding))?;
        if request.method == Method::HEAD || ENCODERS.load(Ordering::Relaxed) >= ENCODERS_MAX {
            return None;
        }
        rewrite(&mut response.headers, coding);
        Some(Self { coding })
    }
}

fn is_worth_it(policy: &Compress, response: &ResponseHead, length: Option<u64>) -> bool {
    let headers = &response.headers;
    let bytes_min = if policy.bytes_min == 0 { BYTES_MIN } else { policy.bytes_min };
    // What comes without a length may be long, or may be events.
    let long_enough = length.is_none_or(|length| length >= bytes_min);
    let whole = response.status.is_success()
        && !matches!(
            response.status,
            StatusCode::NO_CONTENT | StatusCode::RESET_CONTENT | StatusCode::PARTIAL_CONTENT
        );
    let page = response.status.is_client_error() || response.status.is_server_error();
    let plain = headers
        .get("content-encoding")
        .is_none_or(|coding| coding.eq_ignore_ascii_case(b"identity"));
    let fixed = headers.get_all("cache-control").any(|line| {
        line.split(|byte| *byte == b',')
            .any(|part| part.trim_ascii().eq_ignore_ascii_case(b"no-transform"))
    });
    (whole || page)
        && long_enough
        && plain
        && !fixed
        && headers.get("content-range").is_none()
        && headers
            .get_known(Known::ContentType)
            .is_some_and(|value| type_is_worth_it(policy, value))
}

fn type_is_worth_it(policy: &Compress, value: &[u8]) -> bool {
    let media = value.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii();
    let is = |wanted: &str| media.eq_ignore_ascii_case(wanted.as_bytes());
    if !policy.types.is_empty() {
        return policy.types.iter().any(|wanted| is(wanted) || &**wanted == "*");
    }
    let text = media.get(..5).is_some_and(|start| start.eq_ignore_ascii_case(b"text/"));
    text || TYPES.iter().any(|wanted| is(wanted))
}

/// Says that the form depends on what the client takes.
fn vary(headers: &mut Headers) {
    let told = headers.get_all("vary").any(|line| {
        line.split(|byte| *byte == b',')
            .map(<[u8]>::trim_ascii)
            .any(|name| name == b"*" || name.eq_ignore_ascii_case(b"accept-encoding"))
    });
    if !told {
        headers.push("Vary", "Accept-Encoding");
    }
}

/// The head of the compressed form.
fn rewrite(headers: &mut Headers, coding: Coding) {
    headers.remove("content-length");
    headers.remove("content-md5");
    headers.remove("digest");
    headers.remove("content-digest");
    // Ranges would be of other bytes.
    headers.remove("accept-ranges");
    headers.set("Content-Encoding", coding.as_str());
    if let Some(tag) = headers.get("etag")
        && !tag.starts_with(b"W/")
    {
        let weak = [b"W/", tag].concat();
        headers.set("ETag", weak);
    }
}
