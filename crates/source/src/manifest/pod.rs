//! Pod, `v1`; also any instance that somebody describes as one.

use std::net::IpAddr;

use serde::Deserialize;
use telaio_model::{FieldError, Kind, PodPhase};

use super::check::{Errors, Quoted, intern_some};
use super::meta::{Annotations, NameRule};
use super::value::nullable;
use super::{Context, Manifest, ObjectMeta};

/// The addresses of an instance that no kubelet reports on, one per family, with commas between.
/// Such an instance is ready unless its manifest says otherwise.
pub const ANNOTATION_IP: &str = "telaio.dev/ip";

/// A Pod.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Pod {
    /// Metadata.
    #[serde(deserialize_with = "nullable")]
    pub metadata: ObjectMeta,
    /// What is wanted.
    #[serde(deserialize_with = "nullable")]
    pub spec: PodSpec,
    /// How it is.
    #[serde(deserialize_with = "nullable")]
    pub status: PodStatus,
}

/// `spec` of a Pod.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodSpec {
    /// The node it runs on.
    pub node_name: Option<String>,
    /// It uses the node's own network.
    #[serde(deserialize_with = "nullable")]
    pub host_network: bool,
    /// Its host name.
    pub hostname: Option<String>,
    /// Its containers.
    #[serde(deserialize_with = "nullable")]
    pub containers: Vec<Container>,
    /// Containers that run before; those that go on running beside the others have ports too.
    #[serde(deserialize_with = "nullable")]
    pub init_containers: Vec<Container>,
}

/// A container.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Container {
    /// Its ports.
    #[serde(deserialize_with = "nullable")]
    pub ports: Vec<ContainerPort>,
    /// `Always` for an init container that goes on running.
    pub restart_policy: Option<String>,
}

/// A port of a container.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ContainerPort {
    /// Its name.
    pub name: Option<String>,
    /// Its number.
    pub container_port: Option<i64>,
    /// Its protocol.
    pub protocol: Option<String>,
    /// The port of the node that leads to it; 0 is none.
    pub host_port: Option<i64>,
    /// The node's address on which it is published.
    #[serde(rename = "hostIP")]
    pub host_ip: Option<String>,
}

/// `status` of a Pod.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct PodStatus {
    /// Where it is in its life.
    pub phase: Option<String>,
    /// Its first address.
    #[serde(rename = "podIP")]
    pub pod_ip: Option<String>,
    /// Its addresses.
    #[serde(rename = "podIPs", deserialize_with = "nullable")]
    pub pod_ips: Vec<PodIp>,
    /// What holds of it; only `Ready` is used.
    #[serde(deserialize_with = "nullable")]
    pub conditions: Vec<PodCondition>,
}

/// One of `status.podIPs`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct PodIp {
    /// The address.
    pub ip: Option<String>,
}

/// One of `status.conditions`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct PodCondition {
    /// Which condition.
    #[serde(rename = "type")]
    pub condition_type: String,
    /// `True`, `False` or `Unknown`.
    pub status: String,
}

impl Manifest for Pod {
    const KIND: Kind = Kind::Pod;
    const KIND_NAME: &'static str = "Pod";
    const API_VERSION: &'static str = "v1";
    const NAMESPACED: bool = true;
    type Model = telaio_model::Pod;

    fn metadata(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn into_model(self, ctx: &Context) -> Result<Option<telaio_model::Pod>, Vec<FieldError>> {
        let mut errors = Errors::default();
        let meta = self.metadata.to_model::<Self>(
            ctx,
            NameRule::Subdomain,
            Annotations::Ours,
            &mut errors,
        );
        self.metadata.weight(&mut errors);
        let mut ips = self.status.ips(ctx, &mut errors);
        let is_instance = ips.is_empty() && ctx.annotated_ips_ok;
        if is_instance && let Some(text) = self.metadata.annotations.get(ANNOTATION_IP) {
            ips = annotated_ips(text, &mut errors);
        }
        let unreported = is_instance && !ips.is_empty();
        let pod = telaio_model::Pod {
            meta,
            node: intern_some(ctx, self.spec.node_name.as_deref()),
            host_network: self.spec.host_network,
            hostname: intern_some(ctx, self.spec.hostname.as_deref()),
            ports: self.spec.ports(ctx, &mut errors),
            phase: self.status.phase(unreported, &mut errors),
            ready: self.status.is_ready().unwrap_or(unreported),
            terminating: self.metadata.deletion_timestamp.is_some(),
            ips,
        };
        errors.finish(Some(pod))
    }
}

impl PodStatus {
    fn ips(&self, ctx: &Context, errors: &mut Errors) -> Vec<IpAddr> {
        let mut ips = Vec::with_capacity(self.pod_ips.len());
        let single = self.pod_ip.as_deref().filter(|ip| !ip.is_empty());
        if self.pod_ips.is_empty() {
            let loopback_ok = ctx.loopback_endpoints_ok;
            ips.extend(single.and_then(|ip| errors.unicast("status.podIP", ip, loopback_ok)));
        }
        for (i, pod_ip) in self.pod_ips.iter().enumerate() {
            let path = format_args!("status.podIPs[{i}].ip");
            let text = pod_ip.ip.as_deref().unwrap_or_default();
            ips.extend(errors.unicast(path, text, ctx.loopback_endpoints_ok));
        }
        ips
    }

