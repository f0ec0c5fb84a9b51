//! The charts' figures since the start, in fixed room.
//!
//! The last minutes are kept sample by sample. Everything is kept a second time with as many samples
//! as there is room for: when it is full, neighbours are joined and the interval doubles.

use std::collections::VecDeque;

use crate::values::overview::{History, Sample};

/// Samples of the last minutes.
const RECENT_MAX: usize = 600;
/// Samples of everything: an even number.
const LONG_MAX: usize = 720;

/// The samples.
#[derive(Debug)]
pub(crate) struct Samples {
    started_ms: i64,
    tick_s: f64,
    recent: VecDeque<Sample>,
    long: Vec<Sample>,
    /// How many ticks one of `long` stands for.
    ticks: usize,
    /// What is not enough for one yet.
    part: Joined,
}

impl Samples {
    pub(crate) fn new(started_ms: i64, tick_s: f64) -> Self {
        Self {
            started_ms,
            tick_s,
            recent: VecDeque::new(),
            long: Vec::new(),
            ticks: 1,
            part: Joined::default(),
        }
    }

    pub(crate) fn push(&mut self, sample: Sample) {
        if self.recent.len() >= RECENT_MAX {
            self.recent.pop_front();
        }
        self.recent.push_back(sample);
        self.part.add(&sample);
        if self.part.count < self.ticks {
            return;
        }
        self.long.extend(std::mem::take(&mut self.part).sample());
        if self.long.len() >= LONG_MAX {
            self.long = self.long.chunks(2).map(join).collect();
            self.ticks *= 2;
        }
    }

    pub(crate) fn last(&self) -> Option<&Sample> {
        self.recent.back()
    }

    /// The samples that ended after `since_ms`, or all.
    pub(crate) fn history(&self, since_ms: Option<i64>) -> History {
        let is_wanted = |it: &&Sample| since_ms.is_none_or(|since| it.at_ms > since);
        #[expect(clippy::cast_precision_loss, reason = "a number of ticks is small")]
        let long_tick_s = self.tick_s * self.ticks as f64;
        History {
            started_ms: self.started_ms,
            tick_s: self.tick_s,
            recent: self.recent.iter().filter(is_wanted).copied().collect(),
            long: self.long.iter().filter(is_wanted).copied().collect(),
            long_tick_s,
            part: self.part.sample(),
        }
    }
}

/// One sample for several: means of rates and levels, sums of counts, the worst latencies. In fixed room, however many.
#[derive(Debug, Clone, Copy, Default)]
struct Joined {
    count: usize,
    /// Sums where the sample has means.
    sum: Sample,
    /// Samples with a share of hits.
    shares: usize,
}

impl Joined {
    fn add(&mut self, one: &Sample) {
        let sum = &mut self.sum;
        let worst = |own: &mut Option<f64>, other: Option<f64>| {
            *own = [*own, other].into_iter().flatten().reduce(f64::max);
        };
        sum.healthy = one.healthy && (self.count == 0 || sum.healthy);
        self.count += 1;
        sum.at_ms = one.at_ms;
        sum.rate += one.rate;
        sum.error_rate += one.error_rate;
        worst(&mut sum.p50_ms, one.p50_ms);
        worst(&mut sum.p90_ms, one.p90_ms);
        worst(&mut sum.p99_ms, one.p99_ms);
        sum.connections = sum.connections.max(one.connections);
        sum.active = sum.active.max(one.active);
        if let Some(share) = one.cache_hit_share {
            self.shares += 1;
            *sum.cache_hit_share.get_or_insert(0.0) += share;
        }
        sum.sync_rate += one.sync_rate;
        sum.sync_failures += one.sync_failures;
        sum.change_rate += one.change_rate;
        sum.drift_repairs += one.drift_repairs;
        worst(&mut sum.source_age_s, one.source_age_s);
    }

    /// The sample, if there is anything in it.
    fn sample(&self) -> Option<Sample> {
        #[expect(clippy::cast_precision_loss, reason = "a number of samples is small")]
        let (count, shares) = (self.count as f64, self.shares as f64);
        (self.count > 0).then(|| Sample {
            rate: self.sum.rate / count,
            error_rate: self.sum.error_rate / count,
            cache_hit_share: self.sum.cache_hit_share.map(|all| all / shares),
            sync_rate: self.sum.sync_rate / count,
            change_rate: self.sum.change_rate / count,
            ..self.sum
        })
    }
}

fn join(samples: &[Sample]) -> Sample {
    let mut joined = Joined::default();
    for one in samples {
        joined.add(one);
    }
    joined.sample().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_since_the_start_fits_and_keeps_its_sums() {
        let mut samples = Samples::new(0, 1.0);
        let all: usize = 100_000;
        for i in 0..all {
            samples.push(Sample {
                at_ms: i64::try_from(i).unwrap(),
                rate: 2.0,
                sync_failures: 1,
                healthy: true,
                ..Sample::default()
            });
        }
        let history = samples.history(None);
        assert_eq!(history.recent.len(), RECENT_MAX);
        assert!(history.long.len() < LONG_MAX && history.long.len() >= LONG_MAX / 2 - 1);
        let failures: u64 = history.long.iter().map(|it| it.sync_failures).sum();
        let rest = history.part.map_or(0, |part| part.sync_failures);
        assert_eq!(failures + rest, all as u64, "nothing is lost");
        assert!(history.long.iter().all(|it| (it.rate - 2.0).abs() < 1e-9));
        assert!(history.long_tick_s >= 128.0);
    }

    #[test]
    fn who_has_the_old_samples_asks_only_for_the_new_and_loses_none() {
        let mut samples = Samples::new(0, 1.0);
        // More than once through the room of `long`, in steps that end within a part.
        let mut reader: Vec<Sample> = Vec::new();
        let (mut sum, mut tick_s) = (0, 1.0);
        for i in 0..5_000_i64 {
            let failures = u64::try_from(i % 7).unwrap();
            sum += failures;
            samples.push(Sample { at_ms: i, sync_failures: failures, ..Sample::default() });
            if i % 13 != 0 {
                continue;
            }
            let newer = samples.history(reader.last().map(|it| it.at_ms));
            if (newer.long_tick_s - tick_s).abs() > 0.1 {
                (reader, tick_s) = (samples.history(None).long, newer.long_tick_s);
            } else {
                reader.extend(newer.long);
            }
            let part = newer.part.map_or(0, |it| it.sync_failures);
            let known: u64 = reader.iter().map(|it| it.sync_failures).sum();
            assert_eq!(known + part, sum, "at {i}");
            assert!(newer.recent.len() <= RECENT_MAX);
        }
        assert!(tick_s > 1.0, "it was joined meanwhile");
        assert_eq!(samples.history(Some(5_000)).recent, []);
    }
}
