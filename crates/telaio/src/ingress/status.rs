//! What the plane passes on to the cluster: whose Ingresses, their warnings, the nodes' addresses.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use parking_lot::Mutex;
use telaio_gateway::listener::node_addresses;
use telaio_gateway::status::{StatusHandle, StatusSettings, StatusWriter};
use telaio_gateway::{Commit, IngressEvent, Warning};
use telaio_model::{Ingress, Kind, Node, Object, ObjectKey, Op};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::worker::reason;

/// Nothing is told where there is nobody to tell: outside of a cluster warnings are in the log only.
#[derive(Clone, Default)]
pub(crate) struct Told {
    inner: Option<Arc<Inner>>,
}

struct Inner {
    handle: StatusHandle,
    known: Mutex<Known>,
    stop: watch::Sender<bool>,
    writing: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Default)]
struct Known {
    ingresses: BTreeMap<ObjectKey, Arc<Ingress>>,
    nodes: BTreeMap<ObjectKey, Arc<Node>>,
    nodes_changed: bool,
    /// Of which Ingresses a worker has said that they are ours, or what is wrong with them.
    told: BTreeSet<ObjectKey>,
    /// Of those the ones of which the present worker has said nothing yet.
    stale: BTreeSet<ObjectKey>,
    /// Said to be ours while the view began anew and had not come to them.
    missing: BTreeSet<ObjectKey>,
}

impl Told {
    /// Tells a cluster through its API server. Must be called within the runtime.
    pub(crate) fn start(client: telaio_source::kube::Client, settings: StatusSettings) -> Self {
        let (writer, handle) = StatusWriter::new(client, settings);
        let (stop, mut stopped) = watch::channel(false);
        let writing = tokio::spawn(writer.run(async move {
            // Whoever could stop us is gone: so we stop.
            let _ = stopped.wait_for(|stop| *stop).await;
        }));
        let inner =
            Inner { handle, known: Mutex::default(), stop, writing: Mutex::new(Some(writing)) };
        Self { inner: Some(Arc::new(inner)) }
    }

    /// Sees an operation on its way to the worker.
    pub(crate) fn see(&self, op: &Op) {
        let Some(inner) = &self.inner else { return };
        let mut known = inner.known.lock();
        match op {
            Op::SetObject(Object::Ingress(ingress)) => {
                let key = &ingress.meta.key;
                known.ingresses.insert(key.clone(), Arc::clone(ingress));
                if known.missing.remove(key) {
                    let ours = [(key.clone(), Some(Arc::clone(ingress)))].into();
                    inner.handle.tell(&Commit { ours, ..Commit::default() });
                }
            }
            Op::DeleteObject(gone) if gone.kind == Kind::Ingress => {
                known.ingresses.remove(&gone.key);
                known.missing.remove(&gone.key);
            }
            Op::SetObject(Object::Node(node)) => {
                known.nodes.insert(node.meta.key.clone(), Arc::clone(node));
                known.nodes_changed = true;
            }
            Op::DeleteObject(gone) if gone.kind == Kind::Node => {
                known.nodes.remove(&gone.key);
                known.nodes_changed = true;
            }
            Op::Reset => {
                known.ingresses.clear();
                known.nodes.clear();
                known.nodes_changed = true;
            }
            Op::Sync if std::mem::take(&mut known.nodes_changed) => {
                let addresses = node_addresses(known.nodes.values().map(|node| &**node));
                inner.handle.note(&IngressEvent::Nodes(addresses));
            }
            _ => {}
        }
    }

    /// Another worker begins: what it does not say holds no more, once it has said everything.
    pub(crate) fn begin(&self) {
        if let Some(inner) = &self.inner {
            let mut known = inner.known.lock();
            let told = known.told.clone();
            known.stale = told;
        }
    }

    /// The worker has said everything that holds now.
    pub(crate) fn loaded(&self) {
        let Some(inner) = &self.inner else { return };
        let mut known = inner.known.lock();
        let mut commit = Commit::default();
        for key in std::mem::take(&mut known.stale) {
            known.told.remove(&key);
            commit.ours.insert(key.clone(), None);
            commit.warnings.insert(key, Vec::new());
        }
        drop(known);
        inner.handle.tell(&commit);
    }

    /// Passes on what the worker reports.
    pub(crate) fn report(
        &self,
        warnings: &BTreeMap<String, Vec<(String, String)>>,
        ours: &BTreeMap<String, bool>,
    ) {
        let Some(inner) = &self.inner else { return };
        let mut known = inner.known.lock();
        let mut commit = Commit::default();
        for (text, is_ours) in ours {
            let key = ObjectKey::parse(text);
            let was_stale = known.stale.remove(&key);
            if was_stale && !warnings.contains_key(text) {
                // It tells of warnings only where there are some.
                commit.warnings.insert(key.clone(), Vec::new());
            }
            if !*is_ours {
                known.told.remove(&key);
                known.missing.remove(&key);
                commit.ours.insert(key, None);
                continue;
            }
            known.told.insert(key.clone());
            let ingress = known.ingresses.get(&key).cloned();
            if ingress.is_some() {
                commit.ours.insert(key, ingress);
            } else {
                known.missing.insert(key);
            }
        }
        for (text, list) in warnings {
            let key = ObjectKey::parse(text);
            let of = |(name, message): &(String, String)| Warning::new(&key, reason(name), message);
            let list = list.iter().map(of).collect();
            commit.warnings.insert(key, list);
        }
        drop(known);
        inner.handle.tell(&commit);
    }

    /// Gives back what we hold in the cluster.
    pub(crate) async fn end(&self) {
        let Some(inner) = &self.inner else { return };
        inner.stop.send_replace(true);
        let writing = inner.writing.lock().take();
        if let Some(writing) = writing {
            // A fault in there has been logged.
            let _ = writing.await;
        }
    }
}
