//! The table in the kernel: reading it back and changing it, one transaction at a time.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use telaio_model::IpFamily;
use telaio_netlink::NetlinkError;
use telaio_netlink::nftables::{
    Chain, Element, ElementData, Nftables, ReadChain, ReadElement, ReadRule,
};
use telaio_reconcile::{ApplyError, Change, Observed};

use super::compile::{ChainItem, FrontendItem, FrontendKey, Item, Key};
use super::layout::{Map, TABLE, nft_family};
use super::rule::Rule;

mod elements;
mod touched;
mod transaction;

use elements::ReadEntry;
use transaction::{Growth, TransactionWriter, transactions};

/// Above so many bytes a sync is more than one transaction. Then it is split between services, never
/// within one. About seven million endpoints.
pub const TRANSACTION_BYTES_MAX: usize = 400 << 20;

/// What is known of our table of one family.
#[derive(Debug, Default)]
struct Table {
    /// It is there, with all its maps.
    complete: bool,
    /// How many elements each map has and how many it may have.
    fill: BTreeMap<Map, Fill>,
}

#[derive(Debug, Default, Clone, Copy)]
struct Fill {
    count: i64,
    size: u32,
}

/// How often tables were read back.
#[derive(Debug, Default)]
pub struct Reads {
    whole: AtomicU64,
    touched: AtomicU64,
}

impl Reads {
    /// How often everything was read.
    pub fn whole(&self) -> u64 {
        self.whole.load(Ordering::Relaxed)
    }

    /// How often only what somebody had touched was read.
    pub fn touched(&self) -> u64 {
        self.touched.load(Ordering::Relaxed)
    }

    fn count_whole(&self) {
        self.whole.fetch_add(1, Ordering::Relaxed);
    }

    fn count_touched(&self) {
        self.touched.fetch_add(1, Ordering::Relaxed);
    }
}

/// The tables of both families.
#[derive(Debug)]
pub struct Kernel {
    nft: Nftables,
    families: Vec<IpFamily>,
    tables: BTreeMap<IpFamily, Table>,
    /// The tables have to be made anew with the next transaction.
    anew: bool,
    /// The ruleset's generation up to which we know that ours is as we left it.
    generation: Option<u32>,
    /// How large a transaction may be.
    transaction_bytes_max: usize,
    /// Who stays where, kept while the tables are made anew.
    kept: BTreeMap<(IpFamily, Map), Vec<KeptElement>>,
    reads: Arc<Reads>,
}

#[derive(Debug, Clone)]
struct KeptElement {
    key: Vec<u8>,
    value: Vec<u8>,
    timeout_ms: Option<u64>,
    left_ms: u64,
}

impl Kernel {
    /// Opens the kernel of this network namespace.
    pub fn open(families: &[IpFamily]) -> Result<Self, NetlinkError> {
        let nft = Nftables::open()?;
        let transaction_bytes_max = TRANSACTION_BYTES_MAX.min(nft.bytes_max() / 2);
        Ok(Self {
            nft,
            families: families.to_vec(),
            tables: BTreeMap::new(),
            anew: false,
            generation: None,
            transaction_bytes_max,
            kept: BTreeMap::new(),
            reads: Arc::default(),
        })
    }

    /// Counts from now on how often it reads.
    #[must_use]
    pub fn counting_in(mut self, reads: Arc<Reads>) -> Self {
        self.reads = reads;
        self
    }

    /// Makes transactions smaller, for tests of what happens when one is not enough.
    #[doc(hidden)]
    pub fn set_transaction_bytes_max(&mut self, bytes: usize) {
        self.transaction_bytes_max = bytes;
    }

    /// The address of the socket that changes go through.
    pub fn port(&self) -> u32 {
        self.nft.port()
    }

    /// The connection itself.
    pub fn nft(&mut self) -> &mut Nftables {
        &mut self.nft
    }

    /// What is there of ours. Tables that are not whole count as not there: they are made anew.
    pub fn read(&mut self) -> Result<Observed<Key, Item>, ApplyError> {
        self.reads.count_whole();
        let mut items = BTreeMap::new();
        let mut whole = !self.anew;
        self.generation = Some(self.nft.generation().map_err(apply_error)?);
        self.tables.clear();
        for family in self.families.clone() {
            let table = self.observe_table(family).map_err(apply_error)?;
            whole &= table.complete;
            self.tables.insert(family, table);
        }
        if whole {
            for family in self.families.clone() {
                self.observe_chains(family, &mut items).map_err(apply_error)?;
                whole &= self.observe_elements(family, &mut items).map_err(apply_error)?;
            }
        }
        if !whole {
            self.anew = true;
            return Ok(Observed::nothing());
        }
        Ok(Observed::new(items))
    }

    /// What is there of ours, whole or not, for showing.
    pub fn read_what_is_there(&mut self) -> Result<BTreeMap<Key, Item>, ApplyError> {
        let mut items = BTreeMap::new();
        for family in self.families.clone() {
            let table = self.observe_table(family).map_err(apply_error)?;
            if !table.fill.is_empty() {
                self.tables.insert(family, table);
                self.observe_chains(family, &mut items).map_err(apply_error)?;
                self.observe_elements(family, &mut items).map_err(apply_error)?;
            }
        }
        Ok(items)
    }

