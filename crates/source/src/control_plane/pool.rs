//! In which order the addresses of a network, or the ports of a range, are tried.
//!
//! Each service begins at a place of its own, by a hash of its name, and goes on from there. So the
//! same service gets the same address in any directory and after any restart unless it is taken,
//! even where nothing is saved. As in Kubernetes, the low part of a pool is tried last: that is where
//! people put the addresses that they choose themselves.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::RangeInclusive;

use ipnet::IpNet;

/// More than can be in use; keeps the arithmetic in 64 bits for IPv6.
const POOL_SIZE_MAX: u128 = 1 << 40;

/// Numbers from 0 in the order in which a service tries them.
fn order(size: u64, reserved: u64, seed: u64) -> impl Iterator<Item = u64> {
    let upper = size - reserved;
    let start = seed.checked_rem(upper).unwrap_or(0);
    let upper_part = (start..upper).chain(0..start).map(move |i| reserved + i);
    upper_part.chain(0..reserved)
}

/// How many numbers at the beginning are tried last: a share of the pool within bounds, none of a
/// small pool.
fn reserved(size: u64, share: u64, max: u64) -> u64 {
    const SMALL: u64 = 16;
    if size <= SMALL { 0 } else { (size / share).clamp(SMALL, max) }
}

/// The addresses of a network that a service can have.
pub(super) fn addresses(net: &IpNet, seed: u64) -> impl Iterator<Item = IpAddr> + use<> {
    let bits = u32::from(net.max_prefix_len() - net.prefix_len());
    let all = 1u128.checked_shl(bits).unwrap_or(u128::MAX);
    // The first address is the network's own, and IPv4's last one is for broadcast.
    let (skipped_first, skipped_last) = match net {
        _ if all <= 2 => (0, 0),
        IpNet::V4(_) => (1, 1),
        IpNet::V6(_) => (1, 0),
    };
    let size = (all - skipped_first - skipped_last).min(POOL_SIZE_MAX) as u64;
    let first = match net.network() {
        IpAddr::V4(ip) => u128::from(u32::from(ip)),
        IpAddr::V6(ip) => u128::from(ip),
    } + skipped_first;
    let is_v4 = matches!(net, IpNet::V4(_));
    order(size, reserved(size, 16, 256), seed).map(move |i| {
        let number = first + u128::from(i);
        if is_v4 {
            IpAddr::V4(Ipv4Addr::from(number as u32))
        } else {
            IpAddr::V6(Ipv6Addr::from(number))
        }
    })
}

/// The ports of a range that a service can have.
pub(super) fn ports(range: &RangeInclusive<u16>, seed: u64) -> impl Iterator<Item = u16> + use<> {
    let first = *range.start();
    let size = u64::from(range.end().saturating_sub(first)) + u64::from(!range.is_empty());
    order(size, reserved(size, 32, 128), seed).map(move |i| first + i as u16)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_usable_address_is_tried_exactly_once() {
        for (net, size) in [
            ("10.0.0.0/24", 254),
            ("10.0.0.0/30", 2),
            ("10.0.0.0/31", 2),
            ("10.0.0.1/32", 1),
            ("fd00::/124", 15),
            ("fd00::/120", 255),
        ] {
            let net: IpNet = net.parse().unwrap();
            let tried: Vec<_> = addresses(&net, 0xdead_beef).collect();
            let distinct: BTreeSet<_> = tried.iter().copied().collect();
            assert_eq!((tried.len(), distinct.len()), (size, size), "{net}");
            assert!(distinct.iter().all(|ip| net.contains(ip)), "{net}");
        }
    }

    #[test]
    fn the_low_part_is_tried_last() {
        let net: IpNet = "10.96.0.0/16".parse().unwrap();
        let low: IpNet = "10.96.0.0/24".parse().unwrap();
        let tried: Vec<_> = addresses(&net, 7).collect();
        assert!(tried[..60_000].iter().all(|ip| !low.contains(ip)));
        assert!(tried.contains(&"10.96.0.10".parse().unwrap()));
    }

    #[test]
    fn a_huge_network_and_an_empty_range_are_no_trouble() {
        let net: IpNet = "::/0".parse().unwrap();
        assert_eq!(addresses(&net, u64::MAX).take(5).count(), 5);
        assert_eq!(ports(&(30_000..=30_000), 9).collect::<Vec<_>>(), [30_000]);
        #[expect(clippy::reversed_empty_ranges, reason = "what a careless caller might pass")]
        let empty = 2..=1;
        assert_eq!(ports(&empty, 9).count(), 0);
        assert_eq!(ports(&(0..=u16::MAX), 9).count(), 65_536);
    }
}
