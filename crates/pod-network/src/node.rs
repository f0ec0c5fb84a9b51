//! This node, and the others of its cluster.
//!
//! A node has a network, with its own address in it, and a bridge that instances hang on. It is set up once with
//! [`setup_node`]; after a reboot [`setup_iptables`] and [`add_other_nodes`] bring back what the kernel has
//! forgotten. All calls can be repeated.

use std::collections::BTreeSet;
use std::net::IpAddr;

use cidr::{IpCidr, IpInet};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::names;
use crate::network::{Masquerade, Mode, Network, Subnet};
use crate::networks;
use crate::overlay::{self, Backend, LocalNode, NodeRecord, Peer, PeerProblem};
use crate::state::Host;

mod change;

pub(crate) use change::ways;
use change::{
    add_named, add_ways, carry_out, make_room, meet, parts, refuse_second_carrier, remove,
    take_back,
};

/// An address of a node in its network, and where the node itself is reached.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeIp {
    /// The node's own addresses in its networks, of either family or both.
    pub cluster_ip_cidrs: Vec<IpInet>,
    /// The addresses at which other nodes reach it.
    pub external_ips: Vec<IpAddr>,
}

impl NodeIp {
    /// A node's address in its network, with the network's length, and the address at which it is reached.
    pub fn new(cluster_ip_cidr: impl Into<IpInet>, external_ip: impl Into<IpAddr>) -> Self {
        Self {
            cluster_ip_cidrs: vec![cluster_ip_cidr.into()],
            external_ips: vec![external_ip.into()],
        }
    }

    /// Also an address in another network, of the other family or the same.
    #[must_use]
    pub fn with_cluster_ip(mut self, cluster_ip_cidr: impl Into<IpInet>) -> Self {
        self.cluster_ip_cidrs.push(cluster_ip_cidr.into());
        self
    }

    /// Also reached at an address of the other family.
    #[must_use]
    pub fn with_external_ip(mut self, external_ip: impl Into<IpAddr>) -> Self {
        self.external_ips.push(external_ip.into());
        self
    }
}

/// Another node of the cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeRequest {
    /// Its ID.
    pub node_id: String,
    /// Its addresses.
    pub node_ip: NodeIp,
    /// Its hardware address on the vxlan link, where it does not follow from its networks: flannel's nodes.
    #[serde(default)]
    pub vtep_mac: Option<String>,
}

impl NodeRequest {
    /// A node with these addresses.
    pub fn new(node_id: impl Into<String>, node_ip: NodeIp) -> Self {
        Self { node_id: node_id.into(), node_ip, vtep_mac: None }
    }

    /// With a hardware address on the vxlan link of its own choice.
    #[must_use]
    pub fn with_vtep_mac(mut self, mac: impl Into<String>) -> Self {
        self.vtep_mac = Some(mac.into());
        self
    }

    fn peer(self) -> Peer {
        Peer {
            id: self.node_id,
            cidrs: self.node_ip.cluster_ip_cidrs,
            external: self.node_ip.external_ips,
            vtep_mac: self.vtep_mac,
        }
    }
}

/// What this node should be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SetupNodeRequest {
    /// Its ID.
    pub node_id: String,
    /// Its own addresses in its networks, of either family or both. Its tunnel's hardware address follows from the first of IPv4.
    pub node_ip_cidrs: Vec<IpInet>,
    /// The other nodes.
    pub nodes_ips: Vec<NodeRequest>,
    /// How it reaches them.
    pub backend: Backend,
    /// The address that they know it by; learned from the default route without.
    pub tunnel_address: Option<IpAddr>,
    /// The longest packet of instances; learned from the uplink without.
    pub mtu: Option<u32>,
    /// Destinations beside the cluster's that see instances' own addresses.
    pub masquerade_except: Vec<IpCidr>,
}

impl SetupNodeRequest {
    /// A node with this address in its network, and these others.
    pub fn new(
        node_id: impl Into<String>,
        node_ip_cidr: impl Into<IpInet>,
        nodes_ips: Vec<NodeRequest>,
    ) -> Self {
        Self {
            node_id: node_id.into(),
            node_ip_cidrs: vec![node_ip_cidr.into()],
            nodes_ips,
            backend: Backend::default(),
            tunnel_address: None,
            mtu: None,
            masquerade_except: Vec::new(),
        }
    }

