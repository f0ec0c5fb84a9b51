//! Which endpoint stands in which slot: pure functions of a set of endpoints.

use std::collections::BTreeSet;
use std::net::IpAddr;

use telaio_model::hash::StableHash;

use super::layout::LASTING_SLOTS;
use super::rule::{Slots, address_bytes};
use crate::plan::Destination;

/// How many slots shares are expressed in, where they have no small common measure.
const WEIGHT_SLOTS_MAX: usize = 1024;
/// The slots of a hashed service. Always the same number, for with another one every client would
/// have another slot. With more than a few hundred endpoints shares become uneven.
const HASH_SLOTS: usize = 2048;

/// An endpoint of each slot, as often as its weight says, in an order in which no endpoint comes
/// twice in a row if that can be avoided: also right for taking turns. Exact where the weights have a
/// small common measure; else as near as so many slots allow, and nobody is left out.
pub(super) fn by_weight(endpoints: &[Destination]) -> Vec<&Destination> {
    let shares = shares(endpoints);
    if shares.iter().all(|share| *share == 1) {
        return endpoints.iter().collect();
    }
    let total: i64 = shares.iter().sum();
    let mut credit = vec![0_i64; endpoints.len()];
    let mut slots = Vec::new();
    for _ in 0..total {
        for (credit, share) in credit.iter_mut().zip(&shares) {
            *credit += share;
        }
        let most = (0..credit.len()).rev().max_by_key(|i| credit[*i]).unwrap_or(0);
        credit[most] -= total;
        slots.extend(endpoints.get(most));
    }
    slots
}

