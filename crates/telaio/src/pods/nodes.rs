//! What the cluster's Node objects mean for the network of this one: its own ranges, and the ways to the others.
//!
//! A node is known by its `podCIDRs` and its addresses. What flannel writes into a node's annotations is read, and written for
//! this one, too: so nodes with flannel and nodes with us can be in one cluster while it moves over.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use cidr::IpInet;
use ipnet::IpNet;
use serde::Deserialize;
use telaio_model::Node;
use telaio_pod_network::node::{NodeIp, NodeRequest, SetupNodeRequest};
use telaio_pod_network::overlay::{Backend, vtep_mac};

/// What flannel's annotations begin with.
const FLANNEL: &str = "flannel.alpha.coreos.com/";

/// What is to be set up, as far as people decide it.
#[derive(Debug, Clone, Default)]
pub(crate) struct NodeSettings {
    /// The ranges of this node's instances, where its Node object names none.
    pub(crate) pod_cidrs: Vec<IpNet>,
    /// How other nodes are reached.
    pub(crate) backend: Backend,
    /// The address that other nodes know this one by; learned from the default route without.
    pub(crate) tunnel_address: Option<IpAddr>,
}

/// What should be set up, from the Node objects; `None` while this node has no ranges.
pub(crate) fn wanted(
    own: &Arc<str>,
    nodes: &BTreeMap<Arc<str>, Arc<Node>>,
    settings: &NodeSettings,
) -> Option<SetupNodeRequest> {
    let node = nodes.get(own);
    let ranges = node.map_or(&[] as &[_], |node| node.pod_cidrs.as_slice());
    let ranges = if ranges.is_empty() { settings.pod_cidrs.as_slice() } else { ranges };
    let mut own_addresses = first_of_each_family(ranges.iter().filter_map(gateway)).into_iter();
    let others = nodes.values().filter(|other| other.meta.key.name != *own);
    let peers = others.filter_map(|other| peer(other, settings.backend)).collect();
    let mut request = SetupNodeRequest::new(own.to_string(), own_addresses.next()?, peers);
    for address in own_addresses {
        request = request.with_node_ip(address);
    }
    request = request.with_backend(settings.backend);
    Some(match settings.tunnel_address {
        Some(address) => request.with_tunnel_address(address),
        None => request,
    })
}

/// What this node's object should say, so that nodes with flannel reach it at this address.
///
/// With vxlan flannel has a tunnel for each family, each over addresses of that family; ours is one, so only pods of the
/// tunnel's family are reached from there.
pub(crate) fn announcement(
    wanted: &SetupNodeRequest,
    node: Option<&Node>,
    tunnel: IpAddr,
) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let mut put = |name: &str, value: String| _ = found.insert(format!("{FLANNEL}{name}"), value);
    put("kube-subnet-manager", "true".to_owned());
    let public = |ip: IpAddr| if ip.is_ipv4() { "public-ip" } else { "public-ipv6" };
    put(public(tunnel), tunnel.to_string());
    match wanted.backend {
        Backend::Vxlan { vni, .. } => {
            put("backend-type", "vxlan".to_owned());
            let mac = vtep_mac(&wanted.node_ip_cidrs);
            let data = format!(r#"{{"VNI":{vni},"VtepMAC":"{mac}"}}"#);
            put(if tunnel.is_ipv4() { "backend-data" } else { "backend-v6-data" }, data);
        }
        Backend::HostGw => {
            put("backend-type", "host-gw".to_owned());
            put("backend-data", "null".to_owned());
            let other = node.map(addresses).unwrap_or_default();
            if let Some(ip) = other.into_iter().find(|ip| ip.is_ipv4() != tunnel.is_ipv4()) {
                put(public(ip), ip.to_string());
            }
        }
    }
    found
}

/// Whether a node's object says what it should.
pub(crate) fn is_announced(node: &Node, wanted: &BTreeMap<String, String>) -> bool {
    let says = |name: &String| node.meta.annotations.get(name.as_str()).map(|value| &**value);
    wanted.iter().all(|(name, value)| says(name) == Some(value.as_str()))
}

