//! Endpoint slices as a cluster defines them.

use std::net::IpAddr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::meta::ObjectKey;
use crate::service::Protocol;

/// The label that ties a slice to its service.
pub const LABEL_SERVICE_NAME: &str = "kubernetes.io/service-name";

/// What the addresses of a slice are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum AddressType {
    /// IPv4 addresses.
    IPv4,
    /// IPv6 addresses.
    IPv6,
    /// Host names. No service proxy can use them; the slice is kept without endpoints.
    #[serde(rename = "FQDN")]
    Fqdn,
}

/// What an endpoint says of its state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Conditions {
    /// Takes new connections.
    pub ready: bool,
    /// Would answer, ready or not.
    pub serving: bool,
    /// Is being shut down.
    pub terminating: bool,
}

impl Conditions {
    /// Ready and staying.
    pub const READY: Self = Self { ready: true, serving: true, terminating: false };

    /// The three conditions with Kubernetes' defaults for what is left out.
    pub fn from_parts(
        ready: Option<bool>,
        serving: Option<bool>,
        terminating: Option<bool>,
    ) -> Self {
        let ready = ready.unwrap_or(true);
        Self { ready, serving: serving.unwrap_or(ready), terminating: terminating.unwrap_or(false) }
    }

    /// Able to finish what it has while it shuts down; used when nothing is ready.
    pub fn is_serving_terminating(self) -> bool {
        self.serving && self.terminating
    }
}

impl Default for Conditions {
    fn default() -> Self {
        Self::READY
    }
}

/// For whom an endpoint is meant, as decided by the control plane.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Hints {
    /// Zones.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub zones: Vec<Arc<str>>,
    /// Nodes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<Arc<str>>,
}

impl Hints {
    /// No hint of any kind.
    pub fn is_empty(&self) -> bool {
        self.zones.is_empty() && self.nodes.is_empty()
    }
}

/// A port that the endpoints of a slice have.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct EndpointPort {
    /// Its name, which ties it to a service port.
    #[serde(default)]
    pub name: Arc<str>,
    /// Its protocol; `None` where the sender's API cannot say (KPNG), which matches any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol: Option<Protocol>,
    /// The number; `None` ("all ports") serves no service port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
}

/// One endpoint of a slice.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Endpoint {
    /// Its address. Kubernetes gives further ones no meaning, and they are not kept.
    pub address: IpAddr,
    /// Its state.
    #[serde(default)]
    pub conditions: Conditions,
    /// The pod behind it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<Arc<str>>,
    /// Its host name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hostname: Option<Arc<str>>,
    /// The node it runs on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<Arc<str>>,
    /// The zone it runs in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zone: Option<Arc<str>>,
    /// For whom it is meant; boxed, for most have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hints: Option<Box<Hints>>,
    /// Its share of the traffic relative to others; `None` is 1, 0 takes no new traffic.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<u16>,
}

impl Endpoint {
    /// A ready endpoint with nothing but an address.
    pub fn at(address: IpAddr) -> Self {
        Self {
            address,
            conditions: Conditions::READY,
            pod: None,
            hostname: None,
            node: None,
            zone: None,
            hints: None,
            weight: None,
        }
    }
}

/// The annotation by which a controller says when the change happened that a slice shows.
pub const ANNOTATION_TRIGGER_TIME: &str = "endpoints.kubernetes.io/last-change-trigger-time";

/// When the change happened that a slice shows, in milliseconds, if its controller says so.
///
/// It is not part of what the slice is: slices that differ only in it are equal, or every touch of a
/// controller would be a change.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TriggerTime(pub Option<i64>);

impl PartialEq for TriggerTime {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for TriggerTime {}

/// A slice of a service's endpoints.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EndpointSlice {
    /// Namespace and name.
    pub key: ObjectKey,
    /// The service, in the same namespace; `None` for a slice of nobody.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<Arc<str>>,
    /// What the addresses are.
    pub address_type: AddressType,
    /// The endpoints.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub endpoints: Vec<Endpoint>,
    /// The ports of each of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<EndpointPort>,
    /// When the change happened that it shows.
    #[serde(skip)]
    pub triggered: TriggerTime,
}

impl EndpointSlice {
    /// The key of the service that the slice belongs to.
    pub fn service_key(&self) -> Option<ObjectKey> {
        self.service.as_ref().map(|name| ObjectKey::new(self.key.namespace.clone(), name.clone()))
    }
}
