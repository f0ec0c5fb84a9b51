//! What a service backend needs around it on a Linux machine: companions, the kernel's settings, and
//! the way over from another backend or from kube-proxy.
//!
//! The way over has no gap: the new backend first programs everything beside what is there, and only
//! then, in the background, what the other one left is removed. Both serve the same services
//! meanwhile, and connections that stand are the connection table's, whoever made them.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use telaio_model::IpFamily;
use telaio_netlink::addresses::{addresses_of, own_addresses};
use telaio_netlink::links::Links;
use telaio_netlink::{NetlinkError, heap};
use telaio_reconcile::kpng::{Registry, RegistryError};
use telaio_reconcile::{PacerConfig, SyncHandle, SyncKind};
use telaio_service_proxy::companions::{Companions, CompanionsOptions};
use telaio_service_proxy::config::ProxyConfig;
use telaio_service_proxy::iptables::{self, Flavor, IptablesBackend, SharedCounters};
use telaio_service_proxy::ipvs::{self, IpvsBackend, IpvsOptions};
use telaio_service_proxy::kube_ipvs;
use telaio_service_proxy::nftables::{self, NftablesBackend};
use telaio_service_proxy::options::{Follower, LocalhostPorts, Programmed, ProxyOptions};
use telaio_service_proxy::sysctls::{Setting, SysctlConfig, Sysctls};

use super::BackendContext;
use super::sole::Sole;
use crate::exit::CommandError;
use crate::monitor::Monitor;
use crate::proxy_settings::IpvsSettings;
use crate::triggers::Triggers;

/// The file in the state directory that names the backend whose rules are the only ones of ours.
const LAST_BACKEND_FILE: &str = "services-backend";
/// How often removing another's rules is tried, with pauses that double.
const MOVE_ATTEMPTS_MAX: u32 = 5;
/// The first of these pauses.
const MOVE_PAUSE_MIN: Duration = Duration::from_secs(1);
/// How long connections of the backend `ipvs` may go on after another took its place.
const LEAVE_TIME_MAX: Duration = Duration::from_mins(15);
/// How often they are counted meanwhile.
const LEAVE_PERIOD: Duration = Duration::from_secs(1);
/// Both kinds of iptables: rules of ours may be in either.
const FLAVORS: [Flavor; 2] = [Flavor::Nft, Flavor::Legacy];
/// Whether loopback addresses are routed.
const ROUTE_LOCALNET: &str = "/proc/sys/net/ipv4/conf/all/route_localnet";
/// What a kernel with IPv6 has.
const IPV6_SETTINGS: &str = "/proc/sys/net/ipv6";
/// The file in the state directory that has the kernel's settings from before us.
const SYSCTLS_FILE: &str = "sysctls.json";

/// What a service backend is set up with.
#[derive(Debug, Clone)]
pub(crate) struct ServicesSettings {
    /// What every backend takes.
    pub(crate) config: Arc<ProxyConfig>,
    /// The node's own addresses, before those of its Node object.
    pub(crate) node_addresses: Vec<IpAddr>,
    /// Which iptables.
    pub(crate) flavor: Flavor,
    /// What only the backend `ipvs` takes.
    pub(crate) ipvs: IpvsSettings,
    /// What to do to the kernel's settings.
    pub(crate) sysctls: SysctlConfig,
    /// A kube-proxy's rules may be here; they are to be replaced.
    pub(crate) takeover: bool,
    /// The agent goes on after its first sync, so what runs beside the backend makes sense.
    pub(crate) stays: bool,
    /// Where to remember.
    pub(crate) state_dir: PathBuf,
    /// When the changes happened that are to be programmed, if the source knows.
    pub(crate) triggers: Option<Arc<Triggers>>,
}

/// The kernel's settings as we found and changed them.
fn sysctls(state_dir: &Path) -> Sysctls {
    Sysctls::new("/", state_dir.join(SYSCTLS_FILE))
}

