//! The rules of the fake: those of HNS, in their strictest reading.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may panic")]

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use telaio_hcn::fake::Fault;
use telaio_hcn::{
    Distribution, Endpoint, EndpointFlags, EndpointPolicy, Event, FakeHcn, Guid, Hcn, HnsVersion,
    Hresult, IpConfiguration, Ipam, LoadBalancer, LoadBalancerFlags, Network, NetworkType,
    ObjectKind, Operation, PROTOCOL_TCP, PROTOCOL_UDP, PolicyChange, PortMapping, PortMappingFlags,
    ProviderAddress, Query, Reason, RequestType, Subnet,
};

fn network(name: &str) -> Network {
    let subnet = Subnet {
        ip_address_prefix: "10.244.1.0/24".parse().unwrap(),
        policies: vec![],
        routes: vec![],
    };
    Network {
        name: name.into(),
        kind: NetworkType::L2Bridge,
        ipams: vec![Ipam { kind: "Static".into(), subnets: vec![subnet] }],
        ..Network::default()
    }
}

fn endpoint(network: Guid, ip: &str) -> Endpoint {
    Endpoint {
        network,
        ip_configurations: vec![IpConfiguration {
            ip_address: ip.parse().unwrap(),
            prefix_length: 0,
        }],
        flags: EndpointFlags::REMOTE_ENDPOINT,
        ..Endpoint::default()
    }
}

fn port(protocol: u32, external_port: u16) -> PortMapping {
    PortMapping {
        protocol,
        internal_port: 8080,
        external_port,
        distribution_type: Distribution::Connection,
        flags: PortMappingFlags::NONE,
    }
}

fn balancer(endpoint: Guid, vip: &str) -> LoadBalancer {
    LoadBalancer {
        endpoints: [endpoint].into(),
        frontend_vips: [vip.parse().unwrap()].into(),
        port_mappings: vec![port(PROTOCOL_TCP, 80)],
        ..LoadBalancer::default()
    }
}

fn scene(version: HnsVersion) -> (FakeHcn, Guid, Guid) {
    let hcn = FakeHcn::new(version);
    let network = hcn.create_network(&network("cbr0")).unwrap().id.unwrap();
    let endpoint = hcn.create_endpoint(&endpoint(network, "10.244.2.5")).unwrap().id.unwrap();
    (hcn, network, endpoint)
}

const NEW: HnsVersion = HnsVersion::new(16, 0);

#[test]
fn what_is_left_out_is_filled_in() {
    let (hcn, network, _) = scene(NEW);
    let asked = Endpoint { network, ..Endpoint::default() };
    let made = hcn.create_endpoint(&asked).unwrap();
    assert!(asked.is_satisfied_by(&made));
    assert_eq!(made.label(), "10.244.1.2");
    assert_eq!(made.ip_configurations[0].prefix_length, 24);
    assert!(made.mac_address.is_some() && made.id.is_some());
    let next = hcn.create_endpoint(&asked).unwrap();
    assert_eq!(next.label(), "10.244.1.3");
    assert_ne!((next.id, next.mac_address), (made.id, made.mac_address));
}

#[test]
fn an_address_belongs_to_one_endpoint_of_a_network() {
    let (hcn, first, _) = scene(NEW);
    let again = hcn.create_endpoint(&endpoint(first, "10.244.2.5")).unwrap_err();
    assert_eq!(again.reason, Reason::AlreadyExists);
    let second = hcn.create_network(&network("cbr1")).unwrap().id.unwrap();
    hcn.create_endpoint(&endpoint(second, "10.244.2.5")).unwrap();
}

#[test]
fn an_address_protocol_and_port_belong_to_one_load_balancer_of_a_network() {
    let (hcn, _, id) = scene(NEW);
    let first = hcn.create_load_balancer(&balancer(id, "10.96.0.10")).unwrap();
    let refused = hcn.create_load_balancer(&balancer(id, "10.96.0.10")).unwrap_err();
    assert_eq!(refused.reason, Reason::PortInUse);
    // Another address, protocol or port, or the node's own address.
    hcn.create_load_balancer(&balancer(id, "10.96.0.11")).unwrap();
    for ports in [vec![port(PROTOCOL_UDP, 80)], vec![port(PROTOCOL_TCP, 81)]] {
        let other = LoadBalancer { port_mappings: ports, ..balancer(id, "10.96.0.10") };
        hcn.create_load_balancer(&other).unwrap();
    }
    let node_port = LoadBalancer { frontend_vips: [].into(), ..balancer(id, "10.96.0.10") };
    hcn.create_load_balancer(&node_port).unwrap();
    let of_ipv6 = LoadBalancer { flags: LoadBalancerFlags::IPV6, ..node_port };
    hcn.create_load_balancer(&of_ipv6).unwrap();
    // And the first again, when it is free.
    hcn.delete_load_balancer(first.id.unwrap()).unwrap();
    hcn.create_load_balancer(&balancer(id, "10.96.0.10")).unwrap();
}

