//! The options of the services plane, with kube-proxy's names.
//!
//! [`ProxyArgs`] is what decides the rules, so everybody who shows or programs rules takes it;
//! [`ProxyHostArgs`] is what a running proxy does to its machine besides. What they mean together is
//! worked out in [`proxy_settings`](crate::proxy_settings).

use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::builder::BoolishValueParser;
use clap::{ArgAction, Args, ValueEnum};
use ipnet::IpNet;
#[cfg(target_os = "linux")]
use telaio_service_proxy::iptables::Flavor;

use super::values::{address, cidr, duration, interface};

/// The schedulers of IPVS that the backend knows.
const SCHEDULERS: [&str; 9] = ["rr", "wrr", "lc", "wlc", "sh", "dh", "mh", "sed", "nq"];

/// How traffic that starts at one of this node's pods is told from other traffic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LocalMode {
    /// Its source is in --cluster-cidr; without that, none counts.
    #[value(name = "ClusterCIDR")]
    ClusterCidr,
    /// Its source is in the pod networks that the Node object names.
    #[value(name = "NodeCIDR")]
    NodeCidr,
    /// It comes in by --pod-bridge-interface.
    #[value(name = "BridgeInterface")]
    BridgeInterface,
    /// It comes in by an interface whose name begins with --pod-interface-name-prefix.
    #[value(name = "InterfaceNamePrefix")]
    InterfaceNamePrefix,
}

/// One of `--nodeport-addresses`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NodePortAddress {
    /// Every address.
    All,
    /// The first of each family that the Node object names.
    Primary,
    /// Loopback.
    Localhost,
    /// Those in this network.
    Within(IpNet),
}

impl FromStr for NodePortAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "all" => Ok(Self::All),
            "primary" => Ok(Self::Primary),
            "localhost" => Ok(Self::Localhost),
            net => net.parse().map(Self::Within).map_err(|_| {
                format!("{text:?} is not a CIDR such as 10.0.0.0/8, primary, localhost or all")
            }),
        }
    }
}

/// Which of the two programs of that name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum IptablesFlavor {
    /// The one that is installed as iptables.
    Auto,
    /// iptables-nft.
    Nft,
    /// iptables-legacy.
    Legacy,
}

#[cfg(target_os = "linux")]
impl From<IptablesFlavor> for Flavor {
    fn from(flavor: IptablesFlavor) -> Self {
        match flavor {
            IptablesFlavor::Auto => Self::Auto,
            IptablesFlavor::Nft => Self::Nft,
            IptablesFlavor::Legacy => Self::Legacy,
        }
    }
}

/// What decides the rules for services.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Services")]
pub(crate) struct ProxyArgs {
    /// A KubeProxyConfiguration to take settings from; our own file, the environment and flags win
    /// over it
    #[arg(long, value_name = "FILE")]
    pub(crate) kube_proxy_config: Option<PathBuf>,

    /// Networks of the cluster's pods
    #[arg(long, value_name = "CIDR", value_delimiter = ',', value_parser = cidr)]
    pub(crate) cluster_cidr: Vec<IpNet>,

    /// How traffic of this node's pods is told from other traffic, which is masqueraded
    #[arg(
        long,
        value_name = "MODE",
        value_enum,
        ignore_case = true,
        default_value = "ClusterCIDR"
    )]
    pub(crate) detect_local_mode: LocalMode,

    /// The bridge of this node's pods, for BridgeInterface
    #[arg(long, value_name = "NAME", value_parser = interface)]
    pub(crate) pod_bridge_interface: Option<String>,

    /// How the names of pods' interfaces begin, for InterfaceNamePrefix
    #[arg(long, value_name = "PREFIX", value_parser = interface)]
    pub(crate) pod_interface_name_prefix: Option<String>,

    /// All traffic to cluster addresses gets the node's address as its source
    #[arg(long, action = ArgAction::Set, num_args = 0..=1, require_equals = true, value_name = "BOOL",
          default_value = "false", default_missing_value = "true", hide_default_value = true,
          hide_possible_values = true, value_parser = BoolishValueParser::new())]
    pub(crate) masquerade_all: bool,

    /// The bit of the packet mark that says "masquerade", 0 to 31
    #[arg(long, visible_alias = "iptables-masquerade-bit", value_name = "BIT", default_value_t = 14,
          value_parser = clap::value_parser!(u8).range(0..=31))]
    pub(crate) masquerade_bit: u8,

    /// Where node ports are served: networks, primary (the Node object's first of each family),
    /// localhost, or all [default: all]
    #[arg(long, value_name = "CIDR", value_delimiter = ',')]
    pub(crate) nodeport_addresses: Vec<NodePortAddress>,

    /// Serve node ports on loopback too, where --nodeport-addresses has it
    #[arg(long, visible_alias = "localhost-nodeports", action = ArgAction::Set, num_args = 0..=1,
          require_equals = true, value_name = "BOOL", default_value = "true",
          default_missing_value = "true", hide_possible_values = true,
          value_parser = BoolishValueParser::new())]
    pub(crate) iptables_localhost_nodeports: bool,

    /// The node's own addresses, first of each family, instead of the Node object's
    #[arg(long, value_name = "IP", value_delimiter = ',', value_parser = address)]
    pub(crate) bind_address: Vec<IpAddr>,

    /// Which iptables the backends iptables and ipvs use: nft, legacy, or auto for the one that is
    /// installed as iptables
    #[arg(long, value_name = "FLAVOR", value_enum, default_value_t = IptablesFlavor::Auto,
          hide_possible_values = true)]
    pub(crate) iptables_flavor: IptablesFlavor,

    #[command(flatten)]
    pub(crate) ipvs: IpvsArgs,

    #[command(flatten)]
    pub(crate) hcn: HcnArgs,

    /// What of the KubeProxyConfiguration has no equal here; set when it is read.
    #[arg(skip)]
    pub(crate) config_warnings: Vec<String>,
}

