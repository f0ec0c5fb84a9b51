//! What people decide: actions, overrides, the audit log.

use serde::{Deserialize, Serialize};

use super::{Key, Role};

/// `POST /api/v1/actions`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ActionRequest {
    /// What to do.
    pub action: Action,
    /// Only say what it would touch.
    #[serde(default)]
    pub dry_run: bool,
    /// Why, for the audit log.
    #[serde(default)]
    pub reason: String,
    /// It ends by itself after so long, from 1 second to 366 days. Only for actions that last.
    #[serde(default)]
    pub for_s: Option<u64>,
    /// It ends by itself then. Only one of `for_s` and `until_ms`.
    #[serde(default)]
    pub until_ms: Option<i64>,
    /// Who, where the token does not say: a name for the audit log, as `telaio` sends the user's.
    #[serde(default)]
    pub by: Option<String>,
}

/// `POST /api/v1/actions/{id}/undo`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct UndoRequest {
    /// Only say what it would touch.
    #[serde(default)]
    pub dry_run: bool,
    /// Why, for the audit log.
    #[serde(default)]
    pub reason: String,
    /// Who, where the token does not say.
    #[serde(default)]
    pub by: Option<String>,
}

/// Which endpoints of a service: one of the three.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Target {
    /// The one with this address.
    Address(String),
    /// Those of this pod.
    Pod(String),
    /// Those on this node.
    Node(String),
}

/// What to do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum Action {
    /// Nothing new is sent to these endpoints; what runs may finish.
    Drain {
        /// The service.
        service: Key,
        /// Which endpoints.
        target: Target,
    },
    /// Takes back what was decided about these endpoints: draining, weight, removal. A decision about
    /// a node is taken back only where the node is named, and one about more endpoints never.
    Undrain {
        /// The service.
        service: Key,
        /// Which endpoints.
        target: Target,
    },
    /// Their share of the traffic, beside 1 for endpoints that say nothing.
    Weight {
        /// The service.
        service: Key,
        /// Which endpoints.
        target: Target,
        /// From 0 to 65535; 0 drains.
        weight: u16,
    },
    /// An endpoint that the cluster does not name.
    AddBackend {
        /// The service.
        service: Key,
        /// Its address.
        address: String,
        /// Its port, for every port of the service; null for the service's own target ports.
        #[serde(default)]
        port: Option<u16>,
        /// The node that it runs on, if it is one of the cluster's.
        #[serde(default)]
        node: Option<String>,
        /// Its share of the traffic, 1 unless said otherwise.
        #[serde(default)]
        weight: Option<u16>,
    },
    /// These endpoints are gone, as if the cluster did not name them.
    RemoveBackend {
        /// The service.
        service: Key,
        /// Which endpoints.
        target: Target,
    },
    /// Requests get a maintenance page: 503 with Retry-After.
    PauseRoute {
        /// The Ingress.
        ingress: Key,
        /// Only this host of it, as the route has it.
        #[serde(default)]
        host: Option<String>,
        /// Only this path of it, as the route has it.
        #[serde(default)]
        path: Option<String>,
        /// What Retry-After says, if the pause has no end; 60 unless said otherwise.
        #[serde(default)]
        retry_after_s: Option<u32>,
    },
    /// Takes back a pause: that of the Ingress as a whole, or of just this host and path.
    ResumeRoute {
        /// The Ingress.
        ingress: Key,
        /// The host that the pause names; null for one that names none.
        #[serde(default)]
        host: Option<String>,
        /// The path that it names; null for one that names none.
        #[serde(default)]
        path: Option<String>,
    },
    /// The cache of this node forgets; other nodes' keep what they have. Cannot be undone.
    PurgeCache {
        /// What it forgets.
        what: Purge,
    },
    /// Everything that this node programs is compared with the kernel and put right, and the ingress
    /// gets all its routes again, now.
    Resync,
    /// Removes an override that was made here.
    RemoveOverride {
        /// Its namespace and name.
        name: Key,
    },
}

/// What the cache forgets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Purge {
    /// One thing: `http://host/path?query`.
    Key(String),
    /// All whose URL begins so: `http://host/path`.
    Prefix(String),
    /// All of a host.
    Host(String),
}

