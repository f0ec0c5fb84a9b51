//! The agent on Windows: the program that is handed out, with a stand-in where Windows has HNS.
//!
//! `cargo xtask test --only windows` builds it, lays the stand-in where Windows has computenetwork.dll and runs
//! these tests under wine. The stand-in keeps HNS's objects in a directory, takes commands there and reports what
//! was called.
#![cfg(windows)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may panic")]

#[path = "windows/place.rs"]
mod place;
#[path = "windows/service.rs"]
mod service;

use std::time::Duration;

use place::{Agent, Place, get, run};
use serde_json::json;

#[test]
fn version_help_and_bad_usage_are_as_everywhere() {
    let place = Place::new();
    let ended = run(place.telaio().args(["version"]));
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.stdout.contains("(x86_64-pc-windows-gnu)"), "{ended:?}");
    assert!(ended.stdout.contains("backends: hcn, view"), "{ended:?}");
    assert!(ended.stdout.contains("TLS:      rustls with aws-lc-rs"), "{ended:?}");
    let ended = run(place.telaio().args(["--help"]));
    assert!(ended.stdout.contains("\n  service "), "{ended:?}");
    for (args, code, said) in [
        (vec!["run", "--backend", "nothing"], 2, "there is no backend"),
        (vec!["run", "--sauce", "x"], 2, "unexpected argument"),
        (vec!["run"], 2, "--source kube[:KUBECONFIG], dir:PATH or brain:URL"),
        (vec!["run", "--backend", "nftables", "--once"], 1, "runs on Linux only"),
        (vec!["run", "--source-vip", "10.0.0.1,10.0.0.2", "--source", "dir:."], 2, "--source-vip"),
    ] {
        let ended = run(place.telaio().args(&args));
        assert_eq!(ended.code, Some(code), "{args:?}: {ended:?}");
        assert!(ended.stderr.contains(said), "{args:?}: {ended:?}");
    }
}

#[test]
fn rendering_and_tracing_need_no_hns_and_say_what_they_say_elsewhere() {
    let place = Place::without_hns();
    let source = place.source();
    let ended = run(place.telaio().args(["render", "--backend=hcn", "--node=loom-a", &source]));
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""), "{ended:?}");
    let reviewed = include_str!("snapshots/render__examples_hcn_loom-a.snap");
    let (_, reviewed) = reviewed.split_once("\n---\n").unwrap();
    assert_eq!(ended.stdout.trim(), reviewed.replace("\r\n", "\n").trim());
    let trace = ["trace", "--node=loom-a", &source, "--output=json", "--from=10.244.1.10"];
    let ended = run(place.telaio().args(trace).arg("--to=10.96.0.10:80"));
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let answer: serde_json::Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!(answer["verdict"], "dnat");
    assert_eq!(answer["endpoints"], json!(["10.244.1.10:8080", "10.244.2.10:8080"]));
    let ended = run(place.telaio().args(trace).args(["--to=10.96.0.10:80", "--kernel"]));
    assert_eq!(ended.code, Some(1), "{ended:?}");
}

#[test]
fn once_programs_everything_and_a_second_time_nothing() {
    let place = Place::new();
    let once = || run(place.run_command().arg("--once"));
    let ended = once();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let places = place.places();
    assert!(places.contains("10.96.0.10:80"), "{places:?}");
    assert!(places.contains("0.0.0.0:30066"), "{places:?}");
    let written = place.written();
    let ended = once();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert_eq!(place.written(), written, "nothing was written");
    let live = ["trace", "--kernel", "--node=loom-a", "--output=json", "--from=192.168.50.99"];
    let ended = run(place.telaio().args(live).args(["--to=10.96.0.10:80", &place.source()]));
    let answer: serde_json::Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!(answer["endpoints"], json!(["10.244.1.10:8080", "10.244.2.10:8080"]), "{ended:?}");
}

#[test]
fn a_network_that_is_not_there_is_a_failure_that_names_what_to_do() {
    let place = Place::new();
    place.put_objects(&json!({"version": {"Major": 16, "Minor": 0}}));
    let ended = run(place.run_command().args(["--once", "--timeout=3s"]));
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.stderr.contains("is the CNI plugin deployed on this node?"), "{ended:?}");
}

#[test]
fn an_hns_that_does_not_run_is_waited_for_and_then_named() {
    let place = Place::without_hns();
    let ended = run(place.run_command().args(["--once", "--timeout=3s"]));
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.stderr.contains("the first sync failed"), "{ended:?}");
    let ended = run(place.telaio().arg("cleanup"));
    assert_eq!(ended.code, Some(1), "{ended:?}");
}

