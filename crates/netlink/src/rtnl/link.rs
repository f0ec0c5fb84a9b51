//! Messages that make, change and remove links.

use std::net::IpAddr;
use std::os::fd::{AsRawFd, BorrowedFd};

use super::put_ip;
use crate::links::{LinkIndex, RTM_DELLINK, RTM_GETLINK, RTM_NEWLINK};
use crate::wire::{Attributes, Writer};

/// `struct ifinfomsg`: family, type, the link's number, flags, mask of flags.
pub(super) const LINK_HEADER_LEN: usize = 16;
const IFF_UP: u32 = libc::IFF_UP as u32;
const IFF_PROMISC: u32 = libc::IFF_PROMISC as u32;

const IFLA_ADDRESS: u16 = 1;
const IFLA_IFNAME: u16 = 3;
const IFLA_MTU: u16 = 4;
const IFLA_MASTER: u16 = 10;
const IFLA_LINKINFO: u16 = 18;
const IFLA_AF_SPEC: u16 = 26;
const IFLA_GROUP: u16 = 27;
const IFLA_NET_NS_FD: u16 = 28;
const INFO_KIND: u16 = 1;
const INFO_DATA: u16 = 2;
const INFO_SLAVE_KIND: u16 = 4;
const INFO_SLAVE_DATA: u16 = 5;
const VETH_INFO_PEER: u16 = 1;
const IFLA_INET6_ADDR_GEN_MODE: u16 = 8;

const BRPORT_HAIRPIN: u16 = 4;
const BRPORT_LEARNING: u16 = 8;
const BRPORT_MCAST_FLOOD: u16 = 27;
const BRPORT_BCAST_FLOOD: u16 = 30;
const BRPORT_ISOLATED: u16 = 33;
const BR_VLAN_FILTERING: u16 = 7;
const BR_MCAST_SNOOPING: u16 = 23;

const RTM_SETLINK: u16 = 19;
const BRIDGE_FLAGS: u16 = 0;
const BRIDGE_VLAN_INFO: u16 = 2;
const BRIDGE_FLAG_MASTER: u16 = 1;
const BRIDGE_FLAG_SELF: u16 = 2;
/// What comes untagged is of it, and what leaves is untagged.
const VLAN_FLAGS_OWN: u16 = 2 | 4;

const VXLAN_ID: u16 = 1;
const VXLAN_LINK: u16 = 3;
const VXLAN_LOCAL: u16 = 4;
const VXLAN_LEARNING: u16 = 7;
const VXLAN_PORT: u16 = 15;
const VXLAN_LOCAL6: u16 = 17;

/// A hardware address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mac(pub [u8; 6]);

impl std::fmt::Display for Mac {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (at, byte) in self.0.iter().enumerate() {
            let colon = if at == 0 { "" } else { ":" };
            write!(f, "{colon}{byte:02x}")?;
        }
        Ok(())
    }
}

impl std::str::FromStr for Mac {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is no hardware address; it looks like 02:00:00:00:00:01");
        let mut bytes = [0; 6];
        let mut parts = text.split([':', '-']);
        for byte in &mut bytes {
            let part = parts.next().filter(|part| part.len() == 2).ok_or_else(wrong)?;
            *byte = u8::from_str_radix(part, 16).map_err(|_| wrong())?;
        }
        if parts.next().is_some() || bytes[0] & 1 == 1 {
            return Err(wrong());
        }
        Ok(Self(bytes))
    }
}

/// Which link a request is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Which<'a> {
    /// The one of this number.
    Index(LinkIndex),
    /// The one of this name.
    Name(&'a str),
}

impl Which<'_> {
    fn header(self) -> [u8; LINK_HEADER_LEN] {
        let mut header = [0; LINK_HEADER_LEN];
        if let Self::Index(index) = self {
            header[4..8].copy_from_slice(&index.0.to_ne_bytes());
        }
        header
    }

    fn put_name(self, writer: &mut Writer) {
        if let Self::Name(name) = self {
            writer.put_str(IFLA_IFNAME, name);
        }
    }
}

/// Where the other end of a pair is made.
#[derive(Debug, Clone, Copy)]
pub struct PeerPlace<'a> {
    /// Its name.
    pub name: &'a str,
    /// In which namespace; here without.
    pub netns: Option<BorrowedFd<'a>>,
    /// Its hardware address; by chance without.
    pub mac: Option<Mac>,
}

