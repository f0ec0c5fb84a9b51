//! Which endpoint gets a request, and what becomes of one that fails: over real sockets, by what the endpoints
//! themselves have counted.
#![allow(clippy::expect_used, reason = "a test ends where its means fail")]

mod support;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

use support::{BACKEND, Proxy, read_all, read_response, status};
use telaio_http_proxy::ProxySettings;
use telaio_http_proxy::table::{
    Backend, BackendId, Balance, Breaker, Endpoint, EndpointState, HashKey, HealthCheck, Outlier,
    Policy, Retry, RetryOn, Sticky, TableChange, Timeouts, UpstreamProtocol, UpstreamTls,
};
use telaio_http_proxy::upstream::Upstream;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// An endpoint that answers as it is told to.
struct Server {
    address: SocketAddr,
    /// Requests so far, checks of its health aside.
    asked: Arc<AtomicUsize>,
    /// What it answers; 0 hangs up.
    answers: Arc<AtomicU16>,
    /// What it answers to `/healthy`.
    health: Arc<AtomicU16>,
    /// How long it takes, in milliseconds.
    delay_ms: Arc<AtomicU64>,
}

impl Server {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
        let own = Self {
            address: listener.local_addr().expect("address"),
            asked: Arc::default(),
            answers: Arc::new(AtomicU16::new(200)),
            health: Arc::new(AtomicU16::new(200)),
            delay_ms: Arc::default(),
        };
        let (asked, answers) = (own.asked.clone(), own.answers.clone());
        let (health, delay) = (own.health.clone(), own.delay_ms.clone());
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let (asked, answers) = (asked.clone(), answers.clone());
                let (health, delay) = (health.clone(), delay.clone());
                tokio::spawn(async move {
                    let mut read = Vec::new();
                    let mut piece = [0; 4096];
                    loop {
                        while !read.ends_with(b"\r\n\r\n") {
                            match stream.read(&mut piece).await {
                                Ok(count @ 1..) => read.extend_from_slice(&piece[..count]),
                                _ => return,
                            }
                        }
                        let checks = read.starts_with(b"GET /healthy ");
                        read.clear();
                        let status = if checks {
                            health.load(SeqCst)
                        } else {
                            asked.fetch_add(1, SeqCst);
                            tokio::time::sleep(Duration::from_millis(delay.load(SeqCst))).await;
                            answers.load(SeqCst)
                        };
                        let answer = format!("HTTP/1.1 {status} Own\r\nContent-Length: 0\r\n\r\n");
                        if status == 0 || stream.write_all(answer.as_bytes()).await.is_err() {
                            return;
                        }
                    }
                });
            }
        });
        own
    }

    fn asked(&self) -> usize {
        self.asked.load(SeqCst)
    }
}

async fn two() -> [Server; 2] {
    [Server::start().await, Server::start().await]
}

fn before(servers: &[Server], balance: Balance) -> Backend {
    let endpoints = servers.iter().map(|server| Endpoint::at(server.address)).collect();
    Backend { balance, ..Backend::new(BACKEND, endpoints) }
}

fn proxy(backend: Backend, policy: Policy) -> Proxy {
    let trusted_proxies = vec!["127.0.0.0/8".parse().expect("a network")];
    Proxy::of_both(backend, policy, ProxySettings { trusted_proxies, ..ProxySettings::default() })
}

fn running(proxy: &Proxy) -> Arc<Upstream> {
    proxy.proxy.upstreams().get(&BackendId::new(BACKEND)).expect("a backend")
}

/// So many requests, one after the other; their statuses.
async fn ask(proxy: &Proxy, count: usize, fields: &str) -> Vec<u16> {
    let mut stream = proxy.connect().await;
    let request = format!("GET / HTTP/1.1\r\nHost: a\r\n{fields}\r\n");
    let mut statuses = Vec::new();
    for _ in 0..count {
        stream.write_all(request.as_bytes()).await.expect("write");
        statuses.push(status(&read_response(&mut stream).await));
    }
    statuses
}

