//! Routes: what they match and what happens then.

use std::sync::Arc;

use http::Method;

use super::backend::BackendId;
use super::policy::Policy;

/// A route's identity, stable over changes: `namespace/name/rule/path` of the object behind it. It
/// is in metrics, cache keys and logs.
pub type RouteId = Arc<str>;

/// Which hosts a route is for. Hosts are in lower case and without port.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum HostMatch {
    /// Every host, also none.
    Any,
    /// `*.example.com` as `.example.com`: one label before it, no more.
    Wildcard(Arc<str>),
    /// This host.
    Exact(Arc<str>),
}

/// As people write it: `*` for every host.
impl std::fmt::Display for HostMatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Any => f.write_str("*"),
            Self::Wildcard(suffix) => write!(f, "*{suffix}"),
            Self::Exact(host) => f.write_str(host),
        }
    }
}

/// Which paths a route is for.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PathMatch {
    /// The whole path, to the letter.
    Exact(Arc<str>),
    /// Path element by path element; a slash at the end makes no difference.
    Prefix(Arc<str>),
    /// A regular expression that must match from the path's beginning, without regard to case (nginx'
    /// `location ~*`). Of expressions and prefixes the longest text wins, as in ingress-nginx.
    Regex(Arc<str>),
}

/// What may stand before the path of an Ingress that is a regular expression: what it means in any case.
pub const REGEX_MARK: &str = "(?i)^";

impl PathMatch {
    /// The path as people write it.
    pub fn written(&self) -> &str {
        match self {
            Self::Exact(path) | Self::Prefix(path) => path,
            Self::Regex(text) => text.strip_prefix(REGEX_MARK).unwrap_or(text),
        }
    }
}

/// When an object was made, then its name: the older wins where two routes match the same.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Age {
    /// Seconds since 1970; what has no time is oldest.
    pub created: i64,
    /// `namespace/name`.
    pub name: Arc<str>,
    /// The place within the object: earlier rules win.
    pub index: u32,
}

/// A further condition, beside host and path. All must hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Predicate {
    /// The method is one of these.
    Method(Vec<Method>),
    /// A field has this value.
    Header(Arc<str>, Arc<str>),
    /// A field matches this regular expression.
    HeaderRegex(Arc<str>, Arc<str>),
    /// A parameter of the query has this value.
    Query(Arc<str>, Arc<str>),
}

/// For people.
impl std::fmt::Display for Predicate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Method(methods) => {
                let names: Vec<&str> = methods.iter().map(Method::as_str).collect();
                write!(f, "method {}", names.join(" or "))
            }
            Self::Header(name, value) => write!(f, "header {name}: {value}"),
            Self::HeaderRegex(name, pattern) => write!(f, "header {name} matches {pattern}"),
            Self::Query(name, value) => write!(f, "query {name}={value}"),
        }
    }
}

/// A service's share of a route's requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WeightedBackend {
    /// Which backend.
    pub backend: BackendId,
    /// Its weight among those of the route; 0 gets none.
    pub weight: u32,
}

/// An answer that sends the client elsewhere. Parts that are not set stay as they were asked for.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Redirect {
    /// The status: 301, 302, 303, 307, 308; 0 means 308.
    pub status: u16,
    /// A whole URL; then the other parts do not count.
    pub url: Option<Arc<str>>,
    /// The scheme.
    pub scheme: Option<Arc<str>>,
    /// The host.
    pub host: Option<Arc<str>>,
    /// The port.
    pub port: Option<u16>,
    /// The path, which then has no query but its own.
    pub path: Option<Arc<str>>,
    /// What replaces the matched prefix of the path.
    pub replace_prefix: Option<Arc<str>>,
}

/// Where it leads, for people: `308 to https://the same host/the same path`.
impl std::fmt::Display for Redirect {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} to ", if self.status == 0 { 308 } else { self.status })?;
        if let Some(url) = &self.url {
            return f.write_str(url);
        }
        write!(f, "{}://", self.scheme.as_deref().unwrap_or("the same scheme"))?;
        f.write_str(self.host.as_deref().unwrap_or("the same host"))?;
        if let Some(port) = self.port {
            write!(f, ":{port}")?;
        }
        match (&self.path, &self.replace_prefix) {
            (Some(path), _) => f.write_str(path),
            (None, Some(prefix)) => write!(f, "{prefix} in place of the matched prefix"),
            (None, None) => f.write_str("/the same path"),
        }
    }
}

/// A fixed answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fixed {
    /// The status.
    pub status: u16,
    /// `Content-Type`.
    pub content_type: Arc<str>,
    /// The body.
    pub body: Arc<str>,
    /// `Retry-After`: seconds or a date.
    pub retry_after: Option<Arc<str>>,
    /// Where requests would go if it were not for this answer: to be shown, and asked for by nobody who
    /// serves.
    pub instead_of: Vec<WeightedBackend>,
}

/// What happens to a request that a route matches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// It goes to one of these, by weight. With none, the answer is 503.
    Forward(Vec<WeightedBackend>),
    /// The client is sent elsewhere.
    Redirect(Redirect),
    /// A fixed answer.
    Respond(Fixed),
}

/// One match and what happens.
#[derive(Debug, Clone, PartialEq)]
pub struct Route {
    /// Who it is.
    pub id: RouteId,
    /// For which hosts.
    pub host: HostMatch,
    /// For which paths.
    pub path: PathMatch,
    /// Further conditions. A route with more of them is tried first.
    pub also: Vec<Predicate>,
    /// Who wins a conflict.
    pub age: Age,
    /// What happens.
    pub action: Action,
    /// How.
    pub policy: Arc<Policy>,
}

impl Route {
    /// A route of one backend under the default policy.
    pub fn forward(id: &str, host: HostMatch, path: PathMatch, backend: BackendId) -> Self {
        Self {
            id: id.into(),
            host,
            path,
            also: Vec::new(),
            age: Age::default(),
            action: Action::Forward(vec![WeightedBackend { backend, weight: 1 }]),
            policy: Arc::new(Policy::default()),
        }
    }
}
