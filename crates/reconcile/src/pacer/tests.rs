use proptest::prelude::*;

use super::*;

const CONFIG: PacerConfig = PacerConfig {
    min_sync_period: ms(10),
    sync_period: ms(5_000),
    backoff_min: ms(100),
    backoff_max: ms(1_600),
    backoff_change_max: ms(400),
};

const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// A pacer and the time, in milliseconds since the start.
struct Clocked {
    pacer: Pacer,
    start: Instant,
}

impl Clocked {
    fn new() -> Self {
        Self { pacer: Pacer::new(CONFIG), start: Instant::now() }
    }

    fn at(&self, t: u64) -> Instant {
        self.start + ms(t)
    }

    fn next(&self, t: u64) -> Next {
        self.pacer.next(self.at(t))
    }

    /// Begins what is due at `t` and ends it well at `end`.
    fn succeed(&mut self, t: u64, end: u64) -> SyncKind {
        let kind = self.begin(t);
        self.pacer.succeeded(self.at(end));
        kind
    }

    fn fail(&mut self, t: u64, can_retry: bool) -> SyncKind {
        let kind = self.begin(t);
        self.pacer.failed(self.at(t), can_retry, 1.0);
        kind
    }

    fn begin(&mut self, t: u64) -> SyncKind {
        let Next::Sync(kind) = self.next(t) else { panic!("at {t}: {:?}", self.next(t)) };
        self.pacer.begin(kind);
        kind
    }

    /// A pacer whose first sync ended at 0.
    fn settled() -> Self {
        let mut clocked = Self::new();
        clocked.pacer.notify();
        clocked.succeed(0, 0);
        clocked
    }
}

#[test]
fn nothing_happens_before_the_first_notification() {
    assert_eq!(Clocked::new().next(1_000_000), Next::Idle);
}

#[test]
fn the_first_sync_is_full_even_if_it_has_to_be_repeated() {
    let mut clocked = Clocked::new();
    clocked.pacer.notify();
    assert_eq!(clocked.fail(0, true), SyncKind::Full);
    assert_eq!(clocked.fail(100, true), SyncKind::Full);
}

#[test]
fn a_change_after_a_quiet_time_acts_at_once() {
    let mut clocked = Clocked::settled();
    clocked.pacer.notify();
    assert_eq!(clocked.next(500), Next::Sync(SyncKind::Changes));
}

#[test]
fn changes_soon_after_a_sync_wait_and_act_together() {
    let mut clocked = Clocked::settled();
    clocked.pacer.notify();
    assert_eq!(clocked.next(3), Next::At(clocked.at(10)));
    clocked.pacer.notify();
    assert_eq!(clocked.next(7), Next::At(clocked.at(10)), "more changes do not wait longer");
    clocked.succeed(10, 12);
    assert_eq!(clocked.next(13), Next::At(clocked.at(5_000)), "both are done");
}

#[test]
fn a_change_during_a_sync_is_for_the_next_one() {
    let mut clocked = Clocked::settled();
    clocked.pacer.notify();
    clocked.begin(100);
    assert_eq!(clocked.next(101), Next::Running);
    clocked.pacer.notify();
    clocked.pacer.succeeded(clocked.at(150));
    assert_eq!(clocked.next(150), Next::At(clocked.at(160)));
}

#[test]
fn the_most_thorough_request_wins() {
    let mut clocked = Clocked::settled();
    clocked.pacer.request(SyncKind::Drift);
    clocked.pacer.notify();
    assert_eq!(clocked.next(100), Next::Sync(SyncKind::Drift));
    clocked.pacer.request(SyncKind::Full);
    assert_eq!(clocked.next(100), Next::Sync(SyncKind::Full));
}

#[test]
fn a_full_sync_comes_periodically_whatever_else_happens() {
    let mut clocked = Clocked::settled();
    clocked.pacer.notify();
    clocked.succeed(4_000, 4_000);
    assert_eq!(clocked.next(4_500), Next::At(clocked.at(5_000)));
    assert_eq!(clocked.succeed(5_000, 5_100), SyncKind::Full);
    assert_eq!(clocked.next(5_200), Next::At(clocked.at(10_100)));
}

#[test]
fn a_full_sync_that_falls_due_during_a_failing_one_is_not_put_off() {
    let mut clocked = Clocked::settled();
    clocked.pacer.notify();
    clocked.begin(4_999);
    clocked.pacer.failed(clocked.at(5_001), false, 1.0);
    assert_eq!(clocked.next(5_200), Next::Sync(SyncKind::Full));
}

