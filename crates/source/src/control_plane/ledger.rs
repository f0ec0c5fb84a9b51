//! The book of addresses and node ports: what is written, what was given, what a service gets.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use telaio_model::hash::StableHash;
use telaio_model::{
    FieldError, IpFamily, ObjectKey, Protocol, Service, ServiceType, TrafficPolicy,
};

use super::claims::{Claimant, Claims};
use super::{Options, pool};
use crate::manifest::{FamilyPolicy, ServiceAllocation};

/// What was given to each service, beside what its manifest writes itself.
pub type Allocations = BTreeMap<ObjectKey, GivenToService>;

/// What was given to one service.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GivenToService {
    /// Cluster addresses, at most one per family.
    pub cluster_ips: Vec<IpAddr>,
    /// Node ports by the service's own port.
    pub node_ports: BTreeMap<(Protocol, u16), u16>,
    /// The port of the health check.
    pub health_check_node_port: Option<u16>,
}

impl GivenToService {
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// The node ports in use, with their protocol.
    fn used_ports(&self) -> impl Iterator<Item = (Protocol, u16)> + '_ {
        let node_ports = self.node_ports.iter().map(|((protocol, _), port)| (*protocol, *port));
        node_ports.chain(self.health_check_node_port.map(|port| (Protocol::Tcp, port)))
    }
}

/// What a service gets.
#[derive(Debug)]
pub(super) struct Filled {
    /// The complete service; `None` when it is refused.
    pub(super) service: Option<Arc<Service>>,
    /// Why it is refused.
    pub(super) errors: Vec<FieldError>,
    /// It would get what it needs if somebody else gave something back.
    pub(super) exhausted: bool,
}

pub(super) struct Ledger {
    options: Options,
    addresses: Claims<IpAddr>,
    ports: Claims<(Protocol, u16)>,
    allocations: Allocations,
    changed: bool,
    freed: bool,
    /// Pools in which nothing is left, so that the next one who asks need not search.
    empty_pools: BTreeSet<Pool>,
}

/// Something that can be used up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Pool {
    Addresses(IpFamily),
    Ports(Protocol),
}

/// What a service needs beyond what it writes.
struct Needs {
    families: Vec<IpFamily>,
    node_ports: BTreeSet<(Protocol, u16)>,
    health_check: bool,
}

impl Ledger {
    /// A book in which the given allocations stand, those left out that contradict each other or lie
    /// outside of the networks and ranges of today.
    pub(super) fn new(options: Options, allocations: &Allocations) -> Self {
        let mut ledger = Self {
            options,
            addresses: Claims::default(),
            ports: Claims::default(),
            allocations: Allocations::new(),
            changed: false,
            freed: false,
            empty_pools: BTreeSet::new(),
        };
        for (key, given) in allocations {
            let restored = ledger.restore(key, given);
            ledger.changed |= restored != *given;
            if !restored.is_empty() {
                ledger.allocations.insert(key.clone(), restored);
            }
        }
        ledger
    }

    fn restore(&mut self, key: &ObjectKey, given: &GivenToService) -> GivenToService {
        let mut restored = GivenToService::default();
        for ip in &given.cluster_ips {
            let second = restored.cluster_ips.iter().any(|other| other.is_ipv4() == ip.is_ipv4());
            let inside = self.options.service_cidrs.iter().any(|cidr| cidr.contains(ip));
            if inside && !second && self.addresses.give(*ip, key) {
                restored.cluster_ips.push(*ip);
            }
        }
        for ((protocol, port), node_port) in &given.node_ports {
            if self.options.node_ports.contains(node_port)
                && self.ports.give((*protocol, *node_port), key)
            {
                restored.node_ports.insert((*protocol, *port), *node_port);
            }
        }
        restored.health_check_node_port = given.health_check_node_port.filter(|port| {
            self.options.node_ports.contains(port) && self.ports.give((Protocol::Tcp, *port), key)
        });
        restored
    }

