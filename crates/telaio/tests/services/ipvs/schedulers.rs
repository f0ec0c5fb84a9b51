//! Schedulers distribute as they promise, chosen by annotation or for the whole node.

use std::collections::{BTreeMap, BTreeSet};

use telaio_testkit::netns::{Cluster, Family, Host, Place, outside_client};

use super::{ask, at, servers};
use crate::manifest::Service;
use crate::node::{Backend, Node, comes_true};

in_guest!(a_service_is_balanced_by_the_scheduler_that_it_names);

/// Clients outside, enough that all of them choosing the same by chance is out of the question.
const CLIENTS: std::ops::Range<u8> = 20..36;

fn service(scheduler: &str, number: u8, endpoints: &str) -> Service {
    let annotation = format!("telaio.dev/ipvs-scheduler: {scheduler}");
    Service::new(scheduler, number).annotation(&annotation).endpoints(endpoints)
}

/// Who answers the node, again and again.
fn turns(node: &Node<'_>, family: Family, number: u8, count: usize) -> Vec<String> {
    (0..count).map(|_| ask(node, Place::of(Host::NodeA), at(family, number))).collect()
}

/// Who answers each client outside.
fn by_client(node: &Node<'_>, family: Family, number: u8) -> BTreeMap<u8, String> {
    let one = |n| (n, ask(node, Place::outside(outside_client(family, n)), at(family, number)));
    CLIENTS.map(one).collect()
}

fn a_service_is_balanced_by_the_scheduler_that_it_names() {
    let services = [
        service("rr", 1, "a1 a2 b1 b2"),
        service("wrr", 2, "a1:weight=3 b1:weight=1"),
        service("lc", 3, "a1 b1"),
        service("wlc", 4, "a1 b1"),
        service("sed", 5, "a1 b1"),
        service("nq", 6, "a1 b1"),
        service("sh", 7, "a1 a2 b1 b2"),
        service("mh", 8, "a1 a2 b1 b2"),
        service("dh", 9, "a1 a2 b1 b2"),
        service("best", 10, "a1 b1"),
    ];
    let cluster = Cluster::start().unwrap();
    let node = Node::started(&cluster, Backend::Ipvs, &services);
    for family in Family::ALL {
        // In turn, and never anybody twice.
        let all = turns(&node, family, 1, 12);
        for round in all.chunks(4) {
            assert_eq!(round.iter().collect::<BTreeSet<_>>().len(), 4, "{all:?}");
        }
        for round in all.windows(5) {
            assert_eq!(round[0], round[4], "{all:?}");
        }
        // By weight, in every round.
        for _ in 0..4 {
            let round = turns(&node, family, 2, 4);
            assert_eq!(round.iter().filter(|by| *by == "a1").count(), 3, "{round:?}");
        }
        // Whoever has a connection that lives gets no more while the other has none.
        for number in 3..=6 {
            let busy = cluster.connect(Place::of(Host::NodeA), at(family, number)).unwrap();
            let by = busy.greeting().unwrap();
            let by = by.by().unwrap();
            for other in turns(&node, family, number, 6) {
                assert_ne!(other, by, "service {number} is busy there");
            }
        }
        // By the client's address.
        for number in [7, 8] {
            let all = by_client(&node, family, number);
            assert!(all.values().collect::<BTreeSet<_>>().len() > 1, "{all:?}");
            assert_eq!(by_client(&node, family, number), all);
        }
        // By the service's, which is one.
        let all = by_client(&node, family, 9);
        assert_eq!(all.values().collect::<BTreeSet<_>>().len(), 1, "{all:?}");
        // What there is not is round robin, and told.
        assert_eq!(turns(&node, family, 10, 2).iter().collect::<BTreeSet<_>>().len(), 2);
    }
    let is_told = |line: &str| line.contains("WARN") && line.contains("\\\"best\\\"");
    assert!(comes_true(|| node.log().lines().any(is_told)), "{}", node.log());
    one_that_leaves_is_replaced_at_once(&node);
}

/// Clients of an endpoint that leaves go elsewhere, also while it still has connections; others stay.
fn one_that_leaves_is_replaced_at_once(node: &Node<'_>) {
    let family = Family::V4;
    for (name, number) in [("sh", 7), ("mh", 8), ("dh", 9)] {
        let all = by_client(node, family, number);
        let (client, leaves) = all.iter().next().unwrap();
        let from = Place::outside(outside_client(family, *client));
        let conversation = node.cluster.connect(from, at(family, number)).unwrap();
        assert_eq!(conversation.greeting().unwrap().by(), Some(leaves.as_str()));
        let stay: Vec<_> = ["a1", "a2", "b1", "b2"].into_iter().filter(|by| by != leaves).collect();
        node.apply(&service(name, number, &stay.join(" ")));
        node.settle();
        let now = by_client(node, family, number);
        assert!(now.values().all(|by| by != leaves), "{name}: {leaves} is gone: {now:?}");
        let others = all.iter().filter(|(_, by)| *by != leaves);
        let moved = others.filter(|(client, by)| now[*client] != **by).count();
        assert_eq!(moved, 0, "{name}: {all:?} became {now:?}");
        if name == "dh" {
            // It cannot be told to spare an endpoint that has connections: they end.
            let all = servers(node);
            let start = format!("-a -t {} ", at(family, number));
            let mut here = all.lines().filter(|line| line.starts_with(&start));
            assert!(here.all(|line| line.ends_with(" -w 1")), "{all}");
        } else {
            conversation.echo(b"still here").unwrap();
        }
    }
}
