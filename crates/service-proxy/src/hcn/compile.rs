//! A service's port in the terms of HCN. Pure.
//!
//! What a port wants is said by address: [`LoadBalancerSpec`] names endpoints by theirs, because the
//! identities of pods' endpoints are HNS's to tell. [`Ground`] is what the node offers.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use sha2::{Digest as _, Sha256};
use telaio_hcn::{
    Distribution, Endpoint, EndpointFlags, EndpointPolicy, Feature, Guid, IpConfiguration,
    LoadBalancer, LoadBalancerFlags, MacAddress, PROTOCOL_TCP, PROTOCOL_UDP, PortMapping,
    PortMappingFlags, ProviderAddress, RemoteSubnetRoute, SupportedFeatures,
};
use telaio_model::{IpFamily, LocalEndpoint, ObjectKey, Protocol, ServiceEndpoints};

use super::identity;
use super::store::FrontendKey;
use crate::plan::{Answer, Balance, Destination, EndpointSet, Place, PortPlan};

/// The annotation that asks for packets to reach endpoints with the address that the client used.
pub const ANNOTATION_PRESERVE_DESTINATION: &str = "preserve-destination";

/// The addresses of the cluster's nodes, by name, most important first.
pub type Nodes = BTreeMap<Arc<str>, Vec<IpAddr>>;

/// What the node's HNS offers: what a service's objects depend on besides the service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ground {
    /// The network that pods are on.
    pub network: Guid,
    /// What only an overlay has; none on l2bridge.
    pub overlay: Option<Overlay>,
    /// The families that the network, HNS and the operator have in common.
    pub families: Vec<IpFamily>,
    /// Cluster addresses are served with direct server return.
    pub dsr: bool,
    /// What HNS can do.
    pub features: SupportedFeatures,
    /// The addresses of the node that serve node ports; none: all.
    pub node_port_addresses: Option<Vec<IpAddr>>,
}

/// What only an overlay has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Overlay {
    /// The sources of traffic that has to come back through this node, one of each family at most.
    pub source_vips: Vec<IpAddr>,
    /// The node's own address, which others' packets are wrapped for.
    pub management: IpAddr,
    /// The node's own addresses, the first of each family.
    pub own: Vec<IpAddr>,
    /// The Ethernet address of the interface that has it.
    pub host_mac: Option<MacAddress>,
    /// Subnets of other nodes.
    pub routes: Vec<RemoteSubnetRoute>,
}

/// Where an endpoint of an overlay is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Provider {
    /// The node that packets for it are wrapped for.
    address: IpAddr,
    /// The endpoint is outside the overlay: a node's own address, or beyond the cluster.
    outside: bool,
}

impl Overlay {
    /// Behind which node an address is. HNS's own routes come first, then what the cluster says.
    fn provider_of(&self, ip: IpAddr, node: Option<&Arc<str>>, nodes: &Nodes) -> Provider {
        let within = self.routes.iter().filter(|route| route.destination_prefix.contains(&ip));
        if let Some(route) = within.max_by_key(|route| route.destination_prefix.prefix_len()) {
            return Provider { address: route.provider_address, outside: false };
        }
        let addresses = node.and_then(|node| nodes.get(node)).map_or(&[][..], Vec::as_slice);
        let is_node =
            addresses.contains(&ip) || self.routes.iter().any(|it| it.provider_address == ip);
        if is_node {
            return Provider { address: ip, outside: true };
        }
        let own_family = |it: &&IpAddr| it.is_ipv4() == self.management.is_ipv4();
        match addresses.iter().find(own_family) {
            Some(address) => Provider { address: *address, outside: false },
            None => Provider { address: self.management, outside: true },
        }
    }
}

impl Ground {
    /// On an overlay, the endpoint that makes a service's address known on the switch.
    pub(super) fn vip_endpoint(&self) -> Option<RemoteEndpoint> {
        let overlay = self.overlay.as_ref()?;
        Some(RemoteEndpoint { provider: Some(overlay.management), mac: overlay.host_mac })
    }

    /// The source that traffic gets where it has to come back through this node. What is outside the
    /// overlay could not answer to an address inside it.
    fn source_of(&self, family: IpFamily, outside: bool) -> Option<IpAddr> {
        let overlay = self.overlay.as_ref()?;
        let of_family = |ips: &[IpAddr]| ips.iter().copied().find(|ip| IpFamily::of(*ip) == family);
        let own = if outside { of_family(&overlay.own) } else { None };
        own.or_else(|| of_family(&overlay.source_vips))
    }

