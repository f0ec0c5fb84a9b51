//! Each policy spreads, and leaves out, as it says.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use super::peer::Flight;
use super::{LoadBalancer, Peer, Pick, StickyKey};
use crate::clock;
use crate::table::{Balance, Endpoint, EndpointAddress, EndpointState, HashKey, Outlier};

fn endpoint(port: u16, weight: u32) -> Endpoint {
    Endpoint { weight, ..Endpoint::at(([127, 0, 0, 1], port).into()) }
}

/// A balancer whose cookies are nobody's.
fn over(balance: Balance, endpoints: &[Endpoint]) -> LoadBalancer {
    LoadBalancer::new(balance, endpoints, StickyKey::default())
}

fn port(peer: &Peer) -> u16 {
    match peer.address() {
        EndpointAddress::Socket(address) => address.port(),
        EndpointAddress::Name(_, port) => *port,
    }
}

fn counts(balancer: &LoadBalancer, picks: usize) -> BTreeMap<u16, usize> {
    let mut counts = BTreeMap::new();
    for _ in 0..picks {
        let peer = balancer.select_backend(&Pick::default()).expect("an endpoint");
        *counts.entry(port(&peer)).or_default() += 1;
    }
    counts
}

#[test]
fn round_robin_goes_by_weight_and_not_in_bursts() {
    let balancer = over(Balance::RoundRobin, &[endpoint(1, 5), endpoint(2, 1), endpoint(3, 1)]);
    let order: Vec<_> = (0..7)
        .map(|_| port(&balancer.select_backend(&Pick::default()).expect("an endpoint")))
        .collect();
    assert_eq!(order, [1, 1, 2, 1, 3, 1, 1]);
    let even = over(Balance::RoundRobin, &[endpoint(1, 2), endpoint(2, 2)]);
    assert_eq!(counts(&even, 10), BTreeMap::from([(1, 5), (2, 5)]));
}

#[test]
fn removing_and_adding_while_choosing_never_fails() {
    let balancer = over(Balance::RoundRobin, &[endpoint(1, 1), endpoint(2, 1)]);
    assert_eq!(counts(&balancer, 3).len(), 2);
    balancer.remove_backend(&endpoint(2, 1).address);
    assert_eq!(counts(&balancer, 3), BTreeMap::from([(1, 3)]));
    balancer.remove_backend(&endpoint(1, 1).address);
    assert!(balancer.select_backend(&Pick::default()).is_none());
    balancer.add_backend(&endpoint(3, 1));
    balancer.add_backend(&endpoint(3, 1));
    assert_eq!(balancer.get_backends().len(), 1);
}

#[test]
fn the_least_loaded_is_chosen() {
    let balancer =
        over(Balance::LeastConnections, &[endpoint(1, 1), endpoint(2, 1), endpoint(3, 2)]);
    let mut held = Vec::new();
    for _ in 0..8 {
        let peer = balancer.select_backend(&Pick::default()).expect("an endpoint");
        held.push(Flight::begin(peer, 1));
    }
    let load: BTreeMap<_, _> =
        balancer.get_backends().iter().map(|peer| (port(peer), peer.in_flight())).collect();
    assert_eq!(load, BTreeMap::from([(1, 2), (2, 2), (3, 4)]));
    drop(held);
    assert!(balancer.get_backends().iter().all(|peer| peer.in_flight() == 0));
}

#[test]
fn the_slow_one_gets_less_with_two_choices() {
    let balancer = over(Balance::PeakEwma, &[endpoint(1, 1), endpoint(2, 1), endpoint(3, 1)]);
    let now = clock::nanos(std::time::Instant::now());
    for peer in balancer.get_backends() {
        let slow = port(&peer) == 1;
        let flight = Flight::begin(peer, now);
        flight.answered(now + if slow { 500_000_000 } else { 2_000_000 });
    }
    let counts = counts(&balancer, 3000);
    assert_eq!(counts.get(&1), None, "with two choices of three there is always a quick one");
    assert!(counts[&2] > 900 && counts[&3] > 900, "{counts:?}");
}

