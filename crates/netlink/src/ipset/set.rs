//! What a set is.

use super::{
    ATTR_DATA, ATTR_FAMILY, ATTR_REVISION, ATTR_SET_NAME, ATTR_TYPE_NAME, BIG_ENDIAN,
    MESSAGE_CREATE, begin,
};
use crate::socket::{NLM_F_ACK, NLM_F_CREATE, NLM_F_EXCL};
use crate::wire::{Attributes, Writer};

const DATA_FLAGS: u16 = 8;
const DATA_HASH_SIZE: u16 = 18;
const DATA_MEMBERS_MAX: u16 = 19;
const DATA_MEMBERS: u16 = 24;
const DATA_REFERENCES: u16 = 25;

/// Members have room for a mark, among others.
const FLAG_WITH_SKBINFO: u32 = 1 << 6;

const V4: u8 = libc::AF_INET as u8;
const V6: u8 = libc::AF_INET6 as u8;

/// How many members a set can have, if nobody says; ipset(8) has the same.
const MEMBERS_MAX: u32 = 65_536;
/// How large a set's table is to begin with, if nobody says; ipset(8) has the same.
const HASH_SIZE: u32 = 1024;

/// The kinds of sets that we make.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SetKind {
    /// Addresses.
    Ip,
    /// Addresses with ports.
    IpPort,
    /// Addresses with ports, and a second address.
    IpPortIp,
    /// Addresses with ports, and a network.
    IpPortNet,
}

impl SetKind {
    /// As ipset calls it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ip => "hash:ip",
            Self::IpPort => "hash:ip,port",
            Self::IpPortIp => "hash:ip,port,ip",
            Self::IpPortNet => "hash:ip,port,net",
        }
    }

    /// The first revision that has room for marks. Newer ones have nothing that we use, and older programs
    /// cannot read them.
    pub(super) fn revision(self) -> u8 {
        match self {
            Self::Ip => 4,
            Self::IpPort | Self::IpPortIp => 5,
            Self::IpPortNet => 7,
        }
    }
}

/// A set that is to be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SetSpec {
    /// What its members are.
    pub kind: SetKind,
    /// Of IPv6, not IPv4.
    pub is_v6: bool,
    /// Members have room for a mark, which the target `SET` puts on packets.
    pub has_marks: bool,
    /// How many members it can have.
    pub members_max: u32,
    /// How large its table is to begin with.
    pub hash_size: u32,
}

impl SetSpec {
    /// Without marks, and as large as ipset(8) makes them.
    pub fn new(kind: SetKind, is_v6: bool) -> Self {
        Self { kind, is_v6, has_marks: false, members_max: MEMBERS_MAX, hash_size: HASH_SIZE }
    }

    pub(super) fn family(&self) -> u8 {
        if self.is_v6 { V6 } else { V4 }
    }
}

/// A set that is there, without its members.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SetHeader {
    /// Its name.
    pub name: String,
    /// What kind it is, by ipset's name.
    pub kind: String,
    /// Of IPv6. Sets of neither family are not.
    pub is_v6: bool,
    /// The revision of its kind.
    pub revision: u8,
    /// Members have room for a mark.
    pub has_marks: bool,
    /// How many members it can have; some kinds do not say.
    pub members_max: Option<u32>,
    /// How many members it has, if the kernel says.
    pub members: Option<u32>,
    /// How large its table is now; some kinds have none.
    pub hash_size: Option<u32>,
    /// How many rules and sets need it.
    pub references: u32,
}

impl SetHeader {
    /// It is as it should be. Tables grow, so their size is no matter.
    pub fn is_of(&self, spec: &SetSpec) -> bool {
        self.kind == spec.kind.name()
            && self.is_v6 == spec.is_v6
            && self.has_marks == spec.has_marks
            && self.members_max == Some(spec.members_max)
    }
}

pub(super) fn create_request(name: &str, spec: &SetSpec, revision: u8, sequence: u32) -> Writer {
    let mut request = Writer::new();
    let flags = NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL;
    begin(&mut request, MESSAGE_CREATE, flags, sequence);
    request.put_str(ATTR_SET_NAME, name);
    request.put_str(ATTR_TYPE_NAME, spec.kind.name());
    request.put_u8(ATTR_REVISION, revision);
    request.put_u8(ATTR_FAMILY, spec.family());
    let data = request.begin_nest(ATTR_DATA);
    request.put_be32(DATA_HASH_SIZE | BIG_ENDIAN, spec.hash_size);
    request.put_be32(DATA_MEMBERS_MAX | BIG_ENDIAN, spec.members_max);
    if spec.has_marks {
        request.put_be32(DATA_FLAGS | BIG_ENDIAN, FLAG_WITH_SKBINFO);
    }
    request.end_nest(data);
    request.end();
    request
}

/// The set that a message of a list begins.
pub(super) fn header(attributes: Attributes<'_>) -> Option<SetHeader> {
    let data = attributes.nested(ATTR_DATA)?;
    Some(SetHeader {
        name: attributes.str(ATTR_SET_NAME)?.to_owned(),
        kind: attributes.str(ATTR_TYPE_NAME)?.to_owned(),
        is_v6: attributes.u8(ATTR_FAMILY)? == V6,
        revision: attributes.u8(ATTR_REVISION)?,
        has_marks: data.be32(DATA_FLAGS).unwrap_or(0) & FLAG_WITH_SKBINFO != 0,
        members_max: data.be32(DATA_MEMBERS_MAX),
        members: data.be32(DATA_MEMBERS),
        hash_size: data.be32(DATA_HASH_SIZE),
        references: data.be32(DATA_REFERENCES).unwrap_or(0),
    })
}
