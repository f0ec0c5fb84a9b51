//! The table in the kernel: reading it back and changing it, one transaction at a time.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use telaio_model::IpFamily;
use telaio_netlink::NetlinkError;
use telaio_netlink::nftables::{
    Batch, Chain, Element, ElementData, Nftables, ReadChain, ReadElement, ReadRule, Verdict,
};
use telaio_reconcile::{ApplyError, Change, Observed};

use super::compile::{ChainItem, FrontendItem, FrontendKey, Item, Key};
use super::keys::{self, KeyReader, place_of, put_address};
use super::layout::{Map, TABLE, nft_family};
use super::rule::{Place, Rule};

/// Above so many bytes a sync is more than one transaction. Then it is split between services, never
/// within one. About seven million endpoints.
pub const TRANSACTION_BYTES_MAX: usize = 400 << 20;

/// The changes of one transaction.
type Changes<'a> = [&'a Change<Key, Item>];

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
        })
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
        let mut items = BTreeMap::new();
        let mut whole = !self.anew;
        self.generation = Some(self.nft.generation().map_err(apply_error)?);
        self.tables.clear();
        for family in self.families.clone() {
            let table = self.observe_table(family).map_err(apply_error)?;
            whole &= table.complete;
            self.tables.insert(family, table);
        }
        if !whole {
            self.anew = true;
            return Ok(Observed::nothing());
        }
        for family in self.families.clone() {
            self.observe_chains(family, &mut items).map_err(apply_error)?;
            self.observe_elements(family, &mut items).map_err(apply_error)?;
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

    fn observe_elements(
        &mut self,
        family: IpFamily,
        items: &mut BTreeMap<Key, Item>,
    ) -> Result<(), NetlinkError> {
        let mut frontends: BTreeMap<FrontendKey, FrontendItem> = BTreeMap::new();
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
            for entry in found {
                match entry {
                    ReadEntry::Present(key) => _ = items.insert(key, Item::Present),
                    ReadEntry::Firewall(key, chain) => {
                        items.insert(Key::Firewall(key), Item::Firewall(chain));
                    }
                    ReadEntry::Way(number, verdict) => {
                        // A verdict that we never use is replaced by ours.
                        let verdict = verdict.unwrap_or(Verdict::Return);
                        items.insert(Key::Way(family, number), Item::Way(verdict));
                    }
                    ReadEntry::Leads(key, way) => {
                        frontends.entry(key).or_default().way = Some(way);
                    }
                    ReadEntry::Slot(key, slot, endpoint) => {
                        frontends.entry(key).or_default().slots.push((slot, endpoint));
                    }
                    ReadEntry::Live(key, slot) => {
                        frontends.entry(key).or_default().live.push(slot);
                    }
                    ReadEntry::Lasting(key, slot, lasting) => {
                        frontends.entry(key).or_default().lasting.push((slot, lasting));
                    }
                }
            }
        }
        items.extend(frontends.into_iter().map(|(key, mut item)| {
            item.slots.sort_unstable();
            item.lasting.sort_unstable();
            item.live.sort_unstable();
            (Key::Frontend(key), Item::Frontend(Arc::new(item)))
        }));
        Ok(())
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
            let batch = writer.batch(*family);
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

/// By how much each map grows.
#[derive(Debug, Default)]
struct Growth([[i64; Map::ALL.len()]; 2]);

impl Growth {
    fn of<'a>(changes: impl IntoIterator<Item = &'a Change<Key, Item>>) -> Self {
        let mut growth = Self::default();
        for change in changes {
            for (item, sign) in [(change.old(), -1), (change.new_item(), 1)] {
                if let Some(item) = item {
                    growth.count(change.key(), item, sign);
                }
            }
        }
        growth
    }

    fn count(&mut self, key: &Key, item: &Item, sign: i64) {
        let maps = &mut self.0[key.family() as usize];
        match (key, item) {
            (Key::Frontend(key), Item::Frontend(item)) => {
                let of = FrontendMaps::of(key);
                let size = |len: usize| i64::try_from(len).unwrap_or(i64::MAX / 2) * sign;
                maps[of.services as usize] += size(usize::from(item.way.is_some()));
                maps[of.endpoints as usize] += size(item.slots.len());
                maps[of.lasting as usize] += size(item.lasting.len());
                maps[of.live as usize] += size(item.live.len());
            }
            (key, _) => {
                if let Some(map) = set_of(key) {
                    maps[map as usize] += sign;
                }
            }
        }
    }

    fn get(&self, family: IpFamily, map: Map) -> i64 {
        self.0[family as usize][map as usize]
    }
}

