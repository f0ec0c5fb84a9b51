//! The Global API: the cluster as it is, for brains that make views of their own.
//!
//! Paths are KPNG's four fields joined by `|`: namespace, name, source, key. An endpoint travels
//! alone, with the slice it came from as its source; [`GlobalOp`] keeps it so, and the receiver
//! puts slices together again.

use std::sync::Arc;

use prost::Message as _;
use telaio_model::hash::StableHash;
use telaio_model::ip::{parse_ip, parse_net};
use telaio_model::{
    Conditions, Endpoint, EndpointPort, Hints, IpMode, LoadBalancerIngress, Meta, Node,
    NodeAddress, Object, ObjectKey, ObjectRef, Service, ServicePort, Taint, TargetPort,
    TrafficDistribution, TrafficPolicy,
};

use crate::error::{BadField, DecodeError, EncodeError, bad_ip};
use crate::local::{affinity, affinity_message, ip_filters, source_ranges};
use crate::proto::globalv1;
use crate::proto::localv1::{self, Set, op_item};
use crate::sets;
use crate::values::{
    ip_set, ips, label_map, labels, optional_port, optional_text, port, protocol, protocol_number,
    service_type, text,
};

/// The name of one endpoint across the cluster.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GlobalEndpointKey {
    /// Its service.
    pub service: ObjectKey,
    /// The slice it came from.
    pub source: Arc<str>,
    /// The pod's name, or a hash.
    pub id: Arc<str>,
}

/// One endpoint with the ports of its slice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GlobalEndpoint {
    /// Its name.
    pub key: GlobalEndpointKey,
    /// What it is.
    pub endpoint: Endpoint,
    /// Its ports.
    pub ports: Vec<EndpointPort>,
    /// `ports` is all there is; else service ports that it leaves out are served at their own
    /// target port, as KPNG means it.
    pub ports_complete: bool,
}

/// One step of the Global API.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GlobalOp {
    /// Forget everything.
    Reset,
    /// The node is now this.
    SetNode(Arc<Node>),
    /// The node is no more.
    DeleteNode(ObjectKey),
    /// The service is now this.
    SetService(Arc<Service>),
    /// The service is no more.
    DeleteService(ObjectKey),
    /// The endpoint is now this.
    SetEndpoint(Arc<GlobalEndpoint>),
    /// The endpoint is no more.
    DeleteEndpoint(GlobalEndpointKey),
    /// An object of an extension set is now this.
    SetObject(Object),
    /// Such an object is no more.
    DeleteObject(ObjectRef),
    /// The state is consistent.
    Sync,
}

/// The id of an endpoint: its pod's name, else a hash of its address and ports.
pub fn endpoint_id(endpoint: &Endpoint, ports: &[EndpointPort]) -> Arc<str> {
    match &endpoint.pod {
        Some(pod) => pod.clone(),
        None => anonymous_id(endpoint, ports),
    }
}

/// The id of an endpoint that has no pod, or shares its pod's name with another. Ports without a
/// number do not count: they serve nothing, and the wire does not carry them.
pub fn anonymous_id(endpoint: &Endpoint, ports: &[EndpointPort]) -> Arc<str> {
    let mut hash = StableHash::new().text(&endpoint.address.to_string());
    for port in ports {
        if let Some(number) = port.port {
            hash = hash.text(&port.name).bytes(&number.to_be_bytes());
        }
    }
    hash.hex().into()
}

fn path(namespace: &str, name: &str, source: &str, key: &str) -> String {
    [namespace, name, source, key].join("|")
}

fn service_path(key: &ObjectKey) -> String {
    path(&key.namespace, &key.name, "", "")
}

fn node_path(key: &ObjectKey) -> String {
    path("", &key.name, "", "")
}

fn endpoint_path(key: &GlobalEndpointKey) -> String {
    path(&key.service.namespace, &key.service.name, &key.source, &key.id)
}

fn split_path(path: &str) -> Result<[&str; 4], DecodeError> {
    let parts: Vec<&str> = path.split('|').collect();
    match <[&str; 4]>::try_from(parts) {
        Ok(parts) if !parts[1].is_empty() => Ok(parts),
        _ => Err(DecodeError::Path { path: path.to_owned(), form: "namespace|name|source|key" }),
    }
}

