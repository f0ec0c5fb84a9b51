//! nftables: one change, from the event in memory to the kernel; and syncs that find nothing to do.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use telaio_model::{IpFamily, Op};
use telaio_service_proxy::nftables::NftablesBackend;

use crate::cluster::{Cluster, Size};
use crate::kernel::KernelView;
use crate::rig::{self, Rig};
use crate::role::{self, Figures};
use crate::table::{Samples, Table, bar};
use crate::usage::Process;
use crate::{floor, progress};

/// How many changes of each kind are made.
const CHANGES: u32 = 300;
/// Changes before them that do not count.
const WARM_UP: u32 = 20;
/// How long we wait between two, so that each acts at once, as it would on a node.
const PAUSE: Duration = Duration::from_millis(12);
/// How many syncs with nothing to do are asked for.
const SYNCS: u32 = 7;
/// How soon what somebody else removed must be back.
const REPAIR_TIME_MAX: Duration = Duration::from_secs(10);

/// What is measured at each size.
struct Bench {
    rig: Rig,
    kernel: KernelView,
    cluster: Cluster,
    size: Size,
}

/// Times of one kind of change.
struct Times {
    wall_ms: Samples,
    cpu_ms: f64,
}

impl Bench {
    /// Another service with each round, all over the cluster.
    fn service(&self, round: u32) -> u32 {
        round.wrapping_mul(7919) % self.size.services
    }

    /// Makes changes and takes the time of those that count; the kernel must have them all.
    fn changes(
        &mut self,
        mut change: impl FnMut(&mut Cluster, u32, u32) -> Result<Vec<Op>>,
        counts: impl Fn(u32) -> bool,
    ) -> Result<Times> {
        let mut times_ms = Vec::new();
        let mut cpu_before = 0.0;
        for round in 0..WARM_UP + CHANGES {
            if round == WARM_UP {
                cpu_before = Process::own().cpu_ms()?;
            }
            let service = self.service(round / 2);
            let ops = change(&mut self.cluster, round, service)?;
            thread::sleep(PAUSE);
            let started = Instant::now();
            self.rig.send(ops)?;
            if round >= WARM_UP && counts(round) {
                times_ms.push(started.elapsed().as_secs_f64() * 1e3);
            }
        }
        let cpu_ms = (Process::own().cpu_ms()? - cpu_before) / f64::from(CHANGES);
        self.kernel.check(&self.cluster)?;
        Ok(Times { wall_ms: Samples::new(times_ms), cpu_ms })
    }

    /// Full syncs with nothing to do.
    fn syncs(&mut self, others_change: bool) -> Result<(f64, f64)> {
        let mut walls_ms = Vec::new();
        let mut cpus_ms = Vec::new();
        for _ in 0..SYNCS {
            if others_change {
                self.kernel.change_others_table()?;
            }
            thread::sleep(PAUSE);
            let (before, syncs) = (Process::own().cpu_ms()?, self.rig.handle.stats().syncs_total);
            let started = Instant::now();
            self.rig.handle.resync();
            self.rig.wait()?;
            walls_ms.push(started.elapsed().as_secs_f64() * 1e3);
            cpus_ms.push(Process::own().cpu_ms()? - before);
            if self.rig.handle.stats().syncs_total == syncs {
                bail!("there was no sync");
            }
        }
        self.kernel.check(&self.cluster)?;
        Ok((Samples::new(walls_ms).median(), Samples::new(cpus_ms).median()))
    }

    /// How long something that somebody else removed stays away, in milliseconds.
    fn repair_ms(&mut self) -> Result<f64> {
        let ways = self.kernel.count("ways")?;
        thread::sleep(PAUSE);
        self.kernel.remove_a_way()?;
        let started = Instant::now();
        while self.kernel.count("ways")? != ways {
            if started.elapsed() > REPAIR_TIME_MAX {
                bail!("a way that was removed is not back after {REPAIR_TIME_MAX:?}");
            }
            thread::sleep(Duration::from_micros(500));
        }
        let repair_ms = started.elapsed().as_secs_f64() * 1e3;
        self.rig.wait()?;
        self.kernel.check(&self.cluster)?;
        Ok(repair_ms)
    }
}

/// The kinds of changes, by the names of their figures.
const KINDS: [&str; 6] = [
    "one endpoint replaced",
    "number of endpoints changed",
    "one more endpoint, a number that no service has yet",
    "one service added",
    "one service removed",
    "100 endpoints replaced at once",
];

