//! How many calls things take.

use std::net::{IpAddr, Ipv4Addr};

use telaio_hcn::{FakeHcn, NetworkType, ObjectKind, Operation};
use telaio_model::ServiceEndpoints;
use telaio_reconcile::SyncKind;
use telaio_service_proxy::fixture::Fixture;

use crate::rig::{NEW, OLD, Picture, Rig, add_pod, hns, ip};

const SERVICES: u32 = 5_000;
const ENDPOINTS: u32 = 4;

/// A service with its own endpoints, the first of them of this generation.
fn service(number: u32, generation: u8) -> ServiceEndpoints {
    let mut fixture =
        Fixture::new(&format!("s{number}")).cluster_ip(Ipv4Addr::from(0x0a60_0001 + number));
    for n in 0..ENDPOINTS {
        let first = if n == 0 { u32::from(generation) << 20 } else { 0 };
        fixture = fixture.remote(Ipv4Addr::from(0x0a80_0001 + first + number * ENDPOINTS + n));
    }
    fixture.build()
}

fn writes(fake: &FakeHcn) -> Vec<(ObjectKind, Operation, u64)> {
    let counts = fake.counts();
    let writes = counts.into_iter().filter(|((_, operation), _)| operation.is_write());
    writes.map(|((kind, operation), count)| (kind, operation, count)).collect()
}

const ENDPOINT: ObjectKind = ObjectKind::Endpoint;
const BALANCER: ObjectKind = ObjectKind::LoadBalancer;

#[test]
fn a_cold_start_makes_each_object_once_and_a_restart_makes_none() {
    let fake = hns(OLD, NetworkType::L2Bridge);
    let all: Vec<ServiceEndpoints> = (0..SERVICES).map(|n| service(n, 0)).collect();
    fake.reset_counts();
    let mut rig = Rig::new(fake.clone());
    rig.set(&all);
    rig.apply();
    let expected = [
        (ENDPOINT, Operation::Create, u64::from(SERVICES * ENDPOINTS)),
        (BALANCER, Operation::Create, u64::from(SERVICES)),
    ];
    assert_eq!(writes(&fake), expected);

    // Nothing changed: nothing is written, and looking at all of it takes a handful of calls.
    fake.reset_counts();
    rig.set(&all);
    rig.apply();
    rig.sync(SyncKind::Full).unwrap();
    rig.sync(SyncKind::Drift).unwrap();
    assert_eq!(fake.writes(), 0);
    assert!(fake.counts().values().sum::<u64>() < 20, "{:?}", fake.counts());

    // Another run adopts it.
    let mut again = Rig::new(fake.clone());
    again.set(&all);
    again.apply();
    assert_eq!(fake.writes(), 0);
}

#[test]
fn on_an_overlay_a_cold_start_makes_each_object_once_too() {
    let fake = hns(NEW, NetworkType::Overlay);
    fake.reset_counts();
    let mut rig = Rig::new(fake.clone());
    rig.set(&(0..100).map(|n| service(n, 0)).collect::<Vec<_>>());
    rig.apply();
    // Beside the endpoints' own there is one for each address of a service, and the source address.
    let endpoints = 100 * u64::from(ENDPOINTS) + 100 + 1;
    let expected = [(ENDPOINT, Operation::Create, endpoints), (BALANCER, Operation::Create, 100)];
    assert_eq!(writes(&fake), expected);
}

#[test]
fn a_replaced_endpoint_is_one_modification_where_hns_can() {
    let fake = hns(NEW, NetworkType::L2Bridge);
    let mut rig = Rig::new(fake.clone());
    rig.set(&(0..SERVICES).map(|n| service(n, 0)).collect::<Vec<_>>());
    rig.apply();
    fake.reset_counts();
    rig.set(&[service(77, 1)]);
    rig.apply();
    let expected = [
        (ENDPOINT, Operation::Create, 1),
        (ENDPOINT, Operation::Delete, 1),
        (BALANCER, Operation::Modify, 1),
    ];
    assert_eq!(writes(&fake), expected);
    let reads: u64 = fake.counts().values().sum::<u64>() - fake.writes();
    assert_eq!(reads, 0, "what is known is not read again");
}

#[test]
fn a_replaced_endpoint_is_one_removal_and_one_creation_where_hns_cannot() {
    for version in [OLD, telaio_hcn::HnsVersion::new(15, 4)] {
        let fake = hns(version, NetworkType::L2Bridge);
        let mut rig = Rig::new(fake.clone());
        rig.set(&(0..100).map(|n| service(n, 0)).collect::<Vec<_>>());
        rig.apply();
        fake.reset_counts();
        rig.set(&[service(77, 1)]);
        rig.apply();
        let expected = [
            (ENDPOINT, Operation::Create, 1),
            (ENDPOINT, Operation::Delete, 1),
            (BALANCER, Operation::Create, 1),
            (BALANCER, Operation::Delete, 1),
        ];
        assert_eq!(writes(&fake), expected, "{version}");
    }
}

#[test]
fn an_endpoint_that_two_services_share_changes_two_load_balancers_and_is_made_once() {
    let shared = |name: &str, n: u8, endpoint: [u8; 4]| {
        Fixture::new(name).cluster_ip([10, 96, 0, n]).remote(endpoint).build()
    };
    let fake = hns(NEW, NetworkType::L2Bridge);
    let mut rig = Rig::new(fake.clone());
    rig.set(&[shared("a", 1, [10, 244, 2, 5]), shared("b", 2, [10, 244, 2, 5])]);
    rig.apply();
    assert_eq!(Picture::of(&fake).endpoints.len(), 1);
    fake.reset_counts();
    rig.set(&[shared("a", 1, [10, 244, 2, 6]), shared("b", 2, [10, 244, 2, 6])]);
    rig.apply();
    let expected = [
        (ENDPOINT, Operation::Create, 1),
        (ENDPOINT, Operation::Delete, 1),
        (BALANCER, Operation::Modify, 2),
    ];
    assert_eq!(writes(&fake), expected);
}

#[test]
fn pods_of_this_node_are_never_made_or_removed() {
    let fake = hns(NEW, NetworkType::L2Bridge);
    let pods: Vec<IpAddr> = (5..9).map(|n| IpAddr::from([10, 244, 1, n])).collect();
    for pod in &pods {
        add_pod(&fake, *pod);
    }
    let before = Picture::of(&fake).foreign;
    fake.reset_counts();
    let mut rig = Rig::new(fake.clone());
    let web = pods
        .iter()
        .fold(Fixture::new("web").cluster_ip(ip("10.96.0.10")), |it, pod| it.local(*pod));
    rig.set(&[web.build()]);
    rig.apply();
    assert_eq!(writes(&fake), [(BALANCER, Operation::Create, 1)]);
    rig.remove(&web.build());
    rig.apply();
    assert_eq!(fake.count(Operation::Delete, ENDPOINT), 0);
    assert_eq!(Picture::of(&fake).foreign, before);
}
