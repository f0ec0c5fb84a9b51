//! What the controller knows of services and endpoints, in a form that the proxier can take as it is.
//!
//! A port of a Kubernetes Service becomes one [`ServiceInfo`] for each address that it answers on, since
//! IPVS knows virtual servers by address and port; with the external policy Local one more, which only
//! traffic from outside is led to, by a mark.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use ipnet::IpNet;
use telaio_model::{IpFamily, Protocol};
pub use telaio_netlink::ipvs::Frontend as ServerKey;

use crate::plan::PortName;

/// How the kernel chooses among endpoints.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scheduler {
    /// In turn.
    #[default]
    RoundRobin,
    /// In turn, in proportion to the weights.
    WeightedRoundRobin,
    /// The one with the fewest connections.
    LeastConnection,
    /// The same, in proportion to the weights.
    WeightedLeastConnection,
    /// By the client's address.
    SourceHash,
    /// By the destination's address.
    DestinationHash,
    /// By the client's address; an endpoint that leaves moves only its own clients.
    Maglev,
    /// The one that would answer first.
    ShortestExpectedDelay,
    /// One without connections, else the one that would answer first.
    NeverQueue,
}

impl Scheduler {
    /// All, with the names by which the kernel, `ipvsadm` and kube-proxy know them.
    pub const ALL: [(Self, &'static str); 9] = [
        (Self::RoundRobin, "rr"),
        (Self::WeightedRoundRobin, "wrr"),
        (Self::LeastConnection, "lc"),
        (Self::WeightedLeastConnection, "wlc"),
        (Self::SourceHash, "sh"),
        (Self::DestinationHash, "dh"),
        (Self::Maglev, "mh"),
        (Self::ShortestExpectedDelay, "sed"),
        (Self::NeverQueue, "nq"),
    ];

    /// Its name.
    pub fn as_str(self) -> &'static str {
        Self::ALL.iter().find(|(scheduler, _)| *scheduler == self).map_or("rr", |(_, name)| name)
    }

    /// Reads its name.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.iter().find(|(_, name)| *name == text.trim()).map(|(scheduler, _)| *scheduler)
    }

    /// The one that does the same and heeds weights.
    #[must_use]
    pub fn weighted(self) -> Self {
        match self {
            Self::RoundRobin => Self::WeightedRoundRobin,
            Self::LeastConnection => Self::WeightedLeastConnection,
            other => other,
        }
    }
}

/// How packets get to an endpoint.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Forwarding {
    /// With the endpoint's address as their destination.
    #[default]
    Nat,
    /// Unchanged, to the endpoint's link address. It has to have the service's address, and answers the
    /// client itself.
    Direct,
    /// Unchanged, within another packet. Likewise.
    Tunnel,
}

impl Forwarding {
    /// Reads a name.
    pub fn parse(text: &str) -> Option<Self> {
        match text.trim() {
            "nat" => Some(Self::Nat),
            "direct" => Some(Self::Direct),
            "tunnel" => Some(Self::Tunnel),
            _ => None,
        }
    }
}

/// Which handler a service is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ServiceType {
    /// A cluster address.
    ClusterIp,
    /// A port of one of the node's own addresses.
    NodePort,
    /// A load balancer's address, or an external one.
    LoadBalancer,
    /// What traffic from outside is led to by a mark, where the policy is Local.
    Local,
}

/// What becomes of traffic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Treatment {
    /// A virtual server takes it.
    Serve,
    /// It is refused.
    Reject,
    /// It is dropped.
    Drop,
}

/// What becomes of traffic from outside, with the external policy Local.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Outside {
    /// The virtual server with this mark takes it.
    Marked(u32),
    /// It is dropped: there is no endpoint on this node.
    Drop,
}

