//! A client's connection, request after request.

use std::cell::RefCell;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use http::{Method, StatusCode, Version};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::buffer::{Buffer, poll_write_from};
use super::parse::{self, BodyLength, RequestFraming};
use super::relay::{Client, End, Exchange, Relay, Respond};
use super::timer::{Timer, after};
use super::tunnel;
use super::write::{self, ResponseForm};
use crate::balance::peer::Flight;
use crate::balance::{Peer, Pick};
use crate::cache::{Answer, Fetch, Moment, Writer};
use crate::clock;
use crate::error::{ErrorKind, ProxyError, RetryHint, Side};
use crate::head::{ClientInfo, RequestHead, ResponseHead, Scheme};
use crate::proxy::{Decision, Forwarding, HttpProxy, Outcome};
use crate::reply::Reply;
use crate::table::RetryOn;
use crate::upstream::connect::Io;

/// How much a client that was refused may still send before it is cut off: closing while bytes
/// arrive would take our answer away from it.
const LINGER_BYTES_MAX: usize = 256 << 10;
const LINGER: Duration = Duration::from_secs(2);

/// How many exchanges a thread keeps, and how large their output may be.
const SPARES_MAX: usize = 256;
const SPARE_BYTES_MAX: usize = 64 << 10;

thread_local! {
    static SPARES: RefCell<Vec<Box<Exchange>>> = const { RefCell::new(Vec::new()) };
}

pub(super) fn take_exchange(client: &ClientInfo, scheme: Scheme) -> Box<Exchange> {
    let mut exchange = SPARES.with_borrow_mut(Vec::pop).unwrap_or_default();
    exchange.request.client.clone_from(client);
    exchange.request.scheme = scheme;
    exchange
}

pub(super) fn give_back(mut exchange: Box<Exchange>) {
    let large = exchange.to_client.capacity()
        + exchange.to_upstream.capacity()
        + exchange.request.headers.byte_count();
    if large > SPARE_BYTES_MAX {
        return;
    }
    exchange.request.client.tls = None;
    let _ = SPARES.try_with(|spares| {
        let mut spares = spares.borrow_mut();
        if spares.len() < SPARES_MAX {
            spares.push(exchange);
        }
    });
}

/// Says when to stop: after the request that runs, or at once if none does.
pub type Stop = tokio::sync::watch::Receiver<bool>;

/// Serves a connection until either side closes it.
pub async fn serve<S: Io>(
    proxy: Arc<HttpProxy>,
    io: S,
    info: ClientInfo,
    scheme: Scheme,
    stop: Stop,
) {
    let timeouts = proxy.settings().timeouts;
    let now = Instant::now();
    let client = Client {
        io,
        buffer: Buffer::default(),
        // The first request of a connection is expected as soon as a head.
        timer: Timer::new(after(now, timeouts.head)),
    };
    let mut connection = Connection { proxy, client, info, scheme, stop, quiet: false };
    while connection.serve_one().await {}
}

pub(super) struct Connection<S> {
    pub(super) proxy: Arc<HttpProxy>,
    pub(super) client: Client<S>,
    pub(super) info: ClientInfo,
    pub(super) scheme: Scheme,
    pub(super) stop: Stop,
    /// Whether nobody is told of its requests, which no client made.
    pub(super) quiet: bool,
}

/// What waiting for a head came to.
enum Waited {
    /// A head is here; this many bytes.
    Head(usize),
    /// The connection is over, without anything to say.
    Over,
    /// It cannot be served.
    Refused(ErrorKind),
}

