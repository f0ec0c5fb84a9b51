//! What the rules do with random packets is what the contract says.

use proptest::collection::vec;
use proptest::prelude::*;

use crate::generate::{self, Shot};
use crate::oracle::{Backend, expect};
use crate::world::World;

fn check(world: &World, shots: &[Shot], backend: Backend) -> Result<(), TestCaseError> {
    let rules = world.rules();
    for packet in shots.iter().map(|shot| shot.at(world)) {
        let expected = expect(world, backend, &packet);
        let answer = rules.trace(backend, &packet);
        prop_assert!(
            expected.allows(&answer),
            "{packet:?}\nshould be {expected:?}\nis        {answer:?}"
        );
    }
    Ok(())
}

/// So many clusters, unless `PROPTEST_CASES` asks for others.
pub(crate) fn cases(count: u32) -> ProptestConfig {
    let asked = std::env::var_os("PROPTEST_CASES").is_some();
    let base = ProptestConfig::default();
    let cases = if asked { base.cases } else { count };
    ProptestConfig { cases, max_shrink_iters: 20_000, failure_persistence: None, ..base }
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
