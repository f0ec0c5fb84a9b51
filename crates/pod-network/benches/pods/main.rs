//! `cargo xtask bench pods`: what an instance's network costs, beside the reference plugins and the floor.
//!
//! Everything happens on machines of their own (see testkit): the host's network is not touched. CPU is the time of
//! the plugin's process (of the reference chain: and its children), as the kernel accounts it; what the kernel does later by itself, such as the
//! last of a link's removal, is nobody's.
//!
//! With arguments, these are the numbers of instances: `cargo xtask bench pods 1 10` is a short run.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    missing_docs,
    clippy::cast_precision_loss,
    reason = "a benchmark"
)]

mod call;
mod figures;
mod tables;
mod throughput;

use std::path::{Path, PathBuf};
use std::process::Command;

/// At how many instances calls are measured: alone, few, many, and more than a bridge has ports.
const SIZES: [usize; 5] = [1, 10, 100, 1000, 1100];
/// The same for the reference chain, which is slow, if so many are made in time ([`figures::REFERENCE_TIME`]).
const REFERENCE_MAX: usize = 1000;

fn main() {
    let args = std::env::args().skip(1).filter(|arg| arg != "--bench");
    let mut sizes: Vec<usize> =
        args.map(|arg| arg.parse().expect("numbers of instances")).collect();
    if sizes.is_empty() {
        sizes = SIZES.to_vec();
    }
    sizes.sort_unstable();
    let (plugin, floor) = build();
    let ours = figures::ours(&plugin, &sizes);
    let floor = figures::floor(&plugin, &floor, &sizes);
    let few: Vec<usize> = sizes.iter().copied().filter(|size| *size <= REFERENCE_MAX).collect();
    let reference = figures::reference(&few);
    tables::of_calls(&ours, &floor, &reference);
    tables::of_sizes(&ours, &floor, &reference);
    tables::of_bars(&ours, &floor, &reference);
    throughput::table();
}

/// Builds the plugin and the floor program as they are shipped: optimised and static.
fn build() -> (PathBuf, PathBuf) {
    let target = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/static");
    let built = Command::new(env!("CARGO"))
        .args(["build", "--quiet", "--release", "-p", "telaio-pod-network"])
        .args(["--features", "floor", "--bin", "telaio-cni", "--bin", "pods-floor"])
        .env("RUSTFLAGS", "-C target-feature=+crt-static")
        .arg("--target-dir")
        .arg(&target)
        .args(["--target", "x86_64-unknown-linux-gnu"])
        .status()
        .unwrap();
    assert!(built.success(), "the plugin does not build");
    let release = target.join("x86_64-unknown-linux-gnu/release");
    (release.join("telaio-cni"), release.join("pods-floor"))
}
