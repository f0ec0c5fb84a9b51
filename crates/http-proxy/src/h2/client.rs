//! HTTP/2 to endpoints: a few connections, each shared by many requests.
//!
//! Requests beyond what the connections may carry wait, as long and as many as the backend's bounds let
//! them: for a stream of one of these connections, or for a place among all connections of the
//! backend, for which an idle one to whatever endpoint gives way.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed, Ordering::SeqCst};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use bytes::Bytes;
use h2::client::{ResponseFuture, SendRequest};
use h2::{Reason, RecvStream, SendStream};
use http::{Method, StatusCode};
use http_body::{Body as _, Frame, SizeHint};
use http_body_util::BodyExt as _;
use parking_lot::Mutex;
use tokio::sync::{MutexGuard, Notify};

use super::convert::{self, request_trailers_of, trailers_of};
use crate::balance::Peer;
use crate::balance::peer::Flight;
use crate::body::{self, Body};
use crate::clock;
use crate::error::{ErrorKind, ProxyError};
use crate::h1::timer::{Timer, after};
use crate::head::{Known, RequestHead, ResponseHead};
use crate::proxy::hints::Hints;
use crate::table::{Policy, Timeouts};
use crate::upstream::connect::{Manner, Pending};
use crate::upstream::{Connection, Upstream};

/// How many requests share a connection, if the endpoint takes as many, before another is made.
const STREAMS_MAX: usize = 100;
/// How many interim responses an endpoint may send.
const INTERIM_MAX: u32 = 16;
/// How many connections one endpoint gets.
const CONNECTIONS_MAX: usize = 64;
/// How much an endpoint may send ahead, per request and per connection.
const WINDOW_BYTES: u32 = 256 << 10;
const CONNECTION_WINDOW_BYTES: u32 = 4 << 20;
/// How large the head of a response may be.
const HEAD_BYTES_MAX: u32 = 64 << 10;
/// How long a connection without requests is kept.
const IDLE_MAX: Duration = Duration::from_secs(50);

/// One connection.
#[derive(Debug)]
struct Shared {
    send: SendRequest<Bytes>,
    active: AtomicU32,
    closed: AtomicBool,
    tls: bool,
    manner: Manner,
    room: Arc<Room>,
    upstream: Arc<Upstream>,
}

impl Shared {
    /// Whether it takes one more request.
    fn has_room(&self) -> bool {
        let active = self.active.load(SeqCst) as usize;
        active == 0 || active < self.send.current_max_send_streams().min(STREAMS_MAX)
    }

    fn is_idle(&self) -> bool {
        self.active.load(SeqCst) == 0
    }
}

/// Tells those who wait that an endpoint's connections carry less.
#[derive(Debug, Default)]
struct Room {
    waiting: AtomicU32,
    freed: Notify,
}

impl Room {
    fn wake_one(&self) {
        if self.waiting.load(SeqCst) > 0 {
            self.freed.notify_one();
        }
    }
}

/// A request that waits, for whatever comes first.
struct Waiting<'a> {
    room: &'a Room,
    upstream: &'a Upstream,
    _pending: Pending<'a>,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.room.waiting.fetch_sub(1, SeqCst);
        // Whatever woke this one may do for another too.
        self.room.wake_one();
        self.upstream.wake_one();
    }
}

/// What a request gets.
enum Found<'a> {
    Place(Place),
    /// Leave to make a connection, and that nobody else makes one meanwhile.
    Slot(Connection, MutexGuard<'a, ()>),
}

/// A place on a connection.
#[derive(Debug)]
pub(crate) struct Place {
    shared: Arc<Shared>,
}

impl Drop for Place {
    fn drop(&mut self) {
        // In one order with what whoever waits does, or neither would see the other.
        let before = self.shared.active.fetch_sub(1, SeqCst);
        self.shared.room.wake_one();
        if before == 1 {
            // It may give way to one to another endpoint.
            self.shared.upstream.wake_one();
        }
    }
}

/// The connections to one endpoint.
#[derive(Debug, Default)]
pub(crate) struct H2Pool {
    connections: Mutex<Vec<Arc<Shared>>>,
    /// Held while a connection is made, so that many requests at once make few.
    making: tokio::sync::Mutex<()>,
    room: Arc<Room>,
}

