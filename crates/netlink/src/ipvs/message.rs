//! The attributes of IPVS' messages.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::server::{
    FLAG_HASHED, Forwarding, Frontend, Info, RealServer, RealServerLoad, RealServerState, Stats,
    Timeouts, VirtualServer, VirtualServerState,
};
use crate::wire::{Attributes, Writer, ne32};

pub(super) const NEW_SERVICE: u8 = 1;
pub(super) const SET_SERVICE: u8 = 2;
pub(super) const DELETE_SERVICE: u8 = 3;
pub(super) const GET_SERVICE: u8 = 4;
pub(super) const NEW_SERVER: u8 = 5;
pub(super) const SET_SERVER: u8 = 6;
pub(super) const DELETE_SERVER: u8 = 7;
pub(super) const GET_SERVER: u8 = 8;
pub(super) const SET_CONFIG: u8 = 12;
pub(super) const GET_CONFIG: u8 = 13;
pub(super) const GET_INFO: u8 = 15;

const ATTR_SERVICE: u16 = 1;
const ATTR_SERVER: u16 = 2;
const ATTR_TIMEOUT_TCP: u16 = 4;
const ATTR_TIMEOUT_TCP_FIN: u16 = 5;
const ATTR_TIMEOUT_UDP: u16 = 6;

const INFO_VERSION: u16 = 1;
const INFO_TABLE_SIZE: u16 = 2;

const SERVICE_FAMILY: u16 = 1;
const SERVICE_PROTOCOL: u16 = 2;
const SERVICE_ADDRESS: u16 = 3;
const SERVICE_PORT: u16 = 4;
const SERVICE_MARK: u16 = 5;
const SERVICE_SCHEDULER: u16 = 6;
const SERVICE_FLAGS: u16 = 7;
const SERVICE_TIMEOUT: u16 = 8;
const SERVICE_NETMASK: u16 = 9;
const SERVICE_STATS: u16 = 12;

const SERVER_ADDRESS: u16 = 1;
const SERVER_PORT: u16 = 2;
const SERVER_METHOD: u16 = 3;
const SERVER_WEIGHT: u16 = 4;
const SERVER_UPPER_THRESHOLD: u16 = 5;
const SERVER_LOWER_THRESHOLD: u16 = 6;
const SERVER_ACTIVE: u16 = 7;
const SERVER_INACTIVE: u16 = 8;
const SERVER_PERSISTENT: u16 = 9;
const SERVER_FAMILY: u16 = 11;
const SERVER_STATS: u16 = 12;

const STATS_CONNECTIONS: u16 = 1;
const STATS_PACKETS_IN: u16 = 2;
const STATS_PACKETS_OUT: u16 = 3;
const STATS_BYTES_IN: u16 = 4;
const STATS_BYTES_OUT: u16 = 5;

const V4: u16 = libc::AF_INET as u16;
const V6: u16 = libc::AF_INET6 as u16;
/// Addresses of both families take as much room.
const ADDRESS_LEN: usize = 16;
/// The bits of a server's flags that say how packets come to it.
const METHOD_MASK: u32 = 7;

/// A service, whole.
pub(super) fn put_service(request: &mut Writer, service: &VirtualServer) {
    let nest = request.begin_nest(ATTR_SERVICE);
    put_frontend(request, &service.frontend);
    request.put_str(SERVICE_SCHEDULER, &service.scheduler);
    // The bits, then which of them to take over. A service that says it is in the table is not put there.
    let flags = (service.flags & !FLAG_HASHED).to_ne_bytes();
    let mut flags_and_mask = [0xff; 8];
    flags_and_mask[..4].copy_from_slice(&flags);
    request.put(SERVICE_FLAGS, &flags_and_mask);
    request.put_ne32(SERVICE_TIMEOUT, service.timeout_s);
    let length = service.client_prefix_len;
    if service.frontend.is_v6() {
        request.put_ne32(SERVICE_NETMASK, u32::from(length));
    } else {
        request.put_be32(SERVICE_NETMASK, netmask(length));
    }
    request.end_nest(nest);
}

