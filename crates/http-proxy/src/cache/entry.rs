//! One stored response, and what a client is sent of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::header::{
    AGE, CACHE_CONTROL, CONNECTION, CONTENT_LANGUAGE, CONTENT_LENGTH, CONTENT_LOCATION,
    CONTENT_RANGE, DATE, ETAG, EXPIRES, LAST_MODIFIED, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE,
    TRAILER, TRANSFER_ENCODING, UPGRADE, VARY,
};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};

use super::conditional;
use super::control::ResponseDirectives;
use super::fields::Fields;
use super::freshness::Freshness;
use super::moment::Moment;
use super::range::Wanted;
use super::status::CacheStatus;
use super::vary::Selector;
use crate::head::{Headers, ResponseHead};
use crate::reply::Reply;

/// What an entry takes beside what it holds, about: its own size, and its place in the index.
const OVERHEAD_BYTES: usize = 768;

/// Fields that are about one connection and not about the response.
const HOP_BY_HOP: [HeaderName; 10] = [
    CONNECTION,
    HeaderName::from_static("keep-alive"),
    PROXY_AUTHENTICATE,
    HeaderName::from_static("proxy-authentication-info"),
    PROXY_AUTHORIZATION,
    HeaderName::from_static("proxy-connection"),
    TE,
    TRAILER,
    TRANSFER_ENCODING,
    UPGRADE,
];

/// Fields that a 304 has of a stored response (RFC 9110 §15.4.5).
const OF_NOT_MODIFIED: [HeaderName; 6] =
    [CACHE_CONTROL, CONTENT_LOCATION, DATE, ETAG, EXPIRES, VARY];

/// The fields of a response without those about its connection (RFC 9111 §3.1).
pub(crate) fn without_hop_by_hop(headers: &HeaderMap) -> HeaderMap {
    let mut kept = headers.clone();
    for line in headers.get_all(CONNECTION) {
        for name in line.as_bytes().split(|byte| *byte == b',').map(<[u8]>::trim_ascii) {
            if let Ok(name) = HeaderName::from_bytes(name) {
                kept.remove(name);
            }
        }
    }
    for name in &HOP_BY_HOP {
        kept.remove(name);
    }
    kept
}

/// A stored response.
#[derive(Debug)]
pub struct CacheEntry {
    place: Arc<str>,
    selector: Selector,
    status: StatusCode,
    headers: HeaderMap,
    body: Bytes,
    freshness: Freshness,
    /// The language it is in, if requests choose by that.
    language: Option<Box<[u8]>>,
    /// The origin lets it be used for requests that say who asks.
    shares_authorized: bool,
    /// The fields as they are sent, but for those that change with time.
    prepared: Headers,
    last_used_ms: AtomicU64,
}

/// What an entry is made of, beside its body.
#[derive(Debug, Clone)]
pub(crate) struct EntryHead {
    pub(crate) place: Arc<str>,
    pub(crate) selector: Selector,
    pub(crate) status: StatusCode,
    /// As received.
    pub(crate) headers: HeaderMap,
    pub(crate) freshness: Freshness,
    pub(crate) directives: ResponseDirectives,
}

impl CacheEntry {
    /// An entry of a whole response.
    pub(crate) fn new(head: EntryHead, body: Bytes) -> Self {
        let mut headers = without_hop_by_hop(&head.headers);
        for name in
            head.directives.no_cache.headers().iter().chain(head.directives.private.headers())
        {
            headers.remove(name);
        }
        headers.remove(super::control::SURROGATE_CONTROL);
        let mut prepared = Headers::new();
        for (name, value) in &headers {
            // The length is that of what is sent, and the age that of the moment.
            if name != CONTENT_LENGTH && name != AGE {
                prepared.push(name.as_str(), value.as_bytes());
            }
        }
        if !headers.contains_key(DATE) {
            // RFC 9110 §6.6.1: who receives a response without a date gives it one.
            prepared.push("date", super::date::format(head.freshness.received().unix_s()));
        }
        let language = headers.get(CONTENT_LANGUAGE).map(HeaderValue::as_bytes);
        let language = language.filter(|_| head.selector.has_language()).map(Box::from);
        Self {
            place: head.place,
            selector: head.selector,
            status: head.status,
            headers,
            body,
            freshness: head.freshness,
            language,
            shares_authorized: head.directives.shares_authorized(),
            prepared,
            last_used_ms: AtomicU64::new(0),
        }
    }

    /// The stored status.
    pub fn status(&self) -> StatusCode {
        self.status
    }

    /// The stored fields.
    pub fn headers(&self) -> &HeaderMap {
        &self.headers
    }

    /// The stored body.
    pub fn body(&self) -> &Bytes {
        &self.body
    }

    /// How old the response is.
    pub fn age(&self, now: Moment) -> Duration {
        self.freshness.age(now)
    }

