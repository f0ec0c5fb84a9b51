//! The one place that changes HNS.

use std::net::IpAddr;

use telaio_hcn::{Feature, Guid, HcnError, LoadBalancer, Reason};
use telaio_model::ObjectKey;
use telaio_reconcile::{ApplyError, SyncReport};

use super::super::compile::RemoteEndpoint;
use super::super::identity;
use super::super::store::FrontendKey;
use super::{Core, is_surprise};

/// Something that could not be done. It stays to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// The service that wants it, if one does.
    pub service: Option<ObjectKey>,
    /// Why not.
    pub error: HcnError,
}

impl Failure {
    /// What the sync loop makes of it.
    pub fn to_apply_error(&self) -> ApplyError {
        let text = match &self.service {
            Some(service) => format!("service {service}: {}", self.error),
            None => self.error.to_string(),
        };
        match self.error.reason {
            Reason::NotFound
            | Reason::MissingDependency(_)
            | Reason::AlreadyExists
            | Reason::PortInUse
            | Reason::InUse => ApplyError::Conflict(text),
            Reason::InvalidDocument => ApplyError::Refused(text),
            Reason::Unsupported => ApplyError::Unsupported(text),
            // Unavailable, a bad answer, access denied, anything else: HNS may think better of it.
            _ => ApplyError::Transient(text),
        }
    }
}

/// What was done, and what could not be.
#[derive(Debug, Default)]
pub struct Outcome {
    /// What was done.
    pub report: SyncReport,
    /// What could not be done.
    pub failures: Vec<Failure>,
    /// HNS is not running: the rest was not even tried.
    pub is_down: bool,
}

impl Outcome {
    /// All of it, as one error; none if all went well.
    pub fn error(&self) -> Option<ApplyError> {
        ApplyError::several(self.failures.iter().map(Failure::to_apply_error).collect())
    }
}

/// HNS is not running: nothing more can be done.
struct Down;

impl Core {
    /// Works through what differs between what is wanted and what is there: endpoints are made, then load
    /// balancers made and changed, then load balancers removed, then endpoints. So no load balancer ever
    /// names an endpoint that is not there, and none goes before what replaces it has come.
    ///
    /// Always in the same order. One that fails is told and tried again the next time; the rest goes on.
    pub fn program_host_compute_objects(&mut self) -> Outcome {
        let mut outcome = Outcome::default();
        if self.program(&mut outcome).is_err() {
            outcome.is_down = true;
        }
        if outcome.failures.iter().any(|failure| is_surprise(&failure.error)) {
            self.there.is_stale = true;
        }
        outcome
    }

    fn program(&mut self, outcome: &mut Outcome) -> Result<(), Down> {
        // They may be at places that are wanted.
        self.delete_stray_load_balancers(outcome)?;
        self.make_source_vip(outcome)?;
        self.create_endpoints(outcome)?;
        self.load_balancers.resolve(&self.endpoints);
        self.tell_lacking();
        self.write_load_balancers(outcome)?;
        self.delete_load_balancers(outcome)?;
        self.delete_endpoints(outcome)
    }

    /// Notes a failure.
    fn failed(
        outcome: &mut Outcome,
        service: Option<ObjectKey>,
        error: HcnError,
    ) -> Result<(), Down> {
        let is_down = error.is_transient();
        outcome.failures.push(Failure { service, error });
        if is_down { Err(Down) } else { Ok(()) }
    }

    fn delete_stray_load_balancers(&mut self, outcome: &mut Outcome) -> Result<(), Down> {
        for id in self.there.stray_load_balancers.clone() {
            match gone(self.hcn.delete_load_balancer(id)) {
                Ok(()) => {
                    self.there.removed_load_balancer(id);
                    outcome.report.deleted += 1;
                }
                Err(error) => Self::failed(outcome, None, error)?,
            }
        }
        Ok(())
    }

