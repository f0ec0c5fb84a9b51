//! What the monitor knows of the pods plane.

use std::fmt;
use std::time::SystemTime;

use telaio_reconcile::SyncHandle;

use super::Monitor;
use crate::pods::{INSTANCES_SHOWN_MAX, Pods, PodsReport};

/// The pods plane, to be asked.
pub(super) struct PodsProbe {
    handle: SyncHandle,
    report: Box<dyn Fn() -> PodsReport + Send + Sync>,
    changed: Box<dyn Fn() -> Option<SystemTime> + Send + Sync>,
}

impl fmt::Debug for PodsProbe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PodsProbe").field("handle", &self.handle).finish_non_exhaustive()
    }
}

impl Monitor {
    /// The pods plane to look at. There is one; a second is not taken.
    pub(crate) fn set_pods(&self, pods: &Pods) {
        let probe = PodsProbe {
            handle: pods.handle().clone(),
            report: Box::new(pods.reporter()),
            changed: Box::new(pods.changed()),
        };
        let _ = self.pods.set(probe);
    }

    /// Its sync loop, if it runs.
    pub(super) fn pods_loop(&self) -> Option<&SyncHandle> {
        self.pods.get().map(|probe| &probe.handle)
    }

    /// When an instance last came or went, if the plane runs.
    pub(crate) fn pods_changed(&self) -> Option<SystemTime> {
        (self.pods.get()?.changed)()
    }

    /// How it is, if it runs, with only the first instances.
    pub(crate) fn pods_summary(&self) -> Option<PodsReport> {
        let mut report = self.pods_report()?;
        report.instances.truncate(INSTANCES_SHOWN_MAX);
        Some(report)
    }

    /// How it is, if it runs, with all instances.
    pub(crate) fn pods_report(&self) -> Option<PodsReport> {
        let probe = self.pods.get()?;
        let mut report = (probe.report)();
        report.problems.extend(probe.handle.stats().last_error.map(|error| error.to_string()));
        Some(report)
    }
}
