//! The backend `view`: it prints the node view instead of programming it.
//!
//! For people who want to see, and for whoever writes the next backend: it is the smallest one that
//! does everything a backend does. A sink leaves the view's differences in an inbox; the
//! sync loop takes them from there, compiles the services concerned, and applies the difference. Only
//! what "apply" does is special: it prints, one YAML document a sync.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Serialize;
use telaio_model::{ObjectKey, ServiceEndpoints};
use telaio_reconcile::kpng::{Backend, Inbox, Sink, SinkError, Syncing};
use telaio_reconcile::target::compile_by_parts;
use telaio_reconcile::{
    ApplyError, Change, Observed, PartReconciler, PartialTarget, SyncKind, SyncReport, Syncer,
    Target,
};

use super::{BackendContext, SharedOutput};

/// How long a sync that was asked for by name may take.
const SYNC_TIME_MAX: std::time::Duration = std::time::Duration::from_mins(1);

/// One node's whole view, as it is printed.
#[derive(Debug, Serialize)]
pub(crate) struct NodeView<'a> {
    pub(crate) node: &'a str,
    pub(crate) services: Vec<&'a ServiceEndpoints>,
}

/// What one sync changed, as it is printed.
#[derive(Debug, Default, Serialize)]
struct ViewChange<'a> {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    created: Vec<&'a ServiceEndpoints>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    updated: Vec<&'a ServiceEndpoints>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    deleted: Vec<String>,
}

type Services = BTreeMap<ObjectKey, ServiceEndpoints>;

/// Prints services.
struct ViewTarget {
    output: SharedOutput,
}

impl Target for ViewTarget {
    type Input = Services;
    type Key = ObjectKey;
    type Item = ServiceEndpoints;

    fn compile(&self, input: &Services) -> BTreeMap<ObjectKey, ServiceEndpoints> {
        compile_by_parts(self, input)
    }

    /// What was printed cannot be read back; so to begin with, and after an error, there is nothing.
    fn observe(&mut self) -> Result<Observed<ObjectKey, ServiceEndpoints>, ApplyError> {
        Ok(Observed::nothing())
    }

    fn apply(&mut self, changes: &[Change<ObjectKey, ServiceEndpoints>]) -> Result<(), ApplyError> {
        let mut document = ViewChange::default();
        for change in changes {
            match change {
                Change::Create { new, .. } => document.created.push(new),
                Change::Update { new, .. } => document.updated.push(new),
                Change::Delete { key, .. } => document.deleted.push(key.to_string()),
            }
        }
        let text = serde_saphyr::to_string(&document)
            .map_err(|error| ApplyError::Refused(error.to_string()))?;
        let mut output = self.output.lock();
        write!(output, "---\n{text}")
            .and_then(|()| output.flush())
            .map_err(|error| ApplyError::from_io("printing the view", error))
    }
}

impl PartialTarget for ViewTarget {
    type Part = ObjectKey;

    fn parts(&self, input: &Services) -> Vec<ObjectKey> {
        input.keys().cloned().collect()
    }

    fn compile_part(
        &self,
        input: &Services,
        part: &ObjectKey,
    ) -> Vec<(ObjectKey, ServiceEndpoints)> {
        input.get(part).map(|entry| (part.clone(), entry.clone())).into_iter().collect()
    }
}

/// The view as the last sync left it, and what came since.
struct ViewSyncer {
    inbox: Inbox,
    services: Services,
    reconciler: PartReconciler<ViewTarget>,
}

impl Syncer for ViewSyncer {
    fn sync(&mut self, kind: SyncKind) -> Result<SyncReport, ApplyError> {
        let news = self.inbox.take().services;
        let mut changed = Vec::with_capacity(news.len());
        for (key, entry) in news {
            match entry {
                Some(entry) => drop(self.services.insert(key.clone(), entry)),
                None => drop(self.services.remove(&key)),
            }
            changed.push(key);
        }
        match kind {
            // Nobody can change what was printed: there is no drift.
            SyncKind::Changes | SyncKind::Drift => {
                self.reconciler.reconcile_part(&changed, &self.services)
            }
            SyncKind::Full => self.reconciler.reconcile(&self.services),
        }
    }
}

/// The backend.
pub(super) struct ViewBackend {
    context: BackendContext,
    syncing: Syncing,
}

impl ViewBackend {
    /// Its name.
    pub(super) const NAME: &str = "view";

    pub(super) fn new(context: BackendContext) -> Self {
        Self { context, syncing: Syncing::default() }
    }
}

impl Backend for ViewBackend {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn setup(&mut self) -> Result<(), SinkError> {
        let target = ViewTarget { output: Arc::clone(&self.context.output) };
        let syncer = ViewSyncer {
            inbox: self.syncing.inbox(),
            services: Services::new(),
            reconciler: PartReconciler::new(target),
        };
        let handle = self.syncing.start("telaio-sync", self.context.pacing, syncer)?;
        self.context.monitor.set_sync_loop(handle);
        Ok(())
    }

    fn reset(&mut self) {
        self.syncing.reset();
    }

    fn sync(&mut self) -> Result<(), SinkError> {
        self.syncing.sync(SYNC_TIME_MAX)
    }

    fn sink(self: Box<Self>) -> Box<dyn Sink> {
        self.syncing.sink(self.context.node)
    }
}

#[cfg(test)]
mod tests;
