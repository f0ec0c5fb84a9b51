//! How the ways to other nodes are in the kernel, compared with what they should be. Nothing is changed.

use std::net::IpAddr;

use telaio_netlink::links::Link;
use telaio_netlink::rtnl::{FdbEntry, Mac, Neighbour, Request, Route, Rtnetlink};

use crate::error::{Error, Result};
use crate::names;
use crate::overlay::{self, Backend, LocalNode, NodeRecord, Peer, ROUTE_PROTOCOL};
use crate::state::Host;

/// How this node reaches the others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ways {
    /// The way that is gone by all.
    pub backend: Backend,
    /// The address that others reach this node at; none without an uplink.
    pub address: Option<IpAddr>,
    /// The link, where there is one for it.
    pub tunnel: Option<TunnelLink>,
    /// The other nodes.
    pub peers: Vec<PeerWay>,
}

/// A link to other nodes, as it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TunnelLink {
    /// Its name.
    pub name: String,
    /// The number of the network.
    pub vni: u32,
    /// The UDP port.
    pub port: u16,
    /// Its longest packet; none where it is missing.
    pub mtu: Option<u32>,
    /// Its hardware address.
    pub mac: Option<Mac>,
    /// It is there and switched on.
    pub is_up: bool,
    /// What is wrong with it.
    pub problem: Option<String>,
}

/// Another node, and what of the way there is missing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerWay {
    /// The node.
    pub peer: Peer,
    /// Its hardware address on the link.
    pub mac: Option<Mac>,
    /// What is missing; empty when it can be reached.
    pub missing: Vec<String>,
}

/// What the kernel has of ways.
struct Kernel {
    routes: Vec<Route>,
    fdb: Vec<FdbEntry>,
    neighbours: Vec<Neighbour>,
}

impl Host {
    /// How the ways to other nodes are; none before a node was set up.
    pub fn ways(&self) -> Result<Option<Ways>> {
        let record: NodeRecord = self.state()?.node_record()?;
        // Of the nodes that this machine is, the one as which it reaches others.
        let Some(node) = record.carrier().cloned() else { return Ok(None) };
        let node = &node;
        let doing = || Error::kernel("listing the ways to other nodes");
        let mut rtnl = Rtnetlink::open().map_err(doing())?;
        let uplink = match overlay::uplink(node.tunnel) {
            Ok(uplink) => Some(uplink),
            Err(Error::NoUplink { .. } | Error::Invalid { .. }) => None,
            Err(error) => return Err(error),
        };
        let (tunnel, link) = match node.backend {
            Backend::Vxlan { vni, port } => {
                let name = names::vxlan_link(vni);
                let link = rtnl.link(&name).map_err(doing())?;
                (Some(tunnel(node, name, (vni, port), link.as_ref())), link.map(|link| link.index))
            }
            Backend::HostGw => (None, uplink.map(|uplink| uplink.link)),
        };
        let is_vxlan = tunnel.is_some();
        let kernel = Kernel {
            routes: rtnl.routes().map_err(doing())?,
            fdb: if is_vxlan { rtnl.fdb().map_err(doing())? } else { Vec::new() },
            neighbours: if is_vxlan { rtnl.neighbours().map_err(doing())? } else { Vec::new() },
        };
        let ground = uplink.zip(link).map(|(uplink, link)| {
            let is_ipv4 = uplink.address.is_ipv4();
            overlay::Ground { link, is_ipv4 }
        });
        let no_ground = match (&tunnel, uplink) {
            (_, None) => "this node has no address to reach others from".to_owned(),
            (Some(tunnel), _) => format!("the link {} is missing", tunnel.name),
            (None, _) => "the link to others is missing".to_owned(),
        };
        let peers = record.peers.into_values().map(|peer| {
            let mac = is_vxlan.then(|| peer.vtep_mac().ok()).flatten();
            let mut problems = Vec::new();
            let wanted =
                ground.map(|ground| overlay::requests_for(node, ground, &peer, &mut problems));
            let mut missing: Vec<String> =
                problems.into_iter().map(|it| it.error.to_string()).collect();
            match wanted {
                None => missing.push(no_ground.clone()),
                Some(wanted) => missing.extend(wanted.iter().filter_map(|it| kernel.lacks(it))),
            }
            PeerWay { peer, mac, missing }
        });
        let address = uplink.map(|uplink| uplink.address);
        Ok(Some(Ways { backend: node.backend, address, peers: peers.collect(), tunnel }))
    }

    /// When an attachment last came or went, as the directory of their records has it.
    pub fn attachments_changed(&self) -> Result<std::time::SystemTime> {
        self.state()?.attachments_changed()
    }
}

/// The link as it is, and what is wrong with it.
fn tunnel(node: &LocalNode, name: String, network: (u32, u16), link: Option<&Link>) -> TunnelLink {
    let (vni, port) = network;
    let wanted = overlay::vtep_mac(&node.cidrs);
    let problem = match link {
        None => {
            Some(format!("the link {name} is missing: instances of other nodes cannot be reached"))
        }
        Some(link) if link.kind.as_deref() != Some("vxlan") => {
            Some(format!("the link {name} is not a vxlan link, but somebody else's"))
        }
        Some(link) if !link.is_up() => Some(format!("the link {name} is down")),
        Some(link) if link.mac != Some(wanted) => {
            Some(format!("the link {name} has another hardware address than {wanted}"))
        }
        Some(_) => None,
    };
    TunnelLink {
        vni,
        port,
        mtu: link.map(|link| link.mtu),
        mac: link.and_then(|link| link.mac),
        is_up: link.is_some_and(Link::is_up),
        problem,
        name,
    }
}

impl Kernel {
    /// What is missing, if this is.
    fn lacks(&self, wanted: &Request<'_>) -> Option<String> {
        match wanted {
            Request::ReplaceRoute(wanted) => {
                let is_there = self.routes.iter().any(|it| {
                    it.protocol == ROUTE_PROTOCOL
                        && (it.destination, it.prefix_len, it.link, it.gateway)
                            == (wanted.destination, wanted.prefix_len, wanted.link, wanted.gateway)
                });
                let (to, length) = (wanted.destination, wanted.prefix_len);
                (!is_there).then(|| format!("the route to {to}/{length} is missing"))
            }
            Request::ReplaceFdb(wanted) => (!self.fdb.contains(wanted))
                .then(|| format!("the forwarding entry for {} is missing", wanted.remote)),
            Request::ReplaceNeighbour(wanted) => (!self.neighbours.contains(wanted))
                .then(|| format!("the neighbour entry for {} is missing", wanted.ip)),
            _ => None,
        }
    }
}
