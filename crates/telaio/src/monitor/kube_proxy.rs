//! kube-proxy's metrics, under its names and with its types, labels and buckets, so that its
//! dashboards and alerts go on working.
//!
//! What the sync loop knows comes from its figures: one sync serves both families, so both have the
//! same times. All names are there from the start and whatever the backend, so that an alert on a
//! missing one means something.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{
    DescriptorEncoder, EncodeLabel, EncodeLabelSet, LabelSetEncoder, MetricEncoder, NoLabelSet,
};
use prometheus_client::metrics::MetricType;
use telaio_model::IpFamily;
use telaio_reconcile::sync_loop::Histogram;
use telaio_reconcile::{SyncHandle, SyncStats};
use telaio_service_proxy::iptables::proxier::{Counters, RuleCounts};

use super::Monitor;
use super::proxy::{Answers, CompanionCounts, FamilyCounts, Figures, IptablesCounts, Parts};

/// The prefix of all of them.
pub(super) const PREFIX: &str = "kubeproxy";
/// The backend whose failed syncs are nftables' own.
const NFTABLES: &str = "nftables";
/// kube-proxy's first and last bound for the time of a sync, and of a search for stale connections;
/// between them each is twice the one before.
const TIME_BOUNDS: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(16_384));

type Label = (&'static str, &'static str);

/// Labels with their values.
struct Labels<'a>(&'a [Label]);

impl EncodeLabelSet for Labels<'_> {
    fn encode(&self, encoder: &mut LabelSetEncoder<'_>) -> Result<(), fmt::Error> {
        self.0.iter().try_for_each(|label| label.encode(encoder.encode_label()))
    }
}

/// Writes kube-proxy's metrics.
#[derive(Debug)]
pub(super) struct KubeProxyMetrics(pub(super) Arc<Monitor>);

impl Collector for KubeProxyMetrics {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let monitor = &self.0;
        let stats = monitor.sync_loop().map(SyncHandle::stats).unwrap_or_default();
        let (figures, companions) = (monitor.proxy.figures(), monitor.proxy.companions());
        let is_nftables = monitor.facts.backend.as_deref() == Some(NFTABLES);
        let mut page = Page(encoder);
        page.syncs(&stats)?;
        page.changes(&figures, &stats)?;
        page.programming(&figures)?;
        page.no_local_endpoints(&companions)?;
        page.iptables(&monitor.proxy.iptables())?;
        page.nftables(&figures, if is_nftables { stats.failures_total } else { 0 })?;
        page.conntrack(&companions)?;
        page.probes("proxy_healthz", "Answers of /healthz", figures.healthz)?;
        page.probes("proxy_livez", "Answers of /livez", figures.livez)
    }
}

/// The families with their labels.
const FAMILIES: [Label; 2] = [("ip_family", "IPv4"), ("ip_family", "IPv6")];

/// The families with what belongs to each.
fn by_family<T>(v4: T, v6: T) -> [(Label, T); 2] {
    let [of_v4, of_v6] = FAMILIES;
    [(of_v4, v4), (of_v6, v6)]
}

/// The page that is being written.
struct Page<'a>(DescriptorEncoder<'a>);

