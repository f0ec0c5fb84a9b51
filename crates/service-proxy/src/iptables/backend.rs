//! The backend: from the node view's operations to syncs of both families.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use telaio_model::{
    EndpointRef, IpFamily, LocalEndpoint, LocalService, Object, ObjectKey, ObjectRef,
};
use telaio_reconcile::kpng::{Backend, Decoder, DecoderSink, FilterReset, Sink, SinkError};
use telaio_reconcile::{ApplyError, SyncHandle, SyncKind, SyncReport, Syncer, sync_loop};

use crate::config::{DetectLocal, NodeFacts};
use crate::options::{Programmed, ProxyOptions};

use super::balance;
use super::compile::Context;
use super::programs::{Flavor, Programs};
use super::proxier::{Changes, Counters, Iptables, Services, View};
use super::trackers::{EndpointChangeTracker, NodeTracker, ServiceChangeTracker, take_changes};
use super::watch::{ChainAt, Probes, SyncEnd, THOROUGH_PERIOD_MIN, Thorough, Watch, Watcher};

/// How long a sync that was asked for by name may take.
const SYNC_TIME_MAX: Duration = Duration::from_mins(5);
/// The longest name that an interface can have.
const INTERFACE_BYTES_MAX: usize = 15;
const TCP_BE_LIBERAL: &str = "/proc/sys/net/netfilter/nf_conntrack_tcp_be_liberal";

/// What the view has brought and no sync has taken up yet.
#[derive(Debug, Default)]
struct Feed {
    /// The newest of each service that changed: bounded by the number of services.
    changes: Changes,
    node: NodeFacts,
    /// The view has been whole once. Before that nothing may be removed for not being in it.
    is_whole: bool,
}

/// Numbers for metrics, by family, as the last sync left them. None before the first.
pub type SharedCounters = Arc<Mutex<BTreeMap<IpFamily, Counters>>>;

/// The backend `iptables`.
#[derive(Debug)]
pub struct IptablesBackend {
    options: ProxyOptions,
    flavor: Flavor,
    feed: Arc<Mutex<Feed>>,
    counters: SharedCounters,
    thorough_period_min: Duration,
    running: Option<Running>,
}

/// What set-up has started.
struct Running {
    handle: SyncHandle,
    watcher: Watcher,
}

impl std::fmt::Debug for Running {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Running").field("handle", &self.handle).finish_non_exhaustive()
    }
}

impl IptablesBackend {
    /// Its name.
    pub const NAME: &str = "iptables";

    /// A backend that uses this flavour of iptables.
    pub fn new(options: ProxyOptions, flavor: Flavor) -> Self {
        Self {
            options,
            flavor,
            feed: Arc::default(),
            counters: SharedCounters::default(),
            thorough_period_min: THOROUGH_PERIOD_MIN,
            running: None,
        }
    }

    /// How often the older tables are read in full at most, where nothing tells that they changed; for
    /// tests of what tells. Has to be set before set-up.
    #[doc(hidden)]
    pub fn set_thorough_period_min(&mut self, period: Duration) {
        self.thorough_period_min = period;
    }

    /// Numbers for metrics; they follow the backend.
    pub fn counters(&self) -> SharedCounters {
        Arc::clone(&self.counters)
    }

    fn running(&self) -> Result<&Running, SinkError> {
        self.running.as_ref().ok_or_else(|| SinkError::Setup("not set up yet".into()))
    }
}

impl Backend for IptablesBackend {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn setup(&mut self) -> Result<(), SinkError> {
        let config = &self.options.config;
        check_interface(&config.detect_local)?;
        let programs: Vec<Programs> = config
            .families
            .iter()
            .map(|family| Programs::find(self.flavor, *family))
            .collect::<Result<_, _>>()
            .map_err(|error| SinkError::Setup(error.to_string()))?;
        for programs in &programs {
            // Whatever would make the first sync fail is told now.
            programs.check()?;
        }
        let probes = Probes::new(&programs);
        let watch = Arc::new(Watch::new(probes.cheap, probes.lock));
        let syncer = IptablesSyncer::new(
            &self.options,
            programs,
            Arc::clone(&self.feed),
            Arc::clone(&watch),
            Arc::clone(&self.counters),
        );
        let no_thread = |error| SinkError::Setup(format!("cannot start a thread: {error}"));
        let handle =
            sync_loop::spawn("telaio-sync", self.options.pacing, syncer).map_err(no_thread)?;
        let thorough = probes.thorough.map(|it| Thorough::new(it, self.thorough_period_min));
        let watcher = watch.start(handle.clone(), thorough).map_err(no_thread)?;
        self.options.follower.started(&handle);
        self.running = Some(Running { handle, watcher });
        Ok(())
    }

    fn reset(&mut self) {
        if let Some(running) = &self.running {
            running.handle.resync();
        }
    }

