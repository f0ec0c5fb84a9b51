//! Who has a host, a path and a certificate, and who hears that somebody else does.

#![allow(clippy::unwrap_used, clippy::panic, reason = "what fails here fails the test")]

mod support;

use support::{World, annotated, ingress, meets, services};

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
