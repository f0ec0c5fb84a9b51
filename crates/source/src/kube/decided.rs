//! Overrides that stand in a ConfigMap: its entries become objects like all others.
//!
//! A ConfigMap decides about its own namespace only, except in the one that [`KubeOptions`] names:
//! whoever may write ConfigMaps somewhere must not decide about services elsewhere.
//!
//! [`KubeOptions`]: super::KubeOptions

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use telaio_model::{ConfigMap, Kind, Object, ObjectChange, ObjectKey, ObjectRef};

use crate::manifest::{Context, Format, read_file_content};
use crate::overrides::LABEL_OVERRIDES;
use crate::{Problem, Status};

/// What each ConfigMap holds.
pub(super) struct Decided {
    ctx: Context,
    status: Arc<Status>,
    /// Whose ConfigMaps decide about everything.
    namespace: String,
    of: BTreeMap<ObjectKey, BTreeSet<ObjectRef>>,
}

impl Decided {
    pub(super) fn new(ctx: Context, status: Arc<Status>, namespace: String) -> Self {
        Self { ctx, status, namespace, of: BTreeMap::new() }
    }

    /// Adds what the ConfigMaps among `changes` say.
    pub(super) fn extend(&mut self, changes: &mut Vec<ObjectChange>) {
        let mut more = Vec::new();
        for change in &*changes {
            match change {
                ObjectChange::Set(Object::ConfigMap(map))
                    if map.meta.labels.contains_key(LABEL_OVERRIDES) =>
                {
                    self.set(map, &mut more);
                }
                // It may have lost the label.
                ObjectChange::Set(Object::ConfigMap(map)) => self.remove(&map.meta.key, &mut more),
                ObjectChange::Delete(gone) if gone.kind == Kind::ConfigMap => {
                    self.remove(&gone.key, &mut more);
                }
                _ => {}
            }
        }
        changes.append(&mut more);
    }

    fn set(&mut self, map: &ConfigMap, changes: &mut Vec<ObjectChange>) {
        let mut now = BTreeSet::new();
        let mut problems = Vec::new();
        for (name, text) in &map.data {
            let origin = format!("ConfigMap {} entry {name}", map.meta.key);
            let content = read_file_content(&origin, text.as_bytes(), Format::Yaml, &self.ctx);
            problems.extend(content.problems);
            for found in content.objects {
                let Object::Override(decided) = &found.object else { continue };
                let own = &map.meta.key.namespace;
                let is_allowed = **own == *self.namespace
                    || (decided.object.namespace == *own && decided.meta.key.namespace == *own);
                if !is_allowed {
                    let message = format!(
                        "it is about the namespace {}; only ConfigMaps of that namespace and of {} \
                         can be",
                        decided.object.namespace, self.namespace
                    );
                    problems.push(Problem {
                        origin: origin.clone(),
                        object: None,
                        field: None,
                        message,
                    });
                    continue;
                }
                now.insert(found.object.object_ref());
                changes.push(ObjectChange::Set(found.object));
            }
        }
        self.status.set_problems(&origin_of(&map.meta.key), problems);
        let before = self.of.insert(map.meta.key.clone(), now.clone()).unwrap_or_default();
        changes.extend(before.difference(&now).cloned().map(ObjectChange::Delete));
    }

    fn remove(&mut self, key: &ObjectKey, changes: &mut Vec<ObjectChange>) {
        if let Some(before) = self.of.remove(key) {
            self.status.set_problems(&origin_of(key), Vec::new());
            changes.extend(before.into_iter().map(ObjectChange::Delete));
        }
    }
}

/// What the problems of a ConfigMap's entries are kept under.
fn origin_of(key: &ObjectKey) -> String {
    format!("overrides in {key}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::intern::Interner;
    use telaio_model::Meta;

    fn map(namespace: &str, entries: &[(&str, &str)]) -> ObjectChange {
        let mut meta = Meta::named(ObjectKey::new(namespace, "m"));
        meta.labels.insert(LABEL_OVERRIDES.into(), "true".into());
        let data = entries.iter().map(|(name, text)| ((*name).into(), (*text).into()));
        ObjectChange::Set(Object::from(ConfigMap { meta, data: data.collect() }))
    }

    fn drain(name: &str, namespace: &str) -> String {
        format!(
            r#"{{"apiVersion": "telaio.dev/v1", "kind": "Override", "metadata": {{"name": "{name}", "namespace": "{namespace}"}},
                "spec": {{"service": {{"name": "web"}}, "target": {{"pod": "p"}}, "action": "drain"}}}}"#
        )
    }

    /// The changes beside the ConfigMap's own.
    fn say(decided: &mut Decided, change: ObjectChange) -> Vec<String> {
        let mut changes = vec![change];
        decided.extend(&mut changes);
        let text = |change: &ObjectChange| match change {
            ObjectChange::Set(object) => format!("+{}", object.key()),
            ObjectChange::Delete(gone) => format!("-{}", gone.key),
        };
        changes[1..].iter().map(text).collect()
    }

    #[test]
    fn entries_come_and_go_with_their_config_map() {
        let status = Arc::new(Status::default());
        let ctx = Context::cluster(Interner::default());
        let mut decided = Decided::new(ctx, Arc::clone(&status), "kube-system".into());
        let (one, two) = (drain("one", "shop"), drain("two", "shop"));
        let both = map("kube-system", &[("a", &one), ("b", &two)]);
        assert_eq!(say(&mut decided, both), ["+shop/one", "+shop/two"]);
        let rest = map("kube-system", &[("b", &two)]);
        assert_eq!(say(&mut decided, rest), ["+shop/two", "-shop/one"]);
        let gone = ObjectRef::new(Kind::ConfigMap, ObjectKey::new("kube-system", "m"));
        assert_eq!(say(&mut decided, ObjectChange::Delete(gone)), ["-shop/two"]);
    }

    #[test]
    fn a_config_map_decides_about_its_own_namespace_only() {
        let status = Arc::new(Status::default());
        let ctx = Context::cluster(Interner::default());
        let mut decided = Decided::new(ctx, Arc::clone(&status), "kube-system".into());
        let (own, other) = (drain("own", "shop"), drain("other", "bank"));
        let map = map("shop", &[("a", &own), ("b", &other), ("c", "kind: [")]);
        assert_eq!(say(&mut decided, map), ["+shop/own"]);
        assert_eq!(status.problems().len(), 2, "{:?}", status.problems());
    }
}
