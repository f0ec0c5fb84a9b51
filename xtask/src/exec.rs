//! Running other programs: shown before they run, from the root of the workspace.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result};

/// The root of the workspace.
pub(crate) fn root() -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.parent().unwrap_or(manifest).to_owned()
}

/// Where cargo puts what it builds, and we what we fetch.
pub(crate) fn target_directory() -> PathBuf {
    let named = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    // A relative one is meant from where cargo was called, and that is where we run it.
    root().join(named.unwrap_or_else(|| "target".into()))
}

/// The cargo that runs us, with these arguments.
pub(crate) fn cargo<'a>(args: impl IntoIterator<Item = &'a str>) -> Step {
    let program = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    Step::new(program, "cargo").args(args)
}

/// A program of the machine.
pub(crate) fn program(name: &str) -> Step {
    Step::new(name, name)
}

/// Whether the machine has a program of this name.
pub(crate) fn is_installed(name: &str) -> bool {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&paths).any(|directory| directory.join(name).is_file())
}

/// One program to run.
pub(crate) struct Step {
    command: Command,
    shown: String,
}

impl Step {
    fn new(program: impl AsRef<OsStr>, shown: &str) -> Self {
        let mut command = Command::new(program);
        command.current_dir(root());
        Self { command, shown: shown.to_owned() }
    }

    /// Further arguments.
    pub(crate) fn args<S: AsRef<str>>(mut self, args: impl IntoIterator<Item = S>) -> Self {
        for arg in args {
            self.shown.push(' ');
            self.shown.push_str(arg.as_ref());
            self.command.arg(arg.as_ref());
        }
        self
    }

    /// Elsewhere than in the root of the workspace.
    pub(crate) fn within(mut self, directory: &Path) -> Self {
        self.command.current_dir(directory);
        self
    }

    /// An environment variable.
    pub(crate) fn env(mut self, key: &str, value: &str) -> Self {
        self.shown = format!("{key}={value:?} {}", self.shown);
        self.command.env(key, value);
        self
    }

    fn show(&self) {
        println!("$ {}", self.shown);
        // A closed pipe is no reason to stop testing.
        let _ = std::io::stdout().flush();
    }

    /// Runs it; whether it ended well.
    pub(crate) fn run(mut self) -> Result<bool> {
        self.show();
        let status = self.command.status().with_context(|| format!("cannot run {}", self.shown))?;
        Ok(status.success())
    }

    /// Runs it and returns what it printed, without showing anything.
    pub(crate) fn capture(mut self) -> Result<(bool, String)> {
        let output = self.command.output().with_context(|| format!("cannot run {}", self.shown))?;
        let text = String::from_utf8_lossy(if output.status.success() {
            &output.stdout
        } else {
            &output.stderr
        });
        Ok((output.status.success(), text.into_owned()))
    }

    /// Runs it silently; whether it succeeded, and what it wrote to standard error, where some programs report.
    pub(crate) fn capture_errors(mut self) -> Result<(bool, String)> {
        let output = self.command.output().with_context(|| format!("cannot run {}", self.shown))?;
        Ok((output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned()))
    }

    /// Runs it and returns what it printed; its errors, such as progress, are shown as they come.
    pub(crate) fn run_and_keep_output(mut self) -> Result<(bool, String)> {
        self.show();
        let output = self
            .command
            .stderr(Stdio::inherit())
            .output()
            .with_context(|| format!("cannot run {}", self.shown))?;
        Ok((output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned()))
    }

    /// Runs it, shows what it prints and returns the last line of its errors that `wanted` picks.
    pub(crate) fn run_and_find(
        mut self,
        wanted: impl Fn(&str) -> bool,
    ) -> Result<(bool, Option<String>)> {
        self.show();
        if std::io::stderr().is_terminal() {
            self.command.env("CARGO_TERM_COLOR", "always");
        }
        let mut child = self
            .command
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot run {}", self.shown))?;
        let mut found = None;
        if let Some(stderr) = child.stderr.take() {
            for line in BufReader::new(stderr).split(b'\n') {
                let line = line?;
                let line = String::from_utf8_lossy(&line);
                eprintln!("{line}");
                let plain = without_colours(&line);
                if wanted(&plain) {
                    found = Some(plain);
                }
            }
        }
        Ok((child.wait()?.success(), found))
    }
}

/// The text without the terminal's colour sequences.
fn without_colours(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        if c == '\u{1b}' {
            chars.by_ref().find(char::is_ascii_alphabetic);
        } else {
            plain.push(c);
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_are_taken_out() {
        assert_eq!(without_colours("\u{1b}[1;32mSummary\u{1b}[0m 3 tests"), "Summary 3 tests");
    }

    #[test]
    fn the_line_asked_for_is_found_among_the_errors() {
        let script = "echo out; echo ' one' >&2; echo 'Summary: two' >&2; exit 3";
        let (passed, line) =
            program("sh").args(["-c", script]).run_and_find(|l| l.starts_with("Summary")).unwrap();
        assert!(!passed);
        assert_eq!(line.as_deref(), Some("Summary: two"));
    }
}
