//! From two views of a service to the operations that lead from one to the other.

use std::sync::Arc;

use telaio_model::{EndpointRef, ObjectKey, Op};

use crate::view::ServiceView;

/// The operations of one difference, gathered service by service and sent in KPNG's order: services
/// set, anonymous endpoints deleted, named endpoints set, named deleted, anonymous set, services
/// deleted. A receiver that acts on each at once never sees an endpoint before its service.
#[derive(Debug, Default)]
pub(crate) struct Phases {
    services_set: Vec<Op>,
    anonymous_deleted: Vec<Op>,
    named_set: Vec<Op>,
    named_deleted: Vec<Op>,
    anonymous_set: Vec<Op>,
    services_deleted: Vec<Op>,
    objects: Vec<Op>,
}

impl Phases {
    /// Adds what leads from `before` to `after`.
    pub(crate) fn add(
        &mut self,
        key: &ObjectKey,
        before: Option<&ServiceView>,
        after: Option<&ServiceView>,
    ) {
        match (before, after) {
            (_, Some(new)) if before.is_none_or(|old| old.service != new.service) => {
                self.services_set.push(Op::SetService(new.service.clone()));
            }
            (Some(_), None) => self.services_deleted.push(Op::DeleteService(key.clone())),
            _ => {}
        }
        for (id, old) in before.iter().flat_map(|view| &view.endpoints) {
            let stays = after.and_then(|view| view.endpoints.get(id));
            // An endpoint that turns from a pod's into an anonymous one keeps neither order nor name.
            if stays.is_none() {
                let list = if old.is_named() {
                    &mut self.named_deleted
                } else {
                    &mut self.anonymous_deleted
                };
                let key = EndpointRef { service: key.clone(), id: id.clone() };
                list.push(Op::DeleteEndpoint(key));
            }
        }
        for (id, new) in after.iter().flat_map(|view| &view.endpoints) {
            if before.and_then(|view| view.endpoints.get(id)) != Some(new) {
                let list =
                    if new.is_named() { &mut self.named_set } else { &mut self.anonymous_set };
                list.push(Op::SetEndpoint(Arc::clone(new)));
            }
        }
    }

    /// Adds an operation on an object of another kind.
    pub(crate) fn add_object(&mut self, op: Op) {
        self.objects.push(op);
    }

    /// The operations in order; none if nothing differs.
    pub(crate) fn into_ops(self) -> Vec<Op> {
        let mut ops = self.services_set;
        ops.extend(self.anonymous_deleted);
        ops.extend(self.named_set);
        ops.extend(self.named_deleted);
        ops.extend(self.anonymous_set);
        ops.extend(self.services_deleted);
        ops.extend(self.objects);
        ops
    }
}
