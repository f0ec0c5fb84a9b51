//! Any bytes as annotations of an Ingress: `cargo +nightly fuzz run annotations`.
#![no_main]

use telaio_gateway::annotations::check_any_bytes;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| check_any_bytes(bytes));
