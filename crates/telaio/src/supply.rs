//! From a source to a store: the cluster's state, kept up to date.
//!
//! [`Supply`] starts the source that `--source` names and applies what it sends to a
//! [`Store`]. Everything else reads the store.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use ipnet::IpNet;
use telaio_api::proto::localv1::Set;
use telaio_api::sets;
use telaio_brain::Store;
use telaio_source::brain::{BrainOptions, GlobalClient};
use telaio_source::dir::{DirOptions, DirSource};
use telaio_source::kube::{KubeOptions, KubeSource};
use telaio_source::{BATCH_QUEUE_MAX, SourceSpec, Status};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::cli::{SourceArgs, TlsArgs};
use crate::exit::CommandError;
use crate::feeder;
use crate::plane::{self, Plane};
use crate::state_dir::{Part, StateDir};
use crate::triggers::Triggers;

/// How often the store learns the time, for overrides that end.
const CLOCK_PERIOD: Duration = Duration::from_secs(1);

/// The environment variable that a pod of a cluster has.
const IN_CLUSTER: &str = "KUBERNETES_SERVICE_HOST";

impl SourceArgs {
    /// The source that was named, or the cluster that we are a pod of. Refuses settings that do not
    /// go together.
    pub(crate) fn spec(&self) -> Result<SourceSpec, CommandError> {
        self.check_cidrs()?;
        match (&self.source, &self.kubeconfig) {
            (Some(spec), _) => Ok(spec.clone()),
            (None, Some(path)) => Ok(SourceSpec::Kube(Some(path.clone()))),
            (None, None) if std::env::var_os(IN_CLUSTER).is_some() => Ok(SourceSpec::Kube(None)),
            (None, None) => Err(CommandError::bad_input(
                "name a source: --source kube[:KUBECONFIG], dir:PATH or brain:URL (outside of a \
                 cluster there is no default)",
            )),
        }
    }

    fn check_cidrs(&self) -> Result<(), CommandError> {
        for (i, one) in self.service_cidr.iter().enumerate() {
            let overlaps = |other: &&IpNet| one.contains(*other) || other.contains(one);
            if let Some(other) = self.service_cidr[..i].iter().find(overlaps) {
                return Err(CommandError::bad_input(format!(
                    "--service-cidr: {other} and {one} overlap; give networks that have no address \
                     in common"
                )));
            }
        }
        Ok(())
    }
}

