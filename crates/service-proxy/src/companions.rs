//! What runs beside a backend: health check ports, node ports on loopback, the cleaning of UDP flows.
//!
//! [`Companions`] follows a backend: give it to the backend as its
//! [`Follower`], and after each sync each companion learns what changed. Nothing here waits: a port
//! is opened in passing, flows are cleaned on a thread of their own.
//!
//! Health check ports are the same everywhere. What only one kernel needs, or can do, is in `machine`:
//! node ports on loopback and the cleaning of flows on Linux.
//!
//! ```no_run
//! use std::sync::Arc;
//! use telaio_service_proxy::companions::{Companions, CompanionsOptions};
//! use telaio_service_proxy::config::ProxyConfig;
//!
//! let companions = Companions::start(CompanionsOptions {
//!     config: Arc::new(ProxyConfig::default()),
//!     healthy: Arc::new(|| true),
//!     localhost_proxy: true,
//! })?;
//! println!("{} ports for health checks", companions.figures().health_check_listeners);
//! # Ok::<(), std::io::Error>(())
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;
use std::sync::Arc;

use parking_lot::Mutex;
use telaio_model::{IpFamily, ObjectKey, ServiceEndpoints};
use telaio_reconcile::sync_loop::Histogram;
use telaio_reconcile::{SyncHandle, SyncKind};

use crate::config::{DetectLocal, NodeFacts, NodePortMatch, ProxyConfig};
use crate::health_check::{HealthCheckServers, Healthy, unspecified};
use crate::options::{Follower, LocalhostPorts, Programmed};
use crate::plan::{Answer, plan};

#[cfg_attr(not(target_os = "linux"), path = "companions/machine_elsewhere.rs")]
mod machine;
#[cfg(test)]
#[cfg(target_os = "linux")]
pub(crate) mod place;
#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests;

use machine::Machine;

/// What companions are made with.
#[derive(Clone)]
pub struct CompanionsOptions {
    /// What the operator decided.
    pub config: Arc<ProxyConfig>,
    /// Whether the proxy does its work, for health checks. Must be quick.
    pub healthy: Healthy,
    /// The backend needs the proxy for node ports on loopback. It runs only if
    /// [`ProxyConfig::localhost_node_ports`] asks for them.
    pub localhost_proxy: bool,
}

impl std::fmt::Debug for CompanionsOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CompanionsOptions")
            .field("config", &self.config)
            .field("localhost_proxy", &self.localhost_proxy)
            .finish_non_exhaustive()
    }
}

/// How many ports of services have endpoints, but none on this node, where their policy wants them
/// here: their traffic is dropped.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NoLocalEndpoints {
    /// By an internal policy Local.
    pub internal: u64,
    /// By an external policy Local.
    pub external: u64,
}

/// The figures of the cleaning of UDP flows.
#[derive(Debug, Clone, Default)]
pub struct StaleFlowFigures {
    /// How long reading the table and deleting took, each time.
    pub durations: Histogram,
    /// How many flows were deleted, by family.
    pub deleted_total: BTreeMap<IpFamily, u64>,
    /// How often it failed.
    pub failures_total: u64,
}

/// The figures of the proxy for node ports on loopback.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LocalhostFigures {
    /// Connections that were carried on.
    pub carried_total: u64,
    /// Connections that were not: no node port, or nobody answered there.
    pub refused_total: u64,
}

/// The figures of all companions at one moment.
#[derive(Debug, Clone, Default)]
pub struct CompanionFigures {
    /// Of the cleaning of UDP flows; zero where the machine needs none.
    pub stale_flows: StaleFlowFigures,
    /// Of node ports on loopback; zero where no proxy runs.
    pub localhost: LocalhostFigures,
    /// How many listeners for health checks are open.
    pub health_check_listeners: usize,
    /// Ports whose traffic is dropped for want of local endpoints, by family.
    pub no_local_endpoints: BTreeMap<IpFamily, NoLocalEndpoints>,
}

