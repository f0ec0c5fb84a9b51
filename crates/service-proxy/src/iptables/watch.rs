//! Noticing that somebody else has changed rules.
//!
//! A thread looks, several times a second, at something that is cheap to read and changes with every
//! change of rules. iptables on nf_tables has a number that each transaction, of anybody, makes greater
//! by one; we know how many of them are ours, and the kernel tells which chains the others touched. The older tables tell only how big they are, so they are
//! read in full: when somebody else has used the [lock](super::lock) of their programs, and once in a
//! while anyway, as often as that is cheap, for whoever changes them without it.
//!
//! Either only raises a suspicion: what is really wrong, and whether it is ours, a sync of kind
//! [`Drift`](telaio_reconcile::SyncKind::Drift) finds out. Where reading in full has shown that only some
//! chains changed, that sync need look at nothing else. It has its cost too, so on a machine where
//! others change rules all the time it is made to take at most a tenth of the time.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use telaio_reconcile::SyncHandle;

use super::lock::{Bell, LockUses};

mod probes;

pub(crate) use probes::{ChainAt, Probes};
use probes::{ContentProbe, Probe, Reading};

/// How often the thread looks.
const LOOK_PERIOD: Duration = Duration::from_millis(100);
/// How often it looks thoroughly at most, where nobody used the lock.
pub(crate) const THOROUGH_PERIOD_MIN: Duration = Duration::from_millis(500);
/// Then looking thoroughly takes at most one part in so many of the time.
const THOROUGH_SHARE: u32 = 20;
/// After a thorough look this many times what it took pass before a use of the lock causes the next, so
/// that a storm of uses costs at most a quarter of the time.
const LOCK_REST: u32 = 3;
/// But no more than this: also the last change of a storm has to be looked at within a second. Where a
/// look takes longer than this, it rests as long as it took, and looks take half of the time.
const LOCK_REST_MAX: Duration = Duration::from_millis(800);
/// Comparing all rules because of a suspicion takes at most one part in so many of the time.
const COMPARE_SHARE: u32 = 10;
/// But so many comparisons may follow each other at once: who breaks rules seldom does it only once.
const COMPARE_BURST: u32 = 8;
/// How long after a change a program may still hold the lock: what was read so shortly before a use
/// ended may have its change in it.
const LOCK_HELD_MAX: Duration = Duration::from_millis(500);

/// How a sync ended.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SyncEnd {
    pub(crate) succeeded: bool,
    /// It has compared all rules.
    pub(crate) compared: bool,
    /// How many transactions it has made.
    pub(crate) commits: u64,
    pub(crate) took: Duration,
}

/// What the sync loop and the watching thread tell each other.
pub(crate) struct Watch {
    state: Mutex<WatchState>,
    stopped: Condvar,
}

struct WatchState {
    cheap: Option<Box<dyn Probe>>,
    lock: Option<Box<dyn LockUses>>,
    /// Somebody else has let go of the lock, or tables have another size, since the rules were last read.
    must_read: bool,
    /// What stands in the tables can be read, to tell which chains changed.
    can_read: bool,
    /// How often the lock was let go since the sync that runs began.
    uses_in_sync: u64,
    /// What it was after the last sync.
    seen: Option<u64>,
    /// What it was when the sync that runs began.
    at_begin: Option<u64>,
    /// Counts beginnings and ends of syncs.
    epoch: u64,
    /// Counts syncs after which other rules than before may be in the kernel.
    content: u64,
    syncing: bool,
    /// Rules are in the kernel that somebody could change.
    live: bool,
    suspicion: Suspicion,
    /// A comparison was asked for and has not come.
    asked: bool,
    compared: Option<Instant>,
    compare_cost: Duration,
    /// How many comparisons may still come at once.
    burst_left: u32,
    stop: bool,
}

