//! What is wanted, what is applied, and the deltas between the two.
//!
//! KPNG's diff store. A cycle is: [`get`](DiffStore::get) or [`set`](DiffStore::set) what is wanted,
//! end it with [`done`](DiffStore::done), act on [`changed`](DiffStore::changed) and
//! [`deleted`](DiffStore::deleted), then [`reset`](DiffStore::reset).
//!
//! There are two ways to run a cycle:
//! - **full**: touch everything that is wanted, then `done`: what was not touched is deleted;
//! - **incremental**: `set` and [`delete`](DiffStore::delete) single keys, then
//!   [`done_incremental`](DiffStore::done_incremental): what was not touched stays.
//!
//! What always holds:
//! - Values are compared by content. Setting what is already applied is no delta, and neither is a
//!   change that was taken back before it was applied.
//! - A delta lives until it is applied. If applying failed, begin the next cycle with
//!   [`reset_keeping_deltas`](DiffStore::reset_keeping_deltas): what is still true of them is there
//!   again.
//! - A value is stored once; only a delta holds two. Listing deltas costs O(deltas), in key order.
//!
//! ```
//! use telaio_reconcile::DiffStore;
//!
//! let mut store = DiffStore::new();
//! store.set("web", 80);
//! store.set("dns", 53);
//! store.done();
//! assert_eq!(store.changed().map(|d| *d.key).collect::<Vec<_>>(), ["dns", "web"]);
//! store.reset(); // both were applied
//!
//! // A full cycle: `dns` is not touched, so it goes.
//! store.set("web", 8080);
//! store.done();
//! let web = store.changed().next().unwrap();
//! assert_eq!((web.old, web.new), (Some(&80), Some(&8080)));
//! assert_eq!(*store.deleted().next().unwrap().key, "dns");
//!
//! // Applying failed: the deltas stay. An incremental cycle takes one of them back.
//! store.reset_keeping_deltas();
//! store.set("web", 80);
//! store.done_incremental();
//! assert_eq!(store.changed().count(), 0);
//! assert_eq!(store.deleted().count(), 1);
//! ```

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use crate::patch::Operation;

#[cfg(test)]
mod tests;

/// Where more than one key in so many differs, deltas are found by walking instead of searching.
const WALK_SHARE: usize = 8;

/// One difference between what is wanted and what is applied.
#[derive(Debug, PartialEq, Eq)]
pub struct Delta<'a, K, V> {
    /// What it is about.
    pub key: &'a K,
    /// What is applied; `None` if nothing is.
    pub old: Option<&'a V>,
    /// What is wanted; `None` if it has to go.
    pub new: Option<&'a V>,
}

impl<K, V> Clone for Delta<'_, K, V> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<K, V> Copy for Delta<'_, K, V> {}

impl<K, V> Delta<'_, K, V> {
    /// What has to be done about it.
    pub fn operation(&self) -> Operation {
        match (self.old, self.new) {
            (None, Some(_)) => Operation::Create,
            (Some(_), Some(_)) => Operation::Update,
            (Some(_), None) => Operation::Delete,
            (None, None) => Operation::NoOp,
        }
    }
}

#[derive(Debug, Clone)]
struct Slot<V> {
    value: V,
    /// The cycle that touched it last.
    cycle: u64,
}

/// A map of what is wanted that knows how it differs from what is applied. See the
/// [module](self) for how a cycle runs.
#[derive(Debug, Clone)]
pub struct DiffStore<K, V> {
    wanted: BTreeMap<K, Slot<V>>,
    /// For each key where the two differ, what is applied. Never equal to what is wanted.
    differing: BTreeMap<K, Option<V>>,
    /// What is applied is not known, so no differences are kept until [`DiffStore::rebase`].
    blind: bool,
    cycle: u64,
    /// How many of `wanted` this cycle has touched; lets a full cycle without deletes skip the scan.
    touched_count: usize,
}

impl<K, V> Default for DiffStore<K, V> {
    fn default() -> Self {
        Self {
            wanted: BTreeMap::new(),
            differing: BTreeMap::new(),
            blind: false,
            cycle: 0,
            touched_count: 0,
        }
    }
}

