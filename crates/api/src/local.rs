//! The Local API: one node's view, operation by operation.
//!
//! Paths are KPNG's: `namespace/name` for a service, `namespace/service/id` for an endpoint, where
//! the id is the pod's name or a hash.

use std::sync::Arc;

use prost::Message as _;
use telaio_model::ip::parse_net;
use telaio_model::{
    ClientIpAffinity, Conditions, EndpointRef, Families, LocalEndpoint, LocalEndpointPort,
    LocalService, LocalServicePort, ObjectKey, ObjectRef, Op, Scopes,
};

use crate::error::{BadField, DecodeError, EncodeError, bad_ip};
use crate::proto::localv1::{self, Set, op_item};
use crate::sets;
use crate::values::{
    each, ip_set, ips, label_map, labels, optional_port, optional_text, port, protocol,
    protocol_number, scopes_message, service_type, text,
};

/// An operation as it goes on the wire.
pub fn encode_op(op: &Op) -> Result<localv1::OpItem, EncodeError> {
    Ok(match op {
        Op::Reset => sets::reset_item(),
        Op::Sync => sets::sync_item(),
        Op::SetService(service) => sets::set_item(
            Set::ServicesSet,
            service.key.to_string(),
            service_message(service).encode_to_vec().into(),
        ),
        Op::DeleteService(key) => sets::delete_item(Set::ServicesSet, key.to_string()),
        Op::SetEndpoint(endpoint) => sets::set_item(
            Set::EndpointsSet,
            endpoint.key.to_string(),
            endpoint_message(endpoint).encode_to_vec().into(),
        ),
        Op::DeleteEndpoint(key) => sets::delete_item(Set::EndpointsSet, key.to_string()),
        Op::SetObject(object) => sets::encode_object(object)?,
        Op::DeleteObject(object_ref) => sets::encode_delete(object_ref)?,
    })
}

/// An operation as it came from the wire; `None` for one about a set that we do not know.
pub fn decode_op(item: localv1::OpItem) -> Result<Option<Op>, DecodeError> {
    Ok(Some(match item.op.ok_or(DecodeError::Missing("an Op"))? {
        op_item::Op::Reset(_) => Op::Reset,
        op_item::Op::Sync(_) => Op::Sync,
        op_item::Op::Set(value) => {
            let reference = value.r#ref.ok_or(DecodeError::Missing("a Ref"))?;
            let path = &reference.path;
            let bytes = value.bytes;
            let malformed = |source| DecodeError::Bytes { path: path.clone(), source };
            match Set::try_from(reference.set).unwrap_or(Set::UnknownSet) {
                Set::ServicesSet => {
                    let message = localv1::Service::decode(bytes).map_err(malformed)?;
                    let service = service(message).map_err(|bad| bad.at(path))?;
                    if service.key != service_path(path)? {
                        let object = service.key.to_string();
                        return Err(DecodeError::WrongObject { path: path.clone(), object });
                    }
                    Op::SetService(Arc::new(service))
                }
                Set::EndpointsSet => {
                    let message = localv1::Endpoint::decode(bytes).map_err(malformed)?;
                    let key = endpoint_path(path)?;
                    Op::SetEndpoint(Arc::new(endpoint(key, message).map_err(|bad| bad.at(path))?))
                }
                set => match sets::kind_of(set) {
                    Some(kind) => Op::SetObject(sets::decode_object(kind, path, &bytes)?),
                    None => return Ok(None),
                },
            }
        }
        op_item::Op::Delete(reference) => {
            match Set::try_from(reference.set).unwrap_or(Set::UnknownSet) {
                Set::ServicesSet => Op::DeleteService(service_path(&reference.path)?),
                Set::EndpointsSet => Op::DeleteEndpoint(endpoint_path(&reference.path)?),
                set => match sets::kind_of(set) {
                    Some(kind) => {
                        Op::DeleteObject(ObjectRef::new(kind, ObjectKey::parse(&reference.path)))
                    }
                    None => return Ok(None),
                },
            }
        }
    }))
}

fn service_path(path: &str) -> Result<ObjectKey, DecodeError> {
    match path.split_once('/') {
        Some((namespace, name))
            if !namespace.is_empty() && !name.is_empty() && !name.contains('/') =>
        {
            Ok(ObjectKey::new(namespace, name))
        }
        _ => Err(DecodeError::Path { path: path.to_owned(), form: "namespace/name" }),
    }
}

