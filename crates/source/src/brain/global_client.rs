//! The raw cluster from a brain, sent on as batches.

use std::sync::Arc;

use telaio_api::global::{self, GlobalOp};
use telaio_api::proto::globalv1::{GlobalWatchReq, sets_client::SetsClient};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

use super::assemble::Assembler;
use super::connect::{BrainOptions, ConnectError, connect};
use super::taking::Taking;
use crate::backoff::Backoff;
use crate::{Batch, Status};

/// Follows the raw cluster at a brain, for ever.
pub struct GlobalClient {
    options: BrainOptions,
    status: Arc<Status>,
    assembler: Assembler,
    taking: Taking,
}

impl GlobalClient {
    /// A client that connects when it runs.
    pub fn new(options: BrainOptions, status: Arc<Status>) -> Self {
        let taking = Taking::new(&options.url, Arc::clone(&status));
        Self { options, status, assembler: Assembler::default(), taking }
    }

    /// Sends batches until nobody takes them any more.
    pub async fn run(mut self, batches: mpsc::Sender<Batch>) {
        let mut backoff = self.options.backoff();
        while !batches.is_closed() {
            let Err(error) = self.follow(&batches, &mut backoff).await else { return };
            self.status.lost();
            let pause = backoff.next_wait();
            tracing::warn!(%error, ?pause, "no contact with the brain; trying again");
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = batches.closed() => return,
            }
        }
    }

    /// The whole state, once; for commands that run once.
    pub async fn load_once(mut self) -> Result<Batch, ConnectError> {
        let (batches, mut received) = mpsc::channel(1);
        let mut backoff = self.options.backoff();
        let url = self.options.url.clone();
        tokio::select! {
            ended = self.follow(&batches, &mut backoff) => {
                ended.and(Err(ConnectError::Ended { url }))
            }
            batch = received.recv() => batch.ok_or(ConnectError::Ended { url }),
        }
    }

    async fn follow(
        &mut self,
        batches: &mpsc::Sender<Batch>,
        backoff: &mut Backoff,
    ) -> Result<(), ConnectError> {
        let url = self.options.url.clone();
        let refused = |status| ConnectError::Refused { url: url.clone(), status: Box::new(status) };
        let mut client = SetsClient::new(connect(&self.options).await?);
        let (requests, outbound) = mpsc::channel(1);
        let request = GlobalWatchReq { sets: self.options.set_numbers() };
        let (_, operations) = tokio::join!(
            requests.send(request.clone()),
            client.watch(ReceiverStream::new(outbound))
        );
        let mut operations = operations.map_err(refused)?.into_inner();
        self.taking.restart();
        loop {
            let item = tokio::select! {
                item = operations.message() => item.map_err(refused)?,
                () = batches.closed() => return Ok(()),
            };
            let item = item.ok_or_else(|| ConnectError::Ended { url: url.clone() })?;
            match self.taking.take(item, global::decode_op)? {
                Some(GlobalOp::Sync) => {
                    self.taking.complete();
                    let changes = self.assembler.take_changes();
                    self.status.touch();
                    self.status.set_synced();
                    backoff.reset();
                    if batches.send(Batch { changes, synced: true }).await.is_err() {
                        return Ok(());
                    }
                    if requests.send(request.clone()).await.is_err() {
                        return Err(ConnectError::Ended { url });
                    }
                }
                Some(op) => self.assembler.apply(op),
                None => {}
            }
        }
    }
}
