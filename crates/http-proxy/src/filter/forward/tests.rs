use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::super::client::tests::server;
use super::*;
use crate::tls::upstream::Verify;

fn settings(url: &str) -> ForwardAuth {
    ForwardAuth {
        url: url.into(),
        method: None,
        signin: None,
        signin_redirect_param: "".into(),
        response_headers: vec!["X-User".into()],
        set_headers: Vec::new(),
        request_redirect: None,
        always_set_cookie: false,
        cache: Duration::ZERO,
        cache_key: None,
        timeout: Duration::from_secs(20),
    }
}

fn request() -> RequestHead {
    let mut head = RequestHead::new();
    head.set_authority("shop.org");
    head.set_target("/a?b=c").unwrap();
    head.headers.push("Cookie", "session=1");
    head.headers.push("Content-Length", "5");
    head
}

fn filter(settings: &ForwardAuth) -> ForwardFilter {
    let mut problems = Vec::new();
    let filter = ForwardFilter::new(&"n/i/0/0".into(), settings, &mut problems).unwrap();
    assert!(problems.is_empty(), "{problems:?}");
    filter
}

fn refused(settings: &ForwardAuth) -> bool {
    ForwardFilter::new(&"n/i/0/0".into(), settings, &mut Vec::new()).is_err()
}

async fn ask(settings: &ForwardAuth, answers: &Answers) -> Result<Granted, Reply> {
    let client = Client::new(&Verify::Off);
    filter(settings).ask(&request(), &client, answers).await
}

#[tokio::test]
async fn who_is_granted_passes_with_the_fields_that_were_asked_for() {
    let answer = "HTTP/1.1 200 OK\r\nx-user: anna\r\nx-other: no\r\nset-cookie: a=b\r\ncontent-length: 0\r\n\r\n";
    let (address, _) = server(answer, 9).await;
    let granted = ask(&settings(&format!("http://{address}/check")), &Answers::default()).await;
    let granted = granted.unwrap();
    assert_eq!(granted.request.get_str("x-user"), Some("anna"));
    assert_eq!(granted.request.len(), 1);
    assert_eq!(granted.cookies, [b"a=b"]);
}

#[tokio::test]
async fn a_refusal_is_passed_on_and_a_failure_refuses() {
    let unauthorised =
        "HTTP/1.1 401 No\r\nwww-authenticate: Bearer\r\ncontent-length: 3\r\n\r\nwho";
    for (answer, status) in [
        (unauthorised, 401),
        ("HTTP/1.1 403 No\r\ncontent-length: 0\r\n\r\n", 403),
        ("HTTP/1.1 302 No\r\nlocation: /\r\ncontent-length: 0\r\n\r\n", 500),
        ("HTTP/1.1 500 No\r\ncontent-length: 0\r\n\r\n", 500),
        ("nonsense\r\n\r\n", 500),
    ] {
        let (address, _) = server(answer, 9).await;
        let settings = settings(&format!("http://{address}/check"));
        let reply = ask(&settings, &Answers::default()).await.unwrap_err();
        assert_eq!(reply.head.status, status, "{answer}");
        if status == 401 {
            assert_eq!(&reply.body[..], b"who");
            assert_eq!(reply.head.headers.get_str("www-authenticate"), Some("Bearer"));
        }
    }
}

#[tokio::test]
async fn who_is_not_signed_in_is_sent_there_with_the_way_back() {
    let answer = "HTTP/1.1 401 No\r\nset-cookie: csrf=1\r\ncontent-length: 0\r\n\r\n";
    let (address, _) = server(answer, 9).await;
    let mut settings = settings(&format!("http://{address}/check"));
    settings.signin = Some("https://$host/start".into());
    let reply = ask(&settings, &Answers::default()).await.unwrap_err();
    assert_eq!(reply.head.status, 302);
    let location = reply.head.headers.get_str("location");
    assert_eq!(location, Some("https://shop.org/start?rd=http%3A%2F%2Fshop.org%2Fa%3Fb%3Dc"));
    assert_eq!(reply.head.headers.get_str("set-cookie"), Some("csrf=1"));
    settings.signin = Some("https://$host/start?rd=$escaped_request_uri".into());
    let reply = ask(&settings, &Answers::default()).await.unwrap_err();
    let location = reply.head.headers.get_str("location");
    assert_eq!(location, Some("https://shop.org/start?rd=%2Fa%3Fb%3Dc"));
}

#[tokio::test]
async fn a_grant_is_remembered_and_a_refusal_is_not() {
    let answers = Answers::default();
    let (address, connections) =
        server("HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 0\r\n\r\n", 1).await;
    let mut settings = settings(&format!("http://{address}/check"));
    settings.cache = Duration::from_mins(1);
    for _ in 0..3 {
        ask(&settings, &answers).await.unwrap();
    }
    assert_eq!(connections.load(Ordering::SeqCst), 1);
    let (address, connections) =
        server("HTTP/1.1 403 No\r\nconnection: close\r\ncontent-length: 0\r\n\r\n", 1).await;
    settings.url = Arc::from(format!("http://{address}/check"));
    for _ in 0..3 {
        ask(&settings, &answers).await.unwrap_err();
    }
    assert_eq!(connections.load(Ordering::SeqCst), 3);
}

