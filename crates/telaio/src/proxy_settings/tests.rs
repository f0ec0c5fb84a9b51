//! What options mean together, from the command line on.

use clap::FromArgMatches;
use telaio_model::IpFamily;
use telaio_service_proxy::config::{LocalSources, NodeFacts};

use super::*;
use crate::cli::{Cli, Command};

fn run_args(flags: &[&str]) -> RunArgs {
    let args = ["telaio", "run"].iter().chain(flags);
    let matches = crate::settings::command().try_get_matches_from(args).unwrap();
    match Cli::from_arg_matches(&matches).unwrap().command {
        Command::Run(args) => *args,
        other => panic!("not run: {other:?}"),
    }
}

fn settings_from(flags: &[&str], source: &str) -> Result<ProxySettings, String> {
    let args = run_args(flags);
    let settings = args.proxy.settings("nftables", &args.source, &source.parse().unwrap());
    settings.map_err(|error| match error {
        CommandError::BadInput(error) => error.to_string(),
        CommandError::Failed(error) => panic!("not bad input: {error}"),
    })
}

fn settings(flags: &[&str]) -> ProxySettings {
    settings_from(flags, "kube").unwrap()
}

fn nets(texts: &[&str]) -> Vec<IpNet> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

#[test]
fn without_options_it_is_as_kube_proxy_without_options() {
    let ProxySettings { config, node_addresses, ipvs, hcn, warnings } = settings(&[]);
    assert_eq!(config, ProxyConfig::default());
    assert_eq!(config.detect_local, DetectLocal::Nowhere);
    assert_eq!(config.node_port_addresses, NodePortAddresses::All);
    assert!(config.localhost_node_ports);
    assert_eq!(node_addresses, Vec::<IpAddr>::new());
    assert_eq!(ipvs, IpvsSettings::default());
    assert_eq!(hcn, HcnOptions::default());
    assert_eq!(warnings, Vec::<String>::new());
}

#[test]
fn pods_are_told_by_the_way_that_was_chosen() {
    let cidrs = ["--cluster-cidr=10.244.0.0/16,fd00::/56"];
    for (flags, expected) in [
        (vec![cidrs[0]], DetectLocal::ClusterCidr(nets(&["10.244.0.0/16", "fd00::/56"]))),
        (vec!["--detect-local-mode=ClusterCIDR"], DetectLocal::Nowhere),
        (vec!["--detect-local-mode=NodeCIDR", cidrs[0]], DetectLocal::NodeCidr),
        (
            vec!["--detect-local-mode=BridgeInterface", "--pod-bridge-interface=cni0"],
            DetectLocal::BridgeInterface("cni0".into()),
        ),
        (
            vec!["--detect-local-mode=InterfaceNamePrefix", "--pod-interface-name-prefix=veth"],
            DetectLocal::InterfaceNamePrefix("veth".into()),
        ),
    ] {
        assert_eq!(settings(&flags).config.detect_local, expected, "{flags:?}");
    }
    let config = settings(&["--cluster-cidr=10.244.0.0/16"]).config;
    let of = |family| LocalSources::new(&config, &NodeFacts::default(), family);
    assert_eq!(of(IpFamily::V4), LocalSources::Networks(nets(&["10.244.0.0/16"])));
    assert_eq!(of(IpFamily::V6), LocalSources::Nowhere);
}

#[test]
fn node_ports_are_served_where_it_was_said_and_on_loopback_only_if_that_is_among_it() {
    let within = |texts: &[&str]| NodePortAddresses::Within(nets(texts));
    for (flag, expected, localhost) in [
        ("all", NodePortAddresses::All, true),
        ("all,10.0.0.0/8", NodePortAddresses::All, true),
        ("primary", NodePortAddresses::Primary, false),
        ("primary,localhost", NodePortAddresses::Primary, true),
        ("10.0.0.0/8", within(&["10.0.0.0/8"]), false),
        ("10.0.0.0/8,127.0.0.0/8", within(&["10.0.0.0/8", "127.0.0.0/8"]), true),
        ("127.0.0.1/32", within(&["127.0.0.1/32"]), true),
        ("0.0.0.0/0", within(&["0.0.0.0/0"]), true),
        ("localhost", within(&[]), true),
        ("::1/128", within(&["::1/128"]), true),
    ] {
        let flag = format!("--nodeport-addresses={flag}");
        let config = settings(&[&flag]).config;
        assert_eq!(config.node_port_addresses, expected, "{flag}");
        assert_eq!(config.localhost_node_ports, localhost, "{flag}");
    }
    assert!(!settings(&["--iptables-localhost-nodeports=false"]).config.localhost_node_ports);
}

#[test]
fn options_that_do_not_go_together_are_bad_input_and_named() {
    for (flags, said) in [
        (vec!["--detect-local-mode=BridgeInterface"], "needs --pod-bridge-interface"),
        (vec!["--detect-local-mode=InterfaceNamePrefix"], "needs --pod-interface-name-prefix"),
        (vec!["--nodeport-addresses=primary,10.0.0.0/8"], "--nodeport-addresses: primary and"),
        (vec!["--bind-address=192.0.2.1,192.0.2.2"], "--bind-address: give one address"),
    ] {
        let error = settings_from(&flags, "kube").unwrap_err();
        assert!(error.contains(said), "{flags:?}: {error}");
    }
}

