//! The floor: the usual programs, started with the text ready.

use std::fs;
use std::io::{Read as _, Seek as _, Write as _};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

use crate::usage::Process;

/// What a program has used.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Used {
    pub(crate) cpu_ms: f64,
    pub(crate) wall_ms: f64,
}

/// What a program prints; it must succeed.
pub(crate) fn output(program: &str, arguments: &[&str]) -> Result<String> {
    let output = Command::new(program)
        .args(arguments)
        .output()
        .with_context(|| format!("the benchmark needs the program {program}"))?;
    if !output.status.success() {
        bail!("{program} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(String::from_utf8(output.stdout)?)
}

/// Runs a program with this input and says what it used; it must succeed.
pub(crate) fn run(program: &str, arguments: &[&str], input: &str) -> Result<Used> {
    // Ready before the clock starts: a program that has its text in the page cache.
    let mut file = tempfile::tempfile()?;
    file.write_all(input.as_bytes())?;
    file.rewind()?;
    let started = Instant::now();
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(file)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("the benchmark needs the program {program}"))?;
    let mut complaint = String::new();
    if let Some(mut stderr) = child.stderr.take() {
        stderr.read_to_string(&mut complaint)?;
    }
    // It has closed its output. Until we ask how it ended, what it used can still be read.
    let process = Process::of(child.id());
    while !has_ended(child.id())? {
        thread::sleep(Duration::from_micros(50));
    }
    let wall_ms = started.elapsed().as_secs_f64() * 1e3;
    let cpu_ms = process.cpu_ms()?;
    let status = child.wait()?;
    if !status.success() {
        bail!("{program} {arguments:?} ended with {status}: {complaint}");
    }
    Ok(Used { cpu_ms, wall_ms })
}

fn has_ended(id: u32) -> Result<bool> {
    let stat = fs::read_to_string(format!("/proc/{id}/stat"))?;
    let (_, state) = stat.rsplit_once(") ").context("no name in stat")?;
    Ok(state.starts_with('Z'))
}

/// Runs `nft -f`.
pub(crate) fn nft_file(text: &str) -> Result<Used> {
    run("nft", &["-f", "-"], text)
}

/// Our table of IPv4 as the `nft` program prints it, without the rules within chains: it cannot read all
/// that it prints. Nor can it read a chain whose name is a word of its own.
pub(crate) fn text() -> Result<String> {
    let listed = output("nft", &["list", "table", "ip", "telaio"])?;
    let mut text = String::with_capacity(listed.len());
    let mut in_chain = false;
    for line in listed.lines() {
        let words = line.trim();
        if in_chain && words == "}" {
            in_chain = false;
        }
        // The line with the hook is part of what a chain is.
        if !in_chain || words.starts_with("type ") {
            text.push_str(line);
            text.push('\n');
        }
        in_chain |= words.starts_with("chain ");
    }
    Ok(text.replace("chain reject ", "chain refuse ").replace("goto reject", "goto refuse"))
}
