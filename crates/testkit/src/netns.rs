//! A cluster of network namespaces, with real packets between them.
//!
//! [`Cluster`] is a node under test with two pods, a second node with two pods, clients outside, and
//! a dead end behind the default route; IPv4 and IPv6 on everything. See [`Host`] for who is where.
//! Every pod and node runs a server that says its name and whom it sees; [`Attempt`]s from anywhere
//! show what becomes of a connection. What always holds: the namespaces of a cluster have names of
//! their own, so that many tests run at once, and they are gone when the value is, panic or not. What
//! a killed test left is removed by the next.
//!
//! ```no_run
//! # fn main() -> Result<(), telaio_testkit::netns::ClusterError> {
//! use telaio_testkit::netns::{Cluster, Family, Host, Place, SERVER_PORT, Transport};
//!
//! let cluster = Cluster::start()?;
//! let to = (Host::B1.address(Family::V4), SERVER_PORT).into();
//! let outcome = cluster.ask(Place::of(Host::A1), to, Transport::Tcp);
//! assert_eq!(outcome.by(), Some("b1"));
//! # Ok(())
//! # }
//! ```

mod client;
mod hosts;
mod prober;
mod server;
mod setup;

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use telaio_netlink::netns::{Netns, NetnsError};

pub use client::{Attempt, Conversation, Flow, Outcome, PATIENCE, Transport};
pub use hosts::{
    CLUSTER_CIDRS, Family, Host, SERVICE_CIDRS, is_node_a, node_a_gateway, node_a_second,
    outside_client,
};
pub use prober::{Prober, Tally};
pub use server::SERVER_PORT;