#[test]
fn the_nodes_address_can_be_given_and_any_address_is_none() {
    let addresses = |flag: &str| settings(&[flag]).node_addresses;
    assert_eq!(addresses("--bind-address=192.0.2.1,fd00::1").len(), 2);
    assert_eq!(addresses("--bind-address=0.0.0.0"), Vec::<IpAddr>::new());
    assert_eq!(addresses("--bind-address=::"), Vec::<IpAddr>::new());
}

#[test]
fn the_networks_of_services_are_ours_to_know_only_with_a_directory() {
    let flags = ["--service-cidr=10.0.0.0/24"];
    let of = |source: &str| settings_from(&flags, source).unwrap().config.service_cidrs;
    assert_eq!(of("dir:/m"), nets(&["10.0.0.0/24"]));
    assert_eq!(of("kube"), nets(&[]));
    assert_eq!(of("brain:http://b:12090"), nets(&[]));
}

#[test]
fn what_only_ipvs_has_is_named_when_another_backend_runs() {
    let flags = [
        "--ipvs-scheduler=mh",
        "--ipvs-strict-arp",
        "--ipvs-exclude-cidrs=10.1.0.0/16",
        "--ipvs-tcp-timeout=15m",
        "--ipvs-udp-timeout=0s",
    ];
    let args = run_args(&flags);
    let of = |backend| args.proxy.settings(backend, &args.source, &SourceSpec::Kube(None)).unwrap();
    let warnings = of("nftables").warnings;
    assert_eq!(warnings.len(), flags.len());
    assert_eq!(warnings[0], "--ipvs-scheduler has no effect with nftables");
    let settings = of("ipvs");
    assert_eq!(settings.warnings, Vec::<String>::new());
    assert_eq!(
        settings.ipvs,
        IpvsSettings {
            scheduler: Some("mh".into()),
            exclude_cidrs: nets(&["10.1.0.0/16"]),
            strict_arp: true,
            tcp_timeout: Some(Duration::from_mins(15)),
            tcpfin_timeout: None,
            udp_timeout: None,
        }
    );
}

#[test]
fn periods_with_a_mode_in_their_name_are_for_that_mode() {
    let args = run_args(&[
        "--min-sync-period=5ms",
        "--iptables-min-sync-period=1s",
        "--ipvs-sync-period=1m0s",
    ]);
    let periods = |backend| {
        let pacing = args.pacing(backend);
        (pacing.min_sync_period, pacing.sync_period)
    };
    let of_both = (Duration::from_secs(1), Duration::from_secs(30));
    assert_eq!(periods("iptables"), of_both);
    assert_eq!(periods("nftables"), of_both);
    assert_eq!(periods("ipvs"), (Duration::from_millis(5), Duration::from_mins(1)));
}

#[cfg(target_os = "linux")]
#[test]
fn the_table_of_connections_is_as_kube_proxys_unless_it_is_said_otherwise() {
    let sysctls = |flags: &[&str]| run_args(flags).proxy_host.sysctls(false);
    assert_eq!(sysctls(&[]), SysctlConfig::default());
    let asked = sysctls(&[
        "--conntrack-max-per-core=0",
        "--conntrack-min=1",
        "--conntrack-tcp-timeout-established=0",
        "--conntrack-tcp-timeout-close-wait=1m30s",
        "--conntrack-tcp-be-liberal",
        "--conntrack-udp-timeout=30s",
        "--conntrack-udp-timeout-stream=3m0s",
    ]);
    let expected = SysctlConfig {
        conntrack_max_per_core: 0,
        conntrack_min: 1,
        conntrack_tcp_timeout_established_s: 0,
        conntrack_tcp_timeout_close_wait_s: 90,
        conntrack_tcp_be_liberal: true,
        conntrack_udp_timeout_s: 30,
        conntrack_udp_timeout_stream_s: 180,
        route_localnet: false,
    };
    assert_eq!(asked, expected);
}

#[test]
fn flags_of_kube_proxys_that_have_no_equal_are_named() {
    let args = run_args(&[
        "--feature-gates=A=true",
        "--oom-score-adj",
        "-999",
        "--config-sync-period=15m",
    ]);
    let warnings = args.proxy_host.warnings();
    assert_eq!(warnings.len(), 3);
    assert!(warnings[0].starts_with("--oom-score-adj=-999 is not used: "), "{warnings:?}");
}

#[test]
fn options_of_windows_are_for_hcn_and_a_warning_elsewhere() {
    let flags = ["--network-name=pods", "--source-vip=10.244.1.2,fd00::2", "--enable-dsr"];
    let args = run_args(&flags);
    let of = |backend| args.proxy.settings(backend, &args.source, &"kube".parse().unwrap());
    let settings = of("hcn").unwrap_or_else(|_| panic!("is taken"));
    assert_eq!(settings.warnings, Vec::<String>::new());
    assert_eq!(settings.hcn.network_name.as_deref(), Some("pods"));
    assert_eq!(settings.hcn.source_vips.len(), 2);
    assert_eq!(settings.hcn.enable_dsr, Some(true));
    let elsewhere = of("nftables").unwrap_or_else(|_| panic!("is taken"));
    let expected = ["--network-name", "--source-vip", "--enable-dsr"]
        .map(|flag| format!("{flag} has no effect with nftables"));
    assert_eq!(elsewhere.warnings, expected);
    let error = settings_from(&["--source-vip=10.0.0.1,10.0.0.2"], "kube").unwrap_err();
    assert!(error.contains("--source-vip: give one address, or one of each family"), "{error}");
}
