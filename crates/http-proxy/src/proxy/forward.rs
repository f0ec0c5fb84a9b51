//! Requests and responses with bodies as streams: how h2, the cache and everything else that is not
//! h1 on both sides come to a backend.

use std::sync::Arc;
use std::time::Instant;

use super::attempts::Attempts;
use super::cached::kept;
use super::told::without_told;
use super::{Forwarding, HttpProxy};
use crate::balance::Pick;
use crate::balance::peer::Flight;
use crate::body::Body;
use crate::cache::{Answer, Moment};
use crate::clock;
use crate::compress;
use crate::error::{ErrorKind, ProxyError};
use crate::h1::timer::after;
use crate::h2::client::H2Exchange;
use crate::head::{RequestHead, ResponseHead};
use crate::upstream::exchange::Exchange;

impl HttpProxy {
    /// Gets the response to a request: from the cache, where the route has one and it has it, else
    /// from the chosen backend; compressed, where the route wants that and the client takes it.
    pub(crate) async fn forward_request(
        self: &Arc<Self>,
        request: &RequestHead,
        body: Body,
        attempts: &mut Attempts<'_>,
    ) -> Result<(ResponseHead, Body), ProxyError> {
        let forwarding = attempts.forwarding;
        let policy = &forwarding.route.route.policy;
        let body = without_told(body, policy);
        let body = match &forwarding.route.filters.mirror {
            Some(mirror) => self.mirrored(mirror, request, body),
            None => body,
        };
        let mut response = if policy.cache.is_some() {
            Box::pin(self.forward_cached(request, body, attempts)).await
        } else {
            self.forward_to_backend(request, body, attempts).await
        };
        if policy.error_backend.is_some() {
            response = Box::pin(self.with_error_page(request, response, forwarding)).await;
        }
        let response = response?;
        Ok(compress::apply(&policy.compress, request, response))
    }

    /// Brings a request to an endpoint of the chosen backend, in as many tries as it may take.
    pub(super) async fn forward_to_backend(
        &self,
        request: &RequestHead,
        mut body: Body,
        attempts: &mut Attempts<'_>,
    ) -> Result<(ResponseHead, Body), ProxyError> {
        attempts.forwarding.upstream.budget.deposit();
        loop {
            let (error, rest) = match self.attempt(request, body, attempts).await {
                Ok(response) => return Ok(response),
                Err(failed) => failed,
            };
            let Some(rest) = rest else { return Err(error) };
            if !attempts.may_try_again(&request.method, &error) {
                return Err(error);
            }
            body = rest;
        }
    }

    /// One try; with a failure comes the body, if nothing of it was used.
    async fn attempt(
        &self,
        request: &RequestHead,
        body: Body,
        attempts: &mut Attempts<'_>,
    ) -> Result<(ResponseHead, Body), (ProxyError, Option<Body>)> {
        let forwarding = attempts.forwarding;
        let policy = &forwarding.route.route.policy;
        let Some(peer) = attempts.select() else {
            return Err((ErrorKind::NoEndpoint.into(), None));
        };
        let begun = attempts.now.take().unwrap_or_else(Instant::now);
        let flight = Flight::begin(peer.clone(), clock::nanos(begun));
        let upstream = &forwarding.upstream;
        let overall = policy.timeouts.request.map(|time| after(attempts.begun, time));
        if upstream.is_multiplexed() {
            let within = policy.timeouts.connect;
            let place = Box::pin(peer.h2.connect(upstream, &peer, within, request)).await;
            let place = match place {
                Ok(place) => place,
                Err(error) => {
                    attempts.failed(&peer, &error, false);
                    return Err((error, Some(body)));
                }
            };
            let exchange = H2Exchange::new(place, flight, request, policy, body, overall);
            let tried = self.attempt_multiplexed(exchange, &peer, request, attempts);
            return Box::pin(tried).await;
        }
        let connection = if let Some(connection) = upstream.reuse(&peer, request) {
            Ok(connection)
        } else {
            // Boxed: it is seldom, and every request would have to have room for it.
            Box::pin(upstream.connect_for(&peer, policy.timeouts.connect, request)).await
        };
        let connection = match connection {
            Ok(connection) => connection,
            Err(error) => {
                attempts.failed(&peer, &error, false);
                return Err((error, Some(body)));
            }
        };
        let now = if connection.reused { begun } else { Instant::now() };
        let mut exchange = Exchange::new(connection, flight, request, body, policy, now, overall);
        let mut response = ResponseHead::with_room();
        match exchange.head(&request.method, &mut response, attempts.hints).await {
            Ok(framing) => {
                attempts.answered = exchange.answered;
                let retried = attempts.retry_statuses(&request.method);
                let refused = retried.is_some_and(|on| on.status(response.status.as_u16()));
                attempts.report_answer(&peer, &response);
                if refused && let Some(body) = exchange.take_body() {
                    let kind = ErrorKind::BadResponse("refused by the route's retry policy");
                    return Err((ProxyError::idempotent(kind), Some(body)));
                }
                Ok(through_cache(request, response, exchange.into_body(framing), &peer, attempts))
            }
            Err(error) => {
                let reused = exchange.connection().is_some_and(|connection| connection.reused);
                attempts.failed(&peer, &error, reused);
                let body = exchange.take_body();
                Err((error, body))
            }
        }
    }
}

impl HttpProxy {
    /// One try by HTTP/2.
    async fn attempt_multiplexed(
        &self,
        mut exchange: H2Exchange,
        peer: &Arc<crate::balance::Peer>,
        request: &RequestHead,
        attempts: &mut Attempts<'_>,
    ) -> Result<(ResponseHead, Body), (ProxyError, Option<Body>)> {
        let mut response = ResponseHead::default();
        if let Err(error) = exchange.head(&mut response, attempts.hints).await {
            attempts.failed(peer, &error, false);
            return Err((error, exchange.take_body()));
        }
        attempts.answered = Some(Instant::now());
        let retried = attempts.retry_statuses(&request.method);
        let refused = retried.is_some_and(|on| on.status(response.status.as_u16()));
        attempts.report_answer(peer, &response);
        if refused && let Some(body) = exchange.take_body() {
            let kind = ErrorKind::BadResponse("refused by the route's retry policy");
            return Err((ProxyError::idempotent(kind), Some(body)));
        }
        Ok(through_cache(request, response, exchange.into_body(), peer, attempts))
    }
}

/// A backend's response as the client gets it, by way of the cache where that has a say.
fn through_cache(
    request: &RequestHead,
    mut response: ResponseHead,
    body: Body,
    peer: &crate::balance::Peer,
    attempts: &mut Attempts<'_>,
) -> (ResponseHead, Body) {
    let forwarding = attempts.forwarding;
    let fetch = attempts.fetch.take();
    let body = match fetch.map(|fetch| fetch.response(&mut response, Moment::now())) {
        Some(Answer::Serve(reply)) => return forwarding.stored(request, reply),
        Some(Answer::Forward(Some(writer))) => kept(body, writer),
        Some(Answer::Forward(None)) | None => body,
    };
    forwarding.edit_response(request, &mut response, peer);
    (response, body)
}

/// Whether a response says that the endpoint cannot serve, rather than that the request is bad.
pub(crate) fn is_gateway_error(response: &ResponseHead) -> bool {
    matches!(response.status.as_u16(), 502..=504)
}

/// How a forwarding chooses, given what was tried.
impl Forwarding {
    pub(crate) fn pick<'a>(&'a self, tried: &'a [Arc<crate::balance::Peer>]) -> Pick<'a> {
        Pick { key: self.key, sticky: self.sticky.as_deref(), tried }
    }
}
