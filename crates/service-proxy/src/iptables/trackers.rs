//! What changed since it was last asked: services, endpoints, and what the cluster says about the node.
//!
//! The decoder tells the trackers of each change as it comes; at a sync [`take_changes`] joins both into
//! the services that differ. An endpoint may come before its service, or stay behind it: it is kept, and
//! counts when there is a service.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use telaio_model::{
    EndpointRef, LocalEndpoint, LocalService, Object, ObjectKey, ObjectRef, ServiceEndpoints,
};

use crate::config::NodeFacts;

use super::proxier::Changes;

/// The services, and which of them changed.
#[derive(Debug, Default)]
pub struct ServiceChangeTracker {
    services: BTreeMap<ObjectKey, Arc<LocalService>>,
    changed: BTreeSet<ObjectKey>,
}

impl ServiceChangeTracker {
    /// The service is now this.
    pub fn update(&mut self, service: &Arc<LocalService>) {
        let before = self.services.insert(service.key.clone(), Arc::clone(service));
        if before.as_ref() != Some(service) {
            self.changed.insert(service.key.clone());
        }
    }

    /// The service is no more.
    pub fn delete(&mut self, key: &ObjectKey) {
        if self.services.remove(key).is_some() {
            self.changed.insert(key.clone());
        }
    }

    /// No service is any more.
    pub fn clear(&mut self) {
        self.changed.extend(std::mem::take(&mut self.services).into_keys());
    }
}

/// The endpoints of each service, and which services have others than before.
#[derive(Debug, Default)]
pub struct EndpointChangeTracker {
    /// Each list is ordered by name.
    endpoints: BTreeMap<ObjectKey, Vec<Arc<LocalEndpoint>>>,
    changed: BTreeSet<ObjectKey>,
}

impl EndpointChangeTracker {
    /// The endpoint is now this.
    pub fn update(&mut self, endpoint: &Arc<LocalEndpoint>) {
        let service = &endpoint.key.service;
        let endpoints = self.endpoints.entry(service.clone()).or_default();
        match endpoints.binary_search_by(|other| other.key.id.cmp(&endpoint.key.id)) {
            Ok(at) if endpoints[at] == *endpoint => return,
            Ok(at) => endpoints[at] = Arc::clone(endpoint),
            Err(at) => endpoints.insert(at, Arc::clone(endpoint)),
        }
        self.changed.insert(service.clone());
    }

    /// The endpoint is no more.
    pub fn delete(&mut self, key: &EndpointRef) {
        let Some(endpoints) = self.endpoints.get_mut(&key.service) else { return };
        if let Ok(at) = endpoints.binary_search_by(|other| other.key.id.cmp(&key.id)) {
            endpoints.remove(at);
            if endpoints.is_empty() {
                self.endpoints.remove(&key.service);
            }
            self.changed.insert(key.service.clone());
        }
    }

    /// No endpoint is any more.
    pub fn clear(&mut self) {
        self.changed.extend(std::mem::take(&mut self.endpoints).into_keys());
    }
}

/// The services that changed, or whose endpoints did, as they are now.
pub fn take_changes(
    services: &mut ServiceChangeTracker,
    endpoints: &mut EndpointChangeTracker,
) -> Changes {
    let mut changed = std::mem::take(&mut services.changed);
    changed.append(&mut endpoints.changed);
    let now = |key: &ObjectKey| {
        let service = Arc::clone(services.services.get(key)?);
        let endpoints = endpoints.endpoints.get(key).cloned().unwrap_or_default();
        Some(ServiceEndpoints { service, endpoints })
    };
    changed.into_iter().map(|key| (key.clone(), now(&key))).collect()
}

/// What the cluster says about the node.
#[derive(Debug)]
pub struct NodeTracker {
    node: ObjectKey,
    facts: NodeFacts,
    service_cidrs: BTreeMap<ObjectKey, Vec<ipnet::IpNet>>,
}

impl NodeTracker {
    /// For the node of this name.
    pub fn new(node: &Arc<str>) -> Self {
        Self {
            node: ObjectKey::cluster(Arc::clone(node)),
            facts: NodeFacts::default(),
            service_cidrs: BTreeMap::new(),
        }
    }

    /// An object of the cluster is now this; other nodes and other kinds do not matter.
    pub fn update(&mut self, object: &Object) {
        match object {
            Object::Node(node) if node.meta.key == self.node => self.facts = NodeFacts::of(node),
            Object::ServiceCidr(cidr) => {
                self.service_cidrs.insert(cidr.meta.key.clone(), cidr.cidrs.clone());
            }
            _ => {}
        }
    }

    /// An object of the cluster is no more. What was said about the node stands: it runs, after all.
    pub fn delete(&mut self, object: &ObjectRef) {
        if object.kind == telaio_model::Kind::ServiceCidr {
            self.service_cidrs.remove(&object.key);
        }
    }

    /// Networks of cluster addresses will be told anew.
    pub fn clear(&mut self) {
        self.service_cidrs.clear();
    }

    /// All that was said.
    pub fn facts(&self) -> NodeFacts {
        let service_cidrs = self.service_cidrs.values().flatten().copied().collect();
        NodeFacts { service_cidrs, ..self.facts.clone() }
    }
}
