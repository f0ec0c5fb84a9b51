//! Figures of requests for Prometheus: few enough to keep for ever.
//!
//! Series go by Ingress, and only so many have their own; all others share one. What a worker
//! counts begins anew with each worker, and a route's figures end with it: so [`HttpMetrics`] adds up what
//! came since it last looked, and its counters never go backwards.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

use super::snapshot::{BOUNDS_US, CertificateInfo, Figures, Stats, Totals};

/// Ingresses with series of their own.
const SERIES_MAX: usize = 500;
/// How long they are kept without a route: longer than anybody needs to change an Ingress.
const SERIES_KEPT: Duration = Duration::from_hours(1);
/// As what the others share theirs.
const OTHERS: &str = "other";
/// For requests that no route took.
const NONE: &str = "none";
/// Certificates that are told of: those that end first.
const CERTIFICATES_MAX: usize = 500;
const CLASSES: [&str; 5] = ["1xx", "2xx", "3xx", "4xx", "5xx"];

/// Adds up what workers count, one after the other.
#[derive(Debug, Default)]
pub struct HttpMetrics {
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    /// What was seen last, of the worker that runs.
    last: HashMap<String, Figures>,
    last_totals: Totals,
    /// By Ingress.
    series: BTreeMap<String, Series>,
    unrouted: Figures,
    sums: Sums,
    endpoints: [u64; 4],
    certificates: Vec<CertificateInfo>,
}

/// What an Ingress has come to.
#[derive(Debug)]
struct Series {
    figures: Figures,
    /// When it last had a route.
    seen: Instant,
}

/// Sums of what only grows, beside requests.
#[derive(Debug, Default)]
struct Sums {
    accepted: u64,
    refused: u64,
    lines_dropped: u64,
    spans_dropped: u64,
    mirrors_dropped: u64,
    stored: u64,
    collapsed: u64,
}

/// What endpoints can be.
const ENDPOINT_STATES: [&str; 4] = ["ready", "draining", "ejected", "unhealthy"];

impl HttpMetrics {
    /// Takes what a worker has counted until now.
    pub fn take(&self, stats: &Stats, certificates: Vec<CertificateInfo>) {
        self.take_at(stats, certificates, Instant::now());
    }

    fn take_at(&self, stats: &Stats, mut certificates: Vec<CertificateInfo>, now: Instant) {
        let mut kept = self.kept.lock();
        let kept = &mut *kept;
        if kept.last_totals.since_unix_ns != stats.totals.since_unix_ns {
            kept.last.clear();
            kept.last_totals = Totals::default();
        }
        // Ingresses come and go, and who comes shall have the place of who has gone.
        kept.series.retain(|name, series| {
            series.figures.in_flight = 0;
            name == OTHERS || now.saturating_duration_since(series.seen) < SERIES_KEPT
        });
        let mut last = HashMap::with_capacity(stats.routes.len());
        for route in &stats.routes {
            let before = kept.last.remove(&route.route).unwrap_or_default();
            let came = news(&before, &route.figures);
            series(&mut kept.series, &route.ingress, now).add(&came);
            last.insert(route.route.clone(), route.figures.clone());
        }
        kept.last = last;
        let totals = &stats.totals;
        kept.unrouted.in_flight = 0;
        kept.unrouted.add(&news(&kept.last_totals.unrouted, &totals.unrouted));
        kept.sums.grow(&kept.last_totals, totals);
        kept.last_totals = totals.clone();
        kept.endpoints = [0; 4];
        for endpoint in stats.backends.iter().flat_map(|backend| &backend.endpoints) {
            let state = if !endpoint.healthy {
                3
            } else if endpoint.ejected {
                2
            } else {
                usize::from(endpoint.draining)
            };
            kept.endpoints[state] += 1;
        }
        certificates.retain(|certificate| certificate.secret.is_some());
        certificates.sort_by_key(|certificate| certificate.not_after_s);
        certificates.truncate(CERTIFICATES_MAX);
        kept.certificates = certificates;
    }
}

/// What came since; all of it where the figures began anew.
fn news(before: &Figures, now: &Figures) -> Figures {
    if now.is_before(before) { now.clone() } else { now.since(before) }
}

