//! Noticing that somebody else has changed rules.
//!
//! A thread looks, several times a second, at something that is cheap to read and changes with every
//! change of rules. iptables on nf_tables has a number that each transaction, of anybody, makes greater
//! by one; we know how many of them are ours. The older tables tell only how big they are, so they are
//! read in full: when somebody else has used the [lock](super::lock) of their programs, and once in a
//! while anyway, as often as that is cheap, for whoever changes them without it.
//!
//! Either only raises a suspicion: what is really wrong, and whether it is ours, a sync of kind
//! [`Drift`](telaio_reconcile::SyncKind::Drift) finds out. It has its cost too, so on a machine where
//! others change rules all the time it is made to take at most a tenth of the time.

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use telaio_netlink::nftables::Nftables;
use telaio_netlink::xtables::{self, table_fingerprint, table_info};
use telaio_reconcile::SyncHandle;

use super::lock::{LockFile, LockUses};
use super::names::Table;
use super::programs::{Flavor, Programs, legacy_family};
use super::proxier::Kernel;

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
const COMPARE_BURST: u32 = 5;

/// Something that is different after a change of rules.
pub(crate) trait Probe: Send {
    /// Reads it; `None` if it cannot be read.
    fn read(&mut self) -> Option<u64>;

    /// Whether a transaction makes it greater by one.
    fn counts_transactions(&self) -> bool {
        false
    }
}

/// The generation of nf_tables.
struct Generation(Nftables);

impl Probe for Generation {
    fn read(&mut self) -> Option<u64> {
        self.0.generation().ok().map(u64::from)
    }

    fn counts_transactions(&self) -> bool {
        true
    }
}

/// The sizes of the older tables.
struct Sizes(Vec<xtables::Family>);

impl Probe for Sizes {
    fn read(&mut self) -> Option<u64> {
        self.0.iter().flat_map(|family| Table::ALL.map(|table| (*family, table))).try_fold(
            0,
            |all, (family, table)| {
                let info = table_info(family, table.as_str())?;
                Some(mix(all, u64::from(info.num_entries) << 32 | u64::from(info.size)))
            },
        )
    }
}

/// The contents of the older tables.
struct Contents(Vec<xtables::Family>);

impl Probe for Contents {
    fn read(&mut self) -> Option<u64> {
        self.0
            .iter()
            .flat_map(|family| Table::ALL.map(|table| (*family, table)))
            .try_fold(0, |all, (family, table)| {
                Some(mix(all, table_fingerprint(family, table.as_str()).ok()?))
            })
    }
}

/// What `iptables-save` prints: where nothing better can be had.
struct Saved(Vec<Programs>);

impl Probe for Saved {
    fn read(&mut self) -> Option<u64> {
        self.0.iter_mut().try_fold(0, |all, programs| {
            let text = programs.save().ok()?;
            let rules = text.lines().filter(|line| line.starts_with('-'));
            Some(rules.fold(all, |all, rule| mix(all, hash(rule))))
        })
    }
}

fn mix(all: u64, more: u64) -> u64 {
    (all ^ more).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23)
}

fn hash(text: &str) -> u64 {
    telaio_model::hash::StableHash::new().text(text).finish()
}

/// What to look at: often, and once in a while.
pub(crate) struct Probes {
    pub(crate) cheap: Option<Box<dyn Probe>>,
    pub(crate) thorough: Option<Box<dyn Probe>>,
    /// Whose uses make the thorough one worth its cost.
    pub(crate) lock: Option<Box<dyn LockUses>>,
}

impl Probes {
    /// What serves best with these programs, which are all of one flavour.
    pub(crate) fn new(programs: &[Programs]) -> Self {
        let legacy = programs.first().is_some_and(|it| it.flavor() == Flavor::Legacy);
        if legacy {
            let families: Vec<xtables::Family> =
                programs.iter().map(|it| legacy_family(it.family())).collect();
            let (sizes, contents) = (Sizes(families.clone()), Contents(families));
            return Self {
                cheap: Some(Box::new(sizes)),
                thorough: Some(Box::new(contents)),
                lock: lock_of_programs(),
            };
        }
        match Nftables::open() {
            Ok(nftables) => {
                Self { cheap: Some(Box::new(Generation(nftables))), thorough: None, lock: None }
            }
            Err(error) => {
                tracing::warn!(%error, "cannot ask nf_tables for changes; reading all rules instead");
                let saved = Saved(programs.to_vec());
                Self { cheap: None, thorough: Some(Box::new(saved)), lock: None }
            }
        }
    }
}

