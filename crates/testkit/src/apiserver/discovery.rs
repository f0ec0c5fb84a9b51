//! The few documents by which a client finds out what a server has.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::Inner;
use super::refusal::Refusal;
use super::store::Store;

/// The document at `path`.
pub(super) fn document(inner: &Inner, path: &str) -> Result<Value, Refusal> {
    let store = inner.store.lock();
    let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
    match parts.as_slice() {
        ["version"] => Ok(json!({
            "major": "1", "minor": "36", "gitVersion": "v1.36.0-test", "gitCommit": "",
            "gitTreeState": "clean", "buildDate": "1970-01-01T00:00:00Z", "goVersion": "none",
            "compiler": "none", "platform": "test",
        })),
        ["healthz" | "livez" | "readyz", ..] => Ok("ok".into()),
        ["api"] => Ok(json!({
            "kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": [],
        })),
        ["apis"] => Ok(groups(&store)),
        ["api", version] => Ok(resources(&store, "", version)),
        ["apis", group, version] => Ok(resources(&store, group, version)),
        _ => Err(Refusal::new(404, "the server could not find the requested resource")),
    }
}

fn groups(store: &Store) -> Value {
    let groups: BTreeSet<(String, String)> = store
        .collections()
        .iter()
        .filter(|c| !c.resource.group.is_empty())
        .map(|c| (c.resource.group.clone(), c.resource.version.clone()))
        .collect();
    let groups: Vec<Value> = groups
        .into_iter()
        .map(|(group, version)| {
            let version = json!({"groupVersion": format!("{group}/{version}"), "version": version});
            json!({"name": group, "versions": [version], "preferredVersion": version})
        })
        .collect();
    json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
}

fn resources(store: &Store, group: &str, version: &str) -> Value {
    let own = store.collections().iter().map(|c| &c.resource);
    let own = own.filter(|resource| resource.group == group && resource.version == version);
    let resources: Vec<Value> = own
        .map(|resource| {
            json!({
                "name": resource.plural,
                "singularName": resource.kind.to_lowercase(),
                "namespaced": resource.namespaced,
                "kind": resource.kind,
                "verbs": ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"],
            })
        })
        .collect();
    let group_version =
        if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") };
    json!({
        "kind": "APIResourceList", "apiVersion": "v1",
        "groupVersion": group_version, "resources": resources,
    })
}
