//! What calls cost, by how many instances there are.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::json;
use telaio_testkit::machine::Machine;

use crate::call::{self, Cost, Meter, Plugin, config};

/// How many calls a figure is the middle of.
pub(crate) const WINDOW: usize = 60;
/// The reference chain is slow: so many calls are enough.
pub(crate) const REFERENCE: usize = 15;
/// How long it may take to make instances by it: what is not there then is not waited for.
pub(crate) const REFERENCE_TIME: Duration = Duration::from_mins(2);
/// How many ports a bridge has.
pub(crate) const BRIDGE_PORTS: usize = 1023;

/// Ours.
pub(crate) struct Ours {
    /// The ADD that makes the network.
    pub(crate) first: Cost,
    pub(crate) sizes: Vec<Size>,
}

/// What calls cost beside so many instances.
pub(crate) struct Size {
    pub(crate) count: usize,
    /// ADD and DEL of one more.
    pub(crate) add: Cost,
    pub(crate) delete: Cost,
    /// GC of all of them, for each.
    pub(crate) collect: Cost,
}

/// The figures at a size, if it was measured.
pub(crate) fn at(sizes: &[Size], count: usize) -> Option<&Size> {
    sizes.iter().find(|size| size.count == count)
}

/// A machine with namespaces m1, m2, …
fn machine(count: usize) -> Machine {
    let machine = Machine::start("bench");
    machine.sh(&format!("for n in $(seq 1 {count}); do echo netns add m$n; done | ip -batch -"));
    machine
}

fn port(number: usize) -> u16 {
    30_000 + u16::try_from(number).unwrap()
}

pub(crate) fn ours(program: &Path, sizes: &[usize]) -> Ours {
    let machine = machine(sizes.last().unwrap() + 1);
    let plugin = Plugin { program: program.to_owned(), config: config() };
    let sizes = sizes.to_vec();
    machine.run(move || {
        let first = plugin.call("ADD", 1, port(1));
        plugin.call("DEL", 1, port(1));
        let sizes = sizes.into_iter().map(|count| {
            for number in 1..=count {
                plugin.call("ADD", number, port(number));
            }
            let one_more = count + 1;
            let call = |command| plugin.call(command, one_more, port(one_more));
            let costs: Vec<(Cost, Cost)> =
                (0..WINDOW).map(|_| (call("ADD"), call("DEL"))).collect();
            let collected = plugin.collect(json!([]));
            let each = u32::try_from(count).unwrap();
            Size {
                count,
                add: middle_cost(costs.iter().map(|(added, _)| *added)),
                delete: middle_cost(costs.iter().map(|(_, deleted)| *deleted)),
                collect: Cost { wall: collected.wall / each, cpu: collected.cpu / each },
            }
        });
        Ours { first, sizes: sizes.collect() }
    })
}

/// The least that anything of the kind can cost beside so many instances.
#[derive(Clone, Copy)]
pub(crate) struct Floor {
    pub(crate) add: Cost,
    pub(crate) remove: Cost,
}

/// The floor at each size: what grows here is the kernel's part.
pub(crate) fn floor(plugin: &Path, program: &Path, sizes: &[usize]) -> Vec<Floor> {
    let last = *sizes.last().unwrap();
    let machine = machine(last + 2);
    let (plugin, program, sizes) = (plugin.to_owned(), program.to_owned(), sizes.to_vec());
    machine.run(move || {
        // The bridge and the tables, and no port: what makes them goes again.
        let plugin = Plugin { program: plugin, config: config() };
        plugin.call("ADD", last + 2, 29_999);
        plugin.call("DEL", last + 2, 29_999);
        let add = |number: usize| {
            let mut command = Command::new(&program);
            let (high, low) = (1 + number / 250, 1 + number % 250);
            command
                .args(["add".to_owned(), format!("/run/netns/m{number}"), format!("floor{number}")])
                .args([format!("10.88.{high}.{low}"), port(number).to_string()]);
            if number > BRIDGE_PORTS {
                command.arg("routed");
            }
            call::run_measured(&mut command, &json!(null))
        };
        let remove = |number: usize| {
            let mut command = Command::new(&program);
            command.args(["remove", &format!("floor{number}"), &port(number).to_string()]);
            call::run_measured(&mut command, &json!(null))
        };
        let mut there = 0;
        let found = sizes.into_iter().map(|count| {
            while there < count {
                there += 1;
                add(there);
            }
            let costs: Vec<(Cost, Cost)> =
                (0..WINDOW).map(|_| (add(count + 1), remove(count + 1))).collect();
            Floor {
                add: middle_cost(costs.iter().map(|(added, _)| *added)),
                remove: middle_cost(costs.iter().map(|(_, removed)| *removed)),
            }
        });
        found.collect()
    })
}

/// What calls of the reference chain cost.
pub(crate) struct Reference {
    /// How many instances are wanted beside the calls, and how many there are: all of them, if they were made in time.
    pub(crate) wanted: usize,
    pub(crate) there: usize,
    pub(crate) add: Cost,
    pub(crate) delete: Cost,
}

/// Debian's bridge with host-local, then portmap: ADD and DEL of some more at each size, until the time is over.
pub(crate) fn reference(sizes: &[usize]) -> Vec<Reference> {
    let Some(last) = sizes.last() else { return Vec::new() };
    let machine = machine(last + REFERENCE);
    let sizes = sizes.to_vec();
    machine.run(move || {
        let end = Instant::now() + REFERENCE_TIME;
        let (mut there, mut found) = (0, Vec::new());
        for wanted in sizes {
            while there < wanted && Instant::now() < end {
                there += 1;
                call::reference("ADD", there, port(there));
            }
            let [add, delete] = ["ADD", "DEL"].map(|command| reference_calls(command, there));
            found.push(Reference { wanted, there, add, delete });
            if there < wanted {
                break;
            }
        }
        found
    })
}

/// Calls for some more than are there.
fn reference_calls(command: &str, there: usize) -> Cost {
    let whole = Meter::start();
    let one = |number| {
        let meter = Meter::start();
        call::reference(command, number, port(number));
        meter.wall()
    };
    let mut walls: Vec<Duration> = (there + 1..=there + REFERENCE).map(one).collect();
    let each = u32::try_from(REFERENCE).unwrap();
    Cost { wall: middle(&mut walls), cpu: whole.cpu() / each }
}

fn middle_cost(costs: impl Iterator<Item = Cost>) -> Cost {
    let (mut walls, mut cpus): (Vec<Duration>, Vec<Duration>) =
        costs.map(|cost| (cost.wall, cost.cpu)).unzip();
    Cost { wall: middle(&mut walls), cpu: middle(&mut cpus) }
}

fn middle(times: &mut [Duration]) -> Duration {
    times.sort();
    times[times.len() / 2]
}
