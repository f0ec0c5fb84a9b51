//! The flags of the ingress plane.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use ipnet::IpNet;
use telaio_model::ObjectKey;

use super::ingress_bounds::IngressBoundsArgs;
use super::ingress_watch::IngressWatchArgs;
use super::values::{cidr, duration, listen_address};

/// Where the proxy works.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum IngressProcess {
    /// In a process of its own when we are root, else in ours.
    Auto,
    /// In a process of its own, without our privileges.
    Own,
    /// In ours.
    Same,
}

/// What the ingress plane serves, and where.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Ingress")]
pub(crate) struct IngressArgs {
    /// Address on which HTTP is served
    #[arg(long, value_name = "ADDRESS", value_parser = |text: &str| listen_address(text, 80),
          default_value_t = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 80))]
    pub(crate) http_listen: SocketAddr,

    /// Address on which HTTPS is served
    #[arg(long, value_name = "ADDRESS", value_parser = |text: &str| listen_address(text, 443),
          default_value_t = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 443))]
    pub(crate) https_listen: SocketAddr,

    /// Port that HTTP is redirected to where HTTPS is asked for [default: the one HTTPS is served on]
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) ssl_redirect_port: Option<u16>,

    /// Service whose addresses are written into the status of Ingresses [default: the nodes']
    #[arg(long, value_name = "NAMESPACE/NAME", value_parser = object_key)]
    pub(crate) publish_service: Option<ObjectKey>,

    /// Class that is ours without an IngressClass
    #[arg(long, value_name = "NAME", default_value = "telaio")]
    pub(crate) ingress_class: String,

    /// Whether Ingresses without a class are ours where no class is the default [default: true for a
    /// dir source, else false]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true,
          default_missing_value = "true")]
    pub(crate) classless_ingresses: Option<bool>,

    /// Secret with the certificate for hosts that have none [default: a self-signed one]
    #[arg(long, value_name = "NAMESPACE/NAME", value_parser = object_key)]
    pub(crate) default_tls_secret: Option<ObjectKey>,

    /// Networks of proxies whose X-Forwarded-* and Forwarded are believed
    #[arg(long, value_name = "CIDR", value_delimiter = ',', value_parser = cidr)]
    pub(crate) trusted_proxies: Vec<IpNet>,

    /// How many threads serve [default: one per processor]
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(crate) ingress_threads: Option<u16>,

    #[command(flatten)]
    pub(crate) bounds: IngressBoundsArgs,

    /// How long to serve on when told to end, not ready any more, before the ports are closed
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "0s")]
    pub(crate) drain_delay: Duration,

    /// How long requests that run may take to end when we do
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "30s")]
    pub(crate) drain_timeout: Duration,

    /// Not to end when another agent has taken over, but to wait until told to: for pods, whose agent would
    /// be started again and take everything back
    #[arg(long)]
    pub(crate) wait_after_takeover: bool,

    /// Where the proxy works
    #[arg(long, value_name = "WHERE", value_enum, default_value_t = IngressProcess::Auto)]
    pub(crate) ingress_process: IngressProcess,

    /// User and group that the proxy's own process runs as
    #[arg(long, value_name = "NUMBER", default_value_t = 65534,
          value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) ingress_user: u32,

    /// File with the secret that sticky cookies are signed with, the same on all replicas [default:
    /// one in the state directory, which with a kube source is that of a Secret for all]
    #[arg(long, value_name = "FILE")]
    pub(crate) cookie_secret_file: Option<PathBuf>,

    /// Whether ExternalName services, auth-url and mirror-target may lead to this node itself (loopback) or
    /// its link (link-local addresses)
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true,
          default_missing_value = "true", default_value_t = false,
          action = clap::ArgAction::Set)]
    pub(crate) ingress_local_targets: bool,

    #[command(flatten)]
    pub(crate) watch: IngressWatchArgs,

    /// Namespace of the Lease by which one of all proxies writes the status of Ingresses
    #[arg(long, value_name = "NAMESPACE", default_value = "kube-system")]
    pub(crate) lease_namespace: String,
}

fn object_key(text: &str) -> Result<ObjectKey, String> {
    match text.split_once('/') {
        Some((namespace, name))
            if !namespace.is_empty() && !name.is_empty() && !name.contains('/') =>
        {
            Ok(ObjectKey::new(namespace, name))
        }
        _ => Err("write NAMESPACE/NAME".to_owned()),
    }
}
