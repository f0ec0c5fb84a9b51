//! The worker: serves, and knows nothing but what comes by the link. When the link closes it lets
//! requests that run end, and ends.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use telaio_gateway::class::ClassSettings;
use telaio_gateway::{
    Commit, EventListener, GatewaySettings, IngressEvent, IngressProcessor, Reason, TableSink,
    View, Warning,
};
use telaio_http_proxy::cache::CacheLimits;
use telaio_http_proxy::filter::client::Client;
use telaio_http_proxy::front::{Front, FrontHandler};
use telaio_http_proxy::h1::parse::HeadLimits;
use telaio_http_proxy::h1::relay::ClientTimeouts;
use telaio_http_proxy::proxy_protocol::Trust;
use telaio_http_proxy::server::{Closing, Handler, Listener, Server};
use telaio_http_proxy::table::TableChange;
use telaio_http_proxy::tls::upstream::Verify;
use telaio_http_proxy::tls::{CertificateStore, TlsAcceptor, TlsLimits};
use telaio_http_proxy::watch::Watch;
use telaio_http_proxy::watch::access_log::{AccessLog, Format};
use telaio_http_proxy::watch::inspect::Inspector;
use telaio_http_proxy::watch::otlp::Exporter;
use telaio_http_proxy::{HttpProxy, ProxySettings};
use telaio_model::{ObjectKey, Op};
use tokio::io::{AsyncRead, BufReader};
use tokio::net::UnixStream;
use tokio::sync::{mpsc, oneshot};

use super::access_log::LogWriter;
use super::changes::Changes;
use super::control::Desk;
use super::link::{self, Frame, Kept, Kind, Sockets};
use crate::cli::LogArgs;
use crate::exit::CommandError;
use crate::logging::{LogFormat, Logging};

/// How many reports may wait for the plane.
const REPORTS_MAX: usize = 256;
/// How many pages of answers may.
const PAGES_WAITING_MAX: usize = 4;
/// How long lines and spans that wait may take to be written at the end.
const FLUSH_TIME_MAX: Duration = Duration::from_secs(1);
/// How often it is looked whether the sockets are closed, and how long that may take.
const CLOSE_PAUSES: (Duration, u32) = (Duration::from_millis(5), 400);

/// How a worker is to work.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct WorkerSettings {
    pub(crate) class: String,
    pub(crate) classless: bool,
    pub(crate) default_certificate: Option<ObjectKey>,
    pub(crate) trusted_proxies: Vec<IpNet>,
    /// Where HTTP is redirected to, if that is another port than the one that HTTPS is served on.
    pub(crate) redirect_port: Option<u16>,
    pub(crate) threads: usize,
    pub(crate) bounds: Bounds,
    /// Whether names may lead to the node itself.
    pub(crate) local_targets: bool,
    pub(crate) drain: Duration,
    pub(crate) cookie_secret: [u8; 32],
    /// The user and group to become; none stays who it is.
    pub(crate) user: Option<u32>,
    pub(crate) log_level: String,
    pub(crate) log_json: bool,
    /// The networks whose connections begin with a PROXY header.
    pub(crate) proxy_protocol: Vec<IpNet>,
    pub(crate) access_log: Option<AccessLogSettings>,
    pub(crate) traces: Option<TraceSettings>,
}

/// What clients may take, and what is kept for them.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Bounds {
    pub(crate) connections_max: u32,
    pub(crate) body_bytes_per_s_min: u32,
    pub(crate) head_bytes_max: u64,
    pub(crate) head_timeout: Duration,
    pub(crate) keep_alive: Duration,
    pub(crate) cache_bytes_max: u64,
    pub(crate) cache_entry_bytes_max: u64,
}

impl Bounds {
    fn heads(&self) -> HeadLimits {
        let head_bytes_max = usize::try_from(self.head_bytes_max).unwrap_or(usize::MAX);
        HeadLimits { head_bytes_max, target_bytes_max: head_bytes_max / 4 }
    }

    fn timeouts(&self) -> ClientTimeouts {
        let (head, keep_alive) = (self.head_timeout, self.keep_alive);
        ClientTimeouts { head, keep_alive, ..ClientTimeouts::default() }
    }

