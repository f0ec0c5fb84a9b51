//! What a request costs, beside the usual proxies: `cargo xtask bench ingress`.
//!
//! Ours is the released binary as people run it: `telaio run --planes ingress` on a directory of
//! manifests, with its worker in a process of its own; what both processes use is counted. The proxy
//! that is measured has one core, load and backend the other, all with a priority above whatever else
//! the machine does. The same backend, the same certificate, the same fields added (`X-Forwarded-*`, a
//! request's name), one thread each. A figure is the median of interleaved rounds with its spread.
//!
//! Tables go to standard output, in Markdown; `cargo xtask bench` writes them to docs/benchmarks.md.
//! Arguments choose cases (`get 64k tls h2 connect latency memory routes cache propagation`), rounds
//! (`--rounds 9`), seconds of a round (`--seconds 3`) and the proxies beside ours (`--beside nginx,haproxy`).

#![allow(
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::missing_docs_in_private_items,
    reason = "figures for people"
)]

#[cfg(target_os = "linux")]
mod cases;
#[cfg(target_os = "linux")]
mod load;
#[cfg(target_os = "linux")]
mod ours;
#[cfg(target_os = "linux")]
mod peers;
#[cfg(target_os = "linux")]
mod propagation;
#[cfg(target_os = "linux")]
mod rig;
#[cfg(target_os = "linux")]
mod routes;
#[cfg(target_os = "linux")]
mod usage;

#[cfg(target_os = "linux")]
fn main() -> anyhow::Result<()> {
    let args: Vec<String> = std::env::args().skip(1).filter(|arg| arg != "--bench").collect();
    cases::run(&args)
}

#[cfg(not(target_os = "linux"))]
fn main() {
    println!("this benchmark runs on Linux");
}
