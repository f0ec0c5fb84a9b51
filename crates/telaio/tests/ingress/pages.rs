//! Answers that others give or see: error pages, mirrors, the cache, compression.

use serde_json::json;

use super::operations::wait_until;
use super::{Echo, Ingress, Manifests, all_annotated, ask, ask_with, ingress, send, service};

#[test]
fn errors_are_answered_by_the_backend_for_them() {
    let (one, pages) = (Echo::start("one"), Echo::start("pages"));
    let manifests = Manifests::empty();
    let pairs = [("custom-http-errors", "404,502"), ("default-backend", "pages")];
    let only_default = [("default-backend", "pages")];
    let all = service("one", &[&one])
        + &service("pages", &[&pages])
        + &service("none", &[])
        + &ingress("a", "a.example.com", "/", "one", &all_annotated(&pairs))
        + &ingress("b", "b.example.com", "/", "none", &all_annotated(&only_default))
        + &ingress("c", "c.example.com", "/", "one", &all_annotated(&only_default));
    manifests.write("all.yaml", &all);
    for process in ["same", "own"] {
        let copy = Manifests::empty();
        copy.write("all.yaml", &all);
        let plane = Ingress::start(copy, process);
        let get = |host: &str, path: &str| {
            ask_with(plane.http, host, path, "Accept: text/html\r\nX-Request-Id: r-1\r\n")
        };
        assert_eq!(get("a.example.com", "/ok").backend().as_deref(), Some("one"));
        let page = get("a.example.com", "/missing?status=404");
        assert_eq!(page.status, 200, "the page's own status: {page:?}");
        let seen = page.seen();
        assert_eq!((&seen["backend"], &seen["path"]), (&json!("pages"), &json!("/")));
        let headers = &seen["headers"];
        for (name, value) in [
            ("x-code", "404"),
            ("x-format", "text/html"),
            ("x-original-uri", "/missing?status=404"),
            ("x-namespace", "shop"),
            ("x-ingress-name", "a"),
            ("x-service-name", "one"),
            ("x-service-port", "80"),
            ("x-request-id", "r-1"),
        ] {
            assert_eq!(headers[name], value, "{name} of {headers}");
        }
        // A request with a body is asked about without it.
        let page =
            send(plane.http, "POST", "a.example.com", "/?status=404", "", "some text").seen();
        assert_eq!((&page["backend"], &page["method"]), (&json!("pages"), &json!("GET")));
        assert_eq!(page["body"], "");
        assert_eq!(page["headers"]["content-length"], json!(null), "{page}");
        // The same by HTTP/2.
        let out = std::process::Command::new("curl")
            .args(["-sk", "--http2", "--max-time", "60", "-w", "\n%{http_version}", "--resolve"])
            .arg(format!("a.example.com:{}:127.0.0.1", plane.https.port()))
            .arg(format!("https://a.example.com:{}/?status=404", plane.https.port()))
            .output()
            .unwrap();
        let out = String::from_utf8_lossy(&out.stdout).into_owned();
        let (page, version) = out.rsplit_once('\n').expect("an answer");
        let page: serde_json::Value = serde_json::from_str(page).unwrap();
        assert_eq!((version, &page["headers"]["x-code"]), ("2", &json!("404")), "{page}");
        assert_eq!(get("a.example.com", "/?status=500").backend().as_deref(), Some("one"));
        let nobody = get("b.example.com", "/x").seen();
        assert_eq!(
            (&nobody["backend"], &nobody["headers"]["x-code"]),
            (&json!("pages"), &json!("503"))
        );
        let own = get("c.example.com", "/?status=503");
        assert_eq!((own.status, own.backend().as_deref()), (503, Some("one")), "it is its own");
    }
}

