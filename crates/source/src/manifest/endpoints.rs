//! EndpointSlice, `discovery.k8s.io/v1`.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use serde::Deserialize;
use telaio_model::endpoints::{ANNOTATION_TRIGGER_TIME, LABEL_SERVICE_NAME, TriggerTime};
use telaio_model::{AddressType, Conditions, FieldError, Hints, Kind};

use super::check::{Errors, Quoted, intern_some};
use super::meta::NameRule;
use super::value::nullable;
use super::{Context, Manifest, ObjectMeta};

/// An EndpointSlice.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct EndpointSlice {
    /// Metadata.
    #[serde(deserialize_with = "nullable")]
    pub metadata: ObjectMeta,
    /// `IPv4`, `IPv6` or `FQDN`.
    pub address_type: Option<String>,
    /// The endpoints.
    #[serde(deserialize_with = "nullable")]
    pub endpoints: Vec<Endpoint>,
    /// The ports of each of them.
    #[serde(deserialize_with = "nullable")]
    pub ports: Vec<EndpointPort>,
}

/// One of `endpoints`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Endpoint {
    /// Its addresses. Only the first counts; Kubernetes gives the others no meaning.
    #[serde(deserialize_with = "nullable")]
    pub addresses: Vec<String>,
    /// Its state.
    #[serde(deserialize_with = "nullable")]
    pub conditions: EndpointConditions,
    /// Its host name.
    pub hostname: Option<String>,
    /// The node it runs on.
    pub node_name: Option<String>,
    /// The zone it runs in.
    pub zone: Option<String>,
    /// What is behind it.
    pub target_ref: Option<TargetRef>,
    /// For whom it is meant.
    pub hints: Option<EndpointHints>,
}

/// `conditions` of an endpoint.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(default)]
pub struct EndpointConditions {
    /// Takes new connections; nothing is yes.
    pub ready: Option<bool>,
    /// Would answer; nothing is what `ready` says.
    pub serving: Option<bool>,
    /// Is being shut down; nothing is no.
    pub terminating: Option<bool>,
}

/// `targetRef` of an endpoint.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct TargetRef {
    /// The kind of what is behind the endpoint.
    pub kind: Option<String>,
    /// Its name.
    pub name: Option<String>,
}

/// `hints` of an endpoint.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct EndpointHints {
    /// Zones.
    #[serde(deserialize_with = "nullable")]
    pub for_zones: Vec<ForName>,
    /// Nodes.
    #[serde(deserialize_with = "nullable")]
    pub for_nodes: Vec<ForName>,
}

/// A zone or node in a hint.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct ForName {
    /// Its name.
    pub name: String,
}

/// One of `ports`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct EndpointPort {
    /// Its name; nothing is the empty name.
    pub name: Option<String>,
    /// Its protocol; nothing is TCP.
    pub protocol: Option<String>,
    /// Its number; nothing is "all ports".
    pub port: Option<i64>,
}

impl Manifest for EndpointSlice {
    const KIND: Kind = Kind::EndpointSlice;
    const KIND_NAME: &'static str = "EndpointSlice";
    const API_VERSION: &'static str = "discovery.k8s.io/v1";
    const NAMESPACED: bool = true;
    type Model = telaio_model::EndpointSlice;

