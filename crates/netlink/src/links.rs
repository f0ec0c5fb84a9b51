//! Links, also known as network interfaces: making, finding, switching and removing them.
//!
//! ```no_run
//! use telaio_netlink::links::{Links, NewLink};
//!
//! # fn main() -> Result<(), telaio_netlink::NetlinkError> {
//! let mut links = Links::open()?;
//! let link = match links.find("dummy7")? {
//!     Some(link) => link,
//!     None => links.create("dummy7", &NewLink::Dummy)?,
//! };
//! links.set_up(link, true)?;
//! links.delete(link)?;
//! # Ok(())
//! # }
//! ```

use std::net::IpAddr;

use crate::addresses::ip_of;
use crate::error::NetlinkError;
use crate::rtnl::{BridgePort, Mac};
use crate::socket::{
    NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL, NLM_F_REQUEST, Protocol, Socket,
};
use crate::wire::{Attributes, Message, Writer, ne32};

pub(crate) const RTM_NEWLINK: u16 = 16;
pub(crate) const RTM_DELLINK: u16 = 17;
pub(crate) const RTM_GETLINK: u16 = 18;
const IFLA_ADDRESS: u16 = 1;
const IFLA_IFNAME: u16 = 3;
const IFLA_MTU: u16 = 4;
const IFLA_MASTER: u16 = 10;
const IFLA_GROUP: u16 = 27;
const IFLA_LINKINFO: u16 = 18;
const INFO_KIND: u16 = 1;
const INFO_DATA: u16 = 2;
const INFO_SLAVE_KIND: u16 = 4;
const INFO_SLAVE_DATA: u16 = 5;
const BRPORT_NO: u16 = 18;
const IFF_UP: u32 = libc::IFF_UP as u32;
const IFF_PROMISC: u32 = libc::IFF_PROMISC as u32;
const BR_VLAN_FILTERING: u16 = 7;
const VXLAN_ID: u16 = 1;
const VXLAN_LINK: u16 = 3;
const VXLAN_LOCAL: u16 = 4;
const VXLAN_LEARNING: u16 = 7;
const VXLAN_PORT: u16 = 15;
const VXLAN_LOCAL6: u16 = 17;
/// `struct ifinfomsg`: family, type, the link's number, flags, mask of flags.
const LINK_HEADER_LEN: usize = 16;
/// The longest name that a link can have; a zero follows.
const NAME_LEN_MAX: usize = 15;
/// How often a list is begun anew because links came and went while it was read.
const TRIES_MAX: u32 = 5;

/// The number by which the kernel knows a link of a namespace. Never 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkIndex(pub u32);

/// A link that is there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Link {
    /// Its number.
    pub index: LinkIndex,
    /// Its name.
    pub name: String,
    /// What made it, such as `dummy` or `veth`; hardware and loopback have none.
    pub kind: Option<String>,
    /// The kernel's flags, `IFF_…`.
    pub flags: u32,
    /// The longest packet that it takes, in bytes.
    pub mtu: u32,
    /// The bridge or the like that it hangs on.
    pub master: Option<LinkIndex>,
    /// Its number among the ports of the bridge that it hangs on: the lowest that was free.
    pub port_number: Option<u16>,
    /// The group of links that it is in; 0 unless somebody said otherwise.
    pub group: u32,
    /// Its hardware address, if it has one of six bytes.
    pub mac: Option<Mac>,
    /// What it may do as a port of a bridge, if it is one.
    pub port: Option<BridgePort>,
    /// Of a vxlan link what it was told.
    pub vxlan: Option<VxlanState>,
    /// It is a bridge that tells virtual networks apart.
    pub filters_vlans: bool,
}

impl Link {
    /// It is switched on.
    pub fn is_up(&self) -> bool {
        self.flags & IFF_UP != 0
    }

    /// It takes all frames.
    pub fn is_promiscuous(&self) -> bool {
        self.flags & IFF_PROMISC != 0
    }
}

/// What a vxlan link was told when it was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VxlanState {
    /// The number of its network.
    pub vni: u32,
    /// The UDP port.
    pub port: u16,
    /// This machine's address in what it sends.
    pub local: Option<IpAddr>,
    /// The link that it sends by.
    pub lower: Option<LinkIndex>,
    /// It learns from what it receives.
    pub learns: bool,
}

