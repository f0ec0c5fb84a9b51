//! A client's HTTP/2 connection.

use std::future::Future;
use std::ops::DerefMut;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::stream::{FuturesUnordered, Stream as _};
use h2::server::{Connection, SendResponse};
use h2::{Reason, RecvStream, SendStream};
use http::{Method, Request, StatusCode};
use http_body::{Body as _, Frame};
use http_body_util::BodyExt as _;

use super::convert::{self, trailers_of};
use super::grpc;
use super::guard::{Guard, Leaving};
use super::incoming::ClientBody;
use super::tunnel::Tunnel;
use super::upgrade::{self, Way};
use crate::body::{self, Body};
use crate::error::{ErrorKind, ProxyError, Side};
use crate::h1::buffer::Buffer;
use crate::h1::serve::{Stop, give_back, take_exchange};
use crate::h1::timer::{Timer, after};
use crate::h1::tunnel;
use crate::head::{ClientInfo, Known, RequestHead, ResponseHead, Scheme};
use crate::idle::Idle;
use crate::pace::{Answered, Pace, paced};
use crate::proxy::attempts::Attempts;
use crate::proxy::hints::Hints;
use crate::proxy::{Decision, HttpProxy, Outcome};
use crate::reply::Reply;
use crate::upstream::connect::Io;

/// Streams of one client at once.
const STREAMS_MAX: u32 = 128;
/// How much a client may send ahead, per stream and per connection.
const WINDOW_BYTES: u32 = 128 << 10;
const CONNECTION_WINDOW_BYTES: u32 = 1 << 20;
/// How much is held for a client that does not read, per stream.
const SEND_BUFFER_BYTES: usize = 128 << 10;
/// How much of a response's end is given to a client's stream without asking for its window: no more
/// than the request's own memory, and it goes with the connection.
const HELD_BYTES_MAX: usize = 4 << 10;
/// Streams that are over and may still be spoken of.
const RESET_STREAMS_MAX: usize = 64;
/// How often a client may break our rules before it is sent away.
const LOCAL_RESETS_MAX: usize = 256;
/// How many requests a client may take back, beyond one in two: whoever does more does nothing else.
const TAKEN_BACK_MAX: u32 = 200;

/// How long a client that has said GOAWAY is waited for, when nothing of its runs any more.
const LEAVING_IDLE: Duration = Duration::from_secs(1);

/// How long a client may take to read that its connection is at an end, when others need its place.
const GIVING_WAY_TIME_MAX: Duration = Duration::from_secs(1);

