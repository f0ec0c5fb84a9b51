//! What we say of servers and endpoints, in the terms of the kernel and of our records there.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use telaio_model::IpFamily;
use telaio_netlink::ipvs::{
    FLAG_PERSISTENT, FLAG_SCHEDULER_1, Forwarding as Method, RealServer, VirtualServer,
};

use crate::ipvs::network::{Entry, Membership, Server};
use crate::ipvs::sets::SetKind;
use crate::ipvs::types::{EndpointInfo, Forwarding, Scheduler, ServerKey, family_of};

/// Where a virtual server is on record.
pub fn record(key: &ServerKey) -> Membership {
    match *key {
        ServerKey::Address { protocol, at } => {
            let entry = Entry::IpPort { ip: at.ip(), protocol, port: at.port() };
            Membership::new(SetKind::Servers, entry)
        }
        ServerKey::Mark { mark, .. } => {
            let ip = match family_of(key) {
                IpFamily::V4 => IpAddr::V4(Ipv4Addr::from(mark)),
                IpFamily::V6 => IpAddr::V6(Ipv6Addr::from(u128::from(mark))),
            };
            Membership::new(SetKind::Marks, Entry::Ip(ip))
        }
    }
}

/// The virtual server that a record is about; `None` if it is no record.
pub(super) fn recorded(at: &Membership) -> Option<ServerKey> {
    match (at.set.kind, at.entry) {
        (SetKind::Servers, Entry::IpPort { ip, protocol, port }) => {
            Some(ServerKey::Address { protocol, at: SocketAddr::new(ip, port) })
        }
        (SetKind::Marks, Entry::Ip(IpAddr::V4(ip))) => {
            Some(ServerKey::Mark { is_v6: false, mark: ip.into() })
        }
        (SetKind::Marks, Entry::Ip(IpAddr::V6(ip))) => {
            Some(ServerKey::Mark { is_v6: true, mark: u32::try_from(u128::from(ip)).ok()? })
        }
        _ => None,
    }
}

/// A server in the kernel's terms.
pub fn virtual_server(server: &Server) -> VirtualServer {
    // Without this flag, whoever is hashed to an endpoint with weight 0 is refused.
    let fallback = match server.scheduler {
        Scheduler::SourceHash | Scheduler::Maglev => FLAG_SCHEDULER_1,
        _ => 0,
    };
    VirtualServer {
        flags: fallback | if server.affinity_s.is_some() { FLAG_PERSISTENT } else { 0 },
        timeout_s: server.affinity_s.unwrap_or_default(),
        ..VirtualServer::new(server.key, server.scheduler.as_str())
    }
}

/// An endpoint in the kernel's terms.
pub fn real_server(endpoint: &EndpointInfo) -> RealServer {
    RealServer {
        address: endpoint.address,
        weight: u32::from(endpoint.weight),
        method: match endpoint.forwarding {
            Forwarding::Nat => Method::Nat,
            Forwarding::Direct => Method::Direct,
            Forwarding::Tunnel => Method::Tunnel,
        },
    }
}