fn lock_of_programs() -> Option<Box<dyn LockUses>> {
    match LockFile::of_programs() {
        Ok(lock) => Some(Box::new(lock)),
        Err(error) => {
            tracing::info!(%error, "cannot watch the lock of iptables; some changes by others are found later");
            None
        }
    }
}

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
    /// Somebody else has let go of the lock since the rules were last read.
    lock_used: bool,
    /// What it was after the last sync.
    seen: Option<u64>,
    /// What it was when the sync that runs began.
    at_begin: Option<u64>,
    /// Counts beginnings and ends of syncs.
    epoch: u64,
    syncing: bool,
    /// Rules are in the kernel that somebody could change.
    live: bool,
    suspicious: bool,
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
            lock_used: false,
            seen: None,
            at_begin: None,
            epoch: 0,
            syncing: false,
            live: false,
            suspicious: false,
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
        state.suspicious |= state.live && std::mem::take(&mut state.lock_used);
        state.at_begin = state.read();
        state.syncing = true;
        state.epoch += 1;
    }

    /// It has ended.
    pub(crate) fn end(&self, end: SyncEnd) {
        let mut state = self.state.lock();
        let now = state.read();
        if end.compared {
            state.asked = false;
            state.compared = Some(Instant::now());
            state.compare_cost = end.took;
            state.suspicious &= !end.succeeded;
        }
        let counts = state.cheap.as_ref().is_some_and(|probe| probe.counts_transactions());
        let predicted = state.at_begin.map(|before| before + end.commits);
        // Somebody else was at it meanwhile.
        state.suspicious |= counts && end.succeeded && now != predicted;
        // Each of our transactions takes the lock once. We have waited for the programs' ends, so
        // whatever they did is told by now.
        state.suspicious |= end.succeeded && state.lock_uses() > end.commits;
        state.seen = now;
        state.live |= end.succeeded;
        state.syncing = false;
        state.epoch += 1;
    }

    /// Starts the thread that looks.
    pub(crate) fn start(
        self: &Arc<Self>,
        handle: SyncHandle,
        thorough: Option<Thorough>,
    ) -> io::Result<Watcher> {
        let watch = Arc::clone(self);
        let mut thorough = thorough;
        let thread =
            std::thread::Builder::new().name("telaio-drift".to_owned()).spawn(move || {
                while watch.wait() {
                    if watch.should_compare(thorough.as_mut()) {
                        handle.drift_suspected();
                    }
                }
            })?;
        Ok(Watcher { watch: Arc::clone(self), thread: Some(thread) })
    }

    /// Waits for the next look; `false` when it is time to stop.
    fn wait(&self) -> bool {
        let mut state = self.state.lock();
        if !state.stop {
            self.stopped.wait_for(&mut state, LOOK_PERIOD);
        }
        !state.stop
    }

    fn should_compare(&self, thorough: Option<&mut Thorough>) -> bool {
        let mut state = self.state.lock();
        if state.syncing || !state.live {
            return false;
        }
        state.look();
        state.look_at_lock();
        let epoch = state.epoch;
        let known = thorough.as_ref().is_some_and(|it| it.knows(epoch));
        if state.lock_used && !known {
            // There is nothing from before it to compare with.
            state.lock_used = false;
            state.suspicious = true;
        } else if let Some(thorough) = thorough
            && thorough.is_due(state.lock_used)
        {
            // A use that comes while we read may be too late for what we read.
            state.lock_used = false;
            // It takes its time, and no sync should wait for it.
            drop(state);
            let differs = thorough.differs(epoch);
            state = self.state.lock();
            state.suspicious |= differs && state.epoch == epoch;
        }
        let rested = state
            .compared
            .is_none_or(|at| at.elapsed() >= state.compare_cost.saturating_mul(COMPARE_SHARE));
        let may = rested || state.burst_left > 0;
        let ask = state.suspicious && !state.asked && may && !state.syncing;
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

    fn lock_uses(&mut self) -> u64 {
        self.lock.as_mut().map_or(0, |lock| lock.take())
    }

    fn look_at_lock(&mut self) {
        self.lock_used |= self.lock_uses() > 0;
    }

    fn look(&mut self) {
        if self.seen.is_some() && self.read() != self.seen {
            self.suspicious = true;
        }
    }
}

