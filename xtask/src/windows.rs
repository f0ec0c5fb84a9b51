//! The `windows` suite: what only Windows runs, built here and run under wine.
//!
//! `telaio-hcn` calls computenetwork.dll. Its tests are built for Windows, and beside them a stand-in for
//! that library, which checks what it is sent, misbehaves on request and counts what leaks. Cargo puts
//! all of them into one directory, which is where Windows looks for libraries first.
//!
//! Then the agent itself, whole: there the stand-in lies where Windows has the library, so that the program
//! under test is the one that is handed out. At last that one is packed, unpacked and installed as a service.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::exec::{Step, cargo, program, target_directory};
use crate::{dist, install};

/// What we build for.
pub(crate) const TARGET: &str = "x86_64-pc-windows-gnu";
/// How long a test program may take under wine; the first has to wait for wine to set itself up.
const PROGRAM_S_MAX: u32 = 300;
/// The libraries of Windows that the stand-ins stand in for: what is built, and the names that it goes by.
const STANDINS: [(&str, &[&str]); 2] = [
    ("computenetwork.dll", &["computenetwork.dll", "vmcompute.dll"]),
    ("bcryptprimitives.dll", &["bcryptprimitives.dll"]),
];

/// Checks, builds and runs; whether all is well.
pub(crate) fn suite() -> Result<bool> {
    let wine = install::windows(TARGET)?;
    Ok(border(wine)? && agent(wine)?)
}

/// The calls into Windows' libraries.
fn border(wine: &str) -> Result<bool> {
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

/// The agent, and what is handed out.
fn agent(wine: &str) -> Result<bool> {
    lay_standins()?;
    let clippy =
        ["clippy", "--target", TARGET, "-p", "telaio", "--bin", "telaio", "--test", "windows"];
    let clippy = cargo(clippy).args(["--", "-D", "warnings"]);
    if !without_debug_info(clippy).run()? {
        return Ok(false);
    }
    let zip = {
        if !without_debug_info(build(&[])).run()? {
            return Ok(false);
        }
        dist::pack(&built("telaio.exe"), &target_directory().join("dist-test"))?
    };
    let tests = ["test", "--target", TARGET, "-p", "telaio", "--test", "windows"];
    let tests = cargo(tests).env("TELAIO_TEST_DIST", &unpacked(&zip)?.to_string_lossy());
    under_wine(without_debug_info(tests), wine)?.run()
}

/// The directory that is in a zip.
fn unpacked(zip: &Path) -> Result<PathBuf> {
    let directory = zip.with_extension("unpacked");
    if directory.exists() {
        fs::remove_dir_all(&directory)?;
    }
    let (from, to) = (zip.to_string_lossy(), directory.to_string_lossy());
    anyhow::ensure!(program("unzip").args(["-q", &from, "-d", &to]).run()?, "the zip is broken");
    let name = zip.file_stem().context("a zip has a name")?;
    Ok(directory.join(name))
}

/// Builds the agent for Windows.
pub(crate) fn build(more: &[&str]) -> Step {
    cargo(["build", "--locked", "--target", TARGET, "-p", "telaio"]).args(more)
}

/// A file that was built.
fn built(name: &str) -> PathBuf {
    target_directory().join(TARGET).join("debug").join(name)
}

fn prefix() -> PathBuf {
    target_directory().join("wine")
}

/// Lays the stand-ins where this Windows, which wine has set up, has its own libraries.
fn lay_standins() -> Result<()> {
    let system = prefix().join("drive_c/windows/system32");
    for (file, names) in STANDINS {
        for name in names {
            fs::copy(built(file), system.join(name))
                .with_context(|| format!("cannot lay {name}"))?;
        }
    }
    Ok(())
}

/// Debug information would be most of what is written, and wine makes no use of it.
fn without_debug_info(step: Step) -> Step {
    step.env("CARGO_PROFILE_DEV_DEBUG", "0")
}

/// With wine as what cargo runs test programs by, each for a bounded time, and a Windows of our own.
fn under_wine(step: Step, wine: &str) -> Result<Step> {
    let runner = format!("timeout --kill-after=10 {PROGRAM_S_MAX} {wine}");
    fs::create_dir_all(prefix())?;
    Ok(step
        .env("CARGO_TARGET_X86_64_PC_WINDOWS_GNU_RUNNER", &runner)
        .env("WINEPREFIX", &prefix().to_string_lossy())
        // No chatter, and no offer to install what is never needed.
        .env("WINEDEBUG", "-all")
        .env("WINEDLLOVERRIDES", "mscoree,mshtml="))
}
