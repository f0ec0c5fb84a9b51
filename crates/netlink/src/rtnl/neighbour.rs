//! Who has an address on a link, and behind which machine a hardware address is.

use std::net::IpAddr;

use super::link::{LINK_HEADER_LEN, Mac};
use super::{family_of, put_ip};
use crate::addresses::ip_of;
use crate::links::LinkIndex;
use crate::wire::{Message, Writer, ne32};

pub(super) const RTM_NEWNEIGH: u16 = 28;
pub(super) const RTM_DELNEIGH: u16 = 29;
const RTM_GETNEIGH: u16 = 30;
/// `struct ndmsg`: family, three unused bytes, the link's number, state, flags, type.
const NEIGHBOUR_HEADER_LEN: usize = 12;
const NDA_DST: u16 = 1;
const NDA_LLADDR: u16 = 2;
const STATE_PERMANENT: u16 = 0x80;
/// Never grows old.
const STATE_STATIC: u16 = 0x40;
/// The table of the bridge that the link is a port of.
const FLAG_MASTER: u8 = 0x04;
/// The link's own table, not the one of a bridge above it.
const FLAG_SELF: u8 = 0x02;
const FAMILY_BRIDGE: u8 = libc::AF_BRIDGE as u8;

/// Who has an address on a link, for good.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Neighbour {
    /// The link.
    pub link: LinkIndex,
    /// The address.
    pub ip: IpAddr,
    /// Its owner's hardware address.
    pub mac: Mac,
}

/// Behind which machine a hardware address is, on a vxlan link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FdbEntry {
    /// The link.
    pub link: LinkIndex,
    /// The hardware address.
    pub mac: Mac,
    /// The machine's address.
    pub remote: IpAddr,
}

/// By which port a bridge reaches a hardware address, for good.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortEntry {
    /// The port.
    pub port: LinkIndex,
    /// The hardware address.
    pub mac: Mac,
}

impl PortEntry {
    pub(super) fn write(&self, writer: &mut Writer, message: u16, flags: u16, sequence: u32) {
        let header = header(FAMILY_BRIDGE, self.port, STATE_STATIC, FLAG_MASTER);
        writer.begin(message, flags, sequence, &header);
        writer.put(NDA_LLADDR, &self.mac.0);
        writer.end();
    }
}

impl Neighbour {
    pub(super) fn write(&self, writer: &mut Writer, message: u16, flags: u16, sequence: u32) {
        let header = header(family_of(self.ip), self.link, STATE_PERMANENT, 0);
        writer.begin(message, flags, sequence, &header);
        put_ip(writer, NDA_DST, self.ip);
        writer.put(NDA_LLADDR, &self.mac.0);
        writer.end();
    }
}

impl FdbEntry {
    pub(super) fn write(&self, writer: &mut Writer, message: u16, flags: u16, sequence: u32) {
        let header = header(FAMILY_BRIDGE, self.link, STATE_PERMANENT, FLAG_SELF);
        writer.begin(message, flags, sequence, &header);
        writer.put(NDA_LLADDR, &self.mac.0);
        put_ip(writer, NDA_DST, self.remote);
        writer.end();
    }
}

fn header(family: u8, link: LinkIndex, state: u16, flags: u8) -> [u8; NEIGHBOUR_HEADER_LEN] {
    let mut header = [0; NEIGHBOUR_HEADER_LEN];
    header[0] = family;
    header[4..8].copy_from_slice(&link.0.to_ne_bytes());
    header[8..10].copy_from_slice(&state.to_ne_bytes());
    header[10] = flags;
    header
}

pub(super) fn list_request(writer: &mut Writer, flags: u16, sequence: u32) {
    writer.begin(RTM_GETNEIGH, flags, sequence, &[0; NEIGHBOUR_HEADER_LEN]);
    writer.end();
}

/// For this table the kernel expects a link's header.
pub(super) fn fdb_request(writer: &mut Writer, flags: u16, sequence: u32) {
    let mut header = [0; LINK_HEADER_LEN];
    header[0] = FAMILY_BRIDGE;
    writer.begin(RTM_GETNEIGH, flags, sequence, &header);
    writer.end();
}

/// Family, link and state of a message about a neighbour.
fn head(message: &Message<'_>) -> Option<(u8, LinkIndex, u16)> {
    let header = message.body.get(..NEIGHBOUR_HEADER_LEN)?;
    let state = u16::from_ne_bytes([header[8], header[9]]);
    let is_entry = message.message_type == RTM_NEWNEIGH;
    is_entry.then_some((header[0], LinkIndex(ne32(&header[4..8])?), state))
}

pub(super) fn neighbour(message: &Message<'_>) -> Option<Neighbour> {
    let (_, link, state) = head(message).filter(|(family, ..)| *family != FAMILY_BRIDGE)?;
    let attributes = message.attributes(NEIGHBOUR_HEADER_LEN);
    let ip = ip_of(attributes.get(NDA_DST)?)?;
    let mac = Mac(attributes.get(NDA_LLADDR)?.try_into().ok()?);
    (state & STATE_PERMANENT != 0).then_some(Neighbour { link, ip, mac })
}

pub(super) fn fdb_entry(message: &Message<'_>) -> Option<FdbEntry> {
    let (_, link, state) = head(message).filter(|(family, ..)| *family == FAMILY_BRIDGE)?;
    let attributes = message.attributes(NEIGHBOUR_HEADER_LEN);
    let remote = ip_of(attributes.get(NDA_DST)?)?;
    let mac = Mac(attributes.get(NDA_LLADDR)?.try_into().ok()?);
    (state & STATE_PERMANENT != 0).then_some(FdbEntry { link, mac, remote })
}
