//! What can be read that tells of a change of rules, and what serves best with which programs.

use std::collections::BTreeSet;

use telaio_model::IpFamily;
use telaio_netlink::nftables::Nftables;
use telaio_netlink::xtables::{chain_fingerprints, table_info};

use crate::iptables::lock::{LockFile, LockUses};
use crate::iptables::names::Table;
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
}

/// The generation of nf_tables.
struct Generation(Nftables);

impl Probe for Generation {
    fn read(&mut self) -> Option<u64> {
        self.0.generation().ok().map(u64::from)
    }

    fn counts_transactions(&self) -> bool {
        true
    }
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
                Self { cheap: Some(Box::new(Generation(nftables))), thorough: None, lock: None }
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
