//! A client's connection, request after request.

use std::cell::RefCell;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Method, StatusCode, Version};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

use super::buffer::{Buffer, poll_write_from};
use super::parse::{self, BodyLength, RequestFraming};
use super::relay::{Bounds, Client, End, Exchange, Relay, Respond};
use super::streamed::{self, Pump};
use super::timer::{Timer, after};
use super::tunnel;
use super::write::{self, ResponseForm};
use crate::balance::peer::Flight;
use crate::clock;
use crate::error::{ErrorKind, ProxyError, Side};
use crate::head::{ClientInfo, RequestHead, ResponseHead, Scheme};
use crate::idle::Idle;
use crate::pace::{Pace, paced};
use crate::proxy::attempts::Attempts;
use crate::proxy::forward::{Failed, Wire};
use crate::proxy::hints::Hints;
use crate::proxy::{Decision, Forwarding, HttpProxy, Outcome};
use crate::reply::Reply;
use crate::table::RetryOn;
use crate::tls::Rewind;
use crate::upstream::connect::Io;

/// How much a client that was refused may still send before it is cut off: closing while bytes
/// arrive would take our answer away from it. More if they are a body's, less if they are anything.
const LINGER_BODY_BYTES_MAX: usize = 64 << 20;
const LINGER_BYTES_MAX: usize = 256 << 10;
const LINGER: Duration = Duration::from_secs(10);
/// How long it may be silent meanwhile.
const LINGER_IDLE: Duration = Duration::from_secs(2);

/// How many exchanges a thread keeps, and how large their output may be.
const SPARES_MAX: usize = 256;
const SPARE_BYTES_MAX: usize = 64 << 10;

thread_local! {
    // Boxed, because they move between connections and the list.
    #[allow(clippy::vec_box)]
    static SPARES: RefCell<Vec<Box<Exchange>>> = const { RefCell::new(Vec::new()) };
}

/// Heads and memory for a request, that others have used before.
pub(crate) fn take_exchange(client: &ClientInfo, scheme: Scheme) -> Box<Exchange> {
    let mut exchange = SPARES.with_borrow_mut(Vec::pop).unwrap_or_default();
    // Whatever comes of reading the next head, nothing of another client's may be left.
    exchange.request.clear();
    exchange.request.client.clone_from(client);
    exchange.request.scheme = scheme;
    exchange
}