    pub(super) fn allocations(&self) -> &Allocations {
        &self.allocations
    }

    /// Whether the allocations changed since this was last asked.
    pub(super) fn take_changed(&mut self) -> bool {
        std::mem::take(&mut self.changed)
    }

    /// Whether something became free since this was last asked.
    pub(super) fn take_freed(&mut self) -> bool {
        std::mem::take(&mut self.freed)
    }

    /// Notes what a manifest writes; gives the other services that it matters to.
    pub(super) fn declare(
        &mut self,
        claimant: &Claimant,
        service: &Service,
    ) -> BTreeSet<ObjectKey> {
        let mut affected = BTreeSet::new();
        for ip in &service.cluster_ips {
            self.addresses.declare(*ip, claimant.clone());
            affected.extend(self.addresses.claimants(*ip).iter().map(|other| other.key.clone()));
            if let Some(owner) = self.addresses.owner(*ip).cloned() {
                tracing::warn!(
                    %ip, service = %owner, by = %claimant.key,
                    "a manifest writes an address that was given out; the service gets another"
                );
                self.addresses.take_back(*ip);
                self.edit(&owner, |given| given.cluster_ips.retain(|other| other != ip));
                affected.insert(owner);
            }
        }
        for port in written_ports(service) {
            self.ports.declare(port, claimant.clone());
            affected.extend(self.ports.claimants(port).iter().map(|other| other.key.clone()));
            if let Some(owner) = self.ports.owner(port).cloned() {
                tracing::warn!(
                    port = port.1, service = %owner, by = %claimant.key,
                    "a manifest writes a node port that was given out; the service gets another"
                );
                self.ports.take_back(port);
                self.edit(&owner, |given| {
                    let (protocol, number) = port;
                    given.node_ports.retain(|(p, _), node_port| (*p, *node_port) != port);
                    if protocol == Protocol::Tcp && given.health_check_node_port == Some(number) {
                        given.health_check_node_port = None;
                    }
                });
                affected.insert(owner);
            }
        }
        affected
    }

    /// Forgets what a manifest wrote; gives the other services that it matters to.
    pub(super) fn withdraw(
        &mut self,
        claimant: &Claimant,
        service: &Service,
    ) -> BTreeSet<ObjectKey> {
        let mut affected = BTreeSet::new();
        for ip in &service.cluster_ips {
            self.addresses.withdraw(*ip, claimant);
            affected.extend(self.addresses.claimants(*ip).iter().map(|other| other.key.clone()));
        }
        for port in written_ports(service) {
            self.ports.withdraw(port, claimant);
            affected.extend(self.ports.claimants(port).iter().map(|other| other.key.clone()));
        }
        self.became_free();
        affected
    }

    /// Takes back all that was given to a service.
    pub(super) fn release(&mut self, key: &ObjectKey) {
        let Some(given) = self.allocations.remove(key) else { return };
        for ip in &given.cluster_ips {
            self.addresses.take_back(*ip);
        }
        for port in given.used_ports() {
            self.ports.take_back(port);
        }
        self.changed = true;
        self.became_free();
    }

    /// Takes back all that was given to services that `keep` does not know.
    pub(super) fn release_unless(&mut self, keep: impl Fn(&ObjectKey) -> bool) {
        let gone: Vec<_> = self.allocations.keys().filter(|key| !keep(key)).cloned().collect();
        for key in gone {
            self.release(&key);
        }
    }

    fn became_free(&mut self) {
        self.freed = true;
        self.empty_pools.clear();
    }

    /// Changes what was given to a service.
    fn edit(&mut self, key: &ObjectKey, edit: impl FnOnce(&mut GivenToService)) {
        let mut given = self.allocations.remove(key).unwrap_or_default();
        edit(&mut given);
        if !given.is_empty() {
            self.allocations.insert(key.clone(), given);
        }
        self.changed = true;
    }

