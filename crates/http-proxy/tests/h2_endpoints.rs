//! HTTP/2 of endpoints, and what the cache, health checks, bounds and a drain make of HTTP/2; over real sockets.

#![allow(clippy::expect_used, reason = "in a test it is the assertion")]

mod h2_support;
mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use h2_support::{
    before, connect, curl, get, h2_server, h2c_backend, proxy, read, request, serve_h2,
};
use http::{Method, Response, StatusCode};
use support::{BACKEND, Backend};
use telaio_http_proxy::table::{
    Backend as BackendSpec, BackendId, CachePolicy, Endpoint, HealthCheck, Policy, TableChange,
    Timeouts, UpstreamProtocol, UpstreamTls,
};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};

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
async fn a_websocket_to_an_endpoint_of_http2_is_refused_and_another_upgrade_left_out() {
    let (address, _) = h2_server().await;
    let proxy = proxy(h2c_backend(address), Policy::default(), &[]);
    let mut io = TcpStream::connect(proxy.plain).await.expect("connect");
    let asked = "GET /socket HTTP/1.1\r\nHost: a.example\r\nConnection: upgrade\r\n\
                 Upgrade: websocket\r\nSec-WebSocket-Key: eA==\r\n\r\n";
    io.write_all(asked.as_bytes()).await.expect("write");
    let answer = support::read_response(&mut io).await;
    assert_eq!(support::status(&answer), 501, "{answer}");
    let mut io = TcpStream::connect(proxy.plain).await.expect("connect");
    io.write_all(asked.replace("websocket", "other").as_bytes()).await.expect("write");
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
    let deadline = Instant::now() + Duration::from_mins(1);
    // Each check is a connection of its own; when the third begins, two are judged.
    while connections.load(Ordering::SeqCst) < 4 {
        assert!(Instant::now() < deadline, "{connections:?} checks");
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
            Err(_) => true,
        };
        assert!(refused);
    }
    assert_eq!(backend.seen().len(), 2);
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
