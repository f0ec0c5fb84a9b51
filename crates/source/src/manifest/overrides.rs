//! Override, `telaio.dev/v1`: our own kind, by which a person decides about backends and routes.
//!
//! ```yaml
//! apiVersion: telaio.dev/v1
//! kind: Override
//! metadata: {name: drain-web-2, namespace: shop}
//! spec:
//!   service: {name: web}
//!   target: {pod: web-2}        # or {address: 10.0.0.7} or {node: node-1}
//!   action: drain               # remove; weight with weight: 3; add (an address) with port, node, weight
//!   by: anna
//!   reason: disk is failing
//!   until: 2026-12-01T00:00:00Z
//! ---
//! apiVersion: telaio.dev/v1
//! kind: Override
//! metadata: {name: pause-shop, namespace: shop}
//! spec:
//!   ingress: {name: shop, host: shop.example, path: /pay}   # host and path may be left out
//!   action: pause
//!   retryAfter: 120
//! ```

use std::borrow::Cow;
use std::sync::Arc;

use serde::Deserialize;
use telaio_model::{AddedEndpoint, FieldError, Kind, ObjectKey, OverrideAction};

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
#[serde(default, rename_all = "camelCase")]
pub struct OverrideSpec {
    /// The service whose endpoints it is about.
    pub service: Option<OverrideService>,
    /// The Ingress whose routes it is about, in place of a service.
    pub ingress: Option<OverrideIngress>,
    /// Which endpoints.
    #[serde(deserialize_with = "nullable")]
    pub target: OverrideTarget,
    /// `drain`, `weight`, `remove`, `add` or `pause`.
    pub action: Option<String>,
    /// The weight, for `action: weight` and `add`.
    pub weight: Option<i64>,
    /// The port, for `action: add`.
    pub port: Option<i64>,
    /// The node, for `action: add`.
    pub node: Option<String>,
    /// Seconds, for `action: pause`.
    pub retry_after: Option<i64>,
    /// Who decided.
    pub by: Option<String>,
    /// Why.
    pub reason: Option<String>,
    /// Since when, RFC 3339.
    pub since: Option<String>,
    /// Until when, RFC 3339; nothing is for good.
    pub until: Option<String>,
}

/// `spec.ingress` of an Override.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct OverrideIngress {
    /// Its namespace; nothing is the override's own.
    pub namespace: Option<String>,
    /// Its name.
    pub name: Option<String>,
    /// Only this host.
    pub host: Option<String>,
    /// Only this path.
    pub path: Option<String>,
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
        let (object, target) = match (&spec.service, &spec.ingress) {
            (Some(service), None) => {
                let object = Named {
                    what: "service",
                    namespace: service.namespace.as_deref(),
                    name: service.name.as_deref(),
                };
                let object = object.key(&meta.key.namespace, ctx, &mut errors);
                (object, spec.target.to_model(ctx, &mut errors))
            }
            (None, Some(ingress)) => {
                let object = Named {
                    what: "ingress",
                    namespace: ingress.namespace.as_deref(),
                    name: ingress.name.as_deref(),
                };
                let object = object.key(&meta.key.namespace, ctx, &mut errors);
                let mut text = |field: &str, it: &Option<String>| {
                    it.as_deref().map(|it| name(field, it, ctx, &mut errors))
                };
                let host = text("spec.ingress.host", &ingress.host);
                let path = text("spec.ingress.path", &ingress.path);
                (object, Some(telaio_model::OverrideTarget::Routes { host, path }))
            }
            _ => {
                errors.push("spec", "name a service or an ingress, and only one of them");
                (ObjectKey::new("", ""), None)
            }
        };
        let action = spec.action(target.as_ref(), ctx, &mut errors);
        let mut time = |field: &str, text: &Option<String>| {
            text.as_deref().and_then(|text| timestamp_s(field, text, &mut errors))
        };
        let (since_s, until_s) = (time("spec.since", &spec.since), time("spec.until", &spec.until));
        let decision = target.zip(action).map(|(target, action)| telaio_model::Override {
            object,
            meta,
            target,
            action,
            by: ctx.intern(&one_line(spec.by.as_deref().unwrap_or_default())),
            reason: ctx.intern(&one_line(spec.reason.as_deref().unwrap_or_default())),
            since_s,
            until_s,
        });
        errors.finish_with(decision)
    }
}

/// What an override names.
struct Named<'a> {
    what: &'static str,
    namespace: Option<&'a str>,
    name: Option<&'a str>,
}

