//! The machine's own addresses: listing, adding, removing and watching them.
//!
//! Addresses that are added here are single ones: `/32` and `/128`, without a route to any network.
//!
//! ```no_run
//! use telaio_netlink::addresses::{Addresses, own_addresses};
//! use telaio_netlink::links::LinkIndex;
//!
//! # fn main() -> Result<(), telaio_netlink::NetlinkError> {
//! # let (link, service) = (LinkIndex(7), "10.96.0.1".parse().unwrap());
//! let mut addresses = Addresses::open()?;
//! for failure in addresses.add(link, &[service])? {
//!     eprintln!("{failure}");
//! }
//! assert!(own_addresses()?.contains(&service));
//! # Ok(())
//! # }
//! ```

mod watch;

use std::collections::BTreeSet;
use std::net::IpAddr;

pub use watch::{Change, Notice, Watcher};

use crate::batch::{Failure, RECEIVE_BUFFER_BYTES};
use crate::error::NetlinkError;
use crate::links::LinkIndex;
use crate::socket::{NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL, NLM_F_REQUEST, Protocol, Socket};
use crate::wire::{Attributes, Message, Writer, ne32};

const RTM_NEWADDR: u16 = 20;
const RTM_DELADDR: u16 = 21;
const RTM_GETADDR: u16 = 22;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const IFA_FLAGS: u16 = 8;
/// Usable at once: nobody else on the link can have it.
const FLAG_NO_DUPLICATES_SEARCHED: u32 = 0x02;
/// Without a route to its prefix.
const FLAG_NO_PREFIX_ROUTE: u32 = 0x200;
/// `struct ifaddrmsg`: family, prefix length, flags, scope, then the link's number.
const ADDRESS_HEADER_LEN: usize = 8;
/// How often a list is begun anew because addresses came and went while it was read.
const TRIES_MAX: u32 = 5;

/// The addresses of all links of this network namespace, loopback included.
pub fn own_addresses() -> Result<BTreeSet<IpAddr>, NetlinkError> {
    Ok(Addresses::open()?.list()?.into_iter().map(|it| it.ip).collect())
}

/// The addresses of one link of this network namespace.
pub fn addresses_of(link: LinkIndex) -> Result<BTreeSet<IpAddr>, NetlinkError> {
    let all = Addresses::open()?.list()?;
    Ok(all.into_iter().filter(|it| it.link == link).map(|it| it.ip).collect())
}

/// An address of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkAddress {
    /// The link.
    pub link: LinkIndex,
    /// The machine's own address there, not a peer's.
    pub ip: IpAddr,
    /// The length of the prefix that is on the link.
    pub prefix_len: u8,
}

/// A connection to the addresses of the network namespace in which it was opened.
#[derive(Debug)]
pub struct Addresses {
    socket: Socket,
    commands: u64,
}

impl Addresses {
    /// Opens one.
    pub fn open() -> Result<Self, NetlinkError> {
        let socket = Socket::open(Protocol::Route)?;
        socket.set_receive_buffer(RECEIVE_BUFFER_BYTES)?;
        Ok(Self { socket, commands: 0 })
    }

    /// How many addresses this connection has asked to be added or removed.
    pub fn commands(&self) -> u64 {
        self.commands
    }

    /// Our socket's number, by which a [`Watcher`] knows whose change it was.
    pub fn port(&self) -> u32 {
        self.socket.port()
    }

    /// The addresses of all links.
    pub fn list(&mut self) -> Result<Vec<LinkAddress>, NetlinkError> {
        for _ in 1..TRIES_MAX {
            match self.list_once() {
                Err(NetlinkError::Interrupted) => {}
                outcome => return outcome,
            }
        }
        self.list_once()
    }

    fn list_once(&mut self) -> Result<Vec<LinkAddress>, NetlinkError> {
        let doing = "listing addresses";
        let sequence = self.socket.next_sequence();
        let mut request = Writer::new();
        request.begin(RTM_GETADDR, NLM_F_REQUEST | NLM_F_DUMP, sequence, &[0; ADDRESS_HEADER_LEN]);
        request.end();
        self.socket.send(request.finish()?, doing)?;
        let mut found = Vec::new();
        self.socket.list(sequence, doing, |message| {
            if message.message_type == RTM_NEWADDR {
                found.extend(link_address(message));
            }
            Ok(())
        })?;
        Ok(found)
    }

