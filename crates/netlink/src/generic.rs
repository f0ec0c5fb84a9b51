//! Generic netlink: families of messages that are found by name, such as IPVS.
//!
//! Every family has its own commands and attributes; a [`GenericSocket`] speaks to one of them. Asking
//! for a family lets the kernel load the module that has it.
//!
//! ```no_run
//! use telaio_netlink::generic::GenericSocket;
//!
//! # fn main() -> Result<(), telaio_netlink::NetlinkError> {
//! const GET_INFO: u8 = 15;
//! if let Some(mut ipvs) = GenericSocket::open("IPVS", 1)? {
//!     ipvs.ask(GET_INFO, "asking for IPVS' version", |_| {}, |_| Ok(()))?;
//! }
//! # Ok(())
//! # }
//! ```

use crate::batch::{Failure, RECEIVE_BUFFER_BYTES};
use crate::error::NetlinkError;
use crate::socket::{NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST, Protocol, Socket};
use crate::wire::{Attributes, Writer};

/// The family that knows the others, and the only one with a fixed number.
const CONTROL: u16 = 16;
const CONTROL_VERSION: u8 = 1;
const GET_FAMILY: u8 = 3;
const FAMILY_ID: u16 = 1;
const FAMILY_NAME: u16 = 2;
/// `struct genlmsghdr`: command, version, nothing.
const HEADER_LEN: usize = 4;

/// A connection to one family, in the network namespace in which it was opened.
#[derive(Debug)]
pub struct GenericSocket {
    socket: Socket,
    family: u16,
    version: u8,
}

impl GenericSocket {
    /// Opens one. `None` if the kernel does not have this family.
    pub fn open(name: &str, version: u8) -> Result<Option<Self>, NetlinkError> {
        let socket = Socket::open(Protocol::Generic)?;
        socket.set_receive_buffer(RECEIVE_BUFFER_BYTES)?;
        let mut control = Self { socket, family: CONTROL, version: CONTROL_VERSION };
        let doing = "looking for a family of generic netlink";
        let mut found = None;
        let asked = control.ask(
            GET_FAMILY,
            doing,
            |request| request.put_str(FAMILY_NAME, name),
            |attributes| {
                found = attributes.ne16(FAMILY_ID);
                Ok(())
            },
        );
        match asked {
            Ok(()) => {}
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => return Ok(None),
            Err(error) => return Err(error),
        }
        let family = found.ok_or(NetlinkError::Malformed { doing, what: "no number" })?;
        Ok(Some(Self { family, version, ..control }))
    }

    /// Has one command carried out; `fill` writes its attributes.
    pub fn command(
        &mut self,
        command: u8,
        doing: &'static str,
        fill: impl FnOnce(&mut Writer),
    ) -> Result<(), NetlinkError> {
        let sequence = self.send(command, NLM_F_ACK, doing, fill)?;
        self.socket.acknowledge(sequence, sequence, doing)
    }

    /// Has a command carried out for each of `items`, many at a time; those that were refused. `number`
    /// tells an item's command, `fill` writes its attributes.
    pub fn commands<T>(
        &mut self,
        items: impl IntoIterator<Item = T>,
        doing: &'static str,
        number: impl Fn(&T) -> u8,
        fill: impl Fn(&mut Writer, &T),
    ) -> Result<Vec<Failure>, NetlinkError> {
        let (family, version) = (self.family, self.version);
        self.socket.carry_out(items, doing, |request, flags, sequence, item| {
            request.begin(family, flags, sequence, &header(number(&item), version));
            fill(request, &item);
            request.end();
        })
    }

    /// Asks for one thing, and gives the attributes of the answer to `each`.
    pub fn ask(
        &mut self,
        command: u8,
        doing: &'static str,
        fill: impl FnOnce(&mut Writer),
        each: impl FnMut(Attributes<'_>) -> Result<(), NetlinkError>,
    ) -> Result<(), NetlinkError> {
        self.answers(command, NLM_F_ACK, doing, fill, each)
    }

    /// Asks for all things of a kind, and gives the attributes of each to `each`.
    pub fn list(
        &mut self,
        command: u8,
        doing: &'static str,
        fill: impl FnOnce(&mut Writer),
        each: impl FnMut(Attributes<'_>) -> Result<(), NetlinkError>,
    ) -> Result<(), NetlinkError> {
        self.answers(command, NLM_F_DUMP, doing, fill, each)
    }

    fn answers(
        &mut self,
        command: u8,
        flags: u16,
        doing: &'static str,
        fill: impl FnOnce(&mut Writer),
        mut each: impl FnMut(Attributes<'_>) -> Result<(), NetlinkError>,
    ) -> Result<(), NetlinkError> {
        let sequence = self.send(command, flags, doing, fill)?;
        let family = self.family;
        self.socket.list(sequence, doing, |message| {
            if message.message_type == family {
                each(message.attributes(HEADER_LEN))
            } else {
                Ok(())
            }
        })
    }

    fn send(
        &mut self,
        command: u8,
        flags: u16,
        doing: &'static str,
        fill: impl FnOnce(&mut Writer),
    ) -> Result<u32, NetlinkError> {
        let sequence = self.socket.next_sequence();
        let mut request = Writer::new();
        let header = header(command, self.version);
        request.begin(self.family, NLM_F_REQUEST | flags, sequence, &header);
        fill(&mut request);
        request.end();
        self.socket.send(request.finish()?, doing)?;
        Ok(sequence)
    }
}

fn header(command: u8, version: u8) -> [u8; HEADER_LEN] {
    [command, version, 0, 0]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_are_found_by_name_and_unknown_ones_are_not() {
        let control = GenericSocket::open("nlctrl", 2).unwrap().unwrap();
        assert_eq!(control.family, CONTROL);
        assert!(GenericSocket::open("telaio-none", 1).unwrap().is_none());
    }
}
