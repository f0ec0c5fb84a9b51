//! One request over an endpoint's h1 connection, with bodies as streams.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::Method;
use http_body::{Body as _, Frame, SizeHint};
use http_body_util::BodyExt;
use tokio::io::AsyncWrite;

use super::Connection;
use crate::balance::Peer;
use crate::balance::peer::Flight;
use crate::body::{self, Body};
use crate::error::{ErrorKind, ProxyError};
use crate::h1::body::{Decoder, write_chunk, write_end};
use crate::h1::buffer::{Buffer, poll_write_from};
use crate::h1::parse::{self, BodyLength, ResponseFraming};
use crate::h1::timer::after;
use crate::h1::write;
use crate::h2::convert::request_trailers_of;
use crate::head::{RequestHead, ResponseHead};
use crate::proxy::hints::Hints;
use crate::table::{Policy, Timeouts};

/// How large the head of a response may be.
const RESPONSE_HEAD_BYTES_MAX: usize = 64 << 10;

/// What a request's head usually fits in.
const OUT_BYTES_USUAL: usize = 960;

/// How much is read at once.
const PIECE_BYTES: usize = 32 << 10;

/// How many interim responses an endpoint may send.
const INTERIM_MAX: u32 = 16;

/// A request under way.
pub(crate) struct Exchange {
    connection: Option<Connection>,
    flight: Flight,
    out: Vec<u8>,
    sent: usize,
    /// What is left of the request's body.
    body: Option<Body>,
    /// Whether anything of it was taken.
    body_used: bool,
    body_left: u64,
    chunked: bool,
    buffer: Buffer,
    timeouts: Timeouts,
    overall: Option<Instant>,
    interims: u32,
    /// Something of the request went on since the timer was set.
    progress: bool,
    /// When the head of the response was here.
    pub(crate) answered: Option<Instant>,
}

impl Exchange {
    /// Begins: nothing is sent yet.
    pub(crate) fn new(
        mut connection: Connection,
        flight: Flight,
        request: &RequestHead,
        body: Body,
        policy: &Policy,
        now: Instant,
        overall: Option<Instant>,
    ) -> Self {
        let length = match body::length(&body) {
            Some(0) => BodyLength::None,
            Some(length) => BodyLength::Fixed(length),
            None => BodyLength::Chunked,
        };
        let mut out = Vec::with_capacity(OUT_BYTES_USUAL);
        write::request(&mut out, request, policy, false, length);
        let at = after(now, policy.timeouts.response_header);
        connection.set_deadline(overall.map_or(at, |overall| overall.min(at)));
        Self {
            connection: Some(connection),
            flight,
            out,
            sent: 0,
            body: (length != BodyLength::None).then_some(body),
            body_used: false,
            body_left: policy.body_bytes_max.unwrap_or(u64::MAX),
            chunked: length == BodyLength::Chunked,
            buffer: Buffer::default(),
            timeouts: policy.timeouts.clone(),
            overall,
            interims: 0,
            // Without a body the deadline stands.
            progress: length != BodyLength::None,
            answered: None,
        }
    }

    /// One whose answer's head was read by somebody else, with `rest` behind it.
    pub(crate) fn answered(
        connection: Connection,
        flight: Flight,
        rest: &[u8],
        policy: &Policy,
        overall: Option<Instant>,
    ) -> Self {
        let now = Instant::now();
        let mut exchange = Self {
            connection: Some(connection),
            flight,
            out: Vec::new(),
            sent: 0,
            body: None,
            body_used: true,
            body_left: 0,
            chunked: false,
            buffer: Buffer::holding(rest),
            timeouts: policy.timeouts.clone(),
            overall,
            interims: 0,
            progress: false,
            answered: Some(now),
        };
        exchange.set_timer(now, policy.timeouts.idle);
        exchange
    }

    /// The connection, for one that is reused or broken.
    pub(crate) fn connection(&self) -> Option<&Connection> {
        self.connection.as_ref()
    }