/// Serves a connection until either side closes it. `io` begins with the client's preface.
pub async fn serve<S: Io>(
    proxy: Arc<HttpProxy>,
    io: S,
    info: ClientInfo,
    scheme: Scheme,
    mut stop: Stop,
) {
    let settings = proxy.settings();
    let leaving = Leaving::default();
    let handshake = h2::server::Builder::new()
        .max_concurrent_streams(STREAMS_MAX)
        .initial_window_size(WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_header_list_size(settings.limits.head_bytes_max as u32)
        .max_send_buffer_size(SEND_BUFFER_BYTES)
        .max_concurrent_reset_streams(RESET_STREAMS_MAX)
        .max_local_error_reset_streams(Some(LOCAL_RESETS_MAX))
        .enable_connect_protocol()
        .handshake::<_, Bytes>(Guard::new(io, Arc::clone(&leaving)));
    let Ok(Ok(connection)) = tokio::time::timeout(settings.timeouts.head, handshake).await else {
        return;
    };
    let idle = settings.timeouts.keep_alive;
    let session = Arc::new(Session { proxy, info, scheme, taken_back: AtomicU32::new(0) });
    let mut running = Running {
        seat: session.proxy.idle().enter(),
        connection,
        streams: FuturesUnordered::new(),
        session,
        begun: 0,
        timer: Timer::new(after(Instant::now(), idle)),
        idle,
        leaving,
        closing: false,
    };
    let mut stopped = std::pin::pin!(async move {
        if stop.wait_for(|stop| *stop).await.is_err() {
            std::future::pending::<()>().await;
        }
    });
    let mut draining = false;
    std::future::poll_fn(|cx| {
        if !draining && stopped.as_mut().poll(cx).is_ready() {
            draining = true;
            running.connection.graceful_shutdown();
        }
        running.poll(cx)
    })
    .await;
}

/// What the streams of a connection share.
struct Session {
    proxy: Arc<HttpProxy>,
    info: ClientInfo,
    scheme: Scheme,
    /// Requests that the client took back before they were answered.
    taken_back: AtomicU32,
}

type StreamTask = Pin<Box<dyn Future<Output = ()> + Send>>;

struct Running<S> {
    connection: Connection<S, Bytes>,
    streams: FuturesUnordered<StreamTask>,
    session: Arc<Session>,
    begun: u32,
    timer: Timer,
    idle: Duration,
    leaving: Leaving,
    closing: bool,
    seat: Idle,
}

impl<S: Io> Running<S> {
    /// Drives the connection and its streams; ready when it is over.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            let mut progress = false;
            // Answers first: what they write goes out with the connection's turn that follows.
            while let Poll::Ready(Some(())) = Pin::new(&mut self.streams).poll_next(cx) {
                progress = true;
            }
            match self.connection.poll_accept(cx) {
                Poll::Ready(Some(Ok((request, respond)))) => {
                    self.begun = self.begun.saturating_add(1);
                    let task = handle(Arc::clone(&self.session), request, respond);
                    self.streams.push(Box::pin(task));
                    progress = true;
                }
                Poll::Ready(Some(Err(error))) => {
                    tracing::debug!(%error, "an HTTP/2 connection failed");
                    return Poll::Ready(());
                }
                Poll::Ready(None) => return Poll::Ready(()),
                Poll::Pending => {}
            }
            if !self.closing && self.takes_back_too_much() {
                self.closing = true;
                self.connection.abrupt_shutdown(Reason::ENHANCE_YOUR_CALM);
                progress = true;
            }
            if self.idle > LEAVING_IDLE && self.leaving.load(Relaxed) {
                self.idle = LEAVING_IDLE;
                progress = true;
            }
            if progress {
                self.seat.is_busy();
                self.timer.set(after(Instant::now(), self.idle));
                continue;
            }
            if self.streams.is_empty() && self.timer.poll_expired(cx) {
                if self.closing {
                    // It had its time to end by itself.
                    return Poll::Ready(());
                }
                self.closing = true;
                self.connection.graceful_shutdown();
                self.timer.set(after(Instant::now(), Duration::from_secs(5)));
                continue;
            }
            if self.streams.is_empty()
                && !self.closing
                && self.seat.is_to_leave(self.timer.at(), cx)
            {
                // Others need its place.
                self.closing = true;
                self.connection.abrupt_shutdown(Reason::NO_ERROR);
                self.timer.set(after(Instant::now(), GIVING_WAY_TIME_MAX));
                continue;
            }
            return Poll::Pending;
        }
    }

    /// Whether the client does little else than to ask and to take back.
    fn takes_back_too_much(&self) -> bool {
        let taken_back = self.session.taken_back.load(Relaxed);
        taken_back > TAKEN_BACK_MAX && taken_back > self.begun / 2
    }
}

/// Serves one request. What it came as is read before it becomes a task: each stream has room for as
/// little as can be.
fn handle(
    session: Arc<Session>,
    request: Request<RecvStream>,
    mut respond: SendResponse<Bytes>,
) -> impl Future<Output = ()> + Send {
    let begun = Instant::now();
    let (parts, receive) = request.into_parts();
    let mut exchange = take_exchange(&session.info, session.scheme);
    let head = &mut exchange.request;
    let websocket = convert::is_websocket(&parts);
    let read = convert::request_head(&parts, &session.proxy.settings().limits, head);
    let read = read.and_then(|()| match (head.method == Method::CONNECT, websocket) {
        (true, false) => Err(ErrorKind::NotImplemented),
        (true, true) => {
            ask_for_websocket(head);
            Ok(())
        }
        (false, _) => Ok(()),
    });
    let length = head.headers.get_known_str(Known::ContentLength);
    let length = length.and_then(|text| text.parse().ok());
    let (body, rest) = ClientBody::new(receive, length);
    async move {
        let head = &mut exchange.request;
        let came = Came { begun, websocket, length, read };
        let may_read_on = answer(&session, head, body, &mut respond, came).await;
        give_back(exchange);
        if may_read_on {
            // To be answered early must not look like a failure.
            rest.drain().await;
        }
    }
}

/// What is known of a request beside its head.
struct Came {
    begun: Instant,
    websocket: bool,
    length: Option<u64>,
    read: Result<(), ErrorKind>,
}

