//! The raw cluster as operations of the Global API: an endpoint travels alone, named by its slice.

use std::collections::BTreeMap;
use std::sync::Arc;

use telaio_api::global::{GlobalEndpoint, GlobalEndpointKey, GlobalOp, anonymous_id, endpoint_id};
use telaio_model::{EndpointSlice, ObjectKey};

use crate::state::ServiceState;

/// The operations of one difference, in an order in which a receiver never sees an endpoint before
/// its service.
#[derive(Debug, Default)]
pub(crate) struct GlobalPhases {
    pub(crate) objects: Vec<GlobalOp>,
    services_set: Vec<GlobalOp>,
    endpoints: Vec<GlobalOp>,
    services_deleted: Vec<GlobalOp>,
}

impl GlobalPhases {
    pub(crate) fn into_ops(self) -> Vec<GlobalOp> {
        let mut ops = self.objects;
        ops.extend(self.services_set);
        ops.extend(self.endpoints);
        ops.extend(self.services_deleted);
        ops
    }
}

/// What leads from one state of a service to another. Slices that did not change are not looked into.
pub(crate) fn global_service_ops(
    key: &ObjectKey,
    before: Option<&ServiceState>,
    after: Option<&ServiceState>,
    phases: &mut GlobalPhases,
) {
    let old_service = before.and_then(|state| state.service.as_ref());
    match (old_service, after.and_then(|state| state.service.as_ref())) {
        (old, Some(new)) if old != Some(new) => {
            phases.services_set.push(GlobalOp::SetService(Arc::clone(new)));
        }
        (Some(_), None) => phases.services_deleted.push(GlobalOp::DeleteService(key.clone())),
        _ => {}
    }
    let by_name = |state: Option<&ServiceState>| -> BTreeMap<Arc<str>, Arc<EndpointSlice>> {
        let slices = state.map_or(&[][..], |state| &state.slices);
        slices.iter().map(|slice| (slice.key.name.clone(), Arc::clone(slice))).collect()
    };
    let (old, mut new) = (by_name(before), by_name(after));
    for (name, slice) in old {
        let now = new.remove(&name);
        if now.as_ref().is_some_and(|now| Arc::ptr_eq(now, &slice)) {
            continue;
        }
        let was = endpoints_of(key, &slice);
        let is = now.map(|now| endpoints_of(key, &now)).unwrap_or_default();
        for id in was.keys().filter(|id| !is.contains_key(*id)) {
            phases.endpoints.push(GlobalOp::DeleteEndpoint(id.clone()));
        }
        let changed = is.into_iter().filter(|(id, endpoint)| was.get(id) != Some(endpoint));
        phases.endpoints.extend(changed.map(|(_, it)| GlobalOp::SetEndpoint(Arc::new(it))));
    }
    for slice in new.into_values() {
        let fresh = endpoints_of(key, &slice).into_values();
        phases.endpoints.extend(fresh.map(|it| GlobalOp::SetEndpoint(Arc::new(it))));
    }
}

fn endpoints_of(
    service: &ObjectKey,
    slice: &EndpointSlice,
) -> BTreeMap<GlobalEndpointKey, GlobalEndpoint> {
    let mut endpoints = BTreeMap::new();
    let key =
        |id| GlobalEndpointKey { service: service.clone(), source: slice.key.name.clone(), id };
    for endpoint in &slice.endpoints {
        let mut key_of = key(endpoint_id(endpoint, &slice.ports));
        if endpoints.contains_key(&key_of) {
            key_of = key(anonymous_id(endpoint, &slice.ports));
        }
        let global = GlobalEndpoint {
            key: key_of.clone(),
            endpoint: endpoint.clone(),
            ports: slice.ports.clone(),
            ports_complete: true,
        };
        endpoints.insert(key_of, global);
    }
    endpoints
}