impl Named<'_> {
    fn key(&self, own: &Arc<str>, ctx: &Context, errors: &mut Errors) -> ObjectKey {
        let name = self.name.unwrap_or_default();
        errors.dns_subdomain(format!("spec.{}.name", self.what), name);
        let namespace = match self.namespace {
            None | Some("") => Arc::clone(own),
            Some(namespace) => {
                errors.dns_label(format!("spec.{}.namespace", self.what), namespace);
                ctx.intern(namespace)
            }
        };
        ObjectKey::new(namespace, ctx.intern(name))
    }
}

impl OverrideTarget {
    fn to_model(&self, ctx: &Context, errors: &mut Errors) -> Option<telaio_model::OverrideTarget> {
        match (self.address.as_deref(), self.pod.as_deref(), self.node.as_deref()) {
            (Some(address), None, None) => {
                let ip = errors.unicast("spec.target.address", address, true)?;
                Some(telaio_model::OverrideTarget::Address(ip))
            }
            (None, Some(pod), None) => {
                let pod = name("spec.target.pod", pod, ctx, errors);
                Some(telaio_model::OverrideTarget::Pod(pod))
            }
            (None, None, Some(node)) => {
                let node = name("spec.target.node", node, ctx, errors);
                Some(telaio_model::OverrideTarget::Node(node))
            }
            _ => {
                errors.push("spec.target", "name one of address, pod and node");
                None
            }
        }
    }
}

impl OverrideSpec {
    fn action(
        &self,
        target: Option<&telaio_model::OverrideTarget>,
        ctx: &Context,
        errors: &mut Errors,
    ) -> Option<OverrideAction> {
        let of_routes = matches!(target, Some(telaio_model::OverrideTarget::Routes { .. }));
        let of_address = matches!(target, Some(telaio_model::OverrideTarget::Address(_)));
        let action = match self.action.as_deref() {
            Some("drain") if self.weight.is_some() => {
                errors.push("spec.weight", "a drained backend has no weight; remove it");
                return None;
            }
            Some("drain") => OverrideAction::Drain,
            Some("remove") => OverrideAction::Remove,
            Some("weight") if self.weight.is_none() => {
                errors.push("spec.weight", "write a number from 0 to 65535");
                return None;
            }
            Some("weight") => OverrideAction::Weight(number("spec.weight", self.weight?, errors)?),
            Some("add") if target.is_some() && !of_address => {
                errors.push("spec.target", "only an address can be added");
                return None;
            }
            Some("add") => {
                let port = self.port.map(|it| number("spec.port", it, errors));
                let weight = self.weight.map(|it| number("spec.weight", it, errors));
                if port == Some(Some(0)) {
                    errors.push("spec.port", "0 is not a port");
                    return None;
                }
                OverrideAction::Add(AddedEndpoint {
                    port: port.flatten(),
                    node: self.node.as_deref().map(|node| name("spec.node", node, ctx, errors)),
                    weight: weight.flatten(),
                })
            }
            Some("pause") => {
                let seconds = self.retry_after.unwrap_or(RETRY_AFTER_S);
                let Some(retry_after_s) = u32::try_from(seconds).ok().filter(|it| *it > 0) else {
                    errors.push("spec.retryAfter", "write a number of seconds, at least 1");
                    return None;
                };
                OverrideAction::Pause { retry_after_s }
            }
            other => {
                errors.push(
                    "spec.action",
                    format_args!(
                        "{} is not known; write drain, weight, remove, add or pause",
                        Quoted(other.unwrap_or(""))
                    ),
                );
                return None;
            }
        };
        let is_pause = matches!(action, OverrideAction::Pause { .. });
        if target.is_some() && of_routes != is_pause {
            errors.push("spec.action", "an ingress is paused, and nothing else is");
            return None;
        }
        Some(action)
    }
}

/// What people wrote to be read by others, as one line: it is printed at terminals and noted in logs.
fn one_line(text: &str) -> Cow<'_, str> {
    let text = text.trim();
    if !text.chars().any(char::is_control) {
        return Cow::Borrowed(text);
    }
    let plain = |it: char| match it {
        '\n' | '\r' | '\t' => ' ',
        it if it.is_control() => char::REPLACEMENT_CHARACTER,
        it => it,
    };
    Cow::Owned(text.chars().map(plain).collect())
}

/// The name of something. Nothing that there is has control characters in it.
fn name(field: &str, text: &str, ctx: &Context, errors: &mut Errors) -> Arc<str> {
    if text.chars().any(char::is_control) {
        errors.push(field, format_args!("{} has control characters in it", Quoted(text)));
    }
    ctx.intern(text)
}

/// What `Retry-After` says unless somebody says otherwise.
const RETRY_AFTER_S: i64 = 60;

fn number(field: &str, number: i64, errors: &mut Errors) -> Option<u16> {
    let valid = u16::try_from(number).ok();
    if valid.is_none() {
        errors.push(field, format_args!("{number} is not valid; write a number from 0 to 65535"));
    }
    valid
}
