//! The Linux kernel by netlink, without any program in between.
//!
//! - [`socket`] and [`wire`]: messages and attributes, and a socket that sends and receives them;
//! - [`batch`]: many requests over one socket, errors by their place among them;
//! - [`netns`]: network namespaces with names;
//! - [`links`] and [`addresses`]: the machine's links, and its own addresses;
//! - [`rtnl`]: pairs of links, bridges, vxlan, routes and neighbours, many requests at a time;
//! - [`losses`]: noticing that some of these go;
//! - [`packets`]: whole frames of a link;
//! - [`offload`]: switching off what hardware would do;
//! - [`tc`]: how fast links send;
//! - [`listen`]: whether a port is free, and who has it;
//! - [`conntrack`]: the table of flows;
//! - [`original_dst`]: where a redirected connection wanted to go;
//! - [`generic`] and [`ipvs`]: families that are found by name; virtual services;
//! - [`ipset`]: named sets that iptables' rules match;
//! - [`xtables`]: a look at the tables of iptables-legacy;
//! - [`nftables`]: a small typed encoder, batches that are one transaction, reading back, watching.
//!
//! The only crate on Linux with `unsafe` in it, and there only around system calls. It knows nothing
//! of services or pods.
#![cfg(target_os = "linux")]

pub mod addresses;
pub mod batch;
pub mod conntrack;
mod error;
pub mod generic;
pub mod heap;
pub mod ipset;
pub mod ipvs;
pub mod links;
pub mod listen;
pub mod losses;
pub mod netns;
pub mod nftables;
pub mod offload;
pub mod original_dst;
pub mod packets;
pub mod rtnl;
pub mod socket;
pub mod tc;
pub mod wire;
pub mod xtables;

pub use error::NetlinkError;
