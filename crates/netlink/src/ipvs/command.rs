//! What IPVS can be told to do.

use std::net::SocketAddr;

use super::message;
use super::server::{Frontend, RealServer, VirtualServer};
use crate::error::NetlinkError;
use crate::wire::Writer;

/// One change.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Command {
    /// Make a virtual service; refused if there is one.
    Add(VirtualServer),
    /// Change one that is there; connections stay.
    Edit(VirtualServer),
    /// Remove one with its servers.
    Delete(Frontend),
    /// Give a virtual service one more server; refused if it has that one.
    AddServer(Frontend, RealServer),
    /// Change the weight or the forwarding of a server that is there.
    EditServer(Frontend, RealServer),
    /// Take a server from a virtual service; packets of its connections go nowhere from then on.
    DeleteServer(Frontend, SocketAddr),
}

impl Command {
    /// Its number in IPVS' family.
    pub(super) fn number(&self) -> u8 {
        match self {
            Self::Add(_) => message::NEW_SERVICE,
            Self::Edit(_) => message::SET_SERVICE,
            Self::Delete(_) => message::DELETE_SERVICE,
            Self::AddServer(..) => message::NEW_SERVER,
            Self::EditServer(..) => message::SET_SERVER,
            Self::DeleteServer(..) => message::DELETE_SERVER,
        }
    }

    pub(super) fn doing(&self) -> &'static str {
        match self {
            Self::Add(_) => "adding an IPVS service",
            Self::Edit(_) => "changing an IPVS service",
            Self::Delete(_) => "deleting an IPVS service",
            Self::AddServer(..) => "adding a server to an IPVS service",
            Self::EditServer(..) => "changing a server of an IPVS service",
            Self::DeleteServer(..) => "deleting a server of an IPVS service",
        }
    }

    /// Writes its attributes.
    pub(super) fn put(&self, request: &mut Writer) {
        match self {
            Self::Add(service) | Self::Edit(service) => message::put_service(request, service),
            Self::Delete(frontend) => message::put_named(request, frontend),
            Self::AddServer(of, server) | Self::EditServer(of, server) => {
                message::put_named(request, of);
                message::put_server(request, server);
            }
            Self::DeleteServer(of, at) => {
                message::put_named(request, of);
                message::put_server_name(request, *at);
            }
        }
    }

    /// It was to remove something, and that is not there.
    pub(super) fn is_moot(&self, error: &NetlinkError) -> bool {
        // IPVS' words for a service and for a server that are not there.
        let absent: &[i32] = match self {
            Self::Delete(_) => &[libc::ESRCH],
            Self::DeleteServer(..) => &[libc::ESRCH, libc::ENOENT],
            _ => &[],
        };
        error.raw_os_error().is_some_and(|number| absent.contains(&number))
    }
}
