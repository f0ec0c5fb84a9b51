//! How the brain scales: `cargo xtask bench brain`.
//!
//! One program, several roles in several processes, so that each figure is of the process it is
//! about: the brain's memory is not its watchers', the source's CPU is not the API server's.
//! Results go to standard output as a table; `cargo xtask bench` writes them to docs/benchmarks.md.

#![allow(clippy::cast_precision_loss, clippy::cast_sign_loss, reason = "figures for people")]

mod bare;
mod cluster;
mod roles;
mod usage;

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

const ENDPOINTS: usize = 10;

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).filter(|arg| arg != "--bench").collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args.as_slice() {
        ["role", "load-dir", path] => roles::load_dir(path),
        ["role", "load-api", kubeconfig] => roles::load_api(kubeconfig),
        ["role", "api-server", services] => roles::api_server(services.parse()?),
        ["role", "serve", services] => roles::serve(services.parse()?),
        ["role", "bare"] => roles::bare(),
        ["role", "watch", url, count] => roles::watch(url, count.parse()?),
        ["--sizes", sizes] => run(&parse_sizes(sizes)?),
        [] => run(&[1_000, 10_000, 50_000]),
        other => bail!("usage: cargo xtask bench brain [--sizes 1k,10k,50k], not {other:?}"),
    }
}

fn parse_sizes(text: &str) -> Result<Vec<usize>> {
    let size = |size: &str| {
        let thousands = size.strip_suffix('k');
        let number: usize =
            thousands.unwrap_or(size).parse().context("a size is 1k, 10k or 500")?;
        Ok(number * if thousands.is_some() { 1_000 } else { 1 })
    };
    text.split(',').map(size).collect()
}

/// A child in some role, spoken to line by line.
struct Role {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Role {
    fn start(args: &[&str]) -> Result<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .arg("role")
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let input = child.stdin.take().context("no standard input")?;
        let output = BufReader::new(child.stdout.take().context("no standard output")?);
        Ok(Self { child, input, output })
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        if self.output.read_line(&mut line)? == 0 {
            bail!("the child ended: {}", self.child.wait()?);
        }
        Ok(line.trim().to_owned())
    }

    fn ask(&mut self, command: &str) -> Result<Vec<f64>> {
        writeln!(self.input, "{command}")?;
        self.numbers()
    }

    fn numbers(&mut self) -> Result<Vec<f64>> {
        let line = self.line()?;
        line.split_whitespace().map(|it| it.parse().with_context(|| line.clone())).collect()
    }
}

