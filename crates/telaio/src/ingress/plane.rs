//! The plane: holds the sockets, feeds the worker, and starts another when one ends.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream as StdUnixStream;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use telaio_http_proxy::watch::metrics::HttpMetrics;
use tokio::io::{AsyncWrite, AsyncWriteExt, BufReader, BufWriter};
use tokio::net::UnixStream;
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::task::JoinHandle;

use super::access_log::LogFiles;
use super::control::{Ask, ControlError, IngressControl};
use super::link::{self, Frame, HeldSockets, Kind, Sockets};
use super::status::Told;
use super::view::IngressView;
use super::worker::{self, Report, WorkerSettings};
use crate::feeder::ViewOrigin;
use crate::servers::is_one_port_of;

/// The shortest and the longest pause before a worker that ended is followed by another.
const RESTART_PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(10));
/// A worker that lived for so long was well: the next pause is the shortest again.
const WELL_AFTER: Duration = Duration::from_mins(1);
/// How long a scrape waits for the worker's figures.
const METRICS_TIME_MAX: Duration = Duration::from_secs(3);
/// How much longer than its requests a worker may take to end.
const END_TIME: Duration = Duration::from_secs(2);
/// How long it may take to close its listening sockets.
const CLOSE_TIME_MAX: Duration = Duration::from_secs(3);

/// How the ingress is, for whoever asks.
#[derive(Debug, Default)]
pub(crate) struct IngressState {
    /// The worker has its first routes.
    ready: watch::Sender<bool>,
    serving: watch::Sender<bool>,
    routes: AtomicUsize,
    restarts: AtomicU64,
    /// The worker has closed its listening sockets.
    closed: watch::Sender<bool>,
    control: IngressControl,
    metrics: Arc<HttpMetrics>,
    /// The worker is to be told everything again.
    repeat: Notify,
}

impl IngressState {
    /// Has the worker told everything again: what it has and should not have goes, what it lacks comes.
    /// Requests go on.
    pub(crate) fn resync(&self) {
        self.repeat.notify_one();
    }

    /// Figures of requests, as they last were.
    pub(crate) fn metrics(&self) -> &Arc<HttpMetrics> {
        &self.metrics
    }

    /// Asks for figures of requests as they are now. They stay as they were if the worker does not say.
    pub(crate) async fn refresh_metrics(&self) {
        let asking = async {
            let stats = self.control.stats().await?;
            let certificates = self.control.certificates().await?;
            self.metrics.take(&stats, certificates);
            Ok::<_, ControlError>(())
        };
        match tokio::time::timeout(METRICS_TIME_MAX, asking).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::debug!(%error, "no new figures of the ingress"),
            Err(_) => tracing::debug!("no new figures of the ingress in time"),
        }
    }

    /// Asks the worker.
    pub(crate) fn control(&self) -> &IngressControl {
        &self.control
    }

    /// The first routes are loaded, and requests are served.
    pub(crate) fn is_serving(&self) -> bool {
        *self.serving.borrow()
    }

    /// How many routes there are.
    pub(crate) fn routes(&self) -> usize {
        self.routes.load(Ordering::Relaxed)
    }

    /// How many workers ended that should not have.
    pub(crate) fn restarts(&self) -> u64 {
        self.restarts.load(Ordering::Relaxed)
    }
}

/// What the plane needs.
pub(crate) struct PlaneOptions {
    pub(crate) worker: WorkerSettings,
    /// The worker gets a process of its own.
    pub(crate) own_process: bool,
    pub(crate) origin: ViewOrigin,
    pub(crate) node: Arc<str>,
    pub(crate) told: Told,
    pub(crate) log_files: LogFiles,
}

/// Takes an address for as many threads, to which nobody can connect before the plane
/// [goes](IngressPlane::go). Sockets that share a port among threads would also share it with another
/// process, which must be no other than the agent that runs, at one of these addresses.
pub(crate) fn take_address(
    flag: &str,
    address: SocketAddr,
    threads: usize,
    running: &[SocketAddr],
) -> Result<Vec<TcpListener>> {
    if !is_one_port_of(address, running) {
        drop(crate::servers::bind(flag, address)?);
    }
    telaio_http_proxy::server::bind(address, threads)
        .with_context(|| format!("cannot listen on {address}; give another address with {flag}"))
}

