//! Random clusters and packets from a small universe, so that whatever can meet does meet.
//!
//! Addresses are those of the testkit's clusters, so that real packets can be sent there too.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use ipnet::IpNet;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::{Index, select, subsequence};
use telaio_model::{
    AddressType, ClientIpAffinity, Conditions, Endpoint, EndpointPort, EndpointSlice, Hints,
    IpFamily, IpMode, Labels, LoadBalancerIngress, Meta, Node, NodeAddress, ObjectKey, Protocol,
    Service, ServiceCidr, ServicePort, ServiceType, TargetPort, TrafficDistribution, TrafficPolicy,
    endpoints::TriggerTime,
};
use telaio_service_proxy::config::{DetectLocal, NodePortAddresses, ProxyConfig};
use telaio_service_proxy::trace::Packet;

use crate::world::{NODE, World};

/// The services' names: the second comes last in order.
pub(crate) const NAMES: [(&str, &str); 4] = [("x", "a"), ("y", "b"), ("x", "c"), ("x", "d")];
const SERVICES_MAX: usize = NAMES.len();
/// How many slices there are.
pub(crate) const SLICES: usize = 2 * SERVICES_MAX + 2;
/// The first are more frequent.
const PORTS: [u16; 6] = [80, 80, 80, 443, 443, 30080];
const NODE_PORTS: [u16; 4] = [30080, 30080, 30081, 30082];
const TARGET_PORTS: [u16; 2] = [8080, 9090];
const PROTOCOLS: [Protocol; 6] =
    [Protocol::Tcp, Protocol::Tcp, Protocol::Tcp, Protocol::Udp, Protocol::Udp, Protocol::Sctp];
/// Source ranges, some within others, and those of every client.
const RANGES: [&str; 11] = [
    "203.0.113.0/24",
    "203.0.113.0/28",
    "203.0.113.5/32",
    "192.168.50.0/24",
    "10.244.1.0/24",
    "0.0.0.0/0",
    "2001:db8:113::/124",
    "2001:db8:113::/120",
    "fd00:50::/64",
    "fd00:10:244:1::/64",
    "::/0",
];

/// The n-th pod of a node.
pub(crate) fn pod(family: IpFamily, node: u8, n: u8) -> IpAddr {
    match family {
        IpFamily::V4 => Ipv4Addr::new(10, 244, node, 10 + n).into(),
        IpFamily::V6 => {
            Ipv6Addr::new(0xfd00, 0x10, 0x244, node.into(), 0, 0, 0, 0x10 + u16::from(n)).into()
        }
    }
}

/// A node's first address.
pub(crate) fn node_address(family: IpFamily, node: u8) -> IpAddr {
    match family {
        IpFamily::V4 => Ipv4Addr::new(192, 168, 50, 10 + node).into(),
        IpFamily::V6 => Ipv6Addr::new(0xfd00, 0x50, 0, 0, 0, 0, 0, 0x10 + u16::from(node)).into(),
    }
}

/// Our node's second address.
pub(crate) fn second_address(family: IpFamily) -> IpAddr {
    match family {
        IpFamily::V4 => Ipv4Addr::new(192, 168, 60, 1).into(),
        IpFamily::V6 => Ipv6Addr::new(0xfd00, 0x60, 0, 0, 0, 0, 0, 1).into(),
    }
}

/// The n-th cluster address.
pub(crate) fn cluster_ip(family: IpFamily, n: u8) -> IpAddr {
    match family {
        IpFamily::V4 => Ipv4Addr::new(10, 96, 0, n).into(),
        IpFamily::V6 => Ipv6Addr::new(0xfd00, 0x10, 0x96, 0, 0, 0, 0, n.into()).into(),
    }
}

/// The n-th address of load balancers.
pub(crate) fn load_balancer(family: IpFamily, n: u8) -> IpAddr {
    match family {
        IpFamily::V4 => Ipv4Addr::new(192, 0, 2, n).into(),
        IpFamily::V6 => Ipv6Addr::new(0x2001, 0xdb8, 2, 0, 0, 0, 0, n.into()).into(),
    }
}

