use http::HeaderName;
use proptest::prelude::*;

use super::*;

fn headers(lines: &[(&str, &str)]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in lines {
        let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
        headers.append(name, HeaderValue::from_str(value).unwrap());
    }
    headers
}

fn wanted(range: &str) -> Wanted {
    Wanted::of(&headers(&[("range", range)]), &HeaderMap::new(), 10)
}

#[test]
fn one_range_is_a_part() {
    assert_eq!(wanted("bytes=0-1"), Wanted::Part(0, 2));
    assert_eq!(wanted("Bytes = 2-"), Wanted::Part(2, 10));
    assert_eq!(wanted("bytes=-3"), Wanted::Part(7, 10));
    assert_eq!(wanted("bytes=-99"), Wanted::Part(0, 10));
    assert_eq!(wanted("bytes=5-99999999999999999999999"), Wanted::Part(5, 10));
}

#[test]
fn ranges_that_touch_are_one_and_others_are_the_whole() {
    assert_eq!(wanted("bytes=4-5, 0-3,5-6"), Wanted::Part(0, 7));
    assert_eq!(wanted("bytes=0-1,20-"), Wanted::Part(0, 2));
    assert_eq!(wanted("bytes=0-1,8-9"), Wanted::Whole);
    let many = vec!["0-1"; 100].join(",");
    assert_eq!(wanted(&format!("bytes={many}")), Wanted::Whole);
}

#[test]
fn ranges_behind_the_end_are_nothing() {
    assert_eq!(wanted("bytes=10-"), Wanted::Nothing);
    assert_eq!(wanted("bytes=-0"), Wanted::Nothing);
    let empty = Wanted::of(&headers(&[("range", "bytes=0-")]), &HeaderMap::new(), 0);
    assert_eq!(empty, Wanted::Nothing);
}

#[test]
fn what_is_no_range_is_the_whole() {
    for text in [
        "",
        "bytes",
        "bytes=",
        "bytes=,",
        "lines=0-1",
        "bytes=a-b",
        "bytes=3-1",
        "bytes=1",
        "bytes=-",
        "bytes=0-1,x",
    ] {
        assert_eq!(wanted(text), Wanted::Whole, "{text}");
    }
    let twice = headers(&[("range", "bytes=0-1"), ("range", "bytes=2-3")]);
    assert_eq!(Wanted::of(&twice, &HeaderMap::new(), 10), Wanted::Whole);
}

#[test]
fn a_part_of_something_else_is_not_continued() {
    let date = "Sun, 06 Nov 1994 08:49:37 GMT";
    let stored = headers(&[("etag", "\"a\""), ("last-modified", date)]);
    let gets_part = |condition: &str| {
        let request = headers(&[("range", "bytes=0-1"), ("if-range", condition)]);
        Wanted::of(&request, &stored, 10) == Wanted::Part(0, 2)
    };
    assert!(gets_part("\"a\""));
    assert!(gets_part(date));
    assert!(!gets_part("\"b\""));
    assert!(!gets_part("W/\"a\""));
    assert!(!gets_part("Sun, 06 Nov 1994 08:49:38 GMT"));
    let request = headers(&[("range", "bytes=0-1"), ("if-range", date)]);
    assert_eq!(Wanted::of(&request, &HeaderMap::new(), 10), Wanted::Whole);
}

proptest! {
    #[test]
    fn a_part_always_lies_within(range in "[bytes=0-9, -]{0,30}", length in 0usize..20) {
        let line = format!("bytes={range}");
        if let Wanted::Part(first, end) = parse(line.as_bytes(), length) {
            prop_assert!(first < end && end <= length);
        }
    }
}
