//! Services and endpoints come and go while connections run: nobody who should be served is refused.

use std::net::SocketAddr;

use telaio_testkit::netns::{Cluster, Family, Host, Outcome, Place, Transport, outside_client};

use crate::manifest::{SERVICE_PORT, Service, cluster_ip, node_port};
use crate::node::{Backend, Node};

/// Rounds of changes; on the guest kernel, which is slow, fewer.
const ROUNDS: usize = 250;
const ROUNDS_IN_GUEST: usize = 100;

on_every_backend!(nobody_is_refused_while_services_and_endpoints_come_and_go);

fn nobody_is_refused_while_services_and_endpoints_come_and_go(backend: Backend) {
    let stable = Service::new("stable", 1).node_port().endpoints("a1 b1");
    // Its endpoints change all the time, and there is always one.
    let churned = |round: usize| {
        let sets = ["a1", "a1 b1", "b1 b2", "a1 a2 b1 b2", "a2", "a2 b1"];
        Service::new("churned", 2).node_port().endpoints(sets[round % sets.len()])
    };
    // One that keeps its clients, and one with local endpoints only.
    let affine = |round: usize| {
        let sets = ["a1 a2", "a2 b1", "a1 b1"];
        Service::new("affine", 3).affinity(60).endpoints(sets[round % sets.len()])
    };
    let local = |round: usize| {
        let sets = ["a1 b1", "a2 b1", "a1 a2"];
        Service::new("local", 4)
            .load_balancer()
            .external_local()
            .endpoints(sets[round % sets.len()])
    };
    let coming = |number: u8, round: usize| {
        let service =
            Service::new(format!("coming-{number}"), number).load_balancer().external_ips();
        service.endpoints(["a1", "b1 b2", ""][round % 3])
    };
    let cluster = Cluster::start().unwrap();
    let node = Node::started(&cluster, backend, &[stable, churned(0), affine(0), local(0)]);
    let mut probers = Vec::new();
    let mut probe = |name: &str, from: Place, to: SocketAddr, transport| {
        let prober = cluster.probe(from, to, transport).unwrap();
        probers.push((name.to_owned(), transport, prober));
    };
    for family in Family::ALL {
        // Each has an address of its own: see docs/services.md for what IPVS makes of one client that has
        // the same port for two services with the same endpoint.
        let cluster_ip = |number| SocketAddr::new(cluster_ip(family, number), SERVICE_PORT);
        let node_ip = |number| SocketAddr::new(Host::NodeA.address(family), node_port(number));
        let outside = |number| Place::outside(outside_client(family, number));
        probe("stable", Place::of(Host::A2), cluster_ip(1), Transport::Tcp);
        probe("churned", Place::of(Host::A1), cluster_ip(2), Transport::Tcp);
        probe("churned by node port", outside(1), node_ip(2), Transport::Tcp);
        probe("churned by UDP", Place::of(Host::NodeA), cluster_ip(2), Transport::Udp);
        probe("affine", outside(2), cluster_ip(3), Transport::Tcp);
        probe("local", outside(3), node_ip(4), Transport::Tcp);
    }
    let conversation = cluster
        .connect(Place::of(Host::Outside), (Host::NodeA.address(Family::V4), node_port(1)).into());
    let conversation = conversation.unwrap();
    conversation.greeting().unwrap();
    let rounds = if backend == Backend::Ipvs { ROUNDS_IN_GUEST } else { ROUNDS };
    for round in 0..rounds {
        node.apply(&churned(round));
        node.apply(&affine(round));
        node.apply(&local(round));
        for number in 10..16 {
            let name = format!("coming-{number}");
            match (round + usize::from(number)) % 4 {
                0 => node.apply(&coming(number, round)),
                1 if round > 0 => node.apply(&coming(number, round + 1)),
                3 if round > 4 => node.remove(&name),
                _ => {}
            }
        }
        conversation.echo(b"still here").unwrap();
        probers[0].2.wait_attempts(4);
    }
    node.settle();
    for (name, transport, prober) in probers {
        let mut tally = prober.stop();
        println!("{name}: {tally}");
        if transport == Transport::Udp {
            // The answer of an endpoint that leaves at this very moment may be lost, as datagrams may.
            tally.first_failures.retain(|(_, outcome)| *outcome != Outcome::Silence);
            assert!(tally.first_failures.is_empty(), "{name}: {tally}");
            continue;
        }
        assert_eq!(tally.failures, 0, "{name}: {tally}");
        assert!(tally.attempts() > 50, "{name}: {tally}");
    }
}
