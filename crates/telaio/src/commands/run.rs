//! `telaio run`: the node agent.

mod places;
mod planes;

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use telaio_api::sets;
use telaio_model::Kind;
use telaio_reconcile::SyncHandle;
use telaio_source::{SourceSpec, Status};
use tokio::time::Instant;
use tonic::transport::ServerTlsConfig;

use self::places::Places;
use self::planes::set_up;
#[cfg(target_os = "linux")]
use self::planes::{start_services, with_pods};
use crate::api_server::ApiTask;
use crate::backend::services::Services;
#[cfg(not(target_os = "linux"))]
use crate::backend::services::start_services;
use crate::backend::{self, BackendContext, SharedOutput};
use crate::cli::{Command, RunArgs};
use crate::exit::CommandError;
use crate::feeder::{Feeder, FeederEvent, ViewOrigin, wants_for};
use crate::file_limit;
use crate::gui::{self, AdminOptions, Programming, UrlAsking};
#[cfg(unix)]
use crate::ingress::{Handover, IngressPlane, LogFiles, Owned, PlaneOptions, Sockets, Told};
use crate::logging::Logging;
use crate::monitor::{Facts, Monitor};
use crate::plain::Plain;
use crate::plane::{self, Plane};
#[cfg(target_os = "linux")]
use crate::pods::Pods;
use crate::proxy_settings::ProxySettings;
use crate::servers::{Ports, Servers, check_distinct, check_free};
use crate::settings::Settings;
use crate::shutdown::{Request, Requests};
#[cfg(unix)]
use crate::state_dir::Part;
use crate::supply::{Supply, SupplyOptions, check_readable, view_options};

/// The backend that programs nothing.
const VIEW: &str = "view";
/// What a reload can change while we run.
const RELOADABLE: &[&str] = &["min-sync-period"];
/// How many of the source's problems are told when `--once` gives up.
const PROBLEMS_SHOWN_MAX: usize = 10;
/// How long `--once` waits for the sync of the first state. HNS is slow: thousands of services take minutes.
const ONCE_SYNC_TIME_MAX: Duration = Duration::from_mins(10);
/// How long it waits for a sync that has failed to succeed at last, with the backend's own retries.
const ONCE_FAILING_TIME_MAX: Duration = Duration::from_mins(1);
/// How often it looks.
const ONCE_PAUSE: Duration = Duration::from_millis(500);

/// Runs the agent until it is told to end, or until the first sync with `--once`.
pub(crate) fn run(args: &RunArgs, mut settings: Settings) -> Result<(), CommandError> {
    check_planes(&args.planes)?;
    let backend = services_backend(args)?;
    let node = args.node.name()?;
    let spec = args.source.spec()?;
    if args.once {
        check_readable(&spec)?;
    } else {
        check_distinct(&listen_flags(args))?;
    }
    let tls = args.api_listen.map_or(Ok(None), |_| args.tls.server())?;
    let logging = Logging::start(&args.log)?;
    file_limit::raise();
    let proxy = backend.map(|backend| args.proxy.settings(backend, &args.source, &spec));
    let proxy = proxy.transpose()?;
    if let Some(proxy) = &proxy {
        for warning in proxy.warnings.iter().chain(&args.proxy_host.warnings()) {
            tracing::warn!("{warning}");
        }
    }
    let mut places = Places::take(args, &spec)?;
    let runtime = super::runtime()?;
    let outcome = runtime.block_on(async {
        // First, so that no signal finds us deaf.
        let mut requests = Requests::listen(settings.file())?;
        let planned = Planned { args, node, backend, proxy, spec: &spec, tls };
        let Some(mut agent) = start(planned, &mut places, &mut requests).await? else {
            return Ok(());
        };
        let outcome = agent.work(&mut requests, &mut settings, &logging).await;
        #[cfg(unix)]
        {
            let plane = agent.ingress.take();
            if let Some(plane) = &plane {
                // Before the state directory is free: who comes next may want the ports.
                plane.close().await;
            }
            drop(agent);
            // Whoever took over may go on; only requests that run are still ours.
            drop(places);
            if let Some(plane) = plane {
                plane.drain().await;
            }
            if matches!(outcome, Ok(Ended::TakenOver)) && args.ingress.wait_after_takeover {
                tracing::info!("another agent serves; waiting to be told to end");
                while !matches!(requests.next().await, Request::End(_)) {}
            }
        }
        outcome.map(|_| ())
    });
    // Tasks that wait for peers must not hold the end up.
    runtime.shutdown_timeout(Duration::from_secs(1));
    outcome
}

