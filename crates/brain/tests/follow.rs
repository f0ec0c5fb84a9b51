//! Following a store: what is told, to whom, and what is kept for whom.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail by panicking"
)]

mod support;

use std::collections::BTreeSet;

use futures::FutureExt as _;
use support::follower::Follower;
use support::watchers::{RawFollower, Watcher, fresh};
use support::*;
use telaio_api::global::GlobalOp;
use telaio_brain::store::LOG_CHANGES_MAX;
use telaio_brain::{GlobalWatch, LocalDiff, LocalWatch, Store, Wants};
use telaio_model::{Batch, Kind, Object, ObjectChange, ObjectKey, ObjectRef, Op};

#[test]
fn nobody_is_answered_before_the_state_is_complete() {
    let store = Store::new();
    let mut watch = LocalWatch::new(&store, "n1", Wants::default());
    let mut raw = GlobalWatch::new(&store, BTreeSet::new());
    assert!(store.snapshot().is_none());
    store.apply(Batch { changes: vec![ObjectChange::Set(web().into())], synced: false });
    assert!(watch.next().now_or_never().is_none());
    assert!(raw.next().now_or_never().is_none());
    assert!(store.snapshot().is_none());
    store.apply(Batch { changes: vec![ObjectChange::Set(web_at("10.0.0.1"))], synced: true });
    let mut has = Follower::default();
    assert!(has.pull(&mut watch));
    assert_eq!((has.services.len(), has.endpoints.len()), (1, 1));
    assert!(RawFollower::default().pull(&mut raw));
}

#[test]
fn an_empty_cluster_is_complete_too() {
    let store = Store::new();
    store.apply(batch(vec![]));
    let mut watch = LocalWatch::new(&store, "n1", Wants::services());
    let ops: Vec<Op> = watch.next().now_or_never().unwrap().unwrap().collect();
    assert_eq!(ops, [Op::Reset, Op::Sync]);
    assert!(watch.next().now_or_never().is_none());
    let mut raw = GlobalWatch::new(&store, BTreeSet::new());
    let ops: Vec<GlobalOp> = raw.next().now_or_never().unwrap().unwrap().collect();
    assert_eq!(ops, [GlobalOp::Reset, GlobalOp::Sync]);
}

#[test]
fn what_changes_nothing_makes_no_revision() {
    let store = Store::new();
    store.apply(set([web().into(), web_at("10.0.0.1"), node("n1", Some("z1")).into()]));
    let revision = store.revision();
    assert_eq!(store.apply(set([web().into()])), None);
    assert_eq!(store.apply(set([web_at("10.0.0.1"), node("n1", Some("z1")).into()])), None);
    assert_eq!(store.apply(delete([ObjectRef::new(Kind::Service, key("nobody"))])), None);
    assert_eq!(store.revision(), revision);
}

#[test]
fn a_change_that_is_taken_back_before_it_is_asked_for_is_never_told() {
    let store = Store::new();
    store.apply(set([web().into(), web_at("10.0.0.1")]));
    let mut watcher = Watcher::new(&store, "n1", Wants::default());
    watcher.has.pull(&mut watcher.watch);
    store.apply(set([web_at("10.0.0.2")]));
    store.apply(set([web_at("10.0.0.1")]));
    assert!(!watcher.has.pull(&mut watcher.watch));
    store.apply(set([web_at("10.0.0.3")]));
    assert!(watcher.has.pull(&mut watcher.watch));
}

#[test]
fn a_slice_that_changes_hands_leaves_one_service_and_joins_the_other() {
    let store = Store::new();
    let ports = [slice_port("http", 80)];
    let endpoints = || vec![pod("p", "10.0.0.1", "n1")];
    store.apply(set([
        service("a", "10.96.0.1").into(),
        service("b", "10.96.0.2").into(),
        slice("s", "a", &ports, endpoints()).into(),
    ]));
    let mut watcher = Watcher::new(&store, "n1", Wants::default());
    watcher.has.pull(&mut watcher.watch);
    store.apply(set([slice("s", "b", &ports, endpoints()).into()]));
    assert!(watcher.has.pull(&mut watcher.watch));
    let owners: Vec<_> = watcher.has.endpoints.keys().map(|it| it.service.clone()).collect();
    assert_eq!(owners, [key("b")]);
    store.apply(delete([ObjectRef::new(Kind::EndpointSlice, key("s"))]));
    assert!(watcher.has.pull(&mut watcher.watch));
    assert!(watcher.has.endpoints.is_empty());
}

