//! What an operator decides about services on a node, in kube-proxy's terms.
//!
//! [`ProxyConfig`] is fixed while the proxy runs; [`NodeFacts`] is what the cluster says about the
//! node, and changes. Backends compile from both together with the node's services.

use std::net::IpAddr;

use ipnet::IpNet;
use telaio_model::{IpFamily, Node, Object};

/// How traffic that starts at one of this node's pods is told from other traffic.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum DetectLocal {
    /// Not at all: nobody counts as a pod of this node.
    #[default]
    Nowhere,
    /// Sources in the cluster's pod networks.
    ClusterCidr(Vec<IpNet>),
    /// Sources in the pod networks of this node, as its Node object names them.
    NodeCidr,
    /// What comes in by this interface.
    BridgeInterface(String),
    /// What comes in by an interface whose name begins so.
    InterfaceNamePrefix(String),
}

/// On which of the node's addresses node ports are served. Loopback is never among them; see
/// [`ProxyConfig::localhost_node_ports`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum NodePortAddresses {
    /// All of them.
    #[default]
    All,
    /// The first of each family that the Node object names.
    Primary,
    /// Those in these networks; a family without any serves none.
    Within(Vec<IpNet>),
}

/// What an operator decides; the same for every backend.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProxyConfig {
    /// Which traffic starts at this node's pods.
    pub detect_local: DetectLocal,
    /// All traffic to cluster addresses gets the node's address as its source.
    pub masquerade_all: bool,
    /// The bit of the packet mark that says "masquerade", 0 to 31. The same as kube-proxy's by
    /// default, so that both can run side by side during a switch.
    pub masquerade_bit: u8,
    /// Where node ports are served.
    pub node_port_addresses: NodePortAddresses,
    /// Node ports are served on loopback too.
    pub localhost_node_ports: bool,
    /// Networks of cluster addresses; what is in them and belongs to no service is dropped.
    pub service_cidrs: Vec<IpNet>,
    /// The families to serve.
    pub families: Vec<IpFamily>,
}

impl Default for ProxyConfig {
    fn default() -> Self {
        Self {
            detect_local: DetectLocal::default(),
            masquerade_all: false,
            masquerade_bit: 14,
            node_port_addresses: NodePortAddresses::default(),
            localhost_node_ports: true,
            service_cidrs: Vec::new(),
            families: IpFamily::ALL.to_vec(),
        }
    }
}

impl ProxyConfig {
    /// The mark that says "masquerade".
    pub fn masquerade_mark(&self) -> u32 {
        1_u32 << (self.masquerade_bit % 32)
    }
}

/// What the cluster says about the node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeFacts {
    /// The node's own addresses, most important first.
    pub addresses: Vec<IpAddr>,
    /// The networks that its pods get addresses from.
    pub pod_cidrs: Vec<IpNet>,
    /// Networks of cluster addresses that the cluster names, beside the configured ones.
    pub service_cidrs: Vec<IpNet>,
}

impl NodeFacts {
    /// What a Node object says.
    pub fn of(node: &Node) -> Self {
        Self {
            addresses: node.addresses.iter().map(|address| address.ip).collect(),
            pod_cidrs: node.pod_cidrs.clone(),
            service_cidrs: Vec::new(),
        }
    }

    /// What the objects of a cluster say about the node of this name: its Node object, and the
    /// networks of cluster addresses. `addresses` come before those of the object.
    pub fn from_objects<'a>(
        name: &str,
        addresses: &[IpAddr],
        objects: impl IntoIterator<Item = &'a Object>,
    ) -> Self {
        let mut facts = Self { addresses: addresses.to_vec(), ..Self::default() };
        for object in objects {
            match object {
                Object::Node(node) if &*node.meta.key.name == name => {
                    let of_node = Self::of(node);
                    let more = of_node.addresses.into_iter().filter(|ip| !addresses.contains(ip));
                    facts.addresses.extend(more);
                    facts.pod_cidrs = of_node.pod_cidrs;
                }
                Object::ServiceCidr(cidr) => facts.service_cidrs.extend(&cidr.cidrs),
                _ => {}
            }
        }
        facts.service_cidrs.sort_unstable();
        facts.service_cidrs.dedup();
        facts
    }

    /// The first address of a family.
    pub fn primary(&self, family: IpFamily) -> Option<IpAddr> {
        self.addresses.iter().copied().find(|ip| IpFamily::of(*ip) == family)
    }
}

/// What decides, for one family, whether a packet comes from a pod of this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LocalSources {
    /// Nothing does.
    Nowhere,
    /// Its source is in one of these networks; there is at least one.
    Networks(Vec<IpNet>),
    /// It comes in by this interface.
    Interface(String),
    /// It comes in by an interface whose name begins so.
    InterfacePrefix(String),
}

impl LocalSources {
    /// What `config` means on this node for `family`.
    pub fn new(config: &ProxyConfig, node: &NodeFacts, family: IpFamily) -> Self {
        let of_family = |nets: &[IpNet]| {
            let mut nets: Vec<IpNet> =
                nets.iter().filter(|net| IpFamily::of_net(net) == family).copied().collect();
            nets.sort_unstable();
            nets.dedup();
            if nets.is_empty() { Self::Nowhere } else { Self::Networks(nets) }
        };
        match &config.detect_local {
            DetectLocal::Nowhere => Self::Nowhere,
            DetectLocal::ClusterCidr(nets) => of_family(nets),
            DetectLocal::NodeCidr => of_family(&node.pod_cidrs),
            DetectLocal::BridgeInterface(name) => Self::Interface(name.clone()),
            DetectLocal::InterfaceNamePrefix(prefix) => Self::InterfacePrefix(prefix.clone()),
        }
    }
}

/// What decides, for one family, whether a local address serves node ports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NodePortMatch {
    /// Every local address but loopback.
    AnyLocal,
    /// Local addresses in these networks but loopback; without any network, none.
    Within(Vec<IpNet>),
}

impl NodePortMatch {
    /// What `config` means on this node for `family`.
    pub fn new(config: &ProxyConfig, node: &NodeFacts, family: IpFamily) -> Self {
        match &config.node_port_addresses {
            NodePortAddresses::All => Self::AnyLocal,
            NodePortAddresses::Primary => {
                Self::Within(node.primary(family).map(IpNet::from).into_iter().collect())
            }
            NodePortAddresses::Within(nets) => {
                let mut nets: Vec<IpNet> =
                    nets.iter().filter(|net| IpFamily::of_net(net) == family).copied().collect();
                nets.sort_unstable();
                nets.dedup();
                // kube-proxy: a zero-length network means every address.
                if nets.iter().any(|net| net.prefix_len() == 0) {
                    return Self::AnyLocal;
                }
                Self::Within(nets)
            }
        }
    }
}
