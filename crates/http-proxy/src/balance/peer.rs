//! What is known of one endpoint: load, latency, health, connections.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use sha2::{Digest, Sha256};

use super::{StickyKey, takes_new};
use crate::clock;
use crate::h2::client::H2Pool;
use crate::table::{Endpoint, EndpointAddress, EndpointState};
use crate::upstream::pool::Pool;
use crate::watch::snapshot::BOUNDS_US;

/// The latency that an endpoint is thought to have before the first answer.
pub(super) const LATENCY_NS_FIRST: u64 = 1_000_000;

/// How long the moving average remembers.
const DECAY_NS: f64 = 10e9;

/// How often an ejection's time grows at most.
const EJECTIONS_MAX: u32 = 10;

/// One endpoint, as long as its address is in the set.
#[derive(Debug)]
pub struct Peer {
    address: EndpointAddress,
    hash: u64,
    cookie: String,
    weight: AtomicU32,
    draining: AtomicBool,
    removed: AtomicBool,
    since_ns: u64,
    in_flight: AtomicU32,
    requests: AtomicU64,
    latency_ns: AtomicU64,
    latency_at_ns: AtomicU64,
    failures: AtomicU32,
    failures_total: AtomicU64,
    /// Answers of 5xx that are no failures.
    server_errors: AtomicU64,
    /// Times to answer: how many up to each bound.
    latencies: [AtomicU64; BOUNDS_US.len() + 1],
    ejections: AtomicU32,
    ejected_until_ns: AtomicU64,
    unhealthy: AtomicBool,
    /// Checks in a row with the same outcome, for active health checks.
    pub(crate) checks_in_row: AtomicU32,
    /// When the next active check is due.
    pub(crate) check_due_ns: AtomicU64,
    /// Idle connections.
    pub(crate) pool: Pool,
    /// Connections that requests share.
    pub(crate) h2: H2Pool,
}

impl Peer {
    pub(super) fn new(endpoint: &Endpoint, latency_ns: u64, key: &StickyKey) -> Self {
        let name = match &endpoint.address {
            EndpointAddress::Socket(address) => address.to_string(),
            EndpointAddress::Name(name, port) => format!("{name}:{port}"),
        };
        let peer = Self {
            address: endpoint.address.clone(),
            hash: clock::stable_hash(name.as_bytes()),
            cookie: cookie_value(key, &name),
            weight: AtomicU32::new(0),
            draining: AtomicBool::new(false),
            removed: AtomicBool::new(false),
            since_ns: clock::nanos(Instant::now()),
            in_flight: AtomicU32::new(0),
            requests: AtomicU64::new(0),
            latency_ns: AtomicU64::new(latency_ns),
            latency_at_ns: AtomicU64::new(clock::nanos(Instant::now())),
            failures: AtomicU32::new(0),
            failures_total: AtomicU64::new(0),
            server_errors: AtomicU64::new(0),
            latencies: Default::default(),
            ejections: AtomicU32::new(0),
            ejected_until_ns: AtomicU64::new(0),
            unhealthy: AtomicBool::new(false),
            checks_in_row: AtomicU32::new(0),
            check_due_ns: AtomicU64::new(0),
            pool: Pool::default(),
            h2: H2Pool::default(),
        };
        peer.update(endpoint);
        peer
    }

    /// Takes over what may change of an endpoint.
    pub(super) fn update(&self, endpoint: &Endpoint) {
        self.weight.store(endpoint.weight, Relaxed);
        self.draining.store(endpoint.state == EndpointState::Draining, Relaxed);
        self.removed.store(false, Relaxed);
    }

    /// Whether an endpoint of its address is to be treated otherwise than it is.
    pub(super) fn differs(&self, endpoint: &Endpoint) -> bool {
        self.weight() != endpoint.weight
            || self.draining.load(Relaxed) != (endpoint.state == EndpointState::Draining)
    }

