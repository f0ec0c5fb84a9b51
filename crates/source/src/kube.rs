//! The Kubernetes API as a source.
//!
//! One watcher per kind lists and watches, and the source gathers what they find into batches.
//! Objects are read straight into the slim structs of [`manifest`](crate::manifest); what we do not
//! use is never held, and what is sent is remembered as a key and a hash only.
//!
//! What always holds:
//! - a batch holds differences only, after a cut, a new list or a version that is gone as well;
//! - `synced` comes with the batch that completes the first list of every kind. A kind that is not
//!   essential (all but services, endpoint slices and nodes) is not waited for if the server refuses
//!   it; it is a [`Problem`](crate::Problem) and is tried again;
//! - when the API server is lost the last state stands, and [`Status::age`] grows;
//! - an object that cannot be used is a problem, and its last good value stands;
//! - everything that a source spawns ends with it.
//!
//! The client is `kube`'s; the list and watch are our own. `kube::runtime::watcher` 4.2 cannot hold
//! the above: it never recovers when a version is gone with HTTP status 410, does not tell when a
//! streamed list starts anew (so deletions are missed if one is cut), keeps bookmarks to itself (so a
//! dead connection looks like a quiet one), and one object of wrong types fails a whole page.
//!
//! ```no_run
//! # async fn example() -> Result<(), telaio_source::kube::KubeError> {
//! use std::sync::Arc;
//! use telaio_source::{BATCH_QUEUE_MAX, Status, kube::{KubeOptions, KubeSource}};
//!
//! let status = Arc::new(Status::default());
//! let source = KubeSource::connect(None, KubeOptions::default(), status.clone()).await?;
//! let (tx, mut rx) = tokio::sync::mpsc::channel(BATCH_QUEUE_MAX);
//! tokio::spawn(source.run(tx));
//! while let Some(batch) = rx.recv().await {
//!     println!("{} changes, synced: {}", batch.changes.len(), batch.synced);
//! }
//! # Ok(()) }
//! ```

mod annotate;
mod connect;
mod decided;
mod health;
mod kinds;
mod known;
mod lines;
mod options;
mod review;
mod trouble;
mod watcher;

use std::collections::BTreeSet;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use telaio_model::{Batch, Kind};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tracing::error;

use crate::intern::Interner;
use crate::manifest::Context;
use crate::{BATCH_QUEUE_MAX, Status};
use decided::Decided;
use health::Health;
use kinds::WatchedKind;
use watcher::{Update, Watcher};

pub use ::kube::Client;
pub use annotate::{annotate_node, withdraw_annotations};
pub use connect::KubeError;
pub use kinds::LABEL_CONFIG;
pub use options::KubeOptions;
pub use review::{ReviewError, Reviewed, review};

/// How many updates may wait for the source before the watchers stop reading.
const UPDATES_MAX: usize = 64;
/// A batch is sent when it has this many changes, even if more are ready.
const BATCH_CHANGES_MAX: usize = 4_096;

/// The Kubernetes API as a source. See the [module](self).
pub struct KubeSource {
    client: kube::Client,
    kinds: Vec<WatchedKind>,
    options: KubeOptions,
    health: Arc<Health>,
}

impl fmt::Debug for KubeSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KubeSource")
            .field("server", &self.health.server())
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

/// A client for those who write: found as [`KubeSource::connect`] finds it.
pub async fn client(kubeconfig: Option<PathBuf>) -> Result<Client, KubeError> {
    let found = connect::connect(kubeconfig.as_deref(), &KubeOptions::default()).await?;
    Ok(found.0)
}

impl KubeSource {
    /// Finds the API server: by `kubeconfig` if it is named, else as a pod of the cluster, else by
    /// the user's kubeconfig. Does not talk to it yet: a server that is away is waited for.
    pub async fn connect(
        kubeconfig: Option<PathBuf>,
        options: KubeOptions,
        status: Arc<Status>,
    ) -> Result<Self, KubeError> {
        let (client, server) = connect::connect(kubeconfig.as_deref(), &options).await?;
        let kinds: Vec<WatchedKind> =
            options.kinds.iter().filter_map(|kind| WatchedKind::new(*kind, &options)).collect();
        let health = Arc::new(Health::new(server, status, &kinds));
        Ok(Self { client, kinds, options, health })
    }

