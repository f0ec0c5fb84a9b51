//! Each figure comes from a process of its own, which says it by name.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};

/// Figures by name.
#[derive(Debug, Clone, Default)]
pub(crate) struct Figures(BTreeMap<String, f64>);

impl Figures {
    pub(crate) fn get(&self, name: &str) -> Option<f64> {
        self.0.get(name).copied()
    }

    pub(crate) fn need(&self, name: &str) -> Result<f64> {
        self.get(name).with_context(|| format!("no figure {name:?}"))
    }
}

/// Says figures to whoever asked.
pub(crate) fn say(figures: &[(&str, f64)]) -> Result<()> {
    let mut output = std::io::stdout().lock();
    for (name, figure) in figures {
        writeln!(output, "{name}\t{figure}")?;
    }
    Ok(())
}

/// Runs ourselves in a role and takes the figures.
pub(crate) fn ask(role: &[&str]) -> Result<Figures> {
    let output = Command::new(std::env::current_exe()?)
        .arg("role")
        .args(role)
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()?;
    if !output.status.success() {
        bail!("{role:?} failed: {}", output.status);
    }
    let mut figures = Figures::default();
    for line in String::from_utf8(output.stdout)?.lines() {
        let (name, figure) = line.split_once('\t').with_context(|| line.to_owned())?;
        figures.0.insert(name.to_owned(), figure.parse()?);
    }
    Ok(figures)
}