    /// Sends what there is; ready when all was sent, or cannot be.
    fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), ProxyError>> {
        let closed = |error| ProxyError::idempotent(ErrorKind::UpstreamClosed).because(error);
        let Some(connection) = &mut self.connection else { return Poll::Ready(Ok(())) };
        let stream = connection.stream().map_err(closed)?;
        loop {
            if self.sent < self.out.len() {
                let before = self.sent;
                let written = poll_write_from(cx, stream, &self.out, &mut self.sent);
                self.progress |= self.sent > before && self.body_used;
                if ready!(written).is_err() {
                    // It may have answered before it closed; whoever reads finds out.
                    self.body = None;
                    return Poll::Ready(Ok(()));
                }
                self.out.clear();
                self.sent = 0;
            }
            let Some(body) = &mut self.body else {
                let _ = ready!(Pin::new(stream).poll_flush(cx));
                return Poll::Ready(Ok(()));
            };
            let Poll::Ready(frame) = Pin::new(body).poll_frame(cx) else {
                let _ = Pin::new(stream).poll_flush(cx);
                return Poll::Pending;
            };
            self.body_used = true;
            self.progress = true;
            let mut trailers = None;
            match frame {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => {
                        let left = self.body_left.checked_sub(data.len() as u64);
                        self.body_left = left.ok_or(ProxyError::new(ErrorKind::BodyTooLarge))?;
                        if self.chunked {
                            write_chunk(&mut self.out, &data);
                        } else {
                            self.out.extend_from_slice(&data);
                        }
                        continue;
                    }
                    Err(frame) => {
                        trailers = frame.into_trailers().ok().map(|map| request_trailers_of(&map));
                    }
                },
                Some(Err(error)) => return Poll::Ready(Err(error)),
                None => {}
            }
            self.body = None;
            if self.chunked {
                write_end(&mut self.out, trailers.as_ref());
            }
        }
    }

    /// Sends the request and waits for the head of the response; interim ones go to the client.
    pub(crate) async fn head(
        &mut self,
        asked: &Method,
        response: &mut ResponseHead,
        hints: Option<&Hints>,
    ) -> Result<ResponseFraming, ProxyError> {
        std::future::poll_fn(|cx| {
            let outcome = self.poll_head(cx, asked, response, hints);
            if outcome.is_pending() && self.progress {
                self.progress = false;
                self.set_timer(Instant::now(), self.patience());
            }
            if outcome.is_pending() && self.poll_expired(cx) {
                let waits_for_client = self.body.is_some() && self.out.is_empty();
                let kind = if waits_for_client {
                    ErrorKind::RequestTimeout
                } else {
                    ErrorKind::UpstreamTimeout
                };
                return Poll::Ready(Err(ProxyError::idempotent(kind)));
            }
            outcome
        })
        .await
    }

    fn poll_expired(&mut self, cx: &mut Context<'_>) -> bool {
        self.connection.as_mut().is_some_and(|connection| connection.poll_expired(cx))
    }

    /// How long whoever is waited for until the response's head may take.
    fn patience(&self) -> Duration {
        if !self.out.is_empty() {
            self.timeouts.send
        } else if self.body.is_some() {
            self.timeouts.client_pause()
        } else {
            self.timeouts.response_header
        }
    }

    fn set_timer(&mut self, now: Instant, within: Duration) {
        let at = after(now, within);
        if let Some(connection) = &mut self.connection {
            connection.set_deadline(self.overall.map_or(at, |overall| overall.min(at)));
        }
    }

    fn poll_head(
        &mut self,
        cx: &mut Context<'_>,
        asked: &Method,
        response: &mut ResponseHead,
        hints: Option<&Hints>,
    ) -> Poll<Result<ResponseFraming, ProxyError>> {
        if let Poll::Ready(Err(error)) = self.poll_send(cx) {
            return Poll::Ready(Err(error));
        }
        loop {
            if !self.buffer.is_empty() {
                let bytes = self.buffer.filled();
                if let Some((length, framing)) = parse::response(bytes, asked, response)? {
                    self.buffer.consume(length);
                    if framing.names_fields {
                        parse::remove_named(&mut response.headers);
                    }
                    if response.status == http::StatusCode::SWITCHING_PROTOCOLS {
                        let unasked = ErrorKind::BadResponse("an upgrade that nobody asked for");
                        return Poll::Ready(Err(unasked.into()));
                    }
                    if response.status.is_informational() {
                        self.interims += 1;
                        if self.interims > INTERIM_MAX {
                            let many = ErrorKind::BadResponse("too many interim responses");
                            return Poll::Ready(Err(many.into()));
                        }
                        if let Some(hints) = hints {
                            hints.put(response.clone());
                        }
                        continue;
                    }
                    let now = Instant::now();
                    self.flight.answered(crate::clock::nanos(now));
                    self.set_timer(now, self.timeouts.idle);
                    self.answered = Some(now);
                    return Poll::Ready(Ok(framing));
                }
                if bytes.len() > RESPONSE_HEAD_BYTES_MAX {
                    return Poll::Ready(
                        Err(ErrorKind::BadResponse("its head is too large").into()),
                    );
                }
            }
            let nothing = self.buffer.is_empty();
            match ready!(self.poll_fill(cx, RESPONSE_HEAD_BYTES_MAX * 2)) {
                Ok(count) if count > 0 => {}
                Ok(_) if !nothing => {
                    return Poll::Ready(Err(ErrorKind::BadResponse("its head is cut off").into()));
                }
                Ok(_) => {
                    return Poll::Ready(Err(ProxyError::idempotent(ErrorKind::UpstreamClosed)));
                }
                Err(error) => {
                    let closed = ProxyError::idempotent(ErrorKind::UpstreamClosed);
                    return Poll::Ready(Err(closed.because(error)));
                }
            }
        }
    }

    fn poll_fill(&mut self, cx: &mut Context<'_>, room: usize) -> Poll<std::io::Result<usize>> {
        let Some(connection) = &mut self.connection else { return Poll::Ready(Ok(0)) };
        let stream = connection.stream()?;
        self.buffer.poll_fill(cx, stream, room)
    }

    /// The response's body; the connection goes back to its pool at the end.
    pub(crate) fn into_body(mut self, framing: ResponseFraming) -> Body {
        let decoder = Decoder::new(framing.body);
        if let Decoder::Fixed(length) = decoder
            && self.buffer.len() as u64 >= length
            && self.body.is_none()
            && self.out.is_empty()
        {
            // All of it came with the head: nothing is left to wait for.
            let data = Bytes::copy_from_slice(&self.buffer.filled()[..length as usize]);
            self.buffer.consume(data.len());
            let now = self.answered.unwrap_or_else(Instant::now);
            self.release(framing.keep_alive, now);
            return if data.is_empty() { body::empty() } else { body::full(data) };
        }
        if decoder.is_done() {
            self.release(framing.keep_alive, Instant::now());
            return body::empty();
        }
        let keep_alive = framing.keep_alive;
        ResponseBody { exchange: self, decoder, keep_alive, ended: false }.boxed_unsync()
    }

    /// All was read: the connection is kept if it is clean.
    fn release(&mut self, keep_alive: bool, now: Instant) {
        let clean =
            keep_alive && self.body.is_none() && self.out.is_empty() && self.buffer.is_empty();
        if let Some(connection) = self.connection.take()
            && clean
        {
            let peer: &Arc<Peer> = self.flight.peer();
            connection.keep(peer, now);
        }
    }
}

