//! A small cluster, and the way that it takes through the real code: objects, brain, rules.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use telaio_brain::{LocalWatch, Store, Wants};
use telaio_model::{
    Batch, EndpointSlice, IpFamily, Kind, Node, Object, ObjectChange, Protocol, Service,
    ServiceCidr,
};
use telaio_reconcile::kpng::State;
use telaio_service_proxy::config::{NodeFacts, ProxyConfig};
use telaio_service_proxy::iptables::{self, Ruleset};
use telaio_service_proxy::ipvs;
use telaio_service_proxy::ipvs::state::Circumstances;
use telaio_service_proxy::ipvs::types::Scheduler;
use telaio_service_proxy::nftables::desired::Desired;
use telaio_service_proxy::nftables::{self, trace::Items};
use telaio_service_proxy::options::LocalhostPorts;
use telaio_service_proxy::trace::{Packet, Surroundings, Trace};

use crate::oracle::Backend;

/// The node whose rules are asked.
pub(crate) const NODE: &str = "node-a";
/// Where our listeners for node ports on loopback would be.
const LOCALHOST: LocalhostPorts = LocalhostPorts { v4: Some(4004), v6: Some(4006), routed: false };

/// A cluster and what the operator decided.
#[derive(Clone)]
pub(crate) struct World {
    pub(crate) config: ProxyConfig,
    pub(crate) nodes: Vec<Node>,
    pub(crate) services: Vec<Service>,
    pub(crate) slices: Vec<EndpointSlice>,
    pub(crate) service_cidrs: Vec<ServiceCidr>,
}

/// An object a line, as a person reads it: this is what a failed test shows.
impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:?}", self.config)?;
        for object in self.objects() {
            let text = serde_json::to_string(&object).map_err(|_| fmt::Error)?;
            writeln!(f, "{text}")?;
        }
        Ok(())
    }
}

impl World {
    /// Nodes and nothing else.
    pub(crate) fn empty() -> Self {
        Self {
            config: ProxyConfig::default(),
            nodes: crate::generate::nodes(Some("zone-1")),
            services: Vec::new(),
            slices: Vec::new(),
            service_cidrs: Vec::new(),
        }
    }

    /// The Node object of our node.
    pub(crate) fn node(&self) -> &Node {
        self.nodes.iter().find(|node| &*node.meta.key.name == NODE).unwrap()
    }

    /// The node's own addresses, most important first.
    pub(crate) fn node_addresses(&self) -> Vec<IpAddr> {
        self.node().addresses.iter().map(|address| address.ip).collect()
    }

    /// Every place that a service of the cluster claims, loopback too.
    pub(crate) fn places(&self) -> Vec<(SocketAddr, Protocol)> {
        let mut places = BTreeSet::new();
        for service in &self.services {
            let named = service.cluster_ips.iter().chain(&service.external_ips).copied();
            let named = named.chain(service.load_balancer.iter().map(|it| it.ip));
            let named: Vec<IpAddr> = named.collect();
            for port in &service.ports {
                let to = |(ip, port): (&IpAddr, u16)| SocketAddr::new(*ip, port);
                places.extend(named.iter().map(|ip| (to((ip, port.port)), port.protocol)));
                let mut own = self.node_addresses();
                own.extend([IpAddr::from(Ipv4Addr::LOCALHOST), Ipv6Addr::LOCALHOST.into()]);
                if let Some(number) = port.node_port {
                    places.extend(own.iter().map(|ip| (to((ip, number)), port.protocol)));
                }
            }
        }
        places.into_iter().collect()
    }

    pub(crate) fn objects(&self) -> impl Iterator<Item = Object> {
        let nodes = self.nodes.iter().cloned().map(Object::from);
        let services = self.services.iter().cloned().map(Object::from);
        let slices = self.slices.iter().cloned().map(Object::from);
        nodes
            .chain(services)
            .chain(slices)
            .chain(self.service_cidrs.iter().cloned().map(Into::into))
    }

    /// The node's view, by way of the brain.
    pub(crate) fn view(&self) -> State {
        let store = Store::new();
        let changes = self.objects().map(ObjectChange::Set).collect();
        store.apply(Batch { changes, synced: true });
        let mut wants = Wants::services();
        wants.kinds.extend([Kind::Node, Kind::ServiceCidr]);
        let mut watch = LocalWatch::new(&store, NODE, wants);
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let mut state = State::default();
        for op in runtime.block_on(watch.next()).unwrap() {
            state.apply(op);
        }
        state
    }

    /// Our listeners for node ports on loopback.
    pub(crate) fn localhost(&self) -> LocalhostPorts {
        if self.config.localhost_node_ports { LOCALHOST } else { LocalhostPorts::default() }
    }

    /// What should stand in our nftables tables.
    pub(crate) fn desired(&self, view: &State) -> Desired {
        let config = Arc::new(self.config.clone());
        let mut desired = Desired::new(config, facts(view), self.localhost());
        for entry in view.services() {
            desired.set_service(&entry.service.key, Some(entry.clone()));
        }
        desired
    }

    /// The text of our iptables rules of one family.
    pub(crate) fn iptables_text(&self, view: &State, family: IpFamily) -> String {
        let services: iptables::Services =
            view.services().map(|entry| (entry.service.key.clone(), entry.clone())).collect();
        iptables::render(&services, &facts(view), &self.config, family)
    }

    /// All that our IPVS backend would have in the kernel.
    pub(crate) fn ipvs(&self, view: &State) -> ipvs::State {
        let node = facts(view);
        let machine = node.addresses.iter().copied().collect();
        let services: Vec<_> = view.services().collect();
        let around = Circumstances {
            config: &self.config,
            node: &node,
            scheduler: Scheduler::default(),
            machine: &machine,
        };
        ipvs::State::compile(&services, &around)
    }

    /// The rules of all backends.
    pub(crate) fn rules(&self) -> Rules {
        let view = self.view();
        let iptables = self.config.families.iter();
        let iptables = iptables
            .map(|family| (*family, Ruleset::parse(&self.iptables_text(&view, *family))))
            .collect();
        let around = Surroundings { addresses: facts(&view).addresses.into_iter().collect() };
        Rules { nftables: self.desired(&view).items(), iptables, ipvs: self.ipvs(&view), around }
    }
}

/// What the cluster says about the node.
pub(crate) fn facts(view: &State) -> NodeFacts {
    let objects = view.objects_of(Kind::Node).chain(view.objects_of(Kind::ServiceCidr));
    NodeFacts::from_objects(NODE, &[], objects)
}

/// The compiled rules of all backends.
pub(crate) struct Rules {
    pub(crate) nftables: Items,
    pub(crate) iptables: BTreeMap<IpFamily, Ruleset>,
    pub(crate) ipvs: ipvs::State,
    pub(crate) around: Surroundings,
}

impl Rules {
    /// What a backend's rules do with a packet.
    pub(crate) fn trace(&self, backend: Backend, packet: &Packet) -> Trace {
        match backend {
            Backend::Nftables => nftables::trace(packet, &self.around, &self.nftables),
            Backend::Iptables => {
                let family = IpFamily::of(packet.to.ip());
                let none = Ruleset::parse("");
                let rules = self.iptables.get(&family).unwrap_or(&none);
                iptables::trace(packet, &self.around, rules)
            }
            Backend::Ipvs => ipvs::trace(packet, &self.around, &self.ipvs),
        }
    }
}
