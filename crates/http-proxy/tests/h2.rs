//! HTTP/2 over real sockets: clients by the h2 crate and by curl, endpoints of both kinds.

#![allow(clippy::expect_used, clippy::struct_field_names, reason = "in a test it is the assertion")]

mod support;

use std::net::SocketAddr;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use h2::client::SendRequest;
use http::{HeaderMap, Method, Request, Response, StatusCode};
use support::{BACKEND, Backend, route};
use telaio_http_proxy::front::{Front, FrontHandler};
use telaio_http_proxy::proxy_protocol::{self, Addresses, Trust, Version};
use telaio_http_proxy::server::{Listener, Server, listen};
use telaio_http_proxy::table::{
    Backend as BackendSpec, BackendId, CachePolicy, Certificate, Endpoint, HealthCheck, HostMatch,
    Policy, TableChange, Timeouts, UpstreamProtocol, UpstreamTls,
};
use telaio_http_proxy::tls::{CertificateStore, TlsAcceptor, TlsLimits};
use telaio_http_proxy::{HttpProxy, ProxySettings};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// A proxy that listens in clear and by TLS.
struct Proxy {
    proxy: Arc<HttpProxy>,
    plain: SocketAddr,
    tls: SocketAddr,
    server: Server,
}

fn proxy(backend: BackendSpec, policy: Policy, trusted: &[&str]) -> Proxy {
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
    Proxy { proxy, plain: plain_at, tls: tls_at, server }
}

fn before(backend: &Backend) -> Proxy {
    proxy(BackendSpec::new(BACKEND, vec![Endpoint::at(backend.address)]), Policy::default(), &[])
}

async fn connect(address: SocketAddr) -> SendRequest<Bytes> {
    let io = TcpStream::connect(address).await.expect("connect");
    let (send, connection) = h2::client::handshake(io).await.expect("handshake");
    tokio::spawn(connection);
    send.ready().await.expect("ready")
}

struct Answer {
    status: StatusCode,
    headers: HeaderMap,
    body: Vec<u8>,
    trailers: Option<HeaderMap>,
}

