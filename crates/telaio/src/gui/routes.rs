//! What the ingress worker knows: routes, certificates, requests.

use std::collections::BTreeMap;
use std::time::Instant;

use parking_lot::Mutex;
use telaio_gui::agent::now_ms;
use telaio_gui::values::action::{OverrideItem, Purge};
use telaio_gui::values::ingress::{CertificateItem, RouteBackend, RouteItem, Warning};
use telaio_gui::values::{Counters, Key, State};
use telaio_gui::{Agent as _, HttpFigures, Network, Refusal};
use telaio_http_proxy::watch::snapshot::{
    ActionKind, BOUNDS_US, BackendFigures, CertificateInfo, Figures as RequestFigures, PathKind,
    PurgeWhat, RouteInfo, RouteTable, Stats,
};
use telaio_model::{Override, OverrideTarget};

use super::AdminAgent;
use crate::ingress::{ControlError, IngressControl, IngressState};

/// A certificate that ends within so many seconds is to be looked at.
const EXPIRING_S: i64 = 30 * 86_400;

/// The last figures of the worker and those before, for rates.
#[derive(Default)]
pub(super) struct StatsKept(Mutex<Kept>);

#[derive(Default)]
struct Kept {
    before: Option<(Instant, Stats)>,
    routes: BTreeMap<String, Counters>,
    services: BTreeMap<Key, Counters>,
    endpoints: BTreeMap<(Key, String), Counters>,
}

/// What the worker said.
pub(super) struct Known {
    table: RouteTable,
    certificates: Vec<CertificateInfo>,
    stats: Stats,
}

impl Known {
    /// Asks the worker for all that lists show.
    pub(super) async fn ask(control: &IngressControl, kept: &StatsKept) -> Option<Self> {
        let table = control.routes().await.ok()?;
        let certificates = control.certificates().await.ok()?;
        let stats = control.stats().await.ok()?;
        kept.take(&stats, &table);
        Some(Self { table, certificates, stats })
    }
}

/// The figures of HTTP, if there is a worker that says them.
pub(super) async fn http_figures(ingress: &IngressState) -> Option<HttpFigures> {
    let totals = ingress.control().totals().await.ok()?;
    let all = &totals.all;
    Some(HttpFigures {
        counter: totals.since_unix_ns,
        classes: all.statuses,
        durations: all.durations.to_vec(),
        bounds_us: BOUNDS_US.to_vec(),
        connections: totals.connections,
        active: all.in_flight,
        cache_hits: totals.cache.hits + totals.cache.stale_hits,
        cache_misses: totals.cache.misses,
        cache_entries: totals.cache.entries,
        cache_bytes: totals.cache.bytes,
        worker_restarts: ingress.restarts(),
    })
}

#[expect(clippy::cast_precision_loss, reason = "figures for eyes")]
fn float(count: u64) -> f64 {
    count as f64
}

fn counters(now: &RequestFigures, before: Option<&RequestFigures>, span_s: f64) -> Counters {
    let since = before.map_or_else(RequestFigures::default, |before| now.since(before));
    let asked = now.cache_hits + now.cache_stale + now.cache_misses;
    let ms = |per_mille| {
        // Over the last interval if there was traffic, else since the start.
        let recent = since.quantile_us(per_mille).or_else(|| now.quantile_us(per_mille));
        recent.map(|us| float(us) / 1000.0)
    };
    Counters {
        requests: now.requests(),
        errors: now.statuses[4],
        rate: per_s(since.requests(), span_s),
        error_rate: per_s(since.statuses[4], span_s),
        active: Some(now.in_flight),
        p50_ms: ms(500),
        p99_ms: ms(990),
        cache_hit_share: (asked > 0)
            .then(|| float(now.cache_hits + now.cache_stale) / float(asked)),
    }
}

fn per_s(count: u64, span_s: f64) -> f64 {
    if span_s > 0.0 { float(count) / span_s } else { 0.0 }
}

