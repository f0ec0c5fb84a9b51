//! Session affinity: who stays where, for how long, and no longer than the endpoint itself.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use telaio_testkit::netns::{Cluster, Family, Host, Outcome, Place, Transport, outside_client};

use crate::manifest::{SERVICE_PORT, Service, load_balancer_ip, node_port};
use crate::node::{Backend, Node};

/// Clients outside, enough that all of them choosing the same twice by chance is out of the question.
const CLIENTS: std::ops::Range<u8> = 20..36;

on_every_backend!(
    a_client_stays_until_its_service_s_own_time_out,
    a_client_never_stays_with_an_endpoint_that_is_gone,
    local_policy_and_affinity_hold_together,
);

fn who(outcome: &Outcome) -> String {
    outcome.by().unwrap_or_else(|| panic!("{outcome}")).to_owned()
}

/// Who answers each client outside at this address.
fn each_client(node: &Node<'_>, family: Family, to: SocketAddr) -> BTreeMap<u8, String> {
    let ask = |n| {
        let from = Place::outside(outside_client(family, n));
        (n, who(&node.ask(from, to, Transport::Tcp)))
    };
    CLIENTS.map(ask).collect()
}

fn a_client_stays_until_its_service_s_own_time_out(backend: Backend) {
    const SHORT_S: u32 = 3;
    let short = Service::new("short", 1).node_port().affinity(SHORT_S).endpoints("a1 a2 b1 b2");
    let long = Service::new("long", 2).node_port().affinity(600).endpoints("a1 a2 b1 b2");
    let cluster = Cluster::start().unwrap();
    let node = Node::started(&cluster, backend, &[short, long]);
    let to = |family, number| SocketAddr::new(Host::NodeA.address(family), node_port(number));
    // Both families and both services at once: the time-out passes once.
    let ask = |number| Family::ALL.map(|family| each_client(&node, family, to(family, number)));
    let (first_short, first_long) = (ask(1), ask(2));
    for seen in first_short.iter().chain(&first_long) {
        let mut endpoints: Vec<_> = seen.values().collect();
        endpoints.sort_unstable();
        endpoints.dedup();
        assert!(endpoints.len() > 1, "affinity is per client, and they went to {seen:?}");
    }
    // Each connection begins the time anew, so whoever comes back in time stays for longer than it.
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(u64::from(SHORT_S) + 1) {
        let asked = Instant::now();
        assert_eq!(ask(1), first_short);
        assert!(
            asked.elapsed() < Duration::from_secs(2),
            "too slow a machine to come back in time"
        );
    }
    assert_eq!(ask(2), first_long);
    std::thread::sleep(Duration::from_secs(u64::from(SHORT_S) + 2));
    let (last_short, last_long) = (ask(1), ask(2));
    for (first, last) in first_short.iter().zip(&last_short) {
        assert_ne!(first, last, "the time is over, and all of them stayed");
    }
    assert_eq!(first_long, last_long, "its own time is not over");
}

fn a_client_never_stays_with_an_endpoint_that_is_gone(backend: Backend) {
    let service = |endpoints: &str| Service::new("affine", 1).affinity(600).endpoints(endpoints);
    let cluster = Cluster::start().unwrap();
    let node = Node::started(&cluster, backend, &[service("a1 a2 b1")]);
    let places = [Place::of(Host::A2), Place::of(Host::NodeA), Place::of(Host::Outside)];
    for family in Family::ALL {
        for transport in [Transport::Tcp, Transport::Udp] {
            node.apply(&service("a1 a2 b1"));
            node.settle();
            let to = SocketAddr::new(service("").cluster_ip(family), SERVICE_PORT);
            for from in places {
                let first = who(&node.ask(from, to, transport));
                assert_eq!(who(&node.ask(from, to, transport)), first);
                // As many as before, so that only who they are has changed; then fewer.
                for replacement in ["b2", ""] {
                    let stays = ["a1", "a2", "b1"]
                        .map(|name| if name == first { replacement } else { name });
                    node.apply(&service(&stays.join(" ")));
                    node.settle();
                    let next = who(&node.ask(from, to, transport));
                    assert_ne!(next, first, "{from:?} {transport:?} {family:?}");
                    assert!(stays.contains(&next.as_str()), "{next} is not in {stays:?}");
                    assert_eq!(who(&node.ask(from, to, transport)), next);
                }
                node.apply(&service("a1 a2 b1"));
                node.settle();
            }
        }
    }
}

fn local_policy_and_affinity_hold_together(backend: Backend) {
    let service = Service::new("local", 1)
        .load_balancer()
        .external_local()
        .affinity(600)
        .endpoints("a1 a2 b1 b2");
    let cluster = Cluster::start().unwrap();
    let node = Node::started(&cluster, backend, &[service]);
    for family in Family::ALL {
        let to = SocketAddr::new(load_balancer_ip(family, 1), SERVICE_PORT);
        let first = each_client(&node, family, to);
        assert!(first.values().all(|by| by.starts_with('a')), "{first:?}");
        assert!(
            first.values().any(|by| by == "a1") && first.values().any(|by| by == "a2"),
            "{first:?}"
        );
        assert_eq!(each_client(&node, family, to), first);
        // The node itself takes the cluster's, and stays as well.
        let from = Place::of(Host::NodeA);
        let first = who(&node.ask(from, to, Transport::Tcp));
        for _ in 0..8 {
            assert_eq!(who(&node.ask(from, to, Transport::Tcp)), first);
        }
    }
}