/// The series of an Ingress, or the one that is shared.
fn series<'a>(
    all: &'a mut BTreeMap<String, Series>,
    ingress: &str,
    now: Instant,
) -> &'a mut Figures {
    let own = all.contains_key(ingress) || all.len() < SERIES_MAX;
    let new = || Series { figures: Figures::default(), seen: now };
    let series = all.entry(if own { ingress } else { OTHERS }.to_owned()).or_insert_with(new);
    series.seen = now;
    &mut series.figures
}

impl Sums {
    fn grow(&mut self, before: &Totals, now: &Totals) {
        for (sum, before, now) in [
            (&mut self.accepted, before.connections_accepted, now.connections_accepted),
            (&mut self.refused, before.connections_refused, now.connections_refused),
            (&mut self.lines_dropped, before.log_lines_dropped, now.log_lines_dropped),
            (&mut self.spans_dropped, before.spans_dropped, now.spans_dropped),
            (&mut self.mirrors_dropped, before.mirrors_dropped, now.mirrors_dropped),
            (&mut self.stored, before.cache.stored, now.cache.stored),
            (&mut self.collapsed, before.cache.collapsed, now.cache.collapsed),
        ] {
            *sum += now.saturating_sub(before);
        }
    }
}

/// Puts the figures into a registry, whose prefix is `telaio`.
#[derive(Debug)]
pub struct HttpCollector(pub Arc<HttpMetrics>);

/// Namespace and name of an Ingress, as labels.
fn labels(ingress: &str) -> [(&str, &str); 2] {
    let (namespace, name) = ingress.split_once('/').unwrap_or((ingress, ingress));
    [("namespace", namespace), ("ingress", name)]
}

impl Collector for HttpCollector {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> Result<(), Error> {
        let kept = self.0.kept.lock();
        let mut page = Page(encoder);
        let mut shown: Vec<(&str, &Figures)> =
            kept.series.iter().map(|(name, series)| (name.as_str(), &series.figures)).collect();
        shown.push((NONE, &kept.unrouted));
        page.requests(&shown)?;
        let totals = &kept.last_totals;
        let in_flight = shown.iter().map(|(_, figures)| figures.in_flight).sum();
        page.gauge("http_requests_in_flight", "Requests under way", in_flight)?;
        page.gauge("http_connections", "Connections of clients that are open", totals.connections)?;
        page.gauge("http_cache_entries", "URLs in the cache", totals.cache.entries)?;
        page.gauge("http_cache_bytes", "Bytes in the cache, about", totals.cache.bytes)?;
        page.endpoints(&kept.endpoints)?;
        page.certificates(&kept.certificates)?;
        let sums = &kept.sums;
        let each = [
            ("http_connections_accepted", "Connections that were accepted", sums.accepted),
            (
                "http_connections_refused",
                "Connections that ended before a request could be read",
                sums.refused,
            ),
            ("http_cache_stored", "Responses that the cache has kept", sums.stored),
            ("http_cache_collapsed", "Requests that waited for another's answer", sums.collapsed),
            (
                "http_access_log_dropped",
                "Lines of the access log that were not written",
                sums.lines_dropped,
            ),
            ("http_spans_dropped", "Spans that were not sent", sums.spans_dropped),
            ("http_mirrors_dropped", "Copies of requests that were not sent", sums.mirrors_dropped),
        ];
        for (name, help, value) in each {
            page.counter(name, help, value)?;
        }
        Ok(())
    }
}

struct Page<'a>(DescriptorEncoder<'a>);

