//! The kernel's numbers for nftables, and nft's for the types that it prints.

use crate::socket::{NLM_F_APPEND, NLM_F_CREATE};

/// The address families of tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    /// IPv4.
    Ip,
    /// IPv6.
    Ip6,
    /// Both.
    Inet,
    /// Frames on bridges.
    Bridge,
}

impl Family {
    pub(crate) fn number(self) -> u8 {
        match self {
            Self::Inet => 1,
            Self::Ip => 2,
            Self::Bridge => 7,
            Self::Ip6 => 10,
        }
    }

    pub(crate) fn from_number(number: u8) -> Option<Self> {
        match number {
            1 => Some(Self::Inet),
            2 => Some(Self::Ip),
            7 => Some(Self::Bridge),
            10 => Some(Self::Ip6),
            _ => None,
        }
    }
}

impl std::fmt::Display for Family {
    /// As nft writes it.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Ip => "ip",
            Self::Ip6 => "ip6",
            Self::Inet => "inet",
            Self::Bridge => "bridge",
        })
    }
}

/// How the nft program names a value's type. The kernel only carries it; without it `nft list` prints
/// bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DataType {
    /// An IPv4 address.
    Ipv4,
    /// An IPv6 address.
    Ipv6,
    /// A hardware address.
    Ethernet,
    /// A protocol's number.
    Protocol,
    /// A port.
    Port,
    /// A packet mark: a number in the machine's byte order.
    Mark,
    /// A group of interfaces: a number in the machine's byte order.
    Group,
    /// The name of an interface, filled up with zeros.
    InterfaceName,
}

impl DataType {
    fn number(self) -> u32 {
        match self {
            Self::Ipv4 => 7,
            Self::Ipv6 => 8,
            Self::Ethernet => 9,
            Self::Protocol => 12,
            Self::Port => 13,
            Self::Mark => 19,
            Self::Group => 35,
            Self::InterfaceName => 41,
        }
    }

    /// Its length in a register: padded to whole registers.
    pub fn len(self) -> u32 {
        match self {
            Self::Ipv6 | Self::InterfaceName => 16,
            Self::Ethernet => 8,
            _ => 4,
        }
    }

    /// Never; here because clippy wants it beside `len`.
    pub fn is_empty(self) -> bool {
        false
    }

    /// Type and length of several in a row.
    pub(crate) fn concatenated(types: &[Self]) -> (u32, u32) {
        let number = types.iter().fold(0, |number, it| (number << 6) | it.number());
        let length = match types {
            // Alone, a value is not padded.
            [Self::Protocol] => 1,
            [Self::Port] => 2,
            [Self::Ethernet] => 6,
            _ => types.iter().map(|it| it.len()).sum(),
        };
        (number, length)
    }
}

/// The subsystem within netfilter.
pub(crate) const SUBSYSTEM: u16 = 10;

pub(crate) const fn message(number: u16) -> u16 {
    SUBSYSTEM << 8 | number
}

pub(crate) const NEW_TABLE: u16 = message(0);
pub(crate) const GET_TABLE: u16 = message(1);
pub(crate) const DELETE_TABLE: u16 = message(2);
pub(crate) const NEW_CHAIN: u16 = message(3);
pub(crate) const GET_CHAIN: u16 = message(4);
pub(crate) const DELETE_CHAIN: u16 = message(5);
pub(crate) const NEW_RULE: u16 = message(6);
pub(crate) const GET_RULE: u16 = message(7);
pub(crate) const DELETE_RULE: u16 = message(8);
pub(crate) const NEW_SET: u16 = message(9);
pub(crate) const GET_SET: u16 = message(10);
pub(crate) const DELETE_SET: u16 = message(11);
pub(crate) const NEW_ELEMENT: u16 = message(12);
pub(crate) const GET_ELEMENT: u16 = message(13);
pub(crate) const DELETE_ELEMENT: u16 = message(14);
pub(crate) const NEW_GENERATION: u16 = message(15);
pub(crate) const GET_GENERATION: u16 = message(16);
pub(crate) const BATCH_BEGIN: u16 = 0x10;
pub(crate) const BATCH_END: u16 = 0x11;

