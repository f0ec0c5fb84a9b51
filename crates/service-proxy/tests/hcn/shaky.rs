//! An HNS whose calls go wrong when a test wants it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use telaio_hcn::{
    Call, Endpoint, EndpointPolicy, FakeHcn, Guid, Hcn, HcnError, HnsVersion, Listener,
    LoadBalancer, Network, NetworkPolicy, ObjectKind, Operation, PolicyChange, Query, Reason,
    Watch,
};

type Judge = Box<dyn Fn(&Call, u64) -> Option<Reason> + Send + Sync>;

/// Asks before each call whether it is to fail; a call that fails changes nothing.
#[derive(Clone)]
pub(crate) struct Shaky {
    fake: FakeHcn,
    judge: Arc<Judge>,
    calls: Arc<AtomicU64>,
}

impl Shaky {
    /// `judge` gets each call and how many there were before.
    pub(crate) fn new(
        fake: &FakeHcn,
        judge: impl Fn(&Call, u64) -> Option<Reason> + Send + Sync + 'static,
    ) -> Self {
        Self { fake: fake.clone(), judge: Arc::new(Box::new(judge)), calls: Arc::default() }
    }

    /// From the call of this number on, nobody answers: as if we had been killed then.
    pub(crate) fn dead_after(fake: &FakeHcn, calls: u64) -> Self {
        Self::new(fake, move |_, before| (before >= calls).then_some(Reason::Unavailable))
    }

    fn call<T>(
        &self,
        (operation, kind, name): (Operation, ObjectKind, String),
        act: impl FnOnce(&FakeHcn) -> Result<T, HcnError>,
    ) -> Result<T, HcnError> {
        let before = self.calls.fetch_add(1, Ordering::SeqCst);
        let call = Call::new(operation, kind, name);
        match (self.judge)(&call, before) {
            Some(reason) => Err(call.failed(reason)),
            None => act(&self.fake),
        }
    }
}

use ObjectKind::{Endpoint as E, LoadBalancer as L, Network as N, Service as S};
use Operation::{Create, Delete, Enumerate, Modify, Query as Read};

impl Hcn for Shaky {
    fn version(&self) -> Result<HnsVersion, HcnError> {
        self.call((Read, S, String::new()), FakeHcn::version)
    }

    fn network_ids(&self, query: &Query) -> Result<Vec<Guid>, HcnError> {
        self.call((Enumerate, N, String::new()), |it| it.network_ids(query))
    }

    fn network(&self, id: Guid) -> Result<Network, HcnError> {
        self.call((Read, N, id.to_string()), |it| it.network(id))
    }

    fn create_network(&self, network: &Network) -> Result<Network, HcnError> {
        self.call((Create, N, network.name.clone()), |it| it.create_network(network))
    }

    fn modify_network(
        &self,
        id: Guid,
        change: &PolicyChange<NetworkPolicy>,
    ) -> Result<(), HcnError> {
        self.call((Modify, N, id.to_string()), |it| it.modify_network(id, change))
    }

    fn delete_network(&self, id: Guid) -> Result<(), HcnError> {
        self.call((Delete, N, id.to_string()), |it| it.delete_network(id))
    }

    fn endpoint_ids(&self, query: &Query) -> Result<Vec<Guid>, HcnError> {
        self.call((Enumerate, E, String::new()), |it| it.endpoint_ids(query))
    }

    fn endpoint(&self, id: Guid) -> Result<Endpoint, HcnError> {
        self.call((Read, E, id.to_string()), |it| it.endpoint(id))
    }

    fn create_endpoint(&self, endpoint: &Endpoint) -> Result<Endpoint, HcnError> {
        self.call((Create, E, endpoint.label()), |it| it.create_endpoint(endpoint))
    }

    fn modify_endpoint(
        &self,
        id: Guid,
        change: &PolicyChange<EndpointPolicy>,
    ) -> Result<(), HcnError> {
        self.call((Modify, E, id.to_string()), |it| it.modify_endpoint(id, change))
    }

    fn delete_endpoint(&self, id: Guid) -> Result<(), HcnError> {
        self.call((Delete, E, id.to_string()), |it| it.delete_endpoint(id))
    }

    fn load_balancer_ids(&self, query: &Query) -> Result<Vec<Guid>, HcnError> {
        self.call((Enumerate, L, String::new()), |it| it.load_balancer_ids(query))
    }

    fn load_balancer(&self, id: Guid) -> Result<LoadBalancer, HcnError> {
        self.call((Read, L, id.to_string()), |it| it.load_balancer(id))
    }

    fn create_load_balancer(&self, wanted: &LoadBalancer) -> Result<LoadBalancer, HcnError> {
        self.call((Create, L, wanted.label()), |it| it.create_load_balancer(wanted))
    }

    fn modify_load_balancer(&self, id: Guid, wanted: &LoadBalancer) -> Result<(), HcnError> {
        self.call((Modify, L, wanted.label()), |it| it.modify_load_balancer(id, wanted))
    }

    fn delete_load_balancer(&self, id: Guid) -> Result<(), HcnError> {
        self.call((Delete, L, id.to_string()), |it| it.delete_load_balancer(id))
    }

    fn watch(&self, listener: Listener) -> Result<Watch, HcnError> {
        self.fake.watch(listener)
    }
}
