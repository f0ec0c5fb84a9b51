//! What goes wrong is told and tried again, and the rest goes on.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use telaio_hcn::fake::Fault;
use telaio_hcn::{
    Call, Guid, Hcn as _, Hresult, NetworkType, ObjectKind, Operation, Query, Reason,
};
use telaio_model::{Op, ServiceEndpoints};
use telaio_reconcile::kpng::Backend as _;
use telaio_reconcile::{ApplyError, SyncHandle, SyncKind};
use telaio_service_proxy::config::ProxyConfig;
use telaio_service_proxy::fixture::Fixture;
use telaio_service_proxy::hcn::HcnBackend;
use telaio_service_proxy::hcn::identity::is_marked;
use telaio_service_proxy::options::{Follower, Programmed, ProxyOptions};

use crate::rig::{NEW, OLD, Picture, Rig, add_network, add_pod, hns, ip, options, proxy_options};
use crate::shaky::Shaky;

const E_FAIL: Hresult = Hresult(0x8000_4005);

fn service(n: u8) -> ServiceEndpoints {
    let fixture = Fixture::new(&format!("s{n}")).cluster_ip([10, 96, 0, n]);
    fixture.remote([10, 244, 2, n]).remote([10, 244, 3, n]).build()
}

fn services() -> Vec<ServiceEndpoints> {
    (1..=5).map(service).collect()
}

fn fault(operation: Operation, kind: ObjectKind, name: &str, times: u32) -> Fault {
    Fault { operation, kind, name: name.into(), hresult: E_FAIL, times }
}

#[test]
fn one_load_balancer_that_fails_is_told_and_made_the_next_time() {
    let fake = hns(NEW, NetworkType::L2Bridge);
    fake.fail(fault(Operation::Create, ObjectKind::LoadBalancer, "10.96.0.3:", 1));
    let mut rig = Rig::new(fake.clone());
    rig.set(&services());
    let error = rig.sync(SyncKind::Changes).unwrap_err();
    assert!(error.can_retry());
    let text = error.to_string();
    assert!(text.contains("test/s3") && text.contains("10.96.0.3:80/tcp"), "{text}");
    assert_eq!(Picture::of(&fake).load_balancers.len(), 4);
    rig.apply();
    assert_eq!(Picture::of(&fake).load_balancers.len(), 5);
}

#[test]
fn an_endpoint_that_fails_joins_its_load_balancer_when_it_is_made() {
    let fake = hns(OLD, NetworkType::L2Bridge);
    fake.fail(fault(Operation::Create, ObjectKind::Endpoint, "10.244.2.3", 2));
    let mut rig = Rig::new(fake.clone());
    rig.set(&services());
    rig.sync(SyncKind::Changes).unwrap_err();
    let place = "10.96.0.3:80/tcp";
    assert_eq!(Picture::of(&fake).at(place), ["10.244.3.3:8080".to_owned()].into());
    rig.sync(SyncKind::Changes).unwrap_err();
    rig.apply();
    assert_eq!(Picture::of(&fake).at(place).len(), 2);
    fake.reset_counts();
    rig.apply();
    assert_eq!(fake.writes(), 0);
}

#[test]
fn where_only_the_creation_after_a_removal_fails_it_is_made_up_for() {
    let fake = hns(OLD, NetworkType::L2Bridge);
    let mut rig = Rig::new(fake.clone());
    rig.set(&services());
    rig.apply();
    fake.fail(fault(Operation::Create, ObjectKind::LoadBalancer, "10.96.0.3:", 1));
    let changed = Fixture::new("s3").cluster_ip([10, 96, 0, 3]).remote([10, 244, 2, 3]).build();
    rig.set(&[changed]);
    rig.sync(SyncKind::Changes).unwrap_err();
    rig.apply();
    let picture = Picture::of(&fake);
    assert_eq!(picture.at("10.96.0.3:80/tcp"), ["10.244.2.3:8080".to_owned()].into());
    assert!(!picture.endpoints.contains_key(&ip("10.244.3.3")));
}

#[test]
fn a_load_balancer_that_does_not_go_keeps_its_endpoints_until_it_does() {
    let fake = hns(NEW, NetworkType::L2Bridge);
    let mut rig = Rig::new(fake.clone());
    rig.set(&services());
    rig.apply();
    fake.fail(fault(Operation::Delete, ObjectKind::LoadBalancer, "", 1));
    rig.remove(&service(3));
    rig.sync(SyncKind::Changes).unwrap_err();
    assert_eq!(Picture::of(&fake).at("10.96.0.3:80/tcp").len(), 2);
    rig.apply();
    let picture = Picture::of(&fake);
    assert_eq!((picture.load_balancers.len(), picture.endpoints.len()), (4, 8));
}

