//! What RFC 9111 has a shared cache do.

use super::*;

#[test]
fn a_fresh_response_is_used_again_and_grows_old() {
    let mut bench = Bench::new();
    let first = bench.ask(&get("/a"), Some(&origin("max-age=60", "hello").with("age", "10")));
    assert_eq!(first.header("cache-status"), Some("telaio; fwd=uri-miss; stored"));
    bench.wait(5);
    let second = bench.ask(&get("/a"), None);
    assert!(second.was_cached());
    assert_eq!((second.status, second.text()), (200, "hello"));
    assert_eq!(second.header("age"), Some("15"));
    assert_eq!(second.header("cache-status"), Some("telaio; hit; ttl=45"));
    assert_eq!(second.header("date"), Some(&*date(0)), "who gets no date gives one");
    bench.wait(45);
    let third = bench.ask(&get("/a"), Some(&origin("max-age=60", "newer")));
    assert_eq!(third.text(), "newer");
    assert_eq!(third.header("cache-status"), Some("telaio; fwd=stale; fwd-status=200; stored"));
    assert_eq!(bench.ask(&get("/a"), None).text(), "newer");
}

#[test]
fn what_may_not_be_kept_is_not() {
    for control in [
        "no-store",
        "private",
        "private, max-age=60",
        "max-age=0",
        "foo",
        "no-cache",
        "max-age=60, no-store",
    ] {
        let bench = Bench::new();
        assert!(!bench.keeps(&get("/a"), &origin(control, "x"), &get("/a")), "{control}");
        assert_eq!(bench.cache.stats().uris, 0, "{control}");
    }
}

#[test]
fn a_stale_response_is_validated_and_gets_the_newer_fields() {
    let mut bench = Bench::new();
    let stored =
        origin("max-age=10", "hello").with("etag", "\"v1\"").with("x-a", "1").with("x-b", "2");
    bench.ask(&get("/a"), Some(&stored));
    bench.wait(20);
    let holds = Origin { status: 304, headers: vec![], body: vec![] };
    let got =
        bench.ask(&get("/a"), Some(&holds.with("x-a", "3").with("cache-control", "max-age=100")));
    let asked = got.asked_origin.as_ref().unwrap();
    assert_eq!(asked.get_str("if-none-match"), Some("\"v1\""));
    assert_eq!((got.status, got.text()), (200, "hello"));
    assert_eq!((got.header("x-a"), got.header("x-b")), (Some("3"), Some("2")));
    assert_eq!(
        got.header("cache-status"),
        Some("telaio; fwd=stale; fwd-status=304; ttl=100; stored")
    );
    bench.wait(90);
    assert_eq!(bench.ask(&get("/a"), None).header("age"), Some("90"));
}

#[test]
fn a_response_that_must_be_validated_always_is() {
    let bench = Bench::new();
    bench.ask(&get("/a"), Some(&origin("no-cache, max-age=100", "hello").with("etag", "\"v1\"")));
    let got = bench.ask(&get("/a"), Some(&Origin { status: 304, headers: vec![], body: vec![] }));
    assert!(got.asked_origin.is_some());
    assert_eq!(got.text(), "hello");
    assert_eq!(bench.ask(&get("/a"), None).status, 502, "nothing unvalidated is served");
}

#[test]
fn a_client_that_has_it_is_told_so_from_the_store() {
    let bench = Bench::new();
    let stored =
        origin("max-age=60", "hello").with("etag", "\"v1\"").with("content-type", "text/plain");
    bench.ask(&get("/a"), Some(&stored));
    let got = bench.ask(&get("/a").with("if-none-match", "\"v1\""), None);
    assert_eq!((got.status, got.text()), (304, ""));
    assert_eq!((got.header("etag"), got.header("content-type")), (Some("\"v1\""), None));
    let got = bench.ask(&get("/a").with("if-none-match", "\"v2\""), None);
    assert_eq!((got.status, got.text()), (200, "hello"));
}

