//! What is kept, for whom, and from what kind of backend; and what backends of each kind are asked.

use std::collections::BTreeSet;
use std::net::{SocketAddr, TcpListener};

use serde_json::json;

use super::annotations::ingresses;
use super::operations::wait_until;
use super::{
    Answer, Echo, Ingress, Manifests, all_annotated, ask_with, ingress, service, service_at,
};

const CACHE: (&str, &str) = ("telaio.dev/cache", "true");

fn is_hit(answer: &Answer) -> bool {
    answer.field("cache-status").is_some_and(|it| it.contains("; hit"))
}

/// A body that came in one chunk, as what it holds.
fn whole(answer: &Answer) -> String {
    if answer.field("transfer-encoding").is_none() {
        return answer.body.clone();
    }
    let (_, rest) = answer.body.split_once("\r\n").expect("a chunk");
    rest.strip_suffix("\r\n0\r\n\r\n").expect("an end").to_owned()
}

/// Asks until the answer comes from the cache.
fn hit(at: SocketAddr, host: &str, path: &str, fields: &str) -> Answer {
    wait_until("a hit", || {
        let answer = ask_with(at, host, path, fields);
        assert_eq!(answer.status, 200, "{host}: {answer:?}");
        is_hit(&answer).then_some(answer)
    })
}

#[test]
fn every_kind_of_backend_is_spoken_with_and_what_it_says_is_kept() {
    let one = Echo::start("one");
    // An agent of its own is the backend: it speaks everything, and says by `Via` what it was asked by.
    let manifests = Manifests::empty();
    let inner = service("one", &[&one]) + &ingress("in", "\"*.example.com\"", "/", "one", "");
    manifests.write("inner.yaml", &inner);
    let inner = Ingress::start(manifests, "same");
    let kinds = [
        ("HTTP", "plain", "1.1"),
        ("H2C", "plain", "2.0"),
        ("GRPC", "plain", "2.0"),
        ("HTTPS", "tls", ""),
        ("GRPCS", "tls", "2.0"),
    ];
    let manifests = Manifests::empty();
    let mut all = service_at("plain", &[inner.http]) + &service_at("tls", &[inner.https]);
    for (kind, service, _) in kinds {
        let (name, pairs) = (kind.to_lowercase(), [("backend-protocol", kind), CACHE]);
        let host = format!("{name}.example.com");
        all += &ingress(&name, &host, "/", service, &all_annotated(&pairs));
    }
    manifests.write("all.yaml", &all);
    let plane = Ingress::start(manifests, "same");
    for (kind, _, version) in kinds {
        let host = format!("{}.example.com", kind.to_lowercase());
        let before = one.requests();
        let mut first = ask_with(plane.http, &host, "/x?max-age=600", "");
        first.body = whole(&first);
        assert_eq!(first.status, 200, "{kind}: {first:?}");
        let via = first.seen()["headers"]["via"].as_str().unwrap().to_owned();
        // First who took it from the client, then the inner one.
        let inner = via.rsplit(", ").next().unwrap();
        assert!(inner.starts_with(version), "{kind}: {via}");
        assert!(via.contains(", "), "{kind}: {via}");
        let again = hit(plane.http, &host, "/x?max-age=600", "");
        assert_eq!(again.body, first.body, "{kind}");
        assert!(again.field("age").is_some(), "{kind}: {again:?}");
        let part = ask_with(plane.http, &host, "/x?max-age=600", "Range: bytes=0-3\r\n");
        assert_eq!((part.status, &*part.body), (206, &first.body[..4]), "{kind}: {part:?}");
        assert_eq!(one.requests(), before + 1, "{kind}: the rest came from the cache");
    }
}