#[test]
fn a_node_that_moves_to_another_zone_gets_another_view() {
    let store = Store::new();
    let endpoints = vec![
        pod("p", "10.0.0.1", "n2").for_zones(&["z1"]),
        pod("q", "10.0.0.2", "n3").for_zones(&["z2"]),
    ];
    store.apply(set([
        web().into(),
        web_slice("web-1", endpoints).into(),
        node("n1", Some("z1")).into(),
        node("n2", Some("z1")).into(),
    ]));
    let pods = |watcher: &Watcher| -> Vec<String> {
        watcher.has.endpoints.keys().map(|it| it.id.to_string()).collect()
    };
    let mut watcher = Watcher::new(&store, "n1", Wants::default());
    watcher.has.pull(&mut watcher.watch);
    assert_eq!(pods(&watcher), ["p"]);
    store.apply(set([node("n1", Some("z2")).into()]));
    assert!(watcher.has.pull(&mut watcher.watch));
    assert_eq!(pods(&watcher), ["q"]);
    store.apply(delete([ObjectRef::new(Kind::Node, ObjectKey::cluster("n1"))]));
    assert!(watcher.has.pull(&mut watcher.watch));
    assert_eq!(pods(&watcher), ["p", "q"]);
    store.apply(set([node("n2", Some("z2")).into()]));
    assert!(!watcher.has.pull(&mut watcher.watch), "another node's zone is not its own");
}

#[test]
fn nodes_of_different_zones_hear_of_one_change_each_in_its_own_way() {
    let store = Store::new();
    let hinted = |first: &str| -> Object {
        let endpoints = vec![
            pod("p", first, "n1").for_zones(&["z1"]),
            pod("q", "10.0.0.9", "n1").for_zones(&["z2"]),
        ];
        web_slice("web-1", endpoints).into()
    };
    store.apply(set([web().into(), node("n7", Some("z1")).into(), node("n8", Some("z2")).into()]));
    let wants = [Wants::default(), Wants::services()];
    let mut watchers: Vec<Watcher> = ["n7", "n8", "n9"]
        .into_iter()
        .flat_map(|node| wants.clone().map(|wants| Watcher::new(&store, node, wants)))
        .collect();
    for address in ["10.0.0.1", "10.0.0.2", "10.0.0.1"] {
        store.apply(set([hinted(address)]));
        for watcher in &mut watchers {
            watcher.has.pull(&mut watcher.watch);
            let expected = fresh(&store, watcher.node, watcher.wants.clone());
            assert_eq!(watcher.has, expected, "{}", watcher.node);
        }
    }
}

#[test]
fn nodes_of_different_zones_that_join_at_once_get_each_its_own_view() {
    let store = Store::new();
    let endpoints = vec![
        pod("p", "10.0.0.1", "n1").for_zones(&["z1"]),
        pod("q", "10.0.0.2", "n1").for_zones(&["z2"]),
    ];
    store.apply(set([
        web().into(),
        web_slice("web-1", endpoints).into(),
        node("n7", Some("z1")).into(),
        node("n8", Some("z2")).into(),
    ]));
    let nodes = ["n7", "n8", "n9", "n8", "n7"];
    let mut watches = nodes.map(|node| LocalWatch::new(&store, node, Wants::default()));
    let begun = watches.iter_mut().map(|watch| watch.next().now_or_never().unwrap().unwrap());
    let begun: Vec<LocalDiff> = begun.collect();
    for (node, diff) in nodes.into_iter().zip(begun) {
        let items = diff.into_wire().map(Result::unwrap);
        let mut has = Follower::default();
        has.replay(items.map(|item| telaio_api::local::decode_op(item).unwrap().unwrap()));
        assert_eq!(has, fresh(&store, node, Wants::default()), "{node}");
    }
}

#[test]
fn a_move_to_another_zone_and_a_change_at_once_are_both_told() {
    let store = Store::new();
    let hinted = |address: &str| -> Object {
        web_slice(
            "web-1",
            vec![
                pod("p", address, "n2").for_zones(&["z1"]),
                pod("q", "10.0.0.2", "n3").for_zones(&["z2"]),
            ],
        )
        .into()
    };
    store.apply(set([web().into(), hinted("10.0.0.1"), node("n1", Some("z2")).into()]));
    let mut watcher = Watcher::new(&store, "n1", Wants::default());
    watcher.has.pull(&mut watcher.watch);
    store.apply(set([hinted("10.0.0.9"), node("n1", Some("z1")).into()]));
    assert!(watcher.has.pull(&mut watcher.watch));
    assert_eq!(watcher.has, fresh(&store, "n1", Wants::default()));
    let ips: Vec<_> = watcher.has.endpoints.values().flat_map(|it| it.ips.clone()).collect();
    assert_eq!(ips, [ip("10.0.0.9")]);
}

