//! The API as peers meet it: real gRPC over loopback, with and without TLS.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail by panicking"
)]

mod support;

use std::sync::Arc;

use support::follower::Follower;
use support::net::{
    Brain, RawClient, in_process, is_secret, raw_over, replayed, request, secret, small_store,
    soon, wants,
};
use support::*;
use telaio_api::proto::localv1::{OpItem, Set, op_item};
use telaio_brain::{Store, Wants};
use telaio_model::{Batch, IpMode, Object, Op};
use telaio_source::Status as SourceStatus;
use telaio_source::brain::LocalClient;
use tonic::Code;

/// A cluster with something of everything.
fn rich_store() -> Arc<Store> {
    let store = small_store();
    let mut headless = service("headless", "10.96.0.9");
    headless.headless = true;
    headless.cluster_ips.clear();
    let dual = service("dual", "10.96.0.2")
        .cluster_ips(&["10.96.0.2", "fd00:96::2"])
        .etp_local()
        .load_balancer("192.0.2.1", IpMode::Vip)
        .load_balancer("192.0.2.2", IpMode::Proxy);
    let ports = [slice_port("http", 8080)];
    store.apply(set([
        headless.into(),
        dual.into(),
        slice("headless-1", "headless", &ports, vec![pod("h", "10.0.0.9", "n1")]).into(),
        slice(
            "dual-4",
            "dual",
            &ports,
            vec![
                pod("a", "10.0.1.1", "n1"),
                pod("b", "10.0.1.2", "n2").is(LEAVING),
                pod("c", "10.0.1.3", "n2").is(UNREADY),
                telaio_model::Endpoint::at(ip("10.0.1.4")),
            ],
        )
        .into(),
        slice("dual-6", "dual", &ports, vec![pod("a", "fd00::1", "n1")]).into(),
        telaio_model::Namespace {
            meta: telaio_model::Meta::named(telaio_model::ObjectKey::cluster("default")),
        }
        .into(),
    ]));
    store
}

fn client(brain: &Brain, node: &str, sets: &[Set]) -> LocalClient {
    LocalClient::new(brain.options(sets), node, Arc::new(SourceStatus::default()))
}

#[tokio::test]
async fn a_peer_gets_reset_the_state_and_sync_in_kpngs_order() {
    let store = rich_store();
    let brain = Brain::start(&store).await;
    let mut peer = RawClient::connect(&brain, request("n1", &[])).await.unwrap();
    let ops = peer.difference().await.unwrap();
    assert_eq!(ops[0], Op::Reset);
    assert_eq!(replayed(ops), in_process(&store, "n1", Wants::default()).await);
    brain.stop().await;
}

#[tokio::test]
async fn an_empty_cluster_syncs() {
    let store = Store::new();
    let brain = Brain::start(&store).await;
    let mut peer = client(&brain, "n1", &[]);
    let first = tokio::spawn(async move { peer.next().await });
    store.apply(Batch { changes: vec![], synced: true });
    assert_eq!(soon("an empty state comes", first).await.unwrap(), [Op::Reset, Op::Sync]);
    brain.stop().await;
}

#[tokio::test]
async fn nothing_is_sent_that_was_not_asked_for() {
    let store = small_store();
    let brain = Brain::start(&store).await;
    let mut silent = RawClient::connect(&brain, request("n1", &[])).await.unwrap();
    let mut eager = RawClient::connect(&brain, request("n1", &[])).await.unwrap();
    silent.difference().await.unwrap();
    eager.difference().await.unwrap();
    for address in ["10.0.0.2", "10.0.0.3"] {
        eager.ask(request("n1", &[])).await;
        store.apply(set([web_at(address)]));
        // When one peer has it, the other would have got it too.
        let ops = eager.difference().await.unwrap();
        assert!(matches!(&ops[..], [Op::SetEndpoint(it), Op::Sync] if it.ips == [ip(address)]));
    }
    silent.ask(request("n1", &[])).await;
    let ops = silent.difference().await.unwrap();
    assert!(
        matches!(&ops[..], [Op::SetEndpoint(it), Op::Sync] if it.ips == [ip("10.0.0.3")]),
        "one difference for both changes: {ops:?}"
    );
    brain.stop().await;
}

