//! One tick for all: figures are taken once, lists at most once, messages are written once.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use parking_lot::Mutex;
use serde::Serialize;
use tokio::sync::{Mutex as AsyncMutex, Semaphore, broadcast};

use crate::agent::{Agent, Figures, HttpFigures, Network, now_ms};
use crate::attention::attend;
use crate::events::EventLog;
use crate::history::Samples;
use crate::values::State;
use crate::values::action::AuditEntry;
use crate::values::overview::{Cache, History, Overview, PlaneHealth, Sample, Traffic};
use crate::values::stream::{Changes, HealthChange, OverridesChanged};

/// How many messages may wait for a slow reader; then it is told that it missed some.
const MESSAGES_MAX: usize = 64;
/// How long the agent may take for its figures.
const FIGURES_TIME_MAX: Duration = Duration::from_secs(3);
/// Latencies of the overview are over so many ticks.
const LATENCY_TICKS: usize = 10;

/// A message, ready to be sent to every stream.
#[derive(Debug, Clone)]
pub(crate) struct Frame {
    pub(crate) topic: &'static str,
    pub(crate) bytes: Bytes,
}

impl Frame {
    /// A server-sent event.
    pub(crate) fn new(topic: &'static str, value: &impl Serialize) -> Option<Self> {
        let data = serde_json::to_string(value).ok()?;
        Some(Self { topic, bytes: Bytes::from(format!("event: {topic}\ndata: {data}\n\n")) })
    }
}

#[derive(Default)]
struct Last {
    figures: Option<Figures>,
    at: Option<Instant>,
    /// Durations at the last ticks, oldest first: latencies are of the difference.
    durations: std::collections::VecDeque<(u64, Vec<u64>)>,
    rates: (f64, f64),
    overrides: u64,
}

/// What all requests and streams share.
pub(crate) struct Hub {
    pub(crate) agent: Arc<dyn Agent>,
    pub(crate) events: Arc<EventLog>,
    pub(crate) tick: Duration,
    pub(crate) streams: Arc<Semaphore>,
    samples: Mutex<Samples>,
    last: Mutex<Last>,
    network: AsyncMutex<Option<(Instant, Arc<Network>)>>,
    frames: broadcast::Sender<Frame>,
}

impl Hub {
    pub(crate) fn new(
        agent: Arc<dyn Agent>,
        events: Arc<EventLog>,
        tick: Duration,
        streams_max: usize,
    ) -> Self {
        Self {
            agent,
            events,
            tick,
            streams: Arc::new(Semaphore::new(streams_max)),
            samples: Mutex::new(Samples::new(now_ms(), tick.as_secs_f64())),
            last: Mutex::default(),
            network: AsyncMutex::new(None),
            frames: broadcast::Sender::new(MESSAGES_MAX),
        }
    }

    pub(crate) fn subscribe(&self) -> broadcast::Receiver<Frame> {
        self.frames.subscribe()
    }

    pub(crate) fn history(&self, since_ms: Option<i64>) -> History {
        self.samples.lock().history(since_ms)
    }

    /// What there is, not older than a tick; made once for all who ask meanwhile.
    pub(crate) async fn network(&self) -> Arc<Network> {
        let mut kept = self.network.lock().await;
        if let Some((at, network)) = &*kept
            && at.elapsed() < self.tick
        {
            return Arc::clone(network);
        }
        let network = Arc::new(self.agent.network().await);
        *kept = Some((Instant::now(), Arc::clone(&network)));
        network
    }

    /// Forgets the lists: something was done, and who asks next wants to see it.
    pub(crate) async fn forget(&self) {
        *self.network.lock().await = None;
    }

    /// Lists that nobody has asked for of late are not held.
    fn drop_old(&self) {
        // While they are made somebody looks.
        let Ok(mut kept) = self.network.try_lock() else { return };
        if kept.as_ref().is_some_and(|(at, _)| at.elapsed() > self.tick.saturating_mul(30)) {
            *kept = None;
        }
    }

    fn send(&self, topic: &'static str, value: &impl Serialize) {
        if self.frames.receiver_count() > 0
            && let Some(frame) = Frame::new(topic, value)
        {
            // Nobody may listen any more.
            let _ = self.frames.send(frame);
        }
    }

