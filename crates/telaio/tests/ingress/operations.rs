//! What operators see and do: figures, routes, certificates, purging, logs, traces.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Instant;

use serde_json::{Value, json};

use super::{Echo, Ingress, Manifests, annotated, ask, ingress, service};
use crate::support::{PATIENCE, get};

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
        "POST {path} HTTP/1.1\r\nHost: test\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n{body}",
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
        let stats = wait_until("the fifth request", || {
            let stats = told(plane.agent.admin, "/api/v1/ingress/stats");
            let count = stats["totals"]["all"]["statuses"].as_array()?;
            (count.iter().filter_map(Value::as_u64).sum::<u64>() == 5).then_some(stats)
        });
        assert_eq!(stats["totals"]["unrouted"]["statuses"], json!([0, 0, 0, 1, 0]), "{stats}");
        let [route] = stats["routes"].as_array().unwrap().as_slice() else { panic!("{stats}") };
        assert_eq!(route["ingress"], "shop/a");
        assert_eq!(route["figures"]["statuses"], json!([0, 3, 0, 1, 0]), "{stats}");
        assert_eq!(route["figures"]["cache_hits"], 1, "{stats}");
        assert_eq!(route["figures"]["in_flight"], 0, "{stats}");
        assert_eq!(stats["totals"]["cache"]["entries"], 2, "{stats}");
        let endpoint = &stats["backends"][0]["endpoints"][0];
        assert_eq!(endpoint["address"], one.address.to_string());
        assert_eq!((&endpoint["requests"], &endpoint["healthy"]), (&json!(3), &json!(true)));

        let totals = told(plane.agent.admin, "/api/v1/ingress/totals");
        assert_eq!(totals["since_unix_ns"], stats["totals"]["since_unix_ns"]);

        let table = told(plane.agent.admin, "/api/v1/ingress/routes");
        let routes = table["routes"].as_array().unwrap();
        let of = |name: &str| routes.iter().find(|route| route["ingress"] == name).unwrap();
        assert_eq!((&of("a")["host"], &of("a")["cache"]), (&json!("a.example.com"), &json!(true)));
        assert_eq!(of("a")["targets"][0]["service"], "one");
        assert_eq!((&of("b")["host"], &of("b")["path"]), (&json!("*.example.org"), &json!("/x")));
        assert_eq!(of("b")["warnings"], 1, "{table}");
        assert_eq!(table["warnings"][0]["ingress"], "shop/b", "{table}");

        let certificates = told(plane.agent.admin, "/api/v1/ingress/certificates");
        let [own] = certificates.as_array().unwrap().as_slice() else { panic!("{certificates}") };
        assert_eq!((&own["secret"], &own["default"]), (&Value::Null, &json!(true)));
        assert!(own["subject"].as_str().unwrap().contains("no certificate"), "{own}");

        let purge =
            |what: &Value| post(plane.agent.admin, "/api/v1/cache/purge", "application/json", what);
        let url = format!("http://a.example.com:{}/other?max-age=60", plane.http.port());
        assert_eq!(purge(&json!({ "url": url })), (200, json!({"purged": 0})), "another port");
        let url = "http://a.example.com/other?max-age=60";
        assert_eq!(purge(&json!({ "url": url })), (200, json!({"purged": 1})));
        assert_eq!(purge(&json!({"host": "a.example.com"})), (200, json!({"purged": 1})));
        assert_eq!(purge(&json!("all")), (200, json!({"purged": 0})));
        let before = one.requests();
        ask(plane.http, "a.example.com", "/?max-age=60");
        assert_eq!(one.requests(), before + 1, "what was purged is asked for again");
        assert_eq!(purge(&json!({"host": "a/b"})).0, 400);
        assert_eq!(purge(&json!({"what": "x"})).0, 400);
        let form = "application/x-www-form-urlencoded";
        assert_eq!(post(plane.agent.admin, "/api/v1/cache/purge", form, &json!("all")).0, 415);
    }
}
