use std::sync::Arc;
use std::time::Duration;

use super::*;

fn filter(origins: &[&str], credentials: bool) -> CorsFilter {
    let list = |names: &[&str]| names.iter().map(|name| Arc::from(*name)).collect();
    CorsFilter::new(&Cors {
        origins: list(origins),
        methods: list(&["GET", "PUT"]),
        headers: list(&["X-Team"]),
        expose_headers: list(&["X-Total"]),
        credentials,
        max_age: Duration::from_mins(10),
    })
}

fn request(method: Method, origin: Option<&str>, asks: bool) -> RequestHead {
    let mut head = RequestHead::new();
    head.method = method;
    if let Some(origin) = origin {
        head.headers.push("Origin", origin);
    }
    if asks {
        head.headers.push("Access-Control-Request-Method", "PUT");
    }
    head
}

fn allowed(filter: &CorsFilter, origin: &str) -> Option<String> {
    let reply = filter.preflight(&request(Method::OPTIONS, Some(origin), true)).unwrap();
    assert_eq!(reply.head.status, 204);
    reply.head.headers.get_str("access-control-allow-origin").map(str::to_owned)
}

#[test]
fn a_preflight_is_answered_and_nothing_else() {
    let filter = filter(&["https://a.org"], true);
    let reply = filter.preflight(&request(Method::OPTIONS, Some("https://a.org"), true)).unwrap();
    let get = |name| reply.head.headers.get_str(name);
    assert_eq!(get("access-control-allow-origin"), Some("https://a.org"));
    assert_eq!(get("access-control-allow-methods"), Some("GET, PUT"));
    assert_eq!(get("access-control-allow-headers"), Some("X-Team"));
    assert_eq!(get("access-control-allow-credentials"), Some("true"));
    assert_eq!(get("access-control-max-age"), Some("600"));
    assert_eq!(get("vary"), Some("Origin"));
    assert!(filter.preflight(&request(Method::OPTIONS, Some("https://a.org"), false)).is_none());
    assert!(filter.preflight(&request(Method::OPTIONS, None, true)).is_none());
    assert!(filter.preflight(&request(Method::GET, Some("https://a.org"), true)).is_none());
}

#[test]
fn origins_are_matched_whole_or_below_a_domain() {
    let filter = filter(&["https://a.org", "https://*.b.org"], false);
    for origin in ["https://a.org", "HTTPS://A.org", "https://x.b.org"] {
        assert_eq!(allowed(&filter, origin).as_deref(), Some(origin));
    }
    for origin in [
        "http://a.org",
        "https://a.org.evil",
        "https://b.org",
        "https://.b.org",
        "https://x.y.b.org",
        "https://evil/x.b.org",
        "https://evil:1@x.b.org",
        "https://xb.org",
        "null",
    ] {
        assert_eq!(allowed(&filter, origin), None, "{origin}");
    }
}

#[test]
fn everybody_is_a_star_unless_cookies_are_sent() {
    assert_eq!(allowed(&filter(&["*"], false), "https://x").as_deref(), Some("*"));
    assert_eq!(allowed(&filter(&["*"], true), "https://x").as_deref(), Some("https://x"));
}

#[test]
fn a_response_says_what_the_route_says_and_not_what_the_backend_said() {
    let filter = filter(&["https://a.org"], false);
    let mut response = ResponseHead::default();
    response.headers.push("Access-Control-Allow-Origin", "*");
    response.headers.push("x-kept", "1");
    filter.edit(&request(Method::GET, Some("https://a.org"), false), &mut response);
    let values: Vec<_> = response.headers.get_all("access-control-allow-origin").collect();
    assert_eq!(values, [b"https://a.org"]);
    assert_eq!(response.headers.get_str("access-control-expose-headers"), Some("X-Total"));
    assert_eq!(response.headers.get_str("x-kept"), Some("1"));
    let mut refused = ResponseHead::default();
    refused.headers.push("Access-Control-Allow-Origin", "*");
    filter.edit(&request(Method::GET, Some("https://evil"), false), &mut refused);
    assert_eq!(refused.headers.get("access-control-allow-origin"), None);
    assert_eq!(refused.headers.get_str("vary"), Some("Origin"));
}