    fn metadata(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn into_model(
        self,
        ctx: &Context,
    ) -> Result<Option<telaio_model::EndpointSlice>, Vec<FieldError>> {
        let mut errors = Errors::default();
        let key = self.metadata.key::<Self>(ctx, NameRule::Subdomain, &mut errors);
        let service = self.metadata.labels.get(LABEL_SERVICE_NAME).map(String::as_str);
        let weight = self.metadata.weight(&mut errors);
        let Some(address_type) = address_type(self.address_type.as_deref(), &mut errors) else {
            return errors.finish_with(None);
        };
        let mut endpoints = Vec::with_capacity(self.endpoints.len());
        for (i, endpoint) in self.endpoints.iter().enumerate() {
            endpoints.extend(endpoint.to_model(ctx, i, address_type, weight, &mut errors));
        }
        let ports = ports(ctx, &self.ports, &mut errors);
        errors.finish(Some(telaio_model::EndpointSlice {
            key,
            service: intern_some(ctx, service),
            address_type,
            endpoints,
            ports,
            triggered: trigger_time(&self.metadata),
        }))
    }
}

/// Only a figure depends on it, so what makes no sense counts as absent.
fn trigger_time(metadata: &ObjectMeta) -> TriggerTime {
    let text = metadata.annotations.get(ANNOTATION_TRIGGER_TIME);
    let time = text.and_then(|text| text.parse::<jiff::Timestamp>().ok());
    TriggerTime(time.map(jiff::Timestamp::as_millisecond))
}

fn address_type(text: Option<&str>, errors: &mut Errors) -> Option<AddressType> {
    match text {
        Some("IPv4") => return Some(AddressType::IPv4),
        Some("IPv6") => return Some(AddressType::IPv6),
        Some("FQDN") => return Some(AddressType::Fqdn),
        Some(other) => errors.push(
            "addressType",
            format_args!("{} is not known; write IPv4, IPv6 or FQDN", Quoted(other)),
        ),
        None => errors.push("addressType", "write IPv4, IPv6 or FQDN"),
    }
    None
}

impl Endpoint {
    /// The model's endpoint; `None` when it is wrong or its slice holds host names.
    fn to_model(
        &self,
        ctx: &Context,
        i: usize,
        address_type: AddressType,
        weight: Option<u16>,
        errors: &mut Errors,
    ) -> Option<telaio_model::Endpoint> {
        if self.addresses.is_empty() {
            errors.push(
                format_args!("endpoints[{i}].addresses"),
                "an endpoint needs at least one address",
            );
            return None;
        }
        if address_type == AddressType::Fqdn {
            return None;
        }
        let mut first = None;
        for (j, text) in self.addresses.iter().enumerate() {
            let path = format_args!("endpoints[{i}].addresses[{j}]");
            let Some(ip) = errors.unicast(path, text, ctx.loopback_endpoints_ok) else { continue };
            let fits = match address_type {
                AddressType::IPv4 => ip.is_ipv4(),
                AddressType::IPv6 => ip.is_ipv6(),
                AddressType::Fqdn => true,
            };
            if !fits {
                errors.push(
                    path,
                    format_args!(
                        "{ip} is not of the slice's addressType {address_type:?}; put it into a \
                         slice of its own"
                    ),
                );
            }
            if j == 0 {
                first = Some(ip);
            }
        }
        first.map(|address| self.at(ctx, address, weight))
    }

    fn at(&self, ctx: &Context, address: IpAddr, weight: Option<u16>) -> telaio_model::Endpoint {
        let conditions = self.conditions;
        let pod = self
            .target_ref
            .as_ref()
            .filter(|target| target.kind.as_deref() == Some("Pod"))
            .and_then(|target| target.name.as_deref());
        telaio_model::Endpoint {
            address,
            conditions: Conditions::from_parts(
                conditions.ready,
                conditions.serving,
                conditions.terminating,
            ),
            // Seldom anywhere else, so there is nothing to share.
            pod: pod.filter(|name| !name.is_empty()).map(Arc::from),
            hostname: intern_some(ctx, self.hostname.as_deref()),
            node: intern_some(ctx, self.node_name.as_deref()),
            zone: intern_some(ctx, self.zone.as_deref()),
            hints: self.hints.as_ref().and_then(|hints| hints.to_model(ctx)),
            weight,
        }
    }
}

impl EndpointHints {
    fn to_model(&self, ctx: &Context) -> Option<Box<Hints>> {
        let names = |list: &[ForName]| list.iter().map(|item| ctx.intern(&item.name)).collect();
        let hints = Hints { zones: names(&self.for_zones), nodes: names(&self.for_nodes) };
        (!hints.is_empty()).then(|| Box::new(hints))
    }
}

fn ports(
    ctx: &Context,
    ports: &[EndpointPort],
    errors: &mut Errors,
) -> Vec<telaio_model::EndpointPort> {
    let mut names = BTreeSet::new();
    let mut converted = Vec::with_capacity(ports.len());
    for (i, port) in ports.iter().enumerate() {
        let name = port.name.as_deref().unwrap_or_default();
        if !name.is_empty() {
            errors.dns_label(format_args!("ports[{i}].name"), name);
        }
        if !names.insert(name) {
            errors.push(
                format_args!("ports[{i}].name"),
                format_args!("{name:?} names another port already; choose another name"),
            );
        }
        let protocol =
            errors.protocol(format_args!("ports[{i}].protocol"), port.protocol.as_deref());
        let number =
            port.port.and_then(|number| errors.port(format_args!("ports[{i}].port"), number));
        converted.push(telaio_model::EndpointPort {
            name: ctx.intern(name),
            protocol,
            port: number,
        });
    }
    converted
}
