//! `/healthz` for load balancers and `/livez` for whoever restarts us.
//!
//! As kube-proxy's: neither is well when a change has waited too long for its sync. `/healthz` is
//! also not well before the first sync, and when the node is about to go, so that load balancers
//! turn away while we still serve. A source that is out of touch does not make a node unhealthy: its
//! last state stands. The state's age is in the answer.
//!
//! The answer has kube-proxy's fields, and ours after them.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::response::Response;
use axum::routing::get;
use http::{HeaderValue, StatusCode, header};
use jiff::Timestamp;
use serde::Serialize;

use crate::monitor::{Health, Monitor, Probe};

/// What kube-proxy says where there is no time to tell: the zero of its language.
const NEVER: &str = "0001-01-01 00:00:00 +0000 UTC";

/// The routes.
pub(super) fn router(monitor: &Arc<Monitor>) -> Router {
    Router::new()
        .route("/healthz", get(healthz))
        .route("/livez", get(livez))
        .route("/ready", get(ready))
        .route("/readyz", get(ready))
        .with_state(Arc::clone(monitor))
}

/// kube-proxy's fields, then ours.
#[derive(Debug, Serialize)]
struct Answer<'a> {
    /// When we were last up to date: now, while all is well.
    #[serde(rename = "lastUpdated")]
    last_updated: String,
    #[serde(rename = "currentTime")]
    current_time: String,
    /// Only `/healthz` asks about the node.
    #[serde(rename = "nodeEligible", skip_serializing_if = "Option::is_none")]
    node_eligible: Option<bool>,
    #[serde(flatten)]
    health: &'a Health,
}

async fn healthz(State(monitor): State<Arc<Monitor>>) -> Response {
    let health = monitor.health();
    answer(&monitor, Probe::Healthz, health.is_healthy(), Some(!health.node_leaving), &health)
}

async fn livez(State(monitor): State<Arc<Monitor>>) -> Response {
    let health = monitor.health();
    answer(&monitor, Probe::Livez, health.is_live(), None, &health)
}

/// Whether clients may be sent here: all of `/healthz`, the first routes of an ingress are loaded, and we
/// were not told to end.
async fn ready(State(monitor): State<Arc<Monitor>>) -> Response {
    let health = monitor.health();
    let ingress_ready = monitor.ingress_ready();
    let ending = monitor.is_ending();
    let ready = health.is_healthy() && ingress_ready && !ending;
    let status = if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let answer = serde_json::json!({
        "ready": ready,
        "synced": health.synced,
        "ingress_ready": ingress_ready,
        "node_leaving": health.node_leaving,
        "ending": ending,
    });
    super::json(status, &answer)
}

fn answer(
    monitor: &Monitor,
    probe: Probe,
    well: bool,
    node_eligible: Option<bool>,
    health: &Health,
) -> Response {
    monitor.proxy().count_probe(probe, well);
    let now = Timestamp::now();
    let answer = Answer {
        last_updated: if well { text(now) } else { last_updated(now, health) },
        current_time: text(now),
        node_eligible,
        health,
    };
    let status = if well { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let mut response = super::json(status, &answer);
    let nosniff = HeaderValue::from_static("nosniff");
    response.headers_mut().insert(header::X_CONTENT_TYPE_OPTIONS, nosniff);
    response
}

fn last_updated(now: Timestamp, health: &Health) -> String {
    let age = health.last_sync_age_s.and_then(|age| Duration::try_from_secs_f64(age).ok());
    let at = age.and_then(|age| now.checked_sub(age).ok());
    at.map_or_else(|| NEVER.to_owned(), text)
}

/// A time as kube-proxy's language prints it.
fn text(time: Timestamp) -> String {
    time.strftime("%Y-%m-%d %H:%M:%S.%9f +0000 UTC").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_as_kube_proxy_writes_them() {
        let time: Timestamp = "2026-11-02T10:15:30.5Z".parse().unwrap();
        assert_eq!(text(time), "2026-11-02 10:15:30.500000000 +0000 UTC");
    }
}