    /// On an overlay somebody has to have the source address.
    fn make_source_vip(&mut self, outcome: &mut Outcome) -> Result<(), Down> {
        if let Some((id, there)) = &self.there.source_vip {
            let wanted = self.source_vip.as_ref();
            if wanted.is_some_and(|wanted| wanted.is_satisfied_by(there)) {
                return Ok(());
            }
            let id = *id;
            match gone(self.hcn.delete_endpoint(id)) {
                Ok(()) => {
                    self.there.removed_endpoint(id);
                    self.there.source_vip = None;
                    outcome.report.deleted += 1;
                }
                Err(error) => return Self::failed(outcome, None, error),
            }
        }
        let Some(wanted) = self.source_vip.clone() else { return Ok(()) };
        if wanted.addresses().any(|address| self.endpoints.id_of(address).is_some()) {
            return Ok(());
        }
        match self.hcn.create_endpoint(&wanted) {
            Ok(made) => {
                self.there.made_source_vip(made.id.unwrap_or_default(), made);
                outcome.report.created += 1;
                Ok(())
            }
            Err(error) => Self::failed(outcome, None, error),
        }
    }

    fn create_endpoints(&mut self, outcome: &mut Outcome) -> Result<(), Down> {
        let changed: Vec<(IpAddr, RemoteEndpoint)> = self
            .endpoints
            .diff
            .changed()
            .filter_map(|delta| Some((*delta.key, *delta.new?)))
            .collect();
        for (address, wanted) in changed {
            let service = self.endpoints.wanted_by(address).cloned();
            if let Some(id) = self.endpoints.our_id(address)
                && !self.remove_changed_endpoint(address, id, service.as_ref(), outcome)?
            {
                continue;
            }
            match self.hcn.create_endpoint(&wanted.document(self.network(), address)) {
                Ok(made) => {
                    let id = made.id.unwrap_or_default();
                    self.endpoints.made(address, id);
                    self.there.made_endpoint(id, address);
                    self.load_balancers.touch_users_of(address);
                    outcome.report.created += 1;
                }
                Err(error) => Self::failed(outcome, service, error)?,
            }
        }
        Ok(())
    }

    /// An endpoint is to be another one at the same address: HNS cannot change a remote endpoint, nor have
    /// two at one address, nor remove one in use. So its load balancers go first, and come again right
    /// after. It happens when an address moves to another node. Whether it is gone.
    fn remove_changed_endpoint(
        &mut self,
        address: IpAddr,
        id: Guid,
        service: Option<&ObjectKey>,
        outcome: &mut Outcome,
    ) -> Result<bool, Down> {
        for (key, load_balancer) in self.load_balancers.users_there(id) {
            if !self.remove_load_balancer(key, load_balancer, outcome)? {
                return Ok(false);
            }
        }
        match gone(self.hcn.delete_endpoint(id)) {
            Ok(()) => {
                self.endpoints.lost(address);
                self.load_balancers.touch_users_of(address);
                self.there.removed_endpoint(id);
                outcome.report.deleted += 1;
                Ok(true)
            }
            Err(error) => {
                Self::failed(outcome, service.cloned(), error)?;
                Ok(false)
            }
        }
    }

    /// Whether it is gone.
    fn remove_load_balancer(
        &mut self,
        key: FrontendKey,
        id: Guid,
        outcome: &mut Outcome,
    ) -> Result<bool, Down> {
        match gone(self.hcn.delete_load_balancer(id)) {
            Ok(()) => {
                self.load_balancers.lost(key);
                self.there.removed_load_balancer(id);
                outcome.report.deleted += 1;
                Ok(true)
            }
            Err(error) => {
                Self::failed(outcome, self.service_at(&key), error)?;
                Ok(false)
            }
        }
    }

    fn service_at(&self, key: &FrontendKey) -> Option<ObjectKey> {
        self.load_balancers.winner(key).map(|claim| claim.service.clone())
    }

    fn write_load_balancers(&mut self, outcome: &mut Outcome) -> Result<(), Down> {
        let changed: Vec<(FrontendKey, LoadBalancer)> = self
            .load_balancers
            .diff
            .changed()
            .filter_map(|delta| Some((*delta.key, delta.new?.clone())))
            .collect();
        for (key, wanted) in changed {
            let outcome_of = match self.load_balancers.our_id(&key) {
                Some(id) => self.change_load_balancer(key, id, wanted, outcome)?,
                None => self.create_load_balancer(key, wanted, outcome),
            };
            if let Err(error) = outcome_of {
                Self::failed(outcome, self.service_at(&key), error)?;
            }
        }
        Ok(())
    }

