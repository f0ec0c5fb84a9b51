//! What is wanted and what is there, thing by thing, and the commands that lead from one to the other. Pure.
//!
//! What always holds:
//! - A thing that is as it is wanted gives no command.
//! - What is not on record in the kernel ([`SetKind::Servers`], [`SetKind::Marks`]) is another's, and is never
//!   touched; a virtual server is on record before it is made, and until it is gone.
//! - An endpoint that is not wanted any more gets weight 0, and goes when its last connection has ended or its
//!   time is over; a server goes after its last endpoint, and its address after the server. UDP has nothing
//!   to wait for.

mod observe;
mod server;
mod terms;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::{Duration, Instant};

use telaio_model::IpFamily;
use telaio_netlink::ipvs::{Command, RealServerLoad};

use super::network::{Entry, Membership, Step};
use super::sets::SetKind;
use super::types::{EndpointKey, ResourceInfo as _, Scheduler, ServerKey, family_of};

pub use observe::Found;
use server::ServerState;
use terms::recorded;
pub use terms::{real_server, record, virtual_server};

const UDP: u8 = 17;
/// The protocols that services have, by their numbers.
const PROTOCOLS: [u8; 3] = [6, UDP, 132];

/// Something in the kernel that can be there or not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Thing {
    /// A virtual server.
    Server(ServerKey),
    /// An endpoint of one.
    Endpoint(EndpointKey),
    /// A member of a set.
    Member(Membership),
    /// An address on our device.
    Address(IpAddr),
}

impl fmt::Display for Thing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Server(server) => write!(f, "virtual server {}", ServerName(server)),
            Self::Endpoint(key) => {
                write!(f, "endpoint {} of virtual server {}", key.address, ServerName(&key.server))
            }
            Self::Member(member) => write!(f, "member {:?} of set {}", member.entry, member.set),
            Self::Address(ip) => write!(f, "address {ip}"),
        }
    }
}

/// A virtual server's key for people, as `ipvsadm` writes it.
pub struct ServerName<'a>(pub &'a ServerKey);

impl fmt::Display for ServerName<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            ServerKey::Address { protocol, at } => {
                let name = match protocol {
                    6 => "TCP",
                    17 => "UDP",
                    132 => "SCTP",
                    _ => "?",
                };
                write!(f, "{name} {at}")
            }
            ServerKey::Mark { is_v6, mark } => {
                write!(f, "FWM {mark}{}", if *is_v6 { " IPv6" } else { "" })
            }
        }
    }
}

#[derive(Debug, Default)]
struct MemberState {
    wants: u32,
    mark: Option<u32>,
    /// It is there; then with a mark or without.
    #[expect(clippy::option_option, reason = "two questions")]
    present: Option<Option<u32>>,
}

#[derive(Debug, Default)]
struct AddressState {
    wants: u32,
    present: bool,
}

/// What is wanted and what is there.
#[derive(Debug, Default)]
pub struct Mirror {
    servers: BTreeMap<ServerKey, ServerState>,
    members: BTreeMap<Membership, MemberState>,
    addresses: BTreeMap<IpAddr, AddressState>,
    /// What may not be as it is wanted.
    dirty_servers: BTreeSet<ServerKey>,
    dirty_members: BTreeSet<Membership>,
    dirty_addresses: BTreeSet<IpAddr>,
    /// Servers that are leaving, or have endpoints that are.
    leaving: BTreeSet<ServerKey>,
    /// Virtual servers that are others', wanted or not, as of the last look: once we have put one on record,
    /// it looks like ours.
    others: BTreeSet<ServerKey>,
    /// Schedulers that this kernel does not have.
    missing_schedulers: BTreeSet<String>,
    /// Flows of UDP that are left over are waited for, too.
    is_patient: bool,
}

