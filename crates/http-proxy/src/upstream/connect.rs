//! Connections to endpoints: made within the backend's bounds, kept, used again.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;

use super::Upstream;
use crate::balance::Peer;
use crate::error::{ErrorKind, ProxyError};
use crate::h1::timer::{Timer, after};
use crate::head::RequestHead;
use crate::proxy_protocol::{self, Addresses, Version};
use crate::reach;
use crate::table::{EndpointAddress, UpstreamProtocol};

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
    /// How its backend was spoken to when it was made.
    manner: Manner,
    /// The deadline of what its request waits for. Kept with the connection, because to make a timer
    /// for each request costs more than to move it; while nobody uses it, it may ring for nobody.
    timer: Timer,
}

/// What a connection is good for: a backend's settings as of some time and, where TLS asks for the name
/// that the client does, the requests for that name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Manner {
    era: u32,
    server_name: Option<Box<str>>,
}

impl Manner {
    /// Whether it does for a request by the settings of now.
    pub(crate) fn fits(&self, upstream: &Upstream, request: &RequestHead) -> bool {
        self.era == upstream.era.load(Acquire)
            && self.server_name.as_deref().is_none_or(|name| name == request.host())
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // In one order with what whoever waits does, or neither would see the other.
        self.upstream.connections.fetch_sub(1, SeqCst);
        self.upstream.wake_one();
    }
}

impl Connection {
    /// What carries it.
    pub fn stream(&mut self) -> io::Result<&mut UpstreamStream> {
        self.stream.as_mut().ok_or_else(|| io::ErrorKind::NotConnected.into())
    }

    /// What carries it, and the deadline of what its request waits for.
    pub(crate) fn parts(&mut self) -> io::Result<(&mut UpstreamStream, &mut Timer)> {
        let stream = self.stream.as_mut().ok_or(io::ErrorKind::NotConnected)?;
        Ok((stream, &mut self.timer))
    }

    /// Sets the deadline of what its request waits for.
    pub(crate) fn set_deadline(&mut self, at: Instant) {
        self.timer.set(at);
    }

    /// Whether that has passed; if not, the task is woken then.
    pub(crate) fn poll_expired(&mut self, cx: &mut Context<'_>) -> bool {
        self.timer.poll_expired(cx)
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
        // The timer is the other thread's too.
        self.timer = Timer::new(Instant::now());
        self.stream.is_some()
    }

    /// Gives it back, to be used again, unless its endpoint is gone or spoken to otherwise by now.
    pub fn keep(mut self, peer: &Peer, now: Instant) {
        if peer.is_removed() || self.manner.era != self.upstream.era.load(Acquire) {
            return;
        }
        self.idle_since = now;
        self.reused = true;
        let upstream = self.upstream.clone();
        let settings = upstream.settings();
        // A connection that named its client is that client's alone.
        if settings.proxy_protocol.is_none() {
            peer.pool.put(self, settings.limits.idle_max);
        }
        upstream.wake_one();
    }
}

/// Counts a request that waits for a connection, as long as it lives.
pub(crate) struct Pending<'a>(&'a Upstream);

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        self.0.pending.fetch_sub(1, Relaxed);
    }
}

impl Upstream {
    /// An idle connection to the endpoint that does for a request, if there is one.
    pub fn reuse(&self, peer: &Peer, request: &RequestHead) -> Option<Connection> {
        peer.pool.take(|connection| connection.manner.fits(self, request))
    }

    /// A connection to the endpoint: an idle one, else a new one within the bounds.
    pub async fn connect_for(
        self: &Arc<Self>,
        peer: &Peer,
        within: Duration,
        request: &RequestHead,
    ) -> Result<Connection, ProxyError> {
        if let Some(idle) = self.reuse(peer, request) {
            return Ok(idle);
        }
        let deadline = tokio::time::Instant::from_std(after(Instant::now(), within));
        // Who never got a place says nothing about the endpoint.
        let place = tokio::time::timeout_at(deadline, self.place(peer, request)).await;
        let slot = match place.unwrap_or(Err(ProxyError::unsent(ErrorKind::Overloaded)))? {
            Place::Idle(connection) => return Ok(connection),
            Place::New(slot) => slot,
        };
        let opened = slot.open(peer, Dial::for_request(request));
        match tokio::time::timeout_at(deadline, opened).await {
            Ok(connection) => connection,
            Err(_) => Err(ProxyError::unsent(ErrorKind::ConnectTimeout)),
        }
    }