#[tokio::test]
async fn reset_comes_once() {
    let store = small_store();
    let brain = Brain::start(&store).await;
    let mut peer = client(&brain, "n1", &[]);
    let mut follower = Follower::default();
    for number in 1..20 {
        store.apply(set([web_at(&format!("10.0.1.{number}"))]));
        let ops = soon("a difference comes", peer.next()).await;
        assert_eq!(ops.contains(&Op::Reset), number == 1);
        follower.replay(ops);
    }
    assert_eq!(follower, in_process(&store, "n1", Wants::default()).await);
    brain.stop().await;
}

#[tokio::test]
async fn requests_sent_ahead_are_answered_one_by_one() {
    let store = small_store();
    let brain = Brain::start(&store).await;
    let mut peer = RawClient::connect(&brain, request("n1", &[])).await.unwrap();
    for _ in 0..3 {
        peer.ask(request("n1", &[])).await;
    }
    let mut follower = Follower::default();
    follower.replay(peer.difference().await.unwrap());
    for number in 1..=3 {
        store.apply(set([web_at(&format!("10.0.1.{number}"))]));
        follower.replay(peer.difference().await.unwrap());
    }
    assert_eq!(follower, in_process(&store, "n1", Wants::default()).await);
    brain.stop().await;
}

#[tokio::test]
async fn a_peer_that_asks_for_nothing_more_gets_what_kpng_means() {
    let store = rich_store();
    store.apply(set([secret()]));
    let brain = Brain::start(&store).await;
    let mut peer = RawClient::connect(&brain, request("n1", &[])).await.unwrap();
    let mut items: Vec<OpItem> = Vec::new();
    loop {
        items.push(peer.message().await.unwrap());
        if matches!(items.last().unwrap().op, Some(op_item::Op::Sync(_))) {
            break;
        }
    }
    let sets = items.iter().filter_map(|item| match &item.op {
        Some(op_item::Op::Set(value)) => value.r#ref.as_ref().map(|it| (it.set, it.path.clone())),
        _ => None,
    });
    let sets: Vec<_> = sets.collect();
    assert!(sets.iter().all(|(set, _)| *set == 1 || *set == 2), "{sets:?}");
    let paths: Vec<&str> = sets.iter().map(|(_, path)| path.as_str()).collect();
    assert!(!paths.iter().any(|path| path.contains("headless")), "{paths:?}");
    // What leaves or is not ready takes no traffic, and a KPNG backend would send it some.
    assert!(!paths.iter().any(|path| path.ends_with("/b") || path.ends_with("/c")), "{paths:?}");
    assert!(paths.contains(&"default/dual/a"), "{paths:?}");
    brain.stop().await;
}

#[tokio::test]
async fn a_peer_gets_the_sets_that_it_asks_for() {
    let store = rich_store();
    let brain = Brain::start(&store).await;
    let choices: [&[Set]; 5] = [
        &[],
        &[Set::ServingEndpoints],
        &[Set::AllServices],
        &[Set::Namespaces, Set::Nodes],
        &[Set::ServingEndpoints, Set::AllServices, Set::Namespaces, Set::Nodes, Set::Overrides],
    ];
    for sets in choices {
        let mut peer = client(&brain, "n1", sets);
        let has = replayed(soon("a state comes", peer.next()).await);
        assert_eq!(has, in_process(&store, "n1", wants(sets)).await, "{sets:?}");
    }
    brain.stop().await;
}

#[tokio::test]
async fn sets_of_a_newer_release_are_passed_over() {
    let store = rich_store();
    let brain = Brain::start(&store).await;
    let sets = [0, 5_000, -1, Set::Namespaces.into(), 10];
    let mut peer = RawClient::connect(&brain, request("n1", &sets)).await.unwrap();
    let has = replayed(peer.difference().await.unwrap());
    assert_eq!(has, in_process(&store, "n1", wants(&[Set::Namespaces])).await);
    brain.stop().await;
}

/// What becomes of a first request.
async fn first_answer(
    brain: &Brain,
    first: telaio_api::proto::localv1::WatchReq,
) -> Result<Vec<Op>, tonic::Status> {
    RawClient::connect(brain, first).await?.difference().await
}

