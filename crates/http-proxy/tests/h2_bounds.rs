//! What bounds connections to HTTP/2 endpoints, and endpoints that send requests back.
#![allow(clippy::expect_used, reason = "a test ends where its means fail")]

mod h2_support;
mod support;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use h2_support::{h2_server, h2c_backend, proxy};
use http::Response;
use support::{BACKEND, read_response, status};
use telaio_http_proxy::table::{
    Backend as BackendSpec, BackendId, Balance, Breaker, Endpoint, Policy, Timeouts,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// A server that takes so many streams at once per connection and takes its time; and how many connections
/// it had at once.
async fn slow_server(streams_max: u32, time: Duration) -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
    let address = listener.local_addr().expect("address");
    let connections = Arc::<AtomicUsize>::default();
    let counted = connections.clone();
    tokio::spawn(async move {
        while let Ok((io, _)) = listener.accept().await {
            counted.fetch_add(1, SeqCst);
            tokio::spawn(async move {
                let mut server = h2::server::Builder::new();
                server.max_concurrent_streams(streams_max);
                let made = server.handshake::<_, bytes::Bytes>(io).await;
                let Ok(mut connection) = made else { return };
                while let Some(Ok((_, mut respond))) = connection.accept().await {
                    tokio::spawn(async move {
                        tokio::time::sleep(time).await;
                        let _ = respond.send_response(Response::new(()), true);
                    });
                }
            });
        }
    });
    (address, connections)
}

/// Asks so often at once; what was answered.
async fn ask(address: SocketAddr, count: usize, request: &'static str) -> Vec<u16> {
    let asking: Vec<_> = (0..count)
        .map(|_| {
            tokio::spawn(async move {
                let mut client = TcpStream::connect(address).await.expect("connect");
                client.write_all(request.as_bytes()).await.expect("write");
                status(&read_response(&mut client).await)
            })
        })
        .collect();
    let mut statuses = Vec::new();
    for one in asking {
        statuses.push(one.await.expect("task"));
    }
    statuses
}

const GET: &str = "GET / HTTP/1.1\r\nHost: a.example\r\n\r\n";
const POST: &str = "POST / HTTP/1.1\r\nHost: a.example\r\nContent-Length: 5\r\n\r\nhello";

fn bounded(backend: BackendSpec, connections_max: u32, pending_max: u32) -> BackendSpec {
    let limits = Breaker { connections_max, pending_max, ..Breaker::default() };
    BackendSpec { limits, balance: Balance::RoundRobin, ..backend }
}

