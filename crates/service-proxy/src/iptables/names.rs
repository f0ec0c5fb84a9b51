//! The names of our chains: kube-proxy's, under a prefix of our own.
//!
//! A chain of a service port carries the first 80 bits of a hash of the port's name, and a chain of
//! an endpoint also hashes its address. kube-proxy does the same, so whoever knows its chains finds
//! ours: `KUBE-SVC-XPGD46QRK7WJZT7O` is `TELAIO-SVC-XPGD46QRK7WJZT7O`.

use std::fmt;
use std::net::SocketAddr;

use sha2::{Digest, Sha256};
use telaio_model::Protocol;

use crate::plan::PortName;

/// What every chain of ours begins with. A chain that does not is another's.
pub const PREFIX: &str = "TELAIO-";

/// What the chains of the backend `ipvs` begin with.
const IPVS_PREFIX: &str = "TELAIO-IPVS-";

/// The longest name that the kernel takes.
const NAME_BYTES_MAX: usize = 28;

/// The name of a chain. Small and without a heap, because there are tens of thousands.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChainName {
    bytes: [u8; NAME_BYTES_MAX],
    len: u8,
}

impl ChainName {
    /// A name; `None` if the kernel would not take it, or it could be read as something else.
    pub fn new(text: &str) -> Option<Self> {
        let fits = (1..=NAME_BYTES_MAX).contains(&text.len());
        let plain = text.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'"');
        (fits && plain).then(|| Self::cut(text))
    }

    /// A name that is known to fit.
    const fn cut(text: &str) -> Self {
        let from = text.as_bytes();
        let mut bytes = [0; NAME_BYTES_MAX];
        let mut len = 0;
        while len < from.len() && len < NAME_BYTES_MAX {
            bytes[len] = from[len];
            len += 1;
        }
        Self { bytes, len: len as u8 }
    }

    /// The name as a text.
    pub fn as_str(&self) -> &str {
        // Both ways to make one take whole texts of ASCII.
        str::from_utf8(&self.bytes[..usize::from(self.len)]).unwrap_or_default()
    }

    /// Whether the chain is one of ours, of whichever backend.
    pub fn is_ours(&self) -> bool {
        Owner::of(self.as_str()).is_some()
    }
}

/// Which of our backends a chain belongs to. While one takes over from another both have chains in the
/// kernel, and neither looks at the other's: not to compare, not to mend, not to remove.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Owner {
    /// The backend `iptables`: every chain of ours that is not the other's.
    Iptables,
    /// The backend `ipvs`: what begins with `TELAIO-IPVS-`.
    Ipvs,
}

impl Owner {
    /// Whose a chain is; `None` if it is none of ours.
    pub fn of(chain: &str) -> Option<Self> {
        if chain.starts_with(IPVS_PREFIX) {
            Some(Self::Ipvs)
        } else {
            chain.starts_with(PREFIX).then_some(Self::Iptables)
        }
    }

    /// Whether a chain is this backend's.
    pub fn owns(self, chain: &str) -> bool {
        Self::of(chain) == Some(self)
    }
}

/// Whether a chain is one of the kernel's own.
pub fn is_kernels(chain: &str) -> bool {
    let all = [PREROUTING, INPUT, FORWARD, OUTPUT, POSTROUTING];
    all.iter().any(|it| it.as_str() == chain)
}

impl fmt::Display for ChainName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for ChainName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A table of the kernel's packet filter, in the order of names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Table {
    /// Lets packets pass, refuses or drops them.
    Filter,
    /// Changes packets before others decide about them: the backend `ipvs` marks them here. The other
    /// has only its canary here, where nobody else has a reason to touch it.
    Mangle,
    /// Rewrites addresses.
    Nat,
}

impl Table {
    /// All that we use.
    pub const ALL: [Self; 3] = [Self::Filter, Self::Mangle, Self::Nat];

    /// Its name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Filter => "filter",
            Self::Mangle => "mangle",
            Self::Nat => "nat",
        }
    }

    /// Reads its name.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|table| table.as_str() == text)
    }
}

