//! Service, `v1`.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;
use serde::Deserialize;
use telaio_model::{
    ClientIpAffinity, FieldError, IpFamily, IpMode, Kind, Protocol, ServiceType, TargetPort,
    TrafficDistribution, TrafficPolicy,
};

use super::check::{Errors, intern_some};
use super::meta::{self, Annotations, NameRule};
use super::value::nullable;
use super::{Context, IntOrString, Manifest, ObjectMeta};

/// Kubernetes' default for `sessionAffinityConfig.clientIP.timeoutSeconds`.
const AFFINITY_TIMEOUT_S_DEFAULT: u32 = 10_800;
/// Kubernetes' longest affinity, one day.
const AFFINITY_TIMEOUT_S_MAX: u32 = 86_400;

/// A Service.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Service {
    /// Metadata.
    #[serde(deserialize_with = "nullable")]
    pub metadata: ObjectMeta,
    /// What is wanted.
    #[serde(deserialize_with = "nullable")]
    pub spec: ServiceSpec,
    /// What a load balancer gave.
    #[serde(deserialize_with = "nullable")]
    pub status: ServiceStatus,
}

/// `spec` of a Service.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ServiceSpec {
    /// `ClusterIP`, `NodePort`, `LoadBalancer` or `ExternalName`.
    #[serde(rename = "type")]
    pub service_type: Option<String>,
    /// The first cluster address, or `None` for headless.
    #[serde(rename = "clusterIP")]
    pub cluster_ip: Option<String>,
    /// The cluster addresses.
    #[serde(rename = "clusterIPs", deserialize_with = "nullable")]
    pub cluster_ips: Vec<String>,
    /// `IPv4`, `IPv6`, in order of preference.
    #[serde(deserialize_with = "nullable")]
    pub ip_families: Vec<String>,
    /// `SingleStack`, `PreferDualStack` or `RequireDualStack`.
    pub ip_family_policy: Option<String>,
    /// Further addresses.
    #[serde(rename = "externalIPs", deserialize_with = "nullable")]
    pub external_ips: Vec<String>,
    /// The ports.
    #[serde(deserialize_with = "nullable")]
    pub ports: Vec<ServicePort>,
    /// Labels of the pods that serve it.
    #[serde(deserialize_with = "nullable")]
    pub selector: BTreeMap<String, String>,
    /// `Cluster` or `Local`.
    pub external_traffic_policy: Option<String>,
    /// `Cluster` or `Local`.
    pub internal_traffic_policy: Option<String>,
    /// `None` or `ClientIP`.
    pub session_affinity: Option<String>,
    /// How long affinity lasts.
    pub session_affinity_config: Option<SessionAffinityConfig>,
    /// Where load balancers ask; 0 is none.
    pub health_check_node_port: Option<i64>,
    /// `PreferClose`, `PreferSameZone` or `PreferSameNode`; others are ignored.
    pub traffic_distribution: Option<String>,
    /// Endpoints count as ready before their pods are.
    #[serde(deserialize_with = "nullable")]
    pub publish_not_ready_addresses: bool,
    /// Who may use the load balancer.
    #[serde(deserialize_with = "nullable")]
    pub load_balancer_source_ranges: Vec<String>,
    /// Whether a LoadBalancer gets node ports; nothing is yes.
    pub allocate_load_balancer_node_ports: Option<bool>,
    /// The target of an `ExternalName`.
    pub external_name: Option<String>,
}

/// One of `spec.ports`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ServicePort {
    /// Its name.
    pub name: Option<String>,
    /// Its protocol.
    pub protocol: Option<String>,
    /// What is spoken inside.
    pub app_protocol: Option<String>,
    /// The port on the service's addresses.
    pub port: Option<i64>,
    /// The port of the endpoint; nothing is the same as `port`.
    pub target_port: Option<IntOrString>,
    /// The port on every node; 0 is none.
    pub node_port: Option<i64>,
}

