//! Sets of ports, and how the kernel finds a port in them.
//!
//! A range of ports is kept in the kernel as few *prefixes*: ports that begin with the same bits. So ports are found by
//! hashing, once for each length of prefix that a set uses, and mostly that is one: single ports.

use std::collections::BTreeSet;

use telaio_model::Protocol;

/// How many bits a port has.
pub(super) const PORT_BITS: u8 = 16;

/// Which ports of which protocols are meant.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum PortSet {
    /// Everything, also protocols without ports.
    All,
    /// These: protocol, first and last; in order, and none touches the next.
    Ranges(Box<[(Protocol, u16, u16)]>),
}

/// Ports that begin with the same bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct PortPrefix {
    /// How many bits are the same.
    pub(super) len: u8,
    /// Their protocol.
    pub(super) protocol: Protocol,
    /// The first of them.
    pub(super) port: u16,
}

impl PortSet {
    /// None.
    pub(super) fn none() -> Self {
        Self::Ranges(Box::default())
    }

    /// These ranges, which may overlap.
    pub(super) fn of(ranges: impl IntoIterator<Item = (Protocol, u16, u16)>) -> Self {
        let mut ranges: Vec<(Protocol, u16, u16)> = ranges.into_iter().collect();
        ranges.sort_unstable();
        let mut merged: Vec<(Protocol, u16, u16)> = Vec::with_capacity(ranges.len());
        for (protocol, first, last) in ranges {
            match merged.last_mut() {
                Some((same, _, end)) if *same == protocol && first <= end.saturating_add(1) => {
                    *end = last.max(*end);
                }
                _ => merged.push((protocol, first, last)),
            }
        }
        Self::Ranges(merged.into())
    }

    /// Nothing is meant.
    pub(super) fn is_empty(&self) -> bool {
        matches!(self, Self::Ranges(ranges) if ranges.is_empty())
    }

    /// What is in either.
    pub(super) fn union(&self, other: &Self) -> Self {
        match (self, other) {
            (Self::Ranges(one), Self::Ranges(other)) => Self::of(one.iter().chain(other).copied()),
            _ => Self::All,
        }
    }

    /// The same as prefixes; nothing for everything.
    pub(super) fn prefixes(&self) -> BTreeSet<PortPrefix> {
        let Self::Ranges(ranges) = self else { return BTreeSet::new() };
        let mut prefixes = BTreeSet::new();
        for (protocol, first, last) in ranges {
            let mut from = u32::from(*first);
            let end = u32::from(*last) + 1;
            while from < end {
                // As many as begin here: no more than the place allows, and not beyond the end.
                let by_place = if from == 0 { PORT_BITS.into() } else { from.trailing_zeros() };
                let bits = by_place.min((end - from).ilog2());
                let len = PORT_BITS - bits as u8;
                prefixes.insert(PortPrefix { len, protocol: *protocol, port: from as u16 });
                from += 1 << bits;
            }
        }
        prefixes
    }
}

/// The bits of a port that a prefix of this length keeps.
pub(super) fn port_mask(len: u8) -> u16 {
    let bits = PORT_BITS - len.min(PORT_BITS);
    u16::MAX.checked_shl(bits.into()).unwrap_or(0)
}

/// The number of a protocol in packets.
pub(super) fn protocol_number(protocol: Protocol) -> u8 {
    match protocol {
        Protocol::Tcp => 6,
        Protocol::Udp => 17,
        Protocol::Sctp => 132,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn ranges_that_touch_become_one_and_protocols_stay_apart() {
        let set = PortSet::of([
            (Protocol::Udp, 53, 53),
            (Protocol::Tcp, 81, 90),
            (Protocol::Tcp, 80, 80),
            (Protocol::Tcp, 85, 100),
        ]);
        let expected = [(Protocol::Tcp, 80, 100), (Protocol::Udp, 53, 53)];
        assert_eq!(set, PortSet::Ranges(expected.into()));
    }

    #[test]
    fn every_port_is_one_prefix_without_bits() {
        let prefixes = PortSet::of([(Protocol::Tcp, 0, u16::MAX)]).prefixes();
        let all = PortPrefix { len: 0, protocol: Protocol::Tcp, port: 0 };
        assert_eq!(prefixes.into_iter().collect::<Vec<_>>(), [all]);
        assert_eq!((port_mask(0), port_mask(4), port_mask(16)), (0, 0xf000, 0xffff));
    }

    proptest! {
        #[test]
        fn prefixes_have_just_the_ports_of_the_set(
            ranges in prop::collection::vec((any::<u16>(), any::<u16>()), 0..5),
            port in any::<u16>(),
        ) {
            let ordered = ranges.iter().map(|(a, b)| (Protocol::Tcp, *a.min(b), *a.max(b)));
            let set = PortSet::of(ordered.clone());
            let prefixes = set.prefixes();
            let found = prefixes.iter().any(|it| port & port_mask(it.len) == it.port);
            let meant = ordered.clone().any(|(_, first, last)| (first..=last).contains(&port));
            prop_assert_eq!(found, meant);
            prop_assert!(prefixes.len() <= 30 * ranges.len());
            for edge in ordered.flat_map(|(_, first, last)| [first, last]) {
                prop_assert!(prefixes.iter().any(|it| edge & port_mask(it.len) == it.port));
            }
        }
    }
}
