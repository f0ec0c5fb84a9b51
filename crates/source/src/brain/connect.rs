//! Connecting to a brain, and trying again.

use std::path::PathBuf;
use std::time::Duration;

use telaio_api::proto::localv1::Set;
use telaio_model::hash::StableHash;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};

/// The files by which a client proves its name and knows the brain's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientTls {
    /// The authority that signed the brain's certificate.
    pub ca: PathBuf,
    /// The client's certificate and key, if the brain asks for one.
    pub identity: Option<(PathBuf, PathBuf)>,
}

/// Where a brain is, and what is asked of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BrainOptions {
    /// Its URL.
    pub url: String,
    /// TLS, for an `https` URL.
    pub tls: Option<ClientTls>,
    /// Further sets than those that KPNG sends.
    pub sets: Vec<Set>,
    /// The longest pause between two attempts.
    pub backoff_max: Duration,
}

impl BrainOptions {
    /// Plain options for a URL.
    pub fn new(url: impl Into<String>) -> Self {
        Self { url: url.into(), tls: None, sets: Vec::new(), backoff_max: Duration::from_secs(10) }
    }

    pub(super) fn set_numbers(&self) -> Vec<i32> {
        self.sets.iter().map(|set| i32::from(*set)).collect()
    }
}

/// Why there is no connection to a brain.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The URL or TLS settings cannot be used.
    #[error("cannot connect to {url}: {source}")]
    Transport {
        /// Where to.
        url: String,
        /// What the transport says.
        source: tonic::transport::Error,
    },
    /// A certificate or key cannot be read.
    #[error("cannot read {path}: {source}")]
    File {
        /// The file.
        path: String,
        /// What the system says.
        source: std::io::Error,
    },
    /// The brain answered with an error.
    #[error("{url} refuses: {status}")]
    Refused {
        /// Where.
        url: String,
        /// What it said.
        status: Box<tonic::Status>,
    },
    /// The brain sent something that cannot be.
    #[error("{url}: {source}")]
    Protocol {
        /// Where.
        url: String,
        /// What is wrong.
        source: telaio_api::DecodeError,
    },
    /// The brain ended the watch.
    #[error("{url} ended the watch")]
    Ended {
        /// Where.
        url: String,
    },
    /// The brain sends without end.
    #[error("{url} sent more than {max} operations without completing a state")]
    TooMuch {
        /// Where.
        url: String,
        /// The bound.
        max: usize,
    },
}

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(20);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);

async fn read(path: &PathBuf) -> Result<Vec<u8>, ConnectError> {
    tokio::fs::read(path)
        .await
        .map_err(|source| ConnectError::File { path: path.display().to_string(), source })
}

/// Connects once. Certificates are read each time, so that renewed ones are used.
pub(super) async fn connect(options: &BrainOptions) -> Result<Channel, ConnectError> {
    let failed = |source| ConnectError::Transport { url: options.url.clone(), source };
    let mut endpoint = Endpoint::from_shared(options.url.clone())
        .map_err(failed)?
        .connect_timeout(CONNECT_TIMEOUT)
        .http2_keep_alive_interval(KEEPALIVE_INTERVAL)
        .keep_alive_timeout(KEEPALIVE_TIMEOUT)
        .keep_alive_while_idle(true)
        .tcp_nodelay(true);
    if let Some(tls) = &options.tls {
        let ca = Certificate::from_pem(read(&tls.ca).await?);
        let mut config = ClientTlsConfig::new().ca_certificate(ca);
        if let Some((certificate, key)) = &tls.identity {
            let identity = Identity::from_pem(read(certificate).await?, read(key).await?);
            config = config.identity(identity);
        }
        endpoint = endpoint.tls_config(config).map_err(failed)?;
    }
    endpoint.connect().await.map_err(failed)
}

/// Pauses that double up to a bound, each shortened by up to half so that many nodes do not come
/// back at once.
#[derive(Debug)]
pub(super) struct Backoff {
    attempt: u32,
    max: Duration,
    seed: u64,
}

const BACKOFF_FIRST: Duration = Duration::from_millis(100);

impl Backoff {
    /// A back-off whose jitter differs from node to node.
    pub(super) fn new(max: Duration, who: &str) -> Self {
        let pid = u64::from(std::process::id());
        Self { attempt: 0, max, seed: StableHash::new().text(who).finish() ^ pid }
    }

    pub(super) fn reset(&mut self) {
        self.attempt = 0;
    }

    pub(super) fn next(&mut self) -> Duration {
        let full = BACKOFF_FIRST.saturating_mul(1 << self.attempt.min(16)).min(self.max);
        self.attempt = self.attempt.saturating_add(1);
        self.seed = StableHash::new().bytes(&self.seed.to_be_bytes()).finish();
        let share = f64::from(u32::try_from(self.seed & 0xffff).unwrap_or(0)) / 65_536.0;
        full.mul_f64(1.0 - share / 2.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_the_bound_and_begin_anew_after_success() {
        let mut backoff = Backoff::new(Duration::from_secs(2), "node-1");
        let pauses: Vec<_> = (0..20).map(|_| backoff.next()).collect();
        assert!(pauses[0] <= BACKOFF_FIRST && pauses[0] >= BACKOFF_FIRST / 2);
        assert!(pauses[10..].iter().all(|it| (1..=2).contains(&it.as_secs())
            && *it <= Duration::from_secs(2)
            && *it >= Duration::from_secs(1)));
        backoff.reset();
        assert!(backoff.next() <= BACKOFF_FIRST);
    }
}