/// The n-th client outside.
pub(crate) fn outside(family: IpFamily, n: u8) -> IpAddr {
    match family {
        IpFamily::V4 => Ipv4Addr::new(203, 0, 113, n).into(),
        IpFamily::V6 => Ipv6Addr::new(0x2001, 0xdb8, 0x113, 0, 0, 0, 0, n.into()).into(),
    }
}

fn loopback(family: IpFamily) -> IpAddr {
    match family {
        IpFamily::V4 => Ipv4Addr::LOCALHOST.into(),
        IpFamily::V6 => Ipv6Addr::LOCALHOST.into(),
    }
}

fn families() -> impl Strategy<Value = IpFamily> {
    select(&IpFamily::ALL[..])
}

/// Addresses that a service may have beside its cluster address: of its own, the node's, another
/// service's cluster address, one of a load balancer, one that nobody was given.
fn external_ips() -> impl Strategy<Value = IpAddr> {
    (families(), 0_u8..8).prop_map(|(family, which)| match which {
        0 | 1 => node_address(family, 1),
        2 => cluster_ip(family, 1),
        3 => cluster_ip(family, 2),
        4 => load_balancer(family, 1),
        5 => cluster_ip(family, 200),
        _ => load_balancer(family, 9),
    })
}

fn load_balancers() -> impl Strategy<Value = LoadBalancerIngress> {
    let mode = prop_oneof![4 => Just(IpMode::Vip), 1 => Just(IpMode::Proxy)];
    (families(), 1_u8..3, mode).prop_map(|(family, n, ip_mode)| LoadBalancerIngress {
        ip: load_balancer(family, n),
        ip_mode,
    })
}

fn policies() -> impl Strategy<Value = TrafficPolicy> {
    prop_oneof![2 => Just(TrafficPolicy::Cluster), 1 => Just(TrafficPolicy::Local)]
}

/// A service's ports; names are unique, numbers within a protocol too.
fn service_ports(with_node_ports: bool) -> impl Strategy<Value = Vec<ServicePort>> {
    let port = (select(&PORTS[..]), select(&PROTOCOLS[..]), select(&NODE_PORTS[..]), 0..5_u8);
    vec(port, 1..3).prop_map(move |ports| {
        let mut made: Vec<ServicePort> = Vec::new();
        for (port, protocol, node_port, no_node_port) in ports {
            let node_port = (with_node_ports && no_node_port != 0).then_some(node_port);
            let taken = made.iter().any(|other| {
                other.protocol == protocol
                    && (other.port == port || (node_port.is_some() && other.node_port == node_port))
            });
            if !taken {
                let name = format!("p{}", made.len()).into();
                let target_port = TargetPort::Number(TARGET_PORTS[0]);
                let app_protocol = None;
                made.push(ServicePort {
                    name,
                    protocol,
                    app_protocol,
                    port,
                    node_port,
                    target_port,
                });
            }
        }
        made
    })
}

/// What surrounds a service's addresses and ports.
#[derive(Debug, Clone)]
struct Manner {
    label: Option<&'static str>,
    balance: Option<&'static str>,
    affinity: Option<u32>,
    distribution: Option<TrafficDistribution>,
    early: bool,
}

fn manners() -> impl Strategy<Value = Manner> {
    let label = prop_oneof![
        12 => Just(None),
        1 => Just(Some("service.kubernetes.io/service-proxy-name")),
        1 => Just(Some("service.kubernetes.io/headless")),
    ];
    let balance =
        select(&[None, None, Some("random"), Some("round-robin"), Some("source-hash")][..]);
    let distribution = select(
        &[
            None,
            Some(TrafficDistribution::PreferSameZone),
            Some(TrafficDistribution::PreferSameNode),
        ][..],
    );
    (label, balance, option::weighted(0.2, Just(60)), distribution, any::<bool>()).prop_map(
        |(label, balance, affinity, distribution, early)| Manner {
            label,
            balance,
            affinity,
            distribution,
            early,
        },
    )
}

