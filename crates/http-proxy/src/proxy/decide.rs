//! What shall happen to a request.

use std::sync::Arc;

use http::{Method, StatusCode};
use ipnet::IpNet;

use super::HttpProxy;
use crate::balance::Peer;
use crate::cache::{KeyParts, Keyed};
use crate::clock;
use crate::error::ErrorKind;
use crate::head::{Known, RequestHead, ResponseHead, Scheme, cookie};
use crate::reply::Reply;
use crate::router::Compiled;
use crate::table::{Action, Balance, HashKey, HeaderEdit, Redirect, TlsRedirect, UpstreamProtocol};
use crate::upstream::Upstream;

/// A request's way to a backend.
#[derive(Debug, Clone)]
pub struct Forwarding {
    /// The route.
    pub route: Arc<Compiled>,
    /// The backend.
    pub upstream: Arc<Upstream>,
    /// What the choice of an endpoint goes by, for a hash.
    pub key: u64,
    /// The sticky cookie that the client sent.
    pub sticky: Option<String>,
    /// What the cache knows the request by, if the route has it asked.
    pub keyed: Option<Keyed>,
}

/// What shall happen to a request.
#[derive(Debug)]
pub enum Decision {
    /// It goes to a backend.
    Forward(Forwarding),
    /// We answer it ourselves.
    Reply(Reply),
    /// It cannot be served.
    Refuse(ErrorKind),
}

impl HttpProxy {
    /// Decides; the request is rewritten as its backend shall see it. `length` is the body's, if it
    /// was announced.
    pub fn decide(&self, request: &mut RequestHead, length: Option<u64>) -> Decision {
        self.believe(request);
        if request.path() == "*" {
            return Decision::Reply(options_of_server());
        }
        let router = self.router.load();
        let Some(route) = router.find(request) else {
            return Decision::Refuse(ErrorKind::NoRoute);
        };
        let policy = &route.route.policy;
        if let Some(reply) = redirect_by_policy(route, request) {
            return Decision::Reply(reply);
        }
        if length.zip(policy.body_bytes_max).is_some_and(|(length, max)| length > max) {
            return Decision::Refuse(ErrorKind::BodyTooLarge);
        }
        match &route.route.action {
            Action::Forward(_) => {}
            Action::Redirect(redirect) => {
                return Decision::Reply(redirect_by_route(redirect, route, request));
            }
            Action::Respond(fixed) => {
                let status = StatusCode::from_u16(fixed.status).unwrap_or(StatusCode::OK);
                let body = bytes::Bytes::copy_from_slice(fixed.body.as_bytes());
                return Decision::Reply(Reply::with_body(status, &fixed.content_type, body));
            }
        }
        let Some(upstream) = route.choose(request, clock::chance() as u32) else {
            return Decision::Refuse(ErrorKind::NoEndpoint);
        };
        let (key, sticky) = pick_by(upstream, request);
        let keyed = policy.cache.as_ref().and_then(|_| cache_key(route, upstream, request));
        let forwarding =
            Forwarding { route: route.clone(), upstream: upstream.clone(), key, sticky, keyed };
        if policy.rewrite.is_some()
            && let Some(path) = route.rewritten(request.path())
        {
            request.set_path(&path);
        }
        edit(&policy.headers.request, &mut request.headers);
        Decision::Forward(forwarding)
    }

    /// Who the client is, if the peer is a proxy that we trust to say so.
    fn believe(&self, request: &mut RequestHead) {
        let trusted = &self.settings().trusted_proxies;
        if trusted.is_empty() {
            return;
        }
        let within =
            |address: &std::net::IpAddr| trusted.iter().any(|net: &IpNet| net.contains(address));
        request.client.trusted = within(&request.client.peer.ip());
        if !request.client.trusted {
            return;
        }
        // From the right, the first that is not one of ours: what stands before it anybody can write.
        let named = request.headers.get_all_known(Known::XForwardedFor);
        let named: Vec<&str> = named.filter_map(|value| std::str::from_utf8(value).ok()).collect();
        let mut address = request.client.address;
        for text in named.iter().rev().flat_map(|value| value.rsplit(',')).take(64) {
            let Ok(named) = text.trim().parse() else { break };
            address = named;
            if !within(&named) {
                break;
            }
        }
        request.client.address = address;
        match request.headers.get_known(Known::XForwardedProto) {
            Some(b"https") => request.scheme = Scheme::Https,
            Some(b"http") => request.scheme = Scheme::Http,
            _ => {}
        }
    }
}

/// `OPTIONS *` asks about the server itself, and that is us.
fn options_of_server() -> Reply {
    Reply::empty(StatusCode::NO_CONTENT)
        .header("allow", "GET, HEAD, POST, PUT, DELETE, OPTIONS, PATCH")
}

/// To https, or from `/` to the application's root.
fn redirect_by_policy(route: &Compiled, request: &RequestHead) -> Option<Reply> {
    let policy = &route.route.policy;
    if let TlsRedirect::On(status) = policy.tls_redirect
        && request.scheme == Scheme::Http
        && !request.authority().is_empty()
    {
        let host =
            request.authority().rsplit_once(':').map_or(request.authority(), |(host, port)| {
                if port.bytes().all(|byte| byte.is_ascii_digit()) {
                    host
                } else {
                    request.authority()
                }
            });
        let location = format!("https://{host}{}", request.path_and_query());
        let status = StatusCode::from_u16(status).unwrap_or(StatusCode::PERMANENT_REDIRECT);
        return Some(Reply::redirect(status, &location));
    }
    let root = policy.app_root.as_ref().filter(|_| request.path() == "/")?;
    let location = if request.authority().is_empty() {
        root.to_string()
    } else {
        format!("{}://{}{root}", request.scheme.as_str(), request.authority())
    };
    Some(Reply::redirect(StatusCode::FOUND, &location))
}

