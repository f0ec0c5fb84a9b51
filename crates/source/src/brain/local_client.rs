//! One node's view from a brain.

use std::sync::Arc;

use telaio_api::local;
use telaio_api::proto::localv1::{OpItem, WatchReq, sets_client::SetsClient};
use telaio_model::Op;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;

use super::connect::{BrainOptions, ConnectError, connect};
use super::taking::Taking;
use crate::Status;
use crate::backoff::Backoff;

/// An open watch.
struct Connection {
    requests: mpsc::Sender<WatchReq>,
    operations: Streaming<OpItem>,
}

/// Follows one node's view at a brain, for ever.
pub struct LocalClient {
    options: BrainOptions,
    node: Arc<str>,
    status: Arc<Status>,
    connection: Option<Connection>,
    backoff: Backoff,
    taking: Taking,
}

impl LocalClient {
    /// A client for this node; it connects when the first difference is asked for.
    pub fn new(options: BrainOptions, node: impl Into<Arc<str>>, status: Arc<Status>) -> Self {
        let node = node.into();
        let backoff = options.backoff();
        let taking = Taking::new(&options.url, Arc::clone(&status));
        Self { options, node, status, connection: None, backoff, taking }
    }

    /// The next complete difference, ended by `Sync`; the first after each connect begins with
    /// `Reset`. Waits as long as it takes, across lost connections.
    pub async fn next(&mut self) -> Vec<Op> {
        loop {
            match self.try_next().await {
                Ok(ops) => return ops,
                Err(error) => {
                    let pause = self.backoff.next_wait();
                    tracing::warn!(%error, ?pause, "no contact with the brain; trying again");
                    tokio::time::sleep(pause).await;
                }
            }
        }
    }

    /// As [`next`](Self::next), but gives up at the first error; for commands that run once.
    pub async fn try_next(&mut self) -> Result<Vec<Op>, ConnectError> {
        let result = self.receive().await;
        if result.is_err() {
            self.connection = None;
            self.status.lost();
        } else {
            self.backoff.reset();
            self.status.touch();
            self.status.set_synced();
        }
        result
    }

    async fn receive(&mut self) -> Result<Vec<Op>, ConnectError> {
        let url = &self.options.url;
        let request =
            WatchReq { node_name: self.node.to_string(), sets: self.options.set_numbers() };
        // Taken out while it is used: whatever ends this early ends the connection too, and half a
        // difference is never mistaken for the beginning of the next.
        let mut connection = match self.connection.take() {
            Some(connection) if connection.requests.send(request.clone()).await.is_ok() => {
                connection
            }
            Some(_) => return Err(ConnectError::Ended { url: url.clone() }),
            None => {
                self.taking.restart();
                Self::open(&self.options, request).await?
            }
        };
        let ops = Self::collect(url, &mut connection, &mut self.taking).await?;
        self.connection = Some(connection);
        Ok(ops)
    }

    async fn open(options: &BrainOptions, request: WatchReq) -> Result<Connection, ConnectError> {
        let mut client = SetsClient::new(connect(options).await?);
        let (requests, outbound) = mpsc::channel(1);
        // The server may wait for the first request before it answers the call.
        let (_, operations) =
            tokio::join!(requests.send(request), client.watch(ReceiverStream::new(outbound)));
        let operations = operations.map_err(|status| ConnectError::Refused {
            url: options.url.clone(),
            status: Box::new(status),
        })?;
        Ok(Connection { requests, operations: operations.into_inner() })
    }

    async fn collect(
        url: &str,
        connection: &mut Connection,
        taking: &mut Taking,
    ) -> Result<Vec<Op>, ConnectError> {
        let mut ops = Vec::new();
        loop {
            let item = connection.operations.message().await.map_err(|status| {
                ConnectError::Refused { url: url.to_owned(), status: Box::new(status) }
            })?;
            let item = item.ok_or_else(|| ConnectError::Ended { url: url.to_owned() })?;
            let Some(op) = taking.take(item, local::decode_op)? else { continue };
            let complete = op == Op::Sync;
            ops.push(op);
            if complete {
                taking.complete();
                return Ok(ops);
            }
        }
    }
}
