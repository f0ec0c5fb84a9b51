//! One request's bytes between a client and an endpoint, both ways at once.
//!
//! A hand-written state machine, because it runs for every request: the request's body flows while
//! the response is awaited and while it flows back; neither direction reads more than it can write,
//! so a slow side slows the other and nothing piles up.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use http::{StatusCode, Version};
use tokio::io::{AsyncRead, AsyncWrite};

use super::body::{Decoder, write_chunk, write_end};
use super::buffer::{Buffer, poll_write_from};
use super::parse::{self, BodyLength, RequestFraming, ResponseFraming};
use super::timer::{Timer, after};
use super::write::{self, ResponseForm};
use crate::error::{ErrorKind, ProxyError};
use crate::head::{RequestHead, ResponseHead};
use crate::pace::Pace;
use crate::table::{Policy, Timeouts};

/// How much of a body is put together for one write.
const PIECE_BYTES: usize = 32 << 10;

/// How much of a body is copied behind its head: one run of bytes costs the kernel less than two.
const COPIED_BYTES_MAX: usize = 2 << 10;

/// How large the head of a response may be.
const RESPONSE_HEAD_BYTES_MAX: usize = 64 << 10;

/// How many interim responses an endpoint may send.
const INTERIM_MAX: u32 = 16;

/// A client's connection: stream, what was read ahead, and the deadline of what is waited for.
#[derive(Debug)]
pub(crate) struct Client<S> {
    pub(crate) io: S,
    pub(crate) buffer: Buffer,
    pub(crate) timer: Timer,
}

impl<S: AsyncRead + Unpin> Client<S> {
    /// Notices that the client has gone while an endpoint is waited for, or will not read: whoever closes his
    /// side of the connection wants no answer any more, as nginx has it. What comes of a next request is
    /// kept. As all that had come was read before, this asks the kernel for nothing but to be told.
    pub(crate) fn poll_gone(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), ProxyError>> {
        if !self.buffer.is_empty() {
            return Poll::Ready(Ok(()));
        }
        let gone = ProxyError::new(ErrorKind::ClientGone);
        match ready!(self.buffer.poll_behind(cx, &mut self.io)) {
            Ok(0) => Poll::Ready(Err(gone)),
            Ok(_) => Poll::Ready(Ok(())),
            Err(error) => Poll::Ready(Err(gone.because(error))),
        }
    }
}

/// A request's heads and output, in memory that is used again.
#[derive(Debug, Default)]
pub(crate) struct Exchange {
    pub(crate) request: RequestHead,
    pub(crate) response: ResponseHead,
    pub(crate) to_upstream: Vec<u8>,
    pub(crate) to_client: Vec<u8>,
}

/// What decides about a response's head when it is here.
pub(crate) trait Respond {
    /// Whether to try elsewhere instead of passing this response on.
    fn refuses(&mut self, response: &ResponseHead) -> bool;
    /// The response will go to the client: last edits.
    fn edit(&mut self, request: &RequestHead, response: &mut ResponseHead);
    /// Whether the client's connection may take another request.
    fn keeps(&self) -> bool;
}

/// How a relay ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// The response is with the client.
    Done {
        /// Whether the client's connection may take another request.
        client_stays: bool,
        /// Whether the endpoint's may.
        upstream_stays: bool,
    },
    /// Both sides changed the protocol; the client has its 101.
    Upgraded,
    /// The response was refused; nothing of it reached the client.
    Refused {
        /// Whether the endpoint's connection may be used again.
        upstream_stays: bool,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Head,
    Body,
}

/// What a try may take.
pub(crate) struct Bounds<'a> {
    pub(crate) policy: &'a Policy,
    /// The deadline, kept with the endpoint's connection: those are used again and again, while a
    /// client's may have one request only.
    pub(crate) timer: &'a mut Timer,
    /// When the try began.
    pub(crate) begun: Instant,
    /// When the whole request must be over.
    pub(crate) overall: Option<Instant>,
    /// How slowly the request's body may come.
    pub(crate) body_bytes_per_s_min: u32,
}

