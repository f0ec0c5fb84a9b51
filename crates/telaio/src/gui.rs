//! The agent as the admin API sees it.
//!
//! Everything is read where it is: services from the store, figures from the monitor, routes and
//! requests from the ingress worker by its link. Nothing is asked of the worker but by
//! [`AdminAgent::figures`], once a tick, and [`AdminAgent::network`], at most once a tick while
//! somebody looks; and a worker that does not answer delays neither for longer than a moment.

#[cfg(unix)]
mod asked;
mod changes;
mod command_line;
mod events;
mod flows;
mod health;
mod items;
mod notices;
#[cfg(unix)]
mod routes;
mod show;
mod view_items;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use telaio_brain::{NodeContext, Store, Wants};
use telaio_gateway::GatewaySettings;
use telaio_gateway::class::ClassSettings;
use telaio_gui::agent::now_ms;
use telaio_gui::token::{self, Tokens};
use telaio_gui::values::action::Purge;
use telaio_gui::values::overview::Overview;
use telaio_gui::values::service::{EndpointItem, Rules, ServiceDetail};
use telaio_gui::values::trace::{TraceAnswer, TraceQuestion};
use telaio_gui::values::{Key, Role};
use telaio_gui::{
    Agent, AgentName, AuditLog, EventLog, Figures, GuardSettings, GuiServer, GuiSettings, Network,
    Refusal, Step,
};
use telaio_model::{ObjectKey, Override};
use telaio_source::SourceSpec;
use telaio_source::brain::BrainOptions;
use telaio_source::kube::Client;
use telaio_source::overrides::{Change, OverrideWriter, WriteError};

use crate::cli::{ListenArgs, ProxyArgs};
use crate::exit::CommandError;
use crate::monitor::Monitor;
use crate::proxy_settings::ProxySettings;

/// The file of the token that may do everything, in the state directory.
pub(crate) const TOKEN_FILE: &str = "admin.token";

/// Agents remove what has ended within so many seconds of each other.
const ENDED_SPREAD_S: u64 = 30;

/// Removes what the admin API keeps in a state directory: what is gone, and what could not be removed.
pub(crate) fn remove_ours(state_dir: &Path) -> (Vec<String>, Vec<String>) {
    let (mut gone, mut failed) = (Vec::new(), Vec::new());
    for name in [TOKEN_FILE, "audit.log", "audit.log.1"] {
        let path = state_dir.join(name);
        match std::fs::remove_file(&path) {
            Ok(()) => gone.push(path.display().to_string()),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => failed.push(format!("cannot remove {}: {error}", path.display())),
        }
    }
    (gone, failed)
}

/// How services are programmed, for those who want to see it.
#[derive(Debug, Clone)]
pub(crate) struct Programming {
    pub(crate) backend: &'static str,
    pub(crate) settings: ProxySettings,
    pub(crate) args: ProxyArgs,
}

/// What the admin API needs of the command that runs it.
pub(crate) struct AdminOptions {
    pub(crate) monitor: Arc<Monitor>,
    /// None where another brain makes the view.
    pub(crate) store: Option<Arc<Store>>,
    /// The node whose view is shown; none for a brain.
    pub(crate) node: Option<String>,
    pub(crate) spec: SourceSpec,
    pub(crate) programming: Option<Programming>,
    pub(crate) overrides_namespace: String,
    /// What of the state the rules depend on.
    pub(crate) wants: Wants,
    /// How requests by URL are followed.
    pub(crate) asking: UrlAsking,
}

/// How the ingress of this agent decides, for who asks what a request will meet.
#[derive(Debug, Clone, Default)]
#[cfg_attr(not(target_os = "linux"), expect(dead_code, reason = "there is no ingress plane"))]
pub(crate) struct UrlAsking {
    /// Which Ingresses are ours, and whose certificate hosts have that have none.
    pub(crate) gateway: GatewaySettings,
    /// Where the ingress' view comes from, if a brain makes it.
    pub(crate) brain: Option<BrainOptions>,
}

impl UrlAsking {
    /// As an agent with this source decides where nobody says otherwise.
    pub(crate) fn of(spec: &SourceSpec) -> Self {
        let classless = matches!(spec, SourceSpec::Dir(_));
        let class = ClassSettings { classless, ..ClassSettings::default() };
        Self { gateway: GatewaySettings { class, ..GatewaySettings::default() }, brain: None }
    }
}

