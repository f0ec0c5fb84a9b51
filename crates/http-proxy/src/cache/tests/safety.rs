//! What must never happen: somebody gets what was meant for another, or what an attacker put there.

use super::*;

#[test]
fn a_private_response_is_never_served_to_another() {
    for control in [
        "private, max-age=60",
        "private",
        "max-age=60, private=\"\"",
        "max-age=60, PRIVATE",
        "private =x, max-age=60",
    ] {
        let bench = Bench::new();
        assert!(!bench.keeps(&get("/me"), &origin(control, "mine"), &get("/me")), "{control}");
    }
}

#[test]
fn a_response_to_somebody_known_is_not_served_to_another() {
    let known = get("/me").with("authorization", "Basic YTpi");
    let bench = Bench::new();
    assert!(!bench.keeps(&known, &origin("max-age=60", "mine"), &get("/me")));
    let bench = Bench::new();
    let other = get("/me").with("authorization", "Basic Yzpk");
    assert!(!bench.keeps(&known, &origin("max-age=60", "mine"), &other));
    for control in ["public, max-age=60", "s-maxage=60", "must-revalidate, max-age=60"] {
        let bench = Bench::new();
        assert!(bench.keeps(&known, &origin(control, "for all"), &get("/me")), "{control}");
    }
}

#[test]
fn a_response_to_somebody_known_by_other_means_is_not_served_to_another() {
    let known = Request { known: true, ..get("/me") };
    assert!(!Bench::new().keeps(&known, &origin("max-age=60", "mine"), &known));
    assert!(!Bench::new().keeps(&known, &origin("max-age=60", "mine"), &get("/me")));
    assert!(!Bench::new().keeps(&get("/me"), &origin("max-age=60", "nobody's"), &known));
    assert!(Bench::new().keeps(&known, &origin("public, max-age=60", "for all"), &known));
}

#[test]
fn what_everybody_gets_is_not_served_to_somebody_known_unless_it_may() {
    let known = get("/me").with("authorization", "Basic YTpi");
    assert!(!Bench::new().keeps(&get("/me"), &origin("max-age=60", "nobody's"), &known));
    assert!(Bench::new().keeps(&get("/me"), &origin("public, max-age=60", "everybody's"), &known));
}

#[test]
fn a_cookie_is_not_given_to_another() {
    let sets = |control: &str| origin(control, "x").with("set-cookie", "session=1");
    assert!(!Bench::new().keeps(&get("/"), &sets("max-age=60"), &get("/")));
    // The origin says that everybody may have it.
    assert!(Bench::new().keeps(&get("/"), &sets("public, max-age=60"), &get("/")));
    assert!(Bench::new().keeps(&get("/"), &sets("s-maxage=60"), &get("/")));
}

#[test]
fn a_guess_is_not_made_about_somebody_with_a_cookie() {
    let guessed = Origin { status: 200, headers: vec![], body: b"x".to_vec() };
    let guessed = guessed.with("last-modified", &date(-100_000));
    assert!(Bench::new().keeps(&get("/"), &guessed, &get("/")));
    assert!(!Bench::new().keeps(&get("/").with("cookie", "session=1"), &guessed, &get("/")));
    let told = origin("max-age=60", "x");
    assert!(Bench::new().keeps(&get("/").with("cookie", "session=1"), &told, &get("/")));
}

#[test]
fn a_validated_response_that_became_private_is_not_kept() {
    let mut bench = Bench::new();
    bench.ask(&get("/me"), Some(&origin("max-age=1", "x").with("etag", "\"1\"")));
    bench.wait(5);
    let holds =
        Origin { status: 304, headers: vec![], body: vec![] }.with("cache-control", "private");
    assert_eq!(bench.ask(&get("/me"), Some(&holds)).text(), "x");
    assert_eq!(bench.cache.stats().uris, 0);
}

#[test]
fn a_route_or_backend_never_gets_what_another_one_said() {
    let bench = Bench::new();
    bench.ask(&get("/a"), Some(&origin("max-age=60", "one")));
    let mut other_route = get("/a");
    other_route.route = "ns/other/0/0".into();
    let mut other_backend = get("/a");
    other_backend.backend = "ns/canary:80".into();
    for other in [&other_route, &other_backend] {
        let got = bench.ask(other, Some(&origin("max-age=60", "two")));
        assert_eq!(got.text(), "two");
    }
    assert_eq!(bench.ask(&get("/a"), None).text(), "one", "each keeps its own");
    // But what is changed through one is changed for all.
    other_backend.method = Method::PUT;
    bench.ask(&other_backend, Some(&origin("no-store", "")));
    assert_eq!(bench.cache.stats().uris, 0);
}

