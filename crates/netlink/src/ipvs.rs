//! IPVS: the kernel's own load balancer.
//!
//! A [`VirtualServer`] is known by its [`Frontend`] and sends what comes there to its [`RealServer`]s. Changes
//! are [`Command`]s, one at a time or many at once; [`Ipvs::snapshot`] reads everything back cheaply.
//!
//! What always holds:
//! - There is no way here to remove all services at once: who removes one names it, and so leaves those of
//!   others alone.
//! - Of many commands, one that is refused keeps no other from being carried out.
//! - What is read equals what was written.
//!
//! ```no_run
//! use telaio_netlink::ipvs::{Command, Forwarding, Frontend, Ipvs, RealServer, VirtualServer};
//!
//! # fn main() -> Result<(), telaio_netlink::NetlinkError> {
//! # let (here, there) = ("10.96.0.1:80".parse().unwrap(), "10.244.0.7:8080".parse().unwrap());
//! let Some(mut ipvs) = Ipvs::open()? else { return Ok(()) };
//! let frontend = Frontend::Address { protocol: 6, at: here };
//! let server = RealServer { address: there, weight: 1, method: Forwarding::Nat };
//! let refused = ipvs.apply(&[
//!     Command::Add(VirtualServer::new(frontend, "rr")),
//!     Command::AddServer(frontend, server),
//! ])?;
//! for failure in refused {
//!     eprintln!("{failure}");
//! }
//! # Ok(())
//! # }
//! ```

mod command;
pub mod connections;
mod message;
mod proc;
mod server;

use std::net::SocketAddr;

pub use command::Command;
pub use server::{
    FLAG_HASHED, FLAG_ONE_PACKET, FLAG_PERSISTENT, FLAG_SCHEDULER_1, FLAG_SCHEDULER_2,
    FLAG_SCHEDULER_3, Forwarding, Frontend, Info, RealServer, RealServerLoad, RealServerState,
    Snapshot, Stats, Timeouts, VirtualServer, VirtualServerState,
};

use crate::batch::Failure;
use crate::error::NetlinkError;
use crate::generic::GenericSocket;
use crate::wire::Attributes;

const FAMILY_NAME: &str = "IPVS";
const FAMILY_VERSION: u8 = 1;
/// How often a snapshot is begun anew because services came and went while it was read.
const SNAPSHOT_TRIES_MAX: u32 = 3;

/// A connection to the IPVS of the network namespace in which it was opened.
#[derive(Debug)]
pub struct Ipvs {
    socket: GenericSocket,
    commands: u64,
}

impl Ipvs {
    /// Opens one; the kernel loads its module for that. `None` if it has none.
    pub fn open() -> Result<Option<Self>, NetlinkError> {
        let socket = GenericSocket::open(FAMILY_NAME, FAMILY_VERSION)?;
        Ok(socket.map(|socket| Self { socket, commands: 0 }))
    }

    /// How many commands this connection has sent. Reading is none.
    pub fn commands(&self) -> u64 {
        self.commands
    }

    /// What this kernel's IPVS is.
    pub fn info(&mut self) -> Result<Info, NetlinkError> {
        let doing = "asking for IPVS' version";
        self.ask(message::GET_INFO, doing, message::info)
    }

    /// What all virtual services are known by.
    pub fn frontends(&mut self) -> Result<Vec<Frontend>, NetlinkError> {
        let services = self.services()?;
        Ok(services.into_iter().map(|state| state.server.frontend).collect())
    }

