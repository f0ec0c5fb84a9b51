//! iptables: cold start and one change, beside `iptables-restore` with the text ready.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use telaio_model::IpFamily;
use telaio_service_proxy::config::NodeFacts;
use telaio_service_proxy::iptables::{Flavor, IptablesBackend, render};

use crate::cluster::{Cluster, Size};
use crate::rig::{self, Rig};
use crate::role::{self, Figures};
use crate::table::{Samples, Table, bar};
use crate::usage::Process;
use crate::{floor, progress};

/// How long we wait between two changes, so that each acts at once.
const PAUSE: Duration = Duration::from_millis(150);

/// How often each case is measured, ours and the floor in turn.
const RUNS: usize = 3;

/// What is measured: flavour, size, how many cold starts and how many changes each time.
const CASES: [(&str, Size, u32, u32); 4] = [
    ("nft", Size::new(1_000, 2), 5, 30),
    ("nft", Size::new(5_000, 2), 1, 15),
    ("legacy", Size::new(1_000, 2), 5, 30),
    ("legacy", Size::new(10_000, 2), 2, 10),
];

pub(crate) fn flavor(name: &str) -> Result<Flavor> {
    match name {
        "nft" => Ok(Flavor::Nft),
        "legacy" => Ok(Flavor::Legacy),
        other => bail!("there is no iptables-{other}"),
    }
}

/// Takes the time of a cold start and of changes.
struct Clock {
    walls_ms: Vec<f64>,
    cpu_ms: f64,
}

impl Clock {
    fn new() -> Self {
        Self { walls_ms: Vec::new(), cpu_ms: 0.0 }
    }

    fn time<T>(&mut self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let process = Process::own();
        let before_ms = process.cpu_with_children_ms()?;
        let started = Instant::now();
        let done = work()?;
        self.walls_ms.push(started.elapsed().as_secs_f64() * 1e3);
        self.cpu_ms += process.cpu_with_children_ms()? - before_ms;
        Ok(done)
    }

    fn say(self, name: &str) -> Result<()> {
        let count = self.walls_ms.len().max(1) as f64;
        role::say(&[
            (&format!("{name} wall"), Samples::new(self.walls_ms).median()),
            (&format!("{name} cpu"), self.cpu_ms / count),
        ])
    }
}

/// Ours: cold starts, then changes.
pub(crate) fn ours(flavor_name: &str, size: Size, colds: u32, changes: u32) -> Result<()> {
    let flavor = flavor(flavor_name)?;
    let mut cluster = Cluster::new(size);
    let mut cold = Clock::new();
    let mut running: Option<Rig> = None;
    for _ in 0..colds {
        // Ended before the next begins: it watches over its rules.
        drop(running.take());
        rig::enter_own_namespace("iptables")?;
        let ops = cluster.all();
        running = Some(cold.time(|| {
            let make = |options| Box::new(IptablesBackend::new(options, flavor)) as _;
            let mut rig = Rig::start(&[IpFamily::V4], make)?;
            rig.send(ops)?;
            Ok(rig)
        })?);
        check(flavor_name, &cluster)?;
    }
    cold.say("cold")?;
    let mut rig = running.context("there was no cold start")?;
    let mut one = Clock::new();
    for round in 0..changes {
        let ops = cluster.replace_endpoint(chosen(size, round))?;
        std::thread::sleep(PAUSE);
        one.time(|| rig.send(ops))?;
    }
    one.say("change")?;
    check(flavor_name, &cluster)
}

/// The floor: the same by `iptables-restore`.
pub(crate) fn restore(flavor_name: &str, size: Size, colds: u32, changes: u32) -> Result<()> {
    let program = format!("iptables-{flavor_name}-restore");
    let mut cluster = Cluster::new(size);
    let config = rig::config(&[IpFamily::V4])?;
    let text = |services: &_| render(services, &NodeFacts::default(), &config, IpFamily::V4);
    let whole = text(&cluster.by_name());
    let run = |input: &str| floor::run(&program, &["--noflush", "--wait", "10"], input).map(drop);
    let mut cold = Clock::new();
    for _ in 0..colds {
        rig::enter_own_namespace("iptables-floor")?;
        cold.time(|| run(&whole))?;
        check(flavor_name, &cluster)?;
    }
    cold.say("cold")?;
    let mut one = Clock::new();
    for round in 0..changes {
        let number = chosen(size, round);
        let alone = |cluster: &Cluster| -> Result<String> {
            let entry = cluster.service(number)?.clone();
            Ok(text(&BTreeMap::from([(entry.service.key.clone(), entry)])))
        };
        let before = alone(&cluster)?;
        cluster.replace_endpoint(number)?;
        let change = smallest_change(&before, &alone(&cluster)?)?;
        std::thread::sleep(PAUSE);
        one.time(|| run(&change))?;
    }
    one.say("change")?;
    check(flavor_name, &cluster)
}

/// Another service with each round.
fn chosen(size: Size, round: u32) -> u32 {
    round.wrapping_mul(7919) % size.services
}

