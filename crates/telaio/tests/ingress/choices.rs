//! Which endpoint gets a request, and whether the client stays there: what annotations say about it, with
//! real requests.

use std::time::{Duration, Instant};

use super::annotations::ingresses;
use super::certificates::curl;
use super::operations::wait_until;
use super::{Echo, Ingress, Manifests, all_annotated, ask, ask_with, ingress, service};

fn backend_of(plane: &Ingress, host: &str, path: &str, fields: &str) -> String {
    ask_with(plane.http, host, path, fields).backend().expect("a backend")
}

#[test]
fn the_idle_and_the_fast_endpoint_are_preferred_as_asked() {
    let (one, two) = (Echo::start("e1"), Echo::start("e2"));
    let (fast, lazy) = (Echo::start("fast"), Echo::start("lazy"));
    lazy.set_late(Duration::from_millis(200));
    let manifests = Manifests::empty();
    let ewma = all_annotated(&[("load-balance", "ewma")]);
    let all = service("one", &[&one, &two])
        + &service("mixed", &[&fast, &lazy])
        + &ingresses(&[("least.example.com", &[("load-balance", "least_conn")])])
        + &ingress("ewma", "ewma.example.com", "/", "mixed", &ewma);
    manifests.write("all.yaml", &all);
    let plane = Ingress::start(manifests, "same");
    let http = plane.http;
    let slow = std::thread::spawn(move || ask(http, "least.example.com", "/slower").backend());
    wait_until("the slow request", || (one.requests() + two.requests() == 1).then_some(()));
    let busy = if one.requests() == 1 { "e1" } else { "e2" };
    for _ in 0..8 {
        let backend = backend_of(&plane, "least.example.com", "/", "");
        assert!(backend != busy || slow.is_finished());
    }
    assert_eq!(slow.join().unwrap().as_deref(), Some(busy));
    let to_lazy =
        (0..40).filter(|_| backend_of(&plane, "ewma.example.com", "/", "") == "lazy").count();
    assert!(to_lazy <= 12, "{to_lazy} of 40 to the slow one");
}

#[test]
fn requests_alike_in_a_cookie_or_by_one_client_go_to_one_endpoint() {
    let all_echoes = [Echo::start("e1"), Echo::start("e2"), Echo::start("e3")];
    let manifests = Manifests::empty();
    let all = service("one", &all_echoes.iter().collect::<Vec<_>>())
        + &ingresses(&[
            ("cookie.example.com", &[("upstream-hash-by", "$cookie_id")]),
            ("client.example.com", &[("upstream-hash-by", "$remote_addr")]),
            ("both.example.com", &[("upstream-hash-by", "of-$host-${cookie_id}$http_x_user")]),
        ]);
    manifests.write("all.yaml", &all);
    let plane = Ingress::start_with(manifests, "same", &["--trusted-proxies=127.0.0.0/8"]);
    for (host, fields) in [
        ("cookie.example.com", "Cookie: other=1; id="),
        ("client.example.com", "X-Forwarded-For: 192.0.2."),
        ("both.example.com", "Cookie: id=1\r\nX-User: "),
    ] {
        let mut used = std::collections::BTreeSet::new();
        for number in 1..40 {
            let fields = format!("{fields}{number}\r\n");
            let first = backend_of(&plane, host, "/a", &fields);
            assert_eq!(backend_of(&plane, host, "/b", &fields), first, "{host} {number}");
            used.insert(first);
        }
        assert_eq!(used.len(), 3, "{host}: all of them are used");
    }
}

