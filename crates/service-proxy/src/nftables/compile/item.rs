//! What stands in the table, item by item, and the names of items.

use std::cmp::Ordering;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use telaio_model::{IpFamily, Protocol};
use telaio_netlink::nftables::{Chain, Verdict};

use crate::nftables::rule::{Place, Rule};

/// An address and port where a service answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FrontendKey {
    /// The family.
    pub family: IpFamily,
    /// The address; none for node ports.
    pub address: Option<IpAddr>,
    /// The protocol.
    pub protocol: Protocol,
    /// The port.
    pub port: u16,
}

/// By hand, because it is compared millions of times.
impl Ord for FrontendKey {
    fn cmp(&self, other: &Self) -> Ordering {
        let rest = |key: &Self| (u32::from(key.port) << 2) | key.protocol as u32;
        let place = |key: &Self| (key.family, key.address.map(address_bits));
        place(self).cmp(&place(other)).then_with(|| rest(self).cmp(&rest(other)))
    }
}

impl PartialOrd for FrontendKey {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

fn address_bits(ip: IpAddr) -> u128 {
    match ip {
        IpAddr::V4(ip) => u128::from(ip.to_bits()),
        IpAddr::V6(ip) => ip.to_bits(),
    }
}

impl FrontendKey {
    /// By what packets to it are found.
    pub fn place(&self) -> Place {
        if self.address.is_some() { Place::Address } else { Place::NodePort }
    }
}

/// The name of something in the table.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Key {
    /// A chain.
    Chain(IpFamily, Arc<str>),
    /// The way of a number.
    Way(IpFamily, u32),
    /// A cluster address.
    ClusterIp(IpAddr),
    /// An endpoint of this node.
    Hairpin(IpAddr),
    /// A node port that is served on loopback.
    LocalhostNodePort(IpFamily, u16),
    /// An address and port where a service answers.
    Frontend(FrontendKey),
}

impl Key {
    /// Its family.
    pub fn family(&self) -> IpFamily {
        match self {
            Self::Chain(family, _) | Self::Way(family, _) | Self::LocalhostNodePort(family, _) => {
                *family
            }
            Self::ClusterIp(ip) | Self::Hairpin(ip) => IpFamily::of(*ip),
            Self::Frontend(frontend) => frontend.family,
        }
    }
}

impl std::fmt::Display for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let frontend = |f: &mut std::fmt::Formatter<'_>, what: &str, key: &FrontendKey| {
            write!(f, "{what} ")?;
            match key.address {
                Some(address) => write!(f, "{}", SocketAddr::new(address, key.port))?,
                None => write!(f, "node port {} ({})", key.port, key.family)?,
            }
            write!(f, "/{}", key.protocol)
        };
        match self {
            Self::Chain(family, name) => write!(f, "chain {name} ({family})"),
            Self::Way(family, number) => write!(f, "way {number:#x} ({family})"),
            Self::ClusterIp(ip) => write!(f, "cluster IP {ip}"),
            Self::Hairpin(ip) => write!(f, "hairpin of {ip}"),
            Self::LocalhostNodePort(family, port) => {
                write!(f, "localhost node port {port} ({family})")
            }
            Self::Frontend(key) => frontend(f, "service at", key),
        }
    }
}

/// A chain with its rules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChainItem {
    /// The chain.
    pub chain: Chain,
    /// Its rules in order; `None` if what is there cannot be read.
    pub rules: Option<Vec<Rule>>,
}

/// The service that an item is of, by a hash of its name. What is read back does not tell, so it does
/// not count when items are compared.
#[derive(Debug, Clone, Copy, Default)]
pub struct Owner(pub u64);

impl PartialEq for Owner {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Owner {}

/// Where an address and port leads.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FrontendItem {
    /// Whose it is.
    pub owner: Owner,
    /// The chain that knows who may use it, if not everybody may.
    pub sources: Option<Arc<str>>,
    /// The number of its way; `None` if there is none, which we never want.
    pub way: Option<u32>,
    /// The endpoints in their slots, in order of slot.
    pub slots: Vec<(u32, SocketAddr)>,
    /// The lasting slot for each slot, in order of slot; with affinity only.
    pub lasting: Vec<(u32, u32)>,
    /// The lasting slots, in order; with affinity only.
    pub live: Vec<u32>,
}

/// What stands in the table under a [`Key`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Item {
    /// An element of a set.
    Present,
    /// A chain.
    Chain(Arc<ChainItem>),
    /// Where a way leads.
    Way(Verdict),
    /// Where an address and port leads.
    Frontend(Arc<FrontendItem>),
}
