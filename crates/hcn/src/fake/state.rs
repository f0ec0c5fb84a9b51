//! The objects of the fake, and the rules that hold between them.

use std::collections::BTreeMap;
use std::net::IpAddr;

use crate::{
    Distribution, Endpoint, EndpointPolicy, Feature, Guid, IpConfiguration, LoadBalancer,
    LoadBalancerFlags, MacAddress, Network, NetworkPolicy, ObjectKind, PROTOCOL_TCP, PROTOCOL_UDP,
    PolicyChange, Query, RawPolicy, Reason, RequestType, SupportedFeatures,
};

/// Why something is refused, and what the error record says.
pub(super) struct Refusal {
    pub(super) reason: Reason,
    pub(super) says: String,
}

impl From<Reason> for Refusal {
    fn from(reason: Reason) -> Self {
        let says = reason.to_string();
        Self { reason, says }
    }
}

fn invalid(says: impl Into<String>) -> Refusal {
    Refusal { reason: Reason::InvalidDocument, says: says.into() }
}

fn unsupported(says: &str) -> Refusal {
    Refusal { reason: Reason::Unsupported, says: says.to_owned() }
}

/// What no two load balancers have in common: network, IPv6 or not, address, protocol, port.
type Frontend = (Guid, bool, Option<IpAddr>, u32, u16);

#[derive(Debug, Default)]
pub(super) struct Objects {
    networks: BTreeMap<Guid, Network>,
    endpoints: BTreeMap<Guid, Endpoint>,
    /// With where each answers: that cannot be worked out again when its endpoints are gone.
    load_balancers: BTreeMap<Guid, (LoadBalancer, Vec<Frontend>)>,
    /// Who has an address on a network.
    addresses: BTreeMap<(Guid, IpAddr), Guid>,
    /// Who answers where.
    frontends: BTreeMap<Frontend, Guid>,
    /// How many load balancers use an endpoint.
    uses: BTreeMap<Guid, usize>,
    /// The last number that an identity or Ethernet address was made from.
    last: u64,
}

impl Objects {
    fn number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    fn identity(&mut self, asked: Option<Guid>) -> Guid {
        asked.filter(|id| !id.is_nil()).unwrap_or_else(|| {
            let mut bytes = [0xfa; 16];
            bytes[8..].copy_from_slice(&self.number().to_be_bytes());
            Guid::from_bytes(bytes)
        })
    }

    // Networks

    pub(super) fn network_ids(&self, query: &Query) -> Vec<Guid> {
        let wanted = |(id, network): &(&Guid, &Network)| match query {
            Query::Id(wanted) => *id == wanted,
            Query::Name(name) => network.name == *name,
            Query::OnNetwork(_) => false,
            Query::All => true,
        };
        self.networks.iter().filter(wanted).map(|(id, _)| *id).collect()
    }

    pub(super) fn network(&self, id: Guid) -> Result<&Network, Refusal> {
        self.networks.get(&id).ok_or_else(|| Reason::NotFound.into())
    }

    pub(super) fn create_network(&mut self, mut network: Network) -> Result<Network, Refusal> {
        if network.name.is_empty() {
            return Err(invalid("a network needs a name"));
        }
        if self.networks.values().any(|other| other.name == network.name) {
            return Err(Reason::AlreadyExists.into());
        }
        let id = self.identity(network.id);
        if self.networks.contains_key(&id) {
            return Err(Reason::AlreadyExists.into());
        }
        network.id = Some(id);
        self.networks.insert(id, network.clone());
        Ok(network)
    }

    pub(super) fn modify_network(
        &mut self,
        id: Guid,
        change: &PolicyChange<NetworkPolicy>,
    ) -> Result<(), Refusal> {
        let network = self.networks.get_mut(&id).ok_or(Reason::NotFound)?;
        change_policies(&mut network.policies, change)
    }

    pub(super) fn delete_network(&mut self, id: Guid) -> Result<(), Refusal> {
        self.network(id)?;
        if self.endpoints.values().any(|endpoint| endpoint.network == id) {
            return Err(Reason::InUse.into());
        }
        self.networks.remove(&id);
        Ok(())
    }

