//! Makes a new connection cheap: after a reset only what differs goes on.
//!
//! A source that reconnects sends the whole state again. [`FilterReset`] knows what the sink behind
//! it has and passes on only the difference; what was not sent again it deletes just before the
//! `Sync`, endpoints before services. So the sink behind sees no reset and no gap, and a backend
//! that acts on each op does not flap.
//!
//! What always holds:
//! - At each `Sync` the sink behind has exactly the state that was sent.
//! - No op is passed on that changes nothing, except `Sync`.
//! - It keeps one `Arc` per object, none of the content.
//!
//! If the sink behind fails to take an op, what it has is not known any more. Then the next reset is
//! passed on, and everything after it.
//!
//! ```
//! use telaio_model::{ObjectKey, Op};
//! use telaio_reconcile::kpng::{FilterReset, Sink, SinkError};
//! # use std::sync::Arc;
//! # use telaio_model::LocalService;
//! # fn service(name: &str) -> Arc<LocalService> {
//! #     let json = serde_json::json!({"namespace": "default", "name": name, "type": "ClusterIP"});
//! #     Arc::new(serde_json::from_value(json).unwrap())
//! # }
//! # #[derive(Default)]
//! # struct Recorder(Vec<Op>);
//! # impl Sink for Recorder {
//! #     fn setup(&mut self) -> Result<(), SinkError> { Ok(()) }
//! #     fn wait_request(&mut self) -> Result<Arc<str>, SinkError> { Ok("node".into()) }
//! #     fn reset(&mut self) -> Result<(), SinkError> { self.send(Op::Reset) }
//! #     fn send(&mut self, op: Op) -> Result<(), SinkError> { self.0.push(op); Ok(()) }
//! # }
//!
//! // `Recorder` is a sink that keeps the ops it gets.
//! let mut sink = FilterReset::new(Recorder::default());
//! for op in [Op::SetService(service("a")), Op::SetService(service("b")), Op::Sync] {
//!     sink.send(op)?;
//! }
//! sink.inner_mut().0.clear();
//!
//! // The source reconnects; `b` is gone meanwhile.
//! for op in [Op::Reset, Op::SetService(service("a")), Op::Sync] {
//!     sink.send(op)?;
//! }
//! assert_eq!(sink.inner().0, [Op::DeleteService(ObjectKey::new("default", "b")), Op::Sync]);
//! # Ok::<(), SinkError>(())
//! ```

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::Hash;
use std::sync::Arc;

use telaio_model::{EndpointRef, LocalEndpoint, LocalService, Object, ObjectKey, ObjectRef, Op};

use crate::kpng::sink::{Sink, SinkError};

#[cfg(test)]
mod tests;

/// What the sink behind has of one kind, and which of it was sent since the last reset.
#[derive(Debug)]
struct Known<K, V> {
    items: HashMap<K, (V, u64)>,
}

impl<K: Ord + Hash + Clone, V: PartialEq> Known<K, V> {
    fn new() -> Self {
        Self { items: HashMap::new() }
    }

    /// Notes that `value` was sent; `pass` gives it on, unless the sink behind has it already.
    fn note(
        &mut self,
        key: K,
        value: V,
        round: u64,
        pass: impl FnOnce(&V) -> Result<(), SinkError>,
    ) -> Result<(), SinkError> {
        match self.items.entry(key) {
            Entry::Occupied(mut known) => {
                let (known, sent_in) = known.get_mut();
                if *known != value {
                    pass(&value)?;
                    *known = value;
                }
                *sent_in = round;
            }
            Entry::Vacant(vacant) => {
                pass(&value)?;
                vacant.insert((value, round));
            }
        }
        Ok(())
    }

    fn not_sent_in(&self, round: u64) -> Vec<K> {
        let unsent = self.items.iter().filter(|(_, (_, sent_in))| *sent_in != round);
        let mut keys: Vec<K> = unsent.map(|(key, _)| key.clone()).collect();
        // Whoever gets the deletes gets them in the same order every time.
        keys.sort_unstable();
        keys
    }
}

/// The endpoints that the sink behind has, by service; each list is ordered by id. A service has few,
/// and they come one after the other, so a list beats a map of them all.
#[derive(Debug, Default)]
struct KnownEndpoints {
    by_service: HashMap<ObjectKey, Vec<(Arc<LocalEndpoint>, u64)>>,
}

impl KnownEndpoints {
    /// As [`Known::note`].
    fn note(
        &mut self,
        endpoint: Arc<LocalEndpoint>,
        round: u64,
        pass: impl FnOnce(&Arc<LocalEndpoint>) -> Result<(), SinkError>,
    ) -> Result<(), SinkError> {
        let known = match self.by_service.get_mut(&endpoint.key.service) {
            Some(known) => known,
            None => self.by_service.entry(endpoint.key.service.clone()).or_default(),
        };
        match known.binary_search_by(|(other, _)| other.key.id.cmp(&endpoint.key.id)) {
            Ok(at) => {
                let (known, sent_in) = &mut known[at];
                if *known != endpoint {
                    pass(&endpoint)?;
                    *known = endpoint;
                }
                *sent_in = round;
            }
            Err(at) => {
                pass(&endpoint)?;
                known.insert(at, (endpoint, round));
            }
        }
        Ok(())
    }

    /// Forgets one; says whether it was known.
    fn remove(&mut self, key: &EndpointRef) -> bool {
        let Some(known) = self.by_service.get_mut(&key.service) else { return false };
        let found = known.binary_search_by(|(other, _)| other.key.id.cmp(&key.id));
        if let Ok(at) = found {
            known.remove(at);
        }
        if known.is_empty() {
            self.by_service.remove(&key.service);
        }
        found.is_ok()
    }