/// The running plane.
#[derive(Debug)]
pub(crate) struct IngressPlane {
    state: Arc<IngressState>,
    sockets: Arc<HeldSockets>,
    log_files: LogFiles,
    origin: watch::Sender<ViewOrigin>,
    go: watch::Sender<bool>,
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl IngressPlane {
    /// Starts it: it loads routes, and serves when it is told to [go](Self::go). Must be called within the
    /// runtime.
    pub(crate) fn start(options: PlaneOptions, sockets: Sockets) -> Self {
        let state = Arc::new(IngressState::default());
        let address = |list: &[TcpListener]| {
            list.first().and_then(|it| it.local_addr().ok()).map(|it| it.to_string())
        };
        tracing::info!(
            http = address(&sockets.http),
            https = address(&sockets.https),
            own_process = options.own_process,
            "the ingress listens"
        );
        let (origin, following) = watch::channel(options.origin.clone());
        let (go, may_go) = watch::channel(false);
        let sockets = Arc::new(HeldSockets::new(sockets));
        let (stop, stopped) = watch::channel(false);
        let log_files = options.log_files.clone();
        let keeper = Keeper {
            options,
            state: Arc::clone(&state),
            sockets: Arc::clone(&sockets),
            following,
            may_go,
            stopped,
        };
        let task = tokio::spawn(keeper.run());
        Self { state, sockets, log_files, origin, go, stop, task }
    }

    /// Lets people connect, and serves them as soon as there are routes.
    pub(crate) fn go(&self) -> io::Result<()> {
        if let Some(sockets) = self.sockets.get() {
            sockets.open()?;
        }
        self.go.send_replace(true);
        Ok(())
    }

    /// Waits until it has routes to serve by.
    pub(crate) async fn ready(&self) {
        until(&self.state.ready).await;
    }

    /// Waits until it serves.
    pub(crate) async fn serving(&self) {
        until(&self.state.serving).await;
    }

    /// Follows the view of another origin from now on, which differs as little as may be.
    pub(crate) fn follow(&self, origin: ViewOrigin) {
        self.origin.send_replace(origin);
        self.state.resync();
    }

    /// How it is.
    pub(crate) fn state(&self) -> &Arc<IngressState> {
        &self.state
    }

    /// Its sockets, for who takes them over.
    pub(crate) fn sockets(&self) -> &Arc<HeldSockets> {
        &self.sockets
    }

    /// Opens the access log anew: somebody may have moved the file away.
    pub(crate) fn reopen_log(&self) {
        self.log_files.reopen();
    }

    /// Lets go of the sockets: nobody can connect any more, unless another agent has taken them over.
    pub(crate) async fn close(&self) {
        self.stop.send_replace(true);
        let mut closed = self.state.closed.subscribe();
        if tokio::time::timeout(CLOSE_TIME_MAX, closed.wait_for(|closed| *closed)).await.is_err() {
            tracing::warn!("the ingress worker did not close its sockets in time");
        }
    }

    /// Ends without having taken over: the sockets are another agent's still.
    pub(crate) async fn leave(self) {
        // As if somebody had copies, as is the case.
        let _ = self.sockets.lend();
        self.close().await;
        self.drain().await;
    }

    /// Lets requests that run end. Nothing new is taken.
    pub(crate) async fn drain(self) {
        self.stop.send_replace(true);
        // A fault in there has been logged.
        let _ = self.task.await;
    }
}

/// Waits until it is so.
async fn until(what: &watch::Sender<bool>) {
    // It cannot be gone: we have it.
    let _ = what.subscribe().wait_for(|it| *it).await;
}

/// Keeps a worker running.
struct Keeper {
    options: PlaneOptions,
    state: Arc<IngressState>,
    sockets: Arc<HeldSockets>,
    /// Where the view comes from.
    following: watch::Receiver<ViewOrigin>,
    may_go: watch::Receiver<bool>,
    stopped: watch::Receiver<bool>,
}

impl Keeper {
    async fn run(mut self) {
        let mut pause = RESTART_PAUSES.0;
        while !*self.stopped.borrow() {
            let began = tokio::time::Instant::now();
            let outcome = self.work_once().await;
            self.state.ready.send_replace(false);
            self.state.serving.send_replace(false);
            if *self.stopped.borrow() {
                break;
            }
            self.state.restarts.fetch_add(1, Ordering::Relaxed);
            if began.elapsed() >= WELL_AFTER {
                pause = RESTART_PAUSES.0;
            }
            match outcome {
                Ok(how) => {
                    tracing::error!(how, ?pause, "the ingress worker ended; starting another");
                }
                Err(error) => {
                    tracing::error!(%error, ?pause, "the ingress worker failed; trying again");
                }
            }
            let mut stopped = self.stopped.clone();
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                _ = stopped.wait_for(|stop| *stop) => {}
            }
            pause = (pause * 2).min(RESTART_PAUSES.1);
        }
        // Whoever waits for that need not any more: no worker is left.
        self.state.closed.send_replace(true);
        self.options.told.end().await;
    }

