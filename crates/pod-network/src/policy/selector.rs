//! Label selectors in one form: what selects the same in the same words is the same value.
//!
//! Policies repeat each other's selectors; in this form they can be compared, ordered and counted, so that
//! whoever is named by ten policies is looked for once.

use std::sync::Arc;

use telaio_model::{LabelSelector, Labels, SelectorOperator};

/// One condition on a label.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Condition {
    /// It has one of these values, in order.
    In(Arc<str>, Box<[Arc<str>]>),
    /// It is missing or has none of these.
    NotIn(Arc<str>, Box<[Arc<str>]>),
    /// It is there.
    Exists(Arc<str>),
    /// It is not there.
    Missing(Arc<str>),
}

impl Condition {
    fn holds(&self, labels: &Labels) -> bool {
        let listed = |name: &str, values: &[Arc<str>]| {
            labels.get(name).is_some_and(|value| values.binary_search(value).is_ok())
        };
        match self {
            Self::In(name, values) => listed(name, values),
            Self::NotIn(name, values) => !listed(name, values),
            Self::Exists(name) => labels.contains_key(name),
            Self::Missing(name) => !labels.contains_key(name),
        }
    }
}

/// Conditions that must all hold; none of them: everything is selected.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Selector(Box<[Condition]>);

impl Selector {
    /// The same in our form.
    pub(super) fn of(selector: &LabelSelector) -> Self {
        let equal = selector
            .match_labels
            .iter()
            .map(|(name, value)| Condition::In(Arc::clone(name), [Arc::clone(value)].into()));
        let further = selector.match_expressions.iter().map(|requirement| {
            let name = Arc::clone(&requirement.key);
            match requirement.operator {
                SelectorOperator::In => Condition::In(name, ordered(&requirement.values)),
                SelectorOperator::NotIn => Condition::NotIn(name, ordered(&requirement.values)),
                SelectorOperator::Exists => Condition::Exists(name),
                SelectorOperator::DoesNotExist => Condition::Missing(name),
            }
        });
        let mut conditions: Vec<Condition> = equal.chain(further).collect();
        conditions.sort();
        conditions.dedup();
        Self(conditions.into())
    }

    /// Whether an object with these labels is selected.
    pub(super) fn matches(&self, labels: &Labels) -> bool {
        self.0.iter().all(|condition| condition.holds(labels))
    }
}

fn ordered(values: &[Arc<str>]) -> Box<[Arc<str>]> {
    let mut values = values.to_vec();
    values.sort();
    values.dedup();
    values.into()
}

/// In which namespaces pods are looked for.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Scope {
    /// In this one.
    Namespace(Arc<str>),
    /// In those that are selected.
    Selected(Selector),
}

/// Pods, told by labels.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct PodSelector {
    /// Where.
    pub(super) scope: Scope,
    /// Which of them.
    pub(super) pods: Selector,
}

#[cfg(test)]
mod tests {
    use telaio_model::SelectorRequirement;

    use super::*;

    fn labels(pairs: &[(&str, &str)]) -> Labels {
        pairs.iter().map(|(name, value)| (Arc::from(*name), Arc::from(*value))).collect()
    }

    fn requirement(key: &str, operator: SelectorOperator, values: &[&str]) -> SelectorRequirement {
        let values = values.iter().map(|value| Arc::from(*value)).collect();
        SelectorRequirement { key: key.into(), operator, values }
    }

    #[test]
    fn two_spellings_of_one_selector_are_equal() {
        let one = LabelSelector {
            match_labels: labels(&[("app", "web")]),
            match_expressions: vec![requirement("tier", SelectorOperator::In, &["b", "a", "b"])],
        };
        let other = LabelSelector {
            match_labels: Labels::new(),
            match_expressions: vec![
                requirement("tier", SelectorOperator::In, &["a", "b"]),
                requirement("app", SelectorOperator::In, &["web"]),
            ],
        };
        assert_eq!(Selector::of(&one), Selector::of(&other));
    }

    #[test]
    fn it_selects_what_the_model_selects() {
        use SelectorOperator::{DoesNotExist, Exists, In, NotIn};
        let all = [labels(&[]), labels(&[("a", "1")]), labels(&[("a", "2"), ("b", "1")])];
        for operator in [In, NotIn, Exists, DoesNotExist] {
            for key in ["a", "b"] {
                let selector = LabelSelector {
                    match_labels: Labels::new(),
                    match_expressions: vec![requirement(key, operator, &["1"])],
                };
                for labels in &all {
                    assert_eq!(Selector::of(&selector).matches(labels), selector.matches(labels));
                }
            }
        }
    }
}
