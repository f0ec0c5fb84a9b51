//! The kernel's table of flows: listing it, and forgetting one flow.
//!
//! A list is never held in memory: each flow is given to a closure as it comes. Newer kernels do the
//! selecting; what an older one tells beside it is passed over here, so the answer is the same.
//!
//! Only flows of protocols with ports are told of: TCP, UDP, SCTP and the like.
//!
//! ```no_run
//! use telaio_netlink::conntrack::{Conntrack, Family, Selection, UDP};
//!
//! # fn main() -> Result<(), telaio_netlink::NetlinkError> {
//! let (mut list, mut delete) = (Conntrack::open()?, Conntrack::open()?);
//! let dns = Selection { protocol: Some(UDP), ..Selection::family(Family::V4) };
//! list.each(dns, |flow| {
//!     if flow.original.destination.port() == 53 {
//!         delete.delete(flow)?;
//!     }
//!     Ok(())
//! })
//! # }
//! ```

use std::net::{IpAddr, SocketAddr};

use crate::addresses::ip_of;
use crate::error::NetlinkError;
use crate::socket::{NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST, Protocol, Socket};
use crate::wire::{Attributes, Message, Writer};

#[cfg(test)]
mod tests;

/// UDP's number among the protocols over IP.
pub const UDP: u8 = 17;
/// TCP's number.
pub const TCP: u8 = 6;

/// Packets were seen in both directions.
pub const STATUS_SEEN_REPLY: u32 = 1 << 1;
/// The flow has been used both ways for long enough to be kept under pressure; with TCP, the connection stands.
pub const STATUS_ASSURED: u32 = 1 << 2;
/// The destination is changed.
pub const STATUS_DESTINATION_NAT: u32 = 1 << 5;

const SUBSYSTEM: u16 = 1 << 8;
const MESSAGE_NEW: u16 = SUBSYSTEM;
const MESSAGE_GET: u16 = SUBSYSTEM | 1;
const MESSAGE_DELETE: u16 = SUBSYSTEM | 2;

const CTA_TUPLE_ORIG: u16 = 1;
const CTA_TUPLE_REPLY: u16 = 2;
const CTA_STATUS: u16 = 3;
const CTA_PROTOINFO: u16 = 4;
const CTA_ID: u16 = 12;
const CTA_ZONE: u16 = 18;
const CTA_FILTER: u16 = 25;
const CTA_STATUS_MASK: u16 = 26;
const CTA_PROTOINFO_TCP: u16 = 1;
const CTA_PROTOINFO_TCP_STATE: u16 = 1;
const TCP_ESTABLISHED: u8 = 3;
const CTA_TUPLE_IP: u16 = 1;
const CTA_TUPLE_PROTO: u16 = 2;
const CTA_IP_V4_SRC: u16 = 1;
const CTA_IP_V4_DST: u16 = 2;
const CTA_IP_V6_SRC: u16 = 3;
const CTA_IP_V6_DST: u16 = 4;
const CTA_PROTO_NUM: u16 = 1;
const CTA_PROTO_SRC_PORT: u16 = 2;
const CTA_PROTO_DST_PORT: u16 = 3;
const CTA_FILTER_ORIG_FLAGS: u16 = 1;
const CTA_FILTER_REPLY_FLAGS: u16 = 2;
/// Of the original tuple, the kernel compares the protocol's number.
const FILTER_PROTOCOL: u32 = 1 << 3;

/// `struct nfgenmsg`: family, version, resource.
const FAMILY_HEADER_LEN: usize = 4;

/// The family of a flow's addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Family {
    /// The family of an address.
    pub fn of(ip: IpAddr) -> Self {
        if ip.is_ipv4() { Self::V4 } else { Self::V6 }
    }

    fn number(self) -> u8 {
        match self {
            Self::V4 => libc::AF_INET as u8,
            Self::V6 => libc::AF_INET6 as u8,
        }
    }
}