#[test]
fn asking_and_going_away_again_loses_nothing() {
    let store = Store::new();
    store.apply(set([web().into()]));
    let mut watcher = Watcher::new(&store, "n1", Wants::default());
    watcher.has.pull(&mut watcher.watch);
    for _ in 0..3 {
        assert!(watcher.watch.next().now_or_never().is_none());
    }
    store.apply(set([web_at("10.0.0.1")]));
    assert!(watcher.has.pull(&mut watcher.watch));
    assert_eq!(watcher.has.endpoints.len(), 1);
}

#[test]
fn whoever_falls_too_far_behind_begins_anew_and_costs_no_more_than_the_bound() {
    let store = Store::new();
    store.apply(set([web().into()]));
    let mut slow = Watcher::new(&store, "n1", Wants::default());
    let mut quick = Watcher::new(&store, "n1", Wants::default());
    let mut raw = GlobalWatch::new(&store, BTreeSet::new());
    let mut raw_has = RawFollower::default();
    slow.has.pull(&mut slow.watch);
    quick.has.pull(&mut quick.watch);
    raw_has.pull(&mut raw);
    for round in 0..LOG_CHANGES_MAX + 100 {
        let address = format!("10.0.{}.{}", round / 250 % 250, round % 250 + 1);
        store.apply(set([web_at(&address)]));
        assert!(store.size().log_changes <= LOG_CHANGES_MAX);
        if round % 1_000 == 0 {
            assert!(quick.has.pull(&mut quick.watch));
        }
    }
    let ops: Vec<Op> = slow.watch.next().now_or_never().unwrap().unwrap().collect();
    assert_eq!(ops[0], Op::Reset);
    slow.has.replay(ops);
    let ops: Vec<Op> = quick.watch.next().now_or_never().unwrap().unwrap().collect();
    assert_ne!(ops[0], Op::Reset, "who keeps up is not made to begin anew");
    quick.has.replay(ops);
    raw_has.pull(&mut raw);
    assert_eq!(slow.has, fresh(&store, "n1", Wants::default()));
    assert_eq!(quick.has, slow.has);
    assert_eq!(raw_has.endpoints.len(), 1);
    store.apply(set([web_at("10.1.0.1")]));
    assert!(slow.has.pull(&mut slow.watch));
    assert_eq!(slow.has, fresh(&store, "n1", Wants::default()));
}

#[test]
fn a_cluster_of_many_services_can_change_whole_without_anybody_beginning_anew() {
    let store = Store::new();
    let count = LOG_CHANGES_MAX + 1_000;
    let named = |index: usize, label: &str| -> Object {
        let address = format!("10.{}.{}.{}", 96 + index / 62_500, index / 250 % 250, index % 250);
        service(&format!("s{index}"), &address).label("l", label).into()
    };
    store.apply(set((0..count).map(|index| named(index, "a"))));
    let mut watcher = Watcher::new(&store, "n1", Wants::default());
    watcher.has.pull(&mut watcher.watch);
    for index in 0..count {
        store.apply(set([named(index, "b")]));
    }
    assert!(store.size().log_changes <= count);
    let ops: Vec<Op> = watcher.watch.next().now_or_never().unwrap().unwrap().collect();
    assert_ne!(ops[0], Op::Reset);
    assert_eq!(ops.len(), count + 1);
}

#[test]
fn a_revision_once_announced_is_never_taken_back_by_another_writer() {
    let store = Store::new();
    store.apply(batch(vec![]));
    let store_ref = &store;
    let write = move |writer: u16| {
        let store = store_ref;
        let head = store.subscribe();
        let mut newest = 0;
        for round in 0..50_000_u16 {
            let [high, low] = round.to_be_bytes();
            let address = format!("10.96.{high}.{low}");
            let revision = store.apply(set([service(&format!("s{writer}"), &address).into()]));
            newest = newest.max(revision.unwrap());
            let announced = *head.borrow();
            assert!(announced >= newest, "{announced} came after {newest}");
            newest = announced;
        }
    };
    std::thread::scope(|scope| {
        for writer in 0..4 {
            scope.spawn(move || write(writer));
        }
    });
    assert_eq!(*store.subscribe().borrow(), store.revision());
}

