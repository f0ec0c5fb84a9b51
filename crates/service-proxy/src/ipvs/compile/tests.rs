use telaio_model::LocalService;

use super::*;
use crate::config::NodePortAddresses;
use crate::fixture::Fixture;

const MASQUERADE: u32 = 1 << 14;
const NODE: &str = "192.168.50.11";

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn at(text: &str) -> ServerKey {
    server_at(Protocol::Tcp, text.parse().unwrap())
}

fn context() -> Context {
    let machine = BTreeSet::from([ip(NODE), ip("10.0.0.1")]);
    let node_ports = machine.clone();
    Context { family: IpFamily::V4, scheduler: Scheduler::RoundRobin, machine, node_ports }
}

fn claims(fixture: &Fixture) -> Vec<Claim> {
    compile(&fixture.build(), &context(), &mut Marks::new(MASQUERADE))
}

/// The claim on a place.
fn claim(fixture: &Fixture, place: &str) -> Claim {
    let found = claims(fixture).into_iter().find(|it| it.service.server == at(place));
    found.unwrap_or_else(|| panic!("nobody claims {place}"))
}

/// The claim on a server that is known by its mark.
fn twin(claims: &[Claim]) -> Option<&Claim> {
    claims.iter().find(|it| matches!(it.service.server, ServerKey::Mark { .. }))
}

fn addresses(claim: &Claim) -> Vec<String> {
    claim.endpoints.iter().map(|it| it.address.to_string()).collect()
}

/// A service with all kinds of places, and an endpoint here and one elsewhere.
fn everywhere() -> Fixture {
    Fixture::new("web")
        .cluster_ip([10, 96, 0, 1])
        .load_balancer_ip([192, 0, 2, 1])
        .node_port(30080)
        .with(|it| it.external_ips.push(ip("198.51.100.1")))
        .local([10, 244, 1, 1])
        .remote([10, 244, 2, 1])
}

fn external_local(service: &mut LocalService) {
    service.external_traffic_to_local = true;
}

fn annotated(name: &'static str, value: &'static str) -> impl FnOnce(&mut LocalService) {
    move |it| _ = it.annotations.insert(name.into(), value.into())
}

#[test]
fn each_place_has_a_claim_of_its_type_and_rank() {
    let found: Vec<_> = claims(&everywhere())
        .iter()
        .map(|it| (it.service.server, it.service.service_type, it.rank, it.service.bind))
        .collect();
    let expected = [
        (at("10.96.0.1:80"), ServiceType::ClusterIp, 0, true),
        (at("198.51.100.1:80"), ServiceType::LoadBalancer, 1, true),
        (at("192.0.2.1:80"), ServiceType::LoadBalancer, 2, true),
        (at("10.0.0.1:30080"), ServiceType::NodePort, 3, false),
        (at("192.168.50.11:30080"), ServiceType::NodePort, 3, false),
    ];
    assert_eq!(found, expected);
}

#[test]
fn every_claim_has_all_endpoints_where_no_policy_says_otherwise() {
    for claim in claims(&everywhere()) {
        assert_eq!(claim.service.treatment, Treatment::Serve);
        assert_eq!(claim.service.outside, None);
        assert_eq!(addresses(&claim), ["10.244.1.1:8080", "10.244.2.1:8080"]);
        assert!(claim.endpoints.iter().all(|it| it.server == claim.service.server));
    }
}

#[test]
fn an_address_that_the_machine_has_is_not_put_on_our_device() {
    let web = everywhere().with(|it| it.external_ips.push(ip(NODE)));
    assert!(!claim(&web, "192.168.50.11:80").service.bind);
    assert_eq!(claim(&web, "192.168.50.11:80").service.service_type, ServiceType::LoadBalancer);
}

