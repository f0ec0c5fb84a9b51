//! The semantics of Ingress, as the reference has them, and those of changes.

use std::sync::Arc;

use proptest::prelude::*;

use super::Router;
use crate::head::RequestHead;
use crate::table::{
    Age, BackendId, CanaryRule, HostMatch, PathMatch, Policy, Predicate, Rewrite, Route,
    TableChange,
};
use crate::upstream::Upstreams;

fn exact_host(name: &str) -> HostMatch {
    HostMatch::Exact(name.into())
}

fn route(id: &str, host: HostMatch, path: PathMatch) -> Route {
    Route::forward(id, host, path, BackendId::new(id))
}

fn prefix(path: &str) -> PathMatch {
    PathMatch::Prefix(path.into())
}

fn exact(path: &str) -> PathMatch {
    PathMatch::Exact(path.into())
}

fn router(routes: Vec<Route>) -> Router {
    let upstreams = Upstreams::default();
    let mut router = Router::new();
    for route in routes {
        router.add_route(route, &upstreams).expect("a route");
    }
    router
}

fn request(host: &str, path: &str) -> RequestHead {
    let mut request = RequestHead::new();
    request.set_authority(host);
    request.set_path(path);
    request
}

fn found<'a>(router: &'a Router, host: &str, path: &str) -> Option<&'a str> {
    router.get_backend(&request(host, path))?.backend().map(BackendId::as_str)
}

#[test]
fn paths_match_as_the_ingress_reference_says() {
    // Of the table in Kubernetes' documentation: kind, path, request, whether it matches.
    let cases = [
        (prefix("/"), "/any/path", true),
        (exact("/foo"), "/foo", true),
        (exact("/foo"), "/bar", false),
        (exact("/foo"), "/foo/", false),
        (exact("/foo/"), "/foo", false),
        (prefix("/foo"), "/foo", true),
        (prefix("/foo"), "/foo/", true),
        (prefix("/foo/"), "/foo", true),
        (prefix("/foo/"), "/foo/", true),
        (prefix("/aaa/bb"), "/aaa/bbb", false),
        (prefix("/aaa/bbb"), "/aaa/bbb", true),
        (prefix("/aaa/bbb/"), "/aaa/bbb", true),
        (prefix("/aaa/bbb"), "/aaa/bbb/", true),
        (prefix("/aaa/bbb"), "/aaa/bbb/ccc", true),
        (prefix("/aaa/bbb"), "/aaa/bbbxyz", false),
        (exact("/foo"), "/FOO", false),
        (prefix("/foo"), "/Foo", false),
    ];
    for (path, asked, wanted) in cases {
        let router = router(vec![route("r", HostMatch::Any, path.clone())]);
        assert_eq!(found(&router, "a", asked).is_some(), wanted, "{path:?} {asked}");
    }
}

#[test]
fn the_longest_prefix_wins_and_exact_beats_it() {
    let router = router(vec![
        route("root", HostMatch::Any, prefix("/")),
        route("aaa", HostMatch::Any, prefix("/aaa")),
        route("bbb", HostMatch::Any, prefix("/aaa/bbb")),
        route("exact", HostMatch::Any, exact("/aaa/bbb")),
    ]);
    let cases = [
        ("/ccc", "root"),
        ("/aaa", "aaa"),
        ("/aaa/bbb", "exact"),
        ("/aaa/bbb/", "bbb"),
        ("/aaa/b", "aaa"),
    ];
    for (asked, wanted) in cases {
        assert_eq!(found(&router, "a", asked), Some(wanted), "{asked}");
    }
}

#[test]
fn exact_hosts_beat_wildcards_which_have_one_label() {
    let router = router(vec![
        route("any", HostMatch::Any, prefix("/")),
        route("wild", HostMatch::Wildcard(".foo.com".into()), prefix("/")),
        route("exact", exact_host("bar.foo.com"), prefix("/")),
    ]);
    let cases = [
        ("bar.foo.com", "exact"),
        ("BAR.foo.com:8080", "exact"),
        ("bar.foo.com.", "exact"),
        ("baz.foo.com", "wild"),
        ("baz.bar.foo.com", "any"),
        ("foo.com", "any"),
        (".foo.com", "any"),
        ("", "any"),
    ];
    for (host, wanted) in cases {
        assert_eq!(found(&router, host, "/"), Some(wanted), "{host}");
    }
}

