//! What the kernel says a process has used.

use std::fs;

use anyhow::{Context, Result};

/// A process and those that it started, and they.
pub(crate) fn family(pid: u32) -> Result<Vec<u32>> {
    let mut all = vec![pid];
    let mut next = 0;
    while let Some(pid) = all.get(next).copied() {
        next += 1;
        for thread in fs::read_dir(format!("/proc/{pid}/task"))? {
            let children = fs::read_to_string(thread?.path().join("children"))?;
            all.extend(children.split_whitespace().filter_map(|child| child.parse::<u32>().ok()));
        }
    }
    Ok(all)
}

/// CPU time of a process and those that it started, with all their threads, in nanoseconds.
pub(crate) fn cpu_ns(pid: u32) -> Result<u64> {
    let mut sum = 0;
    for pid in family(pid)? {
        for thread in fs::read_dir(format!("/proc/{pid}/task"))? {
            let text = fs::read_to_string(thread?.path().join("schedstat"))?;
            let own = text.split_whitespace().next().context("schedstat is empty")?;
            sum += own.parse::<u64>()?;
        }
    }
    Ok(sum)
}

/// Resident memory of a process and those that it started, in MiB: of each its share, so that their sum counts nothing twice.
pub(crate) fn resident_mib(pid: u32) -> Result<Vec<f64>> {
    family(pid)?.into_iter().map(resident_of).collect()
}

fn resident_of(pid: u32) -> Result<f64> {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?;
    let line = text.lines().find_map(|line| line.strip_prefix("Pss:")).context("no Pss")?;
    let kib: f64 = line.trim().trim_end_matches(" kB").parse()?;
    Ok(kib / 1024.0)
}

/// The middle of some figures, and how far they spread.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    least: f64,
    most: f64,
}

impl Spread {
    pub(crate) fn of(mut figures: Vec<f64>) -> Self {
        figures.sort_by(f64::total_cmp);
        let last = figures.len().saturating_sub(1);
        let at = |place: usize| figures.get(place).copied().unwrap_or(f64::NAN);
        Self { median: at(last / 2), least: at(0), most: at(last) }
    }

    /// In text, with so many digits after the point.
    pub(crate) fn show(&self, digits: usize) -> String {
        format!("{:.digits$} ({:.digits$}–{:.digits$})", self.median, self.least, self.most)
    }
}
