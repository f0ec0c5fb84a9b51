//! Others change what is ours: how long it stays wrong, and what mending it costs.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use telaio_model::IpFamily;
use telaio_netlink::nftables::{Batch, Element, ElementData, Family, Nftables};
use telaio_service_proxy::iptables::IptablesBackend;
use telaio_service_proxy::nftables::NftablesBackend;
use telaio_service_proxy::nftables::layout::TABLE;

use crate::cluster::{Cluster, Size};
use crate::kernel::KernelView;
use crate::rig::{self, Rig};
use crate::role::{self, Figures};
use crate::table::{Samples, Table, bar};
use crate::usage::Process;
use crate::{floor, iptables, progress};

/// How soon what somebody else has changed must be as it was.
const BAR_MS: f64 = 1000.0;
/// How long we wait for it before we give up.
const REPAIR_TIME_MAX: Duration = Duration::from_mins(1);
/// How often we look whether it is.
const LOOK_PERIOD: Duration = Duration::from_micros(500);

/// How often each change of an nftables table is made.
const ROUNDS: usize = 20;
/// How long we wait between two.
const PAUSE: Duration = Duration::from_millis(50);
/// How many elements are deleted where it is many.
const MANY: usize = 1000;

/// What others do to an nftables table.
const KINDS: [&str; 5] = [
    "one endpoint deleted",
    "one endpoint altered",
    "one element added that is not ours",
    "a chain flushed",
    "1,000 endpoints deleted at once",
];

/// The iptables cases: flavour, size, how often.
const IPTABLES_CASES: [(&str, Size, usize); 4] = [
    ("nft", Size::new(1_000, 2), 5),
    ("nft", Size::new(5_000, 2), 3),
    ("legacy", Size::new(1_000, 2), 5),
    ("legacy", Size::new(10_000, 2), 5),
];
/// How long we wait between two: as long as it takes until the older tables are known again.
const IPTABLES_PAUSE: Duration = Duration::from_secs(4);

/// Somebody else, with the table before them.
struct Other {
    nft: Nftables,
    /// Some endpoints: their keys and values.
    endpoints: Vec<(Vec<u8>, Vec<u8>)>,
}

/// The elements that must be there again, or must not.
type Expected<'a> = Vec<(&'a [u8], Option<&'a [u8]>)>;

impl Other {
    fn new() -> Result<Self> {
        let mut nft = Nftables::open()?;
        let mut endpoints = Vec::new();
        nft.elements(Family::Ip, TABLE, "endpoints", |element| match element {
            None => endpoints.clear(),
            Some(element) if endpoints.len() < MANY => {
                endpoints.extend(element.value.map(|it| (element.key.to_vec(), it.to_vec())));
            }
            Some(_) => {}
        })?;
        Ok(Self { nft, endpoints })
    }

    /// Makes a change of a kind and waits until it is undone; tells how long that took.
    fn break_and_wait(&mut self, kind: usize, round: usize) -> Result<Duration> {
        let Self { nft, endpoints } = self;
        let (key, value) = endpoints.get(round * 7 % endpoints.len()).context("no endpoint")?;
        let mut batch = Batch::new(Family::Ip, TABLE);
        let mut foreign = key.clone();
        let mut expected: Expected<'_> = vec![(key, Some(value))];
        let mut chain_len = None;
        match kind {
            0 => batch.delete_element("endpoints", key),
            1 => {
                let mut other = value.clone();
                if let Some(first) = other.first_mut() {
                    *first ^= 1;
                }
                batch.delete_element("endpoints", key);
                let data = ElementData::Value(&other);
                batch.add_element("endpoints", &Element::new(key, data));
            }
            2 => {
                if let Some(slot) = foreign.last_mut() {
                    *slot = 0x3f;
                }
                let data = ElementData::Value(value);
                batch.add_element("endpoints", &Element::new(&foreign, data));
                expected = vec![(&foreign, None)];
            }
            3 => {
                chain_len = Some(nft.rules_of(Family::Ip, TABLE, "services")?.len());
                batch.flush_chain("services");
            }
            _ => {
                for (key, _) in endpoints.iter() {
                    batch.delete_element("endpoints", key);
                }
                let all = endpoints.iter();
                expected =
                    all.map(|(key, value)| (key.as_slice(), Some(value.as_slice()))).collect();
            }
        }
        let started = Instant::now();
        nft.commit(&mut [&mut batch])?;
        while !is_as_expected(nft, &expected, chain_len)? {
            if started.elapsed() > REPAIR_TIME_MAX {
                bail!("{}: not repaired", KINDS[kind]);
            }
            thread::sleep(LOOK_PERIOD);
        }
        Ok(started.elapsed())
    }
}

