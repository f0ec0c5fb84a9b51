//! Overrides in a cluster: the entries of one ConfigMap.
//!
//! One ConfigMap, so that a Role can allow it alone; written only in the version that was read.

use std::fmt;

use http::{Method, Request};
use serde_json::{Value, json};
use telaio_model::{Object, ObjectKey, Override};

use super::{Change, Checked, OVERRIDES_MAX, WriteError, manifest, now_s, same};
use crate::intern::Interner;
use crate::kube::{Client, LABEL_CONFIG};
use crate::manifest::{Context, Format, read_file_content};

/// The ConfigMap's name.
pub const CONFIG_MAP: &str = "telaio-overrides";
/// On ConfigMaps whose entries are overrides.
pub const LABEL_OVERRIDES: &str = "telaio.dev/overrides";
/// How often a write is tried that meets another's.
const TRIES_MAX: usize = 8;

/// Writes overrides into a cluster.
#[derive(Clone)]
pub struct KubeWriter {
    client: Client,
    namespace: String,
}

impl fmt::Debug for KubeWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KubeWriter").field("namespace", &self.namespace).finish_non_exhaustive()
    }
}

impl KubeWriter {
    pub(super) fn new(client: Client, namespace: String) -> Self {
        Self { client, namespace }
    }

    pub(super) fn name(&self) -> String {
        format!("{}/{CONFIG_MAP}", self.namespace)
    }

    pub(super) async fn write(&self, changes: &[Change]) -> Result<(), WriteError> {
        // What has ended and is tidied away.
        let mut gone = Vec::new();
        loop {
            match self.update(|map| set(map, changes, &gone)).await {
                Err(WriteError::Changed { key, now: None }) if !gone.contains(&key) => {
                    let place = format!("the ConfigMap {}", self.name());
                    let found = self.elsewhere(&key).await;
                    for change in changes.iter().filter(|it| it.key == key) {
                        change.not_there(place.clone(), found.clone())?;
                    }
                    gone.push(key);
                }
                done => return done,
            }
        }
    }

    /// Where else an override stands, if it is found.
    async fn elsewhere(&self, key: &ObjectKey) -> Option<String> {
        let maps = format!("/api/v1/configmaps?labelSelector={LABEL_OVERRIDES}");
        let maps = self.get(&maps).await.unwrap_or_default();
        for map in maps["items"].as_array().into_iter().flatten() {
            let mut entries = map["data"].as_object().into_iter().flatten();
            let is_it =
                |text: &Value| text.as_str().and_then(read).is_some_and(|it| it.meta.key == *key);
            if let Some((name, _)) = entries.find(|(_, text)| is_it(text)) {
                let text = |field: &str| map["metadata"][field].as_str().unwrap_or_default();
                let map = format!("{}/{}", text("namespace"), text("name"));
                return Some(format!("the entry {name} of the ConfigMap {map}"));
            }
        }
        let objects = self.get("/apis/telaio.dev/v1/overrides").await.unwrap_or_default();
        let is_it = |object: &Value| {
            object["metadata"]["name"] == *key.name
                && object["metadata"]["namespace"] == *key.namespace
        };
        let objects = objects["items"].as_array()?;
        objects.iter().any(is_it).then(|| format!("the object {key} of the kind Override"))
    }

    /// An answer, where there is one.
    async fn get(&self, path: &str) -> Option<Value> {
        let request = Request::get(path).body(Vec::new()).ok()?;
        self.client.request::<Value>(request).await.ok()
    }

    /// Removes those that are still there as they were seen; says which.
    pub(super) async fn remove_seen(
        &self,
        seen: &[Override],
    ) -> Result<Vec<ObjectKey>, WriteError> {
        self.update(|map| Ok(remove_seen(map, seen))).await
    }

    /// Changes the ConfigMap in the version that was read; after another's write, anew.
    async fn update<T>(
        &self,
        change: impl Fn(&mut Value) -> Result<T, WriteError>,
    ) -> Result<T, WriteError> {
        for _ in 0..TRIES_MAX {
            let found = self.read().await?;
            let (method, mut map) = match found {
                Some(map) => (Method::PUT, map),
                None => (Method::POST, self.empty()),
            };
            let before = map.clone();
            let changed = change(&mut map)?;
            let nothing_to_remove = method == Method::POST
                && map["data"].as_object().is_none_or(serde_json::Map::is_empty);
            if map == before || nothing_to_remove {
                return Ok(changed);
            }
            match self.send(&method, &map).await {
                Ok(()) => return Ok(changed),
                Err(kube::Error::Api(status)) if status.code == 409 => {}
                Err(error) => return Err(self.failed(&error)),
            }
        }
        Err(WriteError::Conflict(self.name()))
    }

