//! The machine's own addresses.

use std::collections::BTreeSet;
use std::net::IpAddr;

use crate::error::NetlinkError;
use crate::links::LinkIndex;
use crate::socket::{NLM_F_DUMP, NLM_F_REQUEST, Protocol, Socket};
use crate::wire::{Attributes, Message, Writer, ne32};

const RTM_NEWADDR: u16 = 20;
const RTM_GETADDR: u16 = 22;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
/// `struct ifaddrmsg`: family, prefix length, flags, scope, then the link's number.
const ADDRESS_HEADER_LEN: usize = 8;
/// How often a list is begun anew because addresses came and went while it was read.
const TRIES_MAX: u32 = 5;

/// The addresses of all links of this network namespace, loopback included.
pub fn own_addresses() -> Result<BTreeSet<IpAddr>, NetlinkError> {
    addresses(None)
}

/// The addresses of one link of this network namespace.
pub fn addresses_of(link: LinkIndex) -> Result<BTreeSet<IpAddr>, NetlinkError> {
    addresses(Some(link))
}

fn addresses(link: Option<LinkIndex>) -> Result<BTreeSet<IpAddr>, NetlinkError> {
    let mut socket = Socket::open(Protocol::Route)?;
    for _ in 1..TRIES_MAX {
        match list(&mut socket, link) {
            Err(NetlinkError::Interrupted) => {}
            outcome => return outcome,
        }
    }
    list(&mut socket, link)
}

fn list(socket: &mut Socket, link: Option<LinkIndex>) -> Result<BTreeSet<IpAddr>, NetlinkError> {
    let doing = "listing addresses";
    let sequence = socket.next_sequence();
    let mut request = Writer::new();
    request.begin(RTM_GETADDR, NLM_F_REQUEST | NLM_F_DUMP, sequence, &[0; ADDRESS_HEADER_LEN]);
    request.end();
    socket.send(request.finish()?, doing)?;
    let mut found = BTreeSet::new();
    socket.list(sequence, doing, |message| {
        let is_wanted = link.is_none() || link == link_of(message);
        if message.message_type == RTM_NEWADDR && is_wanted {
            found.extend(own_address(message.attributes(ADDRESS_HEADER_LEN)));
        }
        Ok(())
    })?;
    Ok(found)
}

fn link_of(message: &Message<'_>) -> Option<LinkIndex> {
    message.body.get(4..).and_then(ne32).map(LinkIndex)
}

/// On a point-to-point link `IFA_ADDRESS` is the peer's and `IFA_LOCAL` ours; IPv6 mostly has only
/// the former, and then it is ours.
fn own_address(attributes: Attributes<'_>) -> Option<IpAddr> {
    let bytes = attributes.get(IFA_LOCAL).or_else(|| attributes.get(IFA_ADDRESS))?;
    ip_of(bytes)
}

/// An address from its four or sixteen bytes.
pub(crate) fn ip_of(bytes: &[u8]) -> Option<IpAddr> {
    let v4 = <[u8; 4]>::try_from(bytes).map(IpAddr::from);
    v4.or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from)).ok()
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;
    use crate::links::Links;
    use crate::netns::Netns;

    #[test]
    fn lists_the_addresses_that_ip_has_set_and_no_peers() {
        let name = format!("telaio-addresses-{}", std::process::id());
        let netns = Netns::create(&name).unwrap();
        let found = netns.run(|| {
            for command in [
                "link set lo up",
                "link add west type veth peer name east",
                "address add 192.0.2.1 peer 192.0.2.2 dev west",
                "address add 198.51.100.7/24 dev east",
                "address add 2001:db8::7/64 dev east nodad",
            ] {
                let done = Command::new("ip").args(command.split(' ')).status().unwrap();
                assert!(done.success(), "ip {command}");
            }
            let east = Links::open().unwrap().find("east").unwrap().unwrap();
            [own_addresses().unwrap(), addresses_of(east).unwrap()]
        });
        Netns::remove(&name).unwrap();
        let [found, of_east] = found
            .unwrap()
            .map(|addresses| addresses.iter().map(ToString::to_string).collect::<Vec<String>>());
        assert_eq!(of_east, ["198.51.100.7", "2001:db8::7"]);
        assert_eq!(found, ["127.0.0.1", "192.0.2.1", "198.51.100.7", "::1", "2001:db8::7"]);
    }
}
