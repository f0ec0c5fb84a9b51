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

use std::collections::BTreeMap;
use std::net::IpAddr;

use cidr::{IpCidr, IpInet};
use serde::{Deserialize, Serialize};
use telaio_netlink::addresses::Addresses;
use telaio_netlink::links::{Link, LinkIndex};
use telaio_netlink::offload::set_checksum_offload;
use telaio_netlink::rtnl::{
    FdbEntry, Mac, Neighbour, OwnAddress, Request, Route, Rtnetlink, SetLink, Vxlan, Which,
};

use crate::error::{Error, Result};
use crate::names;
use crate::networks::{ENODEV, overlaps, set};
use crate::state::State;

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
const ESRCH: i32 = 3;
const ENOENT: i32 = 2;

/// How packets get to other nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "type")]
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
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct NodeRecord {
    pub(crate) nodes: BTreeMap<String, LocalNode>,
    pub(crate) peers: BTreeMap<String, Peer>,
}

/// The networks of other nodes.
pub(crate) fn others(state: &State) -> Result<Vec<IpCidr>> {
    let record: NodeRecord = state.node_record()?;
    Ok(record.peers.values().flat_map(|peer| &peer.cidrs).map(IpInet::network).collect())
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

    /// Refuses a peer that could not be reached, or whose networks are others' already.
    pub(crate) fn check(&self, record: &NodeRecord) -> Result<()> {
        if self.external.is_empty() || self.cidrs.is_empty() {
            let why = format!("node {} needs an address and a network", self.id);
            return Err(Error::Invalid { field: "node", why });
        }
        self.vtep_mac()?;
        let local =
            record.nodes.values().map(|node| (&node.id, &node.cidrs, "this machine's node"));
        let peers = record.peers.values().map(|peer| (&peer.id, &peer.cidrs, "node"));
        for (id, theirs, kind) in local.chain(peers.filter(|(id, ..)| **id != self.id)) {
            for (wanted, existing) in
                self.cidrs.iter().flat_map(|ours| theirs.iter().map(move |it| (ours, it)))
            {
                let (wanted, existing) = (wanted.network(), existing.network());
                if overlaps(&wanted, &existing) {
                    return Err(Error::Overlap { wanted, existing, owner: format!("{kind} {id}") });
                }
            }
        }
        Ok(())
    }
}

/// The link by which peers are reached, made if it is not there or not as it should be.
pub(crate) fn ensure_link(
    kernel: &mut Rtnetlink,
    node: &LocalNode,
    group: u32,
    is_fresh: bool,
) -> Result<Ground> {
    let uplink = uplink(node.tunnel)?;
    let Backend::Vxlan { vni, port } = node.backend else {
        return Ok(Ground { link: uplink.link, is_ipv4: uplink.address.is_ipv4() });
    };
    let name = names::vxlan_link(vni);
    let doing = || Error::kernel(format!("making link {name}"));
    let (mac, mtu) = (vtep_mac(&node.cidrs), node.mtu()?);
    let wanted = |link: &Link| {
        let is_same = link.mac == Some(mac) && link.mtu == mtu && link.group == group;
        link.kind.as_deref() == Some("vxlan") && is_same && link.is_up() && !is_fresh
    };
    let ground = |link: LinkIndex| Ground { link, is_ipv4: uplink.address.is_ipv4() };
    match kernel.link(&name).map_err(doing())? {
        Some(link) if wanted(&link) => return Ok(ground(link.index)),
        Some(link) if link.kind.as_deref() != Some("vxlan") => {
            let what = link.kind.map_or("hardware".to_owned(), |kind| format!("a {kind}"));
            return Err(Error::ForeignLink { name, what });
        }
        Some(link) => {
            let delete = [Request::DeleteLink(Which::Index(link.index))];
            kernel.all_but(&[ENODEV], delete).map_err(doing())?;
        }
        None => {}
    }
    let vxlan = Vxlan {
        name: &name,
        vni,
        port,
        local: uplink.address,
        lower: Some(uplink.link),
        mac,
        mtu,
        group,
    };
    let up = SetLink { own_address: Some(OwnAddress::Nothing), ..SetLink::up(Which::Name(&name)) };
    kernel.all([Request::Vxlan(vxlan), Request::Set(up)]).map_err(doing())?;
    set_checksum_offload(&name, false).map_err(doing())?;
    set(&format!("ipv4/conf/{name}/rp_filter"), "0")?;
    let made = kernel.link(&name).map_err(doing())?.map(|link| link.index);
    made.map(ground).ok_or_else(|| Error::Unknown {
        kind: "link",
        name: name.clone(),
        hint: "somebody has just removed it; try again",
    })
}

/// What packets to peers leave by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ground {
    pub(crate) link: LinkIndex,
    /// The family of the addresses that peers are reached at.
    pub(crate) is_ipv4: bool,
}

