//! Noticing that addresses and links come and go.

use std::time::Duration;

use super::{LinkAddress, RTM_DELADDR, RTM_NEWADDR, link_address};
use crate::error::NetlinkError;
use crate::links::{self, Link, RTM_DELLINK, RTM_NEWLINK};
use crate::socket::{Protocol, Socket};
use crate::wire::{Message, Messages};

const GROUP_LINK: u32 = 1;
const GROUP_V4_ADDRESS: u32 = 5;
const GROUP_V6_ADDRESS: u32 = 9;
/// What the kernel may hold for us until we read it.
const RECEIVE_BUFFER_BYTES: i32 = 4 << 20;
/// How many datagrams one notice is made of at most.
const DATAGRAMS_MAX: usize = 4096;

/// What happened to an address or a link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// A link has an address, or something about that address is new.
    AddressCame(LinkAddress),
    /// A link no longer has an address.
    AddressWent(LinkAddress),
    /// A link is there, or something about it is new.
    LinkCame(Link),
    /// A link is gone.
    LinkWent(Link),
}

/// What happened since the last notice.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Notice {
    /// Changes in the order in which they came.
    pub changes: Vec<Change>,
    /// Some were lost: anything may have changed.
    pub lost: bool,
}

/// Tells of changes to the addresses and links of the network namespace in which it was opened.
#[derive(Debug)]
pub struct Watcher {
    socket: Socket,
}

impl Watcher {
    /// Begins to watch; `own_port` is the port of a socket whose changes are not news. The kernel keeps that
    /// from us for addresses of IPv4 alone: it does not say who changed those of IPv6.
    pub fn open(own_port: Option<u32>) -> Result<Self, NetlinkError> {
        let socket = Socket::open(Protocol::Route)?;
        socket.set_receive_buffer(RECEIVE_BUFFER_BYTES)?;
        if let Some(port) = own_port {
            socket.ignore_messages_of(port)?;
        }
        for group in [GROUP_LINK, GROUP_V4_ADDRESS, GROUP_V6_ADDRESS] {
            socket.join(group)?;
        }
        Ok(Self { socket })
    }

    /// Waits for the next changes, and gives all that are there; `None` if there are none in this time.
    pub fn next(&mut self, time_max: Duration) -> Result<Option<Notice>, NetlinkError> {
        if !self.socket.wait(time_max)? {
            return Ok(None);
        }
        let mut notice = Notice::default();
        for _ in 0..DATAGRAMS_MAX {
            match self.socket.receive() {
                Ok(Some(bytes)) => {
                    notice.changes.extend(Messages(bytes).filter_map(|message| change(&message)));
                }
                Ok(None) => break,
                Err(NetlinkError::Overrun) => notice.lost = true,
                Err(error) => return Err(error),
            }
        }
        Ok((notice != Notice::default()).then_some(notice))
    }
}

fn change(message: &Message<'_>) -> Option<Change> {
    match message.message_type {
        RTM_NEWADDR => link_address(message).map(Change::AddressCame),
        RTM_DELADDR => link_address(message).map(Change::AddressWent),
        RTM_NEWLINK => links::link(message).map(Change::LinkCame),
        RTM_DELLINK => links::link(message).map(Change::LinkWent),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
