//! The figures of a sync loop.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crate::pacer::SyncKind;
use crate::target::{ApplyError, SyncReport};

/// Upper bounds of a histogram's buckets in microseconds: 0.25 ms, doubled up to 32 s.
const BUCKET_COUNT: usize = 18;
const FIRST_BOUND_US: u64 = 250;

/// How often something took how long, in fixed buckets.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Histogram {
    /// How many fell in each bucket; those above the last bound are only in `count`.
    buckets: [u64; BUCKET_COUNT],
    count: u64,
    sum: Duration,
}

impl Histogram {
    /// Adds one.
    pub fn observe(&mut self, duration: Duration) {
        let bound = self.buckets.iter().enumerate().position(|(i, _)| duration <= Self::bound(i));
        if let Some(bucket) = bound.and_then(|index| self.buckets.get_mut(index)) {
            *bucket += 1;
        }
        self.count += 1;
        self.sum = self.sum.saturating_add(duration);
    }

    /// Each bucket's upper bound, and how many took no longer than that: cumulative, as Prometheus
    /// has it. The bucket without a bound is [`count`](Self::count).
    pub fn cumulative_buckets(&self) -> impl Iterator<Item = (Duration, u64)> + '_ {
        let mut total = 0;
        self.buckets.iter().enumerate().map(move |(index, count)| {
            total += count;
            (Self::bound(index), total)
        })
    }

    /// How many there were.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// How long all of them took together.
    pub fn sum(&self) -> Duration {
        self.sum
    }

    fn bound(index: usize) -> Duration {
        Duration::from_micros(FIRST_BOUND_US << index)
    }
}

/// The figures of a sync loop at one moment.
#[derive(Debug, Clone, Default)]
pub struct SyncStats {
    /// Syncs that ended, well or not.
    pub syncs_total: u64,
    /// Syncs that failed, panics included.
    pub failures_total: u64,
    /// Syncs in which the backend panicked.
    pub panics_total: u64,
    /// Failures since the last success.
    pub failures_in_a_row: u64,
    /// Items mended because somebody else had changed them.
    pub drift_repairs_total: u64,
    /// Items created, changed and removed.
    pub changes_total: u64,
    /// When a sync last ended well.
    pub last_success: Option<SystemTime>,
    /// When a sync was last asked for.
    pub last_queued: Option<SystemTime>,
    /// What the last successful sync did.
    pub last_report: SyncReport,
    /// Why the last sync failed; `None` once one has ended well.
    pub last_error: Option<Arc<str>>,
    /// How long syncs of changes, and drift checks, took.
    pub partial_durations: Histogram,
    /// How long full syncs took.
    pub full_durations: Histogram,
    /// From the oldest request that a sync served to its end.
    pub queue_to_synced: Histogram,
    /// How long the oldest request that is not served yet has been waiting; its sync may be running.
    pub pending_age: Option<Duration>,
    /// A sync is running.
    pub running: bool,
}

impl SyncStats {
    /// Something was asked for that has not been synced yet.
    pub fn pending(&self) -> bool {
        self.pending_age.is_some()
    }

    pub(super) fn record_success(
        &mut self,
        kind: SyncKind,
        report: SyncReport,
        duration: Duration,
    ) {
        self.record(kind, duration);
        self.failures_in_a_row = 0;
        self.last_error = None;
        self.last_success = Some(SystemTime::now());
        self.last_report = report;
        self.changes_total += report.changes() as u64;
        self.drift_repairs_total += report.drift_repairs as u64;
    }

    pub(super) fn record_failure(
        &mut self,
        kind: SyncKind,
        error: &ApplyError,
        duration: Duration,
    ) {
        self.record(kind, duration);
        self.failures_total += 1;
        self.failures_in_a_row += 1;
        if matches!(error, ApplyError::Panicked(_)) {
            self.panics_total += 1;
        }
        self.last_error = Some(error.to_string().into());
    }

    fn record(&mut self, kind: SyncKind, duration: Duration) {
        self.syncs_total += 1;
        match kind {
            SyncKind::Changes | SyncKind::Drift => &mut self.partial_durations,
            SyncKind::Full => &mut self.full_durations,
        }
        .observe(duration);
    }
}
