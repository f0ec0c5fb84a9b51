use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use telaio_model::ObjectKey;

use super::*;
use crate::ipvs::types::{Outside, Scheduler, server_at};
use crate::plan::PortName;

const TYPES: [ServiceType; 4] =
    [ServiceType::ClusterIp, ServiceType::NodePort, ServiceType::LoadBalancer, ServiceType::Local];

fn at() -> SocketAddr {
    "192.0.2.1:80".parse().unwrap()
}

fn ip() -> IpAddr {
    at().ip()
}

fn service(service_type: ServiceType) -> ServiceInfo {
    let name = PortName {
        service: ObjectKey::new("test", "web"),
        port: "".into(),
        protocol: Protocol::Tcp,
    };
    ServiceInfo {
        server: match service_type {
            ServiceType::Local => ServerKey::Mark { is_v6: false, mark: 7 << 16 },
            _ => server_at(Protocol::Tcp, at()),
        },
        name: Arc::new(name),
        service_type,
        treatment: Treatment::Serve,
        outside: None,
        scheduler: Scheduler::RoundRobin,
        affinity_s: None,
        is_direct: false,
        allowed: None,
        bind: service_type == ServiceType::LoadBalancer,
    }
}

fn place() -> Entry {
    Entry::IpPort { ip: ip(), protocol: 6, port: 80 }
}

fn member(set: SetKind) -> Member {
    (Membership::new(set, place()), None)
}

fn members(service: &ServiceInfo) -> Vec<Member> {
    handler_of(service).members(service)
}

/// The steps that an operation comes down to.
fn steps(operation: impl FnOnce(&dyn Handler, &mut Vec<Step>), service: &ServiceInfo) -> Vec<Step> {
    let mut steps = Vec::new();
    operation(handler_of(service), &mut steps);
    steps
}

fn update(old: &ServiceInfo, new: &ServiceInfo) -> Vec<Step> {
    steps(|handler, steps| handler.update_service(old, new, steps), new)
}

fn endpoint() -> EndpointInfo {
    EndpointInfo {
        server: server_at(Protocol::Tcp, at()),
        protocol: Protocol::Tcp,
        address: "10.244.1.1:8080".parse().unwrap(),
        weight: 1,
        forwarding: Forwarding::Nat,
        local: true,
    }
}

fn own_loop() -> Membership {
    let ip = endpoint().address.ip();
    let entry = Entry::IpPortIp { ip, protocol: 6, port: 8080, other: ip };
    Membership::new(SetKind::LoopBack, entry)
}

#[test]
fn a_served_place_is_in_the_set_of_its_type() {
    assert_eq!(members(&service(ServiceType::ClusterIp)), [member(SetKind::ClusterIp)]);
    assert_eq!(members(&service(ServiceType::NodePort)), [member(SetKind::External)]);
    assert_eq!(members(&service(ServiceType::LoadBalancer)), [member(SetKind::External)]);
    assert_eq!(members(&service(ServiceType::Local)), []);
}

#[test]
fn a_place_that_nobody_serves_is_refused_or_dropped_and_has_no_server() {
    for service_type in [ServiceType::ClusterIp, ServiceType::NodePort, ServiceType::LoadBalancer] {
        for (treatment, set) in
            [(Treatment::Reject, SetKind::Reject), (Treatment::Drop, SetKind::Drop)]
        {
            let service = ServiceInfo { treatment, ..service(service_type) };
            assert_eq!(members(&service), [member(set)], "{service_type:?}");
            let made = steps(|handler, steps| handler.create_service(&service, steps), &service);
            let has_server = made.iter().any(|it| matches!(it, Step::SetServer(_)));
            assert!(!has_server, "{service_type:?} {made:?}");
        }
    }
}

#[test]
fn the_policy_local_says_what_outside_meets() {
    for service_type in [ServiceType::NodePort, ServiceType::LoadBalancer] {
        let marked =
            ServiceInfo { outside: Some(Outside::Marked(3 << 16)), ..service(service_type) };
        let expected = (Membership::new(SetKind::Local, place()), Some(3 << 16));
        assert_eq!(members(&marked), [expected], "{service_type:?}");
        let nobody = ServiceInfo { outside: Some(Outside::Drop), ..service(service_type) };
        assert_eq!(members(&nobody), [member(SetKind::NoLocal)], "{service_type:?}");
    }
}

#[test]
fn only_who_is_listed_may_use_a_restricted_place() {
    let net = "203.0.113.0/24".parse().unwrap();
    let limited = ServiceInfo { allowed: Some([net].into()), ..service(ServiceType::LoadBalancer) };
    let source = Entry::IpPortNet { ip: ip(), protocol: 6, port: 80, net };
    // First who may, then that only they may.
    let expected = [
        member(SetKind::External),
        (Membership::new(SetKind::Allowed, source), None),
        member(SetKind::Restricted),
    ];
    assert_eq!(members(&limited), expected);
}

#[test]
fn making_and_removing_a_service_are_each_others_opposites() {
    for service_type in TYPES {
        let service = service(service_type);
        let made = steps(|handler, steps| handler.create_service(&service, steps), &service);
        let removed = steps(|handler, steps| handler.delete_service(&service, steps), &service);
        let opposite = |step: &Step| match step {
            Step::SetServer(server) => Step::RemoveServer(server.key),
            Step::Join(member, _) => Step::Leave(*member),
            Step::Bind(ip) => Step::Unbind(*ip),
            other => panic!("{other:?}"),
        };
        let mut expected: Vec<Step> = made.iter().map(opposite).collect();
        assert!(matches!(made[0], Step::SetServer(_)), "{service_type:?}");
        // The server goes last.
        expected.rotate_left(1);
        assert_eq!(removed, expected, "{service_type:?}");
    }
}

