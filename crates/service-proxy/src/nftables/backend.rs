//! The backend `nftables`: from the node view to the kernel, and watching over it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use telaio_model::{Object, ObjectKey, ServiceEndpoints};
use telaio_netlink::NetlinkError;
use telaio_netlink::nftables::{Batch, Family, Nftables, Touched, Watcher};
use telaio_reconcile::kpng::{Backend, Inbox, News, Sink, SinkError, Syncing};
use telaio_reconcile::{ApplyError, PartReconciler, SyncHandle, SyncKind, SyncReport, Syncer};

use super::desired::{Desired, Part};
use super::layout::TABLE;
use super::probe;
use super::target::{Kernel, Reads};
use crate::config::NodeFacts;
use crate::options::{Programmed, ProxyOptions};
use crate::plan::balance_problem;

/// How long a sync that was asked for by name may take.
const SYNC_TIME_MAX: Duration = Duration::from_mins(1);
/// How often the watcher looks whether it should end.
const WATCH_PAUSE: Duration = Duration::from_millis(200);
/// The table of kube-proxy's nftables mode.
const KUBE_PROXY_TABLE: &str = "kube-proxy";

/// The backend.
pub struct NftablesBackend {
    options: ProxyOptions,
    reads: Arc<Reads>,
    syncing: Syncing<Watching>,
}

impl NftablesBackend {
    /// Its name.
    pub const NAME: &str = "nftables";

    /// A backend that is not set up yet.
    pub fn new(options: ProxyOptions) -> Self {
        Self { options, reads: Arc::default(), syncing: Syncing::default() }
    }

    /// How often it reads tables back; the numbers follow the backend.
    pub fn reads(&self) -> Arc<Reads> {
        Arc::clone(&self.reads)
    }
}

impl Backend for NftablesBackend {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn setup(&mut self) -> Result<(), SinkError> {
        let failed = |error: String| SinkError::Setup(error);
        let config = Arc::clone(&self.options.config);
        let mut kernel =
            Kernel::open(&config.families).map_err(|error| failed(open_hint(&error)))?;
        probe::check(kernel.nft(), &config.families).map_err(|error| failed(error.to_string()))?;
        let kernel = kernel.counting_in(Arc::clone(&self.reads));
        let watch = Arc::new(Watch::default());
        let node = NodeFacts::default();
        let syncer = NftablesSyncer {
            inbox: self.syncing.inbox(),
            desired: Desired::new(config, node, self.options.localhost),
            reconciler: PartReconciler::new(kernel),
            options: self.options.clone(),
            unapplied: BTreeMap::new(),
            unapplied_shared: false,
            nodes: BTreeMap::new(),
            first: true,
            everything: false,
            watch: Arc::clone(&watch),
        };
        let handle = self.syncing.start("telaio-nftables", self.options.pacing, syncer)?;
        self.options.follower.started(&handle);
        watch.set_handle(&handle);
        self.syncing.keep(Watching(watch));
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

/// The watch, ended when this is dropped.
struct Watching(Arc<Watch>);

impl Drop for Watching {
    fn drop(&mut self) {
        self.0.stop();
    }
}

fn open_hint(error: &NetlinkError) -> String {
    if error.is_permission() {
        "changing nftables needs root, or CAP_NET_ADMIN in this network namespace".to_owned()
    } else {
        error.to_string()
    }
}

/// Keeps the kernel in line, on the sync loop's thread.
struct NftablesSyncer {
    inbox: Inbox,
    desired: Desired,
    reconciler: PartReconciler<Kernel>,
    options: ProxyOptions,
    /// Services that changed and are not in the kernel yet.
    unapplied: BTreeMap<ObjectKey, Option<ServiceEndpoints>>,
    /// The shared chains changed and are not in the kernel yet.
    unapplied_shared: bool,
    /// Our own Node object and the service networks, as the cluster has them.
    nodes: BTreeMap<telaio_model::ObjectRef, Object>,
    /// No sync has succeeded yet.
    first: bool,
    /// Something that every service depends on changed.
    everything: bool,
    watch: Arc<Watch>,
}

impl Syncer for NftablesSyncer {
    fn sync(&mut self, kind: SyncKind) -> Result<SyncReport, ApplyError> {
        let Some(news) = self.inbox.take_known() else { return Ok(SyncReport::too_early()) };
        self.take_news(news);
        let mended = if self.first { SyncReport::default() } else { self.mend(kind)? };
        let changed = if self.everything || kind == SyncKind::Full {
            self.reconciler.reconcile(&self.desired)?
        } else {
            let parts: Vec<Part> = self.changed_parts();
            self.reconciler.reconcile_part(&parts, &self.desired)?
        };
        self.succeeded(kind);
        Ok(mended.plus(changed))
    }
}

impl NftablesSyncer {
    /// Mends what others have changed. The periodic sync looks at everything, if anybody has changed
    /// any table; it finds what no notice told. Else only what notices told is looked at.
    fn mend(&mut self, kind: SyncKind) -> Result<SyncReport, ApplyError> {
        // Taken first: what is told from here on, somebody did after we began to look.
        let touched = self.watch.take_touched();
        let full = kind == SyncKind::Full && !self.reconciler.target_mut().is_untouched();
        let drift = if full {
            self.reconciler.check_drift()
        } else if touched.is_nothing() {
            return Ok(SyncReport::default());
        } else {
            self.reconciler.check_touched(&touched)
        };
        // Whatever is wrong then, it is still to be found and told.
        let drift = drift.inspect_err(|_| self.watch.note(Touched::anything()))?;
        drift.warn();
        Ok(drift.to_sync_report())
    }