fn types() -> impl Strategy<Value = ServiceType> {
    prop_oneof![
        3 => Just(ServiceType::ClusterIP),
        3 => Just(ServiceType::NodePort),
        6 => Just(ServiceType::LoadBalancer),
        1 => Just(ServiceType::ExternalName),
    ]
}

/// The n-th service.
fn services(n: u8) -> BoxedStrategy<Service> {
    let services = types().prop_flat_map(move |service_type| {
        let outward = matches!(service_type, ServiceType::NodePort | ServiceType::LoadBalancer);
        let balanced = service_type == ServiceType::LoadBalancer;
        let ingress = vec(load_balancers(), if balanced { 0..3 } else { 0..1 });
        let ranges = subsequence(&RANGES[..], 0..4);
        let stack = prop_oneof![
            3 => Just(IpFamily::ALL.to_vec()),
            1 => Just(vec![IpFamily::V4]),
            1 => Just(vec![IpFamily::V6]),
            // Headless.
            1 => Just(vec![]),
        ];
        (
            (stack, option::weighted(0.3, external_ips()), ingress, ranges),
            (service_ports(outward), policies(), policies(), manners()),
        )
            .prop_map(
                move |((stack, external, ingress, ranges), (ports, etp, itp, manner))| {
                    let (namespace, name) = NAMES[usize::from(n)];
                    let mut meta = Meta::named(ObjectKey::new(namespace, name));
                    meta.labels.extend(manner.label.map(|label| (label.into(), "".into())));
                    let balance = manner.balance.map(|it| ("telaio.dev/balance".into(), it.into()));
                    meta.annotations.extend(balance);
                    Service {
                        meta,
                        service_type,
                        headless: stack.is_empty() && service_type != ServiceType::ExternalName,
                        cluster_ips: stack
                            .iter()
                            .map(|family| cluster_ip(*family, n + 1))
                            .collect(),
                        external_ips: external.into_iter().collect(),
                        load_balancer: ingress,
                        source_ranges: ranges.iter().map(|range| range.parse().unwrap()).collect(),
                        ports,
                        selector: Labels::default(),
                        external_traffic_policy: if outward { etp } else { TrafficPolicy::Cluster },
                        internal_traffic_policy: itp,
                        session_affinity: manner
                            .affinity
                            .map(|timeout_s| ClientIpAffinity { timeout_s }),
                        health_check_node_port: None,
                        traffic_distribution: manner.distribution,
                        publish_not_ready_addresses: manner.early,
                        external_name: (service_type == ServiceType::ExternalName)
                            .then(|| "elsewhere.example".into()),
                    }
                },
            )
    });
    // Boxed, like others: nested strategies are values too large for a stack.
    services.boxed()
}

fn conditions() -> impl Strategy<Value = Conditions> {
    let made = |ready, serving, terminating| Conditions { ready, serving, terminating };
    prop_oneof![
        5 => Just(made(true, true, false)),
        1 => Just(made(false, false, false)),
        1 => Just(made(false, true, true)),
        1 => Just(made(false, false, true)),
        // Of a service that publishes what is not ready.
        1 => Just(made(true, true, true)),
        1 => Just(made(false, true, false)),
    ]
}

fn hints() -> impl Strategy<Value = Option<Box<Hints>>> {
    let named = |names: Vec<&str>| names.into_iter().map(Arc::from).collect();
    let zones = prop_oneof![1 => Just(vec![]), 3 => subsequence(vec!["zone-1", "zone-2"], 1..3)];
    let nodes = prop_oneof![2 => Just(vec![]), 1 => subsequence(vec![NODE, "node-b"], 1..3)];
    let hints = (zones, nodes)
        .prop_map(move |(zones, nodes)| Hints { zones: named(zones), nodes: named(nodes) });
    option::weighted(0.5, hints.prop_map(Box::new))
}