/// Packets with loopback addresses may leave the machine, and come from outside.
fn is_loopback_routed() -> bool {
    std::fs::read_to_string(ROUTE_LOCALNET).is_ok_and(|value| value.trim() != "0")
}

/// The families that this machine has. IPv4 always counts as there.
pub(crate) fn families() -> Vec<IpFamily> {
    let has_v6 = Path::new(IPV6_SETTINGS).exists();
    IpFamily::ALL.into_iter().filter(|family| *family == IpFamily::V4 || has_v6).collect()
}

/// The best backend for this machine.
pub(crate) fn best() -> Result<&'static str, CommandError> {
    let families = families();
    let Err(nftables) = nftables::probe(&families) else { return Ok(NftablesBackend::NAME) };
    let iptables =
        usable_flavor(IptablesBackend::NAME, Flavor::Auto, &families).and_then(|flavor| {
            families.iter().try_for_each(|family| find_programs(flavor, *family).map(drop))
        });
    match iptables {
        Ok(()) => Ok(IptablesBackend::NAME),
        Err(iptables) => Err(CommandError::failed(format!(
            "no backend can run here; nftables: {nftables}; iptables: {iptables}"
        ))),
    }
}

fn find_programs(flavor: Flavor, family: IpFamily) -> Result<iptables::Programs, String> {
    iptables::Programs::find(flavor, family).map_err(text)
}

/// The flavour of iptables that runs here: what was asked for, except that the older tables take the
/// place of an iptables that is installed but writes to nf_tables, which the kernel lacks.
fn usable_flavor(backend: &str, asked: Flavor, families: &[IpFamily]) -> Result<Flavor, String> {
    let refused = |family: &IpFamily| Some((*family, nftables::tables_refused(*family)?));
    let Some((family, error)) = families.iter().find_map(refused) else { return Ok(asked) };
    let flavor = find_programs(asked, family)?.flavor();
    if flavor == Flavor::Legacy {
        return Ok(flavor);
    }
    if asked == Flavor::Auto && find_programs(Flavor::Legacy, family).is_ok() {
        return Ok(Flavor::Legacy);
    }
    Err(format!(
        "the backend {backend} cannot run by iptables-nft: this kernel's nf_tables takes no {family} \
         tables ({error}); install iptables-legacy and use --iptables-flavor legacy"
    ))
}

/// Fails, with what to do about it, if a backend cannot run here; the flavour of iptables to use, if it
/// uses one.
fn check_backend(backend: &str, settings: &ServicesSettings) -> Result<Flavor, CommandError> {
    let families = &settings.config.families;
    let cannot_run = |error: &dyn std::fmt::Display| {
        CommandError::failed(format!("the backend {backend} cannot run: {error}"))
    };
    if backend == NftablesBackend::NAME {
        nftables::probe(families).map_err(|error| cannot_run(&error))?;
        return Ok(settings.flavor);
    }
    let flavor = usable_flavor(backend, settings.flavor, families).map_err(CommandError::failed)?;
    if backend == IpvsBackend::NAME {
        ipvs::setup::check(families, flavor).map_err(|error| cannot_run(&error))?;
    }
    Ok(flavor)
}

/// The kernel's settings that only this backend needs.
fn backend_settings(backend: &str, ipvs: &IpvsSettings) -> Vec<Setting> {
    if backend == IpvsBackend::NAME { ipvs.kernel_settings() } else { Vec::new() }
}

/// Refuses to start beside kube-proxy's rules, unless they are to be taken over.
pub(crate) fn check_kube_proxy(takeover: bool) -> Result<(), CommandError> {
    let found = kube_proxy_present()?;
    match found {
        Some(what) if !takeover => Err(CommandError::failed(format!(
            "kube-proxy is, or was, at work here ({what}): two proxies would undo each other's work; \
             stop it and run `telaio cleanup --kube-proxy`, or start with --takeover to replace its \
             rules without a gap"
        ))),
        _ => Ok(()),
    }
}

