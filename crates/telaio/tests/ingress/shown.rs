//! What the admin API shows of routes and backends is what requests meet.

use serde_json::{Value, json};

use super::lifecycle::worker_of;
use super::operations::{post, told, wait_until};
use super::{Echo, Ingress, Manifests, all_annotated, annotated, ask, ingress, service};
use crate::support::{Agent, get};

/// The service of that name, as the list has it.
fn listed(agent: &Agent, name: &str) -> Value {
    let list = told(agent.admin, &format!("/api/v1/services?q=/{name}"));
    list["items"].as_array().and_then(|all| all.first()).cloned().unwrap_or(Value::Null)
}

#[test]
fn answers_of_500_are_errors_of_their_endpoint_and_eject_nobody() {
    let (good, bad) = (Echo::start("good"), Echo::start_at("bad", "127.0.0.2"));
    let manifests = Manifests::empty();
    let all = service("web", &[&good, &bad])
        + &service("fine", &[&good])
        + &ingress("a", "a.example.com", "/", "web", "")
        + &ingress("b", "b.example.com", "/", "fine", "");
    manifests.write("all.yaml", &all);
    let plane = Ingress::start(manifests, "same");
    let web = wait_until("the service", || {
        Some(listed(&plane.agent, "web")).filter(|it| it["endpoints"]["total"] == 2)
    });
    let key = format!("{}/{}", web["namespace"].as_str().unwrap(), "web");
    // A share of what goes through fails, whoever answers.
    let (mut asked, mut failed) = (0_u64, 0_u64);
    let detail = wait_until("errors of the endpoints and a red edge", || {
        for i in 0..20 {
            let path = if i % 4 == 0 { "/?status=500" } else { "/" };
            let answer = ask(plane.http, "a.example.com", path);
            assert_eq!(answer.status, if i % 4 == 0 { 500 } else { 200 }, "nobody is ejected");
            asked += 1;
            failed += u64::from(i % 4 == 0);
            ask(plane.http, "b.example.com", "/");
        }
        let map = told(plane.agent.admin, "/api/v1/map?q=a.example.com");
        let is_red = |it: &&Value| {
            it["from"] == format!("service:{key}") && it["error_rate"].as_f64() > Some(0.0)
        };
        let red = map["edges"].as_array().unwrap().iter().filter(is_red).count();
        let detail = told(plane.agent.admin, &format!("/api/v1/services/{key}"));
        (red == 2 && detail["counters"]["errors"] == failed).then_some(detail)
    });
    assert_eq!(detail["counters"]["requests"], asked, "{detail}");
    let (p50, p99) = (&detail["counters"]["p50_ms"], &detail["counters"]["p99_ms"]);
    assert!(p50.as_f64() > Some(0.0) && p99.as_f64() >= p50.as_f64(), "{detail}");
    let endpoints = detail["endpoint_items"].as_array().unwrap();
    let errors: Vec<u64> =
        endpoints.iter().map(|it| it["counters"]["errors"].as_u64().unwrap()).collect();
    assert_eq!(errors.iter().sum::<u64>(), failed, "{detail}");
    assert!(errors.iter().all(|count| *count > 0), "each has its own: {detail}");
    assert!(endpoints.iter().all(|it| it["counters"]["p99_ms"].is_f64()), "{detail}");
    let routes = told(plane.agent.admin, "/api/v1/routes?host=a.example.com");
    let to = &routes["items"][0]["backends"][0];
    assert_eq!((&to["ready"], &to["total"]), (&json!(2), &json!(2)), "{routes}");
    assert_eq!(
        listed(&plane.agent, "fine")["counters"]["errors"],
        0,
        "those of others are others'"
    );
    let why = &detail["traffic_reason"];
    assert!(detail["traffic"].is_null() && why.is_string(), "nothing is programmed: {detail}");
}

