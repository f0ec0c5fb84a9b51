//! What can be read that tells of a change of rules, and what serves best with which programs.

use std::collections::BTreeSet;

use telaio_model::IpFamily;
use telaio_netlink::nftables::{ChainOfTable, Family, Nftables, RuleNotices, RulesWatcher};
use telaio_netlink::xtables::{chain_fingerprints, table_info};

use crate::iptables::lock::{LockFile, LockUses};
use crate::iptables::names::{Owner, Table, is_kernels};
use crate::iptables::programs::{Flavor, Programs, legacy_family};
use crate::iptables::proxier::Kernel;

/// How many changed chains are written anew without comparing all rules.
const CHAINS_MAX: usize = 64;

/// Something that is different after a change of rules.
pub(crate) trait Probe: Send {
    /// Reads it; `None` if it cannot be read.
    fn read(&mut self) -> Option<u64>;

    /// Whether a transaction makes it greater by one.
    fn counts_transactions(&self) -> bool {
        false
    }

    /// From now on whatever changes is somebody else's doing.
    fn listen(&mut self) {}

    /// From now on it is also ours, and not worth listening to.
    fn rest(&mut self) {}

    /// The chains of ours, or that lead to ours, that so many transactions have touched since it began
    /// to listen, or since it was asked before; `None` if that is not known.
    fn touched_chains(&mut self, _transactions: u64) -> Option<BTreeSet<ChainAt>> {
        None
    }
}

/// The generation of nf_tables, and in which chains the last ones changed rules. It is only listened
/// between syncs: to be told of each of our own rules would double what a large sync costs.
struct Generation {
    nftables: Nftables,
    watcher: Option<RulesWatcher>,
}

impl Probe for Generation {
    fn read(&mut self) -> Option<u64> {
        self.nftables.generation().ok().map(u64::from)
    }

    fn counts_transactions(&self) -> bool {
        true
    }

    fn listen(&mut self) {
        self.watcher = RulesWatcher::open().ok();
    }

    fn rest(&mut self) {
        self.watcher = None;
    }

    fn touched_chains(&mut self, transactions: u64) -> Option<BTreeSet<ChainAt>> {
        let notices = self.watcher.as_mut()?.take().ok()?;
        let all_told = !notices.is_partial && u64::from(notices.transactions) == transactions;
        if all_told { chains_of_ours(&notices) } else { None }
    }
}

/// The chains that these notices give reason to look at; `None` if it may be any.
fn chains_of_ours(notices: &RuleNotices) -> Option<BTreeSet<ChainAt>> {
    let tables = notices.tables.iter().map(|(family, table)| place(*family, table));
    if tables.flatten().next().is_some() {
        return None;
    }
    let chain_at = |it: &ChainOfTable| {
        let (family, table) = place(it.family, &it.table)?;
        // The kernel's own chains lead to ours; they have no name here.
        let chain = if is_kernels(&it.chain) { String::new() } else { it.chain.clone() };
        Some(ChainAt { family, table, chain })
    };
    let ours = |it: &ChainAt| Owner::of(&it.chain).is_some();
    // One of ours may have got this name.
    if notices.chains.iter().filter_map(chain_at).any(|it| !ours(&it)) {
        return None;
    }
    let touched = notices.rules.iter().chain(&notices.chains).filter_map(chain_at);
    let chains: BTreeSet<_> = touched.filter(|it| it.chain.is_empty() || ours(it)).collect();
    Some(chains).filter(|chains| chains.len() <= CHAINS_MAX)
}

/// A table that the programs keep.
fn place(family: Family, table: &str) -> Option<(IpFamily, Table)> {
    let family = match family {
        Family::Ip => IpFamily::V4,
        Family::Ip6 => IpFamily::V6,
        Family::Inet | Family::Bridge => return None,
    };
    let table = Table::ALL.into_iter().find(|it| it.as_str() == table)?;
    Some((family, table))
}

/// The sizes of the older tables.
struct Sizes(Vec<IpFamily>);

impl Probe for Sizes {
    fn read(&mut self) -> Option<u64> {
        self.0.iter().flat_map(|family| Table::ALL.map(|table| (*family, table))).try_fold(
            0,
            |all, (family, table)| {
                let info = table_info(legacy_family(family), table.as_str())?;
                Some(mix(all, u64::from(info.num_entries) << 32 | u64::from(info.size)))
            },
        )
    }
}

/// A chain; the kernel's own ones have no name here.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ChainAt {
    pub(crate) family: IpFamily,
    pub(crate) table: Table,
    pub(crate) chain: String,
}

/// What stands in the tables, in numbers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Reading {
    /// One for each chain, where they can be told apart.
    pub(super) numbers: Vec<u64>,
    /// The chains that differ from another reading; none where that cannot be told.
    pub(super) changed: BTreeSet<ChainAt>,
}

/// Something that tells of any change of rules, and costs something.
pub(crate) trait ContentProbe: Send {
    /// Reads it, and says which chains differ from the numbers read before; `None` if it cannot be
    /// read.
    fn read(&mut self, before: Option<&[u64]>) -> Option<Reading>;
}

/// The contents of the older tables.
struct Contents(Vec<IpFamily>);

