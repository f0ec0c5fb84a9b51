//! The backend `ipvs`: registered as a full-state sink, from the node view to the kernel.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::num::NonZero;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use ipnet::IpNet;
use telaio_model::{IpFamily, Object, ObjectKey, ObjectRef, ServiceEndpoints};
use telaio_netlink::addresses::Addresses;
use telaio_netlink::links::Links;
use telaio_reconcile::kpng::{Backend, Inbox, News, Sink, SinkError, Syncing};
use telaio_reconcile::{ApplyError, SyncKind, SyncReport, Syncer};

use super::compile::{Context, annotation_problems, is_usable};
use super::controller::{IpvsController, steps_of};
use super::proxier::{DEVICE, Proxier, ProxierOptions, apply_error};
use super::rules::{RulesContext, scaffold};
use super::setup;
use super::types::Scheduler;
use super::watch::{Signals, Watch};
use crate::config::{NodeFacts, ProxyConfig};
use crate::iptables::{FixedRules, Flavor, Owner, Programs, SharedCounters};
use crate::kube_ipvs;
use crate::options::{Programmed, ProxyOptions};

/// How long a sync that was asked for by name may take.
const SYNC_TIME_MAX: Duration = Duration::from_mins(1);
/// How many threads work out what patches come down to.
const THREADS_MAX: usize = 4;
/// Packets outside a connection's window are not taken for invalid.
const TCP_BE_LIBERAL: &str = "/proc/sys/net/netfilter/nf_conntrack_tcp_be_liberal";

/// What only this backend takes.
#[derive(Debug, Clone)]
pub struct IpvsOptions {
    /// How the kernel chooses endpoints, where a service does not say.
    pub scheduler: Scheduler,
    /// Virtual servers in these networks are never ours.
    pub exclude: Vec<IpNet>,
    /// Virtual servers at our services' addresses are taken over, whoever made them.
    pub takeover: bool,
    /// How long an endpoint that left may keep its connections.
    pub drain_time_max: Duration,
    /// Which iptables the fixed rules are made with.
    pub flavor: Flavor,
}

impl Default for IpvsOptions {
    fn default() -> Self {
        Self {
            scheduler: Scheduler::default(),
            exclude: Vec::new(),
            takeover: false,
            drain_time_max: Duration::from_mins(15),
            flavor: Flavor::Auto,
        }
    }
}

/// The backend.
pub struct IpvsBackend {
    options: ProxyOptions,
    ipvs: IpvsOptions,
    counters: SharedCounters,
    syncing: Syncing<Watch>,
}

impl IpvsBackend {
    /// Its name.
    pub const NAME: &str = "ipvs";

    /// A backend that is not set up yet.
    pub fn new(options: ProxyOptions, ipvs: IpvsOptions) -> Self {
        Self { options, ipvs, counters: SharedCounters::default(), syncing: Syncing::default() }
    }

    /// Numbers of the fixed rules, for metrics; they follow the backend.
    pub fn counters(&self) -> SharedCounters {
        Arc::clone(&self.counters)
    }
}

