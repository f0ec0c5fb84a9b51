//! Finding the API server: a kubeconfig that was named, the pod we run in, or the user's kubeconfig.

use std::path::{Path, PathBuf};

use http::header::{HeaderValue, USER_AGENT};
use kube::config::{InClusterError, KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::{Client, Config};

use super::options::KubeOptions;

/// Set in every pod.
const IN_CLUSTER_VARIABLE: &str = "KUBERNETES_SERVICE_HOST";

/// Why the Kubernetes API cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum KubeError {
    /// No kubeconfig was named, this is no pod, and there is no default kubeconfig.
    #[error(
        "no Kubernetes configuration: this is not a pod ({IN_CLUSTER_VARIABLE} is not set) and \
         there is no kubeconfig at {}; name one with kube:PATH", .0.display()
    )]
    NoConfiguration(PathBuf),
    /// The kubeconfig cannot be read.
    #[error("cannot read the kubeconfig {}: {source}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The kubeconfig can be read, but not used.
    #[error("the kubeconfig {} cannot be used: {message}", path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        message: String,
    },
    /// We run in a pod that may not talk to the API server.
    #[error(
        "this is a pod, but its service account cannot be used: {0}; is \
         automountServiceAccountToken off?"
    )]
    InCluster(#[source] InClusterError),
    /// The client cannot be made, mostly because of its certificates.
    #[error("cannot make a client for {server}: {message}; check the certificates and keys")]
    Client {
        /// The API server.
        server: String,
        /// What is wrong.
        message: String,
    },
    /// The API server refuses what nothing works without.
    #[error("{server}: {message}")]
    Refused {
        /// The API server.
        server: String,
        /// What it refuses, and what to do.
        message: String,
    },
    /// The state was not complete in time.
    #[error("{server}: no complete state after {timeout_s} s; still waiting for {waiting}")]
    NotSynced {
        /// The API server.
        server: String,
        /// How long was waited.
        timeout_s: u64,
        /// The resources that did not come, each with what went wrong.
        waiting: String,
    },
    /// The watchers ended by themselves, which is a fault of ours.
    #[error("the watch of {0} ended unexpectedly")]
    Ended(String),
}

/// A client, and the server it is for.
pub(super) async fn connect(
    path: Option<&Path>,
    options: &KubeOptions,
) -> Result<(Client, String), KubeError> {
    let mut config = match path {
        Some(path) => from_file(path).await?,
        None if std::env::var_os(IN_CLUSTER_VARIABLE).is_some() => {
            Config::incluster().map_err(KubeError::InCluster)?
        }
        None => from_default_file().await?,
    };
    config.connect_timeout = Some(options.request_timeout);
    config.write_timeout = Some(options.request_timeout);
    // The watchers see for themselves when a connection is silent, and try again for themselves.
    config.read_timeout = None;
    config.default_retry = false;
    let agent = HeaderValue::from_static(concat!("telaio/", env!("CARGO_PKG_VERSION")));
    config.headers.push((USER_AGENT, agent));
    let server = config.cluster_url.to_string().trim_end_matches('/').to_owned();
    // The client takes rustls' default provider, and installs aws-lc-rs if there is none yet.
    let client = Client::try_from(config).map_err(|error| KubeError::Client {
        server: server.clone(),
        message: super::trouble::with_causes(&error),
    })?;
    Ok((client, server))
}

async fn from_file(path: &Path) -> Result<Config, KubeError> {
    let invalid = |error: KubeconfigError| match error {
        KubeconfigError::ReadConfig(source, path) => KubeError::Unreadable { path, source },
        other => KubeError::Invalid {
            path: path.to_owned(),
            message: super::trouble::with_causes(&other),
        },
    };
    let kubeconfig = Kubeconfig::read_from(path).map_err(invalid)?;
    Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.map_err(invalid)
}

async fn from_default_file() -> Result<Config, KubeError> {
    // KUBECONFIG may name several files that are merged, which is kube's business.
    if let Some(files) = std::env::var_os("KUBECONFIG").filter(|files| !files.is_empty()) {
        let invalid = |error: KubeconfigError| match error {
            KubeconfigError::ReadConfig(source, path) => KubeError::Unreadable { path, source },
            other => KubeError::Invalid {
                path: PathBuf::from(&files),
                message: super::trouble::with_causes(&other),
            },
        };
        return Config::from_kubeconfig(&KubeConfigOptions::default()).await.map_err(invalid);
    }
    let home = std::env::home_dir().unwrap_or_default();
    let path = home.join(".kube").join("config");
    match from_file(&path).await {
        Err(KubeError::Unreadable { path, source })
            if source.kind() == std::io::ErrorKind::NotFound =>
        {
            Err(KubeError::NoConfiguration(path))
        }
        other => other,
    }
}
