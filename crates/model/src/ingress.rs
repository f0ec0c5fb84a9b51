//! Ingresses and their classes.

use std::net::IpAddr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::meta::Meta;

/// How a path is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum PathType {
    /// The whole path, to the letter.
    Exact,
    /// Path element by path element.
    Prefix,
    /// As the controller likes; we read it as `Prefix`.
    ImplementationSpecific,
}

/// A service's port, by number or by name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum PortRef {
    /// By number.
    Number(u16),
    /// By name.
    Name(Arc<str>),
}

/// Where requests go: a service of the same namespace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct IngressBackend {
    /// The service.
    pub service: Arc<str>,
    /// Its port.
    pub port: PortRef,
}

/// One path of a rule.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct IngressPath {
    /// The path, beginning with a slash.
    pub path: Arc<str>,
    /// How it is compared.
    pub path_type: PathType,
    /// Where it leads.
    pub backend: IngressBackend,
}

/// The paths of one host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct IngressRule {
    /// The host, perhaps `*.example.com`; `None` is any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<Arc<str>>,
    /// Its paths.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub paths: Vec<IngressPath>,
}

/// A certificate for some hosts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct IngressTls {
    /// The hosts; empty: those that the certificate names.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hosts: Vec<Arc<str>>,
    /// The secret, in the same namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<Arc<str>>,
}

/// An Ingress.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Ingress {
    /// Name, labels, annotations.
    pub meta: Meta,
    /// `spec.ingressClassName`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class: Option<Arc<str>>,
    /// Where requests go that no rule takes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default_backend: Option<IngressBackend>,
    /// The rules.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<IngressRule>,
    /// Certificates.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tls: Vec<IngressTls>,
    /// The addresses in `status.loadBalancer`, to see whether they need to be written.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub status_ips: Vec<IpAddr>,
    /// The host names there.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub status_hostnames: Vec<Arc<str>>,
}

/// An IngressClass.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct IngressClass {
    /// Name, labels, annotations.
    pub meta: Meta,
    /// Who implements it.
    pub controller: Arc<str>,
}

impl IngressClass {
    /// Whether Ingresses without a class belong to it.
    pub fn is_default(&self) -> bool {
        self.meta
            .annotations
            .get("ingressclass.kubernetes.io/is-default-class")
            .is_some_and(|value| &**value == "true")
    }
}
