//! Every field of a KubeProxyConfiguration, and what becomes of it.
//!
//! `v1alpha1` in all its releases, together with the names that kube-proxy's own types have for some
//! of its fields since 1.33 (`linux.*`, `windows.*`, `detectLocal.clusterCIDRs`, the periods at the
//! top), which a later version of the API will bring.

/// A field.
#[derive(Debug)]
pub(super) struct Field {
    /// Its name, with the names of what it is in.
    pub(super) path: &'static str,
    /// What it holds.
    pub(super) shape: Shape,
    /// With which modes it counts.
    pub(super) modes: Modes,
    /// Zero and false are values, and not the same as leaving it out.
    pub(super) zero_counts: bool,
    /// What it becomes.
    pub(super) becomes: Becomes,
}

/// What a field holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shape {
    /// A text.
    Text,
    /// True or false.
    Bool,
    /// A whole number.
    Whole,
    /// A time in Go's form.
    Time,
    /// A list of texts.
    List,
    /// Whatever; it is not used.
    Any,
}

/// A mode of kube-proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    /// Also when none is named.
    Iptables,
    /// IPVS.
    Ipvs,
    /// nftables.
    Nftables,
    /// Windows.
    Kernelspace,
}

/// The modes with which a field counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Modes {
    /// Every one.
    All,
    /// This one.
    Only(Mode),
    /// These two.
    Both(Mode, Mode),
}

impl Modes {
    /// Whether a mode is one of them.
    pub(super) fn contain(self, mode: Mode) -> bool {
        match self {
            Self::All => true,
            Self::Only(only) => only == mode,
            Self::Both(one, other) => one == mode || other == mode,
        }
    }
}

