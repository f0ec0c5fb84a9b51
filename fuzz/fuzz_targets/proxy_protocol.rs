//! Any bytes at the front of a connection, as a PROXY header and as a ClientHello:
//! `cargo +nightly fuzz run proxy_protocol`.
#![no_main]

use telaio_http_proxy::proxy_protocol::{Parsed, parse};
use telaio_http_proxy::tls::hello::read_server_name;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    if let Ok(Parsed::Header(header)) = parse(bytes) {
        assert!(header.bytes <= bytes.len());
    }
    let _ = read_server_name(bytes);
});
