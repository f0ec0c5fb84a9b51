//! Services on load balancers' addresses and on external ones.

use super::node_port::external_members;
use super::{EndpointHandlers, Handler, Member, ServiceHandlers, entry};
use crate::ipvs::network::{Entry, Membership};
use crate::ipvs::sets::SetKind;
use crate::ipvs::types::ServiceInfo;

/// As for node ports; besides, only some sources may be allowed.
#[derive(Debug, Clone, Copy)]
pub struct LoadBalancerHandler;

impl Handler for LoadBalancerHandler {
    fn members(&self, service: &ServiceInfo) -> Vec<Member> {
        let mut members = external_members(service);
        let (Some(allowed), Some(entry @ Entry::IpPort { ip, protocol, port })) =
            (&service.allowed, entry(service))
        else {
            return members;
        };
        // First who may, then that only they may.
        let sources = allowed.iter().map(|net| Entry::IpPortNet { ip, protocol, port, net: *net });
        members.extend(sources.map(|source| (Membership::new(SetKind::Allowed, source), None)));
        members.push((Membership::new(SetKind::Restricted, entry), None));
        members
    }

    fn get_service_handlers(&self) -> ServiceHandlers<'_> {
        ServiceHandlers(self)
    }

    fn get_endpoint_handlers(&self) -> EndpointHandlers<'_> {
        EndpointHandlers(self)
    }
}
