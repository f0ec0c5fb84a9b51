#![allow(clippy::unwrap_used, clippy::panic, reason = "what fails here fails the test")]

use std::collections::BTreeSet;

use super::*;

fn read(pairs: &[(&str, &str)]) -> Annotations {
    let labels = pairs.iter().map(|(name, value)| (Arc::from(*name), Arc::from(*value))).collect();
    Annotations::read(&labels)
}

fn nginx(name: &str, value: &str) -> Annotations {
    read(&[(&format!("{NGINX}{name}"), value)])
}

/// Good and bad values of every annotation whose value matters.
const VALUES: &[(&str, &[&str], &[&str])] = &[
    ("rewrite-target", &["/", "/$2", "/a/$1/b", "/a?b=$1"], &["x", "https://a", "/$x", "/$"]),
    ("use-regex", &["true", "false"], &["maybe"]),
    ("app-root", &["/app"], &["app", "/a b"]),
    ("server-alias", &["a.example.com,b.example.com", "*.example.com"], &["~^a", "a b", ""]),
    ("ssl-redirect", &["true", "false"], &["no-way"]),
    ("force-ssl-redirect", &["true"], &["2"]),
    ("ssl-passthrough", &["true"], &["x"]),
    (
        "permanent-redirect",
        &["https://a.example.com/x", "/other", "https://a$request_uri"],
        &["a.com", "https://$host/x"],
    ),
    ("permanent-redirect-code", &["301", "308"], &["200", "x"]),
    ("temporal-redirect", &["https://a.example.com"], &[""]),
    ("temporal-redirect-code", &["302", "307"], &["404"]),
    ("relative-redirects", &["true"], &["x"]),
    ("from-to-www-redirect", &["true"], &["x"]),
    (
        "backend-protocol",
        &["HTTP", "HTTPS", "GRPC", "GRPCS", "H2C", "AUTO_HTTP", "https"],
        &["FCGI", "SPDY"],
    ),
    ("upstream-vhost", &["internal.example.com", "a:8080"], &["$host", "a b", "a:b"]),
    ("x-forwarded-prefix", &["/app"], &["true"]),
    ("service-upstream", &["true"], &["x"]),
    ("upstream-proxy-protocol", &["v1", "v2"], &["on", "3"]),
    ("proxy-connect-timeout", &["5", "500ms"], &["soon"]),
    ("proxy-read-timeout", &["3600"], &["-1"]),
    ("proxy-send-timeout", &["60"], &["x"]),
    ("request-timeout", &["2m"], &["x"]),
    ("proxy-next-upstream", &["error timeout http_502", "invalid_header", "off"], &["sometimes"]),
    ("proxy-next-upstream-tries", &["0", "3"], &["100"]),
    ("proxy-next-upstream-timeout", &["0", "10"], &["x"]),
    ("proxy-body-size", &["8m", "0", "1g"], &["8 megs"]),
    ("load-balance", &["round_robin", "ewma", "least_conn"], &["ip_hash"]),
    (
        "upstream-hash-by",
        &[
            "$request_uri",
            "$remote_addr",
            "$http_x_user",
            "${cookie_id}",
            "$binary_remote_addr$http_user_agent",
            "user-${cookie_id}-of-$host",
        ],
        &["x", "$http_", "$geoip_country", "$request_uri$lua"],
    ),
    ("affinity", &["cookie"], &["ip"]),
    ("affinity-mode", &["balanced", "persistent"], &["x"]),
    ("affinity-canary-behavior", &["sticky", "legacy"], &["x"]),
    ("session-cookie-name", &["route"], &["a b", ""]),
    ("session-cookie-path", &["/app"], &["app", "/a;b"]),
    ("session-cookie-domain", &[".example.com"], &["a b"]),
    ("session-cookie-max-age", &["172800"], &["1h"]),
    ("session-cookie-expires", &["172800"], &["x"]),
    ("session-cookie-secure", &["true"], &["x"]),
    ("session-cookie-samesite", &["None", "Lax", "Strict"], &["Loose"]),
    ("session-cookie-conditional-samesite-none", &["true", "false"], &["x"]),
    ("session-cookie-change-on-failure", &["true"], &["x"]),
    ("proxy-ssl-verify", &["on", "off"], &["x"]),
    ("proxy-ssl-name", &["backend.internal"], &["a b"]),
    ("proxy-ssl-secret", &["shop/backend-ca"], &["A/b"]),
    ("connections-max", &["100"], &["0"]),
    ("pending-max", &["0"], &["x"]),
    ("prewarm-connections", &["0", "8"], &["-1", "many", "257"]),
    ("slow-start", &["30", "30s", "1m"], &["0", "soon"]),
    ("eject-after", &["0", "3"], &["-1", "x"]),
    ("health-check-path", &["/healthz"], &["healthz"]),
    ("health-check-period", &["5s"], &["0"]),
    ("health-check-timeout", &["2s"], &["0s"]),
    ("whitelist-source-range", &["10.0.0.0/8,::1"], &["here", ""]),
    ("allowlist-source-range", &["10.0.0.0/8"], &["here"]),
    ("denylist-source-range", &["10.0.0.0/8"], &["here"]),
    ("auth-type", &["basic"], &["digest", "x"]),
    ("auth-secret", &["users", "shop/users"], &["a b"]),
    ("auth-secret-type", &["auth-file"], &["auth-map"]),
    ("auth-realm", &["Please log in"], &["a\"b", "a\nb"]),
    (
        "auth-url",
        &["https://auth.example.com/check", "http://$host/oauth2/auth", "http://$host:4180/x"],
        &["auth", "https://$http_x_evil/", "http://$http_host/check", "${a\nb}"],
    ),
    ("auth-method", &["GET", "POST"], &["GRAB"]),
    ("auth-signin", &["https://$host/oauth2/start?rd=$escaped_request_uri"], &["$remote_user"]),
    ("auth-signin-redirect-param", &["rd"], &["a b"]),
    ("auth-response-headers", &["X-User, X-Email"], &["X User", "X-User,Host", "Content-Length"]),
    ("auth-request-redirect", &["https://$host/back"], &["x"]),
    ("auth-always-set-cookie", &["true"], &["x"]),
    ("auth-cache-key", &["$http_x_api_key", "$remote_user$cookie_sid"], &["a\nb", "$lua"]),
    ("auth-cache-duration", &["200 202 401 5m", "10s"], &["200 soon"]),
    ("auth-proxy-set-headers", &["shop/headers"], &["/"]),
    ("auth-tls-secret", &["shop/ca"], &["CA"]),
    ("auth-tls-verify-client", &["on", "off", "optional", "optional_no_ca"], &["maybe"]),
    ("auth-tls-verify-depth", &["1"], &["99"]),
    ("auth-tls-match-cn", &["CN=(ann|bob)", "^CN=a(,|$)"], &["(", "(?=a)"]),
    ("auth-tls-error-page", &["https://a.example.com/no"], &["no"]),
    ("auth-tls-pass-certificate-to-upstream", &["true"], &["x"]),
    ("canary", &["true", "false"], &["x"]),
    ("canary-weight", &["0", "100"], &["-1", "half"]),
    ("canary-weight-total", &["1000"], &["0"]),
    ("canary-by-header", &["X-Canary"], &["X Canary"]),
    ("canary-by-header-value", &["yes"], &["a\nb"]),
    ("canary-by-header-pattern", &["^(a|b)$"], &["(", "(?=a)"]),
    ("canary-by-cookie", &["canary"], &["a b"]),
    ("enable-cors", &["true"], &["x"]),
    (
        "cors-allow-origin",
        &["*", "https://a.example.com, https://*.example.com:8443"],
        &["example.com", "https://"],
    ),
    ("cors-allow-methods", &["GET,POST"], &["G ET"]),
    ("cors-allow-headers", &["X-A,X-B"], &["X A"]),
    ("cors-expose-headers", &["X-A"], &["X A"]),
    ("cors-allow-credentials", &["false"], &["x"]),
    ("cors-max-age", &["600"], &["x"]),
    ("limit-rps", &["10"], &["0"]),
    ("limit-rpm", &["600"], &["x"]),
    ("limit-burst-multiplier", &["5"], &["0"]),
    ("limit-connections", &["10"], &["x"]),
    ("limit-whitelist", &["10.0.0.0/8"], &["x"]),
    ("limit-allowlist", &["10.0.0.0/8"], &["x"]),
    ("custom-headers", &["shop/headers"], &[""]),
    ("request-headers", &["headers"], &["a b"]),
    ("default-backend", &["errors"], &["shop/errors"]),
    ("custom-http-errors", &["404,503"], &["200", "x"]),
    ("disable-proxy-intercept-errors", &["true"], &["x"]),
    (
        "mirror-target",
        &["https://shadow.example.com$request_uri", "http://shadow"],
        &["/x", "https://$host"],
    ),
    ("mirror-host", &["shadow.example.com", "shadow:8080", "$host"], &["$http_x", "a b"]),
    ("mirror-request-body", &["off"], &["x"]),
    ("enable-access-log", &["false"], &["x"]),
    ("cache", &["true"], &["x"]),
    ("cache-default-ttl", &["5m"], &["x"]),
    ("cache-body-size", &["8m"], &["x"]),
    ("cache-stale-while-revalidate", &["30"], &["x"]),
    ("cache-stale-if-error", &["1h"], &["x"]),
    ("compress", &["true"], &["x"]),
    ("auth-keepalive", &["10"], &["x"]),
    ("auth-keepalive-requests", &["1000"], &["x"]),
    ("auth-keepalive-timeout", &["60"], &["x"]),
    ("auth-keepalive-share-vars", &["true"], &["x"]),
];

