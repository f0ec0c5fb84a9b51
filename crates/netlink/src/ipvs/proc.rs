//! IPVS' table in `/proc`: all services and their servers in one read.
//!
//! ```text
//! IP Virtual Server version 1.2.1 (size=4096)
//! Prot LocalAddress:Port Scheduler Flags
//!   -> RemoteAddress:Port Forward Weight ActiveConn InActConn
//! TCP  0A600001:0050 rr persistent 1080000 FFFFFFFF
//!   -> 0AF40007:1F90      Masq    1      0          0
//! UDP  [fd00:0000:0000:0000:0000:0000:0000:0001]:0035 rr
//! FWM  00000007 wrr
//! ```
//!
//! It does not say all about a service: whether a mark is one of IPv4 or of IPv6 is missing, some flags
//! are, and times are in units that only the kernel knows. So it is read for the servers alone and
//! [`join`]ed with the list of services.

use std::collections::BTreeMap;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::server::{
    Forwarding, Frontend, RealServer, RealServerLoad, Snapshot, VirtualServerState,
};
use crate::error::NetlinkError;

/// The table of the calling thread's namespace.
const PATH: &str = "/proc/thread-self/net/ip_vs";
const DOING: &str = "reading IPVS' table";
/// What it begins with.
const TITLE: &str = "IP Virtual Server ";
/// How many lines come before the first service.
const TITLE_LINES: usize = 3;

/// As far as the table says what a service is known by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Key {
    /// A protocol, an address and a port.
    Address(u8, SocketAddr),
    /// A mark, of whichever family.
    Mark(u32),
}

impl From<&Frontend> for Key {
    fn from(frontend: &Frontend) -> Self {
        match *frontend {
            Frontend::Address { protocol, at } => Self::Address(protocol, at),
            Frontend::Mark { mark, .. } => Self::Mark(mark),
        }
    }
}

/// A service and its servers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Listed<'a> {
    pub(super) key: Key,
    pub(super) scheduler: &'a str,
    pub(super) servers: Vec<RealServerLoad>,
}

pub(super) fn read() -> Result<String, NetlinkError> {
    fs::read_to_string(PATH).map_err(|error| NetlinkError::Socket { doing: DOING, error })
}

/// Reads the table. A line that is not as we know it is an error: half a table would be a lie.
pub(super) fn parse(text: &str) -> Result<Vec<Listed<'_>>, NetlinkError> {
    let malformed = |what| NetlinkError::Malformed { doing: DOING, what };
    if !text.starts_with(TITLE) {
        return Err(malformed("no title"));
    }
    let mut found: Vec<Listed<'_>> = Vec::new();
    for line in text.lines().skip(TITLE_LINES) {
        if let Some(line) = line.strip_prefix("  -> ") {
            let server = server(line).ok_or_else(|| malformed("a server"))?;
            let of = found.last_mut().ok_or_else(|| malformed("a server without its service"))?;
            of.servers.push(server);
        } else {
            found.push(service(line).ok_or_else(|| malformed("a service"))?);
        }
    }
    Ok(found)
}

/// Gives each service its servers. `None` if the two do not fit together, because something changed between
/// reading one and the other, or because a mark is there for both families.
pub(super) fn join(
    services: Vec<VirtualServerState>,
    listed: Vec<Listed<'_>>,
) -> Option<Vec<Snapshot>> {
    let count = listed.len();
    let mut by_key: BTreeMap<Key, Listed<'_>> = listed.into_iter().map(|it| (it.key, it)).collect();
    if by_key.len() != count || services.len() != count {
        return None;
    }
    let each = |VirtualServerState { server, stats }| {
        let listed = by_key.remove(&Key::from(&server.frontend))?;
        let fits = listed.scheduler == server.scheduler;
        fits.then_some(Snapshot { server, stats, servers: listed.servers })
    };
    services.into_iter().map(each).collect()
}

fn service(line: &str) -> Option<Listed<'_>> {
    let mut words = line.split_ascii_whitespace();
    let kind = words.next()?;
    let name = words.next()?;
    let key = match kind {
        "FWM" => Key::Mark(hex(name, 8)?),
        "TCP" => Key::Address(6, place(name)?),
        "UDP" => Key::Address(17, place(name)?),
        "SCTP" => Key::Address(132, place(name)?),
        _ => return None,
    };
    let scheduler = words.next()?;
    let mut flag = words.next();
    if flag == Some("ops") {
        flag = words.next();
    }
    if flag == Some("persistent") {
        words.next()?.parse::<u64>().ok()?;
        hex(words.next()?, 8)?;
        flag = words.next();
    }
    let is_whole = flag.is_none();
    is_whole.then_some(Listed { key, scheduler, servers: Vec::new() })
}

fn server(line: &str) -> Option<RealServerLoad> {
    let mut words = line.split_ascii_whitespace();
    let address = place(words.next()?)?;
    let method = match words.next()? {
        "Masq" => Forwarding::Nat,
        "Local" => Forwarding::Local,
        "Tunnel" => Forwarding::Tunnel,
        "Route" => Forwarding::Direct,
        _ => return None,
    };
    let mut number = || words.next()?.parse().ok();
    let (weight, active, inactive) = (number()?, number()?, number()?);
    let is_whole = words.next().is_none();
    let server = RealServer { address, weight, method };
    is_whole.then_some(RealServerLoad { server, active, inactive })
}

/// An address and a port: `0A600001:0050`, or one of IPv6 in brackets.
fn place(text: &str) -> Option<SocketAddr> {
    let (address, port) = text.rsplit_once(':')?;
    let port = u16::try_from(hex(port, 4)?).ok()?;
    let ip = match address.strip_prefix('[') {
        Some(rest) => IpAddr::V6(rest.strip_suffix(']')?.parse::<Ipv6Addr>().ok()?),
        None => IpAddr::V4(Ipv4Addr::from(hex(address, 8)?)),
    };
    Some((ip, port).into())
}

/// A number of exactly this many digits.
pub(super) fn hex(text: &str, digits: usize) -> Option<u32> {
    let is_number = text.len() == digits && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_number.then(|| u32::from_str_radix(text, 16).ok()).flatten()
}

#[cfg(test)]
mod tests;
