//! One virtual server with its endpoints: what is wanted, what is there, and what leads from one to the other.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Instant;

use telaio_netlink::ipvs::{Command, RealServer, VirtualServer};

use crate::ipvs::types::{Scheduler, ServerKey};

/// A virtual server.
#[derive(Debug, Default)]
pub(super) struct ServerState {
    pub(super) wanted: Option<VirtualServer>,
    pub(super) present: Option<VirtualServer>,
    pub(super) is_udp: bool,
    /// Another has it; hands off.
    pub(super) is_anothers: bool,
    pub(super) endpoints: BTreeMap<SocketAddr, EndpointState>,
}

/// An endpoint of one.
#[derive(Debug, Default)]
pub(super) struct EndpointState {
    pub(super) wanted: Option<RealServer>,
    pub(super) present: Option<RealServer>,
    /// It has weight 0 because it is not wanted, since then.
    pub(super) leaving_since: Option<Instant>,
}

impl ServerState {
    pub(super) fn has_leaving(&self) -> bool {
        self.present.is_some()
            && (self.wanted.is_none()
                || self.endpoints.values().any(|it| it.wanted.is_none() && it.present.is_some()))
    }

    /// Nothing is left to do but to wait.
    pub(super) fn is_settled(&self) -> bool {
        let endpoints = self.endpoints.values().all(|it| match (&it.wanted, &it.present) {
            (Some(wanted), present) => present.as_ref() == Some(wanted),
            (None, Some(present)) => present.weight == 0,
            (None, None) => true,
        });
        let server = match &self.wanted {
            Some(wanted) => self.present.as_ref() == Some(wanted),
            None => true,
        };
        self.is_anothers || (server && endpoints)
    }

    pub(super) fn commands(&self, key: &ServerKey, commands: &mut Vec<Command>) {
        let Some(wanted) = &self.wanted else {
            let leaves = |it: &EndpointState| it.present.is_some();
            if self.present.is_some() && (self.is_udp || !self.endpoints.values().any(leaves)) {
                commands.push(Command::Delete(*key));
            } else if self.present.is_some() {
                self.quiet(key, commands);
            }
            return;
        };
        match &self.present {
            None => commands.push(Command::Add(wanted.clone())),
            Some(present) if present != wanted => commands.push(Command::Edit(wanted.clone())),
            Some(_) => {}
        }
        for endpoint in self.endpoints.values() {
            match (endpoint.wanted, endpoint.present) {
                (Some(wanted), None) => commands.push(Command::AddServer(*key, wanted)),
                (Some(wanted), Some(present)) if wanted != present => {
                    commands.push(Command::EditServer(*key, wanted));
                }
                _ => {}
            }
        }
        // Who goes after who comes: a service that has endpoints is never without.
        self.quiet(key, commands);
    }

    /// The scheduler leads clients also to an endpoint with weight 0, who are refused then: it has to go
    /// at once.
    pub(super) fn needs_all(&self) -> bool {
        let by_destination = Scheduler::DestinationHash.as_str();
        self.wanted.as_ref().is_some_and(|it| it.scheduler == by_destination)
    }

    /// Endpoints that are not wanted get no more connections.
    pub(super) fn quiet(&self, key: &ServerKey, commands: &mut Vec<Command>) {
        for (address, endpoint) in &self.endpoints {
            let (None, Some(present)) = (endpoint.wanted, endpoint.present) else { continue };
            if self.is_udp || self.needs_all() {
                commands.push(Command::DeleteServer(*key, *address));
            } else if present.weight > 0 {
                let quiet = RealServer { weight: 0, ..present };
                commands.push(Command::EditServer(*key, quiet));
            }
        }
    }
}
