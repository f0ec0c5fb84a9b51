//! Single cases that random clusters have led to, and some that they never meet.

use telaio_model::{
    Endpoint, EndpointSlice, IpMode, LoadBalancerIngress, Protocol, Service, ServiceType,
};
use telaio_service_proxy::config::{DetectLocal, NodePortAddresses};
use telaio_service_proxy::trace::{Packet, Trace, Verdict};

use crate::make::{endpoint, ip, packet, port, service, slice};
use crate::oracle::{Backend, expect};
use crate::world::{NODE, World};

const ALL: [Backend; 3] = [Backend::Nftables, Backend::Iptables, Backend::Ipvs];

/// A cluster whose pods are 10.244.0.0/16.
fn world(services: Vec<Service>, slices: Vec<EndpointSlice>) -> World {
    let mut world = World { services, slices, ..World::empty() };
    let pods = ["10.244.0.0/16", "fd00:10:244::/48"].map(|net| net.parse().unwrap());
    world.config.detect_local = DetectLocal::ClusterCidr(pods.to_vec());
    world
}

/// All backends do what the contract says. Gives what they do.
fn as_expected(world: &World, packet: &Packet) -> [Trace; 3] {
    let rules = world.rules();
    ALL.map(|backend| {
        let answer = rules.trace(backend, packet);
        let expected = expect(world, backend, packet);
        assert!(
            expected.allows(&answer),
            "{backend:?}: {packet:?}\nshould be {expected:?}\nis        {answer:?}"
        );
        answer
    })
}

fn verdicts(answers: &[Trace]) -> Vec<Verdict> {
    answers.iter().map(|it| it.verdict).collect()
}

#[test]
fn an_endpoint_that_names_no_node_reaches_itself() {
    // Written by hand, as for a database beside the cluster: nothing says where it runs.
    let own = endpoint(ip("10.244.1.11"), None);
    let world = world(vec![service("web", &["10.96.0.1"])], vec![slice("web", &[""], vec![own])]);
    as_expected(&world, &packet("10.244.1.11", "10.96.0.1:80"));
}

#[test]
fn addresses_of_a_family_without_a_cluster_address_are_left_alone() {
    let mut web = service("web", &["fd00:10:96::1"]);
    web.service_type = ServiceType::LoadBalancer;
    web.external_ips = vec![ip("192.168.50.11")];
    web.load_balancer = vec![LoadBalancerIngress { ip: ip("192.0.2.1"), ip_mode: IpMode::Vip }];
    let there = endpoint(ip("10.244.2.11"), Some("node-b"));
    for slices in [vec![], vec![slice("web", &[""], vec![there])]] {
        let world = world(vec![web.clone()], slices);
        // The node's own port 80 is none of this service's business.
        for to in ["192.168.50.11:80", "192.0.2.1:80"] {
            let answers = as_expected(&world, &packet("203.0.113.5", to));
            assert_eq!(verdicts(&answers), [Verdict::None; 3], "{to}");
        }
    }
}

#[test]
fn all_backends_give_a_contested_place_to_the_same_service() {
    let mut first = service("a", &["10.96.0.1"]);
    first.external_ips = vec![ip("10.96.0.2")];
    let second = service("b", &["10.96.0.2"]);
    let slices = vec![
        slice("a", &[""], vec![endpoint(ip("10.244.1.11"), Some(NODE))]),
        slice("b", &[""], vec![endpoint(ip("10.244.1.12"), Some(NODE))]),
    ];
    let world = world(vec![first, second], slices);
    let [nftables, iptables, ipvs] = as_expected(&world, &packet("203.0.113.5", "10.96.0.2:80"));
    assert_eq!(nftables.endpoints, iptables.endpoints);
    assert_eq!(nftables.endpoints, ipvs.endpoints);
}

#[test]
fn source_ranges_of_a_service_that_does_not_have_the_place_keep_nobody_out() {
    let vip = || vec![LoadBalancerIngress { ip: ip("192.0.2.1"), ip_mode: IpMode::Vip }];
    let mut first = service("a", &["10.96.0.1"]);
    let mut second = service("b", &["10.96.0.2"]);
    for service in [&mut first, &mut second] {
        service.service_type = ServiceType::LoadBalancer;
        service.load_balancer = vip();
    }
    second.source_ranges = vec!["192.168.50.0/24".parse().unwrap()];
    let slices = vec![
        slice("a", &[""], vec![endpoint(ip("10.244.1.11"), Some(NODE))]),
        slice("b", &[""], vec![endpoint(ip("10.244.1.12"), Some(NODE))]),
    ];
    let world = world(vec![first, second], slices);
    let answers = as_expected(&world, &packet("203.0.113.5", "192.0.2.1:80"));
    // One service's answer or the other's, and the same with all backends.
    assert_eq!(answers[0].endpoints, answers[1].endpoints);
    assert_eq!(answers[0].endpoints, answers[2].endpoints);
    assert_eq!(verdicts(&answers), [Verdict::Dnat; 3]);
}