/// The most that the median of a kind of change may take, in milliseconds.
fn p50_ms_max(size: Size, kind: usize) -> Option<f64> {
    match (kind, size.services, size.endpoints) {
        (0, _, 2) => Some(1.0),
        (1 | 2, 30_000, 2) => Some(5.0),
        _ => None,
    }
}

/// Makes changes to a cluster and says what each took.
pub(crate) fn role(size: Size) -> Result<()> {
    rig::enter_own_namespace("changes")?;
    let kernel = KernelView::open()?;
    let cluster = Cluster::new(size);
    let mut rig = Rig::start(&IpFamily::ALL, |options| Box::new(NftablesBackend::new(options)))?;
    rig.send(cluster.all())?;
    let mut bench = Bench { rig, kernel, cluster, size };
    let say = |kind: usize, times: &Times| {
        let name = KINDS[kind];
        role::say(&[
            (&format!("{name}, p50"), times.wall_ms.median()),
            (&format!("{name}, p99"), times.wall_ms.at(0.99)),
            (&format!("{name}, cpu"), times.cpu_ms),
        ])
    };
    let all = |_: u32| true;
    let grow_and_shrink = |cluster: &mut Cluster, round: u32, service: u32| match round % 2 {
        0 => cluster.add_endpoint(service),
        _ => cluster.remove_endpoint(service),
    };
    say(0, &bench.changes(|cluster, _, service| cluster.replace_endpoint(service), all)?)?;
    say(2, &bench.changes(grow_and_shrink, |round| round % 2 == 0)?)?;
    // From here on one service has one more endpoint than the others.
    let last = size.services - 1;
    let more = bench.cluster.add_endpoint(last)?;
    bench.rig.send(more)?;
    let but_the_last = move |cluster: &mut Cluster, round: u32, service: u32| {
        grow_and_shrink(cluster, round, if service == last { 0 } else { service })
    };
    say(1, &bench.changes(but_the_last, all)?)?;
    let add_and_remove = |cluster: &mut Cluster, round: u32, _: u32| match round % 2 {
        0 => Ok(cluster.add_service(size.services, size.endpoints)),
        _ => cluster.remove_service(size.services),
    };
    say(3, &bench.changes(add_and_remove, |round| round % 2 == 0)?)?;
    say(4, &bench.changes(add_and_remove, |round| round % 2 == 1)?)?;
    let many = |cluster: &mut Cluster, round: u32, _: u32| {
        let services = (0..100).map(|it| (round * 100 + it).wrapping_mul(7919) % size.services);
        let ops: Result<Vec<Vec<Op>>> = services.map(|it| cluster.replace_endpoint(it)).collect();
        Ok(ops?.concat())
    };
    say(5, &bench.changes(many, all)?)?;
    let (wall, cpu) = bench.syncs(false)?;
    role::say(&[("sync wall", wall), ("sync cpu", cpu)])?;
    let (wall, cpu) = bench.syncs(true)?;
    role::say(&[("observe wall", wall), ("observe cpu", cpu)])?;
    role::say(&[("repair", bench.repair_ms()?), ("rss", Process::own().rss_mib()?)])?;
    floor_of_a_change(size)
}

/// The same change by the `nft` program, in the table as it is.
fn floor_of_a_change(size: Size) -> Result<()> {
    let text = floor::text()?;
    rig::enter_own_namespace("floor")?;
    floor::nft_file(&text)?;
    let key = format!("{} . tcp . 80 . 0x00000000", crate::cluster::cluster_ip(size.services / 2));
    let listed = text.find(&key).map(|at| &text[at..]);
    let Some(mut old) = listed.and_then(|it| it.split([',', '}']).next()).map(str::trim) else {
        bail!("nft lists no element {key}");
    };
    let new = format!("{key} : 10.255.0.1 . 8080");
    let (mut walls, mut cpus) = (Vec::new(), Vec::new());
    for round in 0..11 {
        let other = if round % 2 == 0 { new.as_str() } else { old };
        let current = if round % 2 == 0 { old } else { new.as_str() };
        let used = floor::nft_file(&format!(
            "delete element ip telaio endpoints {{ {current} }}\n\
             add element ip telaio endpoints {{ {other} }}\n"
        ))?;
        walls.push(used.wall_ms);
        cpus.push(used.cpu_ms);
    }
    old = new.as_str();
    if !floor::output("nft", &["list", "map", "ip", "telaio", "endpoints"])?.contains(old) {
        bail!("nft did not change {key}");
    }
    role::say(&[
        ("nft wall", Samples::new(walls).median()),
        ("nft cpu", Samples::new(cpus).median()),
    ])
}