#[test]
fn a_key_stays_and_only_the_lost_ones_keys_move() {
    let endpoints: Vec<_> = (1..=5).map(|port| endpoint(port, 1)).collect();
    let balancer = over(Balance::Hash(HashKey::ClientAddress), &endpoints);
    let place =
        |key: u64| port(&balancer.select_backend(&Pick { key, ..Pick::default() }).expect("one"));
    let before: HashMap<u64, u16> = (0..2000).map(|key| (key, place(key))).collect();
    for wanted in 1..=5 {
        let share = before.values().filter(|port| **port == wanted).count();
        assert!((300..500).contains(&share), "{wanted}: {share}");
    }
    balancer.remove_backend(&endpoints[2].address);
    for (key, before) in before {
        let after = place(key);
        assert!(before == 3 && after != 3 || before == after, "{key}: {before} → {after}");
    }
}

#[test]
fn a_draining_endpoint_gets_nothing_new_and_its_sticky_clients_move() {
    let key = StickyKey { secret: [7; 32], backend: "ns/web:80".into() };
    let both = [endpoint(1, 1), endpoint(2, 1)];
    let balancer = LoadBalancer::new(Balance::RoundRobin, &both, key);
    let first = balancer.get_backends()[0].clone();
    let draining = Endpoint { state: EndpointState::Draining, ..endpoint(1, 1) };
    balancer.set(Balance::RoundRobin, None, &[draining.clone(), endpoint(2, 1)]);
    assert_eq!(counts(&balancer, 4), BTreeMap::from([(2, 4)]));
    let pick = Pick { sticky: Some(first.cookie()), ..Pick::default() };
    assert_eq!(port(&balancer.select_backend(&pick).expect("another")), 2);
    let forged = Pick { sticky: Some("00000000000000000000000000000000"), ..Pick::default() };
    assert_eq!(port(&balancer.select_backend(&forged).expect("another")), 2);
    let second = Endpoint { state: EndpointState::Draining, ..endpoint(2, 1) };
    balancer.set(Balance::RoundRobin, None, &[draining, second]);
    assert!(Arc::ptr_eq(&balancer.select_backend(&pick).expect("there is no other"), &first));
    balancer.set(Balance::RoundRobin, None, &both);
    assert!(Arc::ptr_eq(&balancer.select_backend(&pick).expect("its own again"), &first));
}

#[test]
fn cookies_depend_on_the_secret_and_the_backend() {
    let cookie = |secret, backend: &str| {
        let key = StickyKey { secret: [secret; 32], backend: backend.into() };
        let balancer = LoadBalancer::new(Balance::RoundRobin, &[endpoint(1, 1)], key);
        balancer.get_backends()[0].cookie().to_owned()
    };
    assert_eq!(cookie(1, "a"), cookie(1, "a"));
    assert_ne!(cookie(1, "a"), cookie(2, "a"));
    assert_ne!(cookie(1, "a"), cookie(1, "b"));
}

#[test]
fn failures_eject_but_never_all() {
    let balancer = over(Balance::RoundRobin, &[endpoint(1, 1), endpoint(2, 1), endpoint(3, 1)]);
    let outlier =
        Outlier { failures: 3, ejection: Duration::from_secs(5), ejected_percent_max: 100 };
    let now = clock::nanos(std::time::Instant::now());
    for _ in 0..9 {
        for peer in balancer.get_backends() {
            balancer.report(&peer, true, &outlier, now);
        }
    }
    let out = balancer.get_backends().iter().filter(|peer| peer.is_ejected(now)).count();
    assert_eq!(out, 2);
    assert_eq!(counts(&balancer, 5).len(), 1);
    let later = now + 5_000_000_001;
    assert!(balancer.get_backends().iter().all(|peer| !peer.is_ejected(later)));
}

#[test]
fn when_all_are_unwell_all_are_used() {
    let balancer = over(Balance::PeakEwma, &[endpoint(1, 1), endpoint(2, 1)]);
    balancer.get_backends().iter().for_each(|peer| peer.set_healthy(false));
    assert_eq!(counts(&balancer, 200).len(), 2);
}