    /// The addresses at which a node port answers; none: all of the node's.
    pub(super) fn node_port_vips(&self, family: IpFamily) -> Vec<Option<IpAddr>> {
        match &self.node_port_addresses {
            None => vec![None],
            Some(own) => {
                let own = own.iter().copied().filter(|ip| IpFamily::of(*ip) == family);
                own.map(Some).collect()
            }
        }
    }
}

/// A remote endpoint, beside its address: all that can differ between two of ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RemoteEndpoint {
    /// On an overlay: the node that packets for it are wrapped for.
    pub provider: Option<IpAddr>,
    /// Its Ethernet address; HNS chooses if there is none.
    pub mac: Option<MacAddress>,
}

impl RemoteEndpoint {
    /// The endpoint at an address of a network.
    pub fn document(&self, network: Guid, address: IpAddr) -> Endpoint {
        let policy = |provider_address| {
            EndpointPolicy::ProviderAddress(ProviderAddress { provider_address })
        };
        Endpoint {
            id: Some(identity::endpoint_id(network, address)),
            name: identity::endpoint_name(address),
            network,
            policies: self.provider.map(policy).into_iter().collect(),
            ip_configurations: vec![IpConfiguration { ip_address: address, prefix_length: 0 }],
            mac_address: self.mac,
            flags: EndpointFlags::REMOTE_ENDPOINT,
            ..Endpoint::default()
        }
    }

    /// What an endpoint is of ours; none if it is otherwise than we make them.
    pub fn of(endpoint: &Endpoint) -> Option<Self> {
        let [address] = endpoint.addresses().collect::<Vec<_>>()[..] else { return None };
        let this = Self { provider: endpoint.provider_address(), mac: endpoint.mac_address };
        this.document(endpoint.network, address).is_satisfied_by(endpoint).then_some(this)
    }
}

/// The Ethernet address that a remote endpoint gets. It is never on the wire; but HNS tells endpoints apart
/// by it.
fn remote_mac(address: IpAddr) -> MacAddress {
    let [a, b, c, d] = match address {
        IpAddr::V4(ip) => ip.octets(),
        IpAddr::V6(ip) => {
            let hash = Sha256::digest(ip.octets());
            [hash[0], hash[1], hash[2], hash[3]]
        }
    };
    MacAddress([0x02, 0x11, a, b, c, d])
}

/// A load balancer before it is known which endpoints are there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoadBalancerSpec {
    /// The addresses that it sends to, in order.
    pub endpoints: Vec<IpAddr>,
    /// The source that traffic gets where it has to come back through this node.
    pub source_vip: Option<IpAddr>,
    /// The port.
    pub mapping: PortMapping,
    /// What is special about it.
    pub flags: LoadBalancerFlags,
}

impl LoadBalancerSpec {
    /// The load balancer that answers at an address and sends to these endpoints.
    pub fn document(&self, vip: Option<IpAddr>, endpoints: BTreeSet<Guid>) -> LoadBalancer {
        LoadBalancer {
            id: None,
            endpoints,
            source_vip: self.source_vip,
            frontend_vips: vip.into_iter().collect(),
            port_mappings: vec![self.mapping.clone()],
            flags: self.flags,
        }
    }
}

/// A load balancer that a service wants, and whose place it is if several want it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    /// The place.
    pub key: FrontendKey,
    /// The lower, the better the claim.
    pub rank: u8,
    /// The service.
    pub service: ObjectKey,
    /// The name of its port.
    pub port: Arc<str>,
    /// The load balancer; none if nobody serves. The place is taken all the same, as on the other
    /// backends: what nobody answers at one service's address is not another's to answer.
    pub spec: Option<Arc<LoadBalancerSpec>>,
}

impl Claim {
    /// Of two claims to one place the lesser has it.
    pub(super) fn order(&self) -> (u8, &ObjectKey, &str) {
        (self.rank, &self.service, &self.port)
    }
}

/// Everything that a service wants.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ServiceObjects {
    /// Remote endpoints by address.
    pub endpoints: BTreeMap<IpAddr, RemoteEndpoint>,
    /// Load balancers.
    pub claims: Vec<Claim>,
    /// What Windows cannot do of what the service asks for.
    pub problems: BTreeSet<String>,
}

/// One port of a service in one family.
#[derive(Debug)]
pub struct PortCompiler<'a> {
    entry: &'a ServiceEndpoints,
    plan: &'a PortPlan,
    ground: &'a Ground,
    nodes: &'a Nodes,
    sites: &'a Sites<'a>,
    family: IpFamily,
    protocol: u32,
}

