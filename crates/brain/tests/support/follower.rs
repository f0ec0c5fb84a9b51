//! A receiver of the Local API that holds every promise against the sender.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures::FutureExt as _;
use telaio_brain::LocalWatch;
use telaio_model::{EndpointRef, LocalEndpoint, LocalService, Object, ObjectKey, ObjectRef, Op};

/// What a receiver has after the differences it was given.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Follower {
    /// Services.
    pub services: BTreeMap<ObjectKey, Arc<LocalService>>,
    /// Endpoints.
    pub endpoints: BTreeMap<EndpointRef, Arc<LocalEndpoint>>,
    /// Objects of other kinds.
    pub objects: BTreeMap<ObjectRef, Object>,
}

/// KPNG's order within a difference; objects of other kinds have no place in it.
fn rank(op: &Op, known: &BTreeMap<EndpointRef, Arc<LocalEndpoint>>) -> Option<u8> {
    Some(match op {
        Op::SetService(_) => 0,
        Op::DeleteEndpoint(key) if !known.get(key)?.is_named() => 1,
        Op::SetEndpoint(endpoint) if endpoint.is_named() => 2,
        Op::DeleteEndpoint(_) => 3,
        Op::SetEndpoint(_) => 4,
        Op::DeleteService(_) => 5,
        Op::Reset | Op::Sync | Op::SetObject(_) | Op::DeleteObject(_) => return None,
    })
}

impl Follower {
    /// What a watch gives now, replayed; false if it has nothing to give.
    pub fn pull(&mut self, watch: &mut LocalWatch) -> bool {
        match watch.next().now_or_never() {
            Some(diff) => {
                self.replay(diff.expect("the store is there"));
                true
            }
            None => false,
        }
    }

    /// Takes one difference, and panics at whatever in it is not as promised.
    pub fn replay(&mut self, ops: impl IntoIterator<Item = Op>) {
        let mut ops = ops.into_iter().peekable();
        let is_reset = ops.next_if_eq(&Op::Reset).is_some();
        if is_reset {
            *self = Self::default();
        }
        let mut last_rank = 0;
        let mut count = 0_usize;
        loop {
            let op = ops.next().expect("a difference ends with Sync");
            if op == Op::Sync {
                break;
            }
            count += 1;
            if let Some(rank) = rank(&op, &self.endpoints) {
                assert!(rank >= last_rank, "{op:?} comes too late");
                last_rank = rank;
            }
            self.apply(op, is_reset);
        }
        assert_eq!(ops.next(), None, "nothing follows Sync");
        assert!(is_reset || count > 0, "a difference holds something");
        for key in self.endpoints.keys() {
            assert!(self.services.contains_key(&key.service), "{key} is left without its service");
        }
    }

    fn apply(&mut self, op: Op, is_reset: bool) {
        match op {
            Op::SetService(service) => {
                let old = self.services.insert(service.key.clone(), service.clone());
                assert!(old.as_ref() != Some(&service), "{} was so already", service.key);
                assert!(!is_reset || old.is_none(), "{} came twice", service.key);
            }
            Op::DeleteService(key) => {
                assert!(self.services.remove(&key).is_some(), "{key} was not there");
            }
            Op::SetEndpoint(endpoint) => {
                assert!(
                    self.services.contains_key(&endpoint.key.service),
                    "{} came before its service",
                    endpoint.key
                );
                let old = self.endpoints.insert(endpoint.key.clone(), endpoint.clone());
                assert!(old.as_ref() != Some(&endpoint), "{} was so already", endpoint.key);
                assert!(!is_reset || old.is_none(), "{} came twice", endpoint.key);
            }
            Op::DeleteEndpoint(key) => {
                assert!(self.endpoints.remove(&key).is_some(), "{key} was not there");
            }
            Op::SetObject(object) => {
                let old = self.objects.insert(object.object_ref(), object.clone());
                assert!(old.as_ref() != Some(&object), "{} was so already", object.object_ref());
                assert!(!is_reset || old.is_none(), "{} came twice", object.object_ref());
            }
            Op::DeleteObject(object_ref) => {
                assert!(self.objects.remove(&object_ref).is_some(), "{object_ref} was not there");
            }
            Op::Reset => panic!("Reset in the middle of a difference"),
            Op::Sync => panic!("Sync is handled before"),
        }
    }
}
