//! What a process has used, from /proc.

use std::fs;

use anyhow::{Context as _, Result};

/// CPU time of all threads that this process has now, in nanoseconds.
pub(crate) fn cpu_ns() -> Result<f64> {
    let mut sum = 0.0;
    for task in fs::read_dir("/proc/self/task")? {
        let text = fs::read_to_string(task?.path().join("schedstat"))?;
        let first = text.split_whitespace().next().context("empty schedstat")?;
        sum += first.parse::<f64>()?;
    }
    Ok(sum)
}

/// Resident memory in MiB.
pub(crate) fn rss_mib() -> Result<f64> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
    let kib = line.split_whitespace().next().context("empty VmRSS")?;
    Ok(kib.parse::<f64>()? / 1024.0)
}

/// Nanoseconds since 1970: comparable between processes of one machine.
pub(crate) fn now_ns() -> Result<f64> {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)?;
    Ok(since.as_nanos() as f64)
}