/// A link that is to be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NewLink {
    /// Has addresses, and nothing behind it.
    Dummy,
    /// Takes packets that are redirected to it, and puts them back where they were: a place for a queue.
    Ifb,
}

impl NewLink {
    /// The kernel's name for its kind.
    fn kind(&self) -> &'static str {
        match self {
            Self::Dummy => "dummy",
            Self::Ifb => "ifb",
        }
    }
}

/// A connection to the links of the network namespace in which it was opened.
#[derive(Debug)]
pub struct Links {
    socket: Socket,
}

impl Links {
    /// Opens one.
    pub fn open() -> Result<Self, NetlinkError> {
        Ok(Self { socket: Socket::open(Protocol::Route)? })
    }

    /// The number of the link of this name, if there is one.
    pub fn find(&mut self, name: &str) -> Result<Option<LinkIndex>, NetlinkError> {
        Ok(self.get(name)?.map(|link| link.index))
    }

    /// The link of this name, if there is one.
    pub fn get(&mut self, name: &str) -> Result<Option<Link>, NetlinkError> {
        get(&mut self.socket, name)
    }

    /// All links.
    pub fn list(&mut self) -> Result<Vec<Link>, NetlinkError> {
        for _ in 1..TRIES_MAX {
            match self.list_once() {
                Err(NetlinkError::Interrupted) => {}
                outcome => return outcome,
            }
        }
        self.list_once()
    }

    fn list_once(&mut self) -> Result<Vec<Link>, NetlinkError> {
        let doing = "listing links";
        let sequence = self.socket.next_sequence();
        let mut request = Writer::new();
        let header = header(LinkIndex(0));
        request.begin(RTM_GETLINK, NLM_F_REQUEST | NLM_F_DUMP, sequence, &header);
        request.end();
        self.socket.send(request.finish()?, doing)?;
        let mut found = Vec::new();
        self.socket.list(sequence, doing, |message| {
            found.extend(link(message));
            Ok(())
        })?;
        Ok(found)
    }

    /// Makes a link, switched off; refused with `EEXIST` if there is one of this name. A kernel without such
    /// links refuses, too; see [`NetlinkError::is_unsupported`].
    pub fn create(&mut self, name: &str, new: &NewLink) -> Result<LinkIndex, NetlinkError> {
        let doing = "making a link";
        if name.is_empty() || name.len() > NAME_LEN_MAX {
            return Err(NetlinkError::TooLong { what: "name of a link" });
        }
        self.command(doing, |sequence| create_request(name, new, sequence))?;
        let what = "the link is not there";
        self.find(name)?.ok_or(NetlinkError::Malformed { doing, what })
    }

    /// Switches a link on or off.
    pub fn set_up(&mut self, link: LinkIndex, is_up: bool) -> Result<(), NetlinkError> {
        self.command("switching a link", |sequence| switch_request(link, is_up, sequence))
    }

