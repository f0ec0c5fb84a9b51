//! `telaio run` and `telaio brain` as they live: start, follow, reload, end.

#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

mod support;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;

use support::{Agent, Manifests, PATIENCE, ask_until, dir_source, examples, get, run_args};

const STATUS: &str = "/api/v1/status";

fn service(name: &str, port: u16) -> String {
    format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: {name}, namespace: shop}}\n\
         spec:\n  clusterIP: 10.96.77.7\n  ports: [{{port: {port}}}]\n"
    )
}

/// Replaces a file at once: whoever looks in between must not find half of it.
fn replace(path: &Path, text: &str) {
    let next = path.with_extension("next");
    std::fs::write(&next, text).unwrap();
    std::fs::rename(&next, path).unwrap();
}

#[test]
fn once_syncs_the_first_state_and_exits() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let state = tempfile::tempdir().unwrap();
    let ended = run_args([
        "run",
        "--once",
        "--node=loom-a",
        &dir_source(&examples()),
        &format!("--state-dir={}", state.path().display()),
        // Taken; with --once nobody listens.
        &format!("--admin-listen={}", taken.local_addr().unwrap()),
    ]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.stdout.starts_with("---\ncreated:\n"), "{}", ended.stdout);
    assert!(ended.stdout.contains("name: frontend"), "{}", ended.stdout);
}

#[test]
fn once_with_bad_input_uses_the_rest_and_exits_2() {
    let manifests = Manifests::of_examples();
    manifests.write("broken.yaml", "{");
    let state = tempfile::tempdir().unwrap();
    let ended = run_args([
        "run",
        "--once",
        "--node=loom-a",
        &manifests.source(),
        &format!("--state-dir={}", state.path().display()),
    ]);
    assert_eq!(ended.code, Some(2), "{ended:?}");
    assert!(ended.stdout.contains("name: frontend"), "{}", ended.stdout);
    assert!(ended.stderr.contains("broken.yaml"), "{}", ended.stderr);
}

#[test]
fn a_change_of_a_file_is_followed_until_sigterm_ends_it_well() {
    let manifests = Manifests::of_examples();
    let agent = Agent::start(&["run", "--node=loom-a", &manifests.source()]);
    agent.wait_out("created:");
    manifests.write("new.yaml", &service("new-one", 4711));
    agent.wait_out("name: new-one");
    std::fs::remove_file(manifests.0.path().join("new.yaml")).unwrap();
    agent.wait_out("- shop/new-one");
    let (status, log) = agent.end();
    assert_eq!(status.code(), Some(0), "{log}");
    assert!(log.contains("what is programmed stays"), "{log}");
}

#[test]
fn a_broken_file_keeps_its_last_good_objects_and_is_in_the_status() {
    let manifests = Manifests::of_examples();
    let agent = Agent::start(&["run", "--node=loom-a", &manifests.source()]);
    agent.wait_out("created:");
    manifests.write("web.yaml", "kind: [");
    let body = ask_until(agent.admin, STATUS, |_, body| body.contains("web.yaml"));
    assert!(body.contains("\"problem_count\": 1"), "{body}");
    assert!(body.contains("\"services\": 5"), "{body}");
    assert_eq!(get(agent.healthz, "/healthz").0, 200);
    let (_, log) = agent.end();
    assert!(log.contains("web.yaml"), "{log}");
}

