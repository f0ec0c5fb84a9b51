//! Node ports on loopback, for backends whose rules cannot serve them there.
//!
//! The kernel does not route packets with a loopback address off the machine, so a rule cannot send
//! them to an endpoint. A small TCP proxy can: it listens on loopback on a port that the kernel
//! chose. The backend redirects TCP connections to a loopback address and a node port to
//! [`LocalhostProxy::port`], in the output hook:
//!
//! ```text
//! ip  daddr 127.0.0.0/8 tcp dport @node-ports redirect to :PORT
//! ip6 daddr ::1         tcp dport @node-ports redirect to :PORT6
//! ```
//!
//! The proxy asks the kernel where the connection wanted to go, connects to the same port on one of
//! the node's own other addresses, where the backend's rules choose an endpoint, and copies both ways.
//!
//! What always holds: only connections to a known node port are carried on, so nobody reaches
//! anything through it that could not be reached on the node's address. At most [`CONNECTIONS_MAX`]
//! at a time; a newcomer takes the place of the one that has been idle for longest, if that is idle
//! for [`IDLE_TO_GIVE_WAY`], else it waits. One end's half-close is passed on.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use socket2::SockRef;
use telaio_model::IpFamily;
use telaio_netlink::original_dst::original_destination;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::watch;
use tokio::time::timeout;

use crate::background::Background;
use crate::companions::LocalhostFigures;

mod carry;
mod places;
#[cfg(test)]
mod tests;

use carry::{Activity, carry};
use places::Places;

/// The ports that are tried, from the last on; few services have their own here.
const PORTS_RESERVED: std::ops::Range<u16> = 600..1024;
/// How many connections there are at a time, over both families. Each has two file descriptors.
pub const CONNECTIONS_MAX: usize = 256;
/// How long a connection must have been idle to be closed for another.
pub const IDLE_TO_GIVE_WAY: Duration = Duration::from_mins(1);
/// A connection that is idle for longer is closed: as long as connection tracking would keep it.
const IDLE_TIME_MAX: Duration = Duration::from_hours(24);
/// How long connecting to the node's own address may take; its endpoint may be on another node.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(10);
/// How long a connection waits for its port to become known: the rules are there a moment before
/// we hear of it.
const UNKNOWN_PORT_WAIT: Duration = Duration::from_millis(500);
/// How long to wait when no connection can be taken: mostly for want of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The bounds; tests have smaller ones.
#[derive(Debug, Clone, Copy)]
struct Limits {
    connections_max: usize,
    idle_to_give_way: Duration,
    idle_time_max: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections_max: CONNECTIONS_MAX,
            idle_to_give_way: IDLE_TO_GIVE_WAY,
            idle_time_max: IDLE_TIME_MAX,
        }
    }
}

/// What the proxy may carry, and where to.
#[derive(Debug, Default)]
struct Directions {
    /// How many services have each node port: one is taken over by another within a sync.
    node_ports: BTreeMap<(IpFamily, u16), usize>,
    /// The node's own addresses, best first.
    addresses: Vec<IpAddr>,
}

#[derive(Debug, Default)]
struct Counters {
    carried: AtomicU64,
    refused: AtomicU64,
}

/// The proxy; dropping it ends it and its connections.
#[derive(Debug)]
pub struct LocalhostProxy {
    ports: BTreeMap<IpFamily, u16>,
    directions: watch::Sender<Directions>,
    counters: Arc<Counters>,
    _background: Background,
}

impl LocalhostProxy {
    /// Begins to listen on the loopback address of each family. A family that the machine does not
    /// have is left out, with a warning.
    ///
    /// Its own connections carry `mark`, by which rules tell them from others': they reach node ports
    /// also where nobody else does.
    pub fn start(families: &[IpFamily], mark: u32) -> io::Result<Self> {
        Self::start_with(families, mark, Limits::default())
    }

    fn start_with(families: &[IpFamily], mark: u32, limits: Limits) -> io::Result<Self> {
        let background = Background::start("telaio-localhost")?;
        let (directions, following) = watch::channel(Directions::default());
        let counters = Arc::new(Counters::default());
        let places = Arc::new(Places::new(limits.connections_max, limits.idle_to_give_way));
        let mut ports = BTreeMap::new();
        for family in families.iter().copied() {
            let listener = match listen(family) {
                Ok(listener) => listener,
                Err(error) => {
                    tracing::warn!(%family, %error, "node ports cannot be served on loopback");
                    continue;
                }
            };
            ports.insert(family, listener.local_addr()?.port());
            let server = Server {
                directions: following.clone(),
                counters: Arc::clone(&counters),
                places: Arc::clone(&places),
                mark,
                limits,
            };
            background.spawn(server.serve(listener));
        }
        Ok(Self { ports, directions, counters, _background: background })
    }

    /// The port to redirect to, unless this family is not served.
    pub fn port(&self, family: IpFamily) -> Option<u16> {
        self.ports.get(&family).copied()
    }

    /// The node's own addresses, best first. Those that the machine does not have are passed over
    /// when a connection comes.
    pub fn set_addresses(&self, addresses: Vec<IpAddr>) {
        self.directions.send_if_modified(|directions| {
            let differs = directions.addresses != addresses;
            directions.addresses = addresses;
            differs
        });
    }

