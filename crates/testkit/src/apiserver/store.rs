//! The server's memory: objects as bytes, one version counter, and a bounded log of what happened.
//!
//! What always holds:
//! - an object is serialised once, when it is written; lists and watches share those bytes;
//! - versions grow by one with every change, across all resources;
//! - the log of a resource holds every change after its `compacted` version, and none before.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use hyper::body::Bytes;
use serde_json::{Map, Value};

use super::refusal::Refusal;
use super::resource::Resource;
use super::selector::{FieldQuery, LabelQuery};

/// How many unfinished paged lists are remembered.
const PAGED_LISTS_MAX: usize = 64;

/// Namespace (empty for cluster-wide objects) and name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key {
    pub(super) namespace: String,
    pub(super) name: String,
}

impl Key {
    pub(super) fn new(namespace: &str, name: &str) -> Self {
        Self { namespace: namespace.to_owned(), name: name.to_owned() }
    }
}

/// An object at one version. `json` has no `kind` and `apiVersion`: a real server leaves them out of
/// the items of a list, and a client must live with that.
#[derive(Debug)]
pub(super) struct Stored {
    pub(super) key: Key,
    pub(super) version: u64,
    pub(super) labels: BTreeMap<String, String>,
    pub(super) json: Bytes,
}

impl Stored {
    /// The object with its kind, as `get` and watches give it.
    pub(super) fn write_typed(&self, resource: &Resource, out: &mut Vec<u8>) {
        let head = format!(
            "{{\"kind\":\"{}\",\"apiVersion\":\"{}\",",
            resource.kind,
            resource.api_version()
        );
        out.extend_from_slice(head.as_bytes());
        // Never empty: metadata is always there.
        out.extend_from_slice(&self.json[1..]);
    }

    pub(super) fn value(&self) -> Value {
        serde_json::from_slice(&self.json).unwrap_or(Value::Null)
    }
}

/// Which objects a list or watch is about.
#[derive(Debug, Clone, Default)]
pub(super) struct Query {
    pub(super) namespace: Option<String>,
    pub(super) labels: LabelQuery,
    pub(super) fields: FieldQuery,
}

impl Query {
    pub(super) fn matches(&self, object: &Stored) -> bool {
        self.namespace.as_ref().is_none_or(|namespace| *namespace == object.key.namespace)
            && (self.labels.is_empty() || self.labels.matches(&object.labels))
            && (self.fields.is_empty() || self.fields.matches(&object.value()))
    }
}

/// What happened to one object.
#[derive(Debug, Clone)]
pub(super) struct Event {
    pub(super) version: u64,
    /// How the object was before; `None` when it is new.
    pub(super) before: Option<Arc<Stored>>,
    /// How it is now, or at its deletion was.
    pub(super) object: Arc<Stored>,
    pub(super) deleted: bool,
}

#[derive(Debug)]
pub(super) struct Collection {
    pub(super) resource: Arc<Resource>,
    objects: BTreeMap<Key, Arc<Stored>>,
    log: VecDeque<Event>,
    compacted: u64,
}

/// The rest of a list of which some pages are sent.
#[derive(Debug)]
struct PagedList {
    id: u64,
    version: u64,
    objects: Arc<Vec<Arc<Stored>>>,
}

/// A page of a list.
#[derive(Debug)]
pub(super) struct Page {
    pub(super) version: u64,
    pub(super) objects: Vec<Arc<Stored>>,
    /// The token of the next page and how many objects are left.
    pub(super) next: Option<(String, usize)>,
}

#[derive(Debug)]
pub(super) struct Store {
    version: u64,
    collections: Vec<Collection>,
    log_max: usize,
    paged: VecDeque<PagedList>,
    paged_count: u64,
}

impl Store {
    pub(super) fn new(resources: Vec<Resource>, log_max: usize) -> Self {
        let mut store = Self {
            version: 1,
            collections: Vec::new(),
            log_max,
            paged: VecDeque::new(),
            paged_count: 0,
        };
        for resource in resources {
            store.register(resource);
        }
        store
    }

