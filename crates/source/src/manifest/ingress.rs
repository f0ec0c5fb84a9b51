//! Ingress and IngressClass, `networking.k8s.io/v1`.

use serde::Deserialize;
use telaio_model::{FieldError, Kind, PathType, PortRef};

use super::check::{Errors, Quoted, intern_some};
use super::meta::{Annotations, NameRule};
use super::value::nullable;
use super::{Context, Manifest, ObjectMeta};

/// An Ingress.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Ingress {
    /// Metadata.
    #[serde(deserialize_with = "nullable")]
    pub metadata: ObjectMeta,
    /// What is wanted.
    #[serde(deserialize_with = "nullable")]
    pub spec: IngressSpec,
    /// Where it can be reached.
    #[serde(deserialize_with = "nullable")]
    pub status: IngressStatus,
}

/// `spec` of an Ingress.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct IngressSpec {
    /// Who implements it.
    pub ingress_class_name: Option<String>,
    /// Where requests go that no rule takes.
    pub default_backend: Option<IngressBackend>,
    /// The rules.
    #[serde(deserialize_with = "nullable")]
    pub rules: Vec<IngressRule>,
    /// Certificates.
    #[serde(deserialize_with = "nullable")]
    pub tls: Vec<IngressTls>,
}

/// Where requests go.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct IngressBackend {
    /// A service; the only kind of backend that is supported.
    pub service: Option<IngressServiceBackend>,
}

/// A service as a backend.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct IngressServiceBackend {
    /// Its name.
    pub name: String,
    /// Its port.
    #[serde(deserialize_with = "nullable")]
    pub port: ServiceBackendPort,
}

/// A service's port, by number or by name.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct ServiceBackendPort {
    /// By number.
    pub number: Option<i64>,
    /// By name.
    pub name: Option<String>,
}

/// One of `spec.rules`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct IngressRule {
    /// The host; nothing is any.
    pub host: Option<String>,
    /// Its paths.
    #[serde(deserialize_with = "nullable")]
    pub http: HttpRule,
}

/// The paths of a rule.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct HttpRule {
    /// The paths.
    #[serde(deserialize_with = "nullable")]
    pub paths: Vec<HttpIngressPath>,
}

/// One path of a rule.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct HttpIngressPath {
    /// The path.
    pub path: Option<String>,
    /// `Exact`, `Prefix` or `ImplementationSpecific`.
    pub path_type: Option<String>,
    /// Where it leads.
    #[serde(deserialize_with = "nullable")]
    pub backend: IngressBackend,
}

/// One of `spec.tls`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct IngressTls {
    /// The hosts.
    #[serde(deserialize_with = "nullable")]
    pub hosts: Vec<String>,
    /// The secret.
    pub secret_name: Option<String>,
}

/// `status` of an Ingress.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct IngressStatus {
    /// Where it can be reached.
    #[serde(deserialize_with = "nullable")]
    pub load_balancer: IngressLoadBalancer,
}

/// `status.loadBalancer` of an Ingress.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct IngressLoadBalancer {
    /// The ways in.
    #[serde(deserialize_with = "nullable")]
    pub ingress: Vec<StatusAddress>,
}

/// One of `status.loadBalancer.ingress`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct StatusAddress {
    /// The address.
    pub ip: Option<String>,
    /// Or the host name.
    pub hostname: Option<String>,
}

impl Manifest for Ingress {
    const KIND: Kind = Kind::Ingress;
    const KIND_NAME: &'static str = "Ingress";
    const API_VERSION: &'static str = "networking.k8s.io/v1";
    const NAMESPACED: bool = true;
    type Model = telaio_model::Ingress;