#[test]
fn the_servers_and_the_status_command_tell_the_same() {
    let agent = Agent::start(&["run", "--node=loom-a", &dir_source(&examples())]);
    let body = ask_until(agent.healthz, "/healthz", |status, _| status == 200);
    let health: serde_json::Value = serde_json::from_str(&body).unwrap();
    assert_eq!((&health["synced"], &health["node_leaving"]), (&true.into(), &false.into()));
    assert_eq!(health["state_age_s"], 0.0);
    assert!(health["last_sync_age_s"].is_number());
    assert_eq!(get(agent.healthz, "/livez").0, 200);
    assert_eq!(get(agent.healthz, "/metrics").0, 404);

    let (status, page) = get(agent.metrics, "/metrics");
    assert_eq!(status, 200);
    for line in [
        "telaio_store_services 5",
        "telaio_healthy 1",
        "telaio_sync_failures_total 0",
        "kubeproxy_sync_proxy_rules_service_changes_total 5",
        "kubeproxy_sync_proxy_rules_service_changes_pending 0",
    ] {
        assert!(page.lines().any(|l| l == line), "{line} is not in {page}");
    }

    let address = agent.admin.to_string();
    let state = format!("--state-dir={}", agent.state.path().display());
    let ended = run_args(["status", "--admin-listen", &address, &state]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    for part in ["node      loom-a", "backend   view (services)", "5 services", "healthy"] {
        assert!(ended.stdout.contains(part), "{part} is not in {}", ended.stdout);
    }
    let ended = run_args(["status", "--output=json", "--admin-listen", &address, &state]);
    let json: serde_json::Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!(json["pid"], agent.pid());
    assert_eq!(json["healthy"], true);
    let nobody = tempfile::tempdir().unwrap();
    let nobody = format!("--state-dir={}", nobody.path().display());
    let ended = run_args(["status", "--admin-listen", &address, &nobody]);
    assert_eq!(ended.code, Some(1), "without the token nothing is told: {ended:?}");
    assert!(ended.stderr.contains("--token-file"), "{ended:?}");
}

#[test]
fn a_node_that_is_about_to_go_is_unhealthy_and_alive() {
    let manifests = Manifests::of_examples();
    let agent = Agent::start(&["run", "--node=loom-a", &manifests.source()]);
    ask_until(agent.healthz, "/healthz", |status, _| status == 200);
    let nodes = std::fs::read_to_string(examples().join("nodes.yaml")).unwrap();
    let taint = "spec:\n  taints: [{key: ToBeDeletedByClusterAutoscaler, effect: NoSchedule}]";
    manifests.write("nodes.yaml", &nodes.replacen("spec:", taint, 1));
    let body = ask_until(agent.healthz, "/healthz", |status, _| status == 503);
    assert!(body.contains("\"node_leaving\": true"), "{body}");
    assert!(body.contains("\"nodeEligible\": false"), "{body}");
    let (status, body) = get(agent.healthz, "/livez");
    assert_eq!(status, 200);
    // kube-proxy's fields: up to date is now, and the node is none of its concern.
    let json: serde_json::Value = serde_json::from_str(&body).unwrap();
    assert!(json["currentTime"].as_str().unwrap().ends_with(" +0000 UTC"), "{body}");
    assert_eq!(json["lastUpdated"], json["currentTime"]);
    assert_eq!(json.get("nodeEligible"), None);
    let (_, page) = get(agent.metrics, "/metrics");
    assert!(page.contains("\nkubeproxy_proxy_livez_total{code=\"200\"} 1\n"), "{page}");
    assert!(!page.contains("\nkubeproxy_proxy_healthz_total{code=\"503\"} 0\n"), "{page}");
}

#[test]
fn sighup_reloads_what_it_can_and_names_what_needs_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("telaio.yaml");
    std::fs::write(&config, "log-level: info\nsync-period: 30s\n").unwrap();
    let config_flag = format!("--config={}", config.display());
    let agent = Agent::start(&["run", "--node=loom-a", &dir_source(&examples()), &config_flag]);
    agent.wait_log("the first state is complete");

    replace(&config, "log-level: debug\nmin-sync-period: 1s\nsync-period: 45s\n");
    agent.signal("HUP");
    let entry = agent.wait_log("settings reloaded");
    assert_eq!(entry["changed"], "log-level, min-sync-period");
    assert_eq!(agent.wait_log("these changes need a restart")["settings"], "sync-period");

    replace(&config, "log-levle: debug\n");
    agent.signal("HUP");
    let entry = agent.wait_log("the settings are wrong; the old ones stand");
    assert!(entry["error"].as_str().unwrap().contains("did you mean log-level?"), "{entry}");
    ask_until(agent.metrics, "/metrics", |_, page| {
        page.contains("telaio_config_reload_failures_total")
            && !page.contains("telaio_config_reload_failures_total 0")
    });
    assert_eq!(agent.end().0.code(), Some(0));
}