#[test]
fn a_load_balancer_without_sense_is_refused() {
    type Change = fn(&mut LoadBalancer);
    let (hcn, _, id) = scene(NEW);
    let good = balancer(id, "10.96.0.10");
    let changes: [(Change, Reason); 7] = [
        (|lb| lb.endpoints.clear(), Reason::InvalidDocument),
        (|lb| lb.port_mappings.clear(), Reason::InvalidDocument),
        (|lb| lb.port_mappings[0].internal_port = 0, Reason::InvalidDocument),
        (|lb| lb.port_mappings[0].protocol = 132, Reason::Unsupported),
        (|lb| lb.flags = LoadBalancerFlags::IPV6, Reason::InvalidDocument),
        (|lb| lb.port_mappings.push(port(PROTOCOL_TCP, 80)), Reason::PortInUse),
        (
            |lb| lb.port_mappings.push(PortMapping { internal_port: 9, ..port(PROTOCOL_UDP, 80) }),
            Reason::InvalidDocument,
        ),
    ];
    for (change, reason) in changes {
        let mut asked = good.clone();
        change(&mut asked);
        let error = hcn.create_load_balancer(&asked).unwrap_err();
        assert_eq!(error.reason, reason, "{error}");
    }
    assert_eq!(hcn.load_balancer_ids(&Query::All).unwrap(), []);
}

#[test]
fn endpoints_of_two_networks_do_not_share_a_load_balancer() {
    let (hcn, _, first) = scene(NEW);
    let other = hcn.create_network(&network("cbr1")).unwrap().id.unwrap();
    let second = hcn.create_endpoint(&endpoint(other, "10.244.2.9")).unwrap().id.unwrap();
    let asked = LoadBalancer { endpoints: [first, second].into(), ..balancer(first, "10.96.0.10") };
    assert_eq!(hcn.create_load_balancer(&asked).unwrap_err().reason, Reason::InvalidDocument);
}

#[test]
fn what_is_in_use_cannot_go() {
    let (hcn, network, id) = scene(NEW);
    let made = hcn.create_load_balancer(&balancer(id, "10.96.0.10")).unwrap().id.unwrap();
    assert_eq!(hcn.delete_endpoint(id).unwrap_err().reason, Reason::InUse);
    assert_eq!(hcn.delete_network(network).unwrap_err().reason, Reason::InUse);
    hcn.delete_load_balancer(made).unwrap();
    hcn.delete_endpoint(id).unwrap();
    hcn.delete_network(network).unwrap();
    assert!(hcn.delete_network(network).unwrap_err().is_not_found());
}

#[test]
fn a_pod_that_ends_takes_its_endpoint_with_it() {
    let (hcn, network, id) = scene(NEW);
    let made = hcn.create_load_balancer(&balancer(id, "10.96.0.10")).unwrap().id.unwrap();
    hcn.end_pod(id);
    assert!(hcn.endpoint(id).unwrap_err().is_not_found());
    assert_eq!(hcn.load_balancer(made).unwrap().endpoints, [].into());
    hcn.delete_load_balancer(made).unwrap();
    let again = hcn.create_endpoint(&endpoint(network, "10.244.2.5")).unwrap().id.unwrap();
    hcn.create_load_balancer(&balancer(again, "10.96.0.10")).unwrap();
}

#[test]
fn a_load_balancer_is_modified_in_place_where_the_version_can() {
    let (hcn, network, first) = scene(NEW);
    let second = hcn.create_endpoint(&endpoint(network, "10.244.2.6")).unwrap().id.unwrap();
    let made = hcn.create_load_balancer(&balancer(first, "10.96.0.10")).unwrap();
    let other = hcn.create_load_balancer(&balancer(first, "10.96.0.11")).unwrap();
    let changed = LoadBalancer { endpoints: [second].into(), ..made.clone() };
    hcn.modify_load_balancer(made.id.unwrap(), &changed).unwrap();
    assert_eq!(hcn.load_balancer(made.id.unwrap()).unwrap(), changed);
    // What it refers to now cannot go; what it no longer refers to can.
    assert_eq!(hcn.delete_endpoint(second).unwrap_err().reason, Reason::InUse);
    hcn.delete_load_balancer(other.id.unwrap()).unwrap();
    hcn.delete_endpoint(first).unwrap();
    let missing = hcn.modify_load_balancer(made.id.unwrap(), &made).unwrap_err();
    assert_eq!(missing.reason, Reason::MissingDependency(ObjectKind::Endpoint));
    assert_eq!(hcn.load_balancer(made.id.unwrap()).unwrap(), changed);
}

#[test]
fn versions_refuse_what_they_cannot_and_one_only_pretends() {
    let (hcn, _, id) = scene(HnsVersion::new(9, 2));
    let plain = balancer(id, "10.96.0.10");
    let dsr = LoadBalancer { flags: LoadBalancerFlags::DSR, ..plain.clone() };
    assert_eq!(hcn.create_load_balancer(&dsr).unwrap_err().reason, Reason::Unsupported);
    let mut sticky = plain.clone();
    sticky.port_mappings[0].distribution_type = Distribution::SourceIp;
    assert_eq!(hcn.create_load_balancer(&sticky).unwrap_err().reason, Reason::Unsupported);
    let made = hcn.create_load_balancer(&plain).unwrap();
    let error = hcn.modify_load_balancer(made.id.unwrap(), &made).unwrap_err();
    assert_eq!(error.reason, Reason::Unsupported);

    let (hcn, _, id) = scene(HnsVersion::new(15, 4));
    let made = hcn.create_load_balancer(&balancer(id, "10.96.0.10")).unwrap();
    let changed = LoadBalancer { flags: LoadBalancerFlags::DSR, ..made.clone() };
    hcn.modify_load_balancer(made.id.unwrap(), &changed).unwrap();
    assert_eq!(hcn.load_balancer(made.id.unwrap()).unwrap(), made);
}

