//! Any lines as what proxies say about a client: `cargo +nightly fuzz run forwarded`.
#![no_main]

use telaio_http_proxy::fuzzing::check_forwarded;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| check_forwarded(bytes));
