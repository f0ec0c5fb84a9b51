//! Keeps a target as its input wants it.

use crate::diffstore::DiffStore;
use crate::pacer::SyncKind;
use crate::target::{
    Applied, ApplyError, Change, DriftReport, Observed, SyncReport, Target, TouchTarget,
};

/// An item and the part of the input that wants it.
#[derive(Debug, Clone)]
pub(crate) struct Claim<I> {
    pub(super) item: I,
    /// Which part; 0 where the input has no parts.
    pub(super) owner: u32,
}

/// Whose it is makes no difference to the machine.
impl<I: PartialEq> PartialEq for Claim<I> {
    fn eq(&self, other: &Self) -> bool {
        self.item == other.item
    }
}

impl<I: Eq> Eq for Claim<I> {}

/// Keeps a [`Target`] as its input wants it. See the [module](crate::target).
///
/// It remembers what it has applied, so a reconcile without a difference costs no system call. It
/// does not notice by itself when somebody else changes what is ours: that is
/// [`check_drift`](Self::check_drift)'s part.
#[derive(Debug)]
pub struct Reconciler<T: Target> {
    target: T,
    pub(super) store: DiffStore<T::Key, Claim<T::Item>>,
    /// The store's idea of what is applied can be trusted. Then, between calls, it has no deltas.
    known: bool,
    /// An input came. Before that an empty store means ignorance, not that nothing is wanted.
    has_input: bool,
}

impl<T: Target> Reconciler<T> {
    /// A reconciler that knows nothing of its target yet: its first step observes.
    pub fn new(target: T) -> Self {
        let mut store = DiffStore::new();
        store.forget_applied();
        Self { target, store, known: false, has_input: false }
    }

    /// The target.
    pub fn target(&self) -> &T {
        &self.target
    }

    /// The target, to configure it. After a change that alters what is compiled, reconcile.
    pub fn target_mut(&mut self) -> &mut T {
        &mut self.target
    }

    /// Gives the target back.
    pub fn into_target(self) -> T {
        self.target
    }

    /// Everything that should be there, in key order.
    pub fn wanted(&self) -> impl Iterator<Item = (&T::Key, &T::Item)> {
        self.store.iter().map(|(key, claim)| (key, &claim.item))
    }

    /// Makes the target what `input` wants.
    pub fn reconcile(&mut self, input: &T::Input) -> Result<SyncReport, ApplyError> {
        for (key, item) in self.target.compile(input) {
            self.store.set(key, Claim { item, owner: 0 });
        }
        self.store.done();
        self.flush()
    }

    /// Does what a sync of `kind` asks for: [`reconcile`](Self::reconcile), after a
    /// [`check_drift`](Self::check_drift) unless only changes are asked for.
    pub fn sync(&mut self, kind: SyncKind, input: &T::Input) -> Result<SyncReport, ApplyError> {
        let mended = self.mend_for(kind)?;
        Ok(mended.plus(self.reconcile(input)?))
    }

    /// The drift check that a sync of `kind` includes. Where nothing is known of the machine the
    /// reconcile that follows observes anyway, and what it finds is not drift.
    pub(super) fn mend_for(&mut self, kind: SyncKind) -> Result<SyncReport, ApplyError> {
        if kind == SyncKind::Changes || !self.known {
            return Ok(SyncReport::default());
        }
        Ok(self.check_drift()?.to_sync_report())
    }

    /// Makes the target what was wanted last; for a retry when the input did not change. Does nothing
    /// before the first reconcile.
    pub fn retry(&mut self) -> Result<SyncReport, ApplyError> {
        if self.has_input { self.flush() } else { Ok(SyncReport::default()) }
    }

    /// Forgets what was applied: the next step observes.
    pub fn distrust(&mut self) {
        self.known = false;
    }

    /// Observes, mends what differs from what was wanted last, and tells what was wrong.
    ///
    /// After a reconcile that failed, what it left undone counts as wrong too. Before the first
    /// reconcile nothing does: what an earlier run left must not be removed unasked.
    pub fn check_drift(&mut self) -> Result<DriftReport<T::Key>, ApplyError> {
        if !self.has_input {
            return Ok(DriftReport::default());
        }
        self.known = false;
        self.observe()?;
        self.mend()
    }

    /// Looks at what was touched, mends what differs from what was wanted last, and tells what was
    /// wrong. Everything else is taken to be as we left it.
    ///
    /// Where that cannot be told, or nothing is known of the machine, it is a
    /// [`check_drift`](Self::check_drift).
    pub fn check_touched(&mut self, touched: &T::Touched) -> Result<DriftReport<T::Key>, ApplyError>
    where
        T: TouchTarget,
    {
        if !self.known {
            return self.check_drift();
        }
        // Until all of it is read nothing is known.
        self.known = false;
        let observed = self.target.observe_touched(touched, &Applied(&self.store))?;
        let Some(items) = observed else {
            return self.check_drift();
        };
        for (key, item) in items {
            self.store.rebase_key(key, item.map(|item| Claim { item, owner: 0 }));
        }
        self.known = true;
        self.mend()
    }

    /// Mends what differs and tells what that was.
    fn mend(&mut self) -> Result<DriftReport<T::Key>, ApplyError> {
        let mut drift = DriftReport::default();
        for delta in self.store.deltas() {
            match (delta.old, delta.new) {
                (None, _) => &mut drift.missing,
                (Some(_), Some(_)) => &mut drift.altered,
                (Some(_), None) => &mut drift.unexpected,
            }
            .push(delta.key.clone());
        }
        if !drift.is_clean() {
            tracing::warn!(
                missing = drift.missing.len(),
                altered = drift.altered.len(),
                unexpected = drift.unexpected.len(),
                "somebody changed what is ours; repairing"
            );
        }
        self.flush()?;
        Ok(drift)
    }

    /// Applies what differs. One failure is answered by observing and repairing; after a second one
    /// the caller has to wait.
    pub(super) fn flush(&mut self) -> Result<SyncReport, ApplyError> {
        self.has_input = true;
        self.store.reset_keeping_deltas();
        match self.attempt() {
            Err(error) if error.can_retry() => {
                tracing::warn!(%error, "applying failed; observing and repairing");
                self.attempt()
            }
            outcome => outcome,
        }
    }

    fn attempt(&mut self) -> Result<SyncReport, ApplyError> {
        if !self.known {
            self.observe()?;
        }
        let mut report = SyncReport::default();
        let mut changes = Vec::with_capacity(self.store.delta_count());
        for delta in self.store.deltas() {
            let old = delta.old.map(|claim| &claim.item);
            let new = delta.new.map(|claim| &claim.item);
            report.count(delta.operation());
            changes.extend(Change::between(delta.key, old, new));
        }
        if !changes.is_empty() {
            // Until the target says that all went well, and also if it panics, nothing is known.
            self.known = false;
            self.target.apply(&changes)?;
            self.known = true;
            self.store.reset();
        }
        Ok(report)
    }

    fn observe(&mut self) -> Result<(), ApplyError> {
        let Observed { items } = self.target.observe()?;
        let claims = items.into_iter().map(|(key, item)| (key, Claim { item, owner: 0 }));
        self.store.rebase(claims.collect());
        self.known = true;
        Ok(())
    }
}
