//! Before anything is answered: the right host, the right origin, a token; and the headers that
//! every answer has.
//!
//! A page of somebody else's must not reach us through a browser here. It cannot send our token, for
//! that is in no cookie; and a name of its own that it lets point to us (DNS rebinding) is refused by
//! the `Host` that the browser sends: an address, `localhost`, or a name that was allowed.

use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http::header::{self, HeaderName, HeaderValue};
use http::{HeaderMap, Method, StatusCode, Uri};

use crate::agent::Agent;
use crate::manage::Manager;
use crate::token::{Reviewed, Tokens};
use crate::values::{Problem, Role};

/// Who may ask, and how.
#[derive(Debug, Default)]
pub struct GuardSettings {
    /// The tokens.
    pub tokens: Tokens,
    /// Names beside `localhost` and addresses by which we may be asked, in lower case.
    pub hosts: Vec<String>,
    /// Whether connections are TLS.
    pub tls: bool,
}

/// Who asks, once that is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Caller {
    pub(crate) name: String,
    pub(crate) role: Role,
    pub(crate) from: IpAddr,
}

/// The client's address, which the server puts with each request.
#[derive(Debug, Clone, Copy)]
pub struct ClientAddress(pub IpAddr);

/// What the guard needs.
pub(crate) struct Guard {
    pub(crate) settings: GuardSettings,
    pub(crate) agent: Arc<dyn Agent>,
    pub(crate) manager: Arc<Manager>,
}

