//! Asking the origin: what it is asked, what its answer means for the store, and what the client gets.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header::{CONTENT_LENGTH, CONTENT_LOCATION, IF_RANGE, LOCATION, RANGE};
use http::{HeaderMap, Method, StatusCode};

use super::admit::{Exchange, NotKept};
use super::collapse::Leader;
use super::conditional;
use super::control::{
    RequestDirectives, ResponseDirectives, SURROGATE_CAPABILITY, SURROGATE_CONTROL, SURROGATE_NAME,
};
use super::entry::{CacheEntry, EntryHead};
use super::fields::Fields;
use super::freshness::{Defaults, Freshness};
use super::index::Epoch;
use super::key::Key;
use super::lookup::Asked;
use super::moment::Moment;
use super::status::{CacheStatus, Forwarded};
use super::vary::Selector;
use super::{Cache, count};
use crate::head::{Headers, ResponseHead};
use crate::reply::Reply;
use crate::table::CachePolicy;

/// How long a stale response is used while the origin cannot be reached, if nothing forbids it and
/// nothing allows more.
const STALE_WHILE_UNREACHABLE: Duration = Duration::from_hours(1);

/// What a fetch is for.
pub(crate) struct FetchPlan {
    pub(crate) why: Forwarded,
    /// What is stored: to be validated, or to fall back to.
    pub(crate) stored: Option<Arc<CacheEntry>>,
    /// Others wait for it.
    pub(crate) leader: Option<Leader>,
    /// The client has its answer already.
    pub(crate) background: bool,
    request_no_store: bool,
    stale_if_error_s: Option<u64>,
}

impl FetchPlan {
    pub(crate) fn new(why: Forwarded, directives: &RequestDirectives) -> Self {
        Self {
            why,
            stored: None,
            leader: None,
            background: false,
            request_no_store: directives.no_store,
            stale_if_error_s: directives.stale_if_error_s,
        }
    }
}

/// A request that goes to the origin. Dropping it lets go of those who wait for it.
pub struct Fetch {
    cache: Cache,
    /// What the request is found by, if it can be.
    key: Option<Key>,
    epoch: Option<Epoch>,
    method: Method,
    /// As the client sent them.
    request: HeaderMap,
    policy: CachePolicy,
    plan: FetchPlan,
    asked: Moment,
    /// Whether the answer may be kept.
    keeps: bool,
    /// Whether it may be meant for one client.
    authorized: bool,
}

impl std::fmt::Debug for Fetch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Fetch")
            .field("key", &self.key)
            .field("why", &self.plan.why)
            .finish_non_exhaustive()
    }
}

/// What an answer of the origin comes to.
#[derive(Debug)]
pub enum Answer {
    /// It goes to the client, its body chunk by chunk into the writer too.
    Forward(Option<Box<Writer>>),
    /// The client gets this instead. The origin's body is of no use.
    Serve(Reply),
}

impl Fetch {
    /// A fetch whose answer may be kept.
    pub(crate) fn new<F: Fields>(
        cache: Cache,
        asked: &Asked<'_, F>,
        key: Key,
        plan: FetchPlan,
        now: Moment,
    ) -> Self {
        let epoch = Some(cache.epoch(&key));
        let method = if plan.background { Method::GET } else { asked.method.clone() };
        Self {
            keeps: method == Method::GET,
            method,
            cache,
            key: Some(key),
            epoch,
            request: asked.headers.to_map(),
            policy: asked.policy.clone(),
            authorized: asked.is_authorized(),
            plan,
            asked: now,
        }
    }

    /// A request that the cache has no answer to; it may change what is stored.
    pub(crate) fn past<F: Fields>(
        cache: Cache,
        asked: &Asked<'_, F>,
        why: Forwarded,
        now: Moment,
    ) -> Self {
        Self {
            keeps: *asked.method == Method::POST && asked.key.is_some_and(|keyed| keyed.usable),
            method: asked.method.clone(),
            cache,
            key: asked.key.map(|keyed| keyed.key.clone()),
            epoch: None,
            request: asked.headers.to_map(),
            policy: asked.policy.clone(),
            authorized: asked.is_authorized(),
            plan: FetchPlan::new(why, &RequestDirectives::of(asked.headers)),
            asked: now,
        }
    }

