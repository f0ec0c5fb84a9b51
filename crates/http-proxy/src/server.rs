//! Listeners and the threads that serve them.
//!
//! Each thread has a runtime of its own and its own socket of each listener (`SO_REUSEPORT`): the
//! kernel spreads connections over them, a connection stays on its thread with everything it uses,
//! and no lock is shared on the way.
//!
//! [`Server::drain`] stops accepting, lets every request that runs end, and closes idle connections.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::{SocketAddr, TcpListener as StdListener};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, watch};

use crate::accept::Acceptor;
use crate::h1;
use crate::head::{ClientInfo, Scheme};
use crate::proxy::HttpProxy;

pub use crate::h1::serve::Stop;

/// How many connections wait in the kernel to be accepted.
const BACKLOG: i32 = 4_096;

/// How long accepting pauses when the system has no more descriptors, or we no more places.
const PAUSE: Duration = Duration::from_millis(20);

/// Serves a connection that is not plain HTTP/1.1 from its first byte: TLS, HTTP/2, PROXY protocol.
pub trait Handler: Send + Sync + 'static {
    /// Serves it until it is over, or until `stop` says so and nothing runs.
    fn serve(
        &self,
        proxy: Arc<HttpProxy>,
        stream: TcpStream,
        info: ClientInfo,
        stop: Stop,
    ) -> Pin<Box<dyn Future<Output = ()> + Send>>;
}

/// Sockets that are listened on, one per thread, and how their connections are served.
pub struct Listener {
    /// The sockets. With fewer than threads, threads share.
    pub sockets: Vec<StdListener>,
    /// Who serves; `None` is plain HTTP/1.1.
    pub handler: Option<Arc<dyn Handler>>,
}

/// Makes sockets for one address, as many as there are threads. A port of 0 is chosen once.
pub fn listen(address: SocketAddr, count: usize) -> io::Result<Vec<StdListener>> {
    let mut sockets: Vec<StdListener> = Vec::with_capacity(count);
    for _ in 0..count.max(1) {
        let at = match sockets.first() {
            Some(first) => first.local_addr()?,
            None => address,
        };
        sockets.push(listen_once(at)?);
    }
    Ok(sockets)
}

fn listen_once(address: SocketAddr) -> io::Result<StdListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    #[cfg(unix)]
    socket.set_reuse_port(true)?;
    // Connections inherit it: one call less for each.
    socket.set_tcp_nodelay(true)?;
    if address.is_ipv6() {
        socket.set_only_v6(false)?;
    }
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// Threads that serve.
#[derive(Debug)]
pub struct Server {
    stop: watch::Sender<bool>,
    threads: Vec<JoinHandle<()>>,
    connections: Arc<AtomicUsize>,
}

impl Server {
    /// Serves the listeners with so many threads.
    pub fn start(
        proxy: &Arc<HttpProxy>,
        listeners: Vec<Listener>,
        threads: usize,
    ) -> io::Result<Self> {
        // Taken by value: these sockets serve here, and end with us.
        let listeners = listeners.into_boxed_slice();
        let (stop, stopped) = watch::channel(false);
        let connections = Arc::clone(&proxy.stats().connections);
        let threads = threads.max(1);
        let mut handles = Vec::with_capacity(threads);
        for number in 0..threads {
            let mut own = Vec::new();
            for listener in &listeners {
                let place = number % listener.sockets.len().max(1);
                if let Some(socket) = listener.sockets.get(place) {
                    own.push((socket.try_clone()?, listener.handler.clone()));
                }
            }
            let serving = Serving {
                proxy: proxy.clone(),
                stop: stopped.clone(),
                connections: connections.clone(),
                maintains: number == 0,
            };
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            let name = format!("http-{number}");
            let run = move || runtime.block_on(serving.run(own));
            handles.push(std::thread::Builder::new().name(name).spawn(run)?);
        }
        Ok(Self { stop, threads: handles, connections })
    }

    /// How many connections of clients are open.
    pub fn connections(&self) -> usize {
        self.connections.load(Relaxed)
    }

