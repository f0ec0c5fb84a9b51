//! `cargo xtask bench pods`: what an instance's network costs, beside the reference plugins and the floor.
//!
//! Everything happens on machines of their own (see testkit): the host's network is not touched. CPU is the time of
//! the plugin's process (of the reference chain: and its children), as the kernel accounts it; what the kernel does later by itself, such as the
//! last of a link's removal, is nobody's.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    missing_docs,
    clippy::cast_precision_loss,
    reason = "a benchmark"
)]

mod call;
mod throughput;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use call::{Cost, Meter, Plugin, config};
use serde_json::json;
use telaio_testkit::machine::Machine;

/// How many instances there are at most.
const MANY: usize = 1000;
/// The sizes at which calls are measured.
const SIZES: [usize; 3] = [10, 100, MANY];
/// How many calls a figure is the middle of.
const WINDOW: usize = 60;
/// The reference chain is slow: so many calls are enough.
const REFERENCE: usize = 30;

fn main() {
    let (plugin, floor) = build();
    let first = sizes(&plugin);
    let floor = floor_figures(&floor);
    let reference = reference_figures();
    table_of_calls(&first, &floor[0], &reference);
    table_of_sizes(&first, &floor);
    throughput::table();
}

/// Builds the plugin and the floor program as they are shipped: optimised and static.
fn build() -> (PathBuf, PathBuf) {
    let target = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/static");
    let built = Command::new(env!("CARGO"))
        .args(["build", "--quiet", "--release", "-p", "telaio-pod-network"])
        .args(["--features", "floor", "--bin", "telaio-cni", "--bin", "pods-floor"])
        .env("RUSTFLAGS", "-C target-feature=+crt-static")
        .arg("--target-dir")
        .arg(&target)
        .args(["--target", "x86_64-unknown-linux-gnu"])
        .status()
        .unwrap();
    assert!(built.success(), "the plugin does not build");
    let release = target.join("x86_64-unknown-linux-gnu/release");
    (release.join("telaio-cni"), release.join("pods-floor"))
}

/// A machine with namespaces m1, m2, …
fn machine(count: usize) -> Machine {
    let machine = Machine::start("bench");
    machine.sh(&format!("for n in $(seq 1 {count}); do echo netns add m$n; done | ip -batch -"));
    machine
}

struct Sizes {
    /// ADD and DEL of one more, by how many instances there are.
    add: Vec<(usize, Cost)>,
    delete: Vec<(usize, Cost)>,
    collect_each: Duration,
    collect_cpu_each: Duration,
    first: Cost,
}

fn sizes(program: &Path) -> Sizes {
    let machine = machine(MANY + 1);
    let plugin = Plugin { program: program.to_owned(), config: config() };
    machine.run(move || {
        let port = |number: usize| 30_000 + number as u16;
        let first = plugin.call("ADD", 1, port(1));
        let (mut add, mut delete) = (Vec::new(), Vec::new());
        for number in 2..=MANY {
            plugin.call("ADD", number, port(number));
            if SIZES.contains(&number) {
                let one_more = number + 1;
                let costs: Vec<(Cost, Cost)> = (0..WINDOW)
                    .map(|_| {
                        let added = plugin.call("ADD", one_more, port(one_more));
                        (added, plugin.call("DEL", one_more, port(one_more)))
                    })
                    .collect();
                add.push((number, middle_cost(costs.iter().map(|(added, _)| *added))));
                delete.push((number, middle_cost(costs.iter().map(|(_, deleted)| *deleted))));
            }
        }
        let collected = plugin.collect(json!([]));
        let (collect_each, collect_cpu_each) =
            (collected.wall / MANY as u32, collected.cpu / MANY as u32);
        Sizes { add, delete, collect_each, collect_cpu_each, first }
    })
}

/// The least that an ADD can cost, by how many instances there are: what grows here is the kernel's part.
fn floor_figures(program: &Path) -> Vec<Cost> {
    let machine = machine(MANY + 2);
    let plugin = env!("CARGO_BIN_EXE_telaio-cni");
    let (plugin, program) = (PathBuf::from(plugin), program.to_owned());
    machine.run(move || {
        // The bridge and the tables.
        Plugin { program: plugin, config: config() }.call("ADD", MANY + 2, 29_999);
        let add = |number: usize| {
            let mut command = Command::new(&program);
            let (high, low) = (1 + number / 250, 1 + number % 250);
            command
                .args([format!("/run/netns/m{number}"), format!("floor{number}")])
                .args([format!("10.88.{high}.{low}"), (30_000 + number).to_string()]);
            call::run_measured(&mut command, &json!(null))
        };
        let remove = |number: usize| {
            let port = 30_000 + number;
            let line = format!(
                "ip link del floor{number} && nft delete element ip telaio-pods any-ports '{{ tcp . {port} }}'"
            );
            assert!(Command::new("sh").args(["-c", &line]).status().unwrap().success());
        };
        let mut found = Vec::new();
        for number in 1..=MANY {
            add(number);
            if SIZES.contains(&number) {
                let costs = (0..WINDOW).map(|_| {
                    let cost = add(number + 1);
                    remove(number + 1);
                    cost
                });
                found.push(middle_cost(costs.collect::<Vec<_>>().into_iter()));
            }
        }
        found
    })
}

