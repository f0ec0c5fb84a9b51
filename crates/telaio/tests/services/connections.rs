//! The admin API counts the connections that the rules lead to services, as clients hold them.

use std::net::SocketAddr;

use serde_json::Value;
use telaio_testkit::netns::{Cluster, Family, Host, Place};

use crate::manifest::{SERVICE_PORT, Service, cluster_ip};
use crate::node::{Backend, Node};

on_every_backend!(open_connections_are_counted_by_service_port_and_endpoint);

const OPEN: u64 = 7;

fn open_connections_are_counted_by_service_port_and_endpoint(backend: Backend) {
    let (web, idle) = (Service::new("web", 1).endpoints("a1 b1"), Service::new("idle", 2));
    let cluster = Cluster::start().unwrap();
    let node = Node::started(&cluster, backend, &[web, idle.endpoints("a1")]);
    let open = |it: &Value| it["connections"]["open"].as_u64();
    let service = |name: &str| node.admin(&format!("/api/v1/services/test/{name}"));
    assert_eq!(open(&service("web")), Some(0), "known, and none");

    let held: Vec<_> = [Family::V4, Family::V6]
        .into_iter()
        .flat_map(|family| {
            let to = SocketAddr::new(cluster_ip(family, 1), SERVICE_PORT);
            (0..OPEN).map(move |_| to)
        })
        .map(|to| cluster.connect(Place::of(Host::NodeA), to).unwrap())
        .collect();
    let all = held.len() as u64;
    node.wait_until("count of open connections", || open(&service("web")) == Some(all));
    let web = service("web");
    assert_eq!(web["connections_reason"], Value::Null, "{web}");
    assert_eq!(open(&web["ports"][0]), Some(all), "{web}");
    let endpoints = web["endpoint_items"].as_array().unwrap();
    let each: Vec<u64> = endpoints.iter().map(|it| open(it).unwrap()).collect();
    assert_eq!(each.iter().sum::<u64>(), all, "{web}");
    for family in [Family::V4, Family::V6] {
        let of = endpoints
            .iter()
            .filter(|it| it["address"].as_str().unwrap().contains(':') == (family == Family::V6));
        assert_eq!(of.map(|it| open(it).unwrap()).sum::<u64>(), OPEN, "{family:?}: {web}");
    }
    assert_eq!(open(&service("idle")), Some(0), "they are not its own");
    let listed = node.admin("/api/v1/services?q=test/web");
    assert_eq!(open(&listed["items"][0]), Some(all), "{listed}");

    let web = service("web");
    if backend == Backend::Ipvs {
        let packets = |it: &Value| it["traffic"]["packets_in"].as_u64();
        // The kernel sums it up every two seconds.
        node.wait_until("what IPVS has counted", || packets(&service("web")) > Some(all));
        let web = service("web");
        assert!(web["traffic"]["connections"].as_u64() >= Some(all), "{web}");
        assert_eq!(packets(&service("idle")), Some(0), "they are not its own");
    } else {
        assert!(web["traffic"].is_null() && web["traffic_reason"].is_string(), "{web}");
    }

    drop(held);
    node.wait_until("end of the connections", || open(&service("web")) == Some(0));
}