    fn failed(&self, error: &kube::Error) -> WriteError {
        let message = match error {
            kube::Error::Api(status) if status.code == 403 => format!(
                "{}; allow it with deploy/overrides-rbac.yaml, or decide by hand",
                status.message
            ),
            kube::Error::Api(status) => status.message.clone(),
            other => other.to_string(),
        };
        WriteError::Server(self.name(), message)
    }

    fn collection(&self) -> String {
        format!("/api/v1/namespaces/{}/configmaps", self.namespace)
    }

    async fn read(&self) -> Result<Option<Value>, WriteError> {
        let path = format!("{}/{CONFIG_MAP}", self.collection());
        let request = Request::get(path).body(Vec::new());
        let request = request.map_err(|error| {
            WriteError::Server(self.name(), format!("is no name of a namespace: {error}"))
        })?;
        match self.client.request::<Value>(request).await {
            Ok(map) => Ok(Some(map)),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
            Err(error) => Err(self.failed(&error)),
        }
    }

    fn empty(&self) -> Value {
        json!({
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {
                "name": CONFIG_MAP,
                "namespace": self.namespace,
                "labels": { LABEL_CONFIG: "overrides", LABEL_OVERRIDES: "true" },
            },
            "data": {},
        })
    }

    async fn send(&self, method: &Method, map: &Value) -> Result<(), kube::Error> {
        let path = match *method {
            Method::PUT => format!("{}/{CONFIG_MAP}", self.collection()),
            _ => self.collection(),
        };
        let body = serde_json::to_vec(map).map_err(kube::Error::SerdeError)?;
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(http::header::CONTENT_TYPE, "application/json")
            .body(body)
            .map_err(kube::Error::HttpError)?;
        self.client.request::<Value>(request).await.map(drop)
    }
}

/// The name of an override's entry: a namespace has no dot.
fn entry(key: &ObjectKey) -> String {
    format!("{}.{}.json", key.namespace, key.name)
}

/// What is written about this.
fn written(map: &Value, key: &ObjectKey) -> Option<Override> {
    map["data"].get(entry(key)).and_then(Value::as_str).and_then(read)
}

fn set(map: &mut Value, changes: &[Change], gone: &[ObjectKey]) -> Result<(), WriteError> {
    let now_s = now_s();
    for change in changes.iter().filter(|it| !gone.contains(&it.key)) {
        let key = change.key.clone();
        if change.check(written(map, &key).as_ref(), now_s)? == Checked::NotThere {
            return Err(WriteError::Changed { key, now: None });
        }
    }
    // Somebody may have made it by hand, without what makes it count.
    map["metadata"]["labels"][LABEL_CONFIG] = json!("overrides");
    map["metadata"]["labels"][LABEL_OVERRIDES] = json!("true");
    if !map["data"].is_object() {
        map["data"] = json!({});
    }
    let Some(data) = map["data"].as_object_mut() else { return Ok(()) };
    for Change { key, after, .. } in changes {
        match after {
            Some(decided) => {
                data.insert(entry(key), json!(format!("{:#}\n", manifest(decided))));
            }
            None => drop(data.remove(&entry(key))),
        }
    }
    if data.len() > OVERRIDES_MAX { Err(WriteError::TooMany(OVERRIDES_MAX)) } else { Ok(()) }
}

/// Removes the entries that still say what was seen.
fn remove_seen(map: &mut Value, seen: &[Override]) -> Vec<ObjectKey> {
    let Some(data) = map.get_mut("data").and_then(Value::as_object_mut) else { return Vec::new() };
    let is_there = |it: &&Override| {
        let found = data.get(&entry(&it.meta.key)).and_then(Value::as_str).and_then(read);
        found.is_some_and(|found| same(&found, it))
    };
    let gone: Vec<ObjectKey> = seen.iter().filter(is_there).map(|it| it.meta.key.clone()).collect();
    data.retain(|name, _| !gone.iter().any(|key| entry(key) == *name));
    gone
}

/// The override of an entry, if it can be read.
fn read(text: &str) -> Option<Override> {
    let ctx = Context::cluster(Interner::default());
    let content = read_file_content("entry", text.as_bytes(), Format::Yaml, &ctx);
    content.objects.into_iter().find_map(|found| match found.object {
        Object::Override(decided) => Some(Override::clone(&decided)),
        _ => None,
    })
}
