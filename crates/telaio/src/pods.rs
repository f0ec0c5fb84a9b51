//! The pods plane of the agent: this node's instance network, the ways to other nodes, and network policies.
//!
//! One sync loop does all of it, in an order that lets nobody slip through: first the policies, with the addresses of
//! instances that were attached a moment ago; then the node's network and the ways to the others; last the plugin by which new
//! instances come. What fails does not keep the rest from being done, and is tried again.
//!
//! Instances are not the agent's: the library and the plugin make them, with or without an agent. The agent mends what of them
//! somebody has broken.

mod announce;
mod cni;
mod nodes;
mod report;
mod syncer;
mod watch;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use telaio_model::{IpFamily, Kind};
use telaio_pod_network::overlay::Backend;
use telaio_pod_network::{Host, policy};
use telaio_reconcile::kpng::{FullState, Inbox, Sink};
use telaio_reconcile::{PacerConfig, SyncHandle, sync_loop};

use announce::Announcer;
pub(crate) use announce::Told;
pub(crate) use cni::CniSettings;
pub(crate) use nodes::NodeSettings;
pub(crate) use report::{INSTANCES_SHOWN_MAX, PodsReport};
#[cfg(test)]
pub(crate) use report::{InstanceReport, NetworkReport};
use syncer::PodsSyncer;
use watch::Watch;

use crate::backend::services::families;
use crate::cli::{CniArgs, PodBackend, PodsArgs};
use crate::exit::CommandError;

/// The objects that the plane asks for.
pub(crate) const OBJECT_KINDS: &[Kind] =
    &[Kind::Node, Kind::Pod, Kind::Namespace, Kind::NetworkPolicy];

/// What the plane is set up with.
#[derive(Debug, Clone)]
pub(crate) struct PodsSettings {
    /// This node's name.
    pub(crate) node: Arc<str>,
    /// The families that this machine has.
    pub(crate) families: Vec<IpFamily>,
    /// Where records are.
    pub(crate) state_dir: PathBuf,
    /// When to sync.
    pub(crate) pacing: PacerConfig,
    /// This node's network.
    pub(crate) nodes: NodeSettings,
    /// Where the plugin goes.
    pub(crate) cni: CniSettings,
    /// The agent goes on after its first sync, so watching makes sense.
    pub(crate) stays: bool,
}

/// The running plane; ended when this is dropped. What is set up stays.
#[derive(Debug)]
pub(crate) struct Pods {
    handle: SyncHandle,
    host: Host,
    status: Arc<report::Shared>,
    _watch: Option<Watch>,
}

impl Pods {
    /// Starts it, and gives what it is to be fed by. With an API server, other nodes are told there how this one is
    /// reached. Must be called within the runtime.
    pub(crate) fn start(
        settings: PodsSettings,
        told: Option<Told>,
    ) -> Result<(Self, Box<dyn Sink>), CommandError> {
        let failed = |error: &dyn std::fmt::Display| {
            CommandError::failed(format!("the pods plane cannot run: {error}"))
        };
        let inbox = Inbox::default();
        let host = Host::new(&settings.state_dir);
        let status = Arc::new(report::Shared::default());
        let keeper = policy::Keeper::open(Arc::clone(&settings.node), &settings.families);
        let keeper = keeper.map_err(|error| {
            if error.is_permission() {
                failed(&"it needs root, or CAP_NET_ADMIN in this network namespace")
            } else {
                failed(&error)
            }
        })?;
        let has_nftables =
            telaio_pod_network::rules::has_nftables().map_err(|error| failed(&error))?;
        if !has_nftables {
            tracing::warn!(
                "this kernel has no nftables for IP: rules of pods are iptables', and network policies are refused"
            );
        }
        let (node, pacing, stays) = (Arc::clone(&settings.node), settings.pacing, settings.stays);
        // Without nftables no policy can be kept.
        let keeper = has_nftables.then_some(keeper);
        let announcer =
            told.map(|told| Announcer::start(told, node.to_string(), &settings.state_dir));
        let syncer =
            PodsSyncer::new(settings, inbox.clone(), host.clone(), keeper, Arc::clone(&status));
        let syncer = syncer.announcing(announcer);
        let wakes = syncer.waker();
        let handle = sync_loop::spawn(watch::SYNC_THREAD, pacing, syncer)
            .map_err(|error| failed(&format!("cannot start a thread: {error}")))?;
        wakes.set(handle.clone());
        let watch = stays.then(|| Watch::start(&handle, &host));
        let for_sink = handle.clone();
        let sink = FullState::across_resets(node, inbox.callback(move || for_sink.notify()));
        Ok((Self { handle, host, status, _watch: watch }, Box::new(sink)))
    }

    /// Its sync loop.
    pub(crate) fn handle(&self) -> &SyncHandle {
        &self.handle
    }

    /// What tells how it is, whenever it is asked.
    pub(crate) fn reporter(&self) -> impl Fn() -> PodsReport + Send + Sync + 'static {
        let (host, status) = (self.host.clone(), Arc::clone(&self.status));
        move || report::report(&host, &status)
    }

    /// What tells when an instance last came or went.
    pub(crate) fn changed(&self) -> impl Fn() -> Option<SystemTime> + Send + Sync + 'static {
        let host = self.host.clone();
        move || host.attachments_changed().ok()
    }
}

impl From<PodBackend> for Backend {
    fn from(asked: PodBackend) -> Self {
        match asked {
            PodBackend::Vxlan => Self::default(),
            PodBackend::HostGw => Self::HostGw,
        }
    }
}

impl CniArgs {
    /// Where plugin and configuration go. An empty name is nowhere.
    pub(crate) fn settings(&self) -> CniSettings {
        let dir = |path: &PathBuf| (!path.as_os_str().is_empty()).then(|| path.clone());
        CniSettings {
            bin_dir: dir(&self.cni_bin_dir),
            conf_dir: dir(&self.cni_conf_dir),
            ..CniSettings::default()
        }
    }
}

impl PodsArgs {
    /// The plane's settings on a node.
    pub(crate) fn settings(
        &self,
        node: &str,
        state_dir: &Path,
        pacing: PacerConfig,
        stays: bool,
    ) -> PodsSettings {
        PodsSettings {
            node: node.into(),
            families: families(),
            state_dir: state_dir.to_owned(),
            pacing,
            nodes: NodeSettings {
                pod_cidrs: self.pod_cidr.clone(),
                backend: self.pod_backend.into(),
                tunnel_address: self.tunnel_address,
                masquerade_except: self.masquerade_except.clone(),
            },
            cni: CniSettings {
                plugin: self.cni_plugin.clone(),
                take_over: self.take_over_cni,
                ..self.cni.settings()
            },
            stays,
        }
    }
}

/// Removes every trace of the plane: instances, networks, rules, limits, plugin and configuration; tells what that was. What
/// fails does not keep the rest from going.
pub(crate) fn remove_ours(state_dir: &Path, cni: &CniSettings) -> (Vec<String>, Vec<String>) {
    let (mut removed, mut problems) = (Vec::new(), Vec::new());
    let mut note = |outcome: Result<Vec<String>, String>| match outcome {
        Ok(done) => removed.extend(done),
        Err(problem) => problems.push(problem),
    };
    // First, so that nobody attaches anything while we remove the rest.
    note(cni::remove(cni, state_dir));
    note(announce::withdraw(state_dir));
    note(policy::cleanup().map_err(|error| error.to_string()));
    note(syncer::remove_networks(&Host::new(state_dir)));
    (removed, problems)
}
