//! Pools, bounds, budgets and checks, over real sockets.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::health::judge;
use super::{RetryBudget, Upstream, Upstreams};
use crate::balance::{Peer, Pick};
use crate::error::ErrorKind;
use crate::head::RequestHead;
use crate::table::{
    Backend, BackendId, Breaker, Endpoint, HealthCheck, TableChange, UpstreamProtocol, UpstreamTls,
};

async fn listener() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
    let address = listener.local_addr().expect("address");
    (listener, address)
}

fn upstream(address: SocketAddr, limits: Breaker) -> (Arc<Upstream>, Arc<Peer>) {
    let upstreams = Upstreams::default();
    let upstream = upstreams.get_or_new(&BackendId::new("ns/web:80"));
    upstream.update(&Backend { limits, ..Backend::new("ns/web:80", vec![Endpoint::at(address)]) });
    let peer = upstream.balancer.select_backend(&Pick::default()).expect("an endpoint");
    (upstream, peer)
}

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test]
async fn a_connection_is_used_again_until_the_other_side_closes() {
    let (listener, address) = listener().await;
    let (upstream, peer) = upstream(address, Breaker::default());
    let first = upstream.connect_for(&peer, SECOND, &RequestHead::new()).await.expect("connect");
    let (server, _) = listener.accept().await.expect("accept");
    assert!(!first.reused);
    first.keep(&peer, Instant::now());
    let again = upstream.reuse(&peer, &RequestHead::new()).expect("idle");
    assert!(again.reused);
    again.keep(&peer, Instant::now());
    drop(server);
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(
        upstream.reuse(&peer, &RequestHead::new()).is_none(),
        "a closed connection is not given out"
    );
    assert_eq!(upstream.connections(), 0);
}

#[tokio::test]
async fn connections_are_bounded_and_the_next_one_waits_its_turn() {
    let (_listener, address) = listener().await;
    let limits = Breaker { connections_max: 1, pending_max: 1, ..Breaker::default() };
    let (upstream, peer) = upstream(address, limits);
    let only = upstream.connect_for(&peer, SECOND, &RequestHead::new()).await.expect("the first");
    let waiting = tokio::spawn({
        let (upstream, peer) = (upstream.clone(), peer.clone());
        async move {
            upstream
                .connect_for(&peer, Duration::from_secs(20), &RequestHead::new())
                .await
                .map(drop)
        }
    });
    tokio::time::sleep(Duration::from_millis(50)).await;
    let refused = upstream
        .connect_for(&peer, SECOND, &RequestHead::new())
        .await
        .expect_err("nobody else may wait");
    assert_eq!(refused.kind, ErrorKind::Overloaded);
    only.keep(&peer, Instant::now());
    waiting.await.expect("task").expect("the kept one");
}

#[tokio::test]
async fn an_endpoint_that_leaves_takes_its_connections_along() {
    let (_listener, address) = listener().await;
    let (upstream, peer) = upstream(address, Breaker::default());
    let idle = upstream.connect_for(&peer, SECOND, &RequestHead::new()).await.expect("connect");
    let running = upstream.connect_for(&peer, SECOND, &RequestHead::new()).await.expect("connect");
    idle.keep(&peer, Instant::now());
    upstream.update(&Backend::new("ns/web:80", Vec::new()));
    assert_eq!(upstream.connections(), 1);
    running.keep(&peer, Instant::now());
    assert_eq!(upstream.connections(), 0);
}

#[tokio::test]
async fn nobody_there_is_an_error_that_may_be_retried() {
    let (listener, address) = listener().await;
    drop(listener);
    let (upstream, peer) = upstream(address, Breaker::default());
    let error =
        upstream.connect_for(&peer, SECOND, &RequestHead::new()).await.expect_err("closed port");
    assert_eq!((error.kind, error.retry), (ErrorKind::Connect, crate::error::RetryHint::Unsent));
    assert_eq!(upstream.connections(), 0);
}

#[test]
fn retries_are_a_share_of_the_requests() {
    let budget = RetryBudget::default();
    let now = 1;
    while budget.withdraw(now) {}
    (0..50).for_each(|_| budget.deposit());
    assert_eq!((0..100).filter(|_| budget.withdraw(now)).count(), 10);
    assert!(budget.withdraw(now + 2_000_000_000), "time pays too");
}

fn check() -> HealthCheck {
    HealthCheck {
        path: "/healthy".into(),
        host: None,
        interval: Duration::from_millis(10),
        timeout: SECOND,
        unhealthy_after: 2,
        healthy_after: 1,
    }
}

