//! Labels and annotations: few short texts each, in every object, many times over.
//!
//! Kept as one ordered list that clones share, because a cluster has as many of these as objects and
//! most have one or two entries: a tree for each would be most of what is held of a service.
//!
//! ```
//! use telaio_model::Labels;
//!
//! let mut labels: Labels = [("app".into(), "web".into())].into_iter().collect();
//! let before = labels.clone();
//! labels.insert("tier".into(), "front".into());
//! assert_eq!(labels.get("tier").map(|tier| &**tier), Some("front"));
//! assert_eq!((before.len(), labels.len()), (1, 2));
//! ```

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A text and what it says.
type Entry = (Arc<str>, Arc<str>);

/// Labels or annotations, ordered. Clones share them until one is changed.
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Labels(Arc<[Entry]>);

impl Labels {
    /// None.
    pub fn new() -> Self {
        Self::default()
    }

    /// There are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// What the label of this name says.
    pub fn get(&self, name: &str) -> Option<&Arc<str>> {
        self.find(name).ok().map(|at| &self.0[at].1)
    }

    /// Whether there is a label of this name.
    pub fn contains_key(&self, name: &str) -> bool {
        self.find(name).is_ok()
    }

    /// All of them, in order of their names.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&Arc<str>, &Arc<str>)> {
        self.0.iter().map(|(name, value)| (name, value))
    }

    /// Adds a label; gives what the one of that name said before. Costs a copy of the list: make long
    /// ones by collecting.
    pub fn insert(&mut self, name: Arc<str>, value: Arc<str>) -> Option<Arc<str>> {
        let mut entries = self.0.to_vec();
        let before = match self.find(&name) {
            Ok(at) => Some(std::mem::replace(&mut entries[at].1, value)),
            Err(at) => {
                entries.insert(at, (name, value));
                None
            }
        };
        self.0 = entries.into();
        before
    }

    fn find(&self, name: &str) -> Result<usize, usize> {
        self.0.binary_search_by(|(other, _)| (**other).cmp(name))
    }
}

impl fmt::Debug for Labels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

/// Of two labels of one name the later one counts.
impl FromIterator<Entry> for Labels {
    fn from_iter<T: IntoIterator<Item = Entry>>(entries: T) -> Self {
        let mut entries = entries.into_iter();
        // The shared list of none takes no memory, so the usual case must not make one.
        let Some(first) = entries.next() else { return Self::default() };
        let mut all: Vec<Entry> = [first].into_iter().chain(entries).collect();
        if !all.is_sorted_by(|(one, _), (other, _)| one < other) {
            all = all.into_iter().collect::<BTreeMap<_, _>>().into_iter().collect();
        }
        Self(all.into())
    }
}

impl<const N: usize> From<[Entry; N]> for Labels {
    fn from(entries: [Entry; N]) -> Self {
        entries.into_iter().collect()
    }
}

impl Extend<Entry> for Labels {
    fn extend<T: IntoIterator<Item = Entry>>(&mut self, entries: T) {
        for (name, value) in entries {
            self.insert(name, value);
        }
    }
}

impl Serialize for Labels {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter())
    }
}

impl<'de> Deserialize<'de> for Labels {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(BTreeMap::deserialize(deserializer)?.into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(pairs: &[(&str, &str)]) -> Labels {
        pairs.iter().map(|(name, value)| (Arc::from(*name), Arc::from(*value))).collect()
    }

    #[test]
    fn they_are_in_order_and_the_later_of_two_counts() {
        let labels = labels(&[("b", "1"), ("a", "2"), ("b", "3")]);
        let found: Vec<_> = labels.iter().map(|(name, value)| (&**name, &**value)).collect();
        assert_eq!(found, [("a", "2"), ("b", "3")]);
        assert!(labels.contains_key("a") && !labels.contains_key("c"));
    }

    #[test]
    fn a_change_of_one_clone_is_not_seen_by_the_other() {
        let one = labels(&[("a", "1")]);
        let mut other = one.clone();
        assert_eq!(other.insert("a".into(), "2".into()).as_deref(), Some("1"));
        assert_eq!(other.insert("0".into(), "3".into()), None);
        assert_eq!(one, labels(&[("a", "1")]));
        assert_eq!(other, labels(&[("0", "3"), ("a", "2")]));
    }

    #[test]
    fn their_json_is_a_map() {
        let labels = labels(&[("a", "1"), ("b", "2")]);
        let json = serde_json::to_string(&labels).unwrap();
        assert_eq!(json, r#"{"a":"1","b":"2"}"#);
        assert_eq!(serde_json::from_str::<Labels>(&json).unwrap(), labels);
    }
}
