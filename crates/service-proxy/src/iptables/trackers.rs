//! What changed since it was last asked: services, endpoints, and what the cluster says about the node.
//!
//! The decoder tells the trackers of each change as it comes; at a sync [`take_changes`] joins both into
//! the services that differ. An endpoint may come before its service, or stay behind it: it is kept, and
//! counts when there is a service.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
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
        Some(ServiceEndpoints { service, endpoints: endpoints.into() })
    };
    changed.into_iter().map(|key| (key.clone(), now(&key))).collect()
}

/// What the cluster says about the node: its Node object, and the networks of cluster addresses.
#[derive(Debug)]
pub struct NodeTracker {
    name: Arc<str>,
    /// Addresses that the operator names; they come first.
    addresses: Vec<IpAddr>,
    objects: BTreeMap<ObjectRef, Object>,
}

impl NodeTracker {
    /// For the node of this name.
    pub fn new(name: Arc<str>, addresses: Vec<IpAddr>) -> Self {
        Self { name, addresses, objects: BTreeMap::new() }
    }

    /// The node's name.
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// An object of the cluster is now this; other nodes and other kinds do not matter.
    pub fn update(&mut self, object: &Object) {
        let matters = match object {
            Object::Node(node) => node.meta.key.name == self.name,
            Object::ServiceCidr(_) => true,
            _ => false,
        };
        if matters {
            self.objects.insert(object.object_ref(), object.clone());
        }
    }

    /// An object of the cluster is no more.
    pub fn delete(&mut self, object: &ObjectRef) {
        self.objects.remove(object);
    }

    /// Everything will be told anew.
    pub fn clear(&mut self) {
        self.objects.clear();
    }

    /// All that was said.
    pub fn facts(&self) -> NodeFacts {
        NodeFacts::from_objects(&self.name, &self.addresses, self.objects.values())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::Fixture;

    #[test]
    fn an_endpoint_counts_when_its_service_comes_and_only_changes_are_told() {
        let entry = Fixture::new("web").cluster_ip([10, 96, 0, 1]).remote([10, 244, 2, 1]).build();
        let (mut services, mut endpoints) = Default::default();
        let (services, endpoints): (&mut ServiceChangeTracker, &mut EndpointChangeTracker) =
            (&mut services, &mut endpoints);
        endpoints.update(&entry.endpoints[0]);
        let key = entry.service.key.clone();
        assert_eq!(take_changes(services, endpoints), Changes::from([(key.clone(), None)]));
        services.update(&entry.service);
        let changes = take_changes(services, endpoints);
        assert_eq!(changes, Changes::from([(key.clone(), Some(entry.clone()))]));
        services.update(&entry.service);
        endpoints.update(&entry.endpoints[0]);
        assert_eq!(take_changes(services, endpoints), Changes::new());
        endpoints.delete(&entry.endpoints[0].key);
        let gone = ServiceEndpoints { endpoints: Arc::default(), ..entry.clone() };
        assert_eq!(take_changes(services, endpoints), Changes::from([(key.clone(), Some(gone))]));
        services.delete(&key);
        assert_eq!(take_changes(services, endpoints), Changes::from([(key, None)]));
    }
}
