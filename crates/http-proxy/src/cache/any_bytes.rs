//! Any bytes as a request and a response for the cache: the body of a fuzz target, and of tests.
//!
//! The bytes are read as lines. The first is the authority, the second path and query; then come fields, of
//! the request down to an empty line and of the response after it; what is left is the response's body.

use std::time::Duration;

use http::{Method, StatusCode};

use super::{Answer, Asked, Cache, CacheLimits, Key, KeyParts, Keyed, Lookup, Moment};
use crate::head::{Headers, ResponseHead, Scheme};
use crate::table::CachePolicy;

/// Takes bytes apart, and checks what must hold whatever they are.
///
/// # Panics
/// If something does not hold.
pub fn check_any_bytes(bytes: &[u8]) {
    let mut lines = bytes.split(|byte| *byte == b'\n');
    let mut text = || String::from_utf8_lossy(lines.next().unwrap_or_default()).into_owned();
    let (authority, target) = (text(), text());
    let (path, query) = match target.split_once('?') {
        Some((path, query)) => (path, Some(query)),
        None => (&*target, None),
    };
    let request = fields(&mut lines);
    let mut response = ResponseHead::new(StatusCode::OK);
    response.headers = fields(&mut lines);
    let body = lines.next().unwrap_or_default();
    let parts = KeyParts {
        scheme: Scheme::Https,
        authority: &authority,
        path,
        query,
        route: "r",
        backend: "b",
    };
    let Ok(keyed) = Keyed::new(&parts, &request) else { return };
    check_key(&keyed.key);
    check_exchange(&keyed, &request, response, body);
}

/// Fields, down to an empty line. What is no field is left out, as a parser of heads would refuse it.
fn fields<'a>(lines: &mut impl Iterator<Item = &'a [u8]>) -> Headers {
    let mut headers = Headers::new();
    for line in lines.take_while(|line| !line.is_empty()).take(64) {
        if let Some(colon) = line.iter().position(|byte| *byte == b':') {
            headers.push(&line[..colon], line[colon + 1..].trim_ascii());
        }
    }
    headers
}

/// A key's URI, read as a URL, is that of the same key, and leads to itself.
fn check_key(key: &Key) {
    let uri = key.uri();
    let after_scheme = uri.strip_prefix("https://").unwrap_or_default();
    let end = after_scheme.find('/').unwrap_or(after_scheme.len());
    let (authority, target) = after_scheme.split_at(end);
    let (path, query) = match target.split_once('?') {
        Some((path, query)) => (path, Some(query)),
        None => (target, None),
    };
    let parts = KeyParts { scheme: Scheme::Https, authority, path, query, route: "", backend: "" };
    assert_eq!(Key::of_uri(&parts).as_ref().map(Key::uri), Ok(uri));
    assert_eq!(key.resolve(uri).as_deref(), Some(uri));
    assert_eq!(key.resolve("").as_deref(), Some(uri));
}

/// A response goes into the cache, if it may, and comes out as it went in.
fn check_exchange(keyed: &Keyed, request: &Headers, mut response: ResponseHead, body: &[u8]) {
    let cache = Cache::new(CacheLimits { bytes_max: 1 << 20, ..CacheLimits::default() });
    let policy = CachePolicy::default();
    let asked = |method| Asked {
        method,
        key: Some(keyed),
        headers: request,
        has_body: false,
        known: false,
        policy: &policy,
    };
    let now = Moment::at_unix_s(1_800_000_000);
    let Lookup::Fetch(fetch) = cache.lookup(&asked(&Method::GET), now) else { return };
    let mut upstream = request.clone();
    fetch.prepare(&mut upstream);
    let private = response.headers.get("cache-control") == Some(b"private");
    let set_by_origin = response.headers.get("cdn-cache-control").is_some()
        || response.headers.get("surrogate-control").is_some();
    let Answer::Forward(writer) = fetch.response(&mut response, now) else { return };
    let Some(mut writer) = writer else { return };
    assert!(!private || set_by_origin, "what is private is kept");
    writer.push(body);
    let kept = writer.finish(now);
    for method in &[Method::GET, Method::HEAD] {
        for delay_s in [0, 1, 100_000_000_000] {
            let later = now.after(Duration::from_secs(delay_s));
            match cache.lookup_after_wait(&asked(method), later) {
                Lookup::Hit(reply) | Lookup::Stale(reply, _) => {
                    let own = reply.head.status != StatusCode::GATEWAY_TIMEOUT;
                    assert!(kept || !own, "what was not kept is served");
                    assert!(reply.body.len() <= body.len() || !own);
                }
                Lookup::Fetch(_) | Lookup::Wait(_) => {}
            }
        }
    }
    cache.clean_expired(now.after(Duration::from_hours(100_000)));
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SEEDS: [&str; 7] = [
        "example.org\n/a?b\naccept: x\n\ncache-control: max-age=60\nvary: accept\n\nbody",
        "[::1]:8443\n/\nrange: bytes=1-2, -1\nif-range: \"a\"\n\netag: \"a\"\nexpires: Thu, 01 Dec 2037 16:00:00 GMT\n\n0123",
        "a.\n/%2f/../x?\ncache-control: max-stale, min-fresh=1\n\ncdn-cache-control: max-age=1, x=(1 2);y\n\n",
        "a\n/\nif-none-match: W/\"a\", *\n\nsurrogate-control: max-age=1+2;telaio\nage: 7, 8\nset-cookie: a\n\nx",
        "a\n/\naccept-language: de;q=0.5, en\n\nvary: accept-language\ncontent-language: en\ncache-control: public, no-cache=\"a\"\n\nx",
        "\n\n\n\n",
        "a..\n/",
    ];

    #[test]
    fn seeds_hold() {
        for seed in SEEDS {
            check_any_bytes(seed.as_bytes());
        }
    }

    /// So many cases, unless `PROPTEST_CASES` asks for another number.
    fn cases(usual: u32) -> u32 {
        let asked = std::env::var("PROPTEST_CASES").ok().and_then(|text| text.parse().ok());
        asked.unwrap_or(usual)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(cases(128)))]

        #[test]
        fn any_bytes_hold(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            check_any_bytes(&bytes);
        }

        #[test]
        fn what_is_nearly_right_holds(
            seed in 0usize..SEEDS.len(),
            changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
            control in "[-a-z=,\" 0-9;]{0,40}",
            range in "bytes=[0-9, -]{0,12}",
        ) {
            let mut bytes = SEEDS[seed].replace("max-age=60", &control).replace("bytes=1-2", &range).into_bytes();
            for (place, byte) in changes {
                let place = place.index(bytes.len());
                bytes[place] = byte;
            }
            check_any_bytes(&bytes);
        }
    }
}
