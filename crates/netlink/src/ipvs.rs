//! IPVS: the kernel's own load balancer.
//!
//! A virtual service is known by its [`Frontend`]. There is no way here to remove all of them at once:
//! who removes one names it, and so leaves those of others alone.
//!
//! ```no_run
//! use telaio_netlink::ipvs::Ipvs;
//!
//! # fn main() -> Result<(), telaio_netlink::NetlinkError> {
//! let Some(mut ipvs) = Ipvs::open()? else { return Ok(()) };
//! for frontend in ipvs.frontends()? {
//!     println!("{frontend:?}");
//! }
//! # Ok(())
//! # }
//! ```

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::error::NetlinkError;
use crate::generic::GenericSocket;
use crate::wire::{Attributes, Writer};

const FAMILY_NAME: &str = "IPVS";
const FAMILY_VERSION: u8 = 1;

const NEW_SERVICE: u8 = 1;
const DELETE_SERVICE: u8 = 3;
const GET_SERVICE: u8 = 4;

const ATTR_SERVICE: u16 = 1;
const SERVICE_FAMILY: u16 = 1;
const SERVICE_PROTOCOL: u16 = 2;
const SERVICE_ADDRESS: u16 = 3;
const SERVICE_PORT: u16 = 4;
const SERVICE_MARK: u16 = 5;
const SERVICE_SCHEDULER: u16 = 6;
const SERVICE_FLAGS: u16 = 7;
const SERVICE_TIMEOUT: u16 = 8;
const SERVICE_NETMASK: u16 = 9;

const V4: u16 = libc::AF_INET as u16;
const V6: u16 = libc::AF_INET6 as u16;
/// Addresses of both families take as much room.
const ADDRESS_LEN: usize = 16;

/// What a virtual service is known by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Frontend {
    /// An address and a port.
    Address {
        /// The number of the protocol over IP.
        protocol: u8,
        /// Where packets go to.
        at: SocketAddr,
    },
    /// A mark that a firewall sets on packets.
    Mark {
        /// Of IPv6 packets, not IPv4.
        is_v6: bool,
        /// The mark, never 0.
        mark: u32,
    },
}

/// A connection to the IPVS of the network namespace in which it was opened.
#[derive(Debug)]
pub struct Ipvs {
    socket: GenericSocket,
}

impl Ipvs {
    /// Opens one; the kernel loads its module for that. `None` if it has none.
    pub fn open() -> Result<Option<Self>, NetlinkError> {
        let socket = GenericSocket::open(FAMILY_NAME, FAMILY_VERSION)?;
        Ok(socket.map(|socket| Self { socket }))
    }

