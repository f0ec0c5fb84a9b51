//! One service as the store keeps it: the unit that changes, is compared and is sent together.

use std::collections::HashSet;
use std::sync::Arc;

use telaio_model::{EndpointSlice, ObjectKey, Override, Service};

use crate::whole::WireCache;

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
    /// The service ready for the wire, while many watchers join at once.
    pub(crate) wire: WireCache,
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
        Self { key, service, slices, overrides, overlapping, wire: WireCache::default() }
    }

    /// Whether an endpoint runs on the node or is hinted for it. If not, the node sees the service
    /// as every other node of its zone does.
    pub(crate) fn concerns(&self, node: &str) -> bool {
        let here = |name: &Arc<str>| &**name == node;
        self.slices.iter().flat_map(|slice| &slice.endpoints).any(|endpoint| {
            endpoint.node.as_ref().is_some_and(here)
                || endpoint.hints.as_ref().is_some_and(|hints| hints.nodes.iter().any(here))
        })
    }

    /// Nothing is known of the service any more.
    pub fn is_empty(&self) -> bool {
        self.service.is_none() && self.slices.is_empty() && self.overrides.is_empty()
    }
}
