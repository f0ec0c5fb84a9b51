//! What is answered: in parts, filtered, as the document says; live; and at what cost.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::cast_precision_loss,
    reason = "what fails here fails the test"
)]

mod support;

use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use serde_json::{Value, json};
use support::{Imagined, counters, read_until, route, start};
use telaio_gui::NewEvent;
use telaio_gui::values::ingress::RouteItem;
use telaio_gui::values::{Key, Stale, State};

/// Holds a value against a schema of the document; says where it does not fit.
fn check(document: &Value, schema: &Value, value: &Value, at: &str) -> Result<(), String> {
    if let Some(name) = schema["$ref"].as_str() {
        let name = name.strip_prefix("#/components/schemas/").unwrap();
        return check(document, &document["components"]["schemas"][name], value, at);
    }
    for choice in ["anyOf", "oneOf"] {
        if let Some(all) = schema[choice].as_array() {
            let fits = all.iter().any(|it| check(document, it, value, at).is_ok());
            return if fits { Ok(()) } else { Err(format!("{at}: {value} fits none")) };
        }
    }
    if let Some(all) = schema["enum"].as_array()
        && !all.contains(value)
    {
        return Err(format!("{at}: {value} is none of {all:?}"));
    }
    let types: Vec<&str> = match &schema["type"] {
        Value::String(one) => vec![one],
        Value::Array(all) => all.iter().filter_map(Value::as_str).collect(),
        _ => vec![],
    };
    let is = match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    let fits =
        types.is_empty() || types.contains(&is) || (is == "integer" && types.contains(&"number"));
    if !fits {
        return Err(format!("{at}: {value} is not {types:?}"));
    }
    if let Value::Object(fields) = value {
        for needed in schema["required"].as_array().into_iter().flatten() {
            if !fields.contains_key(needed.as_str().unwrap()) {
                return Err(format!("{at}: {needed} is missing"));
            }
        }
        for (name, value) in fields {
            match schema["properties"].get(name) {
                Some(schema) => check(document, schema, value, &format!("{at}.{name}"))?,
                None if schema["properties"].is_object()
                    && schema["additionalProperties"].is_null() =>
                {
                    return Err(format!("{at}: {name} is not in the document"));
                }
                None => {}
            }
        }
    }
    if let (Value::Array(items), Some(schema)) = (value, schema.get("items")) {
        for (i, item) in items.iter().enumerate() {
            check(document, schema, item, &format!("{at}[{i}]"))?;
        }
    }
    Ok(())
}

#[tokio::test]
async fn every_answer_is_as_the_document_says() {
    let server = start(Imagined::default()).await;
    server.events.push(event("web"));
    let drain = json!({"action": {"kind": "drain", "service": {"namespace": "ns-0", "name": "web-0000"},
                                  "target": {"pod": "web-0000-1"}}});
    let done = server.post("/api/v1/actions", &drain).await;
    assert_eq!(done.status, 200, "{}", done.body);
    let document = server.json("/api/v1/openapi.json").await;
    let paths = document["paths"].as_object().unwrap();
    let mut seen = 0;
    for (path, operations) in paths {
        let Some(operation) = operations.get("get") else { continue };
        if path.ends_with("/stream") || path.ends_with("openapi.json") {
            continue;
        }
        let mut asked = path.replace("{namespace}", "ns-0").replace("{name}", "web-0000");
        if asked.ends_with("/trace") {
            asked += "?url=http://a/";
        }
        let value = server.json(&asked).await;
        let schema = &operation["responses"]["200"]["content"]["application/json"]["schema"];
        check(&document, schema, &value, path).unwrap();
        seen += 1;
    }
    assert!(seen >= 18, "{seen}");
    let schema = &paths["/api/v1/actions"]["post"]["responses"]["200"]["content"]["application/json"]
        ["schema"];
    check(&document, schema, &done.json(), "actions").unwrap();
    let missing = server.get("/api/v1/services/ns-0/nobody").await;
    assert_eq!(missing.status, 404);
    check(&document, &document["components"]["schemas"]["Problem"], &missing.json(), "problem")
        .unwrap();
    // And the check can fail.
    assert!(check(&document, schema, &json!({"dry_run": 1}), "x").is_err());
}

