//! Serving the admin API and its page: this machine's people, `telaio status` and scripts ask here.
//!
//! Connections are bounded in number, heads in size and time. A page holds its connection for as long
//! as it is open, so a connection may last; one that says nothing may not.

use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use parking_lot::Mutex;
use telaio_gui::guard::ClientAddress;
use tokio::net::TcpStream;

use super::places::Places;
use crate::gui::Admin;

/// Where the status is.
pub(crate) const STATUS_PATH: &str = "/api/v1/status";
/// How many connections there are at a time: pages, each with its stream, and whoever else asks.
const CONNECTIONS_MAX: usize = 512;
/// How long a connection may take to send a request's head, and to shake hands.
const HEAD_TIME_MAX: Duration = Duration::from_secs(10);
/// How long a head may be.
const HEAD_BYTES_MAX: usize = 32 << 10;
/// How many fields it may have.
const HEADERS_MAX: usize = 64;
/// How long a connection may last; a page opens another.
const CONNECTION_TIME_MAX: Duration = Duration::from_hours(1);

/// Serves until the runtime ends.
pub(super) async fn serve(listener: TcpListener, admin: Admin) {
    let listener = match tokio::net::TcpListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => {
            tracing::error!(%error, "cannot serve the admin API");
            return;
        }
    };
    let Admin { server, tls } = admin;
    let acceptor = tls.map(tokio_rustls::TlsAcceptor::from);
    let router = server.router();
    tokio::spawn(async move { server.run().await });
    let places = Arc::new(Mutex::new(Places::new(CONNECTIONS_MAX)));
    loop {
        let (stream, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                // Mostly a lack of file descriptors, which time mends.
                tracing::warn!(%error, "cannot take a connection");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let router = router.clone().layer(Extension(ClientAddress(peer.ip())));
        let acceptor = acceptor.clone();
        let another_ended = places.lock().give(|ticket| {
            let (asked, left) = (Arc::clone(&places), Arc::clone(&places));
            let task = tokio::spawn(async move {
                let answers = TowerToHyperService::new(router);
                let service = service_fn(move |request| {
                    asked.lock().has_asked(ticket);
                    answers.call(request)
                });
                // A client that breaks off or dawdles is its own concern.
                let _ = tokio::time::timeout(CONNECTION_TIME_MAX, async {
                    match acceptor {
                        None => connection(stream, service).await,
                        Some(acceptor) => encrypted(acceptor, stream, service).await,
                    }
                })
                .await;
                left.lock().leave(ticket);
            });
            task.abort_handle()
        });
        if another_ended {
            // Its socket is closed before the next is taken.
            tokio::task::yield_now().await;
        }
    }
}

type Asked = http::Request<hyper::body::Incoming>;

async fn encrypted<S>(acceptor: tokio_rustls::TlsAcceptor, stream: TcpStream, service: S)
where
    S: Service<Asked, Response = axum::response::Response, Error = std::convert::Infallible>,
    S::Future: Send,
{
    if let Ok(Ok(stream)) = tokio::time::timeout(HEAD_TIME_MAX, acceptor.accept(stream)).await {
        connection(stream, service).await;
    }
}

async fn connection<I, S>(stream: I, service: S)
where
    I: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
    S: Service<Asked, Response = axum::response::Response, Error = std::convert::Infallible>,
    S::Future: Send,
{
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIME_MAX)
        .max_buf_size(HEAD_BYTES_MAX)
        .max_headers(HEADERS_MAX);
    let _ = builder.serve_connection(TokioIo::new(stream), service).await;
}
