//! Keys and values of our maps, in bytes.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use telaio_model::{IpFamily, Protocol};

use super::compile::FrontendKey;
use super::layout::Map;
use super::rule::Place;

/// By what a map's services are found.
pub(super) fn place_of(map: Map) -> Place {
    match map {
        Map::NodePorts | Map::NodePortEndpoints | Map::NodePortLasting | Map::NodePortLive => {
            Place::NodePort
        }
        _ => Place::Address,
    }
}

/// Reads a key part by part.
pub(super) struct KeyReader<'a> {
    family: IpFamily,
    bytes: &'a [u8],
}

impl<'a> KeyReader<'a> {
    pub(super) fn new(family: IpFamily, bytes: &'a [u8]) -> Self {
        Self { family, bytes }
    }

    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, _) = self.bytes.split_first_chunk::<N>()?;
        let head = *head;
        self.bytes = self.bytes.get(N.next_multiple_of(4)..).unwrap_or_default();
        Some(head)
    }

    pub(super) fn address(&mut self) -> Option<IpAddr> {
        Some(match self.family {
            IpFamily::V4 => Ipv4Addr::from(self.take::<4>()?).into(),
            IpFamily::V6 => Ipv6Addr::from(self.take::<16>()?).into(),
        })
    }

    pub(super) fn be16(&mut self) -> Option<u16> {
        self.take::<2>().map(u16::from_be_bytes)
    }

    pub(super) fn ne32(&mut self) -> Option<u32> {
        self.take::<4>().map(u32::from_ne_bytes)
    }

    pub(super) fn service(&mut self, place: Place) -> Option<FrontendKey> {
        let address = match place {
            Place::Address => Some(self.address()?),
            Place::NodePort => None,
        };
        let [protocol] = self.take::<1>()?;
        let protocol = match protocol {
            6 => Protocol::Tcp,
            17 => Protocol::Udp,
            132 => Protocol::Sctp,
            _ => return None,
        };
        Some(FrontendKey { family: self.family, address, protocol, port: self.be16()? })
    }
}

/// Appends what a service is found by.
pub(super) fn put_service(bytes: &mut Vec<u8>, key: &FrontendKey) {
    if let Some(address) = key.address {
        put_address(bytes, address);
    }
    bytes.extend_from_slice(&[protocol_number(key.protocol), 0, 0, 0]);
    bytes.extend_from_slice(&key.port.to_be_bytes());
    bytes.extend_from_slice(&[0; 2]);
}

/// An address as it stands in keys and values.
pub(super) fn put_address(bytes: &mut Vec<u8>, ip: IpAddr) {
    match ip {
        IpAddr::V4(ip) => bytes.extend_from_slice(&ip.octets()),
        IpAddr::V6(ip) => bytes.extend_from_slice(&ip.octets()),
    }
}

/// A protocol as it stands in packets.
pub(super) fn protocol_number(protocol: Protocol) -> u8 {
    match protocol {
        Protocol::Tcp => 6,
        Protocol::Udp => 17,
        Protocol::Sctp => 132,
    }
}
