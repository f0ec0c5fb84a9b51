use std::net::IpAddr;

use telaio_model::Protocol;
use telaio_reconcile::Operation;

use super::*;
use crate::fixture::Fixture;
use crate::ipvs::marks::MARKS_MAX;
use crate::ipvs::network::Step;
use crate::ipvs::types::{Scheduler, server_at};

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn at(text: &str) -> ServerKey {
    server_at(Protocol::Tcp, text.parse().unwrap())
}

fn context(machine: &[&str]) -> Context {
    let machine: BTreeSet<IpAddr> = machine.iter().map(|text| ip(text)).collect();
    let node_ports = machine.clone();
    Context { family: IpFamily::V4, scheduler: Scheduler::default(), machine, node_ports }
}

fn controller() -> IpvsController {
    IpvsController::new(context(&["192.168.50.11"]), 1 << 14)
}

fn set(controller: &mut IpvsController, fixture: &Fixture) {
    let entry = fixture.build();
    controller.set_service(&entry.service.key, Some(&entry));
}

fn remove(controller: &mut IpvsController, name: &str) {
    controller.set_service(&ObjectKey::new("test", name), None);
}

fn web() -> Fixture {
    Fixture::new("web").cluster_ip([10, 96, 0, 1]).remote([10, 244, 2, 1])
}

/// What a group does: to which server, and with which endpoints.
type Told = (ServerKey, Operation, Vec<(String, Operation)>);

/// What each group does.
fn operations(groups: &[PatchGroup]) -> Vec<Told> {
    let endpoint =
        |it: &crate::ipvs::patch::EndpointPatch| (it.0.resource().address.to_string(), it.op());
    let of_group = |group: &PatchGroup| {
        let endpoints = group.endpoints.0.iter().map(endpoint).collect();
        (group.service.service_info().server, group.service.op(), endpoints)
    };
    groups.iter().map(of_group).collect()
}

#[test]
fn a_new_service_is_created_with_its_endpoints() {
    let mut controller = controller();
    set(&mut controller, &web());
    let expected = (
        at("10.96.0.1:80"),
        Operation::Create,
        vec![("10.244.2.1:8080".to_owned(), Operation::Create)],
    );
    assert_eq!(operations(&controller.generate_patch_groups()), [expected]);
}

#[test]
fn what_was_told_once_is_not_told_again() {
    let mut controller = controller();
    set(&mut controller, &web());
    assert_eq!(controller.generate_patch_groups().len(), 1);
    assert_eq!(controller.generate_patch_groups(), []);
    set(&mut controller, &web());
    assert_eq!(controller.generate_patch_groups(), []);
}

#[test]
fn endpoints_alone_change_under_a_service_that_stays() {
    let mut controller = controller();
    set(&mut controller, &web().remote([10, 244, 2, 2]));
    controller.generate_patch_groups();
    set(&mut controller, &web().weight(9).remote([10, 244, 2, 3]).weight(9));
    let groups = operations(&controller.generate_patch_groups());
    let [(server, service, endpoints)] = &groups[..] else { panic!("{groups:?}") };
    assert_eq!((*server, *service), (at("10.96.0.1:80"), Operation::NoOp));
    let mut endpoints = endpoints.clone();
    endpoints.sort();
    let expected = [
        ("10.244.2.1:8080".to_owned(), Operation::Update),
        ("10.244.2.2:8080".to_owned(), Operation::Delete),
        ("10.244.2.3:8080".to_owned(), Operation::Create),
    ];
    assert_eq!(endpoints, expected);
}

#[test]
fn a_service_alone_is_updated() {
    let mut controller = controller();
    set(&mut controller, &web());
    controller.generate_patch_groups();
    set(&mut controller, &web().sticky(60));
    let groups = controller.generate_patch_groups();
    assert_eq!(operations(&groups), [(at("10.96.0.1:80"), Operation::Update, Vec::new())]);
    assert_eq!(groups[0].service.service_info().affinity_s, Some(60));
}

#[test]
fn a_service_that_is_gone_is_deleted_with_its_endpoints() {
    let mut controller = controller();
    set(&mut controller, &web());
    controller.generate_patch_groups();
    remove(&mut controller, "web");
    let expected = (
        at("10.96.0.1:80"),
        Operation::Delete,
        vec![("10.244.2.1:8080".to_owned(), Operation::Delete)],
    );
    assert_eq!(operations(&controller.generate_patch_groups()), [expected]);
    assert_eq!(controller.wanted().count(), 0);
}

