//! What a process has used, from /proc.

use std::fs;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result};

/// What /proc/PID/stat counts in: USER_HZ, the same on every Linux that we run on.
const TICKS_PER_S: f64 = 100.0;
/// Long enough for whatever was just woken to sleep again: the kernel books a thread's time when it
/// is taken off its processor.
const SETTLING: Duration = Duration::from_millis(5);

/// A process to look at.
#[derive(Debug, Clone)]
pub(crate) struct Process(PathBuf);

impl Process {
    /// Ourselves.
    pub(crate) fn own() -> Self {
        Self("/proc/self".into())
    }

    /// The one of this number.
    pub(crate) fn of(id: u32) -> Self {
        Self(format!("/proc/{id}").into())
    }

    /// CPU time of all threads that it has now, in milliseconds; exact. Ours and the kernel's while
    /// it works for them.
    pub(crate) fn cpu_ms(&self) -> Result<f64> {
        thread::sleep(SETTLING);
        let mut sum_ns = 0.0;
        for task in fs::read_dir(self.0.join("task"))? {
            // A thread that ended since is no longer there to read.
            let Ok(text) = fs::read_to_string(task?.path().join("schedstat")) else { continue };
            let first = text.split_whitespace().next().context("empty schedstat")?;
            sum_ns += first.parse::<f64>()?;
        }
        Ok(sum_ns / 1e6)
    }

    /// CPU time with ended threads and children, in milliseconds; counted in ticks of 10 ms, so for
    /// sums over many runs.
    pub(crate) fn cpu_with_children_ms(&self) -> Result<f64> {
        let stat = fs::read_to_string(self.0.join("stat"))?;
        let (_, after_name) = stat.rsplit_once(')').context("no name in stat")?;
        let fields = after_name.split_whitespace().skip(11).take(4);
        let ticks: f64 = fields.map(str::parse::<f64>).sum::<Result<f64, _>>()?;
        Ok(ticks / TICKS_PER_S * 1e3)
    }

    /// Resident memory now, in MiB.
    pub(crate) fn rss_mib(&self) -> Result<f64> {
        self.status_mib("VmRSS:")
    }

    /// The most resident memory that it ever had, in MiB.
    pub(crate) fn rss_max_mib(&self) -> Result<f64> {
        self.status_mib("VmHWM:")
    }

    fn status_mib(&self, name: &str) -> Result<f64> {
        let status = fs::read_to_string(self.0.join("status"))?;
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        let line = line.with_context(|| format!("no {name}"))?;
        let kib = line.split_whitespace().next().context("empty line")?;
        Ok(kib.parse::<f64>()? / 1024.0)
    }
}
