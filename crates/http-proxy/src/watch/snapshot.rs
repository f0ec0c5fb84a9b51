//! What the proxy does and knows, as plain values: for whoever shows it, also in another process.
//!
//! [`Inspector`](super::inspect::Inspector) takes them from a proxy that runs; they can be written
//! and read as JSON. Figures only grow, save those that say how things are now.

use serde::{Deserialize, Serialize};

/// Upper bounds of durations, in microseconds; one more bucket is without bound.
pub const BOUNDS_US: [u64; 12] = [
    500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 1_000_000, 5_000_000,
    30_000_000,
];

/// Figures of requests, of a route or of all.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Figures {
    /// Requests that are over, by the first digit of their status: 1xx, 2xx, 3xx, 4xx, 5xx.
    pub statuses: [u64; 5],
    /// The same by duration: how many took up to each of [`BOUNDS_US`], not those of the bound
    /// before, and how many longer.
    pub durations: [u64; BOUNDS_US.len() + 1],
    /// Microseconds of all of them together.
    pub duration_us: u64,
    /// Bytes of responses' bodies.
    pub body_bytes: u64,
    /// Further tries.
    pub retries: u64,
    /// Requests that failed: whose answer is ours and says what went wrong, or broke off.
    pub errors: u64,
    /// Requests under way now.
    pub in_flight: u64,
    /// Answered from the cache, with what is fresh.
    pub cache_hits: u64,
    /// Answered from the cache, with what is stale.
    pub cache_stale: u64,
    /// Asked of the backend, as the cache had nothing usable.
    pub cache_misses: u64,
}

impl Figures {
    /// Requests that are over.
    pub fn requests(&self) -> u64 {
        self.statuses.iter().sum()
    }

    /// Adds others.
    pub fn add(&mut self, other: &Self) {
        self.each(other, |own, other| *own = own.saturating_add(other));
        self.in_flight = self.in_flight.saturating_add(other.in_flight);
    }

    /// What came since; requests under way are as they are now.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        let mut difference = self.clone();
        difference.each(before, |own, before| *own = own.saturating_sub(before));
        difference
    }

    /// Whether something was counted that `other` does not have, so that it cannot be older.
    pub fn is_before(&self, other: &Self) -> bool {
        let mut any = false;
        self.clone().each(other, |own, other| any |= *own < other);
        any
    }

    /// Goes through all that only grows.
    fn each(&mut self, other: &Self, mut with: impl FnMut(&mut u64, u64)) {
        self.statuses.iter_mut().zip(other.statuses).for_each(|(own, other)| with(own, other));
        self.durations.iter_mut().zip(other.durations).for_each(|(own, other)| with(own, other));
        for (own, other) in [
            (&mut self.duration_us, other.duration_us),
            (&mut self.body_bytes, other.body_bytes),
            (&mut self.retries, other.retries),
            (&mut self.errors, other.errors),
            (&mut self.cache_hits, other.cache_hits),
            (&mut self.cache_stale, other.cache_stale),
            (&mut self.cache_misses, other.cache_misses),
        ] {
            with(own, other);
        }
    }

    /// The duration that so many of a thousand requests did not exceed, in microseconds, about: within
    /// a bucket it is taken to grow evenly. `None` without requests.
    pub fn quantile_us(&self, per_mille: u64) -> Option<u64> {
        quantile_us(&self.durations, per_mille)
    }
}

/// The same of how many there are in each bucket of [`BOUNDS_US`].
pub fn quantile_us(counts: &[u64], per_mille: u64) -> Option<u64> {
    let all: u64 = counts.iter().sum();
    let wanted = (all.saturating_mul(per_mille.min(1000))).div_ceil(1000).max(1);
    if all == 0 {
        return None;
    }
    let mut below = 0;
    for (place, count) in counts.iter().enumerate() {
        if below + count >= wanted {
            let bound = |place: usize| BOUNDS_US.get(place).or(BOUNDS_US.last()).copied();
            let from = place.checked_sub(1).and_then(bound).unwrap_or(0);
            let to = BOUNDS_US.get(place).copied().unwrap_or(from);
            return Some(from + (to - from).saturating_mul(wanted - below) / count.max(&1));
        }
        below += count;
    }
    BOUNDS_US.last().copied()
}

