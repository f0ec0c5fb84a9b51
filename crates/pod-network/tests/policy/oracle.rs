//! Whether policies allow a connection, from the text of the NetworkPolicy API alone.
//!
//! Slow and simple on purpose, and without a line from the code that it judges.

use std::collections::BTreeMap;
use std::net::IpAddr;

use telaio_model::{
    Labels, NetworkPolicy, ObjectKey, Pod, PodPhase, PolicyPeer, PolicyPort, PolicyPortMatch,
    PolicyRule, Protocol,
};

/// A whole cluster.
#[derive(Debug, Clone, Default)]
pub(crate) struct Cluster {
    pub(crate) policies: BTreeMap<ObjectKey, NetworkPolicy>,
    pub(crate) pods: BTreeMap<ObjectKey, Pod>,
    /// Labels by name of a namespace; one that is not here has none but its name.
    pub(crate) namespaces: BTreeMap<String, Labels>,
}

/// Who wants to talk with whom.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Connection {
    pub(crate) from: IpAddr,
    pub(crate) to: IpAddr,
    /// `None` is a protocol without ports.
    pub(crate) port: Option<(Protocol, u16)>,
}

impl Cluster {
    /// Whether what `node` enforces lets the connection through.
    pub(crate) fn allows(&self, node: &str, connection: &Connection) -> bool {
        let (source, target) = (self.pod_at(connection.from), self.pod_at(connection.to));
        // A pod cannot block access to itself.
        if connection.from == connection.to {
            return true;
        }
        let here = |pod: &&Pod| pod.node.as_deref() == Some(node);
        let leaves = source.filter(here).is_none_or(|pod| {
            self.allowed_by(pod, |policy| &policy.egress, connection.to, connection, target)
        });
        let arrives = target.filter(here).is_none_or(|pod| {
            self.allowed_by(pod, |policy| &policy.ingress, connection.from, connection, target)
        });
        leaves && arrives
    }

    /// The pod that has an address. Pods that have ended have none any more, and pods in the node's network have the node's.
    fn pod_at(&self, ip: IpAddr) -> Option<&Pod> {
        let pods = self.pods.values().filter(|pod| {
            !pod.host_network
                && !matches!(pod.phase, PodPhase::Succeeded | PodPhase::Failed)
                && pod.ips.contains(&ip)
        });
        // While an address goes from one pod to another both may have it.
        pods.max_by_key(|pod| (!pod.terminating, pod.meta.created_s, pod.meta.key.clone()))
    }

    /// If no policy selects the pod in this direction it is not isolated; else some rule of some of them must allow it.
    fn allowed_by(
        &self,
        pod: &Pod,
        rules: impl Fn(&NetworkPolicy) -> &Option<Vec<PolicyRule>>,
        peer: IpAddr,
        connection: &Connection,
        target: Option<&Pod>,
    ) -> bool {
        let mut isolated = false;
        for policy in self.policies.values() {
            let selects = policy.meta.key.namespace == pod.meta.key.namespace
                && policy.pods.matches(&pod.meta.labels);
            let Some(rules) = rules(policy).as_ref().filter(|_| selects) else { continue };
            isolated = true;
            for rule in rules {
                let by_peer = rule.peers.is_empty()
                    || rule.peers.iter().any(|it| self.is_peer(it, &policy.meta.key, peer));
                let by_port = rule.ports.is_empty()
                    || rule.ports.iter().any(|port| is_port(port, connection.port, target));
                if by_peer && by_port {
                    return true;
                }
            }
        }
        !isolated
    }

    fn is_peer(&self, peer: &PolicyPeer, policy: &ObjectKey, ip: IpAddr) -> bool {
        match peer {
            PolicyPeer::Block { cidr, except } => {
                cidr.contains(&ip) && !except.iter().any(|net| net.contains(&ip))
            }
            PolicyPeer::Pods { namespaces, pods } => {
                let Some(pod) = self.pod_at(ip) else { return false };
                let namespace = &pod.meta.key.namespace;
                let in_scope = match namespaces {
                    None => *namespace == policy.namespace,
                    Some(selector) => selector.matches(&self.namespace_labels(namespace)),
                };
                in_scope && pods.as_ref().is_none_or(|pods| pods.matches(&pod.meta.labels))
            }
        }
    }

    fn namespace_labels(&self, name: &str) -> Labels {
        let mut labels = self.namespaces.get(name).cloned().unwrap_or_default();
        labels.insert("kubernetes.io/metadata.name".into(), name.into());
        labels
    }
}

/// Named ports are those of the pod that is connected to.
fn is_port(port: &PolicyPort, asked: Option<(Protocol, u16)>, target: Option<&Pod>) -> bool {
    let Some((protocol, number)) = asked else { return false };
    port.protocol == protocol
        && match &port.port {
            PolicyPortMatch::All => true,
            PolicyPortMatch::Range(first, last) => (*first..=*last).contains(&number),
            PolicyPortMatch::Named(name) => target.is_some_and(|pod| {
                pod.ports.iter().any(|it| {
                    it.protocol == protocol
                        && it.container_port == number
                        && it.name.as_ref() == Some(name)
                })
            }),
        }
}
