//! One copy of each text that many objects share.
//!
//! Node names, zones, namespaces, label keys and port names come back in every endpoint of a
//! cluster. Interned, each is held once, and equal texts are mostly equal pointers.
//!
//! ```
//! use telaio_source::intern::Interner;
//!
//! let interner = Interner::default();
//! let first = interner.intern("node-1");
//! let again = interner.intern("node-1");
//! assert!(std::sync::Arc::ptr_eq(&first, &again));
//! ```

use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use parking_lot::Mutex;

/// Below this many texts a shard is never swept.
const SWEEP_AT_MIN: usize = 1_024;

/// More than there are parsing threads, so that they seldom wait for each other.
const SHARDS: usize = 16;

/// Longer texts are not shared.
const TEXT_LEN_MAX: usize = 256;

#[derive(Debug, Default)]
struct Shard {
    texts: HashSet<Arc<str>>,
    /// The size at which texts that nobody else holds are dropped.
    sweep_at: usize,
}

impl Shard {
    fn intern(&mut self, text: &str) -> Arc<str> {
        if let Some(known) = self.texts.get(text) {
            return known.clone();
        }
        if self.texts.len() >= self.sweep_at.max(SWEEP_AT_MIN) {
            self.texts.retain(|text| Arc::strong_count(text) > 1);
            self.sweep_at = self.texts.len() * 2;
        }
        let text: Arc<str> = Arc::from(text);
        self.texts.insert(text.clone());
        text
    }
}

#[derive(Debug, Default)]
struct Inner {
    hasher: RandomState,
    shards: [Mutex<Shard>; SHARDS],
}

/// The shared texts. Cloning gives another handle to the same ones.
///
/// Texts that no object holds any more are dropped when a shard has doubled, so the memory follows
/// the objects in use.
#[derive(Debug, Clone, Default)]
pub struct Interner {
    inner: Arc<Inner>,
}

impl Interner {
    /// The one copy of `text`; a long one, which hardly repeats, is not looked up.
    pub fn intern(&self, text: &str) -> Arc<str> {
        if text.len() > TEXT_LEN_MAX {
            return Arc::from(text);
        }
        let hash = self.inner.hasher.hash_one(text) as usize;
        self.inner.shards[hash % SHARDS].lock().intern(text)
    }

    /// How many texts are held.
    pub fn len(&self) -> usize {
        self.inner.shards.iter().map(|shard| shard.lock().texts.len()).sum()
    }

    /// Whether nothing is held.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_that_nobody_holds_are_dropped() {
        let interner = Interner::default();
        let kept = interner.intern("kept");
        for number in 0..100_000 {
            interner.intern(&format!("passing-{number}"));
        }
        assert!(interner.len() <= SHARDS * SWEEP_AT_MIN, "{} texts are held", interner.len());
        assert!(Arc::ptr_eq(&kept, &interner.intern("kept")));
    }
}