#[test]
fn a_client_that_has_what_was_just_validated_is_told_so() {
    let mut bench = Bench::new();
    bench.ask(&get("/a"), Some(&origin("max-age=1", "hello").with("last-modified", &date(-100))));
    bench.wait(5);
    let holds = Origin { status: 304, headers: vec![], body: vec![] };
    let got = bench.ask(&get("/a").with("if-modified-since", &date(-100)), Some(&holds));
    assert_eq!((got.status, got.text()), (304, ""));
}

#[test]
fn parts_of_a_stored_response_are_served() {
    let bench = Bench::new();
    bench.ask(&get("/a"), Some(&origin("max-age=60", "0123456789").with("etag", "\"v1\"")));
    let got = bench.ask(&get("/a").with("range", "bytes=2-4"), None);
    assert_eq!((got.status, got.text()), (206, "234"));
    assert_eq!(got.header("content-range"), Some("bytes 2-4/10"));
    let got = bench.ask(&get("/a").with("range", "bytes=20-"), None);
    assert_eq!((got.status, got.header("content-range")), (416, Some("bytes */10")));
    let got = bench.ask(&get("/a").with("range", "bytes=2-4").with("if-range", "\"v0\""), None);
    assert_eq!((got.status, got.text()), (200, "0123456789"));
}

#[test]
fn a_part_from_the_origin_is_not_kept_as_the_whole() {
    let bench = Bench::new();
    let part = origin("max-age=60", "234").status(206).with("content-range", "bytes 2-4/10");
    let got = bench.ask(&get("/a").with("range", "bytes=2-4"), Some(&part));
    assert_eq!(got.asked_origin.unwrap().get_str("range"), Some("bytes=2-4"));
    assert!(!bench.ask(&get("/a"), Some(&origin("max-age=60", "0123456789"))).was_cached());
}

#[test]
fn variants_are_kept_side_by_side() {
    let bench = Bench::new();
    let gzip = get("/a").with("accept-encoding", "gzip");
    let plain = get("/a").with("accept-encoding", "identity");
    bench.ask(&gzip, Some(&origin("max-age=60", "zipped").with("vary", "Accept-Encoding")));
    let got =
        bench.ask(&plain, Some(&origin("max-age=60", "plain").with("vary", "Accept-Encoding")));
    assert_eq!(got.header("cache-status"), Some("telaio; fwd=vary-miss; stored"));
    assert_eq!(bench.ask(&gzip, None).text(), "zipped");
    assert_eq!(bench.ask(&plain, None).text(), "plain");
    assert!(!bench.ask(&get("/a"), Some(&origin("no-store", "none"))).was_cached());
}

#[test]
fn head_is_answered_from_a_stored_get() {
    let bench = Bench::new();
    bench.ask(&get("/a"), Some(&origin("max-age=60", "hello")));
    let got = bench.ask(&get("/a").method("HEAD"), None);
    assert!(got.was_cached());
    assert_eq!(got.status, 200);
}

#[test]
fn the_answer_to_a_head_is_never_served_to_a_get() {
    let bench = Bench::new();
    bench.ask(
        &get("/a").method("HEAD"),
        Some(&origin("max-age=60", "").with("content-length", "5")),
    );
    let got = bench.ask(&get("/a"), Some(&origin("max-age=60", "hello")));
    assert!(!got.was_cached());
    assert_eq!(got.text(), "hello");
}

#[test]
fn the_answer_to_a_head_updates_or_outdates_what_is_stored() {
    let mut bench = Bench::new();
    bench.ask(&get("/a"), Some(&origin("max-age=1", "hello").with("x", "1")));
    bench.wait(5);
    let head = get("/a").method("HEAD");
    bench.ask(&head, Some(&origin("max-age=1000", "").with("x", "2").with("content-length", "5")));
    let got = bench.ask(&get("/a"), None);
    assert_eq!((got.text(), got.header("x")), ("hello", Some("2")));
    bench.wait(2000);
    bench.ask(&head, Some(&origin("max-age=1000", "").with("content-length", "6")));
    assert_eq!(bench.cache.stats().uris, 0);
}

