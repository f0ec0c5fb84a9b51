//! Who has a host, a path and a certificate, and who hears that somebody else does.

#![allow(clippy::unwrap_used, clippy::panic, reason = "what fails here fails the test")]

mod support;

use support::{World, annotated, ingress, meets, services};
use telaio_http_proxy::table::BackendId;

fn aged(name: &str, path: &str, service: &str, created: &str, more: &str) -> String {
    let more = format!("  creationTimestamp: {created}\n{more}");
    ingress(name, "a.example.com", path, service, &more)
}

const OLD: &str = "2025-01-01T00:00:00Z";
const YOUNG: &str = "2026-01-01T00:00:00Z";

#[tokio::test]
async fn a_slash_at_the_end_of_a_prefix_makes_no_other_path() {
    let text = services()
        + &aged("old", "/foo", "one", OLD, "")
        + &aged("young", "/foo/", "two", YOUNG, "");
    let world = World::of(&text).await;
    for path in ["/foo", "/foo/", "/foo/x"] {
        assert_eq!(meets(world.served("a.example.com", path).as_deref()), "shop/one:80", "{path}");
    }
    let warned = world.warned("shop/young");
    assert!(warned[0].starts_with("Conflict: ") && warned[0].contains("shop/old"), "{warned:?}");
    assert!(world.warned("shop/old").is_empty());
}

#[tokio::test]
async fn an_ingress_that_says_the_same_twice_is_not_told_so() {
    let twice = |second: &str| {
        let path = |path: &str, service: &str| {
            format!(
                "{{path: {path}, pathType: Prefix, backend: {{service: {{name: {service}, port: \
                 {{number: 80}}}}}}}}"
            )
        };
        services()
            + &format!(
                "apiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata: {{name: web, namespace: \
                 shop}}\nspec:\n  rules:\n  - host: a.example.com\n    http:\n      paths: [{}, {}]\n",
                path("/foo", "one"),
                path("/foo/", second)
            )
    };
    assert_eq!(World::of(&twice("one")).await.warned("shop/web"), Vec::<String>::new());
    let warned = World::of(&twice("two")).await.warned("shop/web");
    assert!(warned[0].contains("an earlier rule of this Ingress has it"), "{warned:?}");
}

#[tokio::test]
async fn paths_are_written_as_people_write_and_match_what_clients_send() {
    let text = services()
        + &ingress("blank", "a.example.com", "/sp ace", "one", "")
        + &ingress("letter", "a.example.com", "/ü/x", "two", "");
    let world = World::of(&text).await;
    for (path, backend) in [("/sp%20ace/y", "shop/one:80"), ("/%C3%BC/x", "shop/two:80")] {
        assert_eq!(meets(world.served("a.example.com", path).as_deref()), backend, "{path}");
    }
    assert!(world.warnings.is_empty());
    let regex = annotated(&[("use-regex", "true")]);
    let text = services()
        + &ingress("bad", "a.example.com", "/%zz", "one", "")
        + &ingress("regex", "a.example.com", "/ü(.*)", "one", &regex);
    let world = World::of(&text).await;
    for name in ["shop/bad", "shop/regex"] {
        let warned = world.warned(name);
        assert!(warned[0].starts_with("BadPath: "), "{name}: {warned:?}");
    }
}

#[tokio::test]
async fn a_canary_reads_its_path_as_the_ingress_does_that_it_is_a_canary_of() {
    let canary = |more: &[(&str, &str)]| {
        let pairs = [&[("canary", "true"), ("canary-weight", "20")], more].concat();
        ingress("canary", "a.example.com", "/p/(.*)", "two", &annotated(&pairs))
    };
    let regex = [("use-regex", "true"), ("rewrite-target", "/$1")];
    let main = ingress("web", "a.example.com", "/p/(.*)", "one", &annotated(&regex));
    for more in [&[][..], &regex[..1], &regex[..]] {
        let mut world = World::of(&(services() + &canary(more) + &main)).await;
        let route = world.served("a.example.com", "/p/x").unwrap();
        assert_eq!(route.policy.canary.len(), 1, "{more:?}");
        assert!(world.warnings.is_empty(), "{more:?}: {:?}", world.warnings);
        // It hears when there is nothing left to be a canary of, and when there is again.
        world.load(&(services() + &canary(more))).await;
        let warned = world.warned("shop/canary");
        assert!(warned.len() == 1 && warned[0].starts_with("CanaryAlone: "), "{warned:?}");
        assert!(world.routes.is_empty());
        world.load(&(services() + &canary(more) + &main)).await;
        assert!(world.warnings.is_empty(), "{more:?}: {:?}", world.warnings);
    }
}