/// The agent, for the admin API.
pub(crate) struct AdminAgent {
    monitor: Arc<Monitor>,
    store: Option<Arc<Store>>,
    context: Option<NodeContext>,
    spec: SourceSpec,
    state_dir: PathBuf,
    programming: Option<Programming>,
    writer: OverrideWriter,
    client: Option<Client>,
    started_ms: i64,
    /// Held while the kernel's rules are read for somebody, and while rules are compiled for a trace.
    reading: Arc<tokio::sync::Mutex<()>>,
    tracing: Arc<tokio::sync::Mutex<()>>,
    #[cfg_attr(not(target_os = "linux"), expect(dead_code, reason = "nothing is asked there"))]
    asking: UrlAsking,
    events: Arc<EventLog>,
    notices: notices::Notices,
    flows: flows::Flows,
    #[cfg(unix)]
    stats: Arc<routes::StatsKept>,
    #[cfg(unix)]
    asked: asked::Asked,
}

/// The admin API, ready to be served.
pub(crate) struct Admin {
    pub(crate) server: GuiServer,
    pub(crate) tls: Option<Arc<rustls::ServerConfig>>,
}

/// Makes the admin API. Must be called within the runtime on which the source runs.
pub(crate) async fn admin(
    listen: &ListenArgs,
    state_dir: &Path,
    options: AdminOptions,
) -> Result<Admin, CommandError> {
    let (tls, tokens, token_file) = checked(listen, state_dir, &options.spec)?;
    tracing::info!(file = %token_file.display(), "the admin API's token is in this file");
    let kubeconfig = match &options.spec {
        SourceSpec::Kube(kubeconfig) => Some(kubeconfig.clone()),
        SourceSpec::Dir(_) | SourceSpec::Brain(_) => None,
    };
    let client = match kubeconfig {
        Some(kubeconfig) => {
            let client = telaio_source::kube::client(kubeconfig).await;
            Some(client.map_err(|error| CommandError::BadInput(error.into()))?)
        }
        None => None,
    };
    let writer = match (&options.spec, &client) {
        (SourceSpec::Dir(path), _) => OverrideWriter::dir(path),
        (SourceSpec::Kube(_), Some(client)) => {
            OverrideWriter::kube(client.clone(), options.overrides_namespace.clone())
        }
        _ => OverrideWriter::Nowhere(format!(
            "this agent follows {}: decide there, by the admin API of that brain",
            options.spec
        )),
    };
    let events = Arc::new(EventLog::default());
    let programs = options.node.as_deref().zip(options.programming.as_ref());
    let programs = programs.map(|(node, _)| (node.into(), options.wants.clone()));
    let teller = events::Teller::new(Arc::clone(&options.monitor), Arc::clone(&events), programs);
    match &options.store {
        Some(store) => drop(tokio::spawn(teller.follow(Arc::clone(store)))),
        None => drop(tokio::spawn(teller.follow_view())),
    }
    let name = match &options.node {
        Some(node) => AgentName::node(node.as_str()),
        None => AgentName::brain(crate::node_name::host_name()),
    };
    let spread_s = name.spread(ENDED_SPREAD_S);
    let audit = AuditLog::open(state_dir, name).map_err(|error| {
        CommandError::failed(format!("{}: {error}", state_dir.join("audit.log").display()))
    })?;
    let agent = AdminAgent {
        context: options.node.map(|node| NodeContext { name: node.as_str().into(), zone: None }),
        monitor: options.monitor,
        store: options.store,
        spec: options.spec,
        state_dir: state_dir.to_owned(),
        programming: options.programming,
        writer,
        client,
        started_ms: now_ms(),
        reading: Arc::default(),
        tracing: Arc::default(),
        asking: options.asking,
        events: Arc::clone(&events),
        notices: notices::Notices::default(),
        flows: flows::Flows::default(),
        #[cfg(unix)]
        stats: Arc::default(),
        #[cfg(unix)]
        asked: asked::Asked::default(),
    };
    let guard = GuardSettings {
        tokens,
        hosts: listen.admin.admin_host.iter().map(|host| host.to_ascii_lowercase()).collect(),
        tls: tls.is_some(),
    };
    let mut settings = GuiSettings { guard, ..GuiSettings::default() };
    // Of many agents the first will do; the others find it done.
    settings.ended_grace += Duration::from_secs(spread_s);
    if let Some(grace) = listen.admin.admin_ended_grace {
        settings.ended_grace = grace;
    }
    Ok(Admin { server: GuiServer::new(settings, Arc::new(agent), events, audit), tls })
}

