//! A host compute network in memory, with HNS's rules, for tests on every operating system.
//!
//! What it refuses is what HNS refuses; where versions of HNS differ or are silent, the strictest
//! reading counts, so that what works here works there:
//!
//! - a network's name is unique, and it cannot go while an endpoint is on it;
//! - an endpoint's network exists and nobody else on it has its address; what is left out (identity,
//!   address, prefix, Ethernet address) is filled in; it cannot go while a load balancer uses it;
//! - a load balancer's endpoints exist and are on one network, it has one target port, TCP or UDP, and no
//!   other one on that network has its address, protocol and port;
//! - direct server return, session affinity, IPv6 and modifying in place need a version that has them.
//!   15.4 accepts a modification and does nothing.
//!
//! Every call is counted. Calls can be made to fail, HNS to stop and to restart with everything gone.

mod state;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use self::state::{Objects, Refusal};
use crate::{
    Call, Endpoint, EndpointPolicy, Event, Feature, Guid, Hcn, HcnError, HnsVersion, Hresult,
    Listener, LoadBalancer, Network, NetworkPolicy, ObjectKind, Operation, PolicyChange, Query,
    Reason, SupportedFeatures, Watch,
};

/// A host compute network in memory. Clones share it.
#[derive(Clone)]
pub struct FakeHcn {
    inner: Arc<Mutex<Inner>>,
}

struct Inner {
    features: SupportedFeatures,
    objects: Objects,
    running: bool,
    faults: Vec<Fault>,
    counts: Counts,
    listeners: BTreeMap<u64, Listener>,
    listener_next: u64,
}

/// How often each call was made, failed ones included.
pub type Counts = BTreeMap<(ObjectKind, Operation), u64>;

/// Calls that are to fail.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// The kind of call.
    pub operation: Operation,
    /// The kind of object.
    pub kind: ObjectKind,
    /// Only for objects whose name or identity contains this.
    pub name: String,
    /// How they fail.
    pub hresult: Hresult,
    /// How many of them.
    pub times: u32,
}

impl Default for FakeHcn {
    /// With everything that HNS can do.
    fn default() -> Self {
        Self::new(HnsVersion::new(16, 0))
    }
}

impl FakeHcn {
    /// An empty one, of this version.
    pub fn new(version: HnsVersion) -> Self {
        let inner = Inner {
            features: SupportedFeatures::of(version),
            objects: Objects::default(),
            running: true,
            faults: Vec::new(),
            counts: Counts::new(),
            listeners: BTreeMap::new(),
            listener_next: 0,
        };
        Self { inner: Arc::new(Mutex::new(inner)) }
    }

    /// How often each call was made.
    pub fn counts(&self) -> Counts {
        self.lock().counts.clone()
    }

    /// How often one call was made.
    pub fn count(&self, operation: Operation, kind: ObjectKind) -> u64 {
        self.lock().counts.get(&(kind, operation)).copied().unwrap_or_default()
    }

    /// How many calls were made to change something.
    pub fn writes(&self) -> u64 {
        let inner = self.lock();
        inner.counts.iter().filter(|((_, operation), _)| operation.is_write()).map(|(_, n)| n).sum()
    }

    /// Counts from zero again.
    pub fn reset_counts(&self) {
        self.lock().counts.clear();
    }

    /// Makes calls fail.
    pub fn fail(&self, fault: Fault) {
        self.lock().faults.push(fault);
    }

    /// Makes no call fail any more.
    pub fn clear_faults(&self) {
        self.lock().faults.clear();
    }

    /// Stops HNS, or starts it again with all its objects.
    pub fn set_running(&self, running: bool) {
        let was = std::mem::replace(&mut self.lock().running, running);
        if was && !running {
            self.tell(Event::Disconnected);
        }
    }

    /// Restarts HNS: all objects are gone.
    pub fn restart(&self) {
        self.lock().objects = Objects::default();
        self.tell(Event::Disconnected);
    }

    /// Removes an endpoint as the end of its pod does: whoever uses it or not.
    pub fn end_pod(&self, id: Guid) {
        self.lock().objects.forget_endpoint(id);
    }

    fn tell(&self, event: Event) {
        // Without the lock: a listener may end its own watch.
        let listeners: Vec<_> = self.lock().listeners.values().cloned().collect();
        for listener in listeners {
            listener(event);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // What is behind it is changed in one step or not at all.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a call and does it, unless it is to fail.
    fn call<T>(
        &self,
        call: Call,
        act: impl FnOnce(&mut Inner) -> Result<T, Refusal>,
    ) -> Result<T, HcnError> {
        let mut inner = self.lock();
        *inner.counts.entry((call.kind, call.operation)).or_default() += 1;
        if !inner.running {
            return Err(refused(call, Reason::Unavailable.into()));
        }
        let fault = inner.faults.iter_mut().find(|fault| {
            fault.times > 0
                && fault.operation == call.operation
                && fault.kind == call.kind
                && call.name.contains(&fault.name)
        });
        if let Some(fault) = fault {
            fault.times -= 1;
            let hresult = fault.hresult;
            return Err(call.failed_with(hresult, "a failure that the test asked for"));
        }
        act(&mut inner).map_err(|refusal| refused(call, refusal))
    }
}

fn refused(call: Call, refusal: Refusal) -> HcnError {
    let hresult = Hresult::of(&refusal.reason, call.kind);
    HcnError { call, reason: refusal.reason, hresult: Some(hresult), record: refusal.says }
}

impl std::fmt::Debug for FakeHcn {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let inner = self.lock();
        f.debug_struct("FakeHcn")
            .field("version", &inner.features.version())
            .field("running", &inner.running)
            .field("objects", &inner.objects)
            .finish_non_exhaustive()
    }
}

impl Hcn for FakeHcn {
    fn version(&self) -> Result<HnsVersion, HcnError> {
        let call = Call::new(Operation::Query, ObjectKind::Service, "");
        self.call(call, |inner| Ok(inner.features.version()))
    }