#[test]
fn hosts_ports_and_schemes_are_kept_apart() {
    let bench = Bench::new();
    bench.ask(&get("/a"), Some(&origin("max-age=60", "https")));
    let variations = [
        Request { scheme: Scheme::Http, ..get("/a") },
        Request { authority: "example.org:8443".into(), ..get("/a") },
        // The origin sees the name as it is written.
        Request { authority: "example.org:443".into(), ..get("/a") },
        Request { authority: "example.org.".into(), ..get("/a") },
        Request { authority: "evil.example".into(), ..get("/a") },
        Request { authority: "example.org.evil.example".into(), ..get("/a") },
        Request { query: Some(String::new()), ..get("/a") },
        Request { query: Some("x".into()), ..get("/a") },
    ];
    for request in &variations {
        assert!(
            !bench.ask(request, Some(&origin("no-store", "x"))).was_cached(),
            "{}",
            request.authority
        );
    }
    let same = Request { authority: "EXAMPLE.ORG".into(), ..get("/a") };
    assert_eq!(bench.ask(&same, None).text(), "https");
}

#[test]
fn a_host_that_only_a_field_names_does_not_poison_the_page() {
    for field in [
        "x-forwarded-host",
        "x-forwarded-scheme",
        "x-forwarded-prefix",
        "x-original-url",
        "x-http-method-override",
    ] {
        let bench = Bench::new();
        let attack = get("/").with(field, "evil.example");
        bench.ask(&attack, Some(&origin("max-age=60", "<script src=//evil.example>")));
        let got = bench.ask(&get("/"), Some(&origin("max-age=60", "clean")));
        assert_eq!(got.text(), "clean", "{field}");
        let again = bench.ask(&attack, Some(&origin("no-store", "-")));
        assert_ne!(again.text(), "clean", "{field}: nor the other way round");
    }
}

#[test]
fn a_get_with_a_body_neither_fills_nor_uses_the_cache() {
    let bench = Bench::new();
    let fat = Request { has_body: true, ..get("/a") };
    bench.ask(&fat, Some(&origin("max-age=60", "poison")));
    assert_eq!(bench.ask(&get("/a"), Some(&origin("max-age=60", "clean"))).text(), "clean");
    assert_eq!(bench.ask(&fat, Some(&origin("max-age=60", "other"))).text(), "other");
    assert_eq!(bench.ask(&get("/a"), None).text(), "clean");
}

#[test]
fn a_body_that_was_cut_or_runs_over_is_not_kept() {
    for (length, body) in [("10", "short"), ("3", "too long")] {
        let bench = Bench::new();
        let stored = origin("max-age=60", body).with("content-length", length);
        assert!(!bench.keeps(&get("/a"), &stored, &get("/a")), "{length}");
    }
}

#[test]
fn a_condition_that_only_the_origin_can_judge_goes_to_it() {
    let bench = Bench::new();
    bench.ask(&get("/a"), Some(&origin("max-age=60", "x").with("etag", "\"1\"")));
    for field in ["if-match", "if-unmodified-since"] {
        let got =
            bench.ask(&get("/a").with(field, "\"2\""), Some(&origin("no-store", "").status(412)));
        assert_eq!(got.status, 412, "{field}");
    }
    assert_eq!(bench.ask(&get("/a"), None).text(), "x");
}

#[test]
fn an_answer_to_a_conditional_request_does_not_pass_for_a_whole() {
    let bench = Bench::new();
    let conditional = get("/a").with("if-none-match", "\"1\"");
    let holds =
        Origin { status: 304, headers: vec![], body: vec![] }.with("cache-control", "max-age=60");
    assert_eq!(bench.ask(&conditional, Some(&holds)).status, 304);
    assert!(!bench.ask(&get("/a"), Some(&origin("no-store", "whole"))).was_cached());
}

#[test]
fn requests_of_somebody_known_do_not_make_others_wait() {
    let bench = Bench::new();
    let known = get("/a").with("authorization", "Basic YTpi");
    let _first = bench.lookup(&known);
    assert!(matches!(bench.lookup(&known), Lookup::Fetch(_)));
    assert!(matches!(bench.lookup(&get("/a")), Lookup::Fetch(_)));
}

#[test]
fn what_was_wrong_with_one_request_is_not_everybodys_answer() {
    let absurd = get("/").with("range", "bytes=999999999-").with("if-match", "\"none\"");
    for status in [401, 406, 407, 408, 412, 413, 415, 416, 417, 421, 425, 428, 429, 431] {
        let bench = Bench::new();
        let refusal = origin("public, max-age=60", "no").status(status);
        bench.ask(&absurd, Some(&refusal));
        let got = bench.ask(&get("/"), Some(&origin("max-age=60", "page")));
        assert_eq!((got.status, got.text()), (200, "page"), "{status}");
    }
}

#[test]
fn what_was_fetched_before_a_purge_is_not_stored_after_it() {
    let bench = Bench::new();
    let (request, stored) = (get("/"), origin("max-age=60", "old"));
    bench.ask(&request, Some(&stored));
    let key = request.keyed().key;
    let entry = bench.cache.retrieve(&key, &request.headers).entry.unwrap();
    // As a writer that had looked at the epoch just before.
    let since = bench.cache.epoch(&key);
    assert!(bench.cache.store(&key, &entry, since));
    bench.cache.shared.index.remove(key.uri());
    assert!(!bench.cache.store(&key, &entry, since));
    let since = bench.cache.epoch(&key);
    bench.cache.shared.index.purge(|_| true);
    assert!(!bench.cache.store(&key, &entry, since));
    assert!(!bench.ask(&request, Some(&origin("no-store", "new"))).was_cached());
}
