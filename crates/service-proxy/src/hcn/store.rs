//! What is wanted of HNS and what is there: the two diff stores.
//!
//! [`EndpointStore`] has remote endpoints only, by address: an endpoint on this node is made by whoever
//! starts its pod, and we only look it up. [`LoadBalancerStore`] has all load balancers, by the place at
//! which each answers.
//!
//! What always holds:
//! - one address has one endpoint, one place has one load balancer, however many services want them;
//! - an endpoint that somebody else has at an address is used and never made a second time;
//! - a load balancer's document names endpoints that are there, and no others. Those that are missing
//!   join it when they come.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use telaio_hcn::{Guid, LoadBalancer, LoadBalancerFlags, PROTOCOL_TCP, PROTOCOL_UDP};
use telaio_model::{IpFamily, ObjectKey};
use telaio_reconcile::DiffStore;

use super::compile::{Claim, LoadBalancerSpec, RemoteEndpoint};

/// The place at which a load balancer answers: HNS takes one for each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FrontendKey {
    /// The family.
    pub family: IpFamily,
    /// The address; none for the node's own, all of them.
    pub vip: Option<IpAddr>,
    /// 6 is TCP, 17 UDP.
    pub protocol: u32,
    /// The port that clients use.
    pub port: u16,
}

impl FrontendKey {
    /// Every place at which a load balancer answers.
    pub fn all_of(load_balancer: &LoadBalancer) -> Vec<Self> {
        let family = if load_balancer.flags.contains(LoadBalancerFlags::IPV6) {
            IpFamily::V6
        } else {
            IpFamily::V4
        };
        let vips: Vec<Option<IpAddr>> = if load_balancer.frontend_vips.is_empty() {
            vec![None]
        } else {
            load_balancer.frontend_vips.iter().copied().map(Some).collect()
        };
        let mut keys = Vec::new();
        for vip in vips {
            let family = vip.map_or(family, IpFamily::of);
            let ports = load_balancer.port_mappings.iter();
            keys.extend(ports.map(|port| Self {
                family,
                vip,
                protocol: port.protocol,
                port: port.external_port,
            }));
        }
        keys
    }

    /// The one place of a load balancer that is as we make them.
    pub fn of(load_balancer: &LoadBalancer) -> Option<Self> {
        match Self::all_of(load_balancer)[..] {
            [key] => Some(key),
            _ => None,
        }
    }
}

impl fmt::Display for FrontendKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.vip, self.family) {
            (Some(IpAddr::V4(ip)), _) => write!(f, "{ip}")?,
            (Some(IpAddr::V6(ip)), _) => write!(f, "[{ip}]")?,
            (None, IpFamily::V4) => f.write_str("0.0.0.0")?,
            (None, IpFamily::V6) => f.write_str("[::]")?,
        }
        match self.protocol {
            PROTOCOL_TCP => write!(f, ":{}/tcp", self.port),
            PROTOCOL_UDP => write!(f, ":{}/udp", self.port),
            other => write!(f, ":{}/{other}", self.port),
        }
    }
}

/// Remote endpoints: who wants them, and which are there.
#[derive(Debug, Default)]
pub struct EndpointStore {
    /// Who wants an endpoint at an address; the first decides what it is like.
    wants: BTreeMap<IpAddr, Vec<(ObjectKey, RemoteEndpoint)>>,
    by_service: BTreeMap<ObjectKey, Vec<IpAddr>>,
    /// What is wanted of ours, and what is there of it.
    pub(super) diff: DiffStore<IpAddr, RemoteEndpoint>,
    /// Ours that are there.
    ids: BTreeMap<IpAddr, Guid>,
    /// Endpoints of others, this node's pods among them.
    others: BTreeMap<IpAddr, Guid>,
}

impl EndpointStore {
    /// A service wants these remote endpoints, and no others.
    pub fn want(&mut self, service: &ObjectKey, wanted: BTreeMap<IpAddr, RemoteEndpoint>) {
        let before = self.by_service.remove(service).unwrap_or_default();
        for address in before.iter().filter(|address| !wanted.contains_key(address)) {
            if let Some(wants) = self.wants.get_mut(address) {
                wants.retain(|(by, _)| by != service);
                if wants.is_empty() {
                    self.wants.remove(address);
                }
            }
            self.weigh(*address);
        }
        if !wanted.is_empty() {
            self.by_service.insert(service.clone(), wanted.keys().copied().collect());
        }
        for (address, endpoint) in wanted {
            let wants = self.wants.entry(address).or_default();
            match wants.binary_search_by(|(by, _)| by.cmp(service)) {
                Ok(at) => wants[at].1 = endpoint,
                Err(at) => wants.insert(at, (service.clone(), endpoint)),
            }
            self.weigh(address);
        }
    }

    /// Whether we have to have an endpoint at an address.
    fn weigh(&mut self, address: IpAddr) {
        match self.wanted(address) {
            Some(endpoint) if !self.others.contains_key(&address) => {
                self.diff.set(address, endpoint);
            }
            _ => _ = self.diff.delete(&address),
        }
    }

