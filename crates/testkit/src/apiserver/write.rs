//! Create, update, patch and delete, as the API defines them.

use std::sync::Arc;

use serde_json::{Map, Value};

use super::defaults;
use super::refusal::Refusal;
use super::resource::Resource;
use super::route::ObjectsRoute;
use super::store::{Key, Query, Store, Stored, metadata_mut};

type Object = Map<String, Value>;

/// Creates an object, with defaults filled in.
pub(super) fn create(
    store: &mut Store,
    route: &ObjectsRoute,
    mut object: Object,
) -> Result<Arc<Stored>, Refusal> {
    let resource = store.resource(route.index);
    check_kind(&resource, &object)?;
    place(store, &resource, route, &mut object)?;
    if resource.has_status {
        object.remove("status");
    }
    defaults::fill_in(store, route.index, &mut object)?;
    let key = key_of(route, &object);
    if store.get(route.index, &key).is_some() {
        return Err(Refusal::already_exists(&resource, &key.name));
    }
    Ok(store.put(route.index, object))
}

/// Replaces an object, or only its status.
pub(super) fn update(
    store: &mut Store,
    route: &ObjectsRoute,
    key: &Key,
    mut object: Object,
) -> Result<Arc<Stored>, Refusal> {
    let resource = store.resource(route.index);
    check_kind(&resource, &object)?;
    let before = existing(store, route, &resource, key)?;
    check_unchanged(&resource, &before, &object)?;
    let Value::Object(mut old) = before.value() else {
        return Err(Refusal::new(500, "the stored object is no object"));
    };
    if route.status {
        set_or_remove(&mut old, "status", object.remove("status"));
        return Ok(store.put(route.index, old));
    }
    if resource.has_status {
        set_or_remove(&mut object, "status", old.remove("status"));
    }
    let metadata = metadata_mut(&mut object);
    metadata.insert("name".to_owned(), key.name.clone().into());
    if resource.namespaced {
        metadata.insert("namespace".to_owned(), key.namespace.clone().into());
    }
    Ok(store.put(route.index, object))
}

/// Merges a patch into an object, or into its status. Strategic merge patches are taken as plain
/// merge patches, and server-side apply as a merge that creates what is not there.
pub(super) fn patch(
    store: &mut Store,
    route: &ObjectsRoute,
    key: &Key,
    media_type: &str,
    patch: Object,
) -> Result<(u16, Arc<Stored>), Refusal> {
    let resource = store.resource(route.index);
    let applied = match media_type {
        "application/merge-patch+json" | "application/strategic-merge-patch+json" => false,
        "application/apply-patch+yaml" => true,
        _ => return Err(Refusal::new(415, format_args!("{media_type} is not supported here"))),
    };
    let Some(before) = store.get(route.index, key) else {
        if applied && !route.status {
            let mut object = patch;
            metadata_mut(&mut object).insert("name".to_owned(), key.name.clone().into());
            return Ok((201, create(store, route, object)?));
        }
        return Err(Refusal::not_found(&resource, &key.name));
    };
    check_unchanged(&resource, &before, &patch)?;
    let mut merged = before.value();
    let old_status = merged.get("status").cloned();
    merge(&mut merged, &Value::Object(patch));
    let Value::Object(mut merged) = merged else {
        return Err(Refusal::new(400, "the patch makes the object something else"));
    };
    if route.status {
        let status = merged.remove("status");
        let Value::Object(mut old) = before.value() else {
            return Err(Refusal::new(500, "the stored object is no object"));
        };
        set_or_remove(&mut old, "status", status);
        merged = old;
    } else if resource.has_status {
        set_or_remove(&mut merged, "status", old_status);
    }
    Ok((200, store.put(route.index, merged)))
}