    // Endpoints

    pub(super) fn endpoint_ids(&self, query: &Query) -> Vec<Guid> {
        let wanted = |(id, endpoint): &(&Guid, &Endpoint)| match query {
            Query::Id(wanted) => *id == wanted,
            Query::Name(name) => endpoint.name == *name,
            Query::OnNetwork(network) => endpoint.network == *network,
            Query::All => true,
        };
        self.endpoints.iter().filter(wanted).map(|(id, _)| *id).collect()
    }

    pub(super) fn endpoint(&self, id: Guid) -> Result<&Endpoint, Refusal> {
        self.endpoints.get(&id).ok_or_else(|| Reason::NotFound.into())
    }

    pub(super) fn create_endpoint(
        &mut self,
        mut endpoint: Endpoint,
        features: &SupportedFeatures,
    ) -> Result<Endpoint, Refusal> {
        if !self.networks.contains_key(&endpoint.network) {
            return Err(Reason::MissingDependency(ObjectKind::Network).into());
        }
        if endpoint.addresses().any(|ip| ip.is_ipv6()) && !features.has(Feature::Ipv6DualStack) {
            return Err(unsupported("no IPv6 in this version"));
        }
        let network = endpoint.network;
        if endpoint.addresses().any(|ip| self.addresses.contains_key(&(network, ip))) {
            return Err(Reason::AlreadyExists.into());
        }
        let id = self.identity(endpoint.id);
        if self.endpoints.contains_key(&id) {
            return Err(Reason::AlreadyExists.into());
        }
        endpoint.id = Some(id);
        self.fill_in(&mut endpoint)?;
        for address in endpoint.addresses() {
            self.addresses.insert((network, address), id);
        }
        self.endpoints.insert(id, endpoint.clone());
        Ok(endpoint)
    }

    /// What HNS chooses where the document says nothing.
    fn fill_in(&mut self, endpoint: &mut Endpoint) -> Result<(), Refusal> {
        let subnets: Vec<_> = self
            .networks
            .get(&endpoint.network)
            .map(|network| network.subnets().map(|subnet| subnet.ip_address_prefix).collect())
            .unwrap_or_default();
        if let (true, Some(subnet)) = (endpoint.ip_configurations.is_empty(), subnets.first()) {
            // The first host is the gateway.
            let free = subnet
                .hosts()
                .skip(1)
                .find(|ip| !self.addresses.contains_key(&(endpoint.network, *ip)))
                .ok_or_else(|| invalid("no address is left"))?;
            let prefix_length = subnet.prefix_len();
            endpoint.ip_configurations.push(IpConfiguration { ip_address: free, prefix_length });
        }
        for configuration in &mut endpoint.ip_configurations {
            if configuration.prefix_length == 0 {
                let ip = configuration.ip_address;
                let within = subnets.iter().find(|subnet| subnet.contains(&ip));
                let whole = if ip.is_ipv4() { 32 } else { 128 };
                configuration.prefix_length = within.map_or(whole, ipnet::IpNet::prefix_len);
            }
        }
        if endpoint.mac_address.is_none() {
            let [.., b, c, d] = self.number().to_be_bytes();
            endpoint.mac_address = Some(MacAddress([0x00, 0x15, 0x5d, b, c, d]));
        }
        Ok(())
    }

    pub(super) fn modify_endpoint(
        &mut self,
        id: Guid,
        change: &PolicyChange<EndpointPolicy>,
    ) -> Result<(), Refusal> {
        let endpoint = self.endpoints.get_mut(&id).ok_or(Reason::NotFound)?;
        change_policies(&mut endpoint.policies, change)
    }

    pub(super) fn delete_endpoint(&mut self, id: Guid) -> Result<(), Refusal> {
        self.endpoint(id)?;
        if self.uses.contains_key(&id) {
            return Err(Reason::InUse.into());
        }
        self.forget_endpoint(id);
        Ok(())
    }

