//! Any bytes as a request and its response for the cache, keys and directives among them:
//! `cargo +nightly fuzz run http_cache`.
#![no_main]

use telaio_http_proxy::cache::check_any_bytes;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| check_any_bytes(bytes));
