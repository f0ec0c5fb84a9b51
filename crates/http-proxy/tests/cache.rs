//! The cache and compression over real sockets: a proxy, an origin that the tests play, raw clients.

#![allow(clippy::expect_used, reason = "a test may panic")]

mod support;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use support::{BACKEND, read_all, route, status};
use telaio_http_proxy::cache::Purge;
use telaio_http_proxy::server::{Listener, Server, listen};
use telaio_http_proxy::table::{
    Auth, Backend, BackendId, BasicAuth, BasicUser, CachePolicy, Compress, Endpoint, ForwardAuth,
    HeaderEdit, HeaderEdits, HostMatch, Policy, RateLimit, SourceRanges, TableChange,
};
use telaio_http_proxy::{HttpProxy, ProxySettings};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// An origin that answers what a function makes of a request's head and its number.
struct Origin {
    address: SocketAddr,
    asked: Arc<AtomicUsize>,
    accepting: tokio::task::JoinHandle<()>,
}

impl Origin {
    async fn start(answer: impl Fn(&str, usize) -> String + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
        let address = listener.local_addr().expect("address");
        let asked = Arc::new(AtomicUsize::new(0));
        let (counted, answer) = (Arc::clone(&asked), Arc::new(answer));
        let accepting = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, Arc::clone(&answer), Arc::clone(&counted)));
            }
        });
        Self { address, asked, accepting }
    }

    fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }
}

impl Drop for Origin {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn serve(
    mut stream: TcpStream,
    answer: Arc<impl Fn(&str, usize) -> String>,
    counted: Arc<AtomicUsize>,
) {
    let mut read = Vec::new();
    let mut piece = [0; 4096];
    loop {
        while let Some(end) = read.windows(4).position(|window| window == b"\r\n\r\n") {
            let head = String::from_utf8_lossy(&read[..end]).into_owned();
            let length =
                head.to_ascii_lowercase().split("content-length: ").nth(1).map(str::to_owned);
            let length = length.and_then(|rest| rest.lines().next()?.parse().ok()).unwrap_or(0);
            while read.len() < end + 4 + length {
                match stream.read(&mut piece).await {
                    Ok(count) if count > 0 => read.extend_from_slice(&piece[..count]),
                    _ => return,
                }
            }
            read.drain(..end + 4 + length);
            let number = counted.fetch_add(1, Ordering::SeqCst) + 1;
            let answer = answer(&head, number);
            // One that answers nothing hangs up.
            if answer.is_empty() || stream.write_all(answer.as_bytes()).await.is_err() {
                return;
            }
        }
        match stream.read(&mut piece).await {
            Ok(count) if count > 0 => read.extend_from_slice(&piece[..count]),
            _ => return,
        }
    }
}

/// A response with a length, and these fields in lines.
fn response(fields: &str, body: &str) -> String {
    format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n{fields}\r\n\r\n{body}", body.len())
}

fn cached() -> Policy {
    Policy { cache: Some(CachePolicy::default()), ..Policy::default() }
}

struct Proxy {
    engine: Arc<HttpProxy>,
    address: SocketAddr,
    _server: Server,
}

impl Proxy {
    fn before(origin: &Origin, policy: Policy) -> Self {
        let proxy = Arc::new(HttpProxy::new(ProxySettings::default()));
        let backend = Backend::new(BACKEND, vec![Endpoint::at(origin.address)]);
        let problems = proxy.apply(&TableChange {
            routes: [("r".into(), Some(route("r", HostMatch::Any, policy).into()))].into(),
            backends: [(BackendId::new(BACKEND), Some(backend))].into(),
            ..TableChange::default()
        });
        assert!(problems.is_empty(), "{problems:?}");
        let sockets = listen("127.0.0.1:0".parse().expect("an address"), 1).expect("listen");
        let address = sockets[0].local_addr().expect("address");
        let listener = Listener { sockets, handler: None };
        let server = Server::start(&proxy, vec![listener], 1).expect("start");
        Self { engine: proxy, address, _server: server }
    }

    /// A request with these fields in lines; the whole answer.
    async fn ask(&self, line: &str, fields: &str) -> String {
        let mut stream = TcpStream::connect(self.address).await.expect("connect");
        let request =
            format!("{line} HTTP/1.1\r\nHost: a.example\r\nConnection: close\r\n{fields}\r\n");
        stream.write_all(request.as_bytes()).await.expect("write");
        read_all(&mut stream).await
    }

