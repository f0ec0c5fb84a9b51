//! Routes, neighbours and forwarding entries: what has to be there for each peer, and what has not.

use std::collections::{BTreeMap, HashSet};
use std::net::IpAddr;

use telaio_netlink::NetlinkError;
use telaio_netlink::rtnl::{FdbEntry, Neighbour, Request, Route, Rtnetlink};

use super::{Backend, Ground, LocalNode, Peer, PeerProblem, ROUTE_PROTOCOL};
use crate::error::{Error, Result};
use crate::networks::ENODEV;

const ENOENT: i32 = 2;
const ESRCH: i32 = 3;
/// How the kernel says that a gateway is on no link of this machine.
const UNREACHABLE: [i32; 2] = [101, 113];

/// What a comparison of the ways with the records came to.
#[derive(Debug, Default)]
pub(crate) struct Synced {
    /// How many led nowhere, and were removed.
    pub(crate) stale: usize,
    /// Peers that are not reached, or not all of them.
    pub(crate) problems: Vec<PeerProblem>,
}

/// What has to be there for a peer, as far as that can be.
pub(crate) fn requests_for(
    node: &LocalNode,
    ground: Ground,
    peer: &Peer,
    problems: &mut Vec<PeerProblem>,
) -> Vec<Request<'static>> {
    let link = ground.link;
    let mut missing = |error: Error| {
        problems.push(PeerProblem { node_id: peer.id.clone(), error });
    };
    let remote = |is_ipv4: bool| peer.external.iter().copied().find(|ip| ip.is_ipv4() == is_ipv4);
    let mut requests = Vec::new();
    let own = |mut route: Route| {
        route.protocol = ROUTE_PROTOCOL;
        route.source = node.source(route.destination.is_ipv4());
        Request::ReplaceRoute(route)
    };
    match node.backend {
        Backend::Vxlan { .. } => {
            let mac = match peer.vtep_mac() {
                Ok(mac) => mac,
                Err(error) => {
                    missing(error);
                    return requests;
                }
            };
            let Some(remote) = remote(ground.is_ipv4) else {
                missing(no_address(peer, ground.is_ipv4, "this node tunnels by it"));
                return requests;
            };
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
                    missing(no_address(peer, cidr.is_ipv4(), &format!("{cidr} is reached by it")));
                    continue;
                };
                let (first, length) = (cidr.first_address(), cidr.network_length());
                requests.push(own(Route::by(first, length, gateway, link)));
            }
        }
    }
    requests
}

fn no_address(peer: &Peer, is_ipv4: bool, why: &str) -> Error {
    let family = if is_ipv4 { "IPv4" } else { "IPv6" };
    let why = format!("node {} has no address of {family}, and {why}; give it one", peer.id);
    Error::Invalid { field: "node", why }
}

/// Makes the ways to these peers; those that are not reached.
pub(crate) fn add<'a>(
    kernel: &mut Rtnetlink,
    node: &LocalNode,
    ground: Ground,
    peers: impl IntoIterator<Item = &'a Peer>,
) -> Result<(Vec<Request<'static>>, Vec<PeerProblem>)> {
    let mut problems = Vec::new();
    let mut wanted = Vec::new();
    let mut whose = Vec::new();
    for peer in peers {
        let requests = requests_for(node, ground, peer, &mut problems);
        whose.extend(requests.iter().map(|_| peer));
        wanted.extend(requests);
    }
    let doing = Error::kernel("making the ways to other nodes");
    for failure in kernel.carry_out(wanted.iter().copied()).map_err(doing)? {
        if let (Some(peer), Some(request)) = (whose.get(failure.index), wanted.get(failure.index)) {
            let error = refused(request, peer, failure.error);
            problems.push(PeerProblem { node_id: peer.id.clone(), error });
        }
    }
    Ok((wanted, problems))
}

fn refused(request: &Request<'_>, peer: &Peer, error: NetlinkError) -> Error {
    if let Request::ReplaceRoute(Route { gateway: Some(gateway), is_onlink: false, .. }) = request
        && error.raw_os_error().is_some_and(|number| UNREACHABLE.contains(&number))
    {
        let why = format!(
            "node {}: its address {gateway} is not on this node's link, and host-gw needs nodes on one link; use vxlan",
            peer.id
        );
        return Error::Invalid { field: "node", why };
    }
    Error::kernel(format!("making the way to node {}", peer.id))(error)
}

/// Makes the ways to all peers as they should be, and removes those of ours that lead nowhere any more.
pub(crate) fn sync(
    kernel: &mut Rtnetlink,
    node: &LocalNode,
    ground: Ground,
    peers: &BTreeMap<String, Peer>,
) -> Result<Synced> {
    super::remove_links(kernel, Some(node))?;
    let (wanted, problems) = add(kernel, node, ground, peers.values())?;
    let stale = stale(kernel, node, ground, &wanted)?;
    let count = stale.len();
    let doing = Error::kernel("removing ways to other nodes");
    kernel.all_but(&[ENOENT, ESRCH, ENODEV], stale).map_err(doing)?;
    Ok(Synced { stale: count, problems })
}

/// Routes with our number, and entries of our vxlan link, that nobody wants.
fn stale(
    kernel: &mut Rtnetlink,
    node: &LocalNode,
    ground: Ground,
    wanted: &[Request<'static>],
) -> Result<Vec<Request<'static>>> {
    let doing = || Error::kernel("listing the ways to other nodes");
    let place = |it: &Route| (it.destination, it.prefix_len, it.link, it.gateway);
    let mut routes: HashSet<(IpAddr, u8, _, _)> = HashSet::new();
    let (mut entries, mut neighbours) = (HashSet::new(), HashSet::new());
    for request in wanted {
        match request {
            Request::ReplaceRoute(route) => _ = routes.insert(place(route)),
            Request::ReplaceFdb(entry) => _ = entries.insert(*entry),
            Request::ReplaceNeighbour(neighbour) => _ = neighbours.insert(*neighbour),
            _ => {}
        }
    }
    let mut found = Vec::new();
    for route in kernel.routes().map_err(doing())? {
        if route.protocol == ROUTE_PROTOCOL && !routes.contains(&place(&route)) {
            found.push(Request::DeleteRoute(route));
        }
    }
    if let Backend::HostGw = node.backend {
        return Ok(found);
    }
    for entry in kernel.fdb().map_err(doing())? {
        if entry.link == ground.link && !entries.contains(&entry) {
            found.push(Request::DeleteFdb(entry));
        }
    }
    for entry in kernel.neighbours().map_err(doing())? {
        if entry.link == ground.link && !neighbours.contains(&entry) {
            found.push(Request::DeleteNeighbour(entry));
        }
    }
    Ok(found)
}

/// Removes all routes of ours.
pub(crate) fn remove_routes(kernel: &mut Rtnetlink) -> Result<()> {
    let doing = || Error::kernel("removing the ways to other nodes");
    let ours = kernel.routes().map_err(doing())?;
    let ours = ours.into_iter().filter(|route| route.protocol == ROUTE_PROTOCOL);
    kernel.all_but(&[ENOENT, ESRCH], ours.map(Request::DeleteRoute)).map_err(doing())
}
