//! From a source to a store: the cluster's state, kept up to date.
//!
//! [`Supply`] starts the source that `--source` names and applies what it sends to a
//! [`Store`]. Everything else reads the store.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use telaio_brain::Store;
use telaio_source::brain::{BrainOptions, GlobalClient};
use telaio_source::kube::{KubeOptions, KubeSource};
use telaio_source::{BATCH_QUEUE_MAX, SourceSpec, Status};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::cli::{SourceArgs, TlsArgs};
use crate::exit::CommandError;
use crate::plane::{self, Plane};

/// How often the store learns the time, for overrides that end.
const CLOCK_PERIOD: Duration = Duration::from_secs(1);

/// The environment variable that a pod of a cluster has.
const IN_CLUSTER: &str = "KUBERNETES_SERVICE_HOST";

impl SourceArgs {
    /// The source that was named, or the cluster that we are a pod of.
    pub(crate) fn spec(&self) -> Result<SourceSpec, CommandError> {
        match &self.source {
            Some(spec) => Ok(spec.clone()),
            None if std::env::var_os(IN_CLUSTER).is_some() => Ok(SourceSpec::Kube(None)),
            None => Err(CommandError::bad_input(
                "name a source: --source kube[:KUBECONFIG], dir:PATH or brain:URL (outside of a \
                 cluster there is no default)",
            )),
        }
    }
}

/// What sources need to know besides where they read.
#[derive(Debug, Clone)]
pub(crate) struct SupplyOptions {
    pub(crate) source: SourceArgs,
    /// For which planes.
    pub(crate) planes: Vec<Plane>,
    pub(crate) tls: TlsArgs,
    /// Where a directory source remembers the addresses that it gave; `None` remembers nothing.
    pub(crate) state_dir: Option<PathBuf>,
}

/// The cluster's state, kept up to date for as long as this lives.
#[derive(Debug)]
pub(crate) struct Supply {
    /// The state.
    pub(crate) store: Arc<Store>,
    /// How the source is doing.
    pub(crate) status: Arc<Status>,
    /// Ends what it holds when it is dropped.
    tasks: JoinSet<()>,
}

impl Supply {
    /// Starts the source. Must be called within the runtime.
    pub(crate) async fn start(
        spec: &SourceSpec,
        options: &SupplyOptions,
    ) -> Result<Self, CommandError> {
        let store = Store::new();
        let status = Arc::new(Status::default());
        let mut tasks = JoinSet::new();
        let (sender, batches) = mpsc::channel(BATCH_QUEUE_MAX);
        match spec {
            SourceSpec::Brain(url) => {
                let brain = brain_options(url, &options.tls)?;
                tasks.spawn(GlobalClient::new(brain, Arc::clone(&status)).run(sender));
            }
            SourceSpec::Kube(kubeconfig) => {
                let kube = KubeOptions {
                    kinds: plane::kinds(&options.planes),
                    headless: options.planes.contains(&Plane::Ingress),
                    ..KubeOptions::default()
                };
                let source = KubeSource::connect(kubeconfig.clone(), kube, Arc::clone(&status))
                    .await
                    .map_err(|error| CommandError::BadInput(error.into()))?;
                tasks.spawn(source.run(sender));
            }
            SourceSpec::Dir(_) => unreachable!(),
        }
        tasks.spawn(apply_all(Arc::clone(&store), batches));
        Ok(Self { store, status, tasks })
    }

    /// Ends when the source has ended, which it never should while we take its batches. Without a
    /// supply, never. Cancel-safe.
    pub(crate) async fn ended(supply: Option<&mut Self>) {
        match supply {
            Some(supply) => drop(supply.tasks.join_next().await),
            None => std::future::pending().await,
        }
    }

    /// Waits for the first full state.
    pub(crate) async fn synced(&self, time_max: Duration) -> Result<(), CommandError> {
        let mut revisions = self.store.subscribe();
        let complete = revisions.wait_for(|_| self.store.is_synced());
        match tokio::time::timeout(time_max, complete).await {
            Ok(_) => Ok(()),
            Err(_) => Err(CommandError::failed(self.no_state(time_max))),
        }
    }

    fn no_state(&self, waited: Duration) -> String {
        let mut text = format!("the source gave no full state within {waited:?}");
        for problem in self.status.problems().iter().take(5) {
            text.push_str("\n  ");
            text.push_str(&problem.to_string());
        }
        text
    }
}

/// How to reach a brain, with what our own service proxy asks of it.
pub(crate) fn brain_options(url: &str, tls: &TlsArgs) -> Result<BrainOptions, CommandError> {
    Ok(BrainOptions { tls: tls.client(url)?, ..BrainOptions::new(url) })
}

async fn apply_all(store: Arc<Store>, mut batches: mpsc::Receiver<telaio_source::Batch>) {
    store.set_time(now_s());
    let mut clock = tokio::time::interval(CLOCK_PERIOD);
    clock.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
    loop {
        tokio::select! {
            batch = batches.recv() => match batch {
                Some(batch) => drop(store.apply(batch)),
                None => return,
            },
            _ = clock.tick() => drop(store.set_time(now_s())),
        }
    }
}

fn now_s() -> i64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}