    fn observe_table(&mut self, family: IpFamily) -> Result<Table, NetlinkError> {
        let nft_family = nft_family(family);
        let mut table = Table::default();
        if !self.nft.has_live_table(nft_family, TABLE)? {
            return Ok(table);
        }
        let sets = self.nft.sets(nft_family, TABLE)?;
        for map in Map::ALL {
            let is_this = map.with_spec(family, 1, |spec| {
                let (key_len, data_len) = spec.lengths();
                sets.iter().find(|set| {
                    set.name == map.name()
                        && set.key_len == key_len
                        && (map.is_verdicts() || set.data_len == data_len)
                })
            });
            if let Some(set) = is_this {
                table.fill.insert(map, Fill { count: 0, size: set.size });
            }
        }
        table.complete = table.fill.len() == Map::ALL.len() && sets.len() == Map::ALL.len();
        Ok(table)
    }

    fn observe_chains(
        &mut self,
        family: IpFamily,
        items: &mut BTreeMap<Key, Item>,
    ) -> Result<(), NetlinkError> {
        let nft_family = nft_family(family);
        let mut rules: BTreeMap<String, Vec<ReadRule>> = BTreeMap::new();
        for rule in self.nft.rules(nft_family, TABLE)? {
            rules.entry(rule.chain.clone()).or_default().push(rule);
        }
        for chain in self.nft.chains(nft_family, TABLE)? {
            let its_rules = rules.remove(&chain.name).unwrap_or_default();
            let name: Arc<str> = chain.name.as_str().into();
            let item = read_chain(chain, its_rules);
            items.insert(Key::Chain(family, name), Item::Chain(Arc::new(item)));
        }
        Ok(())
    }

    /// Whether all of them are such as we write.
    fn observe_elements(
        &mut self,
        family: IpFamily,
        items: &mut BTreeMap<Key, Item>,
    ) -> Result<bool, NetlinkError> {
        let mut frontends: BTreeMap<FrontendKey, FrontendItem> = BTreeMap::new();
        let mut all_understood = true;
        let has =
            |map: &Map| self.tables.get(&family).is_some_and(|table| table.fill.contains_key(map));
        let maps: Vec<Map> =
            Map::ALL.into_iter().filter(|map| !map.is_dynamic() && has(map)).collect();
        for map in maps {
            let mut found: Vec<ReadEntry> = Vec::new();
            let mut count = 0;
            self.nft.elements(nft_family(family), TABLE, map.name(), |element| {
                let Some(element) = element else {
                    found.clear();
                    count = 0;
                    return;
                };
                count += 1;
                found.extend(ReadEntry::of(map, family, element));
            })?;
            if let Some(fill) = self.tables.get_mut(&family).and_then(|it| it.fill.get_mut(&map)) {
                fill.count = count;
            }
            all_understood &= i64::try_from(found.len()) == Ok(count);
            for entry in found {
                match entry {
                    ReadEntry::Item(key, item) => _ = items.insert(key, item),
                    ReadEntry::Sources(key, _)
                    | ReadEntry::Leads(key, _)
                    | ReadEntry::Slot(key, ..)
                    | ReadEntry::Lasting(key, ..)
                    | ReadEntry::Live(key, _) => {
                        elements::put(frontends.entry(key).or_default(), entry);
                    }
                }
            }
        }
        items.extend(frontends.into_iter().map(|(key, mut item)| {
            elements::sort(&mut item);
            (Key::Frontend(key), Item::Frontend(Arc::new(item)))
        }));
        Ok(all_understood)
    }

    /// Carries out changes.
    pub fn write(&mut self, changes: &[Change<Key, Item>]) -> Result<(), ApplyError> {
        if self.anew {
            self.keep_affinity().map_err(apply_error)?;
            let outcome = self.write_all(changes);
            if outcome.is_ok() || self.kept.values().all(Vec::is_empty) {
                return outcome.map_err(apply_error);
            }
            // Better forget who stays where than program nothing.
            self.kept.clear();
        } else if self.outgrown(changes) {
            self.anew = true;
            return Err(ApplyError::Conflict("our maps are too small now".to_owned()));
        }
        self.write_all(changes).map_err(apply_error)
    }

    fn write_all(&mut self, changes: &[Change<Key, Item>]) -> Result<(), NetlinkError> {
        for transaction in transactions(changes, self.transaction_bytes_max) {
            let mut writer = TransactionWriter::new();
            if self.anew {
                self.write_anew(&mut writer, changes);
            }
            writer.write(&transaction);
            self.commit(&mut writer)?;
            self.anew = false;
            self.count(&Growth::of(transaction.iter().copied()));
        }
        self.kept.clear();
        Ok(())
    }

