//! The command line: the one place where a setting is defined.
//!
//! Every option here is also a key of the configuration file (`min-sync-period`) and an environment
//! variable (`TELAIO_MIN_SYNC_PERIOD`); [`settings`](crate::settings) derives both from clap's own
//! description, so that a new option needs nothing but a field.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::BoolishValueParser;
use clap::{ArgAction, Args, Parser, Subcommand, ValueEnum};
use ipnet::IpNet;
use telaio_source::SourceSpec;

use crate::logging::{LogFilter, LogFormat};
use crate::plane::Plane;

mod admin;
#[cfg(unix)]
mod ingress;
#[cfg(unix)]
mod ingress_bounds;
mod ingress_watch;
#[cfg(target_os = "linux")]
mod pods;
mod proxy;
mod values;

pub(crate) use admin::{
    AdminArgs, AdminClientArgs, DecisionArgs, EndpointActionArgs, OverridesArgs, OverridesCommand,
    PurgeArgs, TargetArgs, WeightArgs,
};
#[cfg(unix)]
pub(crate) use ingress::{IngressArgs, IngressProcess};
#[cfg(unix)]
pub(crate) use ingress_watch::{AccessLogFormat, AccessLogTo};
#[cfg(target_os = "linux")]
pub(crate) use pods::{CniArgs, PodBackend, PodsArgs};
pub(crate) use proxy::{
    HcnArgs, IpvsArgs, KubeProxyOnlyArgs, LocalMode, NodePortAddress, ProxyArgs, ProxyHostArgs,
};
pub(crate) use values::PortRange;
use values::{address, backend, cidr, duration, interface, listen_address, port_range};

/// The admin API's default address: this machine only.
pub(crate) const ADMIN_ADDRESS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 9900);

/// The port of /metrics where an address names none.
const METRICS_PORT: u16 = 10249;
/// Likewise of /healthz and /livez.
const HEALTHZ_PORT: u16 = 10256;

/// One binary that weaves a node's whole network: pods, services and ingress.
#[derive(Debug, Parser)]
#[command(name = "telaio", version, propagate_version = false, max_term_width = 100)]
#[command(after_help = "\
Every option can also stand in the configuration file, as its name without the dashes in front \
(min-sync-period = \"10ms\"), and in the environment (TELAIO_MIN_SYNC_PERIOD). A flag wins over the \
environment, the environment over the file.

Exit codes: 0 done, 1 failed, 2 bad usage or bad input.")]
pub(crate) struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What `telaio` can do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run the node agent: follow a source and keep this node's network as it says
    Run(Box<RunArgs>),
    /// Serve KPNG's Global and Local API to many nodes
    Brain(Box<BrainArgs>),
    /// Print what would be programmed on a node, and change nothing
    Render(Box<RenderArgs>),
    /// Show what a packet will meet on a node
    Trace(Box<TraceArgs>),
    /// Show the state of a running agent or brain
    Status(StatusArgs),
    /// Send nothing new to a service's endpoint; what runs may finish
    Drain(EndpointActionArgs),
    /// Take back what was decided about a service's endpoint
    Undrain(EndpointActionArgs),
    /// Give a service's endpoint another share of the traffic
    Weight(WeightArgs),
    /// Have the ingress' cache forget
    Purge(PurgeArgs),
    /// List what people decided, add and remove backends, pause routes, undo
    Overrides(OverridesArgs),
    /// Show the version and what this build can do
    Version(VersionArgs),
    /// Remove every trace of us from this machine's network
    Cleanup(CleanupArgs),
    /// Have the agent run as a service of Windows
    #[cfg(windows)]
    Service(ServiceArgs),
    /// Show it all on this machine, without a cluster, and leave nothing behind
    Demo(DemoArgs),
    /// What existing Ingresses become here: honoured, different, refused
    Migrate(Box<MigrateArgs>),
    /// Serve for an agent that passes sockets and objects over standard input
    #[cfg(unix)]
    #[command(hide = true)]
    IngressWorker,
    /// Print the completions for a shell
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Print the manual page (of a command, if one is named)
    Man {
        /// The command
        command: Option<String>,
    },
}

