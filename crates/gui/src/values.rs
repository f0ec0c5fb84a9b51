//! What the API says: plain values, in the words of `/api/v1`.
//!
//! Names are `snake_case` with the unit last; times are milliseconds since 1970 (`…_ms`), ages and
//! spans are seconds (`…_s`), rates are per second, shares are between 0 and 1. Fields are only ever
//! added. `openapi.json` is made from these types, and a test keeps both alike.

pub mod action;
pub mod ingress;
pub mod map;
pub mod overview;
pub mod pods;
pub mod service;
pub mod stream;
pub mod trace;

use serde::{Deserialize, Serialize};

/// A namespace and a name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Key {
    /// The namespace; empty for what belongs to none.
    #[serde(default)]
    pub namespace: String,
    /// The name.
    pub name: String,
}

impl Key {
    /// A key.
    pub fn new(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }
}

impl std::fmt::Display for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.namespace.is_empty() {
            f.write_str(&self.name)
        } else {
            write!(f, "{}/{}", self.namespace, self.name)
        }
    }
}

/// A part of a list.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema), schemars(rename = "PageOf{T}"))]
pub struct Page<T> {
    /// This part.
    pub items: Vec<T>,
    /// How many there are with these filters, in all parts.
    pub total: usize,
    /// How many come before this part.
    pub offset: usize,
    /// The offset of the next part, if there is one.
    pub next: Option<usize>,
    /// When the list was made.
    pub at_ms: i64,
    /// It is older than it should be, for who knows it does not answer; null where it is of now.
    #[serde(default)]
    pub stale: Option<Stale>,
}

/// What is shown is not of now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Stale {
    /// When it was known last; null where it never was.
    pub since_ms: Option<i64>,
    /// Why it is not known now.
    pub reason: String,
}

/// How something is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Well.
    Ok,
    /// Nothing to be said yet: it starts, or carries no traffic.
    Idle,
    /// It works, and somebody should look.
    Warning,
    /// It does not work.
    Error,
}

/// Why a request was not answered as asked; the body of every answer of 400 and above.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Problem {
    /// A word for programs: `unauthorized`, `forbidden`, `not_found`, `bad_request`, `bad_method`, `conflict`,
    /// `too_many`, `too_large`, `unavailable`, `misdirected`, `failed`.
    pub code: String,
    /// What is wrong and what to do, for people.
    pub message: String,
}

/// What may be done with a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Look.
    Read,
    /// Look and act.
    Admin,
}

/// Who asks: `GET /api/v1/whoami`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Whoami {
    /// What may be done.
    pub role: Role,
    /// The name that the audit log will have: `admin`, `read-only`, or a user of the cluster.
    pub name: String,
    /// Why nothing can be decided here, whatever the role; null where it can.
    pub read_only_because: Option<String>,
}

/// Requests that were counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Counters {
    /// Requests (or connections, where there are only those) since the start.
    pub requests: u64,
    /// Of them, those that ended badly (5xx, whoever said it, or no answer).
    pub errors: u64,
    /// Requests a second, over the last interval.
    pub rate: f64,
    /// Errors a second, over the last interval.
    pub error_rate: f64,
    /// Those that run.
    pub active: Option<u64>,
    /// The median time to answer.
    pub p50_ms: Option<f64>,
    /// 99 of 100 were faster.
    pub p99_ms: Option<f64>,
    /// Of requests that the cache was asked for, the share that it answered.
    pub cache_hit_share: Option<f64>,
}