#[tokio::test]
async fn a_peer_without_a_node_name_is_refused() {
    let brain = Brain::start(&small_store()).await;
    let status = first_answer(&brain, request("", &[])).await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument, "{status}");
    brain.stop().await;
}

#[tokio::test]
async fn a_node_that_nobody_knows_gets_a_view_too() {
    let store = rich_store();
    let brain = Brain::start(&store).await;
    let has = replayed(first_answer(&brain, request("nobody", &[])).await.unwrap());
    assert_eq!(has, in_process(&store, "nobody", Wants::default()).await);
    brain.stop().await;
}

#[tokio::test]
async fn a_peer_cannot_become_another_node_on_the_way() {
    let brain = Brain::start(&rich_store()).await;
    let mut peer = RawClient::connect(&brain, request("n1", &[])).await.unwrap();
    peer.difference().await.unwrap();
    peer.ask(request("n2", &[])).await;
    assert!(peer.difference().await.is_err());
    brain.stop().await;
}

#[tokio::test]
async fn secrets_do_not_go_over_a_plain_connection() {
    let store = small_store();
    store.apply(set([secret()]));
    let authorizer =
        telaio_brain::Authorizer { ingress_nodes: ["*".to_owned(), "n1".to_owned()].into() };
    let brain = Brain::start_with(&store, None, authorizer, None).await;
    let secrets = [Set::TlsSecrets.into()];
    let status = first_answer(&brain, request("n1", &secrets)).await.unwrap_err();
    assert_eq!(status.code(), Code::PermissionDenied, "{status}");
    // Nor to one who asks for them only later.
    let mut peer = RawClient::connect(&brain, request("n1", &[])).await.unwrap();
    assert!(!peer.difference().await.unwrap().iter().any(is_secret));
    peer.ask(request("n1", &secrets)).await;
    store.apply(set([web_at("10.0.0.2")]));
    if let Ok(ops) = peer.difference().await {
        assert!(!ops.iter().any(is_secret));
    }
    // Nor from the Global API.
    let status = first_raw(&brain, &secrets).await.unwrap_err();
    assert_eq!(status.code(), Code::PermissionDenied, "{status}");
    brain.stop().await;
}

/// What becomes of a first request to the Global API: the sets that came.
async fn first_raw(brain: &Brain, sets: &[i32]) -> Result<Vec<i32>, tonic::Status> {
    let channel = tonic::transport::Channel::from_shared(brain.url()).unwrap();
    raw_over(channel.connect().await.unwrap(), sets).await
}

#[tokio::test]
async fn the_raw_cluster_comes_in_kpngs_sets_and_no_others_unless_asked_for() {
    let store = rich_store();
    let brain = Brain::start(&store).await;
    let sets = first_raw(&brain, &[]).await.unwrap();
    for set in [10, 11, 12] {
        assert!(sets.contains(&set), "{sets:?}");
    }
    assert!(sets.iter().all(|set| *set < 100), "{sets:?}");
    let sets = first_raw(&brain, &[Set::Namespaces.into(), 7_000]).await.unwrap();
    assert!(sets.contains(&Set::Namespaces.into()), "{sets:?}");
    brain.stop().await;
}

#[tokio::test]
async fn a_client_goes_on_with_the_brain_that_comes_back() {
    let store = small_store();
    let brain = Brain::start(&store).await;
    let address = brain.address;
    let mut peer = client(&brain, "n1", &[]);
    let mut has = replayed(soon("a state comes", peer.next()).await);
    brain.stop().await;
    // What happens meanwhile is not missed, a deletion least of all.
    store.apply(set([service("new", "10.96.0.7").into()]));
    store.apply(delete([web().into(), web_at("10.0.0.1")].map(|it: Object| it.object_ref())));
    let brain =
        Brain::start_with(&store, Some(address), telaio_brain::Authorizer::default(), None).await;
    let ops = soon("a state comes again", peer.next()).await;
    assert_eq!(ops[0], Op::Reset);
    has.replay(ops);
    assert_eq!(has, in_process(&store, "n1", Wants::default()).await);
    assert!(has.endpoints.is_empty());
    store.apply(set([web().into()]));
    let ops = soon("a difference comes", peer.next()).await;
    assert_ne!(ops[0], Op::Reset);
    has.replay(ops);
    assert_eq!(has.services.len(), 2);
    brain.stop().await;
}

