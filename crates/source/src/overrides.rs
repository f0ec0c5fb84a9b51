//! Writing down what people decide: the one thing that a source writes.
//!
//! In a directory overrides are the documents of one file of ours beside the manifests, in a cluster
//! the entries of one ConfigMap; both are read back as every other object is, so whoever follows the
//! same source follows them. Another brain's state is not ours to write: decide there.
//!
//! What always holds:
//! - A file is replaced as a whole, by a rename; a ConfigMap only in the version that was read.
//!   Whoever writes at the same time loses nothing: one waits, or reads again.
//! - Only overrides that were written here are replaced or removed here.
//! - One that has ended is removed only as it was seen: what somebody wrote since stays.
//! - What is replaced or taken back is what whoever decided saw: a decision that another agent wrote in
//!   between is never lost unseen.

mod dir;
mod kube;

use std::path::PathBuf;

use jiff::Timestamp;
use serde_json::{Value, json};
use telaio_model::{ObjectKey, Override, OverrideAction, OverrideTarget};

pub use self::kube::{CONFIG_MAP, LABEL_OVERRIDES};
pub use dir::FILE;

/// Why something was not written.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// Nothing is written here at all.
    #[error("{0}")]
    ReadOnly(String),
    /// The file cannot be read or written.
    #[error("{}: {message}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong, and what to do.
        message: String,
    },
    /// The API server refuses it or does not answer.
    #[error("the ConfigMap {0}: {1}")]
    Server(String, String),
    /// Others kept writing at the same time.
    #[error("the ConfigMap {0} changed again and again while it was written; try again")]
    Conflict(String),
    /// Another decided about the same since it was looked at.
    #[error("the override {key} was changed meanwhile: {}; look at it again", is_now(.now.as_deref()))]
    Changed {
        /// Which.
        key: ObjectKey,
        /// What is written now.
        now: Option<Box<Override>>,
    },
    /// It is not written where telaio writes.
    #[error(
        "the override {key} does not stand in {place}, where telaio writes, but in {found}; take it back there"
    )]
    Elsewhere {
        /// Which.
        key: ObjectKey,
        /// Where it would have been.
        place: String,
        /// Where it is.
        found: String,
    },
    /// There is no more room.
    #[error("there are {0} overrides already; remove some first")]
    TooMany(usize),
}

/// How many overrides are kept: more is no management by hand, and a ConfigMap holds 1 MiB.
pub const OVERRIDES_MAX: usize = 500;

/// One override that is to be set or removed, and what it is to replace.
#[derive(Debug, Clone, PartialEq)]
pub struct Change {
    /// Its name.
    pub key: ObjectKey,
    /// What whoever decides saw. One that has ended counts as none.
    pub before: Option<Override>,
    /// What it is to be.
    pub after: Option<Override>,
}

impl Change {
    /// Whether what is written is still what was seen.
    fn check(&self, written: Option<&Override>, now_s: i64) -> Result<Checked, WriteError> {
        let counts = |it: &&Override| it.is_active(now_s);
        let (seen, stored) = (self.before.as_ref().filter(counts), written.filter(counts));
        match (seen, stored) {
            (Some(seen), Some(stored)) if same(seen, stored) => Ok(Checked::AsSeen),
            (Some(_), None) => Ok(Checked::NotThere),
            // It has ended. Where it is taken back, it may also stand elsewhere.
            (None, None) if self.is_of_nothing(written) => Ok(Checked::NotThere),
            (None, None) => Ok(Checked::AsSeen),
            (_, now) => {
                let now = now.cloned().map(Box::new);
                Err(WriteError::Changed { key: self.key.clone(), now })
            }
        }
    }

    /// Whether something is to be removed that is not written.
    fn is_of_nothing(&self, written: Option<&Override>) -> bool {
        self.before.is_some() && self.after.is_none() && written.is_none()
    }

    /// What to say of an override that was seen and is not written here, by where it was found.
    fn not_there(&self, place: String, found: Option<String>) -> Result<(), WriteError> {
        let key = self.key.clone();
        match found {
            Some(found) => Err(WriteError::Elsewhere { key, place, found }),
            None if self.before.as_ref().is_some_and(|it| it.is_active(now_s())) => {
                Err(WriteError::Changed { key, now: None })
            }
            // What has ended is tidied away by whoever is first.
            None => Ok(()),
        }
    }
}

/// What a look at the place told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Checked {
    AsSeen,
    /// What was seen is not written here: somebody removed it, or it stands elsewhere.
    NotThere,
}

/// What is written now, for an error.
fn is_now(now: Option<&Override>) -> String {
    match now {
        Some(now) if now.by.is_empty() => "somebody decided anew".to_owned(),
        Some(now) => format!("{} decided anew", now.by),
        None => "somebody took it back".to_owned(),
    }
}

fn now_s() -> i64 {
    Timestamp::now().as_second()
}

