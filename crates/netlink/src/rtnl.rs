//! Links, addresses, routes and neighbours, many requests at a time.
//!
//! A [`Request`] is one thing that the kernel should do; [`Rtnetlink::carry_out`] sends many in one piece, in
//! order. A request that is refused stops none of the others: whoever sends several undoes what was done.
//!
//! ```no_run
//! use telaio_netlink::links::LinkIndex;
//! use telaio_netlink::rtnl::{Bridge, Request, Rtnetlink, SetLink, Which};
//!
//! # fn main() -> Result<(), telaio_netlink::NetlinkError> {
//! let mut kernel = Rtnetlink::open()?;
//! let bridge = Bridge { name: "br7", ..Bridge::default() };
//! kernel.all([Request::Bridge(bridge), Request::Set(SetLink::up(Which::Name("br7")))])?;
//! kernel.all([Request::DeleteLink(Which::Name("br7"))])
//! # }
//! ```

mod link;
mod neighbour;
mod route;

#[cfg(test)]
mod tests;

use std::net::IpAddr;

use crate::batch::Failure;
use crate::error::NetlinkError;
use crate::links::{Link, LinkIndex};
use crate::netns::{Netns, NetnsError};
use crate::socket::{NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL, NLM_F_REQUEST, Protocol, Socket};
use crate::wire::{Message, Writer};

pub(crate) use link::read_port;
pub use link::{
    Bridge, BridgePort, BridgeVlan, Mac, OwnAddress, PeerPlace, SetLink, Veth, Vxlan, Which,
};
pub use neighbour::{FdbEntry, Neighbour, PortEntry};
pub use route::{Route, Scope};

/// `struct ifaddrmsg`: family, prefix length, flags, scope, then the link's number.
const ADDRESS_HEADER_LEN: usize = 8;
const RTM_NEWADDR: u16 = 20;
const RTM_DELADDR: u16 = 21;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const IFA_BROADCAST: u16 = 4;
const IFA_FLAGS: u16 = 8;
const FLAG_NO_DUPLICATES_SEARCHED: u32 = 0x02;
const FLAG_NO_PREFIX_ROUTE: u32 = 0x200;
const NLM_F_REPLACE: u16 = 0x100;
/// How often a list is begun anew because something changed while it was read.
const TRIES_MAX: u32 = 5;

/// An address that a link gets or loses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Address {
    /// The link.
    pub link: LinkIndex,
    /// The address.
    pub ip: IpAddr,
    /// How much of it is the network's.
    pub prefix_len: u8,
    /// The kernel adds no route to the network.
    pub no_prefix_route: bool,
}

