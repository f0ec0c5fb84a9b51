//! Any value that can go over the wire, with every field that the wire has.
//!
//! What a message cannot say is left out on purpose: KPNG's address sets keep each family's order
//! but not the order between families, so IPv4 comes first here.
#![allow(dead_code, unreachable_pub, reason = "not every test uses every strategy")]

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use ipnet::IpNet;
use proptest::collection::{btree_map, vec};
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;
use telaio_api::global::{GlobalEndpoint, GlobalEndpointKey, GlobalOp};
use telaio_model::{
    AddedEndpoint, AuthSecret, ClientIpAffinity, Conditions, ConfigMap, ContainerPort, Endpoint,
    EndpointPort, EndpointRef, Families, Hints, Ingress, IngressBackend, IngressClass, IngressPath,
    IngressRule, IngressTls, IpMode, LabelSelector, Labels, LoadBalancerIngress, LocalEndpoint,
    LocalEndpointPort, LocalService, LocalServicePort, Meta, Namespace, NetworkPolicy, Node,
    NodeAddress, Object, ObjectKey, ObjectRef, Op, Override, OverrideAction, OverrideTarget,
    PathType, Pod, PodPhase, PolicyPeer, PolicyPort, PolicyPortMatch, PolicyRule, PortRef,
    Protocol, Scopes, SelectorOperator, SelectorRequirement, Service, ServiceCidr, ServicePort,
    ServiceType, Taint, TargetPort, TlsSecret, TrafficDistribution, TrafficPolicy,
};

/// The same cases in every run.
pub fn config(cases: u32) -> ProptestConfig {
    ProptestConfig {
        cases,
        failure_persistence: None,
        rng_seed: proptest::test_runner::RngSeed::Fixed(0x7e1a_1000),
        ..ProptestConfig::default()
    }
}

fn name() -> impl Strategy<Value = Arc<str>> {
    "[a-z0-9]([a-z0-9.-]{0,10}[a-z0-9])?".prop_map(Arc::from)
}

/// A text that is there.
fn text() -> impl Strategy<Value = Arc<str>> {
    prop_oneof![name(), "\\PC{1,8}".prop_map(Arc::from)]
}

fn port() -> impl Strategy<Value = u16> {
    prop_oneof![Just(1), Just(u16::MAX), 1..=u16::MAX]
}

/// Ports have names of their own; of two with one name the first would hide the second.
fn port_name() -> impl Strategy<Value = Arc<str>> {
    prop_oneof![1 => Just(Arc::from("")), 4 => name()]
}

fn v4() -> impl Strategy<Value = IpAddr> {
    any::<u32>().prop_map(|bits| IpAddr::V4(Ipv4Addr::from_bits(bits)))
}

fn v6() -> impl Strategy<Value = IpAddr> {
    let v6 = any::<u128>().prop_map(Ipv6Addr::from_bits);
    v6.prop_filter("mapped addresses never occur", |it| it.to_ipv4_mapped().is_none())
        .prop_map(IpAddr::V6)
}

fn ip() -> impl Strategy<Value = IpAddr> {
    prop_oneof![v4(), v6()]
}

fn ips() -> impl Strategy<Value = Vec<IpAddr>> {
    (vec(v4(), 0..3), vec(v6(), 0..3)).prop_map(|(v4, v6)| [v4, v6].concat())
}

fn net() -> impl Strategy<Value = IpNet> {
    prop_oneof![
        (v4(), 0..=32_u8).prop_map(|(ip, len)| IpNet::new(ip, len).unwrap().trunc()),
        (v6(), 0..=128_u8).prop_map(|(ip, len)| IpNet::new(ip, len).unwrap().trunc()),
    ]
    .prop_filter("mapped networks never occur", |net| match net {
        IpNet::V4(_) => true,
        IpNet::V6(net) => net.addr().to_ipv4_mapped().is_none(),
    })
}

/// Networks, IPv4 first, as they are kept per family too.
fn nets() -> impl Strategy<Value = Vec<IpNet>> {
    vec(net(), 0..4)
}

fn labels() -> impl Strategy<Value = Labels> {
    let texts = btree_map(text(), prop_oneof![Just(Arc::from("")), text()], 0..3);
    texts.prop_map(|texts| texts.into_iter().collect())
}

/// A name in a namespace.
pub fn key() -> impl Strategy<Value = ObjectKey> {
    (name(), name()).prop_map(|(namespace, name)| ObjectKey { namespace, name })
}