    fn commit(&mut self, writer: &mut TransactionWriter) -> Result<(), NetlinkError> {
        let expected = self.generation.take().map(|it| it.wrapping_add(1));
        self.nft.commit(&mut writer.batches())?;
        // Others' transactions between our last look and now may have touched what is ours.
        self.generation = Some(self.nft.generation()?).filter(|now| Some(*now) == expected);
        Ok(())
    }

    /// Nobody has changed any table since we read or wrote ours.
    pub fn is_untouched(&mut self) -> bool {
        self.generation.is_some() && self.nft.generation().ok() == self.generation
    }

    /// Whether some map has no room for the changes.
    fn outgrown(&self, changes: &[Change<Key, Item>]) -> bool {
        let growth = Growth::of(changes);
        let is_full = |family: IpFamily, map: Map| {
            let fill = self.tables.get(&family).and_then(|table| table.fill.get(&map));
            fill.is_none_or(|fill| {
                fill.size > 0 && fill.count + growth.get(family, map) > i64::from(fill.size)
            })
        };
        self.families.iter().any(|family| Map::ALL.into_iter().any(|map| is_full(*family, map)))
    }

    fn count(&mut self, growth: &Growth) {
        for (family, table) in &mut self.tables {
            for (map, fill) in &mut table.fill {
                fill.count += growth.get(*family, *map);
            }
        }
    }

    /// Reads who stays where, so that a table that is made anew remembers.
    fn keep_affinity(&mut self) -> Result<(), NetlinkError> {
        self.kept.clear();
        for (family, table) in &self.tables {
            for map in Map::ALL.into_iter().filter(|map| map.is_dynamic()) {
                if !table.fill.contains_key(&map) {
                    continue;
                }
                let kept = self.kept.entry((*family, map)).or_default();
                self.nft.elements(
                    nft_family(*family),
                    TABLE,
                    map.name(),
                    |element| match element {
                        None => kept.clear(),
                        Some(element) => kept.extend(kept_element(element)),
                    },
                )?;
            }
        }
        Ok(())
    }

    /// The tables anew, within the same transaction as what comes into them.
    fn write_anew(&mut self, writer: &mut TransactionWriter, changes: &[Change<Key, Item>]) {
        let growth = Growth::of(changes);
        for family in &self.families {
            let batch = writer.begin(*family);
            // Deleting needs it to be there, and making it is harmless where it is.
            batch.add_table();
            batch.delete_table();
            batch.add_table();
            let mut table = Table { complete: true, ..Table::default() };
            for map in Map::ALL {
                let wanted = growth.get(*family, map);
                let size = map.size_for(usize::try_from(wanted).unwrap_or(0));
                map.with_spec(*family, size, |spec| batch.add_set(spec));
                table.fill.insert(map, Fill { count: 0, size });
                for element in self.kept.get(&(*family, map)).into_iter().flatten() {
                    batch.add_element(
                        map.name(),
                        &Element {
                            key: &element.key,
                            data: ElementData::Value(&element.value),
                            timeout_ms: element.timeout_ms,
                            left_ms: Some(element.left_ms),
                        },
                    );
                }
            }
            self.tables.insert(*family, table);
        }
    }
}

fn read_chain(chain: ReadChain, rules: Vec<ReadRule>) -> ChainItem {
    let base = chain
        .base
        .map(|(kind, hook, priority)| base_of(&kind, hook, priority).filter(|_| !chain.refuses));
    let readable = !matches!(base, Some(None));
    let rules: Option<Vec<Rule>> = rules
        .into_iter()
        .map(|rule| Some(Rule { text: String::new(), expressions: rule.expressions? }))
        .collect();
    ChainItem {
        chain: Chain { name: chain.name, base: base.flatten() },
        rules: rules.filter(|_| readable),
    }
}

fn base_of(
    kind: &str,
    hook: u32,
    priority: i32,
) -> Option<(telaio_netlink::nftables::ChainKind, telaio_netlink::nftables::Hook, i32)> {
    use telaio_netlink::nftables::{ChainKind, Hook};
    let kind = match kind {
        "filter" => ChainKind::Filter,
        "nat" => ChainKind::Nat,
        _ => return None,
    };
    Some((kind, Hook::from_number(hook)?, priority))
}

fn kept_element(element: &ReadElement<'_>) -> Option<KeptElement> {
    if element.key.is_empty() {
        return None;
    }
    Some(KeptElement {
        key: element.key.to_vec(),
        value: element.value?.to_vec(),
        timeout_ms: element.timeout_ms,
        left_ms: element.left_ms.filter(|left| *left > 0)?,
    })
}

/// What the reconciler makes of an error.
pub(super) fn apply_error(error: NetlinkError) -> ApplyError {
    match error {
        NetlinkError::Refused { doing, error, message, .. } => {
            let action =
                if message.is_empty() { doing.to_owned() } else { format!("{doing} ({message})") };
            ApplyError::from_io(action, error)
        }
        NetlinkError::Socket { doing, error } => ApplyError::from_io(doing, error),
        other => ApplyError::Transient(other.to_string()),
    }
}