/// Deletes an object, and with a namespace all that is in it. Says whether it was there.
pub(super) fn delete(store: &mut Store, index: usize, key: &Key) -> bool {
    if store.remove(index, key).is_none() {
        return false;
    }
    if store.resource(index).plural == "namespaces" {
        let inside = Query { namespace: Some(key.name.clone()), ..Query::default() };
        for other in 0..store.collections().len() {
            for object in store.select(other, &inside) {
                store.remove(other, &object.key);
            }
        }
    }
    true
}

/// RFC 7386: null removes, objects merge, all else replaces.
fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    let Value::Object(target) = target else { return };
    for (key, value) in patch {
        if value.is_null() {
            target.remove(key);
        } else {
            merge(target.entry(key.clone()).or_insert(Value::Null), value);
        }
    }
}

fn set_or_remove(object: &mut Object, field: &str, value: Option<Value>) {
    match value {
        Some(value) => object.insert(field.to_owned(), value),
        None => object.remove(field),
    };
}

fn check_kind(resource: &Resource, object: &Object) -> Result<(), Refusal> {
    let says = |field: &str, expected: &str| match object.get(field).and_then(Value::as_str) {
        Some(given) if given != expected => Err(Refusal::new(
            400,
            format_args!("{field} {given:?} does not match the path, which means {expected:?}"),
        )),
        _ => Ok(()),
    };
    says("kind", &resource.kind)?;
    says("apiVersion", &resource.api_version())
}

/// Puts a new object into the namespace of the path, which must exist.
fn place(
    store: &Store,
    resource: &Resource,
    route: &ObjectsRoute,
    object: &mut Object,
) -> Result<(), Refusal> {
    let metadata = metadata_mut(object);
    if !resource.namespaced {
        metadata.remove("namespace");
        return Ok(());
    }
    let namespace = route
        .namespace
        .as_deref()
        .ok_or_else(|| Refusal::new(405, "objects of this kind are created in a namespace"))?;
    if metadata.get("namespace").and_then(Value::as_str).is_some_and(|given| given != namespace) {
        return Err(Refusal::new(
            400,
            "the namespace of the provided object does not match the namespace sent on the request",
        ));
    }
    let exists = store
        .find(|r| r.plural == "namespaces" && r.group.is_empty())
        .is_some_and(|index| store.get(index, &Key::new("", namespace)).is_some());
    if !exists {
        return Err(Refusal::new(404, format_args!("namespaces {namespace:?} not found")));
    }
    metadata.insert("namespace".to_owned(), namespace.into());
    Ok(())
}

fn key_of(route: &ObjectsRoute, object: &Object) -> Key {
    let name = object.get("metadata").and_then(|m| m.get("name")).and_then(Value::as_str);
    Key::new(route.namespace.as_deref().unwrap_or_default(), name.unwrap_or_default())
}

fn existing(
    store: &Store,
    route: &ObjectsRoute,
    resource: &Resource,
    key: &Key,
) -> Result<Arc<Stored>, Refusal> {
    store.get(route.index, key).ok_or_else(|| Refusal::not_found(resource, &key.name))
}

/// A write that names the version it is based on must be based on the present one.
fn check_unchanged(resource: &Resource, before: &Stored, object: &Object) -> Result<(), Refusal> {
    let based_on = object
        .get("metadata")
        .and_then(|metadata| metadata.get("resourceVersion"))
        .and_then(Value::as_str)
        .filter(|version| !version.is_empty());
    match based_on {
        Some(version) if version != before.version.to_string() => {
            Err(Refusal::conflict(resource, &before.key.name))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::merge;

    #[test]
    fn a_merge_patch_adds_replaces_and_removes() {
        let mut object = json!({"a": {"b": 1, "c": 2}, "list": [1, 2], "gone": true});
        merge(
            &mut object,
            &json!({"a": {"b": 3, "d": {"e": null, "f": 1}}, "list": [9], "gone": null}),
        );
        assert_eq!(object, json!({"a": {"b": 3, "c": 2, "d": {"f": 1}}, "list": [9]}));
    }
}