#[test]
fn who_asks_too_often_or_too_much_at_once_gets_nothing_from_the_cache_either() {
    let one = Echo::start("one");
    let manifests = Manifests::empty();
    let all = service("one", &[&one])
        + &ingresses(&[
            ("rps.example.com", &[("limit-rps", "1"), ("limit-burst-multiplier", "1"), CACHE]),
            ("few.example.com", &[("limit-connections", "1"), CACHE]),
        ]);
    manifests.write("all.yaml", &all);
    let plane = Ingress::start_with(manifests, "same", &["--trusted-proxies=127.0.0.0/8"]);
    let (ann, ben) = ("X-Forwarded-For: 192.0.2.1\r\n", "X-Forwarded-For: 192.0.2.2\r\n");
    let path = "/x?max-age=600";
    for host in ["rps.example.com", "few.example.com"] {
        assert_eq!(ask_with(plane.http, host, path, ben).status, 200, "{host}");
    }
    // Many at once by one client: some are refused, and what is answered is what is kept.
    let http = plane.http;
    let refused = wait_until("a refusal", || {
        let asking: Vec<_> = (0..16)
            .map(|_| std::thread::spawn(move || ask_with(http, "rps.example.com", path, ann)))
            .collect();
        let answers: Vec<_> = asking.into_iter().map(|it| it.join().unwrap()).collect();
        for answer in &answers {
            assert!(answer.status == 429 || is_hit(answer), "{answer:?}");
        }
        answers.into_iter().find(|it| it.status == 429)
    });
    assert_eq!(refused.backend(), None, "{refused:?}");
    // One is under way: what is kept is refused to this client, and to no other.
    let before = one.requests();
    let slow = std::thread::spawn(move || ask_with(http, "few.example.com", "/slower", ann).status);
    wait_until("the slow request", || (one.requests() > before).then_some(()));
    let answer = ask_with(http, "few.example.com", path, ann);
    assert_eq!((answer.status, answer.backend()), (429, None), "{answer:?}");
    assert!(is_hit(&ask_with(http, "few.example.com", path, ben)));
    assert_eq!(slow.join().unwrap(), 200);
    hit_when_free(http, path, ann);
    assert_eq!(one.requests(), before + 1);
}

/// The client's place is free again some time after its answer.
fn hit_when_free(http: SocketAddr, path: &str, fields: &str) {
    wait_until("the place to be free", || {
        is_hit(&ask_with(http, "few.example.com", path, fields)).then_some(())
    });
}

#[test]
fn two_users_never_get_each_others_answers() {
    let (one, auth) = (Echo::start("one"), Echo::start("auth"));
    let manifests = Manifests::empty();
    let url = format!("http://{}/check", auth.address);
    let all = service("one", &[&one])
        + &ingresses(&[
            ("open.example.com", &[CACHE]),
            ("asked.example.com", &[("auth-url", &url), CACHE]),
        ]);
    manifests.write("all.yaml", &all);
    let plane = Ingress::start(manifests, "same");
    let users = ["ann", "ben"];
    for host in ["open.example.com", "asked.example.com"] {
        for field in ["Authorization: Bearer", "Cookie: session="] {
            // `private` for all; what only says for how long is private for those who say who they are.
            let mut paths = vec!["/?max-age=60,private", "/?max-age=60,no-store"];
            if field.starts_with('A') || host.starts_with('a') {
                paths.push("/?max-age=60");
            }
            for path in paths {
                for user in users.iter().cycle().take(6) {
                    let fields = format!("{field} {user}\r\n");
                    let answer = ask_with(plane.http, host, path, &fields);
                    let case = format!("{host}{path} {fields}: {answer:?}");
                    assert_eq!(answer.status, 200, "{case}");
                    assert!(!is_hit(&answer), "{case}");
                    let name = field.split(':').next().unwrap().to_lowercase();
                    let seen = answer.seen()["headers"][&name].as_str().unwrap().to_owned();
                    assert!(seen.ends_with(user), "{case}");
                }
                // Nor does somebody whom nobody knows.
                let nobody = ask_with(plane.http, host, path, "");
                assert!(!is_hit(&nobody), "{nobody:?}");
                let headers = &nobody.seen()["headers"];
                assert_eq!(headers["authorization"], json!(null), "{headers}");
                assert_eq!(headers["cookie"], json!(null), "{headers}");
            }
        }
    }
    // What says that everybody may have it is everybody's; the origin is asked once.
    let before = one.requests();
    for user in users.iter().cycle().take(4) {
        let fields = format!("Authorization: Bearer {user}\r\n");
        ask_with(plane.http, "open.example.com", "/all?max-age=60,public", &fields);
    }
    assert_eq!(one.requests(), before + 1);
}