#[test]
fn a_route_shows_its_canary_where_it_sends_clients_and_what_happens_on_the_way() {
    let (one, two) = (Echo::start("one"), Echo::start_at("two", "127.0.0.2"));
    let manifests = Manifests::empty();
    let canary = all_annotated(&[
        ("canary", "true"),
        ("canary-by-header", "X-Canary"),
        ("canary-weight", "20"),
    ]);
    let busy = all_annotated(&[
        ("limit-rps", "50"),
        ("rewrite-target", "/new"),
        ("whitelist-source-range", "127.0.0.0/8"),
        ("enable-cors", "true"),
    ]);
    let all = service("one", &[&one])
        + &service("two", &[&two])
        + &ingress("main", "a.example.com", "/", "one", "")
        + &ingress("canary", "a.example.com", "/", "two", &canary)
        + &ingress(
            "moved",
            "m.example.com",
            "/",
            "one",
            &annotated("permanent-redirect", "https://n.example.com"),
        )
        + &ingress("busy", "b.example.com", "/", "one", &busy);
    manifests.write("all.yaml", &all);
    let plane = Ingress::start(manifests, "same");
    let route = |host: &str| {
        let list = told(plane.agent.admin, &format!("/api/v1/routes?host={host}"));
        list["items"][0].clone()
    };
    let main = route("a.example.com");
    let other = main["backends"].as_array().unwrap().iter().find(|it| it["canary"] == true);
    let condition = other.unwrap()["condition"].as_str().unwrap().to_lowercase();
    assert_eq!(condition, "header x-canary: always, else 20 of 100", "{main}");
    let moved = route("m.example.com");
    assert_eq!(moved["action"], "redirect", "{moved}");
    assert_eq!(moved["action_text"], "301 to https://n.example.com", "{moved}");
    let busy = route("b.example.com");
    for feature in ["rate limit", "rewrite", "allow-list", "CORS"] {
        let features = busy["features"].as_array().unwrap();
        assert!(features.contains(&json!(feature)), "{feature}: {busy}");
    }
}

/// The step of an answer that decides; there is one.
fn deciding(trace: &Value) -> (&str, &str) {
    let steps = trace["steps"].as_array().unwrap();
    let all: Vec<&Value> = steps.iter().filter(|it| it["decides"] == true).collect();
    let [one] = all.as_slice() else { panic!("{trace}") };
    (one["kind"].as_str().unwrap(), one["text"].as_str().unwrap())
}

