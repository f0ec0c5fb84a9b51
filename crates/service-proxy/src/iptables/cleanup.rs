//! Removing what iptables has of ours, or of kube-proxy's.
//!
//! Both flavours are cleaned, also one that is not in use any more. What is not there is not made:
//! tables are only looked at where the kernel lists them. Each table is cleaned in one
//! transaction, jumps and chains together. One failure does not stop the rest.

use std::collections::BTreeSet;

use telaio_model::IpFamily;
use telaio_netlink::nftables::Nftables;
use telaio_reconcile::ApplyError;

use crate::nftables::layout::nft_family;

use super::names::{Owner, Table};
use super::parse::{appended_rule, declared_chain, target_of};
use super::programs::{Flavor, ProgramError, Programs};
use super::proxier::Kernel;

/// Why not everything could be removed.
#[derive(Debug, thiserror::Error)]
#[error("{} of iptables' tables could not be cleaned: {}", .0.len(), .0.join("; "))]
pub struct CleanupError(pub Vec<String>);

/// Removes every chain of the backend `iptables`, and what leads to them, from these flavours of both
/// families; says what it has removed. [`Flavor::Auto`] stands for both.
pub fn cleanup(flavors: &[Flavor]) -> Result<Vec<String>, CleanupError> {
    cleanup_of(Owner::Iptables, flavors)
}

/// The same for the chains of either backend; the other's stay.
pub fn cleanup_of(owner: Owner, flavors: &[Flavor]) -> Result<Vec<String>, CleanupError> {
    clean(flavors, |_, chains| owned(owner, chains))
}

/// Those of these chains that a backend of ours has.
fn owned<'a>(owner: Owner, chains: &[&'a str]) -> BTreeSet<&'a str> {
    chains.iter().copied().filter(|chain| owner.owns(chain)).collect()
}

/// Removes kube-proxy's chains of its modes iptables and ipvs, from both flavours and families; kubelet's
/// stay. Says what it has removed.
pub fn cleanup_kube_proxy() -> Result<Vec<String>, CleanupError> {
    clean(&[Flavor::Auto], kube_proxy_chains)
}

/// Whether kube-proxy has left rules here, in its mode iptables or ipvs, and which.
pub fn kube_proxy_present() -> Option<String> {
    places(&[Flavor::Auto]).into_iter().find_map(|place| {
        let text = place.programs.save_table(place.table.as_str()).ok()?;
        let sign = text.lines().filter_map(declared_chain).find(|chain| {
            // A restart of kubelet alone makes neither.
            ["KUBE-PROXY-CANARY", "KUBE-SERVICES"].contains(chain)
        })?;
        Some(format!("chain {sign} in {}", place.name()))
    })
}

/// A table to be cleaned.
struct Place {
    programs: Programs,
    table: Table,
}

impl Place {
    fn name(&self) -> String {
        let flavor = match self.programs.flavor() {
            Flavor::Legacy => "iptables-legacy",
            Flavor::Auto | Flavor::Nft => "iptables-nft",
        };
        format!("table {} of {flavor}, {}", self.table.as_str(), self.programs.family())
    }
}

/// The tables that can be there. A flavour whose programs are not installed has none that we could
/// have made.
fn places(flavors: &[Flavor]) -> Vec<Place> {
    let mut all = BTreeSet::new();
    for flavor in flavors {
        match flavor {
            Flavor::Auto => all.extend([Flavor::Nft, Flavor::Legacy]),
            one => drop(all.insert(*one)),
        }
    }
    let mut places = Vec::new();
    for flavor in all {
        for family in IpFamily::ALL {
            let tables: Vec<Table> = match flavor {
                Flavor::Legacy => legacy_tables(family),
                Flavor::Auto | Flavor::Nft => nft_tables(family),
            };
            if tables.is_empty() {
                continue;
            }
            match Programs::find(flavor, family) {
                Ok(programs) => places.extend(
                    tables.into_iter().map(|table| Place { programs: programs.clone(), table }),
                ),
                Err(error @ ProgramError::Missing { .. }) if flavor == Flavor::Legacy => {
                    tracing::warn!(%error, "there are older tables that cannot be looked at");
                }
                Err(error) => tracing::debug!(%error, "nothing to clean"),
            }
        }
    }
    places
}

