//! Kubernetes manifests, as far as Telaio reads them.
//!
//! One slim struct per kind holds only the fields that we use; everything else in a manifest is
//! skipped while it is parsed. [`Manifest::into_model`] checks them by Kubernetes' rules and makes
//! the value of [`telaio_model`]. The same structs serve files and the Kubernetes API.
//!
//! What always holds:
//! - a `null` is a field left out, as in Kubernetes;
//! - every error names its field as a person sees it, `spec.ports[0].port`, and says what would be
//!   right;
//! - conversion does no I/O, and the same manifest always gives the same value.
//!
//! ```
//! use telaio_source::intern::Interner;
//! use telaio_source::manifest::{Context, Manifest, Service};
//!
//! let manifest: Service = serde_json::from_str(
//!     r#"{"metadata": {"name": "web"}, "spec": {"clusterIP": "10.96.0.7", "ports": [{"port": 0}]}}"#,
//! )?;
//! let errors = manifest.into_model(&Context::directory(Interner::default())).unwrap_err();
//! assert_eq!(errors[0].to_string(), "spec.ports[0].port: 0 is not a port; write a number from 1 to 65535");
//! # Ok::<(), serde_json::Error>(())
//! ```

use std::sync::Arc;

use serde::de::DeserializeOwned;
use telaio_model::{FieldError, Kind, Object};

use crate::intern::Interner;

mod any_bytes;
mod check;
mod endpoints;
mod file;
mod ingress;
mod kinds;
mod meta;
mod node;
mod overrides;
mod pod;
mod policy;
mod service;
mod small;
mod tree;
mod value;

pub use any_bytes::check_any_bytes;
pub use check::Errors;
pub use endpoints::{
    Endpoint, EndpointConditions, EndpointHints, EndpointPort, EndpointSlice, ForName, TargetRef,
};
pub use file::{FILE_BYTES_MAX, FileContent, Format, FoundObject, read_file_content, too_large};
pub use ingress::{
    HttpIngressPath, HttpRule, Ingress, IngressBackend, IngressClass, IngressClassSpec,
    IngressLoadBalancer, IngressRule, IngressServiceBackend, IngressSpec, IngressStatus,
    IngressTls, ServiceBackendPort, StatusAddress,
};
pub use meta::{ANNOTATION_WEIGHT, LabelSelector, LabelSelectorRequirement, ObjectMeta};
pub use node::{Node, NodeAddress, NodeSpec, NodeStatus, Taint};
pub use overrides::{Override, OverrideIngress, OverrideService, OverrideSpec, OverrideTarget};
pub use pod::{
    ANNOTATION_IP, Container, ContainerPort, Pod, PodCondition, PodIp, PodSpec, PodStatus,
};
pub use policy::{
    IpBlock, NetworkPolicy, NetworkPolicyPeer, NetworkPolicyPort, NetworkPolicySpec, PolicyEgress,
    PolicyIngress,
};
pub use service::{
    ClientIpConfig, FamilyPolicy, LoadBalancerIngress, LoadBalancerStatus, Service,
    ServiceAllocation, ServicePort, ServiceSpec, ServiceStatus, SessionAffinityConfig,
};
pub use small::{
    ConfigMap, Namespace, Secret, SecretData, SecretValue, ServiceCidr, ServiceCidrSpec,
};
pub use value::IntOrString;

/// What a conversion needs to know besides the manifest.
#[derive(Debug, Clone)]
pub struct Context {
    /// Endpoints may have loopback addresses: true for a directory, never for a cluster.
    pub loopback_endpoints_ok: bool,
    /// A Pod may name its address by annotation. Only where whoever writes the manifest is trusted
    /// with every address: in a cluster a tenant could take another's.
    pub annotated_ips_ok: bool,
    /// The namespace of namespaced objects that name none.
    pub default_namespace: Arc<str>,
    /// Where repeated texts are kept.
    pub interner: Interner,
}

impl Context {
    /// For manifests that a person put into a directory.
    pub fn directory(interner: Interner) -> Self {
        let default_namespace = interner.intern("default");
        Self { loopback_endpoints_ok: true, annotated_ips_ok: true, default_namespace, interner }
    }

    /// For objects that an API server has accepted.
    pub fn cluster(interner: Interner) -> Self {
        Self { loopback_endpoints_ok: false, annotated_ips_ok: false, ..Self::directory(interner) }
    }

    /// The one copy of `text`.
    pub fn intern(&self, text: &str) -> Arc<str> {
        self.interner.intern(text)
    }
}

/// A kind of manifest that becomes an object of the model.
pub trait Manifest: DeserializeOwned {
    /// The kind of the object it becomes.
    const KIND: Kind;
    /// The `kind` that the manifest carries.
    const KIND_NAME: &'static str;
    /// The only `apiVersion` that is read.
    const API_VERSION: &'static str;
    /// Whether objects of the kind live in a namespace.
    const NAMESPACED: bool;
    /// The value it becomes.
    type Model: Into<Object>;

    /// Its metadata.
    fn metadata(&self) -> &ObjectMeta;

    /// Checks the manifest and makes the value.
    ///
    /// `None` is an object that is right but none of ours, such as a Secret without a certificate.
    fn into_model(self, ctx: &Context) -> Result<Option<Self::Model>, Vec<FieldError>>;
}

#[cfg(test)]
mod tests;
