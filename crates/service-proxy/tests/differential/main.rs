//! The rules of all backends against the contract, on random clusters.
//!
//! `oracle` says what the contract wants for a packet, from the contract's text alone; the real code
//! says what its compiled rules do. Where they differ, one of them is wrong.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may panic")]

mod cases;
mod generate;
mod incremental;
mod ipvs_steps;
mod make;
mod oracle;
mod packets;
mod readback;
mod real;
mod story;
mod world;
