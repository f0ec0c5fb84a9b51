//! What services become: a table of places, flags and endpoints.

use std::sync::Arc;
use telaio_hcn::{Distribution, LoadBalancerFlags, NetworkType, PROTOCOL_UDP, PortMappingFlags};
use telaio_model::{LocalEndpoint, Protocol, ServiceEndpoints};
use telaio_service_proxy::config::{NodePortAddresses, ProxyConfig};
use telaio_service_proxy::fixture::Fixture;
use telaio_service_proxy::hcn::HcnOptions;

use crate::rig::{NEW, NODE_IP, OLD, Picture, Rig, SOURCE_VIP, add_pod, hns, ip, options};

const EXTERNAL: PortMappingFlags = PortMappingFlags::VIP_EXTERNAL_IP;

fn web() -> Fixture {
    Fixture::new("web")
        .cluster_ip([10, 96, 0, 10])
        .load_balancer_ip([192, 0, 2, 1])
        .with(|service| service.external_ips.push(ip("192.0.2.9")))
        .node_port(30080)
        .remote([10, 244, 2, 5])
        .local([10, 244, 1, 5])
}

fn picture(entry: &ServiceEndpoints, options: &HcnOptions, kind: NetworkType) -> Picture {
    let fake = hns(NEW, kind);
    add_pod(&fake, ip("10.244.1.5"));
    let mut rig = Rig::with(fake.clone(), ProxyConfig::default(), options);
    rig.set(std::slice::from_ref(entry));
    rig.apply();
    Picture::of(&fake)
}

fn on_bridge(entry: &ServiceEndpoints) -> Picture {
    picture(entry, &options(), NetworkType::L2Bridge)
}

#[test]
fn every_place_of_a_service_gets_a_load_balancer() {
    let picture = on_bridge(&web().build());
    let all = ["10.244.1.5:8080".to_owned(), "10.244.2.5:8080".to_owned()].into();
    for (place, flags) in [
        ("10.96.0.10:80/tcp", PortMappingFlags::NONE),
        ("192.0.2.1:80/tcp", EXTERNAL),
        ("192.0.2.9:80/tcp", EXTERNAL),
        ("0.0.0.0:30080/tcp", EXTERNAL | PortMappingFlags::LOCAL_ROUTED_VIP),
    ] {
        assert_eq!(picture.at(place), all, "{place}");
        let document = picture.document(place);
        assert_eq!(document.port_mappings[0].flags, flags, "{place}");
        assert_eq!(document.flags, LoadBalancerFlags::NONE, "{place}");
        assert_eq!(document.source_vip, None, "{place}");
    }
    assert_eq!(picture.load_balancers.len(), 4);
    assert_eq!(picture.endpoints.keys().copied().collect::<Vec<_>>(), [ip("10.244.2.5")]);
}

#[test]
fn with_an_external_policy_local_only_this_nodes_endpoints_serve_outside() {
    let picture = on_bridge(&web().with(|it| it.external_traffic_to_local = true).build());
    for place in ["192.0.2.1:80/tcp", "192.0.2.9:80/tcp", "0.0.0.0:30080/tcp"] {
        assert_eq!(picture.at(place), ["10.244.1.5:8080".to_owned()].into(), "{place}");
        assert!(picture.document(place).flags.contains(LoadBalancerFlags::DSR), "{place}");
    }
    assert_eq!(picture.at("10.96.0.10:80/tcp").len(), 2);
    assert!(!picture.document("10.96.0.10:80/tcp").flags.contains(LoadBalancerFlags::DSR));
}

#[test]
fn with_an_internal_policy_local_only_this_nodes_endpoints_serve_the_cluster_address() {
    let picture = on_bridge(&web().with(|it| it.internal_traffic_to_local = true).build());
    assert_eq!(picture.at("10.96.0.10:80/tcp"), ["10.244.1.5:8080".to_owned()].into());
    assert_eq!(picture.at("192.0.2.1:80/tcp").len(), 2);
}

#[test]
fn nobody_serves_means_no_load_balancer() {
    let nobody = Fixture::new("web").cluster_ip([10, 96, 0, 10]).node_port(30080);
    assert!(on_bridge(&nobody.build()).load_balancers.is_empty());
    let elsewhere = nobody.remote([10, 244, 2, 5]).with(|it| it.external_traffic_to_local = true);
    let picture = on_bridge(&elsewhere.build());
    assert_eq!(picture.at("10.96.0.10:80/tcp").len(), 1);
    assert_eq!(picture.at("0.0.0.0:30080/tcp").len(), 0);
}