impl Mirror {
    /// The kernel does not have this scheduler; round robin takes its place from now on.
    pub fn lack_scheduler(&mut self, scheduler: &str) {
        self.missing_schedulers.insert(scheduler.to_owned());
        for wanted in self.servers.values_mut().filter_map(|state| state.wanted.as_mut()) {
            if wanted.scheduler == scheduler {
                Scheduler::RoundRobin.as_str().clone_into(&mut wanted.scheduler);
            }
        }
    }

    /// From now on UDP is waited for like everything else: for when all of it goes, and nobody of ours takes
    /// its flows.
    pub fn be_patient(&mut self) {
        self.is_patient = true;
    }

    /// Something is wanted now, or no more.
    pub fn take(&mut self, step: &Step) {
        match step {
            Step::SetServer(server) => {
                let state = self.servers.entry(server.key).or_default();
                let mut server_wanted = virtual_server(server);
                if self.missing_schedulers.contains(&server_wanted.scheduler) {
                    Scheduler::RoundRobin.as_str().clone_into(&mut server_wanted.scheduler);
                }
                state.wanted = Some(server_wanted);
                state.is_udp = server.is_udp;
                if state.present.is_none() && self.others.contains(&server.key) {
                    if !state.is_anothers {
                        tell_of_anothers(&server.key);
                    }
                    state.is_anothers = true;
                }
                self.touch_server(server.key);
            }
            Step::RemoveServer(key) => {
                if let Some(state) = self.servers.get_mut(key) {
                    state.wanted = None;
                }
                self.touch_server(*key);
            }
            Step::SetEndpoint(endpoint) => {
                let state = self.servers.entry(endpoint.server).or_default();
                let state = state.endpoints.entry(endpoint.address).or_default();
                state.wanted = Some(real_server(endpoint));
                state.leaving_since = None;
                self.touch_server(endpoint.key().server);
            }
            Step::RemoveEndpoint(key) => {
                let state = self.servers.get_mut(&key.server);
                if let Some(state) = state.and_then(|it| it.endpoints.get_mut(&key.address)) {
                    state.wanted = None;
                }
                self.touch_server(key.server);
            }
            Step::Join(member, mark) => {
                let state = self.members.entry(*member).or_default();
                state.wants += 1;
                state.mark = *mark;
                self.dirty_members.insert(*member);
            }
            Step::Leave(member) => {
                if let Some(state) = self.members.get_mut(member) {
                    state.wants = state.wants.saturating_sub(1);
                }
                self.dirty_members.insert(*member);
            }
            Step::Bind(ip) => {
                self.addresses.entry(*ip).or_default().wants += 1;
                self.touch_address(*ip);
            }
            Step::Unbind(ip) => {
                if let Some(state) = self.addresses.get_mut(ip) {
                    state.wants = state.wants.saturating_sub(1);
                }
                self.touch_address(*ip);
            }
        }
    }

    fn touch_server(&mut self, key: ServerKey) {
        // What is not wanted any more may have weight 0 already, and what is wanted again its own.
        self.note_leaving(&key);
        self.dirty_servers.insert(key);
        self.touch_member(record(&key));
        if let ServerKey::Address { at, .. } = key
            && self.addresses.contains_key(&at.ip())
        {
            self.touch_address(at.ip());
        }
    }

    /// Places that were kept for the connections of the server with this mark.
    fn touch_places(&mut self, key: &ServerKey) {
        let ServerKey::Mark { mark, .. } = *key else { return };
        let first = match family_of(key) {
            IpFamily::V4 => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            IpFamily::V6 => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        };
        let first = Membership::new(SetKind::Local, Entry::Ip(first));
        let of_set = self.members.range(first..).take_while(|(at, _)| at.set == first.set);
        let kept = of_set.filter(|(_, state)| state.present == Some(Some(mark)));
        let places: Vec<Membership> = kept.map(|(at, _)| *at).collect();
        for at in places {
            self.touch_member(at);
            if let Entry::IpPort { ip, .. } = at.entry
                && self.addresses.contains_key(&ip)
            {
                self.touch_address(ip);
            }
        }
    }