    /// Also with an address in another network, of the other family or the same.
    #[must_use]
    pub fn with_node_ip(mut self, node_ip_cidr: impl Into<IpInet>) -> Self {
        self.node_ip_cidrs.push(node_ip_cidr.into());
        self
    }

    /// Reaching the others another way than by vxlan.
    #[must_use]
    pub fn with_backend(mut self, backend: Backend) -> Self {
        self.backend = backend;
        self
    }

    /// Known to the others by this address.
    #[must_use]
    pub fn with_tunnel_address(mut self, address: impl Into<IpAddr>) -> Self {
        self.tunnel_address = Some(address.into());
        self
    }
}

/// What was set up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SetupNodeResponse {
    /// The name of the bridge that instances hang on.
    pub interface_name: String,
}

/// Whose rules should be there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SetupIptablesRequest {
    /// The node's ID.
    pub node_id: String,
}

impl SetupIptablesRequest {
    /// Of this node.
    pub fn new(node_id: impl Into<String>) -> Self {
        Self { node_id: node_id.into() }
    }
}

/// Which node should go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CleanNodeRequest {
    /// Its ID.
    pub node_id: String,
}

impl CleanNodeRequest {
    /// This one.
    pub fn new(node_id: impl Into<String>) -> Self {
        Self { node_id: node_id.into() }
    }
}

/// Sets a node up: its bridge, its rules, and the ways to the other nodes.
///
/// ```
/// # let _machine = telaio_testkit::machine::become_one().unwrap();
/// use std::net::Ipv4Addr;
/// use std::str::FromStr;
///
/// use cidr::Ipv4Inet;
/// use telaio_pod_network::node::{SetupNodeRequest, setup_node};
///
/// let node_id = "node";
/// let node_ip_addr = Ipv4Addr::from_str("10.0.0.1").unwrap();
/// let node_ip_cidr = Ipv4Inet::new(node_ip_addr, 24).unwrap();
/// let nodes_ips = Vec::new();
///
/// let request = SetupNodeRequest::new(node_id.to_string(), node_ip_cidr, nodes_ips);
/// let response = setup_node(request).unwrap();
///
/// println!("CNI name: {}", response.interface_name);
/// # assert_eq!(response.interface_name, "tlb-node");
/// ```
pub fn setup_node(request: SetupNodeRequest) -> Result<SetupNodeResponse> {
    Host::default().setup_node(request)
}

/// Brings back a node's NAT and forwarding rules, its bridge and settings, after a reboot or whenever somebody has
/// removed them. The name is history: the rules are nftables', and iptables' only where the kernel has no nftables for IP.
///
/// ```
/// # let _machine = telaio_testkit::machine::become_one().unwrap();
/// # use telaio_pod_network::node::{SetupNodeRequest, setup_node};
/// use std::net::Ipv4Addr;
/// use std::str::FromStr;
///
/// use cidr::Ipv4Inet;
/// use telaio_pod_network::node::{
///     NodeIp, NodeRequest, SetupIptablesRequest, add_other_nodes, setup_iptables,
/// };
/// # let own = Ipv4Inet::new(Ipv4Addr::new(10, 0, 0, 1), 24).unwrap();
/// # setup_node(SetupNodeRequest::new("node", own, Vec::new())).unwrap();
///
/// let node_id = "node";
/// let request = SetupIptablesRequest::new(node_id.to_string());
///
/// let other_node_id = "node2";
/// let other_node_cluster_ip = Ipv4Inet::new(Ipv4Addr::from_str("10.0.1.1").unwrap(), 24).unwrap();
/// let other_node_external_ip = Ipv4Addr::from_str("22.22.22.22").unwrap();
/// let new_node_request = NodeRequest::new(
///     other_node_id.to_string(),
///     NodeIp::new(other_node_cluster_ip, other_node_external_ip),
/// );
/// let nodes_ips = vec![new_node_request];
///
/// setup_iptables(request).unwrap();
/// add_other_nodes(nodes_ips).unwrap();
/// ```
#[expect(clippy::needless_pass_by_value, reason = "the interface that callers know")]
pub fn setup_iptables(request: SetupIptablesRequest) -> Result<()> {
    Host::default().setup_iptables(&request)
}

