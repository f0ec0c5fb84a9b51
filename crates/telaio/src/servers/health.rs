//! `/healthz` for load balancers and `/livez` for whoever restarts us.
//!
//! As kube-proxy's: neither is well when a change has waited too long for its sync. `/healthz` is
//! also not well before the first sync, and when the node is about to go, so that load balancers
//! turn away while we still serve. A source that is out of touch does not make a node unhealthy: its last state stands. The
//! state's age is in the answer.

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::response::Response;
use axum::routing::get;
use http::StatusCode;

use crate::monitor::{Health, Monitor};

/// The routes.
pub(super) fn router(monitor: &Arc<Monitor>) -> Router {
    Router::new()
        .route("/healthz", get(healthz))
        .route("/livez", get(livez))
        .with_state(Arc::clone(monitor))
}

async fn healthz(State(monitor): State<Arc<Monitor>>) -> Response {
    let health = monitor.health();
    answer(health.is_healthy(), &health)
}

async fn livez(State(monitor): State<Arc<Monitor>>) -> Response {
    let health = monitor.health();
    answer(health.is_live(), &health)
}

fn answer(well: bool, health: &Health) -> Response {
    super::json(if well { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }, health)
}
