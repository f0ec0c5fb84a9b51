//! Policies: how a route's requests are treated. [`Policy::default`] is what a bare Ingress gets.

use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;

use super::backend::BackendId;

/// How long things may take. `None` is without bound.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Timeouts {
    /// Connecting to an endpoint.
    pub connect: Duration,
    /// From the request's end to the response's head.
    pub response_header: Duration,
    /// How long an endpoint may leave a request's body unread.
    pub send: Duration,
    /// Between two pieces of a body, either way; for upgraded connections too.
    pub idle: Duration,
    /// The whole request, all tries together.
    pub request: Option<Duration>,
}

impl Timeouts {
    /// How long a client may pause while it sends a body.
    pub(crate) fn client_pause(&self) -> Duration {
        self.idle.max(self.send)
    }
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(5),
            response_header: Duration::from_mins(1),
            send: Duration::from_mins(1),
            idle: Duration::from_mins(1),
            request: None,
        }
    }
}

/// What is tried again. Whatever this says, only what is safe is: a request of which nothing was
/// sent, or one with an idempotent method whose body we still have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetryOn {
    /// No connection, or one that broke before an answer came.
    pub connection: bool,
    /// No answer in time.
    pub timeout: bool,
    /// These statuses, as bits: see [`RetryOn::with_status`].
    statuses: u16,
    /// An answer whose head cannot be read.
    pub invalid_header: bool,
    /// Also methods that are not idempotent (ingress-nginx' `non_idempotent`).
    pub non_idempotent: bool,
}

/// The statuses that can be retried on.
const RETRY_STATUSES: [u16; 7] = [500, 502, 503, 504, 403, 404, 429];

impl RetryOn {
    /// Also on this status; false if that is none that can be retried on.
    pub fn with_status(&mut self, status: u16) -> bool {
        let place = RETRY_STATUSES.iter().position(|known| *known == status);
        self.statuses |= place.map_or(0, |place| 1 << place);
        place.is_some()
    }

    /// Whether any status is retried on.
    pub fn has_statuses(&self) -> bool {
        self.statuses != 0
    }

    /// Whether this status is retried on.
    pub fn status(&self, status: u16) -> bool {
        let place = RETRY_STATUSES.iter().position(|known| *known == status);
        place.is_some_and(|place| self.statuses & (1 << place) != 0)
    }
}

impl Default for RetryOn {
    fn default() -> Self {
        Self {
            connection: true,
            timeout: true,
            statuses: 0,
            invalid_header: false,
            non_idempotent: false,
        }
    }
}

/// Trying again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Retry {
    /// How many tries there are in all; 1 never tries again.
    pub tries: u8,
    /// After what.
    pub on: RetryOn,
    /// After how long no further try begins.
    pub within: Option<Duration>,
}

impl Default for Retry {
    fn default() -> Self {
        Self { tries: 3, on: RetryOn::default(), within: None }
    }
}

/// When clients are sent from http to https.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TlsRedirect {
    /// Never.
    #[default]
    Off,
    /// If they came in clear, with this status.
    On(u16),
}

/// What is sent upstream instead of what was asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Rewrite {
    /// The matched prefix becomes this.
    ReplacePrefix(Arc<str>),
    /// The whole path becomes this.
    ReplaceFull(Arc<str>),
    /// The path is matched with the regular expression, and becomes the replacement with `$1`… filled.
    Regex {
        /// The expression.
        pattern: Arc<str>,
        /// The new path.
        replacement: Arc<str>,
    },
}

/// One edit of a head.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HeaderEdit {
    /// Sets a field.
    Set(Arc<str>, Arc<str>),
    /// Adds a field beside those there are.
    Add(Arc<str>, Arc<str>),
    /// Removes a field.
    Remove(Arc<str>),
}

/// Edits of both heads, in order.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HeaderEdits {
    /// Of what goes to the backend.
    pub request: Vec<HeaderEdit>,
    /// Of what goes to the client.
    pub response: Vec<HeaderEdit>,
}

