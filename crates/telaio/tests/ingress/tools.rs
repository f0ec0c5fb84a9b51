//! Commands about Ingresses that change nothing.

use super::{Echo, Manifests, annotated, ingress, service};
use crate::support::run_args;

#[test]
fn migrate_says_per_ingress_what_is_honoured_different_and_refused() {
    let manifests = Manifests::empty();
    let text = ingress("clean", "a.example.com", "/", "one", &annotated("proxy-body-size", "8m"))
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
