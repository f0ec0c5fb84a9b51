//! A client that goes while an endpoint is waited for, and an endpoint that is silent.
#![allow(clippy::expect_used, reason = "a test ends where its means fail")]

mod support;

use std::time::{Duration, Instant};

use support::{BACKEND, Backend, Proxy, read_all, read_response, status};
use telaio_http_proxy::table::{BackendId, CachePolicy, ErrorBackend, Policy, Timeouts};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;

/// Far beyond what the slowest machine takes, and less than what is waited for otherwise.
const LONG: Duration = Duration::from_secs(40);

fn streamed() -> Policy {
    let error_backend = ErrorBackend { backend: BackendId::new("none"), statuses: Vec::new() };
    Policy { error_backend: Some(error_backend), ..Policy::default() }
}

async fn until(what: &str, holds: impl Fn() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < LONG, "{what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_goes_while_the_endpoint_is_waited_for_frees_it() {
    for policy in [Policy::default(), streamed()] {
        let backend = Backend::start().await;
        let proxy = Proxy::with_policy(&[&backend], policy);
        let upstream = proxy.proxy.upstreams().get(&BackendId::new(BACKEND)).expect("a backend");
        let peer = upstream.balancer.get_backends()[0].clone();
        let bodies = [
            "GET /slow?300000 HTTP/1.1\r\nHost: a\r\n\r\n",
            "POST /slow?300000 HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello",
        ];
        for (number, request) in bodies.into_iter().enumerate() {
            let mut client = proxy.connect().await;
            client.write_all(request.as_bytes()).await.expect("write");
            until("the endpoint has it", || backend.seen().len() == number + 1).await;
            assert_eq!((peer.in_flight(), upstream.connections()), (1, 1));
            drop(client);
            until("it is over", || peer.in_flight() == 0 && upstream.connections() == 0).await;
            assert_eq!(peer.failures(), 0, "nobody is blamed");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_client_sends_ahead_is_served_in_turn_and_a_try_again_has_its_body() {
    for policy in [Policy::default(), streamed()] {
        let (dying, backend) = (Backend::start().await, Backend::start().await);
        let proxy = Proxy::with_policy(&[&dying, &backend], policy);
        for turn in 0..6 {
            let mut client = proxy.connect().await;
            let first = "PUT /slow?500 HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nfirst";
            client.write_all(first.as_bytes()).await.expect("write");
            until("an endpoint has it", || dying.seen().len() + backend.seen().len() > turn * 2)
                .await;
            if turn == 3 {
                dying.kill();
            }
            let next = "GET /head HTTP/1.1\r\nHost: a\r\nX-Turn: 1\r\nConnection: close\r\n\r\n";
            client.write_all(next.as_bytes()).await.expect("write");
            let both = read_all(&mut client).await;
            let (first, second) = both.split_once("slow").expect("the first answer");
            assert!(status(first) == 200 && status(second) == 200, "{both}");
            assert!(second.contains("X-Turn: 1"), "{both}");
            if turn == 3 {
                break;
            }
        }
        for seen in backend.seen().into_iter().chain(dying.seen()) {
            assert!(seen.starts_with("GET") || seen.ends_with("\r\n\r\nfirst"), "{seen}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_endpoint_that_does_not_say_go_on_is_late_and_not_the_client() {
    let silent = TcpListener::bind("127.0.0.1:0").await.expect("bind");
    let address = silent.local_addr().expect("address");
    let short = Duration::from_millis(300);
    let timeouts = Timeouts { response_header: short, ..Timeouts::default() };
    let policy = Policy { timeouts, ..Policy::default() };
    let spec = telaio_http_proxy::table::Backend::new(
        BACKEND,
        vec![telaio_http_proxy::table::Endpoint::at(address)],
    );
    let proxy = Proxy::of_both(spec, policy, telaio_http_proxy::ProxySettings::default());
    let mut client = proxy.connect().await;
    let ask = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n";
    client.write_all(ask.as_bytes()).await.expect("write");
    let answer = tokio::time::timeout(LONG, read_response(&mut client)).await.expect("in time");
    assert_eq!(status(&answer), 504, "{answer}");
}

#[tokio::test(flavor = "multi_thread")]
async fn when_the_first_of_many_goes_the_next_one_asks_for_all() {
    let backend = Backend::start().await;
    let ttl = Some(Duration::from_mins(10));
    let cache = Some(CachePolicy { default_ttl: ttl, ..CachePolicy::default() });
    let proxy = Proxy::with_policy(&[&backend], Policy { cache, ..Policy::default() });
    let ask = "GET /slow?1000 HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    let mut first = proxy.connect().await;
    first.write_all(ask.as_bytes()).await.expect("write");
    until("the first asks", || backend.seen().len() == 1).await;
    let mut others = Vec::new();
    for _ in 0..8 {
        let mut client = proxy.connect().await;
        client.write_all(ask.as_bytes()).await.expect("write");
        others.push(client);
    }
    drop(first);
    for mut other in others {
        assert!(read_all(&mut other).await.ends_with("slow"));
    }
    let asked = backend.seen().len();
    // On a machine that stands still, some may have waited for as long as they may.
    assert!((2..9).contains(&asked), "{asked}");
}