#[test]
fn failures_wait_ever_longer_up_to_a_bound() {
    let mut clocked = Clocked::settled();
    clocked.pacer.request(SyncKind::Drift);
    let mut t = 100;
    for wait in [100, 200, 400, 800, 1_600, 1_600] {
        clocked.fail(t, true);
        assert_eq!(clocked.next(t), Next::At(clocked.at(t + wait)));
        t += wait;
    }
    clocked.succeed(t, t);
    assert_eq!(clocked.pacer.failures(), 0);
    clocked.pacer.notify();
    assert_eq!(clocked.next(t + 50), Next::Sync(SyncKind::Changes));
}

#[test]
fn what_failed_is_tried_again_as_thoroughly() {
    let mut clocked = Clocked::settled();
    clocked.pacer.request(SyncKind::Drift);
    clocked.fail(100, true);
    clocked.pacer.notify();
    assert_eq!(clocked.next(200), Next::Sync(SyncKind::Drift));
    clocked.begin(200);
    clocked.pacer.escalate(SyncKind::Full);
    clocked.pacer.failed(clocked.at(200), true, 1.0);
    assert_eq!(clocked.next(1_000), Next::Sync(SyncKind::Full));
}

#[test]
fn a_change_shortens_the_wait_after_failures() {
    let mut clocked = Clocked::settled();
    clocked.pacer.notify();
    for t in [100, 200, 400, 800, 1_600] {
        clocked.fail(t, true);
    }
    assert_eq!(clocked.next(1_600), Next::At(clocked.at(3_200)));
    clocked.pacer.notify();
    assert_eq!(clocked.next(1_600), Next::At(clocked.at(2_000)));
}

#[test]
fn where_retrying_cannot_help_only_a_change_or_the_period_tries() {
    let mut clocked = Clocked::settled();
    clocked.pacer.request(SyncKind::Drift);
    clocked.fail(100, false);
    assert_eq!(clocked.next(200), Next::At(clocked.at(5_000)));
    clocked.pacer.notify();
    assert_eq!(clocked.next(200), Next::Sync(SyncKind::Drift), "with what was left undone");
    clocked.fail(200, false);
    assert_eq!(clocked.fail(5_000, false), SyncKind::Full);
    assert_eq!(clocked.next(5_000), Next::At(clocked.at(10_000)));
}

#[test]
fn jitter_spreads_the_wait_over_its_upper_half() {
    for (jitter, wait) in [(0.0, 50), (0.5, 75), (1.0, 100), (7.0, 100), (f64::NAN, 100)] {
        let mut clocked = Clocked::settled();
        clocked.pacer.notify();
        clocked.begin(1_000);
        clocked.pacer.failed(clocked.at(1_000), true, jitter);
        assert_eq!(clocked.next(1_000), Next::At(clocked.at(1_000 + wait)), "{jitter}");
    }
}

#[test]
fn a_new_least_period_holds_at_once() {
    let mut clocked = Clocked::settled();
    clocked.pacer.notify();
    clocked.pacer.set_min_sync_period(ms(1_000));
    assert_eq!(clocked.next(20), Next::At(clocked.at(1_000)));
    clocked.pacer.set_min_sync_period(Duration::MAX);
    assert_eq!(clocked.next(4_000), Next::At(clocked.at(0) + Duration::from_hours(87_600)));
}

/// How a simulated sync ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Well,
    Retry,
    Hopeless,
}

/// A simulated sync: how long it takes, how it ends, and the jitter if it fails.
fn sync() -> impl Strategy<Value = (u64, End, f64)> {
    let end = prop_oneof![3 => Just(End::Well), 2 => Just(End::Retry), 1 => Just(End::Hopeless)];
    (0..40_u64, end, 0.0..1.0_f64)
}

/// A request: how long after the one before, and what for.
fn request() -> impl Strategy<Value = (u64, SyncKind)> {
    let kind = prop_oneof![
        8 => Just(SyncKind::Changes),
        1 => Just(SyncKind::Drift),
        1 => Just(SyncKind::Full),
    ];
    (prop_oneof![6 => 0..15_u64, 2 => 0..300_u64, 1 => 0..8_000_u64], kind)
}

/// One simulated sync as it went.
#[derive(Debug)]
struct Ran {
    start: u64,
    end: u64,
    how: End,
    kind: SyncKind,
}

