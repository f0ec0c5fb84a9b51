//! Networks of instances: several instances talk as if on one private network, on one machine or many,
//! isolated from what they should not reach.
//!
//! Each instance has a network namespace of its own; its default interface is one end of a veth pair. The
//! other ends hang on the bridge of their network, and the bridge reaches other nodes through an overlay or
//! by routes. Read it in this order:
//!
//! - [`network`], [`attachment`], [`port`], [`names`]: the values and how things are called;
//! - [`state`]: records on disk, locks, [`Host`];
//! - [`ipam`]: who has which address;
//! - [`rules`]: the node's rules: published ports, masquerade, isolation of networks;
//! - `attach`: putting an instance on a network and taking it off, the heart of all else;
//! - [`overlay`]: other nodes;
//! - [`node`], [`instance`], [`utils`]: the library's interface;
//! - [`cni`]: the same as a CNI plugin;
//! - [`policy`] and [`bandwidth`]: what instances may reach, and how fast;
//! - [`repair`]: what should be there is, and nothing else of ours; [`ways`]: what of it there is.
//!
//! What always holds:
//! - Everything acts in the network namespace of the calling thread; many threads and processes may call at once.
//! - Whatever is made has a record first. A call that fails undoes what it did; one that is killed is mended by
//!   its repetition, by the opposite call or by [`repair`].
//! - Traffic between instances, also of one bridge, is routed by the node: its ports are isolated. So rules see
//!   all of it, after address translation.
//! - Nothing is executed: everything goes to the kernel by netlink. The exception are kernels without nftables for IP, where rules
//!   are iptables'; see [`rules`].
//! - An instance sends with its own addresses only.
#![cfg(target_os = "linux")]

mod attach;
pub mod attachment;
pub mod bandwidth;
pub mod cni;
mod error;
pub mod instance;
pub mod ipam;
mod known;
pub mod names;
pub mod network;
mod networks;
pub mod node;
pub mod overlay;
pub mod policy;
pub mod port;
mod ports;
pub mod repair;
pub mod rules;
pub mod state;
pub mod utils;
pub mod ways;

pub use attachment::{Attachment, PodName};
pub use bandwidth::Bandwidth;
pub use error::{Error, Result};
pub use network::{Masquerade, Mode, Network, Subnet};
pub use port::{Port, Protocol};
pub use state::Host;