#[test]
fn a_running_agent_follows_its_manifests_and_ends_when_it_is_told() {
    let place = Place::new();
    let agent = Agent::start(&place);
    agent.wait("all of it", || place.places().len() == 5);
    let before = place.ask(&json!("Report"));
    // An endpoint joins: HNS gets one endpoint, and each load balancer of the service is changed in place.
    place.change("web.yaml", "  - addresses: [10.244.2.10]", "  - addresses: [10.244.2.77]");
    agent.wait("changed", || {
        let report = place.ask(&json!("Report"));
        report["calls"]["ModifyLoadBalancer"] == json!(2)
            && place.endpoints().contains("10.244.2.77")
    });
    let after = place.ask(&json!("Report"));
    let made = |report: &serde_json::Value, what: &str| report["calls"][what].as_u64().unwrap_or(0);
    assert_eq!(made(&after, "CreateEndpoint"), made(&before, "CreateEndpoint") + 1);
    assert_eq!(made(&after, "CreateLoadBalancer"), made(&before, "CreateLoadBalancer"));
    agent.wait("the old endpoint gone", || !place.endpoints().contains("10.244.2.10"));

    // The servers that ask how it is.
    let health = get(agent.healthz, "/healthz");
    assert!(health.starts_with("HTTP/1.1 200"), "{health}");
    let metrics = get(agent.metrics, "/metrics");
    assert!(metrics.contains("kubeproxy_sync_proxy_rules_duration_seconds"), "{metrics}");
    let state = format!("--state-dir={}", place.directory("state").display());
    let status =
        run(place.telaio().args(["status", &format!("--admin-listen={}", agent.admin), &state]));
    assert!(status.stdout.contains("backend   hcn (services)"), "{status:?}");
    // public.yaml has an external policy Local, and a port for health checks.
    agent.wait("health check port", || {
        let port = std::net::SocketAddr::from(([127, 0, 0, 1], place::HEALTH_CHECK_PORT));
        place::try_get(port, "/")
            .is_some_and(|answer| answer.contains("\"serviceProxyHealthy\":true"))
    });

    // HNS restarts: all is gone, and made anew as soon as the network is there.
    let all = place.places();
    place.ask(&json!("Restart"));
    place.ask(&json!({"Fill": {"objects": Place::ground()}}));
    agent.wait("made anew", || place.places() == all);
    let report = place.ask(&json!("Report"));
    assert_eq!((&report["handles"], &report["texts"]), (&json!(0), &json!(0)), "{report}");

    assert_eq!(agent.interrupt(), Some(0));
    assert_eq!(place.places(), all, "what is programmed stays");
}

#[test]
fn killed_and_started_again_it_takes_over_what_is_there() {
    let place = Place::new();
    let agent = Agent::start(&place);
    agent.wait("all of it", || place.places().len() == 5);
    agent.kill();
    let agent = Agent::start(&place);
    let calls = || place.ask(&json!("Report"))["calls"].clone();
    // All are read: what then still differs would be written at once.
    agent.wait("a look", || calls()["PropertiesLoadBalancer"].as_u64() >= Some(5));
    std::thread::sleep(Duration::from_millis(500));
    let calls = calls();
    for write in ["Create", "Modify", "Delete"] {
        for kind in ["Endpoint", "LoadBalancer"] {
            assert!(calls[format!("{write}{kind}")].is_null(), "{calls}");
        }
    }
    agent.kill();
}

#[test]
fn one_agent_programs_a_machine_and_the_second_learns_who() {
    let place = Place::new();
    let agent = Agent::start(&place);
    let mut second = place.telaio();
    let other_state = format!("--state-dir={}", place.directory("other-state").display());
    let ended = run(second.args(["run", "--once", "--node=loom-a", &place.source(), &other_state]));
    assert_eq!(ended.code, Some(1), "{ended:?}");
    let who =
        format!("another agent programs the services of this machine (process {})", agent.id());
    assert!(ended.stderr.contains(&who), "{ended:?}");
    // In the same directory the lock of that says so at once.
    let ended = run(place.run_command().arg("--once"));
    assert!(ended.stderr.contains(&format!("is in use by process {}", agent.id())), "{ended:?}");
    agent.kill();
}

#[test]
fn cleanup_removes_ours_and_nothing_else_and_kube_proxys_when_asked() {
    let place = Place::new();
    let mut objects = Place::ground();
    objects["load_balancers"] = json!([place::foreign_load_balancer()]);
    place.put_objects(&objects);
    assert_eq!(run(place.run_command().arg("--once")).code, Some(0));
    assert!(place.places().len() > 3);
    let cleanup = |more: &[&str]| {
        let state = format!("--state-dir={}", place.directory("state").display());
        run(place.telaio().arg("cleanup").arg(state).args(more))
    };
    let ended = cleanup(&[]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.stdout.contains("removed HNS load balancer"), "{ended:?}");
    assert_eq!(place.places(), ["10.96.9.9:7/17".to_owned()].into(), "somebody else's");
    assert_eq!(place.endpoints(), ["10.244.1.10".to_owned()].into(), "a pod's");
    assert!(cleanup(&[]).stdout.contains("there is nothing of ours here"));
    let ended = cleanup(&["--kube-proxy"]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(place.places().is_empty());
}

#[test]
fn settings_are_read_again_when_their_file_changes_and_logs_go_to_a_file() {
    let place = Place::new();
    let (config, log) = (place.directory("").join("c.toml"), place.directory("").join("t.log"));
    std::fs::write(&config, "log-level = \"info\"\n").unwrap();
    let flags = [format!("--config={}", config.display()), format!("--log-file={}", log.display())];
    let agent = Agent::start_with(&place, &flags, Some(&log));
    std::fs::write(&config, "log-level = \"debug\"\nmin-sync-period = \"20ms\"\n").unwrap();
    agent.wait("reloaded", || {
        std::fs::read_to_string(&log).is_ok_and(|text| text.contains("settings reloaded"))
    });
    std::thread::sleep(Duration::from_millis(10));
    agent.kill();
}