/// The endpoints that serve at a place.
#[derive(Debug)]
struct Chosen {
    /// In order, never empty.
    addresses: Vec<IpAddr>,
    target_port: u16,
    /// One of them is outside the overlay.
    outside: bool,
}

/// How a place is served.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Manner {
    /// Direct server return.
    pub(super) dsr: bool,
    /// What is special about the port.
    pub(super) flags: PortMappingFlags,
}

impl<'a> PortCompiler<'a> {
    /// What is to be done about this port; none for what Windows cannot do at all.
    pub(super) fn new(
        entry: &'a ServiceEndpoints,
        sites: &'a Sites<'a>,
        plan: &'a PortPlan,
        ground: &'a Ground,
        nodes: &'a Nodes,
        family: IpFamily,
    ) -> Option<Self> {
        let protocol = match plan.name.protocol {
            Protocol::Tcp => PROTOCOL_TCP,
            Protocol::Udp => PROTOCOL_UDP,
            Protocol::Sctp => return None,
        };
        Some(Self { entry, plan, ground, nodes, sites, family, protocol })
    }

    /// The plan.
    pub(super) fn plan(&self) -> &'a PortPlan {
        self.plan
    }

    /// The ground.
    pub(super) fn ground(&self) -> &'a Ground {
        self.ground
    }

    /// The family.
    pub(super) fn family(&self) -> IpFamily {
        self.family
    }

    /// Whether answers to users of external addresses go straight to them: with policy Local, so that
    /// endpoints see who asks.
    pub(super) fn has_local_dsr(&self) -> bool {
        self.plan.is_external_local() && self.ground.features.has(Feature::Dsr)
    }

    fn asks_to_preserve_destination(&self) -> bool {
        let asked = self.entry.service.annotations.get(ANNOTATION_PRESERVE_DESTINATION);
        asked.is_some_and(|value| &**value == "true")
    }

    /// Whether packets are to reach endpoints with the address that the client used. Only endpoints of
    /// this node can serve then.
    pub(super) fn preserves_destination(&self) -> bool {
        self.asks_to_preserve_destination() && self.ground.features.has(Feature::Dsr)
    }

    /// Claims a place for this port. Whether somebody serves there.
    pub(super) fn claim(
        &self,
        place: Place,
        (vip, port): (Option<IpAddr>, u16),
        (answer, local_only): (Answer, bool),
        manner: Manner,
        made: &mut ServiceObjects,
    ) -> bool {
        let chosen = match answer {
            Answer::Serve(set) => self.choose(set, local_only, made),
            Answer::Reject | Answer::Drop => None,
        };
        let spec = chosen.map(|chosen| Arc::new(self.spec(chosen, port, manner)));
        let is_served = spec.is_some();
        made.claims.push(Claim {
            key: FrontendKey { family: self.family, vip, protocol: self.protocol, port },
            rank: rank(place),
            service: self.plan.name.service.clone(),
            port: Arc::clone(&self.plan.name.port),
            spec,
        });
        is_served
    }

    fn spec(&self, chosen: Chosen, port: u16, manner: Manner) -> LoadBalancerSpec {
        let affinity = self.plan.affinity_s.is_some() || self.plan.balance == Balance::SourceHash;
        let affinity = affinity && self.ground.features.has(Feature::SessionAffinity);
        let distribution_type =
            if affinity { Distribution::SourceIp } else { Distribution::Connection };
        LoadBalancerSpec {
            endpoints: chosen.addresses,
            source_vip: self.ground.source_of(self.family, chosen.outside),
            mapping: PortMapping {
                protocol: self.protocol,
                internal_port: chosen.target_port,
                external_port: port,
                distribution_type,
                flags: manner.flags,
            },
            flags: LoadBalancerFlags::NONE
                .with(LoadBalancerFlags::DSR, manner.dsr)
                .with(LoadBalancerFlags::IPV6, self.family == IpFamily::V6),
        }
    }

    /// The endpoints of a set that serve at one target port: the one that most of them have. Sending to the
    /// others at that port would reach nobody, or somebody else.
    fn choose(
        &self,
        set: EndpointSet,
        local_only: bool,
        made: &mut ServiceObjects,
    ) -> Option<Chosen> {
        let sites: Vec<(&Destination, Site<'_>)> = self
            .plan
            .set(set)
            .iter()
            .map(|destination| (destination, self.sites.at(destination.address)))
            .filter(|(_, site)| site.local || !local_only)
            .collect();
        let mut counts: BTreeMap<u16, usize> = BTreeMap::new();
        for (destination, _) in &sites {
            *counts.entry(destination.port).or_default() += 1;
        }
        // Of two as frequent, the lower.
        let (target_port, _) = counts.iter().rev().max_by_key(|(_, count)| **count)?;
        if counts.len() > 1 {
            let ports: Vec<String> = counts.keys().map(ToString::to_string).collect();
            made.problems.insert(format!(
                "its endpoints of port {} listen on different ports ({}), and Windows takes one for each \
                 load balancer: those on {target_port} serve, the others do not",
                self.port_name(),
                ports.join(", ")
            ));
        }
        let mut chosen =
            Chosen { addresses: Vec::new(), target_port: *target_port, outside: false };
        for (destination, site) in sites.iter().filter(|(it, _)| it.port == *target_port) {
            chosen.addresses.push(destination.address);
            if site.local {
                continue;
            }
            let provider = self
                .ground
                .overlay
                .as_ref()
                .map(|overlay| overlay.provider_of(destination.address, site.node, self.nodes));
            chosen.outside |= provider.is_some_and(|provider| provider.outside);
            made.endpoints.entry(destination.address).or_insert_with(|| RemoteEndpoint {
                provider: provider.map(|provider| provider.address),
                mac: Some(remote_mac(destination.address)),
            });
        }
        Some(chosen)
    }

    /// The port's name, or its number where it has none.
    fn port_name(&self) -> String {
        let named = &self.plan.name.port;
        match self.plan.frontends.first() {
            Some(frontend) if named.is_empty() => frontend.port.to_string(),
            _ => named.to_string(),
        }
    }

    /// What Windows cannot do of what this port asks for.
    pub(super) fn problems(&self, made: &mut ServiceObjects) {
        let version = self.ground.features.version();
        let lacks = |feature| !self.ground.features.has(feature);
        if self.plan.affinity_s.is_some() && lacks(Feature::SessionAffinity) {
            made.problems.insert(format!(
                "it asks for session affinity, which HNS {version} cannot do: clients get any endpoint"
            ));
        }
        if self.asks_to_preserve_destination() && lacks(Feature::Dsr) {
            made.problems.insert(format!(
                "annotation {ANNOTATION_PRESERVE_DESTINATION}: HNS {version} has no direct server \
                 return: packets reach endpoints with the endpoint's own address"
            ));
        }
        let has_balancer =
            self.plan.frontends.iter().any(|it| matches!(it.place, Place::LoadBalancerIp(_)));
        if self.plan.source_ranges.is_some() && has_balancer {
            made.problems.insert(
                "it limits who may use its load balancer (loadBalancerSourceRanges), which HNS cannot \
                 do: everybody may"
                    .to_owned(),
            );
        }
    }
}