impl<S: Io> Connection<S> {
    /// Serves one request; whether another may follow.
    async fn serve_one(&mut self) -> bool {
        let length = match self.wait_for_head().await {
            Waited::Head(length) => length,
            Waited::Over => return false,
            Waited::Refused(kind) => {
                self.refuse(kind, None).await;
                return false;
            }
        };
        let begun = Instant::now();
        let mut exchange = take_exchange(&self.info, self.scheme);
        let limits = &self.proxy.settings().limits;
        let head = &self.client.buffer.filled()[..length];
        let stays = match parse::request(head, limits, &mut exchange.request) {
            Ok(framing) => {
                self.client.buffer.consume(length);
                self.handle(&mut exchange, framing, begun).await
            }
            Err(kind) => {
                self.refuse(kind, None).await;
                self.observe_error(&exchange.request, kind, begun);
                false
            }
        };
        give_back(exchange);
        if stays {
            self.client.buffer.release();
            let keep_alive = self.proxy.settings().timeouts.keep_alive;
            self.client.timer.set(after(Instant::now(), keep_alive));
        }
        stays
    }

    /// Reads until a head is there.
    async fn wait_for_head(&mut self) -> Waited {
        let limits = self.proxy.settings().limits;
        let head_time = self.proxy.settings().timeouts.head;
        let mut searched = 0;
        let mut first = true;
        loop {
            let bytes = self.client.buffer.filled();
            if !bytes.is_empty() {
                match parse::head_end(bytes, &mut searched) {
                    Ok(Some(length)) if length <= limits.head_bytes_max => {
                        return Waited::Head(length);
                    }
                    Ok(None) if bytes.len() <= limits.head_bytes_max => {}
                    Ok(_) => return Waited::Refused(parse::too_large(bytes)),
                    Err(kind) => return Waited::Refused(kind),
                }
                if first {
                    // From now on the whole head has to come, however slowly it drips.
                    self.client.timer.set(after(Instant::now(), head_time));
                    first = false;
                }
            } else if *self.stop.borrow() {
                return Waited::Over;
            }
            let idle = bytes.is_empty();
            match self.fill(limits.head_bytes_max, idle).await {
                Ok(Some(count)) if count > 0 => {}
                Ok(Some(_)) => return Waited::Over,
                Ok(None) if idle => return Waited::Over,
                Ok(None) => return Waited::Refused(ErrorKind::RequestTimeout),
                Err(_) => return Waited::Over,
            }
        }
    }

    /// Reads more; `None` if the deadline passed, or if the proxy stops and nothing was read yet.
    async fn fill(&mut self, room: usize, idle: bool) -> io::Result<Option<usize>> {
        let Client { io, buffer, timer } = &mut self.client;
        let mut stopped = std::pin::pin!(async {
            if self.stop.wait_for(|stop| *stop).await.is_err() {
                std::future::pending::<()>().await;
            }
        });
        let mut watches = false;
        std::future::poll_fn(|cx| {
            use std::task::Poll;
            if let Poll::Ready(outcome) = buffer.poll_fill(cx, io, room) {
                return Poll::Ready(outcome.map(Some));
            }
            if timer.poll_expired(cx) {
                return Poll::Ready(Ok(None));
            }
            // Only idle connections end when the proxy stops.
            if idle || watches {
                watches = true;
                if stopped.as_mut().poll(cx).is_ready() {
                    return Poll::Ready(Ok(None));
                }
            }
            Poll::Pending
        })
        .await
    }

    /// Acts on a request; whether another may follow.
    async fn handle(
        &mut self,
        exchange: &mut Exchange,
        framing: RequestFraming,
        begun: Instant,
    ) -> bool {
        if framing.upgrade && !self.client.buffer.is_empty() {
            // Nobody may speak the new protocol before the endpoint agreed to it.
            self.refuse(ErrorKind::BadRequest("bytes after an upgrade"), Some(&exchange.request))
                .await;
            return false;
        }
        if framing.names_fields {
            parse::remove_named(&mut exchange.request.headers);
        }
        let length = match framing.body {
            BodyLength::Fixed(length) => Some(length),
            _ => None,
        };
        match self.proxy.decide(&mut exchange.request, length) {
            Decision::Forward(forwarding) if forwarding.route.route.policy.cache.is_some() => {
                match Box::pin(self.ask_cache(exchange, framing, &forwarding)).await {
                    Ok(reply) => {
                        let route = Some(&*forwarding.route);
                        self.reply_and_tell(
                            exchange,
                            framing,
                            reply,
                            Outcome { route, ..blank(begun) },
                        )
                        .await
                    }
                    Err(fetch) => {
                        self.forward(exchange, framing, &forwarding, Some(fetch), begun).await
                    }
                }
            }
            Decision::Forward(forwarding) => {
                self.forward(exchange, framing, &forwarding, None, begun).await
            }
            Decision::Reply(reply) => {
                self.reply_and_tell(exchange, framing, reply, blank(begun)).await
            }
            Decision::Refuse(kind) => {
                let reply = Reply::error(kind, Some(&exchange.request));
                let stays = self.reply(&exchange.request, framing, reply).await;
                self.observe_error(&exchange.request, kind, begun);
                stays
            }
        }
    }

