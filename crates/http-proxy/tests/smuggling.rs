//! Requests that can be read in two ways: each gets 400, its connection is closed, and nothing of it
//! or behind it reaches the backend.
#![allow(clippy::expect_used, reason = "a test ends where its means fail")]

mod support;

use std::net::SocketAddr;

use support::{Backend, Proxy, status};
use telaio_http_proxy::table::{Auth, Compress, ForwardAuth, Policy};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const NEXT: &str = "GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n";

/// What is wrong, and the bytes.
fn cases() -> Vec<(&'static str, Vec<u8>)> {
    let post = |fields: &str, body: &str| {
        format!("POST /x HTTP/1.1\r\nHost: a\r\n{fields}\r\n{body}").into_bytes()
    };
    let get = |head: &str| format!("GET / HTTP/1.1\r\n{head}\r\n").into_bytes();
    vec![
        ("CL and TE", post("Content-Length: 4\r\nTransfer-Encoding: chunked\r\n", "0\r\n\r\n")),
        ("TE and CL", post("Transfer-Encoding: chunked\r\nContent-Length: 0\r\n", "0\r\n\r\n")),
        ("two CL that differ", post("Content-Length: 0\r\nContent-Length: 5\r\n", "hello")),
        ("two CL alike", post("Content-Length: 5\r\nContent-Length: 5\r\n", "hello")),
        ("CL list", post("Content-Length: 5, 5\r\n", "hello")),
        ("CL with sign", post("Content-Length: +5\r\n", "hello")),
        ("CL negative", post("Content-Length: -1\r\n", "")),
        ("CL hex", post("Content-Length: 0x5\r\n", "hello")),
        ("CL empty", post("Content-Length:\r\n", "")),
        ("CL with space within", post("Content-Length: 1 0\r\n", "hello")),
        ("CL too large", post("Content-Length: 99999999999999999999999\r\n", "")),
        ("TE twice", post("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", "0\r\n\r\n")),
        ("TE list", post("Transfer-Encoding: gzip, chunked\r\n", "0\r\n\r\n")),
        ("TE identity", post("Transfer-Encoding: identity\r\n", "")),
        ("TE chunked, identity", post("Transfer-Encoding: chunked, identity\r\n", "0\r\n\r\n")),
        ("TE xchunked", post("Transfer-Encoding: xchunked\r\n", "0\r\n\r\n")),
        ("TE quoted", post("Transfer-Encoding: \"chunked\"\r\n", "0\r\n\r\n")),
        ("TE empty", post("Transfer-Encoding:\r\n", "")),
        ("TE with vertical tab", post("Transfer-Encoding: \x0bchunked\r\n", "0\r\n\r\n")),
        ("TE in HTTP/1.0", b"POST / HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n".to_vec()),
        ("space before colon", post("Transfer-Encoding : chunked\r\n", "0\r\n\r\n")),
        ("folded line", post("X: a\r\n b\r\n", "")),
        ("folded TE", post("Transfer-Encoding:\r\n chunked\r\n", "0\r\n\r\n")),
        ("first field folded", get(" Host: a\r\nHost: a\r\n")),
        ("bare LF", b"GET / HTTP/1.1\nHost: a\n\n".to_vec()),
        ("bare LF in a field", b"GET / HTTP/1.1\r\nHost: a\r\nX: a\nY: b\r\n\r\n".to_vec()),
        ("bare CR in a value", get("Host: a\r\nX: a\rTransfer-Encoding: chunked\r\n")),
        ("NUL in a value", get("Host: a\r\nX: a\0b\r\n")),
        ("NUL in a name", get("Host: a\r\nX\0: a\r\n")),
        ("no Host", get("")),
        ("two Hosts", get("Host: a\r\nHost: b\r\n")),
        ("two Hosts alike", get("Host: a\r\nHost: a\r\n")),
        ("Host with user", get("Host: u@a\r\n")),
        ("Host with path", get("Host: a/b\r\n")),
        ("Host with space", get("Host: a b\r\n")),
        ("Host with a list", get("Host: a, b\r\n")),
        ("Host with bad port", get("Host: a:x\r\n")),
        ("Host empty", get("Host:\r\n")),
        ("bad name", get("Host: a\r\nX(Y: z\r\n")),
        ("no name", get("Host: a\r\n: z\r\n")),
        ("no colon", get("Host: a\r\nnothing\r\n")),
        ("HTTP/1.2", b"GET / HTTP/1.2\r\nHost: a\r\n\r\n".to_vec()),
        ("HTTP/2.0", b"GET / HTTP/2.0\r\nHost: a\r\n\r\n".to_vec()),
        ("no version", b"GET /\r\nHost: a\r\n\r\n".to_vec()),
        ("two spaces", b"GET  / HTTP/1.1\r\nHost: a\r\n\r\n".to_vec()),
        ("tab in the request line", b"GET\t/ HTTP/1.1\r\nHost: a\r\n\r\n".to_vec()),
        ("fragment", b"GET /a#b HTTP/1.1\r\nHost: a\r\n\r\n".to_vec()),
        ("bad escape", b"GET /%zz HTTP/1.1\r\nHost: a\r\n\r\n".to_vec()),
        ("escaped NUL", b"GET /%00 HTTP/1.1\r\nHost: a\r\n\r\n".to_vec()),
        ("out of the root", b"GET /../a HTTP/1.1\r\nHost: a\r\n\r\n".to_vec()),
        ("out of the root, escaped", b"GET /%2e%2e/a HTTP/1.1\r\nHost: a\r\n\r\n".to_vec()),
        ("unescaped bytes", b"GET /\xff HTTP/1.1\r\nHost: a\r\n\r\n".to_vec()),
        ("absolute with a bad host", b"GET http://u@a/ HTTP/1.1\r\nHost: a\r\n\r\n".to_vec()),
        ("upgrade with a body", post("Connection: upgrade\r\nUpgrade: websocket\r\nContent-Length: 5\r\n", "hello")),
        ("upgrade with a request behind", format!(
            "GET /upgrade HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n{NEXT}").into_bytes()),
        ("TLS on the wrong port", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n".to_vec()),
    ]
}

/// Faults of a chunked body: the head is good, so it may have reached the backend, but the request
/// may not have been completed there.
fn bad_chunks() -> Vec<(&'static str, &'static str)> {
    vec![
        ("no size", "\r\nhello\r\n0\r\n\r\n"),
        ("bad digit", "g\r\nhello\r\n0\r\n\r\n"),
        ("sign", "+5\r\nhello\r\n0\r\n\r\n"),
        ("0x", "0x5\r\nhello\r\n0\r\n\r\n"),
        ("space before the size", " 5\r\nhello\r\n0\r\n\r\n"),
        ("space behind the size", "5 \r\nhello\r\n0\r\n\r\n"),
        ("size that wraps around", "100000000000000005\r\nhello\r\n0\r\n\r\n"),
        ("size with endless zeros", "00000000000000005\r\nhello\r\n0\r\n\r\n"),
        ("bare LF behind the size", "5\nhello\r\n0\r\n\r\n"),
        ("bare LF in an extension", "5;a\nhello\r\n0\r\n\r\n"),
        ("data longer than its size", "5\r\nhello!\r\n0\r\n\r\n"),
        ("no line end behind the data", "5\r\nhello0\r\n\r\n"),
        ("bare LF behind the data", "5\r\nhello\n0\r\n\r\n"),
        ("bare LF behind the end", "5\r\nhello\r\n0\r\n\n"),
        ("a trailer without a colon", "0\r\nnothing\r\n\r\n"),
        ("a folded trailer", "0\r\nA: b\r\n c\r\n\r\n"),
    ]
}

#[tokio::test]
async fn what_can_be_read_in_two_ways_is_refused() {
    let backend = Backend::start().await;
    let proxy = Proxy::before(&[&backend]);
    for (what, mut bytes) in cases() {
        bytes.extend_from_slice(NEXT.as_bytes());
        let answer = proxy.raw(&bytes).await;
        assert_eq!(status(&answer), 400, "{what}: {answer:?}");
        assert_eq!(answer.matches("HTTP/1.1 ").count(), 1, "{what}: {answer:?}");
        assert!(answer.contains("\r\nConnection: close\r\n"), "{what}: {answer:?}");
        assert_eq!(backend.seen(), Vec::<String>::new(), "{what}");
    }
}

#[tokio::test]
async fn bad_chunks_are_refused_and_nothing_behind_them_is_served() {
    let backend = Backend::start().await;
    let proxy = Proxy::before(&[&backend]);
    for (what, chunks) in bad_chunks() {
        let head = "POST /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
        let answer = proxy.raw(format!("{head}{chunks}{NEXT}")).await;
        assert_eq!(status(&answer), 400, "{what}: {answer:?}");
        assert_eq!(answer.matches("HTTP/1.1 ").count(), 1, "{what}: {answer:?}");
        assert_eq!(backend.seen(), Vec::<String>::new(), "{what}");
    }
}

#[tokio::test]
async fn an_upgrade_that_the_backend_does_not_grant_stays_http() {
    let backend = Backend::start().await;
    let proxy = Proxy::before(&[&backend]);
    let mut client = proxy.connect().await;
    let ask = "GET /hello HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n";
    client.write_all(ask.as_bytes()).await.expect("write");
    let answer = support::read_response(&mut client).await;
    assert!(answer.ends_with("hello"), "{answer}");
    // What follows is a request, and is judged as one.
    client
        .write_all(
            b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nxx",
        )
        .await
        .expect("write");
    assert_eq!(status(&support::read_all(&mut client).await), 400);
    assert_eq!(backend.seen().len(), 1);
}

#[tokio::test]
async fn h2c_is_not_upgraded_to_and_its_fields_go_no_further() {
    let backend = Backend::start().await;
    let proxy = Proxy::before(&[&backend]);
    let ask = "GET /head HTTP/1.1\r\nHost: a\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n\
               HTTP2-Settings: AAMAAABk\r\n\r\n";
    let mut client = proxy.connect().await;
    client.write_all(ask.as_bytes()).await.expect("write");
    let answer = support::read_response(&mut client).await.to_ascii_lowercase();
    assert!(answer.starts_with("http/1.1 200"), "{answer}");
    assert!(!answer.contains("upgrade") && !answer.contains("http2-settings"), "{answer}");
}

#[tokio::test]
async fn http_is_not_upgraded_to_in_whatever_company_it_is_named() {
    let backend = Backend::start().await;
    let proxy = Proxy::before(&[&backend]);
    for upgrade in [
        "Upgrade: websocket, h2c",
        "Upgrade: H2C,websocket",
        "Upgrade: websocket\r\nUpgrade: h2c",
        "Upgrade: h2c\r\nUpgrade: websocket",
        "Upgrade: HTTP/2.0",
        "Upgrade: TLS/1.0, HTTP/1.1",
        "Upgrade: ,",
    ] {
        let ask =
            format!("GET /head HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\n{upgrade}\r\n\r\n");
        let mut client = proxy.connect().await;
        client.write_all(ask.as_bytes()).await.expect("write");
        let answer = support::read_response(&mut client).await.to_ascii_lowercase();
        assert!(answer.starts_with("http/1.1 200"), "{upgrade}: {answer}");
        assert!(!answer.contains("upgrade"), "{upgrade}: {answer}");
    }
}

#[tokio::test]
async fn only_what_was_asked_for_is_upgraded_to() {
    let backend = Backend::start().await;
    let proxy = Proxy::before(&[&backend]);
    // The backend answers `Upgrade: websocket` whatever it is asked.
    for (asked, expected) in [
        ("websocket", 101),
        ("chat, WebSocket", 101),
        ("chat", 502),
        ("websocket/13", 502),
        ("websockets", 502),
    ] {
        let ask = format!(
            "GET /upgrade HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: {asked}\r\n\r\n"
        );
        let mut client = proxy.connect().await;
        client.write_all(ask.as_bytes()).await.expect("write");
        let answer = support::read_response(&mut client).await;
        assert_eq!(status(&answer), expected, "{asked}: {answer}");
    }
}

/// A server that says that everybody may, and who it is: `x-user: anna`.
async fn authority() -> SocketAddr {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("bind");
    let address = listener.local_addr().expect("address");
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut piece = [0; 4096];
                while stream.read(&mut piece).await.is_ok_and(|count| count > 0) {
                    let answer = b"HTTP/1.1 200 OK\r\nX-User: anna\r\nContent-Length: 0\r\n\r\n";
                    if stream.write_all(answer).await.is_err() {
                        return;
                    }
                }
            });
        }
    });
    address
}