/// The map that holds a key that is one element.
fn set_of(key: &Key) -> Option<Map> {
    match key {
        Key::ClusterIp(_) => Some(Map::ClusterIps),
        Key::Hairpin(_) => Some(Map::Hairpin),
        Key::LocalhostNodePort(..) => Some(Map::LocalhostNodePorts),
        Key::Firewall(_) => Some(Map::Firewall),
        Key::Way(..) => Some(Map::Ways),
        Key::Chain(..) | Key::Frontend(_) => None,
    }
}

/// The maps that a frontend has elements in.
struct FrontendMaps {
    services: Map,
    endpoints: Map,
    lasting: Map,
    live: Map,
}

impl FrontendMaps {
    fn of(key: &FrontendKey) -> Self {
        let place = key.place();
        Self {
            services: place.services(),
            endpoints: place.endpoints(),
            lasting: place.lasting(),
            live: place.live(),
        }
    }
}

/// Writes changes in an order that the kernel can take.
struct TransactionWriter {
    v4: Batch,
    v6: Batch,
    key: Vec<u8>,
}

impl TransactionWriter {
    fn new() -> Self {
        Self {
            v4: Batch::new(nft_family(IpFamily::V4), TABLE),
            v6: Batch::new(nft_family(IpFamily::V6), TABLE),
            key: Vec::with_capacity(64),
        }
    }

    fn batch(&mut self, family: IpFamily) -> &mut Batch {
        match family {
            IpFamily::V4 => &mut self.v4,
            IpFamily::V6 => &mut self.v6,
        }
    }

    fn batches(&mut self) -> [&mut Batch; 2] {
        [&mut self.v4, &mut self.v6]
    }

    fn write(&mut self, changes: &Changes<'_>) {
        // Chains first, so that verdicts find them; rules when all chains are there; chains that go
        // last, when nobody goes to them any more.
        for change in changes {
            self.make_chain(change);
        }
        for change in changes {
            self.write_rules(change);
        }
        for change in changes {
            self.remove_elements(change);
        }
        for change in changes {
            self.add_elements(change);
        }
        for change in changes {
            self.empty_chain(change);
        }
        for change in changes {
            self.remove_chain(change);
        }
    }

    fn make_chain(&mut self, change: &Change<Key, Item>) {
        let Some(Item::Chain(new)) = change.new_item() else { return };
        let batch = self.batch(change.key().family());
        if let Some(Item::Chain(old)) = change.old() {
            batch.flush_chain(&old.chain.name);
            if old.chain == new.chain {
                return;
            }
            batch.delete_chain(&old.chain.name);
        }
        batch.add_chain(&new.chain);
    }

    fn write_rules(&mut self, change: &Change<Key, Item>) {
        let Some(Item::Chain(new)) = change.new_item() else { return };
        let batch = self.batch(change.key().family());
        for rule in new.rules.iter().flatten() {
            batch.add_rule(&new.chain.name, &rule.expressions, None);
        }
    }

    fn empty_chain(&mut self, change: &Change<Key, Item>) {
        if let Change::Delete { key, old: Item::Chain(old) } = change {
            self.batch(key.family()).flush_chain(&old.chain.name);
        }
    }

    fn remove_chain(&mut self, change: &Change<Key, Item>) {
        if let Change::Delete { key, old: Item::Chain(old) } = change {
            self.batch(key.family()).delete_chain(&old.chain.name);
        }
    }

    fn remove_elements(&mut self, change: &Change<Key, Item>) {
        self.elements(change, false);
    }

    fn add_elements(&mut self, change: &Change<Key, Item>) {
        self.elements(change, true);
    }

