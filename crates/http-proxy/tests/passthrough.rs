//! TLS that is carried undecrypted: the endpoint's own certificate reaches the client, over real
//! sockets, with curl.
#![allow(
    clippy::expect_used,
    clippy::struct_field_names,
    reason = "a test ends where its means fail"
)]

mod support;

use std::io::Write as _;
use std::net::SocketAddr;
use std::process::Command;
use std::sync::Arc;

use support::{BACKEND, route};
use telaio_http_proxy::front::{Front, FrontHandler};
use telaio_http_proxy::proxy_protocol::{self, Trust};
use telaio_http_proxy::server::{Listener, Server, listen};
use telaio_http_proxy::table::{
    Backend, BackendId, Certificate, Endpoint, HostMatch, Policy, TableChange,
};
use telaio_http_proxy::tls::{CertificateStore, Rewind, TlsAcceptor, TlsLimits};
use telaio_http_proxy::{HttpProxy, ProxySettings};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

const PASSED: &str = "default/passed:443";

struct RawEndpoint {
    address: SocketAddr,
    certificate_pem: String,
    /// Who connected, as the PROXY protocol tells.
    clients: tokio::sync::mpsc::UnboundedReceiver<SocketAddr>,
}

/// A TLS server with a certificate of its own that says what it was asked. It wants a PROXY header.
async fn endpoint(host: &str) -> RawEndpoint {
    let made = rcgen::generate_simple_self_signed(vec![host.to_owned()]).expect("rcgen");
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let key = rustls::pki_types::PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key.into())
        .expect("certificate");
    let tls = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
    let address = listener.local_addr().expect("address");
    let (told, clients) = tokio::sync::mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Ok((mut io, _)) = listener.accept().await {
            let mut rest = bytes::BytesMut::new();
            let header = proxy_protocol::read(&mut io, &mut rest).await.expect("a header");
            let _ = told.send(header.addresses.expect("addresses").source);
            let io = Rewind::with(rest.freeze(), io);
            let Ok(mut stream) = tls.accept(io).await else { continue };
            tokio::spawn(async move {
                let mut asked = vec![0; 4096];
                let count = stream.read(&mut asked).await.unwrap_or(0);
                let body = String::from_utf8_lossy(&asked[..count]).into_owned();
                let answer = format!(
                    "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
                    body.len()
                );
                let _ = stream.write_all(answer.as_bytes()).await;
                let _ = stream.shutdown().await;
            });
        }
    });
    RawEndpoint { address, certificate_pem: made.cert.pem(), clients }
}

struct Proxy {
    proxy: Arc<HttpProxy>,
    tls: SocketAddr,
    _server: Server,
}

/// A proxy by TLS that passes `raw.example` through and decrypts `own.example`.
fn proxy(endpoints: Vec<Endpoint>, decrypted: SocketAddr) -> Proxy {
    let store = Arc::new(CertificateStore::new().expect("a store"));
    let acceptor = Arc::new(TlsAcceptor::new(store, TlsLimits::default()).expect("an acceptor"));
    let proxy = Arc::new(HttpProxy::new(ProxySettings::default()).with_tls(acceptor.clone()));
    let made = rcgen::generate_simple_self_signed(vec!["own.example".to_owned()]).expect("rcgen");
    let certificate = Certificate {
        hosts: vec!["own.example".into()],
        chain_pem: made.cert.pem().into_bytes().into(),
        key_pem: made.signing_key.serialize_pem().into_bytes().into(),
    };
    let mut passed = Backend::new(PASSED, endpoints);
    passed.proxy_protocol = Some(2);
    let plain = Backend::new(BACKEND, vec![Endpoint::at(decrypted)]);
    let problems = proxy.apply(&TableChange {
        routes: [("r".into(), Some(route("r", HostMatch::Any, Policy::default()).into()))].into(),
        backends: [(BackendId::new(BACKEND), Some(plain)), (BackendId::new(PASSED), Some(passed))]
            .into(),
        certificates: [("n/own".into(), Some(certificate))].into(),
        passthrough: [("raw.example".into(), Some(BackendId::new(PASSED)))].into(),
        ..TableChange::default()
    });
    assert!(problems.is_empty(), "{problems:?}");
    let sockets = listen("127.0.0.1:0".parse().expect("an address"), 2).expect("listen");
    let tls = sockets[0].local_addr().expect("address");
    let front = FrontHandler(Arc::new(Front::tls(Trust::default(), acceptor)));
    let listener = Listener { sockets, handler: Some(Arc::new(front)) };
    let server = Server::start(&proxy, vec![listener], 2).expect("start");
    Proxy { proxy, tls, _server: server }
}

