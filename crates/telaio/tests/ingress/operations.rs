//! What operators see and do: figures, routes, certificates, purging, logs, traces.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Instant;

use serde_json::{Value, json};

use super::{Echo, Ingress, Manifests, annotated, ask, ingress, service};
use crate::support::{PATIENCE, TOKEN, get};

/// What the admin server says there.
pub(crate) fn told(address: SocketAddr, path: &str) -> Value {
    let (status, body) = get(address, path);
    assert_eq!(status, 200, "{path}: {body}");
    serde_json::from_str(&body).unwrap()
}

/// Sends JSON there; status and answer.
pub(crate) fn post(address: SocketAddr, path: &str, kind: &str, body: &Value) -> (u16, Value) {
    let (mut stream, body) = (TcpStream::connect(address).unwrap(), body.to_string());
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    write!(
        stream,
        "POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n\
         Authorization: Bearer {TOKEN}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    )
    .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, serde_json::from_str(body).unwrap_or(Value::Null))
}

/// Waits until something is so.
pub(crate) fn wait_until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "{what} has not come");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}

#[test]
fn the_worker_tells_figures_routes_and_certificates_and_purges_its_cache() {
    for process in ["same", "own"] {
        let one = Echo::start("one");
        let manifests = Manifests::empty();
        let cached = "  annotations: {telaio.dev/cache: \"true\"}\n";
        let all = service("one", &[&one])
            + &ingress("a", "a.example.com", "/", "one", cached)
            + &ingress("b", "\"*.example.org\"", "/x", "one", &annotated("affinity", "wrong"));
        manifests.write("all.yaml", &all);
        let plane = Ingress::start(manifests, process);
        for path in ["/?max-age=60", "/?max-age=60", "/other?max-age=60", "/?status=404"] {
            ask(plane.http, "a.example.com", path);
        }
        assert_eq!(ask(plane.http, "nobody.example.com", "/").status, 404);

        // A request is counted when it is over, which may be after its answer is here.
        let count = |labels: &[&str]| metric(&plane.agent, "telaio_http_requests_total{", labels);
        wait_until("the fifth request", || (count(&[]) == 5).then_some(()));
        assert_eq!(count(&["ingress=\"none\"", "status=\"4xx\""]), 1);
        assert_eq!(count(&["ingress=\"a\"", "status=\"2xx\""]), 3);
        assert_eq!(count(&["ingress=\"a\"", "status=\"4xx\""]), 1);
        let hits = ["ingress=\"a\"", "\"hit\""];
        assert_eq!(metric(&plane.agent, "telaio_http_cache_requests_total{", &hits), 1);
        assert_eq!(metric(&plane.agent, "telaio_http_cache_entries", &[]), 2);
        assert_eq!(metric(&plane.agent, "telaio_http_requests_in_flight", &[]), 0);

        let table = wait_until("the route's figures", || {
            let table = told(plane.agent.admin, "/api/v1/routes");
            (route_of(&table, "a")["counters"]["requests"] == 4).then_some(table)
        });
        let (a, b) = (route_of(&table, "a"), route_of(&table, "b"));
        assert_eq!((&a["host"], &a["features"]), (&json!("a.example.com"), &json!(["cache"])));
        assert_eq!((&a["counters"]["active"], &a["counters"]["errors"]), (&json!(0), &json!(0)));
        let to = &a["backends"][0];
        assert_eq!((&to["service"]["name"], &to["ready"]), (&json!("one"), &json!(1)), "{table}");
        assert_eq!((&b["host"], &b["path"]), (&json!("*.example.org"), &json!("/x")));
        assert_eq!(b["warnings"].as_array().map(Vec::len), Some(1), "{table}");

        let certificates = told(plane.agent.admin, "/api/v1/certificates");
        let [own] = certificates["items"].as_array().unwrap().as_slice() else {
            panic!("{certificates}")
        };
        assert_eq!((&own["id"], &own["default"]), (&json!("self-signed"), &json!(true)));

        let asks = |what: &Value| json!({"action": {"kind": "purge_cache", "what": what}});
        let actions = "/api/v1/actions";
        let purge = |what: &Value| {
            let (status, said) = post(plane.agent.admin, actions, "application/json", &asks(what));
            (status, said["purged"].as_u64())
        };
        let url = format!("http://a.example.com:{}/other?max-age=60", plane.http.port());
        assert_eq!(purge(&json!({ "key": url })), (200, Some(0)), "another port");
        let url = "http://a.example.com/other?max-age=60";
        assert_eq!(purge(&json!({ "key": url })), (200, Some(1)));
        assert_eq!(purge(&json!({"host": "a.example.com"})), (200, Some(1)));
        let before = one.requests();
        ask(plane.http, "a.example.com", "/?max-age=60");
        assert_eq!(one.requests(), before + 1, "what was purged is asked for again");
        assert_eq!(purge(&json!({"host": "a/b"})).0, 400);
        assert!(matches!(purge(&json!({"what": "x"})).0, 400 | 422));
        let form = "application/x-www-form-urlencoded";
        let all = asks(&json!({"host": "a.example.com"}));
        assert_eq!(post(plane.agent.admin, actions, form, &all).0, 415);
        let audit = told(plane.agent.admin, "/api/v1/audit");
        let forgot = audit["items"].as_array().unwrap().iter().filter(|it| {
            it["summary"].as_str().is_some_and(|text| text.starts_with("have the cache forget"))
        });
        assert!(forgot.count() >= 3, "each is on record: {audit}");
        // What stood beside the API and left no record is gone.
        for path in ["/api/v1/ingress/totals", "/api/v1/cache/purge"] {
            assert_eq!(get(plane.agent.admin, path).0, 404, "{path}");
        }
    }
}

