//! Connections to endpoints: made within the backend's bounds, kept, used again.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use super::Upstream;
use crate::balance::Peer;
use crate::error::{ErrorKind, ProxyError};
use crate::table::EndpointAddress;

/// A stream of bytes in both directions.
pub trait Io: AsyncRead + AsyncWrite + Send + Unpin + 'static {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin + 'static> Io for T {}

/// What carries a connection to an endpoint.
pub enum UpstreamStream {
    /// TCP as it is.
    Plain(TcpStream),
    /// TLS, or anything else.
    Boxed(Box<dyn Io>),
}

impl std::fmt::Debug for UpstreamStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Plain(stream) => f.debug_tuple("Plain").field(stream).finish(),
            Self::Boxed(_) => f.write_str("Boxed"),
        }
    }
}

impl AsyncRead for UpstreamStream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_read(cx, buf),
            Self::Boxed(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for UpstreamStream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write(cx, buf),
            Self::Boxed(stream) => Pin::new(stream).poll_write(cx, buf),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
            Self::Boxed(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Self::Boxed(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Boxed(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}

/// A connection to an endpoint that counts among its backend's.
#[derive(Debug)]
pub struct Connection {
    /// What carries it. `None` only while it moves to another thread.
    stream: Option<UpstreamStream>,
    upstream: Arc<Upstream>,
    /// Since when nobody has used it.
    pub(super) idle_since: Instant,
    /// Whether it has served a request before: then it may have been closed unnoticed.
    pub reused: bool,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.upstream.connections.fetch_sub(1, Relaxed);
        if self.upstream.pending.load(Relaxed) > 0 {
            self.upstream.freed.notify_one();
        }
    }
}

impl Connection {
    /// What carries it.
    pub fn stream(&mut self) -> io::Result<&mut UpstreamStream> {
        self.stream.as_mut().ok_or_else(|| io::ErrorKind::NotConnected.into())
    }

    /// Whether the other side has neither closed nor spoken unasked. Asks the kernel only if the
    /// reactor has seen something.
    pub(super) fn is_open(&mut self) -> bool {
        match &mut self.stream {
            Some(UpstreamStream::Plain(stream)) => {
                let mut byte = [0];
                matches!(stream.try_read(&mut byte), Err(error) if error.kind() == io::ErrorKind::WouldBlock)
            }
            Some(UpstreamStream::Boxed(stream)) => {
                let mut byte = [0];
                let mut buf = ReadBuf::new(&mut byte);
                let mut context = Context::from_waker(std::task::Waker::noop());
                Pin::new(stream).poll_read(&mut context, &mut buf).is_pending()
            }
            None => false,
        }
    }

    /// Moves the connection to this thread's reactor.
    pub(super) fn adopt(&mut self) -> bool {
        match self.stream.take() {
            Some(UpstreamStream::Plain(stream)) => {
                let moved = stream.into_std().and_then(TcpStream::from_std);
                self.stream = moved.ok().map(UpstreamStream::Plain);
            }
            other => self.stream = other,
        }
        self.stream.is_some()
    }

    /// Gives it back, to be used again, unless its endpoint is gone.
    pub fn keep(mut self, peer: &Peer, now: Instant) {
        if peer.is_removed() {
            return;
        }
        self.idle_since = now;
        self.reused = true;
        let upstream = self.upstream.clone();
        let idle_max = upstream.settings().limits.idle_max;
        peer.pool.put(self, idle_max);
        if upstream.pending.load(Relaxed) > 0 {
            upstream.freed.notify_one();
        }
    }
}

/// Counts a request that waits for a connection, as long as it lives.
struct Pending<'a>(&'a Upstream);

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        self.0.pending.fetch_sub(1, Relaxed);
    }
}

impl Upstream {
    /// An idle connection to the endpoint, if there is one.
    pub fn reuse(&self, peer: &Peer) -> Option<Connection> {
        peer.pool.take()
    }

    /// A connection to the endpoint: an idle one, else a new one within the bounds.
    pub async fn connect(
        self: &Arc<Self>,
        peer: &Peer,
        within: Duration,
    ) -> Result<Connection, ProxyError> {
        match tokio::time::timeout(within, self.connect_untimed(peer)).await {
            Ok(connection) => connection,
            Err(_) => Err(ProxyError::unsent(ErrorKind::ConnectTimeout)),
        }
    }

    async fn connect_untimed(self: &Arc<Self>, peer: &Peer) -> Result<Connection, ProxyError> {
        let limits = self.settings().limits.clone();
        let mut waits = None;
        loop {
            if let Some(idle) = peer.pool.take() {
                return Ok(idle);
            }
            if let Some(slot) = self.slot(limits.connections_max) {
                return slot.open(peer).await;
            }
            if waits.is_none() {
                let before = self.pending.fetch_add(1, Relaxed);
                waits = Some(Pending(self));
                if before >= limits.pending_max {
                    return Err(ProxyError::new(ErrorKind::Overloaded));
                }
            }
            // Idle connections to other endpoints hold places too.
            if self.balancer.get_backends().iter().any(|other| drop_one_idle(other)) {
                continue;
            }
            self.freed.notified().await;
        }
    }

    /// A connection beside the pool, for a health check.
    pub(super) async fn open_for_check(
        self: &Arc<Self>,
        peer: &Peer,
    ) -> Result<Connection, ProxyError> {
        let slot = self.slot(u32::MAX).ok_or(ErrorKind::Overloaded)?;
        slot.open(peer).await
    }

    /// A place for one more connection.
    fn slot(self: &Arc<Self>, connections_max: u32) -> Option<Connection> {
        let one_more = |count: u32| (count < connections_max).then_some(count + 1);
        self.connections.fetch_update(Relaxed, Relaxed, one_more).ok()?;
        Some(Connection {
            stream: None,
            upstream: self.clone(),
            idle_since: Instant::now(),
            reused: false,
        })
    }
}

fn drop_one_idle(peer: &Peer) -> bool {
    peer.pool.take().is_some()
}

impl Connection {
    async fn open(mut self, peer: &Peer) -> Result<Self, ProxyError> {
        let failed = |error| ProxyError::unsent(ErrorKind::Connect).because(error);
        let stream = match peer.address() {
            EndpointAddress::Socket(address) => TcpStream::connect(address).await,
            EndpointAddress::Name(name, port) => TcpStream::connect((&**name, *port)).await,
        };
        let stream = stream.map_err(failed)?;
        // Heads and bodies are written in pieces as they come: none may wait for an acknowledgement.
        stream.set_nodelay(true).map_err(failed)?;
        self.stream = Some(UpstreamStream::Plain(stream));
        Ok(self)
    }
}

/// Makes connections ahead where settings ask for it, one per endpoint and turn.
pub(super) fn prewarm(upstream: &Arc<Upstream>) {
    let limits = upstream.settings().limits.clone();
    if limits.prewarm == 0 {
        return;
    }
    for peer in upstream.balancer.get_backends() {
        if peer.takes_new() && peer.pool.len() < limits.prewarm.min(limits.idle_max) {
            let upstream = upstream.clone();
            tokio::spawn(async move {
                let Some(slot) = upstream.slot(limits.connections_max) else { return };
                let opened = tokio::time::timeout(Duration::from_secs(5), slot.open(&peer)).await;
                if let Ok(Ok(connection)) = opened {
                    connection.keep(&peer, Instant::now());
                }
            });
        }
    }
}
