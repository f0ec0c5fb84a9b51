//! What the cluster is told: where an Ingress can be reached, and what is wrong with it.
//!
//! Of all proxies of a cluster one writes at a time, the holder of a Lease. It writes
//! `status.loadBalancer` of the Ingresses that are ours and whose status is another than it should
//! be, and warnings as Events, each once.
//!
//! What always holds:
//! - nobody writes without holding the Lease, and who cannot renew it stops in time;
//! - what is right already is never written;
//! - a server that refuses or is away delays nothing but the writing.

mod addresses;
mod events;
mod lease;
mod rest;
mod secret;

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::json;
use telaio_model::{Ingress, ObjectKey};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::gateway::Commit;
use crate::listener::IngressEvent;
use crate::warning::Warning;

pub use addresses::Published;
use events::EventWriter;
use lease::Elector;
pub use lease::{LEASE_NAME, LeaseTimes};
use rest::{Rest, RestError};
pub use secret::{COOKIE_SECRET_NAME, SharedSecretError, shared_secret};

/// How many warnings may wait; what is beyond is in the log only.
const WARNINGS_MAX: usize = 1_000;
/// How long to wait after the server refused a write.
const RETRY_PAUSE: Duration = Duration::from_secs(5);
/// How often the published service is looked at.
const PUBLISHED_PERIOD: Duration = Duration::from_secs(10);

/// How the writer works.
#[derive(Debug, Clone)]
pub struct StatusSettings {
    /// Who we are: the node, or the pod.
    pub identity: String,
    /// Where the Lease is.
    pub namespace: String,
    /// The service whose addresses are written; without one those of the nodes are.
    pub publish_service: Option<ObjectKey>,
    /// How long things take.
    pub times: LeaseTimes,
}

/// What is to be told, shared between the gateway and the writer.
#[derive(Debug, Default)]
struct Shared {
    ours: BTreeMap<ObjectKey, Arc<Ingress>>,
    /// Those that are to be looked at, by when that was noted: what is noted while one is being
    /// written is not forgotten when that is done.
    dirty: BTreeMap<ObjectKey, u64>,
    noted: u64,
    warnings: VecDeque<Warning>,
    /// All warnings that hold, for who takes the Lease over.
    standing: BTreeMap<ObjectKey, Vec<Warning>>,
    nodes: Vec<IpAddr>,
}

impl Shared {
    /// This one is to be looked at.
    fn note(&mut self, key: ObjectKey) {
        self.noted += 1;
        self.dirty.insert(key, self.noted);
    }

    /// All are.
    fn note_all(&mut self) {
        let all: Vec<_> = self.ours.keys().cloned().collect();
        for key in all {
            self.note(key);
        }
    }

    /// One was looked at as it was when it was noted then.
    fn done(&mut self, key: &ObjectKey, noted: u64) {
        if self.dirty.get(key) == Some(&noted) {
            self.dirty.remove(key);
        }
    }

    /// The first behind `after` that is to be looked at.
    fn next(&self, after: Option<&ObjectKey>) -> Option<(ObjectKey, u64, Option<Arc<Ingress>>)> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let (key, noted) = self.dirty.range((from, Bound::Unbounded)).next()?;
        Some((key.clone(), *noted, self.ours.get(key).cloned()))
    }
}

/// The gateway's end: takes note, and never waits.
#[derive(Debug, Clone, Default)]
pub struct StatusHandle {
    shared: Arc<Mutex<Shared>>,
    news: Arc<Notify>,
}

impl StatusHandle {
    /// Takes note of a commit.
    pub fn tell(&self, commit: &Commit) {
        let mut shared = self.shared.lock();
        for (key, ingress) in &commit.ours {
            if let Some(ingress) = ingress {
                shared.ours.insert(key.clone(), Arc::clone(ingress));
                shared.note(key.clone());
            } else {
                shared.ours.remove(key);
                // What was written to it is to be forgotten.
                shared.note(key.clone());
            }
        }
        for (key, warnings) in &commit.warnings {
            let before = shared.standing.remove(key).unwrap_or_default();
            for warning in warnings.iter().filter(|it| !before.contains(it)) {
                if shared.warnings.len() < WARNINGS_MAX {
                    shared.warnings.push_back(warning.clone());
                }
            }
            if !warnings.is_empty() {
                shared.standing.insert(key.clone(), warnings.clone());
            }
        }
        drop(shared);
        self.news.notify_one();
    }

    /// Takes note of the nodes' addresses.
    pub fn note(&self, event: &IngressEvent) {
        if let IngressEvent::Nodes(addresses) = event {
            let mut shared = self.shared.lock();
            if shared.nodes != *addresses {
                shared.nodes.clone_from(addresses);
                shared.note_all();
                drop(shared);
                self.news.notify_one();
            }
        }
    }
}

/// Writes to the API server.
pub struct StatusWriter {
    elector: Elector,
    writing: Writing,
}

/// What the holder of the Lease does.
struct Writing {
    settings: StatusSettings,
    handle: StatusHandle,
    rest: Rest,
    events: EventWriter,
    published: Option<Published>,
    published_at: Option<Instant>,
    /// What was written and has not come back yet.
    written: BTreeMap<ObjectKey, Published>,
}