#[tokio::test]
async fn lists_come_in_parts_and_can_be_filtered() {
    let server = start(Imagined { services: 1000, ..Imagined::default() }).await;
    let first = server.json("/api/v1/services?limit=300").await;
    assert_eq!((&first["total"], &first["next"]), (&json!(1000), &json!(300)));
    let last = server.json("/api/v1/services?limit=300&offset=900").await;
    assert_eq!((last["items"].as_array().unwrap().len(), &last["next"]), (100, &Value::Null));
    assert_eq!(server.json("/api/v1/services?namespace=ns-3").await["total"], 100);
    assert_eq!(server.json("/api/v1/services?q=WEB-0123").await["total"], 1);
    assert_eq!(
        server.json("/api/v1/services?q=10.96.1.1&limit=1").await["items"][0]["name"],
        "web-0250"
    );
    assert_eq!(server.json("/api/v1/services?state=warning").await["total"], 333);
    let busiest = server.json("/api/v1/services?sort=rate&limit=1").await;
    assert_eq!(busiest["items"][0]["name"], "web-0999");
    for bad in ["limit=0", "limit=1001", "limit=x", "state=sick", "surprise=1"] {
        assert_eq!(server.get(&format!("/api/v1/services?{bad}")).await.status, 400, "{bad}");
    }
    let map = server.json("/api/v1/map").await;
    assert_eq!(map["services_total"], 1000);
    assert_eq!(
        (kinds(&map, "namespace"), kinds(&map, "service")),
        (10, 0),
        "too many to draw each"
    );
    let some = server.json("/api/v1/map?collapse=none&limit=50").await;
    assert_eq!((kinds(&some, "service"), kinds(&some, "endpoint")), (50, 150));
    let one = server.json("/api/v1/map?q=shop.example").await;
    assert_eq!(
        (
            kinds(&one, "host"),
            kinds(&one, "route"),
            kinds(&one, "service"),
            kinds(&one, "endpoint")
        ),
        (1, 1, 1, 3)
    );
}

/// How many vertices of a kind a map has.
fn kinds(map: &Value, kind: &str) -> usize {
    map["vertices"].as_array().unwrap().iter().filter(|it| it["kind"] == kind).count()
}

fn has_edge(map: &Value, from: &str, to: &str) -> bool {
    map["edges"].as_array().unwrap().iter().any(|it| it["from"] == from && it["to"] == to)
}

#[tokio::test]
async fn a_map_beyond_its_bound_says_how_much_it_leaves_out() {
    let server = start(Imagined { services: 1000, endpoints_each: 5, ..Imagined::default() }).await;
    let map = server.json("/api/v1/map?collapse=none&limit=1000").await;
    assert_eq!(map["vertices"].as_array().unwrap().len(), 5000);
    // 1,000 services of 5 endpoints each on one node, with one host and one route.
    assert_eq!(
        map["vertices_left_out"],
        1000 + 5000 + 1 + 1 + 1 - 5000,
        "{}",
        map["services_total"]
    );
    assert_eq!((kinds(&map, "service"), &map["services_shown"]), (1000, &json!(1000)));
    assert_eq!((kinds(&map, "host"), kinds(&map, "route"), kinds(&map, "node")), (1, 1, 1));
    let fewer = server.json("/api/v1/map?collapse=none&limit=500").await;
    assert_eq!((&fewer["vertices_left_out"], &fewer["services_shown"]), (&json!(0), &json!(500)));
    assert_eq!(server.json("/api/v1/map").await["vertices_left_out"], 0);
    drop(server);

    let many = |i: usize| RouteItem {
        id: format!("ns-0/shop/{i}/0"),
        host: format!("{}.example", i / 2),
        ..route()
    };
    let routes = (0..8000).map(many).collect::<Vec<_>>().into();
    let server = start(Imagined { services: 1, routes, ..Imagined::default() }).await;
    let map = server.json("/api/v1/map").await;
    let drawn = map["vertices"].as_array().unwrap().len();
    // 8,000 routes of 4,000 hosts, a service, 3 endpoints, a node; hosts count once.
    let left_out = usize::try_from(map["vertices_left_out"].as_u64().unwrap()).unwrap();
    assert_eq!(drawn + left_out, 8000 + 4000 + 1 + 3 + 1);
    assert!(drawn <= 5000, "{drawn}");
    assert!(kinds(&map, "host") > 0 && kinds(&map, "service") == 1);
    let edges = map["edges"].as_array().unwrap();
    let hosts = map["vertices"].as_array().unwrap().iter().filter(|it| it["kind"] == "host");
    for host in hosts {
        assert!(edges.iter().any(|it| it["from"] == host["id"]), "nothing leads from {host}");
    }
}