impl StatsKept {
    /// Takes new figures; the services of backends come from the table.
    fn take(&self, stats: &Stats, table: &RouteTable) {
        let mut kept = self.0.lock();
        let now = Instant::now();
        let same =
            |before: &(Instant, Stats)| before.1.totals.since_unix_ns == stats.totals.since_unix_ns;
        let before = kept.before.take().filter(same);
        let span_s = before.as_ref().map_or(0.0, |it| now.duration_since(it.0).as_secs_f64());
        let routes_before: BTreeMap<&str, &RequestFigures> = before
            .iter()
            .flat_map(|(_, it)| &it.routes)
            .map(|it| (it.route.as_str(), &it.figures))
            .collect();
        kept.routes = stats
            .routes
            .iter()
            .map(|it| {
                let before = routes_before.get(it.route.as_str()).copied();
                (it.route.clone(), counters(&it.figures, before, span_s))
            })
            .collect();
        let mut service_of: BTreeMap<&str, Key> = BTreeMap::new();
        for target in table.routes.iter().flat_map(|route| &route.targets) {
            let key = Key::new(&*target.namespace, &*target.service);
            service_of.entry(&target.backend).or_insert(key);
        }
        let backends_before: BTreeMap<&str, &BackendFigures> = before
            .iter()
            .flat_map(|(_, it)| &it.backends)
            .map(|it| (it.backend.as_str(), it))
            .collect();
        (kept.services, kept.endpoints) = (BTreeMap::new(), BTreeMap::new());
        for backend in &stats.backends {
            let Some(service) = service_of.get(backend.backend.as_str()) else { continue };
            let past = backends_before.get(backend.backend.as_str());
            for endpoint in &backend.endpoints {
                let past = past
                    .and_then(|it| it.endpoints.iter().find(|it| it.address == endpoint.address));
                let since = |now: u64, then: Option<u64>| now.saturating_sub(then.unwrap_or(now));
                let more = Counters {
                    requests: endpoint.requests,
                    errors: endpoint.failures,
                    rate: per_s(since(endpoint.requests, past.map(|it| it.requests)), span_s),
                    error_rate: per_s(since(endpoint.failures, past.map(|it| it.failures)), span_s),
                    active: Some(u64::from(endpoint.in_flight)),
                    p50_ms: (endpoint.latency_us > 0).then(|| float(endpoint.latency_us) / 1000.0),
                    p99_ms: None,
                    cache_hit_share: None,
                };
                let address = match endpoint.address.rsplit_once(':') {
                    Some((ip, _)) => ip.trim_matches(['[', ']']).to_owned(),
                    None => endpoint.address.clone(),
                };
                add(kept.services.entry(service.clone()).or_default(), &more, false);
                add(kept.endpoints.entry((service.clone(), address)).or_default(), &more, true);
            }
        }
        kept.before = Some((now, stats.clone()));
    }

    pub(super) fn of_service(&self, key: &Key) -> Option<Counters> {
        self.0.lock().services.get(key).copied()
    }

    pub(super) fn of_endpoint(&self, key: &Key, address: &str) -> Option<Counters> {
        self.0.lock().endpoints.get(&(key.clone(), address.to_owned())).copied()
    }
}

fn add(to: &mut Counters, more: &Counters, with_latency: bool) {
    to.requests += more.requests;
    to.errors += more.errors;
    to.rate += more.rate;
    to.error_rate += more.error_rate;
    to.active = Some(to.active.unwrap_or(0) + more.active.unwrap_or(0));
    if with_latency {
        to.p50_ms = to.p50_ms.or(more.p50_ms);
    }
}

impl AdminAgent {
    /// Has the cache forget, or only counts what it would.
    pub(super) async fn purge_cache(&self, what: &Purge, counts: bool) -> Result<u64, Refusal> {
        let Some(ingress) = self.monitor.ingress() else {
            return Err(Refusal::Unavailable(
                "no ingress runs here; it is a plane of telaio run (--planes ingress)".to_owned(),
            ));
        };
        let what = match what {
            Purge::Key(url) => PurgeWhat::Url(url.clone()),
            Purge::Prefix(prefix) => PurgeWhat::Prefix(prefix.clone()),
            Purge::Host(host) => PurgeWhat::Host(host.clone()),
        };
        let control = ingress.control();
        let done = if counts { control.count(what).await } else { control.purge(what).await };
        done.map_err(|error| match error {
            ControlError::Refused(why) => Refusal::Bad(why),
            other => Refusal::Unavailable(other.to_string()),
        })
    }

    pub(super) fn add_routes(&self, network: &mut Network, known: Option<&Known>) {
        let Some(Known { table, certificates, stats }) = known else { return };
        let now_s = now_ms() / 1000;
        network.certificates = certificates.iter().map(|it| certificate(it, now_s)).collect();
        network.certificates.sort_by_key(|it| it.not_after_ms);
        let pauses: Vec<_> = self.overrides();
        let pauses: Vec<&Override> =
            pauses.iter().map(|it| &**it).filter(|it| it.is_about_routes()).collect();
        let mut warnings: BTreeMap<&str, Vec<Warning>> = BTreeMap::new();
        for it in &table.warnings {
            let of = Warning { reason: it.reason.clone(), message: it.message.clone() };
            warnings.entry(&it.ingress).or_default().push(of);
        }
        let ready = |backend: &str| {
            let found = stats.backends.iter().find(|it| it.backend == backend);
            let all = found.map_or(&[][..], |it| &it.endpoints);
            (all.iter().filter(|it| !it.draining && it.healthy && !it.ejected).count(), all.len())
        };
        for info in &table.routes {
            let ingress = Key::new(&*info.namespace, &*info.ingress);
            let warnings = warnings.get(ingress.to_string().as_str()).cloned().unwrap_or_default();
            let pause = pauses.iter().find(|it| pauses_route(it, info));
            let counters = self.stats.0.lock().routes.get(&info.id).copied();
            network.routes.push(route(info, ingress, warnings, pause.copied(), counters, ready));
        }
        let names: Vec<(String, String)> = network
            .certificates
            .iter()
            .flat_map(|it| it.hosts.iter().map(|host| (host.clone(), it.id.clone())))
            .collect();
        for route in &mut network.routes {
            route.certificate =
                names.iter().find(|(host, _)| *host == route.host).map(|(_, id)| id.clone());
        }
    }
}

