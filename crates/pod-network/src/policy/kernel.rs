//! The tables in the kernel: reading what is there, and changing it in one transaction.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use telaio_model::IpFamily;
use telaio_netlink::NetlinkError;
use telaio_netlink::nftables::{
    Batch, Chain, ChainKind, Element, ElementData, Family, Hook, Nftables, ReadChain, ReadElement,
    ReadRule, Touched,
};
use telaio_reconcile::target::compile_by_parts;
use telaio_reconcile::{
    Applied, ApplyError, Change, ItemsNow, Observed, PartialTarget, Target, TouchTarget,
};

use super::compile::{ChainItem, ElementKey, Item, Key, compile_part};
use super::layout::{Map, TABLE, nft_family};
use super::world::{Part, World};

/// Above how many touched elements everything is read instead.
const TOUCHED_MAX: usize = 4096;

/// The tables of this network namespace.
#[derive(Debug)]
pub struct Kernel {
    nft: Nftables,
    families: Vec<IpFamily>,
    /// Which families have a table. Known after [`Target::observe`].
    tables: BTreeMap<IpFamily, bool>,
}

impl Kernel {
    /// Opens the kernel of this network namespace. Needs the privilege to administer networks.
    pub fn open(families: &[IpFamily]) -> Result<Self, NetlinkError> {
        Ok(Self { nft: Nftables::open()?, families: families.to_vec(), tables: BTreeMap::new() })
    }

    /// The address of the socket that changes go through.
    pub fn port(&self) -> u32 {
        self.nft.port()
    }

    /// The connection, for what is in the tables and not compiled.
    pub(super) fn nft(&mut self) -> &mut Nftables {
        &mut self.nft
    }

    /// The ruleset's generation: as long as it stays the same nobody has changed any table.
    pub fn generation(&mut self) -> Option<u32> {
        self.nft.generation().ok()
    }

    fn read(&mut self) -> Result<BTreeMap<Key, Item>, NetlinkError> {
        let mut items = BTreeMap::new();
        for family in self.families.clone() {
            let is_there = self.nft.has_live_table(nft_family(family), TABLE)?;
            self.tables.insert(family, is_there);
            if is_there {
                self.read_table(family, &mut items)?;
            }
        }
        Ok(items)
    }

    fn read_table(
        &mut self,
        family: IpFamily,
        items: &mut BTreeMap<Key, Item>,
    ) -> Result<(), NetlinkError> {
        let of = nft_family(family);
        let mut rules: BTreeMap<String, Vec<ReadRule>> = BTreeMap::new();
        for rule in self.nft.rules(of, TABLE)? {
            rules.entry(rule.chain.clone()).or_default().push(rule);
        }
        for chain in self.nft.chains(of, TABLE)? {
            let its_rules = rules.remove(&chain.name).unwrap_or_default();
            let key = Key::Chain(family, chain.name.as_str().into());
            items.insert(key, Item::Chain(Arc::new(read_chain(chain, its_rules))));
        }
        for set in self.nft.sets(of, TABLE)? {
            let key = Key::Set(family, set.name.as_str().into());
            let map = Map::named(&set.name).filter(|map| {
                let lengths = map.lengths(family);
                set.key_len == lengths.0 && (map.is_verdicts() || set.data_len == lengths.1)
            });
            items.insert(key, if map.is_some() { Item::Set } else { Item::Foreign });
            // What others put there is not ours to judge.
            let Some(map) = map.filter(|map| !map.is_mailbox()) else { continue };
            let mut found: Vec<(Key, Item)> = Vec::new();
            self.nft.elements(of, TABLE, &set.name, |element| match element {
                None => found.clear(),
                Some(element) => found.extend(read_element(family, map, element)),
            })?;
            items.extend(found);
        }
        Ok(())
    }

