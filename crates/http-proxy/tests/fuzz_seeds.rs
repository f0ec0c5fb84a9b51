//! The bodies of the fuzz targets, over seeds and random neighbours of them.
#![allow(clippy::expect_used, reason = "a test ends where its means fail")]

use proptest::prelude::*;
use telaio_http_proxy::fuzzing::{
    check_forwarded, check_h2, check_heads, check_router, check_template,
};

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

/// Frames of HTTP/2, behind preface and settings: length, kind, flags, stream, payload.
fn frames() -> Vec<Vec<u8>> {
    let frame = |kind: u8, flags: u8, id: u8, payload: &[u8]| {
        [&[0, 0, payload.len() as u8, kind, flags, 0, 0, 0, id][..], payload].concat()
    };
    // GET http://a/, by the static table; with a path of its own; with a length.
    let get = [0x82, 0x86, 0x84, 0x41, 1, b'a'];
    let path = |path: &[u8]| [&[0x82, 0x86, 0x01, 1, b'a', 0x44, path.len() as u8], path].concat();
    let long = [&get[..], &[0x0f, 0x0d, 1, b'5']].concat();
    let field = |name: &[u8], value: &[u8]| {
        [&[0, name.len() as u8], name, &[value.len() as u8], value].concat()
    };
    vec![
        frame(1, 5, 1, &get),
        [frame(1, 5, 1, &path(b"/a/../b?c=%2f")), frame(1, 5, 3, &path(b"/a#b"))].concat(),
        // A body, its length, and trailers.
        [frame(1, 4, 1, &long), frame(0, 0, 1, b"hello"), frame(1, 5, 1, &field(b"x-sum", b"5"))]
            .concat(),
        // A head in pieces, padded and prioritised; a table's size; something from the table.
        [
            frame(1, 0x28, 1, &[&[2, 0, 0, 0, 0, 9][..], &get[..2], &[0, 0]].concat()),
            frame(9, 0, 1, &get[2..3]),
            frame(9, 4, 1, &get[3..]),
            frame(0, 9, 1, b"\x01x\0"),
            frame(1, 5, 3, &[&[0x20, 0x3f, 0xe1, 0x1f][..], &get, &[0xbe]].concat()),
        ]
        .concat(),
        [
            frame(4, 0, 0, &[0, 4, 0, 1, 0, 0]),
            frame(6, 0, 0, &[7; 8]),
            frame(8, 0, 0, &[0, 0, 1, 0]),
            frame(1, 4, 1, &get),
            frame(3, 0, 1, &[0, 0, 0, 8]),
            frame(7, 0, 0, &[0; 8]),
        ]
        .concat(),
        frame(1, 5, 1, &[&get[..], &field(b"te", b"trailers"), &field(b"cookie", b"a=b")].concat()),
    ]
}

const FORWARDED: &[&str] = &[
    "x6.6.6.6, 192.0.2.7\nx10.1.1.1",
    "ffor=6.6.6.6;proto=http, for=\"[2001:db8::1]:4711\";proto=HTTPS;host=\"a.example:8443\"\nhevil.example",
    "x[::1]:80\nffor=6.6.6.6\nphttps\npftp",
    "ffor=_hidden;by=x\nffor=unknown, for=10.0.0.2\nh a , b",
    "ffor=\"a,b;for=6.6.6.6\\\"\", for=10.0.0.3;host=a.\nphttp",
];

const TEMPLATES: &[&str] = &[
    "https://$host/start?rd=$escaped_request_uri\nx",
    "$scheme://$http_host$request_uri&a=$cookie_a\n//evil.example/",
    "https://x.example/${http_x_a}-$remote_user-$$\n@evil.example",
    "/$http_x_a/$args\n/evil.example",
    "//$cookie_a\nevil.example",
    "https:$http_x_a//x\n\\\\evil",
];

#[test]
fn seeds_hold() {
    for seed in frames() {
        check_h2(&seed);
    }
    for seed in FORWARDED {
        check_forwarded(seed.as_bytes());
    }
    for seed in TEMPLATES {
        check_template(seed.as_bytes());
    }
    for seed in REQUESTS {
        check_heads(seed.as_bytes());
    }
    for seed in ROUTES {
        check_router(seed.as_bytes());
    }
}

/// A seed with a few bytes changed, put in, or taken out.
fn neighbour(seeds: Vec<Vec<u8>>, bytes: Vec<u8>) -> impl Strategy<Value = Vec<u8>> {
    let bytes = prop::sample::select(bytes);
    let edits = prop::collection::vec((any::<prop::sample::Index>(), 0..3, bytes), 0..6);
    (prop::sample::select(seeds), edits).prop_map(|(mut bytes, edits)| {
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

/// As [`neighbour`], of texts.
fn near(seeds: &[&str]) -> impl Strategy<Value = Vec<u8>> + use<> {
    let seeds = seeds.iter().map(|seed| seed.as_bytes().to_vec()).collect();
    neighbour(seeds, b"\r\n\0 \t:,;%/?#.0159afAFxX-_\"\x7f\xff$@\\=[]".to_vec())
}

/// So many cases, unless `PROPTEST_CASES` asks for another number.
fn cases(usual: u32) -> ProptestConfig {
    let asked = std::env::var("PROPTEST_CASES").ok().and_then(|text| text.parse().ok());
    ProptestConfig::with_cases(asked.unwrap_or(usual))
}

proptest! {
    #![proptest_config(cases(2000))]

    #[test]
    fn what_we_accept_hyper_reads_alike(bytes in near(REQUESTS)) {
        check_heads(&bytes);
    }

    #[test]
    fn look_ups_fit_whatever_the_routes(bytes in near(ROUTES)) {
        check_router(&bytes);
    }

    #[test]
    fn who_is_not_trusted_is_not_believed(bytes in near(FORWARDED)) {
        check_forwarded(&bytes);
    }

    #[test]
    fn addresses_lead_where_they_are_written(bytes in near(TEMPLATES)) {
        check_template(&bytes);
    }

    #[test]
    fn frames_mean_the_same_however_they_are_cut(
        bytes in neighbour(frames(), (0..=255).collect()),
    ) {
        check_h2(&bytes);
    }

    #[test]
    fn any_frames_come_to_an_end(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        check_h2(&bytes);
    }
}
