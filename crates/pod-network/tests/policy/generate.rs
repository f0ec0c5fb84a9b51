//! Small worlds in which much collides: few labels, few addresses, few ports, many policies.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use ipnet::IpNet;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use telaio_model::{
    ContainerPort, LabelSelector, Labels, Meta, NetworkPolicy, ObjectKey, Pod, PodPhase,
    PolicyPeer, PolicyPort, PolicyPortMatch, PolicyRule, Protocol, SelectorOperator,
    SelectorRequirement,
};

use crate::oracle::{Cluster, Connection};

/// The node whose tables are looked at.
pub(crate) const HERE: &str = "here";
/// Another one.
pub(crate) const THERE: &str = "there";

const NAMESPACES: [&str; 3] = ["red", "green", "blue"];

/// A change to the cluster.
#[derive(Debug, Clone)]
pub(crate) enum Step {
    Policy(ObjectKey, Option<NetworkPolicy>),
    Pod(ObjectKey, Option<Pod>),
    Namespace(&'static str, Option<Labels>),
}

impl Step {
    /// Does it to a cluster.
    pub(crate) fn apply(&self, cluster: &mut Cluster) {
        match self {
            Self::Policy(key, Some(policy)) => {
                _ = cluster.policies.insert(key.clone(), policy.clone());
            }
            Self::Policy(key, None) => _ = cluster.policies.remove(key),
            Self::Pod(key, Some(pod)) => _ = cluster.pods.insert(key.clone(), pod.clone()),
            Self::Pod(key, None) => _ = cluster.pods.remove(key),
            Self::Namespace(name, Some(labels)) => {
                _ = cluster.namespaces.insert((*name).to_owned(), labels.clone());
            }
            Self::Namespace(name, None) => _ = cluster.namespaces.remove(*name),
        }
    }
}

pub(crate) fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        5 => policy().prop_map(|policy| Step::Policy(policy.meta.key.clone(), Some(policy))),
        1 => (namespace(), 0..4_u8).prop_map(|(ns, n)| Step::Policy(key(ns, "policy", n), None)),
        8 => pod().prop_map(|pod| Step::Pod(pod.meta.key.clone(), Some(pod))),
        1 => (namespace(), 0..4_u8).prop_map(|(ns, n)| Step::Pod(key(ns, "pod", n), None)),
        1 => (namespace(), option::of(labels())).prop_map(|(ns, labels)| Step::Namespace(ns, labels)),
    ]
}

/// Any connection, and often one between addresses that pods have.
pub(crate) fn connection() -> impl Strategy<Value = Connection> {
    let ports = prop_oneof![
        4 => (protocol(), port()).prop_map(Some),
        1 => Just(None),
    ];
    (any::<bool>(), host_number(), host_number(), ports).prop_map(|(v4, from, to, port)| {
        Connection { from: address(v4, from), to: address(v4, to), port }
    })
}

fn key(namespace: &str, kind: &str, number: u8) -> ObjectKey {
    ObjectKey::new(namespace, format!("{kind}-{number}"))
}

fn namespace() -> impl Strategy<Value = &'static str> {
    prop::sample::select(NAMESPACES.to_vec())
}

fn labels() -> impl Strategy<Value = Labels> {
    (option::of(0..3_u8), option::of(0..2_u8)).prop_map(|(app, tier)| {
        let app = app.map(|n| (Arc::from("app"), Arc::from(n.to_string())));
        let tier = tier.map(|n| (Arc::from("tier"), Arc::from(n.to_string())));
        app.into_iter().chain(tier).collect()
    })
}

fn selector() -> impl Strategy<Value = LabelSelector> {
    use SelectorOperator::{DoesNotExist, Exists, In, NotIn};
    let requirement = (
        prop::sample::select(vec!["app", "tier", "kubernetes.io/metadata.name"]),
        prop::sample::select(vec![In, NotIn, Exists, DoesNotExist]),
        vec(prop::sample::select(vec!["0", "1", "2", "red", "blue"]), 1..3),
    )
        .prop_map(|(key, operator, values)| SelectorRequirement {
            key: key.into(),
            operator,
            values: values.into_iter().map(Arc::from).collect(),
        });
    prop_oneof![
        2 => Just(LabelSelector::default()),
        3 => labels().prop_map(|match_labels| LabelSelector { match_labels, ..LabelSelector::default() }),
        2 => vec(requirement, 1..3).prop_map(|match_expressions| LabelSelector {
            match_expressions,
            ..LabelSelector::default()
        }),
    ]
}

fn protocol() -> impl Strategy<Value = Protocol> {
    prop::sample::select(vec![Protocol::Tcp, Protocol::Udp, Protocol::Sctp])
}

