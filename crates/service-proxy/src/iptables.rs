//! Services on iptables.
pub mod balance;
mod claims;
pub mod compile;
mod live;
mod mend;
pub mod names;
pub mod parse;
pub mod proxier;
pub mod restore;
pub mod rule;
pub mod scaffold;
mod shared;
