//! Events, and what the stream sends.

use serde::{Deserialize, Serialize};

use super::action::AuditEntry;
use super::overview::{PlaneHealth, Sample};
use super::{Key, Role};

/// Something that changed: `GET /api/v1/events`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Event {
    /// Grows with each event.
    pub id: u64,
    /// When we heard of it.
    pub at_ms: i64,
    /// The store's revision that it made; 0 where it made none.
    pub revision: u64,
    /// `Service`, `Endpoints`, `Ingress`, `Node`, `Override`, …, or `source`, `sync`, `ingress`, `certificate`,
    /// `instance` for what is seen here.
    pub kind: String,
    /// Which one.
    pub object: Key,
    /// `added`, `changed`, `removed`, `failed`, `recovered`, `repaired`.
    pub change: String,
    /// One line: what changed.
    pub summary: String,
    /// How long until it was in the kernel; null while it is not, and for what never goes there.
    pub programmed_ms: Option<f64>,
    /// It goes to the kernel, and `programmed_ms` will say when it is there.
    pub programs: bool,
}

/// A part of the events, newest first.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct EventPage {
    /// The events.
    pub items: Vec<Event>,
    /// Give it as `before` for those before these; null at the end.
    pub next_before: Option<u64>,
    /// The oldest that is still kept.
    pub oldest_id: Option<u64>,
    /// The newest.
    pub newest_id: Option<u64>,
}

/// A message of `GET /api/v1/events/stream`: the field `event` of a server-sent event is its name in
/// `snake_case`, `data` its content.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Message {
    /// The first message of a stream.
    Hello(Hello),
    /// Every tick.
    Sample(Sample),
    /// Things changed; with the time at which they came.
    Change(Changes),
    /// Earlier events have reached the kernel.
    Programmed(Vec<Programmed>),
    /// The health of a plane changed, or the list of what to look at.
    Health(HealthChange),
    /// Overrides were set, removed, or ended by themselves: read `/api/v1/overrides` again.
    Override(OverridesChanged),
    /// Somebody did something.
    Audit(AuditEntry),
    /// The reader was too slow, and messages were left out: read everything again.
    Lagged(Lagged),
}

/// The beginning of a stream.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Hello {
    /// The time here.
    pub at_ms: i64,
    /// What the reader may do.
    pub role: Role,
    /// How often a sample comes.
    pub tick_s: f64,
    /// The newest event.
    pub newest_id: Option<u64>,
}

/// Changes of one tick.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Changes {
    /// The first of them, at most 100.
    pub events: Vec<Event>,
    /// How many more there were; `/api/v1/events` has them.
    pub more: usize,
    /// The store's revision now.
    pub revision: u64,
}

/// An event that has reached the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Programmed {
    /// The event.
    pub id: u64,
    /// After so long.
    pub programmed_ms: f64,
}

/// How the planes are now.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct HealthChange {
    /// Whether `/healthz` says so.
    pub healthy: bool,
    /// Each.
    pub planes: Vec<PlaneHealth>,
}

/// How many overrides there are now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct OverridesChanged {
    /// In force.
    pub count: usize,
}

/// How many messages were left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Lagged {
    /// So many.
    pub missed: u64,
}
