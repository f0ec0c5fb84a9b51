//! How everything is: figures and the overview.

use std::time::Duration;

use telaio_gui::Figures;
use telaio_gui::agent::now_ms;
use telaio_gui::values::State;
use telaio_gui::values::overview::{
    Attention, Counts, Overview, PlaneHealth, SourceHealth, SyncHealth,
};
use telaio_reconcile::SyncStats;
use telaio_reconcile::sync_loop::Histogram;
use telaio_source::SourceSpec;

use super::AdminAgent;

/// How many of the source's problems are told.
const PROBLEMS_MAX: usize = 20;

impl AdminAgent {
    /// The figures but for HTTP.
    pub(super) fn health_figures(&self) -> Figures {
        let health = self.monitor.health();
        let mut figures = Figures {
            healthy: health.is_healthy(),
            planes: self.planes(),
            source_age_s: health.state_age_s,
            ..Figures::default()
        };
        for handle in self.monitor.sync_loops() {
            let stats = handle.stats();
            figures.syncs += stats.syncs_total;
            figures.sync_failures += stats.failures_total;
            figures.changes += stats.changes_total;
            figures.drift_repairs += stats.drift_repairs_total;
        }
        figures
    }

    fn planes(&self) -> Vec<PlaneHealth> {
        let report = self.monitor.facts();
        let health = self.monitor.health();
        let source = self.monitor.source();
        let mut planes = vec![PlaneHealth {
            name: "source".to_owned(),
            state: match (source.is_connected(), source.is_synced()) {
                (true, true) if source.problems().is_empty() => State::Ok,
                (false, false) => State::Error,
                _ => State::Warning,
            },
            summary: match (source.is_connected(), source.is_synced()) {
                (true, true) => match source.problems().len() {
                    0 => "in touch, everything is read".to_owned(),
                    1 => "in touch; one object cannot be read".to_owned(),
                    count => format!("in touch; {count} objects cannot be read"),
                },
                (true, false) => "in touch, the first state is not complete".to_owned(),
                (false, true) => "out of touch; the last state stands".to_owned(),
                (false, false) => "no contact yet".to_owned(),
            },
        }];
        for name in &report.planes {
            if report.command == "brain" {
                continue;
            }
            let (state, summary) = match name.as_str() {
                "ingress" => self.ingress_health(),
                name => {
                    let stats = match name {
                        "pods" => self.monitor.pods_stats(),
                        _ => self.monitor.sync_loop().map(telaio_reconcile::SyncHandle::stats),
                    };
                    let backend = (name == "services").then(|| report.backend.clone()).flatten();
                    loop_health(stats.as_ref(), backend.as_deref(), health.pending_age_s_max)
                }
            };
            planes.push(PlaneHealth { name: name.clone(), state, summary });
        }
        planes
    }

    #[cfg_attr(not(unix), expect(clippy::unused_self, reason = "there is no ingress plane"))]
    fn ingress_health(&self) -> (State, String) {
        #[cfg(unix)]
        if let Some(ingress) = self.monitor.ingress() {
            if self.asked.hangs() {
                let message = "the worker does not answer; requests may wait, and what is shown of \
                               them is old";
                return (State::Error, message.to_owned());
            }
            return if ingress.is_serving() {
                (State::Ok, format!("serving {} routes", ingress.routes()))
            } else {
                (State::Idle, "the first routes are being loaded".to_owned())
            };
        }
        (State::Idle, "it starts".to_owned())
    }

