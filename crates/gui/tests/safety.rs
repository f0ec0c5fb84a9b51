//! Each line of safety, over real sockets.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::cast_precision_loss,
    reason = "what fails here fails the test"
)]

mod support;

use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use support::{ADMIN, Imagined, READ, Running, log, read_until, start, start_with};
use telaio_gui::GuiSettings;

async fn with_host(server: &Running, host: &str, more: &str) -> u16 {
    let request = format!(
        "GET /api/v1/overview HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {READ}\r\n\
         Connection: close\r\n{more}\r\n"
    );
    server.raw(&request).await.status
}

#[tokio::test]
async fn nothing_but_the_page_and_the_document_is_answered_without_a_token() {
    let server = start(Imagined::default()).await;
    let ask = async |path: &str, more: &str| {
        let host = server.address;
        let request =
            format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n{more}\r\n");
        server.raw(&request).await
    };
    assert_eq!(ask("/", "").await.status, 200);
    assert_eq!(ask("/services/a/b", "").await.status, 200, "a view of the page");
    assert_eq!(ask("/api/v1/openapi.json", "").await.status, 200);
    for path in
        ["overview", "services", "status", "events/stream", "overrides", "audit", "trace?url=x"]
    {
        let answer = ask(&format!("/api/v1/{path}"), "").await;
        assert_eq!(answer.status, 401, "{path}");
        assert!(answer.head.contains("www-authenticate: bearer"), "{}", answer.head);
        assert_eq!(answer.json()["code"], "unauthorized");
    }
    // Neither in a URL, nor in a cookie, nor by another scheme.
    let path = format!("/api/v1/overview?token={ADMIN}&access_token={ADMIN}");
    assert_ne!(ask(&path, "").await.status, 200);
    assert_eq!(ask("/api/v1/overview", &format!("Cookie: token={ADMIN}\r\n")).await.status, 401);
    let basic = format!("Authorization: Basic {ADMIN}\r\n");
    assert_eq!(ask("/api/v1/overview", &basic).await.status, 401);
}

#[tokio::test]
async fn wrong_tokens_are_refused_more_and_more_tersely_and_right_ones_never() {
    let server = start(Imagined::default()).await;
    let mut statuses = Vec::new();
    for _ in 0..14 {
        statuses.push(server.send("GET", "/api/v1/overview", "wrong", "", "").await.status);
    }
    assert_eq!(statuses[..10], [401; 10]);
    assert_eq!(statuses[11..], [429; 3]);
    let last = server.send("GET", "/api/v1/overview", "wrong", "", "").await;
    assert!(last.head.contains("retry-after: 60") && !last.body.contains("wrong\""));
    assert_eq!(server.get("/api/v1/overview").await.status, 200);
}

#[tokio::test]
async fn who_may_only_look_cannot_act() {
    let server = start(Imagined::default()).await;
    let json = "Content-Type: application/json\r\n";
    let body = r#"{"action": {"kind": "resync"}}"#;
    let refused = server.send("POST", "/api/v1/actions", READ, json, body).await;
    assert_eq!((refused.status, refused.json()["code"].as_str()), (403, Some("forbidden")));
    assert_eq!(server.agent.resyncs.load(SeqCst), 0);
    assert_eq!(server.json("/api/v1/whoami").await["role"], "read");
    let done = server.send("POST", "/api/v1/actions", ADMIN, json, body).await;
    assert_eq!((done.status, server.agent.resyncs.load(SeqCst)), (200, 1));
}

#[tokio::test]
async fn a_name_that_is_not_ours_is_refused() {
    let server = start(Imagined::default()).await;
    let port = server.address.port();
    for good in ["localhost", "127.0.0.1", "gui.example", "GUI.example", "192.0.2.1"] {
        assert_eq!(with_host(&server, &format!("{good}:{port}"), "").await, 200, "{good}");
    }
    assert_eq!(with_host(&server, "[::1]", "").await, 200);
    for bad in ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example", ""] {
        assert_eq!(with_host(&server, &format!("{bad}:{port}"), "").await, 421, "{bad}");
    }
    assert_eq!(with_host(&server, "localhost", "Host: evil.example\r\n").await, 421);
}

#[tokio::test]
async fn a_page_of_somebody_else_is_refused() {
    let server = start(Imagined::default()).await;
    let host = format!("localhost:{}", server.address.port());
    let origin = |it: &str| format!("Origin: {it}\r\n");
    assert_eq!(with_host(&server, &host, &origin(&format!("http://{host}"))).await, 200);
    for bad in ["http://evil.example", "null", "https://localhost", "http://localhost:1"] {
        assert_eq!(with_host(&server, &host, &origin(bad)).await, 403, "{bad}");
    }
    assert_eq!(with_host(&server, &host, "Sec-Fetch-Site: cross-site\r\n").await, 403);
    assert_eq!(with_host(&server, &host, "Sec-Fetch-Site: same-origin\r\n").await, 200);
    // What does not say that it is JSON is not read: a form of another page cannot act.
    let form =
        server.send("POST", "/api/v1/actions", ADMIN, "Content-Type: text/plain\r\n", "{}").await;
    assert_eq!(form.status, 415);
}

