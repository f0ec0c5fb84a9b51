use proptest::prelude::*;
use tokio::io::AsyncWriteExt;

use super::*;

fn addresses(source: &str, destination: &str) -> Addresses {
    Addresses { source: source.parse().unwrap(), destination: destination.parse().unwrap() }
}

fn header(bytes: &[u8]) -> Header {
    match parse(bytes) {
        Ok(Parsed::Header(header)) => header,
        other => panic!("not a header: {other:?}"),
    }
}

/// A header of version 2 by hand.
fn v2(version_command: u8, family: u8, body: &[u8]) -> Vec<u8> {
    let mut out = V2_SIGNATURE.to_vec();
    out.extend([version_command, family]);
    out.extend(u16::try_from(body.len()).unwrap().to_be_bytes());
    out.extend(body);
    out
}

#[test]
fn both_versions_come_back_as_they_were_sent() {
    for pair in [
        addresses("192.0.2.7:5000", "198.51.100.1:443"),
        addresses("[2001:db8::7]:5000", "[2001:db8::1]:80"),
    ] {
        for version in [Version::V1, Version::V2] {
            let bytes = encode(version, pair);
            let read = header(&bytes);
            assert_eq!(read.bytes, bytes.len());
            assert_eq!(read.addresses, Some(pair));
        }
    }
}

#[test]
fn an_ipv4_client_of_a_dual_stack_socket_is_an_ipv4_client() {
    let bytes =
        encode(Version::V1, addresses("[::ffff:192.0.2.7]:5000", "[::ffff:198.51.100.1]:443"));
    assert_eq!(&bytes[..], b"PROXY TCP4 192.0.2.7 198.51.100.1 5000 443\r\n");
}

#[test]
fn addresses_of_two_families_are_said_to_be_unknown() {
    let pair = addresses("192.0.2.7:5000", "[2001:db8::1]:80");
    assert_eq!(&encode(Version::V1, pair)[..], b"PROXY UNKNOWN\r\n");
    assert_eq!(header(&encode(Version::V2, pair)).addresses, None);
}

#[test]
fn who_speaks_for_itself_keeps_its_own_address() {
    assert_eq!(header(b"PROXY UNKNOWN\r\n").addresses, None);
    assert_eq!(header(b"PROXY UNKNOWN ffff::1 ffff::2 1 2\r\n").addresses, None);
    // LOCAL, with addresses that are to be skipped.
    assert_eq!(header(&v2(0x20, 0x11, &[1; 12])).addresses, None);
    // A Unix socket.
    assert_eq!(header(&v2(0x21, 0x31, &[0; 216])).addresses, None);
}

#[test]
fn what_is_wrong_is_refused() {
    let long = [b"PROXY TCP4 ".as_slice(), &[b'1'; 120]].concat();
    let long = String::from_utf8(long).unwrap();
    for line in [
        "GET / HTTP/1.1\r\n",
        "proxy TCP4 1.2.3.4 1.2.3.4 1 1\r\n",
        "PROXY TCP5 1.2.3.4 1.2.3.4 1 1\r\n",
        "PROXY TCP4 1.2.3.4 1.2.3.4 1\r\n",
        "PROXY TCP4 1.2.3.4 1.2.3.4 1 1 1\r\n",
        "PROXY TCP4 1.2.3.4 1.2.3.4 01 1\r\n",
        "PROXY TCP4 1.2.3.4 1.2.3.4 +1 1\r\n",
        "PROXY TCP4 1.2.3.4 1.2.3.4 65536 1\r\n",
        "PROXY TCP4 ::1 ::1 1 1\r\n",
        "PROXY TCP6 1.2.3.4 1.2.3.4 1 1\r\n",
        "PROXY TCP4 1.2.3.4  1.2.3.4 1 1\r\n",
        &long,
    ] {
        assert!(parse(line.as_bytes()).is_err(), "{line:?}");
    }
    for bytes in [
        v2(0x11, 0x11, &[0; 12]),
        v2(0x22, 0x11, &[0; 12]),
        v2(0x21, 0x11, &[0; 11]),
        v2(0x21, 0x21, &[0; 12]),
        v2(0x21, 0x11, &[0; 14]),
        v2(0x21, 0x11, &[&[0; 12][..], &[1, 0, 9, 0]].concat()),
        v2(0x21, 0x11, &[0; V2_BYTES_MAX]),
    ] {
        assert!(parse(&bytes).is_err(), "{bytes:?}");
    }
}