    pub(crate) fn tell_audit(&self, entry: &AuditEntry) {
        self.send("audit", entry);
    }

    /// Takes the figures and tells everybody.
    pub(crate) async fn on_tick(&self) {
        let figures = tokio::time::timeout(FIGURES_TIME_MAX, self.agent.figures()).await;
        if let Ok(figures) = figures {
            let (sample, health) = self.take(figures);
            self.send("sample", &sample);
            if let Some(health) = health {
                self.send("health", &health);
            }
        }
        let fresh = self.events.take_fresh();
        if !fresh.events.is_empty() {
            let (events, more, revision) = (fresh.events, fresh.more, fresh.revision);
            self.send("change", &Changes { events, more, revision });
        }
        if !fresh.programmed.is_empty() {
            self.send("programmed", &fresh.programmed);
        }
        let mut overrides = self.agent.overrides();
        let now_s = now_ms() / 1000;
        overrides.retain(|it| it.is_active(now_s));
        let mut hash = std::hash::DefaultHasher::new();
        for decided in &overrides {
            use std::hash::Hash;
            (&decided.meta.key, &decided.until_s, format!("{:?}", decided.action)).hash(&mut hash);
        }
        let now = std::hash::Hasher::finish(&hash);
        if std::mem::replace(&mut self.last.lock().overrides, now) != now {
            self.send("override", &OverridesChanged { count: overrides.len() });
        }
        self.drop_old();
    }

    /// Makes a sample of two looks at the figures.
    fn take(&self, figures: Figures) -> (Sample, Option<HealthChange>) {
        let mut last = self.last.lock();
        let now = Instant::now();
        let span_s = last.at.map_or(self.tick, |at| now.duration_since(at)).as_secs_f64();
        let per_s = |count: u64| if span_s > 0.0 { float(count) / span_s } else { 0.0 };
        let before = last.figures.take();
        let of = |of: fn(&Figures) -> u64| match &before {
            Some(before) => of(&figures).saturating_sub(of(before)),
            None => 0,
        };
        let mut sample = Sample {
            at_ms: now_ms(),
            sync_rate: per_s(of(|it| it.syncs)),
            sync_failures: of(|it| it.sync_failures),
            change_rate: per_s(of(|it| it.changes)),
            drift_repairs: of(|it| it.drift_repairs),
            source_age_s: figures.source_age_s,
            healthy: figures.healthy,
            ..Sample::default()
        };
        if let Some(http) = &figures.http {
            let fresh = HttpFigures { durations: Vec::new(), ..HttpFigures::default() };
            // Another worker counts from nothing.
            let past = before.as_ref().and_then(|it| it.http.as_ref());
            let past = match past {
                Some(past) if past.counter == http.counter => past,
                Some(_) => &fresh,
                None => http,
            };
            let since = |now: u64, then: u64| now.saturating_sub(then);
            sample.rate = per_s(since(http.requests(), past.requests()));
            sample.error_rate = per_s(since(http.errors(), past.errors()));
            (sample.connections, sample.active) = (http.connections, http.active);
            let hits = since(http.cache_hits, past.cache_hits);
            let misses = since(http.cache_misses, past.cache_misses);
            sample.cache_hit_share = share(hits, misses);
            let durations = difference(&http.durations, &past.durations);
            sample.p50_ms = quantile_ms(&durations, &http.bounds_us, 0.5);
            sample.p90_ms = quantile_ms(&durations, &http.bounds_us, 0.9);
            sample.p99_ms = quantile_ms(&durations, &http.bounds_us, 0.99);
            last.durations.push_back((http.counter, http.durations.clone()));
            while last.durations.len() > LATENCY_TICKS + 1 {
                last.durations.pop_front();
            }
        }
        last.rates = (sample.rate, sample.error_rate);
        let health_was = before.map(|it| (it.healthy, it.planes));
        let health_is = (figures.healthy, figures.planes.clone());
        let health = (health_was.as_ref() != Some(&health_is)).then(|| {
            let (healthy, planes): (bool, Vec<PlaneHealth>) = health_is;
            HealthChange { healthy, planes }
        });
        last.figures = Some(figures);
        last.at = Some(now);
        drop(last);
        self.samples.lock().push(sample);
        (sample, health)
    }

