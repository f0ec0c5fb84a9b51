//! What the ingress worker knows: routes, certificates, requests.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use telaio_gui::agent::now_ms;
use telaio_gui::values::action::{OverrideItem, Purge};
use telaio_gui::values::ingress::{CertificateItem, RouteBackend, RouteItem, Warning};
use telaio_gui::values::{Counters, Key, Stale, State};
use telaio_gui::{Agent as _, HttpFigures, Network, Refusal};
use telaio_http_proxy::watch::snapshot::{
    ActionKind, BOUNDS_US, BackendFigures, CertificateInfo, EndpointFigures,
    Figures as RequestFigures, PathKind, PurgeWhat, RouteInfo, RouteTable, Stats, quantile_us,
};
use telaio_model::{Override, OverrideTarget};

use super::AdminAgent;
use super::changes::{Told, certificate_text};
use crate::ingress::{ControlError, IngressControl, IngressState};

/// What the worker said longer ago is not of now.
const AGE_MAX_MS: i64 = 3000;
/// A certificate that ends within so many seconds is to be looked at.
const EXPIRING_S: i64 = 30 * 86_400;

/// Rates are over so much time at least where there are figures for it, and at most twice as much: steady, and of now.
const RATE_SPAN: Duration = Duration::from_secs(5);
/// Figures that are older say nothing of now.
const RATE_AGE_MAX: Duration = Duration::from_mins(1);
/// Then others are taken, and after this time those that they are compared with.
const FIRST_SPAN: Duration = Duration::from_millis(300);

/// The last figures of the worker and some before, for rates; and what it said last of routes and certificates.
#[derive(Default)]
pub(super) struct StatsKept(Mutex<Kept>);

#[derive(Default)]
struct Kept {
    /// Figures to compare with, and those that take their place.
    base: Option<Taken>,
    next: Option<Taken>,
    routes: HashMap<String, Counters>,
    services: HashMap<Key, Counters>,
    endpoints: HashMap<Key, HashMap<String, Counters>>,
    known: Option<Arc<Known>>,
}

/// Figures of a moment.
#[derive(Clone)]
struct Taken {
    at: Instant,
    stats: Arc<Stats>,
}

impl Taken {
    fn is_of(&self, stats: &Stats) -> bool {
        self.stats.totals.since_unix_ns == stats.totals.since_unix_ns
    }
}

/// What the worker said.
pub(super) struct Known {
    at_ms: i64,
    table: RouteTable,
    certificates: Vec<CertificateInfo>,
    stats: Arc<Stats>,
}

/// What is known of routes, and why that is not of now.
#[derive(Default)]
pub(super) struct Shown {
    known: Option<Arc<Known>>,
    stale: Option<Stale>,
}