/// What runs beside a backend; dropping it ends all of it.
#[derive(Debug)]
pub struct Companions {
    config: Arc<ProxyConfig>,
    health_checks: HealthCheckServers,
    machine: Machine,
    state: Mutex<State>,
    handle: Mutex<Option<SyncHandle>>,
}

#[derive(Debug, Default)]
struct State {
    node: Option<NodeFacts>,
    /// The services that have ports without local endpoints.
    no_local_endpoints: BTreeMap<ObjectKey, Lacking>,
}

type Lacking = Vec<(IpFamily, NoLocalEndpoints)>;

impl Companions {
    /// Starts all of them, with nothing to do, in the network namespace of the caller.
    pub fn start(options: CompanionsOptions) -> io::Result<Self> {
        let CompanionsOptions { config, healthy, localhost_proxy } = options;
        Ok(Self {
            health_checks: HealthCheckServers::start(healthy)?,
            machine: Machine::start(&config, localhost_proxy)?,
            state: Mutex::default(),
            handle: Mutex::default(),
            config,
        })
    }

    /// Where the backend redirects connections to node ports on loopback, if they are served so.
    pub fn localhost_ports(&self) -> LocalhostPorts {
        self.machine.localhost_ports()
    }

    /// The figures at this moment.
    pub fn figures(&self) -> CompanionFigures {
        let mut no_local_endpoints: BTreeMap<IpFamily, NoLocalEndpoints> = self
            .config
            .families
            .iter()
            .map(|family| (*family, NoLocalEndpoints::default()))
            .collect();
        for (family, lacking) in self.state.lock().no_local_endpoints.values().flatten() {
            let total = no_local_endpoints.entry(*family).or_default();
            total.internal += lacking.internal;
            total.external += lacking.external;
        }
        CompanionFigures {
            stale_flows: self.machine.stale_flow_figures(),
            localhost: self.machine.localhost_figures(),
            health_check_listeners: self.health_checks.listening(),
            no_local_endpoints,
        }
    }

    /// The backend's sync loop, once it has started.
    pub fn sync_handle(&self) -> Option<SyncHandle> {
        self.handle.lock().clone()
    }

    /// The services that companions still know from an earlier backend, and its successor does not
    /// name in its first sync: they ended between the two.
    fn missing_from<T>(
        &self,
        services: &BTreeMap<ObjectKey, T>,
        state: &State,
    ) -> BTreeSet<ObjectKey> {
        let mut known = self.health_checks.services();
        known.extend(self.machine.services());
        known.extend(state.no_local_endpoints.keys().cloned());
        known.retain(|key| !services.contains_key(key));
        known
    }

    fn follow_node(&self, what: &Programmed<'_>, state: &mut State) {
        let is_same = state.node.as_ref() == Some(what.node);
        // The machine's own addresses change without notice; a full sync is often enough.
        if is_same && what.kind != SyncKind::Full {
            return;
        }
        if !is_same
            && self.config.detect_local == DetectLocal::NodeCidr
            && what.node.pod_cidrs.is_empty()
        {
            tracing::warn!(
                "the Node object names no pod networks (spec.podCIDRs), so no traffic counts as this \
                 node's pods'; use another --detect-local-mode"
            );
        }
        state.node = Some(what.node.clone());
        let addresses = NodeAddresses::new(&self.config, what.node);
        self.health_checks.set_addresses(addresses.health_checks);
        self.machine.set_addresses(addresses.node_ports);
    }

    fn follow_service(&self, key: &ObjectKey, entry: Option<&ServiceEndpoints>, state: &mut State) {
        self.health_checks.set(key, entry);
        let lacking = entry.map(|entry| lacking(entry, &self.config.families)).unwrap_or_default();
        replace(&mut state.no_local_endpoints, key, lacking);
        self.machine.set(key, entry);
    }
}

impl Follower for Companions {
    fn started(&self, handle: &SyncHandle) {
        *self.handle.lock() = Some(handle.clone());
    }