#[test]
fn other_credentials_or_another_request_are_another_question() {
    let mut settings = settings("http://x/?k=$http_x_k");
    settings.cache = Duration::from_mins(1);
    settings.cache_key = Some("$http_x_api_key".into());
    let filter = filter(&settings);
    let key = filter.memory.as_ref().and_then(|(_, key)| key.as_ref());
    let tag = |head: &RequestHead| filter.tag(head, key);
    let base = tag(&request());
    let with = |name: &str, value: &str| {
        let mut head = request();
        head.headers.set(name, value);
        head
    };
    let mut path = request();
    path.set_path("/other");
    let mut query = request();
    query.set_query(Some("b=d"));
    let mut method = request();
    method.method = Method::POST;
    let mut client = request();
    client.client.address = "192.0.2.9".parse().unwrap();
    let mut twice = with("X-Token", "1");
    twice.headers.push("X-Token", "2");
    let others = [
        with("Cookie", "session=2"),
        with("Authorization", "session=1"),
        with("X-Api-Key", "good"),
        with("X-Api-Key", "bad"),
        with("X-K", "1"),
        with("X-Token", "1"),
        twice,
        path,
        query,
        method,
        client,
    ];
    let tags: std::collections::HashSet<Tag> = others.iter().map(tag).chain([base]).collect();
    assert_eq!(tags.len(), others.len() + 1, "each of them is asked about on its own");
    assert_eq!(tag(&request()), base);
    assert_eq!(tag(&with("User-Agent", "another")), base);
    let other = ForwardFilter::new(&"n/j/0/0".into(), &settings, &mut Vec::new()).unwrap();
    assert_ne!(other.tag(&request(), key), base, "another route");
}

#[test]
fn a_key_that_means_nothing_remembers_nothing() {
    let mut settings = settings("http://x/");
    settings.cache = Duration::from_mins(1);
    settings.cache_key = Some("$lua_thing".into());
    let mut problems = Vec::new();
    let filter = ForwardFilter::new(&"r".into(), &settings, &mut problems).unwrap();
    assert!(filter.memory.is_none());
    assert!(problems[0].contains("not remembered") && problems[0].contains("lua_thing"));
}

#[test]
fn the_question_says_what_was_asked_for_and_has_no_body() {
    let filter = filter(&settings("http://auth.svc:80/check"));
    let mut head = request();
    for name in ["X-Real-IP", "X-Forwarded-Ssl", "X-Scheme", "Forwarded", "ssl-client-verify"] {
        head.headers.push(name, "6.6.6.6");
    }
    let question = filter.question(&head).unwrap();
    let get = |name: &str| question.headers().get(name).map(|value| value.to_str().unwrap());
    assert_eq!(get("host"), Some("auth.svc:80"));
    assert_eq!(get("x-original-url"), Some("http://shop.org/a?b=c"));
    assert_eq!(get("x-real-ip"), Some("0.0.0.0"));
    assert_eq!(get("cookie"), Some("session=1"));
    for gone in ["content-length", "x-forwarded-ssl", "x-scheme", "forwarded", "ssl-client-verify"]
    {
        assert_eq!(get(gone), None, "{gone}");
    }
}

#[test]
fn names_that_mean_nothing_are_refused() {
    assert!(refused(&settings("http://$lua/")));
    let mut wrong = settings("http://x");
    wrong.method = Some("G T".into());
    assert!(refused(&wrong));
}

#[tokio::test]
async fn a_grant_with_a_long_body_or_one_that_is_late_is_a_grant_all_the_same() {
    let long = format!(
        "HTTP/1.1 200 OK\r\nx-user: anna\r\ncontent-length: {}\r\n\r\n{}",
        BODY_BYTES_MAX + 1,
        "x".repeat(BODY_BYTES_MAX + 1)
    );
    let late = "HTTP/1.1 200 OK\r\nx-user: anna\r\ncontent-length: 5\r\n\r\nhal";
    for answer in [&*long.leak(), late] {
        let (address, _) = server(answer, 9).await;
        let mut settings = settings(&format!("http://{address}/check"));
        settings.timeout = Duration::from_secs(2);
        let granted = ask(&settings, &Answers::default()).await.unwrap();
        assert_eq!(granted.request.get_str("x-user"), Some("anna"), "{answer:.60}");
    }
    let long = format!(
        "HTTP/1.1 403 No\r\ncontent-length: {}\r\n\r\n{}",
        BODY_BYTES_MAX + 1,
        "x".repeat(BODY_BYTES_MAX + 1)
    );
    let (address, _) = server(long.leak(), 9).await;
    let refusal = ask(&settings(&format!("http://{address}/check")), &Answers::default()).await;
    let refusal = refusal.unwrap_err();
    assert_eq!(refusal.head.status, 403);
    assert!(!refusal.body.is_empty() && refusal.body.len() < 1000, "a page of ours");
}

#[tokio::test]
async fn an_answer_does_not_say_where_a_request_ends_or_whom_it_is_for() {
    let answer = "HTTP/1.1 200 OK\r\nx-user: anna\r\nhost: evil\r\ncontent-length: 0\r\n\r\n";
    let (address, _) = server(answer, 9).await;
    let mut settings = settings(&format!("http://{address}/check"));
    settings.response_headers = ["Content-Length", "Host", "Transfer-Encoding", "X-User"]
        .into_iter()
        .map(Arc::from)
        .collect();
    let mut problems = Vec::new();
    let filter = ForwardFilter::new(&"n/i/0/0".into(), &settings, &mut problems).unwrap();
    assert_eq!(problems.len(), 3, "{problems:?}");
    let names: Vec<_> = filter.told_fields().iter().map(|name| &**name).collect();
    assert_eq!(names, ["X-User"]);
    let client = Client::new(&Verify::Off);
    let granted = filter.ask(&request(), &client, &Answers::default()).await.unwrap();
    assert_eq!(granted.request.len(), 1);
}
