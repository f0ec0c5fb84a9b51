//! HTTP/2 of clients, over real sockets: by the h2 crate, by curl and by raw frames.

#![allow(clippy::expect_used, reason = "in a test it is the assertion")]

mod h2_support;
mod support;

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use h2_support::{before, connect, curl, get, proxy, read, request};
use http::{HeaderMap, Method, StatusCode};
use support::{BACKEND, Backend};
use telaio_http_proxy::proxy_protocol::{self, Addresses, Version};
use telaio_http_proxy::table::{Backend as BackendSpec, Endpoint, Policy};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

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
async fn trailers_say_nothing_that_a_head_could_not() {
    let backend = Backend::start().await;
    let proxy = before(&backend);
    let mut send = connect(proxy.plain).await;
    let (response, mut body) =
        send.send_request(request(Method::POST, "/head"), false).expect("send");
    body.send_data(Bytes::from_static(b"hello"), false).expect("data");
    let mut trailers = HeaderMap::new();
    for name in ["authorization", "x_real_ip", "x-real-ip", "cookie", "x-forwarded-for"] {
        trailers.insert(name, "evil".parse().expect("value"));
    }
    trailers.insert("x-sum", "5".parse().expect("value"));
    body.send_trailers(trailers).expect("trailers");
    let answer = read(response.await.expect("response")).await.expect("body");
    let seen = String::from_utf8(answer.body).expect("text").to_ascii_lowercase();
    assert!(seen.contains("hello") && seen.contains("x-sum: 5\r\n"), "{seen}");
    assert!(!seen.contains("evil"), "{seen}");
}

#[tokio::test(flavor = "multi_thread")]
async fn options_of_the_server_itself_and_escaped_slashes() {
    let backend = Backend::start().await;
    let proxy = before(&backend);
    let mut send = connect(proxy.plain).await;
    let mut asked = request(Method::OPTIONS, "/");
    let uri = http::Uri::builder().scheme("http").authority("a.example").path_and_query("*");
    *asked.uri_mut() = uri.build().expect("a target");
    let (response, _) = send.send_request(asked, true).expect("send");
    let answer = read(response.await.expect("response")).await.expect("body");
    assert!(answer.status == 204 && answer.headers.contains_key("allow"), "{}", answer.status);
    assert_eq!(backend.seen(), Vec::<String>::new(), "we are asked");
    assert_eq!(get(&mut send, "/a%2Fb/%2fc?d=%2F").await.status, 200);
    let seen = backend.seen().remove(0);
    assert!(seen.starts_with("GET /a%2Fb/%2Fc?d=%2F HTTP/1.1\r\n"), "{seen}");
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
