//! From two states of a service to the operations that lead one node's view from one to the other.
//!
//! Most nodes see a service alike: a view depends on the node only through its zone, unless an
//! endpoint runs on the node or is hinted for it. So a change is worked out once per zone and shared
//! by all watchers that see it alike; a service of a thousand endpoints costs a thousand watchers
//! little more than one.

use std::collections::HashSet;
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use telaio_model::{EndpointRef, ObjectKey, Op};

use crate::state::ServiceState;
use crate::view::{NodeContext, ServiceView, Wants, service_view};

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
    fn is_empty(&self) -> bool {
        let Self {
            services_set,
            anonymous_deleted,
            named_set,
            named_deleted,
            anonymous_set,
            services_deleted,
            objects,
        } = self;
        let all = [
            services_set,
            anonymous_deleted,
            named_set,
            named_deleted,
            anonymous_set,
            services_deleted,
            objects,
        ];
        all.iter().all(|ops| ops.is_empty())
    }

    /// What leads a node's view of one service from one state to another.
    pub(crate) fn between(
        key: &ObjectKey,
        before: Option<&ServiceState>,
        after: Option<&ServiceState>,
        node: &NodeContext,
        wants: &Wants,
    ) -> Self {
        let view = |state: Option<&ServiceState>| service_view(state?, node, wants);
        let mut phases = Self::default();
        phases.add(key, view(before).as_ref(), view(after).as_ref());
        phases
    }

    fn add(&mut self, key: &ObjectKey, before: Option<&ServiceView>, after: Option<&ServiceView>) {
        match (before, after) {
            (_, Some(new)) if before.is_none_or(|old| old.service != new.service) => {
                self.services_set.push(Op::SetService(new.service.clone()));
            }
            (Some(_), None) => self.services_deleted.push(Op::DeleteService(key.clone())),
            _ => {}
        }
        for (id, old) in before.iter().flat_map(|view| &view.endpoints) {
            if after.is_none_or(|view| !view.endpoints.contains_key(id)) {
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

    /// Adds the operations of another service.
    pub(crate) fn append(&mut self, other: &Self) {
        self.services_set.extend_from_slice(&other.services_set);
        self.anonymous_deleted.extend_from_slice(&other.anonymous_deleted);
        self.named_set.extend_from_slice(&other.named_set);
        self.named_deleted.extend_from_slice(&other.named_deleted);
        self.anonymous_set.extend_from_slice(&other.anonymous_set);
        self.services_deleted.extend_from_slice(&other.services_deleted);
        self.objects.extend_from_slice(&other.objects);
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

/// Nodes that see a service alike, as far as it is none of their own.
pub(crate) type Class = (Option<Arc<str>>, bool, bool);

/// The class of a node's watcher.
pub(crate) fn class_of(node: &NodeContext, wants: &Wants) -> Class {
    (node.zone.clone(), wants.serving_endpoints, wants.all_services)
}

/// How many classes are remembered for one change; with more zones than that, each works for itself.
pub(crate) const CLASSES_MAX: usize = 64;

/// One service before and after a commit.
#[derive(Debug)]
pub struct ServiceDelta {
    /// The service.
    pub key: ObjectKey,
    /// What it was.
    pub before: Option<Arc<ServiceState>>,
    /// What it is.
    pub after: Option<Arc<ServiceState>>,
    /// Nodes that an endpoint runs on or is hinted for, before or after.
    concerned: OnceLock<HashSet<Arc<str>>>,
    shared: Mutex<Vec<(Class, Arc<Phases>)>>,
}

impl ServiceDelta {
    /// A change from one state to another.
    pub(crate) fn new(
        key: ObjectKey,
        before: Option<Arc<ServiceState>>,
        after: Option<Arc<ServiceState>>,
    ) -> Self {
        Self { key, before, after, concerned: OnceLock::new(), shared: Mutex::default() }
    }

    /// Whether the change means anything for a node that wants this: there are operations of it. Worked out once
    /// for all that ask alike, watchers too.
    pub fn concerns(&self, node: &NodeContext, wants: &Wants) -> bool {
        !self.phases(node, wants).is_empty()
    }

    /// What the change means for a node, worked out once for all that see it alike.
    pub(crate) fn phases(&self, node: &NodeContext, wants: &Wants) -> Arc<Phases> {
        let work = || {
            let (before, after) = (self.before.as_deref(), self.after.as_deref());
            Arc::new(Phases::between(&self.key, before, after, node, wants))
        };
        if self.concerned.get_or_init(|| self.find_concerned()).contains(&node.name) {
            return work();
        }
        let class = class_of(node, wants);
        // Held while it is worked out: the others would only do the same work beside it.
        let mut shared = self.shared.lock();
        if let Some((_, phases)) = shared.iter().find(|(known, _)| *known == class) {
            return Arc::clone(phases);
        }
        let phases = work();
        if shared.len() < CLASSES_MAX {
            shared.push((class, Arc::clone(&phases)));
        }
        phases
    }

    fn find_concerned(&self) -> HashSet<Arc<str>> {
        let states = self.before.iter().chain(&self.after);
        let endpoints =
            states.flat_map(|state| state.all_slices()).flat_map(|slice| &slice.endpoints);
        let mut nodes = HashSet::new();
        for endpoint in endpoints {
            nodes.extend(endpoint.node.clone());
            nodes.extend(endpoint.hints.iter().flat_map(|hints| hints.nodes.iter().cloned()));
        }
        nodes
    }
}
