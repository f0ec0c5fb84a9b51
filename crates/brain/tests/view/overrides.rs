//! What a person decided.

use crate::*;
use OverrideAction::{Add, Drain, Remove, Weight};
use telaio_model::AddedEndpoint;

fn weights(case: &Case) -> BTreeMap<String, u16> {
    let view = case.view();
    view.endpoints.iter().map(|(id, it)| (id.to_string(), it.weight)).collect()
}

fn by_address() -> OverrideTarget {
    OverrideTarget::Address(ip("10.0.1.1"))
}

#[test]
fn a_drained_endpoint_gets_nothing_new() {
    for target in
        [by_address(), OverrideTarget::Pod("here-1".into()), OverrideTarget::Node("n1".into())]
    {
        let case = one(web().etp_local().node_ports(), [here(1), there(1)]);
        assert_eq!(case.overridden(target, Drain).http(), ["10.0.2.1:80 ic"]);
    }
}

#[test]
fn a_drained_endpoint_is_shown_to_who_wants_what_serves() {
    let case = one(web(), [here(1), there(1)]).overridden(by_address(), Drain);
    assert_eq!(case.serving_endpoints().http(), ["10.0.1.1:80 ", "10.0.2.1:80 ic"]);
}

#[test]
fn nothing_falls_back_to_a_drained_endpoint() {
    let case = one(web(), [here(1).is(LEAVING)]).overridden(by_address(), Drain);
    assert_eq!(case.http(), [""; 0]);
    let case = one(web(), [here(1)]).overridden(by_address(), Drain);
    assert_eq!(case.http(), [""; 0]);
}

#[test]
fn the_rest_serves_as_if_the_drained_endpoint_were_not_there() {
    // Its hint no longer holds traffic in a zone where nobody is left.
    let case = one(web(), [here(1).for_zones(&["z1"]), there(1).for_zones(&["z2"])])
        .overridden(by_address(), Drain);
    assert_eq!(case.http(), ["10.0.2.1:80 ic"]);
    // Nor does its lack of one open the zone.
    let case = one(web(), [here(1), here(2).for_zones(&["z1"]), there(1).for_zones(&["z2"])])
        .overridden(by_address(), Drain);
    assert_eq!(case.http(), ["10.0.1.2:80 ic"]);
    // What leaves serves when all that is ready is drained.
    let case = one(web(), [here(1), there(1).is(LEAVING)]).overridden(by_address(), Drain);
    assert_eq!(case.http(), ["10.0.2.1:80 ic"]);
}

#[test]
fn a_weight_is_carried() {
    for target in
        [by_address(), OverrideTarget::Pod("here-1".into()), OverrideTarget::Node("n1".into())]
    {
        let case = one(web(), [here(1), there(1)]).overridden(target, Weight(5));
        assert_eq!(weights(&case), [("here-1".into(), 5), ("there-1".into(), 1)].into());
    }
}

#[test]
fn a_weight_of_zero_takes_nothing_new() {
    let case = one(web(), [here(1), there(1)]).overridden(by_address(), Weight(0));
    assert_eq!(case.http(), ["10.0.2.1:80 ic"]);
    let case = one(web(), [here(1).weighs(0), there(1)]);
    assert_eq!(case.http(), ["10.0.2.1:80 ic"]);
}

#[test]
fn a_person_overrules_the_weight_of_the_cluster() {
    let case =
        one(web(), [here(1).weighs(0), there(1).weighs(7)]).overridden(by_address(), Weight(3));
    assert_eq!(weights(&case), [("here-1".into(), 3), ("there-1".into(), 7)].into());
}

#[test]
fn a_drain_holds_beside_a_weight() {
    for actions in [[Drain, Weight(5)], [Weight(5), Drain]] {
        let mut case = one(web(), [here(1), there(1)]);
        for action in actions {
            case = case.overridden(by_address(), action);
        }
        assert_eq!(case.http(), ["10.0.2.1:80 ic"]);
    }
}

#[test]
fn an_override_of_nobody_changes_nothing() {
    for target in [
        OverrideTarget::Address(ip("10.9.9.9")),
        OverrideTarget::Pod("nobody".into()),
        OverrideTarget::Node("n9".into()),
    ] {
        let case = one(web(), [here(1), there(1)]).overridden(target, Drain);
        assert_eq!(case.http().len(), 2);
    }
}

#[test]
fn draining_one_address_of_a_pod_leaves_the_other() {
    let service = web().cluster_ips(&["10.96.0.1", "fd00:96::1"]);
    let v4 = web_slice("a", vec![pod("p", "10.0.1.1", "n1")]);
    let v6 = web_slice("b", vec![pod("p", "fd00::1", "n1")]);
    let case = case(service, [v4, v6]).overridden(by_address(), Drain);
    assert_eq!(case.http(), ["fd00::1:80 ic"]);
}

