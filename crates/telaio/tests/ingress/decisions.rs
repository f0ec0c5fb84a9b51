//! What people decide where it is harder: at a brain, in a cluster, at a terminal, beside a worker that
//! hangs.

use std::io::Write as _;
use std::process::{Command, Stdio};

use serde_json::Value;

use super::lifecycle::worker_of;
use super::manage::{manage, managed, two, wait_answers};
use super::operations::{told, wait_until};
use super::{Echo, Ingress, Manifests, annotated, ask, ingress, service};
use crate::support::authority::Authority;
use crate::support::{Agent, run_args, telaio};

#[test]
fn a_weight_shares_requests_and_an_override_goes_by_its_name() {
    let (one, two) = (Echo::start("one"), Echo::start_at("two", "127.0.0.2"));
    let manifests = Manifests::empty();
    // In turn: where the faster is preferred, the lesser weight is seldom met by one request at a time.
    let turn = annotated("load-balance", "round_robin");
    let all = service("web", &[&one, &two]) + &ingress("web", "a.example.com", "/", "web", &turn);
    manifests.write("all.yaml", &all);
    let plane = Ingress::start(manifests, "same");
    wait_answers(&plane, &["one", "two"]);
    let address = two.address.ip().to_string();
    managed(&plane.agent, &["weight", "shop/web", &address, "9"]);
    wait_until("the weight", || {
        let detail = told(plane.agent.admin, "/api/v1/services/shop/web");
        let all = detail["endpoint_items"].as_array().unwrap().clone();
        all.iter().any(|it| it["weight"] == 9).then_some(())
    });
    // The table that is served is a moment behind what is shown; then nine of ten go there.
    wait_until("nine of ten", || {
        let before = (one.requests(), two.requests());
        for _ in 0..100 {
            ask(plane.http, "a.example.com", "/");
        }
        let (ones, twos) = (one.requests() - before.0, two.requests() - before.1);
        assert_eq!(ones + twos, 100);
        (ones == 10).then_some(())
    });
    let listed = told(plane.agent.admin, "/api/v1/overrides");
    let name = listed["items"][0]["name"].as_str().unwrap().to_owned();
    let done = managed(&plane.agent, &["overrides", "delete", &format!("shop/{name}")]);
    assert!(done.contains("taken back"), "{done}");
    assert_eq!(told(plane.agent.admin, "/api/v1/overrides")["total"], 0);
    let again = manage(&plane.agent, &["overrides", "delete", &format!("shop/{name}")]);
    assert_eq!(again.code, Some(2), "{again:?}");
}

#[test]
fn a_backend_that_is_added_by_hand_gets_requests_until_it_is_removed() {
    let (one, two) = (Echo::start("one"), Echo::start_outside("two"));
    let manifests = Manifests::empty();
    let all = service("web", &[&one]) + &ingress("web", "a.example.com", "/", "web", "");
    manifests.write("all.yaml", &all);
    let plane = Ingress::start(manifests, "same");
    wait_answers(&plane, &["one"]);
    let (address, port) = (two.address.ip().to_string(), two.address.port().to_string());
    managed(&plane.agent, &["overrides", "add", "shop/web", &address, "--port", &port]);
    wait_answers(&plane, &["one", "two"]);
    managed(&plane.agent, &["overrides", "remove", "shop/web", &address]);
    wait_answers(&plane, &["one"]);
    assert_eq!(told(plane.agent.admin, "/api/v1/overrides")["total"], 0);
}

#[test]
fn a_resync_tells_the_ingress_everything_again_and_requests_go_on() {
    let (_one, two, plane) = two();
    wait_answers(&plane, &["one", "two"]);
    let shown = managed(&plane.agent, &["overrides", "resync", "--dry-run"]);
    assert!(shown.contains("the ingress gets all routes again"), "{shown}");
    for _ in 0..5 {
        managed(&plane.agent, &["overrides", "resync"]);
        for _ in 0..20 {
            assert_eq!(ask(plane.http, "a.example.com", "/").status, 200);
        }
    }
    // What is followed now is followed as before.
    managed(&plane.agent, &["drain", "shop/web", &two.address.ip().to_string()]);
    wait_answers(&plane, &["one"]);
    managed(&plane.agent, &["overrides", "resync"]);
    assert_eq!(ask(plane.http, "a.example.com", "/").backend().as_deref(), Some("one"));
}

