//! How endpoints take turns: by chance, in turn, by the client's address, and by weight.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use telaio_testkit::netns::{Cluster, Family, Host, Place, Transport, outside_client};

use crate::manifest::{SERVICE_PORT, Service, cluster_ip};
use crate::node::{Backend, Node, comes_true};
use crate::support::{Manifests, run, telaio};

on_every_backend!(
    weights_divide_what_is_left_to_chance,
    an_override_weights_or_drains_an_endpoint,
    round_robin_is_exact_also_when_two_services_are_called_in_turn,
    round_robin_gives_each_its_weight_in_every_round,
);

/// How often each endpoint answered.
type Shares = BTreeMap<String, u32>;

fn ask(node: &Node<'_>, from: Place, family: Family, number: u8) -> String {
    let to = SocketAddr::new(cluster_ip(family, number), SERVICE_PORT);
    let outcome = node.ask(from, to, Transport::Tcp);
    outcome.by().unwrap_or_else(|| panic!("{outcome}")).to_owned()
}

fn shares(node: &Node<'_>, family: Family, number: u8, attempts: u32) -> Shares {
    let mut shares = Shares::new();
    for _ in 0..attempts {
        *shares.entry(ask(node, Place::of(Host::NodeA), family, number)).or_default() += 1;
    }
    shares
}

fn weights_divide_what_is_left_to_chance(backend: Backend) {
    let plain = Service::new("plain", 1).endpoints("a1 b1");
    let weighted = Service::new("weighted", 2).endpoints("a1:weight=3 b1:weight=1");
    let cluster = Cluster::start().unwrap();
    let node = Node::started(&cluster, backend, &[plain, weighted]);
    for family in Family::ALL {
        // Seven standard deviations on either side: once in 10^11 runs by chance.
        let plain = shares(&node, family, 1, 400)["a1"];
        assert!((130..=270).contains(&plain), "{plain} of 400, expected 200");
        let weighted = shares(&node, family, 2, 400)["a1"];
        assert!((240..=360).contains(&weighted), "{weighted} of 400, expected 300");
    }
}

fn an_override_weights_or_drains_an_endpoint(backend: Backend) {
    let service = Service::new("overridden", 1).endpoints("a1 b1");
    let cluster = Cluster::start().unwrap();
    let node = Node::started(&cluster, backend, &[service]);
    let decide = |action: &str| {
        let text = format!(
            "apiVersion: telaio.dev/v1\nkind: Override\nmetadata: {{name: decided, namespace: test}}\n\
             spec: {{service: {{name: overridden}}, target: {{node: node-b}}, {action}}}\n"
        );
        node.write("override", &text);
        node.settle();
    };
    for family in Family::ALL {
        decide("action: weight, weight: 9");
        let by_b1 = shares(&node, family, 1, 200)["b1"];
        assert!((150..=199).contains(&by_b1), "{by_b1} of 200, expected 180");
        decide("action: drain");
        assert_eq!(shares(&node, family, 1, 20), Shares::from([("a1".to_owned(), 20)]));
    }
    node.remove("override");
    node.settle();
    assert_eq!(shares(&node, Family::V4, 1, 60).len(), 2);
}

fn round_robin_is_exact_also_when_two_services_are_called_in_turn(backend: Backend) {
    let service =
        |name: &str, number| Service::new(name, number).balance("round-robin").endpoints("a1 b1");
    let three = Service::new("three", 3).balance("round-robin").endpoints("a1 a2 b1");
    let cluster = Cluster::start().unwrap();
    let services = [service("first", 1), service("second", 2), three];
    let node = Node::started(&cluster, backend, &services);
    for family in Family::ALL {
        for _ in 0..10 {
            let mut seen = BTreeMap::<u8, Vec<String>>::new();
            for number in [1, 2, 1, 2] {
                let by = ask(&node, Place::of(Host::NodeA), family, number);
                seen.entry(number).or_default().push(by);
            }
            for (number, turns) in seen {
                assert_ne!(turns[0], turns[1], "service {number}");
            }
        }
        let all: Vec<_> = (0..12).map(|_| ask(&node, Place::of(Host::NodeA), family, 3)).collect();
        for turn in all.windows(4) {
            assert_eq!(turn[0], turn[3], "{all:?}");
            assert!(turn[0] != turn[1] && turn[1] != turn[2] && turn[0] != turn[2], "{all:?}");
        }
    }
}

fn round_robin_gives_each_its_weight_in_every_round(backend: Backend) {
    let service =
        Service::new("weighted", 1).balance("round-robin").endpoints("a1:weight=3 b1:weight=1");
    let cluster = Cluster::start().unwrap();
    let node = Node::started(&cluster, backend, &[service]);
    for family in Family::ALL {
        for _ in 0..5 {
            let expected = Shares::from([("a1".to_owned(), 3), ("b1".to_owned(), 1)]);
            assert_eq!(shares(&node, family, 1, 4), expected);
        }
    }
}

mod nftables_and_ipvs {
    use telaio_testkit::guest::{self, GuestError};

    use crate::node::Backend;

    #[test]
    fn nftables_keeps_a_source_with_its_endpoint_and_moves_only_the_share_of_one_that_leaves() {
        super::a_source_stays_and_one_that_leaves_moves_only_its_own(Backend::Nftables);
    }

    #[test]
    fn ipvs_keeps_a_source_with_its_endpoint_and_moves_only_the_share_of_one_that_leaves()
    -> Result<(), GuestError> {
        let name = "balance::nftables_and_ipvs::\
                    ipvs_keeps_a_source_with_its_endpoint_and_moves_only_the_share_of_one_that_leaves";
        guest::inside(name, || {
            super::a_source_stays_and_one_that_leaves_moves_only_its_own(Backend::Ipvs);
        })
    }
}

