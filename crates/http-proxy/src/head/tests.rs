//! Targets, authorities and fields.

use http::Method;

use super::target::{self, TargetError, check_authority, split_authority};
use super::{Headers, Known, RequestHead};

fn path_of(target: &str) -> Result<String, TargetError> {
    let mut head = RequestHead::new();
    head.set_target(target).map(|()| head.path().to_owned())
}

#[test]
fn a_path_has_one_form() {
    let cases = [
        ("/", "/"),
        ("/a/b", "/a/b"),
        ("/a//b/", "/a//b/"),
        ("/%61", "/a"),
        ("/a%2fb", "/a%2Fb"),
        ("/a/./b/../c", "/a/c"),
        ("/a/..", "/"),
        ("/a/.", "/a/"),
        ("/%2e%2E/a/..%2f", "/a/..%2F"),
        ("/.well-known/x", "/.well-known/x"),
        ("/a%20b", "/a%20b"),
    ];
    for (written, normal) in cases {
        let wanted = if written.starts_with("/%2e%2E") {
            Err(TargetError::Root)
        } else {
            Ok(normal.to_owned())
        };
        assert_eq!(path_of(written), wanted, "{written}");
    }
}

#[test]
fn normalising_twice_changes_nothing() {
    for written in ["/%2561", "/a%2F%2e%2e", "/%7euser", "/x/../..x/.y", "/%e4%b8"] {
        let once = path_of(written).expect(written);
        assert_eq!(path_of(&once), Ok(once.clone()), "{written}");
    }
}

#[test]
fn bad_targets_are_refused() {
    for bad in [
        "",
        "a",
        "/%",
        "/%4",
        "/%zz",
        "/%00",
        "/a b",
        "/ä",
        "/a#b",
        "ftp://a/",
        "*",
        "/..",
        "/a/../../b",
    ] {
        assert!(path_of(bad).is_err(), "{bad:?}");
    }
}

#[test]
fn the_absolute_form_brings_its_authority() {
    let mut head = RequestHead::new();
    head.set_authority("other.example");
    head.set_target("http://WWW.example.com:8080?x=1").expect("absolute");
    assert_eq!((head.host(), head.port(), head.path()), ("www.example.com", 8080, "/"));
    assert_eq!(head.query(), Some("x=1"));
    assert_eq!(head.path_and_query(), "/?x=1");
}

#[test]
fn a_star_is_for_options_only() {
    let mut head = RequestHead { method: Method::OPTIONS, ..RequestHead::new() };
    head.set_target("*").expect("OPTIONS *");
    assert_eq!(head.path(), "*");
}

#[test]
fn authorities_are_checked() {
    for good in ["a", "a.b:80", "10.0.0.1", "[::1]", "[::1]:443", "a_b.c", "xn--bcher-kva.example"]
    {
        assert_eq!(check_authority(good), Ok(()), "{good}");
    }
    for bad in [
        "", "a b", "a:", "a:b", "a:99999", "u@a", "a/b", "[::1", "[a]", "[::1]x", ":80", "a:1:2",
        "a,b",
    ] {
        assert!(check_authority(bad).is_err(), "{bad}");
    }
    assert_eq!(split_authority("[::1]:443"), ("::1", Some(443)));
    assert_eq!(split_authority("a"), ("a", None));
}

#[test]
fn every_known_name_is_recognised_in_any_case() {
    for known in
        [Known::Host, Known::TransferEncoding, Known::XForwardedFor, Known::Te, Known::Etag]
    {
        assert_eq!(Known::of(known.as_str().as_bytes()), known);
        assert_eq!(Known::of(known.as_str().to_ascii_uppercase().as_bytes()), known);
    }
    assert_eq!(Known::of(b"hosts"), Known::Other);
    assert_eq!(Known::of(b""), Known::Other);
}

#[test]
fn fields_are_kept_in_order_and_found_in_any_case() {
    let mut headers = Headers::new();
    assert!(
        headers.push("X-One", "1")
            && headers.push("set-cookie", "a")
            && headers.push("Set-Cookie", "b")
    );
    assert_eq!(headers.get_all_known(Known::SetCookie).collect::<Vec<_>>(), [b"a", b"b"]);
    assert_eq!(headers.get("x-one"), Some(&b"1"[..]));
    assert!(headers.set("x-ONE", "2"));
    headers.remove("SET-COOKIE");
    assert_eq!(headers.iter().map(|field| field.name).collect::<Vec<_>>(), ["x-ONE"]);
    let back = Headers::from(&headers.to_map());
    assert_eq!(back.get("x-one"), Some(&b"2"[..]));
}

#[test]
fn nothing_in_a_value_becomes_a_field() {
    let mut headers = Headers::new();
    for (name, value) in
        [("a", "b\r\nc: d"), ("a", "b\nc"), ("a", "\0"), ("a b", "c"), ("", "c"), ("a:", "c")]
    {
        assert!(!headers.push(name, value), "{name:?}: {value:?}");
    }
    assert!(headers.is_empty());
}

#[test]
fn routes_are_compared_with_what_a_path_means() {
    for (path, form) in [
        ("/admin", "/admin"),
        ("//admin", "/admin"),
        ("///admin//x/", "/admin/x/"),
        ("/a%40b%3B", "/a@b;"),
        ("/a%2Fb%3Fc%23d%25e", "/a%2Fb%3Fc%23d%25e"),
        ("/%C3%BC%20x", "/%C3%BC%20x"),
        ("/%2F/", "/%2F/"),
        ("/", "/"),
        ("//", "/"),
    ] {
        assert_eq!(target::matching_form(path), form, "{path}");
    }
    for (written, form) in [
        ("/sp ace", "/sp%20ace"),
        ("/ü", "/%C3%BC"),
        ("/%c3%bc", "/%C3%BC"),
        ("/a?b#c", "/a%3Fb%23c"),
        ("//a//b/./c/../", "/a/b/"),
        ("", "/"),
    ] {
        assert_eq!(target::route_path(written).as_deref(), Ok(form), "{written}");
    }
    for bad in ["/%zz", "/..", "/%00"] {
        assert!(target::route_path(bad).is_err(), "{bad}");
    }
}

#[test]
fn a_rewrite_stays_where_it_leads_and_brings_its_query() {
    let rewritten = |target: &str, query: Option<&str>| {
        let mut head = RequestHead::new();
        head.set_query(query);
        head.rewrite(target).map(|()| head.path_and_query())
    };
    for (target, query, wanted) in [
        ("/files/a", Some("x=1"), "/files/a?x=1"),
        ("/files/./a", None, "/files/a"),
        ("/new?id=7", None, "/new?id=7"),
        ("/new?id=7", Some("x=1"), "/new?id=7&x=1"),
        ("/new?id=7?", Some("x=1"), "/new?id=7"),
        ("/new?", Some("x=1"), "/new"),
        ("/a{b}\"", None, "/a%7Bb%7D%22"),
    ] {
        assert_eq!(rewritten(target, query).as_deref(), Ok(wanted), "{target}");
    }
    for bad in ["/files/../secret", "/files/..", "/files/%2e%2E/x", "/files/%zz"] {
        assert!(rewritten(bad, None).is_err(), "{bad}");
    }
}
