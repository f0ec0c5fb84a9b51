//! Names, labels and selectors: what every object has.

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::labels::Labels;

/// The name of an object within its kind. Cluster-wide kinds have an empty namespace.
#[derive(Debug, Clone, Eq, Serialize, Deserialize)]
pub struct ObjectKey {
    /// The namespace, empty for cluster-wide kinds.
    #[serde(default, skip_serializing_if = "str_is_empty")]
    pub namespace: Arc<str>,
    /// The name.
    pub name: Arc<str>,
}

fn str_is_empty(text: &Arc<str>) -> bool {
    text.is_empty()
}

impl ObjectKey {
    /// A key from its two parts.
    pub fn new(namespace: impl Into<Arc<str>>, name: impl Into<Arc<str>>) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }

    /// The key of a cluster-wide object.
    pub fn cluster(name: impl Into<Arc<str>>) -> Self {
        Self::new("", name)
    }

    /// Reads `namespace/name`; a text without a slash is the name of a cluster-wide object.
    pub fn parse(text: &str) -> Self {
        match text.split_once('/') {
            Some((namespace, name)) => Self::new(namespace, name),
            None => Self::cluster(text),
        }
    }
}

/// By hand, because maps of objects compare little else: names differ sooner than namespaces.
impl PartialEq for ObjectKey {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name && self.namespace == other.namespace
    }
}

impl Hash for ObjectKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.namespace.hash(state);
        self.name.hash(state);
    }
}

/// By namespace, then by name. By hand for the same reason: most objects that
/// meet share the text of their namespace, which then need not be read.
impl Ord for ObjectKey {
    fn cmp(&self, other: &Self) -> Ordering {
        let same_text = Arc::ptr_eq(&self.namespace, &other.namespace);
        let namespaces =
            if same_text { Ordering::Equal } else { self.namespace.cmp(&other.namespace) };
        namespaces.then_with(|| self.name.cmp(&other.name))
    }
}

impl PartialOrd for ObjectKey {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.namespace.is_empty() {
            f.write_str(&self.name)
        } else {
            write!(f, "{}/{}", self.namespace, self.name)
        }
    }
}

/// What is kept of an object's metadata. Resource versions, managed fields and the like are not:
/// two objects are equal when they mean the same.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Meta {
    /// Namespace and name.
    #[serde(flatten)]
    pub key: ObjectKey,
    /// Labels.
    #[serde(default, skip_serializing_if = "Labels::is_empty")]
    pub labels: Labels,
    /// Annotations.
    #[serde(default, skip_serializing_if = "Labels::is_empty")]
    pub annotations: Labels,
    /// Seconds since 1970 at which the object was made; decides between conflicting objects.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created_s: Option<i64>,
}

impl Meta {
    /// Metadata with a name and nothing else.
    pub fn named(key: ObjectKey) -> Self {
        Self { key, labels: Labels::new(), annotations: Labels::new(), created_s: None }
    }
}

/// How a [`SelectorRequirement`] compares.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum SelectorOperator {
    /// The label has one of the values.
    In,
    /// The label is missing or has none of the values.
    NotIn,
    /// The label is there.
    Exists,
    /// The label is not there.
    DoesNotExist,
}

/// One condition on a label.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SelectorRequirement {
    /// The label.
    pub key: Arc<str>,
    /// The comparison.
    pub operator: SelectorOperator,
    /// The values for `In` and `NotIn`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub values: Vec<Arc<str>>,
}

/// Kubernetes' label selector; an empty one matches everything.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LabelSelector {
    /// Labels that must have exactly these values.
    #[serde(default, skip_serializing_if = "Labels::is_empty")]
    pub match_labels: Labels,
    /// Further conditions, all of which must hold.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub match_expressions: Vec<SelectorRequirement>,
}

impl LabelSelector {
    /// Whether an object with these labels is selected.
    pub fn matches(&self, labels: &Labels) -> bool {
        self.match_labels.iter().all(|(key, value)| labels.get(key) == Some(value))
            && self.match_expressions.iter().all(|requirement| {
                let value = labels.get(&requirement.key);
                let listed = || value.is_some_and(|value| requirement.values.contains(value));
                match requirement.operator {
                    SelectorOperator::In => listed(),
                    SelectorOperator::NotIn => !listed(),
                    SelectorOperator::Exists => value.is_some(),
                    SelectorOperator::DoesNotExist => value.is_none(),
                }
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(pairs: &[(&str, &str)]) -> Labels {
        pairs.iter().map(|(key, value)| (Arc::from(*key), Arc::from(*value))).collect()
    }

    #[test]
    fn a_selector_needs_every_condition() {
        let selector = LabelSelector {
            match_labels: labels(&[("app", "web")]),
            match_expressions: vec![
                SelectorRequirement {
                    key: "tier".into(),
                    operator: SelectorOperator::NotIn,
                    values: vec!["cache".into()],
                },
                SelectorRequirement {
                    key: "gone".into(),
                    operator: SelectorOperator::DoesNotExist,
                    values: vec![],
                },
            ],
        };
        assert!(selector.matches(&labels(&[("app", "web")])));
        assert!(!selector.matches(&labels(&[("app", "web"), ("tier", "cache")])));
        assert!(!selector.matches(&labels(&[("app", "web"), ("gone", "")])));
        assert!(!selector.matches(&labels(&[])));
        assert!(LabelSelector::default().matches(&labels(&[])));
    }
}