    /// Answers by ourselves, and tells of it; whether another request may follow.
    async fn reply_and_tell(
        &mut self,
        exchange: &Exchange,
        framing: RequestFraming,
        reply: Reply,
        outcome: Outcome<'_>,
    ) -> bool {
        let outcome =
            Outcome { status: reply.head.status, body_bytes: reply.body.len() as u64, ..outcome };
        let stays = self.reply(&exchange.request, framing, reply).await;
        self.proxy.observe(&exchange.request, &outcome);
        stays
    }

    fn observe_error(&self, request: &RequestHead, kind: ErrorKind, begun: Instant) {
        let outcome = Outcome { status: kind.status(), error: Some(kind), ..blank(begun) };
        self.proxy.observe(request, &outcome);
    }

    /// Answers with an error and closes.
    async fn refuse(&mut self, kind: ErrorKind, request: Option<&RequestHead>) {
        let reply = Reply::error(kind, request);
        let head_only = request.is_some_and(|request| request.method == Method::HEAD);
        if self.send(reply, head_only, false, false).await.is_ok() {
            self.linger().await;
        }
    }

    /// Answers by ourselves; whether another request may follow. A body that the client has not sent
    /// yet is not waited for.
    async fn reply(
        &mut self,
        request: &RequestHead,
        framing: RequestFraming,
        reply: Reply,
    ) -> bool {
        let old = request.version == Version::HTTP_10;
        let stays = framing.keep_alive && !reply.close && framing.body == BodyLength::None;
        let head_only = request.method == Method::HEAD;
        let sent = self.send(reply, head_only, stays, old).await;
        if sent.is_ok() && !stays {
            self.linger().await;
        }
        sent.is_ok() && stays
    }

    async fn send(
        &mut self,
        mut reply: Reply,
        head_only: bool,
        keep_alive: bool,
        old: bool,
    ) -> io::Result<()> {
        let status = reply.head.status;
        if status != StatusCode::NO_CONTENT && status != StatusCode::NOT_MODIFIED {
            let mut length = Vec::new();
            write::decimal(&mut length, reply.body.len() as u64);
            reply.head.headers.set("content-length", length);
        }
        let mut out = Vec::with_capacity(512 + reply.body.len());
        let form = ResponseForm { chunked: false, keep_alive, old_client: old };
        write::response(&mut out, &reply.head, form);
        if !head_only {
            out.extend_from_slice(&reply.body);
        }
        let idle = after(Instant::now(), self.proxy.settings().timeouts.head);
        let Client { io, timer, .. } = &mut self.client;
        timer.set(idle);
        let mut at = 0;
        std::future::poll_fn(|cx| {
            use std::task::Poll;
            match poll_write_from(cx, io, &out, &mut at) {
                Poll::Pending if timer.poll_expired(cx) => {
                    Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
                }
                other => other,
            }
        })
        .await?;
        io.flush().await
    }

    /// Closes our direction and reads on for a moment, so that the answer is not lost.
    async fn linger(&mut self) {
        let io = &mut self.client.io;
        let read = async {
            if io.shutdown().await.is_err() {
                return;
            }
            let mut left = LINGER_BYTES_MAX;
            let mut waste = [0; 4096];
            while let Ok(count) = io.read(&mut waste).await {
                if count == 0 || count > left {
                    return;
                }
                left -= count;
            }
        };
        let _ = tokio::time::timeout(LINGER, read).await;
    }

