//! What the options of the services plane mean together.
//!
//! [`cli`](crate::cli) knows each option by itself; here they become what the service proxy works
//! with: [`ProxyArgs::settings`] for the rules, [`RunArgs::pacing`] for the times between syncs,
//! `ProxyHostArgs::sysctls` for the kernel's settings. The meaning is kube-proxy's.
//!
//! What always holds: options that do not go together are bad input, named with their flags; options
//! that have no effect with the backend that runs, or here at all, are named in a warning each.

use std::net::IpAddr;
use std::time::Duration;

use ipnet::IpNet;
#[cfg(target_os = "linux")]
use telaio_netlink::ipvs::Timeouts;
use telaio_reconcile::PacerConfig;
use telaio_service_proxy::config::{DetectLocal, NodePortAddresses, ProxyConfig};
use telaio_service_proxy::hcn::HcnOptions;
#[cfg(target_os = "linux")]
use telaio_service_proxy::{
    iptables::Flavor,
    ipvs::{self, IpvsOptions, types::Scheduler},
    sysctls::{Setting, SysctlConfig},
};
use telaio_source::SourceSpec;

use crate::cli::{
    HcnArgs, IpvsArgs, KubeProxyOnlyArgs, LocalMode, NodePortAddress, ProxyArgs, ProxyHostArgs,
    RunArgs, SourceArgs,
};
use crate::exit::CommandError;

/// The backend for which `--ipvs-*` is.
const IPVS: &str = "ipvs";

/// The backend for which `--network-name` and its like are.
const HCN: &str = "hcn";

/// What decides the rules for services.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ProxySettings {
    /// What every backend takes.
    pub(crate) config: ProxyConfig,
    /// The node's own addresses; they come before those of its Node object. At most one per family.
    pub(crate) node_addresses: Vec<IpAddr>,
    /// What the ipvs backend takes besides.
    pub(crate) ipvs: IpvsSettings,
    /// What the hcn backend takes besides.
    pub(crate) hcn: HcnOptions,
    /// What of all that was asked for has no effect, to be logged.
    pub(crate) warnings: Vec<String>,
}

/// What the ipvs backend takes besides.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct IpvsSettings {
    /// How the kernel chooses endpoints; `None` is its default for us, round robin.
    pub(crate) scheduler: Option<String>,
    /// Virtual servers in these networks are not ours.
    pub(crate) exclude_cidrs: Vec<IpNet>,
    /// Answer for an address on its own interface only.
    pub(crate) strict_arp: bool,
    /// Times; `None` leaves the kernel's.
    pub(crate) tcp_timeout: Option<Duration>,
    /// After a FIN.
    pub(crate) tcpfin_timeout: Option<Duration>,
    /// For UDP.
    pub(crate) udp_timeout: Option<Duration>,
}

impl ProxyArgs {
    /// What they mean for a backend and a source.
    pub(crate) fn settings(
        &self,
        backend: &str,
        source: &SourceArgs,
        spec: &SourceSpec,
    ) -> Result<ProxySettings, CommandError> {
        let (node_port_addresses, has_loopback) = self.node_port_addresses()?;
        let config = ProxyConfig {
            detect_local: self.detect_local()?,
            masquerade_all: self.masquerade_all,
            masquerade_bit: self.masquerade_bit,
            node_port_addresses,
            localhost_node_ports: self.iptables_localhost_nodeports && has_loopback,
            service_cidrs: source.cluster_networks(spec),
            ..ProxyConfig::default()
        };
        let mut warnings = self.config_warnings.clone();
        let mut unused = Vec::new();
        if backend != IPVS {
            unused.extend(self.ipvs.used_flags());
        }
        if backend != HCN {
            unused.extend(self.hcn.used_flags());
        }
        let unused = unused.iter().map(|flag| format!("{flag} has no effect with {backend}"));
        warnings.extend(unused);
        Ok(ProxySettings {
            config,
            node_addresses: self.node_addresses()?,
            ipvs: self.ipvs.settings(),
            hcn: self.hcn.options()?,
            warnings,
        })
    }

    fn detect_local(&self) -> Result<DetectLocal, CommandError> {
        let needs = |mode: &str, flag: &str| {
            CommandError::bad_input(format!("--detect-local-mode {mode} needs {flag}"))
        };
        Ok(match self.detect_local_mode {
            // kube-proxy's rule: without networks nobody counts as a pod of this node.
            LocalMode::ClusterCidr if self.cluster_cidr.is_empty() => DetectLocal::Nowhere,
            LocalMode::ClusterCidr => DetectLocal::ClusterCidr(self.cluster_cidr.clone()),
            LocalMode::NodeCidr => DetectLocal::NodeCidr,
            LocalMode::BridgeInterface => DetectLocal::BridgeInterface(
                self.pod_bridge_interface
                    .clone()
                    .ok_or_else(|| needs("BridgeInterface", "--pod-bridge-interface"))?,
            ),
            LocalMode::InterfaceNamePrefix => DetectLocal::InterfaceNamePrefix(
                self.pod_interface_name_prefix
                    .clone()
                    .ok_or_else(|| needs("InterfaceNamePrefix", "--pod-interface-name-prefix"))?,
            ),
        })
    }

