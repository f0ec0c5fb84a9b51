//! Pods, as far as network policy, host ports and selectors need them.

use std::net::IpAddr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::meta::Meta;
use crate::service::Protocol;

/// Where a pod is in its life.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum PodPhase {
    /// Not started.
    Pending,
    /// Running.
    #[default]
    Running,
    /// Ended well.
    Succeeded,
    /// Ended badly.
    Failed,
    /// Its node cannot be asked.
    Unknown,
}

/// A port that a container names.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ContainerPort {
    /// Its name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<Arc<str>>,
    /// Its number.
    pub container_port: u16,
    /// Its protocol.
    #[serde(default)]
    pub protocol: Protocol,
    /// The port of the node that leads to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_port: Option<u16>,
    /// The address of the node on which it is published; `None` is every one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_ip: Option<IpAddr>,
}

/// A pod, or an instance described as one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Pod {
    /// Name, labels, annotations.
    pub meta: Meta,
    /// The node it runs on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<Arc<str>>,
    /// It uses the node's own network.
    #[serde(default)]
    pub host_network: bool,
    /// `spec.hostname`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hostname: Option<Arc<str>>,
    /// Ports of its containers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<ContainerPort>,
    /// Its addresses.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ips: Vec<IpAddr>,
    /// Where it is in its life.
    #[serde(default)]
    pub phase: PodPhase,
    /// Its `Ready` condition.
    #[serde(default)]
    pub ready: bool,
    /// It is being deleted.
    #[serde(default)]
    pub terminating: bool,
}
