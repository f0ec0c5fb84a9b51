//! Load on a proxy, and what it costs there.

use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::rig::{LOAD_CORE, Running, pinned};

/// One kind of load.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) what: &'static str,
    /// What ours may cost of the better of nginx and HAProxy.
    pub(crate) bar: f64,
    path: &'static str,
    how: How,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum How {
    Plain,
    Tls,
    H2,
    /// A connection for each request.
    Connect,
}

pub(crate) const GET: Case =
    Case { name: "get", what: "small GET, keep-alive", bar: 0.9, path: "/small", how: How::Plain };

pub(crate) const CACHE: Case =
    Case { name: "cache", what: "cache hit, 1 KiB", bar: 1.0, path: "/cached", how: How::Plain };

pub(crate) const CASES: [Case; 5] = [
    GET,
    Case { name: "64k", what: "64 KiB body", bar: 1.0, path: "/64k", how: How::Plain },
    Case { name: "tls", what: "small GET, TLS", bar: 0.95, path: "/small", how: How::Tls },
    Case { name: "h2", what: "small GET, h2 over TLS", bar: 1.0, path: "/small", how: How::H2 },
    Case {
        name: "connect",
        what: "new connection per request",
        bar: 1.0,
        path: "/small",
        how: How::Connect,
    },
];

/// Puts a load on a proxy; how many requests it answered.
pub(crate) fn load(case: Case, on: &Running, seconds: u32, host: Option<&str>) -> Result<u64> {
    let url = match case.how {
        How::Tls | How::H2 => format!("https://127.0.0.1:{}{}", on.https, case.path),
        How::Plain | How::Connect => format!("http://127.0.0.1:{}{}", on.http, case.path),
    };
    let program = if case.how == How::H2 { "h2load" } else { "wrk" };
    let mut command = pinned(LOAD_CORE, Path::new(program));
    if case.how == How::H2 {
        command.args(["-t1", "-c16", "-m8", "-D", &seconds.to_string(), &url]);
    } else {
        command.args(["-t1", "-c32", &format!("-d{seconds}s")]);
        if case.how == How::Connect {
            command.args(["-H", "Connection: close"]);
        }
        if let Some(host) = host {
            command.args(["-H", &format!("Host: {host}")]);
        }
        command.arg(&url);
    }
    let output = command.output().with_context(|| format!("{program} is missing"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let bad = text.lines().find(|line| {
        // wrk counts the last connections of a run that closes each as errors of reading.
        let errors = line.contains("Socket errors") && case.how != How::Connect;
        errors || line.contains("Non-2xx")
    });
    if let Some(bad) = bad {
        bail!("{} on {url}: {bad}", case.name);
    }
    let count = if case.how == How::H2 {
        text.lines()
            .find_map(|line| line.strip_prefix("status codes: ")?.split(' ').next()?.parse().ok())
    } else {
        text.lines().find_map(|line| line.trim().split_once(" requests in")?.0.parse().ok())
    };
    let count = count.filter(|count| *count > 0);
    count.with_context(|| format!("{} on {url} served nothing: {text}", case.name))
}

/// CPU µs per request under a load.
pub(crate) fn cost(case: Case, on: &Running, seconds: u32, host: Option<&str>) -> Result<f64> {
    let before = on.cpu_ns()?;
    let count = load(case, on, seconds, host)?;
    Ok((on.cpu_ns()? - before) as f64 / 1e3 / count as f64)
}

/// Latency in µs at a fixed rate over 32 connections, each request by itself, sorted.
pub(crate) fn latencies(on: &Running, seconds: u32, log: &Path) -> Result<Vec<f64>> {
    let _ = std::fs::remove_file(log);
    let url = format!("http://127.0.0.1:{}/small", on.http);
    let mut command = pinned(LOAD_CORE, Path::new("chrt"));
    command.args([
        "-f",
        "1",
        "h2load",
        "--h1",
        "-t1",
        "-c32",
        &format!("--rps={}", RATE / 32),
        "-D",
    ]);
    command.args([&seconds.to_string(), &format!("--log-file={}", log.display()), &url]);
    let output = command.output().context("h2load is missing")?;
    if !output.status.success() {
        bail!("h2load: {}", String::from_utf8_lossy(&output.stderr));
    }
    let text = std::fs::read_to_string(log)?;
    let mut times: Vec<f64> =
        text.lines().filter_map(|line| line.split('\t').nth(2)?.parse().ok()).collect();
    let wanted = u64::from(seconds) * u64::from(RATE) * 9 / 10;
    if (times.len() as u64) < wanted {
        bail!("only {} requests in {seconds} s on {url}", times.len());
    }
    times.sort_by(f64::total_cmp);
    Ok(times)
}

/// Requests a second, where the rate is fixed.
pub(crate) const RATE: u32 = 4_000;