    async fn get(&self, fields: &str) -> String {
        self.ask("GET /page", fields).await
    }
}

fn body(answer: &str) -> &str {
    answer.split_once("\r\n\r\n").map_or("", |(_, body)| body)
}

fn has(answer: &str, line: &str) -> bool {
    let head = answer.split_once("\r\n\r\n").map_or(answer, |(head, _)| head);
    head.lines().any(|own| own.eq_ignore_ascii_case(line))
}

#[tokio::test]
async fn the_second_request_is_answered_without_the_origin() {
    let origin = Origin::start(|_, number| {
        response("Cache-Control: max-age=60\r\nX-A: 1", &format!("answer {number}"))
    })
    .await;
    let edits = HeaderEdits {
        response: vec![HeaderEdit::Set("x-edit".into(), "1".into())],
        ..HeaderEdits::default()
    };
    let proxy = Proxy::before(&origin, Policy { headers: edits, ..cached() });
    let first = proxy.get("").await;
    assert!(has(&first, "cache-status: telaio; fwd=uri-miss; stored"), "{first}");
    for _ in 0..3 {
        let again = proxy.get("").await;
        assert_eq!(body(&again), "answer 1");
        assert!(
            has(&again, "content-length: 8") && has(&again, "x-a: 1") && has(&again, "x-edit: 1"),
            "{again}"
        );
    }
    let head = proxy.ask("HEAD /page", "").await;
    assert!(has(&head, "content-length: 8") && body(&head).is_empty(), "{head}");
    let part = proxy.get("Range: bytes=0-2\r\n").await;
    assert_eq!((status(&part), body(&part)), (206, "ans"));
    assert_eq!(origin.asked(), 1);
    assert_eq!(proxy.engine.cache().purge(&Purge::Host("a.example".into())), Ok(1));
    assert_eq!(body(&proxy.get("").await), "answer 2");
}

#[tokio::test]
async fn what_head_is_told_of_a_stored_response_is_true_of_the_whole() {
    let fields = "Cache-Control: max-age=60\r\nETag: \"a\"";
    let origin = Origin::start(move |_, _| response(fields, "0123456789")).await;
    let proxy = Proxy::before(&origin, cached());
    proxy.get("").await;
    let known = proxy.ask("HEAD /page", "If-None-Match: \"a\"\r\n").await;
    assert_eq!(status(&known), 304);
    assert!(!known.to_ascii_lowercase().contains("content-length"), "{known}");
    for range in ["bytes=2-4", "bytes=99-"] {
        let head = proxy.ask("HEAD /page", &format!("Range: {range}\r\n")).await;
        assert_eq!(status(&head), 200, "{range}");
        assert!(has(&head, "content-length: 10"), "{head}");
    }
    assert_eq!(origin.asked(), 1);
}

#[tokio::test]
async fn nothing_is_kept_on_a_route_that_does_not_ask_for_it() {
    let origin =
        Origin::start(|_, number| response("Cache-Control: max-age=60", &number.to_string())).await;
    let proxy = Proxy::before(&origin, Policy::default());
    assert_eq!(body(&proxy.get("").await), "1");
    let second = proxy.get("").await;
    assert_eq!(body(&second), "2");
    assert!(!second.to_ascii_lowercase().contains("cache-status"), "{second}");
}

#[tokio::test]
async fn chunked_bodies_are_kept_whole_or_not_at_all() {
    let origin = Origin::start(|head, number| {
        let start = "HTTP/1.1 200 OK\r\nCache-Control: max-age=60\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n";
        let cut = head.contains("/cut");
        if cut && number == 1 { format!("{start}5\r\nde") } else { format!("{start}2\r\nde\r\n0\r\n\r\n") }
    })
    .await;
    let proxy = Proxy::before(&origin, cached());
    for _ in 0..2 {
        let answer = proxy.ask("GET /whole", "").await;
        assert!(answer.contains("abc"), "{answer}");
    }
    assert_eq!(origin.asked(), 1);
    let kept = proxy.ask("GET /whole", "").await;
    assert_eq!(body(&kept), "abcde");
}

#[tokio::test]
async fn an_origin_that_hangs_up_in_the_middle_leaves_nothing() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
    let address = listener.local_addr().expect("address");
    tokio::spawn(async move {
        let mut number = 0;
        while let Ok((mut stream, _)) = listener.accept().await {
            number += 1;
            let mut piece = [0; 4096];
            let _ = stream.read(&mut piece).await;
            let whole = if number == 1 { "half" } else { "whole body" };
            let head = "HTTP/1.1 200 OK\r\nCache-Control: max-age=60\r\nContent-Length: 10\r\n\r\n";
            let _ = stream.write_all(format!("{head}{whole}").as_bytes()).await;
        }
    });
    let origin = Origin { address, asked: Arc::default(), accepting: tokio::spawn(async {}) };
    let proxy = Proxy::before(&origin, cached());
    assert_eq!(body(&proxy.get("").await), "half");
    assert_eq!(body(&proxy.get("").await), "whole body");
    assert_eq!(body(&proxy.get("").await), "whole body");
}

