//! A hash map in shared pieces: a copy costs a few pointers, and a change one small piece.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::hash::{BuildHasher, Hash};
use std::sync::Arc;

use foldhash::fast::RandomState;

/// How many pieces there are. With ten thousand entries a piece has forty.
const SHARDS: usize = 256;

#[derive(Debug, Clone)]
pub(super) struct Shards<K, V> {
    pieces: Vec<Arc<HashMap<K, V, RandomState>>>,
    hasher: RandomState,
    count: usize,
}

impl<K: Hash + Eq + Clone, V: Clone> Shards<K, V> {
    pub(super) fn new() -> Self {
        let hasher = RandomState::default();
        let empty = Arc::new(HashMap::with_hasher(hasher));
        Self { pieces: vec![empty; SHARDS], hasher, count: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.count
    }

    fn place<Q: Hash + ?Sized>(&self, key: &Q) -> usize {
        // The map within takes the low and the highest bits.
        (self.hasher.hash_one(key) >> 40) as usize % SHARDS
    }

    pub(super) fn get<Q: Hash + Eq + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        self.pieces[self.place(key)].get(key)
    }

    pub(super) fn get_or_default(&mut self, key: &K) -> &mut V
    where
        V: Default,
    {
        let place = self.place(key);
        let piece = Arc::make_mut(&mut self.pieces[place]);
        if !piece.contains_key(key) {
            self.count += 1;
        }
        piece.entry(key.clone()).or_default()
    }

    pub(super) fn insert(&mut self, key: K, value: V) {
        let place = self.place(&key);
        if Arc::make_mut(&mut self.pieces[place]).insert(key, value).is_none() {
            self.count += 1;
        }
    }

    pub(super) fn remove<Q: Hash + Eq + ?Sized>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        let place = self.place(key);
        if !self.pieces[place].contains_key(key) {
            return None;
        }
        self.count -= 1;
        Arc::make_mut(&mut self.pieces[place]).remove(key)
    }

    /// How many pieces are not the other's.
    #[cfg(test)]
    pub(super) fn own_pieces(&self, other: &Self) -> usize {
        let pairs = self.pieces.iter().zip(&other.pieces);
        pairs.filter(|(own, others)| !Arc::ptr_eq(own, others)).count()
    }

    pub(super) fn values(&self) -> impl Iterator<Item = &V> {
        self.pieces.iter().flat_map(|piece| piece.values())
    }
}