/// A pair of links that are two ends of a cable. The other end is switched off.
#[derive(Debug, Clone, Copy)]
pub struct Veth<'a> {
    /// The name of the end here.
    pub name: &'a str,
    /// Its hardware address; by chance without.
    pub mac: Option<Mac>,
    /// The longest packet of both ends; the kernel's default without.
    pub mtu: Option<u32>,
    /// The bridge that the end here hangs on.
    pub master: Option<LinkIndex>,
    /// The group of the end here.
    pub group: u32,
    /// The end here is switched on, too.
    pub is_up: bool,
    /// The other end.
    pub peer: PeerPlace<'a>,
}

impl Veth<'_> {
    pub(super) fn write(&self, writer: &mut Writer, flags: u16, sequence: u32) {
        writer.begin(RTM_NEWLINK, flags, sequence, &switched(self.is_up));
        writer.put_str(IFLA_IFNAME, self.name);
        put_common(writer, self.mac, self.mtu, self.group);
        if let Some(master) = self.master {
            writer.put_ne32(IFLA_MASTER, master.0);
        }
        let info = writer.begin_nest(IFLA_LINKINFO);
        writer.put_str(INFO_KIND, "veth");
        let data = writer.begin_nest(INFO_DATA);
        // A link's message within the message: header, then attributes. The kernel would refuse to switch this end on
        // before the other is there.
        let peer = writer.begin_nest(VETH_INFO_PEER);
        writer.put_raw(&switched(false));
        writer.put_str(IFLA_IFNAME, self.peer.name);
        put_common(writer, self.peer.mac, self.mtu, 0);
        if let Some(netns) = self.peer.netns {
            writer.put_ne32(IFLA_NET_NS_FD, netns.as_raw_fd().cast_unsigned());
        }
        writer.end_nest(peer);
        writer.end_nest(data);
        writer.end_nest(info);
        writer.end();
    }
}

/// A bridge. It does not look into multicast: its ports are told apart by other means.
#[derive(Debug, Clone, Copy, Default)]
pub struct Bridge<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its hardware address. Without one it changes with the ports.
    pub mac: Option<Mac>,
    /// The longest packet.
    pub mtu: Option<u32>,
    /// Its group.
    pub group: u32,
    /// Ports have virtual networks.
    pub vlan_filtering: bool,
}

impl Bridge<'_> {
    pub(super) fn write(&self, writer: &mut Writer, flags: u16, sequence: u32) {
        writer.begin(RTM_NEWLINK, flags, sequence, &[0; LINK_HEADER_LEN]);
        writer.put_str(IFLA_IFNAME, self.name);
        put_common(writer, self.mac, self.mtu, self.group);
        let info = writer.begin_nest(IFLA_LINKINFO);
        writer.put_str(INFO_KIND, "bridge");
        let data = writer.begin_nest(INFO_DATA);
        writer.put_u8(BR_MCAST_SNOOPING, 0);
        if self.vlan_filtering {
            writer.put_u8(BR_VLAN_FILTERING, 1);
        }
        writer.end_nest(data);
        writer.end_nest(info);
        writer.end();
    }
}

/// The virtual network of a bridge that a port, or the bridge itself, is in: frames there bear no tag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BridgeVlan {
    /// The port, or the bridge.
    pub link: LinkIndex,
    /// Its number, 1 to 4094.
    pub vlan: u16,
    /// It is the bridge itself.
    pub is_bridge: bool,
}

impl BridgeVlan {
    pub(super) fn write(self, writer: &mut Writer, is_added: bool, flags: u16, sequence: u32) {
        let mut header = Which::Index(self.link).header();
        header[0] = libc::AF_BRIDGE as u8;
        writer.begin(if is_added { RTM_SETLINK } else { RTM_DELLINK }, flags, sequence, &header);
        let spec = writer.begin_nest(IFLA_AF_SPEC);
        let at = if self.is_bridge { BRIDGE_FLAG_SELF } else { BRIDGE_FLAG_MASTER };
        writer.put(BRIDGE_FLAGS, &at.to_ne_bytes());
        let mut info = [0; 4];
        if is_added {
            info[..2].copy_from_slice(&VLAN_FLAGS_OWN.to_ne_bytes());
        }
        info[2..].copy_from_slice(&self.vlan.to_ne_bytes());
        writer.put(BRIDGE_VLAN_INFO, &info);
        writer.end_nest(spec);
        writer.end();
    }
}

