//! What is special about overlays: nodes, source addresses, addresses of services.

use std::net::IpAddr;
use std::sync::Arc;

use telaio_hcn::{Hcn as _, NetworkType, ObjectKind, Operation, Query};
use telaio_model::{Meta, Node, NodeAddress, Object, ObjectKey, ServiceEndpoints};
use telaio_service_proxy::config::ProxyConfig;
use telaio_service_proxy::fixture::Fixture;
use telaio_service_proxy::hcn::HcnOptions;

use crate::rig::{NEW, NODE_IP, Picture, Rig, SOURCE_VIP, add_pod, hns, ip, options};

fn node(name: &str, address: &str) -> Object {
    let address = NodeAddress { address_type: "InternalIP".into(), ip: ip(address) };
    Object::from(Node {
        meta: Meta::named(ObjectKey::cluster(name)),
        addresses: vec![address],
        pod_cidrs: Vec::new(),
        taints: Vec::new(),
        deleting: false,
    })
}

/// A service with one endpoint on a node.
fn service(n: u8, endpoint: &str, node: &str) -> ServiceEndpoints {
    let fixture = Fixture::new(&format!("s{n}")).cluster_ip([10, 96, 0, n]);
    let entry = fixture.remote(ip(endpoint)).build();
    let mut endpoint = (*entry.endpoints[0]).clone();
    endpoint.node = Some(node.into());
    ServiceEndpoints { service: entry.service, endpoints: Arc::new(vec![Arc::new(endpoint)]) }
}

fn provider(picture: &Picture, address: &str) -> Option<IpAddr> {
    picture.endpoints[&ip(address)].provider_address()
}

#[test]
fn endpoints_are_behind_their_nodes_and_follow_when_those_change() {
    let fake = hns(NEW, NetworkType::Overlay);
    let mut rig = Rig::new(fake.clone());
    rig.set_object(node("b", "192.168.50.12"));
    rig.set_object(node("c", "192.168.50.13"));
    rig.set(&[service(1, "10.244.2.5", "b"), service(2, "10.244.3.5", "c")]);
    rig.apply();
    let picture = Picture::of(&fake);
    assert_eq!(provider(&picture, "10.244.2.5"), Some(ip("192.168.50.12")));
    assert_eq!(provider(&picture, "10.244.3.5"), Some(ip("192.168.50.13")));
    assert_eq!(picture.document("10.96.0.1:80/tcp").source_vip, Some(ip(SOURCE_VIP)));

    fake.reset_counts();
    rig.set_object(node("b", "192.168.50.22"));
    rig.apply();
    let picture = Picture::of(&fake);
    assert_eq!(provider(&picture, "10.244.2.5"), Some(ip("192.168.50.22")));
    assert_eq!(picture.at("10.96.0.1:80/tcp").len(), 1);
    // The endpoint and its load balancer, each removed and made again; the other service rests.
    assert_eq!(fake.writes(), 4, "{:?}", fake.counts());
}

#[test]
fn what_is_outside_the_overlay_answers_to_the_nodes_own_address() {
    let fake = hns(NEW, NetworkType::Overlay);
    let mut rig = Rig::new(fake.clone());
    rig.set_object(node("b", "192.168.50.12"));
    rig.set(&[service(1, "192.168.50.12", "b"), service(2, "203.0.113.9", "unknown")]);
    rig.apply();
    let picture = Picture::of(&fake);
    assert_eq!(provider(&picture, "192.168.50.12"), Some(ip("192.168.50.12")));
    assert_eq!(provider(&picture, "203.0.113.9"), Some(ip(NODE_IP)));
    for place in ["10.96.0.1:80/tcp", "10.96.0.2:80/tcp"] {
        assert_eq!(picture.document(place).source_vip, Some(ip(NODE_IP)), "{place}");
    }
}

#[test]
fn the_source_address_is_made_once_and_only_where_nobody_has_it() {
    let fake = hns(NEW, NetworkType::Overlay);
    add_pod(&fake, ip(SOURCE_VIP));
    fake.reset_counts();
    let without_services = |mut rig: Rig| {
        rig.set(&[]);
        rig.apply();
    };
    without_services(Rig::new(fake.clone()));
    assert_eq!(fake.writes(), 0, "somebody has it");

    let fake = hns(NEW, NetworkType::Overlay);
    without_services(Rig::new(fake.clone()));
    fake.reset_counts();
    without_services(Rig::new(fake.clone()));
    assert_eq!(fake.writes(), 0, "an earlier run made it");

    // Another one is asked for: the old one goes.
    let other = HcnOptions { source_vips: vec![ip("10.244.1.99")], ..options() };
    without_services(Rig::with(fake.clone(), ProxyConfig::default(), &other));
    let all = fake.endpoints(&Query::All).unwrap().objects;
    let addresses: Vec<IpAddr> = all.iter().flat_map(telaio_hcn::Endpoint::addresses).collect();
    assert_eq!(addresses, [ip("10.244.1.99")]);
    assert_eq!(fake.count(Operation::Create, ObjectKind::Endpoint), 1);
}

#[test]
fn an_address_of_a_service_that_nobody_serves_any_more_leaves_the_switch() {
    let fake = hns(NEW, NetworkType::Overlay);
    let mut rig = Rig::new(fake.clone());
    rig.set(&[service(1, "10.244.2.5", "b")]);
    rig.apply();
    assert!(Picture::of(&fake).endpoints.contains_key(&ip("10.96.0.1")));
    rig.set(&[Fixture::new("s1").cluster_ip([10, 96, 0, 1]).build()]);
    rig.apply();
    let picture = Picture::of(&fake);
    assert_eq!(picture.endpoints.keys().copied().collect::<Vec<_>>(), [ip(SOURCE_VIP)]);
    assert!(picture.load_balancers.is_empty());
}