/// What the agent's metrics say, over all lines of a name that have these labels.
fn metric(agent: &crate::support::Agent, name: &str, labels: &[&str]) -> u64 {
    let (status, page) = get(agent.metrics, "/metrics");
    assert_eq!(status, 200, "{page}");
    let lines = page.lines().filter(|line| line.starts_with(name));
    let lines = lines.filter(|line| labels.iter().all(|label| line.contains(label)));
    lines.filter_map(|line| line.rsplit_once(' ')?.1.parse::<u64>().ok()).sum()
}

/// An Ingress's route in the list of all.
fn route_of<'a>(table: &'a Value, ingress: &str) -> &'a Value {
    let items = table["items"].as_array().unwrap();
    let found = items.iter().find(|route| route["ingress"]["name"] == ingress);
    found.unwrap_or_else(|| panic!("no route of {ingress}: {table}"))
}

/// One service behind a.example.com.
fn plain(one: &Echo, more: &str) -> Manifests {
    let manifests = Manifests::empty();
    let all = service("one", &[one]) + &ingress("a", "a.example.com", "/", "one", more);
    manifests.write("all.yaml", &all);
    manifests
}

#[test]
fn each_request_is_a_line_of_the_access_log_which_is_opened_anew_by_sighup() {
    for process in ["same", "own"] {
        let one = Echo::start("one");
        // Only root may write there: the worker of its own process could not open it.
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("access.log");
        let to = format!("--access-log={}", path.display());
        let manifests = plain(&one, "");
        let quiet = annotated("enable-access-log", "false");
        manifests.write("quiet.yaml", &ingress("quiet", "q.example.com", "/", "one", &quiet));
        let plane = Ingress::start_with(manifests, process, &[&to]);
        assert_eq!(ask(plane.http, "q.example.com", "/").status, 200);
        let lines = |path: &std::path::Path| -> Vec<Value> {
            let text = std::fs::read_to_string(path).unwrap_or_default();
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
        };
        ask(plane.http, "a.example.com", "/x?y=1");
        ask(plane.http, "nobody.example.com", "/");
        let seen = wait_until("two lines", || Some(lines(&path)).filter(|seen| seen.len() == 2));
        assert_eq!((&seen[0]["path"], &seen[0]["status"]), (&json!("/x?y=1"), &json!(200)));
        assert_eq!(seen[0]["route"], "shop/a/0/0");
        assert_eq!(seen[0]["endpoint"], one.address.to_string());
        assert_eq!((&seen[1]["status"], &seen[1]["route"]), (&json!(404), &Value::Null));

        let moved = directory.path().join("access.log.1");
        std::fs::rename(&path, &moved).unwrap();
        plane.agent.signal("HUP");
        // The last line before the change may go to either.
        let fresh = wait_until("a line in the new file", || {
            ask(plane.http, "a.example.com", "/again");
            lines(&path).into_iter().next()
        });
        assert_eq!(fresh["path"], "/again");
        let before = lines(&path).len() + lines(&moved).len();
        let http = plane.http;
        ask(http, "a.example.com", "/last");
        let (status, log) = plane.agent.end();
        assert_eq!(status.code(), Some(0), "{log}");
        let after = lines(&path);
        assert_eq!(after.last().unwrap()["path"], "/last", "written before the end: {before}");
    }
}