    /// What somebody wants at an address.
    pub fn wanted(&self, address: IpAddr) -> Option<RemoteEndpoint> {
        self.wants.get(&address)?.first().map(|(_, endpoint)| *endpoint)
    }

    /// A service that wants an endpoint at an address.
    pub fn wanted_by(&self, address: IpAddr) -> Option<&ObjectKey> {
        self.wants.get(&address)?.first().map(|(service, _)| service)
    }

    /// The endpoint at an address, whoever made it.
    pub fn id_of(&self, address: IpAddr) -> Option<Guid> {
        self.others.get(&address).or_else(|| self.ids.get(&address)).copied()
    }

    /// Ours at an address.
    pub fn our_id(&self, address: IpAddr) -> Option<Guid> {
        self.ids.get(&address).copied()
    }

    /// Ours is at this address, and like this.
    pub(super) fn found(&mut self, address: IpAddr, id: Guid, mut there: RemoteEndpoint) {
        self.ids.insert(address, id);
        if self.diff.peek(&address).is_some_and(|wanted| wanted.mac.is_none()) {
            // Whatever HNS has chosen.
            there.mac = None;
        }
        self.diff.rebase_key(address, Some(there));
    }

    /// What is wanted at this address is there now.
    pub(super) fn made(&mut self, address: IpAddr, id: Guid) {
        self.ids.insert(address, id);
        self.diff.commit_key(&address);
    }

    /// Ours at this address is gone.
    pub(super) fn lost(&mut self, address: IpAddr) -> Option<Guid> {
        self.diff.rebase_key(address, None);
        self.ids.remove(&address)
    }

    /// Somebody else has an endpoint at this address; the first one counts.
    pub(super) fn found_other(&mut self, address: IpAddr, id: Guid) -> bool {
        let is_new = !self.others.contains_key(&address);
        if is_new {
            self.others.insert(address, id);
            self.weigh(address);
        }
        is_new
    }

    /// Somebody else's endpoint is gone.
    pub(super) fn lost_other(&mut self, address: IpAddr, id: Guid) -> bool {
        let had = self.others.get(&address) == Some(&id);
        if had {
            self.others.remove(&address);
            self.weigh(address);
        }
        had
    }

    /// Nothing is known of what is there.
    pub(super) fn forget_there(&mut self) {
        self.ids.clear();
        let others: Vec<IpAddr> = std::mem::take(&mut self.others).into_keys().collect();
        for address in others {
            self.weigh(address);
        }
        self.diff.rebase(BTreeMap::new());
    }

    /// How many of ours are wanted.
    pub fn len(&self) -> usize {
        self.diff.len()
    }

    /// Whether none of ours is wanted.
    pub fn is_empty(&self) -> bool {
        self.diff.is_empty()
    }
}

/// All load balancers: who wants them, and which are there.
#[derive(Debug, Default)]
pub struct LoadBalancerStore {
    /// Who wants a place, the best claim first.
    claims: BTreeMap<FrontendKey, Vec<Claim>>,
    by_service: BTreeMap<ObjectKey, Vec<FrontendKey>>,
    /// The places whose load balancers send to an address.
    users: BTreeMap<IpAddr, BTreeSet<FrontendKey>>,
    /// Places that may need another document.
    touched: BTreeSet<FrontendKey>,
    /// Addresses that load balancers should send to and nobody has, with the places.
    lacking: BTreeMap<FrontendKey, Vec<IpAddr>>,
    /// Documents that are wanted, and what is there.
    pub(super) diff: DiffStore<FrontendKey, LoadBalancer>,
    /// Ours that are there.
    ids: BTreeMap<FrontendKey, Guid>,
}

impl LoadBalancerStore {
    /// A service claims these places, and no others.
    pub fn claim(&mut self, service: &ObjectKey, claims: Vec<Claim>) {
        let before = self.by_service.remove(service).unwrap_or_default();
        let keys: Vec<FrontendKey> = claims.iter().map(|claim| claim.key).collect();
        let places: BTreeSet<FrontendKey> = before.iter().chain(&keys).copied().collect();
        let winners: Vec<_> = places.iter().map(|key| self.winner(key).cloned()).collect();
        for key in &before {
            if let Some(claims) = self.claims.get_mut(key) {
                claims.retain(|claim| claim.service != *service);
                if claims.is_empty() {
                    self.claims.remove(key);
                }
            }
        }
        for claim in claims {
            let claims = self.claims.entry(claim.key).or_default();
            let at = claims.partition_point(|other| other.order() <= claim.order());
            claims.insert(at, claim);
        }
        if !keys.is_empty() {
            self.by_service.insert(service.clone(), keys);
        }
        for (key, before) in places.into_iter().zip(winners) {
            self.replaced(key, before.and_then(|claim| claim.spec).as_deref());
        }
    }

