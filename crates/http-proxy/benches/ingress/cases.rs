//! What is measured, and the tables.

use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpStream};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::ours;
use crate::peers::{BACKEND_PORT, Kind, Rig, Running};
use crate::usage::{cpu_ns, resident_mib, spread};

/// One kind of load.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Case {
    name: &'static str,
    what: &'static str,
    /// What ours may cost of the better of nginx and HAProxy.
    bar: f64,
}

const CASES: [Case; 5] = [
    Case { name: "get", what: "small GET, keep-alive", bar: 0.9 },
    Case { name: "64k", what: "64 KiB body", bar: 1.0 },
    Case { name: "tls", what: "small GET, TLS", bar: 0.95 },
    Case { name: "h2", what: "small GET, h2 over TLS", bar: 1.0 },
    Case { name: "connect", what: "new connection per request", bar: 1.0 },
];

/// How a run is made.
struct Plan {
    rounds: usize,
    seconds: u32,
    only: Vec<String>,
}

impl Plan {
    fn wants(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|own| own == name)
    }
}

pub(crate) fn run(args: &[String]) -> Result<()> {
    let mut plan = Plan { rounds: 5, seconds: 2, only: Vec::new() };
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let mut number =
            || args.next().and_then(|text| text.parse().ok()).context("a number is missing");
        match arg.as_str() {
            "--rounds" => plan.rounds = number()? as usize,
            "--seconds" => plan.seconds = number()?,
            name => plan.only.push(name.to_owned()),
        }
    }
    let rig = Rig::new()?;
    let _backend = rig.backend()?;
    let mut proxies = Vec::new();
    for kind in Kind::ALL {
        match rig.proxy(kind, 10, false)? {
            Some(running) => proxies.push((kind, running)),
            None => eprintln!("{} is not installed: left out", kind.name()),
        }
    }
    println!(
        "CPU time per request in µs: median (least–most) of {} interleaved rounds of {} s. The proxy has one core, \
              load and backend the other.\n",
        plan.rounds, plan.seconds
    );
    costs(&plan, &proxies)?;
    if plan.wants("latency") {
        latencies(&plan, &proxies)?;
    }
    if plan.wants("routes") {
        routes(&plan, &rig, proxies)?;
    } else {
        drop(proxies);
    }
    if plan.wants("cache") {
        cached(&plan, &rig)?;
    }
    if plan.wants("propagation") {
        propagation()?;
    }
    Ok(())
}

/// Puts a load on a proxy; how many requests it answered.
fn load(case: &str, port: u16, seconds: u32, host: Option<&str>) -> Result<u64> {
    let path = match case {
        "64k" => "/64k",
        "cache" => "/cached",
        _ => "/small",
    };
    let secure = matches!(case, "tls" | "h2");
    let url = if secure {
        format!("https://127.0.0.1:{}{path}", port + 1)
    } else {
        format!("http://127.0.0.1:{port}{path}")
    };
    let mut command = Command::new("taskset");
    if case == "h2" {
        let time = format!("{seconds}");
        command.args(["-c", "1", "h2load", "-t1", "-c16", "-m8", "-D", &time, &url]);
    } else {
        let time = format!("-d{seconds}s");
        command.args(["-c", "1", "wrk", "-t1", "-c32", &time]);
        if case == "connect" {
            command.args(["-H", "Connection: close"]);
        }
        if let Some(host) = host {
            command.args(["-H", &format!("Host: {host}")]);
        }
        command.arg(&url);
    }
    let output = command.output().context("wrk or h2load is missing")?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let bad = text.lines().find(|line| line.contains("Non-2xx") || line.contains("Socket errors"));
    // wrk counts the last connections of a run that closes each as errors of reading.
    if let Some(bad) = bad.filter(|_| case != "connect") {
        bail!("{case} on {port}: {bad}");
    }
    let count = if case == "h2" {
        text.lines()
            .find_map(|line| line.strip_prefix("status codes: ")?.split(' ').next()?.parse().ok())
    } else {
        text.lines().find_map(|line| line.trim().split_once(" requests in")?.0.parse().ok())
    };
    count
        .filter(|count| *count > 0)
        .with_context(|| format!("{case} on {port} served nothing: {text}"))
}

