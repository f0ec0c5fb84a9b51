//! A network: what instances hang on.

use std::net::IpAddr;

use cidr::{IpCidr, IpInet};
use serde::{Deserialize, Serialize};

/// The first number that a network can have as its links' group.
pub const GROUP_FIRST: u32 = 0x7e1a_0001;
/// The group of the ports of bridges whose instances talk through the node only.
pub const PORT_GROUP: u32 = 0x7e1a_fffe;
/// How many networks a node can have.
pub const NETWORKS_MAX: u32 = 4096;

/// Whether a link's group is one that only we give.
pub fn is_our_group(group: u32) -> bool {
    group >> 16 == GROUP_FIRST >> 16
}

/// A network of this node, as it is on record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Network {
    /// Its name: a node's ID in the library, `name` of a CNI configuration.
    pub name: String,
    /// The group of all links by which its packets enter and leave the node's routing.
    pub group: u32,
    /// The bridge.
    pub bridge: String,
    /// The bridge's hardware address.
    #[serde(default)]
    pub bridge_mac: String,
    /// Its address ranges on this node, each with the node's own address in it.
    pub subnets: Vec<Subnet>,
    /// How packets get from one instance to another.
    pub mode: Mode,
    /// The longest packet of its links; the kernel's default if not said.
    pub mtu: Option<u32>,
    /// Who is masqueraded, if anybody.
    pub masquerade: Option<Masquerade>,
    /// The virtual network of the bridge that its ports are in.
    #[serde(default)]
    pub vlan: Option<u16>,
    /// Ports may send frames back where they came from.
    #[serde(default)]
    pub hairpin: bool,
    /// The bridge takes all frames of its ports.
    #[serde(default)]
    pub promiscuous: bool,
    /// The bridge was there before us, and stays when the network goes.
    #[serde(default)]
    pub is_adopted: bool,
    /// Everything of it was made; without, its making was cut short.
    #[serde(default)]
    pub is_made: bool,
    /// The names of other networks whose instances may reach this one's, and be reached, as its configuration says.
    #[serde(default)]
    pub reaches: Vec<String>,
    /// And as [`Host::join_networks`](crate::Host::join_networks) was told, whatever the configuration says.
    #[serde(default)]
    pub joined: Vec<String>,
}

impl Network {
    /// Whether it says that its instances and those of another network may reach each other.
    pub(crate) fn lets_in(&self, other: &str) -> bool {
        self.reaches.iter().chain(&self.joined).any(|name| name == other)
    }
}

/// A range of addresses of a network on this node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Subnet {
    /// The range.
    pub cidr: IpCidr,
    /// Where instances send what is for others: the node's own address in it, in routed networks.
    pub gateway: Option<IpAddr>,
}

impl Subnet {
    /// The gateway with the range's prefix length.
    pub fn gateway_inet(&self) -> Option<IpInet> {
        IpInet::new(self.gateway?, self.cidr.network_length()).ok()
    }
}

/// How packets get from one instance to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// Through the node's routing and rules: ports are isolated.
    Routed,
    /// As frames, from port to port: the node has no part in it, so rules see nothing.
    Bridged,
}

/// What leaves the network is given the node's address, with exceptions.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Masquerade {
    /// Destinations that see the instance's own address.
    pub except: Vec<IpCidr>,
}
