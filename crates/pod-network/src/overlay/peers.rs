//! Other nodes that could not be reached: found one by one, so that none of them keeps the rest from being reached.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

use cidr::{IpCidr, IpInet};

use super::{NodeRecord, Peer};
use crate::error::{Error, Result};
use crate::network::{Mode, Network};
use crate::networks::overlaps;

/// Another node that is not reached, or not all of it.
#[derive(Debug)]
pub struct PeerProblem {
    /// Its ID.
    pub node_id: String,
    /// What is wrong with it, and what to do.
    pub error: Error,
}

impl fmt::Display for PeerProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "node {} is not reached: {}", self.node_id, self.error)
    }
}

/// Whose networks are whose, so that none is two's.
#[derive(Debug)]
pub(crate) struct Refusals {
    /// By the first address: no two of them have an address in common.
    taken: BTreeMap<IpAddr, (IpCidr, String)>,
}

impl Refusals {
    /// What of this machine no other node may have: its nodes' networks, and those that are in use and are no node's.
    pub(crate) fn of(record: &NodeRecord, in_use: &[Network]) -> Self {
        let mut taken = BTreeMap::new();
        for node in record.nodes.values() {
            for cidr in node.cidrs.iter().map(IpInet::network) {
                taken.insert(
                    cidr.first_address(),
                    (cidr, format!("this machine's node {}", node.id)),
                );
            }
        }
        let in_use = in_use.iter().filter(|it| it.mode == Mode::Routed);
        for network in in_use.filter(|it| !record.nodes.contains_key(&it.name)) {
            for subnet in &network.subnets {
                let owner = format!("this machine's network {}", network.name);
                taken.insert(subnet.cidr.first_address(), (subnet.cidr, owner));
            }
        }
        Self { taken }
    }

    /// Takes a peer in; refuses one that could not be reached, or whose networks are others' already.
    pub(crate) fn admit(&mut self, peer: &Peer) -> Result<()> {
        if peer.external.is_empty() || peer.cidrs.is_empty() {
            let why = format!("node {} needs an address and a network", peer.id);
            return Err(Error::Invalid { field: "node", why });
        }
        peer.vtep_mac()?;
        for wanted in peer.cidrs.iter().map(IpInet::network) {
            // They are apart from each other, so only the last that begins before this one's end can reach into it.
            let before = self.taken.range(..=wanted.last_address()).next_back();
            if let Some((_, (existing, owner))) = before
                && overlaps(&wanted, existing)
            {
                let (existing, owner) = (*existing, owner.clone());
                return Err(Error::Overlap { wanted, existing, owner });
            }
        }
        for cidr in peer.cidrs.iter().map(IpInet::network) {
            self.taken.insert(cidr.first_address(), (cidr, format!("node {}", peer.id)));
        }
        Ok(())
    }
}

/// Puts peers into a record that has none yet, but for those that could not be reached. Of two that want the same network the
/// one that has had it keeps it: a wrong object takes nothing from anybody.
pub(crate) fn sort_out(
    record: &mut NodeRecord,
    mut wanted: Vec<Peer>,
    before: &BTreeMap<String, Peer>,
    in_use: &[Network],
) -> Vec<PeerProblem> {
    let is_new = |peer: &Peer| before.get(&peer.id).is_none_or(|it| it.cidrs != peer.cidrs);
    wanted.sort_by(|a, b| (is_new(a), &a.id).cmp(&(is_new(b), &b.id)));
    let mut refusals = Refusals::of(record, in_use);
    let mut problems = Vec::new();
    for peer in wanted {
        match refusals.admit(&peer) {
            Ok(()) => _ = record.peers.insert(peer.id.clone(), peer),
            Err(error) => problems.push(PeerProblem { node_id: peer.id, error }),
        }
    }
    problems
}