#[test]
fn the_access_log_can_be_sampled_combined_and_on_standard_output() {
    let one = Echo::start("one");
    let arguments =
        ["--access-log=stdout", "--access-log-format=combined", "--access-log-sample=3"];
    let plane = Ingress::start_with(plain(&one, ""), "own", &arguments);
    for number in 0..6 {
        ask(plane.http, "a.example.com", &format!("/ok/{number}"));
    }
    ask(plane.http, "a.example.com", "/bad?status=500");
    plane.agent.wait_out("\"GET /bad?status=500 HTTP/1.1\" 500 ");
    plane.agent.wait_out("\"GET /ok/0 HTTP/1.1\" 200 ");
    plane.agent.wait_out("\"GET /ok/3 HTTP/1.1\" 200 ");
    let all = plane.agent.out_lines();
    let ok = all.iter().filter(|line| line.contains("GET /ok/")).count();
    assert_eq!(ok, 2, "{all:?}");
    assert!(all[0].starts_with("127.0.0.1 - - ["), "{all:?}");
}

#[test]
fn an_access_log_that_cannot_be_written_is_told_at_the_start() {
    let ended = crate::support::run_args([
        "run",
        "--planes=ingress",
        "--node=loom-a",
        "--http-listen=127.0.0.1:0",
        "--https-listen=127.0.0.1:0",
        "--admin-listen=127.0.0.1:0",
        "--metrics-bind-address=127.0.0.1:0",
        "--healthz-bind-address=127.0.0.1:0",
        "--access-log=/proc/no/such/file",
        &format!("--state-dir={}", tempfile::tempdir().unwrap().path().display()),
        &Manifests::empty().source(),
    ]);
    assert_ne!(ended.code, Some(0));
    assert!(ended.stderr.contains("--access-log"), "{}", ended.stderr);
}

#[test]
fn metrics_tell_of_requests_and_go_on_when_the_worker_is_another() {
    let one = Echo::start("one");
    let plane = Ingress::start(plain(&one, ""), "own");
    let count = |agent: &crate::support::Agent| -> u64 {
        let (status, page) = get(agent.metrics, "/metrics");
        assert_eq!(status, 200, "{page}");
        let name = "telaio_http_requests_total{namespace=\"shop\",ingress=\"a\",status=\"2xx\"} ";
        page.lines().find_map(|line| line.strip_prefix(name)?.parse().ok()).unwrap_or(0)
    };
    for _ in 0..3 {
        ask(plane.http, "a.example.com", "/");
    }
    wait_until("three requests", || (count(&plane.agent) == 3).then_some(()));
    let page = get(plane.agent.metrics, "/metrics").1;
    assert!(page.contains("telaio_http_endpoints{state=\"ready\"} 1"), "{page}");
    assert!(page.ends_with("# EOF\n"), "{page}");

    let worker = super::lifecycle::worker_of(plane.agent.pid()).unwrap();
    let kill = std::process::Command::new("kill").args(["-KILL", &worker.to_string()]).status();
    assert!(kill.unwrap().success());
    plane.agent.wait_log("the ingress worker ended; starting another");
    // While there is none, the last figures stand.
    assert_eq!(count(&plane.agent), 3);
    assert_eq!(ask(plane.http, "a.example.com", "/").status, 200);
    wait_until("the fourth request", || match count(&plane.agent) {
        4 => Some(()),
        3 => None,
        other => panic!("{other} requests"),
    });
}

