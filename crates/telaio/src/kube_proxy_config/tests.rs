//! A full configuration in each mode, the one that kubeadm writes, and what is refused.

use std::collections::{BTreeMap, BTreeSet};

use super::fields::{FIELDS, Modes};
use super::*;

/// The head of every configuration here.
const HEAD: &str = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n";

/// Every field of v1alpha1 with a value that says something.
const FULL: &str = "\
featureGates: {NFTablesProxyMode: true}
clientConnection:
  kubeconfig: /var/lib/kube-proxy/kubeconfig.conf
  acceptContentTypes: application/json
  contentType: application/vnd.kubernetes.protobuf
  qps: 5.5
  burst: 10
logging:
  format: json
  flushFrequency: 5s
  verbosity: 2
  vmodule: [{filePattern: proxier, verbosity: 4}]
  options: {json: {infoBufferSize: 1Ki, splitStream: true}}
hostnameOverride: ' Loom-A '
bindAddress: 192.0.2.1
healthzBindAddress: 0.0.0.0:10256
metricsBindAddress: 127.0.0.1
bindAddressHardFail: true
enableProfiling: true
showHiddenMetricsForVersion: '1.36'
iptables:
  masqueradeBit: 15
  masqueradeAll: true
  localhostNodePorts: false
  snatNodeInternalIP: true
  syncPeriod: 31s
  minSyncPeriod: 1s
ipvs:
  syncPeriod: 32s
  minSyncPeriod: 2s
  scheduler: wrr
  excludeCIDRs: [10.1.0.0/16, 'fd01::/64']
  strictARP: true
  tcpTimeout: 15m0s
  tcpFinTimeout: 2m0s
  udpTimeout: 5m0s
nftables:
  masqueradeBit: 16
  masqueradeAll: true
  syncPeriod: 33s
  minSyncPeriod: 3s
winkernel:
  networkName: l2
  sourceVip: 192.0.2.9
  enableDSR: true
  rootHnsEndpointName: cbr0
  forwardHealthCheckVip: true
detectLocalMode: BridgeInterface
detectLocal:
  bridgeInterface: cni0
  interfaceNamePrefix: veth
clusterCIDR: 10.244.0.0/16, fd00:10:244::/56
nodePortAddresses: [10.0.0.0/8, localhost]
oomScoreAdj: -999
conntrack:
  maxPerCore: 0
  min: 1000
  tcpEstablishedTimeout: 24h0m0s
  tcpCloseWaitTimeout: 0s
  tcpBeLiberal: true
  udpTimeout: 30s
  udpStreamTimeout: 3m0s
configSyncPeriod: 15m0s
portRange: 1000-2000
windowsRunAsService: true
";

fn read(text: &str) -> Result<KubeProxyConfig, String> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("config.conf");
    std::fs::write(&path, text).unwrap();
    KubeProxyConfig::read(&path).map_err(|error| error.to_string())
}

fn read_body(body: &str) -> KubeProxyConfig {
    read(&format!("{HEAD}{body}")).unwrap()
}

fn options(config: &KubeProxyConfig) -> BTreeMap<&str, String> {
    let entries = config.entries.iter();
    entries.map(|entry| (entry.key.as_str(), entry.values.join("|"))).collect()
}

/// The fields that warnings name.
fn warned(config: &KubeProxyConfig) -> BTreeSet<String> {
    let field = |warning: &String| {
        let (_, rest) = warning.split_once("config.conf: ").unwrap();
        rest.split_once(": ").unwrap().0.to_owned()
    };
    config.warnings.iter().map(field).collect()
}

