//! Requests of h1 clients that need more than bytes passed on: cached, compressed, mirrored, or for
//! an h2 backend. Bodies become streams, and a channel stands between; only such routes pay for it.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Method, Version};
use http_body::{Body as _, Frame};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc;

use super::body::{Decoder, write_chunk, write_end};
use super::buffer::poll_write_from;
use super::parse::{BodyLength, RequestFraming};
use super::relay::Client;
use super::timer::after;
use super::write::{self, ResponseForm};
use crate::body::{self, Body};
use crate::error::{ErrorKind, ProxyError};
use crate::head::{Headers, Known, RequestHead, ResponseHead};
use crate::proxy::hints::Hints;
use crate::table::Timeouts;

/// How much of a body goes in one piece.
const PIECE_BYTES: usize = 32 << 10;

/// How long a client may leave interim responses unread.
const HINT_TIME_MAX: Duration = Duration::from_secs(30);

type Piece = Result<Frame<Bytes>, ProxyError>;
type Place = mpsc::OwnedPermit<Piece>;
type Places = Pin<Box<dyn Future<Output = Option<Place>> + Send>>;

/// Moves a request's body from the client to whoever reads it.
pub(crate) struct Pump {
    decoder: Decoder,
    sender: Option<mpsc::Sender<Piece>>,
    /// Waits for a place for the next piece; kept while it waits, or nobody would be woken.
    waits: Option<Places>,
    place: Option<Place>,
    /// Whether the body was read to its end.
    pub(crate) whole: bool,
    left: u64,
    /// What went wrong, as the client's fault.
    pub(crate) fault: Option<ErrorKind>,
    interim: bool,
}

impl Pump {
    /// A body for a request, and what fills it.
    pub(crate) fn new(framing: RequestFraming, body_bytes_max: Option<u64>) -> (Self, Body) {
        let (sender, body) = match framing.body {
            BodyLength::Fixed(length) => {
                let (sender, body) = body::channel(Some(length));
                (Some(sender), body)
            }
            BodyLength::Chunked => {
                let (sender, body) = body::channel(None);
                (Some(sender), body)
            }
            BodyLength::None | BodyLength::UntilClose => (None, body::empty()),
        };
        let pump = Self {
            decoder: Decoder::new(framing.body),
            whole: sender.is_none(),
            sender,
            waits: None,
            place: None,
            left: body_bytes_max.unwrap_or(u64::MAX),
            fault: None,
            interim: framing.expects_continue,
        };
        (pump, body)
    }

    /// Moves what can be moved now.
    pub(crate) fn poll<S: AsyncRead + AsyncWrite + Unpin>(
        &mut self,
        cx: &mut Context<'_>,
        client: &mut Client<S>,
    ) {
        if let Poll::Ready(Err(kind)) = self.poll_inner(cx, client) {
            self.fault = Some(kind);
            // Whoever reads must not take a cut body for a whole one.
            if let Some(place) = self.place.take() {
                place.send(Err(kind.into()));
            } else if let Some(sender) = &self.sender {
                let _ = sender.try_send(Err(kind.into()));
            }
            self.sender = None;
        }
    }