#[test]
fn only_usable_addresses_of_the_family_and_of_the_operators_choice_serve_node_ports() {
    let machine = [NODE, "10.0.0.1", "127.0.0.1", "169.254.7.7", "fd00::1", "fe80::1", "::1"];
    let machine: BTreeSet<IpAddr> = machine.into_iter().map(ip).collect();
    let serving = |node_port_addresses, family| {
        let config = ProxyConfig { node_port_addresses, ..ProxyConfig::default() };
        let node = NodeFacts { addresses: vec![ip(NODE)], ..NodeFacts::default() };
        let context = Context::new(&config, &node, family, Scheduler::default(), &machine);
        context.node_ports.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert_eq!(serving(NodePortAddresses::All, IpFamily::V4), ["10.0.0.1", NODE]);
    assert_eq!(serving(NodePortAddresses::All, IpFamily::V6), ["fd00::1"]);
    assert_eq!(serving(NodePortAddresses::Primary, IpFamily::V4), [NODE]);
    let nets = vec!["10.0.0.0/8".parse().unwrap(), "127.0.0.0/8".parse().unwrap()];
    assert_eq!(serving(NodePortAddresses::Within(nets), IpFamily::V4), ["10.0.0.1"]);
}

#[test]
fn with_the_external_policy_local_outside_has_a_server_of_its_own() {
    let web = everywhere().with(external_local);
    let all = claims(&web);
    let twin = twin(&all).unwrap();
    let ServerKey::Mark { is_v6: false, mark } = twin.service.server else { panic!("{twin:?}") };
    assert_eq!(addresses(twin), ["10.244.1.1:8080"]);
    assert_eq!((twin.service.service_type, twin.service.bind), (ServiceType::Local, false));
    for place in ["198.51.100.1:80", "192.0.2.1:80", "10.0.0.1:30080", "192.168.50.11:30080"] {
        let claim = claim(&web, place);
        assert_eq!(claim.service.outside, Some(Outside::Marked(mark)), "{place}");
        assert_eq!(addresses(&claim).len(), 2, "{place}: pods and the node have all");
    }
    assert_eq!(claim(&web, "10.96.0.1:80").service.outside, None);
    assert_eq!(all.len(), 6);
}

#[test]
fn with_no_endpoint_here_outside_is_dropped() {
    let web = Fixture::new("web")
        .cluster_ip([10, 96, 0, 1])
        .node_port(30080)
        .with(external_local)
        .remote([10, 244, 2, 1]);
    let node_port = claim(&web, "10.0.0.1:30080");
    assert_eq!(node_port.service.outside, Some(Outside::Drop));
    assert_eq!(node_port.service.treatment, Treatment::Serve);
    assert_eq!(twin(&claims(&web)), None);
    assert_eq!(claim(&web, "10.96.0.1:80").service.outside, None);
}

#[test]
fn with_no_endpoint_anywhere_everybody_is_refused() {
    let web = Fixture::new("web").cluster_ip([10, 96, 0, 1]).node_port(30080).with(external_local);
    for place in ["10.96.0.1:80", "10.0.0.1:30080"] {
        let claim = claim(&web, place);
        assert_eq!(claim.service.treatment, Treatment::Reject, "{place}");
        assert_eq!(claim.service.outside, None, "{place}");
        assert!(claim.endpoints.is_empty(), "{place}");
    }
    assert_eq!(twin(&claims(&web)), None);
}

#[test]
fn the_internal_policy_is_the_cluster_addresss_alone() {
    let web = everywhere().with(|it| it.internal_traffic_to_local = true);
    assert_eq!(addresses(&claim(&web, "10.96.0.1:80")), ["10.244.1.1:8080"]);
    assert_eq!(addresses(&claim(&web, "192.0.2.1:80")).len(), 2);

    let elsewhere = Fixture::new("web")
        .cluster_ip([10, 96, 0, 1])
        .with(|it| it.internal_traffic_to_local = true)
        .remote([10, 244, 2, 1]);
    let claim = claim(&elsewhere, "10.96.0.1:80");
    assert_eq!(claim.service.treatment, Treatment::Drop);
    assert!(claim.endpoints.is_empty());
}

#[test]
fn source_ranges_are_for_load_balancers_addresses() {
    let range: IpNet = "203.0.113.0/24".parse().unwrap();
    let web = everywhere().with(|it| it.source_ranges.push(range));
    assert_eq!(claim(&web, "192.0.2.1:80").service.allowed.as_deref(), Some(&[range][..]));
    for place in ["10.96.0.1:80", "198.51.100.1:80", "10.0.0.1:30080"] {
        assert_eq!(claim(&web, place).service.allowed, None, "{place}");
    }
}

#[test]
fn who_may_come_from_the_node_may_come_with_the_address_that_it_has_then() {
    let range: IpNet = "192.168.50.0/24".parse().unwrap();
    let limited = everywhere().with(|it| it.source_ranges.push(range));
    let address: IpNet = "192.0.2.1/32".parse().unwrap();
    let allowed = claim(&limited, "192.0.2.1:80").service.allowed;
    assert_eq!(allowed.as_deref(), Some(&[range, address][..]));
    // What the machine has anyhow is no such address.
    let own = limited.load_balancer_ip([10, 0, 0, 1]);
    assert_eq!(claim(&own, "10.0.0.1:80").service.allowed.as_deref(), Some(&[range][..]));
}

#[test]
fn a_mark_is_kept_while_it_is_needed_and_given_back_after() {
    let mut marks = Marks::new(MASQUERADE);
    let mark_of = |fixture: &Fixture, marks: &mut Marks| {
        twin(&compile(&fixture.build(), &context(), marks)).map(|it| it.service.server)
    };
    let local = everywhere().with(external_local);
    let first = mark_of(&local, &mut marks);
    assert!(first.is_some());
    assert_eq!(mark_of(&local, &mut marks), first);
    let other = Fixture::new("other").cluster_ip([10, 96, 0, 2]).node_port(30081);
    let other = other.with(external_local).local([10, 244, 1, 1]);
    let second = mark_of(&other, &mut marks);
    assert!(second.is_some() && second != first);
    // With another policy it has none, and its next one is a new one.
    assert_eq!(mark_of(&everywhere(), &mut marks), None);
    let again = mark_of(&local, &mut marks);
    assert!(again.is_some() && again != first && again != second);
}

#[test]
fn the_scheduler_is_the_services_else_the_nodes_with_weights_where_there_are_some() {
    let scheduler = |fixture: &Fixture| claim(fixture, "10.96.0.1:80").service.scheduler;
    let web = everywhere();
    assert_eq!(scheduler(&web), Scheduler::RoundRobin);
    assert_eq!(scheduler(&web.clone().weight(3)), Scheduler::WeightedRoundRobin);
    assert_eq!(scheduler(&web.clone().balance("source-hash")), Scheduler::Maglev);
    assert_eq!(scheduler(&web.clone().balance("round-robin")), Scheduler::WeightedRoundRobin);
    let asked = web.balance("source-hash").with(annotated(ANNOTATION_SCHEDULER, "sed"));
    assert_eq!(scheduler(&asked), Scheduler::ShortestExpectedDelay);
    let unknown = everywhere().with(annotated(ANNOTATION_SCHEDULER, "best"));
    assert_eq!(scheduler(&unknown), Scheduler::RoundRobin);
}

#[test]
fn affinity_and_weights_are_passed_on() {
    let web = everywhere().sticky(77).weight(5);
    let claim = claim(&web, "10.96.0.1:80");
    assert_eq!(claim.service.affinity_s, Some(77));
    let weights: Vec<u16> = claim.endpoints.iter().map(|it| it.weight).collect();
    assert_eq!(weights, [1, 5]);
}

#[test]
fn where_a_mark_leads_clients_stay_by_their_hash() {
    let all = claims(&everywhere().with(external_local).sticky(77));
    let service = &twin(&all).unwrap().service;
    assert_eq!((service.scheduler, service.affinity_s), (Scheduler::Maglev, None));
}

#[test]
fn packets_go_unchanged_only_to_where_the_port_is_the_same() {
    let direct = everywhere().with(annotated(ANNOTATION_FORWARDING, "direct"));
    let forwarding = |fixture: &Fixture, place: &str| claim(fixture, place).endpoints[0].forwarding;
    assert_eq!(forwarding(&direct, "10.96.0.1:80"), Forwarding::Nat);
    let same = direct.with(|it| it.ports[0].target_port = Some(80));
    assert_eq!(forwarding(&same, "10.96.0.1:80"), Forwarding::Direct);
    assert_eq!(forwarding(&same, "10.0.0.1:30080"), Forwarding::Nat);
}

#[test]
fn bad_annotations_are_told() {
    let problems = |name, value, port: u16| {
        let web = everywhere().with(annotated(name, value));
        let web = web.with(|it| it.ports[0].target_port = Some(port));
        annotation_problems(&web.build())
    };
    for (name, value, port, part) in [
        (ANNOTATION_SCHEDULER, "best", 80, "\"best\" is none of rr, wrr"),
        (ANNOTATION_FORWARDING, "bypass", 80, "\"bypass\" is not nat, direct or tunnel"),
        (ANNOTATION_FORWARDING, "tunnel", 8080, "tunnel cannot change ports"),
    ] {
        let told = problems(name, value, port);
        assert_eq!(told.len(), 1, "{told:?}");
        assert!(told[0].contains(part) && told[0].contains("test/web"), "{told:?}");
    }
    for (name, value, port) in [
        (ANNOTATION_SCHEDULER, "mh", 8080),
        (ANNOTATION_FORWARDING, "nat", 8080),
        (ANNOTATION_FORWARDING, "direct", 80),
    ] {
        assert_eq!(problems(name, value, port), Vec::<String>::new());
    }
}
