//! The interface to the host compute network.

use std::sync::Arc;

use crate::{
    Endpoint, EndpointPolicy, Guid, HcnError, HnsVersion, LoadBalancer, Network, NetworkPolicy,
    PolicyChange, Query, SupportedFeatures,
};

/// The host compute network calls.
///
/// Calls block, may be made from many threads at once, and either did what they say or changed nothing.
/// What HNS answers is checked: who gets a value can rely on it.
///
/// ```
/// use telaio_hcn::{
///     Endpoint, EndpointFlags, FakeHcn, Hcn, IpConfiguration, LoadBalancer, Network, NetworkType,
///     PROTOCOL_TCP, PortMapping, Query, Reason,
/// };
///
/// let hcn = FakeHcn::default();
/// let network = hcn.create_network(&Network {
///     name: "vxlan0".into(),
///     kind: NetworkType::Overlay,
///     ..Network::default()
/// })?;
/// let endpoint = hcn.create_endpoint(&Endpoint {
///     network: network.id.unwrap(),
///     ip_configurations: vec![IpConfiguration {
///         ip_address: "10.244.1.5".parse().unwrap(),
///         prefix_length: 24,
///     }],
///     flags: EndpointFlags::REMOTE_ENDPOINT,
///     ..Endpoint::default()
/// })?;
/// let asked = LoadBalancer {
///     endpoints: [endpoint.id.unwrap()].into(),
///     frontend_vips: ["10.96.0.10".parse().unwrap()].into(),
///     port_mappings: vec![PortMapping {
///         protocol: PROTOCOL_TCP,
///         internal_port: 8080,
///         external_port: 80,
///         distribution_type: Default::default(),
///         flags: Default::default(),
///     }],
///     ..LoadBalancer::default()
/// };
/// let made = hcn.create_load_balancer(&asked)?;
/// assert!(asked.is_satisfied_by(&made));
///
/// // The same address and port again, and an endpoint in use:
/// assert_eq!(hcn.create_load_balancer(&asked).unwrap_err().reason, Reason::PortInUse);
/// assert_eq!(hcn.delete_endpoint(endpoint.id.unwrap()).unwrap_err().reason, Reason::InUse);
///
/// assert_eq!(hcn.load_balancers(&Query::All)?.objects, [made]);
/// # Ok::<(), telaio_hcn::HcnError>(())
/// ```
pub trait Hcn: Send + Sync {
    /// The version of HNS.
    fn version(&self) -> Result<HnsVersion, HcnError>;

    /// What this HNS can do.
    fn supported_features(&self) -> Result<SupportedFeatures, HcnError> {
        self.version().map(SupportedFeatures::of)
    }

    /// Which networks there are.
    fn network_ids(&self, query: &Query) -> Result<Vec<Guid>, HcnError>;

    /// What a network is like.
    fn network(&self, id: Guid) -> Result<Network, HcnError>;

    /// Makes a network; what it became.
    fn create_network(&self, network: &Network) -> Result<Network, HcnError>;

    /// Changes a network's policies.
    fn modify_network(
        &self,
        id: Guid,
        change: &PolicyChange<NetworkPolicy>,
    ) -> Result<(), HcnError>;

    /// Removes a network.
    fn delete_network(&self, id: Guid) -> Result<(), HcnError>;

    /// Which endpoints there are.
    fn endpoint_ids(&self, query: &Query) -> Result<Vec<Guid>, HcnError>;

    /// What an endpoint is like.
    fn endpoint(&self, id: Guid) -> Result<Endpoint, HcnError>;

    /// Makes an endpoint; what it became.
    fn create_endpoint(&self, endpoint: &Endpoint) -> Result<Endpoint, HcnError>;

    /// Changes an endpoint's policies.
    fn modify_endpoint(
        &self,
        id: Guid,
        change: &PolicyChange<EndpointPolicy>,
    ) -> Result<(), HcnError>;

    /// Removes an endpoint.
    fn delete_endpoint(&self, id: Guid) -> Result<(), HcnError>;

    /// Which load balancers there are.
    fn load_balancer_ids(&self, query: &Query) -> Result<Vec<Guid>, HcnError>;

    /// What a load balancer is like.
    fn load_balancer(&self, id: Guid) -> Result<LoadBalancer, HcnError>;

    /// Makes a load balancer; what it became.
    fn create_load_balancer(&self, load_balancer: &LoadBalancer) -> Result<LoadBalancer, HcnError>;

    /// Makes an existing load balancer into this one, in place. Only where HNS has
    /// [`Feature::ModifyLoadBalancer`](crate::Feature::ModifyLoadBalancer): an older one may say yes and
    /// do nothing.
    fn modify_load_balancer(&self, id: Guid, wanted: &LoadBalancer) -> Result<(), HcnError>;

    /// Removes a load balancer.
    fn delete_load_balancer(&self, id: Guid) -> Result<(), HcnError>;

    /// Tells `listener` of events until the watch is dropped. It runs on a thread of HNS's: it has to
    /// be quick and must not call HCN.
    fn watch(&self, listener: Listener) -> Result<Watch, HcnError>;

    /// The networks there are.
    fn networks(&self, query: &Query) -> Result<Listed<Network>, HcnError> {
        Ok(listed(self.network_ids(query)?, |id| self.network(id)))
    }

    /// The endpoints there are.
    fn endpoints(&self, query: &Query) -> Result<Listed<Endpoint>, HcnError> {
        Ok(listed(self.endpoint_ids(query)?, |id| self.endpoint(id)))
    }

    /// The load balancers there are.
    fn load_balancers(&self, query: &Query) -> Result<Listed<LoadBalancer>, HcnError> {
        Ok(listed(self.load_balancer_ids(query)?, |id| self.load_balancer(id)))
    }
}

/// Objects, and those that could not be read: a stranger's odd object must not hide the others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed<T> {
    /// The objects.
    pub objects: Vec<T>,
    /// Why others could not be read. One that went while we looked is not among them.
    pub problems: Vec<HcnError>,
}

fn listed<T>(ids: Vec<Guid>, read: impl Fn(Guid) -> Result<T, HcnError>) -> Listed<T> {
    let mut listed = Listed { objects: Vec::with_capacity(ids.len()), problems: Vec::new() };
    for id in ids {
        match read(id) {
            Ok(object) => listed.objects.push(object),
            Err(error) if error.is_not_found() => {}
            Err(error) => listed.problems.push(error),
        }
    }
    listed
}

/// Something that happened in HNS.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Event {
    /// HNS stopped. When it is back, its objects may be gone.
    Disconnected,
    /// A network was made.
    NetworkCreated,
    /// A network was removed.
    NetworkDeleted,
    /// Another notification, by its number.
    Other(u32),
}

/// Who is told of events.
pub type Listener = Arc<dyn Fn(Event) + Send + Sync>;

/// As long as it lives, its listener is told of events.
#[must_use = "dropping it ends the watch"]
pub struct Watch {
    end: Option<Box<dyn FnOnce() + Send>>,
}

impl Watch {
    /// A watch that `end` ends.
    pub(crate) fn new(end: impl FnOnce() + Send + 'static) -> Self {
        Self { end: Some(Box::new(end)) }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if let Some(end) = self.end.take() {
            end();
        }
    }
}

impl std::fmt::Debug for Watch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Watch")
    }
}
