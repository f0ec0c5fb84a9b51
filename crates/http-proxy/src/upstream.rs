//! Backends as they run: endpoints, connections, bounds and retry budgets, kept by the backend's
//! identity whatever happens to the routes that lead there.
//!
//! ```text
//!  Upstreams ─► Upstream ─► LoadBalancer ─► Peer ─► Pool of idle connections
//!    by id        settings, bounds, budget     load, health
//! ```

pub mod budget;
pub mod connect;
pub(crate) mod exchange;
mod health;
pub mod pool;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed, Ordering::Release};
use std::time::{Duration, Instant};

use arc_swap::{ArcSwap, ArcSwapOption};
use parking_lot::RwLock;
use tokio::sync::Notify;

pub use budget::RetryBudget;
pub use connect::{Connection, UpstreamStream};

use crate::balance::{LoadBalancer, StickyKey};
use crate::clock;
use crate::reach;
use crate::table::{Backend, BackendId, TableChange, UpstreamProtocol};
use crate::tls::{self, Verify, upstream::Offer};

/// How often idle connections are looked through and checks are begun.
const TICK: Duration = Duration::from_millis(500);
/// How long a backend that left the table keeps its endpoints, in ticks: requests that were led there before
/// have to find them.
const LEFT_TICKS: u32 = 10;

/// One backend as it runs.
#[derive(Debug)]
pub struct Upstream {
    id: BackendId,
    /// Settings; without the endpoints, which are the balancer's.
    settings: ArcSwap<Backend>,
    /// Chooses endpoints.
    pub balancer: LoadBalancer,
    /// Bounds retries to a share of the requests.
    pub budget: RetryBudget,
    connections: AtomicU32,
    pending: AtomicU32,
    /// Whether the table has it; a route may name one that it has not.
    in_table: AtomicBool,
    /// For how many ticks it has not.
    left_ticks: AtomicU32,
    /// How often the way that endpoints are spoken to has changed: connections of before are of no use.
    era: AtomicU32,
    /// How TLS is spoken; or why it cannot be.
    tls: ArcSwapOption<Result<tls::UpstreamTls, String>>,
    /// Somebody may get a connection now.
    pub(crate) freed: Notify,
    /// Whether names may lead to the node itself.
    local_targets: bool,
    /// It was said that one does.
    told: AtomicBool,
}

impl Upstream {
    fn new(id: BackendId, secret: [u8; 32], local_targets: bool) -> Self {
        let key = StickyKey { secret, backend: id.0.clone() };
        let settings = Backend::new(id.as_str(), Vec::new());
        Self {
            balancer: LoadBalancer::new(settings.balance.clone(), &[], key),
            settings: ArcSwap::from_pointee(settings),
            id,
            budget: RetryBudget::default(),
            connections: AtomicU32::new(0),
            pending: AtomicU32::new(0),
            in_table: AtomicBool::new(false),
            left_ticks: AtomicU32::new(0),
            era: AtomicU32::new(0),
            tls: ArcSwapOption::empty(),
            freed: Notify::new(),
            local_targets,
            told: AtomicBool::new(false),
        }
    }

    /// Says once that an endpoint's name may not lead where it does.
    fn tell(&self, error: &std::io::Error) {
        if reach::is_refusal(error) && !self.told.swap(true, Relaxed) {
            tracing::warn!(backend = %self.id, %error, "its requests are answered with 502");
        }
    }

    /// Who it is.
    pub fn id(&self) -> &BackendId {
        &self.id
    }

    /// Its settings; the endpoints are not among them.
    pub fn settings(&self) -> arc_swap::Guard<Arc<Backend>> {
        self.settings.load()
    }

    /// Connections to all endpoints, idle ones too.
    pub fn connections(&self) -> u32 {
        self.connections.load(Relaxed)
    }

    /// Requests that wait for a connection.
    pub fn pending(&self) -> u32 {
        self.pending.load(Relaxed)
    }

    /// Takes over a backend's new form.
    pub fn update(&self, backend: &Backend) {
        let before = self.settings.load_full();
        self.settings.store(Arc::new(Backend { endpoints: Vec::new(), ..backend.clone() }));
        if before.protocol != backend.protocol || before.proxy_protocol != backend.proxy_protocol {
            self.tls.store(compile_tls(backend).map(Arc::new));
            // After the settings: whoever sees the new era makes connections by them. Those of before are
            // of no use, wherever they are.
            self.era.fetch_add(1, Release);
            for peer in self.balancer.get_backends() {
                peer.pool.clear();
                peer.h2.clear();
            }
        }
        self.balancer.set(backend.balance.clone(), backend.slow_start, &backend.endpoints);
        if backend.health.is_none() {
            self.balancer.get_backends().iter().for_each(|peer| peer.set_healthy(true));
        }
    }

