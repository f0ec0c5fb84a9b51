//! What is printed, and written to docs/benchmarks.md.

use std::time::Duration;

use crate::call::Cost;
use crate::figures::{
    BRIDGE_PORTS, Floor, Ours, REFERENCE, REFERENCE_TIME, Reference, Size, WINDOW, at,
};

/// The size at which one instance is compared with others' ways.
const FEW: usize = 10;
/// The size up to which nothing may grow much.
const MANY: usize = 1000;

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

/// The reference chain beside so many, if they were made in time.
fn beside(reference: &[Reference], count: usize) -> Option<&Reference> {
    reference.iter().find(|it| it.wanted == count && it.there == count)
}

/// A figure of the reference chain at this size, and how many instances there were if it is less.
fn of_reference(
    reference: &[Reference],
    count: usize,
    cost: impl Fn(&Reference) -> Cost,
) -> String {
    let Some(found) = reference.iter().find(|it| it.wanted == count) else { return String::new() };
    let figure = ms(cost(found).wall);
    if found.there == count { figure } else { format!("{figure} (beside {})", found.there) }
}

pub(crate) fn of_calls(ours: &Ours, floor: &[Floor], reference: &[Reference]) {
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
    row("floor of ADD: static program, netlink calls, one nftables transaction", floor.add);
    row("telaio-cni ADD", own.add);
    let reference = beside(reference, own.count);
    if let Some(it) = reference {
        row("bridge + host-local + portmap ADD", it.add);
    }
    row("floor of DEL: static program, one nftables transaction, one link deleted", floor.remove);
    row("telaio-cni DEL", own.delete);
    if let Some(it) = reference {
        row("bridge + host-local + portmap DEL", it.delete);
    }
    row("telaio-cni ADD that makes the network", ours.first);
    for (what, own, floor) in [("ADD", own.add, floor.add), ("DEL", own.delete, floor.remove)] {
        let (cpu, wall) = (times(own.cpu, floor.cpu), times(own.wall, floor.wall));
        println!("\n{what}: {cpu} the floor's CPU, {wall} its wall time.");
    }
    if let Some(Reference { add, delete, .. }) = reference {
        println!(
            "\nThe reference chain takes {} the wall time and {} the CPU for ADD, {} and {} for DEL.",
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

pub(crate) fn of_sizes(ours: &Ours, floor: &[Floor], reference: &[Reference]) {
    println!(
        "| instances | ADD wall | ADD CPU | its floor's wall | CPU | DEL wall | DEL CPU | its floor's wall | CPU | \
         GC of all, wall each | GC CPU each | reference ADD wall | reference DEL wall |\n\
         |---|---|---|---|---|---|---|---|---|---|---|---|---|"
    );
    for (size, floor) in ours.sizes.iter().zip(floor) {
        println!(
            "| {}{} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} |",
            size.count,
            if size.count >= BRIDGE_PORTS { ", one more is routed to" } else { "" },
            ms(size.add.wall),
            ms(size.add.cpu),
            ms(floor.add.wall),
            ms(floor.add.cpu),
            ms(size.delete.wall),
            ms(size.delete.cpu),
            ms(floor.remove.wall),
            ms(floor.remove.cpu),
            ms(size.collect.wall),
            ms(size.collect.cpu),
            of_reference(reference, size.count, |it| it.add),
            of_reference(reference, size.count, |it| it.delete),
        );
    }
    if let Some(it) = reference.iter().find(|it| it.there < it.wanted) {
        println!(
            "\nBy the reference chain only {} of {} instances were made: after {} s it was given up.",
            it.there,
            it.wanted,
            REFERENCE_TIME.as_secs()
        );
    }
    let place = few(&ours.sizes);
    let base = &ours.sizes[place];
    for (size, now) in ours.sizes.iter().zip(floor).skip(place + 1) {
        println!(
            "\nAt {} the CPU and the wall time at {}: ADD {} and {}, DEL {} and {}; the floor's CPU {} for ADD, {} for DEL.",
            size.count,
            base.count,
            times(size.add.cpu, base.add.cpu),
            times(size.add.wall, base.add.wall),
            times(size.delete.cpu, base.delete.cpu),
            times(size.delete.wall, base.delete.wall),
            times(now.add.cpu, floor[place].add.cpu),
            times(now.remove.cpu, floor[place].remove.cpu)
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
pub(crate) fn of_bars(ours: &Ours, floor: &[Floor], reference: &[Reference]) {
    println!("| bar | measured | met |\n|---|---|---|");
    let row = |what: &str, measured: String, is_met: bool| {
        println!("| {what} | {measured} | {} |", if is_met { "yes" } else { "**no**" });
    };
    let place = few(&ours.sizes);
    let base = &ours.sizes[place];
    for (size, floor) in ours.sizes.iter().zip(floor).skip(place) {
        let (beside_many, to_floor) = (size.count, ratio(size.add.cpu, floor.add.cpu));
        row(
            &format!("ADD with one port beside {beside_many}: at most 2 × the floor's CPU"),
            format!("{to_floor:.2} ×"),
            to_floor <= 2.0,
        );
        let Some(it) = beside(reference, size.count) else { continue };
        let less = ratio(it.add.wall, size.add.wall);
        row(
            "The same: the reference chain takes at least 10 × the wall time",
            format!("{less:.1} ×"),
            less >= 10.0,
        );
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
