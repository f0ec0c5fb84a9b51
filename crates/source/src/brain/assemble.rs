//! Slices, put together again from endpoints that travelled alone.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use telaio_api::global::{GlobalEndpoint, GlobalEndpointKey, GlobalOp};
use telaio_model::endpoints::TriggerTime;
use telaio_model::hash::StableHash;
use telaio_model::{
    AddressType, EndpointPort, EndpointSlice, Kind, Object, ObjectChange, ObjectKey, ObjectRef,
    Service, TargetPort,
};

/// Where a slice's endpoints belong: the service, and the slice's name.
type SliceKey = (ObjectKey, Arc<str>);

/// Takes operations of the Global API, gives changes of objects: only what differs from what it gave
/// before, across any number of resets.
#[derive(Debug, Default)]
pub(super) struct Assembler {
    services: BTreeMap<ObjectKey, Arc<Service>>,
    slices: BTreeMap<SliceKey, BTreeMap<GlobalEndpointKey, Arc<GlobalEndpoint>>>,
    objects: BTreeMap<ObjectRef, Object>,
    dirty_slices: BTreeSet<SliceKey>,
    dirty_objects: BTreeSet<ObjectRef>,
    /// What was given, and which objects each slice of the sender became.
    given: BTreeMap<ObjectRef, Object>,
    given_slices: BTreeMap<SliceKey, Vec<ObjectRef>>,
}

impl Assembler {
    /// Takes one operation.
    pub(super) fn apply(&mut self, op: GlobalOp) {
        match op {
            GlobalOp::Reset => self.reset(),
            GlobalOp::Sync => {}
            GlobalOp::SetService(service) => {
                self.set_service(service.meta.key.clone(), Some(service));
            }
            GlobalOp::DeleteService(key) => self.set_service(key, None),
            GlobalOp::SetEndpoint(endpoint) => {
                let slice = (endpoint.key.service.clone(), endpoint.key.source.clone());
                self.slices
                    .entry(slice.clone())
                    .or_default()
                    .insert(endpoint.key.clone(), endpoint);
                self.dirty_slices.insert(slice);
            }
            GlobalOp::DeleteEndpoint(key) => {
                let slice = (key.service.clone(), key.source.clone());
                if let Some(endpoints) = self.slices.get_mut(&slice) {
                    endpoints.remove(&key);
                    if endpoints.is_empty() {
                        self.slices.remove(&slice);
                    }
                }
                self.dirty_slices.insert(slice);
            }
            GlobalOp::SetNode(node) => self.set_object(Object::Node(node)),
            GlobalOp::DeleteNode(key) => self.delete_object(ObjectRef::new(Kind::Node, key)),
            GlobalOp::SetObject(object) => self.set_object(object),
            GlobalOp::DeleteObject(object_ref) => self.delete_object(object_ref),
        }
    }

    /// Everything that was given may be gone: it is looked at again when the state is complete.
    fn reset(&mut self) {
        self.services.clear();
        self.slices.clear();
        self.objects.clear();
        self.dirty_objects.extend(self.given.keys().cloned());
        self.dirty_slices.extend(self.given_slices.keys().cloned());
    }

    fn set_service(&mut self, key: ObjectKey, service: Option<Arc<Service>>) {
        // Endpoints of a sender that does not list all ports depend on the service's own.
        let first = (key.clone(), Arc::from(""));
        let slices = self.slices.range(first..).take_while(|((service, _), _)| *service == key);
        self.dirty_slices.extend(slices.map(|(slice, _)| slice.clone()));
        self.dirty_objects.insert(ObjectRef::new(Kind::Service, key.clone()));
        match service {
            Some(service) => _ = self.services.insert(key, service),
            None => _ = self.services.remove(&key),
        }
    }

    fn set_object(&mut self, object: Object) {
        let object_ref = object.object_ref();
        self.dirty_objects.insert(object_ref.clone());
        self.objects.insert(object_ref, object);
    }

    fn delete_object(&mut self, object_ref: ObjectRef) {
        self.objects.remove(&object_ref);
        self.dirty_objects.insert(object_ref);
    }

    /// What changed since the last time.
    pub(super) fn take_changes(&mut self) -> Vec<ObjectChange> {
        let mut changes = Vec::new();
        for object_ref in std::mem::take(&mut self.dirty_objects) {
            let now = match object_ref.kind {
                Kind::EndpointSlice => continue,
                Kind::Service => self.services.get(&object_ref.key).cloned().map(Object::Service),
                _ => self.objects.get(&object_ref).cloned(),
            };
            self.give(object_ref, now, &mut changes);
        }
        let mut gone = BTreeSet::new();
        let mut built = BTreeMap::new();
        for slice in std::mem::take(&mut self.dirty_slices) {
            gone.extend(self.given_slices.remove(&slice).unwrap_or_default());
            let objects = self.build(&slice);
            if !objects.is_empty() {
                let names = objects.iter().map(Object::object_ref).collect();
                self.given_slices.insert(slice, names);
            }
            built.extend(objects.into_iter().map(|object| (object.object_ref(), object)));
        }
        // A slice that went from one service to another is gone there and here at once: it stays.
        for object_ref in gone.into_iter().filter(|it| !built.contains_key(it)) {
            self.give(object_ref, None, &mut changes);
        }
        for (object_ref, object) in built {
            self.give(object_ref, Some(object), &mut changes);
        }
        changes
    }