fn endpoints(family: IpFamily) -> impl Strategy<Value = Endpoint> {
    let weight = select(&[None, None, Some(1), Some(2), Some(5)][..]);
    (0_u8..4, 1_u8..4, conditions(), hints(), weight, 0..10_u8).prop_map(
        move |(node, n, conditions, hints, weight, stray)| {
            // The last of each node's uses the node's own address.
            let address = match (node, n) {
                (1 | 2, 3) => node_address(family, node),
                _ => pod(family, node.max(1), n),
            };
            let runs_on = match node.max(1) {
                1 => NODE,
                2 => "node-b",
                _ => "node-c",
            };
            Endpoint {
                conditions,
                hints,
                weight,
                node: (stray != 0).then(|| runs_on.into()),
                zone: Some(if node < 2 { "zone-1" } else { "zone-2" }.into()),
                pod: (stray != 1).then(|| format!("pod-{}-{n}", node.max(1)).into()),
                ..Endpoint::at(address)
            }
        },
    )
}

fn endpoint_ports() -> impl Strategy<Value = Vec<EndpointPort>> {
    let number = prop_oneof![
        9 => select(&TARGET_PORTS[..]).prop_map(Some),
        1 => Just(None),
    ];
    let port = (number, option::weighted(0.2, select(&PROTOCOLS[..])));
    let count = prop_oneof![1 => Just(1), 4 => Just(2)];
    count.prop_flat_map(move |count| vec(port.clone(), count)).prop_map(|ports| {
        // Mostly of whatever protocol the service has.
        let made = |(i, (port, protocol)): (usize, (Option<u16>, Option<Protocol>))| EndpointPort {
            name: format!("p{i}").into(),
            protocol,
            port,
        };
        ports.into_iter().enumerate().map(made).collect()
    })
}

/// The n-th slice. Every service has one of each family; two more are anybody's. Of one address there
/// is one endpoint: what two that differ mean together, the contract does not say.
fn slices(n: usize) -> BoxedStrategy<EndpointSlice> {
    let whose = if n < 2 * SERVICES_MAX {
        let family = IpFamily::ALL[n / SERVICES_MAX];
        Just((n % SERVICES_MAX, family)).boxed()
    } else {
        (0..SERVICES_MAX, families()).boxed()
    };
    let slices = whose.prop_flat_map(move |(service, family)| {
        (vec(endpoints(family), 0..5), endpoint_ports()).prop_map(move |(endpoints, ports)| {
            let (namespace, name) = NAMES[service];
            let mut unique: Vec<Endpoint> = Vec::new();
            for endpoint in endpoints {
                if !unique.iter().any(|other| other.address == endpoint.address) {
                    unique.push(endpoint);
                }
            }
            EndpointSlice {
                key: ObjectKey::new(namespace, format!("slice-{n}")),
                service: Some(name.into()),
                address_type: match family {
                    IpFamily::V4 => AddressType::IPv4,
                    IpFamily::V6 => AddressType::IPv6,
                },
                endpoints: unique,
                ports,
                triggered: TriggerTime::default(),
            }
        })
    });
    slices.boxed()
}

/// Slices of one service do not say different things of one address.
pub(crate) fn without_contradictions(mut slices: Vec<EndpointSlice>) -> Vec<EndpointSlice> {
    let mut seen: Vec<(ObjectKey, Endpoint)> = Vec::new();
    for slice in &mut slices {
        let key = slice.service_key().unwrap();
        for endpoint in &mut slice.endpoints {
            let same = seen.iter().find(|(k, e)| *k == key && e.address == endpoint.address);
            match same {
                Some((_, first)) => *endpoint = first.clone(),
                None => seen.push((key.clone(), endpoint.clone())),
            }
        }
    }
    slices
}

