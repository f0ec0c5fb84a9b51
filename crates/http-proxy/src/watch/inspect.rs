//! Takes [snapshots](super::snapshot) of a proxy that runs. What is taken in pieces is taken so that
//! whoever passes them on can do so piece by piece; nothing here holds up a request.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;

use super::snapshot::{
    ActionKind, BackendFigures, CacheFigures, CertificateInfo, EndpointFigures, PathKind,
    PurgeWhat, RouteFigures, RouteInfo, Target, Totals, WarningInfo,
};
use crate::cache::{Purge, PurgeError};
use crate::clock;
use crate::proxy::HttpProxy;
use crate::router::Compiled;
use crate::table::{
    Action, CanaryRule, EndpointAddress, Fixed, HeaderEdits, HostMatch, PathMatch, Policy,
    TlsRedirect,
};
use crate::upstream::Upstream;

/// So long a fixed answer is shown, not only its length.
const FIXED_SHOWN_MAX: usize = 80;

/// Looks at a proxy.
#[derive(Debug)]
pub struct Inspector {
    proxy: Arc<HttpProxy>,
    since_unix_ns: u64,
    warnings: Mutex<BTreeMap<String, Vec<(String, String)>>>,
}

impl Inspector {
    /// Of this proxy, which begins to count now.
    pub fn new(proxy: Arc<HttpProxy>) -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let since_unix_ns = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX);
        Self { proxy, since_unix_ns, warnings: Mutex::default() }
    }

    /// An Ingress's warnings, reason and message each, are now these.
    pub fn set_warnings(&self, ingress: String, warnings: Vec<(String, String)>) {
        let mut all = self.warnings.lock();
        if warnings.is_empty() {
            all.remove(&ingress);
        } else {
            all.insert(ingress, warnings);
        }
    }

    /// Figures of the whole.
    pub fn totals(&self) -> Totals {
        let proxy = &self.proxy;
        let stats = proxy.stats();
        let router = proxy.router();
        let unrouted = stats.unrouted.read();
        let mut all = unrouted.clone();
        all.add(&stats.gone());
        router.routes().for_each(|route| all.add(&route.stats.read()));
        let (log_lines_dropped, spans_dropped) = proxy.dropped();
        Totals {
            since_unix_ns: self.since_unix_ns,
            all,
            unrouted,
            connections: stats.connections.load(Relaxed) as u64,
            connections_accepted: stats.accepted.load(Relaxed),
            connections_refused: stats.refused.load(Relaxed),
            cache: self.cache(),
            routes: router.len() as u64,
            backends: proxy.upstreams().all().len() as u64,
            log_lines_dropped,
            spans_dropped,
            mirrors_dropped: proxy.filters().mirrors.dropped(),
        }
    }

    fn cache(&self) -> CacheFigures {
        let bytes_max = self.proxy.settings().cache.bytes_max;
        let Some(cache) = self.proxy.cache_in_use() else {
            return CacheFigures { bytes_max, ..CacheFigures::default() };
        };
        let stats = cache.stats();
        CacheFigures {
            hits: stats.hits,
            stale_hits: stats.stale_hits,
            misses: stats.misses,
            validations: stats.validations,
            bypasses: stats.bypasses,
            collapsed: stats.collapsed,
            stored: stats.stored,
            entries: stats.uris,
            bytes: stats.bytes,
            bytes_max,
        }
    }

    /// Figures by route, for each that was asked for at least once.
    pub fn routes_figures(&self) -> impl Iterator<Item = RouteFigures> + use<> {
        let router = self.proxy.router();
        let all: Vec<Arc<Compiled>> = router.routes().cloned().collect();
        all.into_iter().filter_map(|route| {
            let figures = route.stats.read();
            (figures.requests() + figures.in_flight > 0).then(|| RouteFigures {
                route: route.route.id.to_string(),
                ingress: route.route.age.name.to_string(),
                figures,
            })
        })
    }

    /// Figures by backend.
    pub fn backends(&self) -> impl Iterator<Item = BackendFigures> + use<> {
        let now = clock::nanos(Instant::now());
        self.proxy.upstreams().all().into_iter().map(move |upstream| backend(&upstream, now))
    }

    /// The routes in force, by host and path.
    pub fn routes(&self) -> impl Iterator<Item = RouteInfo> + use<> {
        let router = self.proxy.router();
        let mut all: Vec<Arc<Compiled>> = router.routes().cloned().collect();
        all.sort_by(|one, other| {
            let place = |it: &Compiled| (it.route.host.clone(), it.route.path.clone());
            place(one).cmp(&place(other)).then_with(|| one.route.id.cmp(&other.route.id))
        });
        let warned: BTreeMap<String, usize> =
            self.warnings.lock().iter().map(|(key, list)| (key.clone(), list.len())).collect();
        let proxy = Arc::clone(&self.proxy);
        all.into_iter().map(move |route| {
            let warnings = warned.get(&*route.route.age.name).copied().unwrap_or(0);
            RouteInfo {
                warnings: u32::try_from(warnings).unwrap_or(u32::MAX),
                tls: has_tls(&proxy, &route.route.host),
                ..route_info(&route)
            }
        })
    }

    /// What the writers of Ingresses should know.
    pub fn warnings(&self) -> Vec<WarningInfo> {
        let all = self.warnings.lock();
        let each = all.iter().flat_map(|(ingress, list)| {
            list.iter().map(|(reason, message)| WarningInfo {
                ingress: ingress.clone(),
                reason: reason.clone(),
                message: message.clone(),
            })
        });
        each.collect()
    }

    /// The certificates that are served.
    pub fn certificates(&self) -> Vec<CertificateInfo> {
        self.proxy.tls().map(|tls| tls.store().certificates()).unwrap_or_default()
    }

    /// Takes things out of the cache; how many URLs.
    pub fn purge(&self, what: &PurgeWhat) -> Result<u64, PurgeError> {
        // A cache that is not in use is empty, but what cannot be purged is told all the same.
        Ok(self.proxy.cache().purge(&purge_of(what))? as u64)
    }

    /// How many URLs that would take out now.
    pub fn count(&self, what: &PurgeWhat) -> Result<u64, PurgeError> {
        Ok(self.proxy.cache().count(&purge_of(what))? as u64)
    }
}

