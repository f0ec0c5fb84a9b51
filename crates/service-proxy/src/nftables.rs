//! Services by nftables, over netlink: the default on Linux.
//!
//! [`layout`] is what an operator sees in `nft list ruleset`; [`compile`] makes it from the plans,
//! purely; [`desired`] and [`target`] are the two sides that the reconciler compares; [`backend`] ties
//! them to the node view and watches over the table.

pub mod backend;
pub mod compile;
pub mod desired;
mod keys;
pub mod layout;
mod probe;
pub mod render;
pub mod rule;
mod slots;
pub mod target;
#[cfg(test)]
mod tests;
pub mod trace;

pub use backend::{NftablesBackend, cleanup, cleanup_kube_proxy, kube_proxy_present};
pub use probe::{ProbeError, probe, tables_refused};
pub use render::render;
pub use trace::trace;
