//! Keeps the kernel's tables as policies want them.
//!
//! A [`Keeper`] is told of changes of objects and, at each [`sync`](Keeper::sync), brings the tables up to date: by the
//! difference, after a look at what others have touched meanwhile. Whoever owns one calls it from one thread; a
//! [`Watch`] beside it tells when somebody else has touched the tables.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use parking_lot::Mutex;
use telaio_model::IpFamily;
use telaio_netlink::NetlinkError;
use telaio_netlink::nftables::{Touched, Watcher};
use telaio_reconcile::{ApplyError, DriftReport, PartReconciler, SyncKind, SyncReport};

use super::compile::Key;
use super::kernel::Kernel;
use super::layout::Map;
use super::newcomers::Newcomers;
use super::world::{Part, World};

/// How often the watcher looks whether it should end.
const WATCH_PAUSE: Duration = Duration::from_millis(200);
/// How many wrong things are named in the log.
const DRIFT_NAMED_MAX: usize = 5;

/// What a watching keeper tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Told {
    /// Somebody else has touched the tables.
    Drift,
    /// Somebody has attached an instance.
    Newcomer,
}

/// Keeps the tables of the network namespace in which it was made.
#[derive(Debug)]
pub struct Keeper {
    world: World,
    reconciler: PartReconciler<Kernel>,
    /// What changed and is not in the kernel yet.
    unapplied: BTreeSet<Part>,
    /// The ruleset's generation up to which ours is known to be as we left it.
    generation: Option<u32>,
    watch: Option<Watch>,
    touched: Arc<Mutex<Touched>>,
    first: bool,
}

impl Keeper {
    /// For the policies of a node's pods.
    pub fn open(node: impl Into<Arc<str>>, families: &[IpFamily]) -> Result<Self, NetlinkError> {
        Ok(Self {
            world: World::new(node),
            reconciler: PartReconciler::new(Kernel::open(families)?),
            unapplied: BTreeSet::new(),
            generation: None,
            watch: None,
            touched: Arc::default(),
            first: true,
        })
    }

    /// What it knows of the cluster, to be told of changes.
    pub fn world_mut(&mut self) -> &mut World {
        &mut self.world
    }

    /// From the first sync on, `tell` is called when somebody else touched the tables, on a thread of its own. It
    /// should have [`sync`](Self::sync) called soon.
    pub fn watch(&mut self, tell: impl Fn(Told) + Send + 'static) {
        let mut watch = Watch::default();
        watch.tell = Some(Box::new(tell));
        self.watch = Some(watch);
    }

    /// The addresses that were attached here and that nobody has [released](Self::release).
    pub fn newcomers(&mut self) -> Result<Newcomers, NetlinkError> {
        Newcomers::read(self.reconciler.target_mut().nft())
    }

    /// These were heard of, or judged.
    pub fn release(&mut self, newcomers: &Newcomers) -> Result<(), NetlinkError> {
        if newcomers.is_empty() {
            return Ok(());
        }
        newcomers.remove(self.reconciler.target_mut().nft())
    }

    /// Brings the tables up to date, as thoroughly as `kind` says.
    pub fn sync(&mut self, kind: SyncKind) -> Result<SyncReport, ApplyError> {
        self.unapplied.extend(self.world.settle());
        let mended = if self.first { SyncReport::default() } else { self.mend(kind)? };
        let changed = if kind == SyncKind::Full {
            self.reconciler.reconcile(&self.world)?
        } else {
            self.reconciler.reconcile_part(&self.unapplied, &self.world)?
        };
        self.unapplied.clear();
        if changed.changes() + mended.changes() > 0 {
            self.note_own_change();
        }
        if std::mem::take(&mut self.first)
            && let Some(watch) = &mut self.watch
        {
            watch.start(self.reconciler.target().port(), &self.touched);
        }
        Ok(mended.plus(changed))
    }

