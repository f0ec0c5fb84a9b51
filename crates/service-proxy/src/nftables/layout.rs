//! The names and shapes of our table: what an operator sees in `nft list ruleset`.
//!
//! One table `telaio` per family. There is no chain per service: maps that all services share say
//! where each address leads, and a handful of chains that services of a kind share say how an
//! endpoint is chosen. So a change is a few elements in one transaction, whatever the cluster's size.
//!
//! | map or set | key | value |
//! |---|---|---|
//! | `services` | address . protocol . port | the number of a way |
//! | `ways` | number | where to go: a chain that picks, `reject`, drop |
//! | `endpoints` | address . protocol . port . slot | endpoint's address . port |
//! | `nodeports`, `nodeport-endpoints` | the same without the address | |
//! | `firewall` | address . protocol . port | the chain that knows the allowed sources |
//! | `affinity` | client . address . protocol . port | the endpoint's lasting slot |
//! | `lasting` | address . protocol . port . slot | the lasting slot of the endpoint in this one |
//! | `live` | address . protocol . port . lasting slot | |
//! | `nodeport-affinity`, `nodeport-lasting`, `nodeport-live` | the same without the address | |
//! | `cluster-ips` | address | |
//! | `hairpin` | address . the same address | |
//! | `localhost-nodeports` | port | |
//!
//! Services lead to numbers and only those to chains, because the kernel checks every verdict of a
//! table whenever one changes: so there are as many as there are kinds of services, and not as many as
//! services.
//!
//! Slots are numbers. `0..N` are the endpoints of the cluster set, each as often as its weight says;
//! from [`LOCAL_SLOTS`] on, likewise, those of the local set. A *lasting* slot is derived from the
//! endpoint's address and stays the same while the endpoint lives, and nobody gets it after that:
//! session affinity remembers it, so a client of an endpoint that is gone finds nothing and chooses
//! anew, from the very transaction on that took the endpoint out.

use telaio_model::IpFamily;
use telaio_netlink::nftables::{DataType, Family, SetSpec};

/// The name of our tables.
pub const TABLE: &str = "telaio";

/// The first slot of local sets.
pub const LOCAL_SLOTS: u32 = 0x4000_0000;
/// The bit that all lasting slots have.
pub const LASTING_SLOTS: u32 = 0x8000_0000;

/// How many clients' affinity is remembered, per map. Beyond it new clients are balanced without.
const AFFINITY_SIZE: u32 = 1 << 18;
/// How long affinity lasts where no service says otherwise; the kernel wants a default.
const AFFINITY_TIMEOUT_MS: u64 = 10_800_000;
/// The least room that is made in maps and sets. Most stay empty, and the kernel clears the room of
/// each when the table is made.
const SIZE_MIN: u32 = 1 << 11;

/// The family as nftables names it.
pub fn nft_family(family: IpFamily) -> Family {
    match family {
        IpFamily::V4 => Family::Ip,
        IpFamily::V6 => Family::Ip6,
    }
}

/// The maps and sets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Map {
    /// Where each address and port leads: the number of a way.
    Services,
    /// The chain of each way.
    Ways,
    /// The endpoints in their slots.
    Endpoints,
    /// Where each node port leads.
    NodePorts,
    /// The endpoints of node ports in their slots.
    NodePortEndpoints,
    /// Addresses and ports with limited sources.
    Firewall,
    /// Who stays where.
    Affinity,
    /// The lasting slots.
    Lasting,
    /// The lasting slots of endpoints that live.
    Live,
    /// Who stays where, by node port.
    NodePortAffinity,
    /// The lasting slots of node ports.
    NodePortLasting,
    /// Those of them whose endpoints live.
    NodePortLive,
    /// The cluster addresses.
    ClusterIps,
    /// Endpoints of this node, who may call themselves.
    Hairpin,
    /// Node ports that are served on loopback.
    LocalhostNodePorts,
}