impl Backend for IpvsBackend {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn setup(&mut self) -> Result<(), SinkError> {
        let config = Arc::clone(&self.options.config);
        setup::check(&config.families, self.ipvs.flavor).map_err(SinkError::Setup)?;
        let counters = Arc::clone(&self.counters);
        let syncer = IpvsSyncer::new(&self.options, &self.ipvs, self.syncing.inbox(), counters)?;
        let (signals, own) = (Arc::clone(&syncer.signals), syncer.proxier.port_and_device());
        let programs = syncer.programs.clone();
        let handle = self.syncing.start("telaio-ipvs", self.options.pacing, syncer)?;
        self.options.follower.started(&handle);
        let watch = Watch::start(&handle, signals, &programs, own);
        let no_thread = |error| SinkError::Setup(format!("cannot start a thread: {error}"));
        self.syncing.keep(watch.map_err(no_thread)?);
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

/// Keeps the kernel in line, on the sync loop's thread.
struct IpvsSyncer {
    options: ProxyOptions,
    scheduler: Scheduler,
    inbox: Inbox,
    controllers: Vec<IpvsController>,
    programs: Vec<Programs>,
    rules: Vec<FixedRules>,
    counters: SharedCounters,
    proxier: Proxier,
    machine: MachineAddresses,
    /// Every service, for when what all depend on changes.
    services: BTreeMap<ObjectKey, ServiceEndpoints>,
    /// Services that changed and are not in the kernel yet.
    unapplied: BTreeMap<ObjectKey, Option<ServiceEndpoints>>,
    /// Our own Node object and the service networks, as the cluster has them.
    nodes: BTreeMap<ObjectRef, Object>,
    node: NodeFacts,
    tcp_be_liberal: bool,
    /// No sync has succeeded yet.
    first: bool,
    signals: Arc<Signals>,
}

impl IpvsSyncer {
    fn new(
        options: &ProxyOptions,
        ipvs: &IpvsOptions,
        inbox: Inbox,
        counters: SharedCounters,
    ) -> Result<Self, SinkError> {
        let config = &options.config;
        let mut proxier = Proxier::open(ProxierOptions {
            families: config.families.clone(),
            exclude: ipvs.exclude.clone(),
            takeover: ipvs.takeover,
            drain_time_max: ipvs.drain_time_max,
        })?;
        let marks = proxier.marks()?;
        let anothers = proxier.marks_of_others()?;
        let node = NodeFacts::default();
        let mut machine = MachineAddresses::open()?;
        machine.read()?;
        let tcp_be_liberal =
            std::fs::read_to_string(TCP_BE_LIBERAL).is_ok_and(|text| text.trim() != "0");
        let mut controllers = Vec::new();
        let mut rules = Vec::new();
        let mut all_programs = Vec::new();
        for family in config.families.iter().copied() {
            let context = machine.context(config, &node, family, ipvs.scheduler);
            let mut controller = IpvsController::new(context, config.masquerade_mark());
            for (server, mark) in &marks {
                if server.is_v6() == (family == IpFamily::V6) {
                    controller.remember_mark(*server, *mark);
                }
            }
            for (_, mark) in anothers.iter().filter(|(of, _)| *of == family) {
                controller.avoid_mark(*mark);
            }
            controllers.push(controller);
            let programs = Programs::find(ipvs.flavor, family);
            let programs = programs.map_err(|error| SinkError::Setup(error.to_string()))?;
            let context =
                RulesContext { tcp_be_liberal, ..RulesContext::new(config, &node, family) };
            all_programs.push(programs.clone());
            let kernel = Box::new(programs);
            rules.push(FixedRules::new(Owner::Ipvs, kernel, family, scaffold(&context)));
        }
        Ok(Self {
            options: options.clone(),
            scheduler: ipvs.scheduler,
            inbox,
            controllers,
            programs: all_programs,
            rules,
            counters,
            proxier,
            machine,
            services: BTreeMap::new(),
            unapplied: BTreeMap::new(),
            nodes: BTreeMap::new(),
            node,
            tcp_be_liberal,
            first: true,
            signals: Arc::default(),
        })
    }

    fn take_news(&mut self, news: News) -> Result<(), ApplyError> {
        for (at, object) in news.objects {
            match object {
                Some(object) => _ = self.nodes.insert(at, object),
                None => _ = self.nodes.remove(&at),
            }
        }
        let node = NodeFacts::from_objects(
            &self.options.node,
            &self.options.node_addresses,
            self.nodes.values(),
        );
        for (key, service) in news.services {
            match &service {
                Some(entry) => {
                    for problem in annotation_problems(entry) {
                        tracing::warn!("{problem}");
                    }
                    self.services.insert(key.clone(), entry.clone());
                }
                None => _ = self.services.remove(&key),
            }
            self.unapplied.insert(key, service);
        }
        let addresses_changed = self.signals.addresses.swap(false, Ordering::AcqRel);
        let machine_changed = (addresses_changed || self.first) && self.machine.read()?;
        let mut everything = self.avoid_lost_marks();
        if node != self.node || machine_changed || self.first {
            self.node = node;
            everything |= self.set_contexts();
        }
        for controller in &mut self.controllers {
            if everything {
                for (key, entry) in &self.services {
                    controller.set_service(key, Some(entry));
                }
            }
            for (key, change) in &self.unapplied {
                controller.set_service(key, change.as_ref());
            }
        }
        Ok(())
    }

    /// Somebody else may have taken marks of ours; whether so, and all services want a new look.
    fn avoid_lost_marks(&mut self) -> bool {
        let lost = self.proxier.lost_marks();
        for (family, mark) in &lost {
            for controller in self.controllers.iter_mut().filter(|it| it.family() == *family) {
                controller.avoid_mark(*mark);
            }
        }
        !lost.is_empty()
    }