fn a_source_stays_and_one_that_leaves_moves_only_its_own(backend: Backend) {
    let service =
        |endpoints: &str| Service::new("hashed", 1).balance("source-hash").endpoints(endpoints);
    let cluster = Cluster::start().unwrap();
    let mut node = Node::started(&cluster, backend, &[service("a1 a2 b1 b2")]);
    let each = |node: &Node<'_>, family| -> BTreeMap<u8, String> {
        let one = |n| (n, ask(node, Place::outside(outside_client(family, n)), family, 1));
        (20..84).map(one).collect()
    };
    for family in Family::ALL {
        let all = each(&node, family);
        let endpoints: BTreeSet<_> = all.values().collect();
        assert_eq!(endpoints.len(), 4, "{all:?}");
        assert_eq!(each(&node, family), all);
        node.apply(&service("a1 a2 b2"));
        node.settle();
        let fewer = each(&node, family);
        for (client, by) in &all {
            if by == "b1" {
                assert_ne!(&fewer[client], "b1", "client {client}");
            } else {
                assert_eq!(&fewer[client], by, "client {client}");
            }
        }
        node.apply(&service("a1 a2 b1 b2"));
        node.settle();
        assert_eq!(each(&node, family), all, "back where they were");
    }
    // Nothing is remembered that a restart could forget.
    let all = each(&node, Family::V4);
    node.end();
    node.start();
    node.settle();
    assert_eq!(each(&node, Family::V4), all);
}

/// A service of these addresses, which nobody has; each is the last part of one.
fn hashed_yaml(endpoints: &[u8]) -> String {
    let mut text = Service::new("hashed", 1).balance("source-hash").yaml();
    for (family, prefix) in [("IPv4", "10.244.2."), ("IPv6", "fd00:10:244:2::")] {
        let addresses = endpoints
            .iter()
            .map(|n| format!("{{addresses: [\"{prefix}{n}\"]}}"))
            .collect::<Vec<_>>();
        text += &format!(
            "---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata:\n  \
             name: hashed-{}\n  namespace: test\n  labels: {{kubernetes.io/service-name: hashed}}\n\
             addressType: {family}\nports: [{{name: tcp, port: 8080}}]\nendpoints: [{}]\n",
            family.to_lowercase(),
            addresses.join(", ")
        );
    }
    text
}

/// Where each of many sources lands, as the tracer says.
fn traced(family: Family, endpoints: &[u8]) -> Vec<SocketAddr> {
    let manifests = Manifests::empty();
    manifests.write("nodes.yaml", &crate::manifest::nodes_yaml());
    manifests.write("hashed.yaml", &hashed_yaml(endpoints));
    let questions = tempfile::NamedTempFile::new().unwrap();
    let to = SocketAddr::new(cluster_ip(family, 1), SERVICE_PORT);
    let question = |n: u16| {
        let from = family.pick(
            Ipv4Addr::from_bits(u32::from(n) * 7919 + 0x0a00_0000),
            Ipv6Addr::new(0x2001, 0xdb8, n, 0, 0, 0, 0, n),
        );
        format!("{{\"from\":\"{from}\",\"to\":\"{to}\"}}\n")
    };
    std::fs::write(&questions, (0..SOURCES).map(question).collect::<String>()).unwrap();
    let mut command = telaio();
    command
        .args(["trace", "--node=node-a", "--backend=nftables", &manifests.source()])
        .arg(format!("--batch={}", questions.path().display()));
    let ended = run(&mut command);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let answers: Vec<SocketAddr> = ended.stdout.lines().map(only_endpoint).collect();
    assert_eq!(answers.len(), usize::from(SOURCES));
    answers
}

/// The endpoint of an answer in which there is just one.
fn only_endpoint(answer: &str) -> SocketAddr {
    let value: serde_json::Value = serde_json::from_str(answer).unwrap();
    let endpoints = value["endpoints"].as_array().unwrap();
    assert_eq!(endpoints.len(), 1, "{answer}");
    endpoints[0].as_str().unwrap().parse().unwrap()
}

/// How many sources are traced.
const SOURCES: u16 = 500;

#[test]
fn one_of_nine_hashed_endpoints_that_leaves_moves_only_its_share() {
    for family in Family::ALL {
        let all: Vec<u8> = (21..30).collect();
        let before = traced(family, &all);
        for leaving in [21, 25, 29] {
            let stay: Vec<u8> = all.iter().copied().filter(|n| *n != leaving).collect();
            let gone = family.pick(
                Ipv4Addr::new(10, 244, 2, leaving),
                format!("fd00:10:244:2::{leaving}").parse().unwrap(),
            );
            let after = traced(family, &stay);
            let share = before.iter().filter(|to| to.ip() == gone).count();
            // 56 are expected; seven standard deviations on either side.
            assert!((8..=105).contains(&share), "{gone} has {share} of {SOURCES}");
            let moved = before.iter().zip(&after).filter(|(before, after)| before != after);
            assert_eq!(moved.count(), share, "{gone} leaves");
            assert!(after.iter().all(|to| to.ip() != gone));
        }
    }
}

#[test]
fn iptables_has_no_source_hash_and_says_so() {
    let service = Service::new("hashed", 1).balance("source-hash").endpoints("a1 b1");
    let cluster = Cluster::start().unwrap();
    for backend in [Backend::IptablesNft, Backend::IptablesLegacy] {
        let node = Node::started(&cluster, backend, std::slice::from_ref(&service));
        assert_eq!(shares(&node, Family::V4, 1, 60).len(), 2, "left to chance");
        let is_told = |line: &str| line.contains("WARN") && line.contains("source-hash");
        assert!(comes_true(|| node.log().lines().any(is_told)), "{}", node.log());
    }
}
