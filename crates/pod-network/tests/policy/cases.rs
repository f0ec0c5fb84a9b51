//! Policies as people write them, one of each kind: the table that real packets are sent through.

use std::sync::Arc;

use telaio_model::{
    ContainerPort, LabelSelector, Labels, Meta, NetworkPolicy, ObjectKey, Pod, PodPhase,
    PolicyPeer, PolicyPort, PolicyPortMatch, PolicyRule, Protocol,
};
use telaio_testkit::netns::{Family, Host, SERVER_PORT};

use crate::oracle::Cluster;

/// A second port on which every pod answers.
pub(crate) const SECOND_PORT: u16 = 9090;

/// The cluster that the namespaces are: `a1` and `b1` are `app: web` in namespace `front`, `a2` and `b2` are `app: db` in `back`.
pub(crate) fn pods() -> Cluster {
    let mut cluster = Cluster::default();
    for host in [Host::A1, Host::A2, Host::B1, Host::B2] {
        let (namespace, app) =
            if matches!(host, Host::A1 | Host::B1) { ("front", "web") } else { ("back", "db") };
        let port = |name: &str, number, protocol| ContainerPort {
            name: Some(name.into()),
            container_port: number,
            protocol,
            host_port: None,
            host_ip: None,
        };
        let pod = Pod {
            meta: Meta {
                labels: labels(&[("app", app), ("node", host.node().unwrap().name())]),
                ..Meta::named(ObjectKey::new(namespace, host.name()))
            },
            node: Some(host.node().unwrap().name().into()),
            host_network: false,
            hostname: None,
            ports: vec![
                port("main", SERVER_PORT, Protocol::Tcp),
                port("side", SECOND_PORT, Protocol::Udp),
            ],
            ips: Family::ALL.map(|family| host.address(family)).to_vec(),
            phase: PodPhase::Running,
            ready: true,
            terminating: false,
        };
        cluster.pods.insert(pod.meta.key.clone(), pod);
    }
    for name in ["front", "back"] {
        cluster.namespaces.insert(name.to_owned(), labels(&[("tier", name)]));
    }
    cluster
}

pub(crate) fn labels(pairs: &[(&str, &str)]) -> Labels {
    pairs.iter().map(|(name, value)| (Arc::from(*name), Arc::from(*value))).collect()
}

pub(crate) fn select(pairs: &[(&str, &str)]) -> LabelSelector {
    LabelSelector { match_labels: labels(pairs), ..LabelSelector::default() }
}

pub(crate) fn policy(namespace: &str, name: &str, pods: LabelSelector) -> NetworkPolicy {
    let meta = Meta::named(ObjectKey::new(namespace, name));
    NetworkPolicy { meta, pods, ingress: None, egress: None }
}

fn block(cidr: &str, except: &[&str]) -> PolicyPeer {
    PolicyPeer::Block {
        cidr: cidr.parse().unwrap(),
        except: except.iter().map(|net| net.parse().unwrap()).collect(),
    }
}

fn port(protocol: Protocol, port: PolicyPortMatch) -> PolicyPort {
    PolicyPort { protocol, port }
}

fn rule(peers: Vec<PolicyPeer>, ports: Vec<PolicyPort>) -> PolicyRule {
    PolicyRule { peers, ports }
}

/// The cases by name, each as the policies that it has.
pub(crate) fn all() -> Vec<(&'static str, Vec<NetworkPolicy>)> {
    let any = LabelSelector::default;
    let pods = |namespaces, pods| PolicyPeer::Pods { namespaces, pods };
    let range = |first, last| PolicyPortMatch::Range(first, last);
    vec![
        ("no policy", vec![]),
        (
            "default deny of what comes in, in one namespace",
            vec![NetworkPolicy { ingress: Some(vec![]), ..policy("back", "deny", any()) }],
        ),
        (
            "default deny both ways in one namespace, and a hole by namespace and pod for one port",
            vec![
                NetworkPolicy {
                    ingress: Some(vec![]),
                    egress: Some(vec![]),
                    ..policy("back", "deny", any())
                },
                NetworkPolicy {
                    ingress: Some(vec![rule(
                        vec![pods(
                            Some(select(&[("tier", "front")])),
                            Some(select(&[("node", "node-b")])),
                        )],
                        vec![port(Protocol::Tcp, range(SERVER_PORT, SERVER_PORT))],
                    )]),
                    ..policy("back", "web", select(&[("app", "db")]))
                },
            ],
        ),
        (
            "what goes out: only to pods of the same namespace",
            vec![NetworkPolicy {
                egress: Some(vec![rule(vec![pods(None, Some(any()))], vec![])]),
                ..policy("front", "stay", any())
            }],
        ),
        (
            "networks with exceptions, both families, both directions",
            vec![
                NetworkPolicy {
                    ingress: Some(vec![rule(
                        vec![
                            block("203.0.113.0/24", &["203.0.113.10/32"]),
                            block("10.244.0.0/16", &["10.244.1.0/24"]),
                            block("2001:db8:113::/64", &[]),
                            block("fd00:10:244::/48", &["fd00:10:244:2::/64"]),
                        ],
                        vec![],
                    )]),
                    ..policy("front", "nets", any())
                },
                NetworkPolicy {
                    egress: Some(vec![rule(
                        vec![
                            block("0.0.0.0/0", &["10.244.2.12/32"]),
                            block("fd00:10:244:1::/64", &[]),
                        ],
                        vec![],
                    )]),
                    ..policy("front", "out", any())
                },
            ],
        ),
        (
            "ranges of ports, every port of a protocol",
            vec![NetworkPolicy {
                ingress: Some(vec![
                    rule(
                        vec![],
                        vec![
                            port(Protocol::Tcp, range(8000, 8079)),
                            port(Protocol::Tcp, range(9000, 9100)),
                        ],
                    ),
                    rule(
                        vec![pods(Some(any()), Some(select(&[("app", "db")])))],
                        vec![port(Protocol::Udp, PolicyPortMatch::All)],
                    ),
                ]),
                ..policy("front", "ranges", any())
            }],
        ),
        (
            "ports by name, in and out",
            vec![
                NetworkPolicy {
                    ingress: Some(vec![rule(
                        vec![],
                        vec![port(Protocol::Tcp, PolicyPortMatch::Named("main".into()))],
                    )]),
                    ..policy("back", "named", any())
                },
                NetworkPolicy {
                    egress: Some(vec![rule(
                        vec![pods(Some(any()), None)],
                        vec![
                            port(Protocol::Udp, PolicyPortMatch::Named("side".into())),
                            port(Protocol::Udp, PolicyPortMatch::Named("main".into())),
                        ],
                    )]),
                    ..policy("front", "named", any())
                },
            ],
        ),
        (
            "everybody may come in although another policy denies",
            vec![
                NetworkPolicy { ingress: Some(vec![]), ..policy("back", "deny", any()) },
                NetworkPolicy {
                    ingress: Some(vec![PolicyRule::default()]),
                    ..policy("back", "open", select(&[("node", "node-a")]))
                },
            ],
        ),
    ]
}
