//! A stream of HTTP/2 as bytes both ways, for what was upgraded.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use h2::{RecvStream, SendStream};

/// A stream's two directions as one stream of bytes.
pub(super) struct Tunnel {
    receive: RecvStream,
    send: SendStream<Bytes>,
    held: Bytes,
}

impl Tunnel {
    pub(super) fn new(receive: RecvStream, send: SendStream<Bytes>) -> Self {
        Self { receive, send, held: Bytes::new() }
    }
}

impl tokio::io::AsyncRead for Tunnel {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut tokio::io::ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        while self.held.is_empty() {
            match ready!(self.receive.poll_data(cx)) {
                None => return Poll::Ready(Ok(())),
                Some(Err(error)) => return Poll::Ready(Err(std::io::Error::other(error))),
                Some(Ok(data)) => {
                    let _ = self.receive.flow_control().release_capacity(data.len());
                    self.held = data;
                }
            }
        }
        let count = self.held.len().min(into.remaining());
        into.put_slice(&self.held.split_to(count));
        Poll::Ready(Ok(()))
    }
}

impl tokio::io::AsyncWrite for Tunnel {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        if bytes.is_empty() {
            return Poll::Ready(Ok(0));
        }
        self.send.reserve_capacity(bytes.len());
        match ready!(self.send.poll_capacity(cx)) {
            Some(Ok(room)) => {
                let count = room.min(bytes.len());
                let sent = self.send.send_data(Bytes::copy_from_slice(&bytes[..count]), false);
                Poll::Ready(sent.map(|()| count).map_err(std::io::Error::other))
            }
            _ => Poll::Ready(Err(std::io::ErrorKind::BrokenPipe.into())),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        let sent = self.send.send_data(Bytes::new(), true);
        Poll::Ready(sent.map_err(std::io::Error::other))
    }
}