    fn programmed(&self, what: &Programmed<'_>) {
        let mut state = self.state.lock();
        self.follow_node(what, &mut state);
        let gone =
            if what.first { self.missing_from(what.changed, &state) } else { BTreeSet::new() };
        let changed = what.changed.iter().map(|(key, entry)| (key, entry.as_ref()));
        let changed = changed.chain(gone.iter().map(|key| (key, None)));
        for (key, entry) in changed.clone() {
            self.follow_service(key, entry, &mut state);
        }
        drop(state);
        self.machine.changed(changed);
    }
}

/// Keeps only what says something; returns what was there.
fn replace<T>(map: &mut BTreeMap<ObjectKey, Vec<T>>, key: &ObjectKey, now: Vec<T>) -> Vec<T> {
    let before = if now.is_empty() { map.remove(key) } else { map.insert(key.clone(), now) };
    before.unwrap_or_default()
}

/// The addresses on which companions serve, or which they use.
#[derive(Debug, PartialEq, Eq)]
struct NodeAddresses {
    /// Where health check ports are opened.
    health_checks: BTreeSet<IpAddr>,
    /// Where node ports are served, best first.
    node_ports: Vec<IpAddr>,
}

impl NodeAddresses {
    fn new(config: &ProxyConfig, node: &NodeFacts) -> Self {
        let own = machine::own_addresses().unwrap_or_else(|error| {
            tracing::warn!(%error, "using only the addresses that the Node object names");
            BTreeSet::new()
        });
        Self::choose(config, node, &own)
    }

    fn choose(config: &ProxyConfig, node: &NodeFacts, own: &BTreeSet<IpAddr>) -> Self {
        let mut health_checks = BTreeSet::new();
        let mut node_ports: Vec<IpAddr> = Vec::new();
        for family in config.families.iter().copied() {
            let of_family = |ip: &IpAddr| IpFamily::of(*ip) == family;
            let known = node.addresses.iter().chain(own).copied().filter(of_family);
            let serving: Vec<IpAddr> = match NodePortMatch::new(config, node, family) {
                NodePortMatch::AnyLocal => {
                    health_checks.insert(unspecified(family));
                    known.collect()
                }
                NodePortMatch::Within(nets) => {
                    let serves = |ip: &IpAddr| nets.iter().any(|net| net.contains(ip));
                    // Ports can only be opened on addresses that the machine has.
                    health_checks.extend(own.iter().filter(|ip| serves(ip)));
                    let serving: Vec<IpAddr> = known.clone().filter(serves).collect();
                    // Only loopback serves: the proxy's mark lets it in by any address.
                    if serving.is_empty() { known.collect() } else { serving }
                }
            };
            for ip in serving {
                if !is_for_node_only(ip) && !node_ports.contains(&ip) {
                    node_ports.push(ip);
                }
            }
        }
        Self { health_checks, node_ports }
    }
}

/// Loopback, and what needs the name of a link.
fn is_for_node_only(ip: IpAddr) -> bool {
    let is_link_local = match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    };
    ip.is_loopback() || is_link_local
}

/// Only services with a policy Local are worth a plan here.
fn lacking(entry: &ServiceEndpoints, families: &[IpFamily]) -> Lacking {
    let service = &entry.service;
    if !service.internal_traffic_to_local && !service.external_traffic_to_local {
        return Vec::new();
    }
    let mut all = Vec::new();
    for family in families.iter().copied() {
        let mut lacking = NoLocalEndpoints::default();
        for plan in plan(entry, family) {
            let answers_at = |external| {
                plan.frontends.iter().any(|frontend| frontend.place.is_external() == external)
            };
            let is_internal = service.internal_traffic_to_local && answers_at(false);
            let is_external = service.external_traffic_to_local && answers_at(true);
            lacking.internal += u64::from(is_internal && plan.internal == Answer::Drop);
            lacking.external += u64::from(is_external && plan.external == Answer::Drop);
        }
        if lacking != NoLocalEndpoints::default() {
            all.push((family, lacking));
        }
    }
    all
}