/// What the full configuration sets in every mode.
const ALWAYS: &[(&str, &str)] = &[
    ("kubeconfig", "/var/lib/kube-proxy/kubeconfig.conf"),
    ("log-format", "json"),
    ("node", "loom-a"),
    ("bind-address", "192.0.2.1"),
    ("healthz-bind-address", "0.0.0.0:10256"),
    ("metrics-bind-address", "127.0.0.1"),
    ("detect-local-mode", "BridgeInterface"),
    ("pod-bridge-interface", "cni0"),
    ("pod-interface-name-prefix", "veth"),
    ("cluster-cidr", "10.244.0.0/16,fd00:10:244::/56"),
    ("nodeport-addresses", "10.0.0.0/8|localhost"),
    ("conntrack-max-per-core", "0"),
    ("conntrack-min", "1000"),
    ("conntrack-tcp-timeout-established", "24h0m0s"),
    ("conntrack-tcp-timeout-close-wait", "0s"),
    ("conntrack-tcp-be-liberal", "true"),
    ("conntrack-udp-timeout", "30s"),
    ("conntrack-udp-timeout-stream", "3m0s"),
];

/// What it sets besides in one mode.
const BY_MODE: &[(&str, &[(&str, &str)])] = &[
    (
        "iptables",
        &[
            ("backend", "iptables"),
            ("masquerade-bit", "15"),
            ("masquerade-all", "true"),
            ("iptables-localhost-nodeports", "false"),
            ("sync-period", "31s"),
            ("min-sync-period", "1s"),
        ],
    ),
    (
        "ipvs",
        &[
            ("backend", "ipvs"),
            ("masquerade-bit", "15"),
            ("masquerade-all", "true"),
            ("sync-period", "32s"),
            ("min-sync-period", "2s"),
            ("ipvs-scheduler", "wrr"),
            ("ipvs-exclude-cidrs", "10.1.0.0/16|fd01::/64"),
            ("ipvs-strict-arp", "true"),
            ("ipvs-tcp-timeout", "15m0s"),
            ("ipvs-tcpfin-timeout", "2m0s"),
            ("ipvs-udp-timeout", "5m0s"),
        ],
    ),
    (
        "nftables",
        &[
            ("backend", "nftables"),
            ("masquerade-bit", "16"),
            ("masquerade-all", "true"),
            ("sync-period", "33s"),
            ("min-sync-period", "3s"),
        ],
    ),
    (
        "kernelspace",
        &[
            ("backend", "kernelspace"),
            ("network-name", "l2"),
            ("source-vip", "192.0.2.9"),
            ("enable-dsr", "true"),
        ],
    ),
];

#[test]
fn every_field_of_a_full_configuration_becomes_an_option_or_a_warning() {
    for (mode, of_mode) in BY_MODE {
        let config = read_body(&format!("{FULL}mode: {mode}\n"));
        let expected: BTreeMap<&str, String> =
            ALWAYS.iter().chain(*of_mode).map(|(key, value)| (*key, (*value).into())).collect();
        assert_eq!(options(&config), expected, "{mode}");
        let mut expected = BTreeSet::from(
            [
                "featureGates",
                "clientConnection.acceptContentTypes",
                "clientConnection.contentType",
                "clientConnection.qps",
                "clientConnection.burst",
                "logging.flushFrequency",
                "logging.verbosity",
                "logging.vmodule",
                "logging.options",
                "enableProfiling",
                "showHiddenMetricsForVersion",
                "windowsRunAsService",
                "oomScoreAdj",
                "configSyncPeriod",
                "portRange",
            ]
            .map(str::to_owned),
        );
        let of_mode: &[&str] = match *mode {
            "iptables" => &["iptables.snatNodeInternalIP"],
            "kernelspace" => &["winkernel.rootHnsEndpointName", "winkernel.forwardHealthCheckVip"],
            _ => &[],
        };
        expected.extend(of_mode.iter().copied().map(str::to_owned));
        assert_eq!(warned(&config), expected, "{mode}");
        assert_eq!(config.warnings.len(), expected.len(), "one warning each");
    }
}