    /// Gives a link these addresses; those that were refused, in order. One that the link has counts as done.
    pub fn add(&mut self, link: LinkIndex, ips: &[IpAddr]) -> Result<Vec<Failure>, NetlinkError> {
        self.change("adding addresses", ips, &[libc::EEXIST], |request, flags, sequence, ip| {
            let flags = flags | NLM_F_CREATE | NLM_F_EXCL;
            put(request, RTM_NEWADDR, flags, sequence, link, ip);
        })
    }

    /// Takes these addresses from a link; those that were refused, in order. One that the link has not, also
    /// because the link is gone, counts as done.
    pub fn delete(
        &mut self,
        link: LinkIndex,
        ips: &[IpAddr],
    ) -> Result<Vec<Failure>, NetlinkError> {
        let absent = [libc::EADDRNOTAVAIL, libc::ENODEV];
        self.change("removing addresses", ips, &absent, |request, flags, sequence, ip| {
            put(request, RTM_DELADDR, flags, sequence, link, ip);
        })
    }

    fn change(
        &mut self,
        doing: &'static str,
        ips: &[IpAddr],
        moot: &[i32],
        write: impl FnMut(&mut Writer, u16, u32, IpAddr),
    ) -> Result<Vec<Failure>, NetlinkError> {
        self.commands += ips.len() as u64;
        let mut failures = self.socket.carry_out(ips.iter().copied(), doing, write)?;
        failures.retain(|failure| {
            !failure.error.raw_os_error().is_some_and(|number| moot.contains(&number))
        });
        Ok(failures)
    }
}

/// One address of a link, alone in its prefix.
fn put(request: &mut Writer, message: u16, flags: u16, sequence: u32, link: LinkIndex, ip: IpAddr) {
    let mut header = [0; ADDRESS_HEADER_LEN];
    let (family, prefix_len) = match ip {
        IpAddr::V4(_) => (libc::AF_INET as u8, 32),
        IpAddr::V6(_) => (libc::AF_INET6 as u8, 128),
    };
    header[0] = family;
    header[1] = prefix_len;
    header[4..].copy_from_slice(&link.0.to_ne_bytes());
    request.begin(message, flags, sequence, &header);
    match ip {
        IpAddr::V4(ip) => {
            request.put(IFA_LOCAL, &ip.octets());
            request.put(IFA_ADDRESS, &ip.octets());
        }
        IpAddr::V6(ip) => {
            request.put(IFA_LOCAL, &ip.octets());
            request.put(IFA_ADDRESS, &ip.octets());
            // IPv4 has neither of the two for a single address.
            let flags = FLAG_NO_DUPLICATES_SEARCHED | FLAG_NO_PREFIX_ROUTE;
            request.put_ne32(IFA_FLAGS, flags);
        }
    }
    request.end();
}

/// The address that a message tells of, also one that is gone.
fn link_address(message: &Message<'_>) -> Option<LinkAddress> {
    Some(LinkAddress {
        link: message.body.get(4..).and_then(ne32).map(LinkIndex)?,
        ip: own_address(message.attributes(ADDRESS_HEADER_LEN))?,
        prefix_len: message.body.get(1).copied()?,
    })
}

/// On a point-to-point link `IFA_ADDRESS` is the peer's and `IFA_LOCAL` ours; IPv6 mostly has only
/// the former, and then it is ours.
fn own_address(attributes: Attributes<'_>) -> Option<IpAddr> {
    let bytes = attributes.get(IFA_LOCAL).or_else(|| attributes.get(IFA_ADDRESS))?;
    ip_of(bytes)
}

/// An address from its four or sixteen bytes.
pub(crate) fn ip_of(bytes: &[u8]) -> Option<IpAddr> {
    let v4 = <[u8; 4]>::try_from(bytes).map(IpAddr::from);
    v4.or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from)).ok()
}

#[cfg(test)]
mod tests;
