//! The members of the sets that we make.

use std::net::IpAddr;

use ipnet::IpNet;

use super::set::SetKind;
use super::{
    ATTR_DATA, ATTR_LINE, ATTR_MEMBERS, ATTR_SET_NAME, BIG_ENDIAN, IP_V4, IP_V6, MEMBER_IP,
    MEMBER_PORT, MEMBER_PROTOCOL, MESSAGE_BYTES, address, begin,
};
use crate::socket::NLM_F_ACK;
use crate::wire::{Attributes, Writer};

const MEMBER_IP2: u16 = 20;
const MEMBER_PREFIX_LEN2: u16 = 21;
const MEMBER_MARK: u16 = 27;

/// What a member is known by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Key {
    /// Of a [`SetKind::Ip`].
    Ip(IpAddr),
    /// Of a [`SetKind::IpPort`].
    IpPort {
        /// The address.
        ip: IpAddr,
        /// The number of the port's protocol.
        protocol: u8,
        /// The port.
        port: u16,
    },
    /// Of a [`SetKind::IpPortIp`].
    IpPortIp {
        /// The address.
        ip: IpAddr,
        /// The number of the port's protocol.
        protocol: u8,
        /// The port.
        port: u16,
        /// The second address.
        other: IpAddr,
    },
    /// Of a [`SetKind::IpPortNet`].
    IpPortNet {
        /// The address.
        ip: IpAddr,
        /// The number of the port's protocol.
        protocol: u8,
        /// The port.
        port: u16,
        /// The network. The kernel refuses one of all addresses: its two halves are the same.
        net: IpNet,
    },
}

/// A mark that a packet gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mark {
    /// The bits.
    pub value: u32,
    /// Which bits of the packet's mark are replaced.
    pub mask: u32,
}

/// A member.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Entry {
    /// What it is known by.
    pub key: Key,
    /// What a packet gets that the set matches and the target `SET` maps. Only in a set that has marks.
    pub mark: Option<Mark>,
}

impl Entry {
    /// Without a mark.
    pub fn new(key: Key) -> Self {
        Self { key, mark: None }
    }
}

/// Writes one message with as many of the entries as it has room for; how many these are.
pub(super) fn put_many(
    request: &mut Writer,
    message: u16,
    sequence: u32,
    name: &str,
    entries: &[Entry],
) -> usize {
    // Without the flag for that, entries that are there, or are not, are no error.
    begin(request, message, NLM_F_ACK, sequence);
    request.put_str(ATTR_SET_NAME, name);
    // Has room for the line of an entry that is refused.
    request.put_be32(ATTR_LINE, 0);
    let members = request.begin_nest(ATTR_MEMBERS);
    let mut count = 0;
    for entry in entries {
        if request.message_len() >= MESSAGE_BYTES {
            break;
        }
        count += 1;
        let data = request.begin_nest(ATTR_DATA);
        put(request, entry);
        // From 1: without a line the kernel does not say where it stopped.
        request.put_be32(ATTR_LINE, count);
        request.end_nest(data);
    }
    request.end_nest(members);
    request.end();
    count as usize
}

/// Which entry of the message was refused.
pub(super) fn refused_place(request: Attributes<'_>) -> Option<usize> {
    request.be32(ATTR_LINE)?.checked_sub(1).map(|place| place as usize)
}

fn put(request: &mut Writer, entry: &Entry) {
    let place = |request: &mut Writer, ip, protocol, port| {
        put_address(request, MEMBER_IP, ip);
        request.put_be16(MEMBER_PORT | BIG_ENDIAN, port);
        request.put_u8(MEMBER_PROTOCOL, protocol);
    };
    match entry.key {
        Key::Ip(ip) => put_address(request, MEMBER_IP, ip),
        Key::IpPort { ip, protocol, port } => place(request, ip, protocol, port),
        Key::IpPortIp { ip, protocol, port, other } => {
            place(request, ip, protocol, port);
            put_address(request, MEMBER_IP2, other);
        }
        Key::IpPortNet { ip, protocol, port, net } => {
            place(request, ip, protocol, port);
            put_address(request, MEMBER_IP2, net.network());
            request.put_u8(MEMBER_PREFIX_LEN2, net.prefix_len());
        }
    }
    if let Some(Mark { value, mask }) = entry.mark {
        let both = u64::from(value) << 32 | u64::from(mask);
        request.put_be64(MEMBER_MARK | BIG_ENDIAN, both);
    }
}

fn put_address(request: &mut Writer, attribute: u16, ip: IpAddr) {
    let nest = request.begin_nest(attribute);
    match ip {
        IpAddr::V4(ip) => request.put(IP_V4 | BIG_ENDIAN, &ip.octets()),
        IpAddr::V6(ip) => request.put(IP_V6 | BIG_ENDIAN, &ip.octets()),
    }
    request.end_nest(nest);
}

/// The member of a set of this kind. `None` if something is missing.
pub(super) fn read(kind: SetKind, data: Attributes<'_>) -> Option<Entry> {
    let ip = address(data, MEMBER_IP)?;
    let place = || Some((data.u8(MEMBER_PROTOCOL)?, data.be16(MEMBER_PORT)?));
    let key = match kind {
        SetKind::Ip => Key::Ip(ip),
        SetKind::IpPort => {
            let (protocol, port) = place()?;
            Key::IpPort { ip, protocol, port }
        }
        SetKind::IpPortIp => {
            let (protocol, port) = place()?;
            Key::IpPortIp { ip, protocol, port, other: address(data, MEMBER_IP2)? }
        }
        SetKind::IpPortNet => {
            let (protocol, port) = place()?;
            let other = address(data, MEMBER_IP2)?;
            let all = if other.is_ipv4() { 32 } else { 128 };
            let prefix_len = data.u8(MEMBER_PREFIX_LEN2).unwrap_or(all);
            let net = IpNet::new(other, prefix_len).ok()?;
            Key::IpPortNet { ip, protocol, port, net }
        }
    };
    let mark =
        data.be64(MEMBER_MARK).map(|both| Mark { value: (both >> 32) as u32, mask: both as u32 });
    Some(Entry { key, mark })
}
