//! What a control plane would do for a directory of manifests.
//!
//! Kubernetes' own control plane gives a Service its cluster address and node ports and makes
//! EndpointSlices of the Pods that its selector names. People without Kubernetes have nobody who
//! does that, so the directory source does it here, the same way.
//!
//! What always holds:
//! - no I/O: changes go in, changes come out, and [`Allocations`] can be saved and given back;
//! - an address or port that was given stays with its service until the service goes, unless
//!   somebody writes that address into another manifest: what is written wins over what was given;
//! - of two services that write the same address the first, by creation time and then by path,
//!   keeps it, whichever arrives first; the other is refused and the problem names both;
//! - a change costs what it touches: a Pod, the services of its namespace; a Service without a
//!   selector, itself.
//!
//! ```
//! use telaio_model::{IpFamily, Meta, Object, ObjectChange, ObjectKey, Pod};
//! use telaio_source::control_plane::{Allocations, Change, ControlPlane, Declared, Options, Origin};
//!
//! let options = Options { service_cidrs: vec!["10.96.0.0/16".parse()?], ..Options::default() };
//! let mut control_plane = ControlPlane::new(options, &Allocations::default());
//! # let service: telaio_model::Service = serde_json::from_str(
//! #     r#"{"meta": {"namespace": "default", "name": "web"}, "ports": [{"port": 80, "targetPort": 80}]}"#)?;
//! let declared = Declared::new(Object::from(service), Origin::new("web.yaml", 1));
//! let outcome = control_plane.apply([Change::Set(declared)]);
//! let [ObjectChange::Set(Object::Service(web))] = outcome.changes.as_slice() else { panic!() };
//! assert!(web.cluster_ips[0].to_string().starts_with("10.96."));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::RangeInclusive;
use std::path::Path;
use std::sync::Arc;

use ipnet::IpNet;
use telaio_model::{
    EndpointSlice, FieldError, Kind, Node, Object, ObjectChange, ObjectKey, ObjectRef, Pod, Service,
};

use crate::manifest::ServiceAllocation;

mod claims;
mod instances;
mod ledger;
mod pool;
mod state;

pub use ledger::{Allocations, GivenToService};
pub use state::{StateError, load_allocations, save_allocations};

use claims::Claimant;
use instances::Instances;
use ledger::Ledger;

/// Kubernetes' default range of node ports.
pub const NODE_PORTS_DEFAULT: RangeInclusive<u16> = 30_000..=32_767;

/// From what addresses and ports are given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// The networks of cluster addresses. The first one's family is the family of services that name
    /// none. Without a network, a service that brings no address is refused.
    pub service_cidrs: Vec<IpNet>,
    /// The range of node ports.
    pub node_ports: RangeInclusive<u16>,
}

impl Default for Options {
    fn default() -> Self {
        Self { service_cidrs: Vec::new(), node_ports: NODE_PORTS_DEFAULT }
    }
}

/// Where an object was declared. The order is that of the paths.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Origin {
    /// The file.
    pub file: Arc<Path>,
    /// The line, from 1.
    pub line: u32,
}

impl Origin {
    /// An origin from its parts.
    pub fn new(file: impl AsRef<Path>, line: u32) -> Self {
        Self { file: Arc::from(file.as_ref()), line }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file.display(), self.line)
    }
}

/// An object as somebody declared it.
#[derive(Debug, Clone, PartialEq)]
pub struct Declared {
    /// The object.
    pub object: Object,
    /// For a Service: what it leaves to us.
    pub allocation: Option<Box<ServiceAllocation>>,
    /// Where it was declared.
    pub origin: Origin,
}

impl Declared {
    /// An object that leaves nothing in particular to us.
    pub fn new(object: Object, origin: Origin) -> Self {
        Self { object, allocation: None, origin }
    }
}

/// A change to what is declared.
#[derive(Debug, Clone, PartialEq)]
pub enum Change {
    /// The object is now this.
    Set(Declared),
    /// The object is declared no more.
    Delete(ObjectRef),
}

/// What is wrong with a service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// Where it is declared.
    pub origin: Origin,
    /// Why it is refused; empty when it is not, or is no more.
    pub errors: Vec<FieldError>,
}

/// What follows from changes.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Outcome {
    /// The objects that are now different, in order.
    pub changes: Vec<ObjectChange>,
    /// For each service about which there is something new to say: what is wrong with it now.
    pub verdicts: BTreeMap<ObjectKey, Verdict>,
    /// The [`Allocations`] are different.
    pub allocations_changed: bool,
}

/// A service, what was declared of it and what became of it.
struct ServiceEntry {
    claimant: Claimant,
    declared: Arc<Service>,
    allocation: Option<Box<ServiceAllocation>>,
    /// What was sent on; `None` while it is refused.
    served: Option<Arc<Service>>,
    errors: Vec<FieldError>,
    /// The pods of its namespace that its selector names.
    pods: BTreeSet<Arc<str>>,
    /// The slices that were made for it.
    slices: BTreeMap<ObjectKey, Arc<EndpointSlice>>,
}

