//! The values that every plane of Telaio speaks about.
//!
//! Plain data: no I/O, no async, no Kubernetes or protobuf types. A [`source`] turns what it reads
//! into [`Object`]s, the brain folds them into a revisioned store, and from that store each node
//! gets its [`view`](local): the services and endpoints it must serve, as a stream of [`Op`]s.
//!
//! What always holds for a value of this crate:
//! - addresses are canonical: an IPv4-mapped IPv6 address never occurs ([`ip::parse_ip`]);
//! - ports are 1–65535; zero never stands for "none", [`Option`] does;
//! - maps are ordered, so that the same content always prints, hashes and diffs the same way.
//!
//! ```
//! use telaio_model::{ip, ObjectKey};
//!
//! let key = ObjectKey::new("default", "web");
//! assert_eq!(key.to_string(), "default/web");
//! assert!(ip::parse_ip("::ffff:10.0.0.1").is_err());
//! ```
//!
//! [`source`]: https://docs.rs/telaio-source

pub mod endpoints;
pub mod error;
pub mod hash;
pub mod ingress;
pub mod ip;
pub mod labels;
pub mod local;
pub mod meta;
pub mod node;
pub mod object;
pub mod overrides;
pub mod pod;
pub mod policy;
pub mod service;
pub mod small;

pub use endpoints::{AddressType, Conditions, Endpoint, EndpointPort, EndpointSlice, Hints};
pub use error::FieldError;
pub use ingress::{
    Ingress, IngressBackend, IngressClass, IngressPath, IngressRule, IngressTls, PathType, PortRef,
};
pub use ip::IpFamily;
pub use labels::Labels;
pub use local::{
    EndpointRef, Families, LocalEndpoint, LocalEndpointPort, LocalService, LocalServicePort, Op,
    Scopes, ServiceEndpoints,
};
pub use meta::{LabelSelector, Meta, ObjectKey, SelectorOperator, SelectorRequirement};
pub use node::{Node, NodeAddress, Taint};
pub use object::{Batch, Kind, Object, ObjectChange, ObjectRef};
pub use overrides::{AddedEndpoint, Override, OverrideAction, OverrideTarget};
pub use pod::{ContainerPort, Pod, PodPhase};
pub use policy::{NetworkPolicy, PolicyPeer, PolicyPort, PolicyPortMatch, PolicyRule};
pub use service::{
    ClientIpAffinity, IpMode, LoadBalancerIngress, Protocol, Service, ServicePort, ServiceType,
    TargetPort, TrafficDistribution, TrafficPolicy,
};
pub use small::{AuthSecret, ConfigMap, Namespace, ServiceCidr, TlsSecret};
