//! Connections of the HTTPS port: the handshake, then HTTP, or bytes for a host that is passed on.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use telaio_http_proxy::head::{ClientInfo, Scheme};
use telaio_http_proxy::server::{Handler, Stop};
use telaio_http_proxy::tls::{Accepted, TlsAcceptor};
use telaio_http_proxy::{HttpProxy, h1};
use tokio::net::TcpStream;

/// Serves the HTTPS port.
pub(crate) struct HttpsHandler {
    acceptor: Arc<TlsAcceptor>,
}

impl HttpsHandler {
    pub(crate) fn new(acceptor: Arc<TlsAcceptor>) -> Self {
        Self { acceptor }
    }
}

impl Handler for HttpsHandler {
    fn serve(
        &self,
        proxy: Arc<HttpProxy>,
        stream: TcpStream,
        mut info: ClientInfo,
        stop: Stop,
    ) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        let acceptor = Arc::clone(&self.acceptor);
        Box::pin(async move {
            match acceptor.accept(Bytes::new(), stream).await {
                Ok(Accepted::Tls { stream, info: tls, h2: _ }) => {
                    info.tls = Some(tls);
                    h1::serve::serve(proxy, *stream, info, Scheme::Https, stop).await;
                }
                Ok(Accepted::Passthrough { .. }) => {}
                Err(error) => tracing::debug!(%error, peer = %info.peer, "no TLS connection"),
            }
        })
    }
}
