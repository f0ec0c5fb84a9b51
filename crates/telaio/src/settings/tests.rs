//! The layers, their order, and what is refused. The environment's layer is tested with the real
//! binary, for a process has but one.

use std::time::Duration;

use super::*;
use crate::cli::{Command, RunArgs};

fn load(config: Option<(&str, &str)>, args: &[&str]) -> Result<Cli, SettingsError> {
    let dir = tempfile::tempdir().unwrap();
    let mut all: Vec<OsString> = vec!["telaio".into()];
    all.extend(args.iter().map(OsString::from));
    if let Some((name, text)) = config {
        let path = dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        all.push("--config".into());
        all.push(path.into());
    }
    Settings::load(all).map(|(_, cli)| cli)
}

fn run(cli: &Cli) -> &RunArgs {
    match &cli.command {
        Command::Run(args) => args,
        other => panic!("not run: {other:?}"),
    }
}

fn message(config: (&str, &str), args: &[&str]) -> String {
    load(Some(config), args).unwrap_err().to_string()
}

#[test]
fn a_flag_wins_over_the_file_and_the_file_over_the_default() {
    let file = ("c.toml", "min-sync-period = \"20ms\"\nnode = \"from-file\"\n");
    let settings = load(Some(file), &["run", "--node", "from-flag"]).unwrap();
    assert_eq!(run(&settings).min_sync_period, Duration::from_millis(20));
    assert_eq!(run(&settings).node.node.as_deref(), Some("from-flag"));
    assert_eq!(run(&settings).sync_period, Duration::from_secs(30));
}

#[test]
fn yaml_and_toml_say_the_same() {
    let toml =
        "source = \"dir:/m\"\nonce = true\nservice-cidr = [\"10.0.0.0/8\", \"fd00::/108\"]\n";
    let yaml = "source: dir:/m\nonce: true\nservice-cidr: [10.0.0.0/8, \"fd00::/108\"]\n";
    let toml = load(Some(("c.toml", toml)), &["run"]).unwrap();
    let yaml = load(Some(("c.yaml", yaml)), &["run"]).unwrap();
    for settings in [&toml, &yaml] {
        let args = run(settings);
        assert_eq!(args.source.source.as_ref().unwrap().to_string(), "dir:/m");
        assert!(args.once);
        assert_eq!(args.source.service_cidr.len(), 2);
    }
}

#[test]
fn a_list_may_be_a_text_with_commas() {
    let file = ("c.toml", "service-cidr = \"10.0.0.0/8,fd00::/108\"");
    let settings = load(Some(file), &["run"]).unwrap();
    assert_eq!(run(&settings).source.service_cidr.len(), 2);
}

#[test]
fn a_flag_without_and_with_a_value() {
    assert!(run(&load(None, &["run", "--once"]).unwrap()).once);
    assert!(!run(&load(None, &["run", "--once=false"]).unwrap()).once);
    let file = ("c.toml", "once = true");
    assert!(!run(&load(Some(file), &["run", "--once=false"]).unwrap()).once);
}

#[test]
fn an_unknown_key_is_refused_with_the_nearest_name() {
    let text = message(("c.toml", "min_sync_perod = \"1s\""), &["run"]);
    assert!(text.contains("c.toml: min_sync_perod:"), "{text}");
    assert!(text.contains("did you mean min-sync-period?"), "{text}");
    let text = message(("c.yaml", "zzz: 1"), &["run"]);
    assert!(!text.contains("did you mean"), "{text}");
}

#[test]
fn the_file_cannot_name_another_file() {
    assert!(message(("c.toml", "config = \"d.toml\""), &["run"]).contains("no such setting"));
}

#[test]
fn a_key_of_another_command_is_taken_and_not_used() {
    let file = ("c.toml", "sync-period = \"1m\"\nadmin-listen = \"127.0.0.1:1\"");
    let settings = load(Some(file), &["status"]).unwrap();
    let Command::Status(args) = &settings.command else { panic!("not status") };
    assert_eq!(args.client.admin_listen.port(), 1);
}

#[test]
fn a_wrong_value_names_file_and_key() {
    for (line, reason) in [
        ("min-sync-period = 10", "is not a time"),
        ("once = \"perhaps\"", "value was not a boolean"),
        ("admin-listen = \"here\"", "invalid socket address"),
        ("source = \"file:/x\"", "is not a source"),
        ("log-level = \"loud\"", "is not a level"),
        ("log-format = \"xml\"", "invalid value"),
        ("planes = [[\"services\"]]", "must be a text"),
        ("node = [\"a\", \"b\"]", "takes one value"),
        ("node = []", "must be a text"),
        ("node = { name = \"a\" }", "must be a text"),
    ] {
        let text = message(("c.toml", line), &["run"]);
        let key = line.split(' ').next().unwrap();
        assert!(text.contains(&format!("c.toml: {key}: ")), "{text}");
        assert!(text.contains(reason), "{text}");
    }
}

#[test]
fn a_broken_file_names_the_line() {
    let text = message(("c.toml", "node = \"a\"\nsource = \n"), &["run"]);
    assert!(text.contains("line 2"), "{text}");
    let text = message(("c.yaml", "node: a\nsource: [\n"), &["run"]);
    assert!(text.contains("c.yaml"), "{text}");
}