impl StatusWriter {
    /// A writer through this client, and the end at which it is told what to write.
    pub fn new(client: kube::Client, settings: StatusSettings) -> (Self, StatusHandle) {
        let rest = Rest::new(client);
        let handle = StatusHandle::default();
        let elector = Elector::new(rest.clone(), &settings);
        let events = EventWriter::new(rest.clone(), settings.identity.clone());
        let writing = Writing {
            settings,
            handle: handle.clone(),
            rest,
            events,
            published: None,
            published_at: None,
            written: BTreeMap::new(),
        };
        (Self { elector, writing }, handle)
    }

    /// Works until `stop` is done, then gives the Lease back, so that the next need not wait.
    pub async fn run(self, stop: impl Future<Output = ()>) {
        let Self { mut elector, mut writing } = self;
        tokio::pin!(stop);
        loop {
            tokio::select! {
                () = &mut stop => break,
                () = elector.acquire() => {}
            }
            writing.begin();
            // A renewal goes on beside what is being written, and the end of the Lease breaks it off.
            tokio::select! {
                () = &mut stop => break,
                () = elector.hold() => tracing::warn!("the Lease for writing status was lost"),
                () = writing.work() => {}
            }
        }
        elector.release().await;
    }
}

impl Writing {
    /// We are the writer now: everything is to be looked at, and what holds is to be told.
    fn begin(&mut self) {
        tracing::info!(
            identity = self.settings.identity,
            "this proxy writes the status of Ingresses"
        );
        self.written.clear();
        self.published_at = None;
        let mut shared = self.handle.shared.lock();
        shared.note_all();
        let standing = shared.standing.values().flatten().take(WARNINGS_MAX).cloned();
        shared.warnings = standing.collect();
    }

    /// Writes whatever there is to write, for as long as we may.
    async fn work(&mut self) {
        loop {
            let news = Arc::clone(&self.handle.news);
            match self.write().await {
                // The published service may be another by then: nobody tells us.
                Ok(()) => drop(tokio::time::timeout(PUBLISHED_PERIOD, news.notified()).await),
                Err(_) => tokio::time::sleep(RETRY_PAUSE).await,
            }
        }
    }

    /// Writes what there is to write. What could not be written, or was broken off amid it, is still
    /// to be written; one that is refused keeps no other waiting.
    async fn write(&mut self) -> Result<(), RestError> {
        self.look_at_published().await?;
        let (mut after, mut refused) = (None, None);
        loop {
            let next = self.handle.shared.lock().next(after.as_ref());
            let Some((key, noted, ingress)) = next else { break };
            match self.write_status(&key, ingress.as_deref()).await {
                Ok(()) => self.handle.shared.lock().done(&key, noted),
                Err(error) => {
                    tracing::warn!(ingress = %key, %error, "the status cannot be written; trying again");
                    if !error.is_refused() {
                        return Err(error);
                    }
                    refused = Some(error);
                }
            }
            after = Some(key);
        }
        loop {
            let Some(warning) = self.handle.shared.lock().warnings.front().cloned() else { break };
            let written = self.events.write(&warning).await;
            if let Err(error) = &written {
                tracing::warn!(%error, "an Event cannot be written");
            }
            // One that is refused would be refused again: it is in the log.
            let over = written.as_ref().err().is_none_or(RestError::is_refused);
            let mut shared = self.handle.shared.lock();
            if over && shared.warnings.front() == Some(&warning) {
                shared.warnings.pop_front();
            }
            drop(shared);
            if !over {
                return written;
            }
        }
        refused.map_or(Ok(()), Err)
    }

    /// Looks at the service whose addresses are published; if they differ, all statuses do.
    async fn look_at_published(&mut self) -> Result<(), RestError> {
        let due = self.published_at.is_none_or(|at| at.elapsed() >= PUBLISHED_PERIOD);
        let now = match &self.settings.publish_service {
            // No node is no news: what is written stays until there is something better to say.
            None => {
                let published = Published::of_nodes(&self.handle.shared.lock().nodes);
                Some(published).filter(|it| *it != Published::default())
            }
            Some(_) if !due => return Ok(()),
            Some(key) => {
                self.published_at = Some(Instant::now());
                let path = format!("/api/v1/namespaces/{}/services/{}", key.namespace, key.name);
                match self.rest.get(&path).await {
                    Ok(service) => Some(Published::of_service(&service)),
                    Err(error) if error.is_not_found() => {
                        tracing::warn!(service = %key, "the service of --publish-service is not there");
                        None
                    }
                    Err(error) => return Err(error),
                }
            }
        };
        if now != self.published {
            self.published = now;
            self.handle.shared.lock().note_all();
        }
        Ok(())
    }

    async fn write_status(
        &mut self,
        key: &ObjectKey,
        ingress: Option<&Ingress>,
    ) -> Result<(), RestError> {
        let (Some(ingress), Some(wanted)) = (ingress, &self.published) else {
            self.written.remove(key);
            return Ok(());
        };
        if Published::of_ingress(ingress) == *wanted {
            self.written.remove(key);
            return Ok(());
        }
        if self.written.get(key) == Some(wanted) {
            return Ok(());
        }
        let path = format!(
            "/apis/networking.k8s.io/v1/namespaces/{}/ingresses/{}/status",
            key.namespace, key.name
        );
        let body = json!({"status": {"loadBalancer": {"ingress": wanted.to_json()}}});
        match self.rest.merge_patch(&path, &body).await {
            Ok(_) => {
                tracing::debug!(ingress = %key, "status written");
                self.written.insert(key.clone(), wanted.clone());
                Ok(())
            }
            // It went in the meantime.
            Err(error) if error.is_not_found() => Ok(()),
            Err(error) => Err(error),
        }
    }
}