#[test]
fn a_canary_is_chosen_by_value_pattern_or_share_of_any_whole() {
    let (one, new) = (Echo::start("one"), Echo::start("new"));
    let manifests = Manifests::empty();
    let canary = |host: &str, pairs: &[(&str, &str)]| {
        let pairs: Vec<_> = [("canary", "true")].iter().chain(pairs).copied().collect();
        let name = format!("{}-canary", host.split('.').next().unwrap());
        ingress(&name, host, "/", "new", &all_annotated(&pairs))
    };
    let all = service("one", &[&one])
        + &service("new", &[&new])
        + &ingresses(&[
            ("value.example.com", &[]),
            ("pattern.example.com", &[]),
            ("whole.example.com", &[]),
            ("none.example.com", &[]),
        ])
        + &canary(
            "value.example.com",
            &[("canary-by-header", "X-Who"), ("canary-by-header-value", "ann")],
        )
        + &canary(
            "pattern.example.com",
            &[("canary-by-header", "X-Who"), ("canary-by-header-pattern", "^(ann|ben)$")],
        )
        + &canary("whole.example.com", &[("canary-weight", "3"), ("canary-weight-total", "3")])
        + &canary("none.example.com", &[("canary-weight", "0"), ("canary-weight-total", "1000")]);
    manifests.write("all.yaml", &all);
    let plane = Ingress::start(manifests, "same");
    let who = |host: &str, who: &str| backend_of(&plane, host, "/", &format!("X-Who: {who}\r\n"));
    for (host, is_new, is_not) in [
        ("value.example.com", &["ann"][..], &["ben", "always", "annx", ""][..]),
        ("pattern.example.com", &["ann", "ben"][..], &["always", "xann", "ann1"][..]),
    ] {
        for name in is_new {
            assert_eq!(who(host, name), "new", "{host}: {name}");
        }
        for name in is_not {
            assert_eq!(who(host, name), "one", "{host}: {name}");
        }
    }
    for _ in 0..20 {
        assert_eq!(who("whole.example.com", "any"), "new");
        assert_eq!(who("none.example.com", "any"), "one");
    }
}

#[test]
fn a_client_stays_with_the_canary_or_with_the_others_while_its_cookie_does() {
    let (one, new) = (Echo::start("one"), Echo::start("new"));
    let manifests = Manifests::empty();
    let affinity = [("affinity", "cookie"), ("affinity-canary-behavior", "sticky")];
    let share = [("canary", "true"), ("canary-weight", "50")];
    let all = service("one", &[&one])
        + &service("new", &[&new])
        + &ingresses(&[("a.example.com", &affinity)])
        + &ingress("a-canary", "a.example.com", "/", "new", &all_annotated(&share));
    manifests.write("all.yaml", &all);
    let plane = Ingress::start(manifests, "same");
    let mut met = std::collections::BTreeSet::new();
    for _ in 0..16 {
        let first = ask(plane.http, "a.example.com", "/");
        let name = first.backend().expect("a backend");
        let cookie = first.field("set-cookie").expect("a cookie").split(';').next().unwrap();
        let fields = format!("Cookie: {cookie}\r\n");
        for _ in 0..16 {
            assert_eq!(backend_of(&plane, "a.example.com", "/", &fields), name);
        }
        met.insert(name);
    }
    assert_eq!(met.len(), 2, "half of the clients each");
}