    /// Removes an endpoint, and with it every reference to it.
    pub(super) fn forget_endpoint(&mut self, id: Guid) {
        let Some(endpoint) = self.endpoints.remove(&id) else { return };
        for address in endpoint.addresses() {
            self.addresses.remove(&(endpoint.network, address));
        }
        if self.uses.remove(&id).is_some() {
            for (load_balancer, _) in self.load_balancers.values_mut() {
                load_balancer.endpoints.remove(&id);
            }
        }
    }

    // Load balancers

    pub(super) fn load_balancer_ids(&self, query: &Query) -> Vec<Guid> {
        match query {
            Query::Id(id) => {
                self.load_balancers.get_key_value(id).map(|(id, _)| *id).into_iter().collect()
            }
            // They have neither a name nor a network.
            Query::Name(_) | Query::OnNetwork(_) => Vec::new(),
            Query::All => self.load_balancers.keys().copied().collect(),
        }
    }

    pub(super) fn load_balancer(&self, id: Guid) -> Result<&LoadBalancer, Refusal> {
        let there = self.load_balancers.get(&id).ok_or(Reason::NotFound)?;
        Ok(&there.0)
    }

    pub(super) fn create_load_balancer(
        &mut self,
        mut load_balancer: LoadBalancer,
        features: &SupportedFeatures,
    ) -> Result<LoadBalancer, Refusal> {
        check_features(&load_balancer, features)?;
        check_shape(&load_balancer)?;
        let frontends = self.frontends_of(&load_balancer)?;
        if frontends.iter().any(|frontend| self.frontends.contains_key(frontend)) {
            return Err(Reason::PortInUse.into());
        }
        let id = self.identity(load_balancer.id);
        if self.load_balancers.contains_key(&id) {
            return Err(Reason::AlreadyExists.into());
        }
        load_balancer.id = Some(id);
        self.put(id, load_balancer.clone(), frontends);
        Ok(load_balancer)
    }

    pub(super) fn modify_load_balancer(
        &mut self,
        id: Guid,
        mut wanted: LoadBalancer,
        features: &SupportedFeatures,
    ) -> Result<(), Refusal> {
        self.load_balancer(id)?;
        if wanted.id.is_some_and(|other| other != id) {
            return Err(invalid("the document is of another load balancer"));
        }
        check_features(&wanted, features)?;
        check_shape(&wanted)?;
        let frontends = self.frontends_of(&wanted)?;
        if frontends.iter().any(|frontend| self.frontends.get(frontend).is_some_and(|by| *by != id))
        {
            return Err(Reason::PortInUse.into());
        }
        wanted.id = Some(id);
        self.take(id);
        self.put(id, wanted, frontends);
        Ok(())
    }

    pub(super) fn delete_load_balancer(&mut self, id: Guid) -> Result<(), Refusal> {
        self.load_balancer(id)?;
        self.take(id);
        Ok(())
    }

    fn put(&mut self, id: Guid, load_balancer: LoadBalancer, frontends: Vec<Frontend>) {
        for endpoint in &load_balancer.endpoints {
            *self.uses.entry(*endpoint).or_default() += 1;
        }
        self.frontends.extend(frontends.iter().map(|frontend| (*frontend, id)));
        self.load_balancers.insert(id, (load_balancer, frontends));
    }

    fn take(&mut self, id: Guid) {
        let Some((load_balancer, frontends)) = self.load_balancers.remove(&id) else { return };
        for endpoint in &load_balancer.endpoints {
            if let Some(uses) = self.uses.get_mut(endpoint) {
                *uses -= 1;
                if *uses == 0 {
                    self.uses.remove(endpoint);
                }
            }
        }
        for frontend in frontends {
            self.frontends.remove(&frontend);
        }
    }

