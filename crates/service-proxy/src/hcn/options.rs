//! What only this backend takes.

use std::collections::BTreeMap;
use std::net::IpAddr;

use telaio_hcn::MacAddress;

/// What only this backend takes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HcnOptions {
    /// The network that pods are on. Without a name: the only overlay or l2bridge network there is.
    pub network_name: Option<String>,
    /// On an overlay, the source of traffic that has to come back through this node; one of each family at
    /// most. Without any: the addresses of the endpoint `<network>_ep`, which is reserved for it.
    pub source_vips: Vec<IpAddr>,
    /// Answers from endpoints to users of cluster addresses go straight to them (direct server return).
    /// Without a word: where HNS can.
    pub enable_dsr: Option<bool>,
    /// The Ethernet addresses of this machine's interfaces, by IP address. On an overlay the one that has
    /// the node's address matters; without it the network's own router address, and then HNS's choice.
    pub host_macs: BTreeMap<IpAddr, MacAddress>,
    /// Load balancers at our services' addresses are replaced, whoever made them.
    pub takeover: bool,
}