    /// Whether the client has its answer, and the origin is asked for later.
    pub fn is_background(&self) -> bool {
        self.plan.background
    }

    /// Makes the request ask for what the cache wants to know. Its method is `GET` if
    /// [`is_background`](Self::is_background).
    pub fn prepare(&self, request: &mut Headers) {
        let capability = format!("{SURROGATE_NAME}=\"Surrogate/1.0\"");
        request.push(SURROGATE_CAPABILITY.as_str(), capability);
        if self.plan.background {
            request.remove(RANGE.as_str());
            request.remove(IF_RANGE.as_str());
            conditional::forget_conditions(request);
        }
        if let Some(stored) = &self.plan.stored
            && stored.has_validator()
        {
            conditional::ask_whether_it_holds(request, stored.headers());
        }
    }

    /// The origin cannot be reached, or ended in the middle of its head: what the client gets instead,
    /// if anything is left for it.
    pub fn failed(&self, now: Moment) -> Option<Reply> {
        self.is_answered();
        self.stale(now, STALE_WHILE_UNREACHABLE, None)
    }

    /// It is known how the origin fares: those who wait need not learn it one by one.
    fn is_answered(&self) {
        if let Some(leader) = &self.plan.leader {
            leader.ends();
        }
    }

    /// A stale response, if it may be used.
    fn stale(&self, now: Moment, at_least: Duration, origin: Option<StatusCode>) -> Option<Reply> {
        let stored = self.plan.stored.as_ref()?;
        let freshness = stored.freshness();
        let asked = self.plan.stale_if_error_s.map(Duration::from_secs);
        let longest = freshness.if_error.or(asked).unwrap_or_default().max(at_least);
        // Who asked for a validated response gets an error rather than another.
        let allowed = freshness.may_be_stale && self.plan.why != Forwarded::Request;
        if !allowed || freshness.staleness(now) >= longest {
            return None;
        }
        count(&self.cache.shared.counters.stale_hits);
        let status =
            CacheStatus { origin, detail: Some("stale"), ..CacheStatus::forwarded(self.plan.why) };
        Some(stored.answer(&self.method, &self.request, now, status))
    }

    /// The head of the origin's answer is there. It is changed to what the client is to see.
    pub fn response(mut self, head: &mut ResponseHead, now: Moment) -> Answer {
        let received = head.headers.to_map();
        head.headers.remove(SURROGATE_CONTROL.as_str());
        let status = head.status;
        if status == StatusCode::NOT_MODIFIED
            && let Some(stored) = self.plan.stored.clone()
            && stored.has_validator()
        {
            return Answer::Serve(self.freshen(&stored, &received, now));
        }
        if matches!(status.as_u16(), 500 | 502 | 503 | 504)
            && let Some(reply) = self.stale(now, Duration::ZERO, Some(status))
        {
            self.is_answered();
            return Answer::Serve(reply);
        }
        if self.method == Method::HEAD {
            self.learn_from_head(status, &received, now);
        }
        if !self.method.is_safe() && (status.is_success() || status.is_redirection()) {
            self.invalidate(&received);
        }
        let kept =
            if self.keeps { self.writer(status, &received, now) } else { Err(NotKept::Method) };
        let mut told = CacheStatus::forwarded(self.plan.why);
        if self.plan.stored.is_some() {
            told.origin = Some(status);
        }
        match kept {
            Ok(writer) => {
                told.stored = true;
                told.write(&mut head.headers);
                Answer::Forward(Some(Box::new(writer)))
            }
            Err(why) => {
                told.detail = (why != NotKept::Method).then(|| why.word());
                told.write(&mut head.headers);
                self.not_kept(status, now);
                Answer::Forward(None)
            }
        }
    }

    /// Nobody need wait for an answer that is not kept; and what it replaces is outdated.
    fn not_kept(&mut self, status: StatusCode, now: Moment) {
        if let Some(leader) = self.plan.leader.take() {
            leader.found_barren(now);
        }
        if let (Some(key), Some(stored)) = (&self.key, &self.plan.stored)
            && self.method == Method::GET
            && !status.is_server_error()
            && status != StatusCode::PARTIAL_CONTENT
        {
            self.cache.shared.index.forget(key.uri(), stored);
        }
    }

