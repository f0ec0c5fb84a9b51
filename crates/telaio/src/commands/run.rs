//! `telaio run`: the node agent.

#[cfg(unix)]
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use telaio_source::{SourceSpec, Status};
use tokio::time::Instant;
use tonic::transport::ServerTlsConfig;

use crate::api_server::ApiTask;
#[cfg(target_os = "linux")]
use crate::backend::services::{self, Services, ServicesSettings};
use crate::backend::{self, BackendContext, SharedOutput};
use crate::cli::{Command, RunArgs};
use crate::exit::CommandError;
use crate::feeder::{Feeder, FeederEvent, ViewOrigin};
use crate::file_limit;
#[cfg(unix)]
use crate::ingress::{self, Handover, IngressPlane, PlaneOptions, Sockets, Told};
use crate::logging::Logging;
use crate::monitor::{Facts, Monitor};
use crate::plane::{self, Plane};
use crate::proxy_settings::ProxySettings;
use crate::servers::{Servers, check_distinct};
use crate::settings::Settings;
use crate::shutdown::{Request, Requests};
use crate::state_dir::{Part, StateDir};
use crate::supply::{Supply, SupplyOptions, check_readable, view_options};
#[cfg(target_os = "linux")]
use crate::triggers::Triggers;

/// The backend that programs nothing.
const VIEW: &str = "view";
/// What a reload can change while we run.
const RELOADABLE: &[&str] = &["min-sync-period"];
/// How many of the source's problems are told when `--once` gives up.
const PROBLEMS_SHOWN_MAX: usize = 10;
/// How long `--once` waits for the sync of the first state, with the backend's own retries.
const ONCE_SYNC_TIME_MAX: Duration = Duration::from_mins(1);

/// Runs the agent until it is told to end, or until the first sync with `--once`.
pub(crate) fn run(args: &RunArgs, mut settings: Settings) -> Result<(), CommandError> {
    check_planes(&args.planes)?;
    // Without the services plane nothing is programmed: the view goes nowhere.
    let has_services = args.planes.contains(&Plane::Services);
    let backend = if has_services { backend::choose(&args.backend)? } else { VIEW };
    let node = args.node.name()?;
    let spec = args.source.spec()?;
    if args.once {
        check_readable(&spec)?;
    } else {
        check_distinct(&listen_flags(args))?;
    }
    let tls = args.api_listen.map_or(Ok(None), |_| args.tls.server())?;
    let logging = Logging::start(&args.log.log_level, args.log.log_format)?;
    file_limit::raise();
    let proxy = args.proxy.settings(backend, &args.source, &spec)?;
    for warning in proxy.warnings.iter().chain(&args.proxy_host.warnings()) {
        tracing::warn!("{warning}");
    }
    #[cfg(unix)]
    let sockets = ingress_sockets(args)?;
    let locks: Vec<StateDir> = args
        .planes
        .iter()
        .map(|plane| StateDir::lock(&args.state.state_dir, Part::Plane(*plane)))
        .collect::<anyhow::Result<_>>()?;
    let runtime = super::runtime()?;
    let outcome = runtime.block_on(async {
        let locks = locks;
        let Some(state_dir) = locks.first() else {
            return Err(CommandError::bad_input("--planes names nothing to do"));
        };
        // First, so that no signal finds us deaf.
        let mut requests = Requests::listen(settings.file())?;
        let planned = Planned { args, node, backend, proxy, spec: &spec, tls };
        let mut agent = Agent::start(planned, state_dir).await?;
        #[cfg(unix)]
        if let Some(sockets) = sockets {
            agent.start_ingress(args, sockets, state_dir).await?;
        }
        let outcome = agent.work(&mut requests, &mut settings, &logging).await;
        #[cfg(unix)]
        {
            let (plane, taken_by) = (agent.ingress.take(), agent.taken_by.take());
            drop(agent);
            // Whoever took over may go on; only requests that run are still ours.
            drop((locks, taken_by));
            if let Some(plane) = plane {
                plane.drain().await;
            }
        }
        outcome
    });
    // Tasks that wait for peers must not hold the end up.
    runtime.shutdown_timeout(Duration::from_secs(1));
    outcome
}

