//! The backend `hcn`: registered as a full-state sink, from the node view to HNS.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use telaio_hcn::{Event, Hcn, HcnError, Watch};
use telaio_model::{Object, ObjectKey, ObjectRef, ServiceEndpoints};
use telaio_reconcile::kpng::{Backend, Inbox, News, Sink, SinkError, Syncing};
use telaio_reconcile::{ApplyError, SyncHandle, SyncKind, SyncReport, Syncer};

use super::compile::Nodes;
use super::core::{Core, Failure, Outcome, PreRunError};
use super::options::HcnOptions;
use crate::config::NodeFacts;
use crate::options::{Programmed, ProxyOptions};
use crate::plan::balance_problem;

/// How long a sync that was asked for by name may take. HNS is slow: a cold start of thousands of services
/// takes minutes.
const SYNC_TIME_MAX: Duration = Duration::from_mins(10);
/// How many failures are named in the log.
const FAILURES_NAMED_MAX: usize = 5;

/// The backend.
pub struct HcnBackend {
    options: ProxyOptions,
    hcn_options: HcnOptions,
    hcn: Arc<dyn Hcn>,
    syncing: Syncing<Option<Watch>>,
}

/// What HNS tells between syncs.
#[derive(Debug, Default)]
struct Signals {
    /// HNS stopped: its objects may be gone.
    restarted: AtomicBool,
    /// A network came or went.
    networks: AtomicBool,
}

impl Signals {
    /// Whether it has to be looked into.
    fn note(&self, event: Event) -> bool {
        let signal = match event {
            Event::Disconnected => &self.restarted,
            Event::NetworkCreated | Event::NetworkDeleted => &self.networks,
            _ => return false,
        };
        signal.store(true, Ordering::Release);
        true
    }
}

impl HcnBackend {
    /// Its name.
    pub const NAME: &str = "hcn";

    /// A backend that is not set up yet.
    pub fn new(options: ProxyOptions, hcn_options: HcnOptions, hcn: Arc<dyn Hcn>) -> Self {
        Self { options, hcn_options, hcn, syncing: Syncing::default() }
    }
}

impl Backend for HcnBackend {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn setup(&mut self) -> Result<(), SinkError> {
        let hcn = Arc::clone(&self.hcn);
        let options = (&self.options, &self.hcn_options);
        let mut syncer = HcnSyncer::new(options, hcn, self.syncing.inbox());
        match syncer.core.pre_run(&syncer.node) {
            Err(error) if !error.may_pass() => return Err(SinkError::Setup(error.to_string())),
            Err(error) => tracing::warn!(%error, "cannot program services yet; will try again"),
            Ok(()) => {}
        }
        let signals = Arc::clone(&syncer.signals);
        let handle = self.syncing.start("telaio-hcn", self.options.pacing, syncer)?;
        self.options.follower.started(&handle);
        self.syncing.keep(watch(self.hcn.as_ref(), &handle, signals));
        Ok(())
    }

    fn reset(&mut self) {
        self.syncing.reset();
    }

    fn sync(&mut self) -> Result<(), SinkError> {
        self.syncing.sync(SYNC_TIME_MAX)
    }

    fn sink(self: Box<Self>) -> Box<dyn Sink> {
        self.syncing.sink(self.options.node)
    }
}

/// Has HNS tell when it stops. Without that, what is gone is found by the periodic sync.
fn watch(hcn: &dyn Hcn, handle: &SyncHandle, signals: Arc<Signals>) -> Option<Watch> {
    let handle = handle.clone();
    let listener = Arc::new(move |event: Event| {
        if signals.note(event) {
            handle.drift_suspected();
        }
    });
    match hcn.watch(listener) {
        Ok(watch) => Some(watch),
        Err(error) => {
            tracing::warn!(%error, "cannot watch HNS; a restart of it is found later");
            None
        }
    }
}

/// Keeps HNS in line, on the sync loop's thread.
pub struct HcnSyncer {
    options: ProxyOptions,
    inbox: Inbox,
    core: Core,
    signals: Arc<Signals>,
    /// Nodes and the service networks, as the cluster has them.
    objects: BTreeMap<ObjectRef, Object>,
    node: NodeFacts,
    /// Services that changed and are not in HNS yet.
    unapplied: BTreeMap<ObjectKey, Option<ServiceEndpoints>>,
    /// No sync has succeeded yet.
    first: bool,
}

impl Syncer for HcnSyncer {
    fn sync(&mut self, kind: SyncKind) -> Result<SyncReport, ApplyError> {
        // HNS may call before the first state is here.
        let Some(news) = self.inbox.take_known() else { return Ok(SyncReport::too_early()) };
        let node_changed = self.take_objects(&news);
        if self.signals.restarted.swap(false, Ordering::AcqRel) {
            tracing::warn!("HNS stopped; looking at everything again");
            self.core.forget_there();
        }
        let networks = self.signals.networks.swap(false, Ordering::AcqRel);
        let has_ground = self.core.ground().is_some();
        let surveys = !has_ground || node_changed || networks || self.core.is_stale();
        self.take_services(news);
        if surveys || kind != SyncKind::Changes {
            self.core.pre_run(&self.node).map_err(pre_run_error)?;
        }
        if kind == SyncKind::Full {
            self.core.recompile();
        }
        let gone = self.observe(kind)?;
        let outcome = self.core.program_host_compute_objects();
        self.finish(kind, gone, &outcome)
    }
}

