//! Other nodes: how packets get to the instances there.
//!
//! Each node has networks of its own, and every other node is told them. Two ways lead there:
//!
//! - `vxlan` wraps frames into UDP. One link for all peers; for each peer one route, one neighbour entry and one
//!   forwarding entry, which say everything, so nothing is ever asked or learned. Peers may be anywhere that
//!   UDP reaches. VNI and port are flannel's, and so is the form of what peers have to know of each other.
//! - `host-gw` is one route per peer, by its own address. Peers must be neighbours on one link.
//!
//! Either way instances see each other's own addresses, whatever the protocol.
//!
//! A peer's hardware address on the vxlan link follows from its first network, unless the peer says another; so a
//! peer is known by its networks and its address alone. A further backend is a further [`Backend`] and its lines in
//! `requests_for`.

mod link;
mod peers;
mod ways;

use std::collections::BTreeMap;
use std::net::IpAddr;

use cidr::{IpCidr, IpInet};
use serde::{Deserialize, Serialize};
use telaio_netlink::addresses::Addresses;
use telaio_netlink::links::LinkIndex;
use telaio_netlink::rtnl::{Mac, Rtnetlink};

use crate::error::{Error, Result};
use crate::names;
use crate::state::State;

pub(crate) use link::ensure_link;
use link::remove_links;
pub use peers::PeerProblem;
pub(crate) use peers::{Refusals, sort_out};
pub(crate) use ways::{Synced, add, requests_for, sync};

/// The number by which the kernel's routes are known as ours.
pub const ROUTE_PROTOCOL: u8 = 116;
/// Flannel's number of the network.
pub const DEFAULT_VNI: u32 = 1;
/// Flannel's port, which is Linux' own.
pub const DEFAULT_VXLAN_PORT: u16 = 8472;
/// What wrapping takes from a packet's length, over IPv4 and over IPv6.
const VXLAN_OVERHEAD: [u32; 2] = [50, 70];
/// What links have where nothing else is known.
const MTU_DEFAULT: u32 = 1500;
/// The least that IPv6 needs.
const MTU_MIN: u32 = 1280;

/// How packets get to other nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "type")]
#[non_exhaustive]
pub enum Backend {
    /// Frames within UDP.
    Vxlan {
        /// The number of the network; the same on all nodes.
        vni: u32,
        /// The UDP port; the same on all nodes.
        port: u16,
    },
    /// Routes by the nodes' own addresses.
    HostGw,
}

impl Backend {
    /// What it is called.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Vxlan { .. } => "vxlan",
            Self::HostGw => "host-gw",
        }
    }
}

impl Default for Backend {
    fn default() -> Self {
        Self::Vxlan { vni: DEFAULT_VNI, port: DEFAULT_VXLAN_PORT }
    }
}

/// This node, as the overlay has to know it. Survives a reboot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LocalNode {
    /// Its ID.
    pub id: String,
    /// Its own addresses in its networks.
    pub cidrs: Vec<IpInet>,
    /// How it reaches others.
    pub backend: Backend,
    /// The address that others know it by; learned from the default route without.
    #[serde(default)]
    pub tunnel: Option<IpAddr>,
    /// The longest packet of instances; learned from the uplink without.
    #[serde(default)]
    pub mtu: Option<u32>,
    /// Destinations beside the cluster's that see instances' own addresses.
    #[serde(default)]
    pub masquerade_except: Vec<IpCidr>,
    /// It is as Node objects say; see [`Host::follow_cluster`](crate::Host::follow_cluster).
    #[serde(default)]
    pub follows: bool,
}

/// Another node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Peer {
    /// Its ID.
    pub id: String,
    /// Its own addresses in its networks.
    pub cidrs: Vec<IpInet>,
    /// The address at which it is reached; a second one of the other family, if it has one.
    pub external: Vec<IpAddr>,
    /// Its hardware address on the vxlan link, if it is not the one that follows from its networks.
    #[serde(default)]
    pub vtep_mac: Option<String>,
}

/// All that nodes of the library know, across reboots.
///
/// A machine can be several nodes, but reaches others as one of them: the ways to others, and the one hardware address that
/// they know, can only be one node's. The rest are networks of this machine alone.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct NodeRecord {
    pub(crate) nodes: BTreeMap<String, LocalNode>,
    pub(crate) peers: BTreeMap<String, Peer>,
    /// As which of them others are reached.
    #[serde(default)]
    carrier: Option<String>,
}

impl NodeRecord {
    /// The node as which this machine reaches others.
    pub(crate) fn carrier(&self) -> Option<&LocalNode> {
        let told = self.carrier.as_ref().and_then(|id| self.nodes.get(id));
        told.or_else(|| self.nodes.values().next())
    }

    /// Adds a node of this machine, or changes it. The first is the one as which others are reached.
    pub(crate) fn put(&mut self, node: LocalNode) {
        if self.nodes.is_empty() {
            self.carrier = Some(node.id.clone());
        }
        self.nodes.insert(node.id.clone(), node);
    }

    /// Others are reached as this node from now on.
    pub(crate) fn carry_as(&mut self, id: &str) {
        self.carrier = Some(id.to_owned());
    }