/// What curl gets from a host, which must prove itself by a certificate, and how curl ends.
fn curl(proxy: &Proxy, host: &str, authority: &str) -> (String, i32) {
    let mut file = tempfile::NamedTempFile::new().expect("a file");
    file.write_all(authority.as_bytes()).expect("write");
    let port = proxy.tls.port();
    let output = tokio::task::block_in_place(|| {
        Command::new("curl")
            .args(["--silent", "--max-time", "20", "--http1.1", "--cacert"])
            .arg(file.path())
            .args(["--resolve", &format!("{host}:{port}:127.0.0.1")])
            .arg(format!("https://{host}:{port}/asked?by=curl"))
            .output()
            .expect("curl is installed")
    });
    (String::from_utf8_lossy(&output.stdout).into_owned(), output.status.code().unwrap_or(-1))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_that_is_passed_through_shows_its_own_certificate() {
    let backend = support::Backend::start().await;
    let mut raw = endpoint("raw.example").await;
    // One that is not there is passed over.
    let gone = {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
        listener.local_addr().expect("address")
    };
    let proxy = proxy(vec![Endpoint::at(gone), Endpoint::at(raw.address)], backend.address);
    for _ in 0..4 {
        let (answer, code) = curl(&proxy, "raw.example", &raw.certificate_pem);
        assert_eq!(code, 0, "{answer}");
        // Not a byte was touched: no field of ours is in it.
        assert!(
            answer.starts_with("GET /asked?by=curl HTTP/1.1\r\nHost: raw.example:"),
            "{answer}"
        );
        assert!(!answer.to_lowercase().contains("x-forwarded"), "{answer}");
        let client = raw.clients.recv().await.expect("a client");
        assert!(client.ip().is_loopback() && client.port() != 0, "{client}");
    }
    // Another host is decrypted by us, and does not show that certificate.
    let (_, code) = curl(&proxy, "own.example", &raw.certificate_pem);
    assert_eq!(code, 60, "curl cannot verify it");
    assert!(backend.seen().is_empty());

    // A change of the table is followed: the host is decrypted from now on.
    let passthrough = [("raw.example".into(), None)].into();
    proxy.proxy.apply(&TableChange { passthrough, ..TableChange::default() });
    let (_, code) = curl(&proxy, "raw.example", &raw.certificate_pem);
    assert_eq!(code, 60, "curl cannot verify it");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_an_endpoint_the_connection_is_closed_and_others_are_served() {
    let backend = support::Backend::start().await;
    let raw = endpoint("raw.example").await;
    let proxy = proxy(vec![], backend.address);
    let (answer, code) = curl(&proxy, "raw.example", &raw.certificate_pem);
    assert!(answer.is_empty() && code == 35, "closed within the handshake: {code}");
    let backends = [(
        BackendId::new(PASSED),
        Some(Backend {
            proxy_protocol: Some(1),
            ..Backend::new(PASSED, vec![Endpoint::at(raw.address)])
        }),
    )];
    proxy.proxy.apply(&TableChange { backends: backends.into(), ..TableChange::default() });
    let (answer, code) = curl(&proxy, "raw.example", &raw.certificate_pem);
    assert!(code == 0 && answer.starts_with("GET /asked"), "{code}: {answer}");
}