#[test]
fn every_annotation_takes_good_values_and_says_what_is_wrong_with_bad_ones() {
    for (name, good, bad) in VALUES {
        let row = table::row(name).unwrap_or_else(|| panic!("{name} has no row"));
        let prefix = if row.nginx { NGINX } else { OURS };
        for value in *good {
            let found = read(&[(&format!("{prefix}{name}"), value)]);
            let outcome = &found.findings[0].outcome;
            assert!(!outcome.is_warning(), "{name}: {value:?}: {outcome:?}");
            assert_eq!(found.closed, None, "{name}");
        }
        for value in *bad {
            let found = read(&[(&format!("{prefix}{name}"), value)]);
            let Outcome::Bad(message) = &found.findings[0].outcome else {
                panic!("{name}: {value:?} was taken: {found:?}")
            };
            assert!(!message.is_empty() && !message.contains('\n'), "{name}: {message}");
            assert_eq!(found.options, Options::default(), "{name}: a bad value leaves nothing");
            assert_eq!(found.closed.is_some(), row.guard, "{name}");
        }
    }
}

#[test]
fn every_row_is_tested_named_once_and_none_is_both_taken_and_refused() {
    let mut names = BTreeSet::new();
    for (heading, rows) in GROUPS {
        for row in *rows {
            assert!(names.insert(row.name), "{} stands twice", row.name);
            assert!(table::refused(row.name).is_none(), "{}", row.name);
            let tested = VALUES.iter().any(|(name, ..)| *name == row.name);
            assert!(tested || *heading == "Taken and without effect", "{} is not tested", row.name);
        }
    }
    assert!(names.len() > 100);
}

