//! Where the cluster's objects come from.
//!
//! A source reads something outside — a directory of manifests, the Kubernetes API, another brain —
//! and sends [`Batch`]es of [`telaio_model::ObjectChange`]s. Only this crate knows Kubernetes' types.
//!
//! What always holds:
//! - a batch holds differences only: an object that did not change is not sent again, a deletion that
//!   was missed while the connection was down is sent with the next list;
//! - bad input never stops a source: it becomes a [`Problem`] in the [`Status`] and the last good
//!   object stands;
//! - `synced` is true from the batch on that completes the first full state, even an empty one.

mod backoff;
pub mod brain;
pub mod control_plane;
pub mod dir;
pub mod intern;
pub mod kube;
pub mod manifest;
pub mod overrides;
mod spec;
mod status;

pub use spec::{SourceSpec, SpecError};
pub use status::{Problem, Status};

pub use telaio_model::Batch;

/// How many batches may wait for the brain before a source stops reading.
pub const BATCH_QUEUE_MAX: usize = 64;
