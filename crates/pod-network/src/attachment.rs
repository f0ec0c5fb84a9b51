//! An instance's place on a network, as it is on record.

use std::fmt;
use std::net::IpAddr;

use cidr::IpInet;
use serde::{Deserialize, Serialize};

use telaio_netlink::rtnl::Mac;

use crate::bandwidth::Bandwidth;
use crate::names;
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
    /// It is being taken back, or whoever did was killed: some of it may be gone.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_going: bool,
    /// The interface's hardware address; empty until it is whole.
    pub mac: String,
    /// The hardware address that was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asked_mac: Option<String>,
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
    /// All of it was made, and nobody has begun to take it back.
    pub fn is_whole(&self) -> bool {
        !self.mac.is_empty() && !self.is_going
    }

    /// Its first address of a family.
    pub fn address(&self, is_ipv4: bool) -> Option<IpAddr> {
        self.addresses.iter().map(IpInet::address).find(|ip| ip.is_ipv4() == is_ipv4)
    }

    /// The hardware address that it has, or will have: the one that was asked for, or one made from its first address, IPv4
    /// before IPv6. The order in which addresses were claimed is nowhere on record, so it must not count.
    pub(crate) fn hardware_address(&self) -> Option<Mac> {
        let said = Some(self.mac.as_str()).filter(|text| !text.is_empty());
        match said.or(self.asked_mac.as_deref()) {
            Some(text) => text.parse().ok(),
            None => self.addresses.iter().map(IpInet::address).min().map(names::instance_mac),
        }
    }
}

/// As messages name it.
impl fmt::Display for Attachment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "instance {} ({} on {})", self.container, self.interface, self.network)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As the first release wrote it. A record outlives the release that wrote it, and so does the instance: each field that comes
    /// later has to have a default.
    const FIRST: &str = r#"{"network":"net","container":"a","interface":"eth0","netns":"/run/netns/a",
        "host_link":"tlvabcdefghijkl","mac":"0a:58:0a:58:00:02","addresses":["10.88.0.2/16"]}"#;

    #[test]
    fn a_record_of_the_first_release_can_be_read_by_all_later_ones() {
        let record: Attachment = serde_json::from_str(FIRST).unwrap();
        assert_eq!(record.addresses.len(), 1);
        // And one of a later release, by this.
        let later = FIRST.replacen('{', r#"{"something_new":{"of":"it"},"#, 1);
        assert_eq!(serde_json::from_str::<Attachment>(&later).unwrap(), record);
    }
}
