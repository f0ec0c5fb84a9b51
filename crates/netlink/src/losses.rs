//! Noticing that links, addresses, routes or lasting neighbours of ours go, and that links come.
//!
//! For whoever keeps all of these as they should be: what goes may be missed, and then he looks. What others do with links of
//! theirs is none of it, so their comings and goings cost nothing. Nothing that he adds is told as a loss, so mending does not
//! call for more mending.

use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use crate::addresses::ip_of;
use crate::error::NetlinkError;
use crate::links::{self, Link, LinkIndex, RTM_DELLINK, RTM_NEWLINK};
use crate::rtnl::Rtnetlink;
use crate::socket::{Protocol, Socket};
use crate::wire::{Message, Messages, ne16, ne32};

const GROUPS: [u32; 6] = [GROUP_LINK, GROUP_NEIGHBOUR, 5, 7, 9, 11];
const GROUP_LINK: u32 = 1;
const GROUP_NEIGHBOUR: u32 = 3;
const RTM_DELADDR: u16 = 21;
const RTM_DELROUTE: u16 = 25;
const RTM_DELNEIGH: u16 = 29;
/// Where a route has the number of who made it.
const ROUTE_PROTOCOL_AT: usize = 5;
/// Where addresses and neighbours have their link's number.
const LINK_INDEX_AT: usize = 4;
/// `struct ndmsg`, and the address in what follows.
const NEIGHBOUR_HEADER_LEN: usize = 12;
const NDA_DST: u16 = 1;
/// Where a neighbour has its state.
const NEIGHBOUR_STATE_AT: usize = 8;
const NEIGHBOUR_PERMANENT: u16 = 0x80;
/// What a lasting neighbour is when somebody deletes it; also one that never answered.
const NEIGHBOUR_FAILED: u16 = 0x20;
/// What the kernel may hold for us until we read it.
const RECEIVE_BUFFER_BYTES: i32 = 4 << 20;
/// How many datagrams are read at once.
const DATAGRAMS_MAX: usize = 4096;

/// What happened.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Noticed {
    /// A link of ours is there, or something about it is new.
    pub came: bool,
    /// Something of ours went, or what happened was lost.
    pub went: bool,
    /// The names of links of ours that went, were switched off, or were taken off their bridge.
    pub links: Vec<String>,
    /// Lasting neighbours that went, each with the link of ours that it was on.
    pub neighbours: Vec<(String, IpAddr)>,
}

/// A link of ours as it was told last.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Known {
    name: String,
    is_up: bool,
    has_master: bool,
}

/// Tells of losses in the network namespace in which it was opened.
pub struct LossWatcher {
    socket: Socket,
    route_protocol: u8,
    is_ours: Box<dyn Fn(&Link) -> bool + Send>,
    known: HashMap<LinkIndex, Known>,
}

impl fmt::Debug for LossWatcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LossWatcher").field("known", &self.known).finish_non_exhaustive()
    }
}

impl LossWatcher {
    /// Begins to watch. Of routes only those count that were made under this number; `is_ours` tells which links count.
    pub fn open(
        route_protocol: u8,
        is_ours: impl Fn(&Link) -> bool + Send + 'static,
    ) -> Result<Self, NetlinkError> {
        let socket = Socket::open(Protocol::Route)?;
        socket.set_receive_buffer(RECEIVE_BUFFER_BYTES)?;
        for group in GROUPS {
            socket.join(group)?;
        }
        let is_ours = Box::new(is_ours);
        let mut watcher = Self { socket, route_protocol, is_ours, known: HashMap::new() };
        watcher.look()?;
        Ok(watcher)
    }

    /// Which links are ours now.
    fn look(&mut self) -> Result<(), NetlinkError> {
        self.known.clear();
        for link in Rtnetlink::open()?.links()? {
            if (self.is_ours)(&link) {
                self.known.insert(link.index, Known::of(&link));
            }
        }
        Ok(())
    }

    /// Waits for the next news, at most for this time.
    pub fn next(&mut self, time_max: Duration) -> Result<Noticed, NetlinkError> {
        let mut noticed = Noticed::default();
        if !self.socket.wait(time_max)? {
            return Ok(noticed);
        }
        for _ in 0..DATAGRAMS_MAX {
            match self.socket.receive() {
                Ok(Some(bytes)) => {
                    for message in Messages(bytes) {
                        note(
                            &mut noticed,
                            &message,
                            self.route_protocol,
                            &self.is_ours,
                            &mut self.known,
                        );
                    }
                }
                Ok(None) => break,
                Err(NetlinkError::Overrun) => {
                    self.look()?;
                    noticed = Noticed { came: true, went: true, ..Noticed::default() };
                }
                Err(error) => return Err(error),
            }
        }
        Ok(noticed)
    }
}

impl Known {
    fn of(link: &Link) -> Self {
        Self { name: link.name.clone(), is_up: link.is_up(), has_master: link.master.is_some() }
    }
}

