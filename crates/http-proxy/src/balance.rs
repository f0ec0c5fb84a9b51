//! The load balancer: which endpoint of a backend takes a request.
//!
//! The set of endpoints is a snapshot that is replaced when it changes; what is known of an endpoint
//! ([`Peer`]: load, latency, health, connections) stays with it as long as its address stays.
//!
//! What always holds:
//! - A draining endpoint gets nothing new; an ejected or unhealthy one neither, unless all are: then
//!   the choice is among all, because a request that may fail is better than one that must.
//! - A look-up takes no lock, except the smooth round robin of unequal weights.

mod choose;
pub mod peer;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use arc_swap::ArcSwap;
use parking_lot::Mutex;

pub use peer::Peer;

use crate::table::{Balance, Endpoint, EndpointAddress, EndpointState, Outlier};

/// So many endpoints are taken over one by one; more, all at once.
const ONE_BY_ONE_MAX: usize = 16;

/// What the choice of an endpoint may depend on.
#[derive(Debug, Clone, Copy, Default)]
pub struct Pick<'a> {
    /// The hash of what [`Balance::Hash`] goes by.
    pub key: u64,
    /// The sticky cookie's value, if the client sent one.
    pub sticky: Option<&'a str>,
    /// Endpoints that this request has tried.
    pub tried: &'a [Arc<Peer>],
}

/// The endpoints as of now.
#[derive(Debug)]
struct Peers {
    balance: Balance,
    slow_start: Option<Duration>,
    all: Vec<Arc<Peer>>,
    /// Those that take new requests.
    ready: Vec<Arc<Peer>>,
    /// Whether all ready ones weigh the same.
    even: bool,
    turn: AtomicUsize,
    /// The smooth round robin's account of each ready endpoint.
    accounts: Mutex<Vec<i64>>,
}

impl Peers {
    fn new(balance: Balance, slow_start: Option<Duration>, all: Vec<Arc<Peer>>) -> Self {
        let ready: Vec<_> = all.iter().filter(|peer| peer.takes_new()).cloned().collect();
        let even = ready.windows(2).all(|pair| pair[0].weight() == pair[1].weight());
        let accounts = Mutex::new(vec![0; ready.len()]);
        Self { balance, slow_start, all, ready, even, turn: AtomicUsize::new(0), accounts }
    }
}

/// Chooses among the endpoints of one backend.
///
/// ```
/// use telaio_http_proxy::LoadBalancer;
/// use telaio_http_proxy::balance::StickyKey;
/// use telaio_http_proxy::table::{Balance, Endpoint};
///
/// let endpoint = |port| Endpoint::at(([127, 0, 0, 1], port).into());
/// let balancer = LoadBalancer::new(Balance::RoundRobin, &[endpoint(1)], StickyKey::default());
/// balancer.add_backend(&endpoint(2));
/// let first = balancer.select_backend(&Default::default()).unwrap();
/// let second = balancer.select_backend(&Default::default()).unwrap();
/// assert_ne!(first.address(), second.address());
/// balancer.remove_backend(first.address());
/// assert_eq!(balancer.get_backends().len(), 1);
/// ```
#[derive(Debug)]
pub struct LoadBalancer {
    peers: ArcSwap<Peers>,
    /// Held while the set is replaced, so that two changes do not lose one.
    change: Mutex<()>,
    /// What the sticky cookie's values are made with.
    key: StickyKey,
}

/// What makes sticky cookies ours: the proxy's secret and the backend's name.
#[derive(Debug, Clone, Default)]
pub struct StickyKey {
    /// The secret.
    pub secret: [u8; 32],
    /// The backend.
    pub backend: Arc<str>,
}

impl LoadBalancer {
    /// A balancer over these endpoints, with what sticky cookies are made with.
    pub fn new(balance: Balance, endpoints: &[Endpoint], key: StickyKey) -> Self {
        let empty = Arc::new(Peers::new(balance.clone(), None, Vec::new()));
        let balancer = Self { peers: ArcSwap::new(empty), change: Mutex::new(()), key };
        balancer.set(balance, None, endpoints);
        balancer
    }

    /// Chooses an endpoint; `None` if there is none that takes new requests.
    pub fn select_backend(&self, pick: &Pick<'_>) -> Option<Arc<Peer>> {
        choose::choose(&self.peers.load(), pick)
    }

    /// Whether there is an endpoint beside those that were tried.
    pub fn has_other(&self, tried: &[Arc<Peer>], last: Option<&Arc<Peer>>) -> bool {
        let peers = self.peers.load();
        let mut ready = peers.ready.iter();
        ready.any(|peer| !tried.iter().chain(last).any(|own| Arc::ptr_eq(own, peer)))
    }

    /// Whether a sticky cookie names an endpoint that takes new requests, be it out for the moment.
    pub fn is_place(&self, cookie: &str) -> bool {
        choose::named(&self.peers.load(), cookie).is_some_and(|peer| peer.takes_new())
    }

