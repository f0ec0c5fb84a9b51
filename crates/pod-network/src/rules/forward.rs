//! Past others' chains that drop whatever they do not know.
//!
//! A packet passes the machine only if every chain that looks at it agrees. docker and ufw have `FORWARD` of the table `filter`
//! drop what nobody has asked for, and what we accept in a table of ours does not count there. So where that chain drops, a chain
//! of ours, [`PASS`], is led to from its end, and accepts what goes to and comes from instances; what others refuse
//! before stays refused. Whoever removes it, or has the chain accept again, finds it as it should be after the next repair.
//!
//! Chains of other names are their owners' alone: [`refusing`](super::refusing_chains) tells of them.

use telaio_netlink::NetlinkError;
use telaio_netlink::nftables::{
    Batch, Chain, CompareOp, Expression, Family, MetaKey, Nftables, Reg, Verdict,
};

use super::{Cluster, ENOENT, FAMILIES, LINK_NAME_BYTES, TABLE, is_missing};
use crate::names::{HOST_LINK_PREFIX, VXLAN_LINK_PREFIX};
use crate::network::Mode;

/// The chain of ours among others'.
pub const PASS: &str = "TELAIO-POD-PASS";
/// Where it is, and from where it is led to.
pub const FILTER: &str = "filter";
/// The chain that leads to it.
pub const FORWARD: &str = "FORWARD";
/// The kernel's number for packets that are carried on.
const HOOK_FORWARD: u32 = 2;

/// Has the table's chain let instances' packets pass, if it would drop them.
pub(super) fn write(nftables: &mut Nftables, cluster: &Cluster<'_>) -> Result<(), NetlinkError> {
    for family in FAMILIES {
        let has_instances = cluster.networks.iter().any(|it| it.mode == Mode::Routed);
        let chain = chain(nftables, family, FORWARD)?;
        if !has_instances || !chain.is_some_and(|it| it.base.is_some() && it.refuses) {
            remove_from(nftables, family)?;
            continue;
        }
        let mut batch = Batch::new(family, FILTER);
        batch.add_chain(&Chain::regular(PASS));
        batch.flush_chain(PASS);
        for rule in rules(cluster) {
            batch.add_rule(PASS, &rule, None);
        }
        let there = nftables.rules_of(family, FILTER, FORWARD)?;
        if !there.iter().any(|rule| rule.leads_to.as_deref() == Some(PASS)) {
            let jump = Expression::Verdict(Verdict::Jump(PASS.to_owned()));
            batch.add_rule(FORWARD, &[jump], None);
        }
        nftables.commit(&mut [&mut batch])?;
    }
    Ok(())
}

/// Removes it.
pub(super) fn remove(nftables: &mut Nftables) -> Result<(), NetlinkError> {
    FAMILIES.into_iter().try_for_each(|family| remove_from(nftables, family))
}

fn remove_from(nftables: &mut Nftables, family: Family) -> Result<(), NetlinkError> {
    if chain(nftables, family, PASS)?.is_none() {
        return Ok(());
    }
    let mut batch = Batch::new(family, FILTER);
    for rule in nftables.rules(family, FILTER)? {
        if rule.leads_to.as_deref() == Some(PASS) {
            batch.delete_rule(&rule.chain, rule.handle);
        }
    }
    batch.flush_chain(PASS);
    batch.delete_chain(PASS);
    nftables.commit(&mut [&mut batch])
}

fn chain(
    nftables: &mut Nftables,
    family: Family,
    name: &str,
) -> Result<Option<telaio_netlink::nftables::ReadChain>, NetlinkError> {
    match nftables.chain(family, FILTER, name) {
        Err(error) if error.raw_os_error() == Some(ENOENT) || is_missing(&error) => Ok(None),
        found => found,
    }
}

/// By names, as `iptables -L` can show them.
fn rules(cluster: &Cluster<'_>) -> Vec<Vec<Expression>> {
    let routed = cluster.networks.iter().filter(|network| network.mode == Mode::Routed);
    let mut names: Vec<Vec<u8>> = routed
        .map(|network| {
            let mut name = network.bridge.clone().into_bytes();
            name.resize(LINK_NAME_BYTES, 0);
            name
        })
        .collect();
    // A name without its end stands for all that begin with it.
    names.extend([HOST_LINK_PREFIX, VXLAN_LINK_PREFIX].map(|it| it.as_bytes().to_vec()));
    names.sort();
    names.dedup();
    let both = |name: Vec<u8>| {
        [MetaKey::InputName, MetaKey::OutputName].map(|key| {
            vec![
                Expression::Meta { to: Reg(0), key },
                Expression::Compare { from: Reg(0), op: CompareOp::Equal, value: name.clone() },
                Expression::Verdict(Verdict::Accept),
            ]
        })
    };
    names.into_iter().flat_map(both).collect()
}

/// Others' chains that drop what they do not know, and that we have no place in: each as `family table chain`.
pub(super) fn refusing(nftables: &mut Nftables) -> Result<Vec<String>, NetlinkError> {
    let mut found = Vec::new();
    for (family, table) in nftables.tables()? {
        if table == TABLE || family == Family::Bridge {
            continue;
        }
        for chain in nftables.chains(family, &table)? {
            let is_forward = chain.base.as_ref().is_some_and(|(_, hook, _)| *hook == HOOK_FORWARD);
            let is_passed = table == FILTER && chain.name == FORWARD && family != Family::Inet;
            if is_forward && chain.refuses && !is_passed {
                let name = match family {
                    Family::Ip => "ip",
                    Family::Ip6 => "ip6",
                    _ => "inet",
                };
                found.push(format!("{name} {table} {}", chain.name));
            }
        }
    }
    found.sort();
    Ok(found)
}