fn note(
    noticed: &mut Noticed,
    message: &Message<'_>,
    route_protocol: u8,
    is_ours: &impl Fn(&Link) -> bool,
    known: &mut HashMap<LinkIndex, Known>,
) {
    // Addresses and neighbours have their link's number at the same place.
    let on = |at: &HashMap<LinkIndex, Known>| {
        let index = message.body.get(LINK_INDEX_AT..).and_then(ne32)?;
        at.get(&LinkIndex(index)).map(|link| link.name.clone())
    };
    match message.message_type {
        RTM_NEWLINK => {
            let Some(link) = links::link(message) else { return };
            let before = known.get(&link.index);
            if !is_ours(&link) {
                // Somebody has changed by what it is known.
                noticed.links.extend(known.remove(&link.index).map(|it| it.name));
                return;
            }
            let now = Known::of(&link);
            let lost = before.is_some_and(|it| {
                it.is_up && !now.is_up || it.has_master && !now.has_master || it.name != now.name
            });
            if lost {
                noticed.links.extend(before.map(|it| it.name.clone()));
            }
            noticed.came = true;
            known.insert(link.index, now);
        }
        RTM_DELLINK => {
            let Some(link) = links::link(message) else { return };
            if known.remove(&link.index).is_some() || is_ours(&link) {
                noticed.links.push(link.name);
            }
        }
        RTM_DELADDR => noticed.links.extend(on(known)),
        RTM_DELROUTE => {
            noticed.went |= message.body.get(ROUTE_PROTOCOL_AT) == Some(&route_protocol);
        }
        RTM_DELNEIGH => {
            let state = message.body.get(NEIGHBOUR_STATE_AT..).and_then(ne16);
            let may_be_ours = NEIGHBOUR_PERMANENT | NEIGHBOUR_FAILED;
            if state.is_none_or(|state| state & may_be_ours == 0) {
                return;
            }
            let Some(link) = on(known) else { return };
            match message.attributes(NEIGHBOUR_HEADER_LEN).get(NDA_DST).and_then(ip_of) {
                Some(ip) => noticed.neighbours.push((link, ip)),
                // What a bridge knows of a port goes with the port.
                None => noticed.links.push(link),
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;
    use crate::netns::Netns;

    #[test]
    fn what_goes_of_ours_is_told_and_what_others_do_is_not() {
        let name = format!("telaio-losses-{}", std::process::id());
        let netns = Netns::create(&name).unwrap();
        let outcome = netns.run(|| {
            let ip = |command: &str| {
                let done = Command::new("ip").args(command.split(' ')).output().unwrap();
                assert!(done.status.success(), "ip {command}: {done:?}");
            };
            // With an address of its own: another would be the first port's, and neighbours go with the change.
            ip("link add tlb address 02:00:00:00:00:07 type bridge");
            ip("link set dev tlb up");
            ip("addr add 10.1.0.1/24 dev tlb");
            ip("link add name a type veth peer name b");
            ip("link set dev a up");
            ip("link set dev b up");
            ip("addr add 10.0.0.1/24 dev a");
            let is_ours = |link: &Link| link.name.starts_with("tl");
            let mut watcher = LossWatcher::open(116, is_ours).unwrap();
            let mut next = || watcher.next(Duration::from_millis(300)).unwrap();
            let nothing = Noticed::default();
            ip("route add 10.9.0.0/16 via 10.0.0.2 proto 116");
            ip("route add 10.8.0.0/16 via 10.0.0.2 proto static");
            for link in ["a", "tlb"] {
                ip(&format!(
                    "neigh add 10.1.0.2 lladdr 02:00:00:00:00:01 dev {link} nud permanent"
                ));
            }
            assert_eq!(next(), nothing);
            ip("link add name tlv0 master tlb type veth peer name c");
            let came = next();
            assert!(came.came && !came.went && came.links.is_empty(), "{came:?}");
            ip("link set dev tlv0 up");
            ip("link set dev c up");
            while next() != nothing {}
            // As somebody's containers come and go.
            for theirs in [
                "route del 10.8.0.0/16",
                "neigh del 10.1.0.2 dev a",
                "addr del 10.0.0.1/24 dev a",
                "link add name d type veth peer name e",
                "link del dev d",
            ] {
                ip(theirs);
                let noticed = next();
                // A route of ours goes with the last address of its gateway's network.
                assert!(
                    noticed.links.is_empty() && noticed.neighbours.is_empty(),
                    "{theirs}: {noticed:?}"
                );
            }
            ip("addr add 10.0.0.1/24 dev a");
            ip("route replace 10.9.0.0/16 via 10.0.0.2 proto 116");
            while next() != nothing {}
            ip("route del 10.9.0.0/16");
            assert!((0..10).any(|_| next().went), "the route");
            ip("neigh del 10.1.0.2 dev tlb");
            let gone = ("tlb".to_owned(), "10.1.0.2".parse().unwrap());
            assert!((0..10).any(|_| next().neighbours.contains(&gone)), "the neighbour");
            for (loss, link) in [
                ("addr del 10.1.0.1/24 dev tlb", "tlb"),
                ("link set dev tlv0 nomaster", "tlv0"),
                ("link set dev tlv0 down", "tlv0"),
                ("link set dev tlb down", "tlb"),
                ("link del dev tlv0", "tlv0"),
            ] {
                ip(loss);
                // Something else may be told before it.
                assert!((0..10).any(|_| next().links.iter().any(|it| it == link)), "{loss}");
            }
        });
        Netns::remove(&name).unwrap();
        outcome.unwrap();
    }
}