impl H2Pool {
    /// A place on a connection that has room, or on a new one.
    pub(crate) async fn connect(
        &self,
        upstream: &Arc<Upstream>,
        peer: &Arc<Peer>,
        within: Duration,
        request: &RequestHead,
    ) -> Result<Place, ProxyError> {
        let fits = |manner: &Manner| manner.fits(upstream, request);
        if let Some(place) = self.place(fits) {
            return Ok(place);
        }
        let deadline = tokio::time::Instant::from_std(after(Instant::now(), within));
        let mut waits = None;
        let found = self.find(upstream, fits, &mut waits);
        let (slot, making) = match tokio::time::timeout_at(deadline, found).await {
            Ok(Ok(Found::Place(place))) => return Ok(place),
            Ok(Ok(Found::Slot(slot, making))) => (slot, making),
            Ok(Err(error)) => return Err(error),
            // Who never got a place says nothing about the endpoint.
            Err(_) if waits.is_some() => return Err(ProxyError::unsent(ErrorKind::Overloaded)),
            Err(_) => return Err(ProxyError::unsent(ErrorKind::ConnectTimeout)),
        };
        let opened = self.open(slot, upstream, peer, request);
        let opened = tokio::time::timeout_at(deadline, opened).await;
        drop(making);
        opened.unwrap_or_else(|_| Err(ProxyError::unsent(ErrorKind::ConnectTimeout)))
    }

    /// A place on a connection, or leave to make one, as soon as there is either.
    async fn find<'a>(
        &'a self,
        upstream: &'a Arc<Upstream>,
        fits: impl Fn(&Manner) -> bool,
        waits: &mut Option<Waiting<'a>>,
    ) -> Result<Found<'a>, ProxyError> {
        let limits = upstream.settings().limits.clone();
        loop {
            // Before looking: what is freed from now on is told.
            let mut less = std::pin::pin!(self.room.freed.notified());
            let mut slots = std::pin::pin!(upstream.freed.notified());
            less.as_mut().enable();
            slots.as_mut().enable();
            let making = self.making.lock().await;
            if let Some(place) = self.place(&fits) {
                return Ok(Found::Place(place));
            }
            let full = self.is_full(&fits);
            if !full && let Some(slot) = upstream.slot(limits.connections_max) {
                return Ok(Found::Slot(slot, making));
            }
            drop(making);
            if waits.is_none() {
                let pending = upstream.wait(limits.pending_max)?;
                self.room.waiting.fetch_add(1, SeqCst);
                *waits = Some(Waiting { room: &self.room, upstream, _pending: pending });
                // What was freed until now was told to nobody.
                continue;
            }
            if full {
                less.await;
                continue;
            }
            // Its place is free when it has said good-bye, and that is told.
            upstream.balancer.get_backends().iter().any(|other| other.h2.drop_one_idle());
            tokio::select! {
                () = less => {}
                () = slots => {}
            }
        }
    }

    /// Lets go of one that nobody uses; whether there was one.
    fn drop_one_idle(&self) -> bool {
        let mut connections = self.connections.lock();
        let idle = connections.iter().position(|shared| shared.is_idle());
        idle.map(|at| connections.remove(at)).is_some()
    }

    /// Whether there may be no more connections. One that nobody uses and that does not do gives way.
    fn is_full(&self, fits: impl Fn(&Manner) -> bool) -> bool {
        let mut connections = self.connections.lock();
        if connections.len() < CONNECTIONS_MAX {
            return false;
        }
        let of_no_use = |shared: &Arc<Shared>| shared.is_idle() && !fits(&shared.manner);
        let Some(at) = connections.iter().position(of_no_use) else { return true };
        connections.remove(at);
        false
    }

    /// Lets go of all. What runs there may finish.
    pub(crate) fn clear(&self) {
        self.connections.lock().clear();
    }

    /// Lets go of those that are closed.
    fn sweep(&self) {
        self.connections.lock().retain(|shared| !shared.closed.load(Relaxed));
    }

    fn place(&self, fits: impl Fn(&Manner) -> bool) -> Option<Place> {
        let mut connections = self.connections.lock();
        connections.retain(|shared| !shared.closed.load(Relaxed));
        let fitting = connections.iter().filter(|shared| fits(&shared.manner));
        let free = fitting.min_by_key(|shared| shared.active.load(SeqCst))?;
        if !free.has_room() {
            return None;
        }
        free.active.fetch_add(1, SeqCst);
        Some(Place { shared: Arc::clone(free) })
    }

    async fn open(
        &self,
        slot: Connection,
        upstream: &Arc<Upstream>,
        peer: &Arc<Peer>,
        request: &RequestHead,
    ) -> Result<Place, ProxyError> {
        let mut connection = slot.open_for(peer, request).await?;
        let tls = connection.is_tls();
        let stream = connection.take_stream().ok_or(ErrorKind::Internal("no stream"))?;
        let failed = |error: h2::Error| {
            ProxyError::unsent(ErrorKind::Connect).because(std::io::Error::other(error))
        };
        let (send, driver) = h2::client::Builder::new()
            .enable_push(false)
            .initial_window_size(WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .max_header_list_size(HEAD_BYTES_MAX)
            .max_send_buffer_size(WINDOW_BYTES as usize)
            .handshake::<_, Bytes>(stream)
            .await
            .map_err(failed)?;
        let shared = Arc::new(Shared {
            send,
            active: AtomicU32::new(1),
            closed: AtomicBool::new(false),
            tls,
            manner: connection.manner().clone(),
            room: Arc::clone(&self.room),
            upstream: Arc::clone(upstream),
        });
        self.connections.lock().push(Arc::clone(&shared));
        let (watched, peer) = (Arc::downgrade(&shared), Arc::downgrade(peer));
        tokio::spawn(async move {
            let mut driver = std::pin::pin!(driver);
            let mut idle = tokio::time::interval(IDLE_MAX / 2);
            let mut was_idle = false;
            loop {
                tokio::select! {
                    ended = &mut driver => {
                        tracing::trace!(?ended, "a connection to an endpoint is over");
                        break;
                    }
                    _ = idle.tick() => {
                        let Some(shared) = watched.upgrade() else { continue };
                        let none = shared.active.load(Relaxed) == 0;
                        let gone = peer.upgrade().is_none_or(|peer| peer.is_removed());
                        if none && (was_idle || gone) {
                            shared.closed.store(true, Relaxed);
                            if let Some(peer) = peer.upgrade() {
                                peer.h2.sweep();
                            }
                        }
                        was_idle = none;
                    }
                }
            }
            if let Some(shared) = watched.upgrade() {
                shared.closed.store(true, Relaxed);
            }
            if let Some(peer) = peer.upgrade() {
                peer.h2.sweep();
            }
            // Its place among the backend's connections is free now.
            drop(connection);
        });
        Ok(Place { shared })
    }
}