/// An operation as it goes on the wire.
pub fn encode_op(op: &GlobalOp) -> Result<localv1::OpItem, EncodeError> {
    Ok(match op {
        GlobalOp::Reset => sets::reset_item(),
        GlobalOp::Sync => sets::sync_item(),
        GlobalOp::SetNode(node) => {
            let mut info = globalv1::NodeInfo { hash: 0, node: Some(node_message(node)) };
            info.hash = content_hash(&info);
            let bytes = info.encode_to_vec().into();
            sets::set_item(Set::GlobalNodeInfos, node_path(&node.meta.key), bytes)
        }
        GlobalOp::DeleteNode(key) => sets::delete_item(Set::GlobalNodeInfos, node_path(key)),
        GlobalOp::SetService(service) => {
            let mut info =
                globalv1::ServiceInfo { hash: 0, service: Some(service_message(service)) };
            info.hash = content_hash(&info);
            let bytes = info.encode_to_vec().into();
            sets::set_item(Set::GlobalServiceInfos, service_path(&service.meta.key), bytes)
        }
        GlobalOp::DeleteService(key) => {
            sets::delete_item(Set::GlobalServiceInfos, service_path(key))
        }
        GlobalOp::SetEndpoint(endpoint) => {
            let mut info = endpoint_message(endpoint);
            info.hash = content_hash(&info);
            let bytes = info.encode_to_vec().into();
            sets::set_item(Set::GlobalEndpointInfos, endpoint_path(&endpoint.key), bytes)
        }
        GlobalOp::DeleteEndpoint(key) => {
            sets::delete_item(Set::GlobalEndpointInfos, endpoint_path(key))
        }
        GlobalOp::SetObject(object) => sets::encode_object(object)?,
        GlobalOp::DeleteObject(object_ref) => sets::encode_delete(object_ref)?,
    })
}

/// An operation as it came from the wire; `None` for one about a set that we do not know.
pub fn decode_op(item: localv1::OpItem) -> Result<Option<GlobalOp>, DecodeError> {
    Ok(Some(match item.op.ok_or(DecodeError::Missing("an Op"))? {
        op_item::Op::Reset(_) => GlobalOp::Reset,
        op_item::Op::Sync(_) => GlobalOp::Sync,
        op_item::Op::Set(value) => {
            let reference = value.r#ref.ok_or(DecodeError::Missing("a Ref"))?;
            return decode_set(&reference, value.bytes);
        }
        op_item::Op::Delete(reference) => {
            let path = &reference.path;
            match Set::try_from(reference.set).unwrap_or(Set::UnknownSet) {
                Set::GlobalNodeInfos => {
                    GlobalOp::DeleteNode(ObjectKey::cluster(split_path(path)?[1]))
                }
                Set::GlobalServiceInfos => {
                    let [namespace, name, ..] = split_path(path)?;
                    GlobalOp::DeleteService(ObjectKey::new(namespace, name))
                }
                Set::GlobalEndpointInfos => GlobalOp::DeleteEndpoint(endpoint_key(path)?),
                set => match sets::kind_of(set) {
                    Some(kind) => {
                        GlobalOp::DeleteObject(ObjectRef::new(kind, ObjectKey::parse(path)))
                    }
                    None => return Ok(None),
                },
            }
        }
    }))
}

fn decode_set(
    reference: &localv1::Ref,
    bytes: bytes::Bytes,
) -> Result<Option<GlobalOp>, DecodeError> {
    let path = &reference.path;
    let malformed = |source| DecodeError::Bytes { path: path.clone(), source };
    Ok(Some(match Set::try_from(reference.set).unwrap_or(Set::UnknownSet) {
        Set::GlobalNodeInfos => {
            let info = globalv1::NodeInfo::decode(bytes).map_err(malformed)?;
            let message = info.node.ok_or(DecodeError::Missing("a Node"))?;
            let node = node(message).map_err(|bad| bad.at(path))?;
            check_path(path, &node.meta.key)?;
            GlobalOp::SetNode(Arc::new(node))
        }
        Set::GlobalServiceInfos => {
            let info = globalv1::ServiceInfo::decode(bytes).map_err(malformed)?;
            let message = info.service.ok_or(DecodeError::Missing("a Service"))?;
            let service = service(message).map_err(|bad| bad.at(path))?;
            check_path(path, &service.meta.key)?;
            GlobalOp::SetService(Arc::new(service))
        }
        Set::GlobalEndpointInfos => {
            let info = globalv1::EndpointInfo::decode(bytes).map_err(malformed)?;
            let key = endpoint_key(path)?;
            GlobalOp::SetEndpoint(Arc::new(endpoint(key, info).map_err(|bad| bad.at(path))?))
        }
        set => match sets::kind_of(set) {
            Some(kind) => GlobalOp::SetObject(sets::decode_object(kind, path, &bytes)?),
            None => return Ok(None),
        },
    }))
}