#[test]
fn a_sticky_cookie_is_secure_where_the_request_came_so_unless_said_otherwise() {
    let one = Echo::start("one");
    let manifests = Manifests::empty();
    let affinity = ("affinity", "cookie");
    let none = ("session-cookie-samesite", "None");
    let by_browser = ("session-cookie-conditional-samesite-none", "true");
    let all = service("one", &[&one])
        + &ingresses(&[
            ("plain.example.com", &[affinity, ("session-cookie-expires", "300")]),
            ("none.example.com", &[affinity, none]),
            ("always.example.com", &[affinity, none, ("session-cookie-secure", "true")]),
            ("never.example.com", &[affinity, none, ("session-cookie-secure", "false")]),
            ("known.example.com", &[affinity, none, by_browser]),
        ]);
    manifests.write("all.yaml", &all);
    let plane = Ingress::start(manifests, "same");
    let cookies = |host: &str| {
        let http = ask(plane.http, host, "/");
        let https = curl(&plane, host, "/", &[]).expect("an answer");
        [http, https].map(|answer| answer.field("set-cookie").expect("a cookie").to_owned())
    };
    for (host, secure, same_site) in [
        ("plain.example.com", [false, true], [false, false]),
        ("none.example.com", [false, true], [false, true]),
        ("always.example.com", [true, true], [true, true]),
        ("never.example.com", [false, false], [false, false]),
    ] {
        let cookies = cookies(host);
        assert_eq!(
            cookies.clone().map(|it| it.contains("; Secure")),
            secure,
            "{host}: {cookies:?}"
        );
        let named = cookies.clone().map(|it| it.contains("; SameSite=None"));
        assert_eq!(named, same_site, "{host}: {cookies:?}");
        let lasts = cookies.iter().all(|it| it.contains("Max-Age=300"));
        assert_eq!(lasts, host == "plain.example.com", "{cookies:?}");
    }
    // Browsers that would throw the cookie away get one that they keep.
    let chrome =
        |version| format!("Mozilla/5.0 (X11; Linux x86_64) Chrome/{version} Safari/537.36");
    let safari = "Mozilla/5.0 (Macintosh; Intel Mac OS X 10_14_6) Version/12.0 Safari/605.1.15";
    let iphone =
        "Mozilla/5.0 (iPhone; CPU iPhone OS 12_1 like Mac OS X) Mobile/15E148 Safari/604.1";
    for (host, browser, same_site) in [
        ("known.example.com", chrome("66.0"), false),
        ("known.example.com", chrome("80.0"), true),
        ("known.example.com", safari.to_owned(), false),
        ("known.example.com", iphone.to_owned(), false),
        ("none.example.com", chrome("66.0"), true),
    ] {
        let answer = curl(&plane, host, "/", &["-A", &browser]).expect("an answer");
        let cookie = answer.field("set-cookie").expect("a cookie");
        assert_eq!(cookie.contains("; SameSite=None"), same_site, "{browser}: {cookie}");
    }
}

#[test]
fn a_new_endpoint_begins_with_a_small_share_where_that_is_asked_for() {
    let (old, new) = (Echo::start("old"), Echo::start("new"));
    let manifests = Manifests::empty();
    let turn = ("load-balance", "round_robin");
    let text = |endpoints: &[&Echo]| {
        service("one", endpoints)
            + &ingresses(&[
                ("slow.example.com", &[turn, ("telaio.dev/slow-start", "6s")]),
                ("full.example.com", &[turn]),
            ])
    };
    manifests.write("all.yaml", &text(&[&old]));
    let plane = Ingress::start(manifests, "same");
    assert_eq!(ask(plane.http, "slow.example.com", "/").status, 200);
    // The first one is no newcomer any more.
    std::thread::sleep(Duration::from_millis(6_200));
    let begun = Instant::now();
    plane.manifests.write("all.yaml", &text(&[&old, &new]));
    plane.ask_until("full.example.com", "/", |it| it.backend().as_deref() == Some("new"));
    let share = |host: &str| {
        (0..100).map(|_| u8::from(backend_of(&plane, host, "/", "") == "new")).sum::<u8>()
    };
    let slow = share("slow.example.com");
    // However long that took: it begins with a tenth of its share, and has all of it after six seconds.
    let grown = 0.1 + 0.9 * (begun.elapsed().as_secs_f64() / 6.0).min(1.0);
    let most = 10.0 + 100.0 * grown / (1.0 + grown);
    assert!(f64::from(slow) < most, "{slow} of 100, and at most {most:.0} by now");
    assert_eq!(share("full.example.com"), 50);
    plane.ask_until("slow.example.com", "/", |it| it.backend().as_deref() == Some("new"));
}

