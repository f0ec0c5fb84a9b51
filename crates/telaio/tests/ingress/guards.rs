//! Who is let in, and that the cache is asked only for those who are.

use super::annotations::ingresses;
use super::operations::wait_until;
use super::{Echo, Ingress, Manifests, all_annotated, ask_with, ingress, send, service};

/// What a user `ann` with the password `secret` sends.
const ANN: &str = "Authorization: Basic YW5uOnNlY3JldA==\r\n";

fn from(address: &str) -> String {
    format!("X-Forwarded-For: {address}\r\n")
}

/// A Secret with that user.
fn users() -> String {
    "apiVersion: v1\nkind: Secret\nmetadata: {name: users, namespace: shop}\ntype: Opaque\n\
     stringData:\n  auth: \"ann:{SHA}5en6G6MezRroT3XKqkdPOmY/BfQ=\"\n---\n"
        .to_owned()
}

/// An agent that believes us who the client is.
fn start(manifests: Manifests) -> Ingress {
    Ingress::start_with(manifests, "same", &["--trusted-proxies=127.0.0.0/8"])
}

#[test]
fn only_those_are_let_in_who_may() {
    let (one, auth) = (Echo::start("one"), Echo::start("auth"));
    let manifests = Manifests::empty();
    let url = format!("http://{}/check", auth.address);
    let all = service("one", &[&one])
        + &users()
        + &ingresses(&[
            ("allow.example.com", &[("whitelist-source-range", "192.0.2.0/24,2001:db8::/32")]),
            ("deny.example.com", &[("denylist-source-range", "192.0.2.7")]),
            (
                "basic.example.com",
                &[("auth-type", "basic"), ("auth-secret", "users"), ("auth-realm", "the shop")],
            ),
            (
                "ask.example.com",
                &[
                    ("auth-url", &url),
                    ("auth-response-headers", "X-Echo"),
                    ("auth-signin", "https://login.example.com/start"),
                ],
            ),
            ("often.example.com", &[("limit-rpm", "2"), ("limit-burst-multiplier", "1")]),
            ("second.example.com", &[("limit-rps", "1"), ("limit-burst-multiplier", "1")]),
            ("friend.example.com", &[("limit-rpm", "1"), ("limit-whitelist", "192.0.2.0/24")]),
            ("few.example.com", &[("limit-connections", "1")]),
            (
                "cross.example.com",
                &[
                    ("enable-cors", "true"),
                    ("cors-allow-origin", "https://app.example.com"),
                    ("cors-allow-methods", "GET, PUT"),
                    ("cors-max-age", "60"),
                ],
            ),
        ]);
    manifests.write("all.yaml", &all);
    let plane = start(manifests);
    let status = |host: &str, fields: &str| ask_with(plane.http, host, "/", fields).status;
    assert_eq!(status("allow.example.com", &from("192.0.2.1")), 200);
    assert_eq!(status("allow.example.com", &from("2001:db8::1")), 200);
    assert_eq!(status("allow.example.com", &from("198.51.100.1")), 403);
    assert_eq!(status("deny.example.com", &from("192.0.2.7")), 403);
    assert_eq!(status("deny.example.com", &from("192.0.2.8")), 200);

    let refused = ask_with(plane.http, "basic.example.com", "/", "");
    assert_eq!(refused.status, 401);
    let wanted = refused.field("www-authenticate").unwrap();
    assert!(wanted.starts_with("Basic ") && wanted.contains("the shop"), "{wanted}");
    assert_eq!(status("basic.example.com", ANN), 200);
    assert_eq!(status("basic.example.com", "Authorization: Basic YW5uOnNlY3JldDI=\r\n"), 401);

    let passed = ask_with(plane.http, "ask.example.com", "/x?y=1", "");
    assert_eq!(passed.status, 200, "{passed:?}");
    assert_eq!(passed.seen()["headers"]["x-echo"], "auth");
    let question = auth.seen().pop().unwrap();
    assert_eq!(question["path"], "/check");
    assert_eq!(question["headers"]["x-original-method"], "GET", "{question}");
    let url = question["headers"]["x-original-url"].as_str().unwrap();
    assert!(url.ends_with("ask.example.com/x?y=1"), "{url}");
    let sent = ask_with(plane.http, "ask.example.com", "/", "X-Echo-Status: 401\r\n");
    assert_eq!(sent.status, 302, "{sent:?}");
    assert!(sent.field("location").unwrap().starts_with("https://login.example.com/start"));
    assert_eq!(status("ask.example.com", "X-Echo-Status: 403\r\n"), 403);

    let (ann, ben) = (from("203.0.113.1"), from("203.0.113.2"));
    let many: Vec<u16> = (0..4).map(|_| status("often.example.com", &ann)).collect();
    assert_eq!(many.first(), Some(&200), "{many:?}");
    assert_eq!(many.last(), Some(&429), "{many:?}");
    assert_eq!(status("often.example.com", &ben), 200, "each client is counted alone");
    assert!((0..50).any(|_| status("second.example.com", &ann) == 429));
    for _ in 0..8 {
        assert_eq!(status("friend.example.com", &from("192.0.2.9")), 200);
    }
    let before = one.requests();
    let (http, fields) = (plane.http, ann.clone());
    let slow =
        std::thread::spawn(move || ask_with(http, "few.example.com", "/slower", &fields).status);
    wait_until("the slow request", || (one.requests() > before).then_some(()));
    assert_eq!(status("few.example.com", &ann), 429, "one is under way");
    assert_eq!(status("few.example.com", &ben), 200);
    assert_eq!(slow.join().unwrap(), 200);
    wait_until("the place to be free", || (status("few.example.com", &ann) == 200).then_some(()));

    let origin = "Origin: https://app.example.com\r\n";
    let question = format!("{origin}Access-Control-Request-Method: PUT\r\n");
    let before = one.requests();
    let answer = send(plane.http, "OPTIONS", "cross.example.com", "/", &question, "");
    assert_eq!(answer.status, 204, "{answer:?}");
    assert_eq!(answer.field("access-control-allow-origin"), Some("https://app.example.com"));
    assert_eq!(answer.field("access-control-allow-methods"), Some("GET, PUT"));
    assert_eq!(answer.field("access-control-max-age"), Some("60"));
    assert_eq!(one.requests(), before, "the backend is not asked");
    let answer = ask_with(plane.http, "cross.example.com", "/", origin);
    assert_eq!(answer.field("access-control-allow-origin"), Some("https://app.example.com"));
    let answer = ask_with(plane.http, "cross.example.com", "/", "Origin: https://evil.example\r\n");
    assert_eq!(answer.field("access-control-allow-origin"), None);
}

