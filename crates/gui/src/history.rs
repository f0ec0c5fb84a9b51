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
    /// Those that are not enough for one yet.
    part: Vec<Sample>,
}

impl Samples {
    pub(crate) fn new(started_ms: i64, tick_s: f64) -> Self {
        Self {
            started_ms,
            tick_s,
            recent: VecDeque::new(),
            long: Vec::new(),
            ticks: 1,
            part: Vec::new(),
        }
    }

    pub(crate) fn push(&mut self, sample: Sample) {
        if self.recent.len() >= RECENT_MAX {
            self.recent.pop_front();
        }
        self.recent.push_back(sample);
        self.part.push(sample);
        if self.part.len() < self.ticks {
            return;
        }
        self.long.push(join(&self.part));
        self.part.clear();
        if self.long.len() >= LONG_MAX {
            self.long = self.long.chunks(2).map(join).collect();
            self.ticks *= 2;
        }
        // A part never holds more than the room of `long` has ticks for.
        if self.ticks > 4096 && self.part.capacity() > 2 * self.ticks {
            self.part.shrink_to_fit();
        }
    }

    pub(crate) fn last(&self) -> Option<&Sample> {
        self.recent.back()
    }

    pub(crate) fn history(&self) -> History {
        #[expect(clippy::cast_precision_loss, reason = "a number of ticks is small")]
        let long_tick_s = self.tick_s * self.ticks as f64;
        History {
            started_ms: self.started_ms,
            tick_s: self.tick_s,
            recent: self.recent.iter().copied().collect(),
            long: self.long.clone(),
            long_tick_s,
        }
    }
}

/// One sample for several: means of rates and levels, sums of counts, the worst latencies.
fn join(samples: &[Sample]) -> Sample {
    let Some(last) = samples.last() else { return Sample::default() };
    #[expect(clippy::cast_precision_loss, reason = "a number of samples is small")]
    let count = samples.len() as f64;
    let mean = |of: fn(&Sample) -> f64| samples.iter().map(of).sum::<f64>() / count;
    let worst = |of: fn(&Sample) -> Option<f64>| samples.iter().filter_map(of).reduce(f64::max);
    let shares: Vec<f64> = samples.iter().filter_map(|it| it.cache_hit_share).collect();
    #[expect(clippy::cast_precision_loss, reason = "a number of samples is small")]
    let share = shares.iter().sum::<f64>() / shares.len().max(1) as f64;
    Sample {
        at_ms: last.at_ms,
        rate: mean(|it| it.rate),
        error_rate: mean(|it| it.error_rate),
        p50_ms: worst(|it| it.p50_ms),
        p90_ms: worst(|it| it.p90_ms),
        p99_ms: worst(|it| it.p99_ms),
        connections: samples.iter().map(|it| it.connections).max().unwrap_or(0),
        active: samples.iter().map(|it| it.active).max().unwrap_or(0),
        cache_hit_share: (!shares.is_empty()).then_some(share),
        sync_rate: mean(|it| it.sync_rate),
        sync_failures: samples.iter().map(|it| it.sync_failures).sum(),
        change_rate: mean(|it| it.change_rate),
        drift_repairs: samples.iter().map(|it| it.drift_repairs).sum(),
        source_age_s: worst(|it| it.source_age_s),
        healthy: samples.iter().all(|it| it.healthy),
    }
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
        let history = samples.history();
        assert_eq!(history.recent.len(), RECENT_MAX);
        assert!(history.long.len() < LONG_MAX && history.long.len() >= LONG_MAX / 2 - 1);
        let failures: u64 = history.long.iter().map(|it| it.sync_failures).sum();
        let rest = samples.part.len() as u64;
        assert_eq!(failures + rest, all as u64, "nothing is lost");
        assert!(history.long.iter().all(|it| (it.rate - 2.0).abs() < 1e-9));
        assert!(history.long_tick_s >= 128.0);
    }
}
