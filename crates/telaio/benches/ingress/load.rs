//! Load on a proxy, and what it costs there.

use std::net::TcpStream;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::rig::{LOAD_CORE, Running, ask, pinned};

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

/// What came of a load.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Outcome {
    /// Requests that were answered as they should be.
    good: u64,
    /// Connections that broke, time-outs, other statuses.
    failed: u64,
}

/// Connections of a load.
const LOAD_CONNECTIONS: u64 = 32;

/// Puts a load on a proxy.
pub(crate) fn load(case: Case, on: &Running, seconds: u32, host: Option<&str>) -> Result<Outcome> {
    let url = match case.how {
        How::Tls | How::H2 => format!("https://127.0.0.1:{}{}", on.https, case.path),
        How::Plain | How::Connect => format!("http://127.0.0.1:{}{}", on.http, case.path),
    };
    let program = if case.how == How::H2 { "h2load" } else { "wrk" };
    let mut command = pinned(LOAD_CORE, Path::new(program));
    if case.how == How::H2 {
        command.args(["-t1", "-c16", "-m8", "-D", &seconds.to_string(), &url]);
    } else {
        command.args(["-t1", &format!("-c{LOAD_CONNECTIONS}"), &format!("-d{seconds}s")]);
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
    let outcome = match case.how {
        How::H2 => of_h2load(&text),
        // The last connections of a run are closed under wrk's hands, which it takes for errors of reading.
        How::Connect => of_wrk(&text, LOAD_CONNECTIONS),
        How::Plain | How::Tls => of_wrk(&text, 0),
    };
    let outcome = outcome.filter(|outcome| outcome.good > 0);
    outcome.with_context(|| format!("{} on {url} served nothing: {text}", case.name))
}

/// The number before a word.
fn before(line: &str, word: &str) -> Option<u64> {
    line.split_once(word)?.0.trim_end().rsplit([' ', ',']).next()?.parse().ok()
}

/// The number behind a word.
fn behind(line: &str, word: &str) -> Option<u64> {
    line.split_once(word)?.1.trim_start().split([' ', ',']).next()?.parse().ok()
}

fn of_h2load(text: &str) -> Option<Outcome> {
    let codes = text.lines().find_map(|line| line.strip_prefix("status codes: "))?;
    let requests = text.lines().find(|line| line.starts_with("requests: "))?;
    let others = [" 3xx", " 4xx", " 5xx"].into_iter().filter_map(|class| before(codes, class));
    // One that failed is counted as such, and once more for why.
    let failed = before(requests, " failed").unwrap_or(0) + others.sum::<u64>();
    Some(Outcome { good: before(codes, " 2xx")?, failed })
}

fn of_wrk(text: &str, closed: u64) -> Option<Outcome> {
    let line = |what: &str| text.lines().find(|line| line.contains(what));
    let all = before(line(" requests in")?, " requests in")?;
    let others = line("Non-2xx").and_then(|line| behind(line, "responses:")).unwrap_or(0);
    let broken = line("Socket errors").map_or(0, |line| {
        let of = |what: &str| behind(line, what).unwrap_or(0);
        of("connect") + of("read").saturating_sub(closed) + of("write") + of("timeout")
    });
    Some(Outcome { good: all.saturating_sub(others), failed: others + broken })
}

/// CPU µs per request under a load, and how many failed.
pub(crate) fn cost(
    case: Case,
    on: &Running,
    seconds: u32,
    host: Option<&str>,
) -> Result<(f64, u64)> {
    let before = on.cpu_ns()?;
    let Outcome { good, failed } = load(case, on, seconds, host)?;
    Ok(((on.cpu_ns()? - before) as f64 / 1e3 / good as f64, failed))
}

/// Requests a second, where the rate is fixed, and over how many connections.
pub(crate) const RATE: u32 = 4_000;
pub(crate) const CONNECTIONS: u32 = 32;

/// Latency in µs at a fixed rate, each request by itself, sorted. Each connection has its own moments,
/// evenly between those of the others; who is late for one because the answer before it was late is
/// counted from the moment that was meant.
pub(crate) fn latencies(on: &Running, seconds: u32) -> Result<Vec<f64>> {
    let period = Duration::from_secs(1) * CONNECTIONS / RATE;
    let begin = Instant::now() + Duration::from_millis(50);
    let port = on.http;
    let threads: Vec<_> = (0..CONNECTIONS)
        .map(|number| {
            let first = begin + period * number / CONNECTIONS;
            std::thread::spawn(move || latencies_of_one(port, first, period, seconds))
        })
        .collect();
    let mut times = Vec::new();
    for thread in threads {
        match thread.join() {
            Ok(own) => times.extend(own?),
            Err(_) => bail!("a thread of the load failed"),
        }
    }
    times.sort_by(f64::total_cmp);
    Ok(times)
}

fn latencies_of_one(port: u16, first: Instant, period: Duration, seconds: u32) -> Result<Vec<f64>> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    let mut times = Vec::new();
    let mut due = first;
    let end = first + Duration::from_secs(u64::from(seconds));
    while due < end {
        let wait = due.saturating_duration_since(Instant::now());
        std::thread::sleep(wait);
        let from = if wait.is_zero() { due } else { Instant::now() };
        let status = ask(&mut stream, "host-0.example.com", "/small")?;
        if status != 200 {
            bail!("an answer of {status} on {port}");
        }
        times.push(from.elapsed().as_secs_f64() * 1e6);
        due += period;
    }
    Ok(times)
}
