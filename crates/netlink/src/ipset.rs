//! ipset: the kernel's named sets of addresses and ports, which iptables' rules can match.
//!
//! Sets of our own are made by a [`SetSpec`], and their members are [`Entry`]s, added and removed many at a
//! time. Sets of others are read as far as their [`Member`]s have addresses and ports.
//!
//! What always holds:
//! - Adding what is there and removing what is not there count as done. Adding what is there with another
//!   mark changes the mark.
//! - Of many entries, one that is refused keeps no other from being added or removed.
//! - Errors name the set.
//!
//! ```no_run
//! use telaio_netlink::ipset::{Entry, Ipset, Key, SetKind, SetSpec};
//!
//! # fn main() -> Result<(), telaio_netlink::NetlinkError> {
//! # let ip = "10.96.0.1".parse().unwrap();
//! let mut ipset = Ipset::open()?;
//! ipset.create("services", &SetSpec::new(SetKind::IpPort, false))?;
//! ipset.add("services", &[Entry::new(Key::IpPort { ip, protocol: 6, port: 80 })])?;
//! for name in ipset.names()? {
//!     ipset.each_member(&name, |member| println!("{name}: {member:?}"))?;
//! }
//! # Ok(())
//! # }
//! ```

mod entry;
mod set;

use std::io;
use std::net::IpAddr;

pub use entry::{Entry, Key, Mark};
pub use set::{SetHeader, SetKind, SetSpec};

use crate::addresses::ip_of;
use crate::batch::Failure;
use crate::error::NetlinkError;
use crate::socket::{NLM_F_ACK, NLM_F_DUMP, NLM_F_EXCL, NLM_F_REQUEST, Protocol, Socket};
use crate::wire::{Attributes, Message, Writer};

const SUBSYSTEM: u16 = 6 << 8;
const MESSAGE_CREATE: u16 = SUBSYSTEM + 2;
const MESSAGE_DESTROY: u16 = SUBSYSTEM + 3;
const MESSAGE_FLUSH: u16 = SUBSYSTEM + 4;
const MESSAGE_LIST: u16 = SUBSYSTEM + 7;
const MESSAGE_ADD: u16 = SUBSYSTEM + 9;
const MESSAGE_DELETE: u16 = SUBSYSTEM + 10;
const MESSAGE_TYPE: u16 = SUBSYSTEM + 13;

const ATTR_PROTOCOL: u16 = 1;
const ATTR_SET_NAME: u16 = 2;
const ATTR_TYPE_NAME: u16 = 3;
const ATTR_REVISION: u16 = 4;
const ATTR_FAMILY: u16 = 5;
const ATTR_FLAGS: u16 = 6;
const ATTR_DATA: u16 = 7;
const ATTR_MEMBERS: u16 = 8;
const ATTR_LINE: u16 = 9;
const ATTR_REVISION_MIN: u16 = 10;
const MEMBER_IP: u16 = 1;
const MEMBER_PORT: u16 = 4;
const MEMBER_PROTOCOL: u16 = 7;
const IP_V4: u16 = 1;
const IP_V6: u16 = 2;
/// Says that an attribute's value is big-endian. ipset refuses numbers without it.
const BIG_ENDIAN: u16 = 0x4000;

/// The version of the protocol that every kernel of the last decade speaks.
const PROTOCOL_VERSION: u8 = 6;
/// List the names alone.
const FLAG_LIST_NAMES: u32 = 1 << 1;
/// List what the sets are, without their members.
const FLAG_LIST_HEADERS: u32 = 1 << 2;
/// ipset's own numbers for errors.
const ERROR_KIND: i32 = 4098;
const ERROR_BUSY: i32 = 4100;
const ERROR_CIDR: i32 = 4104;
const ERROR_SKBINFO: i32 = 4114;
const ERROR_FULL: i32 = 4352;
/// `struct nfgenmsg`: family, version, resource.
const FAMILY_HEADER_LEN: usize = 4;
/// A message with entries is sent when it has this many bytes. If one entry is refused the whole message
/// comes back, and that has to have room in a datagram.
const MESSAGE_BYTES: usize = 24 << 10;

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
    commands: u64,
}