#[test]
fn what_comes_and_goes_between_two_looks_is_nothing() {
    let mut controller = controller();
    set(&mut controller, &web());
    remove(&mut controller, "web");
    assert_eq!(controller.generate_patch_groups(), []);
}

#[test]
fn the_best_claim_has_a_contested_place_whoever_came_first() {
    // By their names the first two would have it.
    let external = Fixture::new("a").cluster_ip([10, 96, 0, 7]).remote([10, 244, 2, 1]);
    let external = external.with(|it| it.external_ips.push(ip("10.96.0.9")));
    let balancer = Fixture::new("b").cluster_ip([10, 96, 0, 8]).load_balancer_ip([10, 96, 0, 9]);
    let balancer = balancer.remote([10, 244, 2, 2]);
    let cluster = Fixture::new("c").cluster_ip([10, 96, 0, 9]).remote([10, 244, 2, 3]);
    let all = [("a", &external), ("b", &balancer), ("c", &cluster)];
    for order in [[0, 1, 2], [2, 1, 0], [1, 2, 0]] {
        let mut controller = controller();
        for i in order {
            set(&mut controller, all[i].1);
        }
        let owner = |controller: &IpvsController| {
            let found = controller.wanted().find(|(it, _)| it.server == at("10.96.0.9:80"));
            found.map(|(it, endpoints)| (it.name.service.name.to_string(), endpoints.len()))
        };
        for name in ["c", "a", "b"] {
            assert_eq!(owner(&controller), Some((name.to_owned(), 1)), "{order:?}");
            remove(&mut controller, name);
        }
        assert_eq!(owner(&controller), None, "{order:?}");
    }
}

#[test]
fn of_equal_claims_the_first_name_has_the_place_and_the_next_inherits_it() {
    let named = |name: &str, last: u8| {
        let own = Fixture::new(name).cluster_ip([10, 96, 0, last]).remote([10, 244, 2, last]);
        own.load_balancer_ip([192, 0, 2, 1])
    };
    let mut controller = controller();
    set(&mut controller, &named("b", 2));
    set(&mut controller, &named("a", 1));
    let groups = operations(&controller.generate_patch_groups());
    let contested =
        |groups: &[Told]| groups.iter().find(|(server, ..)| *server == at("192.0.2.1:80")).cloned();
    let (_, operation, endpoints) = contested(&groups).unwrap();
    assert_eq!(operation, Operation::Create);
    assert_eq!(endpoints, [("10.244.2.1:8080".to_owned(), Operation::Create)]);

    remove(&mut controller, "a");
    let groups = operations(&controller.generate_patch_groups());
    let (_, operation, mut endpoints) = contested(&groups).unwrap();
    assert_eq!(operation, Operation::Update);
    endpoints.sort();
    let expected = [
        ("10.244.2.1:8080".to_owned(), Operation::Delete),
        ("10.244.2.2:8080".to_owned(), Operation::Create),
    ];
    assert_eq!(endpoints, expected);
}

fn local(name: &str, last: u8, node_port: u16) -> Fixture {
    let own = Fixture::new(name).cluster_ip([10, 96, 0, last]).local([10, 244, 1, 1]);
    own.node_port(node_port).with(|it| it.external_traffic_to_local = true)
}

fn marks(controller: &IpvsController) -> Vec<(String, u32)> {
    let of = |info: &ServiceInfo| match info.server {
        ServerKey::Mark { mark, .. } => Some((info.name.service.name.to_string(), mark)),
        ServerKey::Address { .. } => None,
    };
    controller.wanted().filter_map(|(info, _)| of(info)).collect()
}

#[test]
fn marks_are_the_same_after_a_restart_whoever_comes_first() {
    let (a, b) = (local("a", 1, 30001), local("b", 2, 30002));
    let mut before = controller();
    set(&mut before, &a);
    set(&mut before, &b);
    let had = marks(&before);
    assert_eq!(had.len(), 2);

    let mut after = controller();
    for (name, place) in [("a", "192.168.50.11:30001"), ("b", "192.168.50.11:30002")] {
        let mark = had.iter().find(|(of, _)| of == name).unwrap().1;
        after.remember_mark(at(place), mark);
    }
    // One that is new must not get what another had.
    set(&mut after, &local("c", 3, 30003));
    set(&mut after, &b);
    set(&mut after, &a);
    let has = marks(&after);
    assert!(had.iter().all(|it| has.contains(it)), "{had:?} {has:?}");
    assert_eq!(has.len(), 3);
}

