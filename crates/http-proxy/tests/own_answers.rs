//! What the proxy answers by itself has the fields that a route's answers have: a browser shows its
//! page nothing of a refusal without those of CORS. Over HTTP/1.1 and HTTP/2.

#![allow(clippy::expect_used, reason = "in a test it is the assertion")]

mod h2_support;
mod support;

use std::time::Duration;

use bytes::Bytes;
use h2_support::{Proxy, connect, proxy, read, request};
use http::Method;
use support::{BACKEND, Backend, read_response, status};
use telaio_http_proxy::table::{
    Auth, Backend as BackendSpec, BasicAuth, Cors, Endpoint, HeaderEdit, Policy, RateLimit,
    Timeouts, TlsRedirect,
};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};

const PAGE: &str = "https://app.example";

/// What all routes here have: answers for one page, and a field of their own.
fn policy() -> Policy {
    let mut policy = Policy {
        cors: Some(Cors {
            origins: vec![PAGE.into()],
            methods: vec!["GET".into(), "PUT".into()],
            headers: Vec::new(),
            expose_headers: Vec::new(),
            credentials: true,
            max_age: Duration::from_mins(1),
        }),
        ..Policy::default()
    };
    policy.headers.response = vec![HeaderEdit::Set("x-frame-options".into(), "DENY".into())];
    policy
}

fn spec(endpoints: Vec<Endpoint>) -> BackendSpec {
    BackendSpec::new(BACKEND, endpoints)
}

/// What is asked of a route, and the status that it comes to.
struct Case {
    name: &'static str,
    policy: Policy,
    backend: BackendSpec,
    path: &'static str,
    method: Method,
    body: &'static [u8],
    status: u16,
    /// Requests before it.
    before: usize,
}

impl Case {
    fn new(name: &'static str, policy: Policy, backend: &BackendSpec, status: u16) -> Self {
        let backend = backend.clone();
        let (path, method) = ("/hello", Method::GET);
        Self { name, policy, backend, path, method, body: b"", status, before: 0 }
    }

    fn cases(backend: &Backend, gone: std::net::SocketAddr) -> Vec<Self> {
        let alive = spec(vec![Endpoint::at(backend.address)]);
        let rate =
            RateLimit { requests: 1, per: Duration::from_hours(1), burst: 0, except: Vec::new() };
        let basic = Auth::Basic(BasicAuth { realm: "r".into(), users: Vec::new() });
        let slow = Timeouts { response_header: Duration::from_millis(200), ..Timeouts::default() };
        let mut retry_never = policy();
        retry_never.retry.tries = 1;
        let small = Policy { body_bytes_max: Some(4), ..policy() };
        vec![
            Self::new("401", Policy { auth: vec![basic], ..policy() }, &alive, 401),
            Self::new(
                "403",
                Policy { auth: vec![Auth::Deny("x".into())], ..policy() },
                &alive,
                403,
            ),
            Self {
                before: 1,
                ..Self::new("429", Policy { rates: vec![rate], ..policy() }, &alive, 429)
            },
            Self { method: Method::PUT, body: b"12345", ..Self::new("413", small, &alive, 413) },
            Self::new("502", policy(), &spec(vec![Endpoint::at(gone)]), 502),
            Self::new("503", policy(), &spec(Vec::new()), 503),
            Self {
                path: "/slow?30000",
                ..Self::new("504", Policy { timeouts: slow, ..retry_never }, &alive, 504)
            },
            Self::new(
                "308",
                Policy { tls_redirect: TlsRedirect::On(308), ..policy() },
                &alive,
                308,
            ),
            Self::new("200", policy(), &alive, 200),
        ]
    }

    fn h1(&self) -> String {
        let length = if self.body.is_empty() {
            String::new()
        } else {
            format!("Content-Length: {}\r\n", self.body.len())
        };
        format!(
            "{} {} HTTP/1.1\r\nHost: a.example\r\nOrigin: {PAGE}\r\n{length}\r\n{}",
            self.method,
            self.path,
            String::from_utf8_lossy(self.body),
        )
    }

