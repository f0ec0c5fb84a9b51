//! The `windows` suite: what only Windows runs, built here and run under wine.
//!
//! `telaio-hcn` calls computenetwork.dll. Its tests are built for Windows, and beside them a stand-in for
//! that library, which checks what it is sent, misbehaves on request and counts what leaks. Cargo puts
//! all of them into one directory, which is where Windows looks for libraries first.

use anyhow::Result;

use crate::exec::{Step, cargo, target_directory};
use crate::install;

/// What we build for.
const TARGET: &str = "x86_64-pc-windows-gnu";
/// How long a test program may take under wine; the first has to wait for wine to set itself up.
const PROGRAM_S_MAX: u32 = 300;

/// Checks, builds and runs; whether all is well.
pub(crate) fn suite() -> Result<bool> {
    let wine = install::windows(TARGET)?;
    let clippy = ["clippy", "--target", TARGET, "--all-targets", "-p", "telaio-hcn", "-p"];
    let clippy = cargo(clippy).args(["telaio-hcn-standin", "--", "-D", "warnings"]);
    if !without_debug_info(clippy).run()? {
        return Ok(false);
    }
    let standin = ["build", "--target", TARGET, "-p", "telaio-hcn-standin"];
    // It is what the standard library leans on, so it has to do without, and without unwinding.
    let prng = ["rustc", "--target", TARGET, "-p", "telaio-hcn-standin-prng", "--lib", "--"];
    let prng = cargo(prng).args(["-C", "panic=abort"]);
    if !without_debug_info(cargo(standin)).run()? || !without_debug_info(prng).run()? {
        return Ok(false);
    }
    let tests = ["test", "--target", TARGET, "-p", "telaio-hcn", "--lib", "--test", "windows"];
    under_wine(without_debug_info(cargo(tests)), wine)?.run()
}

/// Debug information would be most of what is written, and wine makes no use of it.
fn without_debug_info(step: Step) -> Step {
    step.env("CARGO_PROFILE_DEV_DEBUG", "0")
}

/// With wine as what cargo runs test programs by, each for a bounded time, and a Windows of our own.
fn under_wine(step: Step, wine: &str) -> Result<Step> {
    let runner = format!("timeout --kill-after=10 {PROGRAM_S_MAX} {wine}");
    let prefix = target_directory().join("wine");
    std::fs::create_dir_all(&prefix)?;
    Ok(step
        .env("CARGO_TARGET_X86_64_PC_WINDOWS_GNU_RUNNER", &runner)
        .env("WINEPREFIX", &prefix.to_string_lossy())
        // No chatter, and no offer to install what is never needed.
        .env("WINEDEBUG", "-all")
        .env("WINEDLLOVERRIDES", "mscoree,mshtml="))
}