/// One try of one request.
pub(crate) struct Relay<'a, S, U, R> {
    pub(crate) client: &'a mut Client<S>,
    pub(crate) upstream: &'a mut U,
    pub(crate) exchange: &'a mut Exchange,
    pub(crate) respond: &'a mut R,
    pub(crate) from_upstream: Buffer,
    framing: RequestFraming,
    policy: &'a Policy,
    timer: &'a mut Timer,
    timeouts: &'a Timeouts,
    /// The time, as long as nothing was waited for.
    now: Option<Instant>,
    /// When the whole request must be over.
    overall: Option<Instant>,
    body_left: u64,
    pace: Pace,
    request_body: Decoder,
    sent: usize,
    /// All of the request is in `to_upstream`.
    request_read: bool,
    /// All of it was written.
    request_sent: bool,
    stage: Stage,
    interims: u32,
    response_body: Decoder,
    response_framing: ResponseFraming,
    chunked_out: bool,
    client_stays: bool,
    answered: usize,
    /// How much at the front of `from_upstream` goes to the client as it is.
    data: usize,
    /// Something was read from the client beyond what was there.
    pub(crate) read_more: bool,
    /// Something of the response reached the client.
    pub(crate) begun: bool,
    /// Bytes of the response's body so far.
    pub(crate) body_bytes: u64,
    /// The endpoint has asked for the body.
    continued: bool,
    /// Something of the body is here.
    body_begun: bool,
    progress: bool,
}