#[test]
fn a_changed_configuration_file_is_reloaded_by_itself() {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("telaio.toml");
    std::fs::write(&config, "log-level = \"info\"\n").unwrap();
    let config_flag = format!("--config={}", config.display());
    let agent = Agent::start(&["run", "--node=loom-a", &dir_source(&examples()), &config_flag]);
    agent.wait_log("the first state is complete");
    replace(&config, "log-level = \"warn,telaio=info\"\n");
    let entry = agent.wait_log("settings reloaded");
    assert_eq!(entry["why"], "the configuration file changed");
    assert_eq!(entry["changed"], "log-level");
}

#[test]
fn a_busy_port_names_its_owner() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let state = tempfile::tempdir().unwrap();
    let ended = run_args([
        "run",
        "--node=loom-a",
        &dir_source(&examples()),
        &format!("--state-dir={}", state.path().display()),
        &format!("--admin-listen={address}"),
    ]);
    assert_eq!(ended.code, Some(1), "{ended:?}");
    let owner = format!("{address} is in use by process {} (", std::process::id());
    assert!(ended.stderr.contains(&owner), "{ended:?}");
    assert!(ended.stderr.contains("--admin-listen"), "{ended:?}");
}

/// Writes a file that everybody may read.
#[cfg(unix)]
fn write_for_all(path: &std::path::Path, text: &str) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::write(path, text).unwrap();
    std::fs::set_permissions(path, PermissionsExt::from_mode(0o644)).unwrap();
}

#[test]
#[cfg(unix)]
fn a_token_that_others_can_read_is_taken_from_them_or_told() {
    use std::os::unix::fs::PermissionsExt;
    let state = tempfile::tempdir().unwrap();
    let own = state.path().join("admin.token");
    write_for_all(&own, support::TOKEN);
    let dir = tempfile::tempdir().unwrap();
    let given = dir.path().join("read.token");
    write_for_all(&given, READ_TOKEN);
    let flag = format!("--admin-read-token-file={}", given.display());
    let args = ["run", "--node=loom-a", &dir_source(&examples()), &flag];
    let agent = Agent::start_with_state(&args, state);
    let mode = |path: &std::path::Path| std::fs::metadata(path).unwrap().permissions().mode();
    assert_eq!(mode(&own) & 0o777, 0o600, "ours is mended");
    assert_eq!(mode(&given) & 0o777, 0o644, "somebody's is theirs");
    let (status, log) = agent.end();
    assert_eq!(status.code(), Some(0), "{log}");
    for path in [&own, &given] {
        let told = log.lines().any(|line| {
            line.contains("\"WARN\"") && line.contains(path.display().to_string().as_str())
        });
        assert!(told, "{}: {log}", path.display());
    }
}

/// A token that may only look.
const READ_TOKEN: &str = "a-token-of-tests-that-may-only-look";