impl Watch {
    pub(crate) fn new(cheap: Option<Box<dyn Probe>>, lock: Option<Box<dyn LockUses>>) -> Self {
        let state = WatchState {
            cheap,
            lock,
            must_read: false,
            can_read: false,
            uses_in_sync: 0,
            seen: None,
            at_begin: None,
            epoch: 0,
            content: 0,
            syncing: false,
            live: false,
            suspicion: Suspicion::None,
            asked: false,
            compared: None,
            compare_cost: Duration::ZERO,
            burst_left: COMPARE_BURST,
            stop: false,
        };
        Self { state: Mutex::new(state), stopped: Condvar::new() }
    }

    /// A sync begins.
    pub(crate) fn begin(&self) {
        let mut state = self.state.lock();
        state.look();
        state.look_at_lock();
        // What our own change does hides what somebody else's did.
        let hidden = std::mem::take(&mut state.must_read);
        state.suspect_if(hidden);
        state.at_begin = state.read();
        if let Some(cheap) = &mut state.cheap {
            cheap.rest();
        }
        state.uses_in_sync = 0;
        state.syncing = true;
        state.epoch += 1;
    }

    /// It has ended.
    pub(crate) fn end(&self, end: SyncEnd) {
        let mut state = self.state.lock();
        let caused = end.compared && state.suspicion != Suspicion::None;
        state.end(end);
        state.content += 1;
        // Who changes rules may do it again between our reading and our writing, and what we write
        // hides it. Those that count tell; else only a look that finds nothing to do is the last.
        let told = state.counts();
        state.suspect_if(caused && end.succeeded && end.commits > 0 && !told);
    }

    /// It has ended, and has done no more than to write anew the chains that were suspected: the
    /// rules should be what they were before somebody changed them.
    pub(crate) fn end_as_before(&self, end: SyncEnd) {
        let mut state = self.state.lock();
        state.end(end);
        if !end.succeeded {
            state.suspicion = Suspicion::Everything;
        } else if !state.counts() {
            // Looked at, that is; there is something from before to compare with.
            state.suspicion = Suspicion::None;
            state.must_read = true;
        }
    }

    /// The chains that somebody else has changed, if it is known to be just those.
    pub(crate) fn suspected_chains(&self) -> Option<BTreeSet<ChainAt>> {
        match &self.state.lock().suspicion {
            Suspicion::Chains(chains) => Some(chains.clone()),
            Suspicion::None | Suspicion::Everything => None,
        }
    }

    /// Starts the thread that looks.
    pub(crate) fn start(
        self: &Arc<Self>,
        handle: SyncHandle,
        thorough: Option<Thorough>,
    ) -> io::Result<Watcher> {
        let watch = Arc::clone(self);
        let mut thorough = thorough;
        let mut state = self.state.lock();
        state.can_read = thorough.is_some();
        let bell = state.lock.as_ref().and_then(|lock| lock.bell());
        drop(state);
        let thread =
            std::thread::Builder::new().name("telaio-drift".to_owned()).spawn(move || {
                while watch.wait(bell.as_ref()) {
                    if watch.should_compare(thorough.as_mut()) {
                        handle.drift_suspected();
                    }
                }
            })?;
        Ok(Watcher { watch: Arc::clone(self), thread: Some(thread) })
    }

    /// Waits for the next look, or until the lock is used; `false` when it is time to stop.
    fn wait(&self, bell: Option<&Bell>) -> bool {
        if let Some(bell) = bell {
            bell.wait(LOOK_PERIOD);
            return !self.state.lock().stop;
        }
        let mut state = self.state.lock();
        if !state.stop {
            self.stopped.wait_for(&mut state, LOOK_PERIOD);
        }
        !state.stop
    }