    /// Removes a node of this machine. With the one as which others are reached they are forgotten.
    pub(crate) fn take(&mut self, id: &str) -> Option<LocalNode> {
        if self.carrier().is_some_and(|carrier| carrier.id == id) {
            self.peers.clear();
            self.carrier = None;
        }
        self.nodes.remove(id)
    }

    /// The networks of other nodes.
    pub(crate) fn networks_of_others(&self) -> Vec<IpCidr> {
        self.peers.values().flat_map(|peer| &peer.cidrs).map(IpInet::network).collect()
    }
}

/// What rules have to know of other nodes: their networks, and the network of this machine that belongs to theirs.
pub(crate) fn others(state: &State) -> Result<(Vec<IpCidr>, Option<String>)> {
    let record: NodeRecord = state.node_record()?;
    Ok((record.networks_of_others(), record.carrier().map(|node| node.id.clone())))
}

/// By which link and with which address this machine reaches the rest of the world.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Uplink {
    /// The link.
    pub link: LinkIndex,
    /// Its address.
    pub address: IpAddr,
    /// The longest packet that it takes.
    pub mtu: u32,
}

/// The uplink: of this address, or where the default route leads.
pub fn uplink(address: Option<IpAddr>) -> Result<Uplink> {
    let doing = || Error::kernel("looking for the uplink");
    let mut kernel = Rtnetlink::open().map_err(doing())?;
    let links = kernel.links().map_err(doing())?;
    let mtu =
        |index| links.iter().find(|link| link.index == index).map_or(MTU_DEFAULT, |it| it.mtu);
    let addresses = Addresses::open().and_then(|mut it| it.list()).map_err(doing())?;
    if let Some(address) = address {
        let home = addresses.iter().find(|it| it.ip == address).ok_or_else(|| Error::Invalid {
            field: "tunnel address",
            why: format!("{address} is not an address of this machine"),
        })?;
        return Ok(Uplink { link: home.link, address, mtu: mtu(home.link) });
    }
    let mut routes = kernel.routes().map_err(doing())?;
    routes.retain(|route| route.prefix_len == 0);
    // IPv4 first, then the route that the kernel prefers.
    routes.sort_by_key(|route| (route.destination.is_ipv6(), route.metric));
    for route in routes {
        let is_usable = |ip: IpAddr| match ip {
            IpAddr::V4(ip) => !ip.is_loopback() && !ip.is_link_local(),
            IpAddr::V6(ip) => !ip.is_loopback() && !ip.is_unicast_link_local(),
        };
        let family = route.destination.is_ipv4();
        let mut own = addresses.iter().filter(|it| it.link == route.link).map(|it| it.ip);
        let own = own.find(|ip| ip.is_ipv4() == family && is_usable(*ip));
        if let Some(address) = route.source.or(own) {
            return Ok(Uplink { link: route.link, address, mtu: mtu(route.link) });
        }
    }
    Err(Error::NoUplink { family: "IPv4 or IPv6" })
}

impl LocalNode {
    /// The longest packet that instances of this node can send everywhere.
    pub(crate) fn mtu(&self) -> Result<u32> {
        if let Some(mtu) = self.mtu {
            return Ok(mtu);
        }
        let uplink = match uplink(self.tunnel) {
            Ok(uplink) => Some(uplink),
            Err(Error::NoUplink { .. }) => None,
            Err(error) => return Err(error),
        };
        let mtu = uplink.map_or(MTU_DEFAULT, |it| it.mtu);
        let is_ipv6 = uplink.is_some_and(|it| it.address.is_ipv6());
        Ok(match self.backend {
            Backend::Vxlan { .. } => mtu.saturating_sub(VXLAN_OVERHEAD[usize::from(is_ipv6)]),
            Backend::HostGw => mtu,
        }
        .max(MTU_MIN))
    }

    /// Our address for what the node itself sends to instances elsewhere.
    fn source(&self, is_ipv4: bool) -> Option<IpAddr> {
        self.cidrs.iter().map(IpInet::address).find(|ip| ip.is_ipv4() == is_ipv4)
    }
}

/// The hardware address on the vxlan link of the node with these networks.
pub fn vtep_mac(cidrs: &[IpInet]) -> Mac {
    let first = cidrs.iter().find(|cidr| cidr.is_ipv4()).or_else(|| cidrs.first());
    let text = first.map(|cidr| cidr.network().to_string()).unwrap_or_default();
    names::mac(&["vtep", &text])
}

impl Peer {
    pub(crate) fn vtep_mac(&self) -> Result<Mac> {
        match &self.vtep_mac {
            Some(text) => text.parse().map_err(|why| Error::Invalid {
                field: "VtepMAC",
                why: format!("node {}: {why}", self.id),
            }),
            None => Ok(vtep_mac(&self.cidrs)),
        }
    }
}

/// What packets to peers leave by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ground {
    pub(crate) link: LinkIndex,
    /// The family of the addresses that peers are reached at.
    pub(crate) is_ipv4: bool,
}

/// Removes the ways to all other nodes, and the link that they lead over.
pub(crate) fn remove(kernel: &mut Rtnetlink) -> Result<()> {
    let unlinked = remove_links(kernel, None);
    ways::remove_routes(kernel).and(unlinked)
}