    fn elements(&mut self, change: &Change<Key, Item>, add: bool) {
        let (old, new) = (change.old(), change.new_item());
        let (mine, other) = if add { (new, old) } else { (old, new) };
        let Some(mine) = mine else { return };
        match (change.key(), mine) {
            (Key::Frontend(key), Item::Frontend(item)) => {
                let other = match other {
                    Some(Item::Frontend(other)) => Some(other.as_ref()),
                    _ => None,
                };
                self.frontend(key, item, other, add);
            }
            (Key::Firewall(key), Item::Firewall(chain)) => {
                let verdict = Verdict::Jump(chain.to_string());
                self.put_service_key(key);
                self.put(key.family, Map::Firewall, ElementData::Verdict(&verdict), add);
            }
            (Key::Way(family, number), Item::Way(verdict)) => {
                self.key.clear();
                self.key.extend_from_slice(&number.to_ne_bytes());
                self.put(*family, Map::Ways, ElementData::Verdict(verdict), add);
            }
            (Key::ClusterIp(ip), _) if other.is_none() => {
                self.key.clear();
                put_address(&mut self.key, *ip);
                self.put(IpFamily::of(*ip), Map::ClusterIps, ElementData::None, add);
            }
            (Key::Hairpin(ip), _) if other.is_none() => {
                self.key.clear();
                put_address(&mut self.key, *ip);
                put_address(&mut self.key, *ip);
                self.put(IpFamily::of(*ip), Map::Hairpin, ElementData::None, add);
            }
            (Key::LocalhostNodePort(family, port), _) if other.is_none() => {
                self.key.clear();
                self.key.extend_from_slice(&port.to_be_bytes());
                self.put(*family, Map::LocalhostNodePorts, ElementData::None, add);
            }
            _ => {}
        }
    }

    /// The elements of `item` that `other` does not have just so.
    fn frontend(
        &mut self,
        key: &FrontendKey,
        item: &FrontendItem,
        other: Option<&FrontendItem>,
        add: bool,
    ) {
        let maps = FrontendMaps::of(key);
        self.put_service_key(key);
        let service_key_len = self.key.len();
        if let Some(way) = item.way
            && other.and_then(|other| other.way) != Some(way)
        {
            self.put(key.family, maps.services, ElementData::Value(&way.to_ne_bytes()), add);
        }
        let mut value = Vec::with_capacity(20);
        let others = other.map_or(&[] as &[_], |other| &other.slots);
        for (slot, endpoint) in only_in(&item.slots, others) {
            self.key.truncate(service_key_len);
            self.key.extend_from_slice(&slot.to_ne_bytes());
            value.clear();
            put_address(&mut value, endpoint.ip());
            value.extend_from_slice(&endpoint.port().to_be_bytes());
            value.extend_from_slice(&[0; 2]);
            self.put(key.family, maps.endpoints, ElementData::Value(&value), add);
        }
        let others = other.map_or(&[] as &[_], |other| &other.lasting);
        for (slot, lasting) in only_in(&item.lasting, others) {
            self.key.truncate(service_key_len);
            self.key.extend_from_slice(&slot.to_ne_bytes());
            let value = lasting.to_ne_bytes();
            self.put(key.family, maps.lasting, ElementData::Value(&value), add);
        }
        let others = other.map_or(&[] as &[_], |other| &other.live);
        for slot in only_in(&item.live, others) {
            self.key.truncate(service_key_len);
            self.key.extend_from_slice(&slot.to_ne_bytes());
            self.put(key.family, maps.live, ElementData::None, add);
        }
    }

    fn put_service_key(&mut self, key: &FrontendKey) {
        self.key.clear();
        keys::put_service(&mut self.key, key);
    }

    fn put(&mut self, family: IpFamily, map: Map, data: ElementData<'_>, add: bool) {
        let batch = match family {
            IpFamily::V4 => &mut self.v4,
            IpFamily::V6 => &mut self.v6,
        };
        if add {
            batch.add_element(map.name(), &Element::new(&self.key, data));
        } else {
            batch.delete_element(map.name(), &self.key);
        }
    }
}

/// What is in the first of two ordered lists and not in the second.
fn only_in<'a, T: Ord>(mine: &'a [T], others: &'a [T]) -> impl Iterator<Item = &'a T> {
    let mut others = others.iter().peekable();
    mine.iter().filter(move |it| {
        while others.next_if(|other| other < it).is_some() {}
        others.peek() != Some(it)
    })
}