fn cluster_key() -> impl Strategy<Value = ObjectKey> {
    name().prop_map(ObjectKey::cluster)
}

fn meta(key: impl Strategy<Value = ObjectKey>) -> impl Strategy<Value = Meta> {
    (key, labels(), labels(), option::of(1..i64::MAX)).prop_map(
        |(key, labels, annotations, created_s)| Meta { key, labels, annotations, created_s },
    )
}

fn protocol() -> impl Strategy<Value = Protocol> {
    select(vec![Protocol::Tcp, Protocol::Udp, Protocol::Sctp])
}

fn service_type() -> impl Strategy<Value = ServiceType> {
    use ServiceType::{ClusterIP, ExternalName, LoadBalancer, NodePort};
    select(vec![ClusterIP, NodePort, LoadBalancer, ExternalName])
}

fn affinity() -> impl Strategy<Value = Option<ClientIpAffinity>> {
    let timeout_s = prop_oneof![Just(1), Just(86_400), 1..=i32::MAX as u32];
    option::of(timeout_s.prop_map(|timeout_s| ClientIpAffinity { timeout_s }))
}

fn scopes() -> impl Strategy<Value = Scopes> {
    any::<[bool; 4]>().prop_map(|[internal, external, cluster, local]| Scopes {
        internal,
        external,
        cluster,
        local,
    })
}

fn conditions() -> impl Strategy<Value = Conditions> {
    any::<[bool; 3]>().prop_map(|[ready, serving, terminating]| Conditions {
        ready,
        serving,
        terminating,
    })
}

fn local_service_port() -> impl Strategy<Value = LocalServicePort> {
    let target = prop_oneof![
        port().prop_map(|it| (Some(it), None)),
        name().prop_map(|it| (None, Some(it))),
        Just((None, None)),
    ];
    let flags = any::<[bool; 2]>();
    (port_name(), protocol(), port(), option::of(port()), target, option::of(name()), flags)
        .prop_map(|(name, protocol, port, node_port, target, app_protocol, [v4, v6])| {
            LocalServicePort {
                name,
                protocol,
                port,
                node_port,
                target_port: target.0,
                target_port_name: target.1,
                app_protocol,
                has_endpoints: Families { v4, v6 },
            }
        })
}

/// A service of a node view.
pub fn local_service() -> impl Strategy<Value = LocalService> {
    let addresses = (ips(), ips(), ips(), nets());
    let flags = any::<[bool; 3]>();
    let rest = (affinity(), option::of(port()), option::of(name()), labels(), labels());
    (key(), service_type(), flags, addresses, vec(local_service_port(), 0..4), rest).prop_map(
        |(key, service_type, flags, addresses, ports, rest)| {
            let (cluster_ips, external_ips, load_balancer_ips, source_ranges) = addresses;
            let (session_affinity, health_check_node_port, external_name, labels, annotations) =
                rest;
            LocalService {
                key,
                service_type,
                headless: flags[0],
                cluster_ips,
                external_ips,
                load_balancer_ips,
                source_ranges,
                ports,
                external_traffic_to_local: flags[1],
                internal_traffic_to_local: flags[2],
                session_affinity,
                health_check_node_port,
                external_name,
                labels,
                annotations,
            }
        },
    )
}

/// An endpoint of a node view.
pub fn local_endpoint() -> impl Strategy<Value = LocalEndpoint> {
    let pods = prop_oneof![
        // Named after its pod, by a hash, or by a hash although it has a pod.
        name().prop_map(|pod| (pod.clone(), Some(pod))),
        "[0-9a-f]{16}".prop_map(|id| (Arc::from(id), None)),
        ("[0-9a-f]{16}", name()).prop_map(|(id, pod)| (Arc::from(id), Some(pod))),
    ];
    let ips = prop_oneof![
        v4().prop_map(|it| vec![it]),
        v6().prop_map(|it| vec![it]),
        (v4(), v6()).prop_map(|(v4, v6)| vec![v4, v6]),
    ];
    let ports = vec((port_name(), port(), scopes()), 0..4).prop_map(|ports| {
        let ports = ports.into_iter();
        ports.map(|(name, port, scopes)| LocalEndpointPort { name, port, scopes }).collect()
    });
    let place = (option::of(name()), option::of(name()), option::of(name()));
    let unlisted = option::of(scopes());
    (key(), pods, ips, any::<bool>(), ports, (unlisted, conditions(), any::<u16>()), place)
        .prop_map(|(service, (id, pod), ips, local, ports, state, place)| {
            let (unlisted_ports, conditions, weight) = state;
            let (hostname, node, zone) = place;
            LocalEndpoint {
                key: EndpointRef { service, id },
                pod,
                hostname,
                ips,
                local,
                ports,
                unlisted_ports,
                conditions,
                weight,
                node,
                zone,
            }
        })
}

