//! What virtual and real servers are, and what the kernel tells about them.

use std::net::SocketAddr;

/// Connections of one client stay with one server.
pub const FLAG_PERSISTENT: u32 = 1;
/// The kernel's own: the service is in its table.
pub const FLAG_HASHED: u32 = 2;
/// Every packet of UDP is a connection of its own.
pub const FLAG_ONE_PACKET: u32 = 4;
/// The scheduler's first; of `sh` and `mh`: go on to another server if the one by hash is not usable.
pub const FLAG_SCHEDULER_1: u32 = 8;
/// The scheduler's second; of `sh` and `mh`: the client's port is part of what is hashed.
pub const FLAG_SCHEDULER_2: u32 = 16;
/// The scheduler's third.
pub const FLAG_SCHEDULER_3: u32 = 32;

/// What a virtual service is known by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Frontend {
    /// An address and a port.
    Address {
        /// The number of the protocol over IP.
        protocol: u8,
        /// Where packets go to.
        at: SocketAddr,
    },
    /// A mark that a firewall sets on packets.
    Mark {
        /// Of IPv6 packets, not IPv4.
        is_v6: bool,
        /// The mark, never 0.
        mark: u32,
    },
}

impl Frontend {
    /// It is one of IPv6.
    pub fn is_v6(&self) -> bool {
        match self {
            Self::Address { at, .. } => at.is_ipv6(),
            Self::Mark { is_v6, .. } => *is_v6,
        }
    }
}

/// A virtual service, without its servers.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VirtualServer {
    /// What it is known by.
    pub frontend: Frontend,
    /// The name of what chooses a server; the kernel loads it.
    pub scheduler: String,
    /// `FLAG_…`. What is read never has [`FLAG_HASHED`], and what is written need not.
    pub flags: u32,
    /// How long a client without connections stays with its server, if it is persistent.
    pub timeout_s: u32,
    /// How many first bits of a client's address make it the same client, if it is persistent. Of IPv6 at
    /// least 1.
    pub client_prefix_len: u8,
}

impl VirtualServer {
    /// Not persistent, without any flag.
    pub fn new(frontend: Frontend, scheduler: &str) -> Self {
        Self {
            frontend,
            scheduler: scheduler.to_owned(),
            flags: 0,
            timeout_s: 0,
            client_prefix_len: if frontend.is_v6() { 128 } else { 32 },
        }
    }
}

/// How packets come to a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Forwarding {
    /// The destination is rewritten, and back.
    Nat,
    /// The server is this machine; the packet goes on as it is.
    Local,
    /// Packed into another packet, IP in IP.
    Tunnel,
    /// As it is, to the server's link address.
    Direct,
    /// As it is, to where it would go anyhow. A [`Snapshot`] shows it as [`Nat`](Self::Nat).
    Bypass,
}

/// Where a virtual service sends connections to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RealServer {
    /// Its address and port.
    pub address: SocketAddr,
    /// Its share; with 0 it keeps its connections and gets no more.
    pub weight: u32,
    /// How packets come to it.
    pub method: Forwarding,
}

/// A real server and how many connections it has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RealServerLoad {
    /// The server.
    pub server: RealServer,
    /// Connections that are open.
    pub active: u32,
    /// Connections that are being closed, and those of UDP.
    pub inactive: u32,
}

/// All that is known about a real server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RealServerState {
    /// The server and its connections.
    pub load: RealServerLoad,
    /// Clients that stay with it.
    pub persistent: u32,
    /// From this many connections on it gets no more; 0 is no limit.
    pub upper_threshold: u32,
    /// Below this many it gets some again; 0 is three quarters of the upper.
    pub lower_threshold: u32,
    /// What it has done so far.
    pub stats: Stats,
}

/// All that is known about a virtual service, but for its servers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VirtualServerState {
    /// The service.
    pub server: VirtualServer,
    /// What it has done so far.
    pub stats: Stats,
}

/// A virtual service with its servers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// The service.
    pub server: VirtualServer,
    /// What it has done so far.
    pub stats: Stats,
    /// Its servers.
    pub servers: Vec<RealServerLoad>,
}

/// What was counted since the server was made. The kernel sums it up every two seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stats {
    /// Connections.
    pub connections: u64,
    /// Packets from clients.
    pub packets_in: u64,
    /// Packets to clients, as far as they come through here.
    pub packets_out: u64,
    /// Bytes from clients.
    pub bytes_in: u64,
    /// Bytes to clients.
    pub bytes_out: u64,
}

/// How long connections without packets are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timeouts {
    /// Of TCP.
    pub tcp_s: u32,
    /// Of TCP after one side has closed.
    pub tcp_fin_s: u32,
    /// Of UDP.
    pub udp_s: u32,
}

/// What a kernel's IPVS is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Info {
    /// Its version: major, minor, patch.
    pub version: (u8, u8, u8),
    /// How many buckets the table of connections has.
    pub connection_table_size: u32,
}