/// A service by its name alone.
pub(super) fn put_named(request: &mut Writer, frontend: &Frontend) {
    let nest = request.begin_nest(ATTR_SERVICE);
    put_frontend(request, frontend);
    request.end_nest(nest);
}

fn put_frontend(request: &mut Writer, frontend: &Frontend) {
    request.put_ne16(SERVICE_FAMILY, if frontend.is_v6() { V6 } else { V4 });
    match frontend {
        Frontend::Address { protocol, at } => {
            request.put_ne16(SERVICE_PROTOCOL, u16::from(*protocol));
            request.put(SERVICE_ADDRESS, &address_bytes(at.ip()));
            request.put_be16(SERVICE_PORT, at.port());
        }
        Frontend::Mark { mark, .. } => request.put_ne32(SERVICE_MARK, *mark),
    }
}

/// A server, whole.
pub(super) fn put_server(request: &mut Writer, server: &RealServer) {
    let nest = request.begin_nest(ATTR_SERVER);
    put_place(request, server.address);
    request.put_ne32(SERVER_METHOD, method_number(server.method));
    request.put_ne32(SERVER_WEIGHT, server.weight);
    request.put_ne32(SERVER_UPPER_THRESHOLD, 0);
    request.put_ne32(SERVER_LOWER_THRESHOLD, 0);
    request.end_nest(nest);
}

/// A server by its name alone.
pub(super) fn put_server_name(request: &mut Writer, at: SocketAddr) {
    let nest = request.begin_nest(ATTR_SERVER);
    put_place(request, at);
    request.end_nest(nest);
}

fn put_place(request: &mut Writer, at: SocketAddr) {
    request.put(SERVER_ADDRESS, &address_bytes(at.ip()));
    request.put_be16(SERVER_PORT, at.port());
    request.put_ne16(SERVER_FAMILY, if at.is_ipv6() { V6 } else { V4 });
}

pub(super) fn put_timeouts(request: &mut Writer, timeouts: &Timeouts) {
    request.put_ne32(ATTR_TIMEOUT_TCP, timeouts.tcp_s);
    request.put_ne32(ATTR_TIMEOUT_TCP_FIN, timeouts.tcp_fin_s);
    request.put_ne32(ATTR_TIMEOUT_UDP, timeouts.udp_s);
}

pub(super) fn timeouts(attributes: Attributes<'_>) -> Option<Timeouts> {
    Some(Timeouts {
        tcp_s: attributes.ne32(ATTR_TIMEOUT_TCP)?,
        tcp_fin_s: attributes.ne32(ATTR_TIMEOUT_TCP_FIN)?,
        udp_s: attributes.ne32(ATTR_TIMEOUT_UDP)?,
    })
}

pub(super) fn info(attributes: Attributes<'_>) -> Option<Info> {
    let [_, major, minor, patch] = attributes.ne32(INFO_VERSION)?.to_be_bytes();
    let connection_table_size = attributes.ne32(INFO_TABLE_SIZE)?;
    Some(Info { version: (major, minor, patch), connection_table_size })
}

/// The service that a message tells of.
pub(super) fn service(attributes: Attributes<'_>) -> Option<VirtualServerState> {
    let service = attributes.nested(ATTR_SERVICE)?;
    let frontend = frontend(service)?;
    let mask = service.get(SERVICE_NETMASK)?;
    let client_prefix_len = if frontend.is_v6() {
        u8::try_from(ne32(mask)?).ok()?
    } else {
        u32::from_be_bytes(mask.get(..4)?.try_into().ok()?).leading_ones() as u8
    };
    let server = VirtualServer {
        frontend,
        scheduler: service.str(SERVICE_SCHEDULER)?.to_owned(),
        flags: service.ne32(SERVICE_FLAGS)? & !FLAG_HASHED,
        timeout_s: service.ne32(SERVICE_TIMEOUT)?,
        client_prefix_len,
    };
    Some(VirtualServerState { server, stats: stats(service.nested(SERVICE_STATS)) })
}

