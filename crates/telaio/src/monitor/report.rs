//! The status: what `GET /api/v1/status` answers and `telaio status` shows.

use serde::{Deserialize, Serialize};
use telaio_reconcile::{SyncHandle, SyncStats};

use super::{Monitor, last_sync_age, seconds};

/// How many problems are told; the count is of all.
const PROBLEMS_SHOWN_MAX: usize = 20;

/// The state of a running command. Fields are only ever added.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Report {
    pub(crate) version: String,
    pub(crate) command: String,
    pub(crate) pid: u32,
    pub(crate) uptime_s: f64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) node: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) planes: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) backend: Option<String>,
    pub(crate) healthy: bool,
    pub(crate) source: SourceReport,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) store: Option<StoreReport>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) sync: Option<SyncSummary>,
    #[cfg(target_os = "linux")]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) pods: Option<crate::pods::PodsReport>,
}

/// How the source is doing.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct SourceReport {
    pub(crate) spec: String,
    pub(crate) connected: bool,
    pub(crate) synced: bool,
    pub(crate) state_age_s: Option<f64>,
    /// How many stand wrong now.
    pub(crate) problem_count: usize,
    /// The first of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) problems: Vec<String>,
}

/// How large the store is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct StoreReport {
    pub(crate) revision: u64,
    pub(crate) services: usize,
    pub(crate) endpoints: usize,
    pub(crate) objects: usize,
    pub(crate) watchers: usize,
}

/// What the sync loop has done.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct SyncSummary {
    pub(crate) syncs: u64,
    pub(crate) failures: u64,
    pub(crate) changes: u64,
    pub(crate) last_age_s: Option<f64>,
    pub(crate) pending_age_s: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) last_error: Option<String>,
}

impl Monitor {
    /// The state now.
    pub(crate) fn report(&self) -> Report {
        Report {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            command: self.facts.command.to_owned(),
            pid: std::process::id(),
            uptime_s: seconds(self.started.elapsed()),
            node: self.facts.node.clone(),
            planes: self.facts.planes.clone(),
            backend: self.facts.backend.clone(),
            healthy: self.health().is_healthy(),
            source: self.source_report(),
            store: self.store_report(),
            sync: self.sync_loop().map(SyncHandle::stats).map(|stats| sync_summary(&stats)),
            #[cfg(target_os = "linux")]
            pods: self.pods_summary(),
        }
    }

    fn source_report(&self) -> SourceReport {
        let problems = self.source.problems();
        SourceReport {
            spec: self.facts.source.clone(),
            connected: self.source.is_connected(),
            synced: self.source.is_synced(),
            state_age_s: self.source.age().map(seconds),
            problem_count: problems.len(),
            problems: problems.iter().take(PROBLEMS_SHOWN_MAX).map(ToString::to_string).collect(),
        }
    }

    fn store_report(&self) -> Option<StoreReport> {
        let store = self.store.as_ref()?;
        let size = store.size();
        Some(StoreReport {
            revision: store.revision(),
            services: size.services,
            endpoints: size.endpoints,
            objects: size.objects,
            watchers: size.watchers,
        })
    }
}

fn sync_summary(stats: &SyncStats) -> SyncSummary {
    SyncSummary {
        syncs: stats.syncs_total,
        failures: stats.failures_total,
        changes: stats.changes_total,
        last_age_s: last_sync_age(stats).map(seconds),
        pending_age_s: stats.pending_age.map(seconds),
        last_error: stats.last_error.as_ref().map(ToString::to_string),
    }
}
