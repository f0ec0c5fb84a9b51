//! A cluster that changes step by step, and its node's view as the brain sends it.

use std::collections::BTreeSet;
use std::future::{Future as _, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use proptest::collection::vec;
use proptest::prelude::*;
use telaio_brain::{LocalWatch, Store, Wants};
use telaio_model::{Batch, Kind, Object, ObjectChange, ObjectKey, ObjectRef, Op};
use telaio_reconcile::kpng::State;
use tokio::runtime::Runtime;

use crate::generate::{self, NAMES, SLICES};
use crate::world::{NODE, World};

/// What changes in a step: some of the objects become those of another cluster.
#[derive(Debug, Clone)]
pub(crate) struct Step {
    pub(crate) other: World,
    /// Which of the services, by number.
    services: Vec<usize>,
    /// Which of the slices, by number.
    slices: Vec<usize>,
    node: bool,
    service_cidrs: bool,
}

/// Random steps.
pub(crate) fn steps(count_max: usize) -> BoxedStrategy<Vec<Step>> {
    let step = (
        generate::worlds(),
        vec(0..NAMES.len(), 0..3),
        vec(0..SLICES, 0..4),
        prop::bool::weighted(0.15),
        prop::bool::weighted(0.1),
    );
    let step = step.prop_map(|(other, services, slices, node, service_cidrs)| Step {
        other,
        services,
        slices,
        node,
        service_cidrs,
    });
    vec(step.boxed(), 1..=count_max).boxed()
}

impl Step {
    /// The cluster after the step.
    pub(crate) fn take(&self, world: &World) -> World {
        let mut now = world.clone();
        for n in &self.services {
            let (namespace, name) = NAMES[*n];
            let key = ObjectKey::new(namespace, name);
            now.services.retain(|it| it.meta.key != key);
            now.services
                .extend(self.other.services.iter().filter(|it| it.meta.key == key).cloned());
        }
        for n in &self.slices {
            let is_it = |name: &str| name == format!("slice-{n}");
            now.slices.retain(|it| !is_it(&it.key.name));
            now.slices.extend(self.other.slices.iter().filter(|it| is_it(&it.key.name)).cloned());
        }
        now.slices = generate::without_contradictions(now.slices);
        if self.node {
            now.nodes.clone_from(&self.other.nodes);
        }
        if self.service_cidrs {
            now.service_cidrs.clone_from(&self.other.service_cidrs);
        }
        now
    }
}

/// A store that is told of each step, and one node that follows it.
pub(crate) struct Follower {
    store: Arc<Store>,
    watch: LocalWatch,
    runtime: Runtime,
    told: Vec<Object>,
    pub(crate) state: State,
}

impl Follower {
    pub(crate) fn new() -> Self {
        let store = Store::new();
        let mut wants = Wants::services();
        wants.kinds.extend([Kind::Node, Kind::ServiceCidr]);
        let watch = LocalWatch::new(&store, NODE, wants);
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        Self { store, watch, runtime, told: Vec::new(), state: State::default() }
    }

    /// What is news to the node; nothing where the change is none of its business.
    fn news(&mut self) -> Vec<Op> {
        let mut next = pin!(self.watch.next());
        let once = poll_fn(|context| Poll::Ready(next.as_mut().poll(context)));
        match self.runtime.block_on(once) {
            Poll::Ready(ops) => ops.unwrap().collect(),
            Poll::Pending => Vec::new(),
        }
    }

    /// The cluster is now this. Gives the services that may have changed.
    pub(crate) fn tell(&mut self, world: &World) -> BTreeSet<ObjectKey> {
        let now: Vec<Object> = world.objects().collect();
        let refs: BTreeSet<ObjectRef> = now.iter().map(Object::object_ref).collect();
        let gone = self.told.iter().map(Object::object_ref).filter(|it| !refs.contains(it));
        let mut changes: Vec<ObjectChange> = gone.map(ObjectChange::Delete).collect();
        let news = now.iter().filter(|it| !self.told.contains(it)).cloned();
        changes.extend(news.map(ObjectChange::Set));
        if changes.is_empty() && self.store.is_synced() {
            return BTreeSet::new();
        }
        self.told = now;
        let before = self.store.revision();
        self.store.apply(Batch { changes, synced: true });
        if self.store.revision() == before {
            return BTreeSet::new();
        }
        let mut changed = BTreeSet::new();
        for op in self.news() {
            match &op {
                Op::Reset => changed.extend(self.state.services().map(|it| it.service.key.clone())),
                Op::SetService(service) => drop(changed.insert(service.key.clone())),
                Op::DeleteService(key) => drop(changed.insert(key.clone())),
                Op::SetEndpoint(endpoint) => drop(changed.insert(endpoint.key.service.clone())),
                Op::DeleteEndpoint(key) => drop(changed.insert(key.service.clone())),
                _ => {}
            }
            self.state.apply(op);
        }
        changed
    }
}