    /// What is there of what was touched; `None` if that is better found out by reading everything.
    fn read_touched(&mut self, touched: &Touched) -> Result<Option<ItemsNow<Self>>, NetlinkError> {
        let count: usize = touched.elements.values().map(BTreeSet::len).sum();
        if touched.anything || count > TOUCHED_MAX {
            return Ok(None);
        }
        let family_of = |nft: Family| IpFamily::ALL.into_iter().find(|it| nft_family(*it) == nft);
        let mut items: ItemsNow<Self> = Vec::with_capacity(count);
        for (nft, name) in touched.rules.union(&touched.chains) {
            let Some(family) = family_of(*nft) else { return Ok(None) };
            let item = match self.nft.chain(*nft, TABLE, name)? {
                Some(chain) => {
                    let rules = self.nft.rules_of(*nft, TABLE, name)?;
                    Some(Item::Chain(Arc::new(read_chain(chain, rules))))
                }
                None => None,
            };
            items.push((Key::Chain(family, name.as_str().into()), item));
        }
        for ((nft, name), keys) in &touched.elements {
            let (Some(family), Some(map)) = (family_of(*nft), Map::named(name)) else {
                return Ok(None);
            };
            if map.is_mailbox() {
                continue;
            }
            let mut all_told = true;
            let keys = keys.iter().map(Vec::as_slice);
            self.nft.elements_at(*nft, TABLE, name, keys, |key, element| {
                let at = ElementKey::new(key).map(|key| Key::Element(family, map, key));
                all_told &= at.is_some();
                let item = element.map(|element| element_item(map, element));
                items.extend(at.map(|at| (at, item)));
            })?;
            if !all_told {
                return Ok(None);
            }
        }
        Ok(Some(items))
    }

    fn write(&mut self, changes: &[Change<Key, Item>]) -> Result<(), NetlinkError> {
        let mut batches: Vec<Batch> = Vec::new();
        for family in self.families.clone() {
            let mut writer = FamilyWriter::new(family);
            if self.tables.get(&family) != Some(&true) {
                // Put to sleep by somebody, it would be there and do nothing.
                writer.begin.add_table();
                writer.begin.delete_table();
                writer.begin.add_table();
            }
            let ours: Vec<&Change<Key, Item>> =
                changes.iter().filter(|change| change.key().family() == family).collect();
            writer.write(&ours);
            batches.extend(writer.batches());
        }
        self.nft.commit(&mut batches.iter_mut().collect::<Vec<_>>())?;
        for family in &self.families {
            self.tables.insert(*family, true);
        }
        Ok(())
    }
}

impl Target for Kernel {
    type Input = World;
    type Key = Key;
    type Item = Item;

    fn compile(&self, world: &World) -> BTreeMap<Key, Item> {
        compile_by_parts(self, world)
    }

    fn observe(&mut self) -> Result<Observed<Key, Item>, ApplyError> {
        Ok(Observed::new(self.read().map_err(apply_error)?))
    }

    fn apply(&mut self, changes: &[Change<Key, Item>]) -> Result<(), ApplyError> {
        self.write(changes).map_err(apply_error)
    }
}

impl PartialTarget for Kernel {
    type Part = Part;

    fn parts(&self, world: &World) -> Vec<Part> {
        world.parts()
    }

    fn compile_part(&self, world: &World, part: &Part) -> Vec<(Key, Item)> {
        compile_part(world, part, &self.families)
    }
}

impl TouchTarget for Kernel {
    type Touched = Touched;

    fn observe_touched(
        &mut self,
        touched: &Touched,
        _applied: &Applied<'_, Key, Item>,
    ) -> Result<Option<ItemsNow<Self>>, ApplyError> {
        self.read_touched(touched).map_err(apply_error)
    }
}

/// The messages about one family's table, in the order in which the kernel can take them.
struct FamilyWriter {
    family: IpFamily,
    /// Tables; rules, elements, sets and chains that go.
    begin: Batch,
    /// Sets and chains that come, then rules.
    middle: Batch,
    rules: Batch,
    /// Elements that come.
    end: Batch,
}

impl FamilyWriter {
    fn new(family: IpFamily) -> Self {
        let batch = || Batch::new(nft_family(family), TABLE);
        Self { family, begin: batch(), middle: batch(), rules: batch(), end: batch() }
    }

    fn batches(self) -> [Batch; 4] {
        [self.begin, self.middle, self.rules, self.end]
    }

