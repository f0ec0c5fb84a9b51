//! One test for each fault that was found from outside, by its behaviour on the wire.

#![allow(clippy::expect_used, reason = "in a test it is the assertion")]

mod support;

use std::future::poll_fn;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use h2::client::SendRequest;
use http::{Method, Request};
use support::{BACKEND, Backend, Proxy, read_all, read_response, route, status};
use telaio_http_proxy::front::{Front, FrontHandler};
use telaio_http_proxy::proxy_protocol::Trust;
use telaio_http_proxy::server::{Listener, Server, listen};
use telaio_http_proxy::table::{
    Backend as BackendSpec, BackendId, Endpoint, ErrorBackend, HostMatch, Policy, Retry, RetryOn,
    TableChange, Timeouts,
};
use telaio_http_proxy::{HttpProxy, ProxySettings};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// A server that takes connections, reads heads, and answers each with this; with nothing to say it
/// does not even read.
async fn raw_server(answer: &'static str) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
    let address = listener.local_addr().expect("address");
    tokio::spawn(async move {
        let mut held = Vec::new();
        while let Ok((mut stream, _)) = listener.accept().await {
            if answer.is_empty() {
                held.push(stream);
                continue;
            }
            tokio::spawn(async move {
                let mut piece = vec![0; 16 << 10];
                while stream.read(&mut piece).await.is_ok_and(|count| count > 0) {
                    if stream.write_all(answer.as_bytes()).await.is_err() {
                        return;
                    }
                }
            });
        }
    });
    address
}

/// A proxy before these addresses, for HTTP/1.1 and HTTP/2 in clear.
fn proxy(endpoints: &[SocketAddr], policy: Policy) -> (SocketAddr, Server) {
    let proxy = Arc::new(HttpProxy::new(ProxySettings::default()));
    let endpoints = endpoints.iter().copied().map(Endpoint::at).collect();
    proxy.apply(&TableChange {
        routes: [("r".into(), Some(route("r", HostMatch::Any, policy).into()))].into(),
        backends: [(BackendId::new(BACKEND), Some(BackendSpec::new(BACKEND, endpoints)))].into(),
        ..TableChange::default()
    });
    let sockets = listen("127.0.0.1:0".parse().expect("an address"), 2).expect("listen");
    let address = sockets[0].local_addr().expect("address");
    let front = FrontHandler(Arc::new(Front::plain(Trust::new(Vec::new()))));
    let listener = Listener { sockets, handler: Some(Arc::new(front)) };
    (address, Server::start(&proxy, vec![listener], 2).expect("start"))
}

/// A policy whose requests go the way of streams.
fn streamed(policy: Policy) -> Policy {
    let backend = BackendId::new("none");
    Policy { error_backend: Some(ErrorBackend { backend, statuses: Vec::new() }), ..policy }
}

async fn connect(address: SocketAddr) -> SendRequest<Bytes> {
    let io = TcpStream::connect(address).await.expect("connect");
    let (send, connection) = h2::client::handshake(io).await.expect("handshake");
    tokio::spawn(connection);
    send.ready().await.expect("ready")
}

fn request(method: Method, path: &str) -> Request<()> {
    let uri = format!("http://a.example{path}");
    Request::builder().method(method).uri(uri).body(()).expect("request")
}

async fn body_of(receive: &mut h2::RecvStream) -> Vec<u8> {
    let mut body = Vec::new();
    while let Some(data) = receive.data().await {
        let data = data.expect("data");
        receive.flow_control().release_capacity(data.len()).expect("capacity");
        body.extend_from_slice(&data);
    }
    body
}