/// What was done, or would be.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ActionResult {
    /// Nothing was done: this is what would be.
    pub dry_run: bool,
    /// One line: what is done.
    pub summary: String,
    /// What it touches, at most 200.
    pub touches: Vec<Touch>,
    /// How much it touches.
    pub touches_total: usize,
    /// What the person should think of, such as that nobody is left to serve.
    pub warnings: Vec<String>,
    /// The entry in the audit log of the agent that was asked, such as `kf4m-12`; give it to
    /// `POST /api/v1/actions/{id}/undo` of that agent. Null for a dry run.
    pub id: Option<String>,
    /// It can be undone.
    pub undoable: bool,
    /// When it ends by itself.
    pub until_ms: Option<i64>,
    /// The override that was made, if it was one.
    #[serde(rename = "override")]
    pub made: Option<OverrideItem>,
    /// For a purge: how many entries went, of this node's cache.
    pub purged: Option<u64>,
}

/// Something that an action touches.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Touch {
    /// `endpoint`, `route`, `override`, `cache`, `sync`.
    pub kind: String,
    /// Which one, as text.
    pub object: String,
    /// How it is.
    pub before: String,
    /// How it will be.
    pub after: String,
}

/// An override: `GET /api/v1/overrides`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct OverrideItem {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// `drain`, `weight`, `add`, `remove` or `pause`.
    pub action: String,
    /// The service whose endpoints it is about.
    pub service: Option<Key>,
    /// Which endpoints.
    pub target: Option<Target>,
    /// The weight, where it is one.
    pub weight: Option<u16>,
    /// The Ingress whose routes it pauses.
    pub ingress: Option<Key>,
    /// The host of it.
    pub host: Option<String>,
    /// The path of it.
    pub path: Option<String>,
    /// One line: what it does.
    pub summary: String,
    /// Who decided.
    pub by: String,
    /// Why.
    pub reason: String,
    /// When.
    pub since_ms: Option<i64>,
    /// Until when; null for good.
    pub until_ms: Option<i64>,
    /// It was made here and can be taken back here; else it stands in a manifest of somebody's.
    pub managed: bool,
    /// What it touches now: endpoints or routes.
    pub touches: usize,
}

/// How an action ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// Done.
    Done,
    /// Refused, before anything was touched.
    Refused,
    /// It did not work.
    Failed,
    /// An override that ended by itself.
    Expired,
}

/// An entry of the audit log: `GET /api/v1/audit`, newest first.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct AuditEntry {
    /// Its number: a tag of the agent, and what grows with each entry, over restarts too.
    #[serde(deserialize_with = "id")]
    pub id: String,
    /// When.
    pub at_ms: i64,
    /// Who.
    pub who: String,
    /// With which right.
    pub role: Role,
    /// From which address.
    pub from: String,
    /// What was asked; null for what ended by itself.
    pub action: Option<Action>,
    /// One line: what it did.
    pub summary: String,
    /// Why.
    pub reason: String,
    /// Until when.
    pub until_ms: Option<i64>,
    /// How it ended.
    pub outcome: Outcome,
    /// What went wrong.
    pub error: Option<String>,
    /// The entry that this one undid.
    #[serde(deserialize_with = "id_or_none")]
    pub undoes: Option<String>,
    /// The entry that undid this one.
    #[serde(deserialize_with = "id_or_none")]
    pub undone_by: Option<String>,
    /// It can be undone.
    pub undoable: bool,
}

/// A number with a tag, or one of the time when they had none.
#[derive(Deserialize)]
#[serde(untagged)]
enum AnyId {
    Bare(u64),
    Tagged(String),
}

impl From<AnyId> for String {
    fn from(id: AnyId) -> Self {
        match id {
            AnyId::Bare(number) => number.to_string(),
            AnyId::Tagged(text) => text,
        }
    }
}

fn id<'de, D: serde::Deserializer<'de>>(from: D) -> Result<String, D::Error> {
    AnyId::deserialize(from).map(Into::into)
}

fn id_or_none<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<String>, D::Error> {
    Ok(Option::<AnyId>::deserialize(from)?.map(Into::into))
}