#[test]
fn empty_files_change_nothing_and_strange_ones_are_refused() {
    for empty in [("c.toml", ""), ("c.yaml", ""), ("c.yml", "# nothing yet\n---\n")] {
        assert!(load(Some(empty), &["run"]).is_ok(), "{empty:?}");
    }
    assert!(message(("c.ini", "a=b"), &["run"]).contains("ends in .toml, .yaml or .yml"));
    assert!(message(("c.toml", &"#".repeat(2 << 20)), &["run"]).contains("longer than"));
    let missing =
        Settings::load(["telaio", "run", "--config", "/nonexistent.toml"].map(Into::into).into());
    assert!(missing.unwrap_err().to_string().contains("/nonexistent.toml"));
}

#[test]
fn a_reload_says_what_changed_and_flags_stay() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("c.toml");
    std::fs::write(&path, "log-level = \"info\"\nnode = \"a\"\nsync-period = \"1m\"").unwrap();
    let args = ["telaio", "run", "--node", "b", "--config", path.to_str().unwrap()];
    let (mut settings, _) = Settings::load(args.map(Into::into).into()).unwrap();

    std::fs::write(&path, "log-level = \"debug\"\nnode = \"c\"\nadmin-listen = \"127.0.0.1:1\"")
        .unwrap();
    let (new, changed) = settings.reload().unwrap();
    assert_eq!(changed, ["admin-listen", "log-level", "sync-period"]);
    assert_eq!(run(&new).node.node.as_deref(), Some("b"));

    std::fs::write(&path, "log-level = \"loud\"").unwrap();
    assert!(settings.reload().is_err());
}

#[test]
fn every_option_has_an_environment_variable_of_its_name() {
    let command = command();
    for sub in command.get_subcommands() {
        for arg in sub.get_arguments() {
            let Some(name) = option_name(arg) else { continue };
            let variable = format!("TELAIO_{}", name.to_uppercase().replace('-', "_"));
            assert_eq!(arg.get_env().unwrap(), variable.as_str());
        }
    }
}

/// A KubeProxyConfiguration beside a configuration of ours.
fn load_both(theirs: &str, ours: &str, args: &[&str]) -> Result<Cli, SettingsError> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("config.conf");
    let head = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n";
    std::fs::write(&path, format!("{head}{theirs}")).unwrap();
    let mut all = args.to_vec();
    let flag = format!("--kube-proxy-config={}", path.display());
    all.push(&flag);
    load(Some(("c.toml", ours)), &all)
}

#[test]
fn our_file_wins_over_kube_proxys_and_a_flag_over_both() {
    let theirs = "\
mode: iptables
iptables: {minSyncPeriod: 1s, syncPeriod: 1m0s, masqueradeBit: 9}
clusterCIDR: 10.244.0.0/16,fd00::/56
hostnameOverride: Theirs
metricsBindAddress: '::'
clientConnection: {kubeconfig: /k}
oomScoreAdj: -999
";
    let ours = "min-sync-period = \"2s\"\niptables-masquerade-bit = 8\n";
    let cli = load_both(theirs, ours, &["run", "--masquerade-bit=7"]).unwrap();
    let args = run(&cli);
    assert_eq!(args.backend, "iptables");
    assert_eq!(args.sync_period, Duration::from_mins(1), "kube-proxy's over the default");
    assert_eq!(args.min_sync_period, Duration::from_secs(2), "our file over kube-proxy's");
    assert_eq!(args.proxy.masquerade_bit, 7, "a flag over our file");
    assert_eq!(args.proxy.cluster_cidr.len(), 2);
    assert_eq!(args.node.node.as_deref(), Some("theirs"));
    assert_eq!(args.listen.metrics_bind_address.to_string(), "[::]:10249");
    assert_eq!(args.source.spec().unwrap().to_string(), "kube:/k");
    assert_eq!(args.proxy.config_warnings.len(), 1);
    assert!(args.proxy.config_warnings[0].contains("oomScoreAdj: -999 is not used: "));
}

#[test]
fn every_field_that_sets_an_option_gives_a_value_that_the_option_takes() {
    let theirs = "\
mode: ipvs
bindAddress: 192.0.2.1
healthzBindAddress: 0.0.0.0:10256
metricsBindAddress: 127.0.0.1
logging: {format: json}
detectLocalMode: InterfaceNamePrefix
detectLocal: {interfaceNamePrefix: veth, bridgeInterface: cni0}
nodePortAddresses: [primary]
iptables: {masqueradeAll: true, masqueradeBit: 0}
ipvs:
  syncPeriod: 30s
  minSyncPeriod: 1s
  scheduler: rr
  excludeCIDRs: [10.1.0.0/16]
  strictARP: true
  tcpTimeout: 15m0s
  tcpFinTimeout: 2m0s
  udpTimeout: 5m0s
conntrack:
  maxPerCore: 0
  min: 1
  tcpEstablishedTimeout: 24h0m0s
  tcpCloseWaitTimeout: 1h0m0s
  tcpBeLiberal: true
  udpTimeout: 30s
  udpStreamTimeout: 3m0s
";
    let cli = load_both(theirs, "", &["run"]).unwrap();
    let args = run(&cli);
    assert_eq!(args.proxy.config_warnings, Vec::<String>::new());
    assert_eq!(args.proxy.ipvs.scheduler.as_deref(), Some("rr"));
    assert_eq!(args.proxy.ipvs.tcp_timeout, Some(Duration::from_mins(15)));
    assert_eq!(args.proxy_host.conntrack.tcp_timeout_established, Duration::from_hours(24));
    assert_eq!(args.proxy_host.conntrack.max_per_core, 0);
    assert!(args.proxy.masquerade_all && args.proxy_host.conntrack.tcp_be_liberal);
    assert_eq!(args.proxy.masquerade_bit, 0);
}