/// Where packets of a flow come from and go to, in one direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tuple {
    /// From.
    pub source: SocketAddr,
    /// To.
    pub destination: SocketAddr,
    /// The number of the protocol over IP.
    pub protocol: u8,
}

/// A flow that the kernel keeps in mind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Flow {
    /// As the one who began it sends.
    pub original: Tuple,
    /// As answers come, before they are changed back: the source is who really serves the flow.
    pub reply: Tuple,
    /// Bits; see [`STATUS_DESTINATION_NAT`] and its neighbours.
    pub status: u32,
    /// The zone of the table, mostly 0.
    pub zone: u16,
    /// Tells it from a later flow with the same addresses.
    pub id: Option<u32>,
    /// With TCP, the kernel's number for how far the connection is.
    pub tcp_state: Option<u8>,
}

impl Flow {
    /// Its destination is changed on the way.
    pub fn is_destination_nat(&self) -> bool {
        self.status & STATUS_DESTINATION_NAT != 0
    }

    /// It is open: a TCP connection that stands, or another flow that was answered.
    pub fn is_open(&self) -> bool {
        match self.tcp_state {
            Some(state) => state == TCP_ESTABLISHED,
            None => self.status & STATUS_SEEN_REPLY != 0,
        }
    }
}

/// Which flows to list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Selection {
    /// Those of this family.
    pub family: Family,
    /// Those of this protocol.
    pub protocol: Option<u8>,
    /// Those that have all of these status bits; 0: whatever they have.
    pub status: u32,
}

impl Selection {
    /// All flows of a family.
    pub fn family(family: Family) -> Self {
        Self { family, protocol: None, status: 0 }
    }

    fn contains(self, flow: &Flow) -> bool {
        Family::of(flow.original.source.ip()) == self.family
            && self.protocol.is_none_or(|protocol| flow.original.protocol == protocol)
            && flow.status & self.status == self.status
    }
}

/// A connection to the table of the network namespace in which it was opened.
#[derive(Debug)]
pub struct Conntrack {
    socket: Socket,
}

impl Conntrack {
    /// Opens one.
    pub fn open() -> Result<Self, NetlinkError> {
        Ok(Self { socket: Socket::open(Protocol::Netfilter)? })
    }

    /// Gives each flow to `each` while the list is read. To delete meanwhile, use another
    /// `Conntrack`. After an error of `each` this one is of no further use: the rest of the list is
    /// on its way.
    pub fn each(
        &mut self,
        selection: Selection,
        mut each: impl FnMut(&Flow) -> Result<(), NetlinkError>,
    ) -> Result<(), NetlinkError> {
        let doing = "listing tracked flows";
        let sequence = self.socket.next_sequence();
        let request = list_request(selection, sequence);
        self.socket.send(request.finish()?, doing)?;
        self.socket.list(sequence, doing, |message| match flow_of(message) {
            Some(flow) if selection.contains(&flow) => each(&flow),
            _ => Ok(()),
        })
    }