#[test]
fn the_origin_says_to_us_alone_what_to_keep_and_we_say_what_we_did() {
    let one = Echo::start("one");
    let manifests = Manifests::empty();
    let all = service("one", &[&one]) + &ingresses(&[("a.example.com", &[CACHE])]);
    manifests.write("all.yaml", &all);
    let plane = Ingress::start(manifests, "own");
    let get = |path: &str, fields: &str| ask_with(plane.http, "a.example.com", path, fields);
    let said = |answer: &Answer| answer.field("cache-status").unwrap_or_default().to_owned();
    // CDN-Cache-Control goes before Cache-Control, both ways; clients go by what is theirs.
    let kept = "/kept?max-age=0,no-store&cdn=max-age=600";
    let first = get(kept, "");
    assert!(said(&first).contains("fwd=uri-miss"), "{first:?}");
    assert!(said(&first).contains("stored"), "{first:?}");
    let again = get(kept, "");
    assert!(is_hit(&again), "{again:?}");
    assert_eq!(again.field("cache-control"), Some("max-age=0,no-store"), "{again:?}");
    let ttl: i64 = said(&again).split("ttl=").nth(1).unwrap().parse().unwrap();
    assert!((300..=600).contains(&ttl), "{again:?}");
    let not = "/not?max-age=600&cdn=no-store";
    assert!(!is_hit(&get(not, "")) && !is_hit(&get(not, "")));
    // What the request asks for, too.
    let only = get("/never?max-age=600", "Cache-Control: only-if-cached\r\n");
    assert_eq!((only.status, only.backend()), (504, None), "{only:?}");
    let forced = get(kept, "Cache-Control: no-cache\r\n");
    assert!(said(&forced).contains("fwd=request"), "{forced:?}");
    // An unsafe method takes away what is kept, and is not answered by it.
    let before = one.requests();
    let put = super::send(plane.http, "PUT", "a.example.com", kept, "", "text");
    assert!(said(&put).contains("fwd=method"), "{put:?}");
    assert!(!is_hit(&get(kept, "")));
    assert_eq!(one.requests(), before + 2);
}

#[test]
fn permissions_are_remembered_as_asked_and_refusals_never() {
    let (one, auth) = (Echo::start("one"), Echo::start("auth"));
    let manifests = Manifests::empty();
    let url = format!("http://{}/check", auth.address);
    let all = service("one", &[&one])
        + &ingresses(&[
            ("always.example.com", &[("auth-url", &url)]),
            (
                "once.example.com",
                &[
                    ("auth-url", &url),
                    ("auth-cache-key", "$http_authorization"),
                    ("auth-cache-duration", "200 202 401 10m"),
                ],
            ),
        ]);
    manifests.write("all.yaml", &all);
    let plane = Ingress::start(manifests, "same");
    let ask = |host: &str, user: &str, more: &str| {
        let fields = format!("Authorization: Bearer {user}\r\n{more}");
        let before = auth.requests();
        (ask_with(plane.http, host, "/", &fields).status, auth.requests() - before)
    };
    for _ in 0..3 {
        assert_eq!(ask("always.example.com", "ann", ""), (200, 1));
    }
    assert_eq!(ask("once.example.com", "ann", ""), (200, 1));
    for _ in 0..3 {
        assert_eq!(ask("once.example.com", "ann", ""), (200, 0), "it is remembered");
    }
    assert_eq!(ask("once.example.com", "ben", ""), (200, 1), "another's is not his");
    for _ in 0..3 {
        let refused = ask("once.example.com", "eve", "X-Echo-Status: 401\r\n");
        assert_eq!(refused, (401, 1), "a refusal is not remembered");
    }
}

