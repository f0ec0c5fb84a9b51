//! Looking just where somebody else has been.
//!
//! Reading a whole table back takes the kernel longer the larger it is, and more than in proportion:
//! seconds, where there are many endpoints. The kernel's notices say which elements and chains a
//! transaction touched, so only those are read. What was not touched is as we left it.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;

use telaio_model::IpFamily;
use telaio_netlink::NetlinkError;
use telaio_netlink::nftables::{Family, Touched};
use telaio_reconcile::{Applied, ApplyError, Change, ItemsNow, TouchTarget};

use super::elements::{self, ReadEntry, Spot};
use super::transaction::Growth;
use super::{Kernel, apply_error, read_chain};
use crate::nftables::compile::{FrontendItem, FrontendKey, Item, Key};
use crate::nftables::layout::{Map, TABLE, nft_family};

/// What is there now, by key.
type Now = BTreeMap<Key, Option<Item>>;

impl TouchTarget for Kernel {
    type Touched = Touched;

    fn observe_touched(
        &mut self,
        touched: &Touched,
        applied: &Applied<'_, Key, Item>,
    ) -> Result<Option<ItemsNow<Self>>, ApplyError> {
        let complete = |kernel: &Self| kernel.tables.values().all(|table| table.complete);
        if touched.anything || self.anew || !complete(self) {
            return Ok(None);
        }
        self.reads.count_touched();
        let mut now = Now::new();
        if !self.look_at_elements(touched, applied, &mut now).map_err(apply_error)? {
            return Ok(None);
        }
        self.look_at_chains(touched, applied, &mut now).map_err(apply_error)?;
        self.count_others_changes(&now, applied);
        Ok(Some(now.into_iter().collect()))
    }
}

impl Kernel {
    /// The family of a table of ours, if we have one of that family.
    fn own_family(&self, family: Family) -> Option<IpFamily> {
        self.families.iter().copied().find(|it| nft_family(*it) == family)
    }

    /// Whether all that was found is such as we write.
    fn look_at_elements(
        &mut self,
        touched: &Touched,
        applied: &Applied<'_, Key, Item>,
        now: &mut Now,
    ) -> Result<bool, NetlinkError> {
        let mut frontends: BTreeMap<FrontendKey, FrontendItem> = BTreeMap::new();
        let mut told = true;
        for ((family, set), keys) in &touched.elements {
            let Some(own) = self.own_family(*family) else { continue };
            let Some(map) = Map::ALL.into_iter().find(|map| map.name() == set) else {
                return Ok(false);
            };
            // Packets change these all the time, and so may others.
            if map.is_dynamic() {
                continue;
            }
            let keys = keys.iter().map(Vec::as_slice);
            self.nft.elements_at(*family, TABLE, set, keys, |key, element| {
                let entry = element.map(|element| ReadEntry::of(map, own, element));
                told &= !matches!(entry, Some(None));
                // A key that we never write, and nothing there any more.
                let Some(spot) = Spot::of(map, own, key) else { return };
                let entry = entry.flatten();
                let Key::Frontend(at) = spot.key() else {
                    let item = match entry {
                        Some(ReadEntry::Item(_, item)) => Some(item),
                        _ => None,
                    };
                    now.insert(spot.key(), item);
                    return;
                };
                let item = match frontends.entry(at) {
                    Entry::Occupied(known) => known.into_mut(),
                    Entry::Vacant(vacant) => vacant.insert(left_at(&spot.key(), applied)),
                };
                spot.clear(item);
                if let Some(entry) = entry {
                    elements::put(item, entry);
                }
            })?;
        }
        now.extend(frontends.into_iter().map(|(key, mut item)| {
            elements::sort(&mut item);
            let is_there = item != FrontendItem::default();
            (Key::Frontend(key), is_there.then(|| Item::Frontend(Arc::new(item))))
        }));
        Ok(told)
    }

    fn look_at_chains(
        &mut self,
        touched: &Touched,
        applied: &Applied<'_, Key, Item>,
        now: &mut Now,
    ) -> Result<(), NetlinkError> {
        for (family, name) in touched.chains.union(&touched.rules) {
            let Some(own) = self.own_family(*family) else { continue };
            let key = Key::Chain(own, name.as_str().into());
            let chain = self.nft.chain(*family, TABLE, name)?;
            if chain.is_some() && applied.get(&key).is_none() {
                // One that we do not have may be one of ours with another name.
                self.look_at_all_chains(own, applied, now)?;
                continue;
            }
            let item = match chain {
                Some(chain) => Some(read_chain(chain, self.nft.rules_of(*family, TABLE, name)?)),
                None => None,
            };
            now.insert(key, item.map(|item| Item::Chain(Arc::new(item))));
        }
        Ok(())
    }

    fn look_at_all_chains(
        &mut self,
        family: IpFamily,
        applied: &Applied<'_, Key, Item>,
        now: &mut Now,
    ) -> Result<(), NetlinkError> {
        let of_family = |key: &&Key| matches!(key, Key::Chain(of, _) if *of == family);
        now.extend(applied.keys().filter(of_family).map(|key| (key.clone(), None)));
        let mut found = BTreeMap::new();
        self.observe_chains(family, &mut found)?;
        now.extend(found.into_iter().map(|(key, item)| (key, Some(item))));
        Ok(())
    }

    /// Keeps the number of elements of each map right: what comes now is counted from here on.
    fn count_others_changes(&mut self, now: &Now, applied: &Applied<'_, Key, Item>) {
        let changes: Vec<Change<Key, Item>> = now
            .iter()
            .filter_map(|(key, now)| {
                let (key, old) = (key.clone(), applied.get(key).cloned());
                Some(match (old, now.clone()) {
                    (None, Some(new)) => Change::Create { key, new },
                    (Some(old), Some(new)) => Change::Update { key, old, new },
                    (Some(old), None) => Change::Delete { key, old },
                    (None, None) => return None,
                })
            })
            .collect();
        self.count(&Growth::of(&changes));
    }
}

/// A frontend as we left it; an empty one where we left none.
fn left_at(key: &Key, applied: &Applied<'_, Key, Item>) -> FrontendItem {
    match applied.get(key) {
        Some(Item::Frontend(item)) => item.as_ref().clone(),
        _ => FrontendItem::default(),
    }
}