impl Known {
    /// Asks the worker for all that lists show.
    pub(super) async fn ask(control: &IngressControl, kept: &StatsKept) -> Option<Self> {
        let table = control.routes().await.ok()?;
        let certificates = control.certificates().await.ok()?;
        let is_blind = {
            let mut kept = kept.0.lock();
            kept.forget_old();
            kept.is_blind()
        };
        let mut taken = take(control).await.ok()?;
        kept.0.lock().take(&taken, &table);
        if is_blind && taken.stats.totals.all.requests() > 0 {
            tokio::time::sleep(FIRST_SPAN).await;
            taken = take(control).await.ok()?;
            kept.0.lock().take(&taken, &table);
        }
        Some(Self { at_ms: now_ms(), table, certificates, stats: taken.stats })
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

/// The same of an endpoint.
fn endpoint_counters(
    now: &EndpointFigures,
    before: Option<&EndpointFigures>,
    span_s: f64,
) -> Counters {
    let errors = |it: &EndpointFigures| it.failures.saturating_add(it.server_errors);
    let since = |of: &dyn Fn(&EndpointFigures) -> u64| match before {
        Some(before) => of(now).saturating_sub(of(before)),
        None => 0,
    };
    Counters {
        requests: now.requests,
        errors: errors(now),
        rate: per_s(since(&|it| it.requests), span_s),
        error_rate: per_s(since(&errors), span_s),
        active: Some(u64::from(now.in_flight)),
        ..Counters::default()
    }
}

/// Times to answer, by bucket: of the last seconds, and of all.
#[derive(Default, Clone)]
struct Latencies {
    recent: Vec<u64>,
    all: Vec<u64>,
}

impl Latencies {
    fn add(&mut self, now: &[u64], before: Option<&[u64]>) {
        let size = self.all.len().max(now.len());
        self.all.resize(size, 0);
        self.recent.resize(size, 0);
        for (place, count) in now.iter().enumerate() {
            let then = before.map_or(*count, |it| it.get(place).copied().unwrap_or(0));
            self.all[place] = self.all[place].saturating_add(*count);
            self.recent[place] = self.recent[place].saturating_add(count.saturating_sub(then));
        }
    }

    /// Of the last seconds if there was traffic, else of all.
    fn quantile_ms(&self, per_mille: u64) -> Option<f64> {
        let of = |counts: &[u64]| quantile_us(counts, per_mille);
        of(&self.recent).or_else(|| of(&self.all)).map(|us| float(us) / 1000.0)
    }

    fn put(&self, to: &mut Counters) {
        (to.p50_ms, to.p99_ms) = (self.quantile_ms(500), self.quantile_ms(990));
    }
}

impl Kept {
    /// What to compare with figures of now, which become the next to compare with when it is time.
    fn compare(&mut self, now: &Taken) -> Option<Taken> {
        let is_of = |it: &Option<Taken>| it.as_ref().is_some_and(|it| it.is_of(&now.stats));
        if !is_of(&self.base) || !is_of(&self.next) {
            // Another worker counts from nothing.
            (self.base, self.next) = (None, None);
        }
        let is_due = |it: &Taken| now.at.duration_since(it.at) >= RATE_SPAN;
        if self.next.as_ref().is_none_or(is_due) {
            self.base = self.next.replace(now.clone());
        }
        self.base.get_or_insert_with(|| now.clone());
        self.base.clone()
    }

    /// Whether figures of now have to be followed by others for there to be a rate.
    fn is_blind(&self) -> bool {
        let is_of_now = |it: &Taken| it.at.elapsed() <= RATE_AGE_MAX;
        !self.next.as_ref().is_some_and(is_of_now)
    }

    /// Forgets figures that say nothing of now.
    fn forget_old(&mut self) {
        if self.is_blind() {
            (self.base, self.next) = (None, None);
        }
    }

    /// Takes new figures; the services of backends come from the table.
    fn take(&mut self, now: &Taken, table: &RouteTable) {
        let base = self.compare(now).filter(|base| base.at < now.at);
        let span_s = base.as_ref().map_or(0.0, |it| now.at.duration_since(it.at).as_secs_f64());
        let base = base.as_ref().map(|it| &*it.stats);
        let routes_before: HashMap<&str, &RequestFigures> = base
            .iter()
            .flat_map(|it| &it.routes)
            .map(|it| (it.route.as_str(), &it.figures))
            .collect();
        self.routes = now
            .stats
            .routes
            .iter()
            .map(|it| {
                let before = routes_before.get(it.route.as_str()).copied();
                (it.route.clone(), counters(&it.figures, before, span_s))
            })
            .collect();
        let mut service_of: HashMap<&str, Key> = HashMap::new();
        for target in table.routes.iter().flat_map(|route| &route.targets) {
            let key = || Key::new(&*target.namespace, &*target.service);
            service_of.entry(&target.backend).or_insert_with(key);
        }
        let backends_before: HashMap<&str, &BackendFigures> =
            base.iter().flat_map(|it| &it.backends).map(|it| (it.backend.as_str(), it)).collect();
        (self.services, self.endpoints) = (HashMap::new(), HashMap::new());
        let mut latencies: HashMap<&Key, (Latencies, HashMap<String, Latencies>)> = HashMap::new();
        for backend in &now.stats.backends {
            let Some(service) = service_of.get(backend.backend.as_str()) else { continue };
            let past: HashMap<&str, &EndpointFigures> = backends_before
                .get(backend.backend.as_str())
                .iter()
                .flat_map(|it| &it.endpoints)
                .map(|it| (it.address.as_str(), it))
                .collect();
            let (of_all, of_each) = latencies.entry(service).or_default();
            let endpoints = self.endpoints.entry(service.clone()).or_default();
            for endpoint in &backend.endpoints {
                let past = past.get(endpoint.address.as_str()).copied();
                let more = endpoint_counters(endpoint, past, span_s);
                let address = match endpoint.address.rsplit_once(':') {
                    Some((ip, _)) => ip.trim_matches(['[', ']']).to_owned(),
                    None => endpoint.address.clone(),
                };
                let past = past.map(|it| it.latencies.as_slice());
                of_all.add(&endpoint.latencies, past);
                of_each.entry(address.clone()).or_default().add(&endpoint.latencies, past);
                add(self.services.entry(service.clone()).or_default(), &more);
                add(endpoints.entry(address).or_default(), &more);
            }
        }
        for (service, (of_all, of_each)) in latencies {
            if let Some(counters) = self.services.get_mut(service) {
                of_all.put(counters);
            }
            let Some(endpoints) = self.endpoints.get_mut(service) else { continue };
            for (address, latencies) in of_each {
                if let Some(counters) = endpoints.get_mut(&address) {
                    latencies.put(counters);
                }
            }
        }
    }
}

impl StatsKept {
    pub(super) fn of_service(&self, key: &Key) -> Option<Counters> {
        self.0.lock().services.get(key).copied()
    }

    pub(super) fn of_endpoint(&self, key: &Key, address: &str) -> Option<Counters> {
        self.0.lock().endpoints.get(key)?.get(address).copied()
    }
}

fn add(to: &mut Counters, more: &Counters) {
    to.requests += more.requests;
    to.errors += more.errors;
    to.rate += more.rate;
    to.error_rate += more.error_rate;
    to.active = Some(to.active.unwrap_or(0) + more.active.unwrap_or(0));
}

impl AdminAgent {
    /// What the worker says of all that lists show; what it said last, if it does not answer.
    pub(super) async fn ask_worker(&self) -> Shown {
        let facts = self.monitor.facts();
        if facts.command != "run" || !facts.planes.iter().any(|plane| plane == "ingress") {
            return Shown::default();
        }
        let reason = match self.monitor.ingress() {
            Some(ingress) if ingress.is_serving() => {
                let known = self.asked.all(&self.monitor, &self.stats).await;
                if let Some(known) = known.filter(|it| now_ms() - it.at_ms <= AGE_MAX_MS) {
                    self.note_known(&known);
                    return Shown { known: Some(known), stale: None };
                }
                "the ingress' worker does not answer"
            }
            Some(_) => "the ingress' worker is loading its routes; ask again soon",
            None => "the ingress starts; ask again soon",
        };
        let known = self.stats.0.lock().known.clone();
        let since_ms = known.as_ref().map(|known| known.at_ms);
        Shown { known, stale: Some(Stale { since_ms, reason: reason.to_owned() }) }
    }

    /// Keeps what the worker said, and tells what is another.
    fn note_known(&self, known: &Arc<Known>) {
        let before = self.stats.0.lock().known.replace(Arc::clone(known));
        if let (Some(before), None) = (before, &self.store)
            && !Arc::ptr_eq(&before, known)
        {
            self.tell_certificates(&before.certificates, &known.certificates);
        }
    }

    /// Where no store tells of Secrets: certificates that came, went or are others.
    fn tell_certificates(&self, was: &[CertificateInfo], is: &[CertificateInfo]) {
        let by_secret = |all: &[CertificateInfo]| -> BTreeMap<String, CertificateInfo> {
            all.iter().filter_map(|it| Some((it.secret.clone()?, it.clone()))).collect()
        };
        let (was, is) = (by_secret(was), by_secret(is));
        let tell = |secret: &str, change: &'static str, summary: String| {
            let (namespace, name) = secret.split_once('/').unwrap_or(("", secret));
            self.tell(Key::new(namespace, name), Told::new("certificate", change, summary));
        };
        for (secret, it) in &is {
            let text = || certificate_text(&it.names, Some(it.not_after_s));
            let same = |was: &CertificateInfo| {
                (was.not_before_s, was.not_after_s, &was.names)
                    == (it.not_before_s, it.not_after_s, &it.names)
            };
            match was.get(secret) {
                None => tell(secret, "added", format!("a certificate {}", text())),
                Some(was) if !same(was) => {
                    tell(secret, "changed", format!("another certificate {}", text()));
                }
                Some(_) => {}
            }
        }
        for secret in was.keys().filter(|secret| !is.contains_key(*secret)) {
            tell(secret, "removed", "the certificate is served no more".to_owned());
        }
    }

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

    pub(super) fn add_routes(&self, network: &mut Network, asked: &Shown) {
        network.routes_stale.clone_from(&asked.stale);
        let Some(known) = &asked.known else { return };
        let Known { table, certificates, stats, .. } = &**known;
        let now_s = now_ms() / 1000;
        network.certificates = certificates.iter().map(|it| certificate(it, now_s)).collect();
        network.certificates.sort_by_key(|it| it.not_after_ms);
        let overrides = self.overrides();
        let mut pauses: HashMap<(&str, &str), Vec<&Override>> = HashMap::new();
        for it in overrides.iter().filter(|it| it.is_about_routes()) {
            let key = (&*it.object.namespace, &*it.object.name);
            pauses.entry(key).or_default().push(it);
        }
        let mut warnings: HashMap<&str, Vec<Warning>> = HashMap::new();
        for it in &table.warnings {
            let of = Warning { reason: it.reason.clone(), message: it.message.clone() };
            warnings.entry(&it.ingress).or_default().push(of);
        }
        let ready: HashMap<&str, (usize, usize)> = stats
            .backends
            .iter()
            .map(|it| {
                let takes = |it: &&EndpointFigures| !it.draining && it.healthy && !it.ejected;
                let count = it.endpoints.iter().filter(takes).count();
                (it.backend.as_str(), (count, it.endpoints.len()))
            })
            .collect();
        let ready = |backend: &str| ready.get(backend).copied().unwrap_or((0, 0));
        let kept = self.stats.0.lock();
        for info in &table.routes {
            let ingress = Key::new(&*info.namespace, &*info.ingress);
            let warnings = warnings.get(ingress.to_string().as_str()).cloned().unwrap_or_default();
            let pauses = pauses.get(&(&*info.namespace, &*info.ingress));
            let pause = pauses.into_iter().flatten().find(|it| pauses_route(it, info));
            let counters = kept.routes.get(&info.id).copied();
            network.routes.push(route(info, ingress, warnings, pause.copied(), counters, ready));
        }
        drop(kept);
        let mut names: HashMap<&str, &str> = HashMap::new();
        for it in &network.certificates {
            it.hosts.iter().for_each(|host| _ = names.entry(host).or_insert(&it.id));
        }
        for route in &mut network.routes {
            route.certificate = names.get(route.host.as_str()).map(|id| (*id).to_owned());
        }
    }
}

/// The figures of now.
async fn take(control: &IngressControl) -> Result<Taken, ControlError> {
    let stats = Arc::new(control.stats().await?);
    Ok(Taken { at: Instant::now(), stats })
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
                condition: target.condition.clone(),
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
        matches: info.matches.clone(),
        action: action.to_owned(),
        action_text: match (pause, nobody) {
            (Some(_), _) => "503 with a maintenance page".to_owned(),
            (None, true) => "503: no endpoint is ready".to_owned(),
            (None, false) => info.action_text.clone(),
        },
        state: match () {
            () if nobody => State::Error,
            () if !warnings.is_empty() || pause.is_some() => State::Warning,
            () => State::Ok,
        },
        features: features
            .iter()
            .filter(|(on, _)| *on)
            .map(|(_, it)| (*it).to_owned())
            .chain(info.features.iter().cloned())
            .collect(),
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
