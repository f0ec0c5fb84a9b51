//! HTTP/1.1 over real sockets: what goes through, how, and what each fault becomes.
#![allow(clippy::expect_used, reason = "a test ends where its means fail")]

mod support;

use std::net::SocketAddr;
use std::time::Duration;

use support::{BACKEND, Backend, Proxy, read_all, read_response, status};
use telaio_http_proxy::ProxySettings;
use telaio_http_proxy::h1::parse::HeadLimits;
use telaio_http_proxy::h1::relay::ClientTimeouts;
use telaio_http_proxy::table::{
    Backend as BackendSpec, BackendId, Endpoint, HostMatch, PathMatch, Policy, Retry, RetryOn,
    Rewrite, Route, Sticky, TableChange, Timeouts,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Bodies as streams: the way of cached and compressed routes.
fn streamed() -> Policy {
    Policy {
        error_backend: Some(telaio_http_proxy::table::ErrorBackend {
            backend: BackendId::new("none"),
            statuses: Vec::new(),
        }),
        ..Policy::default()
    }
}

/// Both ways through the proxy must look the same from outside.
async fn both_ways() -> (Backend, [Proxy; 2]) {
    let backend = Backend::start().await;
    let proxies = [Proxy::before(&[&backend]), Proxy::with_policy(&[&backend], streamed())];
    (backend, proxies)
}

fn body(answer: &str) -> &str {
    answer.split_once("\r\n\r\n").map_or("", |(_, body)| body)
}

#[tokio::test]
async fn a_request_goes_through_with_its_query_and_fields() {
    let (_backend, proxies) = both_ways().await;
    for proxy in &proxies {
        let answer = proxy.raw("GET /head?a=b&c=%20 HTTP/1.1\r\nHost: A.example:81\r\nX-One: 1\r\nX-One: 2\r\nConnection: close\r\n\r\n").await;
        assert_eq!(status(&answer), 200);
        let seen = body(&answer);
        assert!(
            seen.starts_with("GET /head?a=b&c=%20 HTTP/1.1\r\nHost: a.example:81\r\n"),
            "{seen}"
        );
        assert!(seen.contains("X-One: 1\r\nX-One: 2\r\n"), "{seen}");
        for wanted in [
            "X-Forwarded-For: 127.0.0.1\r\n",
            "X-Real-IP: 127.0.0.1\r\n",
            "X-Forwarded-Proto: http\r\n",
            "X-Forwarded-Host: a.example:81\r\n",
            "Forwarded: for=127.0.0.1;host=\"a.example:81\";proto=http\r\n",
            "Via: 1.1 telaio\r\n",
            "X-Request-Id: ",
        ] {
            assert!(seen.contains(wanted), "{wanted}: {seen}");
        }
        assert!(!seen.to_ascii_lowercase().contains("connection:"), "{seen}");
        assert!(answer.contains("\r\nDate: ") && answer.contains("\r\nConnection: close\r\n"));
    }
}

#[tokio::test]
async fn what_concerns_one_hop_stays_there() {
    let (_backend, proxies) = both_ways().await;
    for proxy in &proxies {
        let answer = proxy
            .raw("GET /head HTTP/1.1\r\nHost: a\r\nConnection: close, x-private\r\nX-Private: 1\r\nKeep-Alive: 5\r\nTE: gzip\r\nProxy-Authorization: x\r\nProxy-Connection: keep-alive\r\nUpgrade: foo\r\n\r\n")
            .await
            .to_ascii_lowercase();
        for gone in ["x-private", "keep-alive", "te:", "proxy-", "upgrade"] {
            assert!(!body(&answer).contains(gone), "{gone}: {answer}");
        }
        let answer = proxy
            .raw("GET /hop HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
            .await
            .to_ascii_lowercase();
        assert!(answer.contains("x-outer: 1") && answer.ends_with("ok"), "{answer}");
        for gone in ["x-inner", "keep-alive", "proxy-authenticate"] {
            assert!(!answer.contains(gone), "{gone}: {answer}");
        }
    }
}

#[tokio::test]
async fn nobody_but_a_trusted_proxy_says_who_the_client_is() {
    let backend = Backend::start().await;
    let ask = "GET /head HTTP/1.1\r\nHost: a\r\nConnection: close\r\nX-Forwarded-For: 6.6.6.6, 192.0.2.1\r\nX_Forwarded_For: 7.7.7.7\r\nX-Forwarded-Proto: https\r\nX-Request-Id: mine\r\nVia: 1.0 front\r\n\r\n";
    let answer = Proxy::before(&[&backend]).raw(ask).await;
    assert!(body(&answer).contains("X-Forwarded-For: 127.0.0.1\r\n"), "{answer}");
    assert!(
        !answer.contains("6.6.6.6") && !answer.contains("7.7.7.7") && !answer.contains("https"),
        "{answer}"
    );
    let settings = ProxySettings {
        trusted_proxies: vec!["127.0.0.0/8".parse().expect("a network")],
        ..ProxySettings::default()
    };
    let answer = Proxy::with(&[&backend], Policy::default(), settings).raw(ask).await;
    let seen = body(&answer);
    assert!(seen.contains("X-Forwarded-For: 6.6.6.6, 192.0.2.1, 127.0.0.1\r\n"), "{seen}");
    assert!(
        seen.contains("X-Real-IP: 192.0.2.1\r\n") && seen.contains("X-Forwarded-Proto: https\r\n"),
        "{seen}"
    );
    assert!(
        seen.contains("X-Request-Id: mine\r\n") && seen.contains("Via: 1.0 front, 1.1 telaio\r\n"),
        "{seen}"
    );
}

#[tokio::test]
async fn names_that_programs_mistake_for_others_do_not_reach_a_backend() {
    let backend = Backend::start().await;
    let ask = "GET /head HTTP/1.1\r\nHost: a\r\nConnection: close\r\nX_User: evil\r\nssl_client_verify: evil\r\n\
               Proxy: evil\r\nX-Forwarded-Prefix: evil\r\nX-Forwarded-Scheme: evil\r\nX-Forwarded-Server: evil\r\n\
               X-Forwarded-Ssl: evil\r\nX-Scheme: evil\r\nX-User: good\r\n\r\n";
    let answer = Proxy::before(&[&backend]).raw(ask).await;
    assert!(body(&answer).contains("X-User: good\r\n"), "{answer}");
    assert!(!answer.contains("evil"), "{answer}");
    let policy = Policy { forwarded_prefix: Some("/app".into()), ..Policy::default() };
    let answer = Proxy::with_policy(&[&backend], policy).raw(ask).await;
    assert!(body(&answer).contains("X-Forwarded-Prefix: /app\r\n"), "{answer}");
    assert!(!answer.contains("evil"), "{answer}");
}

#[tokio::test]
async fn a_rewritten_path_does_not_lead_out_of_where_it_is_rewritten_to() {
    let backend = Backend::start().await;
    let rewrite =
        Rewrite::Regex { pattern: "^/p(.*)".into(), replacement: "/files/$1?from=$1".into() };
    let policy = Policy { rewrite: Some(rewrite), ..Policy::default() };
    let proxy = Proxy::with_policy(&[&backend], policy);
    for path in ["/p../secret", "/p..", "/p%2e%2E/x"] {
        assert_eq!(proxy.get(path).await.0, 400, "{path}");
    }
    assert!(backend.seen().is_empty());
    assert_eq!(proxy.get("/p./x?y=z").await.0, 200);
    assert!(backend.seen()[0].starts_with("GET /files/x?from=./x&y=z HTTP/1.1\r\n"));
}

#[tokio::test]
async fn a_trusted_proxys_lists_are_carried_on_whole() {
    let backend = Backend::start().await;
    let settings = ProxySettings {
        trusted_proxies: vec!["127.0.0.0/8".parse().expect("a network")],
        ..ProxySettings::default()
    };
    let proxy = Proxy::with(&[&backend], Policy::default(), settings);
    let ask = |fields: &str| {
        format!("GET /head HTTP/1.1\r\nHost: a\r\nConnection: close\r\n{fields}\r\n\r\n")
    };
    let answer = proxy.raw(ask("X-Forwarded-For: 6.6.6.6\r\nX-Forwarded-For: 192.0.2.1")).await;
    let seen = body(&answer);
    assert!(seen.contains("X-Forwarded-For: 6.6.6.6, 192.0.2.1, 127.0.0.1\r\n"), "{seen}");
    assert!(seen.contains("X-Real-IP: 192.0.2.1\r\n"), "{seen}");
    assert!(seen.contains("Forwarded: for=192.0.2.1;host=\"a\";proto=http\r\n"), "{seen}");
    let answer = proxy.raw(ask("Forwarded: for=\"192.0.2.1:99\";proto=https;host=b")).await;
    let seen = body(&answer);
    assert!(seen.contains("X-Forwarded-For: 192.0.2.1, 127.0.0.1\r\n"), "{seen}");
    assert!(seen.to_ascii_lowercase().contains("x-forwarded-proto: https\r\n"), "{seen}");
    assert!(seen.to_ascii_lowercase().contains("x-forwarded-host: b\r\n"), "{seen}");
    let list = "Forwarded: for=\"192.0.2.1:99\";proto=https;host=b, for=127.0.0.1;host=\"a\";proto=https\r\n";
    assert!(seen.contains(list), "{seen}");
}

#[tokio::test]
async fn connections_are_used_again_on_both_sides_and_pipelines_are_answered_in_order() {
    let (backend, proxies) = both_ways().await;
    for proxy in &proxies {
        let before = backend.connections.load(std::sync::atomic::Ordering::Relaxed);
        let mut client = proxy.connect().await;
        for _ in 0..20 {
            client.write_all(b"GET /hello HTTP/1.1\r\nHost: a\r\n\r\n").await.expect("write");
            assert!(read_response(&mut client).await.ends_with("hello"));
        }
        let after = backend.connections.load(std::sync::atomic::Ordering::Relaxed);
        assert_eq!(after - before, 1);
        let many: String = (0..50).fold(String::new(), |all, number| {
            let close = if number == 49 { "Connection: close\r\n" } else { "" };
            all + &format!("GET /head?{number} HTTP/1.1\r\nHost: a\r\n{close}\r\n")
        });
        client.write_all(many.as_bytes()).await.expect("write");
        let all = read_all(&mut client).await;
        let order: Vec<_> = all
            .split("GET /head?")
            .skip(1)
            .filter_map(|part| part.split(' ').next()?.parse::<u32>().ok())
            .collect();
        assert_eq!(order, (0..50).collect::<Vec<_>>());
    }
}

#[tokio::test]
async fn bodies_go_both_ways_whatever_their_framing() {
    let (backend, proxies) = both_ways().await;
    for proxy in &proxies {
        let answer = proxy.raw("POST /head HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello").await;
        assert!(
            body(&answer).ends_with("\r\n\r\nhello") && body(&answer).contains("Content-Length: 5"),
            "{answer}"
        );
        let chunked = "POST /head HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nTE: trailers\r\nConnection: close\r\n\r\n3;ext=1\r\nabc\r\n2\r\nde\r\n0\r\nX-Sum: 5\r\nContent-Length: 9\r\n\r\n";
        // Names of fields may come in lower case.
        let answer = proxy.raw(chunked).await.to_ascii_lowercase();
        let seen = body(&answer);
        assert!(
            seen.contains("transfer-encoding: chunked\r\n") && seen.contains("x-sum: 5"),
            "{seen}"
        );
        assert!(!seen.contains("ext=1") && !seen.contains("content-length"), "{seen}");
        let answer =
            proxy.raw("GET /chunked HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").await;
        assert!(
            answer.contains("Transfer-Encoding: chunked\r\n")
                && answer.to_ascii_lowercase().ends_with("0\r\nx-sum: 7\r\n\r\n"),
            "{answer}"
        );
        let old = proxy.raw("GET /chunked HTTP/1.0\r\nHost: a\r\n\r\n").await;
        assert!(!old.contains("Transfer-Encoding") && old.ends_with("\r\n\r\nabcdefg"), "{old}");
        let answer = proxy.raw("GET /close HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").await;
        assert!(answer.contains("until the end") && answer.ends_with("0\r\n\r\n"), "{answer}");
    }
    drop(backend);
}

#[tokio::test]
async fn large_bodies_arrive_whole_both_ways() {
    let (_backend, proxies) = both_ways().await;
    for proxy in &proxies {
        let (code, got) = proxy.get("/big?10000000").await;
        assert_eq!((code, got.len()), (200, 10_000_000));
        let sent = "y".repeat(3_000_000);
        let head = format!(
            "POST /head HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
            sent.len()
        );
        let answer = proxy.raw(format!("{head}{sent}")).await;
        assert!(body(&answer).ends_with(&sent), "{}", answer.len());
    }
}

#[tokio::test]
async fn an_escaped_slash_divides_no_path_and_stays_as_it_is() {
    let backend = Backend::start().await;
    let proxy = Proxy::before(&[&backend]);
    for (rewrite, expected) in [
        (None, "/a/b%2Fc?d=%2F"),
        (Some(Rewrite::ReplacePrefix("/new".into())), "/new/b%2Fc?d=%2F"),
        (
            Some(Rewrite::Regex { pattern: "/a/(.*)".into(), replacement: "/re/$1".into() }),
            "/re/b%2Fc?d=%2F",
        ),
    ] {
        let policy = Policy { rewrite, ..Policy::default() };
        let path = PathMatch::Prefix("/a".into());
        let route = Route::forward("r", HostMatch::Any, path, BackendId::new(BACKEND));
        let route = Route { policy: std::sync::Arc::new(policy), ..route };
        let problems = proxy.proxy.apply(&TableChange {
            routes: [("r".into(), Some(route.into()))].into(),
            ..TableChange::default()
        });
        assert!(problems.is_empty(), "{problems:?}");
        backend.requests.lock().clear();
        assert_eq!(proxy.get("/a/b%2fc?d=%2F").await.0, 200);
        let seen = backend.seen().remove(0);
        assert!(seen.starts_with(&format!("GET {expected} HTTP/1.1\r\n")), "{seen}");
        assert_eq!(proxy.get("/a%2Fb").await.0, 404, "that is no element `a`");
    }
}

#[tokio::test]
async fn head_options_and_interim_responses() {
    let (_backend, proxies) = both_ways().await;
    for proxy in &proxies {
        let mut client = proxy.connect().await;
        client.write_all(b"HEAD /x HTTP/1.1\r\nHost: a\r\n\r\nGET /hello HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").await.expect("write");
        let both = read_all(&mut client).await;
        assert!(
            both.contains("Content-Length: 5\r\n")
                && both.matches("HTTP/1.1 200").count() == 2
                && both.ends_with("hello"),
            "{both}"
        );
        let answer = proxy.raw("OPTIONS * HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").await;
        assert!(
            status(&answer) == 204 && answer.to_ascii_lowercase().contains("allow: "),
            "{answer}"
        );
    }
    let answer =
        proxies[0].raw("GET /interim HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").await;
    assert!(
        answer.starts_with("HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 200 OK"),
        "{answer}"
    );
}

#[tokio::test]
async fn who_expects_100_gets_it_before_the_body_or_the_final_answer_at_once() {
    let (_backend, proxies) = both_ways().await;
    for proxy in &proxies {
        let mut client = proxy.connect().await;
        let head = "POST /head HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nExpect: 100-continue\r\nConnection: close\r\n\r\n";
        client.write_all(head.as_bytes()).await.expect("write");
        let mut first = [0; 25];
        tokio::time::timeout(Duration::from_secs(5), client.read_exact(&mut first))
            .await
            .expect("in time")
            .expect("read");
        assert_eq!(&first, b"HTTP/1.1 100 Continue\r\n\r\n");
        client.write_all(b"hello").await.expect("write");
        assert!(read_all(&mut client).await.ends_with("hello"));
    }
    let answer = proxies[0]
        .raw("POST /early HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n")
        .await;
    assert!(status(&answer) == 403 && answer.contains("Connection: close"), "{answer}");
    let answer = proxies[0]
        .raw("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nExpect: wonders\r\n\r\n")
        .await;
    assert_eq!(status(&answer), 417);
}

#[tokio::test]
async fn an_upgrade_carries_bytes_both_ways_until_one_side_ends() {
    let backend = Backend::start().await;
    let proxy = Proxy::before(&[&backend]);
    let mut client = proxy.connect().await;
    client.write_all(b"GET /upgrade HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: x\r\n\r\n").await.expect("write");
    let mut head = Vec::new();
    while !head.ends_with(b"first") {
        let mut byte = [0];
        client.read_exact(&mut byte).await.expect("read");
        head.push(byte[0]);
    }
    let text = String::from_utf8_lossy(&head).to_ascii_lowercase();
    assert!(
        text.starts_with("http/1.1 101 ")
            && text.contains("upgrade: websocket")
            && text.contains("connection: upgrade"),
        "{text}"
    );
    let sent = vec![7; 1_000_000];
    let (mut read, mut write) = client.into_split();
    let ((), got) = tokio::join!(
        async {
            write.write_all(&sent).await.expect("write");
            write.shutdown().await.expect("shutdown");
        },
        async {
            let mut got = Vec::new();
            read.read_to_end(&mut got).await.expect("read");
            got
        }
    );
    assert!(got == sent, "{} bytes", got.len());
}

#[tokio::test]
async fn limits_have_their_own_statuses() {
    let backend = Backend::start().await;
    let settings = ProxySettings {
        limits: HeadLimits { head_bytes_max: 4 << 10, target_bytes_max: 1 << 10 },
        timeouts: ClientTimeouts {
            keep_alive: Duration::from_secs(2),
            head: Duration::from_secs(2),
            ..ClientTimeouts::default()
        },
        ..ProxySettings::default()
    };
    let policy = Policy { body_bytes_max: Some(10), ..Policy::default() };
    let proxy = Proxy::with(&[&backend], policy, settings);
    let long = "x".repeat(2000);
    let cases = [
        (414, format!("GET /{long} HTTP/1.1\r\nHost: a\r\n\r\n")),
        (414, format!("GET /{}", "x".repeat(5000))),
        (431, format!("GET / HTTP/1.1\r\nHost: a\r\nX: {long}{long}{long}\r\n\r\n")),
        (431, format!("GET / HTTP/1.1\r\nHost: a\r\n{}\r\n", "A: b\r\n".repeat(200))),
        (413, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 11\r\n\r\nhello world".to_owned()),
        (413, "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nb\r\nhello world\r\n0\r\n\r\n".to_owned()),
        (501, "CONNECT a:443 HTTP/1.1\r\nHost: a\r\n\r\n".to_owned()),
    ];
    for (wanted, request) in cases {
        let answer = proxy.raw(&request).await;
        assert_eq!(status(&answer), wanted, "{request:.60}: {answer}");
        assert!(answer.contains("Connection: close\r\n"), "{answer}");
    }
    let mut slow = proxy.connect().await;
    slow.write_all(b"GET / HT").await.expect("write");
    assert_eq!(status(&read_all(&mut slow).await), 408);
    let mut idle = proxy.connect().await;
    assert_eq!(read_all(&mut idle).await, "", "a connection without a request is closed silently");
    assert_eq!(backend.seen().len(), 0);
}

#[tokio::test]
async fn faults_of_the_backend_have_their_own_statuses() {
    let backend = Backend::start().await;
    let timeouts = Timeouts { response_header: Duration::from_millis(200), ..Timeouts::default() };
    for policy in [Policy::default(), streamed()] {
        let policy = Policy {
            timeouts: timeouts.clone(),
            retry: Retry { tries: 1, ..Retry::default() },
            ..policy
        };
        let proxy = Proxy::with_policy(&[&backend], policy);
        assert_eq!(proxy.get("/slow?2000").await.0, 504);
        assert_eq!(proxy.get("/die").await.0, 502);
        assert_eq!(proxy.get("/bad").await.0, 502);
        let (code, got) = proxy.get("/cut").await;
        assert_eq!((code, got.as_str()), (200, "half"));
        assert_eq!(proxy.get("/hello").await, (200, "hello".to_owned()), "and the proxy goes on");
    }
    let nobody = Proxy::before(&[]);
    assert_eq!(nobody.get("/").await.0, 503);
    let proxy = Proxy::before(&[&backend]);
    backend.kill();
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(proxy.get("/").await.0, 502);
}

#[tokio::test]
async fn pages_come_in_the_form_that_the_client_likes() {
    let proxy = Proxy::before(&[]);
    for (accept, wanted, part) in [
        (
            "text/html,application/xhtml+xml,*/*;q=0.8",
            "text/html; charset=utf-8",
            "<h1>503 Service Unavailable</h1>",
        ),
        ("application/json", "application/problem+json", "\"status\":503"),
        ("*/*", "text/plain; charset=utf-8", "503 Service Unavailable: no endpoint"),
    ] {
        let answer = proxy
            .raw(format!(
                "GET / HTTP/1.1\r\nHost: a\r\nAccept: {accept}\r\nConnection: close\r\n\r\n"
            ))
            .await;
        assert!(
            answer.contains(&format!("content-type: {wanted}\r\n")) && answer.contains(part),
            "{answer}"
        );
    }
}

#[tokio::test]
async fn a_dead_endpoint_is_passed_over_and_a_lost_answer_retried_where_that_is_safe() {
    let (first, second) = (Backend::start().await, Backend::start().await);
    let proxy = Proxy::before(&[&first, &second]);
    first.kill();
    tokio::time::sleep(Duration::from_millis(50)).await;
    for _ in 0..40 {
        assert_eq!(proxy.get("/hello").await.0, 200);
    }
    // Sent and unanswered: a POST may have done its work, a GET may be asked again.
    let post = "POST /die HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nConnection: close\r\n\r\nhi";
    let before = second.seen().len();
    assert_eq!(status(&proxy.raw(post).await), 502);
    assert_eq!(second.seen().len() - before, 1);
    let proxy = Proxy::before(&[&second]);
    let before = second.seen().len();
    assert_eq!(proxy.get("/die").await.0, 502);
    assert!(second.seen().len() - before > 1);
}

#[tokio::test]
async fn a_status_is_retried_if_the_route_says_so_and_the_body_is_sent_again() {
    let backends = [Backend::start().await, Backend::start().await, Backend::start().await];
    let mut on = RetryOn::default();
    assert!(on.with_status(503) && !on.with_status(418));
    let policy = Policy { retry: Retry { tries: 3, on, within: None }, ..Policy::default() };
    let proxy = Proxy::with_policy(&backends.each_ref(), policy);
    let put =
        "PUT /status?503 HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nConnection: close\r\n\r\nhi";
    assert_eq!(status(&proxy.raw(put).await), 503);
    let seen: Vec<_> = backends.iter().map(|backend| backend.seen().concat()).collect();
    assert!(seen.iter().all(|request| request.ends_with("\r\n\r\nhi")), "{seen:?}");
}

#[tokio::test]
async fn a_status_after_which_nobody_else_may_be_asked_is_the_clients() {
    let backends = [Backend::start().await, Backend::start().await];
    let mut on = RetryOn::default();
    assert!(on.with_status(503));
    for (method, within) in [("POST", None), ("PUT", Some(Duration::ZERO))] {
        let before: usize = backends.iter().map(|backend| backend.seen().len()).sum();
        let policy = Policy { retry: Retry { tries: 3, on, within }, ..Policy::default() };
        let proxy = Proxy::with_policy(&backends.each_ref(), policy);
        let request = format!(
            "{method} /status?503 HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nConnection: close\r\n\r\nhi"
        );
        assert_eq!(status(&proxy.raw(&request).await), 503, "{method}");
        let after: usize = backends.iter().map(|backend| backend.seen().len()).sum();
        assert_eq!(after - before, 1, "{method}");
    }
}

#[tokio::test]
async fn a_sticky_client_stays_at_its_endpoint() {
    let (first, second) = (Backend::start().await, Backend::start().await);
    let proxy = Proxy::before(&[&first, &second]);
    let sticky = Sticky {
        cookie: "route".into(),
        path: "/".into(),
        domain: None,
        max_age: None,
        secure: Some(false),
        same_site: Some("Lax".into()),
        same_site_by_browser: false,
        change_on_failure: false,
    };
    let endpoints = [&first, &second].map(|backend| Endpoint::at(backend.address)).to_vec();
    let spec = BackendSpec { sticky: Some(sticky), ..BackendSpec::new(BACKEND, endpoints) };
    proxy.proxy.apply(&TableChange {
        backends: [(BackendId::new(BACKEND), Some(spec))].into(),
        ..TableChange::default()
    });
    let answer = proxy.raw("GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").await;
    let cookie = answer
        .split("set-cookie: ")
        .nth(1)
        .and_then(|rest| rest.split(';').next())
        .expect("a cookie")
        .to_owned();
    let before = (first.seen().len(), second.seen().len());
    for _ in 0..20 {
        let again = proxy
            .raw(format!(
                "GET / HTTP/1.1\r\nHost: a\r\nCookie: {cookie}\r\nConnection: close\r\n\r\n"
            ))
            .await;
        assert!(!again.contains("set-cookie"), "{again}");
    }
    let after = (first.seen().len(), second.seen().len());
    assert!((after.0 - before.0 == 20) != (after.1 - before.1 == 20), "{before:?} {after:?}");
}

#[tokio::test]
async fn draining_lets_requests_end_and_closes_the_rest() {
    let backend = Backend::start().await;
    let proxy = Proxy::before(&[&backend]);
    let address: SocketAddr = proxy.address;
    let mut idle = proxy.connect().await;
    idle.write_all(b"GET /hello HTTP/1.1\r\nHost: a\r\n\r\n").await.expect("write");
    read_response(&mut idle).await;
    let mut running = proxy.connect().await;
    running.write_all(b"GET /slow?500 HTTP/1.1\r\nHost: a\r\n\r\n").await.expect("write");
    while backend.seen().len() < 2 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let draining = tokio::task::spawn_blocking(move || proxy.server.drain(Duration::from_secs(10)));
    // What is kept alive may ask once more: a request may be under way that we have not seen.
    tokio::time::sleep(Duration::from_millis(100)).await;
    idle.write_all(b"POST /hello HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\nx")
        .await
        .expect("write");
    let last = read_all(&mut idle).await;
    assert!(last.starts_with("HTTP/1.1 200") && last.contains("Connection: close"), "{last}");
    let slow = read_all(&mut running).await;
    assert!(slow.contains("Connection: close") && slow.ends_with("slow"), "{slow}");
    assert!(draining.await.expect("task"), "all was over in time");
    assert!(tokio::net::TcpStream::connect(address).await.is_err(), "nobody listens any more");
}
