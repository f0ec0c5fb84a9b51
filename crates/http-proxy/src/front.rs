//! What stands before the wires: PROXY protocol, TLS, and the choice between HTTP/1.1 and HTTP/2.
//!
//! ```text
//!  TCP ─► PROXY header, from trusted ranges ─┬─ TLS ─► ALPN ─┬─► h1
//!                                            │               └─► h2
//!                                            ├─ TLS of a host that is passed through ─► endpoint
//!                                            └─ in clear ─► first bytes ─┬─► h1
//!                                                                        └─► h2 (prior knowledge)
//! ```

use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use bytes::{Bytes, BytesMut};

use crate::balance::Pick;
use crate::client_stream::ClientStream;
use crate::h2::{self, PREFACE};
use crate::head::{ClientInfo, RequestHead, Scheme};
use crate::proxy::HttpProxy;
use crate::proxy_protocol::{self, Trust};
use crate::server::{Handler, Stop};
use crate::table::{BackendId, Timeouts};
use crate::tls::{AcceptError, Accepted, Rewind, TlsAcceptor};
use crate::{h1, upstream};

/// Serves the connections of one listener.
#[derive(Debug, Default)]
pub struct Front {
    /// From whom the PROXY protocol is expected.
    pub proxy_protocol: Trust,
    /// How TLS is accepted; `None` for a listener in clear.
    pub tls: Option<Arc<TlsAcceptor>>,
    /// Connections that ended before a request could be read.
    refused: AtomicU64,
}

impl Front {
    /// A listener in clear.
    pub fn plain(proxy_protocol: Trust) -> Self {
        Self { proxy_protocol, ..Self::default() }
    }

    /// A listener of TLS.
    pub fn tls(proxy_protocol: Trust, tls: Arc<TlsAcceptor>) -> Self {
        Self { proxy_protocol, tls: Some(tls), ..Self::default() }
    }

    /// How many connections ended before a request could be read: no handshake, no PROXY header.
    pub fn refused(&self) -> u64 {
        self.refused.load(Relaxed)
    }
}

/// The listener's handler.
#[derive(Debug, Clone)]
pub struct FrontHandler(pub Arc<Front>);

impl Handler for FrontHandler {
    fn serve(
        &self,
        proxy: Arc<HttpProxy>,
        stream: ClientStream,
        info: ClientInfo,
        stop: Stop,
    ) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        let front = Arc::clone(&self.0);
        Box::pin(async move { front.serve(proxy, stream, info, stop).await })
    }
}

impl Front {
    async fn serve(
        &self,
        proxy: Arc<HttpProxy>,
        mut stream: ClientStream,
        mut info: ClientInfo,
        stop: Stop,
    ) {
        let mut first = BytesMut::new();
        if self.proxy_protocol.expects_header_from(info.peer.ip()) {
            let within = proxy.settings().timeouts.head;
            let header = proxy_protocol::read(&mut stream, &mut first);
            match tokio::time::timeout(within, header).await {
                Ok(Ok(header)) => take_addresses(&mut info, &header),
                Ok(Err(error)) => return self.refuse(&proxy, &info, &error),
                Err(_) => {
                    let why = "its PROXY header did not come in time";
                    return self.refuse(&proxy, &info, &why);
                }
            }
        }
        match &self.tls {
            Some(tls) => self.serve_tls(tls, proxy, stream, first.freeze(), info, stop).await,
            None => self.serve_plain(proxy, stream, &first, info, stop).await,
        }
    }

    fn refuse(&self, proxy: &HttpProxy, info: &ClientInfo, why: &dyn std::fmt::Display) {
        self.refused.fetch_add(1, Relaxed);
        proxy.stats().refused.fetch_add(1, Relaxed);
        tracing::debug!(peer = %info.peer, %why, "a connection is refused");
    }

    async fn serve_plain(
        &self,
        proxy: Arc<HttpProxy>,
        stream: ClientStream,
        first: &[u8],
        info: ClientInfo,
        stop: Stop,
    ) {
        let mut connection = h1::serve::Connection::new(
            proxy.clone(),
            stream,
            first,
            info.clone(),
            Scheme::Http,
            stop.clone(),
        );
        // The preface's first three letters are no method's.
        match connection.begins_with(PREFACE).await {
            Some(false) => connection.serve().await,
            Some(true) => {
                h2::server::serve(proxy, connection.into_io(), info, Scheme::Http, stop).await;
            }
            // Nothing was asked.
            None => {}
        }
    }

    async fn serve_tls(
        &self,
        tls: &TlsAcceptor,
        proxy: Arc<HttpProxy>,
        stream: ClientStream,
        first: Bytes,
        mut info: ClientInfo,
        stop: Stop,
    ) {
        let has_routes = |host: &str| proxy.router().has_exact_host(host);
        match tls.accept(first, stream, has_routes).await {
            Ok(Accepted::Tls { stream, info: settled, h2 }) => {
                info.tls = Some(settled);
                if h2 {
                    h2::server::serve(proxy, *stream, info, Scheme::Https, stop).await;
                } else {
                    h1::serve::serve(proxy, *stream, info, Scheme::Https, stop).await;
                }
            }
            Ok(Accepted::Passthrough { server_name, backend, io }) => {
                if let Err(error) = pass_through(&proxy, &backend, &server_name, io, info).await {
                    tracing::debug!(%error, host = %server_name, "a connection was not passed through");
                }
            }
            Err(AcceptError::Failed(error))
                if error.kind() == std::io::ErrorKind::UnexpectedEof =>
            {
                // A port scan or a load balancer's check: nothing was said.
            }
            Err(error) => self.refuse(&proxy, &info, &error),
        }
    }
}

fn take_addresses(info: &mut ClientInfo, header: &proxy_protocol::Header) {
    if let Some(addresses) = header.addresses {
        let ip = addresses.source.ip().to_canonical();
        info.peer = SocketAddr::new(ip, addresses.source.port());
        info.address = ip;
        info.local = addresses.destination;
    }
}

/// Carries an encrypted connection to an endpoint as it is.
async fn pass_through(
    proxy: &HttpProxy,
    backend: &BackendId,
    server_name: &str,
    mut client: Rewind<ClientStream>,
    info: ClientInfo,
) -> Result<(), crate::ProxyError> {
    let unknown = crate::ErrorKind::NoEndpoint;
    let upstream = proxy.upstreams().get(backend).ok_or(unknown)?;
    let timeouts = Timeouts::default();
    let mut head = RequestHead::new();
    head.client = info;
    head.set_authority(server_name);
    let mut tried = Vec::new();
    let connection = loop {
        let pick = Pick { key: 0, sticky: None, tried: &tried };
        let peer = upstream.balancer.select_backend(&pick).ok_or(unknown)?;
        match upstream.connect_raw(&peer, timeouts.connect, &head).await {
            Ok(connection) => break connection,
            Err(error) if tried.len() >= 2 => return Err(error),
            Err(_) => tried.push(peer),
        }
    };
    let Some(mut endpoint) = upstream::connect::Counted::new(connection) else { return Ok(()) };
    let idle = std::time::Duration::from_hours(1);
    let ended =
        h1::tunnel::run(&mut client, &mut endpoint, h1::buffer::Buffer::default(), idle).await;
    tracing::trace!(?ended, "a connection that was passed through is over");
    Ok(())
}