#[test]
fn an_hns_that_says_it_can_modify_and_cannot_is_believed_once() {
    let fake = hns(NEW, NetworkType::L2Bridge);
    let shaky = Shaky::new(&fake, |call, _| {
        let is_it = call.operation == Operation::Modify && call.kind == ObjectKind::LoadBalancer;
        is_it.then_some(Reason::Unsupported)
    });
    let mut rig = Rig::new(shaky);
    rig.set(&services());
    rig.apply();
    for n in [2, 3] {
        let cluster_ip = [10, 96, 0, n];
        let one = Fixture::new(&format!("s{n}")).cluster_ip(cluster_ip).remote([10, 244, 2, n]);
        rig.set(&[one.build()]);
        rig.apply();
        assert_eq!(Picture::of(&fake).at(&format!("10.96.0.{n}:80/tcp")).len(), 1);
    }
}

#[test]
fn an_hns_that_is_down_is_not_asked_a_thousand_times() {
    let fake = hns(NEW, NetworkType::L2Bridge);
    let mut rig = Rig::new(fake.clone());
    rig.set(&services());
    rig.apply();
    fake.set_running(false);
    fake.reset_counts();
    rig.set(&(10..60).map(service).collect::<Vec<_>>());
    assert!(matches!(rig.sync(SyncKind::Changes), Err(ApplyError::Transient(_))));
    assert!(fake.counts().values().sum::<u64>() <= 2, "{:?}", fake.counts());
    fake.set_running(true);
    rig.apply();
    assert_eq!(Picture::of(&fake).load_balancers.len(), 55);
}

#[test]
fn a_place_that_somebody_else_has_is_told_and_left_alone() {
    let fake = hns(NEW, NetworkType::L2Bridge);
    let pod = add_pod(&fake, ip("10.244.1.9"));
    let theirs = telaio_hcn::LoadBalancer {
        endpoints: [pod].into(),
        frontend_vips: [ip("10.96.0.3")].into(),
        port_mappings: vec![telaio_hcn::PortMapping {
            protocol: telaio_hcn::PROTOCOL_TCP,
            internal_port: 1,
            external_port: 80,
            distribution_type: telaio_hcn::Distribution::Connection,
            flags: telaio_hcn::PortMappingFlags::NONE,
        }],
        ..Default::default()
    };
    let theirs = fake.create_load_balancer(&theirs).unwrap();
    let mut rig = Rig::new(fake.clone());
    rig.set(&services());
    let error = rig.sync(SyncKind::Changes).unwrap_err();
    assert!(error.to_string().contains("in use already"), "{error}");
    let picture = Picture::of(&fake);
    assert_eq!(picture.foreign.0, [theirs]);
    assert_eq!(picture.load_balancers.len(), 4);

    // Unless its operator says that we take over.
    let taking = telaio_service_proxy::hcn::HcnOptions { takeover: true, ..options() };
    let mut rig = Rig::with(fake.clone(), ProxyConfig::default(), &taking);
    rig.set(&services());
    rig.apply();
    let picture = Picture::of(&fake);
    assert!(picture.foreign.0.is_empty());
    assert_eq!(picture.load_balancers.len(), 5);
}

#[test]
fn an_endpoint_that_moves_to_another_node_is_made_anew_with_its_load_balancers() {
    let fake = hns(NEW, NetworkType::Overlay);
    let mut rig = Rig::new(fake.clone());
    rig.set(&services());
    rig.apply();
    let network = crate::rig::network_id();
    let route = telaio_hcn::NetworkPolicy::RemoteSubnetRoute(telaio_hcn::RemoteSubnetRoute {
        destination_prefix: "10.244.2.0/24".parse().unwrap(),
        isolation_id: 4096,
        provider_address: ip("192.168.50.12"),
        distributed_router_mac_address: None,
    });
    let change =
        telaio_hcn::PolicyChange { request: telaio_hcn::RequestType::Add, policies: vec![route] };
    fake.modify_network(network, &change).unwrap();
    rig.sync(SyncKind::Full).unwrap();
    let picture = Picture::of(&fake);
    let moved = &picture.endpoints[&ip("10.244.2.3")];
    assert_eq!(moved.provider_address(), Some(ip("192.168.50.12")));
    assert_eq!(picture.at("10.96.0.3:80/tcp").len(), 2);
}