fn frontend(service: Attributes<'_>) -> Option<Frontend> {
    let family = service.ne16(SERVICE_FAMILY)?;
    if let Some(mark) = service.ne32(SERVICE_MARK) {
        return Some(Frontend::Mark { is_v6: family == V6, mark });
    }
    let ip = address(family, service.get(SERVICE_ADDRESS)?)?;
    let protocol = u8::try_from(service.ne16(SERVICE_PROTOCOL)?).ok()?;
    Some(Frontend::Address { protocol, at: (ip, service.be16(SERVICE_PORT)?).into() })
}

/// The server that a message tells of. Older kernels do not say its family: it is its service's.
pub(super) fn server(attributes: Attributes<'_>, is_v6: bool) -> Option<RealServerState> {
    let server = attributes.nested(ATTR_SERVER)?;
    let family = server.ne16(SERVER_FAMILY).unwrap_or(if is_v6 { V6 } else { V4 });
    let ip = address(family, server.get(SERVER_ADDRESS)?)?;
    let load = RealServerLoad {
        server: RealServer {
            address: (ip, server.be16(SERVER_PORT)?).into(),
            weight: server.ne32(SERVER_WEIGHT)?,
            method: method(server.ne32(SERVER_METHOD)?)?,
        },
        active: server.ne32(SERVER_ACTIVE)?,
        inactive: server.ne32(SERVER_INACTIVE)?,
    };
    Some(RealServerState {
        load,
        persistent: server.ne32(SERVER_PERSISTENT)?,
        upper_threshold: server.ne32(SERVER_UPPER_THRESHOLD)?,
        lower_threshold: server.ne32(SERVER_LOWER_THRESHOLD)?,
        stats: stats(server.nested(SERVER_STATS)),
    })
}

/// What was counted; nothing where an older kernel has no wide counters.
fn stats(stats: Option<Attributes<'_>>) -> Stats {
    let count = |attribute| {
        let bytes = stats.and_then(|stats| stats.get(attribute)?.get(..8)?.try_into().ok());
        bytes.map_or(0, u64::from_ne_bytes)
    };
    Stats {
        connections: count(STATS_CONNECTIONS),
        packets_in: count(STATS_PACKETS_IN),
        packets_out: count(STATS_PACKETS_OUT),
        bytes_in: count(STATS_BYTES_IN),
        bytes_out: count(STATS_BYTES_OUT),
    }
}

fn method_number(method: Forwarding) -> u32 {
    match method {
        Forwarding::Nat => 0,
        Forwarding::Local => 1,
        Forwarding::Tunnel => 2,
        Forwarding::Direct => 3,
        Forwarding::Bypass => 4,
    }
}

fn method(number: u32) -> Option<Forwarding> {
    Some(match number & METHOD_MASK {
        0 => Forwarding::Nat,
        1 => Forwarding::Local,
        2 => Forwarding::Tunnel,
        3 => Forwarding::Direct,
        4 => Forwarding::Bypass,
        _ => return None,
    })
}

fn netmask(prefix_len: u8) -> u32 {
    u32::MAX.checked_shl(32_u32.saturating_sub(u32::from(prefix_len))).unwrap_or(0)
}

fn address_bytes(ip: IpAddr) -> [u8; ADDRESS_LEN] {
    match ip {
        IpAddr::V4(ip) => {
            let mut bytes = [0; ADDRESS_LEN];
            bytes[..4].copy_from_slice(&ip.octets());
            bytes
        }
        IpAddr::V6(ip) => ip.octets(),
    }
}

fn address(family: u16, bytes: &[u8]) -> Option<IpAddr> {
    Some(match family {
        V4 => Ipv4Addr::from(<[u8; 4]>::try_from(bytes.get(..4)?).ok()?).into(),
        V6 => Ipv6Addr::from(<[u8; 16]>::try_from(bytes.get(..16)?).ok()?).into(),
        _ => return None,
    })
}

#[cfg(test)]
mod tests;