impl<K: Ord + Clone, V: Eq> DiffStore<K, V> {
    /// An empty store: nothing is wanted and nothing is applied.
    pub fn new() -> Self {
        Self::default()
    }

    /// What is wanted at `key`; touches it, so that a full cycle keeps it.
    pub fn get(&mut self, key: &K) -> Option<&V> {
        let slot = self.wanted.get_mut(key)?;
        if slot.cycle != self.cycle {
            slot.cycle = self.cycle;
            self.touched_count += 1;
        }
        Some(&slot.value)
    }

    /// What is wanted at `key`, without touching it.
    pub fn peek(&self, key: &K) -> Option<&V> {
        self.wanted.get(key).map(|slot| &slot.value)
    }

    /// What is applied at `key`.
    pub fn applied(&self, key: &K) -> Option<&V> {
        match self.differing.get(key) {
            Some(applied) => applied.as_ref(),
            None => self.peek(key),
        }
    }

    /// Wants `value` at `key`, and touches it.
    pub fn set(&mut self, key: K, value: V) {
        let slot = match self.wanted.entry(key.clone()) {
            Entry::Vacant(vacant) => {
                vacant.insert(Slot { value, cycle: self.cycle });
                self.touched_count += 1;
                self.note_difference(key, None);
                return;
            }
            Entry::Occupied(occupied) => occupied.into_mut(),
        };
        if slot.cycle != self.cycle {
            slot.cycle = self.cycle;
            self.touched_count += 1;
        }
        let same = slot.value == value;
        let before = std::mem::replace(&mut slot.value, value);
        if !same {
            self.note_difference(key, Some(before));
        }
    }

    /// Wants nothing at `key` any more. Says whether something was wanted.
    pub fn delete(&mut self, key: &K) -> bool {
        let Some((key, slot)) = self.wanted.remove_entry(key) else {
            return false;
        };
        if slot.cycle == self.cycle {
            self.touched_count -= 1;
        }
        self.note_difference(key, Some(slot.value));
        true
    }

    /// What is wanted at `key` was `before` and is now something else. If the two agreed until now,
    /// `before` is what is applied; if not, they may agree now.
    fn note_difference(&mut self, key: K, before: Option<V>) {
        if self.blind {
            return;
        }
        match self.differing.entry(key) {
            Entry::Vacant(vacant) => {
                vacant.insert(before);
            }
            Entry::Occupied(occupied) => {
                let wanted = self.wanted.get(occupied.key()).map(|slot| &slot.value);
                if occupied.get().as_ref() == wanted {
                    occupied.remove();
                }
            }
        }
    }

    /// What is applied is not known any more: there are no deltas until [`rebase`](Self::rebase)
    /// tells it, and until then changes cost less.
    pub fn forget_applied(&mut self) {
        self.differing.clear();
        self.blind = true;
    }

    /// Ends a full cycle: what it did not touch is deleted.
    pub fn done(&mut self) {
        if self.touched_count == self.wanted.len() {
            return;
        }
        let untouched: Vec<K> = self
            .wanted
            .iter()
            .filter(|(_, slot)| slot.cycle != self.cycle)
            .map(|(key, _)| key.clone())
            .collect();
        for key in &untouched {
            self.delete(key);
        }
    }

    /// Ends an incremental cycle: what it did not touch stays.
    pub fn done_incremental(&mut self) {
        self.begin_cycle();
    }