/// A request on its way, and its response.
pub(crate) struct H2Exchange {
    place: Place,
    flight: Flight,
    request: Option<http::Request<()>>,
    bad: Option<ErrorKind>,
    response: Option<ResponseFuture>,
    send: Option<SendStream<Bytes>>,
    pending: Bytes,
    receive: Option<RecvStream>,
    body: Option<Body>,
    body_left: u64,
    method: Method,
    /// How much of the response's body is to come, if that was told.
    left: Option<u64>,
    ended: bool,
    timer: Timer,
    timeouts: Timeouts,
    /// Something of the request went on since the timer was set.
    progress: bool,
    overall: Option<Instant>,
}

impl H2Exchange {
    /// Begins a request.
    pub(crate) fn new(
        place: Place,
        flight: Flight,
        head: &RequestHead,
        policy: &Policy,
        body: Body,
        overall: Option<Instant>,
    ) -> Self {
        let made = convert::request(head, policy, place.shared.tls);
        let bad = made.as_ref().err().copied();
        Self {
            place,
            flight,
            request: made.ok(),
            bad,
            response: None,
            send: None,
            pending: Bytes::new(),
            receive: None,
            body: Some(body),
            body_left: policy.body_bytes_max.unwrap_or(u64::MAX),
            method: head.method.clone(),
            left: None,
            ended: false,
            timer: Timer::new(Instant::now()),
            timeouts: policy.timeouts.clone(),
            progress: true,
            overall,
        }
    }

    /// Whether it is the client that does not send.
    fn waits_for_client(&self) -> bool {
        self.send.is_some() && self.pending.is_empty()
    }

    fn is_overdue(&self) -> bool {
        self.overall.is_some_and(|overall| Instant::now() >= overall)
    }