    fn touch_address(&mut self, ip: IpAddr) {
        self.dirty_addresses.insert(ip);
        self.touch_member(Membership::new(SetKind::Addresses, Entry::Ip(ip)));
    }

    fn touch_member(&mut self, member: Membership) {
        self.members.entry(member).or_default();
        self.dirty_members.insert(member);
    }

    /// Members to be put into sets, with their marks.
    pub fn joins(&self) -> Vec<(Membership, Option<u32>)> {
        let dirty = self.dirty_members.iter().filter_map(|at| Some((*at, self.members.get(at)?)));
        dirty
            .filter(|(at, state)| state.present != Some(state.mark) && self.is_wanted(at, state))
            // One that is only kept is as it was.
            .filter(|(at, state)| at.set.kind != SetKind::Local || state.wants > 0)
            .map(|(at, state)| (at, state.mark))
            .collect()
    }

    /// Members to be taken from sets.
    pub fn leaves(&self) -> Vec<Membership> {
        let dirty = self.dirty_members.iter().filter_map(|at| Some((*at, self.members.get(at)?)));
        dirty
            .filter(|(at, state)| state.present.is_some() && !self.is_wanted(at, state))
            .map(|(at, _)| at)
            .collect()
    }

    fn is_wanted(&self, at: &Membership, state: &MemberState) -> bool {
        match (at.set.kind, at.entry) {
            (SetKind::Servers | SetKind::Marks, _) => {
                let state = recorded(at).and_then(|key| self.servers.get(&key));
                state.is_some_and(|it| {
                    !it.is_anothers && (it.wanted.is_some() || it.present.is_some())
                })
            }
            (SetKind::Addresses, Entry::Ip(ip)) => {
                self.addresses.get(&ip).is_some_and(|it| it.present || self.is_needed(ip, it))
            }
            (SetKind::Local, _) => state.wants > 0 || self.keeps(at, state),
            _ => state.wants > 0,
        }
    }

    /// A place that is gone is still led to its mark while the server with that mark has connections: it
    /// is how we know, also after a restart, that they need the address.
    fn keeps(&self, at: &Membership, state: &MemberState) -> bool {
        let (Entry::IpPort { ip, protocol, port }, Some(Some(mark))) = (at.entry, state.present)
        else {
            return false;
        };
        let is_v6 = at.set.family == IpFamily::V6;
        let marked = self.servers.get(&ServerKey::Mark { is_v6, mark });
        let here = ServerKey::Address { protocol, at: SocketAddr::new(ip, port) };
        let is_served = self.servers.get(&here).is_some_and(|it| it.wanted.is_some());
        !is_served && marked.is_some_and(|it| it.wanted.is_none() && it.present.is_some())
    }

    /// An address is needed while somebody wants it, and while a server that leaves has connections there.
    fn is_needed(&self, ip: IpAddr, state: &AddressState) -> bool {
        let leaves = |protocol: u8| {
            let key = |port| ServerKey::Address { protocol, at: SocketAddr::new(ip, port) };
            let mut here = self.leaving.range(key(0)..=key(u16::MAX));
            here.any(|key| self.servers.get(key).is_some_and(|it| it.wanted.is_none()))
        };
        let marked = |protocol: u8| {
            let member =
                |port| Membership::new(SetKind::Local, Entry::IpPort { ip, protocol, port });
            let mut here = self.members.range(member(0)..=member(u16::MAX));
            here.any(|(at, state)| self.keeps(at, state))
        };
        state.wants > 0
            || (state.present && PROTOCOLS.into_iter().any(|it| leaves(it) || marked(it)))
    }

    /// The commands for virtual servers and their endpoints that need nobody's leave.
    pub fn commands(&self) -> Vec<Command> {
        self.commands_of(|_| true)
    }

    /// Those of them that make virtual servers. They come first and alone: only where the kernel has made
    /// one for us are [`changes`](Self::changes) of it ours to make.
    pub fn new_servers(&self) -> Vec<Command> {
        let mut commands = self.commands_of(|state| state.present.is_none());
        commands.retain(|command| matches!(command, Command::Add(_)));
        commands
    }