/// The tables of nf_tables that are in use. A kernel without nf_tables has none; if we may not ask,
/// the program says so.
fn nft_tables(family: IpFamily) -> Vec<Table> {
    match Nftables::open().and_then(|mut nftables| nftables.tables()) {
        Ok(tables) => {
            let of_family = tables.iter().filter(|(of, _)| *of == nft_family(family));
            of_family.filter_map(|(_, name)| Table::parse(name)).collect()
        }
        Err(error) if error.is_unsupported() => Vec::new(),
        Err(_) => Table::ALL.to_vec(),
    }
}

/// The older tables that are in use.
fn legacy_tables(family: IpFamily) -> Vec<Table> {
    let path = match family {
        IpFamily::V4 => "/proc/thread-self/net/ip_tables_names",
        IpFamily::V6 => "/proc/thread-self/net/ip6_tables_names",
    };
    let names = std::fs::read_to_string(path).unwrap_or_default();
    names.lines().filter_map(Table::parse).collect()
}

fn clean(
    flavors: &[Flavor],
    choose: impl for<'a> Fn(Table, &[&'a str]) -> BTreeSet<&'a str>,
) -> Result<Vec<String>, CleanupError> {
    let mut done = Vec::new();
    let mut errors = Vec::new();
    for mut place in places(flavors) {
        let name = place.name();
        match clean_place(&mut place, &choose) {
            Ok(None) => {}
            Ok(Some(what)) => done.push(format!("{what} from {name}")),
            Err(error) => errors.push(format!("{name}: {error}")),
        }
    }
    if errors.is_empty() { Ok(done) } else { Err(CleanupError(errors)) }
}

fn clean_place(
    place: &mut Place,
    choose: impl for<'a> Fn(Table, &[&'a str]) -> BTreeSet<&'a str>,
) -> Result<Option<String>, ApplyError> {
    let saved = place.programs.save_table(place.table.as_str())?;
    let chains: Vec<&str> = saved.lines().filter_map(declared_chain).collect();
    let doomed = choose(place.table, &chains);
    if doomed.is_empty() {
        return Ok(None);
    }
    let chains_per_commit = place.programs.limits().chains_per_commit;
    let (text, rule_count) = removal(place.table, &saved, &doomed, chains_per_commit);
    place.programs.restore(&[&text])?;
    Ok(Some(format!("{} chains and {rule_count} rules that led to them", doomed.len())))
}

/// The text that removes chains and the rules of others' chains that lead to them; and how many those
/// are. If it has to be in parts, the first already leaves the chains without traffic.
fn removal(
    table: Table,
    saved: &str,
    doomed: &BTreeSet<&str>,
    chains_per_commit: usize,
) -> (String, usize) {
    let jumps: Vec<String> = saved
        .lines()
        .filter_map(appended_rule)
        .filter(|(chain, rule)| {
            !doomed.contains(chain) && target_of(rule).is_some_and(|it| doomed.contains(it))
        })
        .map(|(chain, rule)| format!("-D {chain} {rule}"))
        .collect();
    let rule_count = jumps.len();
    let empty = doomed.iter().map(|chain| format!(":{chain} - [0:0]"));
    let remove = doomed.iter().map(|chain| format!("-X {chain}"));
    let parts: Vec<Vec<String>> = if doomed.len() <= chains_per_commit {
        vec![empty.chain(jumps).chain(remove).collect()]
    } else {
        // They may lead to each other: all are emptied before the first is removed.
        let (empty, remove): (Vec<_>, Vec<_>) = (empty.collect(), remove.collect());
        let chunks = empty.chunks(chains_per_commit).chain(remove.chunks(chains_per_commit));
        [jumps].into_iter().chain(chunks.map(<[String]>::to_vec)).collect()
    };
    let part = |lines: &Vec<String>| format!("*{}\n{}\nCOMMIT\n", table.as_str(), lines.join("\n"));
    (parts.iter().filter(|lines| !lines.is_empty()).map(part).collect(), rule_count)
}