fn purge_of(what: &PurgeWhat) -> Purge {
    match what {
        PurgeWhat::Url(url) => Purge::Url(url.clone()),
        PurgeWhat::Prefix(prefix) => Purge::Prefix(prefix.clone()),
        PurgeWhat::Host(host) => Purge::Host(host.clone()),
        PurgeWhat::All => Purge::All,
    }
}

fn backend(upstream: &Upstream, now_ns: u64) -> BackendFigures {
    let endpoints = upstream.balancer.get_backends();
    let endpoints = endpoints.iter().map(|peer| EndpointFigures {
        address: address_text(peer.address()),
        weight: peer.weight(),
        draining: !peer.takes_new(),
        requests: peer.requests(),
        failures: peer.failures(),
        server_errors: peer.server_errors(),
        latencies: match peer.latencies() {
            none if none.iter().all(|count| *count == 0) => Vec::new(),
            some => some.to_vec(),
        },
        in_flight: peer.in_flight(),
        idle_connections: peer.pool.len(),
        latency_us: peer.latency().as_micros().try_into().unwrap_or(u64::MAX),
        ejected: peer.is_ejected(now_ns),
        healthy: peer.is_healthy(),
    });
    BackendFigures {
        backend: upstream.id().to_string(),
        connections: upstream.connections(),
        pending: upstream.pending(),
        endpoints: endpoints.collect(),
    }
}

pub(super) fn address_text(address: &EndpointAddress) -> String {
    match address {
        EndpointAddress::Socket(address) => address.to_string(),
        EndpointAddress::Name(name, port) => format!("{name}:{port}"),
    }
}

fn has_tls(proxy: &HttpProxy, host: &HostMatch) -> bool {
    let Some(tls) = proxy.tls() else { return false };
    match host {
        HostMatch::Any => false,
        HostMatch::Exact(host) => {
            tls.store().find_own(host).is_some() || tls.passes_through(host, |_| true).is_some()
        }
        // Any label will do where a wildcard is asked for.
        HostMatch::Wildcard(suffix) => tls.store().find_own(&format!("*{suffix}")).is_some(),
    }
}

fn target(id: &str, weight: u32, canary: bool) -> Target {
    // `namespace/service:port`, and perhaps `~` with what tells manners of speaking apart.
    let plain = id.split('~').next().unwrap_or(id);
    let (namespace, rest) = plain.split_once('/').unwrap_or(("", plain));
    let (service, port) = rest.rsplit_once(':').unwrap_or((rest, ""));
    Target {
        backend: id.to_owned(),
        namespace: namespace.to_owned(),
        service: service.to_owned(),
        port: port.to_owned(),
        weight,
        canary,
        condition: String::new(),
    }
}