fn selector() -> impl Strategy<Value = LabelSelector> {
    use SelectorOperator::{DoesNotExist, Exists, In, NotIn};
    let requirement = (text(), select(vec![In, NotIn, Exists, DoesNotExist]), vec(text(), 0..2))
        .prop_map(|(key, operator, values)| SelectorRequirement { key, operator, values });
    (labels(), vec(requirement, 0..2)).prop_map(|(match_labels, match_expressions)| LabelSelector {
        match_labels,
        match_expressions,
    })
}

fn ingress() -> impl Strategy<Value = Object> {
    use PathType::{Exact, ImplementationSpecific, Prefix};
    let backend = || {
        let port = prop_oneof![port().prop_map(PortRef::Number), name().prop_map(PortRef::Name)];
        (name(), port).prop_map(|(service, port)| IngressBackend { service, port })
    };
    let path = (text(), select(vec![Exact, Prefix, ImplementationSpecific]), backend())
        .prop_map(|(path, path_type, backend)| IngressPath { path, path_type, backend });
    let rule =
        (option::of(name()), vec(path, 0..2)).prop_map(|(host, paths)| IngressRule { host, paths });
    let tls = (vec(name(), 0..2), option::of(name()))
        .prop_map(|(hosts, secret)| IngressTls { hosts, secret });
    let parts = (option::of(name()), option::of(backend()), vec(rule, 0..2), vec(tls, 0..2));
    (meta(key()), parts, ips()).prop_map(|(meta, parts, status_ips)| {
        let (class, default_backend, rules, tls) = parts;
        let status_hostnames = class.iter().cloned().collect();
        Ingress { meta, class, default_backend, rules, tls, status_ips, status_hostnames }.into()
    })
}

fn pod() -> impl Strategy<Value = Object> {
    use PodPhase::{Failed, Pending, Running, Succeeded, Unknown};
    let ports = (option::of(name()), port(), protocol(), option::of(port()), option::of(ip()))
        .prop_map(|(name, container_port, protocol, host_port, host_ip)| ContainerPort {
            name,
            container_port,
            protocol,
            host_port,
            host_ip,
        });
    let place = (option::of(name()), option::of(name()), ips());
    let state = (any::<[bool; 3]>(), select(vec![Pending, Running, Succeeded, Failed, Unknown]));
    (meta(key()), place, vec(ports, 0..2), state).prop_map(
        |(meta, place, ports, (flags, phase))| {
            let (node, hostname, ips) = place;
            let [host_network, ready, terminating] = flags;
            Pod { meta, node, host_network, hostname, ports, ips, phase, ready, terminating }.into()
        },
    )
}

fn network_policy() -> impl Strategy<Value = Object> {
    let peer = prop_oneof![
        (net(), nets()).prop_map(|(cidr, except)| PolicyPeer::Block { cidr, except }),
        (option::of(selector()), option::of(selector()))
            .prop_map(|(namespaces, pods)| PolicyPeer::Pods { namespaces, pods }),
    ];
    let ports = prop_oneof![
        Just(PolicyPortMatch::All),
        (port(), port()).prop_map(|(a, b)| PolicyPortMatch::Range(a, b)),
        name().prop_map(PolicyPortMatch::Named),
    ];
    let ports = (protocol(), ports).prop_map(|(protocol, port)| PolicyPort { protocol, port });
    let rule = (vec(peer, 0..2), vec(ports, 0..2))
        .prop_map(|(peers, ports)| PolicyRule { peers, ports })
        .boxed();
    let rules = option::of(vec(rule, 0..2)).boxed();
    (meta(key()), selector(), rules.clone(), rules).prop_map(|(meta, pods, ingress, egress)| {
        NetworkPolicy { meta, pods, ingress, egress }.into()
    })
}

