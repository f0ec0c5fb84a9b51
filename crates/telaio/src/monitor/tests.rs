//! Health at the turning points, and figures that add up.

use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use telaio_model::{Batch, IpFamily};
use telaio_reconcile::{ApplyError, PacerConfig, SyncKind, SyncReport, Syncer, sync_loop};

use telaio_service_proxy::iptables::proxier::{Counters, RuleCounts};

use super::proxy::{CompanionCounts, FamilyCounts, IptablesCounts};
use super::*;

/// Syncs as it is told to.
struct Obedient(Result<SyncReport, ()>);

impl Syncer for Obedient {
    fn sync(&mut self, _: SyncKind) -> Result<SyncReport, ApplyError> {
        self.0.map_err(|()| ApplyError::Permission("applying".into()))
    }
}

fn agent() -> (Arc<Monitor>, Arc<Status>) {
    agent_with("view")
}

fn agent_with(backend: &str) -> (Arc<Monitor>, Arc<Status>) {
    let status = Arc::new(Status::default());
    let facts = Facts {
        command: "run",
        node: Some("loom-a".into()),
        planes: vec!["services".into()],
        backend: Some(backend.into()),
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
fn a_sync_before_the_first_state_makes_nobody_healthy() {
    let (monitor, status) = agent();
    status.touch();
    with_sync(&monitor, Ok(SyncReport::too_early()));
    assert!(monitor.health().is_live() && !monitor.health().is_healthy());
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
    let (monitor, _) = agent();
    let mut health = monitor.health();
    health.pending_age_s = Some(60.0);
    assert!(health.is_live());
    health.pending_age_s = Some(60.1);
    assert!(!health.is_live());
    monitor.set_sync_period(Duration::from_mins(1));
    health.pending_age_s_max = monitor.health().pending_age_s_max;
    assert!(health.is_live(), "two periods of full syncs, as kube-proxy has it");
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

/// The page's lines that are not remarks, by name and labels.
fn samples(monitor: &Arc<Monitor>) -> std::collections::BTreeMap<String, String> {
    let page = monitor.metrics_text().unwrap();
    let mut samples = std::collections::BTreeMap::new();
    for line in page.lines().filter(|line| !line.starts_with('#')) {
        let (name, value) = line.rsplit_once(' ').unwrap();
        let before = samples.insert(name.to_owned(), value.to_owned());
        assert_eq!(before, None, "{name} is there twice");
    }
    samples
}

const FAMILY: &[&str] = &["{ip_family=\"IPv4\"}", "{ip_family=\"IPv6\"}"];
const CODE: &[&str] = &["{code=\"200\"}", "{code=\"503\"}"];
const POLICY: &[&str] = &[
    "{ip_family=\"IPv4\",traffic_policy=\"internal\"}",
    "{ip_family=\"IPv4\",traffic_policy=\"external\"}",
    "{ip_family=\"IPv6\",traffic_policy=\"internal\"}",
    "{ip_family=\"IPv6\",traffic_policy=\"external\"}",
];
const TABLE: &[&str] = &[
    "{ip_family=\"IPv4\",table=\"nat\"}",
    "{ip_family=\"IPv4\",table=\"filter\"}",
    "{ip_family=\"IPv6\",table=\"nat\"}",
    "{ip_family=\"IPv6\",table=\"filter\"}",
];

#[test]
fn every_metric_of_kube_proxys_is_there_from_the_start_with_its_labels() {
    let (monitor, _) = agent();
    let samples = samples(&monitor);
    let page = monitor.metrics_text().unwrap();
    for (name, kind, labels) in [
        ("sync_proxy_rules_duration_seconds", "histogram", FAMILY),
        ("sync_full_proxy_rules_duration_seconds", "histogram", FAMILY),
        ("sync_partial_proxy_rules_duration_seconds", "histogram", FAMILY),
        ("network_programming_duration_seconds", "histogram", FAMILY),
        ("conntrack_reconciler_sync_duration_seconds", "histogram", FAMILY),
        ("sync_proxy_rules_last_timestamp_seconds", "gauge", FAMILY),
        ("sync_proxy_rules_last_queued_timestamp_seconds", "gauge", FAMILY),
        ("sync_proxy_rules_service_changes_pending", "gauge", &[""]),
        ("sync_proxy_rules_endpoint_changes_pending", "gauge", &[""]),
        ("sync_proxy_rules_service_changes_total", "counter", &[""]),
        ("sync_proxy_rules_endpoint_changes_total", "counter", &[""]),
        ("sync_proxy_rules_no_local_endpoints_total", "gauge", POLICY),
        ("sync_proxy_rules_iptables_total", "gauge", TABLE),
        ("sync_proxy_rules_iptables_last", "gauge", TABLE),
        ("sync_proxy_rules_iptables_restore_failures_total", "counter", FAMILY),
        ("sync_proxy_rules_iptables_partial_restore_failures_total", "counter", FAMILY),
        ("sync_proxy_rules_nftables_sync_failures_total", "counter", FAMILY),
        ("sync_proxy_rules_nftables_cleanup_failures_total", "counter", FAMILY),
        ("conntrack_reconciler_deleted_entries_total", "counter", FAMILY),
        ("proxy_healthz_total", "counter", CODE),
        ("proxy_livez_total", "counter", CODE),
    ] {
        // OpenMetrics leaves a counter's ending out of its type.
        let typed = if kind == "counter" { name.trim_end_matches("_total") } else { name };
        let line = format!("# TYPE kubeproxy_{typed} {kind}");
        assert_eq!(page.lines().filter(|l| *l == line).count(), 1, "{line}\n{page}");
        let suffix = if kind == "histogram" { "_count" } else { "" };
        for labels in labels {
            let sample = format!("kubeproxy_{name}{suffix}{labels}");
            let value = samples.get(&sample);
            assert!(value.is_some_and(|value| ["0", "0.0"].contains(&value.as_str())), "{sample}");
        }
    }
}

#[test]
fn a_brain_has_none_of_kube_proxys_metrics() {
    let facts = Facts { command: "brain", source: "kube".into(), ..Facts::default() };
    let monitor = Monitor::new(facts, Arc::new(Status::default()), None);
    assert!(!monitor.metrics_text().unwrap().contains("kubeproxy_"));
}

#[test]
fn histograms_have_kube_proxys_buckets() {
    let (monitor, _) = agent();
    with_sync(&monitor, Ok(SyncReport::default()));
    let samples = samples(&monitor);
    let bounds = |name: &str| -> Vec<f64> {
        let prefix = format!("kubeproxy_{name}_bucket{{le=\"");
        let mut bounds: Vec<f64> = samples
            .keys()
            .filter(|sample| sample.contains("IPv4"))
            .filter_map(|sample| sample.strip_prefix(&prefix)?.split('"').next()?.parse().ok())
            .collect();
        bounds.sort_by(f64::total_cmp);
        bounds
    };
    let doubled: Vec<f64> = (0..15).map(|power| 0.001 * f64::from(1 << power)).collect();
    for name in [
        "sync_proxy_rules_duration_seconds",
        "sync_full_proxy_rules_duration_seconds",
        "sync_partial_proxy_rules_duration_seconds",
        "conntrack_reconciler_sync_duration_seconds",
    ] {
        let found = bounds(name);
        assert_eq!(found.len(), 16, "{name}: {found:?}");
        let near = |(one, other): (&f64, &f64)| (one - other).abs() < 1e-9;
        assert!(found.iter().zip(&doubled).all(near), "{name}: {found:?}");
    }
    let found = bounds("network_programming_duration_seconds");
    assert_eq!(found.len(), 1 + 2 + 59 + 12 + 7 + 1);
    assert_eq!(found[..5], [0.0, 0.25, 0.5, 1.0, 2.0]);
    assert_eq!(found[61..65], [59.0, 60.0, 65.0, 70.0]);
    assert_eq!(found[73..76], [115.0, 120.0, 150.0]);
    assert_eq!(found[80..], [300.0, f64::INFINITY]);
    let full = "kubeproxy_sync_full_proxy_rules_duration_seconds";
    for family in ["IPv4", "IPv6"] {
        assert_eq!(samples[&format!("{full}_count{{ip_family=\"{family}\"}}")], "1");
        let last = format!("{full}_bucket{{le=\"+Inf\",ip_family=\"{family}\"}}");
        assert_eq!(samples[&last], "1");
    }
}

#[test]
fn what_the_proxys_parts_count_is_on_the_page() {
    let (monitor, _) = agent();
    let proxy = monitor.proxy();
    proxy.network_programmed(IpFamily::V4, Duration::from_millis(1500));
    proxy.count_cleanup_failure();
    proxy.set_companions(Box::new(|| {
        let mut counts = CompanionCounts::default();
        counts.conntrack_durations.observe(Duration::from_millis(3));
        counts.v4.conntrack_deleted = 7;
        counts.v6.conntrack_deleted = 8;
        counts.v6 = FamilyCounts { no_local_internal: 2, no_local_external: 1, ..counts.v6 };
        counts
    }));
    proxy.count_probe(Probe::Healthz, true);
    proxy.count_probe(Probe::Healthz, false);
    proxy.count_probe(Probe::Livez, true);
    monitor.changes_seen(ChangesSeen { services: 2, endpoints: 5 });
    let samples = samples(&monitor);
    let programming = "network_programming_duration_seconds_bucket";
    let no_local = "sync_proxy_rules_no_local_endpoints_total";
    for (name, value) in [
        (format!("{programming}{{le=\"1.0\",ip_family=\"IPv4\"}}"), "0"),
        (format!("{programming}{{le=\"2.0\",ip_family=\"IPv4\"}}"), "1"),
        (format!("{programming}{{le=\"+Inf\",ip_family=\"IPv6\"}}"), "0"),
        ("sync_proxy_rules_nftables_cleanup_failures_total{ip_family=\"IPv4\"}".into(), "1"),
        ("sync_proxy_rules_nftables_cleanup_failures_total{ip_family=\"IPv6\"}".into(), "1"),
        ("conntrack_reconciler_deleted_entries_total{ip_family=\"IPv4\"}".into(), "7"),
        ("conntrack_reconciler_deleted_entries_total{ip_family=\"IPv6\"}".into(), "8"),
        ("conntrack_reconciler_sync_duration_seconds_count{ip_family=\"IPv4\"}".into(), "1"),
        (format!("{no_local}{{ip_family=\"IPv6\",traffic_policy=\"internal\"}}"), "2"),
        (format!("{no_local}{{ip_family=\"IPv6\",traffic_policy=\"external\"}}"), "1"),
        ("proxy_healthz_total{code=\"200\"}".into(), "1"),
        ("proxy_healthz_total{code=\"503\"}".into(), "1"),
        ("proxy_livez_total{code=\"200\"}".into(), "1"),
        ("sync_proxy_rules_service_changes_total".into(), "2"),
        ("sync_proxy_rules_endpoint_changes_total".into(), "5"),
        ("sync_proxy_rules_service_changes_pending".into(), "0"),
    ] {
        assert_eq!(
            samples.get(&format!("kubeproxy_{name}")).map(String::as_str),
            Some(value),
            "{name}"
        );
    }
}

#[test]
fn what_the_iptables_backend_counts_is_asked_of_it_at_each_scrape() {
    let (monitor, _) = agent_with("iptables");
    let scrapes = AtomicUsize::new(0);
    monitor.proxy().set_iptables(Box::new(move || {
        // Each time something else, and each figure another.
        let scrape = 100 * scrapes.fetch_add(1, Ordering::Relaxed);
        let of = |family: usize| Counters {
            rules: RuleCounts { nat: scrape + family + 1, filter: scrape + family + 2 },
            rules_last: RuleCounts { nat: scrape + family + 3, filter: scrape + family + 4 },
            failures: (scrape + family + 5) as u64,
            partial_failures: (scrape + family + 6) as u64,
            ..Counters::default()
        };
        IptablesCounts::from([(IpFamily::V4, of(10)), (IpFamily::V6, of(20))])
    }));
    for scrape in [0, 100] {
        let samples = samples(&monitor);
        for (family, base) in [("IPv4", scrape + 10), ("IPv6", scrape + 20)] {
            let table = |table| format!("{{ip_family=\"{family}\",table=\"{table}\"}}");
            for (name, labels, offset) in [
                ("total", table("nat"), 1),
                ("total", table("filter"), 2),
                ("last", table("nat"), 3),
                ("last", table("filter"), 4),
                ("restore_failures_total", format!("{{ip_family=\"{family}\"}}"), 5),
                ("partial_restore_failures_total", format!("{{ip_family=\"{family}\"}}"), 6),
            ] {
                let sample = format!("kubeproxy_sync_proxy_rules_iptables_{name}{labels}");
                assert_eq!(samples[&sample], (base + offset).to_string(), "{sample}");
            }
        }
    }
}

#[test]
fn failed_syncs_of_nftables_are_counted_as_such_and_changes_wait() {
    let (monitor, _) = agent_with("nftables");
    monitor.changes_seen(ChangesSeen { services: 1, endpoints: 1 });
    monitor.changes_seen(ChangesSeen { services: 1, endpoints: 4 });
    with_sync(&monitor, Err(()));
    monitor.changes_seen(ChangesSeen { services: 1, endpoints: 1 });
    let samples = samples(&monitor);
    let failures = "kubeproxy_sync_proxy_rules_nftables_sync_failures_total{ip_family=\"IPv4\"}";
    assert_ne!(samples[failures], "0");
    assert_eq!(samples["kubeproxy_sync_proxy_rules_service_changes_pending"], "2");
    assert_eq!(samples["kubeproxy_sync_proxy_rules_endpoint_changes_pending"], "5");
}

#[test]
fn companions_figures_are_kept_by_family() {
    use telaio_service_proxy::companions::{CompanionFigures, NoLocalEndpoints};
    let mut figures = CompanionFigures::default();
    figures.stale_flows.deleted_total = [(IpFamily::V4, 3), (IpFamily::V6, 4)].into();
    let lacking = NoLocalEndpoints { internal: 1, external: 2 };
    figures.no_local_endpoints.insert(IpFamily::V6, lacking);
    let counts = CompanionCounts::from(figures);
    assert_eq!(counts.v4, FamilyCounts { conntrack_deleted: 3, ..FamilyCounts::default() });
    let expected =
        FamilyCounts { conntrack_deleted: 4, no_local_internal: 1, no_local_external: 2 };
    assert_eq!(counts.v6, expected);
}
