//! How far the backend has been told of what there is; and, where another brain makes the view, that view.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use parking_lot::Mutex;
use std::sync::Arc;
use telaio_model::{EndpointRef, Object, ObjectKey, ObjectRef, Op, ServiceEndpoints};
use telaio_reconcile::kpng::State;
use tokio::sync::Notify;

/// How many changes wait to be told of; of those beyond only their number is.
const NEWS_MAX: usize = 2000;

/// What the feeding of a backend leaves for those who tell people of it.
#[derive(Debug, Default)]
pub(crate) struct Feeding {
    /// Up to this revision the backend has taken everything.
    pub(crate) taken: Arc<AtomicU64>,
    /// The view that a brain makes.
    pub(crate) followed: Followed,
}

/// A view that comes by a stream, as it is now, and what changed of it.
#[derive(Debug, Default)]
pub(crate) struct Followed {
    inner: Mutex<Inner>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct Inner {
    state: State,
    revision: u64,
    news: VecDeque<ViewChange>,
    left_out: usize,
}

/// What changed in a view at one revision.
#[derive(Debug)]
pub(crate) struct ViewChange {
    pub(crate) revision: u64,
    pub(crate) at: SystemTime,
    pub(crate) what: What,
}

/// One thing that changed.
#[derive(Debug)]
pub(crate) enum What {
    /// The first whole view came, with so many services and other objects.
    Whole(usize, usize),
    /// A service or its endpoints: before and after.
    Service(ObjectKey, Option<ServiceEndpoints>, Option<ServiceEndpoints>),
    /// Another object: before and after.
    Object(ObjectRef, Option<Object>, Option<Object>),
}

/// What was there before a batch of steps, for all that they name.
#[derive(Default)]
struct Before {
    services: BTreeMap<ObjectKey, Option<ServiceEndpoints>>,
    objects: BTreeMap<ObjectRef, Option<Object>>,
}

impl Followed {
    /// Takes the steps up to a `Sync`; the revision that they make.
    pub(crate) fn take(&self, ops: Vec<Op>) -> u64 {
        let mut inner = self.inner.lock();
        inner.revision += 1;
        let revision = inner.revision;
        let before = inner.apply(ops);
        if revision == 1 {
            let count = (inner.state.len(), inner.state.objects().count());
            inner.tell(What::Whole(count.0, count.1));
        } else {
            for (key, was) in before.services {
                let is = inner.state.get(&key).cloned();
                if was != is {
                    inner.tell(What::Service(key, was, is));
                }
            }
            for (at, was) in before.objects {
                let is = inner.state.object(&at).cloned();
                if was != is {
                    inner.tell(What::Object(at, was, is));
                }
            }
        }
        drop(inner);
        self.changed.notify_one();
        revision
    }

    /// The view now; `None` before the first.
    pub(crate) fn state(&self) -> Option<State> {
        let inner = self.inner.lock();
        (inner.revision > 0).then(|| inner.state.clone())
    }

    /// Looks at the view now, without copying it. What takes long keeps the feeding waiting.
    pub(crate) fn with<T>(&self, look: impl FnOnce(&State) -> T) -> T {
        look(&self.inner.lock().state)
    }

    /// How often it has changed.
    pub(crate) fn revision(&self) -> u64 {
        self.inner.lock().revision
    }

    /// What changed since, and how much more did than is told. Cancel-safe.
    pub(crate) async fn news(&self) -> (Vec<ViewChange>, usize) {
        loop {
            {
                let mut inner = self.inner.lock();
                if !inner.news.is_empty() || inner.left_out > 0 {
                    let left_out = std::mem::take(&mut inner.left_out);
                    return (std::mem::take(&mut inner.news).into(), left_out);
                }
            }
            self.changed.notified().await;
        }
    }
}

impl Inner {
    fn tell(&mut self, what: What) {
        if self.news.len() >= NEWS_MAX {
            self.left_out += 1;
            return;
        }
        self.news.push_back(ViewChange { revision: self.revision, at: SystemTime::now(), what });
    }

