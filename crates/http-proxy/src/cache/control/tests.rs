use http::{HeaderMap, HeaderName, HeaderValue};

use super::*;

fn response(lines: &[(&str, &str)]) -> ResponseDirectives {
    let mut headers = HeaderMap::new();
    for (name, value) in lines {
        let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
        headers.append(name, HeaderValue::from_str(value).unwrap());
    }
    ResponseDirectives::of(&headers)
}

fn control(value: &str) -> ResponseDirectives {
    response(&[("cache-control", value)])
}

#[test]
fn directives_are_read_in_any_case_and_from_several_lines() {
    let read = response(&[
        ("cache-control", "MaX-AgE=60,, Public , foo=\"a, no-store\""),
        ("cache-control", "s-maxage=\"120\", stale-while-revalidate=5,stale-if-error=007"),
    ]);
    assert_eq!(read.max_age_s, Some(60));
    assert_eq!(read.s_maxage_s, Some(120));
    assert_eq!(read.stale_while_revalidate_s, Some(5));
    assert_eq!(read.stale_if_error_s, Some(7));
    assert!(read.public && !read.no_store);
    assert!(control("NO-STORE").no_store);
    assert!(control("must-revalidate").must_revalidate);
}

#[test]
fn what_is_no_time_counts_as_none_at_all() {
    for text in [
        "max-age='3600'",
        "max-age=3600.0",
        "max-age=a100",
        "max-age=-1",
        "max-age",
        "max-age=",
        "max-age =3600",
        "max-age= 3600",
        "max-age=3600, max-age=x",
    ] {
        assert_eq!(control(text).max_age_s, Some(0), "{text}");
    }
    assert_eq!(control("max-age=10, max-age=5").max_age_s, Some(5));
    assert_eq!(control("max-age=99999999999999999999999").max_age_s, Some(1 << 31));
}

#[test]
fn text_in_quotes_is_not_taken_for_directives() {
    let read = control("extension=\"max-age=3600\", max-age=1");
    assert_eq!(read.max_age_s, Some(1));
    assert_eq!(control("x=\"a\\\", no-store\", max-age=1").max_age_s, Some(1));
    assert!(!control("x=\"a\\\", no-store\", max-age=1").no_store);
}

#[test]
fn a_prohibition_is_understood_even_if_it_is_written_badly() {
    assert!(control("no-store =1").no_store);
    assert_eq!(control("private = \"\"").private, Reach::Whole);
    assert_eq!(control("no-cache=\"a b\"").no_cache, Reach::Whole);
    assert!(!control("public =1").public);
}

#[test]
fn headers_can_be_named() {
    let names = [HeaderName::from_static("a"), HeaderName::from_static("set-cookie")];
    assert_eq!(control("no-cache=\"A, Set-Cookie\"").no_cache, Reach::Headers(names.to_vec()));
    assert_eq!(
        control("private=a, private=\"set-cookie\"").private,
        Reach::Headers(names.to_vec())
    );
    assert_eq!(control("private=a, private").private, Reach::Whole);
    assert_eq!(control("private, private=a").private, Reach::Whole);
}

#[test]
fn the_header_for_networks_counts_alone() {
    let read = response(&[("cdn-cache-control", "max-age=600"), ("cache-control", "no-store")]);
    assert_eq!((read.voice, read.max_age_s, read.no_store), (Voice::Targeted, Some(600), false));
    let read = response(&[("cdn-cache-control", "no-store"), ("cache-control", "max-age=60")]);
    assert!(read.no_store && read.max_age_s.is_none());
    let read = response(&[("cdn-cache-control", "private, no-cache=?0")]);
    assert_eq!((read.private, read.no_cache), (Reach::Whole, Reach::Nothing));
}

#[test]
fn an_invalid_header_for_networks_does_not_count() {
    for value in
        ["max-age=10000, &&&&&", "max-age=\"10000\"", "max-age", "MaX-aGe=600", "", "max-age =100"]
    {
        let read = response(&[("cdn-cache-control", value), ("cache-control", "no-store")]);
        assert!(read.no_store && read.max_age_s.is_none(), "{value:?}: {read:?}");
    }
}

#[test]
fn surrogates_are_spoken_to_by_name_or_all_together() {
    let read = response(&[("surrogate-control", "max-age=3600"), ("cache-control", "no-store")]);
    assert_eq!((read.max_age_s, read.no_store), (Some(3600), false));
    let read =
        response(&[("surrogate-control", "max-age=60;other, max-age=5+7;telaio, no-store;x")]);
    assert_eq!((read.max_age_s, read.stale_while_revalidate_s), (Some(5), Some(7)));
    assert!(!read.no_store);
    let read = response(&[("surrogate-control", "no-store;other"), ("cache-control", "max-age=9")]);
    assert_eq!((read.voice, read.max_age_s), (Voice::CacheControl, Some(9)));
    assert!(response(&[("surrogate-control", "no-store")]).no_store);
    let both = [("surrogate-control", "max-age=60"), ("cdn-cache-control", "max-age=9")];
    assert_eq!(response(&both).max_age_s, Some(9));
}

#[test]
fn requests_have_directives_of_their_own() {
    let mut headers = HeaderMap::new();
    let value = "max-age=5, min-fresh=6, max-stale, no-cache, only-if-cached, max-age=x";
    headers.append("cache-control", HeaderValue::from_static(value));
    let read = RequestDirectives::of(&headers);
    assert_eq!(
        (read.max_age_s, read.min_fresh_s, read.max_stale_s),
        (None, Some(6), Some(1 << 31))
    );
    assert!(read.no_cache && read.only_if_cached && !read.no_store);
}