#[test]
fn what_is_decided_at_a_brain_moves_requests_of_its_nodes() {
    let (one, two) = (Echo::start("one"), Echo::start_at("two", "127.0.0.2"));
    let manifests = Manifests::empty();
    let all = service("web", &[&one, &two]) + &ingress("web", "a.example.com", "/", "web", "");
    manifests.write("all.yaml", &all);
    // Secrets go only to who proves its name.
    let authority = Authority::new();
    let mut args =
        ["brain", &manifests.source(), "--api-listen=127.0.0.1:0", "--ingress-nodes=loom-a"]
            .map(str::to_owned)
            .to_vec();
    args.extend(authority.flags("brain", &["127.0.0.1"]));
    let brain = Agent::start(&args.iter().map(String::as_str).collect::<Vec<_>>());
    let entry = brain.wait_log("serving the Global and Local API");
    let source = format!("--source=brain:https://{}", entry["api"].as_str().unwrap());
    let mut flags = authority.flags("loom-a", &[]);
    flags.push("--classless-ingresses=true".to_owned());
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let plane = Ingress::start_from(manifests, &source, "same", &flags);
    wait_answers(&plane, &["one", "two"]);
    let address = two.address.ip().to_string();
    let here = manage(&plane.agent, &["drain", "shop/web", "--address", &address]);
    assert_eq!(here.code, Some(1), "a node of a brain writes nothing: {here:?}");
    let done = managed(&brain, &["drain", "shop/web", &address, "--output=json"]);
    let done: Value = serde_json::from_str(&done).unwrap();
    wait_answers(&plane, &["one"]);
    let id = crate::support::id_of(&done);
    // The node's own log has no such entry, and says so.
    let elsewhere = manage(&plane.agent, &["overrides", "undo", &id]);
    assert_eq!(elsewhere.code, Some(2), "{elsewhere:?}");
    assert!(elsewhere.stderr.contains("is in the audit log of"), "{elsewhere:?}");
    managed(&brain, &["overrides", "undo", &id]);
    wait_answers(&plane, &["one", "two"]);
}

#[test]
fn a_worker_that_hangs_hides_neither_services_nor_figures_and_stops_no_drain() {
    let (one, two) = (Echo::start("one"), Echo::start_at("two", "127.0.0.2"));
    let manifests = Manifests::empty();
    let all = service("web", &[&one, &two]) + &ingress("web", "a.example.com", "/", "web", "");
    manifests.write("all.yaml", &all);
    let plane = Ingress::start(manifests, "own");
    wait_answers(&plane, &["one", "two"]);
    assert_eq!(told(plane.agent.admin, "/api/v1/routes")["total"], 1);
    let worker = worker_of(plane.agent.pid()).expect("a worker").to_string();
    let signal = |name: &str| {
        assert!(Command::new("kill").args([name, &worker]).status().unwrap().success());
    };
    signal("-STOP");
    let samples = || {
        let history = told(plane.agent.admin, "/api/v1/history");
        history["recent"].as_array().unwrap().last().unwrap()["at_ms"].as_i64().unwrap()
    };
    let begun = samples();
    managed(&plane.agent, &["drain", "shop/web", &two.address.ip().to_string()]);
    let drained = told(plane.agent.admin, "/api/v1/services/shop/web");
    assert!(drained["endpoint_items"].to_string().contains("\"drained\":true"), "{drained}");
    // More samples come than would if each waited for the worker.
    wait_until("samples", || (samples() > begun + 3000).then_some(()));
    wait_until("that it is told", || {
        let overview = told(plane.agent.admin, "/api/v1/overview");
        let planes = overview["planes"].as_array().unwrap().clone();
        planes.iter().find(|it| it["name"] == "ingress" && it["state"] == "error").map(drop)
    });
    signal("-CONT");
    wait_answers(&plane, &["one"]);
    wait_until("that it is well again", || {
        let overview = told(plane.agent.admin, "/api/v1/overview");
        let planes = overview["planes"].as_array().unwrap().clone();
        planes.iter().find(|it| it["name"] == "ingress" && it["state"] == "ok").map(drop)
    });
}

