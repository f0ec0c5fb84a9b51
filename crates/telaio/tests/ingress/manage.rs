//! People decide by the command line, and requests follow: counted at real backends.

use std::time::{Duration, Instant};

use serde_json::Value;

use super::operations::{told, wait_until};
use super::{Echo, Ingress, Manifests, ask, ingress, service};
use crate::support::{Agent, Ended, id_of, run, telaio};

/// Two backends of one service behind one route.
pub(crate) fn two() -> (Echo, Echo, Ingress) {
    let (one, two) = (Echo::start("one"), Echo::start_at("two", "127.0.0.2"));
    let manifests = Manifests::empty();
    let all = service("web", &[&one, &two]) + &ingress("web", "a.example.com", "/", "web", "");
    manifests.write("all.yaml", &all);
    let plane = Ingress::start(manifests, "same");
    (one, two, plane)
}

/// Runs a command against the agent.
pub(crate) fn manage(agent: &Agent, args: &[&str]) -> Ended {
    let state = format!("--state-dir={}", agent.state.path().display());
    let address = format!("--admin-listen={}", agent.admin);
    run(telaio().args(args).args([&state, &address]).env("USER", "anna"))
}

pub(crate) fn managed(agent: &Agent, args: &[&str]) -> String {
    let ended = manage(agent, args);
    assert_eq!(ended.code, Some(0), "{args:?}: {ended:?}");
    ended.stdout
}

/// Who answers twenty requests, in order of name.
fn answers(plane: &Ingress) -> Vec<String> {
    let mut all: Vec<String> =
        (0..20).filter_map(|_| ask(plane.http, "a.example.com", "/").backend()).collect();
    all.sort();
    all.dedup();
    all
}

pub(crate) fn wait_answers(plane: &Ingress, wanted: &[&str]) {
    wait_until(&format!("answers of {wanted:?}"), || (answers(plane) == wanted).then_some(()));
}

/// The namespace of the services here.
fn namespace_of(plane: &Ingress) -> String {
    let services = told(plane.agent.admin, "/api/v1/services");
    services["items"][0]["namespace"].as_str().unwrap().to_owned()
}

#[test]
fn a_drained_backend_gets_no_request_and_undoing_brings_it_back() {
    let (_one, two, plane) = two();
    wait_answers(&plane, &["one", "two"]);
    let namespace = namespace_of(&plane);
    let web = format!("{namespace}/web");
    let detail = told(plane.agent.admin, &format!("/api/v1/services/{web}"));
    let endpoints = detail["endpoint_items"].as_array().unwrap();
    assert_eq!(endpoints.len(), 2, "{detail}");
    let address = two.address.ip().to_string();

    let shown = managed(&plane.agent, &["drain", &web, "--address", &address, "--dry-run"]);
    assert!(shown.starts_with("would drain") && shown.contains("nothing new"), "{shown}");
    assert_eq!(told(plane.agent.admin, "/api/v1/overrides")["total"], 0, "nothing was done");
    let done = managed(
        &plane.agent,
        &["drain", &web, "--address", &address, "--reason", "disk", "--output=json"],
    );
    let done: Value = serde_json::from_str(&done).unwrap();
    wait_answers(&plane, &["one"]);
    let before = two.requests();
    for _ in 0..50 {
        assert_eq!(ask(plane.http, "a.example.com", "/").backend().as_deref(), Some("one"));
    }
    assert_eq!(two.requests(), before, "not one request");
    let listed = managed(&plane.agent, &["overrides", "list"]);
    assert!(
        listed.contains("drain") && listed.contains("anna") && listed.contains("disk"),
        "{listed}"
    );
    let file = plane.manifests.0.path().join("telaio-overrides.yaml");
    assert!(file.exists(), "it is written beside the manifests");
    let trace = told(plane.agent.admin, "/api/v1/trace?url=http://a.example.com/");
    assert_eq!(trace["endpoints"].as_array().unwrap().len(), 1, "{trace}");
    let routes = told(plane.agent.admin, "/api/v1/routes");
    assert_eq!(
        (&routes["total"], &routes["items"][0]["backends"][0]["ready"]),
        (&1.into(), &1.into())
    );

    managed(&plane.agent, &["overrides", "undo", &id_of(&done)]);
    wait_answers(&plane, &["one", "two"]);
    assert!(!file.exists());
    let audit = managed(&plane.agent, &["overrides", "audit"]);
    assert!(audit.contains("undo") && audit.contains("anna (admin)"), "{audit}");

    managed(&plane.agent, &["weight", &web, "0", "--address", &address]);
    wait_answers(&plane, &["one"]);
    managed(&plane.agent, &["undrain", &web, &address]);
    wait_answers(&plane, &["one", "two"]);
    managed(&plane.agent, &["weight", &web, &address, "0"]);
    wait_answers(&plane, &["one"]);
    managed(&plane.agent, &["undrain", &web, &address]);
    wait_answers(&plane, &["one", "two"]);
    managed(&plane.agent, &["overrides", "remove", &web, &address]);
    wait_answers(&plane, &["one"]);
    managed(&plane.agent, &["undrain", &web, &address]);
    wait_answers(&plane, &["one", "two"]);
    let nobody = manage(&plane.agent, &["drain", &web, "--address", "10.9.9.9"]);
    assert_eq!(nobody.code, Some(2), "{nobody:?}");
    assert!(nobody.stderr.contains("it has:"), "{nobody:?}");
    let nobody = manage(&plane.agent, &["drain", &web, "no-such-pod"]);
    assert_eq!(nobody.code, Some(2), "{nobody:?}");
    assert!(nobody.stderr.contains("it has:"), "{nobody:?}");
    for wrong in [&["weight", &web, "many"][..], &["weight", &web, "3"], &["drain", &web]] {
        assert_eq!(manage(&plane.agent, wrong).code, Some(2), "{wrong:?}");
    }
}

