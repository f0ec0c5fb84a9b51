//! Killed at any moment, the next run finds what is ours, leaks nothing and touches nobody else's.

use telaio_hcn::{
    Distribution, Endpoint, EndpointFlags, FakeHcn, Hcn as _, IpConfiguration, LoadBalancer,
    NetworkType, PROTOCOL_TCP, PortMapping, PortMappingFlags,
};
use telaio_model::ServiceEndpoints;
use telaio_reconcile::SyncKind;
use telaio_service_proxy::fixture::Fixture;
use telaio_service_proxy::hcn::cleanup;

use crate::rig::{NEW, OLD, Picture, Rig, add_pod, hns, ip, network_id};
use crate::shaky::Shaky;

/// Pods, and what another proxy has made.
fn with_others(version: telaio_hcn::HnsVersion, kind: NetworkType) -> FakeHcn {
    let fake = hns(version, kind);
    let pod = add_pod(&fake, ip("10.244.1.5"));
    let remote = fake.create_endpoint(&Endpoint {
        name: "kube-proxy's".into(),
        network: network_id(),
        ip_configurations: vec![IpConfiguration { ip_address: ip("10.244.2.1"), prefix_length: 0 }],
        flags: EndpointFlags::REMOTE_ENDPOINT,
        ..Endpoint::default()
    });
    let theirs = LoadBalancer {
        endpoints: [pod, remote.unwrap().id.unwrap()].into(),
        frontend_vips: [ip("10.96.0.200")].into(),
        port_mappings: vec![PortMapping {
            protocol: PROTOCOL_TCP,
            internal_port: 8080,
            external_port: 80,
            distribution_type: Distribution::Connection,
            flags: PortMappingFlags::NONE,
        }],
        ..LoadBalancer::default()
    };
    fake.create_load_balancer(&theirs).unwrap();
    fake
}

fn service(n: u8, endpoints: &[u8]) -> ServiceEndpoints {
    let fixture =
        Fixture::new(&format!("s{n}")).cluster_ip([10, 96, 0, n]).node_port(30000 + u16::from(n));
    let fixture = endpoints.iter().fold(fixture, |it, n| it.remote([10, 244, 2, *n]));
    fixture.local([10, 244, 1, 5]).build()
}

fn before() -> Vec<ServiceEndpoints> {
    vec![service(1, &[1, 2]), service(2, &[2, 3]), service(3, &[4])]
}

fn after() -> Vec<ServiceEndpoints> {
    vec![service(1, &[1, 5]), service(3, &[3]), service(4, &[6])]
}

#[test]
fn killed_between_any_two_calls_the_next_run_makes_it_whole() {
    for version in [OLD, NEW] {
        for kind in [NetworkType::L2Bridge, NetworkType::Overlay] {
            let fresh = with_others(version, kind.clone());
            let mut rig = Rig::new(fresh.clone());
            rig.set(&after());
            rig.apply();
            let wanted = Picture::of(&fresh);
            let mut calls = 0;
            loop {
                let fake = with_others(version, kind.clone());
                let mut first = Rig::new(fake.clone());
                first.set(&before());
                first.apply();
                drop(first);
                let shaky = Shaky::dead_after(&fake, calls);
                let mut second = Rig::new(shaky.clone());
                second.set(&after());
                let died = second.sync(SyncKind::Changes).is_err();
                drop(second);
                assert_eq!(Picture::of(&fake).foreign, wanted.foreign, "after {calls} calls");
                let mut third = Rig::new(fake.clone());
                third.set(&after());
                third.apply();
                assert_eq!(Picture::of(&fake), wanted, "{version} {kind}: after {calls} calls");
                if !died {
                    assert!(calls > 20, "it was killed {calls} times only");
                    break;
                }
                calls += 1;
            }
        }
    }
}

#[test]
fn killed_while_it_starts_for_the_first_time_nothing_is_made_twice() {
    for calls in 0..40 {
        let fake = with_others(NEW, NetworkType::Overlay);
        let mut first = Rig::new(Shaky::dead_after(&fake, calls));
        first.set(&before());
        _ = first.sync(SyncKind::Changes);
        let (balancers, endpoints) = {
            let picture = Picture::of(&fake);
            (picture.load_balancers.len() as u64, picture.endpoints.len() as u64)
        };
        fake.reset_counts();
        let mut second = Rig::new(fake.clone());
        second.set(&before());
        second.apply();
        let picture = Picture::of(&fake);
        let made = picture.load_balancers.len() as u64 + picture.endpoints.len() as u64;
        assert!(fake.writes() <= made - balancers - endpoints, "killed after {calls} calls");
    }
}

#[test]
fn what_is_stale_goes_and_what_an_older_release_shaped_otherwise_too() {
    let fake = with_others(NEW, NetworkType::L2Bridge);
    let mut rig = Rig::new(fake.clone());
    rig.set(&before());
    rig.apply();
    // As another release might have made it: ours by its identity, at two places.
    let mut id = *b"telaio4567890123";
    id[6] = 0x80;
    let endpoint = fake.endpoint_ids(&telaio_hcn::Query::All).unwrap()[0];
    let odd = LoadBalancer {
        id: Some(telaio_hcn::Guid::from_bytes(id)),
        endpoints: [endpoint].into(),
        frontend_vips: [ip("10.96.0.4"), ip("10.96.0.5")].into(),
        port_mappings: vec![PortMapping {
            protocol: PROTOCOL_TCP,
            internal_port: 8080,
            external_port: 80,
            distribution_type: Distribution::Connection,
            flags: PortMappingFlags::NONE,
        }],
        ..LoadBalancer::default()
    };
    fake.create_load_balancer(&odd).unwrap();
    let mut again = Rig::new(fake.clone());
    again.set(&after());
    again.apply();
    let fresh = with_others(NEW, NetworkType::L2Bridge);
    let mut rig = Rig::new(fresh.clone());
    rig.set(&after());
    rig.apply();
    assert_eq!(Picture::of(&fake), Picture::of(&fresh));
}

#[test]
fn cleanup_leaves_what_others_made_and_nothing_else() {
    for kind in [NetworkType::L2Bridge, NetworkType::Overlay] {
        let fake = with_others(NEW, kind.clone());
        let untouched = Picture::of(&fake);
        let mut rig = Rig::new(fake.clone());
        rig.set(&before());
        rig.apply();
        let removed = cleanup(&fake).unwrap();
        assert!(removed.len() > 8, "{removed:?}");
        assert_eq!(Picture::of(&fake), untouched);
        assert!(cleanup(&fake).unwrap().is_empty());
    }
}
