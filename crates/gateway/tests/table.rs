//! From manifests to the table, and how it changes.

#![allow(clippy::unwrap_used, clippy::panic, reason = "what fails here fails the test")]

mod support;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;

use serde::Deserialize;
use support::{World, annotated, annotated_world, ingress, meets, objects, service, services};
use telaio_http_proxy::table::{
    Action, Auth, Balance, EndpointAddress, EndpointState, HeaderEdit, Rewrite, Route, TlsRedirect,
    UpstreamProtocol, UpstreamTls,
};
use telaio_model::{Object, ObjectChange};

#[derive(Deserialize)]
struct Case {
    name: String,
    objects: String,
    requests: BTreeMap<String, String>,
}

#[tokio::test]
async fn every_case_of_the_table_is_routed_as_it_says() {
    let cases: Vec<Case> = serde_saphyr::from_str(include_str!("cases.yaml")).unwrap();
    assert!(cases.len() >= 15);
    for case in cases {
        let head = "apiVersion: networking.k8s.io/v1\nkind: Ingress\n";
        let body = if case.objects.contains("metadata:") {
            case.objects.replace("metadata:\n", "metadata:\n  name: web\n  namespace: shop\n")
        } else {
            format!("metadata: {{name: web, namespace: shop}}\n{}", case.objects)
        };
        let world = World::of(&format!("{}{head}{body}", services())).await;
        assert_eq!(world.warned("shop/web"), Vec::<String>::new(), "{}", case.name);
        for (request, expected) in &case.requests {
            let (host, path) = request.split_at(request.find('/').unwrap());
            assert_eq!(&meets(world.route(host, path)), expected, "{}: {request}", case.name);
            // The proxy's own router has to agree.
            let served = world.served(host, path);
            assert_eq!(&meets(served.as_deref()), expected, "{}: {request}", case.name);
        }
    }
}

#[tokio::test]
async fn only_ingresses_of_our_classes_are_served() {
    let class = |name: &str, controller: &str| {
        format!(
            "apiVersion: networking.k8s.io/v1\nkind: IngressClass\nmetadata: {{name: {name}}}\n\
             spec: {{controller: {controller}}}\n---\n"
        )
    };
    let classed = |name: &str, host: &str, class: &str| {
        ingress(name, host, "/", "one", "")
            .replace("spec:\n", &format!("spec:\n  ingressClassName: {class}\n"))
    };
    let base = services()
        + &classed("ours", "a.example.com", "edge")
        + &classed("theirs", "b.example.com", "nginx");
    let mut world = World::with(telaio_gateway::GatewaySettings::default());
    let nginx = class("nginx", "k8s.io/ingress-nginx");
    world.load(&format!("{base}{}{nginx}", class("edge", "telaio.dev/ingress"))).await;
    assert_eq!(meets(world.route("a.example.com", "/")), "shop/one:80");
    assert_eq!(meets(world.route("b.example.com", "/")), "nothing");
    assert_eq!(world.ours.len(), 1);
    // Moving over is changing the class.
    let moved = class("nginx", "telaio.dev/ingress");
    world.load(&format!("{base}{}{moved}", class("edge", "telaio.dev/ingress"))).await;
    assert_eq!(meets(world.route("b.example.com", "/")), "shop/one:80");
    world.load(&format!("{base}{}{nginx}", class("edge", "example.com/other"))).await;
    assert!(world.routes.is_empty() && world.backends.is_empty() && world.ours.is_empty());
}

#[tokio::test]
async fn the_older_of_two_has_a_path_and_the_younger_hears_of_it() {
    let aged = |name: &str, service: &str, created: &str| {
        let more = format!("  creationTimestamp: {created}\n");
        ingress(name, "a.example.com", "/", service, &more)
    };
    let young = aged("a-young", "one", "2026-02-01T00:00:00Z");
    let old = aged("z-old", "two", "2026-01-01T00:00:00Z");
    let mut world = World::of(&(services() + &young)).await;
    assert_eq!(meets(world.route("a.example.com", "/")), "shop/one:80");
    world.load(&(services() + &young + &old)).await;
    assert_eq!(meets(world.route("a.example.com", "/")), "shop/two:80");
    assert_eq!(world.routes.len(), 1);
    assert_eq!(
        world.warned("shop/a-young"),
        [
            "Conflict: a.example.com/ is not served as asked for here: the older Ingress shop/z-old has it"
        ]
    );
    assert!(world.warned("shop/z-old").is_empty());
    world.load(&(services() + &young)).await;
    assert_eq!(meets(world.route("a.example.com", "/")), "shop/one:80");
    assert!(world.warnings.is_empty());
}