#[test]
fn a_drain_outlives_the_agent_and_ends_when_it_should() {
    let (_one, two, plane) = two();
    wait_answers(&plane, &["one", "two"]);
    let web = format!("{}/web", namespace_of(&plane));
    let address = two.address.ip().to_string();
    // One that is far from its end: a restart changes nothing, however long it takes.
    managed(&plane.agent, &["drain", &web, "--address", &address, "--for=1h"]);
    wait_answers(&plane, &["one"]);
    let Ingress { agent, manifests, .. } = plane;
    let (status, log) = agent.end();
    assert_eq!(status.code(), Some(0), "{log}");
    let again = Ingress::start(manifests, "same");
    assert_eq!(answers(&again), ["one"]);
    managed(&again.agent, &["undrain", &web, &address]);
    wait_answers(&again, &["one", "two"]);
    // And one that ends while another agent runs than the one that was asked.
    let begun = Instant::now();
    managed(&again.agent, &["drain", &web, "--address", &address, "--for=5s"]);
    let Ingress { agent, manifests, .. } = again;
    let (status, log) = agent.end();
    assert_eq!(status.code(), Some(0), "{log}");
    let again = Ingress::start(manifests, "same");
    wait_answers(&again, &["one", "two"]);
    assert!(begun.elapsed() >= Duration::from_secs(4), "it ended before its time");
    let file = again.manifests.0.path().join("telaio-overrides.yaml");
    wait_until("the file to go", || (!file.exists()).then_some(()));
}

#[test]
fn a_paused_route_says_so_and_resumes() {
    let (_one, _two, plane) = two();
    wait_answers(&plane, &["one", "two"]);
    let web = format!("{}/web", namespace_of(&plane));
    managed(&plane.agent, &["overrides", "pause", &web, "--host", "a.example.com"]);
    let answer = plane.ask_until("a.example.com", "/", |answer| answer.status == 503);
    assert!(answer.head.to_lowercase().contains("retry-after: 60"), "{answer:?}");
    assert!(answer.body.contains("maintenance"), "{answer:?}");
    let routes = told(plane.agent.admin, "/api/v1/routes");
    assert_eq!(routes["items"][0]["action"], "paused", "{routes}");
    // Who looks for what the service has to do with it still finds it.
    let to = &routes["items"][0]["backends"][0];
    assert_eq!((&to["service"]["name"], &to["ready"]), (&"web".into(), &2.into()), "{routes}");
    let detail = told(plane.agent.admin, &format!("/api/v1/services/{web}"));
    assert_eq!(detail["routes"].as_array().map(Vec::len), Some(1), "{detail}");
    for query in ["", "?q=a.example.com", "?collapse=namespace"] {
        let map = told(plane.agent.admin, &format!("/api/v1/map{query}"));
        let leads = |it: &Value| it["from"].as_str().is_some_and(|it| it.starts_with("route"));
        let edge = map["edges"].as_array().unwrap().iter().find(|it| leads(it)).cloned();
        assert_eq!(edge.map(|it| it["closed"].clone()), Some(true.into()), "{query}: {map}");
    }
    let whole = manage(&plane.agent, &["overrides", "resume", &web]);
    assert_eq!(whole.code, Some(2), "only a host is paused: {whole:?}");
    assert!(whole.stderr.contains("host a.example.com"), "{whole:?}");
    managed(&plane.agent, &["overrides", "resume", &web, "--host", "a.example.com"]);
    plane.ask_until("a.example.com", "/", |answer| answer.status == 200);
    managed(&plane.agent, &["overrides", "pause", &web, "--for=2s"]);
    plane.ask_until("a.example.com", "/", |answer| answer.status == 503);
    plane.ask_until("a.example.com", "/", |answer| answer.status == 200);
    // It is over for requests at once, and then also where it is written and in the log.
    let file = plane.manifests.0.path().join("telaio-overrides.yaml");
    wait_until("the file to go", || (!file.exists()).then_some(()));
    wait_until("its end in the audit log", || {
        let audit = managed(&plane.agent, &["overrides", "audit"]);
        let ends = audit.lines().filter(|line| line.contains("ended by itself: pause")).count();
        assert!(ends <= 1, "{audit}");
        (ends == 1).then_some(())
    });
}

