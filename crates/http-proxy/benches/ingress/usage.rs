//! What the kernel says a process has used.

use std::fs;

use anyhow::{Context, Result};

/// CPU time of a process with all its threads and the processes that it started, in nanoseconds.
pub(crate) fn cpu_ns(pid: u32) -> Result<u64> {
    let mut sum = 0;
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"))?;
    for child in children.split_whitespace() {
        sum += cpu_ns(child.parse()?)?;
    }
    for thread in fs::read_dir(format!("/proc/{pid}/task"))? {
        let text = fs::read_to_string(thread?.path().join("schedstat"))?;
        let own = text.split_whitespace().next().context("schedstat is empty")?;
        sum += own.parse::<u64>()?;
    }
    Ok(sum)
}

/// Resident memory of a process, in MiB.
pub(crate) fn resident_mib(pid: u32) -> Result<f64> {
    let text = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
    let kib: f64 = line.trim().trim_end_matches(" kB").parse()?;
    Ok(kib / 1024.0)
}

/// The middle of some figures, and how far they spread.
pub(crate) fn spread(mut figures: Vec<f64>) -> (f64, f64, f64) {
    figures.sort_by(f64::total_cmp);
    let last = figures.len().saturating_sub(1);
    let at = |place: usize| figures.get(place).copied().unwrap_or(f64::NAN);
    (at(last / 2), at(0), at(last))
}