    fn judge(
        &self,
        status: StatusCode,
        headers: &HeaderMap,
        now: Moment,
    ) -> (ResponseDirectives, Freshness) {
        let directives = ResponseDirectives::of(headers);
        let defaults = Defaults {
            lifetime: self.policy.default_ttl,
            while_revalidating: self.policy.stale_while_revalidate,
            if_error: self.policy.stale_if_error,
        };
        let freshness = Freshness::of(status, headers, &directives, defaults, (self.asked, now));
        (directives, freshness)
    }

    /// Whether an answer to that method may be kept.
    fn check(
        &self,
        key: &Key,
        method: &Method,
        (status, headers): (StatusCode, &HeaderMap),
        (directives, freshness): &(ResponseDirectives, Freshness),
        received: Moment,
    ) -> Result<(), NotKept> {
        let request_no_store = self.plan.request_no_store;
        let (request, authorized, response) = (&self.request, self.authorized, headers);
        Exchange {
            key,
            method,
            request,
            authorized,
            request_no_store,
            status,
            response,
            directives,
            freshness,
            received,
        }
        .check()
    }

    /// Begins to keep an answer.
    fn writer(
        &mut self,
        status: StatusCode,
        headers: &HeaderMap,
        now: Moment,
    ) -> Result<Writer, NotKept> {
        let key = self.key.clone().ok_or(NotKept::NoStore)?;
        let judged = self.judge(status, headers, now);
        self.check(&key, &self.method, (status, headers), &judged, now)?;
        let (directives, freshness) = judged;
        let selector = Selector::of(headers, &self.request).ok_or(NotKept::Vary)?;
        let expected =
            headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
        let bytes_max = self.policy.object_bytes_max.min(self.cache.shared.index.entry_bytes_max());
        if expected.is_some_and(|expected: u64| expected > bytes_max) {
            return Err(NotKept::TooLarge);
        }
        let epoch = match self.epoch {
            Some(epoch) => epoch,
            // What this very request changed is older than its answer.
            None => self.cache.epoch(&key),
        };
        let place = key.place().into();
        let headers = headers.clone();
        Ok(Writer {
            cache: self.cache.clone(),
            key,
            epoch,
            head: EntryHead { place, selector, status, headers, freshness, directives },
            body: BytesMut::new(),
            expected,
            bytes_max,
            closed: false,
            kept: false,
            leader: self.plan.leader.take(),
        })
    }

    /// What is stored still holds: it gets the newer fields, and the client its answer.
    fn freshen(&mut self, stored: &Arc<CacheEntry>, received: &HeaderMap, now: Moment) -> Reply {
        let headers = conditional::updated(stored.headers(), received);
        let judged = self.judge(stored.status(), &headers, now);
        let answer = (stored.status(), &headers);
        let kept = self.key.as_ref().map(|key| self.check(key, &Method::GET, answer, &judged, now));
        let entry = Arc::new(stored.freshened(headers, judged.1, judged.0));
        entry.touch(now);
        let index = &self.cache.shared.index;
        let mut told = CacheStatus::forwarded(self.plan.why);
        told.origin = Some(StatusCode::NOT_MODIFIED);
        if let Some(key) = &self.key {
            if let (Some(Ok(())), Some(epoch)) = (&kept, self.epoch) {
                told.stored = self.cache.store(key, &entry, epoch);
            }
            if !told.stored {
                index.forget(key.uri(), stored);
            }
        }
        // Those who wait may look now.
        self.is_answered();
        self.plan.leader = None;
        entry.answer(&self.method, &self.request, now, told)
    }

    /// RFC 9111 §4.3.5: the answer to a `HEAD` tells whether what is stored holds.
    fn learn_from_head(&self, status: StatusCode, received: &HeaderMap, now: Moment) {
        let (Some(key), Some(stored)) = (&self.key, &self.plan.stored) else { return };
        let index = &self.cache.shared.index;
        let about = conditional::head_is_about(stored.headers(), received, stored.body().len());
        if status != stored.status() || !about {
            if !status.is_server_error() {
                index.forget(key.uri(), stored);
            }
            return;
        }
        let headers = conditional::updated(stored.headers(), received);
        let judged = self.judge(status, &headers, now);
        let kept = self.check(key, &Method::GET, (status, &headers), &judged, now);
        let stays = kept.is_ok()
            && self.epoch.is_some_and(|epoch| {
                let newer = Arc::new(stored.freshened(headers, judged.1, judged.0));
                self.cache.store(key, &newer, epoch)
            });
        if !stays {
            index.forget(key.uri(), stored);
        }
    }

