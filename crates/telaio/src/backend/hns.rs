//! What the backend `hcn` needs around it on a Windows machine: HNS itself, and companions.
//!
//! There is no other backend to move over from, and no kernel setting to change. On another system than
//! Windows there is no HNS: then the backend cannot run, and its objects can only be shown.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use telaio_hcn::Hcn;
use telaio_reconcile::SyncHandle;
use telaio_reconcile::kpng::{Registry, RegistryError};
use telaio_service_proxy::companions::{Companions, CompanionsOptions};
use telaio_service_proxy::hcn::{self, HcnBackend, HcnOptions};
use telaio_service_proxy::options::{Follower, LocalhostPorts, Programmed, ProxyOptions};

use super::BackendContext;
use super::sole::Sole;
use crate::cli::RunArgs;
use crate::exit::CommandError;
use crate::monitor::Monitor;
use crate::proxy_settings::ProxySettings;
use crate::triggers::Triggers;

/// The best backend for this machine.
#[expect(clippy::unnecessary_wraps, reason = "as on Linux, where none may be fit")]
pub(crate) fn best() -> Result<&'static str, CommandError> {
    Ok(HcnBackend::NAME)
}

/// Windows' host compute network.
#[cfg(windows)]
pub(crate) fn open() -> Result<Arc<dyn Hcn>, CommandError> {
    let opened = telaio_hcn::WindowsHcn::system();
    let opened = opened.map_err(|error| CommandError::failed(format!("HNS: {error}")))?;
    Ok(Arc::new(opened))
}

/// Windows' host compute network.
#[cfg(not(windows))]
pub(crate) fn open() -> Result<Arc<dyn Hcn>, CommandError> {
    Err(CommandError::failed("HNS is a part of Windows"))
}

/// The machine's addresses, each with its interface's Ethernet address.
#[cfg(windows)]
fn interfaces() -> std::io::Result<Vec<(IpAddr, Option<telaio_hcn::MacAddress>)>> {
    let all = telaio_hcn::windows::interfaces()?;
    let of = |it: telaio_hcn::windows::Interface| {
        it.addresses.into_iter().map(move |address| (address, it.mac))
    };
    Ok(all.into_iter().flat_map(of).collect())
}

/// The machine's addresses, each with its interface's Ethernet address.
#[cfg(not(windows))]
fn interfaces() -> std::io::Result<Vec<(IpAddr, Option<telaio_hcn::MacAddress>)>> {
    Ok(Vec::new())
}

/// This machine's addresses.
pub(crate) fn machine_addresses() -> Result<BTreeSet<IpAddr>, std::io::Error> {
    Ok(interfaces()?.into_iter().map(|(address, _)| address).collect())
}

/// What runs around the backend.
pub(crate) struct Services {
    _sole: Sole,
    settings: ProxySettings,
    hcn: Arc<dyn Hcn>,
    options: HcnOptions,
    follower: Arc<HnsFollower>,
}

/// Starts what runs around a backend that programs services.
pub(crate) fn start_services(
    args: &RunArgs,
    backend: &'static str,
    proxy: ProxySettings,
    _: &Path,
    triggers: Option<Arc<Triggers>>,
    monitor: &Arc<Monitor>,
) -> Result<Option<Arc<Services>>, CommandError> {
    if !super::programs(backend) {
        return Ok(None);
    }
    let hcn = open()?;
    let sole = Sole::take()?;
    let takeover = args.proxy_host.takeover;
    tell_of_others(hcn.as_ref(), takeover);
    let macs = interfaces().unwrap_or_else(|error| {
        tracing::warn!(%error, "cannot read this machine's interfaces");
        Vec::new()
    });
    let host_macs = macs.into_iter().filter_map(|(address, mac)| Some((address, mac?))).collect();
    let options = HcnOptions { host_macs, takeover, ..proxy.hcn.clone() };
    let health = Arc::clone(monitor);
    let companions = Companions::start(CompanionsOptions {
        config: Arc::new(proxy.config.clone()),
        healthy: Arc::new(move || health.health().is_live()),
        localhost_proxy: false,
    });
    let companions = Arc::new(companions.map_err(|error| {
        CommandError::failed(format!("cannot start what runs beside the backend: {error}"))
    })?);
    let counted = Arc::clone(&companions);
    monitor.proxy().set_companions(Box::new(move || counted.figures().into()));
    let follower = Arc::new(HnsFollower { companions, monitor: Arc::clone(monitor), triggers });
    Ok(Some(Arc::new(Services { _sole: sole, settings: proxy, hcn, options, follower })))
}

/// A kube-proxy beside us would fight for the same places. What it has made carries no name, so it cannot
/// be refused as on Linux; but it can be told.
fn tell_of_others(hcn: &dyn Hcn, takeover: bool) {
    let Ok(ids) = hcn.load_balancer_ids(&telaio_hcn::Query::All) else { return };
    let others = ids.into_iter().filter(|id| !hcn::identity::is_marked(*id)).count();
    if others > 0 && !takeover {
        tracing::warn!(
            others,
            "HNS has load balancers of somebody else; if they are kube-proxy's, stop it and run `telaio \
             cleanup --kube-proxy`, or start with --takeover: what they have is not ours to serve"
        );
    }
}

impl Services {
    /// Makes the backends of this machine known.
    pub(super) fn register(
        &self,
        context: &BackendContext,
        registry: &mut Registry,
    ) -> Result<(), RegistryError> {
        let options = ProxyOptions {
            node: Arc::clone(&context.node),
            node_addresses: self.settings.node_addresses.clone(),
            config: Arc::new(self.settings.config.clone()),
            localhost: LocalhostPorts::default(),
            pacing: context.pacing,
            follower: Arc::clone(&self.follower) as Arc<dyn Follower>,
        };
        let (hcn_options, hcn) = (self.options.clone(), Arc::clone(&self.hcn));
        registry.register(HcnBackend::NAME, move || {
            Box::new(HcnBackend::new(options.clone(), hcn_options.clone(), Arc::clone(&hcn)))
        })
    }

    /// There is nothing to move over from.
    #[expect(clippy::unused_self, reason = "as on Linux")]
    pub(crate) fn wait_moved(&self) {}
}

/// Follows the backend for the monitor and the companions.
struct HnsFollower {
    companions: Arc<Companions>,
    monitor: Arc<Monitor>,
    triggers: Option<Arc<Triggers>>,
}

impl Follower for HnsFollower {
    fn started(&self, handle: &SyncHandle) {
        self.monitor.set_sync_loop(handle.clone());
        self.companions.started(handle);
    }

    fn programmed(&self, what: &Programmed<'_>) {
        self.companions.programmed(what);
        for (family, latency) in self.triggers.iter().flat_map(|triggers| triggers.programmed()) {
            self.monitor.proxy().network_programmed(family, latency);
        }
    }
}

/// Removes every trace of us; tells what that was.
pub(crate) fn remove_ours() -> Result<Vec<String>, String> {
    with_hcn(hcn::cleanup)
}

/// Removes the load balancers of others, kube-proxy's among them.
pub(crate) fn remove_kube_proxy() -> Result<Vec<String>, String> {
    with_hcn(hcn::cleanup_others)
}

fn with_hcn(
    act: impl FnOnce(&dyn Hcn) -> Result<Vec<String>, telaio_hcn::HcnError>,
) -> Result<Vec<String>, String> {
    let hcn = open().map_err(|error| error.to_string())?;
    act(hcn.as_ref()).map_err(|error| error.to_string())
}

/// There is nothing to put back.
pub(crate) fn restore(_: &Path) -> Vec<String> {
    Vec::new()
}