/// What only the ipvs backend has.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Services: ipvs only")]
pub(crate) struct IpvsArgs {
    /// How the kernel chooses endpoints, where a Service's annotation telaio.dev/ipvs-scheduler does
    /// not say: rr, wrr, lc, wlc, sh, dh, mh, sed, nq [default: rr]
    #[arg(long = "ipvs-scheduler", id = "ipvs_scheduler", value_name = "NAME",
          value_parser = SCHEDULERS, hide_possible_values = true)]
    pub(crate) scheduler: Option<String>,

    /// Networks of virtual servers that are not ours, and are left alone
    #[arg(long = "ipvs-exclude-cidrs", id = "ipvs_exclude_cidrs", value_name = "CIDR",
          value_delimiter = ',', value_parser = cidr)]
    pub(crate) exclude_cidrs: Vec<IpNet>,

    /// Answer for an address on its own interface only (arp_ignore 1, arp_announce 2)
    #[arg(long = "ipvs-strict-arp", id = "ipvs_strict_arp", action = ArgAction::Set,
          num_args = 0..=1, require_equals = true, value_name = "BOOL", default_value = "false",
          default_missing_value = "true", hide_default_value = true, hide_possible_values = true,
          value_parser = BoolishValueParser::new())]
    pub(crate) strict_arp: bool,

    /// How long an idle TCP connection is kept; 0 leaves it as it is
    #[arg(long = "ipvs-tcp-timeout", id = "ipvs_tcp_timeout", value_name = "TIME",
          value_parser = duration)]
    pub(crate) tcp_timeout: Option<Duration>,

    /// How long a TCP connection is kept after a FIN; 0 leaves it as it is
    #[arg(long = "ipvs-tcpfin-timeout", id = "ipvs_tcpfin_timeout", value_name = "TIME",
          value_parser = duration)]
    pub(crate) tcpfin_timeout: Option<Duration>,

    /// How long an idle UDP flow is kept; 0 leaves it as it is
    #[arg(long = "ipvs-udp-timeout", id = "ipvs_udp_timeout", value_name = "TIME",
          value_parser = duration)]
    pub(crate) udp_timeout: Option<Duration>,
}

/// What only the hcn backend has, with the names of kube-proxy for Windows.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Services: hcn (Windows) only")]
pub(crate) struct HcnArgs {
    /// The HNS network that pods are on [default: the only overlay or l2bridge network]
    #[arg(long, value_name = "NAME")]
    pub(crate) network_name: Option<String>,

    /// On an overlay, the source of traffic that has to come back through this node, one of each
    /// family at most [default: the addresses of the endpoint NETWORK_ep]
    #[arg(long, value_name = "IP", value_delimiter = ',', value_parser = address)]
    pub(crate) source_vip: Vec<IpAddr>,

    /// Answers go straight from endpoints to users of cluster addresses (direct server return)
    /// [default: where HNS can]
    #[arg(long, action = ArgAction::Set, num_args = 0..=1, require_equals = true, value_name = "BOOL",
          default_missing_value = "true", hide_possible_values = true,
          value_parser = BoolishValueParser::new())]
    pub(crate) enable_dsr: Option<bool>,
}