/// Starts everything, in the order in which an agent before us loses nothing should it fail: what can be
/// checked first, then the source and the ingress beside that agent's, and what it has to give up last. None
/// if we were told to end before.
async fn start(
    planned: Planned<'_>,
    places: &mut Places,
    requests: &mut Requests,
) -> Result<Option<Agent>, CommandError> {
    let (args, spec) = (planned.args, planned.spec);
    let ports = if args.once { None } else { Some(ports(args, spec, places)?) };
    #[cfg(unix)]
    let sockets = places.sockets(args)?;
    let read_only = places.are_addresses_to_come();
    #[cfg_attr(not(unix), expect(unused_mut, reason = "there is nobody to take over from"))]
    let mut origin = Origin::open(args, spec, places.state_dir(), read_only).await?;
    #[cfg(unix)]
    let ingress = match sockets {
        None => None,
        Some(sockets) => {
            let told = told(&planned, places.state_dir()).await?;
            let plane = start_ingress(&planned, &origin.view, told, sockets, places.state_dir())?;
            if !places.go(&plane, origin.supply.as_mut(), requests).await? {
                plane.leave().await;
                return Ok(None);
            }
            if read_only {
                // From now on it is ours to say who has which address.
                let ours = Origin::open(args, spec, places.state_dir(), false).await?;
                plane.follow(ours.view.clone());
                origin = ours;
            }
            Some(plane)
        }
    };
    #[cfg(not(unix))]
    let _ = requests;
    #[cfg_attr(not(unix), expect(unused_mut, reason = "there is no ingress to keep"))]
    let mut agent = Agent::start(planned, origin, ports, places.state_dir()).await?;
    #[cfg(unix)]
    if let Some(plane) = ingress {
        agent.keep_ingress(plane, args, places.state_dir())?;
    }
    Ok(Some(agent))
}

/// The ports of the servers; all that is asked for is ours, or will be.
fn ports(args: &RunArgs, spec: &SourceSpec, places: &Places) -> Result<Ports, CommandError> {
    gui::check(&args.listen, places.state_dir(), spec)?;
    if let Some(address) = args.api_listen {
        check_free("--api-listen", address, places.ports_to_come())?;
    }
    Ok(Ports::take(&args.listen, places.ports_to_come())?)
}

/// Who is told of the ingress' Ingresses. What all proxies of a cluster have in common is looked up there.
#[cfg(unix)]
async fn told(planned: &Planned<'_>, state_dir: &Path) -> Result<Told, CommandError> {
    let ingress = &planned.args.ingress;
    match planned.spec {
        SourceSpec::Kube(kubeconfig) => {
            let client = telaio_source::kube::client(kubeconfig.clone()).await;
            let client = client.map_err(|error| CommandError::BadInput(error.into()))?;
            ingress.share_cookie_secret(client.clone(), state_dir).await?;
            Ok(Told::start(client, ingress.status_settings(&planned.node)))
        }
        SourceSpec::Dir(_) | SourceSpec::Brain(_) => Ok(Told::default()),
    }
}

/// Starts the ingress plane on these sockets. It does not serve yet.
#[cfg(unix)]
fn start_ingress(
    planned: &Planned<'_>,
    view: &ViewOrigin,
    told: Told,
    sockets: Sockets,
    state_dir: &Path,
) -> Result<IngressPlane, CommandError> {
    let Planned { args, node, spec, .. } = planned;
    let options = PlaneOptions {
        worker: args.ingress.worker_settings(spec, &args.log, state_dir)?,
        own_process: args.ingress.own_process(),
        origin: view.clone(),
        node: node.as_str().into(),
        told,
        log_files: LogFiles::new(args.ingress.watch.access_log.clone())?,
    };
    Ok(IngressPlane::start(options, sockets))
}