/// The body of a response as it comes from the endpoint.
struct ResponseBody {
    exchange: Exchange,
    decoder: Decoder,
    keep_alive: bool,
    ended: bool,
}

impl ResponseBody {
    fn finish(&mut self) {
        self.ended = true;
        self.exchange.release(self.keep_alive, Instant::now());
    }

    fn poll_piece(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, ProxyError>>> {
        // The rest of the request goes on while the response flows; its faults end both.
        let sends = self.exchange.body.is_some() || !self.exchange.out.is_empty();
        if sends && let Poll::Ready(Err(error)) = self.exchange.poll_send(cx) {
            return Poll::Ready(Some(Err(error)));
        }
        loop {
            while !self.exchange.buffer.is_empty() && !self.decoder.is_done() {
                let input = self.exchange.buffer.filled();
                let taken = self.decoder.take(input);
                let (used, data) = match taken {
                    Ok(taken) => taken,
                    Err(bad) => {
                        return Poll::Ready(Some(Err(ErrorKind::BadResponse(bad.0).into())));
                    }
                };
                let data = Bytes::copy_from_slice(&input[used - data..used]);
                self.exchange.buffer.consume(used);
                if !data.is_empty() {
                    return Poll::Ready(Some(Ok(Frame::data(data))));
                }
            }
            if self.decoder.is_done() {
                let trailers = self.decoder.trailers();
                self.finish();
                return Poll::Ready(
                    trailers.map(|trailers| Ok(Frame::trailers(trailers.to_map()))),
                );
            }
            match ready!(self.exchange.poll_fill(cx, PIECE_BYTES)) {
                Ok(count) if count > 0 => {
                    self.exchange.set_timer(Instant::now(), self.exchange.timeouts.idle);
                }
                Ok(_) if matches!(self.decoder, Decoder::UntilClose) => {
                    self.decoder = Decoder::Fixed(0);
                    self.keep_alive = false;
                }
                Ok(_) => return Poll::Ready(Some(Err(ErrorKind::ResponseCut.into()))),
                Err(error) => {
                    let cut = ProxyError::new(ErrorKind::ResponseCut).because(error);
                    return Poll::Ready(Some(Err(cut)));
                }
            }
        }
    }
}

impl http_body::Body for ResponseBody {
    type Data = Bytes;
    type Error = ProxyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, ProxyError>>> {
        let this = self.get_mut();
        if this.ended {
            return Poll::Ready(None);
        }
        let piece = this.poll_piece(cx);
        match &piece {
            Poll::Pending if this.exchange.poll_expired(cx) => {
                this.ended = true;
                Poll::Ready(Some(Err(ErrorKind::ResponseCut.into())))
            }
            Poll::Ready(Some(Err(_))) => {
                this.ended = true;
                this.exchange.connection = None;
                piece
            }
            // A body of known length is over with its last piece: whoever asks must not wait.
            Poll::Ready(Some(Ok(_))) if matches!(this.decoder, Decoder::Fixed(0)) => {
                this.finish();
                piece
            }
            _ => piece,
        }
    }

    fn is_end_stream(&self) -> bool {
        self.ended
    }

    fn size_hint(&self) -> SizeHint {
        match &self.decoder {
            Decoder::Fixed(left) => SizeHint::with_exact(*left),
            _ => SizeHint::default(),
        }
    }
}