    /// In place where HNS can, else by removing and making it back to back.
    fn change_load_balancer(
        &mut self,
        key: FrontendKey,
        id: Guid,
        wanted: LoadBalancer,
        outcome: &mut Outcome,
    ) -> Result<Result<(), HcnError>, Down> {
        let can_modify = self.ground.as_ref().is_some_and(|ground| {
            ground.features.has(Feature::ModifyLoadBalancer) && !self.modify_refused
        });
        if can_modify {
            match self.hcn.modify_load_balancer(id, &wanted) {
                Ok(()) => {
                    self.load_balancers.made(key, id);
                    outcome.report.updated += 1;
                    return Ok(Ok(()));
                }
                Err(error) if error.reason == Reason::Unsupported => {
                    tracing::warn!(%error, "load balancers are removed and made again instead");
                    self.modify_refused = true;
                }
                Err(error) if error.is_not_found() => {
                    self.load_balancers.lost(key);
                    self.there.removed_load_balancer(id);
                    // If one is gone, others may be.
                    self.there.is_stale = true;
                    return Ok(self.create_load_balancer(key, wanted, outcome));
                }
                Err(error) => return Ok(Err(error)),
            }
        }
        if !self.remove_load_balancer(key, id, outcome)? {
            return Ok(Ok(()));
        }
        Ok(self.create_load_balancer(key, wanted, outcome))
    }

    fn create_load_balancer(
        &mut self,
        key: FrontendKey,
        mut wanted: LoadBalancer,
        outcome: &mut Outcome,
    ) -> Result<(), HcnError> {
        if self.options.takeover
            && let Some(other) = self.there.foreign.get(&key).copied()
        {
            tracing::info!(%key, id = %other, "taking a load balancer's place");
            gone(self.hcn.delete_load_balancer(other))?;
            self.there.removed_load_balancer(other);
            outcome.report.deleted += 1;
        }
        let id = identity::load_balancer_id(self.network(), &key);
        wanted.id = Some(id);
        let made = self.hcn.create_load_balancer(&wanted)?;
        let id = made.id.unwrap_or(id);
        self.load_balancers.made(key, id);
        self.there.made_load_balancer(id, key);
        outcome.report.created += 1;
        Ok(())
    }

    fn delete_load_balancers(&mut self, outcome: &mut Outcome) -> Result<(), Down> {
        let deleted: Vec<FrontendKey> =
            self.load_balancers.diff.deleted().map(|delta| *delta.key).collect();
        for key in deleted {
            match self.load_balancers.our_id(&key) {
                Some(id) => _ = self.remove_load_balancer(key, id, outcome)?,
                None => self.load_balancers.lost(key),
            }
        }
        Ok(())
    }

    fn delete_endpoints(&mut self, outcome: &mut Outcome) -> Result<(), Down> {
        let deleted: Vec<IpAddr> = self.endpoints.diff.deleted().map(|delta| *delta.key).collect();
        let ours =
            deleted.into_iter().map(|address| (self.endpoints.our_id(address), Some(address)));
        let strays = self.there.stray_endpoints.iter().map(|id| (Some(*id), None));
        let all: Vec<_> = ours.chain(strays).collect();
        for (id, address) in all {
            let Some(id) = id else { continue };
            match gone(self.hcn.delete_endpoint(id)) {
                Ok(()) => {
                    if let Some(address) = address {
                        self.endpoints.lost(address);
                        self.load_balancers.touch_users_of(address);
                    }
                    self.there.removed_endpoint(id);
                    outcome.report.deleted += 1;
                }
                Err(error) => Self::failed(outcome, None, error)?,
            }
        }
        Ok(())
    }
}

/// What is not there any more is removed as well.
fn gone(outcome: Result<(), HcnError>) -> Result<(), HcnError> {
    match outcome {
        Err(error) if error.is_not_found() => Ok(()),
        outcome => outcome,
    }
}
