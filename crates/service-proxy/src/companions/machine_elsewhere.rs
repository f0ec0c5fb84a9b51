//! Elsewhere than on Linux nothing more runs beside a backend: Windows serves no node ports on loopback,
//! and HNS forgets the flows of an endpoint with the endpoint.

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;

use telaio_model::{ObjectKey, ServiceEndpoints};

use super::{LocalhostFigures, StaleFlowFigures};
use crate::config::ProxyConfig;
use crate::options::LocalhostPorts;

/// The addresses that this machine has.
#[cfg(windows)]
pub(super) fn own_addresses() -> io::Result<BTreeSet<IpAddr>> {
    let interfaces = telaio_hcn::windows::interfaces()?;
    Ok(interfaces.into_iter().flat_map(|interface| interface.addresses).collect())
}

/// The addresses that this machine has: nobody asks for them here.
#[cfg(not(windows))]
pub(super) fn own_addresses() -> io::Result<BTreeSet<IpAddr>> {
    Ok(BTreeSet::new())
}

/// The companions of this machine: none.
#[derive(Debug)]
pub(super) struct Machine;

#[expect(clippy::unused_self, clippy::unnecessary_wraps, reason = "as on Linux")]
impl Machine {
    pub(super) fn start(_: &ProxyConfig, _: bool) -> io::Result<Self> {
        Ok(Self)
    }

    pub(super) fn localhost_ports(&self) -> LocalhostPorts {
        LocalhostPorts::default()
    }

    pub(super) fn stale_flow_figures(&self) -> StaleFlowFigures {
        StaleFlowFigures::default()
    }

    pub(super) fn localhost_figures(&self) -> LocalhostFigures {
        LocalhostFigures::default()
    }

    pub(super) fn services(&self) -> BTreeSet<ObjectKey> {
        BTreeSet::new()
    }

    pub(super) fn set_addresses(&self, _: Vec<IpAddr>) {}

    pub(super) fn set(&self, _: &ObjectKey, _: Option<&ServiceEndpoints>) {}

    pub(super) fn changed<'a>(
        &self,
        _: impl Iterator<Item = (&'a ObjectKey, Option<&'a ServiceEndpoints>)>,
    ) {
    }
}
