//! `iptables-save` and `iptables-restore`: the one thing that is executed, where the kernel leaves no choice.

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use telaio_netlink::nftables::Family;

use crate::error::{Error, Result};

/// Where the programs are when `PATH`, as in calls of a container runtime, does not say.
const USUAL_DIRS: [&str; 4] = ["/usr/sbin", "/sbin", "/usr/local/sbin", "/usr/bin"];
/// How long they wait for another that holds their lock, in seconds.
const LOCK_WAIT_S: &str = "10";
/// How much of a complaint is passed on.
const COMPLAINT_CHARS_MAX: usize = 400;

/// The programs of one family.
#[derive(Debug)]
pub(super) struct Programs {
    save: PathBuf,
    restore: PathBuf,
}

impl Programs {
    /// Finds them: those for the kernel's older tables, for it has no others.
    pub(super) fn find(family: Family) -> Result<Self> {
        Ok(Self { save: find(family, "save")?, restore: find(family, "restore")? })
    }

    /// All rules, as text.
    pub(super) fn save(&self) -> Result<String> {
        let output = Self::run(&self.save, &[], "")?;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Carries out a text, each table of it whole or not at all.
    pub(super) fn restore(&self, text: &str) -> Result<()> {
        Self::run(&self.restore, &["--noflush", "--wait", LOCK_WAIT_S], text).map(drop)
    }

    fn run(program: &PathBuf, arguments: &[&str], input: &str) -> Result<Output> {
        let failed = Error::io("cannot run", program);
        let started = Command::new(program)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        let done = started.and_then(|mut child| {
            if let Some(mut stdin) = child.stdin.take() {
                // One that ends early says why.
                let _ = stdin.write_all(input.as_bytes());
            }
            child.wait_with_output()
        });
        let output = done.map_err(failed)?;
        if output.status.success() {
            return Ok(output);
        }
        let complaint = String::from_utf8_lossy(&output.stderr);
        let complaint: String = complaint.trim().chars().take(COMPLAINT_CHARS_MAX).collect();
        Err(Error::Program {
            program: program.display().to_string(),
            why: format!("{complaint} ({})", output.status),
        })
    }
}

fn find(family: Family, what: &str) -> Result<PathBuf> {
    let base = if family == Family::Ip { "iptables" } else { "ip6tables" };
    let path = std::env::var_os("PATH").unwrap_or_default();
    let dirs: Vec<PathBuf> =
        std::env::split_paths(&path).chain(USUAL_DIRS.iter().map(PathBuf::from)).collect();
    for name in [format!("{base}-legacy-{what}"), format!("{base}-{what}")] {
        if let Some(found) = dirs.iter().map(|dir| dir.join(&name)).find(|path| path.is_file()) {
            return Ok(found);
        }
    }
    Err(Error::NeedsNftables {
        what: format!("without it the program {base}-legacy-{what} (package iptables) is needed"),
    })
}
