//! Deltas as operations on resources, grouped by what depends on what.
//!
//! A [`Patch`] is a resource and what to do about it. A [`PatchGroup`] couples the patch of one
//! service with those of its endpoints. Groups never depend on each other, so
//! [`apply_parallel`] may apply them at the same time.
//!
//! How a patch is carried out is given when it is applied ([`Handlers`], [`GroupHandler`]): what to
//! do and how to do it stay apart.
//!
//! What always holds: within a group the service is there before its first endpoint is made, and
//! goes after its last endpoint is gone; endpoints that go make room before others come.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::diffstore::{Delta, DiffStore};

#[cfg(test)]
mod tests;

/// What has to be done about a resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Operation {
    /// Nothing; the resource is there because others in its group depend on it.
    NoOp,
    /// It is not there yet.
    Create,
    /// It is there with another content.
    Update,
    /// It is there and must go.
    Delete,
}

/// A resource and what has to be done about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Patch<T> {
    /// It stays as it is.
    NoOp(T),
    /// It has to be made.
    Create(T),
    /// It has to become another.
    Update {
        /// What it is.
        old: T,
        /// What it has to be.
        new: T,
    },
    /// It has to go.
    Delete(T),
}

impl<T> Patch<T> {
    /// What has to be done.
    pub fn op(&self) -> Operation {
        match self {
            Self::NoOp(_) => Operation::NoOp,
            Self::Create(_) => Operation::Create,
            Self::Update { .. } => Operation::Update,
            Self::Delete(_) => Operation::Delete,
        }
    }

    /// The resource: as it has to be, or, if it has to go, as it is.
    pub fn resource(&self) -> &T {
        match self {
            Self::NoOp(resource)
            | Self::Create(resource)
            | Self::Update { new: resource, .. }
            | Self::Delete(resource) => resource,
        }
    }

    /// What is applied at present; `None` for a resource that has to be made.
    pub fn previous(&self) -> Option<&T> {
        match self {
            Self::NoOp(resource) | Self::Update { old: resource, .. } | Self::Delete(resource) => {
                Some(resource)
            }
            Self::Create(_) => None,
        }
    }

    /// Carries it out with the handler of its operation.
    pub fn apply<H: Handlers<T>>(&self, handlers: &mut H) -> Result<(), H::Error> {
        match self {
            Self::NoOp(resource) => handlers.no_op(resource),
            Self::Create(resource) => handlers.create(resource),
            Self::Update { old, new } => handlers.update(old, new),
            Self::Delete(resource) => handlers.delete(resource),
        }
    }
}

impl<T: Clone> Patch<T> {
    /// The patch for a delta; `None` for a delta between nothing and nothing.
    pub fn from_delta<K>(delta: &Delta<'_, K, T>) -> Option<Self> {
        match (delta.old, delta.new) {
            (None, Some(new)) => Some(Self::Create(new.clone())),
            (Some(old), Some(new)) => Some(Self::Update { old: old.clone(), new: new.clone() }),
            (Some(old), None) => Some(Self::Delete(old.clone())),
            (None, None) => None,
        }
    }
}

/// How each operation on a resource is carried out.
pub trait Handlers<T> {
    /// Why it could not be.
    type Error;

    /// Makes it.
    fn create(&mut self, resource: &T) -> Result<(), Self::Error>;
    /// Makes the `old` one the `new` one.
    fn update(&mut self, old: &T, new: &T) -> Result<(), Self::Error>;
    /// Takes it away.
    fn delete(&mut self, resource: &T) -> Result<(), Self::Error>;
    /// It stays as it is.
    fn no_op(&mut self, _resource: &T) -> Result<(), Self::Error> {
        Ok(())
    }
}

/// How a group is carried out: each operation on a service, and on an endpoint of that service.
///
/// A backend has one for each way to reach a service (cluster address, node port, load balancer).
pub trait GroupHandler<S, E> {
    /// Why it could not be.
    type Error;

    /// Makes a service.
    fn create_service(&mut self, service: &S) -> Result<(), Self::Error>;
    /// Changes a service.
    fn update_service(&mut self, old: &S, new: &S) -> Result<(), Self::Error>;
    /// Takes a service away; its endpoints are gone already.
    fn delete_service(&mut self, service: &S) -> Result<(), Self::Error>;
    /// Makes an endpoint of a service that is there.
    fn create_endpoint(&mut self, endpoint: &E, service: &S) -> Result<(), Self::Error>;
    /// Changes an endpoint.
    fn update_endpoint(&mut self, old: &E, new: &E, service: &S) -> Result<(), Self::Error>;
    /// Takes an endpoint away.
    fn delete_endpoint(&mut self, endpoint: &E, service: &S) -> Result<(), Self::Error>;
}