#[test]
fn snippets_are_refused_with_why_and_what_instead() {
    for name in ["configuration-snippet", "server-snippet", "auth-snippet", "stream-snippet"] {
        let found = nginx(name, "more_set_headers \"X: 1\";");
        let Outcome::Refused(message) = &found.findings[0].outcome else { panic!("{found:?}") };
        assert!(message.contains("CVE-2025-1974") && message.contains("; use "), "{message}");
    }
}

#[test]
fn ours_wins_over_nginx_and_differences_are_told() {
    let both = read(&[
        ("nginx.ingress.kubernetes.io/proxy-body-size", "1m"),
        ("telaio.dev/proxy-body-size", "2m"),
        ("nginx.ingress.kubernetes.io/limit-rps", "5"),
        ("example.com/other", "x"),
    ]);
    assert_eq!(both.options.body_bytes_max, Some(2 << 20));
    assert_eq!(both.options.limits.per_second, Some(5));
    let outcomes: Vec<_> = both.findings.iter().map(|it| (&*it.annotation, &it.outcome)).collect();
    assert_eq!(
        outcomes,
        [
            ("nginx.ingress.kubernetes.io/limit-rps", &Outcome::Different("429 instead of 503")),
            ("nginx.ingress.kubernetes.io/proxy-body-size", &Outcome::Different(SAID_ELSEWHERE)),
            ("telaio.dev/proxy-body-size", &Outcome::Honoured),
        ]
    );
}