/// As patient as a slow machine needs.
fn patient() -> Policy {
    let timeouts = Timeouts { connect: Duration::from_secs(40), ..Timeouts::default() };
    Policy { timeouts, ..Policy::default() }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_connection_gives_way_to_one_to_another_endpoint() {
    let mut backend = BackendSpec::new(BACKEND, Vec::new());
    let mut counted = Vec::new();
    for _ in 0..3 {
        let (address, connections) = h2_server().await;
        backend.endpoints.push(Endpoint::at(address));
        counted.push(connections);
    }
    backend.protocol = h2c_backend(([127, 0, 0, 1], 1).into()).protocol;
    let proxy = proxy(bounded(backend, 2, 4_096), patient(), &[]);
    for turn in 0..12 {
        assert_eq!(ask(proxy.plain, 1, GET).await, [200], "{turn}");
    }
    let upstream = proxy.proxy.upstreams().get(&BackendId::new(BACKEND)).expect("a backend");
    assert!(upstream.connections() <= 2);
    assert!(counted.iter().all(|connections| connections.load(SeqCst) > 0), "{counted:?}");
    assert_eq!(ask(proxy.plain, 60, GET).await, [200; 60]);
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_wait_for_a_stream_of_the_connections_that_there_may_be() {
    for streams_max in [1_000, 3] {
        let (address, connections) = slow_server(streams_max, Duration::from_millis(20)).await;
        let proxy = proxy(bounded(h2c_backend(address), 1, 4_096), patient(), &[]);
        // What the endpoint takes at once is known from its first words on.
        assert_eq!(ask(proxy.plain, 1, GET).await, [200]);
        assert_eq!(ask(proxy.plain, 240, GET).await, [200; 240]);
        assert_eq!(connections.load(SeqCst), 1);
        let upstream = proxy.proxy.upstreams().get(&BackendId::new(BACKEND)).expect("a backend");
        assert_eq!((upstream.pending(), upstream.balancer.get_backends()[0].failures()), (0, 0));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_more_wait_than_may() {
    let (address, _) = slow_server(1, Duration::from_secs(3)).await;
    let proxy = proxy(bounded(h2c_backend(address), 1, 2), patient(), &[]);
    let mut statuses = ask(proxy.plain, 1, GET).await;
    assert_eq!(statuses, [200]);
    statuses = ask(proxy.plain, 12, GET).await;
    let refused = statuses.iter().filter(|status| **status == 503).count();
    // One runs and two wait, unless the machine stands still meanwhile.
    assert!((1..=9).contains(&refused), "{statuses:?}");
    assert!(statuses.iter().all(|status| [200, 503].contains(status)), "{statuses:?}");
}

/// How a connection of [`raw_server`] treats what comes.
#[derive(Clone, Copy, PartialEq)]
enum Manner {
    /// It says that it goes after it has read two requests, and takes the first only.
    GoesAway,
    /// It goes with the third request, and takes none after it.
    TakesThree,
    /// It refuses its first stream.
    Refuses,
    Answers,
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("short").to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// Serves one connection frame by frame; how many requests it acted on is counted.
async fn serve_raw(mut io: TcpStream, manner: Manner, done: Arc<AtomicUsize>) {
    let mut preface = [0; 24];
    io.read_exact(&mut preface).await.expect("preface");
    io.write_all(&frame(4, 0, 0, &[])).await.expect("settings");
    let mut whole = Vec::new();
    let mut head = [0; 9];
    while io.read_exact(&mut head).await.is_ok() {
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        let mut payload = vec![0; length];
        io.read_exact(&mut payload).await.expect("payload");
        let (kind, flags) = (head[3], head[4]);
        let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
        if kind == 4 && flags == 0 {
            io.write_all(&frame(4, 1, 0, &[])).await.expect("acknowledge");
        }
        if !(kind <= 1 && flags & 1 != 0) {
            continue;
        }
        whole.push(stream);
        // `:status: 200`, and that is all.
        let answer = frame(1, 5, stream, &[0x88]);
        let sent = match manner {
            Manner::Refuses if whole.len() == 1 => frame(3, 0, stream, &7_u32.to_be_bytes()),
            Manner::Answers | Manner::Refuses => answer,
            Manner::TakesThree if whole.len() < 3 => answer,
            // One that began earlier may end later.
            Manner::TakesThree if whole.len() > 3 && stream > whole[2] => continue,
            Manner::TakesThree if whole.len() > 3 => answer,
            Manner::TakesThree => {
                let away = frame(7, 0, 0, &[stream.to_be_bytes(), [0; 4]].concat());
                [away, answer].concat()
            }
            Manner::GoesAway if whole.len() < 2 => continue,
            Manner::GoesAway => {
                let first = whole.iter().min().copied().expect("two");
                let away = frame(7, 0, 0, &[first.to_be_bytes(), [0; 4]].concat());
                [away, frame(1, 5, first, &[0x88])].concat()
            }
        };
        if sent[3] != 3 {
            done.fetch_add(1, SeqCst);
        }
        io.write_all(&sent).await.expect("write");
    }
}

/// A server whose first connections have this manner.
async fn raw_server(manner: Manner, count: usize) -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
    let address = listener.local_addr().expect("address");
    let done = Arc::<AtomicUsize>::default();
    let counted = done.clone();
    tokio::spawn(async move {
        let mut number = 0;
        while let Ok((io, _)) = listener.accept().await {
            number += 1;
            let manner = if number <= count { manner } else { Manner::Answers };
            tokio::spawn(serve_raw(io, manner, counted.clone()));
        }
    });
    (address, done)
}

#[tokio::test(flavor = "multi_thread")]
async fn what_an_endpoint_sends_back_untouched_is_sent_once_more_whatever_it_is() {
    for (manner, count, asked) in [(Manner::GoesAway, 1, 2), (Manner::Refuses, 1, 1)] {
        let (address, done) = raw_server(manner, count).await;
        let proxy = proxy(h2c_backend(address), patient(), &[]);
        assert_eq!(ask(proxy.plain, asked, POST).await, vec![200; asked]);
        assert_eq!(done.load(SeqCst), asked, "each was done once");
        let upstream = proxy.proxy.upstreams().get(&BackendId::new(BACKEND)).expect("a backend");
        assert_eq!(upstream.balancer.get_backends()[0].failures(), 0, "nobody is blamed");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_endpoint_that_goes_away_under_load_loses_nothing() {
    let (address, done) = raw_server(Manner::TakesThree, usize::MAX).await;
    let proxy = proxy(h2c_backend(address), patient(), &[]);
    let load: Vec<_> = (0..4)
        .map(|_| {
            let plain = proxy.plain;
            tokio::spawn(async move {
                for _ in 0..30 {
                    assert_eq!(ask(plain, 1, POST).await, [200]);
                }
            })
        })
        .collect();
    for client in load {
        client.await.expect("all are answered");
    }
    assert_eq!(done.load(SeqCst), 120, "each was done once");
}