fn certificate(name: &str, made: &rcgen::CertifiedKey<rcgen::KeyPair>) -> String {
    let indent = |text: String| text.replace('\n', "\n    ");
    format!(
        "apiVersion: v1\nkind: Secret\nmetadata: {{name: {name}, namespace: shop}}\n\
         type: kubernetes.io/tls\nstringData:\n  tls.crt: |\n    {}\n  tls.key: |\n    {}\n---\n",
        indent(made.cert.pem()),
        indent(made.signing_key.serialize_pem()),
    )
}

#[tokio::test]
async fn the_older_ingress_has_a_hosts_certificate_and_the_younger_hears_of_it() {
    let make = || rcgen::generate_simple_self_signed(vec!["a.example.com".into()]).unwrap();
    let (one, other) = (make(), make());
    let with = |name: &str, path: &str, created: &str, secret: &str| {
        let tls = format!("spec:\n  tls: [{{hosts: [a.example.com], secretName: {secret}}}]\n");
        aged(name, path, "one", created, "").replace("spec:\n", &tls)
    };
    let old = with("old", "/", OLD, "mine");
    let young = with("young", "/y", YOUNG, "yours");
    let base = services() + &old + &young + &certificate("mine", &one);
    let mut world = World::of(&(base.clone() + &certificate("yours", &other))).await;
    let served: Vec<_> = world.certificates.keys().map(ToString::to_string).collect();
    assert_eq!(served, ["shop/mine"]);
    let warned = world.warned("shop/young");
    assert!(
        warned.len() == 1
            && warned[0].starts_with("Conflict: ")
            && warned[0].contains("shop/yours is not used for a.example.com"),
        "{warned:?}"
    );
    assert!(world.warned("shop/old").is_empty());
    // A copy of the same certificate loses nothing.
    world.load(&(base + &certificate("yours", &one))).await;
    assert!(world.warnings.is_empty(), "{:?}", world.warnings);
    world.load(&(services() + &young + &certificate("yours", &other))).await;
    assert!(world.warnings.is_empty(), "{:?}", world.warnings);
}

/// The same objects in a namespace of somebody else's.
fn foreign(text: &str) -> String {
    text.replace("namespace: shop", "namespace: evil")
}

fn with_tls(text: &str, entry: &str) -> String {
    text.replace("spec:\n", &format!("spec:\n  tls: [{{{entry}}}]\n"))
}

/// Where a host's TLS goes unopened.
fn passed(world: &World) -> Option<&str> {
    world.passthrough.get("a.example.com").map(BackendId::as_str)
}