/// Runs a pacer through `requests`, and on until `until` after the last of them.
fn simulate(
    requests: &[(u64, SyncKind)],
    syncs: &[(u64, End, f64)],
    until: u64,
) -> (Vec<Ran>, Vec<(u64, SyncKind)>) {
    let mut clocked = Clocked::new();
    let mut sent = Vec::new();
    let mut at = 0;
    for (gap, kind) in requests {
        at += gap;
        sent.push((at, *kind));
    }
    let horizon = at + until;
    let mut waiting = sent.iter().copied().peekable();
    let mut scripted = syncs.iter().copied();
    let (mut ran, mut now) = (Vec::new(), 0);
    while now <= horizon {
        while let Some((_, kind)) = waiting.next_if(|(at, _)| *at <= now) {
            clocked.pacer.request(kind);
        }
        match clocked.next(now) {
            Next::Sync(kind) => {
                let (duration, how, jitter) = scripted.next().unwrap_or((5, End::Well, 0.0));
                clocked.pacer.begin(kind);
                let end = now + duration;
                while let Some((_, kind)) = waiting.next_if(|(at, _)| *at <= end) {
                    clocked.pacer.request(kind);
                }
                match how {
                    End::Well => clocked.pacer.succeeded(clocked.at(end)),
                    _ => clocked.pacer.failed(clocked.at(end), how == End::Retry, jitter),
                }
                ran.push(Ran { start: now, end, how, kind });
                now = end;
            }
            Next::At(due) => {
                assert!(due > clocked.at(now), "a wake-up that has passed");
                // Jitter makes fractions; a real clock is late too.
                let due = (due - clocked.start).as_nanos().div_ceil(1_000_000) as u64;
                now = waiting.peek().map_or(due, |(at, _)| due.min(*at));
            }
            Next::Idle => match waiting.peek() {
                Some((at, _)) => now = *at,
                None => break,
            },
            Next::Running => panic!("nothing runs"),
        }
    }
    (ran, sent)
}

/// The longest that a wait can be after the failures in a row that end at `index`.
fn longest_backoff(ran: &[Ran], index: usize) -> u64 {
    let in_a_row = ran[..=index].iter().rev().take_while(|sync| sync.how != End::Well).count();
    100_u64.saturating_mul(1 << (in_a_row - 1).min(20)).min(1_600)
}

proptest! {
    #[test]
    fn syncs_keep_their_distance(
        requests in proptest::collection::vec(request(), 1..60),
        syncs in proptest::collection::vec(sync(), 0..40),
    ) {
        let (ran, _) = simulate(&requests, &syncs, 12_000);
        for (index, pair) in ran.windows(2).enumerate() {
            let gap = pair[1].start - pair[0].end;
            let least = match pair[0].how {
                End::Well => 10,
                // Half of the back-off at least, or the bound for changes.
                _ => (longest_backoff(&ran, index) / 2).min(400),
            };
            prop_assert!(gap >= least, "{:?} after {:?}", pair[1], pair[0]);
        }
    }

    #[test]
    fn no_request_starves(
        requests in proptest::collection::vec(request(), 1..60),
        syncs in proptest::collection::vec(sync(), 0..40),
    ) {
        let (ran, sent) = simulate(&requests, &syncs, 12_000);
        for (at, kind) in sent {
            // The sync that was running when it came does not count.
            let served = ran.iter().find(|sync| sync.start >= at);
            let served = served.expect("each request is followed by a sync");
            prop_assert!(served.kind >= kind, "{:?} for {:?}", served, kind);
            let ready = ran.iter().take_while(|sync| sync.start < at).last();
            let latest = match ready {
                None => at,
                Some(Ran { end, how: End::Well, .. }) => at.max(end + 10),
                Some(Ran { end, .. }) => at.max(end + 400),
            };
            prop_assert!(served.start <= latest, "came at {}, served by {:?}", at, served);
        }
    }

    #[test]
    fn what_failed_and_can_be_retried_succeeds_in_the_end(
        requests in proptest::collection::vec(request(), 1..40),
        syncs in proptest::collection::vec(sync(), 0..40),
    ) {
        // Long enough for every scripted failure to be waited for.
        let (ran, _) = simulate(&requests, &syncs, 300_000);
        prop_assert_eq!(ran[0].kind, SyncKind::Full);
        prop_assert_eq!(ran.last().map(|sync| sync.how), Some(End::Well));
        for (index, sync) in ran.iter().enumerate() {
            let Some(next) = ran.get(index + 1) else { break };
            if sync.how != End::Well {
                prop_assert!(next.kind >= sync.kind, "nothing is forgotten");
            }
            if sync.how == End::Retry {
                prop_assert!(next.start <= sync.end + longest_backoff(&ran, index).max(10));
            }
        }
    }

    #[test]
    fn full_syncs_come_periodically(
        requests in proptest::collection::vec(request(), 1..60),
        syncs in proptest::collection::vec(sync(), 0..40),
    ) {
        let (ran, _) = simulate(&requests, &syncs, 12_000);
        let full: Vec<_> = ran.iter().filter(|sync| sync.kind == SyncKind::Full).collect();
        for pair in full.windows(2) {
            // A running sync and a back-off may delay it.
            prop_assert!(pair[1].start <= pair[0].end + 5_000 + 40 + 1_600, "{:?}", pair);
        }
    }
}