fn kube_proxy_present() -> Result<Option<String>, CommandError> {
    let by_nftables = nftables::kube_proxy_present().map_err(|error| {
        CommandError::failed(if error.is_permission() {
            "programming services needs root, or CAP_NET_ADMIN in this network namespace; run telaio \
             as root or give it that capability"
                .to_owned()
        } else {
            format!("cannot look for kube-proxy: {error}")
        })
    })?;
    Ok(by_nftables.or_else(iptables::kube_proxy_present).or_else(kube_ipvs::present))
}

/// What runs around a backend.
pub(crate) struct Services {
    _sole: Sole,
    settings: ServicesSettings,
    follower: Arc<ServicesFollower>,
}

impl Services {
    /// Starts the companions and prepares the kernel for a backend.
    pub(crate) fn start(
        backend: &'static str,
        mut settings: ServicesSettings,
        monitor: &Arc<Monitor>,
    ) -> Result<Self, CommandError> {
        check_kube_proxy(settings.takeover)?;
        // Before anything is changed for a backend that cannot run.
        settings.flavor = check_backend(backend, &settings)?;
        let sole = Sole::take()?;
        let successor = Successor {
            backend,
            flavor: settings.flavor,
            families: settings.config.families.clone(),
            takeover: settings.takeover,
            stays: settings.stays,
            record: settings.state_dir.join(LAST_BACKEND_FILE),
            monitor: Arc::clone(monitor),
        };
        successor.begin();
        let kernel = sysctls(&settings.state_dir);
        if let Err(error) = kernel.load_conntrack() {
            tracing::debug!(%error, "cannot have connection tracking loaded");
        }
        // What another backend needed stays: connections that it made may need it, too.
        // Loopback is opened only when the rules that guard it are there.
        let guarded = SysctlConfig { route_localnet: false, ..settings.sysctls.clone() };
        let mut wanted = guarded.settings(kernel.cores());
        wanted.extend(backend_settings(backend, &settings.ipvs));
        for problem in kernel.add(&wanted).problems {
            tracing::warn!("{problem}");
        }
        for problem in kernel.forwarding_problems(&settings.config.families) {
            tracing::warn!("{problem}");
        }
        let health = Arc::clone(monitor);
        let companions = Companions::start(CompanionsOptions {
            config: Arc::clone(&settings.config),
            healthy: Arc::new(move || health.health().is_live()),
            localhost_proxy: backend == NftablesBackend::NAME && settings.stays,
        });
        let companions = Arc::new(companions.map_err(|error| {
            CommandError::failed(format!("cannot start what runs beside the backend: {error}"))
        })?);
        let counted = Arc::clone(&companions);
        monitor.proxy().set_companions(Box::new(move || counted.figures().into()));
        let follower = ServicesFollower {
            companions,
            monitor: Arc::clone(monitor),
            successor,
            triggers: settings.triggers.clone(),
            sysctls: settings.sysctls.clone(),
            state_dir: settings.state_dir.clone(),
            moving: Mutex::default(),
        };
        Ok(Self { _sole: sole, settings, follower: Arc::new(follower) })
    }

    /// What the backend is made with.
    fn options(&self, node: &Arc<str>, pacing: PacerConfig) -> ProxyOptions {
        ProxyOptions {
            node: Arc::clone(node),
            node_addresses: self.settings.node_addresses.clone(),
            config: Arc::clone(&self.settings.config),
            localhost: LocalhostPorts {
                routed: is_loopback_routed(),
                ..self.follower.companions.localhost_ports()
            },
            pacing,
            follower: Arc::clone(&self.follower) as Arc<dyn Follower>,
        }
    }

