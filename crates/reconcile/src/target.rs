//! The part of the machine that a backend programs, and the reconciler that keeps it right.
//!
//! A backend implements [`Target`]: a pure `compile` from its input to items by key, an `observe`
//! that reads back what is there, and an `apply` that carries out changes in one transaction. The
//! [`Reconciler`] does the rest: it compares what was compiled with what is applied, applies only the
//! difference, and after an error observes and repairs.
//!
//! A backend whose input falls into parts, such as services, implements [`PartialTarget`] too. Then
//! the [`PartReconciler`] compiles only the parts that changed, so that a change costs O(change).
//!
//! What always holds:
//! - Nothing counts as applied before `apply` said so.
//! - After an error, or a panic, in `apply` nothing is assumed about the machine: the next step
//!   observes it.
//! - A reconcile makes at most two attempts. Waiting and trying again is the
//!   [sync loop](crate::sync_loop)'s.
//!
//! ```
//! use std::collections::BTreeMap;
//! use telaio_reconcile::target::{ApplyError, Change, Observed, Reconciler, Target};
//!
//! /// Opens ports in a "firewall".
//! #[derive(Default)]
//! struct Firewall(BTreeMap<u16, &'static str>);
//!
//! impl Target for Firewall {
//!     type Input = Vec<u16>;
//!     type Key = u16;
//!     type Item = &'static str;
//!     fn compile(&self, ports: &Vec<u16>) -> BTreeMap<u16, &'static str> {
//!         ports.iter().map(|port| (*port, "accept")).collect()
//!     }
//!     fn observe(&mut self) -> Result<Observed<u16, &'static str>, ApplyError> {
//!         Ok(Observed::new(self.0.clone()))
//!     }
//!     fn apply(&mut self, changes: &[Change<u16, &'static str>]) -> Result<(), ApplyError> {
//!         for change in changes {
//!             match change {
//!                 Change::Create { key, new } | Change::Update { key, new, .. } => {
//!                     self.0.insert(*key, new)
//!                 }
//!                 Change::Delete { key, .. } => self.0.remove(key),
//!             };
//!         }
//!         Ok(())
//!     }
//! }
//!
//! let mut reconciler = Reconciler::new(Firewall::default());
//! reconciler.reconcile(&vec![80, 443])?;
//! let report = reconciler.reconcile(&vec![443, 8443])?;
//! assert_eq!((report.created, report.updated, report.deleted), (1, 0, 1));
//!
//! // Somebody else closes a port: the drift check finds and mends it.
//! reconciler.target_mut().0.remove(&443);
//! assert_eq!(reconciler.check_drift()?.missing, [443]);
//! assert!(reconciler.check_drift()?.is_clean());
//! # Ok::<(), ApplyError>(())
//! ```

use std::collections::BTreeMap;
use std::fmt;

use crate::diffstore::{Delta, DiffStore};
use crate::patch::Operation;

mod error;
mod parts;
mod reconciler;
#[cfg(test)]
mod tests;

pub use error::ApplyError;
pub use parts::{CompiledPart, PartReconciler, PartialTarget, compile_by_parts};
use reconciler::Claim;
pub use reconciler::Reconciler;

/// How many wrong things of a kind are named in the log.
const DRIFT_NAMED_MAX: usize = 5;

/// Something that is programmed: a packet filter, a set of virtual servers, the links of a node.
pub trait Target {
    /// From what it is compiled.
    type Input;
    /// The name of an item: one object that is made, changed and removed as a whole.
    type Key: Ord + Clone;
    /// The content of an item.
    type Item: Eq + Clone;

    /// What has to be there for `input`. Pure: the same input gives the same items.
    fn compile(&self, input: &Self::Input) -> BTreeMap<Self::Key, Self::Item>;

    /// What is there of ours. Called at start-up, after an error and to find drift; changes nothing.
    fn observe(&mut self) -> Result<Observed<Self::Key, Self::Item>, ApplyError>;

