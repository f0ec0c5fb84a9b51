//! Small clusters by chance: few names, so that things collide, come back and change hands.

use proptest::prelude::*;
use proptest::sample::{select, subsequence};
use telaio_model::service::{LABEL_HEADLESS, LABEL_PROXY_NAME};
use telaio_model::{
    AddressType, Conditions, Endpoint, EndpointPort, EndpointSlice, Ingress, IpMode, Kind,
    LoadBalancerIngress, Meta, Namespace, Object, ObjectChange, ObjectKey, ObjectRef, Override,
    OverrideAction, OverrideTarget, Protocol, Service, ServicePort, ServiceType, TargetPort,
    TrafficPolicy,
};

use super::{ip, key, node, port, service, slice_port};

/// The nodes that there may be. Endpoints run on the first three; `n9` never exists as an object.
pub const NODES: [&str; 6] = ["n0", "n1", "n2", "n7", "n8", "n9"];
const SERVICES: [&str; 3] = ["a", "b", "c"];
const PODS: u8 = 6;

/// The same seed in every run: a failure is a failure for everybody.
pub fn config(cases: u32) -> ProptestConfig {
    ProptestConfig {
        cases,
        failure_persistence: None,
        rng_seed: proptest::test_runner::RngSeed::Fixed(0x7e1a_1000),
        max_shrink_iters: 20_000,
        ..ProptestConfig::default()
    }
}

fn policy() -> impl Strategy<Value = TrafficPolicy> {
    select(vec![TrafficPolicy::Cluster, TrafficPolicy::Local])
}

fn udp(name: &str, number: u16) -> ServicePort {
    ServicePort {
        protocol: Protocol::Udp,
        target_port: TargetPort::Name("dns".into()),
        ..port(name, number)
    }
}

/// A service of any kind with up to three ports.
pub fn any_service() -> impl Strategy<Value = Service> {
    let ports = subsequence(vec![port("http", 80), udp("dns", 53), port("admin", 81)], 0..=3);
    let ips = select(vec![
        vec!["10.96.0.1"],
        vec!["10.96.0.1", "fd00:96::1"],
        vec!["fd00:96::1"],
        vec![],
    ]);
    let outside =
        (any::<bool>(), any::<bool>(), select(vec![None, Some(IpMode::Vip), Some(IpMode::Proxy)]));
    // Most are plain; the last kinds are not for a service proxy.
    let kind = select(vec![0, 0, 0, 0, 0, 0, 1, 2, 3, 4]);
    (select(SERVICES.to_vec()), ports, ips, outside, policy(), policy(), kind).prop_map(
        |(name, ports, ips, (node_ports, external_ip, balancer), itp, etp, kind)| {
            let mut value = service(name, "10.96.0.1");
            value.cluster_ips = ips.into_iter().map(ip).collect();
            value.ports = ports;
            if node_ports {
                for (port, number) in value.ports.iter_mut().zip(30_000..) {
                    port.node_port = Some(number);
                }
            }
            if external_ip {
                value.external_ips.push(ip("192.0.2.1"));
            }
            value.load_balancer.extend(
                balancer.map(|ip_mode| LoadBalancerIngress { ip: ip("192.0.2.2"), ip_mode }),
            );
            value.internal_traffic_policy = itp;
            value.external_traffic_policy = etp;
            match kind {
                1 => value.headless = true,
                2 => value.service_type = ServiceType::ExternalName,
                3 => _ = value.meta.labels.insert(LABEL_PROXY_NAME.into(), "x".into()),
                4 => _ = value.meta.labels.insert(LABEL_HEADLESS.into(), "".into()),
                _ => {}
            }
            value
        },
    )
}

fn conditions() -> impl Strategy<Value = Conditions> {
    (any::<bool>(), any::<bool>(), any::<bool>())
        .prop_map(|(ready, serving, terminating)| Conditions { ready, serving, terminating })
}

/// One endpoint: one of a few pods, always on the same node, in any state.
fn endpoint(is_ipv6: bool) -> impl Strategy<Value = Endpoint> {
    let hint = || prop_oneof![3 => Just(vec!["1"]), 1 => Just(vec![]), 1 => Just(vec!["0", "2"])];
    let weight = prop_oneof![6 => Just(None), 1 => Just(Some(0)), 1 => Just(Some(3))];
    (0..PODS, any::<bool>(), conditions(), hint(), hint(), weight).prop_map(
        move |(number, has_pod, conditions, zones, nodes, weight)| {
            let address =
                if is_ipv6 { format!("fd00::{number}") } else { format!("10.0.0.{number}") };
            let mut value =
                super::pod(&format!("p{number}"), &address, NODES[usize::from(number % 3)]);
            if !has_pod {
                value.pod = None;
            }
            value.zone = Some("z1".into());
            value.conditions = conditions;
            value.weight = weight;
            if !zones.is_empty() || !nodes.is_empty() {
                let zones = zones.iter().map(|it| format!("z{it}").into()).collect();
                let nodes = nodes.iter().map(|it| format!("n{it}").into()).collect();
                value.hints = Some(Box::new(telaio_model::Hints { zones, nodes }));
            }
            value
        },
    )
}