fn overrides() -> impl Strategy<Value = Object> {
    let target = prop_oneof![
        ip().prop_map(OverrideTarget::Address),
        name().prop_map(OverrideTarget::Pod),
        name().prop_map(OverrideTarget::Node),
        (option::of(name()), option::of(name()))
            .prop_map(|(host, path)| OverrideTarget::Routes { host, path }),
    ];
    let added = (option::of(any::<u16>()), option::of(name()), option::of(any::<u16>()))
        .prop_map(|(port, node, weight)| AddedEndpoint { port, node, weight });
    let action = prop_oneof![
        Just(OverrideAction::Drain),
        any::<u16>().prop_map(OverrideAction::Weight),
        Just(OverrideAction::Remove),
        added.prop_map(OverrideAction::Add),
        any::<u32>().prop_map(|retry_after_s| OverrideAction::Pause { retry_after_s }),
    ];
    let times = (option::of(any::<i64>()), option::of(any::<i64>()));
    (meta(key()), key(), target, action, text(), text(), times).prop_map(
        |(meta, object, target, action, by, reason, (since_s, until_s))| {
            Override { meta, object, target, action, by, reason, since_s, until_s }.into()
        },
    )
}

/// A node with all that any of its wire forms carries, but for when it was made.
pub fn node() -> impl Strategy<Value = Node> {
    let address = (select(vec!["InternalIP", "ExternalIP"]), ip())
        .prop_map(|(kind, ip)| NodeAddress { address_type: kind.into(), ip });
    let taint = (name(), option::of(name()), select(vec!["", "NoSchedule", "NoExecute"]))
        .prop_map(|(key, value, effect)| Taint { key, value, effect: effect.into() });
    let lists = (vec(address, 0..3), nets(), vec(taint, 0..3));
    (meta(cluster_key()), lists, any::<bool>(), option::of(name())).prop_map(
        |(mut meta, (addresses, pod_cidrs, taints), deleting, zone)| {
            meta.created_s = None;
            if let Some(zone) = zone {
                meta.labels.insert(telaio_model::node::LABEL_ZONE.into(), zone);
            }
            Node { meta, addresses, pod_cidrs, taints, deleting }
        },
    )
}

/// An object of any kind that has a set of its own.
pub fn object() -> BoxedStrategy<Object> {
    let bytes = || vec(any::<u8>(), 0..16).prop_map(Arc::<[u8]>::from);
    prop_oneof![
        ingress().boxed(),
        pod().boxed(),
        network_policy().boxed(),
        overrides().boxed(),
        node().prop_map(Object::from),
        (meta(cluster_key()), name()).prop_map(|(meta, controller)| IngressClass {
            meta,
            controller
        }
        .into()),
        (meta(key()), bytes(), bytes(), option::of(bytes())).prop_map(
            |(meta, certificate, private_key, authority)| {
                TlsSecret { meta, certificate, private_key, authority }.into()
            }
        ),
        (meta(key()), option::of(bytes()), option::of(bytes()))
            .prop_map(|(meta, users, authority)| AuthSecret { meta, users, authority }.into()),
        (meta(key()), btree_map(text(), text(), 0..3)).prop_map(|(meta, data)| ConfigMap {
            meta,
            data
        }
        .into()),
        meta(cluster_key()).prop_map(|meta| Namespace { meta }.into()),
        (meta(cluster_key()), nets()).prop_map(|(meta, cidrs)| ServiceCidr { meta, cidrs }.into()),
    ]
    .boxed()
}

/// The name of such an object.
pub fn object_ref() -> impl Strategy<Value = ObjectRef> {
    object().prop_map(|object| object.object_ref())
}

/// Any operation of the Local API.
pub fn local_op() -> BoxedStrategy<Op> {
    prop_oneof![
        1 => Just(Op::Reset),
        1 => Just(Op::Sync),
        4 => local_service().prop_map(|it| Op::SetService(Arc::new(it))),
        1 => key().prop_map(Op::DeleteService),
        6 => local_endpoint().prop_map(|it| Op::SetEndpoint(Arc::new(it))),
        1 => (key(), name()).prop_map(|(service, id)| Op::DeleteEndpoint(EndpointRef { service, id })),
        6 => object().prop_map(Op::SetObject),
        1 => object_ref().prop_map(Op::DeleteObject),
    ]
    .boxed()
}

