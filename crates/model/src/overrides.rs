//! What a person has decided against what the cluster says: a backend drained, or weighted.
//!
//! Overrides are merged where the node view is made, so every plane, every replica and every
//! restart follows them.

use std::net::IpAddr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::meta::{Meta, ObjectKey};

/// Which endpoints of the service an override is about.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum OverrideTarget {
    /// The one with this address.
    Address(IpAddr),
    /// Those of this pod.
    Pod(Arc<str>),
    /// Those on this node.
    Node(Arc<str>),
}

/// What is done to them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum OverrideAction {
    /// Nothing new is sent there; what runs may finish. Without fall-back: the person decided.
    Drain,
    /// This share of the traffic, relative to 1 for an endpoint that says nothing.
    Weight(u16),
}

/// An override.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Override {
    /// Its own name.
    pub meta: Meta,
    /// The service whose endpoints it is about.
    pub service: ObjectKey,
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
    /// Seconds since 1970 after which it no longer counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until_s: Option<i64>,
}

impl Override {
    /// Whether it still counts.
    pub fn is_active(&self, now_s: i64) -> bool {
        self.until_s.is_none_or(|until| now_s < until)
    }
}
