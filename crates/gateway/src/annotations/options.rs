//! What an Ingress's annotations ask for, as values. Nothing is looked up yet: a secret or a
//! ConfigMap is still a name.

use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;

/// What is spoken with the backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// HTTP/1.1, WebSockets too.
    Http,
    /// HTTP/2 without TLS.
    H2c,
    /// HTTP over TLS.
    Https,
    /// HTTP/2 without TLS, with gRPC's habits.
    Grpc,
    /// gRPC over TLS.
    Grpcs,
}

/// What a consistent hash is made of.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum HashBy {
    /// The path and query.
    Uri,
    /// The client's address.
    ClientAddress,
    /// A header.
    Header(Arc<str>),
    /// A cookie.
    Cookie(Arc<str>),
    /// A text with names in it that a request fills.
    Text(Arc<str>),
}

/// How an endpoint is chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Balance {
    /// In turn.
    RoundRobin,
    /// The one with the fewest requests.
    LeastConnections,
    /// The faster of two.
    PeakEwma,
}

/// When a cookie goes along.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SameSite {
    /// From everywhere.
    None,
    /// With top-level navigation.
    Lax,
    /// From the same site only.
    Strict,
}

/// The cookie that keeps a client with its endpoint.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct StickyOptions {
    /// Asked for.
    pub on: bool,
    /// Its name.
    pub name: Option<Arc<str>>,
    /// Its path.
    pub path: Option<Arc<str>>,
    /// Its domain.
    pub domain: Option<Arc<str>>,
    /// How long the client keeps it.
    pub max_age: Option<Duration>,
    /// Only over TLS.
    pub secure: Option<bool>,
    /// When it goes along.
    pub same_site: Option<SameSite>,
    /// `SameSite=None` is left out for browsers that do not know it.
    pub same_site_by_browser: bool,
    /// A request whose endpoint failed chooses anew and stays there.
    pub change_on_failure: bool,
}

/// Failures after which another endpoint is tried.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NextUpstream {
    /// No connection, or one that broke.
    pub error: bool,
    /// No answer in time.
    pub timeout: bool,
    /// An answer whose head cannot be read.
    pub invalid_header: bool,
    /// Answers with these statuses.
    pub statuses: Vec<u16>,
    /// Also requests that are not safe to send twice.
    pub non_idempotent: bool,
}

/// Where else a share of the requests goes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CanaryOptions {
    /// This Ingress is another's canary.
    pub on: bool,
    /// Of `weight_total` requests so many.
    pub weight: u32,
    /// Of how many.
    pub weight_total: Option<u32>,
    /// The header that decides.
    pub header: Option<http::HeaderName>,
    /// Its value that chooses the canary; without one `always` does and `never` does not.
    pub header_value: Option<Arc<str>>,
    /// Likewise as a regular expression.
    pub header_pattern: Option<Arc<str>>,
    /// The cookie that decides, by `always` and `never`.
    pub cookie: Option<Arc<str>>,
}

/// Cross-origin requests.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CorsOptions {
    /// Answered here.
    pub on: bool,
    /// Who may; none means everybody.
    pub origins: Vec<Arc<str>>,
    /// With which methods.
    pub methods: Vec<http::Method>,
    /// With which headers.
    pub headers: Vec<http::HeaderName>,
    /// Which headers of the answer may be read.
    pub expose: Vec<http::HeaderName>,
    /// With cookies; true unless said otherwise.
    pub credentials: Option<bool>,
    /// How long the answer may be remembered.
    pub max_age: Option<Duration>,
}

/// How much one client may ask.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LimitOptions {
    /// Requests a second.
    pub per_second: Option<u32>,
    /// Requests a minute.
    pub per_minute: Option<u32>,
    /// How many times the rate may come at once.
    pub burst_multiplier: Option<u32>,
    /// Connections at a time.
    pub connections: Option<u32>,
    /// Who is not limited.
    pub unlimited: Vec<IpNet>,
}