#[test]
fn a_trace_goes_from_the_listener_to_the_step_that_decides_by_the_agents_own_settings() {
    let one = Echo::start("one");
    let manifests = Manifests::empty();
    let pair = rcgen::generate_simple_self_signed(["shop.example.com".to_owned()]).unwrap();
    let indent = |text: String| format!("    {}\n", text.trim().replace('\n', "\n    "));
    let secret = format!(
        "apiVersion: v1\nkind: Secret\nmetadata: {{name: cert, namespace: shop}}\n\
         type: kubernetes.io/tls\nstringData:\n  tls.crt: |\n{}  tls.key: |\n{}---\n",
        indent(pair.cert.pem()),
        indent(pair.signing_key.serialize_pem())
    );
    let classed = |name: &str, host: &str, class: &str| {
        let spec = format!("spec:\n  ingressClassName: {class}\n");
        ingress(name, host, "/cart", "one", "").replace("spec:\n", &spec)
    };
    let all = service("one", &[&one])
        + &secret
        + &classed("front", "shop.example.com", "loom")
        + &classed("other", "other.example.com", "telaio");
    manifests.write("all.yaml", &all);
    let flags = ["--ingress-class=loom", "--default-tls-secret=shop/cert"];
    let plane = Ingress::start_with(manifests, "same", &flags);
    let trace = |url: &str| told(plane.agent.admin, &format!("/api/v1/trace?url={url}"));

    let found = trace("https://shop.example.com/cart");
    assert_eq!(found["verdict"], "forward", "{found}");
    let kinds: Vec<&str> =
        found["steps"].as_array().unwrap().iter().map(|it| it["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["listener", "certificate", "route", "backend"], "{found}");
    let text = found["steps"].to_string();
    assert!(text.contains("shop.example.com (SNI)") && text.contains("of shop/cert"), "{found}");
    assert!(!text.contains("Exact("), "{found}");
    let (kind, said) = deciding(&found);
    assert_eq!(kind, "route", "{found}");
    assert!(said.contains("shop.example.com /cart (as a prefix)"), "{said}");
    // Of another class: this agent's ingress does not serve it.
    assert_eq!(ask(plane.http, "other.example.com", "/cart").status, 404);
    let other = trace("http://other.example.com/cart");
    assert_eq!((&other["verdict"], deciding(&other).0), (&json!("none"), "route"), "{other}");

    let front = &told(plane.agent.admin, "/api/v1/routes?host=shop.example.com")["items"][0];
    let pause = json!({
        "action": {"kind": "pause_route", "ingress": front["ingress"]},
        "by": "anna", "reason": "new cart", "for_s": 600,
    });
    let (status, done) = post(plane.agent.admin, "/api/v1/actions", "application/json", &pause);
    assert_eq!(status, 200, "{done}");
    let paused = wait_until("the pause", || {
        Some(trace("http://shop.example.com/cart")).filter(|it| it["verdict"] == "respond")
    });
    let (kind, said) = deciding(&paused);
    assert_eq!((kind, &paused["status"]), ("pause", &json!(503)), "{paused}");
    assert!(said.contains("anna") && said.contains("until 20"), "by whom and until when: {said}");
    let told_of = wait_until("the event of the pause", || {
        let events = told(plane.agent.admin, "/api/v1/events?kind=Override");
        events["items"].as_array().unwrap().first().cloned()
    });
    let summary = told_of["summary"].as_str().unwrap();
    assert!(summary.contains("pause") && !summary.contains("is new"), "{told_of}");
}

#[test]
fn while_the_worker_does_not_answer_routes_are_as_they_were_and_can_be_paused() {
    let one = Echo::start("one");
    let manifests = Manifests::empty();
    let all = service("one", &[&one]) + &ingress("a", "a.example.com", "/", "one", "");
    manifests.write("all.yaml", &all);
    let plane = Ingress::start(manifests, "own");
    let routes = || told(plane.agent.admin, "/api/v1/routes");
    let front = routes()["items"][0].clone();
    assert_eq!(front["host"], "a.example.com");
    let worker = worker_of(plane.agent.pid()).expect("a worker").to_string();
    let signal = |name: &str| {
        let status = std::process::Command::new("kill").args([name, &worker]).status().unwrap();
        assert!(status.success());
    };
    signal("-STOP");
    let stale = wait_until("the worker's silence", || {
        Some(routes()).filter(|it| it["stale"]["since_ms"].is_i64())
    });
    assert_eq!((&stale["total"], &stale["items"][0]["host"]), (&json!(1), &front["host"]));
    assert!(told(plane.agent.admin, "/api/v1/map")["stale"].is_object());
    let attention = &told(plane.agent.admin, "/api/v1/overview")["attention"];
    assert!(attention.to_string().contains("as they were"), "{attention}");
    let pause = json!({"action": {"kind": "pause_route", "ingress": front["ingress"]}});
    let (status, done) = post(plane.agent.admin, "/api/v1/actions", "application/json", &pause);
    assert_eq!(status, 200, "{done}");
    signal("-CONT");
    wait_until("the pause", || (ask(plane.http, "a.example.com", "/").status == 503).then_some(()));
    wait_until("routes of now", || routes()["stale"].is_null().then_some(()));

    signal("-KILL");
    wait_until("the event of another worker", || {
        let events = told(plane.agent.admin, "/api/v1/events?kind=ingress");
        let items = events["items"].as_array().unwrap();
        items.iter().find(|it| it["change"] == "recovered").map(drop)
    });
    wait_until("routes of the next worker", || {
        let (status, body) = get(plane.agent.admin, "/api/v1/routes");
        assert!(status == 503 || body.contains("a.example.com"), "never empty: {body}");
        let body: Value = serde_json::from_str(&body).unwrap();
        (status == 200 && body["stale"].is_null()).then_some(())
    });
}

#[test]
fn the_overview_names_who_answers_with_errors_now() {
    let (one, two) = (Echo::start("one"), Echo::start_at("two", "127.0.0.2"));
    let manifests = Manifests::empty();
    let all = service("web", &[&one, &two])
        + &service("gone", &[])
        + &ingress("front", "a.example.com", "/", "web", "")
        + &ingress("dead", "d.example.com", "/", "gone", "");
    manifests.write("all.yaml", &all);
    let plane = Ingress::start(manifests, "same");
    let named = |overview: &Value, kind: &str, name: &str, text: &str| {
        let all = overview["attention"].as_array().unwrap();
        let found = all.iter().find(|it| {
            it["kind"] == kind
                && it["object"]["name"] == name
                && it["message"].as_str().is_some_and(|it| it.contains(text))
        });
        found.cloned()
    };
    let route_id = |host: &str| {
        let list = told(plane.agent.admin, &format!("/api/v1/routes?host={host}"));
        list["items"][0]["id"].clone()
    };
    let dead = wait_until("the route that leads to nobody", || {
        named(&told(plane.agent.admin, "/api/v1/overview"), "route", "dead", "no endpoint is ready")
    });
    assert_eq!((&dead["state"], &dead["route"]), (&json!("error"), &route_id("d.example.com")));
    let (route, endpoint) = wait_until("route, service and endpoint", || {
        for i in 0..20 {
            let path = if i % 4 == 0 { "/?status=500" } else { "/" };
            ask(plane.http, "a.example.com", path);
        }
        let overview = told(plane.agent.admin, "/api/v1/overview");
        named(&overview, "service", "web", "5xx")?;
        let route = named(&overview, "route", "front", "5xx")?;
        Some((route, named(&overview, "endpoint", "web", "5xx")?))
    });
    assert_eq!(route["route"], route_id("a.example.com"), "{route}");
    let addresses = [json!(one.address.ip()), json!(two.address.ip())];
    assert!(addresses.contains(&endpoint["endpoint"]), "{endpoint}");
}