#[test]
fn a_checksum_is_checked() {
    let body = [&[10, 0, 0, 1, 10, 0, 0, 2, 1, 0, 2, 0][..], &[TLV_CRC32C, 0, 4, 0, 0, 0, 0]];
    let mut bytes = v2(0x21, 0x11, &body.concat());
    let hole = bytes.len() - 4..bytes.len();
    let crc = crc32c_without(&bytes, hole.clone());
    bytes[hole].copy_from_slice(&crc.to_be_bytes());
    assert_eq!(header(&bytes).addresses, Some(addresses("10.0.0.1:256", "10.0.0.2:512")));
    bytes[16] ^= 1;
    assert!(matches!(parse(&bytes), Err(ProxyProtocolError::Wrong("its checksum is wrong"))));
}

#[test]
fn the_checksum_is_castagnolis() {
    assert_eq!(crc32c_without(b"123456789", 0..0), 0xe306_9283);
}

#[test]
fn a_header_is_expected_only_from_the_ranges_given() {
    let trust = Trust::new(vec!["10.0.0.0/8".parse().unwrap(), "fd00::/8".parse().unwrap()]);
    let expects = |peer: &str| trust.expects_header_from(peer.parse().unwrap());
    assert!(expects("10.1.2.3") && expects("::ffff:10.1.2.3") && expects("fd00::1"));
    assert!(!expects("11.0.0.1") && !expects("2001:db8::1"));
    assert!(!Trust::default().expects_header_from("10.1.2.3".parse().unwrap()));
}

#[tokio::test]
async fn a_header_in_pieces_is_taken_and_the_rest_left() {
    let (mut ours, mut theirs) = tokio::io::duplex(8);
    let sent = b"PROXY TCP4 192.0.2.7 198.51.100.1 5000 443\r\nGET / HTTP/1.1\r\n\r\n";
    let writer = tokio::spawn(async move { theirs.write_all(sent).await });
    let mut buffer = BytesMut::new();
    let header = read(&mut ours, &mut buffer).await.unwrap();
    assert_eq!(header.addresses.unwrap().source, "192.0.2.7:5000".parse().unwrap());
    let mut rest = buffer.to_vec();
    while rest.len() < 18 {
        let mut more = [0; 8];
        let read = tokio::io::AsyncReadExt::read(&mut ours, &mut more).await.unwrap();
        rest.extend(&more[..read]);
    }
    assert_eq!(rest, b"GET / HTTP/1.1\r\n\r\n");
    writer.await.unwrap().unwrap();
}

proptest! {
    /// What the fuzz target looks for longer: no bytes end it, and what it takes it has.
    #[test]
    fn any_bytes_are_taken_or_refused(bytes: Vec<u8>) {
        check_any(&bytes);
        check_any(&[V2_SIGNATURE, bytes.as_slice()].concat());
        check_any(&[b"PROXY TCP4 ", bytes.as_slice()].concat());
    }

    #[test]
    fn a_cut_header_is_incomplete(a: u32, b: u32, c: u16, d: u16, cut in 0..40usize, second: bool) {
        let version = if second { Version::V2 } else { Version::V1 };
        let source = SocketAddr::new(Ipv4Addr::from(a).into(), c);
        let destination = SocketAddr::new(Ipv4Addr::from(b).into(), d);
        let bytes = encode(version, Addresses { source, destination });
        let cut = cut.min(bytes.len() - 1);
        prop_assert_eq!(parse(&bytes[..cut]).unwrap(), Parsed::Incomplete);
        prop_assert_eq!(header(&bytes).addresses, Some(Addresses { source, destination }));
    }
}

fn check_any(bytes: &[u8]) {
    match parse(bytes) {
        Ok(Parsed::Header(header)) => assert!(header.bytes <= bytes.len()),
        Ok(Parsed::Incomplete) => assert!(bytes.len() < V2_BYTES_MAX),
        Err(_) => {}
    }
}
