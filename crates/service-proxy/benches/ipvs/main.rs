//! How the backend `ipvs` scales: `cargo xtask bench ipvs`.
//!
//! Everything runs on guest kernels, which have IPVS; the host's network is not touched. Each figure comes
//! from a kernel of its own, and no case counts unless the kernel has, afterwards, what it should have.
//! Beside ours, in the same run, stand the usual programs with the same state as ready text.
//!
//! Tables go to standard output, in Markdown; `cargo xtask bench` writes them to docs/benchmarks.md.
//! Arguments choose sizes (`1000x2`); then it is only printed.

#![cfg_attr(
    target_os = "linux",
    allow(
        clippy::cast_precision_loss,
        clippy::cast_sign_loss,
        clippy::print_stdout,
        reason = "figures for people"
    )
)]

#[cfg(target_os = "linux")]
#[allow(dead_code, reason = "shared with the other benchmark, which needs all of it")]
#[path = "../services/cluster.rs"]
mod cluster;
#[cfg(target_os = "linux")]
mod ours;
#[cfg(target_os = "linux")]
mod programs;
#[cfg(target_os = "linux")]
mod report;
#[cfg(target_os = "linux")]
#[allow(dead_code, reason = "likewise")]
#[path = "../services/table.rs"]
mod table;
#[cfg(target_os = "linux")]
#[allow(dead_code, reason = "likewise")]
#[path = "../services/usage.rs"]
mod usage;

#[cfg(target_os = "linux")]
fn main() -> anyhow::Result<()> {
    let args: Vec<String> = std::env::args().skip(1).filter(|arg| arg != "--bench").collect();
    match &args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["role", "ours", size] => ours::role(size.parse()?),
        ["role", "programs", size] => programs::role(size.parse()?),
        sizes => report::report(sizes),
    }
}

/// What is measured is Linux's.
#[cfg(not(target_os = "linux"))]
fn main() {}
