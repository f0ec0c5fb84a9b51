//! Little that becomes much: compressed bodies, compressed heads, heads without end. Memory stays within
//! bounds, and others are served.
#![allow(clippy::expect_used, reason = "a test ends where its means fail")]

mod support;

use std::io::Write as _;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use support::{BACKEND, Backend, OTHERS, Peak, Proxy, others_are_served, read_all, route, status};
use telaio_http_proxy::front::{Front, FrontHandler};
use telaio_http_proxy::proxy_protocol::Trust;
use telaio_http_proxy::server::{Listener, Server, listen};
use telaio_http_proxy::table::{
    Backend as BackendSpec, BackendId, CachePolicy, Compress, Endpoint, HostMatch, Policy,
    TableChange, UpstreamProtocol,
};
use telaio_http_proxy::{HttpProxy, ProxySettings};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// What a bomb would become.
const INFLATED_BYTES: usize = 128 << 20;
/// What anything here may cost: clients and backends of the test are in it too.
const GROWN_KIB_MAX: usize = 64 << 10;

/// Much of nothing, in little.
fn bomb() -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    let nothing = vec![0; 1 << 20];
    for _ in 0..INFLATED_BYTES >> 20 {
        encoder.write_all(&nothing).expect("write");
    }
    encoder.finish().expect("finish")
}

/// A server that answers every request with the same bytes, once it has read its head.
async fn server(answer: Vec<u8>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
    let address = listener.local_addr().expect("address");
    let answer = Arc::new(answer);
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let answer = Arc::clone(&answer);
            tokio::spawn(async move {
                let mut piece = vec![0; 4096];
                while stream.read(&mut piece).await.is_ok_and(|count| count > 0) {
                    if stream.write_all(&answer).await.is_err() {
                        return;
                    }
                }
            });
        }
    });
    address
}

/// A proxy for HTTP/1.1 and HTTP/2 in clear before a backend.
fn proxy(backend: BackendSpec, policy: Policy) -> (SocketAddr, Server) {
    let proxy = Arc::new(HttpProxy::new(ProxySettings::default()));
    proxy.apply(&TableChange {
        routes: [("r".into(), Some(route("r", HostMatch::Any, policy).into()))].into(),
        backends: [(BackendId::new(BACKEND), Some(backend))].into(),
        ..TableChange::default()
    });
    let sockets = listen("127.0.0.1:0".parse().expect("an address"), 2).expect("listen");
    let address = sockets[0].local_addr().expect("address");
    let front = FrontHandler(Arc::new(Front::plain(Trust::new(Vec::new()))));
    let listener = Listener { sockets, handler: Some(Arc::new(front)) };
    (address, Server::start(&proxy, vec![listener], 2).expect("start"))
}

fn at(address: SocketAddr) -> BackendSpec {
    BackendSpec::new(BACKEND, vec![Endpoint::at(address)])
}

async fn ask(address: SocketAddr, request: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(address).await.expect("connect");
    let _ = stream.write_all(request).await;
    let mut all = Vec::new();
    let reading = stream.read_to_end(&mut all);
    let _ = tokio::time::timeout(Duration::from_secs(30), reading).await.expect("in time");
    all
}

