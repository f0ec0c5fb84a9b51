//! Rate limits and limits of requests under way, per client.
//!
//! A rate is kept as one number per client: the time at which its flow, if it were even, would have
//! come to now (the generic cell rate algorithm). Who is ahead of that time by more than the burst is
//! turned away. A number in the past says nothing and is forgotten, so memory is that of the clients
//! who came lately, and bounded whatever they do.
//!
//! IPv6 clients are counted by /64: one customer has that many addresses at least.

use std::collections::HashMap;
use std::hash::BuildHasher;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

/// Locks are spread over this many.
const SHARDS: usize = 32;
/// How many clients' flows are remembered in each shard.
const FLOWS_PER_SHARD_MAX: usize = 8192;
/// How many flows are looked at to find one to forget.
const LOOKED_AT: usize = 16;

/// A limit of one route, and a client of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Key {
    limit: u64,
    client: IpAddr,
}

impl Key {
    fn new(limit: u64, client: IpAddr) -> Self {
        let client = match client.to_canonical() {
            IpAddr::V6(address) => {
                let bits = u128::from(address) & !u128::from(u64::MAX);
                IpAddr::V6(Ipv6Addr::from(bits))
            }
            v4 @ IpAddr::V4(_) => v4,
        };
        Self { limit, client }
    }
}

/// A rate as the algorithm wants it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pace {
    /// From one request to the next in an even flow.
    interval_ns: u64,
    /// How far ahead of it a client may be.
    ahead_ns: u64,
}

impl Pace {
    /// `requests` in `per`, and `burst` more at once; `None` if that is no rate.
    pub fn new(requests: u32, per: Duration, burst: u32) -> Option<Self> {
        let per_ns = u64::try_from(per.as_nanos()).ok().filter(|ns| *ns > 0)?;
        let interval_ns = per_ns.checked_div(u64::from(requests))?.max(1);
        Some(Self { interval_ns, ahead_ns: interval_ns.saturating_mul(u64::from(burst)) })
    }
}

/// The flows of all clients.
#[derive(Debug)]
pub struct Rates {
    shards: Vec<Mutex<HashMap<Key, u64>>>,
    hasher: std::hash::RandomState,
}

impl Default for Rates {
    fn default() -> Self {
        let shards = (0..SHARDS).map(|_| Mutex::default()).collect();
        Self { shards, hasher: std::hash::RandomState::new() }
    }
}

impl Rates {
    /// Counts a request at `now_ns` (of any clock that only goes on). If it is too many, how long
    /// the client should wait.
    pub fn take(
        &self,
        limit: u64,
        pace: Pace,
        client: IpAddr,
        now_ns: u64,
    ) -> Result<(), Duration> {
        let key = Key::new(limit, client);
        let mut flows = self.shard(&key).lock();
        let due = flows.get(&key).copied().unwrap_or(0).max(now_ns);
        let ahead = due - now_ns;
        if ahead > pace.ahead_ns {
            return Err(Duration::from_nanos(ahead - pace.ahead_ns));
        }
        if flows.len() >= FLOWS_PER_SHARD_MAX && !flows.contains_key(&key) {
            make_room(&mut flows, now_ns);
        }
        flows.insert(key, due.saturating_add(pace.interval_ns));
        Ok(())
    }

    fn shard(&self, key: &Key) -> &Mutex<HashMap<Key, u64>> {
        &self.shards[self.hasher.hash_one(key) as usize % SHARDS]
    }

    /// How many flows are remembered.
    pub fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().len()).sum()
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Forgets what says nothing any more. If that is nothing, the least of a few: its client is let off
/// a little, and nobody else is any worse.
fn make_room(flows: &mut HashMap<Key, u64>, now_ns: u64) {
    let least = flows.iter().take(LOOKED_AT).min_by_key(|(_, due)| **due);
    let Some((key, due)) = least.map(|(key, due)| (*key, *due)) else { return };
    if due <= now_ns {
        flows.retain(|_, due| *due > now_ns);
    } else {
        flows.remove(&key);
    }
}

/// Requests under way, by client.
#[derive(Debug)]
pub struct UnderWay {
    shards: Vec<Mutex<HashMap<Key, u32>>>,
    hasher: std::hash::RandomState,
}

impl Default for UnderWay {
    fn default() -> Self {
        let shards = (0..SHARDS).map(|_| Mutex::default()).collect();
        Self { shards, hasher: std::hash::RandomState::new() }
    }
}

/// One request under way; the count goes down when it is dropped.
#[derive(Debug)]
pub struct UnderWayGuard {
    all: Arc<UnderWay>,
    key: Key,
}

impl UnderWay {
    /// Counts a request in, unless the client has `max` already.
    pub fn enter(self: &Arc<Self>, limit: u64, client: IpAddr, max: u32) -> Option<UnderWayGuard> {
        let key = Key::new(limit, client);
        let mut counts = self.shard(&key).lock();
        let count = counts.entry(key).or_insert(0);
        if *count >= max {
            if *count == 0 {
                counts.remove(&key);
            }
            return None;
        }
        *count += 1;
        Some(UnderWayGuard { all: Arc::clone(self), key })
    }

    fn shard(&self, key: &Key) -> &Mutex<HashMap<Key, u32>> {
        &self.shards[self.hasher.hash_one(key) as usize % SHARDS]
    }
}

impl Drop for UnderWayGuard {
    fn drop(&mut self) {
        let mut counts = self.all.shard(&self.key).lock();
        if let Some(count) = counts.get_mut(&self.key) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.key);
            }
        }
    }
}

#[cfg(test)]
mod tests;
