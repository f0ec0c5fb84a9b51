use std::collections::BTreeMap;

use proptest::collection::vec;
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;
use telaio_service_proxy::trace::Packet;

use crate::generate;
use crate::oracle::{Backend, Expected, doors_of, expect};
use crate::world::World;

fn signature(world: &World, backend: Backend, packet: &Packet) -> Option<String> {
    let expected = expect(world, backend, packet);
    let answer = world.rules().trace(backend, packet);
    if expected.allows(&answer) {
        return None;
    }
    let kind = match &expected {
        Expected::Dnat { .. } => "dnat".to_string(),
        o => format!("{o:?}"),
    };
    let door = doors_of(world, backend, packet).first().map(|(_, _, d)| *d);
    let masq = match &expected {
        Expected::Dnat { endpoints, .. } => endpoints.values().any(|m| *m),
        _ => false,
    };
    let eps = match &expected {
        Expected::Dnat { endpoints, .. } => {
            endpoints.keys().copied().collect::<Vec<_>>()
                == answer.endpoints.iter().copied().collect::<Vec<_>>()
        }
        _ => true,
    };
    Some(format!(
        "{backend:?} door {door:?} loop={} want {kind} masq {masq} got {:?} masq {} same_eps {eps}",
        packet.to.ip().is_loopback(),
        answer.verdict,
        answer.masquerade
    ))
}

fn smaller(world: &World) -> Vec<World> {
    let mut all = vec![];
    for i in 0..world.services.len() {
        let mut w = world.clone();
        w.services.remove(i);
        all.push(w);
    }
    for i in 0..world.slices.len() {
        let mut w = world.clone();
        w.slices.remove(i);
        all.push(w);
    }
    for i in 0..world.slices.len() {
        for j in 0..world.slices[i].endpoints.len() {
            let mut w = world.clone();
            w.slices[i].endpoints.remove(j);
            all.push(w);
            let mut w = world.clone();
            let e = &mut w.slices[i].endpoints[j];
            if e.hints.is_some() {
                e.hints = None;
                all.push(w);
            }
        }
    }
    for i in 0..world.services.len() {
        let s = &world.services[i];
        macro_rules! without {
            ($f:ident) => {
                for j in 0..s.$f.len() {
                    let mut w = world.clone();
                    w.services[i].$f.remove(j);
                    all.push(w);
                }
            };
        }
        without!(ports);
        without!(external_ips);
        without!(load_balancer);
        without!(source_ranges);
        without!(cluster_ips);
        let mut w = world.clone();
        if !w.services[i].meta.annotations.is_empty() {
            w.services[i].meta.annotations.clear();
            all.push(w);
        }
        let mut w = world.clone();
        if w.services[i].session_affinity.take().is_some() {
            all.push(w);
        }
    }
    all
}

#[test]
fn triage() {
    let count: usize = std::env::var("TRIAGE").ok().and_then(|it| it.parse().ok()).unwrap_or(0);
    let mut runner = TestRunner::default();
    let mut found: BTreeMap<String, (usize, World, Packet)> = BTreeMap::new();
    for _ in 0..count {
        let world = generate::worlds().new_tree(&mut runner).unwrap().current();
        let mut world = world;
        for s in &mut world.services {
            let has =
                |ip: &std::net::IpAddr| s.cluster_ips.iter().any(|c| c.is_ipv4() == ip.is_ipv4());
            let ext = s.external_ips.iter().copied().filter(has).collect();
            let lb = s.load_balancer.iter().filter(|l| has(&l.ip)).cloned().collect();
            s.external_ips = ext;
            s.load_balancer = lb;
        }
        let packets = vec(generate::packets(), 150).new_tree(&mut runner).unwrap().current();
        let rules = world.rules();
        for packet in &packets {
            for backend in [Backend::Nftables, Backend::Iptables] {
                if expect(&world, backend, packet).allows(&rules.trace(backend, packet)) {
                    continue;
                }
                let sig = signature(&world, backend, packet).unwrap();
                found.entry(sig).and_modify(|it| it.0 += 1).or_insert((
                    1,
                    world.clone(),
                    packet.clone(),
                ));
            }
        }
    }
    for (sig, (n, world, packet)) in &found {
        let backend = if sig.starts_with("Nft") { Backend::Nftables } else { Backend::Iptables };
        let mut world = world.clone();
        loop {
            let next = smaller(&world)
                .into_iter()
                .find(|w| signature(w, backend, packet).as_deref() == Some(sig));
            match next {
                Some(w) => world = w,
                None => break,
            }
        }
        world.nodes.truncate(1);
        println!(
            "=== {n} × {sig}\n{packet:?}\nwant {:?}\ngot  {:?}\n{world:?}",
            expect(&world, backend, packet),
            world.rules().trace(backend, packet)
        );
    }
}