    /// Where node ports are served, and whether loopback is among it.
    fn node_port_addresses(&self) -> Result<(NodePortAddresses, bool), CommandError> {
        let asked = &self.nodeport_addresses;
        if asked.is_empty() || asked.contains(&NodePortAddress::All) {
            return Ok((NodePortAddresses::All, true));
        }
        let has_localhost = asked.contains(&NodePortAddress::Localhost);
        let networks: Vec<IpNet> = asked
            .iter()
            .filter_map(|address| match address {
                NodePortAddress::Within(net) => Some(*net),
                _ => None,
            })
            .collect();
        if asked.contains(&NodePortAddress::Primary) {
            if !networks.is_empty() {
                return Err(CommandError::bad_input(
                    "--nodeport-addresses: primary and networks do not go together; give one or \
                     the other",
                ));
            }
            return Ok((NodePortAddresses::Primary, has_localhost));
        }
        let has_loopback = networks.iter().any(has_loopback);
        Ok((NodePortAddresses::Within(networks), has_localhost || has_loopback))
    }

    /// "Any address" says that none was meant.
    fn node_addresses(&self) -> Result<Vec<IpAddr>, CommandError> {
        let named = self.bind_address.iter().copied().filter(|ip| !ip.is_unspecified());
        one_of_each_family("--bind-address", named.collect())
    }
}

fn one_of_each_family(flag: &str, named: Vec<IpAddr>) -> Result<Vec<IpAddr>, CommandError> {
    match named.as_slice() {
        [] | [_] => Ok(named),
        [one, other] if one.is_ipv4() != other.is_ipv4() => Ok(named),
        _ => {
            Err(CommandError::bad_input(format!("{flag}: give one address, or one of each family")))
        }
    }
}

/// Whether a network has any of the addresses by which a machine talks to itself.
fn has_loopback(net: &IpNet) -> bool {
    let loopback: IpNet = match net {
        IpNet::V4(_) => IpNet::V4(ipnet::Ipv4Net::new_assert([127, 0, 0, 0].into(), 8)),
        IpNet::V6(_) => IpNet::from(IpAddr::V6(std::net::Ipv6Addr::LOCALHOST)),
    };
    net.contains(&loopback) || loopback.contains(net)
}

impl SourceArgs {
    /// The networks of cluster addresses, as far as the source has them from us: a cluster names its
    /// own.
    fn cluster_networks(&self, spec: &SourceSpec) -> Vec<IpNet> {
        match spec {
            SourceSpec::Dir(_) => self.service_cidr.clone(),
            SourceSpec::Kube(_) | SourceSpec::Brain(_) => Vec::new(),
        }
    }
}

impl IpvsArgs {
    fn settings(&self) -> IpvsSettings {
        IpvsSettings {
            scheduler: self.scheduler.clone(),
            exclude_cidrs: self.exclude_cidrs.clone(),
            strict_arp: self.strict_arp,
            tcp_timeout: self.tcp_timeout.and_then(unless_zero),
            tcpfin_timeout: self.tcpfin_timeout.and_then(unless_zero),
            udp_timeout: self.udp_timeout.and_then(unless_zero),
        }
    }

    fn used_flags(&self) -> Vec<&'static str> {
        let flags = [
            ("--ipvs-scheduler", self.scheduler.is_some()),
            ("--ipvs-exclude-cidrs", !self.exclude_cidrs.is_empty()),
            ("--ipvs-strict-arp", self.strict_arp),
            ("--ipvs-tcp-timeout", self.tcp_timeout.is_some()),
            ("--ipvs-tcpfin-timeout", self.tcpfin_timeout.is_some()),
            ("--ipvs-udp-timeout", self.udp_timeout.is_some()),
        ];
        flags.into_iter().filter(|(_, used)| *used).map(|(flag, _)| flag).collect()
    }
}

impl HcnArgs {
    fn options(&self) -> Result<HcnOptions, CommandError> {
        Ok(HcnOptions {
            network_name: self.network_name.clone(),
            source_vips: one_of_each_family("--source-vip", self.source_vip.clone())?,
            enable_dsr: self.enable_dsr,
            ..HcnOptions::default()
        })
    }

    fn used_flags(&self) -> Vec<&'static str> {
        let flags = [
            ("--network-name", self.network_name.is_some()),
            ("--source-vip", !self.source_vip.is_empty()),
            ("--enable-dsr", self.enable_dsr.is_some()),
        ];
        flags.into_iter().filter(|(_, used)| *used).map(|(flag, _)| flag).collect()
    }
}