#[test]
fn no_token_is_ever_in_the_log_whatever_is_done_with_it() {
    const WRONG: &str = "a-token-of-tests-that-nobody-knows";
    let dir = tempfile::tempdir().unwrap();
    let given = dir.path().join("read.token");
    std::fs::write(&given, READ_TOKEN).unwrap();
    let flag = format!("--admin-read-token-file={}", given.display());
    let manifests = Manifests::of_examples();
    let agent =
        Agent::start(&["run", "--node=loom-a", &manifests.source(), &flag, "--log-level=trace"]);
    ask_until(agent.healthz, "/healthz", |status, _| status == 200);
    let drain = r#"{"action": {"kind": "drain", "service": {"namespace": "shop", "name": "web"},
        "target": {"pod": "web-1"}}, "by": "anna", "reason": "disk"}"#;
    let actions = "/api/v1/actions";
    for (token, may_look, may_act) in
        [(support::TOKEN, 200, 200), (READ_TOKEN, 200, 403), (WRONG, 401, 401)]
    {
        let (status, body) = support::send(agent.admin, token, "/api/v1/overview", None);
        assert_eq!(status, may_look, "{body}");
        let (status, body) = support::send(agent.admin, token, actions, Some(drain));
        assert_eq!(status, may_act, "{body}");
        // What is no JSON, and what is no path, is told of too.
        support::send(agent.admin, token, actions, Some("{"));
        support::send(agent.admin, token, "/api/v1/none", None);
    }
    let state = format!("--state-dir={}", agent.state.path().display());
    let address = format!("--admin-listen={}", agent.admin);
    let ended = run_args(["undrain", "shop/web", "web-1", &state, &address]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let audit = std::fs::read_to_string(agent.state.path().join("audit.log")).unwrap();
    assert!(audit.contains("drain") && audit.contains("anna"), "{audit}");
    let (status, log) = agent.end();
    assert_eq!(status.code(), Some(0), "{log}");
    assert!(log.contains("\"DEBUG\"") || log.contains("\"TRACE\""), "nothing in detail: {log}");
    for token in [support::TOKEN, READ_TOKEN, WRONG] {
        assert!(!log.contains(token), "{token} is in the log: {log}");
        assert!(!audit.contains(token), "{token} is in the audit log: {audit}");
    }
}

#[test]
fn one_state_directory_has_one_agent() {
    let agent = Agent::start(&["run", "--node=loom-a", &dir_source(&examples())]);
    let ended = run_args([
        "run",
        "--node=loom-a",
        &dir_source(&examples()),
        &format!("--state-dir={}", agent.state.path().display()),
    ]);
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.stderr.contains(&format!("in use by process {}", agent.pid())), "{ended:?}");
}

#[test]
fn one_list_of_given_addresses_has_one_writer() {
    let agent = Agent::start(&["run", "--node=loom-a", &dir_source(&examples())]);
    let ended = run_args([
        "brain",
        &dir_source(&examples()),
        &format!("--state-dir={}", agent.state.path().display()),
    ]);
    assert_eq!(ended.code, Some(1), "{ended:?}");
    let owner = format!("given addresses of {}", agent.state.path().display());
    assert!(ended.stderr.contains(&owner), "{ended:?}");
    assert!(ended.stderr.contains(&format!("in use by process {}", agent.pid())), "{ended:?}");
    assert!(ended.stderr.contains("give another --state-dir"), "{ended:?}");
}

#[test]
fn two_flags_of_one_address_are_bad_usage() {
    let state = tempfile::tempdir().unwrap();
    let state = format!("--state-dir={}", state.path().display());
    for command in ["run", "brain"] {
        let ended = run_args([
            command,
            &dir_source(&examples()),
            &state,
            "--metrics-bind-address=127.0.0.1:4711",
            "--api-listen=127.0.0.1:4711",
        ]);
        assert_eq!(ended.code, Some(2), "{ended:?}");
        let said = "--metrics-bind-address 127.0.0.1:4711 and --api-listen 127.0.0.1:4711";
        assert!(ended.stderr.contains(said), "{ended:?}");
    }
}

#[test]
fn who_connects_and_says_nothing_keeps_no_probe_out() {
    let agent = Agent::start(&["run", "--node=loom-a", &dir_source(&examples())]);
    // More than have a place, each with a request that never becomes whole.
    let silent: Vec<TcpStream> = (0..400)
        .map(|_| {
            let mut stream = TcpStream::connect(agent.healthz).unwrap();
            stream.write_all(b"GET /h").unwrap();
            stream
        })
        .collect();
    ask_until(agent.healthz, "/healthz", |status, _| status == 200);
    // The first had to go.
    let mut first = &silent[0];
    first.set_read_timeout(Some(PATIENCE)).unwrap();
    assert!(matches!(first.read(&mut [0; 64]), Ok(0) | Err(_)));
    assert_eq!(get(agent.admin, STATUS).0, 200);
}