impl Ipset {
    /// Opens one.
    pub fn open() -> Result<Self, NetlinkError> {
        Ok(Self { socket: Socket::open(Protocol::Netfilter)?, commands: 0 })
    }

    /// How many changes this connection has asked for: sets made, emptied and destroyed, and entries added
    /// and removed. Reading is none.
    pub fn commands(&self) -> u64 {
        self.commands
    }

    /// The names of all sets. A kernel without ipset refuses; see [`NetlinkError::is_unsupported`].
    pub fn names(&mut self) -> Result<Vec<String>, NetlinkError> {
        let mut names = Vec::new();
        let flags = |request: &mut Writer| request.put_be32(ATTR_FLAGS, FLAG_LIST_NAMES);
        self.list("listing ipsets", flags, |message| {
            names.extend(attributes(message).str(ATTR_SET_NAME).map(str::to_owned));
            Ok(())
        })?;
        Ok(names)
    }

    /// What all sets are, without their members.
    pub fn headers(&mut self) -> Result<Vec<SetHeader>, NetlinkError> {
        let mut found = Vec::new();
        let flags = |request: &mut Writer| request.put_be32(ATTR_FLAGS, FLAG_LIST_HEADERS);
        self.list("listing ipsets", flags, |message| {
            // A set that goes on in another message says again only its name.
            found.extend(set::header(attributes(message)));
            Ok(())
        })?;
        Ok(found)
    }

    /// What a set is. `None` if there is no such set.
    pub fn header(&mut self, name: &str) -> Result<Option<SetHeader>, NetlinkError> {
        let mut found = None;
        let fill = |request: &mut Writer| {
            request.put_str(ATTR_SET_NAME, name);
            request.put_be32(ATTR_FLAGS, FLAG_LIST_HEADERS);
        };
        let listed = self.list("listing an ipset", fill, |message| {
            found = found.take().or_else(|| set::header(attributes(message)));
            Ok(())
        });
        unless_absent(listed, name)?;
        Ok(found)
    }

    /// The entries of a set of a kind that we make; none if there is no such set.
    pub fn entries(&mut self, name: &str, kind: SetKind) -> Result<Vec<Entry>, NetlinkError> {
        let doing = "listing an ipset";
        let mut found = Vec::new();
        let fill = |request: &mut Writer| request.put_str(ATTR_SET_NAME, name);
        let listed = self.list(doing, fill, |message| {
            for data in listed_members(message) {
                let what = "an entry of another kind";
                let entry = entry::read(kind, data);
                found.push(entry.ok_or(NetlinkError::Malformed { doing, what })?);
            }
            Ok(())
        });
        unless_absent(listed, name)?;
        Ok(found)
    }

    /// Gives each member of a set of any kind to `each`; none if there is no such set.
    pub fn each_member(
        &mut self,
        name: &str,
        mut each: impl FnMut(Member),
    ) -> Result<(), NetlinkError> {
        let fill = |request: &mut Writer| request.put_str(ATTR_SET_NAME, name);
        let listed = self.list("listing an ipset", fill, |message| {
            listed_members(message).for_each(|data| each(member(data)));
            Ok(())
        });
        unless_absent(listed, name)
    }