#[test]
fn a_path_that_a_host_lacks_falls_to_the_less_telling_host() {
    let router = router(vec![
        route("any", HostMatch::Any, prefix("/")),
        route("exact", exact_host("a.b"), prefix("/x")),
    ]);
    assert_eq!(found(&router, "a.b", "/y"), Some("any"));
    assert_eq!(found(&router, "a.b", "/x/y"), Some("exact"));
}

#[test]
fn the_older_wins_a_conflict_and_more_conditions_win_before_that() {
    let at = |id: &str, created| Route {
        age: Age { created, name: id.into(), index: 0 },
        ..route(id, HostMatch::Any, prefix("/"))
    };
    let conditional =
        Route { also: vec![Predicate::Header("x-beta".into(), "1".into())], ..at("beta", 99) };
    let router = router(vec![at("young", 20), at("old", 10), conditional]);
    assert_eq!(found(&router, "a", "/"), Some("old"));
    let mut beta = request("a", "/");
    beta.headers.push("X-Beta", "1");
    assert_eq!(
        router.get_backend(&beta).and_then(|it| it.backend()).map(BackendId::as_str),
        Some("beta")
    );
}

#[test]
fn regular_expressions_are_tried_longest_first_and_rewrite_by_group() {
    let policy = Policy {
        rewrite: Some(Rewrite::Regex {
            pattern: "/api(/|$)(.*)".into(),
            replacement: "/$2".into(),
        }),
        ..Policy::default()
    };
    let regex = |id: &str, text: &str| route(id, HostMatch::Any, PathMatch::Regex(text.into()));
    let router = router(vec![
        regex("short", "/a.*"),
        Route { policy: Arc::new(policy), ..regex("long", "/api(/|$)(.*)") },
    ]);
    let compiled = router.get_backend(&request("x", "/API/v1/things")).expect("a route");
    assert_eq!(&*compiled.route.id, "long");
    assert_eq!(compiled.rewritten("/api/v1/things").as_deref(), Some("/v1/things"));
    assert_eq!(compiled.rewritten("/api").as_deref(), Some("/"));
    assert_eq!(found(&router, "x", "/apx"), Some("short"));
    assert_eq!(found(&router, "x", "/b/api/v1"), None);
}

#[test]
fn of_prefixes_and_expressions_the_longest_text_wins_and_exact_beats_both() {
    let regex = |id: &str, text: &str| route(id, HostMatch::Any, PathMatch::Regex(text.into()));
    let aged = |own: Route, created| Route { age: Age { created, ..own.age.clone() }, ..own };
    let router = router(vec![
        route("root", HostMatch::Any, prefix("/")),
        // What means the same without it does not make it longer.
        regex("short", "(?i)^/sh.*"),
        route("shop", HostMatch::Any, prefix("/shopping")),
        regex("long", "(?i)^/shopping/(cart|till)/.*"),
        route("exact", HostMatch::Any, exact("/shopping/cart/1")),
        aged(regex("same", "/a.c"), 2),
        aged(route("older", HostMatch::Any, prefix("/abc")), 1),
        aged(regex("first", "/x.z"), 1),
        aged(route("younger", HostMatch::Any, prefix("/xyz")), 2),
    ]);
    let cases = [
        ("/shop", "short"),
        ("/SHOPPING", "short"),
        ("/shopping", "shop"),
        ("/shopping/x", "shop"),
        ("/shopping/till/1", "long"),
        ("/shopping/cart/1", "exact"),
        ("/other", "root"),
        ("/abc", "older"),
        ("/adc", "same"),
        ("/xyz", "first"),
    ];
    for (asked, wanted) in cases {
        assert_eq!(found(&router, "a", asked), Some(wanted), "{asked}");
    }
}

