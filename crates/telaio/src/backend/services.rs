//! What a service backend needs around it on a Linux machine: companions, the kernel's settings, and
//! the way over from another backend or from kube-proxy.
//!
//! The way over has no gap: the new backend first programs everything beside what is there, and only
//! then, in the background, what the other one left is removed. Both serve the same services
//! meanwhile, and connections that stand are the connection table's, whoever made them.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use parking_lot::Mutex;
use telaio_model::IpFamily;
use telaio_reconcile::{PacerConfig, SyncHandle};
use telaio_service_proxy::companions::{Companions, CompanionsOptions};
use telaio_service_proxy::config::ProxyConfig;
use telaio_service_proxy::iptables::{self, Flavor, IptablesBackend};
use telaio_service_proxy::nftables::{self, NftablesBackend};
use telaio_service_proxy::options::{Follower, Programmed, ProxyOptions};
use telaio_service_proxy::sysctls::{SysctlConfig, Sysctls};

use crate::exit::CommandError;
use crate::monitor::Monitor;
use crate::triggers::Triggers;

/// The file in the state directory that names the backend whose rules are the only ones of ours.
const LAST_BACKEND_FILE: &str = "services-backend";
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
    /// What to do to the kernel's settings.
    pub(crate) sysctls: SysctlConfig,
    /// A kube-proxy's rules may be here; they are to be replaced.
    pub(crate) takeover: bool,
    /// Where to remember.
    pub(crate) state_dir: PathBuf,
    /// When the changes happened that are to be programmed, if the source knows.
    pub(crate) triggers: Option<Arc<Triggers>>,
}

/// The kernel's settings as we found and changed them.
pub(crate) fn sysctls(state_dir: &Path) -> Sysctls {
    Sysctls::new("/", state_dir.join(SYSCTLS_FILE))
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
    let iptables = families
        .iter()
        .try_for_each(|family| iptables::Programs::find(Flavor::Auto, *family).map(drop));
    match iptables {
        Ok(()) => Ok(IptablesBackend::NAME),
        Err(iptables) => Err(CommandError::failed(format!(
            "no backend can run here; nftables: {nftables}; iptables: {iptables}"
        ))),
    }
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
    Ok(by_nftables.or_else(iptables::kube_proxy_present))
}

/// What runs around a backend.
pub(crate) struct Services {
    settings: ServicesSettings,
    follower: Arc<ServicesFollower>,
}

impl Services {
    /// Starts the companions and prepares the kernel for a backend.
    pub(crate) fn start(
        backend: &'static str,
        settings: ServicesSettings,
        monitor: &Arc<Monitor>,
    ) -> Result<Self, CommandError> {
        check_kube_proxy(settings.takeover)?;
        let kernel = sysctls(&settings.state_dir);
        for problem in kernel.apply(&settings.sysctls.settings(kernel.cores())).problems {
            tracing::warn!("{problem}");
        }
        for problem in kernel.forwarding_problems(&settings.config.families) {
            tracing::warn!("{problem}");
        }
        let health = Arc::clone(monitor);
        let companions = Companions::start(CompanionsOptions {
            config: Arc::clone(&settings.config),
            healthy: Arc::new(move || health.health().is_live()),
            localhost_proxy: backend == NftablesBackend::NAME,
        });
        let companions = Arc::new(companions.map_err(|error| {
            CommandError::failed(format!("cannot start what runs beside the backend: {error}"))
        })?);
        let counted = Arc::clone(&companions);
        monitor.proxy().set_companions(Box::new(move || counted.figures().into()));
        let follower = ServicesFollower {
            companions,
            monitor: Arc::clone(monitor),
            successor: Successor {
                backend,
                flavor: settings.flavor,
                takeover: settings.takeover,
                record: settings.state_dir.join(LAST_BACKEND_FILE),
            },
            triggers: settings.triggers.clone(),
            moving: Mutex::default(),
        };
        Ok(Self { settings, follower: Arc::new(follower) })
    }