    /// What all services depend on may be something else now; whether it is.
    fn set_contexts(&mut self) -> bool {
        let config = &self.options.config;
        for rules in &mut self.rules {
            let context = RulesContext::new(config, &self.node, rules.family());
            let context = RulesContext { tcp_be_liberal: self.tcp_be_liberal, ..context };
            rules.set_scaffold(scaffold(&context));
        }
        let mut changed = false;
        for controller in &mut self.controllers {
            let family = controller.family();
            let context = self.machine.context(config, &self.node, family, self.scheduler);
            changed |= controller.set_context(context);
        }
        changed
    }

    /// Looks whether the kernel is as we left it.
    fn check(&mut self, now: Instant) -> Result<SyncReport, ApplyError> {
        let started = Instant::now();
        let drift = self.proxier.observe(now)?;
        self.signals.observed(started.elapsed());
        if self.first {
            // What an earlier run left is no drift.
            return Ok(SyncReport::default());
        }
        drift.warn();
        Ok(drift.to_sync_report())
    }

    fn sync_rules(&mut self, kind: SyncKind) -> Result<SyncReport, ApplyError> {
        let mut report = SyncReport::default();
        for rules in &mut self.rules {
            report = report.plus(rules.sync(kind)?);
        }
        Ok(report)
    }
}

impl Syncer for IpvsSyncer {
    fn sync(&mut self, kind: SyncKind) -> Result<SyncReport, ApplyError> {
        // Time passes and addresses change also before the first state is here.
        let Some(news) = self.inbox.take_known() else { return Ok(SyncReport::too_early()) };
        let now = Instant::now();
        self.take_news(news)?;
        let mut report = SyncReport::default();
        let read_due = self.signals.read_due.swap(false, Ordering::AcqRel);
        if kind != SyncKind::Changes || read_due || self.proxier.is_stale() {
            report = report.plus(self.check(now)?);
        }
        self.signals.begin();
        let commits = self.commits();
        let rules = self.sync_rules(kind);
        self.signals.end(rules.is_ok(), kind != SyncKind::Changes, self.commits() - commits);
        self.count();
        report = report.plus(rules?);
        let threads = std::thread::available_parallelism().map_or(1, NonZero::get).min(THREADS_MAX);
        for controller in &mut self.controllers {
            let groups = controller.generate_patch_groups();
            self.proxier.take(&steps_of(&groups, threads));
        }
        let outcome = self.proxier.flush(now);
        self.signals.draining.store(self.proxier.is_draining(), Ordering::Release);
        report = report.plus(outcome?);
        let changed = std::mem::take(&mut self.unapplied);
        let first = std::mem::take(&mut self.first);
        self.options.follower.programmed(&Programmed {
            kind,
            first,
            changed: &changed,
            node: &self.node,
        });
        Ok(report)
    }
}

impl IpvsSyncer {
    fn commits(&self) -> u64 {
        self.rules.iter().map(|rules| rules.counters().commits).sum()
    }

    fn count(&self) {
        let by_family = self.rules.iter().map(|rules| (rules.family(), rules.counters()));
        *self.counters.lock() = by_family.collect();
    }
}

/// The machine's addresses, but for those on loopback and on devices that have services' addresses.
struct MachineAddresses {
    addresses: Addresses,
    links: Links,
    here: BTreeSet<IpAddr>,
}

impl MachineAddresses {
    fn open() -> Result<Self, ApplyError> {
        let addresses = Addresses::open().map_err(apply_error)?;
        let links = Links::open().map_err(apply_error)?;
        Ok(Self { addresses, links, here: BTreeSet::new() })
    }

    /// Reads them; whether they are others than before.
    fn read(&mut self) -> Result<bool, ApplyError> {
        let mut devices = BTreeSet::new();
        for name in [DEVICE, kube_ipvs::LINK] {
            devices.extend(self.links.find(name).map_err(apply_error)?);
        }
        let all = self.addresses.list().map_err(apply_error)?;
        let others = all.into_iter().filter(|it| !devices.contains(&it.link)).map(|it| it.ip);
        let here: BTreeSet<IpAddr> = others.filter(|ip| is_usable(*ip)).collect();
        let is_other = here != self.here;
        self.here = here;
        Ok(is_other)
    }

    fn context(
        &self,
        config: &ProxyConfig,
        node: &NodeFacts,
        family: IpFamily,
        scheduler: Scheduler,
    ) -> Context {
        Context::new(config, node, family, scheduler, &self.here)
    }
}