/// One address and port that a port of a service answers on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceInfo {
    /// The virtual server that it has, or would have.
    pub server: ServerKey,
    /// Of which port, for people.
    pub name: Arc<PortName>,
    /// Whose business it is.
    pub service_type: ServiceType,
    /// What becomes of traffic; with [`ServiceInfo::outside`], of that from this node and its pods.
    pub treatment: Treatment,
    /// What becomes of traffic from outside, if that is something else.
    pub outside: Option<Outside>,
    /// How the kernel chooses.
    pub scheduler: Scheduler,
    /// How long a client stays with its endpoint, if it does.
    pub affinity_s: Option<u32>,
    /// Its endpoints answer clients themselves, so these have to be seen as they are.
    pub is_direct: bool,
    /// The sources that may use it; `None`: all. Never empty.
    pub allowed: Option<Arc<[IpNet]>>,
    /// The address has to be put on our device; else the machine has it already.
    pub bind: bool,
}

impl ServiceInfo {
    /// Its address and port; none for one that is known by its mark.
    pub fn at(&self) -> Option<SocketAddr> {
        match self.server {
            ServerKey::Address { at, .. } => Some(at),
            ServerKey::Mark { .. } => None,
        }
    }

    /// Its family.
    pub fn family(&self) -> IpFamily {
        family_of(&self.server)
    }

    /// The address that has to be on our device.
    pub fn address(&self) -> Option<IpAddr> {
        self.at().filter(|_| self.bind).map(|at| at.ip())
    }
}

/// An endpoint of one virtual server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndpointInfo {
    /// Whose endpoint.
    pub server: ServerKey,
    /// The protocol of the service, which not every server's key tells.
    pub protocol: Protocol,
    /// Its address and port.
    pub address: SocketAddr,
    /// Its share, at least 1.
    pub weight: u16,
    /// How packets get there.
    pub forwarding: Forwarding,
    /// It runs on this node, or may: then it may meet itself.
    pub local: bool,
}

/// What an endpoint is known by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EndpointKey {
    /// Whose.
    pub server: ServerKey,
    /// Its address and port.
    pub address: SocketAddr,
}

/// What both kinds of resource have, for what is the same for both.
pub trait ResourceInfo: Clone + Eq + Send + Sync {
    /// What it is known by in its store.
    type Key: Ord + Clone + fmt::Debug + Send + Sync;

    /// Its key.
    fn key(&self) -> Self::Key;

    /// The virtual server that it is part of; patches of one server form a group.
    fn server(&self) -> &ServerKey;
}

impl ResourceInfo for ServiceInfo {
    type Key = ServerKey;

    fn key(&self) -> ServerKey {
        self.server
    }

    fn server(&self) -> &ServerKey {
        &self.server
    }
}

impl ResourceInfo for EndpointInfo {
    type Key = EndpointKey;

    fn key(&self) -> EndpointKey {
        EndpointKey { server: self.server, address: self.address }
    }

    fn server(&self) -> &ServerKey {
        &self.server
    }
}

/// The key of the virtual server at an address and port.
pub fn server_at(protocol: Protocol, at: SocketAddr) -> ServerKey {
    ServerKey::Address { protocol: protocol_number(protocol), at }
}

/// The family of a virtual server.
pub fn family_of(server: &ServerKey) -> IpFamily {
    match server {
        ServerKey::Address { at, .. } => IpFamily::of(at.ip()),
        ServerKey::Mark { is_v6: false, .. } => IpFamily::V4,
        ServerKey::Mark { is_v6: true, .. } => IpFamily::V6,
    }
}

/// A protocol's number over IP.
pub fn protocol_number(protocol: Protocol) -> u8 {
    match protocol {
        Protocol::Tcp => 6,
        Protocol::Udp => 17,
        Protocol::Sctp => 132,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schedulers_are_known_by_the_kernels_names() {
        for (scheduler, name) in Scheduler::ALL {
            assert_eq!(Scheduler::parse(name), Some(scheduler));
            assert_eq!(scheduler.as_str(), name);
        }
        assert_eq!(Scheduler::parse("best"), None);
    }
}