/// Cross-origin requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cors {
    /// Who may: `*`, an origin, or an origin with `*.` before the host.
    pub origins: Vec<Arc<str>>,
    /// Methods.
    pub methods: Vec<Arc<str>>,
    /// Request fields.
    pub headers: Vec<Arc<str>>,
    /// Response fields that scripts may read.
    pub expose_headers: Vec<Arc<str>>,
    /// Whether cookies may be sent.
    pub credentials: bool,
    /// How long an answer to a preflight holds.
    pub max_age: Duration,
}

/// How many requests one client address may make.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RateLimit {
    /// Requests…
    pub requests: u32,
    /// …per this time.
    pub per: Duration,
    /// How many at once beyond the even flow.
    pub burst: u32,
    /// Who is not limited.
    pub except: Vec<IpNet>,
}

/// Which client addresses are let in. With `allow` empty all are, save those denied.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SourceRanges {
    /// Only these.
    pub allow: Vec<IpNet>,
    /// Not these.
    pub deny: Vec<IpNet>,
}

/// A user and the hash of the password, as htpasswd writes it.
#[derive(Clone, PartialEq, Eq)]
pub struct BasicUser {
    /// The name.
    pub name: Arc<str>,
    /// The hash, with its kind.
    pub hash: Arc<str>,
}

impl std::fmt::Debug for BasicUser {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BasicUser").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Name and password.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BasicAuth {
    /// What the browser shows.
    pub realm: Arc<str>,
    /// Who may.
    pub users: Vec<BasicUser>,
}

/// Another server says who may.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForwardAuth {
    /// Its URL, http or https.
    pub url: Arc<str>,
    /// The method; `None` is GET.
    pub method: Option<Arc<str>>,
    /// Where those who are not let in are sent.
    pub signin: Option<Arc<str>>,
    /// The parameter in which the sign-in page finds where to go back to.
    pub signin_redirect_param: Arc<str>,
    /// Fields of its answer that go to the backend.
    pub response_headers: Vec<Arc<str>>,
    /// Fields to set on the question.
    pub set_headers: Vec<(Arc<str>, Arc<str>)>,
    /// Its `X-Auth-Request-Redirect`, a text with names in it; `None` is the request's path and query.
    pub request_redirect: Option<Arc<str>>,
    /// Whether its cookies are given to the client also when it refused.
    pub always_set_cookie: bool,
    /// How long its answer holds for the same request with the same credentials; zero never.
    pub cache: Duration,
    /// A text with names in it that also tells requests apart whose answer is remembered.
    pub cache_key: Option<Arc<str>>,
    /// How long its answer may take.
    pub timeout: Duration,
}

/// Who may make requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Auth {
    /// Who has a password.
    Basic(BasicAuth),
    /// Whom another server lets.
    Forward(ForwardAuth),
    /// Nobody, with the reason: what was configured cannot be used, and open would be worse.
    Deny(Arc<str>),
}

/// Whether a client's certificate is needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientTlsMode {
    /// It must be there and verify.
    Required,
    /// If it is there, it must verify.
    Optional,
    /// If it is there, it is passed on, verified or not.
    OptionalUnverified,
}

/// Certificates of clients.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientTls {
    /// Whether one is needed.
    pub mode: ClientTlsMode,
    /// The authorities in PEM.
    pub authorities_pem: Arc<[u8]>,
    /// How long a chain may be.
    pub verify_depth: u8,
    /// Where those without are sent.
    pub error_page: Option<Arc<str>>,
    /// Whether the certificate goes to the backend.
    pub pass_certificate: bool,
    /// A regular expression that the subject of a verified certificate must match, as RFC 2253 writes
    /// it (`CN=ann,O=Shop`); without one any will do.
    pub subject_pattern: Option<Arc<str>>,
}

/// Caching of a route's responses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CachePolicy {
    /// The largest response that is kept.
    pub object_bytes_max: u64,
    /// How long a response without freshness of its own is fresh, if it has content or redirects for
    /// good (200, 203, 300, 301, 308); `None`, and any other status, is by RFC 9111's heuristic.
    pub default_ttl: Option<Duration>,
    /// How long a response may be used stale while it is fetched anew, if it does not say itself.
    pub stale_while_revalidate: Option<Duration>,
    /// As long as the backend fails.
    pub stale_if_error: Option<Duration>,
    /// Whether simultaneous requests for one thing wait for one answer.
    pub collapse: bool,
}

