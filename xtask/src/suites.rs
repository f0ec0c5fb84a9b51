//! `cargo xtask test`: the suites, their order and their times.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use crate::exec::{cargo, program, root, target_directory};
use crate::{
    cache as http_cache, cni as plugin, install, page as web_page, windows as for_windows,
};

/// How long `--long` fuzzes each target.
const FUZZ_S_PER_TARGET: u32 = 300;
/// How many cases a property test tries with `--long`; proptest's own default is 256.
const PROPTEST_CASES_LONG: &str = "10000";

/// What a suite came to.
enum Outcome {
    Passed,
    Failed,
    /// Could not be asked, for a reason outside the project.
    NotRun(String),
}

impl Outcome {
    fn of(passed: bool) -> Self {
        if passed { Self::Passed } else { Self::Failed }
    }
}

/// What the suites share.
struct Run {
    long: bool,
    /// Nextest's last line, to be said again at the very end.
    summary: Option<String>,
}

struct Suite {
    name: &'static str,
    /// Only with `--long`, or when named.
    long_only: bool,
    run: fn(&mut Run) -> Result<Outcome>,
}

/// All of them, the cheapest first: who forgot to format learns it at once.
const SUITES: &[Suite] = &[
    Suite { name: "fmt", long_only: false, run: fmt },
    Suite { name: "clippy", long_only: false, run: clippy },
    Suite { name: "deny", long_only: false, run: deny },
    Suite { name: "advisories", long_only: false, run: advisories },
    Suite { name: "tests", long_only: false, run: tests },
    Suite { name: "cni", long_only: false, run: cni },
    Suite { name: "cache", long_only: false, run: cache },
    Suite { name: "h2", long_only: false, run: h2 },
    Suite { name: "page", long_only: false, run: page },
    Suite { name: "windows", long_only: false, run: windows },
    Suite { name: "docs", long_only: false, run: docs },
    Suite { name: "qemu", long_only: true, run: qemu },
    Suite { name: "fuzz", long_only: true, run: fuzz },
];

/// The names of the suites.
pub(crate) fn names() -> Vec<&'static str> {
    SUITES.iter().map(|suite| suite.name).collect()
}

/// Which suites to run, and how thoroughly.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Selection {
    long: bool,
    only: Vec<String>,
}

impl Selection {
    /// Reads the arguments of `test`.
    pub(crate) fn parse(mut args: impl Iterator<Item = String>) -> Result<Self> {
        let mut selection = Self::default();
        while let Some(arg) = args.next() {
            let only = match arg.as_str() {
                "--long" => {
                    selection.long = true;
                    continue;
                }
                "--only" => args.next().unwrap_or_default(),
                other => match other.strip_prefix("--only=") {
                    Some(name) => name.to_owned(),
                    None => bail!("test does not know {other:?}; it knows --long and --only SUITE"),
                },
            };
            if !names().contains(&only.as_str()) {
                bail!("there is no suite {only:?}; there are: {}", names().join(", "));
            }
            selection.only.push(only);
        }
        Ok(selection)
    }

    fn takes(&self, suite: &Suite) -> bool {
        if self.only.is_empty() {
            self.long || !suite.long_only
        } else {
            self.only.iter().any(|name| name == suite.name)
        }
    }
}

/// Runs the selected suites and prints their times; whether all passed.
pub(crate) fn test(selection: &Selection) -> Result<bool> {
    install::base()?;
    let mut run = Run { long: selection.long, summary: None };
    let mut table = Vec::new();
    for suite in SUITES.iter().filter(|suite| selection.takes(suite)) {
        println!("\n== {}", suite.name);
        let start = Instant::now();
        // A suite that could not even start has failed; the others still have their say.
        let outcome = (suite.run)(&mut run).unwrap_or_else(|error| {
            eprintln!("{}: {error:#}", suite.name);
            Outcome::Failed
        });
        table.push((suite.name, outcome, start.elapsed()));
    }
    print_table(&table);
    if let Some(summary) = &run.summary {
        println!("{}", summary.trim());
    }
    Ok(!table.iter().any(|(_, outcome, _)| matches!(outcome, Outcome::Failed)))
}

fn print_table(table: &[(&str, Outcome, Duration)]) {
    println!("\n{:<12} {:>9}  result", "suite", "time");
    for (name, outcome, time) in table {
        let result = match outcome {
            Outcome::Passed => "passed",
            Outcome::Failed => "FAILED",
            Outcome::NotRun(why) => why,
        };
        println!("{name:<12} {:>7.1} s  {result}", time.as_secs_f64());
    }
    let total: Duration = table.iter().map(|(_, _, time)| *time).sum();
    println!("{:<12} {:>7.1} s", "all", total.as_secs_f64());
}

fn fmt(_: &mut Run) -> Result<Outcome> {
    cargo(["fmt", "--all", "--check"]).run().map(Outcome::of)
}

fn clippy(_: &mut Run) -> Result<Outcome> {
    cargo(["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"]).run().map(Outcome::of)
}

fn deny(_: &mut Run) -> Result<Outcome> {
    install::cargo_tool(&install::DENY)?;
    cargo(["deny", "check", "bans", "licenses", "sources"]).run().map(Outcome::of)
}

/// Known faults of the dependencies. The list of them lives on the network, so a machine without it
/// cannot know; that is said, and is no failure of the project.
fn advisories(_: &mut Run) -> Result<Outcome> {
    install::cargo_tool(&install::DENY)?;
    let (fetched, _) = cargo(["deny", "fetch", "db"]).capture()?;
    if !fetched {
        return Ok(Outcome::NotRun("not run: the advisory database cannot be reached".into()));
    }
    cargo(["deny", "check", "--disable-fetch", "advisories"]).run().map(Outcome::of)
}