#[test]
fn the_paths_and_aliases_of_an_ingress_share_its_limits() {
    let one = Echo::start("one");
    let manifests = Manifests::empty();
    let pairs = [
        ("limit-rpm", "2"),
        ("limit-burst-multiplier", "1"),
        ("server-alias", "alias.example.com"),
        ("enable-cors", "true"),
        ("cors-allow-origin", "https://app.example.com"),
    ];
    let second = "      - path: /second\n        pathType: Prefix\n        \
                  backend: {service: {name: one, port: {name: http}}}\n---\n";
    let both = ingress("often", "often.example.com", "/first", "one", &all_annotated(&pairs));
    let both = both.trim_end_matches("---\n").to_owned() + second;
    manifests.write("all.yaml", &(service("one", &[&one]) + &both));
    let plane = start(manifests);
    let fields = from("203.0.113.1") + "Origin: https://app.example.com\r\n";
    let get = |host: &str, path: &str| ask_with(plane.http, host, path, &fields);
    let places = [
        ("often.example.com", "/first"),
        ("often.example.com", "/second"),
        ("alias.example.com", "/first"),
        ("alias.example.com", "/second"),
    ];
    let answers: Vec<_> = places.map(|(host, path)| get(host, path)).into();
    let statuses: Vec<_> = answers.iter().map(|answer| answer.status).collect();
    assert_eq!((statuses[0], statuses[3]), (200, 429), "{statuses:?}");
    // A browser's page is shown the refusal.
    for answer in &answers {
        let told = answer.field("access-control-allow-origin");
        assert_eq!(told, Some("https://app.example.com"), "{answer:?}");
    }
}

