//! One service as the store keeps it: the unit that changes, is compared and is sent together.

use std::collections::HashSet;
use std::sync::Arc;

use telaio_model::{EndpointSlice, ObjectKey, Override, Service};

/// A service, its slices and what people have decided about its endpoints, at one revision.
///
/// Immutable: a change makes a new one that shares what did not change.
#[derive(Debug)]
pub struct ServiceState {
    /// Its namespace and name.
    pub key: ObjectKey,
    /// The service itself; `None` while there are only endpoints of it.
    pub service: Option<Arc<Service>>,
    /// Its slices, ordered by name.
    pub slices: Vec<Arc<EndpointSlice>>,
    /// Overrides in force, ordered by name.
    pub overrides: Vec<Arc<Override>>,
    /// Some address occurs more than once, so that reading the endpoints takes care.
    pub(crate) overlapping: bool,
}

impl ServiceState {
    /// A state from its parts; slices and overrides ordered by name.
    pub fn new(
        key: ObjectKey,
        service: Option<Arc<Service>>,
        slices: Vec<Arc<EndpointSlice>>,
        overrides: Vec<Arc<Override>>,
    ) -> Self {
        let mut seen = HashSet::new();
        let overlapping = slices
            .iter()
            .flat_map(|slice| &slice.endpoints)
            .any(|endpoint| !seen.insert(endpoint.address));
        Self { key, service, slices, overrides, overlapping }
    }

    /// Nothing is known of the service any more.
    pub fn is_empty(&self) -> bool {
        self.service.is_none() && self.slices.is_empty() && self.overrides.is_empty()
    }
}