    /// Brings a request to an endpoint and the response back, in as many tries as it may take.
    pub(super) async fn forward(
        &mut self,
        exchange: &mut Exchange,
        framing: RequestFraming,
        forwarding: &Forwarding,
        fetch: Option<Box<Fetch>>,
        begun: Instant,
    ) -> bool {
        let policy = forwarding.route.route.policy.clone();
        let overall = policy.timeouts.request.map(|time| after(begun, time));
        forwarding.upstream.budget.deposit();
        let mut state = Attempts::new(forwarding, begun);
        state.quiet = self.quiet;
        state.fetch = fetch;
        let outcome = loop {
            let mark = self.client.buffer.mark();
            let tried = self.attempt(exchange, framing, forwarding, overall, &mut state).await;
            match tried {
                Attempt::Done { stays } => break Ok(stays),
                Attempt::Replaced(reply) => {
                    let mut reply = *reply;
                    forwarding.edit_stored(&mut reply.head);
                    state.observe(&self.proxy, &exchange.request, reply.head.status, None);
                    return self.reply(&exchange.request, framing, reply).await;
                }
                Attempt::Failed { error, repeatable } => {
                    if !(repeatable && state.may_try_again(&exchange.request.method, &error)) {
                        break Err((error, state.response_begun));
                    }
                    self.client.buffer.rewind(mark);
                }
            }
        };
        let outcome = match outcome {
            Ok(stays) => {
                state.observe(&self.proxy, &exchange.request, exchange.response.status, None);
                return stays && !*self.stop.borrow();
            }
            Err((error, begun)) => {
                tracing::debug!(%error, source = ?error.source, "a request failed");
                state.observe(&self.proxy, &exchange.request, error.status(), Some(error.kind));
                (error, begun)
            }
        };
        let (error, response_begun) = outcome;
        if response_begun || error.kind == ErrorKind::ClientGone {
            return false;
        }
        // What the cache has left is better than nothing.
        let stale = state.fetch.as_ref().and_then(|fetch| fetch.failed(Moment::now()));
        if let Some(mut reply) = stale.filter(|_| error.side() != Side::Client) {
            forwarding.edit_stored(&mut reply.head);
            return self.reply(&exchange.request, framing, reply).await;
        }
        let reply = Reply::error(error.kind, Some(&exchange.request));
        if error.side() == Side::Client {
            self.refuse(error.kind, Some(&exchange.request)).await;
            return false;
        }
        self.reply(&exchange.request, framing, reply).await
    }

