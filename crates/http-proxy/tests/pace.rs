//! How slowly a request's body may come, with the settings that hold unless others are given.
#![allow(clippy::expect_used, reason = "a test ends where its means fail")]

mod h2_support;
mod support;

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use h2_support::request;
use http::Method;
use support::{BACKEND, Backend, Proxy, others_are_served, status};
use telaio_http_proxy::ProxySettings;
use telaio_http_proxy::table::{Backend as BackendSpec, Compress, Endpoint, Policy};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Longer than any body may stay below the pace, and no longer than one may pause.
const WAIT: Duration = Duration::from_secs(55);

/// Sends a head, then the same piece every so often until the other side says something; its status.
async fn dribble(address: SocketAddr, head: String, piece: Vec<u8>, every: Duration) -> u16 {
    let stream = TcpStream::connect(address).await.expect("connect");
    let (mut from, mut to) = stream.into_split();
    to.write_all(head.as_bytes()).await.expect("write");
    let sending = tokio::spawn(async move {
        while to.write_all(&piece).await.is_ok() {
            tokio::time::sleep(every).await;
        }
    });
    let mut answer = vec![0; 4096];
    let count = tokio::time::timeout(WAIT, from.read(&mut answer)).await;
    sending.abort();
    let count = count.expect("it was held for too long").expect("read");
    status(&String::from_utf8_lossy(&answer[..count]))
}

/// The same by HTTP/2, so often at most.
async fn dribble_h2(
    address: SocketAddr,
    kind: &'static str,
    piece: &'static [u8],
    every: Duration,
    times: usize,
) -> u16 {
    let mut send = h2_support::connect(address).await;
    let mut asked = request(Method::POST, "/head");
    asked.headers_mut().insert("content-type", http::HeaderValue::from_static(kind));
    let (response, mut body) = send.send_request(asked, false).expect("send");
    let sending = tokio::spawn(async move {
        for _ in 0..times {
            if body.send_data(Bytes::from_static(piece), false).is_err() {
                return;
            }
            tokio::time::sleep(every).await;
        }
        let _ = body.send_data(Bytes::new(), true);
    });
    let response = tokio::time::timeout(WAIT, response).await;
    sending.abort();
    response.expect("it was held for too long").expect("a response").status().as_u16()
}

#[tokio::test(flavor = "multi_thread")]
async fn bodies_by_drops_are_cut_slow_ones_and_streams_are_not() {
    let backend = Backend::start().await;
    let spec = || BackendSpec::new(BACKEND, vec![Endpoint::at(backend.address)]);
    let plain = Proxy::of_both(spec(), Policy::default(), ProxySettings::default());
    // Where bodies are streams, other code is at work.
    let compress = Compress { enabled: true, ..Compress::default() };
    let streamed = Policy { compress, ..Policy::default() };
    let streamed = Proxy::of_both(spec(), streamed, ProxySettings::default());
    let head = |more: &str| format!("POST /head HTTP/1.1\r\nHost: a\r\n{more}\r\n\r\n");
    let (second, five) = (Duration::from_secs(1), Duration::from_secs(5));
    let mut drops = Vec::new();
    for address in [plain.address, streamed.address] {
        let fixed = head("Content-Length: 100000");
        drops.push(tokio::spawn(dribble(address, fixed, b"x".to_vec(), second)));
        let chunked = head("Transfer-Encoding: chunked");
        drops.push(tokio::spawn(dribble(address, chunked, b"1\r\nx\r\n".to_vec(), second)));
        drops.push(tokio::spawn(dribble_h2(address, "text/plain", b"x", second, 1_000)));
    }
    // 2,400 bytes in five seconds for forty: slow, but it comes. A call says little, and seldom.
    let mut slow = Vec::new();
    for address in [plain.address, streamed.address] {
        let fixed = head("Content-Length: 21600");
        slow.push(tokio::spawn(dribble(address, fixed, vec![b'x'; 2_400], five)));
        slow.push(tokio::spawn(dribble_h2(address, "application/grpc", b"\0", five, 8)));
    }
    others_are_served(plain.address, "/hello").await;
    for client in drops {
        assert_eq!(client.await.expect("client"), 408);
    }
    for client in slow {
        assert_eq!(client.await.expect("client"), 200);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_pays_nothing_for_an_endpoint_that_does_not_read() {
    // An endpoint that lets a body wait, and a rate that no client could have kept meanwhile.
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("bind");
    let address = listener.local_addr().expect("address");
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                tokio::time::sleep(Duration::from_secs(33)).await;
                let mut left: usize = 32 << 20;
                let mut piece = vec![0; 64 << 10];
                while left > 0 {
                    let count = stream.read(&mut piece).await.unwrap_or(0);
                    if count == 0 {
                        return;
                    }
                    left = left.saturating_sub(count);
                }
                let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").await;
            });
        }
    });
    let spec = BackendSpec::new(BACKEND, vec![Endpoint::at(address)]);
    let settings = ProxySettings { body_bytes_per_s_min: u32::MAX, ..ProxySettings::default() };
    let proxy = Proxy::of_both(spec, Policy::default(), settings);
    let mut stream = proxy.connect().await;
    let head = format!("POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n", 32 << 20);
    stream.write_all(head.as_bytes()).await.expect("write");
    stream.write_all(&vec![b'x'; 32 << 20]).await.expect("write");
    assert_eq!(status(&support::read_response(&mut stream).await), 200);
}