/// Why there is no cluster, or why something could not be done in it.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// A namespace could not be made or entered. Making one needs root.
    #[error(transparent)]
    Netns(#[from] NetnsError),
    /// A kernel setting could not be made.
    #[error("cannot set net/{name}: {source}")]
    Sysctl {
        /// Its name below `/proc/sys/net`.
        name: &'static str,
        /// What the system says.
        source: io::Error,
    },
    /// `ip` failed.
    #[error("ip {args}: {why}")]
    Ip {
        /// Its arguments.
        args: String,
        /// What it says, and what it was given.
        why: String,
    },
    /// A server could not be started.
    #[error("cannot start a server: {0}")]
    Server(#[source] io::Error),
    /// A client could not be started.
    #[error("cannot start a client: {0}")]
    Client(#[source] io::Error),
}

/// How the namespaces of all test clusters are called; process, number and host follow.
const NAME_PREFIX: &str = "telaio-test-";

/// Where a client is: on a host, and there with an address of its choice or any.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// The host.
    pub host: Host,
    /// The client's address; none lets the system choose.
    pub address: Option<IpAddr>,
}

impl Place {
    /// On a host, with the address that the system chooses.
    pub fn of(host: Host) -> Self {
        Self { host, address: None }
    }

    /// Outside, with an address of its own.
    pub fn outside(address: IpAddr) -> Self {
        Self { host: Host::Outside, address: Some(address) }
    }
}

/// A cluster of namespaces.
#[derive(Debug)]
pub struct Cluster {
    // In this order: servers end before what they run in.
    servers: server::Servers,
    spaces: Spaces,
}

/// The namespaces; removed by name when they go.
#[derive(Debug)]
struct Spaces {
    number: u32,
    by_host: BTreeMap<Host, Arc<Netns>>,
}

impl Spaces {
    fn name(&self, host: Host) -> String {
        format!("{NAME_PREFIX}{}-{}-{}", std::process::id(), self.number, host.name())
    }
}

impl Drop for Spaces {
    fn drop(&mut self) {
        for netns in self.by_host.values() {
            // One that cannot be removed must not keep the others.
            let _ = Netns::remove(netns.name());
        }
    }
}

impl Cluster {
    /// Makes a cluster. Needs root; that it cannot be made is an error, never a reason to skip.
    pub fn start() -> Result<Self, ClusterError> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        remove_what_killed_tests_left();
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let mut spaces = Spaces { number, by_host: BTreeMap::new() };
        for host in Host::ALL {
            let netns = Netns::create(&spaces.name(host))?;
            let netns = spaces.by_host.entry(host).or_insert(Arc::new(netns));
            setup::sysctls(host, netns)?;
        }
        setup::links(|host| spaces.name(host))?;
        let servers = server::Servers::start()?;
        let cluster = Self { servers, spaces };
        for host in Host::ALL.into_iter().filter(|host| host.node().is_some()) {
            cluster.serve(host, host.name(), SERVER_PORT)?;
        }
        Ok(cluster)
    }

    /// A host's namespace.
    pub fn netns(&self, host: Host) -> &Arc<Netns> {
        &self.spaces.by_host[&host]
    }

    /// One more server on a host: TCP and UDP, at the address that it is known by, both families.
    pub fn serve(&self, host: Host, name: &str, port: u16) -> Result<(), ClusterError> {
        let addresses = Family::ALL.map(|family| SocketAddr::new(host.address(family), port));
        self.serve_at(host, name, &addresses)
    }

    /// One more server on a host: TCP and UDP, at these addresses, which it has to have.
    pub fn serve_at(
        &self,
        host: Host,
        name: &str,
        addresses: &[SocketAddr],
    ) -> Result<(), ClusterError> {
        self.servers.serve(self.netns(host), name, addresses)
    }

    /// Configures a host further: lines for `ip -batch`.
    pub fn ip(&self, host: Host, script: &str) -> Result<(), ClusterError> {
        let netns = self.netns(host);
        setup::ip(&["-n", netns.name(), "-batch", "-"], script.trim_start())
    }

    /// Runs `work` on a host: what it starts, sockets and processes, it starts there. It panics when
    /// `work` does, as a test should.
    pub fn on<T: Send>(&self, host: Host, work: impl FnOnce() -> T + Send) -> T {
        let netns = self.netns(host);
        std::thread::scope(|scope| {
            let worker = scope.spawn(|| netns.enter().map(|()| work()));
            match worker.join() {
                Ok(Ok(value)) => value,
                Ok(Err(error)) => std::panic::resume_unwind(Box::new(error.to_string())),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        })
    }

    /// Asks once, with all patience.
    pub fn ask(&self, from: Place, to: SocketAddr, transport: Transport) -> Outcome {
        self.ask_for(from, to, transport, PATIENCE)
    }

    /// Asks once, with this patience.
    pub fn ask_for(
        &self,
        from: Place,
        to: SocketAddr,
        transport: Transport,
        patience: Duration,
    ) -> Outcome {
        let attempt = Attempt { from: from.address, to, transport, patience };
        self.on(from.host, || attempt.make())
    }

    /// Asks again and again until told to stop.
    pub fn probe(
        &self,
        from: Place,
        to: SocketAddr,
        transport: Transport,
    ) -> Result<Prober, ClusterError> {
        let attempt = Attempt { from: from.address, to, transport, patience: PATIENCE };
        let netns = Arc::clone(self.netns(from.host));
        // Were it not entered, every attempt would fail, and be counted.
        Prober::start(move || _ = netns.enter(), move || attempt.make())
            .map_err(ClusterError::Client)
    }

    /// A TCP connection that stays.
    pub fn connect(&self, from: Place, to: SocketAddr) -> io::Result<Conversation> {
        let attempt =
            Attempt { from: from.address, to, transport: Transport::Tcp, patience: PATIENCE };
        self.on(from.host, || attempt.connect())
    }

    /// A UDP socket that stays.
    pub fn flow(&self, from: Place, to: SocketAddr) -> io::Result<Flow> {
        let attempt =
            Attempt { from: from.address, to, transport: Transport::Udp, patience: PATIENCE };
        self.on(from.host, || attempt.flow())
    }
}

/// Removes namespaces of test processes that no longer run: whoever is killed cleans nothing up.
fn remove_what_killed_tests_left() {
    let Ok(entries) = std::fs::read_dir("/run/netns") else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let Some(name) = name.to_str() else { continue };
        let process = name.strip_prefix(NAME_PREFIX).and_then(|rest| rest.split('-').next());
        if process.is_some_and(|process| !Path::new("/proc").join(process).exists()) {
            // Another test may be quicker.
            let _ = Netns::remove(name);
        }
    }
}
