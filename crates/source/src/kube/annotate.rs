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
    let body = json!({ "metadata": { "annotations": annotations } });
    ask(client, Method::PATCH, node, Some(&body)).await.map(drop).map_err(|(_, why)| why)
}

/// Removes annotations of a Node object that say what is given here; those that somebody has changed stay, and an object that is
/// gone has none. What went wrong.
pub async fn withdraw_annotations(
    client: &Client,
    node: &str,
    annotations: &BTreeMap<String, String>,
) -> Result<(), String> {
    let there = match ask(client, Method::GET, node, None).await {
        Ok(object) => object,
        Err((Some(404), _)) => return Ok(()),
        Err((_, why)) => return Err(why),
    };
    let says = |name: &str| there["metadata"]["annotations"][name].as_str();
    let ours = annotations.iter().filter(|(name, value)| says(name) == Some(value));
    let gone: BTreeMap<&String, Value> = ours.map(|(name, _)| (name, Value::Null)).collect();
    if gone.is_empty() {
        return Ok(());
    }
    // Refused if somebody changes it meanwhile.
    let version = &there["metadata"]["resourceVersion"];
    let body = json!({ "metadata": { "annotations": gone, "resourceVersion": version } });
    ask(client, Method::PATCH, node, Some(&body)).await.map(drop).map_err(|(_, why)| why)
}

/// Reads or changes a Node object. What went wrong, with the server's code.
async fn ask(
    client: &Client,
    method: Method,
    node: &str,
    patch: Option<&Value>,
) -> Result<Value, (Option<u16>, String)> {
    let path = format!("/api/v1/nodes/{node}");
    let what = format!("{method} {path}");
    let request = Request::builder()
        .method(method)
        .uri(&path)
        .header("content-type", "application/merge-patch+json")
        .body(patch.map(|patch| patch.to_string().into_bytes()).unwrap_or_default())
        .map_err(|error| (None, error.to_string()))?;
    match tokio::time::timeout(ANSWER_TIME_MAX, client.request::<Value>(request)).await {
        Ok(Ok(object)) => Ok(object),
        Ok(Err(kube::Error::Api(status))) if status.code == 403 => Err((
            Some(403),
            format!(
                "{what}: {}; give the agent's account the rules of deploy/pods-rbac.yaml",
                status.message
            ),
        )),
        Ok(Err(kube::Error::Api(status))) => {
            Err((Some(status.code), format!("{what}: {} {}", status.code, status.message)))
        }
        Ok(Err(error)) => Err((None, format!("{what}: {error}"))),
        Err(_) => Err((None, format!("{what}: no answer in time"))),
    }
}
