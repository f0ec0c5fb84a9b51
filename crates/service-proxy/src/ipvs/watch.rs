//! Noticing what others change, and that time passes.
//!
//! Rules are watched as the backend `iptables` does. Addresses tell by netlink when they change. IPVS and
//! ipset tell nothing, so they are read once in a while, as often as that is cheap. And while an endpoint
//! drains, its connections have to be counted.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use telaio_netlink::addresses::{Change, Notice, Watcher as AddressWatcher};
use telaio_netlink::links::LinkIndex;
use telaio_reconcile::SyncHandle;

use crate::iptables::Programs;
use crate::iptables::watch::{self, Probes, SyncEnd, THOROUGH_PERIOD_MIN, Thorough};

/// How often the thread looks whether something is due.
const TICK: Duration = Duration::from_millis(200);
/// How often connections of endpoints that leave are counted.
const DRAIN_PERIOD: Duration = Duration::from_secs(1);
/// IPVS and the sets are read at most so often,
const READ_PERIOD_MIN: Duration = Duration::from_secs(1);
/// and take at most one part in so many of the time,
const READ_SHARE: u32 = 50;
/// but no reading, however slow, puts off the next by more than this.
const READ_PERIOD_MAX: Duration = Duration::from_secs(10);

/// What the sync loop and the watching threads tell each other.
#[derive(Default)]
pub(super) struct Signals {
    /// The machine's addresses changed.
    pub(super) addresses: AtomicBool,
    /// An endpoint is leaving.
    pub(super) draining: AtomicBool,
    /// What reading everything took the last time.
    read_cost_us: AtomicU64,
    /// Everything should be read again.
    pub(super) read_due: AtomicBool,
    rules: parking_lot::Mutex<Option<Arc<watch::Watch>>>,
    rules_began: parking_lot::Mutex<Option<Instant>>,
}

impl Signals {
    /// Everything was read, which took so long.
    pub(super) fn observed(&self, took: Duration) {
        let cost_us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        self.read_cost_us.store(cost_us, Ordering::Relaxed);
    }

    /// A sync of the rules begins.
    pub(super) fn begin(&self) {
        if let Some(rules) = &*self.rules.lock() {
            rules.begin();
        }
        *self.rules_began.lock() = Some(Instant::now());
    }

    /// It has ended.
    pub(super) fn end(&self, succeeded: bool, compared: bool, commits: u64) {
        let took = self.rules_began.lock().take().map(|it| it.elapsed()).unwrap_or_default();
        if let Some(rules) = &*self.rules.lock() {
            rules.end(SyncEnd { succeeded, compared, commits, took });
        }
    }

    fn read_period(&self) -> Duration {
        let cost = Duration::from_micros(self.read_cost_us.load(Ordering::Relaxed));
        (cost * READ_SHARE).clamp(READ_PERIOD_MIN, READ_PERIOD_MAX)
    }
}

/// The threads, ended when it is dropped.
pub(super) struct Watch {
    ending: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    _rules: watch::Watcher,
}

impl Watch {
    /// Starts to watch for a sync loop. Changes of addresses by the socket with
    /// our port are our own.
    pub(super) fn start(
        handle: &SyncHandle,
        signals: Arc<Signals>,
        programs: &[Programs],
        (own_port, device): (u32, LinkIndex),
    ) -> std::io::Result<Self> {
        let probes = Probes::new(programs);
        let rules = Arc::new(watch::Watch::new(probes.cheap, probes.lock));
        *signals.rules.lock() = Some(Arc::clone(&rules));
        let thorough = probes.thorough.map(|it| Thorough::new(it, THOROUGH_PERIOD_MIN));
        let rules = rules.start(handle.clone(), thorough)?;
        let ending = Arc::new(AtomicBool::new(false));
        let (until, handle) = (Arc::clone(&ending), handle.clone());
        let addresses = AddressWatcher::open(Some(own_port))
            .inspect_err(|error| {
                tracing::warn!(%error, "cannot watch addresses; changes are found later");
            })
            .ok();
        let thread = thread::Builder::new()
            .name("telaio-watch".to_owned())
            .spawn(move || run(&handle, &signals, addresses, device, &until))?;
        Ok(Self { ending, thread: Some(thread), _rules: rules })
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.ending.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread that watches IPVS panicked");
        }
    }
}

fn run(
    handle: &SyncHandle,
    signals: &Signals,
    mut addresses: Option<AddressWatcher>,
    device: LinkIndex,
    ending: &AtomicBool,
) {
    let mut drained = Instant::now();
    let mut read = Instant::now();
    while !ending.load(Ordering::Relaxed) {
        if let Some(seen) = wait(&mut addresses, device) {
            signals.addresses.fetch_or(seen.machine, Ordering::AcqRel);
            signals.read_due.fetch_or(seen.device, Ordering::AcqRel);
            handle.notify();
        }
        if drained.elapsed() >= DRAIN_PERIOD {
            drained = Instant::now();
            if signals.draining.load(Ordering::Acquire) {
                handle.notify();
            }
        }
        if read.elapsed() >= signals.read_period() {
            read = Instant::now();
            signals.read_due.store(true, Ordering::Release);
            handle.notify();
        }
    }
}

/// Waits for a change of addresses that is not our own, but no longer than until something may be due.
fn wait(addresses: &mut Option<AddressWatcher>, device: LinkIndex) -> Option<Seen> {
    let Some(watcher) = addresses else {
        thread::sleep(TICK);
        return None;
    };
    match watcher.next(TICK) {
        Ok(notice) => notice.and_then(|notice| seen(&notice, device)),
        Err(error) => {
            tracing::warn!(%error, "no longer watching addresses; changes are found later");
            *addresses = None;
            Some(Seen { machine: true, device: true })
        }
    }
}

/// Where something changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Seen {
    machine: bool,
    device: bool,
}

fn seen(notice: &Notice, device: LinkIndex) -> Option<Seen> {
    let mut seen = Seen { machine: notice.lost, device: notice.lost };
    for change in &notice.changes {
        match change {
            // Nobody but us puts addresses there, and the next reading finds who does.
            Change::AddressCame(address) if address.link == device => {}
            Change::AddressWent(address) if address.link == device => seen.device = true,
            Change::AddressCame(_) | Change::AddressWent(_) => seen.machine = true,
            Change::LinkWent(link) if link.index == device => seen.device = true,
            Change::LinkCame(_) | Change::LinkWent(_) => {}
        }
    }
    (seen.machine || seen.device).then_some(seen)
}