fn shares(endpoints: &[Destination]) -> Vec<i64> {
    let weights: Vec<u64> = endpoints.iter().map(|it| u64::from(it.weight.max(1))).collect();
    let measure = weights.iter().copied().fold(0, gcd).max(1);
    let total: u64 = weights.iter().map(|weight| weight / measure).sum();
    let room = WEIGHT_SLOTS_MAX.max(endpoints.len()) as u64;
    let share = |weight: &u64| {
        let weight = weight / measure;
        if total <= room { weight } else { (weight * room / total).max(1) }
    };
    weights.iter().map(share).map(u64::cast_signed).collect()
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// An endpoint of each slot, by rendezvous: each slot goes to the endpoint that draws the best lot for
/// it. When an endpoint leaves, only its own slots change hands.
pub(super) fn by_rendezvous(endpoints: &[Destination]) -> Vec<&Destination> {
    let ids: Vec<u64> = endpoints.iter().map(|it| identity(it.address, it.port)).collect();
    let draw = |slot: u64, i: usize| mix(ids[i] ^ slot);
    let same_weight = endpoints.windows(2).all(|pair| pair[0].weight == pair[1].weight);
    let winner = |slot: usize| {
        let slot = mix(slot as u64);
        if same_weight {
            return (0..endpoints.len()).max_by_key(|i| draw(slot, *i));
        }
        let lots = (0..endpoints.len()).map(|i| (i, lot(draw(slot, i), endpoints[i].weight)));
        lots.max_by(|(_, one), (_, other)| one.total_cmp(other)).map(|(i, _)| i)
    };
    (0..HASH_SLOTS).filter_map(winner).filter_map(|i| endpoints.get(i)).collect()
}

/// The greatest of `weight` independent draws, without drawing them.
fn lot(draw: u64, weight: u16) -> f64 {
    let unit = (f64::from((draw >> 32) as u32) + 0.5) / f64::from(u32::MAX);
    -f64::from(weight.max(1)) / unit.ln()
}

/// The lasting slot of each endpoint. Another endpoint in the set changes it only in the unlikely case
/// that both have the same hash.
pub(super) fn lasting(endpoints: &[Destination], slots: Slots) -> Vec<u32> {
    let mut taken = BTreeSet::new();
    let choose = |endpoint: &Destination| {
        let mut number = identity(endpoint.address, endpoint.port) as u32;
        loop {
            let slot = LASTING_SLOTS | slots.offset() | (number & 0x3fff_ffff);
            if taken.insert(slot) {
                return slot;
            }
            number = number.wrapping_add(1);
        }
    };
    endpoints.iter().map(choose).collect()
}

fn identity(address: IpAddr, port: u16) -> u64 {
    let hash = StableHash::new().bytes(&address_bytes(address)).bytes(&port.to_be_bytes());
    mix(hash.finish())
}

/// Spreads every bit over all others.
fn mix(mut value: u64) -> u64 {
    value ^= value >> 33;
    value = value.wrapping_mul(0xff51_afd7_ed55_8ccd);
    value ^= value >> 33;
    value = value.wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    value ^ (value >> 33)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn endpoint(last: u8, weight: u16) -> Destination {
        Destination { address: IpAddr::from([10, 0, 0, last]), port: 80, weight, local: false }
    }

    fn counts(slots: &[&Destination]) -> BTreeMap<IpAddr, usize> {
        let mut counts = BTreeMap::new();
        for slot in slots {
            *counts.entry(slot.address).or_default() += 1;
        }
        counts
    }

    #[test]
    fn equal_weights_take_one_slot_each_whatever_they_are() {
        let endpoints = [endpoint(1, 7), endpoint(2, 7), endpoint(3, 7)];
        let slots = by_weight(&endpoints);
        assert_eq!(slots, endpoints.iter().collect::<Vec<_>>());
    }

    #[test]
    fn weights_are_exact_and_interleaved() {
        let endpoints = [endpoint(1, 30), endpoint(2, 10), endpoint(3, 10)];
        let slots: Vec<u8> =
            by_weight(&endpoints).iter().map(|it| address_bytes(it.address)[3]).collect();
        assert_eq!(slots, [1, 2, 1, 3, 1]);
    }

    #[test]
    fn weights_without_a_small_measure_leave_nobody_out_and_stay_bounded() {
        let endpoints = [endpoint(1, 65_535), endpoint(2, 65_521), endpoint(3, 1)];
        let slots = by_weight(&endpoints);
        assert!(slots.len() <= WEIGHT_SLOTS_MAX + endpoints.len());
        assert_eq!(counts(&slots)[&endpoints[2].address], 1);
    }

    #[test]
    fn an_endpoint_that_leaves_moves_only_its_own_slots() {
        for count in 2..40 {
            let all: Vec<Destination> = (1..=count).map(|i| endpoint(i, 1)).collect();
            let gone = &all[usize::from(count) / 2];
            let fewer: Vec<Destination> = all.iter().filter(|it| *it != gone).cloned().collect();
            let (before, after) = (by_rendezvous(&all), by_rendezvous(&fewer));
            assert_eq!(before.len(), after.len());
            assert!(before.contains(&gone), "{count}");
            for (before, after) in before.iter().zip(&after) {
                assert!(*before == gone || before == after, "{count}");
            }
        }
    }

    #[test]
    fn rendezvous_is_even_and_follows_weights() {
        let endpoints = [endpoint(1, 1), endpoint(2, 1), endpoint(3, 2)];
        let counts = counts(&by_rendezvous(&endpoints));
        let all: usize = counts.values().sum();
        let share = |i: usize| counts[&endpoints[i].address] * 100 / all;
        assert!((18..=32).contains(&share(0)), "{counts:?}");
        assert!((40..=60).contains(&share(2)), "{counts:?}");
    }

    #[test]
    fn a_lasting_slot_does_not_depend_on_who_else_is_there() {
        let all: Vec<Destination> = (1..=50).map(|i| endpoint(i, 1)).collect();
        let slots = lasting(&all, Slots::Local);
        assert_eq!(slots.iter().collect::<BTreeSet<_>>().len(), 50);
        assert_eq!(lasting(&all[7..8], Slots::Local), slots[7..8]);
        assert_ne!(lasting(&all[7..8], Slots::Cluster), slots[7..8]);
    }
}