    /// All virtual services.
    pub fn services(&mut self) -> Result<Vec<VirtualServerState>, NetlinkError> {
        let doing = "listing IPVS services";
        let mut found = Vec::new();
        let each = |attributes: Attributes<'_>| {
            let what = "a service without some of its parts";
            found
                .push(message::service(attributes).ok_or(NetlinkError::Malformed { doing, what })?);
            Ok(())
        };
        self.socket.list(message::GET_SERVICE, doing, |_| {}, each)?;
        Ok(found)
    }

    /// The real servers of a virtual service; none if there is no such service.
    pub fn servers(&mut self, of: &Frontend) -> Result<Vec<RealServerState>, NetlinkError> {
        let doing = "listing the servers of an IPVS service";
        let mut found = Vec::new();
        let each = |attributes: Attributes<'_>| {
            let what = "a server without some of its parts";
            let server = message::server(attributes, of.is_v6());
            found.push(server.ok_or(NetlinkError::Malformed { doing, what })?);
            Ok(())
        };
        self.socket.list(message::GET_SERVER, doing, |it| message::put_named(it, of), each)?;
        Ok(found)
    }

    /// All virtual services with their real servers, as of the calling thread's namespace, which has to be
    /// the connection's.
    ///
    /// Asking for the servers of each of ten thousand services takes as many lists. The services are listed
    /// once, and all their servers are in one file of `/proc`.
    pub fn snapshot(&mut self) -> Result<Vec<Snapshot>, NetlinkError> {
        for _ in 0..SNAPSHOT_TRIES_MAX {
            let services = self.services()?;
            let text = proc::read()?;
            let listed = proc::parse(&text)?;
            if let Some(found) = proc::join(services, listed) {
                return Ok(found);
            }
        }
        // Somebody is busy changing services, or a mark is one of IPv4 and of IPv6: one by one.
        let services = self.services()?;
        let each = |state: VirtualServerState| {
            let servers = self.servers(&state.server.frontend)?;
            let servers = servers.into_iter().map(|it| it.load).collect();
            Ok(Snapshot { server: state.server, stats: state.stats, servers })
        };
        services.into_iter().map(each).collect()
    }

    /// Carries out one command.
    pub fn run(&mut self, command: &Command) -> Result<(), NetlinkError> {
        self.commands += 1;
        self.socket.command(command.number(), command.doing(), |request| command.put(request))
    }

    /// Carries out many commands; those that were refused, in order. Removing what is not there counts as
    /// done.
    pub fn apply(&mut self, commands: &[Command]) -> Result<Vec<Failure>, NetlinkError> {
        self.commands += commands.len() as u64;
        let mut failures = self.socket.commands(
            commands,
            "changing IPVS",
            |command| command.number(),
            |request, command| command.put(request),
        )?;
        failures.retain(|failure| {
            !commands.get(failure.index).is_some_and(|command| command.is_moot(&failure.error))
        });
        Ok(failures)
    }

    /// Makes a virtual service, without any server yet.
    pub fn add(&mut self, server: &VirtualServer) -> Result<(), NetlinkError> {
        self.run(&Command::Add(server.clone()))
    }

    /// Changes a virtual service that is there; connections stay.
    pub fn edit(&mut self, server: &VirtualServer) -> Result<(), NetlinkError> {
        self.run(&Command::Edit(server.clone()))
    }

    /// Removes a virtual service with its servers. `false` if it was gone already.
    pub fn delete(&mut self, frontend: &Frontend) -> Result<bool, NetlinkError> {
        self.remove(&Command::Delete(*frontend))
    }

    /// Gives a virtual service one more server.
    pub fn add_server(&mut self, of: &Frontend, server: &RealServer) -> Result<(), NetlinkError> {
        self.run(&Command::AddServer(*of, *server))
    }

    /// Changes the weight or the forwarding of a server that is there.
    pub fn edit_server(&mut self, of: &Frontend, server: &RealServer) -> Result<(), NetlinkError> {
        self.run(&Command::EditServer(*of, *server))
    }

    /// Takes a server from a virtual service. `false` if it was gone already.
    pub fn delete_server(&mut self, of: &Frontend, at: SocketAddr) -> Result<bool, NetlinkError> {
        self.remove(&Command::DeleteServer(*of, at))
    }

    fn remove(&mut self, command: &Command) -> Result<bool, NetlinkError> {
        match self.run(command) {
            Ok(()) => Ok(true),
            Err(error) if command.is_moot(&error) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// How long connections without packets are kept.
    pub fn timeouts(&mut self) -> Result<Timeouts, NetlinkError> {
        let doing = "asking for IPVS' time-outs";
        self.ask(message::GET_CONFIG, doing, message::timeouts)
    }

    /// Changes how long connections without packets are kept. A 0 leaves that one as it is.
    pub fn set_timeouts(&mut self, timeouts: &Timeouts) -> Result<(), NetlinkError> {
        let doing = "changing IPVS' time-outs";
        self.commands += 1;
        let fill = |request: &mut _| message::put_timeouts(request, timeouts);
        self.socket.command(message::SET_CONFIG, doing, fill)
    }

    fn ask<T>(
        &mut self,
        command: u8,
        doing: &'static str,
        read: impl Fn(Attributes<'_>) -> Option<T>,
    ) -> Result<T, NetlinkError> {
        let mut found = None;
        let each = |attributes: Attributes<'_>| {
            found = read(attributes);
            Ok(())
        };
        self.socket.ask(command, doing, |_| {}, each)?;
        found.ok_or(NetlinkError::Malformed { doing, what: "parts are missing" })
    }
}