#[test]
fn connections_are_made_ahead_and_requests_wait_or_are_refused_as_asked() {
    let (warm, few) = (Echo::start("warm"), Echo::start("few"));
    let manifests = Manifests::empty();
    let one_at_a_time = ("telaio.dev/connections-max", "1");
    let to = |name: &str, service: &str, pairs: &[(&str, &str)]| {
        ingress(name, &format!("{name}.example.com"), "/", service, &all_annotated(pairs))
    };
    let all = service("warm", &[&warm])
        + &service("few", &[&few])
        + &to("warm", "warm", &[("telaio.dev/prewarm-connections", "3")])
        + &to("wait", "few", &[one_at_a_time])
        + &to("none", "few", &[one_at_a_time, ("telaio.dev/pending-max", "0")]);
    manifests.write("all.yaml", &all);
    let plane = Ingress::start(manifests, "same");
    wait_until("connections ahead of requests", || (warm.connections() >= 3).then_some(()));
    assert_eq!(warm.requests(), 0);
    let http = plane.http;
    for (host, refused) in [("wait.example.com", false), ("none.example.com", true)] {
        let before = few.requests();
        let path = if refused { "/slower" } else { "/slow" };
        let slow = std::thread::spawn(move || ask(http, host, path).status);
        wait_until("the slow request", || (few.requests() > before).then_some(()));
        let second = std::thread::spawn(move || ask(http, host, "/"));
        if refused {
            assert_eq!(second.join().unwrap().status, 503, "{host}");
            assert_eq!(few.requests(), before + 1, "{host}: nobody asked the backend");
            assert_eq!(slow.join().unwrap(), 200, "{host}");
        } else {
            assert_eq!(slow.join().unwrap(), 200, "{host}");
            assert_eq!(second.join().unwrap().status, 200, "{host}: it waited");
            let order: Vec<_> = few.seen().iter().map(|it| it["path"].clone()).collect();
            assert_eq!(order, ["/slow", "/"], "one after the other");
        }
    }
}

#[test]
fn endpoints_that_fail_or_say_that_they_are_not_well_get_no_requests() {
    let (good, gone) = (Echo::start("good"), {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.local_addr().unwrap()
    });
    let (well, ill) = (Echo::start("well"), Echo::start("ill"));
    let manifests = Manifests::empty();
    let turn = [("load-balance", "round_robin"), ("proxy-next-upstream", "off")];
    let to = |name: &str, service: &str, more: &[(&str, &str)]| {
        let pairs: Vec<_> = turn.iter().chain(more).copied().collect();
        ingress(name, &format!("{name}.example.com"), "/", service, &all_annotated(&pairs))
    };
    let health = [
        ("telaio.dev/health-check-path", "/health"),
        ("telaio.dev/health-check-period", "50ms"),
        ("telaio.dev/health-check-timeout", "300ms"),
    ];
    let all = super::service_at("half", &[good.address, gone])
        + &service("sick", &[&well, &ill])
        + &to("soon", "half", &[("telaio.dev/eject-after", "1")])
        + &to("never", "half", &[("telaio.dev/eject-after", "0")])
        + &to("checked", "sick", &health);
    manifests.write("all.yaml", &all);
    let plane = Ingress::start(manifests, "same");
    let failed = |host: &str| (0..40).filter(|_| ask(plane.http, host, "/").status != 200).count();
    assert!(failed("soon.example.com") <= 2, "it is out after its first failure");
    assert_eq!(failed("never.example.com"), 20, "each second");

    let names = || {
        let all = (0..10).map(|_| backend_of(&plane, "checked.example.com", "/", ""));
        all.collect::<std::collections::BTreeSet<_>>()
    };
    let until = |count: usize| {
        wait_until("the endpoints that are well", || (names().len() == count).then_some(()));
    };
    until(2);
    ill.set_sick(true);
    until(1);
    assert_eq!(names().first().map(String::as_str), Some("well"));
    ill.set_sick(false);
    until(2);
    // One that answers too late is not well either.
    ill.set_late(Duration::from_millis(1_500));
    until(1);
    assert_eq!(names().first().map(String::as_str), Some("well"));
    ill.set_late(Duration::ZERO);
    until(2);
    assert!(ill.seen().iter().any(|it| it["path"] == "/health"));
}