#[test]
fn a_backend_is_added_by_hand_and_figures_are_live() {
    let (one, two) = (Echo::start("one"), Echo::start_at("two", "127.0.0.2"));
    let manifests = Manifests::empty();
    let all = service("web", &[&one]) + &ingress("web", "a.example.com", "/", "web", "");
    manifests.write("all.yaml", &all);
    let plane = Ingress::start(manifests, "same");
    let web = format!("{}/web", namespace_of(&plane));
    wait_answers(&plane, &["one"]);
    let (address, port) = (two.address.ip().to_string(), two.address.port().to_string());
    if two.address.ip().is_loopback() {
        // Nobody means a loopback address by hand; a manifest may.
        let refused = manage(&plane.agent, &["overrides", "add", &web, &address, "--port", &port]);
        assert_eq!(refused.code, Some(2), "{refused:?}");
    }
    let overview = wait_until("figures of requests", || {
        let overview = told(plane.agent.admin, "/api/v1/overview");
        (overview["traffic"]["requests"].as_u64() >= Some(20)).then_some(overview)
    });
    assert_eq!(overview["planes"][1]["name"], "ingress", "{overview}");
    let map = told(plane.agent.admin, "/api/v1/map");
    let kinds: Vec<&str> =
        map["vertices"].as_array().unwrap().iter().map(|it| it["kind"].as_str().unwrap()).collect();
    for kind in ["host", "route", "service", "endpoint"] {
        assert!(kinds.contains(&kind), "{map}");
    }
    plane.manifests.write("more.yaml", &service("more", &[&two]));
    wait_until("an event", || {
        let events = told(plane.agent.admin, "/api/v1/events?kind=Service&q=more");
        (events["items"][0]["change"] == "added").then_some(())
    });
}

#[test]
fn a_purge_says_what_it_will_take_and_makes_the_cache_ask_again() {
    let one = Echo::start("one");
    let manifests = Manifests::empty();
    let cached = "  annotations: {telaio.dev/cache: 'true'}\n";
    let all = service("web", &[&one]) + &ingress("web", "a.example.com", "/", "web", cached);
    manifests.write("all.yaml", &all);
    let plane = Ingress::start(manifests, "same");
    let paths = ["/a?max-age=600", "/b?max-age=600"];
    for path in paths {
        wait_until("a hit", || {
            let answer = ask(plane.http, "a.example.com", path);
            answer.field("cache-status").filter(|it| it.contains("hit")).map(drop)
        });
    }
    let purge = ["purge", "--prefix", "http://a.example.com/a"];
    let shown = managed(&plane.agent, &[&purge[..], &["--dry-run"]].concat());
    assert!(shown.starts_with("would") && shown.contains("1 URL is kept"), "{shown}");
    let before = one.requests();
    for path in paths {
        ask(plane.http, "a.example.com", path);
    }
    assert_eq!(one.requests(), before, "a dry run takes nothing, and both come from the cache");
    let done = managed(&plane.agent, &purge);
    assert!(done.contains("1 URL was forgotten by this node's cache"), "{done}");
    assert!(done.contains("this node only"), "{done}");
    for path in paths {
        ask(plane.http, "a.example.com", path);
    }
    assert_eq!(one.requests(), before + 1, "only what was purged is asked for again");
    let shown = managed(&plane.agent, &["purge", "--host", "a.example.com", "--dry-run"]);
    assert!(shown.contains("2 URLs are kept"), "{shown}");
    let wrong = manage(&plane.agent, &["purge", "--url", "not a url", "--dry-run"]);
    assert_eq!(wrong.code, Some(2), "{wrong:?}");
    let audit = managed(&plane.agent, &["overrides", "audit"]);
    assert!(audit.contains("have the cache forget"), "{audit}");
}