    /// Applies steps; what was there before.
    fn apply(&mut self, ops: Vec<Op>) -> Before {
        let mut before = Before::default();
        // After a reset everything comes again: most of it is what it was.
        let mut old: Option<State> = None;
        for op in ops {
            match &op {
                Op::Reset => {
                    if old.is_none() {
                        old = Some(self.state.clone());
                    }
                }
                Op::SetService(service) => before.service(&self.state, &service.key),
                Op::DeleteService(key) => before.service(&self.state, key),
                Op::SetEndpoint(endpoint) => before.service(&self.state, &endpoint.key.service),
                Op::DeleteEndpoint(EndpointRef { service, .. }) => {
                    before.service(&self.state, service);
                }
                Op::SetObject(object) => before.object(&self.state, &object.object_ref()),
                Op::DeleteObject(at) => before.object(&self.state, at),
                Op::Sync => {}
            }
            self.state.apply(op);
        }
        let Some(old) = old else { return before };
        let keys = |state: &State| -> BTreeSet<ObjectKey> {
            state.services().map(|it| it.service.key.clone()).collect()
        };
        let objects = |state: &State| -> BTreeSet<ObjectRef> {
            state.objects().map(Object::object_ref).collect()
        };
        let services = keys(&old).into_iter().chain(keys(&self.state));
        let services = services.map(|key| (key.clone(), old.get(&key).cloned())).collect();
        let objects = objects(&old).into_iter().chain(objects(&self.state));
        let objects = objects.map(|at| (at.clone(), old.object(&at).cloned())).collect();
        Before { services, objects }
    }
}

impl Before {
    fn service(&mut self, state: &State, key: &ObjectKey) {
        if !self.services.contains_key(key) {
            self.services.insert(key.clone(), state.get(key).cloned());
        }
    }

    fn object(&mut self, state: &State, at: &ObjectRef) {
        if !self.objects.contains_key(at) {
            self.objects.insert(at.clone(), state.object(at).cloned());
        }
    }
}

impl Feeding {
    /// The backend has taken everything up to this revision.
    pub(crate) fn has_taken(&self, revision: u64) {
        self.taken.fetch_max(revision, Ordering::Release);
    }

    /// Up to which revision it has.
    pub(crate) fn taken(&self) -> u64 {
        self.taken.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use telaio_model::{LocalService, Meta, Node};

    use super::*;

    fn service(name: &str, port: u16) -> Op {
        let json = serde_json::json!({
            "namespace": "shop", "name": name, "type": "ClusterIP",
            "ports": [{"protocol": "TCP", "port": port}],
        });
        let service: LocalService = serde_json::from_value(json).unwrap();
        Op::SetService(Arc::new(service))
    }

    fn node(name: &str) -> Op {
        let meta = Meta::named(ObjectKey::cluster(name));
        let (addresses, pod_cidrs, taints) = (vec![], vec![], vec![]);
        Op::SetObject(Node { meta, addresses, pod_cidrs, taints, deleting: false }.into())
    }

    async fn told(followed: &Followed) -> Vec<String> {
        let (news, _) = followed.news().await;
        let text = |it: ViewChange| match it.what {
            What::Whole(services, objects) => format!("whole: {services} and {objects}"),
            What::Service(key, was, is) => {
                format!("{key} {} → {}", was.is_some(), is.is_some())
            }
            What::Object(at, was, is) => {
                format!("{} {} → {}", at.key, was.is_some(), is.is_some())
            }
        };
        news.into_iter().map(text).collect()
    }

    #[tokio::test]
    async fn after_a_reset_only_what_differs_is_news() {
        let followed = Followed::default();
        assert!(followed.state().is_none(), "nothing is known yet");
        let whole = || vec![Op::Reset, service("a", 1), service("b", 1), node("n"), Op::Sync];
        assert_eq!(followed.take(whole()), 1);
        assert_eq!(told(&followed).await, ["whole: 2 and 1"]);
        followed.take(whole());
        followed.take(vec![Op::Reset, service("a", 1), service("b", 2), service("c", 1), Op::Sync]);
        assert_eq!(
            told(&followed).await,
            ["shop/b true → true", "shop/c false → true", "n true → false"]
        );
        followed.take(vec![
            service("a", 1),
            Op::DeleteService(ObjectKey::new("shop", "c")),
            Op::Sync,
        ]);
        assert_eq!(told(&followed).await, ["shop/c true → false"]);
        assert_eq!(followed.state().unwrap().len(), 2);
    }

    #[tokio::test]
    async fn more_than_is_told_is_counted() {
        let followed = Followed::default();
        followed.take(vec![Op::Reset, Op::Sync]);
        told(&followed).await;
        let all = (0..NEWS_MAX + 7).map(|i| service(&format!("s{i}"), 1));
        followed.take(all.chain([Op::Sync]).collect());
        let (news, left_out) = followed.news().await;
        assert_eq!((news.len(), left_out), (NEWS_MAX, 7));
    }
}