impl ContentProbe for Contents {
    fn read(&mut self, before: Option<&[u64]>) -> Option<Reading> {
        let mut reading = Reading::default();
        for family in self.0.iter().copied() {
            for table in Table::ALL {
                chain_fingerprints(legacy_family(family), table.as_str(), |chain, number| {
                    let was = before.and_then(|before| before.get(reading.numbers.len()));
                    if was.is_some_and(|was| *was != number) && reading.changed.len() <= CHAINS_MAX
                    {
                        let chain = chain.to_owned();
                        reading.changed.insert(ChainAt { family, table, chain });
                    }
                    reading.numbers.push(number);
                })
                .ok()?;
            }
        }
        let as_many = before.is_some_and(|before| before.len() == reading.numbers.len());
        if !as_many || reading.changed.len() > CHAINS_MAX {
            reading.changed.clear();
        }
        Some(reading)
    }
}

/// What `iptables-save` prints: where nothing better can be had.
struct Saved(Vec<Programs>);

impl ContentProbe for Saved {
    fn read(&mut self, _: Option<&[u64]>) -> Option<Reading> {
        let number = self.0.iter_mut().try_fold(0, |all, programs| {
            let text = programs.save().ok()?;
            let rules = text.lines().filter(|line| line.starts_with('-'));
            Some(rules.fold(all, |all, rule| mix(all, hash(rule))))
        })?;
        Some(Reading { numbers: vec![number], ..Reading::default() })
    }
}

fn mix(all: u64, more: u64) -> u64 {
    (all ^ more).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23)
}

fn hash(text: &str) -> u64 {
    telaio_model::hash::StableHash::new().text(text).finish()
}

/// What to look at: often, and once in a while.
pub(crate) struct Probes {
    pub(crate) cheap: Option<Box<dyn Probe>>,
    pub(crate) thorough: Option<Box<dyn ContentProbe>>,
    /// Whose uses make the thorough one worth its cost.
    pub(crate) lock: Option<Box<dyn LockUses>>,
}

impl Probes {
    /// What serves best with these programs, which are all of one flavour.
    pub(crate) fn new(programs: &[Programs]) -> Self {
        let legacy = programs.first().is_some_and(|it| it.flavor() == Flavor::Legacy);
        if legacy {
            let families: Vec<IpFamily> = programs.iter().map(Programs::family).collect();
            let (sizes, contents) = (Sizes(families.clone()), Contents(families));
            return Self {
                cheap: Some(Box::new(sizes)),
                thorough: Some(Box::new(contents)),
                lock: lock_of_programs(),
            };
        }
        match Nftables::open() {
            Ok(nftables) => {
                let generation = Generation { nftables, watcher: None };
                Self { cheap: Some(Box::new(generation)), thorough: None, lock: None }
            }
            Err(error) => {
                tracing::warn!(%error, "cannot ask nf_tables for changes; reading all rules instead");
                let saved = Saved(programs.to_vec());
                Self { cheap: None, thorough: Some(Box::new(saved)), lock: None }
            }
        }
    }
}

fn lock_of_programs() -> Option<Box<dyn LockUses>> {
    match LockFile::of_programs() {
        Ok(lock) => Some(Box::new(lock)),
        Err(error) => {
            tracing::info!(%error, "cannot watch the lock of iptables; some changes by others are found later");
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(family: Family, table: &str, chain: &str) -> ChainOfTable {
        ChainOfTable { family, table: table.to_owned(), chain: chain.to_owned() }
    }

    fn of_rules(chains: &[ChainOfTable]) -> Option<BTreeSet<ChainAt>> {
        let rules = chains.iter().cloned().collect();
        chains_of_ours(&RuleNotices { rules, ..RuleNotices::default() })
    }

    #[test]
    fn only_our_chains_and_those_that_lead_to_them_matter() {
        let chains = of_rules(&[
            at(Family::Ip, "nat", "TELAIO-SEP-X"),
            at(Family::Ip, "nat", "DOCKER"),
            at(Family::Ip6, "filter", "FORWARD"),
            at(Family::Ip, "telaio", "services"),
            at(Family::Inet, "nat", "TELAIO-SEP-X"),
        ]);
        let ours = |family, table, chain: &str| ChainAt { family, table, chain: chain.to_owned() };
        let expected =
            [ours(IpFamily::V4, Table::Nat, "TELAIO-SEP-X"), ours(IpFamily::V6, Table::Filter, "")];
        assert_eq!(chains, Some(BTreeSet::from(expected)));
        assert_eq!(of_rules(&[at(Family::Ip, "nat", "DOCKER")]), Some(BTreeSet::new()));
    }

    #[test]
    fn a_table_or_a_chain_of_another_name_may_mean_anything() {
        let tables = BTreeSet::from([(Family::Ip, "nat".to_owned())]);
        assert_eq!(chains_of_ours(&RuleNotices { tables, ..RuleNotices::default() }), None);
        let renamed = BTreeSet::from([at(Family::Ip, "nat", "TAKEN-AWAY")]);
        let notices = RuleNotices { chains: renamed, ..RuleNotices::default() };
        assert_eq!(chains_of_ours(&notices), None);
        let many: Vec<_> = (0..=CHAINS_MAX)
            .map(|number| at(Family::Ip, "nat", &format!("TELAIO-SEP-{number}")))
            .collect();
        assert_eq!(of_rules(&many), None);
    }
}
