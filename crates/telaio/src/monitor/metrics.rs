//! The same figures for Prometheus, read at the moment of the scrape.

use std::fmt::{self, Debug};
use std::time::{Duration, SystemTime};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::{encode_eof, encode_registry};
use prometheus_client::encoding::{
    DescriptorEncoder, EncodeGaugeValue, EncodeLabelSet, EncodeMetric, LabelSetEncoder, NoLabelSet,
};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use std::sync::Arc;
#[cfg(unix)]
use telaio_http_proxy::watch::metrics::HttpCollector;
use telaio_reconcile::sync_loop::Histogram;
use telaio_reconcile::{SyncHandle, SyncStats};

use super::Monitor;
use super::kube_proxy::{self, KubeProxyMetrics};

impl Monitor {
    /// All figures in the text format of OpenMetrics.
    pub(crate) fn metrics_text(self: &Arc<Self>) -> Result<String, fmt::Error> {
        let mut registry = Registry::with_prefix("telaio");
        registry.register_collector(Box::new(Figures(Arc::clone(self))));
        #[cfg(unix)]
        if let Some(ingress) = self.ingress() {
            let http = HttpCollector(Arc::clone(ingress.metrics()));
            registry.register_collector(Box::new(http));
        }
        let mut text = String::new();
        encode_registry(&mut text, &registry)?;
        // A brain programs nothing.
        if self.facts.backend.is_some() {
            let mut registry = Registry::with_prefix(kube_proxy::PREFIX);
            registry.register_collector(Box::new(KubeProxyMetrics(Arc::clone(self))));
            encode_registry(&mut text, &registry)?;
        }
        encode_eof(&mut text)?;
        Ok(text)
    }
}

#[derive(Debug)]
struct Figures(Arc<Monitor>);

impl Collector for Figures {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let monitor = &self.0;
        let mut page = Page(encoder);
        page.build_info()?;
        page.source(monitor)?;
        page.store(monitor)?;
        if let Some(stats) = monitor.sync_loop().map(SyncHandle::stats) {
            page.syncs(&stats)?;
        }
        #[cfg(unix)]
        if let Some(ingress) = monitor.ingress() {
            page.gauge("ingress_ready", "Whether requests are served", flag(ingress.is_serving()))?;
            page.gauge("ingress_routes", "Routes of the ingress", count(ingress.routes()))?;
            let help = "Workers of the ingress that ended and were followed by another";
            page.counter("ingress_worker_restarts", help, ingress.restarts())?;
        }
        let health = monitor.health();
        page.gauge("healthy", "Whether /healthz answers 200", flag(health.is_healthy()))?;
        page.gauge("node_leaving", "Whether the node is about to go", flag(health.node_leaving))?;
        page.counter(
            "config_reloads",
            "Settings read again",
            monitor.reloads.load(std::sync::atomic::Ordering::Relaxed),
        )?;
        page.counter(
            "config_reload_failures",
            "Settings read again and refused",
            monitor.reload_failures.load(std::sync::atomic::Ordering::Relaxed),
        )
    }
}

fn flag(value: bool) -> i64 {
    i64::from(value)
}

fn count(value: usize) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

struct BuildInfo;

impl EncodeLabelSet for BuildInfo {
    fn encode(&self, encoder: &mut LabelSetEncoder<'_>) -> Result<(), fmt::Error> {
        use prometheus_client::encoding::EncodeLabel;
        ("version", env!("CARGO_PKG_VERSION")).encode(encoder.encode_label())?;
        ("target", env!("TELAIO_TARGET")).encode(encoder.encode_label())
    }
}

/// Kind of a sync, as a label.
struct Kind(&'static str);

impl EncodeLabelSet for Kind {
    fn encode(&self, encoder: &mut LabelSetEncoder<'_>) -> Result<(), fmt::Error> {
        use prometheus_client::encoding::EncodeLabel;
        ("kind", self.0).encode(encoder.encode_label())
    }
}

/// The page that is being written.
struct Page<'a>(DescriptorEncoder<'a>);