#[test]
fn a_value_of_kube_proxys_that_cannot_be_names_its_field() {
    for (theirs, said) in [
        ("clusterCIDR: everywhere", "config.conf: clusterCIDR: "),
        ("iptables: {masqueradeBit: 32}", "config.conf: iptables.masqueradeBit: "),
        ("iptables: {syncPeriod: soon}", "\"soon\" is not a time such as"),
        ("detectLocalMode: Guess", "config.conf: detectLocalMode: "),
        ("healthzBindAddress: here", "config.conf: healthzBindAddress: "),
        ("nodePortAddresses: [here]", "config.conf: nodePortAddresses: "),
        ("conntrack: {min: -1}", "config.conf: conntrack.min: "),
        ("mode: ipvs\nipvs: {scheduler: best}", "config.conf: ipvs.scheduler: "),
        ("hostnameOverride: a_b", "config.conf: hostnameOverride: "),
    ] {
        let error = load_both(theirs, "", &["run"]).unwrap_err();
        assert!(matches!(error, SettingsError::File(_)), "{theirs}: {error}");
        assert!(error.to_string().contains(said), "{theirs}: {error}");
    }
}

#[test]
fn our_own_file_can_name_kube_proxys() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("config.conf");
    std::fs::write(
        &path,
        "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n\
         hostnameOverride: theirs\n",
    )
    .unwrap();
    let ours = format!("kube-proxy-config = \"{}\"", path.display());
    let cli = load(Some(("c.toml", &ours)), &["run"]).unwrap();
    assert_eq!(run(&cli).node.node.as_deref(), Some("theirs"));
    // A command that has nothing to do with it does not read it.
    std::fs::write(&path, "broken: [").unwrap();
    assert!(load(Some(("c.toml", &ours)), &["status"]).is_ok());
    assert!(load(Some(("c.toml", &ours)), &["run"]).is_err());
}

#[test]
fn kube_proxys_configuration_is_not_taken_for_ours() {
    let text = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n";
    for name in ["c.yaml", "config.conf"] {
        let said = message((name, text), &["run"]);
        assert!(said.contains("give it with --kube-proxy-config"), "{said}");
    }
}

#[test]
fn kube_proxys_own_names_of_flags_are_taken() {
    let cli = load(
        None,
        &[
            "run",
            "--hostname-override=loom-a",
            "--proxy-mode=iptables",
            "--kubeconfig=/k",
            "--cluster-cidr=10.244.0.0/16,fd00::/56",
            "--iptables-masquerade-bit=3",
            "--masquerade-all=true",
            "--nodeport-addresses=10.0.0.0/8,127.0.0.0/8",
            "--iptables-localhost-nodeports=false",
            "--iptables-min-sync-period=1s",
            "--ipvs-min-sync-period=2s",
            "--conntrack-tcp-timeout-established=24h0m0s",
            "--detect-local-mode=NodeCIDR",
            "--bind-address=0.0.0.0",
            "--healthz-bind-address=0.0.0.0",
            "--oom-score-adj=-999",
            "--profiling",
            "-v=2",
        ],
    )
    .unwrap();
    let args = run(&cli);
    assert_eq!(args.node.node.as_deref(), Some("loom-a"));
    assert_eq!(args.backend, "iptables");
    assert_eq!(args.source.spec().unwrap().to_string(), "kube:/k");
    assert_eq!(args.proxy.masquerade_bit, 3);
    assert_eq!(args.listen.healthz_bind_address.to_string(), "0.0.0.0:10256");
    assert_eq!(args.proxy_host.warnings().len(), 3);
}

#[test]
fn a_kubeconfig_wins_over_the_source_of_the_file_and_not_over_another_flag() {
    let file = ("c.toml", "source = \"dir:/m\"");
    let cli = load(Some(file), &["run", "--kubeconfig=/k"]).unwrap();
    assert_eq!(run(&cli).source.spec().unwrap().to_string(), "kube:/k");
    let file = ("c.toml", "kubeconfig = \"/k\"");
    let cli = load(Some(file), &["run", "--source=dir:/m"]).unwrap();
    assert_eq!(run(&cli).source.spec().unwrap().to_string(), "dir:/m");
    assert!(load(None, &["run", "--source=dir:/m", "--kubeconfig=/k"]).is_err());
}
