//! Backends: one port of a service, as a set of endpoints to choose from.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::filter::template::Template;

/// A backend's identity: `namespace/service:port`. Connections, load and health are kept by it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BackendId(pub Arc<str>);

impl BackendId {
    /// From text.
    pub fn new(text: &str) -> Self {
        Self(text.into())
    }

    /// As text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Display for BackendId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// How we speak TLS to a backend.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct UpstreamTls {
    /// The name to ask for and to verify; else the request's host.
    pub server_name: Option<Arc<str>>,
    /// Authorities in PEM to verify against; `None` verifies nothing, as ingress-nginx does.
    pub authorities_pem: Option<Arc<[u8]>>,
    /// Our own certificate and key in PEM.
    pub identity_pem: Option<Arc<[u8]>>,
}

/// What a backend speaks.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum UpstreamProtocol {
    /// HTTP/1.1 in clear; WebSocket too.
    #[default]
    Http1,
    /// HTTP/2 in clear, from the first byte; gRPC too.
    H2c,
    /// HTTP/1.1 over TLS.
    Https(UpstreamTls),
    /// HTTP/2 over TLS; gRPC over TLS too.
    HttpsH2(UpstreamTls),
}

/// Where an endpoint is.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum EndpointAddress {
    /// An address.
    Socket(SocketAddr),
    /// A name to resolve, of an `ExternalName` service, and the port.
    Name(Arc<str>, u16),
}

/// What an endpoint may be given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum EndpointState {
    /// New requests.
    #[default]
    Ready,
    /// Nothing new, of sticky clients neither; what runs may finish.
    Draining,
}

/// One place that serves a backend.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// Where.
    pub address: EndpointAddress,
    /// Its weight; 1 is usual, 0 gets none.
    pub weight: u32,
    /// Whether it takes requests.
    pub state: EndpointState,
    /// Its zone, if known.
    pub zone: Option<Arc<str>>,
}

impl Endpoint {
    /// A ready endpoint of weight 1.
    pub fn at(address: SocketAddr) -> Self {
        Self {
            address: EndpointAddress::Socket(address),
            weight: 1,
            state: EndpointState::Ready,
            zone: None,
        }
    }
}

/// What a consistent hash is made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HashKey {
    /// The client's address.
    ClientAddress,
    /// A field of the request.
    Header(Arc<str>),
    /// A cookie.
    Cookie(Arc<str>),
    /// Path and query.
    Uri,
    /// A text that a request fills.
    Text(Template),
}

/// How an endpoint is chosen.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Balance {
    /// In turn, smoothly by weight.
    RoundRobin,
    /// The one with the fewest requests under way, by weight.
    LeastConnections,
    /// The quicker of two picked by chance, by a moving average of its latency that peaks count in
    /// at once, times the requests under way.
    #[default]
    PeakEwma,
    /// Always the same for the same key, as far as endpoints stay.
    Hash(HashKey),
}

/// A cookie that keeps a client at its endpoint. It is signed: nobody chooses an endpoint by hand.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sticky {
    /// The cookie's name.
    pub cookie: Arc<str>,
    /// `Path`.
    pub path: Arc<str>,
    /// `Domain`.
    pub domain: Option<Arc<str>>,
    /// `Max-Age`; without it the cookie is the session's.
    pub max_age: Option<Duration>,
    /// `Secure`; `None` is as the request came.
    pub secure: Option<bool>,
    /// `SameSite`; `None` among its values is left out where the cookie is not `Secure`.
    pub same_site: Option<Arc<str>>,
    /// `None` is left out for browsers that do not know it, too.
    pub same_site_by_browser: bool,
    /// Whether a failed request gives the client a new endpoint.
    pub change_on_failure: bool,
}

/// Asking endpoints whether they are well.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HealthCheck {
    /// The path; status 200–399 is well.
    pub path: Arc<str>,
    /// The host to name.
    pub host: Option<Arc<str>>,
    /// How often.
    pub interval: Duration,
    /// How long an answer may take.
    pub timeout: Duration,
    /// How many failures in a row take an endpoint out.
    pub unhealthy_after: u32,
    /// How many successes in a row bring it back.
    pub healthy_after: u32,
}

/// Leaving endpoints out that fail requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outlier {
    /// How many failures in a row (no connection, 5xx of a gateway's kind, time-outs) eject an
    /// endpoint; 0 never does.
    pub failures: u32,
    /// For how long the first time; each further time as long again, up to ten times.
    pub ejection: Duration,
    /// How many per cent may be ejected at once. One endpoint always stays.
    pub ejected_percent_max: u8,
}

impl Default for Outlier {
    fn default() -> Self {
        Self { failures: 5, ejection: Duration::from_secs(10), ejected_percent_max: 50 }
    }
}

/// Bounds of what a backend is given at once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Breaker {
    /// Connections to all endpoints together.
    pub connections_max: u32,
    /// Requests that may wait for a connection.
    pub pending_max: u32,
    /// Idle connections that are kept per endpoint.
    pub idle_max: u32,
    /// Connections that are made ahead per endpoint.
    pub prewarm: u32,
}

impl Default for Breaker {
    fn default() -> Self {
        Self { connections_max: 16_384, pending_max: 4_096, idle_max: 256, prewarm: 0 }
    }
}

/// One service port as a set of endpoints.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Backend {
    /// Who it is.
    pub id: BackendId,
    /// What it speaks.
    pub protocol: UpstreamProtocol,
    /// Where it is served.
    pub endpoints: Vec<Endpoint>,
    /// How an endpoint is chosen.
    pub balance: Balance,
    /// Whether clients stay at theirs.
    pub sticky: Option<Sticky>,
    /// Active health checks.
    pub health: Option<HealthCheck>,
    /// Passive ones.
    pub outlier: Outlier,
    /// How long a new endpoint takes to get its whole share.
    pub slow_start: Option<Duration>,
    /// Bounds.
    pub limits: Breaker,
    /// Which version of the PROXY protocol to begin connections with: 1 or 2.
    pub proxy_protocol: Option<u8>,
}

impl Backend {
    /// A backend with default settings.
    pub fn new(id: &str, endpoints: Vec<Endpoint>) -> Self {
        Self {
            id: BackendId::new(id),
            protocol: UpstreamProtocol::default(),
            endpoints,
            balance: Balance::default(),
            sticky: None,
            health: None,
            outlier: Outlier::default(),
            slow_start: None,
            limits: Breaker::default(),
            proxy_protocol: None,
        }
    }
}
