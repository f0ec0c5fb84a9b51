//! For tests of HTTP/2: a proxy in clear and by TLS, clients by the h2 crate and by curl, endpoints that echo.
#![allow(dead_code, clippy::expect_used, clippy::struct_field_names)]

use std::net::SocketAddr;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use h2::client::SendRequest;
use http::{HeaderMap, Method, Request, Response, StatusCode};
use telaio_http_proxy::front::{Front, FrontHandler};
use telaio_http_proxy::proxy_protocol::Trust;
use telaio_http_proxy::server::{Listener, Server, listen};
use telaio_http_proxy::table::{
    Backend as BackendSpec, BackendId, Certificate, Endpoint, HostMatch, Policy, TableChange,
    UpstreamProtocol,
};
use telaio_http_proxy::tls::{CertificateStore, TlsAcceptor, TlsLimits};
use telaio_http_proxy::{HttpProxy, ProxySettings};
use tokio::net::{TcpListener, TcpStream};

use crate::support::{BACKEND, Backend, route};

/// A proxy that listens in clear and by TLS.
pub(crate) struct Proxy {
    pub(crate) proxy: Arc<HttpProxy>,
    pub(crate) plain: SocketAddr,
    pub(crate) tls: SocketAddr,
    /// Of `a.example`, by its own authority.
    pub(crate) certificate_pem: String,
    pub(crate) server: Server,
}

pub(crate) fn proxy(backend: BackendSpec, policy: Policy, trusted: &[&str]) -> Proxy {
    let store = Arc::new(CertificateStore::new().expect("a store"));
    let acceptor = Arc::new(TlsAcceptor::new(store, TlsLimits::default()).expect("an acceptor"));
    let proxy = HttpProxy::new(ProxySettings::default()).with_tls(acceptor.clone());
    let proxy = Arc::new(proxy);
    let made = rcgen::generate_simple_self_signed(vec!["a.example".to_owned()]).expect("rcgen");
    let certificate = Certificate {
        hosts: vec!["a.example".into()],
        chain_pem: made.cert.pem().into_bytes().into(),
        key_pem: made.signing_key.serialize_pem().into_bytes().into(),
    };
    let problems = proxy.apply(&TableChange {
        routes: [("r".into(), Some(route("r", HostMatch::Any, policy).into()))].into(),
        backends: [(BackendId::new(BACKEND), Some(backend))].into(),
        certificates: [("n/a".into(), Some(certificate))].into(),
        ..TableChange::default()
    });
    assert!(problems.is_empty(), "{problems:?}");
    let trust = || Trust::new(trusted.iter().map(|range| range.parse().expect("range")).collect());
    let at = || listen("127.0.0.1:0".parse().expect("an address"), 2).expect("listen");
    let (plain, tls) = (at(), at());
    let address = |sockets: &[std::net::TcpListener]| sockets[0].local_addr().expect("address");
    let (plain_at, tls_at) = (address(&plain), address(&tls));
    let handler = |front: Front| Some(Arc::new(FrontHandler(Arc::new(front))) as Arc<_>);
    let listeners = vec![
        Listener { sockets: plain, handler: handler(Front::plain(trust())) },
        Listener { sockets: tls, handler: handler(Front::tls(trust(), acceptor)) },
    ];
    let server = Server::start(&proxy, listeners, 2).expect("start");
    Proxy { proxy, plain: plain_at, tls: tls_at, certificate_pem: made.cert.pem(), server }
}

pub(crate) fn before(backend: &Backend) -> Proxy {
    proxy(BackendSpec::new(BACKEND, vec![Endpoint::at(backend.address)]), Policy::default(), &[])
}

pub(crate) async fn connect(address: SocketAddr) -> SendRequest<Bytes> {
    let io = TcpStream::connect(address).await.expect("connect");
    let (send, connection) = h2::client::handshake(io).await.expect("handshake");
    tokio::spawn(connection);
    send.ready().await.expect("ready")
}

pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Vec<u8>,
    pub(crate) trailers: Option<HeaderMap>,
}

pub(crate) async fn read(response: Response<h2::RecvStream>) -> Result<Answer, h2::Error> {
    let (parts, mut receive) = response.into_parts();
    let mut body = Vec::new();
    while let Some(data) = receive.data().await {
        let data = data?;
        receive.flow_control().release_capacity(data.len())?;
        body.extend_from_slice(&data);
    }
    let trailers = receive.trailers().await?;
    Ok(Answer { status: parts.status, headers: parts.headers, body, trailers })
}

pub(crate) fn request(method: Method, path: &str) -> Request<()> {
    let uri = format!("http://a.example{path}");
    Request::builder().method(method).uri(uri).body(()).expect("request")
}

pub(crate) async fn get(send: &mut SendRequest<Bytes>, path: &str) -> Answer {
    let (response, _) = send.send_request(request(Method::GET, path), true).expect("send");
    read(response.await.expect("response")).await.expect("body")
}

/// An HTTP/2 server that echoes: body, `x-echo` with the path, trailers of a gRPC kind.
pub(crate) async fn h2_server() -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
    let address = listener.local_addr().expect("address");
    let connections = Arc::new(AtomicUsize::new(0));
    let counted = connections.clone();
    tokio::spawn(async move {
        while let Ok((io, _)) = listener.accept().await {
            counted.fetch_add(1, Ordering::SeqCst);
            tokio::spawn(serve_h2(io));
        }
    });
    (address, connections)
}

pub(crate) async fn serve_h2<IO>(io: IO)
where
    IO: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
{
    let Ok(mut connection) = h2::server::handshake(io).await else { return };
    while let Some(Ok((request, mut respond))) = connection.accept().await {
        tokio::spawn(async move {
            let path = request.uri().path().to_owned();
            let host = request.uri().host().unwrap_or_default().to_owned();
            let forwarded = request.headers().get("x-forwarded-for").cloned();
            let mut receive = request.into_body();
            let mut response = Response::new(());
            let headers = response.headers_mut();
            headers.insert("x-echo", path.parse().expect("value"));
            headers.insert("x-host", host.parse().expect("value"));
            if let Some(forwarded) = forwarded {
                headers.insert("x-seen-for", forwarded);
            }
            let Ok(mut send) = respond.send_response(response, false) else { return };
            while let Some(Ok(data)) = receive.data().await {
                let _ = receive.flow_control().release_capacity(data.len());
                let mut data = data;
                while !data.is_empty() {
                    send.reserve_capacity(data.len());
                    let Some(Ok(room)) = std::future::poll_fn(|cx| send.poll_capacity(cx)).await
                    else {
                        return;
                    };
                    if send.send_data(data.split_to(room.min(data.len())), false).is_err() {
                        return;
                    }
                }
            }
            let mut trailers = HeaderMap::new();
            trailers.insert("grpc-status", "0".parse().expect("value"));
            let _ = send.send_trailers(trailers);
        });
    }
}

pub(crate) fn h2c_backend(address: SocketAddr) -> BackendSpec {
    let mut backend = BackendSpec::new(BACKEND, vec![Endpoint::at(address)]);
    backend.protocol = UpstreamProtocol::H2c;
    backend
}

pub(crate) fn curl(args: &[&str]) -> String {
    let output = Command::new("curl").args(["--silent", "--max-time", "20"]).args(args).output();
    String::from_utf8_lossy(&output.expect("curl is installed").stdout).into_owned()
}
