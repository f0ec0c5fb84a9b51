//! What is measured, and the tables.

use anyhow::{Context, Result, bail};

use crate::load::{CACHE, CASES, CONNECTIONS, RATE, cost, latencies, load};
use crate::peers::Kind;
use crate::rig::{Rig, Running};
use crate::usage::Spread;
use crate::{propagation, routes};

/// What can be asked for beside the kinds of load.
const FURTHER: [&str; 5] = ["latency", "memory", "routes", "cache", "propagation"];

/// How a run is made.
pub(crate) struct Plan {
    pub(crate) rounds: usize,
    pub(crate) seconds: u32,
    beside: Vec<Kind>,
    only: Vec<String>,
}

impl Plan {
    fn of(args: &[String]) -> Result<Self> {
        let mut plan =
            Self { rounds: 5, seconds: 2, beside: Kind::ALL[1..].to_vec(), only: Vec::new() };
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            let mut value = || args.next().with_context(|| format!("{arg} needs a value"));
            match arg.as_str() {
                "--rounds" => plan.rounds = value()?.parse().context("--rounds needs a number")?,
                "--seconds" => {
                    plan.seconds = value()?.parse().context("--seconds needs a number")?;
                }
                "--beside" => {
                    let names: Vec<_> = value()?.split(',').map(str::to_lowercase).collect();
                    plan.beside.retain(|kind| names.contains(&kind.name().to_lowercase()));
                }
                name => {
                    let known =
                        CASES.iter().any(|case| case.name == name) || FURTHER.contains(&name);
                    if !known {
                        let names = CASES.iter().map(|case| case.name).chain(FURTHER);
                        bail!(
                            "there is no case {name:?}; there is: {}",
                            names.collect::<Vec<_>>().join(", ")
                        );
                    }
                    plan.only.push(name.to_owned());
                }
            }
        }
        Ok(plan)
    }

    fn wants(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|own| own == name)
    }
}

pub(crate) fn run(args: &[String]) -> Result<()> {
    let plan = Plan::of(args)?;
    crate::rig::prefer_us()?;
    let rig = Rig::new()?;
    let backend = rig.backend()?;
    let cases = CASES.iter().any(|case| plan.wants(case.name));
    println!("Versions: {}.\n", versions(&plan).join(", "));
    if cases || plan.wants("latency") || plan.wants("memory") {
        let mut proxies = Vec::new();
        for kind in [Kind::Ours].into_iter().chain(plan.beside.iter().copied()) {
            match rig.proxy(kind, false)? {
                Some(running) => proxies.push((kind, running)),
                None => eprintln!("{} is not installed: left out", kind.name()),
            }
        }
        let judges = cases || plan.wants("latency");
        if judges && !proxies.iter().any(|(kind, _)| kind.is_bar()) {
            // Held against nobody, every bar would be met.
            bail!("neither nginx nor HAProxy is there to be compared with; install one of them");
        }
        if cases {
            costs(&plan, &proxies)?;
        }
        if plan.wants("latency") {
            latency(&plan, &backend, &proxies)?;
        }
        if plan.wants("memory") {
            routes::idle_memory(&proxies)?;
        }
    }
    if plan.wants("routes") {
        routes::many(&plan, &rig)?;
    }
    if plan.wants("cache") {
        cached(&plan, &rig)?;
    }
    if plan.wants("propagation") {
        propagation::run(&rig)?;
    }
    Ok(())
}

/// What is measured, with its version.
fn versions(plan: &Plan) -> Vec<String> {
    let all = [Kind::Ours].into_iter().chain(plan.beside.iter().copied());
    let all = all.chain(plan.wants("cache").then_some(Kind::Varnish));
    all.filter_map(|kind| Some(format!("{} {}", kind.name(), kind.version()?))).collect()
}

/// Whether a figure is as it should be.
pub(crate) fn verdict(figure: f64, bar: f64) -> &'static str {
    if figure <= bar { "met" } else { "**missed**" }
}

/// The median of costs; a failed request is told, for it was cheap.
pub(crate) fn costs_of(name: &str, figures: Vec<(f64, u64)>) -> Spread {
    let failed: u64 = figures.iter().map(|(_, failed)| failed).sum();
    if failed > 0 {
        println!("**{name}: {failed} requests failed.**\n");
    }
    Spread::of(figures.into_iter().map(|(cost, _)| cost).collect())
}

/// Interleaved rounds of a measurement, over several proxies.
pub(crate) fn rounds<T>(
    count: usize,
    all: &[(Kind, Running)],
    mut measure: impl FnMut(&Running) -> Result<T>,
) -> Result<Vec<Vec<T>>> {
    let mut figures: Vec<Vec<T>> = all.iter().map(|_| Vec::new()).collect();
    for _ in 0..count {
        for ((_, running), own) in all.iter().zip(&mut figures) {
            own.push(measure(running)?);
        }
    }
    Ok(figures)
}