    /// A new connection without TLS of ours, for bytes that are passed through.
    pub(crate) async fn connect_raw(
        self: &Arc<Self>,
        peer: &Peer,
        within: Duration,
        request: &RequestHead,
    ) -> Result<Connection, ProxyError> {
        let slot = self.slot(self.settings().limits.connections_max);
        let slot = slot.ok_or_else(|| ProxyError::unsent(ErrorKind::Overloaded))?;
        let dial = Dial { raw: true, ..Dial::for_request(request) };
        match tokio::time::timeout(within, slot.open(peer, dial)).await {
            Ok(connection) => connection,
            Err(_) => Err(ProxyError::unsent(ErrorKind::ConnectTimeout)),
        }
    }

    /// Whether requests share connections there.
    pub(crate) fn is_multiplexed(&self) -> bool {
        let protocol = &self.settings().protocol;
        matches!(protocol, UpstreamProtocol::H2c | UpstreamProtocol::HttpsH2(_))
    }

    /// A place among the backend's connections, as soon as there is one.
    async fn place(
        self: &Arc<Self>,
        peer: &Peer,
        request: &RequestHead,
    ) -> Result<Place, ProxyError> {
        let limits = self.settings().limits.clone();
        let mut waits = None;
        loop {
            // Before looking: what is freed from now on is told.
            let mut freed = std::pin::pin!(self.freed.notified());
            freed.as_mut().enable();
            if let Some(idle) = self.reuse(peer, request) {
                return Ok(Place::Idle(idle));
            }
            if let Some(slot) = self.slot(limits.connections_max) {
                return Ok(Place::New(slot));
            }
            if waits.is_none() {
                waits = Some(self.wait(limits.pending_max)?);
                // What was freed until now was told to nobody.
                continue;
            }
            // Idle connections to other endpoints hold places too.
            if self.balancer.get_backends().iter().any(|other| drop_one_idle(other)) {
                continue;
            }
            freed.await;
        }
    }

    /// Counts one more request that waits for a connection, if one more may.
    pub(crate) fn wait(&self, pending_max: u32) -> Result<Pending<'_>, ProxyError> {
        let before = self.pending.fetch_add(1, SeqCst);
        let waits = Pending(self);
        if before >= pending_max {
            return Err(ProxyError::new(ErrorKind::Overloaded));
        }
        Ok(waits)
    }

    /// A place for a connection, or an idle one, may be free: somebody who waits shall look.
    pub(crate) fn wake_one(&self) {
        if self.pending.load(SeqCst) > 0 {
            self.freed.notify_one();
        }
    }

    /// A connection beside the pool, for a health check.
    pub(super) async fn open_for_check(
        self: &Arc<Self>,
        peer: &Peer,
        host: &str,
    ) -> Result<Connection, ProxyError> {
        let slot = self.slot(u32::MAX).ok_or(ErrorKind::Overloaded)?;
        slot.open(peer, Dial { host, ..Dial::default() }).await
    }

    /// A place for one more connection.
    pub(crate) fn slot(self: &Arc<Self>, connections_max: u32) -> Option<Connection> {
        let one_more = |count: u32| (count < connections_max).then_some(count + 1);
        self.connections.fetch_update(SeqCst, SeqCst, one_more).ok()?;
        let now = Instant::now();
        Some(Connection {
            stream: None,
            upstream: self.clone(),
            idle_since: now,
            reused: false,
            // Before anything of the settings is looked at.
            manner: Manner { era: self.era.load(Acquire), server_name: None },
            timer: Timer::new(now),
        })
    }
}

fn drop_one_idle(peer: &Peer) -> bool {
    peer.pool.take(|_| true).is_some()
}

/// A place among a backend's connections.
enum Place {
    /// With a connection that is there.
    Idle(Connection),
    /// With one that is to be made.
    New(Connection),
}

/// On whose behalf a connection is made.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Dial<'a> {
    host: &'a str,
    client: Option<Addresses>,
    /// Without TLS of ours, whatever the backend speaks.
    raw: bool,
}

impl<'a> Dial<'a> {
    fn for_request(request: &'a RequestHead) -> Self {
        let client = &request.client;
        let port = if client.address == client.peer.ip() { client.peer.port() } else { 0 };
        let source = SocketAddr::new(client.address, port);
        let client = Addresses { source, destination: client.local };
        Self { host: request.host(), client: Some(client), raw: false }
    }
}

impl Connection {
    /// Makes it, on behalf of a request. The caller bounds the time.
    pub(crate) async fn open_for(
        self,
        peer: &Peer,
        request: &RequestHead,
    ) -> Result<Self, ProxyError> {
        self.open(peer, Dial::for_request(request)).await
    }