    /// The families that a service's endpoints are of.
    pub(super) fn endpoint_families(
        &self,
        service: &Service,
        allocation: &ServiceAllocation,
    ) -> Vec<IpFamily> {
        if !service.headless {
            return service.cluster_ips.iter().map(|ip| IpFamily::of(*ip)).collect();
        }
        let families = self.families(service, allocation);
        if families.is_empty() { IpFamily::ALL.to_vec() } else { families }
    }

    /// The families that a service wants addresses of, the first first; none when nothing says.
    fn families(&self, service: &Service, allocation: &ServiceAllocation) -> Vec<IpFamily> {
        let has_pool = |family| self.cidrs(family).next().is_some();
        let mut families: Vec<IpFamily> =
            service.cluster_ips.iter().map(|ip| IpFamily::of(*ip)).collect();
        if families.is_empty() || allocation.policy != Some(FamilyPolicy::SingleStack) {
            for family in &allocation.families {
                if !families.contains(family) {
                    families.push(*family);
                }
            }
        }
        if families.is_empty() {
            families.extend(self.options.service_cidrs.first().map(IpFamily::of_net));
        }
        for family in IpFamily::ALL {
            let wanted = match allocation.policy {
                None | Some(FamilyPolicy::SingleStack) => false,
                Some(FamilyPolicy::PreferDualStack) => has_pool(family),
                Some(FamilyPolicy::RequireDualStack) => true,
            };
            if wanted && !families.contains(&family) {
                families.push(family);
            }
        }
        // A second family was named, but not asked for as something the service cannot do without.
        if allocation.policy == Some(FamilyPolicy::PreferDualStack) && families.len() > 1 {
            let written = |family| service.cluster_ips.iter().any(|ip| IpFamily::of(*ip) == family);
            let any_pool = families.iter().any(|family| has_pool(*family) || written(*family));
            if any_pool {
                families.retain(|family| has_pool(*family) || written(*family));
            }
        }
        families
    }

    fn cidrs(&self, family: IpFamily) -> impl Iterator<Item = &IpNet> {
        self.options.service_cidrs.iter().filter(move |cidr| IpFamily::of_net(cidr) == family)
    }

    /// Gives a service what it needs and does not write itself.
    pub(super) fn fill(
        &mut self,
        claimant: &Claimant,
        declared: &Arc<Service>,
        allocation: &ServiceAllocation,
    ) -> Filled {
        let mut errors = self.conflicts(claimant, declared);
        let families = self.families(declared, allocation);
        let is_named = declared.headless || declared.service_type == ServiceType::ExternalName;
        let needs = needs(declared, allocation, if is_named { &[] } else { &families });
        let before = self.allocations.remove(&claimant.key).unwrap_or_default();
        let given = self.give(&claimant.key, before.clone(), &needs);
        let exhausted = self.shortage(declared, &families, &needs, &given, &mut errors);
        if given != before {
            self.changed = true;
        }
        let service = errors.is_empty().then(|| complete(declared, &families, &given));
        if !given.is_empty() {
            self.allocations.insert(claimant.key.clone(), given);
        }
        Filled { service, errors, exhausted }
    }

