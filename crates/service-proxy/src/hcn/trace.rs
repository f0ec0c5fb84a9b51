//! What a packet will meet among HNS's load balancers.
//!
//! The walk is short: a load balancer at the packet's address, protocol and port takes it; else, if the
//! address is the node's own, one for all of them. It goes to one of the load balancer's endpoints, at
//! their target port. Without any, HNS leaves the packet alone.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use telaio_hcn::{
    Endpoint, Guid, Hcn, HcnError, LoadBalancer, LoadBalancerFlags, PROTOCOL_TCP, PROTOCOL_UDP,
    PortMapping, PortMappingFlags, Query,
};
use telaio_model::{IpFamily, Protocol, ServiceEndpoints};

use super::compile::{Ground, Nodes, RemoteEndpoint};
use super::core::service_objects;
use super::identity;
use super::store::{FrontendKey, LoadBalancerStore};
use crate::trace::{Packet, Surroundings, Trace, Verdict};

/// The load balancers of a node and the endpoints that they send to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct State {
    /// Load balancers; of a live HNS also those of others, since packets meet them too.
    pub load_balancers: Vec<LoadBalancer>,
    /// The addresses of endpoints.
    pub endpoints: BTreeMap<Guid, Vec<IpAddr>>,
    /// Our remote endpoints. The others are pods of this node, which the CNI plugin makes.
    pub remote: Vec<Endpoint>,
}

impl State {
    /// What the backend would make of these services, if every endpoint is there that should be.
    pub fn compile<'a>(
        services: impl IntoIterator<Item = &'a ServiceEndpoints>,
        ground: &Ground,
        nodes: &Nodes,
    ) -> Self {
        let mut store = LoadBalancerStore::default();
        let mut keys = BTreeSet::new();
        let mut remote = BTreeMap::new();
        for entry in services {
            let objects = service_objects(entry, ground, nodes);
            keys.extend(objects.claims.iter().map(|claim| claim.key));
            store.claim(&entry.service.key, objects.claims);
            for (address, endpoint) in objects.endpoints {
                remote.entry(address).or_insert(endpoint);
            }
        }
        let document =
            |(address, it): (IpAddr, RemoteEndpoint)| it.document(ground.network, address);
        let remote = remote.into_iter().map(document).collect();
        let mut state = Self { remote, ..Self::default() };
        for key in keys {
            let Some(spec) = store.winner(&key).and_then(|claim| claim.spec.as_ref()) else {
                continue;
            };
            let of = |ip: &IpAddr| (identity::endpoint_id(ground.network, *ip), vec![*ip]);
            let endpoints: BTreeMap<Guid, Vec<IpAddr>> = spec.endpoints.iter().map(of).collect();
            let mut document = spec.document(key.vip, endpoints.keys().copied().collect());
            document.id = Some(identity::load_balancer_id(ground.network, &key));
            state.load_balancers.push(document);
            state.endpoints.extend(endpoints);
        }
        state
    }

    /// What is in HNS.
    pub fn read(hcn: &dyn Hcn) -> Result<Self, HcnError> {
        let load_balancers = hcn.load_balancers(&Query::All)?.objects;
        let mut endpoints = BTreeMap::new();
        let mut remote = Vec::new();
        for endpoint in hcn.endpoints(&Query::All)?.objects {
            if let Some(id) = endpoint.id {
                endpoints.insert(id, endpoint.addresses().collect());
            }
            if identity::is_our_endpoint(&endpoint) {
                remote.push(endpoint);
            }
        }
        Ok(Self { load_balancers, endpoints, remote })
    }

    /// The load balancer at a place, and its port.
    fn at(&self, key: &FrontendKey) -> Option<(&LoadBalancer, &PortMapping)> {
        let load_balancer =
            self.load_balancers.iter().find(|it| FrontendKey::all_of(it).contains(key))?;
        let mapping = load_balancer
            .port_mappings
            .iter()
            .find(|it| (it.protocol, it.external_port) == (key.protocol, key.port))?;
        Some((load_balancer, mapping))
    }
}

/// What becomes of a packet.
pub fn trace(packet: &Packet, around: &Surroundings, state: &State) -> Trace {
    let none = Trace {
        verdict: Verdict::None,
        endpoints: BTreeSet::new(),
        masquerade: false,
        via: Vec::new(),
    };
    let protocol = match packet.protocol {
        Protocol::Tcp => PROTOCOL_TCP,
        Protocol::Udp => PROTOCOL_UDP,
        Protocol::Sctp => return none,
    };
    let to = packet.to.ip();
    let family = IpFamily::of(to);
    let place = |vip| FrontendKey { family, vip, protocol, port: packet.to.port() };
    let is_own = around.is_local(to) && !to.is_loopback();
    let places = [Some(place(Some(to))), is_own.then(|| place(None))];
    let found = places.iter().flatten().find_map(|key| Some((key, state.at(key)?)));
    let Some((key, (load_balancer, mapping))) = found else { return none };
    let starts_here = around.starts_here(packet);
    let is_internal = mapping.flags.contains(PortMappingFlags::INTERNAL);
    let is_for_node = mapping.flags.contains(PortMappingFlags::LOCAL_ROUTED_VIP);
    if (is_internal && !starts_here) || (starts_here && key.vip.is_none() && !is_for_node) {
        return none;
    }
    let of_family = |ip: &IpAddr| IpFamily::of(*ip) == family;
    let addresses = load_balancer.endpoints.iter().filter_map(|id| state.endpoints.get(id));
    let endpoints = addresses.flatten().copied().filter(of_family);
    let endpoints: BTreeSet<SocketAddr> =
        endpoints.map(|ip| SocketAddr::new(ip, mapping.internal_port)).collect();
    if endpoints.is_empty() {
        return none;
    }
    Trace {
        verdict: Verdict::Dnat,
        endpoints,
        masquerade: !load_balancer.flags.contains(LoadBalancerFlags::DSR),
        via: vec![describe(key, load_balancer, mapping)],
    }
}

fn describe(key: &FrontendKey, load_balancer: &LoadBalancer, mapping: &PortMapping) -> String {
    let id = load_balancer.id.map(|id| format!(" {id}")).unwrap_or_default();
    let mut text = format!("load balancer{id} at {key}");
    let flags = [
        (load_balancer.flags.contains(LoadBalancerFlags::DSR), "DSR"),
        (mapping.flags.contains(PortMappingFlags::LOCAL_ROUTED_VIP), "LocalRoutedVIP"),
        (mapping.flags.contains(PortMappingFlags::USE_MUX), "UseMux"),
        (mapping.flags.contains(PortMappingFlags::PRESERVE_DESTINATION), "PreserveDIP"),
        (mapping.flags.contains(PortMappingFlags::VIP_EXTERNAL_IP), "VipExternalIP"),
    ];
    let set: Vec<&str> =
        flags.iter().filter(|(is_set, _)| *is_set).map(|(_, name)| *name).collect();
    if !set.is_empty() {
        text = format!("{text} ({})", set.join(", "));
    }
    match load_balancer.source_vip {
        Some(source_vip) => format!("{text}, source {source_vip}"),
        None => text,
    }
}