/// Has a bridge tell the virtual networks of its ports apart, or no longer.
pub(super) fn write_vlan_filtering(
    writer: &mut Writer,
    flags: u16,
    sequence: u32,
    which: Which<'_>,
    is_on: bool,
) {
    writer.begin(RTM_NEWLINK, flags, sequence, &which.header());
    which.put_name(writer);
    let info = writer.begin_nest(IFLA_LINKINFO);
    writer.put_str(INFO_KIND, "bridge");
    let data = writer.begin_nest(INFO_DATA);
    writer.put_u8(BR_VLAN_FILTERING, u8::from(is_on));
    writer.end_nest(data);
    writer.end_nest(info);
    writer.end();
}

/// A link that carries frames to other machines within UDP. It learns nothing: it is told.
#[derive(Debug, Clone, Copy)]
pub struct Vxlan<'a> {
    /// Its name.
    pub name: &'a str,
    /// The number of its network.
    pub vni: u32,
    /// The UDP port.
    pub port: u16,
    /// This machine's address in what it sends.
    pub local: IpAddr,
    /// The link that it sends by.
    pub lower: Option<LinkIndex>,
    /// Its hardware address.
    pub mac: Mac,
    /// The longest packet.
    pub mtu: u32,
    /// Its group.
    pub group: u32,
}

impl Vxlan<'_> {
    pub(super) fn write(&self, writer: &mut Writer, flags: u16, sequence: u32) {
        writer.begin(RTM_NEWLINK, flags, sequence, &[0; LINK_HEADER_LEN]);
        writer.put_str(IFLA_IFNAME, self.name);
        put_common(writer, Some(self.mac), Some(self.mtu), self.group);
        let info = writer.begin_nest(IFLA_LINKINFO);
        writer.put_str(INFO_KIND, "vxlan");
        let data = writer.begin_nest(INFO_DATA);
        writer.put_ne32(VXLAN_ID, self.vni);
        writer.put_be16(VXLAN_PORT, self.port);
        let local = if self.local.is_ipv4() { VXLAN_LOCAL } else { VXLAN_LOCAL6 };
        put_ip(writer, local, self.local);
        if let Some(lower) = self.lower {
            writer.put_ne32(VXLAN_LINK, lower.0);
        }
        writer.put_u8(VXLAN_LEARNING, 0);
        writer.end_nest(data);
        writer.end_nest(info);
        writer.end();
    }
}

/// What a port of a bridge may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BridgePort {
    /// Frames never go from one isolated port to another.
    pub isolated: bool,
    /// Frames may leave by the port that they came in by.
    pub hairpin: bool,
    /// Of frames for everybody it gets only the bridge's own, and the bridge learns nothing from what it sends: it is told.
    pub is_quiet: bool,
}

/// What the information about a link says of it as a port of a bridge.
pub(crate) fn read_port(info: Attributes<'_>) -> Option<BridgePort> {
    let data =
        info.nested(INFO_SLAVE_DATA).filter(|_| info.str(INFO_SLAVE_KIND) == Some("bridge"))?;
    let has = |flag| data.u8(flag).is_some_and(|value| value != 0);
    Some(BridgePort {
        isolated: has(BRPORT_ISOLATED),
        hairpin: has(BRPORT_HAIRPIN),
        is_quiet: ![BRPORT_LEARNING, BRPORT_MCAST_FLOOD, BRPORT_BCAST_FLOOD].into_iter().any(has),
    })
}

/// The IPv6 address that a link gives itself, by the kernel's number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum OwnAddress {
    /// One that is made from its hardware address.
    FromMac = 0,
    /// None.
    Nothing = 1,
}

/// A change of a link.
#[derive(Debug, Clone, Copy)]
pub struct SetLink<'a> {
    /// Which.
    pub link: Which<'a>,
    /// Switched on or off.
    pub up: Option<bool>,
    /// Takes all frames, or not.
    pub promiscuous: Option<bool>,
    /// The longest packet.
    pub mtu: Option<u32>,
    /// The hardware address.
    pub mac: Option<Mac>,
    /// The group.
    pub group: Option<u32>,
    /// The bridge that it hangs on; number 0 takes it off.
    pub master: Option<LinkIndex>,
    /// What it may do as a port of a bridge.
    pub port: Option<BridgePort>,
    /// Which IPv6 address it gives itself; as it is without.
    pub own_address: Option<OwnAddress>,
}

