//! From services to HNS: what the node offers, what services want, and the one place that writes.
//!
//! ```text
//!  pre_run ─► Ground ─┐
//!  callback ──────────┴► add_service_endpoints_for_… ─► stores ─► program_host_compute_objects ─► HNS
//! ```
//!
//! [`Core::pre_run`] and [`Core::callback`] change nothing in HNS. [`Core::program_host_compute_objects`] works
//! through the stores' deltas; what fails is told and stays a delta, so the next run tries it again, and the
//! rest goes on.
//!
//! ```
//! use std::collections::BTreeMap;
//! use std::sync::Arc;
//! use telaio_hcn::{FakeHcn, Hcn, Network, NetworkType};
//! use telaio_service_proxy::config::{NodeFacts, ProxyConfig};
//! use telaio_service_proxy::fixture::Fixture;
//! use telaio_service_proxy::hcn::{Core, HcnOptions};
//!
//! let hcn = FakeHcn::default();
//! let kind = NetworkType::L2Bridge;
//! hcn.create_network(&Network { name: "cbr0".into(), kind, ..Network::default() })?;
//!
//! let mut core = Core::new(Arc::new(hcn), Arc::new(ProxyConfig::default()), HcnOptions::default());
//! core.pre_run(&NodeFacts::default())?;
//! let web = Fixture::new("web").cluster_ip([10, 96, 0, 10]).remote([10, 244, 1, 5]).build();
//! core.callback(&BTreeMap::from([(web.service.key.clone(), Some(web))]));
//! core.observe()?;
//! let outcome = core.program_host_compute_objects();
//! assert_eq!(outcome.report.created, 2); // an endpoint and a load balancer
//! assert!(outcome.failures.is_empty());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod ground;
mod observe;
mod program;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use telaio_hcn::{Endpoint, Guid, Hcn, HcnError, PortMappingFlags};
use telaio_model::{ObjectKey, ServiceEndpoints};

use super::compile::{Ground, Manner, Nodes, PortCompiler, ServiceObjects, Sites};
use super::options::HcnOptions;
use super::store::{EndpointStore, LoadBalancerStore};
use crate::config::{NodeFacts, ProxyConfig};
use crate::plan::{Place, plan};

pub use ground::{PreRunError, assumed};
pub use observe::{cleanup, cleanup_others};
pub use program::{Failure, Outcome};

use observe::There;

/// A node's services in HNS.
pub struct Core {
    hcn: Arc<dyn Hcn>,
    config: Arc<ProxyConfig>,
    options: HcnOptions,
    /// What the node offers; none before the first `pre_run`.
    ground: Option<Ground>,
    nodes: Nodes,
    /// Every service, for when what all depend on changes.
    services: BTreeMap<ObjectKey, ServiceEndpoints>,
    endpoints: EndpointStore,
    load_balancers: LoadBalancerStore,
    /// What is known to be in HNS.
    there: There,
    /// On an overlay, the endpoint that has to have the source address, where nobody made it.
    source_vip: Option<Endpoint>,
    /// This HNS says that it can modify load balancers, and then cannot.
    modify_refused: bool,
    /// What was told of each service.
    told: BTreeMap<ObjectKey, BTreeSet<String>>,
    /// Addresses without an endpoint that were told of.
    told_lacking: BTreeSet<IpAddr>,
}

impl Core {
    /// One that knows nothing yet.
    pub fn new(hcn: Arc<dyn Hcn>, config: Arc<ProxyConfig>, options: HcnOptions) -> Self {
        Self {
            hcn,
            config,
            options,
            ground: None,
            nodes: Nodes::new(),
            services: BTreeMap::new(),
            endpoints: EndpointStore::default(),
            load_balancers: LoadBalancerStore::default(),
            there: There::default(),
            source_vip: None,
            modify_refused: false,
            told: BTreeMap::new(),
            told_lacking: BTreeSet::new(),
        }
    }

