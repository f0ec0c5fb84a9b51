//! Who is in a test cluster, and under which addresses.
//!
//! Every cluster has its own namespaces, so all of them use the same addresses and tests can write
//! them down as they are.
//!
//! ```text
//!   a1 ─┐            192.168.50.0/24           ┌─ b1
//!   a2 ─┴─ node-a ──────────────────── node-b ─┴─ b2
//!            │ └───── internet (answers "unreachable" for all that nobody took)
//!            │ 192.168.60.0/24
//!         outside (203.0.113.0/24)
//! ```

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// An address family.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Family {
    /// Both.
    pub const ALL: [Self; 2] = [Self::V4, Self::V6];

    /// The one of two addresses that is of this family.
    pub fn pick(self, v4: Ipv4Addr, v6: Ipv6Addr) -> IpAddr {
        match self {
            Self::V4 => v4.into(),
            Self::V6 => v6.into(),
        }
    }
}

/// A machine or pod of the cluster: one network namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Host {
    /// The node under test.
    NodeA,
    /// A node beside it that only routes.
    NodeB,
    /// A pod of node-a.
    A1,
    /// Another pod of node-a.
    A2,
    /// A pod of node-b.
    B1,
    /// Another pod of node-b.
    B2,
    /// Clients that are no part of the cluster. All of 203.0.113.0/24 and 2001:db8:113::/64 is here.
    Outside,
    /// Where node-a's default route leads: nothing is here.
    Internet,
}

impl Host {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::NodeA,
        Self::NodeB,
        Self::A1,
        Self::A2,
        Self::B1,
        Self::B2,
        Self::Outside,
        Self::Internet,
    ];

    /// The name: of the namespace, of the Kubernetes object, and in a server's answers.
    pub fn name(self) -> &'static str {
        match self {
            Self::NodeA => "node-a",
            Self::NodeB => "node-b",
            Self::A1 => "a1",
            Self::A2 => "a2",
            Self::B1 => "b1",
            Self::B2 => "b2",
            Self::Outside => "outside",
            Self::Internet => "internet",
        }
    }

    /// The host of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|host| host.name() == name)
    }

    /// The node that a pod runs on; a node's is itself.
    pub fn node(self) -> Option<Self> {
        match self {
            Self::NodeA | Self::A1 | Self::A2 => Some(Self::NodeA),
            Self::NodeB | Self::B1 | Self::B2 => Some(Self::NodeB),
            Self::Outside | Self::Internet => None,
        }
    }

    /// Whether it is a pod.
    pub fn is_pod(self) -> bool {
        matches!(self, Self::A1 | Self::A2 | Self::B1 | Self::B2)
    }

    /// The address that it is known by.
    pub fn address(self, family: Family) -> IpAddr {
        let v6 = |text: [u16; 3], last: u16| {
            Ipv6Addr::new(0xfd00, text[0], text[1], text[2], 0, 0, 0, last)
        };
        let (v4, v6) = match self {
            Self::NodeA => (Ipv4Addr::new(192, 168, 50, 11), v6([0x50, 0, 0], 0x11)),
            Self::NodeB => (Ipv4Addr::new(192, 168, 50, 12), v6([0x50, 0, 0], 0x12)),
            Self::A1 => (Ipv4Addr::new(10, 244, 1, 11), v6([0x10, 0x244, 1], 0x11)),
            Self::A2 => (Ipv4Addr::new(10, 244, 1, 12), v6([0x10, 0x244, 1], 0x12)),
            Self::B1 => (Ipv4Addr::new(10, 244, 2, 11), v6([0x10, 0x244, 2], 0x11)),
            Self::B2 => (Ipv4Addr::new(10, 244, 2, 12), v6([0x10, 0x244, 2], 0x12)),
            Self::Outside => return outside_client(family, OUTSIDE_NUMBER),
            Self::Internet => (Ipv4Addr::new(192, 168, 70, 2), v6([0x70, 0, 0], 2)),
        };
        family.pick(v4, v6)
    }
}

/// Node-a's second address, on the link to the outside.
pub fn node_a_second(family: Family) -> IpAddr {
    family.pick(Ipv4Addr::new(192, 168, 60, 1), Ipv6Addr::new(0xfd00, 0x60, 0, 0, 0, 0, 0, 1))
}

/// The pods' gateway on node-a: one more of its own addresses.
pub fn node_a_gateway(family: Family) -> IpAddr {
    family.pick(Ipv4Addr::new(10, 244, 1, 1), Ipv6Addr::new(0xfd00, 0x10, 0x244, 1, 0, 0, 0, 1))
}

/// Whether this is one of node-a's own addresses: what a masqueraded client looks like.
pub fn is_node_a(ip: IpAddr) -> bool {
    let is = |family| {
        let internet = family_internet(family);
        [Host::NodeA.address(family), node_a_second(family), node_a_gateway(family), internet]
            .contains(&ip)
    };
    ip.is_loopback() || Family::ALL.into_iter().any(is)
}

fn family_internet(family: Family) -> IpAddr {
    family.pick(Ipv4Addr::new(192, 168, 70, 1), Ipv6Addr::new(0xfd00, 0x70, 0, 0, 0, 0, 0, 1))
}

/// The address that the outside is known by, among its own.
const OUTSIDE_NUMBER: u8 = 10;

/// The n-th of the outside clients' addresses.
pub fn outside_client(family: Family, n: u8) -> IpAddr {
    family.pick(
        Ipv4Addr::new(203, 0, 113, n),
        Ipv6Addr::new(0x2001, 0xdb8, 0x113, 0, 0, 0, 0, u16::from(n)),
    )
}

/// The pod networks of the cluster, as `--cluster-cidr` takes them.
pub const CLUSTER_CIDRS: &str = "10.244.0.0/16,fd00:10:244::/48";
/// The networks of cluster addresses, as `--service-cidr` takes them.
pub const SERVICE_CIDRS: &str = "10.96.0.0/16,fd00:10:96::/112";
