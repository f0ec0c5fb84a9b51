//! Figures of requests, by route and kind of status: few enough to keep for ever.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use parking_lot::RwLock;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;

use crate::proxy::Outcome;

/// Routes with figures of their own; those beyond share one.
const ROUTES_MAX: usize = 2000;
/// What they share it as.
const OTHERS: &str = "other";
/// For requests that no route took.
const NONE: &str = "none";
/// Upper bounds of durations, in microseconds.
const BOUNDS_US: [u64; 12] = [
    500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 1_000_000, 5_000_000,
    30_000_000,
];
const CLASSES: [&str; 5] = ["1xx", "2xx", "3xx", "4xx", "5xx"];

/// One route's figures.
#[derive(Debug, Default)]
struct Series {
    classes: [AtomicU64; 5],
    buckets: [AtomicU64; BOUNDS_US.len() + 1],
    duration_us: AtomicU64,
    body_bytes: AtomicU64,
    retries: AtomicU64,
}

/// Figures of all requests.
#[derive(Debug, Default)]
pub struct RequestMetrics {
    routes: RwLock<HashMap<Arc<str>, Arc<Series>>>,
}

impl RequestMetrics {
    /// Counts a request.
    pub fn count(&self, outcome: &Outcome<'_>) {
        let series = self.series(outcome.route.map_or(NONE, |route| &route.route.id));
        let class = usize::from(outcome.status.as_u16() / 100).clamp(1, 5) - 1;
        series.classes[class].fetch_add(1, Relaxed);
        let took = u64::try_from(outcome.duration.as_micros()).unwrap_or(u64::MAX);
        let bucket = BOUNDS_US.iter().position(|bound| took <= *bound).unwrap_or(BOUNDS_US.len());
        series.buckets[bucket].fetch_add(1, Relaxed);
        series.duration_us.fetch_add(took, Relaxed);
        series.body_bytes.fetch_add(outcome.body_bytes, Relaxed);
        series.retries.fetch_add(u64::from(outcome.tries.saturating_sub(1)), Relaxed);
    }

    fn series(&self, route: &str) -> Arc<Series> {
        if let Some(series) = self.routes.read().get(route) {
            return Arc::clone(series);
        }
        let mut routes = self.routes.write();
        let name = if routes.len() < ROUTES_MAX { route } else { OTHERS };
        Arc::clone(routes.entry(name.into()).or_default())
    }

    /// How many requests ended with each kind of status.
    pub fn totals(&self) -> [u64; 5] {
        let mut totals = [0; 5];
        for series in self.routes.read().values() {
            for (total, class) in totals.iter_mut().zip(&series.classes) {
                *total += class.load(Relaxed);
            }
        }
        totals
    }
}

/// Puts the figures into a registry.
#[derive(Debug)]
pub struct RequestCollector(pub Arc<RequestMetrics>);

type Shown = Vec<(Arc<str>, Arc<Series>)>;

impl Collector for RequestCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let routes = self.0.routes.read();
        let mut shown: Shown =
            routes.iter().map(|(name, series)| (Arc::clone(name), Arc::clone(series))).collect();
        drop(routes);
        shown.sort_by(|one, other| one.0.cmp(&other.0));
        let requests = "Requests that are over, by route and kind of status";
        let mut family = encoder.encode_descriptor(
            "telaio_http_requests",
            requests,
            None,
            MetricType::Counter,
        )?;
        for (route, series) in &shown {
            for (class, count) in CLASSES.iter().zip(&series.classes) {
                let count = count.load(Relaxed);
                if count > 0 {
                    let labels = [("route", &**route), ("status", *class)];
                    ConstCounter::new(count).encode(family.encode_family(&labels)?)?;
                }
            }
        }
        encode_sum(
            &mut encoder,
            &shown,
            "telaio_http_response_bytes",
            "Bytes of responses' bodies",
            |it| &it.body_bytes,
        )?;
        encode_sum(
            &mut encoder,
            &shown,
            "telaio_http_retries",
            "Further tries of requests",
            |it| &it.retries,
        )?;
        let duration = "Seconds from a request's head to its end";
        let mut family = encoder.encode_descriptor(
            "telaio_http_request_duration_seconds",
            duration,
            None,
            MetricType::Histogram,
        )?;
        for (route, series) in &shown {
            let labels = [("route", &**route)];
            let bounds = BOUNDS_US.iter().map(|bound| seconds(*bound)).chain([f64::INFINITY]);
            let counts = series.buckets.iter().map(|count| count.load(Relaxed));
            let buckets: Vec<(f64, u64)> = bounds.zip(counts).collect();
            let count = buckets.iter().map(|(_, count)| count).sum();
            let sum = seconds(series.duration_us.load(Relaxed));
            let mut encoder = family.encode_family(&labels)?;
            encoder.encode_histogram::<[(&str, &str); 0]>(sum, count, &buckets, None)?;
        }
        Ok(())
    }
}

/// Microseconds in seconds.
fn seconds(us: u64) -> f64 {
    std::time::Duration::from_micros(us).as_secs_f64()
}

fn encode_sum(
    encoder: &mut DescriptorEncoder<'_>,
    shown: &Shown,
    name: &str,
    help: &str,
    value: impl Fn(&Series) -> &AtomicU64,
) -> Result<(), std::fmt::Error> {
    let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
    for (route, series) in shown {
        let labels = [("route", &**route)];
        ConstCounter::new(value(series).load(Relaxed)).encode(family.encode_family(&labels)?)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
