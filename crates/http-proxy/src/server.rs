//! Listeners and the threads that serve them.
//!
//! Each thread has a runtime of its own and its own socket of each listener (`SO_REUSEPORT`): the
//! kernel spreads connections over them, a connection stays on its thread with everything it uses,
//! and no lock is shared on the way. Sockets that came from an agent with another number of threads are
//! all accepted from, whatever our own number is: the kernel gives each its share.
//!
//! [`Server::stop`] stops accepting, and [`Server::drain`] waits until every request that runs has ended.
//! No thread ends before that, because its connections to endpoints may carry other threads' requests.
//! A connection that is kept alive takes one more request, whose response says that it is the last; if
//! none comes it is closed ([`ClientTimeouts::leaving`](crate::h1::relay::ClientTimeouts::leaving)).

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::{SocketAddr, TcpListener as StdListener};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::Duration;

use socket2::{Domain, Protocol, SockRef, Socket, Type};
use tokio::sync::{mpsc, watch};

use crate::accept::Acceptor;
use crate::client_stream::ClientStream;
use crate::h1;
use crate::head::{ClientInfo, Scheme};
use crate::proxy::HttpProxy;

pub use crate::h1::serve::Stop;

/// How many connections wait in the kernel to be accepted.
const BACKLOG: i32 = 4_096;

/// How long accepting pauses when the system has no more descriptors, or we no more places.
const PAUSE: Duration = Duration::from_millis(20);

/// How long it pauses when somebody was asked to give way.
const ROOM_PAUSE: Duration = Duration::from_millis(1);

/// How long handshakes that have begun may take to end before a socket that is closed for good is.
const SETTLE: Duration = Duration::from_millis(100);

/// What becomes of the listening sockets when a server stops.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Closing {
    /// Nobody listens after us: who has connected is served, who comes later is refused.
    ForGood,
    /// Others hold the sockets and go on: what waits in them is theirs.
    HandedOver,
}

/// Serves a connection that is not plain HTTP/1.1 from its first byte: TLS, HTTP/2, PROXY protocol.
pub trait Handler: Send + Sync + 'static {
    /// Serves it until it is over, or until `stop` says so and nothing runs.
    fn serve(
        &self,
        proxy: Arc<HttpProxy>,
        stream: ClientStream,
        info: ClientInfo,
        stop: Stop,
    ) -> Pin<Box<dyn Future<Output = ()> + Send>>;
}

/// Sockets that are listened on, one per thread, and how their connections are served.
pub struct Listener {
    /// The sockets. With fewer than threads, threads share; with more, threads have several.
    pub sockets: Vec<StdListener>,
    /// Who serves; `None` is plain HTTP/1.1.
    pub handler: Option<Arc<dyn Handler>>,
}

/// Makes sockets for one address, as many as there are threads, and lets people connect. A port of 0 is
/// chosen once.
pub fn listen(address: SocketAddr, count: usize) -> io::Result<Vec<StdListener>> {
    let sockets = bind(address, count)?;
    open(&sockets)?;
    Ok(sockets)
}

/// Likewise, but nobody can connect before they are [opened](open).
pub fn bind(address: SocketAddr, count: usize) -> io::Result<Vec<StdListener>> {
    let mut sockets: Vec<StdListener> = Vec::with_capacity(count);
    for _ in 0..count.max(1) {
        let at = match sockets.first() {
            Some(first) => first.local_addr()?,
            None => address,
        };
        sockets.push(bind_once(at)?);
    }
    Ok(sockets)
}

/// Lets people connect to bound sockets. Those that are open stay as they are.
pub fn open(sockets: &[StdListener]) -> io::Result<()> {
    sockets.iter().try_for_each(|socket| SockRef::from(socket).listen(BACKLOG))
}

fn bind_once(address: SocketAddr) -> io::Result<StdListener> {
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
    Ok(socket.into())
}