    /// The claim that has a place.
    pub fn winner(&self, key: &FrontendKey) -> Option<&Claim> {
        self.claims.get(key)?.first()
    }

    /// The load balancer that is wanted at a place.
    fn spec_at(&self, key: &FrontendKey) -> Option<Arc<LoadBalancerSpec>> {
        self.winner(key)?.spec.clone()
    }

    /// The winner at a place was `before` and may be another now.
    fn replaced(&mut self, key: FrontendKey, before: Option<&LoadBalancerSpec>) {
        let now = self.spec_at(&key);
        if before == now.as_deref() {
            return;
        }
        self.touched.insert(key);
        let addresses = |spec: Option<&LoadBalancerSpec>| -> Vec<IpAddr> {
            spec.map(|spec| spec.endpoints.clone()).unwrap_or_default()
        };
        let (before, now) = (addresses(before), addresses(now.as_deref()));
        for address in before.iter().filter(|it| now.binary_search(it).is_err()) {
            if let Some(users) = self.users.get_mut(address) {
                users.remove(&key);
                if users.is_empty() {
                    self.users.remove(address);
                }
            }
        }
        for address in now.iter().filter(|it| before.binary_search(it).is_err()) {
            self.users.entry(*address).or_default().insert(key);
        }
    }

    /// The endpoint at an address is another one, or is there at last, or no more.
    pub(super) fn touch_users_of(&mut self, address: IpAddr) {
        self.touched.extend(self.users.get(&address).into_iter().flatten());
    }

    /// An endpoint went, and HNS took it out of every load balancer that had it.
    pub(super) fn lost_endpoint(&mut self, address: IpAddr, id: Guid) {
        for key in self.users.get(&address).into_iter().flatten() {
            let there = self.diff.applied(key).filter(|there| there.endpoints.contains(&id));
            let Some(mut there) = there.cloned() else { continue };
            there.endpoints.remove(&id);
            self.diff.rebase_key(*key, Some(there));
        }
        self.touch_users_of(address);
    }

    /// Makes the documents of all places that were touched, with the endpoints that are there.
    pub(super) fn resolve(&mut self, endpoints: &EndpointStore) {
        for key in std::mem::take(&mut self.touched) {
            self.lacking.remove(&key);
            let Some(spec) = self.spec_at(&key) else {
                self.diff.delete(&key);
                continue;
            };
            let mut ids = BTreeSet::new();
            let mut lacking = Vec::new();
            for address in &spec.endpoints {
                match endpoints.id_of(*address) {
                    Some(id) => _ = ids.insert(id),
                    None => lacking.push(*address),
                }
            }
            if !lacking.is_empty() {
                self.lacking.insert(key, lacking);
            }
            if ids.is_empty() {
                self.diff.delete(&key);
            } else {
                self.diff.set(key, spec.document(key.vip, ids));
            }
        }
    }

    /// Addresses that load balancers should send to and nobody has.
    pub fn lacking(&self) -> impl Iterator<Item = (&FrontendKey, &[IpAddr])> {
        self.lacking.iter().map(|(key, addresses)| (key, addresses.as_slice()))
    }

    /// Ours at a place.
    pub fn our_id(&self, key: &FrontendKey) -> Option<Guid> {
        self.ids.get(key).copied()
    }

    /// The places where ours are, whose document names this endpoint.
    pub(super) fn users_there(&self, endpoint: Guid) -> Vec<(FrontendKey, Guid)> {
        let uses = |key: &FrontendKey| {
            self.diff.applied(key).is_some_and(|there| there.endpoints.contains(&endpoint))
        };
        self.ids.iter().filter(|(key, _)| uses(key)).map(|(key, id)| (*key, *id)).collect()
    }

    /// Ours is at this place, and like this.
    pub(super) fn found(&mut self, key: FrontendKey, id: Guid, there: LoadBalancer) {
        self.ids.insert(key, id);
        self.diff.rebase_key(key, Some(LoadBalancer { id: None, ..there }));
    }

    /// What is wanted at this place is there now.
    pub(super) fn made(&mut self, key: FrontendKey, id: Guid) {
        self.ids.insert(key, id);
        self.diff.commit_key(&key);
    }

    /// Ours at this place is gone.
    pub(super) fn lost(&mut self, key: FrontendKey) {
        self.diff.rebase_key(key, None);
        self.ids.remove(&key);
    }

    /// Nothing is known of what is there.
    pub(super) fn forget_there(&mut self) {
        self.ids.clear();
        self.diff.rebase(BTreeMap::new());
        // Who has which address may be another now.
        self.touched.extend(self.claims.keys());
    }

    /// How many are wanted.
    pub fn len(&self) -> usize {
        self.diff.len()
    }

    /// Whether none is wanted.
    pub fn is_empty(&self) -> bool {
        self.diff.is_empty()
    }

    /// The documents that are wanted, by place.
    pub fn iter(&self) -> impl Iterator<Item = (&FrontendKey, &LoadBalancer)> {
        self.diff.iter()
    }
}