#[tokio::test]
async fn trailers_say_nothing_that_only_we_or_an_authority_may_say() {
    let backend = Backend::start().await;
    let authority = authority().await;
    let auth = Auth::Forward(ForwardAuth {
        url: format!("http://{authority}/").into(),
        method: None,
        signin: None,
        signin_redirect_param: "".into(),
        request_redirect: None,
        response_headers: vec!["X-User".into()],
        set_headers: Vec::new(),
        always_set_cookie: false,
        cache: std::time::Duration::ZERO,
        cache_key: None,
        timeout: std::time::Duration::ZERO,
    });
    let passed_on = Policy { auth: vec![auth], ..Policy::default() };
    let streamed =
        Policy { compress: Compress { enabled: true, ..Compress::default() }, ..passed_on.clone() };
    for policy in [passed_on, streamed] {
        let proxy = Proxy::with_policy(&[&backend], policy);
        let request = "POST /head HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\
             Connection: close\r\n\r\n5\r\nhello\r\n0\r\nX-User: evil\r\nx-user: evil\r\n\
             X-Real-IP: 6.6.6.6\r\nSSL-Client-Verify: evil\r\nSsl-Client-Cert: evil\r\n\
             X-Forwarded-Prefix: /evil\r\nX-Scheme: evil\r\nX_Real_IP: 6.6.6.6\r\nX-Sum: 5\r\n\r\n";
        let answer = proxy.raw(request).await.to_ascii_lowercase();
        assert!(answer.contains("x-user: anna") && answer.contains("x-sum: 5"), "{answer}");
        assert!(!answer.contains("evil") && !answer.contains("6.6.6.6"), "{answer}");
        // And whoever looks at trailers leaves the length alone.
        let request = "POST /head HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\
                       Connection: close\r\n\r\nhello";
        let answer = proxy.raw(request).await.to_ascii_lowercase();
        let (_, seen) = answer.split_once("\r\n\r\n").expect("a body");
        assert!(seen.contains("content-length: 5\r\n"), "{answer}");
        assert!(!seen.contains("transfer-encoding") && seen.ends_with("hello"), "{answer}");
    }
}
