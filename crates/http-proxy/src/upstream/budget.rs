//! How much may be retried: a share of the requests, so that a backend in trouble is not given more.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};

/// What a request puts in, of what a retry costs: one retry for five requests.
const DEPOSIT: i64 = 20;
const COST: i64 = 100;

/// The most that is saved up: fifty retries at once.
const BALANCE_MAX: i64 = 50 * COST;

/// What a backend with few requests may retry anyhow, per second.
const PER_SECOND: i64 = 5 * COST;

/// The account of one backend's retries.
#[derive(Debug)]
pub struct RetryBudget {
    balance: AtomicI64,
    paid_at_ns: AtomicU64,
}

impl Default for RetryBudget {
    fn default() -> Self {
        Self { balance: AtomicI64::new(BALANCE_MAX / 5), paid_at_ns: AtomicU64::new(0) }
    }
}

impl RetryBudget {
    /// A request came.
    pub fn deposit(&self) {
        if self.balance.load(Relaxed) < BALANCE_MAX {
            self.balance.fetch_add(DEPOSIT, Relaxed);
        }
    }

    /// Whether a retry could be paid for now.
    pub fn has_one(&self, now_ns: u64) -> bool {
        self.pay_for_time(now_ns);
        self.balance.load(Relaxed) >= COST
    }

    /// Whether a retry may be made; it is paid for then.
    pub fn withdraw(&self, now_ns: u64) -> bool {
        self.pay_for_time(now_ns);
        let take = |balance: i64| (balance >= COST).then(|| balance - COST);
        self.balance.fetch_update(Relaxed, Relaxed, take).is_ok()
    }

    fn pay_for_time(&self, now_ns: u64) {
        let before = self.paid_at_ns.load(Relaxed);
        let seconds = (now_ns.saturating_sub(before) / 1_000_000_000).min(60).cast_signed();
        if seconds > 0 && self.paid_at_ns.compare_exchange(before, now_ns, Relaxed, Relaxed).is_ok()
        {
            let paid = |balance: i64| Some((balance + seconds * PER_SECOND).min(BALANCE_MAX));
            let _ = self.balance.fetch_update(Relaxed, Relaxed, paid);
        }
    }
}
