//! Where requests go and in what form: what the annotations of ingress-nginx say about it, with real requests.

use super::{
    Echo, Ingress, Manifests, all_annotated, ask, ask_with, ingress, send, service, service_at,
};

/// An Ingress for each host, with its annotations, before the service `one`.
pub(crate) fn ingresses(all: &[(&str, &[(&str, &str)])]) -> String {
    let each = all.iter().map(|(host, pairs)| {
        let name = host.split('.').next().unwrap();
        ingress(name, host, "/", "one", &all_annotated(pairs))
    });
    each.collect()
}

#[test]
fn redirects_and_rewrites_are_as_asked() {
    let one = Echo::start("one");
    let manifests = Manifests::empty();
    let with_tls = |text: String, host: &str| {
        text.replace("spec:\n", &format!("spec:\n  tls: [{{hosts: [{host}]}}]\n"))
    };
    let all = service("one", &[&one])
        + &ingresses(&[
            ("root.example.com", &[("app-root", "/app")]),
            ("moved.example.com", &[("temporal-redirect", "https://new.example.com/x")]),
            (
                "whole.example.com",
                &[
                    ("permanent-redirect", "https://new.example.com/x$request_uri"),
                    ("permanent-redirect-code", "308"),
                ],
            ),
            (
                "other.example.org",
                &[
                    ("temporal-redirect", "https://new.example.com$request_uri"),
                    ("temporal-redirect-code", "307"),
                ],
            ),
            ("alias.example.com", &[("server-alias", "other.example.com,*.wild.example.com")]),
            ("prefix.example.com", &[("x-forwarded-prefix", "/shop")]),
            ("www.example.com", &[("from-to-www-redirect", "true")]),
        ])
        + &ingress(
            "regex",
            "regex.example.com",
            "/api/v[0-9]+/users",
            "one",
            &all_annotated(&[("use-regex", "true")]),
        )
        .replace("Prefix", "ImplementationSpecific")
        + &with_tls(ingresses(&[("secure.example.com", &[])]), "secure.example.com")
        + &with_tls(
            ingresses(&[("both.example.com", &[("ssl-redirect", "false")])]),
            "both.example.com",
        );
    manifests.write("all.yaml", &all);
    let plane = Ingress::start(manifests, "same");
    let location = |host: &str, path: &str| {
        let answer = ask(plane.http, host, path);
        (answer.status, answer.field("location").unwrap_or_default().to_owned())
    };
    let app = location("root.example.com", "/");
    assert_eq!(app.0, 302);
    assert!(app.1.ends_with("/app"), "{app:?}");
    assert_eq!(ask(plane.http, "root.example.com", "/other").status, 200);
    assert_eq!(location("moved.example.com", "/"), (302, "https://new.example.com/x".to_owned()));
    let whole = "https://new.example.com/x/a?b=1".to_owned();
    assert_eq!(location("whole.example.com", "/a?b=1"), (308, whole));
    let host_only = "https://new.example.com/a?b=1".to_owned();
    assert_eq!(location("other.example.org", "/a?b=1"), (307, host_only));
    for host in ["alias.example.com", "other.example.com", "a.wild.example.com"] {
        assert_eq!(ask(plane.http, host, "/").status, 200, "{host}");
    }
    let prefixed = ask(plane.http, "prefix.example.com", "/").seen();
    assert_eq!(prefixed["headers"]["x-forwarded-prefix"], "/shop");
    let bare = location("example.com", "/a?b=1");
    assert_eq!(bare.0, 308);
    assert!(bare.1.contains("//www.example.com") && bare.1.ends_with("/a?b=1"), "{bare:?}");
    assert_eq!(ask(plane.http, "regex.example.com", "/api/v22/users/7").status, 200);
    assert_eq!(ask(plane.http, "regex.example.com", "/api/vx/users").status, 404);
    assert_eq!(location("secure.example.com", "/a").0, 308);
    assert_eq!(ask(plane.http, "both.example.com", "/").status, 200);
}