    /// Whether it can be used without asking the origin.
    pub fn is_fresh(&self, now: Moment) -> bool {
        !self.freshness.always_validate && self.freshness.is_fresh(now)
    }

    pub(crate) fn freshness(&self) -> &Freshness {
        &self.freshness
    }

    pub(crate) fn selector(&self) -> &Selector {
        &self.selector
    }

    pub(crate) fn place(&self) -> &str {
        &self.place
    }

    pub(crate) fn shares_authorized(&self) -> bool {
        self.shares_authorized
    }

    /// Whether the origin can be asked if it still holds.
    pub(crate) fn has_validator(&self) -> bool {
        conditional::has_validator(&self.headers)
    }

    /// Whether it is an answer to that request.
    pub(crate) fn answers(&self, request: &impl Fields) -> bool {
        let by_language = |language| self.selector.matches_in_language(request, language);
        self.selector.matches(request) || self.language.as_deref().is_some_and(by_language)
    }

    /// Whether it takes the place of another.
    pub(crate) fn replaces(&self, other: &Self) -> bool {
        self.place == other.place && self.selector == other.selector
    }

    /// The memory it takes, about.
    pub(crate) fn byte_count(&self) -> usize {
        let fields: usize =
            self.headers.iter().map(|(name, value)| name.as_str().len() + value.len()).sum();
        // Fields are kept twice: as a map, and as they are sent.
        OVERHEAD_BYTES
            + self.headers.len() * 128
            + fields * 2
            + self.selector.byte_count()
            + self.place.len()
            + self.body.len()
    }

    pub(crate) fn touch(&self, now: Moment) {
        self.last_used_ms
            .store(now.since(Moment::at_unix_s(0)).as_millis() as u64, Ordering::Relaxed);
    }

    pub(crate) fn last_used_ms(&self) -> u64 {
        self.last_used_ms.load(Ordering::Relaxed)
    }

    /// The same body with the fields of a newer answer that says it still holds.
    pub(crate) fn freshened(
        &self,
        headers: HeaderMap,
        freshness: Freshness,
        directives: ResponseDirectives,
    ) -> Self {
        let head = EntryHead {
            place: Arc::clone(&self.place),
            selector: self.selector.clone(),
            status: self.status,
            headers,
            freshness,
            directives,
        };
        Self::new(head, self.body.clone())
    }

    /// The answer to a request: all of it, a part, or that the client has it already.
    pub(crate) fn answer(
        &self,
        method: &Method,
        request: &impl Fields,
        now: Moment,
        mut status: CacheStatus,
    ) -> Reply {
        let left = self.freshness.left(now).as_secs().cast_signed();
        let stale = self.freshness.staleness(now).as_secs().cast_signed();
        status.ttl_s = Some(if left > 0 { left } else { -stale });
        let mut reply =
            if conditional::client_has_it(request, &self.headers, self.freshness.received()) {
                self.not_modified()
            } else if self.status == StatusCode::OK && *method == Method::GET {
                // Parts are there for no other method (RFC 9110 §14.2).
                self.whole_or_part(request)
            } else {
                self.whole()
            };
        let headers = &mut reply.head.headers;
        headers.push(AGE.as_str(), self.age(now).as_secs().to_string());
        status.write(headers);
        reply
    }

    fn whole(&self) -> Reply {
        let head = ResponseHead { status: self.status, headers: self.prepared.clone() };
        Reply { head, body: self.body.clone(), close: false }
    }

    fn not_modified(&self) -> Reply {
        let mut reply = Reply::empty(StatusCode::NOT_MODIFIED);
        for name in &OF_NOT_MODIFIED {
            for value in self.prepared.get_all(name.as_str()) {
                reply.head.headers.push(name.as_str(), value);
            }
        }
        // The date of the last change is of use only to those who have no tag.
        if !self.headers.contains_key(ETAG)
            && let Some(changed) = self.headers.get(LAST_MODIFIED)
        {
            reply.head.headers.push(LAST_MODIFIED.as_str(), changed.as_bytes());
        }
        reply
    }

    fn whole_or_part(&self, request: &impl Fields) -> Reply {
        let length = self.body.len();
        match Wanted::of(request, &self.headers, length) {
            Wanted::Whole => self.whole(),
            Wanted::Part(first, end) => {
                let mut reply = self.whole();
                reply.head.status = StatusCode::PARTIAL_CONTENT;
                let range = format!("bytes {first}-{}/{length}", end - 1);
                reply.head.headers.set(CONTENT_RANGE.as_str(), range);
                reply.body = self.body.slice(first..end);
                reply
            }
            Wanted::Nothing => {
                let mut reply = Reply::empty(StatusCode::RANGE_NOT_SATISFIABLE);
                reply.head.headers.push(CONTENT_RANGE.as_str(), format!("bytes */{length}"));
                reply
            }
        }
    }
}