    /// The endpoint left the set: idle connections go, and those in use are not kept.
    pub(super) fn remove(&self) {
        self.removed.store(true, Relaxed);
        self.pool.clear();
        self.h2.clear();
    }

    /// Whether connections may be kept for it.
    pub fn is_removed(&self) -> bool {
        self.removed.load(Relaxed)
    }

    /// Where it is.
    pub fn address(&self) -> &EndpointAddress {
        &self.address
    }

    /// A number that is the same for the same address, everywhere.
    pub(super) fn hash(&self) -> u64 {
        self.hash
    }

    /// The value of the sticky cookie that leads here.
    pub fn cookie(&self) -> &str {
        &self.cookie
    }

    /// Its weight.
    pub fn weight(&self) -> u32 {
        self.weight.load(Relaxed)
    }

    /// Whether it takes new requests, as far as its configuration says.
    pub fn takes_new(&self) -> bool {
        let draining = self.draining.load(Relaxed);
        let state = if draining { EndpointState::Draining } else { EndpointState::Ready };
        takes_new(state, self.weight())
    }

    /// Whether it may be given a request now.
    pub fn is_available(&self, now_ns: u64) -> bool {
        !self.unhealthy.load(Relaxed) && !self.is_ejected(now_ns)
    }

    /// Requests under way.
    pub fn in_flight(&self) -> u32 {
        self.in_flight.load(Relaxed)
    }

    /// Requests so far.
    pub fn requests(&self) -> u64 {
        self.requests.load(Relaxed)
    }

    /// Requests so far that failed.
    pub fn failures(&self) -> u64 {
        self.failures_total.load(Relaxed)
    }

    /// Answers of 5xx so far that are no failures: the endpoint works, and what runs there does not.
    pub fn server_errors(&self) -> u64 {
        self.server_errors.load(Relaxed)
    }

    /// It answered with 5xx, and that is no failure. Nothing is ejected for it.
    pub(crate) fn count_server_error(&self) {
        self.server_errors.fetch_add(1, Relaxed);
    }

    /// How many answers took up to each of [`BOUNDS_US`], not those of the bound before, and how many longer.
    pub fn latencies(&self) -> [u64; BOUNDS_US.len() + 1] {
        std::array::from_fn(|place| self.latencies[place].load(Relaxed))
    }

    /// The moving average of its latency.
    pub fn latency(&self) -> Duration {
        Duration::from_nanos(self.latency_ns())
    }

    /// Whether active checks say that it is well.
    pub fn is_healthy(&self) -> bool {
        !self.unhealthy.load(Relaxed)
    }

    pub(crate) fn set_healthy(&self, healthy: bool) {
        self.unhealthy.store(!healthy, Relaxed);
    }

    /// Whether failures took it out for now.
    pub fn is_ejected(&self, now_ns: u64) -> bool {
        let until = self.ejected_until_ns.load(Relaxed);
        until != 0 && now_ns < until
    }

    /// One more failure in a row; how many there are now.
    pub(super) fn failed(&self) -> u32 {
        self.failures_total.fetch_add(1, Relaxed);
        self.failures.fetch_add(1, Relaxed).saturating_add(1)
    }

    pub(super) fn succeeded(&self) {
        // Writing what is there already would cost the cache line.
        if self.failures.load(Relaxed) != 0 {
            self.failures.store(0, Relaxed);
            self.ejections.store(0, Relaxed);
        }
    }

    pub(super) fn eject(&self, time: Duration, now_ns: u64) {
        let times = self.ejections.fetch_add(1, Relaxed).saturating_add(1).min(EJECTIONS_MAX);
        let until = now_ns.saturating_add(clock::nanos_of(time).saturating_mul(u64::from(times)));
        self.ejected_until_ns.store(until, Relaxed);
        self.failures.store(0, Relaxed);
        self.pool.clear();
    }