#[tokio::test]
async fn a_hosts_tls_belongs_to_the_namespace_that_has_the_host_longest() {
    let passthrough = annotated(&[("ssl-passthrough", "true")]);
    let base = services() + &foreign(&services());
    let take = foreign(&aged("take", "/", "two", YOUNG, &passthrough));
    let created = format!("  creationTimestamp: {OLD}\n");
    let elsewhere = ingress("old", "b.example.com", "/", "one", &created);
    // By a rule of any path, by a certificate, by a passage of its own.
    for (old, own) in [
        (aged("old", "/", "one", OLD, ""), None),
        (aged("old", "/x", "one", OLD, ""), None),
        (with_tls(&elsewhere, "hosts: [a.example.com], secretName: none"), None),
        (aged("old", "/", "one", OLD, &passthrough), Some("shop/one:80")),
    ] {
        let mut world = World::of(&(base.clone() + &old + &take)).await;
        assert_eq!(passed(&world), own, "{old}");
        let warned = world.warned("evil/take");
        let told = "Conflict: TLS for a.example.com is not passed through as asked for here: the older \
                    Ingress shop/old has the host";
        assert!(warned.iter().any(|it| it == told), "{old}: {warned:?}");
        assert!(!world.warned("shop/old").iter().any(|it| it.contains("passed through")));
        // Whoever comes when nobody is there has it, until the older is there again.
        world.load(&(base.clone() + &take)).await;
        assert_eq!(passed(&world), Some("evil/two:80"));
        assert!(world.warnings.is_empty(), "{:?}", world.warnings);
        world.load(&(base.clone() + &old + &take)).await;
        assert_eq!(passed(&world), own, "{old}");
        world.load(&base).await;
        assert_eq!(passed(&world), None);
    }
    // Within a namespace an Ingress may take the host of another, but not its passage.
    let old = aged("old", "/", "one", OLD, "");
    let take = aged("take", "/", "two", YOUNG, &passthrough);
    let world = World::of(&(services() + &old + &take)).await;
    assert_eq!(passed(&world), Some("shop/two:80"));
    let old = aged("old", "/", "one", OLD, &passthrough);
    let world = World::of(&(services() + &old + &take)).await;
    assert_eq!(passed(&world), Some("shop/one:80"));
    assert!(world.warned("shop/take").iter().any(|it| it.contains("not passed through")));
    // A canary contests nothing.
    let pairs = [("canary", "true"), ("ssl-passthrough", "true")];
    let canary = aged("canary", "/", "two", OLD, &annotated(&pairs));
    let world = World::of(&(services() + &canary + &aged("old", "/", "one", YOUNG, ""))).await;
    assert_eq!(passed(&world), None);
}

/// The secrets whose certificates a host is served with.
fn served_by(world: &World, host: &str) -> Vec<String> {
    let of_host =
        world.certificates.iter().filter(|(_, it)| it.hosts.iter().any(|it| **it == *host));
    of_host.map(|(id, _)| id.to_string()).collect()
}

#[tokio::test]
async fn a_name_in_a_certificate_is_no_claim_where_somebody_names_the_host() {
    let make = |names: &[&str]| {
        let names: Vec<String> = names.iter().map(ToString::to_string).collect();
        rcgen::generate_simple_self_signed(names).unwrap()
    };
    let (mine, yours) = (make(&["a.example.com"]), make(&["a.example.com", "c.example.com"]));
    let at = |host: &str, name: &str, created: &str| {
        ingress(name, host, "/", "one", &format!("  creationTimestamp: {created}\n"))
    };
    let base = services()
        + &foreign(&services())
        + &certificate("z-mine", &mine)
        + &foreign(&certificate("a-yours", &yours));
    let rightful = at("a.example.com", "rightful", YOUNG);
    // Older, and first by name: but nobody asked for the host there.
    let other = foreign(&with_tls(&at("e.example.com", "other", OLD), "secretName: a-yours"));
    let named = with_tls(&rightful, "hosts: [a.example.com], secretName: z-mine");
    let unnamed = with_tls(&rightful, "secretName: z-mine");
    for own in [&named, &unnamed] {
        let mut world = World::of(&(base.clone() + own + &other)).await;
        assert_eq!(served_by(&world, "a.example.com"), ["shop/z-mine"], "{own}");
        assert_eq!(served_by(&world, "c.example.com"), ["evil/a-yours"], "{own}");
        let warned = world.warned("evil/other");
        assert_eq!(
            warned,
            [
                "Conflict: the certificate of the Secret evil/a-yours is not used for a.example.com: \
              another Ingress names the Secret shop/z-mine for it"
            ]
        );
        assert!(world.warned("shop/rightful").is_empty(), "{:?}", world.warnings);
        world.load(&(base.clone() + &other)).await;
        assert_eq!(served_by(&world, "a.example.com"), ["evil/a-yours"]);
        assert!(world.warnings.is_empty(), "{:?}", world.warnings);
    }
    // The host of a rule is as good as named: by age then.
    let old = with_tls(&at("a.example.com", "rightful", OLD), "secretName: z-mine");
    let entry = "hosts: [a.example.com], secretName: a-yours";
    let young = foreign(&with_tls(&at("e.example.com", "other", YOUNG), entry));
    let world = World::of(&(base.clone() + &old + &young)).await;
    assert_eq!(served_by(&world, "a.example.com"), ["shop/z-mine"]);
    assert!(
        world.warned("evil/other")[0].contains("an older Ingress names the Secret shop/z-mine")
    );
    // What is named is not left to a mere name while its Secret is missing.
    let missing = with_tls(&rightful, "hosts: [a.example.com], secretName: not-yet");
    let world = World::of(&(base.clone() + &missing + &other)).await;
    assert_eq!(served_by(&world, "a.example.com"), Vec::<String>::new());
}

