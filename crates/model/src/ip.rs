//! Addresses, parsed as strictly as a firewall needs them.
//!
//! `std` accepts `::ffff:10.0.0.1` as an IPv6 address. Such an address matches IPv4 packets in some
//! kernels' rules and IPv6 packets in others', so we refuse it at the edge and never think of it again.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

/// The two families; every rule belongs to one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum IpFamily {
    /// IPv4.
    #[serde(rename = "IPv4")]
    V4,
    /// IPv6.
    #[serde(rename = "IPv6")]
    V6,
}

impl IpFamily {
    /// Both, in the order in which we program them.
    pub const ALL: [Self; 2] = [Self::V4, Self::V6];

    /// The family of an address.
    pub fn of(ip: IpAddr) -> Self {
        if ip.is_ipv4() { Self::V4 } else { Self::V6 }
    }

    /// The family of a network.
    pub fn of_net(net: &IpNet) -> Self {
        match net {
            IpNet::V4(_) => Self::V4,
            IpNet::V6(_) => Self::V6,
        }
    }
}

impl fmt::Display for IpFamily {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
        })
    }
}

/// Why a text is not an address or network that we take.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IpError {
    /// Not an address at all.
    #[error("{0:?} is not an IP address")]
    NotAnAddress(String),
    /// Not a network at all.
    #[error("{0:?} is not a CIDR such as 10.0.0.0/8 or fd00::/64")]
    NotANetwork(String),
    /// An IPv4 address in IPv6 clothes.
    #[error("{0:?} is an IPv4-mapped IPv6 address; write it as {1}")]
    Mapped(String, Ipv4Addr),
    /// Right form, but not an address that traffic can be sent to.
    #[error("{0} is {1}, which cannot be used here")]
    Unusable(IpAddr, &'static str),
}

fn refuse_mapped(text: &str, v6: Ipv6Addr) -> Result<(), IpError> {
    match v6.to_ipv4_mapped() {
        Some(v4) => Err(IpError::Mapped(text.to_owned(), v4)),
        None => Ok(()),
    }
}

/// An address, refused when it is IPv4-mapped or carries leading zeros.
pub fn parse_ip(text: &str) -> Result<IpAddr, IpError> {
    let ip: IpAddr = text.parse().map_err(|_| IpError::NotAnAddress(text.to_owned()))?;
    if let IpAddr::V6(v6) = ip {
        refuse_mapped(text, v6)?;
    }
    Ok(ip)
}

/// A network; host bits are cleared, as Kubernetes' consumers do.
pub fn parse_net(text: &str) -> Result<IpNet, IpError> {
    let net: IpNet = text.parse().map_err(|_| IpError::NotANetwork(text.to_owned()))?;
    if let IpNet::V6(v6) = net
        && v6.addr().to_ipv4_mapped().is_some()
    {
        refuse_mapped(text, v6.addr())?;
    }
    Ok(net.trunc())
}

/// Refuses what can never be the address of a service or an endpoint: unspecified, multicast,
/// link-local, broadcast, and loopback unless `loopback_ok`.
pub fn check_unicast(ip: IpAddr, loopback_ok: bool) -> Result<(), IpError> {
    let why = match ip {
        _ if ip.is_unspecified() => "the unspecified address",
        _ if ip.is_multicast() => "a multicast address",
        _ if ip.is_loopback() && !loopback_ok => "a loopback address",
        IpAddr::V4(v4) if v4.is_broadcast() => "the broadcast address",
        IpAddr::V4(v4) if v4.is_link_local() => "a link-local address",
        IpAddr::V6(v6) if v6.is_unicast_link_local() => "a link-local address",
        _ => return Ok(()),
    };
    Err(IpError::Unusable(ip, why))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_mapped_addresses_and_leading_zeros() {
        assert!(matches!(parse_ip("::ffff:10.0.0.1"), Err(IpError::Mapped(..))));
        assert!(matches!(parse_ip("010.0.0.1"), Err(IpError::NotAnAddress(_))));
        assert!(matches!(parse_net("::ffff:10.0.0.0/104"), Err(IpError::Mapped(..))));
        assert!(parse_ip("fd00::1").is_ok());
    }

    #[test]
    fn clears_the_host_bits_of_a_network() {
        assert_eq!(parse_net("10.1.2.3/8").unwrap().to_string(), "10.0.0.0/8");
    }

    #[test]
    fn refuses_what_traffic_cannot_be_sent_to() {
        for bad in
            ["0.0.0.0", "::", "224.0.0.1", "ff02::1", "255.255.255.255", "169.254.1.1", "fe80::1"]
        {
            assert!(check_unicast(bad.parse().unwrap(), true).is_err(), "{bad}");
        }
        let lo = "127.0.0.1".parse().unwrap();
        assert!(check_unicast(lo, false).is_err());
        assert!(check_unicast(lo, true).is_ok());
    }
}