/// How services are programmed. Whoever asks for neither them nor pods still wants the view to be followed.
fn services_backend(args: &RunArgs) -> Result<Option<&'static str>, CommandError> {
    if args.planes.contains(&Plane::Services) {
        return Ok(Some(backend::choose(&args.backend)?));
    }
    Ok(Some(VIEW).filter(|_| !args.planes.contains(&Plane::Pods)))
}

/// The flags that ask for ports, with what they ask for.
fn listen_flags(args: &RunArgs) -> Vec<(&'static str, SocketAddr)> {
    #[cfg_attr(not(unix), expect(unused_mut, reason = "nothing else listens there"))]
    let mut flags = args.listen.with_api(args.api_listen);
    #[cfg(unix)]
    if args.planes.contains(&Plane::Ingress) {
        flags.push(("--http-listen", args.ingress.http_listen));
        flags.push(("--https-listen", args.ingress.https_listen));
    }
    flags
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
    /// How services are programmed, if they are.
    backend: Option<&'static str>,
    proxy: Option<ProxySettings>,
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
        state_dir: &Path,
        state_read_only: bool,
    ) -> Result<Self, CommandError> {
        // Without an API to serve, another brain's view is all that we need of it.
        if let SourceSpec::Brain(url) = spec
            && args.api_listen.is_none()
        {
            let source = Arc::new(Status::default());
            let mut options = view_options(url, &args.tls, &args.planes)?;
            // For the admin API, which shows what people decided.
            options.sets.extend(sets::set_of(Kind::Override));
            let view = ViewOrigin::Brain(options, Arc::clone(&source));
            return Ok(Self { supply: None, view, source });
        }
        let options = SupplyOptions {
            source: args.source.clone(),
            planes: args.planes.clone(),
            tls: args.tls.clone(),
            state_dir: Some(state_dir.to_owned()),
            state_read_only,
        };
        let supply = Supply::start(spec, &options).await?;
        let view = ViewOrigin::Store(Arc::clone(&supply.store), wants_for(&args.planes));
        let source = Arc::clone(&supply.status);
        Ok(Self { supply: Some(supply), view, source })
    }
}

/// Why the agent ends.
#[derive(Debug, Clone, Copy)]
enum Ended {
    /// Somebody asked for it, or all is done.
    Asked,
    /// Another has its work.
    TakenOver,
}

/// Everything that runs, in the order in which it ends.
struct Agent {
    /// None where no services are programmed.
    backend: Option<&'static str>,
    #[cfg(unix)]
    ingress: Option<IngressPlane>,
    #[cfg(unix)]
    handover: Option<Handover>,
    /// How long to serve on when told to end, for load balancers to see it.
    drain_delay: Option<Duration>,
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
    services: Option<Arc<Services>>,
    /// None where the pods plane was not asked for.
    #[cfg(target_os = "linux")]
    _pods: Option<Pods>,
    /// None with `--once`: nobody will ask, and another agent may have the ports.
    #[cfg_attr(not(unix), expect(dead_code, reason = "it serves as long as it is there"))]
    servers: Option<Servers>,
}