    /// Starts a worker and attends to it until it ends. Says how it did.
    async fn work_once(&mut self) -> io::Result<String> {
        let (ours, theirs) = StdUnixStream::pair()?;
        let ended =
            if self.options.own_process { start_process(theirs)? } else { start_thread(theirs)? };
        let Some(sockets) = self.sockets.get() else { return Ok("not begun".to_owned()) };
        // A few bytes into an empty socket: it cannot block.
        sockets.send(&ours)?;
        drop(sockets);
        link::send_descriptor(&ours, self.options.log_files.attach()?.as_fd())?;
        ours.set_nonblocking(true)?;
        let link = UnixStream::from_std(ours)?;
        let attended = self.attend(link).await;
        let drain = self.options.worker.drain + END_TIME;
        let ended = tokio::time::timeout(drain, ended);
        let how = if *self.stopped.borrow() {
            // Whoever comes next writes status; requests that run need nobody to.
            tokio::join!(ended, self.options.told.end()).0
        } else {
            ended.await
        };
        attended?;
        Ok(match how {
            Ok(Ok(how)) => how,
            Ok(Err(_)) => "nobody knows how".to_owned(),
            Err(_) => "it does not end".to_owned(),
        })
    }

    /// Feeds the worker until the link closes, or until we are stopped, which closes it.
    async fn attend(&mut self, link: UnixStream) -> io::Result<()> {
        let (input, output) = link.into_split();
        let mut output = BufWriter::new(output);
        let settings = Frame::json(Kind::Settings, &self.options.worker)?;
        link::write(&mut output, &settings).await?;
        output.flush().await?;
        // The view and questions go by the same link, a frame at a time.
        let output = tokio::sync::Mutex::new(output);
        let asked = self.state.control.attach();
        let _detached = Detach(&self.state.control);
        let follow = || IngressView::follow(&self.following.borrow(), &self.options.node);
        let mut view = follow();
        let (state, told) = (Arc::clone(&self.state), self.options.told.clone());
        told.begin();
        let mut reading = tokio::spawn(read_reports(BufReader::new(input), state, told));
        let mut stopped = self.stopped.clone();
        let feeding = async {
            loop {
                let ops = tokio::select! {
                    // The view that was followed so far may end when there is another.
                    biased;
                    () = self.state.repeat.notified() => {
                        // A view that is followed anew begins with all that there is.
                        view = follow();
                        continue;
                    }
                    ops = view.next() => ops,
                };
                let Some(ops) = ops else { return Ok(()) };
                for op in &ops {
                    self.options.told.see(op);
                    if let Some(frame) = Frame::op(op) {
                        link::write(&mut *output.lock().await, &frame).await?;
                    }
                }
                output.lock().await.flush().await?;
            }
        };
        let ended = tokio::select! {
            fed = feeding => fed,
            failed = pass_go(self.may_go.clone(), &output) => failed,
            failed = pass_questions(asked, &output) => failed,
            _ = &mut reading => Ok(()),
            _ = stopped.wait_for(|stop| *stop) => Ok(()),
        };
        if *self.stopped.borrow() {
            let end = Frame::json(Kind::End, &self.sockets.let_go())?;
            let mut output = output.into_inner();
            // Should a frame have been cut, the worker cannot read this, and lets go of the sockets as if
            // another agent had them: that is never wrong.
            link::write(&mut output, &end).await?;
            output.flush().await?;
        }
        ended
    }
}

