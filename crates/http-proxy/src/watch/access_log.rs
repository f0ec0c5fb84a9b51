//! The access log: a line per request, as JSON or in the combined form that web servers share.

use std::fmt::Write as _;
use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::inspect::address_text;
use crate::h1::write::http_date;
use crate::head::{Known, RequestHead};
use crate::proxy::Outcome;

/// How many lines wait to be written.
const LINES_MAX: usize = 8192;
/// How many lines go in one write.
const BATCH_LINES: usize = 256;
/// How long a value may be in a line.
const VALUE_BYTES_MAX: usize = 1024;

/// How a line looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Format {
    /// An object with named members.
    #[default]
    Json,
    /// As Apache and nginx write it.
    Combined,
}

/// The log of requests.
#[derive(Debug)]
pub struct AccessLog {
    format: Format,
    every: u64,
    seen: AtomicU64,
    dropped: AtomicU64,
    lines: SyncSender<Message>,
}

/// What the thread that writes is sent.
enum Message {
    Line(String),
    /// Say when all before it is written.
    Flush(SyncSender<()>),
}

impl AccessLog {
    /// A log that a thread of its own writes to `out`. One request in `every` is logged, and each
    /// that failed (5xx).
    pub fn start(
        format: Format,
        every: u64,
        out: impl Write + Send + 'static,
    ) -> std::io::Result<Self> {
        let (lines, waiting) = sync_channel(LINES_MAX);
        std::thread::Builder::new().name("access-log".into()).spawn(move || run(&waiting, out))?;
        Ok(Self {
            format,
            every: every.max(1),
            seen: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
            lines,
        })
    }

    /// How many lines were dropped because too many waited.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Relaxed)
    }

    /// Logs a request, if it is its turn. Never waits.
    pub fn write(&self, request: &RequestHead, outcome: &Outcome<'_>) {
        let turn = self.seen.fetch_add(1, Relaxed).is_multiple_of(self.every);
        if !turn && !outcome.status.is_server_error() {
            return;
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let line = match self.format {
            Format::Json => json(request, outcome, now.as_millis()),
            Format::Combined => combined(request, outcome, now.as_secs()),
        };
        if self.lines.try_send(Message::Line(line)).is_err() {
            self.dropped.fetch_add(1, Relaxed);
        }
    }

    /// Waits until all lines so far are written, but no longer than `within`; whether they are.
    pub fn flush(&self, within: Duration) -> bool {
        let (done, written) = sync_channel(1);
        let deadline = Instant::now() + within;
        let mut message = Message::Flush(done);
        loop {
            match self.lines.try_send(message) {
                Ok(()) => break,
                Err(TrySendError::Disconnected(_)) => return false,
                Err(TrySendError::Full(_)) if Instant::now() >= deadline => return false,
                Err(TrySendError::Full(back)) => {
                    message = back;
                    std::thread::sleep(Duration::from_millis(5));
                }
            }
        }
        written.recv_timeout(deadline.saturating_duration_since(Instant::now())).is_ok()
    }
}

/// Writes lines, many at a time when many wait.
fn run(waiting: &Receiver<Message>, mut out: impl Write) {
    let mut batch = String::new();
    let mut flushed = Vec::new();
    while let Ok(first) = waiting.recv() {
        batch.clear();
        let more = std::iter::from_fn(|| waiting.try_recv().ok()).take(BATCH_LINES);
        for message in [first].into_iter().chain(more) {
            match message {
                Message::Line(line) => batch.push_str(&line),
                Message::Flush(done) => flushed.push(done),
            }
        }
        // A log that cannot be written is not worth a request.
        let _ = out.write_all(batch.as_bytes()).and_then(|()| out.flush());
        for done in flushed.drain(..) {
            // Whoever waited may have gone.
            let _ = done.try_send(());
        }
    }
}

fn field(request: &RequestHead, known: Known) -> String {
    let value = request.headers.get_known(known).unwrap_or_default();
    let value = &value[..value.len().min(VALUE_BYTES_MAX)];
    String::from_utf8_lossy(value).into_owned()
}