    /// Finds out what the node offers: the network, what HNS can do, the source address. Changes nothing in
    /// HNS. If it is something else than before, all services are worked out anew.
    pub fn pre_run(&mut self, node: &NodeFacts) -> Result<(), PreRunError> {
        let (ground, source_vip) =
            ground::survey(self.hcn.as_ref(), &self.config, &self.options, node)?;
        self.source_vip = source_vip;
        if self.ground.as_ref() == Some(&ground) {
            return Ok(());
        }
        let other_network = self.ground.as_ref().is_none_or(|it| it.network != ground.network);
        tracing::info!(
            network = %ground.network, overlay = ground.overlay.is_some(),
            hns = %ground.features.version(), families = ?ground.families, "found the pods' network"
        );
        self.ground = Some(ground);
        if other_network {
            self.forget_there();
        }
        self.recompile();
        Ok(())
    }

    /// What the node offers.
    pub fn ground(&self) -> Option<&Ground> {
        self.ground.as_ref()
    }

    /// The cluster's nodes are these. On an overlay, services with endpoints on those that changed are
    /// worked out anew.
    pub fn set_nodes(&mut self, nodes: Nodes) {
        if nodes == self.nodes {
            return;
        }
        let before = std::mem::replace(&mut self.nodes, nodes);
        if self.ground.as_ref().is_none_or(|ground| ground.overlay.is_none()) {
            return;
        }
        let differs = |name: &Arc<str>| before.get(name) != self.nodes.get(name);
        let is_there = |entry: &&ServiceEndpoints| {
            entry.endpoints.iter().any(|it| it.node.as_ref().is_some_and(differs))
        };
        let entries: Vec<_> = self.services.values().filter(is_there).cloned().collect();
        for entry in entries {
            self.add(&entry.service.key.clone(), Some(&entry));
        }
    }

    /// The full-state callback: these services are now so; `None` for one that is gone. One that changed,
    /// or all.
    pub fn callback(&mut self, changed: &BTreeMap<ObjectKey, Option<ServiceEndpoints>>) {
        for (key, entry) in changed {
            match entry {
                Some(entry) => _ = self.services.insert(key.clone(), entry.clone()),
                None => _ = self.services.remove(key),
            }
            self.add(key, entry.as_ref());
        }
    }

    /// Works all services out anew.
    pub fn recompile(&mut self) {
        let services = std::mem::take(&mut self.services);
        for (key, entry) in &services {
            self.add(key, Some(entry));
        }
        self.services = services;
    }

    /// Puts all that a service wants into the stores.
    fn add(&mut self, key: &ObjectKey, entry: Option<&ServiceEndpoints>) {
        let Some(ground) = &self.ground else { return };
        let objects = entry.map(|entry| service_objects(entry, ground, &self.nodes));
        let objects = objects.unwrap_or_default();
        let told = self.told.remove(key).unwrap_or_default();
        for problem in objects.problems.difference(&told) {
            tracing::warn!("service {key}: {problem}");
        }
        if !objects.problems.is_empty() {
            self.told.insert(key.clone(), objects.problems);
        }
        self.endpoints.want(key, objects.endpoints);
        self.load_balancers.claim(key, objects.claims);
    }

    /// What is wanted and there of remote endpoints.
    pub fn endpoints(&self) -> &EndpointStore {
        &self.endpoints
    }

    /// What is wanted and there of load balancers.
    pub fn load_balancers(&self) -> &LoadBalancerStore {
        &self.load_balancers
    }

    /// Addresses that load balancers should send to and nobody has: mostly pods of this node whose
    /// endpoint is not made yet.
    pub fn is_lacking(&self) -> bool {
        self.load_balancers.lacking().next().is_some()
    }

    /// Tells once of each address that nobody has, for as long as that is so.
    fn tell_lacking(&mut self) {
        let mut lacking = BTreeSet::new();
        for (place, addresses) in self.load_balancers.lacking() {
            for address in addresses {
                if lacking.insert(*address) && !self.told_lacking.contains(address) {
                    tracing::warn!(%address, %place, "nobody has made an endpoint for it; not served");
                }
            }
        }
        self.told_lacking = lacking;
    }

