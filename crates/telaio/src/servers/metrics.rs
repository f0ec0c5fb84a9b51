//! `/metrics` for Prometheus.

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use http::{StatusCode, header};

use crate::monitor::Monitor;

/// The content type of the text format that we write.
const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The routes.
pub(super) fn router(monitor: &Arc<Monitor>) -> Router {
    Router::new().route("/metrics", get(metrics)).with_state(Arc::clone(monitor))
}

async fn metrics(State(monitor): State<Arc<Monitor>>) -> Response {
    #[cfg(unix)]
    if let Some(ingress) = monitor.ingress() {
        ingress.refresh_metrics().await;
    }
    match monitor.metrics_text() {
        Ok(text) => ([(header::CONTENT_TYPE, OPENMETRICS)], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}
