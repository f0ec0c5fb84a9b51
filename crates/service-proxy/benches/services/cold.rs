//! nftables: from a loaded model to all rules in the kernel.

use std::time::Instant;

use anyhow::Result;
use telaio_model::IpFamily;
use telaio_service_proxy::nftables::NftablesBackend;

use crate::cluster::{Cluster, Size};
use crate::kernel::KernelView;
use crate::rig::{self, Rig};
use crate::role::{self, Figures};
use crate::table::{Samples, Table, bar};
use crate::usage::Process;
use crate::{floor, progress};

/// Programs a cluster once, in this process, and says what that took.
pub(crate) fn role(size: Size) -> Result<()> {
    rig::enter_own_namespace("cold")?;
    let mut kernel = KernelView::open()?;
    let cluster = Cluster::new(size);
    let ops = cluster.all();
    let own = Process::own();
    let model_mib = own.rss_mib()?;
    let start_ms = own.cpu_ms()?;
    let started = Instant::now();
    let mut rig = Rig::start(&IpFamily::ALL, |options| Box::new(NftablesBackend::new(options)))?;
    let set_up_wall_ms = started.elapsed().as_secs_f64() * 1e3;
    let set_up_ms = own.cpu_ms()?;
    let started = Instant::now();
    rig.send(ops)?;
    let wall_ms = started.elapsed().as_secs_f64() * 1e3 + set_up_wall_ms;
    let done_ms = own.cpu_ms()?;
    let rss_mib = own.rss_mib()?;
    let rss_max_mib = own.rss_max_mib()?;
    kernel.check(&cluster)?;
    role::say(&[
        ("set-up", set_up_ms - start_ms),
        ("load", done_ms - set_up_ms),
        ("wall", wall_ms),
        ("model", model_mib),
        ("rss", rss_mib),
        ("rss max", rss_max_mib),
    ])
}

/// The most CPU time that a cold start may take, in milliseconds.
fn cpu_ms_max(size: Size) -> Option<f64> {
    match (size.services, size.endpoints) {
        (10_000, 2) => Some(100.0),
        (30_000, 2) => Some(400.0),
        (5_000, 50) => Some(600.0),
        _ => None,
    }
}

/// What kube-proxy needed.
fn peer(size: Size) -> &'static str {
    match (size.services, size.endpoints) {
        (1_000, 2) => "500 / 800–1,100",
        (10_000, 2) => "34,500 / 38,100",
        _ => "",
    }
}

/// Cold starts of every size, beside `nft -f`.
pub(crate) fn tables(sizes: &[Size]) -> Result<String> {
    let mut times = Table::new(
        "nftables: cold start, from a loaded model to all rules in the kernel",
        "Ours: the backend as the agent runs it, set-up included, each time in a new process and \
         namespace; median (least) of several. CPU is ours and the kernel's on our behalf. `nft -f`: \
         the same maps, sets, elements and chains as text, without the rules in the chains, which \
         old versions of `nft` print but cannot all read. kube-proxy 1.37 was measured on another \
         day on a machine of this size.",
        &[
            "services × endpoints",
            "CPU ms",
            "of it set-up",
            "wall ms",
            "bar (CPU)",
            "met",
            "`nft -f` CPU ms",
            "wall ms",
            "kube-proxy CPU / wall ms",
        ],
    );
    let mut memory = Table::new(
        "nftables: memory of the backend alone",
        "Resident, in a process that has nothing but the model and the backend. The agent's is below.",
        &["services × endpoints", "model MiB", "after the load MiB", "at most MiB"],
    );
    for &size in sizes {
        progress(&format!("{size}: cold start by nftables"));
        let runs = if size.services * size.endpoints > 50_000 { 5 } else { 9 };
        let ours: Vec<Figures> =
            (0..runs).map(|_| role::ask(&["cold", &size.to_string()])).collect::<Result<_>>()?;
        let of = |name: &str| {
            Samples::new(ours.iter().filter_map(|figures| figures.get(name)).collect())
        };
        let total: Vec<f64> = ours
            .iter()
            .filter_map(|figures| Some(figures.get("set-up")? + figures.get("load")?))
            .collect();
        let total = Samples::new(total);
        progress(&format!("{size}: nft -f"));
        let nft = role::ask(&["floor", &size.to_string()])?;
        let [bar, met] = bar(total.median(), cpu_ms_max(size), "ms");
        times.row(&[
            size.to_string(),
            format!("{:.0} ({:.0})", total.median(), total.min()),
            format!("{:.1}", of("set-up").median()),
            format!("{:.0} ({:.0})", of("wall").median(), of("wall").min()),
            bar,
            met,
            format!("{:.0}", nft.need("cpu")?),
            format!("{:.0}", nft.need("wall")?),
            peer(size).to_owned(),
        ]);
        memory.row(&[
            size.to_string(),
            format!("{:.0}", of("model").median()),
            format!("{:.0}", of("rss").median()),
            format!("{:.0}", of("rss max").median()),
        ]);
    }
    Ok(format!("{times}{memory}"))
}

/// Loads the same by the `nft` program, several times.
pub(crate) fn floor_role(size: Size) -> Result<()> {
    rig::enter_own_namespace("floor")?;
    let cluster = Cluster::new(size);
    let mut rig = Rig::start(&IpFamily::ALL, |options| Box::new(NftablesBackend::new(options)))?;
    rig.send(cluster.all())?;
    let text = floor::text()?;
    drop(rig);
    let mut walls = Vec::new();
    let mut cpus = Vec::new();
    for _ in 0..3 {
        rig::enter_own_namespace("floor")?;
        let used = floor::nft_file(&text)?;
        KernelView::open()?.check(&cluster)?;
        walls.push(used.wall_ms);
        cpus.push(used.cpu_ms);
    }
    role::say(&[("cpu", Samples::new(cpus).median()), ("wall", Samples::new(walls).median())])
}
