//! One writer at a time, by a Lease.
//!
//! The holder renews it; others watch whether it does. Clocks of machines differ, so nobody compares
//! the time in the Lease with its own: a Lease that has not changed for its duration, by the
//! watcher's own clock, is free. A write names the version that it is based on, so that of two who
//! take it at once one is refused.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use super::StatusSettings;
use super::rest::{Rest, RestError};

/// The Lease's name.
pub const LEASE_NAME: &str = "telaio-ingress-status";

/// How long things take. With the defaults a Lease whose holder died is taken over within 14 s and the time
/// of a few answers, and one that was given back within 2 s.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaseTimes {
    /// How long a Lease holds that is not renewed.
    pub duration: Duration,
    /// How often its holder renews it.
    pub renew: Duration,
    /// How often others look.
    pub look: Duration,
}

impl Default for LeaseTimes {
    fn default() -> Self {
        Self {
            duration: Duration::from_secs(10),
            renew: Duration::from_secs(3),
            look: Duration::from_secs(2),
        }
    }
}

/// What was last seen of the Lease, and since when it has been so.
#[derive(Debug, Clone)]
struct Seen {
    version: String,
    since: Instant,
}

impl Seen {
    /// The Lease has this version now: since now, unless it had it when it was last seen.
    fn again(before: Option<&Self>, version: &str, now: Instant) -> Self {
        let since = before.filter(|seen| seen.version == version).map_or(now, |seen| seen.since);
        Self { version: version.to_owned(), since }
    }

    /// Whether it was not renewed for as long as it holds, by what is written in it and by our own times.
    fn has_run_out(&self, duration_s: u64, times: &LeaseTimes, now: Instant) -> bool {
        let duration = Duration::from_secs(duration_s).min(times.duration);
        now.saturating_duration_since(self.since) >= duration
    }
}

/// Takes, renews and gives back the Lease.
#[derive(Debug)]
pub(super) struct Elector {
    rest: Rest,
    identity: String,
    namespace: String,
    times: LeaseTimes,
    seen: Option<Seen>,
    /// Until when we hold it, by the last renewal that succeeded.
    held_until: Option<Instant>,
    renewed: Instant,
    transitions: u64,
}

impl Elector {
    pub(super) fn new(rest: Rest, settings: &StatusSettings) -> Self {
        Self {
            rest,
            identity: settings.identity.clone(),
            namespace: settings.namespace.clone(),
            times: settings.times,
            seen: None,
            held_until: None,
            renewed: Instant::now(),
            transitions: 0,
        }
    }

    fn path(&self) -> String {
        format!("{}/{LEASE_NAME}", self.collection())
    }

    fn collection(&self) -> String {
        format!("/apis/coordination.k8s.io/v1/namespaces/{}/leases", self.namespace)
    }

    fn holds(&self) -> bool {
        self.held_until.is_some_and(|until| Instant::now() < until)
    }

    /// Waits until we hold the Lease. Cancel-safe.
    pub(super) async fn acquire(&mut self) {
        self.held_until = None;
        loop {
            match self.try_acquire().await {
                Ok(true) => return,
                Ok(false) => {}
                Err(error) => {
                    tracing::warn!(%error, "the Lease for writing status cannot be taken");
                }
            }
            tokio::time::sleep(self.times.look).await;
        }
    }

    async fn try_acquire(&mut self) -> Result<bool, RestError> {
        let lease = match self.rest.get(&self.path()).await {
            Ok(lease) => lease,
            Err(error) if error.is_not_found() => return self.create().await,
            Err(error) => return Err(error),
        };
        let version = lease["metadata"]["resourceVersion"].as_str().unwrap_or_default().to_owned();
        let holder = lease["spec"]["holderIdentity"].as_str().unwrap_or_default();
        let now = Instant::now();
        let seen = Seen::again(self.seen.as_ref(), &version, now);
        let duration_s = lease["spec"]["leaseDurationSeconds"].as_u64().unwrap_or(0);
        let is_free = holder.is_empty()
            || holder == self.identity
            || seen.has_run_out(duration_s, &self.times, now);
        self.seen = Some(seen);
        if !is_free {
            return Ok(false);
        }
        self.transitions = lease["spec"]["leaseTransitions"].as_u64().unwrap_or(0);
        if holder != self.identity {
            self.transitions += 1;
        }
        self.write(version, &self.identity.clone()).await
    }

    async fn create(&mut self) -> Result<bool, RestError> {
        let began = Instant::now();
        match self.rest.post(&self.collection(), &self.body("", &self.identity)).await {
            Ok(lease) => {
                self.won(&lease, began);
                Ok(true)
            }
            Err(error) if error.is_conflict() => Ok(false),
            Err(error) => Err(error),
        }
    }

