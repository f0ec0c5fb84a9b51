//! `telaio cleanup`: removes every trace of us from this machine.

use std::io::Write;

use anyhow::Context;

use crate::backend::services;
use crate::backend::sole::Sole;
use crate::cli::CleanupArgs;
use crate::exit::CommandError;
use crate::plane::Plane;
#[cfg(target_os = "linux")]
use crate::pods;
use crate::state_dir::{Part, StateDir};

/// Removes rules of every backend, puts the kernel's settings back, and tells what was done. What
/// fails does not keep the rest from going.
pub(crate) fn cleanup(args: &CleanupArgs, out: &mut impl Write) -> Result<(), CommandError> {
    // A running agent would put everything back at once.
    let state_dir = StateDir::lock(&args.state.state_dir, Part::Plane(Plane::Services))
        .context("stop the agent before cleaning up")?;
    let _pods = StateDir::lock(&args.state.state_dir, Part::Plane(Plane::Pods))
        .context("stop the agent before cleaning up")?;
    let _sole = Sole::take()?;
    let mut removed = Vec::new();
    let mut problems = Vec::new();
    let mut note = |result: Result<Vec<String>, String>| match result {
        Ok(done) => removed.extend(done),
        Err(problem) => problems.push(problem),
    };
    note(services::remove_ours());
    if args.kube_proxy {
        note(services::remove_kube_proxy());
    }
    #[cfg(target_os = "linux")]
    {
        let (gone, failed) = pods::remove_ours(state_dir.path(), &args.cni.settings());
        removed.extend(gone);
        problems.extend(failed);
    }
    problems.extend(services::restore(state_dir.path()));
    let (gone, failed) = crate::gui::remove_ours(state_dir.path());
    removed.extend(gone);
    problems.extend(failed);
    for what in &removed {
        writeln!(out, "removed {what}").context("cannot print")?;
    }
    if removed.is_empty() && problems.is_empty() {
        writeln!(out, "there is nothing of ours here").context("cannot print")?;
    }
    match problems.as_slice() {
        [] => Ok(()),
        problems => Err(CommandError::failed(problems.join("\n"))),
    }
}
