//! What annotations ask for, as the route's policy has it.

#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

mod support;

use support::{World, annotated, annotated_world, ingress, services};

#[tokio::test]
async fn what_annotations_ask_for_is_in_the_policy_of_the_route() {
    let seconds = std::time::Duration::from_secs;
    let world = annotated_world(
        &[
            ("proxy-connect-timeout", "7"),
            ("proxy-read-timeout", "8"),
            ("proxy-send-timeout", "9"),
            ("proxy-next-upstream", "timeout http_429 non_idempotent invalid_header"),
            ("proxy-next-upstream-tries", "4"),
            ("proxy-next-upstream-timeout", "5"),
            ("enable-cors", "true"),
            ("cors-allow-credentials", "false"),
            ("cors-allow-headers", "X-One"),
            ("cors-expose-headers", "X-Two"),
            ("limit-rps", "3"),
            ("limit-rpm", "60"),
            ("limit-burst-multiplier", "2"),
            ("limit-connections", "9"),
            ("limit-whitelist", "10.0.0.0/8"),
            ("mirror-target", "http://mirror.example.com/all/$request_uri"),
            ("mirror-request-body", "off"),
            ("custom-http-errors", "404,500"),
            ("default-backend", "two"),
            ("enable-access-log", "false"),
        ],
        "",
    )
    .await;
    assert!(world.warnings.is_empty(), "{:?}", world.warnings);
    let policy = &world.only_route().policy;
    assert_eq!(policy.timeouts.connect, seconds(7));
    assert_eq!(policy.timeouts.response_header, seconds(8));
    assert_eq!((policy.timeouts.idle, policy.timeouts.send), (seconds(8), seconds(9)));
    let retry = &policy.retry;
    assert_eq!((retry.tries, retry.within), (4, Some(seconds(5))));
    assert!(!retry.on.connection && retry.on.timeout && retry.on.non_idempotent);
    assert!(retry.on.invalid_header);
    assert!(retry.on.status(429) && !retry.on.status(503));
    let cors = policy.cors.as_ref().unwrap();
    assert!(!cors.credentials);
    assert_eq!((&*cors.headers[0], &*cors.expose_headers[0]), ("x-one", "x-two"));
    let rates: Vec<_> = policy.rates.iter().map(|it| (it.requests, it.per, it.burst)).collect();
    assert_eq!(rates, [(3, seconds(1), 6), (60, seconds(60), 120)]);
    assert_eq!(policy.rates[0].except.len(), 1);
    assert_eq!(policy.connections_max, Some(9));
    assert_eq!(policy.connections_except, policy.rates[0].except);
    let mirror = policy.mirror.as_ref().unwrap();
    assert_eq!((&*mirror.url, mirror.body), ("http://mirror.example.com/all$request_uri", false));
    let errors = policy.error_backend.as_ref().unwrap();
    assert_eq!(
        (errors.backend.as_str(), errors.statuses.as_slice()),
        ("shop/two:80", &[404, 500][..])
    );
    assert!(policy.log_off);
    assert_eq!(policy.body_bytes_max, Some(1 << 20), "as ingress-nginx without being asked");
    let unbound = annotated_world(&[("proxy-body-size", "0")], "").await;
    assert_eq!(unbound.only_route().policy.body_bytes_max, None);
}

#[tokio::test]
async fn a_canary_can_be_chosen_by_a_value_a_pattern_or_a_share_of_any_whole() {
    let rule = async |pairs: &[(&str, &str)]| {
        let all: Vec<_> = [("canary", "true")].iter().chain(pairs).copied().collect();
        let canary = ingress("canary", "a.example.com", "/", "two", &annotated(&all));
        let home = services() + &ingress("web", "a.example.com", "/", "one", "");
        World::of(&(home + &canary)).await.only_route().policy.canary[0].clone()
    };
    let by_value = rule(&[("canary-by-header", "X-Who"), ("canary-by-header-value", "ann")]).await;
    assert_eq!(by_value.header_value.as_deref(), Some("ann"));
    let by_pattern =
        rule(&[("canary-by-header", "X-Who"), ("canary-by-header-pattern", "a.*")]).await;
    assert_eq!(by_pattern.header_pattern.as_deref(), Some("a.*"));
    let share = rule(&[("canary-weight", "3"), ("canary-weight-total", "1000")]).await;
    assert_eq!((share.weight, share.weight_total), (3, 1000));
    let cookie = rule(&[("canary-by-cookie", "new")]).await;
    assert_eq!(cookie.cookie.as_deref(), Some("new"));
}
