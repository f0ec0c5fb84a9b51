//! A client that tries again and again while a test changes things.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::client::Outcome;
use crate::guest;

/// How many failures are kept in full; the count goes on.
const FAILURES_KEPT_MAX: usize = 20;
/// Between two attempts: often enough to meet a short gap, rare enough to leave the machine to others.
const PAUSE: Duration = Duration::from_millis(1);
/// The same on a guest kernel, which has one slow core.
const PAUSE_IN_GUEST: Duration = Duration::from_millis(40);

/// What a prober met.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tally {
    /// How often each server answered.
    pub answered: BTreeMap<String, u64>,
    /// How many attempts were not answered.
    pub failures: u64,
    /// The first of them, each with how long after the start it was.
    pub first_failures: Vec<(Duration, Outcome)>,
}

impl Tally {
    /// How many attempts there were.
    pub fn attempts(&self) -> u64 {
        self.answered.values().sum::<u64>() + self.failures
    }

    /// Adds one.
    pub fn count(&mut self, after: Duration, outcome: Outcome) {
        match outcome {
            Outcome::Answered { by, .. } => *self.answered.entry(by).or_default() += 1,
            other => {
                self.failures += 1;
                if self.first_failures.len() < FAILURES_KEPT_MAX {
                    self.first_failures.push((after, other));
                }
            }
        }
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} attempts, answered by {:?}", self.attempts(), self.answered)?;
        for (after, outcome) in &self.first_failures {
            write!(f, "\n  after {after:?}: {outcome}")?;
        }
        Ok(())
    }
}

/// The running client.
#[derive(Debug)]
pub struct Prober {
    stop: Arc<AtomicBool>,
    attempts: Arc<AtomicU64>,
    thread: JoinHandle<Tally>,
}

impl Prober {
    /// Calls `attempt` until told to stop, on a thread that `prepare` readies first.
    pub(super) fn start(
        prepare: impl FnOnce() + Send + 'static,
        attempt: impl Fn() -> Outcome + Send + 'static,
    ) -> std::io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let attempts = Arc::new(AtomicU64::new(0));
        let (stopped, counted) = (Arc::clone(&stop), Arc::clone(&attempts));
        let pause = if guest::is_inside() { PAUSE_IN_GUEST } else { PAUSE };
        let thread = std::thread::Builder::new().name("prober".to_owned()).spawn(move || {
            prepare();
            let mut tally = Tally::default();
            let start = Instant::now();
            while !stopped.load(Ordering::Relaxed) {
                let began = start.elapsed();
                tally.count(began, attempt());
                counted.fetch_add(1, Ordering::Release);
                std::thread::sleep(pause);
            }
            tally
        })?;
        Ok(Self { stop, attempts, thread })
    }

    /// Waits until at least this many further attempts have begun and ended.
    pub fn wait_attempts(&self, further: u64) {
        // One may be under way already, and one more must begin after now.
        let wanted = self.attempts.load(Ordering::Acquire) + further + 1;
        while self.attempts.load(Ordering::Acquire) < wanted && !self.thread.is_finished() {
            std::thread::sleep(PAUSE);
        }
    }

    /// Ends it and tells what it met. A client that panicked met nothing good.
    pub fn stop(self) -> Tally {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap_or_else(|_| {
            let failure = (Duration::ZERO, Outcome::Broken(std::io::ErrorKind::Other));
            Tally { failures: 1, first_failures: vec![failure], ..Tally::default() }
        })
    }
}