#[test]
fn once_ends_without_a_first_state_and_says_what_is_missing() {
    // Takes connections and never answers.
    let mute = TcpListener::bind("127.0.0.1:0").unwrap();
    let source = format!("brain:http://{}", mute.local_addr().unwrap());
    let state = tempfile::tempdir().unwrap();
    let ended = run_args([
        "run",
        "--once",
        "--node=loom-a",
        "--timeout=200ms",
        &format!("--source={source}"),
        &format!("--state-dir={}", state.path().display()),
    ]);
    assert_eq!(ended.code, Some(1), "{ended:?}");
    let said = format!("{source} gave no full state within 200ms");
    assert!(ended.stderr.contains(&said), "{ended:?}");
}

#[test]
fn a_given_address_survives_a_restart() {
    let manifests = Manifests::of_examples();
    let agent = Agent::start(&["run", "--node=loom-a", &manifests.source()]);
    let first = agent.wait_out_after("name: orders", "10.96.");
    agent.signal("TERM");
    agent.wait_log("ending; what is programmed stays");
    // A service that comes first by name must not take what orders has.
    manifests.write(
        "early.yaml",
        "apiVersion: v1\nkind: Service\nmetadata: {name: aaa, namespace: aaa}\n\
         spec: {selector: {app: orders}, ports: [{port: 1}]}\n",
    );
    let state = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(agent.state.path()).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), state.path().join(entry.file_name())).unwrap();
    }
    let again = Agent::start_with_state(&["run", "--node=loom-a", &manifests.source()], state);
    again.wait_out("name: aaa");
    assert_eq!(again.wait_out_after("name: orders", "10.96."), first);
}

fn brain(source: &str, more: &[&str]) -> (Agent, String) {
    let mut args = vec!["brain", source, "--api-listen=127.0.0.1:0"];
    args.extend(more);
    let agent = Agent::start(&args);
    let entry = agent.wait_log("serving the Global and Local API");
    let address = entry["api"].as_str().unwrap().to_owned();
    (agent, address)
}

#[test]
fn a_brain_serves_nodes_that_see_what_they_would_see_themselves() {
    let manifests = Manifests::of_examples();
    let (brain, address) = brain(&manifests.source(), &[]);
    ask_until(brain.healthz, "/healthz", |status, _| status == 200);
    let direct = run_args(["render", &manifests.source(), "--node=loom-b"]);
    let by_brain = format!("--source=brain:http://{address}");
    let remote = run_args(["render", &by_brain, "--node=loom-b"]);
    assert_eq!(remote.code, Some(0), "{remote:?}");
    assert_eq!(remote.stdout, direct.stdout);

    let node = Agent::start(&["run", "--node=loom-b", &by_brain]);
    node.wait_out("created:");
    manifests.write("new.yaml", &service("new-one", 4711));
    node.wait_out("name: new-one");
    ask_until(brain.admin, STATUS, |_, body| body.contains("\"watchers\": 1"));

    // The brain goes: the node stays as it is and says so.
    assert_eq!(brain.end().0.code(), Some(0));
    ask_until(node.admin, STATUS, |_, body| body.contains("\"connected\": false"));
    assert_eq!(get(node.healthz, "/healthz").0, 200);
}

#[test]
fn a_brain_below_a_brain_gives_the_same_view() {
    let (_upper, upper_address) = brain(&dir_source(&examples()), &[]);
    let (_lower, lower_address) = brain(&format!("--source=brain:http://{upper_address}"), &[]);
    let direct = run_args(["render", &dir_source(&examples()), "--node=loom-a"]);
    let source = format!("--source=brain:http://{lower_address}");
    assert_eq!(run_args(["render", &source, "--node=loom-a"]).stdout, direct.stdout);
}

#[test]
fn an_agent_serves_the_api_too_when_asked() {
    let args = ["run", "--node=loom-a", &dir_source(&examples()), "--api-listen=127.0.0.1:0"];
    let agent = Agent::start(&args);
    let entry = agent.wait_log("serving the Global and Local API");
    let source = format!("--source=brain:http://{}", entry["api"].as_str().unwrap());
    let direct = run_args(["render", &dir_source(&examples()), "--node=loom-b"]);
    assert_eq!(run_args(["render", &source, "--node=loom-b"]).stdout, direct.stdout);
}
