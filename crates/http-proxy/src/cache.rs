//! A shared HTTP cache (RFC 9111): responses are kept, used again while they are fresh, and validated
//! when they no longer are.
//!
//! ```text
//!   request ─► lookup ─┬─ Hit ──────────────────────────────► client
//!                      ├─ Stale ─► client, and a Fetch behind its back
//!                      ├─ Wait ─► lookup again
//!                      └─ Fetch ─► origin ─► Fetch::response ─┬─ Serve ─► client
//!                                      └──── Fetch::failed    └─ Forward ─► client, and a Writer
//! ```
//!
//! Read it in this order: [`key`] says what a response is found by, `vary` which of several; `control`
//! reads directives, `freshness` works out how long a response can be used, `admit` whether it may be
//! kept at all; `conditional` and `range` are about parts and validators; [`entry`] is one stored response;
//! `index` keeps them, `collapse` has many wait for one fetch, [`lookup`] and [`fetch`] put it all together.
//!
//! What always holds:
//! - The key has scheme, host, port, path, query, route and backend; and everything that steers an
//!   origin's answer is part of it, or keeps a request away from the cache.
//! - What is private, was asked for by somebody known to the origin, or sets a cookie is not kept,
//!   unless the origin says that everybody may have it.
//! - A response is kept only when all of it was there. What was fetched before something was changed or
//!   purged is not kept after it.
//! - The cache decides and never asks the clock, nor the network. Whoever may not make a request must be
//!   refused before the cache is asked.
//! - Bytes, variants, waiters and what is being written have bounds.

mod admit;
mod any_bytes;
mod collapse;
mod conditional;
mod control;
mod date;
pub mod entry;
pub mod fetch;
pub mod fields;
mod freshness;
mod index;
pub mod key;
pub mod lookup;
mod moment;
pub mod purge;
mod range;
pub mod status;
mod structured;
mod vary;

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

pub use admit::NotKept;
pub use any_bytes::check_any_bytes;
pub use collapse::Wait;
pub use entry::CacheEntry;
pub use fetch::{Answer, Fetch, Writer};
pub use fields::Fields;
pub use index::{Epoch, Found};
pub use key::{Key, KeyError, KeyParts, Keyed};
pub use lookup::{Asked, Lookup};
pub use moment::Moment;
pub use purge::{Purge, PurgeError};

use collapse::Flights;
use index::Index;

/// What is being written takes at most this part of what may be kept.
const WRITING_PART: u64 = 4;

/// The bounds of a cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheLimits {
    /// How much is kept in all.
    pub bytes_max: u64,
    /// The largest response that is kept.
    pub entry_bytes_max: u64,
    /// How long a response is kept that is no longer fresh, to be validated, or for when the origin fails.
    pub keep_stale: Duration,
    /// How long a request waits for another's answer before it fetches its own.
    pub wait_max: Duration,
}

impl Default for CacheLimits {
    fn default() -> Self {
        Self {
            bytes_max: 128 << 20,
            entry_bytes_max: 8 << 20,
            keep_stale: Duration::from_hours(24),
            wait_max: Duration::from_secs(5),
        }
    }
}

/// What a cache has done so far, and holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// Answered from the store, fresh or with leave to be stale.
    pub hits: u64,
    /// Answered from the store although stale, as the origin failed.
    pub stale_hits: u64,
    /// Went to the origin with nothing usable in the store.
    pub misses: u64,
    /// Went to the origin to ask whether what is stored holds.
    pub validations: u64,
    /// Went past the cache.
    pub bypasses: u64,
    /// Waited for another's fetch.
    pub collapsed: u64,
    /// Responses that were kept.
    pub stored: u64,
    /// URIs that are kept.
    pub uris: u64,
    /// Bytes that are kept, about.
    pub bytes: u64,
}

#[derive(Debug, Default)]
struct Counters {
    hits: AtomicU64,
    stale_hits: AtomicU64,
    misses: AtomicU64,
    validations: AtomicU64,
    bypasses: AtomicU64,
    collapsed: AtomicU64,
    stored: AtomicU64,
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

#[derive(Debug)]
struct Shared {
    limits: CacheLimits,
    index: Index,
    flights: Arc<Flights>,
    counters: Counters,
    writing_bytes: AtomicU64,
}

/// A shared cache. Clones are the same cache.
#[derive(Debug, Clone)]
pub struct Cache {
    shared: Arc<Shared>,
}

impl Cache {
    /// An empty cache.
    pub fn new(limits: CacheLimits) -> Self {
        let index = Index::new(&limits);
        let shared = Shared {
            limits,
            index,
            flights: Arc::new(Flights::new()),
            counters: Counters::default(),
            writing_bytes: AtomicU64::new(0),
        };
        Self { shared: Arc::new(shared) }
    }

    /// What has happened to a URI so far: to be asked for before its origin is.
    pub fn epoch(&self, key: &Key) -> Epoch {
        self.shared.index.epoch(key.uri())
    }

    /// Keeps a response, in place of an older one to the same requests. False if it is too large, or
    /// something was changed or purged `since`.
    pub fn store(&self, key: &Key, entry: &Arc<CacheEntry>, since: Epoch) -> bool {
        let kept = self.shared.index.put(key.uri(), entry, since);
        if kept {
            count(&self.shared.counters.stored);
        }
        kept
    }

    /// What is stored for a request, fresh or not.
    pub fn retrieve(&self, key: &Key, request: &impl Fields) -> Found {
        self.shared.index.get(key, request)
    }

    /// Takes away what can no longer be of use; how many responses.
    pub fn clean_expired(&self, now: Moment) -> usize {
        let keep = self.shared.limits.keep_stale;
        self.shared.index.sweep(|entry| {
            let freshness = entry.freshness();
            let of_use = entry.has_validator() || freshness.may_be_stale;
            let longest =
                freshness.while_revalidating.max(freshness.if_error.unwrap_or_default()).max(keep);
            entry.is_fresh(now) || (of_use && freshness.staleness(now) < longest)
        })
    }

    /// What it has done, and holds.
    pub fn stats(&self) -> CacheStats {
        let Shared { counters, index, .. } = &*self.shared;
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        CacheStats {
            hits: read(&counters.hits),
            stale_hits: read(&counters.stale_hits),
            misses: read(&counters.misses),
            validations: read(&counters.validations),
            bypasses: read(&counters.bypasses),
            collapsed: read(&counters.collapsed),
            stored: read(&counters.stored),
            uris: index.len() as u64,
            bytes: index.byte_count(),
        }
    }

    fn writing_bytes_max(&self) -> u64 {
        self.shared.limits.bytes_max / WRITING_PART
    }
}
