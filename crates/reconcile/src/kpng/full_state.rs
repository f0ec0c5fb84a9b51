//! Backends that are called with the whole node view.
//!
//! [`FullState`] is a [`Sink`] that keeps the view and at each `Sync` hands it to a
//! [`FullStateCallback`], together with the names of what was [`Changed`]. A callback may look at
//! everything, or only at what changed and cost O(change).
//!
//! What always holds:
//! - Services come in order of their key, endpoints of a service in order of their name.
//! - Every service that differs from the last successful callback is in `changed`; after an error
//!   they are named again, with what came since.
//! - An endpoint without its service is kept aside and joins when the service comes.
//! - An empty view is called back like any other.
//!
//! A source that reconnects sends the whole view again. A sink made by
//! [`across_resets`](FullState::across_resets) compares the two, and `changed` has only what differs:
//! what [`FilterReset`](crate::kpng::FilterReset) does for any sink, without keeping the view twice.
//!
//! ```
//! use telaio_model::{ObjectKey, Op};
//! use telaio_reconcile::kpng::{Changed, FullState, Sink, SinkError, State};
//! # use std::sync::Arc;
//! # use telaio_model::LocalService;
//! # fn service(name: &str) -> Arc<LocalService> {
//! #     let json = serde_json::json!({"namespace": "default", "name": name, "type": "ClusterIP"});
//! #     Arc::new(serde_json::from_value(json).unwrap())
//! # }
//!
//! let print = |state: &State, changed: &Changed| -> Result<(), SinkError> {
//!     for key in &changed.services {
//!         match state.get(key) {
//!             Some(entry) => println!("{key}: {} endpoints", entry.endpoints.len()),
//!             None => println!("{key}: gone"),
//!         }
//!     }
//!     Ok(())
//! };
//! let mut sink = FullState::new("node-1", print);
//! sink.send(Op::SetService(service("web")))?;
//! sink.send(Op::Sync)?; // prints default/web: 0 endpoints
//! assert_eq!(sink.state().len(), 1);
//! # Ok::<(), SinkError>(())
//! ```

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use telaio_model::{
    EndpointRef, Kind, LocalEndpoint, LocalService, Object, ObjectKey, ObjectRef, Op,
    ServiceEndpoints,
};

use crate::kpng::sink::{Sink, SinkError};

#[cfg(test)]
mod tests;

/// How many services of a view that comes anew wait to be put into the state together.
const INCOMING_MAX: usize = 1 << 17;
/// Where more than one service in so many is asked for, they are found by walking instead of searching.
const WALK_SHARE: usize = 8;

/// One node's whole view. Cloning copies references, not services.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct State {
    services: BTreeMap<ObjectKey, ServiceEndpoints>,
    /// Endpoints whose service has not come, or is gone already; each list is ordered by name.
    orphans: BTreeMap<ObjectKey, Endpoints>,
    objects: BTreeMap<ObjectRef, Object>,
}

impl State {
    /// Every service with its endpoints, in order of their key.
    pub fn services(&self) -> impl Iterator<Item = &ServiceEndpoints> {
        self.services.values()
    }

    /// One service with its endpoints.
    pub fn get(&self, key: &ObjectKey) -> Option<&ServiceEndpoints> {
        self.services.get(key)
    }

