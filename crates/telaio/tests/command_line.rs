//! The command line as a person or a script meets it.

mod support;

use support::{examples, run, run_args, telaio};

#[test]
fn help_names_every_command_and_exits_0() {
    let ended = run_args(["--help"]);
    assert_eq!(ended.code, Some(0));
    for command in ["run", "brain", "render", "status", "version", "demo", "completions", "man"] {
        assert!(ended.stdout.contains(&format!("\n  {command}")), "{}", ended.stdout);
    }
    assert!(ended.stdout.contains("Exit codes: 0 done, 1 failed, 2 bad usage or bad input"));
}

#[test]
fn the_help_of_run_is_as_reviewed() {
    let ended = run(telaio().args(["run", "--help"]).env("COLUMNS", "100"));
    assert_eq!(ended.code, Some(0));
    insta::assert_snapshot!(ended.stdout);
}

#[test]
fn bad_usage_exits_2() {
    for args in [
        vec![],
        vec!["weave"],
        vec!["run", "--colour"],
        vec!["run", "--source", "file:/x"],
        vec!["run", "--planes", "moon"],
        vec!["run", "--min-sync-period", "10"],
        vec!["run", "--backend", "magic", "--source", "dir:/"],
        vec!["render"],
        vec!["man", "weave"],
    ] {
        let ended = run_args(&args);
        assert_eq!(ended.code, Some(2), "{args:?}: {ended:?}");
        assert!(!ended.stderr.is_empty(), "{args:?}");
        assert!(ended.stdout.is_empty(), "{args:?}: {}", ended.stdout);
    }
}

#[test]
fn a_node_without_a_proper_name_is_bad_usage() {
    let source = format!("--source=dir:{}", examples().display());
    for command in ["run", "render"] {
        for name in ["", "BAD NODE"] {
            let ended = run_args([command, &source, "--node", name]);
            assert_eq!(ended.code, Some(2), "{ended:?}");
            assert!(ended.stderr.contains("is not the name of a node"), "{ended:?}");
            let ended = run(telaio().args([command, &source]).env("TELAIO_NODE", name));
            assert_eq!(ended.code, Some(2), "{ended:?}");
        }
    }
}

#[test]
fn networks_for_services_are_cidrs_that_do_not_overlap() {
    let source = format!("--source=dir:{}", examples().display());
    for (cidrs, said) in [
        ("10.0.0.0/99", "\"10.0.0.0/99\" is not a CIDR such as 10.96.0.0/16"),
        ("10.96.0.0/16,fd00::/108,10.96.7.0/24", "10.96.0.0/16 and 10.96.7.0/24 overlap"),
    ] {
        let ended = run_args(["render", &source, "--node=loom-a", "--service-cidr", cidrs]);
        assert_eq!(ended.code, Some(2), "{ended:?}");
        assert!(ended.stderr.contains(said), "{ended:?}");
    }
}

#[test]
fn outside_of_a_cluster_the_source_must_be_named() {
    let ended = run_args(["render"]);
    assert!(
        ended.stderr.contains("--source kube[:KUBECONFIG], dir:PATH or brain:URL"),
        "{ended:?}"
    );
}

#[test]
fn what_runs_on_another_system_fails_and_says_what_there_is() {
    let source = format!("dir:{}", examples().display());
    for args in [
        vec!["run", "--backend", "hcn", "--source", &source],
        vec!["run", "--backend", "kernelspace", "--source", &source],
        vec!["demo", "--check", "--backend=hcn"],
    ] {
        let ended = run_args(&args);
        assert_eq!(ended.code, Some(1), "{args:?}: {ended:?}");
        let said = "the backend hcn runs on Windows only (render and trace show it anywhere); this build has:";
        assert!(ended.stderr.contains(said), "{ended:?}");
    }
    let live = ["trace", "--backend=hcn", "--kernel", "--from=10.0.0.1", "--to=10.0.0.2:80"];
    let ended = run_args(live);
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.stderr.contains("there are none of the backend hcn on Linux"), "{ended:?}");
}

#[test]
fn version_says_what_the_build_can_do() {
    let ended = run_args(["version"]);
    assert_eq!(ended.code, Some(0));
    assert!(ended.stdout.starts_with(concat!("telaio ", env!("CARGO_PKG_VERSION"), " (")));
    assert!(ended.stdout.contains("sources:  kube, dir, brain"));
    let json: serde_json::Value =
        serde_json::from_str(&run_args(["version", "--output=json"]).stdout).unwrap();
    assert_eq!(json["planes"], serde_json::json!(["services", "pods", "ingress"]));
    assert_eq!(run_args(["--version"]).code, Some(0));
}

#[test]
fn completions_and_manual_pages_come_from_the_definition() {
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        let ended = run_args(["completions", shell]);
        assert_eq!(ended.code, Some(0));
        assert!(ended.stdout.contains("min-sync-period"), "{shell}");
    }
    let page = run_args(["man"]).stdout;
    assert!(page.contains(".TH telaio 1"), "{page}");
    let page = run_args(["man", "run"]).stdout;
    assert!(
        page.contains("min\\-sync\\-period") && page.contains("TELAIO_MIN_SYNC_PERIOD"),
        "{page}"
    );
}

