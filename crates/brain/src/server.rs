//! Serves KPNG's Local and Global API to many nodes.
//!
//! Each watcher is one task with one bounded queue: a peer that does not read fills its own queue,
//! then its own task waits, and after [`STALL_MAX`] it is cut off. Nobody else notices.

use std::collections::BTreeSet;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use telaio_api::proto::globalv1;
use telaio_api::proto::localv1::{self, OpItem, Set};
use telaio_api::{global, sets};
use telaio_model::Kind;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tonic::transport::server::ServerTlsConfig;
use tonic::{Request, Response, Status, Streaming};

use crate::identity::{Authorizer, Identity};
use crate::store::Store;
use crate::view::Wants;
use crate::watch::{Ended, GlobalWatch, LocalWatch};

/// How many operations may wait for one peer.
const QUEUE_MAX: usize = 128;
/// How long a peer may leave its queue full, or say nothing at the beginning, before it is cut off.
pub const STALL_MAX: Duration = Duration::from_mins(1);
/// How long a brain that stops waits for its peers to take note.
pub const STOP_MAX: Duration = Duration::from_secs(5);
/// How many watchers one brain takes.
pub const WATCHERS_MAX: usize = 20_000;
/// How often a silent peer is asked whether it is still there, and how long it may take to answer.
const KEEPALIVE: (Duration, Duration) = (Duration::from_secs(30), Duration::from_secs(20));

type Queue = mpsc::Sender<Result<OpItem, Status>>;
type OpStream = ReceiverStream<Result<OpItem, Status>>;

/// The API over a store.
#[derive(Debug, Clone)]
pub struct ApiServer {
    store: Arc<Store>,
    authorizer: Arc<Authorizer>,
    watchers: Arc<AtomicUsize>,
    stopping: watch::Sender<bool>,
}

/// Counts a watcher for as long as it lives.
struct WatcherGuard(Arc<AtomicUsize>);

impl Drop for WatcherGuard {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl ApiServer {
    /// An API over this store.
    pub fn new(store: Arc<Store>, authorizer: Authorizer) -> Self {
        Self {
            store,
            authorizer: Arc::new(authorizer),
            watchers: Arc::default(),
            stopping: watch::Sender::new(false),
        }
    }

    /// How many peers watch.
    pub fn watchers(&self) -> usize {
        self.watchers.load(Ordering::Relaxed)
    }

    /// Serves both APIs on a listener until `stop` is done; watchers are then told to go elsewhere,
    /// and after [`STOP_MAX`] those that do not listen are left alone.
    pub async fn serve(
        self,
        listener: TcpListener,
        tls: Option<ServerTlsConfig>,
        stop: impl Future<Output = ()>,
    ) -> Result<(), tonic::transport::Error> {
        let mut server = tonic::transport::Server::builder()
            .http2_keepalive_interval(Some(KEEPALIVE.0))
            .http2_keepalive_timeout(Some(KEEPALIVE.1))
            .tcp_nodelay(true);
        if let Some(tls) = tls {
            server = server.tls_config(tls)?;
        }
        let stopping = self.stopping.clone();
        let mut stopped = self.stopping.subscribe();
        let stop = async move {
            stop.await;
            // A watch never ends by itself, and the server waits for what is open.
            stopping.send_replace(true);
        };
        // Nor can it end while its peer reads nothing: what is sent last finds no room.
        let overdue = async move {
            drop(stopped.wait_for(|stopped| *stopped).await);
            tokio::time::sleep(STOP_MAX).await;
        };
        let served = server
            .add_service(localv1::sets_server::SetsServer::new(self.clone()))
            .add_service(globalv1::sets_server::SetsServer::new(self))
            .serve_with_incoming_shutdown(TcpListenerStream::new(listener), stop);
        tokio::select! {
            served = served => served,
            () = overdue => Ok(()),
        }
    }

    fn admit(&self) -> Result<WatcherGuard, Status> {
        let guard = WatcherGuard(Arc::clone(&self.watchers));
        if self.watchers.fetch_add(1, Ordering::Relaxed) >= WATCHERS_MAX {
            return Err(Status::resource_exhausted(format!(
                "this brain serves {WATCHERS_MAX} watchers already; run another one"
            )));
        }
        Ok(guard)
    }