#[tokio::test]
async fn a_brain_that_stops_ends_its_watchers() {
    let store = small_store();
    let mut brain = Brain::start(&store).await;
    let mut idle = RawClient::connect(&brain, request("n1", &[])).await.unwrap();
    let mut asking = RawClient::connect(&brain, request("n1", &[])).await.unwrap();
    idle.difference().await.unwrap();
    asking.difference().await.unwrap();
    asking.ask(request("n1", &[])).await;
    brain.ask_to_stop();
    for peer in [&mut idle, &mut asking] {
        let status = peer.message().await.unwrap_err();
        assert_eq!(status.code(), Code::Unavailable, "{status}");
    }
    brain.stopped().await;
}

#[tokio::test]
async fn a_watcher_that_goes_is_forgotten() {
    let store = small_store();
    let brain = Brain::start(&store).await;
    let mut peer = RawClient::connect(&brain, request("n1", &[])).await.unwrap();
    peer.difference().await.unwrap();
    assert_eq!((brain.server.watchers(), store.size().watchers), (1, 1));
    drop(peer);
    let mut other = RawClient::connect(&brain, request("n1", &[])).await.unwrap();
    other.difference().await.unwrap();
    let gone = async {
        while (brain.server.watchers(), store.size().watchers) != (1, 1) {
            tokio::task::yield_now().await;
        }
    };
    soon("the first is forgotten", gone).await;
    brain.stop().await;
}

/// A store whose state does not fit into what a connection buffers.
fn large_store() -> Arc<Store> {
    let store = small_store();
    let text = "x".repeat(4_000);
    let services = (0..2_000_u16).map(|index| {
        let [high, low] = index.to_be_bytes();
        service(&format!("s{index}"), &format!("10.97.{high}.{low}")).label("l", &text).into()
    });
    store.apply(set(services));
    store
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_that_never_reads_delays_nobody() {
    let store = large_store();
    let mut brain = Brain::start(&store).await;
    let mut stuck = Vec::new();
    for _ in 0..5 {
        stuck.push(RawClient::connect(&brain, request("n1", &[])).await.unwrap());
    }
    let mut peer = client(&brain, "n1", &[]);
    let mut has = replayed(soon("a state comes", peer.next()).await);
    for number in 1..200 {
        store.apply(set([web_at(&format!("10.0.1.{number}"))]));
        has.replay(soon("a difference comes", peer.next()).await);
    }
    assert_eq!(has, in_process(&store, "n1", Wants::default()).await);
    assert_eq!(brain.server.watchers(), 6);
    // Nor does it keep the brain from stopping.
    brain.ask_to_stop();
    brain.stopped().await;
    drop(stuck);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fifty_watchers_all_converge() {
    let store = rich_store();
    let brain = Brain::start(&store).await;
    let sets = [Set::ServingEndpoints, Set::Nodes];
    let last = ip("10.0.9.99");
    let mut peers = Vec::new();
    for number in 0..50 {
        let name = format!("n{number}");
        let mut peer = client(&brain, &name, &sets);
        peers.push(tokio::spawn(async move {
            let mut has = Follower::default();
            // Until it has heard of the last change.
            while !has.endpoints.values().any(|it| it.ips.contains(&last)) {
                has.replay(peer.next().await);
            }
            (name, has)
        }));
    }
    for number in 0..100_u8 {
        let zone = if number.is_multiple_of(3) { "z1" } else { "z2" };
        store.apply(set([
            web_at(&format!("10.0.9.{number}")),
            node(&format!("n{}", number % 50), Some(zone)).into(),
        ]));
        tokio::task::yield_now().await;
    }
    for peer in peers {
        let (name, has) = soon("all have heard", peer).await.unwrap();
        assert_eq!(has, in_process(&store, &name, wants(&sets)).await, "{name}");
    }
    brain.stop().await;
}
