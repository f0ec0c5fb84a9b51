//! What is in HNS, and whose it is.
//!
//! An object is read once; after that its identity is enough to know that it is still there. So looking
//! costs two calls, however many objects there are, and a restarted HNS shows by what is missing.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use telaio_hcn::{Endpoint, Guid, Hcn, HcnError, LoadBalancer, Query, Reason};

use super::super::compile::RemoteEndpoint;
use super::super::identity;
use super::super::store::FrontendKey;
use super::Core;

/// What is known to be in HNS.
#[derive(Debug, Default)]
pub(super) struct There {
    endpoints: BTreeMap<Guid, KnownEndpoint>,
    load_balancers: BTreeMap<Guid, KnownLoadBalancer>,
    /// Places that others' load balancers have.
    pub(super) foreign: BTreeMap<FrontendKey, Guid>,
    /// Of ours, but of no use: unreadable, not as we make them, or from another network.
    pub(super) stray_endpoints: BTreeSet<Guid>,
    /// Likewise.
    pub(super) stray_load_balancers: BTreeSet<Guid>,
    /// The endpoint that we made for the source address.
    pub(super) source_vip: Option<(Guid, Endpoint)>,
    /// Something is not as we thought: look before the next change.
    pub(super) is_stale: bool,
    /// It was looked at once.
    pub(super) is_known: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum KnownEndpoint {
    Ours(IpAddr),
    Other(Vec<IpAddr>),
    SourceVip,
    Stray,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum KnownLoadBalancer {
    Ours(FrontendKey),
    Other(Vec<FrontendKey>),
    Stray,
}

impl There {
    pub(super) fn made_endpoint(&mut self, id: Guid, address: IpAddr) {
        self.endpoints.insert(id, KnownEndpoint::Ours(address));
    }

    pub(super) fn made_load_balancer(&mut self, id: Guid, key: FrontendKey) {
        self.load_balancers.insert(id, KnownLoadBalancer::Ours(key));
    }

    pub(super) fn made_source_vip(&mut self, id: Guid, endpoint: Endpoint) {
        self.endpoints.insert(id, KnownEndpoint::SourceVip);
        self.source_vip = Some((id, endpoint));
    }

    pub(super) fn removed_endpoint(&mut self, id: Guid) {
        self.endpoints.remove(&id);
        self.stray_endpoints.remove(&id);
    }

    pub(super) fn removed_load_balancer(&mut self, id: Guid) {
        if let Some(KnownLoadBalancer::Other(keys)) = self.load_balancers.remove(&id) {
            for key in keys {
                self.foreign.remove(&key);
            }
        }
        self.stray_load_balancers.remove(&id);
    }
}

impl Core {
    /// Nothing is known of what is in HNS any more: the next look reads everything.
    pub fn forget_there(&mut self) {
        self.there = There::default();
        self.endpoints.forget_there();
        self.load_balancers.forget_there();
    }

    /// Whether HNS has to be looked at before anything is changed.
    pub fn is_stale(&self) -> bool {
        self.there.is_stale || !self.there.is_known
    }

    /// Looks at HNS: adopts what an earlier run made, finds pods' endpoints, notices what is gone. How
    /// many of ours were gone. Changes nothing in HNS.
    pub fn observe(&mut self) -> Result<usize, HcnError> {
        let gone = self.observe_endpoints()? + self.observe_load_balancers()?;
        self.there.is_stale = false;
        self.there.is_known = true;
        Ok(gone)
    }

    fn observe_endpoints(&mut self) -> Result<usize, HcnError> {
        let ids: BTreeSet<Guid> = self.hcn.endpoint_ids(&Query::All)?.into_iter().collect();
        let known = self.there.endpoints.keys().filter(|id| !ids.contains(id));
        let gone: Vec<Guid> = known.copied().collect();
        let mut ours_gone = 0;
        for id in gone {
            ours_gone += usize::from(self.endpoint_gone(id));
        }
        for id in ids {
            if self.there.endpoints.contains_key(&id) {
                continue;
            }
            let read = self.hcn.endpoint(id);
            match readable(id, read)? {
                Read::Object(endpoint) => self.endpoint_found(id, endpoint),
                Read::Nothing => {}
                Read::Stray => {
                    self.there.endpoints.insert(id, KnownEndpoint::Stray);
                    self.there.stray_endpoints.insert(id);
                }
                Read::Unreadable => {
                    self.there.endpoints.insert(id, KnownEndpoint::Other(Vec::new()));
                }
            }
        }
        Ok(ours_gone)
    }

    /// Whether it was ours.
    fn endpoint_gone(&mut self, id: Guid) -> bool {
        match self.there.endpoints.remove(&id) {
            Some(KnownEndpoint::Ours(address)) => {
                self.endpoints.lost(address);
                self.load_balancers.lost_endpoint(address, id);
                true
            }
            Some(KnownEndpoint::Other(addresses)) => {
                for address in addresses {
                    if self.endpoints.lost_other(address, id) {
                        self.load_balancers.lost_endpoint(address, id);
                    }
                }
                false
            }
            Some(KnownEndpoint::SourceVip) => {
                self.there.source_vip = None;
                true
            }
            Some(KnownEndpoint::Stray) => {
                self.there.stray_endpoints.remove(&id);
                false
            }
            None => false,
        }
    }

    fn endpoint_found(&mut self, id: Guid, endpoint: Endpoint) {
        let is_here = endpoint.network == self.network();
        if !identity::is_our_endpoint(&endpoint) {
            let addresses: Vec<IpAddr> =
                if is_here { endpoint.addresses().collect() } else { Vec::new() };
            for address in &addresses {
                if self.endpoints.found_other(*address, id) {
                    self.load_balancers.touch_users_of(*address);
                }
            }
            self.there.endpoints.insert(id, KnownEndpoint::Other(addresses));
            return;
        }
        if is_here && endpoint.name == identity::SOURCE_VIP_NAME && self.there.source_vip.is_none()
        {
            self.there.made_source_vip(id, endpoint);
            return;
        }
        let address = endpoint.addresses().next().filter(|_| is_here);
        let free = address.filter(|address| self.endpoints.our_id(*address).is_none());
        let known = if let (Some(address), Some(there)) = (free, RemoteEndpoint::of(&endpoint)) {
            self.endpoints.found(address, id, there);
            self.load_balancers.touch_users_of(address);
            KnownEndpoint::Ours(address)
        } else {
            self.there.stray_endpoints.insert(id);
            KnownEndpoint::Stray
        };
        self.there.endpoints.insert(id, known);
    }

    fn observe_load_balancers(&mut self) -> Result<usize, HcnError> {
        let ids: BTreeSet<Guid> = self.hcn.load_balancer_ids(&Query::All)?.into_iter().collect();
        let known = self.there.load_balancers.keys().filter(|id| !ids.contains(id));
        let gone: Vec<Guid> = known.copied().collect();
        let mut ours_gone = 0;
        for id in gone {
            if let Some(KnownLoadBalancer::Ours(key)) = self.there.load_balancers.get(&id) {
                self.load_balancers.lost(*key);
                ours_gone += 1;
            }
            self.there.removed_load_balancer(id);
        }
        for id in ids {
            if self.there.load_balancers.contains_key(&id) {
                continue;
            }
            let read = self.hcn.load_balancer(id);
            let known = match readable(id, read)? {
                Read::Object(load_balancer) => self.load_balancer_found(id, load_balancer),
                Read::Nothing => continue,
                Read::Stray => {
                    self.there.stray_load_balancers.insert(id);
                    KnownLoadBalancer::Stray
                }
                Read::Unreadable => KnownLoadBalancer::Other(Vec::new()),
            };
            self.there.load_balancers.insert(id, known);
        }
        Ok(ours_gone)
    }

    fn load_balancer_found(&mut self, id: Guid, there: LoadBalancer) -> KnownLoadBalancer {
        if !identity::is_marked(id) {
            let keys = FrontendKey::all_of(&there);
            self.there.foreign.extend(keys.iter().map(|key| (*key, id)));
            return KnownLoadBalancer::Other(keys);
        }
        match FrontendKey::of(&there) {
            // Under an identity that it would not get today there can be one from another network.
            Some(key) if id == identity::load_balancer_id(self.network(), &key) => {
                self.load_balancers.found(key, id, there);
                KnownLoadBalancer::Ours(key)
            }
            _ => {
                self.there.stray_load_balancers.insert(id);
                KnownLoadBalancer::Stray
            }
        }
    }
}

enum Read<T> {
    Object(T),
    /// It is gone, or will be read the next time.
    Nothing,
    /// Ours, and of no use.
    Stray,
    /// Somebody else's, and none of our business.
    Unreadable,
}

/// What became of reading an object. A stranger's that cannot be read must not keep us from ours; one
/// of ours that makes no sense is as good as none.
fn readable<T>(id: Guid, read: Result<T, HcnError>) -> Result<Read<T>, HcnError> {
    let error = match read {
        Ok(object) => return Ok(Read::Object(object)),
        Err(error) => error,
    };
    match (&error.reason, identity::is_marked(id)) {
        (Reason::NotFound, _) => Ok(Read::Nothing),
        (Reason::BadAnswer(_), true) => {
            tracing::warn!(%error, "an object of ours makes no sense; replacing it");
            Ok(Read::Stray)
        }
        (Reason::BadAnswer(_), false) => {
            tracing::warn!(%error, "cannot read an object of somebody else; leaving it alone");
            Ok(Read::Unreadable)
        }
        (Reason::Unavailable, _) | (_, true) => Err(error),
        (_, false) => {
            tracing::warn!(%error, "cannot read an object of somebody else; will look again");
            Ok(Read::Nothing)
        }
    }
}

/// Removes everything of ours from HNS; tells what that was. Goes on where something cannot be removed,
/// and then gives the first error.
pub fn cleanup(hcn: &dyn Hcn) -> Result<Vec<String>, HcnError> {
    let mut removed = Removed::default();
    remove_load_balancers(hcn, identity::is_marked, &mut removed)?;
    for id in hcn.endpoint_ids(&Query::All)? {
        let endpoint = hcn.endpoint(id);
        let is_ours = match &endpoint {
            Ok(endpoint) => identity::is_our_endpoint(endpoint),
            Err(_) => identity::is_marked(id),
        };
        if is_ours {
            let what = endpoint.map_or_else(|_| id.to_string(), |it| it.label());
            removed.note(format!("HNS endpoint {what}"), hcn.delete_endpoint(id));
        }
    }
    removed.outcome()
}

/// Removes every load balancer that is not ours, likewise. They carry nobody's name, so kube-proxy's cannot be
/// told from others'; kube-proxy itself removes them all when it starts.
pub fn cleanup_others(hcn: &dyn Hcn) -> Result<Vec<String>, HcnError> {
    let mut removed = Removed::default();
    remove_load_balancers(hcn, |id| !identity::is_marked(id), &mut removed)?;
    removed.outcome()
}

fn remove_load_balancers(
    hcn: &dyn Hcn,
    wanted: fn(Guid) -> bool,
    removed: &mut Removed,
) -> Result<(), HcnError> {
    for id in hcn.load_balancer_ids(&Query::All)?.into_iter().filter(|id| wanted(*id)) {
        let what = hcn.load_balancer(id).map_or_else(|_| id.to_string(), |it| it.label());
        removed.note(format!("HNS load balancer {what}"), hcn.delete_load_balancer(id));
    }
    Ok(())
}

/// What was removed, and the first thing that could not be.
#[derive(Default)]
struct Removed {
    what: Vec<String>,
    failed: Option<HcnError>,
}

impl Removed {
    fn note(&mut self, what: String, outcome: Result<(), HcnError>) {
        match outcome {
            Ok(()) => self.what.push(what),
            Err(error) if error.is_not_found() => {}
            Err(error) => _ = self.failed.get_or_insert(error),
        }
    }

    fn outcome(self) -> Result<Vec<String>, HcnError> {
        self.failed.map_or(Ok(self.what), Err)
    }
}