#[test]
fn a_client_whose_endpoint_failed_comes_back_to_it_or_stays_with_the_next_as_asked() {
    let (one, two) = (Echo::start("one"), Echo::start("two"));
    let manifests = Manifests::empty();
    let sticky = [("affinity", "cookie"), ("session-cookie-name", "place")];
    let stays = [sticky[0], sticky[1], ("session-cookie-change-on-failure", "true")];
    let all = service("one", &[&one, &two])
        + &ingresses(&[("back.example.com", &sticky), ("stays.example.com", &stays)]);
    manifests.write("all.yaml", &all);
    let plane = Ingress::start(manifests, "same");
    let get = |host: &str, cookie: &str| {
        let answer = ask_with(plane.http, host, "/", &format!("Cookie: {cookie}\r\n"));
        assert_eq!(answer.status, 200, "{answer:?}");
        let set = answer.field("set-cookie").map(|it| it.split(';').next().unwrap().to_owned());
        (answer.backend().unwrap(), set)
    };
    // A cookie of the endpoint that will fail, on each host.
    let cookie = |host: &str| {
        wait_until("a cookie", || {
            let (backend, set) = get(host, "none=1");
            (backend == "one").then(|| set.expect("a cookie"))
        })
    };
    let (back, stays) = (cookie("back.example.com"), cookie("stays.example.com"));
    assert_eq!(get("back.example.com", &back), ("one".to_owned(), None));
    let address = one.address;
    drop(one);
    let refused = || std::net::TcpStream::connect(address).err();
    wait_until("the endpoint to be gone", refused);
    let names: BTreeSet<_> = (0..4).map(|_| get("back.example.com", &back)).collect();
    assert_eq!(names, [("two".to_owned(), None)].into(), "it goes elsewhere, and keeps its cookie");
    let (backend, set) = get("stays.example.com", &stays);
    assert_eq!(backend, "two");
    let moved = set.expect("a cookie of the next endpoint");
    assert_ne!(moved, stays);
    // It comes back, at the same address.
    let _again = Echo::start_on("one", TcpListener::bind(address).unwrap());
    wait_until("the way back", || (get("back.example.com", &back).0 == "one").then_some(()));
    assert_eq!(get("stays.example.com", &moved), ("two".to_owned(), None));
}

#[test]
fn how_long_and_how_much_is_kept_is_said_by_the_ingress_where_the_answer_does_not() {
    let one = Echo::start("one");
    let manifests = Manifests::empty();
    let all = service("one", &[&one])
        + &ingresses(&[
            ("plain.example.com", &[CACHE]),
            ("ttl.example.com", &[CACHE, ("telaio.dev/cache-default-ttl", "1h")]),
            ("small.example.com", &[CACHE, ("telaio.dev/cache-body-size", "4k")]),
            ("error.example.com", &[CACHE, ("telaio.dev/cache-stale-if-error", "1h")]),
            ("while.example.com", &[CACHE, ("telaio.dev/cache-stale-while-revalidate", "1h")]),
        ]);
    manifests.write("all.yaml", &all);
    let plane = Ingress::start(manifests, "same");
    let get = |host: &str, path: &str, fields: &str| ask_with(plane.http, host, path, fields);
    let is_kept = |host: &str, path: &str| {
        get(host, path, "");
        // What is kept is there after its answer was sent.
        (0..20).any(|_| is_hit(&get(host, path, "")))
    };
    assert!(!is_kept("plain.example.com", "/nothing-said"));
    hit(plane.http, "ttl.example.com", "/nothing-said", "");
    hit(plane.http, "small.example.com", "/?max-age=600&size=1000", "");
    assert!(!is_kept("small.example.com", "/?max-age=600&size=9000"));
    hit(plane.http, "plain.example.com", "/?max-age=600&size=9000", "");

    let path = "/?max-age=1";
    let hosts = ["plain.example.com", "error.example.com", "while.example.com"];
    for host in hosts {
        hit(plane.http, host, path, "");
    }
    std::thread::sleep(std::time::Duration::from_millis(2_100));
    let fails = "X-Echo-Status: 500\r\n";
    assert_eq!(get("plain.example.com", path, fails).status, 500);
    let stale = get("error.example.com", path, fails);
    assert_eq!(stale.status, 200, "the backend fails, and what is kept is given: {stale:?}");
    let before = one.requests();
    let stale = get("while.example.com", path, "");
    assert!(is_hit(&stale), "given at once: {stale:?}");
    wait_until("the question behind it", || (one.requests() > before).then_some(()));
}
