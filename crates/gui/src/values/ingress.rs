//! Routes and certificates.

use serde::{Deserialize, Serialize};

use super::action::OverrideItem;
use super::{Counters, Key, State};

/// A route of the ingress: `GET /api/v1/routes`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct RouteItem {
    /// Its identity.
    pub id: String,
    /// The Ingress (or HTTPRoute) that made it.
    pub ingress: Key,
    /// The host, `*.example.com`, or empty for every host.
    pub host: String,
    /// The path.
    pub path: String,
    /// `exact`, `prefix` or `regex`.
    pub path_type: String,
    /// Further conditions, as text: methods, headers, query.
    pub matches: Vec<String>,
    /// `forward`, `redirect`, `respond` or `paused`.
    pub action: String,
    /// More on the action: where a redirect leads, what a response says.
    pub action_text: String,
    /// Where requests go.
    pub backends: Vec<RouteBackend>,
    /// What happens on the way: `tls redirect`, `cache`, `authentication`, `rate limit`, `rewrite`, `allow-list`, `CORS`,
    /// `mirror`, …
    pub features: Vec<String>,
    /// What is wrong with it.
    pub warnings: Vec<Warning>,
    /// The certificate of its host, as in the list of certificates.
    pub certificate: Option<String>,
    /// How it is.
    pub state: State,
    /// The override that pauses it.
    pub paused: Option<OverrideItem>,
    /// Its requests; null before the first.
    pub counters: Option<Counters>,
}

/// Where a route's requests go.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct RouteBackend {
    /// The service.
    pub service: Key,
    /// Its port: a number or a name.
    pub port: String,
    /// Its share among the route's backends.
    pub weight: u32,
    /// Endpoints that take requests.
    pub ready: usize,
    /// All endpoints.
    pub total: usize,
    /// A canary.
    pub canary: bool,
    /// When requests go to a canary: `header X-Canary: always`, `cookie canary: always`, `20 of 100`; empty for others.
    #[serde(default)]
    pub condition: String,
}

/// What is wrong with a route.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Warning {
    /// A word: `BackendMissing`, `Conflict`, …
    pub reason: String,
    /// What to do.
    pub message: String,
}

/// A certificate: `GET /api/v1/certificates`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct CertificateItem {
    /// Its identity: `namespace/name` of its Secret.
    pub id: String,
    /// The hosts that it is used for.
    pub hosts: Vec<String>,
    /// The names in it.
    pub names: Vec<String>,
    /// Who signed it.
    pub issuer: String,
    /// From when it holds.
    pub not_before_ms: Option<i64>,
    /// Until when it holds.
    pub not_after_ms: Option<i64>,
    /// For how much longer; negative when it is over.
    pub expires_in_s: Option<i64>,
    /// `warning` within 30 days of its end, `error` after it or where it cannot be read.
    pub state: State,
    /// One line on the state, empty when well.
    pub state_text: String,
    /// It is used where no other fits.
    pub default: bool,
}