/// Keeps them for the next one.
pub(crate) fn give_back(mut exchange: Box<Exchange>) {
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

/// Says when to stop: after the request that runs, or after one more if none does.
pub type Stop = tokio::sync::watch::Receiver<bool>;

/// Ready when the proxy stops.
async fn until_stopped(mut stop: Stop) {
    if stop.wait_for(|stop| *stop).await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// Serves a connection until either side closes it.
pub async fn serve<S: Io>(
    proxy: Arc<HttpProxy>,
    io: S,
    info: ClientInfo,
    scheme: Scheme,
    stop: Stop,
) {
    Connection::new(proxy, io, &[], info, scheme, stop).serve().await;
}

/// A client's connection.
pub(crate) struct Connection<S> {
    proxy: Arc<HttpProxy>,
    client: Client<S>,
    info: ClientInfo,
    scheme: Scheme,
    stop: Stop,
    /// Wakes us when the proxy stops; made when first waited for, and then kept: to join and leave the
    /// list of those who wait would cost more for each request.
    stopped: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    /// When the last request ended, if it is known.
    ended: Option<Instant>,
    /// A request was served: between two the connection may have to give way.
    kept: bool,
    /// Made when first waited for another request.
    idle: Option<Idle>,
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
    /// A connection of which `first` was read.
    pub(crate) fn new(
        proxy: Arc<HttpProxy>,
        io: S,
        first: &[u8],
        info: ClientInfo,
        scheme: Scheme,
        stop: Stop,
    ) -> Self {
        let buffer = if first.is_empty() { Buffer::default() } else { Buffer::holding(first) };
        // The first request of a connection is expected as soon as a head.
        let timer = Timer::new(after(Instant::now(), proxy.settings().timeouts.head));
        let client = Client { io, buffer, timer };
        Self {
            proxy,
            client,
            info,
            scheme,
            stop,
            stopped: None,
            ended: None,
            kept: false,
            idle: None,
        }
    }

    /// Whether the client's first bytes are these; `None` if too few came to tell.
    pub(crate) async fn begins_with(&mut self, bytes: &[u8]) -> Option<bool> {
        let room = self.proxy.settings().limits.head_bytes_max;
        loop {
            let first = self.client.buffer.filled();
            if first.starts_with(bytes) {
                return Some(true);
            }
            if !bytes.starts_with(first) {
                return Some(false);
            }
            match self.fill(room, first.is_empty()).await {
                Ok(Some(count)) if count > 0 => {}
                _ => return None,
            }
        }
    }

    /// The connection, from its first byte that was not used.
    pub(crate) fn into_io(self) -> Rewind<S> {
        Rewind::with(Bytes::copy_from_slice(self.client.buffer.filled()), self.client.io)
    }

    /// Serves it until either side closes it.
    pub(crate) async fn serve(mut self) {
        while self.serve_one().await {}
    }

    /// Serves one request; whether another may follow.
    async fn serve_one(&mut self) -> bool {
        let length = match self.wait_for_head().await {
            Waited::Head(length) => length,
            Waited::Over => return false,
            Waited::Refused(kind) => {
                Box::pin(self.refuse_unread(kind)).await;
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
                parse::request_line(head, limits, &mut exchange.request);
                self.observe_error(&exchange.request, kind, begun);
                Box::pin(self.refuse(kind, None)).await;
                false
            }
        };
        give_back(exchange);
        if stays {
            self.kept = true;
            self.client.buffer.release();
            let keep_alive = self.proxy.settings().timeouts.keep_alive;
            let now = self.ended.take().unwrap_or_else(Instant::now);
            self.client.timer.set(after(now, keep_alive));
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
            }
            let idle = bytes.is_empty();
            match self.fill(limits.head_bytes_max, idle).await {
                Ok(Some(count)) if count > 0 => {}
                Ok(None) if !idle => return Waited::Refused(ErrorKind::RequestTimeout),
                Ok(_) | Err(_) => return Waited::Over,
            }
        }
    }

    /// Reads more; `None` if the deadline passed.
    async fn fill(&mut self, room: usize, idle: bool) -> io::Result<Option<usize>> {
        let leaving = self.proxy.settings().timeouts.leaving;
        let Client { io, buffer, timer } = &mut self.client;
        let (stop, stopped) = (&self.stop, &mut self.stopped);
        let (proxy, kept, seat) = (&self.proxy, self.kept && idle, &mut self.idle);
        std::future::poll_fn(|cx| {
            use std::task::Poll;
            if let Poll::Ready(outcome) = buffer.poll_fill(cx, io, room) {
                if let Some(seat) = seat {
                    seat.is_busy();
                }
                return Poll::Ready(outcome.map(Some));
            }
            // When the proxy stops, idle connections have a moment for one more request: it may be under
            // way, and a client that was not told of the end could not know whether it was acted on.
            if idle {
                let waiting = stopped.get_or_insert_with(|| Box::pin(until_stopped(stop.clone())));
                if waiting.as_mut().poll(cx).is_ready() {
                    // Not to be asked again.
                    *waiting = Box::pin(std::future::pending());
                    timer.set_earlier(after(Instant::now(), leaving));
                }
            }
            let gives_way = kept && {
                let seat = seat.get_or_insert_with(|| proxy.idle().enter());
                seat.is_to_leave(timer.at(), cx)
            };
            if gives_way || timer.poll_expired(cx) { Poll::Ready(Ok(None)) } else { Poll::Pending }
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
            let kind = ErrorKind::BadRequest("bytes after an upgrade");
            self.observe_error(&exchange.request, kind, begun);
            self.refuse(kind, Some(&exchange.request)).await;
            return false;
        }
        if framing.names_fields {
            parse::remove_named(&mut exchange.request.headers);
        }
        let length = match framing.body {
            BodyLength::Fixed(length) => Some(length),
            _ => None,
        };
        let mut now = Some(begun);
        let mut decision = self.proxy.decide(&mut exchange.request, length);
        if let Decision::Ask(asking) = decision {
            now = None;
            decision = Box::pin(self.proxy.ask(asking, &mut exchange.request, length)).await;
        }
        if let Decision::Forward(forwarding) = &decision
            && framing.upgrade
            && forwarding.upstream.is_multiplexed()
            && parse::asks_for_websocket(&exchange.request.headers)
        {
            // Without the upgrade the endpoint would be asked for something else than was meant.
            let route = Some(Arc::clone(forwarding.route_held()));
            decision = Decision::Refuse(ErrorKind::NotImplemented, route);
        }
        match decision {
            // Asking decides.
            Decision::Ask(_) => false,
            // HTTP/2 has no such upgrade: whoever may do without it makes a request as any other.
            Decision::Forward(forwarding)
                if forwarding.needs_streams()
                    && (!framing.upgrade || forwarding.upstream.is_multiplexed()) =>
            {
                Box::pin(self.forward_streamed(exchange, framing, &forwarding, begun)).await
            }
            Decision::Forward(forwarding) => {
                let mut state = Attempts::new(&forwarding, begun);
                state.now = now;
                self.forward(exchange, framing, state).await
            }
            Decision::Reply(reply, route) => {
                let reply =
                    self.proxy.with_own_error_page(&exchange.request, reply, route.as_ref());
                let reply = Box::pin(reply).await;
                let status = reply.head.status;
                let stays = self.reply(&exchange.request, framing, reply).await;
                let outcome = Outcome::answered(status, route.as_deref(), begun);
                self.proxy.observe(&exchange.request, &outcome);
                stays
            }
            Decision::Refuse(kind, route) => {
                let reply = Reply::error(kind, Some(&exchange.request));
                let reply =
                    self.proxy.with_own_error_page(&exchange.request, reply, route.as_ref());
                let reply = Box::pin(reply).await;
                let stays = self.reply(&exchange.request, framing, reply).await;
                let outcome = Outcome::refused(kind, route.as_deref(), begun);
                self.proxy.observe(&exchange.request, &outcome);
                stays
            }
        }
    }

    fn observe_error(&self, request: &RequestHead, kind: ErrorKind, begun: Instant) {
        self.proxy.observe(request, &Outcome::refused(kind, None, begun));
    }

    /// Refuses what never became a whole head: of it the first line is known, if anything is.
    async fn refuse_unread(&mut self, kind: ErrorKind) {
        let begun = Instant::now();
        let mut exchange = take_exchange(&self.info, self.scheme);
        let limits = &self.proxy.settings().limits;
        parse::request_line(self.client.buffer.filled(), limits, &mut exchange.request);
        self.observe_error(&exchange.request, kind, begun);
        give_back(exchange);
        self.refuse(kind, None).await;
    }

    /// Answers with an error and closes.
    async fn refuse(&mut self, kind: ErrorKind, request: Option<&RequestHead>) {
        self.refuse_with(Reply::error(kind, request), request).await;
    }

    /// Answers and closes.
    async fn refuse_with(&mut self, reply: Reply, request: Option<&RequestHead>) {
        let head_only = request.is_some_and(|request| request.method == Method::HEAD);
        if self.send(reply, head_only, false, false).await.is_ok() {
            let known = request.is_some();
            let bytes_max = if known { LINGER_BODY_BYTES_MAX } else { LINGER_BYTES_MAX };
            Box::pin(self.linger(bytes_max)).await;
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
        let stays = framing.keep_alive
            && !reply.close
            && framing.body == BodyLength::None
            && !*self.stop.borrow();
        let head_only = request.method == Method::HEAD;
        let sent = self.send(reply, head_only, stays, old).await;
        if sent.is_ok() && !stays {
            Box::pin(self.linger(LINGER_BODY_BYTES_MAX)).await;
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

    /// Closes our direction and reads on for a moment, so that the answer is not lost. To be boxed: or
    /// every connection has room for what is read.
    async fn linger(&mut self, bytes_max: usize) {
        let io = &mut self.client.io;
        let read = async {
            if io.shutdown().await.is_err() {
                return;
            }
            let mut left = bytes_max;
            let mut waste = vec![0; 8 << 10];
            while let Ok(Ok(count)) = timeout(LINGER_IDLE, io.read(&mut waste)).await {
                if count == 0 || count > left {
                    return;
                }
                left -= count;
            }
        };
        let _ = timeout(LINGER, read).await;
    }

    /// Brings a request to an endpoint and the response back, in as many tries as it may take.
    async fn forward(
        &mut self,
        exchange: &mut Exchange,
        framing: RequestFraming,
        mut state: Attempts<'_>,
    ) -> bool {
        let mut relayed = Relayed { connection: self, exchange, framing, mark: None };
        let outcome = HttpProxy::forward_request(&mut relayed, &mut state).await;
        let error = match outcome {
            Ok(stays) => {
                state.observe(&self.proxy, &exchange.request, exchange.response.status, None);
                self.ended = state.ended;
                if !stays && framing.body != BodyLength::None {
                    // The endpoint may have answered before all of the body was here.
                    self.linger(LINGER_BODY_BYTES_MAX).await;
                }
                return stays;
            }
            Err(error) => {
                tracing::debug!(%error, source = ?error.source, "a request failed");
                state.observe(&self.proxy, &exchange.request, error.status(), Some(error.kind));
                error
            }
        };
        if state.response_begun || error.kind == ErrorKind::ClientGone {
            return false;
        }
        let reply = Reply::error(error.kind, Some(&exchange.request));
        let reply = state.forwarding.route.filters.edit_own(&exchange.request, reply);
        if error.side() == Side::Client {
            self.refuse_with(reply, Some(&exchange.request)).await;
            return false;
        }
        self.reply(&exchange.request, framing, reply).await
    }

    /// As [`forward`](Self::forward), with bodies as streams.
    async fn forward_streamed(
        &mut self,
        exchange: &mut Exchange,
        framing: RequestFraming,
        forwarding: &Forwarding,
        begun: Instant,
    ) -> bool {
        let policy = &forwarding.route.route.policy;
        let hints = Hints::default();
        let mut attempts = Attempts::new(forwarding, begun);
        attempts.hints = (exchange.request.version != Version::HTTP_10).then_some(&hints);
        let (mut pump, body) = Pump::new(framing, policy.body_bytes_max);
        let request = &exchange.request;
        let pace = Pace::new(self.proxy.settings().body_bytes_per_s_min, request);
        let (body, answered) = paced(body, pace);
        let answer = self.proxy.respond(request, body, &mut attempts);
        let answer = streamed::with_body(&mut self.client, &mut pump, &hints, answer).await;
        let error = match answer {
            Ok(response) => {
                answered.set();
                let status = response.0.status;
                let keep_alive = framing.keep_alive && !*self.stop.borrow();
                let framing = RequestFraming { keep_alive, ..framing };
                let sending = streamed::send(
                    &mut self.client,
                    &mut pump,
                    request,
                    framing,
                    response,
                    &policy.timeouts,
                );
                let sent = sending.await;
                attempts.body_bytes = sent.as_ref().map_or(0, |sent| sent.body_bytes);
                let error = sent.as_ref().err().map(|error| error.kind);
                attempts.observe(&self.proxy, request, status, error);
                if sent.is_ok() && !pump.whole {
                    self.linger(LINGER_BODY_BYTES_MAX).await;
                }
                let stays = sent.is_ok_and(|sent| sent.stays && pump.whole);
                return stays;
            }
            Err(error) => error,
        };
        // The client's own fault is the better reason.
        let kind = pump.fault.unwrap_or(error.kind);
        attempts.observe(&self.proxy, request, kind.status(), Some(kind));
        if kind == ErrorKind::ClientGone {
            return false;
        }
        let mut reply = Reply::error(kind, Some(request));
        if kind.side() == Side::Client {
            let route = Some(forwarding.route_held());
            reply = Box::pin(self.proxy.with_own_error_page(request, reply, route)).await;
        } else {
            reply = forwarding.route.filters.edit_own(request, reply);
        }
        if kind.side() == Side::Client || !pump.whole {
            self.refuse_with(reply, Some(request)).await;
            return false;
        }
        self.reply(request, RequestFraming { body: BodyLength::None, ..framing }, reply).await
    }

    /// One try.
    async fn attempt(
        &mut self,
        exchange: &mut Exchange,
        framing: RequestFraming,
        state: &mut Attempts<'_>,
    ) -> Result<bool, Failed> {
        let forwarding = state.forwarding;
        let upstream = &forwarding.upstream;
        let Some(peer) = state.select() else {
            return Err(never(ErrorKind::NoEndpoint));
        };
        let policy = &forwarding.route.route.policy;
        let overall = policy.timeouts.request.map(|time| after(state.begun, time));
        state.ended = None;
        let begun = state.now.take().unwrap_or_else(Instant::now);
        let flight = Flight::begin(peer.clone(), clock::nanos(begun));
        let connection = if let Some(connection) = upstream.reuse(&peer, &exchange.request) {
            Ok(connection)
        } else {
            let within = policy.timeouts.connect;
            Box::pin(upstream.connect_for(&peer, within, &exchange.request)).await
        };
        let mut connection = match connection {
            Ok(connection) => connection,
            Err(error) => {
                state.failed(&peer, &error, false);
                return Err(Failed { error, whole: true });
            }
        };
        let reused = connection.reused;
        let Ok((stream, timer)) = connection.parts() else {
            return Err(never(ErrorKind::Internal("a connection without a stream")));
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
            stop: &self.stop,
            flight: &flight,
            retry_on: state.retry_statuses(&exchange.request.method),
            retry_until: state.retry_until(),
            answered: None,
        };
        let mut relay = Relay::new(
            &mut self.client,
            stream,
            exchange,
            &mut respond,
            framing,
            Bounds {
                policy,
                timer,
                begun: if reused { begun } else { Instant::now() },
                overall,
                body_bytes_per_s_min: self.proxy.settings().body_bytes_per_s_min,
            },
        );
        let end = relay.run().await;
        let whole = relay.can_repeat();
        let body_bytes = relay.body_bytes;
        let response_begun = relay.begun;
        let rest = std::mem::take(&mut relay.from_upstream);
        drop(relay);
        state.answered = respond.answered;
        state.body_bytes = body_bytes;
        state.response_begun = response_begun;
        let ended = Instant::now();
        state.ended = Some(ended);
        match end {
            Ok(End::Done { client_stays, upstream_stays }) => {
                state.report_answer(&peer, &exchange.response);
                if upstream_stays {
                    connection.keep(&peer, ended);
                }
                Ok(client_stays)
            }
            Ok(End::Upgraded) => {
                state.report(&peer, false);
                let idle = policy.timeouts.idle;
                let head = std::mem::take(&mut exchange.to_client);
                Box::pin(upgrade(&mut self.client.io, stream, &head, rest, idle)).await;
                state.ended = None;
                Ok(false)
            }
            Ok(End::Refused { upstream_stays }) => {
                // Another endpoint is asked, but this one did answer.
                state.report_answer(&peer, &exchange.response);
                if upstream_stays {
                    connection.keep(&peer, ended);
                }
                let error = ProxyError::idempotent(ErrorKind::BadResponse(
                    "refused by the route's retry policy",
                ));
                Err(Failed { error, whole })
            }
            Err(error) => {
                state.failed(&peer, &error, reused);
                Err(Failed { error, whole })
            }
        }
    }
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
    if let Ok(Ok(())) = timeout(idle, sent).await {
        let ended = tunnel::run(client, upstream, rest, idle).await;
        tracing::trace!(?ended, "an upgraded connection is over");
    }
}

/// A failure after which nothing is tried again.
fn never(kind: ErrorKind) -> Failed {
    Failed { error: kind.into(), whole: false }
}

/// A request whose bytes are passed on as they come.
struct Relayed<'a, S> {
    connection: &'a mut Connection<S>,
    exchange: &'a mut Exchange,
    framing: RequestFraming,
    /// Where the body began, once it was tried.
    mark: Option<usize>,
}

impl<S: Io> Wire for Relayed<'_, S> {
    /// Whether the connection stays.
    type Answer = bool;

    fn method(&self) -> &Method {
        &self.exchange.request.method
    }

    async fn attempt(&mut self, attempts: &mut Attempts<'_>) -> Result<bool, Failed> {
        let buffer = &mut self.connection.client.buffer;
        match self.mark {
            Some(mark) => buffer.rewind(mark),
            None => self.mark = Some(buffer.mark()),
        }
        self.connection.attempt(self.exchange, self.framing, attempts).await
    }
}

/// Decides about the head of a response.
struct Responding<'a> {
    forwarding: &'a Forwarding,
    stop: &'a Stop,
    flight: &'a Flight,
    retry_on: Option<RetryOn>,
    retry_until: Option<Instant>,
    answered: Option<Instant>,
}

impl Respond for Responding<'_> {
    fn refuses(&mut self, response: &ResponseHead) -> bool {
        let now = Instant::now();
        self.answered = Some(now);
        self.flight.answered(clock::nanos(now));
        self.retry_on.is_some_and(|on| on.status(response.status.as_u16()))
            && self.retry_until.is_none_or(|until| now < until)
    }

    fn edit(&mut self, request: &RequestHead, response: &mut ResponseHead) {
        self.forwarding.edit_response(request, response, self.flight.peer());
    }

    fn keeps(&self) -> bool {
        !*self.stop.borrow()
    }
}