    /// What others, who come first, have written too.
    fn conflicts(&self, claimant: &Claimant, service: &Service) -> Vec<FieldError> {
        let mut errors = Vec::new();
        let first_of = |claimants: &[Claimant]| {
            claimants
                .first()
                .filter(|first| *first != claimant)
                .map(|first| format!("Service {} ({})", first.key, first.origin))
        };
        for (i, ip) in service.cluster_ips.iter().enumerate() {
            if let Some(other) = first_of(self.addresses.claimants(*ip)) {
                errors.push(FieldError::new(
                    format!("spec.clusterIPs[{i}]"),
                    format_args!("{ip} is the cluster address of {other} already; choose another"),
                ));
            }
        }
        for (i, port) in service.ports.iter().enumerate() {
            let Some(node_port) = port.node_port else { continue };
            let protocol = port.protocol;
            if let Some(other) = first_of(self.ports.claimants((protocol, node_port))) {
                errors.push(FieldError::new(
                    format!("spec.ports[{i}].nodePort"),
                    format_args!(
                        "{node_port}/{protocol} is a node port of {other} already; choose another"
                    ),
                ));
            }
        }
        if let Some(port) = service.health_check_node_port
            && let Some(other) = first_of(self.ports.claimants((Protocol::Tcp, port)))
        {
            errors.push(FieldError::new(
                "spec.healthCheckNodePort",
                format_args!("{port}/TCP is a node port of {other} already; choose another"),
            ));
        }
        errors
    }

    /// Keeps of `given` what is still needed, gives back the rest, and adds what is missing as far
    /// as there is something left.
    fn give(&mut self, key: &ObjectKey, given: GivenToService, needs: &Needs) -> GivenToService {
        let mut kept = given;
        let mut freed = false;
        kept.cluster_ips.retain(|ip| {
            let needed = needs.families.contains(&IpFamily::of(*ip));
            if !needed {
                self.addresses.take_back(*ip);
                freed = true;
            }
            needed
        });
        kept.node_ports.retain(|port, node_port| {
            let needed = needs.node_ports.contains(port);
            if !needed {
                self.ports.take_back((port.0, *node_port));
                freed = true;
            }
            needed
        });
        if let Some(port) = kept.health_check_node_port.filter(|_| !needs.health_check) {
            self.ports.take_back((Protocol::Tcp, port));
            kept.health_check_node_port = None;
            freed = true;
        }
        if freed {
            self.became_free();
        }
        for family in &needs.families {
            if !kept.cluster_ips.iter().any(|ip| IpFamily::of(*ip) == *family) {
                kept.cluster_ips.extend(self.give_address(key, *family));
            }
        }
        for port in &needs.node_ports {
            if !kept.node_ports.contains_key(port)
                && let Some(node_port) = self.give_port(key, port.0, port.1)
            {
                kept.node_ports.insert(*port, node_port);
            }
        }
        if needs.health_check && kept.health_check_node_port.is_none() {
            kept.health_check_node_port = self.give_port(key, Protocol::Tcp, 0);
        }
        kept
    }

    fn give_address(&mut self, key: &ObjectKey, family: IpFamily) -> Option<IpAddr> {
        let pool = Pool::Addresses(family);
        if self.empty_pools.contains(&pool) {
            return None;
        }
        let seed = StableHash::new().text(&key.namespace).text(&key.name).finish();
        let free = self
            .cidrs(family)
            .find_map(|cidr| pool::addresses(cidr, seed).find(|ip| self.addresses.is_free(*ip)));
        match free {
            Some(ip) => {
                self.addresses.give(ip, key);
            }
            None => {
                self.empty_pools.insert(pool);
            }
        }
        free
    }

    /// A node port for a service's own port. The protocol is not part of the seed, so that a port
    /// that is served by TCP and UDP alike gets the same number for both.
    fn give_port(&mut self, key: &ObjectKey, protocol: Protocol, port: u16) -> Option<u16> {
        let pool = Pool::Ports(protocol);
        if self.empty_pools.contains(&pool) {
            return None;
        }
        let seed = StableHash::new()
            .text(&key.namespace)
            .text(&key.name)
            .bytes(&port.to_be_bytes())
            .finish();
        let free = pool::ports(&self.options.node_ports, seed)
            .find(|number| *number != 0 && self.ports.is_free((protocol, *number)));
        match free {
            Some(number) => {
                self.ports.give((protocol, number), key);
            }
            None => {
                self.empty_pools.insert(pool);
            }
        }
        free
    }

