//! Both sides by size, side by side.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use telaio_testkit::guest::GuestCommand;

use crate::cluster::Size;
use crate::table::{Table, met};

/// What the figures in docs/benchmarks.md stand for.
const SIZES: [Size; 2] = [Size::new(1_000, 2), Size::new(10_000, 2)];
/// How long a guest may take: the slowest of the programs takes a minute.
const GUEST_TIME_MAX: Duration = Duration::from_mins(10);
/// By how much one change may be slower at the largest size than at the smallest.
const GROWTH_MAX: f64 = 1.5;

type Figures = BTreeMap<String, f64>;

/// Measures at these sizes, or at those that docs/benchmarks.md has.
pub(crate) fn report(sizes: &[&str]) -> Result<()> {
    let sizes: Vec<Size> = if sizes.is_empty() {
        SIZES.to_vec()
    } else {
        sizes.iter().map(|size| size.parse()).collect::<Result<_>>()?
    };
    let mut cold = Table::new(
        "Cold start on a guest kernel",
        "From services in memory to everything in the kernel, in ms of CPU, children included. Beside it \
         `ipvsadm -R`, `ipset restore`, `ip -batch` and `iptables-restore` of the same state.",
        &["services", "ours", "wall", "the programs", "their wall", "met", "patch groups per s"],
    );
    let mut changes = Table::new(
        "One endpoint replaced, and nothing to do",
        "Commands are netlink requests that change something.",
        &[
            "services",
            "change, ms wall p50",
            "change, ms CPU",
            "commands",
            "resync, ms CPU",
            "commands",
        ],
    );
    let mut change_ms = Vec::new();
    for size in &sizes {
        eprintln!("bench ipvs: {size}");
        let ours = run("ours", *size)?;
        let theirs = run("programs", *size)?;
        let get = |name: &str| ours.get(name).copied().unwrap_or(f64::NAN);
        let their = |name: &str| theirs.get(name).copied().unwrap_or(f64::NAN);
        cold.row(&[
            size.to_string(),
            format!("{:.0}", get("cold_cpu_ms")),
            format!("{:.0}", get("cold_wall_ms")),
            format!("{:.0}", their("all_cpu_ms")),
            format!("{:.0}", their("all_wall_ms")),
            met(get("cold_cpu_ms") <= their("all_cpu_ms")).to_owned(),
            format!("{:.0}", get("groups_per_s")),
        ]);
        changes.row(&[
            size.to_string(),
            format!("{:.2}", get("change_wall_ms")),
            format!("{:.2}", get("change_cpu_ms")),
            format!("{:.1}", get("change_commands")),
            format!("{:.0}", get("resync_cpu_ms")),
            format!("{:.0}", get("resync_commands")),
        ]);
        change_ms.push(get("change_cpu_ms"));
    }
    if let ([first, ..], Some(last)) = (&change_ms[..], change_ms.last()) {
        let growth = last / first;
        let is_met = met(growth <= GROWTH_MAX);
        changes.remark(&format!(
            "From the smallest to the largest one change grows by {growth:.2} × (bar {GROWTH_MAX} ×: \
             {is_met})."
        ));
    }
    println!("{cold}\n{changes}");
    Ok(())
}

/// Has a guest measure.
fn run(role: &str, size: Size) -> Result<Figures> {
    let program = std::env::current_exe().context("our own program")?;
    let guest = GuestCommand::new(program)
        .args(["role", role, &size.to_string()])
        .time_max(GUEST_TIME_MAX)
        .run()?;
    if guest.code != 0 {
        bail!("{role} at {size} failed on the guest kernel: {guest}");
    }
    let figures = guest.stdout.lines().filter_map(|line| line.split_once('='));
    let figures = figures.filter_map(|(name, value)| Some((name.to_owned(), value.parse().ok()?)));
    Ok(figures.collect())
}
