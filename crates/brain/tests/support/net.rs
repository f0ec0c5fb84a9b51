//! A brain on loopback, and clients of it.

use std::collections::BTreeSet;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use telaio_api::local;
use telaio_api::proto::globalv1;
use telaio_api::proto::localv1::sets_client::SetsClient;
use telaio_api::proto::localv1::{OpItem, Set, WatchReq, op_item};
use telaio_brain::{ApiServer, Authorizer, LocalWatch, Store, Wants};
use telaio_model::{Meta, Object, Op, TlsSecret};
use telaio_source::brain::BrainOptions;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::{Channel, ServerTlsConfig};
use tonic::{Status, Streaming};

use super::follower::Follower;
use super::{key, node, set, web, web_at};

/// Awaits what must come; the bound only turns a hang into a failure.
pub async fn soon<T>(what: &str, work: impl Future<Output = T>) -> T {
    let done = tokio::time::timeout(Duration::from_mins(1), work).await;
    done.unwrap_or_else(|_| panic!("{what}: not done in a minute"))
}

/// A brain that serves a store.
pub struct Brain {
    /// Where.
    pub address: SocketAddr,
    /// The server itself, to ask it how many watch.
    pub server: ApiServer,
    stop: Option<oneshot::Sender<()>>,
    served: JoinHandle<Result<(), tonic::transport::Error>>,
}

impl Brain {
    /// Plain, on any port.
    pub async fn start(store: &Arc<Store>) -> Self {
        Self::start_with(store, None, Authorizer::default(), None).await
    }

    /// On a given address, with or without TLS.
    pub async fn start_with(
        store: &Arc<Store>,
        address: Option<SocketAddr>,
        authorizer: Authorizer,
        tls: Option<ServerTlsConfig>,
    ) -> Self {
        let address = address.unwrap_or_else(|| "127.0.0.1:0".parse().unwrap());
        let listener = TcpListener::bind(address).await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = ApiServer::new(Arc::clone(store), authorizer);
        let (stop, stopped) = oneshot::channel();
        let stopped = async { _ = stopped.await };
        let served = tokio::spawn(server.clone().serve(listener, tls, stopped));
        Self { address, server, stop: Some(stop), served }
    }

    /// Its URL.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Options of a client that does not wait long between attempts.
    pub fn options(&self, sets: &[Set]) -> BrainOptions {
        BrainOptions {
            sets: sets.to_vec(),
            backoff_max: Duration::from_millis(100),
            ..BrainOptions::new(self.url())
        }
    }

    /// Asks it to stop, without waiting.
    pub fn ask_to_stop(&mut self) {
        _ = self.stop.take().unwrap().send(());
    }

    /// Waits until it has stopped.
    pub async fn stopped(self) {
        soon("the brain stops", self.served).await.unwrap().unwrap();
    }

    /// Stops it.
    pub async fn stop(mut self) {
        self.ask_to_stop();
        self.stopped().await;
    }
}

/// A client as KPNG's is: it asks, and reads what comes.
pub struct RawClient {
    /// What it asks by.
    pub requests: mpsc::Sender<WatchReq>,
    /// What it gets.
    pub operations: Streaming<OpItem>,
}

/// A request.
pub fn request(node: &str, sets: &[i32]) -> WatchReq {
    WatchReq { node_name: node.into(), sets: sets.to_vec() }
}

impl RawClient {
    /// Connects without TLS and asks once.
    pub async fn connect(brain: &Brain, first: WatchReq) -> Result<Self, Status> {
        let channel = Channel::from_shared(brain.url()).unwrap().connect().await.unwrap();
        Self::over(channel, first).await
    }

    /// Asks once over a channel.
    pub async fn over(channel: Channel, first: WatchReq) -> Result<Self, Status> {
        let (requests, outbound) = mpsc::channel(4);
        requests.send(first).await.unwrap();
        let mut client = SetsClient::new(channel);
        let operations = client.watch(ReceiverStream::new(outbound)).await?.into_inner();
        Ok(Self { requests, operations })
    }

    /// Asks again.
    pub async fn ask(&self, request: WatchReq) {
        self.requests.send(request).await.unwrap();
    }

    /// The next message; a stream that ends is an error too.
    pub async fn message(&mut self) -> Result<OpItem, Status> {
        let message = soon("a message comes", self.operations.message()).await?;
        message.ok_or_else(|| Status::cancelled("the stream has ended"))
    }

    /// Everything up to the next `Sync`, as operations.
    pub async fn difference(&mut self) -> Result<Vec<Op>, Status> {
        let mut ops = Vec::new();
        loop {
            let op = local::decode_op(self.message().await?).unwrap().unwrap();
            let is_last = op == Op::Sync;
            ops.push(op);
            if is_last {
                return Ok(ops);
            }
        }
    }
}

/// What somebody in the same process has who begins now.
pub async fn in_process(store: &Arc<Store>, node: &str, wants: Wants) -> Follower {
    let mut watch = LocalWatch::new(store, node, wants);
    let mut follower = Follower::default();
    follower.replay(watch.next().await.unwrap());
    follower
}

/// What a set of the wire asks for.
pub fn wants(sets: &[Set]) -> Wants {
    Wants {
        serving_endpoints: sets.contains(&Set::ServingEndpoints),
        all_services: sets.contains(&Set::AllServices),
        kinds: sets.iter().filter_map(|it| telaio_api::sets::kind_of(*it)).collect::<BTreeSet<_>>(),
    }
}

/// A store of one service with one endpoint.
pub fn small_store() -> Arc<Store> {
    let store = Store::new();
    store.apply(set([web().into(), web_at("10.0.0.1"), node("n1", Some("z1")).into()]));
    store
}

/// A certificate's secret.
pub fn secret() -> Object {
    TlsSecret {
        meta: Meta::named(key("tls")),
        certificate: Arc::from(&b"certificate"[..]),
        private_key: Arc::from(&b"key"[..]),
        authority: None,
    }
    .into()
}

/// Whether an operation gives it away.
pub fn is_secret(op: &Op) -> bool {
    matches!(op, Op::SetObject(Object::TlsSecret(_)))
}

/// What a first difference makes.
pub fn replayed(ops: Vec<Op>) -> Follower {
    let mut follower = Follower::default();
    follower.replay(ops);
    follower
}

/// What becomes of a first request to the Global API: the sets that came.
pub async fn raw_over(
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
