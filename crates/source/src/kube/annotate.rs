//! What a node tells others about itself: annotations of its own Node object.

use std::collections::BTreeMap;
use std::time::Duration;

use http::{Method, Request};
use kube::Client;
use serde_json::{Value, json};

/// How long an answer may take.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(5);

/// Sets annotations of a Node object; others stay. What went wrong, with what to do.
pub async fn annotate_node(
    client: &Client,
    node: &str,
    annotations: &BTreeMap<String, String>,
) -> Result<(), String> {
    let path = format!("/api/v1/nodes/{node}");
    let body = json!({ "metadata": { "annotations": annotations } });
    let request = Request::builder()
        .method(Method::PATCH)
        .uri(&path)
        .header("content-type", "application/merge-patch+json")
        .body(body.to_string().into_bytes())
        .map_err(|error| error.to_string())?;
    match tokio::time::timeout(ANSWER_TIME_MAX, client.request::<Value>(request)).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(kube::Error::Api(status))) if status.code == 403 => Err(format!(
            "PATCH {path}: {}; give the agent's account the rules of deploy/pods-rbac.yaml",
            status.message
        )),
        Ok(Err(kube::Error::Api(status))) => {
            Err(format!("PATCH {path}: {} {}", status.code, status.message))
        }
        Ok(Err(error)) => Err(format!("PATCH {path}: {error}")),
        Err(_) => Err(format!("PATCH {path}: no answer in time")),
    }
}