async fn read(response: Response<h2::RecvStream>) -> Result<Answer, h2::Error> {
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

fn request(method: Method, path: &str) -> Request<()> {
    let uri = format!("http://a.example{path}");
    Request::builder().method(method).uri(uri).body(()).expect("request")
}

async fn get(send: &mut SendRequest<Bytes>, path: &str) -> Answer {
    let (response, _) = send.send_request(request(Method::GET, path), true).expect("send");
    read(response.await.expect("response")).await.expect("body")
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_of_one_connection_run_beside_each_other() {
    let backend = Backend::start().await;
    let proxy = before(&backend);
    let send = connect(proxy.plain).await;
    let tasks: Vec<_> = (0..50)
        .map(|_| {
            let mut send = send.clone();
            tokio::spawn(async move { get(&mut send, "/slow?300").await })
        })
        .collect();
    let begun = std::time::Instant::now();
    for task in tasks {
        let answer = task.await.expect("task");
        assert_eq!((answer.status, &answer.body[..]), (StatusCode::OK, &b"slow"[..]));
    }
    assert!(begun.elapsed() < Duration::from_secs(14), "one after the other is 15 s");
}

#[tokio::test(flavor = "multi_thread")]
async fn names_that_programs_mistake_for_others_do_not_reach_a_backend() {
    let backend = Backend::start().await;
    let proxy = before(&backend);
    let mut send = connect(proxy.plain).await;
    let mut asked = request(Method::GET, "/head");
    for (name, value) in [("x_user", "evil"), ("proxy", "evil"), ("x-user", "good")] {
        asked.headers_mut().append(name, value.parse().expect("value"));
    }
    let (response, _) = send.send_request(asked, true).expect("send");
    let answer = read(response.await.expect("response")).await.expect("body");
    let seen = String::from_utf8_lossy(&answer.body).into_owned();
    assert!(seen.contains("good") && !seen.contains("evil"), "{seen}");
}

#[tokio::test(flavor = "multi_thread")]
async fn heads_are_translated_both_ways() {
    let backend = Backend::start().await;
    let proxy = before(&backend);
    let mut send = connect(proxy.plain).await;
    let mut asked = request(Method::GET, "/head?x=%2F");
    let headers = asked.headers_mut();
    headers.append("cookie", "a=1".parse().expect("value"));
    headers.append("cookie", "b=2".parse().expect("value"));
    headers.insert("te", "trailers".parse().expect("value"));
    let (response, _) = send.send_request(asked, true).expect("send");
    let answer = read(response.await.expect("response")).await.expect("body");
    let seen = String::from_utf8(answer.body).expect("text").to_ascii_lowercase();
    assert!(seen.starts_with("get /head?x=%2f http/1.1\r\nhost: a.example\r\n"), "{seen}");
    assert!(seen.contains("cookie: a=1; b=2\r\n"), "{seen}");
    assert!(
        seen.contains("x-forwarded-proto: http\r\n") && seen.contains("via: 2.0 telaio"),
        "{seen}"
    );
    assert!(seen.contains("te: trailers"), "{seen}");
    let hop = get(&mut send, "/hop").await;
    assert!(hop.headers.contains_key("x-outer") && hop.headers.contains_key("date"));
    for gone in ["connection", "keep-alive", "x-inner", "proxy-authenticate"] {
        assert!(!hop.headers.contains_key(gone), "{gone}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn bodies_stream_both_ways_with_trailers() {
    let backend = Backend::start().await;
    let proxy = before(&backend);
    let mut send = connect(proxy.plain).await;
    let big = get(&mut send, "/big?3000000").await;
    assert_eq!(big.body.len(), 3_000_000);
    let chunked = get(&mut send, "/chunked").await;
    assert_eq!(chunked.body, b"abcdefg");
    assert_eq!(chunked.trailers.expect("trailers")["x-sum"], "7");
    let close = get(&mut send, "/close").await;
    assert_eq!(close.body, b"until the end");
    let (response, mut body) =
        send.send_request(request(Method::POST, "/head"), false).expect("send");
    for _ in 0..10 {
        body.reserve_capacity(10_000);
        body.send_data(Bytes::from(vec![b'y'; 10_000]), false).expect("data");
    }
    let mut trailers = HeaderMap::new();
    trailers.insert("x-sum", "100000".parse().expect("value"));
    body.send_trailers(trailers).expect("trailers");
    let answer = read(response.await.expect("response")).await.expect("body");
    let seen = String::from_utf8(answer.body).expect("text").to_ascii_lowercase();
    assert!(seen.contains("transfer-encoding: chunked\r\n"), "{}", &seen[..600]);
    assert!(seen.matches('y').count() >= 100_000);
    assert!(seen.ends_with("x-sum: 100000\r\n\r\n"), "{}", &seen[seen.len() - 60..]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_does_not_read_holds_back_the_endpoint_and_nobody_else() {
    let backend = Backend::start().await;
    let proxy = before(&backend);
    // One stream's window must not be the whole connection's.
    let io = TcpStream::connect(proxy.plain).await.expect("connect");
    let mut builder = h2::client::Builder::new();
    builder.initial_connection_window_size(1 << 20);
    let (mut send, connection) = builder.handshake(io).await.expect("handshake");
    tokio::spawn(connection);
    let (response, _) =
        send.send_request(request(Method::GET, "/big?50000000"), true).expect("send");
    let response = response.await.expect("response");
    // Nothing of it is read; others go on, on the same connection.
    for _ in 0..20 {
        assert_eq!(get(&mut send, "/hello").await.body, b"hello");
    }
    let answer = read(response).await.expect("body");
    assert_eq!(answer.body.len(), 50_000_000);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_endpoint_that_breaks_off_is_seen_as_such() {
    let backend = Backend::start().await;
    let proxy = before(&backend);
    let mut send = connect(proxy.plain).await;
    let (response, _) = send.send_request(request(Method::GET, "/cut"), true).expect("send");
    // Before or after the head, but never as if it were whole.
    if let Ok(response) = response.await {
        assert!(read(response).await.is_err());
    }
    assert_eq!(get(&mut send, "/hello").await.status, 200, "the connection goes on");
    let mut grpc = request(Method::POST, "/cut");
    grpc.headers_mut().insert("content-type", "application/grpc".parse().expect("value"));
    let (response, _) = send.send_request(grpc, true).expect("send");
    let answer = read(response.await.expect("head")).await.expect("a whole answer");
    assert_eq!(answer.trailers.expect("trailers")["grpc-status"], "14");
}

#[tokio::test(flavor = "multi_thread")]
async fn errors_of_ours_are_pages_or_grpc_statuses() {
    let gone = TcpListener::bind("127.0.0.1:0").await.expect("bind");
    let address = gone.local_addr().expect("address");
    drop(gone);
    let backend = BackendSpec::new(BACKEND, vec![Endpoint::at(address)]);
    let proxy = proxy(backend, Policy::default(), &[]);
    let mut send = connect(proxy.plain).await;
    let answer = get(&mut send, "/").await;
    assert_eq!(answer.status, 502);
    assert!(answer.headers["content-type"].to_str().expect("text").starts_with("text/plain"));
    let mut grpc = request(Method::POST, "/package.Service/Call");
    grpc.headers_mut().insert("content-type", "application/grpc+proto".parse().expect("value"));
    let (response, _) = send.send_request(grpc, true).expect("send");
    let answer = read(response.await.expect("response")).await.expect("body");
    assert_eq!(answer.status, 200);
    assert_eq!(answer.headers["grpc-status"], "14");
    assert!(!answer.headers["grpc-message"].is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn authority_and_host_must_agree() {
    let backend = Backend::start().await;
    let proxy = before(&backend);
    let mut send = connect(proxy.plain).await;
    let mut asked = request(Method::GET, "/hello");
    asked.headers_mut().insert("host", "b.example".parse().expect("value"));
    let (response, _) = send.send_request(asked, true).expect("send");
    let error = response.await.expect_err("malformed");
    assert_eq!(error.reason(), Some(h2::Reason::PROTOCOL_ERROR));
    assert!(backend.seen().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_websocket_opens_by_extended_connect() {
    let backend = Backend::start().await;
    let proxy = before(&backend);
    let mut send = connect(proxy.plain).await;
    // The server's settings must have come.
    get(&mut send, "/hello").await;
    assert!(send.is_extended_connect_protocol_enabled());
    let mut asked = request(Method::CONNECT, "/upgrade");
    asked.extensions_mut().insert(h2::ext::Protocol::from_static("websocket"));
    let (response, mut body) = send.send_request(asked, false).expect("send");
    let response = response.await.expect("response");
    assert_eq!(response.status(), 200);
    let mut receive = response.into_body();
    assert_eq!(&receive.data().await.expect("data").expect("data")[..], b"first");
    for word in ["hello", "world"] {
        body.send_data(Bytes::from(word), false).expect("send");
        assert_eq!(receive.data().await.expect("data").expect("data"), word);
    }
    body.send_data(Bytes::new(), true).expect("end");
    while let Some(data) = receive.data().await {
        assert!(data.expect("an orderly end").is_empty());
    }
    let seen = backend.seen().join("").to_ascii_lowercase();
    assert!(seen.contains("upgrade: websocket") && seen.contains("sec-websocket-key: "), "{seen}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_asks_and_takes_back_is_sent_away_and_nobody_else() {
    let backend = Backend::start().await;
    let proxy = before(&backend);
    let mut other = connect(proxy.plain).await;
    let mut send = connect(proxy.plain).await;
    let mut sent_away = false;
    for _ in 0..5_000 {
        let Ok(ready) = send.clone().ready().await else {
            sent_away = true;
            break;
        };
        send = ready;
        let Ok((response, mut body)) = send.send_request(request(Method::GET, "/slow?2000"), false)
        else {
            sent_away = true;
            break;
        };
        body.send_reset(h2::Reason::CANCEL);
        drop(response);
        tokio::task::yield_now().await;
    }
    assert!(sent_away, "five thousand requests were taken back");
    assert_eq!(get(&mut other, "/hello").await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_head_that_is_too_large_is_refused() {
    let backend = Backend::start().await;
    let proxy = before(&backend);
    let mut send = connect(proxy.plain).await;
    let mut asked = request(Method::GET, "/hello");
    for number in 0..40 {
        let name: http::HeaderName = format!("x-{number}").parse().expect("name");
        asked.headers_mut().insert(name, "v".repeat(1000).parse().expect("value"));
    }
    let (response, _) = send.send_request(asked, true).expect("send");
    assert_eq!(response.await.expect("an answer").status(), 431);
    assert!(backend.seen().is_empty());
    assert_eq!(get(&mut send, "/hello").await.status, 200, "the connection goes on");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_length_that_is_told_twice_or_is_none_is_an_error_of_the_stream() {
    let backend = Backend::start().await;
    let proxy = before(&backend);
    let mut send = connect(proxy.plain).await;
    for lengths in [&["5", "5"][..], &["5", "6"], &["5", "0"], &["+5"], &["5,5"]] {
        let mut asked = request(Method::POST, "/head");
        for length in lengths {
            asked.headers_mut().append("content-length", length.parse().expect("value"));
        }
        let (response, mut body) = send.send_request(asked, false).expect("send");
        let _ = body.send_data(Bytes::from_static(b"hello"), true);
        let error = response.await.expect_err("malformed");
        assert_eq!(error.reason(), Some(h2::Reason::PROTOCOL_ERROR), "{lengths:?}");
    }
    assert_eq!(backend.seen(), Vec::<String>::new());
    assert_eq!(get(&mut send, "/hello").await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_does_not_come_is_a_408() {
    let backend = Backend::start().await;
    let short = Duration::from_millis(300);
    let timeouts = Timeouts { idle: short, send: short, ..Timeouts::default() };
    let spec = BackendSpec::new(BACKEND, vec![Endpoint::at(backend.address)]);
    let proxy = proxy(spec, Policy { timeouts, ..Policy::default() }, &[]);
    let mut send = connect(proxy.plain).await;
    let (response, mut body) =
        send.send_request(request(Method::POST, "/head"), false).expect("send");
    body.send_data(Bytes::from_static(b"half of it"), false).expect("data");
    assert_eq!(response.await.expect("an answer").status(), 408);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upgrade_to_an_endpoint_of_http2_is_a_request_as_any_other() {
    let (address, _) = h2_server().await;
    let proxy = proxy(h2c_backend(address), Policy::default(), &[]);
    let mut io = TcpStream::connect(proxy.plain).await.expect("connect");
    let asked = "GET /socket HTTP/1.1\r\nHost: a.example\r\nConnection: upgrade\r\n\
                 Upgrade: websocket\r\nSec-WebSocket-Key: eA==\r\n\r\n";
    io.write_all(asked.as_bytes()).await.expect("write");
    let answer = support::read_response(&mut io).await.to_ascii_lowercase();
    assert!(answer.starts_with("http/1.1 200 ") && answer.contains("x-echo: /socket"), "{answer}");
    let upstream = proxy.proxy.upstreams().get(&BackendId::new(BACKEND)).expect("a backend");
    assert_eq!(upstream.balancer.get_backends()[0].failures(), 0, "nobody is blamed");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_response_by_http2_without_a_length_is_kept_too() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
    let address = listener.local_addr().expect("address");
    let asked = Arc::new(AtomicUsize::new(0));
    let counted = asked.clone();
    tokio::spawn(async move {
        while let Ok((io, _)) = listener.accept().await {
            let mut connection = h2::server::handshake(io).await.expect("handshake");
            let counted = counted.clone();
            tokio::spawn(async move {
                while let Some(Ok((_, mut respond))) = connection.accept().await {
                    counted.fetch_add(1, Ordering::SeqCst);
                    let mut response = Response::new(());
                    let control = "max-age=60".parse().expect("value");
                    response.headers_mut().insert("cache-control", control);
                    let mut send = respond.send_response(response, false).expect("head");
                    // The last of it ends the stream.
                    send.send_data(Bytes::from_static(b"kept"), true).expect("data");
                }
            });
        }
    });
    let policy = Policy { cache: Some(CachePolicy::default()), ..Policy::default() };
    let proxy = proxy(h2c_backend(address), policy, &[]);
    let mut send = connect(proxy.plain).await;
    for number in 0..5 {
        let answer = get(&mut send, "/page").await;
        assert_eq!(answer.body, b"kept");
        assert_eq!(
            answer.headers["cache-status"].to_str().expect("text").contains("hit"),
            number > 0
        );
    }
    assert_eq!(asked.load(Ordering::SeqCst), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_of_another_certificate_gets_nothing_of_what_is_kept() {
    let backend = Backend::start().await;
    let policy = Policy {
        cache: Some(CachePolicy {
            default_ttl: Some(Duration::from_mins(1)),
            ..CachePolicy::default()
        }),
        ..Policy::default()
    };
    let spec = BackendSpec::new(BACKEND, vec![Endpoint::at(backend.address)]);
    let proxy = proxy(spec, policy, &[]);
    let at = |host: &str| format!("{host}:{}:127.0.0.1", proxy.tls.port());
    let fetch = |host: &str, name: &str| {
        let url = format!("https://{host}:{}/hello", proxy.tls.port());
        let (resolve, named) = (at(host), format!("Host: {name}:{}", proxy.tls.port()));
        let args = ["--insecure", "--http2", "--resolve", &resolve, "-H", &named, &url];
        let args = [&args[..], &["--write-out", " %{http_code}"]].concat();
        tokio::task::block_in_place(|| curl(&args))
    };
    // Asked for in its own name, it is kept.
    assert_eq!(fetch("b.example", "b.example"), "hello 200");
    assert_eq!(fetch("b.example", "b.example"), "hello 200");
    assert_eq!(backend.seen().len(), 1, "it is kept");
    let answer = fetch("a.example", "b.example");
    assert!(answer.ends_with(" 421") && !answer.contains("hello"), "{answer}");
    assert_eq!(backend.seen().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn active_checks_speak_what_the_backend_speaks() {
    let (address, connections) = h2_server().await;
    let mut backend = h2c_backend(address);
    backend.health = Some(HealthCheck {
        path: "/healthy".into(),
        host: None,
        interval: Duration::from_millis(10),
        timeout: Duration::from_secs(20),
        unhealthy_after: 1,
        healthy_after: 1,
    });
    let proxy = proxy(backend, Policy::default(), &[]);
    let upstream = proxy.proxy.upstreams().get(&BackendId::new(BACKEND)).expect("a backend");
    let peer = upstream.balancer.get_backends()[0].clone();
    let deadline = std::time::Instant::now() + Duration::from_secs(60);
    // Each check is a connection of its own; when the third begins, two are judged.
    while connections.load(Ordering::SeqCst) < 4 {
        assert!(std::time::Instant::now() < deadline, "{connections:?} checks");
        assert!(peer.is_healthy());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(peer.is_healthy());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_lets_streams_end_and_takes_no_more() {
    let backend = Backend::start().await;
    let proxy = before(&backend);
    let mut send = connect(proxy.plain).await;
    let mut idle = connect(proxy.plain).await;
    assert_eq!(get(&mut idle, "/hello").await.status, 200);
    let (running, _) = send.send_request(request(Method::GET, "/slow?1500"), true).expect("send");
    // Begun for sure: the backend has it.
    while !backend.seen().iter().any(|head| head.starts_with("GET /slow")) {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let server = proxy.server;
    let draining = tokio::task::spawn_blocking(move || server.drain(Duration::from_secs(30)));
    let answer = read(running.await.expect("the running one")).await.expect("to its end");
    assert_eq!((answer.status, &answer.body[..]), (StatusCode::OK, &b"slow"[..]));
    assert!(draining.await.expect("task"), "all was over in time");
    // Both were told that nothing new is taken.
    for connection in [send, idle] {
        let refused = match connection.ready().await {
            Ok(mut ready) => match ready.send_request(request(Method::GET, "/hello"), true) {
                Ok((response, _)) => response.await.is_err(),
                Err(_) => true,
            },
            Err(error) => error.is_go_away() || error.is_io(),
        };
        assert!(refused);
    }
    assert_eq!(backend.seen().len(), 2);
}

/// Frames of one kind without end; what the connection comes to.
async fn flood(address: SocketAddr, first: &[u8], again: &[u8], bytes_max: usize) -> bool {
    let mut io = TcpStream::connect(address).await.expect("connect");
    let mut start = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    start.extend([0, 0, 0, 4, 0, 0, 0, 0, 0]);
    start.extend(first);
    io.write_all(&start).await.expect("begin");
    let (mut from, mut to) = io.into_split();
    let reader = tokio::spawn(async move {
        let mut all = Vec::new();
        let _ = from.read_to_end(&mut all).await;
    });
    let mut sent = 0;
    while sent < bytes_max {
        if to.write_all(again).await.is_err() {
            break;
        }
        sent += again.len();
        tokio::task::yield_now().await;
    }
    tokio::time::timeout(Duration::from_secs(20), reader).await.is_ok()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_continuations_ends_the_connection() {
    let backend = Backend::start().await;
    let proxy = before(&backend);
    // HEADERS without END_HEADERS, then CONTINUATION after CONTINUATION.
    let headers = [0, 0, 1, 1, 0, 0, 0, 0, 1, 0x82];
    let field = [0x00, 0x01, b'a', 0x01, b'b'];
    let mut again = vec![0, 0, 250, 9, 0, 0, 0, 0, 1];
    again.extend(field.repeat(50));
    assert!(flood(proxy.plain, &headers, &again, 20_000_000).await, "it was still read");
    let mut other = connect(proxy.plain).await;
    assert_eq!(get(&mut other, "/hello").await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_settings_or_pings_does_not_pile_up() {
    let backend = Backend::start().await;
    let proxy = before(&backend);
    for frame in
        [vec![0, 0, 0, 4, 0, 0, 0, 0, 0], [vec![0, 0, 8, 6, 0, 0, 0, 0, 0], vec![7; 8]].concat()]
    {
        let mut io = TcpStream::connect(proxy.plain).await.expect("connect");
        io.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await.expect("begin");
        // The answers are never read: writing must come to a stop, for nothing is kept beyond bounds.
        let mut sent = 0_usize;
        let frames = frame.repeat(1000);
        let writes = async {
            while sent < 400_000_000 && io.write_all(&frames).await.is_ok() {
                sent += frames.len();
            }
        };
        let _ = tokio::time::timeout(Duration::from_secs(2), writes).await;
        assert!(sent < 100_000_000, "{sent} bytes were taken without an answer being read");
    }
    let mut other = connect(proxy.plain).await;
    assert_eq!(get(&mut other, "/hello").await.status, 200);
}

/// An HTTP/2 server that echoes: body, `x-echo` with the path, trailers of a gRPC kind.
async fn h2_server() -> (SocketAddr, Arc<AtomicUsize>) {
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

async fn serve_h2<IO>(io: IO)
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

fn h2c_backend(address: SocketAddr) -> BackendSpec {
    let mut backend = BackendSpec::new(BACKEND, vec![Endpoint::at(address)]);
    backend.protocol = UpstreamProtocol::H2c;
    backend
}

#[tokio::test(flavor = "multi_thread")]
async fn grpc_passes_with_trailers_over_few_connections() {
    let (address, connections) = h2_server().await;
    let proxy = proxy(h2c_backend(address), Policy::default(), &[]);
    let send = connect(proxy.plain).await;
    let tasks: Vec<_> = (0..60)
        .map(|_| {
            let mut send = send.clone();
            tokio::spawn(async move {
                let mut asked = request(Method::POST, "/package.Service/Call");
                let headers = asked.headers_mut();
                headers.insert("content-type", "application/grpc".parse().expect("value"));
                headers.insert("te", "trailers".parse().expect("value"));
                let (response, mut body) = send.send_request(asked, false).expect("send");
                body.send_data(Bytes::from_static(b"ping"), true).expect("data");
                read(response.await.expect("response")).await.expect("body")
            })
        })
        .collect();
    for task in tasks {
        let answer = task.await.expect("task");
        assert_eq!(answer.body, b"ping");
        assert_eq!(answer.headers["x-echo"], "/package.Service/Call");
        assert_eq!(answer.headers["x-host"], "a.example");
        assert_eq!(answer.headers["x-seen-for"], "127.0.0.1");
        assert_eq!(answer.trailers.expect("trailers")["grpc-status"], "0");
    }
    assert!(connections.load(Ordering::SeqCst) <= 4, "{connections:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_may_stream_both_ways_at_once() {
    let (address, _) = h2_server().await;
    let proxy = proxy(h2c_backend(address), Policy::default(), &[]);
    let mut send = connect(proxy.plain).await;
    let (response, mut body) =
        send.send_request(request(Method::POST, "/chat"), false).expect("send");
    let response = response.await.expect("the head comes before the body is over");
    let mut receive = response.into_body();
    for word in ["one", "two", "three"] {
        body.send_data(Bytes::from(word), false).expect("send");
        let data = receive.data().await.expect("data").expect("data");
        let _ = receive.flow_control().release_capacity(data.len());
        assert_eq!(data, word);
    }
    body.send_data(Bytes::new(), true).expect("end");
    assert!(receive.data().await.is_none());
    assert_eq!(receive.trailers().await.expect("trailers").expect("some")["grpc-status"], "0");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_of_http1_reaches_an_endpoint_of_http2() {
    let (address, _) = h2_server().await;
    let proxy = proxy(h2c_backend(address), Policy::default(), &[]);
    let mut io = TcpStream::connect(proxy.plain).await.expect("connect");
    let asked = "POST /old HTTP/1.1\r\nHost: a.example\r\nContent-Length: 5\r\nConnection: close\r\nTE: trailers\r\n\r\nhello";
    io.write_all(asked.as_bytes()).await.expect("write");
    let answer = support::read_all(&mut io).await;
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    assert!(answer.to_ascii_lowercase().contains("x-echo: /old\r\n"), "{answer}");
    assert!(answer.contains("hello") && answer.contains("grpc-status: 0"), "{answer}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_endpoint_that_comes_back_is_reached_again() {
    let (address, _) = h2_server().await;
    let proxy = proxy(h2c_backend(address), Policy::default(), &[]);
    let mut send = connect(proxy.plain).await;
    assert_eq!(get(&mut send, "/one").await.status, 200);
    // Another endpoint takes the place; the old connection is of no more use.
    let (next, _) = h2_server().await;
    let backends = [(BackendId::new(BACKEND), Some(h2c_backend(next)))].into();
    proxy.proxy.apply(&TableChange { backends, ..TableChange::default() });
    assert_eq!(get(&mut send, "/two").await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn tls_to_an_endpoint_is_verified_when_an_authority_is_given() {
    let made = rcgen::generate_simple_self_signed(vec!["inner.svc".to_owned()]).expect("rcgen");
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let key = rustls::pki_types::PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
    let mut config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key.into())
        .expect("certificate");
    config.alpn_protocols = vec![b"h2".to_vec()];
    let tls = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
    let address = listener.local_addr().expect("address");
    tokio::spawn(async move {
        while let Ok((io, _)) = listener.accept().await {
            let tls = tls.clone();
            tokio::spawn(async move {
                if let Ok(stream) = tls.accept(io).await {
                    serve_h2(stream).await;
                }
            });
        }
    });
    let other = rcgen::generate_simple_self_signed(vec!["inner.svc".to_owned()]).expect("rcgen");
    let pem = |pem: String| Some(Arc::from(pem.into_bytes()));
    for (authority, name, expected) in [
        (None, None, 200),
        (pem(made.cert.pem()), Some("inner.svc"), 200),
        (pem(made.cert.pem()), Some("wrong.svc"), 502),
        (pem(other.cert.pem()), Some("inner.svc"), 502),
    ] {
        let mut backend = h2c_backend(address);
        backend.protocol = UpstreamProtocol::HttpsH2(UpstreamTls {
            server_name: name.map(Arc::from),
            authorities_pem: authority,
            identity_pem: None,
        });
        let proxy = proxy(backend, Policy::default(), &[]);
        let mut send = connect(proxy.plain).await;
        assert_eq!(get(&mut send, "/").await.status, expected, "{name:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_proxy_protocol_is_read_from_trusted_peers_and_sent_on() {
    let echo = TcpListener::bind("127.0.0.1:0").await.expect("bind");
    let mut backend =
        BackendSpec::new(BACKEND, vec![Endpoint::at(echo.local_addr().expect("address"))]);
    backend.proxy_protocol = Some(2);
    let seen = tokio::spawn(async move {
        let mut heads = Vec::new();
        for _ in 0..2 {
            let (mut io, _) = echo.accept().await.expect("accept");
            let mut buffer = bytes::BytesMut::new();
            let header = proxy_protocol::read(&mut io, &mut buffer).await.expect("a header");
            heads.push(header.addresses.expect("addresses"));
            io.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await.expect("write");
            // Kept open: the next client must not get it.
            std::mem::forget(io);
        }
        heads
    });
    let proxy = proxy(backend, Policy::default(), &["127.0.0.0/8"]);
    let destination = "203.0.113.1:443".parse().expect("address");
    for (source, version) in [("192.0.2.7:5000", Version::V1), ("192.0.2.8:5001", Version::V2)] {
        let source = source.parse().expect("address");
        let mut io = TcpStream::connect(proxy.plain).await.expect("connect");
        let mut bytes = proxy_protocol::encode(version, Addresses { source, destination });
        bytes.extend_from_slice(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
        io.write_all(&bytes).await.expect("write");
        assert!(support::read_all(&mut io).await.starts_with("HTTP/1.1 200 "));
    }
    let seen = seen.await.expect("seen");
    let sources: Vec<_> = seen.iter().map(|both| both.source.to_string()).collect();
    assert_eq!(sources, ["192.0.2.7:5000", "192.0.2.8:5001"]);
    // Without a header nothing is served.
    let mut io = TcpStream::connect(proxy.plain).await.expect("connect");
    io.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").await.expect("write");
    assert_eq!(support::read_all(&mut io).await, "");
}

fn curl(args: &[&str]) -> String {
    let output = Command::new("curl").args(["--silent", "--max-time", "20"]).args(args).output();
    String::from_utf8_lossy(&output.expect("curl is installed").stdout).into_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn curl_is_served_by_every_wire() {
    let backend = Backend::start().await;
    let proxy = before(&backend);
    let said = ["--write-out", " %{http_code} %{http_version}", "--insecure"];
    let plain = format!("http://{}/hello", proxy.plain);
    let tls = format!("https://a.example:{}/hello", proxy.tls.port());
    let resolve = format!("a.example:{}:127.0.0.1", proxy.tls.port());
    let cases: [(&[&str], &str); 4] = [
        (&["--http1.1", &plain], "hello 200 1.1"),
        (&["--http2-prior-knowledge", &plain], "hello 200 2"),
        (&["--http1.1", "--resolve", &resolve, &tls], "hello 200 1.1"),
        (&["--http2", "--resolve", &resolve, &tls], "hello 200 2"),
    ];
    for (args, expected) in cases {
        let args: Vec<&str> = said.iter().chain(args).copied().collect();
        let answer = tokio::task::block_in_place(|| curl(&args));
        assert_eq!(answer, expected, "{args:?}");
    }
    // A host that the connection's certificate is not for.
    let args = ["--insecure", "--http2", "--resolve", &resolve, "-H", "Host: b.example", &tls];
    let args: Vec<&str> = args.iter().chain(&["--write-out", " %{http_code}"]).copied().collect();
    let answer = tokio::task::block_in_place(|| curl(&args));
    assert!(answer.ends_with(" 421"), "{answer}");
}
