//! Time as the cache sees it: an input, never asked for within.

use std::sync::OnceLock;
use std::time::{Duration, Instant, SystemTime};

/// A point in time on two clocks: the wall's, which dates in headers are compared with, and one that
/// never goes back, by which things grow old. A wall clock that is set does not make anything fresh.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moment {
    /// Since 1970.
    wall: Duration,
    /// Since the process first asked.
    steady: Duration,
}

impl Moment {
    /// This moment.
    pub fn now() -> Self {
        static START: OnceLock<Instant> = OnceLock::new();
        let wall = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Self { wall, steady: START.get_or_init(Instant::now).elapsed() }
    }

    /// A moment on the wall clock, for tests: seconds since 1970.
    pub fn at_unix_s(seconds: u64) -> Self {
        Self { wall: Duration::from_secs(seconds), steady: Duration::from_secs(seconds) }
    }

    /// A later moment on both clocks.
    #[must_use]
    pub fn after(self, delay: Duration) -> Self {
        Self { wall: self.wall + delay, steady: self.steady + delay }
    }

    /// Whole seconds since 1970.
    pub fn unix_s(self) -> u64 {
        self.wall.as_secs()
    }

    /// How long ago another moment was; nothing if it is yet to come.
    pub fn since(self, earlier: Self) -> Duration {
        self.steady.saturating_sub(earlier.steady)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_come_one_after_another() {
        let first = Moment::now();
        let second = Moment::now();
        assert!(second.since(first) < Duration::from_mins(1));
        assert_eq!(first.since(first.after(Duration::from_secs(1))), Duration::ZERO);
        assert_eq!(first.after(Duration::from_secs(2)).since(first), Duration::from_secs(2));
    }
}
