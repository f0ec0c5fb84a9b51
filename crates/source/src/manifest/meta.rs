//! Metadata and label selectors.

use std::collections::BTreeMap;

use serde::Deserialize;
use telaio_model::{Labels, Meta, ObjectKey, SelectorOperator, SelectorRequirement};

use super::check::{Errors, Quoted};
use super::value::nullable;
use super::{Context, Manifest};

/// On an EndpointSlice or a Pod: the share of traffic of its endpoints, 0–65535, relative to 1.
pub const ANNOTATION_WEIGHT: &str = "telaio.dev/weight";

/// Large, and of no meaning to anybody but kubectl.
const ANNOTATION_LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// `metadata`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ObjectMeta {
    /// The name.
    pub name: Option<String>,
    /// The namespace.
    pub namespace: Option<String>,
    /// Labels.
    #[serde(deserialize_with = "nullable")]
    pub labels: BTreeMap<String, String>,
    /// Annotations.
    #[serde(deserialize_with = "nullable")]
    pub annotations: BTreeMap<String, String>,
    /// When it was made, RFC 3339.
    pub creation_timestamp: Option<String>,
    /// When its deletion was asked for, RFC 3339.
    pub deletion_timestamp: Option<String>,
    /// The API server's version of it.
    pub resource_version: Option<String>,
    /// What tells it from others that had its name before.
    pub uid: Option<String>,
}

/// Which names a kind allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NameRule {
    /// One DNS label.
    Label,
    /// DNS labels with dots between.
    Subdomain,
}

/// Which annotations are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Annotations {
    /// All but kubectl's copy of the manifest.
    All,
    /// Those of `telaio.dev`, `kubernetes.io` and flannel. For kinds on which controllers keep notes that
    /// change often and mean nothing to us.
    Ours,
}

/// What the annotations begin with that mean something to us.
const OUR_ANNOTATIONS: [&str; 3] = ["telaio.dev/", "kubernetes.io/", "flannel.alpha.coreos.com/"];

impl Annotations {
    fn keeps(self, name: &str) -> bool {
        match self {
            Self::All => name != ANNOTATION_LAST_APPLIED,
            Self::Ours => OUR_ANNOTATIONS.iter().any(|prefix| name.starts_with(prefix)),
        }
    }
}

impl ObjectMeta {
    /// The key of the object, checked.
    pub(super) fn key<M: Manifest>(
        &self,
        ctx: &Context,
        rule: NameRule,
        errors: &mut Errors,
    ) -> ObjectKey {
        let name = self.name.as_deref().unwrap_or_default();
        match (name, rule) {
            ("", _) => errors.push("metadata.name", "a name is required"),
            (_, NameRule::Label) => errors.dns_label("metadata.name", name),
            (_, NameRule::Subdomain) => errors.dns_subdomain("metadata.name", name),
        }
        let namespace = match self.namespace.as_deref() {
            _ if !M::NAMESPACED => ctx.intern(""),
            None | Some("") => ctx.default_namespace.clone(),
            Some(namespace) => {
                errors.dns_label("metadata.namespace", namespace);
                ctx.intern(namespace)
            }
        };
        // Names go through the interner too: the slices and pods of a service repeat its name.
        ObjectKey::new(namespace, ctx.intern(name))
    }

    /// The model's metadata, checked.
    pub(super) fn to_model<M: Manifest>(
        &self,
        ctx: &Context,
        rule: NameRule,
        annotations: Annotations,
        errors: &mut Errors,
    ) -> Meta {
        Meta {
            key: self.key::<M>(ctx, rule, errors),
            labels: labels(ctx, &self.labels),
            annotations: self
                .annotations
                .iter()
                .filter(|(name, _)| annotations.keeps(name))
                .map(|(name, value)| (ctx.intern(name), ctx.intern(value)))
                .collect(),
            created_s: self
                .creation_timestamp
                .as_deref()
                .and_then(|text| timestamp_s("metadata.creationTimestamp", text, errors)),
        }
    }

