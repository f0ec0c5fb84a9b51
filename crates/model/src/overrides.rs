//! What a person has decided against what the cluster says: a backend drained, weighted, added or
//! removed, a route paused.
//!
//! Overrides are merged where the node view is made, so every plane, every replica and every
//! restart follows them.

use std::net::IpAddr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::meta::{Meta, ObjectKey};

/// The label of overrides that Telaio wrote for somebody, with [`MANAGED_BY`] as its value.
pub const LABEL_MANAGED_BY: &str = "app.kubernetes.io/managed-by";
/// See [`LABEL_MANAGED_BY`].
pub const MANAGED_BY: &str = "telaio";

/// What of its object an override is about.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum OverrideTarget {
    /// The endpoint of a service with this address.
    Address(IpAddr),
    /// The endpoints of this pod.
    Pod(Arc<str>),
    /// The endpoints on this node.
    Node(Arc<str>),
    /// Routes of an Ingress.
    Routes {
        /// Those of this host; `None` for all. Empty for those that have no host.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        host: Option<Arc<str>>,
        /// Those of this path, as the Ingress has it; `None` for all.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        path: Option<Arc<str>>,
    },
}

/// An endpoint that the cluster does not name.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AddedEndpoint {
    /// Its port for every port of the service; `None` is the number that the service has as its
    /// target.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// The node that it runs on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<Arc<str>>,
    /// Its share of the traffic.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<u16>,
}

/// What is done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum OverrideAction {
    /// Nothing new is sent there; what runs may finish. Without fall-back: the person decided.
    Drain,
    /// This share of the traffic, relative to 1 for an endpoint that says nothing.
    Weight(u16),
    /// As if the cluster did not name it.
    Remove,
    /// The endpoint of this address serves too.
    Add(AddedEndpoint),
    /// Requests are answered with 503 and `Retry-After`.
    Pause {
        /// What `Retry-After` says where the override has no end.
        #[serde(rename = "retryAfterS")]
        retry_after_s: u32,
    },
}

/// An override. Its target and its action go together: only routes are paused, and only an address
/// is added.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Override {
    /// Its own name.
    pub meta: Meta,
    /// The service whose endpoints, or the Ingress whose routes, it is about.
    #[serde(alias = "service")]
    pub object: ObjectKey,
    /// Which of them.
    pub target: OverrideTarget,
    /// What is done.
    pub action: OverrideAction,
    /// Who decided.
    #[serde(default)]
    pub by: Arc<str>,
    /// Why.
    #[serde(default)]
    pub reason: Arc<str>,
    /// Seconds since 1970 at which it was decided.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since_s: Option<i64>,
    /// Seconds since 1970 after which it no longer counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until_s: Option<i64>,
}

impl Override {
    /// Whether it still counts.
    pub fn is_active(&self, now_s: i64) -> bool {
        self.until_s.is_none_or(|until| now_s < until)
    }

    /// The service that it is about, if it is about one.
    pub fn service(&self) -> Option<&ObjectKey> {
        (!self.is_about_routes()).then_some(&self.object)
    }

    /// The Ingress that it is about, if it is about one.
    pub fn ingress(&self) -> Option<&ObjectKey> {
        self.is_about_routes().then_some(&self.object)
    }

    /// Whether it is about routes, and not about a service's endpoints.
    pub fn is_about_routes(&self) -> bool {
        matches!(self.target, OverrideTarget::Routes { .. })
    }

    /// Whether Telaio wrote it for somebody; else it stands in a manifest.
    pub fn is_managed(&self) -> bool {
        self.meta.labels.get(LABEL_MANAGED_BY).is_some_and(|by| &**by == MANAGED_BY)
    }
}