#[tokio::test]
async fn every_answer_has_the_headers_that_browsers_heed() {
    let server = start(Imagined::default()).await;
    for (path, cache) in
        [("/", "no-cache"), ("/api/v1/overview", "no-store"), ("/api/v1/no", "no-store")]
    {
        let head = server.get(path).await.head;
        for needed in [
            "content-security-policy: default-src 'none'",
            "frame-ancestors 'none'",
            "x-content-type-options: nosniff",
            "referrer-policy: no-referrer",
            "x-frame-options: deny",
        ] {
            assert!(head.contains(needed), "{path}: {needed}: {head}");
        }
        assert!(head.contains(&format!("cache-control: {cache}")), "{path}: {head}");
        assert!(!head.contains("set-cookie") && !head.contains("access-control-allow"), "{head}");
        assert!(!head.contains("unsafe-inline") && !head.contains("unsafe-eval"));
    }
}

#[tokio::test]
async fn bodies_and_streams_have_bounds() {
    let few = |settings: GuiSettings| GuiSettings { streams_max: 2, ..settings };
    let server = start_with(Imagined::default(), few, log()).await;
    let long = format!(r#"{{"reason": "{}"}}"#, "x".repeat(100 << 10));
    let json = "Content-Type: application/json\r\n";
    assert_eq!(server.send("POST", "/api/v1/actions", ADMIN, json, &long).await.status, 413);
    let (mut one, mut two) = (server.stream().await, server.stream().await);
    read_until(&mut one, "event: sample").await;
    read_until(&mut two, "event: sample").await;
    assert_eq!(server.get("/api/v1/events/stream").await.status, 503);
    drop(one);
    // The place is free as soon as the server notices.
    let mut three = server.stream().await;
    for _ in 0..100 {
        let mut first = [0; 12];
        three.peek(&mut first).await.unwrap();
        if first.ends_with(b"200") {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        three = server.stream().await;
    }
    read_until(&mut three, "event: hello").await;
}

#[tokio::test]
async fn the_cluster_is_asked_about_tokens_that_are_not_known_and_once() {
    let review = |mut settings: GuiSettings| {
        let tokens = &mut settings.guard.tokens;
        tokens.review = true;
        (tokens.review_time, tokens.review_pause) =
            (Duration::from_hours(1), Duration::from_hours(1));
        settings
    };
    let server = start_with(Imagined::default(), review, log()).await;
    let token = "token-of-the-cluster-for-anna";
    for _ in 0..3 {
        let who = server.send("GET", "/api/v1/whoami", token, "", "").await;
        assert_eq!((who.status, who.json()["name"].as_str()), (200, Some("anna@example")));
    }
    assert_eq!(server.agent.reviews.load(SeqCst), 1);
    for _ in 0..15 {
        let token = "token-while-the-cluster-is-away";
        let silent = server.send("GET", "/api/v1/whoami", token, "", "").await;
        assert_eq!((silent.status, silent.json()["code"].as_str()), (503, Some("unavailable")));
    }
    server.agent.reviews.store(0, SeqCst);
    for i in 0..30 {
        server.send("GET", "/api/v1/whoami", &format!("wrong-{i}"), "", "").await;
    }
    let asked = server.agent.reviews.load(SeqCst);
    assert!(asked <= 12, "who guesses has the cluster asked now and then only: {asked}");
    // Behind a port-forward everybody has one address: who is known is let in.
    let who = server.send("GET", "/api/v1/whoami", token, "", "").await;
    assert_eq!(who.status, 200, "{}", who.body);
}

#[tokio::test]
async fn a_stream_ends_when_its_token_is_taken_back() {
    let review = |mut settings: GuiSettings| {
        settings.guard.tokens.review = true;
        settings.guard.tokens.review_time = Duration::from_millis(200);
        settings
    };
    let server = start_with(Imagined::default(), review, log()).await;
    let mut anna = server.stream_of("token-of-the-cluster-for-anna").await;
    let mut ours = server.stream().await;
    read_until(&mut anna, "event: hello").await;
    let asked = server.agent.reviews.load(SeqCst);
    while server.agent.reviews.load(SeqCst) < asked + 2 {
        read_until(&mut anna, "event: sample").await;
    }
    server.agent.revoked.store(true, SeqCst);
    // The last chunk: the stream is over, and the connection may be asked something else.
    read_until(&mut anna, "\r\n0\r\n\r\n").await;
    read_until(&mut ours, "event: sample").await;
}

#[tokio::test]
async fn who_sends_no_token_shuts_nobody_out() {
    let server = start(Imagined::default()).await;
    for _ in 0..30 {
        let request = format!(
            "GET /api/v1/overview HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n",
            server.address
        );
        assert_eq!(server.raw(&request).await.status, 401);
    }
    assert_eq!(server.send("GET", "/api/v1/overview", "wrong", "", "").await.status, 401);
}
