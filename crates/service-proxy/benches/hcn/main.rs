//! How the backend `hcn` scales: `cargo xtask bench hcn`.
//!
//! HNS is one in memory: what is measured is our own work, and how many calls it comes down to, since calls are
//! what time goes into on Windows. No case counts unless HNS has, afterwards, what it should have.
//!
//! Tables go to standard output, in Markdown; `cargo xtask bench` writes them to docs/benchmarks.md.
//! Arguments choose sizes (`1000x4`); then it is only printed.

#![allow(
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    clippy::print_stdout,
    reason = "figures for people"
)]

#[allow(dead_code, reason = "shared with the other benchmarks, which need all of it")]
#[path = "../services/cluster.rs"]
mod cluster;
mod rig;
#[allow(dead_code, reason = "likewise")]
#[path = "../services/table.rs"]
mod table;

use anyhow::Result;
use telaio_hcn::{FakeHcn, HnsVersion, ObjectKind, Operation};

use crate::cluster::Size;
use crate::rig::{Rig, hns};
use crate::table::{Samples, Table, bar};

/// What the figures in docs/benchmarks.md stand for.
const SIZES: [Size; 3] = [Size::new(1_000, 4), Size::new(5_000, 4), Size::new(10_000, 4)];
/// The size that has a bar, and the bar.
const BAR: (Size, f64) = (Size::new(5_000, 4), 200.0);
/// How often each time is taken.
const TURNS: usize = 5;
/// Windows Server 2022: load balancers cannot be changed in place.
const OLD: HnsVersion = HnsVersion::new(13, 3);
/// One that can.
const NEW: HnsVersion = HnsVersion::new(16, 0);

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).filter(|arg| arg != "--bench").collect();
    let sizes: Vec<Size> = if args.is_empty() {
        SIZES.to_vec()
    } else {
        args.iter().map(|size| size.parse()).collect::<Result<_>>()?
    };
    let mut times = Table::new(
        "Compile and diff",
        "From services in memory to what has to be written, in ms: all services worked out and compared with \
         an HNS that has all of it already. Then one service with a replaced endpoint.",
        &["services", "all, ms p50", "bar", "met", "one change, ms p50"],
    );
    let mut calls = Table::new(
        "Calls to HNS that write",
        "A replaced endpoint is one made and one removed; its load balancer is changed in place where HNS can, \
         and else removed and made again.",
        &[
            "services",
            "cold start",
            "nothing changed",
            "one change, new HNS",
            "one change, older HNS",
        ],
    );
    for size in sizes {
        let limit = (size == BAR.0).then_some(BAR.1);
        let (all_ms, change_ms) = measure(size)?;
        let [limit, is_met] = bar(all_ms, limit, "ms");
        times.row(&[
            size.to_string(),
            format!("{all_ms:.1}"),
            limit,
            is_met,
            format!("{change_ms:.3}"),
        ]);
        let new = count(size, NEW)?;
        let old = count(size, OLD)?;
        calls.row(&[
            size.to_string(),
            new.cold.clone(),
            new.nothing.clone(),
            new.change.clone(),
            old.change.clone(),
        ]);
    }
    println!("{times}\n{calls}");
    Ok(())
}

/// All services against an HNS that has them; one change.
fn measure(size: Size) -> Result<(f64, f64)> {
    let fake = hns(OLD)?;
    Rig::new(&fake, size)?.cold()?;
    let mut all = Vec::new();
    let mut change = Vec::new();
    for turn in 0..TURNS {
        let mut rig = Rig::new(&fake, size)?;
        all.push(rig.compile_and_diff()?);
        if turn == 0 {
            change = rig.changes()?;
            // What the others find is as it was.
            rig.restore(size)?;
        }
    }
    Ok((Samples::new(all).median(), Samples::new(change).median()))
}

struct Calls {
    cold: String,
    nothing: String,
    change: String,
}

fn count(size: Size, version: HnsVersion) -> Result<Calls> {
    let fake = hns(version)?;
    let mut rig = Rig::new(&fake, size)?;
    fake.reset_counts();
    rig.cold()?;
    let cold = writes(&fake);
    fake.reset_counts();
    rig.resync()?;
    let nothing = writes(&fake);
    fake.reset_counts();
    rig.change(size.services / 2)?;
    Ok(Calls { cold, nothing, change: writes(&fake) })
}

/// The calls that wrote, by kind.
fn writes(fake: &FakeHcn) -> String {
    let counts = fake.counts();
    let writes = counts.iter().filter(|((_, operation), _)| operation.is_write());
    let text: Vec<String> = writes
        .map(|((kind, operation), count)| {
            let kind = match kind {
                ObjectKind::Endpoint => "endpoint",
                _ => "load balancer",
            };
            let done = match operation {
                Operation::Create => "made",
                Operation::Modify => "changed",
                _ => "removed",
            };
            let plural = if *count == 1 { "" } else { "s" };
            format!("{count} {kind}{plural} {done}")
        })
        .collect();
    if text.is_empty() { "none".to_owned() } else { text.join(", ") }
}