    fn phase(&self, unreported: bool, errors: &mut Errors) -> PodPhase {
        let default = if unreported { PodPhase::Running } else { PodPhase::Pending };
        errors.one_of(
            "status.phase",
            self.phase.as_deref(),
            &[
                ("Pending", PodPhase::Pending),
                ("Running", PodPhase::Running),
                ("Succeeded", PodPhase::Succeeded),
                ("Failed", PodPhase::Failed),
                ("Unknown", PodPhase::Unknown),
            ],
            default,
        )
    }

    fn is_ready(&self) -> Option<bool> {
        let ready = self.conditions.iter().find(|condition| condition.condition_type == "Ready");
        ready.map(|condition| condition.status == "True")
    }
}

fn annotated_ips(text: &str, errors: &mut Errors) -> Vec<IpAddr> {
    let mut ips: Vec<IpAddr> = Vec::new();
    for text in text.split(',').map(str::trim).filter(|text| !text.is_empty()) {
        let path = format_args!("metadata.annotations[{ANNOTATION_IP}]");
        let Some(ip) = errors.unicast(path, text, true) else { continue };
        if ips.iter().any(|other| other.is_ipv4() == ip.is_ipv4()) {
            errors.push(path, format_args!("{} is a second one of its family", Quoted(text)));
            continue;
        }
        ips.push(ip);
    }
    ips
}

impl PodSpec {
    fn ports(&self, ctx: &Context, errors: &mut Errors) -> Vec<telaio_model::ContainerPort> {
        let mut ports = Vec::new();
        for (i, container) in self.containers.iter().enumerate() {
            container.ports(ctx, &format!("spec.containers[{i}]"), &mut ports, errors);
        }
        for (i, container) in self.init_containers.iter().enumerate() {
            if container.restart_policy.as_deref() == Some("Always") {
                container.ports(ctx, &format!("spec.initContainers[{i}]"), &mut ports, errors);
            }
        }
        ports
    }
}

impl Container {
    fn ports(
        &self,
        ctx: &Context,
        path: &str,
        ports: &mut Vec<telaio_model::ContainerPort>,
        errors: &mut Errors,
    ) {
        for (i, port) in self.ports.iter().enumerate() {
            let name = port.name.as_deref().filter(|name| !name.is_empty());
            if let Some(name) = name {
                errors.port_name(format_args!("{path}.ports[{i}].name"), name);
            }
            let number = errors.port(
                format_args!("{path}.ports[{i}].containerPort"),
                port.container_port.unwrap_or_default(),
            );
            let protocol = errors
                .protocol(format_args!("{path}.ports[{i}].protocol"), port.protocol.as_deref());
            let host_port =
                errors.optional_port(format_args!("{path}.ports[{i}].hostPort"), port.host_port);
            let host_ip = port
                .host_ip
                .as_deref()
                .filter(|ip| !ip.is_empty())
                .and_then(|ip| errors.ip(format_args!("{path}.ports[{i}].hostIP"), ip))
                // Every address is what leaving it out means.
                .filter(|ip| !ip.is_unspecified());
            let (Some(container_port), Some(protocol)) = (number, protocol) else { continue };
            ports.push(telaio_model::ContainerPort {
                name: intern_some(ctx, name),
                container_port,
                protocol,
                host_port,
                host_ip,
            });
        }
    }
}