#[tokio::test]
async fn routes_that_lead_to_no_service_stay_on_a_map_that_asks_for_them() {
    let redirect = RouteItem {
        id: "ns-1/old/0/0".into(),
        ingress: Key::new("ns-1", "old"),
        host: "old.example".into(),
        action: "redirect".into(),
        backends: vec![],
        ..route()
    };
    let mut lost = RouteItem {
        id: "ns-0/lost/0/0".into(),
        host: "lost.example".into(),
        state: State::Error,
        ..route()
    };
    lost.backends[0].service = Key::new("ns-0", "never-was");
    let routes = vec![route(), redirect, lost].into();
    let server = start(Imagined { services: 20, routes, ..Imagined::default() }).await;
    let hosts = async |query: &str| {
        let map = server.json(&format!("/api/v1/map?{query}")).await;
        let all = map["vertices"].as_array().unwrap().clone();
        let hosts = all.into_iter().filter(|it| it["kind"] == "host");
        hosts.map(|it| it["label"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(hosts("").await, ["lost.example", "old.example", "shop.example"]);
    assert_eq!(hosts("q=OLD.example").await, ["old.example"]);
    assert_eq!(hosts("q=lost").await, ["lost.example"]);
    assert_eq!(hosts("namespace=ns-1").await, ["old.example"]);
    assert_eq!(hosts("namespace=ns-0").await, ["lost.example", "shop.example"]);
    assert_eq!(hosts("q=web-0000").await, ["shop.example"]);
    // Of services that the limit leaves out nothing is drawn.
    assert_eq!(hosts("collapse=none&limit=1&namespace=ns-5").await, Vec::<String>::new());
    let folded = server.json("/api/v1/map?collapse=namespace&q=old.example").await;
    assert_eq!((kinds(&folded, "host"), kinds(&folded, "route")), (1, 1), "{folded}");
}

#[tokio::test]
async fn a_paused_route_keeps_its_service_on_every_map() {
    let routes: Vec<RouteItem> = (0..50)
        .map(|i| RouteItem {
            id: format!("ns-0/shop/{i}/0"),
            host: format!("{i}.example"),
            action: "paused".into(),
            state: State::Warning,
            ..route()
        })
        .collect();
    let server = start(Imagined { routes: routes.into(), ..Imagined::default() }).await;
    let map = server.json("/api/v1/map?q=7.example").await;
    assert!(has_edge(&map, "route:ns-0/shop/7/0", "service:ns-0/web-0000"), "{map}");
    let folded = server.json("/api/v1/map?collapse=namespace").await;
    assert!(has_edge(&folded, "routes:ns-0", "namespace:ns-0"), "{folded}");
}

#[tokio::test]
async fn who_answers_with_errors_is_told_by_name() {
    let mut routes = vec![RouteItem {
        id: "ns-0/pay/0/0".into(),
        host: "pay.example".into(),
        counters: Some(counters(40.0, 2.0)),
        ..route()
    }];
    for i in 0..3 {
        routes.push(RouteItem {
            id: format!("ns-0/shop/0/{i}"),
            path: format!("/{i}"),
            state: State::Error,
            action_text: "503: no endpoint is ready".into(),
            ..route()
        });
    }
    let rates = [
        ("web-0000", (100.0, 2.0)),
        // Its service hardly notices.
        ("web-0001", (1000.0, 5.0)),
        ("web-0001 10.0.0.2", (10.0, 5.0)),
        ("web-0001 10.0.0.3", (990.0, 1.0)),
    ];
    let agent = Imagined { routes: routes.into(), rates: rates.into(), ..Imagined::default() };
    let server = start(agent).await;
    let overview = server.json("/api/v1/overview").await;
    let all = overview["attention"].as_array().unwrap().clone();
    let of = |kind: &str| -> Vec<&Value> { all.iter().filter(|it| it["kind"] == kind).collect() };
    let says = |it: &Value, text: &str| it["message"].as_str().unwrap().contains(text);

    let routes = of("route");
    let [dead, slow] = routes[..] else { panic!("{all:?}") };
    assert_eq!(
        (&dead["state"], &dead["route"], &dead["object"]["name"]),
        (&json!("error"), &json!("ns-0/shop/0/0"), &json!("shop"))
    );
    assert!(says(dead, "shop.example/0 answers 503: no endpoint is ready; so do 2 more"), "{dead}");
    assert_eq!((&slow["state"], &slow["route"]), (&json!("warning"), &json!("ns-0/pay/0/0")));
    assert!(says(slow, "pay.example/: 5 % of requests end with 5xx"), "{slow}");
    let services: Vec<&Value> = of("service").into_iter().filter(|it| says(it, "5xx")).collect();
    let [service] = services[..] else { panic!("{all:?}") };
    assert_eq!(service["object"], json!({"namespace": "ns-0", "name": "web-0000"}));
    let endpoints = of("endpoint");
    let [endpoint] = endpoints[..] else { panic!("{all:?}") };
    assert_eq!(
        (&endpoint["state"], &endpoint["endpoint"], &endpoint["object"]["name"]),
        (&json!("error"), &json!("10.0.0.2"), &json!("web-0001"))
    );
    assert!(says(endpoint, "10.0.0.2 (web-0001-2): 50 %"), "{endpoint}");
    assert_eq!(all[0]["state"], "error", "worst first");
}

fn event(name: &str) -> NewEvent {
    NewEvent {
        at_ms: None,
        revision: 3,
        kind: "Service".into(),
        object: Key::new("shop", name),
        change: "changed".into(),
        summary: "its port is 81".into(),
        programs: true,
    }
}

#[tokio::test]
async fn a_stream_tells_of_changes_figures_and_actions() {
    let server = start(Imagined::default()).await;
    let mut stream = server.stream().await;
    let hello = read_until(&mut stream, "event: hello").await;
    assert!(hello.contains("text/event-stream"), "{hello}");
    let id = server.events.push(event("web"));
    let text = read_until(&mut stream, "event: change").await;
    read_until(&mut stream, "event: sample").await;
    assert!(text.contains("its port is 81") || !text.ends_with("\n\n"));
    server.events.programmed(&[(id, 12.5)]);
    read_until(&mut stream, "event: programmed").await;
    let resync = json!({"action": {"kind": "resync"}, "by": "anna"});
    server.post("/api/v1/actions", &resync).await;
    read_until(&mut stream, "event: audit").await;
    let events = server.json("/api/v1/events?kind=service&q=web").await;
    assert_eq!(
        (&events["items"][0]["programmed_ms"], &events["newest_id"]),
        (&json!(12.5), &json!(1))
    );
    server.agent.requests.store(1000, SeqCst);
    for _ in 0..100 {
        if server.json("/api/v1/overview").await["traffic"]["requests"] == 1100 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let history = server.json("/api/v1/history").await;
    let recent = history["recent"].as_array().unwrap();
    assert!(recent.iter().any(|it| it["rate"].as_f64().unwrap() > 0.0), "{history}");
}

#[tokio::test]
async fn whatever_is_refused_is_refused_in_json() {
    let server = start(Imagined::default()).await;
    let document = server.json("/api/v1/openapi.json").await;
    let kind = "Content-Type: application/json\r\n";
    let long = format!("{{\"x\":\"{}\"}}", "x".repeat(70 << 10));
    for (method, path, body, status, code) in [
        ("DELETE", "/api/v1/services", "", 405, "bad_method"),
        ("POST", "/api/v1/overview", "{}", 405, "bad_method"),
        ("POST", "/api/v1/actions", long.as_str(), 413, "too_large"),
        ("GET", "/api", "", 404, "not_found"),
        ("GET", "/api/", "", 404, "not_found"),
        ("GET", "/api/v2/services", "", 404, "not_found"),
        ("GET", "/api/v1/services/%ff/web", "", 400, "bad_request"),
    ] {
        let answer = server.send(method, path, support::ADMIN, kind, body).await;
        assert_eq!(answer.status, status, "{method} {path}: {}", answer.body);
        assert!(answer.head.contains("content-type: application/json"), "{path}: {}", answer.head);
        let said = answer.json();
        check(&document, &document["components"]["schemas"]["Problem"], &said, path).unwrap();
        assert_eq!(said["code"], code, "{method} {path}");
        assert_eq!(answer.head.contains("\r\nallow: get"), status == 405, "{}", answer.head);
    }
}

#[tokio::test]
async fn routes_that_are_not_known_now_are_said_to_be_so() {
    let server = start(Imagined::default()).await;
    let wait = || tokio::time::sleep(Duration::from_millis(120));
    assert_eq!(server.json("/api/v1/routes").await["stale"], Value::Null);
    let reason = || "the worker is away".to_owned();
    *server.agent.routes_stale.lock() = Some(Stale { since_ms: Some(7), reason: reason() });
    wait().await;
    for path in ["/api/v1/routes", "/api/v1/certificates", "/api/v1/map"] {
        assert_eq!(server.json(path).await["stale"]["since_ms"], 7, "{path}");
    }
    assert_eq!(server.json("/api/v1/routes").await["total"], 1, "as they were");
    let overview = server.json("/api/v1/overview").await;
    let told = overview["attention"].as_array().unwrap();
    assert!(told.iter().any(|it| it["kind"] == "ingress"), "{told:?}");
    *server.agent.routes_stale.lock() = Some(Stale { since_ms: None, reason: reason() });
    wait().await;
    for path in ["/api/v1/routes", "/api/v1/certificates"] {
        let answer = server.get(path).await;
        assert_eq!((answer.status, answer.json()["message"].as_str()), (503, Some(&*reason())));
    }
}

#[tokio::test]
async fn the_newest_part_of_the_history_can_be_asked_for_alone() {
    let server = start(Imagined::default()).await;
    let mut stream = server.stream().await;
    let all = loop {
        read_until(&mut stream, "event: sample").await;
        let all = server.json("/api/v1/history").await;
        if all["recent"].as_array().unwrap().len() > 3 {
            break all;
        }
    };
    let last = all["recent"].as_array().unwrap().last().unwrap()["at_ms"].as_i64().unwrap();
    read_until(&mut stream, "event: sample").await;
    let newer = server.json(&format!("/api/v1/history?since_ms={last}")).await;
    for list in ["recent", "long"] {
        let newer = newer[list].as_array().unwrap();
        assert!(newer.iter().all(|it| it["at_ms"].as_i64().unwrap() > last), "{newer:?}");
    }
    assert_eq!(server.get("/api/v1/history?since=1").await.status, 400);
}

/// How often the agent was asked for figures, and for lists, within so many ticks.
async fn asked_with(streams: usize) -> (usize, usize) {
    let server = start(Imagined { services: 100, ..Imagined::default() }).await;
    let mut open = Vec::new();
    for _ in 0..streams {
        open.push(server.stream().await);
    }
    for stream in &mut open {
        read_until(stream, "event: sample").await;
    }
    let before = (server.agent.figures_asked.load(SeqCst), server.agent.network_asked.load(SeqCst));
    let asking = async {
        for _ in 0..4 {
            let all: Vec<_> =
                (0..streams.min(25)).map(|_| server.get("/api/v1/services")).collect();
            futures::future::join_all(all).await;
        }
    };
    let begun = std::time::Instant::now();
    asking.await;
    let last = open.last_mut().unwrap();
    for _ in 0..20 {
        read_until(last, "event: sample").await;
    }
    let ticks = begun.elapsed().as_millis() as usize / 50 + 2;
    let figures = server.agent.figures_asked.load(SeqCst) - before.0;
    let network = server.agent.network_asked.load(SeqCst) - before.1;
    assert!(figures <= ticks, "{streams} streams: {figures} looks in {ticks} ticks");
    assert!(network <= ticks, "{streams} streams: {network} lists in {ticks} ticks");
    (figures, network)
}

#[tokio::test]
async fn a_hundred_pages_ask_the_agent_no_more_than_one() {
    // Each is held against the clock: once a tick, however many look.
    asked_with(1).await;
    asked_with(100).await;
}