#[test]
fn endpoints_are_chosen_as_asked() {
    let (one, two, three) = (Echo::start("e1"), Echo::start("e2"), Echo::start("e3"));
    let canary = Echo::start("canary");
    let manifests = Manifests::empty();
    let all = service("one", &[&one, &two, &three])
        + &service("new", &[&canary])
        + &ingresses(&[
            ("turn.example.com", &[("load-balance", "round_robin")]),
            ("hash.example.com", &[("upstream-hash-by", "$request_uri")]),
            ("field.example.com", &[("upstream-hash-by", "$http_x_user")]),
            (
                "sticky.example.com",
                &[
                    ("affinity", "cookie"),
                    ("session-cookie-name", "place"),
                    ("session-cookie-path", "/shop"),
                    ("session-cookie-max-age", "600"),
                    ("session-cookie-samesite", "Strict"),
                    ("session-cookie-secure", "true"),
                    ("session-cookie-domain", "example.com"),
                ],
            ),
            ("mixed.example.com", &[]),
            ("share.example.com", &[]),
        ])
        + &ingress(
            "mixed-canary",
            "mixed.example.com",
            "/",
            "new",
            &all_annotated(&[
                ("canary", "true"),
                ("canary-by-header", "X-New"),
                ("canary-by-cookie", "new"),
            ]),
        )
        + &ingress(
            "share-canary",
            "share.example.com",
            "/",
            "new",
            &all_annotated(&[("canary", "true"), ("canary-weight", "50")]),
        );
    manifests.write("all.yaml", &all);
    let plane = Ingress::start(manifests, "same");
    let backend = |host: &str, path: &str, fields: &str| {
        ask_with(plane.http, host, path, fields).backend().expect("a backend")
    };
    let turns: std::collections::BTreeSet<_> =
        (0..3).map(|_| backend("turn.example.com", "/", "")).collect();
    assert_eq!(turns.len(), 3, "{turns:?}");
    let mut hashed = std::collections::BTreeSet::new();
    for number in 0..30 {
        let path = format!("/{number}");
        let first = backend("hash.example.com", &path, "");
        assert_eq!(backend("hash.example.com", &path, ""), first);
        hashed.insert(first);
        let user = format!("X-User: u{number}\r\n");
        let first = backend("field.example.com", "/a", &user);
        assert_eq!(backend("field.example.com", "/b", &user), first);
    }
    assert_eq!(hashed.len(), 3, "all of them are used");

    let first = ask(plane.http, "sticky.example.com", "/");
    let cookie = first.field("set-cookie").unwrap().to_owned();
    for part in [
        "place=",
        "Path=/shop",
        "Max-Age=600",
        "SameSite=Strict",
        "Secure",
        "HttpOnly",
        "Domain=example.com",
    ] {
        assert!(cookie.contains(part), "{cookie}");
    }
    let place = first.backend().unwrap();
    let sent = format!("Cookie: {}\r\n", cookie.split(';').next().unwrap());
    for _ in 0..6 {
        let again = ask_with(plane.http, "sticky.example.com", "/", &sent);
        assert_eq!(again.backend().as_deref(), Some(&*place));
        assert_eq!(again.field("set-cookie"), None, "it has one already");
    }
    // Nobody chooses an endpoint by hand.
    let forged = ask_with(plane.http, "sticky.example.com", "/", "Cookie: place=1\r\n");
    assert!(forged.field("set-cookie").is_some());

    assert_eq!(backend("mixed.example.com", "/", "X-New: always\r\n"), "canary");
    assert_eq!(backend("mixed.example.com", "/", "Cookie: new=always\r\n"), "canary");
    assert_ne!(backend("mixed.example.com", "/", ""), "canary");
    assert_ne!(backend("mixed.example.com", "/", "X-New: never\r\n"), "canary");
    let new = (0..200).filter(|_| backend("share.example.com", "/", "") == "canary").count();
    assert!((60..=140).contains(&new), "{new} of 200");
}

