//! The worker: serves, and knows nothing but what comes by the link. When the link closes it lets
//! requests that run end, and ends.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use telaio_gateway::class::ClassSettings;
use telaio_gateway::{
    Commit, EventListener, GatewaySettings, IngressEvent, IngressProcessor, Reason, TableSink,
    View, Warning,
};
use telaio_http_proxy::front::{Front, FrontHandler};
use telaio_http_proxy::proxy_protocol::Trust;
use telaio_http_proxy::server::{Listener, Server};
use telaio_http_proxy::table::TableChange;
use telaio_http_proxy::tls::{CertificateStore, TlsAcceptor, TlsLimits};
use telaio_http_proxy::watch::inspect::Inspector;
use telaio_http_proxy::{HttpProxy, ProxySettings};
use telaio_model::{ObjectKey, Op};
use tokio::io::{AsyncRead, BufReader};
use tokio::net::UnixStream;
use tokio::sync::{mpsc, oneshot};

use super::control::Desk;
use super::link::{self, Frame, Kind, Sockets};
use crate::cli::LogArgs;
use crate::exit::CommandError;
use crate::logging::{LogFormat, Logging};

/// How many reports may wait for the plane.
const REPORTS_MAX: usize = 256;
/// How many pages of answers may.
const PAGES_WAITING_MAX: usize = 4;

/// How a worker is to work.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct WorkerSettings {
    pub(crate) class: String,
    pub(crate) classless: bool,
    pub(crate) default_certificate: Option<ObjectKey>,
    pub(crate) trusted_proxies: Vec<IpNet>,
    pub(crate) threads: usize,
    pub(crate) drain: Duration,
    pub(crate) cookie_secret: [u8; 32],
    /// The user and group to become; none stays who it is.
    pub(crate) user: Option<u32>,
    pub(crate) log_level: String,
    pub(crate) log_json: bool,
}

/// What a worker tells the plane.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Report {
    /// The first routes are loaded, and requests are served.
    Serving,
    /// What changed with the table: how many routes there are, warnings, and whose Ingresses.
    Changed {
        routes: usize,
        warnings: BTreeMap<String, Vec<(String, String)>>,
        ours: BTreeMap<String, bool>,
    },
    /// It cannot work.
    Failed(String),
}

/// `telaio ingress-worker`: a worker whose link is its standard input.
pub(crate) fn worker() -> Result<(), CommandError> {
    let link = io::stdin().as_fd().try_clone_to_owned().map_err(anyhow::Error::from)?;
    run(StdUnixStream::from(link), true).map_err(|error| {
        CommandError::failed(format!(
            "the ingress worker cannot work over its standard input: {error}"
        ))
    })
}

/// Works until the link closes or says so, then lets requests end.
pub(crate) fn run(link: StdUnixStream, own_process: bool) -> io::Result<()> {
    let sockets = Sockets::receive(&link)?;
    link.set_nonblocking(true)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let (input, mut output) = UnixStream::from_std(link)?.into_split();
        let mut input = BufReader::new(input);
        let first = link::read(&mut input).await?;
        let settings: WorkerSettings = match first {
            Some(frame) if frame.kind == Kind::Settings => frame.read_json()?,
            _ => return Err(io::Error::other("the first frame is no settings")),
        };
        if own_process {
            begin_process(&settings)?;
        }
        let (reports, mut waiting) = mpsc::channel::<Report>(REPORTS_MAX);
        let (answers, mut pages) = mpsc::channel::<Frame>(PAGES_WAITING_MAX);
        let writing = tokio::spawn(async move {
            loop {
                let frame = tokio::select! {
                    biased;
                    report = waiting.recv() => {
                        // Whoever reports is gone: so is the worker.
                        let Some(report) = report else { return };
                        let Ok(frame) = Frame::json(Kind::Report, &report) else { continue };
                        frame
                    }
                    Some(page) = pages.recv() => page,
                };
                if link::write(&mut output, &frame).await.is_err() {
                    return;
                }
            }
        });
        let outcome = serve(settings, sockets, input, reports, answers).await;
        drop(writing.await);
        outcome
    })
}

/// Gives up every privilege. Nothing of anybody's has been read before this.
fn begin_process(settings: &WorkerSettings) -> io::Result<()> {
    use rustix::thread::{
        set_no_new_privs, set_thread_groups, set_thread_res_gid, set_thread_res_uid,
    };
    // This thread is the only one yet, and those to come are as it is.
    if let Some(user) = settings.user {
        let (uid, gid) =
            (rustix::process::Uid::from_raw(user), rustix::process::Gid::from_raw(user));
        set_thread_groups(&[])?;
        set_thread_res_gid(gid, gid, gid)?;
        set_thread_res_uid(uid, uid, uid)?;
    }
    set_no_new_privs(true)?;
    let log = LogArgs {
        log_level: settings.log_level.parse().map_err(io::Error::other)?,
        log_format: if settings.log_json { LogFormat::Json } else { LogFormat::Text },
        // Lines go to the agent, by standard error.
        log_file: None,
    };
    Logging::start(&log).map(|_| ()).map_err(io::Error::other)
}