    fn poll_inner<S: AsyncRead + AsyncWrite + Unpin>(
        &mut self,
        cx: &mut Context<'_>,
        client: &mut Client<S>,
    ) -> Poll<Result<(), ErrorKind>> {
        loop {
            // A place first: nothing is read that cannot be passed on.
            if self.sender.is_none() || !ready!(self.poll_place(cx)) {
                self.sender = None;
                return Poll::Ready(Ok(()));
            }
            if client.buffer.is_empty() {
                if std::mem::take(&mut self.interim) {
                    // The body is wanted: whoever reads it has a place for it.
                    let mut at = 0;
                    let go_on = b"HTTP/1.1 100 Continue\r\n\r\n";
                    let sent = ready!(poll_write_from(cx, &mut client.io, go_on, &mut at));
                    sent.map_err(|_| ErrorKind::ClientGone)?;
                    let _ = Pin::new(&mut client.io).poll_flush(cx);
                }
                let count = ready!(client.buffer.poll_fill(cx, &mut client.io, PIECE_BYTES));
                if !matches!(count, Ok(count) if count > 0) {
                    return Poll::Ready(Err(ErrorKind::ClientGone));
                }
            }
            let input = client.buffer.filled();
            let taken = self.decoder.take(input);
            let (used, data) = taken.map_err(|bad| ErrorKind::BadRequest(bad.0))?;
            let data = Bytes::copy_from_slice(&input[used - data..used]);
            client.buffer.consume(used);
            let left = self.left.checked_sub(data.len() as u64);
            self.left = left.ok_or(ErrorKind::BodyTooLarge)?;
            let done = self.decoder.is_done();
            let trailers = if done { self.decoder.trailers() } else { None };
            let piece = if data.is_empty() {
                trailers.map(|trailers| Frame::trailers(trailers.to_map()))
            } else {
                Some(Frame::data(data))
            };
            if let Some(piece) = piece
                && let Some(place) = self.place.take()
            {
                place.send(Ok(piece));
            }
            if done {
                self.whole = true;
                self.sender = None;
                self.place = None;
            }
        }
    }

    /// Waits for a place; false if nobody reads any more.
    fn poll_place(&mut self, cx: &mut Context<'_>) -> Poll<bool> {
        if self.place.is_some() {
            return Poll::Ready(true);
        }
        let Some(sender) = &self.sender else { return Poll::Ready(false) };
        let waits = self.waits.get_or_insert_with(|| {
            let sender = sender.clone();
            Box::pin(async move { sender.reserve_owned().await.ok() })
        });
        self.place = ready!(waits.as_mut().poll(cx));
        self.waits = None;
        Poll::Ready(self.place.is_some())
    }
}

/// Runs a future while the request's body flows, and interim responses are passed on. A client that goes
/// meanwhile ends it.
pub(crate) async fn with_body<S, T, F>(
    client: &mut Client<S>,
    pump: &mut Pump,
    hints: &Hints,
    future: F,
) -> Result<T, ProxyError>
where
    S: AsyncRead + AsyncWrite + Unpin,
    F: Future<Output = Result<T, ProxyError>>,
{
    let mut future = std::pin::pin!(future);
    let (mut out, mut at, mut done) = (Vec::new(), 0, None);
    std::future::poll_fn(|cx| {
        if at == out.len() {
            pump.poll(cx, client);
        }
        if done.is_none()
            && let Poll::Ready(outcome) = future.as_mut().poll(cx)
        {
            done = Some(outcome);
        }
        for hint in hints.take() {
            if at == out.len() {
                client.timer.set(after(Instant::now(), HINT_TIME_MAX));
            }
            write::interim(&mut out, &hint);
        }
        if at < out.len() {
            // A client that is gone shows when it is answered.
            let written = poll_write_from(cx, &mut client.io, &out, &mut at);
            if written.is_pending() {
                if !client.timer.poll_expired(cx) {
                    return Poll::Pending;
                }
                // It reads nothing, and nothing can follow half of a head.
                let _ = Pin::new(&mut client.io).poll_shutdown(cx);
            }
            at = out.len();
            let _ = Pin::new(&mut client.io).poll_flush(cx);
        }
        if done.is_none()
            && pump.whole
            && let Poll::Ready(Err(gone)) = client.poll_gone(cx)
        {
            done = Some(Err(gone));
        }
        done.take().map_or(Poll::Pending, Poll::Ready)
    })
    .await
}

/// How a response was sent.
pub(crate) struct Sent {
    /// Whether the connection may be used again.
    pub(crate) stays: bool,
    /// The body's bytes.
    pub(crate) body_bytes: u64,
}