#[test]
fn failures_time_outs_and_sizes_are_bounded_as_asked() {
    let one = Echo::start("one");
    // Nobody listens at the second endpoint.
    let gone = {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.local_addr().unwrap()
    };
    let manifests = Manifests::empty();
    let (two, three) = (Echo::start("two"), Echo::start("three"));
    let to = |service: &str, host: &str, pairs: &[(&str, &str)]| {
        ingress(host.split('.').next().unwrap(), host, "/", service, &all_annotated(pairs))
    };
    let again = [("proxy-next-upstream", "error http_503"), ("proxy-next-upstream-tries", "3")];
    let all = service("one", &[&one])
        + &service("all", &[&one, &two, &three])
        + &service_at("half", &[one.address, gone])
        + &to("all", "again.example.com", &again)
        + &to("one", "alone.example.com", &again)
        + &ingresses(&[
            ("small.example.com", &[("proxy-body-size", "10")]),
            ("large.example.com", &[("proxy-body-size", "0")]),
            ("hasty.example.com", &[("proxy-read-timeout", "200ms")]),
            ("once.example.com", &[("proxy-next-upstream", "off")]),
        ])
        + &to("half", "retry.example.com", &[("load-balance", "round_robin")])
        + &to(
            "half",
            "noretry.example.com",
            &[("load-balance", "round_robin"), ("proxy-next-upstream-tries", "1")],
        );
    manifests.write("all.yaml", &all);
    let plane = Ingress::start(manifests, "same");
    let post = |host: &str, body: &str| send(plane.http, "POST", host, "/", "", body);
    assert_eq!(post("small.example.com", "0123456789").status, 200);
    assert_eq!(post("small.example.com", "0123456789x").status, 413);
    let large = post("large.example.com", &"x".repeat(2 << 20));
    assert_eq!(large.status, 200, "{}", large.head);
    assert_eq!(ask(plane.http, "hasty.example.com", "/slow").status, 504);
    assert_eq!(ask(plane.http, "hasty.example.com", "/").status, 200);

    let count = |host: &str, path: &str| {
        let asked = || one.requests() + two.requests() + three.requests();
        let before = asked();
        let answer = ask(plane.http, host, path);
        (answer.status, asked() - before)
    };
    assert_eq!(count("again.example.com", "/?status=503"), (503, 3), "three tries");
    assert_eq!(count("alone.example.com", "/?status=503"), (503, 1), "nobody else to ask");
    assert_eq!(count("once.example.com", "/?status=503"), (503, 1));
    for _ in 0..4 {
        assert_eq!(ask(plane.http, "retry.example.com", "/").status, 200);
    }
    let statuses: Vec<u16> =
        (0..2).map(|_| ask(plane.http, "noretry.example.com", "/").status).collect();
    assert!(statuses.contains(&502) && statuses.contains(&200), "{statuses:?}");
}

#[test]
fn headers_come_from_config_maps_and_snippets_are_refused() {
    let one = Echo::start("one");
    let manifests = Manifests::empty();
    let map = |name: &str, data: &str| {
        format!(
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}, namespace: shop, \
             labels: {{telaio.dev/config: \"true\"}}}}\ndata: {{{data}}}\n---\n"
        )
    };
    let all = service("one", &[&one])
        + &map("answers", "X-Team: shop, X-Frame-Options: DENY")
        + &map("questions", "X-Tier: front")
        + &ingresses(&[
            (
                "heads.example.com",
                &[("custom-headers", "answers"), ("telaio.dev/request-headers", "questions")],
            ),
            ("snippet.example.com", &[("configuration-snippet", "return 418;")]),
        ]);
    manifests.write("all.yaml", &all);
    let plane = Ingress::start(manifests, "same");
    let answer = ask(plane.http, "heads.example.com", "/");
    assert_eq!(answer.field("x-team"), Some("shop"), "{answer:?}");
    assert_eq!(answer.field("x-frame-options"), Some("DENY"));
    assert_eq!(answer.seen()["headers"]["x-tier"], "front");
    assert_eq!(ask(plane.http, "snippet.example.com", "/").status, 200, "it has no effect");
    let table = super::operations::told(plane.agent.admin, "/api/v1/routes");
    let items = table["items"].as_array().unwrap();
    let snippet = items.iter().find(|it| it["ingress"]["name"] == "snippet").unwrap();
    assert_eq!(snippet["warnings"][0]["reason"], "RefusedAnnotation", "{table}");
}
