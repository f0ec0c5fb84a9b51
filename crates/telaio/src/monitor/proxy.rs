//! What the service proxy counts: the figures behind kube-proxy's metrics.
//!
//! Whoever does something worth counting says so to the one [`ProxyMetrics`] of the
//! [`Monitor`](super::Monitor); a call takes a lock for some nanoseconds and allocates nothing. What
//! others count themselves is asked of them at the moment of the scrape: the sync loop knows when and
//! how long syncs ran, the iptables backend its rules, the backend's companions know of stale flows
//! and missing local endpoints.
//!
//! | who | calls | when |
//! |---|---|---|
//! | the feeder | [`changes_seen`](ProxyMetrics::changes_seen) | before each `Sync` that it passes on |
//! | who starts companions | [`set_companions`](ProxyMetrics::set_companions) | once |
//! | who makes the iptables backend | [`set_iptables`](ProxyMetrics::set_iptables) | once |
//! | a backend's follower | [`network_programmed`](ProxyMetrics::network_programmed) | after a sync, for each endpoint slice whose change is in it |
//! | the nftables backend's follower | [`count_cleanup_failure`](ProxyMetrics::count_cleanup_failure) | when what another backend left could not be removed |
//! | the health server | [`count_probe`](ProxyMetrics::count_probe) | with each answer |

#![cfg_attr(
    not(any(test, target_os = "linux")),
    expect(dead_code, reason = "only Linux has nftables and iptables, whose figures these are")
)]

use std::collections::BTreeMap;
use std::fmt;
use std::sync::OnceLock;
use std::time::Duration;

use parking_lot::Mutex;
use telaio_model::{IpFamily, Op};
use telaio_reconcile::sync_loop::Histogram;
use telaio_service_proxy::companions::CompanionFigures;
use telaio_service_proxy::iptables::proxier::Counters;

/// What the service proxy counts.
#[derive(Default)]
pub(crate) struct ProxyMetrics {
    figures: Mutex<Figures>,
    companions: OnceLock<ReadCompanions>,
    iptables: OnceLock<ReadIptables>,
}

impl fmt::Debug for ProxyMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProxyMetrics").field("figures", &self.figures).finish_non_exhaustive()
    }
}

/// Asks a backend's companions for their counts.
pub(crate) type ReadCompanions = Box<dyn Fn() -> CompanionCounts + Send + Sync>;

/// Asks the iptables backend for its counts.
pub(crate) type ReadIptables = Box<dyn Fn() -> IptablesCounts + Send + Sync>;

/// What the iptables backend counts, by family.
pub(crate) type IptablesCounts = BTreeMap<IpFamily, Counters>;

/// What a backend's companions count.
#[derive(Debug, Clone, Default)]
pub(crate) struct CompanionCounts {
    /// How long each search for stale flows took. One search serves both families.
    pub(crate) conntrack_durations: Histogram,
    /// The rest, for IPv4.
    pub(crate) v4: FamilyCounts,
    /// The rest, for IPv6.
    pub(crate) v6: FamilyCounts,
}

impl From<CompanionFigures> for CompanionCounts {
    fn from(figures: CompanionFigures) -> Self {
        let family = |family: IpFamily| {
            let deleted = figures.stale_flows.deleted_total.get(&family);
            let lacking = figures.no_local_endpoints.get(&family).copied().unwrap_or_default();
            FamilyCounts {
                conntrack_deleted: deleted.copied().unwrap_or_default(),
                no_local_internal: lacking.internal,
                no_local_external: lacking.external,
            }
        };
        Self {
            v4: family(IpFamily::V4),
            v6: family(IpFamily::V6),
            conntrack_durations: figures.stale_flows.durations,
        }
    }
}

/// What companions count for each family.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct FamilyCounts {
    /// Stale flows that were deleted.
    pub(crate) conntrack_deleted: u64,
    /// Ports that drop traffic to their cluster addresses for want of an endpoint on this node.
    pub(crate) no_local_internal: u64,
    /// Likewise traffic to their other addresses.
    pub(crate) no_local_external: u64,
}

/// All figures at one moment.
#[derive(Debug, Clone, Default)]
pub(super) struct Figures {
    pub(super) seen: ChangesSeen,
    /// How many of those came since the sync loop last had nothing to do.
    waiting: ChangesSeen,
    pub(super) v4: FamilyFigures,
    pub(super) v6: FamilyFigures,
    /// One removal is of both families.
    pub(super) cleanup_failures: u64,
    pub(super) healthz: Answers,
    pub(super) livez: Answers,
}

/// The figures of one family.
#[derive(Debug, Clone)]
pub(super) struct FamilyFigures {
    pub(super) programming: Buckets,
}

impl Default for FamilyFigures {
    fn default() -> Self {
        Self { programming: Buckets::new(programming_bounds()) }
    }
}

/// How many changes came.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct ChangesSeen {
    /// Of services.
    pub(crate) services: u64,
    /// Of endpoints.
    pub(crate) endpoints: u64,
}

impl ChangesSeen {
    /// Counts an operation, if it is a change.
    pub(crate) fn count(&mut self, op: &Op) {
        match op {
            Op::SetService(_) | Op::DeleteService(_) => self.services += 1,
            Op::SetEndpoint(_) | Op::DeleteEndpoint(_) => self.endpoints += 1,
            Op::Reset | Op::Sync | Op::SetObject(_) | Op::DeleteObject(_) => {}
        }
    }