/// Refuses a directory source that cannot be looked at, for commands that run once: one that goes on
/// waits for it.
pub(crate) fn check_readable(spec: &SourceSpec) -> Result<(), CommandError> {
    let SourceSpec::Dir(path) = spec else { return Ok(()) };
    match std::fs::metadata(path) {
        Ok(_) => Ok(()),
        Err(error) => Err(CommandError::bad_input(format!("{spec} cannot be read: {error}"))),
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
    /// The state directory is somebody else's: it is read and never written.
    pub(crate) state_read_only: bool,
}

impl SupplyOptions {
    /// Two sources that write one list would give one address twice.
    fn lock_allocations(&self, spec: &SourceSpec) -> Result<Option<StateDir>, CommandError> {
        match (spec, &self.state_dir) {
            (SourceSpec::Dir(_), Some(path)) if !self.state_read_only => {
                Ok(Some(StateDir::lock(path, Part::Allocations)?))
            }
            _ => Ok(None),
        }
    }

    fn dir(&self, path: &Path, status: &Arc<Status>) -> DirSource {
        let ports = self.source.node_port_range;
        let options = DirOptions {
            service_cidrs: self.source.service_cidr.clone(),
            node_port_range: ports.first..=ports.last,
            state_dir: self.state_dir.clone(),
            state_read_only: self.state_read_only,
            ..DirOptions::default()
        };
        DirSource::new(path, options, Arc::clone(status))
    }

    async fn kube(
        &self,
        kubeconfig: Option<PathBuf>,
        status: &Arc<Status>,
        options: KubeOptions,
    ) -> Result<KubeSource, CommandError> {
        let options = KubeOptions {
            kinds: plane::kinds(&self.planes),
            headless: self.planes.contains(&Plane::Ingress),
            overrides_namespace: self.source.overrides_namespace.clone(),
            ..options
        };
        KubeSource::connect(kubeconfig, options, Arc::clone(status))
            .await
            .map_err(|error| CommandError::BadInput(error.into()))
    }
}

/// The cluster's state, kept up to date for as long as this lives.
#[derive(Debug)]
pub(crate) struct Supply {
    /// The state.
    pub(crate) store: Arc<Store>,
    /// How the source is doing.
    pub(crate) status: Arc<Status>,
    /// When the changes happened that have not been programmed yet.
    pub(crate) triggers: Arc<Triggers>,
    /// Ends what it holds when it is dropped.
    tasks: JoinSet<()>,
    /// Held while a directory source may write down the addresses that it gives.
    _allocations: Option<StateDir>,
}

impl Supply {
    /// Starts the source. Must be called within the runtime.
    pub(crate) async fn start(
        spec: &SourceSpec,
        options: &SupplyOptions,
    ) -> Result<Self, CommandError> {
        let allocations = options.lock_allocations(spec)?;
        let store = Store::new();
        let status = Arc::new(Status::default());
        let mut tasks = JoinSet::new();
        let (sender, batches) = mpsc::channel(BATCH_QUEUE_MAX);
        match spec {
            SourceSpec::Brain(url) => {
                let brain = cluster_options(url, &options.tls, &options.planes)?;
                tasks.spawn(GlobalClient::new(brain, Arc::clone(&status)).run(sender));
            }
            SourceSpec::Kube(kubeconfig) => {
                let source =
                    options.kube(kubeconfig.clone(), &status, KubeOptions::default()).await?;
                tasks.spawn(source.run(sender));
            }
            SourceSpec::Dir(path) => {
                tasks.spawn(options.dir(path, &status).run(sender));
            }
        }
        let triggers = Arc::new(Triggers::default());
        tasks.spawn(apply_all(Arc::clone(&store), Arc::clone(&triggers), batches));
        Ok(Self { store, status, triggers, tasks, _allocations: allocations })
    }

    /// Ends when the source has ended, which it never should while we take its batches. Without a
    /// supply, never. Cancel-safe.
    pub(crate) async fn ended(supply: Option<&mut Self>) {
        match supply {
            Some(supply) => drop(supply.tasks.join_next().await),
            None => std::future::pending().await,
        }
    }
}

/// The cluster's state as it is now, read once.
#[derive(Debug)]
pub(crate) struct Loaded {
    /// The state.
    pub(crate) store: Arc<Store>,
    /// What could not be read.
    pub(crate) status: Arc<Status>,
}

/// Reads the source once, for commands that run once.
pub(crate) async fn load_once(
    spec: &SourceSpec,
    options: &SupplyOptions,
    time_max: Duration,
) -> Result<Loaded, CommandError> {
    let status = Arc::new(Status::default());
    let batches = match spec {
        SourceSpec::Dir(path) => {
            check_readable(spec)?;
            let source = options.dir(path, &status);
            let batch = tokio::task::block_in_place(|| source.load_once());
            if !batch.synced {
                let problems: Vec<_> = status.problems().iter().map(ToString::to_string).collect();
                return Err(CommandError::bad_input(problems.join("\n")));
            }
            vec![batch]
        }
        SourceSpec::Kube(kubeconfig) => {
            let patience = KubeOptions { load_timeout: time_max, ..KubeOptions::default() };
            let source = options.kube(kubeconfig.clone(), &status, patience).await?;
            source.load_once().await.map_err(|error| CommandError::Failed(error.into()))?
        }
        SourceSpec::Brain(url) => {
            let client = GlobalClient::new(
                cluster_options(url, &options.tls, &options.planes)?,
                Arc::clone(&status),
            );
            let answer = tokio::time::timeout(time_max, client.load_once()).await;
            let batch = answer
                .map_err(|_| CommandError::failed(format!("{url} gave no state in time")))?
                .map_err(|error| CommandError::Failed(error.into()))?;
            vec![batch]
        }
    };
    let store = Store::new();
    store.set_time(now_s());
    for batch in batches {
        store.apply(batch);
    }
    Ok(Loaded { store, status })
}

/// How to reach a brain that makes the view for us, with what these planes ask of it. For commands that serve nothing
/// themselves.
pub(crate) fn view_options(
    url: &str,
    tls: &TlsArgs,
    planes: &[Plane],
) -> Result<BrainOptions, CommandError> {
    tls.check_used(url)?;
    let mut sets = vec![Set::ServingEndpoints];
    sets.extend(feeder::object_kinds(planes).into_iter().filter_map(sets::set_of));
    Ok(BrainOptions { tls: tls.client(url)?, sets, ..BrainOptions::new(url) })
}

/// How to reach a brain whose raw cluster we take, with what these planes need of it.
fn cluster_options(
    url: &str,
    tls: &TlsArgs,
    planes: &[Plane],
) -> Result<BrainOptions, CommandError> {
    let sets = plane::kinds(planes).into_iter().filter_map(sets::set_of).collect();
    Ok(BrainOptions { tls: tls.client(url)?, sets, ..BrainOptions::new(url) })
}

async fn apply_all(
    store: Arc<Store>,
    triggers: Arc<Triggers>,
    mut batches: mpsc::Receiver<telaio_source::Batch>,
) {
    store.set_time(now_s());
    let mut clock = tokio::time::interval(CLOCK_PERIOD);
    clock.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
    loop {
        tokio::select! {
            batch = batches.recv() => match batch {
                Some(batch) => {
                    triggers.note(&batch);
                    store.apply(batch);
                }
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