/// Unit, integration and seeded fuzz tests.
fn tests(run: &mut Run) -> Result<Outcome> {
    install::cargo_tool(&install::NEXTEST)?;
    let mut nextest = cargo(["nextest", "run", "--workspace"]);
    if run.long {
        nextest = nextest.env("PROPTEST_CASES", PROPTEST_CASES_LONG);
    }
    let (passed, summary) =
        nextest.run_and_find(|line| line.trim_start().starts_with("Summary ["))?;
    run.summary = summary;
    Ok(Outcome::of(passed))
}

/// The CNI plugin as nodes get it: static, small, and it answers.
fn cni(_: &mut Run) -> Result<Outcome> {
    plugin::run(std::iter::empty()).map(Outcome::of)
}

/// The public HTTP cache test-suite.
fn cache(_: &mut Run) -> Result<Outcome> {
    http_cache::suite().map(Outcome::of)
}

/// HTTP/2 held against RFC 9113, by a program made for that, over real sockets.
fn h2(_: &mut Run) -> Result<Outcome> {
    install::cargo_tool(&install::HTTPWG)?;
    let example = ["build", "--package", "telaio-http-proxy", "--example", "h2_conformance"];
    if !cargo(example).run()? {
        return Ok(Outcome::Failed);
    }
    let port = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?;
    let server = target_directory().join("debug/examples/h2_conformance");
    let (server, port) = (server.to_string_lossy().into_owned(), port.to_string());
    let limits = ["--connect-timeout", "5000", "--frame-timeout", "5000"];
    let run =
        program("httpwg").args(["--address", &port]).args(limits).args(["--", &server, &port]);
    let (all, said) = run.capture_errors()?;
    // Cases run beside each other, and two of them may speak on one line.
    let (passed, failed) =
        (said.matches("Test passed: ").count(), said.matches("Test failed: ").count());
    println!("{passed} passed, {failed} failed");
    for line in said.lines().filter(|line| line.contains("Test failed: ")) {
        println!("{line}");
    }
    Ok(Outcome::of(all && failed == 0 && passed >= H2_PASSED_MIN))
}

/// How many cases pass at least: fewer, and the program did not run them.
const H2_PASSED_MIN: usize = 107;

/// The web page, in a browser.
fn page(_: &mut Run) -> Result<Outcome> {
    web_page::suite().map(Outcome::of)
}

/// What only Windows runs, under wine.
fn windows(_: &mut Run) -> Result<Outcome> {
    for_windows::suite().map(Outcome::of)
}

/// Tests on an emulated machine, which take minutes each: those that are ignored otherwise, but for what another test starts.
fn qemu(_: &mut Run) -> Result<Outcome> {
    install::cargo_tool(&install::NEXTEST)?;
    let kernel = install::qemu()?;
    let nextest = ["nextest", "run", "--workspace", "--profile", "qemu", "--run-ignored", "only"];
    let others = ["-E", "not test(the_one_who_calls_until_it_is_killed)"];
    let nextest = cargo(nextest).args(others).env("TELAIO_TEST_KERNEL", &kernel.to_string_lossy());
    nextest.run().map(Outcome::of)
}

fn docs(_: &mut Run) -> Result<Outcome> {
    let examples = cargo(["test", "--workspace", "--doc"]).run()?;
    let pages = cargo(["doc", "--workspace", "--no-deps", "--document-private-items"])
        .env("RUSTDOCFLAGS", "-D warnings")
        .run()?;
    Ok(Outcome::of(examples && pages))
}

/// Every fuzz target for a bounded time. Their seeds also run as plain tests, in `tests`.
fn fuzz(_: &mut Run) -> Result<Outcome> {
    if !root().join("fuzz/Cargo.toml").is_file() {
        return Ok(Outcome::NotRun("not run: there are no fuzz targets".into()));
    }
    install::nightly()?;
    install::cargo_tool(&install::FUZZ)?;
    // Asked of rustup, for the cargo that runs us is of another tool chain.
    let nightly = || program("rustup").args(["run", "nightly", "cargo", "fuzz"]);
    let (listed, targets) = nightly().args(["list"]).capture()?;
    if !listed {
        bail!("cargo fuzz list: {targets}");
    }
    let mut passed = true;
    for target in targets.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let limit = format!("-max_total_time={FUZZ_S_PER_TARGET}");
        passed &= nightly().args(["run", target, "--", limit.as_str()]).run()?;
    }
    Ok(Outcome::of(passed))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(args: &[&str]) -> Result<Selection> {
        Selection::parse(args.iter().map(|arg| (*arg).to_owned()))
    }

    fn taken(args: &[&str]) -> Vec<&'static str> {
        let selection = parse(args).unwrap();
        SUITES.iter().filter(|suite| selection.takes(suite)).map(|suite| suite.name).collect()
    }

    #[test]
    fn long_suites_run_only_when_asked_for() {
        assert!(!taken(&[]).contains(&"fuzz"));
        assert_eq!(taken(&["--long"]), names());
        assert_eq!(taken(&["--only", "fuzz"]), ["fuzz"]);
    }

    #[test]
    fn suites_named_twice_or_in_any_order_run_in_ours() {
        assert_eq!(taken(&["--only=docs", "--only", "fmt", "--only", "fmt"]), ["fmt", "docs"]);
    }

    #[test]
    fn an_unknown_suite_or_option_is_refused() {
        assert!(parse(&["--only", "nothing"]).is_err());
        assert!(parse(&["--only"]).is_err());
        assert!(parse(&["--fast"]).is_err());
    }
}