/// The flags that ask for ports, with what they ask for.
fn listen_flags(args: &RunArgs) -> Vec<(&'static str, std::net::SocketAddr)> {
    let mut flags = args.listen.with_api(args.api_listen);
    #[cfg(unix)]
    if args.planes.contains(&Plane::Ingress) {
        flags.push(("--http-listen", args.ingress.http_listen));
        flags.push(("--https-listen", args.ingress.https_listen));
    }
    flags
}

/// The sockets of the ingress plane: those of the agent before us, or new ones.
#[cfg(unix)]
fn ingress_sockets(args: &RunArgs) -> Result<Option<Sockets>, CommandError> {
    if args.once || !args.planes.contains(&Plane::Ingress) {
        return Ok(None);
    }
    if let Some(sockets) = ingress::claim(&args.state.state_dir)? {
        return Ok(Some(sockets));
    }
    let ingress = &args.ingress;
    Ok(Some(ingress::listen(ingress.http_listen, ingress.https_listen, ingress.threads())?))
}

fn check_planes(planes: &[Plane]) -> Result<(), CommandError> {
    match planes.iter().find(|plane| !Plane::RUNNABLE.contains(plane)) {
        None => Ok(()),
        Some(later) => Err(CommandError::failed(format!(
            "the {later} plane comes with a later release; this build has: {}",
            plane::names(Plane::RUNNABLE).join(", ")
        ))),
    }
}

/// What was decided before anything starts.
struct Planned<'a> {
    args: &'a RunArgs,
    node: String,
    backend: &'static str,
    proxy: ProxySettings,
    spec: &'a SourceSpec,
    tls: Option<ServerTlsConfig>,
}

/// Where the node's view comes from.
struct Origin {
    /// None where another brain makes the view.
    supply: Option<Supply>,
    view: ViewOrigin,
    source: Arc<Status>,
}

impl Origin {
    async fn open(
        args: &RunArgs,
        spec: &SourceSpec,
        state_dir: &StateDir,
    ) -> Result<Self, CommandError> {
        // Without an API to serve, another brain's view is all that we need of it.
        if let SourceSpec::Brain(url) = spec
            && args.api_listen.is_none()
        {
            let source = Arc::new(Status::default());
            let view = ViewOrigin::Brain(view_options(url, &args.tls)?, Arc::clone(&source));
            return Ok(Self { supply: None, view, source });
        }
        let options = SupplyOptions {
            source: args.source.clone(),
            planes: args.planes.clone(),
            tls: args.tls.clone(),
            state_dir: Some(state_dir.path().to_owned()),
            state_read_only: false,
        };
        let supply = Supply::start(spec, &options).await?;
        let view = ViewOrigin::Store(Arc::clone(&supply.store));
        let source = Arc::clone(&supply.status);
        Ok(Self { supply: Some(supply), view, source })
    }
}

/// Everything that runs, in the order in which it ends.
struct Agent {
    backend: &'static str,
    #[cfg(unix)]
    ingress: Option<IngressPlane>,
    #[cfg(unix)]
    handover: Option<Handover>,
    /// Who took over: closed when we have let go.
    #[cfg(unix)]
    taken_by: Option<UnixStream>,
    #[cfg(not(unix))]
    taken_by: Option<()>,
    view: ViewOrigin,
    node: String,
    /// With `--once`: how long the first state may take, and when that is over.
    once: Option<(Duration, Instant)>,
    feeder: Feeder,
    api: Option<ApiTask>,
    /// None where another brain makes the view.
    supply: Option<Supply>,
    spec: SourceSpec,
    source: Arc<Status>,
    monitor: Arc<Monitor>,
    /// None where nothing is programmed.
    #[cfg(target_os = "linux")]
    services: Option<Arc<Services>>,
    /// None with `--once`: nobody will ask, and another agent may have the ports.
    _servers: Option<Servers>,
}

