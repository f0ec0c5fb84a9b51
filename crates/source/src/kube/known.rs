//! What a kind's watcher remembers of what it has sent: the keys, and a hash of each value.
//!
//! With it a second list sends only differences, and notices what was deleted while nobody was
//! listening. The objects themselves are the brain's to keep.

use std::collections::BTreeMap;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::io;

use telaio_model::{Kind, Object, ObjectChange, ObjectKey, ObjectRef};

#[derive(Debug, Clone, Copy)]
struct Entry {
    content: u64,
    /// The list that last had the object.
    list: u32,
}

/// What was sent of one kind.
#[derive(Debug)]
pub(super) struct Known {
    kind: Kind,
    sent: BTreeMap<ObjectKey, Entry>,
    /// Objects that could not be used, with the list that last had them.
    bad: BTreeMap<ObjectKey, u32>,
    list: u32,
    /// Keyed by chance: nobody can make two values that look the same.
    hasher: RandomState,
}

/// What the end of a list tells.
#[derive(Debug, Default)]
pub(super) struct Vanished {
    /// The deletions that nobody told us of.
    pub(super) changes: Vec<ObjectChange>,
    /// Objects that could not be used, and are gone.
    pub(super) bad: Vec<ObjectKey>,
}

impl Known {
    pub(super) fn new(kind: Kind) -> Self {
        Self {
            kind,
            sent: BTreeMap::new(),
            bad: BTreeMap::new(),
            list: 0,
            hasher: RandomState::new(),
        }
    }

    /// A list begins: what it does not have by its end is gone. A list that was broken off counts
    /// for nothing.
    pub(super) fn begin_list(&mut self) {
        self.list = self.list.wrapping_add(1);
    }

    /// The object is now this. Gives the change, if it is one.
    pub(super) fn set(&mut self, object: Object) -> Option<ObjectChange> {
        let entry = Entry { content: self.content(&object), list: self.list };
        let before = self.sent.insert(object.key().clone(), entry);
        let same = before.is_some_and(|before| before.content == entry.content);
        (!same).then_some(ObjectChange::Set(object))
    }

    /// The object is there but cannot be used: what was sent of it stands.
    pub(super) fn set_bad(&mut self, key: &ObjectKey) {
        self.bad.insert(key.clone(), self.list);
        if let Some(entry) = self.sent.get_mut(key) {
            entry.list = self.list;
        }
    }

    /// The object can be used, or is gone. Says whether it could not before.
    pub(super) fn clear_bad(&mut self, key: &ObjectKey) -> bool {
        // Nearly always empty, and then no look-up.
        !self.bad.is_empty() && self.bad.remove(key).is_some()
    }

    /// The object is gone. Gives the change, if it was sent before.
    pub(super) fn delete(&mut self, key: &ObjectKey) -> Option<ObjectChange> {
        self.sent.remove(key).map(|_| deleted(self.kind, key.clone()))
    }

    /// The list is complete.
    pub(super) fn end_list(&mut self) -> Vanished {
        let list = self.list;
        let changes = self.sent.extract_if(.., |_, entry| entry.list != list);
        let changes = changes.map(|(key, _)| deleted(self.kind, key)).collect();
        let bad = self.bad.extract_if(.., |_, seen| *seen != list).map(|(key, _)| key).collect();
        Vanished { changes, bad }
    }

    fn content(&self, object: &Object) -> u64 {
        let mut writer = HashWriter(self.hasher.build_hasher());
        // Neither the values nor the writer can fail.
        let _ = serde_json::to_writer(&mut writer, object);
        writer.0.finish()
    }
}

fn deleted(kind: Kind, key: ObjectKey) -> ObjectChange {
    ObjectChange::Delete(ObjectRef::new(kind, key))
}

struct HashWriter<H>(H);

impl<H: std::hash::Hasher> io::Write for HashWriter<H> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use telaio_model::{Meta, Namespace};

    use super::*;

    fn namespace(name: &str, label: &str) -> Object {
        let mut meta = Meta::named(ObjectKey::cluster(name));
        meta.labels.insert("label".into(), label.into());
        Namespace { meta }.into()
    }

    fn keys(changes: &[ObjectChange]) -> Vec<String> {
        changes.iter().map(|change| change.object_ref().key.to_string()).collect()
    }

    #[test]
    fn only_differences_are_changes() {
        let mut known = Known::new(Kind::Namespace);
        assert!(known.set(namespace("a", "1")).is_some());
        assert!(known.set(namespace("a", "1")).is_none());
        assert!(known.set(namespace("a", "2")).is_some());
        assert!(known.delete(&ObjectKey::cluster("a")).is_some());
        assert!(known.delete(&ObjectKey::cluster("a")).is_none());
        assert!(known.set(namespace("a", "2")).is_some());
    }

    #[test]
    fn what_a_list_does_not_have_is_deleted_at_its_end() {
        let mut known = Known::new(Kind::Namespace);
        known.begin_list();
        for name in ["a", "b", "c"] {
            known.set(namespace(name, "1"));
        }
        assert!(known.end_list().changes.is_empty());
        // Broken off after it had b, which is gone when the next one comes.
        known.begin_list();
        known.set(namespace("b", "1"));
        known.begin_list();
        known.set(namespace("a", "1"));
        assert_eq!(keys(&known.end_list().changes), ["b", "c"]);
    }

    #[test]
    fn an_object_that_cannot_be_used_keeps_what_was_sent() {
        let mut known = Known::new(Kind::Namespace);
        known.begin_list();
        known.set(namespace("a", "1"));
        known.end_list();
        known.begin_list();
        let key = ObjectKey::cluster("a");
        known.set_bad(&key);
        let vanished = known.end_list();
        assert!(vanished.changes.is_empty() && vanished.bad.is_empty());
        known.begin_list();
        let vanished = known.end_list();
        assert_eq!((keys(&vanished.changes), vanished.bad), (vec!["a".to_owned()], vec![key]));
    }
}
