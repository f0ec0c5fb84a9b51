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
    /// Destinations beside the cluster's that see instances' own addresses.
    pub(crate) masquerade_except: Vec<IpNet>,
}

/// What should be set up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Wanted {
    /// This node, and the others that can be reached.
    pub(crate) request: SetupNodeRequest,
    /// What is wrong with some objects, and what to do.
    pub(crate) problems: Vec<String>,
}

/// What should be set up, from the Node objects; `None` while this node has no ranges. `is_ipv4` is the family of the addresses
/// by which this node reaches others.
pub(crate) fn wanted(
    own: &Arc<str>,
    nodes: &BTreeMap<Arc<str>, Arc<Node>>,
    settings: &NodeSettings,
    is_ipv4: bool,
) -> Option<Wanted> {
    let node = nodes.get(own);
    let ranges = node.map_or(&[] as &[_], |node| node.pod_cidrs.as_slice());
    let ranges = if ranges.is_empty() { settings.pod_cidrs.as_slice() } else { ranges };
    let mut problems = Vec::new();
    let mut own_addresses = own_ranges(own, ranges, &mut problems).into_iter();
    let first = own_addresses.next()?;
    let others = nodes.values().filter(|other| other.meta.key.name != *own);
    let peers = others.filter_map(|other| peer(other, settings.backend, is_ipv4, &mut problems));
    let mut request = SetupNodeRequest::new(own.to_string(), first, peers.collect());
    for address in own_addresses {
        request = request.with_node_ip(address);
    }
    request = request.with_backend(settings.backend);
    if let Some(address) = settings.tunnel_address {
        request = request.with_tunnel_address(address);
    }
    let network = |net: &IpNet| Some(IpInet::new(net.addr(), net.prefix_len()).ok()?.network());
    request.masquerade_except = settings.masquerade_except.iter().filter_map(network).collect();
    Some(Wanted { request, problems })
}

/// The node's own address in each of its ranges, those of one family after each other: instances get their addresses out of the first
/// that has one left.
fn own_ranges(own: &str, ranges: &[IpNet], problems: &mut Vec<String>) -> Vec<IpInet> {
    let mut found: Vec<IpInet> = Vec::new();
    for range in ranges {
        let Some(inet) = gateway(range) else {
            problems.push(no_room(own, range));
            continue;
        };
        let network = inet.network();
        let meets = |it: &&IpInet| {
            it.network().contains(&network.first_address())
                || network.contains(&it.network().first_address())
        };
        match found.iter().find(meets) {
            Some(first) => problems.push(format!(
                "node {own}: podCIDR {range} is not used, for it overlaps {}; give it one that does not",
                first.network()
            )),
            None => found.push(inet),
        }
    }
    let is_first_ipv4 = found.first().is_some_and(IpInet::is_ipv4);
    found.sort_by_key(|inet| inet.is_ipv4() != is_first_ipv4);
    found
}

