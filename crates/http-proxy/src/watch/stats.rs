//! What is counted on the serving path: relaxed atomics beside the route, nothing else.
//!
//! Each [compiled route](crate::router::Compiled) has its [`RouteStats`], which outlive its changes; those of
//! routes that are gone are added up in one place when nobody counts there any more, so that totals
//! never go backwards.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

use parking_lot::Mutex;

use super::snapshot::{BOUNDS_US, Figures};
use crate::proxy::Outcome;

/// One route's figures while they are counted.
#[derive(Debug, Default)]
pub struct RouteStats {
    classes: [AtomicU64; 5],
    buckets: [AtomicU64; BOUNDS_US.len() + 1],
    duration_us: AtomicU64,
    body_bytes: AtomicU64,
    retries: AtomicU64,
    errors: AtomicU64,
    in_flight: AtomicU64,
    cache_hits: AtomicU64,
    cache_stale: AtomicU64,
    cache_misses: AtomicU64,
}

/// Fewer that are leaving are not looked through.
const LEAVING_MIN: usize = 64;

/// What the cache was for a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CacheUse {
    /// It answered, with what is fresh.
    Hit,
    /// It answered, with what is stale.
    Stale,
    /// The backend had to be asked.
    Miss,
}

impl CacheUse {
    /// As it stands in a log.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Hit => "hit",
            Self::Stale => "stale",
            Self::Miss => "miss",
        }
    }
}

impl RouteStats {
    /// A request is over.
    pub fn count(&self, outcome: &Outcome<'_>) {
        let class = usize::from(outcome.status.as_u16() / 100).clamp(1, 5) - 1;
        self.classes[class].fetch_add(1, Relaxed);
        let took = u64::try_from(outcome.duration.as_micros()).unwrap_or(u64::MAX);
        let bucket = BOUNDS_US.iter().position(|bound| took <= *bound).unwrap_or(BOUNDS_US.len());
        self.buckets[bucket].fetch_add(1, Relaxed);
        self.duration_us.fetch_add(took, Relaxed);
        if outcome.body_bytes > 0 {
            self.body_bytes.fetch_add(outcome.body_bytes, Relaxed);
        }
        if outcome.tries > 1 {
            self.retries.fetch_add(u64::from(outcome.tries - 1), Relaxed);
        }
        if outcome.error.is_some() {
            self.errors.fetch_add(1, Relaxed);
        }
        if let Some(cache) = outcome.cache {
            let counter = match cache {
                CacheUse::Hit => &self.cache_hits,
                CacheUse::Stale => &self.cache_stale,
                CacheUse::Miss => &self.cache_misses,
            };
            counter.fetch_add(1, Relaxed);
        }
    }

    /// A request begins.
    pub(crate) fn begin(&self) {
        self.in_flight.fetch_add(1, Relaxed);
    }

    /// It is no longer under way.
    pub(crate) fn end(&self) {
        self.in_flight.fetch_sub(1, Relaxed);
    }

    /// The figures as they are now.
    pub fn read(&self) -> Figures {
        let get = |counter: &AtomicU64| counter.load(Relaxed);
        Figures {
            statuses: std::array::from_fn(|place| get(&self.classes[place])),
            durations: std::array::from_fn(|place| get(&self.buckets[place])),
            duration_us: get(&self.duration_us),
            body_bytes: get(&self.body_bytes),
            retries: get(&self.retries),
            errors: get(&self.errors),
            in_flight: get(&self.in_flight),
            cache_hits: get(&self.cache_hits),
            cache_stale: get(&self.cache_stale),
            cache_misses: get(&self.cache_misses),
        }
    }
}

/// What is counted for the whole proxy.
#[derive(Debug, Default)]
pub struct ProxyStats {
    /// Requests that no route took.
    pub unrouted: RouteStats,
    /// Connections of clients that are open.
    pub connections: Arc<AtomicUsize>,
    /// Connections that were ever accepted.
    pub accepted: AtomicU64,
    /// Connections that ended before a request could be read: no handshake, no PROXY header.
    pub refused: AtomicU64,
    retired: Mutex<Retired>,
}

#[derive(Debug, Default)]
struct Retired {
    /// Of routes that are gone, where requests may still run.
    leaving: Vec<Arc<RouteStats>>,
    gone: Figures,
    /// From how many on they are looked through.
    fold_at: usize,
}

impl Retired {
    /// Adds up those where nothing runs any more.
    fn fold(&mut self) {
        let Self { leaving, gone, .. } = self;
        leaving.retain(|stats| {
            let in_use = Arc::strong_count(stats) > 1;
            if !in_use {
                gone.add(&stats.read());
            }
            in_use
        });
    }
}

impl ProxyStats {
    /// A route is gone.
    pub(crate) fn retire(&self, stats: Arc<RouteStats>) {
        let mut retired = self.retired.lock();
        // Those where nothing runs go at once, or nobody who asks would mean that they pile up.
        if retired.leaving.len() >= retired.fold_at {
            retired.fold();
            retired.fold_at = retired.leaving.len().max(LEAVING_MIN) * 2;
        }
        retired.leaving.push(stats);
    }

    /// The figures of all routes that are gone.
    pub fn gone(&self) -> Figures {
        let mut retired = self.retired.lock();
        retired.fold();
        let mut all = retired.gone.clone();
        for stats in &retired.leaving {
            all.add(&stats.read());
        }
        all
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

    use std::time::{Duration, Instant};

    use http::StatusCode;

    use super::*;
    use crate::error::ErrorKind;

    fn outcome(status: u16, duration: Duration) -> Outcome<'static> {
        let status = StatusCode::from_u16(status).unwrap();
        Outcome { status, duration, body_bytes: 10, tries: 2, ..Outcome::new(Instant::now()) }
    }

    #[test]
    fn requests_are_counted_by_kind_and_duration() {
        let stats = RouteStats::default();
        stats.begin();
        stats.count(&outcome(200, Duration::from_millis(2)));
        let hit = Outcome { cache: Some(CacheUse::Hit), ..outcome(204, Duration::from_millis(20)) };
        stats.count(&hit);
        let bad =
            Outcome { error: Some(ErrorKind::NoEndpoint), ..outcome(503, Duration::from_mins(1)) };
        stats.count(&bad);
        let figures = stats.read();
        assert_eq!(figures.statuses, [0, 2, 0, 0, 1]);
        assert_eq!((figures.requests(), figures.body_bytes, figures.retries), (3, 30, 3));
        assert_eq!((figures.errors, figures.in_flight, figures.cache_hits), (1, 1, 1));
        assert_eq!(figures.durations.iter().sum::<u64>(), 3);
        stats.end();
        assert_eq!(stats.read().in_flight, 0);
    }

    #[test]
    fn what_a_route_counted_stays_in_the_totals_when_it_is_gone() {
        let all = ProxyStats::default();
        let stats = Arc::new(RouteStats::default());
        stats.count(&outcome(200, Duration::ZERO));
        all.retire(Arc::clone(&stats));
        // A request still runs there, and ends after the route is gone.
        assert_eq!(all.gone().requests(), 1);
        stats.count(&outcome(200, Duration::ZERO));
        drop(stats);
        assert_eq!(all.gone().requests(), 2);
        assert_eq!(all.gone().requests(), 2, "once");
        assert!(all.retired.lock().leaving.is_empty());
        // They do not pile up where nobody asks.
        for _ in 0..10 * LEAVING_MIN {
            all.retire(Arc::default());
        }
        assert!(all.retired.lock().leaving.len() <= 2 * LEAVING_MIN);
    }
}
