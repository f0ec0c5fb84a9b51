//! Buffers that belong to a connection only while they hold something.
//!
//! A thread keeps a few large ones; a connection takes one to read into and gives it back when it is
//! empty. So ten thousand idle connections have no buffers, and one that has sent half a head keeps
//! only what it sent.

use std::cell::RefCell;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, ReadBuf};

/// How large a buffer is: a 64 KiB body and its head fit into one read.
const BYTES: usize = 66 << 10;

/// How many a thread keeps.
const SPARES_MAX: usize = 64;

/// How much a kept rest may grow by at least.
const GROWTH: usize = 1 << 10;

thread_local! {
    static SPARES: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

/// Bytes that were read and not yet used.
#[derive(Debug, Default)]
pub(crate) struct Buffer {
    /// All of it may be written to; empty while there is nothing to hold.
    bytes: Vec<u8>,
    start: usize,
    end: usize,
}

impl Buffer {
    /// One that holds these.
    pub(crate) fn holding(bytes: &[u8]) -> Self {
        Self { bytes: bytes.to_vec(), start: 0, end: bytes.len() }
    }

    /// What is there.
    pub(crate) fn filled(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    /// Whether nothing is.
    pub(crate) fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// How much is there.
    pub(crate) fn len(&self) -> usize {
        self.end - self.start
    }

    /// Where the first unused byte is; to come back to with [`rewind`](Self::rewind) as long as
    /// nothing was [filled in](Self::poll_fill) since.
    pub(crate) fn mark(&self) -> usize {
        self.start
    }

    /// Back to a mark.
    pub(crate) fn rewind(&mut self, mark: usize) {
        self.start = mark.min(self.end);
    }

    /// The first `count` bytes are used. The memory stays, for a mark may lead back.
    pub(crate) fn consume(&mut self, count: usize) {
        self.start = (self.start + count).min(self.end);
    }

    /// Gives the memory back if nothing is there.
    pub(crate) fn release(&mut self) {
        if self.is_empty() && !self.bytes.is_empty() {
            give_back(std::mem::take(&mut self.bytes));
            (self.start, self.end) = (0, 0);
        }
    }

    /// Keeps only the memory that what is there needs.
    pub(crate) fn shrink(&mut self) {
        if self.is_empty() {
            return self.release();
        }
        if self.bytes.len() >= BYTES {
            let mut small = Vec::with_capacity(self.len() + GROWTH);
            small.extend_from_slice(self.filled());
            small.resize(self.len() + GROWTH, 0);
            (self.start, self.end) = (0, self.len());
            give_back(std::mem::replace(&mut self.bytes, small));
        }
    }

    /// Reads more behind what is there; how much, where 0 is the end. No more is read than there is
    /// room: `room` is how much may be held in all.
    pub(crate) fn poll_fill<S: AsyncRead + Unpin>(
        &mut self,
        cx: &mut Context<'_>,
        io: &mut S,
        room: usize,
    ) -> Poll<io::Result<usize>> {
        self.make_room(room);
        let mut into = ReadBuf::new(&mut self.bytes[self.end..]);
        match Pin::new(io).poll_read(cx, &mut into) {
            Poll::Ready(outcome) => {
                let count = into.filled().len();
                self.end += count;
                Poll::Ready(outcome.map(|()| count))
            }
            Poll::Pending => {
                self.shrink();
                Poll::Pending
            }
        }
    }

    /// Reads a little behind what is there and was, so that a [mark](Self::mark) still leads back; how much,
    /// where 0 is the end. Without room nothing is read.
    pub(crate) fn poll_behind<S: AsyncRead + Unpin>(
        &mut self,
        cx: &mut Context<'_>,
        io: &mut S,
    ) -> Poll<io::Result<usize>> {
        if self.bytes.is_empty() {
            return self.poll_fill(cx, io, BYTES);
        }
        if self.end == self.bytes.len() {
            return Poll::Pending;
        }
        let mut into = ReadBuf::new(&mut self.bytes[self.end..]);
        let outcome = ready!(Pin::new(io).poll_read(cx, &mut into));
        let count = into.filled().len();
        self.end += count;
        Poll::Ready(outcome.map(|()| count))
    }

    fn make_room(&mut self, room: usize) {
        if self.bytes.is_empty() {
            self.bytes = SPARES.with_borrow_mut(Vec::pop).unwrap_or_else(|| vec![0; BYTES]);
        } else if self.is_empty() {
            (self.start, self.end) = (0, 0);
        } else if self.end == self.bytes.len() {
            self.bytes.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.len());
            if self.end == self.bytes.len() {
                let grown = (self.bytes.len() * 2).min(room.max(self.bytes.len() + GROWTH));
                self.bytes.resize(grown, 0);
            }
        }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        give_back(std::mem::take(&mut self.bytes));
    }
}

fn give_back(bytes: Vec<u8>) {
    if bytes.len() == BYTES {
        // A thread that ends has no spares any more.
        let _ = SPARES.try_with(|spares| {
            let mut spares = spares.borrow_mut();
            if spares.len() < SPARES_MAX {
                spares.push(bytes);
            }
        });
    }
}

/// Writes from a list of bytes, from `at` on, until all is written.
pub(crate) fn poll_write_from<S: tokio::io::AsyncWrite + Unpin>(
    cx: &mut Context<'_>,
    io: &mut S,
    bytes: &[u8],
    at: &mut usize,
) -> Poll<io::Result<()>> {
    while *at < bytes.len() {
        let written = ready!(Pin::new(&mut *io).poll_write(cx, &bytes[*at..]))?;
        if written == 0 {
            return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
        }
        *at += written;
    }
    Poll::Ready(Ok(()))
}