    /// The overview but for what lists tell.
    pub(super) fn make_overview(&self) -> Overview {
        let facts = self.monitor.facts();
        let health = self.monitor.health();
        let report = self.monitor.report();
        let problems = self.monitor.source().problems();
        let mut attention = Vec::new();
        let mut look = |state, kind: &str, message: String| {
            attention.push(Attention {
                state,
                kind: kind.to_owned(),
                object: None,
                route: None,
                endpoint: None,
                message,
            });
        };
        if !report.source.connected {
            look(State::Error, "source", format!("{}: out of touch", report.source.spec));
        }
        for problem in problems.iter().take(PROBLEMS_MAX) {
            look(State::Warning, "source", problem.to_string());
        }
        let syncs = self.syncs();
        for sync in &syncs {
            if let Some(error) = &sync.last_error {
                look(State::Error, "sync", format!("{}: {error}", sync.plane));
            }
        }
        if health.node_leaving {
            look(State::Warning, "sync", "this node is about to go".to_owned());
        }
        Overview {
            at_ms: now_ms(),
            version: report.version,
            command: report.command,
            pid: report.pid,
            node: facts.node.clone(),
            started_ms: self.started_ms,
            uptime_s: report.uptime_s,
            healthy: report.healthy,
            planes: self.planes(),
            source: SourceHealth {
                kind: match self.spec {
                    SourceSpec::Dir(_) => "dir",
                    SourceSpec::Kube(_) => "kube",
                    SourceSpec::Brain(_) => "brain",
                }
                .to_owned(),
                spec: report.source.spec,
                connected: report.source.connected,
                synced: report.source.synced,
                age_s: report.source.state_age_s,
                revision: match report.store {
                    Some(store) => store.revision,
                    None => self.monitor.feeding().followed.revision(),
                },
                problem_count: report.source.problem_count,
                problems: report.source.problems,
                note: self.store.is_none().then(|| {
                    format!(
                        "{} makes this node's view: what stands for no rule here is not known, and decisions \
                         are taken by that brain's own admin API",
                        self.spec
                    )
                }),
            },
            counts: Counts::default(),
            syncs,
            traffic: None,
            attention,
        }
    }

    fn syncs(&self) -> Vec<SyncHealth> {
        let facts = self.monitor.facts();
        let mut syncs = Vec::new();
        if let Some(handle) = self.monitor.services_loop() {
            let of = sync_health("services", facts.backend.clone(), &handle.stats());
            let (p50, p99) = self.monitor.proxy().programming_ms();
            syncs.push(SyncHealth { programming_p50_ms: p50, programming_p99_ms: p99, ..of });
        }
        if let Some(stats) = self.monitor.pods_stats() {
            syncs.push(sync_health("pods", None, &stats));
        }
        syncs
    }
}

fn loop_health(
    stats: Option<&SyncStats>,
    backend: Option<&str>,
    pending_age_s_max: f64,
) -> (State, String) {
    let by = backend.map(|backend| format!(" by {backend}")).unwrap_or_default();
    let Some(stats) = stats else { return (State::Idle, format!("it starts{by}")) };
    if let Some(error) = &stats.last_error {
        return (State::Error, format!("the last sync{by} failed: {error}"));
    }
    if stats.last_success.is_none() {
        return (State::Idle, format!("the first sync{by} is to come"));
    }
    if stats.pending_age.is_some_and(|age| age.as_secs_f64() > pending_age_s_max) {
        return (State::Error, format!("a change has waited{by} for too long"));
    }
    (State::Ok, format!("in sync{by}"))
}

fn sync_health(plane: &str, backend: Option<String>, stats: &SyncStats) -> SyncHealth {
    let age = stats.last_success.and_then(|at| at.elapsed().ok());
    let durations = [&stats.partial_durations, &stats.full_durations];
    SyncHealth {
        plane: plane.to_owned(),
        backend,
        syncs: stats.syncs_total,
        failures: stats.failures_total,
        changes: stats.changes_total,
        drift_repairs: stats.drift_repairs_total,
        last_age_s: age.map(|age| age.as_secs_f64()),
        pending_age_s: stats.pending_age.map(|age| age.as_secs_f64()),
        duration_p50_ms: quantile_ms(&durations, 0.5),
        duration_p99_ms: quantile_ms(&durations, 0.99),
        programming_p50_ms: None,
        programming_p99_ms: None,
        last_error: stats.last_error.as_ref().map(ToString::to_string),
    }
}

/// The upper bound of the bucket in which this share lies.
fn quantile_ms(histograms: &[&Histogram], share: f64) -> Option<f64> {
    let all: u64 = histograms.iter().map(|it| it.count()).sum();
    if all == 0 {
        return None;
    }
    let mut totals: Vec<(Duration, u64)> = Vec::new();
    for histogram in histograms {
        for (index, (bound, count)) in histogram.cumulative_buckets().enumerate() {
            match totals.get_mut(index) {
                Some((_, total)) => *total += count,
                None => totals.push((bound, count)),
            }
        }
    }
    #[expect(clippy::cast_precision_loss, reason = "figures for eyes")]
    let found = totals.iter().find(|(_, total)| *total as f64 >= all as f64 * share);
    found.or(totals.last()).map(|(bound, _)| bound.as_secs_f64() * 1000.0)
}
