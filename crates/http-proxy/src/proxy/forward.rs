//! How a request comes to a backend. `HttpProxy::forward_request` is the one way there, in as many tries
//! as a request may take; a `Wire` makes a try. There are two: h1 on both sides passes bytes on
//! (`h1::serve`), and everything else (h2, the cache, compression) has heads and bodies as streams, which
//! is here.

use std::sync::Arc;
use std::time::Instant;

use http::Method;

use super::attempts::Attempts;
use super::cached::kept;
use super::repeat::Repeatable;
use super::told::without_told;
use super::{Forwarding, HttpProxy};
use crate::balance::Pick;
use crate::balance::peer::Flight;
use crate::body::Body;
use crate::cache::{Answer, Moment};
use crate::clock;
use crate::compress;
use crate::error::{ErrorKind, ProxyError, RetryHint};
use crate::h1::timer::after;
use crate::h2::client::H2Exchange;
use crate::head::{RequestHead, ResponseHead};
use crate::upstream::exchange::Exchange;

/// A try that failed.
pub(crate) struct Failed {
    pub(crate) error: ProxyError,
    /// Whether all of the request is still there, to be sent once more.
    pub(crate) whole: bool,
}

/// How one request is carried.
pub(crate) trait Wire {
    /// What an endpoint's answer comes to.
    type Answer;

    /// The request's method.
    fn method(&self) -> &Method;

    /// Brings the request to an endpoint, once.
    async fn attempt(&mut self, attempts: &mut Attempts<'_>) -> Result<Self::Answer, Failed>;
}

impl HttpProxy {
    /// Brings a request to an endpoint of the chosen backend, in as many tries as it may take.
    pub(crate) async fn forward_request<W: Wire>(
        wire: &mut W,
        attempts: &mut Attempts<'_>,
    ) -> Result<W::Answer, ProxyError> {
        attempts.forwarding.upstream.budget.deposit();
        loop {
            let Failed { error, whole } = match wire.attempt(attempts).await {
                Ok(answer) => return Ok(answer),
                Err(failed) => failed,
            };
            if !(whole && attempts.may_try_again(wire.method(), &error)) {
                return Err(error);
            }
        }
    }

    /// Gets the response to a request: from the cache, where the route has one and it has it, else
    /// from the chosen backend; compressed, where the route wants that and the client takes it.
    pub(crate) async fn respond(
        self: &Arc<Self>,
        request: &RequestHead,
        body: Body,
        attempts: &mut Attempts<'_>,
    ) -> Result<(ResponseHead, Body), ProxyError> {
        let forwarding = attempts.forwarding;
        let policy = &forwarding.route.route.policy;
        let body = without_told(body, policy);
        let body = match &forwarding.route.filters.mirror {
            Some(mirror) => self.mirrored(mirror, request, policy, body),
            None => body,
        };
        let mut response = if policy.cache.is_some() {
            Box::pin(self.forward_cached(request, body, attempts)).await
        } else {
            self.forward_streamed(request, body, attempts).await
        };
        if policy.error_backend.is_some() {
            response = Box::pin(self.with_error_page(request, response, forwarding)).await;
        }
        let response = response?;
        Ok(compress::apply(&policy.compress, request, response))
    }

    /// Forwards a request with its body as a stream.
    pub(super) async fn forward_streamed(
        &self,
        request: &RequestHead,
        body: Body,
        attempts: &mut Attempts<'_>,
    ) -> Result<(ResponseHead, Body), ProxyError> {
        let mut streamed = Streamed { request, body: Repeatable::new(body) };
        Self::forward_request(&mut streamed, attempts).await
    }
}

/// A request with its body as a stream.
struct Streamed<'a> {
    request: &'a RequestHead,
    body: Repeatable,
}

impl Wire for Streamed<'_> {
    type Answer = (ResponseHead, Body);

    fn method(&self) -> &Method {
        &self.request.method
    }

    async fn attempt(&mut self, attempts: &mut Attempts<'_>) -> Result<Self::Answer, Failed> {
        match attempt(self.request, &self.body, attempts).await {
            Ok(answer) => {
                self.body.let_go();
                Ok(answer)
            }
            Err(error) => Err(Failed { error, whole: self.body.is_whole() }),
        }
    }
}

/// One try.
async fn attempt(
    request: &RequestHead,
    body: &Repeatable,
    attempts: &mut Attempts<'_>,
) -> Result<(ResponseHead, Body), ProxyError> {
    let forwarding = attempts.forwarding;
    let policy = &forwarding.route.route.policy;
    let Some(peer) = attempts.select() else {
        return Err(ErrorKind::NoEndpoint.into());
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
                return Err(error);
            }
        };
        let exchange = H2Exchange::new(place, flight, request, policy, body.again(), overall);
        return Box::pin(attempt_multiplexed(exchange, &peer, request, body, attempts)).await;
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
            return Err(error);
        }
    };
    let now = if connection.reused { begun } else { Instant::now() };
    let mut exchange =
        Exchange::new(connection, flight, request, body.again(), policy, now, overall);
    let mut response = ResponseHead::with_room();
    match exchange.head(&request.method, &mut response, attempts.hints).await {
        Ok(framing) => {
            attempts.answered = exchange.answered;
            let retried = attempts.retry_statuses(&request.method);
            let refused = retried.is_some_and(|on| on.status(response.status.as_u16()));
            attempts.report_answer(&peer, &response);
            if refused && body.is_whole() {
                let kind = ErrorKind::BadResponse("refused by the route's retry policy");
                return Err(ProxyError::idempotent(kind));
            }
            Ok(through_cache(request, response, exchange.into_body(framing), &peer, attempts))
        }
        Err(error) => {
            let reused = exchange.connection().is_some_and(|connection| connection.reused);
            attempts.failed(&peer, &error, reused);
            Err(error)
        }
    }
}

/// One try by HTTP/2.
async fn attempt_multiplexed(
    mut exchange: H2Exchange,
    peer: &Arc<crate::balance::Peer>,
    request: &RequestHead,
    body: &Repeatable,
    attempts: &mut Attempts<'_>,
) -> Result<(ResponseHead, Body), ProxyError> {
    let mut response = ResponseHead::default();
    if let Err(error) = exchange.head(&mut response, attempts.hints).await {
        // A connection that ends is not the endpoint's fault: what it did not take is for the next one.
        let unsent = error.retry == RetryHint::Unsent;
        attempts.failed(peer, &error, unsent);
        return Err(error);
    }
    attempts.answered = Some(Instant::now());
    let retried = attempts.retry_statuses(&request.method);
    let refused = retried.is_some_and(|on| on.status(response.status.as_u16()));
    attempts.report_answer(peer, &response);
    if refused && body.is_whole() {
        let kind = ErrorKind::BadResponse("refused by the route's retry policy");
        return Err(ProxyError::idempotent(kind));
    }
    Ok(through_cache(request, response, exchange.into_body(), peer, attempts))
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