#[test]
fn what_a_method_changed_is_no_longer_held() {
    for method in ["POST", "PUT", "DELETE", "PATCH", "M-SEARCH"] {
        let bench = Bench::new();
        for path in ["/a", "/b", "/c", "/d"] {
            bench.ask(&get(path), Some(&origin("max-age=60", path)));
        }
        let done = origin("no-store", "")
            .with("location", "/b")
            .with("content-location", "https://example.org/c");
        bench.ask(&get("/a").method(method), Some(&done));
        for path in ["/a", "/b", "/c"] {
            let got = bench.ask(&get(path), Some(&origin("no-store", "new")));
            assert_eq!(got.text(), "new", "{method} {path}");
        }
        assert_eq!(bench.ask(&get("/d"), None).text(), "/d", "{method}");
    }
}

#[test]
fn a_method_that_failed_or_is_safe_changes_nothing() {
    let bench = Bench::new();
    bench.ask(&get("/a"), Some(&origin("max-age=60", "hello")));
    bench.ask(&get("/a").method("POST"), Some(&origin("no-store", "").status(500)));
    bench.ask(&get("/a").method("OPTIONS"), Some(&origin("no-store", "")));
    let elsewhere = origin("no-store", "").with("location", "https://example.com/a");
    bench.ask(&get("/x").method("POST"), Some(&elsewhere));
    assert_eq!(bench.ask(&get("/a"), None).text(), "hello");
}

#[test]
fn what_a_method_changed_meanwhile_is_not_kept() {
    let bench = Bench::new();
    let Lookup::Fetch(slow) = bench.lookup(&get("/a")) else { panic!("nothing is stored") };
    let mut head = origin("max-age=60", "old").head();
    let Answer::Forward(Some(mut writer)) = slow.response(&mut head, bench.now) else {
        panic!("it is kept")
    };
    writer.push(b"old");
    bench.ask(&get("/a").method("PUT"), Some(&origin("no-store", "")));
    assert!(!writer.finish(bench.now), "the answer is from before the change");
    assert_eq!(bench.ask(&get("/a"), Some(&origin("no-store", "new"))).text(), "new");
}

#[test]
fn what_a_post_made_can_be_had_from_where_it_says_it_is() {
    let bench = Bench::new();
    let made = origin("max-age=60", "made").with("content-location", "/a");
    bench.ask(&get("/a").method("POST"), Some(&made));
    assert_eq!(bench.ask(&get("/a"), None).text(), "made");
    bench.ask(&get("/b").method("POST"), Some(&made));
    assert_eq!(bench.ask(&get("/b"), Some(&origin("no-store", "other"))).text(), "other");
}

#[test]
fn a_stale_response_is_served_while_it_is_fetched_anew() {
    let mut bench = Bench::new();
    bench.ask(
        &get("/a"),
        Some(&origin("max-age=10, stale-while-revalidate=30", "old").with("etag", "\"1\"")),
    );
    bench.wait(20);
    let Lookup::Stale(reply, Some(fetch)) = bench.lookup(&get("/a").with("range", "bytes=0-1"))
    else {
        panic!("it is served stale, and fetched")
    };
    assert_eq!(got(reply, None).text(), "ol");
    let Lookup::Stale(_, None) = bench.lookup(&get("/a")) else {
        panic!("it is fetched only once")
    };
    assert!(fetch.is_background());
    let got = bench.fetch(
        *fetch,
        &get("/a").with("range", "bytes=0-1"),
        Some(&origin("max-age=10", "new")),
    );
    let asked = got.asked_origin.unwrap();
    assert_eq!((asked.get("range"), asked.get_str("if-none-match")), (None, Some("\"1\"")));
    assert_eq!(bench.ask(&get("/a"), None).text(), "new");
    bench.wait(100);
    assert!(matches!(bench.lookup(&get("/a")), Lookup::Fetch(_)));
}

