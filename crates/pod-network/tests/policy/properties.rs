//! What must hold for every cluster.

use std::sync::Arc;

use proptest::collection::vec;
use proptest::prelude::*;
use telaio_model::{IpFamily, Meta, Namespace, ObjectKey, Protocol};
use telaio_pod_network::policy::trace::{Packet, Trace, trace};
use telaio_pod_network::policy::{Compiled, World, compile};

use crate::generate::{HERE, Step, connection, step};
use crate::oracle::{Cluster, Connection};

/// Tells the world of a change.
pub(crate) fn tell(world: &mut World, step: &Step) {
    match step.clone() {
        Step::Policy(key, policy) => world.set_policy(&key, policy.map(Arc::new)),
        Step::Pod(key, pod) => world.set_pod(&key, pod.map(Arc::new)),
        Step::Namespace(name, labels) => {
            let meta = Meta::named(ObjectKey::cluster(name));
            let namespace = labels.map(|labels| Namespace { meta: Meta { labels, ..meta } });
            world.set_namespace(&name.into(), namespace.as_ref());
        }
    }
}

/// A world that was told everything at once.
pub(crate) fn world_of(cluster: &Cluster) -> World {
    let mut world = World::new(HERE);
    for (key, policy) in &cluster.policies {
        world.set_policy(key, Some(Arc::new(policy.clone())));
    }
    for (name, labels) in &cluster.namespaces {
        let meta = Meta::named(ObjectKey::cluster(name.as_str()));
        let namespace = Namespace { meta: Meta { labels: labels.clone(), ..meta } };
        world.set_namespace(&name.as_str().into(), Some(&namespace));
    }
    for (key, pod) in &cluster.pods {
        world.set_pod(key, Some(Arc::new(pod.clone())));
    }
    world.settle();
    world
}

fn packet(connection: &Connection) -> Packet {
    let (protocol, port) = match connection.port {
        None => (1, None),
        Some((Protocol::Tcp, port)) => (6, Some(port)),
        Some((Protocol::Udp, port)) => (17, Some(port)),
        Some((Protocol::Sctp, port)) => (132, Some(port)),
    };
    let Connection { from, to, .. } = *connection;
    Packet { from, to, protocol, port, is_known: false, is_own: false }
}

fn run(connection: &Connection, compiled: &Compiled) -> Trace {
    trace(&packet(connection), compiled)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), ..ProptestConfig::default() })]

    #[test]
    fn rules_allow_what_the_text_of_the_api_allows_and_nothing_else(
        steps in vec(step(), 1..40),
        connections in vec(connection(), 64),
    ) {
        let mut cluster = Cluster::default();
        let mut world = World::new(HERE);
        for (i, step) in steps.iter().enumerate() {
            step.apply(&mut cluster);
            tell(&mut world, step);
            // Changes come alone and in bunches.
            if i % 3 == 0 {
                world.settle();
            }
        }
        world.settle();
        let compiled = compile(&world, &IpFamily::ALL);
        for connection in &connections {
            let trace = run(connection, &compiled);
            let allowed = cluster.allows(HERE, connection);
            prop_assert_eq!(trace.passes, allowed, "{:?} by {:?} in {:#?}", connection, trace.via, cluster);
            prop_assert_eq!(trace.mark, 0, "the mark is put back");
        }
    }

    #[test]
    fn what_follows_does_not_depend_on_how_it_came_to_be(steps in vec(step(), 1..40)) {
        let mut cluster = Cluster::default();
        let mut world = World::new(HERE);
        for step in &steps {
            step.apply(&mut cluster);
            tell(&mut world, step);
            world.settle();
        }
        let at_once = world_of(&cluster);
        prop_assert_eq!(compile(&world, &IpFamily::ALL), compile(&at_once, &IpFamily::ALL));
    }

    #[test]
    fn the_parts_that_are_told_are_all_that_changed(steps in vec(step(), 1..40)) {
        let mut world = World::new(HERE);
        let mut kept = std::collections::BTreeMap::new();
        for step in &steps {
            tell(&mut world, step);
            for part in world.settle() {
                let items = telaio_pod_network::policy::compile_part(&world, &part, &IpFamily::ALL);
                kept.insert(part, items);
            }
            let by_parts: Compiled = kept.values().flatten().cloned().collect();
            prop_assert_eq!(&by_parts, &compile(&world, &IpFamily::ALL));
        }
    }

    #[test]
    fn known_connections_and_the_nodes_own_pass(
        steps in vec(step(), 1..20),
        connection in connection(),
    ) {
        let mut world = World::new(HERE);
        for step in &steps {
            tell(&mut world, step);
        }
        world.settle();
        let compiled = compile(&world, &IpFamily::ALL);
        let packet = packet(&connection);
        let known = Packet { is_known: true, ..packet };
        prop_assert!(trace(&known, &compiled).passes);
        let own = Packet { is_own: true, ..packet };
        prop_assert!(trace(&own, &compiled).passes);
    }
}

/// More where there is time for more.
fn cases() -> u32 {
    std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(256)
}