#[tokio::test]
async fn a_rule_takes_its_host_back_from_an_alias_without_a_word() {
    let alias = ingress(
        "alias",
        "a.example.com",
        "/",
        "one",
        &annotated(&[("server-alias", "b.example.com")]),
    );
    let own =
        ingress("own", "b.example.com", "/", "two", "  creationTimestamp: 2026-02-01T00:00:00Z\n");
    let world = World::of(&(services() + &alias + &own)).await;
    assert_eq!(meets(world.route("b.example.com", "/")), "shop/two:80");
    assert!(world.warnings.is_empty(), "{:?}", world.warnings);
}

#[tokio::test]
async fn a_changed_endpoint_touches_its_backend_and_no_route() {
    let text = services()
        + &ingress("web", "a.example.com", "/", "one", "")
        + &ingress("other", "b.example.com", "/", "two", "");
    let mut world = World::of(&text).await;
    world.load(&text.replace("[10.1.0.1]", "[10.1.0.99]")).await;
    assert!(world.last.routes.is_empty(), "{:?}", world.last);
    let ids: Vec<_> = world.last.backends.keys().map(ToString::to_string).collect();
    assert_eq!(ids, ["shop/one:80"]);
    let backend = world.backends.values().next().unwrap();
    assert_eq!(backend.endpoints.len(), 1);
    assert_eq!(
        backend.endpoints[0].address,
        EndpointAddress::Socket("10.1.0.99:8080".parse().unwrap())
    );
    // The same again is no change.
    let same = text.replace("[10.1.0.1]", "[10.1.0.99]");
    world.load(&same).await;
    assert!(world.last.is_empty());
}

#[tokio::test]
async fn a_changed_ingress_touches_its_own_routes_only() {
    let other = ingress("other", "b.example.com", "/", "two", "");
    let text = |path: &str| services() + &ingress("web", "a.example.com", path, "one", "") + &other;
    let mut world = World::of(&text("/x")).await;
    world.load(&text("/y")).await;
    let touched: Vec<_> = world.last.routes.keys().map(ToString::to_string).collect();
    assert_eq!(touched, ["shop/web/0/0"]);
    assert!(world.last.backends.is_empty());
    assert_eq!(meets(world.route("a.example.com", "/y")), "shop/one:80");
    assert_eq!(meets(world.route("a.example.com", "/x")), "nothing");
}

#[tokio::test]
async fn the_table_does_not_depend_on_the_order_of_arrival() {
    let aged = |name: &str, service: &str, s: u32| {
        let more = format!("  creationTimestamp: 2026-01-01T00:00:0{s}Z\n");
        ingress(name, "a.example.com", "/", service, &more)
    };
    let canary = ingress(
        "c",
        "a.example.com",
        "/",
        "three",
        &annotated(&[("canary", "true"), ("canary-weight", "7")]),
    );
    let text =
        services() + &aged("x", "one", 3) + &aged("y", "two", 1) + &aged("z", "three", 2) + &canary;
    let reference = World::of(&text).await;
    let all: Vec<Object> = objects(&text).into_values().collect();
    for turn in 0..all.len() {
        let mut world = World::new();
        let mut order = all.clone();
        order.rotate_left(turn);
        if turn % 2 == 1 {
            order.reverse();
        }
        for object in order {
            world.set(object).await;
        }
        assert_eq!(world.routes, reference.routes, "turn {turn}");
        assert_eq!(world.backends, reference.backends, "turn {turn}");
        assert_eq!(world.warnings, reference.warnings, "turn {turn}");
    }
}

