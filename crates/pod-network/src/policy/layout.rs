//! The names and shapes of our table: what an operator sees in `nft list ruleset`.
//!
//! One table `telaio-policy` per family. There is no chain per pod and none per policy: maps say of which profile an
//! instance is and of which class its peer, and what the one allows the other.
//!
//! | map or set | key | value |
//! |---|---|---|
//! | `ingress`, `egress` | address of an instance that policies limit | its profile |
//! | `own` | such an address . the same address | |
//! | `peers` | address of a pod that rules ask for | its class |
//! | `blocks-N` | network of N bits that rules ask for | its class |
//! | `grants` | profile . class | a gate, where it is not the profile's open one |
//! | `open` | profile | the gate for anybody |
//! | `gates` | gate | where to go: a chain `gate-…`, or back: everything may pass |
//! | `ports-N` | gate . protocol . the first N bits of a port | |
//! | `namespaces` | namespace with policies, by a hash of its name | |
//! | `unjudged` | address of an instance of such a namespace that is new here | |
//! | `arrived` | address of any instance that is new here | |
//!
//! The last two are filled by whoever attaches instances; see [`newcomers`](super::newcomers).
//!
//! A packet that begins a connection goes `policies` → `egress` (back if it may go on) → `ingress`. Profiles, classes and gates
//! are numbers, and only gates lead to verdicts: the kernel checks every verdict of a table whenever one changes, so there are
//! as many as there are different sets of ports.

use telaio_model::IpFamily;
use telaio_netlink::nftables::{DataType, Family, SetSpec};

use super::facts::Direction;

/// The name of our tables.
pub const TABLE: &str = "telaio-policy";

/// The chain that the kernel begins with.
pub(super) const BASE_CHAIN: &str = "policies";

/// Its place among others at the same hook: before anybody gives packets another source.
pub(super) const BASE_PRIORITY: i32 = 0;

/// The family as nftables names it.
pub(super) fn nft_family(family: IpFamily) -> Family {
    match family {
        IpFamily::V4 => Family::Ip,
        IpFamily::V6 => Family::Ip6,
    }
}

/// The chain that judges a direction.
pub(super) fn judge_chain(direction: Direction) -> &'static str {
    match direction {
        Direction::Ingress => "ingress",
        Direction::Egress => "egress",
    }
}

/// The chain that lets through what anybody may do, and nothing else.
pub(super) fn open_chain(direction: Direction) -> &'static str {
    match direction {
        Direction::Ingress => "ingress-open",
        Direction::Egress => "egress-open",
    }
}

/// The chain of a set of ports.
pub(super) fn gate_chain(number: u32) -> String {
    format!("gate-{number:08x}")
}

/// The maps and sets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Map {
    /// The profiles of instances.
    Profiles(Direction),
    /// Instances, with themselves.
    Own,
    /// The classes of pods.
    Peers,
    /// The classes of networks of so many bits.
    Blocks(u8),
    /// What profiles allow classes.
    Grants,
    /// What profiles allow anybody.
    Open,
    /// Where gates lead.
    Gates,
    /// Ports by so many of their bits.
    Ports(u8),
    /// Namespaces that have policies.
    Namespaces,
    /// Addresses of instances that nobody has judged yet: nothing comes from them or goes to them.
    Unjudged,
    /// Addresses that somebody has attached and that we have not seen yet.
    Arrived,
}

impl Map {
    /// Those that are always there.
    pub(super) const FIXED: [Self; 10] = [
        Self::Profiles(Direction::Ingress),
        Self::Profiles(Direction::Egress),
        Self::Own,
        Self::Peers,
        Self::Grants,
        Self::Open,
        Self::Gates,
        Self::Namespaces,
        Self::Unjudged,
        Self::Arrived,
    ];

    /// Its name.
    pub(super) fn name(self) -> String {
        match self {
            Self::Profiles(Direction::Ingress) => "ingress".to_owned(),
            Self::Profiles(Direction::Egress) => "egress".to_owned(),
            Self::Own => "own".to_owned(),
            Self::Peers => "peers".to_owned(),
            Self::Blocks(len) => format!("blocks-{len}"),
            Self::Grants => "grants".to_owned(),
            Self::Open => "open".to_owned(),
            Self::Gates => "gates".to_owned(),
            Self::Ports(len) => format!("ports-{len}"),
            Self::Namespaces => "namespaces".to_owned(),
            Self::Unjudged => "unjudged".to_owned(),
            Self::Arrived => "arrived".to_owned(),
        }
    }

    /// The map of this name, if there can be one.
    pub(super) fn named(name: &str) -> Option<Self> {
        if let Some(map) = Self::FIXED.into_iter().find(|map| map.name() == name) {
            return Some(map);
        }
        let of_len = |prefix: &str| name.strip_prefix(prefix)?.parse().ok();
        let map = of_len("blocks-").map(Self::Blocks).or_else(|| of_len("ports-").map(Self::Ports));
        map.filter(|map| map.name() == name)
    }

    /// The types of its key.
    pub(super) fn key(self, family: IpFamily) -> Vec<DataType> {
        let address = match family {
            IpFamily::V4 => DataType::Ipv4,
            IpFamily::V6 => DataType::Ipv6,
        };
        match self {
            Self::Profiles(_) | Self::Peers | Self::Blocks(_) | Self::Unjudged | Self::Arrived => {
                vec![address]
            }
            Self::Own => vec![address, address],
            Self::Grants | Self::Namespaces => vec![DataType::Mark, DataType::Mark],
            Self::Open | Self::Gates => vec![DataType::Mark],
            Self::Ports(_) => vec![DataType::Mark, DataType::Protocol, DataType::Port],
        }
    }

    /// Its values are numbers.
    pub(super) fn has_values(self) -> bool {
        let is_set = self == Self::Namespaces || self.is_mailbox();
        !is_set && !matches!(self, Self::Own | Self::Ports(_) | Self::Gates)
    }

    /// Its elements are put there by others, who attach instances.
    pub(super) fn is_mailbox(self) -> bool {
        matches!(self, Self::Unjudged | Self::Arrived)
    }

    /// Its values are verdicts.
    pub(super) fn is_verdicts(self) -> bool {
        self == Self::Gates
    }

    /// The lengths of its keys and values, as the kernel tells them.
    #[expect(
        clippy::redundant_closure_for_method_calls,
        reason = "the method is not general enough"
    )]
    pub(super) fn lengths(self, family: IpFamily) -> (u32, u32) {
        self.with_spec(family, |spec| spec.lengths())
    }

    /// Calls `with` with what the kernel is told when the map is made.
    pub(super) fn with_spec<T>(self, family: IpFamily, with: impl FnOnce(&SetSpec<'_>) -> T) -> T {
        let (name, key) = (self.name(), self.key(family));
        with(&SetSpec {
            name: &name,
            key: &key,
            values: self.has_values().then_some(&[DataType::Mark]),
            verdicts: self.is_verdicts(),
            // It grows as it needs to.
            size: 0,
            dynamic_timeout_ms: None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_is_found_by_its_name_and_by_no_other() {
        for map in Map::FIXED.into_iter().chain([Map::Blocks(0), Map::Blocks(128), Map::Ports(16)])
        {
            assert_eq!(Map::named(&map.name()), Some(map));
        }
        for other in ["blocks-", "blocks-08", "blocks-300", "ports", "telaio"] {
            assert_eq!(Map::named(other), None);
        }
    }
}