    /// Makes the backends of this machine known.
    pub(super) fn register(
        &self,
        context: &BackendContext,
        registry: &mut Registry,
    ) -> Result<(), RegistryError> {
        let options = self.options(&context.node, context.pacing);
        let (for_iptables, flavor) = (options.clone(), self.settings.flavor);
        let (for_ipvs, ipvs) = (options.clone(), self.ipvs());
        let monitor = Arc::clone(&context.monitor);
        let show = move |counters: SharedCounters| {
            monitor.proxy().set_iptables(Box::new(move || counters.lock().clone()));
        };
        let show_ipvs = show.clone();
        registry.register(NftablesBackend::NAME, move || {
            Box::new(NftablesBackend::new(options.clone()))
        })?;
        registry.register(IptablesBackend::NAME, move || {
            let backend = IptablesBackend::new(for_iptables.clone(), flavor);
            show(backend.counters());
            Box::new(backend)
        })?;
        registry.register(IpvsBackend::NAME, move || {
            let backend = IpvsBackend::new(for_ipvs.clone(), ipvs.clone());
            show_ipvs(backend.counters());
            Box::new(backend)
        })
    }

    /// What the backend `ipvs` is made with besides.
    fn ipvs(&self) -> IpvsOptions {
        self.settings.ipvs.options(self.settings.flavor, self.settings.takeover)
    }

    /// Waits until what others left has been removed.
    pub(crate) fn wait_moved(&self) {
        let moving = self.follower.moving.lock().take();
        if let Some(moving) = moving
            && moving.join().is_err()
        {
            tracing::error!("removing another backend's rules panicked");
        }
    }
}

/// Follows the backend for the monitor and the companions.
struct ServicesFollower {
    companions: Arc<Companions>,
    monitor: Arc<Monitor>,
    successor: Successor,
    triggers: Option<Arc<Triggers>>,
    sysctls: SysctlConfig,
    state_dir: PathBuf,
    moving: Mutex<Option<JoinHandle<()>>>,
}

impl Follower for ServicesFollower {
    fn started(&self, handle: &SyncHandle) {
        self.monitor.set_sync_loop(handle.clone());
        self.companions.started(handle);
    }

    fn programmed(&self, what: &Programmed<'_>) {
        self.companions.programmed(what);
        for (family, latency) in self.triggers.iter().flat_map(|triggers| triggers.programmed()) {
            self.monitor.proxy().network_programmed(family, latency);
        }
        if what.first && self.sysctls.route_localnet {
            let kernel = sysctls(&self.state_dir);
            for problem in kernel.add(&self.sysctls.settings(kernel.cores())).problems {
                tracing::warn!("{problem}");
            }
        }
        let again = self.successor.takeover && what.kind == SyncKind::Full;
        if !what.first && !again {
            return;
        }
        let mut moving = self.moving.lock();
        if moving.as_ref().is_some_and(|thread| !thread.is_finished()) {
            return;
        }
        let (successor, first) = (self.successor.clone(), what.first);
        let spawned = thread::Builder::new().name("telaio-move".into()).spawn(move || {
            if first {
                successor.move_over();
                // The first state came through several hands, and what they needed is free now.
                heap::give_back();
            } else {
                Successor::take_over_again();
            }
        });
        match spawned {
            Ok(thread) => *moving = Some(thread),
            Err(error) => tracing::error!(%error, "cannot remove another backend's rules"),
        }
    }
}

/// The backend that serves now, and what it takes the place of.
#[derive(Debug, Clone)]
struct Successor {
    backend: &'static str,
    flavor: Flavor,
    families: Vec<IpFamily>,
    takeover: bool,
    /// The agent goes on, so it can wait for something.
    stays: bool,
    record: PathBuf,
    /// Where it is counted if that cannot be removed.
    monitor: Arc<Monitor>,
}

impl Successor {
    /// What the record says of us.
    fn name(&self) -> String {
        match self.backend {
            IptablesBackend::NAME | IpvsBackend::NAME => {
                format!("{} {:?}", self.backend, self.flavor)
            }
            other => other.to_owned(),
        }
    }

    /// Nobody else's rules are here, as far as the record knows.
    fn is_alone(&self) -> bool {
        let last = std::fs::read_to_string(&self.record).unwrap_or_default();
        last.trim() == self.name()
    }