#[tokio::test]
async fn endpoints_that_terminate_are_drained_and_used_when_there_is_nothing_else() {
    let slice = |conditions: &[&str]| {
        let mut endpoints = String::new();
        for (i, it) in conditions.iter().enumerate() {
            writeln!(endpoints, "- {{addresses: [10.1.0.{}], conditions: {{{it}}}}}", i + 1)
                .unwrap();
        }
        services()
            .replace("endpoints: [{addresses: [10.1.0.1]}]\n", &format!("endpoints:\n{endpoints}"))
            + &ingress("web", "a.example.com", "/", "one", "")
    };
    let states = |world: &World| -> Vec<EndpointState> {
        let backend = world.backends.values().next().unwrap();
        backend.endpoints.iter().map(|it| it.state).collect()
    };
    let terminating = "ready: false, serving: true, terminating: true";
    let mut world = World::of(&slice(&["ready: true", terminating, "ready: false"])).await;
    assert_eq!(
        states(&world),
        [EndpointState::Ready, EndpointState::Draining],
        "what does not serve is not there"
    );
    world.load(&slice(&["ready: false, serving: false", terminating])).await;
    assert_eq!(states(&world), [EndpointState::Ready], "a terminating one is better than none");
}

#[tokio::test]
async fn what_a_person_drained_or_weighted_is_followed() {
    let base = services() + &ingress("web", "a.example.com", "/", "one", "");
    let over = |action: &str| {
        format!(
            "{base}apiVersion: telaio.dev/v1\nkind: Override\n\
             metadata: {{name: o, namespace: shop}}\n\
             spec: {{service: {{name: one}}, target: {{address: 10.1.0.1}}, {action}}}\n"
        )
    };
    let mut world = World::of(&over("action: weight, weight: 5")).await;
    assert_eq!(world.backends.values().next().unwrap().endpoints[0].weight, 5);
    world.load(&over("action: drain")).await;
    let endpoint = &world.backends.values().next().unwrap().endpoints[0];
    assert_eq!(endpoint.state, EndpointState::Draining);
}

#[tokio::test]
async fn what_a_person_paused_answers_503_until_it_is_over() {
    let base = services()
        + &ingress("web", "a.example.com", "/", "one", "")
        + &ingress("other", "b.example.com", "/", "one", "");
    let pause = |target: &str, more: &str| {
        format!(
            "{base}apiVersion: telaio.dev/v1\nkind: Override\n\
             metadata: {{name: o, namespace: shop}}\n\
             spec: {{ingress: {{name: web{target}}}, action: pause{more}}}\n"
        )
    };
    let answers = |world: &World| -> Vec<Option<String>> {
        let of = |route: &Route| match &route.action {
            Action::Respond(fixed) if fixed.status == 503 => {
                Some(fixed.retry_after.as_deref().unwrap_or_default().to_owned())
            }
            _ => None,
        };
        world.routes.values().map(|route| of(route)).collect()
    };
    // Routes are in the order of their names: other, web.
    let mut world = World::of(&pause("", ", retryAfter: 90")).await;
    assert_eq!(answers(&world), [None, Some("90".to_owned())]);
    // Where it leads is known all the same, to who shows it.
    let routes: Vec<&Route> = world.routes.values().map(|route| &**route).collect();
    let [Action::Forward(other), Action::Respond(fixed)] = [&routes[0].action, &routes[1].action]
    else {
        panic!("{routes:?}")
    };
    assert_eq!(fixed.instead_of, *other);
    world.load(&pause(", host: a.example.com, path: /", ", until: 2030-01-01T00:00:00Z")).await;
    let date = "Tue, 01 Jan 2030 00:00:00 GMT".to_owned();
    assert_eq!(answers(&world), [None, Some(date)]);
    for target in [", host: b.example.com", ", path: /other"] {
        world.load(&pause(target, "")).await;
        assert_eq!(answers(&world), [None, None], "{target}");
    }
    world.load(&pause("", "")).await;
    assert_eq!(answers(&world), [None, Some("60".to_owned())]);
    world.load(&base).await;
    assert_eq!(answers(&world), [None, None]);
}

#[tokio::test]
async fn protocols_come_from_the_port_unless_the_ingress_says() {
    let base = |app: &str| {
        services().replacen("port: 80,", &format!("port: 80, appProtocol: {app},"), 1)
            + &ingress("web", "a.example.com", "/", "one", "")
    };
    let protocol = |world: &World| world.backends.values().next().unwrap().protocol.clone();
    for (app, expected) in [
        ("kubernetes.io/h2c", UpstreamProtocol::H2c),
        ("https", UpstreamProtocol::Https(UpstreamTls::default())),
        ("kubernetes.io/ws", UpstreamProtocol::Http1),
        ("kubernetes.io/wss", UpstreamProtocol::Https(UpstreamTls::default())),
        ("example.com/own", UpstreamProtocol::Http1),
    ] {
        assert_eq!(protocol(&World::of(&base(app)).await), expected, "{app}");
    }
    let asked = annotated_world(&[("backend-protocol", "GRPCS")], "").await;
    assert_eq!(protocol(&asked), UpstreamProtocol::HttpsH2(UpstreamTls::default()));
}

