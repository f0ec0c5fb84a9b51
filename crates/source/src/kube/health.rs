//! How the watchers of one server are doing, together.
//!
//! The state is in touch with the cluster while every kind is. A kind that the server refuses to
//! give us counts only if nothing works without it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use telaio_model::Kind;
use tokio::sync::Notify;
use tracing::{debug, info, warn};

use super::kinds::WatchedKind;
use super::trouble::Trouble;
use crate::{Problem, Status};

/// The place of problems that are the server's, not a kind's.
const SERVER_PLACE: &str = "kube";

#[derive(Debug, Default)]
struct KindHealth {
    lost: bool,
    settled: bool,
    /// Why the last try failed; `None` after one that did not.
    trouble: Option<String>,
    refused: bool,
    essential: bool,
}

/// What all watchers of a server share.
#[derive(Debug)]
pub(super) struct Health {
    server: String,
    status: Arc<Status>,
    streaming_lists: AtomicBool,
    kinds: Mutex<BTreeMap<Kind, KindHealth>>,
    /// Told when the server refuses something.
    refusals: Notify,
}

impl Health {
    pub(super) fn new(server: String, status: Arc<Status>, kinds: &[WatchedKind]) -> Self {
        let kinds = kinds.iter().map(|watched| {
            (watched.kind, KindHealth { essential: watched.essential, ..KindHealth::default() })
        });
        Self {
            server,
            status,
            streaming_lists: AtomicBool::new(true),
            kinds: Mutex::new(kinds.collect()),
            refusals: Notify::new(),
        }
    }

    /// Where problems are read.
    pub(super) fn server(&self) -> &str {
        &self.server
    }

    pub(super) fn status(&self) -> &Arc<Status> {
        &self.status
    }

    /// Whether the server is thought to stream lists.
    pub(super) fn streams_lists(&self) -> bool {
        self.streaming_lists.load(Ordering::Relaxed)
    }

    /// The server does not stream lists; it is not asked again.
    pub(super) fn cannot_stream_lists(&self) {
        if self.streaming_lists.swap(false, Ordering::Relaxed) {
            info!(server = self.server, "the API server does not stream lists; using pages");
        }
    }

    /// Something came from the server for this kind.
    pub(super) fn in_touch(&self, kind: Kind) {
        let mut kinds = self.kinds.lock();
        if let Some(health) = kinds.get_mut(&kind) {
            health.lost = false;
            if health.trouble.take().is_some() {
                info!(%kind, server = self.server, "in touch again");
                health.refused = false;
                self.status.set_problems(&place(kind), Vec::new());
            }
        }
        if kinds.values().all(|health| !health.lost) {
            if !self.status.is_connected() {
                self.status.set_problems(SERVER_PLACE, Vec::new());
            }
            self.status.touch();
        }
    }

    /// The first list of this kind is complete, or will not be waited for.
    pub(super) fn settled(&self, kind: Kind) {
        if let Some(health) = self.kinds.lock().get_mut(&kind) {
            health.settled = true;
        }
    }

    /// The server cannot be reached, or does not answer as it should.
    pub(super) fn lost(&self, kind: Kind, trouble: &Trouble) {
        let message = trouble.to_string();
        let mut kinds = self.kinds.lock();
        let Some(health) = kinds.get_mut(&kind) else { return };
        if health.trouble.as_deref() != Some(&message) {
            if health.lost {
                debug!(%kind, server = self.server, "still lost: {message}");
            } else {
                warn!(%kind, server = self.server, "lost the API server: {message}");
            }
            let problem = self.problem(message.clone());
            self.status.set_problems(SERVER_PLACE, vec![problem]);
            health.trouble = Some(message);
        }
        health.lost = true;
        self.status.lost();
    }

    /// The server answers, but will not give us this kind.
    pub(super) fn refused(&self, watched: &WatchedKind, trouble: &Trouble) {
        let message = explain_refusal(watched, trouble);
        let mut kinds = self.kinds.lock();
        let Some(health) = kinds.get_mut(&watched.kind) else { return };
        if health.trouble.as_deref() != Some(&message) {
            if watched.optional && trouble.is_not_found() {
                debug!(kind = %watched.kind, server = self.server, "{message}");
            } else {
                warn!(kind = %watched.kind, server = self.server, "{message}");
                let problem = self.problem(message.clone());
                self.status.set_problems(&place(watched.kind), vec![problem]);
            }
            health.trouble = Some(message);
        }
        health.refused = true;
        if watched.essential {
            health.lost = true;
            self.status.lost();
        }
        self.refusals.notify_waiters();
    }

    fn problem(&self, message: String) -> Problem {
        Problem { origin: self.server.clone(), object: None, field: None, message }
    }

    /// Waits until the server refuses something that nothing works without; says what.
    pub(super) async fn essential_refusal(&self) -> String {
        loop {
            let refused = self.refusals.notified();
            let message = self
                .kinds
                .lock()
                .values()
                .filter(|health| health.essential && health.refused)
                .find_map(|health| health.trouble.clone());
            if let Some(message) = message {
                return message;
            }
            refused.await;
        }
    }

    /// The kinds whose first list is not complete, each with what went wrong.
    pub(super) fn unsettled(&self) -> Vec<String> {
        let kinds = self.kinds.lock();
        let unsettled = kinds.iter().filter(|(_, health)| !health.settled);
        unsettled
            .map(|(kind, health)| match &health.trouble {
                Some(trouble) => format!("{} ({trouble})", kind.resource()),
                None => kind.resource().to_owned(),
            })
            .collect()
    }
}

/// The place of a kind's own problems.
pub(super) fn place(kind: Kind) -> String {
    format!("{SERVER_PLACE}/{}", kind.resource())
}

/// What a person must do so that the server gives us the kind.
fn explain_refusal(watched: &WatchedKind, trouble: &Trouble) -> String {
    let (group, resource) = (watched.group, watched.kind.resource());
    match trouble {
        Trouble::Refused { code: 403, verb, message } => format!(
            "may not {verb} {resource}: {message}; give the account a ClusterRole with the rule \
             apiGroups: [{group:?}], resources: [{resource:?}], verbs: [\"list\", \"watch\"]"
        ),
        Trouble::Refused { code: 404, .. } => {
            let group = if group.is_empty() { "the core group" } else { group };
            format!("the API server has no {resource} in {group}; is its API or CRD installed?")
        }
        Trouble::Refused { code: 401, message, .. } => format!(
            "the API server does not accept our credentials ({message}); check the token or client \
             certificate of the kubeconfig, or the service account of the pod"
        ),
        other => other.to_string(),
    }
}