#[test]
fn what_is_cached_is_given_only_to_those_who_may_ask() {
    let (one, auth) = (Echo::start("one"), Echo::start("auth"));
    let manifests = Manifests::empty();
    let url = format!("http://{}/check", auth.address);
    let guards: [(&str, &[(&str, &str)]); 5] = [
        ("allow.example.com", &[("whitelist-source-range", "192.0.2.1")]),
        ("deny.example.com", &[("denylist-source-range", "192.0.2.2")]),
        ("basic.example.com", &[("auth-type", "basic"), ("auth-secret", "users")]),
        ("ask.example.com", &[("auth-url", &url)]),
        ("often.example.com", &[("limit-rpm", "3"), ("limit-burst-multiplier", "1")]),
    ];
    let mut all = service("one", &[&one]) + &users();
    for (host, pairs) in guards {
        let pairs: Vec<_> = pairs.iter().copied().chain([("telaio.dev/cache", "true")]).collect();
        all += &ingresses(&[(host, &pairs)]);
    }
    manifests.write("all.yaml", &all);
    let plane = start(manifests);
    let path = "/?max-age=60,public";
    let get = |host: &str, fields: &str| ask_with(plane.http, host, path, fields);
    let (may, may_not) = (from("192.0.2.1"), from("192.0.2.2"));
    let cases = [
        ("allow.example.com", may.as_str(), may_not.as_str(), 403),
        ("deny.example.com", may.as_str(), may_not.as_str(), 403),
        ("basic.example.com", ANN, "", 401),
        ("ask.example.com", "", "X-Echo-Status: 403\r\n", 403),
    ];
    for (host, may, may_not, refused) in cases {
        assert_eq!(get(host, may).status, 200, "{host}");
        let before = one.requests();
        let hit = wait_until("a hit", || {
            let again = get(host, may);
            assert_eq!(again.status, 200, "{host}");
            again.field("cache-status").filter(|it| it.contains("hit")).map(str::to_owned)
        });
        assert!(one.requests() <= before + 1, "{host}: {hit}");
        let before = one.requests();
        let answer = get(host, may_not);
        assert_eq!(answer.status, refused, "{host}: {answer:?}");
        assert_ne!(answer.backend().as_deref(), Some("one"), "{host}: {answer:?}");
        assert_eq!(get(host, may).status, 200, "{host}");
        assert_eq!(one.requests(), before, "{host}: all of it from the cache");
    }
    // What is answered from the cache is counted like any other.
    let statuses: Vec<u16> = (0..8).map(|_| get("often.example.com", &may).status).collect();
    assert_eq!((statuses[0], statuses[7]), (200, 429), "{statuses:?}");
    let other = get("often.example.com", &may_not);
    assert_eq!(other.status, 200);
    assert!(other.field("cache-status").unwrap().contains("hit"), "{other:?}");
}

#[test]
fn an_answer_for_one_user_is_never_another_users() {
    let one = Echo::start("one");
    let manifests = Manifests::empty();
    let pairs = [("auth-type", "basic"), ("auth-secret", "users"), ("telaio.dev/cache", "true")];
    let text = ingress("a", "a.example.com", "/", "one", &all_annotated(&pairs));
    manifests.write("all.yaml", &(service("one", &[&one]) + &users() + &text));
    let plane = start(manifests);
    for _ in 0..2 {
        let before = one.requests();
        assert_eq!(ask_with(plane.http, "a.example.com", "/?max-age=60", ANN).status, 200);
        assert_eq!(one.requests(), before + 1, "it did not say that everybody may have it");
    }
}