    fn network(&self) -> Guid {
        self.ground.as_ref().map_or(Guid::NIL, |ground| ground.network)
    }
}

/// Everything that a service wants on this ground. Pure.
pub fn service_objects(entry: &ServiceEndpoints, ground: &Ground, nodes: &Nodes) -> ServiceObjects {
    let mut made = ServiceObjects::default();
    let sites = Sites::of(entry);
    for family in ground.families.iter().copied() {
        for plan in &plan(entry, family) {
            let compiler = PortCompiler::new(entry, &sites, plan, ground, nodes, family);
            let Some(port) = compiler else {
                made.problems.insert(format!(
                    "port {} is of SCTP, which Windows cannot balance: it is not served",
                    plan.frontends.first().map_or(0, |it| it.port)
                ));
                continue;
            };
            port.problems(&mut made);
            add_service_endpoints_for_cluster_ip(&port, &mut made);
            add_service_endpoints_for_node_port(&port, &mut made);
            add_service_endpoints_for_load_balancer(&port, &mut made);
        }
    }
    made
}

/// What a port wants at its cluster addresses.
fn add_service_endpoints_for_cluster_ip(port: &PortCompiler<'_>, made: &mut ServiceObjects) {
    let manner = Manner { dsr: port.ground().dsr, flags: PortMappingFlags::NONE };
    for frontend in &port.plan().frontends {
        let Place::ClusterIp(vip) = frontend.place else { continue };
        let at = (Some(vip), frontend.port);
        let is_served = port.claim(frontend.place, at, (port.plan().internal, false), manner, made);
        if is_served && let Some(endpoint) = port.ground().vip_endpoint() {
            made.endpoints.insert(vip, endpoint);
        }
    }
}

/// What a port wants at the node's own addresses.
fn add_service_endpoints_for_node_port(port: &PortCompiler<'_>, made: &mut ServiceObjects) {
    let manner = Manner {
        dsr: port.has_local_dsr(),
        flags: PortMappingFlags::LOCAL_ROUTED_VIP | PortMappingFlags::VIP_EXTERNAL_IP,
    };
    // Whoever looks whether this node is well must not get another's answer.
    let answer = (port.plan().external, port.preserves_destination());
    for frontend in port.plan().frontends.iter().filter(|it| it.place == Place::NodePort) {
        for vip in port.ground().node_port_vips(port.family()) {
            port.claim(frontend.place, (vip, frontend.port), answer, manner, made);
        }
    }
}

/// What a port wants at its load balancer's addresses and its external ones.
fn add_service_endpoints_for_load_balancer(port: &PortCompiler<'_>, made: &mut ServiceObjects) {
    let preserve = port.preserves_destination();
    let external = PortMappingFlags::VIP_EXTERNAL_IP;
    for frontend in &port.plan().frontends {
        let (vip, preserve) = match frontend.place {
            Place::ExternalIp(vip) => (vip, false),
            Place::LoadBalancerIp(vip) => (vip, preserve),
            Place::ClusterIp(_) | Place::NodePort => continue,
        };
        let manner = Manner {
            dsr: preserve || port.has_local_dsr(),
            flags: external
                .with(PortMappingFlags::USE_MUX, preserve)
                .with(PortMappingFlags::PRESERVE_DESTINATION, preserve),
        };
        let at = (Some(vip), frontend.port);
        port.claim(frontend.place, at, (port.plan().external, preserve), manner, made);
    }
}

/// Whether an error says that an object is gone which we thought to be there, or is there which we did
/// not know of: then HNS has to be looked at.
fn is_surprise(error: &HcnError) -> bool {
    use telaio_hcn::Reason;
    matches!(
        error.reason,
        Reason::NotFound
            | Reason::MissingDependency(_)
            | Reason::AlreadyExists
            | Reason::PortInUse
            | Reason::InUse
            | Reason::Unavailable
            | Reason::BadAnswer(_)
    )
}