impl Page<'_> {
    fn gauge<V>(&mut self, name: &str, help: &str, value: V) -> Result<(), fmt::Error>
    where
        V: EncodeGaugeValue + Copy + Debug,
        ConstGauge<V>: EncodeMetric,
    {
        let metric = ConstGauge::new(value);
        metric.encode(self.0.encode_descriptor(name, help, None, metric.metric_type())?)
    }

    fn counter(&mut self, name: &str, help: &str, value: u64) -> Result<(), fmt::Error> {
        let metric = ConstCounter::new(value);
        metric.encode(self.0.encode_descriptor(name, help, None, metric.metric_type())?)
    }

    fn build_info(&mut self) -> Result<(), fmt::Error> {
        let mut encoder =
            self.0.encode_descriptor("build_info", "This build", None, MetricType::Gauge)?;
        encoder.encode_family(&BuildInfo)?.encode_gauge(&1_i64)
    }

    fn source(&mut self, monitor: &Monitor) -> Result<(), fmt::Error> {
        let source = &monitor.source;
        self.gauge(
            "source_connected",
            "Whether the source is in touch with what it reads",
            flag(source.is_connected()),
        )?;
        self.gauge(
            "source_synced",
            "Whether the source has sent a first full state",
            flag(source.is_synced()),
        )?;
        if let Some(age) = source.age() {
            self.gauge(
                "source_state_age_seconds",
                "How old the source's state may be",
                age.as_secs_f64(),
            )?;
        }
        self.gauge(
            "source_problems",
            "Objects and files that cannot be used now",
            count(source.problems().len()),
        )?;
        self.counter(
            "source_problems_found",
            "Objects and files that could not be used, ever",
            source.problems_total(),
        )
    }

    fn store(&mut self, monitor: &Monitor) -> Result<(), fmt::Error> {
        let Some(store) = &monitor.store else { return Ok(()) };
        let size = store.size();
        let revision = i64::try_from(store.revision()).unwrap_or(i64::MAX);
        self.gauge("store_revision", "The store's newest revision", revision)?;
        self.gauge("store_services", "Services in the store", count(size.services))?;
        self.gauge("store_endpoints", "Endpoints in the store", count(size.endpoints))?;
        self.gauge("store_objects", "Other objects in the store", count(size.objects))?;
        self.gauge(
            "store_log_changes",
            "Changes kept for watchers that are behind",
            count(size.log_changes),
        )?;
        self.gauge("store_watchers", "Views that are followed", count(size.watchers))
    }

    fn syncs(&mut self, stats: &SyncStats) -> Result<(), fmt::Error> {
        self.counter("syncs", "Syncs that ended, well or not", stats.syncs_total)?;
        self.counter("sync_failures", "Syncs that failed", stats.failures_total)?;
        self.counter("sync_panics", "Syncs that failed by a fault of ours", stats.panics_total)?;
        self.counter("sync_changes", "Items created, changed and removed", stats.changes_total)?;
        self.counter(
            "sync_drift_repairs",
            "Items mended because somebody else had changed them",
            stats.drift_repairs_total,
        )?;
        let at = |time: Option<SystemTime>| {
            time.and_then(|time| time.duration_since(SystemTime::UNIX_EPOCH).ok())
                .map_or(0.0, |since| since.as_secs_f64())
        };
        self.gauge(
            "sync_last_success_timestamp_seconds",
            "When a sync last ended well",
            at(stats.last_success),
        )?;
        self.gauge(
            "sync_last_queued_timestamp_seconds",
            "When a sync was last asked for",
            at(stats.last_queued),
        )?;
        self.gauge(
            "sync_pending_age_seconds",
            "How long the oldest change has waited for its sync",
            stats.pending_age.unwrap_or(Duration::ZERO).as_secs_f64(),
        )?;
        self.durations(stats)?;
        let mut encoder = self.0.encode_descriptor(
            "sync_latency_seconds",
            "From a change's arrival to the end of its sync",
            None,
            MetricType::Histogram,
        )?;
        let (sum, count, buckets) = parts(&stats.queue_to_synced);
        encoder.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)
    }

    fn durations(&mut self, stats: &SyncStats) -> Result<(), fmt::Error> {
        let mut encoder = self.0.encode_descriptor(
            "sync_duration_seconds",
            "How long syncs took",
            None,
            MetricType::Histogram,
        )?;
        for (kind, histogram) in
            [("full", &stats.full_durations), ("partial", &stats.partial_durations)]
        {
            let (sum, count, buckets) = parts(histogram);
            encoder
                .encode_family(&Kind(kind))?
                .encode_histogram::<NoLabelSet>(sum, count, &buckets, None)?;
        }
        Ok(())
    }
}

/// Sum, count, and buckets as the encoder wants them: each with its own count, the last without a
/// bound.
fn parts(histogram: &Histogram) -> (f64, u64, Vec<(f64, u64)>) {
    let mut below = 0;
    let mut buckets: Vec<(f64, u64)> = histogram
        .cumulative_buckets()
        .map(|(bound, total)| {
            let own = total - below;
            below = total;
            (bound.as_secs_f64(), own)
        })
        .collect();
    buckets.push((f64::INFINITY, histogram.count() - below));
    (histogram.sum().as_secs_f64(), histogram.count(), buckets)
}