    /// The weight that an annotation gives.
    pub(super) fn weight(&self, errors: &mut Errors) -> Option<u16> {
        let text = self.annotations.get(ANNOTATION_WEIGHT)?;
        let weight = text.trim().parse().ok();
        if weight.is_none() {
            errors.push(
                format_args!("metadata.annotations[{ANNOTATION_WEIGHT}]"),
                format_args!("{} is not a weight; write a number from 0 to 65535", Quoted(text)),
            );
        }
        weight
    }
}

/// Labels with the texts shared.
pub(super) fn labels(ctx: &Context, labels: &BTreeMap<String, String>) -> Labels {
    labels.iter().map(|(key, value)| (ctx.intern(key), ctx.intern(value))).collect()
}

/// Seconds since 1970 of an RFC 3339 time.
pub(super) fn timestamp_s(path: &str, text: &str, errors: &mut Errors) -> Option<i64> {
    let timestamp = text.parse::<jiff::Timestamp>().ok();
    if timestamp.is_none() {
        errors.push(
            path,
            format_args!("{} is not a time; write it as 2026-01-31T12:00:00Z", Quoted(text)),
        );
    }
    timestamp.map(jiff::Timestamp::as_second)
}

/// A label selector.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LabelSelector {
    /// Labels that must have exactly these values.
    #[serde(deserialize_with = "nullable")]
    pub match_labels: BTreeMap<String, String>,
    /// Further conditions.
    #[serde(deserialize_with = "nullable")]
    pub match_expressions: Vec<LabelSelectorRequirement>,
}

/// One condition on a label.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct LabelSelectorRequirement {
    /// The label.
    pub key: String,
    /// `In`, `NotIn`, `Exists` or `DoesNotExist`.
    pub operator: String,
    /// The values for `In` and `NotIn`.
    #[serde(deserialize_with = "nullable")]
    pub values: Vec<String>,
}

impl LabelSelector {
    /// The model's selector, checked.
    pub(super) fn to_model(
        &self,
        ctx: &Context,
        path: &str,
        errors: &mut Errors,
    ) -> telaio_model::LabelSelector {
        let mut match_expressions = Vec::with_capacity(self.match_expressions.len());
        for (i, requirement) in self.match_expressions.iter().enumerate() {
            let path = format!("{path}.matchExpressions[{i}]");
            match_expressions.extend(requirement.to_model(ctx, &path, errors));
        }
        telaio_model::LabelSelector {
            match_labels: labels(ctx, &self.match_labels),
            match_expressions,
        }
    }
}

impl LabelSelectorRequirement {
    fn to_model(
        &self,
        ctx: &Context,
        path: &str,
        errors: &mut Errors,
    ) -> Option<SelectorRequirement> {
        let operator = match self.operator.as_str() {
            "In" => SelectorOperator::In,
            "NotIn" => SelectorOperator::NotIn,
            "Exists" => SelectorOperator::Exists,
            "DoesNotExist" => SelectorOperator::DoesNotExist,
            other => {
                errors.push(
                    format_args!("{path}.operator"),
                    format_args!(
                        "{} is not known; write In, NotIn, Exists or DoesNotExist",
                        Quoted(other)
                    ),
                );
                return None;
            }
        };
        let needs_values = matches!(operator, SelectorOperator::In | SelectorOperator::NotIn);
        if needs_values == self.values.is_empty() {
            let message = if needs_values {
                "In and NotIn need at least one value"
            } else {
                "Exists and DoesNotExist take no values"
            };
            errors.push(format_args!("{path}.values"), message);
            return None;
        }
        Some(SelectorRequirement {
            key: ctx.intern(&self.key),
            operator,
            values: self.values.iter().map(|value| ctx.intern(value)).collect(),
        })
    }
}