/// Tells this node of others, many at a time; see [`new_node_in_cluster`]. Those that are known already are no fault.
///
/// ```
/// # let _machine = telaio_testkit::machine::become_one().unwrap();
/// # use telaio_pod_network::node::{SetupNodeRequest, setup_node};
/// use std::net::Ipv4Addr;
///
/// use cidr::Ipv4Inet;
/// use telaio_pod_network::Host;
/// use telaio_pod_network::node::{NodeIp, NodeRequest, add_other_nodes};
/// # let own = Ipv4Inet::new(Ipv4Addr::new(10, 0, 0, 1), 24).unwrap();
/// # setup_node(SetupNodeRequest::new("this", own, Vec::new())).unwrap();
///
/// let others = [2, 3].map(|number| {
///     let cluster_ip = Ipv4Inet::new(Ipv4Addr::new(10, 0, number, 1), 24).unwrap();
///     let external_ip = Ipv4Addr::new(192, 168, 77, number + 1);
///     NodeRequest::new(format!("node{number}"), NodeIp::new(cluster_ip, external_ip))
/// });
/// for _ in 0..2 {
///     add_other_nodes(others.to_vec()).unwrap();
/// }
/// assert_eq!(Host::default().other_nodes().unwrap().len(), 2);
/// ```
pub fn add_other_nodes(nodes: Vec<NodeRequest>) -> Result<()> {
    Host::default().add_other_nodes(nodes)
}

/// Tells this node of another that joins the cluster.
///
/// ```
/// # let _machine = telaio_testkit::machine::become_one().unwrap();
/// # use telaio_pod_network::node::{SetupNodeRequest, setup_node};
/// use std::net::Ipv4Addr;
/// use std::str::FromStr;
///
/// use cidr::Ipv4Inet;
/// use telaio_pod_network::node::{NodeIp, NodeRequest, new_node_in_cluster};
/// # let own = Ipv4Inet::new(Ipv4Addr::new(10, 0, 0, 1), 24).unwrap();
/// # setup_node(SetupNodeRequest::new("this", own, Vec::new())).unwrap();
///
/// let node_id = "node";
/// let node_cluster_ip = Ipv4Inet::new(Ipv4Addr::from_str("10.0.1.1").unwrap(), 24).unwrap();
/// let node_external_ip = Ipv4Addr::from_str("22.22.22.22").unwrap();
/// let new_node_request = NodeRequest::new(
///     node_id.to_string(),
///     NodeIp::new(node_cluster_ip, node_external_ip),
/// );
///
/// new_node_in_cluster(new_node_request).unwrap();
/// ```
pub fn new_node_in_cluster(node: NodeRequest) -> Result<()> {
    Host::default().add_other_nodes(vec![node])
}

/// Tells this node of another that leaves the cluster.
///
/// ```
/// # let _machine = telaio_testkit::machine::become_one().unwrap();
/// # use telaio_pod_network::node::{SetupNodeRequest, new_node_in_cluster, setup_node};
/// use std::net::Ipv4Addr;
/// use std::str::FromStr;
///
/// use cidr::Ipv4Inet;
/// use telaio_pod_network::node::{NodeIp, NodeRequest, delete_node_in_cluster};
/// # let own = Ipv4Inet::new(Ipv4Addr::new(10, 0, 0, 1), 24).unwrap();
/// # setup_node(SetupNodeRequest::new("this", own, Vec::new())).unwrap();
///
/// let node_id = "node";
/// let node_cluster_ip = Ipv4Inet::new(Ipv4Addr::from_str("10.0.1.1").unwrap(), 24).unwrap();
/// let node_external_ip = Ipv4Addr::from_str("22.22.22.22").unwrap();
/// let delete_node_request = NodeRequest::new(
///     node_id.to_string(),
///     NodeIp::new(node_cluster_ip, node_external_ip),
/// );
/// # new_node_in_cluster(delete_node_request.clone()).unwrap();
///
/// delete_node_in_cluster(delete_node_request).unwrap();
/// ```
pub fn delete_node_in_cluster(node: NodeRequest) -> Result<()> {
    Host::default().delete_node_in_cluster(node)
}

/// Removes a node: its instances, its bridge, its rules and the ways to others.
///
/// ```
/// # let _machine = telaio_testkit::machine::become_one().unwrap();
/// use telaio_pod_network::node::{CleanNodeRequest, clean_node};
///
/// let node_id = "node";
/// let request = CleanNodeRequest::new(node_id.to_string());
/// clean_node(request).unwrap();
/// ```
#[expect(clippy::needless_pass_by_value, reason = "the interface that callers know")]
pub fn clean_node(request: CleanNodeRequest) -> Result<()> {
    Host::default().clean_node(&request)
}

