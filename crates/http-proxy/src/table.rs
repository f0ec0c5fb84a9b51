//! What the proxy serves, as plain values: routes, backends, policies, certificates.
//!
//! Somebody else (the gateway, from Ingress objects) makes these values and hands over
//! [`TableChange`]s: only what one object's change alters. The proxy compiles them into an immutable
//! [`Router`](crate::Router) that requests are matched against.
//!
//! ```text
//!  TableChange ─► Router::apply ─► Router   (the old one goes on serving those who hold it)
//!             └─► Upstreams             endpoints, health and connections, kept by BackendId
//! ```
//!
//! What always holds:
//! - All of it is typed. No text of a user's is ever executed or put into a template; regular
//!   expressions are compiled with a bound on their size.
//! - Routes and backends change independently: an endpoint that comes or goes touches no route.
//! - A change replaces only the hosts that it names; everything else is shared with the table before.

pub mod backend;
pub mod policy;
pub mod route;

use std::collections::BTreeMap;
use std::sync::Arc;

pub use backend::{
    Backend, BackendId, Balance, Breaker, Endpoint, EndpointAddress, EndpointState, HashKey,
    HealthCheck, Outlier, Sticky, UpstreamProtocol, UpstreamTls,
};
pub use policy::{
    Auth, BasicAuth, BasicUser, CachePolicy, CanaryRule, ClientTls, ClientTlsMode, Compress, Cors,
    ErrorBackend, ForwardAuth, HeaderEdit, HeaderEdits, Mirror, Policy, RateLimit, Retry, RetryOn,
    Rewrite, SourceRanges, Timeouts, TlsRedirect,
};
pub use route::{
    Action, Age, Fixed, HostMatch, PathMatch, Predicate, REGEX_MARK, Redirect, Route, RouteId,
    WeightedBackend,
};

/// A certificate's identity: `namespace/name` of its Secret.
pub type CertificateId = Arc<str>;

/// A certificate with its key, as a Secret has them, and the hosts that it is for.
#[derive(Clone, PartialEq, Eq)]
pub struct Certificate {
    /// The hosts for which an Ingress names it: exact or `*.example.com`; empty for none in particular.
    pub hosts: Vec<Arc<str>>,
    /// The chain in PEM, the host's own certificate first.
    pub chain_pem: Arc<[u8]>,
    /// The private key in PEM.
    pub key_pem: Arc<[u8]>,
}

impl std::fmt::Debug for Certificate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The key stays out of logs.
        f.debug_struct("Certificate").field("hosts", &self.hosts).finish_non_exhaustive()
    }
}

/// What changes; `None` removes. Entries that are not named stay as they are.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct TableChange {
    /// Routes by identity.
    pub routes: BTreeMap<RouteId, Option<Arc<Route>>>,
    /// Backends by identity. A route may name one that is not there (yet): it answers 503.
    pub backends: BTreeMap<BackendId, Option<Backend>>,
    /// Certificates by identity.
    pub certificates: BTreeMap<CertificateId, Option<Certificate>>,
    /// The certificate for hosts that have none; the inner `None` goes back to the self-signed one.
    pub default_certificate: Option<Option<CertificateId>>,
    /// Hosts (exact or wildcard) whose TLS connections are passed on unopened, with their backend.
    pub passthrough: BTreeMap<Arc<str>, Option<BackendId>>,
}

impl TableChange {
    /// Whether nothing changes.
    pub fn is_empty(&self) -> bool {
        self == &Self::default()
    }

    /// Adds a later change to this one: where both name an entry, the later wins.
    pub fn merge(&mut self, later: Self) {
        self.routes.extend(later.routes);
        self.backends.extend(later.backends);
        self.certificates.extend(later.certificates);
        self.passthrough.extend(later.passthrough);
        if later.default_certificate.is_some() {
            self.default_certificate = later.default_certificate;
        }
    }
}
