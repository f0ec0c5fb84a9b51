//! What handlers ask of the network: the small steps that a patch comes down to.
//!
//! Handlers only say what should be; [`Proxier`](super::proxier::Proxier) knows what is there, leaves out
//! what is so already, and takes the steps of many groups together, in an order in which nothing is served
//! half.

use std::net::IpAddr;

use telaio_model::IpFamily;
pub use telaio_netlink::ipset::Key as Entry;

use super::sets::{SetKind, SetName};
use super::types::{EndpointInfo, EndpointKey, Scheduler, ServerKey};

/// A member and where it belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Membership {
    /// The set.
    pub set: SetName,
    /// The member.
    pub entry: Entry,
}

impl Membership {
    /// The membership in the set of this kind that is of the entry's family.
    pub fn new(kind: SetKind, entry: Entry) -> Self {
        let ip = match entry {
            Entry::Ip(ip)
            | Entry::IpPort { ip, .. }
            | Entry::IpPortIp { ip, .. }
            | Entry::IpPortNet { ip, .. } => ip,
        };
        Self { set: SetName { kind, family: IpFamily::of(ip) }, entry }
    }
}

/// A virtual server as it should be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Server {
    /// What it is known by.
    pub key: ServerKey,
    /// How it chooses.
    pub scheduler: Scheduler,
    /// How long a client stays with its endpoint, if it does.
    pub affinity_s: Option<u32>,
    /// It is for UDP, which has no connections whose end could be awaited.
    pub is_udp: bool,
}

/// One step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// The virtual server is there, and is so.
    SetServer(Server),
    /// It is not wanted any more: no new connection, and gone when the last one has ended.
    RemoveServer(ServerKey),
    /// The endpoint is there, and is so.
    SetEndpoint(EndpointInfo),
    /// Likewise for an endpoint.
    RemoveEndpoint(EndpointKey),
    /// The member is in the set, with this mark if the set has marks. Several may want the same.
    Join(Membership, Option<u32>),
    /// One who wanted it wants it no more.
    Leave(Membership),
    /// The address is on our device. Several may want the same.
    Bind(IpAddr),
    /// One who wanted it wants it no more.
    Unbind(IpAddr),
}
