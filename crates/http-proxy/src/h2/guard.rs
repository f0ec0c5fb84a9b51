//! Looks at a client's frames before h2 does, for what h2 refuses with a code that is too general:
//! frames of a wrong size, windows that are too large, and frames on streams that the client itself
//! has ended. RFC 9113 names a code for each, and conformance tests ask for it.
//!
//! It sees headers of frames and the entries of SETTINGS, keeps the numbers of streams that are not
//! ended, and copies nothing. On a violation it says GOAWAY by itself and ends the connection.

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::PREFACE;

const PROTOCOL_ERROR: u32 = 1;
const FLOW_CONTROL_ERROR: u32 = 3;
const STREAM_CLOSED: u32 = 5;
const FRAME_SIZE_ERROR: u32 = 6;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const PRIORITY: u8 = 2;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PUSH_PROMISE: u8 = 5;
const PING: u8 = 6;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;

const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
const ACK: u8 = 1;
const INITIAL_WINDOW_SIZE: u16 = 4;

/// How many streams without an end are remembered; h2 allows fewer at once.
const OPEN_MAX: usize = 1024;
/// How many that were ended are.
const ENDED_MAX: usize = 128;

/// A client's connection under guard.
#[derive(Debug)]
pub(super) struct Guard<S> {
    io: S,
    frames: Frames,
    /// What is said last, and how much of it was.
    goodbye: Option<([u8; 17], usize)>,
}

/// Where in the client's frames we are.
#[derive(Debug, Default)]
struct Frames {
    preface_seen: usize,
    head: [u8; 9],
    head_seen: usize,
    payload_left: u32,
    is_settings: bool,
    entry: [u8; 6],
    entry_seen: usize,
    last_stream: u32,
    open: Vec<u32>,
    /// Streams that the client has ended lately.
    ended: VecDeque<u32>,
    /// Between a head's first frame and its last only the next of them may come; h2 sees to that.
    in_head: bool,
}

impl<S> Guard<S> {
    pub(super) fn new(io: S) -> Self {
        Self { io, frames: Frames::default(), goodbye: None }
    }
}

impl Frames {
    /// Looks at bytes that came; the code of a violation.
    fn look(&mut self, mut bytes: &[u8]) -> Option<u32> {
        let preface = bytes.len().min(PREFACE.len() - self.preface_seen);
        self.preface_seen += preface;
        bytes = &bytes[preface..];
        while !bytes.is_empty() {
            if self.payload_left > 0 {
                let count = bytes.len().min(self.payload_left as usize);
                let (payload, rest) = bytes.split_at(count);
                self.payload_left -= count as u32;
                bytes = rest;
                if self.is_settings && self.look_at_settings(payload) {
                    return Some(FLOW_CONTROL_ERROR);
                }
                continue;
            }
            let count = bytes.len().min(self.head.len() - self.head_seen);
            self.head[self.head_seen..self.head_seen + count].copy_from_slice(&bytes[..count]);
            self.head_seen += count;
            bytes = &bytes[count..];
            if self.head_seen == self.head.len() {
                self.head_seen = 0;
                if let Some(code) = self.look_at_head() {
                    return Some(code);
                }
            }
        }
        None
    }

    fn look_at_head(&mut self) -> Option<u32> {
        let [a, b, c, kind, flags, id @ ..] = self.head;
        let length = u32::from_be_bytes([0, a, b, c]);
        let id = u32::from_be_bytes(id) & 0x7fff_ffff;
        self.payload_left = length;
        self.is_settings = kind == SETTINGS;
        self.entry_seen = 0;
        let wrong_size = match kind {
            RST_STREAM | WINDOW_UPDATE => length != 4,
            PRIORITY => length != 5,
            PING => length != 8,
            SETTINGS if flags & ACK != 0 => length != 0,
            SETTINGS => !length.is_multiple_of(6),
            _ => false,
        };
        if wrong_size {
            return Some(FRAME_SIZE_ERROR);
        }
        if kind == PUSH_PROMISE {
            return Some(PROTOCOL_ERROR);
        }
        if self.in_head {
            self.in_head = kind != CONTINUATION || flags & END_HEADERS == 0;
            return None;
        }
        match kind {
            HEADERS | DATA => {
                self.in_head = kind == HEADERS && flags & END_HEADERS == 0;
                self.look_at_stream(kind, flags, id)
            }
            RST_STREAM => {
                self.end(id);
                None
            }
            _ => None,
        }
    }

    fn end(&mut self, id: u32) {
        self.open.retain(|open| *open != id);
        if self.ended.len() == ENDED_MAX {
            self.ended.pop_front();
        }
        self.ended.push_back(id);
    }

    /// A frame on a stream that the client has ended is of no stream.
    fn look_at_stream(&mut self, kind: u8, flags: u8, id: u32) -> Option<u32> {
        if id > self.last_stream && kind == HEADERS {
            self.last_stream = id;
            if self.open.len() < OPEN_MAX {
                self.open.push(id);
            }
        } else if self.ended.contains(&id) && !self.open.contains(&id) {
            return Some(STREAM_CLOSED);
        }
        if flags & END_STREAM != 0 && self.open.contains(&id) {
            self.end(id);
        }
        // What is of no stream at all is h2's to refuse.
        None
    }

    /// Whether a window is asked for that is larger than there can be.
    fn look_at_settings(&mut self, payload: &[u8]) -> bool {
        for byte in payload {
            self.entry[self.entry_seen] = *byte;
            self.entry_seen += 1;
            if self.entry_seen == self.entry.len() {
                self.entry_seen = 0;
                let [a, b, value @ ..] = self.entry;
                let window = u16::from_be_bytes([a, b]) == INITIAL_WINDOW_SIZE;
                if window && u32::from_be_bytes(value) > 0x7fff_ffff {
                    return true;
                }
            }
        }
        false
    }

    fn goodbye(&self, code: u32) -> [u8; 17] {
        let mut frame = [0, 0, 8, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        frame[9..13].copy_from_slice(&self.last_stream.to_be_bytes());
        frame[13..].copy_from_slice(&code.to_be_bytes());
        frame
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for Guard<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this.goodbye.is_none() {
            let before = into.filled().len();
            ready!(Pin::new(&mut this.io).poll_read(cx, into))?;
            match this.frames.look(&into.filled()[before..]) {
                None => return Poll::Ready(Ok(())),
                Some(code) => {
                    into.set_filled(before);
                    this.goodbye = Some((this.frames.goodbye(code), 0));
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