    /// RFC 9111 §4.4: what a method may have changed is no longer held, nor what its answer points to.
    fn invalidate(&self, received: &HeaderMap) {
        let Some(key) = &self.key else { return };
        let index = &self.cache.shared.index;
        index.remove(key.uri());
        for name in [LOCATION, CONTENT_LOCATION] {
            let told = received.get(name).and_then(|value| value.to_str().ok());
            if let Some(uri) = told.and_then(|told| key.resolve(told)) {
                index.remove(&uri);
            }
        }
    }
}

/// Keeps a response while its body passes by. It is kept when [`finish`](Self::finish) is called, and
/// not at all if the writer is dropped.
pub struct Writer {
    cache: Cache,
    key: Key,
    epoch: Epoch,
    head: EntryHead,
    body: BytesMut,
    /// How long the body is said to be.
    expected: Option<u64>,
    bytes_max: u64,
    /// Nothing more is taken.
    closed: bool,
    kept: bool,
    leader: Option<Leader>,
}

impl std::fmt::Debug for Writer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Writer")
            .field("key", &self.key)
            .field("bytes", &self.body.len())
            .finish_non_exhaustive()
    }
}

impl Writer {
    /// The next bytes of the body.
    pub fn push(&mut self, chunk: &[u8]) {
        if self.closed {
            if self.kept && !chunk.is_empty() {
                self.take_back();
            }
            return;
        }
        let length = (self.body.len() + chunk.len()) as u64;
        let writing =
            self.cache.shared.writing_bytes.fetch_add(chunk.len() as u64, Ordering::Relaxed);
        let fits = length <= self.bytes_max
            && self.expected.is_none_or(|expected| length <= expected)
            && writing + chunk.len() as u64 <= self.cache.writing_bytes_max();
        if fits {
            if self.body.is_empty() {
                // Said by the origin, but not beyond what we keep anyway.
                let whole = self.expected.unwrap_or(0).min(self.bytes_max);
                self.body.reserve(usize::try_from(whole).unwrap_or(0));
            }
            self.body.extend_from_slice(chunk);
            if self.expected == Some(length) {
                // Whoever gets the last byte may ask again at once.
                self.keep(self.head.freshness.received());
            }
            return;
        }
        self.release(length);
        self.fail();
    }

    /// Gives up: the response is not kept, and nobody need wait for it.
    fn fail(&mut self) {
        self.closed = true;
        self.body = BytesMut::new();
        if let Some(leader) = self.leader.take() {
            leader.found_barren(self.head.freshness.received());
        }
    }

    /// More came than was told of: what was kept is not to be trusted.
    fn take_back(&mut self) {
        self.kept = false;
        self.cache.shared.index.remove(self.key.uri());
    }

    fn release(&self, bytes: u64) {
        self.cache.shared.writing_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// The body has ended as it should; whether the response is kept. To be called before the end is
    /// told to the client, which may ask again at once.
    pub fn finish(mut self, now: Moment) -> bool {
        if self.expected.is_none_or(|expected| expected == 0) {
            self.keep(now);
        }
        self.kept
    }

    /// Keeps what has come, which is all of it.
    fn keep(&mut self, now: Moment) {
        if self.closed {
            return;
        }
        let body = std::mem::take(&mut self.body);
        self.release(body.len() as u64);
        // What a growing buffer has too much is given back.
        let spare = body.capacity() - body.len();
        let body =
            if spare > body.len() / 8 { Bytes::copy_from_slice(&body) } else { body.freeze() };
        let entry = CacheEntry::new(self.head.clone(), body);
        entry.touch(now);
        self.kept = self.cache.store(&self.key, &Arc::new(entry), self.epoch);
        // A body that goes on is not the one that was told of.
        self.closed = true;
        if let Some(leader) = self.leader.take() {
            leader.ends();
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.release(self.body.len() as u64);
    }
}