/// Another node; `None` if it has no ranges, or no address to be reached at.
fn peer(node: &Node, backend: Backend) -> Option<NodeRequest> {
    let cidrs = first_of_each_family(node.pod_cidrs.iter().filter_map(gateway));
    let flannel = Flannel::of(node, backend);
    let mut external = flannel.public;
    for ip in addresses(node) {
        if !external.iter().any(|other| other.is_ipv4() == ip.is_ipv4()) {
            external.push(ip);
        }
    }
    let (first, further) = cidrs.split_first()?;
    let (address, more) = external.split_first()?;
    let mut ip = NodeIp::new(*first, *address);
    for cidr in further {
        ip = ip.with_cluster_ip(*cidr);
    }
    for address in more {
        ip = ip.with_external_ip(*address);
    }
    let request = NodeRequest::new(node.meta.key.name.to_string(), ip);
    Some(match flannel.vtep_mac {
        Some(mac) => request.with_vtep_mac(mac),
        None => request,
    })
}

/// The address of a node in its own range: the first that can be anybody's.
fn gateway(net: &IpNet) -> Option<IpInet> {
    // The first address of all is the network's own, and with IPv6 the routers'.
    let ip = net.hosts().nth(usize::from(matches!(net, IpNet::V6(_))))?;
    // A range of one address has no room for a node and an instance.
    (net.prefix_len() < net.max_prefix_len() - 1).then(|| IpInet::new(ip, net.prefix_len()).ok())?
}

fn first_of_each_family(inets: impl Iterator<Item = IpInet>) -> Vec<IpInet> {
    let mut found: Vec<IpInet> = Vec::new();
    for inet in inets {
        if !found.iter().any(|other| other.is_ipv4() == inet.is_ipv4()) {
            found.push(inet);
        }
    }
    found
}

/// The addresses at which a node is reached: the internal ones, of each family the first.
fn addresses(node: &Node) -> Vec<IpAddr> {
    let of_type = |kind: &'static str| {
        node.addresses.iter().filter(move |it| &*it.address_type == kind).map(|it| it.ip)
    };
    let mut found: Vec<IpAddr> = Vec::new();
    for ip in of_type("InternalIP").chain(of_type("ExternalIP")) {
        if !found.iter().any(|other| other.is_ipv4() == ip.is_ipv4()) {
            found.push(ip);
        }
    }
    found
}

/// What flannel has written about a node.
#[derive(Debug, Default)]
struct Flannel {
    public: Vec<IpAddr>,
    vtep_mac: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct BackendData {
    #[serde(rename = "VtepMAC")]
    vtep_mac: String,
}

impl Flannel {
    fn of(node: &Node, backend: Backend) -> Self {
        let get = |name: &str| node.meta.annotations.get(&format!("{FLANNEL}{name}"));
        let public = ["public-ip", "public-ipv6"];
        let public = public.iter().filter_map(|name| get(name)?.parse().ok()).collect();
        let is_vxlan = get("backend-type").is_some_and(|kind| &**kind == "vxlan");
        let data = ["backend-data", "backend-v6-data"].iter().find_map(|name| {
            let data: BackendData = serde_json::from_str(get(name)?).ok()?;
            (!data.vtep_mac.is_empty()).then_some(data.vtep_mac)
        });
        let vtep_mac = data.filter(|_| is_vxlan && matches!(backend, Backend::Vxlan { .. }));
        Self { public, vtep_mac }
    }
}

#[cfg(test)]
mod tests {
    use telaio_model::{Labels, Meta, NodeAddress, ObjectKey};

    use super::*;

    fn node(name: &str, cidrs: &[&str], ips: &[&str]) -> (Arc<str>, Arc<Node>) {
        let addresses = ips
            .iter()
            .map(|ip| NodeAddress { address_type: "InternalIP".into(), ip: ip.parse().unwrap() });
        let node = Node {
            meta: Meta::named(ObjectKey::cluster(name)),
            addresses: addresses.collect(),
            pod_cidrs: cidrs.iter().map(|cidr| cidr.parse().unwrap()).collect(),
            taints: vec![],
            deleting: false,
        };
        (name.into(), Arc::new(node))
    }

