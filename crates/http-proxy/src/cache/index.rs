//! Where entries are kept: by URI, within a bound of bytes.
//!
//! All entries of one URI are one item of the store: invalidation takes them away together, and a
//! look-up is one hash and a walk over the few variants. What to keep is decided by quick_cache (S3-FIFO):
//! what was asked for only once leaves before what was asked for again, so a crawler does not empty the
//! cache.
//!
//! What always holds: the store's bytes are bounded by the limits, one entry's and one URI's are a small
//! part of them, and a flood of variants costs only its own URI's other variants.

use std::hash::{BuildHasher, Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use foldhash::quality::RandomState;
use parking_lot::Mutex;
use quick_cache::sync::{Cache as Store, DefaultLifecycle};
use quick_cache::{OptionsBuilder, Weighter};

use super::CacheLimits;
use super::entry::CacheEntry;
use super::fields::Fields;
use super::key::Key;
use super::vary::Selector;

/// How many variants of one URI are kept.
pub(crate) const VARIANTS_MAX: usize = 32;
/// One URI's variants take at most this part of a shard.
const RESOURCE_PART: u64 = 2;
/// One entry takes at most this part of a shard.
const ENTRY_PART: u64 = 4;
const SHARDS_MAX: usize = 32;
/// Writers to URIs that fall to the same lock wait for each other.
const LOCKS: usize = 64;
/// Epochs are counted for groups of URIs, so that their number is bounded. The more groups, the less
/// often somebody else's change keeps a response out.
const EPOCHS: usize = 1 << 16;

/// All that is kept of one URI.
#[derive(Debug, Default)]
pub(crate) struct Resource {
    entries: Vec<Arc<CacheEntry>>,
}

impl Resource {
    #[cfg(test)]
    pub(crate) fn entries(&self) -> &[Arc<CacheEntry>] {
        &self.entries
    }

    fn byte_count(&self) -> u64 {
        self.entries.iter().map(|entry| entry.byte_count() as u64).sum()
    }
}

#[derive(Debug, Clone)]
struct ByBytes;

impl Weighter<Arc<str>, Arc<Resource>> for ByBytes {
    fn weight(&self, uri: &Arc<str>, resource: &Arc<Resource>) -> u64 {
        128 + uri.len() as u64 + resource.byte_count()
    }
}

type Entries =
    Store<Arc<str>, Arc<Resource>, ByBytes, RandomState, DefaultLifecycle<Arc<str>, Arc<Resource>>>;

/// The store.
#[derive(Debug)]
pub(crate) struct Index {
    entries: Entries,
    hasher: RandomState,
    locks: Vec<Mutex<()>>,
    epochs: Vec<AtomicU32>,
    purges: AtomicU32,
    entry_bytes_max: u64,
    resource_bytes_max: u64,
}

/// What a look-up found.
#[derive(Debug, Default)]
pub struct Found {
    /// The response that answers the request, fresh or not.
    pub entry: Option<Arc<CacheEntry>>,
    /// The newest for that URI, if it is another.
    pub(crate) newest: Option<Arc<CacheEntry>>,
}

impl Found {
    /// Whether there is anything for that URI.
    pub(crate) fn anything(&self) -> bool {
        self.entry.is_some() || self.newest.is_some()
    }

    /// What requests for that URI are told apart by, as far as is known.
    pub(crate) fn selector(&self, request: &impl Fields) -> Option<Selector> {
        let entry = self.newest.as_ref().or(self.entry.as_ref())?;
        Some(entry.selector().for_request(request))
    }
}

/// What a URI's group had gone through at some time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Epoch(u32, u32);

impl Index {
    pub(crate) fn new(limits: &CacheLimits) -> Self {
        let bytes_max = limits.bytes_max.max(1 << 20);
        let entry_bytes_max = limits.entry_bytes_max.clamp(1, bytes_max / ENTRY_PART);
        // As many shards as leave room for the largest entry, several times over, in each.
        let fitting = (bytes_max / (entry_bytes_max * ENTRY_PART)).max(1);
        let shards = usize::try_from(fitting).unwrap_or(SHARDS_MAX).min(SHARDS_MAX);
        let shards = if shards.is_power_of_two() { shards } else { shards.next_power_of_two() / 2 };
        let items = usize::try_from(bytes_max / (8 << 10)).unwrap_or(usize::MAX).max(shards * 64);
        let options = OptionsBuilder::new()
            .shards(shards)
            .estimated_items_capacity(items)
            .weight_capacity(bytes_max)
            .build();
        let hasher = RandomState::default();
        let entries = match options {
            Ok(options) => {
                Store::with_options(options, ByBytes, hasher, DefaultLifecycle::default())
            }
            // Only for options that are missing.
            Err(_) => Store::with(items, bytes_max, ByBytes, hasher, DefaultLifecycle::default()),
        };
        Self {
            entries,
            hasher,
            locks: (0..LOCKS).map(|_| Mutex::new(())).collect(),
            epochs: (0..EPOCHS).map(|_| AtomicU32::new(0)).collect(),
            purges: AtomicU32::new(0),
            entry_bytes_max,
            resource_bytes_max: bytes_max / shards as u64 / RESOURCE_PART,
        }
    }

    /// The entry that answers a request.
    pub(crate) fn get(&self, key: &Key, request: &impl Fields) -> Found {
        let Some(resource) = self.entries.get(key.uri()) else { return Found::default() };
        let mut of_place =
            resource.entries.iter().rev().filter(|entry| entry.place() == key.place());
        let Some(newest) = of_place.next() else { return Found::default() };
        if newest.answers(request) {
            return Found { entry: Some(Arc::clone(newest)), newest: None };
        }
        let entry = of_place.find(|entry| entry.answers(request)).cloned();
        Found { entry, newest: Some(Arc::clone(newest)) }
    }

    /// Keeps an entry, in place of the one that it replaces. False if it is too large, or belongs to an
    /// epoch that is over.
    pub(crate) fn put(&self, uri: &str, entry: &Arc<CacheEntry>, since: Epoch) -> bool {
        if entry.byte_count() as u64 > self.entry_bytes_max {
            self.forget(uri, entry);
            return false;
        }
        // Of a group the epoch changes under the same lock. Purges do not wait for each lock: an entry that
        // came in while one began is looked at again.
        let is_current = || since == self.epoch(uri);
        let mut kept = false;
        self.change(uri, |entries| {
            if !is_current() {
                return;
            }
            entries.retain(|other| !entry.replaces(other));
            entries.push(Arc::clone(entry));
            self.trim(entries);
            kept = true;
        });
        if kept && !is_current() {
            self.forget(uri, entry);
            return false;
        }
        kept
    }

    /// Takes the variants away that were used longest ago, until the rest is within its bounds.
    fn trim(&self, entries: &mut Vec<Arc<CacheEntry>>) {
        let bytes = |entries: &[Arc<CacheEntry>]| {
            entries.iter().map(|entry| entry.byte_count() as u64).sum::<u64>()
        };
        while entries.len() > 1
            && (entries.len() > VARIANTS_MAX || bytes(entries) > self.resource_bytes_max)
        {
            let older = &entries[..entries.len() - 1];
            let oldest = older.iter().enumerate().min_by_key(|(_, entry)| entry.last_used_ms());
            let Some((place, _)) = oldest else { return };
            entries.remove(place);
        }
    }

    /// Takes an entry away, and what it would have replaced.
    pub(crate) fn forget(&self, uri: &str, entry: &CacheEntry) {
        self.change(uri, |entries| entries.retain(|other| !entry.replaces(other)));
    }

    /// Changes what is kept of a URI.
    fn change(&self, uri: &str, change: impl FnOnce(&mut Vec<Arc<CacheEntry>>)) {
        let _writing = self.locks[self.number(uri) as usize % LOCKS].lock();
        let known = self.entries.peek(uri);
        let mut entries =
            known.as_ref().map(|resource| resource.entries.clone()).unwrap_or_default();
        change(&mut entries);
        if entries.is_empty() {
            if known.is_some() {
                self.entries.remove(uri);
            }
        } else {
            self.entries.insert(uri.into(), Arc::new(Resource { entries }));
        }
    }

    /// Takes everything of a URI away, and what is being fetched for it; whether there was something.
    pub(crate) fn remove(&self, uri: &str) -> bool {
        let _writing = self.locks[self.number(uri) as usize % LOCKS].lock();
        self.epochs[self.number(uri) as usize % EPOCHS].fetch_add(1, Ordering::AcqRel);
        self.entries.remove(uri).is_some()
    }

    /// Takes the URIs away that are picked, and everything that is being fetched; how many.
    pub(crate) fn purge(&self, picks: impl Fn(&str) -> bool) -> usize {
        self.purges.fetch_add(1, Ordering::AcqRel);
        let before = self.entries.len();
        self.entries.retain(|uri, _| !picks(uri));
        before.saturating_sub(self.entries.len())
    }

    /// How many URIs are picked.
    pub(crate) fn count(&self, picks: impl Fn(&str) -> bool) -> usize {
        self.entries.iter().filter(|(uri, _)| picks(uri)).count()
    }

    /// Keeps only the entries that are picked; how many went.
    pub(crate) fn sweep(&self, keeps: impl Fn(&CacheEntry) -> bool) -> usize {
        let with_chaff: Vec<Arc<str>> = self
            .entries
            .iter()
            .filter(|(_, resource)| resource.entries.iter().any(|entry| !keeps(entry)))
            .map(|(uri, _)| uri)
            .collect();
        let mut gone = 0;
        for uri in with_chaff {
            self.change(&uri, |entries| {
                let before = entries.len();
                entries.retain(|entry| keeps(entry));
                gone += before - entries.len();
            });
        }
        gone
    }

    /// Where a URI's group stands now: what was fetched before a removal must not be kept after it.
    pub(crate) fn epoch(&self, uri: &str) -> Epoch {
        let group = self.epochs[self.number(uri) as usize % EPOCHS].load(Ordering::Acquire);
        Epoch(group, self.purges.load(Ordering::Acquire))
    }

    /// A number for a URI, place and variant.
    pub(crate) fn digest(&self, key: &Key, selector: Option<&Selector>) -> u64 {
        let mut hasher = self.hasher.build_hasher();
        key.hash(&mut hasher);
        if let Some(selector) = selector {
            selector.digest(&mut hasher);
        }
        hasher.finish()
    }

    fn number(&self, uri: &str) -> u64 {
        self.hasher.hash_one(uri)
    }

    /// How many URIs are kept.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// How many bytes are kept, about.
    pub(crate) fn byte_count(&self) -> u64 {
        self.entries.weight()
    }

    /// The largest entry that is kept.
    pub(crate) fn entry_bytes_max(&self) -> u64 {
        self.entry_bytes_max
    }

    /// Some URI's entries.
    #[cfg(test)]
    pub(crate) fn resource(&self, uri: &str) -> Option<Arc<Resource>> {
        self.entries.peek(uri)
    }
}