/// `spec.sessionAffinityConfig`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct SessionAffinityConfig {
    /// For affinity by client address.
    #[serde(rename = "clientIP")]
    pub client_ip: Option<ClientIpConfig>,
}

/// `spec.sessionAffinityConfig.clientIP`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClientIpConfig {
    /// How long affinity lasts.
    pub timeout_seconds: Option<i64>,
}

/// `status` of a Service.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ServiceStatus {
    /// What a load balancer gave.
    #[serde(deserialize_with = "nullable")]
    pub load_balancer: LoadBalancerStatus,
}

/// `status.loadBalancer` of a Service.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct LoadBalancerStatus {
    /// The ways in.
    #[serde(deserialize_with = "nullable")]
    pub ingress: Vec<LoadBalancerIngress>,
}

/// One of `status.loadBalancer.ingress` of a Service. One with only a host name is skipped.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LoadBalancerIngress {
    /// The address.
    pub ip: Option<String>,
    /// `VIP` or `Proxy`.
    pub ip_mode: Option<String>,
}

/// How many families a service wants addresses of.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum FamilyPolicy {
    /// One.
    #[default]
    SingleStack,
    /// Both, if the cluster has both.
    PreferDualStack,
    /// Both, or it is an error.
    RequireDualStack,
}

/// What a control plane must know to fill in what a Service leaves out.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ServiceAllocation {
    /// The families that were named, in order; empty: the cluster's first.
    pub families: Vec<IpFamily>,
    /// How many families are wanted; `None`: as many as were named, one if none was.
    pub policy: Option<FamilyPolicy>,
    /// Node ports are not wanted although the type has them.
    pub without_node_ports: bool,
}

impl Service {
    /// What must be filled in by whoever gives out addresses and ports.
    pub fn allocation(&self) -> Result<ServiceAllocation, Vec<FieldError>> {
        let mut errors = Errors::default();
        let mut families = Vec::with_capacity(self.spec.ip_families.len());
        for (i, text) in self.spec.ip_families.iter().enumerate() {
            let path = format_args!("spec.ipFamilies[{i}]");
            match text.as_str() {
                "IPv4" if !families.contains(&IpFamily::V4) => families.push(IpFamily::V4),
                "IPv6" if !families.contains(&IpFamily::V6) => families.push(IpFamily::V6),
                "IPv4" | "IPv6" => errors.push(path, format_args!("{text} is named twice")),
                other => {
                    errors.push(path, format_args!("{other:?} is not known; write IPv4 or IPv6"));
                }
            }
        }
        let policy = errors.one_of(
            "spec.ipFamilyPolicy",
            self.spec.ip_family_policy.as_deref(),
            &[
                ("SingleStack", Some(FamilyPolicy::SingleStack)),
                ("PreferDualStack", Some(FamilyPolicy::PreferDualStack)),
                ("RequireDualStack", Some(FamilyPolicy::RequireDualStack)),
            ],
            None,
        );
        if families.len() > 1 && policy == Some(FamilyPolicy::SingleStack) {
            errors.push("spec.ipFamilies", "SingleStack allows one family; name one only");
        }
        errors.finish(ServiceAllocation {
            families,
            policy,
            without_node_ports: self.spec.allocate_load_balancer_node_ports == Some(false),
        })
    }
}

impl Manifest for Service {
    const KIND: Kind = Kind::Service;
    const KIND_NAME: &'static str = "Service";
    const API_VERSION: &'static str = "v1";
    const NAMESPACED: bool = true;
    type Model = telaio_model::Service;