/// A collector of spans: gives the body of each request that it got.
fn collector() -> (SocketAddr, std::sync::mpsc::Receiver<Value>) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let tell = tell.clone();
            std::thread::spawn(move || {
                let mut seen = Vec::new();
                loop {
                    let mut piece = [0; 4096];
                    let Ok(count @ 1..) = stream.read(&mut piece) else { return };
                    seen.extend_from_slice(&piece[..count]);
                    let text = String::from_utf8_lossy(&seen).into_owned();
                    let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
                    let Ok(body) = serde_json::from_str::<Value>(body) else { continue };
                    assert!(head.starts_with("POST /v1/traces HTTP/1.1\r\n"), "{head}");
                    let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}";
                    if stream.write_all(answer).is_err() || tell.send(body).is_err() {
                        return;
                    }
                    seen.clear();
                }
            });
        }
    });
    (address, told)
}

#[test]
fn spans_reach_the_collector_and_backends_are_told_their_trace() {
    let one = Echo::start("one");
    let (address, told) = collector();
    let to = format!("--otlp-endpoint=http://{address}");
    let plane = Ingress::start_with(plain(&one, ""), "own", &[&to, "--otlp-sample=1000000000"]);
    let given = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let fields = format!("traceparent: {given}\r\ntracestate: a=b\r\n");
    let answer = super::ask_with(plane.http, "a.example.com", "/x", &fields);
    let seen: Value = serde_json::from_str(&answer.body).unwrap();
    let passed = seen["headers"]["traceparent"].as_str().unwrap();
    assert!(passed.starts_with("00-4bf92f3577b34da6a3ce929d0e0e4736-"), "{passed}");
    assert!(passed.ends_with("-01") && passed != given, "our own part stands in it: {passed}");
    assert_eq!(seen["headers"]["tracestate"], "a=b");
    let spans = told.recv_timeout(PATIENCE).unwrap();
    let span = &spans["resourceSpans"][0]["scopeSpans"][0]["spans"][0];
    assert_eq!(span["traceId"], "4bf92f3577b34da6a3ce929d0e0e4736", "{spans}");
    assert_eq!(span["parentSpanId"], "00f067aa0ba902b7");
    assert_eq!(span["spanId"].as_str(), passed.split('-').nth(2));
    let attributes = span["attributes"].as_array().unwrap();
    let of = |key: &str| attributes.iter().find(|it| it["key"] == key).map(|it| &it["value"]);
    assert_eq!(of("http.response.status_code").unwrap()["intValue"], "200");
    assert_eq!(of("url.path").unwrap()["stringValue"], "/x");
    assert_eq!(of("http.route").unwrap()["stringValue"], "shop/a/0/0");

    // One that belongs to no trace gets one, which is not recorded but by a very rare chance.
    let answer = ask(plane.http, "a.example.com", "/y");
    let seen: Value = serde_json::from_str(&answer.body).unwrap();
    assert!(seen["headers"]["traceparent"].as_str().unwrap().ends_with("-00"), "{seen}");
    assert!(told.try_recv().is_err());
}

#[test]
fn spans_of_the_last_requests_are_sent_before_the_end() {
    let one = Echo::start("one");
    let (address, told) = collector();
    let to = format!("--otlp-endpoint=http://{address}/v1/traces");
    let plane = Ingress::start_with(plain(&one, ""), "same", &[&to, "--otlp-sample=1"]);
    for _ in 0..3 {
        ask(plane.http, "a.example.com", "/");
    }
    assert_eq!(plane.agent.end().0.code(), Some(0));
    let mut count = 0;
    while count < 3 {
        let spans = told.recv_timeout(PATIENCE).unwrap();
        count += spans["resourceSpans"][0]["scopeSpans"][0]["spans"].as_array().unwrap().len();
    }
    assert_eq!(count, 3);
}

/// One request with these bytes before it.
fn ask_after(address: SocketAddr, before: &[u8]) -> Option<super::Answer> {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(before).unwrap();
    stream
        .write_all(b"GET / HTTP/1.1\r\nHost: a.example.com\r\nConnection: close\r\n\r\n")
        .unwrap();
    let mut answer = String::new();
    // A refused connection may be reset.
    let _ = stream.read_to_string(&mut answer);
    super::Answer::read(&answer)
}

