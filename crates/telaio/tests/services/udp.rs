//! UDP flows: the kernel remembers where one goes, so it must be made to forget an endpoint that is
//! gone, and nothing else.

use std::net::SocketAddr;

use telaio_testkit::netns::{Cluster, Family, Flow, Host, Outcome, PATIENCE, Place};

use crate::manifest::{SERVICE_PORT, Service, cluster_ip, node_port};
use crate::node::{Backend, Node};

on_every_backend!(
    a_live_flow_follows_when_its_endpoint_is_replaced,
    a_live_flow_is_refused_when_its_service_loses_its_last_endpoint,
    a_flow_that_began_before_its_service_finds_it,
    flows_to_others_and_to_who_still_serves_stay,
    a_restart_resets_no_flow,
);

fn service(endpoints: &str) -> Service {
    Service::new("udp", 1).node_port().endpoints(endpoints)
}

/// A flow from each kind of client, to the address that it would use.
fn flows(cluster: &Cluster) -> Vec<(String, Flow)> {
    let mut flows = Vec::new();
    for family in Family::ALL {
        let cluster_ip = SocketAddr::new(cluster_ip(family, 1), SERVICE_PORT);
        let node_ip = SocketAddr::new(Host::NodeA.address(family), node_port(1));
        let to = [
            (Host::A2, cluster_ip),
            (Host::NodeA, cluster_ip),
            (Host::Outside, node_ip),
            (Host::NodeB, node_ip),
        ];
        for (host, to) in to {
            let flow = cluster.flow(Place::of(host), to).unwrap();
            flows.push((format!("{} to {to}", host.name()), flow));
        }
    }
    flows
}

fn by(flow: &Flow) -> String {
    flow.ask(PATIENCE).unwrap().by().unwrap().to_owned()
}

fn a_live_flow_follows_when_its_endpoint_is_replaced(backend: Backend) {
    let cluster = Cluster::start().unwrap();
    let node = Node::started(&cluster, backend, &[service("a1")]);
    let flows = flows(&cluster);
    for (_, flow) in &flows {
        assert_eq!(by(flow), "a1");
    }
    for next in ["b1", "a1"] {
        node.apply(&service(next));
        for (name, flow) in &flows {
            let outcome = flow.ask_until(PATIENCE, |outcome| outcome.by() == Some(next));
            assert_eq!(outcome.by(), Some(next), "{name}: {outcome}");
        }
    }
}

fn a_live_flow_is_refused_when_its_service_loses_its_last_endpoint(backend: Backend) {
    let cluster = Cluster::start().unwrap();
    let node = Node::started(&cluster, backend, &[service("a1")]);
    let flows = flows(&cluster);
    for (_, flow) in &flows {
        assert_eq!(by(flow), "a1");
    }
    node.apply(&service(""));
    for (name, flow) in &flows {
        let outcome = flow.ask_until(PATIENCE, |outcome| *outcome == Outcome::Refused);
        assert_eq!(outcome, Outcome::Refused, "{name}");
    }
    node.apply(&service("b1"));
    for (name, flow) in &flows {
        let outcome = flow.ask_until(PATIENCE, |outcome| outcome.by() == Some("b1"));
        assert_eq!(outcome.by(), Some("b1"), "{name}: {outcome}");
    }
}

fn a_flow_that_began_before_its_service_finds_it(backend: Backend) {
    let cluster = Cluster::start().unwrap();
    let node = Node::started(&cluster, backend, &[]);
    let flows = flows(&cluster);
    for (name, flow) in &flows {
        let outcome = flow.ask(std::time::Duration::from_millis(50));
        assert!(outcome.is_err(), "{name}: {outcome:?}");
    }
    node.apply(&service("a1"));
    for (name, flow) in &flows {
        let outcome = flow.ask_until(PATIENCE, |outcome| outcome.by() == Some("a1"));
        assert_eq!(outcome.by(), Some("a1"), "{name}: {outcome}");
    }
}

fn flows_to_others_and_to_who_still_serves_stay(backend: Backend) {
    let cluster = Cluster::start().unwrap();
    let node = Node::started(&cluster, backend, &[service("a1")]);
    let flows = flows(&cluster);
    for (_, flow) in &flows {
        assert_eq!(by(flow), "a1");
    }
    for endpoints in ["a1 b1", "a1:terminating b1", "a1:terminating b2", "a1 b2"] {
        node.apply(&service(endpoints));
        node.settle();
        if backend == Backend::Ipvs && endpoints.contains("terminating") {
            // An endpoint of UDP that gets no new flows is removed at once, and its flows move on.
            let (_, next) = endpoints.split_once(' ').unwrap();
            for (name, flow) in &flows {
                let outcome = flow.ask_until(PATIENCE, |outcome| outcome.by() == Some(next));
                assert_eq!(outcome.by(), Some(next), "{name} with {endpoints}: {outcome}");
            }
            continue;
        }
        if backend == Backend::Ipvs && endpoints == "a1 b2" {
            for (name, flow) in &flows {
                assert_eq!(by(flow), "b2", "{name} stays where it has moved to");
            }
            continue;
        }
        for (name, flow) in &flows {
            for _ in 0..4 {
                assert_eq!(by(flow), "a1", "{name} with {endpoints}");
            }
        }
    }
}

fn a_restart_resets_no_flow(backend: Backend) {
    let cluster = Cluster::start().unwrap();
    let mut node = Node::started(&cluster, backend, &[service("a1 a2 b1 b2")]);
    let flows: Vec<_> = flows(&cluster)
        .into_iter()
        .map(|(name, flow)| {
            let first = by(&flow);
            (name, flow, first)
        })
        .collect();
    node.kill();
    node.start();
    node.settle();
    for (name, flow, first) in &flows {
        for _ in 0..4 {
            assert_eq!(&by(flow), first, "{name}");
        }
    }
}