/// What kube-proxy needed for one endpoint.
fn peer(size: Size, kind: usize) -> &'static str {
    match (size.services, size.endpoints, kind) {
        (1_000, 2, 0) => "37–48",
        (10_000, 2, 0) => "349",
        _ => "",
    }
}

/// Changes at every size.
pub(crate) fn tables(sizes: &[Size]) -> Result<String> {
    let mut changes = Table::new(
        "nftables: one change, from the event in memory to the kernel",
        "Wall time, one change at a time; CPU is ours and the kernel's on our behalf, per change. \
         `nft -f`: the smallest text that makes the same change. kube-proxy 1.37 was measured \
         elsewhere, from a patched EndpointSlice on.",
        &[
            "services × endpoints",
            "change",
            "p50 ms",
            "p99 ms",
            "CPU ms",
            "bar (p50)",
            "met",
            "`nft -f` wall / CPU ms",
            "kube-proxy p50 ms",
        ],
    );
    let mut syncs = Table::new(
        "nftables: full sync with nothing to do, and repair",
        "Others changed: somebody else has changed a table of theirs since, so that ours is read back \
         and compared. Repair: from the moment that somebody removes an element until it is back.",
        &[
            "services × endpoints",
            "sync wall ms",
            "CPU ms",
            "others changed: wall ms",
            "CPU ms",
            "repair ms",
            "bar",
            "met",
            "RSS then MiB",
        ],
    );
    let mut by_size: Vec<(Size, Figures)> = Vec::new();
    for &size in sizes {
        progress(&format!("{size}: changes by nftables"));
        let figures = role::ask(&["changes", &size.to_string()])?;
        for (kind, name) in KINDS.into_iter().enumerate() {
            let p50_ms = figures.need(&format!("{name}, p50"))?;
            let [bar, met] = bar(p50_ms, p50_ms_max(size, kind), "ms");
            let floor = match kind {
                0 => format!("{:.1} / {:.1}", figures.need("nft wall")?, figures.need("nft cpu")?),
                _ => String::new(),
            };
            changes.row(&[
                size.to_string(),
                name.to_owned(),
                format!("{p50_ms:.3}"),
                format!("{:.3}", figures.need(&format!("{name}, p99"))?),
                format!("{:.3}", figures.need(&format!("{name}, cpu"))?),
                bar,
                met,
                floor,
                peer(size, kind).to_owned(),
            ]);
        }
        let repair_ms = figures.need("repair")?;
        let [bar, met] = bar(repair_ms, Some(1000.0), "ms");
        syncs.row(&[
            size.to_string(),
            format!("{:.1}", figures.need("sync wall")?),
            format!("{:.1}", figures.need("sync cpu")?),
            format!("{:.1}", figures.need("observe wall")?),
            format!("{:.1}", figures.need("observe cpu")?),
            format!("{repair_ms:.1}"),
            bar,
            met,
            format!("{:.0}", figures.need("rss")?),
        ]);
        by_size.push((size, figures));
    }
    remark_on_growth(&by_size, &mut changes)?;
    Ok(format!("{changes}{syncs}"))
}

/// Says how the time of one change grows with the cluster.
fn remark_on_growth(by_size: &[(Size, Figures)], table: &mut Table) -> Result<()> {
    let of_two: Vec<_> = by_size.iter().filter(|(size, _)| size.endpoints == 2).collect();
    let ([(small, of_small), ..], [.., (large, of_large)]) = (&of_two[..], &of_two[..]) else {
        return Ok(());
    };
    if small == large {
        return Ok(());
    }
    let ratio = |what: &str| -> Result<f64> {
        let name = format!("{}, {what}", KINDS[0]);
        Ok(of_large.need(&name)? / of_small.need(&name)?)
    };
    let [bar, met] = bar(ratio("p50")?, Some(1.5), "×");
    table.remark(&format!(
        "One endpoint replaced at {large} against {small}: {:.2} × the wall time at p50 (bar {bar}, \
         met: {met}), {:.2} × the CPU time.",
        ratio("p50")?,
        ratio("cpu")?
    ));
    Ok(())
}
