//! Warnings as Events (`events.k8s.io/v1`), each once.
//!
//! An Event's name is made of what it says, so that the same warning is the same Event whoever writes
//! it: one that is there already gets a higher count instead of a second Event beside it.

use std::collections::BTreeMap;

use serde_json::json;
use telaio_model::hash::StableHash;

use super::rest::{Rest, RestError};
use crate::CONTROLLER;
use crate::warning::Warning;

/// The longest note that the API takes.
const NOTE_BYTES_MAX: usize = 1_000;
/// How many Events' counts are remembered.
const COUNTS_MAX: usize = 10_000;
/// The longest name of an object.
const NAME_MAX: usize = 253;

/// Writes Events.
#[derive(Debug)]
pub(super) struct EventWriter {
    rest: Rest,
    identity: String,
    counts: BTreeMap<String, u64>,
}

impl EventWriter {
    pub(super) fn new(rest: Rest, identity: String) -> Self {
        Self { rest, identity, counts: BTreeMap::new() }
    }

    /// Writes a warning, or counts it if it is written already.
    pub(super) async fn write(&mut self, warning: &Warning) -> Result<(), RestError> {
        let (namespace, ingress) = (&warning.ingress.namespace, &warning.ingress.name);
        let path = format!("/apis/networking.k8s.io/v1/namespaces/{namespace}/ingresses/{ingress}");
        // `kubectl describe` finds Events by the object's UID, which the model does not keep.
        let object = match self.rest.get(&path).await {
            Ok(object) => object,
            Err(error) if error.is_not_found() => return Ok(()),
            Err(error) => return Err(error),
        };
        let name = event_name(warning);
        let now = jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%S%.6fZ").to_string();
        let event = json!({
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": &**namespace},
            "type": "Warning",
            "reason": warning.reason.as_str(),
            "action": "Route",
            "note": shortened(&warning.message),
            "eventTime": now,
            "reportingController": CONTROLLER,
            "reportingInstance": self.identity,
            "regarding": {
                "apiVersion": "networking.k8s.io/v1",
                "kind": "Ingress",
                "namespace": &**namespace,
                "name": &**ingress,
                "uid": object["metadata"]["uid"],
            },
        });
        let collection = format!("/apis/events.k8s.io/v1/namespaces/{namespace}/events");
        match self.rest.post(&collection, &event).await {
            Ok(_) => Ok(()),
            Err(error) if error.is_conflict() => self.count(&collection, name, &now).await,
            Err(error) => Err(error),
        }
    }

    async fn count(&mut self, collection: &str, name: String, now: &str) -> Result<(), RestError> {
        if self.counts.len() >= COUNTS_MAX {
            self.counts.clear();
        }
        let path = format!("{collection}/{name}");
        let count = self.counts.entry(name).or_insert(1);
        *count += 1;
        let series = json!({"series": {"count": *count, "lastObservedTime": now}});
        match self.rest.merge_patch(&path, &series).await {
            Ok(_) => Ok(()),
            // It ran out in the meantime; the next warning makes another.
            Err(error) if error.is_not_found() => Ok(()),
            Err(error) => Err(error),
        }
    }
}

/// The same for the same warning, whoever writes it.
fn event_name(warning: &Warning) -> String {
    let hash = StableHash::new()
        .text(&warning.ingress.to_string())
        .text(warning.reason.as_str())
        .text(&warning.message)
        .hex();
    let name: String = warning.ingress.name.chars().take(NAME_MAX - hash.len() - 1).collect();
    format!("{}.{hash}", name.trim_end_matches(['.', '-']))
}

fn shortened(text: &str) -> &str {
    let mut end = text.len().min(NOTE_BYTES_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}
