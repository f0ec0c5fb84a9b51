//! What operators see of requests: access log, metrics, traces.
//!
//! [`Watch`] is told of each request when it is over, on the serving path; so it only counts, and
//! hands lines and spans to bounded queues that others empty. What does not fit is dropped and
//! counted: a slow disk or collector never slows a request.

pub mod access_log;
pub mod metrics;
pub mod otlp;
pub mod trace;

use std::sync::Arc;

use access_log::AccessLog;
use metrics::RequestMetrics;
use otlp::Exporter;

use crate::head::RequestHead;
use crate::proxy::{Observer, Outcome};

/// Everybody who is told of requests.
#[derive(Debug, Default)]
pub struct Watch {
    /// Lines, if there is a log.
    pub log: Option<AccessLog>,
    /// Figures.
    pub metrics: Arc<RequestMetrics>,
    /// Spans, if there is a collector.
    pub traces: Option<Arc<Exporter>>,
}

impl Observer for Watch {
    fn finished(&self, request: &RequestHead, outcome: &Outcome<'_>) {
        self.metrics.count(outcome);
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
}