/// The patch of one service and those of its endpoints.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PatchGroup<S, E> {
    /// The service; a [`Patch::NoOp`] if only endpoints change.
    pub service: Patch<S>,
    /// Its endpoints that change.
    pub endpoints: Vec<Patch<E>>,
}

impl<S, E> PatchGroup<S, E> {
    /// Carries the group out in the only order that works; stops at the first error.
    pub fn apply<H: GroupHandler<S, E>>(&self, handler: &mut H) -> Result<(), H::Error> {
        match &self.service {
            Patch::Create(service) => handler.create_service(service)?,
            Patch::Update { old, new } => handler.update_service(old, new)?,
            Patch::NoOp(_) | Patch::Delete(_) => {}
        }
        let service = self.service.resource();
        for patch in &self.endpoints {
            if let Patch::Delete(endpoint) = patch {
                handler.delete_endpoint(endpoint, service)?;
            }
        }
        for patch in &self.endpoints {
            match patch {
                Patch::Create(endpoint) => handler.create_endpoint(endpoint, service)?,
                Patch::Update { old, new } => handler.update_endpoint(old, new, service)?,
                Patch::NoOp(_) | Patch::Delete(_) => {}
            }
        }
        if let Patch::Delete(service) = &self.service {
            handler.delete_service(service)?;
        }
        Ok(())
    }
}

/// The groups that lead from what is applied to what is wanted, by service, in key order.
///
/// `service_of` says to which service an endpoint belongs. An endpoint must not be wanted without
/// its service; one that is gets no patch, so that a handler never sees an endpoint of nothing.
pub fn generate_patch_groups<SK, S, EK, E>(
    services: &DiffStore<SK, S>,
    endpoints: &DiffStore<EK, E>,
    service_of: impl Fn(&EK) -> &SK,
) -> Vec<PatchGroup<S, E>>
where
    SK: Ord + Clone,
    S: Eq + Clone,
    EK: Ord + Clone,
    E: Eq + Clone,
{
    let mut groups: BTreeMap<&SK, PatchGroup<S, E>> = BTreeMap::new();
    for delta in services.deltas() {
        if let Some(service) = Patch::from_delta(&delta) {
            groups.insert(delta.key, PatchGroup { service, endpoints: Vec::new() });
        }
    }
    for delta in endpoints.deltas() {
        let Some(patch) = Patch::from_delta(&delta) else { continue };
        let key = service_of(delta.key);
        if let Some(group) = groups.get_mut(key) {
            group.endpoints.push(patch);
        } else if let Some(service) = services.peek(key) {
            let service = Patch::NoOp(service.clone());
            groups.insert(key, PatchGroup { service, endpoints: vec![patch] });
        }
    }
    groups.into_values().collect()
}

/// Applies independent `groups` on up to `threads` threads at the same time.
///
/// A group that fails does not stop the others. Returns the errors with the index of their group, in
/// that order; empty means that all went well. A panic in `apply` is passed on once the other
/// threads are through.
///
/// ```
/// let failed = telaio_reconcile::apply_parallel(&[1, 0, 2], 2, |n: &u32| {
///     10u32.checked_div(*n).map(|_| ()).ok_or("division by zero")
/// });
/// assert_eq!(failed, [(1, "division by zero")]);
/// ```
pub fn apply_parallel<G, E, F>(groups: &[G], threads: usize, apply: F) -> Vec<(usize, E)>
where
    G: Sync,
    E: Send,
    F: Fn(&G) -> Result<(), E> + Sync,
{
    let next = AtomicUsize::new(0);
    let work = || {
        let mut failed = Vec::new();
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(group) = groups.get(index) else { return failed };
            if let Err(error) = apply(group) {
                failed.push((index, error));
            }
        }
    };
    let threads = threads.min(groups.len());
    if threads <= 1 {
        return work();
    }
    let mut failed = std::thread::scope(|scope| {
        // The calling thread works too.
        let helpers: Vec<_> = (1..threads).map(|_| scope.spawn(work)).collect();
        let mut failed = work();
        for helper in helpers {
            match helper.join() {
                Ok(more) => failed.extend(more),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        failed
    });
    failed.sort_by_key(|(index, _)| *index);
    failed
}
