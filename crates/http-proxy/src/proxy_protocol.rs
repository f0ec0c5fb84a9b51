//! The PROXY protocol, versions 1 and 2: who is behind a load balancer that only forwards bytes.
//!
//! [`parse`] reads a header from the front of a connection, [`encode`] makes one for an upstream
//! that asked for it. Both are pure; [`read`] takes a header off a socket.
//!
//! The protocol says that a receiver must not guess, because whoever may speak it may claim any
//! address. So whether it is spoken is decided by the peer's address alone ([`Trust`]): from the
//! given ranges a connection must begin with a header, from elsewhere it must not, and then its bytes
//! are an HTTP client's like any other.
//!
//! ```
//! use telaio_http_proxy::proxy_protocol::{Parsed, parse};
//! let bytes = b"PROXY TCP4 192.0.2.7 198.51.100.1 5000 443\r\nGET / HTTP/1.1\r\n";
//! let Ok(Parsed::Header(header)) = parse(bytes) else { panic!("it is whole") };
//! assert_eq!(header.bytes, 44);
//! assert_eq!(header.addresses.unwrap().source, "192.0.2.7:5000".parse().unwrap());
//! ```

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use bytes::{BufMut, BytesMut};
use ipnet::IpNet;
use tokio::io::{AsyncRead, AsyncReadExt};

/// The longest line of version 1, with its end.
const V1_BYTES_MAX: usize = 107;
/// What version 2 begins with.
const V2_SIGNATURE: &[u8; 12] = b"\r\n\r\n\0\r\nQUIT\n";
/// Signature, version and command, family and transport, length.
const V2_FIXED_BYTES: usize = 16;
/// The longest header of version 2 that is read. The protocol allows 64 KiB of additions that
/// nobody sends; a certificate's name and a few identifiers fit.
const V2_BYTES_MAX: usize = 4096;
/// The addition that has a checksum over the whole header.
const TLV_CRC32C: u8 = 0x03;

/// Which version to send.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Version {
    /// One line of text.
    V1,
    /// Binary.
    V2,
}

/// Both ends of the connection that the load balancer took.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Addresses {
    /// The client.
    pub source: SocketAddr,
    /// What the client connected to.
    pub destination: SocketAddr,
}

/// A header that was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// How long it is; what follows belongs to the connection.
    pub bytes: usize,
    /// `None` when the sender speaks for itself (a health check) or does not know: then the
    /// socket's own addresses hold.
    pub addresses: Option<Addresses>,
}

/// What the front of a connection is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Parsed {
    /// A whole header.
    Header(Header),
    /// The beginning of one.
    Incomplete,
}

/// Why a connection that must begin with a header does not.
#[derive(Debug, thiserror::Error)]
pub enum ProxyProtocolError {
    /// Something else came.
    #[error(
        "it does not begin with a PROXY header: either the sender's address is wrongly among the \
         trusted ranges, or the load balancer does not send the PROXY protocol"
    )]
    Missing,
    /// It began as one.
    #[error("its PROXY header is wrong: {0}")]
    Wrong(&'static str),
    /// The sender went away.
    #[error("it ended within its PROXY header")]
    Ended,
    /// The socket failed.
    #[error("reading its PROXY header: {0}")]
    Io(#[from] std::io::Error),
}

/// From whom a header is expected.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Trust {
    ranges: Vec<IpNet>,
}

impl Trust {
    /// Peers in `ranges` begin with a header; nobody else does.
    pub fn new(ranges: Vec<IpNet>) -> Self {
        Self { ranges }
    }

    /// Whether this peer's connections begin with a header.
    pub fn expects_header_from(&self, peer: IpAddr) -> bool {
        let peer = peer.to_canonical();
        self.ranges.iter().any(|range| range.contains(&peer))
    }
}

/// Reads a header from the front of `bytes`.
pub fn parse(bytes: &[u8]) -> Result<Parsed, ProxyProtocolError> {
    let shown = bytes.len().min(V2_SIGNATURE.len());
    if bytes[..shown] == V2_SIGNATURE[..shown] {
        return parse_v2(bytes);
    }
    let shown = bytes.len().min(6);
    if bytes[..shown] == b"PROXY "[..shown] {
        return parse_v1(bytes);
    }
    Err(ProxyProtocolError::Missing)
}