#[test]
fn a_clock_set_back_makes_overrides_count_again() {
    let store = Store::new();
    let target = telaio_model::OverrideTarget::Pod("p".into());
    let mut drain = web_override("o", target, telaio_model::OverrideAction::Drain);
    drain.until_s = Some(100);
    store.apply(set([web().into(), web_at("10.0.0.1"), drain.into()]));
    let mut watcher = Watcher::new(&store, "n1", Wants::default());
    for (now_s, count) in [(50, 0), (100, 1), (99, 0), (30, 0), (200, 1), (99, 0)] {
        store.set_time(now_s);
        watcher.has.pull(&mut watcher.watch);
        assert_eq!(watcher.has.endpoints.len(), count, "at {now_s}");
    }
}

#[test]
fn a_pause_of_routes_ends_by_itself_and_comes_back_with_the_clock() {
    let store = Store::new();
    let target = telaio_model::OverrideTarget::Routes { host: None, path: None };
    let action = telaio_model::OverrideAction::Pause { retry_after_s: 60 };
    let mut pause = web_override("o", target, action);
    pause.until_s = Some(100);
    store.apply(set([web().into(), pause.clone().into()]));
    let kinds = [Kind::Override].into();
    let mut watcher = Watcher::new(&store, "n1", Wants { kinds, ..Wants::default() });
    for (now_s, count) in [(50, 1), (100, 0), (99, 1), (200, 0)] {
        store.set_time(now_s);
        watcher.has.pull(&mut watcher.watch);
        assert_eq!(watcher.has.objects.len(), count, "at {now_s}");
    }
    // Told once more when it is over: still over. Told to last longer: it counts.
    store.apply(set([pause.clone().into()]));
    watcher.has.pull(&mut watcher.watch);
    assert_eq!(watcher.has.objects.len(), 0);
    pause.until_s = Some(300);
    store.apply(set([pause.into()]));
    watcher.has.pull(&mut watcher.watch);
    assert_eq!(watcher.has.objects.len(), 1);
}

#[test]
fn what_has_ended_is_known_by_name_pauses_and_drains_alike() {
    let store = Store::new();
    let target = telaio_model::OverrideTarget::Routes { host: None, path: None };
    let action = telaio_model::OverrideAction::Pause { retry_after_s: 60 };
    let mut pause = web_override("pause", target, action);
    let target = telaio_model::OverrideTarget::Pod("web-1".into());
    let mut drain = web_override("drain", target, telaio_model::OverrideAction::Drain);
    (pause.until_s, drain.until_s) = (Some(100), Some(50));
    let gone = ObjectRef::new(Kind::Override, pause.meta.key.clone());
    store.apply(set([web().into(), pause.clone().into(), drain.into()]));
    let names = || -> Vec<String> {
        store.ended_overrides().iter().map(|it| it.meta.key.name.to_string()).collect()
    };
    for (now_s, ended) in
        [(10, &[][..]), (50, &["drain"]), (100, &["drain", "pause"]), (60, &["drain"])]
    {
        store.set_time(now_s);
        assert_eq!(names(), ended, "at {now_s}");
    }
    // One that comes when it is over already, and one that is removed where it is written.
    store.set_time(200);
    store.apply(set([pause.into()]));
    assert_eq!(names(), ["drain", "pause"]);
    store.apply(Batch { changes: vec![ObjectChange::Delete(gone)], synced: true });
    assert_eq!(names(), ["drain"]);
}

#[test]
fn what_nobody_needs_is_not_kept() {
    let store = Store::new();
    store.apply(set([web().into()]));
    store.apply(set([web_at("10.0.0.1")]));
    assert_eq!(store.size().log_changes, 0, "nobody watches");
    let waiting = LocalWatch::new(&store, "n1", Wants::default());
    store.apply(set([web_at("10.0.0.2")]));
    assert_eq!(store.size().log_changes, 0, "who has not begun needs no history");
    let mut watcher = Watcher::new(&store, "n1", Wants::default());
    watcher.has.pull(&mut watcher.watch);
    store.apply(set([web_at("10.0.0.3")]));
    assert!(store.size().log_changes > 0);
    assert_eq!(store.size().watchers, 2);
    drop((watcher, waiting));
    assert_eq!(store.size().watchers, 0);
    store.apply(set([web_at("10.0.0.4")]));
    assert_eq!(store.size().log_changes, 0, "it went, and what was kept for it");
}

#[tokio::test]
async fn a_watch_ends_with_its_store() {
    let store = Store::new();
    store.apply(batch(vec![]));
    let mut watch = LocalWatch::new(&store, "n1", Wants::default());
    let mut raw = GlobalWatch::new(&store, BTreeSet::new());
    drop(watch.next().await.unwrap());
    drop(raw.next().await.unwrap());
    drop(store);
    assert!(watch.next().await.is_err());
    assert!(raw.next().await.is_err());
}
