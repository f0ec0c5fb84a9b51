//! How long to wait after a failure: twice as long each time, never the same for two nodes.

use std::hash::{BuildHasher as _, RandomState};
use std::time::Duration;

/// Waits that double up to a limit, each shortened by chance by up to a half, so that a thousand
/// nodes which lost the API server together do not come back together.
#[derive(Debug, Clone)]
pub(crate) struct Backoff {
    min: Duration,
    max: Duration,
    failures: u32,
}

impl Backoff {
    pub(crate) fn new(min: Duration, max: Duration) -> Self {
        Self { min, max: max.max(min), failures: 0 }
    }

    /// Something went well: the next wait is short again.
    pub(crate) fn reset(&mut self) {
        self.failures = 0;
    }

    /// How often it failed since the last success.
    pub(crate) fn failures(&self) -> u32 {
        self.failures
    }

    /// The wait before the next try.
    pub(crate) fn next_wait(&mut self) -> Duration {
        let doubled = self.min.saturating_mul(1 << self.failures.min(16));
        self.failures = self.failures.saturating_add(1);
        shortened(doubled.min(self.max))
    }
}

/// Between half and all of a duration, by chance: `std` seeds its hash maps so.
pub(crate) fn shortened(full: Duration) -> Duration {
    let bits = RandomState::new().hash_one(0) as u32;
    full.mul_f64(1.0 - f64::from(bits) / f64::from(u32::MAX) / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_to_the_limit_and_start_again() {
        let (min, max) = (Duration::from_millis(100), Duration::from_secs(1));
        let mut backoff = Backoff::new(min, max);
        for doubled_ms in [100, 200, 400, 800, 1_000, 1_000] {
            let wait = backoff.next_wait();
            let doubled = Duration::from_millis(doubled_ms);
            assert!(wait <= doubled && wait >= doubled / 2, "{wait:?} of {doubled:?}");
        }
        backoff.reset();
        assert!(backoff.next_wait() <= min);
        assert_eq!(backoff.failures(), 1);
    }

    #[test]
    fn waits_differ() {
        let waits: std::collections::BTreeSet<Duration> = (0..20)
            .map(|_| Backoff::new(Duration::from_secs(10), Duration::from_secs(10)).next_wait())
            .collect();
        assert!(waits.len() > 1);
    }
}
