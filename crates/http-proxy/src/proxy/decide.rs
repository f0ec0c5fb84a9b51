//! What shall happen to a request.

use std::fmt::Write as _;
use std::sync::Arc;

use http::{Method, StatusCode};

use super::HttpProxy;
use super::believe::believe;
use crate::balance::Peer;
use crate::cache::{KeyParts, Keyed};
use crate::clock;
use crate::error::ErrorKind;
use crate::filter::{Next, Passed};
use crate::head::{Known, RequestHead, ResponseHead, Scheme, cookie};
use crate::reply::Reply;
use crate::router::Compiled;
use crate::table::{Action, Balance, HashKey};
use crate::upstream::Upstream;

/// A request's way to a backend.
#[derive(Debug)]
pub struct Forwarding {
    /// The route, among whose requests it is counted meanwhile.
    pub route: RouteInUse,
    /// The backend.
    pub upstream: Arc<Upstream>,
    /// What the choice of an endpoint goes by, for a hash.
    pub key: u64,
    /// The sticky cookie that the client sent.
    pub sticky: Option<String>,
    /// What the filters let it take along.
    pub passed: Passed,
    /// What the cache knows the request by, if the route has it asked.
    pub keyed: Option<Keyed>,
}

/// A route with a request under way.
#[derive(Debug)]
pub struct RouteInUse(Arc<Compiled>);

impl RouteInUse {
    fn new(route: &Arc<Compiled>) -> Self {
        route.stats.begin();
        Self(Arc::clone(route))
    }
}

impl std::ops::Deref for RouteInUse {
    type Target = Compiled;

    fn deref(&self) -> &Compiled {
        &self.0
    }
}

impl Drop for RouteInUse {
    fn drop(&mut self) {
        self.0.stats.end();
    }
}

/// A request that somebody else has to be asked about.
#[derive(Debug)]
pub struct Asking {
    route: Arc<Compiled>,
    passed: Passed,
}

/// What shall happen to a request.
#[derive(Debug)]
pub enum Decision {
    /// It goes to a backend.
    Forward(Forwarding),
    /// We answer it ourselves, for this route if one was found.
    Reply(Reply, Option<Arc<Compiled>>),
    /// It cannot be served, by this route if one was found.
    Refuse(ErrorKind, Option<Arc<Compiled>>),
    /// Whether it may be served takes time to find out: [`HttpProxy::ask`].
    Ask(Asking),
}

impl HttpProxy {
    /// Decides; the request is rewritten as its backend shall see it. `length` is the body's, if it
    /// was announced.
    pub fn decide(&self, request: &mut RequestHead, length: Option<u64>) -> Decision {
        let trusted = &self.settings().trusted_proxies;
        if !trusted.is_empty() {
            believe(trusted, request);
        }
        if let Some(traces) = &self.traces {
            traces.begin(request);
        }
        if request.path() == "*" {
            return Decision::Reply(options_of_server(), None);
        }
        let router = self.router.load();
        let Some(route) = router.get_backend(request) else {
            return Decision::Refuse(ErrorKind::NoRoute, None);
        };
        let mut passed = Passed::default();
        match route.filters.check(self.filters(), request, &mut passed) {
            Next::Go => self.decide_way(route, request, length, passed),
            Next::Answer(reply) => Decision::Reply(reply, Some(Arc::clone(route))),
            Next::Authorise => Decision::Ask(Asking { route: route.clone(), passed }),
        }
    }

    /// Asks whether a request may be served, and decides then.
    pub async fn ask(
        &self,
        asking: Asking,
        request: &mut RequestHead,
        length: Option<u64>,
    ) -> Decision {
        let Asking { route, mut passed } = asking;
        match route.filters.authorise(self.filters(), request, &mut passed).await {
            Some(reply) => Decision::Reply(reply, Some(route)),
            None => self.decide_way(&route, request, length, passed),
        }
    }