#[tokio::test]
async fn many_at_once_cost_the_origin_one_request() {
    let origin = Origin::start(|_, number| {
        // Long enough for the others to come.
        std::thread::sleep(Duration::from_millis(300));
        response("Cache-Control: max-age=60", &number.to_string())
    })
    .await;
    let proxy = Arc::new(Proxy::before(&origin, cached()));
    let asking: Vec<_> = (0..50)
        .map(|_| {
            let proxy = Arc::clone(&proxy);
            tokio::spawn(async move { proxy.get("").await })
        })
        .collect();
    for answer in asking {
        assert_eq!(body(&answer.await.expect("an answer")), "1");
    }
    assert_eq!(origin.asked(), 1);
}

#[tokio::test]
async fn a_stale_response_is_served_at_once_and_renewed_behind() {
    let origin = Origin::start(|_, number| {
        response("Cache-Control: max-age=1, stale-while-revalidate=60", &number.to_string())
    })
    .await;
    let proxy = Proxy::before(&origin, cached());
    assert_eq!(body(&proxy.get("").await), "1");
    tokio::time::sleep(Duration::from_millis(1100)).await;
    assert_eq!(body(&proxy.get("").await), "1", "stale, at once");
    let mut renewed = String::new();
    for _ in 0..1_500 {
        renewed = body(&proxy.get("").await).to_owned();
        if renewed != "1" {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_ne!(renewed, "1", "and renewed meanwhile");
}

#[tokio::test]
async fn a_stale_response_is_served_when_the_origin_is_gone() {
    let origin = Origin::start(|_, number| {
        if number == 1 { response("Cache-Control: max-age=1", "old") } else { String::new() }
    })
    .await;
    let proxy = Proxy::before(&origin, cached());
    assert_eq!(body(&proxy.get("").await), "old");
    tokio::time::sleep(Duration::from_millis(1100)).await;
    let stale = proxy.get("").await;
    assert_eq!((status(&stale), body(&stale)), (200, "old"));
    assert!(stale.contains("detail=stale"), "{stale}");
    assert_eq!(status(&proxy.ask("GET /other", "").await), 502);
}

/// What a request that must be refused gets while the answer is in the cache.
async fn refused_despite_the_cache(
    policy: Policy,
    allowed: &str,
    forbidden: &str,
) -> (u16, Proxy, Origin) {
    let origin =
        Origin::start(|_, _| response("Cache-Control: public, max-age=60", "the secret")).await;
    let proxy = Proxy::before(&origin, policy);
    assert_eq!(body(&proxy.get(allowed).await), "the secret");
    assert_eq!(body(&proxy.get(allowed).await), "the secret");
    assert_eq!(origin.asked(), 1, "it is in the cache");
    let refused = proxy.get(forbidden).await;
    assert!(!refused.contains("the secret"), "{refused}");
    (status(&refused), proxy, origin)
}

#[tokio::test]
async fn a_password_is_asked_for_before_the_cache() {
    let user = BasicUser { name: "a".into(), hash: "{SHA}5en6G6MezRroT3XKqkdPOmY/BfQ=".into() };
    let auth = vec![Auth::Basic(BasicAuth { realm: "r".into(), users: vec![user] })];
    // a:secret
    let allowed = "Authorization: Basic YTpzZWNyZXQ=\r\n";
    let policy = Policy { auth, ..cached() };
    let (status_of_refusal, ..) = refused_despite_the_cache(policy, allowed, "").await;
    assert_eq!(status_of_refusal, 401);
}

#[tokio::test]
async fn another_server_is_asked_before_the_cache() {
    let authority = Origin::start(|head, _| {
        if head.to_ascii_lowercase().contains("x-key: right") {
            "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n".to_owned()
        } else {
            "HTTP/1.1 403 No\r\nContent-Length: 0\r\n\r\n".to_owned()
        }
    })
    .await;
    let forward = ForwardAuth {
        url: format!("http://{}/", authority.address).into(),
        method: None,
        signin: None,
        signin_redirect_param: "rd".into(),
        response_headers: vec![],
        set_headers: vec![],
        request_redirect: None,
        always_set_cookie: false,
        cache: Duration::ZERO,
        cache_key: None,
        timeout: Duration::from_secs(5),
    };
    let policy = Policy { auth: vec![Auth::Forward(forward)], ..cached() };
    let (status_of_refusal, ..) =
        refused_despite_the_cache(policy, "X-Key: right\r\n", "X-Key: wrong\r\n").await;
    assert_eq!(status_of_refusal, 403);
}

#[tokio::test]
async fn what_is_answered_to_somebody_known_is_not_given_to_another() {
    let origin = Origin::start(|_, number| {
        response("Cache-Control: max-age=60", &format!("page of client {number}"))
    })
    .await;
    let user = BasicUser { name: "a".into(), hash: "{SHA}5en6G6MezRroT3XKqkdPOmY/BfQ=".into() };
    let auth = vec![Auth::Basic(BasicAuth { realm: "r".into(), users: vec![user] })];
    let proxy = Proxy::before(&origin, Policy { auth, ..cached() });
    let allowed = "Authorization: Basic YTpzZWNyZXQ=\r\n";
    assert_eq!(body(&proxy.get(allowed).await), "page of client 1");
    assert_eq!(body(&proxy.get(allowed).await), "page of client 2");
}

#[tokio::test]
async fn source_ranges_hold_before_the_cache() {
    let origin = Origin::start(|_, _| response("Cache-Control: max-age=60", "the secret")).await;
    let proxy = Proxy::before(&origin, cached());
    assert_eq!(body(&proxy.get("").await), "the secret");
    // The same route from now on denies whom it served.
    let deny = SourceRanges {
        deny: vec!["127.0.0.0/8".parse().expect("a network")],
        ..SourceRanges::default()
    };
    let denying = route("r", HostMatch::Any, Policy { sources: deny, ..cached() });
    proxy.engine.apply(&TableChange {
        routes: [("r".into(), Some(denying.into()))].into(),
        ..TableChange::default()
    });
    let refused = proxy.get("").await;
    assert_eq!(status(&refused), 403);
    assert!(!refused.contains("the secret"), "{refused}");
}

#[tokio::test]
async fn limits_hold_before_the_cache() {
    let origin = Origin::start(|_, _| response("Cache-Control: max-age=60", "hello")).await;
    let rate = RateLimit { requests: 1, per: Duration::from_hours(1), burst: 2, except: vec![] };
    let proxy = Proxy::before(&origin, Policy { rates: vec![rate], ..cached() });
    let mut statuses = Vec::new();
    for _ in 0..10 {
        statuses.push(status(&proxy.get("").await));
    }
    assert_eq!(statuses[0], 200);
    assert!(statuses.iter().filter(|status| **status == 200).count() <= 3, "{statuses:?}");
    assert!(statuses[9] == 429 || statuses[9] == 503, "{statuses:?}");
}

#[tokio::test]
async fn what_one_client_sends_does_not_poison_what_others_get() {
    let origin = Origin::start(|head, number| {
        let line = head.lines().next().unwrap_or_default().to_owned();
        let told =
            head.lines().find(|line| line.to_ascii_lowercase().starts_with("x-forwarded-host"));
        response(
            "Cache-Control: max-age=60",
            &format!("{number} {line} {}", told.unwrap_or_default()),
        )
    })
    .await;
    let proxy = Proxy::before(&origin, cached());
    // Fields that nobody keys by, a body that nobody expects, and the same URL in another form.
    proxy.get("X-Forwarded-Host: evil.example\r\n").await;
    proxy.get("X-Original-URL: /admin\r\n").await;
    proxy.get("X-HTTP-Method-Override: DELETE\r\n").await;
    // What follows the fields ends the request.
    proxy.get("Content-Length: 6\r\n\r\nevil").await;
    let clean = proxy.get("").await;
    assert!(!body(&clean).contains("evil"), "{clean}");
    let before = origin.asked();
    let absolute = proxy.ask("GET http://a.example/page", "").await;
    assert_eq!(body(&absolute), body(&clean), "the same URL");
    assert_eq!(origin.asked(), before);
    for other in ["GET http://b.example/page", "GET http://a.example:81/page", "GET /page?"] {
        assert_ne!(body(&proxy.ask(other, "").await), body(&clean), "{other}");
    }
}

#[tokio::test]
async fn responses_are_compressed_for_those_who_take_it() {
    let text = "all work and no play ".repeat(500);
    let origin = Origin::start(move |_, _| {
        response("Content-Type: text/plain\r\nETag: \"1\"\r\nCache-Control: max-age=60", &text)
    })
    .await;
    let compress = Compress { enabled: true, ..Compress::default() };
    let proxy = Proxy::before(&origin, Policy { compress, ..cached() });
    for coding in ["gzip", "br", "zstd"] {
        let answer = proxy.get(&format!("Accept-Encoding: {coding}\r\n")).await;
        assert!(has(&answer, &format!("content-encoding: {coding}")), "{}", &answer[..300]);
        assert!(
            has(&answer, "etag: W/\"1\"") && has(&answer, "vary: Accept-Encoding"),
            "{}",
            &answer[..300]
        );
        assert!(answer.len() < 2000);
    }
    let plain = proxy.get("").await;
    assert!(
        has(&plain, "etag: \"1\"") && has(&plain, "content-length: 10500"),
        "{}",
        &plain[..300]
    );
    assert_eq!(origin.asked(), 1, "one form is kept, and each client gets its own");
}

#[tokio::test]
async fn events_reach_the_client_as_they_come_though_compressed() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
    let address = listener.local_addr().expect("address");
    let (go_on, mut waits) = tokio::sync::mpsc::channel::<()>(1);
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.expect("accept");
        let mut piece = [0; 4096];
        let _ = stream.read(&mut piece).await;
        let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
        let _ = stream.write_all(format!("{head}b\r\ndata: one\n\n\r\n").as_bytes()).await;
        // The second event comes only when the client has the first.
        let _ = waits.recv().await;
        let _ = stream.write_all(b"b\r\ndata: two\n\n\r\n0\r\n\r\n").await;
    });
    let origin = Origin { address, asked: Arc::default(), accepting: tokio::spawn(async {}) };
    let compress = Compress { enabled: true, ..Compress::default() };
    let proxy = Proxy::before(&origin, Policy { compress, ..Policy::default() });
    let mut stream = TcpStream::connect(proxy.address).await.expect("connect");
    let request = "GET / HTTP/1.1\r\nHost: a\r\nAccept-Encoding: gzip\r\nConnection: close\r\n\r\n";
    stream.write_all(request.as_bytes()).await.expect("write");
    let mut got = Vec::new();
    let mut piece = [0; 4096];
    // Head and first event; it would wait for ever if the event were held back.
    let enough = |got: &[u8]| {
        got.windows(4).position(|w| w == b"\r\n\r\n").is_some_and(|at| got.len() > at + 24)
    };
    while !enough(&got) {
        let read = tokio::time::timeout(Duration::from_secs(10), stream.read(&mut piece)).await;
        let count = read.expect("the first event comes at once").expect("read");
        assert!(count > 0);
        got.extend_from_slice(&piece[..count]);
    }
    go_on.send(()).await.expect("the origin waits");
    let rest = read_all(&mut stream).await;
    assert!(rest.ends_with("0\r\n\r\n"));
}

