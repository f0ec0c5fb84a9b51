//! A drain ends no thread whose connections to endpoints carry the requests of others.
#![allow(clippy::expect_used, reason = "a test ends where its means fail")]

mod h2_support;
mod support;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use bytes::Bytes;
use h2_support::{connect, get, h2_server, h2c_backend, request};
use http::Method;
use support::{BACKEND, read_response, route, status};
use telaio_http_proxy::front::{Front, FrontHandler};
use telaio_http_proxy::proxy_protocol::Trust;
use telaio_http_proxy::server::{Closing, Listener, Server, listen};
use telaio_http_proxy::table::{
    Backend as BackendSpec, BackendId, Endpoint, HostMatch, Policy, TableChange, UpstreamProtocol,
    UpstreamTls,
};
use telaio_http_proxy::{HttpProxy, ProxySettings};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;

/// A proxy of two threads, and the address that each of them accepts at.
fn two_threads(backend: BackendSpec) -> (Server, [SocketAddr; 2]) {
    let proxy = Arc::new(HttpProxy::new(ProxySettings::default()));
    let policy = Policy::default();
    proxy.apply(&TableChange {
        routes: [("r".into(), Some(route("r", HostMatch::Any, policy).into()))].into(),
        backends: [(BackendId::new(BACKEND), Some(backend))].into(),
        ..TableChange::default()
    });
    let at = || listen("127.0.0.1:0".parse().expect("an address"), 1).expect("listen").remove(0);
    let sockets = vec![at(), at()];
    let addresses = [0, 1].map(|thread: usize| sockets[thread].local_addr().expect("address"));
    let front = FrontHandler(Arc::new(Front::plain(Trust::new(Vec::new()))));
    let listener = Listener { sockets, handler: Some(Arc::new(front)) };
    (Server::start(&proxy, vec![listener], 2).expect("start"), addresses)
}

/// Stops, and waits until the thread without clients has had time to end.
async fn stop(server: &Server) {
    server.stop(Closing::ForGood);
    while server.is_listening() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    tokio::time::sleep(Duration::from_millis(500)).await;
}

async fn drains(server: Server) -> bool {
    let draining = tokio::task::spawn_blocking(move || server.drain(Duration::from_mins(1)));
    draining.await.expect("task")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_over_another_threads_http2_connection_runs_to_its_end() {
    let (address, connections) = h2_server().await;
    let (server, [first, second]) = two_threads(h2c_backend(address));
    let mut send = connect(first).await;
    assert_eq!(get(&mut send, "/one").await.status, 200);
    drop(send);
    while server.connections() > 0 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let mut send = connect(second).await;
    let (response, mut body) =
        send.send_request(request(Method::POST, "/chat"), false).expect("send");
    let mut receive = response.await.expect("head").into_body();
    assert_eq!(connections.load(SeqCst), 1, "the first thread made it");
    stop(&server).await;
    for word in ["one", "two", "three"] {
        body.send_data(Bytes::from(word), false).expect("send");
        let data = receive.data().await.expect("data").expect("the connection still works");
        let _ = receive.flow_control().release_capacity(data.len());
        assert_eq!(data, word);
    }
    body.send_data(Bytes::new(), true).expect("end");
    assert!(receive.data().await.is_none());
    drop(send);
    assert!(drains(server).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_over_another_threads_tls_connection_runs_to_its_end() {
    let made = rcgen::generate_simple_self_signed(vec!["inner.svc".to_owned()]).expect("rcgen");
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
    let (connections, asked) = (Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default());
    let go_on = Arc::new(Notify::new());
    tokio::spawn({
        let (connections, asked, go_on) = (connections.clone(), asked.clone(), go_on.clone());
        async move {
            while let Ok((io, _)) = listener.accept().await {
                connections.fetch_add(1, SeqCst);
                let (tls, asked, go_on) = (tls.clone(), asked.clone(), go_on.clone());
                tokio::spawn(async move {
                    let mut stream = tls.accept(io).await.expect("TLS");
                    let mut piece = vec![0; 4096];
                    while let Ok(count @ 1..) = stream.read(&mut piece).await {
                        asked.fetch_add(1, SeqCst);
                        if piece[..count].starts_with(b"GET /slow") {
                            go_on.notified().await;
                        }
                        let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
                        stream.write_all(answer).await.expect("write");
                    }
                });
            }
        }
    });
    let mut backend = BackendSpec::new(BACKEND, vec![Endpoint::at(address)]);
    backend.protocol = UpstreamProtocol::Https(UpstreamTls {
        server_name: Some("inner.svc".into()),
        authorities_pem: None,
        identity_pem: None,
    });
    let (server, [first, second]) = two_threads(backend);
    let mut client = TcpStream::connect(first).await.expect("connect");
    client.write_all(b"GET /hello HTTP/1.1\r\nHost: a\r\n\r\n").await.expect("write");
    assert_eq!(status(&read_response(&mut client).await), 200);
    drop(client);
    while server.connections() > 0 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let mut client = TcpStream::connect(second).await.expect("connect");
    client.write_all(b"GET /slow HTTP/1.1\r\nHost: a\r\n\r\n").await.expect("write");
    while asked.load(SeqCst) < 2 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(connections.load(SeqCst), 1, "the first thread made it");
    stop(&server).await;
    go_on.notify_one();
    let answer = read_response(&mut client).await;
    assert!(status(&answer) == 200 && answer.ends_with("ok"), "{answer}");
    drop(client);
    assert!(drains(server).await);
}
