//! An instance's place on a network, as it is on record.

use std::fmt;
use std::net::IpAddr;

use cidr::IpInet;
use serde::{Deserialize, Serialize};

use crate::bandwidth::Bandwidth;
use crate::port::Port;

/// An interface of an instance on a network.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attachment {
    /// The network's name.
    pub network: String,
    /// The instance's ID: CNI's container ID.
    pub container: String,
    /// The interface's name in the instance.
    pub interface: String,
    /// The path of the instance's network namespace.
    pub netns: String,
    /// The namespace was made by us, under this name, and goes with the attachment.
    #[serde(default)]
    pub netns_name: Option<String>,
    /// The name of the interface's other end on the node.
    pub host_link: String,
    /// The group of the host end if it hangs on no bridge but is routed to.
    #[serde(default)]
    pub is_routed: bool,
    /// The interface is another plugin's: only ports and limits are ours.
    #[serde(default)]
    pub is_chained: bool,
    /// The interface's hardware address.
    pub mac: String,
    /// Its addresses, each with its network's prefix length.
    pub addresses: Vec<IpInet>,
    /// Ports of the node that lead to it.
    #[serde(default)]
    pub ports: Vec<Port>,
    /// How fast it may be.
    #[serde(default)]
    pub bandwidth: Option<Bandwidth>,
    /// The pod that it is, where a runtime says so: its policies count from the start.
    #[serde(default)]
    pub pod: Option<PodName>,
}

/// The name of a pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodName {
    /// Its namespace.
    pub namespace: String,
    /// Its name there.
    pub name: String,
}

impl Attachment {
    /// Its first address of a family.
    pub fn address(&self, is_ipv4: bool) -> Option<IpAddr> {
        self.addresses.iter().map(IpInet::address).find(|ip| ip.is_ipv4() == is_ipv4)
    }
}

/// As messages name it.
impl fmt::Display for Attachment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "instance {} ({} on {})", self.container, self.interface, self.network)
    }
}