    /// Stops accepting and waits until what runs is over, but no longer than `within`; whether all
    /// of it was. The listening sockets of others who hold them stay open.
    pub fn drain(self, within: Duration) -> bool {
        // Nobody listens if all threads are gone already.
        let _ = self.stop.send(true);
        let end = std::time::Instant::now() + within;
        let all_done = || self.threads.iter().all(JoinHandle::is_finished);
        while !all_done() && std::time::Instant::now() < end {
            std::thread::sleep(Duration::from_millis(5));
        }
        all_done()
    }
}

/// One thread's part.
struct Serving {
    proxy: Arc<HttpProxy>,
    stop: Stop,
    connections: Arc<AtomicUsize>,
    /// Whether this thread looks after the upstreams.
    maintains: bool,
}

/// Counts a connection as long as it lives.
struct Counted {
    connections: Arc<AtomicUsize>,
    _alive: mpsc::Sender<Infallible>,
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.connections.fetch_sub(1, Relaxed);
    }
}

impl Serving {
    async fn run(mut self, sockets: Vec<(StdListener, Option<Arc<dyn Handler>>)>) {
        if self.maintains {
            tokio::spawn(self.proxy.upstreams().clone().maintain());
            tokio::spawn(self.proxy.clone().tend_cache());
        }
        let (alive, mut over) = mpsc::channel::<Infallible>(1);
        for (socket, handler) in sockets {
            let accepting = Accepting {
                proxy: self.proxy.clone(),
                handler,
                stop: self.stop.clone(),
                connections: self.connections.clone(),
                alive: alive.clone(),
            };
            match Acceptor::new(socket) {
                Ok(socket) => drop(tokio::spawn(accepting.run(socket))),
                Err(error) => tracing::error!(%error, "a listening socket cannot be used"),
            }
        }
        drop(alive);
        // Whoever started us is gone: nobody can stop us any more, so we stop.
        let _ = self.stop.wait_for(|stop| *stop).await;
        let _ = over.recv().await;
    }
}

/// Accepts connections of one socket.
struct Accepting {
    proxy: Arc<HttpProxy>,
    handler: Option<Arc<dyn Handler>>,
    stop: Stop,
    connections: Arc<AtomicUsize>,
    alive: mpsc::Sender<Infallible>,
}

impl Accepting {
    async fn run(mut self, mut socket: Acceptor) {
        let local = socket.local_addr().unwrap_or_else(|_| ClientInfo::default().local);
        let connections_max = self.proxy.settings().connections_max;
        let mut stop = self.stop.clone();
        let stopped = stop.wait_for(|stop| *stop);
        tokio::pin!(stopped);
        loop {
            if self.connections.load(Relaxed) >= connections_max {
                // They wait in the kernel, and are served when others end.
                tokio::select! {
                    () = tokio::time::sleep(PAUSE) => continue,
                    _ = &mut stopped => return,
                }
            }
            let accepted = tokio::select! {
                biased;
                accepted = socket.accept() => accepted,
                _ = &mut stopped => return,
            };
            match accepted {
                Ok((stream, peer)) => self.spawn(stream, peer, local),
                Err(error) => {
                    tracing::debug!(%error, "a connection could not be accepted");
                    // A client that has gone again costs nothing; no descriptors need time.
                    if error.kind() != io::ErrorKind::ConnectionAborted {
                        tokio::time::sleep(PAUSE).await;
                    }
                }
            }
        }
    }

    fn spawn(&mut self, stream: TcpStream, peer: SocketAddr, local: SocketAddr) {
        self.connections.fetch_add(1, Relaxed);
        self.proxy.stats().accepted.fetch_add(1, Relaxed);
        let counted = Counted { connections: self.connections.clone(), _alive: self.alive.clone() };
        let peer = SocketAddr::new(peer.ip().to_canonical(), peer.port());
        let info = ClientInfo { peer, address: peer.ip(), local, tls: None, trusted: false };
        let (proxy, stop) = (self.proxy.clone(), self.stop.clone());
        if let Some(handler) = &self.handler {
            let serving = handler.serve(proxy, stream, info, stop);
            tokio::spawn(async move {
                serving.await;
                drop(counted);
            });
        } else {
            tokio::spawn(async move {
                h1::serve::serve(proxy, stream, info, Scheme::Http, stop).await;
                drop(counted);
            });
        }
    }
}
