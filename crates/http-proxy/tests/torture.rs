//! Bad luck over real sockets: changes under load, endpoints that die, clients that are slow, silent
//! or too many.
#![allow(clippy::expect_used, reason = "a test ends where its means fail")]

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use support::{BACKEND, Backend, Proxy, read_all, route, status};
use telaio_http_proxy::ProxySettings;
use telaio_http_proxy::h1::relay::ClientTimeouts;
use telaio_http_proxy::table::{
    Backend as BackendSpec, BackendId, Endpoint, EndpointState, HostMatch, Policy, TableChange,
    Timeouts,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// What clients under load have seen.
#[derive(Default)]
struct Tally {
    good: AtomicUsize,
    bad: AtomicUsize,
    stop: AtomicBool,
}

/// Clients with connections of their own, each asking without a pause.
fn load(proxy: &Proxy, clients: usize, tally: &Arc<Tally>) -> Vec<tokio::task::JoinHandle<()>> {
    (0..clients)
        .map(|number| {
            let (address, tally) = (proxy.address, tally.clone());
            tokio::spawn(async move {
                let ask =
                    format!("GET /hello?{number} HTTP/1.1\r\nHost: host-{number}.example\r\n\r\n");
                while !tally.stop.load(Relaxed) {
                    let Ok(mut stream) = TcpStream::connect(address).await else {
                        tally.bad.fetch_add(1, Relaxed);
                        continue;
                    };
                    // New connections come too, not only new requests.
                    for _ in 0..50 {
                        if tally.stop.load(Relaxed) {
                            return;
                        }
                        if ask_once(&mut stream, &ask).await {
                            tally.good.fetch_add(1, Relaxed);
                        } else {
                            tally.bad.fetch_add(1, Relaxed);
                            break;
                        }
                    }
                }
            })
        })
        .collect()
}

async fn ask_once(stream: &mut TcpStream, ask: &str) -> bool {
    if stream.write_all(ask.as_bytes()).await.is_err() {
        return false;
    }
    let mut got = Vec::new();
    let mut piece = [0; 1024];
    while !got.ends_with(b"\r\n\r\nhello") {
        match stream.read(&mut piece).await {
            Ok(count) if count > 0 => got.extend_from_slice(&piece[..count]),
            _ => return false,
        }
        if got.len() > 4096 {
            return false;
        }
    }
    got.starts_with(b"HTTP/1.1 200 ")
}

#[tokio::test]
async fn a_thousand_changes_under_load_fail_no_request() {
    let mut backends = Vec::new();
    for _ in 0..4 {
        backends.push(Backend::start().await);
    }
    let proxy = Proxy::before(&backends.iter().collect::<Vec<_>>());
    let tally = Arc::new(Tally::default());
    let clients = load(&proxy, 200, &tally);
    let id = BackendId::new(BACKEND);
    for change in 0..1000_usize {
        // Routes of hosts that are asked for come and go, and come back to another policy.
        let host = format!("host-{}.example", change % 200);
        let own = route(&host, HostMatch::Exact(host.as_str().into()), Policy::default());
        let routes = [(host.as_str().into(), (change % 3 != 2).then_some(own.into()))].into();
        // Endpoints come, drain and go; one is always there.
        let mut endpoints: Vec<_> =
            backends.iter().map(|backend| Endpoint::at(backend.address)).collect();
        endpoints[change % 4].state = EndpointState::Draining;
        endpoints.remove((change + 1) % 4);
        let spec = BackendSpec::new(BACKEND, endpoints);
        let problems = proxy.proxy.apply(&TableChange {
            routes,
            backends: [(id.clone(), Some(spec))].into(),
            ..TableChange::default()
        });
        assert!(problems.is_empty());
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    tally.stop.store(true, Relaxed);
    for client in clients {
        client.await.expect("client");
    }
    let (good, bad) = (tally.good.load(Relaxed), tally.bad.load(Relaxed));
    assert_eq!(bad, 0, "of {}", good + bad);
    assert!(good > 1000, "{good}");
}

/// Waits until so many more were answered well.
async fn more(tally: &Tally, count: usize) {
    let before = tally.good.load(Relaxed);
    for _ in 0..6_000 {
        if tally.good.load(Relaxed) >= before + count || tally.bad.load(Relaxed) > 0 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn an_endpoint_that_dies_under_load_fails_no_request_that_can_be_repeated() {
    let (dying, living) = (Backend::start().await, Backend::start().await);
    let proxy = Proxy::before(&[&dying, &living]);
    let tally = Arc::new(Tally::default());
    let clients = load(&proxy, 50, &tally);
    // Enough that what breaks can be paid for out of the budget of retries.
    more(&tally, 500).await;
    dying.kill();
    more(&tally, 500).await;
    tally.stop.store(true, Relaxed);
    for client in clients {
        client.await.expect("client");
    }
    assert_eq!(tally.bad.load(Relaxed), 0, "of {}", tally.good.load(Relaxed));
    assert!(!dying.seen().is_empty() && !living.seen().is_empty());
}

#[tokio::test]
async fn a_slow_reader_slows_only_its_own_backend() {
    let backend = Backend::start().await;
    let proxy = Proxy::before(&[&backend]);
    let mut slow = proxy.connect().await;
    slow.write_all(b"GET /big?200000000 HTTP/1.1\r\nHost: a\r\n\r\n").await.expect("write");
    let before = resident_kib();
    for _ in 0..3 {
        support::others_are_served(proxy.address, "/hello").await;
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    // 200 MB are asked for, and nobody reads them: what waits is bounded by socket buffers.
    let grown = resident_kib().saturating_sub(before);
    assert!(grown < 50_000, "{grown} KiB");
}

#[tokio::test]
async fn clients_that_drip_their_heads_are_cut_off_and_disturb_nobody() {
    let backend = Backend::start().await;
    let settings = ProxySettings {
        timeouts: ClientTimeouts {
            head: Duration::from_secs(3),
            keep_alive: Duration::from_secs(5),
            ..ClientTimeouts::default()
        },
        ..ProxySettings::default()
    };
    let proxy = Proxy::with(&[&backend], Policy::default(), settings);
    let address = proxy.address;
    let dripping: Vec<_> = (0..200)
        .map(|_| {
            tokio::spawn(async move {
                let (mut answers, mut stream) =
                    TcpStream::connect(address).await.expect("connect").into_split();
                // Read as it comes, for when the connection is reset, what waits is lost.
                let answer = tokio::spawn(async move {
                    let (mut all, mut piece) = (Vec::new(), [0; 4096]);
                    while let Ok(count @ 1..) = answers.read(&mut piece).await {
                        all.extend_from_slice(&piece[..count]);
                    }
                    String::from_utf8_lossy(&all).into_owned()
                });
                stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n").await.expect("write");
                for _ in 0..100 {
                    if stream.write_all(b"X: y\r\n").await.is_err() {
                        break;
                    }
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
                answer.await.expect("reader")
            })
        })
        .collect();
    support::others_are_served(address, "/hello").await;
    for client in dripping {
        let answer = client.await.expect("client");
        assert_eq!(status(&answer), 408, "{answer}");
    }
    assert_eq!(backend.seen().len(), support::OTHERS, "no dripped request reached the backend");
}

#[tokio::test]
async fn slow_bodies_and_slow_backends_time_out_on_their_own() {
    let backend = Backend::start().await;
    let timeouts = Timeouts {
        response_header: Duration::from_millis(300),
        idle: Duration::from_millis(300),
        send: Duration::from_millis(300),
        ..Timeouts::default()
    };
    let proxy = Proxy::with_policy(&[&backend], Policy { timeouts, ..Policy::default() });
    let mut client = proxy.connect().await;
    client
        .write_all(b"POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\nhalf of i")
        .await
        .expect("write");
    assert_eq!(status(&read_all(&mut client).await), 408);
    assert_eq!(proxy.get("/slow?3000").await.0, 504);
    let whole = Timeouts { request: Some(Duration::from_millis(200)), ..Timeouts::default() };
    let proxy = Proxy::with_policy(&[&backend], Policy { timeouts: whole, ..Policy::default() });
    assert_eq!(proxy.get("/slow?3000").await.0, 504);
}

#[tokio::test]
async fn header_bombs_are_refused_early() {
    let backend = Backend::start().await;
    let proxy = Proxy::before(&[&backend]);
    let (mut answers, mut client) = proxy.connect().await.into_split();
    // Read as it comes: when the connection is reset for what was not read, what waits is lost.
    let answer = tokio::spawn(async move {
        let (mut all, mut piece) = (Vec::new(), [0; 4096]);
        while let Ok(count @ 1..) = answers.read(&mut piece).await {
            all.extend_from_slice(&piece[..count]);
        }
        String::from_utf8_lossy(&all).into_owned()
    });
    let _ = client.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n").await;
    let line = format!("X-Bomb: {}\r\n", "b".repeat(4000));
    let mut sent = 0;
    // Sixteen megabytes are offered; a few dozen kilobytes are read.
    for _ in 0..4000 {
        match client.write_all(line.as_bytes()).await {
            Ok(()) => sent += line.len(),
            Err(_) => break,
        }
    }
    assert!(sent < 16_000_000, "{sent}");
    assert_eq!(status(&answer.await.expect("reader")), 431);
    assert!(backend.seen().is_empty());
    assert_eq!(proxy.get("/hello").await.0, 200);
}

/// Where the clients of the next test are to connect to: they are a process of their own, for one may not
/// open as many files as both ends need.
const IDLE_AT: &str = "TELAIO_TEST_IDLE_AT";
const IDLE: usize = 10_000;

/// Half of a head on each connection: more than nothing has to be kept of it. Ends with its input.
fn hold_idle(address: &str) {
    use std::io::{Read, Write};
    let connect = |_| {
        let mut stream = std::net::TcpStream::connect(address).expect("connect");
        stream.write_all(b"GET /hello HTTP/1.1\r\nHost: a\r\n").expect("write");
        stream
    };
    let mut idle: Vec<_> = (0..IDLE).map(connect).collect();
    std::fs::write("/dev/stderr", "idle\n").expect("tell");
    std::io::stdin().read_exact(&mut [0]).expect("a word");
    let last = idle.last_mut().expect("one");
    last.write_all(b"Connection: close\r\n\r\n").expect("write");
    let mut answer = String::new();
    last.read_to_string(&mut answer).expect("an answer");
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_idle_connections_cost_little_and_disturb_nobody() {
    use std::io::{BufRead, Write};
    use std::process::{Command, Stdio};
    support::allow_descriptors(IDLE as u64 + 1_000);
    if let Ok(address) = std::env::var(IDLE_AT) {
        return tokio::task::block_in_place(|| hold_idle(&address));
    }
    let backend = Backend::start().await;
    let proxy = Proxy::before(&[&backend]);
    let before = resident_kib();
    let mut clients = Command::new(std::env::current_exe().expect("this program"))
        .args(["ten_thousand_idle_connections_cost_little_and_disturb_nobody", "--exact"])
        .arg("--nocapture")
        .env(IDLE_AT, proxy.address.to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("clients");
    let mut told = std::io::BufReader::new(clients.stderr.take().expect("piped"));
    let mut line = String::new();
    tokio::task::block_in_place(|| told.read_line(&mut line)).expect("a line");
    assert_eq!(line, "idle\n");
    support::others_are_served(proxy.address, "/hello").await;
    let open = std::fs::read_dir("/proc/self/fd").expect("descriptors").count();
    assert!(open >= IDLE, "{open} descriptors");
    let each = resident_kib().saturating_sub(before) * 1024 / IDLE;
    // In a build without optimisation.
    assert!(each < 12_000, "{each} bytes per connection");
    clients.stdin.take().expect("piped").write_all(b"x").expect("write");
    assert!(tokio::task::block_in_place(|| clients.wait()).expect("clients").success());
}

fn resident_kib() -> usize {
    let text = std::fs::read_to_string("/proc/self/status").expect("status");
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("VmRSS");
    line.trim().trim_end_matches(" kB").parse().expect("a number")
}