/// What the cache has done and holds.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CacheFigures {
    /// Answered from the store.
    pub hits: u64,
    /// Answered from the store although stale, as the backend failed.
    pub stale_hits: u64,
    /// Asked of the backend with nothing usable in the store.
    pub misses: u64,
    /// Asked of the backend whether what is stored holds.
    pub validations: u64,
    /// Went past the cache.
    pub bypasses: u64,
    /// Waited for another's answer.
    pub collapsed: u64,
    /// Responses that were kept.
    pub stored: u64,
    /// URIs that are kept now.
    pub entries: u64,
    /// Bytes that are kept now, about.
    pub bytes: u64,
    /// How many may be.
    pub bytes_max: u64,
}

/// What holds for the whole proxy.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Totals {
    /// When the worker began to count, in nanoseconds since 1970: figures of another worker begin
    /// anew.
    pub since_unix_ns: u64,
    /// All requests, also those of routes that are gone and those that no route took.
    pub all: Figures,
    /// Those that no route took.
    pub unrouted: Figures,
    /// Connections of clients that are open.
    pub connections: u64,
    /// Connections that were accepted.
    pub connections_accepted: u64,
    /// Connections that ended before a request could be read.
    pub connections_refused: u64,
    /// The cache.
    pub cache: CacheFigures,
    /// Routes.
    pub routes: u64,
    /// Backends.
    pub backends: u64,
    /// Lines of the access log that were dropped because too many waited.
    pub log_lines_dropped: u64,
    /// Spans that were dropped.
    pub spans_dropped: u64,
    /// Mirrored requests that were not sent.
    pub mirrors_dropped: u64,
}

/// One route's figures.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RouteFigures {
    /// The route's identity, as in [`RouteInfo`].
    pub route: String,
    /// `namespace/name` of its Ingress.
    pub ingress: String,
    /// The figures.
    pub figures: Figures,
}

/// How one endpoint does.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct EndpointFigures {
    /// `address:port`, or `name:port`.
    pub address: String,
    /// Its weight.
    pub weight: u32,
    /// Whether it gets nothing new.
    pub draining: bool,
    /// Tries so far.
    pub requests: u64,
    /// Those that failed: no answer, or one of 502 to 504.
    pub failures: u64,
    /// Other answers of 5xx.
    pub server_errors: u64,
    /// Those under way.
    pub in_flight: u32,
    /// Connections that are kept for it, unused.
    pub idle_connections: u32,
    /// The moving average of its latency, in microseconds.
    pub latency_us: u64,
    /// Times until an answer began: how many took up to each of [`BOUNDS_US`], not those of the bound before, and
    /// how many longer; empty before the first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub latencies: Vec<u64>,
    /// Whether failures took it out for now.
    pub ejected: bool,
    /// Whether active checks say that it is well; true without checks.
    pub healthy: bool,
}

/// How one backend does.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct BackendFigures {
    /// Its identity, as in [`Target`].
    pub backend: String,
    /// Connections to all endpoints, unused ones too.
    pub connections: u32,
    /// Requests that wait for a connection.
    pub pending: u32,
    /// Its endpoints.
    pub endpoints: Vec<EndpointFigures>,
}

/// All figures.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Stats {
    /// Of the whole.
    pub totals: Totals,
    /// By route.
    pub routes: Vec<RouteFigures>,
    /// By backend.
    pub backends: Vec<BackendFigures>,
}

/// How a path is compared.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PathKind {
    /// To the letter.
    Exact,
    /// Element by element.
    #[default]
    Prefix,
    /// As a regular expression.
    Regex,
}

/// What a route does.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ActionKind {
    /// Requests go to backends.
    #[default]
    Forward,
    /// Clients are sent elsewhere.
    Redirect,
    /// The answer is fixed.
    Respond,
}

/// A backend of a route.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Target {
    /// The backend's identity.
    pub backend: String,
    /// Its namespace.
    pub namespace: String,
    /// The service.
    pub service: String,
    /// Its port, by number or name.
    pub port: String,
    /// Its weight among those of the route.
    pub weight: u32,
    /// Whether it is a canary's.
    pub canary: bool,
    /// When requests go to a canary.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub condition: String,
}