#[tokio::test]
async fn another_form_of_a_hosts_name_gets_nothing_into_the_usual_ones_answer() {
    let host = |head: &str| {
        let lower = head.to_ascii_lowercase();
        let found = lower.split("\r\nhost: ").nth(1).and_then(|rest| rest.split("\r\n").next());
        found.unwrap_or_default().to_owned()
    };
    let origin = Origin::start(move |head, _| {
        let body = format!("link to {}.", host(head));
        format!(
            "HTTP/1.1 200 OK\r\nCache-Control: max-age=600\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        )
    })
    .await;
    let policy = Policy { cache: Some(CachePolicy::default()), ..Policy::default() };
    let proxy = Proxy::before(&origin, policy);
    let forms = ["a.example:80", "a.example.", "a.example.:80", "a.example"];
    let ask = async |host: &str| {
        let mut stream = TcpStream::connect(proxy.address).await.expect("connect");
        let request = format!("GET /page HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.expect("write");
        read_all(&mut stream).await
    };
    for form in forms.into_iter().chain(forms) {
        let answer = ask(form).await;
        assert!(answer.ends_with(&format!("link to {form}.")), "{form}: {answer}");
    }
    assert_eq!(origin.asked(), forms.len(), "each is kept");
    let answer = ask("A.Example").await;
    assert!(answer.ends_with("link to a.example."), "{answer}");
    assert_eq!(origin.asked(), forms.len());
}
