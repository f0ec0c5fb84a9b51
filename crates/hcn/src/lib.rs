//! Windows' host compute network: networks, endpoints and load balancers.
//!
//! - [`Network`], [`Endpoint`], [`LoadBalancer`]: the objects in their entirety, as values that every
//!   operating system can compare, and their documents of schema version 2;
//! - [`Hcn`]: the calls, with errors that say what happened to which object;
//! - `WindowsHcn`, on Windows: the calls for real, by computenetwork.dll;
//! - [`FakeHcn`]: the same rules in memory, for tests everywhere;
//! - [`SupportedFeatures`]: what a version of HNS, the Host Networking Service behind it all, can do.
//!
//! The only crate on Windows with `unsafe` in it, and there only around calls into the system's
//! libraries. It knows nothing of services or pods.

mod endpoint;
mod error;
pub mod fake;
mod feature;
mod flags;
mod guid;
mod hcn;
mod load_balancer;
mod mac;
mod network;
mod policy;
mod query;
mod schema;
#[cfg(windows)]
pub mod windows;

pub use endpoint::{Endpoint, IpConfiguration};
pub use error::{Call, HcnError, Hresult, ObjectKind, Operation, Reason, record_text};
pub use fake::FakeHcn;
pub use feature::{FEATURES, Feature, HnsVersion, SupportedFeatures};
pub use flags::{EndpointFlags, LoadBalancerFlags, NatFlags, NetworkFlags, PortMappingFlags};
pub use guid::{Guid, InvalidGuid};
pub use hcn::{Event, Hcn, Listed, Listener, Watch};
pub use load_balancer::{Distribution, LoadBalancer, PROTOCOL_TCP, PROTOCOL_UDP, PortMapping};
pub use mac::{InvalidMac, MacAddress};
pub use network::{Dns, Ipam, MacPool, MacRange, Network, NetworkType, Route, Subnet};
pub use policy::{
    Acl, AclAction, AclDirection, AclRuleType, EndpointPolicy, IsolationId, NatPortMapping,
    NetworkPolicy, OutBoundNat, PolicyChange, ProviderAddress, RawPolicy, RemoteSubnetRoute,
    RequestType, SdnRoute, SubnetPolicy,
};
pub use query::Query;
pub use schema::DocumentError;
#[cfg(windows)]
pub use windows::WindowsHcn;