/// Whether a decision is about this route.
fn pauses_route(decided: &Override, info: &RouteInfo) -> bool {
    let OverrideTarget::Routes { host, path } = &decided.target else { return false };
    let any = |host: &str| if host == "*" { String::new() } else { host.to_ascii_lowercase() };
    *decided.object.namespace == *info.namespace
        && *decided.object.name == *info.ingress
        && host.as_deref().is_none_or(|host| any(host) == any(&info.host))
        && path.as_deref().is_none_or(|path| {
            path == info.path || info.path.strip_prefix("(?i)^").is_some_and(|it| it == path)
        })
}

fn route(
    info: &RouteInfo,
    ingress: Key,
    warnings: Vec<Warning>,
    pause: Option<&Override>,
    counters: Option<Counters>,
    ready: impl Fn(&str) -> (usize, usize),
) -> RouteItem {
    let backends: Vec<RouteBackend> = info
        .targets
        .iter()
        .map(|target| {
            let (ready, total) = ready(&target.backend);
            RouteBackend {
                service: Key::new(&*target.namespace, &*target.service),
                port: target.port.clone(),
                weight: target.weight,
                ready,
                total,
                canary: target.canary,
            }
        })
        .collect();
    let action = match (pause, info.action) {
        (Some(_), _) => "paused",
        (None, ActionKind::Forward) => "forward",
        (None, ActionKind::Redirect) => "redirect",
        (None, ActionKind::Respond) => "respond",
    };
    let nobody = action == "forward" && backends.iter().all(|backend| backend.ready == 0);
    let features = [
        (info.tls, "tls"),
        (info.tls_redirect, "tls redirect"),
        (info.cache, "cache"),
        (info.compress, "compression"),
        (info.auth, "authentication"),
    ];
    RouteItem {
        id: info.id.clone(),
        host: if info.host == "*" { String::new() } else { info.host.clone() },
        path: info.path.clone(),
        path_type: match info.path_kind {
            PathKind::Exact => "exact",
            PathKind::Prefix => "prefix",
            PathKind::Regex => "regex",
        }
        .to_owned(),
        matches: Vec::new(),
        action: action.to_owned(),
        action_text: match (pause, nobody) {
            (Some(_), _) => "503 with a maintenance page".to_owned(),
            (None, true) => "503: no endpoint is ready".to_owned(),
            (None, false) => String::new(),
        },
        state: match () {
            () if nobody => State::Error,
            () if !warnings.is_empty() || pause.is_some() => State::Warning,
            () => State::Ok,
        },
        features: features.iter().filter(|(on, _)| *on).map(|(_, it)| (*it).to_owned()).collect(),
        backends,
        warnings,
        certificate: None,
        paused: pause.map(|it| OverrideItem::of(it, 1)),
        counters,
        ingress,
    }
}

fn certificate(info: &CertificateInfo, now_s: i64) -> CertificateItem {
    let left = info.not_after_s - now_s;
    let (state, text) = match () {
        () if info.secret.is_none() => (State::Idle, "made by telaio itself; browsers refuse it"),
        () if left <= 0 => (State::Error, "it has ended"),
        () if info.not_before_s > now_s => (State::Error, "it does not hold yet"),
        () if left < EXPIRING_S => (State::Warning, "it ends within 30 days"),
        () => (State::Ok, ""),
    };
    CertificateItem {
        id: info.secret.clone().unwrap_or_else(|| "self-signed".to_owned()),
        hosts: info.hosts.clone(),
        names: info.names.clone(),
        issuer: info.issuer.clone(),
        not_before_ms: Some(info.not_before_s.saturating_mul(1000)),
        not_after_ms: Some(info.not_after_s.saturating_mul(1000)),
        expires_in_s: Some(left),
        state,
        state_text: text.to_owned(),
        default: info.default,
    }
}