    fn should_compare(&self, thorough: Option<&mut Thorough>) -> bool {
        let mut state = self.state.lock();
        // In any case: uses right after each other look like one, unless they are counted at once.
        state.look_at_lock();
        if state.syncing || !state.live {
            return false;
        }
        state.look();
        let (epoch, content) = (state.epoch, state.content);
        let known = thorough.as_ref().is_some_and(|it| it.knew(content));
        if state.must_read && !known {
            // There is nothing from before it to compare with.
            state.must_read = false;
            state.suspicion = Suspicion::Everything;
        } else if let Some(thorough) = thorough
            && thorough.is_due(state.must_read)
        {
            // A use that comes while we read may be too late for what we read.
            let because_of_lock = std::mem::take(&mut state.must_read);
            // It takes its time, and no sync should wait for it.
            drop(state);
            let found = thorough.look(content, because_of_lock);
            state = self.state.lock();
            if state.epoch == epoch {
                state.suspicion.add(found);
            }
        }
        let rested = state
            .compared
            .is_none_or(|at| at.elapsed() >= state.compare_cost.saturating_mul(COMPARE_SHARE));
        let may = rested || state.burst_left > 0;
        let suspicious = state.suspicion != Suspicion::None;
        let ask = suspicious && !state.asked && may && !state.syncing;
        if rested {
            state.burst_left = COMPARE_BURST;
        } else if ask {
            state.burst_left -= 1;
        }
        state.asked |= ask;
        ask
    }
}

impl WatchState {
    fn read(&mut self) -> Option<u64> {
        self.cheap.as_mut()?.read()
    }

    fn suspect_if(&mut self, is_so: bool) {
        if is_so {
            self.suspicion = Suspicion::Everything;
        }
    }

    fn lock_uses(&mut self) -> u64 {
        self.lock.as_mut().map_or(0, |lock| lock.take())
    }

    fn look_at_lock(&mut self) {
        let uses = self.lock_uses();
        if self.syncing {
            self.uses_in_sync += uses;
        } else {
            self.must_read |= self.live && uses > 0;
        }
    }

    fn counts(&self) -> bool {
        self.cheap.as_ref().is_some_and(|probe| probe.counts_transactions())
    }

    fn end(&mut self, end: SyncEnd) {
        if let Some(cheap) = &mut self.cheap {
            // Before it is read: what comes in between is told twice, not never.
            cheap.listen();
        }
        let now = self.read();
        if end.compared {
            self.asked = false;
            self.compared = Some(Instant::now());
            self.compare_cost = end.took;
            if end.succeeded {
                self.suspicion = Suspicion::None;
            }
        }
        let predicted = match self.at_begin {
            Some(before) if self.counts() => Some(before + end.commits),
            before if end.commits == 0 => before,
            _ => now,
        };
        // Somebody else was at it meanwhile.
        self.suspect_if(end.succeeded && now != predicted);
        // Each of our transactions takes the lock once. We have waited for the programs' ends, so
        // whatever they did is told by now.
        self.look_at_lock();
        self.suspect_if(end.succeeded && self.uses_in_sync > end.commits);
        self.seen = now;
        self.live |= end.succeeded;
        self.syncing = false;
        self.epoch += 1;
    }

    fn look(&mut self) {
        let now = self.read();
        if self.seen.is_none() || now == self.seen {
            return;
        }
        let transactions = now.zip(self.seen).and_then(|(now, seen)| now.checked_sub(seen));
        let cheap = self.cheap.as_mut().zip(transactions);
        match cheap.and_then(|(cheap, transactions)| cheap.touched_chains(transactions)) {
            Some(chains) => {
                self.seen = now;
                if !chains.is_empty() {
                    self.suspicion.add(Suspicion::Chains(chains));
                }
            }
            None if self.can_read => {
                self.seen = now;
                self.must_read = true;
            }
            None => self.suspicion = Suspicion::Everything,
        }
    }
}

/// What may be wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Suspicion {
    None,
    /// What stands in these chains.
    Chains(BTreeSet<ChainAt>),
    Everything,
}

impl Suspicion {
    fn add(&mut self, other: Self) {
        match (&mut *self, other) {
            (Self::Everything, _) | (_, Self::None) => {}
            (Self::Chains(chains), Self::Chains(more)) => chains.extend(more),
            (_, other) => *self = other,
        }
    }
}

/// What was read first after a sync that may have changed it.
struct Seen {
    content: u64,
    at: Instant,
    /// `None`: it could not be read.
    numbers: Option<Vec<u64>>,
}

/// The probe that costs something.
pub(crate) struct Thorough {
    probe: Box<dyn ContentProbe>,
    seen: Option<Seen>,
    /// When it is used anyway.
    due: Instant,
    /// When it may be used because the lock was.
    due_for_lock: Instant,
    period_min: Duration,
}