    fn take_news(&mut self, news: News) {
        for (at, object) in news.objects {
            match object {
                Some(object) => _ = self.nodes.insert(at, object),
                None => _ = self.nodes.remove(&at),
            }
        }
        if self.desired.set_node(NodeFacts::from_objects(
            &self.options.node,
            &self.options.node_addresses,
            self.nodes.values(),
        )) {
            self.everything = true;
        }
        for problem in news.services.values().flatten().filter_map(balance_problem) {
            tracing::warn!("{problem}");
        }
        self.unapplied_shared |= self.desired.set_services(&news.services);
        if self.unapplied.is_empty() {
            self.unapplied = news.services;
        } else {
            self.unapplied.extend(news.services);
        }
    }

    fn changed_parts(&self) -> Vec<Part> {
        let services = self.unapplied.keys().flat_map(Part::of_service);
        services.chain(self.unapplied_shared.then_some(Part::Shared)).collect()
    }

    fn succeeded(&mut self, kind: SyncKind) {
        self.everything = false;
        self.unapplied_shared = false;
        let changed = std::mem::take(&mut self.unapplied);
        let first = std::mem::take(&mut self.first);
        if first {
            // Only now: telling a watcher of every element doubles the cost of a large load.
            self.watch.start(self.reconciler.target_mut().port());
            if !self.reconciler.target_mut().is_untouched() {
                self.watch.suspect(Touched::anything());
            }
        }
        let node = self.desired.node();
        self.options.follower.programmed(&Programmed { kind, first, changed: &changed, node });
    }
}

/// The thread that notices what others change.
#[derive(Default)]
struct Watch {
    handle: parking_lot::Mutex<Option<SyncHandle>>,
    thread: parking_lot::Mutex<Option<JoinHandle<()>>>,
    /// What others have touched and no sync has looked at. Bounded by itself.
    touched: parking_lot::Mutex<Touched>,
    ending: Arc<AtomicBool>,
}

impl Watch {
    fn set_handle(&self, handle: &SyncHandle) {
        *self.handle.lock() = Some(handle.clone());
    }

    fn note(&self, touched: Touched) {
        self.touched.lock().add(touched);
    }

    fn take_touched(&self) -> Touched {
        std::mem::take(&mut *self.touched.lock())
    }