    fn plus(self, other: Self) -> Self {
        Self {
            services: self.services + other.services,
            endpoints: self.endpoints + other.endpoints,
        }
    }
}

/// How often a question was answered how.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Answers {
    /// 200.
    pub(super) well: u64,
    /// 503.
    pub(super) unwell: u64,
}

/// A question about our health.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Probe {
    /// `/healthz`.
    Healthz,
    /// `/livez`.
    Livez,
}

impl ProxyMetrics {
    /// Changes are on their way to the backend, whose sync loop still has others to do, or not.
    pub(crate) fn changes_seen(&self, changes: ChangesSeen, others_wait: bool) {
        let mut figures = self.figures.lock();
        figures.seen = figures.seen.plus(changes);
        figures.waiting = if others_wait { figures.waiting.plus(changes) } else { changes };
    }

    /// Whom to ask for what companions count. The first counts.
    pub(crate) fn set_companions(&self, read: ReadCompanions) {
        // A backend is set up once.
        let _ = self.companions.set(read);
    }

    /// Whom to ask for what the iptables backend counts. The first counts.
    pub(crate) fn set_iptables(&self, read: ReadIptables) {
        // A backend is made once.
        let _ = self.iptables.set(read);
    }

    /// From the moment that an EndpointSlice's annotation
    /// `endpoints.kubernetes.io/last-change-trigger-time` names, to the end of the sync that has it.
    pub(crate) fn network_programmed(&self, family: IpFamily, latency: Duration) {
        self.figures.lock().family(family).programming.observe(latency);
    }

    /// The nftables backend serves, and what another left could not be removed.
    pub(crate) fn count_cleanup_failure(&self) {
        self.figures.lock().cleanup_failures += 1;
    }

    /// A question about our health was answered.
    pub(crate) fn count_probe(&self, probe: Probe, well: bool) {
        let mut figures = self.figures.lock();
        let answers = match probe {
            Probe::Healthz => &mut figures.healthz,
            Probe::Livez => &mut figures.livez,
        };
        *if well { &mut answers.well } else { &mut answers.unwell } += 1;
    }

    /// How long changes took to be in the kernel, in milliseconds: the median, and what 99 of 100 did
    /// not exceed; to the bound of their bucket.
    pub(crate) fn programming_ms(&self) -> (Option<f64>, Option<f64>) {
        let figures = self.figures.lock();
        let (one, other) = (figures.v4.programming.parts(), figures.v6.programming.parts());
        let all = one.1 + other.1;
        let quantile = |share: f64| {
            let mut below = 0;
            let buckets = one.2.iter().zip(&other.2).filter(|_| all > 0);
            #[expect(clippy::cast_precision_loss, reason = "figures for eyes")]
            let found = buckets.into_iter().find(|((_, one), (_, other))| {
                below += one + other;
                below as f64 >= all as f64 * share
            });
            found.map(|((bound, _), _)| bound * 1000.0).filter(|it| it.is_finite())
        };
        (quantile(0.5), quantile(0.99))
    }

    /// All that was told, until now.
    pub(super) fn figures(&self) -> Figures {
        self.figures.lock().clone()
    }

    /// What the iptables backend counts, now; nothing where another serves.
    pub(super) fn iptables(&self) -> IptablesCounts {
        self.iptables.get().map(|read| read()).unwrap_or_default()
    }

    /// What companions count, now.
    pub(super) fn companions(&self) -> CompanionCounts {
        self.companions.get().map(|read| read()).unwrap_or_default()
    }
}

impl Figures {
    fn family(&mut self, family: IpFamily) -> &mut FamilyFigures {
        match family {
            IpFamily::V4 => &mut self.v4,
            IpFamily::V6 => &mut self.v6,
        }
    }

    /// The changes that no sync has taken up, if the sync loop has anything to do.
    pub(super) fn pending(&self, has_work: bool) -> ChangesSeen {
        if has_work { self.waiting } else { ChangesSeen::default() }
    }
}

/// A histogram as the encoder wants it: sum, count, and bounds each with its own count, the last of
/// them infinite.
pub(super) type Parts = (f64, u64, Vec<(f64, u64)>);

/// A histogram with bounds of its own.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Buckets {
    /// Upper bounds in seconds, rising, each with how many fell under it and not under the one before.
    bounded: Vec<(f64, u64)>,
    count: u64,
    sum_s: f64,
}

impl Buckets {
    fn new(bounds: impl IntoIterator<Item = f64>) -> Self {
        let bounded = bounds.into_iter().map(|bound| (bound, 0)).collect();
        Self { bounded, count: 0, sum_s: 0.0 }
    }

    fn observe(&mut self, duration: Duration) {
        let seconds = duration.as_secs_f64();
        if let Some((_, count)) = self.bounded.iter_mut().find(|(bound, _)| seconds <= *bound) {
            *count += 1;
        }
        self.count += 1;
        self.sum_s += seconds;
    }

    /// For the encoder.
    pub(super) fn parts(&self) -> Parts {
        let mut buckets = self.bounded.clone();
        let below: u64 = buckets.iter().map(|(_, count)| count).sum();
        buckets.push((f64::INFINITY, self.count - below));
        (self.sum_s, self.count, buckets)
    }
}

/// kube-proxy's bounds for network programming: by the second up to a minute, then wider.
fn programming_bounds() -> impl Iterator<Item = f64> {
    let seconds = (1..60).chain((60..120).step_by(5)).chain((120..=300).step_by(30));
    [0.0, 0.25, 0.5].into_iter().chain(seconds.map(f64::from))
}