impl Thorough {
    /// A probe that, where nobody uses the lock, is used no more often than this.
    pub(crate) fn new(probe: Box<dyn ContentProbe>, period_min: Duration) -> Self {
        let now = Instant::now();
        Self { probe, seen: None, due: now, due_for_lock: now, period_min }
    }

    /// It has read this content, and before whoever uses the lock changed anything.
    fn knew(&self, content: u64) -> bool {
        let settled = |it: &Seen| it.content == content && it.at.elapsed() >= LOCK_HELD_MAX;
        self.seen.as_ref().is_some_and(settled)
    }

    fn is_due(&self, must_read: bool) -> bool {
        let now = Instant::now();
        now >= self.due || (must_read && now >= self.due_for_lock)
    }

    /// What is not as it was when this content was read first; the first time nothing is.
    fn look(&mut self, content: u64, because_of_lock: bool) -> Suspicion {
        let started = Instant::now();
        let before = self.seen.as_ref().filter(|it| it.content == content);
        let numbers_before = before.and_then(|it| it.numbers.as_deref());
        let now = self.probe.read(numbers_before);
        let ended = Instant::now();
        let cost = ended - started;
        self.due = ended + (cost * THOROUGH_SHARE).max(self.period_min);
        if because_of_lock {
            self.due_for_lock = ended + lock_rest(cost);
        }
        if before.is_none() {
            let numbers = now.map(|now| now.numbers);
            self.seen = Some(Seen { content, at: ended, numbers });
            return Suspicion::None;
        }
        match now {
            now if now.as_ref().map(|it| it.numbers.as_slice()) == numbers_before => {
                Suspicion::None
            }
            Some(Reading { changed, .. }) if !changed.is_empty() => Suspicion::Chains(changed),
            _ => Suspicion::Everything,
        }
    }
}

/// How long no use of the lock causes a look, after one that took this long.
fn lock_rest(cost: Duration) -> Duration {
    (cost * LOCK_REST).min(LOCK_REST_MAX).max(cost)
}

/// The thread that looks; it ends with this value.
pub(crate) struct Watcher {
    watch: Arc<Watch>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.watch.state.lock().stop = true;
        self.watch.stopped.notify_all();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread that looks for drift panicked");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use telaio_model::IpFamily;

    use super::*;
    use crate::iptables::names::Table;

    struct Number(Arc<AtomicU64>, bool);

    impl Probe for Number {
        fn read(&mut self) -> Option<u64> {
            Some(self.0.load(Ordering::SeqCst))
        }

        fn counts_transactions(&self) -> bool {
            self.1
        }
    }

    const SYNC: SyncEnd =
        SyncEnd { succeeded: true, compared: false, commits: 1, took: Duration::ZERO };

    fn watch(counts: bool) -> (Watch, Arc<AtomicU64>) {
        let number = Arc::new(AtomicU64::new(10));
        (Watch::new(Some(Box::new(Number(Arc::clone(&number), counts))), None), number)
    }

    /// Two chains, of which the second changes.
    struct TwoChains(Arc<AtomicU64>);

    impl ContentProbe for TwoChains {
        fn read(&mut self, before: Option<&[u64]>) -> Option<Reading> {
            let numbers = vec![7, self.0.load(Ordering::SeqCst)];
            let differs = before.is_some_and(|before| before != numbers);
            Some(Reading { numbers, changed: differs.then(second_chain).into_iter().collect() })
        }
    }

    fn second_chain() -> ChainAt {
        ChainAt { family: IpFamily::V4, table: Table::Nat, chain: "TELAIO-SEP-X".to_owned() }
    }

    struct Uses(Arc<AtomicU64>);

    impl LockUses for Uses {
        fn take(&mut self) -> u64 {
            self.0.swap(0, Ordering::SeqCst)
        }
    }