#[test]
fn what_was_tried_is_not_tried_again() {
    for balance in [Balance::RoundRobin, Balance::LeastConnections, Balance::PeakEwma] {
        let balancer = over(balance, &[endpoint(1, 1), endpoint(2, 1), endpoint(3, 1)]);
        let mut tried = Vec::new();
        for _ in 0..3 {
            let pick = Pick { tried: &tried, ..Pick::default() };
            tried.push(balancer.select_backend(&pick).expect("an endpoint"));
        }
        let ports: std::collections::BTreeSet<_> = tried.iter().map(|peer| port(peer)).collect();
        assert_eq!(ports.len(), 3);
    }
}

#[test]
fn an_endpoint_keeps_what_is_known_of_it_over_changes() {
    let balancer = over(Balance::RoundRobin, &[endpoint(1, 1), endpoint(2, 1)]);
    let first = balancer.get_backends()[0].clone();
    balancer.set(Balance::PeakEwma, None, &[endpoint(3, 1), endpoint(1, 4)]);
    let kept = balancer.get_backends().into_iter().find(|peer| port(peer) == 1).expect("kept");
    assert!(Arc::ptr_eq(&kept, &first));
    assert_eq!(kept.weight(), 4);
}

#[test]
fn an_endpoint_that_is_new_gets_its_share_by_and_by() {
    const SLOW_START: Duration = Duration::from_secs(2);
    /// Of so many requests at once.
    const REQUESTS: u16 = 1000;
    let share_of_new = |balancer: &LoadBalancer| {
        let pick = || balancer.select_backend(&Pick::default()).expect("an endpoint");
        let running: Vec<_> = (0..REQUESTS).map(|_| Flight::begin(pick(), 1)).collect();
        let new = running.iter().filter(|flight| port(flight.peer()) == 2).count();
        f64::from(u16::try_from(new).expect("no more than there are")) / f64::from(REQUESTS)
    };
    for balance in [Balance::RoundRobin, Balance::LeastConnections, Balance::PeakEwma] {
        let balancer = over(balance.clone(), &[]);
        balancer.set(balance.clone(), Some(SLOW_START), &[endpoint(1, 1)]);
        clock::freeze_after(SLOW_START);
        let both = [endpoint(1, 1), endpoint(2, 1)];
        balancer.set(balance.clone(), Some(SLOW_START), &both);
        let early = share_of_new(&balancer);
        assert!((0.01..0.3).contains(&early), "{balance:?}: {early}");
        clock::freeze_after(SLOW_START);
        let late = share_of_new(&balancer);
        assert!((0.4..0.6).contains(&late), "{balance:?}: {late}");
        // Without a slow start it has it at once.
        let at_once = over(balance.clone(), &[endpoint(1, 1)]);
        at_once.set(balance.clone(), None, &both);
        let share = share_of_new(&at_once);
        assert!((0.4..0.6).contains(&share), "{balance:?}: {share}");
    }
}

#[test]
fn few_changes_and_many_come_to_the_same() {
    let balancer = over(Balance::RoundRobin, &[endpoint(1, 1)]);
    let ports = || {
        let all = balancer.get_backends();
        all.iter().map(|peer| (port(peer), peer.weight())).collect::<BTreeMap<_, _>>()
    };
    let mut kept = balancer.get_backends()[0].clone();
    for (from, to, weight) in
        [(1, 3, 1), (1, 60, 1), (1, 61, 2), (40, 61, 2), (41, 60, 7), (1, 2, 1)]
    {
        let wanted: Vec<_> = (from..to).map(|port| endpoint(port, weight)).collect();
        balancer.set(Balance::RoundRobin, None, &wanted);
        let wanted: BTreeMap<_, _> = (from..to).map(|port| (port, weight)).collect();
        assert_eq!(ports(), wanted, "{from}..{to}");
        assert_eq!(kept.is_removed(), !wanted.contains_key(&port(&kept)), "{from}..{to}");
        kept = balancer.get_backends()[0].clone();
    }
}