fn detect_local() -> impl Strategy<Value = DetectLocal> {
    let net = |text: &str| text.parse::<IpNet>().unwrap();
    prop_oneof![
        1 => Just(DetectLocal::Nowhere),
        4 => Just(DetectLocal::ClusterCidr(vec![net("10.244.0.0/16"), net("fd00:10:244::/48")])),
        1 => Just(DetectLocal::ClusterCidr(vec![net("10.244.0.0/16")])),
        1 => Just(DetectLocal::ClusterCidr(vec![net("10.244.0.0/17"), net("10.244.2.0/24")])),
        1 => Just(DetectLocal::NodeCidr),
        1 => Just(DetectLocal::BridgeInterface("cni0".to_owned())),
        1 => Just(DetectLocal::InterfaceNamePrefix("veth".to_owned())),
    ]
}

fn node_port_addresses() -> impl Strategy<Value = NodePortAddresses> {
    let within = |texts: &[&str]| {
        NodePortAddresses::Within(texts.iter().map(|text| text.parse().unwrap()).collect())
    };
    prop_oneof![
        5 => Just(NodePortAddresses::All),
        1 => Just(NodePortAddresses::Primary),
        1 => Just(within(&["192.168.60.0/24", "fd00:60::/64"])),
        1 => Just(within(&["192.168.50.0/24"])),
        1 => Just(within(&["0.0.0.0/0", "fd00:50::/64"])),
        1 => Just(within(&["172.16.0.0/12"])),
    ]
}

fn configs() -> BoxedStrategy<ProxyConfig> {
    let networks = prop_oneof![
        2 => Just(vec![]),
        1 => Just(vec!["10.96.0.0/24".parse().unwrap()]),
    ];
    let served = prop_oneof![
        8 => Just(IpFamily::ALL.to_vec()),
        1 => Just(vec![IpFamily::V4]),
        1 => Just(vec![IpFamily::V6]),
    ];
    let masquerade_bit = prop_oneof![3 => Just(14), 1 => Just(0), 1 => Just(31)];
    (
        detect_local(),
        prop::bool::weighted(0.2),
        masquerade_bit,
        node_port_addresses(),
        prop::bool::weighted(0.7),
        networks,
        served,
    )
        .prop_map(|(detect_local, all, bit, addresses, localhost, service_cidrs, families)| {
            ProxyConfig {
                detect_local,
                masquerade_all: all,
                masquerade_bit: bit,
                node_port_addresses: addresses,
                localhost_node_ports: localhost,
                service_cidrs,
                families,
            }
        })
        .boxed()
}

/// Two nodes of the cluster, ours and another; the third has no object.
pub(crate) fn nodes(zone: Option<&str>) -> Vec<Node> {
    let node = |number: u8, name: &str, zone: Option<&str>| {
        let mut meta = Meta::named(ObjectKey::cluster(name));
        let zone = zone.map(|zone| ("topology.kubernetes.io/zone".into(), zone.into()));
        meta.labels.extend(zone);
        let mut ips: Vec<IpAddr> =
            IpFamily::ALL.iter().map(|family| node_address(*family, number)).collect();
        if number == 1 {
            ips.extend(IpFamily::ALL.iter().map(|family| second_address(*family)));
        }
        let address = |ip| NodeAddress { address_type: "InternalIP".into(), ip };
        let pod_cidrs = [format!("10.244.{number}.0/24"), format!("fd00:10:244:{number}::/64")];
        Node {
            meta,
            addresses: ips.into_iter().map(address).collect(),
            pod_cidrs: pod_cidrs.iter().map(|net| net.parse().unwrap()).collect(),
            taints: vec![],
            deleting: false,
        }
    };
    vec![node(1, NODE, zone), node(2, "node-b", Some("zone-2"))]
}

/// Ours in other conditions: without a zone, with fewer pod networks, another address first.
fn any_nodes() -> BoxedStrategy<Vec<Node>> {
    let zone = prop_oneof![4 => Just(Some("zone-1")), 1 => Just(None)];
    let pod_cidrs = prop_oneof![4 => Just(2), 1 => Just(1), 1 => Just(0)];
    let nodes = (zone, pod_cidrs, 0..4_u8).prop_map(|(zone, pod_cidrs, turn)| {
        let mut nodes = nodes(zone);
        nodes[0].pod_cidrs.truncate(pod_cidrs);
        if turn == 0 {
            nodes[0].addresses.reverse();
        }
        nodes
    });
    nodes.boxed()
}