impl Agent {
    async fn start(
        planned: Planned<'_>,
        origin: Origin,
        ports: Option<Ports>,
        state_dir: &Path,
    ) -> Result<Self, CommandError> {
        let Planned { args, node, backend: backend_name, proxy, spec, tls } = planned;
        let once = args.once.then(|| (args.timeout, Instant::now() + args.timeout));
        let Origin { supply, view, source } = origin;
        let store = supply.as_ref().map(|supply| Arc::clone(&supply.store));
        let monitor =
            Monitor::new(facts(args, &node, backend_name, spec), Arc::clone(&source), store);
        let pacing = args.pacing(backend_name.unwrap_or_default());
        monitor.set_sync_period(pacing.sync_period);
        let servers = if let Some(ports) = ports {
            let programming = backend_name.zip(proxy.clone()).filter(|it| backend::programs(it.0));
            let options = AdminOptions {
                monitor: Arc::clone(&monitor),
                store: supply.as_ref().map(|supply| Arc::clone(&supply.store)),
                node: Some(node.clone()),
                spec: spec.clone(),
                programming: programming.map(|(backend, settings)| Programming {
                    backend,
                    settings,
                    args: args.proxy.clone(),
                }),
                overrides_namespace: args.source.overrides_namespace.clone(),
                wants: wants_for(&args.planes),
                asking: asking(args, spec, &view),
            };
            let admin = gui::admin(&args.listen, &args.state.state_dir, options).await?;
            Some(Servers::start_on(ports, &monitor, admin)?)
        } else {
            None
        };
        let api = match (&supply, args.api_listen) {
            (Some(supply), Some(address)) => {
                Some(ApiTask::start(&supply.store, address, tls, &args.ingress_nodes)?)
            }
            _ => None,
        };
        // Without the services plane the view goes nowhere.
        let output: SharedOutput = if args.planes.contains(&Plane::Services) {
            Arc::new(Mutex::new(Plain(std::io::stdout())))
        } else {
            Arc::new(Mutex::new(std::io::sink()))
        };
        let services = match (backend_name, proxy) {
            (Some(backend), Some(proxy)) => {
                let triggers = supply.as_ref().map(|supply| Arc::clone(&supply.triggers));
                start_services(args, backend, proxy, state_dir, triggers, &monitor)?
            }
            _ => None,
        };
        let context = BackendContext {
            node: node.as_str().into(),
            pacing,
            monitor: Arc::clone(&monitor),
            output,
            services: services.clone(),
        };
        let sink = backend_name.map(|name| set_up(name, context)).transpose()?;
        #[cfg(target_os = "linux")]
        let (pods, sink) = with_pods(args, &node, spec, state_dir, pacing, &monitor, sink).await?;
        let Some(sink) = sink else {
            return Err(CommandError::bad_input("--planes names no plane"));
        };
        let feeder = Feeder::start(view, sink, Arc::clone(&monitor))?;
        tracing::info!(node, source = %spec, backend = backend_name, "the agent runs");
        let spec = spec.clone();
        Ok(Self {
            backend: backend_name,
            #[cfg(unix)]
            ingress: None,
            #[cfg(unix)]
            handover: None,
            drain_delay: drain_delay(args),
            once,
            feeder,
            api,
            supply,
            spec,
            source,
            monitor,
            services,
            #[cfg(target_os = "linux")]
            _pods: pods,
            servers,
        })
    }

    /// Has the ingress plane from now on, and hands it over to whoever comes.
    #[cfg(unix)]
    fn keep_ingress(
        &mut self,
        plane: IngressPlane,
        args: &RunArgs,
        state_dir: &Path,
    ) -> Result<(), CommandError> {
        let mut parts: Vec<Part> = args.planes.iter().copied().map(Part::Plane).collect();
        if self.supply.is_some() && matches!(self.spec, SourceSpec::Dir(_)) {
            parts.push(Part::Allocations);
        }
        let servers = self.servers.iter().flat_map(|servers| servers.addresses.all());
        let owned = Owned::new(&parts, servers.chain(args.api_listen).collect());
        self.monitor.set_ingress(Arc::clone(plane.state()));
        self.handover = Some(Handover::listen(state_dir, Arc::clone(plane.sockets()), owned)?);
        self.ingress = Some(plane);
        Ok(())
    }