    async fn open(mut self, peer: &Peer, dial: Dial<'_>) -> Result<Self, ProxyError> {
        let failed = |error| ProxyError::unsent(ErrorKind::Connect).because(error);
        let stream = match peer.address() {
            EndpointAddress::Socket(address) => TcpStream::connect(address).await,
            EndpointAddress::Name(name, port) => {
                reach::connect(name, *port, self.upstream.local_targets).await
            }
        };
        let mut stream = stream.inspect_err(|error| self.upstream.tell(error)).map_err(failed)?;
        // Heads and bodies are written in pieces as they come: none may wait for an acknowledgement.
        stream.set_nodelay(true).map_err(failed)?;
        let settings = self.upstream.settings().clone();
        if let Some(version) = settings.proxy_protocol {
            let version = if version == 1 { Version::V1 } else { Version::V2 };
            let local = stream.local_addr().map_err(failed)?;
            // Who speaks for nobody, as a health check does, names itself.
            let own = Addresses { source: local, destination: stream.peer_addr().map_err(failed)? };
            let header = proxy_protocol::encode(version, dial.client.unwrap_or(own));
            stream.write_all(&header).await.map_err(failed)?;
        }
        let tls = self.upstream.tls.load_full();
        self.stream = Some(match tls.as_deref() {
            _ if dial.raw => UpstreamStream::Plain(stream),
            None => UpstreamStream::Plain(stream),
            Some(Err(reason)) => return Err(failed(io::Error::other(reason.clone()))),
            Some(Ok(tls)) => {
                let named = match &settings.protocol {
                    UpstreamProtocol::Https(own) | UpstreamProtocol::HttpsH2(own) => {
                        own.server_name.as_deref()
                    }
                    UpstreamProtocol::Http1 | UpstreamProtocol::H2c => None,
                };
                self.manner.server_name = named.is_none().then(|| dial.host.into());
                let name = match (named.unwrap_or(dial.host), peer.address()) {
                    ("", EndpointAddress::Socket(address)) => address.ip().to_string(),
                    ("", EndpointAddress::Name(name, _)) => name.to_string(),
                    (name, _) => name.to_owned(),
                };
                // Whoever asked bounds the time of the whole.
                let connected = tls.connect(stream, &name, Duration::from_mins(1)).await;
                let (stream, _) = connected.map_err(|error| failed(io::Error::other(error)))?;
                UpstreamStream::Boxed(Box::new(stream))
            }
        });
        Ok(self)
    }

    /// What it is good for.
    pub(crate) fn manner(&self) -> &Manner {
        &self.manner
    }

    /// Takes what carries it; the connection still counts until it is dropped.
    pub(crate) fn take_stream(&mut self) -> Option<UpstreamStream> {
        self.stream.take()
    }

    /// Whether it is encrypted.
    pub(crate) fn is_tls(&self) -> bool {
        matches!(self.stream, Some(UpstreamStream::Boxed(_)))
    }
}

/// A connection as a stream of its own, which counts until it is dropped.
pub(crate) struct Counted {
    stream: UpstreamStream,
    _connection: Connection,
}

impl Counted {
    /// `None` if there is nothing to carry it.
    pub(crate) fn new(mut connection: Connection) -> Option<Self> {
        Some(Self { stream: connection.take_stream()?, _connection: connection })
    }
}

impl AsyncRead for Counted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Counted {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// Makes connections ahead where settings ask for it, one per endpoint and turn.
pub(super) fn prewarm(upstream: &Arc<Upstream>) {
    let limits = upstream.settings().limits.clone();
    // Whose name TLS would have to ask for is not known before a request is there.
    let of_one_name = match &upstream.settings().protocol {
        UpstreamProtocol::Https(tls) => tls.server_name.is_some(),
        UpstreamProtocol::Http1 | UpstreamProtocol::H2c | UpstreamProtocol::HttpsH2(_) => true,
    };
    if limits.prewarm == 0
        || !of_one_name
        || upstream.is_multiplexed()
        || upstream.settings().proxy_protocol.is_some()
    {
        return;
    }
    for peer in upstream.balancer.get_backends() {
        if peer.takes_new() && peer.pool.len() < limits.prewarm.min(limits.idle_max) {
            let upstream = upstream.clone();
            tokio::spawn(async move {
                let Some(slot) = upstream.slot(limits.connections_max) else { return };
                let opened =
                    tokio::time::timeout(Duration::from_secs(5), slot.open(&peer, Dial::default()))
                        .await;
                if let Ok(Ok(connection)) = opened {
                    connection.keep(&peer, Instant::now());
                }
            });
        }
    }
}
