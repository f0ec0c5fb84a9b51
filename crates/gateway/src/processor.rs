//! The task that turns events into changes of the table.

use std::sync::Arc;

use telaio_http_proxy::table::TableChange;
use tokio::sync::mpsc;

use crate::gateway::{Commit, Gateway, GatewaySettings};
use crate::listener::IngressEvent;

/// Who takes what the gateway works out.
pub trait TableSink: Send {
    /// Takes a change of the table. The first one, even if it is empty, is the whole first state.
    fn apply(&mut self, change: TableChange);

    /// Takes what else a commit tells: warnings, and which Ingresses are ours.
    fn tell(&mut self, _commit: &Commit) {}

    /// Takes note of an event beside the table: the nodes' addresses.
    fn note(&mut self, _event: &IngressEvent) {}
}

/// Takes events and gives the table's changes to a sink.
#[derive(Debug)]
pub struct IngressProcessor<S> {
    gateway: Gateway,
    events: mpsc::Receiver<IngressEvent>,
    sink: S,
}

impl<S: TableSink> IngressProcessor<S> {
    /// A processor of these events.
    pub fn new(settings: GatewaySettings, events: mpsc::Receiver<IngressEvent>, sink: S) -> Self {
        Self { gateway: Gateway::new(settings), events, sink }
    }

    /// Processes events until there will be no more. What has come by the time that the state is
    /// consistent goes into the table at once and together.
    pub async fn process_events(mut self) {
        while let Some(event) = self.events.recv().await {
            if event != IngressEvent::Synced {
                self.sink.note(&event);
                self.gateway.take(event);
                continue;
            }
            let mut commit = self.gateway.commit();
            let table = std::mem::take(&mut commit.table);
            self.sink.apply(table);
            for warning in commit.warnings.values().flatten() {
                tracing::warn!(
                    ingress = %warning.ingress,
                    reason = warning.reason.as_str(),
                    "{}", warning.message
                );
            }
            self.sink.tell(&commit);
        }
    }
}

impl<S: TableSink + ?Sized> TableSink for Box<S> {
    fn apply(&mut self, change: TableChange) {
        (**self).apply(change);
    }

    fn tell(&mut self, commit: &Commit) {
        (**self).tell(commit);
    }

    fn note(&mut self, event: &IngressEvent) {
        (**self).note(event);
    }
}

/// For tests and for those who want every change: a channel.
impl TableSink for mpsc::UnboundedSender<Arc<TableChange>> {
    fn apply(&mut self, change: TableChange) {
        // Nobody may be listening any more.
        let _ = self.send(Arc::new(change));
    }
}
