//! What load balancers do with random packets is what the contract says, as far as Windows can.
//!
//! Where Windows differs, as the module's documentation says: nobody is rejected or dropped; with an external
//! policy Local everybody is treated as who comes from outside; source ranges and SCTP do not exist; and of
//! endpoints with different target ports only those with one of them serve.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use proptest::collection::vec;
use proptest::prelude::*;
use telaio_hcn::NetworkType;
use telaio_model::Protocol;
use telaio_reconcile::SyncKind;
use telaio_reconcile::kpng::Changed;
use telaio_service_proxy::hcn::{self, State, trace};
use telaio_service_proxy::trace::{Packet, Surroundings, Trace, Verdict};

use crate::converge::cases;
use crate::generate::{self, Shot};
use crate::oracle::{Backend, Expected, expect};
use crate::rig::{NEW, Rig, add_pod, hns};
use crate::world::{NODE, World, facts};

/// Whether an answer is as it should be.
fn allows(expected: &Expected, answer: &Trace) -> bool {
    match expected {
        Expected::Either(one, other) => allows(one, answer) || allows(other, answer),
        Expected::Reject | Expected::Drop | Expected::None => {
            answer.verdict == Verdict::None && answer.endpoints.is_empty()
        }
        Expected::Dnat { endpoints, .. } => {
            let Some(port) = answer.endpoints.iter().next().map(SocketAddr::port) else {
                return false;
            };
            let of_port: BTreeSet<SocketAddr> =
                endpoints.keys().copied().filter(|it| it.port() == port).collect();
            let is_most = endpoints.keys().all(|other| {
                endpoints.keys().filter(|it| it.port() == other.port()).count() <= of_port.len()
            });
            answer.verdict == Verdict::Dnat && answer.endpoints == of_port && is_most
        }
    }
}

/// What Windows should do with a packet.
fn expected(world: &World, packet: &Packet) -> Expected {
    if packet.protocol == Protocol::Sctp || packet.to.ip().is_loopback() {
        return Expected::None;
    }
    let mut world = world.clone();
    for service in &mut world.services {
        service.source_ranges.clear();
    }
    let from = generate::outside(telaio_model::IpFamily::of(packet.to.ip()), 5);
    let packet = Packet { from, interface: Some("eth0".into()), ..packet.clone() };
    expect(&world, Backend::Iptables, &packet)
}

/// The live state of a node that has programmed this world.
fn programmed(world: &World, kind: NetworkType) -> (State, State) {
    let fake = hns(NEW, kind);
    let slices = world.slices.iter().flat_map(|slice| &slice.endpoints);
    let pods: BTreeSet<_> =
        slices.filter(|it| it.node.as_deref() == Some(NODE)).map(|it| it.address).collect();
    for pod in pods {
        add_pod(&fake, pod);
    }
    let view = world.view();
    let mut rig = Rig::of_view(fake.clone(), world.config.clone());
    let services = view.services().map(|it| it.service.key.clone()).collect();
    let objects = view.objects().map(telaio_model::Object::object_ref).collect();
    rig.tell(&view, &Changed { services, objects, all: true });
    rig.sync(SyncKind::Changes).unwrap();
    let core = rig.syncer.core();
    let compiled = State::compile(view.services(), core.ground().unwrap(), &hcn::Nodes::default());
    (State::read(&fake).unwrap(), compiled)
}

fn check(world: &World, shots: &[Shot], kind: NetworkType) -> Result<(), TestCaseError> {
    let (live, compiled) = programmed(world, kind);
    let around = Surroundings { addresses: facts(&world.view()).addresses.into_iter().collect() };
    for packet in shots.iter().map(|shot| shot.at(world)) {
        let expected = expected(world, &packet);
        for (what, state) in [("live", &live), ("compiled", &compiled)] {
            let answer = trace(&packet, &around, state);
            prop_assert!(
                allows(&expected, &answer),
                "{what}: {packet:?}\nshould be {expected:?}\nis        {answer:?}"
            );
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(cases(150))]

    #[test]
    fn an_l2bridge_does_what_the_contract_says(
        world in generate::worlds(),
        shots in vec(generate::shots(), 1..=100),
    ) {
        check(&world, &shots, NetworkType::L2Bridge)?;
    }

    #[test]
    fn an_overlay_does_what_the_contract_says(
        world in generate::worlds(),
        shots in vec(generate::shots(), 1..=100),
    ) {
        check(&world, &shots, NetworkType::Overlay)?;
    }
}