    /// Whether a sticky cookie names one of the endpoints, whatever its state.
    pub fn knows(&self, cookie: &str) -> bool {
        choose::named(&self.peers.load(), cookie).is_some()
    }

    /// Adds an endpoint, or changes the one of its address.
    pub fn add_backend(&self, endpoint: &Endpoint) {
        let _held = self.change.lock();
        let old = self.peers.load_full();
        let mut all = old.all.clone();
        if let Some(peer) = all.iter().find(|peer| *peer.address() == endpoint.address) {
            peer.update(endpoint);
        } else {
            all.push(Arc::new(self.new_peer(endpoint, &old.all)));
        }
        self.peers.store(Arc::new(Peers::new(old.balance.clone(), old.slow_start, all)));
    }

    /// Removes an endpoint. What runs there may finish.
    pub fn remove_backend(&self, address: &EndpointAddress) {
        let _held = self.change.lock();
        let old = self.peers.load_full();
        let (gone, all): (Vec<_>, Vec<_>) =
            old.all.iter().cloned().partition(|peer| peer.address() == address);
        for peer in gone {
            peer.remove();
        }
        self.peers.store(Arc::new(Peers::new(old.balance.clone(), old.slow_start, all)));
    }

    /// All endpoints, draining ones too.
    pub fn get_backends(&self) -> Vec<Arc<Peer>> {
        self.peers.load().all.clone()
    }

    /// Takes over policy and endpoints. Endpoints that stay keep what is known of them. What a cluster
    /// changes at a time is an endpoint or two: those come and go one by one, those that come first.
    pub fn set(&self, balance: Balance, slow_start: Option<Duration>, endpoints: &[Endpoint]) {
        let now = self.peers.load_full();
        if now.balance == balance && now.slow_start == slow_start && !now.all.is_empty() {
            let known: HashMap<_, _> = now.all.iter().map(|peer| (peer.address(), peer)).collect();
            let differs = |endpoint: &&Endpoint| {
                known.get(&endpoint.address).is_none_or(|peer| peer.differs(endpoint))
            };
            let new: Vec<_> = endpoints.iter().filter(differs).take(ONE_BY_ONE_MAX + 1).collect();
            let wanted: HashSet<_> = endpoints.iter().map(|endpoint| &endpoint.address).collect();
            let gone = now.all.iter().filter(|peer| !wanted.contains(peer.address()));
            let gone: Vec<_> = gone.take(ONE_BY_ONE_MAX + 1).collect();
            if new.len() + gone.len() <= ONE_BY_ONE_MAX {
                for endpoint in new {
                    self.add_backend(endpoint);
                }
                for peer in gone {
                    self.remove_backend(peer.address());
                }
                return;
            }
        }
        self.replace(balance, slow_start, endpoints);
    }

    /// Replaces policy and endpoints at once.
    fn replace(&self, balance: Balance, slow_start: Option<Duration>, endpoints: &[Endpoint]) {
        let _held = self.change.lock();
        let old = self.peers.load_full();
        let known: HashMap<_, _> = old.all.iter().map(|peer| (peer.address(), peer)).collect();
        let mut kept = HashSet::new();
        let mut all: Vec<Arc<Peer>> = Vec::with_capacity(endpoints.len());
        for endpoint in endpoints {
            if !kept.insert(&endpoint.address) {
                continue;
            }
            match known.get(&endpoint.address) {
                Some(peer) => {
                    peer.update(endpoint);
                    all.push(Arc::clone(peer));
                }
                None => all.push(Arc::new(self.new_peer(endpoint, &old.all))),
            }
        }
        for peer in &old.all {
            if !kept.contains(peer.address()) {
                peer.remove();
            }
        }
        self.peers.store(Arc::new(Peers::new(balance, slow_start, all)));
    }

    fn new_peer(&self, endpoint: &Endpoint, others: &[Arc<Peer>]) -> Peer {
        // A newcomer counts as slow as the slowest, or everybody would rush to it.
        let latency = others.iter().map(|peer| peer.latency_ns()).max();
        Peer::new(endpoint, latency.unwrap_or(peer::LATENCY_NS_FIRST), &self.key)
    }

    /// Notes that an endpoint served a request.
    pub fn succeeded(&self, peer: &Peer) {
        peer.succeeded();
    }

    /// Notes how a request went; enough failures in a row eject the endpoint for a while.
    pub fn report(&self, peer: &Peer, failed: bool, outlier: &Outlier, now_ns: u64) {
        if !failed {
            return peer.succeeded();
        }
        if peer.failed() < outlier.failures || outlier.failures == 0 {
            return;
        }
        let peers = self.peers.load();
        let ejected = peers.ready.iter().filter(|other| other.is_ejected(now_ns)).count();
        let may = peers.ready.len() * usize::from(outlier.ejected_percent_max) / 100;
        if ejected < may.max(1) && ejected + 1 < peers.ready.len() {
            peer.eject(outlier.ejection, now_ns);
        }
    }
}

/// Whether an endpoint's state lets it take new requests.
fn takes_new(state: EndpointState, weight: u32) -> bool {
    state == EndpointState::Ready && weight > 0
}
