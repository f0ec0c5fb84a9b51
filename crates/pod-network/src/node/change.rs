//! Changing what this machine knows of nodes, all of it or nothing.

use std::collections::BTreeSet;

use cidr::IpInet;
use telaio_netlink::rtnl::Rtnetlink;

use super::{NodeRequest, SetupNodeRequest, network_of};
use crate::error::{Error, Result};
use crate::networks;
use crate::overlay::{self, LocalNode, NodeRecord, Peer, Refusals, Synced};
use crate::state::State;

/// This node, and the others that were named with it.
pub(super) fn parts(request: SetupNodeRequest, follows: bool) -> (LocalNode, Vec<Peer>) {
    let node = LocalNode {
        id: request.node_id,
        cidrs: request.node_ip_cidrs,
        backend: request.backend,
        tunnel: request.tunnel_address,
        mtu: request.mtu,
        masquerade_except: request.masquerade_except,
        follows,
    };
    let named = request.nodes_ips.into_iter().map(NodeRequest::peer);
    let named = named.filter(|it| it.id != node.id).collect();
    (node, named)
}

/// There is one link to other nodes, with one hardware address that they know: each of two nodes would cut the other off.
pub(super) fn refuse_second_carrier(record: &NodeRecord, node: &LocalNode) -> Result<()> {
    match record.carrier() {
        Some(carrier) if carrier.id != node.id && !record.peers.is_empty() => {
            let why = format!(
                "this machine reaches other nodes as node {} already; set {} up without others, or clean {} first",
                carrier.id, node.id, carrier.id
            );
            Err(Error::Invalid { field: "nodes_ips", why })
        }
        _ => Ok(()),
    }
}

pub(super) fn meet(one: &Peer, other: &Peer) -> bool {
    let all = one.cidrs.iter().flat_map(|a| other.cidrs.iter().map(move |b| (a, b)));
    all.into_iter().any(|(a, b)| networks::overlaps(&a.network(), &b.network()))
}

/// Nodes of this machine that nobody uses make way for one that has the same addresses, or, for one that follows Node objects,
/// that followed them under another ID.
pub(super) fn make_room(
    state: &State,
    record: &mut NodeRecord,
    node: &LocalNode,
    follows: bool,
) -> Result<()> {
    let meets = |other: &LocalNode| {
        let mut all = node.cidrs.iter().flat_map(|a| other.cidrs.iter().map(move |b| (a, b)));
        all.any(|(a, b)| networks::overlaps(&a.network(), &b.network()))
    };
    let in_way =
        |other: &&LocalNode| other.id != node.id && (meets(other) || (follows && other.follows));
    let in_way: Vec<LocalNode> = record.nodes.values().filter(in_way).cloned().collect();
    for other in in_way {
        if networks::is_used(state, &other.id)? {
            let overlap = node.cidrs.iter().find_map(|a| {
                let theirs = other.cidrs.iter().map(IpInet::network);
                let existing = theirs.into_iter().find(|b| networks::overlaps(&a.network(), b))?;
                Some((a.network(), existing))
            });
            let Some((wanted, existing)) = overlap else { continue };
            let owner = format!("this machine's node {}, which has instances", other.id);
            return Err(Error::Overlap { wanted, existing, owner });
        }
        networks::remove(state, &other.id)?;
        let is_carrier = record.carrier().is_some_and(|carrier| carrier.id == other.id);
        let peers = record.peers.clone();
        record.take(&other.id);
        if is_carrier {
            // It is the same machine, under another name.
            record.peers = peers;
            record.carry_as(&node.id);
        }
    }
    Ok(())
}

/// Adds others by name; one that cannot be is refused. With `and_known` so are those that were there before: the node itself
/// may have changed.
pub(super) fn add_named(
    state: &State,
    record: &mut NodeRecord,
    named: &[Peer],
    and_known: bool,
) -> Result<()> {
    let mut refusals = Refusals::of(record, &networks::in_use(state)?);
    let known = record.peers.values().filter(|known| !named.iter().any(|it| it.id == known.id));
    for peer in known {
        match refusals.admit(peer) {
            Err(error) if and_known => return Err(error),
            _ => {}
        }
    }
    for peer in named {
        refusals.admit(peer)?;
        record.peers.insert(peer.id.clone(), peer.clone());
    }
    Ok(())
}