    /// A service has `now` as its TCP node ports, and had `before`.
    pub fn change_node_ports(&self, before: &[(IpFamily, u16)], now: &[(IpFamily, u16)]) {
        if before == now {
            return;
        }
        self.directions.send_modify(|directions| {
            for port in now {
                *directions.node_ports.entry(*port).or_default() += 1;
            }
            for port in before {
                if let Some(count) = directions.node_ports.get_mut(port) {
                    *count = count.saturating_sub(1);
                    if *count == 0 {
                        directions.node_ports.remove(port);
                    }
                }
            }
        });
    }

    /// The figures at this moment.
    pub fn figures(&self) -> LocalhostFigures {
        LocalhostFigures {
            carried_total: self.counters.carried.load(Ordering::Relaxed),
            refused_total: self.counters.refused.load(Ordering::Relaxed),
        }
    }
}

fn listen(family: IpFamily) -> io::Result<std::net::TcpListener> {
    let loopback: IpAddr = match family {
        IpFamily::V4 => Ipv4Addr::LOCALHOST.into(),
        IpFamily::V6 => Ipv6Addr::LOCALHOST.into(),
    };
    // The rules stay when we end, and then nobody else may take connections in our place: so a port
    // that only root can have.
    let bind = |port: u16| std::net::TcpListener::bind((loopback, port));
    let reserved = PORTS_RESERVED.rev().find_map(|port| bind(port).ok());
    let listener = reserved.map_or_else(|| bind(0), Ok)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Why a connection is not carried on.
#[derive(Debug, thiserror::Error)]
enum Refusal {
    #[error("nobody redirected it here: {0}")]
    NotTracked(io::Error),
    #[error("{0} is not a node port on loopback")]
    NotANodePort(SocketAddr),
    #[error("the node has no other {0} address of its own")]
    NoAddress(IpFamily),
    #[error("{0}: {1}")]
    Unreachable(SocketAddr, io::Error),
    #[error("{0} did not answer in time")]
    TimedOut(SocketAddr),
}

/// Serves one family.
#[derive(Debug, Clone)]
struct Server {
    directions: watch::Receiver<Directions>,
    counters: Arc<Counters>,
    places: Arc<Places>,
    mark: u32,
    limits: Limits,
}

impl Server {
    async fn serve(self, listener: std::net::TcpListener) {
        let listener = match TcpListener::from_std(listener) {
            Ok(listener) => listener,
            Err(error) => {
                tracing::error!(%error, "node ports cannot be served on loopback");
                return;
            }
        };
        loop {
            match listener.accept().await {
                Ok((client, _)) => self.begin(client).await,
                Err(error) => {
                    tracing::warn!(%error, "cannot take a connection to a node port on loopback");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    /// Gives the connection a place and a task of its own; waits while there is no place.
    async fn begin(&self, client: TcpStream) {
        let activity = Arc::new(Activity::default());
        let ticket = self.places.reserve(&activity).await;
        let mut server = self.clone();
        let task = tokio::spawn(async move {
            server.take(client, &activity).await;
            server.places.leave(ticket);
        });
        self.places.take(ticket, task.abort_handle());
    }

    async fn take(&mut self, client: TcpStream, activity: &Activity) {
        match self.connect(&client).await {
            Ok(server) => {
                self.counters.carried.fetch_add(1, Ordering::Relaxed);
                carry(client, server, activity, self.limits.idle_time_max).await;
            }
            Err(refusal) => {
                self.counters.refused.fetch_add(1, Ordering::Relaxed);
                tracing::debug!(%refusal, "a connection to loopback is refused");
                // So that the client sees a reset and not the end of an empty answer.
                let _ = client.set_zero_linger();
            }
        }
    }

    /// Connects to the node's own address at the port that the client asked for.
    async fn connect(&mut self, client: &TcpStream) -> Result<TcpStream, Refusal> {
        let own = client.local_addr().map_err(Refusal::NotTracked)?;
        let asked = original_destination(client, own).map_err(Refusal::NotTracked)?;
        let family = IpFamily::of(asked.ip());
        let is_node_port =
            |directions: &Directions| directions.node_ports.contains_key(&(family, asked.port()));
        let known = asked.ip().is_loopback()
            && matches!(
                timeout(UNKNOWN_PORT_WAIT, self.directions.wait_for(is_node_port)).await,
                Ok(Ok(_))
            );
        if !known {
            return Err(Refusal::NotANodePort(asked));
        }
        let address = own_address(&self.directions.borrow().addresses, family)
            .ok_or(Refusal::NoAddress(family))?;
        let target = SocketAddr::new(address, asked.port());
        match timeout(CONNECT_TIME_MAX, connect_marked(target, self.mark)).await {
            Ok(Ok(server)) => Ok(server),
            Ok(Err(error)) => Err(Refusal::Unreachable(target, error)),
            Err(_) => Err(Refusal::TimedOut(target)),
        }
    }
}

async fn connect_marked(target: SocketAddr, mark: u32) -> io::Result<TcpStream> {
    let socket = if target.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    SockRef::from(&socket).set_mark(mark)?;
    socket.connect(target).await
}

/// The first of these addresses that really is the machine's: a Node object also names addresses
/// that only exist in front of the machine. One can be bound to, the others cannot.
fn own_address(addresses: &[IpAddr], family: IpFamily) -> Option<IpAddr> {
    let of_family = addresses.iter().copied().filter(|ip| IpFamily::of(*ip) == family);
    of_family.filter(|ip| !ip.is_loopback()).find(|ip| UdpSocket::bind((*ip, 0)).is_ok())
}
