//! The admin API: this machine's people and `telaio status` ask here.

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::response::Response;
use axum::routing::get;
use http::StatusCode;

use crate::monitor::Monitor;

/// Where the status is.
pub(crate) const STATUS_PATH: &str = "/api/v1/status";

/// The routes.
pub(super) fn router(monitor: &Arc<Monitor>) -> Router {
    let router = Router::new().route(STATUS_PATH, get(status)).with_state(Arc::clone(monitor));
    #[cfg(unix)]
    let router = router.merge(super::ingress::router(monitor));
    router
}

async fn status(State(monitor): State<Arc<Monitor>>) -> Response {
    super::json(StatusCode::OK, &monitor.report())
}
