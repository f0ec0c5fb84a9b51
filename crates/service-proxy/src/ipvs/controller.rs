//! What needs to be done: from the services of the node view to patches.
//!
//! The controller keeps what is wanted in two diff stores, one of services and one of endpoints. Each change
//! of a service goes into them at once; [`IpvsController::generate_patch_groups`] gives what differs since
//! the last time, as groups that do not depend on each other. How a patch is carried out is not its business:
//! that is the handlers' and the proxier's.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use telaio_model::{IpFamily, ObjectKey, ServiceEndpoints};
use telaio_reconcile::{DiffStore, apply_parallel};

use super::compile::{Claim, Context, compile};
use super::handlers::handler_of;
use super::marks::Marks;
use super::network::Step;
use super::patch::PatchGroup;
use super::types::{EndpointInfo, EndpointKey, ResourceInfo, ServerKey, ServiceInfo};

/// So many groups are worth a thread.
const GROUPS_PER_THREAD_MIN: usize = 512;

/// What is wanted of one family, and what was wanted the last time.
#[derive(Debug)]
pub struct IpvsController {
    context: Context,
    marks: Marks,
    /// Who wants each virtual server, the best claim first.
    claims: BTreeMap<ServerKey, Vec<(ObjectKey, Arc<Claim>)>>,
    /// What each service has claims on.
    claimed: BTreeMap<ObjectKey, Vec<ServerKey>>,
    service_store: DiffStore<ServerKey, ServiceInfo>,
    endpoint_store: DiffStore<EndpointKey, EndpointInfo>,
}

impl IpvsController {
    /// One that wants nothing yet.
    pub fn new(context: Context, masquerade_mark: u32) -> Self {
        Self {
            context,
            marks: Marks::new(masquerade_mark),
            claims: BTreeMap::new(),
            claimed: BTreeMap::new(),
            service_store: DiffStore::new(),
            endpoint_store: DiffStore::new(),
        }
    }

    /// The family.
    pub fn family(&self) -> IpFamily {
        self.context.family
    }

    /// What all services depend on.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// An earlier run led what comes to this address to a virtual server with that mark.
    pub fn remember_mark(&mut self, server: ServerKey, mark: u32) {
        self.marks.remember(server, mark);
    }

    /// Somebody else has a virtual server with this mark: none of ours gets it.
    pub fn avoid_mark(&mut self, mark: u32) {
        self.marks.avoid(mark);
    }

    /// What all services depend on is now this. Whether that is something else: then every service has
    /// to be set anew.
    pub fn set_context(&mut self, context: Context) -> bool {
        let is_other = self.context != context;
        self.context = context;
        is_other
    }

    /// A service is now so; `None`: it is gone.
    pub fn set_service(&mut self, key: &ObjectKey, entry: Option<&ServiceEndpoints>) {
        let claims: Vec<Arc<Claim>> = entry
            .map(|entry| compile(entry, &self.context, &mut self.marks))
            .unwrap_or_default()
            .into_iter()
            .map(Arc::new)
            .collect();
        let servers: Vec<ServerKey> = claims.iter().map(|claim| claim.service.server).collect();
        let before = self.claimed.remove(key).unwrap_or_default();
        let touched: BTreeSet<ServerKey> = before.iter().chain(&servers).copied().collect();
        let winners: Vec<Option<Arc<Claim>>> =
            touched.iter().map(|server| self.winner(server)).collect();
        for server in &before {
            self.withdraw(key, server);
        }
        for claim in claims {
            self.enter(key, claim);
        }
        if !servers.is_empty() {
            self.claimed.insert(key.clone(), servers);
        }
        for (server, before) in touched.iter().zip(winners) {
            let now = self.winner(server);
            self.store(server, before.as_deref(), now.as_deref());
        }
    }

    fn winner(&self, server: &ServerKey) -> Option<Arc<Claim>> {
        let (_, claim) = self.claims.get(server)?.first()?;
        Some(Arc::clone(claim))
    }

    fn withdraw(&mut self, key: &ObjectKey, server: &ServerKey) {
        let Some(claims) = self.claims.get_mut(server) else { return };
        claims.retain(|(of, _)| of != key);
        if claims.is_empty() {
            self.claims.remove(server);
        }
    }

    fn enter(&mut self, key: &ObjectKey, claim: Arc<Claim>) {
        let claims = self.claims.entry(claim.service.server).or_default();
        claims.push((key.clone(), claim));
        claims.sort_by(|(a, one), (b, other)| {
            (one.rank, a, &one.service.name).cmp(&(other.rank, b, &other.service.name))
        });
    }

    /// The virtual server was as `before` says and is as `now` says.
    fn store(&mut self, server: &ServerKey, before: Option<&Claim>, now: Option<&Claim>) {
        if before == now {
            return;
        }
        let endpoints = |claim: Option<&Claim>| claim.map(|it| Arc::clone(&it.endpoints));
        let (before_endpoints, endpoints) = (endpoints(before), endpoints(now).unwrap_or_default());
        let keys: BTreeSet<EndpointKey> = endpoints.iter().map(ResourceInfo::key).collect();
        for endpoint in before_endpoints.iter().flat_map(|them| them.iter()) {
            let key = endpoint.key();
            if !keys.contains(&key) {
                self.endpoint_store.delete(&key);
            }
        }
        for endpoint in endpoints.iter() {
            self.endpoint_store.set(endpoint.key(), endpoint.clone());
        }
        if let Some(claim) = now {
            self.service_store.set(*server, claim.service.clone());
            return;
        }
        self.service_store.delete(server);
        if let Some(Claim { service, .. }) = before
            && let ServerKey::Mark { mark, .. } = service.server
        {
            self.marks.give_back(&service.name, mark);
        }
    }

    /// What leads from what was wanted the last time to what is wanted now: state A to state B.
    pub fn generate_patch_groups(&mut self) -> Vec<PatchGroup> {
        let groups = telaio_reconcile::generate_patch_groups(
            &self.service_store,
            &self.endpoint_store,
            |key| &key.server,
        );
        self.service_store.reset();
        self.endpoint_store.reset();
        groups.into_iter().map(PatchGroup::from).collect()
    }

    /// Everything that is wanted, as services with their endpoints, in order.
    pub fn wanted(&self) -> impl Iterator<Item = (&ServiceInfo, &[EndpointInfo])> {
        self.claims.values().filter_map(|claims| {
            let (_, claim) = claims.first()?;
            Some((&claim.service, &*claim.endpoints))
        })
    }
}

/// The steps that groups come down to, each group by itself and many at the same time; in their order.
pub fn steps_of(groups: &[PatchGroup], threads: usize) -> Vec<Step> {
    let chunk = groups.len().div_ceil(threads.max(1)).max(GROUPS_PER_THREAD_MIN);
    let chunks: Vec<(&[PatchGroup], parking_lot::Mutex<Vec<Step>>)> =
        groups.chunks(chunk).map(|groups| (groups, parking_lot::Mutex::default())).collect();
    let failed: Vec<(usize, std::convert::Infallible)> =
        apply_parallel(&chunks, threads, |(groups, steps)| {
            let mut steps = steps.lock();
            for group in *groups {
                group.apply(handler_of(group.service.service_info()), &mut steps);
            }
            Ok(())
        });
    debug_assert!(failed.is_empty());
    chunks.into_iter().flat_map(|(_, steps)| steps.into_inner()).collect()
}

#[cfg(test)]
mod tests;
