//! Services on Linux, with real packets: the agent runs on a node of a cluster of network namespaces,
//! and clients everywhere say what becomes of their connections.
//!
//! The agent is a black box: manifests go in by a directory, packets show what came out. What is
//! expected stands in `expectations.txt`, a table with a column per backend; what takes more than one
//! connection to see has a module here. Every test runs on every backend, IPv4 and IPv6. They need
//! root and fail without it; nothing is skipped.
//!
//! The kernel of a test machine need not have IPVS, so that backend's tests run on a guest kernel, each
//! on its own; see `telaio_testkit::guest` for what it has. `TELAIO_TEST_RULES=1` prints the rules where
//! a row of the table fails.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may panic")]
#![allow(clippy::format_push_string, reason = "manifests and scripts are to be read, not quick")]

#[path = "../support/mod.rs"]
mod support;

/// Makes of each function that takes a backend one test per backend that this kernel has.
macro_rules! on_backends_of_this_kernel {
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

/// Makes of each function that takes a backend one test for IPVS, on a guest kernel.
macro_rules! on_ipvs {
    ($($name:ident),* $(,)?) => {
        mod ipvs {
            $(#[test] fn $name() -> Result<(), telaio_testkit::guest::GuestError> {
                let path = concat!(module_path!(), "::", stringify!($name));
                // A test's name is without that of the program.
                let (_, name) = path.split_once("::").unwrap_or_default();
                let body = || super::$name(crate::node::Backend::Ipvs);
                telaio_testkit::guest::inside(name, body)
            })*
        }
    };
}

/// Makes of each function that takes a backend one test per backend.
macro_rules! on_every_backend {
    ($($name:ident),* $(,)?) => {
        on_backends_of_this_kernel!($($name),*);
        on_ipvs!($($name),*);
    };
}

mod affinity;
mod balance;
mod churn;
mod cleanup;
mod connections;
mod drift;
mod expectations;
mod fixtures;
mod followed;
mod hcn;
mod health;
mod ipvs;
mod kill;
mod listing;
mod loopback;
mod manage;
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
