//! The pods plane of the agent, with real packets: nodes that are machines of their own, instances of the library on them,
//! manifests in a directory that both nodes read.
//!
//! They need root and fail without it; nothing is skipped.
#![cfg(target_os = "linux")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::needless_pass_by_value,
    reason = "what fails here fails the test"
)]

#[path = "../../../pod-network/tests/support/mod.rs"]
mod net;
mod stage;

mod cleanup;
mod cni;
mod first;
mod flannel;
mod killed;
mod life;
mod nodes;
mod policy;
mod ranges;
mod rules;