/// Threads that serve.
#[derive(Debug)]
pub struct Server {
    stop: watch::Sender<bool>,
    /// Of each listener, whether others hold its sockets and go on.
    handed_over: Vec<Arc<AtomicBool>>,
    /// Sockets that we still accept from.
    listening: Arc<AtomicUsize>,
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
        let handed_over: Vec<Arc<AtomicBool>> = listeners.iter().map(|_| Arc::default()).collect();
        let listening = Arc::new(AtomicUsize::new(0));
        let (busy, all_over) = watch::channel(());
        let threads = threads.max(1);
        let mut handles = Vec::with_capacity(threads);
        for number in 0..threads {
            let mut own = Vec::new();
            for (listener, handed_over) in listeners.iter().zip(&handed_over) {
                for place in places(number, threads, listener.sockets.len()) {
                    own.push(Own {
                        socket: listener.sockets[place].try_clone()?,
                        handler: listener.handler.clone(),
                        handed_over: Arc::clone(handed_over),
                        listening: Listening::new(&listening),
                    });
                }
            }
            let serving = Serving {
                proxy: proxy.clone(),
                stop: stopped.clone(),
                connections: connections.clone(),
                busy: busy.clone(),
                all_over: all_over.clone(),
                maintains: number == 0,
            };
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            let name = format!("http-{number}");
            let run = move || runtime.block_on(serving.run(own));
            handles.push(std::thread::Builder::new().name(name).spawn(run)?);
        }
        Ok(Self { stop, handed_over, listening, threads: handles, connections })
    }

    /// How many connections of clients are open.
    pub fn connections(&self) -> usize {
        self.connections.load(Relaxed)
    }

    /// Stops accepting. Connections end after the request that runs, or after one more.
    pub fn stop(&self, closing: Closing) {
        self.stop_each(&vec![closing; self.handed_over.len()]);
    }

    /// The same, with what becomes of the sockets of each listener.
    pub fn stop_each(&self, closings: &[Closing]) {
        for (handed_over, closing) in self.handed_over.iter().zip(closings) {
            handed_over.store(*closing == Closing::HandedOver, Relaxed);
        }
        // Nobody listens if all threads are gone already.
        let _ = self.stop.send(true);
    }

    /// Whether sockets are still accepted from. Those of others who hold them stay open.
    pub fn is_listening(&self) -> bool {
        self.listening.load(Relaxed) > 0
    }

    /// Stops, if that is not done yet, and waits until what runs is over, but no longer than `within`;
    /// whether all of it was.
    pub fn drain(self, within: Duration) -> bool {
        self.stop.send_replace(true);
        let end = std::time::Instant::now() + within;
        let all_done = || self.threads.iter().all(JoinHandle::is_finished);
        while !all_done() && std::time::Instant::now() < end {
            std::thread::sleep(Duration::from_millis(5));
        }
        all_done()
    }
}

/// Which of so many sockets a thread accepts from. Each has somebody, however many there are.
fn places(thread: usize, threads: usize, sockets: usize) -> impl Iterator<Item = usize> {
    let first = if sockets == 0 { 0 } else { thread % sockets };
    (first..sockets).step_by(threads)
}

/// One thread's part.
struct Serving {
    proxy: Arc<HttpProxy>,
    stop: Stop,
    connections: Arc<AtomicUsize>,
    /// Held as long as this thread has connections of clients.
    busy: watch::Sender<()>,
    /// Closed when no thread has any.
    all_over: watch::Receiver<()>,
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

/// Counts a socket that is accepted from.
struct Listening(Arc<AtomicUsize>);

impl Listening {
    fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Relaxed);
        Self(Arc::clone(count))
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

/// A socket that a thread accepts from.
struct Own {
    socket: StdListener,
    handler: Option<Arc<dyn Handler>>,
    handed_over: Arc<AtomicBool>,
    listening: Listening,
}

impl Serving {
    async fn run(mut self, sockets: Vec<Own>) {
        if self.maintains {
            tokio::spawn(self.proxy.upstreams().clone().maintain());
            tokio::spawn(self.proxy.clone().tend_cache());
        }
        let (alive, mut over) = mpsc::channel::<Infallible>(1);
        for Own { socket, handler, handed_over, listening } in sockets {
            let accepting = Accepting {
                proxy: self.proxy.clone(),
                handler,
                stop: self.stop.clone(),
                handed_over,
                connections: self.connections.clone(),
                alive: alive.clone(),
            };
            match Acceptor::new(socket) {
                Ok(socket) => drop(tokio::spawn(accepting.run(socket, listening))),
                Err(error) => tracing::error!(%error, "a listening socket cannot be used"),
            }
        }
        drop(alive);
        // Whoever started us is gone: nobody can stop us any more, so we stop.
        let _ = self.stop.wait_for(|stop| *stop).await;
        let _ = over.recv().await;
        // Connections to endpoints live on the thread that made them, whoever uses them: no thread ends
        // before the last request of all.
        drop(self.busy);
        while self.all_over.changed().await.is_ok() {}
    }
}

/// Accepts connections of one socket.
struct Accepting {
    proxy: Arc<HttpProxy>,
    handler: Option<Arc<dyn Handler>>,
    stop: Stop,
    handed_over: Arc<AtomicBool>,
    connections: Arc<AtomicUsize>,
    alive: mpsc::Sender<Infallible>,
}

impl Accepting {
    async fn run(mut self, mut socket: Acceptor, listening: Listening) {
        let local = socket.local_addr().unwrap_or_else(|_| ClientInfo::default().local);
        self.accept(&mut socket, local).await;
        if !self.handed_over.load(Relaxed) {
            self.close(&mut socket, local).await;
        }
        drop(socket);
        drop(listening);
    }