#[test]
fn weighting_one_address_of_a_pod_leaves_the_other() {
    let service = web().cluster_ips(&["10.96.0.1", "fd00:96::1"]);
    let v4 = web_slice("a", vec![pod("p", "10.0.1.1", "n1")]);
    let v6 = web_slice("b", vec![pod("p", "fd00::1", "n1")]);
    let view = case(service, [v4, v6]).overridden(by_address(), Weight(9)).view();
    for endpoint in view.endpoints.values() {
        for address in &endpoint.ips {
            assert_eq!(endpoint.weight, if address.is_ipv4() { 9 } else { 1 }, "{address}");
        }
    }
}

/// What a store's watcher at `n1` has of `web`, as addresses.
fn addresses(follower: &Follower) -> Vec<String> {
    follower.endpoints.values().flat_map(|it| &it.ips).map(ToString::to_string).collect()
}

#[test]
fn an_override_ends_at_its_time() {
    let store = Store::new();
    let mut drain = web_override("o", by_address(), Drain);
    drain.until_s = Some(100);
    store.set_time(50);
    let slice = web_slice("web-1", vec![here(1), there(1)]);
    store.apply(set([web().into(), slice.into(), drain.clone().into()]));
    let mut watch = LocalWatch::new(&store, "n1", Wants::default());
    let mut follower = Follower::default();
    follower.pull(&mut watch);
    assert_eq!(addresses(&follower), ["10.0.2.1"]);
    assert_eq!(store.set_time(99), None);
    assert!(!follower.pull(&mut watch));
    assert!(store.set_time(100).is_some());
    assert!(follower.pull(&mut watch));
    assert_eq!(addresses(&follower), ["10.0.1.1", "10.0.2.1"]);
    // Prolonged, it counts again.
    drain.until_s = Some(200);
    store.apply(set([drain.clone().into()]));
    assert!(follower.pull(&mut watch));
    assert_eq!(addresses(&follower), ["10.0.2.1"]);
    // Shortened into the past, it no longer does.
    drain.until_s = Some(60);
    store.apply(set([drain.into()]));
    assert!(follower.pull(&mut watch));
    assert_eq!(addresses(&follower), ["10.0.1.1", "10.0.2.1"]);
}

#[test]
fn an_override_can_come_before_its_service_and_go_again() {
    let store = Store::new();
    store.apply(set([web_override("o", by_address(), Drain).into()]));
    let slice = web_slice("web-1", vec![here(1), there(1)]);
    store.apply(set([web().into(), slice.into()]));
    let mut watch = LocalWatch::new(&store, "n1", Wants::default());
    let mut follower = Follower::default();
    follower.pull(&mut watch);
    assert_eq!(addresses(&follower), ["10.0.2.1"]);
    store.apply(delete([ObjectRef::new(Kind::Override, key("o"))]));
    assert!(follower.pull(&mut watch));
    assert_eq!(addresses(&follower), ["10.0.1.1", "10.0.2.1"]);
}

#[test]
fn an_override_can_move_to_another_service() {
    let store = Store::new();
    let mut drain = web_override("o", by_address(), Drain);
    let other = slice("other-1", "other", &[slice_port("http", 80)], vec![here(1)]);
    let ours = web_slice("web-1", vec![here(1)]);
    store.apply(set([
        web().into(),
        service("other", "10.96.0.2").into(),
        ours.into(),
        other.into(),
        drain.clone().into(),
    ]));
    let mut watch = LocalWatch::new(&store, "n1", Wants::default());
    let mut follower = Follower::default();
    follower.pull(&mut watch);
    let services = |follower: &Follower| -> Vec<String> {
        follower.endpoints.keys().map(|it| it.service.name.to_string()).collect()
    };
    assert_eq!(services(&follower), ["other"]);
    drain.object = key("other");
    store.apply(set([drain.into()]));
    assert!(follower.pull(&mut watch));
    assert_eq!(services(&follower), ["web"]);
}

#[test]
fn a_removed_endpoint_is_as_if_nobody_named_it() {
    let case = one(web(), [here(1), there(1)]).overridden(by_address(), Remove);
    assert_eq!(case.serving_endpoints().http(), ["10.0.2.1:80 ic"]);
}

#[test]
fn an_added_endpoint_serves_with_its_own_port_and_weight() {
    let added = AddedEndpoint { port: Some(8081), node: None, weight: Some(3) };
    let target = OverrideTarget::Address(ip("10.9.9.9"));
    let case = one(web(), [here(1)]).overridden(target, Add(added));
    assert_eq!(case.http(), ["10.0.1.1:80 ic", "10.9.9.9:8081 ic"]);
    assert!(weights(&case).values().any(|weight| *weight == 3));
}

#[test]
fn what_the_cluster_says_of_an_added_address_counts() {
    let added = AddedEndpoint { port: Some(80), node: None, weight: Some(9) };
    let case = one(web(), [here(1)]).overridden(by_address(), Add(added));
    assert_eq!(weights(&case), [("here-1".into(), 1)].into());
}
