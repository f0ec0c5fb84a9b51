//! The cache as a whole, with a clock that the tests turn and an origin that they play.

mod behaviour;
mod bounds;
mod safety;

use http::{HeaderName, HeaderValue, Method};

use super::*;
use crate::head::{Headers, ResponseHead, Scheme};
use crate::reply::Reply;
use crate::table::CachePolicy;

const START_S: u64 = 1_800_000_000;

/// A cache, a clock and a route.
struct Bench {
    cache: Cache,
    now: Moment,
    policy: CachePolicy,
}

/// A request.
#[derive(Clone)]
struct Request {
    method: Method,
    scheme: Scheme,
    authority: String,
    path: String,
    query: Option<String>,
    route: String,
    backend: String,
    headers: Headers,
    has_body: bool,
    known: bool,
}

fn get(path: &str) -> Request {
    Request {
        method: Method::GET,
        scheme: Scheme::Https,
        authority: "example.org".into(),
        path: path.into(),
        query: None,
        route: "ns/web/0/0".into(),
        backend: "ns/web:80".into(),
        headers: Headers::new(),
        has_body: false,
        known: false,
    }
}

impl Request {
    fn with(mut self, name: &str, value: &str) -> Self {
        assert!(self.headers.push(name, value));
        self
    }

    fn keyed(&self) -> Keyed {
        let parts = KeyParts {
            scheme: self.scheme,
            authority: &self.authority,
            path: &self.path,
            query: self.query.as_deref(),
            route: &self.route,
            backend: &self.backend,
        };
        Keyed::new(&parts, &self.headers).unwrap()
    }

    fn method(mut self, method: &str) -> Self {
        self.method = Method::from_bytes(method.as_bytes()).unwrap();
        self
    }
}

/// What the origin answers.
#[derive(Clone)]
struct Origin {
    status: u16,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
}

fn origin(control: &str, body: &str) -> Origin {
    Origin { status: 200, headers: vec![], body: body.into() }.with("cache-control", control)
}

impl Origin {
    fn with(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    fn status(mut self, status: u16) -> Self {
        self.status = status;
        self
    }

    fn head(&self) -> ResponseHead {
        let mut head = ResponseHead::new(self.status.try_into().unwrap());
        for (name, value) in &self.headers {
            assert!(head.headers.push(name, value));
        }
        head
    }
}

/// What a client got.
#[derive(Debug)]
struct Got {
    status: u16,
    headers: Headers,
    body: Vec<u8>,
    /// The request as the origin saw it, if it did.
    asked_origin: Option<Headers>,
}

impl Got {
    fn header(&self, name: &str) -> Option<&str> {
        self.headers.get_str(name)
    }

    fn was_cached(&self) -> bool {
        self.asked_origin.is_none()
    }

    fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }
}

impl Bench {
    fn new() -> Self {
        Self::with_limits(CacheLimits::default())
    }

    fn with_limits(limits: CacheLimits) -> Self {
        Self {
            cache: Cache::new(limits),
            now: Moment::at_unix_s(START_S),
            policy: CachePolicy::default(),
        }
    }

    fn wait(&mut self, seconds: u64) {
        self.now = self.now.after(Duration::from_secs(seconds));
    }

    fn lookup(&self, request: &Request) -> Lookup {
        self.cache.lookup(&self.asked(request, &request.keyed()), self.now)
    }

    fn asked<'a>(&'a self, request: &'a Request, keyed: &'a Keyed) -> Asked<'a, Headers> {
        Asked {
            method: &request.method,
            key: Some(keyed),
            headers: &request.headers,
            has_body: request.has_body,
            known: request.known,
            policy: &self.policy,
        }
    }

    /// A request's whole way, with an origin that answers so, or cannot be reached.
    fn ask(&self, request: &Request, origin: Option<&Origin>) -> Got {
        match self.lookup(request) {
            Lookup::Hit(reply) | Lookup::Stale(reply, _) => got(reply, None),
            Lookup::Wait(_) => panic!("nobody else asks"),
            Lookup::Fetch(fetch) => self.fetch(*fetch, request, origin),
        }
    }

    fn fetch(&self, fetch: Fetch, request: &Request, origin: Option<&Origin>) -> Got {
        let mut asked = request.headers.clone();
        fetch.prepare(&mut asked);
        let Some(origin) = origin else {
            let page = || Reply::empty(http::StatusCode::BAD_GATEWAY);
            return got(fetch.failed(self.now).unwrap_or_else(page), Some(asked));
        };
        let mut head = origin.head();
        match fetch.response(&mut head, self.now) {
            Answer::Serve(reply) => got(reply, Some(asked)),
            Answer::Forward(writer) => {
                if let Some(mut writer) = writer {
                    for chunk in origin.body.chunks(3) {
                        writer.push(chunk);
                    }
                    writer.finish(self.now);
                }
                let body =
                    if request.method == Method::HEAD { vec![] } else { origin.body.clone() };
                Got {
                    status: head.status.as_u16(),
                    headers: head.headers,
                    body,
                    asked_origin: Some(asked),
                }
            }
        }
    }

    /// Whether a second request is answered from what the first one's answer left.
    fn keeps(&self, first: &Request, origin: &Origin, second: &Request) -> bool {
        let got = self.ask(first, Some(origin));
        assert!(!got.was_cached(), "the first finds nothing");
        self.ask(second, Some(&super::tests::origin("no-store", "new"))).was_cached()
    }
}

fn got(reply: Reply, asked_origin: Option<Headers>) -> Got {
    let Reply { head, body, .. } = reply;
    Got { status: head.status.as_u16(), headers: head.headers, body: body.to_vec(), asked_origin }
}

/// A date, so many seconds from when the tests begin.
fn date(delta_s: i64) -> String {
    super::date::format(START_S.saturating_add_signed(delta_s))
}

fn name(text: &str) -> HeaderName {
    HeaderName::from_bytes(text.as_bytes()).unwrap()
}

fn value(text: &str) -> HeaderValue {
    HeaderValue::from_str(text).unwrap()
}
