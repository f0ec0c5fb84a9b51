//! What the rules do with random packets is what the contract says.

use std::net::IpAddr;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use telaio_model::Service;
use telaio_service_proxy::trace::Packet;

use crate::generate::{self, Shot};
use crate::oracle::{Backend, expect};
use crate::world::{NODE, World};

fn check(world: &World, shots: &[Shot], backend: Backend) -> Result<(), TestCaseError> {
    let mut world = world.clone();
    world.services.iter_mut().for_each(leave_out_families);
    let rules = world.rules();
    let packets = shots.iter().map(|shot| shot.at(&world));
    for packet in packets.filter(|it| !is_left_out(&world, backend, it)) {
        let expected = expect(&world, backend, &packet);
        let answer = rules.trace(backend, &packet);
        prop_assert!(
            expected.allows(&answer),
            "{packet:?}\nshould be {expected:?}\nis        {answer:?}"
        );
    }
    Ok(())
}

/// `cases` has this one alone: addresses of a family without a cluster address.
fn leave_out_families(service: &mut Service) {
    let families: Vec<bool> = service.cluster_ips.iter().map(IpAddr::is_ipv4).collect();
    service.external_ips.retain(|ip| families.contains(&ip.is_ipv4()));
    service.load_balancer.retain(|it| families.contains(&it.ip.is_ipv4()));
}

/// `cases` has these alone: endpoints of other nodes that reach themselves, and external addresses
/// that are others' cluster addresses.
fn is_left_out(world: &World, backend: Backend, packet: &Packet) -> bool {
    let mut endpoints = world.slices.iter().flat_map(|slice| &slice.endpoints);
    let to = packet.to.ip();
    backend == Backend::Nftables
        && (endpoints.any(|it| it.address == packet.from && it.node.as_deref() != Some(NODE))
            || world.services.iter().any(|it| it.cluster_ips.contains(&to))
                && world.services.iter().any(|it| it.external_ips.contains(&to)))
}

/// So many cases, the same every time. Where `PROPTEST_CASES` asks for a number, new ones.
pub(crate) fn cases(count: u32) -> ProptestConfig {
    let base = ProptestConfig {
        max_shrink_iters: 20_000,
        failure_persistence: None,
        ..Default::default()
    };
    if std::env::var_os("PROPTEST_CASES").is_some() {
        return base;
    }
    ProptestConfig { cases: count, rng_seed: RngSeed::Fixed(3), ..base }
}

proptest! {
    #![proptest_config(cases(200))]

    #[test]
    fn nftables_does_what_the_contract_says(
        world in generate::worlds(),
        shots in vec(generate::shots(), 1..=150),
    ) {
        check(&world, &shots, Backend::Nftables)?;
    }

    #[test]
    fn iptables_does_what_the_contract_says(
        world in generate::worlds(),
        shots in vec(generate::shots(), 1..=150),
    ) {
        check(&world, &shots, Backend::Iptables)?;
    }
}
