//! Routes.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::{family_of, put_ip};
use crate::addresses::ip_of;
use crate::links::LinkIndex;
use crate::wire::{Attributes, Message, Writer, ne32};

pub(super) const RTM_NEWROUTE: u16 = 24;
pub(super) const RTM_DELROUTE: u16 = 25;
const RTM_GETROUTE: u16 = 26;
/// `struct rtmsg`: family, lengths of destination and source, service, table, protocol, scope, type, flags.
const ROUTE_HEADER_LEN: usize = 12;
const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
const RTA_GATEWAY: u16 = 5;
const RTA_PRIORITY: u16 = 6;
const RTA_PREFSRC: u16 = 7;
const RTA_MULTIPATH: u16 = 9;
const RTA_TABLE: u16 = 15;
const TABLE_MAIN: u8 = libc::RT_TABLE_MAIN;
const TYPE_UNICAST: u8 = libc::RTN_UNICAST;
const FLAG_ONLINK: u32 = 4;
/// A route that the kernel keeps for itself while it uses it.
const FLAG_CLONED: u32 = 0x200;

/// How far away a destination is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scope {
    /// Behind others.
    Universe,
    /// On the link itself.
    Link,
}

/// A unicast route of the main table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Route {
    /// The network's address; of a default route all zeros.
    pub destination: IpAddr,
    /// How much of it counts.
    pub prefix_len: u8,
    /// Who carries it on.
    pub gateway: Option<IpAddr>,
    /// By which link.
    pub link: LinkIndex,
    /// The gateway is on the link, whatever addresses the link has.
    pub is_onlink: bool,
    /// How far away it is.
    pub scope: Scope,
    /// The address of ours that is used.
    pub source: Option<IpAddr>,
    /// Who made it: a number that programs choose for themselves. Removing, 0 is anybody.
    pub protocol: u8,
    /// The least wins; 0 lets the kernel choose.
    pub metric: u32,
}

impl Route {
    /// A route to everything of an address's family.
    pub fn default_by(gateway: IpAddr, link: LinkIndex) -> Self {
        let destination = match gateway {
            IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        Self::by(destination, 0, gateway, link)
    }

    /// A route by a gateway.
    pub fn by(destination: IpAddr, prefix_len: u8, gateway: IpAddr, link: LinkIndex) -> Self {
        let gateway = Some(gateway);
        Self { gateway, scope: Scope::Universe, ..Self::on(destination, prefix_len, link) }
    }

    /// A route to what is on the link itself.
    pub fn on(destination: IpAddr, prefix_len: u8, link: LinkIndex) -> Self {
        Self {
            destination,
            prefix_len,
            gateway: None,
            link,
            is_onlink: false,
            scope: Scope::Link,
            source: None,
            protocol: libc::RTPROT_BOOT,
            metric: 0,
        }
    }

    pub(super) fn write(&self, writer: &mut Writer, message: u16, flags: u16, sequence: u32) {
        let mut header = [0; ROUTE_HEADER_LEN];
        header[0] = family_of(self.destination);
        header[1] = self.prefix_len;
        header[4] = TABLE_MAIN;
        header[5] = self.protocol;
        header[6] = match self.scope {
            // IPv6 knows no scopes.
            Scope::Link if self.destination.is_ipv4() => libc::RT_SCOPE_LINK,
            _ => libc::RT_SCOPE_UNIVERSE,
        };
        header[7] = TYPE_UNICAST;
        if self.is_onlink {
            header[8..].copy_from_slice(&FLAG_ONLINK.to_ne_bytes());
        }
        writer.begin(message, flags, sequence, &header);
        if self.prefix_len > 0 {
            put_ip(writer, RTA_DST, self.destination);
        }
        if let Some(gateway) = self.gateway {
            put_ip(writer, RTA_GATEWAY, gateway);
        }
        writer.put_ne32(RTA_OIF, self.link.0);
        if let Some(source) = self.source {
            put_ip(writer, RTA_PREFSRC, source);
        }
        if self.metric != 0 {
            writer.put_ne32(RTA_PRIORITY, self.metric);
        }
        writer.end();
    }
}

pub(super) fn list_request(writer: &mut Writer, flags: u16, sequence: u32) {
    writer.begin(RTM_GETROUTE, flags, sequence, &[0; ROUTE_HEADER_LEN]);
    writer.end();
}

/// `struct rtnexthop`: length, flags, hops, the link's number; attributes follow.
const NEXT_HOP_LEN: usize = 8;

/// The route that a message tells of: unicast, of the main table. Of one by several links it is the first.
pub(super) fn route(message: &Message<'_>) -> Option<Route> {
    let header = message.body.get(..ROUTE_HEADER_LEN)?;
    let attributes = message.attributes(ROUTE_HEADER_LEN);
    let flags = u32::from_ne_bytes(header[8..12].try_into().ok()?);
    let table = attributes.ne32(RTA_TABLE).unwrap_or(u32::from(header[4]));
    let is_main = table == u32::from(TABLE_MAIN) && header[7] == TYPE_UNICAST;
    if message.message_type != RTM_NEWROUTE || !is_main || flags & FLAG_CLONED != 0 {
        return None;
    }
    let is_ipv4 = header[0] == libc::AF_INET as u8;
    if !is_ipv4 && header[0] != libc::AF_INET6 as u8 {
        return None;
    }
    let first = attributes.get(RTA_MULTIPATH).and_then(first_hop);
    let (link, gateway) = match attributes.ne32(RTA_OIF) {
        Some(link) => (link, attributes.get(RTA_GATEWAY).and_then(ip_of)),
        None => first?,
    };
    let any: IpAddr =
        if is_ipv4 { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    Some(Route {
        destination: attributes.get(RTA_DST).and_then(ip_of).unwrap_or(any),
        prefix_len: header[1],
        gateway,
        link: LinkIndex(link),
        is_onlink: flags & FLAG_ONLINK != 0,
        scope: if header[6] == libc::RT_SCOPE_LINK { Scope::Link } else { Scope::Universe },
        source: attributes.get(RTA_PREFSRC).and_then(ip_of),
        protocol: header[5],
        metric: attributes.ne32(RTA_PRIORITY).unwrap_or(0),
    })
}

/// The link and the gateway of the first of several ways.
fn first_hop(hops: &[u8]) -> Option<(u32, Option<IpAddr>)> {
    let len = usize::from(u16::from_ne_bytes(hops.get(..2)?.try_into().ok()?));
    let link = hops.get(4..).and_then(ne32)?;
    let attributes = Attributes(hops.get(NEXT_HOP_LEN..len)?);
    Some((link, attributes.get(RTA_GATEWAY).and_then(ip_of)))
}
