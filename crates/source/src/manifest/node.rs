//! Node, `v1`.

use serde::Deserialize;
use telaio_model::{FieldError, Kind};

use super::check::{Errors, intern_some};
use super::meta::{Annotations, NameRule};
use super::value::nullable;
use super::{Context, Manifest, ObjectMeta};

/// A Node.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Node {
    /// Metadata.
    #[serde(deserialize_with = "nullable")]
    pub metadata: ObjectMeta,
    /// What was given to it.
    #[serde(deserialize_with = "nullable")]
    pub spec: NodeSpec,
    /// What it says of itself.
    #[serde(deserialize_with = "nullable")]
    pub status: NodeStatus,
}

/// `spec` of a Node.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct NodeSpec {
    /// The first network of its pods.
    #[serde(rename = "podCIDR")]
    pub pod_cidr: Option<String>,
    /// The networks of its pods.
    #[serde(rename = "podCIDRs", deserialize_with = "nullable")]
    pub pod_cidrs: Vec<String>,
    /// Its taints.
    #[serde(deserialize_with = "nullable")]
    pub taints: Vec<Taint>,
}

/// One of `spec.taints`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Taint {
    /// Its key.
    pub key: String,
    /// Its value.
    pub value: Option<String>,
    /// Its effect.
    pub effect: Option<String>,
}

/// `status` of a Node.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct NodeStatus {
    /// Its addresses and names.
    #[serde(deserialize_with = "nullable")]
    pub addresses: Vec<NodeAddress>,
}

/// One of `status.addresses`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct NodeAddress {
    /// `InternalIP`, `ExternalIP`, `Hostname` and others; only the first two are used.
    #[serde(rename = "type")]
    pub address_type: String,
    /// The address.
    pub address: String,
}

impl Manifest for Node {
    const KIND: Kind = Kind::Node;
    const KIND_NAME: &'static str = "Node";
    const API_VERSION: &'static str = "v1";
    const NAMESPACED: bool = false;
    type Model = telaio_model::Node;

    fn metadata(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn into_model(self, ctx: &Context) -> Result<Option<telaio_model::Node>, Vec<FieldError>> {
        let mut errors = Errors::default();
        let meta = self.metadata.to_model::<Self>(
            ctx,
            NameRule::Subdomain,
            Annotations::Ours,
            &mut errors,
        );
        let mut addresses = Vec::new();
        for (i, address) in self.status.addresses.iter().enumerate() {
            if !matches!(address.address_type.as_str(), "InternalIP" | "ExternalIP") {
                continue;
            }
            let path = format_args!("status.addresses[{i}].address");
            addresses.extend(errors.ip(path, &address.address).map(|ip| {
                let address_type = ctx.intern(&address.address_type);
                telaio_model::NodeAddress { address_type, ip }
            }));
        }
        let mut pod_cidrs = Vec::new();
        match (self.spec.pod_cidr.as_deref(), self.spec.pod_cidrs.as_slice()) {
            (Some(cidr), []) if !cidr.is_empty() => {
                pod_cidrs.extend(errors.net("spec.podCIDR", cidr));
            }
            (_, cidrs) => {
                for (i, cidr) in cidrs.iter().enumerate() {
                    pod_cidrs.extend(errors.net(format_args!("spec.podCIDRs[{i}]"), cidr));
                }
            }
        }
        let taints = self.spec.taints.iter().map(|taint| telaio_model::Taint {
            key: ctx.intern(&taint.key),
            value: intern_some(ctx, taint.value.as_deref()),
            effect: ctx.intern(taint.effect.as_deref().unwrap_or_default()),
        });
        let node = telaio_model::Node {
            meta,
            addresses,
            pod_cidrs,
            taints: taints.collect(),
            deleting: self.metadata.deletion_timestamp.is_some(),
        };
        errors.finish(Some(node))
    }
}