#[test]
fn a_stale_response_is_served_while_the_origin_fails() {
    let mut bench = Bench::new();
    bench.ask(&get("/a"), Some(&origin("max-age=10, stale-if-error=100", "old")));
    bench.wait(50);
    let broken = origin("no-store", "broken").status(503);
    let got = bench.ask(&get("/a"), Some(&broken));
    assert_eq!((got.status, got.text()), (200, "old"));
    assert_eq!(
        got.header("cache-status"),
        Some("telaio; fwd=stale; fwd-status=503; ttl=-40; detail=stale")
    );
    assert_eq!(bench.ask(&get("/a"), None).text(), "old");
    assert_eq!(bench.ask(&get("/a"), Some(&origin("no-store", "gone").status(404))).status, 404);
    let mut bench = Bench::new();
    bench.ask(&get("/a"), Some(&origin("max-age=10", "old")));
    bench.wait(50);
    assert_eq!(bench.ask(&get("/a"), Some(&broken)).status, 503, "an answer is an answer");
    assert_eq!(bench.ask(&get("/a"), None).text(), "old", "but no answer is none");
    bench.wait(2 * 60 * 60);
    assert_eq!(bench.ask(&get("/a"), None).status, 502);
}

#[test]
fn what_must_be_validated_is_not_served_when_the_origin_fails() {
    for control in ["must-revalidate", "proxy-revalidate", "s-maxage=10", "no-cache"] {
        let mut bench = Bench::new();
        let stored = origin(&format!("max-age=10, {control}"), "old").with("etag", "\"1\"");
        bench.ask(&get("/a"), Some(&stored));
        bench.wait(50);
        assert_eq!(bench.ask(&get("/a"), None).status, 502, "{control}");
        assert_eq!(
            bench.ask(&get("/a").with("cache-control", "max-stale"), None).status,
            502,
            "{control}"
        );
    }
}

#[test]
fn what_a_request_asks_for_is_heeded() {
    let mut bench = Bench::new();
    bench.ask(&get("/a"), Some(&origin("max-age=100", "old").with("etag", "\"1\"")));
    bench.wait(50);
    let new = origin("no-store", "new");
    let ask = |control: &str| {
        let mut bench =
            Bench { cache: bench.cache.clone(), now: bench.now, policy: bench.policy.clone() };
        bench.policy.collapse = false;
        bench.lookup(&get("/a").with("cache-control", control))
    };
    for control in ["no-cache", "max-age=0", "max-age=49", "min-fresh=51"] {
        assert!(matches!(ask(control), Lookup::Fetch(_)), "{control}");
    }
    for control in ["max-age=50", "min-fresh=50", "only-if-cached", "no-store", "max-stale"] {
        assert!(matches!(ask(control), Lookup::Hit(_)), "{control}");
    }
    bench.wait(60);
    assert!(matches!(
        bench.lookup(&get("/a").with("cache-control", "max-stale=10")),
        Lookup::Hit(_)
    ));
    let got = bench.ask(&get("/a").with("cache-control", "only-if-cached"), Some(&new));
    assert_eq!((got.status, got.was_cached()), (504, true));
    let got = bench.ask(&get("/b").with("cache-control", "only-if-cached"), Some(&new));
    assert_eq!((got.status, got.was_cached()), (504, true));
}

#[test]
fn named_fields_are_left_out() {
    let bench = Bench::new();
    let stored = origin("max-age=60, no-cache=\"x-a\", private=\"x-b, set-cookie\"", "hello");
    let stored =
        stored.with("x-a", "1").with("x-b", "2").with("set-cookie", "s=1").with("x-c", "3");
    bench.ask(&get("/a"), Some(&stored));
    let got = bench.ask(&get("/a"), None);
    assert_eq!(
        (got.header("x-a"), got.header("x-b"), got.header("set-cookie")),
        (None, None, None)
    );
    assert_eq!(got.header("x-c"), Some("3"));
}

#[test]
fn fields_of_the_connection_are_left_out() {
    let bench = Bench::new();
    let mut stored =
        origin("max-age=60", "hello").with("connection", "x-hop, close").with("x-hop", "1");
    for field in ["keep-alive", "proxy-authenticate", "te", "upgrade", "proxy-connection"] {
        stored = stored.with(field, "x");
    }
    bench.ask(&get("/a"), Some(&stored));
    let got = bench.ask(&get("/a"), None);
    let names: Vec<&str> = got.headers.iter().map(|field| field.name).collect();
    assert_eq!(names, ["cache-control", "date", "age", "cache-status"]);
}