#[tokio::test]
async fn of_two_certificates_with_a_name_the_older_ingress_serves_it() {
    let make = || rcgen::generate_simple_self_signed(vec!["c.example.com".into()]).unwrap();
    let (mine, yours) = (make(), make());
    let at = |name: &str, created: &str, secret: &str| {
        let more = format!("  creationTimestamp: {created}\n");
        let text = ingress(name, &format!("{name}.example.com"), "/", "one", &more);
        with_tls(&text, &format!("secretName: {secret}"))
    };
    let base = services()
        + &foreign(&services())
        + &certificate("z-mine", &mine)
        + &foreign(&certificate("a-yours", &yours));
    let old = at("old", OLD, "z-mine");
    let young = foreign(&at("young", YOUNG, "a-yours"));
    let mut world = World::of(&(base.clone() + &young)).await;
    assert_eq!(served_by(&world, "c.example.com"), ["evil/a-yours"]);
    world.load(&(base.clone() + &old + &young)).await;
    assert_eq!(served_by(&world, "c.example.com"), ["shop/z-mine"]);
    assert!(world.warned("evil/young")[0].contains("an older Ingress has the Secret shop/z-mine"));
    assert!(world.warned("shop/old").is_empty());
}

#[tokio::test]
async fn the_longest_path_wins_whether_or_not_it_is_an_expression() {
    let regex = annotated(&[("use-regex", "true")]);
    let text = services()
        + &foreign(&services())
        + &aged("web", "/shop/cart", "one", OLD, "")
        + &foreign(&aged("short", "/sh.*", "two", OLD, &regex))
        + &foreign(&aged("long", "/shop/cart/[0-9]+", "three", YOUNG, &regex));
    let world = World::of(&text).await;
    for (path, backend) in [
        ("/shop", "evil/two:80"),
        ("/shop/cart", "shop/one:80"),
        ("/shop/cart/x", "shop/one:80"),
        ("/shop/cart/7", "evil/three:80"),
    ] {
        assert_eq!(meets(world.served("a.example.com", path).as_deref()), backend, "{path}");
        assert_eq!(meets(world.route("a.example.com", path)), backend, "{path}");
    }
}