fn parse_v1(bytes: &[u8]) -> Result<Parsed, ProxyProtocolError> {
    let window = &bytes[..bytes.len().min(V1_BYTES_MAX)];
    let Some(end) = window.windows(2).position(|pair| pair == b"\r\n") else {
        return if bytes.len() < V1_BYTES_MAX {
            Ok(Parsed::Incomplete)
        } else {
            Err(ProxyProtocolError::Wrong("the line does not end within 107 bytes"))
        };
    };
    let line = std::str::from_utf8(&window[..end])
        .map_err(|_| ProxyProtocolError::Wrong("the line is not text"))?;
    let header = |addresses| Ok(Parsed::Header(Header { bytes: end + 2, addresses }));
    let mut words = line.split(' ').skip(1);
    let family = words.next().unwrap_or_default();
    if family == "UNKNOWN" {
        return header(None);
    }
    let rest: Vec<&str> = words.take(5).collect();
    let &[source, destination, source_port, destination_port] = rest.as_slice() else {
        return Err(ProxyProtocolError::Wrong("it needs two addresses and two ports"));
    };
    let address = |text: &str| -> Option<IpAddr> {
        match family {
            "TCP4" => text.parse::<Ipv4Addr>().ok().map(IpAddr::V4),
            "TCP6" => text.parse::<Ipv6Addr>().ok().map(IpAddr::V6),
            _ => None,
        }
    };
    let both = |(ip, port): (&str, &str)| Some(SocketAddr::new(address(ip)?, v1_port(port)?));
    match (both((source, source_port)), both((destination, destination_port))) {
        (Some(source), Some(destination)) => header(Some(Addresses { source, destination })),
        _ => Err(ProxyProtocolError::Wrong("family, address or port cannot be read")),
    }
}

/// A port without sign or leading zero, as the protocol has it.
fn v1_port(text: &str) -> Option<u16> {
    let plain = text.bytes().all(|byte| byte.is_ascii_digit());
    let padded = text.len() > 1 && text.starts_with('0');
    if plain && !padded { text.parse().ok() } else { None }
}

fn parse_v2(bytes: &[u8]) -> Result<Parsed, ProxyProtocolError> {
    let Some(fixed) = bytes.first_chunk::<V2_FIXED_BYTES>() else { return Ok(Parsed::Incomplete) };
    let (version_command, family_transport) = (fixed[12], fixed[13]);
    let rest = usize::from(u16::from_be_bytes([fixed[14], fixed[15]]));
    if version_command >> 4 != 2 {
        return Err(ProxyProtocolError::Wrong("the binary form has a version other than 2"));
    }
    let length = V2_FIXED_BYTES + rest;
    if length > V2_BYTES_MAX {
        return Err(ProxyProtocolError::Wrong("it is longer than 4096 bytes"));
    }
    let Some(whole) = bytes.get(..length) else { return Ok(Parsed::Incomplete) };
    let body = &whole[V2_FIXED_BYTES..];
    // The sender speaks for itself, or about something that is not TCP: what it says of addresses
    // is to be skipped.
    let (addresses, additions) = match (version_command & 0x0f, family_transport) {
        (1, 0x11) => v2_addresses::<4>(body)?,
        (1, 0x21) => v2_addresses::<16>(body)?,
        (0 | 1, _) => (None, None),
        _ => return Err(ProxyProtocolError::Wrong("its command is neither LOCAL nor PROXY")),
    };
    if let Some(additions) = additions {
        check_additions(whole, additions)?;
    }
    Ok(Parsed::Header(Header { bytes: length, addresses }))
}

type V2Body = (Option<Addresses>, Option<usize>);

/// The addresses of `N` bytes each, and where the additions begin within the header.
fn v2_addresses<const N: usize>(body: &[u8]) -> Result<V2Body, ProxyProtocolError> {
    let needed = 2 * N + 4;
    let Some(block) = body.get(..needed) else {
        return Err(ProxyProtocolError::Wrong("it is too short for its addresses"));
    };
    let ip = |bytes: &[u8]| match bytes {
        &[a, b, c, d] => IpAddr::from([a, b, c, d]),
        long => <[u8; 16]>::try_from(long).map_or(Ipv6Addr::UNSPECIFIED, Ipv6Addr::from).into(),
    };
    let port = |at: usize| u16::from_be_bytes([block[at], block[at + 1]]);
    let source = SocketAddr::new(ip(&block[..N]), port(2 * N));
    let destination = SocketAddr::new(ip(&block[N..2 * N]), port(2 * N + 2));
    Ok((Some(Addresses { source, destination }), Some(V2_FIXED_BYTES + needed)))
}

