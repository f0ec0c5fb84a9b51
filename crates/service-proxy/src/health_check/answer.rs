//! Taking connections on a health check port, and what is said there.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS};
use http::{HeaderValue, Response, StatusCode};
use http_body_util::Full;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use serde::Serialize;
use telaio_model::ObjectKey;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;

use super::Shared;

/// How long a client may take to send its request. Those who ask here have it ready.
const REQUEST_TIME_MAX: Duration = Duration::from_secs(2);
/// How long a connection may take from its first byte to its last.
const CONNECTION_TIME_MAX: Duration = Duration::from_secs(10);
/// How long to wait when no connection can be taken: mostly for want of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
const HEADER_WEIGHT: &str = "x-load-balancing-endpoint-weight";

/// What is asked on a port.
#[derive(Debug, Clone)]
pub(super) struct Question {
    pub(super) service: ObjectKey,
    pub(super) local_endpoints: Arc<AtomicUsize>,
    pub(super) shared: Arc<Shared>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Body<'a> {
    service: ServiceName<'a>,
    local_endpoints: usize,
    service_proxy_healthy: bool,
}

#[derive(Serialize)]
struct ServiceName<'a> {
    namespace: &'a str,
    name: &'a str,
}

impl Question {
    fn answer(&self) -> Response<Full<Bytes>> {
        let local_endpoints = self.local_endpoints.load(Ordering::Relaxed);
        let healthy = (self.shared.healthy)();
        let body = Body {
            service: ServiceName { namespace: &self.service.namespace, name: &self.service.name },
            local_endpoints,
            service_proxy_healthy: healthy,
        };
        // A struct of numbers and texts always has a JSON form.
        let body = serde_json::to_vec(&body).unwrap_or_default();
        let mut response = Response::new(Full::new(Bytes::from(body)));
        *response.status_mut() = if local_endpoints > 0 && healthy {
            StatusCode::OK
        } else {
            StatusCode::SERVICE_UNAVAILABLE
        };
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        headers.insert(HEADER_WEIGHT, HeaderValue::from(local_endpoints));
        response
    }
}

/// The connections that there are, oldest first.
#[derive(Debug)]
pub(super) struct Guests {
    guests_max: usize,
    tasks: VecDeque<AbortHandle>,
}

impl Guests {
    /// None, and room for so many.
    pub(super) fn new(guests_max: usize) -> Self {
        Self { guests_max, tasks: VecDeque::new() }
    }

    /// Takes one in; when there is no room the oldest goes.
    fn admit(&mut self, task: AbortHandle) {
        if self.tasks.len() >= self.guests_max {
            self.tasks.retain(|task| !task.is_finished());
        }
        if self.tasks.len() >= self.guests_max
            && let Some(oldest) = self.tasks.pop_front()
        {
            oldest.abort();
        }
        self.tasks.push_back(task);
    }
}

/// Counts a listener as open for as long as it is.
struct Listening<'a>(&'a AtomicUsize);

impl<'a> Listening<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for Listening<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Answers on a port, until the task is ended.
pub(super) async fn serve(listener: TcpListener, question: Question) {
    let shared = Arc::clone(&question.shared);
    let _listening = Listening::new(&shared.listening);
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                let task = tokio::spawn(talk(stream, question.clone()));
                shared.guests.lock().admit(task.abort_handle());
            }
            Err(error) => {
                tracing::warn!(service = %question.service, %error, "cannot take a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn talk(stream: TcpStream, question: Question) {
    let mut builder = http1::Builder::new();
    builder.keep_alive(false).timer(TokioTimer::new()).header_read_timeout(REQUEST_TIME_MAX);
    let service = service_fn(|_| std::future::ready(Ok::<_, Infallible>(question.answer())));
    let connection = builder.serve_connection(TokioIo::new(stream), service);
    // A client that breaks off or dawdles is its own concern.
    let _ = tokio::time::timeout(CONNECTION_TIME_MAX, connection).await;
}