/// What a fixed answer says, in a line.
fn fixed_text(fixed: &Fixed) -> String {
    let plain = fixed.content_type.starts_with("text/plain") && fixed.body.len() <= FIXED_SHOWN_MAX;
    let said = match () {
        () if fixed.body.trim().is_empty() => String::new(),
        () if plain => format!(": {}", fixed.body.trim()),
        () => format!(" with {} bytes of {}", fixed.body.len(), fixed.content_type),
    };
    let after = fixed.retry_after.as_ref().map(|it| format!(", Retry-After: {it}"));
    format!("{}{said}{}", fixed.status, after.unwrap_or_default())
}

/// When a request goes to a canary: what is asked first, first.
fn canary_text(rule: &CanaryRule) -> String {
    let mut all = Vec::new();
    if let Some(name) = &rule.header {
        all.push(match (&rule.header_value, &rule.header_pattern) {
            (Some(value), _) => format!("header {name}: {value}"),
            (None, Some(pattern)) => format!("header {name} matches {pattern}"),
            (None, None) => format!("header {name}: always"),
        });
    }
    all.extend(rule.cookie.as_ref().map(|name| format!("cookie {name}: always")));
    if rule.weight > 0 {
        all.push(format!("{} of {}", rule.weight, rule.weight_total));
    }
    if all.is_empty() { "never".to_owned() } else { all.join(", else ") }
}

/// What a policy does that [`RouteInfo`] has no field for.
fn features(policy: &Policy) -> Vec<String> {
    let all = [
        (!policy.sources.allow.is_empty(), "allow-list"),
        (!policy.sources.deny.is_empty(), "deny-list"),
        (!policy.rates.is_empty(), "rate limit"),
        (policy.connections_max.is_some(), "connection limit"),
        (policy.rewrite.is_some(), "rewrite"),
        (policy.app_root.is_some(), "app root"),
        (policy.upstream_host.is_some(), "other host"),
        (policy.cors.is_some(), "CORS"),
        (policy.headers != HeaderEdits::default(), "header edits"),
        (policy.mirror.is_some(), "mirror"),
        (policy.error_backend.is_some(), "error pages"),
        (policy.log_off, "not logged"),
    ];
    all.iter().filter(|(on, _)| *on).map(|(_, name)| (*name).to_owned()).collect()
}

fn route_info(compiled: &Compiled) -> RouteInfo {
    let route = &compiled.route;
    let policy = &route.policy;
    let (path, path_kind) = match &route.path {
        PathMatch::Exact(path) => (path, PathKind::Exact),
        PathMatch::Prefix(path) => (path, PathKind::Prefix),
        PathMatch::Regex(path) => (path, PathKind::Regex),
    };
    let (action, leads, action_text) = match &route.action {
        Action::Forward(all) => (ActionKind::Forward, &all[..], String::new()),
        Action::Redirect(redirect) => (ActionKind::Redirect, &[][..], redirect.to_string()),
        Action::Respond(fixed) => (ActionKind::Respond, &fixed.instead_of[..], fixed_text(fixed)),
    };
    let mut targets: Vec<Target> =
        leads.iter().map(|own| target(own.backend.as_str(), own.weight, false)).collect();
    let paused = matches!(&route.action, Action::Respond(fixed) if fixed.status == 503);
    targets.extend(policy.canary.iter().map(|rule| Target {
        condition: canary_text(rule),
        ..target(rule.backend.as_str(), rule.weight, true)
    }));
    let (namespace, name) = route.age.name.split_once('/').unwrap_or(("", &route.age.name));
    RouteInfo {
        id: route.id.to_string(),
        host: route.host.to_string(),
        path: path.to_string(),
        path_kind,
        matches: route.also.iter().map(ToString::to_string).collect(),
        action_text,
        features: features(policy),
        namespace: namespace.to_owned(),
        ingress: name.to_owned(),
        action,
        targets,
        tls: false,
        tls_redirect: policy.tls_redirect != TlsRedirect::Off,
        cache: policy.cache.is_some(),
        compress: policy.compress.enabled,
        auth: !policy.auth.is_empty() || policy.client_tls.is_some(),
        paused,
        warnings: 0,
    }
}