    /// Accepts until we are stopped.
    async fn accept(&mut self, socket: &mut Acceptor, local: SocketAddr) {
        let connections_max = self.proxy.settings().connections_max;
        let mut stop = self.stop.clone();
        let stopped = stop.wait_for(|stop| *stop);
        tokio::pin!(stopped);
        loop {
            if self.connections.load(Relaxed) >= connections_max {
                // Somebody who comes has the place of somebody idle. Where nobody is, he waits in the kernel,
                // and is served when others end.
                let room = tokio::select! {
                    _ = &mut stopped => return,
                    waits = socket.somebody_waits() => waits.is_ok() && self.proxy.idle().make_room(),
                };
                tokio::select! {
                    () = tokio::time::sleep(if room { ROOM_PAUSE } else { PAUSE }) => continue,
                    _ = &mut stopped => return,
                }
            }
            let accepted = tokio::select! {
                biased;
                _ = &mut stopped => return,
                accepted = socket.accept() => accepted,
            };
            match accepted {
                Ok((stream, peer)) => {
                    if self.connections.load(Relaxed) >= connections_max {
                        // The last place was taken by another thread while we waited.
                        self.proxy.idle().make_room();
                    }
                    self.spawn(stream, peer, local);
                }
                Err(error) => pause_after(&error).await,
            }
        }
    }

    /// Serves whoever has connected, and nobody else: to close a socket resets what waits in it. The
    /// kernel keeps no more of them than the socket's backlog.
    async fn close(&mut self, socket: &mut Acceptor, local: SocketAddr) {
        #[cfg(target_os = "linux")]
        if let Err(error) = refuse_handshakes(socket) {
            tracing::debug!(%error, "connections that come while a socket closes may be reset");
        }
        let accepting = async {
            loop {
                match socket.accept().await {
                    Ok((stream, peer)) => self.spawn(stream, peer, local),
                    Err(error) => pause_after(&error).await,
                }
            }
        };
        let _ = tokio::time::timeout(SETTLE, accepting).await;
    }

    fn spawn(&mut self, stream: ClientStream, peer: SocketAddr, local: SocketAddr) {
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

/// A client that has gone again costs nothing; no descriptors need time.
async fn pause_after(error: &io::Error) {
    tracing::debug!(%error, "a connection could not be accepted");
    if error.kind() != io::ErrorKind::ConnectionAborted {
        tokio::time::sleep(PAUSE).await;
    }
}

/// Lets the kernel drop what would begin a connection to a listening socket. Clients try again, and then
/// find it closed; handshakes that have begun end.
#[cfg(target_os = "linux")]
fn refuse_handshakes(socket: &Acceptor) -> io::Result<()> {
    use socket2::SockFilter;
    // The packet begins with the TCP header: its flags are in byte 13, and 2 is SYN.
    let filter = [
        SockFilter::new(0x30, 0, 0, 13),       // load the byte
        SockFilter::new(0x45, 0, 1, 2),        // is SYN set?
        SockFilter::new(0x06, 0, 0, 0),        // then drop it
        SockFilter::new(0x06, 0, 0, u32::MAX), // else keep all of it
    ];
    SockRef::from(socket).attach_filter(&filter)
}
