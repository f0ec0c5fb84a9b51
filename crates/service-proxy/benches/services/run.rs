//! What is asked for, and in which order it is measured.

use anyhow::{Result, bail};

use crate::cluster::Size;
use crate::{agent, changes, cold, connect, drift, iptables};

/// What the figures in docs/benchmarks.md stand for.
const SIZES: [Size; 4] =
    [Size::new(1_000, 2), Size::new(10_000, 2), Size::new(30_000, 2), Size::new(5_000, 50)];

/// Measures a part of the report at these sizes.
type Section = fn(&[Size]) -> Result<String>;

/// The parts of the report, in their order.
const SECTIONS: [(&str, Section); 6] = [
    ("cold", cold::tables),
    ("agent", agent::tables),
    ("changes", changes::tables),
    ("connect", connect::tables),
    ("iptables", iptables::tables),
    ("drift", drift::tables),
];

/// Tells whoever waits what is being done.
pub(crate) fn progress(text: &str) {
    eprintln!("bench services: {text}");
}

/// Does what the arguments ask for.
pub(crate) fn run(args: &[&str]) -> Result<()> {
    match args {
        ["role", role @ ..] => play(role),
        _ => report(&Selection::parse(args)?),
    }
}

/// Measures one thing in this process.
fn play(role: &[&str]) -> Result<()> {
    match role {
        ["cold", size] => cold::role(size.parse()?),
        ["floor", size] => cold::floor_role(size.parse()?),
        ["changes", size] => changes::role(size.parse()?),
        ["agent", program, size] => agent::role(program, size.parse()?),
        ["connect", pair] => connect::role(pair.parse()?),
        ["drift", size] => drift::role(size.parse()?),
        ["drift-iptables", flavor, size, rounds] => {
            drift::iptables_role(flavor, size.parse()?, rounds.parse()?)
        }
        ["iptables", flavor, size, colds, changes] => {
            iptables::ours(flavor, size.parse()?, colds.parse()?, changes.parse()?)
        }
        ["iptables-restore", flavor, size, colds, changes] => {
            iptables::restore(flavor, size.parse()?, colds.parse()?, changes.parse()?)
        }
        other => bail!("there is no role {other:?}"),
    }
}

/// What was asked for.
struct Selection {
    sizes: Vec<Size>,
    sections: Vec<String>,
}

impl Selection {
    fn parse(args: &[&str]) -> Result<Self> {
        let names = || SECTIONS.map(|(name, _)| name).join(", ");
        let mut selection = Self { sizes: Vec::new(), sections: Vec::new() };
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            if *arg == "--only" {
                for section in args.next().copied().unwrap_or_default().split(',') {
                    if !SECTIONS.iter().any(|(name, _)| *name == section) {
                        bail!("there is no section {section:?}; there is: {}", names());
                    }
                    selection.sections.push(section.to_owned());
                }
            } else if arg.starts_with('-') {
                bail!("usage: cargo xtask bench services [1000x2 ...] [--only {}]", names());
            } else {
                selection.sizes.push(arg.parse()?);
            }
        }
        if selection.sizes.is_empty() {
            selection.sizes = SIZES.to_vec();
        }
        Ok(selection)
    }
}

fn report(selection: &Selection) -> Result<()> {
    for (name, tables) in SECTIONS {
        if selection.sections.is_empty() || selection.sections.iter().any(|it| it == name) {
            print!("{}", tables(&selection.sizes)?);
        }
    }
    Ok(())
}