#[tokio::test]
async fn hosts_that_annotations_add_are_served_with_the_certificate_that_is_for_them() {
    let names = ["a.example.com", "www.a.example.com", "*.alias.example.com"];
    let made = rcgen::generate_simple_self_signed(names.map(str::to_owned)).unwrap();
    let pairs = [
        ("server-alias", "shop.alias.example.com,b.example.com,WWW.alias.example.com"),
        ("from-to-www-redirect", "true"),
    ];
    let web = aged("web", "/", "one", YOUNG, &annotated(&pairs));
    let entry = "hosts: [a.example.com], secretName: mine";
    let base = services() + &foreign(&services()) + &certificate("mine", &made);
    let mut world = World::of(&(base.clone() + &with_tls(&web, entry))).await;
    let added = ["www.a.example.com", "shop.alias.example.com", "www.alias.example.com"];
    for host in ["a.example.com"].iter().chain(&added) {
        assert_eq!(served_by(&world, host), ["shop/mine"], "{host}");
    }
    assert_eq!(served_by(&world, "b.example.com"), Vec::<String>::new(), "it is not for that host");
    assert!(world.warnings.is_empty(), "{:?}", world.warnings);
    // Who names the host comes first, as with every name that a certificate merely has.
    let theirs = rcgen::generate_simple_self_signed(["www.a.example.com".to_owned()]).unwrap();
    let named = ingress("named", "www.a.example.com", "/", "one", "");
    let named = foreign(&with_tls(&named, "hosts: [www.a.example.com], secretName: theirs"));
    let theirs = foreign(&certificate("theirs", &theirs));
    world.load(&(base.clone() + &with_tls(&web, entry) + &named + &theirs)).await;
    assert_eq!(served_by(&world, "www.a.example.com"), ["evil/theirs"]);
    // Without the annotations nothing is claimed but what is named.
    let bare = with_tls(&aged("web", "/", "one", YOUNG, ""), entry);
    world.load(&(base + &bare)).await;
    assert_eq!(served_by(&world, "a.example.com"), ["shop/mine"]);
    assert_eq!(served_by(&world, "www.a.example.com"), Vec::<String>::new());
}

#[tokio::test]
async fn of_two_default_backends_or_aliases_the_younger_hears_that_it_is_not_served() {
    let default = |name: &str, service: &str, created: &str| {
        format!(
            "apiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata:\n  name: {name}\n  namespace: \
             shop\n  creationTimestamp: {created}\nspec:\n  defaultBackend: {{service: {{name: \
             {service}, port: {{number: 80}}}}}}\n---\n"
        )
    };
    let young = default("young", "two", YOUNG);
    let mut world = World::of(&(services() + &default("old", "one", OLD) + &young)).await;
    assert_eq!(meets(world.served("z.example.com", "/x").as_deref()), "shop/one:80");
    let told = "Conflict: */ is not served by the default backend as asked for here: the older Ingress \
                shop/old has it";
    assert_eq!(world.warned("shop/young"), [told]);
    assert!(world.warned("shop/old").is_empty());
    world.load(&(services() + &young)).await;
    assert_eq!(meets(world.served("z.example.com", "/x").as_deref()), "shop/two:80");
    assert!(world.warnings.is_empty(), "{:?}", world.warnings);
    // To a rule a default backend gives way without a word.
    let rule = ingress("rule", "a.example.com", "/", "one", "");
    let own = rule.replace("name: rule", "name: own").replace(
        "spec:\n",
        "spec:\n  defaultBackend: {service: {name: three, port: {number: 80}}}\n",
    );
    world.load(&(services() + &rule + &own.replace("path: /", "path: /own"))).await;
    assert!(world.warnings.is_empty(), "{:?}", world.warnings);

    let alias = |name: &str, created: &str, service: &str, pairs: &[(&str, &str)]| {
        let more = format!("  creationTimestamp: {created}\n{}", annotated(pairs));
        ingress(name, &format!("{name}.example.com"), "/", service, &more)
    };
    let wanted = [("server-alias", "x.example.com")];
    let both = alias("old", OLD, "one", &wanted) + &alias("young", YOUNG, "two", &wanted);
    let world = World::of(&(services() + &both)).await;
    assert_eq!(meets(world.served("x.example.com", "/").as_deref()), "shop/one:80");
    let told = "Conflict: x.example.com/ is not served as an alias as asked for here: the older Ingress \
                shop/old has it";
    assert_eq!(world.warned("shop/young"), [told]);
    assert!(world.warned("shop/old").is_empty());
    // Two that redirect the same to the same want nothing of each other.
    let www = annotated(&[("from-to-www-redirect", "true")]);
    let both = aged("old", "/", "one", OLD, &www) + &aged("young", "/y", "two", YOUNG, &www);
    let world = World::of(&(services() + &both)).await;
    assert!(world.warnings.is_empty(), "{:?}", world.warnings);
}
