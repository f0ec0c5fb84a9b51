//! Looks at a client's frames before h2 does, for what h2 refuses with a code that is too general,
//! or does not see at all. RFC 9113 names a code for each, and conformance tests ask for it:
//!
//! - frames of a wrong size, windows that are too large, and frames on streams that the client
//!   itself has ended: the guard says GOAWAY and ends the connection;
//! - header blocks that cannot be decoded, which h2 calls protocol errors: its GOAWAY gets the code
//!   for compression errors on its way out;
//! - pseudo-headers in trailers, which h2 drops silently: h2 does refuse them after a regular field, so
//!   trailers get one in front, of the kind that is never passed on;
//! - a fragment in `:path`, which the `http` crate drops silently: such a head gets the same field in
//!   front, so that h2 resets the stream; one in several frames ends the connection;
//! - GOAWAY, on which h2 hangs up at once when nothing runs, though the client may still ping: it is
//!   taken out, and told to whoever holds [`Leaving`].
//!
//! It sees headers of frames, the entries of SETTINGS, and header blocks, which it keeps until h2 has
//! read them. Everything else passes without a copy; only trailers, GOAWAY, and a frame's header
//! or a request's head that comes in pieces, take a way round.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::frames::{COMPRESSION_ERROR, Frames, GOAWAY, HEAD_BYTES, Look, PROTOCOL_ERROR};

/// GOAWAY without a text.
const GOODBYE_BYTES: usize = 17;

/// Whether the client has said that it will ask for nothing more.
pub(super) type Leaving = Arc<AtomicBool>;

/// A client's connection under guard.
#[derive(Debug)]
pub(super) struct Guard<S> {
    io: S,
    frames: Frames,
    leaving: Leaving,
    /// What came and was not looked at yet, from the beginning of a frame on.
    held: Vec<u8>,
    /// What was looked at and is to be read next, and how much of it was.
    out: Vec<u8>,
    out_read: usize,
    /// What is said last, and how much of it was.
    goodbye: Option<([u8; GOODBYE_BYTES], usize)>,
    /// Whether h2's own last word is being corrected.
    corrects: bool,
}

impl<S> Guard<S> {
    pub(super) fn new(io: S, leaving: Leaving) -> Self {
        Self {
            io,
            frames: Frames::default(),
            leaving,
            held: Vec::new(),
            out: Vec::new(),
            out_read: 0,
            goodbye: None,
            corrects: false,
        }
    }

    /// Gives what is to be read next.
    fn give(&mut self, into: &mut ReadBuf<'_>) {
        let rest = &self.out[self.out_read..];
        let count = rest.len().min(into.remaining());
        into.put_slice(&rest[..count]);
        self.out_read += count;
        if self.out_read == self.out.len() {
            (self.out, self.out_read) = (Vec::new(), 0);
        }
    }

    fn part(&mut self, code: u32) {
        self.goodbye = Some((goodbye(self.frames.last_stream(), code), 0));
    }

    /// Looks at what is held, as far as it goes.
    fn look_at_held(&mut self) {
        loop {
            match self.frames.look(&self.held) {
                Look::Through => {
                    self.out.append(&mut self.held);
                    // Seldom needed, so not kept.
                    self.held = Vec::new();
                    return;
                }
                Look::Hold(at) => {
                    self.out.extend(self.held.drain(..at));
                    match self.frames.rewrite(&self.held, &mut self.out) {
                        0 => return,
                        taken => drop(self.held.drain(..taken)),
                    }
                    if self.frames.is_leaving() {
                        self.leaving.store(true, Relaxed);
                    }
                }
                Look::Violation(code) => return self.part(code),
            }
        }
    }

    /// Whether these bytes are h2's last word on a header block, with a code that is too general.
    fn is_to_correct(&mut self, last: &[u8]) -> bool {
        if !self.corrects && last.ends_with(&PROTOCOL_ERROR.to_be_bytes()) {
            let parting = last.last_chunk::<GOODBYE_BYTES>();
            let is_goodbye = |frame: &[u8; GOODBYE_BYTES]| frame[..HEAD_BYTES] == GOODBYE_HEAD;
            self.corrects = parting.is_some_and(is_goodbye) && self.frames.blames_coding();
        }
        self.corrects
    }
}

const GOODBYE_HEAD: [u8; HEAD_BYTES] = [0, 0, 8, GOAWAY, 0, 0, 0, 0, 0];

fn goodbye(last_stream: u32, code: u32) -> [u8; GOODBYE_BYTES] {
    let mut frame = [0; GOODBYE_BYTES];
    frame[..9].copy_from_slice(&GOODBYE_HEAD);
    frame[9..13].copy_from_slice(&last_stream.to_be_bytes());
    frame[13..].copy_from_slice(&code.to_be_bytes());
    frame
}

/// A last word, or what is left of it, with the right code: only the last byte differs.
fn corrected<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> Vec<u8> {
    let mut bytes: Vec<u8> = pieces.flatten().copied().collect();
    if let Some(last) = bytes.last_mut() {
        *last = COMPRESSION_ERROR as u8;
    }
    bytes
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for Guard<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let before = into.filled().len();
        while this.goodbye.is_none() {
            if !this.out.is_empty() {
                this.give(into);
                return Poll::Ready(Ok(()));
            }
            // Whoever asks for more has read all that it was given.
            this.frames.forget_blocks();
            ready!(Pin::new(&mut this.io).poll_read(cx, into))?;
            let came = &into.filled()[before..];
            if !this.held.is_empty() {
                if came.is_empty() {
                    // Cut off: h2 has its own word for that.
                    std::mem::swap(&mut this.held, &mut this.out);
                    continue;
                }
                this.held.extend_from_slice(came);
                into.set_filled(before);
                this.look_at_held();
                continue;
            }
            match this.frames.look(came) {
                Look::Through => return Poll::Ready(Ok(())),
                Look::Violation(code) => {
                    into.set_filled(before);
                    this.part(code);
                }
                Look::Hold(at) => {
                    this.held.extend_from_slice(&came[at..]);
                    into.set_filled(before + at);
                    this.look_at_held();
                    if at > 0 && this.goodbye.is_none() {
                        return Poll::Ready(Ok(()));
                    }
                    into.set_filled(before);
                }
            }
        }
        // Said once; then the connection reads as ended.
        if let Some((frame, said)) = &mut this.goodbye {
            while *said < frame.len() {
                let count = ready!(Pin::new(&mut this.io).poll_write(cx, &frame[*said..]))?;
                *said += count.max(1);
            }
            ready!(Pin::new(&mut this.io).poll_flush(cx))?;
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Guard<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.goodbye.is_some() {
            // Nothing follows a goodbye.
            return Poll::Ready(Ok(bytes.len()));
        }
        if self.is_to_correct(bytes) {
            let bytes = corrected(std::iter::once(bytes));
            return Pin::new(&mut self.io).poll_write(cx, &bytes);
        }
        Pin::new(&mut self.io).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if self.goodbye.is_some() {
            return Poll::Ready(Ok(slices.iter().map(|slice| slice.len()).sum()));
        }
        let last = slices.iter().rfind(|slice| !slice.is_empty());
        if last.is_some_and(|last| self.is_to_correct(last)) {
            let bytes = corrected(slices.iter().map(|slice| &**slice));
            return Pin::new(&mut self.io).poll_write(cx, &bytes);
        }
        Pin::new(&mut self.io).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests;