/// Sends a response to the client, while the rest of the request's body flows.
pub(crate) async fn send<S: AsyncRead + AsyncWrite + Unpin>(
    client: &mut Client<S>,
    pump: &mut Pump,
    request: &RequestHead,
    framing: RequestFraming,
    response: (ResponseHead, Body),
    timeouts: &Timeouts,
) -> Result<Sent, ProxyError> {
    let (mut head, mut body) = response;
    let old = request.version == Version::HTTP_10;
    let bodiless = request.method == Method::HEAD || matches!(head.status.as_u16(), 204 | 304);
    let length = body::length(&body);
    if let Some(length) = length.filter(|_| !bodiless) {
        head.headers.set("content-length", length.to_string());
    }
    let chunked = length.is_none() && !bodiless && !old;
    let unbounded = length.is_none() && !bodiless && old;
    let stays = framing.keep_alive && pump.whole && !unbounded;
    let mut out = Vec::with_capacity(1024);
    let form = ResponseForm { chunked, keep_alive: stays, old_client: old };
    write::response(&mut out, &head, form);
    let mut sender = Sender { out, at: 0, chunked, done: bodiless, failed: None, body_bytes: 0 };
    client.timer.set(after(Instant::now(), timeouts.idle));
    std::future::poll_fn(|cx| {
        pump.poll(cx, client);
        match sender.poll(cx, &mut client.io, &mut body) {
            Poll::Pending => {
                if sender.progressed() {
                    client.timer.set(after(Instant::now(), timeouts.idle));
                }
                if pump.whole
                    && sender.out.is_empty()
                    && let Poll::Ready(Err(gone)) = client.poll_gone(cx)
                {
                    return Poll::Ready(Err(gone));
                }
                if client.timer.poll_expired(cx) {
                    return Poll::Ready(Err(ErrorKind::ClientGone.into()));
                }
                Poll::Pending
            }
            Poll::Ready(outcome) => Poll::Ready(outcome),
        }
    })
    .await?;
    Ok(Sent { stays, body_bytes: sender.body_bytes })
}

/// Writes a body's pieces as they come.
struct Sender {
    out: Vec<u8>,
    at: usize,
    chunked: bool,
    done: bool,
    failed: Option<ProxyError>,
    body_bytes: u64,
}

impl Sender {
    /// Whether something was written since the output was last filled.
    fn progressed(&self) -> bool {
        self.at > 0 || self.out.is_empty()
    }

    fn poll<S: AsyncWrite + Unpin>(
        &mut self,
        cx: &mut Context<'_>,
        io: &mut S,
        body: &mut Body,
    ) -> Poll<Result<(), ProxyError>> {
        let gone = |error: io::Error| ProxyError::new(ErrorKind::ClientGone).because(error);
        loop {
            // Small pieces go together; the head goes with the first.
            let mut waits = false;
            while !self.done && self.out.len() < PIECE_BYTES && self.at == 0 {
                match Pin::new(&mut *body).poll_frame(cx) {
                    Poll::Ready(Some(Ok(frame))) => self.take(frame),
                    Poll::Ready(Some(Err(error))) => {
                        // What came before it is the client's all the same.
                        self.failed = Some(error);
                        self.done = true;
                    }
                    Poll::Ready(None) => self.end(None),
                    Poll::Pending => {
                        waits = true;
                        break;
                    }
                }
            }
            ready!(poll_write_from(cx, io, &self.out, &mut self.at)).map_err(gone)?;
            self.out.clear();
            self.at = 0;
            if let Some(error) = self.failed.take() {
                let _ = Pin::new(io).poll_flush(cx);
                return Poll::Ready(Err(error));
            }
            if self.done {
                return Pin::new(io).poll_flush(cx).map_err(gone);
            }
            if waits {
                let _ = Pin::new(&mut *io).poll_flush(cx);
                return Poll::Pending;
            }
        }
    }

    fn take(&mut self, frame: Frame<Bytes>) {
        match frame.into_data() {
            Ok(data) => {
                self.body_bytes += data.len() as u64;
                if self.chunked {
                    write_chunk(&mut self.out, &data);
                } else {
                    self.out.extend_from_slice(&data);
                }
            }
            Err(frame) => {
                let trailers = frame.into_trailers().ok().map(|map| Headers::from(&map));
                self.end(trailers);
            }
        }
    }

    fn end(&mut self, trailers: Option<Headers>) {
        if !self.done && self.chunked {
            let trailers = trailers.map(|mut own| {
                own.retain(|field| {
                    super::body::may_trail(field.known) && field.known != Known::Date
                });
                own
            });
            write_end(&mut self.out, trailers.as_ref());
        }
        self.done = true;
    }
}
