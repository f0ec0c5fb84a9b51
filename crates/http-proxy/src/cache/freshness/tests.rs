use http::{HeaderName, HeaderValue};

use super::*;
use crate::cache::date;

const NOW_S: u64 = 1_800_000_000;

fn at(lines: &[(&str, &str)], status: u16) -> Freshness {
    with_default(lines, status, None)
}

fn with_default(lines: &[(&str, &str)], status: u16, lifetime: Option<Duration>) -> Freshness {
    let mut headers = HeaderMap::new();
    for (name, value) in lines {
        let value = match value.strip_prefix('@') {
            // A date, relative to now.
            Some(delta) => date::format(NOW_S.saturating_add_signed(delta.parse().unwrap())),
            None => (*value).to_owned(),
        };
        let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
        headers.append(name, HeaderValue::from_str(&value).unwrap());
    }
    let now = Moment::at_unix_s(NOW_S);
    let directives = ResponseDirectives::of(&headers);
    Freshness::of(
        StatusCode::from_u16(status).unwrap(),
        &headers,
        &directives,
        Defaults { lifetime, ..Defaults::default() },
        (now, now),
    )
}

fn lifetime_s(lines: &[(&str, &str)]) -> u64 {
    at(lines, 200).lifetime.as_secs()
}

fn age_s(lines: &[(&str, &str)]) -> u64 {
    at(lines, 200).age(Moment::at_unix_s(NOW_S)).as_secs()
}

#[test]
fn the_most_specific_lifetime_counts() {
    let cache_control = |value| ("cache-control", value);
    assert_eq!(lifetime_s(&[cache_control("max-age=10, s-maxage=20"), ("expires", "@30")]), 20);
    assert_eq!(lifetime_s(&[cache_control("max-age=10"), ("expires", "@30")]), 10);
    assert_eq!(lifetime_s(&[("date", "@-5"), ("expires", "@30")]), 35);
    assert_eq!(lifetime_s(&[("expires", "@30")]), 30);
    assert_eq!(lifetime_s(&[("date", "foo"), ("expires", "@30")]), 30);
    assert_eq!(lifetime_s(&[("expires", "0"), ("last-modified", "@-1000")]), 0);
    assert_eq!(lifetime_s(&[("cdn-cache-control", "foo"), ("expires", "@30")]), 0);
}

#[test]
fn without_a_lifetime_it_is_guessed_from_the_last_change() {
    let changed = [("last-modified", "@-1000")];
    assert_eq!(lifetime_s(&changed), 100);
    assert!(!at(&changed, 200).explicit);
    assert_eq!(lifetime_s(&[("last-modified", "@-100000000")]), HEURISTIC_S_MAX);
    assert_eq!(lifetime_s(&[("last-modified", "@1000")]), 0);
    assert_eq!(lifetime_s(&[]), 0);
    for status in [201, 202, 302, 403, 500, 502, 503, 504, 599] {
        assert_eq!(at(&changed, status).lifetime, Duration::ZERO, "{status}");
    }
    let public = [("last-modified", "@-1000"), ("cache-control", "public")];
    assert_eq!(at(&public, 599).lifetime.as_secs(), 100);
}

#[test]
fn age_is_the_larger_of_what_is_told_and_what_dates_show() {
    assert_eq!(age_s(&[("age", "30")]), 30);
    assert_eq!(age_s(&[("age", "30"), ("date", "@-40")]), 40);
    assert_eq!(age_s(&[("date", "@40")]), 0);
    assert_eq!(age_s(&[("age", "7200, 0")]), 7200);
    assert_eq!(age_s(&[("age", "0"), ("age", "7200")]), 0);
    for invalid in ["abc", "-7200", "7200.0", "", "7200;foo=bar"] {
        assert_eq!(age_s(&[("age", invalid)]), 0, "{invalid:?}");
    }
}

#[test]
fn age_includes_the_time_that_the_answer_took() {
    let asked = Moment::at_unix_s(NOW_S);
    let received = asked.after(Duration::from_secs(3));
    let mut headers = HeaderMap::new();
    headers.insert("age", HeaderValue::from_static("10"));
    let directives = ResponseDirectives::of(&headers);
    let times = (asked, received);
    let freshness =
        Freshness::of(StatusCode::OK, &headers, &directives, Defaults::default(), times);
    assert_eq!(freshness.age(received), Duration::from_secs(13));
    assert_eq!(freshness.age(received.after(Duration::from_secs(4))), Duration::from_secs(17));
}

#[test]
fn a_response_is_fresh_until_its_lifetime_is_over() {
    let freshness = at(&[("cache-control", "max-age=10, stale-while-revalidate=5")], 200);
    let after = |seconds| Moment::at_unix_s(NOW_S).after(Duration::from_secs(seconds));
    assert!(freshness.is_fresh(after(9)));
    assert!(!freshness.is_fresh(after(10)));
    assert_eq!(freshness.left(after(4)).as_secs(), 6);
    assert_eq!(freshness.staleness(after(12)).as_secs(), 2);
    assert!(freshness.serves_while_revalidating(after(14)));
    assert!(!freshness.serves_while_revalidating(after(15)));
}

#[test]
fn what_must_be_validated_is_never_served_stale() {
    for forbidding in ["must-revalidate", "proxy-revalidate", "no-cache", "s-maxage=5"] {
        let control = format!("max-age=1, {forbidding}");
        assert!(!at(&[("cache-control", &control)], 200).may_be_stale, "{forbidding}");
    }
    assert!(at(&[("cache-control", "max-age=1")], 200).may_be_stale);
    assert!(at(&[("cache-control", "no-cache=\"a\"")], 200).may_be_stale);
    // Told in so many words.
    assert!(at(&[("cache-control", "s-maxage=1, stale-while-revalidate=9")], 200).may_be_stale);
    let strict = "s-maxage=1, stale-while-revalidate=9, must-revalidate";
    assert!(!at(&[("cache-control", strict)], 200).may_be_stale);
}

#[test]
fn a_routes_own_freshness_is_for_content_and_lasting_redirects_only() {
    let minute = Duration::from_mins(1);
    let lifetime = |status, lines| with_default(lines, status, Some(minute)).lifetime;
    for status in [200, 203, 300, 301, 308] {
        assert_eq!(lifetime(status, &[]), minute, "{status}");
    }
    let others =
        [201, 204, 302, 303, 307, 400, 401, 403, 404, 405, 410, 414, 429, 500, 501, 502, 503, 504];
    for status in others {
        assert_eq!(lifetime(status, &[]), Duration::ZERO, "{status}");
        let told = Duration::from_secs(10);
        assert_eq!(lifetime(status, &[("cache-control", "max-age=10")]), told, "{status}");
    }
    // Guessed as without it.
    assert_eq!(lifetime(404, &[("last-modified", "@-1000")]), Duration::from_secs(100));
}