    /// The overview, with what only the hub knows.
    pub(crate) async fn overview(&self) -> Overview {
        let network = self.network().await;
        let mut overview = self.agent.overview();
        count(&mut overview, &network, self.agent.overrides().len());
        overview.traffic = self.traffic();
        attend(&mut overview, &network, &*self.agent);
        overview
    }

    fn traffic(&self) -> Option<Traffic> {
        let last = self.last.lock();
        let http = last.figures.as_ref()?.http.as_ref()?;
        let then = last.durations.front().filter(|(counter, _)| *counter == http.counter);
        let empty = Vec::new();
        let durations = difference(&http.durations, then.map_or(&empty, |(_, then)| then));
        let quantile = |share: f64| quantile_ms(&durations, &http.bounds_us, share);
        Some(Traffic {
            requests: http.requests(),
            errors: http.errors(),
            rate: last.rates.0,
            error_rate: last.rates.1,
            connections: http.connections,
            active: http.active,
            p50_ms: quantile(0.5),
            p90_ms: quantile(0.9),
            p99_ms: quantile(0.99),
            classes: http.classes,
            cache: Cache {
                hits: http.cache_hits,
                misses: http.cache_misses,
                hit_share: share(http.cache_hits, http.cache_misses),
                entries: Some(http.cache_entries),
                bytes: Some(http.cache_bytes),
            },
            worker_restarts: http.worker_restarts,
        })
    }

    /// The newest sample.
    pub(crate) fn last_sample(&self) -> Option<Sample> {
        self.samples.lock().last().copied()
    }
}

fn count(overview: &mut Overview, network: &Network, overrides: usize) {
    let counts = &mut overview.counts;
    counts.services = network.services.len();
    counts.services_without_endpoints =
        network.services.iter().filter(|it| it.state == State::Error).count();
    counts.endpoints = network.services.iter().map(|it| it.endpoints.total).sum();
    counts.endpoints_ready = network.services.iter().map(|it| it.endpoints.ready).sum();
    counts.routes = network.routes.len();
    counts.certificates = network.certificates.len();
    counts.certificates_expiring =
        network.certificates.iter().filter(|it| it.state >= State::Warning).count();
    counts.instances = network.pods.instances;
    counts.nodes = network.nodes.len();
    counts.overrides = overrides;
    counts.warnings = network.routes.iter().map(|it| it.warnings.len()).sum();
}

#[expect(clippy::cast_precision_loss, reason = "figures for eyes")]
fn float(count: u64) -> f64 {
    count as f64
}

fn share(hits: u64, misses: u64) -> Option<f64> {
    (hits + misses > 0).then(|| float(hits) / float(hits + misses))
}

fn difference(now: &[u64], then: &[u64]) -> Vec<u64> {
    let then = then.iter().copied().chain(std::iter::repeat(0));
    now.iter().zip(then).map(|(now, then)| now.saturating_sub(then)).collect()
}

/// The duration that this share did not exceed; within a bucket it is taken to grow evenly.
pub(crate) fn quantile_ms(counts: &[u64], bounds_us: &[u64], share: f64) -> Option<f64> {
    let all: u64 = counts.iter().sum();
    if all == 0 {
        return None;
    }
    let wanted = float(all) * share;
    let mut below = 0.0;
    for (place, count) in counts.iter().enumerate() {
        let count = float(*count);
        if count > 0.0 && below + count >= wanted {
            let from =
                place.checked_sub(1).and_then(|it| bounds_us.get(it)).map_or(0.0, |it| float(*it));
            let to = bounds_us.get(place).map_or(from, |it| float(*it));
            return Some((from + (to - from) * (wanted - below) / count) / 1000.0);
        }
        below += count;
    }
    bounds_us.last().map(|it| float(*it) / 1000.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_found_within_their_bucket() {
        let bounds = [1000, 2000];
        assert_eq!(quantile_ms(&[0, 0, 0], &bounds, 0.5), None);
        assert_eq!(quantile_ms(&[10, 0, 0], &bounds, 0.5), Some(0.5));
        assert_eq!(quantile_ms(&[0, 10, 0], &bounds, 0.9), Some(1.9));
        assert_eq!(quantile_ms(&[0, 0, 10], &bounds, 0.9), Some(2.0), "nothing is known beyond");
    }
}
