//! Services on Linux, with real packets: the agent runs on a node of a cluster of network namespaces,
//! and clients everywhere say what becomes of their connections.
//!
//! The agent is a black box: manifests go in by a directory, packets show what came out. What is
//! expected stands in `expectations.txt`, a table with a column per backend; what takes more than one
//! connection to see has a module here. Every test runs on every backend, IPv4 and IPv6. They need
//! root and fail without it; nothing is skipped.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may panic")]
#![allow(clippy::format_push_string, reason = "manifests and scripts are to be read, not quick")]

#[path = "../support/mod.rs"]
mod support;

/// Makes of each function that takes a backend one test per backend.
macro_rules! on_every_backend {
    ($($name:ident),* $(,)?) => {
        mod nftables {
            $(#[test] fn $name() { super::$name(crate::node::Backend::Nftables); })*
        }
        mod iptables_nft {
            $(#[test] fn $name() { super::$name(crate::node::Backend::IptablesNft); })*
        }
        mod iptables_legacy {
            $(#[test] fn $name() { super::$name(crate::node::Backend::IptablesLegacy); })*
        }
    };
}

mod affinity;
mod balance;
mod churn;
mod cleanup;
mod drift;
mod expectations;
mod fixtures;
mod health;
mod kill;
mod listing;
mod loopback;
mod manifest;
mod matrix;
mod metrics;
mod node;
mod refusals;
mod restart;
mod sctp;
mod switch;
mod takeover;
mod udp;