    /// Decides about a request that may be served by a route.
    #[allow(clippy::unused_self)]
    fn decide_way(
        &self,
        route: &Arc<Compiled>,
        request: &mut RequestHead,
        length: Option<u64>,
        passed: Passed,
    ) -> Decision {
        let policy = &route.route.policy;
        if length.zip(policy.body_bytes_max).is_some_and(|(length, max)| length > max) {
            return Decision::Refuse(ErrorKind::BodyTooLarge, Some(Arc::clone(route)));
        }
        match &route.route.action {
            Action::Forward(_) => {}
            Action::Redirect(_) => {
                let own = Some(Arc::clone(route));
                let bad = ErrorKind::Internal("a redirect that cannot be used");
                return match &route.filters.redirect {
                    Some(to) => Decision::Reply(to.reply(request, &route.route.path), own),
                    None => Decision::Refuse(bad, own),
                };
            }
            Action::Respond(fixed) => {
                let status = StatusCode::from_u16(fixed.status).unwrap_or(StatusCode::OK);
                let body = bytes::Bytes::copy_from_slice(fixed.body.as_bytes());
                let mut reply = Reply::with_body(status, &fixed.content_type, body);
                if let Some(retry_after) = &fixed.retry_after {
                    reply = reply.header("retry-after", &**retry_after);
                }
                return Decision::Reply(reply, Some(Arc::clone(route)));
            }
        }
        let Some(upstream) = route.choose(request, clock::chance() as u32) else {
            return Decision::Refuse(ErrorKind::NoEndpoint, Some(Arc::clone(route)));
        };
        let (key, sticky) = pick_by(route, upstream, request);
        let keyed = policy.cache.as_ref().and_then(|_| cache_key(route, upstream, request));
        let forwarding = Forwarding {
            route: RouteInUse::new(route),
            upstream: upstream.clone(),
            key,
            sticky,
            passed,
            keyed,
        };
        if policy.rewrite.is_some()
            && let Some(target) = route.rewritten(request.path())
            && request.rewrite(&target).is_err()
        {
            let bad = ErrorKind::BadRequest("the path leads out of where it is rewritten to");
            return Decision::Refuse(bad, Some(Arc::clone(route)));
        }
        route.filters.edit_request(&forwarding.passed, request);
        Decision::Forward(forwarding)
    }
}

