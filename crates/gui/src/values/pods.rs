//! The pods plane: networks, instances, peers.

use serde::{Deserialize, Serialize};

use super::State;

/// A network of instances: `GET /api/v1/networks`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct NetworkItem {
    /// The name.
    pub name: String,
    /// The bridge on this node.
    pub bridge: String,
    /// Its networks.
    pub subnets: Vec<String>,
    /// Instances on it here.
    pub instances: usize,
}

/// An instance (a pod) on this node: `GET /api/v1/instances`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct InstanceItem {
    /// Its identity: the container's.
    pub id: String,
    /// The pod, where the cluster has one with its address.
    pub pod: Option<super::Key>,
    /// The network.
    pub network: String,
    /// The interface inside.
    pub interface: String,
    /// Its addresses.
    pub addresses: Vec<String>,
    /// The node's ports that lead to it, each as `80/tcp → 8080`.
    pub ports: Vec<String>,
    /// The services that it serves.
    pub services: Vec<super::Key>,
}

/// Another node, and how its instances are reached: `GET /api/v1/peers`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct PeerItem {
    /// The node.
    pub node: String,
    /// Its addresses.
    pub addresses: Vec<String>,
    /// The networks of its instances.
    pub subnets: Vec<String>,
    /// `vxlan`, `host-gw`, or empty where it is not known.
    pub mode: String,
    /// The addresses at which this node reaches it.
    #[serde(default)]
    pub public_addresses: Vec<String>,
    /// Its hardware address on the vxlan link.
    #[serde(default)]
    pub tunnel_mac: Option<String>,
    /// How the way there is: `error` where something of it is missing in the kernel.
    pub state: State,
    /// One line on the state, empty when well.
    #[serde(default)]
    pub state_text: String,
}

/// The link by which instances of other nodes are reached with `vxlan`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Tunnel {
    /// Its name.
    pub name: String,
    /// `vxlan`.
    pub kind: String,
    /// The number of the network.
    pub vni: u32,
    /// The UDP port.
    pub port: u16,
    /// The address that other nodes reach this one at; null while it is not known.
    pub address: Option<String>,
    /// The longest packet; null where the link is missing.
    pub mtu: Option<u32>,
    /// Its hardware address; null where the link is missing.
    pub mac: Option<String>,
    /// The link is there and up.
    pub up: bool,
    /// How it is: `error` where it is missing, down or not ours.
    pub state: State,
    /// One line on the state, empty when well.
    pub state_text: String,
}

/// `GET /api/v1/pods`: the plane as a whole.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct PodsSummary {
    /// The plane runs.
    pub enabled: bool,
    /// Networks.
    pub networks: usize,
    /// Instances.
    pub instances: usize,
    /// Other nodes.
    pub peers: usize,
    /// NetworkPolicies of the cluster.
    pub policies: usize,
    /// How the CNI plugin's installation stands.
    pub cni: String,
    /// What could not be read.
    pub problems: Vec<String>,
    /// The link to other nodes; null with `host-gw`, which needs none, and before this node's network is set up.
    #[serde(default)]
    pub tunnel: Option<Tunnel>,
}
