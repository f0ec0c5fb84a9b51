//! Any bytes as a file of manifests: `cargo +nightly fuzz run manifests`.
#![no_main]

use telaio_source::manifest::check_any_bytes;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| check_any_bytes(bytes));
