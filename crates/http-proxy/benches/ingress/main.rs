//! What a request costs, beside the usual proxies: `cargo xtask bench ingress`.
//!
//! The proxy that is measured has one core, load and backend the other. The same backend, the same
//! certificate, the same fields added (`X-Forwarded-*`, a request's name). Each figure is the median
//! of interleaved rounds with its spread; CPU time is the process's own, from the kernel's account.
//!
//! Tables go to standard output, in Markdown; `cargo xtask bench` writes them to docs/benchmarks.md.
//! Arguments choose cases (`get tls`), rounds (`--rounds 9`) and seconds (`--seconds 3`).

#![allow(
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::missing_docs_in_private_items,
    reason = "figures for people"
)]

mod cases;
mod ours;
mod peers;
mod usage;

fn main() -> anyhow::Result<()> {
    let args: Vec<String> = std::env::args().skip(1).filter(|arg| arg != "--bench").collect();
    match args.first().map(String::as_str) {
        Some("serve") => ours::serve(&args[1..]),
        _ => cases::run(&args),
    }
}