    /// Runs one watcher in its own task. It ends when the peer goes, does wrong, or the brain stops.
    fn run_watcher<Work>(
        &self,
        work: impl FnOnce(Self, Queue) -> Work,
    ) -> Result<Response<OpStream>, Status>
    where
        Work: Future<Output = Result<(), Status>> + Send + 'static,
    {
        let guard = self.admit()?;
        let (queue, stream) = mpsc::channel(QUEUE_MAX);
        let mut stopping = self.stopping.subscribe();
        let work = work(self.clone(), queue.clone());
        tokio::spawn(async move {
            let _guard = guard;
            let ended = tokio::select! {
                ended = work => ended,
                () = queue.closed() => Ok(()),
                _ = stopping.wait_for(|stopping| *stopping) => {
                    Err(Status::unavailable("this brain stops; connect to another one"))
                }
            };
            if let Err(status) = ended {
                send(&queue, Err(status)).await;
            }
        });
        Ok(Response::new(ReceiverStream::new(stream)))
    }
}

fn identity<T>(request: &Request<T>) -> Result<Option<Identity>, Status> {
    match request.peer_certs() {
        Some(certificates) if !certificates.is_empty() => {
            Identity::from_certificate(&certificates[0]).map(Some)
        }
        _ => Ok(None),
    }
}

/// The kinds that a peer asks for; sets that we do not know are not an error, it may be newer.
fn wanted_kinds(wanted: impl Iterator<Item = Set>) -> BTreeSet<Kind> {
    wanted.filter_map(sets::kind_of).collect()
}

/// Whether any of them is for the eyes of an ingress only.
fn has_secrets(kinds: &BTreeSet<Kind>) -> bool {
    [Kind::TlsSecret, Kind::AuthSecret].iter().any(|kind| kinds.contains(kind))
}

fn wants(request: &localv1::WatchReq) -> Wants {
    Wants {
        serving_endpoints: request.sets().any(|set| set == Set::ServingEndpoints),
        all_services: request.sets().any(|set| set == Set::AllServices),
        kinds: wanted_kinds(request.sets()),
    }
}

/// Sends one operation; says whether the peer still takes them.
async fn send(queue: &Queue, item: Result<OpItem, Status>) -> bool {
    match queue.try_send(item) {
        Ok(()) => true,
        Err(mpsc::error::TrySendError::Closed(_)) => false,
        Err(mpsc::error::TrySendError::Full(item)) => {
            matches!(tokio::time::timeout(STALL_MAX, queue.send(item)).await, Ok(Ok(())))
        }
    }
}

async fn send_all(
    queue: &Queue,
    items: impl Iterator<Item = Result<OpItem, telaio_api::EncodeError>>,
) -> bool {
    for item in items {
        match item {
            Ok(item) => {
                if !send(queue, Ok(item)).await {
                    return false;
                }
            }
            // One object that cannot be written must not cost the peer all the others.
            Err(error) => tracing::warn!(%error, "an object is left out"),
        }
    }
    true
}

/// What a peer asks for; one that opens a watch and says nothing does not keep its place.
async fn first_request<Request>(
    inbound: &mut Streaming<Request>,
) -> Result<Option<Request>, Status> {
    match tokio::time::timeout(STALL_MAX, inbound.message()).await {
        Ok(request) => request,
        Err(_) => Err(Status::deadline_exceeded("no request came; send one after opening a watch")),
    }
}

fn ended(_: Ended) -> Status {
    Status::unavailable("the brain stops")
}

impl ApiServer {
    async fn serve_local(
        self,
        mut inbound: Streaming<localv1::WatchReq>,
        peer: Option<Identity>,
        queue: Queue,
    ) -> Result<(), Status> {
        let Some(first) = first_request(&mut inbound).await? else { return Ok(()) };
        let node = first.node_name.as_str();
        if node.is_empty() {
            return Err(Status::invalid_argument("WatchReq.NodeName is empty; name the node"));
        }
        let wants = wants(&first);
        let secrets = has_secrets(&wants.kinds);
        self.authorizer.check_local(peer.as_ref(), node, secrets)?;
        tracing::debug!(node, "a node watches");
        let mut watch = LocalWatch::new(&self.store, node, wants);
        loop {
            let diff = watch.next().await.map_err(ended)?;
            if !send_all(&queue, diff.into_wire()).await {
                return Ok(());
            }
            match inbound.message().await? {
                None => return Ok(()),
                Some(next) if next.node_name == node => {}
                Some(_) => {
                    return Err(Status::invalid_argument(
                        "WatchReq.NodeName changed within a watch; open another one",
                    ));
                }
            }
        }
    }

    async fn serve_global(
        self,
        mut inbound: Streaming<globalv1::GlobalWatchReq>,
        peer: Option<Identity>,
        queue: Queue,
    ) -> Result<(), Status> {
        let Some(first) = first_request(&mut inbound).await? else { return Ok(()) };
        let kinds = wanted_kinds(first.sets());
        self.authorizer.check_global(peer.as_ref(), has_secrets(&kinds))?;
        let mut watch = GlobalWatch::new(&self.store, kinds);
        loop {
            let diff = watch.next().await.map_err(ended)?;
            if !send_all(&queue, diff.map(|op| global::encode_op(&op))).await
                || inbound.message().await?.is_none()
            {
                return Ok(());
            }
        }
    }
}

#[tonic::async_trait]
impl localv1::sets_server::Sets for ApiServer {
    type WatchStream = OpStream;

    async fn watch(
        &self,
        request: Request<Streaming<localv1::WatchReq>>,
    ) -> Result<Response<OpStream>, Status> {
        let peer = identity(&request)?;
        self.run_watcher(|server, queue| server.serve_local(request.into_inner(), peer, queue))
    }
}

#[tonic::async_trait]
impl globalv1::sets_server::Sets for ApiServer {
    type WatchStream = OpStream;

    async fn watch(
        &self,
        request: Request<Streaming<globalv1::GlobalWatchReq>>,
    ) -> Result<Response<OpStream>, Status> {
        let peer = identity(&request)?;
        self.run_watcher(|server, queue| server.serve_global(request.into_inner(), peer, queue))
    }
}
