//! Any bytes as the frames of a client of HTTP/2: `cargo +nightly fuzz run h2`.
#![no_main]

use telaio_http_proxy::fuzzing::check_h2;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| check_h2(bytes));