impl Command {
    /// What is logged, for the commands that log.
    pub(crate) fn log(&self) -> Option<&LogArgs> {
        match self {
            Self::Run(args) => Some(&args.log),
            Self::Brain(args) => Some(&args.log),
            Self::Render(args) => Some(&args.log),
            Self::Migrate(args) => Some(&args.log),
            Self::Trace(args) => Some(&args.log),
            _ => None,
        }
    }

    /// What decides the rules for services, for the commands that have any to do with them.
    pub(crate) fn proxy_mut(&mut self) -> Option<&mut ProxyArgs> {
        match self {
            Self::Run(args) => Some(&mut args.proxy),
            Self::Render(args) => Some(&mut args.proxy),
            Self::Trace(args) => Some(&mut args.proxy),
            _ => None,
        }
    }
}

/// Where the cluster's objects come from.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Source")]
pub(crate) struct SourceArgs {
    /// Where to read from.
    // Its brackets would be links in a comment.
    #[arg(
        long,
        value_name = "SOURCE",
        help = "Where to read from: kube[:KUBECONFIG], dir:PATH or brain:URL [default: kube \
                  inside a cluster]"
    )]
    pub(crate) source: Option<SourceSpec>,

    /// Short for --source kube:FILE
    #[arg(long, value_name = "FILE", conflicts_with = "source")]
    pub(crate) kubeconfig: Option<PathBuf>,

    /// Networks from which a dir source gives addresses to services that name none
    #[arg(long, value_name = "CIDR", value_delimiter = ',', value_parser = cidr,
          default_value = "10.96.0.0/16")]
    pub(crate) service_cidr: Vec<IpNet>,

    /// Ports from which a dir source gives node ports to services that name none
    #[arg(long, value_name = "FIRST-LAST", value_parser = port_range, default_value = "30000-32767")]
    pub(crate) node_port_range: PortRange,

    /// Namespace whose ConfigMap telaio-overrides holds what people decide
    #[arg(long, value_name = "NAMESPACE", default_value = "kube-system")]
    pub(crate) overrides_namespace: String,
}

/// The identity that is shown to peers, and the authority that theirs must come from.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "TLS")]
pub(crate) struct TlsArgs {
    /// Our certificate chain (PEM): as a server, and as a client of a brain
    #[arg(long = "tls-cert", id = "tls_cert", value_name = "FILE")]
    pub(crate) cert: Option<PathBuf>,

    /// The key of the certificate (PEM)
    #[arg(long = "tls-key", id = "tls_key", value_name = "FILE")]
    pub(crate) key: Option<PathBuf>,

    /// The authority that peers' certificates must come from (PEM); a server then asks for one
    #[arg(long = "tls-ca", id = "tls_ca", value_name = "FILE")]
    pub(crate) ca: Option<PathBuf>,
}

/// What is logged, and how.
#[derive(Debug, Clone, Args)]
#[expect(clippy::struct_field_names, reason = "as the options are called")]
#[command(next_help_heading = "Logs")]
pub(crate) struct LogArgs {
    /// error, warn, info, debug, trace, or per module: info,telaio_source=debug
    #[arg(long, value_name = "LEVEL", default_value = "info")]
    pub(crate) log_level: LogFilter,

    /// How log lines are written
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t = LogFormat::Text)]
    pub(crate) log_format: LogFormat,

    /// Write log lines to this file instead of standard error; at 10 MiB it becomes FILE.1 and is
    /// begun anew
    #[arg(long, value_name = "FILE")]
    pub(crate) log_file: Option<PathBuf>,
}

/// The ports on which a long-running command answers questions about itself.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Ports")]
pub(crate) struct ListenArgs {
    /// Address of the admin API, which `telaio status` asks
    #[arg(long, value_name = "ADDRESS", default_value_t = ADMIN_ADDRESS)]
    pub(crate) admin_listen: SocketAddr,

    /// Address of /metrics
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:10249",
          value_parser = |text: &str| listen_address(text, METRICS_PORT))]
    pub(crate) metrics_bind_address: SocketAddr,

    /// Address of /healthz and /livez
    #[arg(long, value_name = "ADDRESS", default_value = "0.0.0.0:10256",
          value_parser = |text: &str| listen_address(text, HEALTHZ_PORT))]
    pub(crate) healthz_bind_address: SocketAddr,

    #[command(flatten)]
    pub(crate) admin: AdminArgs,
}