/// Which chains of a table are kube-proxy's alone.
///
/// kubelet makes `KUBE-KUBELET-CANARY`, `KUBE-IPTABLES-HINT` and, in the filter table, `KUBE-FIREWALL`.
/// Before release 1.28 it also made `KUBE-MARK-DROP`, `KUBE-MARK-MASQ` and `KUBE-POSTROUTING`; the first
/// of these is its own, so where that is, the others stay too.
fn kube_proxy_chains<'a>(table: Table, chains: &[&'a str]) -> BTreeSet<&'a str> {
    const PREFIXES: [&str; 6] =
        ["KUBE-SVC-", "KUBE-SVL-", "KUBE-SEP-", "KUBE-EXT-", "KUBE-FW-", "KUBE-XLB-"];
    const NAMES: [&str; 12] = [
        "KUBE-PROXY-CANARY",
        "KUBE-SERVICES",
        "KUBE-EXTERNAL-SERVICES",
        "KUBE-NODEPORTS",
        "KUBE-FORWARD",
        "KUBE-PROXY-FIREWALL",
        "KUBE-NODE-PORT",
        "KUBE-LOAD-BALANCER",
        "KUBE-SOURCE-RANGES-FIREWALL",
        "KUBE-IPVS-FILTER",
        "KUBE-IPVS-OUT-FILTER",
        "KUBE-SERVICES-OUT",
    ];
    const SHARED: [&str; 2] = ["KUBE-MARK-MASQ", "KUBE-POSTROUTING"];
    let old_kubelet = chains.contains(&"KUBE-MARK-DROP");
    let is_kube_proxys = |chain: &str| {
        PREFIXES.iter().any(|prefix| chain.starts_with(prefix))
            || NAMES.contains(&chain)
            || (!old_kubelet && SHARED.contains(&chain))
            // In nat it is of the mode ipvs.
            || (table == Table::Nat && chain == "KUBE-FIREWALL")
    };
    chains.iter().copied().filter(|chain| is_kube_proxys(chain)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kubelets_chains_stay() {
        let filter = ["INPUT", "KUBE-FIREWALL", "KUBE-KUBELET-CANARY", "KUBE-SERVICES", "DOCKER"];
        assert_eq!(kube_proxy_chains(Table::Filter, &filter), ["KUBE-SERVICES"].into());
        let old = ["KUBE-MARK-DROP", "KUBE-MARK-MASQ", "KUBE-POSTROUTING", "KUBE-SVC-X"];
        assert_eq!(kube_proxy_chains(Table::Nat, &old), ["KUBE-SVC-X"].into());
        let new = ["KUBE-MARK-MASQ", "KUBE-POSTROUTING", "KUBE-KUBELET-CANARY"];
        assert_eq!(
            kube_proxy_chains(Table::Nat, &new),
            ["KUBE-MARK-MASQ", "KUBE-POSTROUTING"].into()
        );
    }

    #[test]
    fn each_backend_is_cleaned_alone() {
        let chains = ["INPUT", "TELAIO-SERVICES", "TELAIO-IPVS-FILTER", "DOCKER"];
        assert_eq!(owned(Owner::Iptables, &chains), ["TELAIO-SERVICES"].into());
        assert_eq!(owned(Owner::Ipvs, &chains), ["TELAIO-IPVS-FILTER"].into());
    }

    #[test]
    fn a_removal_takes_chains_and_what_leads_to_them_and_nothing_else() {
        let saved = "*nat\n:PREROUTING ACCEPT [0:0]\n:TELAIO-SERVICES - [0:0]\n:DOCKER - [0:0]\n\
            -A PREROUTING -m comment --comment \"x\" -j TELAIO-SERVICES\n\
            -A PREROUTING -j DOCKER\n-A TELAIO-SERVICES -j RETURN\nCOMMIT\n";
        let doomed = ["TELAIO-SERVICES"].into();
        let (text, rule_count) = removal(Table::Nat, saved, &doomed, 1);
        assert_eq!(rule_count, 1);
        assert_eq!(
            text,
            "*nat\n:TELAIO-SERVICES - [0:0]\n\
             -D PREROUTING -m comment --comment \"x\" -j TELAIO-SERVICES\n\
             -X TELAIO-SERVICES\nCOMMIT\n"
        );
        let doomed = ["DOCKER", "TELAIO-SERVICES"].into();
        let (text, rule_count) = removal(Table::Nat, saved, &doomed, 1);
        assert_eq!((text.matches("COMMIT").count(), rule_count), (5, 2), "{text}");
    }
}