fn is_as_expected(
    nft: &mut Nftables,
    expected: &Expected<'_>,
    chain_len: Option<usize>,
) -> Result<bool> {
    if let Some(len) = chain_len {
        return Ok(nft.rules_of(Family::Ip, TABLE, "services")?.len() == len);
    }
    let mut wanted = expected.iter();
    let mut same = true;
    let keys = expected.iter().map(|(key, _)| *key);
    nft.elements_at(Family::Ip, TABLE, "endpoints", keys, |_, element| {
        let found = element.and_then(|element| element.value);
        same &= wanted.next().is_some_and(|(_, value)| *value == found);
    })?;
    Ok(same)
}

/// CPU time of the backend's own threads so far, in milliseconds: not of those that break and look.
fn backend_cpu_ms() -> Result<f64> {
    let mut sum_ns = 0.0;
    for task in fs::read_dir("/proc/self/task")? {
        let path = task?.path();
        if fs::read_to_string(path.join("comm"))?.starts_with("telaio-") {
            let text = fs::read_to_string(path.join("schedstat"))?;
            sum_ns += text.split_whitespace().next().context("empty schedstat")?.parse::<f64>()?;
        }
    }
    Ok(sum_ns / 1e6)
}

/// Says the figures of one kind.
fn say(name: &str, walls_ms: Vec<f64>, cpu_ms: f64) -> Result<()> {
    let count = walls_ms.len().max(1) as f64;
    let walls_ms = Samples::new(walls_ms);
    role::say(&[
        (&format!("{name}, p50"), walls_ms.median()),
        (&format!("{name}, max"), walls_ms.at(1.0)),
        (&format!("{name}, cpu"), cpu_ms / count),
    ])
}

/// Breaks the table of an nftables backend, again and again.
pub(crate) fn role(size: Size) -> Result<()> {
    rig::enter_own_namespace("drift")?;
    let cluster = Cluster::new(size);
    let mut rig = Rig::start(&IpFamily::ALL, |options| Box::new(NftablesBackend::new(options)))?;
    rig.send(cluster.all())?;
    let mut other = Other::new()?;
    for (kind, name) in KINDS.into_iter().enumerate() {
        let mut walls_ms = Vec::new();
        thread::sleep(PAUSE);
        let before_ms = backend_cpu_ms()?;
        for round in 0..ROUNDS {
            walls_ms.push(other.break_and_wait(kind, round)?.as_secs_f64() * 1e3);
            thread::sleep(PAUSE);
        }
        say(name, walls_ms, backend_cpu_ms()? - before_ms)?;
    }
    rig.wait()?;
    KernelView::open()?.check(&cluster)
}

/// What others do to iptables.
const IPTABLES_KINDS: [&str; 2] = ["one rule replaced", "one rule deleted"];

/// Replaces rules of an iptables backend by others of the same size, then deletes some.
pub(crate) fn iptables_role(flavor: &str, size: Size, rounds: usize) -> Result<()> {
    rig::enter_own_namespace("drift")?;
    let cluster = Cluster::new(size);
    let kind = iptables::flavor(flavor)?;
    let make = |options| Box::new(IptablesBackend::new(options, kind)) as _;
    let mut rig = Rig::start(&[IpFamily::V4], make)?;
    rig.send(cluster.all())?;
    let program = format!("iptables-{flavor}");
    let saved = floor::output(&format!("{program}-save"), &["-t", "nat"])?;
    let process = Process::own();
    for (kind, name) in IPTABLES_KINDS.into_iter().enumerate() {
        let (mut walls_ms, mut cpu_ms) = (Vec::new(), 0.0);
        for arguments in &damages(&saved, kind, rounds)? {
            thread::sleep(IPTABLES_PAUSE);
            let repairs = rig.handle.stats().drift_repairs_total;
            let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
            floor::output(&program, &arguments)?;
            let (started, before_ms) = (Instant::now(), process.cpu_with_children_ms()?);
            while rig.handle.stats().drift_repairs_total == repairs {
                if started.elapsed() > REPAIR_TIME_MAX {
                    bail!("{arguments:?}: not repaired");
                }
                thread::sleep(LOOK_PERIOD);
            }
            walls_ms.push(started.elapsed().as_secs_f64() * 1e3);
            cpu_ms += process.cpu_with_children_ms()? - before_ms;
        }
        rig.wait()?;
        iptables::check(flavor, &cluster)?;
        say(name, walls_ms, cpu_ms)?;
    }
    Ok(())
}