#[tokio::test]
async fn a_mere_name_is_a_backend_and_headless_services_are_too() {
    let text = "apiVersion: v1\nkind: Service\nmetadata: {name: out, namespace: shop}\n\
                spec: {type: ExternalName, externalName: api.example.org}\n---\n"
        .to_owned()
        + &service("deep", "10.1.0.7").replace("spec: {ports", "spec: {clusterIP: None, ports")
        + &ingress("web", "a.example.com", "/", "out", "")
        + &ingress("deep", "b.example.com", "/", "deep", "");
    let world = World::of(&text).await;
    let endpoints: Vec<_> =
        world.backends.values().map(|backend| backend.endpoints[0].address.clone()).collect();
    assert_eq!(
        endpoints,
        [
            EndpointAddress::Socket("10.1.0.7:8080".parse().unwrap()),
            EndpointAddress::Name("api.example.org".into(), 80)
        ]
    );
    assert!(world.warnings.is_empty(), "{:?}", world.warnings);
}

#[tokio::test]
async fn what_is_missing_is_a_warning_that_goes_when_it_comes() {
    let web = ingress("web", "a.example.com", "/", "one", "")
        .replace("spec:\n", "spec:\n  tls: [{hosts: [a.example.com], secretName: cert}]\n");
    let mut world = World::of(&web).await;
    assert_eq!(
        world.warned("shop/web"),
        [
            "BackendMissing: the service shop/one does not exist",
            "BadSecret: there is no Secret shop/cert of type kubernetes.io/tls; its hosts are served with \
             the default certificate until there is"
        ]
    );
    assert_eq!(meets(world.route("a.example.com", "/")), "shop/one:80");
    assert!(world.backends.is_empty());
    let certificate = rcgen::generate_simple_self_signed(vec!["a.example.com".into()]).unwrap();
    let indent = |text: String| format!("    {}\n", text.trim().replace('\n', "\n    "));
    let secret = format!(
        "apiVersion: v1\nkind: Secret\nmetadata: {{name: cert, namespace: shop}}\ntype: kubernetes.io/tls\n\
         stringData:\n  tls.crt: |\n{}  tls.key: |\n{}---\n",
        indent(certificate.cert.pem()),
        indent(certificate.signing_key.serialize_pem()),
    );
    world.load(&(services() + &secret + &web)).await;
    assert!(world.warnings.is_empty(), "{:?}", world.warnings);
    assert_eq!(world.backends.len(), 1);
    let (id, standing) = world.certificates.first_key_value().unwrap();
    assert_eq!((&**id, &*standing.hosts), ("shop/cert", &["a.example.com".into()][..]));
    // One that cannot be used: the last good one stands, and the writer hears of it.
    let broken = secret.replace("BEGIN PRIVATE KEY", "BEGIN NOTHING");
    world.load(&(services() + &broken + &web)).await;
    assert!(world.warned("shop/web")[0].contains("cannot be used"), "{:?}", world.warnings);
    assert!(world.last.certificates.is_empty() && world.certificates.len() == 1);
    world.load(&(services() + &web)).await;
    assert!(world.certificates.is_empty());
    assert_eq!(world.only_route().policy.tls_redirect, TlsRedirect::On(308));
}

#[tokio::test]
async fn a_port_that_is_not_there_names_those_that_are() {
    let web = ingress("web", "a.example.com", "/", "one", "").replace("number: 80", "number: 8080");
    let world = World::of(&(services() + &web)).await;
    assert_eq!(
        world.warned("shop/web"),
        ["BackendMissing: the service shop/one has no port 8080; it has: 80 (http)"]
    );
}