#[test]
fn what_we_refuse_ourselves_is_answered_by_the_backend_for_errors_too() {
    let (one, pages, guard) = (Echo::start("one"), Echo::start("pages"), Echo::start("guard"));
    let asked = format!("http://{}/?status=401", guard.address);
    let with = |name: &str, more: &[(&str, &str)]| {
        let mut pairs = vec![("default-backend", "pages")];
        if !more.iter().any(|(name, _)| *name == "custom-http-errors") {
            pairs.push(("custom-http-errors", "401,403,413,429"));
        }
        pairs.extend(more);
        ingress(name, &format!("{name}.example.com"), "/", "one", &all_annotated(&pairs))
    };
    let all = service("one", &[&one])
        + &service("pages", &[&pages])
        + &with("login", &[("auth-url", &asked)])
        + &with("address", &[("whitelist-source-range", "192.0.2.0/24")])
        + &with("small", &[("proxy-body-size", "10")])
        + &with("often", &[("limit-rps", "1"), ("limit-burst-multiplier", "1")])
        + &with(
            "plain",
            &[("custom-http-errors", "404"), ("whitelist-source-range", "192.0.2.0/24")],
        );
    let manifests = Manifests::empty();
    manifests.write("all.yaml", &all);
    let plane = Ingress::start(manifests, "same");
    let is_page = |answer: &super::Answer, code: &str, ingress: &str| {
        let seen = answer.seen();
        let told = &seen["headers"];
        assert_eq!((answer.status, &seen["backend"]), (200, &json!("pages")), "{answer:?}");
        assert_eq!(
            (&told["x-code"], &told["x-ingress-name"]),
            (&json!(code), &json!(ingress)),
            "{answer:?}"
        );
        assert_eq!((&told["x-service-name"], &seen["method"]), (&json!("one"), &json!("GET")));
        assert_eq!((&seen["path"], &seen["body"]), (&json!("/"), &json!("")));
    };
    is_page(&ask(plane.http, "login.example.com", "/x"), "401", "login");
    let page = ask(plane.http, "address.example.com", "/x?y=1");
    is_page(&page, "403", "address");
    assert_eq!(page.seen()["headers"]["x-original-uri"], "/x?y=1");
    let large = "more than ten bytes";
    is_page(&send(plane.http, "POST", "small.example.com", "/", "", large), "413", "small");
    // A length that is not announced shows as the body comes.
    for version in ["--http1.1", "--http2"] {
        let scheme =
            if version == "--http2" { ("https", plane.https) } else { ("http", plane.http) };
        let at = |host: &str| format!("{host}:{}:127.0.0.1", scheme.1.port());
        let curl = |host: &str, more: &[&str]| {
            let out = std::process::Command::new("curl")
                .args(["-sk", version, "--max-time", "60", "--resolve", &at(host)])
                .args(more)
                .arg(format!("{}://{host}:{}/", scheme.0, scheme.1.port()))
                .output()
                .unwrap();
            let text = String::from_utf8_lossy(&out.stdout).into_owned();
            let seen: serde_json::Value =
                serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {out:?}"));
            seen["headers"]["x-code"].as_str().unwrap_or_default().to_owned()
        };
        let chunked = ["-H", "Transfer-Encoding: chunked", "-H", "Expect:", "-d", large];
        assert_eq!(curl("small.example.com", &chunked), "413", "{version}");
        assert_eq!(curl("address.example.com", &[]), "403", "{version}");
        assert_eq!(curl("login.example.com", &[]), "401", "{version}");
    }
    // When to come again is told all the same.
    let page = plane
        .ask_until("often.example.com", "/", |answer| answer.backend().as_deref() == Some("pages"));
    is_page(&page, "429", "often");
    assert!(page.field("retry-after").is_some(), "{page:?}");
    let own = ask(plane.http, "plain.example.com", "/");
    assert_eq!((own.status, own.field("x-code")), (403, None), "403 is not in its list: {own:?}");
}

#[test]
fn an_error_page_that_cannot_be_had_leaves_the_answer() {
    let one = Echo::start("one");
    let manifests = Manifests::empty();
    let pairs = [("custom-http-errors", "404"), ("default-backend", "pages")];
    let all = service("one", &[&one])
        + &service("pages", &[])
        + &service("none", &[])
        + &ingress("a", "a.example.com", "/", "one", &all_annotated(&pairs))
        + &ingress("b", "b.example.com", "/", "none", &all_annotated(&pairs));
    manifests.write("all.yaml", &all);
    let plane = Ingress::start(manifests, "same");
    let answer = ask(plane.http, "a.example.com", "/?status=404");
    assert_eq!((answer.status, answer.backend().as_deref()), (404, Some("one")));
    assert_eq!(ask(plane.http, "b.example.com", "/").status, 503);
}

#[test]
fn requests_are_copied_to_the_mirror_and_its_answer_is_nobodys() {
    let (one, mirror) = (Echo::start("one"), Echo::start("mirror"));
    let manifests = Manifests::empty();
    let url = format!("http://{}", mirror.address);
    let all = service("one", &[&one])
        + &ingress("a", "a.example.com", "/", "one", &all_annotated(&[("mirror-target", &url)]))
        + &ingress(
            "b",
            "b.example.com",
            "/",
            "one",
            &all_annotated(&[("mirror-target", &url), ("mirror-request-body", "off")]),
        )
        + &ingress(
            "gone",
            "gone.example.com",
            "/",
            "one",
            &all_annotated(&[("mirror-target", "http://127.0.0.1:1")]),
        )
        + &ingress(
            "named",
            "named.example.com",
            "/",
            "one",
            &all_annotated(&[("mirror-target", &url), ("mirror-host", "shadow.example.com")]),
        );
    manifests.write("all.yaml", &all);
    let plane = Ingress::start(manifests, "own");
    let copied = |count: usize| {
        wait_until("the copy", || Some(mirror.seen()).filter(|seen| seen.len() == count))
    };
    let answer = ask(plane.http, "a.example.com", "/slow?x=1");
    assert_eq!(answer.backend().as_deref(), Some("one"));
    let copy = &copied(1)[0];
    assert_eq!((&copy["method"], &copy["path"]), (&json!("GET"), &json!("/slow?x=1")), "{copy}");
    assert_eq!(copy["headers"]["x-original-uri"], "/slow?x=1");
    let answer = send(plane.http, "POST", "a.example.com", "/post", "", "some text");
    assert_eq!((answer.status, &answer.seen()["body"]), (200, &json!("some text")));
    let copy = &copied(2)[1];
    assert_eq!((&copy["method"], &copy["body"]), (&json!("POST"), &json!("some text")), "{copy}");
    let answer = send(plane.http, "POST", "b.example.com", "/post", "", "some text");
    assert_eq!((answer.status, &answer.seen()["body"]), (200, &json!("some text")));
    assert_eq!(copied(3)[2]["body"], "");
    let lie = "X-Forwarded-For: 6.6.6.6\r\nForwarded: for=6.6.6.6\r\nX-Scheme: evil\r\n";
    assert_eq!(ask_with(plane.http, "named.example.com", "/", lie).status, 200);
    let headers = &copied(4)[3]["headers"];
    assert_eq!(headers["host"], "shadow.example.com", "{headers}");
    assert_eq!(headers["x-forwarded-for"], "127.0.0.1", "{headers}");
    let told = headers.to_string();
    assert!(!told.contains("6.6.6.6") && !told.contains("evil"), "{headers}");
    // A mirror that is not there costs nothing.
    assert_eq!(ask(plane.http, "gone.example.com", "/").status, 200);
}