    /// Mends what others have changed. The periodic sync looks at everything, if anybody has changed any table; else only
    /// what notices told is looked at.
    fn mend(&mut self, kind: SyncKind) -> Result<SyncReport, ApplyError> {
        // Taken first: what is told from here on, somebody did after we began to look.
        let touched = std::mem::take(&mut *self.touched.lock());
        let full = kind == SyncKind::Full && !self.is_untouched();
        let drift = if full {
            self.generation = self.reconciler.target_mut().generation();
            self.reconciler.check_drift()
        } else if touched.is_nothing() {
            return Ok(SyncReport::default());
        } else {
            self.reconciler.check_touched(&touched)
        };
        // Whatever is wrong then, it is still to be found and told.
        let drift = drift.inspect_err(|_| self.touched.lock().add(Touched::anything()))?;
        log_drift(&drift);
        Ok(drift.to_sync_report())
    }

    /// Nobody has changed any table since we last looked at ours.
    fn is_untouched(&mut self) -> bool {
        let now = self.reconciler.target_mut().generation();
        now.is_some() && now == self.generation
    }

    /// A transaction of ours makes one new generation. If there are more, others were at it meanwhile, and the next periodic sync
    /// looks at everything.
    fn note_own_change(&mut self) {
        let now = self.reconciler.target_mut().generation();
        let expected = self.generation.map(|before| before.wrapping_add(1));
        self.generation = now.filter(|_| now == expected);
    }
}

fn log_drift(drift: &DriftReport<Key>) {
    for (what, keys) in [
        ("was missing", &drift.missing),
        ("had been changed", &drift.altered),
        ("is not ours", &drift.unexpected),
    ] {
        if !keys.is_empty() {
            let named: Vec<String> =
                keys.iter().take(DRIFT_NAMED_MAX).map(ToString::to_string).collect();
            let more = keys.len().saturating_sub(DRIFT_NAMED_MAX);
            tracing::warn!(count = keys.len(), more, "repaired: {what}: {}", named.join(", "));
        }
    }
}

/// The thread that notices what others change; ended when this is dropped.
#[derive(Default)]
struct Watch {
    tell: Option<Box<dyn Fn(Told) + Send>>,
    thread: Option<JoinHandle<()>>,
    ending: Arc<AtomicBool>,
}

impl std::fmt::Debug for Watch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watch").field("runs", &self.thread.is_some()).finish_non_exhaustive()
    }
}

impl Watch {
    /// Begins to watch. Without a watcher drift is found by the periodic sync.
    fn start(&mut self, own_port: u32, touched: &Arc<Mutex<Touched>>) {
        let Some(tell) = self.tell.take() else { return };
        let watcher = match Watcher::open(own_port, super::layout::TABLE) {
            Ok(watcher) => watcher,
            Err(error) => {
                tracing::warn!(%error, "cannot watch nftables; changes by others are found later");
                return;
            }
        };
        let (touched, ending) = (Arc::clone(touched), Arc::clone(&self.ending));
        let run = move || watch_all(watcher, &ending, &touched, tell.as_ref());
        match thread::Builder::new().name("telaio-policies".into()).spawn(run) {
            Ok(thread) => self.thread = Some(thread),
            Err(error) => tracing::warn!(%error, "cannot watch nftables: no thread"),
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.ending.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread that watches nftables panicked");
        }
    }
}

fn watch_all(
    mut watcher: Watcher,
    ending: &AtomicBool,
    touched: &Mutex<Touched>,
    tell: &dyn Fn(Told),
) {
    // Of whoever came between the first look and now no notice tells.
    tell(Told::Newcomer);
    while !ending.load(Ordering::Relaxed) {
        match watcher.next(WATCH_PAUSE) {
            Ok(Some(mut notice)) => {
                let is_mailbox = |name: &str| Map::named(name).is_some_and(Map::is_mailbox);
                let count = notice.touched.elements.len();
                notice.touched.elements.retain(|(_, name), _| !is_mailbox(name));
                if notice.touched.elements.len() < count {
                    tell(Told::Newcomer);
                }
                if !notice.touched.is_nothing() {
                    tracing::debug!(process = notice.process, "somebody changed our table");
                    touched.lock().add(notice.touched);
                    tell(Told::Drift);
                }
            }
            Ok(None) => {}
            Err(error) => {
                tracing::warn!(%error, "no longer watching nftables; changes by others are found later");
                return;
            }
        }
    }
}