    /// All virtual services.
    pub fn frontends(&mut self) -> Result<Vec<Frontend>, NetlinkError> {
        let doing = "listing IPVS services";
        let mut found = Vec::new();
        let each = |attributes: Attributes<'_>| {
            let service = attributes.nested(ATTR_SERVICE).and_then(frontend);
            let what = "a service without its address";
            found.push(service.ok_or(NetlinkError::Malformed { doing, what })?);
            Ok(())
        };
        self.socket.list(GET_SERVICE, doing, |_| {}, each)?;
        Ok(found)
    }

    /// Makes a virtual service, without any server yet.
    pub fn add(&mut self, frontend: &Frontend, scheduler: &str) -> Result<(), NetlinkError> {
        let doing = "adding an IPVS service";
        self.socket.command(NEW_SERVICE, doing, |request| put_new(request, frontend, scheduler))
    }

    /// Removes a virtual service with its servers. `false` if it was gone already.
    pub fn delete(&mut self, frontend: &Frontend) -> Result<bool, NetlinkError> {
        let doing = "deleting an IPVS service";
        let deleted = self.socket.command(DELETE_SERVICE, doing, |request| {
            let service = request.begin_nest(ATTR_SERVICE);
            put_frontend(request, frontend);
            request.end_nest(service);
        });
        match deleted {
            Ok(()) => Ok(true),
            // IPVS' word for a service that is not there.
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

fn put_new(request: &mut Writer, frontend: &Frontend, scheduler: &str) {
    let service = request.begin_nest(ATTR_SERVICE);
    put_frontend(request, frontend);
    request.put_str(SERVICE_SCHEDULER, scheduler);
    // The bits, then which of them to take over.
    request.put(SERVICE_FLAGS, &[0; 8]);
    request.put_ne32(SERVICE_TIMEOUT, 0);
    // One client is one address: all bits of IPv4, the length of the prefix of IPv6.
    let netmask = if family(frontend) == V4 { u32::MAX } else { 128 };
    request.put_ne32(SERVICE_NETMASK, netmask);
    request.end_nest(service);
}

fn put_frontend(request: &mut Writer, frontend: &Frontend) {
    request.put_ne16(SERVICE_FAMILY, family(frontend));
    match frontend {
        Frontend::Address { protocol, at } => {
            request.put_ne16(SERVICE_PROTOCOL, u16::from(*protocol));
            request.put(SERVICE_ADDRESS, &address_bytes(at.ip()));
            request.put_be16(SERVICE_PORT, at.port());
        }
        Frontend::Mark { mark, .. } => request.put_ne32(SERVICE_MARK, *mark),
    }
}

fn family(frontend: &Frontend) -> u16 {
    let is_v6 = match frontend {
        Frontend::Address { at, .. } => at.is_ipv6(),
        Frontend::Mark { is_v6, .. } => *is_v6,
    };
    if is_v6 { V6 } else { V4 }
}

fn address_bytes(ip: IpAddr) -> [u8; ADDRESS_LEN] {
    match ip {
        IpAddr::V4(ip) => {
            let mut bytes = [0; ADDRESS_LEN];
            bytes[..4].copy_from_slice(&ip.octets());
            bytes
        }
        IpAddr::V6(ip) => ip.octets(),
    }
}

fn frontend(service: Attributes<'_>) -> Option<Frontend> {
    let family = service.ne16(SERVICE_FAMILY)?;
    if let Some(mark) = service.ne32(SERVICE_MARK) {
        return Some(Frontend::Mark { is_v6: family == V6, mark });
    }
    let bytes = service.get(SERVICE_ADDRESS)?;
    let ip = match family {
        V4 => IpAddr::from(Ipv4Addr::from(<[u8; 4]>::try_from(bytes.get(..4)?).ok()?)),
        V6 => IpAddr::from(Ipv6Addr::from(<[u8; 16]>::try_from(bytes.get(..16)?).ok()?)),
        _ => return None,
    };
    let protocol = u8::try_from(service.ne16(SERVICE_PROTOCOL)?).ok()?;
    Some(Frontend::Address { protocol, at: (ip, service.be16(SERVICE_PORT)?).into() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Messages;

    fn frontends() -> [Frontend; 4] {
        [
            Frontend::Address { protocol: 6, at: "192.0.2.1:80".parse().unwrap() },
            Frontend::Address { protocol: 17, at: "[2001:db8::1]:53".parse().unwrap() },
            Frontend::Mark { is_v6: false, mark: 7 },
            Frontend::Mark { is_v6: true, mark: 8 },
        ]
    }

    #[test]
    fn what_names_a_service_is_read_as_it_was_written() {
        for expected in frontends() {
            let mut request = Writer::new();
            request.begin(30, 0, 1, &[NEW_SERVICE, 1, 0, 0]);
            put_new(&mut request, &expected, "rr");
            request.end();
            let message = Messages(request.finish().unwrap()).next().unwrap();
            let service = message.attributes(4).nested(ATTR_SERVICE).unwrap();
            assert_eq!(frontend(service), Some(expected));
            assert_eq!(service.str(SERVICE_SCHEDULER), Some("rr"));
        }
    }

    #[test]
    fn a_service_has_the_form_that_the_kernel_knows() {
        let mut request = Writer::new();
        request.begin(30, 0, 1, &[]);
        put_frontend(&mut request, &frontends()[0]);
        request.end();
        let service = Messages(request.finish().unwrap()).next().unwrap().attributes(0);
        let attributes: Vec<_> = service.into_iter().collect();
        let address = [192, 0, 2, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        let expected: [(u16, &[u8]); 4] =
            [(1, &2_u16.to_ne_bytes()), (2, &6_u16.to_ne_bytes()), (3, &address), (4, &[0, 80])];
        assert_eq!(attributes, expected);
    }

    #[test]
    fn half_a_service_is_none() {
        let mut request = Writer::new();
        request.begin(30, 0, 1, &[]);
        request.put_ne16(SERVICE_FAMILY, V6);
        request.put(SERVICE_ADDRESS, &[0; 4]);
        request.end();
        let service = Messages(request.finish().unwrap()).next().unwrap().attributes(0);
        assert_eq!(frontend(service), None);
    }
}
