use std::sync::mpsc::{Receiver, Sender, channel};

use super::*;

/// Far longer than anything here takes: reaching it is the failure of a test.
const LONG: Duration = Duration::from_mins(1);

type Outcome = Result<SyncReport, ApplyError>;

/// A syncer whose syncs begin and end when the test says so.
struct Puppet {
    began: Sender<SyncKind>,
    outcomes: Receiver<Box<dyn FnOnce() -> Outcome + Send>>,
}

impl Syncer for Puppet {
    fn sync(&mut self, kind: SyncKind) -> Outcome {
        self.began.send(kind).unwrap();
        let outcome = self.outcomes.recv_timeout(LONG).unwrap();
        outcome()
    }
}

/// The strings of a [`Puppet`].
struct Strings {
    began: Receiver<SyncKind>,
    outcomes: Sender<Box<dyn FnOnce() -> Outcome + Send>>,
}

impl Strings {
    fn await_begin(&self) -> SyncKind {
        self.began.recv_timeout(LONG).unwrap()
    }

    fn end(&self, outcome: impl FnOnce() -> Outcome + Send + 'static) {
        self.outcomes.send(Box::new(outcome)).unwrap();
    }

    fn end_well(&self) {
        self.end(|| Ok(SyncReport { created: 2, drift_repairs: 1, ..SyncReport::default() }));
    }
}

/// Short waits, and no periodic sync within the life of a test.
fn quick() -> PacerConfig {
    PacerConfig {
        min_sync_period: Duration::from_millis(1),
        sync_period: LONG * 100,
        backoff_min: Duration::from_millis(1),
        ..PacerConfig::default()
    }
}

fn start(config: PacerConfig) -> (SyncHandle, Strings) {
    let (began_tx, began_rx) = channel();
    let (outcomes_tx, outcomes_rx) = channel();
    let puppet = Puppet { began: began_tx, outcomes: outcomes_rx };
    let handle = spawn("test-sync", config, puppet).unwrap();
    (handle, Strings { began: began_rx, outcomes: outcomes_tx })
}

#[test]
fn a_notification_is_synced_and_counted() {
    let (handle, strings) = start(quick());
    assert!(!handle.stats().pending());
    handle.notify();
    assert_eq!(strings.await_begin(), SyncKind::Full);
    let stats = handle.stats();
    assert!(stats.running && stats.pending(), "not served before the sync has ended");
    strings.end_well();
    assert!(handle.wait_synced(LONG));
    let stats = handle.stats();
    assert!(!stats.running && !stats.pending());
    assert_eq!((stats.syncs_total, stats.failures_total), (1, 0));
    assert_eq!((stats.changes_total, stats.drift_repairs_total), (2, 1));
    assert_eq!((stats.full_durations.count(), stats.partial_durations.count()), (1, 0));
    assert_eq!(stats.queue_to_synced.count(), 1);
    assert!(stats.last_success.is_some() && stats.last_queued.is_some());
    handle.stop();
}

#[test]
fn a_sync_before_anything_is_known_is_no_sync_and_the_first_one_is_full() {
    let (handle, strings) = start(quick());
    handle.drift_suspected();
    strings.await_begin();
    strings.end(|| Ok(SyncReport::too_early()));
    assert!(handle.wait_synced(LONG));
    let stats = handle.stats();
    assert!(!stats.running && !stats.pending());
    assert_eq!((stats.syncs_total, stats.last_success), (0, None));
    handle.notify();
    assert_eq!(strings.await_begin(), SyncKind::Full);
    strings.end_well();
    assert!(handle.wait_synced(LONG));
    assert!(handle.stats().last_success.is_some());
    handle.stop();
}

#[test]
fn any_number_of_notifications_during_a_sync_make_one_more() {
    let (handle, strings) = start(quick());
    handle.notify();
    strings.await_begin();
    for _ in 0..1000 {
        handle.notify();
    }
    handle.drift_suspected();
    strings.end_well();
    assert_eq!(strings.await_begin(), SyncKind::Drift);
    strings.end_well();
    assert!(handle.wait_synced(LONG));
    assert_eq!(handle.stats().syncs_total, 2);
    handle.resync();
    assert_eq!(strings.await_begin(), SyncKind::Full);
    strings.end_well();
    handle.stop();
    assert_eq!(handle.stats().syncs_total, 3);
}