/// Where the proxy has something to do with a body, and where not.
fn policies() -> [Policy; 3] {
    let compress = Compress { enabled: true, ..Compress::default() };
    let cache = Some(CachePolicy::default());
    [
        Policy::default(),
        Policy { cache: cache.clone(), ..Policy::default() },
        Policy { cache, compress, ..Policy::default() },
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn a_compressed_response_is_passed_on_and_kept_as_it_is() {
    let bomb = bomb();
    let head = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Encoding: gzip\r\n\
         Cache-Control: max-age=60\r\nContent-Length: {}\r\n\r\n",
        bomb.len()
    );
    let backend = server([head.as_bytes(), &bomb].concat()).await;
    for policy in policies() {
        let (address, _server) = proxy(at(backend), policy);
        let peak = Peak::begin();
        // One who does not say that it takes gzip, one who takes something else, and one who does.
        for accepted in ["", "Accept-Encoding: br\r\n", "Accept-Encoding: gzip\r\n"] {
            for _ in 0..2 {
                let request =
                    format!("GET / HTTP/1.1\r\nHost: a\r\n{accepted}Connection: close\r\n\r\n");
                let answer = ask(address, request.as_bytes()).await;
                assert!(answer.ends_with(&bomb), "{accepted}: {} bytes", answer.len());
            }
        }
        let grown = peak.grown_kib();
        assert!(grown < GROWN_KIB_MAX, "{grown} KiB");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_compressed_request_is_passed_on_as_it_is_and_measured_so() {
    let bomb = bomb();
    let head = |more: &str| {
        format!(
            "POST / HTTP/1.1\r\nHost: a\r\nContent-Encoding: gzip\r\nConnection: close\r\n{more}\r\n"
        )
    };
    let fixed = [head(&format!("Content-Length: {}\r\n", bomb.len())).as_bytes(), &bomb].concat();
    for policy in policies() {
        let policy = Policy { body_bytes_max: Some(bomb.len() as u64), ..policy };
        let backend = Backend::start().await;
        let (address, _server) = proxy(at(backend.address), policy);
        let peak = Peak::begin();
        assert_eq!(status(&String::from_utf8_lossy(&ask(address, &fixed).await)), 200);
        let seen = backend.seen().pop().expect("a request");
        assert!(seen.to_ascii_lowercase().contains("content-encoding: gzip"));
        let wanted = String::from_utf8_lossy(&bomb).into_owned();
        assert!(seen.ends_with(&wanted), "the body is another");
        let grown = peak.grown_kib();
        assert!(grown < GROWN_KIB_MAX, "{grown} KiB");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn to_compress_what_has_no_end_takes_little_memory() {
    let backend = Backend::start().await;
    let compress = Compress { enabled: true, types: vec!["*".into()], ..Compress::default() };
    let address = {
        // The backend of the tests says no type.
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
        let address = listener.local_addr().expect("address");
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                tokio::spawn(async move {
                    let _ = stream.read(&mut [0; 4096]).await;
                    let head =
                        b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\n";
                    let _ = stream.write_all(head).await;
                    let piece = vec![b'x'; 64 << 10];
                    for _ in 0..250 {
                        if stream.write_all(&piece).await.is_err() {
                            return;
                        }
                    }
                });
            }
        });
        address
    };
    let (address, _server) = proxy(at(address), Policy { compress, ..Policy::default() });
    let peak = Peak::begin();
    for coding in ["gzip", "br", "zstd"] {
        let request = format!(
            "GET / HTTP/1.1\r\nHost: a\r\nAccept-Encoding: {coding}\r\nConnection: close\r\n\r\n"
        );
        // Eight at once, of 16 MB each.
        let asking: Vec<_> = (0..8)
            .map(|_| {
                let request = request.clone();
                tokio::spawn(async move {
                    let mut stream = TcpStream::connect(address).await.expect("connect");
                    stream.write_all(request.as_bytes()).await.expect("write");
                    let mut all = Vec::new();
                    let _ = stream.read_to_end(&mut all).await;
                    all
                })
            })
            .collect();
        for answer in asking {
            let answer = answer.await.expect("an answer");
            let text = String::from_utf8_lossy(&answer).to_ascii_lowercase();
            assert!(text.contains(&format!("content-encoding: {coding}")), "{text:.300}");
            assert!(answer.len() < 2 << 20, "{coding}: {} bytes", answer.len());
        }
    }
    let grown = peak.grown_kib();
    assert!(grown < GROWN_KIB_MAX, "{grown} KiB");
    drop(backend);
}

fn frame(kind: u8, flags: u8, id: u32, payload: &[u8]) -> Vec<u8> {
    let [_, a, b, c] = (payload.len() as u32).to_be_bytes();
    [&[a, b, c, kind, flags][..], &id.to_be_bytes(), payload].concat()
}

/// A field of 3,900 bytes that goes into the dynamic table, after these.
fn large_field(before: &[u8]) -> Vec<u8> {
    let mut block = before.to_vec();
    block.extend([0x40, 1, b'x']);
    // 3,900 with a prefix of seven bits.
    block.extend([0x7f, 0xbd, 0x1d]);
    block.extend(vec![b'v'; 3900]);
    block
}

#[tokio::test(flavor = "multi_thread")]
async fn a_small_head_that_names_a_large_field_often_is_refused() {
    let backend = Backend::start().await;
    let (address, _server) = proxy(at(backend.address), Policy::default());
    let peak = Peak::begin();
    // GET http://a/ and the field; then, on each stream, the field twelve thousand times: 47 MB.
    let get = [0x82, 0x84, 0x86, 0x41, 1, b'a'];
    let again = [&get[..], &vec![0xbe; 12_000]].concat();
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    bytes.extend(frame(4, 0, 0, &[]));
    bytes.extend(frame(1, 5, 1, &large_field(&get)));
    let first = bytes.len();
    for number in 1..=100 {
        // The authority goes into the table in front of the field each time: not indexed here.
        let mut block = again.clone();
        block[3] = 0x01;
        bytes.extend(frame(1, 5, 2 * number + 1, &block));
    }
    let bombing: Vec<_> = (0..4)
        .map(|_| {
            let bytes = bytes.clone();
            tokio::spawn(async move {
                let mut stream = TcpStream::connect(address).await.expect("connect");
                stream.write_all(&bytes[..first]).await.expect("write");
                // Sound so far: it is answered.
                let mut told = vec![0; 64 << 10];
                let mut answer = Vec::new();
                while !answer.ends_with(b"hello") {
                    let count = stream.read(&mut told).await.expect("read");
                    assert!(count > 0, "no answer to the first request");
                    answer.extend_from_slice(&told[..count]);
                }
                // Whoever is sent away cannot say all.
                let _ = stream.write_all(&bytes[first..]).await;
                let _ = tokio::time::timeout(Duration::from_secs(5), async {
                    while stream.read(&mut told).await.is_ok_and(|count| count > 0) {}
                })
                .await;
            })
        })
        .collect();
    others_are_served(address, "/hello").await;
    for client in bombing {
        client.await.expect("client");
    }
    let grown = peak.grown_kib();
    assert!(grown < GROWN_KIB_MAX, "{grown} KiB");
    // The first request of each is sound; none of the others came through.
    let seen = backend.seen().iter().filter(|request| request.contains("vvvv")).count();
    assert_eq!(seen, 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backends_head_that_becomes_large_is_a_bad_gateway() {
    // HTTP/2: a response whose field is named often. HTTP/1.1: fields without end.
    let block = [large_field(&[0x88]), vec![0xbe; 12_000]].concat();
    let bomb = [frame(4, 0, 0, &[]), frame(1, 4, 1, &block)].concat();
    let h2 = server(bomb).await;
    let h1 = server([b"HTTP/1.1 200 OK\r\n".to_vec(), b"A: b\r\n".repeat(4 << 20)].concat()).await;
    let of_h2 = BackendSpec { protocol: UpstreamProtocol::H2c, ..at(h2) };
    for (name, backend) in [("h2", of_h2), ("h1", at(h1))] {
        for policy in policies() {
            let (address, _server) = proxy(backend.clone(), policy);
            let peak = Peak::begin();
            let request =
                b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
            let answer = ask(address, request).await;
            let answer = String::from_utf8_lossy(&answer).into_owned();
            assert_eq!(status(&answer), 502, "{name}: {answer:.300}");
            let grown = peak.grown_kib();
            assert!(grown < GROWN_KIB_MAX, "{name}: {grown} KiB");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn heads_without_end_cost_little_however_many_come() {
    let backend = Backend::start().await;
    let proxy = Proxy::before(&[&backend]);
    let peak = Peak::begin();
    let address = proxy.address;
    let bombing: Vec<_> = (0..100)
        .map(|number| {
            tokio::spawn(async move {
                let mut client = TcpStream::connect(address).await.expect("connect");
                let _ = client.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n").await;
                let long = format!("X-Bomb: {}\r\n", "b".repeat(4000));
                // Long lines, and many short ones.
                let lines = if number % 2 == 0 { long } else { "A: b\r\n".repeat(1000) };
                for _ in 0..1000 {
                    if client.write_all(lines.as_bytes()).await.is_err() {
                        break;
                    }
                }
                read_all(&mut client).await
            })
        })
        .collect();
    others_are_served(address, "/hello").await;
    for client in bombing {
        let answer = client.await.expect("client");
        assert!(answer.is_empty() || status(&answer) == 431, "{answer}");
    }
    let grown = peak.grown_kib();
    assert!(grown < GROWN_KIB_MAX, "{grown} KiB");
    assert_eq!(backend.seen().len(), OTHERS);
}