    fn sync(&mut self) -> Result<(), SinkError> {
        let handle = &self.running()?.handle;
        handle.resync();
        if handle.wait_synced(SYNC_TIME_MAX) { Ok(()) } else { Err(SinkError::Closed) }
    }

    fn sink(self: Box<Self>) -> Box<dyn Sink> {
        let decoder = IptablesDecoder {
            services: ServiceChangeTracker::default(),
            endpoints: EndpointChangeTracker::default(),
            node: NodeTracker::new(self.options.node, self.options.node_addresses),
            feed: self.feed,
            running: self.running,
        };
        Box::new(FilterReset::new(DecoderSink::new(decoder)))
    }
}

/// An interface's name becomes part of a rule's text.
fn check_interface(detect_local: &DetectLocal) -> Result<(), SinkError> {
    let (DetectLocal::BridgeInterface(name) | DetectLocal::InterfaceNamePrefix(name)) =
        detect_local
    else {
        return Ok(());
    };
    let plain = |byte: u8| byte.is_ascii_graphic() && !b"\"'\\/+!".contains(&byte);
    if !name.is_empty() && name.len() <= INTERFACE_BYTES_MAX && name.bytes().all(plain) {
        return Ok(());
    }
    Err(SinkError::Setup(format!("{name:?} is not the name of an interface")))
}

/// Takes the view's operations.
struct IptablesDecoder {
    services: ServiceChangeTracker,
    endpoints: EndpointChangeTracker,
    node: NodeTracker,
    feed: Arc<Mutex<Feed>>,
    running: Option<Running>,
}

impl Decoder for IptablesDecoder {
    fn wait_request(&mut self) -> Result<Arc<str>, SinkError> {
        Ok(Arc::clone(self.node.name()))
    }

    fn set_service(&mut self, service: &Arc<LocalService>) -> Result<(), SinkError> {
        self.services.update(service);
        Ok(())
    }

    fn delete_service(&mut self, key: &ObjectKey) -> Result<(), SinkError> {
        self.services.delete(key);
        Ok(())
    }

    fn set_endpoint(&mut self, endpoint: &Arc<LocalEndpoint>) -> Result<(), SinkError> {
        self.endpoints.update(endpoint);
        Ok(())
    }

    fn delete_endpoint(&mut self, key: &EndpointRef) -> Result<(), SinkError> {
        self.endpoints.delete(key);
        Ok(())
    }

    fn set_object(&mut self, object: &Object) -> Result<(), SinkError> {
        self.node.update(object);
        Ok(())
    }

    fn delete_object(&mut self, object_ref: &ObjectRef) -> Result<(), SinkError> {
        self.node.delete(object_ref);
        Ok(())
    }

    fn reset(&mut self) -> Result<(), SinkError> {
        self.services.clear();
        self.endpoints.clear();
        self.node.clear();
        Ok(())
    }

    fn sync(&mut self) -> Result<(), SinkError> {
        let running = self.running.as_ref().ok_or_else(|| SinkError::Setup("not set up".into()))?;
        let changes = take_changes(&mut self.services, &mut self.endpoints);
        let mut feed = self.feed.lock();
        feed.changes.extend(changes);
        feed.node = self.node.facts();
        feed.is_whole = true;
        drop(feed);
        running.handle.notify();
        Ok(())
    }
}

impl Drop for IptablesDecoder {
    fn drop(&mut self) {
        // Nobody feeds it any more; what is programmed stays.
        if let Some(Running { handle, watcher }) = self.running.take() {
            drop(watcher);
            drop(handle);
        }
    }
}

/// Brings both families up to date.
struct IptablesSyncer {
    options: ProxyOptions,
    families: Vec<Iptables>,
    feed: Arc<Mutex<Feed>>,
    /// As the last sync left them, well or not.
    services: Services,
    /// What changed since the last sync that succeeded.
    unsettled: Changes,
    node: NodeFacts,
    tcp_be_liberal: bool,
    /// Services of whose balance was warned.
    warned: BTreeSet<ObjectKey>,
    succeeded_once: bool,
    watch: Arc<Watch>,
    counters: SharedCounters,
}

impl IptablesSyncer {
    fn new(
        options: &ProxyOptions,
        programs: Vec<Programs>,
        feed: Arc<Mutex<Feed>>,
        watch: Arc<Watch>,
        counters: SharedCounters,
    ) -> Self {
        let node = NodeFacts::default();
        let tcp_be_liberal =
            std::fs::read_to_string(TCP_BE_LIBERAL).is_ok_and(|text| text.trim() != "0");
        let families = programs
            .into_iter()
            .map(|programs| {
                let context = Context::new(&options.config, &node, programs.family());
                Iptables::new(Box::new(programs), Context { tcp_be_liberal, ..context })
            })
            .collect();
        Self {
            options: options.clone(),
            families,
            feed,
            services: Services::new(),
            unsettled: Changes::new(),
            node,
            tcp_be_liberal,
            warned: BTreeSet::new(),
            succeeded_once: false,
            watch,
            counters,
        }
    }

