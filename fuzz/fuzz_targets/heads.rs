//! Any bytes as a request, a response and a chunked body, held against hyper:
//! `cargo +nightly fuzz run heads`.
#![no_main]

use telaio_http_proxy::fuzzing::check_heads;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| check_heads(bytes));