impl Default for CachePolicy {
    fn default() -> Self {
        Self {
            object_bytes_max: 8 << 20,
            default_ttl: None,
            stale_while_revalidate: None,
            stale_if_error: None,
            collapse: true,
        }
    }
}

/// Compression of responses.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Compress {
    /// Whether it is on.
    pub enabled: bool,
    /// The least length that is worth it; 0 is our default.
    pub bytes_min: u64,
    /// Media types; empty is our list.
    pub types: Vec<Arc<str>>,
}

/// A copy of each request for another backend, whose answer nobody sees.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mirror {
    /// A URL of `http://host[:port]/…`, or empty if `backend` is set.
    pub url: Arc<str>,
    /// The host that copies name, a text with names in it; `None` is the URL's own.
    pub host: Option<Arc<str>>,
    /// A backend of the table.
    pub backend: Option<BackendId>,
    /// Whether bodies go too.
    pub body: bool,
}

/// When a request goes to a canary instead. Rules are tried in order; within one, header, then
/// cookie, then weight decide, as in ingress-nginx.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CanaryRule {
    /// The canary.
    pub backend: BackendId,
    /// A field: `always` and `never` decide, or what the next two say.
    pub header: Option<Arc<str>>,
    /// The value that chooses the canary.
    pub header_value: Option<Arc<str>>,
    /// A regular expression for that value.
    pub header_pattern: Option<Arc<str>>,
    /// A cookie: `always` and `never` decide.
    pub cookie: Option<Arc<str>>,
    /// How many of `weight_total` requests.
    pub weight: u32,
    /// Of how many.
    pub weight_total: u32,
}

/// Statuses whose responses another backend gives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ErrorBackend {
    /// Which backend.
    pub backend: BackendId,
    /// For which statuses.
    pub statuses: Vec<u16>,
}

impl Policy {
    /// Whether a request may say this after its body. What only an authenticating server may tell it may
    /// not: there nobody looks for a client's own.
    pub(crate) fn may_trail(&self, name: &str) -> bool {
        let told = |auth: &Auth| match auth {
            Auth::Forward(settings) => {
                settings.response_headers.iter().any(|own| own.eq_ignore_ascii_case(name))
            }
            Auth::Basic(_) | Auth::Deny(_) => false,
        };
        !self.auth.iter().any(told)
    }
}

/// How a route's requests are treated.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Policy {
    /// How long things may take.
    pub timeouts: Timeouts,
    /// Trying again.
    pub retry: Retry,
    /// The largest body of a request: 413 above. `None` is without bound.
    pub body_bytes_max: Option<u64>,
    /// From http to https.
    pub tls_redirect: TlsRedirect,
    /// Where `/` leads, by redirect.
    pub app_root: Option<Arc<str>>,
    /// What is asked for upstream.
    pub rewrite: Option<Rewrite>,
    /// The `Host` that the backend sees; else the client's.
    pub upstream_host: Option<Arc<str>>,
    /// `X-Forwarded-Prefix`.
    pub forwarded_prefix: Option<Arc<str>>,
    /// Edits of heads.
    pub headers: HeaderEdits,
    /// Cross-origin requests.
    pub cors: Option<Cors>,
    /// Requests per client address and time; all of them hold.
    pub rates: Vec<RateLimit>,
    /// Requests under way per client address.
    pub connections_max: Option<u32>,
    /// Whose requests under way are not counted.
    pub connections_except: Vec<IpNet>,
    /// Client addresses that are let in.
    pub sources: SourceRanges,
    /// Who may; all of them hold.
    pub auth: Vec<Auth>,
    /// Certificates of clients.
    pub client_tls: Option<ClientTls>,
    /// Caching.
    pub cache: Option<CachePolicy>,
    /// Compression.
    pub compress: Compress,
    /// A copy for somebody else.
    pub mirror: Option<Mirror>,
    /// Canaries.
    pub canary: Vec<CanaryRule>,
    /// Responses for errors.
    pub error_backend: Option<ErrorBackend>,
    /// Whether requests are left out of the access log.
    pub log_off: bool,
}