    /// Forgets a flow; the next packet begins a new one. `false` if it was gone already.
    pub fn delete(&mut self, flow: &Flow) -> Result<bool, NetlinkError> {
        let doing = "deleting a tracked flow";
        let sequence = self.socket.next_sequence();
        let family = Family::of(flow.original.source.ip());
        let mut request = Writer::new();
        begin(&mut request, MESSAGE_DELETE, NLM_F_ACK, sequence, family);
        put_tuple(&mut request, &flow.original);
        if flow.zone != 0 {
            request.put_be16(CTA_ZONE, flow.zone);
        }
        if let Some(id) = flow.id {
            request.put_be32(CTA_ID, id);
        }
        request.end();
        self.socket.send(request.finish()?, doing)?;
        match self.socket.acknowledge(sequence, sequence, doing) {
            Ok(()) => Ok(true),
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

fn begin(request: &mut Writer, message: u16, flags: u16, sequence: u32, family: Family) {
    request.begin(message, NLM_F_REQUEST | flags, sequence, &[family.number(), 0, 0, 0]);
}

fn list_request(selection: Selection, sequence: u32) -> Writer {
    let mut request = Writer::new();
    begin(&mut request, MESSAGE_GET, NLM_F_DUMP, sequence, selection.family);
    if let Some(protocol) = selection.protocol {
        put_protocol_filter(&mut request, protocol);
    }
    if selection.status != 0 {
        request.put_be32(CTA_STATUS, selection.status);
        request.put_be32(CTA_STATUS_MASK, selection.status);
    }
    request.end();
    request
}

fn put_protocol_filter(request: &mut Writer, protocol: u8) {
    let tuple = request.begin_nest(CTA_TUPLE_ORIG);
    let proto = request.begin_nest(CTA_TUPLE_PROTO);
    request.put_u8(CTA_PROTO_NUM, protocol);
    request.end_nest(proto);
    request.end_nest(tuple);
    let filter = request.begin_nest(CTA_FILTER);
    request.put_ne32(CTA_FILTER_ORIG_FLAGS, FILTER_PROTOCOL);
    request.put_ne32(CTA_FILTER_REPLY_FLAGS, 0);
    request.end_nest(filter);
}

fn put_tuple(request: &mut Writer, tuple: &Tuple) {
    let nest = request.begin_nest(CTA_TUPLE_ORIG);
    let addresses = request.begin_nest(CTA_TUPLE_IP);
    put_ip(request, tuple.source.ip(), CTA_IP_V4_SRC, CTA_IP_V6_SRC);
    put_ip(request, tuple.destination.ip(), CTA_IP_V4_DST, CTA_IP_V6_DST);
    request.end_nest(addresses);
    let proto = request.begin_nest(CTA_TUPLE_PROTO);
    request.put_u8(CTA_PROTO_NUM, tuple.protocol);
    request.put_be16(CTA_PROTO_SRC_PORT, tuple.source.port());
    request.put_be16(CTA_PROTO_DST_PORT, tuple.destination.port());
    request.end_nest(proto);
    request.end_nest(nest);
}

fn put_ip(request: &mut Writer, ip: IpAddr, v4: u16, v6: u16) {
    match ip {
        IpAddr::V4(ip) => request.put(v4, &ip.octets()),
        IpAddr::V6(ip) => request.put(v6, &ip.octets()),
    }
}

/// `None` for a message that is no flow, or a flow without ports.
fn flow_of(message: &Message<'_>) -> Option<Flow> {
    if message.message_type != MESSAGE_NEW {
        return None;
    }
    let attributes = message.attributes(FAMILY_HEADER_LEN);
    Some(Flow {
        original: tuple_of(attributes.nested(CTA_TUPLE_ORIG)?)?,
        reply: tuple_of(attributes.nested(CTA_TUPLE_REPLY)?)?,
        status: attributes.be32(CTA_STATUS).unwrap_or(0),
        zone: attributes.be16(CTA_ZONE).unwrap_or(0),
        id: attributes.be32(CTA_ID),
        tcp_state: attributes
            .nested(CTA_PROTOINFO)
            .and_then(|of| of.nested(CTA_PROTOINFO_TCP))
            .and_then(|of| of.u8(CTA_PROTOINFO_TCP_STATE)),
    })
}

fn tuple_of(tuple: Attributes<'_>) -> Option<Tuple> {
    let addresses = tuple.nested(CTA_TUPLE_IP)?;
    let proto = tuple.nested(CTA_TUPLE_PROTO)?;
    let ip = |v4, v6| ip_of(addresses.get(v4).or_else(|| addresses.get(v6))?);
    let source = ip(CTA_IP_V4_SRC, CTA_IP_V6_SRC)?;
    let destination = ip(CTA_IP_V4_DST, CTA_IP_V6_DST)?;
    Some(Tuple {
        source: SocketAddr::new(source, proto.be16(CTA_PROTO_SRC_PORT)?),
        destination: SocketAddr::new(destination, proto.be16(CTA_PROTO_DST_PORT)?),
        protocol: proto.u8(CTA_PROTO_NUM)?,
    })
}