/// Something that the writer of an Ingress should know.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct WarningInfo {
    /// `namespace/name` of the Ingress.
    pub ingress: String,
    /// The reason in a word.
    pub reason: String,
    /// What is wrong, for a person.
    pub message: String,
}

/// A route in force.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RouteInfo {
    /// Its identity.
    pub id: String,
    /// `*` for all hosts, `*.example.com`, or one host.
    pub host: String,
    /// The path, or the expression.
    pub path: String,
    /// How it is compared.
    pub path_kind: PathKind,
    /// The Ingress's namespace.
    pub namespace: String,
    /// Its name.
    pub ingress: String,
    /// Further conditions.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub matches: Vec<String>,
    /// What happens.
    pub action: ActionKind,
    /// More on that: where clients are sent, what is answered.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub action_text: String,
    /// What else happens on the way, in a word or two each.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub features: Vec<String>,
    /// Where requests go.
    pub targets: Vec<Target>,
    /// Whether there is a certificate for the host, or its TLS is passed through.
    pub tls: bool,
    /// Whether clients are sent from http to https.
    pub tls_redirect: bool,
    /// Whether responses are cached.
    pub cache: bool,
    /// Whether they are compressed.
    pub compress: bool,
    /// Whether clients have to say who they are: by password, another server, or certificate.
    pub auth: bool,
    /// Whether no backend of it takes requests, because somebody set all its weights to nothing.
    pub paused: bool,
    /// How many warnings its Ingress has.
    pub warnings: u32,
}

/// The table in force.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RouteTable {
    /// The routes, by host and path.
    pub routes: Vec<RouteInfo>,
    /// What the writers of Ingresses should know, by Ingress.
    pub warnings: Vec<WarningInfo>,
}

/// A certificate that is served.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CertificateInfo {
    /// `namespace/name` of the Secret; none for the one that we made ourselves.
    pub secret: Option<String>,
    /// The hosts that it serves.
    pub hosts: Vec<String>,
    /// The names that stand in it.
    pub names: Vec<String>,
    /// From when it holds, in seconds since 1970.
    pub not_before_s: i64,
    /// Until when.
    pub not_after_s: i64,
    /// Whose it is.
    pub subject: String,
    /// Who signed it.
    pub issuer: String,
    /// Whether hosts without a certificate get it.
    pub default: bool,
}

/// What to take out of the cache.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PurgeWhat {
    /// Everything that is kept of one URL.
    Url(String),
    /// Everything whose URL begins so.
    Prefix(String),
    /// Everything of one host.
    Host(String),
    /// Everything.
    All,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(durations: &[(usize, u64)]) -> Figures {
        let mut figures = Figures::default();
        for (place, count) in durations {
            figures.durations[*place] = *count;
            figures.statuses[1] += count;
        }
        figures
    }

    #[test]
    fn quantiles_are_found_within_their_bucket() {
        assert_eq!(Figures::default().quantile_us(500), None);
        let even = figures(&[(1, 100)]);
        assert_eq!(even.quantile_us(500), Some(750), "half-way from 500 to 1000");
        assert_eq!(even.quantile_us(1000), Some(1000));
        let slow = figures(&[(0, 99), (12, 1)]);
        assert_eq!(slow.quantile_us(990), Some(500));
        assert_eq!(slow.quantile_us(999), Some(30_000_000), "nothing is known beyond the last");
    }

    #[test]
    fn figures_are_added_and_compared() {
        let one = Figures { body_bytes: 5, in_flight: 1, ..figures(&[(0, 2)]) };
        let later = Figures { body_bytes: 7, in_flight: 3, ..figures(&[(0, 3)]) };
        let since = later.since(&one);
        assert_eq!((since.requests(), since.body_bytes, since.in_flight), (1, 2, 3));
        assert!(one.is_before(&later) && !later.is_before(&one) && !one.is_before(&one));
        let mut both = one.clone();
        both.add(&later);
        assert_eq!((both.requests(), both.body_bytes, both.in_flight), (5, 12, 4));
    }
}