#[tokio::test]
async fn opinions_change_after_enough_checks_in_a_row() {
    let (_listener, address) = listener().await;
    let (_upstream, peer) = upstream(address, Breaker::default());
    judge(&peer, &check(), false);
    judge(&peer, &check(), true);
    judge(&peer, &check(), false);
    assert!(peer.is_healthy());
    judge(&peer, &check(), false);
    assert!(!peer.is_healthy());
    judge(&peer, &check(), true);
    assert!(peer.is_healthy());
}

#[tokio::test]
async fn an_endpoint_that_answers_badly_is_found_out() {
    let (listener, address) = listener().await;
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut request = [0; 512];
            let _ = stream.read(&mut request).await;
            let _ = stream.write_all(b"HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n").await;
        }
    });
    let upstreams = Arc::new(Upstreams::default());
    let id = BackendId::new("ns/web:80");
    let upstream = upstreams.get_or_new(&id);
    upstream.update(&Backend {
        health: Some(check()),
        ..Backend::new("ns/web:80", vec![Endpoint::at(address)])
    });
    tokio::spawn(upstreams.clone().maintain());
    let peer = upstream.balancer.get_backends()[0].clone();
    for _ in 0..200 {
        if !peer.is_healthy() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("still thought to be well");
}

#[tokio::test]
async fn connections_are_made_ahead_as_many_as_are_asked_for() {
    let (listener, address) = listener().await;
    let accepted = Arc::new(std::sync::Mutex::new(Vec::new()));
    tokio::spawn({
        let accepted = accepted.clone();
        async move {
            while let Ok((stream, _)) = listener.accept().await {
                accepted.lock().expect("lock").push(stream);
            }
        }
    });
    let upstreams = Arc::new(Upstreams::default());
    let upstream = upstreams.get_or_new(&BackendId::new("ns/web:80"));
    let limits = Breaker { prewarm: 3, ..Breaker::default() };
    upstream.update(&Backend { limits, ..Backend::new("ns/web:80", vec![Endpoint::at(address)]) });
    tokio::spawn(upstreams.clone().maintain());
    let peer = upstream.balancer.get_backends()[0].clone();
    let deadline = Instant::now() + Duration::from_secs(30);
    while peer.pool.len() < 3 {
        assert!(Instant::now() < deadline, "{} connections", peer.pool.len());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // And no more, however long it takes.
    tokio::time::sleep(super::TICK * 3).await;
    assert_eq!((peer.pool.len(), upstream.connections()), (3, 3));
    let first = upstream.connect_for(&peer, SECOND, &RequestHead::new()).await.expect("connect");
    assert!(first.reused, "the first request finds a connection");
    assert_eq!(accepted.lock().expect("lock").len(), 3);
    // One that is to get nothing new gets no connections either.
    let (_other, elsewhere) = self::listener().await;
    let draining =
        Endpoint { state: crate::table::EndpointState::Draining, ..Endpoint::at(elsewhere) };
    let limits = Breaker { prewarm: 3, ..Breaker::default() };
    upstream.update(&Backend { limits, ..Backend::new("ns/web:80", vec![draining]) });
    tokio::time::sleep(super::TICK * 3).await;
    assert_eq!(upstream.balancer.get_backends()[0].pool.len(), 0);
}

#[tokio::test]
async fn a_removed_backend_is_forgotten_when_nobody_leads_there() {
    let (_listener, address) = listener().await;
    let upstreams = Arc::new(Upstreams::default());
    let (used, unused) = (BackendId::new("ns/used:80"), BackendId::new("ns/unused:80"));
    let change = |backend: Option<Vec<Endpoint>>| TableChange {
        backends: [&used, &unused]
            .into_iter()
            .map(|id| (id.clone(), backend.clone().map(|own| Backend::new(id.as_str(), own))))
            .collect(),
        ..TableChange::default()
    };
    let ids = || {
        let mut ids: Vec<_> = upstreams.all().iter().map(|own| own.id().to_string()).collect();
        ids.sort();
        ids
    };
    // Without an endpoint, but of the table.
    upstreams.apply(&change(Some(Vec::new())));
    upstreams.forget_unused();
    assert_eq!(ids().len(), 2);
    upstreams.apply(&change(Some(vec![Endpoint::at(address)])));
    // As a route does, and requests that it led here before.
    let route = upstreams.get_or_new(&used);
    upstreams.apply(&change(None));
    assert!(
        route.balancer.select_backend(&Pick::default()).is_some(),
        "who was led here is served"
    );
    tokio::spawn(upstreams.clone().maintain());
    let deadline = Instant::now() + Duration::from_secs(30);
    while ids().len() > 1 {
        assert!(Instant::now() < deadline, "{:?}", ids());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(ids(), ["ns/used:80"]);
    while route.balancer.select_backend(&Pick::default()).is_some() {
        assert!(Instant::now() < deadline, "what is not in the table serves for ever");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    drop(route);
    while !ids().is_empty() {
        assert!(Instant::now() < deadline, "{:?}", ids());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn who_waits_in_vain_for_a_place_says_nothing_about_the_endpoint() {
    let (_listener, address) = listener().await;
    let limits = Breaker { connections_max: 1, ..Breaker::default() };
    let (upstream, peer) = upstream(address, limits);
    let _only = upstream.connect_for(&peer, SECOND, &RequestHead::new()).await.expect("the first");
    let within = Duration::from_millis(50);
    let error = upstream.connect_for(&peer, within, &RequestHead::new()).await.expect_err("full");
    assert_eq!((error.kind, error.side()), (ErrorKind::Overloaded, crate::Side::Proxy));
    assert_eq!(upstream.pending(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_place_that_is_freed_while_somebody_begins_to_wait_is_not_lost() {
    let (listener, address) = listener().await;
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            drop(stream);
        }
    });
    let limits = Breaker { connections_max: 1, ..Breaker::default() };
    let (upstream, peer) = upstream(address, limits);
    // Two who take turns: whoever misses the other's end waits for ever.
    let turns = |()| {
        let (upstream, peer) = (upstream.clone(), peer.clone());
        tokio::spawn(async move {
            for _ in 0..3_000 {
                let within = Duration::from_mins(1);
                let got = upstream.connect_for(&peer, within, &RequestHead::new()).await;
                drop(got.expect("a place"));
            }
        })
    };
    for task in [(); 2].map(turns) {
        task.await.expect("task");
    }
}

#[tokio::test]
async fn connections_of_another_manner_are_not_used() {
    let (_listener, address) = listener().await;
    let (upstream, peer) = upstream(address, Breaker::default());
    let request = RequestHead::new();
    let [idle, running] = [
        upstream.connect_for(&peer, SECOND, &request).await.expect("connect"),
        upstream.connect_for(&peer, SECOND, &request).await.expect("connect"),
    ];
    idle.keep(&peer, Instant::now());
    let backend =
        |protocol| Backend { protocol, ..Backend::new("ns/web:80", vec![Endpoint::at(address)]) };
    let https = UpstreamProtocol::Https(UpstreamTls::default());
    upstream.update(&backend(https));
    assert!(upstream.reuse(&peer, &request).is_none());
    running.keep(&peer, Instant::now());
    assert!(upstream.reuse(&peer, &request).is_none(), "it was under way over the change");
    assert_eq!(upstream.connections(), 0);
    // What stays the same leaves them alone.
    upstream.update(&backend(UpstreamProtocol::Http1));
    let idle = upstream.connect_for(&peer, SECOND, &request).await.expect("connect");
    idle.keep(&peer, Instant::now());
    upstream.update(&backend(UpstreamProtocol::Http1));
    assert!(upstream.reuse(&peer, &request).is_some());
}

#[tokio::test]
async fn a_connection_that_was_made_in_one_hosts_name_serves_no_other() {
    let made = rcgen::generate_simple_self_signed(vec!["a.example".to_owned()]).expect("rcgen");
    let key = rustls::pki_types::PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key.into())
        .expect("a certificate");
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    let (listener, address) = listener().await;
    tokio::spawn(async move {
        let mut held = Vec::new();
        while let Ok((stream, _)) = listener.accept().await {
            held.push(acceptor.accept(stream).await);
        }
    });
    let (upstream, peer) = upstream(address, Breaker::default());
    let tls = |server_name: Option<&str>| Backend {
        protocol: UpstreamProtocol::Https(UpstreamTls {
            server_name: server_name.map(Arc::from),
            ..UpstreamTls::default()
        }),
        ..Backend::new("ns/web:80", vec![Endpoint::at(address)])
    };
    let of = |host: &str| {
        let mut request = RequestHead::new();
        request.set_authority(host);
        request
    };
    for (server_name, shared) in [(None, false), (Some("inner.svc"), true)] {
        upstream.update(&tls(server_name));
        let within = Duration::from_secs(20);
        let first = upstream.connect_for(&peer, within, &of("a.example")).await.expect("connect");
        first.keep(&peer, Instant::now());
        let other = upstream.reuse(&peer, &of("b.example"));
        assert_eq!(other.is_some(), shared, "{server_name:?}");
        drop(other);
        assert_eq!(upstream.reuse(&peer, &of("a.example:8443")).is_some(), !shared);
    }
}