impl HcnSyncer {
    /// One that programs what comes into the inbox. Nothing is done before the first sync.
    pub fn new(
        (options, hcn_options): (&ProxyOptions, &HcnOptions),
        hcn: Arc<dyn Hcn>,
        inbox: Inbox,
    ) -> Self {
        let mut syncer = Self {
            core: Core::new(hcn, Arc::clone(&options.config), hcn_options.clone()),
            options: options.clone(),
            inbox,
            signals: Arc::default(),
            objects: BTreeMap::new(),
            node: NodeFacts::default(),
            unapplied: BTreeMap::new(),
            first: true,
        };
        syncer.learn_node();
        syncer
    }

    /// HNS tells that something happened; the next sync looks into it.
    pub fn note(&self, event: Event) {
        self.signals.note(event);
    }

    /// What it programs.
    pub fn core(&self) -> &Core {
        &self.core
    }

    /// Whether the node is another one than before.
    fn take_objects(&mut self, news: &News) -> bool {
        for (at, object) in &news.objects {
            match object {
                Some(object) => _ = self.objects.insert(at.clone(), object.clone()),
                None => _ = self.objects.remove(at),
            }
        }
        !news.objects.is_empty() && self.learn_node()
    }

    fn learn_node(&mut self) -> bool {
        let (name, own) = (&self.options.node, &self.options.node_addresses);
        let node = NodeFacts::from_objects(name, own, self.objects.values());
        let nodes: Nodes = self.objects.values().filter_map(node_addresses).collect();
        self.core.set_nodes(nodes);
        let differs = node != self.node;
        self.node = node;
        differs
    }

    fn take_services(&mut self, news: News) {
        for problem in news.services.values().flatten().filter_map(balance_problem) {
            tracing::warn!("{problem}");
        }
        self.core.callback(&news.services);
        self.unapplied.extend(news.services);
    }

    /// Looks at HNS where there is reason to. How many of ours were gone.
    fn observe(&mut self, kind: SyncKind) -> Result<usize, ApplyError> {
        // A pod of this node may have come, or come again, with another endpoint at the same address.
        let has_local = |entry: &ServiceEndpoints| entry.endpoints.iter().any(|it| it.local);
        let pods_changed = self.unapplied.values().flatten().any(has_local);
        let looks = kind != SyncKind::Changes
            || self.core.is_stale()
            || self.core.is_lacking()
            || pods_changed;
        if !looks {
            return Ok(0);
        }
        let gone = self.core.observe().map_err(|error| hcn_error(&error))?;
        if gone > 0 {
            tracing::warn!(gone, "objects of ours are missing in HNS; making them again");
        }
        Ok(gone)
    }

    fn finish(
        &mut self,
        kind: SyncKind,
        gone: usize,
        outcome: &Outcome,
    ) -> Result<SyncReport, ApplyError> {
        let report = SyncReport { drift_repairs: gone, ..outcome.report };
        if outcome.is_down {
            return Err(outcome
                .error()
                .unwrap_or_else(|| ApplyError::Transient("HNS is down".into())));
        }
        log_failures(&outcome.failures);
        // One service's trouble is not the others': they count as programmed.
        let failed: BTreeSet<&ObjectKey> =
            outcome.failures.iter().filter_map(|failure| failure.service.as_ref()).collect();
        let (pending, changed): (BTreeMap<_, _>, BTreeMap<_, _>) =
            std::mem::take(&mut self.unapplied)
                .into_iter()
                .partition(|(key, _)| failed.contains(key));
        self.unapplied = pending;
        let error = outcome.error();
        let first = error.is_none() && std::mem::take(&mut self.first);
        let node = &self.node;
        self.options.follower.programmed(&Programmed { kind, first, changed: &changed, node });
        error.map_or(Ok(report), Err)
    }
}

/// What a Node object says of where its node is; none for other objects.
pub fn node_addresses(object: &Object) -> Option<(Arc<str>, Vec<std::net::IpAddr>)> {
    match object {
        Object::Node(node) => {
            let addresses = node.addresses.iter().map(|address| address.ip).collect();
            Some((Arc::clone(&node.meta.key.name), addresses))
        }
        _ => None,
    }
}

fn hcn_error(error: &HcnError) -> ApplyError {
    Failure { service: None, error: error.clone() }.to_apply_error()
}

fn pre_run_error(error: PreRunError) -> ApplyError {
    match error {
        PreRunError::Hcn(error) => hcn_error(&error),
        error if error.may_pass() => ApplyError::Transient(error.to_string()),
        error => ApplyError::Unsupported(error.to_string()),
    }
}

fn log_failures(failures: &[Failure]) {
    for failure in failures.iter().take(FAILURES_NAMED_MAX) {
        let service = failure.service.as_ref().map(ToString::to_string).unwrap_or_default();
        tracing::error!(error = %failure.error, service, "not programmed; will be tried again");
    }
    if let Some(more) = failures.len().checked_sub(FAILURES_NAMED_MAX).filter(|more| *more > 0) {
        tracing::error!(more, "further objects were not programmed");
    }
}