/// So that whoever adds a field to the table adds it to the test.
#[test]
fn the_full_configuration_has_every_field_of_the_table() {
    let tree: Value = serde_saphyr::from_str(&format!("{HEAD}{FULL}mode: ipvs\n")).unwrap();
    // kube-proxy's newer and older types have these; they are tested below.
    let elsewhere = [
        "nodeIPOverride",
        "windows.runAsService",
        "detectLocal.clusterCIDRs",
        "linux.oomScoreAdj",
        "linux.masqueradeAll",
        "syncPeriod",
        "minSyncPeriod",
        "udpIdleTimeout",
        "resourceContainer",
    ];
    for field in FIELDS {
        let pointer = format!("/{}", field.path.replace('.', "/"));
        let is_there = tree.pointer(&pointer).is_some();
        assert_eq!(is_there, !elsewhere.contains(&field.path), "{}", field.path);
        let mode_named = field.path.split_once('.').map(|(group, _)| group);
        if matches!(mode_named, Some("iptables" | "ipvs" | "nftables" | "winkernel")) {
            assert_ne!(field.modes, Modes::All, "{}", field.path);
        }
    }
}

#[test]
fn every_option_that_a_field_sets_is_one_that_run_takes() {
    let command = crate::settings::command();
    let run = command.find_subcommand("run").unwrap();
    let known: BTreeSet<&str> = run.get_arguments().filter_map(clap::Arg::get_long).collect();
    for field in FIELDS {
        if let Becomes::Option(option) = field.becomes {
            assert!(known.contains(option), "{}: {option}", field.path);
        }
    }
}

#[test]
fn the_names_of_newer_and_older_types_are_known_too() {
    let config = read_body(
        "\
nodeIPOverride: [192.0.2.1, 'fd00::1']
syncPeriod: 40s
minSyncPeriod: 4s
linux:
  conntrack: {min: 7, tcpEstablishedTimeout: 1h0m0s}
  masqueradeAll: true
  oomScoreAdj: -5
windows: {runAsService: true}
detectLocal: {clusterCIDRs: [10.0.0.0/8, 'fd00::/8']}
udpIdleTimeout: 250ms
resourceContainer: /kube-proxy
",
    );
    let expected = BTreeMap::from([
        ("bind-address", "192.0.2.1|fd00::1".to_owned()),
        ("sync-period", "40s".to_owned()),
        ("min-sync-period", "4s".to_owned()),
        ("conntrack-min", "7".to_owned()),
        ("conntrack-tcp-timeout-established", "1h0m0s".to_owned()),
        ("masquerade-all", "true".to_owned()),
        ("cluster-cidr", "10.0.0.0/8|fd00::/8".to_owned()),
    ]);
    assert_eq!(options(&config), expected);
    let expected =
        ["linux.oomScoreAdj", "windows.runAsService", "udpIdleTimeout", "resourceContainer"];
    assert_eq!(warned(&config), expected.map(str::to_owned).into());
}

#[test]
fn what_kubeadm_writes_out_empty_says_nothing() {
    let config = read_body(
        "\
bindAddress: 0.0.0.0
bindAddressHardFail: false
clientConnection: {acceptContentTypes: '', burst: 0, contentType: '', kubeconfig: /k, qps: 0}
clusterCIDR: 10.244.0.0/16
configSyncPeriod: 0s
conntrack:
  maxPerCore: null
  min: null
  tcpBeLiberal: false
  tcpCloseWaitTimeout: null
  tcpEstablishedTimeout: null
  udpStreamTimeout: 0s
  udpTimeout: 0s
detectLocal: {bridgeInterface: '', interfaceNamePrefix: ''}
detectLocalMode: ''
enableProfiling: false
healthzBindAddress: ''
hostnameOverride: ''
iptables:
  localhostNodePorts: null
  masqueradeAll: false
  masqueradeBit: null
  minSyncPeriod: 0s
  syncPeriod: 0s
ipvs:
  excludeCIDRs: null
  minSyncPeriod: 0s
  scheduler: ''
  strictARP: false
  syncPeriod: 0s
  tcpFinTimeout: 0s
  tcpTimeout: 0s
  udpTimeout: 0s
logging:
  flushFrequency: 0
  options: {json: {infoBufferSize: '0'}, text: {infoBufferSize: '0'}}
  verbosity: 0
metricsBindAddress: ''
mode: ''
nftables: {masqueradeAll: false, masqueradeBit: null, minSyncPeriod: 0s, syncPeriod: 0s}
nodePortAddresses: null
oomScoreAdj: null
portRange: ''
showHiddenMetricsForVersion: ''
winkernel:
  enableDSR: false
  forwardHealthCheckVip: false
  networkName: ''
  rootHnsEndpointName: ''
  sourceVip: ''
",
    );
    assert_eq!(config.warnings, Vec::<String>::new());
    let expected = [("cluster-cidr", "10.244.0.0/16".to_owned()), ("kubeconfig", "/k".to_owned())];
    assert_eq!(options(&config), expected.into());
}