#[test]
fn affinity_and_source_hash_keep_clients_with_their_endpoint() {
    for entry in [web().sticky(60).build(), web().balance("source-hash").build()] {
        let picture = on_bridge(&entry);
        for (document, _) in picture.load_balancers.values() {
            assert_eq!(document.port_mappings[0].distribution_type, Distribution::SourceIp);
        }
    }
    let plain = on_bridge(&web().build());
    let document = plain.document("10.96.0.10:80/tcp");
    assert_eq!(document.port_mappings[0].distribution_type, Distribution::Connection);
}

#[test]
fn direct_server_return_is_for_cluster_addresses_where_it_is_asked_for() {
    let options = HcnOptions { enable_dsr: Some(true), ..options() };
    let picture = picture(&web().build(), &options, NetworkType::L2Bridge);
    assert_eq!(picture.document("10.96.0.10:80/tcp").flags, LoadBalancerFlags::DSR);
    assert_eq!(picture.document("192.0.2.1:80/tcp").flags, LoadBalancerFlags::NONE);
}

#[test]
fn preserving_the_destination_takes_local_endpoints_and_the_mux() {
    let annotated = web().with(|service| {
        service.annotations.insert("preserve-destination".into(), "true".into());
    });
    let picture = on_bridge(&annotated.build());
    let balancer = picture.document("192.0.2.1:80/tcp");
    let mux = PortMappingFlags::USE_MUX | PortMappingFlags::PRESERVE_DESTINATION;
    assert_eq!(balancer.port_mappings[0].flags, EXTERNAL | mux);
    assert_eq!(balancer.flags, LoadBalancerFlags::DSR);
    for place in ["192.0.2.1:80/tcp", "0.0.0.0:30080/tcp"] {
        assert_eq!(picture.at(place), ["10.244.1.5:8080".to_owned()].into(), "{place}");
    }
    assert_eq!(picture.at("192.0.2.9:80/tcp").len(), 2);
}

#[test]
fn each_family_has_its_own_load_balancer() {
    let dual = Fixture::new("web")
        .cluster_ip([10, 96, 0, 10])
        .cluster_ip(ip("fd00:10:96::10"))
        .node_port(30080)
        .remote([10, 244, 2, 5])
        .remote(ip("fd00:10:244:2::5"));
    let picture = on_bridge(&dual.build());
    assert_eq!(picture.at("[fd00:10:96::10]:80/tcp"), ["fd00:10:244:2::5:8080".to_owned()].into());
    assert_eq!(picture.document("[::]:30080/tcp").flags, LoadBalancerFlags::IPV6);
    assert_eq!(picture.document("0.0.0.0:30080/tcp").flags, LoadBalancerFlags::NONE);
    assert_eq!(picture.load_balancers.len(), 4);
}

#[test]
fn an_hns_without_ipv6_or_affinity_serves_the_rest() {
    let dual = Fixture::new("web")
        .cluster_ip([10, 96, 0, 10])
        .cluster_ip(ip("fd00:10:96::10"))
        .sticky(60)
        .remote([10, 244, 2, 5])
        .remote(ip("fd00:10:244:2::5"));
    let fake = hns(telaio_hcn::HnsVersion::new(9, 3), NetworkType::L2Bridge);
    let mut rig = Rig::new(fake.clone());
    rig.set(&[dual.build()]);
    rig.apply();
    assert_eq!(Picture::of(&fake).load_balancers.len(), 1);
}

#[test]
fn udp_is_served_and_sctp_is_not() {
    let picture = on_bridge(&web().protocol(Protocol::Udp).build());
    assert_eq!(picture.document("10.96.0.10:80/udp").port_mappings[0].protocol, PROTOCOL_UDP);
    let picture = on_bridge(&web().protocol(Protocol::Sctp).build());
    assert!(picture.load_balancers.is_empty());
    assert!(picture.endpoints.is_empty());
}

/// The service with one endpoint changed.
fn with_endpoint(
    entry: &ServiceEndpoints,
    at: usize,
    change: impl FnOnce(&mut LocalEndpoint),
) -> ServiceEndpoints {
    let mut endpoints = (*entry.endpoints).clone();
    change(Arc::make_mut(&mut endpoints[at]));
    ServiceEndpoints { service: Arc::clone(&entry.service), endpoints: Arc::new(endpoints) }
}

