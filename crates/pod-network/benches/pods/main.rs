//! `cargo xtask bench pods`: what an instance's network costs, beside the reference plugins and the floor.
//!
//! Everything happens on machines of their own (see testkit): the host's network is not touched. CPU is the time of
//! the plugin's process and its children, as the kernel accounts it; what the kernel does later by itself, such as the
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

use call::{Meter, Plugin, config};
use serde_json::json;
use telaio_testkit::machine::Machine;

/// How many instances there are at most.
const MANY: usize = 1000;
/// How many calls a figure is the middle of.
const WINDOW: usize = 50;
/// The reference chain is slow: so many calls are enough.
const REFERENCE: usize = 30;

fn main() {
    let (plugin, floor) = build();
    let first = sizes(&plugin);
    let floor = floor_figures(&floor);
    let reference = reference_figures();
    table_of_calls(&first, &floor, &reference);
    table_of_sizes(&first);
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

/// What calls cost: wall time of the one in the middle, CPU time on average.
#[derive(Debug, Clone, Copy)]
struct Cost {
    wall: Duration,
    cpu: Duration,
}

struct Sizes {
    /// ADD with one port, by how many instances there were.
    add: Vec<(usize, Cost)>,
    delete: Vec<(usize, Cost)>,
    collect_each: Duration,
    collect_cpu_each: Duration,
    first: Duration,
    all_adds: Cost,
}

fn sizes(program: &Path) -> Sizes {
    let machine = machine(MANY + 1);
    let plugin = Plugin { program: program.to_owned(), config: config() };
    machine.run(move || {
        let mut meter = Meter::start();
        plugin.call("ADD", 1, 30_001);
        let first = meter.wall();
        let mut add = Vec::new();
        let mut all = Vec::new();
        let whole = Meter::start();
        let mut window = Vec::new();
        let mut meter_window = Meter::start();
        for number in 2..=MANY {
            if number % WINDOW == 1 {
                meter_window = Meter::start();
                window.clear();
            }
            meter = Meter::start();
            plugin.call("ADD", number, 30_000 + number as u16);
            window.push(meter.wall());
            all.push(meter.wall());
            if [WINDOW, 100, MANY].contains(&number) {
                let cpu = meter_window.cpu() / window.len() as u32;
                add.push((number, Cost { wall: middle(&mut window.clone()), cpu }));
            }
        }
        let all_adds = Cost { wall: middle(&mut all), cpu: whole.cpu() / (MANY - 1) as u32 };
        let delete = |numbers: std::ops::Range<usize>, there: usize| {
            let meter = Meter::start();
            let count = numbers.len() as u32;
            let mut walls: Vec<Duration> = numbers
                .map(|number| {
                    let meter = Meter::start();
                    plugin.call("DEL", number, 30_000 + number as u16);
                    meter.wall()
                })
                .collect();
            (there, Cost { wall: middle(&mut walls), cpu: meter.cpu() / count })
        };
        let mut deleted = vec![delete(MANY - 20..MANY, MANY)];
        for number in MANY - 20..MANY {
            plugin.call("ADD", number, 30_000 + number as u16);
        }
        let meter = Meter::start();
        plugin.collect(json!([]));
        let collect_each = meter.wall() / MANY as u32;
        let collect_cpu_each = meter.cpu() / MANY as u32;
        for number in 1..=20 {
            plugin.call("ADD", number, 30_000 + number as u16);
        }
        deleted.insert(0, delete(1..21, 20));
        Sizes { add, delete: deleted, collect_each, collect_cpu_each, first, all_adds }
    })
}

/// The least that an ADD can cost.
fn floor_figures(program: &Path) -> Cost {
    const COUNT: usize = 200;
    let machine = machine(COUNT + 1);
    let plugin = env!("CARGO_BIN_EXE_telaio-cni");
    let (plugin, program) = (PathBuf::from(plugin), program.to_owned());
    machine.run(move || {
        // The bridge and the tables.
        Plugin { program: plugin, config: config() }.call("ADD", COUNT + 1, 29_999);
        let whole = Meter::start();
        let mut walls: Vec<Duration> = (1..=COUNT)
            .map(|number| {
                let meter = Meter::start();
                let done = Command::new(&program)
                    .args([format!("/run/netns/m{number}"), format!("floor{number}")])
                    .args([format!("10.88.1.{number}"), (30_000 + number).to_string()])
                    .status()
                    .unwrap();
                assert!(done.success());
                meter.wall()
            })
            .collect();
        Cost { wall: middle(&mut walls), cpu: whole.cpu() / COUNT as u32 }
    })
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
    let (own, own_delete) = (ours.all_adds, ours.delete[0].1);
    println!(
        "One instance with one published port, a process per call. Wall time of the call in the middle, CPU per call.\n"
    );
    println!("| call | wall | CPU |\n|---|---|---|");
    println!(
        "| floor: static program, netlink calls, one nftables transaction | {} | {} |",
        ms(floor.wall),
        ms(floor.cpu)
    );
    println!("| telaio-cni ADD, over {MANY} instances | {} | {} |", ms(own.wall), ms(own.cpu));
    println!("| bridge + host-local + portmap ADD | {} | {} |", ms(add.wall), ms(add.cpu));
    println!("| telaio-cni DEL | {} | {} |", ms(own_delete.wall), ms(own_delete.cpu));
    println!("| bridge + host-local + portmap DEL | {} | {} |", ms(delete.wall), ms(delete.cpu));
    println!("| telaio-cni ADD that makes the network | {} | |", ms(ours.first));
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

fn table_of_sizes(ours: &Sizes) {
    println!("| instances on the bridge | ADD wall | ADD CPU |\n|---|---|---|");
    for (count, cost) in &ours.add {
        println!("| {count} | {} | {} |", ms(cost.wall), ms(cost.cpu));
    }
    let cpu = |at: usize| ours.add[at].1.cpu;
    println!(
        "\nAt {MANY}: {} the CPU at {}.",
        times(cpu(ours.add.len() - 1), cpu(0)),
        ours.add[0].0
    );
    for (count, cost) in &ours.delete {
        println!("DEL among {count}: {} wall, {} CPU.", ms(cost.wall), ms(cost.cpu));
    }
    println!(
        "GC of {MANY}: {} wall, {} CPU each.\n",
        ms(ours.collect_each),
        ms(ours.collect_cpu_each)
    );
}