    fn metadata(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn into_model(self, ctx: &Context) -> Result<Option<telaio_model::Ingress>, Vec<FieldError>> {
        let mut errors = Errors::default();
        let meta =
            self.metadata.to_model::<Self>(ctx, NameRule::Subdomain, Annotations::All, &mut errors);
        let spec = &self.spec;
        let default_backend = spec
            .default_backend
            .as_ref()
            .and_then(|backend| backend.to_model(ctx, "spec.defaultBackend", &mut errors));
        let mut rules = Vec::with_capacity(spec.rules.len());
        for (i, rule) in spec.rules.iter().enumerate() {
            rules.push(rule.to_model(ctx, &format!("spec.rules[{i}]"), &mut errors));
        }
        let mut tls = Vec::with_capacity(spec.tls.len());
        for (i, entry) in spec.tls.iter().enumerate() {
            for (j, host) in entry.hosts.iter().enumerate() {
                check_host(format_args!("spec.tls[{i}].hosts[{j}]"), host, &mut errors);
            }
            tls.push(telaio_model::IngressTls {
                hosts: entry.hosts.iter().map(|host| ctx.intern(host)).collect(),
                secret: intern_some(ctx, entry.secret_name.as_deref()),
            });
        }
        let mut status_ips = Vec::new();
        for (i, address) in self.status.load_balancer.ingress.iter().enumerate() {
            let Some(ip) = address.ip.as_deref().filter(|ip| !ip.is_empty()) else { continue };
            let path = format_args!("status.loadBalancer.ingress[{i}].ip");
            status_ips.extend(errors.ip(path, ip));
        }
        let named =
            self.status.load_balancer.ingress.iter().filter_map(|it| it.hostname.as_deref());
        let status_hostnames =
            named.filter(|name| !name.is_empty()).map(|name| ctx.intern(name)).collect();
        errors.finish(Some(telaio_model::Ingress {
            meta,
            class: intern_some(ctx, spec.ingress_class_name.as_deref()),
            default_backend,
            rules,
            tls,
            status_ips,
            status_hostnames,
        }))
    }
}

impl IngressRule {
    fn to_model(
        &self,
        ctx: &Context,
        path: &str,
        errors: &mut Errors,
    ) -> telaio_model::IngressRule {
        let host = self.host.as_deref().filter(|host| !host.is_empty());
        if let Some(host) = host {
            check_host(format_args!("{path}.host"), host, errors);
        }
        let mut paths = Vec::with_capacity(self.http.paths.len());
        for (i, entry) in self.http.paths.iter().enumerate() {
            paths.extend(entry.to_model(ctx, &format!("{path}.http.paths[{i}]"), errors));
        }
        telaio_model::IngressRule { host: intern_some(ctx, host), paths }
    }
}

impl HttpIngressPath {
    fn to_model(
        &self,
        ctx: &Context,
        path: &str,
        errors: &mut Errors,
    ) -> Option<telaio_model::IngressPath> {
        let path_type = match self.path_type.as_deref() {
            Some("Exact") => PathType::Exact,
            Some("Prefix") => PathType::Prefix,
            Some("ImplementationSpecific") => PathType::ImplementationSpecific,
            other => {
                errors.push(
                    format_args!("{path}.pathType"),
                    format_args!(
                        "{} is not known; write Exact, Prefix or ImplementationSpecific",
                        Quoted(other.unwrap_or_default())
                    ),
                );
                return None;
            }
        };
        let text = self.path.as_deref().unwrap_or_default();
        let may_be_empty = path_type == PathType::ImplementationSpecific;
        let is_path = text.starts_with('/') || (text.is_empty() && may_be_empty);
        if !is_path {
            errors.push(
                format_args!("{path}.path"),
                format_args!("{} must begin with a slash", Quoted(text)),
            );
        }
        let backend = self.backend.to_model(ctx, &format!("{path}.backend"), errors)?;
        let text = if text.is_empty() { "/" } else { text };
        Some(telaio_model::IngressPath { path: ctx.intern(text), path_type, backend })
    }
}

impl IngressBackend {
    fn to_model(
        &self,
        ctx: &Context,
        path: &str,
        errors: &mut Errors,
    ) -> Option<telaio_model::IngressBackend> {
        let Some(service) = &self.service else {
            errors.push(path, "name a service; other kinds of backends are not supported");
            return None;
        };
        if service.name.is_empty() {
            errors.push(format_args!("{path}.service.name"), "the service's name is required");
        }
        let name = service.port.name.as_deref().filter(|name| !name.is_empty());
        let number = service.port.number.filter(|number| *number != 0);
        let port = match (number, name) {
            (Some(number), None) => {
                let path = format_args!("{path}.service.port.number");
                PortRef::Number(errors.port(path, number)?)
            }
            (None, Some(name)) => PortRef::Name(ctx.intern(name)),
            _ => {
                errors.push(
                    format_args!("{path}.service.port"),
                    "name the service's port, either by number or by name",
                );
                return None;
            }
        };
        Some(telaio_model::IngressBackend { service: ctx.intern(&service.name), port })
    }
}

/// A host is a DNS name, the first label of which may be `*`; addresses are no hosts.
fn check_host(path: impl std::fmt::Display, host: &str, errors: &mut Errors) {
    if host.parse::<std::net::IpAddr>().is_ok() {
        errors.push(path, format_args!("{host} is an address; a host is a DNS name"));
    } else {
        errors.dns_subdomain(path, host.strip_prefix("*.").unwrap_or(host));
    }
}

/// An IngressClass.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct IngressClass {
    /// Metadata.
    #[serde(deserialize_with = "nullable")]
    pub metadata: ObjectMeta,
    /// Who implements it.
    #[serde(deserialize_with = "nullable")]
    pub spec: IngressClassSpec,
}

/// `spec` of an IngressClass.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct IngressClassSpec {
    /// Who implements it.
    pub controller: Option<String>,
}

impl Manifest for IngressClass {
    const KIND: Kind = Kind::IngressClass;
    const KIND_NAME: &'static str = "IngressClass";
    const API_VERSION: &'static str = "networking.k8s.io/v1";
    const NAMESPACED: bool = false;
    type Model = telaio_model::IngressClass;

    fn metadata(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn into_model(
        self,
        ctx: &Context,
    ) -> Result<Option<telaio_model::IngressClass>, Vec<FieldError>> {
        let mut errors = Errors::default();
        let meta =
            self.metadata.to_model::<Self>(ctx, NameRule::Subdomain, Annotations::All, &mut errors);
        let controller = ctx.intern(self.spec.controller.as_deref().unwrap_or_default());
        errors.finish(Some(telaio_model::IngressClass { meta, controller }))
    }
}