    /// The services of these names, `None` for those that are not there.
    pub fn get_all<'a>(
        &'a self,
        keys: &'a BTreeSet<ObjectKey>,
    ) -> impl Iterator<Item = (&'a ObjectKey, Option<&'a ServiceEndpoints>)> {
        let walk = keys.len() > self.services.len() / WALK_SHARE;
        let mut services = self.services.iter().peekable();
        keys.iter().map(move |key| {
            let entry = if walk {
                while services.next_if(|(other, _)| *other < key).is_some() {}
                services.next_if(|(other, _)| *other == key).map(|(_, entry)| entry)
            } else {
                self.get(key)
            };
            (key, entry)
        })
    }

    /// How many services there are.
    pub fn len(&self) -> usize {
        self.services.len()
    }

    /// Whether there is no service.
    pub fn is_empty(&self) -> bool {
        self.services.is_empty()
    }

    /// Every object of the other planes, in order.
    pub fn objects(&self) -> impl Iterator<Item = &Object> {
        self.objects.values()
    }

    /// The objects of one kind, in order.
    pub fn objects_of(&self, kind: Kind) -> impl Iterator<Item = &Object> {
        // The smallest key there is, so that the range begins where the kind does.
        let first = ObjectRef::new(kind, ObjectKey::cluster(""));
        self.objects.range(first..).take_while(move |(at, _)| at.kind == kind).map(|(_, o)| o)
    }

    /// One object of another plane.
    pub fn object(&self, object_ref: &ObjectRef) -> Option<&Object> {
        self.objects.get(object_ref)
    }

    /// How many endpoints wait for their service.
    pub fn orphan_count(&self) -> usize {
        self.orphans.values().map(|endpoints| endpoints.len()).sum()
    }

    /// Takes one step; [`Op::Reset`] empties the state, [`Op::Sync`] does nothing. Says whether the
    /// step made a difference, which for an endpoint without a service it does not.
    pub fn apply(&mut self, op: Op) -> bool {
        match op {
            Op::Reset => {
                let had_content = *self != Self::default();
                *self = Self::default();
                had_content
            }
            Op::SetService(service) => self.set_service(service),
            Op::DeleteService(key) => self.delete_service(&key),
            Op::SetEndpoint(endpoint) => self.set_endpoint(endpoint),
            Op::DeleteEndpoint(key) => self.delete_endpoint(&key),
            Op::SetObject(object) => {
                let before = self.objects.insert(object.object_ref(), object.clone());
                before.as_ref() != Some(&object)
            }
            Op::DeleteObject(object_ref) => self.objects.remove(&object_ref).is_some(),
            Op::Sync => false,
        }
    }

    fn set_service(&mut self, service: Arc<LocalService>) -> bool {
        match self.services.entry(service.key.clone()) {
            Entry::Occupied(mut entry) => {
                let entry = &mut entry.get_mut().service;
                let differs = *entry != service;
                *entry = service;
                differs
            }
            Entry::Vacant(vacant) => {
                let endpoints = self.orphans.remove(&service.key).unwrap_or_default();
                vacant.insert(ServiceEndpoints { service, endpoints });
                true
            }
        }
    }

    fn delete_service(&mut self, key: &ObjectKey) -> bool {
        let Some(entry) = self.services.remove(key) else { return false };
        if !entry.endpoints.is_empty() {
            self.orphans.insert(key.clone(), entry.endpoints);
        }
        true
    }

    fn set_endpoint(&mut self, endpoint: Arc<LocalEndpoint>) -> bool {
        if let Some(entry) = self.services.get_mut(&endpoint.key.service) {
            return insert_sorted(&mut entry.endpoints, endpoint);
        }
        let orphans = self.orphans.entry(endpoint.key.service.clone()).or_default();
        insert_sorted(orphans, endpoint);
        false
    }

    fn delete_endpoint(&mut self, key: &EndpointRef) -> bool {
        if let Some(entry) = self.services.get_mut(&key.service) {
            return remove_sorted(&mut entry.endpoints, key);
        }
        if let Some(orphans) = self.orphans.get_mut(&key.service) {
            remove_sorted(orphans, key);
            if orphans.is_empty() {
                self.orphans.remove(&key.service);
            }
        }
        false
    }
}

type Endpoints = Arc<Vec<Arc<LocalEndpoint>>>;

fn insert_sorted(endpoints: &mut Endpoints, endpoint: Arc<LocalEndpoint>) -> bool {
    // Whoever has been given the list keeps it as it was.
    let endpoints = Arc::make_mut(endpoints);
    match endpoints.binary_search_by(|other| other.key.id.cmp(&endpoint.key.id)) {
        Ok(at) => {
            let differs = endpoints[at] != endpoint;
            endpoints[at] = endpoint;
            differs
        }
        Err(at) => {
            endpoints.insert(at, endpoint);
            true
        }
    }
}

fn remove_sorted(endpoints: &mut Endpoints, key: &EndpointRef) -> bool {
    let found = endpoints.binary_search_by(|other| other.key.id.cmp(&key.id));
    if let Ok(at) = found {
        Arc::make_mut(endpoints).remove(at);
    }
    found.is_ok()
}

