//! Followers of a store: one node's view, and the raw cluster.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use futures::FutureExt as _;
use telaio_api::global::{GlobalEndpoint, GlobalEndpointKey, GlobalOp};
use telaio_brain::{GlobalWatch, LocalWatch, Store, Wants};
use telaio_model::{Node, Object, ObjectKey, ObjectRef, Service};

use super::follower::Follower;

/// Somebody who follows a store.
pub struct Watcher {
    /// Its node.
    pub node: &'static str,
    /// What it asks for.
    pub wants: Wants,
    /// How it follows.
    pub watch: LocalWatch,
    /// What it has.
    pub has: Follower,
}

impl Watcher {
    /// One that has not begun.
    pub fn new(store: &Arc<Store>, node: &'static str, wants: Wants) -> Self {
        let watch = LocalWatch::new(store, node, wants.clone());
        Self { node, wants, watch, has: Follower::default() }
    }
}

/// What somebody has who begins now.
pub fn fresh(store: &Arc<Store>, node: &'static str, wants: Wants) -> Follower {
    let mut watcher = Watcher::new(store, node, wants);
    assert!(watcher.has.pull(&mut watcher.watch), "a complete store answers at once");
    watcher.has
}

/// A receiver of the Global API.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct RawFollower {
    /// Services.
    pub services: BTreeMap<ObjectKey, Arc<Service>>,
    /// Endpoints.
    pub endpoints: BTreeMap<GlobalEndpointKey, Arc<GlobalEndpoint>>,
    /// Nodes.
    pub nodes: BTreeMap<ObjectKey, Arc<Node>>,
    /// Objects of other kinds.
    pub objects: BTreeMap<ObjectRef, Object>,
}

impl RawFollower {
    /// What a watch gives now, replayed; false if it has nothing to give.
    pub fn pull(&mut self, watch: &mut GlobalWatch) -> bool {
        let Some(ops) = watch.next().now_or_never() else { return false };
        let mut ops = ops.unwrap().peekable();
        let is_reset = ops.next_if_eq(&GlobalOp::Reset).is_some();
        if is_reset {
            *self = Self::default();
        }
        let mut before_service = BTreeSet::new();
        let mut count = 0;
        loop {
            match ops.next().expect("a difference ends with Sync") {
                GlobalOp::Sync => break,
                GlobalOp::Reset => panic!("Reset in the middle"),
                GlobalOp::SetService(it) => put(&mut self.services, it.meta.key.clone(), it),
                GlobalOp::DeleteService(key) => take(&mut self.services, &key),
                GlobalOp::SetEndpoint(it) => {
                    if !self.services.contains_key(&it.key.service) {
                        before_service.insert(it.key.service.clone());
                    }
                    put(&mut self.endpoints, it.key.clone(), it);
                }
                GlobalOp::DeleteEndpoint(key) => take(&mut self.endpoints, &key),
                GlobalOp::SetNode(it) => put(&mut self.nodes, it.meta.key.clone(), it),
                GlobalOp::DeleteNode(key) => take(&mut self.nodes, &key),
                GlobalOp::SetObject(it) => put(&mut self.objects, it.object_ref(), it),
                GlobalOp::DeleteObject(it) => take(&mut self.objects, &it),
            }
            count += 1;
        }
        assert_eq!(ops.next(), None, "nothing follows Sync");
        assert!(is_reset || count > 0, "a difference holds something");
        for key in before_service {
            assert!(!self.services.contains_key(&key), "an endpoint of {key} came before it");
        }
        true
    }
}

fn put<K: Ord, V: PartialEq + std::fmt::Debug>(map: &mut BTreeMap<K, V>, key: K, value: V) {
    assert!(map.get(&key) != Some(&value), "was so already: {value:?}");
    map.insert(key, value);
}

fn take<K: Ord + std::fmt::Debug, V>(map: &mut BTreeMap<K, V>, key: &K) {
    assert!(map.remove(key).is_some(), "was not there: {key:?}");
}
