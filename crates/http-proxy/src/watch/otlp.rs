//! Spans to an OpenTelemetry collector, by OTLP over HTTP in its JSON form.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use http::{Request, Uri};
use tokio::sync::{mpsc, oneshot};

use super::trace;
use crate::filter::client::Client;
use crate::head::RequestHead;
use crate::proxy::Outcome;

/// How many spans wait to be sent, and how many go at once.
const SPANS_MAX: usize = 4096;
const BATCH_SPANS: usize = 256;
/// How long a span waits for others.
const LINGER: Duration = Duration::from_secs(1);
/// How long the collector may take.
const WITHIN: Duration = Duration::from_secs(10);

/// What the task that sends is sent.
#[derive(Debug)]
enum Message {
    Span(String),
    /// Say when all before it is sent.
    Flush(oneshot::Sender<()>),
}

/// Sends spans.
#[derive(Debug)]
pub struct Exporter {
    every: u64,
    spans: mpsc::Sender<Message>,
    dropped: AtomicU64,
}

impl Exporter {
    /// An exporter, and what sends its spans to `url` (such as `http://collector:4318/v1/traces`) as
    /// long as it is polled. One request in `every` that belongs to no trace begins one.
    pub fn new(
        url: Uri,
        service: &str,
        every: u64,
        client: Client,
    ) -> (Self, impl Future<Output = ()> + Send + use<>) {
        let (spans, waiting) = mpsc::channel(SPANS_MAX);
        let exporter = Self { every, spans, dropped: AtomicU64::new(0) };
        (exporter, send_all(url, escape(service), waiting, client))
    }

    /// Begins our part of a request's trace.
    pub fn begin(&self, request: &mut RequestHead) {
        trace::begin(request, self.every, unix_ns());
    }

    /// A request is over. Never waits.
    pub fn finished(&self, request: &RequestHead, outcome: &Outcome<'_>) {
        let Some(span) = span(request, outcome) else { return };
        if self.spans.try_send(Message::Span(span)).is_err() {
            self.dropped.fetch_add(1, Relaxed);
        }
    }

    /// Waits until all spans so far are sent, or could not be, but no longer than `within`.
    pub async fn flush(&self, within: Duration) {
        let (done, sent) = oneshot::channel();
        let flushing = async {
            if self.spans.send(Message::Flush(done)).await.is_ok() {
                // An error says that nobody sends any more.
                let _ = sent.await;
            }
        };
        let _ = tokio::time::timeout(within, flushing).await;
    }

    /// How many spans were dropped because too many waited.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Relaxed)
    }
}

fn unix_ns() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_nanos()).unwrap_or(u64::MAX)
}

async fn send_all(url: Uri, service: String, mut waiting: mpsc::Receiver<Message>, client: Client) {
    let mut batch = Vec::with_capacity(BATCH_SPANS);
    while let Some(first) = waiting.recv().await {
        let until = tokio::time::Instant::now() + LINGER;
        let mut next = Some(first);
        let mut flushed = None;
        while let Some(message) = next.take() {
            match message {
                Message::Span(span) => batch.push(span),
                Message::Flush(done) => {
                    flushed = Some(done);
                    break;
                }
            }
            if batch.len() < BATCH_SPANS {
                next = tokio::time::timeout_at(until, waiting.recv()).await.ok().flatten();
            }
        }
        if !batch.is_empty() {
            send(&url, envelope(&service, &batch), &client).await;
            batch.clear();
        }
        if let Some(done) = flushed {
            // Whoever waited may have gone.
            let _ = done.send(());
        }
    }
}

/// Sends a batch.
async fn send(url: &Uri, body: String, client: &Client) {
    let mut request = Request::new(Bytes::from(body));
    *request.method_mut() = http::Method::POST;
    *request.uri_mut() = url.clone();
    let json = http::HeaderValue::from_static("application/json");
    request.headers_mut().insert(http::header::CONTENT_TYPE, json);
    let host = url.authority().map(http::uri::Authority::as_str).unwrap_or_default();
    if let Ok(host) = http::HeaderValue::from_str(host) {
        request.headers_mut().insert(http::header::HOST, host);
    }
    // What the collector does not take is gone: nothing piles up here.
    match client.ask(request, WITHIN, 64 << 10).await {
        Ok(answer) if answer.status().is_success() => {}
        Ok(answer) => tracing::debug!(status = %answer.status(), "the collector refused spans"),
        Err(error) => tracing::debug!(%error, "spans could not be sent"),
    }
}

fn envelope(service: &str, spans: &[String]) -> String {
    format!(
        "{{\"resourceSpans\":[{{\"resource\":{{\"attributes\":[{{\"key\":\"service.name\",\"value\":\
         {{\"stringValue\":\"{service}\"}}}}]}},\"scopeSpans\":[{{\"scope\":{{\"name\":\"telaio\"}},\
         \"spans\":[{}]}}]}}]}}",
        spans.join(",")
    )
}

/// A request as a span; `None` if it is not recorded.
fn span(request: &RequestHead, outcome: &Outcome<'_>) -> Option<String> {
    let trace = request.trace.as_ref().filter(|trace| trace.sampled)?;
    let took = u64::try_from(outcome.duration.as_nanos()).unwrap_or(u64::MAX);
    let mut out = String::with_capacity(512);
    let _ = write!(
        out,
        "{{\"traceId\":\"{}\",\"spanId\":\"{:016x}\",\"name\":\"{}\",\"kind\":2,\
         \"startTimeUnixNano\":\"{}\",\"endTimeUnixNano\":\"{}\"",
        trace.trace_hex(),
        trace.span_id,
        escape(request.method.as_str()),
        trace.begun_unix_ns,
        trace.begun_unix_ns.saturating_add(took)
    );
    if let Some(parent) = trace.parent_id {
        let _ = write!(out, ",\"parentSpanId\":\"{parent:016x}\"");
    }
    out.push_str(",\"attributes\":[");
    let mut text = |key: &str, value: &str| {
        let value = escape(value);
        let _ = write!(out, "{{\"key\":\"{key}\",\"value\":{{\"stringValue\":\"{value}\"}}}},");
    };
    text("http.request.method", request.method.as_str());
    text("url.scheme", request.scheme.as_str());
    let asked = request.rewritten_from.as_deref();
    let path = asked.and_then(|asked| asked.split('?').next()).unwrap_or(request.path());
    text("url.path", path);
    text("server.address", request.host());
    text("client.address", &request.client.address.to_canonical().to_string());
    if let Some(route) = outcome.route {
        text("http.route", &route.route.id);
    }
    if let Some(error) = outcome.error {
        text("error.type", &error.to_string());
    }
    let status = outcome.status.as_u16();
    let _ = write!(
        out,
        "{{\"key\":\"http.response.status_code\",\"value\":{{\"intValue\":\"{status}\"}}}}],\
         \"status\":{{\"code\":{}}}}}",
        if status >= 500 { 2 } else { 0 }
    );
    Some(out)
}

fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for letter in text.chars().take(1024) {
        match letter {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            letter if letter.is_control() => {
                let _ = write!(out, "\\u{:04x}", u32::from(letter));
            }
            letter => out.push(letter),
        }
    }
    out
}

#[cfg(test)]
mod tests;
