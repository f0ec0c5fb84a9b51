//! Health at the turning points, and figures that add up.

use std::time::Duration;

use telaio_model::Batch;
use telaio_reconcile::{ApplyError, PacerConfig, SyncKind, SyncReport, Syncer, sync_loop};

use super::*;

/// Syncs as it is told to.
struct Obedient(Result<SyncReport, ()>);

impl Syncer for Obedient {
    fn sync(&mut self, _: SyncKind) -> Result<SyncReport, ApplyError> {
        self.0.map_err(|()| ApplyError::Permission("applying".into()))
    }
}

fn agent() -> (Arc<Monitor>, Arc<Status>) {
    let status = Arc::new(Status::default());
    let facts = Facts {
        command: "run",
        node: Some("loom-a".into()),
        planes: vec!["services".into()],
        backend: Some("view".into()),
        source: "dir:/m".into(),
    };
    (Monitor::new(facts, Arc::clone(&status), Some(Store::new())), status)
}

fn with_sync(monitor: &Monitor, outcome: Result<SyncReport, ()>) {
    let handle = sync_loop::spawn("test", PacerConfig::default(), Obedient(outcome)).unwrap();
    monitor.set_sync_loop(handle.clone());
    handle.notify();
    if outcome.is_ok() {
        assert!(handle.wait_synced(Duration::from_mins(1)));
    } else {
        while handle.stats().failures_total == 0 {
            std::thread::yield_now();
        }
    }
}

#[test]
fn an_agent_is_live_from_the_start_and_healthy_from_its_first_sync_on() {
    let (monitor, status) = agent();
    let health = monitor.health();
    assert!(health.is_live() && !health.is_healthy());
    assert_eq!((health.state_age_s, health.last_sync_age_s), (None, None));
    status.touch();
    status.set_synced();
    assert!(!monitor.health().is_healthy(), "a complete source is not yet a programmed node");
    with_sync(&monitor, Ok(SyncReport::default()));
    assert!(monitor.health().is_healthy());
}

#[test]
fn a_node_that_leaves_is_live_but_not_healthy() {
    let (monitor, _) = agent();
    with_sync(&monitor, Ok(SyncReport::default()));
    monitor.set_node_leaving(true);
    assert!(monitor.health().is_live() && !monitor.health().is_healthy());
    monitor.set_node_leaving(false);
    assert!(monitor.health().is_healthy());
}

#[test]
fn a_source_out_of_touch_does_not_make_a_node_unhealthy() {
    let (monitor, status) = agent();
    status.touch();
    with_sync(&monitor, Ok(SyncReport::default()));
    status.lost();
    let health = monitor.health();
    assert!(health.is_healthy() && !health.source_connected);
    assert!(health.state_age_s.is_some());
}

#[test]
fn a_change_that_waits_too_long_is_not_live() {
    let mut health = agent().0.health();
    health.pending_age_s = Some(PENDING_AGE_MAX.as_secs_f64());
    assert!(health.is_live());
    health.pending_age_s = Some(PENDING_AGE_MAX.as_secs_f64() + 1.0);
    assert!(!health.is_live());
}

#[test]
fn a_failed_sync_is_in_the_report() {
    let (monitor, _) = agent();
    with_sync(&monitor, Err(()));
    let sync = monitor.report().sync.unwrap();
    assert_eq!((sync.syncs, sync.failures), (1, 1));
    assert!(sync.last_error.unwrap().contains("no permission"));
    assert!(!monitor.health().is_healthy());
}

#[test]
fn a_brain_is_healthy_when_its_state_is_complete() {
    let status = Arc::new(Status::default());
    let facts = Facts { command: "brain", source: "kube".into(), ..Facts::default() };
    let store = Store::new();
    let monitor = Monitor::new(facts, Arc::clone(&status), Some(Arc::clone(&store)));
    assert!(!monitor.health().is_healthy());
    store.apply(Batch { changes: vec![], synced: true });
    status.set_synced();
    assert!(monitor.health().is_healthy());
    assert_eq!(monitor.report().store.unwrap().revision, 1);
}

#[test]
fn every_figure_is_on_the_metrics_page_once() {
    let (monitor, status) = agent();
    status.touch();
    with_sync(&monitor, Ok(SyncReport { created: 3, ..SyncReport::default() }));
    monitor.count_reload(true);
    let page = monitor.metrics_text().unwrap();
    for line in [
        "telaio_source_connected 1",
        "telaio_source_state_age_seconds 0.0",
        "telaio_store_services 0",
        "telaio_syncs_total 1",
        "telaio_sync_changes_total 3",
        "telaio_sync_duration_seconds_count{kind=\"full\"} 1",
        "telaio_sync_duration_seconds_bucket{le=\"+Inf\",kind=\"full\"} 1",
        "telaio_sync_duration_seconds_bucket{le=\"+Inf\",kind=\"partial\"} 0",
        "telaio_sync_latency_seconds_count 1",
        "telaio_config_reloads_total 1",
        "telaio_healthy 1",
        "# EOF",
    ] {
        assert_eq!(page.lines().filter(|l| *l == line).count(), 1, "{line}\n{page}");
    }
}

#[test]
fn the_report_survives_its_own_json() {
    let (monitor, _) = agent();
    let report = monitor.report();
    let text = serde_json::to_string(&report).unwrap();
    assert_eq!(serde_json::from_str::<Report>(&text).unwrap(), report);
}
