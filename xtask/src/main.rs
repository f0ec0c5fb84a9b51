//! `cargo xtask`: the project's own commands.
//!
//! ```text
//! cargo xtask test [--long] [--only SUITE]...    everything that is checked, in order
//! cargo xtask bench brain [ARGS...]              the brain's benchmark, into docs/benchmarks.md
//! cargo xtask cni                                the static CNI plugin, in target/static
//! cargo xtask dist                               the zip for Windows, in target/dist
//! cargo xtask page [--screenshots]               the web page, from its sources; pictures for docs/
//! ```
//!
//! What always holds: a suite that fails does not keep the others from running, every suite's time is
//! printed, and the exit code is non-zero when any failed. What the suites need and the machine lacks
//! is installed first, by name and in a pinned version.

mod bench;
mod cache;
mod cni;
mod dist;
mod exec;
mod install;
mod page;
mod suites;
mod windows;

use std::process::ExitCode;

use anyhow::{Result, bail};

const USAGE: &str = "\
Usage: cargo xtask COMMAND

Commands:
  test [--long] [--only SUITE]...   install what is missing, then run the suites
  bench brain [ARGS...]             run the brain's benchmark and write docs/benchmarks.md
                                    (with arguments, as --sizes 1k,10k: only print)
  cni                               build the CNI plugin as nodes get it: static, in target/static
  dist                              build the release for Windows and pack it: target/dist/*.zip
  page [--screenshots]              build the web page into crates/gui/page/dist; with the flag
                                    also take the pictures in docs/screenshots

Suites: ";

fn main() -> ExitCode {
    match run(std::env::args().skip(1).collect()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Runs the command; `false` means that it ran and something it checked does not hold.
fn run(args: Vec<String>) -> Result<bool> {
    let mut args = args.into_iter();
    match args.next().as_deref() {
        Some("test") => suites::test(&suites::Selection::parse(args)?),
        Some("bench") => bench::run(args),
        Some("cni") => cni::run(args),
        Some("dist") => dist::run(args),
        Some("page") => page::command(args),
        Some("help" | "--help" | "-h") | None => {
            println!("{USAGE}{}", suites::names().join(", "));
            Ok(true)
        }
        Some(other) => {
            bail!("there is no command {other:?}\n\n{USAGE}{}", suites::names().join(", "))
        }
    }
}
