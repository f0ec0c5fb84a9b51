//! Network policies.

use std::sync::Arc;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::meta::{LabelSelector, Meta};
use crate::service::Protocol;

/// Which ports a [`PolicyPort`] means.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum PolicyPortMatch {
    /// Every port of the protocol.
    All,
    /// From the first to the last, both included.
    Range(u16, u16),
    /// The pod's port of this name.
    Named(Arc<str>),
}

/// A port that a rule allows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PolicyPort {
    /// The protocol.
    pub protocol: Protocol,
    /// The ports.
    pub port: PolicyPortMatch,
}

/// The other side of the traffic that a rule allows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum PolicyPeer {
    /// A network, without some parts of it.
    Block {
        /// The network.
        cidr: IpNet,
        /// The parts left out.
        except: Vec<IpNet>,
    },
    /// Pods by their labels; without a namespace selector, those of the policy's namespace.
    Pods {
        /// Which namespaces; `None` is the policy's own.
        namespaces: Option<LabelSelector>,
        /// Which pods in them; `None` is all.
        pods: Option<LabelSelector>,
    },
}

/// One rule: some ports from some peers. An empty list means any.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PolicyRule {
    /// The peers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub peers: Vec<PolicyPeer>,
    /// The ports.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<PolicyPort>,
}

/// A NetworkPolicy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NetworkPolicy {
    /// Name, labels, annotations.
    pub meta: Meta,
    /// The pods it is about.
    #[serde(default)]
    pub pods: LabelSelector,
    /// What may come in; `None`: the policy says nothing about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ingress: Option<Vec<PolicyRule>>,
    /// What may go out; `None`: the policy says nothing about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub egress: Option<Vec<PolicyRule>>,
}