    fn cache(&self) -> CacheLimits {
        CacheLimits {
            bytes_max: self.cache_bytes_max,
            entry_bytes_max: self.cache_entry_bytes_max.min(self.cache_bytes_max),
            ..CacheLimits::default()
        }
    }
}

/// How the access log is written.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct AccessLogSettings {
    pub(crate) combined: bool,
    /// One request in so many.
    pub(crate) every: u64,
}

/// Where spans go.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct TraceSettings {
    pub(crate) url: String,
    pub(crate) service: String,
    /// One request in so many that belongs to no trace begins one.
    pub(crate) every: u64,
}

/// What a worker tells the plane.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Report {
    /// The first routes are loaded: requests could be served.
    Ready,
    /// Requests are served.
    Serving,
    /// What changed with the table: how many routes there are, warnings, and whose Ingresses.
    Changed {
        routes: usize,
        warnings: BTreeMap<String, Vec<(String, String)>>,
        ours: BTreeMap<String, bool>,
    },
    /// All that holds at first was told.
    Loaded,
    /// Its listening sockets are closed; requests may still run.
    Closed,
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
    let files = link::receive_descriptor(&link)?;
    let files = files.ok_or_else(|| io::Error::other("no socket for the log's files came"))?;
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
        let changes = Arc::new(Changes::default());
        let changed = Arc::clone(&changes);
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
                    report = changed.next() => {
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
        let watch = watch(&settings, files.into())?;
        let outcome = serve(settings, sockets, input, (reports, answers, changes), &watch).await;
        // What was seen of the last requests is told, too.
        if let Some(traces) = &watch.traces {
            traces.flush(FLUSH_TIME_MAX).await;
        }
        if watch.log.as_ref().is_some_and(|log| !log.flush(FLUSH_TIME_MAX)) {
            tracing::warn!("the last lines of the access log could not be written in time");
        }
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
    (reports, answers, changes): (mpsc::Sender<Report>, mpsc::Sender<Frame>, Arc<Changes>),
    watch: &Arc<Watch>,
) -> io::Result<()> {
    let failed = |error: &dyn std::fmt::Display| io::Error::other(error.to_string());
    let store = Arc::new(CertificateStore::new().map_err(|error| failed(&error))?);
    let acceptor = TlsAcceptor::new(store, TlsLimits::default()).map_err(|error| failed(&error))?;
    let acceptor = Arc::new(acceptor);
    let proxy = HttpProxy::new(ProxySettings {
        https_port: settings.redirect_port.or_else(|| sockets.https_port()).unwrap_or(443),
        trusted_proxies: settings.trusted_proxies.clone(),
        cookie_secret: settings.cookie_secret,
        local_targets: settings.local_targets,
        connections_max: settings.bounds.connections_max as usize,
        body_bytes_per_s_min: settings.bounds.body_bytes_per_s_min,
        limits: settings.bounds.heads(),
        timeouts: settings.bounds.timeouts(),
        cache: settings.bounds.cache(),
    });
    let mut proxy = proxy.with_tls(Arc::clone(&acceptor));
    if watch.log.is_some() || watch.traces.is_some() {
        proxy = proxy.with_observer(Arc::clone(watch) as _);
    }
    if let Some(traces) = &watch.traces {
        proxy = proxy.with_traces(Arc::clone(traces));
    }
    let proxy = Arc::new(proxy);
    let (first, loaded) = oneshot::channel();
    let (go, told_to_go) = oneshot::channel();
    let inspector = Arc::new(Inspector::new(Arc::clone(&proxy)));
    let desk = Desk::open(Arc::clone(&inspector), answers);
    let sink = Sink { proxy: Arc::clone(&proxy), inspector, changes, first: Some(first) };
    let gateway = GatewaySettings {
        class: ClassSettings {
            name: settings.class.as_str().into(),
            classless: settings.classless,
            ..ClassSettings::default()
        },
        default_certificate: settings.default_certificate.clone(),
        local_targets: settings.local_targets,
    };
    let (listener, events) = EventListener::new();
    let processing = tokio::spawn(IngressProcessor::new(gateway, events, sink).process_events());
    let (threads, trust) = (settings.threads, Trust::new(settings.proxy_protocol.clone()));
    let closed = reports.clone();
    let starting = tokio::spawn(async move {
        // Connections wait in the sockets until there are routes to serve them by, or are served by the
        // agent before us.
        loaded.await.ok()?;
        let _ = reports.send(Report::Ready).await;
        told_to_go.await.ok()?;
        let listeners = listeners(sockets, &acceptor, &trust);
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
    let kept = Arc::new(Mutex::new(Kept::BOTH));
    let view = LinkView { input, desk, go: Some(go), kept: Arc::clone(&kept) };
    let _ = listener.start_listening(view).await;
    processing.abort();
    if let Ok(Some(server)) = starting.await {
        // Unless we were told that nobody else has the sockets, others may.
        let Kept { http, https } = *kept.lock();
        server.stop_each(
            &[http, https].map(|kept| if kept { Closing::HandedOver } else { Closing::ForGood }),
        );
        for _ in 0..CLOSE_PAUSES.1 {
            if !server.is_listening() {
                break;
            }
            tokio::time::sleep(CLOSE_PAUSES.0).await;
        }
        let _ = closed.send(Report::Closed).await;
        tracing::info!(connections = server.connections(), "requests that run may end");
        let drained = tokio::task::spawn_blocking(move || server.drain(settings.drain)).await;
        if !matches!(drained, Ok(true)) {
            tracing::warn!("not all requests ended in time");
        }
    }
    Ok(())
}

/// What is told of requests. Must be called within the runtime.
fn watch(settings: &WorkerSettings, files: StdUnixStream) -> io::Result<Arc<Watch>> {
    let log = match &settings.access_log {
        None => None,
        Some(AccessLogSettings { combined, every }) => {
            let format = if *combined { Format::Combined } else { Format::Json };
            Some(AccessLog::start(format, *every, LogWriter::follow(files)?)?)
        }
    };
    let traces = match &settings.traces {
        None => None,
        Some(TraceSettings { url, service, every }) => {
            let url = url.parse().map_err(io::Error::other)?;
            let client = Client::new(&Verify::System);
            let (exporter, sending) = Exporter::new(url, service, *every, client);
            tokio::spawn(sending);
            Some(Arc::new(exporter))
        }
    };
    Ok(Arc::new(Watch { log, traces }))
}

fn listeners(sockets: Sockets, acceptor: &Arc<TlsAcceptor>, trust: &Trust) -> Vec<Listener> {
    // Also without TLS a client may speak HTTP/2 from the first byte on.
    let handler = |front: Front| Some(Arc::new(FrontHandler(Arc::new(front))) as Arc<dyn Handler>);
    let http = Listener { sockets: sockets.http, handler: handler(Front::plain(trust.clone())) };
    let front = Front::tls(trust.clone(), Arc::clone(acceptor));
    let https = Listener { sockets: sockets.https, handler: handler(front) };
    vec![http, https]
}

/// The view as it comes by the link.
struct LinkView<R> {
    input: R,
    desk: Desk,
    /// Told when connections may be accepted.
    go: Option<oneshot::Sender<()>>,
    /// Which sockets somebody else goes on with, once we were told to end.
    kept: Arc<Mutex<Kept>>,
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
                Kind::End => {
                    *self.kept.lock() = frame.read_json().unwrap_or(Kept::BOTH);
                    return None;
                }
                Kind::Go => {
                    // Whoever would begin may have failed already, which has been reported.
                    let _ = self.go.take().map(|go| go.send(()));
                }
                Kind::Settings | Kind::Report | Kind::Answer => {}
            }
        }
    }
}

/// Puts changes into the proxy, and tells the plane.
struct Sink {
    proxy: Arc<HttpProxy>,
    inspector: Arc<Inspector>,
    changes: Arc<Changes>,
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
        let ours = commit.ours.iter().map(|(key, it)| (key.to_string(), it.is_some()));
        self.changes.add(self.proxy.router().len(), warnings, ours);
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
