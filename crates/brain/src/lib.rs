//! The brain: one watch of the cluster, many nodes served.
//!
//! A [`Store`] takes batches from a source and gives each watcher the difference since what it has.
//! The [`view`] module decides, as a pure function, what one node needs: topology, traffic policies,
//! terminating fall-back and overrides end there, so that no backend repeats them. The [`server`]
//! speaks KPNG's Local and Global API to many nodes.
//!
//! What always holds:
//! - a change costs O(change) per watcher; no path copies the whole state;
//! - a view depends only on the state and the node, never on the order of arrival;
//! - a slow watcher costs its own place in a bounded log, and delays nobody.
//!
//! ```
//! use telaio_brain::{LocalWatch, Store, Wants};
//! use telaio_model::{Batch, Op};
//!
//! # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
//! let store = Store::new();
//! store.apply(Batch { changes: vec![], synced: true });
//! let mut watch = LocalWatch::new(&store, "node-1", Wants::default());
//! // An empty cluster is a state too.
//! assert_eq!(watch.next().await?.collect::<Vec<_>>(), [Op::Reset, Op::Sync]);
//! # Ok::<(), telaio_brain::Ended>(())
//! # })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod diff;
mod global;
pub mod identity;
pub mod server;
pub mod state;
pub mod store;
pub mod view;
pub mod watch;
pub mod whole;

pub use identity::{Authorizer, Identity};
pub use server::ApiServer;
pub use state::ServiceState;
pub use store::{Revision, Snapshot, Store, StoreSize};
pub use view::{NodeContext, ServiceView, Wants, service_view};
pub use watch::{CommitWatch, Ended, GlobalWatch, History, LocalWatch};
pub use whole::LocalDiff;
