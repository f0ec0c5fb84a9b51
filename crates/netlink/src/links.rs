//! Links, also known as network interfaces: finding one by its name, and removing it.
//!
//! ```no_run
//! use telaio_netlink::links::Links;
//!
//! # fn main() -> Result<(), telaio_netlink::NetlinkError> {
//! let mut links = Links::open()?;
//! if let Some(link) = links.find("dummy7")? {
//!     links.delete(link)?;
//! }
//! # Ok(())
//! # }
//! ```

use crate::error::NetlinkError;
use crate::socket::{NLM_F_ACK, NLM_F_REQUEST, Protocol, Socket};
use crate::wire::{Writer, ne32};

const RTM_NEWLINK: u16 = 16;
const RTM_DELLINK: u16 = 17;
const RTM_GETLINK: u16 = 18;
const IFLA_IFNAME: u16 = 3;
/// `struct ifinfomsg`: family, type, the link's number, flags, mask of flags.
const LINK_HEADER_LEN: usize = 16;
/// The longest name that a link can have; a zero follows.
const NAME_LEN_MAX: usize = 15;

/// The number by which the kernel knows a link of a namespace. Never 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkIndex(pub u32);

/// A connection to the links of the network namespace in which it was opened.
#[derive(Debug)]
pub struct Links {
    socket: Socket,
}

impl Links {
    /// Opens one.
    pub fn open() -> Result<Self, NetlinkError> {
        Ok(Self { socket: Socket::open(Protocol::Route)? })
    }

    /// The link of this name, if there is one.
    pub fn find(&mut self, name: &str) -> Result<Option<LinkIndex>, NetlinkError> {
        let doing = "looking for a link";
        if name.is_empty() || name.len() > NAME_LEN_MAX {
            return Ok(None);
        }
        let sequence = self.socket.next_sequence();
        self.socket.send(find_request(name, sequence).finish()?, doing)?;
        let mut found = None;
        let answered = self.socket.list(sequence, doing, |message| {
            if message.message_type == RTM_NEWLINK {
                found = message.body.get(4..).and_then(ne32).map(LinkIndex);
            }
            Ok(())
        });
        match answered {
            Ok(()) => Ok(found),
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Removes a link with its addresses and routes. `false` if it was gone already.
    pub fn delete(&mut self, link: LinkIndex) -> Result<bool, NetlinkError> {
        let doing = "deleting a link";
        let sequence = self.socket.next_sequence();
        self.socket.send(delete_request(link, sequence).finish()?, doing)?;
        match self.socket.acknowledge(sequence, sequence, doing) {
            Ok(()) => Ok(true),
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

fn find_request(name: &str, sequence: u32) -> Writer {
    let mut request = Writer::new();
    // The answer and the acknowledgement after it: so a list of one ends like any other.
    request.begin(RTM_GETLINK, NLM_F_REQUEST | NLM_F_ACK, sequence, &header(LinkIndex(0)));
    request.put_str(IFLA_IFNAME, name);
    request.end();
    request
}

fn delete_request(link: LinkIndex, sequence: u32) -> Writer {
    let mut request = Writer::new();
    request.begin(RTM_DELLINK, NLM_F_REQUEST | NLM_F_ACK, sequence, &header(link));
    request.end();
    request
}

fn header(link: LinkIndex) -> [u8; LINK_HEADER_LEN] {
    let mut header = [0; LINK_HEADER_LEN];
    header[4..8].copy_from_slice(&link.0.to_ne_bytes());
    header
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;
    use crate::netns::Netns;
    use crate::wire::Messages;

    #[test]
    fn a_deletion_names_the_link_by_its_number() {
        let request = delete_request(LinkIndex(7), 42);
        let message = Messages(request.finish().unwrap()).next().unwrap();
        assert_eq!((message.message_type, message.sequence), (RTM_DELLINK, 42));
        assert_eq!(message.body.len(), LINK_HEADER_LEN);
        assert_eq!(ne32(&message.body[4..]), Some(7));
    }

    #[test]
    fn a_link_is_found_by_its_name_and_removed() {
        let name = format!("telaio-links-{}", std::process::id());
        let netns = Netns::create(&name).unwrap();
        let outcome = netns.run(|| {
            let ip = |command: &str| {
                let done = Command::new("ip").args(command.split(' ')).output().unwrap();
                assert!(done.status.success(), "ip {command}: {done:?}");
                String::from_utf8(done.stdout).unwrap()
            };
            ip("link add west type veth peer name east");
            ip("link add stays type bridge");
            let mut links = Links::open().unwrap();
            let west = links.find("west").unwrap().unwrap();
            let listed = ip("-o link show west");
            assert!(listed.starts_with(&format!("{}: west", west.0)), "{listed}");
            assert!(links.delete(west).unwrap());
            assert!(!links.delete(west).unwrap(), "it is gone already");
            for gone in ["west", "east", "", "a-name-that-is-too-long"] {
                assert_eq!(links.find(gone).unwrap(), None, "{gone}");
            }
            assert!(links.find("stays").unwrap().is_some());
        });
        Netns::remove(&name).unwrap();
        outcome.unwrap();
    }
}