    fn network_ids(&self, query: &Query) -> Result<Vec<Guid>, HcnError> {
        let call = Call::new(Operation::Enumerate, ObjectKind::Network, "");
        self.call(call, |inner| Ok(inner.objects.network_ids(query)))
    }

    fn network(&self, id: Guid) -> Result<Network, HcnError> {
        let call = Call::of(Operation::Query, ObjectKind::Network, id);
        self.call(call, |inner| inner.objects.network(id).cloned())
    }

    fn create_network(&self, network: &Network) -> Result<Network, HcnError> {
        let call = Call::new(Operation::Create, ObjectKind::Network, &network.name);
        self.call(call, |inner| inner.objects.create_network(network.clone()))
    }

    fn modify_network(
        &self,
        id: Guid,
        change: &PolicyChange<NetworkPolicy>,
    ) -> Result<(), HcnError> {
        let call = Call::of(Operation::Modify, ObjectKind::Network, id);
        self.call(call, |inner| inner.objects.modify_network(id, change))
    }

    fn delete_network(&self, id: Guid) -> Result<(), HcnError> {
        let call = Call::of(Operation::Delete, ObjectKind::Network, id);
        self.call(call, |inner| inner.objects.delete_network(id))
    }

    fn endpoint_ids(&self, query: &Query) -> Result<Vec<Guid>, HcnError> {
        let call = Call::new(Operation::Enumerate, ObjectKind::Endpoint, "");
        self.call(call, |inner| Ok(inner.objects.endpoint_ids(query)))
    }

    fn endpoint(&self, id: Guid) -> Result<Endpoint, HcnError> {
        let call = Call::of(Operation::Query, ObjectKind::Endpoint, id);
        self.call(call, |inner| inner.objects.endpoint(id).cloned())
    }

    fn create_endpoint(&self, endpoint: &Endpoint) -> Result<Endpoint, HcnError> {
        let call = Call::new(Operation::Create, ObjectKind::Endpoint, endpoint.label());
        self.call(call, |inner| inner.objects.create_endpoint(endpoint.clone(), &inner.features))
    }

    fn modify_endpoint(
        &self,
        id: Guid,
        change: &PolicyChange<EndpointPolicy>,
    ) -> Result<(), HcnError> {
        let call = Call::of(Operation::Modify, ObjectKind::Endpoint, id);
        self.call(call, |inner| inner.objects.modify_endpoint(id, change))
    }

    fn delete_endpoint(&self, id: Guid) -> Result<(), HcnError> {
        let call = Call::of(Operation::Delete, ObjectKind::Endpoint, id);
        self.call(call, |inner| inner.objects.delete_endpoint(id))
    }

    fn load_balancer_ids(&self, query: &Query) -> Result<Vec<Guid>, HcnError> {
        let call = Call::new(Operation::Enumerate, ObjectKind::LoadBalancer, "");
        self.call(call, |inner| Ok(inner.objects.load_balancer_ids(query)))
    }

    fn load_balancer(&self, id: Guid) -> Result<LoadBalancer, HcnError> {
        let call = Call::of(Operation::Query, ObjectKind::LoadBalancer, id);
        self.call(call, |inner| inner.objects.load_balancer(id).cloned())
    }

    fn create_load_balancer(&self, load_balancer: &LoadBalancer) -> Result<LoadBalancer, HcnError> {
        let call = Call::new(Operation::Create, ObjectKind::LoadBalancer, load_balancer.label());
        self.call(call, |inner| {
            inner.objects.create_load_balancer(load_balancer.clone(), &inner.features)
        })
    }

    fn modify_load_balancer(&self, id: Guid, wanted: &LoadBalancer) -> Result<(), HcnError> {
        let call = Call::new(
            Operation::Modify,
            ObjectKind::LoadBalancer,
            format!("{} {id}", wanted.label()),
        );
        self.call(call, |inner| {
            if inner.features.version() == HnsVersion::new(15, 4) {
                return Ok(());
            }
            if !inner.features.has(Feature::ModifyLoadBalancer) {
                return Err(Reason::Unsupported.into());
            }
            inner.objects.modify_load_balancer(id, wanted.clone(), &inner.features)
        })
    }

    fn delete_load_balancer(&self, id: Guid) -> Result<(), HcnError> {
        let call = Call::of(Operation::Delete, ObjectKind::LoadBalancer, id);
        self.call(call, |inner| inner.objects.delete_load_balancer(id))
    }

    fn watch(&self, listener: Listener) -> Result<Watch, HcnError> {
        let call = Call::new(Operation::Watch, ObjectKind::Service, "");
        let number = self.call(call, |inner| {
            let number = inner.listener_next;
            inner.listener_next += 1;
            inner.listeners.insert(number, listener);
            Ok(number)
        })?;
        let fake = self.clone();
        Ok(Watch::new(move || drop(fake.lock().listeners.remove(&number))))
    }
}
