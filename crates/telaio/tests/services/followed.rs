//! A node whose view a brain makes shows that view by its own admin API, and who decides about it.

use std::net::SocketAddr;

use serde_json::Value;
use telaio_testkit::netns::{Cluster, Family, Host, Place};

use crate::manifest::{SERVICE_PORT, Service, cluster_ip};
use crate::node::{Backend, Node};

on_backends_of_this_kernel!(a_node_below_a_brain_shows_what_it_follows);

fn a_node_below_a_brain_shows_what_it_follows(backend: Backend) {
    let web = || Service::new("web", 1);
    let cluster = Cluster::start().unwrap();
    let mut node = Node::new(&cluster, backend, &[web().endpoints("a1 b1")]);
    let address = SocketAddr::from(([127, 0, 0, 1], 12_092));
    node.brain = Some(address);
    let brain = node.start_brain(address);
    node.start();
    node.settle();

    let services = node.admin("/api/v1/services?q=test/web");
    let item = &services["items"][0];
    assert_eq!((&item["name"], &item["state"]), (&"web".into(), &"ok".into()), "{services}");
    let detail = node.admin("/api/v1/services/test/web");
    let endpoints = detail["endpoint_items"].as_array().unwrap();
    // Two of each family.
    assert_eq!(endpoints.len(), 4, "{detail}");
    let local = endpoints.iter().filter(|it| it["local"] == true).count();
    assert_eq!((local, &detail["endpoints"]["used"]), (2, &4.into()), "{detail}");
    let rules = node.admin("/api/v1/services/test/web/rules");
    let ip = cluster_ip(Family::V4, 1).to_string();
    assert!(rules["text"].as_str().unwrap().contains(&ip), "{rules}");
    assert!(rules["notes"].to_string().contains("go where our rules say"), "{rules}");
    let map = node.admin("/api/v1/map?q=test/web");
    let is_endpoint = |it: &&Value| it["kind"] == "endpoint";
    assert_eq!(map["vertices"].as_array().unwrap().iter().filter(is_endpoint).count(), 4, "{map}");
    let trace = node.admin(&format!("/api/v1/trace?from=10.1.1.1&to={ip}:{SERVICE_PORT}"));
    assert_eq!(
        (&trace["verdict"], trace["endpoints"].as_array().unwrap().len()),
        (&"dnat".into(), 2)
    );
    let nodes = node.admin("/api/v1/nodes");
    assert!(nodes["items"].as_array().unwrap().iter().any(|it| it["own"] == true), "{nodes}");

    let to = SocketAddr::new(cluster_ip(Family::V4, 1), SERVICE_PORT);
    let _held = cluster.connect(Place::of(Host::NodeA), to).unwrap();
    node.wait_until("count of open connections", || {
        node.admin("/api/v1/services/test/web")["connections"]["open"] == 1
    });

    let overview = node.admin("/api/v1/overview");
    assert!(overview["source"]["note"].as_str().unwrap().contains(&address.to_string()));
    assert_eq!(overview["attention"], Value::Array(vec![]), "all is well: {overview}");
    let whoami = node.admin("/api/v1/whoami");
    assert!(whoami["read_only_because"].as_str().unwrap().contains("decide there"), "{whoami}");

    node.apply(&web().endpoints("a1"));
    let told = || {
        let events = node.admin("/api/v1/events?kind=Endpoints&q=web");
        let items = events["items"].as_array().unwrap().clone();
        items.into_iter().find(|it| {
            it["summary"].as_str().unwrap().starts_with("went ") && it["programmed_ms"].is_f64()
        })
    };
    node.wait_until("event of the endpoint that went, and is out of the kernel", || {
        told().is_some()
    });
    assert_eq!(node.admin("/api/v1/services/test/web")["endpoints"]["total"], 2);

    // The brain goes: what there is stays, and it is told.
    drop(brain);
    node.wait_until("event of the lost brain", || {
        let events = node.admin("/api/v1/events?kind=source");
        events["items"].as_array().unwrap().iter().any(|it| it["change"] == "failed")
    });
    assert_eq!(node.admin("/api/v1/services?q=test/web")["total"], 1);
    let _brain = node.start_brain(address);
    node.wait_until("event of the brain that is back", || {
        let events = node.admin("/api/v1/events?kind=source");
        events["items"].as_array().unwrap().iter().any(|it| it["change"] == "recovered")
    });
}
