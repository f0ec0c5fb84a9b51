//! Changes as transactions: in which order the kernel can take them, and how much one holds.

use telaio_model::IpFamily;
use telaio_netlink::nftables::{Batch, Element, ElementData, Verdict};
use telaio_reconcile::Change;

use crate::nftables::compile::{FrontendItem, FrontendKey, Item, Key};
use crate::nftables::keys::{self, put_address};
use crate::nftables::layout::{Map, TABLE, nft_family};

/// The changes of one transaction.
type Changes<'a> = [&'a Change<Key, Item>];

/// By how much each map grows.
#[derive(Debug, Default)]
pub(super) struct Growth([[i64; Map::ALL.len()]; 2]);

impl Growth {
    pub(super) fn of<'a>(changes: impl IntoIterator<Item = &'a Change<Key, Item>>) -> Self {
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
                maps[Map::Firewall as usize] += size(usize::from(item.sources.is_some()));
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

    pub(super) fn get(&self, family: IpFamily, map: Map) -> i64 {
        self.0[family as usize][map as usize]
    }
}

/// The map that holds a key that is one element.
fn set_of(key: &Key) -> Option<Map> {
    match key {
        Key::ClusterIp(_) => Some(Map::ClusterIps),
        Key::Hairpin(_) => Some(Map::Hairpin),
        Key::LocalhostNodePort(..) => Some(Map::LocalhostNodePorts),
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

/// The messages about one family's table, in the order in which the kernel gets them.
struct FamilyWriter {
    /// What makes tables, maps, chains and rules.
    begin: Batch,
    /// The elements of each map, apart: those that follow each other share a message, and the kernel
    /// takes many in one message much faster than one in many.
    elements: [Batch; Map::ALL.len()],
    /// What takes chains away.
    end: Batch,
}

impl FamilyWriter {
    fn new(family: IpFamily) -> Self {
        let batch = || Batch::new(nft_family(family), TABLE);
        Self { begin: batch(), elements: Map::ALL.map(|_| batch()), end: batch() }
    }
}

/// Writes changes in an order that the kernel can take.
pub(super) struct TransactionWriter {
    v4: FamilyWriter,
    v6: FamilyWriter,
    key: Vec<u8>,
}

impl TransactionWriter {
    pub(super) fn new() -> Self {
        Self {
            v4: FamilyWriter::new(IpFamily::V4),
            v6: FamilyWriter::new(IpFamily::V6),
            key: Vec::with_capacity(64),
        }
    }

    fn family(&mut self, family: IpFamily) -> &mut FamilyWriter {
        match family {
            IpFamily::V4 => &mut self.v4,
            IpFamily::V6 => &mut self.v6,
        }
    }

    /// What comes before all elements.
    pub(super) fn begin(&mut self, family: IpFamily) -> &mut Batch {
        &mut self.family(family).begin
    }

    pub(super) fn batches(&mut self) -> Vec<&mut Batch> {
        let families = [&mut self.v4, &mut self.v6].into_iter();
        let in_order = families.flat_map(|FamilyWriter { begin, elements, end }| {
            [begin].into_iter().chain(elements).chain([end])
        });
        in_order.collect()
    }

    pub(super) fn write(&mut self, changes: &Changes<'_>) {
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
        let batch = self.begin(change.key().family());
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
        let batch = self.begin(change.key().family());
        for rule in new.rules.iter().flatten() {
            batch.add_rule(&new.chain.name, &rule.expressions, None);
        }
    }

    fn empty_chain(&mut self, change: &Change<Key, Item>) {
        if let Change::Delete { key, old: Item::Chain(old) } = change {
            self.family(key.family()).end.flush_chain(&old.chain.name);
        }
    }

    fn remove_chain(&mut self, change: &Change<Key, Item>) {
        if let Change::Delete { key, old: Item::Chain(old) } = change {
            self.family(key.family()).end.delete_chain(&old.chain.name);
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
        if let Some(chain) = &item.sources
            && other.and_then(|other| other.sources.as_ref()) != Some(chain)
        {
            let verdict = Verdict::Jump(chain.to_string());
            self.put(key.family, Map::Firewall, ElementData::Verdict(&verdict), add);
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
            IpFamily::V4 => &mut self.v4.elements[map as usize],
            IpFamily::V6 => &mut self.v6.elements[map as usize],
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
pub(super) fn transactions(
    changes: &[Change<Key, Item>],
    bytes_max: usize,
) -> Vec<Vec<&Change<Key, Item>>> {
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
            Key::Chain(..) | Key::Way(..) if goes => Self::End,
            Key::Chain(..) | Key::Way(..) => Self::Begin,
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
        Item::Way(_) => 100,
        Item::Chain(chain) => 400 + 800 * chain.rules.as_ref().map_or(0, Vec::len),
        Item::Frontend(item) => {
            100 + 80 * item.slots.len() + 60 * (item.lasting.len() + item.live.len())
        }
    }
}