/// The headers of every answer.
const HEADERS: &[(&str, &str)] = &[
    (
        "content-security-policy",
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; \
         font-src 'self'; connect-src 'self'; manifest-src 'self'; base-uri 'none'; \
         form-action 'none'; frame-ancestors 'none'",
    ),
    ("x-content-type-options", "nosniff"),
    ("x-frame-options", "DENY"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-opener-policy", "same-origin"),
    ("cross-origin-resource-policy", "same-origin"),
    ("permissions-policy", "camera=(), microphone=(), geolocation=()"),
];

/// An answer that says no.
pub(crate) fn problem(status: StatusCode, code: &str, message: impl Into<String>) -> Response {
    let problem = Problem { code: code.to_owned(), message: message.into() };
    (status, axum::Json(problem)).into_response()
}

/// Looks at every request, the page's too.
pub(crate) async fn outer(
    State(guard): State<Arc<Guard>>,
    request: Request,
    next: Next,
) -> Response {
    let refused = check_host(&guard.settings, request.headers(), request.uri())
        .err()
        .or_else(|| check_origin(&guard.settings, request.headers()).err());
    let is_api = request.uri().path().starts_with("/api/");
    let mut response = match refused {
        Some(refused) => *refused,
        None => next.run(request).await,
    };
    let headers = response.headers_mut();
    for (name, value) in HEADERS {
        headers.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
    }
    if is_api {
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    }
    response
}

/// Lets in who has a token; everything but reading needs the role admin.
pub(crate) async fn inner(
    State(guard): State<Arc<Guard>>,
    mut request: Request,
    next: Next,
) -> Response {
    let from = request.extensions().get::<ClientAddress>();
    let from = from.map_or(IpAddr::from([0, 0, 0, 0]), |address| address.0);
    let caller = match caller(&guard, request.headers(), from).await {
        Ok(caller) => caller,
        Err(refused) => return *refused,
    };
    let reads = matches!(*request.method(), Method::GET | Method::HEAD);
    if !reads && caller.role < Role::Admin {
        guard.manager.note_forbidden(&caller, request.uri().path());
        return problem(
            StatusCode::FORBIDDEN,
            "forbidden",
            "this token may only look; use the admin's",
        );
    }
    request.extensions_mut().insert(caller);
    next.run(request).await
}

fn check_host(
    settings: &GuardSettings,
    headers: &HeaderMap,
    uri: &Uri,
) -> Result<(), Box<Response>> {
    let host = match headers.get(header::HOST).map(HeaderValue::to_str) {
        Some(Ok(host)) => Some(host),
        Some(Err(_)) => None,
        None => uri.authority().map(http::uri::Authority::as_str),
    };
    let is_one = headers.get_all(header::HOST).iter().count() <= 1;
    let name = host.map(|host| host_name(host).to_ascii_lowercase());
    let known = name.is_some_and(|name| {
        name == "localhost" || is_address(&name) || settings.hosts.contains(&name)
    });
    if is_one && known {
        return Ok(());
    }
    Err(Box::new(problem(
        StatusCode::MISDIRECTED_REQUEST,
        "misdirected",
        "ask by an address or as localhost, or allow the name with --admin-host",
    )))
}

/// The host without its port.
fn host_name(host: &str) -> &str {
    match host.strip_prefix('[') {
        Some(rest) => rest.split_once(']').map_or(host, |(name, _)| name),
        None => host.rsplit_once(':').map_or(host, |(name, _)| name),
    }
}

fn is_address(name: &str) -> bool {
    name.parse::<IpAddr>().is_ok()
}

/// A browser says where a request comes from: only from our own page.
fn check_origin(settings: &GuardSettings, headers: &HeaderMap) -> Result<(), Box<Response>> {
    let text = |name: HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
    let own = text(header::HOST).map(|host| {
        format!("{}://{host}", if settings.tls { "https" } else { "http" }).to_ascii_lowercase()
    });
    let foreign = match headers.get(header::ORIGIN) {
        None => false,
        Some(origin) => {
            let origin = origin.to_str().map(str::to_ascii_lowercase).ok();
            origin.is_none() || origin != own
        }
    };
    let site = text(HeaderName::from_static("sec-fetch-site"));
    if foreign || matches!(site, Some("cross-site" | "same-site")) {
        // A link that somebody follows here is no request of a page's.
        let navigates = text(HeaderName::from_static("sec-fetch-mode")) == Some("navigate");
        if !foreign && navigates {
            return Ok(());
        }
        return Err(Box::new(problem(
            StatusCode::FORBIDDEN,
            "forbidden",
            "only this server's own page may ask from a browser",
        )));
    }
    Ok(())
}

async fn caller(guard: &Guard, headers: &HeaderMap, from: IpAddr) -> Result<Caller, Box<Response>> {
    let tokens = &guard.settings.tokens;
    // Who sends none guesses nothing: nobody is shut out for that.
    let Some(token) = bearer(headers) else { return Err(Box::new(refuse(false))) };
    let known = |(name, role): (String, Role)| Caller { name, role, from };
    if let Some(found) = tokens.check(token) {
        return Ok(known(found));
    }
    if !tokens.review {
        return Err(Box::new(refuse(tokens.failed(from))));
    }
    let answer = match tokens.reviewed(token, from) {
        Reviewed::Said(answer) => answer,
        Reviewed::NotNow => return Err(Box::new(refuse(true))),
        Reviewed::Ask => {
            // Silence says nothing about the token: it is neither kept nor counted as wrong.
            let asked = guard.agent.review(token).await;
            let answer = asked.map_err(|refusal| Box::new(refusal.into_response()))?;
            tokens.remember(token, answer.clone());
            if answer.is_none() {
                return Err(Box::new(refuse(tokens.failed(from))));
            }
            answer
        }
    };
    // The same wrong one again is a page that was left open, and no guess.
    answer.map(known).ok_or_else(|| Box::new(refuse(false)))
}

/// The token of a stream, for it to be looked at again.
#[derive(Clone)]
pub(crate) struct Shown {
    token: String,
    caller: Caller,
}

impl Shown {
    pub(crate) fn of(headers: &HeaderMap, caller: &Caller) -> Self {
        let token = bearer(headers).unwrap_or_default().to_owned();
        Self { token, caller: caller.clone() }
    }
}

/// Whether a token still says who it said. Where the cluster does not say it does not, as for every
/// other request.
pub(crate) async fn still_counts(guard: &Guard, shown: &Shown) -> bool {
    let tokens = &guard.settings.tokens;
    let now = match tokens.check(&shown.token) {
        Some(found) => Some(found),
        None => match tokens.reviewed(&shown.token, shown.caller.from) {
            Reviewed::Said(answer) => answer,
            // It was right when it came: it is no guess.
            Reviewed::Ask | Reviewed::NotNow => {
                let Ok(answer) = guard.agent.review(&shown.token).await else { return false };
                tokens.remember(&shown.token, answer.clone());
                answer
            }
        },
    };
    now.is_some_and(|(name, role)| name == shown.caller.name && role == shown.caller.role)
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = value.split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && token.len() <= crate::token::LENGTH_MAX)
        .then_some(token)
}

fn refuse(too_many: bool) -> Response {
    let (status, code, message) = if too_many {
        let message = "too many wrong tokens came from your address; wait a minute";
        (StatusCode::TOO_MANY_REQUESTS, "too_many", message)
    } else {
        let message = "send a token: Authorization: Bearer TOKEN; it is in the file admin.token \
                       of the agent's state directory";
        (StatusCode::UNAUTHORIZED, "unauthorized", message)
    };
    let mut response = problem(status, code, message);
    let headers = response.headers_mut();
    if too_many {
        headers.insert(header::RETRY_AFTER, HeaderValue::from_static("60"));
    } else {
        headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    response
}
