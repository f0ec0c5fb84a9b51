//! Noticing that links, addresses, routes or lasting neighbours go, and that links come.
//!
//! For whoever keeps all of these as they should be: what goes may be his, and then he looks. Nothing that he adds is told, so
//! mending does not call for more mending.

use std::time::Duration;

use crate::error::NetlinkError;
use crate::links::{self, Link, RTM_DELLINK, RTM_NEWLINK};
use crate::socket::{Protocol, Socket};
use crate::wire::{Message, Messages, ne16};

const GROUPS: [u32; 6] = [GROUP_LINK, GROUP_NEIGHBOUR, 5, 7, 9, 11];
const GROUP_LINK: u32 = 1;
const GROUP_NEIGHBOUR: u32 = 3;
const RTM_DELADDR: u16 = 21;
const RTM_DELROUTE: u16 = 25;
const RTM_DELNEIGH: u16 = 29;
/// Where a route has the number of who made it.
const ROUTE_PROTOCOL_AT: usize = 5;
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
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Noticed {
    /// A link that was asked for is there, or something about it is new.
    pub came: bool,
    /// Something went that may be ours, or what happened was lost.
    pub went: bool,
}

/// Tells of losses in the network namespace in which it was opened.
#[derive(Debug)]
pub struct LossWatcher {
    socket: Socket,
    route_protocol: u8,
}

impl LossWatcher {
    /// Begins to watch. Of routes only those count that were made under this number.
    pub fn open(route_protocol: u8) -> Result<Self, NetlinkError> {
        let socket = Socket::open(Protocol::Route)?;
        socket.set_receive_buffer(RECEIVE_BUFFER_BYTES)?;
        for group in GROUPS {
            socket.join(group)?;
        }
        Ok(Self { socket, route_protocol })
    }

    /// Waits for the next news, at most for this time. `is_ours` tells which links count when they come.
    pub fn next(
        &mut self,
        time_max: Duration,
        is_ours: impl Fn(&Link) -> bool,
    ) -> Result<Noticed, NetlinkError> {
        let mut noticed = Noticed::default();
        if !self.socket.wait(time_max)? {
            return Ok(noticed);
        }
        for _ in 0..DATAGRAMS_MAX {
            match self.socket.receive() {
                Ok(Some(bytes)) => {
                    for message in Messages(bytes) {
                        note(&mut noticed, &message, self.route_protocol, &is_ours);
                    }
                }
                Ok(None) => break,
                Err(NetlinkError::Overrun) => noticed = Noticed { came: true, went: true },
                Err(error) => return Err(error),
            }
        }
        Ok(noticed)
    }
}

fn note(
    noticed: &mut Noticed,
    message: &Message<'_>,
    route_protocol: u8,
    is_ours: &impl Fn(&Link) -> bool,
) {
    match message.message_type {
        RTM_NEWLINK => noticed.came |= links::link(message).is_some_and(|link| is_ours(&link)),
        RTM_DELLINK | RTM_DELADDR => noticed.went = true,
        RTM_DELROUTE => {
            noticed.went |= message.body.get(ROUTE_PROTOCOL_AT) == Some(&route_protocol);
        }
        RTM_DELNEIGH => {
            let state = message.body.get(NEIGHBOUR_STATE_AT..).and_then(ne16);
            let may_be_ours = NEIGHBOUR_PERMANENT | NEIGHBOUR_FAILED;
            noticed.went |= state.is_some_and(|state| state & may_be_ours != 0);
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
    fn what_goes_is_told_and_of_what_comes_only_what_was_asked_for() {
        let name = format!("telaio-losses-{}", std::process::id());
        let netns = Netns::create(&name).unwrap();
        let outcome = netns.run(|| {
            let ip = |command: &str| {
                let done = Command::new("ip").args(command.split(' ')).output().unwrap();
                assert!(done.status.success(), "ip {command}: {done:?}");
            };
            let mut watcher = LossWatcher::open(116).unwrap();
            let mut next = || {
                let is_ours = |link: &Link| link.name.starts_with("tlv");
                watcher.next(Duration::from_millis(300), is_ours).unwrap()
            };
            let (nothing, came) = (Noticed::default(), Noticed { came: true, went: false });
            ip("link add name a type veth peer name b");
            ip("link set dev a up");
            ip("link set dev b up");
            ip("addr add 10.0.0.1/24 dev a");
            ip("route add 10.9.0.0/16 via 10.0.0.2 proto 116");
            ip("route add 10.8.0.0/16 via 10.0.0.2 proto static");
            ip("neigh add 10.0.0.2 lladdr 02:00:00:00:00:01 dev a nud permanent");
            assert_eq!(next(), nothing);
            ip("link add name tlv0 type veth peer name c");
            assert_eq!(next(), came);
            ip("route del 10.8.0.0/16");
            assert_eq!(next(), nothing);
            for loss in [
                "route del 10.9.0.0/16",
                "neigh del 10.0.0.2 dev a",
                "addr del 10.0.0.1/24 dev a",
                "link del dev a",
            ] {
                ip(loss);
                // Something else may be told before it.
                assert!((0..10).any(|_| next().went), "{loss}");
            }
        });
        Netns::remove(&name).unwrap();
        outcome.unwrap();
    }
}
