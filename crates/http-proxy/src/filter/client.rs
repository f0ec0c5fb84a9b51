//! A small HTTP/1.1 client for what the proxy asks on its own behalf: forward authentication,
//! mirrors, traces.
//!
//! Requests have small bodies or none, and answers are read whole up to a bound. Connections are kept
//! per address, a few each.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::uri::Scheme;
use http::{Request, Response, Uri};
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1::SendRequest;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;

use crate::reach;
use crate::tls::upstream::{Offer, UpstreamTls, UpstreamTlsError, Verify};

/// Idle connections that are kept for each address.
const IDLE_PER_ADDRESS_MAX: usize = 16;
/// Addresses that are remembered.
const ADDRESSES_MAX: usize = 1024;
/// How long an idle connection is kept.
const IDLE_FOR: Duration = Duration::from_secs(30);

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The address cannot be used.
    #[error("{0} is not an http or https address")]
    Address(String),
    /// No connection.
    #[error("connecting to {0}: {1}")]
    Connect(String, #[source] io::Error),
    /// No TLS.
    #[error("{0}: {1}")]
    Tls(String, #[source] UpstreamTlsError),
    /// The exchange failed.
    #[error("asking {0}: {1}")]
    Exchange(String, #[source] hyper::Error),
    /// The answer's body is too long, or broke off.
    #[error("the answer of {0}: {1}")]
    Body(String, String),
    /// It took too long.
    #[error("{0} did not answer in time")]
    TimedOut(String),
}

type Sender = SendRequest<Full<Bytes>>;

/// Asks, and keeps connections.
#[derive(Debug)]
pub struct Client {
    /// `None` if rustls refused its settings; then https cannot be asked.
    tls: Option<Arc<UpstreamTls>>,
    idle: Mutex<HashMap<String, Vec<(Sender, Instant)>>>,
    /// Whether the node itself may be asked.
    local: bool,
}

impl Client {
    /// A client that verifies https servers like this.
    pub fn new(verify: &Verify) -> Self {
        let tls = UpstreamTls::new(verify, Offer::Http1, None).map(Arc::new);
        let tls = tls.map_err(|error| tracing::error!(%error, "https cannot be asked")).ok();
        Self { tls, idle: Mutex::default(), local: true }
    }

    /// The same that asks the node itself, and what is on its link, only if it may.
    #[must_use]
    pub fn leading(mut self, local: bool) -> Self {
        self.local = local;
        self
    }

    /// Asks, and reads the answer whole.
    pub async fn ask(
        &self,
        request: Request<Bytes>,
        within: Duration,
        body_bytes_max: usize,
    ) -> Result<Response<Bytes>, ClientError> {
        let key = address_of(request.uri())?;
        let whole = async {
            let (response, sender) = self.ask_for_head(&key, request).await?;
            let (head, body) = response.into_parts();
            let body = Limited::new(body, body_bytes_max).collect().await;
            let body = body.map_err(|error| ClientError::Body(key.clone(), error.to_string()))?;
            self.keep(&key, sender);
            Ok(Response::from_parts(head, body.to_bytes()))
        };
        match tokio::time::timeout(within, whole).await {
            Ok(answer) => answer,
            Err(_) => Err(ClientError::TimedOut(key)),
        }
    }

    /// Asks for a head. The body comes with it if it is whole, in time and no longer than that; else it is
    /// left out.
    pub async fn ask_briefly(
        &self,
        request: Request<Bytes>,
        within: Duration,
        body_bytes_max: usize,
    ) -> Result<Response<Bytes>, ClientError> {
        let key = address_of(request.uri())?;
        let deadline = tokio::time::Instant::now() + within;
        let head = tokio::time::timeout_at(deadline, self.ask_for_head(&key, request)).await;
        let (response, sender) =
            head.unwrap_or_else(|_| Err(ClientError::TimedOut(key.clone())))?;
        let (head, body) = response.into_parts();
        let body = Limited::new(body, body_bytes_max).collect();
        let body = match tokio::time::timeout_at(deadline, body).await {
            Ok(Ok(body)) => {
                self.keep(&key, sender);
                body.to_bytes()
            }
            // The connection goes with what was not read.
            Ok(Err(_)) | Err(_) => Bytes::new(),
        };
        Ok(Response::from_parts(head, body))
    }

    async fn ask_for_head(
        &self,
        key: &str,
        request: Request<Bytes>,
    ) -> Result<(Response<hyper::body::Incoming>, Sender), ClientError> {
        let (parts, body) = request.into_parts();
        let make = || {
            let mut request = Request::new(Full::new(body.clone()));
            *request.method_mut() = parts.method.clone();
            *request.uri_mut() = origin_form(&parts.uri);
            *request.headers_mut() = parts.headers.clone();
            request
        };
        let failed = |error| ClientError::Exchange(key.to_owned(), error);
        // A kept connection may have been closed meanwhile; then nothing was sent, or nothing
        // answered, and a new one is asked.
        let mut kept = self.take(key);
        loop {
            let (mut sender, fresh) = match kept.take() {
                Some(sender) => (sender, false),
                None => (self.connect(key, &parts.uri).await?, true),
            };
            match sender.send_request(make()).await {
                Ok(response) => return Ok((response, sender)),
                Err(error) if fresh => return Err(failed(error)),
                Err(_) => {}
            }
        }
    }

    fn take(&self, key: &str) -> Option<Sender> {
        let mut idle = self.idle.lock();
        let list = idle.get_mut(key)?;
        while let Some((sender, since)) = list.pop() {
            if since.elapsed() < IDLE_FOR && sender.is_ready() {
                return Some(sender);
            }
        }
        None
    }

    fn keep(&self, key: &str, sender: Sender) {
        if sender.is_closed() {
            return;
        }
        let mut idle = self.idle.lock();
        if idle.len() >= ADDRESSES_MAX && !idle.contains_key(key) {
            idle.clear();
        }
        let list = idle.entry(key.to_owned()).or_default();
        list.retain(|(sender, since)| since.elapsed() < IDLE_FOR && !sender.is_closed());
        if list.len() < IDLE_PER_ADDRESS_MAX {
            list.push((sender, Instant::now()));
        }
    }

    async fn connect(&self, key: &str, uri: &Uri) -> Result<Sender, ClientError> {
        let https = uri.scheme() == Some(&Scheme::HTTPS);
        let host = uri.host().unwrap_or_default().trim_matches(['[', ']']);
        let port = uri.port_u16().unwrap_or(if https { 443 } else { 80 });
        let failed = |error| ClientError::Connect(key.to_owned(), error);
        let stream = reach::connect(host, port, self.local).await.map_err(failed)?;
        stream.set_nodelay(true).map_err(failed)?;
        if https {
            // Bounded by the caller's time-out as well.
            let refused = || ClientError::Address(key.to_owned());
            let tls = self.tls.as_ref().ok_or_else(refused)?;
            let connected = tls.connect(stream, host, Duration::from_secs(30)).await;
            let (stream, _) = connected.map_err(|error| ClientError::Tls(key.to_owned(), error))?;
            handshake(key, stream).await
        } else {
            handshake(key, stream).await
        }
    }
}

async fn handshake<IO>(key: &str, io: IO) -> Result<Sender, ClientError>
where
    IO: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
{
    let made = hyper::client::conn::http1::handshake(TokioIo::new(io)).await;
    let (sender, connection) =
        made.map_err(|error| ClientError::Exchange(key.to_owned(), error))?;
    // Ends with the sender, or when the other side closes.
    tokio::spawn(connection);
    Ok(sender)
}

fn address_of(uri: &Uri) -> Result<String, ClientError> {
    let known = [Some(&Scheme::HTTP), Some(&Scheme::HTTPS)].contains(&uri.scheme());
    match uri.authority() {
        Some(authority) if known => {
            Ok(format!("{}://{authority}", uri.scheme_str().unwrap_or("http")))
        }
        _ => Err(ClientError::Address(uri.to_string())),
    }
}

fn origin_form(uri: &Uri) -> Uri {
    let path = uri.path_and_query().cloned();
    path.map_or_else(|| Uri::from_static("/"), Uri::from)
}

#[cfg(test)]
pub(crate) mod tests;
