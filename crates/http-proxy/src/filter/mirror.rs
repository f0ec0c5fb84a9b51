//! Mirrors: a copy of a request for somebody whose answer nobody sees.
//!
//! The copy is sent when the request is over, beside everything else: a mirror that is slow or gone
//! costs the client nothing. Bodies are kept for it up to a bound, and copies under way are bounded
//! too; what goes beyond is not mirrored, and counted. Who the client is a mirror is told as a backend
//! is: by us or a trusted proxy, and by nobody else.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, EXPECT, HOST, HeaderMap, HeaderValue, TE};
use http::{Method, Request, Uri};
use tokio::sync::Semaphore;

use super::client::Client;
use super::template::{Template, UnknownName};
use crate::h2::convert::request_fields;
use crate::head::RequestHead;
use crate::table::{Mirror, Policy};

/// The longest body that is mirrored.
const BODY_BYTES_MAX: usize = 256 * 1024;
/// How much of an answer is read so that its connection can be used again.
const ANSWER_BYTES_MAX: usize = 256 * 1024;
/// How much all bodies may take together that are being copied.
const BODIES_BYTES_MAX: usize = 64 << 20;
/// How many copies may be under way.
const UNDER_WAY_MAX: usize = 256;
/// How long a copy may take.
const WITHIN: Duration = Duration::from_secs(10);

/// What mirrors share.
#[derive(Debug)]
pub struct Mirrors {
    client: Arc<Client>,
    places: Arc<Semaphore>,
    dropped: AtomicU64,
    /// Bytes of bodies that are being copied.
    held: Arc<AtomicUsize>,
}

impl Mirrors {
    /// Mirrors by this client.
    pub fn new(client: Arc<Client>) -> Self {
        let places = Arc::new(Semaphore::new(UNDER_WAY_MAX));
        Self { client, places, dropped: AtomicU64::new(0), held: Arc::default() }
    }

    /// How many copies were not made.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }
}

/// One route's mirror, read once.
#[derive(Debug)]
pub struct MirrorFilter {
    url: Template,
    /// The host that copies name; else the URL's.
    host: Option<Template>,
    body: bool,
}

/// A copy that is being made.
#[derive(Debug)]
pub struct RequestCopy {
    method: Method,
    url: String,
    host: Option<String>,
    /// None, if there are too many of them.
    headers: Option<HeaderMap>,
    wants_body: bool,
    body: Vec<u8>,
    too_long: bool,
    /// Counts the body, as long as the copy lives.
    held: Held,
}

/// A copy's part of the bytes that all copies take.
#[derive(Debug)]
struct Held {
    all: Arc<AtomicUsize>,
    own: usize,
}

impl Held {
    /// Takes so much more; false if there is no room for it.
    fn take(&mut self, bytes: usize) -> bool {
        self.own += bytes;
        self.all.fetch_add(bytes, Ordering::Relaxed) + bytes <= BODIES_BYTES_MAX
    }

    fn release(&mut self) {
        self.all.fetch_sub(std::mem::take(&mut self.own), Ordering::Relaxed);
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.release();
    }
}

impl MirrorFilter {
    /// Reads the settings. A URL without a path of its own gets the request's.
    pub fn new(settings: &Mirror) -> Result<Self, UnknownName> {
        let mut url = settings.url.to_string();
        let rest = url.split_once("://").map_or("", |(_, rest)| rest);
        if !rest.contains('/') && !rest.contains('$') {
            url.push_str("$request_uri");
        }
        let host = settings.host.as_deref().map(Template::parse).transpose()?;
        Ok(Self { url: Template::parse(&url)?, host, body: settings.body })
    }

    /// Begins a copy of a request.
    pub fn begin(&self, head: &RequestHead, policy: &Policy, mirrors: &Mirrors) -> RequestCopy {
        let mut headers = request_fields(head, policy).ok();
        if let Some(headers) = &mut headers {
            for own in [CONTENT_LENGTH, EXPECT, TE] {
                headers.remove(own);
            }
            if let Ok(asked) = HeaderValue::from_str(&head.asked_target()) {
                headers.insert("x-original-uri", asked);
            }
        }
        RequestCopy {
            method: head.method.clone(),
            url: self.url.fill(head),
            host: self.host.as_ref().map(|host| host.fill(head)),
            headers,
            wants_body: self.body,
            body: Vec::new(),
            too_long: false,
            held: Held { all: Arc::clone(&mirrors.held), own: 0 },
        }
    }
}

impl RequestCopy {
    /// Adds a piece of the body.
    pub fn push(&mut self, piece: &[u8]) {
        if !self.wants_body || self.too_long {
            return;
        }
        if self.body.len() + piece.len() > BODY_BYTES_MAX || !self.held.take(piece.len()) {
            self.too_long = true;
            self.body = Vec::new();
            self.held.release();
        } else {
            self.body.extend_from_slice(piece);
        }
    }

    /// Sends the copy, beside everything else.
    pub fn send(self, mirrors: &Mirrors) {
        let place = Arc::clone(&mirrors.places).try_acquire_owned();
        let mut request = Request::new(Bytes::from(self.body));
        let headers = self.headers.filter(|_| !self.too_long);
        let (Ok(place), Ok(uri), Some(headers)) = (place, self.url.parse::<Uri>(), headers) else {
            mirrors.dropped.fetch_add(1, Ordering::Relaxed);
            return;
        };
        let host = self.host.or_else(|| uri.authority().map(ToString::to_string));
        *request.method_mut() = self.method;
        *request.uri_mut() = uri;
        *request.headers_mut() = headers;
        if let Some(host) = host.and_then(|host| HeaderValue::from_str(&host).ok()) {
            request.headers_mut().insert(HOST, host);
        }
        let client = Arc::clone(&mirrors.client);
        let held = self.held;
        tokio::spawn(async move {
            if let Err(error) = client.ask(request, WITHIN, ANSWER_BYTES_MAX).await {
                tracing::debug!(%error, "a mirror did not answer");
            }
            drop((place, held));
        });
    }
}

#[cfg(test)]
mod tests;