/// The changes, in as few transactions as the bound on their size allows: mostly one.
///
/// Where there are several: chains and ways come first and go last, a service is in one transaction
/// as a whole, and the addresses for which unknown ports are refused come after the services.
fn transactions(changes: &[Change<Key, Item>], bytes_max: usize) -> Vec<Vec<&Change<Key, Item>>> {
    let bytes = |change: &Change<Key, Item>| {
        change.old().map_or(0, item_bytes) + change.new_item().map_or(0, item_bytes)
    };
    if changes.iter().map(bytes).sum::<usize>() <= bytes_max {
        return vec![changes.iter().collect()];
    }
    let mut ordered: Vec<(Stage, u64, &Change<Key, Item>)> =
        changes.iter().map(|change| (Stage::of(change), owner(change), change)).collect();
    ordered.sort_by_key(|(stage, owner, _)| (*stage, *owner));
    let mut all: Vec<Vec<_>> = Vec::new();
    let mut room = 0;
    let together = |one: &(Stage, u64, _), other: &(Stage, u64, _)| match one.0 {
        Stage::Begin | Stage::End => one.0 == other.0,
        Stage::Services => (one.0, one.1) == (other.0, other.1),
        Stage::AddressesGo | Stage::AddressesCome => false,
    };
    for group in ordered.chunk_by(together) {
        let size = group.iter().map(|(.., change)| bytes(change)).sum();
        if size > room {
            all.push(Vec::new());
            room = bytes_max;
        }
        room = room.saturating_sub(size);
        if let Some(transaction) = all.last_mut() {
            transaction.extend(group.iter().map(|(.., change)| *change));
        }
    }
    all
}

/// When a change comes, where there are several transactions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    Begin,
    AddressesGo,
    Services,
    AddressesCome,
    End,
}

impl Stage {
    fn of(change: &Change<Key, Item>) -> Self {
        let goes = change.new_item().is_none();
        match change.key() {
            Key::Chain(..) | Key::Way(..) | Key::Firewall(_) if goes => Self::End,
            Key::Chain(..) | Key::Way(..) | Key::Firewall(_) => Self::Begin,
            Key::ClusterIp(_) if goes => Self::AddressesGo,
            Key::Frontend(_) => Self::Services,
            Key::ClusterIp(_) | Key::Hairpin(_) | Key::LocalhostNodePort(..) => Self::AddressesCome,
        }
    }
}

/// The service that a frontend is, or was, of.
fn owner(change: &Change<Key, Item>) -> u64 {
    let of = |item: &Item| match item {
        Item::Frontend(item) => item.owner.0,
        _ => 0,
    };
    change.new_item().or(change.old()).map_or(0, of)
}

/// About how many bytes an item takes in a transaction.
fn item_bytes(item: &Item) -> usize {
    match item {
        Item::Present => 40,
        Item::Firewall(_) | Item::Way(_) => 100,
        Item::Chain(chain) => 400 + 800 * chain.rules.as_ref().map_or(0, Vec::len),
        Item::Frontend(item) => {
            100 + 80 * item.slots.len() + 60 * (item.lasting.len() + item.live.len())
        }
    }
}

/// An element, understood.
enum ReadEntry {
    Present(Key),
    Firewall(FrontendKey, Arc<str>),
    Way(u32, Option<Verdict>),
    Leads(FrontendKey, u32),
    Slot(FrontendKey, u32, SocketAddr),
    Lasting(FrontendKey, u32, u32),
    Live(FrontendKey, u32),
}

impl ReadEntry {
    fn of(map: Map, family: IpFamily, element: &ReadElement<'_>) -> Option<Self> {
        let mut key = KeyReader::new(family, element.key);
        Some(match map {
            Map::ClusterIps => Self::Present(Key::ClusterIp(key.address()?)),
            Map::Hairpin => Self::Present(Key::Hairpin(key.address()?)),
            Map::LocalhostNodePorts => Self::Present(Key::LocalhostNodePort(family, key.be16()?)),
            Map::Firewall => {
                let chain = match element.verdict() {
                    Some(Verdict::Jump(chain)) => chain,
                    // Not ours: equal to nothing that we want, so it is replaced.
                    _ => String::new(),
                };
                Self::Firewall(key.service(Place::Address)?, chain.into())
            }
            Map::Ways => Self::Way(key.ne32()?, element.verdict()),
            Map::Services | Map::NodePorts => {
                let service = key.service(place_of(map))?;
                let mut value = KeyReader::new(family, element.value?);
                Self::Leads(service, value.ne32()?)
            }
            Map::Endpoints | Map::NodePortEndpoints => {
                let place = place_of(map);
                let (service, slot) = (key.service(place)?, key.ne32()?);
                let mut value = KeyReader::new(family, element.value?);
                Self::Slot(service, slot, SocketAddr::new(value.address()?, value.be16()?))
            }
            Map::Lasting | Map::NodePortLasting => {
                let place = place_of(map);
                let (service, slot) = (key.service(place)?, key.ne32()?);
                let mut value = KeyReader::new(family, element.value?);
                Self::Lasting(service, slot, value.ne32()?)
            }
            Map::Live | Map::NodePortLive => Self::Live(key.service(place_of(map))?, key.ne32()?),
            Map::Affinity | Map::NodePortAffinity => return None,
        })
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