fn middle_cost(costs: impl Iterator<Item = Cost>) -> Cost {
    let (mut walls, mut cpus): (Vec<Duration>, Vec<Duration>) =
        costs.map(|cost| (cost.wall, cost.cpu)).unzip();
    Cost { wall: middle(&mut walls), cpu: middle(&mut cpus) }
}

/// Debian's bridge with host-local, then portmap.
fn reference_figures() -> [Cost; 2] {
    let machine = machine(REFERENCE);
    machine.run(|| {
        ["ADD", "DEL"].map(|command| {
            let whole = Meter::start();
            let mut walls: Vec<Duration> = (1..=REFERENCE)
                .map(|number| {
                    let meter = Meter::start();
                    call::reference(command, number, 30_000 + number as u16);
                    meter.wall()
                })
                .collect();
            Cost { wall: middle(&mut walls), cpu: whole.cpu() / REFERENCE as u32 }
        })
    })
}

fn middle(times: &mut [Duration]) -> Duration {
    times.sort();
    times[times.len() / 2]
}

fn ms(time: Duration) -> String {
    format!("{:.2} ms", time.as_secs_f64() * 1000.0)
}

fn times(a: Duration, b: Duration) -> String {
    format!("{:.1} ×", a.as_secs_f64() / b.as_secs_f64().max(1e-9))
}

fn table_of_calls(ours: &Sizes, floor: &Cost, reference: &[Cost; 2]) {
    let [add, delete] = reference;
    let (own, own_delete) = (ours.add[0].1, ours.delete[0].1);
    println!(
        "One instance with one published port, a process per call; the call in the middle of {WINDOW} (reference: wall of the middle \
         of {REFERENCE}, CPU on average).\n"
    );
    println!("| call | wall | CPU |\n|---|---|---|");
    println!(
        "| floor: static program, netlink calls, one nftables transaction | {} | {} |",
        ms(floor.wall),
        ms(floor.cpu)
    );
    println!("| telaio-cni ADD | {} | {} |", ms(own.wall), ms(own.cpu));
    println!("| bridge + host-local + portmap ADD | {} | {} |", ms(add.wall), ms(add.cpu));
    println!("| telaio-cni DEL | {} | {} |", ms(own_delete.wall), ms(own_delete.cpu));
    println!("| bridge + host-local + portmap DEL | {} | {} |", ms(delete.wall), ms(delete.cpu));
    let first = ours.first;
    println!("| telaio-cni ADD that makes the network | {} | {} |", ms(first.wall), ms(first.cpu));
    println!();
    println!(
        "ADD: CPU {} the floor's; the reference chain takes {} the wall time and {} the CPU. DEL: {} the wall time.",
        times(own.cpu, floor.cpu),
        times(add.wall, own.wall),
        times(add.cpu, own.cpu),
        times(delete.wall, own_delete.wall)
    );
    println!(
        "\nAddresses are claimed by `link(2)` without a flush to the disk: a killed process loses nothing, and a power \
         failure ends every instance anyhow (records are kept by boot).\n"
    );
}

fn table_of_sizes(ours: &Sizes, floor: &[Cost]) {
    println!(
        "| instances on the bridge | ADD wall | ADD CPU | floor's CPU | DEL wall | DEL CPU |\n|---|---|---|---|---|---|"
    );
    for (((count, add), (_, delete)), floor) in ours.add.iter().zip(&ours.delete).zip(floor) {
        println!(
            "| {count} | {} | {} | {} | {} | {} |",
            ms(add.wall),
            ms(add.cpu),
            ms(floor.cpu),
            ms(delete.wall),
            ms(delete.cpu)
        );
    }
    let last = ours.add.len() - 1;
    let ratio = |of: fn(&Cost) -> Duration| times(of(&ours.add[last].1), of(&ours.add[0].1));
    println!(
        "\nADD at {MANY}: {} the CPU and {} the wall time at {}; the floor {} its CPU. What grows is the kernel's bridge: it walks all \
         ports whenever one comes or goes (spanning tree, forwarding entries, features, lengths of packets). DEL waits for the \
         kernel's grace periods, which cost no CPU.",
        ratio(|cost| cost.cpu),
        ratio(|cost| cost.wall),
        SIZES[0],
        times(floor[last].cpu, floor[0].cpu)
    );
    println!(
        "GC of {MANY}: {} wall, {} CPU each.\n",
        ms(ours.collect_each),
        ms(ours.collect_cpu_each)
    );
}
