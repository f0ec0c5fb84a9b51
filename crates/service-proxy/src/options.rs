//! What a backend of this crate is made with, and what it tells its surroundings.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use telaio_model::{IpFamily, ObjectKey, ServiceEndpoints};
use telaio_reconcile::{PacerConfig, SyncHandle, SyncKind};

use crate::config::{NodeFacts, ProxyConfig};

/// What a sync put into the kernel.
#[derive(Debug)]
pub struct Programmed<'a> {
    /// How thorough the sync was.
    pub kind: SyncKind,
    /// It is the first since the start: whatever stands in the kernel beside it is from before.
    pub first: bool,
    /// The services that changed since the last sync that succeeded, as they are now; `None` for one
    /// that is gone.
    pub changed: &'a BTreeMap<ObjectKey, Option<ServiceEndpoints>>,
    /// What the cluster says about the node.
    pub node: &'a NodeFacts,
}

/// Whoever follows a backend: metrics, health check ports, the conntrack cleaner.
pub trait Follower: Send + Sync {
    /// The backend's sync loop runs.
    fn started(&self, handle: &SyncHandle);

    /// A sync succeeded. Called on the sync loop's thread, before the sync counts as done; so it must
    /// be quick, or hand over to somebody else.
    fn programmed(&self, what: &Programmed<'_>);
}

/// A follower that does not care; for tests.
#[derive(Debug, Default)]
pub struct Nobody;

impl Follower for Nobody {
    fn started(&self, _: &SyncHandle) {}
    fn programmed(&self, _: &Programmed<'_>) {}
}

/// The ports of our own listeners that serve node ports on loopback, where a backend needs them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LocalhostPorts {
    /// On 127.0.0.1.
    pub v4: Option<u16>,
    /// On ::1.
    pub v6: Option<u16>,
    /// Loopback addresses are routed on this machine, as they are where iptables has served node
    /// ports on them: then strangers must be kept from them.
    pub routed: bool,
}

impl LocalhostPorts {
    /// The one of a family.
    pub fn of(self, family: IpFamily) -> Option<u16> {
        match family {
            IpFamily::V4 => self.v4,
            IpFamily::V6 => self.v6,
        }
    }
}

/// What every backend of this crate is made with.
#[derive(Clone)]
pub struct ProxyOptions {
    /// The node whose view it gets.
    pub node: Arc<str>,
    /// Addresses of the node that the operator names; they come before those of its Node object.
    pub node_addresses: Vec<IpAddr>,
    /// What the operator decided.
    pub config: Arc<ProxyConfig>,
    /// Who serves node ports on loopback.
    pub localhost: LocalhostPorts,
    /// When to sync.
    pub pacing: PacerConfig,
    /// Who follows it.
    pub follower: Arc<dyn Follower>,
}

impl std::fmt::Debug for ProxyOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ProxyOptions")
            .field("node", &self.node)
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}