impl Host {
    /// See [`setup_node`].
    pub fn setup_node(&self, request: SetupNodeRequest) -> Result<SetupNodeResponse> {
        check(&request)?;
        let state = self.state()?;
        let _lock = state.lock_exclusive()?;
        let before: NodeRecord = state.node_record()?;
        let mut record = before.clone();
        let (node, named) = parts(request, false);
        if !named.is_empty() {
            refuse_second_carrier(&record, &node)?;
        }
        make_room(&state, &mut record, &node, false)?;
        record.put(node.clone());
        if !named.is_empty() {
            record.carry_as(&node.id);
        }
        record.peers.remove(&node.id);
        // Who is named now and who is known from before: of the two that cannot both be, the latter has gone.
        record
            .peers
            .retain(|_, known| !named.iter().any(|it| it.id != known.id && meet(it, known)));
        add_named(&state, &mut record, &named, before.nodes.get(&node.id) != Some(&node))?;
        let named: BTreeSet<&str> = named.iter().map(|it| it.id.as_str()).collect();
        let done = carry_out(&state, &before, &record, Some(&node.id), &named);
        done.map(|_| SetupNodeResponse { interface_name: names::bridge(&node.id) })
    }

    /// Sets a node up as the cluster's Node objects say: the others that are named are all there are. One that cannot be reached
    /// keeps nobody else from being reached; it is told. A node that was set up like this before under another ID goes when it
    /// has no instances.
    ///
    /// ```
    /// # let _machine = telaio_testkit::machine::become_one().unwrap();
    /// use cidr::Ipv4Inet;
    /// use telaio_pod_network::Host;
    /// use telaio_pod_network::node::{NodeIp, NodeRequest, SetupNodeRequest};
    ///
    /// let other = |name: &str, ip: &str| {
    ///     NodeRequest::new(name, NodeIp::new(ip.parse::<Ipv4Inet>().unwrap(), [192, 168, 77, 9]))
    /// };
    /// let others = vec![other("b", "10.0.1.1/24"), other("c", "10.0.1.1/24")];
    /// let own: Ipv4Inet = "10.0.0.1/24".parse().unwrap();
    /// let problems = Host::default().follow_cluster(SetupNodeRequest::new("a", own, others)).unwrap();
    /// assert_eq!(problems.len(), 1);
    /// assert!(problems[0].to_string().contains("overlaps 10.0.1.0/24 of node b"));
    /// ```
    pub fn follow_cluster(&self, request: SetupNodeRequest) -> Result<Vec<PeerProblem>> {
        check(&request)?;
        let state = self.state()?;
        let _lock = state.lock_exclusive()?;
        let before: NodeRecord = match state.node_record() {
            // Whoever calls knows all that should stand there.
            Err(Error::Record { .. }) => {
                state.put_node_record_aside()?;
                NodeRecord::default()
            }
            before => before?,
        };
        let mut record = before.clone();
        let (node, others) = parts(request, true);
        if record.carrier().is_some_and(|carrier| !carrier.follows) && !others.is_empty() {
            refuse_second_carrier(&record, &node)?;
        }
        make_room(&state, &mut record, &node, true)?;
        record.put(node.clone());
        record.carry_as(&node.id);
        record.peers.clear();
        let others = others.into_iter().filter(|it| !record.nodes.contains_key(&it.id)).collect();
        let in_use = networks::in_use(&state)?;
        let mut problems = overlay::sort_out(&mut record, others, &before.peers, &in_use);
        let done = carry_out(&state, &before, &record, Some(&node.id), &BTreeSet::new())?;
        problems.extend(done.problems);
        Ok(problems)
    }

    /// See [`setup_iptables`].
    pub fn setup_iptables(&self, request: &SetupIptablesRequest) -> Result<()> {
        let state = self.state()?;
        let _lock = state.lock_exclusive()?;
        let record: NodeRecord = state.node_record()?;
        let node = record.nodes.get(&request.node_id).ok_or_else(|| Error::Unknown {
            kind: "node",
            name: request.node_id.clone(),
            hint: "call setup_node first",
        })?;
        networks::make(&state, &network_of(node)?)?;
        if record.peers.is_empty() {
            return Ok(());
        }
        // Those that are not reached were told when they were added; they are told again by a repair.
        ways(&state, &record).map(drop)
    }

