//! Any bytes as an address with names in it, and what a client fills in: `cargo +nightly fuzz run template`.
#![no_main]

use telaio_http_proxy::fuzzing::check_template;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| check_template(bytes));
