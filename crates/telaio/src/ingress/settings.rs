//! From flags to what the plane, its worker and the writer of status need.

use std::io::{Read, Write};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use telaio_gateway::GatewaySettings;
use telaio_gateway::class::ClassSettings;
use telaio_gateway::status::{
    COOKIE_SECRET_NAME, LeaseTimes, SharedSecretError, StatusSettings, shared_secret,
};
use telaio_source::SourceSpec;

use super::worker::{AccessLogSettings, Bounds, TraceSettings, WorkerSettings};
use crate::cli::{AccessLogFormat, AccessLogTo, IngressArgs, IngressProcess, LogArgs};
use crate::logging::LogFormat;
use crate::state_dir::is_root;

/// The file in the state directory with the secret for cookies.
const COOKIE_SECRET: &str = "ingress-cookie.key";
/// How often an API server that does not answer is asked for the secret of all, and how long in between.
const SHARE_TRIES_MAX: usize = 3;
const SHARE_PAUSE: Duration = Duration::from_secs(1);

impl IngressArgs {
    /// How many threads serve.
    pub(crate) fn threads(&self) -> usize {
        let all = || std::thread::available_parallelism().map_or(1, usize::from);
        // Sockets of both ports go to the worker in one message, which has room for so many.
        self.ingress_threads.map_or_else(all, usize::from).min(64)
    }

    /// Whether the worker gets a process of its own.
    pub(crate) fn own_process(&self) -> bool {
        match self.ingress_process {
            IngressProcess::Auto => is_root(),
            IngressProcess::Own => true,
            IngressProcess::Same => false,
        }
    }

    /// Which Ingresses are ours, and whose certificate hosts have that have none.
    pub(crate) fn gateway_settings(&self, spec: &SourceSpec) -> GatewaySettings {
        let by_source = matches!(spec, SourceSpec::Dir(_));
        let class = ClassSettings {
            name: self.ingress_class.as_str().into(),
            classless: self.classless_ingresses.unwrap_or(by_source),
            ..ClassSettings::default()
        };
        GatewaySettings {
            class,
            default_certificate: self.default_tls_secret.clone(),
            local_targets: self.ingress_local_targets,
        }
    }

    /// How the worker is to work.
    pub(crate) fn worker_settings(
        &self,
        spec: &SourceSpec,
        log: &LogArgs,
        state_dir: &Path,
    ) -> Result<WorkerSettings> {
        let by_source = matches!(spec, SourceSpec::Dir(_));
        Ok(WorkerSettings {
            class: self.ingress_class.clone(),
            classless: self.classless_ingresses.unwrap_or(by_source),
            default_certificate: self.default_tls_secret.clone(),
            trusted_proxies: self.trusted_proxies.clone(),
            redirect_port: self.ssl_redirect_port,
            threads: self.threads(),
            bounds: Bounds {
                connections_max: self.bounds.ingress_connections_max,
                body_bytes_per_s_min: self.bounds.ingress_body_rate_min,
                head_bytes_max: self.bounds.ingress_head_size,
                head_timeout: self.bounds.ingress_head_timeout,
                keep_alive: self.bounds.ingress_keep_alive,
                cache_bytes_max: self.bounds.ingress_cache_size,
                cache_entry_bytes_max: self.bounds.ingress_cache_entry_size,
            },
            local_targets: self.ingress_local_targets,
            drain: self.drain_timeout,
            cookie_secret: self.cookie_secret(state_dir)?,
            user: (self.own_process() && is_root()).then_some(self.ingress_user),
            log_level: log.log_level.to_string(),
            log_json: log.log_format == LogFormat::Json,
            proxy_protocol: self.watch.proxy_protocol_ranges(),
            access_log: (self.watch.access_log != AccessLogTo::Off).then(|| AccessLogSettings {
                combined: self.watch.access_log_format == AccessLogFormat::Combined,
                every: self.watch.access_log_sample,
            }),
            traces: self.watch.otlp_endpoint.as_ref().map(|url| TraceSettings {
                url: url.clone(),
                service: self.watch.otlp_service_name.clone(),
                every: self.watch.otlp_sample,
            }),
        })
    }

