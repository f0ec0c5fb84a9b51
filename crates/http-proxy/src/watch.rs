//! What operators see of requests: access log, metrics, traces.
//!
//! [`Watch`] is told of each request when it is over, on the serving path; so it only counts, and
//! hands lines and spans to bounded queues that others empty. What does not fit is dropped and
//! counted: a slow disk or collector never slows a request. Figures are counted beside the routes
//! ([`stats`]), whoever watches, and read by an [`Inspector`](inspect::Inspector) as plain [values](snapshot).

pub mod access_log;
pub mod inspect;
pub mod metrics;
pub mod otlp;
pub mod snapshot;
pub mod stats;
pub mod trace;

use std::sync::Arc;

use access_log::AccessLog;
use otlp::Exporter;

use crate::head::RequestHead;
use crate::proxy::{Observer, Outcome};

/// Everybody who is told of requests.
#[derive(Debug, Default)]
pub struct Watch {
    /// Lines, if there is a log.
    pub log: Option<AccessLog>,
    /// Spans, if there is a collector.
    pub traces: Option<Arc<Exporter>>,
}

impl Observer for Watch {
    fn finished(&self, request: &RequestHead, outcome: &Outcome<'_>) {
        if let Some(log) = &self.log {
            let off = outcome.route.is_some_and(|route| route.route.policy.log_off);
            if !off {
                log.write(request, outcome);
            }
        }
        if let Some(traces) = &self.traces {
            traces.finished(request, outcome);
        }
    }

    fn dropped(&self) -> (u64, u64) {
        let lines = self.log.as_ref().map_or(0, AccessLog::dropped);
        (lines, self.traces.as_ref().map_or(0, |traces| traces.dropped()))
    }
}