/// Who waits for the worker's answer is told when it is gone.
struct Detach<'a>(&'a IngressControl);

impl Drop for Detach<'_> {
    fn drop(&mut self) {
        self.0.detach();
    }
}

/// Tells the worker when it may go; ends only by a failure.
async fn pass_go(
    mut may_go: watch::Receiver<bool>,
    output: &tokio::sync::Mutex<impl AsyncWrite + Unpin>,
) -> io::Result<()> {
    if may_go.wait_for(|go| *go).await.is_ok() {
        let mut output = output.lock().await;
        link::write(&mut *output, &Frame::empty(Kind::Go)).await?;
        output.flush().await?;
    }
    std::future::pending().await
}

/// Passes questions on to the worker; ends only by a failure.
async fn pass_questions(
    mut asked: mpsc::Receiver<Ask>,
    output: &tokio::sync::Mutex<impl AsyncWrite + Unpin>,
) -> io::Result<()> {
    while let Some(ask) = asked.recv().await {
        let frame = Frame::json(Kind::Ask, &ask)?;
        let mut output = output.lock().await;
        link::write(&mut *output, &frame).await?;
        output.flush().await?;
    }
    std::future::pending().await
}

async fn read_reports(
    mut input: BufReader<tokio::net::unix::OwnedReadHalf>,
    state: Arc<IngressState>,
    told: Told,
) {
    while let Ok(Some(frame)) = link::read(&mut input).await {
        match frame.kind {
            Kind::Report => {}
            Kind::Answer => {
                match frame.read_json() {
                    Ok(page) => state.control.take(page),
                    Err(error) => tracing::warn!(%error, "an answer of the worker cannot be read"),
                }
                continue;
            }
            Kind::Settings | Kind::Op | Kind::Ask | Kind::End | Kind::Go => continue,
        }
        match frame.read_json() {
            Ok(Report::Ready) => drop(state.ready.send_replace(true)),
            Ok(Report::Serving) => {
                state.serving.send_replace(true);
                tracing::info!(routes = state.routes(), "the ingress serves");
            }
            Ok(Report::Changed { routes, warnings, ours }) => {
                state.routes.store(routes, Ordering::Relaxed);
                told.report(&warnings, &ours);
            }
            Ok(Report::Loaded) => told.loaded(),
            Ok(Report::Closed) => drop(state.closed.send_replace(true)),
            Ok(Report::Failed(why)) => tracing::error!(why, "the ingress cannot serve"),
            Err(error) => tracing::warn!(%error, "a report of the ingress worker cannot be read"),
        }
    }
}

/// A worker in a process of its own. The link is its standard input; it gives up our privileges by
/// itself before it reads anything.
fn start_process(link: StdUnixStream) -> io::Result<oneshot::Receiver<String>> {
    let program = std::env::current_exe()?;
    let mut child = Command::new(program)
        .arg("ingress-worker")
        .env_clear()
        .stdin(Stdio::from(OwnedFd::from(link)))
        .stdout(Stdio::null())
        .spawn()?;
    let (tell, ended) = oneshot::channel();
    std::thread::Builder::new().name("ingress-wait".into()).spawn(move || {
        let how = child.wait().map_or_else(|error| error.to_string(), |status| status.to_string());
        // Nobody waits any more when we end.
        let _ = tell.send(how);
    })?;
    Ok(ended)
}

/// A worker in a thread of ours, over the same link.
fn start_thread(link: StdUnixStream) -> io::Result<oneshot::Receiver<String>> {
    let (tell, ended) = oneshot::channel();
    std::thread::Builder::new().name("ingress".into()).spawn(move || {
        let how =
            worker::run(link, false).map_or_else(|error| error.to_string(), |()| "ended".into());
        let _ = tell.send(how);
    })?;
    Ok(ended)
}