/// Answers one request; whether what is left of its body may then be read.
async fn answer(
    session: &Session,
    head: &mut RequestHead,
    body: ClientBody,
    respond: &mut SendResponse<Bytes>,
    came: Came,
) -> bool {
    let Came { begun, websocket, length, read } = came;
    let proxy = &session.proxy;
    let mut now = Some(begun);
    let mut stream = Answering { respond, session, sent: None, body_bytes: 0 };
    if let Err(kind @ ErrorKind::BadRequest(_)) = read {
        // Malformed, as RFC 9113 has it: an error of the stream.
        stream.respond.send_reset(Reason::PROTOCOL_ERROR);
        observe_error(proxy, head, kind, begun);
        return false;
    }
    if let Err(kind) = read {
        stream.refuse(head, kind).await;
        observe_error(proxy, head, kind, begun);
        return true;
    }
    if head.headers.contains(Known::Expect) {
        // Without an answer to it the body never comes.
        head.headers.remove_known(Known::Expect);
        let mut go_on = http::Response::new(());
        *go_on.status_mut() = StatusCode::CONTINUE;
        let _ = stream.respond.send_informational(go_on);
    }
    let mut decision = proxy.decide(head, length);
    if let Decision::Ask(asking) = decision {
        now = None;
        let asked = Box::pin(proxy.ask(asking, head, length));
        let Some(asked) = stream.unless_reset(asked).await else {
            observe_error(proxy, head, ErrorKind::ClientGone, begun);
            return false;
        };
        decision = asked;
    }
    match decision {
        Decision::Forward(forwarding) => {
            let hints = Hints::default();
            let mut state = Attempts::new(&forwarding, begun);
            (state.now, state.hints) = (now, Some(&hints));
            forward(&mut stream, head, body, websocket, state).await;
        }
        Decision::Reply(reply, route) => {
            let reply = Box::pin(proxy.with_own_error_page(head, reply, route.as_ref())).await;
            let status = reply.head.status;
            Box::pin(stream.reply(head, reply)).await;
            proxy.observe(head, &Outcome::answered(status, route.as_deref(), begun));
        }
        Decision::Refuse(kind, route) => {
            let reply = Reply::error(kind, Some(head));
            let reply = Box::pin(proxy.with_own_error_page(head, reply, route.as_ref())).await;
            Box::pin(stream.reply(head, reply)).await;
            proxy.observe(head, &Outcome::refused(kind, route.as_deref(), begun));
        }
        Decision::Ask(_) => {}
    }
    true
}

fn observe_error(proxy: &HttpProxy, head: &RequestHead, kind: ErrorKind, begun: Instant) {
    proxy.observe(head, &Outcome::refused(kind, None, begun));
}

/// Makes an extended CONNECT the upgrade that HTTP/1.1 endpoints understand.
fn ask_for_websocket(head: &mut RequestHead) {
    head.method = Method::GET;
    head.headers.remove_known(Known::SecWebsocketKey);
    let key = [crate::clock::chance().to_be_bytes(), crate::clock::chance().to_be_bytes()].concat();
    let key = base64::Engine::encode(&base64::engine::general_purpose::STANDARD, key);
    head.headers.push_known(Known::SecWebsocketKey, key);
    head.headers.push_known(Known::Upgrade, "websocket");
}

async fn forward(
    stream: &mut Answering<'_>,
    head: &RequestHead,
    body: ClientBody,
    websocket: bool,
    mut state: Attempts<'_>,
) {
    let proxy = &stream.session.proxy;
    let forwarding = state.forwarding;
    let idle = forwarding.route.route.policy.timeouts.idle;
    let (status, error) = if websocket {
        Box::pin(open_websocket(stream, head, body, &mut state, idle)).await
    } else {
        let (body, answered) = if body.is_end_stream() {
            (body::empty(), Answered::default())
        } else {
            let pace = Pace::new(proxy.settings().body_bytes_per_s_min, head);
            paced(body.boxed_unsync(), pace)
        };
        let hints = state.hints;
        let asked = std::pin::pin!(proxy.respond(head, body, &mut state));
        match stream.unless_reset_hinting(asked, hints).await {
            None => (ErrorKind::ClientGone.status(), Some(ErrorKind::ClientGone)),
            Some(Err(error)) => {
                let mut reply = Reply::error(error.kind, Some(head));
                if error.side() == Side::Client {
                    let route = Some(forwarding.route_held());
                    reply = Box::pin(proxy.with_own_error_page(head, reply, route)).await;
                } else {
                    reply = forwarding.route.filters.edit_own(head, reply);
                }
                Box::pin(stream.reply(head, reply)).await;
                (error.status(), Some(error.kind))
            }
            Some(Ok((response, body))) => {
                answered.set();
                let sent = stream.pass_on(head, &response, body, idle).await;
                (response.status, sent.err())
            }
        }
    };
    state.body_bytes = stream.body_bytes;
    state.observe(proxy, head, status, error);
}