    /// A watch over older tables: the uses of the lock, what stands in the tables, and how that is read.
    fn legacy() -> (Watch, Arc<AtomicU64>, Arc<AtomicU64>, Thorough) {
        let (size, uses, content) =
            (Arc::default(), Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(1)));
        let watch = Watch::new(
            Some(Box::new(Number(size, false))),
            Some(Box::new(Uses(Arc::clone(&uses)))),
        );
        // Without the lock it would be used once in a lifetime.
        let probe = Box::new(TwoChains(Arc::clone(&content)));
        let thorough = Thorough::new(probe, Duration::from_hours(1));
        (watch, uses, content, thorough)
    }

    fn sync(watch: &Watch, end: SyncEnd) {
        watch.begin();
        watch.end(end);
    }

    const COMPARED: SyncEnd = SyncEnd { compared: true, commits: 0, ..SYNC };

    /// Lets it read what is there after a sync, a while ago.
    fn settle(watch: &Watch, thorough: &mut Thorough) {
        thorough.due = Instant::now();
        assert!(!watch.should_compare(Some(thorough)));
        let seen = thorough.seen.as_mut().unwrap();
        seen.at = seen.at.checked_sub(LOCK_HELD_MAX).unwrap();
    }

    #[test]
    fn a_use_of_the_lock_has_the_content_looked_at_and_only_changed_chains_are_suspected() {
        let (watch, uses, content, mut thorough) = legacy();
        sync(&watch, SYNC);
        settle(&watch, &mut thorough);
        content.store(2, Ordering::SeqCst);
        assert!(!watch.should_compare(Some(&mut thorough)), "nobody told");
        uses.store(1, Ordering::SeqCst);
        assert!(watch.should_compare(Some(&mut thorough)));
        watch.begin();
        assert_eq!(watch.suspected_chains(), Some(BTreeSet::from([second_chain()])));
        content.store(1, Ordering::SeqCst);
        watch.end_as_before(COMPARED);
        assert_eq!(watch.suspected_chains(), None);
        // What was there before is known still, and that it is there again is looked at.
        thorough.due_for_lock = Instant::now();
        assert!(!watch.should_compare(Some(&mut thorough)));
        content.store(3, Ordering::SeqCst);
        uses.store(1, Ordering::SeqCst);
        thorough.due_for_lock = Instant::now();
        assert!(watch.should_compare(Some(&mut thorough)), "broken again");
        watch.begin();
        content.store(1, Ordering::SeqCst);
        watch.end_as_before(COMPARED);
        // Somebody in another namespace.
        uses.store(1, Ordering::SeqCst);
        thorough.due_for_lock = Instant::now();
        assert!(!watch.should_compare(Some(&mut thorough)));
    }

    #[test]
    fn a_use_within_the_rest_after_a_look_is_looked_at_when_the_rest_is_over() {
        let (watch, uses, content, mut thorough) = legacy();
        sync(&watch, SYNC);
        settle(&watch, &mut thorough);
        thorough.due_for_lock = Instant::now() + Duration::from_hours(1);
        content.store(2, Ordering::SeqCst);
        uses.store(1, Ordering::SeqCst);
        assert!(!watch.should_compare(Some(&mut thorough)), "it rests");
        thorough.due_for_lock = Instant::now();
        assert!(watch.should_compare(Some(&mut thorough)), "the last change of a storm");
    }

    #[test]
    fn a_use_that_nothing_from_before_can_be_compared_with_makes_everything_suspicious() {
        let (watch, uses, _, mut thorough) = legacy();
        sync(&watch, SYNC);
        uses.store(1, Ordering::SeqCst);
        assert!(watch.should_compare(Some(&mut thorough)), "before the first look");
        sync(&watch, COMPARED);
        thorough.due = Instant::now();
        assert!(!watch.should_compare(Some(&mut thorough)));
        uses.store(1, Ordering::SeqCst);
        assert!(watch.should_compare(Some(&mut thorough)), "what it read may be the change");
        sync(&watch, COMPARED);
        settle(&watch, &mut thorough);
        // Used, and before anybody looked a sync of ours begins.
        uses.store(1, Ordering::SeqCst);
        sync(&watch, SYNC);
        assert!(watch.should_compare(Some(&mut thorough)), "before a sync of ours");
        assert_eq!(watch.suspected_chains(), None, "not only some chains");
    }

    #[test]
    fn after_a_repair_everything_is_compared_until_there_is_nothing_to_do() {
        let (watch, _, content, mut thorough) = legacy();
        sync(&watch, SYNC);
        settle(&watch, &mut thorough);
        content.store(2, Ordering::SeqCst);
        thorough.due = Instant::now();
        assert!(watch.should_compare(Some(&mut thorough)));
        sync(&watch, SyncEnd { commits: 1, ..COMPARED });
        assert!(watch.should_compare(None), "somebody may have been faster than we");
        sync(&watch, COMPARED);
        assert!(!watch.should_compare(None));
    }

    #[test]
    fn a_size_that_changes_in_a_sync_without_changes_of_ours_is_suspicious() {
        let (watch, number) = watch(false);
        sync(&watch, SYNC);
        watch.begin();
        number.store(3, Ordering::SeqCst);
        watch.end(COMPARED);
        assert!(watch.should_compare(None));
    }

    #[test]
    fn our_own_uses_of_the_lock_are_not_suspicious_and_more_than_those_are() {
        let (watch, uses, _, mut thorough) = legacy();
        for (used, suspicious) in [(2, false), (3, true)] {
            watch.begin();
            uses.store(used, Ordering::SeqCst);
            watch.end(SyncEnd { commits: 2, ..SYNC });
            assert_eq!(watch.should_compare(Some(&mut thorough)), suspicious, "{used}");
        }
    }

    #[test]
    fn looks_because_of_the_lock_take_a_bounded_share_and_come_within_a_second() {
        for cost_ms in [1, 50, 200, 300, 700, 5000] {
            let cost = Duration::from_millis(cost_ms);
            let rest = lock_rest(cost);
            assert!(rest >= cost, "at most half of the time");
            assert!(rest >= cost * 3 || rest >= LOCK_REST_MAX, "a quarter, if it can be");
            let late = rest + LOOK_PERIOD;
            assert!(late < Duration::from_secs(1) || cost > LOCK_REST_MAX, "{late:?}");
        }
    }

    #[test]
    fn our_own_transactions_are_not_suspicious_and_anothers_is() {
        let (watch, number) = watch(true);
        watch.begin();
        number.store(11, Ordering::SeqCst);
        watch.end(SYNC);
        assert!(!watch.should_compare(None));
        number.store(12, Ordering::SeqCst);
        assert!(watch.should_compare(None));
        // Asked once; the answer is what it waits for.
        assert!(!watch.should_compare(None));
        watch.begin();
        watch.end(SyncEnd { compared: true, commits: 0, ..SYNC });
        assert!(!watch.should_compare(None));
    }

    #[test]
    fn what_another_does_during_a_sync_is_suspicious() {
        let (watch, number) = watch(true);
        watch.begin();
        number.store(12, Ordering::SeqCst);
        watch.end(SYNC);
        assert!(watch.should_compare(None));
    }

    #[test]
    fn nothing_is_compared_before_the_first_sync_has_succeeded() {
        let (watch, number) = watch(false);
        number.store(1, Ordering::SeqCst);
        assert!(!watch.should_compare(None));
        watch.begin();
        watch.end(SyncEnd { succeeded: false, ..SYNC });
        number.store(2, Ordering::SeqCst);
        assert!(!watch.should_compare(None));
    }

    #[test]
    fn the_thorough_probe_tells_what_the_cheap_one_cannot() {
        let (watch, _) = watch(false);
        watch.begin();
        watch.end(SYNC);
        let content = Arc::new(AtomicU64::new(1));
        let probe = Box::new(TwoChains(Arc::clone(&content)));
        let mut thorough = Thorough::new(probe, THOROUGH_PERIOD_MIN);
        assert!(!watch.should_compare(Some(&mut thorough)));
        content.store(2, Ordering::SeqCst);
        thorough.due = Instant::now();
        assert!(watch.should_compare(Some(&mut thorough)));
    }
}