fn target(request: &RequestHead) -> String {
    let mut target = request.asked_target();
    if target.len() > VALUE_BYTES_MAX {
        target.truncate(
            (0..=VALUE_BYTES_MAX).rev().find(|at| target.is_char_boundary(*at)).unwrap_or(0),
        );
    }
    target
}

fn version(request: &RequestHead) -> &'static str {
    match request.version {
        http::Version::HTTP_2 => "HTTP/2.0",
        http::Version::HTTP_10 => "HTTP/1.0",
        _ => "HTTP/1.1",
    }
}

/// Adds a member with text; whatever could end the text is escaped.
fn member(out: &mut String, name: &str, value: &str) {
    let _ = write!(out, ",\"{name}\":\"");
    for letter in value.chars() {
        match letter {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            letter if letter.is_control() => {
                let _ = write!(out, "\\u{:04x}", u32::from(letter));
            }
            letter => out.push(letter),
        }
    }
    out.push('"');
}

fn json(request: &RequestHead, outcome: &Outcome<'_>, now_ms: u128) -> String {
    let mut out = String::with_capacity(512);
    let _ = write!(out, "{{\"time_ms\":{now_ms}");
    member(&mut out, "client", &request.client.address.to_canonical().to_string());
    member(&mut out, "method", request.method.as_str());
    member(&mut out, "scheme", request.scheme.as_str());
    member(&mut out, "host", request.authority());
    member(&mut out, "path", &target(request));
    member(&mut out, "protocol", version(request));
    let _ = write!(
        out,
        ",\"status\":{},\"bytes\":{},\"duration_us\":{},\"tries\":{}",
        outcome.status.as_u16(),
        outcome.body_bytes,
        outcome.duration.as_micros(),
        outcome.tries
    );
    if let Some(upstream) = outcome.upstream {
        let _ = write!(out, ",\"upstream_us\":{}", upstream.as_micros());
    }
    if let Some(route) = outcome.route {
        member(&mut out, "route", &route.route.id);
    }
    if let Some(endpoint) = outcome.endpoint {
        member(&mut out, "endpoint", &address_text(endpoint));
    }
    if let Some(cache) = outcome.cache {
        member(&mut out, "cache", cache.as_str());
    }
    for (name, known) in [
        ("referer", Known::Referer),
        ("user_agent", Known::UserAgent),
        ("request_id", Known::XRequestId),
    ] {
        let value = field(request, known);
        if !value.is_empty() {
            member(&mut out, name, &value);
        }
    }
    if let Some(trace) = &request.trace {
        member(&mut out, "trace_id", &trace.trace_hex());
    }
    if let Some(error) = outcome.error {
        member(&mut out, "error", &error.to_string());
    }
    out.push_str("}\n");
    out
}

fn combined(request: &RequestHead, outcome: &Outcome<'_>, now_s: u64) -> String {
    let clean = |text: String| -> String {
        let plain = |c: char| if c.is_control() || c == '"' { '\'' } else { c };
        let text: String = text.chars().map(plain).collect();
        if text.is_empty() { "-".to_owned() } else { text }
    };
    // `Sun, 06 Nov 1994 08:49:37 GMT` as `06/Nov/1994:08:49:37 +0000`.
    let date = http_date(now_s);
    let words: Vec<&str> = date.split(' ').collect();
    let when = match words.as_slice() {
        [_, day, month, year, time, _] => format!("{day}/{month}/{year}:{time} +0000"),
        _ => date.clone(),
    };
    format!(
        "{} - - [{when}] \"{} {} {}\" {} {} \"{}\" \"{}\"\n",
        request.client.address.to_canonical(),
        request.method,
        clean(target(request)),
        version(request),
        outcome.status.as_u16(),
        outcome.body_bytes,
        clean(field(request, Known::Referer)),
        clean(field(request, Known::UserAgent)),
    )
}

#[cfg(test)]
mod tests;