async fn open_websocket(
    stream: &mut Answering<'_>,
    head: &RequestHead,
    body: ClientBody,
    state: &mut Attempts<'_>,
    idle: Duration,
) -> (StatusCode, Option<ErrorKind>) {
    let forwarding = state.forwarding;
    let opened = std::pin::pin!(upgrade::open(head, state));
    let opened = match stream.unless_reset(opened).await {
        None => return (ErrorKind::ClientGone.status(), Some(ErrorKind::ClientGone)),
        Some(Err(error)) => {
            let reply = Reply::error(error.kind, Some(head));
            let reply = forwarding.route.filters.edit_own(head, reply);
            Box::pin(stream.reply(head, reply)).await;
            return (error.status(), Some(error.kind));
        }
        Some(Ok(opened)) => opened,
    };
    let status = opened.head.status;
    let mut upstream = match opened.way {
        Way::Tunnel(upstream) => upstream,
        Way::Refused(refusal) => {
            let sent = stream.pass_on(head, &opened.head, refusal, idle).await;
            return (status, sent.err());
        }
    };
    let mut answer = ResponseHead::new(StatusCode::OK);
    for field in opened.head.headers.iter() {
        // The key was ours, and so is the proof that it was read.
        if !field.known.is_hop_by_hop() && field.known != Known::SecWebsocketAccept {
            answer.headers.push(field.name, field.value);
        }
    }
    let Ok(send) = stream.respond.send_response(convert::response(&answer), false) else {
        return (status, Some(ErrorKind::ClientGone));
    };
    let Some(receive) = body.into_stream() else { return (status, None) };
    let mut client = Tunnel::new(receive, send);
    let ended = tunnel::run(&mut client, &mut upstream, Buffer::default(), idle).await;
    tracing::trace!(?ended, "a WebSocket over HTTP/2 is over");
    (status, None)
}

/// A stream that is being answered.
struct Answering<'a> {
    respond: &'a mut SendResponse<Bytes>,
    session: &'a Session,
    sent: Option<SendStream<Bytes>>,
    body_bytes: u64,
}

