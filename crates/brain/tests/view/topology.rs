//! Hints: traffic stays near, if everybody is hinted.

use crate::*;

#[test]
fn zone_hints_keep_traffic_in_the_zone() {
    let case = one(
        web(),
        [
            here(1).for_zones(&["z1"]),
            there(1).for_zones(&["z2", "z1"]),
            there(2).for_zones(&["z2"]),
        ],
    );
    assert_eq!(case.http(), ["10.0.1.1:80 ic", "10.0.2.1:80 ic"]);
}

#[test]
fn one_ready_endpoint_without_a_zone_hint_makes_all_be_used() {
    let case = one(web(), [here(1).for_zones(&["z1"]), there(1).for_zones(&["z2"]), there(2)]);
    assert_eq!(case.http().len(), 3);
}

#[test]
fn an_endpoint_that_is_not_ready_needs_no_hint() {
    let case = one(
        web(),
        [
            here(1).for_zones(&["z1"]),
            there(1).for_zones(&["z2"]),
            there(2).is(SERVING),
            there(3).is(LEAVING),
            there(4).is(UNREADY),
        ],
    );
    assert_eq!(case.http(), ["10.0.1.1:80 ic"]);
}

#[test]
fn hints_of_endpoints_that_are_not_ready_do_not_count() {
    let case = one(web(), [here(1).is(SERVING).for_zones(&["z1"]), there(1).for_zones(&["z2"])]);
    assert_eq!(case.http(), ["10.0.2.1:80 ic"]);
}

#[test]
fn zone_hints_that_name_other_zones_only_are_not_followed() {
    let case = one(web(), [here(1).for_zones(&["z2"]), there(1).for_zones(&["z3"])]);
    assert_eq!(case.http().len(), 2);
}

#[test]
fn a_node_without_a_zone_uses_all() {
    for node in [Some(node("n1", None)), None] {
        let case = one(web(), [here(1).for_zones(&["z1"]), there(1).for_zones(&["z2"])]);
        assert_eq!(case.on(node).http().len(), 2);
    }
}

#[test]
fn node_hints_keep_traffic_on_the_node() {
    let case = one(
        web(),
        [
            here(1).for_nodes(&["n1"]).for_zones(&["z1"]),
            there(1).for_nodes(&["n2"]).for_zones(&["z1"]),
        ],
    );
    assert_eq!(case.http(), ["10.0.1.1:80 ic"]);
}

#[test]
fn node_hints_hold_for_a_node_that_the_cluster_does_not_know() {
    let case = one(web(), [here(1).for_nodes(&["n2"]), there(1).for_nodes(&["n1"])]);
    assert_eq!(case.on(None).http(), ["10.0.2.1:80 ic"]);
}

#[test]
fn zone_hints_are_next_when_no_node_hint_names_this_node() {
    let case = one(
        web(),
        [
            there(1).for_nodes(&["n2"]).for_zones(&["z1"]),
            there(2).for_nodes(&["n3"]).for_zones(&["z2"]),
        ],
    );
    assert_eq!(case.http(), ["10.0.2.1:80 ic"]);
}

#[test]
fn zone_hints_are_next_when_one_lacks_a_node_hint() {
    let case = one(
        web(),
        [
            here(1).for_nodes(&["n1"]).for_zones(&["z1"]),
            there(1).for_zones(&["z1"]),
            there(2).for_zones(&["z2"]),
        ],
    );
    assert_eq!(case.http(), ["10.0.1.1:80 ic", "10.0.2.1:80 ic"]);
}

#[test]
fn all_are_used_when_neither_kind_of_hint_is_complete() {
    let case = one(web(), [here(1).for_nodes(&["n1"]), there(1).for_zones(&["z1"])]);
    assert_eq!(case.http().len(), 2);
}

#[test]
fn hints_do_not_bind_the_local_set() {
    let case = one(
        web().etp_local().node_ports(),
        [here(1).for_zones(&["z2"]), there(1).for_zones(&["z1"])],
    );
    assert_eq!(case.http(), ["10.0.1.1:80 el", "10.0.2.1:80 ic"]);
}

#[test]
fn hints_do_not_bind_the_fall_back() {
    let case = one(
        web(),
        [here(1).is(LEAVING).for_zones(&["z1"]), there(1).is(LEAVING).for_zones(&["z2"])],
    );
    assert_eq!(case.http(), ["10.0.1.1:80 ic", "10.0.2.1:80 ic"]);
}

#[test]
fn hints_are_weighed_for_each_port_and_family_by_itself() {
    let service = web()
        .cluster_ips(&["10.96.0.1", "fd00:96::1"])
        .ports(&[port("http", 80), port("admin", 81)]);
    let hinted = slice(
        "a",
        "web",
        &[slice_port("http", 80), slice_port("admin", 81)],
        vec![here(1).for_zones(&["z1"]), there(1).for_zones(&["z2"])],
    );
    let unhinted = slice("b", "web", &[slice_port("admin", 81)], vec![there(2)]);
    let v6 = web_slice(
        "c",
        vec![pod("x", "fd00::1", "n1").for_zones(&["z1"]), pod("y", "fd00::2", "n2")],
    );
    let case = case(service, [hinted, unhinted, v6]);
    assert_eq!(case.http(), ["10.0.1.1:80 ic", "10.0.2.1:80 ", "fd00::1:80 ic", "fd00::2:80 ic"]);
    assert_eq!(case.port("admin").len(), 3);
}

#[test]
fn a_change_of_hints_alone_reaches_the_view() {
    let store = Store::new();
    let hinted = |zone: &str| {
        web_slice("web-1", vec![here(1).for_zones(&["z1"]), there(1).for_zones(&[zone])])
    };
    store.apply(set([web().into(), node("n1", Some("z1")).into(), hinted("z2").into()]));
    let mut watch = LocalWatch::new(&store, "n1", Wants::default());
    let mut follower = Follower::default();
    follower.pull(&mut watch);
    assert_eq!(follower.endpoints.len(), 1);
    assert!(store.apply(set([hinted("z1").into()])).is_some());
    assert!(follower.pull(&mut watch));
    assert_eq!(follower.endpoints.len(), 2);
}
