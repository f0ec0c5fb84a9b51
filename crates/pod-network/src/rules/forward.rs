//! Past others' chains that drop whatever they do not know.
//!
//! A packet passes the machine only if every chain that looks at it agrees. docker and ufw have `FORWARD` of the table `filter`
//! drop what nobody has asked for, and what we accept in a table of ours does not count there. So where that chain drops, a chain
//! of ours, [`PASS`], is led to from its end, and accepts what goes to and comes from instances; what others refuse
//! before stays refused. Whoever removes it, or has the chain accept again, finds it as it should be after the next repair.
//!
//! Chains of other names are their owners' alone, and so is one in which a rule refuses whatever comes to it, as firewalld's:
//! [`refusing`](super::refusing_chains) tells of them.

use telaio_netlink::NetlinkError;
use telaio_netlink::nftables::{
    Batch, Chain, CompareOp, Expression, Family, MetaKey, Nftables, ReadRule, Reg, Verdict,
};
use telaio_netlink::xtables;

use super::{Cluster, ENOENT, FAMILIES, LINK_NAME_BYTES, TABLE, is_missing};
use crate::names::{HOST_LINK_PREFIX, VXLAN_LINK_PREFIX};
use crate::network::Mode;

/// The chain of ours among others'.
pub const PASS: &str = "TELAIO-POD-PASS";
/// Where it is, and from where it is led to.
pub const FILTER: &str = "filter";
/// The chain that leads to it.
pub const FORWARD: &str = "FORWARD";
/// The table of firewalld.
pub const FIREWALLD: &str = "firewalld";
/// What names of links of ours begin with.
const OUR_LINKS: [&str; 3] = ["tlb-", "tlbx-", HOST_LINK_PREFIX];
/// All of them at once, and little else.
const OUR_LINKS_BEGIN: &str = "tl";
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

/// Others' chains that refuse what they do not know, and that we have no place in: each as `family table chain`. Either they drop at
/// their end, or a rule without a condition refuses, as firewalld's does. One whose table has rules about links of ours is told
/// about them already.
pub(super) fn refusing(nftables: &mut Nftables) -> Result<Vec<String>, NetlinkError> {
    let mut found = Vec::new();
    for (family, table) in nftables.tables()? {
        if table == TABLE || family == Family::Bridge {
            continue;
        }
        let mut chains = nftables.chains(family, &table)?;
        chains.retain(|it| it.base.as_ref().is_some_and(|(_, hook, _)| *hook == HOOK_FORWARD));
        if chains.is_empty() {
            continue;
        }
        let rules = nftables.rules(family, &table)?;
        if knows_our_links(&table, &rules) {
            continue;
        }
        for chain in chains {
            let own = rules.iter().filter(|rule| rule.chain == chain.name);
            // What comes after it is never asked, so we have no place there either.
            let has_refused = own.clone().any(|rule| rule.refuses);
            let is_passed = table == FILTER && chain.name == FORWARD && family != Family::Inet;
            if has_refused || (chain.refuses && !is_passed) {
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

/// The same of `iptables-legacy`, whose tables nftables knows nothing of: where they are in use, and `FORWARD` drops at its end.
pub(super) fn refusing_legacy() -> Vec<String> {
    let kinds = [(xtables::Family::V4, "ip"), (xtables::Family::V6, "ip6")];
    let refuses = |(family, kind): &(xtables::Family, &str)| {
        // To ask about a table that nobody uses would make it.
        let names = std::fs::read_to_string(format!("/proc/thread-self/net/{kind}_tables_names"));
        if !names.is_ok_and(|names| names.lines().any(|name| name == FILTER)) {
            return false;
        }
        let is_asked = |names: &[String]| {
            names.iter().any(|name| is_ours(name.strip_suffix('+').unwrap_or(name)))
        };
        // One that changes at this moment is looked at the next time.
        xtables::forwarding(*family, FILTER)
            .is_ok_and(|it| it.drops && !(is_asked(&it.incoming) && is_asked(&it.outgoing)))
    };
    let found = kinds.into_iter().filter(refuses);
    found.map(|(_, kind)| format!("{kind}tables-legacy {FILTER} {FORWARD}")).collect()
}

/// Whether a rule that asks for this name, or for names that begin so, asks for links of ours.
fn is_ours(name: &str) -> bool {
    OUR_LINKS.iter().any(|ours| name.starts_with(ours)) || name == OUR_LINKS_BEGIN
}

/// Whether somebody has told a table about links of ours: about what comes in by them and what goes out; of firewalld, where a link
/// is in a zone, the one is enough.
fn knows_our_links(table: &str, rules: &[ReadRule]) -> bool {
    let asks = |key: MetaKey| {
        // Our own chain in the table `filter` says nothing of the owner's.
        let others = rules.iter().filter(|rule| rule.chain != PASS);
        let mut links = others.flat_map(|rule| &rule.links);
        links.any(|(of, name)| *of == key && is_ours(name))
    };
    let (comes, goes) = (asks(MetaKey::InputName), asks(MetaKey::OutputName));
    if table == FIREWALLD { comes || goes } else { comes && goes }
}