    fn give(
        &mut self,
        object_ref: ObjectRef,
        now: Option<Object>,
        changes: &mut Vec<ObjectChange>,
    ) {
        match now {
            Some(object) if self.given.get(&object_ref) != Some(&object) => {
                self.given.insert(object_ref, object.clone());
                changes.push(ObjectChange::Set(object));
            }
            Some(_) => {}
            None => {
                if self.given.remove(&object_ref).is_some() {
                    changes.push(ObjectChange::Delete(object_ref));
                }
            }
        }
    }

    /// The slices that one slice of the sender becomes: one for each list of ports. Ours have one
    /// list; KPNG can give each endpoint its own.
    fn build(&self, (service_key, source): &SliceKey) -> Vec<Object> {
        let Some(endpoints) = self.slices.get(&(service_key.clone(), source.clone())) else {
            return Vec::new();
        };
        let service = self.services.get(service_key);
        let mut groups: BTreeMap<(bool, Vec<EndpointPort>), Vec<_>> = BTreeMap::new();
        for global in endpoints.values() {
            let ports = complete_ports(global, service.map(|service| &**service));
            let family = global.endpoint.address.is_ipv6();
            groups.entry((family, ports)).or_default().push(global.endpoint.clone());
        }
        let single = groups.len() == 1;
        let slice = |((is_ipv6, ports), endpoints): ((bool, Vec<EndpointPort>), Vec<_>)| {
            let name = if single { source.clone() } else { group_name(source, is_ipv6, &ports) };
            Object::from(EndpointSlice {
                triggered: TriggerTime::default(),
                key: ObjectKey::new(service_key.namespace.clone(), name),
                service: Some(service_key.name.clone()),
                address_type: if is_ipv6 { AddressType::IPv6 } else { AddressType::IPv4 },
                endpoints,
                ports,
            })
        };
        groups.into_iter().map(slice).collect()
    }
}

fn group_name(source: &str, is_ipv6: bool, ports: &[EndpointPort]) -> Arc<str> {
    let mut hash = StableHash::new().bytes(&[u8::from(is_ipv6)]);
    for port in ports {
        hash = hash.text(&port.name).bytes(&port.port.unwrap_or(0).to_be_bytes());
    }
    format!("{source}.{}", hash.hex()).into()
}

/// The ports of an endpoint; where its sender lists only those that differ, with the service's own.
fn complete_ports(global: &GlobalEndpoint, service: Option<&Service>) -> Vec<EndpointPort> {
    let mut ports = global.ports.clone();
    if let (false, Some(service)) = (global.ports_complete, service) {
        for port in &service.ports {
            if let TargetPort::Number(target) = port.target_port
                && ports.iter().all(|it| it.name != port.name)
            {
                ports.push(EndpointPort {
                    name: port.name.clone(),
                    protocol: Some(port.protocol),
                    port: Some(target),
                });
            }
        }
    }
    ports
}

#[cfg(test)]
mod tests {
    use super::*;
    use telaio_model::Endpoint;

    fn endpoint(source: &str, id: &str, ip: &str, complete: bool) -> GlobalOp {
        GlobalOp::SetEndpoint(Arc::new(GlobalEndpoint {
            key: GlobalEndpointKey {
                service: ObjectKey::new("default", "web"),
                source: source.into(),
                id: id.into(),
            },
            endpoint: Endpoint::at(ip.parse().unwrap()),
            ports: vec![EndpointPort { name: "http".into(), protocol: None, port: Some(8080) }],
            ports_complete: complete,
        }))
    }

    #[test]
    fn endpoints_of_one_slice_come_back_as_one() {
        let mut assembler = Assembler::default();
        assembler.apply(GlobalOp::Reset);
        assembler.apply(endpoint("web-1", "a", "10.0.0.1", true));
        assembler.apply(endpoint("web-1", "b", "10.0.0.2", true));
        let changes = assembler.take_changes();
        assert_eq!(changes.len(), 1);
        let ObjectChange::Set(Object::EndpointSlice(slice)) = &changes[0] else { panic!() };
        assert_eq!(slice.endpoints.len(), 2);
        assert_eq!(&*slice.key.name, "web-1");
    }

    #[test]
    fn a_slice_that_changes_hands_stays() {
        for (from, to) in [("a", "b"), ("b", "a")] {
            let at = |service: &str| GlobalEndpointKey {
                service: ObjectKey::new("default", service),
                source: "slice".into(),
                id: "pod".into(),
            };
            let set = |service: &str| {
                GlobalOp::SetEndpoint(Arc::new(GlobalEndpoint {
                    key: at(service),
                    endpoint: Endpoint::at("10.0.0.1".parse().unwrap()),
                    ports: vec![],
                    ports_complete: true,
                }))
            };
            let mut assembler = Assembler::default();
            assembler.apply(set(from));
            assembler.take_changes();
            assembler.apply(GlobalOp::DeleteEndpoint(at(from)));
            assembler.apply(set(to));
            let changes = assembler.take_changes();
            let [ObjectChange::Set(Object::EndpointSlice(slice))] = &changes[..] else {
                panic!("{changes:?}")
            };
            assert_eq!(slice.service.as_deref(), Some(to));
        }
    }

    #[test]
    fn a_reset_gives_only_what_differs() {
        let mut assembler = Assembler::default();
        assembler.apply(endpoint("web-1", "a", "10.0.0.1", true));
        assembler.apply(endpoint("web-2", "b", "10.0.0.2", true));
        assert_eq!(assembler.take_changes().len(), 2);
        assembler.apply(GlobalOp::Reset);
        assembler.apply(endpoint("web-1", "a", "10.0.0.1", true));
        let gone = ObjectRef::new(Kind::EndpointSlice, ObjectKey::new("default", "web-2"));
        assert_eq!(assembler.take_changes(), [ObjectChange::Delete(gone)]);
        assert_eq!(assembler.take_changes(), []);
    }
}