    /// One try.
    async fn attempt(
        &mut self,
        exchange: &mut Exchange,
        framing: RequestFraming,
        forwarding: &Forwarding,
        overall: Option<Instant>,
        state: &mut Attempts<'_>,
    ) -> Attempt {
        let upstream = &forwarding.upstream;
        let pick =
            Pick { key: forwarding.key, sticky: forwarding.sticky.as_deref(), tried: &state.tried };
        let Some(peer) = upstream.balancer.select_backend(&pick) else {
            return Attempt::failed(ErrorKind::NoEndpoint.into());
        };
        state.tries += 1;
        state.peer = Some(peer.clone());
        let policy = &forwarding.route.route.policy;
        let flight = Flight::begin(peer.clone(), clock::nanos(Instant::now()));
        let connection = match upstream.reuse(&peer) {
            Some(connection) => Ok(connection),
            None => Box::pin(upstream.connect(&peer, policy.timeouts.connect)).await,
        };
        let mut connection = match connection {
            Ok(connection) => connection,
            Err(error) => {
                state.report(&peer, true);
                return Attempt::Failed { error, repeatable: true };
            }
        };
        let Ok(stream) = connection.stream() else {
            return Attempt::failed(ErrorKind::Internal("a connection without a stream").into());
        };
        exchange.to_upstream.clear();
        write::request(
            &mut exchange.to_upstream,
            &exchange.request,
            policy,
            framing.upgrade,
            framing.body,
        );
        let mut respond = Responding {
            forwarding,
            flight: &flight,
            retry_on: state.retry_statuses(),
            answered: None,
            fetch: &mut state.fetch,
            writer: None,
            instead: None,
        };
        let mut relay = Relay::new(
            &mut self.client,
            stream,
            exchange,
            &mut respond,
            framing,
            &policy.timeouts,
            overall,
            policy.body_bytes_max,
        );
        let end = relay.run().await;
        let repeatable = relay.can_repeat();
        let body_bytes = relay.body_bytes;
        let begun = relay.begun;
        let rest = std::mem::take(&mut relay.from_upstream);
        drop(relay);
        let (answered, instead) = (respond.answered, respond.instead);
        state.answered = answered;
        state.body_bytes = body_bytes;
        state.response_begun = begun;
        match end {
            Ok(End::Done { client_stays, upstream_stays }) => {
                state.report(&peer, is_gateway_error(exchange.response.status));
                if upstream_stays {
                    connection.keep(&peer, Instant::now());
                }
                Attempt::Done { stays: client_stays }
            }
            Ok(End::Upgraded) => {
                state.report(&peer, false);
                let idle = policy.timeouts.idle;
                let head = std::mem::take(&mut exchange.to_client);
                Box::pin(upgrade(&mut self.client.io, stream, &head, rest, idle)).await;
                Attempt::Done { stays: false }
            }
            Ok(End::Replaced { upstream_stays }) => {
                state.report(&peer, is_gateway_error(exchange.response.status));
                if upstream_stays {
                    connection.keep(&peer, Instant::now());
                }
                let missing = || Attempt::failed(ErrorKind::Internal("nothing instead").into());
                instead.map_or_else(missing, |reply| Attempt::Replaced(Box::new(reply)))
            }
            Ok(End::Refused { upstream_stays }) => {
                state.report(&peer, true);
                if upstream_stays {
                    connection.keep(&peer, Instant::now());
                }
                let error = ProxyError::idempotent(ErrorKind::BadResponse(
                    "refused by the route's retry policy",
                ));
                Attempt::Failed { error, repeatable }
            }
            Err(error) => {
                if error.side() == Side::Upstream {
                    // A kept connection that closes just then says nothing about the endpoint.
                    let stale = connection.reused && error.kind == ErrorKind::UpstreamClosed;
                    if stale {
                        state.stale_again();
                    } else {
                        state.report(&peer, true);
                    }
                }
                Attempt::Failed { error, repeatable }
            }
        }
    }
}

/// Whether a status says that the endpoint cannot serve, rather than that the request is bad.
fn is_gateway_error(status: StatusCode) -> bool {
    matches!(status.as_u16(), 502..=504)
}

async fn upgrade<A: Io, B>(
    client: &mut A,
    upstream: &mut B,
    head: &[u8],
    rest: Buffer,
    idle: Duration,
) where
    B: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
{
    let sent = async {
        client.write_all(head).await?;
        client.flush().await
    };
    if let Ok(Ok(())) = tokio::time::timeout(idle, sent).await {
        let ended = tunnel::run(client, upstream, rest, idle).await;
        tracing::trace!(?ended, "an upgraded connection is over");
    }
}

/// How one try went.
enum Attempt {
    Done {
        stays: bool,
    },
    /// The client gets this instead of the response.
    Replaced(Box<Reply>),
    Failed {
        error: ProxyError,
        repeatable: bool,
    },
}

impl Attempt {
    fn failed(error: ProxyError) -> Self {
        Self::Failed { error, repeatable: false }
    }
}

/// What the tries of one request have in common.
struct Attempts<'a> {
    forwarding: &'a Forwarding,
    begun: Instant,
    tries: u32,
    tried: Vec<Arc<Peer>>,
    peer: Option<Arc<Peer>>,
    stale: u32,
    answered: Option<Instant>,
    body_bytes: u64,
    response_begun: bool,
    quiet: bool,
    /// What the cache makes of the response.
    fetch: Option<Box<Fetch>>,
}

/// How often a kept connection may turn out to be closed before that counts as a try.
const STALE_MAX: u32 = 8;

