//! Single addresses and ports as they come and go, from whole services.
//!
//! Some things a backend does are about one address or one port, not about a service: to bind an
//! address to a device, to hold a node port open. A [`ServicesListener`] compares each service with
//! what it was and tells a [`ServiceEvents`] only what came and what went.
//!
//! What always holds: what goes is told before what comes; each thing is told with the service it
//! belongs to (for what goes, as that service was), and once for each service that has it, so a
//! listener that shares them between services must count.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use telaio_model::{ClientIpAffinity, LocalService, LocalServicePort, ObjectKey, Protocol};

#[cfg(test)]
mod tests;

/// Which of a service's addresses one is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum IpKind {
    /// A cluster address.
    Cluster,
    /// An external address.
    External,
    /// A load balancer's address.
    LoadBalancer,
}

/// A port as it is told: without what only names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortNumber {
    /// The protocol.
    pub protocol: Protocol,
    /// The port on the service's addresses.
    pub port: u16,
    /// The port on every node.
    pub node_port: Option<u16>,
}

impl From<&LocalServicePort> for PortNumber {
    fn from(port: &LocalServicePort) -> Self {
        Self { protocol: port.protocol, port: port.port, node_port: port.node_port }
    }
}

/// Is told what came and what went. Each method does nothing unless it is written.
pub trait ServiceEvents {
    /// A port came.
    fn add_port(&mut self, _service: &LocalService, _port: PortNumber) {}
    /// A port went.
    fn delete_port(&mut self, _service: &LocalService, _port: PortNumber) {}
    /// An address came.
    fn add_ip(&mut self, _service: &LocalService, _ip: IpAddr, _kind: IpKind) {}
    /// An address went.
    fn delete_ip(&mut self, _service: &LocalService, _ip: IpAddr, _kind: IpKind) {}
    /// A pair of address and port came.
    fn add_ip_port(&mut self, _svc: &LocalService, _ip: IpAddr, _kind: IpKind, _port: PortNumber) {}
    /// A pair of address and port went.
    fn delete_ip_port(
        &mut self,
        _service: &LocalService,
        _ip: IpAddr,
        _kind: IpKind,
        _port: PortNumber,
    ) {
    }
    /// A traffic policy is another; also told for a new service that keeps traffic local.
    fn traffic_policy_changed(&mut self, _service: &LocalService) {}
    /// Session affinity is another; also told for a new service that has it.
    fn session_affinity_changed(
        &mut self,
        _service: &LocalService,
        _before: Option<ClientIpAffinity>,
    ) {
    }
}

/// What is told of a service.
#[derive(Debug, Default)]
struct Facts {
    ips: BTreeSet<(IpKind, IpAddr)>,
    ports: BTreeSet<PortNumber>,
    traffic_to_local: (bool, bool),
    affinity: Option<ClientIpAffinity>,
}

impl Facts {
    fn of(service: &LocalService) -> Self {
        let kinds = [
            (IpKind::Cluster, &service.cluster_ips),
            (IpKind::External, &service.external_ips),
            (IpKind::LoadBalancer, &service.load_balancer_ips),
        ];
        Self {
            ips: kinds
                .into_iter()
                .flat_map(|(kind, ips)| ips.iter().map(move |ip| (kind, *ip)))
                .collect(),
            ports: service.ports.iter().map(PortNumber::from).collect(),
            traffic_to_local: (
                service.external_traffic_to_local,
                service.internal_traffic_to_local,
            ),
            affinity: service.session_affinity,
        }
    }

    fn ip_ports(&self) -> impl Iterator<Item = (IpKind, IpAddr, PortNumber)> + '_ {
        self.ips.iter().flat_map(|(kind, ip)| self.ports.iter().map(|port| (*kind, *ip, *port)))
    }

    fn has(&self, kind: IpKind, ip: IpAddr, port: PortNumber) -> bool {
        self.ips.contains(&(kind, ip)) && self.ports.contains(&port)
    }
}

/// Turns services into events. See the [module](self).
#[derive(Debug, Default)]
pub struct ServicesListener {
    services: BTreeMap<ObjectKey, Arc<LocalService>>,
}

impl ServicesListener {
    /// A listener that knows no service yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// The service is now this.
    pub fn set_service(&mut self, service: &Arc<LocalService>, events: &mut impl ServiceEvents) {
        let before = self.services.insert(service.key.clone(), Arc::clone(service));
        match before {
            Some(before) if Arc::ptr_eq(&before, service) => {}
            Some(before) => {
                let (old, new) = (Facts::of(&before), Facts::of(service));
                tell_gone(&before, &old, &new, events);
                tell_come(service, &old, &new, events);
            }
            None => tell_come(service, &Facts::default(), &Facts::of(service), events),
        }
    }

    /// The service is no more.
    pub fn delete_service(&mut self, key: &ObjectKey, events: &mut impl ServiceEvents) {
        if let Some(before) = self.services.remove(key) {
            tell_gone(&before, &Facts::of(&before), &Facts::default(), events);
        }
    }
}

fn tell_gone(service: &LocalService, old: &Facts, new: &Facts, events: &mut impl ServiceEvents) {
    for (kind, ip, port) in old.ip_ports().filter(|(kind, ip, port)| !new.has(*kind, *ip, *port)) {
        events.delete_ip_port(service, ip, kind, port);
    }
    for (kind, ip) in old.ips.difference(&new.ips) {
        events.delete_ip(service, *ip, *kind);
    }
    for port in old.ports.difference(&new.ports) {
        events.delete_port(service, *port);
    }
}

fn tell_come(service: &LocalService, old: &Facts, new: &Facts, events: &mut impl ServiceEvents) {
    for port in new.ports.difference(&old.ports) {
        events.add_port(service, *port);
    }
    for (kind, ip) in new.ips.difference(&old.ips) {
        events.add_ip(service, *ip, *kind);
    }
    for (kind, ip, port) in new.ip_ports().filter(|(kind, ip, port)| !old.has(*kind, *ip, *port)) {
        events.add_ip_port(service, ip, kind, port);
    }
    if new.traffic_to_local != old.traffic_to_local {
        events.traffic_policy_changed(service);
    }
    if new.affinity != old.affinity {
        events.session_affinity_changed(service, old.affinity);
    }
}