/// Where an endpoint is.
#[derive(Debug, Clone, Copy)]
struct Site<'a> {
    local: bool,
    node: Option<&'a Arc<str>>,
}

/// Where a service's endpoints are, by address.
#[derive(Debug)]
pub(super) struct Sites<'a>(Vec<(IpAddr, Site<'a>)>);

impl<'a> Sites<'a> {
    pub(super) fn of(entry: &'a ServiceEndpoints) -> Self {
        let site = |it: &'a Arc<LocalEndpoint>| Site { local: it.local, node: it.node.as_ref() };
        let of = |it: &'a Arc<LocalEndpoint>| it.ips.iter().map(move |ip| (*ip, site(it)));
        let mut sites: Vec<(IpAddr, Site<'a>)> = entry.endpoints.iter().flat_map(of).collect();
        sites.sort_by_key(|(ip, _)| *ip);
        sites.dedup_by(|(ip, later), (kept_ip, kept)| {
            let same = ip == kept_ip;
            if same {
                kept.local |= later.local;
                kept.node = kept.node.or(later.node);
            }
            same
        });
        Self(sites)
    }

    fn at(&self, address: IpAddr) -> Site<'a> {
        let found = self.0.binary_search_by_key(&address, |(ip, _)| *ip);
        found.map_or(Site { local: false, node: None }, |at| self.0[at].1)
    }
}

/// Which of two claims to one place is better: as on the other backends.
fn rank(place: Place) -> u8 {
    match place {
        Place::ClusterIp(_) => 0,
        Place::ExternalIp(_) => 1,
        Place::LoadBalancerIp(_) => 2,
        Place::NodePort => 3,
    }
}