    fn write(&mut self, changes: &[&Change<Key, Item>]) {
        let old = |change: &&&Change<Key, Item>| change.old().is_some();
        for change in changes.iter().filter(old) {
            if let Key::Chain(_, name) = change.key() {
                self.begin.flush_chain(name);
            }
        }
        for change in changes.iter().filter(old) {
            if let Key::Element(_, map, key) = change.key() {
                self.begin.delete_element(&map.name(), key.bytes());
            }
        }
        for change in changes.iter().filter(old) {
            match (change.key(), change.old(), change.new_item()) {
                (Key::Set(_, name), ..) => self.begin.delete_set(name),
                (Key::Chain(_, name), Some(Item::Chain(old)), Some(Item::Chain(new)))
                    if old.chain != new.chain =>
                {
                    self.begin.delete_chain(name);
                }
                (Key::Chain(_, name), _, None) => self.begin.delete_chain(name),
                _ => {}
            }
        }
        for change in changes {
            self.add(change);
        }
    }

    fn add(&mut self, change: &Change<Key, Item>) {
        match (change.key(), change.new_item()) {
            (Key::Set(_, name), Some(_)) => {
                if let Some(map) = Map::named(name) {
                    map.with_spec(self.family, |spec| self.middle.add_set(spec));
                }
            }
            (Key::Chain(..), Some(Item::Chain(item))) => {
                self.middle.add_chain(&item.chain);
                for rule in item.rules.iter().flatten() {
                    self.rules.add_rule(&item.chain.name, rule, None);
                }
            }
            (Key::Element(_, map, key), Some(item)) => {
                let number;
                let data = match item {
                    Item::Value(value) => {
                        number = value.to_ne_bytes();
                        ElementData::Value(&number)
                    }
                    Item::Verdict(verdict) => ElementData::Verdict(verdict),
                    _ => ElementData::None,
                };
                self.end.add_element(&map.name(), &Element::new(key.bytes(), data));
            }
            _ => {}
        }
    }
}

fn read_chain(chain: ReadChain, rules: Vec<ReadRule>) -> ChainItem {
    let base = chain.base.map(|(kind, hook, priority)| {
        let kind = match kind.as_str() {
            "filter" => ChainKind::Filter,
            "nat" => ChainKind::Nat,
            _ => return None,
        };
        Some((kind, Hook::from_number(hook)?, priority)).filter(|_| !chain.refuses)
    });
    let is_readable = !matches!(base, Some(None));
    let rules: Option<Vec<_>> = rules.into_iter().map(|rule| rule.expressions).collect();
    ChainItem {
        chain: Chain { name: chain.name, base: base.flatten() },
        rules: rules.filter(|_| is_readable),
    }
}

fn read_element(family: IpFamily, map: Map, element: &ReadElement<'_>) -> Option<(Key, Item)> {
    let key = ElementKey::new(element.key)?;
    Some((Key::Element(family, map, key), element_item(map, element)))
}

fn element_item(map: Map, element: &ReadElement<'_>) -> Item {
    let item = if map.is_verdicts() {
        element.verdict().map(Item::Verdict)
    } else if map.has_values() {
        let bytes = element.value.and_then(|value| value.try_into().ok());
        bytes.map(|bytes| Item::Value(u32::from_ne_bytes(bytes)))
    } else {
        Some(Item::Present)
    };
    item.unwrap_or(Item::Foreign)
}

/// Removes our tables; tells what that was.
pub fn cleanup() -> Result<Vec<String>, NetlinkError> {
    let listed = Nftables::open().and_then(|mut nft| {
        let tables = nft.tables()?;
        Ok((nft, tables))
    });
    let (mut nft, tables) = match listed {
        Ok(listed) => listed,
        // Where there are no tables at all there are none of ours.
        Err(error) if error.is_unsupported() => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let ours: Vec<Family> =
        tables.into_iter().filter(|(_, name)| name == TABLE).map(|(family, _)| family).collect();
    let mut batches: Vec<Batch> = Vec::new();
    for family in &ours {
        let mut batch = Batch::new(*family, TABLE);
        batch.delete_table();
        batches.push(batch);
    }
    nft.commit(&mut batches.iter_mut().collect::<Vec<_>>())?;
    Ok(ours.iter().map(|family| format!("nftables table {family} {TABLE}")).collect())
}

fn apply_error(error: NetlinkError) -> ApplyError {
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
