//! What the ingress does and knows, asked of its worker; and purging its cache.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::State;
use axum::response::Response;
use axum::routing::{get, post};
use axum::{Json, Router};
use http::{HeaderMap, StatusCode, header};
use serde::Serialize;
use serde_json::json;
use telaio_http_proxy::watch::snapshot::PurgeWhat;

use super::json as answer;
use crate::ingress::{ControlError, IngressControl};
use crate::monitor::Monitor;

type Asked = State<Arc<Monitor>>;

/// The routes.
pub(super) fn router(monitor: &Arc<Monitor>) -> Router {
    Router::new()
        .route("/api/v1/ingress/totals", get(totals))
        .route("/api/v1/ingress/stats", get(stats))
        .route("/api/v1/ingress/routes", get(routes))
        .route("/api/v1/ingress/certificates", get(certificates))
        .route("/api/v1/cache/purge", post(purge))
        .with_state(Arc::clone(monitor))
}

async fn totals(State(monitor): Asked) -> Response {
    with(&monitor, async |control| control.totals().await).await
}

async fn stats(State(monitor): Asked) -> Response {
    with(&monitor, async |control| control.stats().await).await
}

async fn routes(State(monitor): Asked) -> Response {
    with(&monitor, async |control| control.routes().await).await
}

async fn certificates(State(monitor): Asked) -> Response {
    with(&monitor, async |control| control.certificates().await).await
}

/// `{"url": …}`, `{"prefix": …}`, `{"host": …}` or `"all"`. Only as JSON: a page of somebody else's
/// in a browser of ours cannot send that here without being asked first.
async fn purge(State(monitor): Asked, headers: HeaderMap, body: Bytes) -> Response {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    if !kind.is_some_and(|kind| kind.starts_with("application/json")) {
        let error = "send JSON, with the Content-Type application/json";
        return answer(StatusCode::UNSUPPORTED_MEDIA_TYPE, &json!({ "error": error }));
    }
    let what: PurgeWhat = match Json::from_bytes(&body) {
        Ok(Json(what)) => what,
        Err(error) => {
            let error = format!(
                "{error}; write {{\"url\": …}}, {{\"prefix\": …}}, {{\"host\": …}} or \"all\""
            );
            return answer(StatusCode::BAD_REQUEST, &json!({ "error": error }));
        }
    };
    with(&monitor, async |control| {
        let purged = control.purge(what).await?;
        tracing::info!(purged, "the cache was purged");
        Ok(json!({ "purged": purged }))
    })
    .await
}

async fn with<T: Serialize>(
    monitor: &Monitor,
    ask: impl AsyncFnOnce(&IngressControl) -> Result<T, ControlError>,
) -> Response {
    let Some(ingress) = monitor.ingress() else {
        let error = "there is no ingress here; it is a plane of telaio run (--planes ingress)";
        return answer(StatusCode::NOT_FOUND, &json!({ "error": error }));
    };
    match ask(ingress.control()).await {
        Ok(value) => answer(StatusCode::OK, &value),
        Err(error) => {
            let status = match error {
                ControlError::NoWorker => StatusCode::SERVICE_UNAVAILABLE,
                ControlError::TimedOut(_) => StatusCode::GATEWAY_TIMEOUT,
                ControlError::Refused(_) => StatusCode::BAD_REQUEST,
            };
            answer(status, &json!({ "error": error.to_string() }))
        }
    }
}