#[tokio::test(flavor = "multi_thread")]
async fn an_endpoint_that_does_not_read_a_body_is_given_up_after_the_time_for_sending() {
    let deaf = raw_server("").await;
    let timeouts = Timeouts { send: Duration::from_millis(500), ..Timeouts::default() };
    let policy = Policy { timeouts, ..Policy::default() };
    for policy in [policy.clone(), streamed(policy)] {
        let (address, _server) = proxy(&[deaf], policy);
        let client = TcpStream::connect(address).await.expect("connect");
        let (mut read, mut write) = client.into_split();
        let writing = tokio::spawn(async move {
            let head = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 400000000\r\n\r\n";
            write.write_all(head).await.expect("head");
            let piece = vec![b'x'; 64 << 10];
            while write.write_all(&piece).await.is_ok() {}
        });
        let mut answer = vec![0; 12];
        let reading = read.read_exact(&mut answer);
        tokio::time::timeout(Duration::from_secs(40), reading).await.expect("time").expect("read");
        assert_eq!(String::from_utf8_lossy(&answer), "HTTP/1.1 504");
        writing.abort();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_comes_slowly_may_take_longer_than_an_answer() {
    let backend = Backend::start().await;
    let timeouts = Timeouts { response_header: Duration::from_secs(2), ..Timeouts::default() };
    let policy = Policy { timeouts, ..Policy::default() };
    for policy in [policy.clone(), streamed(policy)] {
        let proxy = Proxy::with_policy(&[&backend], policy);
        let mut client = proxy.connect().await;
        let head = b"POST /head HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\n";
        client.write_all(head).await.expect("head");
        for _ in 0..4 {
            tokio::time::sleep(Duration::from_millis(700)).await;
            client.write_all(b"x").await.expect("piece");
        }
        assert_eq!(status(&read_response(&mut client).await), 200);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_without_content_says_no_length() {
    let server = raw_server("HTTP/1.1 204 No Content\r\nContent-Length: 5\r\n\r\n").await;
    for policy in [Policy::default(), streamed(Policy::default())] {
        let (address, _server) = proxy(&[server], policy);
        let mut client = TcpStream::connect(address).await.expect("connect");
        client
            .write_all(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
            .await
            .expect("write");
        let answer = read_all(&mut client).await;
        assert_eq!(status(&answer), 204);
        assert!(!answer.to_ascii_lowercase().contains("content-length"), "{answer}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_endpoint_that_was_too_slow_is_not_asked_again_but_another_is() {
    let (one, other) = (Backend::start().await, Backend::start().await);
    let timeouts = Timeouts { response_header: Duration::from_millis(300), ..Timeouts::default() };
    let policy = Policy { timeouts, ..Policy::default() };
    for policy in [policy.clone(), streamed(policy)] {
        let before = one.seen().len();
        let proxy = Proxy::with_policy(&[&one], policy);
        assert_eq!(proxy.get("/slow?3000").await.0, 504);
        assert_eq!(one.seen().len() - before, 1);
    }
    let timeouts = Timeouts { response_header: Duration::from_millis(300), ..Timeouts::default() };
    let proxy = Proxy::with_policy(&[&one, &other], Policy { timeouts, ..Policy::default() });
    let before = one.seen().len();
    assert_eq!(proxy.get("/slow?3000").await.0, 504);
    assert_eq!((one.seen().len() - before, other.seen().len()), (1, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_status_that_only_one_endpoint_can_give_is_passed_on() {
    let backend = Backend::start().await;
    let mut on = RetryOn::default();
    assert!(on.with_status(503));
    let policy = Policy { retry: Retry { on, ..Retry::default() }, ..Policy::default() };
    for policy in [policy.clone(), streamed(policy)] {
        let before = backend.seen().len();
        let proxy = Proxy::with_policy(&[&backend], policy);
        assert_eq!(proxy.get("/status?503").await.0, 503);
        assert_eq!(backend.seen().len() - before, 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_body_that_is_refused_does_not_take_the_answer_away() {
    let backend = Backend::start().await;
    let policy = Policy { body_bytes_max: Some(1 << 20), ..Policy::default() };
    let (address, _server) = proxy(&[backend.address], policy);
    let mut client = TcpStream::connect(address).await.expect("connect");
    let head = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 20000000\r\n\r\n";
    client.write_all(head).await.expect("head");
    // All of it first, as simple clients do.
    client.write_all(&vec![b'x'; 20_000_000]).await.expect("the body is read");
    assert_eq!(status(&read_all(&mut client).await), 413);
    assert_eq!(backend.seen().len(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_early_answer_by_http2_resets_no_small_body() {
    let backend = Backend::start().await;
    let policy = Policy { body_bytes_max: Some(10), ..Policy::default() };
    let (limited, _server) = proxy(&[backend.address], policy);
    let (nobody, _other) = proxy(&[], Policy::default());
    for (address, wanted) in [(limited, 413), (nobody, 503)] {
        let mut send = connect(address).await;
        let mut asked = request(Method::POST, "/");
        asked.headers_mut().insert("content-length", 60_000.into());
        let (response, mut body) = send.send_request(asked, false).expect("send");
        let response = response.await.expect("response");
        assert_eq!(response.status(), wanted);
        assert!(!body_of(&mut response.into_body()).await.is_empty());
        // The answer is whole; the body may still be sent, and nothing is reset.
        let reset =
            tokio::time::timeout(Duration::from_millis(300), poll_fn(|cx| body.poll_reset(cx)));
        assert!(reset.await.is_err(), "the stream was reset");
        body.send_data(Bytes::from(vec![b'x'; 60_000]), true).expect("data");
        let again = send.send_request(request(Method::GET, "/"), true).expect("send").0;
        assert!(again.await.is_ok());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_early_answer_by_http2_ends_a_body_that_never_does() {
    let (address, _server) = proxy(&[], Policy::default());
    let mut send = connect(address).await;
    let (response, mut body) = send.send_request(request(Method::POST, "/"), false).expect("send");
    let response = response.await.expect("response");
    assert_eq!(response.status(), 503);
    assert!(!body_of(&mut response.into_body()).await.is_empty());
    let begun = Instant::now();
    let reset = poll_fn(|cx| body.poll_reset(cx));
    let reset = tokio::time::timeout(Duration::from_secs(30), reset).await.expect("a reset");
    assert_eq!(reset.expect("a reason"), h2::Reason::NO_ERROR);
    assert!(begun.elapsed() > Duration::from_secs(1), "it had no time");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_websocket_that_is_refused_brings_the_whole_answer() {
    let answers = [
        "HTTP/1.1 403 No\r\nContent-Length: 6\r\n\r\ndenied",
        "HTTP/1.1 403 No\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nden\r\n3\r\nied\r\n0\r\n\r\n",
    ];
    for answer in answers {
        let (address, _server) = proxy(&[raw_server(answer).await], Policy::default());
        let mut send = connect(address).await;
        // The server's settings must have come.
        let first = send.send_request(request(Method::GET, "/"), true).expect("send").0;
        assert_eq!(first.await.expect("response").status(), 403);
        let mut asked = request(Method::CONNECT, "/ws");
        asked.extensions_mut().insert(h2::ext::Protocol::from_static("websocket"));
        let (response, _body) = send.send_request(asked, false).expect("send");
        let response = response.await.expect("response");
        assert_eq!(response.status(), 403);
        assert_eq!(body_of(&mut response.into_body()).await, b"denied");
    }
}