    async fn by_h1(&self, proxy: &Proxy) {
        let mut answer = String::new();
        for _ in 0..=self.before {
            let mut stream = TcpStream::connect(proxy.plain).await.expect("connect");
            stream.write_all(self.h1().as_bytes()).await.expect("write");
            answer = read_response(&mut stream).await.to_ascii_lowercase();
        }
        assert_eq!(status(&answer), self.status, "{}: {answer}", self.name);
        let told = [
            format!("\r\naccess-control-allow-origin: {PAGE}\r\n"),
            "\r\naccess-control-allow-credentials: true\r\n".to_owned(),
            "\r\nvary: origin\r\n".to_owned(),
            "\r\nx-frame-options: deny\r\n".to_owned(),
        ];
        for field in told {
            assert_eq!(answer.matches(&field).count(), 1, "{} {field}: {answer}", self.name);
        }
    }

    async fn by_h2(&self, proxy: &Proxy) {
        let mut send = connect(proxy.plain).await;
        let mut answer = None;
        for _ in 0..=self.before {
            let mut asked = request(self.method.clone(), self.path);
            asked.headers_mut().insert("origin", PAGE.parse().expect("value"));
            if !self.body.is_empty() {
                asked.headers_mut().insert("content-length", self.body.len().into());
            }
            let (response, mut body) =
                send.send_request(asked, self.body.is_empty()).expect("send");
            if !self.body.is_empty() {
                let _ = body.send_data(Bytes::from_static(self.body), true);
            }
            answer = Some(read(response.await.expect("response")).await.expect("body"));
        }
        let answer = answer.expect("an answer");
        assert_eq!(answer.status, self.status, "{}", self.name);
        for (name, value) in [
            ("access-control-allow-origin", PAGE),
            ("access-control-allow-credentials", "true"),
            ("vary", "Origin"),
            ("x-frame-options", "DENY"),
        ] {
            let all: Vec<_> = answer.headers.get_all(name).iter().collect();
            assert_eq!(all, [value], "{} {name}: {:?}", self.name, answer.headers);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_answer_of_ours_has_the_fields_of_its_route() {
    let backend = Backend::start().await;
    let gone = TcpListener::bind("127.0.0.1:0").await.expect("bind");
    let gone_at = gone.local_addr().expect("address");
    drop(gone);
    for case in Case::cases(&backend, gone_at) {
        // One proxy each: a rate is counted for both.
        let new = || proxy(case.backend.clone(), case.policy.clone(), &[]);
        case.by_h1(&new()).await;
        case.by_h2(&new()).await;
        // And where bodies are streams.
        let mut streamed = case.policy.clone();
        streamed.compress.enabled = true;
        if case.name != "200" {
            case.by_h1(&proxy(case.backend.clone(), streamed, &[])).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_browsers_question_is_answered_once_and_whole() {
    let backend = Backend::start().await;
    let proxy = proxy(spec(vec![Endpoint::at(backend.address)]), policy(), &[]);
    let mut stream = TcpStream::connect(proxy.plain).await.expect("connect");
    let question = format!(
        "OPTIONS / HTTP/1.1\r\nHost: a.example\r\nOrigin: {PAGE}\r\n\
         Access-Control-Request-Method: PUT\r\n\r\n"
    );
    stream.write_all(question.as_bytes()).await.expect("write");
    let answer = read_response(&mut stream).await.to_ascii_lowercase();
    assert_eq!(status(&answer), 204, "{answer}");
    let once = ["allow-origin: https://app.example", "allow-methods: get, put", "max-age: 60"];
    for field in once.map(|it| format!("\r\naccess-control-{it}\r\n")) {
        assert_eq!(answer.matches(&field).count(), 1, "{field}: {answer}");
    }
    assert_eq!(answer.matches("\r\nvary:").count(), 1, "{answer}");
    assert_eq!(answer.matches("\r\nx-frame-options:").count(), 1, "{answer}");
    assert!(backend.seen().is_empty());
}
