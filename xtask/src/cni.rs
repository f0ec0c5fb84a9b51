//! `cargo xtask cni`: the CNI plugin as nodes get it: optimised, static, small.
//!
//! A plugin is started for every pod, and by runtimes whose system is not ours: so it needs no library of the machine.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::exec::{cargo, program, target_directory};

const TARGET: &str = "x86_64-unknown-linux-gnu";
/// Large enough for what it does, small enough to be read at every start.
const BYTES_MAX: u64 = 6 << 20;
/// What would start threads and a reactor in a program that makes a few calls of the kernel and ends.
const RUNTIMES: [&str; 6] =
    ["tokio", "async-std", "smol", "async-executor", "futures-executor", "mio"];

/// Builds it, and looks at what it became.
pub(crate) fn run(mut args: impl Iterator<Item = String>) -> Result<bool> {
    if let Some(other) = args.next() {
        bail!("cni takes no arguments, not {other:?}");
    }
    let runtimes = runtimes("telaio-pod-network")?;
    if !runtimes.is_empty() {
        bail!("the plugin is built with an asynchronous runtime: {}", runtimes.join(", "));
    }
    // A directory of its own: with other flags cargo would build everything else anew as well.
    let directory = target_directory().join("static");
    let build = ["build", "--release", "-p", "telaio-pod-network", "--bin", "telaio-cni"];
    let built = cargo(build)
        .args(["--target", TARGET, "--target-dir", &directory.to_string_lossy()])
        .env("RUSTFLAGS", "-C target-feature=+crt-static -C strip=symbols")
        .run()?;
    if !built {
        return Ok(false);
    }
    let path = directory.join(TARGET).join("release/telaio-cni");
    let bytes = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
    if has_interpreter(&bytes) {
        bail!("{} needs libraries of the machine: it is not static", path.display());
    }
    if bytes.len() as u64 > BYTES_MAX {
        bail!("{} has {} KiB, more than {}", path.display(), bytes.len() >> 10, BYTES_MAX >> 10);
    }
    check_answer(&path)?;
    println!("{} ({} KiB, static)", path.display(), bytes.len() >> 10);
    Ok(true)
}

/// The asynchronous runtimes that a package is built with.
fn runtimes(package: &str) -> Result<Vec<String>> {
    let tree = ["tree", "--offline", "-p", package, "-e", "normal", "--prefix", "none"];
    let (is_ok, text) = cargo(tree).capture()?;
    if !is_ok {
        bail!("cargo does not say what {package} is built with: {text}");
    }
    let built_with: BTreeSet<&str> = text.lines().filter_map(|it| it.split(' ').next()).collect();
    let found = RUNTIMES.into_iter().filter(|runtime| built_with.contains(runtime));
    Ok(found.map(str::to_owned).collect())
}

/// It runs, and says which versions it speaks.
fn check_answer(path: &Path) -> Result<()> {
    let ask = format!("echo '{{\"cniVersion\":\"1.1.0\"}}' | '{}'", path.display());
    let (is_ok, said) =
        program("sh").args(["-c", ask.as_str()]).env("CNI_COMMAND", "VERSION").capture()?;
    for version in ["0.3.1", "0.4.0", "1.0.0", "1.1.0"] {
        if !is_ok || !said.contains(&format!("\"{version}\"")) {
            bail!("{} does not say that it speaks {version}: {said}", path.display());
        }
    }
    Ok(())
}

/// Whether an ELF program of 64 bits asks for another one to load its libraries.
fn has_interpreter(elf: &[u8]) -> bool {
    const INTERPRETER: u32 = 3;
    let number = |at: usize, len: usize| {
        let bytes = elf.get(at..at + len)?;
        Some(bytes.iter().rev().fold(0_u64, |sum, byte| sum << 8 | u64::from(*byte)))
    };
    let headers = || {
        let (start, size, count) = (number(32, 8)?, number(54, 2)?, number(56, 2)?);
        Some((0..count).map(move |at| usize::try_from(start + at * size).unwrap_or(usize::MAX)))
    };
    let mut headers = headers().into_iter().flatten();
    headers.any(|at| number(at, 4) == Some(u64::from(INTERPRETER)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_needs_libraries_is_known_by_its_headers() {
        let own = fs::read(std::env::current_exe().unwrap()).unwrap();
        assert!(has_interpreter(&own), "tests are not static");
        assert!(!has_interpreter(b"\x7fELF"));
    }

    #[test]
    fn the_plugin_has_no_asynchronous_runtime() {
        assert_eq!(runtimes("telaio-pod-network").unwrap(), Vec::<String>::new());
        let others = runtimes("telaio-brain").unwrap();
        assert!(
            others.iter().any(|it| it == "tokio"),
            "where there is one it is found: {others:?}"
        );
    }
}