    /// A tick: without the endpoints if the table has not had it for long, though something leads there.
    fn empty_if_left(&self) {
        if !self.in_table.load(Relaxed) && self.left_ticks.fetch_add(1, Relaxed) == LEFT_TICKS {
            self.update(&Backend::new(self.id.as_str(), Vec::new()));
        }
    }
}

/// Reads a backend's settings of TLS.
fn compile_tls(backend: &Backend) -> Option<Result<tls::UpstreamTls, String>> {
    let (settings, offer) = match &backend.protocol {
        UpstreamProtocol::Http1 | UpstreamProtocol::H2c => return None,
        UpstreamProtocol::Https(settings) => (settings, Offer::Http1),
        UpstreamProtocol::HttpsH2(settings) => (settings, Offer::Http2),
    };
    let verify = settings.authorities_pem.clone().map_or(Verify::Off, Verify::Authority);
    let identity = settings.identity_pem.as_deref();
    let identity = identity.map(|pem| tls::Certificate::from_pem(pem, pem)).transpose();
    let made = identity.map_err(|error| error.to_string()).and_then(|identity| {
        let made = tls::UpstreamTls::new(&verify, offer, identity.as_ref());
        made.map_err(|error| error.to_string())
    });
    if let Err(reason) = &made {
        tracing::warn!(backend = %backend.id, %reason, "its connections cannot be made");
    }
    Some(made)
}

/// All backends as they run.
#[derive(Debug, Default)]
pub struct Upstreams {
    by_id: RwLock<HashMap<BackendId, Arc<Upstream>>>,
    secret: [u8; 32],
    local_targets: bool,
}

impl Upstreams {
    /// None; `secret` is what sticky cookies are made with, the same on all replicas, and
    /// `local_targets` whether names may lead to the node itself.
    pub fn new(secret: [u8; 32], local_targets: bool) -> Self {
        Self { by_id: RwLock::default(), secret, local_targets }
    }

    /// A backend, made without endpoints if it is not there.
    pub fn get_or_new(&self, id: &BackendId) -> Arc<Upstream> {
        if let Some(there) = self.get(id) {
            return there;
        }
        let mut by_id = self.by_id.write();
        let new = || Arc::new(Upstream::new(id.clone(), self.secret, self.local_targets));
        by_id.entry(id.clone()).or_insert_with(new).clone()
    }

    /// A backend, if it is there.
    pub fn get(&self, id: &BackendId) -> Option<Arc<Upstream>> {
        self.by_id.read().get(id).cloned()
    }

    /// All backends, in no particular order.
    pub fn all(&self) -> Vec<Arc<Upstream>> {
        self.by_id.read().values().cloned().collect()
    }

    /// Takes over the backends of a change. One that is removed goes when no route leads there any more;
    /// requests that a route of before has led there still find its endpoints. What is to be answered with 503
    /// is not removed, but has no endpoints.
    pub fn apply(&self, change: &TableChange) {
        for (id, backend) in &change.backends {
            match backend {
                Some(backend) => {
                    let there = self.get_or_new(id);
                    there.in_table.store(true, Relaxed);
                    there.update(backend);
                }
                None => {
                    if let Some(there) = self.get(id) {
                        there.left_ticks.store(0, Relaxed);
                        there.in_table.store(false, Relaxed);
                    }
                }
            }
        }
    }

    /// Forgets backends that the table has not, when neither a route nor a connection leads there.
    pub fn forget_unused(&self) {
        // Nobody comes by one but through the map, which is held.
        self.by_id.write().retain(|_, upstream| {
            upstream.in_table.load(Relaxed) || Arc::strong_count(upstream) > 1
        });
    }

    /// Looks after connections and health, for as long as it is polled.
    pub async fn maintain(self: Arc<Self>) {
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tick.tick().await;
            let now = Instant::now();
            for upstream in self.all() {
                upstream.empty_if_left();
                for peer in upstream.balancer.get_backends() {
                    peer.pool.sweep(now);
                }
                health::begin_checks(&upstream, clock::nanos(now));
                connect::prewarm(&upstream);
            }
            self.forget_unused();
        }
    }
}
