//! Any bytes from a peer: `cargo +nightly fuzz run wire`.
#![no_main]

#[path = "../../crates/api/tests/support/take.rs"]
mod take;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| take::take_bytes(bytes));