    /// How much of its share it gets: from a tenth when it is new to all of it.
    #[allow(clippy::cast_precision_loss)]
    pub(super) fn share(&self, slow_start: Option<Duration>, now_ns: u64) -> f64 {
        let Some(slow_start) = slow_start else { return 1.0 };
        let age = now_ns.saturating_sub(self.since_ns) as f64;
        (age / (clock::nanos_of(slow_start) as f64)).clamp(0.1, 1.0)
    }

    pub(super) fn latency_ns(&self) -> u64 {
        self.latency_ns.load(Relaxed)
    }

    /// What a request here is likely to cost. Halved for every ten seconds without news: or who was
    /// slow once would never get the chance to show better.
    #[allow(clippy::cast_precision_loss)]
    pub(super) fn cost(&self, now_ns: u64) -> f64 {
        let quiet = now_ns.saturating_sub(self.latency_at_ns.load(Relaxed)) >> 33;
        let latency = self.latency_ns().checked_shr(quiet.min(63) as u32).unwrap_or(0).max(1_000);
        latency as f64 * f64::from(self.in_flight() + 1) / f64::from(self.weight().max(1))
    }

    /// Takes a latency into the average. A longer one counts at once, a shorter one by and by.
    #[allow(clippy::cast_precision_loss, clippy::cast_sign_loss)]
    fn observe(&self, latency_ns: u64, now_ns: u64) {
        let old = self.latency_ns();
        let before = self.latency_at_ns.swap(now_ns, Relaxed);
        let new = if latency_ns >= old {
            latency_ns
        } else {
            let elapsed = now_ns.saturating_sub(before) as f64;
            // 1/(1+x) for exp(-x): near enough, and cheap.
            let keep = 1.0 / (1.0 + elapsed / DECAY_NS);
            (old as f64 * keep + latency_ns as f64 * (1.0 - keep)) as u64
        };
        self.latency_ns.store(new, Relaxed);
    }
}

/// A request under way at an endpoint; the endpoint's load counts it as long as this lives.
#[derive(Debug)]
pub struct Flight {
    peer: Arc<Peer>,
    begun_ns: u64,
}

impl Flight {
    /// Begins one.
    pub fn begin(peer: Arc<Peer>, now_ns: u64) -> Self {
        peer.in_flight.fetch_add(1, Relaxed);
        peer.requests.fetch_add(1, Relaxed);
        Self { peer, begun_ns: now_ns }
    }

    /// Where.
    pub fn peer(&self) -> &Arc<Peer> {
        &self.peer
    }

    /// The response's head is here.
    pub fn answered(&self, now_ns: u64) {
        let latency_ns = now_ns.saturating_sub(self.begun_ns);
        let bucket = BOUNDS_US.iter().position(|bound| latency_ns <= bound * 1000);
        self.peer.latencies[bucket.unwrap_or(BOUNDS_US.len())].fetch_add(1, Relaxed);
        self.peer.observe(latency_ns, now_ns);
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        self.peer.in_flight.fetch_sub(1, Relaxed);
    }
}

/// HMAC-SHA-256 over backend and address, in hex, cut to 128 bits: nobody without the secret can
/// make one, and it tells nothing of the address.
fn cookie_value(key: &StickyKey, endpoint: &str) -> String {
    let pad = |byte: u8| {
        let mut block = [byte; 64];
        block.iter_mut().zip(key.secret).for_each(|(own, secret)| *own ^= secret);
        block
    };
    let inner = Sha256::new().chain_update(pad(0x36)).chain_update(key.backend.as_bytes());
    let inner = inner.chain_update([0]).chain_update(endpoint.as_bytes()).finalize();
    let outer = Sha256::new().chain_update(pad(0x5c)).chain_update(inner).finalize();
    let digits = outer.iter().take(16).flat_map(|byte| [byte >> 4, byte & 15]);
    digits.filter_map(|digit| char::from_digit(u32::from(digit), 16)).collect()
}
