//! The servers that traffic from outside is led to, where the external policy is Local.

use super::{EndpointHandlers, Handler, Member, ServiceHandlers};
use crate::ipvs::types::ServiceInfo;

/// Known by its mark, which the members of its addresses carry; so it is in no set itself.
#[derive(Debug, Clone, Copy)]
pub struct LocalHandler;

impl Handler for LocalHandler {
    fn members(&self, _: &ServiceInfo) -> Vec<Member> {
        Vec::new()
    }

    fn get_service_handlers(&self) -> ServiceHandlers<'_> {
        ServiceHandlers(self)
    }

    fn get_endpoint_handlers(&self) -> EndpointHandlers<'_> {
        EndpointHandlers(self)
    }
}