    /// Every delta, in key order.
    pub fn deltas(&self) -> impl Iterator<Item = Delta<'_, K, V>> {
        // Where much differs, walking both maps side by side is cheaper than searching one.
        let walk = self.differing.len() > self.wanted.len() / WALK_SHARE;
        let mut wanted = self.wanted.iter().peekable();
        self.differing.iter().map(move |(key, applied)| {
            let new = if walk {
                while wanted.next_if(|(other, _)| *other < key).is_some() {}
                wanted.next_if(|(other, _)| *other == key).map(|(_, slot)| &slot.value)
            } else {
                self.peek(key)
            };
            Delta { key, old: applied.as_ref(), new }
        })
    }

    /// The deltas that create or update, in key order.
    pub fn changed(&self) -> impl Iterator<Item = Delta<'_, K, V>> {
        self.deltas().filter(|delta| delta.new.is_some())
    }

    /// The deltas that delete, in key order.
    pub fn deleted(&self) -> impl Iterator<Item = Delta<'_, K, V>> {
        self.deltas().filter(|delta| delta.new.is_none())
    }

    /// Whether there is any delta, deletes included.
    pub fn has_changes(&self) -> bool {
        !self.differing.is_empty()
    }

    /// How many deltas there are.
    pub fn delta_count(&self) -> usize {
        self.differing.len()
    }

    /// Begins the next cycle; the deltas were applied.
    pub fn reset(&mut self) {
        self.differing.clear();
        self.begin_cycle();
    }

    /// Begins the next cycle; the deltas were not applied and stay pending.
    pub fn reset_keeping_deltas(&mut self) {
        self.begin_cycle();
    }

    /// The delta at `key` was applied, whatever becomes of the others.
    pub fn commit_key(&mut self, key: &K) {
        self.differing.remove(key);
    }

    /// Takes `applied` as what is applied in truth, and works out every delta anew.
    pub fn rebase(&mut self, applied: BTreeMap<K, V>) {
        self.blind = false;
        let mut wanted = self.wanted.iter().peekable();
        let mut differing = Vec::new();
        for (key, value) in applied {
            while let Some((missing, _)) = wanted.next_if(|(other, _)| **other < key) {
                differing.push((missing.clone(), None));
            }
            let same = wanted.next_if(|(other, _)| **other == key);
            if same.is_none_or(|(_, slot)| slot.value != value) {
                differing.push((key, Some(value)));
            }
        }
        differing.extend(wanted.map(|(missing, _)| (missing.clone(), None)));
        // In order already, so the map is built in one go.
        self.differing = differing.into_iter().collect();
    }

    /// Takes `applied` as what is applied at `key` in truth, whatever was thought so far.
    pub fn rebase_key(&mut self, key: K, applied: Option<V>) {
        if applied.as_ref() == self.peek(&key) {
            self.differing.remove(&key);
        } else {
            self.differing.insert(key, applied);
        }
    }

    /// Wants `value` at `key`, if nothing is wanted there yet; else gives both back.
    pub fn set_new(&mut self, key: K, value: V) -> Result<(), (K, V)> {
        match self.wanted.entry(key) {
            Entry::Occupied(occupied) => Err((occupied.key().clone(), value)),
            Entry::Vacant(vacant) => {
                let key = (!self.blind).then(|| vacant.key().clone());
                vacant.insert(Slot { value, cycle: self.cycle });
                self.touched_count += 1;
                if let Some(key) = key {
                    self.note_difference(key, None);
                }
                Ok(())
            }
        }
    }

    /// Wants all of these, each key once and in order, where nothing was wanted before: much cheaper
    /// than one after the other.
    pub(crate) fn fill(&mut self, values: Vec<(K, V)>) {
        debug_assert!(self.wanted.is_empty(), "only an empty store can be filled");
        let cycle = self.cycle;
        self.touched_count = values.len();
        if !self.blind {
            self.differing = values.iter().map(|(key, _)| (key.clone(), None)).collect();
        }
        self.wanted = values.into_iter().map(|(key, value)| (key, Slot { value, cycle })).collect();
    }

    /// Everything that is wanted, in key order.
    pub fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.wanted.iter().map(|(key, slot)| (key, &slot.value))
    }

    /// How many keys are wanted.
    pub fn len(&self) -> usize {
        self.wanted.len()
    }

    /// Whether nothing is wanted.
    pub fn is_empty(&self) -> bool {
        self.wanted.is_empty()
    }

    fn begin_cycle(&mut self) {
        self.cycle += 1;
        self.touched_count = 0;
    }
}
