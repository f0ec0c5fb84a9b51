//! A connection whose first bytes were read to see what it is, and are read again.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Buf, Bytes};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// `io`, with `front` before what it has yet to give.
#[derive(Debug)]
pub struct Rewind<T> {
    front: Bytes,
    io: T,
}

impl<T> Rewind<T> {
    /// A connection of which nothing was read.
    pub fn new(io: T) -> Self {
        Self::with(Bytes::new(), io)
    }

    /// A connection of which `front` was read.
    pub fn with(front: Bytes, io: T) -> Self {
        Self { front, io }
    }

    /// The connection beneath.
    pub fn get_ref(&self) -> &T {
        &self.io
    }

    /// What is still to be read again, and the connection.
    pub fn into_parts(self) -> (Bytes, T) {
        (self.front, self.io)
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Rewind<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.front.has_remaining() {
            let length = self.front.len().min(into.remaining());
            into.put_slice(&self.front[..length]);
            self.front.advance(length);
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.io).poll_read(cx, into)
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Rewind<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
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