#[test]
fn the_proxy_protocol_says_who_the_client_is_where_it_is_on() {
    let one = Echo::start("one");
    let v1 = b"PROXY TCP4 192.0.2.7 198.51.100.1 5000 80\r\n";
    let plane = Ingress::start_with(plain(&one, ""), "own", &["--proxy-protocol=on"]);
    let answer = ask_after(plane.http, v1).unwrap();
    assert_eq!(answer.status, 200, "{answer:?}");
    let seen: Value = serde_json::from_str(&answer.body).unwrap();
    assert_eq!(seen["headers"]["x-forwarded-for"], "192.0.2.7", "{seen}");
    let v2 =
        b"\r\n\r\n\0\r\nQUIT\n\x21\x11\x00\x0c\xc0\x00\x02\x08\xc6\x33\x64\x01\x13\x88\x00\x50";
    let seen: Value = serde_json::from_str(&ask_after(plane.http, v2).unwrap().body).unwrap();
    assert_eq!(seen["headers"]["x-forwarded-for"], "192.0.2.8", "{seen}");
    assert!(ask_after(plane.http, b"").is_none(), "without it nobody is served");
    let refused = wait_until("the refused connection", || {
        let count = metric(&plane.agent, "telaio_http_connections_refused_total", &[]);
        (count > 0).then_some(count)
    });
    assert_eq!(refused, 1);
    // The same before TLS.
    let found = std::process::Command::new("curl")
        .args(["-sk", "--haproxy-protocol", "--max-time", "60", "--resolve"])
        .arg(format!("a.example.com:{}:127.0.0.1", plane.https.port()))
        .arg(format!("https://a.example.com:{}/", plane.https.port()))
        .output()
        .unwrap();
    let seen: Value =
        serde_json::from_slice(&found.stdout).unwrap_or_else(|error| panic!("{error}: {found:?}"));
    assert_eq!(seen["headers"]["x-forwarded-proto"], "https", "{seen}");
}

#[test]
fn the_proxy_protocol_is_believed_from_its_networks_only() {
    let one = Echo::start("one");
    let arguments = ["--proxy-protocol=on", "--proxy-protocol-from=10.0.0.0/8,2001:db8::/32"];
    let plane = Ingress::start_with(plain(&one, ""), "same", &arguments);
    let v1 = b"PROXY TCP4 192.0.2.7 198.51.100.1 5000 80\r\n";
    assert_eq!(ask_after(plane.http, b"").unwrap().status, 200);
    assert_eq!(ask_after(plane.http, v1).unwrap().status, 400, "it is no HTTP");
}

#[test]
fn a_backend_that_asks_for_the_proxy_protocol_gets_it() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut seen = Vec::new();
            while !seen.windows(4).any(|end| end == b"\r\n\r\n") {
                let mut piece = [0; 1024];
                let Ok(count @ 1..) = stream.read(&mut piece) else { break };
                seen.extend_from_slice(&piece[..count]);
            }
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n");
            if tell.send(String::from_utf8_lossy(&seen).into_owned()).is_err() {
                return;
            }
        }
    });
    let manifests = Manifests::empty();
    let annotation = "  annotations: {telaio.dev/upstream-proxy-protocol: v1}\n";
    let all = super::service_at("one", &[address])
        + &ingress("a", "a.example.com", "/", "one", annotation);
    manifests.write("all.yaml", &all);
    let plane = Ingress::start(manifests, "same");
    for _ in 0..2 {
        assert_eq!(ask(plane.http, "a.example.com", "/").status, 200);
        let seen = told.recv_timeout(PATIENCE).unwrap();
        let (first, rest) = seen.split_once("\r\n").unwrap();
        let words: Vec<&str> = first.split(' ').collect();
        assert_eq!(words[..4], ["PROXY", "TCP4", "127.0.0.1", "127.0.0.1"], "{seen}");
        assert_eq!(words[5], plane.http.port().to_string(), "where the client connected to");
        assert!(rest.starts_with("GET / HTTP/1.1\r\n"), "{seen}");
    }
}