/// The probe that costs something.
pub(crate) struct Thorough {
    probe: Box<dyn Probe>,
    /// What it read since the last sync, and which sync that was.
    seen: Option<(u64, Option<u64>)>,
    /// When it is used anyway.
    due: Instant,
    /// When it may be used because the lock was.
    due_for_lock: Instant,
    period_min: Duration,
}

impl Thorough {
    /// A probe that, where nobody uses the lock, is used no more often than this.
    pub(crate) fn new(probe: Box<dyn Probe>, period_min: Duration) -> Self {
        let now = Instant::now();
        Self { probe, seen: None, due: now, due_for_lock: now, period_min }
    }

    /// It has been used since the sync of this epoch.
    fn knows(&self, epoch: u64) -> bool {
        self.seen.is_some_and(|(of, _)| of == epoch)
    }

    fn is_due(&self, lock_used: bool) -> bool {
        let now = Instant::now();
        now >= self.due || (lock_used && now >= self.due_for_lock)
    }

    /// Whether it reads something else than before; the first time after a sync there is no before.
    fn differs(&mut self, epoch: u64) -> bool {
        let started = Instant::now();
        let now = self.probe.read();
        let cost = started.elapsed();
        let ended = Instant::now();
        self.due = ended + (cost * THOROUGH_SHARE).max(self.period_min);
        self.due_for_lock = ended + lock_rest(cost);
        match self.seen {
            Some((of, seen)) if of == epoch => seen != now,
            _ => {
                self.seen = Some((epoch, now));
                false
            }
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

    use super::*;

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
        let probe = Box::new(Number(Arc::clone(&content), false));
        let thorough = Thorough::new(probe, Duration::from_hours(1));
        (watch, uses, content, thorough)
    }

    fn sync(watch: &Watch, end: SyncEnd) {
        watch.begin();
        watch.end(end);
    }

    const COMPARED: SyncEnd = SyncEnd { compared: true, ..SYNC };

    #[test]
    fn a_use_of_the_lock_has_the_content_looked_at_and_only_a_change_compared() {
        let (watch, uses, content, mut thorough) = legacy();
        sync(&watch, SYNC);
        assert!(!watch.should_compare(Some(&mut thorough)), "now it knows what is there");
        content.store(2, Ordering::SeqCst);
        assert!(!watch.should_compare(Some(&mut thorough)), "nobody told");
        uses.store(1, Ordering::SeqCst);
        thorough.due_for_lock = Instant::now();
        assert!(watch.should_compare(Some(&mut thorough)));
        sync(&watch, COMPARED);
        thorough.due = Instant::now();
        assert!(!watch.should_compare(Some(&mut thorough)));
        // Somebody in another namespace.
        uses.store(1, Ordering::SeqCst);
        thorough.due_for_lock = Instant::now();
        assert!(!watch.should_compare(Some(&mut thorough)));
    }

    #[test]
    fn a_use_within_the_rest_after_a_look_is_looked_at_when_the_rest_is_over() {
        let (watch, uses, content, mut thorough) = legacy();
        sync(&watch, SYNC);
        assert!(!watch.should_compare(Some(&mut thorough)));
        thorough.due_for_lock = Instant::now() + Duration::from_hours(1);
        content.store(2, Ordering::SeqCst);
        uses.store(1, Ordering::SeqCst);
        assert!(!watch.should_compare(Some(&mut thorough)), "it rests");
        thorough.due_for_lock = Instant::now();
        assert!(watch.should_compare(Some(&mut thorough)), "the last change of a storm");
    }

    #[test]
    fn a_use_that_nothing_from_before_can_be_compared_with_is_suspicious() {
        let (watch, uses, _, mut thorough) = legacy();
        sync(&watch, SYNC);
        uses.store(1, Ordering::SeqCst);
        assert!(watch.should_compare(Some(&mut thorough)), "before the first look");
        sync(&watch, COMPARED);
        thorough.due = Instant::now();
        assert!(!watch.should_compare(Some(&mut thorough)));
        // Used, and before anybody looked a sync of ours begins.
        uses.store(1, Ordering::SeqCst);
        sync(&watch, SYNC);
        assert!(watch.should_compare(Some(&mut thorough)), "before a sync of ours");
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
        let probe = Box::new(Number(Arc::clone(&content), false));
        let mut thorough = Thorough::new(probe, THOROUGH_PERIOD_MIN);
        assert!(!watch.should_compare(Some(&mut thorough)));
        content.store(2, Ordering::SeqCst);
        thorough.due = Instant::now();
        assert!(watch.should_compare(Some(&mut thorough)));
    }
}
