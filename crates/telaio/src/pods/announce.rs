//! What this node tells others of itself, in the form that flannel's nodes understand: so a cluster can move over node by node.
//!
//! The syncer knows what should stand in the Node object and sees what does; a task of the runtime writes it.

use std::collections::BTreeMap;
use std::time::Duration;

use telaio_source::kube::{Client, annotate_node};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// The pauses between attempts.
const PAUSE_FIRST: Duration = Duration::from_millis(500);
const PAUSE_MAX: Duration = Duration::from_secs(30);

/// Annotations by name.
pub(super) type Annotations = BTreeMap<String, String>;

/// The running task; ended when this is dropped. What was written stays.
#[derive(Debug)]
pub(super) struct Announcer {
    wanted: watch::Sender<Annotations>,
    task: JoinHandle<()>,
}

impl Drop for Announcer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Announcer {
    /// Begins. Must be called within the runtime.
    pub(super) fn start(client: Client, node: String) -> Self {
        let (wanted, told) = watch::channel(Annotations::new());
        Self { wanted, task: tokio::spawn(write(client, node, told)) }
    }

    /// This should stand there, and does not.
    pub(super) fn tell(&self, wanted: &Annotations) {
        self.wanted.send_replace(wanted.clone());
    }
}

async fn write(client: Client, node: String, mut told: watch::Receiver<Annotations>) {
    while told.changed().await.is_ok() {
        let mut pause = PAUSE_FIRST;
        loop {
            let wanted = told.borrow_and_update().clone();
            match annotate_node(&client, &node, &wanted).await {
                Ok(()) => {
                    tracing::info!(node, "told other nodes how this one is reached");
                    break;
                }
                Err(error) => tracing::warn!(
                    error,
                    "cannot write this node's annotations; flannel's nodes do not find it"
                ),
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }
}