    async fn write(&mut self, version: String, holder: &str) -> Result<bool, RestError> {
        let began = Instant::now();
        match self.rest.put(&self.path(), &self.body(&version, holder)).await {
            Ok(lease) => {
                self.won(&lease, began);
                Ok(true)
            }
            Err(error) if error.is_conflict() || error.is_not_found() => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// The server took our write. It holds from when we began: others may have seen it since.
    fn won(&mut self, lease: &Value, began: Instant) {
        let version = lease["metadata"]["resourceVersion"].as_str().unwrap_or_default().to_owned();
        self.seen = Some(Seen { version, since: began });
        self.renewed = began;
        self.held_until = Some(began + self.times.duration);
    }

    /// Renews the Lease again and again, until it is another's or was held for too long without.
    pub(super) async fn hold(&mut self) {
        while let Some(until) = self.held_until {
            tokio::time::sleep_until(until.min(self.renewed + self.times.renew)).await;
            // Nobody writes a moment longer than it holds, so an answer is not waited for any longer.
            let renewed = tokio::time::timeout_at(until, self.renew()).await;
            if !renewed.unwrap_or(false) {
                self.held_until = None;
            }
        }
    }

    /// Renews the Lease once. False if it is another's now, or was held for too long without renewal.
    async fn renew(&mut self) -> bool {
        let version = self.seen.as_ref().map(|seen| seen.version.clone()).unwrap_or_default();
        match self.write(version, &self.identity.clone()).await {
            Ok(renewed) => renewed,
            Err(error) => {
                tracing::warn!(%error, "the Lease for writing status cannot be renewed");
                // Try again soon, for as long as it holds.
                self.renewed = Instant::now();
                self.holds()
            }
        }
    }

    /// Gives the Lease back if we hold it.
    pub(super) async fn release(&mut self) {
        if self.holds()
            && let Some(seen) = self.seen.clone()
        {
            match self.write(seen.version, "").await {
                Ok(true) => {}
                // A renewal whose answer we did not wait for has changed it.
                Ok(false) => self.release_as_it_is().await,
                Err(error) => tracing::debug!(%error, "the Lease is left to run out"),
            }
            self.held_until = None;
        }
    }

    async fn release_as_it_is(&mut self) {
        let Ok(lease) = self.rest.get(&self.path()).await else { return };
        if lease["spec"]["holderIdentity"].as_str() == Some(&*self.identity) {
            let version = lease["metadata"]["resourceVersion"].as_str().unwrap_or_default();
            let _ = self.write(version.to_owned(), "").await;
        }
    }

    fn body(&self, version: &str, holder: &str) -> Value {
        let now = jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%S%.6fZ").to_string();
        let mut metadata = json!({"name": LEASE_NAME, "namespace": self.namespace});
        if !version.is_empty() {
            metadata["resourceVersion"] = version.into();
        }
        json!({
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": metadata,
            "spec": {
                "holderIdentity": holder,
                // Others round down, and never wait for less than a second.
                "leaseDurationSeconds": self.times.duration.as_secs().max(1),
                "renewTime": now,
                "leaseTransitions": self.transitions,
            },
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

    use super::*;

    /// What the cluster is promised.
    const HAND_OVER_MAX: Duration = Duration::from_secs(15);

    /// A watcher that begins to look at `phase` and whose every answer takes `answer`; the holder renews at
    /// each of `renewals`, all counted from `start`. When the watcher finds the Lease free.
    fn free_after(
        start: Instant,
        times: &LeaseTimes,
        phase: Duration,
        answer: Duration,
        renewals: &[Duration],
    ) -> Duration {
        let mut seen: Option<Seen> = None;
        let mut asked = phase;
        loop {
            // The server answers with what holds when it is asked.
            let version = renewals.iter().filter(|at| **at <= asked).count().to_string();
            let now = start + asked + answer;
            let looked = Seen::again(seen.as_ref(), &version, now);
            if looked.has_run_out(times.duration.as_secs(), times, now) {
                return asked + answer;
            }
            seen = Some(looked);
            asked += answer + times.look;
            assert!(asked < Duration::from_mins(10), "it is never free");
        }
    }

    #[test]
    fn a_lease_whose_holder_died_is_free_within_15_s_and_never_while_it_is_held() {
        let times = LeaseTimes::default();
        let start = Instant::now();
        let mut longest = Duration::ZERO;
        for renewal_count in 1..4_u32 {
            // It died right after the last of them.
            let renewals: Vec<_> = (0..renewal_count).map(|number| times.renew * number).collect();
            let died = *renewals.last().unwrap();
            for phase_ms in (0..2_000).step_by(25) {
                for answer_ms in [0, 1, 20, 100] {
                    let (phase, answer) =
                        (Duration::from_millis(phase_ms), Duration::from_millis(answer_ms));
                    let free = free_after(start, &times, phase, answer, &renewals);
                    // The holder counts from when it began to write, so it has stopped by then.
                    assert!(free >= died + times.duration, "{phase:?} {answer:?}: {free:?}");
                    longest = longest.max(free.saturating_sub(died));
                }
            }
        }
        assert!(longest <= HAND_OVER_MAX, "{longest:?}");
        // Whatever the moment: seen at the next look, run out, and found so at the next.
        assert!(times.duration + times.look * 2 < HAND_OVER_MAX);
        assert!(times.look < HAND_OVER_MAX, "one that was given back is free at once");
    }

    #[test]
    fn a_holder_may_miss_two_renewals_and_a_lease_that_says_less_is_free_earlier() {
        let times = LeaseTimes::default();
        assert!(times.renew * 3 < times.duration);
        let start = Instant::now();
        let seen = Seen::again(None, "1", start);
        let later = |seconds| start + Duration::from_secs(seconds);
        assert!(!seen.has_run_out(10, &times, later(9)));
        assert!(seen.has_run_out(10, &times, later(10)));
        assert!(
            seen.has_run_out(3600, &times, later(10)),
            "nobody holds it for longer than we would"
        );
        assert!(seen.has_run_out(4, &times, later(4)));
        // A renewal begins the time anew.
        let renewed = Seen::again(Some(&seen), "2", later(9));
        assert!(!renewed.has_run_out(10, &times, later(18)));
        assert!(Seen::again(Some(&seen), "1", later(9)).has_run_out(10, &times, later(10)));
    }
}