#[test]
fn answers_are_cached_where_the_ingress_says_so_and_until_they_are_purged() {
    let one = Echo::start("one");
    let manifests = Manifests::empty();
    let all = service("one", &[&one])
        + &ingress(
            "a",
            "a.example.com",
            "/",
            "one",
            &all_annotated(&[("telaio.dev/cache", "true")]),
        )
        + &ingress("b", "b.example.com", "/", "one", "");
    manifests.write("all.yaml", &all);
    let plane = Ingress::start(manifests, "own");
    let curl = |host: &str| {
        let url = format!("http://{host}:{}/x?max-age=60", plane.http.port());
        let to = format!("{host}:{}:127.0.0.1", plane.http.port());
        let out = std::process::Command::new("curl")
            .args(["-si", "--max-time", "60", "--resolve", &to, &url])
            .output()
            .unwrap();
        super::Answer::read(&String::from_utf8_lossy(&out.stdout)).expect("an answer")
    };
    let status = |host: &str| {
        let answer = curl(host);
        assert_eq!(answer.status, 200, "{answer:?}");
        answer.field("cache-status").unwrap_or_default().to_owned()
    };
    assert!(status("a.example.com").contains("fwd=uri-miss"));
    assert!(status("a.example.com").contains("; hit"));
    assert_eq!(one.requests(), 1);
    let age = curl("a.example.com");
    assert!(age.field("age").is_some(), "{age:?}");
    let purge = |what| {
        let asked = json!({"action": {"kind": "purge_cache", "what": what}});
        let path = "/api/v1/actions";
        super::operations::post(plane.agent.admin, path, "application/json", &asked)
    };
    let prefix = format!("http://a.example.com:{}/", plane.http.port());
    let (code, said) = purge(json!({ "prefix": prefix }));
    assert_eq!((code, &said["purged"]), (200, &json!(1)), "{said}");
    assert!(status("a.example.com").contains("fwd=uri-miss"));
    assert_eq!(one.requests(), 2);
    assert_eq!((status("b.example.com"), status("b.example.com")), (String::new(), String::new()));
    assert_eq!(one.requests(), 4, "nothing is cached unasked");
}

#[test]
fn answers_are_compressed_where_the_ingress_says_so() {
    let one = Echo::start("one");
    let manifests = Manifests::empty();
    let pairs = [("telaio.dev/compress", "true")];
    let all = service("one", &[&one])
        + &ingress("a", "a.example.com", "/", "one", &all_annotated(&pairs))
        + &ingress("b", "b.example.com", "/", "one", "");
    manifests.write("all.yaml", &all);
    let plane = Ingress::start(manifests, "same");
    let coding = |host: &str, accepted: &str| {
        let fields = format!("Accept-Encoding: {accepted}\r\n");
        let answer = ask_with(plane.http, host, "/?size=20000", &fields);
        assert_eq!(answer.status, 200);
        answer.field("content-encoding").map(str::to_owned)
    };
    for accepted in ["gzip", "br", "zstd"] {
        assert_eq!(coding("a.example.com", accepted).as_deref(), Some(accepted));
        let url = format!("http://{}/?size=20000", plane.http);
        let out = std::process::Command::new("curl")
            .args(["-s", "--max-time", "60", "--compressed", "-H", "Host: a.example.com"])
            .args(["-H", &format!("Accept-Encoding: {accepted}"), &url])
            .output()
            .unwrap();
        let body: serde_json::Value = serde_json::from_slice(&out.stdout)
            .unwrap_or_else(|error| panic!("{accepted}: {error}: {out:?}"));
        assert_eq!(body["padding"].as_str().unwrap().len(), 20_000, "{accepted}");
    }
    assert_eq!(coding("a.example.com", "identity"), None);
    assert_eq!(coding("b.example.com", "gzip"), None);
}