#[test]
fn who_decides_is_asked_as_the_ingress_says() {
    let (one, auth) = (Echo::start("one"), Echo::start("auth"));
    let manifests = Manifests::empty();
    let url = format!("http://{}/check", auth.address);
    let map = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: question, namespace: shop, \
               labels: {telaio.dev/config: \"true\"}}\ndata: {X-Tier: front, Host: evil.example}\n---\n";
    let ask_by = |more: &[(&'static str, &'static str)]| -> Vec<(&str, String)> {
        let more = more.iter().map(|(name, value)| (*name, (*value).to_owned()));
        [("auth-url", url.clone())].into_iter().chain(more).collect()
    };
    let mut all = service("one", &[&one]) + map;
    for (host, pairs) in [
        ("method.example.com", ask_by(&[("auth-method", "POST")])),
        (
            "signin.example.com",
            ask_by(&[
                ("auth-signin", "https://login.example.com/start"),
                ("auth-signin-redirect-param", "back"),
            ]),
        ),
        (
            "redirect.example.com",
            ask_by(&[("auth-request-redirect", "https://$host/back?to=$escaped_request_uri")]),
        ),
        ("cookie.example.com", ask_by(&[("auth-always-set-cookie", "true")])),
        ("nocookie.example.com", ask_by(&[])),
        ("set.example.com", ask_by(&[("auth-proxy-set-headers", "shop/question")])),
        ("told.example.com", ask_by(&[("auth-response-headers", "X-Echo,X-User")])),
        ("framing.example.com", ask_by(&[("auth-response-headers", "X-User,Content-Length")])),
    ] {
        let pairs: Vec<_> = pairs.iter().map(|(name, value)| (*name, value.as_str())).collect();
        all += &ingresses(&[(host, &pairs)]);
    }
    manifests.write("all.yaml", &all);
    let plane = start(manifests);
    let get = |host: &str, fields: &str| ask_with(plane.http, host, "/x?y=1", fields);
    let question = |host: &str| {
        assert_eq!(get(host, "").status, 200, "{host}");
        auth.seen().pop().unwrap()
    };
    assert_eq!(question("method.example.com")["method"], "POST");
    assert_eq!(question("signin.example.com")["method"], "GET");
    let sent = get("signin.example.com", "X-Echo-Status: 401\r\n");
    assert_eq!(sent.status, 302, "{sent:?}");
    let location = sent.field("location").unwrap();
    assert!(
        location.starts_with("https://login.example.com/start?back=http%3A%2F%2F"),
        "{location}"
    );
    let redirect = &question("redirect.example.com")["headers"]["x-auth-request-redirect"];
    assert_eq!(redirect, "https://redirect.example.com/back?to=%2Fx%3Fy%3D1");
    let redirect = &question("set.example.com")["headers"]["x-auth-request-redirect"];
    assert_eq!(redirect, "/x?y=1", "unless said otherwise");
    let headers = &question("set.example.com")["headers"];
    assert_eq!(headers["x-tier"], "front");
    assert_ne!(headers["host"], "evil.example", "framing is the proxy's own");
    let refused = "X-Echo-Status: 403\r\nX-Echo-Cookie: seen=1\r\n";
    assert_eq!(get("cookie.example.com", refused).field("set-cookie"), Some("seen=1"));
    assert_eq!(get("nocookie.example.com", refused).field("set-cookie"), None);
    // Nobody says by a header of its own who it is.
    let told = get("told.example.com", "X-User: root\r\n").seen();
    assert_eq!(told["headers"]["x-echo"], "auth");
    assert_eq!(told["headers"]["x-user"], serde_json::Value::Null);
    let (before, asked) = (one.requests(), auth.requests());
    assert_eq!(get("framing.example.com", "").status, 403);
    assert_eq!((one.requests(), auth.requests()), (before, asked), "nobody comes in");
}

#[test]
fn the_client_cannot_choose_whom_we_ask() {
    let (one, evil) = (Echo::start("one"), Echo::start("evil"));
    let manifests = Manifests::empty();
    let port = evil.address.port();
    let by_host = format!("http://$host:{port}/check");
    let all = service("one", &[&one])
        + &ingresses(&[
            ("exact.example.com", &[("auth-url", &by_host)]),
            ("port.example.com", &[("auth-url", "http://$http_host/check")]),
        ])
        + &ingress("any", "x", "/", "one", &all_annotated(&[("auth-url", &by_host)]))
            .replace("  - host: x\n    http:", "  - http:");
    manifests.write("all.yaml", &all);
    let plane = start(manifests);
    // Whoever names the address of a service of its own, or one within, would have it say yes.
    for host in ["127.0.0.1", &format!("127.0.0.1:{port}"), &format!("port.example.com:{port}")] {
        assert_eq!(ask_with(plane.http, host, "/", "").status, 403, "{host}");
    }
    assert_eq!((one.requests(), evil.requests()), (0, 0));
    // On a route of one host that host is asked; nobody serves under this name, so nobody comes in.
    assert_eq!(ask_with(plane.http, "exact.example.com", "/", "").status, 500);
    let warned = plane.agent.wait_log(
        "auth-url leads to $host, and for all hosts that is whatever a client writes: nobody comes in there; \
         name the service's own host in auth-url, or one host in the rule",
    );
    assert_eq!(warned["ingress"], "shop/any");
}

#[test]
fn lists_have_two_names_and_answers_to_other_origins_say_what_was_asked_for() {
    let one = Echo::start("one");
    let manifests = Manifests::empty();
    let cors = ("enable-cors", "true");
    let all = service("one", &[&one])
        + &ingresses(&[
            ("allow.example.com", &[("allowlist-source-range", "192.0.2.0/24")]),
            (
                "both.example.com",
                &[
                    ("whitelist-source-range", "0.0.0.0/0"),
                    ("telaio.dev/whitelist-source-range", "192.0.2.0/24"),
                ],
            ),
            ("friend.example.com", &[("limit-rpm", "1"), ("limit-allowlist", "192.0.2.0/24")]),
            (
                "cross.example.com",
                &[
                    cors,
                    ("cors-allow-headers", "X-One,X-Two"),
                    ("cors-expose-headers", "X-Total"),
                    ("cors-allow-credentials", "false"),
                ],
            ),
            ("usual.example.com", &[cors]),
        ]);
    manifests.write("all.yaml", &all);
    let plane = start(manifests);
    let status = |host: &str, address: &str| ask_with(plane.http, host, "/", &from(address)).status;
    for host in ["allow.example.com", "both.example.com"] {
        assert_eq!(status(host, "192.0.2.1"), 200, "{host}");
        assert_eq!(status(host, "198.51.100.1"), 403, "{host}");
    }
    for _ in 0..12 {
        assert_eq!(status("friend.example.com", "192.0.2.1"), 200);
    }
    assert!((0..12).any(|_| status("friend.example.com", "198.51.100.1") == 429));

    let origin = "Origin: https://app.example.org\r\n";
    let question = format!("{origin}Access-Control-Request-Method: GET\r\n");
    let asked = |host: &str| send(plane.http, "OPTIONS", host, "/", &question, "");
    let answer = asked("cross.example.com");
    let allowed = answer.field("access-control-allow-headers").unwrap().to_lowercase();
    assert!(allowed.contains("x-one") && allowed.contains("x-two"), "{allowed}");
    assert_eq!(answer.field("access-control-allow-credentials"), None);
    let answer = ask_with(plane.http, "cross.example.com", "/", origin);
    let exposed = answer.field("access-control-expose-headers").unwrap().to_lowercase();
    assert_eq!(exposed, "x-total");
    assert_eq!(answer.field("access-control-allow-origin"), Some("*"));
    let answer = asked("usual.example.com");
    assert_eq!(answer.field("access-control-allow-credentials"), Some("true"));
    assert_eq!(answer.field("access-control-allow-origin"), Some("https://app.example.org"));
    assert!(answer.field("access-control-allow-headers").unwrap().contains("Authorization"));
}