#[tokio::test]
async fn a_bad_annotation_is_a_warning_and_the_rest_goes_on() {
    let world = annotated_world(
        &[
            ("proxy-body-size", "8 megs"),
            ("proxy-read-timeout", "7"),
            ("server-snippet", "return 200;"),
        ],
        "",
    )
    .await;
    let route = world.only_route();
    assert_eq!(route.policy.timeouts.response_header.as_secs(), 7);
    assert_eq!(route.policy.body_bytes_max, Some(1 << 20), "as without it");
    assert!(route.policy.auth.is_empty());
    let warned = world.warned("shop/web");
    assert_eq!(warned.len(), 2);
    assert!(warned[0].starts_with(
        "BadAnnotation: the annotation nginx.ingress.kubernetes.io/proxy-body-size: \"8 megs\""
    ));
    assert!(warned[1].starts_with("RefusedAnnotation: "));
}

#[tokio::test]
async fn what_should_keep_somebody_out_and_cannot_keeps_everybody_out() {
    for pairs in [
        &[("whitelist-source-range", "10.0.0.0/99")][..],
        &[("auth-type", "basic"), ("auth-secret", "users")],
        &[("auth-type", "basic")],
        &[("auth-type", "digest"), ("auth-secret", "users")],
        &[("auth-type", "basic"), ("auth-secret", "other/users")],
        &[("auth-tls-secret", "shop/ca")],
        &[("auth-tls-match-cn", "CN=a")],
        &[("auth-tls-match-cn", "(")],
        &[("proxy-ssl-verify", "on"), ("backend-protocol", "HTTPS")],
        &[("auth-url", "http://$http_host/check")],
        &[("auth-url", "http://a.svc/"), ("auth-response-headers", "X-User, Content-Length")],
        &[("auth-url", "http://a.svc/"), ("whitelist-source-range", "x")],
    ] {
        let world = annotated_world(pairs, "").await;
        // Nobody is asked first.
        let denied = matches!(&world.only_route().policy.auth[..], [Auth::Deny(_)]);
        assert!(denied, "{pairs:?}: {:?}", world.only_route().policy);
        assert!(!world.warned("shop/web").is_empty(), "{pairs:?}");
    }
}

#[tokio::test]
async fn the_client_never_chooses_who_says_whether_it_may() {
    let pairs =
        [("auth-url", "http://$host/check"), ("server-alias", "b.example.com,*.wild.example.com")];
    let web = ingress("web", "a.example.com", "/", "one", &annotated(&pairs));
    let wild = ingress("wild", "\"*.example.org\"", "/", "one", &annotated(&pairs[..1]));
    let any = wild
        .replace("name: wild", "name: any")
        .replace("  - host: \"*.example.org\"\n    http:", "  - http:");
    let whole = "spec:\n  defaultBackend: {service: {name: one, port: {number: 80}}}\n";
    let rest = ingress("rest", "c.example.com", "/x", "one", &annotated(&pairs[..1]))
        .replace("spec:\n", whole);
    let closed = |world: &World| {
        let of = |route: &&Arc<Route>| matches!(&route.policy.auth[..], [Auth::Deny(_)]);
        let mut ids: Vec<_> =
            world.routes.values().filter(of).map(|route| route.id.to_string()).collect();
        ids.sort();
        ids
    };
    let world = World::of(&(services() + &web + &wild + &any)).await;
    assert_eq!(world.routes.len(), 5);
    assert_eq!(
        closed(&world),
        ["shop/any/0/0", "shop/web/0/0@*.wild.example.com", "shop/wild/0/0"]
    );
    for name in ["shop/web", "shop/wild", "shop/any"] {
        let warned = world.warned(name);
        assert!(warned.len() == 1 && warned[0].contains("nobody comes in there"), "{warned:?}");
    }
    // Behind a default backend there is any host.
    let world = World::of(&(services() + &rest)).await;
    assert_eq!(closed(&world), ["shop/rest/default/0"]);
    // A service that is named is asked wherever the rule holds.
    let named = (services() + &wild).replace("http://$host/", "http://auth.svc/$host/");
    let world = World::of(&named).await;
    assert!(closed(&world).is_empty() && world.warnings.is_empty());
}

#[tokio::test]
async fn redirects_carry_the_request_behind_a_path_of_their_own() {
    for (to, url) in [
        ("https://new.example.com/x$request_uri", Some("https://new.example.com/x$request_uri")),
        ("https://new.example.com/x", Some("https://new.example.com/x")),
        ("/old$request_uri", Some("/old$request_uri")),
        ("https://new.example.com$request_uri", None),
    ] {
        for name in ["permanent-redirect", "temporal-redirect"] {
            let world = annotated_world(&[(name, to)], "").await;
            let Action::Redirect(redirect) = &world.only_route().action else { panic!("{to}") };
            assert_eq!(redirect.url.as_deref(), url, "{name}: {to}");
        }
    }
}