    /// Carries out `changes`, given in key order, in one transaction: all of them or none.
    ///
    /// The order in which the kernel takes them is the target's to choose. If an error leaves
    /// anything half-done, the next `observe` must show it.
    fn apply(&mut self, changes: &[Change<Self::Key, Self::Item>]) -> Result<(), ApplyError>;
}

/// A [`Target`] that, told what somebody else has touched, can look just there.
///
/// It is what makes a drift check cost as much as the drift, and not as much as everything.
pub trait TouchTarget: Target {
    /// What was touched, as the machine tells it.
    type Touched;

    /// What is there now of the items that were touched, each key once; `None` for an item that is not
    /// there. `applied` tells what we have left there: where only a part of an item was touched the rest
    /// is still that. Changes nothing.
    ///
    /// `Ok(None)`: it cannot be told, and everything has to be observed.
    fn observe_touched(
        &mut self,
        touched: &Self::Touched,
        applied: &Applied<'_, Self::Key, Self::Item>,
    ) -> Result<Option<ItemsNow<Self>>, ApplyError>;
}

/// What we have left on the machine.
#[derive(Debug, Clone, Copy)]
pub struct Applied<'a, K, I>(&'a DiffStore<K, Claim<I>>);

impl<'a, K: Ord + Clone, I: Eq> Applied<'a, K, I> {
    /// The item at `key`.
    pub fn get(&self, key: &K) -> Option<&'a I> {
        self.0.applied(key).map(|claim| &claim.item)
    }

    /// All keys, in order.
    pub fn keys(&self) -> impl Iterator<Item = &'a K> {
        // Where nothing differs what is wanted is there; and else nobody asks.
        self.0.iter().map(|(key, _)| key)
    }
}

/// Items, each as it is now; `None` for one that is not there.
pub type ItemsNow<T> = Vec<(<T as Target>::Key, Option<<T as Target>::Item>)>;

/// One change that a target has to carry out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change<K, I> {
    /// The item is not there and has to be.
    Create {
        /// Which item.
        key: K,
        /// What it has to be.
        new: I,
    },
    /// The item is there with another content.
    Update {
        /// Which item.
        key: K,
        /// What it is.
        old: I,
        /// What it has to be.
        new: I,
    },
    /// The item is there and must go.
    Delete {
        /// Which item.
        key: K,
        /// What it is.
        old: I,
    },
}

impl<K, I> Change<K, I> {
    /// The item it is about.
    pub fn key(&self) -> &K {
        match self {
            Self::Create { key, .. } | Self::Update { key, .. } | Self::Delete { key, .. } => key,
        }
    }

    /// What it does.
    pub fn operation(&self) -> Operation {
        match self {
            Self::Create { .. } => Operation::Create,
            Self::Update { .. } => Operation::Update,
            Self::Delete { .. } => Operation::Delete,
        }
    }

    /// What is there before it.
    pub fn old(&self) -> Option<&I> {
        match self {
            Self::Update { old, .. } | Self::Delete { old, .. } => Some(old),
            Self::Create { .. } => None,
        }
    }

    /// What is there after it.
    pub fn new_item(&self) -> Option<&I> {
        match self {
            Self::Create { new, .. } | Self::Update { new, .. } => Some(new),
            Self::Delete { .. } => None,
        }
    }
}

impl<K: Clone, I: Clone> Change<K, I> {
    /// The change for a delta; `None` for a delta between nothing and nothing.
    pub fn from_delta(delta: &Delta<'_, K, I>) -> Option<Self> {
        Self::between(delta.key, delta.old, delta.new)
    }

    fn between(key: &K, old: Option<&I>, new: Option<&I>) -> Option<Self> {
        let key = key.clone();
        match (old, new) {
            (None, Some(new)) => Some(Self::Create { key, new: new.clone() }),
            (Some(old), Some(new)) => {
                Some(Self::Update { key, old: old.clone(), new: new.clone() })
            }
            (Some(old), None) => Some(Self::Delete { key, old: old.clone() }),
            (None, None) => None,
        }
    }
}