impl Page<'_> {
    fn counter(&mut self, name: &str, help: &str, value: u64) -> Result<(), Error> {
        let metric = ConstCounter::new(value);
        metric.encode(self.0.encode_descriptor(name, help, None, MetricType::Counter)?)
    }

    fn gauge(&mut self, name: &str, help: &str, value: u64) -> Result<(), Error> {
        let metric = ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX));
        metric.encode(self.0.encode_descriptor(name, help, None, MetricType::Gauge)?)
    }

    fn requests(&mut self, shown: &[(&str, &Figures)]) -> Result<(), Error> {
        let help = "Requests that are over, by Ingress and kind of status";
        let mut family =
            self.0.encode_descriptor("http_requests", help, None, MetricType::Counter)?;
        for (ingress, figures) in shown {
            for (class, count) in CLASSES.iter().zip(figures.statuses).filter(|(_, it)| *it > 0) {
                let [namespace, name] = labels(ingress);
                let labels = [namespace, name, ("status", *class)];
                ConstCounter::new(count).encode(family.encode_family(&labels)?)?;
            }
        }
        let help = "Requests of Ingresses with a cache, by what it was for them";
        let mut family =
            self.0.encode_descriptor("http_cache_requests", help, None, MetricType::Counter)?;
        for (ingress, figures) in shown {
            let Figures { cache_hits, cache_stale, cache_misses, .. } = figures;
            if cache_hits + cache_stale + cache_misses == 0 {
                continue;
            }
            let each = [("hit", cache_hits), ("stale", cache_stale), ("miss", cache_misses)];
            for (result, count) in each {
                let [namespace, name] = labels(ingress);
                let labels = [namespace, name, ("result", result)];
                ConstCounter::new(*count).encode(family.encode_family(&labels)?)?;
            }
        }
        self.sum("http_response_bytes", "Bytes of responses' bodies", shown, |it| it.body_bytes)?;
        self.sum("http_retries", "Further tries of requests", shown, |it| it.retries)?;
        self.sum("http_request_errors", "Requests that failed", shown, |it| it.errors)?;
        let help = "Seconds from a request's head to its end";
        let name = "http_request_duration_seconds";
        let mut family = self.0.encode_descriptor(name, help, None, MetricType::Histogram)?;
        for (ingress, figures) in shown {
            let bounds = BOUNDS_US.iter().map(|bound| seconds(*bound)).chain([f64::INFINITY]);
            let buckets: Vec<(f64, u64)> = bounds.zip(figures.durations).collect();
            let count = buckets.iter().map(|(_, count)| count).sum();
            let labels = labels(ingress);
            let mut encoder = family.encode_family(&labels)?;
            let sum = seconds(figures.duration_us);
            encoder.encode_histogram::<[(&str, &str); 0]>(sum, count, &buckets, None)?;
        }
        Ok(())
    }

    fn sum(
        &mut self,
        name: &str,
        help: &str,
        shown: &[(&str, &Figures)],
        value: impl Fn(&Figures) -> u64,
    ) -> Result<(), Error> {
        let mut family = self.0.encode_descriptor(name, help, None, MetricType::Counter)?;
        for (ingress, figures) in shown {
            ConstCounter::new(value(figures)).encode(family.encode_family(&labels(ingress))?)?;
        }
        Ok(())
    }

    fn endpoints(&mut self, endpoints: &[u64; 4]) -> Result<(), Error> {
        let help = "Endpoints of all backends, by what they are";
        let mut family =
            self.0.encode_descriptor("http_endpoints", help, None, MetricType::Gauge)?;
        for (state, count) in ENDPOINT_STATES.iter().zip(endpoints) {
            let metric = ConstGauge::new(i64::try_from(*count).unwrap_or(i64::MAX));
            metric.encode(family.encode_family(&[("state", *state)])?)?;
        }
        Ok(())
    }

    fn certificates(&mut self, certificates: &[CertificateInfo]) -> Result<(), Error> {
        let name = "http_certificate_expiry_timestamp_seconds";
        let help = "When certificates end, in seconds since 1970";
        let mut family = self.0.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for certificate in certificates {
            let secret = certificate.secret.as_deref().unwrap_or_default();
            let (namespace, name) = secret.split_once('/').unwrap_or(("", secret));
            let labels = [("namespace", namespace), ("secret", name)];
            family.encode_family(&labels)?.encode_gauge(&certificate.not_after_s)?;
        }
        Ok(())
    }
}

/// Microseconds in seconds.
fn seconds(us: u64) -> f64 {
    std::time::Duration::from_micros(us).as_secs_f64()
}

#[cfg(test)]
mod tests;
