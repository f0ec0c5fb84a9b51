//! Any bytes as routes and a request for them: `cargo +nightly fuzz run router`.
#![no_main]

use telaio_http_proxy::fuzzing::check_router;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| check_router(bytes));
