//! Memory, and what ten thousand routes add to a request.

use std::net::TcpStream;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::cases::{Plan, rounds};
use crate::load::{GET, cost, load};
use crate::peers::Kind;
use crate::rig::{Rig, Running, ask};
use crate::usage::Spread;

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

/// Ten routes and ten thousand, side by side.
pub(crate) fn many(plan: &Plan, rig: &Rig) -> Result<()> {
    let ours = |routes| rig.proxy(Kind::Ours, routes, false)?.context("ourselves");
    let both = [(Kind::Ours, ours(10)?), (Kind::Ours, ours(10_000)?)];
    let host_of = |on: &Running| {
        if on.http == both[0].1.http { "host-9.example.com" } else { "host-9999.example.com" }
    };
    for (_, on) in &both {
        load(GET, on, 1, Some(host_of(on)))?;
    }
    let figures = rounds(plan.rounds, &both, |on| cost(GET, on, plan.seconds, Some(host_of(on))))?;
    println!(
        "Ingresses, each of a host and with a service of its own; resident MiB of agent + worker.\n\n\
         | Ingresses | CPU µs per request | resident MiB |\n|---|---|---|"
    );
    let mut medians = Vec::new();
    for ((count, own), (_, on)) in ["10", "10,000"].iter().zip(figures).zip(&both) {
        let spread = Spread::of(own);
        println!("| {count} | {} | {} |", spread.show(1), shown(&on.resident_mib()?));
        medians.push(spread.median);
    }
    println!(
        "\nTen thousand cost **{:.2}** × ten (bar 1.05); the memory bar is 100 MiB.\n",
        medians[1] / medians[0]
    );
    Ok(())
}
