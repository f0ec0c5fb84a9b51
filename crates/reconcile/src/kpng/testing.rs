//! Values and sinks for the tests of this module.

use std::sync::Arc;

use proptest::prelude::*;
use serde::de::DeserializeOwned;
use telaio_model::{
    ConfigMap, EndpointRef, Kind, LocalEndpoint, LocalService, Meta, Object, ObjectKey, ObjectRef,
    Op,
};

use crate::kpng::{Sink, SinkError, State};

pub(super) fn key(service: &str) -> ObjectKey {
    ObjectKey::new("default", service)
}

pub(super) fn service(name: &str, port: u16) -> Arc<LocalService> {
    from_json(serde_json::json!({
        "namespace": "default",
        "name": name,
        "type": "ClusterIP",
        "clusterIPs": ["10.0.0.1"],
        "ports": [{ "protocol": "TCP", "port": port }],
    }))
}

/// Values are written as JSON, so that these tests do not care for fields that they do not use.
fn from_json<T: DeserializeOwned>(json: serde_json::Value) -> Arc<T> {
    Arc::new(serde_json::from_value(json).unwrap())
}

pub(super) fn endpoint_ref(service: &str, id: &str) -> EndpointRef {
    EndpointRef { service: key(service), id: id.into() }
}

pub(super) fn endpoint(service: &str, id: &str, weight: u16) -> Arc<LocalEndpoint> {
    from_json(serde_json::json!({
        "service": { "namespace": "default", "name": service },
        "id": id,
        "ips": ["10.1.0.1"],
        "conditions": { "ready": true, "serving": true, "terminating": false },
        "weight": weight,
    }))
}

pub(super) fn object_ref(name: &str) -> ObjectRef {
    ObjectRef::new(Kind::ConfigMap, key(name))
}

pub(super) fn object(name: &str, content: &str) -> Object {
    let data = [("content".into(), content.into())].into();
    Object::from(ConfigMap { meta: Meta::named(key(name)), data })
}

/// The ops that lead from nothing to `state`, without `Reset` and `Sync`; orphans are not in it.
/// The content is copied, so that it is equal without being the same, as after a new connection.
pub(super) fn replay(state: &State) -> Vec<Op> {
    let services = state.services().map(|entry| Op::SetService(Arc::new((*entry.service).clone())));
    let endpoints = state.services().flat_map(|entry| entry.endpoints.iter());
    let endpoints = endpoints.map(|endpoint| Op::SetEndpoint(Arc::new((**endpoint).clone())));
    let objects = state.objects().map(|object| Op::SetObject(object.clone()));
    services.chain(endpoints).chain(objects).collect()
}

/// A step that changes one thing, of few enough things that they meet often. Content is made anew
/// each time, so that it is equal without being the same.
pub(super) fn any_step() -> impl Strategy<Value = Op> {
    let name = || prop_oneof![Just("a"), Just("b"), Just("c")];
    let id = || prop_oneof![Just("x"), Just("y"), Just("z")];
    prop_oneof![
        3 => (name(), 1..4_u16).prop_map(|(name, port)| Op::SetService(service(name, port))),
        2 => name().prop_map(|name| Op::DeleteService(key(name))),
        5 => (name(), id(), 1..4_u16).prop_map(|(s, e, w)| Op::SetEndpoint(endpoint(s, e, w))),
        3 => (name(), id()).prop_map(|(s, e)| Op::DeleteEndpoint(endpoint_ref(s, e))),
        1 => (name(), id()).prop_map(|(name, text)| Op::SetObject(object(name, text))),
        1 => name().prop_map(|name| Op::DeleteObject(object_ref(name))),
    ]
}

/// A sink that keeps the state and the ops that it was sent.
#[derive(Debug, Default)]
pub(super) struct Recorder {
    pub(super) state: State,
    pub(super) ops: Vec<Op>,
    /// The next ops are taken before one fails; `None`: none fails.
    pub(super) fail_after: Option<usize>,
    /// Whether an op that fails was taken all the same.
    pub(super) fail_late: bool,
}

impl Sink for Recorder {
    fn setup(&mut self) -> Result<(), SinkError> {
        Ok(())
    }

    fn wait_request(&mut self) -> Result<Arc<str>, SinkError> {
        Ok("node-1".into())
    }

    fn reset(&mut self) -> Result<(), SinkError> {
        self.send(Op::Reset)
    }

    fn send(&mut self, op: Op) -> Result<(), SinkError> {
        let fails = match &mut self.fail_after {
            Some(0) => {
                self.fail_after = None;
                true
            }
            Some(left) => {
                *left -= 1;
                false
            }
            None => false,
        };
        if !fails || self.fail_late {
            self.ops.push(op.clone());
            self.state.apply(op);
        }
        if fails { Err(SinkError::other("told to fail")) } else { Ok(()) }
    }
}