/// The rules of each chain of each table in a text for `iptables-restore`.
fn chains(text: &str) -> Result<BTreeMap<(&str, &str), Vec<&str>>> {
    let mut chains: BTreeMap<(&str, &str), Vec<&str>> = BTreeMap::new();
    let mut table = "";
    for line in text.lines() {
        if let Some(name) = line.strip_prefix('*') {
            table = name;
        } else if let Some(rest) = line.strip_prefix(':') {
            let chain = rest.split(' ').next().context("no name")?;
            chains.entry((table, chain)).or_default();
        } else if let Some(rest) = line.strip_prefix("-A ") {
            let chain = rest.split(' ').next().context("no name")?;
            chains.entry((table, chain)).or_default().push(line);
        }
    }
    Ok(chains)
}

/// The least that leads from one text to the other: the chains of one service that differ.
fn smallest_change(before: &str, after: &str) -> Result<String> {
    let (before, after) = (chains(before)?, chains(after)?);
    let mut declared = String::new();
    let mut rules = String::new();
    let mut gone = String::new();
    for (at @ (table, chain), lines) in &after {
        if before.get(at) == Some(lines) {
            continue;
        }
        if *table != "nat" {
            bail!("replacing an endpoint changes {chain} of {table}");
        }
        writeln!(declared, ":{chain} - [0:0]")?;
        for line in lines {
            writeln!(rules, "{line}")?;
        }
    }
    for (_, chain) in before.keys().filter(|at| !after.contains_key(at)) {
        writeln!(declared, ":{chain} - [0:0]")?;
        writeln!(gone, "-X {chain}")?;
    }
    Ok(format!("*nat\n{declared}{rules}{gone}COMMIT\n"))
}

/// Fails unless the kernel has this cluster, whole and nothing else.
pub(crate) fn check(flavor: &str, cluster: &Cluster) -> Result<()> {
    let saved = floor::output(&format!("iptables-{flavor}-save"), &["-t", "nat"])?;
    let services =
        saved.lines().filter(|line| line.starts_with("-A TELAIO-SERVICES -d 10.")).count();
    if services != cluster.len() {
        bail!("the kernel has {services} services, not {}", cluster.len());
    }
    let found: BTreeSet<Ipv4Addr> = saved
        .lines()
        .filter_map(|line| line.split_once("--to-destination ")?.1.split(':').next()?.parse().ok())
        .collect();
    let expected: BTreeSet<Ipv4Addr> = cluster.expected().into_values().flatten().collect();
    if found != expected {
        bail!(
            "the kernel has {} endpoints that are not the cluster's {}",
            found.len(),
            expected.len()
        );
    }
    Ok(())
}

/// What kube-proxy needed: first sync, one change.
fn peer(flavor: &str, size: Size) -> [&'static str; 2] {
    match (flavor, size.services, size.endpoints) {
        ("nft", 1_000, 2) => ["1,300", "104"],
        ("legacy", 1_000, 2) => ["850", "≤ 57"],
        ("legacy", 10_000, 2) => ["3,150", "≤ 509"],
        _ => ["", ""],
    }
}

/// Cold starts and changes, beside the floor. The sizes are those that iptables can bear.
pub(crate) fn tables(_: &[Size]) -> Result<String> {
    let mut table = Table::new(
        "iptables: beside `iptables-restore` with the text ready",
        "IPv4. Cold: set-up included, all chains; `iptables-restore --noflush` of the same rules. One \
         change: one endpoint replaced; the smallest text that makes it. CPU with children, counted in \
         ticks of 10 ms. kube-proxy 1.37 was measured elsewhere (at 10,000 services: iptables-nft \
         199,000 ms cold).",
        &[
            "iptables",
            "services × endpoints",
            "what",
            "CPU ms",
            "wall ms",
            "`iptables-restore` CPU ms",
            "wall ms",
            "ours / floor wall",
            "CPU",
            "bar (CPU)",
            "met",
            "kube-proxy wall ms",
        ],
    );
    for (flavor, size, colds, changes) in CASES {
        progress(&format!("{size}: iptables-{flavor}"));
        let (mut by_us, mut by_restore) = (Vec::new(), Vec::new());
        for _ in 0..RUNS {
            let [size, colds, changes] = [size.to_string(), colds.to_string(), changes.to_string()];
            by_us.push(role::ask(&["iptables", flavor, &size, &colds, &changes])?);
            by_restore.push(role::ask(&["iptables-restore", flavor, &size, &colds, &changes])?);
        }
        for (what, peer) in ["cold", "change"].into_iter().zip(peer(flavor, size)) {
            let of = |runs: &[Figures], figure: &str| {
                let name = format!("{what} {figure}");
                Samples::new(runs.iter().filter_map(|it| it.get(&name)).collect()).median()
            };
            let ratio = |figure: &str| of(&by_us, figure) / of(&by_restore, figure);
            let [bar, met] = bar(ratio("cpu"), Some(1.2), "×");
            table.row(&[
                flavor.to_owned(),
                size.to_string(),
                what.to_owned(),
                format!("{:.1}", of(&by_us, "cpu")),
                format!("{:.1}", of(&by_us, "wall")),
                format!("{:.1}", of(&by_restore, "cpu")),
                format!("{:.1}", of(&by_restore, "wall")),
                format!("{:.2} ×", ratio("wall")),
                format!("{:.2} ×", ratio("cpu")),
                bar,
                met,
                peer.to_owned(),
            ]);
        }
    }
    Ok(table.to_string())
}
