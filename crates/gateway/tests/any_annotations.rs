//! The body of the fuzz target `annotations`, over values that are nearly right: every name of the table with
//! pieces of what any of them may hold.

use proptest::prelude::*;
use telaio_gateway::annotations::check_any_bytes;

/// The table as people read it: one row per annotation, its name in the first column.
const PAGE: &str = include_str!("../../../docs/annotations.md");

fn names() -> Vec<&'static str> {
    let names = PAGE.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
    let names: Vec<_> = names.collect();
    assert!(names.len() > 80, "{} rows", names.len());
    names
}

/// What values are made of.
const PIECES: &[&str] = &[
    "true",
    "false",
    "0",
    "1",
    "60",
    "18446744073709551616",
    "-1",
    "1.5",
    "10m",
    "1G",
    "k",
    "s",
    "ms",
    "http",
    "https",
    "://",
    "a.example",
    "*",
    "*.",
    ".",
    "/",
    "$1",
    "$host",
    "${",
    "(",
    ")",
    "[a-z]+",
    "^",
    "\\",
    "|",
    ",",
    ";",
    " ",
    "\t",
    "\"",
    "'",
    "=",
    ":",
    "10.0.0.0/8",
    "2001:db8::/32",
    "/33",
    "default/secret",
    "on",
    "off",
    "error",
    "timeout",
    "http_503",
    "non_idempotent",
    "GRPCS",
    "cookie",
    "X-Name",
    "\u{e9}",
    "\u{202e}",
    "\r",
    "more_set_headers \"X: y\";",
    "{",
    "}",
    "%2e",
    "..",
];

fn cases(usual: u32) -> ProptestConfig {
    let asked = std::env::var("PROPTEST_CASES").ok().and_then(|text| text.parse().ok());
    ProptestConfig::with_cases(asked.unwrap_or(usual))
}

proptest! {
    #![proptest_config(cases(1000))]

    #[test]
    fn values_that_are_nearly_right_are_read_alike_every_time(
        all in prop::collection::vec(
            (
                any::<bool>(),
                prop::sample::select(names()),
                prop::collection::vec(prop::sample::select(PIECES), 0..6),
            ),
            0..8,
        ),
    ) {
        let text = |(nginx, name, pieces): &(bool, &str, Vec<&str>)| {
            format!("{}{name}\n{}", if *nginx { 'n' } else { 't' }, pieces.concat())
        };
        check_any_bytes(all.iter().map(text).collect::<Vec<_>>().join("\0").as_bytes());
    }

    #[test]
    fn any_text_is_read(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        check_any_bytes(&bytes);
    }
}