    /// Has it looked at. Several suspicions may become one sync; then a sync may find nothing left to
    /// look at, which costs nothing.
    fn suspect(&self, touched: Touched) {
        self.note(touched);
        if let Some(handle) = &*self.handle.lock() {
            handle.drift_suspected();
        }
    }

    /// Begins to watch. Without a watcher drift is found by the periodic sync.
    fn start(self: &Arc<Self>, own_port: u32) {
        let watcher = match Watcher::open(own_port, TABLE) {
            Ok(watcher) => watcher,
            Err(error) => {
                tracing::warn!(%error, "cannot watch nftables; changes by others are found later");
                return;
            }
        };
        let (watch, ending) = (Arc::downgrade(self), Arc::clone(&self.ending));
        let run = move || {
            watch_all(watcher, &ending, |touched| {
                if let Some(watch) = watch.upgrade() {
                    watch.suspect(touched);
                }
            });
        };
        match thread::Builder::new().name("telaio-watch".into()).spawn(run) {
            Ok(thread) => *self.thread.lock() = Some(thread),
            Err(error) => tracing::warn!(%error, "cannot watch nftables: no thread"),
        }
    }

    fn stop(&self) {
        self.ending.store(true, Ordering::Relaxed);
        self.handle.lock().take();
        let thread = self.thread.lock().take();
        if let Some(thread) = thread
            && thread.join().is_err()
        {
            tracing::error!("the thread that watches nftables panicked");
        }
    }
}

fn watch_all(mut watcher: Watcher, ending: &AtomicBool, suspect: impl Fn(Touched)) {
    while !ending.load(Ordering::Relaxed) {
        match watcher.next(WATCH_PAUSE) {
            Ok(Some(notice)) => {
                tracing::debug!(process = notice.process, "somebody changed our table");
                suspect(notice.touched);
            }
            Ok(None) => {}
            Err(error) => {
                tracing::warn!(%error, "no longer watching nftables; changes by others are found later");
                return;
            }
        }
    }
}

/// Removes everything of ours; tells what that was.
pub fn cleanup() -> Result<Vec<String>, NetlinkError> {
    delete_tables(TABLE)
}

/// Removes what kube-proxy's nftables mode has made; tells what that was.
pub fn cleanup_kube_proxy() -> Result<Vec<String>, NetlinkError> {
    delete_tables(KUBE_PROXY_TABLE)
}

/// What shows that kube-proxy's nftables mode is, or was, at work here.
pub fn kube_proxy_present() -> Result<Option<String>, NetlinkError> {
    Ok(has_table(KUBE_PROXY_TABLE)?.then(|| format!("the nftables table {KUBE_PROXY_TABLE}")))
}

fn has_table(name: &str) -> Result<bool, NetlinkError> {
    let Some((_, tables)) = tables()? else { return Ok(false) };
    Ok(tables.iter().any(|(_, table)| table == name))
}

type Tables = Vec<(Family, String)>;

/// Every table; `None` where the kernel has no nftables at all, which is no error for whoever only
/// wants to know whether something is there.
fn tables() -> Result<Option<(Nftables, Tables)>, NetlinkError> {
    let listed = Nftables::open().and_then(|mut nft| {
        let tables = nft.tables()?;
        Ok((nft, tables))
    });
    match listed {
        Ok(listed) => Ok(Some(listed)),
        Err(error) if error.is_unsupported() => Ok(None),
        Err(error) => Err(error),
    }
}

/// Deletes the tables of this name in all families, in one transaction.
fn delete_tables(name: &str) -> Result<Vec<String>, NetlinkError> {
    let Some((mut nft, mut tables)) = tables()? else { return Ok(Vec::new()) };
    tables.retain(|(_, table)| table == name);
    let mut batches: Vec<Batch> = Vec::new();
    for (family, table) in &tables {
        let mut batch = Batch::new(*family, table.as_str());
        batch.delete_table();
        batches.push(batch);
    }
    nft.commit(&mut batches.iter_mut().collect::<Vec<_>>())?;
    Ok(tables.iter().map(|(family, table)| format!("nftables table {family} {table}")).collect())
}