#[test]
fn an_update_says_only_what_is_different() {
    let old = service(ServiceType::LoadBalancer);
    assert_eq!(update(&old, &old), []);
    let sticky = ServiceInfo { affinity_s: Some(60), ..old.clone() };
    let steps = update(&old, &sticky);
    assert_eq!(steps.len(), 1);
    assert!(matches!(&steps[0], Step::SetServer(it) if it.affinity_s == Some(60)), "{steps:?}");
    let unbound = ServiceInfo { bind: false, ..old.clone() };
    assert_eq!(update(&old, &unbound), [Step::Unbind(ip())]);
    assert_eq!(update(&unbound, &old), [Step::Bind(ip())]);
}

#[test]
fn a_place_joins_its_new_set_before_it_leaves_the_old() {
    let old = service(ServiceType::NodePort);
    let new = ServiceInfo { outside: Some(Outside::Drop), ..old.clone() };
    let expected = [
        Step::Join(Membership::new(SetKind::NoLocal, place()), None),
        Step::Leave(Membership::new(SetKind::External, place())),
    ];
    assert_eq!(update(&old, &new), expected);
}

#[test]
fn a_place_that_changes_its_type_leaves_the_sets_of_the_other() {
    let expected = [
        Step::Join(Membership::new(SetKind::ClusterIp, place()), None),
        Step::Leave(Membership::new(SetKind::External, place())),
    ];
    let new = ServiceInfo { bind: true, ..service(ServiceType::ClusterIp) };
    assert_eq!(update(&service(ServiceType::LoadBalancer), &new), expected);
}

#[test]
fn who_loses_the_last_endpoint_is_refused_first_and_then_has_no_server() {
    let old = service(ServiceType::ClusterIp);
    let new = ServiceInfo { treatment: Treatment::Reject, ..old.clone() };
    let expected = [
        Step::Join(Membership::new(SetKind::Reject, place()), None),
        Step::Leave(Membership::new(SetKind::ClusterIp, place())),
        Step::RemoveServer(old.server),
    ];
    assert_eq!(update(&old, &new), expected);
    assert!(matches!(update(&new, &old)[0], Step::SetServer(_)));
}

#[test]
fn only_udp_has_no_end_to_wait_for() {
    for (protocol, expected) in
        [(Protocol::Tcp, false), (Protocol::Udp, true), (Protocol::Sctp, false)]
    {
        let mut info = service(ServiceType::Local);
        info.name = Arc::new(PortName { protocol, ..PortName::clone(&info.name) });
        assert_eq!(server(&info).unwrap().is_udp, expected, "{protocol}");
    }
}

#[test]
fn an_endpoint_of_this_node_can_reach_itself() {
    let service = service(ServiceType::ClusterIp);
    let create = |endpoint: &EndpointInfo| {
        steps(|handler, steps| handler.create_endpoint(endpoint, &service, steps), &service)
    };
    let near = endpoint();
    assert_eq!(create(&near), [Step::SetEndpoint(near.clone()), Step::Join(own_loop(), None)]);
    let removed = steps(|handler, steps| handler.delete_endpoint(&near, &service, steps), &service);
    assert_eq!(removed, [Step::RemoveEndpoint(near.key()), Step::Leave(own_loop())]);
    for other in [
        EndpointInfo { local: false, ..endpoint() },
        EndpointInfo { forwarding: Forwarding::Direct, ..endpoint() },
    ] {
        assert_eq!(create(&other), [Step::SetEndpoint(other.clone())]);
    }
    // Where pods cannot be told from others, they are led to the server that is known by its mark too.
    let by_mark =
        EndpointInfo { server: ServerKey::Mark { is_v6: false, mark: 1 << 16 }, ..endpoint() };
    assert_eq!(create(&by_mark)[1..], [Step::Join(own_loop(), None)]);
}

#[test]
fn an_endpoint_that_moves_is_listed_where_it_is() {
    let service = service(ServiceType::ClusterIp);
    let update = |old: &EndpointInfo, new: &EndpointInfo| {
        steps(|handler, steps| handler.update_endpoint(old, new, &service, steps), &service)
    };
    let (near, far) = (endpoint(), EndpointInfo { local: false, ..endpoint() });
    assert_eq!(update(&far, &near)[1..], [Step::Join(own_loop(), None)]);
    assert_eq!(update(&near, &far)[1..], [Step::Leave(own_loop())]);
    let heavy = EndpointInfo { weight: 5, ..near.clone() };
    assert_eq!(update(&near, &heavy), [Step::SetEndpoint(heavy)]);
}

#[test]
fn who_is_answered_by_an_endpoint_itself_is_never_masqueraded() {
    for service_type in [ServiceType::ClusterIp, ServiceType::NodePort, ServiceType::LoadBalancer] {
        let direct = ServiceInfo { is_direct: true, ..service(service_type) };
        let members = handler_of(&direct).members(&direct);
        assert_eq!(members, [(Membership::new(SetKind::Direct, place()), None)]);
    }
}
