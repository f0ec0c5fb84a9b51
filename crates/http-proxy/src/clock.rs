//! Time and chance, cheaply: nanoseconds since the process began, and random numbers per thread.

use std::cell::Cell;
use std::hash::{BuildHasher, RandomState};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

static START: LazyLock<Instant> = LazyLock::new(Instant::now);

/// Nanoseconds since the process began; never 0.
pub(crate) fn nanos(now: Instant) -> u64 {
    #[cfg(test)]
    if let Some(frozen) = FROZEN_NS.get() {
        return frozen;
    }
    nanos_of(now.saturating_duration_since(*START)) + 1
}

#[cfg(test)]
thread_local! {
    static FROZEN_NS: Cell<Option<u64>> = const { Cell::new(None) };
}

/// Lets this much time pass on this thread, and no more.
#[cfg(test)]
pub(crate) fn freeze_after(by: Duration) {
    FROZEN_NS.set(Some(nanos(Instant::now()) + nanos_of(by)));
}

/// A duration in nanoseconds, as long as that goes.
pub(crate) fn nanos_of(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// A random number: good enough to spread load and to name requests, not to keep secrets.
pub(crate) fn chance() -> u64 {
    thread_local! {
        static STATE: Cell<u64> = Cell::new(RandomState::new().hash_one(0) | 1);
    }
    STATE.with(|state| {
        // xorshift64*
        let mut x = state.get();
        x ^= x >> 12;
        x ^= x << 25;
        x ^= x >> 27;
        state.set(x);
        x.wrapping_mul(0x2545_f491_4f6c_dd1d)
    })
}

/// Mixes the bits of a number, so that near numbers are far apart.
pub(crate) fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// A hash that is the same in every process: FNV-1a, then mixed.
pub(crate) fn stable_hash(bytes: &[u8]) -> u64 {
    let fold = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    mix(bytes.iter().fold(0xcbf2_9ce4_8422_2325, fold))
}