    async fn work(
        &mut self,
        requests: &mut Requests,
        settings: &mut Settings,
        logging: &Logging,
    ) -> Result<Ended, CommandError> {
        #[cfg(unix)]
        let mut handover = self.handover.take();
        #[cfg(not(unix))]
        let mut handover = None;
        let mut leave_at = None;
        loop {
            tokio::select! {
                () = until(leave_at) => return Ok(Ended::Asked),
                () = taken_over(&mut handover) => {
                    tracing::info!("another agent took over; ending when the requests that run have");
                    return Ok(Ended::TakenOver);
                }
                request = requests.next() => match request {
                    Request::End(why) => {
                        tracing::info!(why, "ending; what is programmed stays");
                        self.monitor.set_ending();
                        match self.drain_delay {
                            // A second request does not wait.
                            Some(delay) if leave_at.is_none() => {
                                leave_at = Some(Instant::now() + delay);
                            }
                            _ => return Ok(Ended::Asked),
                        }
                    }
                    Request::Reload(why) => self.reload(settings, logging, why),
                },
                event = self.feeder.next_event() => match event {
                    FeederEvent::FirstState if self.once.is_some() => {
                        return self.finish_once().map(|()| Ended::Asked);
                    }
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
        if let Some((time_max, _)) = self.once {
            for handle in self.monitor.sync_loops() {
                tokio::task::block_in_place(|| first_sync(handle, time_max))?;
            }
        }
        if let Some(services) = &self.services {
            tokio::task::block_in_place(|| services.wait_moved());
        }
        super::report_problems(&self.spec, &self.source)
    }

    fn reload(&self, settings: &mut Settings, logging: &Logging, why: &str) {
        #[cfg(unix)]
        if let Some(ingress) = &self.ingress {
            ingress.reopen_log();
        }
        super::reload(settings, logging, &self.monitor, why, RELOADABLE, |command| {
            let Command::Run(args) = command else { return };
            let period = args.pacing(self.backend.unwrap_or_default()).min_sync_period;
            for handle in self.monitor.sync_loops() {
                handle.set_min_sync_period(period);
            }
        });
    }
}

/// How the ingress decides, for the admin API.
fn asking(args: &RunArgs, spec: &SourceSpec, view: &ViewOrigin) -> UrlAsking {
    let brain = match view {
        ViewOrigin::Brain(options, _) => Some(options.clone()),
        ViewOrigin::Store(..) => None,
    };
    let asking = UrlAsking { brain, ..UrlAsking::of(spec) };
    #[cfg(unix)]
    let asking = UrlAsking { gateway: args.ingress.gateway_settings(spec), ..asking };
    #[cfg(not(unix))]
    let _ = args;
    asking
}

/// Waits for the sync of the first state. One that fails gets as long as `--timeout` says, a minute at most.
fn first_sync(handle: &SyncHandle, time_max: Duration) -> Result<(), CommandError> {
    let begun = std::time::Instant::now();
    while !handle.wait_synced(ONCE_PAUSE) {
        let error = handle.stats().last_error;
        let patience = match &error {
            None => ONCE_SYNC_TIME_MAX,
            Some(_) => time_max.min(ONCE_FAILING_TIME_MAX),
        };
        if begun.elapsed() >= patience {
            let error = error.unwrap_or_else(|| "it takes too long".into());
            return Err(CommandError::failed(format!("the first sync failed: {error}")));
        }
    }
    Ok(())
}

/// Ready when somebody took the ingress over. Without an ingress, never. Cancel-safe.
#[cfg(unix)]
async fn taken_over(handover: &mut Option<Handover>) {
    match handover {
        Some(handover) => handover.taken().await,
        None => std::future::pending().await,
    }
}

/// There is no ingress to take over here.
#[cfg(not(unix))]
async fn taken_over(_: &mut Option<()>) {
    std::future::pending::<()>().await;
}

/// How long an ingress serves on when it is told to end.
fn drain_delay(args: &RunArgs) -> Option<Duration> {
    #[cfg(unix)]
    if args.planes.contains(&Plane::Ingress) {
        return Some(args.ingress.drain_delay).filter(|delay| !delay.is_zero());
    }
    #[cfg(not(unix))]
    let _ = args;
    None
}

/// Ends then. Without a time, never.
async fn until(time: Option<Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time).await,
        None => std::future::pending().await,
    }
}

/// Ends when `--once` has waited for long enough, which it tells. Without `--once`, never.
async fn until_late(once: Option<(Duration, Instant)>) -> Duration {
    let Some((time_max, deadline)) = once else { return std::future::pending().await };
    tokio::time::sleep_until(deadline).await;
    time_max
}

fn facts(args: &RunArgs, node: &str, backend: Option<&str>, spec: &SourceSpec) -> Facts {
    Facts {
        command: "run",
        node: Some(node.to_owned()),
        planes: plane::names(&args.planes),
        backend: backend.map(str::to_owned),
        source: spec.to_string(),
    }
}
