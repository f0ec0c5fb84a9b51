//! Whatever happens in whatever order, everybody who follows ends with the same state.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail by panicking"
)]

mod support;

use std::collections::BTreeSet;
use std::sync::Arc;

use futures::FutureExt as _;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use support::arbitrary::{NODES, any_changes, config};
use support::follower::Follower;
use support::net::{Brain, soon};
use support::reference::{Cluster, read_view};
use support::watchers::{RawFollower, Watcher, fresh};
use support::*;
use telaio_api::proto::localv1::Set;
use telaio_brain::{Authorizer, GlobalWatch, LocalDiff, LocalWatch, Store, Wants};
use telaio_model::{
    Kind, LocalEndpoint, Meta, Namespace, Object, ObjectChange, ObjectKey, ObjectRef, Op,
};
use telaio_source::brain::GlobalClient;

/// What may happen to a store and its followers.
#[derive(Debug, Clone)]
enum Step {
    Apply(Vec<ObjectChange>),
    Time(i64),
    /// Somebody begins to follow.
    Join(&'static str, Wants),
    /// One of them asks.
    Pull(Index),
    /// One of them asks, and the cluster changes while it takes the answer.
    PullDuring(Index, Vec<ObjectChange>, usize),
    /// One of them goes.
    Leave(Index),
}

fn any_wants() -> impl Strategy<Value = Wants> {
    let kinds = select(vec![
        BTreeSet::new(),
        [Kind::Ingress, Kind::Namespace, Kind::Node, Kind::Override].into(),
    ]);
    (any::<bool>(), any::<bool>(), kinds).prop_map(|(serving_endpoints, all_services, kinds)| {
        Wants { serving_endpoints, all_services, kinds }
    })
}

fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => any_changes().prop_map(Step::Apply),
        1 => (0..8_i64).prop_map(Step::Time),
        2 => (select(NODES.to_vec()), any_wants()).prop_map(|(node, wants)| Step::Join(node, wants)),
        6 => any::<Index>().prop_map(Step::Pull),
        2 => (any::<Index>(), any_changes(), 0..4_usize)
            .prop_map(|(who, changes, after)| Step::PullDuring(who, changes, after)),
        1 => any::<Index>().prop_map(Step::Leave),
    ]
}

fn any_steps() -> impl Strategy<Value = Vec<Step>> {
    proptest::collection::vec(any_step(), 1..24)
}

/// Plays the steps; returns the store, the cluster as it should be, and the followers.
fn play(steps: Vec<Step>) -> (Arc<Store>, Cluster, Vec<Watcher>) {
    let store = Store::new();
    store.apply(batch(vec![]));
    let mut cluster = Cluster::default();
    let mut watchers: Vec<Watcher> = Vec::new();
    let apply = |cluster: &mut Cluster, changes: Vec<ObjectChange>| {
        cluster.apply(&changes);
        store.apply(batch(changes));
    };
    for step in steps {
        match step {
            Step::Apply(changes) => apply(&mut cluster, changes),
            Step::Time(now_s) => {
                // Clocks are also set back.
                cluster.now_s = now_s;
                store.set_time(now_s);
            }
            Step::Join(node, wants) => watchers.push(Watcher::new(&store, node, wants)),
            Step::Leave(_) | Step::Pull(_) | Step::PullDuring(..) if watchers.is_empty() => {}
            Step::Leave(who) => _ = watchers.swap_remove(who.index(watchers.len())),
            Step::Pull(who) => {
                let index = who.index(watchers.len());
                let watcher = &mut watchers[index];
                watcher.has.pull(&mut watcher.watch);
            }
            Step::PullDuring(who, changes, after) => {
                let index = who.index(watchers.len());
                let watcher = &mut watchers[index];
                let Some(diff) = watcher.watch.next().now_or_never() else { continue };
                let mut diff = diff.unwrap();
                let mut ops: Vec<Op> = diff.by_ref().take(after).collect();
                apply(&mut cluster, changes);
                ops.extend(diff);
                watcher.has.replay(ops);
            }
        }
    }
    (store, cluster, watchers)
}