/// Whether the admin API can be served so, without serving it.
pub(crate) fn check(
    listen: &ListenArgs,
    state_dir: &Path,
    spec: &SourceSpec,
) -> Result<(), CommandError> {
    checked(listen, state_dir, spec).map(drop)
}

/// How it is encrypted, the tokens, and where the admin's is.
fn checked(
    listen: &ListenArgs,
    state_dir: &Path,
    spec: &SourceSpec,
) -> Result<(Option<Arc<rustls::ServerConfig>>, Tokens, PathBuf), CommandError> {
    let tls = listen.admin.tls()?;
    if tls.is_none() && !listen.admin_listen.ip().is_loopback() {
        return Err(CommandError::bad_input(format!(
            "--admin-listen {} can be reached from other machines and so needs TLS: give \
             --admin-tls-cert and --admin-tls-key, or a loopback address",
            listen.admin_listen
        )));
    }
    let (tokens, file) = tokens(listen, state_dir)?;
    if tokens.review && !matches!(spec, SourceSpec::Kube(_)) {
        return Err(CommandError::bad_input(
            "--admin-token-review asks a cluster, and --source names none",
        ));
    }
    Ok((tls, tokens, file))
}

/// The tokens of files. The admin's is made, and said once, if there is none.
fn tokens(listen: &ListenArgs, state_dir: &Path) -> Result<(Tokens, PathBuf), CommandError> {
    let bad = |path: &Path, error: std::io::Error| {
        CommandError::bad_input(format!("{}: {error}", path.display()))
    };
    let given = |path: &Path| {
        // A file of somebody's, which others may be meant to read, such as a Secret's with a group.
        if token::others_read(path) {
            tracing::warn!(
                file = %path.display(),
                "others than its owner may read this token of the admin API; if they are not meant to, \
                 chmod 600 it"
            );
        }
        token::read(path).map_err(|error| bad(path, error))
    };
    let admin = &listen.admin;
    let (text, path) = if let Some(path) = &admin.admin_token_file {
        (given(path)?, path.clone())
    } else {
        std::fs::create_dir_all(state_dir).map_err(|error| bad(state_dir, error))?;
        let path = state_dir.join(TOKEN_FILE);
        let (text, fresh) = token::read_or_make(&path).map_err(|error| bad(&path, error))?;
        // To people at a terminal only: a log is kept, and read by others.
        if fresh && std::io::IsTerminal::is_terminal(&std::io::stderr()) {
            eprintln!("telaio: the token of the admin API, said this once: {text}");
        }
        (text, path)
    };
    let mut tokens = Tokens::default().with("admin", Role::Admin, &text);
    if let Some(path) = &admin.admin_read_token_file {
        let text = given(path)?;
        tokens = tokens.with("read-only", Role::Read, &text);
    }
    tokens.review = admin.admin_token_review;
    Ok((tokens, path))
}

impl AdminAgent {
    /// The node as the view depends on it.
    fn node_context(&self) -> NodeContext {
        let name = self.context.as_ref().map_or_else(|| "".into(), |it| Arc::clone(&it.name));
        let snapshot = self.store.as_ref().and_then(|store| store.snapshot());
        NodeContext::new(Arc::clone(&name), snapshot.as_ref().and_then(|it| it.node(&name)))
    }
}

fn refusal(error: &WriteError) -> Refusal {
    match error {
        WriteError::Conflict(_)
        | WriteError::TooMany(_)
        | WriteError::Changed { .. }
        | WriteError::Elsewhere { .. } => Refusal::Conflict(error.to_string()),
        _ => Refusal::Unavailable(error.to_string()),
    }
}

impl Agent for AdminAgent {
    fn status(&self) -> String {
        serde_json::to_string_pretty(&self.monitor.report()).unwrap_or_default() + "\n"
    }

