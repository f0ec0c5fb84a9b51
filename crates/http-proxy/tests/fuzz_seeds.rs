//! The bodies of the fuzz targets, over seeds and random neighbours of them.
#![allow(clippy::expect_used, reason = "a test ends where its means fail")]

use proptest::prelude::*;
use telaio_http_proxy::fuzzing::{check_heads, check_router};

const REQUESTS: &[&str] = &[
    "GET / HTTP/1.1\r\nHost: a\r\n\r\n",
    "GET /a/../b%2f?x=1 HTTP/1.1\r\nHost: a.b:80\r\nX: y\r\nCookie: a=b\r\n\r\n",
    "POST /p HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello",
    "POST /p HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nT: u\r\n\r\n",
    "OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n",
    "GET http://b/c HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
    "GET /u HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n",
    "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
    "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: x\r\nX: y\r\n\r\n0\r\n\r\n",
    "5\r\nhello\r\n3;a=b\r\nabc\r\n0\r\nX: y\r\n\r\n",
];

const ROUTES: &[&str] = &[
    "a.b /x\n*.b /x/y\n /\n=/x\na.b /x/z",
    "~ ~/a(.*)\na ~(\na =/a\na /a",
    "/\n//\n/a//b\n x/a//b/c",
];

#[test]
fn seeds_hold() {
    for seed in REQUESTS {
        check_heads(seed.as_bytes());
    }
    for seed in ROUTES {
        check_router(seed.as_bytes());
    }
}

/// A seed with a few bytes changed, put in, or taken out.
fn neighbour(seeds: &'static [&'static str]) -> impl Strategy<Value = Vec<u8>> {
    let bytes = prop::sample::select(b"\r\n\0 \t:,;%/?#.0159afAFxX-_\"\x7f\xff".to_vec());
    let edits = prop::collection::vec((any::<prop::sample::Index>(), 0..3, bytes), 0..6);
    (prop::sample::select(seeds), edits).prop_map(|(seed, edits)| {
        let mut bytes = seed.as_bytes().to_vec();
        for (at, kind, byte) in edits {
            if bytes.is_empty() {
                break;
            }
            let at = at.index(bytes.len());
            match kind {
                0 => bytes[at] = byte,
                1 => bytes.insert(at, byte),
                _ => {
                    bytes.remove(at);
                }
            }
        }
        bytes
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn what_we_accept_hyper_reads_alike(bytes in neighbour(REQUESTS)) {
        check_heads(&bytes);
    }

    #[test]
    fn look_ups_fit_whatever_the_routes(bytes in neighbour(ROUTES)) {
        check_router(&bytes);
    }
}