proptest! {
    #![proptest_config(config(256))]

    #[test]
    fn whoever_follows_has_what_whoever_begins_now_gets(steps in any_steps()) {
        let (store, _, watchers) = play(steps);
        for mut watcher in watchers {
            watcher.has.pull(&mut watcher.watch);
            prop_assert!(!watcher.has.pull(&mut watcher.watch), "one answer was enough");
            prop_assert_eq!(&watcher.has, &fresh(&store, watcher.node, watcher.wants));
        }
    }

    #[test]
    fn a_view_depends_on_what_there_is_and_not_on_what_was(
        steps in any_steps(),
        seed in any::<u64>(),
        wants in any_wants(),
        parts in 1..4_usize,
    ) {
        let (store, cluster, _) = play(steps);
        let mut objects: Vec<Object> = cluster.objects.values().cloned().collect();
        shuffle(&mut objects, seed);
        let other = Store::new();
        other.set_time(cluster.now_s);
        for part in objects.chunks(objects.len().div_ceil(parts).max(1)) {
            other.apply(set(part.iter().cloned()));
        }
        other.apply(batch(vec![]));
        for node in NODES {
            let wants = wants.clone();
            prop_assert_eq!(fresh(&store, node, wants.clone()), fresh(&other, node, wants));
        }
        prop_assert_eq!(store.size().services, other.size().services);
        prop_assert_eq!(store.size().endpoints, other.size().endpoints);
        prop_assert_eq!(store.size().objects, other.size().objects);
    }

    #[test]
    fn a_view_is_what_kube_proxy_would_decide(steps in any_steps()) {
        let (store, cluster, _) = play(steps);
        for node in NODES {
            let view = fresh(&store, node, Wants::services());
            let endpoints: Vec<_> = view.endpoints.values().cloned().collect();
            let read = read_view(view.services.values(), &endpoints);
            prop_assert_eq!(read, cluster.decisions(node));
        }
    }

    #[test]
    fn a_view_shows_no_more_than_it_must(steps in any_steps()) {
        let (store, _, _) = play(steps);
        for node in NODES {
            let lean = fresh(&store, node, Wants::default());
            let full = fresh(&store, node, Wants::services());
            prop_assert_eq!(&lean.services, &full.services);
            prop_assert!(lean.objects.is_empty());
            let used = |it: &&Arc<LocalEndpoint>| it.scopes().internal || it.scopes().external;
            prop_assert!(lean.endpoints.values().all(|it| used(&it)));
            for endpoint in full.endpoints.values() {
                prop_assert!(endpoint.conditions.serving || endpoint.scopes().any());
                prop_assert_eq!(endpoint.local, endpoint.node.as_deref() == Some(node));
            }
            // Each address and port that serves traffic is in both.
            let ports = |view: &Follower| -> BTreeSet<String> {
                let used = view.endpoints.values().filter(used);
                used.flat_map(|it| {
                    let ports = it.ports.iter().filter(|port| port.scopes.internal || port.scopes.external);
                    let pairs = ports.flat_map(|port| it.ips.iter().map(move |ip| (ip, port)));
                    pairs.map(|(ip, port)| format!("{} {ip} {port:?}", it.key.service)).collect::<Vec<_>>()
                })
                .collect()
            };
            prop_assert_eq!(ports(&lean), ports(&full));
        }
    }

    #[test]
    fn whoever_joins_in_a_crowd_gets_by_wire_what_it_would_have_got_alone(
        steps in any_steps(),
        crowd in proptest::collection::vec((select(NODES.to_vec()), any_wants()), 1..8),
        turns in proptest::collection::vec((any::<Index>(), 1..8_usize), 0..40),
        during in any_changes(),
    ) {
        let (store, _, _) = play(steps);
        let alone: Vec<Follower> =
            crowd.iter().map(|(node, wants)| fresh(&store, node, wants.clone())).collect();
        let mut watches: Vec<LocalWatch> =
            crowd.iter().map(|(node, wants)| LocalWatch::new(&store, *node, wants.clone())).collect();
        let begun = watches.iter_mut().map(|watch| watch.next().now_or_never().unwrap().unwrap());
        let mut wires: Vec<_> = begun.map(LocalDiff::into_wire).collect();
        let mut got: Vec<Vec<Op>> = vec![Vec::new(); crowd.len()];
        let decode = |item| telaio_api::local::decode_op(item).unwrap().unwrap();
        // Each takes some in turn, and the cluster does not wait for them.
        for (turn, (who, count)) in turns.into_iter().enumerate() {
            if turn == 5 {
                store.apply(batch(during.clone()));
            }
            let who = who.index(wires.len());
            got[who].extend(wires[who].by_ref().take(count).map(|item| decode(item.unwrap())));
        }
        for ((wire, mut ops), alone) in wires.into_iter().zip(got).zip(alone) {
            ops.extend(wire.map(|item| decode(item.unwrap())));
            let mut has = Follower::default();
            has.replay(ops);
            prop_assert_eq!(has, alone);
        }
    }

    #[test]
    fn whoever_follows_the_raw_cluster_has_what_whoever_begins_now_gets(
        batches in proptest::collection::vec((any_changes(), any::<bool>()), 1..16),
    ) {
        let kinds: BTreeSet<Kind> = [Kind::Ingress, Kind::Override].into();
        let store = Store::new();
        store.apply(batch(vec![]));
        let mut cluster = Cluster::default();
        let mut watch = GlobalWatch::new(&store, kinds.clone());
        let mut has = RawFollower::default();
        for (changes, pull) in batches {
            cluster.apply(&changes);
            store.apply(batch(changes));
            if pull {
                has.pull(&mut watch);
            }
        }
        has.pull(&mut watch);
        prop_assert!(!has.pull(&mut watch));
        let mut begun = RawFollower::default();
        prop_assert!(begun.pull(&mut GlobalWatch::new(&store, kinds.clone())));
        prop_assert_eq!(&has, &begun);

        // And that is the cluster: every service, every address of every slice of a service.
        let objects = |kind: Kind| cluster.objects.iter().filter(move |(it, _)| it.kind == kind);
        prop_assert_eq!(has.services.len(), objects(Kind::Service).count());
        prop_assert_eq!(has.nodes.len(), objects(Kind::Node).count());
        let wanted = |it: &&ObjectRef| kinds.contains(&it.kind);
        prop_assert_eq!(has.objects.len(), cluster.objects.keys().filter(wanted).count());
        let slices = cluster.objects.values().filter_map(|object| match object {
            Object::EndpointSlice(slice) if slice.service.is_some() => Some(slice),
            _ => None,
        });
        prop_assert_eq!(has.endpoints.len(), slices.map(|slice| slice.endpoints.len()).sum::<usize>());
    }
}

