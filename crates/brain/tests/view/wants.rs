//! What is shown only to who wants it.

use crate::*;

#[test]
fn what_serves_in_no_scope_is_shown_only_when_wanted() {
    let endpoints = || {
        [
            here(1),
            here(2).is(LEAVING),
            there(1).is(SERVING),
            there(2).is(UNREADY),
            there(3).is(GONE),
        ]
    };
    assert_eq!(one(web(), endpoints()).http(), ["10.0.1.1:80 ic"]);
    assert_eq!(
        one(web(), endpoints()).serving_endpoints().http(),
        ["10.0.1.1:80 ic", "10.0.1.2:80 ", "10.0.2.1:80 "]
    );
}

#[test]
fn ready_endpoints_that_policy_or_topology_leaves_out_are_shown_when_wanted() {
    let case = one(web().itp_local(), [here(1), there(1)]).serving_endpoints();
    assert_eq!(case.http(), ["10.0.1.1:80 il", "10.0.2.1:80 "]);
    let case = one(web(), [here(1).for_zones(&["z1"]), there(1).for_zones(&["z2"])]);
    assert_eq!(case.http(), ["10.0.1.1:80 ic"]);
    assert_eq!(case.serving_endpoints().http(), ["10.0.1.1:80 ic", "10.0.2.1:80 "]);
}

#[test]
fn what_is_wanted_besides_changes_no_decision() {
    let endpoints = [here(1).is(LEAVING), there(1), there(2).is(LEAVING)];
    let plain = one(web().etp_local().node_ports(), endpoints.clone());
    let more = one(web().etp_local().node_ports(), endpoints).serving_endpoints();
    assert_eq!(plain.has_endpoints("http"), more.has_endpoints("http"));
    let used = |case: &Case| -> Vec<String> {
        case.http().into_iter().filter(|line| !line.ends_with(' ')).collect()
    };
    assert_eq!(used(&plain), used(&more));
    assert_eq!(plain.http(), used(&plain));
}

#[test]
fn other_objects_come_only_when_wanted() {
    let store = Store::new();
    let namespace: Object = telaio_model::Namespace {
        meta: telaio_model::Meta::named(telaio_model::ObjectKey::cluster("default")),
    }
    .into();
    store.apply(set([namespace.clone(), node("n1", None).into()]));
    let mut plain = LocalWatch::new(&store, "n1", Wants::default());
    let mut follower = Follower::default();
    follower.pull(&mut plain);
    assert!(follower.objects.is_empty());
    let wants = Wants { kinds: [Kind::Namespace].into(), ..Wants::default() };
    let mut more = LocalWatch::new(&store, "n1", wants);
    let mut follower = Follower::default();
    follower.pull(&mut more);
    assert_eq!(follower.objects.values().collect::<Vec<_>>(), [&namespace]);
    store.apply(delete([namespace.object_ref()]));
    assert!(plain.next().now_or_never().is_none(), "nothing that it wanted has changed");
    assert!(follower.pull(&mut more));
    assert!(follower.objects.is_empty());
}