/// Writes overrides to where the source will read them.
#[derive(Debug, Clone)]
pub enum OverrideWriter {
    /// Into a directory of manifests.
    Dir(dir::DirWriter),
    /// Into the cluster.
    Kube(kube::KubeWriter),
    /// Nowhere, and why.
    Nowhere(String),
}

impl OverrideWriter {
    /// Into a directory of manifests.
    pub fn dir(path: impl Into<PathBuf>) -> Self {
        Self::Dir(dir::DirWriter::new(path.into()))
    }

    /// Into the ConfigMap [`CONFIG_MAP`] of this namespace.
    pub fn kube(client: crate::kube::Client, namespace: impl Into<String>) -> Self {
        Self::Kube(kube::KubeWriter::new(client, namespace.into()))
    }

    /// Why nothing can be written, if that is known.
    pub fn read_only_because(&self) -> Option<&str> {
        match self {
            Self::Nowhere(why) => Some(why),
            Self::Dir(_) | Self::Kube(_) => None,
        }
    }

    /// Where it writes, for people.
    pub fn place(&self) -> String {
        match self {
            Self::Dir(dir) => dir.path().display().to_string(),
            Self::Kube(kube) => format!("the ConfigMap {}", kube.name()),
            Self::Nowhere(why) => why.clone(),
        }
    }

    /// Sets and removes overrides, all or none; and none where one of them is not as it was seen.
    pub async fn write(&self, changes: Vec<Change>) -> Result<(), WriteError> {
        match self {
            Self::Dir(dir) => {
                let (dir, place) = (dir.clone(), dir.path());
                let written = tokio::task::spawn_blocking(move || dir.write(&changes)).await;
                written.unwrap_or_else(|error| {
                    Err(WriteError::File { path: place, message: error.to_string() })
                })
            }
            Self::Kube(kube) => kube.write(&changes).await,
            Self::Nowhere(why) => Err(WriteError::ReadOnly(why.clone())),
        }
    }
}

impl OverrideWriter {
    /// Removes those of `seen` that are still written as they were seen; says which.
    pub async fn remove_seen(&self, seen: Vec<Override>) -> Result<Vec<ObjectKey>, WriteError> {
        match self {
            Self::Dir(dir) => {
                let (dir, place) = (dir.clone(), dir.path());
                let removed = tokio::task::spawn_blocking(move || dir.remove_seen(&seen)).await;
                removed.unwrap_or_else(|error| {
                    Err(WriteError::File { path: place, message: error.to_string() })
                })
            }
            Self::Kube(kube) => kube.remove_seen(&seen).await,
            Self::Nowhere(why) => Err(WriteError::ReadOnly(why.clone())),
        }
    }
}

/// Whether two say the same, in all that is written of them.
fn same(one: &Override, other: &Override) -> bool {
    manifest(one) == manifest(other)
}

/// An override as a manifest.
pub fn manifest(decided: &Override) -> Value {
    let key = |key: &ObjectKey| json!({"namespace": key.namespace, "name": key.name});
    let mut spec = json!({"by": decided.by, "reason": decided.reason});
    match &decided.target {
        OverrideTarget::Address(address) => spec["target"] = json!({"address": address}),
        OverrideTarget::Pod(pod) => spec["target"] = json!({"pod": pod}),
        OverrideTarget::Node(node) => spec["target"] = json!({"node": node}),
        OverrideTarget::Routes { host, path } => {
            let mut ingress = key(&decided.object);
            if let Some(host) = host {
                ingress["host"] = json!(host);
            }
            if let Some(path) = path {
                ingress["path"] = json!(path);
            }
            spec["ingress"] = ingress;
        }
    }
    if !decided.is_about_routes() {
        spec["service"] = key(&decided.object);
    }
    let action = match &decided.action {
        OverrideAction::Drain => "drain",
        OverrideAction::Remove => "remove",
        OverrideAction::Weight(weight) => {
            spec["weight"] = json!(weight);
            "weight"
        }
        OverrideAction::Add(added) => {
            for (name, value) in [
                ("port", added.port.map(Value::from)),
                ("node", added.node.as_deref().map(Value::from)),
                ("weight", added.weight.map(Value::from)),
            ] {
                if let Some(value) = value {
                    spec[name] = value;
                }
            }
            "add"
        }
        OverrideAction::Pause { retry_after_s } => {
            spec["retryAfter"] = json!(retry_after_s);
            "pause"
        }
    };
    spec["action"] = json!(action);
    for (name, at_s) in [("since", decided.since_s), ("until", decided.until_s)] {
        if let Some(at) = at_s.and_then(|at_s| Timestamp::from_second(at_s).ok()) {
            spec[name] = json!(at.to_string());
        }
    }
    let labels: serde_json::Map<String, Value> =
        decided.meta.labels.iter().map(|(name, value)| (name.to_string(), json!(value))).collect();
    json!({
        "apiVersion": "telaio.dev/v1",
        "kind": "Override",
        "metadata": {
            "name": decided.meta.key.name,
            "namespace": decided.meta.key.namespace,
            "labels": labels,
        },
        "spec": spec,
    })
}

#[cfg(test)]
mod tests;