impl ListenArgs {
    /// The flags with what they ask for, and `--api-listen`'s.
    pub(crate) fn with_api(&self, api: Option<SocketAddr>) -> Vec<(&'static str, SocketAddr)> {
        let ours = [
            ("--admin-listen", self.admin_listen),
            ("--metrics-bind-address", self.metrics_bind_address),
            ("--healthz-bind-address", self.healthz_bind_address),
        ];
        ours.into_iter().chain(api.map(|address| ("--api-listen", address))).collect()
    }
}

/// The configuration file.
#[derive(Debug, Clone, Args)]
pub(crate) struct ConfigArgs {
    /// Configuration file, TOML or YAML by its ending
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
}

/// The directory for what must outlive the process.
#[derive(Debug, Clone, Args)]
pub(crate) struct StateArgs {
    /// Directory for what must outlive the process [default: /var/lib/telaio for root, else
    /// ~/.local/state/telaio; on Windows %ProgramData%\telaio]
    #[arg(long, value_name = "DIR", default_value_os_t = crate::state_dir::default_path(),
          hide_default_value = true)]
    pub(crate) state_dir: PathBuf,
}

/// Whose view is taken.
#[derive(Debug, Clone, Args)]
pub(crate) struct NodeArgs {
    /// The node whose view is taken [default: the host's name]
    #[arg(long, visible_alias = "hostname-override", value_name = "NAME",
          value_parser = crate::node_name::parse)]
    pub(crate) node: Option<String>,
}

/// `telaio run`.
#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub(crate) config: ConfigArgs,

    #[command(flatten)]
    pub(crate) node: NodeArgs,

    /// What to manage (this build: services; on Linux also pods and ingress)
    #[arg(long, value_name = "PLANE", value_enum, value_delimiter = ',',
          default_values_t = [Plane::Services])]
    pub(crate) planes: Vec<Plane>,

    /// How services are programmed: nftables, iptables, ipvs, on Windows hcn, or view to only print
    /// them; auto takes nftables or else iptables, and on Windows hcn
    #[arg(long, visible_alias = "proxy-mode", value_name = "BACKEND", value_parser = backend,
          default_value = "auto")]
    pub(crate) backend: String,

    /// Sync once, then exit
    #[arg(long, action = ArgAction::Set, num_args = 0..=1, require_equals = true, value_name = "BOOL",
          default_value = "false", default_missing_value = "true", hide_default_value = true,
          hide_possible_values = true,
          value_parser = BoolishValueParser::new())]
    pub(crate) once: bool,

    /// How long --once waits for the first full state of the source, and for a sync that fails
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "30s")]
    pub(crate) timeout: Duration,

    #[command(flatten)]
    pub(crate) state: StateArgs,

    /// Least time between two syncs; the first change after a pause acts at once
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "10ms")]
    pub(crate) min_sync_period: Duration,

    /// Time between two full syncs that compare everything
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "30s")]
    pub(crate) sync_period: Duration,

    #[command(flatten)]
    pub(crate) proxy: ProxyArgs,

    #[command(flatten)]
    pub(crate) proxy_host: ProxyHostArgs,

    #[cfg(target_os = "linux")]
    #[command(flatten)]
    pub(crate) pods: PodsArgs,

    #[command(flatten)]
    pub(crate) source: SourceArgs,

    #[command(flatten)]
    pub(crate) listen: ListenArgs,

    #[cfg(unix)]
    #[command(flatten)]
    pub(crate) ingress: IngressArgs,

    /// Also serve the Global and Local API here
    #[arg(long, value_name = "ADDRESS", help_heading = "Ports")]
    pub(crate) api_listen: Option<SocketAddr>,

    /// Nodes that may take TLS secrets from our API, besides those whose certificate says so
    #[arg(long, value_name = "NODE", value_delimiter = ',', help_heading = "TLS")]
    pub(crate) ingress_nodes: Vec<String>,

    #[command(flatten)]
    pub(crate) tls: TlsArgs,

    #[command(flatten)]
    pub(crate) log: LogArgs,
}

/// `telaio brain`.
#[derive(Debug, Args)]
pub(crate) struct BrainArgs {
    #[command(flatten)]
    pub(crate) config: ConfigArgs,