/// Every load balancer and endpoint of ours is there.
fn is_whole(fake: &telaio_hcn::FakeHcn) -> bool {
    let picture = Picture::of(fake);
    picture.load_balancers.len() == 5
        && picture.load_balancers.values().all(|(_, to)| to.len() == 2)
        && picture.endpoints.len() == 10
}

/// Tells a test of every sync that succeeds.
struct Tells(parking_lot::Mutex<Sender<()>>);

impl Follower for Tells {
    fn started(&self, _: &SyncHandle) {}

    fn programmed(&self, _: &Programmed<'_>) {
        // The test may have seen enough.
        _ = self.0.lock().send(());
    }
}

#[test]
fn a_restarted_hns_is_noticed_and_programmed_anew() {
    let fake = hns(NEW, NetworkType::L2Bridge);
    let (tell, told) = channel();
    let proxy = ProxyOptions {
        follower: Arc::new(Tells(parking_lot::Mutex::new(tell))),
        ..proxy_options(ProxyConfig::default())
    };
    let mut backend = HcnBackend::new(proxy, options(), Arc::new(fake.clone()));
    backend.setup().unwrap();
    let mut sink = Box::new(backend).sink();
    for entry in services() {
        sink.send(Op::SetService(Arc::clone(&entry.service))).unwrap();
        for endpoint in entry.endpoints.iter() {
            sink.send(Op::SetEndpoint(Arc::clone(endpoint))).unwrap();
        }
    }
    sink.send(Op::Sync).unwrap();
    let wait_until_whole = || {
        while !is_whole(&fake) {
            told.recv_timeout(Duration::from_mins(1)).expect("a sync that succeeds");
        }
    };
    wait_until_whole();
    fake.restart();
    // The CNI plugin makes its network again; until then there is nothing to program services on.
    add_network(&fake, NetworkType::L2Bridge);
    wait_until_whole();
}

#[test]
fn objects_that_vanish_are_found_missing_and_made_again() {
    let fake = hns(NEW, NetworkType::L2Bridge);
    let mut rig = Rig::new(fake.clone());
    rig.set(&services());
    rig.apply();
    fake.restart();
    add_network(&fake, NetworkType::L2Bridge);
    let report = rig.sync(SyncKind::Full).unwrap();
    assert_eq!(report.drift_repairs, 15);
    assert!(is_whole(&fake));

    // One remote endpoint alone, taken out of its load balancer too.
    let all = fake.endpoints(&Query::All).unwrap().objects;
    fake.end_pod(all[0].id.unwrap());
    assert!(!is_whole(&fake));
    rig.sync(SyncKind::Drift).unwrap();
    assert!(is_whole(&fake));

    // A load balancer that is gone is noticed by the call that was to change it.
    let ids = fake.load_balancer_ids(&Query::All).unwrap();
    for id in ids {
        fake.delete_load_balancer(id).unwrap();
    }
    rig.set(&[Fixture::new("s3").cluster_ip([10, 96, 0, 3]).remote([10, 244, 2, 3]).build()]);
    rig.apply();
    rig.apply();
    assert_eq!(Picture::of(&fake).load_balancers.len(), 5);
}

#[test]
fn answers_that_make_no_sense_cost_only_the_object_that_they_are_about() {
    let fake = hns(NEW, NetworkType::L2Bridge);
    let pod = add_pod(&fake, ip("10.244.1.9"));
    let mut rig = Rig::new(fake.clone());
    rig.set(&services());
    rig.apply();
    let ours = fake.load_balancer_ids(&Query::All).unwrap()[0];
    let our_endpoint = fake.endpoint_ids(&Query::All).unwrap();
    let our_endpoint = our_endpoint.into_iter().find(|id| is_marked(*id)).unwrap();
    let bad = [pod, ours, our_endpoint].map(|id: Guid| id.to_string());
    // Once they have been written anew they can be read.
    let written = Arc::new(AtomicBool::new(false));
    let shaky = Shaky::new(&fake, move |call: &Call, _| {
        if call.operation.is_write() {
            written.store(true, Ordering::SeqCst);
        }
        let is_bad = call.operation == Operation::Query && bad.contains(&call.name);
        (is_bad && !written.load(Ordering::SeqCst)).then(|| Reason::BadAnswer("cut off".to_owned()))
    });
    let before = Picture::of(&fake).foreign;
    let mut again = Rig::new(shaky);
    again.set(&services());
    // What is ours and unreadable may still be in use; one more round settles it.
    for _ in 0..3 {
        if again.sync(SyncKind::Changes).is_ok() {
            break;
        }
    }
    again.apply();
    assert!(is_whole(&fake), "{:#?}", Picture::of(&fake));
    assert_eq!(Picture::of(&fake).foreign, before);
}
