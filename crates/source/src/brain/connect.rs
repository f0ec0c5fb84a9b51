//! Connecting to a brain, and trying again.

use std::path::PathBuf;
use std::time::Duration;

use crate::backoff::Backoff;
use telaio_api::proto::localv1::Set;
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
    /// The shortest pause between two attempts.
    pub backoff_min: Duration,
    /// The longest.
    pub backoff_max: Duration,
}

impl BrainOptions {
    /// Plain options for a URL.
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            tls: None,
            sets: Vec::new(),
            backoff_min: Duration::from_millis(100),
            backoff_max: Duration::from_secs(10),
        }
    }

    pub(super) fn backoff(&self) -> Backoff {
        Backoff::new(self.backoff_min, self.backoff_max)
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
