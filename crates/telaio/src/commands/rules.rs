//! A backend's rules, without programming them: compiled from a view, or read from the kernel.
//!
//! Windows' objects are compiled on every system: what a node's HNS offers is then taken for granted, as
//! [`hcn::assumed`] has it.

#[cfg(target_os = "linux")]
mod linux;

use std::collections::BTreeSet;
use std::net::IpAddr;

use telaio_model::{IpFamily, Kind};
use telaio_reconcile::kpng::State;
use telaio_service_proxy::hcn::{self, HcnBackend};
use telaio_service_proxy::trace::{Packet, Surroundings, Trace};

use crate::cli::ProxyArgs;
use crate::exit::CommandError;
use crate::node_view::node_facts;
use crate::proxy_settings::ProxySettings;

/// The rules of one backend.
pub(crate) enum Rules {
    #[cfg(target_os = "linux")]
    Linux(linux::LinuxRules),
    Hcn(Box<hcn::State>),
}

impl Rules {
    /// What a backend would program for this view, on a machine with these addresses.
    pub(crate) fn compile(
        backend: &str,
        settings: &ProxySettings,
        node: &str,
        state: &State,
        machine: &BTreeSet<IpAddr>,
    ) -> Result<Self, CommandError> {
        if backend == HcnBackend::NAME {
            return compile_hcn(settings, node, state);
        }
        #[cfg(target_os = "linux")]
        return Ok(Self::Linux(linux::LinuxRules::compile(
            backend, settings, node, state, machine,
        )));
        #[cfg(not(target_os = "linux"))]
        Err(not_here(backend, machine))
    }

    /// What stands in the kernel of this network namespace, or in HNS.
    pub(crate) fn read(backend: &str, args: &ProxyArgs) -> Result<Self, CommandError> {
        #[cfg(target_os = "linux")]
        return linux::LinuxRules::read(backend, args).map(Self::Linux);
        #[cfg(not(target_os = "linux"))]
        read_hns(backend, args)
    }

    /// As the backend's own program, or HNS, would have them.
    pub(crate) fn render(&self, families: &[IpFamily]) -> String {
        match self {
            #[cfg(target_os = "linux")]
            Self::Linux(rules) => rules.render(families),
            Self::Hcn(state) => {
                // A document says by itself of which family it is.
                let _ = families;
                hcn::render(state)
            }
        }
    }

    /// What becomes of a packet.
    pub(crate) fn trace(&self, packet: &Packet, around: &Surroundings) -> Trace {
        match self {
            #[cfg(target_os = "linux")]
            Self::Linux(rules) => rules.trace(packet, around),
            Self::Hcn(state) => hcn::trace(packet, around, state),
        }
    }
}

fn compile_hcn(settings: &ProxySettings, node: &str, state: &State) -> Result<Rules, CommandError> {
    let facts = node_facts(state, node, &settings.node_addresses);
    let ground = hcn::assumed(&settings.config, &settings.hcn, &facts).map_err(|error| {
        CommandError::bad_input(format!("{error}; name it with --bind-address"))
    })?;
    let nodes = state.objects_of(Kind::Node).filter_map(hcn::register::node_addresses).collect();
    let compiled = hcn::State::compile(state.services(), &ground, &nodes);
    Ok(Rules::Hcn(Box::new(compiled)))
}

#[cfg(not(target_os = "linux"))]
fn not_here(backend: &str, _: &BTreeSet<IpAddr>) -> CommandError {
    CommandError::failed(format!("the rules of {backend} are compiled on Linux only"))
}

#[cfg(not(target_os = "linux"))]
fn read_hns(_: &str, _: &ProxyArgs) -> Result<Rules, CommandError> {
    let hcn = crate::backend::services::open()?;
    let state = hcn::State::read(hcn.as_ref())
        .map_err(|error| CommandError::failed(format!("cannot read HNS: {error}")))?;
    Ok(Rules::Hcn(Box::new(state)))
}