pub(crate) const CREATE: u16 = NLM_F_CREATE;
pub(crate) const APPEND: u16 = NLM_F_CREATE | NLM_F_APPEND;

/// The multicast group of nftables' changes.
pub(crate) const GROUP_NFTABLES: u32 = 7;

/// The netfilter header: family, version, resource.
pub(crate) const HEADER_LEN: usize = 4;

pub(crate) fn header(family: u8, resource: u16) -> [u8; HEADER_LEN] {
    let [high, low] = resource.to_be_bytes();
    [family, 0, high, low]
}

pub(crate) mod table {
    pub(crate) const NAME: u16 = 1;
    pub(crate) const FLAGS: u16 = 2;
}

pub(crate) mod chain {
    pub(crate) const TABLE: u16 = 1;
    pub(crate) const NAME: u16 = 3;
    pub(crate) const HOOK: u16 = 4;
    pub(crate) const POLICY: u16 = 5;
    pub(crate) const TYPE: u16 = 7;
    pub(crate) const HOOK_NUMBER: u16 = 1;
    pub(crate) const HOOK_PRIORITY: u16 = 2;
}

pub(crate) mod rule {
    pub(crate) const TABLE: u16 = 1;
    pub(crate) const CHAIN: u16 = 2;
    pub(crate) const HANDLE: u16 = 3;
    pub(crate) const EXPRESSIONS: u16 = 4;
    pub(crate) const USERDATA: u16 = 7;
    pub(crate) const LIST_ELEMENT: u16 = 1;
    pub(crate) const EXPRESSION_NAME: u16 = 1;
    pub(crate) const EXPRESSION_DATA: u16 = 2;
    /// nft's type of a comment within the user data.
    pub(crate) const USERDATA_COMMENT: u8 = 0;
}

pub(crate) mod set {
    pub(crate) const TABLE: u16 = 1;
    pub(crate) const NAME: u16 = 2;
    pub(crate) const FLAGS: u16 = 3;
    pub(crate) const KEY_TYPE: u16 = 4;
    pub(crate) const KEY_LEN: u16 = 5;
    pub(crate) const DATA_TYPE: u16 = 6;
    pub(crate) const DATA_LEN: u16 = 7;
    pub(crate) const DESCRIPTION: u16 = 9;
    pub(crate) const ID: u16 = 10;
    pub(crate) const TIMEOUT: u16 = 11;
    pub(crate) const USERDATA: u16 = 13;
    pub(crate) const USERDATA_KEY_ORDER: u8 = 0;
    pub(crate) const USERDATA_DATA_ORDER: u8 = 1;
    pub(crate) const DESCRIPTION_SIZE: u16 = 1;

    pub(crate) const FLAG_MAP: u32 = 0x8;
    pub(crate) const FLAG_TIMEOUT: u32 = 0x10;
    pub(crate) const FLAG_DYNAMIC: u32 = 0x20;
    pub(crate) const DATA_VERDICT: u32 = 0xffff_ff00;
}

pub(crate) mod element {
    pub(crate) const TABLE: u16 = 1;
    pub(crate) const SET: u16 = 2;
    pub(crate) const ELEMENTS: u16 = 3;
    pub(crate) const LIST_ELEMENT: u16 = 1;
    pub(crate) const KEY: u16 = 1;
    pub(crate) const DATA: u16 = 2;
    pub(crate) const TIMEOUT: u16 = 4;
    pub(crate) const EXPIRATION: u16 = 5;
}

pub(crate) mod data {
    pub(crate) const VALUE: u16 = 1;
    pub(crate) const VERDICT: u16 = 2;
    pub(crate) const VERDICT_CODE: u16 = 1;
    pub(crate) const VERDICT_CHAIN: u16 = 2;
}

pub(crate) mod generation {
    pub(crate) const ID: u16 = 1;
    pub(crate) const PROCESS_ID: u16 = 2;
    pub(crate) const PROCESS_NAME: u16 = 3;
}