#[tokio::test]
async fn one_ingress_gives_so_many_warnings_and_no_more() {
    let pairs: Vec<_> = (0..500).map(|number| (format!("no-such-thing-{number}"), "x")).collect();
    let pairs: Vec<_> = pairs.iter().map(|(name, value)| (name.as_str(), *value)).collect();
    let warned = annotated_world(&pairs, "").await.warned("shop/web");
    assert_eq!(warned.len(), 64);
    assert!(
        warned.iter().any(|it| it.ends_with("437 further warnings are left out")),
        "{warned:?}"
    );
}

#[tokio::test]
async fn users_come_from_the_secret_and_change_with_it() {
    let pairs = &[("auth-type", "basic"), ("auth-secret", "users"), ("auth-realm", "Shop")];
    let secret = |text: &str| {
        format!(
            "apiVersion: v1\nkind: Secret\nmetadata: {{name: users, namespace: shop}}\ntype: Opaque\n\
             stringData: {{auth: {text:?}}}\n"
        )
    };
    let mut world = annotated_world(pairs, &secret("ann:$apr1$x$y\n# note\nbob:{SHA}z\n")).await;
    let names = |world: &World| match &world.only_route().policy.auth[..] {
        [Auth::Basic(basic)] => {
            assert_eq!(&*basic.realm, "Shop");
            basic.users.iter().map(|user| user.name.to_string()).collect::<Vec<_>>()
        }
        other => panic!("{other:?}"),
    };
    assert_eq!(names(&world), ["ann", "bob"]);
    let text = services() + &ingress("web", "a.example.com", "/", "one", &annotated(pairs));
    world.load(&(text + &secret("eve:x\n"))).await;
    assert_eq!(names(&world), ["eve"]);
}

#[tokio::test]
async fn headers_come_from_a_config_map_without_those_of_the_framing() {
    let map = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: headers, namespace: shop}\n\
               data: {X-Frame-Options: DENY, Transfer-Encoding: chunked, \"Bad Name\": x, Server: \"\"}\n";
    let world = annotated_world(&[("custom-headers", "shop/headers")], map).await;
    assert_eq!(
        world.only_route().policy.headers.response,
        [
            HeaderEdit::Remove("server".into()),
            HeaderEdit::Set("x-frame-options".into(), "DENY".into())
        ]
    );
    assert_eq!(world.warned("shop/web").len(), 2);
}

#[tokio::test]
async fn a_rewrite_uses_the_groups_of_its_path() {
    let text = services()
        + &ingress(
            "web",
            "a.example.com",
            "/shop(/|$)(.*)",
            "one",
            &annotated(&[("rewrite-target", "/$2")]),
        )
        .replace("Prefix", "ImplementationSpecific");
    let world = World::of(&text).await;
    assert_eq!(
        world.only_route().policy.rewrite,
        Some(Rewrite::Regex { pattern: "(?i)^/shop(/|$)(.*)".into(), replacement: "/$2".into() })
    );
    let plain = annotated_world(&[("rewrite-target", "/")], "").await;
    assert_eq!(plain.only_route().policy.rewrite, Some(Rewrite::ReplaceFull("/".into())));
}

#[tokio::test]
async fn a_canary_takes_its_share_of_the_ingress_with_the_same_path() {
    let pairs = &[("canary", "true"), ("canary-weight", "20"), ("canary-by-header", "X-Canary")];
    let canary = ingress("canary", "a.example.com", "/", "two", &annotated(pairs));
    let alone = services() + &canary;
    let mut world = World::of(&alone).await;
    assert!(world.routes.is_empty());
    assert!(world.warned("shop/canary")[0].starts_with("CanaryAlone: "));
    world.load(&(alone.clone() + &ingress("web", "a.example.com", "/", "one", ""))).await;
    let route = world.only_route();
    assert_eq!(meets(Some(route)), "shop/one:80");
    let rule = &route.policy.canary[0];
    assert_eq!((rule.backend.as_str(), rule.weight, rule.weight_total), ("shop/two:80", 20, 100));
    assert_eq!(rule.header.as_deref(), Some("x-canary"));
    assert!(world.warnings.is_empty());
    // Another namespace's requests are not to be had.
    let foreign = alone.replace("namespace: shop", "namespace: evil");
    let home = services() + &ingress("web", "a.example.com", "/", "one", "");
    world.load(&(foreign + &home)).await;
    assert!(world.route("a.example.com", "/").unwrap().policy.canary.is_empty());
    assert!(world.warned("evil/canary")[0].contains("must be in its namespace"));
}