    /// Takes up what the view has brought; `false` if it has brought nothing yet.
    fn take_feed(&mut self) -> bool {
        let mut feed = self.feed.lock();
        if !feed.is_whole {
            return false;
        }
        let changes = std::mem::take(&mut feed.changes);
        let node = feed.node.clone();
        drop(feed);
        self.warn(&changes);
        self.unsettled.extend(changes);
        if node != self.node {
            self.node = node;
            for family in &mut self.families {
                let context = Context::new(&self.options.config, &self.node, family.family());
                family.set_context(Context { tcp_be_liberal: self.tcp_be_liberal, ..context });
            }
        }
        true
    }

    /// Says once for each service what it asks for and does not get.
    fn warn(&mut self, changes: &Changes) {
        for (key, entry) in changes {
            match entry.as_ref().map(balance::warning) {
                None => {
                    self.warned.remove(key);
                }
                Some(Some(warning)) if self.warned.insert(key.clone()) => {
                    tracing::warn!("{warning}");
                }
                Some(_) => {}
            }
        }
    }

    fn commits(&self) -> u64 {
        self.families.iter().map(|family| family.counters().commits).sum()
    }

    fn count(&self) {
        let by_family = self.families.iter().map(|family| (family.family(), family.counters()));
        *self.counters.lock() = by_family.collect();
    }
}

impl Syncer for IptablesSyncer {
    fn sync(&mut self, kind: SyncKind) -> Result<SyncReport, ApplyError> {
        if !self.take_feed() {
            return Ok(SyncReport::too_early());
        }
        let commits = self.commits();
        let started = Instant::now();
        self.watch.begin();
        let view = View { before: &self.services, changes: &self.unsettled };
        let chains = self.watch.suspected_chains().filter(|_| kind == SyncKind::Drift);
        let mended = match &chains {
            Some(chains) => mend_chains(&mut self.families, chains, view),
            None => Ok(None),
        };
        let as_before = matches!(mended, Ok(Some(_)));
        let outcome = match mended.transpose() {
            Some(outcome) => outcome,
            None => sync_families(&mut self.families, kind, view),
        };
        let end = SyncEnd {
            succeeded: outcome.is_ok(),
            compared: kind != SyncKind::Changes,
            commits: self.commits() - commits,
            took: started.elapsed(),
        };
        if as_before {
            self.watch.end_as_before(end);
        } else {
            self.watch.end(end);
        }
        for (key, change) in &self.unsettled {
            match change {
                Some(entry) => drop(self.services.insert(key.clone(), entry.clone())),
                None => drop(self.services.remove(key)),
            }
        }
        self.count();
        let report = outcome?;
        self.options.follower.programmed(&Programmed {
            kind,
            first: !self.succeeded_once,
            changed: &self.unsettled,
            node: &self.node,
        });
        self.unsettled.clear();
        self.succeeded_once = true;
        Ok(report)
    }
}

/// Mends just these chains; `None` if it takes more than that.
fn mend_chains(
    families: &mut [Iptables],
    chains: &BTreeSet<ChainAt>,
    view: View<'_>,
) -> Result<Option<SyncReport>, ApplyError> {
    let mut report = SyncReport::default();
    for family in families {
        let its = chains.iter().filter(|it| it.family == family.family());
        let its = its.map(|it| (it.table, it.chain.as_str())).collect();
        match family.mend_chains(&its, view)? {
            Some(one) => report = report.plus(one),
            None => return Ok(None),
        }
    }
    Ok(Some(report))
}

/// Syncs all families at once: each is a program of its own to wait for. One that fails does not stop
/// another.
fn sync_families(
    families: &mut [Iptables],
    kind: SyncKind,
    view: View<'_>,
) -> Result<SyncReport, ApplyError> {
    let outcomes = std::thread::scope(|scope| {
        let Some((first, others)) = families.split_first_mut() else { return Vec::new() };
        let others: Vec<_> =
            others.iter_mut().map(|family| scope.spawn(move || family.sync(kind, view))).collect();
        let mut outcomes = vec![first.sync(kind, view)];
        outcomes.extend(others.into_iter().map(|thread| {
            // A panic is the sync loop's to handle, wherever it happened.
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        }));
        outcomes
    });
    let mut report = SyncReport::default();
    let mut errors = Vec::new();
    for outcome in outcomes {
        match outcome {
            Ok(one) => report = report.plus(one),
            Err(error) => errors.push(error),
        }
    }
    ApplyError::several(errors).map_or(Ok(report), Err)
}