    fn list(
        &mut self,
        doing: &'static str,
        fill: impl FnOnce(&mut Writer),
        each: impl FnMut(&Message<'_>) -> Result<(), NetlinkError>,
    ) -> Result<(), NetlinkError> {
        let sequence = self.socket.next_sequence();
        let mut request = Writer::new();
        begin(&mut request, MESSAGE_LIST, NLM_F_DUMP, sequence);
        fill(&mut request);
        request.end();
        self.socket.send(request.finish()?, doing)?;
        self.socket.list(sequence, doing, each)
    }

    /// Makes a set without members. `false` if it is there as it should be; one that is there and is another
    /// is an error, `EEXIST`.
    pub fn create(&mut self, name: &str, spec: &SetSpec) -> Result<bool, NetlinkError> {
        let doing = "creating an ipset";
        let (revision_min, revision_max) = self.revisions(spec)?;
        let revision = spec.kind.revision().clamp(revision_min, revision_max);
        let request = |sequence| set::create_request(name, spec, revision, sequence);
        match self.command(name, doing, request) {
            Ok(()) => Ok(true),
            Err(error) if error.raw_os_error() == Some(libc::EEXIST) => {
                let is_it = self.header(name)?.is_some_and(|it| it.is_of(spec));
                if is_it { Ok(false) } else { Err(error) }
            }
            Err(error) => Err(error),
        }
    }

    /// Which revisions of a kind of sets the kernel knows.
    fn revisions(&mut self, spec: &SetSpec) -> Result<(u8, u8), NetlinkError> {
        let doing = "asking for a kind of ipsets";
        let name = spec.kind.name();
        let sequence = self.socket.next_sequence();
        let mut request = Writer::new();
        begin(&mut request, MESSAGE_TYPE, NLM_F_ACK, sequence);
        request.put_str(ATTR_TYPE_NAME, name);
        request.put_u8(ATTR_FAMILY, spec.family());
        request.end();
        self.socket.send(request.finish()?, doing)?;
        let mut found = None;
        let answered = self.socket.list(sequence, doing, |message| {
            let attributes = attributes(message);
            let revision_max = attributes.u8(ATTR_REVISION);
            let revision_min = attributes.u8(ATTR_REVISION_MIN).or(revision_max);
            found = revision_min.zip(revision_max).or(found);
            Ok(())
        });
        answered.map_err(|error| about(error, name))?;
        let is_range = found.filter(|(min, max)| min <= max);
        is_range.ok_or(NetlinkError::Malformed { doing, what: "no revisions" })
    }

    /// Adds entries to a set; those that were refused, in order.
    pub fn add(&mut self, name: &str, entries: &[Entry]) -> Result<Vec<Failure>, NetlinkError> {
        self.change(MESSAGE_ADD, "adding to an ipset", name, entries)
    }

    /// Removes entries from a set, whatever marks they have; those that were refused, in order.
    pub fn delete(&mut self, name: &str, entries: &[Entry]) -> Result<Vec<Failure>, NetlinkError> {
        self.change(MESSAGE_DELETE, "removing from an ipset", name, entries)
    }

    /// The kernel carries out the entries of a message until it refuses one. Then what follows that one is
    /// sent anew.
    fn change(
        &mut self,
        message: u16,
        doing: &'static str,
        name: &str,
        entries: &[Entry],
    ) -> Result<Vec<Failure>, NetlinkError> {
        let mut failures = Vec::new();
        let mut done = 0;
        while done < entries.len() {
            let sequence = self.socket.next_sequence();
            let mut request = Writer::new();
            let count = entry::put_many(&mut request, message, sequence, name, &entries[done..]);
            self.socket.send(request.finish()?, doing)?;
            let place = |request: &Message<'_>| entry::refused_place(attributes(request));
            match self.socket.acknowledge_with(sequence, doing, place)? {
                Ok(()) => done += count,
                Err((error, place)) => {
                    // Without a place it is about the set as a whole, and so about every entry.
                    let Some(place) = place.flatten().filter(|place| *place < count) else {
                        return Err(about(error, name));
                    };
                    failures.push(Failure { index: done + place, error: about(error, name) });
                    done += place + 1;
                }
            }
        }
        self.commands += entries.len() as u64;
        Ok(failures)
    }

    /// Removes all members of a set. `false` if there is no such set.
    pub fn flush(&mut self, name: &str) -> Result<bool, NetlinkError> {
        let doing = "emptying an ipset";
        self.named(name, doing, |sequence| named_request(MESSAGE_FLUSH, name, sequence))
    }

    /// Removes a set with its members. `false` if it was gone already. One that a rule still matches,
    /// or that is in another set, stays; see [`NetlinkError::is_busy`].
    pub fn destroy(&mut self, name: &str) -> Result<bool, NetlinkError> {
        let doing = "destroying an ipset";
        self.named(name, doing, |sequence| named_request(MESSAGE_DESTROY, name, sequence))
    }

    fn named(
        &mut self,
        name: &str,
        doing: &'static str,
        request: impl FnOnce(u32) -> Writer,
    ) -> Result<bool, NetlinkError> {
        match self.command(name, doing, request) {
            Ok(()) => Ok(true),
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn command(
        &mut self,
        name: &str,
        doing: &'static str,
        request: impl FnOnce(u32) -> Writer,
    ) -> Result<(), NetlinkError> {
        self.commands += 1;
        let sequence = self.socket.next_sequence();
        self.socket.send(request(sequence).finish()?, doing)?;
        let answered = self.socket.acknowledge(sequence, sequence, doing);
        answered.map_err(|error| about(error, name))
    }
}

fn begin(request: &mut Writer, message: u16, flags: u16, sequence: u32) {
    request.begin(message, NLM_F_REQUEST | flags, sequence, &[0; FAMILY_HEADER_LEN]);
    request.put_u8(ATTR_PROTOCOL, PROTOCOL_VERSION);
}

/// Destroys or empties a set. Without a name this would be about all sets, so it always has one, if an empty
/// one, which no set has.
fn named_request(message: u16, name: &str, sequence: u32) -> Writer {
    let mut request = Writer::new();
    // Without the flag newer kernels call it a success if there is no such set.
    begin(&mut request, message, NLM_F_ACK | NLM_F_EXCL, sequence);
    request.put_str(ATTR_SET_NAME, name);
    request.end();
    request
}

fn attributes<'a>(message: &Message<'a>) -> Attributes<'a> {
    message.attributes(FAMILY_HEADER_LEN)
}

/// The members that a message of a list has.
fn listed_members<'a>(message: &Message<'a>) -> impl Iterator<Item = Attributes<'a>> {
    let members = attributes(message).nested(ATTR_MEMBERS).into_iter().flatten();
    members.filter(|(number, _)| *number == ATTR_DATA).map(|(_, data)| Attributes(data))
}