/// Waits for something that must come, however slow the machine is.
async fn until(what: &str, holds: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_mins(1);
    while !holds() {
        assert!(Instant::now() < deadline, "{what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn least_connections_leaves_the_busy_one_alone() {
    let servers = two().await;
    let proxy = proxy(before(&servers, Balance::LeastConnections), Policy::default());
    for server in &servers {
        server.delay_ms.store(5_000, SeqCst);
    }
    let mut long = proxy.connect().await;
    long.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").await.expect("write");
    until("the long one begins", || servers.iter().any(|server| server.asked() == 1)).await;
    let busy = usize::from(servers[1].asked() == 1);
    servers[1 - busy].delay_ms.store(0, SeqCst);
    assert_eq!(ask(&proxy, 20, "").await, [200; 20]);
    assert_eq!((servers[busy].asked(), servers[1 - busy].asked()), (1, 20));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_quicker_one_gets_nearly_all_unless_said_otherwise() {
    let servers = two().await;
    servers[0].delay_ms.store(100, SeqCst);
    let backend = before(&servers, Balance::default());
    assert_eq!(backend.balance, Balance::PeakEwma);
    let proxy = proxy(backend, Policy::default());
    ask(&proxy, 100, "").await;
    let (slow, quick) = (servers[0].asked(), servers[1].asked());
    assert!(quick >= 80, "the slow one got {slow}, the quick one {quick}");
}

#[tokio::test(flavor = "multi_thread")]
async fn shares_in_turn_are_as_the_weights() {
    let servers = two().await;
    let mut backend = before(&servers, Balance::RoundRobin);
    backend.endpoints[0].weight = 3;
    let proxy = proxy(backend, Policy::default());
    ask(&proxy, 40, "").await;
    assert_eq!((servers[0].asked(), servers[1].asked()), (30, 10));
}

/// Where requests with these fields go: always to one endpoint, which differs among fields.
async fn hashes(key: HashKey, fields: impl Fn(usize) -> String) {
    let servers = two().await;
    let proxy = proxy(before(&servers, Balance::Hash(key)), Policy::default());
    let mut to_first = 0;
    for number in 0..40 {
        let earlier = servers[0].asked();
        ask(&proxy, 3, &fields(number)).await;
        let first = servers[0].asked() - earlier;
        assert!(first == 0 || first == 3, "{number}: {first} of 3");
        to_first += first / 3;
    }
    // All forty on one side would be a chance of one in 2^39.
    assert!((1..40).contains(&to_first), "{to_first}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cookie_leads_to_one_endpoint() {
    let key = HashKey::Cookie("user".into());
    hashes(key, |number| format!("Cookie: other={number}; user=u{number}\r\n")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clients_address_leads_to_one_endpoint() {
    hashes(HashKey::ClientAddress, |number| format!("X-Forwarded-For: 192.0.2.{number}\r\n")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_with_a_cookie_finishes_at_an_endpoint_that_ends_and_then_moves() {
    let servers = two().await;
    let sticky = Some(Sticky {
        cookie: "at".into(),
        path: "/".into(),
        domain: None,
        max_age: None,
        secure: None,
        same_site: None,
        same_site_by_browser: false,
        change_on_failure: false,
    });
    let backend = Backend { sticky, ..before(&servers, Balance::RoundRobin) };
    let proxy = proxy(backend.clone(), Policy::default());
    let cookie_of = |answer: &str| {
        let line = answer.lines().find(|line| line.to_ascii_lowercase().starts_with("set-cookie:"));
        let pair = line.and_then(|line| line.split(": ").nth(1)?.split(';').next());
        pair.map(str::to_owned)
    };
    let mut client = proxy.connect().await;
    client.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").await.expect("write");
    let cookie = cookie_of(&read_response(&mut client).await).expect("a cookie");
    let own = usize::from(servers[1].asked() == 1);
    servers[own].delay_ms.store(1_000, SeqCst);
    let request = format!("GET / HTTP/1.1\r\nHost: a\r\nCookie: {cookie}\r\n\r\n");
    client.write_all(request.as_bytes()).await.expect("write");
    until("it runs at its own endpoint", || servers[own].asked() == 2).await;
    let mut endpoints = backend.endpoints.clone();
    endpoints[own].state = EndpointState::Draining;
    let backend = Backend { endpoints, ..backend };
    let backends = [(BackendId::new(BACKEND), Some(backend))].into();
    proxy.proxy.apply(&TableChange { backends, ..TableChange::default() });
    assert_eq!(status(&read_response(&mut client).await), 200, "what runs is finished");
    // On the same connection of the client: what is new goes elsewhere, and stays there.
    client.write_all(request.as_bytes()).await.expect("write");
    let moved = cookie_of(&read_response(&mut client).await).expect("a new cookie");
    assert_ne!(moved, cookie);
    assert_eq!(ask(&proxy, 4, &format!("Cookie: {moved}\r\n")).await, [200; 4]);
    assert_eq!([servers[own].asked(), servers[1 - own].asked()], [2, 5]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_endpoint_gets_its_share_by_and_by() {
    let servers = two().await;
    let warms = Duration::from_secs(4);
    let backend = Backend { slow_start: Some(warms), ..before(&servers, Balance::RoundRobin) };
    let proxy = proxy(
        Backend { endpoints: vec![backend.endpoints[0].clone()], ..backend.clone() },
        Policy::default(),
    );
    tokio::time::sleep(warms).await;
    let id = BackendId::new(BACKEND);
    proxy
        .proxy
        .apply(&TableChange { backends: [(id, Some(backend))].into(), ..TableChange::default() });
    ask(&proxy, 100, "").await;
    // A tenth at first, and half of it all if a hundred requests took the whole time.
    let new = servers[1].asked();
    assert!((1..50).contains(&new), "{new} of the first hundred");
    tokio::time::sleep(warms).await;
    ask(&proxy, 100, "").await;
    assert_eq!(servers[1].asked() - new, 50, "now it is as the other");
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_fails_is_left_out_for_a_while_and_comes_back() {
    let servers = two().await;
    servers[0].answers.store(503, SeqCst);
    let outlier =
        Outlier { failures: 3, ejection: Duration::from_secs(3), ejected_percent_max: 50 };
    let proxy =
        proxy(Backend { outlier, ..before(&servers, Balance::RoundRobin) }, Policy::default());
    let statuses = ask(&proxy, 40, "").await;
    let failed = statuses.iter().filter(|status| **status == 503).count();
    // One more each time that the ejection was over while we asked.
    assert_eq!(failed, servers[0].asked());
    assert!((3..20).contains(&failed), "{statuses:?}");
    servers[0].answers.store(200, SeqCst);
    let before = servers[0].asked();
    let deadline = Instant::now() + Duration::from_mins(1);
    while servers[0].asked() < before + 10 {
        assert!(Instant::now() < deadline, "it does not come back");
        assert_eq!(ask(&proxy, 2, "").await, [200; 2]);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn not_all_are_left_out_at_once() {
    let servers = two().await;
    for server in &servers {
        server.answers.store(503, SeqCst);
    }
    let outlier =
        Outlier { failures: 1, ejection: Duration::from_hours(1), ejected_percent_max: 100 };
    let both = proxy(
        Backend { outlier: outlier.clone(), ..before(&servers, Balance::RoundRobin) },
        Policy::default(),
    );
    assert_eq!(ask(&both, 20, "").await, [503; 20]);
    let asked = [servers[0].asked(), servers[1].asked()];
    assert_eq!(asked.iter().min(), Some(&1), "one is out after its first failure: {asked:?}");
    // One alone never is.
    let alone =
        proxy(Backend { outlier, ..before(&servers[..1], Balance::RoundRobin) }, Policy::default());
    let earlier = servers[0].asked();
    ask(&alone, 10, "").await;
    assert_eq!(servers[0].asked() - earlier, 10);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_the_endpoints_fault_ejects_nobody() {
    let servers = two().await;
    let outlier =
        Outlier { failures: 1, ejection: Duration::from_hours(1), ejected_percent_max: 100 };
    // No place for a second request.
    let limits = Breaker { connections_max: 1, pending_max: 0, ..Breaker::default() };
    let backend =
        Backend { limits, outlier: outlier.clone(), ..before(&servers, Balance::RoundRobin) };
    let full = proxy(backend, Policy::default());
    servers[0].delay_ms.store(6_000, SeqCst);
    let mut long = full.connect().await;
    long.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").await.expect("write");
    until("the long one begins", || servers[0].asked() == 1).await;
    assert_eq!(ask(&full, 10, "").await, [503; 10]);
    assert_eq!(status(&read_response(&mut long).await), 200);
    // Nor is a refusal that another endpoint is asked for.
    servers[0].delay_ms.store(0, SeqCst);
    for refusal in [403, 404, 429] {
        let mut on = RetryOn::default();
        assert!(on.with_status(refusal));
        let policy = Policy { retry: Retry { on, ..Retry::default() }, ..Policy::default() };
        let streamed = Policy {
            compress: telaio_http_proxy::table::Compress { enabled: true, ..Default::default() },
            ..policy.clone()
        };
        for policy in [policy, streamed] {
            let backend =
                Backend { outlier: outlier.clone(), ..before(&servers, Balance::RoundRobin) };
            let proxy = proxy(backend, policy);
            servers[0].answers.store(refusal, SeqCst);
            let earlier = servers[0].asked();
            assert_eq!(ask(&proxy, 10, "").await, [200; 10], "{refusal}");
            assert!(servers[0].asked() - earlier >= 5, "{refusal}: it is still asked");
            for peer in running(&proxy).balancer.get_backends() {
                assert_eq!(peer.failures(), 0, "{refusal}");
            }
        }
    }
    for peer in running(&full).balancer.get_backends() {
        assert_eq!(peer.failures(), 0, "{:?}", peer.address());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn active_checks_take_an_endpoint_out_of_traffic_and_back() {
    let servers = two().await;
    let health = HealthCheck {
        path: "/healthy".into(),
        host: None,
        interval: Duration::from_millis(50),
        timeout: Duration::from_secs(20),
        unhealthy_after: 2,
        healthy_after: 1,
    };
    let backend = Backend { health: Some(health), ..before(&servers, Balance::RoundRobin) };
    let proxy = proxy(backend, Policy::default());
    let peers = running(&proxy).balancer.get_backends();
    let first = peers.iter().find(|peer| {
        *peer.address() == telaio_http_proxy::table::EndpointAddress::Socket(servers[0].address)
    });
    let first = first.expect("an endpoint").clone();
    servers[0].health.store(500, SeqCst);
    until("it is found out", || !first.is_healthy()).await;
    assert_eq!(ask(&proxy, 20, "").await, [200; 20]);
    assert_eq!((servers[0].asked(), servers[1].asked()), (0, 20));
    servers[0].health.store(204, SeqCst);
    until("it is found well", || first.is_healthy()).await;
    ask(&proxy, 20, "").await;
    assert_eq!((servers[0].asked(), servers[1].asked()), (10, 30));
}

#[tokio::test(flavor = "multi_thread")]
async fn retries_are_a_share_of_the_requests_under_load() {
    let servers = two().await;
    for server in &servers {
        server.answers.store(0, SeqCst);
    }
    let proxy = Arc::new(proxy(before(&servers, Balance::RoundRobin), Policy::default()));
    let begun = Instant::now();
    let clients: Vec<_> = (0..20)
        .map(|_| {
            let proxy = proxy.clone();
            tokio::spawn(async move {
                for _ in 0..20 {
                    assert_eq!(proxy.get("/").await.0, 502);
                }
            })
        })
        .collect();
    for client in clients {
        client.await.expect("client");
    }
    let tries = servers[0].asked() + servers[1].asked();
    // Three each would be 1200. One in five, what was saved up (10), and five a second.
    let seconds = usize::try_from(begun.elapsed().as_secs()).expect("few") + 1;
    assert!(tries >= 400 + 10, "{tries}");
    assert!(tries <= 400 + 80 + 10 + 5 * seconds, "{tries} in {seconds} s");
}

#[tokio::test(flavor = "multi_thread")]
async fn no_further_try_begins_when_the_time_for_them_is_over() {
    let servers = two().await;
    servers[0].answers.store(0, SeqCst);
    servers[0].delay_ms.store(300, SeqCst);
    for (within, expected) in [(Some(Duration::from_millis(100)), 502), (None, 200)] {
        let retry = Retry { within, ..Retry::default() };
        let proxy =
            proxy(before(&servers, Balance::RoundRobin), Policy { retry, ..Policy::default() });
        let asked = servers.each_ref().map(Server::asked);
        // The first in turn is the one that hangs up.
        assert_eq!(ask(&proxy, 1, "Connection: close\r\n").await, [expected], "{within:?}");
        assert_eq!(servers[0].asked() - asked[0], 1);
        assert_eq!(servers[1].asked() - asked[1], usize::from(within.is_none()));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_endpoint_that_cannot_be_reached_in_time_is_a_504() {
    let timeouts = Timeouts { connect: Duration::from_millis(300), ..Timeouts::default() };
    let retry = Retry { tries: 1, ..Retry::default() };
    let policy = Policy { timeouts, retry, ..Policy::default() };
    // One whose queue is full does not answer at all.
    let socket = tokio::net::TcpSocket::new_v4().expect("a socket");
    socket.bind("127.0.0.1:0".parse().expect("an address")).expect("bind");
    let full = socket.listen(1).expect("listen");
    let address = full.local_addr().expect("address");
    let mut queue = Vec::new();
    while let Ok(Ok(stream)) =
        tokio::time::timeout(Duration::from_millis(500), TcpStream::connect(address)).await
    {
        queue.push(stream);
        assert!(queue.len() < 100, "it takes more than it should");
    }
    let in_clear = Backend::new(BACKEND, vec![Endpoint::at(address)]);
    assert_eq!(ask(&proxy(in_clear, policy.clone()), 1, "").await, [504]);
    // One that connects, and never says a word of TLS.
    let mute = TcpListener::bind("127.0.0.1:0").await.expect("bind");
    let address = mute.local_addr().expect("address");
    for multiplexed in [false, true] {
        let tls = UpstreamTls::default();
        let protocol =
            if multiplexed { UpstreamProtocol::HttpsH2(tls) } else { UpstreamProtocol::Https(tls) };
        let backend = Backend { protocol, ..Backend::new(BACKEND, vec![Endpoint::at(address)]) };
        let proxy = proxy(backend, policy.clone());
        assert_eq!(ask(&proxy, 1, "").await, [504], "{multiplexed}");
        assert_eq!(running(&proxy).balancer.get_backends()[0].failures(), 1, "{multiplexed}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn only_so_many_connections_are_kept_idle() {
    let servers = [Server::start().await];
    servers[0].delay_ms.store(500, SeqCst);
    let limits = Breaker { idle_max: 2, ..Breaker::default() };
    let proxy = Arc::new(proxy(
        Backend { limits, ..before(&servers, Balance::RoundRobin) },
        Policy::default(),
    ));
    let clients: Vec<_> = (0..10)
        .map(|_| {
            let proxy = proxy.clone();
            tokio::spawn(async move { proxy.get("/").await.0 })
        })
        .collect();
    until("all are under way", || servers[0].asked() == 10).await;
    let upstream = running(&proxy);
    let most = upstream.connections();
    for client in clients {
        assert_eq!(client.await.expect("client"), 200);
    }
    assert_eq!(most, 10);
    until("the rest is closed", || upstream.connections() <= 2).await;
    assert_eq!(upstream.connections(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_websocket_goes_on_while_the_proxy_drains_and_is_waited_for() {
    let backend = support::Backend::start().await;
    let proxy = Proxy::before(&[&backend]);
    let open = async || {
        let mut client = proxy.connect().await;
        let asked = b"GET /upgrade HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n";
        client.write_all(asked).await.expect("write");
        let mut all = Vec::new();
        while !all.ends_with(b"first") {
            let mut piece = [0; 512];
            let count = client.read(&mut piece).await.expect("read");
            assert!(count > 0, "{}", String::from_utf8_lossy(&all));
            all.extend_from_slice(&piece[..count]);
        }
        client
    };
    let (mut ends, mut stays) = (open().await, open().await);
    let server = proxy.server;
    let draining = tokio::task::spawn_blocking(move || server.drain(Duration::from_secs(8)));
    tokio::time::sleep(Duration::from_millis(300)).await;
    for client in [&mut ends, &mut stays] {
        client.write_all(b"still there").await.expect("write");
        let mut echo = [0; 11];
        client.read_exact(&mut echo).await.expect("an echo");
        assert_eq!(&echo, b"still there");
    }
    ends.shutdown().await.expect("shutdown");
    assert_eq!(read_all(&mut ends).await, "");
    assert!(!draining.await.expect("task"), "one has not ended by itself");
}
