//! The ports on which a long-running command answers questions about itself.
//!
//! Probes and metrics have a thread and a runtime of their own, and so has the admin API, whose lists
//! take a while where there are many services: neither load nor a page starves a probe. Every
//! server's connections are bounded in number and time, so that nobody who can reach them can hold
//! the agent's file descriptors, or keep a probe out. One request per connection: those who ask here
//! ask seldom.

mod admin;
mod health;
mod listen;
mod metrics;
mod places;

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use axum::Router;
use axum::response::{IntoResponse, Response};
use http::{StatusCode, header};
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::cli::ListenArgs;
use crate::gui::Admin;
use crate::monitor::Monitor;

pub(crate) use admin::STATUS_PATH;
use listen::Port;
#[cfg(unix)]
pub(crate) use listen::is_one_port_of;
pub(crate) use listen::{bind, check_distinct, check_free};
use places::Places;

/// How many connections a server has at a time. All servers together stay well below the 1,024 file
/// descriptors that a process has where nobody set more.
const CONNECTIONS_MAX: usize = 256;
/// How long a connection may take to send its request. Those who ask here have it ready.
const REQUEST_TIME_MAX: Duration = Duration::from_secs(2);
/// How long a connection may take from its first byte to its last.
const CONNECTION_TIME_MAX: Duration = Duration::from_secs(30);

/// How many threads the admin API has.
const ADMIN_THREADS: usize = 2;
/// How long work of the admin API may go on when all else has ended.
const END_TIME_MAX: Duration = Duration::from_secs(1);

/// The ports in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Addresses {
    /// The admin API.
    pub(crate) admin: SocketAddr,
    /// `/metrics`.
    pub(crate) metrics: SocketAddr,
    /// `/healthz` and `/livez`.
    pub(crate) healthz: SocketAddr,
}

/// The ports that servers are to have.
#[derive(Debug)]
pub(crate) struct Ports {
    admin: Port,
    metrics: Port,
    healthz: Port,
}

impl Ports {
    /// Takes them. One that somebody has is an error, unless it is `to_come`: then it is taken when the
    /// servers start.
    pub(crate) fn take(args: &ListenArgs, to_come: &[SocketAddr]) -> Result<Self> {
        Ok(Self {
            admin: Port::take("--admin-listen", args.admin_listen, to_come)?,
            metrics: Port::take("--metrics-bind-address", args.metrics_bind_address, to_come)?,
            healthz: Port::take("--healthz-bind-address", args.healthz_bind_address, to_come)?,
        })
    }
}

/// The servers; dropping it ends them.
#[derive(Debug)]
pub(crate) struct Servers {
    /// Where they listen, with the port that the system chose where 0 was asked for.
    pub(crate) addresses: Addresses,
    stop: watch::Sender<bool>,
    threads: Vec<std::thread::JoinHandle<()>>,
}

#[cfg(unix)]
impl Addresses {
    /// All of them.
    pub(crate) fn all(self) -> [SocketAddr; 3] {
        [self.admin, self.metrics, self.healthz]
    }
}

impl Servers {
    /// Takes the ports and begins to answer.
    pub(crate) fn start(
        args: &ListenArgs,
        monitor: &Arc<Monitor>,
        admin_api: Admin,
    ) -> Result<Self> {
        Self::start_on(Ports::take(args, &[])?, monitor, admin_api)
    }