    /// Those for virtual servers that are there.
    pub fn changes(&self) -> Vec<Command> {
        self.commands_of(|state| state.present.is_some())
    }

    fn commands_of(&self, which: impl Fn(&ServerState) -> bool) -> Vec<Command> {
        let mut commands = Vec::new();
        for key in &self.dirty_servers {
            let state = self.servers.get(key);
            if let Some(state) = state.filter(|state| !state.is_anothers && which(state)) {
                state.commands(key, &mut commands);
            }
        }
        commands
    }

    /// The kernel would not make this server: somebody else has, since we looked.
    pub fn met_anothers(&mut self, key: ServerKey) {
        tell_of_anothers(&key);
        self.others.insert(key);
        self.servers.entry(key).or_default().is_anothers = true;
        self.touch_server(key);
    }

    /// Marks of ours that are somebody else's virtual servers now. What we lead there would be theirs.
    pub fn lost_marks(&self) -> Vec<(IpFamily, u32)> {
        let is_lost = |key: &&ServerKey| {
            self.servers.get(key).is_some_and(|it| it.is_anothers && it.wanted.is_some())
        };
        let mark = |key: &ServerKey| match *key {
            ServerKey::Mark { mark, .. } => Some((family_of(key), mark)),
            ServerKey::Address { .. } => None,
        };
        self.others.iter().filter(is_lost).filter_map(mark).collect()
    }

    /// Where what leaves sent its connections to.
    pub fn leaving_endpoints(&self) -> BTreeSet<SocketAddr> {
        let servers = self.leaving.iter().filter_map(|key| self.servers.get(key));
        let endpoints = servers.flat_map(|server| &server.endpoints);
        endpoints.filter(|(_, it)| it.wanted.is_none()).map(|(address, _)| *address).collect()
    }

    /// Addresses to be put on our device.
    pub fn binds(&self) -> Vec<IpAddr> {
        let wanted =
            |ip: &&IpAddr| self.addresses.get(ip).is_some_and(|it| it.wants > 0 && !it.present);
        self.dirty_addresses.iter().filter(wanted).copied().collect()
    }

    /// Addresses to be taken from it.
    pub fn unbinds(&self) -> Vec<IpAddr> {
        let unwanted = |ip: &&IpAddr| {
            let state = self.addresses.get(ip);
            state.is_some_and(|it| it.present && !self.is_needed(**ip, it))
        };
        self.dirty_addresses.iter().filter(unwanted).copied().collect()
    }

    /// The servers whose connections have to be counted.
    pub fn leaving(&self) -> &BTreeSet<ServerKey> {
        &self.leaving
    }

    /// The commands for a leaving server's endpoints whose connections have ended, or whose time is over.
    pub fn drained(
        &mut self,
        key: &ServerKey,
        loads: &[RealServerLoad],
        now: Instant,
        time_max: Duration,
    ) -> Vec<Command> {
        let Some(state) = self.servers.get_mut(key) else { return Vec::new() };
        let mut commands = Vec::new();
        let mut left = 0;
        for (address, endpoint) in &mut state.endpoints {
            if endpoint.wanted.is_some() || endpoint.present.is_none() {
                left += usize::from(endpoint.present.is_some());
                continue;
            }
            let load = loads.iter().find(|load| load.server.address == *address);
            let is_idle = load.is_none_or(|load| load.active == 0 && load.inactive == 0);
            let is_over = now - *endpoint.leaving_since.get_or_insert(now) >= time_max;
            if is_idle || is_over {
                commands.push(Command::DeleteServer(*key, *address));
            } else {
                left += 1;
            }
        }
        if left == 0 && state.wanted.is_none() {
            return vec![Command::Delete(*key)];
        }
        commands
    }

