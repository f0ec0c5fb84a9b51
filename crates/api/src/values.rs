//! Small values that both APIs share, both ways.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use telaio_model::ip::parse_ip;
use telaio_model::{Labels, Protocol, Scopes, ServiceType};

use crate::error::{BadField, bad_ip};
use crate::proto::localv1;

pub(crate) fn ip_set(ips: impl IntoIterator<Item = IpAddr>) -> Option<localv1::IpSet> {
    let mut set = localv1::IpSet::default();
    for ip in ips {
        if ip.is_ipv4() { set.v4.push(ip.to_string()) } else { set.v6.push(ip.to_string()) }
    }
    (!set.v4.is_empty() || !set.v6.is_empty()).then_some(set)
}

pub(crate) fn ips(
    set: Option<&localv1::IpSet>,
    field: &'static str,
) -> Result<Vec<IpAddr>, BadField> {
    let Some(set) = set else { return Ok(Vec::new()) };
    set.v4.iter().chain(&set.v6).map(|text| parse_ip(text).map_err(bad_ip(field))).collect()
}

/// Converts a list, and keeps no more room than it needs: collecting takes over the list's memory with all
/// that decoding has set aside.
pub(crate) fn each<T, U>(
    list: Vec<T>,
    convert: impl FnMut(T) -> Result<U, BadField>,
) -> Result<Vec<U>, BadField> {
    let mut all: Vec<U> = list.into_iter().map(convert).collect::<Result<_, _>>()?;
    all.shrink_to_fit();
    Ok(all)
}

pub(crate) fn port(number: i32, field: &'static str) -> Result<u16, BadField> {
    optional_port(number, field)?.ok_or_else(|| BadField::new(field, "0 is not a port"))
}

pub(crate) fn optional_port(number: i32, field: &'static str) -> Result<Option<u16>, BadField> {
    match u16::try_from(number) {
        Ok(0) => Ok(None),
        Ok(port) => Ok(Some(port)),
        Err(_) => Err(BadField::new(field, format!("{number} is not a port"))),
    }
}

pub(crate) fn text(value: Option<&Arc<str>>) -> String {
    value.map(ToString::to_string).unwrap_or_default()
}

pub(crate) fn optional_text(value: &str) -> Option<Arc<str>> {
    (!value.is_empty()).then(|| Arc::from(value))
}

pub(crate) fn label_map(labels: &Labels) -> BTreeMap<String, String> {
    labels.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect()
}

pub(crate) fn labels(map: BTreeMap<String, String>) -> Labels {
    map.into_iter().map(|(key, value)| (key.into(), value.into())).collect()
}

pub(crate) fn protocol_number(protocol: Protocol) -> i32 {
    match protocol {
        Protocol::Tcp => localv1::Protocol::Tcp,
        Protocol::Udp => localv1::Protocol::Udp,
        Protocol::Sctp => localv1::Protocol::Sctp,
    }
    .into()
}

pub(crate) fn protocol(number: i32) -> Result<Option<Protocol>, BadField> {
    match localv1::Protocol::try_from(number) {
        Ok(localv1::Protocol::UnknownProtocol) => Ok(None),
        Ok(localv1::Protocol::Tcp) => Ok(Some(Protocol::Tcp)),
        Ok(localv1::Protocol::Udp) => Ok(Some(Protocol::Udp)),
        Ok(localv1::Protocol::Sctp) => Ok(Some(Protocol::Sctp)),
        Err(_) => Err(BadField::new("Protocol", format!("{number} is not TCP, UDP or SCTP"))),
    }
}

pub(crate) fn service_type(text: &str) -> Result<ServiceType, BadField> {
    Ok(match text {
        "" | "ClusterIP" => ServiceType::ClusterIP,
        "NodePort" => ServiceType::NodePort,
        "LoadBalancer" => ServiceType::LoadBalancer,
        "ExternalName" => ServiceType::ExternalName,
        _ => return Err(BadField::new("Type", format!("{text:?} is not a service type"))),
    })
}

pub(crate) fn scopes_message(scopes: Scopes) -> localv1::EndpointScopes {
    localv1::EndpointScopes {
        internal: scopes.internal,
        external: scopes.external,
        cluster: scopes.cluster,
        local: scopes.local,
    }
}