#[test]
fn json_is_read_too() {
    let json = r#"{"apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration", "mode": "ipvs", "ipvs": {"scheduler": "lc"}}"#;
    let config = read(json).unwrap();
    assert_eq!(options(&config)["ipvs-scheduler"], "lc");
}

#[test]
fn where_kube_proxy_has_another_default_it_is_taken_over() {
    let config = read_body("mode: nftables\n");
    assert_eq!(options(&config)["nodeport-addresses"], "primary");
    let config = read_body("bindAddress: 'fd00::1'\n");
    assert_eq!(options(&config)["healthz-bind-address"], "::");
    assert_eq!(options(&config)["metrics-bind-address"], "::1");
    let config = read_body("bindAddress: '::'\nmetricsBindAddress: '[::]:1'\n");
    assert_eq!(options(&config)["healthz-bind-address"], "::");
    assert_eq!(options(&config)["metrics-bind-address"], "[::]:1");
    assert!(!options(&config).contains_key("bind-address"));
}

#[test]
fn a_field_that_nobody_knows_is_named_and_the_rest_is_used() {
    let config =
        read_body("clusterCidr: 10.0.0.0/8\niptables: {masquerade: 1}\nclusterCIDR: 1.0.0.0/8\n");
    assert_eq!(warned(&config), ["clusterCidr", "iptables.masquerade"].map(str::to_owned).into());
    assert!(config.warnings[0].contains("\"10.0.0.0/8\" is not used"), "{:?}", config.warnings);
    assert_eq!(options(&config)["cluster-cidr"], "1.0.0.0/8");
}

#[test]
fn what_is_not_such_a_configuration_is_refused() {
    for (text, said) in [
        ("- a\n", "is not a KubeProxyConfiguration"),
        ("kind: Pod\n", "kind: expected KubeProxyConfiguration"),
        ("kind: ConfigMap\n", "config.conf"),
        ("kind: KubeProxyConfiguration\n", "apiVersion: expected kubeproxy.config.k8s.io/v1alpha1"),
        ("a: [\n", "config.conf: "),
    ] {
        let error = read(text).unwrap_err();
        assert!(error.contains(said), "{text}: {error}");
    }
}

#[test]
fn a_value_of_the_wrong_kind_names_file_field_and_what_is_expected() {
    for (body, said) in [
        ("mode: userspace", "mode: \"userspace\" is no mode; expected iptables, ipvs, nftables"),
        ("mode: 1", "mode: expected a text"),
        ("clusterCIDR: [10.0.0.0/8]", "clusterCIDR: [\"10.0.0.0/8\"] cannot be: expected a text"),
        (
            "iptables: {masqueradeAll: 1}",
            "iptables.masqueradeAll: 1 cannot be: expected true or false",
        ),
        ("conntrack: {min: many}", "conntrack.min: \"many\" cannot be: expected a whole number"),
        (
            "conntrack: {udpTimeout: 3}",
            "conntrack.udpTimeout: 3 cannot be: expected a time such as",
        ),
        ("nodePortAddresses: primary", "nodePortAddresses: \"primary\" cannot be: expected a list"),
        ("nodePortAddresses: [1]", "nodePortAddresses: [1] cannot be: expected a list"),
        ("iptables: 7", "iptables: expected a map of fields"),
        // Also in a group that does not count: kube-proxy would not start.
        ("ipvs: {strictARP: perhaps}", "ipvs.strictARP: \"perhaps\" cannot be"),
    ] {
        let error = read(&format!("{HEAD}{body}\n")).unwrap_err();
        assert!(error.contains(&format!("config.conf: {said}")), "{body}: {error}");
    }
}
