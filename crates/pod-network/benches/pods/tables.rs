//! What is printed, and written to docs/benchmarks.md.

use std::time::Duration;

use crate::call::Cost;
use crate::figures::{BRIDGE_PORTS, Ours, REFERENCE, Size, WINDOW, at};

/// The size at which one instance is compared with others' ways.
const FEW: usize = 10;
/// The size up to which nothing may grow much.
const MANY: usize = 1000;

type Reference = (usize, [Cost; 2]);

fn ms(time: Duration) -> String {
    format!("{:.2} ms", time.as_secs_f64() * 1000.0)
}

fn ratio(a: Duration, b: Duration) -> f64 {
    a.as_secs_f64() / b.as_secs_f64().max(1e-9)
}

fn times(a: Duration, b: Duration) -> String {
    format!("{:.1} ×", ratio(a, b))
}

/// The place of the size at which calls are compared: the usual one, or the first.
fn few(sizes: &[Size]) -> usize {
    sizes.iter().position(|size| size.count == FEW).unwrap_or(0)
}

fn beside(reference: &[Reference], count: usize) -> Option<[Cost; 2]> {
    reference.iter().find(|(at, _)| *at == count).map(|(_, costs)| *costs)
}

pub(crate) fn of_calls(ours: &Ours, floor: &[Cost], reference: &[Reference]) {
    let place = few(&ours.sizes);
    let (own, floor) = (&ours.sizes[place], floor[place]);
    println!(
        "One instance with one published port beside {} others, a process per call; the call in the middle of {WINDOW} (reference: \
         wall of the middle of {REFERENCE}, CPU on average).\n",
        own.count
    );
    println!("| call | wall | CPU |\n|---|---|---|");
    let row =
        |what: &str, cost: Cost| println!("| {what} | {} | {} |", ms(cost.wall), ms(cost.cpu));
    row("floor: static program, netlink calls, one nftables transaction", floor);
    row("telaio-cni ADD", own.add);
    let reference = beside(reference, own.count);
    if let Some([add, _]) = reference {
        row("bridge + host-local + portmap ADD", add);
    }
    row("telaio-cni DEL", own.delete);
    if let Some([_, delete]) = reference {
        row("bridge + host-local + portmap DEL", delete);
    }
    row("telaio-cni ADD that makes the network", ours.first);
    println!("\nADD: CPU {} the floor's.", times(own.add.cpu, floor.cpu));
    if let Some([add, delete]) = reference {
        println!(
            "The reference chain takes {} the wall time and {} the CPU for ADD, {} and {} for DEL.",
            times(add.wall, own.add.wall),
            times(add.cpu, own.add.cpu),
            times(delete.wall, own.delete.wall),
            times(delete.cpu, own.delete.cpu)
        );
    }
    println!(
        "\nAddresses are claimed by `link(2)` without a flush to the disk: a killed process loses nothing, and a power \
         failure ends every instance anyhow (records are kept by boot).\n"
    );
}

pub(crate) fn of_sizes(ours: &Ours, floor: &[Cost], reference: &[Reference]) {
    println!(
        "| instances | ADD wall | ADD CPU | floor's CPU | DEL wall | DEL CPU | GC of all, wall each | GC CPU each | reference ADD wall | \
         reference DEL wall |\n|---|---|---|---|---|---|---|---|---|---|"
    );
    for (size, floor) in ours.sizes.iter().zip(floor) {
        let [add, delete] = beside(reference, size.count)
            .map_or([String::new(), String::new()], |costs| costs.map(|cost| ms(cost.wall)));
        println!(
            "| {}{} | {} | {} | {} | {} | {} | {} | {} | {add} | {delete} |",
            size.count,
            if size.count >= BRIDGE_PORTS { ", one more is routed to" } else { "" },
            ms(size.add.wall),
            ms(size.add.cpu),
            ms(floor.cpu),
            ms(size.delete.wall),
            ms(size.delete.cpu),
            ms(size.collect.wall),
            ms(size.collect.cpu),
        );
    }
    let place = few(&ours.sizes);
    let base = &ours.sizes[place];
    for (size, now) in ours.sizes.iter().zip(floor).skip(place + 1) {
        println!(
            "\nAt {} the CPU and the wall time at {}: ADD {} and {}, DEL {} and {}; the floor's CPU {}.",
            size.count,
            base.count,
            times(size.add.cpu, base.add.cpu),
            times(size.add.wall, base.add.wall),
            times(size.delete.cpu, base.delete.cpu),
            times(size.delete.wall, base.delete.wall),
            times(now.cpu, floor[place].cpu)
        );
    }
    println!(
        "\nWhat grows is the kernel's bridge: it walks all ports whenever one comes or goes (spanning tree, forwarding entries, \
         features, lengths of packets). A bridge has {BRIDGE_PORTS} ports; instances beyond hang on none and are routed to, which \
         needs no walk. The floor's ports have the flags of ours; its instances have no entry by which the node finds \
         them. DEL waits for the kernel's grace periods, which cost no CPU.\n"
    );
}

/// What is asked of us, and whether it is so.
pub(crate) fn of_bars(ours: &Ours, floor: &[Cost], reference: &[Reference]) {
    println!("| bar | measured | met |\n|---|---|---|");
    let row = |what: &str, measured: String, is_met: bool| {
        println!("| {what} | {measured} | {} |", if is_met { "yes" } else { "**no**" });
    };
    let place = few(&ours.sizes);
    let base = &ours.sizes[place];
    let to_floor = ratio(base.add.cpu, floor[place].cpu);
    row(
        "ADD with one port: at most 2 × the floor's CPU",
        format!("{to_floor:.2} ×"),
        to_floor <= 2.0,
    );
    if let Some([add, _]) = beside(reference, base.count) {
        let less = ratio(add.wall, base.add.wall);
        let what = "ADD with one port: the reference chain takes at least 10 × the wall time";
        row(what, format!("{less:.1} ×"), less >= 10.0);
    }
    for size in &ours.sizes {
        if size.count < MANY {
            continue;
        }
        for (what, now, then) in [("ADD", size.add, base.add), ("DEL", size.delete, base.delete)] {
            let [cpu, wall] = [ratio(now.cpu, then.cpu), ratio(now.wall, then.wall)];
            row(
                &format!("{what} at {}: at most 1.5 × what it costs at {}", size.count, base.count),
                format!("{cpu:.2} × the CPU, {wall:.2} × the wall time"),
                cpu <= 1.5 && wall <= 1.5,
            );
        }
    }
    if let Some(size) = at(&ours.sizes, MANY) {
        let each = size.collect.wall;
        let is_met = each <= Duration::from_millis(2);
        row(&format!("GC of {MANY}: at most 2 ms each"), ms(each), is_met);
    }
    println!();
}