/// `OPTIONS *` asks about the server itself, and that is us.
fn options_of_server() -> Reply {
    Reply::empty(StatusCode::NO_CONTENT)
        .header("allow", "GET, HEAD, POST, PUT, DELETE, OPTIONS, PATCH")
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
fn pick_by(
    route: &Compiled,
    upstream: &Arc<Upstream>,
    request: &RequestHead,
) -> (u64, Option<String>) {
    let settings = upstream.settings();
    let keeper = route.keeper(upstream).settings();
    let sticky = keeper.sticky.as_ref();
    let sticky = sticky.and_then(|sticky| cookie(&request.headers, &sticky.cookie));
    let Balance::Hash(key) = &settings.balance else { return (0, sticky.map(str::to_owned)) };
    let key = match key {
        HashKey::ClientAddress => clock::stable_hash(request.client.address.to_string().as_bytes()),
        HashKey::Header(name) => clock::stable_hash(request.headers.get(name).unwrap_or_default()),
        HashKey::Cookie(name) => {
            clock::stable_hash(cookie(&request.headers, name).unwrap_or_default().as_bytes())
        }
        HashKey::Uri => clock::stable_hash(request.path_and_query().as_bytes()),
        HashKey::Text(text) => clock::stable_hash(text.fill_plain(request).as_bytes()),
    };
    (key, sticky.map(str::to_owned))
}

impl Forwarding {
    /// The last edits of a response that came from this endpoint.
    pub fn edit_response(&self, request: &RequestHead, response: &mut ResponseHead, peer: &Peer) {
        self.route.filters.edit_response(&self.passed, request, response);
        let settings = self.route.keeper(&self.upstream).settings();
        // Who was elsewhere only because its own endpoint failed comes back to it, unless asked otherwise.
        let keeps = |cookie: &str| {
            cookie == peer.cookie()
                || settings.sticky.as_ref().is_some_and(|sticky| !sticky.change_on_failure)
                    && self.upstream.balancer.is_place(cookie)
        };
        if let Some(sticky) = &settings.sticky
            && !self.sticky.as_deref().is_some_and(keeps)
        {
            let cookie = set_cookie(sticky, peer.cookie(), request);
            response.headers.push_known(Known::SetCookie, cookie);
        }
    }

    /// The last edits of a response that came from the cache.
    pub fn edit_stored(&self, request: &RequestHead, response: &mut ResponseHead) {
        self.route.filters.edit_response(&self.passed, request, response);
    }

    /// The same way for a request of our own, which has no client to count.
    pub(super) fn behind(&self) -> Self {
        Self {
            route: RouteInUse::new(&self.route.0),
            upstream: self.upstream.clone(),
            key: self.key,
            sticky: self.sticky.clone(),
            passed: Passed::default(),
            keyed: self.keyed.clone(),
        }
    }

    /// A way of our own to a backend, for a request that its route does not serve.
    pub(super) fn of_our_own(route: &Arc<Compiled>, upstream: &Arc<Upstream>) -> Self {
        Self {
            route: RouteInUse::new(route),
            upstream: Arc::clone(upstream),
            key: 0,
            sticky: None,
            passed: Passed::default(),
            keyed: None,
        }
    }

    /// Its route, to be held on to.
    pub(crate) fn route_held(&self) -> &Arc<Compiled> {
        &self.route.0
    }

    /// Whether the proxy itself found out who asks. What such a request is answered may depend on it.
    pub fn knows_client(&self) -> bool {
        let policy = &self.route.route.policy;
        !policy.auth.is_empty() || policy.client_tls.is_some()
    }

    /// Whether bodies must be streams that somebody looks into, rather than bytes passed on.
    pub fn needs_streams(&self) -> bool {
        let policy = &self.route.route.policy;
        policy.cache.is_some()
            || policy.compress.enabled
            || policy.mirror.is_some()
            || policy.error_backend.is_some()
            || self.upstream.is_multiplexed()
    }

    /// Whether a try may be made again.
    pub fn may_repeat(&self, method: &Method) -> bool {
        method.is_idempotent() || self.route.route.policy.retry.on.non_idempotent
    }
}

fn set_cookie(sticky: &crate::table::Sticky, value: &str, request: &RequestHead) -> String {
    let mut text = format!("{}={value}; Path={}; HttpOnly", sticky.cookie, sticky.path);
    if let Some(domain) = &sticky.domain {
        let _ = write!(text, "; Domain={domain}");
    }
    if let Some(max_age) = sticky.max_age {
        let _ = write!(text, "; Max-Age={}", max_age.as_secs());
    }
    let secure = sticky.secure.unwrap_or(request.scheme == Scheme::Https);
    if secure {
        text += "; Secure";
    }
    // Browsers throw a cookie away that is for all sites and not secure; old ones, any that says so.
    let known = || {
        let browser = request.headers.get_known_str(Known::UserAgent).unwrap_or_default();
        !sticky.same_site_by_browser || knows_same_site_none(browser)
    };
    let same_site = sticky.same_site.as_ref();
    let same_site = same_site.filter(|it| &***it != "None" || (secure && known()));
    if let Some(same_site) = same_site {
        let _ = write!(text, "; SameSite={same_site}");
    }
    text
}

/// Whether a browser knows `SameSite=None`, as ingress-nginx tells them apart.
fn knows_same_site_none(browser: &str) -> bool {
    let is = |part: &str| browser.contains(part);
    let old_chrome = is("Chrome/4") || is("Chrome/5") || is("Chrome/6");
    let old_ios = is("CPU iPhone OS 12") || is("iPad; CPU OS 12");
    let old_safari = is("Macintosh") && is("Intel Mac OS X 10_14") && is("Safari") && !is("Chrome");
    !(old_chrome || old_ios || old_safari)
}
