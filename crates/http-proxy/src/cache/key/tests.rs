use http::{HeaderMap, HeaderValue};
use proptest::prelude::*;

use super::*;

fn parts<'a>(authority: &'a str, path: &'a str) -> KeyParts<'a> {
    KeyParts {
        scheme: Scheme::Http,
        authority,
        path,
        query: None,
        route: "ns/name/0/0",
        backend: "ns/web:80",
    }
}

fn key(parts: &KeyParts<'_>) -> Key {
    Key::new(parts, &HeaderMap::new()).unwrap()
}

#[test]
fn what_means_the_same_has_the_same_key() {
    let usual = key(&parts("example.org", "/a"));
    assert_eq!(usual.uri(), "http://example.org:80/a");
    assert_eq!(key(&parts("EXAMPLE.org", "/a")), usual);
    // Purged together, but the origin sees the form of the name: each has an answer of its own.
    let forms =
        ["example.org:80", "example.org.", "example.org:", "example.org.:80", "example.org:080"];
    for (index, form) in forms.iter().enumerate() {
        assert_eq!(key(&parts(form, "/a")).uri(), usual.uri(), "{form}");
        assert_ne!(key(&parts(form, "/a")), usual, "{form}");
        for other in &forms[..index] {
            assert_ne!(key(&parts(form, "/a")), key(&parts(other, "/a")), "{form} {other}");
        }
    }
    assert_eq!(key(&parts("[2001:DB8::1]", "/")).uri(), "http://[2001:db8::1]:80/");
    assert_eq!(key(&parts("[::1]:8080", "/")).uri(), "http://[::1]:8080/");
}

#[test]
fn whatever_differs_has_another_key() {
    let base = parts("example.org", "/a");
    let others = [
        KeyParts { scheme: Scheme::Https, ..base },
        KeyParts { authority: "example.com", ..base },
        KeyParts { authority: "example.org:81", ..base },
        KeyParts { path: "/A", ..base },
        KeyParts { path: "/a/", ..base },
        KeyParts { query: Some(""), ..base },
        KeyParts { query: Some("b"), ..base },
        KeyParts { route: "ns/name/0/1", ..base },
        KeyParts { backend: "ns/web:81", ..base },
    ];
    for (index, other) in others.iter().enumerate() {
        assert_ne!(key(other), key(&base), "{other:?}");
        for further in &others[index + 1..] {
            assert_ne!(key(other), key(further));
        }
    }
}

#[test]
fn what_forwarded_says_of_the_request_is_in_the_key_and_who_asks_is_not() {
    let with = |value: &str| {
        let mut headers = HeaderMap::new();
        headers.insert("forwarded", HeaderValue::from_str(value).unwrap());
        Key::new(&parts("example.org", "/a"), &headers)
    };
    let plain = with("for=192.0.2.1").unwrap();
    for same in ["for=\"[2001:db8::1]:80\"; By=10.0.0.1, for=unknown", "for=\"a;host=b\""] {
        assert_eq!(with(same).unwrap(), plain, "{same}");
    }
    let others = ["for=192.0.2.1;host=evil.example", "host=b", "for=a, for=b;proto=https"];
    for (index, other) in others.iter().enumerate() {
        assert_ne!(with(other).unwrap(), plain, "{other}");
        for further in &others[index + 1..] {
            assert_ne!(with(other).unwrap(), with(further).unwrap());
        }
    }
    let long = format!("for=192.0.2.1;host={}", "a".repeat(300));
    assert_eq!(with(&long).unwrap_err(), KeyError::Overridden);
    assert_eq!(with(&"for=192.0.2.1, ".repeat(30)).unwrap(), plain, "only what steers is counted");
}