impl<'a, S, U, R> Relay<'a, S, U, R>
where
    S: AsyncRead + AsyncWrite + Unpin,
    U: AsyncRead + AsyncWrite + Unpin,
    R: Respond,
{
    /// Begins: the request's head is in `to_upstream`.
    pub(crate) fn new(
        client: &'a mut Client<S>,
        upstream: &'a mut U,
        exchange: &'a mut Exchange,
        respond: &'a mut R,
        framing: RequestFraming,
        bounds: Bounds<'a>,
    ) -> Self {
        let Bounds { policy, timer, begun, overall, body_bytes_per_s_min } = bounds;
        exchange.to_client.clear();
        let pace = match framing.body {
            BodyLength::None => Pace::none(),
            _ => Pace::new(body_bytes_per_s_min, &exchange.request),
        };
        Self {
            client,
            upstream,
            exchange,
            respond,
            from_upstream: Buffer::default(),
            framing,
            policy,
            timer,
            timeouts: &policy.timeouts,
            now: Some(begun),
            overall,
            body_left: policy.body_bytes_max.unwrap_or(u64::MAX),
            pace,
            request_body: Decoder::new(framing.body),
            sent: 0,
            request_read: framing.body == BodyLength::None,
            request_sent: false,
            stage: Stage::Head,
            interims: 0,
            response_body: Decoder::Fixed(0),
            response_framing: ResponseFraming {
                body: BodyLength::None,
                keep_alive: false,
                names_fields: false,
            },
            chunked_out: false,
            client_stays: framing.keep_alive,
            answered: 0,
            data: 0,
            read_more: false,
            begun: false,
            body_bytes: 0,
            continued: false,
            body_begun: false,
            progress: true,
        }
    }

    /// Runs until the response is with the client.
    pub(crate) async fn run(&mut self) -> Result<End, ProxyError> {
        std::future::poll_fn(|cx| self.poll(cx)).await
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<End, ProxyError>> {
        if !self.request_sent {
            match self.poll_request(cx) {
                Poll::Ready(Ok(())) => {
                    self.request_sent = true;
                    self.progress = true;
                }
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => {}
            }
        }
        let outcome = self.poll_response(cx);
        if outcome.is_pending() {
            if self.waits_for_response()
                && let Poll::Ready(Err(gone)) = self.client.poll_gone(cx)
            {
                return Poll::Ready(Err(gone));
            }
            if self.progress {
                self.progress = false;
                self.set_timer();
            }
            if self.timer.poll_expired(cx) {
                return Poll::Ready(Err(self.expired()));
            }
        }
        outcome
    }

    fn set_timer(&mut self) {
        let wait = match self.stage {
            Stage::Head if self.request_sent || self.waits_to_go_on() => {
                self.timeouts.response_header
            }
            Stage::Head if self.waits_for_endpoint() => self.timeouts.send,
            Stage::Head => self.timeouts.client_pause(),
            Stage::Body => self.timeouts.idle,
        };
        let now = self.now.take().unwrap_or_else(Instant::now);
        let mut at = after(now, wait);
        if self.stage == Stage::Head && !self.request_sent {
            if self.waits_for_endpoint() {
                self.pace.pause(now);
            } else if let Some(end) = self.pace.wait(now) {
                at = at.min(end);
            }
        }
        self.timer.set(self.overall.map_or(at, |overall| overall.min(at)));
    }

    /// Whether it is the endpoint that does not take what there is of the request.
    fn waits_for_endpoint(&self) -> bool {
        self.request_read || self.sent < self.exchange.to_upstream.len() || self.waits_to_go_on()
    }

    /// Whether nothing is left to be done for the client but to wait for the endpoint.
    fn waits_for_response(&self) -> bool {
        self.request_sent && self.request_read && !self.has_output()
    }

    /// Whether the client sends no body before the endpoint tells it to.
    fn waits_to_go_on(&self) -> bool {
        self.framing.expects_continue && !self.continued && !self.body_begun
    }

    /// Whose fault it is that nothing happened for too long.
    fn expired(&self) -> ProxyError {
        let overall = self.overall.is_some_and(|overall| Instant::now() >= overall);
        match self.stage {
            Stage::Head if self.request_sent || overall => {
                ProxyError::idempotent(ErrorKind::UpstreamTimeout)
            }
            Stage::Head if self.waits_for_endpoint() => {
                ProxyError::idempotent(ErrorKind::UpstreamTimeout)
            }
            Stage::Head => ErrorKind::RequestTimeout.into(),
            Stage::Body if self.has_output() => ErrorKind::ClientGone.into(),
            Stage::Body => ErrorKind::ResponseCut.into(),
        }
    }

    // The request's way.

    fn poll_request(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), ProxyError>> {
        // What of the body came with the head goes with the head.
        self.stage_body()?;
        loop {
            let out = &self.exchange.to_upstream;
            if self.sent < out.len() {
                let before = self.sent;
                let written = poll_write_from(cx, self.upstream, out, &mut self.sent);
                self.progress |= self.sent > before;
                match written {
                    Poll::Ready(Ok(())) => {}
                    Poll::Pending => return Poll::Pending,
                    // It may have answered before it closed: the response's side finds out.
                    Poll::Ready(Err(_)) => {
                        self.client_stays &= self.request_read;
                        self.response_framing.keep_alive = false;
                        return Poll::Ready(Ok(()));
                    }
                }
            }
            if self.request_read {
                // Errors show when the response is read.
                let _ = ready!(Pin::new(&mut *self.upstream).poll_flush(cx));
                return Poll::Ready(Ok(()));
            }
            if self.client.buffer.is_empty() {
                self.read_more = true;
                // Nothing more may come until what came has arrived.
                let _ = Pin::new(&mut *self.upstream).poll_flush(cx);
                let client = &mut *self.client;
                match ready!(client.buffer.poll_fill(cx, &mut client.io, PIECE_BYTES)) {
                    Ok(0) => return Poll::Ready(Err(ErrorKind::ClientGone.into())),
                    Ok(count) => {
                        self.progress = true;
                        if self.pace.is_asked() {
                            self.pace.came(count, Instant::now());
                        }
                    }
                    Err(error) => {
                        let gone = ProxyError::new(ErrorKind::ClientGone).because(error);
                        return Poll::Ready(Err(gone));
                    }
                }
            }
            self.exchange.to_upstream.clear();
            self.sent = 0;
            self.stage_body()?;
        }
    }

    /// Moves what is there of the request's body to the output.
    fn stage_body(&mut self) -> Result<(), ProxyError> {
        let out = &mut self.exchange.to_upstream;
        while !self.request_read && !self.client.buffer.is_empty() && out.len() < PIECE_BYTES {
            self.body_begun = true;
            let input = self.client.buffer.filled();
            let (used, data) = self.request_body.take(input).map_err(bad_chunk)?;
            let data = &input[used - data..used];
            self.body_left = self
                .body_left
                .checked_sub(data.len() as u64)
                .ok_or(ProxyError::new(ErrorKind::BodyTooLarge))?;
            if self.framing.body == BodyLength::Chunked {
                write_chunk(out, data);
            } else {
                out.extend_from_slice(data);
            }
            self.client.buffer.consume(used);
            if self.request_body.is_done() {
                if self.framing.body == BodyLength::Chunked {
                    let mut trailers = self.request_body.trailers();
                    if let Some(own) = &mut trailers {
                        own.retain(|field| {
                            self.policy.may_trail(field.name)
                                && !parse::is_ambiguous(field.name.as_bytes())
                        });
                    }
                    write_end(out, trailers.as_ref());
                }
                self.request_read = true;
            }
        }
        Ok(())
    }

    // The response's way.

    fn poll_response(&mut self, cx: &mut Context<'_>) -> Poll<Result<End, ProxyError>> {
        loop {
            if self.stage == Stage::Head {
                if let Some(end) = ready!(self.poll_head(cx))? {
                    return Poll::Ready(Ok(end));
                }
                continue;
            }
            self.decode()?;
            if self.has_output() {
                if let Err(error) = ready!(self.poll_output(cx)) {
                    return Poll::Ready(Err(ProxyError::new(ErrorKind::ClientGone).because(error)));
                }
                continue;
            }
            if self.response_body.is_done() {
                let _ = ready!(Pin::new(&mut self.client.io).poll_flush(cx));
                return Poll::Ready(Ok(self.end()));
            }
            match self.from_upstream.poll_fill(cx, self.upstream, PIECE_BYTES) {
                Poll::Ready(Ok(count)) if count > 0 => self.progress = true,
                Poll::Ready(Ok(_)) if matches!(self.response_body, Decoder::UntilClose) => {
                    self.response_body = Decoder::Fixed(0);
                    if self.chunked_out {
                        write_end(&mut self.exchange.to_client, None);
                    }
                }
                Poll::Ready(Ok(_)) => return Poll::Ready(Err(ErrorKind::ResponseCut.into())),
                Poll::Ready(Err(error)) => {
                    return Poll::Ready(
                        Err(ProxyError::new(ErrorKind::ResponseCut).because(error)),
                    );
                }
                Poll::Pending => {
                    let _ = Pin::new(&mut self.client.io).poll_flush(cx);
                    return Poll::Pending;
                }
            }
        }
    }

    fn end(&self) -> End {
        // Whoever answers before the request is read has left the rest of it on the wire.
        let whole = self.request_read;
        End::Done {
            client_stays: self.client_stays && whole,
            upstream_stays: self.response_framing.keep_alive
                && whole
                && self.request_sent
                && self.from_upstream.is_empty(),
        }
    }

    /// Waits for the head of the response and acts on it.
    fn poll_head(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<End>, ProxyError>> {
        loop {
            if self.answered < self.exchange.to_client.len() {
                let client = &mut *self.client;
                let written = ready!(poll_write_from(
                    cx,
                    &mut client.io,
                    &self.exchange.to_client,
                    &mut self.answered
                ));
                written.map_err(|error| ProxyError::new(ErrorKind::ClientGone).because(error))?;
                let _ = ready!(Pin::new(&mut client.io).poll_flush(cx));
                self.exchange.to_client.clear();
                self.answered = 0;
            }
            if !self.from_upstream.is_empty() {
                let method = &self.exchange.request.method;
                let bytes = self.from_upstream.filled();
                let parsed = parse::response(bytes, method, &mut self.exchange.response)?;
                if let Some((length, framing)) = parsed {
                    self.from_upstream.consume(length);
                    self.progress = true;
                    return Poll::Ready(self.take_head(framing));
                }
                if bytes.len() > RESPONSE_HEAD_BYTES_MAX {
                    return Poll::Ready(
                        Err(ErrorKind::BadResponse("its head is too large").into()),
                    );
                }
            }
            let nothing = self.from_upstream.is_empty();
            match ready!(self.from_upstream.poll_fill(
                cx,
                self.upstream,
                RESPONSE_HEAD_BYTES_MAX * 2
            )) {
                Ok(count) if count > 0 => {}
                Ok(_) if nothing => {
                    return Poll::Ready(Err(ProxyError::idempotent(ErrorKind::UpstreamClosed)));
                }
                Ok(_) => {
                    return Poll::Ready(Err(ErrorKind::BadResponse("its head is cut off").into()));
                }
                Err(error) => {
                    let closed = ProxyError::idempotent(ErrorKind::UpstreamClosed);
                    return Poll::Ready(Err(closed.because(error)));
                }
            }
        }
    }

    fn take_head(&mut self, framing: ResponseFraming) -> Result<Option<End>, ProxyError> {
        let status = self.exchange.response.status;
        if framing.names_fields {
            parse::remove_named(&mut self.exchange.response.headers);
        }
        if status == StatusCode::SWITCHING_PROTOCOLS {
            return self.take_upgrade();
        }
        if status.is_informational() {
            self.take_interim()?;
            return Ok(None);
        }
        let keep_alive = framing.keep_alive && (!self.request_sent || self.request_read);
        self.response_framing = ResponseFraming { keep_alive, ..framing };
        if self.respond.refuses(&self.exchange.response) {
            // Only without a body the connection is known to be clean.
            let clean = framing.body == BodyLength::None && self.from_upstream.is_empty();
            let upstream_stays = clean && keep_alive && self.request_sent;
            return Ok(Some(End::Refused { upstream_stays }));
        }
        self.begin_response(framing);
        Ok(None)
    }

    fn begin_response(&mut self, framing: ResponseFraming) {
        let exchange = &mut *self.exchange;
        self.respond.edit(&exchange.request, &mut exchange.response);
        let old_client = exchange.request.version == Version::HTTP_10;
        let unbounded = matches!(framing.body, BodyLength::Chunked | BodyLength::UntilClose);
        self.chunked_out = unbounded && !old_client;
        // The end of such a body can only be the end of the connection.
        self.client_stays &= !(unbounded && old_client);
        // A client that was answered before it sent all would have its rest read as a request.
        self.client_stays &= self.request_read && self.respond.keeps();
        let form =
            ResponseForm { chunked: self.chunked_out, keep_alive: self.client_stays, old_client };
        write::response(&mut exchange.to_client, &exchange.response, form);
        self.response_body = Decoder::new(framing.body);
        self.stage = Stage::Body;
    }

    fn take_interim(&mut self) -> Result<(), ProxyError> {
        self.interims += 1;
        if self.interims > INTERIM_MAX {
            return Err(ErrorKind::BadResponse("too many interim responses").into());
        }
        let request = &self.exchange.request;
        let wanted = match self.exchange.response.status {
            StatusCode::CONTINUE => {
                self.continued = true;
                self.framing.expects_continue
            }
            _ => request.version != Version::HTTP_10,
        };
        if wanted {
            write::interim(&mut self.exchange.to_client, &self.exchange.response);
        }
        Ok(())
    }

    /// The endpoint agrees to another protocol. Only what was asked for can be agreed to.
    fn take_upgrade(&mut self) -> Result<Option<End>, ProxyError> {
        let (asked, told) = (&self.exchange.request.headers, &self.exchange.response.headers);
        if !self.framing.upgrade || !parse::is_offered(asked, told) {
            return Err(ErrorKind::BadResponse("an upgrade that nobody asked for").into());
        }
        write::interim(&mut self.exchange.to_client, &self.exchange.response);
        Ok(Some(End::Upgraded))
    }

    /// Works out what of the endpoint's bytes goes to the client.
    fn decode(&mut self) -> Result<(), ProxyError> {
        let recoded = self.chunked_out || matches!(self.response_body, Decoder::Chunked(_));
        if !recoded {
            if self.data == 0 && !self.from_upstream.is_empty() && !self.response_body.is_done() {
                let (_, data) =
                    self.response_body.take(self.from_upstream.filled()).map_err(bad_response)?;
                self.data = data;
                self.body_bytes += data as u64;
            }
            return Ok(());
        }
        let out = &mut self.exchange.to_client;
        if self.answered == out.len() {
            out.clear();
            self.answered = 0;
        }
        while !self.from_upstream.is_empty()
            && !self.response_body.is_done()
            && out.len() < PIECE_BYTES
        {
            let input = self.from_upstream.filled();
            let (used, data) = self.response_body.take(input).map_err(bad_response)?;
            let data = &input[used - data..used];
            self.body_bytes += data.len() as u64;
            if self.chunked_out {
                write_chunk(out, data);
            } else {
                out.extend_from_slice(data);
            }
            self.from_upstream.consume(used);
            if self.response_body.is_done() && self.chunked_out {
                write_end(out, self.response_body.trailers().as_ref());
            }
        }
        Ok(())
    }

    fn has_output(&self) -> bool {
        self.data > 0 || self.answered < self.exchange.to_client.len()
    }

    /// Writes to the client: what is put together first, then the endpoint's bytes as they are.
    fn poll_output(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.data <= COPIED_BYTES_MAX && self.data > 0 && self.answered == 0 {
            let body = &self.from_upstream.filled()[..self.data];
            self.exchange.to_client.extend_from_slice(body);
            self.from_upstream.consume(self.data);
            self.data = 0;
        }
        let head = &self.exchange.to_client[self.answered..];
        let body = &self.from_upstream.filled()[..self.data];
        let io = Pin::new(&mut self.client.io);
        let written = if body.is_empty() {
            ready!(io.poll_write(cx, head))?
        } else if head.is_empty() {
            ready!(io.poll_write(cx, body))?
        } else {
            let both = [io::IoSlice::new(head), io::IoSlice::new(body)];
            ready!(io.poll_write_vectored(cx, &both))?
        };
        if written == 0 {
            return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
        }
        let of_head = written.min(head.len());
        self.answered += of_head;
        self.from_upstream.consume(written - of_head);
        self.data -= written - of_head;
        self.begun = true;
        self.progress = true;
        Poll::Ready(Ok(()))
    }

    /// Whether the request can be sent again as far as its body goes: it has none, or all that was
    /// used of it was there when the try began.
    pub(crate) fn can_repeat(&self) -> bool {
        !self.begun && !self.read_more && self.exchange.to_client.is_empty()
    }
}

fn bad_chunk(bad: super::body::BadChunk) -> ProxyError {
    ErrorKind::BadRequest(bad.0).into()
}

fn bad_response(bad: super::body::BadChunk) -> ProxyError {
    ErrorKind::BadResponse(bad.0).into()
}

/// How long a connection without a request may stay, and how long a head may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClientTimeouts {
    /// Between two requests.
    pub keep_alive: Duration,
    /// From a head's first byte to its last.
    pub head: Duration,
    /// How long one that is kept alive may wait for its last request when the proxy stops.
    pub leaving: Duration,
}

impl Default for ClientTimeouts {
    fn default() -> Self {
        Self {
            keep_alive: Duration::from_secs(75),
            head: Duration::from_secs(15),
            leaving: Duration::from_secs(2),
        }
    }
}