    fn metadata(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn into_model(self, ctx: &Context) -> Result<Option<telaio_model::Service>, Vec<FieldError>> {
        let mut errors = Errors::default();
        let errors_mut = &mut errors;
        let meta =
            self.metadata.to_model::<Self>(ctx, NameRule::Label, Annotations::All, errors_mut);
        let service_type = service_type(&self.spec, errors_mut);
        let (headless, cluster_ips) = cluster_ips(&self.spec, service_type, errors_mut);
        let external_traffic_policy = traffic_policy(
            "spec.externalTrafficPolicy",
            self.spec.external_traffic_policy.as_deref(),
            errors_mut,
        );
        let service = telaio_model::Service {
            service_type,
            headless,
            cluster_ips,
            external_ips: external_ips(&self.spec, errors_mut),
            load_balancer: load_balancer(&self.status, errors_mut),
            source_ranges: source_ranges(&self.spec, errors_mut),
            ports: ports(ctx, &self.spec, service_type, headless, errors_mut),
            selector: meta::labels(ctx, &self.spec.selector),
            external_traffic_policy,
            internal_traffic_policy: traffic_policy(
                "spec.internalTrafficPolicy",
                self.spec.internal_traffic_policy.as_deref(),
                errors_mut,
            ),
            session_affinity: session_affinity(&self.spec, errors_mut),
            health_check_node_port: health_check_node_port(
                &self.spec,
                service_type,
                external_traffic_policy,
                errors_mut,
            ),
            traffic_distribution: match self.spec.traffic_distribution.as_deref() {
                Some("PreferClose" | "PreferSameZone") => Some(TrafficDistribution::PreferSameZone),
                Some("PreferSameNode") => Some(TrafficDistribution::PreferSameNode),
                _ => None,
            },
            publish_not_ready_addresses: self.spec.publish_not_ready_addresses,
            external_name: intern_some(ctx, self.spec.external_name.as_deref()),
            meta,
        };
        errors.finish(Some(service))
    }
}

fn service_type(spec: &ServiceSpec, errors: &mut Errors) -> ServiceType {
    let service_type = errors.one_of(
        "spec.type",
        spec.service_type.as_deref(),
        &[
            ("ClusterIP", ServiceType::ClusterIP),
            ("NodePort", ServiceType::NodePort),
            ("LoadBalancer", ServiceType::LoadBalancer),
            ("ExternalName", ServiceType::ExternalName),
        ],
        ServiceType::ClusterIP,
    );
    if service_type == ServiceType::ExternalName
        && spec.external_name.as_deref().unwrap_or_default().is_empty()
    {
        errors.push("spec.externalName", "a service of type ExternalName needs it");
    }
    service_type
}

/// Whether the service is headless, and its cluster addresses: none for one that is still to get them.
fn cluster_ips(
    spec: &ServiceSpec,
    service_type: ServiceType,
    errors: &mut Errors,
) -> (bool, Vec<IpAddr>) {
    let single = spec.cluster_ip.as_deref().filter(|ip| !ip.is_empty());
    let mut texts: Vec<(String, &str)> = Vec::with_capacity(2);
    match (single, spec.cluster_ips.as_slice()) {
        (Some(ip), []) => texts.push(("spec.clusterIP".into(), ip)),
        (single, list) => {
            if let (Some(ip), Some(first)) = (single, list.first())
                && ip != first
            {
                errors.push("spec.clusterIPs[0]", "must be the same as spec.clusterIP");
            }
            texts.extend(
                list.iter().enumerate().map(|(i, ip)| (format!("spec.clusterIPs[{i}]"), &**ip)),
            );
        }
    }
    if service_type == ServiceType::ExternalName {
        if let Some((path, _)) = texts.first() {
            errors.push(path, "a service of type ExternalName has no cluster address; remove it");
        }
        return (false, Vec::new());
    }
    if texts.iter().any(|(_, text)| *text == "None") {
        if texts.len() > 1 {
            errors.push("spec.clusterIPs", "None stands alone, for a headless service");
        }
        if service_type != ServiceType::ClusterIP {
            errors.push(
                &texts[0].0,
                format_args!("a service of type {service_type} cannot be headless; remove None"),
            );
        }
        return (true, Vec::new());
    }
    let mut ips: Vec<IpAddr> = Vec::with_capacity(texts.len());
    for (path, text) in &texts {
        let Some(ip) = errors.unicast(path, text, false) else { continue };
        if let Some(other) = ips.iter().find(|other| IpFamily::of(**other) == IpFamily::of(ip)) {
            let family = IpFamily::of(ip);
            errors.push(path, format_args!("{other} is {family} already; one per family"));
            continue;
        }
        ips.push(ip);
    }
    (false, ips)
}

fn external_ips(spec: &ServiceSpec, errors: &mut Errors) -> Vec<IpAddr> {
    let mut ips = Vec::with_capacity(spec.external_ips.len());
    for (i, text) in spec.external_ips.iter().enumerate() {
        ips.extend(errors.unicast(format_args!("spec.externalIPs[{i}]"), text, false));
    }
    ips
}

fn load_balancer(
    status: &ServiceStatus,
    errors: &mut Errors,
) -> Vec<telaio_model::LoadBalancerIngress> {
    let mut ingresses = Vec::with_capacity(status.load_balancer.ingress.len());
    for (i, ingress) in status.load_balancer.ingress.iter().enumerate() {
        let Some(text) = ingress.ip.as_deref().filter(|ip| !ip.is_empty()) else { continue };
        let ip = errors.unicast(format_args!("status.loadBalancer.ingress[{i}].ip"), text, false);
        let ip_mode = errors.one_of(
            format_args!("status.loadBalancer.ingress[{i}].ipMode"),
            ingress.ip_mode.as_deref(),
            &[("VIP", IpMode::Vip), ("Proxy", IpMode::Proxy)],
            IpMode::Vip,
        );
        ingresses.extend(ip.map(|ip| telaio_model::LoadBalancerIngress { ip, ip_mode }));
    }
    ingresses
}

fn source_ranges(spec: &ServiceSpec, errors: &mut Errors) -> Vec<IpNet> {
    let ranges = spec.load_balancer_source_ranges.iter().enumerate();
    ranges
        .filter_map(|(i, text)| {
            errors.net(format_args!("spec.loadBalancerSourceRanges[{i}]"), text)
        })
        .collect()
}

fn ports(
    ctx: &Context,
    spec: &ServiceSpec,
    service_type: ServiceType,
    headless: bool,
    errors: &mut Errors,
) -> Vec<telaio_model::ServicePort> {
    if spec.ports.is_empty() && !headless && service_type != ServiceType::ExternalName {
        errors.push("spec.ports", "a service needs at least one port");
    }
    let mut seen = PortsSeen::default();
    let mut ports = Vec::with_capacity(spec.ports.len());
    for (i, port) in spec.ports.iter().enumerate() {
        let name = port.name.as_deref().unwrap_or_default();
        if !name.is_empty() {
            errors.dns_label(format_args!("spec.ports[{i}].name"), name);
        } else if spec.ports.len() > 1 {
            errors.push(
                format_args!("spec.ports[{i}].name"),
                "a service with several ports needs a name for each",
            );
        }
        let number = port_number(i, port, errors);
        let protocol =
            errors.protocol(format_args!("spec.ports[{i}].protocol"), port.protocol.as_deref());
        let node_port =
            errors.optional_port(format_args!("spec.ports[{i}].nodePort"), port.node_port);
        if node_port.is_some()
            && !matches!(service_type, ServiceType::NodePort | ServiceType::LoadBalancer)
        {
            errors.push(
                format_args!("spec.ports[{i}].nodePort"),
                format_args!(
                    "a service of type {service_type} has no node ports; use type NodePort"
                ),
            );
        }
        let (Some(number), Some(protocol)) = (number, protocol) else { continue };
        seen.check(i, name, protocol, number, node_port, errors);
        let Some(target_port) = target_port(ctx, i, port, number, errors) else { continue };
        ports.push(telaio_model::ServicePort {
            name: ctx.intern(name),
            protocol,
            app_protocol: intern_some(ctx, port.app_protocol.as_deref()),
            port: number,
            node_port,
            target_port,
        });
    }
    ports
}

fn port_number(i: usize, port: &ServicePort, errors: &mut Errors) -> Option<u16> {
    let Some(number) = port.port else {
        errors.push(format_args!("spec.ports[{i}].port"), "a port number is required");
        return None;
    };
    errors.port(format_args!("spec.ports[{i}].port"), number)
}

fn target_port(
    ctx: &Context,
    i: usize,
    port: &ServicePort,
    number: u16,
    errors: &mut Errors,
) -> Option<TargetPort> {
    let path = format_args!("spec.ports[{i}].targetPort");
    match &port.target_port {
        None | Some(IntOrString::Int(0)) => Some(TargetPort::Number(number)),
        Some(IntOrString::String(name)) if name.is_empty() => Some(TargetPort::Number(number)),
        Some(IntOrString::Int(target)) => errors.port(path, *target).map(TargetPort::Number),
        Some(IntOrString::String(name)) => {
            errors.port_name(path, name);
            Some(TargetPort::Name(ctx.intern(name)))
        }
    }
}

/// What the ports of one service must not share.
#[derive(Default)]
struct PortsSeen<'a> {
    names: BTreeSet<&'a str>,
    ports: BTreeSet<(Protocol, u16)>,
    node_ports: BTreeSet<(Protocol, u16)>,
}