    /// What the backend is made with.
    pub(crate) fn options(&self, node: &Arc<str>, pacing: PacerConfig) -> ProxyOptions {
        ProxyOptions {
            node: Arc::clone(node),
            node_addresses: self.settings.node_addresses.clone(),
            config: Arc::clone(&self.settings.config),
            localhost: self.follower.companions.localhost_ports(),
            pacing,
            follower: Arc::clone(&self.follower) as Arc<dyn Follower>,
        }
    }

    /// Which iptables the backend uses.
    pub(crate) fn flavor(&self) -> Flavor {
        self.settings.flavor
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
        if !what.first {
            return;
        }
        let successor = self.successor.clone();
        let spawned =
            thread::Builder::new().name("telaio-move".into()).spawn(move || successor.move_over());
        match spawned {
            Ok(thread) => *self.moving.lock() = Some(thread),
            Err(error) => tracing::error!(%error, "cannot remove another backend's rules"),
        }
    }
}

/// The backend that serves now, and what it takes the place of.
#[derive(Debug, Clone)]
struct Successor {
    backend: &'static str,
    flavor: Flavor,
    takeover: bool,
    record: PathBuf,
}

impl Successor {
    /// Removes what others left, now that everything is served.
    fn move_over(&self) {
        let name = match self.backend {
            IptablesBackend::NAME => format!("{} {:?}", self.backend, self.flavor),
            other => other.to_owned(),
        };
        let last = std::fs::read_to_string(&self.record).unwrap_or_default();
        if last.trim() != name {
            let removed = self.remove_others();
            if log_removed("the rules of another backend of ours", removed)
                && let Err(error) = std::fs::write(&self.record, format!("{name}\n"))
            {
                tracing::warn!(file = %self.record.display(), %error, "cannot be written");
            }
        }
        if self.takeover {
            log_removed("kube-proxy's rules", remove_kube_proxy());
        }
    }

    fn remove_others(&self) -> Result<Vec<String>, String> {
        if self.backend == NftablesBackend::NAME {
            return iptables::cleanup(&[Flavor::Nft, Flavor::Legacy]).map_err(text);
        }
        let mut removed = nftables::cleanup().map_err(text)?;
        let in_use = iptables::Programs::find(self.flavor, IpFamily::V4).map_err(text)?.flavor();
        let other = if in_use == Flavor::Legacy { Flavor::Nft } else { Flavor::Legacy };
        removed.extend(iptables::cleanup(&[other]).map_err(text)?);
        Ok(removed)
    }
}

/// Tells what was removed; whether it all went well.
fn log_removed(what: &str, removed: Result<Vec<String>, String>) -> bool {
    match removed {
        Ok(removed) if removed.is_empty() => true,
        Ok(removed) => {
            tracing::info!(removed = removed.join(", "), "removed {what}");
            true
        }
        Err(error) => {
            tracing::error!(error, "cannot remove {what}; it is tried again at the next start");
            false
        }
    }
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// Removes every trace of every backend of ours; tells what that was.
pub(crate) fn remove_ours() -> Result<Vec<String>, String> {
    let mut removed = nftables::cleanup().map_err(text)?;
    removed.extend(iptables::cleanup(&[Flavor::Nft, Flavor::Legacy]).map_err(text)?);
    Ok(removed)
}

/// Removes what kube-proxy has made in any of its modes; tells what that was.
pub(crate) fn remove_kube_proxy() -> Result<Vec<String>, String> {
    let mut removed = nftables::cleanup_kube_proxy().map_err(text)?;
    removed.extend(iptables::cleanup_kube_proxy().map_err(text)?);
    Ok(removed)
}

/// Forgets which backend was the last.
pub(crate) fn forget(state_dir: &Path) -> std::io::Result<()> {
    match std::fs::remove_file(state_dir.join(LAST_BACKEND_FILE)) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