#[test]
fn of_many_paths_of_one_host_a_change_copies_a_few() {
    const COUNT: usize = 400;
    let host = || exact_host("a");
    let routes = (0..COUNT).flat_map(|n| {
        let regex = PathMatch::Regex(format!("(?i)^/R{n:04}/(.*)").into());
        [
            route(&format!("p{n}"), host(), prefix(&format!("/p/{n}"))),
            route(&format!("e{n}"), host(), exact(&format!("/e/{n}"))),
            route(&format!("r{n}"), host(), regex),
        ]
    });
    let routes: Vec<Route> = routes.collect();
    let mut before = router(routes.clone());
    let all_found = |router: &Router| {
        for n in (0..COUNT).step_by(37) {
            for (path, id) in [("/p/", "p"), ("/e/", "e"), ("/r", "r")] {
                let rest = if id == "r" { format!("{n:04}/x") } else { n.to_string() };
                let wanted = format!("{id}{n}");
                assert_eq!(found(router, "a", &format!("{path}{rest}")), Some(&*wanted));
            }
        }
    };
    all_found(&before);
    let new = route("new", host(), prefix("/p/new"));
    let changed = route("r1", host(), PathMatch::Regex("(?i)^/R0001/(y)".into()));
    let change = TableChange {
        routes: [("new".into(), Some(new.into())), ("r1".into(), Some(changed.into()))].into(),
        ..TableChange::default()
    };
    let (after, _) = before.apply(&change, &Upstreams::default());
    all_found(&after);
    assert_eq!(
        (found(&before, "a", "/r0001/x"), found(&after, "a", "/r0001/x")),
        (Some("r1"), None)
    );
    let of = |router: &Router| Arc::clone(router.exact.get("a").expect("a"));
    assert!(of(&after).pieces_beside(&of(&before)) <= 3, "a piece of each kind that changed");
    for route in &routes {
        before.remove_route(&route.id);
    }
    assert!(before.is_empty() && before.exact.len() == 0);
}

#[test]
fn a_prefix_is_replaced_by_element() {
    let with = |new: &str| Policy {
        rewrite: Some(Rewrite::ReplacePrefix(new.into())),
        ..Policy::default()
    };
    for (new, asked, wanted) in [
        ("/", "/shop/1", "/1"),
        ("/", "/shop", "/"),
        ("/v2", "/shop/1", "/v2/1"),
        ("/v2/", "/shop/", "/v2/"),
    ] {
        let own =
            Route { policy: Arc::new(with(new)), ..route("r", HostMatch::Any, prefix("/shop")) };
        let router = router(vec![own]);
        let compiled = router.get_backend(&request("x", asked)).expect("a route");
        assert_eq!(compiled.rewritten(asked).as_deref(), Some(wanted), "{new} {asked}");
    }
}

#[test]
fn a_bad_regular_expression_is_a_problem_and_the_last_good_route_stays() {
    let upstreams = Upstreams::default();
    let good = router(vec![route("r", HostMatch::Any, prefix("/"))]);
    let bad = route("r", HostMatch::Any, PathMatch::Regex("(".into()));
    let change =
        TableChange { routes: [("r".into(), Some(bad.into()))].into(), ..TableChange::default() };
    let (next, problems) = good.apply(&change, &upstreams);
    assert_eq!(problems.len(), 1);
    assert!(problems[0].message.contains("regular expression"), "{}", problems[0].message);
    assert_eq!(found(&next, "a", "/"), Some("r"));
}

#[test]
fn a_change_leaves_the_table_before_it_alone_and_shares_the_rest() {
    let upstreams = Upstreams::default();
    let before = router(vec![
        route("a", exact_host("a"), prefix("/")),
        route("b", exact_host("b"), prefix("/")),
    ]);
    let change = TableChange {
        routes: [
            ("a".into(), None),
            ("c".into(), Some(route("c", exact_host("c"), prefix("/")).into())),
        ]
        .into(),
        ..TableChange::default()
    };
    let (after, _) = before.apply(&change, &upstreams);
    assert_eq!((found(&before, "a", "/"), found(&before, "c", "/")), (Some("a"), None));
    assert_eq!((found(&after, "a", "/"), found(&after, "c", "/")), (None, Some("c")));
    let of = |router: &Router| Arc::as_ptr(router.exact.get("b").expect("b"));
    assert_eq!(of(&before), of(&after));
    assert_eq!((before.len(), after.len()), (2, 2));
}

#[test]
fn canaries_take_by_header_then_cookie_then_weight() {
    let rule = CanaryRule {
        backend: BackendId::new("canary"),
        header: Some("x-canary".into()),
        header_value: None,
        header_pattern: None,
        cookie: Some("canary".into()),
        weight: 25,
        weight_total: 100,
    };
    let policy = Policy { canary: vec![rule], ..Policy::default() };
    let router = router(vec![Route {
        policy: Arc::new(policy),
        ..route("main", HostMatch::Any, prefix("/"))
    }]);
    let chosen = |fields: &[(&str, &str)], chance| {
        let mut request = request("a", "/");
        for (name, value) in fields {
            assert!(request.headers.push(name, value));
        }
        let compiled = router.get_backend(&request).expect("a route");
        compiled.choose(&request, chance).map(|upstream| upstream.id().to_string())
    };
    assert_eq!(
        chosen(&[("x-canary", "always"), ("cookie", "canary=never")], 99).as_deref(),
        Some("canary")
    );
    assert_eq!(chosen(&[("x-canary", "never")], 0).as_deref(), Some("main"));
    assert_eq!(chosen(&[("cookie", "a=b; canary=always")], 99).as_deref(), Some("canary"));
    assert_eq!(chosen(&[], 24).as_deref(), Some("canary"));
    assert_eq!(chosen(&[], 25).as_deref(), Some("main"));
}

