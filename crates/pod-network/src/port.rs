//! Ports of the node that lead to an instance.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use serde::{Deserialize, Serialize};
pub use telaio_model::Protocol;

use crate::error::{Error, Result};

/// A port of the node, published: what arrives there goes to a port of the instance.
///
/// The node's port comes first, as in `-p 80:8080`:
///
/// ```
/// use telaio_pod_network::{Port, Protocol};
///
/// let port = Port::new(80, 8080);
/// assert_eq!((port.host_port, port.instance_port), (80, 8080));
/// assert_eq!((port.protocol, port.host_ip), (Protocol::Tcp, None));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Port {
    /// The node's port.
    pub host_port: u16,
    /// The instance's port.
    pub instance_port: u16,
    /// The transport protocol.
    pub protocol: Protocol,
    /// Only at this address of the node; at all of them without.
    #[serde(default)]
    pub host_ip: Option<IpAddr>,
}

impl Port {
    /// TCP, at all addresses of the node: first the node's port, then the instance's.
    pub fn new(host_port: u16, instance_port: u16) -> Self {
        Self { host_port, instance_port, protocol: Protocol::Tcp, host_ip: None }
    }

    /// As many ports in a row, from these on; refused where they would pass 65535.
    ///
    /// ```
    /// use telaio_pod_network::Port;
    ///
    /// let ports = Port::range(8000, 80, 3).unwrap();
    /// assert_eq!(ports[2], Port::new(8002, 82));
    /// assert!(Port::range(65535, 80, 2).is_err());
    /// ```
    pub fn range(host_port: u16, instance_port: u16, count: u16) -> Result<Vec<Self>> {
        let place = |first: u16, offset: u16| {
            first.checked_add(offset).ok_or_else(|| Error::Invalid {
                field: "ports",
                why: format!("{count} ports from {first} on would pass 65535"),
            })
        };
        (0..count)
            .map(|offset| Ok(Self::new(place(host_port, offset)?, place(instance_port, offset)?)))
            .collect()
    }

    /// The same of another protocol.
    #[must_use]
    pub fn with_protocol(self, protocol: Protocol) -> Self {
        Self { protocol, ..self }
    }

    /// The same at one address of the node only.
    #[must_use]
    pub fn at(self, host_ip: impl Into<IpAddr>) -> Self {
        Self { host_ip: Some(host_ip.into()), ..self }
    }

    /// Both ask for the same port of the node.
    pub fn conflicts_with(&self, other: &Self) -> bool {
        self.host_port == other.host_port
            && self.protocol == other.protocol
            && addresses_meet(self.host_ip, other.host_ip)
    }

    /// Refuses what can be no port.
    pub fn check(&self) -> Result<()> {
        if self.host_port == 0 || self.instance_port == 0 {
            let why = format!("{self}: a port is 1 to 65535");
            return Err(Error::Invalid { field: "ports", why });
        }
        if self.host_ip == Some(Ipv6Addr::LOCALHOST.into()) {
            let why = format!(
                "{self}: the kernel lets nothing from ::1 leave the machine, so a port there never answers; use 127.0.0.1, or an address of the node"
            );
            return Err(Error::Invalid { field: "ports", why });
        }
        Ok(())
    }
}

/// Whether one packet can be for both of these: without an address all are meant, with 0.0.0.0 or `::` all of the family.
pub(crate) fn addresses_meet(one: Option<IpAddr>, other: Option<IpAddr>) -> bool {
    match (one, other) {
        (Some(one), Some(other)) => {
            let is_all = one.is_unspecified() || other.is_unspecified();
            one == other || is_all && one.is_ipv4() == other.is_ipv4()
        }
        _ => true,
    }
}

impl fmt::Display for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host_ip {
            Some(ip) => write!(f, "{}", SocketAddr::new(ip, self.host_port))?,
            None => write!(f, "{}", self.host_port)?,
        }
        write!(f, "/{}", self.protocol.to_string().to_lowercase())
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use super::*;

    #[test]
    fn the_nodes_port_comes_first_and_the_instances_second() {
        let port = Port::new(80, 8080);
        assert_eq!((port.host_port, port.instance_port), (80, 8080));
    }

    #[test]
    fn ports_conflict_where_one_packet_could_mean_both() {
        let any = Port::new(80, 1);
        let here = any.at(Ipv4Addr::LOCALHOST);
        assert!(any.conflicts_with(&here) && here.conflicts_with(&any));
        assert!(!here.conflicts_with(&any.at(Ipv4Addr::new(10, 0, 0, 1))));
        assert!(!here.conflicts_with(&any.at(Ipv6Addr::LOCALHOST)));
        let all = any.at(Ipv4Addr::UNSPECIFIED);
        assert!(all.conflicts_with(&here) && here.conflicts_with(&all) && all.conflicts_with(&any));
        assert!(!all.conflicts_with(&any.at(Ipv6Addr::LOCALHOST)));
        assert!(!all.conflicts_with(&any.at(Ipv6Addr::UNSPECIFIED)));
        assert!(!any.conflicts_with(&any.with_protocol(Protocol::Udp)));
        assert!(!any.conflicts_with(&Port::new(81, 1)));
    }

    #[test]
    fn port_zero_is_refused_by_name() {
        let error = Port::new(0, 80).check().unwrap_err();
        assert!(error.to_string().contains("0/tcp"), "{error}");
    }
}
