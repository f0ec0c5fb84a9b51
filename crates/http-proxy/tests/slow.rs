//! Who is slow waits for himself: clients that read or write by drops, backends that do not answer. Memory
//! stays within bounds, and others are served meanwhile.
#![allow(clippy::expect_used, reason = "a test ends where its means fail")]

mod support;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use support::{BACKEND, Backend, OTHERS, Peak, Proxy, others_are_served, status};
use telaio_http_proxy::ProxySettings;
use telaio_http_proxy::h1::relay::ClientTimeouts;
use telaio_http_proxy::table::{
    Backend as BackendSpec, BackendId, Breaker, CachePolicy, Endpoint, HostMatch, PathMatch,
    Policy, Route, TableChange, Timeouts,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// What anything here may cost: clients and backends of the test are in it too.
const GROWN_KIB_MAX: usize = 64 << 10;

fn at(backend: &Backend) -> BackendSpec {
    BackendSpec::new(BACKEND, vec![Endpoint::at(backend.address)])
}

fn timeouts(head: Duration, keep_alive: Duration) -> ProxySettings {
    let timeouts = ClientTimeouts { head, keep_alive, ..ClientTimeouts::default() };
    ProxySettings { timeouts, ..ProxySettings::default() }
}

fn frame(kind: u8, flags: u8, id: u32, payload: &[u8]) -> Vec<u8> {
    let [_, a, b, c] = (payload.len() as u32).to_be_bytes();
    [&[a, b, c, kind, flags][..], &id.to_be_bytes(), payload].concat()
}

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// `GET http://a` and this path, as a header block.
fn get_block(path: &str) -> Vec<u8> {
    let mut block = vec![0x82, 0x86, 0x01, 1, b'a', 0x04, path.len() as u8];
    block.extend_from_slice(path.as_bytes());
    block
}

#[tokio::test(flavor = "multi_thread")]
async fn as_many_wait_for_a_slow_backend_as_may_and_the_rest_hear_so_at_once() {
    let (slow, other) = (Backend::start().await, Backend::start().await);
    let limits = Breaker { connections_max: 4, pending_max: 8, ..Breaker::default() };
    let spec = BackendSpec { limits, ..at(&slow) };
    // Whoever waits for a place waits as for a connection; long enough here for all who may.
    let timeouts = Timeouts { connect: Duration::from_mins(1), ..Timeouts::default() };
    let policy = Policy { timeouts, ..Policy::default() };
    let proxy = Proxy::of_both(spec, policy, ProxySettings::default());
    let host = HostMatch::Exact("other.example".into());
    let id = BackendId::new("default/other:80");
    let aside = Route::forward("o", host, PathMatch::Prefix("/".into()), id.clone());
    let spec = BackendSpec::new("default/other:80", vec![Endpoint::at(other.address)]);
    proxy.proxy.apply(&TableChange {
        routes: [("o".into(), Some(aside.into()))].into(),
        backends: [(id, Some(spec))].into(),
        ..TableChange::default()
    });
    let peak = Peak::begin();
    let address = proxy.address;
    let asking: Vec<_> = (0..300)
        .map(|_| {
            tokio::spawn(async move {
                let mut stream = TcpStream::connect(address).await.expect("connect");
                let request = b"GET /slow?3000 HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
                stream.write_all(request).await.expect("write");
                let mut all = String::new();
                let reading = stream.read_to_string(&mut all);
                tokio::time::timeout(Duration::from_mins(1), reading)
                    .await
                    .expect("in time")
                    .expect("read");
                status(&all)
            })
        })
        .collect();
    others_are_served(address, "/hello").await;
    let mut served = 0;
    for client in asking {
        match client.await.expect("client") {
            200 => served += 1,
            503 => {}
            other => panic!("{other}"),
        }
    }
    // Four at a time, and eight behind them; a place that is free again may be taken by one who came late.
    assert!((12..=40).contains(&served), "{served} were served");
    assert_eq!(slow.seen().len(), served, "nobody else came through");
    assert!(slow.connections.load(std::sync::atomic::Ordering::Relaxed) <= 4 + served);
    let grown = peak.grown_kib();
    assert!(grown < GROWN_KIB_MAX, "{grown} KiB");
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_reads_by_drops_holds_up_his_backend_and_takes_no_memory() {
    // 100 × 20 MB: straight through, as a stream, and on their way into the cache.
    let cache = CachePolicy { default_ttl: Some(Duration::from_mins(1)), ..CachePolicy::default() };
    let streamed = CachePolicy { object_bytes_max: 1 << 10, ..CachePolicy::default() };
    for cache in [None, Some(streamed), Some(cache)] {
        let backend = Backend::start().await;
        let mut settings = ProxySettings::default();
        settings.cache.bytes_max = 32 << 20;
        let proxy = Proxy::of_both(at(&backend), Policy { cache, ..Policy::default() }, settings);
        let peak = Peak::begin();
        let address = proxy.address;
        let reading: Vec<_> = (0..100)
            .map(|number| {
                tokio::spawn(async move {
                    let mut stream = TcpStream::connect(address).await.expect("connect");
                    let request = format!("GET /big?20000000 HTTP/1.1\r\nHost: a{number}\r\n\r\n");
                    stream.write_all(request.as_bytes()).await.expect("write");
                    let mut drop = vec![0; 1024];
                    let mut read = 0;
                    for _ in 0..100 {
                        read += stream.read(&mut drop).await.expect("read");
                        tokio::time::sleep(Duration::from_millis(20)).await;
                    }
                    read
                })
            })
            .collect();
        others_are_served(address, "/hello").await;
        for client in reading {
            assert!(client.await.expect("client") > 1024);
        }
        let grown = peak.grown_kib();
        assert!(grown < GROWN_KIB_MAX, "{grown} KiB");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_whose_windows_stay_shut_are_held_back_and_then_cut() {
    let backend = Backend::start().await;
    let timeouts = Timeouts { idle: Duration::from_secs(2), ..Timeouts::default() };
    let policy = Policy { timeouts, ..Policy::default() };
    let proxy = Proxy::of_both(at(&backend), policy, ProxySettings::default());
    let peak = Peak::begin();
    let address = proxy.address;
    // SETTINGS_INITIAL_WINDOW_SIZE = 0; then 100 responses of 10 MB each, on each of four connections.
    let mut bytes = PREFACE.to_vec();
    bytes.extend(frame(4, 0, 0, &[0, 4, 0, 0, 0, 0]));
    for number in 0..100 {
        bytes.extend(frame(1, 5, 2 * number + 1, &get_block("/big?10000000")));
    }
    let clients: Vec<_> = (0..4)
        .map(|_| {
            let bytes = bytes.clone();
            tokio::spawn(async move {
                let mut stream = TcpStream::connect(address).await.expect("connect");
                stream.write_all(&bytes).await.expect("write");
                // RST_STREAM for each of them, in the end.
                let mut all = Vec::new();
                let mut piece = vec![0; 16 << 10];
                let counting = async {
                    loop {
                        let count = stream.read(&mut piece).await.expect("read");
                        assert!(count > 0, "the connection need not end");
                        all.extend_from_slice(&piece[..count]);
                        let mut resets = 0;
                        let mut rest = &all[..];
                        while let [a, b, c, kind, _, _, _, _, _, ..] = *rest {
                            let end = 9 + u32::from_be_bytes([0, a, b, c]) as usize;
                            if rest.len() < end {
                                break;
                            }
                            resets += usize::from(kind == 3);
                            assert_ne!(kind, 0, "data despite a window of nothing");
                            rest = &rest[end..];
                        }
                        if resets == 100 {
                            return;
                        }
                    }
                };
                tokio::time::timeout(Duration::from_mins(1), counting).await.expect("all cut");
            })
        })
        .collect();
    others_are_served(address, "/hello").await;
    for client in clients {
        client.await.expect("client");
    }
    let grown = peak.grown_kib();
    // Of 4 GB. Each of the 400 has a connection to the backend with its buffers, on both sides of it.
    assert!(grown < 2 * GROWN_KIB_MAX, "{grown} KiB");
}

/// Sends the beginning at once and then drop by drop, until the other side has closed; what it said.
async fn drip(address: SocketAddr, first: Vec<u8>, drop: Vec<u8>) -> Vec<u8> {
    let stream = TcpStream::connect(address).await.expect("connect");
    let (mut from, mut to) = stream.into_split();
    to.write_all(&first).await.expect("write");
    let dripping = tokio::spawn(async move {
        while to.write_all(&drop).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    });
    let mut all = Vec::new();
    let reading = from.read_to_end(&mut all);
    let _ = tokio::time::timeout(Duration::from_mins(1), reading).await.expect("it is closed");
    dripping.abort();
    all
}

#[tokio::test(flavor = "multi_thread")]
async fn beginnings_that_come_by_drops_are_cut_off_whatever_they_begin() {
    let backend = Backend::start().await;
    let settings = timeouts(Duration::from_secs(1), Duration::from_secs(2));
    let proxy = Proxy::of_both(at(&backend), Policy::default(), settings);
    let settings_frame = frame(4, 0, 0, &[]);
    let half_head = [PREFACE, &settings_frame, &frame(1, 1, 1, &get_block("/hello"))].concat();
    // A CONTINUATION with one small field, by its bytes; the last would have a flag.
    let continuation = frame(9, 0, 1, &[0x00, 1, b'x', 1, b'y']);
    let cases: [(&str, Vec<u8>, Vec<u8>); 5] = [
        (
            "a head of HTTP/1.1",
            b"GET /hello HTTP/1.1\r\nHost: a\r\n".to_vec(),
            b"X: y\r\n".to_vec(),
        ),
        ("a request line of HTTP/1.1", b"GET /".to_vec(), b"x".to_vec()),
        ("a preface", PREFACE[..10].to_vec(), Vec::new()),
        ("a preface without settings", PREFACE.to_vec(), Vec::new()),
        ("a head of HTTP/2", half_head, continuation),
    ];
    let peak = Peak::begin();
    let mut dripping = Vec::new();
    for (name, first, drop) in &cases {
        for _ in 0..40 {
            dripping.push((*name, tokio::spawn(drip(proxy.address, first.clone(), drop.clone()))));
        }
    }
    others_are_served(proxy.address, "/hello").await;
    let mut heard = 0;
    for (name, client) in dripping {
        let answer = client.await.expect(name);
        // Who spoke HTTP/1.1 hears why; nobody is answered as if he had asked for something.
        let told = status(&String::from_utf8_lossy(&answer));
        let expected: &[u16] = if name.ends_with("1.1") { &[408, 0] } else { &[0] };
        assert!(expected.contains(&told), "{name}: {told}");
        heard += usize::from(told == 408);
    }
    // A word may be lost with what was never read.
    assert!(heard > 0, "nobody was told");
    assert_eq!(backend.seen().len(), OTHERS, "nothing half came through");
    let grown = peak.grown_kib();
    assert!(grown < GROWN_KIB_MAX, "{grown} KiB");
}

#[tokio::test(flavor = "multi_thread")]
async fn bodies_that_come_by_drops_end_with_the_time_for_the_request() {
    let backend = Backend::start().await;
    let timeouts = Timeouts { request: Some(Duration::from_secs(2)), ..Timeouts::default() };
    let policy = Policy { timeouts, ..Policy::default() };
    let proxy = Proxy::of_both(at(&backend), policy, ProxySettings::default());
    let peak = Peak::begin();
    let head = "POST /x HTTP/1.1\r\nHost: a\r\nConnection: close\r\n";
    let fixed = format!("{head}Content-Length: 100000\r\n\r\n").into_bytes();
    let chunked = format!("{head}Transfer-Encoding: chunked\r\n\r\n").into_bytes();
    let mut dripping = Vec::new();
    for (first, drop) in [(fixed, b"x".to_vec()), (chunked, b"1\r\nx\r\n".to_vec())] {
        for _ in 0..100 {
            dripping.push(tokio::spawn(drip(proxy.address, first.clone(), drop.clone())));
        }
    }
    others_are_served(proxy.address, "/hello").await;
    for client in dripping {
        let answer = client.await.expect("client");
        let code = status(&String::from_utf8_lossy(&answer));
        assert!([0, 408, 504].contains(&code), "{code}");
    }
    assert_eq!(backend.seen().len(), OTHERS, "no half of a request counts as one");
    let grown = peak.grown_kib();
    assert!(grown < GROWN_KIB_MAX, "{grown} KiB");
}

/// What GOAWAY says, if a connection was told one.
fn goodbye(mut said: &[u8]) -> Option<u32> {
    while let [a, b, c, kind, _, _, _, _, _, rest @ ..] = said {
        let length = u32::from_be_bytes([0, *a, *b, *c]) as usize;
        if *kind == 7 {
            return rest.get(4..8)?.try_into().ok().map(u32::from_be_bytes);
        }
        said = rest.get(length..)?;
    }
    None
}

/// Many at once that send the beginning and then the same again and again, however much is read of it;
/// what each was told.
async fn flood(
    address: SocketAddr,
    clients: usize,
    pieces: &Arc<Vec<Vec<u8>>>,
) -> Vec<Option<u32>> {
    let flooding: Vec<_> = (0..clients)
        .map(|_| {
            let pieces = pieces.clone();
            tokio::spawn(async move {
                let stream = TcpStream::connect(address).await.expect("connect");
                let (mut from, mut to) = stream.into_split();
                let reading = tokio::spawn(async move {
                    let mut all = Vec::new();
                    let mut piece = vec![0; 16 << 10];
                    while let Ok(count @ 1..) = from.read(&mut piece).await {
                        all.extend_from_slice(&piece[..count]);
                    }
                    all
                });
                for piece in pieces.iter() {
                    if to.write_all(piece).await.is_err() {
                        break;
                    }
                }
                let reading = tokio::time::timeout(Duration::from_secs(30), reading).await;
                goodbye(&reading.expect("it is closed").expect("a reader"))
            })
        })
        .collect();
    others_are_served(address, "/hello").await;
    let mut told = Vec::new();
    for client in flooding {
        told.push(client.await.expect("client"));
    }
    told
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_that_are_taken_back_at_once_cost_little_and_end_the_connection() {
    let backend = Backend::start().await;
    let proxy = Proxy::of_both(at(&backend), Policy::default(), ProxySettings::default());
    let mut pieces = vec![[PREFACE, &frame(4, 0, 0, &[])].concat()];
    // HEADERS and RST_STREAM, 20,000 times.
    for run in 0..200_u32 {
        let mut piece = Vec::new();
        for number in 0..100 {
            let id = 2 * (run * 100 + number) + 1;
            piece.extend(frame(1, 5, id, &get_block("/slow?1000")));
            piece.extend(frame(3, 0, id, &8_u32.to_be_bytes()));
        }
        pieces.push(piece);
    }
    let peak = Peak::begin();
    let told = flood(proxy.address, 8, &Arc::new(pieces)).await;
    // ENHANCE_YOUR_CALM, unless the goodbye was lost with what nobody read any more.
    assert!(told.iter().all(|code| code.is_none_or(|code| code == 11)), "{told:?}");
    assert!(told.contains(&Some(11)), "{told:?}");
    let seen = backend.seen().len();
    assert!(seen < 8 * 1_000, "{seen} of 160,000 requests reached the backend");
    let grown = peak.grown_kib();
    assert!(grown < GROWN_KIB_MAX, "{grown} KiB");
}

#[tokio::test(flavor = "multi_thread")]
async fn heads_of_endless_continuations_cost_little_and_end_the_connection() {
    let backend = Backend::start().await;
    let proxy = Proxy::of_both(at(&backend), Policy::default(), ProxySettings::default());
    // Full frames, small ones, and ones with nothing in them.
    let field = [0x00, 1, b'a', 1, b'b'];
    for (name, payload) in
        [("full", field.repeat(3_000)), ("small", field.to_vec()), ("empty", vec![])]
    {
        let begin = [PREFACE, &frame(4, 0, 0, &[]), &frame(1, 1, 1, &get_block("/hello"))].concat();
        let mut pieces = vec![begin];
        let piece = frame(9, 0, 1, &payload);
        let run = piece.repeat((64 << 10) / piece.len());
        pieces.extend(std::iter::repeat_n(run, 256));
        let peak = Peak::begin();
        let told = flood(proxy.address, 8, &Arc::new(pieces)).await;
        assert!(told.iter().all(|code| *code != Some(0)), "{name}: {told:?}");
        let grown = peak.grown_kib();
        // Of 16 MB that each of eight would send.
        assert!(grown < GROWN_KIB_MAX, "{name}: {grown} KiB");
    }
    assert_eq!(backend.seen().len(), 3 * OTHERS, "only the others came through");
}
