//! Policies for the instances of a node, without an agent.

use std::sync::Arc;

use telaio_model::{
    IpFamily, LabelSelector, Labels, Meta, NetworkPolicy, ObjectKey, Pod, PodPhase,
};
use telaio_pod_network::policy::Keeper;
use telaio_reconcile::SyncKind;

use crate::support::Node;

/// Keeps these policies, and no others. The pods are instances, by name and number; each has its own name as a label.
pub(crate) fn keep(node: &Node, pods: &[(&'static str, u8)], policies: Vec<NetworkPolicy>) {
    let (name, number, pods) = (node.name.clone(), node.number, pods.to_vec());
    node.machine.run(move || {
        let mut keeper = Keeper::open(name.as_str(), &IpFamily::ALL).unwrap();
        for (pod, host) in pods {
            let key = ObjectKey::new("default", pod);
            let told = Pod {
                meta: Meta { labels: label(pod), ..Meta::named(key.clone()) },
                node: Some(name.as_str().into()),
                host_network: false,
                hostname: None,
                ports: vec![],
                ips: [format!("10.77.{number}.{host}"), format!("fd77:{number}::{host}")]
                    .map(|ip| ip.parse().unwrap())
                    .to_vec(),
                phase: PodPhase::Running,
                ready: true,
                terminating: false,
            };
            keeper.world_mut().set_pod(&key, Some(Arc::new(told)));
        }
        for policy in policies {
            keeper.world_mut().set_policy(&policy.meta.key.clone(), Some(Arc::new(policy)));
        }
        keeper.sync(SyncKind::Full).unwrap();
    });
}

fn label(name: &str) -> Labels {
    Labels::from([(Arc::from("name"), Arc::from(name))])
}

/// The instance of this name.
pub(crate) fn select(name: &str) -> LabelSelector {
    LabelSelector { match_labels: label(name), ..LabelSelector::default() }
}

/// A policy for the instance of this name, with nothing in it yet.
pub(crate) fn policy(name: &str) -> NetworkPolicy {
    let meta = Meta::named(ObjectKey::new("default", name));
    NetworkPolicy { meta, pods: select(name), ingress: None, egress: None }
}