/// Every set that has objects as they are, but for secrets.
const OBJECT_SETS: [Set; 3] = [Set::Ingresses, Set::Namespaces, Set::Overrides];

/// One brain, the Global API, our client of it, and a second brain: what the second one's nodes see
/// must be what the first one's do.
async fn chain(batches: Vec<Vec<ObjectChange>>, restart_before: usize) {
    let first = Store::new();
    first.apply(batch(vec![]));
    let mut brain = Brain::start(&first).await;
    let second = Store::new();
    let (sender, mut received) = tokio::sync::mpsc::channel(4);
    let client = GlobalClient::new(brain.options(&OBJECT_SETS), Arc::default());
    let running = tokio::spawn(client.run(sender));
    for (index, changes) in batches.into_iter().enumerate() {
        if index == restart_before {
            let address = brain.address;
            brain.stop().await;
            let again = Brain::start_with(&first, Some(address), Authorizer::default(), None);
            brain = again.await;
        }
        // What comes with the changes shows that they have come.
        let mark = mark(index);
        let marked = changes.into_iter().chain([ObjectChange::Set(mark.clone())]);
        first.apply(batch(marked.collect()));
        while !second.snapshot().is_some_and(|snapshot| snapshot.objects.contains(&mark)) {
            let batch = soon("a batch comes", received.recv()).await;
            second.apply(batch.expect("the client goes on for ever"));
        }
        assert_eq!(all_views(&second), all_views(&first));
    }
    drop(received);
    running.await.unwrap();
    brain.stop().await;
}

/// An object that is another one for each number.
fn mark(number: usize) -> Object {
    let mut meta = Meta::named(ObjectKey::cluster("mark"));
    meta.labels.insert("number".into(), number.to_string().into());
    Namespace { meta }.into()
}

/// What every node sees, with everything that can be asked for.
fn all_views(store: &Arc<Store>) -> Vec<Follower> {
    let kinds = BTreeSet::from([Kind::Ingress, Kind::Namespace, Kind::Override, Kind::Node]);
    let wants = Wants { serving_endpoints: true, all_services: true, kinds };
    let lean = |node| fresh(store, node, Wants::default());
    let full = |node| fresh(store, node, wants.clone());
    NODES.into_iter().flat_map(|node| [lean(node), full(node)]).collect()
}

proptest! {
    #![proptest_config(config(64))]

    #[test]
    fn nodes_of_a_brain_below_another_see_what_those_of_the_first_see(
        batches in proptest::collection::vec(any_changes(), 1..8),
        restart_before in 0..12_usize,
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(chain(batches, restart_before));
    }
}

/// A fixed shuffle: the test's own seed decides, nothing else.
fn shuffle<T>(items: &mut [T], mut seed: u64) {
    for index in (1..items.len()).rev() {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        items.swap(index, usize::try_from(seed >> 33).unwrap() % (index + 1));
    }
}