#[tokio::test]
async fn backends_in_another_manner_are_apart_and_equal_ones_are_shared() {
    let ewma = annotated(&[("load-balance", "round_robin")]);
    let text = services()
        + &ingress("a", "a.example.com", "/", "one", "")
        + &ingress("b", "b.example.com", "/", "one", &ewma)
        + &ingress("c", "c.example.com", "/", "one", &ewma);
    let world = World::of(&text).await;
    let balances: Vec<_> = world.backends.values().map(|it| it.balance.clone()).collect();
    assert_eq!(balances, [Balance::PeakEwma, Balance::RoundRobin]);
    assert_eq!(meets(world.route("b.example.com", "/")), meets(world.route("c.example.com", "/")));
}

#[tokio::test]
async fn how_endpoints_are_treated_is_said_by_annotations() {
    let pairs = [
        ("slow-start", "30s"),
        ("prewarm-connections", "4"),
        ("eject-after", "0"),
        ("connections-max", "7"),
        ("health-check-path", "/healthz"),
    ];
    let text = annotated(&pairs).replace("nginx.ingress.kubernetes.io", "telaio.dev");
    let world =
        World::of(&(services() + &ingress("web", "a.example.com", "/", "one", &text))).await;
    let backend = world.backends.values().next().unwrap();
    assert_eq!(backend.slow_start, Some(std::time::Duration::from_secs(30)));
    assert_eq!((backend.limits.prewarm, backend.limits.connections_max), (4, 7));
    assert_eq!(backend.outlier.failures, 0);
    assert_eq!(&*backend.health.as_ref().unwrap().path, "/healthz");
}

#[tokio::test]
async fn http_is_redirected_where_the_ingress_has_tls_or_asks_for_it() {
    let with_tls = |host: &str, more: &str| {
        services()
            + &ingress("web", "a.example.com", "/", "one", more)
                .replace("spec:\n", &format!("spec:\n  tls: [{{hosts: [{host:?}]}}]\n"))
    };
    let redirect = async |text: &str| World::of(text).await.only_route().policy.tls_redirect;
    assert_eq!(redirect(&with_tls("a.example.com", "")).await, TlsRedirect::On(308));
    assert_eq!(redirect(&with_tls("*.example.com", "")).await, TlsRedirect::On(308));
    assert_eq!(redirect(&with_tls("b.example.com", "")).await, TlsRedirect::Off);
    let off = annotated(&[("ssl-redirect", "false")]);
    assert_eq!(redirect(&with_tls("a.example.com", &off)).await, TlsRedirect::Off);
    let forced = annotated_world(&[("force-ssl-redirect", "true")], "").await;
    assert_eq!(forced.only_route().policy.tls_redirect, TlsRedirect::On(308));
}

#[tokio::test]
async fn tls_passes_through_to_the_backend_of_the_root() {
    let mut world = annotated_world(&[("ssl-passthrough", "true")], "").await;
    let expected: Arc<str> = "a.example.com".into();
    assert_eq!(world.passthrough[&expected].as_str(), "shop/one:80");
    world.load(&(services() + &ingress("web", "a.example.com", "/", "one", ""))).await;
    assert!(world.passthrough.is_empty());
}

#[tokio::test]
async fn when_everything_goes_nothing_is_left() {
    let mut world = annotated_world(
        &[
            ("canary-weight", "3"),
            ("affinity", "cookie"),
            ("default-backend", "two"),
            ("custom-http-errors", "404"),
        ],
        &ingress("b", "b.example.com", "/", "three", ""),
    )
    .await;
    assert_eq!(world.backends.len(), 3);
    let all: Vec<_> = objects(&services()).into_keys().collect();
    world.load("apiVersion: v1\nkind: Namespace\nmetadata: {name: shop}\n").await;
    assert!(world.routes.is_empty() && world.backends.is_empty() && world.warnings.is_empty());
    drop(all);
    world.apply(vec![ObjectChange::Set(objects(&services()).into_values().next().unwrap())]).await;
    assert!(world.last.is_empty());
}