fn slice_ports() -> impl Strategy<Value = Vec<EndpointPort>> {
    let ports = vec![
        slice_port("http", 8080),
        EndpointPort { protocol: Some(Protocol::Udp), ..slice_port("dns", 5353) },
        slice_port("admin", 8081),
        slice_port("unused", 1),
    ];
    // Often all of them, sometimes with other numbers, sometimes without number or protocol.
    (subsequence(ports, 0..=4), select(vec![0, 0, 0, 1, 2, 3])).prop_map(|(mut ports, odd)| {
        for (index, port) in ports.iter_mut().enumerate() {
            match odd {
                1 if index == 0 => port.port = None,
                2 => port.protocol = None,
                3 => port.port = port.port.map(|number| number + 1000),
                _ => {}
            }
        }
        ports
    })
}

/// A slice of one of the services, of one that never is, or of none. No address occurs twice in it.
pub fn any_slice() -> impl Strategy<Value = EndpointSlice> {
    let owner =
        select(vec![Some("a"), Some("a"), Some("a"), Some("b"), Some("c"), Some("ghost"), None]);
    let kind = select(vec![0, 0, 0, 1, 1, 2]);
    (select(vec!["s1", "s2", "s3", "s4"]), owner, slice_ports(), kind)
        .prop_flat_map(|(name, owner, ports, kind)| {
            let endpoints = proptest::collection::vec(endpoint(kind == 1), 0..5);
            (Just((name, owner, ports, kind)), endpoints)
        })
        .prop_map(|((name, owner, ports, kind), mut endpoints)| {
            let mut seen = std::collections::BTreeSet::new();
            endpoints.retain(|endpoint| kind < 2 && seen.insert(endpoint.address));
            EndpointSlice {
                triggered: telaio_model::endpoints::TriggerTime::default(),
                key: key(name),
                service: owner.map(Into::into),
                address_type: [AddressType::IPv4, AddressType::IPv6, AddressType::Fqdn][kind],
                endpoints,
                ports,
            }
        })
}

fn any_override() -> impl Strategy<Value = Override> {
    let target = prop_oneof![
        (0..PODS).prop_map(|it| OverrideTarget::Address(ip(&format!("10.0.0.{it}")))),
        (0..PODS).prop_map(|it| OverrideTarget::Pod(format!("p{it}").into())),
        select(NODES.to_vec()).prop_map(|it| OverrideTarget::Node(it.into())),
    ];
    let action = select(vec![
        OverrideAction::Drain,
        OverrideAction::Weight(0),
        OverrideAction::Weight(1),
        OverrideAction::Weight(4),
    ]);
    let until = prop_oneof![2 => Just(None), 1 => (0..8_i64).prop_map(Some)];
    (select(vec!["o1", "o2"]), select(SERVICES.to_vec()), target, action, until).prop_map(
        |(name, service, target, action, until_s)| Override {
            until_s,
            object: key(service),
            ..super::web_override(name, target, action)
        },
    )
}

/// Any object of the kinds that views are made of, and of some that are passed on as they are.
pub fn any_object() -> impl Strategy<Value = Object> {
    let zone = select(vec![None, Some("z0"), Some("z1")]);
    let label = any::<bool>();
    prop_oneof![
        4 => any_service().prop_map(Object::from),
        6 => any_slice().prop_map(Object::from),
        1 => (select(NODES[..5].to_vec()), zone).prop_map(|(name, zone)| node(name, zone).into()),
        1 => any_override().prop_map(Object::from),
        1 => label.prop_map(|label| {
            let mut meta = Meta::named(ObjectKey::cluster("default"));
            if label {
                meta.labels.insert("x".into(), "y".into());
            }
            Namespace { meta }.into()
        }),
        1 => select(vec![None, Some("x")]).prop_map(|class| {
            Ingress {
                meta: Meta::named(key("i")),
                class: class.map(Into::into),
                default_backend: None,
                rules: vec![],
                tls: vec![],
                status_ips: vec![],
                status_hostnames: vec![],
            }
            .into()
        }),
    ]
}

fn any_ref() -> impl Strategy<Value = ObjectRef> {
    let refs = SERVICES.map(|name| ObjectRef::new(Kind::Service, key(name)));
    let slices =
        ["s1", "s2", "s3", "s4"].map(|name| ObjectRef::new(Kind::EndpointSlice, key(name)));
    let nodes = ["n0", "n1", "n7"].map(|name| ObjectRef::new(Kind::Node, ObjectKey::cluster(name)));
    let others = [
        ObjectRef::new(Kind::Override, key("o1")),
        ObjectRef::new(Kind::Override, key("o2")),
        ObjectRef::new(Kind::Ingress, key("i")),
        ObjectRef::new(Kind::Namespace, ObjectKey::cluster("default")),
    ];
    select([&refs[..], &slices[..], &nodes[..], &others[..]].concat())
}

/// A change: mostly an object that comes or changes, sometimes one that goes, known or not.
pub fn any_change() -> impl Strategy<Value = ObjectChange> {
    prop_oneof![
        4 => any_object().prop_map(ObjectChange::Set),
        1 => any_ref().prop_map(ObjectChange::Delete),
    ]
}

/// Changes that belong together; an object may occur more than once.
pub fn any_changes() -> impl Strategy<Value = Vec<ObjectChange>> {
    proptest::collection::vec(any_change(), 0..6)
}