impl Page<'_> {
    fn metric(
        &mut self,
        name: &str,
        help: &str,
        kind: MetricType,
        write: impl FnOnce(MetricEncoder<'_>) -> Result<(), fmt::Error>,
    ) -> Result<(), fmt::Error> {
        write(self.0.encode_descriptor(name, help, None, kind)?)
    }

    /// A counter for each family. Its name ends in `_total` on the page.
    fn family_counter(
        &mut self,
        name: &str,
        help: &str,
        v4: u64,
        v6: u64,
    ) -> Result<(), fmt::Error> {
        self.metric(name, help, MetricType::Counter, |mut encoder| {
            by_family(v4, v6).into_iter().try_for_each(|(family, value)| {
                counter(encoder.encode_family(&Labels(&[family]))?, value)
            })
        })
    }

    fn family_histogram(
        &mut self,
        name: &str,
        help: &str,
        v4: &Parts,
        v6: &Parts,
    ) -> Result<(), fmt::Error> {
        self.metric(name, help, MetricType::Histogram, |mut encoder| {
            by_family(v4, v6).into_iter().try_for_each(|(family, parts)| {
                histogram(encoder.encode_family(&Labels(&[family]))?, parts)
            })
        })
    }

    fn syncs(&mut self, stats: &SyncStats) -> Result<(), fmt::Error> {
        let full = times(&[&stats.full_durations]);
        let partial = times(&[&stats.partial_durations]);
        let all = times(&[&stats.full_durations, &stats.partial_durations]);
        for (name, help, times) in [
            ("sync_proxy_rules_duration_seconds", "How long syncs took", all),
            ("sync_full_proxy_rules_duration_seconds", "How long full syncs took", full),
            (
                "sync_partial_proxy_rules_duration_seconds",
                "How long syncs of changes took",
                partial,
            ),
        ] {
            self.family_histogram(name, help, &times, &times)?;
        }
        for (name, help, at) in [
            (
                "sync_proxy_rules_last_timestamp_seconds",
                "When a sync last ended well",
                stats.last_success,
            ),
            (
                "sync_proxy_rules_last_queued_timestamp_seconds",
                "When a sync was last asked for",
                stats.last_queued,
            ),
        ] {
            self.metric(name, help, MetricType::Gauge, |mut encoder| {
                FAMILIES.into_iter().try_for_each(|family| {
                    encoder.encode_family(&Labels(&[family]))?.encode_gauge(&timestamp(at))
                })
            })?;
        }
        Ok(())
    }

    fn changes(&mut self, figures: &Figures, stats: &SyncStats) -> Result<(), fmt::Error> {
        let pending = figures.pending(stats.pending());
        for (what, seen, pending) in [
            ("service", figures.seen.services, pending.services),
            ("endpoint", figures.seen.endpoints, pending.endpoints),
        ] {
            let name = format!("sync_proxy_rules_{what}_changes");
            let help = format!("Changes of {what}s that came");
            self.metric(&name, &help, MetricType::Counter, |encoder| counter(encoder, seen))?;
            let name = format!("sync_proxy_rules_{what}_changes_pending");
            let help = format!("Changes of {what}s that no sync has taken up yet");
            self.metric(&name, &help, MetricType::Gauge, |encoder| gauge(encoder, pending))?;
        }
        Ok(())
    }

    fn programming(&mut self, figures: &Figures) -> Result<(), fmt::Error> {
        self.family_histogram(
            "network_programming_duration_seconds",
            "From the change of a pod or service to its rules in the kernel",
            &figures.v4.programming.parts(),
            &figures.v6.programming.parts(),
        )
    }

    fn no_local_endpoints(&mut self, companions: &CompanionCounts) -> Result<(), fmt::Error> {
        let (name, help) = (
            "sync_proxy_rules_no_local_endpoints_total",
            "Ports of services with a policy Local whose endpoints are all on other nodes",
        );
        self.metric(name, help, MetricType::Gauge, |mut encoder| {
            for (family, counts) in by_family(companions.v4, companions.v6) {
                let FamilyCounts { no_local_internal, no_local_external, .. } = counts;
                for (policy, count) in
                    [("internal", no_local_internal), ("external", no_local_external)]
                {
                    let labels = [family, ("traffic_policy", policy)];
                    gauge(encoder.encode_family(&Labels(&labels))?, count)?;
                }
            }
            Ok(())
        })
    }

    fn iptables(&mut self, counts: &IptablesCounts) -> Result<(), fmt::Error> {
        let of = |family| counts.get(&family).copied().unwrap_or_default();
        let (v4, v6): (Counters, Counters) = (of(IpFamily::V4), of(IpFamily::V6));
        for (name, help, v4, v6) in [
            ("sync_proxy_rules_iptables_total", "iptables rules of ours", v4.rules, v6.rules),
            (
                "sync_proxy_rules_iptables_last",
                "iptables rules that the last sync wrote or removed",
                v4.rules_last,
                v6.rules_last,
            ),
        ] {
            self.metric(name, help, MetricType::Gauge, |mut encoder| {
                for (family, RuleCounts { nat, filter }) in by_family(v4, v6) {
                    for (table, count) in [("filter", filter), ("nat", nat)] {
                        let labels = [family, ("table", table)];
                        gauge(encoder.encode_family(&Labels(&labels))?, count as u64)?;
                    }
                }
                Ok(())
            })?;
        }
        self.family_counter(
            "sync_proxy_rules_iptables_restore_failures",
            "Times that iptables-restore failed",
            v4.failures,
            v6.failures,
        )?;
        self.family_counter(
            "sync_proxy_rules_iptables_partial_restore_failures",
            "Times that iptables-restore of only what had changed failed",
            v4.partial_failures,
            v6.partial_failures,
        )
    }

    fn nftables(&mut self, figures: &Figures, sync_failures: u64) -> Result<(), fmt::Error> {
        self.family_counter(
            "sync_proxy_rules_nftables_sync_failures",
            "Syncs of nftables that failed",
            sync_failures,
            sync_failures,
        )?;
        self.family_counter(
            "sync_proxy_rules_nftables_cleanup_failures",
            "Times that what another backend left could not be removed",
            figures.cleanup_failures,
            figures.cleanup_failures,
        )
    }

    fn conntrack(&mut self, companions: &CompanionCounts) -> Result<(), fmt::Error> {
        let times = times(&[&companions.conntrack_durations]);
        self.family_histogram(
            "conntrack_reconciler_sync_duration_seconds",
            "How long the search for stale connections took",
            &times,
            &times,
        )?;
        self.family_counter(
            "conntrack_reconciler_deleted_entries",
            "Stale connections deleted",
            companions.v4.conntrack_deleted,
            companions.v6.conntrack_deleted,
        )
    }

    fn probes(&mut self, name: &str, help: &str, answers: Answers) -> Result<(), fmt::Error> {
        self.metric(name, help, MetricType::Counter, |mut encoder| {
            for (code, count) in [("200", answers.well), ("503", answers.unwell)] {
                counter(encoder.encode_family(&Labels(&[("code", code)]))?, count)?;
            }
            Ok(())
        })
    }
}