#[test]
fn what_is_no_host_or_path_has_no_key() {
    let refuse =
        |authority, path| Key::new(&parts(authority, path), &HeaderMap::new()).unwrap_err();
    let bad = [
        "", ".", "a..", "a@b", "a/b", "a b", "a:b", "a:80:80", "a:+80", "a:99999", "[::1",
        "[::1]x", "[g]", "a?b", "a#",
    ];
    for authority in bad {
        assert_eq!(refuse(authority, "/"), KeyError::Authority, "{authority}");
    }
    for path in ["", "*", "a", "/a b", "/a#b", "/a?b", "/a\n", "http://x/"] {
        assert_eq!(refuse("a", path), KeyError::Path, "{path}");
    }
    assert_eq!(refuse("a", &format!("/{}", "x".repeat(9000))), KeyError::TooLong);
}

#[test]
fn a_host_that_a_proxy_names_is_part_of_the_key() {
    let with = |host: &'static str| {
        let mut headers = HeaderMap::new();
        headers.insert("x-forwarded-host", HeaderValue::from_static(host));
        Key::new(&parts("example.org", "/"), &headers).unwrap()
    };
    assert_ne!(with("evil.example"), key(&parts("example.org", "/")));
    assert_ne!(with("evil.example"), with("example.org"));
    assert_eq!(with("evil.example").uri(), "http://example.org:80/");
}

#[test]
fn a_request_that_says_it_is_another_has_no_key() {
    for name in ["x-original-url", "x-http-method-override", "x-rewrite-url"] {
        let mut headers = HeaderMap::new();
        headers.insert(name, HeaderValue::from_static("/admin"));
        let refused = Key::new(&parts("example.org", "/"), &headers);
        assert_eq!(refused, Err(KeyError::Overridden), "{name}");
    }
}

#[test]
fn references_lead_to_uris_of_the_same_origin_only() {
    let base = KeyParts { query: Some("q"), ..parts("example.org", "/a/b") };
    let base = key(&base);
    let leads = |reference| base.resolve(reference);
    let to = |target: &str| Some(format!("http://example.org:80{target}"));
    assert_eq!(leads("c"), to("/a/c"));
    assert_eq!(leads("../c/./d/.."), to("/c/"));
    assert_eq!(leads("../../../c?x=../y"), to("/c?x=../y"));
    assert_eq!(leads("/c#part"), to("/c"));
    assert_eq!(leads("?z"), to("/a/b?z"));
    assert_eq!(leads(""), to("/a/b?q"));
    assert_eq!(leads("http://EXAMPLE.org/c"), to("/c"));
    assert_eq!(leads("http://example.org"), to("/"));
    assert_eq!(leads("//example.org:80/c"), to("/c"));
    for elsewhere in [
        "https://example.org/c",
        "http://example.com/c",
        "//example.org:81/",
        "http://a@example.org/",
        "/a b",
    ] {
        assert_eq!(leads(elsewhere), None, "{elsewhere}");
    }
}

/// Host and port as HTTP reads them.
fn read_authority(text: &str) -> (String, u16) {
    let (host, port) = text.split_once(':').unwrap_or((text, ""));
    let host = host.strip_suffix('.').unwrap_or(host);
    (host.to_owned(), if port.is_empty() { 80 } else { port.parse().unwrap() })
}

type Told = (String, String, Option<String>, String, String);

fn told() -> impl Strategy<Value = Told> {
    let query = proptest::option::of("[/a-z?.]{0,4}");
    ("[a-b.]{1,3}(:[0-9]{0,3})?", "/[/a-b?.]{0,4}", query, "[a-b/\n:]{0,4}", "[a-b/\n:]{0,4}")
}

proptest! {
    #[test]
    fn different_parts_never_make_the_same_key(one in told(), two in told()) {
        let made = |(authority, path, query, route, backend): &Told| {
            let scheme = Scheme::Http;
            let query = query.as_deref();
            let parts = KeyParts { scheme, authority, path, query, route, backend };
            Key::new(&parts, &HeaderMap::new())
        };
        if let (Ok(first), Ok(second)) = (made(&one), made(&two)) && first == second {
            let tame = |text: &str| text.replace('\n', "?");
            prop_assert_eq!(read_authority(&one.0), read_authority(&two.0));
            prop_assert_eq!((&one.1, &one.2), (&two.1, &two.2));
            prop_assert_eq!((tame(&one.3), tame(&one.4)), (tame(&two.3), tame(&two.4)));
        }
    }
}