impl Agent {
    async fn start(planned: Planned<'_>, state_dir: &StateDir) -> Result<Self, CommandError> {
        let Planned { args, node, backend: backend_name, proxy, spec, tls } = planned;
        let once = args.once.then(|| (args.timeout, Instant::now() + args.timeout));
        let Origin { supply, view, source } = Origin::open(args, spec, state_dir).await?;
        let store = supply.as_ref().map(|supply| Arc::clone(&supply.store));
        let monitor =
            Monitor::new(facts(args, &node, backend_name, spec), Arc::clone(&source), store);
        let pacing = args.pacing(backend_name);
        monitor.set_sync_period(pacing.sync_period);
        let servers = if args.once { None } else { Some(Servers::start(&args.listen, &monitor)?) };
        let api = match (&supply, args.api_listen) {
            (Some(supply), Some(address)) => {
                Some(ApiTask::start(&supply.store, address, tls, &args.ingress_nodes)?)
            }
            _ => None,
        };
        let output: SharedOutput = if args.planes.contains(&Plane::Services) {
            Arc::new(Mutex::new(std::io::stdout()))
        } else {
            Arc::new(Mutex::new(std::io::sink()))
        };
        #[cfg(target_os = "linux")]
        let services = {
            let triggers = supply.as_ref().map(|supply| Arc::clone(&supply.triggers));
            start_services(args, backend_name, proxy, state_dir, triggers, &monitor)?
        };
        #[cfg(not(target_os = "linux"))]
        drop(proxy);
        let context = BackendContext {
            node: node.as_str().into(),
            pacing,
            monitor: Arc::clone(&monitor),
            output,
            #[cfg(target_os = "linux")]
            services: services.clone(),
        };
        let mut backend = backend::make(backend_name, context)?;
        backend.setup().map_err(|error| {
            CommandError::failed(format!("the backend {backend_name} cannot run: {error}"))
        })?;
        let feeder = Feeder::start(view.clone(), backend.sink(), Arc::clone(&monitor))?;
        tracing::info!(node, source = %spec, backend = backend_name, "the agent runs");
        let spec = spec.clone();
        Ok(Self {
            backend: backend_name,
            #[cfg(unix)]
            ingress: None,
            #[cfg(unix)]
            handover: None,
            taken_by: None,
            view,
            node,
            once,
            feeder,
            api,
            supply,
            spec,
            source,
            monitor,
            #[cfg(target_os = "linux")]
            services,
            _servers: servers,
        })
    }

    /// Starts the ingress plane on these sockets.
    #[cfg(unix)]
    async fn start_ingress(
        &mut self,
        args: &RunArgs,
        sockets: Sockets,
        state_dir: &StateDir,
    ) -> Result<(), CommandError> {
        let told = match &self.spec {
            SourceSpec::Kube(kubeconfig) => {
                let client = telaio_source::kube::client(kubeconfig.clone()).await;
                let client = client.map_err(|error| CommandError::BadInput(error.into()))?;
                Told::start(client, args.ingress.status_settings(&self.node))
            }
            SourceSpec::Dir(_) | SourceSpec::Brain(_) => Told::default(),
        };
        let options = PlaneOptions {
            worker: args.ingress.worker_settings(&self.spec, &args.log, state_dir.path())?,
            own_process: args.ingress.own_process(),
            origin: self.view.clone(),
            node: self.node.as_str().into(),
            told,
        };
        let plane = IngressPlane::start(options, sockets);
        self.monitor.set_ingress(Arc::clone(plane.state()));
        self.handover = Some(Handover::listen(state_dir.path(), Arc::clone(plane.sockets()))?);
        self.ingress = Some(plane);
        Ok(())
    }

    async fn work(
        &mut self,
        requests: &mut Requests,
        settings: &mut Settings,
        logging: &Logging,
    ) -> Result<(), CommandError> {
        #[cfg(unix)]
        let mut handover = self.handover.take();
        #[cfg(not(unix))]
        let mut handover = None;
        loop {
            tokio::select! {
                link = taken_over(&mut handover) => {
                    tracing::info!("another agent took over; ending when the requests that run have");
                    self.taken_by = Some(link);
                    return Ok(());
                }
                request = requests.next() => match request {
                    Request::End(why) => {
                        tracing::info!(why, "ending; what is programmed stays");
                        return Ok(());
                    }
                    Request::Reload(why) => self.reload(settings, logging, why),
                },
                event = self.feeder.next_event() => match event {
                    FeederEvent::FirstState if self.once.is_some() => return self.finish_once(),
                    FeederEvent::FirstState => tracing::info!("the first state is complete"),
                    FeederEvent::Failed(error) => {
                        return Err(CommandError::failed(format!("the backend ended: {error}")));
                    }
                },
                late = until_late(self.once) => return Err(self.too_late(late)),
                error = ApiTask::failed(self.api.as_mut()) => {
                    return Err(CommandError::failed(format!("the API ended: {error}")));
                }
                () = Supply::ended(self.supply.as_mut()) => {
                    return Err(CommandError::failed("the source ended"));
                }
            }
        }
    }