/// A service of the cluster; selectors and unready addresses concern the control plane only.
pub fn service() -> impl Strategy<Value = Service> {
    let target =
        prop_oneof![port().prop_map(TargetPort::Number), name().prop_map(TargetPort::Name)];
    let ports = (port_name(), protocol(), option::of(name()), port(), option::of(port()), target)
        .prop_map(|(name, protocol, app_protocol, port, node_port, target_port)| ServicePort {
            name,
            protocol,
            app_protocol,
            port,
            node_port,
            target_port,
        });
    let balancer = (ips(), ips()).prop_map(|(vips, proxies)| {
        let ingress = |ip_mode| move |ip| LoadBalancerIngress { ip, ip_mode };
        let proxies = proxies.into_iter().map(ingress(IpMode::Proxy));
        vips.into_iter().map(ingress(IpMode::Vip)).chain(proxies).collect::<Vec<_>>()
    });
    let distribution = option::of(select(vec![
        TrafficDistribution::PreferSameZone,
        TrafficDistribution::PreferSameNode,
    ]));
    let policy = || select(vec![TrafficPolicy::Cluster, TrafficPolicy::Local]);
    let rest =
        (policy(), policy(), affinity(), option::of(port()), distribution, option::of(name()));
    let addresses = (any::<bool>(), ips(), ips(), balancer, nets());
    (meta(key()), service_type(), addresses, vec(ports, 0..4), rest).prop_map(
        |(meta, service_type, addresses, ports, rest)| {
            let (headless, cluster_ips, external_ips, load_balancer, source_ranges) = addresses;
            let (external_traffic_policy, internal_traffic_policy, affinity, check, near, name) =
                rest;
            Service {
                meta,
                service_type,
                headless,
                cluster_ips,
                external_ips,
                load_balancer,
                source_ranges,
                ports,
                selector: Labels::new(),
                external_traffic_policy,
                internal_traffic_policy,
                session_affinity: affinity,
                health_check_node_port: check,
                traffic_distribution: near,
                publish_not_ready_addresses: false,
                external_name: name,
            }
        },
    )
}

/// An endpoint of the cluster, with its slice's ports.
pub fn global_endpoint() -> impl Strategy<Value = GlobalEndpoint> {
    let hints = (vec(name(), 0..3), vec(name(), 0..3)).prop_map(|(zones, nodes)| {
        let hints = Hints { zones, nodes };
        (!hints.is_empty()).then(|| Box::new(hints))
    });
    let texts = (option::of(name()), option::of(name()), option::of(name()), option::of(name()));
    let endpoint = (ip(), conditions(), texts, hints, option::of(any::<u16>())).prop_map(
        |(address, conditions, (pod, hostname, node, zone), hints, weight)| Endpoint {
            address,
            conditions,
            pod,
            hostname,
            node,
            zone,
            hints,
            weight,
        },
    );
    // A port without a number serves nothing, and is not sent.
    let ports = (port_name(), option::of(protocol()), port())
        .prop_map(|(name, protocol, port)| EndpointPort { name, protocol, port: Some(port) });
    let key = (key(), name(), name()).prop_map(|(service, source, id)| GlobalEndpointKey {
        service,
        source,
        id,
    });
    (key, endpoint, vec(ports, 0..4), any::<bool>()).prop_map(
        |(key, endpoint, ports, ports_complete)| GlobalEndpoint {
            key,
            endpoint,
            ports,
            ports_complete,
        },
    )
}

/// Any operation of the Global API.
pub fn global_op() -> BoxedStrategy<GlobalOp> {
    prop_oneof![
        1 => Just(GlobalOp::Reset),
        1 => Just(GlobalOp::Sync),
        3 => node().prop_map(|it| GlobalOp::SetNode(Arc::new(it))),
        1 => cluster_key().prop_map(GlobalOp::DeleteNode),
        5 => service().prop_map(|it| GlobalOp::SetService(Arc::new(it))),
        1 => key().prop_map(GlobalOp::DeleteService),
        6 => global_endpoint().prop_map(|it| GlobalOp::SetEndpoint(Arc::new(it))),
        1 => global_endpoint().prop_map(|it| GlobalOp::DeleteEndpoint(it.key)),
        4 => object()
            .prop_filter("nodes have a set of KPNG's", |it| it.kind() != telaio_model::Kind::Node)
            .prop_map(GlobalOp::SetObject),
        1 => object_ref()
            .prop_filter("nodes have a set of KPNG's", |it| it.kind != telaio_model::Kind::Node)
            .prop_map(GlobalOp::DeleteObject),
    ]
    .boxed()
}