#[test]
fn the_header_for_networks_decides_alone() {
    let bench = Bench::new();
    let stored = origin("no-store", "hello").with("cdn-cache-control", "max-age=60");
    assert!(bench.keeps(&get("/a"), &stored, &get("/a")));
    let got = bench.ask(&get("/a"), None);
    assert_eq!(got.header("cdn-cache-control"), Some("max-age=60"), "others may want to know");
    let bench = Bench::new();
    let stored = origin("max-age=60", "hello").with("cdn-cache-control", "private");
    assert!(!bench.keeps(&get("/a"), &stored, &get("/a")));
}

#[test]
fn statuses_are_kept_by_their_rules() {
    for status in [200, 203, 204, 299, 301, 302, 307, 308, 400, 404, 410, 499, 500, 503, 599] {
        let bench = Bench::new();
        let stored = origin("max-age=60", "x").status(status);
        assert!(bench.keeps(&get("/a"), &stored, &get("/a")), "{status}");
        assert_eq!(bench.ask(&get("/a"), None).status, status);
    }
    for (status, control) in
        [(206, "max-age=60"), (304, "max-age=60"), (599, "max-age=60, must-understand")]
    {
        let bench = Bench::new();
        let stored = origin(control, "").status(status);
        assert!(!bench.keeps(&get("/a"), &stored, &get("/a")), "{status}");
    }
    let bench = Bench::new();
    let understood = origin("max-age=60, must-understand, no-store", "x");
    assert!(bench.keeps(&get("/a"), &understood, &get("/a")));
}

#[test]
fn a_route_can_say_how_long_what_says_nothing_is_fresh() {
    let mut bench = Bench::new();
    bench.policy.default_ttl = Some(Duration::from_secs(30));
    let stored = Origin { status: 200, headers: vec![], body: b"x".to_vec() };
    assert!(bench.keeps(&get("/a"), &stored, &get("/a")));
    bench.wait(31);
    assert!(matches!(bench.lookup(&get("/a")), Lookup::Fetch(_)));
    assert!(!Bench::new().keeps(&get("/a"), &stored, &get("/a")));
}

#[test]
fn a_routes_freshness_keeps_no_login_redirect_for_everybody() {
    let mut bench = Bench::new();
    bench.policy.default_ttl = Some(Duration::from_mins(1));
    for status in [302, 401, 403, 404, 429, 500, 503] {
        let stored = Origin { status, headers: vec![], body: b"x".to_vec() };
        assert!(!bench.keeps(&get("/a"), &stored, &get("/a")), "{status}");
    }
}

#[test]
fn many_who_ask_at_once_wait_for_one_fetch() {
    let bench = Bench::new();
    let Lookup::Fetch(first) = bench.lookup(&get("/a")) else { panic!("nothing is stored") };
    let Lookup::Wait(_) = bench.lookup(&get("/a")) else { panic!("somebody fetches it") };
    bench.fetch(*first, &get("/a"), Some(&origin("max-age=60", "hello")));
    let request = get("/a");
    let keyed = request.keyed();
    let Lookup::Hit(reply) =
        bench.cache.lookup_after_wait(&bench.asked(&request, &keyed), bench.now)
    else {
        panic!("it is there")
    };
    let got = got(reply, None);
    assert_eq!(got.header("cache-status"), Some("telaio; fwd=uri-miss; ttl=60; collapsed"));
}

#[test]
fn nobody_waits_for_what_turns_out_not_to_be_kept() {
    let mut bench = Bench::new();
    let Lookup::Fetch(first) = bench.lookup(&get("/a")) else { panic!("nothing is stored") };
    let mut head = origin("private", "mine").head();
    let Answer::Forward(None) = first.response(&mut head, bench.now) else {
        panic!("it is not kept")
    };
    for _ in 0..3 {
        assert!(matches!(bench.lookup(&get("/a")), Lookup::Fetch(_)), "all fetch at once");
    }
    bench.wait(60);
    let _leader = bench.lookup(&get("/a"));
    assert!(matches!(bench.lookup(&get("/a")), Lookup::Wait(_)), "it may have changed by now");
}