#[test]
fn endpoints_that_listen_elsewhere_than_most_are_left_out() {
    let entry = Fixture::new("web")
        .cluster_ip([10, 96, 0, 10])
        .remote([10, 244, 2, 5])
        .remote([10, 244, 2, 6])
        .remote([10, 244, 2, 7])
        .build();
    let entry = with_endpoint(&entry, 0, |it| it.ports[0].port = 9090);
    let picture = on_bridge(&entry);
    let most = ["10.244.2.6:8080".to_owned(), "10.244.2.7:8080".to_owned()].into();
    assert_eq!(picture.at("10.96.0.10:80/tcp"), most);
    assert!(!picture.endpoints.contains_key(&ip("10.244.2.5")));
}

#[test]
fn node_ports_can_be_limited_to_some_of_the_nodes_addresses() {
    let config = ProxyConfig {
        node_port_addresses: NodePortAddresses::Within(vec!["192.168.50.0/24".parse().unwrap()]),
        ..ProxyConfig::default()
    };
    let fake = hns(NEW, NetworkType::L2Bridge);
    let mut rig = Rig::with(fake.clone(), config, &options());
    rig.set(&[web().build()]);
    rig.apply();
    let picture = Picture::of(&fake);
    assert_eq!(picture.at(&format!("{NODE_IP}:30080/tcp")).len(), 1);
    assert_eq!(picture.at("0.0.0.0:30080/tcp").len(), 0);
}

#[test]
fn on_an_overlay_endpoints_say_behind_which_node_they_are() {
    let entry = web().build();
    let picture = picture(&entry, &options(), NetworkType::Overlay);
    // Nobody says where 10.244.2.5 is: it counts as outside, and this node is the way there.
    let remote = &picture.endpoints[&ip("10.244.2.5")];
    assert_eq!(remote.provider_address(), Some(ip(NODE_IP)));
    assert_eq!(remote.mac_address.unwrap().to_string(), "02-11-0A-F4-02-05");
    assert_eq!(picture.document("10.96.0.10:80/tcp").source_vip, Some(ip(NODE_IP)));
    let vip = &picture.endpoints[&ip("10.96.0.10")];
    assert!(vip.is_remote());
    assert_eq!(vip.provider_address(), Some(ip(NODE_IP)));
    let source = &picture.endpoints[&ip(SOURCE_VIP)];
    assert!(!source.is_remote());
}

#[test]
fn a_pod_of_this_node_joins_when_its_endpoint_comes() {
    let fake = hns(OLD, NetworkType::L2Bridge);
    let mut rig = Rig::new(fake.clone());
    rig.set(&[web().build()]);
    rig.apply();
    let place = "10.96.0.10:80/tcp";
    assert_eq!(Picture::of(&fake).at(place), ["10.244.2.5:8080".to_owned()].into());
    let pod = add_pod(&fake, ip("10.244.1.5"));
    rig.apply();
    assert_eq!(Picture::of(&fake).at(place).len(), 2);
    // It ends and comes again with the same address.
    fake.end_pod(pod);
    add_pod(&fake, ip("10.244.1.5"));
    rig.set(&[web().build()]);
    rig.apply();
    assert_eq!(Picture::of(&fake).at(place).len(), 2);
    assert!(Picture::of(&fake).foreign.1.len() == 1, "no second endpoint for the pod");
}

#[test]
fn two_services_with_one_place_do_not_fight_for_it() {
    let fake = hns(NEW, NetworkType::L2Bridge);
    let mut rig = Rig::new(fake.clone());
    let one = Fixture::new("a").cluster_ip([10, 96, 0, 10]).remote([10, 244, 2, 5]);
    let other = Fixture::new("b")
        .cluster_ip([10, 96, 0, 11])
        .with(|it| it.external_ips.push(ip("10.96.0.10")))
        .remote([10, 244, 2, 6])
        .build();
    rig.set(&[other.clone(), one.build()]);
    rig.apply();
    let place = "10.96.0.10:80/tcp";
    assert_eq!(Picture::of(&fake).at(place), ["10.244.2.5:8080".to_owned()].into());
    rig.remove(&one.build());
    rig.apply();
    assert_eq!(Picture::of(&fake).at(place), ["10.244.2.6:8080".to_owned()].into());
    rig.remove(&other);
    rig.apply();
    let picture = Picture::of(&fake);
    assert!(picture.load_balancers.is_empty() && picture.endpoints.is_empty());
}