    /// Watches and sends batches until nobody receives them. Ends its watchers when it is dropped.
    pub async fn run(self, tx: mpsc::Sender<Batch>) {
        let ctx = Context::cluster(Interner::default());
        let mut watchers = JoinSet::new();
        let (out, updates) = mpsc::channel(UPDATES_MAX);
        let unsettled: BTreeSet<Kind> = self.kinds.iter().map(|watched| watched.kind).collect();
        for watched in self.kinds {
            let watcher = Watcher::new(
                self.client.clone(),
                watched,
                ctx.clone(),
                self.options.clone(),
                self.health.clone(),
                out.clone(),
            );
            watchers.spawn(watcher.run());
        }
        drop(out);
        let decided = Decided::new(
            ctx.clone(),
            Arc::clone(self.health.status()),
            self.options.overrides_namespace.clone(),
        );
        let mut gatherer = Gatherer { updates, unsettled, decided };
        let mut first = gatherer.unsettled.is_empty();
        loop {
            let batch = if std::mem::take(&mut first) {
                Some(Batch { changes: Vec::new(), synced: true })
            } else {
                tokio::select! {
                    () = tx.closed() => return,
                    batch = gatherer.next() => batch,
                    // Watchers end only when nobody listens; one that ends before has a fault.
                    Some(ended) = watchers.join_next() => {
                        error!(server = self.health.server(), "a watcher ended: {ended:?}");
                        return;
                    }
                }
            };
            let Some(batch) = batch else { return tx.closed().await };
            if batch.synced {
                self.health.status().set_synced();
            }
            if tx.send(batch).await.is_err() {
                return;
            }
        }
    }

    /// Loads the state once: every batch up to the one that completes it.
    ///
    /// Gives up after [`KubeOptions::load_timeout`], and at once when the server refuses something
    /// that nothing works without.
    pub async fn load_once(self) -> Result<Vec<Batch>, KubeError> {
        let health = self.health.clone();
        let server = || health.server().to_owned();
        let load_timeout = self.options.load_timeout;
        let (tx, mut rx) = mpsc::channel::<Batch>(BATCH_QUEUE_MAX);
        let receive = async {
            let mut batches = Vec::new();
            while let Some(batch) = rx.recv().await {
                let synced = batch.synced;
                batches.push(batch);
                if synced {
                    return Some(batches);
                }
            }
            None
        };
        tokio::select! {
            // Polled in order, so that what came last is taken before its sender's end is seen.
            biased;
            batches = receive => batches.ok_or_else(|| KubeError::Ended(server())),
            message = health.essential_refusal() => {
                Err(KubeError::Refused { server: server(), message })
            }
            () = tokio::time::sleep(load_timeout) => Err(KubeError::NotSynced {
                server: server(),
                timeout_s: load_timeout.as_secs(),
                waiting: health.unsettled().join(", "),
            }),
            () = self.run(tx) => Err(KubeError::Ended(server())),
        }
    }
}

/// Puts together what the watchers send.
struct Gatherer {
    updates: mpsc::Receiver<Update>,
    /// The kinds whose first list is still to come.
    unsettled: BTreeSet<Kind>,
    /// What ConfigMaps say about others' objects.
    decided: Decided,
}

impl Gatherer {
    /// Waits for an update and takes along what else is ready. `None` when there are no watchers.
    async fn next(&mut self) -> Option<Batch> {
        let was_synced = self.unsettled.is_empty();
        let mut batch = Batch { changes: Vec::new(), synced: was_synced };
        // A kind that settles with nothing in it is no news until it is the last.
        while batch.changes.is_empty() && batch.synced == was_synced {
            let first = self.updates.recv().await?;
            self.take(first, &mut batch);
            while batch.changes.len() < BATCH_CHANGES_MAX
                && let Ok(update) = self.updates.try_recv()
            {
                self.take(update, &mut batch);
            }
            batch.synced = self.unsettled.is_empty();
        }
        Some(batch)
    }

    fn take(&mut self, mut update: Update, batch: &mut Batch) {
        if update.kind == Kind::ConfigMap {
            self.decided.extend(&mut update.changes);
        }
        if update.settled {
            self.unsettled.remove(&update.kind);
        }
        batch.changes.extend(update.changes);
    }
}