#[cfg(target_os = "linux")]
impl IpvsSettings {
    /// What the backend is made with.
    pub(crate) fn options(&self, flavor: Flavor, takeover: bool) -> IpvsOptions {
        let scheduler = self.scheduler.as_deref().and_then(Scheduler::parse);
        IpvsOptions {
            scheduler: scheduler.unwrap_or_default(),
            exclude: self.exclude_cidrs.clone(),
            takeover,
            flavor,
            ..IpvsOptions::default()
        }
    }

    /// The kernel's settings that go with it.
    pub(crate) fn kernel_settings(&self) -> Vec<Setting> {
        let time_s = |time: Option<Duration>| time.map_or(0, seconds);
        let timeouts = Timeouts {
            tcp_s: time_s(self.tcp_timeout),
            tcp_fin_s: time_s(self.tcpfin_timeout),
            udp_s: time_s(self.udp_timeout),
        };
        ipvs::setup::settings(self.strict_arp, &timeouts)
    }
}

/// The kernel counts whole seconds, and takes none for "as it is".
#[cfg(target_os = "linux")]
fn seconds(time: Duration) -> u32 {
    // Times are at most a week.
    let whole = u32::try_from(time.as_secs()).unwrap_or(u32::MAX);
    if time.is_zero() { 0 } else { whole.max(1) }
}

impl RunArgs {
    /// The times between syncs with this backend. kube-proxy's flags have the mode in their names;
    /// they win over those without.
    pub(crate) fn pacing(&self, backend: &str) -> PacerConfig {
        let host = &self.proxy_host;
        let (least, full) = if backend == IPVS {
            (host.ipvs_min_sync_period, host.ipvs_sync_period)
        } else {
            (host.iptables_min_sync_period, host.iptables_sync_period)
        };
        PacerConfig {
            min_sync_period: least.unwrap_or(self.min_sync_period),
            sync_period: full.unwrap_or(self.sync_period),
            ..PacerConfig::default()
        }
    }
}

impl ProxyHostArgs {
    /// What to do to the kernel's settings. `route_localnet`: rules serve node ports on loopback.
    #[cfg(target_os = "linux")]
    pub(crate) fn sysctls(&self, route_localnet: bool) -> SysctlConfig {
        let args = &self.conntrack;
        SysctlConfig {
            conntrack_max_per_core: args.max_per_core,
            conntrack_min: args.min,
            conntrack_tcp_timeout_established_s: seconds(args.tcp_timeout_established),
            conntrack_tcp_timeout_close_wait_s: seconds(args.tcp_timeout_close_wait),
            conntrack_tcp_be_liberal: args.tcp_be_liberal,
            conntrack_udp_timeout_s: seconds(args.udp_timeout),
            conntrack_udp_timeout_stream_s: seconds(args.udp_timeout_stream),
            route_localnet,
        }
    }

    /// The flags of kube-proxy that were given and have no equal, each with what to do.
    pub(crate) fn warnings(&self) -> Vec<String> {
        self.kube_proxy_only.warnings()
    }
}

impl KubeProxyOnlyArgs {
    fn warnings(&self) -> Vec<String> {
        const LOG: &str = "choose what is logged with --log-level and --log-format";
        const HEALTH: &str = "health checks are answered at the node's own addresses";
        const PACE: &str = "the watch of the API server sets its own pace";
        let flags = [
            ("oom-score-adj", &self.oom_score_adj, "set OOMScoreAdjust= in the unit"),
            ("config-sync-period", &self.config_sync_period, "objects are watched"),
            ("feature-gates", &self.feature_gates, "there are no feature gates here"),
            ("master", &self.master, "name the API server in the kubeconfig"),
            ("kube-api-qps", &self.kube_api_qps, PACE),
            ("kube-api-burst", &self.kube_api_burst, PACE),
            ("kube-api-content-type", &self.kube_api_content_type, PACE),
            (
                "show-hidden-metrics-for-version",
                &self.show_hidden_metrics_for_version,
                "no metric is hidden here",
            ),
            ("profiling", &self.profiling, "there is no /debug/pprof; use perf"),
            ("bind-address-hard-fail", &self.bind_address_hard_fail, "a busy port always ends us"),
            ("v", &self.v, LOG),
            ("vmodule", &self.vmodule, LOG),
            ("logging-format", &self.logging_format, LOG),
            ("windows-service", &self.windows_service, "use `telaio service install`"),
            ("forward-healthcheck-vip", &self.forward_healthcheck_vip, HEALTH),
            ("root-hnsendpoint-name", &self.root_hnsendpoint_name, HEALTH),
        ];
        let given = flags.into_iter().filter_map(|(flag, value, why)| {
            let value = value.as_ref()?;
            Some(format!("--{flag}={value} is not used: {why}"))
        });
        given.collect()
    }
}

/// Zero leaves a time as it is.
fn unless_zero(time: Duration) -> Option<Duration> {
    Some(time).filter(|time| !time.is_zero())
}

#[cfg(test)]
mod tests;
