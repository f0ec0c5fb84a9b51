//! Label and field selectors as they stand in a query.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

/// One condition on labels.
#[derive(Debug, Clone, PartialEq, Eq)]
enum LabelCondition {
    Exists(String),
    Missing(String),
    In(String, BTreeSet<String>),
    NotIn(String, BTreeSet<String>),
}

/// `labelSelector`: every condition must hold; none holds for everything.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct LabelQuery(Vec<LabelCondition>);

impl LabelQuery {
    /// Reads `a`, `!a`, `a=b`, `a==b`, `a!=b`, `a in (b,c)` and `a notin (b,c)`, comma-separated.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let mut conditions = Vec::new();
        for part in split_outside_parentheses(text) {
            let part = part.trim();
            if !part.is_empty() {
                conditions.push(parse_condition(part)?);
            }
        }
        Ok(Self(conditions))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        self.0.iter().all(|condition| match condition {
            LabelCondition::Exists(key) => labels.contains_key(key),
            LabelCondition::Missing(key) => !labels.contains_key(key),
            LabelCondition::In(key, values) => labels.get(key).is_some_and(|v| values.contains(v)),
            LabelCondition::NotIn(key, values) => {
                labels.get(key).is_none_or(|value| !values.contains(value))
            }
        })
    }
}

fn parse_condition(part: &str) -> Result<LabelCondition, String> {
    let one = |value: &str| BTreeSet::from([value.trim().to_owned()]);
    if let Some(key) = part.strip_prefix('!') {
        return Ok(LabelCondition::Missing(label_key(key)?));
    }
    if let Some((key, value)) = part.split_once("!=") {
        return Ok(LabelCondition::NotIn(label_key(key)?, one(value)));
    }
    if let Some((key, value)) = part.split_once("==").or_else(|| part.split_once('=')) {
        return Ok(LabelCondition::In(label_key(key)?, one(value)));
    }
    let Some((head, values)) = part.split_once('(') else {
        return Ok(LabelCondition::Exists(label_key(part)?));
    };
    let values = values.strip_suffix(')').ok_or_else(|| format!("{part:?}: no closing bracket"))?;
    let values = values.split(',').map(|value| value.trim().to_owned()).collect();
    let head = head.trim();
    if let Some(key) = head.strip_suffix(" notin") {
        Ok(LabelCondition::NotIn(label_key(key)?, values))
    } else if let Some(key) = head.strip_suffix(" in") {
        Ok(LabelCondition::In(label_key(key)?, values))
    } else {
        Err(format!("{part:?}: expected in or notin"))
    }
}

fn label_key(text: &str) -> Result<String, String> {
    let key = text.trim();
    let allowed = |c: char| c.is_ascii_alphanumeric() || "-_./".contains(c);
    if key.is_empty() || !key.chars().all(allowed) {
        return Err(format!("{text:?} is not a label key"));
    }
    Ok(key.to_owned())
}

fn split_outside_parentheses(text: &str) -> Vec<&str> {
    let (mut parts, mut depth, mut start) = (Vec::new(), 0usize, 0);
    for (at, c) in text.char_indices() {
        match c {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => {
                parts.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[start..]);
    parts
}

/// `fieldSelector`: every comparison must hold; a missing field counts as empty.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct FieldQuery(Vec<FieldCondition>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct FieldCondition {
    path: String,
    value: String,
    equal: bool,
}

impl FieldQuery {
    /// Reads `a.b=c`, `a.b==c` and `a.b!=c`, comma-separated. Fields that no real server selects by
    /// are refused.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let mut conditions = Vec::new();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let (path, value, equal) = if let Some((path, value)) = part.split_once("!=") {
                (path, value, false)
            } else if let Some((path, value)) =
                part.split_once("==").or_else(|| part.split_once('='))
            {
                (path, value, true)
            } else {
                return Err(format!("invalid field selector: {part:?}"));
            };
            let known = matches!(path, "metadata.name" | "metadata.namespace" | "type")
                || path.starts_with("spec.")
                || path.starts_with("status.");
            if !known {
                return Err(format!("field label not supported: {path}"));
            }
            conditions.push(FieldCondition { path: path.into(), value: value.into(), equal });
        }
        Ok(Self(conditions))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn matches(&self, object: &Value) -> bool {
        self.0.iter().all(|condition| {
            let field = condition.path.split('.').try_fold(object, |value, key| value.get(key));
            let equal = match field {
                None | Some(Value::Null) => condition.value.is_empty(),
                Some(Value::String(text)) => *text == condition.value,
                Some(other) => {
                    let text = other.to_string();
                    text == condition.value
                }
            };
            equal == condition.equal
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn labels(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn every_form_of_label_condition_selects() {
        let labels = labels(&[("app", "web"), ("tier", "front")]);
        for yes in
            ["", "app", "!gone", "app=web", "app==web", "app!=db", "gone!=x", "app in (db, web)"]
        {
            assert!(LabelQuery::parse(yes).unwrap().matches(&labels), "{yes}");
        }
        for no in
            ["gone", "!app", "app=db", "app!=web", "app notin (web,db)", "gone in (a)", "app,gone"]
        {
            assert!(!LabelQuery::parse(no).unwrap().matches(&labels), "{no}");
        }
        let both = "app notin (a,b),!service.kubernetes.io/headless,tier in (front)";
        assert!(LabelQuery::parse(both).unwrap().matches(&labels));
    }

    #[test]
    fn a_broken_label_selector_is_refused() {
        for bad in ["app in (a", "app near (a)", "a b", "!"] {
            assert!(LabelQuery::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn fields_are_compared_as_text() {
        let object = json!({"metadata": {"name": "a"}, "type": "kubernetes.io/tls", "spec": {"unschedulable": true}});
        for yes in
            ["metadata.name=a", "type==kubernetes.io/tls", "spec.unschedulable=true", "spec.x="]
        {
            assert!(FieldQuery::parse(yes).unwrap().matches(&object), "{yes}");
        }
        assert!(!FieldQuery::parse("metadata.name!=a").unwrap().matches(&object));
        assert!(FieldQuery::parse("data.x=1").is_err());
        assert!(FieldQuery::parse("metadata.name").is_err());
    }
}