fn endpoint_path(path: &str) -> Result<EndpointRef, DecodeError> {
    let mut parts = path.splitn(3, '/');
    match (parts.next(), parts.next(), parts.next()) {
        (Some(namespace), Some(service), Some(id))
            if !namespace.is_empty() && !service.is_empty() && !id.is_empty() =>
        {
            Ok(EndpointRef { service: ObjectKey::new(namespace, service), id: id.into() })
        }
        _ => Err(DecodeError::Path { path: path.to_owned(), form: "namespace/service/endpoint" }),
    }
}

fn service_message(service: &LocalService) -> localv1::Service {
    let load_balancer_ips = ip_set(service.load_balancer_ips.iter().copied());
    localv1::Service {
        namespace: service.key.namespace.to_string(),
        name: service.key.name.to_string(),
        r#type: service.service_type.to_string(),
        i_ps: Some(localv1::ServiceIPs {
            cluster_i_ps: ip_set(service.cluster_ips.iter().copied()),
            external_i_ps: ip_set(service.external_ips.iter().copied()),
            headless: service.headless,
            load_balancer_i_ps: load_balancer_ips.clone(),
            load_balancer_proxy_i_ps: None,
        }),
        map_ip: false,
        ports: service.ports.iter().map(service_port_message).collect(),
        external_traffic_to_local: service.external_traffic_to_local,
        labels: label_map(&service.labels),
        annotations: label_map(&service.annotations),
        ip_filters: ip_filters(load_balancer_ips, &service.source_ranges),
        internal_traffic_to_local: service.internal_traffic_to_local,
        health_check_node_port: service.health_check_node_port.unwrap_or(0).into(),
        session_affinity: service.session_affinity.map(affinity_message),
        external_name: text(service.external_name.as_ref()),
        traffic_distribution: String::new(),
        created_seconds: 0,
    }
}

pub(crate) fn ip_filters(
    targets: Option<localv1::IpSet>,
    source_ranges: &[ipnet::IpNet],
) -> Vec<localv1::IpFilter> {
    if source_ranges.is_empty() {
        return Vec::new();
    }
    let source_ranges = source_ranges.iter().map(ToString::to_string).collect();
    vec![localv1::IpFilter { target_i_ps: targets, source_ranges }]
}

pub(crate) fn source_ranges(filters: &[localv1::IpFilter]) -> Result<Vec<ipnet::IpNet>, BadField> {
    let ranges = filters.iter().flat_map(|filter| &filter.source_ranges);
    ranges.map(|range| parse_net(range.trim()).map_err(bad_ip("SourceRanges"))).collect()
}

pub(crate) fn affinity_message(affinity: ClientIpAffinity) -> localv1::service::SessionAffinity {
    localv1::service::SessionAffinity::ClientIp(localv1::ClientIpAffinity {
        timeout_seconds: i32::try_from(affinity.timeout_s).unwrap_or(i32::MAX),
    })
}

pub(crate) fn affinity(
    message: Option<localv1::service::SessionAffinity>,
) -> Result<Option<ClientIpAffinity>, BadField> {
    let Some(localv1::service::SessionAffinity::ClientIp(affinity)) = message else {
        return Ok(None);
    };
    match u32::try_from(affinity.timeout_seconds) {
        Ok(timeout_s) => Ok(Some(ClientIpAffinity { timeout_s })),
        Err(_) => Err(BadField::new("TimeoutSeconds", "a time-out cannot be negative")),
    }
}

fn service_port_message(port: &LocalServicePort) -> localv1::PortMapping {
    localv1::PortMapping {
        name: port.name.to_string(),
        protocol: protocol_number(port.protocol),
        port: port.port.into(),
        node_port: port.node_port.unwrap_or(0).into(),
        target_port: port.target_port.unwrap_or(0).into(),
        target_port_name: text(port.target_port_name.as_ref()),
        app_protocol: text(port.app_protocol.as_ref()),
        has_endpoints_v4: Some(port.has_endpoints.v4),
        has_endpoints_v6: Some(port.has_endpoints.v6),
    }
}

