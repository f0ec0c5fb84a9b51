//! What this node tells others of itself, in the form that flannel's nodes understand: so a cluster can move over node by node.
//!
//! The syncer knows what should stand in the Node object and sees what does; a task of the runtime writes it. What it writes, and by
//! which kubeconfig, is noted in the state directory first, so that `telaio cleanup` can take it back.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use telaio_source::kube::{Client, annotate_node, withdraw_annotations};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// The pauses between attempts.
const PAUSE_FIRST: Duration = Duration::from_millis(500);
const PAUSE_MAX: Duration = Duration::from_secs(30);

/// Below the state directory: what was written, and where.
const NOTE: &str = "announced.json";
/// How long `telaio cleanup` waits for the API server at most.
const WITHDRAWAL_TIME_MAX: Duration = Duration::from_secs(20);

/// What was written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Note {
    node: String,
    /// The file that the client was made from; without, the cluster that the agent runs in.
    kubeconfig: Option<PathBuf>,
    annotations: Annotations,
}

/// Who is told, and by whom.
pub(crate) struct Told {
    /// The API server.
    pub(crate) client: Client,
    /// The file that the client was made from.
    pub(crate) kubeconfig: Option<PathBuf>,
}

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
    pub(super) fn start(told: Told, node: String, state_dir: &Path) -> Self {
        let (wanted, news) = watch::channel(Annotations::new());
        let note = Note { node, kubeconfig: told.kubeconfig, annotations: Annotations::new() };
        let task = tokio::spawn(write(told.client, note, state_dir.join(NOTE), news));
        Self { wanted, task }
    }

    /// This should stand there, and does not.
    pub(super) fn tell(&self, wanted: &Annotations) {
        self.wanted.send_replace(wanted.clone());
    }
}

async fn write(
    client: Client,
    mut note: Note,
    noted_at: PathBuf,
    mut told: watch::Receiver<Annotations>,
) {
    while told.changed().await.is_ok() {
        let mut pause = PAUSE_FIRST;
        loop {
            let wanted = told.borrow_and_update().clone();
            note.annotations.clone_from(&wanted);
            if let Err(error) = save(&note, &noted_at) {
                tracing::warn!(%error, file = %noted_at.display(), "cannot note what cleanup has to take back");
            }
            let node = note.node.as_str();
            match annotate_node(&client, node, &wanted).await {
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

fn save(note: &Note, at: &Path) -> std::io::Result<()> {
    if let Some(dir) = at.parent() {
        fs::create_dir_all(dir)?;
    }
    let new = at.with_extension("new");
    fs::write(&new, serde_json::to_vec(note)?)?;
    fs::rename(new, at)
}

/// Takes back what this node told others, where that can be: the API server may be gone with the cluster. Tells what it took
/// back. Must not be called within a runtime.
pub(super) fn withdraw(state_dir: &Path) -> Result<Vec<String>, String> {
    let at = state_dir.join(NOTE);
    let text = match fs::read(&at) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        text => text.map_err(|error| format!("cannot read {}: {error}", at.display()))?,
    };
    let note: Note = serde_json::from_slice(&text)
        .map_err(|error| format!("{}: {error}; remove it", at.display()))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| format!("cannot start a runtime: {error}"))?;
    let done = runtime.block_on(async {
        let work = async {
            let client = telaio_source::kube::client(note.kubeconfig.clone()).await;
            let client = client.map_err(|error| error.to_string())?;
            withdraw_annotations(&client, &note.node, &note.annotations).await
        };
        let done = tokio::time::timeout(WITHDRAWAL_TIME_MAX, work).await;
        done.unwrap_or_else(|_| Err("no answer in time".to_owned()))
    });
    if let Err(error) = done {
        let names: Vec<String> = note.annotations.keys().map(|name| format!("{name}-")).collect();
        return Err(format!(
            "the annotations of node {} stay: {error}; remove them with: kubectl annotate node {} {}, and then {}",
            note.node,
            note.node,
            names.join(" "),
            at.display()
        ));
    }
    fs::remove_file(&at).map_err(|error| format!("cannot remove {}: {error}", at.display()))?;
    Ok(vec![format!("this node's annotations of node {}", note.node)])
}