/// Passwords.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BasicAuthOptions {
    /// Asked for.
    pub on: bool,
    /// The secret with the users.
    pub secret: Option<Arc<str>>,
    /// What the client is told to log in to.
    pub realm: Option<Arc<str>>,
}

/// Another service decides who may come in.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ForwardAuthOptions {
    /// Who is asked.
    pub url: Option<Arc<str>>,
    /// By which method.
    pub method: Option<http::Method>,
    /// Where those go who may not.
    pub signin: Option<Arc<str>>,
    /// The parameter there that says where they came from.
    pub signin_redirect_param: Option<Arc<str>>,
    /// Which headers of its answer go to the backend.
    pub response_headers: Vec<http::HeaderName>,
    /// What it is told as the URL that was asked for.
    pub request_redirect: Option<Arc<str>>,
    /// Its cookies go to the client also when it refused.
    pub always_set_cookie: bool,
    /// How long a permission may be remembered.
    pub cache_duration: Option<Duration>,
    /// Under which name.
    pub cache_key: Option<Arc<str>>,
    /// The ConfigMap with headers that it is sent.
    pub set_headers: Option<Arc<str>>,
}

/// How a client's certificate is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VerifyClient {
    /// Not at all.
    Off,
    /// Asked for and needed.
    On,
    /// Asked for; a client may come without.
    Optional,
    /// Asked for, and passed on whoever signed it.
    Unverified,
}

/// Certificates of clients.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClientTlsOptions {
    /// The secret with the authorities.
    pub secret: Option<Arc<str>>,
    /// Whether it is needed.
    pub verify: Option<VerifyClient>,
    /// How long the chain may be.
    pub depth: Option<u32>,
    /// The backend gets the certificate in a header.
    pub pass: bool,
    /// Where clients go that fail.
    pub error_page: Option<Arc<str>>,
    /// What the subject of a certificate must match.
    pub match_cn: Option<Arc<str>>,
}

/// TLS with the backend.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct UpstreamTlsOptions {
    /// Its certificate must hold.
    pub verify: bool,
    /// The name that it must have, and that is sent as SNI.
    pub name: Option<Arc<str>>,
    /// The secret with the authorities.
    pub secret: Option<Arc<str>>,
}

/// Where a redirect leads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RedirectOption {
    /// The URL, without a slash or `$request_uri` at its end: that is [`RedirectOption::append_uri`].
    pub location: Arc<str>,
    /// Path and query of the request are appended.
    pub append_uri: bool,
}

/// Copies of requests.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MirrorOptions {
    /// Where they go.
    pub target: Option<Arc<str>>,
    /// The host that they name.
    pub host: Option<Arc<str>>,
    /// With bodies; true unless said otherwise.
    pub body: Option<bool>,
}

/// Stored answers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CacheOptions {
    /// Asked for.
    pub on: bool,
    /// How long an answer that says nothing is fresh.
    pub default_ttl: Option<Duration>,
    /// The largest answer that is kept.
    pub body_bytes_max: Option<u64>,
    /// A stale answer may be given while a new one is fetched.
    pub stale_while_revalidate: Option<Duration>,
    /// A stale answer may be given when the backend fails.
    pub stale_if_error: Option<Duration>,
}

/// Asking endpoints how they are.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct HealthOptions {
    /// The path that is asked; none asks nothing.
    pub path: Option<Arc<str>>,
    /// How often.
    pub period: Option<Duration>,
    /// How long an answer may take.
    pub timeout: Option<Duration>,
}