/// Random clusters.
pub(crate) fn worlds() -> BoxedStrategy<World> {
    let services: Vec<_> = (0..4).map(services).collect();
    let services = (services, subsequence(vec![0, 1, 2, 3], 1..=4));
    let slices: Vec<_> = (0..SLICES).map(slices).collect();
    let worlds = (configs(), any_nodes(), services, slices, any::<bool>()).prop_map(
        |(config, nodes, (services, kept), slices, named)| {
            let networks = ServiceCidr {
                meta: Meta::named(ObjectKey::cluster("kubernetes")),
                cidrs: vec!["10.96.0.0/24".parse().unwrap(), "fd00:10:96::/112".parse().unwrap()],
            };
            World {
                config,
                nodes,
                services: kept.into_iter().map(|i: usize| services[i].clone()).collect(),
                slices: without_contradictions(slices),
                service_cidrs: named.then_some(networks).into_iter().collect(),
            }
        },
    );
    worlds.boxed()
}

/// Where packets come from: by which interface, where one is named.
fn sources(family: IpFamily) -> Vec<(IpAddr, Option<String>)> {
    let at = |ip: IpAddr, interface: &str| {
        (ip, Some(interface.to_owned()).filter(|name| !name.is_empty()))
    };
    vec![
        at(pod(family, 1, 1), "veth1"),
        at(pod(family, 1, 2), "cni0"),
        at(pod(family, 1, 9), ""),
        at(pod(family, 2, 1), "eth0"),
        at(pod(family, 2, 2), "eth0"),
        at(node_address(family, 1), ""),
        at(second_address(family), ""),
        at(node_address(family, 2), "eth0"),
        at(outside(family, 5), "eth1"),
        at(outside(family, 50), "eth1"),
        at(outside(family, 50), ""),
    ]
}

/// Where packets may go: to everything that can be a service's, and to its neighbours.
fn destinations() -> impl Strategy<Value = IpAddr> {
    families().prop_flat_map(|family| {
        let clusters = [1, 2, 3, 4, 5, 200].map(|n| cluster_ip(family, n));
        let balancers = [1, 2, 3, 9].map(|n| load_balancer(family, n));
        let nodes = [node_address(family, 1), node_address(family, 2), second_address(family)];
        prop_oneof![
            3 => select(clusters.to_vec()),
            3 => select(balancers.to_vec()),
            2 => select(nodes.to_vec()),
            1 => Just(pod(family, 1, 1)),
            1 => Just(loopback(family)),
        ]
    })
}

/// Something to be sent, before it is known what there is to aim at.
#[derive(Debug, Clone)]
pub(crate) struct Shot {
    source: Index,
    /// One of the services' places, or else wherever it goes.
    aim: Option<Index>,
    wild: (IpAddr, u16, Protocol),
}

impl Shot {
    /// The packet in this world.
    pub(crate) fn at(&self, world: &World) -> Packet {
        let places = world.places();
        let aim = self.aim.as_ref().filter(|_| !places.is_empty());
        let (to, protocol) = match aim {
            Some(aim) => *aim.get(&places),
            None => (SocketAddr::new(self.wild.0, self.wild.1), self.wild.2),
        };
        // Only the node itself can send to its loopback.
        let (from, interface) = if to.ip().is_loopback() {
            (to.ip(), None)
        } else {
            self.source.get(&sources(IpFamily::of(to.ip()))).clone()
        };
        Packet { from, to, protocol, interface }
    }
}

/// Things to be sent.
pub(crate) fn shots() -> BoxedStrategy<Shot> {
    let ports = select(vec![80, 80, 80, 443, 443, 30080, 30080, 30081, 30082, 8080]);
    let wild = (destinations(), ports, select(&PROTOCOLS[..]));
    let aim = option::weighted(0.75, any::<Index>());
    let shots = (any::<Index>(), aim, wild);
    shots.prop_map(|(source, aim, wild)| Shot { source, aim, wild }).boxed()
}