    /// For which planes of the nodes to serve what they need
    #[arg(long, value_name = "PLANE", value_enum, value_delimiter = ',',
          default_values_t = [Plane::Services])]
    pub(crate) planes: Vec<Plane>,

    #[command(flatten)]
    pub(crate) state: StateArgs,

    #[command(flatten)]
    pub(crate) source: SourceArgs,

    #[command(flatten)]
    pub(crate) listen: ListenArgs,

    /// Address of the Global and Local API
    #[arg(long, value_name = "ADDRESS", help_heading = "Ports", default_value = "0.0.0.0:12090")]
    pub(crate) api_listen: SocketAddr,

    /// Nodes that may take TLS secrets from our API, besides those whose certificate says so
    #[arg(long, value_name = "NODE", value_delimiter = ',', help_heading = "TLS")]
    pub(crate) ingress_nodes: Vec<String>,

    #[command(flatten)]
    pub(crate) tls: TlsArgs,

    #[command(flatten)]
    pub(crate) log: LogArgs,
}

/// `telaio render`. What it cannot read it says by itself, so its log is quiet.
#[derive(Debug, Args)]
#[command(mut_arg("log_level", |arg| arg.default_value("error")))]
pub(crate) struct RenderArgs {
    #[command(flatten)]
    pub(crate) config: ConfigArgs,

    #[command(flatten)]
    pub(crate) node: NodeArgs,

    /// What to print: view is the node view itself
    #[arg(long, visible_alias = "proxy-mode", value_name = "BACKEND", value_parser = backend,
          default_value = "view")]
    pub(crate) backend: String,

    /// Directory of an agent whose given addresses are to be shown; it is only read
    #[arg(long, value_name = "DIR")]
    pub(crate) state_dir: Option<PathBuf>,

    /// How long to wait for the first full state of a source
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "30s")]
    pub(crate) timeout: Duration,

    #[command(flatten)]
    pub(crate) proxy: ProxyArgs,

    #[command(flatten)]
    pub(crate) source: SourceArgs,

    #[command(flatten)]
    pub(crate) tls: TlsArgs,

    #[command(flatten)]
    pub(crate) log: LogArgs,
}

/// How an answer is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    /// For people.
    Text,
    /// For programs.
    Json,
}

/// `telaio trace`.
#[derive(Debug, Args)]
pub(crate) struct TraceArgs {
    #[command(flatten)]
    pub(crate) config: ConfigArgs,

    /// Where the packet comes from; one of the node's own addresses: it starts there
    #[arg(long, value_name = "IP", value_parser = address)]
    pub(crate) from: Option<IpAddr>,

    /// Where it wants to go: IP:PORT or IP:PORT/tcp|udp|sctp
    #[arg(long, value_name = "IP:PORT")]
    pub(crate) to: Option<String>,

    /// The interface that it comes in by
    #[arg(long, value_name = "NAME", value_parser = interface)]
    pub(crate) iface: Option<String>,

    /// A request instead of a packet: http://HOST/PATH or https://HOST/PATH
    #[arg(long, value_name = "URL", conflicts_with_all = ["from", "to", "batch"])]
    pub(crate) url: Option<String>,

    /// Questions to answer, one a line, as JSON: {"from":"IP","to":"IP:PORT","proto":"tcp",
    /// "iface":"NAME"}; - reads standard input
    #[arg(long, value_name = "FILE", conflicts_with_all = ["from", "to"])]
    pub(crate) batch: Option<PathBuf>,

    /// Read the live rules of this machine instead of compiling those of the source
    #[arg(long, action = ArgAction::Set, num_args = 0..=1, require_equals = true, value_name = "BOOL",
          default_value = "false", default_missing_value = "true", hide_default_value = true,
          hide_possible_values = true, value_parser = BoolishValueParser::new())]
    pub(crate) kernel: bool,

    /// How to print the answer
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t = Output::Text)]
    pub(crate) output: Output,

    #[command(flatten)]
    pub(crate) node: NodeArgs,

    /// Whose rules
    #[arg(long, visible_alias = "proxy-mode", value_name = "BACKEND", value_parser = backend,
          default_value = "auto")]
    pub(crate) backend: String,

    /// Directory of an agent whose given addresses are to be used; it is only read
    #[arg(long, value_name = "DIR")]
    pub(crate) state_dir: Option<PathBuf>,

    /// How long to wait for the first full state of a source
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "30s")]
    pub(crate) timeout: Duration,

    #[command(flatten)]
    pub(crate) proxy: ProxyArgs,

    #[command(flatten)]
    pub(crate) source: SourceArgs,

    #[command(flatten)]
    pub(crate) tls: TlsArgs,

    #[command(flatten)]
    pub(crate) log: LogArgs,
}

