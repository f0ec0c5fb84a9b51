//! The tracer.

use serde::{Deserialize, Serialize};

/// `GET /api/v1/trace?from=IP&to=IP:PORT&proto=tcp&iface=NAME` or `?url=URL`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct TraceQuestion {
    /// Where a packet comes from.
    pub from: Option<String>,
    /// Where it wants to: `IP:PORT`, `[IPv6]:PORT`.
    pub to: Option<String>,
    /// `tcp` (unless said otherwise), `udp` or `sctp`.
    pub proto: Option<String>,
    /// The interface that it comes in by.
    pub iface: Option<String>,
    /// Follow the rules that the kernel has now instead of those that we compile: `true`.
    pub kernel: Option<bool>,
    /// A URL, instead of a packet.
    pub url: Option<String>,
}

/// What a packet or a request will meet.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct TraceAnswer {
    /// `packet` or `url`.
    pub kind: String,
    /// `dnat`, `reject`, `drop`, `none` for packets; `forward`, `redirect`, `respond`, `deny`, `none` for URLs.
    pub verdict: String,
    /// One line for people.
    pub summary: String,
    /// What it meets, in order.
    pub steps: Vec<TraceStep>,
    /// Where it can end up, sorted: `IP:PORT`.
    pub endpoints: Vec<String>,
    /// Endpoints that finish what they have.
    pub draining: Vec<String>,
    /// The node's address becomes its source.
    pub masquerade: bool,
    /// The route that decides, for URLs.
    pub route: Option<String>,
    /// The status that is answered, where none forwards.
    pub status: Option<u16>,
    /// Where a redirect leads.
    pub location: Option<String>,
    /// The path that the backend sees, where it is another.
    pub rewritten: Option<String>,
    /// Warnings about the route.
    pub warnings: Vec<String>,
    /// The same on the command line.
    pub command: String,
}

/// A step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct TraceStep {
    /// The rule, or what happens.
    pub text: String,
    /// It decides.
    pub decides: bool,
    /// What the step is: `rule` for packets; `listener`, `certificate`, `route`, `pause`, `policy`, `action`, `backend` for URLs.
    #[serde(default)]
    pub kind: String,
}
