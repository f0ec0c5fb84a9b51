//! Packets between instances and the world: who reaches whom by which family, whose address is seen, and whether all of it arrives.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod apart;
mod large;
mod outside;
mod published;
mod sums;
#[path = "../support/mod.rs"]
mod support;

use std::net::IpAddr;

use support::{Node, Wire};

const WIRES: [Wire; 2] = [Wire::Tcp, Wire::Udp];

/// Where others reach a node.
fn external(node: &Node) -> Vec<IpAddr> {
    let number = node.number;
    vec![format!("192.168.5.{number}").parse().unwrap(), format!("fd05::{number}").parse().unwrap()]
}