    /// Before we program anything: the record names a backend only while no other's rules are here.
    fn begin(&self) {
        if !self.is_alone()
            && let Err(error) = std::fs::remove_file(&self.record)
            && error.kind() != std::io::ErrorKind::NotFound
        {
            tracing::warn!(file = %self.record.display(), %error, "cannot be removed");
        }
    }

    /// Removes what others left, now that everything is served. A program that is busy gets more
    /// chances.
    fn move_over(&self) {
        let mut pause = MOVE_PAUSE_MIN;
        for attempt in 1..=MOVE_ATTEMPTS_MAX {
            let last = attempt == MOVE_ATTEMPTS_MAX;
            let alone = self.is_alone() || self.remove_and_record(last);
            let taken = !self.takeover
                || log_removed("kube-proxy's rules", self.replace_kube_proxy(), last);
            if last || (alone && taken) {
                return;
            }
            thread::sleep(pause);
            pause *= 2;
        }
    }

    /// Removes what kube-proxy has made. Connections that live in its virtual servers go on until they
    /// end or their time is over; if we do not stay to wait, those servers stay, and get no new ones.
    fn replace_kube_proxy(&self) -> Result<Vec<String>, String> {
        let removed = remove_kube_proxy_rules()?;
        let begun = Instant::now();
        let mut left = kube_ipvs::let_go().map_err(text)?;
        if left > 0 {
            tracing::info!(servers = left, "connections of kube-proxy's IPVS go on until they end");
        }
        while left > 0 && self.stays && begun.elapsed() < LEAVE_TIME_MAX {
            thread::sleep(LEAVE_PERIOD);
            left = kube_ipvs::let_go().map_err(text)?;
        }
        if left > 0 && !self.stays {
            return Ok(removed);
        }
        let servers = kube_ipvs::cleanup().map_err(text)?;
        Ok(removed.into_iter().chain(servers).collect())
    }

    /// A kube-proxy that still runs puts its rules back, and they would win over ours.
    fn take_over_again() {
        if let Ok(Some(what)) = kube_proxy_present() {
            tracing::warn!(
                "kube-proxy put its rules back ({what}); stop it: they are removed again now"
            );
            log_removed("kube-proxy's rules", remove_kube_proxy(), true);
        }
    }

    fn remove_and_record(&self, last: bool) -> bool {
        let removed = self.remove_others();
        if removed.is_err() && self.backend == NftablesBackend::NAME {
            self.monitor.proxy().count_cleanup_failure();
        }
        let mut is_done = true;
        let removed = removed.and_then(|mut removed| {
            let left = self.leave_ipvs()?;
            is_done = left.is_some();
            removed.extend(left.into_iter().flatten());
            Ok(removed)
        });
        if !log_removed("the rules of another backend of ours", removed, last) {
            return false;
        }
        if !is_done {
            return true;
        }
        if let Err(error) = std::fs::write(&self.record, format!("{}\n", self.name())) {
            tracing::warn!(file = %self.record.display(), %error, "cannot be written");
        }
        true
    }

    fn remove_others(&self) -> Result<Vec<String>, String> {
        let iptables = |flavors: &[Flavor]| iptables::cleanup(flavors).map_err(text);
        if self.backend == NftablesBackend::NAME {
            return iptables(&FLAVORS);
        }
        let nftables = nftables::cleanup().map_err(text);
        let (_, other) = self.flavors()?;
        if self.backend == IpvsBackend::NAME {
            let rules = iptables::cleanup_of(iptables::Owner::Ipvs, &[other]).map_err(text);
            return all_of([nftables, iptables(&FLAVORS), rules]);
        }
        all_of([nftables, iptables(&[other])])
    }

    /// The flavour of iptables that is in use here, and the other one.
    fn flavors(&self) -> Result<(Flavor, Flavor), String> {
        let in_use = iptables::Programs::find(self.flavor, IpFamily::V4).map_err(text)?.flavor();
        let other = if in_use == Flavor::Legacy { Flavor::Nft } else { Flavor::Legacy };
        Ok((in_use, other))
    }

