//! Override, `telaio.dev/v1`: our own kind, by which a person drains or weights backends.
//!
//! ```yaml
//! apiVersion: telaio.dev/v1
//! kind: Override
//! metadata: {name: drain-web-2, namespace: shop}
//! spec:
//!   service: {name: web}
//!   target: {pod: web-2}        # or {address: 10.0.0.7} or {node: node-1}
//!   action: drain               # or: action: weight, weight: 3
//!   by: anna
//!   reason: disk is failing
//!   until: 2026-12-01T00:00:00Z
//! ```

use serde::Deserialize;
use telaio_model::{FieldError, Kind, ObjectKey, OverrideAction};

use super::check::{Errors, Quoted};
use super::meta::{Annotations, NameRule, timestamp_s};
use super::value::nullable;
use super::{Context, Manifest, ObjectMeta};

/// An Override.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Override {
    /// Metadata.
    #[serde(deserialize_with = "nullable")]
    pub metadata: ObjectMeta,
    /// What was decided.
    #[serde(deserialize_with = "nullable")]
    pub spec: OverrideSpec,
}

/// `spec` of an Override.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct OverrideSpec {
    /// The service whose endpoints it is about.
    #[serde(deserialize_with = "nullable")]
    pub service: OverrideService,
    /// Which of them.
    #[serde(deserialize_with = "nullable")]
    pub target: OverrideTarget,
    /// `drain` or `weight`.
    pub action: Option<String>,
    /// The weight, for `action: weight`.
    pub weight: Option<i64>,
    /// Who decided.
    pub by: Option<String>,
    /// Why.
    pub reason: Option<String>,
    /// Until when, RFC 3339; nothing is for good.
    pub until: Option<String>,
}

/// `spec.service` of an Override.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct OverrideService {
    /// Its namespace; nothing is the override's own.
    pub namespace: Option<String>,
    /// Its name.
    pub name: Option<String>,
}

/// `spec.target` of an Override: one of the three.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct OverrideTarget {
    /// The endpoint with this address.
    pub address: Option<String>,
    /// The endpoints of this pod.
    pub pod: Option<String>,
    /// The endpoints on this node.
    pub node: Option<String>,
}

impl Manifest for Override {
    const KIND: Kind = Kind::Override;
    const KIND_NAME: &'static str = "Override";
    const API_VERSION: &'static str = "telaio.dev/v1";
    const NAMESPACED: bool = true;
    type Model = telaio_model::Override;

    fn metadata(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn into_model(self, ctx: &Context) -> Result<Option<telaio_model::Override>, Vec<FieldError>> {
        let mut errors = Errors::default();
        let meta = self.metadata.to_model::<Self>(
            ctx,
            NameRule::Subdomain,
            Annotations::Ours,
            &mut errors,
        );
        let spec = self.spec;
        let service_name = spec.service.name.as_deref().unwrap_or_default();
        errors.dns_label("spec.service.name", service_name);
        let namespace = match spec.service.namespace.as_deref() {
            None | Some("") => meta.key.namespace.clone(),
            Some(namespace) => {
                errors.dns_label("spec.service.namespace", namespace);
                ctx.intern(namespace)
            }
        };
        let target = spec.target.to_model(ctx, &mut errors);
        let action = action(spec.action.as_deref(), spec.weight, &mut errors);
        let until_s =
            spec.until.as_deref().and_then(|text| timestamp_s("spec.until", text, &mut errors));
        let decision = target.zip(action).map(|(target, action)| telaio_model::Override {
            service: ObjectKey::new(namespace, ctx.intern(service_name)),
            meta,
            target,
            action,
            by: ctx.intern(spec.by.as_deref().unwrap_or_default()),
            reason: ctx.intern(spec.reason.as_deref().unwrap_or_default()),
            until_s,
        });
        errors.finish_with(decision)
    }
}

impl OverrideTarget {
    fn to_model(&self, ctx: &Context, errors: &mut Errors) -> Option<telaio_model::OverrideTarget> {
        match (self.address.as_deref(), self.pod.as_deref(), self.node.as_deref()) {
            (Some(address), None, None) => {
                let ip = errors.unicast("spec.target.address", address, true)?;
                Some(telaio_model::OverrideTarget::Address(ip))
            }
            (None, Some(pod), None) => Some(telaio_model::OverrideTarget::Pod(ctx.intern(pod))),
            (None, None, Some(node)) => Some(telaio_model::OverrideTarget::Node(ctx.intern(node))),
            _ => {
                errors.push("spec.target", "name one of address, pod and node");
                None
            }
        }
    }
}

fn action(
    action: Option<&str>,
    weight: Option<i64>,
    errors: &mut Errors,
) -> Option<OverrideAction> {
    match (action, weight) {
        (Some("drain"), None) => Some(OverrideAction::Drain),
        (Some("drain"), Some(_)) => {
            errors.push("spec.weight", "a drained backend has no weight; remove it");
            None
        }
        (Some("weight"), Some(weight)) => {
            let valid = u16::try_from(weight).ok();
            if valid.is_none() {
                errors.push(
                    "spec.weight",
                    format_args!("{weight} is not a weight; write a number from 0 to 65535"),
                );
            }
            valid.map(OverrideAction::Weight)
        }
        (Some("weight"), None) => {
            errors.push("spec.weight", "write a number from 0 to 65535");
            None
        }
        (other, _) => {
            errors.push(
                "spec.action",
                format_args!("{} is not known; write drain or weight", Quoted(other.unwrap_or(""))),
            );
            None
        }
    }
}
