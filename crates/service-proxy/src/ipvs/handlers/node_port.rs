//! Services on ports of the node's own addresses.

use super::{EndpointHandlers, Handler, Member, ServiceHandlers, entry, served, unserved};
use crate::ipvs::network::Membership;
use crate::ipvs::sets::SetKind;
use crate::ipvs::types::{Outside, ServiceInfo};

/// Always masqueraded, or, with the policy Local, led to the endpoints of this node with its source.
#[derive(Debug, Clone, Copy)]
pub struct NodePortHandler;

impl Handler for NodePortHandler {
    fn members(&self, service: &ServiceInfo) -> Vec<Member> {
        external_members(service)
    }

    fn get_service_handlers(&self) -> ServiceHandlers<'_> {
        ServiceHandlers(self)
    }

    fn get_endpoint_handlers(&self) -> EndpointHandlers<'_> {
        EndpointHandlers(self)
    }
}

/// The sets of an address that is not a cluster address.
pub(super) fn external_members(service: &ServiceInfo) -> Vec<Member> {
    let Some(entry) = entry(service) else { return Vec::new() };
    let (set, mark) = match (unserved(service.treatment), service.outside) {
        (_, Some(Outside::Marked(mark))) => (SetKind::Local, Some(mark)),
        (Some(unserved), _) => (unserved, None),
        (None, Some(Outside::Drop)) => (SetKind::NoLocal, None),
        (None, None) => (served(service, SetKind::External), None),
    };
    vec![(Membership::new(set, entry), mark)]
}