    /// Lets the backend `ipvs` go where another has taken its place. Its connections are its own: they
    /// go on until they end or their time is over. What was removed; `None` if some are left, and we
    /// do not stay to wait for them.
    fn leave_ipvs(&self) -> Result<Option<Vec<String>>, String> {
        if self.backend == IpvsBackend::NAME || ipvs::present().map_err(text)?.is_none() {
            return Ok(Some(Vec::new()));
        }
        let (in_use, other) = self.flavors()?;
        let leave = ipvs::Leave::begin(&self.families, in_use, LEAVE_TIME_MAX, Instant::now());
        let Some(mut leave) = leave.map_err(text)? else { return Ok(Some(Vec::new())) };
        let mut outcome = leave.step(Instant::now())?;
        iptables::cleanup_of(iptables::Owner::Ipvs, &[other]).map_err(text)?;
        if outcome.is_none() {
            tracing::info!(
                servers = leave.servers_left(),
                "connections of the backend ipvs go on until they end"
            );
        }
        while outcome.is_none() && self.stays {
            thread::sleep(LEAVE_PERIOD);
            outcome = leave.step(Instant::now())?;
        }
        Ok(outcome)
    }
}

/// Tells what was removed; whether it all went well.
fn log_removed(what: &str, removed: Result<Vec<String>, String>, last: bool) -> bool {
    match removed {
        Ok(removed) if removed.is_empty() => true,
        Ok(removed) => {
            tracing::info!(removed = removed.join(", "), "removed {what}");
            true
        }
        Err(error) if last => {
            tracing::error!(error, "cannot remove {what}; it is tried again at the next start");
            false
        }
        Err(error) => {
            tracing::warn!(error, "cannot remove {what} yet");
            false
        }
    }
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// Removes every trace of every backend of ours; tells what that was. What fails does not keep the
/// rest from going.
pub(crate) fn remove_ours() -> Result<Vec<String>, String> {
    all_of([
        nftables::cleanup().map_err(text),
        iptables::cleanup(&FLAVORS).map_err(text),
        ipvs::cleanup(&FLAVORS),
    ])
}

/// Removes what kube-proxy has made in any of its modes, likewise.
pub(crate) fn remove_kube_proxy() -> Result<Vec<String>, String> {
    // After the rules: a set that one of them matches cannot be removed.
    all_of([remove_kube_proxy_rules(), kube_ipvs::cleanup().map_err(text)])
}

fn remove_kube_proxy_rules() -> Result<Vec<String>, String> {
    all_of([
        nftables::cleanup_kube_proxy().map_err(text),
        iptables::cleanup_kube_proxy().map_err(text),
    ])
}

fn all_of<const N: usize>(parts: [Result<Vec<String>, String>; N]) -> Result<Vec<String>, String> {
    let (done, failed): (Vec<_>, Vec<_>) = parts.into_iter().partition(Result::is_ok);
    let failed: Vec<String> = failed.into_iter().filter_map(Result::err).collect();
    if failed.is_empty() {
        return Ok(done.into_iter().flatten().flatten().collect());
    }
    Err(failed.join("; "))
}

/// Puts the kernel's settings back and forgets which backend was the last; what could not be done.
pub(crate) fn restore(state_dir: &Path) -> Vec<String> {
    let restored = sysctls(state_dir).restore();
    let mut problems: Vec<String> = restored.problems.iter().map(ToString::to_string).collect();
    problems.extend(forget(state_dir).err().map(text));
    problems
}

/// This machine's addresses, without those that the backend ipvs gives it for services.
pub(crate) fn machine_addresses() -> Result<BTreeSet<IpAddr>, NetlinkError> {
    let services = match Links::open()?.find(ipvs::proxier::DEVICE)? {
        Some(device) => addresses_of(device)?,
        None => BTreeSet::new(),
    };
    Ok(own_addresses()?.difference(&services).copied().collect())
}

/// Forgets which backend was the last.
fn forget(state_dir: &Path) -> std::io::Result<()> {
    match std::fs::remove_file(state_dir.join(LAST_BACKEND_FILE)) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