impl Answering<'_> {
    /// Waits, unless the client takes the request back.
    async fn unless_reset<T>(
        &mut self,
        work: Pin<impl DerefMut<Target: Future<Output = T>>>,
    ) -> Option<T> {
        self.unless_reset_hinting(work, None).await
    }

    /// Likewise, and passes interim responses on.
    async fn unless_reset_hinting<T>(
        &mut self,
        mut work: Pin<impl DerefMut<Target: Future<Output = T>>>,
        hints: Option<&Hints>,
    ) -> Option<T> {
        std::future::poll_fn(|cx| {
            let polled = work.as_mut().poll(cx);
            for hint in hints.map(Hints::take).unwrap_or_default() {
                // Whoever cannot take it is told nothing, and answered all the same.
                let _ = self.respond.send_informational(convert::interim(&hint));
            }
            if let Poll::Ready(done) = polled {
                return Poll::Ready(Some(done));
            }
            if self.respond.poll_reset(cx).is_ready() {
                self.session.taken_back.fetch_add(1, Relaxed);
                return Poll::Ready(None);
            }
            Poll::Pending
        })
        .await
    }

    /// Says what is wrong. Boxed: it is seldom, and every request would have to have room for it.
    fn refuse(
        &mut self,
        request: &RequestHead,
        kind: ErrorKind,
    ) -> Pin<Box<impl Future<Output = ()>>> {
        Box::pin(self.reply(request, Reply::error(kind, Some(request))))
    }

    /// Answers by ourselves.
    async fn reply(&mut self, request: &RequestHead, mut reply: Reply) {
        let status = reply.head.status;
        if grpc::is_grpc(request) && (status.is_client_error() || status.is_server_error()) {
            let reason = std::str::from_utf8(&reply.body).unwrap_or_default();
            let head = grpc::error_head(status, reason.trim());
            let _ = self.respond.send_response(convert::response(&head), true);
            return;
        }
        let bodiless = status == StatusCode::NO_CONTENT || status == StatusCode::NOT_MODIFIED;
        if !bodiless {
            reply.head.headers.set("content-length", reply.body.len().to_string());
        }
        let end = bodiless || reply.body.is_empty() || request.method == Method::HEAD;
        let sent = self.respond.send_response(convert::response(&reply.head), end);
        let idle = self.session.proxy.settings().timeouts.head;
        if let (Ok(send), false) = (sent, end) {
            self.sent = Some(send);
            let _ = self.send_data(reply.body, true, idle).await;
        }
    }

    /// Passes a response on, frame by frame.
    async fn pass_on(
        &mut self,
        request: &RequestHead,
        response: &ResponseHead,
        mut body: Body,
        idle: Duration,
    ) -> Result<(), ErrorKind> {
        let end = http_body::Body::is_end_stream(&body);
        let mut converted = convert::response(response);
        if grpc::is_grpc(request) {
            // Its end is told by trailers: should it break off, they must be readable all the same.
            converted.headers_mut().remove(http::header::CONTENT_LENGTH);
        }
        let sent = self.respond.send_response(converted, end);
        let send = sent.map_err(|_| ErrorKind::ClientGone)?;
        if end {
            return Ok(());
        }
        self.sent = Some(send);
        loop {
            let frame = match self.next_frame(&mut body).await? {
                Some(Ok(frame)) => frame,
                None => return self.send_data(Bytes::new(), true, idle).await,
                Some(Err(error)) => {
                    self.break_off(request, &error);
                    return Err(error.kind);
                }
            };
            match frame.into_data() {
                Ok(data) => {
                    let end = http_body::Body::is_end_stream(&body);
                    self.send_data(data, end, idle).await?;
                    if end {
                        return Ok(());
                    }
                }
                Err(frame) => {
                    let trailers = frame.into_trailers().unwrap_or_default();
                    let send = self.sent.as_mut().ok_or(ErrorKind::Internal("no stream"))?;
                    let sent = send.send_trailers(trailers_of(&trailers).to_map());
                    return sent.map_err(|_| ErrorKind::ClientGone);
                }
            }
        }
    }

    /// The next frame of a response, unless the client wants no more of it.
    async fn next_frame(
        &mut self,
        body: &mut Body,
    ) -> Result<Option<Result<Frame<Bytes>, ProxyError>>, ErrorKind> {
        let send = self.sent.as_mut().ok_or(ErrorKind::Internal("no stream"))?;
        std::future::poll_fn(|cx| {
            if let Poll::Ready(frame) = Pin::new(&mut *body).poll_frame(cx) {
                return Poll::Ready(Ok(frame));
            }
            if send.poll_reset(cx).is_ready() {
                self.session.taken_back.fetch_add(1, Relaxed);
                return Poll::Ready(Err(ErrorKind::ClientGone));
            }
            Poll::Pending
        })
        .await
    }

    /// Sends data as the client's windows allow.
    async fn send_data(
        &mut self,
        mut data: Bytes,
        end: bool,
        idle: Duration,
    ) -> Result<(), ErrorKind> {
        let send = self.sent.as_mut().ok_or(ErrorKind::Internal("no stream"))?;
        self.body_bytes += data.len() as u64;
        if data.is_empty() && !end {
            return Ok(());
        }
        if end && data.len() <= HELD_BYTES_MAX {
            // However small the client's window is, that much may wait for it.
            return send.send_data(data, true).map_err(|_| ErrorKind::ClientGone);
        }
        let mut timer = Timer::new(after(Instant::now(), idle));
        while !data.is_empty() {
            send.reserve_capacity(data.len());
            let room = std::future::poll_fn(|cx| match send.poll_capacity(cx) {
                Poll::Pending if timer.poll_expired(cx) => Poll::Ready(None),
                Poll::Pending => Poll::Pending,
                Poll::Ready(room) => Poll::Ready(room.and_then(Result::ok)),
            })
            .await;
            let Some(room) = room else {
                // Gone, or it reads nothing for too long.
                send.send_reset(Reason::CANCEL);
                return Err(ErrorKind::ClientGone);
            };
            timer.set(after(Instant::now(), idle));
            let piece = data.split_to(room.min(data.len()));
            let last = end && data.is_empty();
            send.send_data(piece, last).map_err(|_| ErrorKind::ClientGone)?;
        }
        Ok(())
    }

    /// Ends a response whose endpoint broke off: gRPC clients are told why, others see that it is
    /// not whole.
    fn break_off(&mut self, request: &RequestHead, error: &ProxyError) {
        let Some(send) = &mut self.sent else { return };
        if grpc::is_grpc(request) {
            let trailers = grpc::error_trailers(error.status(), &error.kind.to_string());
            if send.send_trailers(trailers).is_ok() {
                return;
            }
        }
        send.send_reset(Reason::INTERNAL_ERROR);
    }
}
