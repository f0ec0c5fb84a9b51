//! The backend `iptables`: services as chains of rules, for old kernels and for whoever needs them.
//!
//! ```text
//!  Op stream ─► FilterReset ─► Decoder ─► change trackers            (backend, trackers)
//!                                             │ notify
//!                                             ▼
//!                                 sync loop ─► Iptables, per family  (proxier)
//!                                                │ compile, difference, mend
//!                                                ▼
//!                                 iptables-restore --noflush         (restore, programs)
//! ```
//!
//! Read it in this order:
//! - [`names`] and [`rule`]: chains and rules as values; [`parse`] reads them back;
//! - [`compile`](mod@compile), with [`balance`]: the rules of one service; [`scaffold`]: what stands around them;
//! - [`restore`]: a text for `iptables-restore`, in an order that may be cut anywhere;
//! - [`proxier`]: what is in the kernel, what has to be, and the way between; [`fixed`]: the same for
//!   rules without services, which the backend `ipvs` has;
//! - [`trace`](mod@trace): what a packet meets;
//! - `programs`, `backend`, `watch`, `cleanup`: the rest of the machine; only on Linux.
//!
//! What always holds:
//! - Only chains whose names begin with `TELAIO-` are written, and only rules that lead to them are
//!   added to, or taken from, other chains. Of those, each backend has its own: [`names::Owner`].
//! - A change of services costs one run of `iptables-restore` per family concerned, with the chains
//!   that change and no others. `iptables-save` runs only at the start, after an error and to look
//!   for drift.
//! - Wherever a sync is cut, each service is as before or as after; what is served is never refused.

#[cfg(target_os = "linux")]
mod backend;
pub mod balance;
mod claims;
#[cfg(target_os = "linux")]
mod cleanup;
pub mod compile;
pub mod fixed;
mod keeper;
mod live;
#[cfg(target_os = "linux")]
mod lock;
mod mend;
pub mod names;
pub mod parse;
#[cfg(target_os = "linux")]
mod programs;
pub mod proxier;
pub mod restore;
pub mod rule;
pub mod scaffold;
mod shared;
#[cfg(test)]
pub(crate) mod tests;
pub mod trace;
pub mod trackers;
#[cfg(target_os = "linux")]
pub(crate) mod watch;

use telaio_model::IpFamily;

use crate::config::{NodeFacts, ProxyConfig};

#[cfg(target_os = "linux")]
pub use backend::{IptablesBackend, SharedCounters};
#[cfg(target_os = "linux")]
pub use cleanup::{CleanupError, cleanup, cleanup_kube_proxy, cleanup_of, kube_proxy_present};
pub use fixed::FixedRules;
pub use names::Owner;
pub use parse::Ruleset;
#[cfg(target_os = "linux")]
pub use programs::{Flavor, ProgramError, Programs};
pub use proxier::{Iptables, Services};
pub use trace::trace;
pub use trackers::{EndpointChangeTracker, ServiceChangeTracker};

/// The text that programs these services of one family where nothing of ours is there yet, to be
/// given to `iptables-restore --noflush`. The same services give the same text.
pub fn render(
    services: &Services,
    node: &NodeFacts,
    config: &ProxyConfig,
    family: IpFamily,
) -> String {
    proxier::whole_text(services, &compile::Context::new(config, node, family))
}
