//! What a packet will meet in a [`State`].
//!
//! The walk is the kernel's:
//!
//! ```text
//!  for this machine   mangle INPUT ─► filter INPUT ─► virtual server ─► nat POSTROUTING
//!  from this machine  mangle OUTPUT ─► virtual server ─► nat POSTROUTING
//!                                   └► none: filter OUTPUT
//!  for others         filter FORWARD ─► nat POSTROUTING
//! ```
//!
//! A packet is for this machine if its destination is one of the node's own addresses or on our device. A
//! packet that starts here and goes to an address on our device has that very address as its source: where
//! nobody binds a socket to another, the kernel chooses the one that it has there.
//!
//! A virtual server is found by the packet's whole mark, else by address and port. Which of its endpoints
//! it chooses is the scheduler's affair: the answer names all that have a weight.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use ipnet::{IpNet, Ipv4Net};
use telaio_model::{IpFamily, Protocol};
use telaio_netlink::ipvs::Forwarding;

use super::mirror::ServerName;
use super::network::{Entry, Membership};
use super::sets::SetName;
use super::state::{ServerState, State};
use super::types::{ServerKey, protocol_number};
use crate::iptables::names::{FORWARD, INPUT, OUTPUT, POSTROUTING, Table};
use crate::iptables::trace::{Element, End, Sets, Walker, Way};
use crate::iptables::{Owner, Ruleset};
use crate::trace::{Packet, Surroundings, Trace, Verdict};

/// What becomes of a packet.
pub fn trace(packet: &Packet, around: &Surroundings, state: &State) -> Trace {
    let addresses = around.addresses.union(&state.addresses).copied().collect();
    let around = Surroundings { addresses };
    let starts_here = around.starts_here(packet);
    let mut packet = packet.clone();
    if starts_here && state.addresses.contains(&packet.to.ip()) {
        packet.from = packet.to.ip();
    }
    let none = Ruleset::of(Owner::Ipvs, "");
    let rules = state.rules.get(&IpFamily::of(packet.to.ip())).map_or(&none, |it| &it.ruleset);
    let walk = Walk {
        state,
        protocol: packet.protocol,
        walker: Walker::new(&packet, &around, rules, state),
        via: Vec::new(),
        said: 0,
    };
    let way = Way::new(packet.to);
    if starts_here {
        walk.sent_from_here(way)
    } else if around.is_local(packet.to.ip()) {
        walk.sent_here(way)
    } else {
        walk.passing(way)
    }
}

/// A packet on its way.
struct Walk<'a> {
    state: &'a State,
    protocol: Protocol,
    walker: Walker<'a>,
    via: Vec<String>,
    /// How much of what the walker has said is in `via`.
    said: usize,
}

impl<'a> Walk<'a> {
    fn sent_from_here(mut self, way: Way) -> Trace {
        let way = self.walker.step(Table::Mangle, OUTPUT, way);
        if way.is_refused() {
            return self.unserved(&way);
        }
        if let Some(server) = self.server(&way) {
            return self.served(&way, server);
        }
        let way = self.walker.step(Table::Filter, OUTPUT, way);
        self.unserved(&way)
    }

    fn sent_here(mut self, way: Way) -> Trace {
        let way = self.walker.step(Table::Mangle, INPUT, way);
        let way = self.walker.step(Table::Filter, INPUT, way);
        if way.is_refused() {
            return self.unserved(&way);
        }
        match self.server(&way) {
            Some(server) => self.served(&way, server),
            None => self.unserved(&way),
        }
    }

    fn passing(mut self, way: Way) -> Trace {
        let way = self.walker.step(Table::Filter, FORWARD, way);
        let way = self.walker.step(Table::Nat, POSTROUTING, way);
        self.unserved(&way)
    }