/// CPU µs per request under a load.
fn cost(
    case: &str,
    kind: Kind,
    running: &Running,
    seconds: u32,
    host: Option<&str>,
) -> Result<f64> {
    let before = cpu_ns(running.pid())?;
    let count = load(case, kind.port(), seconds, host)?;
    Ok((cpu_ns(running.pid())? - before) as f64 / 1e3 / count as f64)
}

fn costs(plan: &Plan, proxies: &[(Kind, Running)]) -> Result<()> {
    let wanted: Vec<_> = CASES.iter().filter(|case| plan.wants(case.name)).collect();
    if wanted.is_empty() {
        return Ok(());
    }
    let names: Vec<_> = proxies.iter().map(|(kind, _)| kind.name()).collect();
    println!("| load | {} | ours ÷ better of nginx, HAProxy | bar |", names.join(" | "));
    println!("|---|{}---|---|", "---|".repeat(names.len()));
    for case in wanted {
        let mut figures: BTreeMap<usize, Vec<f64>> = BTreeMap::new();
        for (kind, _) in proxies {
            // Connections and caches warm up.
            load(case.name, kind.port(), 1, None)?;
        }
        for _ in 0..plan.rounds {
            for (place, (kind, running)) in proxies.iter().enumerate() {
                figures.entry(place).or_default().push(cost(
                    case.name,
                    *kind,
                    running,
                    plan.seconds,
                    None,
                )?);
            }
        }
        let mut cells = Vec::new();
        let (mut own, mut best) = (f64::NAN, f64::INFINITY);
        for (place, (kind, _)) in proxies.iter().enumerate() {
            let (median, least, most) = spread(figures.remove(&place).unwrap_or_default());
            cells.push(format!("{median:.1} ({least:.1}–{most:.1})"));
            match kind {
                Kind::Ours => own = median,
                Kind::Nginx | Kind::Haproxy => best = best.min(median),
                _ => {}
            }
        }
        println!(
            "| {} | {} | **{:.2}** | {:.2} |",
            case.what,
            cells.join(" | "),
            own / best,
            case.bar
        );
    }
    println!();
    Ok(())
}

/// Latency at a fixed rate, from h2load's log of single requests.
fn latencies(plan: &Plan, proxies: &[(Kind, Running)]) -> Result<()> {
    println!(
        "Latency of small GETs at 4,000 requests per second over 32 connections, in µs; median of {} rounds:\n",
        plan.rounds
    );
    println!("| proxy | p50 | p99 | p99.9 |\n|---|---|---|---|");
    let log = std::env::temp_dir().join(format!("telaio-bench-{}.log", std::process::id()));
    let mut all: BTreeMap<usize, [Vec<f64>; 3]> = BTreeMap::new();
    for _ in 0..plan.rounds {
        for (place, (kind, _)) in proxies.iter().enumerate() {
            let _ = std::fs::remove_file(&log);
            let (time, file) = (plan.seconds.to_string(), log.display().to_string());
            let url = format!("http://127.0.0.1:{}/small", kind.port());
            let output = Command::new("taskset")
                .args(["-c", "1", "h2load", "--h1", "-t1", "-c32", "--rps=125", "-D", &time])
                .args([&format!("--log-file={file}"), &url])
                .output()?;
            if !output.status.success() {
                bail!("h2load: {}", String::from_utf8_lossy(&output.stderr));
            }
            let text = std::fs::read_to_string(&log)?;
            let mut times: Vec<f64> =
                text.lines().filter_map(|line| line.split('\t').nth(2)?.parse().ok()).collect();
            times.sort_by(f64::total_cmp);
            let at = |share: f64| {
                times.get((times.len() as f64 * share) as usize).copied().unwrap_or(f64::NAN)
            };
            for (own, share) in all.entry(place).or_default().iter_mut().zip([0.5, 0.99, 0.999]) {
                own.push(at(share));
            }
        }
    }
    let _ = std::fs::remove_file(&log);
    for (place, (kind, _)) in proxies.iter().enumerate() {
        let cells: Vec<_> = all
            .remove(&place)
            .unwrap_or_default()
            .map(|figures| {
                let (median, least, most) = spread(figures);
                format!("{median:.0} ({least:.0}–{most:.0})")
            })
            .to_vec();
        println!("| {} | {} |", kind.name(), cells.join(" | "));
    }
    println!();
    Ok(())
}