#[test]
fn node_ports_on_loopback_are_served_where_no_other_address_serves_them() {
    let mut web = service("web", &["10.96.0.1", "fd00:10:96::1"]);
    web.service_type = ServiceType::NodePort;
    web.ports = vec![port("", Protocol::Tcp, Some(30080))];
    let slices = vec![
        slice("web", &[""], vec![endpoint(ip("10.244.1.11"), Some(NODE))]),
        slice("web", &[""], vec![endpoint(ip("fd00:10:244:1::11"), Some(NODE))]),
    ];
    let mut world = world(vec![web], slices);
    world.config.node_port_addresses = NodePortAddresses::Within(Vec::new());
    for (from, to) in [("127.0.0.1", "127.0.0.1:30080"), ("::1", "[::1]:30080")] {
        let packet = Packet { interface: None, ..packet(from, to) };
        as_expected(&world, &packet);
    }
    let answers = as_expected(&world, &packet("203.0.113.5", "192.168.50.11:30080"));
    assert_eq!(verdicts(&answers), [Verdict::None; 3]);
}

#[test]
fn an_endpoint_in_two_slices_serves_the_ports_of_both() {
    let mut web = service("web", &["10.96.0.1", "fd00:10:96::1"]);
    web.ports = vec![port("tcp", Protocol::Tcp, None), port("udp", Protocol::Udp, None)];
    // One pod; of its two addresses only one is on its way out.
    let of_pod =
        |address| Endpoint { pod: Some("pod".into()), ..endpoint(ip(address), Some(NODE)) };
    let (mut v4, v6) = (of_pod("10.244.1.11"), of_pod("fd00:10:244:1::11"));
    v4.conditions.terminating = true;
    let first = slice("web", &["tcp"], vec![v4]);
    let mut second = slice("web", &["tcp", "udp"], vec![v6]);
    let mut third = second.clone();
    // The second slice has nothing for the service's TCP port; the third has.
    second.ports[0].protocol = Some(Protocol::Udp);
    third.key.name = "web-v6-more".into();
    let world = world(vec![web], vec![first, second, third]);
    let answers = as_expected(&world, &packet("2001:db8::5", "[fd00:10:96::1]:80"));
    assert_eq!(verdicts(&answers), [Verdict::Dnat; 3]);
}

#[test]
fn an_endpoint_of_weight_zero_takes_no_new_traffic() {
    let mut resting = endpoint(ip("10.244.1.11"), Some(NODE));
    resting.weight = Some(0);
    let working = endpoint(ip("10.244.1.12"), Some(NODE));
    for balance in ["random", "round-robin", "source-hash"] {
        let mut web = service("web", &["10.96.0.1"]);
        web.meta.annotations.insert("telaio.dev/balance".into(), balance.into());
        let both = vec![resting.clone(), working.clone()];
        let world = world(vec![web.clone()], vec![slice("web", &[""], both)]);
        for backend in ALL {
            let answer = world.rules().trace(backend, &packet("203.0.113.5", "10.96.0.1:80"));
            let only = ["10.244.1.12:8080".parse().unwrap()].into();
            assert_eq!(answer.endpoints, only, "{backend:?} {balance}");
        }
    }
}

#[test]
fn a_service_whose_only_endpoint_has_weight_zero_answers_nobody() {
    let mut resting = endpoint(ip("10.244.1.11"), Some(NODE));
    resting.weight = Some(0);
    let web = service("web", &["10.96.0.1"]);
    let world = world(vec![web], vec![slice("web", &[""], vec![resting])]);
    for backend in ALL {
        let answer = world.rules().trace(backend, &packet("203.0.113.5", "10.96.0.1:80"));
        let refused = matches!(answer.verdict, Verdict::Reject | Verdict::Drop);
        assert!(refused && answer.endpoints.is_empty(), "{backend:?}: {answer:?}");
    }
}

#[test]
fn a_service_of_many_endpoints_comes_to_each_of_them() {
    let all: Vec<_> = (0..=255)
        .flat_map(|n| [format!("10.244.3.{n}"), format!("10.244.4.{n}")])
        .map(|address| endpoint(ip(&address), Some("node-c")))
        .collect();
    let world = world(vec![service("web", &["10.96.0.1"])], vec![slice("web", &[""], all.clone())]);
    let answers = as_expected(&world, &packet("203.0.113.5", "10.96.0.1:80"));
    assert!(answers.iter().all(|it| it.endpoints.len() == all.len()));
}