/// The keys at which two maps differ, in order. What is the same in both is held once: the map of now
/// gets what the other had.
fn differing<K: Ord + Clone, V: PartialEq>(
    before: BTreeMap<K, V>,
    now: &mut BTreeMap<K, V>,
) -> Vec<K> {
    let mut keys = Vec::new();
    let mut before = before.into_iter().peekable();
    for (key, value) in now {
        while let Some((gone, _)) = before.next_if(|(other, _)| other < key) {
            keys.push(gone);
        }
        match before.next_if(|(other, _)| other == key) {
            Some((_, known)) if known == *value => *value = known,
            _ => keys.push(key.clone()),
        }
    }
    keys.extend(before.map(|(gone, _)| gone));
    keys
}

/// What may differ from the state of the last successful callback.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Changed {
    /// Services that changed, or whose endpoints did; those that are gone are here but not in the
    /// state.
    pub services: BTreeSet<ObjectKey>,
    /// Objects of other planes that changed or are gone.
    pub objects: BTreeSet<ObjectRef>,
    /// The first callback, or the first after a reset: what was known before counts for nothing.
    pub all: bool,
}

impl Changed {
    /// Whether nothing changed at all.
    pub fn is_empty(&self) -> bool {
        self.services.is_empty() && self.objects.is_empty() && !self.all
    }

    /// Adds what `other` names.
    pub fn merge(&mut self, mut other: Self) {
        // Taking over a map is cheaper than adding to an empty one.
        self.services.append(&mut other.services);
        self.objects.append(&mut other.objects);
        self.all |= other.all;
    }
}

/// A backend that is called with the whole view.
///
/// Any closure of that form is one.
pub trait FullStateCallback: Send {
    /// Prepares everything, once.
    fn setup(&mut self) -> Result<(), SinkError> {
        Ok(())
    }

    /// Takes the view: `state` is all of it, `changed` what may differ from the last time that both
    /// halves succeeded.
    fn callback(&mut self, state: &State, changed: &Changed) -> Result<(), SinkError>;

    /// The second half: everything was sent, act on it. A backend that acts in
    /// [`callback`](Self::callback) needs none; see [`pipe`](crate::kpng::pipe) for what the halves
    /// are good for.
    fn close(&mut self) -> Result<(), SinkError> {
        Ok(())
    }
}

impl<F> FullStateCallback for F
where
    F: FnMut(&State, &Changed) -> Result<(), SinkError> + Send,
{
    fn callback(&mut self, state: &State, changed: &Changed) -> Result<(), SinkError> {
        self(state, changed)
    }
}

/// A [`Sink`] that keeps the whole view for a callback. See the [module](self).
#[derive(Debug)]
pub struct FullState<C> {
    node_name: Arc<str>,
    callback: C,
    state: State,
    changed: Changed,
    /// The service that was put into `changed` last.
    last_changed: Option<ObjectKey>,
    /// After a reset only what differs counts as changed.
    across_resets: bool,
    /// While the whole view comes anew, what it was before: the two are compared when all of it is
    /// there.
    before: Option<State>,
    /// The services of such a view that are not in the state yet: it is cheaper to put them there all
    /// at once. Endpoints come after their service, so they join the last one.
    incoming: Vec<ServiceEndpoints>,
}

impl<C: FullStateCallback> FullState<C> {
    /// A sink for the view of `node_name` that calls `callback`. After a reset everything counts as
    /// changed.
    pub fn new(node_name: impl Into<Arc<str>>, callback: C) -> Self {
        Self {
            node_name: node_name.into(),
            callback,
            state: State::default(),
            changed: Changed { all: true, ..Changed::default() },
            last_changed: None,
            across_resets: false,
            before: None,
            incoming: Vec::new(),
        }
    }

    /// The same, but after a reset only what differs from before counts as changed.
    pub fn across_resets(node_name: impl Into<Arc<str>>, callback: C) -> Self {
        // The first view is compared with none.
        let before = Some(State::default());
        Self { across_resets: true, before, ..Self::new(node_name, callback) }
    }

    /// The view as it is, perhaps in the midst of a diff; of a view that comes anew perhaps less than
    /// was sent.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// What the next callback will be told.
    pub fn changed(&self) -> &Changed {
        &self.changed
    }

    /// The callback.
    pub fn callback(&self) -> &C {
        &self.callback
    }

