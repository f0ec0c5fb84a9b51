//! How patches are carried out, for each type of service.
//!
//! What all have in common is here: a virtual server, its endpoints, and members of sets that tell the
//! fixed rules how to treat its packets. Which sets, and whether the address has to be put on our device,
//! is what the types differ in.

use telaio_model::Protocol;

use super::network::{Entry, Membership, Server, Step};
use super::sets::SetKind;
use super::types::{
    EndpointInfo, Forwarding, ResourceInfo, ServerKey, ServiceInfo, ServiceType, Treatment,
    protocol_number,
};

mod cluster_ip;
mod load_balancer;
mod local;
mod node_port;

pub use cluster_ip::ClusterIpHandler;
pub use load_balancer::LoadBalancerHandler;
pub use local::LocalHandler;
pub use node_port::NodePortHandler;

/// A member of a set, with its mark if the set has marks.
pub type Member = (Membership, Option<u32>);

/// Carries out operations on services of one type and on their endpoints.
pub trait Handler: Sync {
    /// The sets that a service of this type is in.
    fn members(&self, service: &ServiceInfo) -> Vec<Member>;

    /// Makes a service.
    fn create_service(&self, service: &ServiceInfo, steps: &mut Vec<Step>) {
        steps.extend(server(service).map(Step::SetServer));
        steps.extend(self.members(service).into_iter().map(|(at, mark)| Step::Join(at, mark)));
        steps.extend(service.address().map(Step::Bind));
    }

    /// Changes a service; its key stays the same.
    fn update_service(&self, old: &ServiceInfo, new: &ServiceInfo, steps: &mut Vec<Step>) {
        let (was, is) = (server(old), server(new));
        if was != is {
            steps.extend(is.map(Step::SetServer));
        }
        let (before, after) = (handler_of(old).members(old), self.members(new));
        let joins = after.iter().filter(|it| !before.contains(it));
        steps.extend(joins.map(|(at, mark)| Step::Join(*at, *mark)));
        let leaves = before.iter().filter(|it| !after.contains(it));
        steps.extend(leaves.map(|(at, _)| Step::Leave(*at)));
        if old.address() != new.address() {
            steps.extend(new.address().map(Step::Bind));
            steps.extend(old.address().map(Step::Unbind));
        }
        if was.is_some() && is.is_none() {
            steps.push(Step::RemoveServer(new.server));
        }
    }

    /// Takes a service away.
    fn delete_service(&self, service: &ServiceInfo, steps: &mut Vec<Step>) {
        steps.extend(self.members(service).into_iter().map(|(at, _)| Step::Leave(at)));
        steps.extend(service.address().map(Step::Unbind));
        if server(service).is_some() {
            steps.push(Step::RemoveServer(service.server));
        }
    }

    /// Makes an endpoint.
    fn create_endpoint(&self, endpoint: &EndpointInfo, _: &ServiceInfo, steps: &mut Vec<Step>) {
        steps.push(Step::SetEndpoint(endpoint.clone()));
        steps.extend(loop_back(endpoint).map(|at| Step::Join(at, None)));
    }

    /// Changes an endpoint; its key stays the same.
    fn update_endpoint(
        &self,
        old: &EndpointInfo,
        new: &EndpointInfo,
        _: &ServiceInfo,
        steps: &mut Vec<Step>,
    ) {
        steps.push(Step::SetEndpoint(new.clone()));
        let (was, is) = (loop_back(old), loop_back(new));
        if was != is {
            steps.extend(is.map(|at| Step::Join(at, None)));
            steps.extend(was.map(Step::Leave));
        }
    }

    /// Takes an endpoint away.
    fn delete_endpoint(&self, endpoint: &EndpointInfo, _: &ServiceInfo, steps: &mut Vec<Step>) {
        steps.push(Step::RemoveEndpoint(endpoint.key()));
        steps.extend(loop_back(endpoint).map(Step::Leave));
    }

    /// The operations on services, for [`ServicePatch::apply`](super::patch::ServicePatch::apply).
    fn get_service_handlers(&self) -> ServiceHandlers<'_>;

    /// The operations on endpoints, for [`EndpointPatch::apply`](super::patch::EndpointPatch::apply).
    fn get_endpoint_handlers(&self) -> EndpointHandlers<'_>;
}

/// A handler, as far as it is for services.
#[derive(Clone, Copy)]
pub struct ServiceHandlers<'a>(pub &'a dyn Handler);

/// A handler, as far as it is for endpoints.
#[derive(Clone, Copy)]
pub struct EndpointHandlers<'a>(pub &'a dyn Handler);

/// The handler of a service.
pub fn handler_of(service: &ServiceInfo) -> &'static dyn Handler {
    match service.service_type {
        ServiceType::ClusterIp => &ClusterIpHandler,
        ServiceType::NodePort => &NodePortHandler,
        ServiceType::LoadBalancer => &LoadBalancerHandler,
        ServiceType::Local => &LocalHandler,
    }
}

fn server(service: &ServiceInfo) -> Option<Server> {
    (service.treatment == Treatment::Serve).then_some(Server {
        key: service.server,
        scheduler: service.scheduler,
        affinity_s: service.affinity_s,
        is_udp: service.name.protocol == Protocol::Udp,
    })
}

/// A service's address and port as a member; none for one that is known by its mark.
fn entry(service: &ServiceInfo) -> Option<Entry> {
    match service.server {
        ServerKey::Address { protocol, at } => {
            Some(Entry::IpPort { ip: at.ip(), protocol, port: at.port() })
        }
        ServerKey::Mark { .. } => None,
    }
}

/// Where an endpoint is listed so that it can reach itself.
fn loop_back(endpoint: &EndpointInfo) -> Option<Membership> {
    // Whoever answers the client itself is not met by way of this node.
    if !endpoint.local || endpoint.forwarding != Forwarding::Nat {
        return None;
    }
    let protocol = protocol_number(endpoint.protocol);
    let (ip, port) = (endpoint.address.ip(), endpoint.address.port());
    Some(Membership::new(SetKind::LoopBack, Entry::IpPortIp { ip, protocol, port, other: ip }))
}

/// The set of an address that is served, where NAT would put it into `by_nat`.
fn served(service: &ServiceInfo, by_nat: SetKind) -> SetKind {
    if service.is_direct { SetKind::Direct } else { by_nat }
}

/// The set of an address that is not served; `None` if it is.
fn unserved(treatment: Treatment) -> Option<SetKind> {
    match treatment {
        Treatment::Serve => None,
        Treatment::Reject => Some(SetKind::Reject),
        Treatment::Drop => Some(SetKind::Drop),
    }
}

#[cfg(test)]
mod tests;