fn redirect_by_route(redirect: &Redirect, route: &Compiled, request: &RequestHead) -> Reply {
    let status = StatusCode::from_u16(redirect.status)
        .ok()
        .filter(StatusCode::is_redirection)
        .unwrap_or(StatusCode::PERMANENT_REDIRECT);
    if let Some(url) = &redirect.url {
        return Reply::redirect(status, url);
    }
    let scheme = redirect.scheme.as_deref().unwrap_or(request.scheme.as_str());
    let host = redirect.host.as_deref().unwrap_or(request.host());
    let host = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
    let default = if scheme == "https" { 443 } else { 80 };
    let own = if redirect.scheme.is_some() { default } else { request.port() };
    let port = match redirect.port.unwrap_or(own) {
        port if port == default => String::new(),
        port => format!(":{port}"),
    };
    let path = redirect.path.as_ref().map(ToString::to_string).or_else(|| {
        let crate::table::PathMatch::Prefix(prefix) = &route.route.path else { return None };
        let new = redirect.replace_prefix.as_ref()?;
        let rest = request.path().strip_prefix(prefix.trim_end_matches('/'))?;
        Some(format!("{}{rest}", new.trim_end_matches('/')))
    });
    let path = path.unwrap_or_else(|| request.path().to_owned());
    let query = request.query().map(|query| format!("?{query}")).unwrap_or_default();
    Reply::redirect(status, &format!("{scheme}://{host}{port}{path}{query}"))
}

/// What the cache knows a request by: as the client asked, before anything is rewritten.
fn cache_key(route: &Compiled, upstream: &Upstream, request: &RequestHead) -> Option<Keyed> {
    let parts = KeyParts {
        scheme: request.scheme,
        authority: request.authority(),
        path: request.path(),
        query: request.query(),
        route: &route.route.id,
        backend: upstream.id().as_str(),
    };
    Keyed::new(&parts, &request.headers).ok()
}

/// What a backend's choice of an endpoint goes by.
fn pick_by(upstream: &Upstream, request: &RequestHead) -> (u64, Option<String>) {
    let settings = upstream.settings();
    let sticky = settings.sticky.as_ref();
    let sticky = sticky.and_then(|sticky| cookie(&request.headers, &sticky.cookie));
    let Balance::Hash(key) = &settings.balance else { return (0, sticky.map(str::to_owned)) };
    let key = match key {
        HashKey::ClientAddress => clock::stable_hash(request.client.address.to_string().as_bytes()),
        HashKey::Header(name) => clock::stable_hash(request.headers.get(name).unwrap_or_default()),
        HashKey::Cookie(name) => {
            clock::stable_hash(cookie(&request.headers, name).unwrap_or_default().as_bytes())
        }
        HashKey::Uri => clock::stable_hash(request.path_and_query().as_bytes()),
    };
    (key, sticky.map(str::to_owned))
}

/// Edits a head's fields.
pub fn edit(edits: &[HeaderEdit], headers: &mut crate::head::Headers) {
    for edit in edits {
        match edit {
            HeaderEdit::Set(name, value) => drop(headers.set(name, value.as_bytes())),
            HeaderEdit::Add(name, value) => drop(headers.push(name.as_bytes(), value.as_bytes())),
            HeaderEdit::Remove(name) => headers.remove(name),
        }
    }
}

impl Forwarding {
    /// The last edits of a response that came from this endpoint.
    pub fn edit_response(&self, _request: &RequestHead, response: &mut ResponseHead, peer: &Peer) {
        let policy = &self.route.route.policy;
        if !policy.headers.response.is_empty() {
            edit(&policy.headers.response, &mut response.headers);
        }
        let settings = self.upstream.settings();
        if let Some(sticky) = &settings.sticky
            && self.sticky.as_deref() != Some(peer.cookie())
        {
            response.headers.push_known(Known::SetCookie, set_cookie(sticky, peer.cookie()));
        }
    }

    /// The last edits of a response that came from the cache.
    pub fn edit_stored(&self, response: &mut ResponseHead) {
        edit(&self.route.route.policy.headers.response, &mut response.headers);
    }

    /// Whether bodies must be streams that somebody looks into, rather than bytes passed on.
    pub fn needs_streams(&self) -> bool {
        let policy = &self.route.route.policy;
        policy.cache.is_some()
            || policy.compress.enabled
            || policy.mirror.is_some()
            || policy.error_backend.is_some()
            || matches!(
                self.upstream.settings().protocol,
                UpstreamProtocol::H2c | UpstreamProtocol::HttpsH2(_)
            )
    }

    /// Whether a try may be made again.
    pub fn may_repeat(&self, method: &Method) -> bool {
        method.is_idempotent() || self.route.route.policy.retry.on.non_idempotent
    }
}

fn set_cookie(sticky: &crate::table::Sticky, value: &str) -> String {
    let mut text = format!("{}={value}; Path={}; HttpOnly", sticky.cookie, sticky.path);
    if let Some(domain) = &sticky.domain {
        text += &format!("; Domain={domain}");
    }
    if let Some(max_age) = sticky.max_age {
        text += &format!("; Max-Age={}", max_age.as_secs());
    }
    if sticky.secure {
        text += "; Secure";
    }
    if let Some(same_site) = &sticky.same_site {
        text += &format!("; SameSite={same_site}");
    }
    text
}