macro_rules! chains {
    ($($(#[$doc:meta])* $name:ident = $text:literal;)*) => {
        $($(#[$doc])* pub const $name: ChainName = ChainName::cut($text);)*
    };
}

chains! {
    /// The kernel's own: packets that come in.
    PREROUTING = "PREROUTING";
    /// The kernel's own: packets for this machine.
    INPUT = "INPUT";
    /// The kernel's own: packets that pass through.
    FORWARD = "FORWARD";
    /// The kernel's own: packets from this machine.
    OUTPUT = "OUTPUT";
    /// The kernel's own: packets that go out.
    POSTROUTING = "POSTROUTING";

    /// nat: sends packets to the chain of their service; filter: refuses those to cluster addresses
    /// that nobody serves.
    SERVICES = "TELAIO-SERVICES";
    /// nat: the same for node ports; filter: lets load balancers ask for a service's health.
    NODEPORTS = "TELAIO-NODEPORTS";
    /// filter: refuses packets to external addresses that nobody serves.
    EXTERNAL_SERVICES = "TELAIO-EXTERNAL-SERVICES";
    /// filter: the same for node ports.
    EXTERNAL_NODEPORTS = "TELAIO-EXTERNAL-NODEPORTS";
    /// filter: drops what a service's source ranges do not allow.
    PROXY_FIREWALL = "TELAIO-PROXY-FIREWALL";
    /// filter: keeps others out of this machine's loopback network.
    FIREWALL = "TELAIO-FIREWALL";
    /// filter: lets packets pass that we have sent on.
    FORWARDING = "TELAIO-FORWARD";
    /// nat: gives marked packets the node's address.
    MASQUERADE = "TELAIO-POSTROUTING";
    /// nat: marks packets for that.
    MARK_MASQ = "TELAIO-MARK-MASQ";
    /// nat: marks packets that do not come from a pod, where several networks have pods.
    MARK_REMOTE = "TELAIO-MARK-MASQ-REMOTE";
    /// In every table: its absence tells that somebody has flushed the table.
    CANARY = "TELAIO-CANARY";

    /// mangle, of the backend `ipvs`: decides about packets that reach this machine.
    IPVS_INPUT = "TELAIO-IPVS-INPUT";
    /// mangle: about those that do not come from a pod of this node.
    IPVS_REMOTE = "TELAIO-IPVS-REMOTE";
    /// mangle: about those that start on this machine.
    IPVS_OUTPUT = "TELAIO-IPVS-OUTPUT";
    /// filter: refuses packets that nobody serves.
    IPVS_FILTER = "TELAIO-IPVS-FILTER";
    /// filter: refuses packets to ports of our addresses that no service has.
    IPVS_IPS = "TELAIO-IPVS-IPS";
    /// filter: lets packets pass that we have sent on.
    IPVS_FORWARD = "TELAIO-IPVS-FORWARD";
    /// nat: gives marked packets, and endpoints that reach themselves, the node's address.
    IPVS_POSTROUTING = "TELAIO-IPVS-POSTROUTING";
    /// In every table: its absence tells that somebody has flushed the table.
    IPVS_CANARY = "TELAIO-IPVS-CANARY";
}

/// The chains of one service port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PortChains {
    /// Chooses among the endpoints of the cluster.
    pub cluster: ChainName,
    /// Chooses among the endpoints of this node.
    pub local: ChainName,
    /// Takes what comes to an external address.
    pub external: ChainName,
    /// Lets only some sources to a load balancer's address.
    pub firewall: ChainName,
}

impl PortChains {
    /// The chains of this port.
    pub fn new(port: &PortName) -> Self {
        let hash = hash(hasher(port));
        Self {
            cluster: join("TELAIO-SVC-", &hash),
            local: join("TELAIO-SVL-", &hash),
            external: join("TELAIO-EXT-", &hash),
            firewall: join("TELAIO-FW-", &hash),
        }
    }
}

/// The chain of an endpoint of a service port.
pub fn endpoint_chain(port: &PortName, endpoint: SocketAddr) -> ChainName {
    let hasher = hasher(port).chain_update(endpoint.to_string());
    join("TELAIO-SEP-", &hash(hasher))
}

/// A protocol as rules spell it.
pub fn protocol_name(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::Tcp => "tcp",
        Protocol::Udp => "udp",
        Protocol::Sctp => "sctp",
    }
}

fn hasher(port: &PortName) -> Sha256 {
    Sha256::new().chain_update(port.to_string()).chain_update(protocol_name(port.protocol))
}

const HASH_CHARS: usize = 16;

/// The first 80 bits in base 32, as RFC 4648 has it.
fn hash(hasher: Sha256) -> [u8; HASH_CHARS] {
    const ALPHABET: &[u8; 32] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";
    let digest = hasher.finalize();
    let bits = digest.iter().take(10).fold(0_u128, |bits, byte| bits << 8 | u128::from(*byte));
    std::array::from_fn(|at| ALPHABET[(bits >> (75 - 5 * at)) as usize & 31])
}

fn join(prefix: &str, hash: &[u8; HASH_CHARS]) -> ChainName {
    let mut name = ChainName::cut(prefix);
    let from = usize::from(name.len);
    name.bytes[from..from + HASH_CHARS].copy_from_slice(hash);
    name.len += HASH_CHARS as u8;
    name
}

#[cfg(test)]
mod tests {
    use telaio_model::ObjectKey;

    use super::*;

    #[test]
    fn names_are_kube_proxys_but_for_the_prefix() {
        let port = PortName {
            service: ObjectKey::new("ns1", "svc1"),
            port: "p80".into(),
            protocol: Protocol::Tcp,
        };
        let chains = PortChains::new(&port);
        assert_eq!(chains.cluster.as_str(), "TELAIO-SVC-XPGD46QRK7WJZT7O");
        assert_eq!(chains.firewall.as_str(), "TELAIO-FW-XPGD46QRK7WJZT7O");
        let endpoint = endpoint_chain(&port, "10.180.0.1:80".parse().unwrap());
        assert_eq!(endpoint.as_str(), "TELAIO-SEP-SXIVWICOYRO3J4NJ");
    }

    #[test]
    fn a_chain_has_one_owner_at_most() {
        assert_eq!(Owner::of(SERVICES.as_str()), Some(Owner::Iptables));
        assert_eq!(Owner::of(IPVS_INPUT.as_str()), Some(Owner::Ipvs));
        assert_eq!(Owner::of("TELAIO-IPVS"), Some(Owner::Iptables));
        for other in ["INPUT", "KUBE-SERVICES", "TELAIO"] {
            assert_eq!(Owner::of(other), None, "{other}");
        }
        assert!(IPVS_INPUT.is_ours() && !Owner::Iptables.owns(IPVS_INPUT.as_str()));
    }

    #[test]
    fn what_the_kernel_would_not_take_is_no_name() {
        for bad in ["", "a b", "a\"b", "a\nb", "é", "12345678901234567890123456789"] {
            assert_eq!(ChainName::new(bad), None, "{bad:?}");
        }
        assert_eq!(ChainName::new("INPUT"), Some(INPUT));
    }
}