#[test]
fn a_client_stays_with_the_backend_that_it_was_given() {
    use crate::table::{Backend, Endpoint, Sticky};
    let rule = CanaryRule {
        backend: BackendId::new("canary"),
        header: Some("x-canary".into()),
        header_value: None,
        header_pattern: None,
        cookie: None,
        weight: 50,
        weight_total: 100,
    };
    let upstreams = Upstreams::default();
    let backend = |id: &str, port: u16, sticky: Option<Sticky>| {
        let endpoint = Endpoint::at(([127, 0, 0, 1], port).into());
        Backend { sticky, ..Backend::new(id, vec![endpoint]) }
    };
    let sticky = Sticky {
        cookie: "stay".into(),
        path: "/".into(),
        domain: None,
        max_age: None,
        secure: Some(false),
        same_site: None,
        same_site_by_browser: false,
        change_on_failure: false,
    };
    let cookie = |id: &str, own: Backend| {
        let upstream = upstreams.get_or_new(&BackendId::new(id));
        upstream.update(&own);
        format!("stay={}", upstream.balancer.get_backends()[0].cookie())
    };
    let main = cookie("main", backend("main", 1, Some(sticky)));
    // A canary's own Ingress seldom says how clients are kept.
    let canary = cookie("canary", backend("canary", 2, None));
    let mut router = Router::new();
    let policy = Policy { canary: vec![rule], ..Policy::default() };
    let own = Route { policy: Arc::new(policy), ..route("main", HostMatch::Any, prefix("/")) };
    router.add_route(own, &upstreams).expect("a route");
    let chosen = |fields: &[(&str, &str)], chance| {
        let mut request = request("a", "/");
        for (name, value) in fields {
            assert!(request.headers.push(name, value));
        }
        let compiled = router.get_backend(&request).expect("a route");
        compiled.choose(&request, chance).expect("one").id().to_string()
    };
    for chance in [0, 49, 50, 99] {
        assert_eq!(chosen(&[("cookie", &main)], chance), "main", "{chance}");
        assert_eq!(chosen(&[("cookie", &canary)], chance), "canary", "{chance}");
        assert_eq!(chosen(&[("cookie", &canary), ("x-canary", "never")], chance), "main");
        assert_eq!(chosen(&[("cookie", &main), ("x-canary", "always")], chance), "canary");
    }
    let rolled = |chance| if chance < 50 { "canary" } else { "main" };
    for (chance, cookie) in [(0, ""), (99, ""), (0, "stay=0123"), (99, "stay=0123")] {
        assert_eq!(chosen(&[("cookie", cookie)], chance), rolled(chance));
    }
    // And the canary's answers give the cookie of whoever it is a canary of.
    let asked = request("a", "/");
    let compiled = router.get_backend(&asked).expect("a route");
    let keeper = compiled.keeper(&compiled.canaries[0]).settings();
    assert_eq!(keeper.sticky.as_ref().map(|own| &*own.cookie), Some("stay"));
}

#[test]
fn weights_are_kept_over_many_requests() {
    let mut own = route("a", HostMatch::Any, prefix("/"));
    own.action = crate::table::Action::Forward(vec![
        crate::table::WeightedBackend { backend: BackendId::new("a"), weight: 9 },
        crate::table::WeightedBackend { backend: BackendId::new("b"), weight: 1 },
        crate::table::WeightedBackend { backend: BackendId::new("c"), weight: 0 },
    ]);
    let router = router(vec![own]);
    let asked = request("x", "/");
    let compiled = router.get_backend(&asked).expect("a route");
    let to = |id: &str| {
        (0..1000).filter(|_| compiled.choose(&asked, 0).expect("one").id().as_str() == id).count()
    };
    assert!((80..120).contains(&to("b")), "{}", to("b"));
    assert_eq!(to("c"), 0);
}