#[test]
fn a_service_that_is_gone_gives_its_mark_back() {
    let mut controller = controller();
    // More often than there are marks.
    for round in 0..=MARKS_MAX {
        set(&mut controller, &local("a", 1, 30001));
        assert_eq!(marks(&controller).len(), 1, "round {round}");
        remove(&mut controller, "a");
    }
    assert_eq!(marks(&controller), []);
}

#[test]
fn a_port_whose_mark_is_anothers_gets_one_anew_and_keeps_it() {
    let mut controller = controller();
    set(&mut controller, &local("a", 1, 30001));
    controller.generate_patch_groups();
    let [(_, first)] = marks(&controller)[..] else { panic!("one mark") };
    controller.avoid_mark(first);
    set(&mut controller, &local("a", 1, 30001));
    let [(_, second)] = marks(&controller)[..] else { panic!("one mark") };
    assert_ne!(first, second);
    let mark = |mark| ServerKey::Mark { is_v6: false, mark };
    let groups = operations(&controller.generate_patch_groups());
    let of = |server| groups.iter().find(|it| it.0 == server).map(|it| it.1);
    assert_eq!(of(mark(first)), Some(Operation::Delete));
    assert_eq!(of(mark(second)), Some(Operation::Create));
    set(&mut controller, &local("a", 1, 30001));
    assert_eq!(controller.generate_patch_groups(), []);
    set(&mut controller, &local("b", 2, 30002));
    let all: BTreeSet<u32> = marks(&controller).into_iter().map(|(_, mark)| mark).collect();
    assert_eq!(all.len(), 2, "{all:?}");
}

#[test]
fn another_context_is_told_and_counts_from_the_next_time_a_service_is_set() {
    let mut controller = controller();
    set(&mut controller, &web().node_port(30080));
    controller.generate_patch_groups();
    assert!(!controller.set_context(context(&["192.168.50.11"])));
    assert!(controller.set_context(context(&["192.168.50.12"])));
    set(&mut controller, &web().node_port(30080));
    let groups = operations(&controller.generate_patch_groups());
    let changed: Vec<_> = groups.iter().map(|(server, op, _)| (*server, *op)).collect();
    let expected = [
        (at("192.168.50.11:30080"), Operation::Delete),
        (at("192.168.50.12:30080"), Operation::Create),
    ];
    assert_eq!(changed, expected);
}

#[test]
fn who_comes_is_set_before_who_goes_is_removed() {
    let mut controller = controller();
    set(&mut controller, &web().remote([10, 244, 2, 2]));
    controller.generate_patch_groups();
    let other = Fixture::new("web").cluster_ip([10, 96, 0, 1]).remote([10, 244, 2, 9]);
    set(&mut controller, &other);
    let steps = steps_of(&controller.generate_patch_groups(), 1);
    let came = steps.iter().position(|step| matches!(step, Step::SetEndpoint(_)));
    let went = steps.iter().position(|step| matches!(step, Step::RemoveEndpoint(_)));
    assert!(came.unwrap() < went.unwrap(), "{steps:?}");
}

#[test]
fn a_server_is_set_before_its_endpoints_and_removed_after_them() {
    let place = |steps: &[Step], wanted: fn(&Step) -> bool| steps.iter().position(wanted).unwrap();
    let mut controller = controller();
    set(&mut controller, &web());
    let made = steps_of(&controller.generate_patch_groups(), 1);
    let server = place(&made, |step| matches!(step, Step::SetServer(_)));
    let endpoint = place(&made, |step| matches!(step, Step::SetEndpoint(_)));
    assert!(server < endpoint, "{made:?}");
    remove(&mut controller, "web");
    let removed = steps_of(&controller.generate_patch_groups(), 1);
    let server = place(&removed, |step| matches!(step, Step::RemoveServer(_)));
    let endpoint = place(&removed, |step| matches!(step, Step::RemoveEndpoint(_)));
    assert!(endpoint < server, "{removed:?}");
}

#[test]
fn many_threads_come_to_the_same_steps_in_the_same_order() {
    let mut controller = controller();
    for number in 0..3000_u16 {
        let [high, low] = number.to_be_bytes();
        let service = Fixture::new(&format!("s{number}")).cluster_ip([10, 97, high, low]);
        set(&mut controller, &service.remote([10, 244, high, low]));
    }
    let groups = controller.generate_patch_groups();
    assert_eq!(groups.len(), 3000);
    assert!(steps_of(&groups, 4) == steps_of(&groups, 1));
}
