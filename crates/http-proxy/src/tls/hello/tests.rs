use std::sync::Arc;

use proptest::prelude::*;
use rustls::{ClientConfig, ClientConnection, RootCertStore};

use super::*;

/// What rustls' client sends first.
fn hello_for(name: &str) -> Vec<u8> {
    let config = ClientConfig::builder_with_provider(crate::tls::provider())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(RootCertStore::empty())
        .with_no_client_auth();
    let name = name.to_owned().try_into().unwrap();
    let mut client = ClientConnection::new(Arc::new(config), name).unwrap();
    let mut bytes = Vec::new();
    client.write_tls(&mut bytes).unwrap();
    bytes
}

/// The same message in records of at most `size` bytes.
fn in_records_of(size: usize, hello: &[u8]) -> Vec<u8> {
    let message = &hello[5..];
    message
        .chunks(size)
        .flat_map(|part| {
            let length = u16::try_from(part.len()).unwrap().to_be_bytes();
            [&[22, 3, 1, length[0], length[1]][..], part].concat()
        })
        .collect()
}

#[test]
fn the_name_is_read_however_it_is_cut_into_records() {
    let hello = hello_for("Shop.Example.org");
    let expected = Hello::Whole(Some("shop.example.org".to_owned()));
    assert_eq!(read_server_name(&hello), expected);
    for size in [1, 7, 100] {
        assert_eq!(read_server_name(&in_records_of(size, &hello)), expected, "{size}");
    }
}

#[test]
fn a_client_that_names_an_address_asks_for_no_name() {
    assert_eq!(read_server_name(&hello_for("192.0.2.1")), Hello::Whole(None));
}

#[test]
fn every_beginning_is_incomplete() {
    let hello = hello_for("shop.example.org");
    for end in 0..hello.len() {
        assert_eq!(read_server_name(&hello[..end]), Hello::Incomplete, "{end}");
    }
}

#[test]
fn what_comes_byte_by_byte_is_taken_once() {
    let hello = hello_for("shop.example.org");
    for size in [1, 7, hello.len()] {
        let bytes = in_records_of(size, &hello);
        let mut reader = HelloReader::default();
        for end in 0..bytes.len() {
            assert_eq!(reader.read(&bytes[..end]), Hello::Incomplete, "{size} {end}");
            // Of a record nothing is taken before all of it is there, and then never again.
            let record = 5 + size.min(hello.len() - 5);
            assert_eq!(reader.taken, end / record * record, "{size} {end}");
            assert_eq!(reader.message, hello[5..5 + end / record * (record - 5)]);
        }
        let expected = Hello::Whole(Some("shop.example.org".to_owned()));
        assert_eq!(reader.read(&bytes), expected, "{size}");
    }
}

#[test]
fn what_is_not_a_hello_is_something_else() {
    assert_eq!(read_server_name(b"GET / HTTP/1.1\r\n"), Hello::Other);
    assert_eq!(read_server_name(&[22, 3, 1, 0, 0]), Hello::Other);
    assert_eq!(read_server_name(&[22, 3, 1, 0, 4, 2, 0, 0, 0]), Hello::Other);
    // A hello that promises more than anybody sends.
    assert_eq!(read_server_name(&[22, 3, 1, 0, 4, 1, 255, 0, 0]), Hello::Other);
}

proptest! {
    #[test]
    fn any_bytes_have_an_answer(bytes: Vec<u8>, hello_bytes in 0..400usize) {
        let _ = read_server_name(&bytes);
        let mut changed = hello_for("shop.example.org");
        for (at, byte) in bytes.iter().enumerate() {
            let place = (at * 31 + hello_bytes) % changed.len();
            changed[place] = *byte;
        }
        let _ = read_server_name(&changed);
    }
}
