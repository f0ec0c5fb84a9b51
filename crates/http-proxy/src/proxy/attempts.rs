//! The tries of one request: where it was tried, and whether it may be tried again.

use std::sync::Arc;
use std::time::Instant;

use http::{Method, StatusCode};

use super::forward::is_gateway_error;
use super::hints::Hints;
use super::{Forwarding, HttpProxy, Outcome};
use crate::balance::Peer;
use crate::cache::Fetch;
use crate::clock;
use crate::error::{ErrorKind, ProxyError, RetryHint, Side};
use crate::head::{RequestHead, ResponseHead};
use crate::table::RetryOn;
use crate::watch::stats::CacheUse;

/// What the tries of one request have in common.
pub(crate) struct Attempts<'a> {
    pub(crate) forwarding: &'a Forwarding,
    pub(crate) begun: Instant,
    /// The time, as long as nothing was waited for.
    pub(crate) now: Option<Instant>,
    pub(crate) tries: u32,
    tried: Vec<Arc<Peer>>,
    peer: Option<Arc<Peer>>,
    stale: u32,
    pub(crate) answered: Option<Instant>,
    /// When the last try was over, if that is when the request is.
    pub(crate) ended: Option<Instant>,
    pub(crate) body_bytes: u64,
    pub(crate) response_begun: bool,
    /// What the cache makes of the response.
    pub(crate) fetch: Option<Box<Fetch>>,
    /// What the cache was for it.
    pub(crate) cache: Option<CacheUse>,
    /// Whatever status comes is meant: nothing is tried again for it, and nobody blamed.
    pub(crate) any_status: bool,
    /// Where interim responses go, if the client can be told.
    pub(crate) hints: Option<&'a Hints>,
}

/// How often a kept connection may turn out to be closed before that counts as a try.
const STALE_MAX: u32 = 8;

impl<'a> Attempts<'a> {
    pub(crate) fn new(forwarding: &'a Forwarding, begun: Instant) -> Self {
        Self {
            forwarding,
            begun,
            now: None,
            tries: 0,
            tried: Vec::new(),
            peer: None,
            stale: 0,
            answered: None,
            ended: None,
            body_bytes: 0,
            response_begun: false,
            fetch: None,
            cache: None,
            any_status: false,
            hints: None,
        }
    }

    /// Chooses an endpoint for the next try.
    pub(crate) fn select(&mut self) -> Option<Arc<Peer>> {
        let pick = self.forwarding.pick(&self.tried);
        let peer = self.forwarding.upstream.balancer.select_backend(&pick)?;
        self.tries += 1;
        self.peer = Some(peer.clone());
        Some(peer)
    }

    /// A try failed: the endpoint's fault counts against it.
    pub(crate) fn failed(&mut self, peer: &Peer, error: &ProxyError, reused: bool) {
        if error.side() != Side::Upstream {
            return;
        }
        // A kept connection that closes just then says nothing about the endpoint.
        if !(reused && error.kind == ErrorKind::UpstreamClosed && self.stale_again()) {
            self.report(peer, true);
        }
    }

    /// The statuses to try again on, as long as another try may be made: an answer that nothing follows
    /// is the client's, whatever it says.
    pub(crate) fn retry_statuses(&self, method: &Method) -> Option<RetryOn> {
        let retry = &self.forwarding.route.route.policy.retry;
        let wanted =
            !self.any_status && retry.on.has_statuses() && self.tries < u32::from(retry.tries);
        let may = wanted
            && self.forwarding.may_repeat(method)
            && self.retry_until().is_none_or(|until| Instant::now() < until)
            && self.has_other()
            && self.forwarding.upstream.budget.has_one(clock::nanos(Instant::now()));
        may.then_some(retry.on)
    }

    /// Until when another try may begin.
    pub(crate) fn retry_until(&self) -> Option<Instant> {
        let within = self.forwarding.route.route.policy.retry.within?;
        self.begun.checked_add(within)
    }

    /// Whether there is an endpoint that was not tried.
    fn has_other(&self) -> bool {
        self.forwarding.upstream.balancer.has_other(&self.tried, self.peer.as_ref())
    }

    /// Whether a response speaks against its endpoint.
    fn blames(&self, response: &ResponseHead) -> bool {
        !self.any_status && is_gateway_error(response)
    }

    /// An endpoint answered.
    pub(crate) fn report_answer(&self, peer: &Peer, response: &ResponseHead) {
        let failed = self.blames(response);
        self.report(peer, failed);
        // Failures are counted as such.
        if !failed && response.status.is_server_error() {
            peer.count_server_error();
        }
    }

    pub(crate) fn report(&self, peer: &Peer, failed: bool) {
        let upstream = &self.forwarding.upstream;
        if failed {
            let now = clock::nanos(Instant::now());
            upstream.balancer.report(peer, true, &upstream.settings().outlier, now);
        } else {
            upstream.balancer.succeeded(peer);
        }
    }

    /// A kept connection was closed: the endpoint has not been tried yet, unless that comes too often.
    fn stale_again(&mut self) -> bool {
        let again = self.stale < STALE_MAX;
        if again {
            self.stale += 1;
            self.tries -= 1;
            self.peer = None;
        }
        again
    }

    /// Whether the request may be sent once more after this failure, by safety, policy and budget.
    pub(crate) fn may_try_again(&mut self, method: &Method, error: &ProxyError) -> bool {
        let retry = &self.forwarding.route.route.policy.retry;
        // The head was sent and answered with something: as safe as a connection that broke.
        let unreadable = matches!(error.kind, ErrorKind::BadResponse(_)) && retry.on.invalid_header;
        let safe = match error.retry {
            RetryHint::Never if unreadable => self.forwarding.may_repeat(method),
            RetryHint::Never => false,
            RetryHint::Unsent => true,
            RetryHint::Idempotent => self.forwarding.may_repeat(method),
        };
        let wanted = match error.kind {
            ErrorKind::ConnectTimeout | ErrorKind::UpstreamTimeout => retry.on.timeout,
            ErrorKind::Connect | ErrorKind::UpstreamClosed => retry.on.connection,
            ErrorKind::BadResponse(_) => true,
            _ => false,
        };
        let in_time = retry.within.is_none_or(|within| self.begun.elapsed() < within);
        if !(safe && wanted && in_time && self.tries < u32::from(retry.tries)) {
            return false;
        }
        // Whoever was too slow or refused is not asked the same again; a connection may break by
        // chance, and behind one address there may be several.
        let same_may_do = matches!(error.kind, ErrorKind::Connect | ErrorKind::UpstreamClosed);
        if !same_may_do && !self.has_other() {
            return false;
        }
        let Some(peer) = self.peer.take() else {
            // Only a stale connection: the same endpoint again, at no cost.
            return true;
        };
        self.tried.push(peer);
        self.forwarding.upstream.budget.withdraw(clock::nanos(Instant::now()))
    }

    pub(crate) fn observe(
        &self,
        proxy: &HttpProxy,
        request: &RequestHead,
        status: StatusCode,
        error: Option<ErrorKind>,
    ) {
        let outcome = Outcome {
            route: Some(&self.forwarding.route),
            endpoint: self.peer.as_ref().map(|peer| peer.address()),
            tries: self.tries,
            upstream: self.answered.map(|at| at.saturating_duration_since(self.begun)),
            body_bytes: self.body_bytes,
            status,
            error,
            cache: self.cache,
            ..Outcome::until(self.begun, self.ended.unwrap_or_else(Instant::now))
        };
        proxy.observe(request, &outcome);
    }
}
