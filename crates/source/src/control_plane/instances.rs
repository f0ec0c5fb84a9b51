//! Pods and instances, and the EndpointSlices that they make.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use telaio_model::endpoints::TriggerTime;
use telaio_model::hash::StableHash;
use telaio_model::{
    AddressType, Conditions, Endpoint, EndpointPort, EndpointSlice, IpFamily, ObjectKey, Pod,
    PodPhase, Service, ServicePort, TargetPort,
};

use crate::manifest::ANNOTATION_WEIGHT;

/// The pods, and the zones of the nodes they run on.
#[derive(Default)]
pub(super) struct Instances {
    pods: BTreeMap<ObjectKey, Arc<Pod>>,
    by_node: BTreeMap<Arc<str>, BTreeSet<ObjectKey>>,
    zones: BTreeMap<Arc<str>, Arc<str>>,
}

impl Instances {
    /// The pods of a namespace, by name.
    pub(super) fn pods_of(&self, namespace: &Arc<str>) -> impl Iterator<Item = &Arc<Pod>> {
        let from = ObjectKey::new(namespace.clone(), "");
        self.pods
            .range(from..)
            .take_while(move |(key, _)| key.namespace == *namespace)
            .map(|(_, pod)| pod)
    }

    pub(super) fn set_pod(&mut self, key: &ObjectKey, pod: Option<Arc<Pod>>) {
        let node = pod.as_ref().and_then(|pod| pod.node.clone());
        let previous = match pod {
            Some(pod) => self.pods.insert(key.clone(), pod),
            None => self.pods.remove(key),
        };
        if let Some(old_node) = previous.and_then(|pod| pod.node.clone())
            && let Some(pods) = self.by_node.get_mut(&old_node)
        {
            pods.remove(key);
            if pods.is_empty() {
                self.by_node.remove(&old_node);
            }
        }
        if let Some(node) = node {
            self.by_node.entry(node).or_default().insert(key.clone());
        }
    }

    /// Notes the zone of a node; gives the pods for which that is news.
    pub(super) fn set_zone(&mut self, node: &Arc<str>, zone: Option<&Arc<str>>) -> Vec<ObjectKey> {
        let previous = match zone {
            Some(zone) => self.zones.insert(node.clone(), zone.clone()),
            None => self.zones.remove(node),
        };
        if previous.as_ref() == zone {
            return Vec::new();
        }
        self.by_node.get(node).into_iter().flatten().cloned().collect()
    }

    /// The slices of a service: for each family one, or more where pods have different numbers for a
    /// port that is named.
    pub(super) fn slices(
        &self,
        service: &Service,
        families: &[IpFamily],
        pods: &BTreeSet<Arc<str>>,
    ) -> BTreeMap<ObjectKey, Arc<EndpointSlice>> {
        let namespace = &service.meta.key.namespace;
        let mut groups: BTreeMap<(IpFamily, Vec<EndpointPort>), Vec<Endpoint>> = BTreeMap::new();
        for name in pods {
            let key = ObjectKey::new(namespace.clone(), name.clone());
            let Some(pod) = self.pods.get(&key) else { continue };
            if matches!(pod.phase, PodPhase::Succeeded | PodPhase::Failed) {
                continue;
            }
            let ports: Vec<EndpointPort> =
                service.ports.iter().filter_map(|port| endpoint_port(port, pod)).collect();
            for family in families {
                let Some(ip) = pod.ips.iter().find(|ip| IpFamily::of(**ip) == *family) else {
                    continue;
                };
                let endpoint = self.endpoint(*ip, pod, service.publish_not_ready_addresses);
                groups.entry((*family, ports.clone())).or_default().push(endpoint);
            }
        }
        let slices = groups.into_iter().map(|((family, ports), endpoints)| {
            let slice = EndpointSlice {
                triggered: TriggerTime::default(),
                key: slice_key(service, family, &ports),
                service: Some(service.meta.key.name.clone()),
                address_type: match family {
                    IpFamily::V4 => AddressType::IPv4,
                    IpFamily::V6 => AddressType::IPv6,
                },
                endpoints,
                ports,
            };
            (slice.key.clone(), Arc::new(slice))
        });
        slices.collect()
    }

    fn endpoint(&self, address: IpAddr, pod: &Pod, publish_not_ready: bool) -> Endpoint {
        let weight = pod.meta.annotations.get(ANNOTATION_WEIGHT);
        Endpoint {
            conditions: Conditions {
                ready: publish_not_ready || (pod.ready && !pod.terminating),
                serving: pod.ready,
                terminating: pod.terminating,
            },
            pod: Some(pod.meta.key.name.clone()),
            node: pod.node.clone(),
            zone: pod.node.as_ref().and_then(|node| self.zones.get(node)).cloned(),
            weight: weight.and_then(|weight| weight.trim().parse().ok()),
            ..Endpoint::at(address)
        }
    }
}

/// A service's port in one pod; `None` where the pod has no port of that name.
fn endpoint_port(port: &ServicePort, pod: &Pod) -> Option<EndpointPort> {
    let number = match &port.target_port {
        TargetPort::Number(number) => *number,
        TargetPort::Name(name) => {
            let named = pod.ports.iter().find(|candidate| {
                candidate.name.as_ref() == Some(name) && candidate.protocol == port.protocol
            });
            named?.container_port
        }
    };
    Some(EndpointPort {
        name: port.name.clone(),
        protocol: Some(port.protocol),
        port: Some(number),
    })
}

/// The name of a slice: the same for the same family and ports, whatever the endpoints.
fn slice_key(service: &Service, family: IpFamily, ports: &[EndpointPort]) -> ObjectKey {
    let mut hash = StableHash::new().text(&family.to_string());
    for port in ports {
        let protocol = port.protocol.map(|protocol| protocol.to_string()).unwrap_or_default();
        hash = hash.text(&port.name).text(&protocol);
        hash = hash.bytes(&port.port.unwrap_or_default().to_be_bytes());
    }
    let ObjectKey { namespace, name } = &service.meta.key;
    ObjectKey::new(namespace.clone(), format!("{name}-{}", hash.hex()))
}
