//! One fetch for many who ask for the same thing at the same time.
//!
//! The first becomes the leader and fetches; the others wait until what it fetched is stored, and look
//! again. If the first is broken off, as when its client goes, the next one leads. Nobody waits longer than
//! a bound, and of what turned out not to be storable everybody fetches their own: the URI is remembered as
//! barren for a while, so that nobody waits for it in vain.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;

use super::moment::Moment;

#[cfg(test)]
mod tests;

/// How many may wait for one fetch; further ones fetch themselves.
const WAITERS_MAX: usize = 4096;
/// How long nobody waits for a URI whose response was not storable.
const BARREN: Duration = Duration::from_secs(10);
const BARREN_SLOTS: usize = 4096;
const SHARDS: usize = 16;

/// What is being fetched.
#[derive(Debug)]
pub(crate) struct Flights {
    /// By digest. Two things with the same digest wait for each other once, and look again.
    shards: Vec<Mutex<HashMap<u64, Flight>>>,
    /// A table of fixed size that forgets: the upper half is of the digest, the lower is until when.
    barren: Vec<AtomicU64>,
}

#[derive(Debug)]
struct Flight {
    done: watch::Receiver<bool>,
    waiting: usize,
}

/// What a request is to do.
pub(crate) enum Role {
    /// Fetch, while others wait.
    Lead(Leader),
    /// Wait.
    Wait(Wait),
    /// Fetch for itself.
    Alone,
}

/// Others wait until this is dropped.
#[derive(Debug)]
pub(crate) struct Leader {
    flights: Arc<Flights>,
    digest: u64,
    /// Whether it is known what the fetch came to.
    ended: watch::Sender<bool>,
}

/// Someone else fetches it.
#[derive(Debug)]
pub struct Wait {
    done: watch::Receiver<bool>,
}

impl Flights {
    pub(crate) fn new() -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            barren: (0..BARREN_SLOTS).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    /// Joins those who ask for the same.
    pub(crate) fn join(self: &Arc<Self>, digest: u64, now: Moment) -> Role {
        if self.is_barren(digest, now) {
            return Role::Alone;
        }
        let mut flights = self.shards[digest as usize % SHARDS].lock();
        if let Some(flight) = flights.get_mut(&digest) {
            if flight.waiting >= WAITERS_MAX {
                return Role::Alone;
            }
            flight.waiting += 1;
            return Role::Wait(Wait { done: flight.done.clone() });
        }
        let (ended, done) = watch::channel(false);
        flights.insert(digest, Flight { done, waiting: 0 });
        Role::Lead(Leader { flights: Arc::clone(self), digest, ended })
    }

    fn slot(&self, digest: u64) -> &AtomicU64 {
        &self.barren[digest as usize % BARREN_SLOTS]
    }

    fn is_barren(&self, digest: u64, now: Moment) -> bool {
        let value = self.slot(digest).load(Ordering::Relaxed);
        value >> 32 == digest >> 32 && steady_s(now) < value & u64::from(u32::MAX)
    }

    /// Remembers that waiting for this is of no use.
    pub(crate) fn mark_barren(&self, digest: u64, now: Moment) {
        let until = steady_s(now) + BARREN.as_secs();
        let value = (digest >> 32 << 32) | (until & u64::from(u32::MAX));
        self.slot(digest).store(value, Ordering::Relaxed);
    }
}

fn steady_s(now: Moment) -> u64 {
    now.since(Moment::at_unix_s(0)).as_secs()
}

impl Leader {
    /// What is fetched is of no use to others.
    pub(crate) fn found_barren(self, now: Moment) {
        self.flights.mark_barren(self.digest, now);
        self.ends();
    }

    /// What it came to is known: nobody need try the same.
    pub(crate) fn ends(&self) {
        self.ended.send_replace(true);
    }
}

impl Drop for Leader {
    fn drop(&mut self) {
        self.flights.shards[self.digest as usize % SHARDS].lock().remove(&self.digest);
    }
}

impl Wait {
    /// Waits until the fetch has ended, well or not, or the time is over; whether it was broken off, so that
    /// somebody else should lead.
    pub async fn until_done(mut self, longest: Duration) -> bool {
        // Until the sender is gone: then it can be led again.
        let gone = async { while self.done.changed().await.is_ok() {} };
        tokio::time::timeout(longest, gone).await.is_ok() && !*self.done.borrow()
    }
}