impl<'a> PortsSeen<'a> {
    fn check(
        &mut self,
        i: usize,
        name: &'a str,
        protocol: Protocol,
        port: u16,
        node_port: Option<u16>,
        errors: &mut Errors,
    ) {
        if !name.is_empty() && !self.names.insert(name) {
            errors.push(
                format_args!("spec.ports[{i}].name"),
                format_args!("{name:?} names another port already; choose another name"),
            );
        }
        if !self.ports.insert((protocol, port)) {
            errors.push(
                format_args!("spec.ports[{i}].port"),
                format_args!("{port}/{protocol} is there already; remove one of the two"),
            );
        }
        if let Some(node_port) = node_port
            && !self.node_ports.insert((protocol, node_port))
        {
            errors.push(
                format_args!("spec.ports[{i}].nodePort"),
                format_args!("{node_port}/{protocol} is there already; choose another node port"),
            );
        }
    }
}

fn traffic_policy(path: &str, value: Option<&str>, errors: &mut Errors) -> TrafficPolicy {
    let choices = [("Cluster", TrafficPolicy::Cluster), ("Local", TrafficPolicy::Local)];
    errors.one_of(path, value, &choices, TrafficPolicy::Cluster)
}

fn session_affinity(spec: &ServiceSpec, errors: &mut Errors) -> Option<ClientIpAffinity> {
    let by_client_ip = errors.one_of(
        "spec.sessionAffinity",
        spec.session_affinity.as_deref(),
        &[("None", false), ("ClientIP", true)],
        false,
    );
    if !by_client_ip {
        return None;
    }
    let timeout = spec
        .session_affinity_config
        .as_ref()
        .and_then(|config| config.client_ip.as_ref())
        .and_then(|client_ip| client_ip.timeout_seconds);
    let timeout_s = match timeout {
        None => Some(AFFINITY_TIMEOUT_S_DEFAULT),
        Some(timeout) => u32::try_from(timeout)
            .ok()
            .filter(|timeout_s| (1..=AFFINITY_TIMEOUT_S_MAX).contains(timeout_s)),
    };
    if timeout_s.is_none() {
        errors.push(
            "spec.sessionAffinityConfig.clientIP.timeoutSeconds",
            format_args!("write a number of seconds from 1 to {AFFINITY_TIMEOUT_S_MAX}"),
        );
    }
    timeout_s.map(|timeout_s| ClientIpAffinity { timeout_s })
}

fn health_check_node_port(
    spec: &ServiceSpec,
    service_type: ServiceType,
    external: TrafficPolicy,
    errors: &mut Errors,
) -> Option<u16> {
    let path = "spec.healthCheckNodePort";
    let port = errors.optional_port(path, spec.health_check_node_port)?;
    if service_type != ServiceType::LoadBalancer || external != TrafficPolicy::Local {
        errors
            .push(path, "only a LoadBalancer with externalTrafficPolicy Local has one; remove it");
    }
    Some(port)
}
