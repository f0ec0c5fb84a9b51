//! How the services plane scales: `cargo xtask bench services`.
//!
//! Each figure comes from a process and a network namespace of its own, nothing of the host's network
//! is touched, and no case counts unless the kernel has, afterwards, what it should have. Beside ours,
//! in the same run, stand the usual programs with the same rules as ready text.
//!
//! Tables go to standard output, in Markdown; `cargo xtask bench` writes them to docs/benchmarks.md.
//! Arguments choose sizes (`1000x2 10000x2`) and sections (`--only changes`); then it is only printed.

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
mod agent;
#[cfg(target_os = "linux")]
mod changes;
#[cfg(target_os = "linux")]
mod cluster;
#[cfg(target_os = "linux")]
mod cold;
#[cfg(target_os = "linux")]
mod connect;
#[cfg(target_os = "linux")]
mod drift;
#[cfg(target_os = "linux")]
mod floor;
#[cfg(target_os = "linux")]
mod iptables;
#[cfg(target_os = "linux")]
mod kernel;
#[cfg(target_os = "linux")]
mod rig;
#[cfg(target_os = "linux")]
mod role;
#[cfg(target_os = "linux")]
mod run;
#[cfg(target_os = "linux")]
mod table;
#[cfg(target_os = "linux")]
mod usage;

#[cfg(target_os = "linux")]
pub(crate) use run::progress;

#[cfg(target_os = "linux")]
fn main() -> anyhow::Result<()> {
    // As the agent does.
    telaio_netlink::heap::share_one_arena();
    let args: Vec<String> = std::env::args().skip(1).filter(|arg| arg != "--bench").collect();
    run::run(&args.iter().map(String::as_str).collect::<Vec<_>>())
}

/// What is measured is Linux's.
#[cfg(not(target_os = "linux"))]
fn main() {}
