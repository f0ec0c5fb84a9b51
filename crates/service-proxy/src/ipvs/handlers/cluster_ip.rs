//! Services on their cluster addresses.

use super::{EndpointHandlers, Handler, Member, ServiceHandlers, entry, served, unserved};
use crate::ipvs::network::Membership;
use crate::ipvs::sets::SetKind;
use crate::ipvs::types::ServiceInfo;

/// Masqueraded where the rules say so: what comes from pods of this node keeps its source.
#[derive(Debug, Clone, Copy)]
pub struct ClusterIpHandler;

impl Handler for ClusterIpHandler {
    fn members(&self, service: &ServiceInfo) -> Vec<Member> {
        let set = unserved(service.treatment).unwrap_or(served(service, SetKind::ClusterIp));
        entry(service).map(|entry| (Membership::new(set, entry), None)).into_iter().collect()
    }

    fn get_service_handlers(&self) -> ServiceHandlers<'_> {
        ServiceHandlers(self)
    }

    fn get_endpoint_handlers(&self) -> EndpointHandlers<'_> {
        EndpointHandlers(self)
    }
}