    /// See [`add_other_nodes`](fn@add_other_nodes).
    pub fn add_other_nodes(&self, nodes: Vec<NodeRequest>) -> Result<()> {
        let state = self.state()?;
        let _lock = state.lock_exclusive()?;
        let before: NodeRecord = state.node_record()?;
        let mut record = before.clone();
        let named = nodes.into_iter().map(NodeRequest::peer);
        let named: Vec<Peer> = named.filter(|it| !record.nodes.contains_key(&it.id)).collect();
        add_named(&state, &mut record, &named, false)?;
        let is_other = |peer: &&Peer| before.peers.get(&peer.id).is_some_and(|old| old != *peer);
        let named_ids: BTreeSet<&str> = named.iter().map(|it| it.id.as_str()).collect();
        if named.iter().any(|peer| is_other(&peer)) {
            // What they had before has to go.
            return carry_out(&state, &before, &record, None, &named_ids).map(drop);
        }
        if record != before {
            state.save_node_record(&record)?;
        }
        let done = add_ways(&state, &record, &named);
        if done.is_err() && record != before {
            take_back(&state, &before, &record, None);
        }
        done
    }

    /// See [`delete_node_in_cluster`].
    #[expect(clippy::needless_pass_by_value, reason = "the interface that callers know")]
    pub fn delete_node_in_cluster(&self, node: NodeRequest) -> Result<()> {
        let state = self.state()?;
        let _lock = state.lock_exclusive()?;
        let mut record: NodeRecord = state.node_record()?;
        let known = record.peers.remove(&node.node_id);
        // Whatever leads to nobody who is known goes, so it does not matter what the node is said to have.
        match ways(&state, &record) {
            // Without an uplink there is no way to it either.
            Ok(_) | Err(Error::NoUplink { .. }) => {}
            Err(error) => return Err(error),
        }
        if known.is_some() {
            state.save_node_record(&record)?;
            networks::write_rules(&state, &state.networks()?)?;
        }
        Ok(())
    }

    /// See [`clean_node`].
    pub fn clean_node(&self, request: &CleanNodeRequest) -> Result<()> {
        let state = self.state()?;
        let _lock = state.lock_exclusive()?;
        // Whoever was to set it up may have been killed before there was a record of it.
        state.remove_unfinished()?;
        let mut record: NodeRecord = state.node_record()?;
        let is_carrier = record.carrier().is_some_and(|carrier| carrier.id == request.node_id);
        if record.take(&request.node_id).is_some() {
            remove(&state, &request.node_id, is_carrier)?;
            state.save_node_record(&record)?;
            return Ok(());
        }
        networks::remove(&state, &request.node_id)
    }
}

fn check(request: &SetupNodeRequest) -> Result<()> {
    let invalid = |field, why: String| Err(Error::Invalid { field, why });
    if request.node_id.is_empty() {
        return invalid("node_id", "a node needs an ID".to_owned());
    }
    for (at, one) in request.node_ip_cidrs.iter().enumerate() {
        let before = &request.node_ip_cidrs[..at];
        if let Some(other) =
            before.iter().find(|it| networks::overlaps(&it.network(), &one.network()))
        {
            let why = format!("{one} and {other} overlap; a node's networks are apart");
            return invalid("node_ip_cidr", why);
        }
    }
    for inet in &request.node_ip_cidrs {
        let length_max = if inet.is_ipv4() { 30 } else { 126 };
        if inet.network_length() > length_max || inet.address() == inet.first_address() {
            return invalid(
                "node_ip_cidr",
                format!("{inet} is no address of a node; use one like 10.0.0.1/24"),
            );
        }
    }
    Ok(())
}

/// The network of a node.
pub(crate) fn network_of(node: &LocalNode) -> Result<Network> {
    let subnets = node
        .cidrs
        .iter()
        .map(|inet| Subnet { cidr: inet.network(), gateway: Some(inet.address()) })
        .collect();
    Ok(Network {
        name: node.id.clone(),
        group: 0,
        bridge: names::bridge(&node.id),
        bridge_mac: String::new(),
        subnets,
        mode: Mode::Routed,
        mtu: Some(node.mtu()?),
        masquerade: Some(Masquerade { except: node.masquerade_except.clone() }),
        vlan: None,
        hairpin: false,
        promiscuous: false,
        is_adopted: false,
        is_made: false,
        reaches: Vec::new(),
        joined: Vec::new(),
    })
}
