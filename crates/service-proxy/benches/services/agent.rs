//! The whole agent: from process start, with a directory of manifests, to all rules in the kernel.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

use crate::cluster::{Cluster, Size};
use crate::kernel::KernelView;
use crate::role::{self, Figures};
use crate::table::{Samples, Table, bar};
use crate::usage::Process;
use crate::{floor, progress, rig};

/// How long a start may take.
const START_TIME_MAX: Duration = Duration::from_mins(2);
/// After this long an agent that has started does nothing more.
const REST: Duration = Duration::from_secs(2);
/// How often each start is measured.
const RUNS: usize = 3;

/// Builds the agent, optimised, and says where it is.
fn build() -> Result<PathBuf> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = Command::new(cargo)
        .args(["build", "--quiet", "--release", "-p", "telaio"])
        .stdout(Stdio::null())
        .status()?;
    if !status.success() {
        bail!("the agent cannot be built");
    }
    let own = std::env::current_exe()?;
    let directory = own.parent().and_then(Path::parent).context("no directory of programs")?;
    let agent = directory.join("telaio");
    if !agent.is_file() {
        bail!("there is no {}", agent.display());
    }
    Ok(agent)
}

/// An agent that ends with us.
struct Agent(Child);

impl Drop for Agent {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn command(agent: &str, manifests: &Path, state: &Path) -> Command {
    let mut command = Command::new(agent);
    command
        .args(["run", "--backend", "nftables", "--node", "node-0", "--log-level", "error"])
        .args(["--detect-local-mode", "ClusterCIDR", "--cluster-cidr", "10.128.0.0/9"])
        .arg("--source")
        .arg(format!("dir:{}", manifests.display()))
        .arg("--state-dir")
        .arg(state)
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    command
}

/// Starts an agent and says when its rules are in the kernel, what that took, and what it holds.
pub(crate) fn role(agent: &str, size: Size) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let [manifests, state] = ["manifests", "state"].map(|name| directory.path().join(name));
    std::fs::create_dir(&manifests)?;
    let cluster = Cluster::new(size);
    cluster.write_manifests(&manifests)?;

    enter_namespace()?;
    let mut kernel = KernelView::open()?;
    let started = Instant::now();
    let mut running = Agent(command(agent, &manifests, &state).spawn()?);
    while !kernel.has_services() {
        if let Some(status) = running.0.try_wait()? {
            bail!("the agent ended: {status}");
        }
        if started.elapsed() > START_TIME_MAX {
            bail!("the agent has no rules after {START_TIME_MAX:?}");
        }
        thread::sleep(Duration::from_millis(2));
    }
    let wall_ms = started.elapsed().as_secs_f64() * 1e3;
    let process = Process::of(running.0.id());
    let cpu_ms = process.cpu_with_children_ms()?;
    kernel.check(&cluster)?;
    thread::sleep(REST);
    role::say(&[
        ("wall", wall_ms),
        ("cpu", cpu_ms),
        ("rss", process.rss_mib()?),
        ("rss max", process.rss_max_mib()?),
    ])?;
    drop(running);

    enter_namespace()?;
    let state = directory.path().join("state-once");
    let started = Instant::now();
    let status = command(agent, &manifests, &state).arg("--once").status()?;
    let once_ms = started.elapsed().as_secs_f64() * 1e3;
    if !status.success() {
        bail!("the agent with --once ended with {status}");
    }
    KernelView::open()?.check(&cluster)?;
    role::say(&[("once", once_ms)])
}

/// A namespace of its own for an agent, where it can listen.
fn enter_namespace() -> Result<()> {
    rig::enter_own_namespace("agent")?;
    floor::output("ip", &["link", "set", "lo", "up"]).map(drop)
}

/// Starts of the agent at every size.
pub(crate) fn tables(sizes: &[Size]) -> Result<String> {
    progress("building the agent");
    let agent = build()?;
    let agent = agent.to_str().context("the path is not UTF-8")?;
    let mut table = Table::new(
        "The agent on nftables: from process start with a directory of manifests",
        "`telaio run`, one YAML file per service, the files in the page cache, no state from before; \
         median of three. `--once` ends when also what other backends may have left has been looked \
         for. kube-proxy 1.37's memory was measured elsewhere.",
        &[
            "services × endpoints",
            "until all rules are in the kernel, wall s",
            "CPU s",
            "bar (wall)",
            "met",
            "`--once` until its end, wall s",
            "RSS at rest MiB",
            "bar",
            "met",
            "RSS at most MiB",
            "kube-proxy RSS MB",
        ],
    );
    for &size in sizes {
        progress(&format!("{size}: the agent"));
        let runs: Vec<Figures> = (0..RUNS)
            .map(|_| role::ask(&["agent", agent, &size.to_string()]))
            .collect::<Result<_>>()?;
        let of = |name: &str| {
            Samples::new(runs.iter().filter_map(|figures| figures.get(name)).collect()).median()
        };
        let has_bar = size == Size::new(10_000, 2);
        let [wall_bar, wall_met] = bar(of("wall") / 1e3, has_bar.then_some(1.0), "s");
        let [rss_bar, rss_met] = bar(of("rss"), has_bar.then_some(60.0), "MiB");
        table.row(&[
            size.to_string(),
            format!("{:.2}", of("wall") / 1e3),
            format!("{:.2}", of("cpu") / 1e3),
            wall_bar,
            wall_met,
            format!("{:.2}", of("once") / 1e3),
            format!("{:.0}", of("rss")),
            rss_bar,
            rss_met,
            format!("{:.0}", of("rss max")),
            peer(size).to_owned(),
        ]);
    }
    Ok(table.to_string())
}

/// What kube-proxy held.
fn peer(size: Size) -> &'static str {
    match (size.services, size.endpoints) {
        (1_000, 2) => "73",
        (10_000, 2) => "170",
        _ => "",
    }
}
