use http::HeaderValue;

use super::*;

fn headers(lines: &[(&str, &str)]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in lines {
        let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
        headers.append(name, HeaderValue::from_str(value).unwrap());
    }
    headers
}

/// Whether a response to the first request with that `Vary` can be used for the second.
fn matches(vary: &str, first: &[(&str, &str)], second: &[(&str, &str)]) -> bool {
    let selector = Selector::of(&headers(&[("vary", vary)]), &headers(first)).unwrap();
    selector.matches(&headers(second))
}

#[test]
fn only_requests_with_the_same_values_match() {
    assert!(matches("foo", &[("foo", "1"), ("other", "2")], &[("foo", "1"), ("other", "3")]));
    assert!(!matches("foo", &[("foo", "1")], &[("foo", "2")]));
    assert!(!matches("foo", &[("foo", "1")], &[]));
    assert!(!matches("foo", &[], &[("foo", "1")]));
    assert!(!matches("foo", &[], &[("foo", "")]));
    assert!(matches("foo, BAR, baz", &[("foo", "1"), ("baz", "3")], &[("baz", "3"), ("foo", "1")]));
    assert!(matches("", &[("foo", "1")], &[]));
}

#[test]
fn an_asterisk_anywhere_matches_nothing() {
    for vary in ["*", "*, *", ", *", "*, foo", "foo, *", "b ad"] {
        let response = headers(&[("vary", vary)]);
        assert_eq!(Selector::of(&response, &headers(&[])), None, "{vary}");
    }
    let response = headers(&[("vary", ""), ("vary", "*")]);
    assert_eq!(Selector::of(&response, &headers(&[])), None);
    let many: Vec<String> = (0..20).map(|n| format!("x-{n}")).collect();
    let response = headers(&[("vary", &many.join(","))]);
    assert_eq!(Selector::of(&response, &headers(&[])), None);
}

#[test]
fn blanks_and_lines_do_not_count() {
    assert!(matches("foo", &[("foo", "1,2")], &[("foo", " 1, 2 ")]));
    assert!(matches("foo", &[("foo", "1, 2")], &[("foo", "1"), ("foo", "2")]));
    assert!(!matches("foo", &[("foo", "1, 2")], &[("foo", "2, 1")]));
    assert!(!matches("foo", &[("foo", "\"1, 2\"")], &[("foo", "\"1,2\"")]));
    assert!(!matches("foo", &[("foo", "a")], &[("foo", "A")]));
}

#[test]
fn preferences_do_not_depend_on_order_and_case() {
    let language = |value| [("accept-language", value)];
    let same = |a, b| matches("accept-language", &language(a), &language(b));
    assert!(same("en, de", "de, en"));
    assert!(same("en, de", "eN ,   De"));
    assert!(same("en;q=1.0, de; q=0.5", "de;q=0.5,en"));
    assert!(!same("en, de;q=0.5", "en;q=0.5, de"));
    assert!(!same("en", "en, de"));
}

#[test]
fn a_request_that_likes_a_responses_language_best_gets_it() {
    let response = headers(&[("vary", "accept-language, foo")]);
    let selector = Selector::of(&response, &headers(&[("accept-language", "en, de")])).unwrap();
    let gets = |lines: &[(&str, &str)]| selector.matches_in_language(&headers(lines), b"de");
    assert!(gets(&[("accept-language", "fr;q=0.5, de;q=1.0")]));
    assert!(gets(&[("accept-language", "DE")]));
    assert!(!gets(&[("accept-language", "fr, de")]));
    assert!(!gets(&[("accept-language", "de;q=0.5, fr")]));
    assert!(!gets(&[("accept-language", "de;q=0")]));
    assert!(!gets(&[("accept-language", "de"), ("foo", "1")]));
    assert!(!gets(&[]));
}