fn service(message: localv1::Service) -> Result<LocalService, BadField> {
    let addresses = message.i_ps.unwrap_or_default();
    let internal_to_local = message.internal_traffic_to_local;
    Ok(LocalService {
        key: ObjectKey::new(message.namespace, message.name),
        service_type: service_type(&message.r#type)?,
        headless: addresses.headless,
        cluster_ips: ips(addresses.cluster_i_ps.as_ref(), "ClusterIPs")?,
        external_ips: ips(addresses.external_i_ps.as_ref(), "ExternalIPs")?,
        load_balancer_ips: ips(addresses.load_balancer_i_ps.as_ref(), "LoadBalancerIPs")?,
        source_ranges: source_ranges(&message.ip_filters)?,
        ports: each(message.ports, |port| service_port(port, internal_to_local))?,
        external_traffic_to_local: message.external_traffic_to_local,
        internal_traffic_to_local: internal_to_local,
        session_affinity: affinity(message.session_affinity)?,
        health_check_node_port: optional_port(
            message.health_check_node_port,
            "HealthCheckNodePort",
        )?,
        external_name: optional_text(&message.external_name),
        labels: labels(message.labels),
        annotations: labels(message.annotations),
    })
}

fn service_port(
    message: localv1::PortMapping,
    internal_to_local: bool,
) -> Result<LocalServicePort, BadField> {
    Ok(LocalServicePort {
        protocol: protocol(message.protocol)?.unwrap_or_default(),
        port: port(message.port, "Port")?,
        node_port: optional_port(message.node_port, "NodePort")?,
        target_port: optional_port(message.target_port, "TargetPort")?,
        target_port_name: optional_text(&message.target_port_name),
        app_protocol: optional_text(&message.app_protocol),
        // KPNG does not say. It matters only where policy Local finds nothing here, and there to
        // drop is what the policy asks for.
        has_endpoints: Families {
            v4: message.has_endpoints_v4.unwrap_or(internal_to_local),
            v6: message.has_endpoints_v6.unwrap_or(internal_to_local),
        },
        name: message.name.into(),
    })
}

fn endpoint_message(endpoint: &LocalEndpoint) -> localv1::Endpoint {
    localv1::Endpoint {
        hostname: text(endpoint.hostname.as_ref()),
        i_ps: ip_set(endpoint.ips.iter().copied()),
        local: endpoint.local,
        port_overrides: endpoint
            .ports
            .iter()
            .map(|port| localv1::PortName {
                name: port.name.to_string(),
                port: port.port.into(),
                protocol: 0,
                scopes: Some(scopes_message(port.scopes)),
            })
            .collect(),
        // With every port listed, what they say together; else what holds for the others.
        scopes: Some(scopes_message(endpoint.unlisted_ports.unwrap_or_else(|| endpoint.scopes()))),
        state: Some(localv1::EndpointState {
            ready: endpoint.conditions.ready,
            serving: endpoint.conditions.serving,
            terminating: endpoint.conditions.terminating,
        }),
        weight: Some(endpoint.weight.into()),
        node: text(endpoint.node.as_ref()),
        zone: text(endpoint.zone.as_ref()),
        pod: text(endpoint.pod.as_ref()),
        ports_complete: endpoint.unlisted_ports.is_none(),
    }
}

/// The scopes that a message means. KPNG knows two of them; the others follow as well as they can.
fn scopes(message: Option<localv1::EndpointScopes>, extended: bool, is_local: bool) -> Scopes {
    match message {
        Some(message) if extended => Scopes {
            internal: message.internal,
            external: message.external,
            cluster: message.cluster,
            local: message.local,
        },
        other => {
            let (internal, external) =
                other.map_or((true, true), |message| (message.internal, message.external));
            let any = internal || external;
            Scopes { internal, external, cluster: any, local: any && is_local }
        }
    }
}

fn endpoint(key: EndpointRef, message: localv1::Endpoint) -> Result<LocalEndpoint, BadField> {
    let extended = message.state.is_some();
    let own_scopes = scopes(message.scopes, extended, message.local);
    let endpoint_port = |name: localv1::PortName| {
        Ok(LocalEndpointPort {
            port: port(name.port, "PortOverrides")?,
            scopes: match name.scopes {
                Some(message) => scopes(Some(message), true, false),
                None => own_scopes,
            },
            name: name.name.into(),
        })
    };
    let addresses = ips(message.i_ps.as_ref(), "IPs")?;
    if addresses.is_empty() {
        return Err(BadField::new("IPs", "an endpoint needs an address"));
    }
    let weight = message.weight.unwrap_or(1);
    let pod = match (optional_text(&message.pod), extended) {
        (None, false) => Some(key.id.clone()),
        (pod, _) => pod,
    };
    Ok(LocalEndpoint {
        key,
        pod,
        hostname: optional_text(&message.hostname),
        ips: addresses,
        local: message.local,
        ports: each(message.port_overrides, endpoint_port)?,
        unlisted_ports: (!message.ports_complete).then_some(own_scopes),
        conditions: message.state.map_or(Conditions::READY, |state| Conditions {
            ready: state.ready,
            serving: state.serving,
            terminating: state.terminating,
        }),
        weight: u16::try_from(weight).map_err(|_| BadField::new("Weight", "is over 65535"))?,
        node: optional_text(&message.node),
        zone: optional_text(&message.zone),
    })
}