/// What a look-up must find, worked out by going through all routes.
fn oracle<'a>(routes: &'a [Route], host: &str, path: &str) -> Option<&'a str> {
    let rank = |route: &Route| {
        let host_rank = match &route.host {
            HostMatch::Exact(name) => (host == &**name).then_some(2)?,
            HostMatch::Wildcard(suffix) => {
                let label = host.strip_suffix(&**suffix)?;
                (!label.is_empty() && !label.contains('.')).then_some(1)?
            }
            HostMatch::Any => 0,
        };
        let path_rank = match &route.path {
            PathMatch::Exact(own) => (path == &**own).then_some(usize::MAX)?,
            PathMatch::Prefix(own) => {
                let own = own.trim_end_matches('/');
                let rest = path.strip_prefix(own)?;
                (rest.is_empty() || rest.starts_with('/')).then_some(own.len())?
            }
            PathMatch::Regex(_) => None?,
        };
        Some((host_rank, path_rank))
    };
    let matching = routes.iter().filter_map(|route| Some((rank(route)?, route)));
    // The best rank, and of equals the one whose name is first.
    let best = matching.max_by(|(a, x), (b, y)| a.cmp(b).then_with(|| y.id.cmp(&x.id)));
    best.map(|(_, route)| &*route.id)
}

proptest! {
    #[test]
    fn look_ups_agree_with_a_walk_over_all_routes(
        specs in prop::collection::vec((0..4usize, 0..3usize, "(/[ab]{1,2}){0,3}/?"), 1..20),
        asked in prop::collection::vec((0..6usize, "(/[ab]{1,2}){0,4}/?"), 1..20),
    ) {
        let hosts = ["a.x.com", "b.x.com", "x.com", "a.b.x.com", "c.x.com", ""];
        let routes: Vec<_> = specs.iter().enumerate().map(|(number, (host, kind, path))| {
            let path = if path.is_empty() { "/" } else { path };
            let host = match host {
                3 => HostMatch::Wildcard(".x.com".into()),
                2 => HostMatch::Any,
                host => exact_host(hosts[*host]),
            };
            let path = if *kind == 0 { exact(path) } else { prefix(path) };
            route(&format!("r{number:02}"), host, path)
        }).collect();
        let mut table = router(routes.clone());
        for (host, path) in &asked {
            let path = if path.is_empty() { "/" } else { path };
            prop_assert_eq!(found(&table, hosts[*host], path), oracle(&routes, hosts[*host], path));
        }
        for route in &routes {
            table.remove_route(&route.id);
        }
        prop_assert!(table.is_empty() && table.exact.len() == 0 && table.wildcard.len() == 0);
    }
}

#[test]
fn doubled_slashes_and_needless_escapes_do_not_lead_past_a_route() {
    let router = router(vec![
        route("open", HostMatch::Any, prefix("/")),
        route("guarded", HostMatch::Any, prefix("/admin")),
        route("exact", HostMatch::Any, PathMatch::Exact("/a@b".into())),
        route("regex", HostMatch::Any, PathMatch::Regex("/x/(.*)!".into())),
    ]);
    for path in ["/admin", "//admin", "///admin/x", "/admin//x"] {
        assert_eq!(found(&router, "x", path), Some("guarded"), "{path}");
    }
    assert_eq!(found(&router, "x", "//a%40b"), Some("exact"));
    assert_eq!(found(&router, "x", "//x//y%21"), Some("regex"));
    assert_eq!(
        found(&router, "x", "/%2Fadmin"),
        Some("open"),
        "an escaped slash separates nothing"
    );
}

#[test]
fn a_group_stays_one_value_of_a_query() {
    let policy = Policy {
        rewrite: Some(Rewrite::Regex {
            pattern: "^/old/(.*)".into(),
            replacement: "/new/$1?id=$1".into(),
        }),
        ..Policy::default()
    };
    let own = route("r", HostMatch::Any, PathMatch::Regex("/old/(.*)".into()));
    let router = router(vec![Route { policy: Arc::new(policy), ..own }]);
    let compiled = router.get_backend(&request("x", "//old/7&admin=1+2")).expect("a route");
    let wanted = "/new/7&admin=1+2?id=7%26admin=1%2B2";
    assert_eq!(compiled.rewritten("//old/7&admin=1+2").as_deref(), Some(wanted));
}