    /// Where it answers; its endpoints have to exist, on one network.
    fn frontends_of(&self, load_balancer: &LoadBalancer) -> Result<Vec<Frontend>, Refusal> {
        let mut network = None;
        for id in &load_balancer.endpoints {
            let missing = || Refusal::from(Reason::MissingDependency(ObjectKind::Endpoint));
            let endpoint = self.endpoints.get(id).ok_or_else(missing)?;
            if *network.get_or_insert(endpoint.network) != endpoint.network {
                return Err(invalid("the endpoints are on different networks"));
            }
        }
        let network = network.ok_or_else(|| invalid("a load balancer needs an endpoint"))?;
        let ipv6 = load_balancer.flags.contains(LoadBalancerFlags::IPV6);
        let vips: Vec<_> = if load_balancer.frontend_vips.is_empty() {
            vec![None]
        } else {
            load_balancer.frontend_vips.iter().copied().map(Some).collect()
        };
        let of = |vip| {
            let mappings = load_balancer.port_mappings.iter();
            mappings.map(move |port| (network, ipv6, vip, port.protocol, port.external_port))
        };
        Ok(vips.into_iter().flat_map(of).collect())
    }
}

fn check_features(wanted: &LoadBalancer, features: &SupportedFeatures) -> Result<(), Refusal> {
    if wanted.flags.contains(LoadBalancerFlags::DSR) && !features.has(Feature::Dsr) {
        return Err(unsupported("no direct server return in this version"));
    }
    if wanted.flags.contains(LoadBalancerFlags::IPV6) && !features.has(Feature::Ipv6DualStack) {
        return Err(unsupported("no IPv6 in this version"));
    }
    let affinity =
        wanted.port_mappings.iter().any(|p| p.distribution_type != Distribution::Connection);
    if affinity && !features.has(Feature::SessionAffinity) {
        return Err(unsupported("no session affinity in this version"));
    }
    let protocols = wanted.port_mappings.iter().map(|port| port.protocol);
    if protocols.into_iter().any(|protocol| ![PROTOCOL_TCP, PROTOCOL_UDP].contains(&protocol)) {
        return Err(unsupported("neither TCP nor UDP"));
    }
    Ok(())
}

fn check_shape(wanted: &LoadBalancer) -> Result<(), Refusal> {
    let ports = &wanted.port_mappings;
    let Some(first) = ports.first() else {
        return Err(invalid("a load balancer needs a port"));
    };
    if ports.iter().any(|port| port.internal_port == 0 || port.external_port == 0) {
        return Err(invalid("a port is zero"));
    }
    if ports.iter().any(|port| port.internal_port != first.internal_port) {
        return Err(invalid("a load balancer has one target port"));
    }
    let mut keys: Vec<_> = ports.iter().map(|port| (port.protocol, port.external_port)).collect();
    keys.sort_unstable();
    if keys.windows(2).any(|pair| pair[0] == pair[1]) {
        return Err(Reason::PortInUse.into());
    }
    let ipv6 = wanted.flags.contains(LoadBalancerFlags::IPV6);
    if wanted.frontend_vips.iter().any(|vip| vip.is_ipv6() != ipv6) {
        return Err(invalid("the addresses and the IPv6 flag do not agree"));
    }
    Ok(())
}

/// Changes an object's policies.
fn change_policies<P: Clone + PartialEq + Into<RawPolicy>>(
    policies: &mut Vec<P>,
    change: &PolicyChange<P>,
) -> Result<(), Refusal> {
    let kind = |policy: &P| Into::<RawPolicy>::into(policy.clone()).kind.to_ascii_lowercase();
    match change.request {
        RequestType::Add => policies.extend(change.policies.iter().cloned()),
        RequestType::Remove => {
            if change.policies.iter().any(|policy| !policies.contains(policy)) {
                let says = "there is no such policy".into();
                return Err(Refusal { reason: Reason::Other, says });
            }
            policies.retain(|policy| !change.policies.contains(policy));
        }
        RequestType::Update => {
            let kinds: Vec<_> = change.policies.iter().map(kind).collect();
            policies.retain(|policy| !kinds.contains(&kind(policy)));
            policies.extend(change.policies.iter().cloned());
        }
    }
    Ok(())
}
