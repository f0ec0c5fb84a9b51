use super::*;

const NOW_S: u64 = 1_800_000_000;

fn headers(lines: &[(&str, &str)]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in lines {
        let value = match value.strip_prefix('@') {
            Some(delta) => date::format(NOW_S.saturating_add_signed(delta.parse().unwrap())),
            None => (*value).to_owned(),
        };
        let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
        headers.append(name, HeaderValue::from_str(&value).unwrap());
    }
    headers
}

fn has(request: &[(&str, &str)], stored: &[(&str, &str)]) -> bool {
    client_has_it(&headers(request), &headers(stored), Moment::at_unix_s(NOW_S))
}

#[test]
fn a_client_that_names_the_tag_has_it() {
    for (tag, stored) in [
        ("\"a\"", "\"a\""),
        ("W/\"a\"", "W/\"a\""),
        ("W/\"a\"", "\"a\""),
        ("\"x\", \"a\"", "\"a\""),
        ("\"x,\", \"a,b\"", "\"a,b\""),
        ("*", "\"a\""),
        ("a", "a"),
    ] {
        assert!(has(&[("if-none-match", tag)], &[("etag", stored)]), "{tag} {stored}");
    }
    assert!(has(&[("if-none-match", "\"x\""), ("if-none-match", "\"a\"")], &[("etag", "\"a\"")]));
    for (tag, stored) in [("\"b\"", "\"a\""), ("\"a,b\"", "\"a\""), ("a", "\"a\""), ("", "\"a\"")] {
        assert!(!has(&[("if-none-match", tag)], &[("etag", stored)]), "{tag} {stored}");
    }
}

#[test]
fn a_tag_counts_more_than_a_date() {
    let request = [("if-none-match", "\"b\""), ("if-modified-since", "@0")];
    assert!(!has(&request, &[("etag", "\"a\""), ("last-modified", "@-10")]));
    let request = [("if-none-match", "\"a\""), ("if-modified-since", "@-100")];
    assert!(has(&request, &[("etag", "\"a\""), ("last-modified", "@-10")]));
}

#[test]
fn a_client_with_a_date_since_the_last_change_has_it() {
    let since = |date| [("if-modified-since", date)];
    assert!(has(&since("@-10"), &[("last-modified", "@-10")]));
    assert!(has(&since("@-5"), &[("last-modified", "@-10")]));
    assert!(!has(&since("@-15"), &[("last-modified", "@-10")]));
    assert!(!has(&since("yesterday"), &[("last-modified", "@-10")]));
    assert!(!has(&[], &[("last-modified", "@-10")]));
    // Without a date of the last change, that of the response counts, or when it came.
    assert!(has(&since("@-5"), &[("date", "@-10")]));
    assert!(!has(&since("@-15"), &[("date", "@-10")]));
    assert!(has(&since("@0"), &[]));
    assert!(!has(&since("@-1"), &[]));
}

#[test]
fn the_origin_is_asked_with_our_validators_and_not_the_clients() {
    let stored = headers(&[("etag", "\"a\""), ("last-modified", "@-10")]);
    let mut request = Headers::from(&headers(&[
        ("if-none-match", "\"x\""),
        ("if-modified-since", "@-99"),
        ("if-range", "\"x\""),
        ("range", "bytes=0-1"),
        ("accept", "a/b"),
    ]));
    ask_whether_it_holds(&mut request, &stored);
    let expected = [("if-none-match", "\"a\""), ("if-modified-since", "@-10"), ("accept", "a/b")];
    assert_eq!(request.to_map(), headers(&expected));
}

#[test]
fn an_update_replaces_all_fields_but_those_of_the_bytes() {
    let stored = headers(&[
        ("a", "1"),
        ("a", "2"),
        ("b", "3"),
        ("etag", "\"old\""),
        ("content-length", "5"),
        ("content-type", "text/plain"),
        ("age", "100"),
    ]);
    let newer = headers(&[
        ("a", "4"),
        ("etag", "\"new\""),
        ("content-length", "0"),
        ("content-encoding", "gzip"),
        ("content-type", "text/html"),
        ("connection", "x"),
        ("x", "1"),
    ]);
    let expected = [
        ("a", "4"),
        ("b", "3"),
        ("etag", "\"old\""),
        ("content-length", "5"),
        ("content-type", "text/html"),
    ];
    assert_eq!(updated(&stored, &newer), headers(&expected));
}

#[test]
fn a_head_that_differs_is_about_something_else() {
    let stored = headers(&[("etag", "\"a\""), ("last-modified", "@-10")]);
    let about = |lines: &[(&str, &str)]| head_is_about(&stored, &headers(lines), 5);
    assert!(about(&[]));
    assert!(about(&[("etag", "\"a\""), ("content-length", "5")]));
    assert!(!about(&[("etag", "\"b\"")]));
    assert!(!about(&[("last-modified", "@-9")]));
    assert!(!about(&[("content-length", "6")]));
}
