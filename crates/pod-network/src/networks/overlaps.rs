//! What a network may be called, and whose addresses it must not have.

use cidr::{IpCidr, IpInet};

use super::{LINK_NAME_LEN_MAX, is_used, remove};
use crate::error::{Error, Result};
use crate::network::{Mode, Network};
use crate::node::network_of;
use crate::overlay::NodeRecord;
use crate::state::State;

pub(super) fn check(network: &Network) -> Result<()> {
    let invalid = |field, why: String| Err(Error::Invalid { field, why });
    let name = &network.bridge;
    // The kernel puts a number for "%d", and takes what comes after a colon for another name of an address.
    let is_bad =
        |c: char| "/:%".contains(c) || c.is_whitespace() || c.is_control() || !c.is_ascii();
    if name.is_empty()
        || name.len() > LINK_NAME_LEN_MAX
        || name.contains(is_bad)
        || name == "."
        || name == ".."
    {
        return invalid(
            "bridge",
            format!(
                "{name:?} is no name for a link; use up to 15 letters, digits, '-', '_' and '.'"
            ),
        );
    }
    if network.name.is_empty() {
        return invalid("name", "a network needs a name".to_owned());
    }
    for subnet in &network.subnets {
        if let Some(gateway) = subnet.gateway
            && !subnet.cidr.contains(&gateway)
        {
            let subnets = subnet.cidr.to_string();
            return Err(Error::OutsideRange { address: gateway, subnets });
        }
    }
    Ok(())
}

/// Refuses a network that could not be made, and changes nothing.
pub(crate) fn refuse(state: &State, wanted: &Network) -> Result<()> {
    check(wanted)?;
    for other in state.networks()? {
        if meets(state, wanted, &other)?.is_some() && is_kept(state, &other)? {
            return Err(overlap_of(wanted, &other));
        }
    }
    Ok(())
}

/// Networks of one node share nothing. One that nobody uses any more makes way, but for those of nodes: they are on record
/// for good.
pub(super) fn make_room(state: &State, wanted: &Network) -> Result<()> {
    for other in state.networks()? {
        let Some(is_shared) = meets(state, wanted, &other)? else { continue };
        if is_kept(state, &other)? {
            return Err(overlap_of(wanted, &other));
        }
        if is_shared {
            state.remove_network(&other.name)?;
        } else {
            remove(state, &other.name)?;
        }
    }
    refuse_clusters(state, wanted)
}

/// The network that a node of this machine wants under this name, if there is one. Whoever says otherwise of where it is means another
/// network.
pub(super) fn of_node(state: &State, wanted: &Network) -> Result<Option<Network>> {
    // One that cannot be read is told by whoever needs it.
    let record: NodeRecord = state.node_record().unwrap_or_default();
    let Some(node) = record.nodes.get(&wanted.name) else { return Ok(None) };
    let own = network_of(node)?;
    let is_within = wanted.subnets.iter().all(|subnet| own.subnets.contains(subnet));
    if is_elsewhere(&own, wanted) || !is_within {
        let why = format!(
            "{} is the network of this machine's node, on bridge {}; give this one another name",
            own.name, own.bridge
        );
        return Err(Error::Invalid { field: "name", why });
    }
    Ok(Some(own))
}

/// A network that moves to another bridge leaves nothing on the old one. While somebody is there it stays.
pub(super) fn leave_old_bridge(state: &State, wanted: &Network) -> Result<()> {
    let Some(old) = state.network(&wanted.name)?.filter(|old| is_elsewhere(old, wanted)) else {
        return Ok(());
    };
    if !is_used(state, &old.name)? && !has_instances(state, &old.name)? {
        refuse(state, wanted)?;
        return remove(state, &old.name);
    }
    let field = if old.bridge != wanted.bridge {
        "bridge"
    } else if old.vlan != wanted.vlan {
        "vlan"
    } else {
        "isGateway"
    };
    let why = format!(
        "network {} is in use on bridge {} and cannot be changed so; remove its instances first, or give what is new another name",
        old.name, old.bridge
    );
    Err(Error::Invalid { field, why })
}

fn has_instances(state: &State, network: &str) -> Result<bool> {
    let records = state.attachments()?;
    Ok(records.iter().any(|(_, it)| it.as_ref().is_some_and(|it| it.network == network)))
}

/// Whether a network would be made of other links.
fn is_elsewhere(one: &Network, other: &Network) -> bool {
    (&one.bridge, one.vlan, one.mode) != (&other.bridge, other.vlan, other.mode)
}

fn is_kept(state: &State, other: &Network) -> Result<bool> {
    let record: NodeRecord = state.node_record().unwrap_or_default();
    Ok(record.nodes.contains_key(&other.name) || is_used(state, &other.name)?)
}

/// Whether two networks of this machine cannot both be: because of their addresses, on the same bridge or not.
fn meets(state: &State, wanted: &Network, other: &Network) -> Result<Option<bool>> {
    if other.name == wanted.name || other.mode != Mode::Routed || wanted.mode != Mode::Routed {
        return Ok(None);
    }
    let is_shared = other.bridge == wanted.bridge;
    if is_shared && other.vlan != wanted.vlan && is_used(state, &other.name)? {
        let why = format!(
            "the node is in one virtual network of bridge {}: that of network {}; use another bridge",
            wanted.bridge, other.name
        );
        return Err(Error::Invalid { field: "vlan", why });
    }
    Ok(shared_addresses(wanted, other).map(|_| is_shared))
}

fn shared_addresses(wanted: &Network, other: &Network) -> Option<(IpCidr, IpCidr)> {
    wanted.subnets.iter().find_map(|ours| {
        let theirs = other.subnets.iter().find(|theirs| overlaps(&ours.cidr, &theirs.cidr))?;
        Some((ours.cidr, theirs.cidr))
    })
}

fn overlap_of(wanted: &Network, other: &Network) -> Error {
    let owner = format!("network {} (bridge {})", other.name, other.bridge);
    match shared_addresses(wanted, other) {
        Some((wanted, existing)) => Error::Overlap { wanted, existing, owner },
        None => Error::Busy { what: owner },
    }
}

/// A network that is no node's has none of the addresses of nodes: of this machine's, made or not, and of others. One that is
/// there as it should be stays.
fn refuse_clusters(state: &State, wanted: &Network) -> Result<()> {
    // One that cannot be read is told by whoever needs it.
    let record: NodeRecord = state.node_record().unwrap_or_default();
    let is_there = state.network(&wanted.name)?.is_some_and(|it| it.subnets == wanted.subnets);
    if is_there || wanted.mode != Mode::Routed || record.nodes.contains_key(&wanted.name) {
        return Ok(());
    }
    let own = record.nodes.values().map(|it| (format!("this machine's node {}", it.id), &it.cidrs));
    let others = record.peers.values().map(|it| (format!("node {}", it.id), &it.cidrs));
    for (owner, cidrs) in own.chain(others) {
        for existing in cidrs.iter().map(IpInet::network) {
            let ours = wanted.subnets.iter().find(|ours| overlaps(&ours.cidr, &existing));
            if let Some(ours) = ours {
                return Err(Error::Overlap { wanted: ours.cidr, existing, owner });
            }
        }
    }
    Ok(())
}

/// Whether two networks have an address in common.
pub(crate) fn overlaps(a: &IpCidr, b: &IpCidr) -> bool {
    a.contains(&b.first_address()) || b.contains(&a.first_address())
}