    /// Adds a resource; one that is there already is left alone.
    pub(super) fn register(&mut self, resource: Resource) {
        if self.collections.iter().any(|c| *c.resource == resource) {
            return;
        }
        self.collections.push(Collection {
            resource: Arc::new(resource),
            objects: BTreeMap::new(),
            log: VecDeque::new(),
            compacted: self.version,
        });
    }

    pub(super) fn version(&self) -> u64 {
        self.version
    }

    pub(super) fn collections(&self) -> &[Collection] {
        &self.collections
    }

    pub(super) fn resource(&self, index: usize) -> Arc<Resource> {
        self.collections[index].resource.clone()
    }

    pub(super) fn find(&self, is_it: impl Fn(&Resource) -> bool) -> Option<usize> {
        self.collections.iter().position(|collection| is_it(&collection.resource))
    }

    pub(super) fn get(&self, index: usize, key: &Key) -> Option<Arc<Stored>> {
        self.collections[index].objects.get(key).cloned()
    }

    pub(super) fn select(&self, index: usize, query: &Query) -> Vec<Arc<Stored>> {
        let objects = self.collections[index].objects.values();
        objects.filter(|object| query.matches(object)).cloned().collect()
    }

    pub(super) fn len(&self, index: usize) -> usize {
        self.collections[index].objects.len()
    }

    /// Writes an object that has a name. Gives it its version, and its identity if it is new.
    /// Writing what is already there changes nothing.
    pub(super) fn put(&mut self, index: usize, mut object: Map<String, Value>) -> Arc<Stored> {
        object.remove("kind");
        object.remove("apiVersion");
        let namespaced = self.collections[index].resource.namespaced;
        let (key, labels) = key_and_labels(&object, namespaced);
        let before = self.get(index, &key);
        self.set_identity(&mut object, before.as_deref());
        if let Some(before) = &before {
            set_version(&mut object, before.version);
            if to_bytes(&object) == before.json {
                return before.clone();
            }
        }
        self.version += 1;
        set_version(&mut object, self.version);
        let stored =
            Arc::new(Stored { key, version: self.version, labels, json: to_bytes(&object) });
        self.collections[index].objects.insert(stored.key.clone(), stored.clone());
        self.log(
            index,
            Event { version: self.version, before, object: stored.clone(), deleted: false },
        );
        stored
    }

    /// Removes an object; its last state gets the version of its deletion.
    pub(super) fn remove(&mut self, index: usize, key: &Key) -> Option<Arc<Stored>> {
        let before = self.collections[index].objects.remove(key)?;
        self.version += 1;
        let json = match before.value() {
            Value::Object(mut object) => {
                set_version(&mut object, self.version);
                to_bytes(&object)
            }
            _ => before.json.clone(),
        };
        let object = Arc::new(Stored {
            key: before.key.clone(),
            version: self.version,
            labels: before.labels.clone(),
            json,
        });
        let event = Event {
            version: self.version,
            before: Some(before),
            object: object.clone(),
            deleted: true,
        };
        self.log(index, event);
        Some(object)
    }

    fn log(&mut self, index: usize, event: Event) {
        let collection = &mut self.collections[index];
        collection.log.push_back(event);
        while collection.log.len() > self.log_max {
            if let Some(gone) = collection.log.pop_front() {
                collection.compacted = gone.version;
            }
        }
    }

    fn set_identity(&self, object: &mut Map<String, Value>, before: Option<&Stored>) {
        let before = before.map(Stored::value);
        let next = self.version + 1;
        let metadata = metadata_mut(object);
        let mut settle = |field: &str, fresh: &dyn Fn() -> String| {
            let kept = before.as_ref().and_then(|b| b["metadata"].get(field)).cloned();
            if let Some(kept) = kept {
                metadata.insert(field.to_owned(), kept);
            } else if !metadata.contains_key(field) {
                metadata.insert(field.to_owned(), Value::String(fresh()));
            }
        };
        settle("uid", &|| format!("00000000-0000-4000-8000-{next:012x}"));
        settle("creationTimestamp", &|| {
            jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
        });
    }

