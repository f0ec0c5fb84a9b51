//! What only Linux needs beside a backend: node ports on loopback, and the cleaning of UDP flows.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;

use parking_lot::Mutex;
use telaio_model::{IpFamily, ObjectKey, Protocol, ServiceEndpoints};
use telaio_netlink::NetlinkError;

use super::{LocalhostFigures, StaleFlowFigures, replace};
use crate::config::ProxyConfig;
use crate::localhost::LocalhostProxy;
use crate::options::LocalhostPorts;
use crate::stale_flows::StaleFlows;

/// The addresses that this machine has.
pub(super) fn own_addresses() -> Result<BTreeSet<IpAddr>, NetlinkError> {
    telaio_netlink::addresses::own_addresses()
}

/// The companions of this machine.
#[derive(Debug)]
pub(super) struct Machine {
    localhost: Option<LocalhostProxy>,
    pub(super) stale_flows: StaleFlows,
    /// The TCP node ports of the services that have some.
    node_ports: Mutex<BTreeMap<ObjectKey, Vec<(IpFamily, u16)>>>,
}

impl Machine {
    /// Starts them, in the network namespace of the caller.
    pub(super) fn start(config: &ProxyConfig, localhost_proxy: bool) -> io::Result<Self> {
        let localhost = if localhost_proxy && config.localhost_node_ports {
            Some(LocalhostProxy::start(&config.families, config.masquerade_mark())?)
        } else {
            None
        };
        let stale_flows = StaleFlows::start(&config.families)?;
        Ok(Self { localhost, stale_flows, node_ports: Mutex::default() })
    }

    /// Where connections to node ports on loopback are to be redirected, if they are served so.
    pub(super) fn localhost_ports(&self) -> LocalhostPorts {
        let port = |family| self.localhost.as_ref()?.port(family);
        LocalhostPorts { v4: port(IpFamily::V4), v6: port(IpFamily::V6), routed: false }
    }

    pub(super) fn stale_flow_figures(&self) -> StaleFlowFigures {
        self.stale_flows.figures()
    }

    pub(super) fn localhost_figures(&self) -> LocalhostFigures {
        self.localhost.as_ref().map(LocalhostProxy::figures).unwrap_or_default()
    }

    /// The services that are known here.
    pub(super) fn services(&self) -> BTreeSet<ObjectKey> {
        let mut known = self.stale_flows.services();
        known.extend(self.node_ports.lock().keys().cloned());
        known
    }

    /// The addresses by which node ports can be reached, best first.
    pub(super) fn set_addresses(&self, node_ports: Vec<IpAddr>) {
        if let Some(localhost) = &self.localhost {
            localhost.set_addresses(node_ports);
        }
    }

    /// A service is now so.
    pub(super) fn set(&self, key: &ObjectKey, entry: Option<&ServiceEndpoints>) {
        if let Some(localhost) = &self.localhost {
            let now = entry.map(tcp_node_ports).unwrap_or_default();
            let before = replace(&mut self.node_ports.lock(), key, now.clone());
            localhost.change_node_ports(&before, &now);
        }
    }

    /// These services are programmed so.
    pub(super) fn changed<'a>(
        &self,
        changed: impl Iterator<Item = (&'a ObjectKey, Option<&'a ServiceEndpoints>)>,
    ) {
        self.stale_flows.changed(changed);
    }
}

/// A node port exists in the families of the cluster addresses.
fn tcp_node_ports(entry: &ServiceEndpoints) -> Vec<(IpFamily, u16)> {
    let service = &entry.service;
    let tcp = service.ports.iter().filter(|port| port.protocol == Protocol::Tcp);
    let ports: BTreeSet<u16> = tcp.filter_map(|port| port.node_port).collect();
    if ports.is_empty() {
        return Vec::new();
    }
    let families: BTreeSet<IpFamily> =
        service.cluster_ips.iter().copied().map(IpFamily::of).collect();
    let with = |family| ports.iter().map(move |port| (family, *port));
    families.into_iter().flat_map(with).collect()
}