    fn not_sent_in(&self, round: u64) -> Vec<EndpointRef> {
        let all = self.by_service.values().flatten();
        let unsent = all.filter(|(_, sent_in)| *sent_in != round);
        let mut keys: Vec<EndpointRef> = unsent.map(|(endpoint, _)| endpoint.key.clone()).collect();
        keys.sort_unstable();
        keys
    }
}

/// A [`Sink`] before another that spares it what it already has. See the [module](self).
#[derive(Debug)]
pub struct FilterReset<S> {
    inner: S,
    services: Known<ObjectKey, Arc<LocalService>>,
    endpoints: KnownEndpoints,
    objects: Known<ObjectRef, Object>,
    /// Counts the resets.
    round: u64,
    /// A reset came and its `Sync` did not yet.
    resetting: bool,
    /// The sink behind failed to take something: what it has is not known.
    inner_unknown: bool,
}

impl<S: Sink> FilterReset<S> {
    /// A filter before `inner`, which must have nothing yet.
    pub fn new(inner: S) -> Self {
        Self {
            inner,
            services: Known::new(),
            endpoints: KnownEndpoints::default(),
            objects: Known::new(),
            round: 0,
            resetting: false,
            inner_unknown: false,
        }
    }

    /// The sink behind.
    pub fn inner(&self) -> &S {
        &self.inner
    }

    /// The sink behind.
    pub fn inner_mut(&mut self) -> &mut S {
        &mut self.inner
    }

    fn begin_round(&mut self) -> Result<(), SinkError> {
        self.round += 1;
        self.resetting = true;
        if self.inner_unknown {
            self.services.items.clear();
            self.endpoints.by_service.clear();
            self.objects.items.clear();
            self.inner.send(Op::Reset)?;
            self.inner_unknown = false;
        }
        Ok(())
    }

    fn pass(&mut self, op: Op) -> Result<(), SinkError> {
        pass(&mut self.inner, &mut self.inner_unknown, op)
    }

    fn set_service(&mut self, service: Arc<LocalService>) -> Result<(), SinkError> {
        let Self { inner, services, round, inner_unknown, .. } = self;
        services.note(service.key.clone(), service, *round, |service| {
            pass(inner, inner_unknown, Op::SetService(Arc::clone(service)))
        })
    }

    fn set_endpoint(&mut self, endpoint: Arc<LocalEndpoint>) -> Result<(), SinkError> {
        let Self { inner, endpoints, round, inner_unknown, .. } = self;
        endpoints.note(endpoint, *round, |endpoint| {
            pass(inner, inner_unknown, Op::SetEndpoint(Arc::clone(endpoint)))
        })
    }

    fn set_object(&mut self, object: Object) -> Result<(), SinkError> {
        let Self { inner, objects, round, inner_unknown, .. } = self;
        objects.note(object.object_ref(), object, *round, |object| {
            pass(inner, inner_unknown, Op::SetObject(object.clone()))
        })
    }

    fn delete_service(&mut self, key: ObjectKey) -> Result<(), SinkError> {
        if self.services.items.remove(&key).is_some() {
            self.pass(Op::DeleteService(key))?;
        }
        Ok(())
    }

    fn delete_endpoint(&mut self, key: EndpointRef) -> Result<(), SinkError> {
        if self.endpoints.remove(&key) {
            self.pass(Op::DeleteEndpoint(key))?;
        }
        Ok(())
    }

    fn delete_object(&mut self, object_ref: ObjectRef) -> Result<(), SinkError> {
        if self.objects.items.remove(&object_ref).is_some() {
            self.pass(Op::DeleteObject(object_ref))?;
        }
        Ok(())
    }

    /// Deletes what was not sent again: what depends on others first.
    fn end_round(&mut self) -> Result<(), SinkError> {
        if !self.resetting {
            return Ok(());
        }
        for key in self.endpoints.not_sent_in(self.round) {
            self.delete_endpoint(key)?;
        }
        for key in self.services.not_sent_in(self.round) {
            self.delete_service(key)?;
        }
        for object_ref in self.objects.not_sent_in(self.round) {
            self.delete_object(object_ref)?;
        }
        self.resetting = false;
        Ok(())
    }
}

/// Gives an operation on; what fails to take it is in a state that nobody knows.
fn pass(inner: &mut impl Sink, unknown: &mut bool, op: Op) -> Result<(), SinkError> {
    let outcome = inner.send(op);
    *unknown |= outcome.is_err();
    outcome
}

impl<S: Sink> Sink for FilterReset<S> {
    fn setup(&mut self) -> Result<(), SinkError> {
        self.inner.setup()
    }

    fn wait_request(&mut self) -> Result<Arc<str>, SinkError> {
        self.inner.wait_request()
    }

    fn reset(&mut self) -> Result<(), SinkError> {
        self.begin_round()
    }

    fn send(&mut self, op: Op) -> Result<(), SinkError> {
        match op {
            Op::Reset => self.begin_round(),
            Op::SetService(service) => self.set_service(service),
            Op::DeleteService(key) => self.delete_service(key),
            Op::SetEndpoint(endpoint) => self.set_endpoint(endpoint),
            Op::DeleteEndpoint(key) => self.delete_endpoint(key),
            Op::SetObject(object) => self.set_object(object),
            Op::DeleteObject(object_ref) => self.delete_object(object_ref),
            Op::Sync => {
                self.end_round()?;
                self.inner.send(Op::Sync)
            }
        }
    }
}