/// All of it. The default is an Ingress without annotations.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Options {
    /// Paths are regular expressions.
    pub use_regex: bool,
    /// What the path becomes.
    pub rewrite_target: Option<Arc<str>>,
    /// Where `/` is redirected to.
    pub app_root: Option<Arc<str>>,
    /// Further hosts.
    pub aliases: Vec<Arc<str>>,
    /// HTTP is redirected where there is TLS; true unless said otherwise.
    pub ssl_redirect: Option<bool>,
    /// HTTP is redirected wherever.
    pub force_ssl_redirect: bool,
    /// TLS goes to the backend unopened.
    pub ssl_passthrough: bool,
    /// With `www.` and without are one.
    pub www_redirect: bool,
    /// Everything is redirected, for good.
    pub permanent_redirect: Option<RedirectOption>,
    /// With this status.
    pub permanent_redirect_code: Option<u16>,
    /// Everything is redirected, for now.
    pub temporal_redirect: Option<RedirectOption>,
    /// With this status.
    pub temporal_redirect_code: Option<u16>,
    /// What is spoken with the backend.
    pub protocol: Option<Protocol>,
    /// TLS with the backend.
    pub upstream_tls: UpstreamTlsOptions,
    /// The host that the backend sees.
    pub upstream_vhost: Option<Arc<str>>,
    /// `X-Forwarded-Prefix`.
    pub forwarded_prefix: Option<Arc<str>>,
    /// The service's own address instead of its endpoints'.
    pub service_upstream: bool,
    /// The version of the PROXY protocol that its connections begin with.
    pub upstream_proxy_protocol: Option<u8>,
    /// How long a connection may take.
    pub connect_timeout: Option<Duration>,
    /// How long the backend may take none of a request.
    pub send_timeout: Option<Duration>,
    /// How long the backend may be silent.
    pub read_timeout: Option<Duration>,
    /// How long a request may take as a whole.
    pub request_timeout: Option<Duration>,
    /// When another endpoint is tried.
    pub next_upstream: Option<NextUpstream>,
    /// How many are tried; zero is no bound of its own.
    pub next_upstream_tries: Option<u32>,
    /// For how long; zero is no bound of its own.
    pub next_upstream_timeout: Option<Duration>,
    /// The largest body of a request; zero is no bound.
    pub body_bytes_max: Option<u64>,
    /// How an endpoint is chosen.
    pub balance: Option<Balance>,
    /// Or by a hash of this.
    pub hash_by: Option<HashBy>,
    /// Clients stay with their endpoints.
    pub sticky: StickyOptions,
    /// How many connections a backend gets at most.
    pub connections_max: Option<u32>,
    /// How many requests may wait for one.
    pub pending_max: Option<u32>,
    /// Connections that are made ahead.
    pub prewarm: Option<u32>,
    /// How long a new endpoint takes to get its whole share.
    pub slow_start: Option<Duration>,
    /// How many failures in a row take an endpoint out for a while.
    pub eject_after: Option<u32>,
    /// Asking endpoints how they are.
    pub health: HealthOptions,
    /// A share goes elsewhere.
    pub canary: CanaryOptions,
    /// Cross-origin requests.
    pub cors: CorsOptions,
    /// How much one client may ask.
    pub limits: LimitOptions,
    /// Who may come.
    pub allow: Vec<IpNet>,
    /// Who may not.
    pub deny: Vec<IpNet>,
    /// Passwords.
    pub basic_auth: BasicAuthOptions,
    /// Another service decides.
    pub forward_auth: ForwardAuthOptions,
    /// Certificates of clients.
    pub client_tls: ClientTlsOptions,
    /// The ConfigMap with headers for answers.
    pub response_headers: Option<Arc<str>>,
    /// The ConfigMap with headers for backends.
    pub request_headers: Option<Arc<str>>,
    /// The service that answers errors.
    pub default_backend: Option<Arc<str>>,
    /// Which errors.
    pub custom_errors: Vec<u16>,
    /// But none of them after all.
    pub custom_errors_off: bool,
    /// Copies of requests.
    pub mirror: MirrorOptions,
    /// Stored answers.
    pub cache: CacheOptions,
    /// Answers are compressed.
    pub compress: Option<bool>,
    /// Requests are in the access log; true unless said otherwise.
    pub access_log: Option<bool>,
}
