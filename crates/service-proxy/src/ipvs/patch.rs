//! What has to be done, as patches: a resource, and an operation on it.
//!
//! [`PatchGroup`] couples the patch of one virtual server with those of its endpoints. Groups never depend
//! on each other, so they may be applied in any order, or at the same time. How a patch is carried out is
//! given to `apply`: the handlers of the service's type.

pub use telaio_reconcile::Operation;
use telaio_reconcile::Patch;

use super::handlers::{EndpointHandlers, Handler, ServiceHandlers};
use super::network::Step;
use super::types::{EndpointInfo, ServiceInfo};

/// The patch of a service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServicePatch(pub Patch<ServiceInfo>);

impl ServicePatch {
    /// What has to be done.
    pub fn op(&self) -> Operation {
        self.0.op()
    }

    /// The service, as it has to be or, if it has to go, as it is.
    pub fn service_info(&self) -> &ServiceInfo {
        self.0.resource()
    }

    /// Carries it out.
    pub fn apply(&self, handlers: ServiceHandlers<'_>, steps: &mut Vec<Step>) {
        match &self.0 {
            Patch::NoOp(_) => {}
            Patch::Create(service) => handlers.0.create_service(service, steps),
            Patch::Update { old, new } => handlers.0.update_service(old, new, steps),
            Patch::Delete(service) => handlers.0.delete_service(service, steps),
        }
    }
}

/// The patch of an endpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndpointPatch(pub Patch<EndpointInfo>);

impl EndpointPatch {
    /// What has to be done.
    pub fn op(&self) -> Operation {
        self.0.op()
    }

    /// Carries it out, for an endpoint of `service`.
    pub fn apply(
        &self,
        handlers: EndpointHandlers<'_>,
        service: &ServiceInfo,
        steps: &mut Vec<Step>,
    ) {
        match &self.0 {
            Patch::NoOp(_) => {}
            Patch::Create(endpoint) => handlers.0.create_endpoint(endpoint, service, steps),
            Patch::Update { old, new } => handlers.0.update_endpoint(old, new, service, steps),
            Patch::Delete(endpoint) => handlers.0.delete_endpoint(endpoint, service, steps),
        }
    }
}

/// The patches of the endpoints of one service.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EndpointPatches(pub Vec<EndpointPatch>);

impl EndpointPatches {
    /// Carries them out: who comes before who goes, so that a service that has endpoints is never without.
    pub fn apply(
        &self,
        handlers: EndpointHandlers<'_>,
        service: &ServiceInfo,
        steps: &mut Vec<Step>,
    ) {
        let (going, coming): (Vec<&EndpointPatch>, Vec<&EndpointPatch>) =
            self.0.iter().partition(|patch| patch.op() == Operation::Delete);
        for patch in coming.into_iter().chain(going) {
            patch.apply(handlers, service, steps);
        }
    }
}

/// The patch of one service and those of its endpoints.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PatchGroup {
    /// The service.
    pub service: ServicePatch,
    /// Its endpoints.
    pub endpoints: EndpointPatches,
}

impl PatchGroup {
    /// Carries it out: a server is there before its endpoints, and goes after them.
    pub fn apply(&self, handler: &dyn Handler, steps: &mut Vec<Step>) {
        let service = self.service.service_info();
        let endpoints = |steps: &mut Vec<Step>| {
            self.endpoints.apply(handler.get_endpoint_handlers(), service, steps);
        };
        if self.service.op() == Operation::Delete {
            endpoints(steps);
            self.service.apply(handler.get_service_handlers(), steps);
        } else {
            self.service.apply(handler.get_service_handlers(), steps);
            endpoints(steps);
        }
    }
}

impl From<telaio_reconcile::PatchGroup<ServiceInfo, EndpointInfo>> for PatchGroup {
    fn from(group: telaio_reconcile::PatchGroup<ServiceInfo, EndpointInfo>) -> Self {
        Self {
            service: ServicePatch(group.service),
            endpoints: EndpointPatches(group.endpoints.into_iter().map(EndpointPatch).collect()),
        }
    }
}