/// Memory, and what ten thousand routes add to a request.
fn routes(plan: &Plan, rig: &Rig, proxies: Vec<(Kind, Running)>) -> Result<()> {
    println!("| | resident MiB after load | with 10,000 idle connections |\n|---|---|---|");
    for (kind, running) in &proxies {
        let before = resident_mib(running.pid())?;
        let count = if *kind == Kind::Haproxy { 8_000 } else { 10_000 };
        let held = idle(kind.port(), count)?;
        let after = resident_mib(running.pid())?;
        drop(held);
        let note = if count == 10_000 { "" } else { " (8,000)" };
        println!("| {} | {before:.1} | {after:.1}{note} |", kind.name());
    }
    println!();
    drop(proxies);
    let mut figures = [Vec::new(), Vec::new()];
    let mut memory = [0.0; 2];
    for _ in 0..plan.rounds {
        for (place, (count, host)) in
            [(10, "host-9.example.com"), (10_000, "host-9999.example.com")].into_iter().enumerate()
        {
            let running = rig.proxy(Kind::Ours, count, false)?.context("ourselves")?;
            load("get", Kind::Ours.port(), 1, Some(host))?;
            figures[place].push(cost("get", Kind::Ours, &running, plan.seconds, Some(host))?);
            memory[place] = resident_mib(running.pid())?;
        }
    }
    let [few, many] = figures.map(|figures| spread(figures));
    println!("| routes | CPU µs per request | resident MiB |\n|---|---|---|");
    println!("| 10 | {:.1} ({:.1}–{:.1}) | {:.1} |", few.0, few.1, few.2, memory[0]);
    println!("| 10,000 | {:.1} ({:.1}–{:.1}) | {:.1} |", many.0, many.1, many.2, memory[1]);
    println!(
        "\nTen thousand routes cost **{:.2}** × ten (bar 1.05), memory bar 100 MiB.\n",
        many.0 / few.0
    );
    Ok(())
}

fn idle(port: u16, count: usize) -> Result<Vec<TcpStream>> {
    let mut held = Vec::with_capacity(count);
    for _ in 0..count {
        held.push(TcpStream::connect(("127.0.0.1", port)).context("raise `ulimit -n`")?);
    }
    std::thread::sleep(std::time::Duration::from_millis(500));
    Ok(held)
}

fn cached(plan: &Plan, rig: &Rig) -> Result<()> {
    println!("| cache hit, 1 KiB | CPU µs per request |\n|---|---|");
    let mut running = Vec::new();
    for kind in [Kind::Ours, Kind::Nginx, Kind::Varnish] {
        running.push((kind, rig.proxy(kind, 10, true)?.context("ourselves and others")?));
    }
    let mut figures: [Vec<f64>; 3] = Default::default();
    for (kind, _) in &running {
        load("cache", kind.port(), 1, None)?;
    }
    for _ in 0..plan.rounds {
        for (place, (kind, running)) in running.iter().enumerate() {
            figures[place].push(cost("cache", *kind, running, plan.seconds, None)?);
        }
    }
    for ((kind, _), figures) in running.iter().zip(figures) {
        let (median, least, most) = spread(figures);
        println!("| {} | {median:.1} ({least:.1}–{most:.1}) |", kind.name());
    }
    println!();
    Ok(())
}

fn propagation() -> Result<()> {
    let backend: SocketAddr = ([127, 0, 0, 1], BACKEND_PORT).into();
    println!("| routes | from a new route to its first request served, ms |\n|---|---|");
    for routes in [10, 10_000] {
        let (median, least, most) = spread(ours::propagation(backend, routes, 50)?);
        println!("| {routes} | {median:.2} ({least:.2}–{most:.2}) |");
    }
    println!();
    Ok(())
}
