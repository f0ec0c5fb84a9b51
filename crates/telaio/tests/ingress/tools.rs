//! Commands about Ingresses that change nothing.

use super::{Echo, Manifests, all_annotated, annotated, ingress, service};
use crate::support::run_args;

#[test]
fn migrate_says_per_ingress_what_is_honoured_different_and_refused() {
    let manifests = Manifests::empty();
    let one = Echo::start("one");
    let text = service("one", &[&one])
        + &ingress("clean", "a.example.com", "/", "one", &annotated("proxy-body-size", "8m"))
        + &ingress(
            "snippet",
            "b.example.com",
            "/",
            "one",
            &annotated("server-snippet", "return 200;"),
        )
        + &ingress("limit", "c.example.com", "/", "one", &annotated("limit-rps", "5"));
    manifests.write("all.yaml", &text);
    let ended = run_args(["migrate", &manifests.source()]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    for part in [
        "shop/clean\n  honoured  nginx.ingress.kubernetes.io/proxy-body-size",
        "shop/snippet\n  refused   nginx.ingress.kubernetes.io/server-snippet",
        "shop/limit\n  different nginx.ingress.kubernetes.io/limit-rps\n            429 instead of 503",
        "3 Ingresses: 1 work as they are, 1 with differences, 1 ask for something that is refused",
    ] {
        assert!(ended.stdout.contains(part), "{part} is not in {}", ended.stdout);
    }
    let ended = run_args(["migrate", "--output=json", &manifests.source()]);
    let json: serde_json::Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!(json.as_array().unwrap().len(), 3);
    assert_eq!(json[2]["refused"][0]["what"], "nginx.ingress.kubernetes.io/server-snippet");
}

#[test]
fn migrate_compiles_each_ingress_with_what_it_refers_to_and_says_what_is_wrong() {
    let one = Echo::start("one");
    let manifests = Manifests::empty();
    let class = |text: String, class: &str| {
        text.replace("spec:\n", &format!("spec:\n  ingressClassName: {class}\n"))
    };
    let of = |name: &str, path: &str, pairs: &[(&str, &str)]| {
        let host = format!("{name}.example.com");
        class(ingress(name, &host, path, "one", &all_annotated(pairs)), "nginx")
    };
    let old =
        ingress("old", "c.example.com", "/", "one", "  creationTimestamp: 2025-01-01T00:00:00Z\n");
    let young = ingress(
        "young",
        "c.example.com",
        "/",
        "one",
        "  creationTimestamp: 2026-01-01T00:00:00Z\n",
    );
    let nginx = "apiVersion: networking.k8s.io/v1\nkind: IngressClass\nmetadata: {name: nginx, annotations: \
                 {ingressclass.kubernetes.io/is-default-class: \"true\"}}\n\
                 spec: {controller: k8s.io/ingress-nginx}\n---\n";
    let plain = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: plain, namespace: shop}\n\
                 data: {X-A: b}\n---\n";
    let text = service("one", &[&one])
        + nginx
        + plain
        + &of("fine", "/", &[("proxy-body-size", "8m")])
        + &of("regex", "/a(?=b)", &[("use-regex", "true")])
            .replace("Prefix", "ImplementationSpecific")
        + &of("secret", "/", &[("auth-type", "basic"), ("auth-secret", "otherns/x")])
        + &of("label", "/", &[("custom-headers", "plain")])
        + &of("alone", "/", &[("canary", "true"), ("canary-weight", "5")])
        + &class(old, "nginx")
        + &class(young, "nginx");
    manifests.write("all.yaml", &text);
    let ended = run_args(["migrate", "--class=nginx", "--output=json", &manifests.source()]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let json: serde_json::Value = serde_json::from_str(&ended.stdout).unwrap();
    let told = |name: &str| {
        let all = json.as_array().unwrap();
        let one = all.iter().find(|it| it["ingress"] == format!("shop/{name}")).unwrap();
        let reasons = one["warnings"].as_array().cloned().unwrap_or_default();
        reasons.iter().map(|it| it["what"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    for (name, reasons) in [
        ("fine", &[][..]),
        ("regex", &["BadPath"][..]),
        ("secret", &["BadSecret"][..]),
        ("label", &["BadConfigMap"][..]),
        ("alone", &["CanaryAlone"][..]),
        ("old", &[][..]),
        ("young", &["Conflict"][..]),
    ] {
        assert_eq!(told(name), reasons, "{name}: {json}");
    }
    let ended = run_args(["migrate", "--class=nginx", &manifests.source()]);
    assert!(ended.stdout.contains("warning   Conflict\n"), "{}", ended.stdout);
    assert!(
        ended.stdout.ends_with(", 5 have something else wrong with them\n"),
        "{}",
        ended.stdout
    );
    let ended = run_args(["migrate", "--class=other", "--output=json", &manifests.source()]);
    assert_eq!(ended.stdout.trim(), "[]");
}

#[test]
fn what_can_be_read_at_once_may_be_more_than_waits_in_a_queue() {
    let manifests = Manifests::empty();
    let one = Echo::start("one");
    let service_of = |number| {
        format!(
            "apiVersion: v1\nkind: Service\nmetadata: {{name: many-{number}, namespace: shop}}\n\
                 spec: {{clusterIP: None, ports: [{{port: 80}}]}}\n---\n"
        )
    };
    let many = (0..1_500).map(service_of).collect::<Vec<_>>().concat();
    let text = many + &service("one", &[&one]) + &ingress("a", "a.example.com", "/", "one", "");
    manifests.write("all.yaml", &text);
    let url = "--url=http://a.example.com/";
    let ended = run_args(["trace", "--node=n", "--output=json", url, &manifests.source()]);
    assert!(ended.stdout.contains("\"verdict\":\"forward\""), "{ended:?}");
    let ended = run_args(["migrate", "--output=json", &manifests.source()]);
    assert!(ended.stdout.contains("\"shop/a\""), "{ended:?}");
}

#[test]
fn trace_says_what_a_request_will_meet() {
    let one = Echo::start("one");
    let manifests = Manifests::empty();
    let rewrite = annotated("rewrite-target", "/$2");
    let text = service("one", &[&one])
        + &ingress("web", "a.example.com", "/shop(/|$)(.*)", "one", &rewrite)
            .replace("Prefix", "ImplementationSpecific")
        + &ingress("ssl", "b.example.com", "/", "one", &annotated("force-ssl-redirect", "true"))
        + &ingress("shut", "c.example.com", "/", "one", &annotated("whitelist-source-range", "x"));
    manifests.write("all.yaml", &text);
    let trace = |url: &str| {
        let url = format!("--url={url}");
        let ended = run_args(["trace", "--node=n", "--output=json", &url, &manifests.source()]);
        assert_eq!(ended.code, Some(0), "{ended:?}");
        serde_json::from_str::<serde_json::Value>(&ended.stdout).unwrap()
    };
    let answer = trace("http://a.example.com/shop/cart?x=1");
    assert_eq!((&answer["verdict"], &answer["route"]), (&"forward".into(), &"shop/web/0/0".into()));
    assert_eq!(answer["rewritten"], "/cart");
    assert_eq!(answer["endpoints"], serde_json::json!([one.address.to_string()]));
    let answer = trace("http://b.example.com/x");
    assert_eq!((&answer["verdict"], &answer["status"]), (&"redirect".into(), &308.into()));
    assert_eq!(answer["location"], "https://b.example.com/x");
    assert_eq!(trace("https://b.example.com/x")["verdict"], "forward");
    let answer = trace("https://c.example.com/");
    assert_eq!(answer["verdict"], "deny");
    assert!(answer["warnings"][0].as_str().unwrap().contains("whitelist-source-range"), "{answer}");
    assert_eq!(trace("http://d.example.com/")["verdict"], "none");
    let ended = run_args(["trace", "--node=n", "--url=ftp://x/", &manifests.source()]);
    assert_eq!(ended.code, Some(2), "{ended:?}");
}