/// What a running proxy does to its machine besides the rules.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Services")]
pub(crate) struct ProxyHostArgs {
    /// Start beside a kube-proxy that runs, and move its services over
    #[arg(long, action = ArgAction::Set, num_args = 0..=1, require_equals = true, value_name = "BOOL",
          default_value = "false", default_missing_value = "true", hide_default_value = true,
          hide_possible_values = true, value_parser = BoolishValueParser::new())]
    pub(crate) takeover: bool,

    /// --min-sync-period for the nftables and iptables backends
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(crate) iptables_min_sync_period: Option<Duration>,

    /// --sync-period for the nftables and iptables backends
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(crate) iptables_sync_period: Option<Duration>,

    /// --min-sync-period for the ipvs backend
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(crate) ipvs_min_sync_period: Option<Duration>,

    /// --sync-period for the ipvs backend
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(crate) ipvs_sync_period: Option<Duration>,

    #[command(flatten)]
    pub(crate) conntrack: ConntrackArgs,

    #[command(flatten)]
    pub(crate) kube_proxy_only: KubeProxyOnlyArgs,
}

/// The kernel's table of connections.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Connection tracking")]
pub(crate) struct ConntrackArgs {
    /// How many connections to track per core; 0 leaves the limit as it is
    #[arg(
        long = "conntrack-max-per-core",
        id = "conntrack_max_per_core",
        value_name = "COUNT",
        default_value_t = 32_768
    )]
    pub(crate) max_per_core: u32,

    /// How many connections to track at least, however few cores there are
    #[arg(
        long = "conntrack-min",
        id = "conntrack_min",
        value_name = "COUNT",
        default_value_t = 131_072
    )]
    pub(crate) min: u32,

    /// How long an idle established TCP connection is tracked; 0 leaves it as it is
    #[arg(long = "conntrack-tcp-timeout-established", id = "conntrack_tcp_timeout_established",
          value_name = "TIME", value_parser = duration, default_value = "24h")]
    pub(crate) tcp_timeout_established: Duration,

    /// How long a TCP connection is tracked that one side has closed; 0 leaves it as it is
    #[arg(long = "conntrack-tcp-timeout-close-wait", id = "conntrack_tcp_timeout_close_wait",
          value_name = "TIME", value_parser = duration, default_value = "1h")]
    pub(crate) tcp_timeout_close_wait: Duration,

    /// Take TCP packets outside of the window for valid ones
    #[arg(long = "conntrack-tcp-be-liberal", id = "conntrack_tcp_be_liberal",
          action = ArgAction::Set, num_args = 0..=1, require_equals = true, value_name = "BOOL",
          default_value = "false", default_missing_value = "true", hide_default_value = true,
          hide_possible_values = true, value_parser = BoolishValueParser::new())]
    pub(crate) tcp_be_liberal: bool,

    /// How long a UDP flow without an answer is tracked; 0 leaves it as it is
    #[arg(long = "conntrack-udp-timeout", id = "conntrack_udp_timeout", value_name = "TIME",
          value_parser = duration, default_value = "0s")]
    pub(crate) udp_timeout: Duration,

    /// How long an idle UDP flow with answers is tracked; 0 leaves it as it is
    #[arg(long = "conntrack-udp-timeout-stream", id = "conntrack_udp_timeout_stream",
          value_name = "TIME", value_parser = duration, default_value = "0s")]
    pub(crate) udp_timeout_stream: Duration,
}

/// Flags of kube-proxy that have no equal here: taken, so that its command line need not be rewritten
/// in one go, and named in a warning.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct KubeProxyOnlyArgs {
    #[arg(long, hide = true, allow_hyphen_values = true)]
    pub(crate) oom_score_adj: Option<String>,
    #[arg(long, hide = true)]
    pub(crate) config_sync_period: Option<String>,
    #[arg(long, hide = true)]
    pub(crate) feature_gates: Option<String>,
    #[arg(long, hide = true)]
    pub(crate) master: Option<String>,
    #[arg(long, hide = true)]
    pub(crate) kube_api_qps: Option<String>,
    #[arg(long, hide = true)]
    pub(crate) kube_api_burst: Option<String>,
    #[arg(long, hide = true)]
    pub(crate) kube_api_content_type: Option<String>,
    #[arg(long, hide = true)]
    pub(crate) show_hidden_metrics_for_version: Option<String>,
    #[arg(long, hide = true, num_args = 0..=1, require_equals = true,
          default_missing_value = "true")]
    pub(crate) profiling: Option<String>,
    #[arg(long, hide = true, num_args = 0..=1, require_equals = true,
          default_missing_value = "true")]
    pub(crate) bind_address_hard_fail: Option<String>,
    #[arg(long, short, hide = true)]
    pub(crate) v: Option<String>,
    #[arg(long, hide = true)]
    pub(crate) vmodule: Option<String>,
    #[arg(long, hide = true)]
    pub(crate) logging_format: Option<String>,
    #[arg(long, hide = true, num_args = 0..=1, require_equals = true,
          default_missing_value = "true")]
    pub(crate) windows_service: Option<String>,
    #[arg(long, hide = true, num_args = 0..=1, require_equals = true,
          default_missing_value = "true")]
    pub(crate) forward_healthcheck_vip: Option<String>,
    #[arg(long, hide = true)]
    pub(crate) root_hnsendpoint_name: Option<String>,
}