/// Near the edges of ranges, and elsewhere.
fn port() -> impl Strategy<Value = u16> {
    prop_oneof![
        4 => prop::sample::select(vec![1, 53, 79, 80, 81, 443, 8080, 65_535]),
        1 => any::<u16>().prop_map(|port| port.max(1)),
    ]
}

/// Of 32 addresses, most of which some pod has at some time.
fn host_number() -> impl Strategy<Value = u8> {
    0..32_u8
}

pub(crate) fn address(v4: bool, number: u8) -> IpAddr {
    if v4 {
        Ipv4Addr::new(10, 0, 0, number).into()
    } else {
        Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, number.into()).into()
    }
}

fn pod() -> impl Strategy<Value = Pod> {
    let port = (option::of(prop::sample::select(vec!["http", "dns"])), port(), protocol());
    let port = port.prop_map(|(name, container_port, protocol)| ContainerPort {
        name: name.map(Arc::from),
        container_port,
        protocol,
        host_port: None,
        host_ip: None,
    });
    let phase = prop_oneof![6 => Just(PodPhase::Running), 1 => Just(PodPhase::Pending),
        1 => Just(PodPhase::Succeeded), 1 => Just(PodPhase::Failed)];
    let place = (namespace(), 0..4_u8, any::<bool>(), option::weighted(0.1, Just(())));
    let addresses = (option::weighted(0.9, host_number()), option::weighted(0.7, host_number()));
    let life = (phase, any::<bool>(), option::of(0..3_i64));
    (place, labels(), vec(port, 0..3), addresses, life).prop_map(
        |(
            (namespace, number, is_here, host),
            labels,
            ports,
            (v4, v6),
            (phase, terminating, created_s),
        )| {
            let v4 = v4.map(|number| address(true, number));
            let v6 = v6.map(|number| address(false, number));
            Pod {
                meta: Meta { labels, created_s, ..Meta::named(key(namespace, "pod", number)) },
                node: Some(if is_here { HERE } else { THERE }.into()),
                host_network: host.is_some(),
                hostname: None,
                ports,
                ips: v4.into_iter().chain(v6).collect(),
                phase,
                ready: true,
                terminating,
            }
        },
    )
}

/// Networks around the addresses that there are.
fn net() -> impl Strategy<Value = IpNet> {
    (any::<bool>(), host_number(), 0..=8_u8).prop_map(|(v4, number, bits)| {
        // Of the last eight bits so many are open; with eight, all bits are.
        let len = match (v4, bits) {
            (_, 8) => 0,
            (true, bits) => 32 - bits,
            (false, bits) => 128 - bits,
        };
        IpNet::new(address(v4, number), len).unwrap().trunc()
    })
}

fn peer() -> impl Strategy<Value = PolicyPeer> {
    let block = (net(), vec(net(), 0..3)).prop_map(|(cidr, except)| {
        let is_part = |net: &IpNet| cidr.contains(net) && *net != cidr;
        PolicyPeer::Block { cidr, except: except.into_iter().filter(is_part).collect() }
    });
    prop_oneof![
        2 => block,
        1 => selector().prop_map(|pods| PolicyPeer::Pods { namespaces: None, pods: Some(pods) }),
        1 => selector().prop_map(|namespaces| PolicyPeer::Pods { namespaces: Some(namespaces), pods: None }),
        1 => (selector(), selector()).prop_map(|(namespaces, pods)| PolicyPeer::Pods {
            namespaces: Some(namespaces),
            pods: Some(pods),
        }),
    ]
}

fn policy_port() -> impl Strategy<Value = PolicyPort> {
    let which = prop_oneof![
        1 => Just(PolicyPortMatch::All),
        3 => port().prop_map(|port| PolicyPortMatch::Range(port, port)),
        2 => (port(), port()).prop_map(|(a, b)| PolicyPortMatch::Range(a.min(b), a.max(b))),
        2 => prop::sample::select(vec!["http", "dns"]).prop_map(|name| PolicyPortMatch::Named(name.into())),
    ];
    (protocol(), which).prop_map(|(protocol, port)| PolicyPort { protocol, port })
}

fn rules() -> impl Strategy<Value = Option<Vec<PolicyRule>>> {
    let rule = (vec(peer(), 0..3), vec(policy_port(), 0..3));
    option::weighted(0.7, vec(rule.prop_map(|(peers, ports)| PolicyRule { peers, ports }), 0..3))
}

fn policy() -> impl Strategy<Value = NetworkPolicy> {
    (namespace(), 0..4_u8, selector(), rules(), rules()).prop_map(
        |(namespace, number, pods, ingress, egress)| NetworkPolicy {
            meta: Meta::named(key(namespace, "policy", number)),
            pods,
            ingress,
            egress,
        },
    )
}