#[test]
fn a_failure_is_retried_and_stays_pending_until_it_succeeds() {
    let (handle, strings) = start(quick());
    handle.notify();
    strings.await_begin();
    strings.end(|| Err(ApplyError::Transient("busy".into())));
    strings.await_begin();
    let stats = handle.stats();
    assert_eq!((stats.failures_total, stats.failures_in_a_row), (1, 1));
    assert!(stats.pending() && stats.last_error.unwrap().contains("busy"));
    strings.end_well();
    assert!(handle.wait_synced(LONG));
    let stats = handle.stats();
    assert_eq!((stats.failures_total, stats.failures_in_a_row), (1, 0));
    assert!(stats.last_error.is_none());
    handle.stop();
}

#[test]
fn a_panic_is_a_failure_that_is_told_and_followed_by_a_full_sync() {
    let (handle, strings) = start(quick());
    handle.notify();
    strings.await_begin();
    strings.end_well();
    assert!(handle.wait_synced(LONG));
    handle.notify();
    assert_eq!(strings.await_begin(), SyncKind::Changes);
    strings.end(|| panic!("a fault of the backend"));
    assert_eq!(strings.await_begin(), SyncKind::Full);
    let stats = handle.stats();
    assert_eq!((stats.panics_total, stats.failures_total), (1, 1));
    assert!(stats.last_error.unwrap().contains("a fault of the backend"));
    strings.end_well();
    assert!(handle.wait_synced(LONG));
    handle.stop();
}

#[test]
fn stop_finishes_the_running_sync_and_begins_no_other() {
    let (handle, strings) = start(quick());
    handle.notify();
    strings.await_begin();
    handle.notify();
    handle.owner.shared.request_stop();
    let stoppers = [handle.clone(), handle.clone()].map(|handle| {
        thread::spawn(move || {
            handle.stop();
            handle.stats()
        })
    });
    strings.end_well();
    for stopper in stoppers {
        let stats = stopper.join().unwrap();
        assert!(!stats.running, "nobody returns before the end");
        assert_eq!(stats.syncs_total, 1);
    }
    handle.stop();
    handle.notify();
    assert!(!handle.wait_synced(LONG), "a loop that has ended serves nobody");
}

#[test]
fn dropping_the_last_handle_ends_the_loop() {
    let (handle, strings) = start(quick());
    drop(handle.clone());
    handle.notify();
    strings.await_begin();
    strings.end_well();
    drop(handle);
    // The puppet goes with its thread, and its end of the channel with it.
    assert!(strings.began.recv_timeout(LONG).is_err());
}

#[test]
fn waiting_gives_up_when_its_time_is_over() {
    let (handle, strings) = start(quick());
    handle.notify();
    strings.await_begin();
    assert!(!handle.wait_synced(Duration::ZERO));
    strings.end_well();
    assert!(handle.wait_synced(LONG));
    handle.stop();
}

#[test]
fn a_shorter_period_ends_a_wait() {
    let (handle, strings) = start(PacerConfig { min_sync_period: LONG * 10, ..quick() });
    handle.notify();
    strings.await_begin();
    strings.end_well();
    assert!(handle.wait_synced(LONG));
    handle.notify();
    handle.set_min_sync_period(Duration::from_millis(1));
    assert_eq!(strings.await_begin(), SyncKind::Changes);
    strings.end_well();
    handle.stop();
}

#[test]
fn a_syncer_may_stop_its_own_loop() {
    let (handle, strings) = start(quick());
    handle.notify();
    strings.await_begin();
    let own = handle.clone();
    strings.end(move || {
        own.stop();
        Ok(SyncReport::default())
    });
    handle.stop();
    assert_eq!(handle.stats().syncs_total, 1);
}

#[test]
fn histograms_are_cumulative_and_keep_what_is_beyond_the_last_bound() {
    let mut histogram = Histogram::default();
    for us in [1, 250, 251, 1_000, 100_000_000] {
        histogram.observe(Duration::from_micros(us));
    }
    let buckets: Vec<_> = histogram.cumulative_buckets().collect();
    assert_eq!(buckets[0], (Duration::from_micros(250), 2));
    assert_eq!(buckets[1], (Duration::from_micros(500), 3));
    assert_eq!(buckets[2], (Duration::from_millis(1), 4));
    assert_eq!(buckets.last().unwrap().1, 4);
    assert_eq!(histogram.count(), 5);
    assert_eq!(histogram.sum(), Duration::from_micros(100_001_502));
}

#[test]
fn jitter_is_a_fraction_and_differs() {
    let drawn: Vec<f64> = (0..16).map(|_| random_fraction()).collect();
    assert!(drawn.iter().all(|fraction| (0.0..=1.0).contains(fraction)));
    assert!(drawn.iter().any(|fraction| fraction.to_bits() != drawn[0].to_bits()));
}
