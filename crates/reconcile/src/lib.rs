//! The one pattern by which every plane of Telaio changes the machine: *compile, diff, apply,
//! observe*.
//!
//! ```text
//!  Op stream ─► FilterReset ─► FullState ─► State + Changed            (kpng)
//!                                              │ notify
//!                                              ▼
//!                         Pacer ◄──► SyncLoop thread ─► Syncer         (pacer, sync_loop)
//!                                              │ reconcile, reconcile_part, check_drift
//!                                              ▼
//!            Target::compile ─► DiffStore ─► Target::apply             (target, diffstore)
//!                                              ▲
//!                                              └── Target::observe
//! ```
//!
//! Read it in this order:
//! - [`diffstore`]: what is wanted against what is applied, and the deltas between them;
//! - [`patch`]: deltas as operations, grouped so that groups can be applied in parallel;
//! - [`target`]: the trait that a backend implements and the [`Reconciler`] that drives it;
//! - [`pacer`]: when to act, as a state machine without a clock;
//! - [`sync_loop`]: the thread that acts, and its figures;
//! - [`kpng`]: the interfaces by which a node view reaches a backend, as KPNG has them.
//!
//! What always holds:
//! - A change costs O(change). Only a full reconcile, a drift check and the repair after an error
//!   look at everything.
//! - Deltas count as applied only after the backend said so. After an error nothing is assumed: the
//!   machine is observed and repaired.
//! - Nothing waits in a queue. Notifications are flags, and states are compared by content, so a
//!   burst of changes costs as much as its outcome.
//! - No async, no protobuf, no Kubernetes types, and no clock outside [`sync_loop`].

pub mod diffstore;
pub mod kpng;
pub mod pacer;
pub mod patch;
pub mod sync_loop;
pub mod target;

pub use diffstore::{Delta, DiffStore};
pub use pacer::{Next, Pacer, PacerConfig, SyncKind};
pub use patch::{
    GroupHandler, Handlers, Operation, Patch, PatchGroup, apply_parallel, generate_patch_groups,
};
pub use sync_loop::{SyncHandle, SyncStats, Syncer};
pub use target::{
    Applied, ApplyError, Change, DriftReport, ItemsNow, Observed, PartReconciler, PartialTarget,
    Reconciler, SyncReport, Target, TouchTarget,
};

/// What a caught panic said.
pub(crate) fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    if let Some(text) = panic.downcast_ref::<&str>() {
        (*text).to_owned()
    } else if let Some(text) = panic.downcast_ref::<String>() {
        text.clone()
    } else {
        "a panic without a message".to_owned()
    }
}