    /// The changes of a resource after `version`, at most `max` of them.
    pub(super) fn events_after(
        &self,
        index: usize,
        version: u64,
        max: usize,
    ) -> Result<Vec<Event>, Refusal> {
        let collection = &self.collections[index];
        if version < collection.compacted {
            return Err(Refusal::too_old(version, collection.compacted));
        }
        let start = collection.log.partition_point(|event| event.version <= version);
        Ok(collection.log.iter().skip(start).take(max).cloned().collect())
    }

    /// Forgets every change so far, and every unfinished paged list.
    pub(super) fn compact(&mut self) {
        for collection in &mut self.collections {
            collection.log.clear();
            collection.compacted = self.version;
        }
        self.paged.clear();
    }

    /// The first page of a list, of at most `limit` objects (0: all).
    pub(super) fn first_page(&mut self, index: usize, query: &Query, limit: usize) -> Page {
        let mut objects = self.select(index, query);
        if limit == 0 || objects.len() <= limit {
            return Page { version: self.version, objects, next: None };
        }
        let left = objects.len() - limit;
        self.paged_count += 1;
        let id = self.paged_count;
        let all = Arc::new(objects.clone());
        self.paged.push_back(PagedList { id, version: self.version, objects: all });
        while self.paged.len() > PAGED_LISTS_MAX {
            self.paged.pop_front();
        }
        objects.truncate(limit);
        Page { version: self.version, objects, next: Some((format!("{id}.{limit}"), left)) }
    }

    /// A further page, of the state that the first one was of.
    pub(super) fn next_page(&mut self, token: &str, limit: usize) -> Result<Page, Refusal> {
        let bad = || Refusal::new(400, "continue key is not valid");
        let (id, from) = token.split_once('.').ok_or_else(bad)?;
        let (id, from): (u64, usize) =
            (id.parse().map_err(|_| bad())?, from.parse().map_err(|_| bad())?);
        let at = self.paged.iter().position(|list| list.id == id).ok_or_else(|| {
            Refusal::new(
                410,
                "The provided continue parameter is too old to display a consistent list result. \
                 You can start a new list without the continue parameter.",
            )
        })?;
        let list = &self.paged[at];
        let all = list.objects.len();
        let to = if limit == 0 { all } else { all.min(from.saturating_add(limit)) };
        let objects = list.objects.get(from..to).ok_or_else(bad)?.to_vec();
        let version = list.version;
        let next = (to < all).then(|| (format!("{id}.{to}"), all - to));
        if next.is_none() {
            self.paged.remove(at);
        }
        Ok(Page { version, objects, next })
    }
}

/// The object's metadata, made if it is missing.
pub(super) fn metadata_mut(object: &mut Map<String, Value>) -> &mut Map<String, Value> {
    let metadata = object.entry("metadata").or_insert_with(|| Value::Object(Map::new()));
    if !metadata.is_object() {
        *metadata = Value::Object(Map::new());
    }
    match metadata {
        Value::Object(map) => map,
        _ => unreachable!("made an object just above"),
    }
}

fn set_version(object: &mut Map<String, Value>, version: u64) {
    metadata_mut(object).insert("resourceVersion".to_owned(), Value::String(version.to_string()));
}

fn key_and_labels(
    object: &Map<String, Value>,
    namespaced: bool,
) -> (Key, BTreeMap<String, String>) {
    let metadata = object.get("metadata");
    let text = |field: &str| metadata.and_then(|m| m.get(field)).and_then(Value::as_str);
    let namespace = if namespaced { text("namespace").unwrap_or("default") } else { "" };
    let labels = metadata.and_then(|m| m.get("labels")).and_then(Value::as_object);
    let labels = labels
        .into_iter()
        .flatten()
        .filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())))
        .collect();
    (Key::new(namespace, text("name").unwrap_or_default()), labels)
}

fn to_bytes(object: &Map<String, Value>) -> Bytes {
    // Writing JSON values to memory has no way to fail.
    Bytes::from(serde_json::to_vec(object).unwrap_or_default())
}
