//! The agent ends, is killed, and comes back: nobody notices.

use std::net::SocketAddr;
use std::time::Duration;

use telaio_testkit::guest;
use telaio_testkit::netns::{Cluster, Conversation, Family, Host, Place, Prober, Transport};

use crate::manifest::{SERVICE_PORT, Service, cluster_ip, load_balancer_ip, node_port};
use crate::node::{Backend, Node};

on_every_backend!(
    a_restart_loses_no_connection_and_leaves_no_gap,
    a_source_that_is_slow_at_a_restart_is_no_cluster_without_services,
);

/// Longer than it takes the agent to look at the kernel several times.
const SLOW: Duration = Duration::from_secs(5);

/// Services of every kind whose clients must notice nothing.
pub(crate) fn services() -> Vec<Service> {
    vec![
        Service::new("plain", 1).node_port().endpoints("a1 b1"),
        Service::new("affine", 2).affinity(600).node_port().endpoints("a1 b1"),
        Service::new("local", 3).load_balancer().external_local().endpoints("a1 a2 b1"),
        Service::new("ranges", 4)
            .load_balancer()
            .source_ranges(crate::fixtures::RANGES)
            .endpoints("a1 b1"),
    ]
}

/// Clients that must notice nothing: some that connect all the time, some that stay connected.
pub(crate) struct Witnesses {
    probers: Vec<(SocketAddr, Prober)>,
    conversations: Vec<(SocketAddr, Conversation)>,
}

impl Witnesses {
    /// Has them begin.
    pub(crate) fn of(cluster: &Cluster) -> Self {
        let mut witnesses = Self { probers: Vec::new(), conversations: Vec::new() };
        for family in Family::ALL {
            let node_ip = |number| SocketAddr::new(Host::NodeA.address(family), node_port(number));
            let to = [
                (Host::A2, SocketAddr::new(cluster_ip(family, 1), SERVICE_PORT)),
                (Host::NodeA, SocketAddr::new(cluster_ip(family, 2), SERVICE_PORT)),
                (Host::Outside, SocketAddr::new(load_balancer_ip(family, 3), SERVICE_PORT)),
                (Host::Outside, SocketAddr::new(load_balancer_ip(family, 4), SERVICE_PORT)),
                (Host::Outside, node_ip(1)),
                (Host::NodeB, node_ip(3)),
            ];
            // The guest kernel is slow: there half of them are IPv4's, the others IPv6's.
            let (skipped, step) = match (guest::is_inside(), family) {
                (false, _) => (0, 1),
                (true, Family::V4) => (0, 2),
                (true, Family::V6) => (1, 2),
            };
            for (host, to) in to.into_iter().skip(skipped).step_by(step) {
                let from = Place::of(host);
                let conversation = cluster.connect(from, to).unwrap();
                assert!(conversation.greeting().unwrap().by().is_some());
                witnesses.conversations.push((to, conversation));
                witnesses.probers.push((to, cluster.probe(from, to, Transport::Tcp).unwrap()));
            }
        }
        witnesses.wait();
        witnesses
    }

    /// Waits until all of them have connected again a few times, and all that stay are still heard.
    pub(crate) fn wait(&self) {
        for (_, prober) in &self.probers {
            prober.wait_attempts(5);
        }
        for (to, conversation) in &self.conversations {
            conversation.echo(b"are you there?").unwrap_or_else(|error| panic!("{to}: {error}"));
        }
    }

    /// Ends them; none may have noticed anything.
    pub(crate) fn have_noticed_nothing(self) {
        self.wait();
        for (to, prober) in self.probers {
            let tally = prober.stop();
            println!("{to}: {tally}");
            assert_eq!(tally.failures, 0, "{to}: {tally}");
        }
    }
}

fn a_restart_loses_no_connection_and_leaves_no_gap(backend: Backend) {
    let cluster = Cluster::start().unwrap();
    let mut node = Node::started(&cluster, backend, &services());
    let witnesses = Witnesses::of(&cluster);
    // On the guest kernel, which is slow, one kill has to do.
    let rounds = if backend == Backend::Ipvs { 2 } else { 3 };
    for round in 0..rounds {
        if round == 1 {
            node.end();
        } else {
            node.kill();
        }
        // What is programmed stays.
        witnesses.wait();
        node.start();
        node.settle();
        witnesses.wait();
    }
    witnesses.have_noticed_nothing();
}

fn a_source_that_is_slow_at_a_restart_is_no_cluster_without_services(backend: Backend) {
    let cluster = Cluster::start().unwrap();
    let mut node = Node::started(&cluster, backend, &services());
    let witnesses = Witnesses::of(&cluster);
    let before = node.snapshot();
    node.end();
    let address = SocketAddr::from(([127, 0, 0, 1], 12_091));
    node.brain = Some(address);
    node.start();
    std::thread::sleep(SLOW);
    assert_eq!(node.snapshot(), before);
    witnesses.wait();
    let _brain = node.start_brain(address);
    node.settle();
    witnesses.have_noticed_nothing();
}
