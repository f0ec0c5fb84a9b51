//! Both sides by size, side by side.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use telaio_testkit::guest::GuestCommand;

use crate::cluster::Size;
use crate::table::{Samples, Table, met};

/// What the figures in docs/benchmarks.md stand for.
const SIZES: [Size; 2] = [Size::new(1_000, 2), Size::new(10_000, 2)];
/// How long a guest may take: the slowest of the programs takes a minute.
const GUEST_TIME_MAX: Duration = Duration::from_mins(10);
/// By how much one change may be slower at the largest size than at the smallest.
const GROWTH_MAX: f64 = 1.5;
/// How often each is measured, on a guest of its own; the median counts.
const RUNS: usize = 3;
/// The usual programs, in the order in which they are fed.
const PROGRAMS: [&str; 4] = ["ipset", "ipvsadm", "ip", "iptables-legacy-restore"];

type Figures = BTreeMap<String, f64>;

/// Measures at these sizes, or at those that docs/benchmarks.md has.
pub(crate) fn report(sizes: &[&str]) -> Result<()> {
    let sizes: Vec<Size> = if sizes.is_empty() {
        SIZES.to_vec()
    } else {
        sizes.iter().map(|size| size.parse()).collect::<Result<_>>()?
    };
    let mut cold = cold_table();
    let mut changes = changes_table();
    let mut change_ms = Vec::new();
    for size in &sizes {
        eprintln!("bench ipvs: {size}");
        let (ours, theirs) = (run("ours", *size)?, run("programs", *size)?);
        cold.row(&cold_row(*size, &ours, &theirs)?);
        changes.row(&changes_row(*size, &ours)?);
        change_ms.push(get(&ours, "change_cpu_ms")?);
    }
    if let ([first, ..], Some(last)) = (&change_ms[..], change_ms.last()) {
        let growth = last / first;
        let is_met = met(growth <= GROWTH_MAX);
        changes.remark(&format!(
            "From the smallest to the largest one change grows by {growth:.2} × in CPU (bar {GROWTH_MAX} ×: \
             {is_met})."
        ));
    }
    println!("{cold}\n{changes}");
    Ok(())
}

fn cold_table() -> Table {
    Table::new(
        "Cold start on a guest kernel",
        "From services in memory to everything in the kernel, in ms of CPU with children, on User-mode Linux, \
         whose system calls are slow. Beside it the usual programs with the same state as ready text: \
         `ipset restore`, `ipvsadm -R`, `ip -batch` and `iptables-restore`. The bar is their sum. Patch groups \
         are counted as they are worked out with their steps, and in all of the cold start, the kernel's work \
         included. Medians of three kernels.",
        &[
            "services",
            "ours",
            "ipset",
            "ipvsadm",
            "ip",
            "iptables",
            "sum",
            "ours / sum",
            "met",
            "wall, ours and theirs",
            "patch groups per s, worked out",
            "and applied",
        ],
    )
}

fn cold_row(size: Size, ours: &Figures, theirs: &Figures) -> Result<Vec<String>> {
    let whole = |value: f64| format!("{value:.0}");
    let (own, all) = (get(ours, "cold_cpu_ms")?, get(theirs, "all_cpu_ms")?);
    let mut row = vec![size.to_string(), whole(own)];
    for program in PROGRAMS {
        row.push(whole(get(theirs, &format!("{program}_cpu_ms"))?));
    }
    row.extend([whole(all), format!("{:.2} ×", own / all), met(own <= all).to_owned()]);
    let (wall, their_wall) = (get(ours, "cold_wall_ms")?, get(theirs, "all_wall_ms")?);
    row.push(format!("{wall:.0}, {their_wall:.0}"));
    row.push(whole(get(ours, "groups_per_s")?));
    row.push(whole(get(ours, "groups_applied_per_s")?));
    Ok(row)
}

fn changes_table() -> Table {
    Table::new(
        "One endpoint replaced, and nothing to do",
        "A change goes from the service in memory to the kernel. Commands are netlink requests that change \
         something. Nothing to do: all services come once more, as after a new connection to their source; \
         calls are all that is sent by netlink, also to read (bar 0). A look reads all of the kernel back, as \
         once in a while, and finds it as it should be.",
        &[
            "services",
            "change, ms CPU",
            "ms wall p50",
            "commands",
            "nothing to do, ms CPU",
            "netlink calls",
            "met",
            "a look, ms CPU",
            "netlink calls",
            "commands",
        ],
    )
}

fn changes_row(size: Size, ours: &Figures) -> Result<Vec<String>> {
    let calls = get(ours, "resync_calls")?;
    Ok(vec![
        size.to_string(),
        format!("{:.2}", get(ours, "change_cpu_ms")?),
        format!("{:.2}", get(ours, "change_wall_ms")?),
        format!("{:.1}", get(ours, "change_commands")?),
        format!("{:.0}", get(ours, "resync_cpu_ms")?),
        format!("{calls:.0}"),
        met(calls == 0.0).to_owned(),
        format!("{:.0}", get(ours, "look_cpu_ms")?),
        format!("{:.0}", get(ours, "look_calls")?),
        format!("{:.0}", get(ours, "look_commands")?),
    ])
}

fn get(figures: &Figures, name: &str) -> Result<f64> {
    figures.get(name).copied().with_context(|| format!("no figure {name}"))
}

/// Has guests measure; each figure's median.
fn run(role: &str, size: Size) -> Result<Figures> {
    let mut all: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for _ in 0..RUNS {
        for (name, value) in run_once(role, size)? {
            all.entry(name).or_default().push(value);
        }
    }
    Ok(all.into_iter().map(|(name, values)| (name, Samples::new(values).median())).collect())
}

fn run_once(role: &str, size: Size) -> Result<Figures> {
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