fn no_room(node: &str, range: &IpNet) -> String {
    format!(
        "node {node}: podCIDR {range} has no room for a node and an instance; give it a larger one"
    )
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
        // It is told under its name; what flannel needs beside is known of these two.
        other => {
            put("backend-type", other.name().to_owned());
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

/// Another node; `None` if it has no ranges, or cannot be reached.
fn peer(
    node: &Node,
    backend: Backend,
    is_ipv4: bool,
    problems: &mut Vec<String>,
) -> Option<NodeRequest> {
    let name = &*node.meta.key.name;
    let mut cidrs = Vec::new();
    for range in &node.pod_cidrs {
        match gateway(range) {
            Some(inet) => cidrs.push(inet),
            None => problems.push(no_room(name, range)),
        }
    }
    let (first, further) = cidrs.split_first()?;
    let flannel = match Flannel::of(node, backend, is_ipv4, problems) {
        Ok(flannel) => flannel,
        Err(problem) => {
            problems.push(problem);
            return None;
        }
    };
    let mut external = flannel.public;
    for ip in addresses(node) {
        if !external.iter().any(|other| other.is_ipv4() == ip.is_ipv4()) {
            external.push(ip);
        }
    }
    let Some((address, more)) = external.split_first() else {
        problems.push(format!(
            "node {name} is not reached: status.addresses has no address of it, InternalIP or ExternalIP"
        ));
        return None;
    };
    let mut ip = NodeIp::new(*first, *address);
    for cidr in further {
        ip = ip.with_cluster_ip(*cidr);
    }
    for address in more {
        ip = ip.with_external_ip(*address);
    }
    let request = NodeRequest::new(name, ip);
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
struct BackendData {
    #[serde(rename = "VNI")]
    vni: Option<u32>,
    #[serde(rename = "VtepMAC")]
    vtep_mac: String,
}

impl Flannel {
    /// What counts for this backend. `is_ipv4` is the family of our tunnel: flannel has a link for each.
    fn of(
        node: &Node,
        backend: Backend,
        is_ipv4: bool,
        problems: &mut Vec<String>,
    ) -> Result<Self, String> {
        let name = &*node.meta.key.name;
        let get = |name: &str| node.meta.annotations.get(&format!("{FLANNEL}{name}"));
        let public = ["public-ip", "public-ipv6"];
        let public = public.iter().filter_map(|name| get(name)?.parse().ok()).collect();
        let ours = backend.name();
        let kind = get("backend-type").map(|kind| &**kind);
        if let Some(theirs) = kind.filter(|theirs| *theirs != ours) {
            problems.push(format!(
                "node {name}: {FLANNEL}backend-type is {theirs}, and this node has {ours}; its pods may not be reached"
            ));
        }
        let Backend::Vxlan { vni, .. } = backend else {
            return Ok(Self { public, vtep_mac: None });
        };
        if kind != Some("vxlan") {
            return Ok(Self { public, vtep_mac: None });
        }
        let mut fields = ["backend-data", "backend-v6-data"];
        if !is_ipv4 {
            fields.reverse();
        }
        for field in fields {
            let Some(text) = get(field) else { continue };
            let data: Option<BackendData> = serde_json::from_str(text).map_err(|error| {
                format!(
                    "node {name} is not reached: {FLANNEL}{field} makes no sense ({error}); have its agent write it anew"
                )
            })?;
            let Some(data) = data.filter(|data| !data.vtep_mac.is_empty()) else { continue };
            if let Some(theirs) = data.vni.filter(|theirs| *theirs != vni) {
                problems.push(format!(
                    "node {name}: {FLANNEL}{field} has VNI {theirs}, and this node {vni}; they do not hear each other until both have the same"
                ));
            }
            return Ok(Self { public, vtep_mac: Some(data.vtep_mac) });
        }
        Ok(Self { public, vtep_mac: None })
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
        let request = wanted(&"a".into(), &nodes, &NodeSettings::default(), true).unwrap().request;
        let own: Vec<String> = request.node_ip_cidrs.iter().map(ToString::to_string).collect();
        assert_eq!(own, ["10.244.1.1/24", "fd00:1::1/64"]);
        let [peer] = request.nodes_ips.as_slice() else { panic!("{:?}", request.nodes_ips) };
        assert_eq!(peer.node_id, "b");
        assert_eq!(peer.node_ip.cluster_ip_cidrs[0].to_string(), "10.244.2.1/24");
        assert_eq!(peer.node_ip.external_ips.len(), 2);
    }

    #[test]
    fn a_node_has_all_its_ranges_those_of_one_family_together() {
        let cidrs = ["10.244.1.0/28", "fd00:1::/64", "10.244.7.0/24", "fd00:7::/64"];
        let nodes = BTreeMap::from([node("a", &cidrs, &["192.168.0.1"])]);
        let wanted = wanted(&"a".into(), &nodes, &NodeSettings::default(), true).unwrap();
        let own: Vec<_> = wanted.request.node_ip_cidrs.iter().map(ToString::to_string).collect();
        assert_eq!(own, ["10.244.1.1/28", "10.244.7.1/24", "fd00:1::1/64", "fd00:7::1/64"]);
        assert!(wanted.problems.is_empty(), "{:?}", wanted.problems);
    }

    #[test]
    fn without_ranges_of_its_own_a_node_has_those_of_its_settings() {
        let nodes = BTreeMap::from([node("a", &[], &["192.168.0.1"])]);
        let none = NodeSettings::default();
        assert_eq!(wanted(&"a".into(), &nodes, &none, true), None);
        let settings = NodeSettings { pod_cidrs: vec!["10.9.0.0/24".parse().unwrap()], ..none };
        for nodes in [nodes, BTreeMap::new()] {
            let request = wanted(&"a".into(), &nodes, &settings, true).unwrap().request;
            assert_eq!(request.node_ip_cidrs[0].to_string(), "10.9.0.1/24");
        }
    }

    #[test]
    fn what_a_node_says_of_itself_is_what_another_understands() {
        let (_, object) = node("a", &["10.244.1.0/24"], &["192.168.0.1", "fd00::1"]);
        for (backend, kind) in [(Backend::default(), "vxlan"), (Backend::HostGw, "host-gw")] {
            let nodes = BTreeMap::from([("a".into(), Arc::clone(&object))]);
            let settings = NodeSettings { backend, ..NodeSettings::default() };
            let own = wanted(&"a".into(), &nodes, &settings, true).unwrap().request;
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
            let seen = peer(&annotated, backend, true, &mut Vec::new()).unwrap();
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
        let request = wanted(&"a".into(), &nodes, &NodeSettings::default(), true).unwrap().request;
        let peer = &request.nodes_ips[0];
        assert_eq!(peer.vtep_mac.as_deref(), Some("aa:bb:cc:dd:ee:01"));
        assert_eq!(peer.node_ip.external_ips, ["203.0.113.2".parse::<IpAddr>().unwrap()]);
        let by_route = NodeSettings { backend: Backend::HostGw, ..NodeSettings::default() };
        assert_eq!(
            wanted(&"a".into(), &nodes, &by_route, true).unwrap().request.nodes_ips[0].vtep_mac,
            None
        );
    }

    fn with(node: (Arc<str>, Arc<Node>), annotations: &[(&str, &str)]) -> (Arc<str>, Arc<Node>) {
        let mut changed = (*node.1).clone();
        let named = annotations
            .iter()
            .map(|(name, value)| (format!("{FLANNEL}{name}").into(), (*value).into()));
        changed.meta.annotations = named.collect::<Labels>();
        (node.0, Arc::new(changed))
    }

    #[test]
    fn an_object_that_makes_no_sense_is_named_and_the_others_are_reached() {
        let vxlan = ("backend-type", "vxlan");
        let nodes = BTreeMap::from([
            node("a", &["10.244.1.0/24", "10.244.1.128/25"], &["192.168.0.1"]),
            node("good", &["10.244.2.0/24"], &["192.168.0.2"]),
            node("silent", &["10.244.3.0/24"], &[]),
            node("narrow", &["10.244.4.0/31"], &["192.168.0.4"]),
            with(
                node("garbled", &["10.244.5.0/24"], &["192.168.0.5"]),
                &[vxlan, ("backend-data", "{")],
            ),
            with(
                node("elsewhere", &["10.244.6.0/24"], &["192.168.0.6"]),
                &[vxlan, ("backend-data", r#"{"VNI":7,"VtepMAC":"02:00:00:00:00:06"}"#)],
            ),
            with(
                node("routed", &["10.244.7.0/24"], &["192.168.0.7"]),
                &[("backend-type", "host-gw"), ("backend-data", "null")],
            ),
        ]);
        let wanted = wanted(&"a".into(), &nodes, &NodeSettings::default(), true).unwrap();
        let peers: Vec<&str> =
            wanted.request.nodes_ips.iter().map(|it| it.node_id.as_str()).collect();
        assert_eq!(peers, ["elsewhere", "good", "routed"]);
        let problems = wanted.problems.join("\n");
        for (node, what) in [
            ("node a: podCIDR 10.244.1.128/25", "overlaps 10.244.1.0/24"),
            ("node silent", "status.addresses"),
            ("node narrow: podCIDR 10.244.4.0/31", "larger"),
            ("node garbled", "backend-data"),
            ("node elsewhere", "VNI 7"),
            ("node routed", "backend-type is host-gw"),
        ] {
            let is_it = |line: &&str| line.starts_with(node) && line.contains(what);
            assert!(problems.lines().any(|line| is_it(&line)), "{node} {what}: {problems}");
        }
    }

    #[test]
    fn flannels_link_of_the_tunnels_family_counts() {
        let data = |mac: &str| format!(r#"{{"VNI":1,"VtepMAC":"{mac}"}}"#);
        let (four, six) = (data("02:00:00:00:00:04"), data("02:00:00:00:00:06"));
        let nodes = BTreeMap::from([
            node("a", &["10.244.1.0/24"], &["192.168.0.1"]),
            with(
                node("b", &["10.244.2.0/24", "fd00:2::/64"], &["192.168.0.2", "fd00::2"]),
                &[("backend-type", "vxlan"), ("backend-data", &four), ("backend-v6-data", &six)],
            ),
        ]);
        for (is_ipv4, mac) in [(true, "02:00:00:00:00:04"), (false, "02:00:00:00:00:06")] {
            let wanted = wanted(&"a".into(), &nodes, &NodeSettings::default(), is_ipv4).unwrap();
            assert_eq!(wanted.request.nodes_ips[0].vtep_mac.as_deref(), Some(mac));
        }
    }
}