    /// Adds an error for what could not be given; whether it can be later.
    fn shortage(
        &self,
        service: &Service,
        families: &[IpFamily],
        needs: &Needs,
        given: &GivenToService,
        errors: &mut Vec<FieldError>,
    ) -> bool {
        let before = errors.len();
        let is_named = service.headless || service.service_type == ServiceType::ExternalName;
        if families.is_empty() && !is_named {
            let message = "no address is written and no network to give one from is known; write \
                           an address, or set --service-cidr";
            errors.push(FieldError::new("spec.clusterIP", message));
            return false;
        }
        for family in &needs.families {
            if given.cluster_ips.iter().any(|ip| IpFamily::of(*ip) == *family) {
                continue;
            }
            let cidrs: Vec<_> = self.cidrs(*family).map(ToString::to_string).collect();
            let message = if cidrs.is_empty() {
                format!(
                    "there is no {family} network to give an address from; add one to --service-cidr"
                )
            } else {
                format!(
                    "no address is left in {}; add a network to --service-cidr",
                    cidrs.join(", ")
                )
            };
            errors.push(FieldError::new("spec.clusterIP", message));
        }
        let range = &self.options.node_ports;
        for (i, port) in service.ports.iter().enumerate() {
            let own = (port.protocol, port.port);
            if needs.node_ports.contains(&own) && !given.node_ports.contains_key(&own) {
                errors.push(FieldError::new(
                    format!("spec.ports[{i}].nodePort"),
                    format_args!("no port is left in {}-{}", range.start(), range.end()),
                ));
            }
        }
        if needs.health_check && given.health_check_node_port.is_none() {
            errors.push(FieldError::new(
                "spec.healthCheckNodePort",
                format_args!("no port is left in {}-{}", range.start(), range.end()),
            ));
        }
        errors.len() > before
    }
}

/// What a service needs beyond what it writes.
fn needs(service: &Service, allocation: &ServiceAllocation, families: &[IpFamily]) -> Needs {
    let written = |family| service.cluster_ips.iter().any(|ip| IpFamily::of(*ip) == family);
    let with_node_ports = match service.service_type {
        ServiceType::NodePort => true,
        ServiceType::LoadBalancer => !allocation.without_node_ports,
        ServiceType::ClusterIP | ServiceType::ExternalName => false,
    };
    let unwritten = service.ports.iter().filter(|port| port.node_port.is_none());
    Needs {
        families: families.iter().copied().filter(|family| !written(*family)).collect(),
        node_ports: unwritten
            .filter(|_| with_node_ports)
            .map(|port| (port.protocol, port.port))
            .collect(),
        health_check: service.service_type == ServiceType::LoadBalancer
            && service.external_traffic_policy == TrafficPolicy::Local
            && service.health_check_node_port.is_none(),
    }
}

/// The node ports that a manifest writes.
fn written_ports(service: &Service) -> impl Iterator<Item = (Protocol, u16)> + '_ {
    let node_ports = service.ports.iter().filter_map(|port| Some((port.protocol, port.node_port?)));
    node_ports.chain(service.health_check_node_port.map(|port| (Protocol::Tcp, port)))
}

/// The service with what it was given.
fn complete(
    declared: &Arc<Service>,
    families: &[IpFamily],
    given: &GivenToService,
) -> Arc<Service> {
    if given.is_empty() {
        return declared.clone();
    }
    let mut service = Service::clone(declared);
    let ips = declared.cluster_ips.iter().chain(&given.cluster_ips);
    service.cluster_ips = ips.copied().collect();
    service
        .cluster_ips
        .sort_by_key(|ip| families.iter().position(|family| *family == IpFamily::of(*ip)));
    for port in &mut service.ports {
        let own = (port.protocol, port.port);
        port.node_port = port.node_port.or_else(|| given.node_ports.get(&own).copied());
    }
    service.health_check_node_port =
        service.health_check_node_port.or(given.health_check_node_port);
    Arc::new(service)
}