/// What to run so that endpoints' rules lead elsewhere, or are gone.
fn damages(saved: &str, kind: usize, count: usize) -> Result<Vec<Vec<String>>> {
    let rules: Vec<&str> = saved.lines().filter(|line| line.starts_with("-A ")).collect();
    let endpoints: Vec<&str> =
        rules.iter().filter(|line| line.contains(" --to-destination 10.")).copied().collect();
    (0..count)
        .map(|round| {
            let rule =
                endpoints.get(round * 7919 % endpoints.len().max(1)).context("no endpoint")?;
            let chain = rule.split(' ').nth(1).context("no chain")?;
            let within = format!("-A {chain} ");
            let number = rules
                .iter()
                .filter(|line| line.starts_with(&within))
                .position(|line| line == rule)
                .context("no such rule")?;
            let spec = rule[within.len()..].replace("--to-destination 10.", "--to-destination 11.");
            if kind == 1 {
                let delete = format!("-w 10 -t nat -D {chain} {}", number + 1);
                return Ok(delete.split(' ').map(str::to_owned).collect());
            }
            let head = format!("-w 10 -t nat -R {chain} {}", number + 1);
            // No value of ours has a blank in it, except comments.
            let mut words: Vec<String> = head.split(' ').map(str::to_owned).collect();
            words.extend(split_quoted(&spec));
            Ok(words)
        })
        .collect()
}

/// Words as a shell would see them.
fn split_quoted(text: &str) -> Vec<String> {
    let mut words = Vec::new();
    for (index, piece) in text.split('"').enumerate() {
        if index % 2 == 1 {
            words.push(piece.to_owned());
        } else {
            words.extend(piece.split_whitespace().map(str::to_owned));
        }
    }
    words
}

/// Drift at every size, and of iptables at those that it can bear.
pub(crate) fn tables(sizes: &[Size]) -> Result<String> {
    let mut table = Table::new(
        "Drift: from a change by somebody else until it is undone",
        "nftables: from the moment at which somebody's transaction begins; CPU of the backend's threads \
         per repair, the kernel's on their behalf included. iptables (IPv4): from the end of the program \
         that replaces a rule by one of the same size, or deletes it; CPU with the programs that we run, in ticks of \
         10 ms.",
        &[
            "backend",
            "services × endpoints",
            "what others do",
            "repaired after, p50 ms",
            "max ms",
            "CPU ms",
            "bar (max)",
            "met",
        ],
    );
    let mut row = |backend: &str, size: Size, what: &str, name: &str, of: &Figures| {
        let max_ms = of.need(&format!("{name}, max"))?;
        let [bar, met] = bar(max_ms, Some(BAR_MS), "ms");
        table.row(&[
            backend.to_owned(),
            size.to_string(),
            what.to_owned(),
            format!("{:.1}", of.need(&format!("{name}, p50"))?),
            format!("{max_ms:.1}"),
            format!("{:.2}", of.need(&format!("{name}, cpu"))?),
            bar,
            met,
        ]);
        anyhow::Ok(())
    };
    for &size in sizes {
        progress(&format!("{size}: drift of nftables"));
        let figures = role::ask(&["drift", &size.to_string()])?;
        for name in KINDS {
            row("nftables", size, name, name, &figures)?;
        }
    }
    for (flavor, size, rounds) in IPTABLES_CASES {
        progress(&format!("{size}: drift of iptables-{flavor}"));
        let role = ["drift-iptables", flavor, &size.to_string(), &rounds.to_string()];
        let figures = role::ask(&role)?;
        for name in IPTABLES_KINDS {
            row(&format!("iptables-{flavor}"), size, name, name, &figures)?;
        }
    }
    Ok(table.to_string())
}