fn counter(mut encoder: MetricEncoder<'_>, value: u64) -> Result<(), fmt::Error> {
    encoder.encode_counter::<NoLabelSet, u64, u64>(&value, None)
}

fn gauge(mut encoder: MetricEncoder<'_>, value: u64) -> Result<(), fmt::Error> {
    encoder.encode_gauge(&i64::try_from(value).unwrap_or(i64::MAX))
}

fn histogram(
    mut encoder: MetricEncoder<'_>,
    (sum, count, buckets): &Parts,
) -> Result<(), fmt::Error> {
    encoder.encode_histogram::<NoLabelSet>(*sum, *count, buckets, None)
}

fn timestamp(at: Option<SystemTime>) -> f64 {
    at.and_then(|at| at.duration_since(SystemTime::UNIX_EPOCH).ok())
        .map_or(0.0, |since| since.as_secs_f64())
}

/// Times in kube-proxy's buckets, which are some of those that our own histograms have.
fn times(histograms: &[&Histogram]) -> Parts {
    let sum: Duration = histograms.iter().map(|histogram| histogram.sum()).sum();
    let count: u64 = histograms.iter().map(|histogram| histogram.count()).sum();
    let mut totals: Vec<(Duration, u64)> = Vec::new();
    for histogram in histograms {
        for (index, (bound, total)) in histogram.cumulative_buckets().enumerate() {
            match totals.get_mut(index) {
                Some((_, sum)) => *sum += total,
                None => totals.push((bound, total)),
            }
        }
    }
    let mut below = 0;
    let mut buckets: Vec<(f64, u64)> = totals
        .into_iter()
        .filter(|(bound, _)| (TIME_BOUNDS.0..=TIME_BOUNDS.1).contains(bound))
        .map(|(bound, total)| {
            let own = total - below;
            below = total;
            (bound.as_secs_f64(), own)
        })
        .collect();
    buckets.push((f64::INFINITY, count - below));
    (sum.as_secs_f64(), count, buckets)
}