impl<'a> SetLink<'a> {
    /// Nothing yet.
    pub fn new(link: Which<'a>) -> Self {
        Self {
            link,
            up: None,
            promiscuous: None,
            mtu: None,
            mac: None,
            group: None,
            master: None,
            port: None,
            own_address: None,
        }
    }

    /// Switches it on.
    pub fn up(link: Which<'a>) -> Self {
        Self { up: Some(true), ..Self::new(link) }
    }

    pub(super) fn write(&self, writer: &mut Writer, flags: u16, sequence: u32) {
        let mut header = self.link.header();
        let mut values = 0;
        let mut mask = 0;
        for (flag, value) in [(IFF_UP, self.up), (IFF_PROMISC, self.promiscuous)] {
            if let Some(value) = value {
                mask |= flag;
                values |= if value { flag } else { 0 };
            }
        }
        header[8..12].copy_from_slice(&values.to_ne_bytes());
        header[12..16].copy_from_slice(&mask.to_ne_bytes());
        writer.begin(RTM_NEWLINK, flags, sequence, &header);
        self.link.put_name(writer);
        put_common(writer, self.mac, self.mtu, 0);
        if let Some(group) = self.group {
            writer.put_ne32(IFLA_GROUP, group);
        }
        if let Some(master) = self.master {
            writer.put_ne32(IFLA_MASTER, master.0);
        }
        if let Some(port) = self.port {
            let info = writer.begin_nest(IFLA_LINKINFO);
            writer.put_str(INFO_SLAVE_KIND, "bridge");
            let data = writer.begin_nest(INFO_SLAVE_DATA);
            writer.put_u8(BRPORT_HAIRPIN, u8::from(port.hairpin));
            writer.put_u8(BRPORT_ISOLATED, u8::from(port.isolated));
            writer.put_u8(BRPORT_LEARNING, u8::from(!port.is_quiet));
            writer.put_u8(BRPORT_MCAST_FLOOD, u8::from(!port.is_quiet));
            writer.put_u8(BRPORT_BCAST_FLOOD, u8::from(!port.is_quiet));
            writer.end_nest(data);
            writer.end_nest(info);
        }
        if let Some(own) = self.own_address {
            let families = writer.begin_nest(IFLA_AF_SPEC);
            let v6 = writer.begin_nest(libc::AF_INET6 as u16);
            writer.put_u8(IFLA_INET6_ADDR_GEN_MODE, own as u8);
            writer.end_nest(v6);
            writer.end_nest(families);
        }
        writer.end();
    }
}

pub(super) fn write_delete(writer: &mut Writer, flags: u16, sequence: u32, which: Which<'_>) {
    writer.begin(RTM_DELLINK, flags, sequence, &which.header());
    which.put_name(writer);
    writer.end();
}

pub(super) fn write_delete_group(writer: &mut Writer, flags: u16, sequence: u32, group: u32) {
    writer.begin(RTM_DELLINK, flags, sequence, &[0; LINK_HEADER_LEN]);
    writer.put_ne32(IFLA_GROUP, group);
    writer.end();
}

pub(super) fn list_request(writer: &mut Writer, flags: u16, sequence: u32) {
    writer.begin(RTM_GETLINK, flags, sequence, &[0; LINK_HEADER_LEN]);
    writer.end();
}

fn switched(is_up: bool) -> [u8; LINK_HEADER_LEN] {
    let mut header = [0; LINK_HEADER_LEN];
    if is_up {
        header[8..12].copy_from_slice(&IFF_UP.to_ne_bytes());
        header[12..16].copy_from_slice(&IFF_UP.to_ne_bytes());
    }
    header
}

fn put_common(writer: &mut Writer, mac: Option<Mac>, mtu: Option<u32>, group: u32) {
    if let Some(mac) = mac {
        writer.put(IFLA_ADDRESS, &mac.0);
    }
    if let Some(mtu) = mtu {
        writer.put_ne32(IFLA_MTU, mtu);
    }
    if group != 0 {
        writer.put_ne32(IFLA_GROUP, group);
    }
}
