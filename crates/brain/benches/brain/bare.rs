//! The peer of the brain: the same wire and the same message, with no brain behind it.
//!
//! It keeps no state and makes no view; on each change it sends one ready operation and `Sync` to
//! every watcher. What the brain costs above it is the brain's own; what it costs is the transport's.

use std::sync::Arc;

use telaio_api::local;
use telaio_api::proto::localv1::{OpItem, WatchReq, sets_server::Sets};
use telaio_api::sets::{reset_item, sync_item};
use telaio_model::{
    Conditions, EndpointRef, LocalEndpoint, LocalEndpointPort, ObjectKey, Op, Scopes,
};
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

/// The server; a change is a new number.
pub(crate) struct Bare(pub(crate) watch::Sender<usize>);

/// The operation that every change sends, as large as the brain's.
fn operation() -> Result<OpItem, Status> {
    let scopes = Scopes { internal: true, external: false, cluster: true, local: false };
    let endpoint = LocalEndpoint {
        key: EndpointRef {
            service: ObjectKey::new("ns-7", "service-1007"),
            id: "service-1007-pod-0".into(),
        },
        pod: Some("service-1007-pod-0".into()),
        hostname: None,
        ips: vec!["11.0.126.1".parse().map_err(|_| Status::internal("bad address"))?],
        local: false,
        ports: vec![LocalEndpointPort { name: "http".into(), port: 8080, scopes }],
        unlisted_ports: None,
        conditions: Conditions::READY,
        weight: 1,
        node: Some("node-7".into()),
        zone: Some("b".into()),
    };
    local::encode_op(&Op::SetEndpoint(Arc::new(endpoint)))
        .map_err(|error| Status::internal(error.to_string()))
}

#[tonic::async_trait]
impl Sets for Bare {
    type WatchStream = ReceiverStream<Result<OpItem, Status>>;

    async fn watch(
        &self,
        request: Request<Streaming<WatchReq>>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let mut inbound = request.into_inner();
        let mut changes = self.0.subscribe();
        let (queue, stream) = mpsc::channel(128);
        let operation = operation()?;
        tokio::spawn(async move {
            let mut first = vec![reset_item()];
            while let Ok(Some(_)) = inbound.message().await {
                if first.is_empty() && changes.changed().await.is_err() {
                    return;
                }
                let ops = if first.is_empty() { vec![operation.clone()] } else { first };
                first = Vec::new();
                for item in ops.into_iter().chain([sync_item()]) {
                    if queue.send(Ok(item)).await.is_err() {
                        return;
                    }
                }
            }
        });
        Ok(Response::new(ReceiverStream::new(stream)))
    }
}