#[test]
fn a_fetch_that_ends_early_lets_others_try() {
    let bench = Bench::new();
    drop(bench.lookup(&get("/a")));
    let Lookup::Fetch(second) = bench.lookup(&get("/a")) else {
        panic!("nobody fetches it any more")
    };
    let mut head = origin("max-age=60", "hello").head();
    let Answer::Forward(Some(mut writer)) = second.response(&mut head, bench.now) else {
        panic!("it is kept")
    };
    writer.push(b"hel");
    drop(writer);
    assert_eq!(bench.ask(&get("/a"), Some(&origin("no-store", "whole"))).text(), "whole");
}

#[test]
fn things_are_purged_by_url_prefix_and_host() {
    let bench = Bench::new();
    let fill = || {
        for path in ["/a", "/b/1", "/b/2"] {
            bench.ask(&get(path), Some(&origin("max-age=60", "x")));
        }
        let mut other = get("/a");
        other.authority = "other.example".into();
        bench.ask(&other, Some(&origin("max-age=60", "x")));
    };
    let purge = |what: Purge| {
        // What is told before is what goes.
        let counted = bench.cache.count(&what).unwrap();
        let purged = bench.cache.purge(&what).unwrap();
        assert_eq!(counted, purged, "{what:?}");
        purged
    };
    fill();
    assert_eq!(purge(Purge::Url("https://EXAMPLE.org/a".into())), 1);
    assert_eq!(purge(Purge::Url("https://example.org/a".into())), 0);
    assert_eq!(purge(Purge::Prefix("https://example.org:443/b/".into())), 2);
    fill();
    assert_eq!(purge(Purge::Host("Example.org".into())), 3);
    assert_eq!(purge(Purge::All), 1);
    for wrong in ["example.org/a", "ftp://a/", "", "https://a b/"] {
        let error = bench.cache.purge(&Purge::Url(wrong.into())).unwrap_err();
        assert!(matches!(error, PurgeError::NotUrl(_)), "{wrong}");
    }
    assert!(bench.cache.purge(&Purge::Host("a/b".into())).is_err());
}

#[test]
fn what_is_of_no_use_any_more_is_cleaned_out() {
    let mut bench = Bench::new();
    bench.ask(&get("/fresh"), Some(&origin("max-age=1000000", "x")));
    bench.ask(&get("/short"), Some(&origin("max-age=10, must-revalidate", "x")));
    bench.ask(
        &get("/valid"),
        Some(&origin("max-age=10, must-revalidate", "x").with("etag", "\"1\"")),
    );
    bench.ask(&get("/stale"), Some(&origin("max-age=10", "x")));
    bench.wait(100);
    assert_eq!(bench.cache.clean_expired(bench.now), 1);
    assert_eq!(bench.cache.stats().uris, 3);
    bench.wait(2 * 24 * 60 * 60);
    assert_eq!(bench.cache.clean_expired(bench.now), 2);
    assert_eq!(bench.ask(&get("/fresh"), None).text(), "x");
}

#[test]
fn headers_can_be_read_from_a_map_too() {
    let mut map = http::HeaderMap::new();
    map.insert(name("cache-control"), value("no-cache"));
    assert!(Fields::has(&map, &name("cache-control")));
    assert_eq!(Fields::to_map(&map), Fields::to_map(&Headers::from(&map)));
}

#[test]
fn parts_are_for_get_alone() {
    let bench = Bench::new();
    bench.ask(&get("/"), Some(&origin("max-age=60", "0123456789")));
    for (range, status) in [("bytes=2-4", 206), ("bytes=99-", 416)] {
        let asked = get("/").with("range", range);
        assert_eq!(bench.ask(&asked, None).status, status, "{range}");
        let got = bench.ask(&asked.method("HEAD"), None);
        assert_eq!((got.status, got.header("content-range")), (200, None), "{range}");
    }
}