/// Additions must fill the header exactly, and a checksum among them must be right.
fn check_additions(header: &[u8], mut at: usize) -> Result<(), ProxyProtocolError> {
    while at < header.len() {
        let Some(&[kind, high, low]) = header.get(at..at + 3) else {
            return Err(ProxyProtocolError::Wrong("an addition is cut off"));
        };
        let (start, length) = (at + 3, usize::from(u16::from_be_bytes([high, low])));
        let Some(value) = header.get(start..start + length) else {
            return Err(ProxyProtocolError::Wrong("an addition is longer than the header"));
        };
        if kind == TLV_CRC32C {
            let Ok(said) = <[u8; 4]>::try_from(value) else {
                return Err(ProxyProtocolError::Wrong("its checksum is not four bytes"));
            };
            if u32::from_be_bytes(said) != crc32c_without(header, start..start + length) {
                return Err(ProxyProtocolError::Wrong("its checksum is wrong"));
            }
        }
        at = start + length;
    }
    Ok(())
}

/// CRC-32C of `bytes` with zeros where the checksum itself stands.
fn crc32c_without(bytes: &[u8], hole: std::ops::Range<usize>) -> u32 {
    let mut crc = u32::MAX;
    for (at, byte) in bytes.iter().enumerate() {
        crc ^= u32::from(if hole.contains(&at) { 0 } else { *byte });
        for _ in 0..8 {
            crc = if crc & 1 == 1 { (crc >> 1) ^ 0x82f6_3b78 } else { crc >> 1 };
        }
    }
    !crc
}

/// Takes a header off the front of a connection. What was read beyond it stays in `buffer`, and
/// belongs to the connection.
pub async fn read(
    io: &mut (impl AsyncRead + Unpin),
    buffer: &mut BytesMut,
) -> Result<Header, ProxyProtocolError> {
    loop {
        // An empty buffer is the beginning of everything.
        if let Parsed::Header(header) = parse(buffer)? {
            bytes::Buf::advance(buffer, header.bytes);
            return Ok(header);
        }
        // `parse` ends with an error before this grows beyond its limits.
        if io.read_buf(buffer).await? == 0 {
            return Err(ProxyProtocolError::Ended);
        }
    }
}

/// Makes the header for a connection that is forwarded.
///
/// Addresses of two families cannot stand in one header; then it says that they are not known, in
/// version 1 as `UNKNOWN`, in version 2 as `LOCAL`.
pub fn encode(version: Version, addresses: Addresses) -> BytesMut {
    let mut out = BytesMut::with_capacity(V1_BYTES_MAX);
    let source = addresses.source.ip().to_canonical();
    let destination = addresses.destination.ip().to_canonical();
    let (from, to) = (addresses.source.port(), addresses.destination.port());
    match version {
        Version::V1 => {
            let line = match (source, destination) {
                (IpAddr::V4(_), IpAddr::V4(_)) => {
                    format!("PROXY TCP4 {source} {destination} {from} {to}\r\n")
                }
                (IpAddr::V6(_), IpAddr::V6(_)) => {
                    format!("PROXY TCP6 {source} {destination} {from} {to}\r\n")
                }
                _ => "PROXY UNKNOWN\r\n".to_owned(),
            };
            out.put_slice(line.as_bytes());
        }
        Version::V2 => {
            out.put_slice(V2_SIGNATURE);
            match (source, destination) {
                (IpAddr::V4(source), IpAddr::V4(destination)) => {
                    out.put_slice(&[0x21, 0x11, 0, 12]);
                    out.put_slice(&source.octets());
                    out.put_slice(&destination.octets());
                }
                (IpAddr::V6(source), IpAddr::V6(destination)) => {
                    out.put_slice(&[0x21, 0x21, 0, 36]);
                    out.put_slice(&source.octets());
                    out.put_slice(&destination.octets());
                }
                _ => {
                    out.put_slice(&[0x20, 0, 0, 0]);
                    return out;
                }
            }
            out.put_u16(from);
            out.put_u16(to);
        }
    }
    out
}

#[cfg(test)]
mod tests;