async fn serve(
    settings: WorkerSettings,
    sockets: Sockets,
    input: impl AsyncRead + Unpin + Send,
    reports: mpsc::Sender<Report>,
    answers: mpsc::Sender<Frame>,
) -> io::Result<()> {
    let failed = |error: &dyn std::fmt::Display| io::Error::other(error.to_string());
    let store = Arc::new(CertificateStore::new().map_err(|error| failed(&error))?);
    let acceptor = TlsAcceptor::new(store, TlsLimits::default()).map_err(|error| failed(&error))?;
    let acceptor = Arc::new(acceptor);
    let proxy = HttpProxy::new(ProxySettings {
        trusted_proxies: settings.trusted_proxies.clone(),
        cookie_secret: settings.cookie_secret,
        ..ProxySettings::default()
    });
    let proxy = Arc::new(proxy.with_tls(Arc::clone(&acceptor)));
    let (first, loaded) = oneshot::channel();
    let inspector = Arc::new(Inspector::new(Arc::clone(&proxy)));
    let desk = Desk::open(Arc::clone(&inspector), answers);
    let sink =
        Sink { proxy: Arc::clone(&proxy), inspector, reports: reports.clone(), first: Some(first) };
    let gateway = GatewaySettings {
        class: ClassSettings {
            name: settings.class.as_str().into(),
            classless: settings.classless,
            ..ClassSettings::default()
        },
        default_certificate: settings.default_certificate.clone(),
    };
    let (listener, events) = EventListener::new();
    let processing = tokio::spawn(IngressProcessor::new(gateway, events, sink).process_events());
    let threads = settings.threads;
    let starting = tokio::spawn(async move {
        // Connections wait in the sockets until there are routes to serve them by.
        loaded.await.ok()?;
        let listeners = listeners(sockets, &acceptor);
        match Server::start(&proxy, listeners, threads) {
            Ok(server) => {
                let _ = reports.send(Report::Serving).await;
                Some(server)
            }
            Err(error) => {
                let _ = reports.send(Report::Failed(error.to_string())).await;
                None
            }
        }
    });
    // Ends with the link, or when it says stop.
    let _ = listener.start_listening(LinkView { input, desk }).await;
    processing.abort();
    if let Ok(Some(server)) = starting.await {
        tracing::info!(connections = server.connections(), "requests that run may end");
        let drained = tokio::task::spawn_blocking(move || server.drain(settings.drain)).await;
        if !matches!(drained, Ok(true)) {
            tracing::warn!("not all requests ended in time");
        }
    }
    Ok(())
}

fn listeners(sockets: Sockets, acceptor: &Arc<TlsAcceptor>) -> Vec<Listener> {
    let http = Listener { sockets: sockets.http, handler: None };
    let front = Front::tls(Trust::default(), Arc::clone(acceptor));
    let handler = Arc::new(FrontHandler(Arc::new(front)));
    let https = Listener { sockets: sockets.https, handler: Some(handler) };
    [http, https].into_iter().filter(|listener| !listener.sockets.is_empty()).collect()
}

/// The view as it comes by the link.
struct LinkView<R> {
    input: R,
    desk: Desk,
}

impl<R: AsyncRead + Unpin + Send> View for LinkView<R> {
    async fn next(&mut self) -> Option<Vec<Op>> {
        let mut ops = Vec::new();
        loop {
            let frame = match link::read(&mut self.input).await {
                Ok(Some(frame)) => frame,
                // The plane closes the link to end us, perhaps within a frame.
                Ok(None) => return None,
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return None,
                Err(error) => {
                    tracing::error!(%error, "the link to the agent is broken");
                    return None;
                }
            };
            match frame.kind {
                Kind::Op => match frame.read_op() {
                    Ok(None) => {}
                    Ok(Some(op)) => {
                        let complete = op == Op::Sync;
                        ops.push(op);
                        if complete {
                            return Some(ops);
                        }
                    }
                    Err(error) => tracing::warn!(%error, "an object is left out"),
                },
                Kind::Ask => match frame.read_json() {
                    Ok(ask) => self.desk.ask(ask),
                    Err(error) => tracing::warn!(%error, "a question cannot be read"),
                },
                Kind::Settings | Kind::Report | Kind::Answer => {}
            }
        }
    }
}

/// Puts changes into the proxy, and tells the plane.
struct Sink {
    proxy: Arc<HttpProxy>,
    inspector: Arc<Inspector>,
    reports: mpsc::Sender<Report>,
    first: Option<oneshot::Sender<()>>,
}

impl TableSink for Sink {
    fn apply(&mut self, change: TableChange) {
        for problem in self.proxy.apply(&change) {
            tracing::warn!(route = %problem.route, "{}", problem.message);
        }
        if let Some(first) = self.first.take() {
            // Nobody may wait for it any more.
            let _ = first.send(());
        }
    }

    fn tell(&mut self, commit: &Commit) {
        let text =
            |warning: &Warning| (warning.reason.as_str().to_owned(), warning.message.to_string());
        let warnings: BTreeMap<String, Vec<(String, String)>> = commit
            .warnings
            .iter()
            .map(|(key, all)| (key.to_string(), all.iter().map(text).collect()))
            .collect();
        for (ingress, list) in &warnings {
            self.inspector.set_warnings(ingress.clone(), list.clone());
        }
        let report = Report::Changed {
            routes: self.proxy.router().len(),
            warnings,
            ours: commit.ours.iter().map(|(key, it)| (key.to_string(), it.is_some())).collect(),
        };
        // The plane may be slow or gone; what is missed is only told, and the next report tells more.
        if self.reports.try_send(report).is_err() {
            tracing::debug!("a report was left out");
        }
    }

    fn note(&mut self, _event: &IngressEvent) {}
}

/// Reads a reason back from its text.
pub(super) fn reason(text: &str) -> Reason {
    let all = [
        Reason::BadAnnotation,
        Reason::RefusedAnnotation,
        Reason::UnknownAnnotation,
        Reason::Conflict,
        Reason::BackendMissing,
        Reason::BadSecret,
        Reason::BadConfigMap,
        Reason::BadPath,
        Reason::CanaryAlone,
    ];
    all.into_iter().find(|reason| reason.as_str() == text).unwrap_or(Reason::BadAnnotation)
}