impl ServiceEntry {
    /// Whether its endpoints come from pods.
    fn has_selector(&self) -> bool {
        !self.declared.selector.is_empty() && self.declared.external_name.is_none()
    }

    /// What it leaves to us.
    fn allocation(&self) -> &ServiceAllocation {
        static NOTHING_IN_PARTICULAR: ServiceAllocation =
            ServiceAllocation { families: Vec::new(), policy: None, without_node_ports: false };
        self.allocation.as_deref().unwrap_or(&NOTHING_IN_PARTICULAR)
    }

    fn selects(&self, pod: &Pod) -> bool {
        self.has_selector()
            && self.declared.selector.iter().all(|(k, v)| pod.meta.labels.get(k) == Some(v))
    }
}

/// Fills in what manifests leave to a control plane.
pub struct ControlPlane {
    ledger: Ledger,
    services: BTreeMap<ObjectKey, ServiceEntry>,
    instances: Instances,
    /// Services that found no address or port left.
    waiting: BTreeSet<ObjectKey>,
}

/// What has to be looked at again, and what came of it so far.
#[derive(Default)]
struct Pass {
    services: BTreeSet<ObjectKey>,
    slices: BTreeSet<ObjectKey>,
    changes: BTreeMap<ObjectRef, ObjectChange>,
    verdicts: BTreeMap<ObjectKey, Verdict>,
}

impl Pass {
    fn set(&mut self, object: Object) {
        self.changes.insert(object.object_ref(), ObjectChange::Set(object));
    }

    fn verdict(&mut self, claimant: &Claimant, errors: Vec<FieldError>) {
        let origin = claimant.origin.clone();
        self.verdicts.insert(claimant.key.clone(), Verdict { origin, errors });
    }

    fn delete(&mut self, object: ObjectRef) {
        self.changes.insert(object.clone(), ObjectChange::Delete(object));
    }
}

impl ControlPlane {
    /// A control plane for no objects yet, with what an earlier one gave.
    pub fn new(options: Options, allocations: &Allocations) -> Self {
        Self {
            ledger: Ledger::new(options, allocations),
            services: BTreeMap::new(),
            instances: Instances::default(),
            waiting: BTreeSet::new(),
        }
    }

    /// Takes changes that belong together.
    ///
    /// All addresses that are written in them count before any is given, so the order within does
    /// not matter.
    pub fn apply(&mut self, changes: impl IntoIterator<Item = Change>) -> Outcome {
        let first = self.services.is_empty();
        let mut pass = Pass::default();
        for change in changes {
            match change {
                Change::Set(declared) => self.set(declared, &mut pass),
                Change::Delete(object) => self.delete(&object, &mut pass),
            }
        }
        if first {
            // Built in one go the map has no room to spare; filled one by one it has nearly as much as
            // it holds.
            self.services = std::mem::take(&mut self.services).into_iter().collect();
        }
        for key in std::mem::take(&mut pass.services) {
            self.evaluate(&key, &mut pass);
        }
        if self.ledger.take_freed() {
            for key in self.waiting.clone() {
                self.evaluate(&key, &mut pass);
            }
        }
        for key in std::mem::take(&mut pass.slices) {
            self.update_slices(&key, &mut pass);
        }
        Outcome {
            changes: pass.changes.into_values().collect(),
            verdicts: pass.verdicts,
            allocations_changed: self.ledger.take_changed(),
        }
    }

    /// What was given so far; to be saved.
    pub fn allocations(&self) -> &Allocations {
        self.ledger.allocations()
    }

    /// Takes back what was given to services that are not declared, and says whether there were any.
    ///
    /// For after a start, when everything that is declared has been read: a service whose file could
    /// not be read is not gone.
    pub fn release_undeclared(&mut self) -> bool {
        let services = &self.services;
        self.ledger.release_unless(|key| services.contains_key(key));
        self.ledger.take_changed()
    }

    fn set(&mut self, declared: Declared, pass: &mut Pass) {
        match &declared.object {
            Object::Service(service) => {
                let service = service.clone();
                self.set_service(service, declared.allocation, declared.origin, pass);
                return;
            }
            Object::Pod(pod) => self.change_pod(&pod.meta.key.clone(), Some(pod.clone()), pass),
            Object::Node(node) => self.change_node(&node.meta.key.name.clone(), Some(node), pass),
            _ => {}
        }
        pass.set(declared.object);
    }

    fn delete(&mut self, object: &ObjectRef, pass: &mut Pass) {
        match object.kind {
            Kind::Service => {
                self.delete_service(&object.key, pass);
                return;
            }
            Kind::Pod => self.change_pod(&object.key, None, pass),
            Kind::Node => self.change_node(&object.key.name, None, pass),
            _ => {}
        }
        pass.delete(object.clone());
    }

