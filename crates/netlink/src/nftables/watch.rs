//! Noticing what others change.

use std::collections::BTreeSet;
use std::time::Duration;

use super::numbers::{self, Family, GROUP_NFTABLES, HEADER_LEN, SUBSYSTEM, generation};
use crate::error::NetlinkError;
use crate::socket::{Protocol, Socket};
use crate::wire::{Attributes, Messages};

/// What the kernel may hold for us until we read it.
const RECEIVE_BUFFER_BYTES: i32 = 8 << 20;

/// A transaction of somebody else's.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Notice {
    /// The tables that it touched.
    pub tables: BTreeSet<(Family, String)>,
    /// The name of the process that made it, if the kernel tells.
    pub process: String,
    /// Some notices were lost: anything may have changed.
    pub lost: bool,
}

/// Tells of transactions that do not come through one of our own sockets.
///
/// What our own socket changes is filtered out by the kernel, before it costs us anything.
#[derive(Debug)]
pub struct Watcher {
    socket: Socket,
    /// What belongs to the transaction whose end has not come yet.
    unfinished: Notice,
}

impl Watcher {
    /// Begins to watch; `own_port` is the port of the socket whose changes are not news.
    pub fn open(own_port: u32) -> Result<Self, NetlinkError> {
        let socket = Socket::open(Protocol::Netfilter)?;
        socket.set_receive_buffer(RECEIVE_BUFFER_BYTES)?;
        socket.ignore_messages_of(own_port)?;
        socket.join(GROUP_NFTABLES)?;
        Ok(Self { socket, unfinished: Notice::default() })
    }

    /// Waits for the next transaction of somebody else's; `None` if there is none in this time.
    pub fn next(&mut self, time_max: Duration) -> Result<Option<Notice>, NetlinkError> {
        if !self.socket.wait(time_max)? {
            return Ok(None);
        }
        let bytes = match self.socket.receive() {
            Ok(Some(bytes)) => bytes,
            Ok(None) => return Ok(None),
            Err(NetlinkError::Overrun) => {
                self.unfinished = Notice::default();
                return Ok(Some(Notice { lost: true, ..Notice::default() }));
            }
            Err(error) => return Err(error),
        };
        let mut finished: Option<Notice> = None;
        for message in Messages(bytes) {
            let attributes = message.attributes(HEADER_LEN);
            if message.message_type == numbers::NEW_GENERATION {
                let mut notice = std::mem::take(&mut self.unfinished);
                notice.process = process(attributes);
                let joined = finished.get_or_insert_default();
                joined.tables.append(&mut notice.tables);
                joined.process = notice.process;
            } else if message.message_type >> 8 == SUBSYSTEM {
                let family = message.body.first().copied().and_then(Family::from_number);
                // A table's name is the first attribute of every kind of object.
                let table = attributes.str(1).map(str::to_owned);
                self.unfinished.tables.extend(family.zip(table));
            }
        }
        Ok(finished)
    }
}

fn process(attributes: Attributes<'_>) -> String {
    let name = attributes.str(generation::PROCESS_NAME).unwrap_or_default();
    match attributes.be32(generation::PROCESS_ID) {
        Some(id) => format!("{name} ({id})"),
        None => name.to_owned(),
    }
}