/// `telaio status`.
#[derive(Debug, Args)]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    pub(crate) config: ConfigArgs,

    #[command(flatten)]
    pub(crate) client: AdminClientArgs,

    /// How to print it
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t = Output::Text)]
    pub(crate) output: Output,
}

/// `telaio cleanup`.
#[derive(Debug, Args)]
pub(crate) struct CleanupArgs {
    #[command(flatten)]
    pub(crate) config: ConfigArgs,

    /// Also remove what kube-proxy has made, in any of its modes
    #[arg(long, action = ArgAction::Set, num_args = 0..=1, require_equals = true, value_name = "BOOL",
          default_value = "false", default_missing_value = "true", hide_default_value = true,
          hide_possible_values = true, value_parser = BoolishValueParser::new())]
    pub(crate) kube_proxy: bool,

    #[cfg(target_os = "linux")]
    #[command(flatten)]
    pub(crate) cni: CniArgs,

    #[command(flatten)]
    pub(crate) state: StateArgs,
}

/// `telaio service`.
#[cfg(windows)]
#[derive(Debug, Args)]
pub(crate) struct ServiceArgs {
    /// The service's name
    #[arg(long, value_name = "NAME", default_value = "telaio")]
    pub(crate) name: String,

    /// What to do about it.
    #[command(subcommand)]
    pub(crate) action: ServiceAction,
}

/// What to do about the service.
#[cfg(windows)]
#[derive(Debug, Subcommand)]
pub(crate) enum ServiceAction {
    /// Register `telaio run` with these options as a service that starts with Windows
    Install {
        /// Options of `telaio run`
        #[arg(value_name = "OPTIONS", trailing_var_arg = true, allow_hyphen_values = true)]
        options: Vec<String>,
    },
    /// Stop the service and remove it; what it has programmed stays (see `telaio cleanup`)
    Uninstall,
    /// What Windows starts
    #[command(hide = true)]
    Work {
        /// Options of `telaio run`
        #[arg(value_name = "OPTIONS", trailing_var_arg = true, allow_hyphen_values = true)]
        options: Vec<String>,
    },
}

/// `telaio migrate`. What it cannot read it says by itself, so its log is quiet.
#[derive(Debug, Args)]
#[command(mut_arg("log_level", |arg| arg.default_value("error")))]
pub(crate) struct MigrateArgs {
    #[command(flatten)]
    pub(crate) config: ConfigArgs,

    /// Only Ingresses of this class
    #[arg(long, value_name = "NAME")]
    pub(crate) class: Option<String>,

    /// How to print it
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t = Output::Text)]
    pub(crate) output: Output,

    /// How long to wait for the first full state of a source
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "30s")]
    pub(crate) timeout: Duration,

    #[command(flatten)]
    pub(crate) source: SourceArgs,

    #[command(flatten)]
    pub(crate) tls: TlsArgs,

    #[command(flatten)]
    pub(crate) log: LogArgs,
}

/// `telaio version`.
#[derive(Debug, Args)]
pub(crate) struct VersionArgs {
    /// How to print it
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t = Output::Text)]
    pub(crate) output: Output,
}

/// `telaio demo`.
#[derive(Debug, Args)]
pub(crate) struct DemoArgs {
    /// Check what is shown, ask nobody, then exit: 0 if all is as it should be
    #[arg(long, action = ArgAction::Set, num_args = 0..=1, require_equals = true, value_name = "BOOL",
          default_value = "false", default_missing_value = "true", hide_default_value = true,
          hide_possible_values = true,
          value_parser = BoolishValueParser::new())]
    pub(crate) check: bool,

    /// How services are programmed
    #[arg(long, value_name = "BACKEND", value_parser = backend, default_value = "auto")]
    pub(crate) backend: String,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_definition_holds_together() {
        Cli::command().debug_assert();
    }
}
