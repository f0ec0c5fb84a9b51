//! ipset: the kernel's named sets of addresses and ports, which iptables' rules can match.
//!
//! ```no_run
//! use telaio_netlink::ipset::Ipset;
//!
//! # fn main() -> Result<(), telaio_netlink::NetlinkError> {
//! let mut ipset = Ipset::open()?;
//! for name in ipset.names()? {
//!     ipset.each_member(&name, |member| println!("{name}: {member:?}"))?;
//! }
//! # Ok(())
//! # }
//! ```

use std::io;
use std::net::IpAddr;

use crate::addresses::ip_of;
use crate::error::NetlinkError;
use crate::socket::{NLM_F_ACK, NLM_F_DUMP, NLM_F_EXCL, NLM_F_REQUEST, Protocol, Socket};
use crate::wire::{Attributes, Message, Writer};

const SUBSYSTEM: u16 = 6 << 8;
const MESSAGE_DESTROY: u16 = SUBSYSTEM | 3;
const MESSAGE_LIST: u16 = SUBSYSTEM | 7;

const ATTR_PROTOCOL: u16 = 1;
const ATTR_SET_NAME: u16 = 2;
const ATTR_FLAGS: u16 = 6;
const ATTR_DATA: u16 = 7;
const ATTR_MEMBERS: u16 = 8;
const MEMBER_IP: u16 = 1;
const MEMBER_PORT: u16 = 4;
const MEMBER_PROTOCOL: u16 = 7;
const IP_V4: u16 = 1;
const IP_V6: u16 = 2;

/// The version of the protocol that every kernel of the last decade speaks.
const PROTOCOL_VERSION: u8 = 6;
/// List the names alone.
const FLAG_LIST_NAMES: u32 = 1 << 1;
/// ipset's own number for a set that is in use.
const ERROR_BUSY: i32 = 4100;
/// `struct nfgenmsg`: family, version, resource.
const FAMILY_HEADER_LEN: usize = 4;

/// A member of a set, as far as it is of addresses and ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Member {
    /// Its first address; sets of ports alone have none.
    pub ip: Option<IpAddr>,
    /// Its port.
    pub port: Option<u16>,
    /// The number of the port's protocol; sets of ports alone have none.
    pub protocol: Option<u8>,
}

/// A connection to the sets of the network namespace in which it was opened.
#[derive(Debug)]
pub struct Ipset {
    socket: Socket,
}

impl Ipset {
    /// Opens one.
    pub fn open() -> Result<Self, NetlinkError> {
        Ok(Self { socket: Socket::open(Protocol::Netfilter)? })
    }

    /// The names of all sets. A kernel without ipset refuses; see [`NetlinkError::is_unsupported`].
    pub fn names(&mut self) -> Result<Vec<String>, NetlinkError> {
        let doing = "listing ipsets";
        let sequence = self.socket.next_sequence();
        let mut request = Writer::new();
        begin(&mut request, MESSAGE_LIST, NLM_F_DUMP, sequence);
        request.put_be32(ATTR_FLAGS, FLAG_LIST_NAMES);
        request.end();
        self.socket.send(request.finish()?, doing)?;
        let mut names = Vec::new();
        self.socket.list(sequence, doing, |message| {
            names.extend(attributes(message).str(ATTR_SET_NAME).map(str::to_owned));
            Ok(())
        })?;
        Ok(names)
    }

    /// Gives each member of a set to `each`; none if there is no such set.
    pub fn each_member(
        &mut self,
        name: &str,
        mut each: impl FnMut(Member),
    ) -> Result<(), NetlinkError> {
        let doing = "listing an ipset";
        let sequence = self.socket.next_sequence();
        let mut request = Writer::new();
        begin(&mut request, MESSAGE_LIST, NLM_F_DUMP, sequence);
        request.put_str(ATTR_SET_NAME, name);
        request.end();
        self.socket.send(request.finish()?, doing)?;
        let listed = self.socket.list(sequence, doing, |message| {
            let members = attributes(message).nested(ATTR_MEMBERS).into_iter().flatten();
            for (_, data) in members.filter(|(number, _)| *number == ATTR_DATA) {
                each(member(Attributes(data)));
            }
            Ok(())
        });
        match listed {
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(()),
            outcome => outcome.map_err(|error| about(error, name)),
        }
    }

    /// Removes a set with its members. `false` if it was gone already. One that a rule still matches,
    /// or that is in another set, stays; see [`NetlinkError::is_busy`].
    pub fn destroy(&mut self, name: &str) -> Result<bool, NetlinkError> {
        let doing = "destroying an ipset";
        let sequence = self.socket.next_sequence();
        self.socket.send(destroy_request(name, sequence).finish()?, doing)?;
        match self.socket.acknowledge(sequence, sequence, doing) {
            Ok(()) => Ok(true),
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(false),
            Err(error) => Err(about(error, name)),
        }
    }
}

fn begin(request: &mut Writer, message: u16, flags: u16, sequence: u32) {
    request.begin(message, NLM_F_REQUEST | flags, sequence, &[0; FAMILY_HEADER_LEN]);
    request.put_u8(ATTR_PROTOCOL, PROTOCOL_VERSION);
}

/// Without a name this would destroy all sets, so it always has one, if an empty one, which no set has.
fn destroy_request(name: &str, sequence: u32) -> Writer {
    let mut request = Writer::new();
    // Without the flag newer kernels call it a success if there is no such set.
    begin(&mut request, MESSAGE_DESTROY, NLM_F_ACK | NLM_F_EXCL, sequence);
    request.put_str(ATTR_SET_NAME, name);
    request.end();
    request
}

fn attributes<'a>(message: &Message<'a>) -> Attributes<'a> {
    message.attributes(FAMILY_HEADER_LEN)
}

fn member(data: Attributes<'_>) -> Member {
    let ip = data.nested(MEMBER_IP).and_then(|ip| ip.get(IP_V4).or_else(|| ip.get(IP_V6)));
    Member {
        ip: ip.and_then(ip_of),
        port: data.be16(MEMBER_PORT),
        protocol: data.u8(MEMBER_PROTOCOL),
    }
}

/// ipset's refusals are bare numbers, some of its own; the set's name tells more.
fn about(error: NetlinkError, name: &str) -> NetlinkError {
    match error {
        NetlinkError::Refused { doing, error, sequence, .. } => {
            let is_busy = error.raw_os_error() == Some(ERROR_BUSY);
            let error = if is_busy { io::Error::from_raw_os_error(libc::EBUSY) } else { error };
            NetlinkError::Refused { doing, error, message: name.to_owned(), sequence }
        }
        other => other,
    }
}

#[cfg(test)]
mod tests;