/// What is set must be what its path names, or its deletion would miss it.
fn check_path(path: &str, key: &ObjectKey) -> Result<(), DecodeError> {
    let [namespace, name, ..] = split_path(path)?;
    if *key.namespace == *namespace && *key.name == *name {
        return Ok(());
    }
    Err(DecodeError::WrongObject { path: path.to_owned(), object: key.to_string() })
}

fn endpoint_key(path: &str) -> Result<GlobalEndpointKey, DecodeError> {
    let [namespace, name, source, id] = split_path(path)?;
    let service = ObjectKey::new(namespace, name);
    Ok(GlobalEndpointKey { service, source: source.into(), id: id.into() })
}

/// A hash of everything in the message, so that no change goes unnoticed (KPNG's left out hints).
fn content_hash(message: &impl prost::Message) -> u64 {
    StableHash::new().bytes(&message.encode_to_vec()).finish()
}

fn service_message(service: &Service) -> localv1::Service {
    let vips = ip_set(service.load_balancer_vips());
    let proxied = service.load_balancer.iter().filter(|entry| entry.ip_mode == IpMode::Proxy);
    localv1::Service {
        namespace: service.meta.key.namespace.to_string(),
        name: service.meta.key.name.to_string(),
        r#type: service.service_type.to_string(),
        i_ps: Some(localv1::ServiceIPs {
            cluster_i_ps: ip_set(service.cluster_ips.iter().copied()),
            external_i_ps: ip_set(service.external_ips.iter().copied()),
            headless: service.headless,
            load_balancer_i_ps: vips.clone(),
            load_balancer_proxy_i_ps: ip_set(proxied.map(|entry| entry.ip)),
        }),
        map_ip: false,
        ports: service.ports.iter().map(service_port_message).collect(),
        external_traffic_to_local: service.external_traffic_policy == TrafficPolicy::Local,
        labels: label_map(&service.meta.labels),
        annotations: label_map(&service.meta.annotations),
        ip_filters: ip_filters(vips, &service.source_ranges),
        internal_traffic_to_local: service.internal_traffic_policy == TrafficPolicy::Local,
        health_check_node_port: service.health_check_node_port.unwrap_or(0).into(),
        session_affinity: service.session_affinity.map(affinity_message),
        external_name: text(service.external_name.as_ref()),
        traffic_distribution: match service.traffic_distribution {
            None => String::new(),
            Some(TrafficDistribution::PreferSameZone) => "PreferSameZone".to_owned(),
            Some(TrafficDistribution::PreferSameNode) => "PreferSameNode".to_owned(),
        },
        created_seconds: service.meta.created_s.unwrap_or(0),
    }
}

fn service_port_message(port: &ServicePort) -> localv1::PortMapping {
    let (target_port, target_port_name) = match &port.target_port {
        TargetPort::Number(number) => (i32::from(*number), String::new()),
        TargetPort::Name(name) => (0, name.to_string()),
    };
    localv1::PortMapping {
        name: port.name.to_string(),
        protocol: protocol_number(port.protocol),
        port: port.port.into(),
        node_port: port.node_port.unwrap_or(0).into(),
        target_port,
        target_port_name,
        app_protocol: text(port.app_protocol.as_ref()),
        has_endpoints_v4: None,
        has_endpoints_v6: None,
    }
}

fn policy(to_local: bool) -> TrafficPolicy {
    if to_local { TrafficPolicy::Local } else { TrafficPolicy::Cluster }
}