#[test]
fn of_two_that_say_the_same_thing_one_holds_and_never_both() {
    let allow = |pairs: &[(&str, &str)]| {
        let read = read(pairs);
        let nets: Vec<_> = read.options.allow.iter().map(ToString::to_string).collect();
        (nets.join(","), read.closed.is_some())
    };
    let (nginx, ours) = ("nginx.ingress.kubernetes.io/", "telaio.dev/");
    let named = |prefix: &str, name: &str| format!("{prefix}{name}-source-range");
    let (wide, narrow) = ("0.0.0.0/0", "10.0.0.0/8");
    for (first, second) in [
        (named(ours, "whitelist"), named(nginx, "whitelist")),
        (named(ours, "whitelist"), named(nginx, "allowlist")),
        (named(ours, "allowlist"), named(nginx, "whitelist")),
        (named(nginx, "allowlist"), named(nginx, "whitelist")),
        (named(ours, "allowlist"), named(ours, "whitelist")),
    ] {
        let both = [(first.as_str(), narrow), (second.as_str(), wide)];
        assert_eq!(allow(&both), (narrow.to_owned(), false), "{both:?}");
        // One that gives way keeps nobody out, also where it cannot be read.
        let both = [(first.as_str(), narrow), (second.as_str(), "wrong")];
        assert_eq!(allow(&both), (narrow.to_owned(), false), "{both:?}");
        // But the one that holds does.
        assert!(allow(&[(first.as_str(), "wrong"), (second.as_str(), wide)]).1);
    }
    let off = read(&[
        ("nginx.ingress.kubernetes.io/custom-http-errors", "404"),
        ("telaio.dev/disable-proxy-intercept-errors", "true"),
    ]);
    assert!(off.options.custom_errors_off, "whichever is read first");
}

#[test]
fn an_unknown_name_gets_the_nearest_known_one() {
    let message = |found: Annotations| match &found.findings[0].outcome {
        Outcome::Unknown(message) => message.clone(),
        other => panic!("{other:?}"),
    };
    assert!(message(nginx("proxy-body-sise", "1m")).contains("did you mean proxy-body-size?"));
    assert!(message(nginx("nothing-like-it", "1m")).contains("docs/annotations.md"));
    // One of ours alone is not ingress-nginx's.
    assert!(message(nginx("cache", "true")).contains("no effect"));
}

#[test]
fn an_alias_that_is_a_regular_expression_is_refused_with_what_to_write_instead() {
    let found = nginx("server-alias", "a.example.com,~^www\\d+\\.example\\.com$");
    let Outcome::Bad(message) = &found.findings[0].outcome else { panic!("{found:?}") };
    assert!(message.contains("hosts are no regular expressions here"), "{message}");
    assert!(found.options.aliases.is_empty());
}

#[test]
fn what_keeps_somebody_out_closes_when_it_cannot_be_used() {
    assert!(nginx("whitelist-source-range", "10.0.0.0/99").closed.is_some());
    assert!(nginx("auth-tls-match-cn", "(").closed.is_some());
    assert!(nginx("proxy-body-size", "x").closed.is_none());
}

#[test]
fn any_bytes_can_be_annotations() {
    for bytes in [&b""[..], b"\0\0", b"nrewrite-target\n/$1\0tcache\ntrue", b"n\xff\n\xfe", b"x"] {
        check_any_bytes(bytes);
    }
    // Names of variables are anybody's text, too.
    for name in ["auth-url", "auth-signin", "auth-cache-key", "auth-request-redirect"] {
        let long = format!("n{name}\nhttps://a/${{line\r\nline{}}}", "x".repeat(8_000));
        check_any_bytes(long.as_bytes());
        check_any_bytes(format!("n{name}\n${}", "y".repeat(8_000)).as_bytes());
    }
}

#[test]
fn a_refused_annotation_that_asks_for_what_is_so_anyway_is_taken() {
    for (name, value, other) in [("satisfy", "all", "any"), ("enable-global-auth", "false", "true")]
    {
        assert_eq!(nginx(name, value).findings[0].outcome, Outcome::Honoured, "{name}");
        let refused = nginx(name, other).findings[0].outcome.clone();
        assert!(matches!(refused, Outcome::Refused(_)), "{name}: {refused:?}");
    }
    let named = nginx("opentelemetry-operation-name", "HTTP $request_method");
    assert!(!named.findings[0].outcome.is_warning());
}

#[test]
fn the_page_of_annotations_is_printed_from_the_table() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/annotations.md");
    if std::env::var_os("TELAIO_WRITE_DOCS").is_some() {
        std::fs::write(path, docs_page()).unwrap();
    }
    let written = std::fs::read_to_string(path).unwrap_or_default();
    assert!(
        written == docs_page(),
        "docs/annotations.md is out of date; write it anew with TELAIO_WRITE_DOCS=1 cargo nextest run \
         -p telaio-gateway the_page_of_annotations"
    );
}
