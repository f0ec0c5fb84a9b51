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
use support::net::{Brain, RawClient, in_process, request, soon, wants};
use support::*;
use telaio_api::proto::globalv1;
use telaio_api::proto::localv1::{OpItem, Set, op_item};
use telaio_brain::{Store, Wants};
use telaio_model::{Batch, IpMode, Object, Op, TlsSecret};
use telaio_source::Status as SourceStatus;
use telaio_source::brain::LocalClient;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Code;

/// `default/web` with one endpoint at this address.
fn web_at(address: &str) -> Object {
    web_slice("web-1", vec![pod("p", address, "n1")]).into()
}

/// A store of one service with one endpoint.
fn small_store() -> Arc<Store> {
    let store = Store::new();
    store.apply(set([web().into(), web_at("10.0.0.1"), node("n1", Some("z1")).into()]));
    store
}

fn secret() -> Object {
    TlsSecret {
        meta: telaio_model::Meta::named(key("tls")),
        certificate: Arc::from(&b"certificate"[..]),
        private_key: Arc::from(&b"key"[..]),
    }
    .into()
}

fn is_secret(op: &Op) -> bool {
    matches!(op, Op::SetObject(Object::TlsSecret(_)))
}

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

fn replayed(ops: Vec<Op>) -> Follower {
    let mut follower = Follower::default();
    follower.replay(ops);
    follower
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

async fn raw_over(
    channel: tonic::transport::Channel,
    sets: &[i32],
) -> Result<Vec<i32>, tonic::Status> {
    let (requests, outbound) = mpsc::channel(1);
    requests.send(globalv1::GlobalWatchReq { sets: sets.to_vec() }).await.unwrap();
    let mut client = globalv1::sets_client::SetsClient::new(channel);
    let mut operations = client.watch(ReceiverStream::new(outbound)).await?.into_inner();
    let mut sets = Vec::new();
    loop {
        let message = soon("a message comes", operations.message()).await?;
        match message.ok_or_else(|| tonic::Status::cancelled("the stream has ended"))?.op.unwrap() {
            op_item::Op::Sync(_) => return Ok(sets),
            op_item::Op::Set(value) => sets.push(value.r#ref.unwrap().set),
            op_item::Op::Reset(_) | op_item::Op::Delete(_) => {}
        }
    }
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

mod mutual_tls {
    use super::*;

    use std::collections::BTreeSet;

    use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, SanType};
    use telaio_brain::Authorizer;
    use telaio_source::brain::{BrainOptions, ClientTls};
    use tonic::transport::{Certificate, Channel, ClientTlsConfig, Identity, ServerTlsConfig};

    /// An authority, its certificate, and how it signs.
    struct Authority {
        pem: String,
        issuer: Issuer<'static, KeyPair>,
    }

    /// A certificate and its key.
    struct Credentials {
        certificate: String,
        key: String,
    }

    impl Authority {
        fn new(name: &str) -> Self {
            let mut params = CertificateParams::new(vec![]).unwrap();
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            params.distinguished_name.push(DnType::CommonName, name);
            let key = KeyPair::generate().unwrap();
            let pem = params.self_signed(&key).unwrap().pem();
            Self { pem, issuer: Issuer::new(params, key) }
        }

        fn sign(
            &self,
            common_name: &str,
            organisation: Option<&str>,
            names: &[&str],
        ) -> Credentials {
            let names: Vec<String> = names.iter().map(ToString::to_string).collect();
            let mut params = CertificateParams::new(names).unwrap();
            params.distinguished_name = rcgen::DistinguishedName::new();
            params.distinguished_name.push(DnType::CommonName, common_name);
            if let Some(organisation) = organisation {
                params.distinguished_name.push(DnType::OrganizationName, organisation);
            }
            params.subject_alt_names.push(SanType::IpAddress(ip("127.0.0.1")));
            let key = KeyPair::generate().unwrap();
            let certificate = params.signed_by(&key, &self.issuer).unwrap().pem();
            Credentials { certificate, key: key.serialize_pem() }
        }
    }

    struct Stage {
        authority: Authority,
        brain: Brain,
        store: Arc<Store>,
    }

    async fn stage(ingress_nodes: &[&str]) -> Stage {
        let authority = Authority::new("authority");
        let server = authority.sign("brain", None, &[]);
        let tls = ServerTlsConfig::new()
            .identity(Identity::from_pem(&server.certificate, &server.key))
            .client_ca_root(Certificate::from_pem(&authority.pem));
        let ingress_nodes: BTreeSet<String> =
            ingress_nodes.iter().map(ToString::to_string).collect();
        let store = small_store();
        store.apply(set([secret()]));
        let brain = Brain::start_with(&store, None, Authorizer { ingress_nodes }, Some(tls)).await;
        Stage { authority, brain, store }
    }

    impl Stage {
        fn url(&self) -> String {
            format!("https://{}", self.brain.address)
        }

        async fn channel(
            &self,
            credentials: Option<&Credentials>,
        ) -> Result<Channel, tonic::transport::Error> {
            let ca = Certificate::from_pem(&self.authority.pem);
            let mut tls = ClientTlsConfig::new().ca_certificate(ca);
            if let Some(it) = credentials {
                tls = tls.identity(Identity::from_pem(&it.certificate, &it.key));
            }
            let endpoint = Channel::from_shared(self.url()).unwrap();
            endpoint.tls_config(tls).unwrap().connect().await
        }

        /// What becomes of a request as this node.
        async fn watch(
            &self,
            credentials: &Credentials,
            node: &str,
            sets: &[Set],
        ) -> Result<Vec<Op>, tonic::Status> {
            let sets: Vec<i32> = sets.iter().map(|set| i32::from(*set)).collect();
            let channel = self.channel(Some(credentials)).await.unwrap();
            RawClient::over(channel, request(node, &sets)).await?.difference().await
        }

        async fn is_denied(&self, credentials: &Credentials, node: &str, sets: &[Set]) -> bool {
            match self.watch(credentials, node, sets).await {
                Ok(_) => false,
                Err(status) => {
                    assert_eq!(status.code(), Code::PermissionDenied, "{status}");
                    true
                }
            }
        }
    }

    #[tokio::test]
    async fn a_node_proves_its_name_by_its_certificate() {
        let stage = stage(&[]).await;
        let common = stage.authority.sign("n1", None, &[]);
        let kubelet = stage.authority.sign("system:node:n1", Some("system:nodes"), &[]);
        let alternative = stage.authority.sign("something", None, &["n1"]);
        for credentials in [&common, &kubelet, &alternative] {
            assert!(!stage.is_denied(credentials, "n1", &[]).await);
            assert!(stage.is_denied(credentials, "n2", &[]).await);
            assert!(stage.is_denied(credentials, "system:node:n2", &[]).await);
        }
        stage.brain.stop().await;
    }

    #[tokio::test]
    async fn a_certificate_of_another_authority_is_worth_nothing() {
        let stage = stage(&["*"]).await;
        let stranger = Authority::new("authority").sign("n1", Some("telaio:brain"), &[]);
        for credentials in [Some(&stranger), None] {
            // TLS 1.3 tells the client only when it reads.
            if let Ok(channel) = stage.channel(credentials).await {
                let answer = match RawClient::over(channel, request("n1", &[])).await {
                    Ok(mut peer) => peer.difference().await,
                    Err(status) => Err(status),
                };
                assert!(answer.is_err());
            }
        }
        stage.brain.stop().await;
    }

    #[tokio::test]
    async fn secrets_go_to_nodes_that_are_authorised_for_ingress() {
        let stage = stage(&["n1"]).await;
        let secrets = [Set::TlsSecrets];
        let listed = stage.authority.sign("n1", None, &[]);
        let ops = stage.watch(&listed, "n1", &secrets).await.unwrap();
        assert_eq!(ops.iter().filter(|op| is_secret(op)).count(), 1);
        let ops = stage.watch(&listed, "n1", &[]).await.unwrap();
        assert!(!ops.iter().any(is_secret), "not asked for");
        let unlisted = stage.authority.sign("n2", None, &[]);
        assert!(stage.is_denied(&unlisted, "n2", &secrets).await);
        assert!(!stage.is_denied(&unlisted, "n2", &[]).await);
        assert!(stage.is_denied(&unlisted, "n1", &secrets).await);
        let by_certificate = stage.authority.sign("n2", Some("telaio:ingress"), &[]);
        let ops = stage.watch(&by_certificate, "n2", &secrets).await.unwrap();
        assert_eq!(ops.iter().filter(|op| is_secret(op)).count(), 1);
        assert!(stage.is_denied(&by_certificate, "n1", &secrets).await);
        stage.brain.stop().await;
    }

    #[tokio::test]
    async fn a_star_authorises_every_node_for_itself() {
        let stage = stage(&["*"]).await;
        let credentials = stage.authority.sign("n7", None, &[]);
        assert!(!stage.is_denied(&credentials, "n7", &[Set::TlsSecrets]).await);
        assert!(stage.is_denied(&credentials, "n8", &[Set::TlsSecrets]).await);
        stage.brain.stop().await;
    }

    #[tokio::test]
    async fn nobody_gets_more_by_asking_later() {
        let stage = stage(&[]).await;
        let credentials = stage.authority.sign("n1", None, &[]);
        for later in [request("n2", &[]), request("n1", &[Set::TlsSecrets.into()])] {
            let channel = stage.channel(Some(&credentials)).await.unwrap();
            let mut peer = RawClient::over(channel, request("n1", &[])).await.unwrap();
            let mut has = replayed(peer.difference().await.unwrap());
            peer.ask(later).await;
            stage.store.apply(set([web_at("10.0.0.2")]));
            if let Ok(ops) = peer.difference().await {
                has.replay(ops);
                assert_eq!(has, in_process(&stage.store, "n1", Wants::default()).await);
            }
            stage.store.apply(set([web_at("10.0.0.1")]));
        }
        stage.brain.stop().await;
    }

    #[tokio::test]
    async fn a_brain_acts_for_any_node_and_takes_secrets_of_the_raw_cluster() {
        let stage = stage(&[]).await;
        let brain = stage.authority.sign("other-brain", Some("telaio:brain"), &[]);
        assert!(!stage.is_denied(&brain, "n5", &[Set::TlsSecrets]).await);
        let secrets = [Set::TlsSecrets.into()];
        let channel = stage.channel(Some(&brain)).await.unwrap();
        let sets = raw_over(channel, &secrets).await.unwrap();
        assert!(sets.contains(&Set::TlsSecrets.into()));
        let node = stage.authority.sign("n1", Some("telaio:ingress"), &[]);
        let channel = stage.channel(Some(&node)).await.unwrap();
        let status = raw_over(channel.clone(), &secrets).await.unwrap_err();
        assert_eq!(status.code(), Code::PermissionDenied, "{status}");
        assert!(!raw_over(channel, &[]).await.unwrap().contains(&Set::TlsSecrets.into()));
        stage.brain.stop().await;
    }

    #[tokio::test]
    async fn our_own_client_speaks_it_from_files() {
        let stage = stage(&[]).await;
        let credentials = stage.authority.sign("n1", None, &[]);
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            let path = dir.path().join(name);
            std::fs::write(&path, text).unwrap();
            path
        };
        let tls = ClientTls {
            ca: file("ca.pem", &stage.authority.pem),
            identity: Some((
                file("client.pem", &credentials.certificate),
                file("client.key", &credentials.key),
            )),
        };
        let options = BrainOptions { tls: Some(tls), ..BrainOptions::new(stage.url()) };
        let status = || Arc::new(SourceStatus::default());
        let mut peer = LocalClient::new(options.clone(), "n1", status());
        let has = replayed(soon("a state comes", peer.try_next()).await.unwrap());
        assert_eq!(has, in_process(&stage.store, "n1", Wants::default()).await);
        let mut other = LocalClient::new(options, "n2", status());
        assert!(soon("a refusal comes", other.try_next()).await.is_err());
        stage.brain.stop().await;
    }
}