    /// Begins to answer on these ports.
    pub(crate) fn start_on(ports: Ports, monitor: &Arc<Monitor>, admin_api: Admin) -> Result<Self> {
        let (admin, admin_address) = ports.admin.listener()?;
        let (metrics, metrics_address) = ports.metrics.listener()?;
        let (healthz, healthz_address) = ports.healthz.listener()?;
        let servers = vec![(metrics, metrics::router(monitor)), (healthz, health::router(monitor))];
        let (stop, stopped) = watch::channel(false);
        let probes = tokio::runtime::Builder::new_current_thread();
        let probes = spawn("telaio-probes", probes, serve_all(servers, stopped.clone()))?;
        // Two, so that whoever follows the stream does not wait for who asks for a long list.
        let mut pages = tokio::runtime::Builder::new_multi_thread();
        pages.worker_threads(ADMIN_THREADS).thread_name("telaio-admin");
        let pages = spawn("telaio-admin", pages, async move {
            let serving = tokio::spawn(admin::serve(admin, admin_api));
            wait_for(stopped).await;
            serving.abort();
        });
        // The probes' ends by itself if this failed: what stops it is dropped.
        let threads = vec![probes, pages?];
        let addresses =
            Addresses { admin: admin_address, metrics: metrics_address, healthz: healthz_address };
        tracing::info!(
            admin = %addresses.admin,
            metrics = %addresses.metrics,
            healthz = %addresses.healthz,
            "listening"
        );
        Ok(Self { addresses, stop, threads })
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        self.stop.send_replace(true);
        for thread in self.threads.drain(..) {
            // A panic in there has been printed; ending goes on.
            let _ = thread.join();
        }
    }
}

/// A thread with a runtime that ends when this is done; tasks that still run end with it.
fn spawn(
    name: &str,
    mut runtime: tokio::runtime::Builder,
    work: impl Future<Output = ()> + Send + 'static,
) -> Result<std::thread::JoinHandle<()>> {
    let runtime = runtime.enable_all().build().context("cannot start a servers' runtime")?;
    let thread = std::thread::Builder::new().name(name.into()).spawn(move || {
        runtime.block_on(work);
        // A reading of the kernel that nobody waits for any more does not hold up the end.
        runtime.shutdown_timeout(END_TIME_MAX);
    });
    thread.context("cannot start a servers' thread")
}

async fn serve_all(servers: Vec<(TcpListener, Router)>, stopped: watch::Receiver<bool>) {
    for (listener, router) in servers {
        tokio::spawn(serve(listener, router));
    }
    wait_for(stopped).await;
}

/// Until we are told to stop, or nobody is left to tell it.
async fn wait_for(mut stopped: watch::Receiver<bool>) {
    let _ = stopped.wait_for(|stop| *stop).await;
}

async fn serve(listener: TcpListener, router: Router) {
    let listener = match tokio::net::TcpListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => {
            tracing::error!(%error, "cannot serve");
            return;
        }
    };
    let places = Arc::new(Mutex::new(Places::new(CONNECTIONS_MAX)));
    let mut builder = http1::Builder::new();
    builder.keep_alive(false).timer(TokioTimer::new()).header_read_timeout(REQUEST_TIME_MAX);
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                // Mostly a lack of file descriptors, which time mends.
                tracing::warn!(%error, "cannot take a connection");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let another_ended = places.lock().give(|ticket| {
            let answers = TowerToHyperService::new(router.clone());
            let (asked, left) = (Arc::clone(&places), Arc::clone(&places));
            let service = service_fn(move |request| {
                asked.lock().has_asked(ticket);
                answers.call(request)
            });
            let connection = builder.serve_connection(TokioIo::new(stream), service);
            let task = tokio::spawn(async move {
                // A client that breaks off or dawdles is its own concern.
                let _ = tokio::time::timeout(CONNECTION_TIME_MAX, connection).await;
                left.lock().leave(ticket);
            });
            task.abort_handle()
        });
        if another_ended {
            // Its socket is closed before the next is taken.
            tokio::task::yield_now().await;
        }
    }
}

/// An answer of JSON, one line per field, for people with `curl`.
fn json(status: StatusCode, value: &impl serde::Serialize) -> Response {
    match serde_json::to_string_pretty(value) {
        Ok(text) => {
            (status, [(header::CONTENT_TYPE, "application/json")], text + "\n").into_response()
        }
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}