    /// The virtual server that takes the packet; one for all ports if there is none for its own.
    fn server(&self, way: &Way) -> Option<&'a ServerState> {
        let protocol = protocol_number(self.protocol);
        let at = |port| ServerKey::Address { protocol, at: SocketAddr::new(way.to.ip(), port) };
        let by_mark = ServerKey::Mark { is_v6: way.to.is_ipv6(), mark: way.mark };
        let keys = [by_mark, at(way.to.port()), at(0)];
        keys.iter().find_map(|key| self.state.servers.get(key))
    }

    fn served(mut self, way: &Way, server: &ServerState) -> Trace {
        self.keep_up();
        let name = ServerName(&server.server.frontend);
        self.via.push(format!("virtual server {name}: {}", server.server.scheduler));
        let mut answer = Trace {
            verdict: Verdict::Dnat,
            endpoints: BTreeSet::new(),
            masquerade: false,
            via: Vec::new(),
        };
        for endpoint in server.endpoints.values().filter(|it| it.weight > 0) {
            let way = match endpoint.method {
                Forwarding::Nat => {
                    // A server by mark may take any port, and then keeps it.
                    let port = match endpoint.address.port() {
                        0 => way.to.port(),
                        port => port,
                    };
                    way.clone().sent_to(SocketAddr::new(endpoint.address.ip(), port))
                }
                _ => way.clone(),
            };
            let to = if way.sent_on { way.to } else { endpoint.address };
            answer.endpoints.insert(to);
            let way = self.walker.step(Table::Nat, POSTROUTING, way);
            answer.masquerade |= way.is_masqueraded();
        }
        if answer.endpoints.is_empty() {
            // What has nowhere to go is answered as if the port were closed.
            answer.verdict = Verdict::Reject;
        }
        self.keep_up();
        Trace { via: self.via, ..answer }
    }

    fn unserved(mut self, way: &Way) -> Trace {
        self.keep_up();
        Trace {
            verdict: match way.end {
                Some(End::Rejected) => Verdict::Reject,
                Some(End::Dropped) => Verdict::Drop,
                _ => Verdict::None,
            },
            endpoints: BTreeSet::new(),
            masquerade: way.is_masqueraded(),
            via: self.via,
        }
    }

    /// Takes over what the walker has said since the last time, so that all stands in order.
    fn keep_up(&mut self) {
        let said = self.walker.via();
        self.via.extend(said.iter().skip(self.said).cloned());
        self.said = said.len();
    }
}

impl Sets for State {
    fn contains(&self, set: &str, element: &Element) -> bool {
        let Some(set) = SetName::parse(set) else { return false };
        let has = |entry: Entry| self.members.contains_key(&Membership { set, entry });
        match *element {
            Element::Ip(ip) => has(Entry::Ip(ip)),
            Element::IpPort(at, protocol) => has(ip_port(at, protocol)),
            Element::IpPortIp(at, protocol, other) => {
                let (ip, port) = (at.ip(), at.port());
                let protocol = protocol_number(protocol);
                has(Entry::IpPortIp { ip, protocol, port, other })
                    || self.lists_net(set, at, protocol, other)
            }
        }
    }

    fn mark(&self, set: &str, element: &Element) -> Option<u32> {
        let set = SetName::parse(set)?;
        let Element::IpPort(at, protocol) = *element else { return None };
        self.members.get(&Membership { set, entry: ip_port(at, protocol) }).copied().flatten()
    }
}

impl State {
    /// Whether the set has a network for this place that the other address is in.
    fn lists_net(&self, set: SetName, place: SocketAddr, number: u8, other: IpAddr) -> bool {
        // Less than every network.
        let net = IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::UNSPECIFIED, 0));
        let (ip, port) = (place.ip(), place.port());
        let first = Membership { set, entry: Entry::IpPortNet { ip, protocol: number, port, net } };
        let from_first = self.members.range(first..).map(|(member, _)| member);
        let nets = from_first.map_while(|member| match member.entry {
            Entry::IpPortNet { ip, protocol, port, net } => {
                let same =
                    member.set == set && (ip, port, protocol) == (place.ip(), place.port(), number);
                same.then_some(net)
            }
            _ => None,
        });
        nets.into_iter().any(|net| net.contains(&other))
    }
}

fn ip_port(at: SocketAddr, protocol: Protocol) -> Entry {
    Entry::IpPort { ip: at.ip(), protocol: protocol_number(protocol), port: at.port() }
}

#[cfg(test)]
mod tests;
