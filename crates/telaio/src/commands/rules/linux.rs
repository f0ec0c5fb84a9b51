//! The rules of Linux' backends.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use telaio_model::IpFamily;
use telaio_reconcile::kpng::State;
use telaio_service_proxy::iptables::{self, Flavor, IptablesBackend, Programs, Ruleset};
use telaio_service_proxy::ipvs::state::Circumstances;
use telaio_service_proxy::ipvs::{self, IpvsBackend};
use telaio_service_proxy::nftables::desired::Desired;
use telaio_service_proxy::nftables::target::Kernel;
use telaio_service_proxy::nftables::trace::Items;
use telaio_service_proxy::nftables::{self, NftablesBackend};
use telaio_service_proxy::options::LocalhostPorts;
use telaio_service_proxy::trace::{Packet, Surroundings, Trace};

use crate::backend::services;
use crate::cli::ProxyArgs;
use crate::exit::CommandError;
use crate::node_view::node_facts;
use crate::proxy_settings::ProxySettings;

/// The ports of the listeners for node ports on loopback are known only to a running agent; this
/// stands for them.
const LOCALHOST_PORT: u16 = 1;

/// The rules of one backend.
pub(crate) enum LinuxRules {
    Nftables(Items),
    /// By family: the text, and what it means.
    Iptables(BTreeMap<IpFamily, (String, Ruleset)>),
    Ipvs(Box<ipvs::State>),
}

impl LinuxRules {
    /// What a backend would program for this view, on a machine with these addresses.
    pub(super) fn compile(
        backend: &str,
        settings: &ProxySettings,
        node: &str,
        state: &State,
        machine: &BTreeSet<IpAddr>,
    ) -> Self {
        let facts = node_facts(state, node, &settings.node_addresses);
        let config = &settings.config;
        if backend == NftablesBackend::NAME {
            let port = config.localhost_node_ports.then_some(LOCALHOST_PORT);
            let ports = LocalhostPorts { v4: port, v6: port, routed: false };
            let mut desired = Desired::new(Arc::new(config.clone()), facts, ports);
            for entry in state.services() {
                desired.set_service(&entry.service.key, Some(entry.clone()));
            }
            return Self::Nftables(desired.items());
        }
        if backend == IpvsBackend::NAME {
            let services: Vec<_> = state.services().collect();
            let scheduler = settings.ipvs.options(Flavor::default(), false).scheduler;
            let around = Circumstances { config, node: &facts, scheduler, machine };
            return Self::Ipvs(Box::new(ipvs::State::compile(&services, &around)));
        }
        let services: iptables::Services =
            state.services().map(|entry| (entry.service.key.clone(), entry.clone())).collect();
        let rules = config.families.iter().map(|family| {
            let text = iptables::render(&services, &facts, config, *family);
            let rules = Ruleset::parse(&text);
            (*family, (text, rules))
        });
        Self::Iptables(rules.collect())
    }

    /// What stands in the kernel of this network namespace.
    pub(super) fn read(backend: &str, args: &ProxyArgs) -> Result<Self, CommandError> {
        let (families, flavor) = (&services::families(), args.iptables_flavor.into());
        let failed =
            |error: String| CommandError::failed(format!("cannot read the rules: {error}"));
        if !matches!(backend, NftablesBackend::NAME | IpvsBackend::NAME | IptablesBackend::NAME) {
            return Err(failed(format!("there are none of the backend {backend} on Linux")));
        }
        if backend == NftablesBackend::NAME {
            let mut kernel = Kernel::open(families).map_err(|error| failed(error.to_string()))?;
            let items = kernel.read_what_is_there().map_err(|error| failed(error.to_string()))?;
            return Ok(Self::Nftables(items));
        }
        if backend == IpvsBackend::NAME {
            let state = ipvs::State::read(families, flavor);
            return Ok(Self::Ipvs(Box::new(state.map_err(|error| failed(error.to_string()))?)));
        }
        let mut rules = BTreeMap::new();
        for family in families {
            let programs =
                Programs::find(flavor, *family).map_err(|error| failed(error.to_string()))?;
            let text = programs.save().map_err(|error| failed(error.to_string()))?;
            rules.insert(*family, (text.clone(), Ruleset::parse(&text)));
        }
        Ok(Self::Iptables(rules))
    }

    /// As the backend's own program would have them.
    pub(super) fn render(&self, families: &[IpFamily]) -> String {
        match self {
            Self::Nftables(items) => nftables::render(items, families),
            Self::Iptables(rules) => {
                let section = |(family, (text, _)): (&IpFamily, &(String, Ruleset))| {
                    format!("# {family}\n{text}")
                };
                rules.iter().map(section).collect()
            }
            Self::Ipvs(state) => ipvs::render(state),
        }
    }

    /// What becomes of a packet.
    pub(super) fn trace(&self, packet: &Packet, around: &Surroundings) -> Trace {
        match self {
            Self::Nftables(items) => nftables::trace(packet, around, items),
            Self::Iptables(rules) => {
                let family = IpFamily::of(packet.to.ip());
                let none = Ruleset::parse("");
                let rules = rules.get(&family).map_or(&none, |(_, rules)| rules);
                iptables::trace(packet, around, rules)
            }
            Self::Ipvs(state) => ipvs::trace(packet, around, state),
        }
    }
}