    /// How long whoever is waited for until the response's head may take.
    fn patience(&self) -> Duration {
        if self.send.is_none() {
            self.timeouts.response_header
        } else if self.waits_for_client() {
            self.timeouts.client_pause()
        } else {
            self.timeouts.send
        }
    }

    fn set_timer(&mut self, within: Duration) {
        let at = after(Instant::now(), within);
        self.timer.set(self.overall.map_or(at, |overall| overall.min(at)));
    }

    /// The response's head; interim ones go to the client.
    pub(crate) async fn head(
        &mut self,
        head: &mut ResponseHead,
        hints: Option<&Hints>,
    ) -> Result<(), ProxyError> {
        let mut interims = 0;
        let Some(request) = self.request.take() else {
            return Err(self.bad.unwrap_or(ErrorKind::Internal("asked twice")).into());
        };
        let mut send = self.place.shared.send.clone();
        self.set_timer(self.timeouts.response_header);
        std::future::poll_fn(|cx| match send.poll_ready(cx) {
            Poll::Pending if self.timer.poll_expired(cx) => {
                Poll::Ready(Err(ProxyError::unsent(ErrorKind::ConnectTimeout)))
            }
            Poll::Pending => Poll::Pending,
            Poll::Ready(ready) => Poll::Ready(ready.map_err(|error| {
                self.place.shared.closed.store(true, Relaxed);
                ProxyError::unsent(ErrorKind::UpstreamClosed).because(std::io::Error::other(error))
            })),
        })
        .await?;
        let empty = self.body.as_ref().is_none_or(http_body::Body::is_end_stream);
        let sent = send.send_request(request, empty);
        let (response, stream) = sent.map_err(|error| {
            ProxyError::unsent(ErrorKind::UpstreamClosed).because(std::io::Error::other(error))
        })?;
        self.response = Some(response);
        self.send = (!empty).then_some(stream);
        let response = std::future::poll_fn(|cx| {
            if let Poll::Ready(Err(error)) = self.poll_send(cx) {
                return Poll::Ready(Err(error));
            }
            if std::mem::take(&mut self.progress) {
                self.set_timer(self.patience());
            }
            let Some(response) = &mut self.response else { return Poll::Pending };
            // Whoever asks for the response itself loses what came before it.
            while let Poll::Ready(Some(Ok(interim))) = response.poll_informational(cx) {
                interims += 1;
                if interims > INTERIM_MAX {
                    let many = ErrorKind::BadResponse("too many interim responses");
                    return Poll::Ready(Err(many.into()));
                }
                if let Some(hints) = hints {
                    let mut head = ResponseHead::new(interim.status());
                    head.headers.extend_from_map(interim.headers());
                    hints.put(head);
                }
            }
            match Pin::new(response).poll(cx) {
                Poll::Pending if self.timer.poll_expired(cx) => {
                    if self.waits_for_client() && !self.is_overdue() {
                        return Poll::Ready(Err(ErrorKind::RequestTimeout.into()));
                    }
                    // Perhaps the whole connection is dead: others shall not wait on it.
                    self.place.shared.closed.store(true, Relaxed);
                    Poll::Ready(Err(ProxyError::idempotent(ErrorKind::UpstreamTimeout)))
                }
                Poll::Pending => Poll::Pending,
                Poll::Ready(response) => Poll::Ready(response.map_err(|error| self.failed(error))),
            }
        })
        .await?;
        let (parts, receive) = response.into_parts();
        head.status = parts.status;
        head.headers.clear();
        head.headers.extend_from_map(&parts.headers);
        if head.status == StatusCode::NO_CONTENT {
            // It has none, and so no length either (RFC 9110 §8.6).
            head.headers.remove_known(Known::ContentLength);
        }
        self.ended = receive.is_end_stream() || self.method == Method::HEAD;
        self.left = head.headers.get_known_str(Known::ContentLength).and_then(|it| it.parse().ok());
        self.receive = Some(receive);
        self.flight.answered(clock::nanos(Instant::now()));
        self.set_timer(self.timeouts.idle);
        Ok(())
    }