    fn figures(&self) -> BoxFuture<'_, Figures> {
        async {
            self.notice().await;
            let figures = self.health_figures();
            #[cfg(unix)]
            let figures = Figures { http: self.asked.figures(&self.monitor).await, ..figures };
            figures
        }
        .boxed()
    }

    fn overview(&self) -> Overview {
        self.make_overview()
    }

    fn network(&self) -> BoxFuture<'_, Network> {
        async {
            #[cfg(unix)]
            let known = self.ask_worker().await;
            self.flows.look(|| self.known_services(), self.programming.as_ref()).await;
            let mut network = Network { at_ms: now_ms(), ..Network::default() };
            self.add_services(&mut network);
            self.add_pods(&mut network).await;
            #[cfg(unix)]
            self.add_routes(&mut network, &known);
            network
        }
        .boxed()
    }

    fn service(&self, key: &Key) -> Option<ServiceDetail> {
        self.service_detail(key)
    }

    fn endpoints(&self, keys: &[&Key]) -> Vec<Vec<EndpointItem>> {
        self.endpoints_of(keys)
    }

    fn rules<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Result<Rules, Refusal>> {
        async { self.show_rules(key).await }.boxed()
    }

    fn trace<'a>(
        &'a self,
        question: &'a TraceQuestion,
    ) -> BoxFuture<'a, Result<TraceAnswer, Refusal>> {
        async { self.show_trace(question).await }.boxed()
    }

    fn purge<'a>(&'a self, what: &'a Purge, dry_run: bool) -> BoxFuture<'a, Result<u64, Refusal>> {
        async move {
            #[cfg(unix)]
            let purged = self.purge_cache(what, dry_run).await;
            #[cfg(not(unix))]
            let purged = Err(Refusal::Unavailable(format!(
                "no ingress runs here: {what:?}, dry run: {dry_run}"
            )));
            purged
        }
        .boxed()
    }

    fn resync(&self) -> Result<Vec<String>, Refusal> {
        let loops: Vec<_> = self.monitor.sync_loops().collect();
        #[cfg(unix)]
        let ingress = self.monitor.ingress();
        #[cfg(not(unix))]
        let ingress: Option<()> = None;
        if loops.is_empty() && ingress.is_none() {
            return Err(Refusal::Unavailable("nothing is programmed here".to_owned()));
        }
        for handle in &loops {
            // A full sync compiles everything, one for drift also looks at the kernel.
            handle.resync();
            handle.drift_suspected();
        }
        #[cfg(unix)]
        if let Some(ingress) = ingress {
            ingress.resync();
        }
        Ok(vec![format!("{} sync loops", loops.len())])
    }

    fn ended(&self) -> Vec<Arc<Override>> {
        self.store.as_ref().map(|store| store.ended_overrides()).unwrap_or_default()
    }

    fn remove_ended(
        &self,
        ended: Vec<Arc<Override>>,
    ) -> BoxFuture<'_, Result<Vec<ObjectKey>, Refusal>> {
        async move {
            let seen = ended.iter().map(|it| Override::clone(it)).collect();
            self.writer.remove_seen(seen).await.map_err(|error| refusal(&error))
        }
        .boxed()
    }

    fn overrides(&self) -> Vec<Arc<Override>> {
        self.known_overrides()
    }

    fn decide(&self, steps: Vec<Step>) -> BoxFuture<'_, Result<(), Refusal>> {
        async {
            let change = |Step { key, before, after }| Change { key, before, after };
            let changes = steps.into_iter().map(change).collect();
            self.writer.write(changes).await.map_err(|error| refusal(&error))
        }
        .boxed()
    }

    fn read_only_because(&self) -> Option<String> {
        self.writer.read_only_because().map(str::to_owned)
    }

    fn review<'a>(
        &'a self,
        token: &'a str,
    ) -> BoxFuture<'a, Result<Option<(String, Role)>, Refusal>> {
        async {
            let Some(client) = &self.client else { return Ok(None) };
            let reviewed = telaio_source::kube::review(client, token).await.map_err(|error| {
                tracing::warn!(%error, "cannot tell whose a token of the admin API is");
                Refusal::Unavailable(format!("{error}; the agent's own tokens count at any time"))
            })?;
            Ok(reviewed.and_then(|it| match (it.may_write, it.may_read) {
                (true, _) => Some((it.name, Role::Admin)),
                (false, true) => Some((it.name, Role::Read)),
                (false, false) => None,
            }))
        }
        .boxed()
    }
}