    #[test]
    fn a_nodes_own_address_is_the_first_of_its_range() {
        let nodes = BTreeMap::from([
            node("a", &["10.244.1.0/24", "fd00:1::/64"], &["192.168.0.1"]),
            node("b", &["10.244.2.0/24"], &["192.168.0.2", "fd00::2"]),
            node("without-ranges", &[], &["192.168.0.3"]),
            node("without-addresses", &["10.244.4.0/24"], &[]),
        ]);
        let request = wanted(&"a".into(), &nodes, &NodeSettings::default()).unwrap();
        let own: Vec<String> = request.node_ip_cidrs.iter().map(ToString::to_string).collect();
        assert_eq!(own, ["10.244.1.1/24", "fd00:1::1/64"]);
        let [peer] = request.nodes_ips.as_slice() else { panic!("{:?}", request.nodes_ips) };
        assert_eq!(peer.node_id, "b");
        assert_eq!(peer.node_ip.cluster_ip_cidrs[0].to_string(), "10.244.2.1/24");
        assert_eq!(peer.node_ip.external_ips.len(), 2);
    }

    #[test]
    fn without_ranges_of_its_own_a_node_has_those_of_its_settings() {
        let nodes = BTreeMap::from([node("a", &[], &["192.168.0.1"])]);
        let none = NodeSettings::default();
        assert_eq!(wanted(&"a".into(), &nodes, &none), None);
        let settings = NodeSettings { pod_cidrs: vec!["10.9.0.0/24".parse().unwrap()], ..none };
        for nodes in [nodes, BTreeMap::new()] {
            let request = wanted(&"a".into(), &nodes, &settings).unwrap();
            assert_eq!(request.node_ip_cidrs[0].to_string(), "10.9.0.1/24");
        }
    }

    #[test]
    fn what_a_node_says_of_itself_is_what_another_understands() {
        let (_, object) = node("a", &["10.244.1.0/24"], &["192.168.0.1", "fd00::1"]);
        for (backend, kind) in [(Backend::default(), "vxlan"), (Backend::HostGw, "host-gw")] {
            let nodes = BTreeMap::from([("a".into(), Arc::clone(&object))]);
            let settings = NodeSettings { backend, ..NodeSettings::default() };
            let own = wanted(&"a".into(), &nodes, &settings).unwrap();
            let tunnel = "203.0.113.1".parse().unwrap();
            let says = announcement(&own, Some(&object), tunnel);
            assert_eq!(says[&format!("{FLANNEL}backend-type")], kind);
            assert_eq!(says[&format!("{FLANNEL}public-ip")], "203.0.113.1");
            assert!(!is_announced(&object, &says));
            let mut annotated = (*object).clone();
            annotated.meta.annotations = says
                .iter()
                .map(|(name, value)| (name.as_str().into(), value.as_str().into()))
                .collect();
            assert!(is_announced(&annotated, &says));
            let seen = peer(&annotated, backend).unwrap();
            assert_eq!(seen.node_ip.external_ips, [tunnel, "fd00::1".parse::<IpAddr>().unwrap()]);
            let mac = vtep_mac(&own.node_ip_cidrs).to_string();
            assert_eq!(seen.vtep_mac, (kind == "vxlan").then_some(mac));
        }
    }

    #[test]
    fn what_flannel_says_of_a_node_counts() {
        let (name, flannel) = node("b", &["10.244.2.0/24"], &["192.168.0.2"]);
        let mut flannel = (*flannel).clone();
        flannel.meta.annotations = [
            ("backend-type", "vxlan"),
            ("backend-data", r#"{"VNI":1,"VtepMAC":"aa:bb:cc:dd:ee:01"}"#),
            ("public-ip", "203.0.113.2"),
        ]
        .into_iter()
        .map(|(name, value)| (format!("{FLANNEL}{name}").into(), value.into()))
        .collect::<Labels>();
        let nodes = BTreeMap::from([
            node("a", &["10.244.1.0/24"], &["192.168.0.1"]),
            (name, Arc::new(flannel)),
        ]);
        let request = wanted(&"a".into(), &nodes, &NodeSettings::default()).unwrap();
        let peer = &request.nodes_ips[0];
        assert_eq!(peer.vtep_mac.as_deref(), Some("aa:bb:cc:dd:ee:01"));
        assert_eq!(peer.node_ip.external_ips, ["203.0.113.2".parse::<IpAddr>().unwrap()]);
        let by_route = NodeSettings { backend: Backend::HostGw, ..NodeSettings::default() };
        assert_eq!(wanted(&"a".into(), &nodes, &by_route).unwrap().nodes_ips[0].vtep_mac, None);
    }
}
