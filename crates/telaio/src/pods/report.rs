//! What `telaio status` shows of the pods plane.

use std::collections::HashSet;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use telaio_pod_network::ways::{PeerWay, Ways};
use telaio_pod_network::{Attachment, Host, Network};

/// How many instances `telaio status` tells; the count is of all, and the admin API has pages of them.
pub(crate) const INSTANCES_SHOWN_MAX: usize = 200;

/// How many problems it tells.
const PROBLEMS_SHOWN_MAX: usize = 50;

/// What only the running plane knows.
#[derive(Debug, Default)]
pub(super) struct Shared(Mutex<Known>);

#[derive(Debug, Default, Clone)]
struct Known {
    policies: usize,
    cni: String,
    problems: Vec<String>,
}

impl Shared {
    /// What is wrong and keeps nothing else from being right.
    pub(super) fn set_problems(&self, problems: Vec<String>) {
        self.0.lock().problems = problems;
    }

    /// How many policies the cluster has.
    pub(super) fn set_policies(&self, count: usize) {
        self.0.lock().policies = count;
    }

    /// How the plugin's installation stands.
    pub(super) fn set_cni(&self, state: String) {
        self.0.lock().cni = state;
    }
}

/// The pods plane, as it is. Fields are only ever added.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct PodsReport {
    pub(crate) networks: Vec<NetworkReport>,
    pub(crate) instances: Vec<InstanceReport>,
    /// How many there are, told or not.
    pub(crate) instance_count: usize,
    /// The other nodes that are known.
    pub(crate) peers: Vec<String>,
    /// How each of them is reached.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) ways: Vec<WayReport>,
    /// The link to them, where there is one for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) tunnel: Option<TunnelReport>,
    /// How many policies the cluster has.
    pub(crate) policies: usize,
    /// How the plugin's installation stands.
    #[serde(default)]
    pub(crate) cni: String,
    /// What could not be read, and which other nodes are not reached.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) problems: Vec<String>,
}

/// How another node is reached.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct WayReport {
    pub(crate) node: String,
    /// `vxlan` or `host-gw`.
    pub(crate) mode: String,
    pub(crate) addresses: Vec<String>,
    pub(crate) subnets: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) mac: Option<String>,
    /// What of it is not in the kernel.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) missing: Vec<String>,
}

/// The link to other nodes.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct TunnelReport {
    pub(crate) name: String,
    pub(crate) vni: u32,
    pub(crate) port: u16,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) address: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) mtu: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) mac: Option<String>,
    pub(crate) up: bool,
    /// What is wrong with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) problem: Option<String>,
}

/// A network of instances.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct NetworkReport {
    pub(crate) name: String,
    pub(crate) bridge: String,
    pub(crate) subnets: Vec<String>,
}

/// An instance on a network.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct InstanceReport {
    pub(crate) id: String,
    pub(crate) network: String,
    pub(crate) interface: String,
    pub(crate) addresses: Vec<String>,
    /// The node's ports that lead to it, each as `80/tcp → 8080`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) ports: Vec<String>,
    /// The pod that it is, where its runtime said so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) pod: Option<String>,
}

/// The plane now, from its records.
pub(super) fn report(host: &Host, known: &Shared) -> PodsReport {
    let known = known.0.lock().clone();
    let mut problems = Vec::new();
    let networks = host.networks().map_err(|error| problems.push(error.to_string()));
    let attachments = host.attachments().map_err(|error| problems.push(error.to_string()));
    let peers = host.other_nodes().map_err(|error| problems.push(error.to_string()));
    let attachments = attachments.unwrap_or_default();
    let ways = host.ways().map_err(|error| problems.push(error.to_string()));
    let ways = ways.ok().flatten();
    problems.extend(host.problems().unwrap_or_default().iter().map(ToString::to_string));
    let mut told = HashSet::new();
    problems.retain(|problem| told.insert(problem.clone()));
    let mut others = known.problems;
    others.retain(|problem| !told.contains(problem));
    let more = others.len().saturating_sub(PROBLEMS_SHOWN_MAX);
    problems.extend(others.into_iter().take(PROBLEMS_SHOWN_MAX));
    if more > 0 {
        problems.push(format!("and {more} more; the log has all of them"));
    }
    PodsReport {
        tunnel: ways.as_ref().and_then(tunnel),
        ways: ways.iter().flat_map(|ways| ways.peers.iter().map(|it| way(ways, it))).collect(),
        networks: networks.unwrap_or_default().iter().map(network).collect(),
        instance_count: attachments.len(),
        instances: attachments.iter().map(instance).collect(),
        peers: peers.unwrap_or_default().into_iter().map(|peer| peer.id).collect(),
        policies: known.policies,
        cni: known.cni,
        problems,
    }
}

fn way(ways: &Ways, way: &PeerWay) -> WayReport {
    WayReport {
        node: way.peer.id.clone(),
        mode: ways.backend.name().to_owned(),
        addresses: way.peer.external.iter().map(ToString::to_string).collect(),
        subnets: way.peer.cidrs.iter().map(|it| it.network().to_string()).collect(),
        mac: way.mac.map(|mac| mac.to_string()),
        missing: way.missing.clone(),
    }
}

fn tunnel(ways: &Ways) -> Option<TunnelReport> {
    let it = ways.tunnel.as_ref()?;
    Some(TunnelReport {
        name: it.name.clone(),
        vni: it.vni,
        port: it.port,
        address: ways.address.map(|address| address.to_string()),
        mtu: it.mtu,
        mac: it.mac.map(|mac| mac.to_string()),
        up: it.is_up,
        // Without anybody to reach, nothing is missing yet.
        problem: it.problem.clone().filter(|_| !ways.peers.is_empty() || it.mtu.is_some()),
    })
}

fn network(network: &Network) -> NetworkReport {
    NetworkReport {
        name: network.name.clone(),
        bridge: network.bridge.clone(),
        subnets: network.subnets.iter().map(|subnet| subnet.cidr.to_string()).collect(),
    }
}

fn instance(attachment: &Attachment) -> InstanceReport {
    InstanceReport {
        id: attachment.container.clone(),
        network: attachment.network.clone(),
        interface: attachment.interface.clone(),
        addresses: attachment.addresses.iter().map(|inet| inet.address().to_string()).collect(),
        ports: attachment
            .ports
            .iter()
            .map(|port| format!("{port} → {}", port.instance_port))
            .collect(),
        pod: attachment.pod.as_ref().map(|pod| format!("{}/{}", pod.namespace, pod.name)),
    }
}