impl<'a> Attempts<'a> {
    fn new(forwarding: &'a Forwarding, begun: Instant) -> Self {
        Self {
            forwarding,
            begun,
            tries: 0,
            tried: Vec::new(),
            peer: None,
            stale: 0,
            answered: None,
            body_bytes: 0,
            response_begun: false,
            quiet: false,
            fetch: None,
        }
    }

    /// The statuses to try again on, as long as there are tries left.
    fn retry_statuses(&self) -> Option<RetryOn> {
        let retry = &self.forwarding.route.route.policy.retry;
        (self.tries < u32::from(retry.tries)).then_some(retry.on)
    }

    fn report(&self, peer: &Peer, failed: bool) {
        let upstream = &self.forwarding.upstream;
        if failed {
            let now = clock::nanos(Instant::now());
            upstream.balancer.report(peer, true, &upstream.settings().outlier, now);
        } else {
            upstream.balancer.succeeded(peer);
        }
    }

    /// A kept connection was closed: the endpoint has not been tried yet.
    fn stale_again(&mut self) {
        if self.stale < STALE_MAX {
            self.stale += 1;
            self.tries -= 1;
            self.peer = None;
        }
    }

    /// Whether the request may be sent once more after this failure, by safety, policy and budget.
    fn may_try_again(&mut self, method: &Method, error: &ProxyError) -> bool {
        let retry = &self.forwarding.route.route.policy.retry;
        let safe = match error.retry {
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
        let Some(peer) = self.peer.take() else {
            // Only a stale connection: the same endpoint again, at no cost.
            return true;
        };
        self.tried.push(peer);
        self.forwarding.upstream.budget.withdraw(clock::nanos(Instant::now()))
    }

    fn observe(
        &self,
        proxy: &HttpProxy,
        request: &RequestHead,
        status: StatusCode,
        error: Option<ErrorKind>,
    ) {
        if self.quiet {
            return;
        }
        let outcome = Outcome {
            route: Some(&self.forwarding.route),
            endpoint: self.peer.as_ref().map(|peer| peer.address()),
            tries: self.tries,
            upstream: self.answered.map(|at| at.saturating_duration_since(self.begun)),
            body_bytes: self.body_bytes,
            status,
            error,
            ..blank(self.begun)
        };
        proxy.observe(request, &outcome);
    }
}

fn blank(begun: Instant) -> Outcome<'static> {
    Outcome {
        status: StatusCode::OK,
        route: None,
        endpoint: None,
        tries: 0,
        duration: begun.elapsed(),
        upstream: None,
        body_bytes: 0,
        error: None,
    }
}

/// Decides about the head of a response.
struct Responding<'a> {
    forwarding: &'a Forwarding,
    flight: &'a Flight,
    retry_on: Option<RetryOn>,
    answered: Option<Instant>,
    /// Asks the cache what to make of the response.
    fetch: &'a mut Option<Box<Fetch>>,
    /// Keeps the response.
    writer: Option<Box<Writer>>,
    /// What the client gets instead of the response.
    instead: Option<Reply>,
}

impl Respond for Responding<'_> {
    fn refuses(&mut self, response: &ResponseHead) -> bool {
        let now = Instant::now();
        self.answered = Some(now);
        self.flight.answered(clock::nanos(now));
        self.retry_on.is_some_and(|on| on.status(response.status.as_u16()))
    }

    fn replaces(&mut self, response: &mut ResponseHead) -> bool {
        let Some(fetch) = self.fetch.take() else { return false };
        match fetch.response(response, Moment::now()) {
            Answer::Forward(writer) => self.writer = writer,
            Answer::Serve(reply) => self.instead = Some(reply),
        }
        self.instead.is_some()
    }

    fn body(&mut self, data: &[u8]) {
        if let Some(writer) = &mut self.writer {
            writer.push(data);
        }
    }

    fn body_end(&mut self) {
        if let Some(writer) = self.writer.take() {
            writer.finish(Moment::now());
        }
    }

    fn edit(&mut self, request: &RequestHead, response: &mut ResponseHead) {
        self.forwarding.edit_response(request, response, self.flight.peer());
    }
}