#[test]
fn the_environment_wins_over_the_file_and_a_flag_over_both() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("telaio.toml");
    std::fs::write(&file, "node = \"from-file\"\n").unwrap();
    let source = format!("--source=dir:{}", dir.path().join("manifests").display());
    std::fs::create_dir(dir.path().join("manifests")).unwrap();
    let node = |environment: Option<&str>, flag: Option<&str>| {
        let mut command = telaio();
        command.args(["render", &source]).env("TELAIO_CONFIG", &file);
        if let Some(value) = environment {
            command.env("TELAIO_NODE", value);
        }
        command.args(flag.map(|value| format!("--node={value}")));
        let ended = run(&mut command);
        assert_eq!(ended.code, Some(0), "{ended:?}");
        ended.stdout.lines().next().unwrap().to_owned()
    };
    assert_eq!(node(None, None), "node: from-file");
    assert_eq!(node(Some("from-environment"), None), "node: from-environment");
    assert_eq!(node(Some("from-environment"), Some("from-flag")), "node: from-flag");
}

#[test]
fn a_wrong_configuration_file_exits_2_and_names_file_and_key() {
    let dir = tempfile::tempdir().unwrap();
    for (name, text, expected) in [
        ("a.toml", "nod = \"x\"", "a.toml: nod: there is no such setting; did you mean node?"),
        ("b.yaml", "sync-period: never", "b.yaml: sync-period: "),
        ("c.yaml", "- a\n", "c.yaml: "),
        ("d.toml", "backend = \"magic\"", "d.toml: backend: "),
        ("e.toml", "node = \"\"", "e.toml: node: "),
    ] {
        let path = dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        let ended = run_args(["run", "--config", path.to_str().unwrap()]);
        assert_eq!(ended.code, Some(2), "{ended:?}");
        assert!(ended.stderr.contains(expected), "{ended:?}");
    }
}

#[test]
fn a_wrong_configuration_of_kube_proxys_exits_2_and_names_file_field_and_what_is_expected() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("config.conf");
    let head = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n";
    for (text, expected) in [
        ("mode: userspace", "config.conf: mode: \"userspace\" is no mode; expected iptables"),
        ("iptables: {syncPeriod: soon}", "config.conf: iptables.syncPeriod: "),
        (
            "conntrack: {min: few}",
            "config.conf: conntrack.min: \"few\" cannot be: expected a whole",
        ),
    ] {
        std::fs::write(&path, format!("{head}{text}\n")).unwrap();
        let ended = run_args(["run", "--kube-proxy-config", path.to_str().unwrap()]);
        assert_eq!(ended.code, Some(2), "{ended:?}");
        assert!(ended.stderr.contains(expected), "{ended:?}");
    }
    let ended = run_args(["run", "--config", path.to_str().unwrap()]);
    assert_eq!(ended.code, Some(2), "{ended:?}");
    assert!(ended.stderr.contains("give it with --kube-proxy-config"), "{ended:?}");
}

#[test]
fn settings_of_kube_proxys_count_where_nothing_else_says_otherwise() {
    let dir = tempfile::tempdir().unwrap();
    let theirs = dir.path().join("config.conf");
    let head = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n";
    std::fs::write(&theirs, format!("{head}hostnameOverride: Theirs\noomScoreAdj: -999\n"))
        .unwrap();
    let ours = dir.path().join("telaio.toml");
    let manifests = dir.path().join("manifests");
    std::fs::create_dir(&manifests).unwrap();
    let node = |ours_say: &str, environment: Option<&str>| {
        std::fs::write(&ours, ours_say).unwrap();
        let mut command = telaio();
        command.arg("render").arg(format!("--source=dir:{}", manifests.display()));
        command.env("TELAIO_CONFIG", &ours).env("TELAIO_KUBE_PROXY_CONFIG", &theirs);
        if let Some(value) = environment {
            command.env("TELAIO_NODE", value);
        }
        let ended = run(&mut command);
        assert_eq!(ended.code, Some(0), "{ended:?}");
        ended.stdout.lines().next().unwrap().to_owned()
    };
    assert_eq!(node("", None), "node: theirs");
    assert_eq!(node("node = \"from-file\"", None), "node: from-file");
    assert_eq!(node("node = \"from-file\"", Some("from-env")), "node: from-env");
}

#[test]
fn status_without_an_agent_says_how_to_start_one() {
    // A port that was free a moment ago.
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let ended = run_args(["status", "--admin-listen", &free.to_string()]);
    assert_eq!(ended.code, Some(1));
    assert!(ended.stderr.contains("no telaio answers at"), "{ended:?}");
    assert!(ended.stderr.contains("telaio run"), "{ended:?}");
}

#[test]
fn the_demo_checks_itself_and_leaves_nothing() {
    let temporary = tempfile::tempdir().unwrap();
    let ended = run(telaio().args(["demo", "--check"]).env("TMPDIR", temporary.path()));
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.stdout.contains("all is as it should be"), "{ended:?}");
    assert!(ended.stdout.contains("both nodes:   + 10.96.0.10:80/TCP"), "{ended:?}");
    assert_eq!(std::fs::read_dir(temporary.path()).unwrap().count(), 0);
}