/// What a field becomes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Becomes {
    /// This option.
    Option(&'static str),
    /// Nothing: it says what we do anyway.
    Nothing,
    /// A warning with this reason.
    Warning(&'static str),
}

use Becomes::{Nothing, Option as Sets, Warning};
use Shape::{Any, Bool, List, Text, Time, Whole};

const ALWAYS: Modes = Modes::All;
const IPTABLES: Modes = Modes::Only(Mode::Iptables);
const IPVS: Modes = Modes::Only(Mode::Ipvs);
const NFTABLES: Modes = Modes::Only(Mode::Nftables);
const WINDOWS: Modes = Modes::Only(Mode::Kernelspace);
/// kube-proxy's ipvs mode masquerades by iptables rules.
const IPTABLES_AND_IPVS: Modes = Modes::Both(Mode::Iptables, Mode::Ipvs);

const fn field(path: &'static str, shape: Shape, modes: Modes, becomes: Becomes) -> Field {
    Field { path, shape, modes, zero_counts: false, becomes }
}

/// A field whose zero is a value: a pointer in kube-proxy's types.
const fn exact(path: &'static str, shape: Shape, modes: Modes, becomes: Becomes) -> Field {
    Field { path, shape, modes, zero_counts: true, becomes }
}

const NO_GATES: &str = "there are no feature gates here; remove it";
const OWN_PACE: &str = "the watch of the API server sets its own pace; remove it";
const HEALTH: &str = "health checks are answered at the node's own addresses";
const SERVICE: &str = "have it run as a service by `telaio service install`";
const USERSPACE: &str = "it was for the userspace mode, which kube-proxy no longer has either";
const OOM: &str = "set OOMScoreAdjust= in the unit, or the pod's resources and priority class";
const LOGGING: &str = "choose what is logged with --log-level and --log-format";
const SNAT: &str = "masqueraded traffic gets the address of the interface that it leaves by";

/// All of them.
pub(super) const FIELDS: &[Field] = &[
    field("apiVersion", Text, ALWAYS, Nothing),
    field("kind", Text, ALWAYS, Nothing),
    field("featureGates", Any, ALWAYS, Warning(NO_GATES)),
    field("clientConnection.kubeconfig", Text, ALWAYS, Sets("kubeconfig")),
    field("clientConnection.acceptContentTypes", Text, ALWAYS, Warning(OWN_PACE)),
    field("clientConnection.contentType", Text, ALWAYS, Warning(OWN_PACE)),
    field("clientConnection.qps", Any, ALWAYS, Warning(OWN_PACE)),
    field("clientConnection.burst", Any, ALWAYS, Warning(OWN_PACE)),
    field("logging.format", Text, ALWAYS, Sets("log-format")),
    field("logging.flushFrequency", Any, ALWAYS, Warning(LOGGING)),
    field("logging.verbosity", Any, ALWAYS, Warning(LOGGING)),
    field("logging.vmodule", Any, ALWAYS, Warning(LOGGING)),
    field("logging.options", Any, ALWAYS, Warning(LOGGING)),
    field("hostnameOverride", Text, ALWAYS, Sets("node")),
    field("bindAddress", Text, ALWAYS, Sets("bind-address")),
    field("nodeIPOverride", List, ALWAYS, Sets("bind-address")),
    field("healthzBindAddress", Text, ALWAYS, Sets("healthz-bind-address")),
    field("metricsBindAddress", Text, ALWAYS, Sets("metrics-bind-address")),
    // A port that cannot be taken always ends us.
    field("bindAddressHardFail", Bool, ALWAYS, Nothing),
    field("enableProfiling", Bool, ALWAYS, Warning("there is no /debug/pprof; use perf")),
    field(
        "showHiddenMetricsForVersion",
        Text,
        ALWAYS,
        Warning("no metric is hidden here; remove it"),
    ),
    field("mode", Text, ALWAYS, Sets("backend")),
    exact("iptables.masqueradeBit", Whole, IPTABLES_AND_IPVS, Sets("masquerade-bit")),
    field("iptables.masqueradeAll", Bool, IPTABLES_AND_IPVS, Sets("masquerade-all")),
    exact("iptables.localhostNodePorts", Bool, IPTABLES, Sets("iptables-localhost-nodeports")),
    field("iptables.snatNodeInternalIP", Bool, IPTABLES, Warning(SNAT)),
    field("iptables.syncPeriod", Time, IPTABLES, Sets("sync-period")),
    field("iptables.minSyncPeriod", Time, IPTABLES, Sets("min-sync-period")),
    field("ipvs.syncPeriod", Time, IPVS, Sets("sync-period")),
    field("ipvs.minSyncPeriod", Time, IPVS, Sets("min-sync-period")),
    field("ipvs.scheduler", Text, IPVS, Sets("ipvs-scheduler")),
    field("ipvs.excludeCIDRs", List, IPVS, Sets("ipvs-exclude-cidrs")),
    field("ipvs.strictARP", Bool, IPVS, Sets("ipvs-strict-arp")),
    field("ipvs.tcpTimeout", Time, IPVS, Sets("ipvs-tcp-timeout")),
    field("ipvs.tcpFinTimeout", Time, IPVS, Sets("ipvs-tcpfin-timeout")),
    field("ipvs.udpTimeout", Time, IPVS, Sets("ipvs-udp-timeout")),
    exact("nftables.masqueradeBit", Whole, NFTABLES, Sets("masquerade-bit")),
    field("nftables.masqueradeAll", Bool, NFTABLES, Sets("masquerade-all")),
    field("nftables.syncPeriod", Time, NFTABLES, Sets("sync-period")),
    field("nftables.minSyncPeriod", Time, NFTABLES, Sets("min-sync-period")),
    field("winkernel.networkName", Text, WINDOWS, Sets("network-name")),
    field("winkernel.sourceVip", Text, WINDOWS, Sets("source-vip")),
    exact("winkernel.enableDSR", Bool, WINDOWS, Sets("enable-dsr")),
    field("winkernel.rootHnsEndpointName", Text, WINDOWS, Warning(HEALTH)),
    field("winkernel.forwardHealthCheckVip", Bool, WINDOWS, Warning(HEALTH)),
    field("windowsRunAsService", Bool, ALWAYS, Warning(SERVICE)),
    field("windows.runAsService", Bool, ALWAYS, Warning(SERVICE)),
    field("detectLocalMode", Text, ALWAYS, Sets("detect-local-mode")),
    field("detectLocal.bridgeInterface", Text, ALWAYS, Sets("pod-bridge-interface")),
    field("detectLocal.interfaceNamePrefix", Text, ALWAYS, Sets("pod-interface-name-prefix")),
    field("detectLocal.clusterCIDRs", List, ALWAYS, Sets("cluster-cidr")),
    field("clusterCIDR", Text, ALWAYS, Sets("cluster-cidr")),
    field("nodePortAddresses", List, ALWAYS, Sets("nodeport-addresses")),
    field("oomScoreAdj", Whole, ALWAYS, Warning(OOM)),
    field("linux.oomScoreAdj", Whole, ALWAYS, Warning(OOM)),
    field("linux.masqueradeAll", Bool, ALWAYS, Sets("masquerade-all")),
    exact("conntrack.maxPerCore", Whole, ALWAYS, Sets("conntrack-max-per-core")),
    exact("conntrack.min", Whole, ALWAYS, Sets("conntrack-min")),
    exact(
        "conntrack.tcpEstablishedTimeout",
        Time,
        ALWAYS,
        Sets("conntrack-tcp-timeout-established"),
    ),
    exact("conntrack.tcpCloseWaitTimeout", Time, ALWAYS, Sets("conntrack-tcp-timeout-close-wait")),
    field("conntrack.tcpBeLiberal", Bool, ALWAYS, Sets("conntrack-tcp-be-liberal")),
    field("conntrack.udpTimeout", Time, ALWAYS, Sets("conntrack-udp-timeout")),
    field("conntrack.udpStreamTimeout", Time, ALWAYS, Sets("conntrack-udp-timeout-stream")),
    field("syncPeriod", Time, ALWAYS, Sets("sync-period")),
    field("minSyncPeriod", Time, ALWAYS, Sets("min-sync-period")),
    field(
        "configSyncPeriod",
        Time,
        ALWAYS,
        Warning("objects are watched, and listed anew only when the watch is lost; remove it"),
    ),
    field("portRange", Text, ALWAYS, Warning(USERSPACE)),
    field("udpIdleTimeout", Time, ALWAYS, Warning(USERSPACE)),
    field("resourceContainer", Text, ALWAYS, Warning(USERSPACE)),
];

/// The group of fields that newer types have moved into another one.
const LINUX_CONNTRACK: &str = "linux.conntrack";

/// The field of this name.
pub(super) fn find(path: &str) -> Option<&'static Field> {
    // The same group in its old and its new place.
    let path = match path.strip_prefix("linux.") {
        Some(inner) if inner.starts_with("conntrack.") => inner,
        _ => path,
    };
    FIELDS.iter().find(|field| field.path == path)
}

/// Whether there are fields within this one.
pub(super) fn is_group(path: &str) -> bool {
    let is_within =
        |field: &Field| field.path.strip_prefix(path).is_some_and(|inner| inner.starts_with('.'));
    path == LINUX_CONNTRACK || FIELDS.iter().any(is_within)
}