    /// There is no first state, with what the source says of it.
    fn too_late(&self, waited: Duration) -> CommandError {
        let problems = self.source.problems();
        let told = problems.iter().take(PROBLEMS_SHOWN_MAX).map(|problem| format!("\n{problem}"));
        CommandError::failed(format!(
            "{} gave no full state within {waited:?} (--timeout){}",
            self.spec,
            told.collect::<String>()
        ))
    }

    /// Waits for the sync of the first state, then says what could not be read.
    fn finish_once(&self) -> Result<(), CommandError> {
        if let Some(handle) = self.monitor.sync_loop()
            && !tokio::task::block_in_place(|| handle.wait_synced(ONCE_SYNC_TIME_MAX))
        {
            let error = handle.stats().last_error.unwrap_or_else(|| "it takes too long".into());
            return Err(CommandError::failed(format!("the first sync failed: {error}")));
        }
        #[cfg(target_os = "linux")]
        if let Some(services) = &self.services {
            tokio::task::block_in_place(|| services.wait_moved());
        }
        super::report_problems(&self.spec, &self.source)
    }

    fn reload(&self, settings: &mut Settings, logging: &Logging, why: &str) {
        super::reload(settings, logging, &self.monitor, why, RELOADABLE, |command| {
            if let (Command::Run(args), Some(handle)) = (command, self.monitor.sync_loop()) {
                handle.set_min_sync_period(args.pacing(self.backend).min_sync_period);
            }
        });
    }
}

/// Starts what runs around a backend that programs services.
#[cfg(target_os = "linux")]
fn start_services(
    args: &RunArgs,
    backend: &'static str,
    proxy: ProxySettings,
    state_dir: &StateDir,
    triggers: Option<Arc<Triggers>>,
    monitor: &Arc<Monitor>,
) -> Result<Option<Arc<Services>>, CommandError> {
    if !backend::programs(backend) {
        return Ok(None);
    }
    let mut proxy = proxy;
    let families = services::families();
    for family in proxy.config.families.iter().filter(|family| !families.contains(family)) {
        tracing::warn!("this machine has no {family}; its services are not served");
    }
    proxy.config.families.retain(|family| families.contains(family));
    let by_rules = backend == "iptables" && proxy.config.localhost_node_ports;
    let settings = ServicesSettings {
        config: Arc::new(proxy.config),
        node_addresses: proxy.node_addresses,
        flavor: args.proxy.iptables_flavor.into(),
        ipvs: proxy.ipvs,
        sysctls: args.proxy_host.sysctls(by_rules),
        takeover: args.proxy_host.takeover,
        stays: !args.once,
        state_dir: state_dir.path().to_owned(),
        triggers,
    };
    Services::start(backend, settings, monitor).map(Arc::new).map(Some)
}

/// The link to who took the ingress over. Without an ingress, never. Cancel-safe.
#[cfg(unix)]
async fn taken_over(handover: &mut Option<Handover>) -> UnixStream {
    match handover {
        Some(handover) => handover.taken().await,
        None => std::future::pending().await,
    }
}

/// There is no ingress to take over here.
#[cfg(not(unix))]
async fn taken_over(_: &mut Option<()>) -> () {
    std::future::pending().await
}

/// Ends when `--once` has waited for long enough, which it tells. Without `--once`, never.
async fn until_late(once: Option<(Duration, Instant)>) -> Duration {
    let Some((time_max, deadline)) = once else { return std::future::pending().await };
    tokio::time::sleep_until(deadline).await;
    time_max
}

fn facts(args: &RunArgs, node: &str, backend: &str, spec: &SourceSpec) -> Facts {
    Facts {
        command: "run",
        node: Some(node.to_owned()),
        planes: plane::names(&args.planes),
        backend: Some(backend.to_owned()),
        source: spec.to_string(),
    }
}
