//! Commands about Ingresses that change nothing.

use super::{Manifests, annotated, ingress};
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
