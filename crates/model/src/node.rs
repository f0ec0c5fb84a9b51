//! Nodes.

use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::meta::Meta;

/// The label that names a node's zone.
pub const LABEL_ZONE: &str = "topology.kubernetes.io/zone";
/// The taint by which the cluster autoscaler announces that a node will go.
pub const TAINT_TO_BE_DELETED: &str = "ToBeDeletedByClusterAutoscaler";

/// An address of a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeAddress {
    /// `InternalIP` or `ExternalIP`; host names are not kept.
    #[serde(rename = "type")]
    pub address_type: Arc<str>,
    /// The address.
    pub ip: IpAddr,
}

/// A taint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Taint {
    /// Its key.
    pub key: Arc<str>,
    /// Its value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<Arc<str>>,
    /// `NoSchedule`, `PreferNoSchedule` or `NoExecute`.
    #[serde(default)]
    pub effect: Arc<str>,
}

/// A node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Node {
    /// Name, labels, annotations.
    pub meta: Meta,
    /// Its addresses.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<NodeAddress>,
    /// The networks its pods get addresses from.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pod_cidrs: Vec<IpNet>,
    /// Its taints.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub taints: Vec<Taint>,
    /// It is being deleted.
    #[serde(default)]
    pub deleting: bool,
}

impl Node {
    /// The zone, if it is labelled with one.
    pub fn zone(&self) -> Option<&Arc<str>> {
        self.meta.labels.get(LABEL_ZONE).filter(|zone| !zone.is_empty())
    }

    /// Whether load balancers should stop sending traffic here.
    pub fn is_leaving(&self) -> bool {
        self.deleting || self.taints.iter().any(|taint| &*taint.key == TAINT_TO_BE_DELETED)
    }
}