fn costs(plan: &Plan, proxies: &[(Kind, Running)]) -> Result<()> {
    println!(
        "CPU time per request in µs: median (least–most) of {} interleaved rounds of {} s. The proxy has one core, \
         load and backend the other.\n",
        plan.rounds, plan.seconds
    );
    let names: Vec<_> = proxies.iter().map(|(kind, _)| kind.name()).collect();
    println!("| load | {} | telaio ÷ better of nginx, HAProxy | bar | |", names.join(" | "));
    println!("|---|{}---|---|---|", "---|".repeat(names.len()));
    let mut failures = Vec::new();
    for case in CASES.into_iter().filter(|case| plan.wants(case.name)) {
        for (_, running) in proxies {
            // Connections and caches warm up.
            load(case, running, 1, None)?;
        }
        let figures = rounds(plan.rounds, proxies, |on| cost(case, on, plan.seconds, None))?;
        for ((kind, _), own) in proxies.iter().zip(&figures) {
            let failed: u64 = own.iter().map(|(_, failed)| failed).sum();
            if failed > 0 {
                failures.push(format!("{} {failed} ({})", kind.name(), case.what));
            }
        }
        let medians = |own: Vec<(f64, u64)>| Spread::of(own.into_iter().map(|it| it.0).collect());
        let spreads: Vec<_> = figures.into_iter().map(medians).collect();
        let cells: Vec<_> = spreads.iter().map(|spread| spread.show(1)).collect();
        let share = spreads[0].median / best(proxies, &spreads);
        let (cells, verdict) = (cells.join(" | "), verdict(share, case.bar));
        println!("| {} | {cells} | **{share:.2}** | {:.2} | {verdict} |", case.what, case.bar);
    }
    let failures = if failures.is_empty() { "none".to_owned() } else { failures.join(", ") };
    println!("\nFailed requests: {failures}.\n");
    Ok(())
}

/// The better of those that we are held against.
fn best(proxies: &[(Kind, Running)], spreads: &[Spread]) -> f64 {
    let held = proxies.iter().zip(spreads).filter(|((kind, _), _)| kind.is_bar());
    held.map(|(_, spread)| spread.median).fold(f64::INFINITY, f64::min)
}

/// Latency at a fixed rate.
fn latency(plan: &Plan, backend: &Running, proxies: &[(Kind, Running)]) -> Result<()> {
    // Enough for the last of a thousand to be more than chance.
    let seconds = plan.seconds * 2;
    println!(
        "Latency of small GETs at {RATE} requests per second over {CONNECTIONS} connections, in µs: median (least–most) of {} \
         interleaved rounds of {seconds} s. Proxy, load and backend run with real-time priority, so that what else the \
         machine does does not count.\n",
        plan.rounds
    );
    let all = || proxies.iter().map(|(_, running)| running).chain([backend]);
    all().try_for_each(|running| running.set_first(true))?;
    crate::rig::set_us_first(true)?;
    let figures = rounds(plan.rounds, proxies, |on| {
        let times = latencies(on, seconds)?;
        let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize];
        Ok([at(0.5), at(0.99), at(0.999)])
    })?;
    crate::rig::set_us_first(false)?;
    all().try_for_each(|running| running.set_first(false))?;
    let spreads: Vec<[Spread; 3]> = figures
        .into_iter()
        .map(|own| [0, 1, 2].map(|place| Spread::of(own.iter().map(|all| all[place]).collect())))
        .collect();
    println!("| proxy | p50 | p99 | p99.9 |\n|---|---|---|---|");
    for ((kind, _), all) in proxies.iter().zip(&spreads) {
        let [p50, p99, p999] = all.map(|spread| spread.show(0));
        println!("| {} | {p50} | {p99} | {p999} |", kind.name());
    }
    let p99: Vec<_> = spreads.iter().map(|all| all[1]).collect();
    let share = p99[0].median / best(proxies, &p99);
    let verdict = verdict(share, 1.0);
    println!("\np99 of telaio ÷ better of nginx, HAProxy: **{share:.2}** (bar 1.00: {verdict}).\n");
    Ok(())
}

fn cached(plan: &Plan, rig: &Rig) -> Result<()> {
    let mut running = Vec::new();
    for kind in [Kind::Ours, Kind::Nginx, Kind::Varnish] {
        running.push((kind, rig.proxy(kind, true)?.context("not installed")?));
    }
    for (_, on) in &running {
        load(CACHE, on, 1, None)?;
    }
    let figures = rounds(plan.rounds, &running, |on| cost(CACHE, on, plan.seconds, None))?;
    let spreads = running.iter().zip(figures);
    let spreads = spreads.map(|((kind, _), own)| (kind.name(), costs_of(kind.name(), own)));
    let spreads: Vec<_> = spreads.collect();
    println!("| {} | CPU µs per request |\n|---|---|", CACHE.what);
    for (name, spread) in spreads {
        println!("| {name} | {} |", spread.show(1));
    }
    println!();
    Ok(())
}
