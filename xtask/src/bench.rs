//! `cargo xtask bench`: runs a benchmark, prints its tables and writes them to docs/benchmarks.md.
//!
//! Each benchmark owns one section of that file, between two marks; the others stay as they are. A
//! run with arguments of its own (other sizes) is only printed: it is not what the figures stand for.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::{exec, install};

/// The benchmarks: name, package and what the section is about.
const BENCHMARKS: &[(&str, &str, &str)] = &[
    (
        "brain",
        "telaio-brain",
        "The brain: loading a cluster, and one change's way to many watchers",
    ),
    ("hcn", "telaio-service-proxy", "Windows: compile and diff, and calls to an HNS in memory"),
    (
        "ingress",
        "telaio",
        "Ingress: what a request costs, beside nginx, HAProxy, Envoy and Traefik",
    ),
    (
        "ipvs",
        "telaio-service-proxy",
        "IPVS: cold start and changes on a guest kernel, beside the usual programs",
    ),
    (
        "pods",
        "telaio-pod-network",
        "Pods: an instance's network beside the reference plugins and the floor; throughput",
    ),
    (
        "services",
        "telaio-service-proxy",
        "Services: cold start, changes, memory and connections, beside the usual programs",
    ),
];

const HEAD: &str = "\
# Benchmarks

Written by `cargo xtask bench NAME`, on the machine that each section names. Machines are shared and
noisy: compare figures within one table, and CPU time before wall time.
";

/// Runs the benchmark that the first argument names, with the rest of the arguments.
pub(crate) fn run(mut args: impl Iterator<Item = String>) -> Result<bool> {
    let names = || BENCHMARKS.iter().map(|(name, ..)| *name).collect::<Vec<_>>().join(", ");
    let Some(wanted) = args.next() else { bail!("name a benchmark; there is: {}", names()) };
    let Some((name, package, title)) = BENCHMARKS.iter().find(|(name, ..)| *name == wanted) else {
        bail!("there is no benchmark {wanted:?}; there is: {}", names())
    };
    let args: Vec<String> = args.collect();
    // As it is before we load it ourselves.
    let machine = machine()?;
    let mut step =
        exec::cargo(["bench", "--quiet", "-p", package, "--bench", name, "--"]).args(&args);
    if *name == "ingress" {
        step = step.env("TELAIO_BENCH_PEERS", &install::proxies()?.to_string_lossy());
    }
    let (passed, tables) = step.run_and_keep_output()?;
    print!("{tables}");
    if passed && args.is_empty() {
        let file = exec::root().join("docs/benchmarks.md");
        write_section(&file, name, &format!("## {title}\n\n{machine}\n\n{}", tables.trim()))?;
        println!("\nwritten to docs/benchmarks.md");
    }
    Ok(passed)
}

/// The machine, the day and what else it has to do, in a line.
fn machine() -> Result<String> {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let cpu_info = read("/proc/cpuinfo");
    let model = cpu_info
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(':'))
        .map_or("unknown processor", |(_, model)| model.trim());
    let kernel = read("/proc/sys/kernel/osrelease");
    let (_, date) = exec::program("date").args(["-u", "+%F"]).capture()?;
    let load = read("/proc/loadavg");
    let load = load.split(' ').next().unwrap_or("unknown");
    let (date, kernel) = (date.trim(), kernel.trim());
    Ok(format!("{cores} cores of {model}, Linux {kernel}; {date}, load {load} before the run."))
}

/// Puts a benchmark's section into the file, in place of its last one.
fn write_section(file: &Path, name: &str, section: &str) -> Result<()> {
    let old = fs::read_to_string(file).unwrap_or_else(|_| HEAD.to_owned());
    fs::write(file, with_section(&old, name, section))
        .with_context(|| format!("cannot write {}", file.display()))
}

fn with_section(text: &str, name: &str, section: &str) -> String {
    let (begin, end) = (format!("<!-- {name} -->"), format!("<!-- end of {name} -->"));
    let section = format!("{begin}\n{section}\n{end}");
    match (text.find(&begin), text.find(&end)) {
        (Some(from), Some(to)) if from < to => {
            format!("{}{section}{}", &text[..from], &text[to + end.len()..])
        }
        _ => format!("{}\n{section}\n", text.trim_end().to_owned() + "\n"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_section_is_replaced_and_the_others_stay() {
        let first = with_section(HEAD, "a", "FIRST");
        let both = with_section(&first, "b", "two");
        let changed = with_section(&both, "a", "three");
        assert!(changed.starts_with(HEAD));
        assert!(changed.contains("<!-- a -->\nthree\n<!-- end of a -->"));
        assert!(changed.contains("<!-- b -->\ntwo\n<!-- end of b -->"));
        assert!(!changed.contains("FIRST"));
        assert_eq!(with_section(&changed, "a", "three"), changed);
    }
}
