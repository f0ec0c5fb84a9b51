//! One service as the store keeps it: the unit that changes, is compared and is sent together.

use std::collections::HashSet;
use std::sync::Arc;

use telaio_model::endpoints::TriggerTime;
use telaio_model::{
    AddressType, Endpoint, EndpointPort, EndpointSlice, ObjectKey, Override, OverrideAction,
    OverrideTarget, Service, TargetPort,
};

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
    /// The endpoints that overrides add, a slice each: after all others, so that what the cluster
    /// says of an address counts.
    pub(crate) added: Vec<EndpointSlice>,
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
        let added: Vec<EndpointSlice> = match &service {
            Some(service) => overrides.iter().filter_map(|it| added(service, it)).collect(),
            None => Vec::new(),
        };
        let overlapping = slices
            .iter()
            .map(|slice| &**slice)
            .chain(&added)
            .flat_map(|slice| &slice.endpoints)
            .any(|endpoint| !seen.insert(endpoint.address));
        Self { key, service, slices, overrides, added, overlapping, wire: WireCache::default() }
    }

    /// Its slices, and then those that overrides add.
    pub fn all_slices(&self) -> impl Iterator<Item = &EndpointSlice> {
        self.slices.iter().map(|slice| &**slice).chain(&self.added)
    }

    /// Whether a slice of [`all_slices`](Self::all_slices) is one that an override adds.
    pub fn is_added(&self, slice: &EndpointSlice) -> bool {
        self.added.iter().any(|it| std::ptr::eq(it, slice))
    }

    /// Whether an endpoint runs on the node or is hinted for it. If not, the node sees the service
    /// as every other node of its zone does.
    pub(crate) fn concerns(&self, node: &str) -> bool {
        let here = |name: &Arc<str>| &**name == node;
        self.all_slices().flat_map(|slice| &slice.endpoints).any(|endpoint| {
            endpoint.node.as_ref().is_some_and(here)
                || endpoint.hints.as_ref().is_some_and(|hints| hints.nodes.iter().any(here))
        })
    }

    /// Nothing is known of the service any more.
    pub fn is_empty(&self) -> bool {
        self.service.is_none() && self.slices.is_empty() && self.overrides.is_empty()
    }
}

/// The slice that an override stands for, if it adds an endpoint. A port of the service whose target
/// is only a name is not served where the override gives no number.
fn added(service: &Service, entry: &Override) -> Option<EndpointSlice> {
    let (OverrideAction::Add(added), OverrideTarget::Address(address)) =
        (&entry.action, &entry.target)
    else {
        return None;
    };
    let ports = service.ports.iter().filter_map(|port| {
        let number = added.port.or(match port.target_port {
            TargetPort::Number(number) => Some(number),
            TargetPort::Name(_) => None,
        })?;
        Some(EndpointPort {
            name: port.name.clone(),
            protocol: Some(port.protocol),
            port: Some(number),
        })
    });
    let endpoint =
        Endpoint { node: added.node.clone(), weight: added.weight, ..Endpoint::at(*address) };
    Some(EndpointSlice {
        key: entry.meta.key.clone(),
        service: Some(entry.object.name.clone()),
        address_type: if address.is_ipv4() { AddressType::IPv4 } else { AddressType::IPv6 },
        endpoints: vec![endpoint],
        ports: ports.collect(),
        triggered: TriggerTime(None),
    })
}
