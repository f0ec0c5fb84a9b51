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
use crate::table::{Backend, BackendId, Breaker, Endpoint, HealthCheck};

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
    let again = upstream.reuse(&peer).expect("idle");
    assert!(again.reused);
    again.keep(&peer, Instant::now());
    drop(server);
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(upstream.reuse(&peer).is_none(), "a closed connection is not given out");
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