/// One thing that the kernel should do.
#[derive(Debug, Clone, Copy)]
pub enum Request<'a> {
    /// Makes a pair of links; refused if one is there.
    Veth(Veth<'a>),
    /// Makes a bridge; refused if there is a link of its name.
    Bridge(Bridge<'a>),
    /// Makes a vxlan link; refused if there is a link of its name.
    Vxlan(Vxlan<'a>),
    /// Changes a link.
    Set(SetLink<'a>),
    /// Has a bridge tell virtual networks apart, or no longer. A kernel that cannot does not say so: it refuses
    /// [`Request::AddVlan`].
    VlanFiltering(Which<'a>, bool),
    /// Puts a port, or a bridge itself, into a virtual network.
    AddVlan(BridgeVlan),
    /// Takes it out.
    DeleteVlan(BridgeVlan),
    /// Removes a link, and its peer.
    DeleteLink(Which<'a>),
    /// Removes all links of a group at once. Much cheaper than one by one.
    DeleteGroup(u32),
    /// Gives a link an address; refused with `EEXIST` if it has it. Never searched for duplicates.
    AddAddress(Address),
    /// Takes an address from a link.
    DeleteAddress(Address),
    /// Adds a route; refused if there is one to the same network of the same metric.
    AddRoute(Route),
    /// Adds a route or takes the place of the one that is there.
    ReplaceRoute(Route),
    /// Removes a route.
    DeleteRoute(Route),
    /// Says who has an address on a link, for good.
    ReplaceNeighbour(Neighbour),
    /// Removes that.
    DeleteNeighbour(Neighbour),
    /// Says by which port a bridge reaches a hardware address.
    ReplacePortEntry(PortEntry),
    /// Says behind which machine a hardware address is, on a vxlan link.
    ReplaceFdb(FdbEntry),
    /// Removes that.
    DeleteFdb(FdbEntry),
}

impl Request<'_> {
    fn write(&self, writer: &mut Writer, flags: u16, sequence: u32) {
        let create = flags | NLM_F_CREATE | NLM_F_EXCL;
        let replace = flags | NLM_F_CREATE | NLM_F_REPLACE;
        match self {
            Self::Veth(veth) => veth.write(writer, create, sequence),
            Self::Bridge(bridge) => bridge.write(writer, create, sequence),
            Self::Vxlan(vxlan) => vxlan.write(writer, create, sequence),
            Self::Set(set) => set.write(writer, flags, sequence),
            Self::VlanFiltering(which, is_on) => {
                link::write_vlan_filtering(writer, flags, sequence, *which, *is_on);
            }
            Self::AddVlan(vlan) => vlan.write(writer, true, flags, sequence),
            Self::DeleteVlan(vlan) => vlan.write(writer, false, flags, sequence),
            Self::DeleteLink(which) => link::write_delete(writer, flags, sequence, *which),
            Self::DeleteGroup(group) => link::write_delete_group(writer, flags, sequence, *group),
            Self::AddAddress(address) => address.write(writer, RTM_NEWADDR, create, sequence),
            Self::DeleteAddress(address) => address.write(writer, RTM_DELADDR, flags, sequence),
            Self::AddRoute(route) => route.write(writer, route::RTM_NEWROUTE, create, sequence),
            Self::ReplaceRoute(route) => {
                route.write(writer, route::RTM_NEWROUTE, replace, sequence);
            }
            Self::DeleteRoute(route) => route.write(writer, route::RTM_DELROUTE, flags, sequence),
            Self::ReplaceNeighbour(it) => {
                it.write(writer, neighbour::RTM_NEWNEIGH, replace, sequence);
            }
            Self::DeleteNeighbour(it) => {
                it.write(writer, neighbour::RTM_DELNEIGH, flags, sequence);
            }
            Self::ReplacePortEntry(it) => {
                it.write(writer, neighbour::RTM_NEWNEIGH, replace, sequence);
            }
            Self::ReplaceFdb(it) => it.write(writer, neighbour::RTM_NEWNEIGH, replace, sequence),
            Self::DeleteFdb(it) => it.write(writer, neighbour::RTM_DELNEIGH, flags, sequence),
        }
    }
}

impl Address {
    fn write(&self, writer: &mut Writer, message: u16, flags: u16, sequence: u32) {
        let mut header = [0; ADDRESS_HEADER_LEN];
        header[0] = family_of(self.ip);
        header[1] = self.prefix_len;
        header[4..].copy_from_slice(&self.link.0.to_ne_bytes());
        writer.begin(message, flags, sequence, &header);
        put_ip(writer, IFA_LOCAL, self.ip);
        put_ip(writer, IFA_ADDRESS, self.ip);
        let mut address_flags = 0;
        match self.ip {
            IpAddr::V4(ip) if self.prefix_len < 31 => {
                let host = u32::MAX.checked_shr(self.prefix_len.into()).unwrap_or(0);
                writer.put(IFA_BROADCAST, &(u32::from(ip) | host).to_be_bytes());
            }
            IpAddr::V4(_) => {}
            IpAddr::V6(_) => address_flags |= FLAG_NO_DUPLICATES_SEARCHED,
        }
        if self.no_prefix_route {
            address_flags |= FLAG_NO_PREFIX_ROUTE;
        }
        if address_flags != 0 {
            writer.put_ne32(IFA_FLAGS, address_flags);
        }
        writer.end();
    }
}

/// A connection to the network namespace in which it was opened.
#[derive(Debug)]
pub struct Rtnetlink {
    socket: Socket,
}

impl Rtnetlink {
    /// Opens one.
    pub fn open() -> Result<Self, NetlinkError> {
        Ok(Self { socket: Socket::open(Protocol::Route)? })
    }

    /// Opens one to another namespace. The calling thread stays where it is.
    pub fn open_in(netns: &Netns) -> Result<Result<Self, NetlinkError>, NetnsError> {
        netns.within(Self::open)
    }

    /// Has the kernel do these, in order; those that were refused.
    pub fn carry_out<'a>(
        &mut self,
        requests: impl IntoIterator<Item = Request<'a>>,
    ) -> Result<Vec<Failure>, NetlinkError> {
        self.socket.carry_out(requests, "changing links and routes", |writer, flags, seq, it| {
            it.write(writer, flags, seq);
        })
    }

    /// Has the kernel do these, in order; the first refusal, if there is one. The others are done.
    pub fn all<'a>(
        &mut self,
        requests: impl IntoIterator<Item = Request<'a>>,
    ) -> Result<(), NetlinkError> {
        self.all_but(&[], requests)
    }

    /// The same, but refusals with one of these numbers count as done.
    pub fn all_but<'a>(
        &mut self,
        moot: &[i32],
        requests: impl IntoIterator<Item = Request<'a>>,
    ) -> Result<(), NetlinkError> {
        let failures = self.carry_out(requests)?;
        let is_moot = |error: &NetlinkError| {
            error.raw_os_error().is_some_and(|number| moot.contains(&number))
        };
        match failures.into_iter().find(|failure| !is_moot(&failure.error)) {
            Some(failure) => Err(failure.error),
            None => Ok(()),
        }
    }

    /// The link of this name, if there is one.
    pub fn link(&mut self, name: &str) -> Result<Option<Link>, NetlinkError> {
        crate::links::get(&mut self.socket, name)
    }

    /// All links.
    pub fn links(&mut self) -> Result<Vec<Link>, NetlinkError> {
        self.dump("listing links", link::list_request, crate::links::link)
    }

    /// All routes of the main table.
    pub fn routes(&mut self) -> Result<Vec<Route>, NetlinkError> {
        self.dump("listing routes", route::list_request, route::route)
    }

    /// What is known for good about neighbours on all links.
    pub fn neighbours(&mut self) -> Result<Vec<Neighbour>, NetlinkError> {
        self.dump("listing neighbours", neighbour::list_request, neighbour::neighbour)
    }

    /// What vxlan links know for good about hardware addresses.
    pub fn fdb(&mut self) -> Result<Vec<FdbEntry>, NetlinkError> {
        self.dump("listing forwarding entries", neighbour::fdb_request, neighbour::fdb_entry)
    }

    fn dump<T>(
        &mut self,
        doing: &'static str,
        request: impl Fn(&mut Writer, u16, u32),
        read: impl Fn(&Message<'_>) -> Option<T>,
    ) -> Result<Vec<T>, NetlinkError> {
        let mut tries = 0;
        loop {
            tries += 1;
            let sequence = self.socket.next_sequence();
            let mut writer = Writer::new();
            request(&mut writer, NLM_F_REQUEST | NLM_F_DUMP, sequence);
            self.socket.send(writer.finish()?, doing)?;
            let mut found = Vec::new();
            let outcome = self.socket.list(sequence, doing, |message| {
                found.extend(read(message));
                Ok(())
            });
            match outcome {
                Err(NetlinkError::Interrupted) if tries < TRIES_MAX => {}
                outcome => return outcome.map(|()| found),
            }
        }
    }
}

fn family_of(ip: IpAddr) -> u8 {
    match ip {
        IpAddr::V4(_) => libc::AF_INET as u8,
        IpAddr::V6(_) => libc::AF_INET6 as u8,
    }
}

fn put_ip(writer: &mut Writer, attribute: u16, ip: IpAddr) {
    match ip {
        IpAddr::V4(ip) => writer.put(attribute, &ip.octets()),
        IpAddr::V6(ip) => writer.put(attribute, &ip.octets()),
    }
}
