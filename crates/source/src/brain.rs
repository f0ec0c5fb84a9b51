//! Another brain as a source: KPNG's Local or Global API, as a client.
//!
//! [`LocalClient`] takes one node's view as it is made by the brain; [`GlobalClient`] takes the raw
//! cluster and sends it on as batches, for a brain that stands below another. Both reconnect for
//! ever, with back-off and jitter, and hand on only what is complete: a difference that was cut off
//! in the middle is as if it had never begun. After a reconnect the brain sends everything again;
//! what did not change is filtered out, for [`LocalClient`]'s operations by
//! `telaio_reconcile::kpng::FilterReset` in front of the backend.

mod assemble;
mod connect;
mod global_client;
mod local_client;
mod taking;

pub use connect::{BrainOptions, ClientTls, ConnectError};
pub use global_client::GlobalClient;
pub use local_client::LocalClient;