#[test]
fn policies_are_added_replaced_by_type_and_removed() {
    let (hcn, _, id) = scene(NEW);
    let node = |ip: &str| {
        EndpointPolicy::ProviderAddress(ProviderAddress { provider_address: ip.parse().unwrap() })
    };
    let change = |request, policy: &EndpointPolicy| {
        hcn.modify_endpoint(id, &PolicyChange { request, policies: vec![policy.clone()] })
    };
    change(RequestType::Add, &node("192.0.2.7")).unwrap();
    change(RequestType::Update, &node("192.0.2.8")).unwrap();
    assert_eq!(hcn.endpoint(id).unwrap().provider_address(), Some("192.0.2.8".parse().unwrap()));
    assert_eq!(hcn.endpoint(id).unwrap().policies.len(), 1);
    assert!(change(RequestType::Remove, &node("192.0.2.7")).is_err());
    change(RequestType::Remove, &node("192.0.2.8")).unwrap();
    assert_eq!(hcn.endpoint(id).unwrap().policies, []);
}

#[test]
fn calls_are_counted_and_fail_as_often_as_asked() {
    let (hcn, network, id) = scene(NEW);
    assert_eq!(hcn.writes(), 2);
    hcn.reset_counts();
    hcn.fail(Fault {
        operation: Operation::Create,
        kind: ObjectKind::LoadBalancer,
        name: "10.96.0.10:80/tcp".into(),
        hresult: Hresult(0x8007_0005),
        times: 1,
    });
    hcn.create_load_balancer(&balancer(id, "10.96.0.11")).unwrap();
    let error = hcn.create_load_balancer(&balancer(id, "10.96.0.10")).unwrap_err();
    assert_eq!(error.reason, Reason::AccessDenied);
    hcn.create_load_balancer(&balancer(id, "10.96.0.10")).unwrap();
    assert_eq!(hcn.count(Operation::Create, ObjectKind::LoadBalancer), 3);
    assert_eq!(hcn.writes(), 3);
    hcn.network(network).unwrap();
    assert_eq!(hcn.writes(), 3);
    assert_eq!(hcn.counts()[&(ObjectKind::Network, Operation::Query)], 1);
}

#[test]
fn a_restart_takes_everything_and_a_stop_nothing() {
    let (hcn, network, id) = scene(NEW);
    let events = Arc::new(Mutex::new(Vec::new()));
    let heard = events.clone();
    let watch = hcn.watch(Arc::new(move |event| heard.lock().unwrap().push(event))).unwrap();
    hcn.set_running(false);
    let error = hcn.endpoint(id).unwrap_err();
    assert!(error.is_transient() && !error.is_not_found(), "{error}");
    hcn.set_running(true);
    hcn.endpoint(id).unwrap();
    hcn.restart();
    assert!(hcn.endpoint(id).unwrap_err().is_not_found());
    assert!(hcn.network(network).unwrap_err().is_not_found());
    assert_eq!(*events.lock().unwrap(), [Event::Disconnected, Event::Disconnected]);
    drop(watch);
    hcn.restart();
    assert_eq!(events.lock().unwrap().len(), 2);
}

#[test]
fn a_listener_may_end_its_own_watch() {
    let hcn = FakeHcn::default();
    let told = Arc::new(AtomicU32::new(0));
    let watch = Arc::new(Mutex::new(None));
    let (count, own) = (told.clone(), watch.clone());
    let begun = hcn.watch(Arc::new(move |_| {
        count.fetch_add(1, Ordering::Relaxed);
        drop(own.lock().unwrap().take());
    }));
    *watch.lock().unwrap() = Some(begun.unwrap());
    hcn.restart();
    hcn.restart();
    assert_eq!(told.load(Ordering::Relaxed), 1);
}

#[test]
fn queries_find_by_identity_name_and_network() {
    let (hcn, first, id) = scene(NEW);
    let second = hcn.create_network(&network("cbr1")).unwrap().id.unwrap();
    assert_eq!(hcn.network_ids(&Query::Name("cbr1".into())).unwrap(), [second]);
    assert_eq!(hcn.network_ids(&Query::All).unwrap().len(), 2);
    assert_eq!(hcn.endpoint_ids(&Query::OnNetwork(first)).unwrap(), [id]);
    assert_eq!(hcn.endpoint_ids(&Query::OnNetwork(second)).unwrap(), []);
    assert_eq!(hcn.endpoint_ids(&Query::Id(id)).unwrap(), [id]);
}