fn service(message: localv1::Service) -> Result<Service, BadField> {
    let addresses = message.i_ps.unwrap_or_default();
    let vips = ips(addresses.load_balancer_i_ps.as_ref(), "LoadBalancerIPs")?;
    let proxied = ips(addresses.load_balancer_proxy_i_ps.as_ref(), "LoadBalancerProxyIPs")?;
    let load_balancer = vips
        .into_iter()
        .map(|ip| LoadBalancerIngress { ip, ip_mode: IpMode::Vip })
        .chain(proxied.into_iter().map(|ip| LoadBalancerIngress { ip, ip_mode: IpMode::Proxy }))
        .collect();
    Ok(Service {
        meta: Meta {
            key: ObjectKey::new(message.namespace, message.name),
            labels: labels(message.labels),
            annotations: labels(message.annotations),
            created_s: (message.created_seconds != 0).then_some(message.created_seconds),
        },
        service_type: service_type(&message.r#type)?,
        headless: addresses.headless,
        cluster_ips: ips(addresses.cluster_i_ps.as_ref(), "ClusterIPs")?,
        external_ips: ips(addresses.external_i_ps.as_ref(), "ExternalIPs")?,
        load_balancer,
        source_ranges: source_ranges(&message.ip_filters)?,
        ports: message.ports.into_iter().map(service_port).collect::<Result<_, _>>()?,
        selector: telaio_model::Labels::new(),
        external_traffic_policy: policy(message.external_traffic_to_local),
        internal_traffic_policy: policy(message.internal_traffic_to_local),
        session_affinity: affinity(message.session_affinity)?,
        health_check_node_port: optional_port(
            message.health_check_node_port,
            "HealthCheckNodePort",
        )?,
        traffic_distribution: match message.traffic_distribution.as_str() {
            "PreferSameZone" => Some(TrafficDistribution::PreferSameZone),
            "PreferSameNode" => Some(TrafficDistribution::PreferSameNode),
            _ => None,
        },
        publish_not_ready_addresses: false,
        external_name: optional_text(&message.external_name),
    })
}

fn service_port(message: localv1::PortMapping) -> Result<ServicePort, BadField> {
    let number = port(message.port, "Port")?;
    let target_port =
        match (optional_port(message.target_port, "TargetPort")?, message.target_port_name) {
            (Some(target), _) => TargetPort::Number(target),
            (None, name) if name.is_empty() => TargetPort::Number(number),
            (None, name) => TargetPort::Name(name.into()),
        };
    Ok(ServicePort {
        name: message.name.into(),
        protocol: protocol(message.protocol)?.unwrap_or_default(),
        app_protocol: optional_text(&message.app_protocol),
        port: number,
        node_port: optional_port(message.node_port, "NodePort")?,
        target_port,
    })
}

fn endpoint_message(global: &GlobalEndpoint) -> globalv1::EndpointInfo {
    let endpoint = &global.endpoint;
    let hints = endpoint.hints.as_deref();
    let names = |list: &[Arc<str>]| list.iter().map(ToString::to_string).collect::<Vec<_>>();
    globalv1::EndpointInfo {
        hash: 0,
        namespace: global.key.service.namespace.to_string(),
        source_name: global.key.source.to_string(),
        service_name: global.key.service.name.to_string(),
        endpoint: Some(localv1::Endpoint {
            hostname: text(endpoint.hostname.as_ref()),
            i_ps: ip_set([endpoint.address]),
            local: false,
            port_overrides: global
                .ports
                .iter()
                .filter_map(|port| {
                    Some(localv1::PortName {
                        name: port.name.to_string(),
                        port: port.port?.into(),
                        protocol: port.protocol.map_or(0, protocol_number),
                        scopes: None,
                    })
                })
                .collect(),
            weight: endpoint.weight.map(u32::from),
            ports_complete: global.ports_complete,
            ..localv1::Endpoint::default()
        }),
        conditions: Some(globalv1::EndpointConditions {
            ready: endpoint.conditions.ready,
            serving: Some(endpoint.conditions.serving),
            terminating: Some(endpoint.conditions.terminating),
        }),
        pod_name: text(endpoint.pod.as_ref()),
        topology: Some(globalv1::TopologyInfo {
            node: text(endpoint.node.as_ref()),
            zone: text(endpoint.zone.as_ref()),
        }),
        hints: hints.map(|hints| globalv1::TopologyHints {
            zones: names(&hints.zones),
            nodes: names(&hints.nodes),
        }),
    }
}

fn endpoint(
    key: GlobalEndpointKey,
    info: globalv1::EndpointInfo,
) -> Result<GlobalEndpoint, BadField> {
    let message = info.endpoint.unwrap_or_default();
    let address = ips(message.i_ps.as_ref(), "IPs")?
        .first()
        .copied()
        .ok_or_else(|| BadField::new("IPs", "an endpoint needs an address"))?;
    let topology = info.topology.unwrap_or_default();
    let texts = |list: Vec<String>| list.into_iter().map(Arc::from).collect::<Vec<_>>();
    let hints = info
        .hints
        .map(|hints| Hints { zones: texts(hints.zones), nodes: texts(hints.nodes) })
        .filter(|hints| !hints.is_empty());
    let conditions = info.conditions.unwrap_or(globalv1::EndpointConditions {
        ready: true,
        ..globalv1::EndpointConditions::default()
    });
    let endpoint_port = |name: localv1::PortName| {
        Ok(EndpointPort {
            protocol: protocol(name.protocol)?,
            port: optional_port(name.port, "PortOverrides")?,
            name: name.name.into(),
        })
    };
    Ok(GlobalEndpoint {
        key,
        endpoint: Endpoint {
            address,
            conditions: Conditions::from_parts(
                Some(conditions.ready),
                conditions.serving,
                conditions.terminating,
            ),
            pod: optional_text(&info.pod_name),
            hostname: optional_text(&message.hostname),
            node: optional_text(&topology.node),
            zone: optional_text(&topology.zone),
            hints: hints.map(Box::new),
            weight: match message.weight {
                None => None,
                Some(weight) => Some(
                    u16::try_from(weight).map_err(|_| BadField::new("Weight", "is over 65535"))?,
                ),
            },
        },
        ports: message.port_overrides.into_iter().map(endpoint_port).collect::<Result<_, _>>()?,
        ports_complete: message.ports_complete,
    })
}

fn node_message(node: &Node) -> globalv1::Node {
    globalv1::Node {
        name: node.meta.key.name.to_string(),
        labels: label_map(&node.meta.labels),
        annotations: label_map(&node.meta.annotations),
        topology: Some(globalv1::TopologyInfo {
            node: node.meta.key.name.to_string(),
            zone: text(node.zone()),
        }),
        addresses: node
            .addresses
            .iter()
            .map(|address| globalv1::NodeAddress {
                r#type: address.address_type.to_string(),
                ip: address.ip.to_string(),
            })
            .collect(),
        pod_cid_rs: node.pod_cidrs.iter().map(ToString::to_string).collect(),
        taints: node
            .taints
            .iter()
            .map(|taint| globalv1::Taint {
                key: taint.key.to_string(),
                value: text(taint.value.as_ref()),
                effect: taint.effect.to_string(),
            })
            .collect(),
        deleting: node.deleting,
    }
}

fn node(message: globalv1::Node) -> Result<Node, BadField> {
    let mut labels = labels(message.labels);
    // KPNG gives the zone apart; for us it is the label.
    let zone = message.topology.unwrap_or_default().zone;
    if !zone.is_empty() && !labels.contains_key(telaio_model::node::LABEL_ZONE) {
        labels.insert(telaio_model::node::LABEL_ZONE.into(), zone.into());
    }
    let address = |address: globalv1::NodeAddress| {
        Ok(NodeAddress {
            address_type: address.r#type.into(),
            ip: parse_ip(&address.ip).map_err(bad_ip("Addresses"))?,
        })
    };
    let taint = |taint: globalv1::Taint| Taint {
        key: taint.key.into(),
        value: optional_text(&taint.value),
        effect: taint.effect.into(),
    };
    Ok(Node {
        meta: Meta {
            key: ObjectKey::cluster(message.name),
            labels,
            annotations: crate::values::labels(message.annotations),
            created_s: None,
        },
        addresses: message.addresses.into_iter().map(address).collect::<Result<_, _>>()?,
        pod_cidrs: message
            .pod_cid_rs
            .iter()
            .map(|cidr| parse_net(cidr).map_err(bad_ip("PodCIDRs")))
            .collect::<Result<_, _>>()?,
        taints: message.taints.into_iter().map(taint).collect(),
        deleting: message.deleting,
    })
}