/// What has to be there for a peer.
pub(crate) fn requests_for(
    node: &LocalNode,
    ground: Ground,
    peer: &Peer,
) -> Result<Vec<Request<'static>>> {
    let link = ground.link;
    let remote = |is_ipv4: bool| peer.external.iter().copied().find(|ip| ip.is_ipv4() == is_ipv4);
    let mut requests = Vec::new();
    let own = |mut route: Route| {
        route.protocol = ROUTE_PROTOCOL;
        route.source = node.source(route.destination.is_ipv4());
        Request::ReplaceRoute(route)
    };
    match node.backend {
        Backend::Vxlan { .. } => {
            let mac = peer.vtep_mac()?;
            let remote = remote(ground.is_ipv4).ok_or_else(|| Error::Invalid {
                field: "node",
                why: format!(
                    "node {} has no address of the family that this node tunnels by",
                    peer.id
                ),
            })?;
            requests.push(Request::ReplaceFdb(FdbEntry { link, mac, remote }));
            for cidr in &peer.cidrs {
                // A network's own first address is nobody's, so it can stand for the peer.
                let (vtep, length) = (cidr.first_address(), cidr.network_length());
                requests.push(Request::ReplaceNeighbour(Neighbour { link, ip: vtep, mac }));
                let route = Route::by(vtep, length, vtep, link);
                requests.push(own(Route { is_onlink: true, ..route }));
            }
        }
        Backend::HostGw => {
            for cidr in &peer.cidrs {
                let Some(gateway) = remote(cidr.is_ipv4()) else {
                    let why = format!("node {} has no address to reach {cidr} by", peer.id);
                    return Err(Error::Invalid { field: "node", why });
                };
                let (first, length) = (cidr.first_address(), cidr.network_length());
                requests.push(own(Route::by(first, length, gateway, link)));
            }
        }
    }
    Ok(requests)
}

/// Takes back what was there for a peer; what is gone is no fault.
pub(crate) fn remove_peer(
    kernel: &mut Rtnetlink,
    node: &LocalNode,
    ground: Ground,
    peer: &Peer,
) -> Result<()> {
    let requests = requests_for(node, ground, peer)?.into_iter().map(opposite);
    let doing = Error::kernel(format!("removing the way to node {}", peer.id));
    kernel.all_but(&[ENOENT, ESRCH, ENODEV], requests).map_err(doing)
}

fn opposite(request: Request<'static>) -> Request<'static> {
    match request {
        Request::ReplaceRoute(route) => Request::DeleteRoute(route),
        Request::ReplaceNeighbour(neighbour) => Request::DeleteNeighbour(neighbour),
        Request::ReplaceFdb(entry) => Request::DeleteFdb(entry),
        other => other,
    }
}

/// Makes the ways to all peers as they should be, and removes those of ours that lead nowhere any more. Tells how many
/// it removed.
pub(crate) fn sync(
    kernel: &mut Rtnetlink,
    node: &LocalNode,
    ground: Ground,
    peers: &BTreeMap<String, Peer>,
) -> Result<usize> {
    let mut wanted = Vec::new();
    for peer in peers.values() {
        wanted.extend(requests_for(node, ground, peer)?);
    }
    let doing = || Error::kernel("making the ways to other nodes");
    kernel.all(wanted.iter().copied()).map_err(doing())?;
    let stale = stale(kernel, node, ground, &wanted)?;
    let count = stale.len();
    kernel.all_but(&[ENOENT, ESRCH, ENODEV], stale).map_err(doing())?;
    Ok(count)
}

/// Routes with our number, and entries of our vxlan link, that nobody wants.
fn stale(
    kernel: &mut Rtnetlink,
    node: &LocalNode,
    ground: Ground,
    wanted: &[Request<'static>],
) -> Result<Vec<Request<'static>>> {
    let doing = || Error::kernel("listing the ways to other nodes");
    let mut found = Vec::new();
    for route in kernel.routes().map_err(doing())? {
        let is_wanted = wanted.iter().any(|it| {
            matches!(it, Request::ReplaceRoute(it)
                if (it.destination, it.prefix_len, it.link, it.gateway)
                    == (route.destination, route.prefix_len, route.link, route.gateway))
        });
        if route.protocol == ROUTE_PROTOCOL && !is_wanted {
            found.push(Request::DeleteRoute(route));
        }
    }
    if let Backend::HostGw = node.backend {
        return Ok(found);
    }
    for entry in kernel.fdb().map_err(doing())? {
        let is_wanted =
            wanted.iter().any(|it| matches!(it, Request::ReplaceFdb(it) if *it == entry));
        if entry.link == ground.link && !is_wanted {
            found.push(Request::DeleteFdb(entry));
        }
    }
    for entry in kernel.neighbours().map_err(doing())? {
        let is_wanted =
            wanted.iter().any(|it| matches!(it, Request::ReplaceNeighbour(it) if *it == entry));
        if entry.link == ground.link && !is_wanted {
            found.push(Request::DeleteNeighbour(entry));
        }
    }
    Ok(found)
}

/// Removes the link to peers, and with it everything that leads over it; routes by other links one by one.
pub(crate) fn remove(kernel: &mut Rtnetlink, node: &LocalNode) -> Result<()> {
    let doing = || Error::kernel("removing the ways to other nodes");
    if let Backend::Vxlan { vni, .. } = node.backend {
        let delete = [Request::DeleteLink(Which::Name(&names::vxlan_link(vni)))];
        kernel.all_but(&[ENODEV], delete).map_err(doing())?;
    }
    let ours = kernel.routes().map_err(doing())?;
    let ours = ours.into_iter().filter(|route| route.protocol == ROUTE_PROTOCOL);
    kernel.all_but(&[ENOENT, ESRCH], ours.map(Request::DeleteRoute)).map_err(doing())
}