    fn set_service(
        &mut self,
        declared: Arc<Service>,
        allocation: Option<Box<ServiceAllocation>>,
        origin: Origin,
        pass: &mut Pass,
    ) {
        let key = declared.meta.key.clone();
        let claimant = Claimant::new(&declared, origin);
        let previous = self.services.remove(&key);
        if let Some(previous) = &previous {
            let affected = self.ledger.withdraw(&previous.claimant, &previous.declared);
            pass.services.extend(affected);
        }
        pass.services.extend(self.ledger.declare(&claimant, &declared));
        let same_selector = previous.as_ref().is_some_and(|previous| {
            previous.declared.selector == declared.selector
                && previous.declared.external_name.is_none() == declared.external_name.is_none()
        });
        let mut entry = ServiceEntry {
            claimant,
            declared,
            allocation,
            served: None,
            errors: Vec::new(),
            pods: BTreeSet::new(),
            slices: BTreeMap::new(),
        };
        if let Some(previous) = previous {
            if previous.claimant.origin != entry.claimant.origin && !previous.errors.is_empty() {
                // Whoever shows the verdict must learn that it stands elsewhere now.
                pass.verdict(&entry.claimant, previous.errors.clone());
            }
            entry.served = previous.served;
            entry.errors = previous.errors;
            entry.pods = previous.pods;
            entry.slices = previous.slices;
        }
        if !same_selector {
            let pods = self.instances.pods_of(&key.namespace);
            entry.pods = pods
                .filter(|pod| entry.selects(pod))
                .map(|pod| pod.meta.key.name.clone())
                .collect();
        }
        self.services.insert(key.clone(), entry);
        pass.services.insert(key);
    }

    fn delete_service(&mut self, key: &ObjectKey, pass: &mut Pass) {
        let Some(entry) = self.services.remove(key) else { return };
        pass.services.extend(self.ledger.withdraw(&entry.claimant, &entry.declared));
        pass.services.remove(key);
        self.ledger.release(key);
        self.waiting.remove(key);
        for slice in entry.slices.into_keys() {
            pass.delete(ObjectRef::new(Kind::EndpointSlice, slice));
        }
        if entry.served.is_some() {
            pass.delete(ObjectRef::new(Kind::Service, key.clone()));
        }
        if !entry.errors.is_empty() {
            pass.verdict(&entry.claimant, Vec::new());
        }
    }

    fn change_pod(&mut self, key: &ObjectKey, pod: Option<Arc<Pod>>, pass: &mut Pass) {
        let from = ObjectKey::new(key.namespace.clone(), "");
        for (service, entry) in self.services.range_mut(from..) {
            if service.namespace != key.namespace {
                break;
            }
            let selected = pod.as_ref().is_some_and(|pod| entry.selects(pod));
            let was_selected = if selected {
                !entry.pods.insert(key.name.clone())
            } else {
                entry.pods.remove(&key.name)
            };
            if selected || was_selected {
                pass.slices.insert(service.clone());
            }
        }
        self.instances.set_pod(key, pod);
    }

    fn change_node(&mut self, name: &Arc<str>, node: Option<&Arc<Node>>, pass: &mut Pass) {
        let zone = node.and_then(|node| node.zone());
        for pod in self.instances.set_zone(name, zone) {
            let from = ObjectKey::new(pod.namespace.clone(), "");
            let services = self.services.range(from..);
            pass.slices.extend(
                services
                    .take_while(|(service, _)| service.namespace == pod.namespace)
                    .filter(|(_, entry)| entry.pods.contains(&pod.name))
                    .map(|(service, _)| service.clone()),
            );
        }
    }

    /// Looks again at what a service gets.
    fn evaluate(&mut self, key: &ObjectKey, pass: &mut Pass) {
        let Some(entry) = self.services.get_mut(key) else { return };
        let filled = self.ledger.fill(&entry.claimant, &entry.declared, entry.allocation());
        if filled.exhausted {
            self.waiting.insert(key.clone());
        } else {
            self.waiting.remove(key);
        }
        if entry.errors != filled.errors {
            entry.errors.clone_from(&filled.errors);
            pass.verdict(&entry.claimant, filled.errors);
        }
        if entry.served != filled.service {
            match &filled.service {
                Some(service) => pass.set(Object::Service(service.clone())),
                None => pass.delete(ObjectRef::new(Kind::Service, key.clone())),
            }
            entry.served = filled.service;
            pass.slices.insert(key.clone());
        }
    }

    /// Makes the slices of a service anew and sends on those that differ.
    fn update_slices(&mut self, key: &ObjectKey, pass: &mut Pass) {
        let Some(entry) = self.services.get_mut(key) else { return };
        let slices = match &entry.served {
            Some(service) => {
                let families = self.ledger.endpoint_families(service, entry.allocation());
                self.instances.slices(service, &families, &entry.pods)
            }
            None => BTreeMap::new(),
        };
        for gone in entry.slices.keys().filter(|name| !slices.contains_key(*name)) {
            pass.delete(ObjectRef::new(Kind::EndpointSlice, gone.clone()));
        }
        for (name, slice) in &slices {
            if entry.slices.get(name) != Some(slice) {
                pass.set(Object::EndpointSlice(slice.clone()));
            }
        }
        entry.slices = slices;
    }
}

#[cfg(test)]
mod tests;