/// What is there of ours, as read back.
///
/// An object of ours that cannot be read back must not be left out, or nobody would ever remove it:
/// give it as an item that equals nothing that is compiled, and it will be replaced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Observed<K, I> {
    /// The items.
    pub items: BTreeMap<K, I>,
}

impl<K: Ord, I> Observed<K, I> {
    /// These items are there.
    pub fn new(items: BTreeMap<K, I>) -> Self {
        Self { items }
    }

    /// Nothing of ours is there.
    pub fn nothing() -> Self {
        Self { items: BTreeMap::new() }
    }
}

impl<K: Ord, I> FromIterator<(K, I)> for Observed<K, I> {
    fn from_iter<T: IntoIterator<Item = (K, I)>>(items: T) -> Self {
        Self { items: items.into_iter().collect() }
    }
}

/// What a sync did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SyncReport {
    /// Items made.
    pub created: usize,
    /// Items changed.
    pub updated: usize,
    /// Items removed.
    pub deleted: usize,
    /// How many of these mended drift: somebody else had changed what is ours.
    pub drift_repairs: usize,
    /// Nothing was known yet of what should be there, so nothing was done. It is no sync: whoever waits
    /// for the first one goes on waiting.
    pub too_early: bool,
}

impl SyncReport {
    /// Asked before the first whole state was known.
    pub fn too_early() -> Self {
        Self { too_early: true, ..Self::default() }
    }

    /// How many items were touched.
    pub fn changes(&self) -> usize {
        self.created + self.updated + self.deleted
    }

    /// Both together.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            created: self.created + other.created,
            updated: self.updated + other.updated,
            deleted: self.deleted + other.deleted,
            drift_repairs: self.drift_repairs + other.drift_repairs,
            too_early: self.too_early || other.too_early,
        }
    }

    pub(crate) fn count(&mut self, operation: Operation) {
        match operation {
            Operation::NoOp => {}
            Operation::Create => self.created += 1,
            Operation::Update => self.updated += 1,
            Operation::Delete => self.deleted += 1,
        }
    }
}

/// What a drift check found and mended. Each list is in key order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DriftReport<K> {
    /// Ours, and gone.
    pub missing: Vec<K>,
    /// Ours, and changed.
    pub altered: Vec<K>,
    /// In our place, and not from us.
    pub unexpected: Vec<K>,
}

impl<K> Default for DriftReport<K> {
    fn default() -> Self {
        Self { missing: Vec::new(), altered: Vec::new(), unexpected: Vec::new() }
    }
}

impl<K> DriftReport<K> {
    /// Everything was as it should be.
    pub fn is_clean(&self) -> bool {
        self.count() == 0
    }

    /// How many items were wrong.
    pub fn count(&self) -> usize {
        self.missing.len() + self.altered.len() + self.unexpected.len()
    }

    /// As a sync's report: each wrong item was mended.
    pub fn to_sync_report(&self) -> SyncReport {
        SyncReport {
            created: self.missing.len(),
            updated: self.altered.len(),
            deleted: self.unexpected.len(),
            drift_repairs: self.count(),
            too_early: false,
        }
    }
}

impl<K: fmt::Display> DriftReport<K> {
    /// Tells the operator what was wrong and is mended, the first few of each kind by name.
    pub fn warn(&self) {
        for (what, keys) in [
            ("was missing", &self.missing),
            ("had been changed", &self.altered),
            ("is not ours", &self.unexpected),
        ] {
            if keys.is_empty() {
                continue;
            }
            let named: Vec<String> =
                keys.iter().take(DRIFT_NAMED_MAX).map(ToString::to_string).collect();
            let more = keys.len().saturating_sub(DRIFT_NAMED_MAX);
            tracing::warn!(count = keys.len(), more, "repaired: {what}: {}", named.join(", "));
        }
    }
}