    /// The kernel has carried these out.
    pub fn applied<'a>(&mut self, commands: impl IntoIterator<Item = &'a Command>, now: Instant) {
        for command in commands {
            let key = match command {
                Command::Add(server) | Command::Edit(server) => {
                    self.servers.entry(server.frontend).or_default().present = Some(server.clone());
                    server.frontend
                }
                Command::Delete(key) => {
                    self.servers.remove(key);
                    self.leaving.remove(key);
                    self.touch_server(*key);
                    self.touch_places(key);
                    continue;
                }
                Command::AddServer(key, server) | Command::EditServer(key, server) => {
                    let state = self.servers.entry(*key).or_default();
                    let endpoint = state.endpoints.entry(server.address).or_default();
                    endpoint.present = Some(*server);
                    endpoint.leaving_since = match endpoint.wanted {
                        Some(_) => None,
                        None => endpoint.leaving_since.or(Some(now)),
                    };
                    *key
                }
                Command::DeleteServer(key, address) => {
                    let state = self.servers.entry(*key).or_default();
                    if let Some(endpoint) = state.endpoints.get_mut(address) {
                        endpoint.present = None;
                        endpoint.leaving_since = None;
                    }
                    *key
                }
            };
            self.note_leaving(&key);
        }
    }

    fn note_leaving(&mut self, key: &ServerKey) {
        if self.servers.get(key).is_some_and(ServerState::has_leaving) {
            self.leaving.insert(*key);
        } else {
            self.leaving.remove(key);
        }
    }

    /// These members are in their sets now.
    pub fn joined<'a>(&mut self, members: impl IntoIterator<Item = &'a (Membership, Option<u32>)>) {
        for (member, mark) in members {
            self.members.entry(*member).or_default().present = Some(*mark);
        }
    }

    /// These members are not in their sets any more.
    pub fn left<'a>(&mut self, members: impl IntoIterator<Item = &'a Membership>) {
        for member in members {
            if let Some(state) = self.members.get_mut(member) {
                state.present = None;
            }
        }
    }

    /// These addresses are on our device now, or not any more.
    pub fn bound<'a>(&mut self, addresses: impl IntoIterator<Item = &'a IpAddr>, present: bool) {
        for ip in addresses {
            self.addresses.entry(*ip).or_default().present = present;
            // What the set says of it may be dated.
            self.touch_address(*ip);
        }
    }

    /// What is as it is wanted needs no look any more.
    pub fn settle(&mut self) {
        let dirty = std::mem::take(&mut self.dirty_members);
        for member in dirty {
            let Some(state) = self.members.get(&member) else { continue };
            let wanted = self.is_wanted(&member, state);
            let is_kept = wanted && state.wants == 0 && member.set.kind == SetKind::Local;
            if !is_kept && state.present != wanted.then_some(state.mark) {
                self.dirty_members.insert(member);
            } else if !wanted {
                self.members.remove(&member);
            }
        }
        for key in std::mem::take(&mut self.dirty_servers) {
            let Some(state) = self.servers.get_mut(&key) else { continue };
            state.endpoints.retain(|_, it| it.wanted.is_some() || it.present.is_some());
            if !state.is_settled() {
                self.dirty_servers.insert(key);
            } else if state.wanted.is_none() && state.present.is_none() {
                self.servers.remove(&key);
            }
        }
        for ip in std::mem::take(&mut self.dirty_addresses) {
            let Some(state) = self.addresses.get(&ip) else { continue };
            if state.present != (state.wants > 0) {
                self.dirty_addresses.insert(ip);
            } else if !state.present {
                self.addresses.remove(&ip);
            }
        }
    }

    /// How many virtual servers and endpoints are in the kernel.
    pub fn counts(&self) -> (usize, usize) {
        let present = self.servers.values().filter(|it| it.present.is_some());
        present.fold((0, 0), |(servers, endpoints), state| {
            let here = state.endpoints.values().filter(|it| it.present.is_some()).count();
            (servers + 1, endpoints + here)
        })
    }
}

fn tell_of_anothers(key: &ServerKey) {
    let server = ServerName(key);
    tracing::warn!(%server, "is a virtual server of somebody else; it is left alone");
}

#[cfg(test)]
mod tests;