impl Map {
    /// All of them.
    pub const ALL: [Self; 15] = [
        Self::Services,
        Self::Ways,
        Self::Endpoints,
        Self::NodePorts,
        Self::NodePortEndpoints,
        Self::Firewall,
        Self::Affinity,
        Self::Lasting,
        Self::Live,
        Self::NodePortAffinity,
        Self::NodePortLasting,
        Self::NodePortLive,
        Self::ClusterIps,
        Self::Hairpin,
        Self::LocalhostNodePorts,
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Services => "services",
            Self::Ways => "ways",
            Self::Endpoints => "endpoints",
            Self::NodePorts => "nodeports",
            Self::NodePortEndpoints => "nodeport-endpoints",
            Self::Firewall => "firewall",
            Self::Affinity => "affinity",
            Self::Lasting => "lasting",
            Self::Live => "live",
            Self::NodePortAffinity => "nodeport-affinity",
            Self::NodePortLasting => "nodeport-lasting",
            Self::NodePortLive => "nodeport-live",
            Self::ClusterIps => "cluster-ips",
            Self::Hairpin => "hairpin",
            Self::LocalhostNodePorts => "localhost-nodeports",
        }
    }

    /// Rules fill it, not we.
    pub fn is_dynamic(self) -> bool {
        matches!(self, Self::Affinity | Self::NodePortAffinity)
    }

    /// Its values are verdicts.
    pub fn is_verdicts(self) -> bool {
        matches!(self, Self::Ways | Self::Firewall)
    }

    /// The types of its key.
    pub fn key(self, family: IpFamily) -> Vec<DataType> {
        use DataType::{Mark, Port, Protocol};
        let address = address_type(family);
        match self {
            Self::Services | Self::Firewall | Self::NodePortAffinity => {
                vec![address, Protocol, Port]
            }
            Self::Endpoints | Self::Lasting | Self::Live => vec![address, Protocol, Port, Mark],
            Self::NodePorts => vec![Protocol, Port],
            Self::NodePortEndpoints | Self::NodePortLasting | Self::NodePortLive => {
                vec![Protocol, Port, Mark]
            }
            Self::Affinity => vec![address, address, Protocol, Port],
            Self::Ways => vec![Mark],
            Self::ClusterIps => vec![address],
            Self::Hairpin => vec![address, address],
            Self::LocalhostNodePorts => vec![Port],
        }
    }

    /// The types of its values, if it has values and they are no verdicts.
    pub fn values(self, family: IpFamily) -> Option<Vec<DataType>> {
        match self {
            Self::Endpoints | Self::NodePortEndpoints => {
                Some(vec![address_type(family), DataType::Port])
            }
            Self::Services
            | Self::NodePorts
            | Self::Affinity
            | Self::Lasting
            | Self::NodePortAffinity
            | Self::NodePortLasting => Some(vec![DataType::Mark]),
            _ => None,
        }
    }

    /// How much room it gets for this many elements: enough to grow for long, since growing means
    /// to make the table anew.
    pub fn size_for(self, elements: usize) -> u32 {
        if self.is_dynamic() {
            return AFFINITY_SIZE;
        }
        let wanted = u32::try_from(elements).unwrap_or(u32::MAX / 4).saturating_mul(2);
        wanted.max(SIZE_MIN).checked_next_power_of_two().unwrap_or(1 << 31)
    }

    /// Calls `with` with what the kernel is told when the map is made.
    pub fn with_spec<T>(
        self,
        family: IpFamily,
        size: u32,
        with: impl FnOnce(&SetSpec<'_>) -> T,
    ) -> T {
        let (key, values) = (self.key(family), self.values(family));
        with(&SetSpec {
            name: self.name(),
            key: &key,
            values: values.as_deref(),
            verdicts: self.is_verdicts(),
            size,
            dynamic_timeout_ms: self.is_dynamic().then_some(AFFINITY_TIMEOUT_MS),
        })
    }
}

fn address_type(family: IpFamily) -> DataType {
    match family {
        IpFamily::V4 => DataType::Ipv4,
        IpFamily::V6 => DataType::Ipv6,
    }
}