fn member(data: Attributes<'_>) -> Member {
    Member {
        ip: address(data, MEMBER_IP),
        port: data.be16(MEMBER_PORT),
        protocol: data.u8(MEMBER_PROTOCOL),
    }
}

fn address(data: Attributes<'_>, attribute: u16) -> Option<IpAddr> {
    let ip = data.nested(attribute)?;
    ip.get(IP_V4).or_else(|| ip.get(IP_V6)).and_then(ip_of)
}

/// A set that is not there has nothing to list.
fn unless_absent(listed: Result<(), NetlinkError>, name: &str) -> Result<(), NetlinkError> {
    match listed {
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(()),
        outcome => outcome.map_err(|error| about(error, name)),
    }
}

/// ipset's refusals are bare numbers, some of its own; the set's name tells more.
fn about(error: NetlinkError, name: &str) -> NetlinkError {
    let NetlinkError::Refused { doing, error, sequence, .. } = error else { return error };
    let (number, words) = match error.raw_os_error() {
        Some(ERROR_BUSY) => (libc::EBUSY, ""),
        Some(ERROR_FULL) => (libc::ENOSPC, ": it has as many members as it may"),
        Some(ERROR_KIND) => (libc::EOPNOTSUPP, ": this kernel has no such kind of sets"),
        Some(ERROR_SKBINFO) => (libc::EINVAL, ": it was made without room for marks"),
        Some(ERROR_CIDR) => (libc::EINVAL, ": the length of a prefix"),
        Some(number) => (number, ""),
        None => (libc::EIO, ""),
    };
    let error = io::Error::from_raw_os_error(number);
    NetlinkError::Refused { doing, error, message: format!("{name}{words}"), sequence }
}

#[cfg(test)]
mod tests;