    /// Who writes status, and what.
    pub(crate) fn status_settings(&self, node: &str) -> StatusSettings {
        StatusSettings {
            identity: format!("{node}-{}", std::process::id()),
            namespace: self.lease_namespace.clone(),
            publish_service: self.publish_service.clone(),
            times: LeaseTimes::default(),
        }
    }

    /// Makes the secret of our state directory that of all proxies of the cluster, unless a file is
    /// asked for. While that cannot be, clients stay with their endpoint at one proxy only.
    pub(crate) async fn share_cookie_secret(
        &self,
        client: telaio_source::kube::Client,
        state_dir: &Path,
    ) -> Result<()> {
        if self.cookie_secret_file.is_some() {
            return Ok(());
        }
        let own = self.cookie_secret(state_dir)?;
        let mut tries = 0;
        let shared = loop {
            let shared = shared_secret(client.clone(), &self.lease_namespace, own).await;
            tries += 1;
            match shared {
                Err(SharedSecretError::Unavailable(_)) if tries < SHARE_TRIES_MAX => {
                    tokio::time::sleep(SHARE_PAUSE).await;
                }
                other => break other,
            }
        };
        match shared {
            Ok(shared) if shared == own => Ok(()),
            // Kept, for when the cluster cannot be asked.
            Ok(shared) => {
                let path = state_dir.join(COOKIE_SECRET);
                replace_secret(&path, &shared)
                    .with_context(|| format!("cannot write {}", path.display()))
            }
            Err(error) => {
                tracing::warn!(
                    %error,
                    "sticky cookies are this node's own: with several nodes clients lose their \
                     endpoint; apply deploy/ingress-rbac.yaml, which has the Secret {}, or give all \
                     nodes the same --cookie-secret-file",
                    COOKIE_SECRET_NAME
                );
                Ok(())
            }
        }
    }

    /// The secret that cookies are signed with.
    fn cookie_secret(&self, state_dir: &Path) -> Result<[u8; 32]> {
        let own = state_dir.join(COOKIE_SECRET);
        let path = self.cookie_secret_file.as_deref().unwrap_or(&own);
        let bytes = match std::fs::read(path) {
            Ok(bytes) => bytes,
            Err(error)
                if error.kind() == std::io::ErrorKind::NotFound
                    && self.cookie_secret_file.is_none() =>
            {
                make_secret(&own).with_context(|| format!("cannot write {}", own.display()))?
            }
            Err(error) => {
                return Err(error).with_context(|| format!("cannot read {}", path.display()));
            }
        };
        if bytes.len() < 32 {
            bail!("{} has less than 32 bytes; write at least as many, by chance", path.display());
        }
        let mut secret = [0; 32];
        // Longer ones count as a whole.
        for (i, byte) in bytes.iter().enumerate() {
            secret[i % 32] ^= byte;
        }
        Ok(secret)
    }
}

/// Puts another secret in its place at once, so that it is never cut.
fn replace_secret(path: &Path, secret: &[u8]) -> std::io::Result<()> {
    use std::os::unix::fs::OpenOptionsExt as _;
    let next = path.with_extension("next");
    let _ = std::fs::remove_file(&next);
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create_new(true).mode(0o600).open(&next)?.write_all(secret)?;
    std::fs::rename(&next, path)
}

/// Makes a secret that only we can read.
fn make_secret(path: &Path) -> std::io::Result<Vec<u8>> {
    use std::os::unix::fs::OpenOptionsExt as _;
    let mut bytes = vec![0; 32];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create_new(true).mode(0o600).open(path)?.write_all(&bytes)?;
    Ok(bytes)
}