impl Drop for Role {
    fn drop(&mut self) {
        // Children end when their standard input does; this is for those that hang.
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

fn run(sizes: &[usize]) -> Result<()> {
    let mut report = String::new();
    loads(sizes, &mut report)?;
    changes(sizes, &mut report)?;
    print!("{report}");
    Ok(())
}

fn progress(text: &str) {
    eprintln!("bench brain: {text}");
}

/// Cold load from a directory and from the API server.
fn loads(sizes: &[usize], report: &mut String) -> Result<()> {
    writeln!(report, "### Cold load, {ENDPOINTS} endpoints per service\n")?;
    writeln!(
        report,
        "| services | source | wall s | CPU s | memory MiB (RSS) |\n|---|---|---|---|---|"
    )?;
    for &size in sizes {
        progress(&format!("{size} services from a directory"));
        let dir = tempfile::tempdir()?;
        cluster::write_manifests(dir.path(), size, ENDPOINTS)?;
        let path = dir.path().to_str().context("path is not UTF-8")?;
        let row = Role::start(&["load-dir", path])?.numbers()?;
        writeln!(
            report,
            "| {size} | directory (YAML) | {:.2} | {:.2} | {:.0} |",
            row[0], row[1], row[2]
        )?;

        progress(&format!("{size} services from an API server"));
        let mut server = Role::start(&["api-server", &size.to_string()])?;
        let kubeconfig = server.line()?;
        let row = Role::start(&["load-api", &kubeconfig])?.numbers()?;
        writeln!(
            report,
            "| {size} | API server | {:.2} | {:.2} | {:.0} |",
            row[0], row[1], row[2]
        )?;
    }
    writeln!(report)?;
    Ok(())
}

/// How many watchers each size is tried with.
const WATCHERS: [usize; 3] = [1, 100, 1_000];

/// What one change cost.
struct Cost {
    /// From the change to the last watcher, in milliseconds, sorted.
    delays_ms: Vec<f64>,
    cpu_ms: f64,
    full_state_s: f64,
    rss_mib: f64,
}

/// Lets a server make changes to so many watchers.
fn measure(server: &[&str], watchers: usize) -> Result<Cost> {
    progress(&format!("{}, {watchers} watchers", server.join(" ")));
    let mut server = Role::start(server)?;
    let url = server.line()?;
    let mut crowd = Role::start(&["watch", &url, &watchers.to_string()])?;
    crowd.numbers()?;
    let full_state_s = Role::start(&["watch", &url, "1"])?.numbers()?[0];
    std::thread::sleep(Duration::from_millis(200));
    for round in 0..WARM_UP {
        server.ask(&format!("change {round}"))?;
        crowd.numbers()?;
    }
    let rounds = if watchers >= 1_000 { 100 } else { 500 };
    let cpu_before = server.ask("usage")?[0];
    let mut delays_ms = Vec::with_capacity(rounds);
    for round in WARM_UP..WARM_UP + rounds {
        let sent = server.ask(&format!("change {round}"))?[0];
        delays_ms.push((crowd.numbers()?[0] - sent) / 1e6);
    }
    let usage = server.ask("usage")?;
    delays_ms.sort_by(f64::total_cmp);
    let cpu_ms = (usage[0] - cpu_before) / 1e6 / rounds as f64;
    Ok(Cost { delays_ms, cpu_ms, full_state_s, rss_mib: usage[1] })
}

/// Changes that are not counted.
const WARM_UP: usize = 50;

/// One endpoint's change, to 1, 100 and 1,000 watchers.
fn changes(sizes: &[usize], report: &mut String) -> Result<()> {
    writeln!(report, "### One endpoint's change, delivered over the Local API\n")?;
    writeln!(
        report,
        "| services | watchers | to the last watcher ms p50 | p99 | CPU ms per change | \
         µs per watcher | full state to one more watcher s | RSS MiB |\n\
         |---|---|---|---|---|---|---|---|"
    )?;
    let mut row = |name: &str, watchers: usize, cost: &Cost| {
        let at = |share: f64| cost.delays_ms[((cost.delays_ms.len() - 1) as f64 * share) as usize];
        writeln!(
            report,
            "| {name} | {watchers} | {:.2} | {:.2} | {:.3} | {:.1} | {:.2} | {:.0} |",
            at(0.5),
            at(0.99),
            cost.cpu_ms,
            cost.cpu_ms * 1e3 / watchers as f64,
            cost.full_state_s,
            cost.rss_mib
        )
    };
    for watchers in WATCHERS {
        row("bare gRPC, no brain", watchers, &measure(&["bare"], watchers)?)?;
    }
    let mut costs = Vec::new();
    for &size in sizes {
        for watchers in WATCHERS {
            let cost = measure(&["serve", &size.to_string()], watchers)?;
            row(&size.to_string(), watchers, &cost)?;
            costs.push(cost.cpu_ms);
        }
    }
    let by_size: Vec<&[f64]> = costs.chunks(WATCHERS.len()).collect();
    if let (Some(first), Some(last)) = (by_size.first(), by_size.last()) {
        let ratios: Vec<String> =
            last.iter().zip(*first).map(|(last, first)| format!("{:.2}", last / first)).collect();
        writeln!(
            report,
            "\nCPU of one change at {} services against one at {}: {} × (with 1, 100 and 1,000 \
             watchers; the bar is 1.5).",
            sizes.last().unwrap_or(&0),
            sizes.first().unwrap_or(&0),
            ratios.join(", ")
        )?;
    }
    Ok(())
}