    /// Removes a link with its addresses and routes. `false` if it was gone already.
    pub fn delete(&mut self, link: LinkIndex) -> Result<bool, NetlinkError> {
        match self.command("deleting a link", |sequence| delete_request(link, sequence)) {
            Ok(()) => Ok(true),
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn command(
        &mut self,
        doing: &'static str,
        request: impl FnOnce(u32) -> Writer,
    ) -> Result<(), NetlinkError> {
        let sequence = self.socket.next_sequence();
        self.socket.send(request(sequence).finish()?, doing)?;
        self.socket.acknowledge(sequence, sequence, doing)
    }
}

/// The link of this name, asked for by any socket for links.
pub(crate) fn get(socket: &mut Socket, name: &str) -> Result<Option<Link>, NetlinkError> {
    let doing = "looking for a link";
    if name.is_empty() || name.len() > NAME_LEN_MAX {
        return Ok(None);
    }
    let sequence = socket.next_sequence();
    socket.send(find_request(name, sequence).finish()?, doing)?;
    let mut found = None;
    let answered = socket.list(sequence, doing, |message| {
        found = link(message).or(found.take());
        Ok(())
    });
    match answered {
        Ok(()) => Ok(found),
        Err(error) if error.raw_os_error() == Some(libc::ENODEV) => Ok(None),
        Err(error) => Err(error),
    }
}

fn find_request(name: &str, sequence: u32) -> Writer {
    let mut request = Writer::new();
    // The answer and the acknowledgement after it: so a list of one ends like any other.
    request.begin(RTM_GETLINK, NLM_F_REQUEST | NLM_F_ACK, sequence, &header(LinkIndex(0)));
    request.put_str(IFLA_IFNAME, name);
    request.end();
    request
}

fn create_request(name: &str, new: &NewLink, sequence: u32) -> Writer {
    let mut request = Writer::new();
    let flags = NLM_F_REQUEST | NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL;
    request.begin(RTM_NEWLINK, flags, sequence, &header(LinkIndex(0)));
    request.put_str(IFLA_IFNAME, name);
    let info = request.begin_nest(IFLA_LINKINFO);
    request.put_str(INFO_KIND, new.kind());
    request.end_nest(info);
    request.end();
    request
}

fn switch_request(link: LinkIndex, is_up: bool, sequence: u32) -> Writer {
    let mut header = header(link);
    // The flags, then which of them to take over.
    header[8..12].copy_from_slice(&(if is_up { IFF_UP } else { 0 }).to_ne_bytes());
    header[12..16].copy_from_slice(&IFF_UP.to_ne_bytes());
    let mut request = Writer::new();
    request.begin(RTM_NEWLINK, NLM_F_REQUEST | NLM_F_ACK, sequence, &header);
    request.end();
    request
}

fn delete_request(link: LinkIndex, sequence: u32) -> Writer {
    let mut request = Writer::new();
    request.begin(RTM_DELLINK, NLM_F_REQUEST | NLM_F_ACK, sequence, &header(link));
    request.end();
    request
}

fn header(link: LinkIndex) -> [u8; LINK_HEADER_LEN] {
    let mut header = [0; LINK_HEADER_LEN];
    header[4..8].copy_from_slice(&link.0.to_ne_bytes());
    header
}

/// The link that a message tells of, also one that is gone. Bridges tell of their ports by the same messages,
/// with their own family.
pub(crate) fn link(message: &Message<'_>) -> Option<Link> {
    let is_link = matches!(message.message_type, RTM_NEWLINK | RTM_DELLINK);
    if !is_link || message.body.first() != Some(&(libc::AF_UNSPEC as u8)) {
        return None;
    }
    let attributes = message.attributes(LINK_HEADER_LEN);
    let info = attributes.nested(IFLA_LINKINFO);
    let kind = info.and_then(|info| info.str(INFO_KIND));
    let data = info.and_then(|info| info.nested(INFO_DATA));
    let of_kind = |wanted: &str| data.filter(|_| kind == Some(wanted));
    let as_port = info.and_then(|info| {
        info.nested(INFO_SLAVE_DATA).filter(|_| info.str(INFO_SLAVE_KIND) == Some("bridge"))
    });
    Some(Link {
        index: message.body.get(4..).and_then(ne32).map(LinkIndex)?,
        name: attributes.str(IFLA_IFNAME)?.to_owned(),
        kind: kind.map(str::to_owned),
        flags: message.body.get(8..).and_then(ne32)?,
        mtu: attributes.ne32(IFLA_MTU).unwrap_or(0),
        master: attributes.ne32(IFLA_MASTER).map(LinkIndex),
        port_number: as_port.and_then(|port| port.ne16(BRPORT_NO)),
        group: attributes.ne32(IFLA_GROUP).unwrap_or(0),
        mac: attributes.get(IFLA_ADDRESS).and_then(|mac| Some(Mac(mac.try_into().ok()?))),
        vxlan: of_kind("vxlan").and_then(vxlan),
        filters_vlans: of_kind("bridge").and_then(|data| data.u8(BR_VLAN_FILTERING)) == Some(1),
        port: attributes.nested(IFLA_LINKINFO).and_then(crate::rtnl::read_port),
    })
}

fn vxlan(data: Attributes<'_>) -> Option<VxlanState> {
    let local = data.get(VXLAN_LOCAL).or_else(|| data.get(VXLAN_LOCAL6));
    Some(VxlanState {
        vni: data.ne32(VXLAN_ID)?,
        port: data.be16(VXLAN_PORT)?,
        local: local.and_then(ip_of).filter(|ip| !ip.is_unspecified()),
        lower: data.ne32(VXLAN_LINK).filter(|index| *index != 0).map(LinkIndex),
        learns: data.u8(VXLAN_LEARNING) == Some(1),
    })
}

#[cfg(test)]
mod tests;