    /// The callback.
    pub fn callback_mut(&mut self) -> &mut C {
        &mut self.callback
    }

    /// Takes a step of a view that comes anew.
    fn take_anew(&mut self, op: Op) {
        match op {
            Op::SetService(service) if self.incoming.len() < INCOMING_MAX => {
                self.incoming.push(ServiceEndpoints { service, endpoints: Arc::default() });
            }
            Op::SetEndpoint(endpoint) => match self.incoming.last_mut() {
                Some(entry) if entry.service.key == endpoint.key.service => {
                    insert_sorted(&mut entry.endpoints, endpoint);
                }
                _ => {
                    self.settle();
                    self.state.apply(Op::SetEndpoint(endpoint));
                }
            },
            op => {
                self.settle();
                self.state.apply(op);
            }
        }
    }

    /// Puts what came in into the state.
    fn settle(&mut self) {
        let mut incoming = std::mem::take(&mut self.incoming);
        let key = |entry: &ServiceEndpoints| entry.service.key.clone();
        if self.state.services.is_empty() && self.state.orphans.is_empty() {
            incoming.sort_by(|one, other| one.service.key.cmp(&other.service.key));
            let is_twice = |pair: &[ServiceEndpoints]| pair[0].service.key == pair[1].service.key;
            if !incoming.windows(2).any(is_twice) {
                // In order already, so the map is built in one go.
                self.state.services =
                    incoming.into_iter().map(|entry| (key(&entry), entry)).collect();
                return;
            }
        }
        for entry in incoming {
            self.state.set_service(entry.service);
            for endpoint in entry.endpoints.iter() {
                self.state.set_endpoint(Arc::clone(endpoint));
            }
        }
    }

    fn clear(&mut self) {
        self.settle();
        let before = std::mem::take(&mut self.state);
        if self.across_resets {
            // A view that was cut off by a second reset was never told to anybody.
            self.before.get_or_insert(before);
            return;
        }
        self.changed.services.extend(before.services.into_keys());
        self.changed.objects.extend(before.objects.into_keys());
        self.changed.all = true;
    }

    /// Finds what differs between the view before a reset and the one that came since.
    fn compare(&mut self) {
        self.settle();
        let Some(before) = self.before.take() else { return };
        let services = differing(before.services, &mut self.state.services);
        let objects = differing(before.objects, &mut self.state.objects);
        self.changed.merge(Changed {
            services: services.into_iter().collect(),
            objects: objects.into_iter().collect(),
            all: false,
        });
    }

    fn sync(&mut self) -> Result<(), SinkError> {
        self.compare();
        self.callback.callback(&self.state, &self.changed)?;
        self.callback.close()?;
        self.changed = Changed::default();
        self.last_changed = None;
        Ok(())
    }
}

impl<C: FullStateCallback> Sink for FullState<C> {
    fn setup(&mut self) -> Result<(), SinkError> {
        self.callback.setup()
    }

    fn wait_request(&mut self) -> Result<Arc<str>, SinkError> {
        Ok(Arc::clone(&self.node_name))
    }

    fn reset(&mut self) -> Result<(), SinkError> {
        self.clear();
        Ok(())
    }

    fn send(&mut self, op: Op) -> Result<(), SinkError> {
        if self.before.is_some() && !matches!(op, Op::Reset | Op::Sync) {
            self.take_anew(op);
            return Ok(());
        }
        let mut service = None;
        let mut object = None;
        match &op {
            Op::Reset => {
                self.clear();
                return Ok(());
            }
            Op::Sync => return self.sync(),
            Op::SetService(set) => service = Some(set.key.clone()),
            Op::DeleteService(key) => service = Some(key.clone()),
            Op::SetEndpoint(set) => service = Some(set.key.service.clone()),
            Op::DeleteEndpoint(key) => service = Some(key.service.clone()),
            Op::SetObject(set) => object = Some(set.object_ref()),
            Op::DeleteObject(object_ref) => object = Some(object_ref.clone()),
        }
        if self.state.apply(op) {
            // A service's endpoints come one after the other.
            if service != self.last_changed {
                self.changed.services.extend(service.clone());
                self.last_changed = service;
            }
            self.changed.objects.extend(object);
        }
        Ok(())
    }
}