    fn failed(&self, error: h2::Error) -> ProxyError {
        // Not acted on (RFC 9113 §6.8 and §8.7). An endpoint that goes away names the last stream that it takes,
        // and only later ones end by that.
        let refused = error.is_remote()
            && (error.is_go_away() || error.reason() == Some(Reason::REFUSED_STREAM));
        if error.is_go_away() || error.is_io() {
            self.place.shared.closed.store(true, Relaxed);
        }
        let failed = if refused {
            ProxyError::unsent(ErrorKind::UpstreamClosed)
        } else {
            ProxyError::idempotent(ErrorKind::UpstreamClosed)
        };
        failed.because(std::io::Error::other(error))
    }

    /// Sends what there is of the body, as the windows allow.
    fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), ProxyError>> {
        loop {
            let Some(send) = &mut self.send else { return Poll::Ready(Ok(())) };
            if !self.pending.is_empty() {
                send.reserve_capacity(self.pending.len());
                let room = ready!(send.poll_capacity(cx));
                if let Some(Ok(count)) = room {
                    self.progress = true;
                    let piece = self.pending.split_to(count.min(self.pending.len()));
                    if send.send_data(piece, false).is_ok() {
                        continue;
                    }
                }
                // The endpoint wants no more; its answer may still come.
                self.send = None;
                continue;
            }
            let Some(body) = &mut self.body else {
                let _ = send.send_data(Bytes::new(), true);
                self.send = None;
                continue;
            };
            let frame = ready!(Pin::new(body).poll_frame(cx));
            self.progress = true;
            let Some(frame) = frame.transpose()? else {
                self.body = None;
                continue;
            };
            match frame.into_data() {
                Ok(data) => {
                    let Some(left) = self.body_left.checked_sub(data.len() as u64) else {
                        send.send_reset(Reason::CANCEL);
                        return Poll::Ready(Err(ErrorKind::BodyTooLarge.into()));
                    };
                    self.body_left = left;
                    self.pending = data;
                }
                Err(frame) => {
                    if let Ok(trailers) = frame.into_trailers() {
                        let _ = send.send_trailers(request_trailers_of(&trailers).to_map());
                        self.send = None;
                    }
                    self.body = None;
                }
            }
        }
    }

    /// The next part of the response's body; its trailers come last.
    fn poll_next_frame(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, ProxyError>>> {
        if self.ended {
            return Poll::Ready(None);
        }
        if let Poll::Ready(Err(error)) = self.poll_send(cx) {
            self.ended = true;
            return Poll::Ready(Some(Err(error)));
        }
        let Some(receive) = &mut self.receive else { return Poll::Ready(None) };
        let cut = || Some(Err(ErrorKind::ResponseCut.into()));
        match receive.poll_data(cx) {
            Poll::Ready(Some(Ok(data))) => {
                // Taken is passed on before more is asked for.
                let _ = receive.flow_control().release_capacity(data.len());
                self.set_timer(self.timeouts.idle);
                self.left = self.left.map(|left| left.saturating_sub(data.len() as u64));
                Poll::Ready(Some(Ok(Frame::data(data))))
            }
            Poll::Ready(Some(Err(error))) => {
                self.ended = true;
                // An endpoint that needs no more of the request says so by NO_ERROR after its answer.
                let calm = error.reason() == Some(Reason::NO_ERROR) && error.is_reset();
                Poll::Ready(if calm { None } else { cut() })
            }
            Poll::Ready(None) => {
                let trailers = ready!(receive.poll_trailers(cx));
                self.ended = true;
                let Ok(trailers) = trailers else { return Poll::Ready(cut()) };
                let trailers = trailers.map(|map| trailers_of(&map).to_map());
                Poll::Ready(trailers.map(|map| Ok(Frame::trailers(map))))
            }
            Poll::Pending if self.timer.poll_expired(cx) => {
                self.ended = true;
                Poll::Ready(Some(Err(ErrorKind::UpstreamTimeout.into())))
            }
            Poll::Pending => Poll::Pending,
        }
    }

    /// The response's body.
    pub(crate) fn into_body(self) -> Body {
        if self.ended && self.send.is_none() { body::empty() } else { self.boxed_unsync() }
    }
}

impl http_body::Body for H2Exchange {
    type Data = Bytes;
    type Error = ProxyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, ProxyError>>> {
        self.get_mut().poll_next_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.ended || self.receive.as_ref().is_some_and(RecvStream::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.left.map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}