/// Has the kernel be as a changed record says. The record is written first; if one of those that were named cannot be reached, or
/// anything else fails, all is as before.
pub(super) fn carry_out(
    state: &State,
    before: &NodeRecord,
    record: &NodeRecord,
    changed: Option<&str>,
    named: &BTreeSet<&str>,
) -> Result<Synced> {
    if let Some(node) = changed.and_then(|id| record.nodes.get(id)) {
        // Before anything is written that could never be done.
        networks::refuse(state, &network_of(node)?)?;
    }
    if record != before {
        state.save_node_record(record)?;
    }
    let outcome = apply(state, before, record, changed).and_then(|done| {
        let (bad, other): (Vec<_>, Vec<_>) =
            done.problems.into_iter().partition(|it| named.contains(it.node_id.as_str()));
        Error::all(bad.into_iter().map(|it| it.error).collect())?;
        Ok(Synced { problems: other, ..done })
    });
    if outcome.is_err() && record != before {
        take_back(state, before, record, changed);
    }
    outcome
}

fn apply(
    state: &State,
    before: &NodeRecord,
    record: &NodeRecord,
    changed: Option<&str>,
) -> Result<Synced> {
    match changed.and_then(|id| record.nodes.get(id)) {
        Some(node) => networks::make(state, &network_of(node)?)?,
        None if record.nodes.is_empty() => return Ok(Synced::default()),
        None => networks::write_rules(state, &state.networks()?)?,
    }
    if record.peers.is_empty() && before.peers.is_empty() {
        return Ok(Synced::default());
    }
    ways(state, record)
}

/// Makes everything as it was before a change that failed. Why it failed is what the caller has to know, so what fails here
/// is left to the next repair.
pub(super) fn take_back(
    state: &State,
    before: &NodeRecord,
    record: &NodeRecord,
    changed: Option<&str>,
) {
    if let Some(id) = changed.filter(|id| !before.nodes.contains_key(*id)) {
        let is_carrier = record.carrier().is_some_and(|carrier| carrier.id == id);
        let _ = remove(state, id, is_carrier);
    }
    let _ = state.save_node_record(before);
    for node in before.nodes.values() {
        let is_same = record.nodes.get(&node.id) == Some(node);
        if !is_same && let Ok(network) = network_of(node) {
            let _ = networks::make(state, &network);
        }
    }
    if !before.nodes.is_empty() {
        let _ = ways(state, before);
    }
    if let Ok(networks) = state.networks()
        && !networks.is_empty()
    {
        let _ = networks::write_rules(state, &networks);
    }
}

/// Makes the ways to other nodes as they should be.
pub(crate) fn ways(state: &State, record: &NodeRecord) -> Result<Synced> {
    let Some(node) = record.carrier() else { return Ok(Synced::default()) };
    let mut kernel = Rtnetlink::open().map_err(Error::kernel("opening netlink"))?;
    match ground(state, &mut kernel, node) {
        Ok(ground) => overlay::sync(&mut kernel, node, ground, &record.peers),
        // Nobody is reached, and nobody has to be.
        Err(Error::NoUplink { .. }) if record.peers.is_empty() => Ok(Synced::default()),
        Err(error) => Err(error),
    }
}

fn ground(state: &State, kernel: &mut Rtnetlink, node: &LocalNode) -> Result<overlay::Ground> {
    let group = state.network(&node.id)?.map_or(0, |network| network.group);
    overlay::ensure_link(kernel, node, group)
}

/// Makes the ways to peers that were not there before.
pub(super) fn add_ways(state: &State, record: &NodeRecord, named: &[Peer]) -> Result<()> {
    let Some(node) = record.carrier().filter(|_| !named.is_empty()) else { return Ok(()) };
    let mut kernel = Rtnetlink::open().map_err(Error::kernel("opening netlink"))?;
    let ground = ground(state, &mut kernel, node)?;
    let (_, problems) = overlay::add(&mut kernel, node, ground, named)?;
    Error::all(problems.into_iter().map(|it| it.error).collect())?;
    networks::write_rules(state, &state.networks()?)
}

/// Removes a node's network, and the ways to others if they were its own.
pub(super) fn remove(state: &State, id: &str, is_carrier: bool) -> Result<()> {
    let mut errors = Vec::new();
    errors.extend(networks::remove(state, id).err());
    if is_carrier {
        let gone = Rtnetlink::open().map_err(Error::kernel("opening netlink"));
        errors.extend(gone.and_then(|mut kernel| overlay::remove(&mut kernel)).err());
    }
    Error::all(errors)
}
