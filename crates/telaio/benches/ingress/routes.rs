//! Memory, and what ten thousand routes add to a request.

use std::net::TcpStream;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::cases::{Plan, costs_of, rounds, verdict};
use crate::load::{GET, cost, load};
use crate::ours;
use crate::peers::Kind;
use crate::rig::{Rig, Running, ask, free_port};

/// HAProxy takes two descriptors for each connection into account, and may have 20,000 in all.
const IDLE_HAPROXY: usize = 9_500;
const IDLE: usize = 10_000;

/// What is resident, and what ten thousand connections add that have asked once and wait.
pub(crate) fn idle_memory(proxies: &[(Kind, Running)]) -> Result<()> {
    println!(
        "| | resident MiB after load, ten routes | with 10,000 idle connections |\n|---|---|---|"
    );
    for (kind, running) in proxies {
        load(GET, running, 1, None)?;
        let before = running.resident_mib()?;
        let count = if *kind == Kind::Haproxy { IDLE_HAPROXY } else { IDLE };
        let held = idle(running.http, count)?;
        let after = running.resident_mib()?;
        drop(held);
        let note = if count == IDLE { "" } else { ", of 9,500" };
        println!("| {} | {} | {}{note} |", kind.name(), shown(&before), shown(&after));
    }
    println!();
    Ok(())
}

/// The sum, and of what.
fn shown(parts: &[f64]) -> String {
    let sum: f64 = parts.iter().sum();
    if parts.len() == 1 {
        return format!("{sum:.1}");
    }
    let parts: Vec<_> = parts.iter().map(|part| format!("{part:.1}")).collect();
    format!("{sum:.1} ({})", parts.join(" + "))
}

fn idle(port: u16, count: usize) -> Result<Vec<TcpStream>> {
    let mut held = Vec::with_capacity(count);
    for _ in 0..count {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).context("raise `ulimit -n`")?;
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        ask(&mut stream, "host-0.example.com", "/small")?;
        held.push(stream);
    }
    std::thread::sleep(Duration::from_millis(500));
    Ok(held)
}

/// What ten thousand routes may cost of ten, and what they may take.
const SHARE_MAX: f64 = 1.05;
const MEMORY_MIB_MAX: f64 = 100.0;

/// How many Ingresses and services, and what they are called.
const TABLES: [(usize, usize, &str); 3] = [
    (10, 10, "10, each with a service of its own"),
    (10_000, 100, "10,000 of 100 services"),
    (10_000, 10_000, "10,000, each with a service of its own"),
];

/// Ten routes and ten thousand, side by side.
pub(crate) fn many(plan: &Plan, rig: &Rig) -> Result<()> {
    let mut all = Vec::new();
    for (routes, services, _) in TABLES {
        let manifests = ours::write_manifests(rig, (routes, services), false)?;
        let source = format!("dir:{}", manifests.display());
        all.push((Kind::Ours, rig.ours(&source, (free_port()?, free_port()?))?));
    }
    // The last of its table.
    let few = all[0].1.http;
    let host = |on: &Running| {
        if on.http == few { "host-9.example.com" } else { "host-9999.example.com" }
    };
    for (_, on) in &all {
        load(GET, on, 1, Some(host(on)))?;
    }
    let figures = rounds(plan.rounds, &all, |on| cost(GET, on, plan.seconds, Some(host(on))))?;
    let figures: Vec<_> =
        TABLES.iter().zip(figures).map(|((_, _, what), own)| costs_of(what, own)).collect();
    println!(
        "Ingresses, each of one host; resident MiB of agent + worker, each its share of what both have.\n\n\
         | Ingresses | CPU µs per request | resident MiB |\n|---|---|---|"
    );
    let mut memory = Vec::new();
    for (((_, _, what), spread), (_, on)) in TABLES.iter().zip(&figures).zip(&all) {
        let resident = on.resident_mib()?;
        println!("| {what} | {} | {} |", spread.show(1), shown(&resident));
        memory.push(resident.iter().sum::<f64>());
    }
    let shares = [1, 2].map(|place| figures[place].median / figures[0].median);
    println!(
        "\nTen thousand cost **{:.2}** and **{:.2}** × ten (bar {SHARE_MAX}: {}, {}) and take {:.0} and {:.0} MiB (bar \
         {MEMORY_MIB_MAX:.0}: {}, {}).\n",
        shares[0],
        shares[1],
        verdict(shares[0], SHARE_MAX),
        verdict(shares[1], SHARE_MAX),
        memory[1],
        memory[2],
        verdict(memory[1], MEMORY_MIB_MAX),
        verdict(memory[2], MEMORY_MIB_MAX),
    );
    Ok(())
}