/// Runs a command at a terminal, where somebody types this; its code and what the terminal shows.
fn at_a_terminal(agent: &Agent, args: &[&str], typed: &str) -> (Option<i32>, String) {
    let program = telaio().get_program().to_string_lossy().into_owned();
    let state = format!("--state-dir={}", agent.state.path().display());
    let address = format!("--admin-listen={}", agent.admin);
    let line = [&[program.as_str()], args, &[state.as_str(), address.as_str()]].concat().join(" ");
    let mut child = Command::new("script")
        .args(["-qec", &line, "/dev/null"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.as_mut().unwrap().write_all(typed.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
}

#[test]
fn at_a_terminal_an_action_is_shown_and_asked_for_once() {
    let (_one, two, plane) = two();
    wait_answers(&plane, &["one", "two"]);
    let address = two.address.ip().to_string();
    let drain = ["drain", "shop/web", &address, "--for=1h"];
    let total = || told(plane.agent.admin, "/api/v1/overrides")["total"].clone();
    let (code, shown) = at_a_terminal(&plane.agent, &drain, "n\n");
    assert!(shown.contains("would drain") && shown.contains("[y/N]"), "{shown}");
    assert!(shown.contains("until "), "the preview says when it ends: {shown}");
    assert_eq!((code, total()), (Some(1), 0.into()), "{shown}");
    let (code, shown) = at_a_terminal(&plane.agent, &drain, "y\n");
    assert!(shown.contains("[y/N]") && shown.contains("done: drain"), "{shown}");
    assert_eq!((code, total()), (Some(0), 1.into()), "{shown}");
    let (code, shown) =
        at_a_terminal(&plane.agent, &["undrain", "shop/web", &address, "--yes"], "");
    assert!(!shown.contains("[y/N]"), "{shown}");
    assert_eq!((code, total()), (Some(0), 0.into()), "{shown}");
    // In a pipe nobody is asked.
    managed(&plane.agent, &["drain", "shop/web", &address]);
    assert_eq!(total(), 1);
}

#[test]
fn the_token_is_printed_once_to_a_terminal_and_never_logged() {
    let manifests = Manifests::empty();
    let state = tempfile::tempdir().unwrap();
    let log = state.path().join("log");
    let token_file = state.path().join("admin.token");
    let start = || {
        let _ = std::fs::remove_file(&log);
        let program = telaio().get_program().to_string_lossy().into_owned();
        let line = format!(
            "exec {program} run --backend=view --node=loom-a {} --state-dir={} --log-file={} \
             --log-format=json --admin-listen=127.0.0.1:0 --metrics-bind-address=127.0.0.1:0 \
             --healthz-bind-address=127.0.0.1:0",
            manifests.source(),
            state.path().display(),
            log.display()
        );
        let child = Command::new("script")
            .args(["-qec", &line, "/dev/null"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let listening = wait_until("the agent", || {
            let text = std::fs::read_to_string(&log).ok()?;
            let entries = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
            entries.into_iter().find(|it| it["message"] == "listening")
        });
        let token = std::fs::read_to_string(&token_file).unwrap().trim().to_owned();
        let admin = listening["admin"].as_str().unwrap().parse().unwrap();
        let (status, body) = crate::support::send(admin, &token, "/api/v1/overview", None);
        assert_eq!(status, 200, "{body}");
        let pid = serde_json::from_str::<Value>(&body).unwrap()["pid"].to_string();
        assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
        let shown = child.wait_with_output().unwrap();
        let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
        let logged = std::fs::read_to_string(&log).unwrap();
        assert!(!logged.contains(&token), "a log is kept, and read by others");
        shown.matches(&token).count()
    };
    assert_eq!(start(), 1, "at the first start");
    assert_eq!(start(), 0, "never again");
}

#[test]
fn a_token_does_not_leave_this_machine_in_the_clear() {
    let ended = run_args(["overrides", "list", "--admin-listen=192.0.2.1:9900"]);
    assert_eq!(ended.code, Some(2), "{ended:?}");
    assert!(ended.stderr.contains("--admin-tls-ca"), "{ended:?}");
}

#[test]
fn a_trace_from_a_shared_link_shows_a_line_that_is_safe_to_paste() {
    let (_one, _two, plane) = two();
    let question = "/api/v1/trace?url=http://a.example.com/;reboot";
    let answer = told(plane.agent.admin, question);
    let command = answer["command"].as_str().unwrap();
    assert!(command.ends_with("--url 'http://a.example.com/;reboot'"), "{command}");
    let source = plane.manifests.source();
    let (_, path) = source.split_once('=').unwrap();
    for part in ["telaio trace --source ", path, "--node loom-a"] {
        assert!(command.contains(part), "{part}: {command}");
    }
}
